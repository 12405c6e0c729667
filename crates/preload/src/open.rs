//! Calls that open files (next: `mount/src/preload/opening.rs`).

use crate::c;
use crate::descriptors;
use crate::target::{self, PathCall};
use libc::{c_char, c_int, c_uint, mode_t};
use tidemill_preload_api::{ASYNCHRONOUS, Op};

/// Opens a file, in the cluster or on the host.
pub(crate) fn opened(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    let call = PathCall::new(Op::Open, directory, path).with(|request| {
        request.flags = flags.cast_unsigned().into();
        request.mode = mode.into();
        request.a = if target::writes_asynchronously() {
            ASYNCHRONOUS
        } else {
            0
        };
    });
    let host = |directory, path| {
        let mode = usize::try_from(mode).unwrap_or(0);
        let words = [c::word(directory), path as usize, c::word(flags), mode, 0];
        c::call(libc::SYS_openat, words)
    };
    let done = call.make(&mut [], host, |got, _| {
        if got.descriptor < 0 {
            return c::fail(libc::EMFILE);
        }
        if flags & libc::O_CLOEXEC == 0 {
            let words = [c::word(got.descriptor), c::word(libc::F_SETFD), 0, 0, 0];
            c::call(libc::SYS_fcntl, words);
        }
        descriptors::note(got.descriptor, got.answer.value != 0);
        got.descriptor.into()
    });
    c::int(done)
}

const CREAT: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

// In C the third argument is variadic; it is passed in the same place as a third argument.

#[unsafe(no_mangle)]
extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    opened(libc::AT_FDCWD, path, flags, mode)
}

#[unsafe(no_mangle)]
extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    opened(libc::AT_FDCWD, path, flags, mode)
}

#[unsafe(no_mangle)]
extern "C" fn openat(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    opened(directory, path, flags, mode)
}

#[unsafe(no_mangle)]
extern "C" fn openat64(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    opened(directory, path, flags, mode)
}

#[unsafe(no_mangle)]
extern "C" fn creat(path: *const c_char, mode: mode_t) -> c_int {
    opened(libc::AT_FDCWD, path, CREAT, mode)
}

#[unsafe(no_mangle)]
extern "C" fn creat64(path: *const c_char, mode: mode_t) -> c_int {
    opened(libc::AT_FDCWD, path, CREAT, mode)
}

#[unsafe(no_mangle)]
extern "C" fn __open_2(path: *const c_char, flags: c_int) -> c_int {
    opened(libc::AT_FDCWD, path, flags, 0)
}

#[unsafe(no_mangle)]
extern "C" fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
    opened(libc::AT_FDCWD, path, flags, 0)
}

#[unsafe(no_mangle)]
extern "C" fn __openat_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int {
    opened(directory, path, flags, 0)
}

#[unsafe(no_mangle)]
extern "C" fn __openat64_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int {
    opened(directory, path, flags, 0)
}

/// Maximum number of names that `mkstemp` and similar functions try.
const NAMES_MAX: u32 = 10_000;
const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
/// Number of characters of a template that are replaced by random characters.
const HOLES: usize = 6;

/// Replaces the last characters of a template until `make` succeeds.
fn temporary(template: *mut c_char, suffix: c_int, make: impl Fn(*const c_char) -> c_int) -> c_int {
    let length = c::text(template).len();
    let suffix = usize::try_from(suffix).unwrap_or(usize::MAX);
    let holes = length
        .checked_sub(suffix)
        .and_then(|end| end.checked_sub(HOLES));
    let Some(from) = holes else {
        return c::int(c::fail(libc::EINVAL));
    };
    let bytes = c::memory(template.cast(), length);
    if bytes[from..from + HOLES] != *b"XXXXXX" {
        return c::int(c::fail(libc::EINVAL));
    }
    for _ in 0..NAMES_MAX {
        let mut random = [0_u8; HOLES];
        let words = [random.as_mut_ptr() as usize, HOLES, 0, 0, 0];
        c::call(libc::SYS_getrandom, words);
        for (to, byte) in bytes[from..from + HOLES].iter_mut().zip(random) {
            *to = LETTERS[usize::from(byte) % LETTERS.len()];
        }
        let made = make(template);
        if made >= 0 || c::errno() != libc::EEXIST {
            return made;
        }
    }
    c::int(c::fail(libc::EEXIST))
}

fn temporary_file(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
    let flags = flags & !libc::O_ACCMODE | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    temporary(template, suffix, |path| {
        opened(libc::AT_FDCWD, path, flags, 0o600)
    })
}

#[unsafe(no_mangle)]
extern "C" fn mkstemp(template: *mut c_char) -> c_int {
    temporary_file(template, 0, 0)
}

#[unsafe(no_mangle)]
extern "C" fn mkstemp64(template: *mut c_char) -> c_int {
    temporary_file(template, 0, 0)
}

#[unsafe(no_mangle)]
extern "C" fn mkostemp(template: *mut c_char, flags: c_int) -> c_int {
    temporary_file(template, 0, flags)
}

#[unsafe(no_mangle)]
extern "C" fn mkostemp64(template: *mut c_char, flags: c_int) -> c_int {
    temporary_file(template, 0, flags)
}

#[unsafe(no_mangle)]
extern "C" fn mkstemps(template: *mut c_char, suffix: c_int) -> c_int {
    temporary_file(template, suffix, 0)
}

#[unsafe(no_mangle)]
extern "C" fn mkstemps64(template: *mut c_char, suffix: c_int) -> c_int {
    temporary_file(template, suffix, 0)
}

#[unsafe(no_mangle)]
extern "C" fn mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
    temporary_file(template, suffix, flags)
}

#[unsafe(no_mangle)]
extern "C" fn mkostemps64(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
    temporary_file(template, suffix, flags)
}

#[unsafe(no_mangle)]
extern "C" fn mkdtemp(template: *mut c_char) -> *mut c_char {
    let made = temporary(template, 0, |path| {
        crate::names::directory(libc::AT_FDCWD, path, 0o700)
    });
    if made < 0 {
        std::ptr::null_mut()
    } else {
        template
    }
}

/// Returns the flags of `open` for a mode string of `fopen`; `None` if the string is invalid.
pub(crate) fn flags_of(mode: &[u8]) -> Option<c_int> {
    let end = mode.iter().position(|&byte| byte == b',');
    let mode = &mode[..end.unwrap_or(mode.len())];
    let update = mode.contains(&b'+');
    let (write, more) = match mode.first()? {
        b'r' => (false, 0),
        b'w' => (true, libc::O_CREAT | libc::O_TRUNC),
        b'a' => (true, libc::O_CREAT | libc::O_APPEND),
        _ => return None,
    };
    let access = match (write, update) {
        (_, true) => libc::O_RDWR,
        (true, false) => libc::O_WRONLY,
        (false, false) => libc::O_RDONLY,
    };
    let set = |letter, flag| if mode.contains(&letter) { flag } else { 0 };
    Some(access | more | set(b'e', libc::O_CLOEXEC) | set(b'x', libc::O_EXCL))
}

/// Mode bits of a new file before the umask.
pub(crate) const NEW_MODE: c_uint = 0o666;
