//! Calls that create, rename and remove names (next: `mount/src/preload/answer.rs`).

use crate::c;
use crate::connection::{self, RequestOutcome};
use crate::target::{self, PathCall, ResolvedPath};
use libc::{c_char, c_int, c_uint, dev_t, mode_t, size_t, ssize_t};
use tidemill_preload_api::{Op, Request};

const HERE: c_int = libc::AT_FDCWD;

fn mode_word(mode: mode_t) -> usize {
    usize::try_from(mode).unwrap_or(0)
}

pub(crate) fn directory(directory: c_int, path: *const c_char, mode: mode_t) -> c_int {
    PathCall::new(Op::MakeDirectory, directory, path)
        .with(|request| request.mode = mode.into())
        .execute_without_text(|directory, path| {
            let words = [c::word(directory), path as usize, mode_word(mode), 0, 0];
            c::call(libc::SYS_mkdirat, words)
        })
}

#[unsafe(no_mangle)]
extern "C" fn mkdir(path: *const c_char, mode: mode_t) -> c_int {
    directory(HERE, path, mode)
}

#[unsafe(no_mangle)]
extern "C" fn mkdirat(at: c_int, path: *const c_char, mode: mode_t) -> c_int {
    directory(at, path, mode)
}

fn node(directory: c_int, path: *const c_char, mode: mode_t, device: dev_t) -> c_int {
    let number = usize::try_from(device).unwrap_or(0);
    PathCall::new(Op::MakeNode, directory, path)
        .with(|request| {
            request.mode = mode.into();
            request.a = device;
        })
        .execute_without_text(|directory, path| {
            let words = [
                c::word(directory),
                path as usize,
                mode_word(mode),
                number,
                0,
            ];
            c::call(libc::SYS_mknodat, words)
        })
}

#[unsafe(no_mangle)]
extern "C" fn mknod(path: *const c_char, mode: mode_t, device: dev_t) -> c_int {
    node(HERE, path, mode, device)
}

#[unsafe(no_mangle)]
extern "C" fn mknodat(at: c_int, path: *const c_char, mode: mode_t, device: dev_t) -> c_int {
    node(at, path, mode, device)
}

#[unsafe(no_mangle)]
extern "C" fn __xmknod(_: c_int, path: *const c_char, mode: mode_t, device: *const dev_t) -> c_int {
    node(HERE, path, mode, c::value(device).unwrap_or(0))
}

#[unsafe(no_mangle)]
extern "C" fn __xmknodat(
    _: c_int,
    at: c_int,
    path: *const c_char,
    mode: mode_t,
    device: *const dev_t,
) -> c_int {
    node(at, path, mode, c::value(device).unwrap_or(0))
}

#[unsafe(no_mangle)]
extern "C" fn mkfifo(path: *const c_char, mode: mode_t) -> c_int {
    node(HERE, path, mode | libc::S_IFIFO, 0)
}

#[unsafe(no_mangle)]
extern "C" fn mkfifoat(at: c_int, path: *const c_char, mode: mode_t) -> c_int {
    node(at, path, mode | libc::S_IFIFO, 0)
}

fn soft(target: *const c_char, at: c_int, path: *const c_char) -> c_int {
    if c::is_nowhere(target) {
        return c::int(c::fail(libc::EFAULT));
    }
    let text = c::text(target);
    if text.len() >= tidemill_preload_api::PATH_BYTES_MAX {
        return c::int(c::fail(libc::ENAMETOOLONG));
    }
    PathCall::new(Op::Symlink, at, path)
        .second(text)
        .execute_without_text(|at, path| {
            let words = [target as usize, c::word(at), path as usize, 0, 0];
            c::call(libc::SYS_symlinkat, words)
        })
}

#[unsafe(no_mangle)]
extern "C" fn symlink(target: *const c_char, path: *const c_char) -> c_int {
    soft(target, HERE, path)
}

#[unsafe(no_mangle)]
extern "C" fn symlinkat(target: *const c_char, at: c_int, path: *const c_char) -> c_int {
    soft(target, at, path)
}

fn read_link(at: c_int, path: *const c_char, to: *mut c_char, bytes: size_t) -> ssize_t {
    let mut space = [0; c::PATH_SPACE];
    let host = |at, path| {
        let words = [c::word(at), path as usize, to as usize, bytes, 0];
        c::call(libc::SYS_readlinkat, words)
    };
    let done = PathCall::new(Op::ReadLink, at, path).make(&mut space, host, |got, text| {
        let length = got.length.min(bytes);
        c::memory(to.cast(), length).copy_from_slice(&text[..length]);
        length.try_into().unwrap_or(-1)
    });
    ssize_t::try_from(done).unwrap_or(-1)
}

#[unsafe(no_mangle)]
extern "C" fn readlink(path: *const c_char, to: *mut c_char, bytes: size_t) -> ssize_t {
    read_link(HERE, path, to, bytes)
}

#[unsafe(no_mangle)]
extern "C" fn readlinkat(
    at: c_int,
    path: *const c_char,
    to: *mut c_char,
    bytes: size_t,
) -> ssize_t {
    read_link(at, path, to, bytes)
}

