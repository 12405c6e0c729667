//! Calls about open files that the operating system cannot answer alone (next: `mount/src/preload/open_files.rs`).

use crate::c;
use crate::target::{self, DescriptorKind};
use libc::{c_int, c_long, off_t};
use std::sync::atomic::{AtomicU64, Ordering};
use tidemill_preload_api::{HANDLES_AT, Op, Request};

/// Number of descriptors for which the library records whether their close must be reported.
const NOTED_MAX: usize = 65_536;

static NOTED: [AtomicU64; NOTED_MAX / 64] = [const { AtomicU64::new(0) }; NOTED_MAX / 64];

fn noted(descriptor: c_int) -> Option<(&'static AtomicU64, u64)> {
    let at = usize::try_from(descriptor).ok()?;
    Some((NOTED.get(at / 64)?, 1 << (at % 64)))
}

/// Records whether changes through a descriptor have to be transferred at its close, so that errors can be reported. Without a record the
/// changes are transferred as well, but their errors are not reported.
pub(crate) fn note(descriptor: c_int, tell: bool) {
    if let Some((word, bit)) = noted(descriptor) {
        if tell {
            word.fetch_or(bit, Ordering::Relaxed);
        } else {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

/// Whether the close of a descriptor must be reported to the file system.
pub(crate) fn is_noted(descriptor: c_int) -> bool {
    noted(descriptor).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

fn request(op: Op) -> Request {
    Request {
        op: op as u64,
        ..Request::default()
    }
}

/// Prepares the close of a descriptor: transfers the changes of a local copy. Returns the result for `close`.
pub(crate) fn before_close(descriptor: c_int) -> Result<(), c_int> {
    let Some((word, bit)) = noted(descriptor) else {
        return Ok(());
    };
    // A child of `vfork` has its parent's notes, and descriptors of its own.
    if word.load(Ordering::Relaxed) & bit == 0 || target::is_child() {
        return Ok(());
    }
    word.fetch_and(!bit, Ordering::Relaxed);
    match target::about(descriptor, request(Op::Flush), [&[], &[], &[]], &mut []) {
        Some(Err(errno)) => Err(errno),
        Some(Ok(_)) | None => Ok(()),
    }
}

#[unsafe(no_mangle)]
extern "C" fn close(descriptor: c_int) -> c_int {
    let outcome = before_close(descriptor);
    let closed = c::call(libc::SYS_close, [c::word(descriptor), 0, 0, 0, 0]);
    match outcome {
        Err(errno) if closed == 0 => c::int(c::fail(errno)),
        _ => c::int(closed),
    }
}

fn synced(descriptor: c_int, number: c_long) -> c_int {
    if let Some(done) = target::about(descriptor, request(Op::Sync), [&[], &[], &[]], &mut []) {
        return match done {
            Ok(_) => 0,
            Err(errno) => c::int(c::fail(errno)),
        };
    }
    c::int(c::call(number, [c::word(descriptor), 0, 0, 0, 0]))
}

#[unsafe(no_mangle)]
extern "C" fn fsync(descriptor: c_int) -> c_int {
    synced(descriptor, libc::SYS_fsync)
}

#[unsafe(no_mangle)]
extern "C" fn fdatasync(descriptor: c_int) -> c_int {
    synced(descriptor, libc::SYS_fdatasync)
}

#[unsafe(no_mangle)]
extern "C" fn flock(descriptor: c_int, operation: c_int) -> c_int {
    let mut request = request(Op::Flock);
    request.flags = operation.cast_unsigned().into();
    request.a = u64::try_from(descriptor).unwrap_or(0);
    if matches!(target::kind(descriptor), DescriptorKind::File(..))
        && let Some(done) = target::about(descriptor, request, [&[], &[], &[]], &mut [])
    {
        return match done {
            Ok(_) => 0,
            Err(errno) => c::int(c::fail(errno)),
        };
    }
    let words = [c::word(descriptor), c::word(operation), 0, 0, 0];
    c::int(c::call(libc::SYS_flock, words))
}

const LOCKS: [c_int; 6] = [
    libc::F_GETLK,
    libc::F_SETLK,
    libc::F_SETLKW,
    libc::F_OFD_GETLK,
    libc::F_OFD_SETLK,
    libc::F_OFD_SETLKW,
];

/// Returns the lock without the bytes that mark files as open, which are after all bytes that programs use.
fn cut(lock: libc::flock) -> libc::flock {
    let end = i64::try_from(HANDLES_AT).unwrap_or(i64::MAX);
    let mut cut = lock;
    let from = if i32::from(lock.l_whence) == libc::SEEK_SET {
        lock.l_start
    } else {
        // The lock begins somewhere in the file.
        end / 2
    };
    if lock.l_len == 0 && (0..end).contains(&from) {
        cut.l_len = end - from;
    }
    cut
}

fn controlled(descriptor: c_int, command: c_int, argument: usize) -> c_int {
    let call = |argument| {
        let words = [c::word(descriptor), c::word(command), argument, 0, 0];
        c::int(c::call(libc::SYS_fcntl, words))
    };
    if !LOCKS.contains(&command) || !matches!(target::kind(descriptor), DescriptorKind::File(..)) {
        return call(argument);
    }
    let at = argument as *mut libc::flock;
    let Some(lock) = c::value(at) else {
        return call(argument);
    };
    let mut changed = cut(lock);
    let done = call((&raw mut changed) as usize);
    if [libc::F_GETLK, libc::F_OFD_GETLK].contains(&command) && done == 0 {
        if i32::from(changed.l_type) == libc::F_UNLCK {
            changed = libc::flock {
                l_type: changed.l_type,
                ..lock
            };
        } else if changed.l_start + changed.l_len == i64::try_from(HANDLES_AT).unwrap_or(0) {
            changed.l_len = 0;
        }
        c::give(at, changed);
    }
    done
}

#[unsafe(no_mangle)]
extern "C" fn fcntl(descriptor: c_int, command: c_int, argument: usize) -> c_int {
    controlled(descriptor, command, argument)
}

#[unsafe(no_mangle)]
extern "C" fn fcntl64(descriptor: c_int, command: c_int, argument: usize) -> c_int {
    controlled(descriptor, command, argument)
}

fn locked(descriptor: c_int, how: c_int, length: off_t) -> c_int {
    let (command, kind) = match how {
        libc::F_LOCK => (libc::F_SETLKW, libc::F_WRLCK),
        libc::F_TLOCK => (libc::F_SETLK, libc::F_WRLCK),
        libc::F_ULOCK => (libc::F_SETLK, libc::F_UNLCK),
        libc::F_TEST => (libc::F_GETLK, libc::F_RDLCK),
        _ => return c::int(c::fail(libc::EINVAL)),
    };
    let narrow = |value: c_int| i16::try_from(value).unwrap_or(0);
    let mut lock = libc::flock {
        l_type: narrow(kind),
        l_whence: narrow(libc::SEEK_CUR),
        l_start: 0,
        l_len: length,
        l_pid: 0,
    };
    let done = controlled(descriptor, command, (&raw mut lock) as usize);
    if how != libc::F_TEST || done != 0 {
        return done;
    }
    if i32::from(lock.l_type) == libc::F_UNLCK || lock.l_pid == c::process() {
        0
    } else {
        c::int(c::fail(libc::EACCES))
    }
}

#[unsafe(no_mangle)]
extern "C" fn lockf(descriptor: c_int, how: c_int, length: off_t) -> c_int {
    locked(descriptor, how, length)
}

#[unsafe(no_mangle)]
extern "C" fn lockf64(descriptor: c_int, how: c_int, length: off_t) -> c_int {
    locked(descriptor, how, length)
}
