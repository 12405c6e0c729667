//! Calls about streams, whose files the C library opens internally, so this module opens them instead (next: `preload/src/open.rs`).

use crate::c::{self, RealFunction};
use crate::descriptors;
use crate::open::{NEW_MODE, flags_of, opened};
use crate::target::{self, ResolvedPath};
use libc::{FILE, c_char, c_int};

static FOPEN: RealFunction = RealFunction::new(c"fopen64");
static FREOPEN: RealFunction = RealFunction::new(c"freopen64");
static FDOPEN: RealFunction = RealFunction::new(c"fdopen");
static FCLOSE: RealFunction = RealFunction::new(c"fclose");
static FFLUSH: RealFunction = RealFunction::new(c"fflush");
static FILENO: RealFunction = RealFunction::new(c"fileno");
static PURGE: RealFunction = RealFunction::new(c"__fpurge");
static CLEARERR: RealFunction = RealFunction::new(c"clearerr");

pub(crate) fn find() {
    let all = [
        &FOPEN, &FREOPEN, &FDOPEN, &FCLOSE, &FFLUSH, &FILENO, &PURGE, &CLEARERR,
    ];
    for function in all {
        function.find();
    }
}

fn is_host(path: *const c_char) -> bool {
    let mut space = [0; 2 * c::PATH_SPACE];
    matches!(
        target::of(libc::AT_FDCWD, c::text(path), &mut space),
        Ok(ResolvedPath::Host)
    )
}

fn shut(descriptor: c_int) {
    c::call(libc::SYS_close, [c::word(descriptor), 0, 0, 0, 0]);
}

fn stream(path: *const c_char, mode: *const c_char) -> *mut FILE {
    if is_host(path) {
        let words = [path as usize, mode as usize, 0, 0, 0, 0];
        return c::pointer(c::real(&FOPEN, words)).cast();
    }
    let Some(flags) = flags_of(c::text(mode)) else {
        c::set_errno(libc::EINVAL);
        return std::ptr::null_mut();
    };
    let descriptor = opened(libc::AT_FDCWD, path, flags, NEW_MODE);
    if descriptor < 0 {
        return std::ptr::null_mut();
    }
    let words = [c::word(descriptor), mode as usize, 0, 0, 0, 0];
    let stream = c::pointer(c::real(&FDOPEN, words));
    if stream.is_null() {
        let errno = c::errno();
        shut(descriptor);
        c::set_errno(errno);
    }
    stream.cast()
}

#[unsafe(no_mangle)]
extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    stream(path, mode)
}

#[unsafe(no_mangle)]
extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
    stream(path, mode)
}

/// Replaces the file of a stream, like `freopen`.
fn turned(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
    let at = stream as usize;
    if path.is_null() || is_host(path) {
        let words = [path as usize, mode as usize, at, 0, 0, 0];
        return c::pointer(c::real(&FREOPEN, words)).cast();
    }
    let flags = flags_of(c::text(mode));
    let descriptor = flags.map_or(-1, |flags| opened(libc::AT_FDCWD, path, flags, NEW_MODE));
    c::real(&FFLUSH, [at, 0, 0, 0, 0, 0]);
    if descriptor < 0 {
        let errno = c::errno();
        close_stream(stream);
        c::set_errno(errno);
        return std::ptr::null_mut();
    }
    // The C library sets a stream's mode when it opens a file: every user can open `/dev/null`.
    let words = [c"/dev/null".as_ptr() as usize, mode as usize, at, 0, 0, 0];
    let again = c::pointer(c::real(&FREOPEN, words));
    if again.is_null() {
        shut(descriptor);
        return again.cast();
    }
    let at = again as usize;
    c::real(&PURGE, [at, 0, 0, 0, 0, 0]);
    let own = c::int_of(c::real(&FILENO, [at, 0, 0, 0, 0, 0]));
    let keep = flags.unwrap_or(0) & libc::O_CLOEXEC;
    let words = [c::word(descriptor), c::word(own), c::word(keep), 0, 0];
    let moved = c::call(libc::SYS_dup3, words);
    shut(descriptor);
    c::real(&CLEARERR, [at, 0, 0, 0, 0, 0]);
    if moved < 0 {
        std::ptr::null_mut()
    } else {
        again.cast()
    }
}

#[unsafe(no_mangle)]
extern "C" fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
    turned(path, mode, stream)
}

#[unsafe(no_mangle)]
extern "C" fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
    turned(path, mode, stream)
}

/// Closes a stream. Changes of a local copy are transferred before the close, so that errors can be reported.
fn close_stream(stream: *mut FILE) -> c_int {
    let at = stream as usize;
    let mut outcome = Ok(());
    if !stream.is_null() && target::is_on() {
        let errno = c::errno();
        let descriptor = c::int_of(c::real(&FILENO, [at, 0, 0, 0, 0, 0]));
        c::set_errno(errno);
        if descriptors::is_noted(descriptor) {
            c::real(&FFLUSH, [at, 0, 0, 0, 0, 0]);
            outcome = descriptors::before_close(descriptor);
        }
    }
    let closed = c::int_of(c::real(&FCLOSE, [at, 0, 0, 0, 0, 0]));
    match outcome {
        Err(errno) if closed == 0 => c::int(c::fail(errno)),
        _ => closed,
    }
}

#[unsafe(no_mangle)]
extern "C" fn fclose(stream: *mut FILE) -> c_int {
    close_stream(stream)
}