#[unsafe(no_mangle)]
extern "C" fn __readlink_chk(
    path: *const c_char,
    to: *mut c_char,
    bytes: size_t,
    _: size_t,
) -> ssize_t {
    read_link(HERE, path, to, bytes)
}

#[unsafe(no_mangle)]
extern "C" fn __readlinkat_chk(
    at: c_int,
    path: *const c_char,
    to: *mut c_char,
    bytes: size_t,
    _: size_t,
) -> ssize_t {
    read_link(at, path, to, bytes)
}

fn remove_name(at: c_int, path: *const c_char, flags: c_int) -> c_int {
    PathCall::new(Op::Unlink, at, path)
        .with(|request| request.flags = flags.cast_unsigned().into())
        .execute_without_text(|at, path| {
            let words = [c::word(at), path as usize, c::word(flags), 0, 0];
            c::call(libc::SYS_unlinkat, words)
        })
}

#[unsafe(no_mangle)]
extern "C" fn unlink(path: *const c_char) -> c_int {
    remove_name(HERE, path, 0)
}

#[unsafe(no_mangle)]
extern "C" fn unlinkat(at: c_int, path: *const c_char, flags: c_int) -> c_int {
    remove_name(at, path, flags)
}

#[unsafe(no_mangle)]
extern "C" fn rmdir(path: *const c_char) -> c_int {
    remove_name(HERE, path, libc::AT_REMOVEDIR)
}

#[unsafe(no_mangle)]
extern "C" fn remove(path: *const c_char) -> c_int {
    let removed = remove_name(HERE, path, 0);
    if removed != 0 && [libc::EISDIR, libc::EPERM].contains(&c::errno()) {
        return remove_name(HERE, path, libc::AT_REMOVEDIR);
    }
    removed
}

/// Executes a call about two paths, which must both be in the cluster, or both on the host.
fn two(
    mut request: Request,
    from: (c_int, *const c_char),
    to: (c_int, *const c_char),
    host: impl Fn() -> libc::c_long,
) -> c_int {
    let (mut one, mut other) = ([0; 2 * c::PATH_SPACE], [0; 2 * c::PATH_SPACE]);
    if c::is_nowhere(from.1) || c::is_nowhere(to.1) {
        return c::int(c::fail(libc::EFAULT));
    }
    let from = target::of(from.0, c::text(from.1), &mut one);
    let to = target::of(to.0, c::text(to.1), &mut other);
    let outcome = match (from, to) {
        (Err(errno), _) | (_, Err(errno)) => RequestOutcome::Failed(errno),
        (Ok(ResolvedPath::Host), Ok(ResolvedPath::Host)) => return c::int(host()),
        (Ok(ResolvedPath::Cluster(base, from)), Ok(ResolvedPath::Cluster(base2, to))) => {
            (request.base, request.base2) = (base, base2);
            let mut left = [0; c::PATH_SPACE];
            connection::ask(request, [from, to, &[]], &mut left)
        }
        _ => RequestOutcome::Failed(libc::EXDEV),
    };
    match outcome {
        RequestOutcome::Done(_) => 0,
        RequestOutcome::Leaves(_) => c::int(c::fail(libc::EXDEV)),
        RequestOutcome::Failed(errno) => c::int(c::fail(errno)),
    }
}

fn hard(from: (c_int, *const c_char), to: (c_int, *const c_char), flags: c_int) -> c_int {
    let request = Request {
        op: Op::Link as u64,
        flags: flags.cast_unsigned().into(),
        ..Request::default()
    };
    two(request, from, to, || {
        let words = [
            c::word(from.0),
            from.1 as usize,
            c::word(to.0),
            to.1 as usize,
            c::word(flags),
        ];
        c::call(libc::SYS_linkat, words)
    })
}

#[unsafe(no_mangle)]
extern "C" fn link(from: *const c_char, to: *const c_char) -> c_int {
    hard((HERE, from), (HERE, to), 0)
}

#[unsafe(no_mangle)]
extern "C" fn linkat(
    from_at: c_int,
    from: *const c_char,
    to_at: c_int,
    to: *const c_char,
    flags: c_int,
) -> c_int {
    hard((from_at, from), (to_at, to), flags)
}

fn renamed(from: (c_int, *const c_char), to: (c_int, *const c_char), flags: c_uint) -> c_int {
    let request = Request {
        op: Op::Rename as u64,
        flags: flags.into(),
        ..Request::default()
    };
    two(request, from, to, || {
        let words = [
            c::word(from.0),
            from.1 as usize,
            c::word(to.0),
            to.1 as usize,
            usize::try_from(flags).unwrap_or(0),
        ];
        c::call(libc::SYS_renameat2, words)
    })
}

#[unsafe(no_mangle)]
extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    renamed((HERE, from), (HERE, to), 0)
}

#[unsafe(no_mangle)]
extern "C" fn renameat(
    from_at: c_int,
    from: *const c_char,
    to_at: c_int,
    to: *const c_char,
) -> c_int {
    renamed((from_at, from), (to_at, to), 0)
}

#[unsafe(no_mangle)]
extern "C" fn renameat2(
    from_at: c_int,
    from: *const c_char,
    to_at: c_int,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    renamed((from_at, from), (to_at, to), flags)
}
