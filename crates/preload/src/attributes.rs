//! Calls about attributes of files: `stat`, permissions, times, sizes, extended attributes (next: `mount/src/preload/attributes.rs`).

use crate::c::{self, RealFunction};
use crate::connection::{Got, Texts};
use crate::target::{self, DescriptorKind, PathCall};
use libc::{c_char, c_int, c_long, c_uint, c_void, gid_t, mode_t, off_t, size_t, ssize_t, uid_t};
use tidemill_preload_api::{DEVICE, Op, Request, TIME_NOW, TIME_OMITTED};

const HERE: c_int = libc::AT_FDCWD;
const NONE: Texts<'static> = [&[], &[], &[]];
/// Maximum length of a file name in bytes.
const NAME_MAX: i64 = 255;
/// File system type in `statfs`: the type of FUSE, which programs do not take for a local disk.
const MAGIC: i64 = 0x6573_5546;

fn request(op: Op) -> Request {
    Request {
        op: op as u64,
        ..Request::default()
    }
}

/// Sends a request about a descriptor of the cluster, or calls the operating system for another descriptor.
fn about(
    descriptor: c_int,
    request: Request,
    texts: Texts<'_>,
    done: impl FnOnce(&Got) -> c_int,
    host: impl FnOnce() -> c_long,
) -> c_int {
    match target::about(descriptor, request, texts, &mut []) {
        None => c::int(host()),
        Some(Ok(got)) => done(&got),
        Some(Err(errno)) => c::int(c::fail(errno)),
    }
}

/// Whether a call is about the file of its directory descriptor itself.
fn itself(path: *const c_char, flags: c_int) -> bool {
    flags & libc::AT_EMPTY_PATH != 0 && c::text(path).is_empty()
}

fn stat_at(at: c_int, path: *const c_char, to: *mut libc::stat, flags: c_int) -> c_int {
    if itself(path, flags) && at != HERE {
        return stat_open(at, to);
    }
    let host = |at, path| {
        let words = [c::word(at), path as usize, to as usize, c::word(flags), 0];
        c::call(libc::SYS_newfstatat, words)
    };
    let call = PathCall::new(Op::Stat, at, path);
    let call = call.with(|request| request.flags = flags.cast_unsigned().into());
    c::int(call.make(&mut [], host, |got, _| {
        c::give(to, c::stat_of(&got.answer.stat));
        0
    }))
}

fn stat_open(descriptor: c_int, to: *mut libc::stat) -> c_int {
    let words = [c::word(descriptor), to as usize, 0, 0, 0];
    let done = c::int(c::call(libc::SYS_fstat, words));
    let Some(stat) = c::value(to).filter(|_| done == 0) else {
        return done;
    };
    if target::kind_of(descriptor, &stat) == DescriptorKind::Host {
        return 0;
    }
    let shown = |got: &Got| {
        c::give(to, c::stat_of(&got.answer.stat));
        0
    };
    about(descriptor, request(Op::Stat), NONE, shown, || 0)
}

macro_rules! stats {
    ($($at:ident $plain:ident $link:ident $open:ident)*) => { $(
        #[unsafe(no_mangle)]
        extern "C" fn $at(at: c_int, path: *const c_char, to: *mut libc::stat, flags: c_int) -> c_int {
            stat_at(at, path, to, flags)
        }
        #[unsafe(no_mangle)]
        extern "C" fn $plain(path: *const c_char, to: *mut libc::stat) -> c_int {
            stat_at(HERE, path, to, 0)
        }
        #[unsafe(no_mangle)]
        extern "C" fn $link(path: *const c_char, to: *mut libc::stat) -> c_int {
            stat_at(HERE, path, to, libc::AT_SYMLINK_NOFOLLOW)
        }
        #[unsafe(no_mangle)]
        extern "C" fn $open(descriptor: c_int, to: *mut libc::stat) -> c_int {
            stat_open(descriptor, to)
        }
    )* };
}
stats! { fstatat stat lstat fstat fstatat64 stat64 lstat64 fstat64 }

/// Defines the functions for programs that were built with a C library before 2.33, which pass a version of the structure.
macro_rules! old_stats {
    ($($at:ident $plain:ident $link:ident $open:ident)*) => { $(
        #[unsafe(no_mangle)]
        extern "C" fn $at(_: c_int, at: c_int, path: *const c_char, to: *mut libc::stat, flags: c_int) -> c_int {
            stat_at(at, path, to, flags)
        }
        #[unsafe(no_mangle)]
        extern "C" fn $plain(_: c_int, path: *const c_char, to: *mut libc::stat) -> c_int {
            stat_at(HERE, path, to, 0)
        }
        #[unsafe(no_mangle)]
        extern "C" fn $link(_: c_int, path: *const c_char, to: *mut libc::stat) -> c_int {
            stat_at(HERE, path, to, libc::AT_SYMLINK_NOFOLLOW)
        }
        #[unsafe(no_mangle)]
        extern "C" fn $open(_: c_int, descriptor: c_int, to: *mut libc::stat) -> c_int {
            stat_open(descriptor, to)
        }
    )* };
}
old_stats! { __fxstatat __xstat __lxstat __fxstat __fxstatat64 __xstat64 __lxstat64 __fxstat64 }

fn give_statx(to: *mut libc::statx, got: &Got) {
    let stat = &got.answer.stat;
    let time = |nanos| {
        let (seconds, rest) = c::seconds(nanos);
        let mut time = c::zeroed::<libc::statx>().stx_atime;
        time.tv_sec = seconds;
        time.tv_nsec = u32::try_from(rest).unwrap_or(0);
        time
    };
    let major = |device: u64| libc::major(device);
    let minor = |device: u64| libc::minor(device);
    let mut shown: libc::statx = c::zeroed();
    shown.stx_mask = libc::STATX_BASIC_STATS;
    shown.stx_blksize = 4096;
    shown.stx_nlink = c::low(stat.nlink);
    shown.stx_uid = c::low(stat.uid);
    shown.stx_gid = c::low(stat.gid);
    shown.stx_mode = u16::try_from(stat.mode).unwrap_or(0);
    shown.stx_ino = stat.ino;
    shown.stx_size = stat.size;
    shown.stx_blocks = stat.blocks;
    shown.stx_atime = time(stat.atime);
    shown.stx_mtime = time(stat.mtime);
    shown.stx_ctime = time(stat.ctime);
    (shown.stx_rdev_major, shown.stx_rdev_minor) = (major(stat.rdev), minor(stat.rdev));
    (shown.stx_dev_major, shown.stx_dev_minor) = (major(DEVICE), minor(DEVICE));
    c::give(to, shown);
}

#[unsafe(no_mangle)]
extern "C" fn statx(
    at: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    to: *mut libc::statx,
) -> c_int {
    let host = |at: c_int, path: *const c_char| {
        let words = [
            c::word(at),
            path as usize,
            c::word(flags),
            usize::try_from(mask).unwrap_or(0),
            to as usize,
        ];
        c::call(libc::SYS_statx, words)
    };
    if itself(path, flags) && at != HERE {
        let shown = |got: &Got| {
            give_statx(to, got);
            0
        };
        return about(at, request(Op::Stat), NONE, shown, || host(at, path));
    }
    let call = PathCall::new(Op::Stat, at, path);
    let call = call.with(|request| request.flags = flags.cast_unsigned().into());
    c::int(call.make(&mut [], host, |got, _| {
        give_statx(to, got);
        0
    }))
}

fn accessible(at: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
    let mut call = PathCall::new(Op::Access, at, path).with(|request| {
        request.mode = mode.cast_unsigned().into();
        request.flags = (flags & libc::AT_SYMLINK_NOFOLLOW).cast_unsigned().into();
    });
    call.really = flags & libc::AT_EACCESS == 0;
    call.execute_without_text(|at, path| {
        let words = [c::word(at), path as usize, c::word(mode), c::word(flags), 0];
        if flags == 0 {
            return c::call(libc::SYS_faccessat, words);
        }
        c::call(libc::SYS_faccessat2, words)
    })
}

/// Returns 0 if the program at a path may be run, otherwise an error number.
pub(crate) fn runnable(path: *const c_char) -> c_int {
    accessible(HERE, path, libc::X_OK, libc::AT_EACCESS)
}

#[unsafe(no_mangle)]
extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    accessible(HERE, path, mode, 0)
}

#[unsafe(no_mangle)]
extern "C" fn faccessat(at: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
    accessible(at, path, mode, flags)
}

#[unsafe(no_mangle)]
extern "C" fn euidaccess(path: *const c_char, mode: c_int) -> c_int {
    accessible(HERE, path, mode, libc::AT_EACCESS)
}

#[unsafe(no_mangle)]
extern "C" fn eaccess(path: *const c_char, mode: c_int) -> c_int {
    accessible(HERE, path, mode, libc::AT_EACCESS)
}

fn set_mode(at: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int {
    let bits = usize::try_from(mode).unwrap_or(0);
    PathCall::new(Op::SetMode, at, path)
        .with(|request| {
            request.mode = mode.into();
            request.flags = flags.cast_unsigned().into();
        })
        .execute_without_text(|at, path| {
            if flags & libc::AT_SYMLINK_NOFOLLOW != 0 {
                let words = [c::word(at), path as usize, bits, c::word(flags), 0];
                let done = c::call(libc::SYS_fchmodat2, words);
                if done != 0 && c::errno() == libc::ENOSYS {
                    return c::fail(libc::EOPNOTSUPP);
                }
                return done;
            }
            c::call(libc::SYS_fchmodat, [c::word(at), path as usize, bits, 0, 0])
        })
}

#[unsafe(no_mangle)]
extern "C" fn chmod(path: *const c_char, mode: mode_t) -> c_int {
    set_mode(HERE, path, mode, 0)
}

#[unsafe(no_mangle)]
extern "C" fn lchmod(path: *const c_char, mode: mode_t) -> c_int {
    set_mode(HERE, path, mode, libc::AT_SYMLINK_NOFOLLOW)
}

#[unsafe(no_mangle)]
extern "C" fn fchmodat(at: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int {
    set_mode(at, path, mode, flags)
}

#[unsafe(no_mangle)]
extern "C" fn fchmod(descriptor: c_int, mode: mode_t) -> c_int {
    let mut asked = request(Op::SetMode);
    asked.mode = mode.into();
    let bits = usize::try_from(mode).unwrap_or(0);
    about(
        descriptor,
        asked,
        NONE,
        |_| 0,
        || c::call(libc::SYS_fchmod, [c::word(descriptor), bits, 0, 0, 0]),
    )
}

fn id(number: u32) -> usize {
    usize::try_from(number).unwrap_or(0)
}

fn set_owner(at: c_int, path: *const c_char, uid: uid_t, gid: gid_t, flags: c_int) -> c_int {
    if itself(path, flags) && at != HERE {
        return fchown(at, uid, gid);
    }
    PathCall::new(Op::SetOwner, at, path)
        .with(|request| {
            (request.a, request.b) = (uid.into(), gid.into());
            request.flags = flags.cast_unsigned().into();
        })
        .execute_without_text(|at, path| {
            let words = [c::word(at), path as usize, id(uid), id(gid), c::word(flags)];
            c::call(libc::SYS_fchownat, words)
        })
}

#[unsafe(no_mangle)]
extern "C" fn chown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int {
    set_owner(HERE, path, uid, gid, 0)
}

#[unsafe(no_mangle)]
extern "C" fn lchown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int {
    set_owner(HERE, path, uid, gid, libc::AT_SYMLINK_NOFOLLOW)
}

#[unsafe(no_mangle)]
extern "C" fn fchownat(
    at: c_int,
    path: *const c_char,
    uid: uid_t,
    gid: gid_t,
    flags: c_int,
) -> c_int {
    set_owner(at, path, uid, gid, flags)
}

#[unsafe(no_mangle)]
extern "C" fn fchown(descriptor: c_int, uid: uid_t, gid: gid_t) -> c_int {
    let mut asked = request(Op::SetOwner);
    (asked.a, asked.b) = (uid.into(), gid.into());
    about(
        descriptor,
        asked,
        NONE,
        |_| 0,
        || {
            let words = [c::word(descriptor), id(uid), id(gid), 0, 0];
            c::call(libc::SYS_fchown, words)
        },
    )
}

/// Converts times to the form of requests to the file system.
fn times_of(times: *const libc::timespec) -> Option<[i64; 2]> {
    let Some(first) = c::value(times) else {
        return Some([TIME_NOW; 2]);
    };
    let second = c::value(times.wrapping_add(1))?;
    let nanos = |time: libc::timespec| match time.tv_nsec {
        libc::UTIME_NOW => Some(TIME_NOW),
        libc::UTIME_OMIT => Some(TIME_OMITTED),
        nanos @ 0..1_000_000_000 => {
            let seconds = time.tv_sec.checked_mul(1_000_000_000)?;
            seconds.checked_add(nanos)
        }
        _ => None,
    };
    Some([nanos(first)?, nanos(second)?])
}

fn set_times(at: c_int, path: *const c_char, times: *const libc::timespec, flags: c_int) -> c_int {
    let host = |at: c_int, path: *const c_char| {
        let words = [
            c::word(at),
            path as usize,
            times as usize,
            c::word(flags),
            0,
        ];
        c::call(libc::SYS_utimensat, words)
    };
    let Some([atime, mtime]) = times_of(times) else {
        return c::int(c::fail(libc::EINVAL));
    };
    let fill = |request: &mut Request| {
        request.a = atime.cast_unsigned();
        request.b = mtime.cast_unsigned();
        request.flags = flags.cast_unsigned().into();
    };
    if path.is_null() || itself(path, flags) && at != HERE {
        let mut asked = request(Op::SetTimes);
        fill(&mut asked);
        return about(at, asked, NONE, |_| 0, || host(at, path));
    }
    PathCall::new(Op::SetTimes, at, path)
        .with(fill)
        .execute_without_text(host)
}

#[unsafe(no_mangle)]
extern "C" fn utimensat(
    at: c_int,
    path: *const c_char,
    times: *const libc::timespec,
    flags: c_int,
) -> c_int {
    set_times(at, path, times, flags)
}

#[unsafe(no_mangle)]
extern "C" fn futimens(descriptor: c_int, times: *const libc::timespec) -> c_int {
    set_times(descriptor, std::ptr::null(), times, 0)
}

/// Sets the times of a file, which are given in microseconds.
fn set_micros(at: c_int, path: *const c_char, times: *const libc::timeval, flags: c_int) -> c_int {
    let (first, second) = (c::value(times), c::value(times.wrapping_add(1)));
    let (Some(first), Some(second)) = (first, second.filter(|_| !times.is_null())) else {
        return set_times(at, path, std::ptr::null(), flags);
    };
    let spec = |time: libc::timeval| libc::timespec {
        tv_sec: time.tv_sec,
        tv_nsec: time.tv_usec.saturating_mul(1000),
    };
    let both = [spec(first), spec(second)];
    set_times(at, path, both.as_ptr(), flags)
}

#[unsafe(no_mangle)]
extern "C" fn utimes(path: *const c_char, times: *const libc::timeval) -> c_int {
    set_micros(HERE, path, times, 0)
}

#[unsafe(no_mangle)]
extern "C" fn lutimes(path: *const c_char, times: *const libc::timeval) -> c_int {
    set_micros(HERE, path, times, libc::AT_SYMLINK_NOFOLLOW)
}

#[unsafe(no_mangle)]
extern "C" fn futimes(descriptor: c_int, times: *const libc::timeval) -> c_int {
    set_micros(descriptor, std::ptr::null(), times, 0)
}

#[unsafe(no_mangle)]
extern "C" fn futimesat(at: c_int, path: *const c_char, times: *const libc::timeval) -> c_int {
    set_micros(at, path, times, 0)
}

#[unsafe(no_mangle)]
extern "C" fn utime(path: *const c_char, times: *const libc::utimbuf) -> c_int {
    let Some(times) = c::value(times) else {
        return set_times(HERE, path, std::ptr::null(), 0);
    };
    let spec = |seconds| libc::timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    let both = [spec(times.actime), spec(times.modtime)];
    set_times(HERE, path, both.as_ptr(), 0)
}

fn set_size(path: *const c_char, size: off_t) -> c_int {
    PathCall::new(Op::Truncate, HERE, path)
        .with(|request| request.a = size.cast_unsigned())
        .execute_without_text(|_, path| {
            let size = isize::try_from(size).unwrap_or(-1).cast_unsigned();
            c::call(libc::SYS_truncate, [path as usize, size, 0, 0, 0])
        })
}

#[unsafe(no_mangle)]
extern "C" fn truncate(path: *const c_char, size: off_t) -> c_int {
    set_size(path, size)
}

#[unsafe(no_mangle)]
extern "C" fn truncate64(path: *const c_char, size: off_t) -> c_int {
    set_size(path, size)
}

fn give_statfs(to: *mut libc::statfs, got: &Got) -> c_int {
    let stat = &got.answer.stat;
    let mut shown: libc::statfs = c::zeroed();
    shown.f_type = MAGIC;
    shown.f_bsize = 4096;
    shown.f_frsize = 4096;
    shown.f_blocks = stat.blocks;
    shown.f_bfree = stat.size;
    shown.f_bavail = stat.size;
    shown.f_files = stat.nlink + u64::from(u32::MAX);
    shown.f_ffree = u32::MAX.into();
    shown.f_namelen = NAME_MAX;
    c::give(to, shown);
    0
}

fn give_statvfs(to: *mut libc::statvfs, shown: &libc::statfs) -> c_int {
    let mut other: libc::statvfs = c::zeroed();
    other.f_bsize = shown.f_bsize.cast_unsigned();
    other.f_frsize = shown.f_frsize.cast_unsigned();
    other.f_blocks = shown.f_blocks;
    other.f_bfree = shown.f_bfree;
    other.f_bavail = shown.f_bavail;
    other.f_files = shown.f_files;
    other.f_ffree = shown.f_ffree;
    other.f_favail = shown.f_ffree;
    other.f_namemax = shown.f_namelen.cast_unsigned();
    c::give(to, other);
    0
}

fn file_system(path: *const c_char, to: *mut libc::statfs) -> c_int {
    let host = |_, path: *const c_char| {
        let words = [path as usize, to as usize, 0, 0, 0];
        c::call(libc::SYS_statfs, words)
    };
    let call = PathCall::new(Op::StatFs, HERE, path);
    c::int(call.make(&mut [], host, |got, _| give_statfs(to, got).into()))
}

fn file_system_open(descriptor: c_int, to: *mut libc::statfs) -> c_int {
    let shown = |got: &Got| give_statfs(to, got);
    about(descriptor, request(Op::StatFs), NONE, shown, || {
        let words = [c::word(descriptor), to as usize, 0, 0, 0];
        c::call(libc::SYS_fstatfs, words)
    })
}

static STATVFS: RealFunction = RealFunction::new(c"statvfs64");
static FSTATVFS: RealFunction = RealFunction::new(c"fstatvfs64");

pub(crate) fn find() {
    STATVFS.find();
    FSTATVFS.find();
}

fn as_statvfs(path: *const c_char, to: *mut libc::statvfs) -> c_int {
    let host = |_, path: *const c_char| {
        let words = [path as usize, to as usize, 0, 0, 0, 0];
        c::int_of(c::real(&STATVFS, words)).into()
    };
    let call = PathCall::new(Op::StatFs, HERE, path);
    c::int(call.make(&mut [], host, |got, _| {
        let mut shown: libc::statfs = c::zeroed();
        give_statfs(&raw mut shown, got);
        give_statvfs(to, &shown).into()
    }))
}

fn as_statvfs_open(descriptor: c_int, to: *mut libc::statvfs) -> c_int {
    let shown = |got: &Got| {
        let mut shown: libc::statfs = c::zeroed();
        give_statfs(&raw mut shown, got);
        give_statvfs(to, &shown)
    };
    about(descriptor, request(Op::StatFs), NONE, shown, || {
        let words = [c::word(descriptor), to as usize, 0, 0, 0, 0];
        c::int_of(c::real(&FSTATVFS, words)).into()
    })
}

macro_rules! file_systems {
    ($($plain:ident $open:ident $other:ident $other_open:ident)*) => { $(
        #[unsafe(no_mangle)]
        extern "C" fn $plain(path: *const c_char, to: *mut libc::statfs) -> c_int {
            file_system(path, to)
        }
        #[unsafe(no_mangle)]
        extern "C" fn $open(descriptor: c_int, to: *mut libc::statfs) -> c_int {
            file_system_open(descriptor, to)
        }
        #[unsafe(no_mangle)]
        extern "C" fn $other(path: *const c_char, to: *mut libc::statvfs) -> c_int {
            as_statvfs(path, to)
        }
        #[unsafe(no_mangle)]
        extern "C" fn $other_open(descriptor: c_int, to: *mut libc::statvfs) -> c_int {
            as_statvfs_open(descriptor, to)
        }
    )* };
}
file_systems! { statfs fstatfs statvfs fstatvfs statfs64 fstatfs64 statvfs64 fstatvfs64 }

/// Target of a call of extended attributes.
#[derive(Clone, Copy)]
enum AttributeTarget {
    Path(*const c_char, c_int),
    Open(c_int),
}

fn attribute(
    of: AttributeTarget,
    op: Op,
    (name, to, bytes): (*const c_char, *mut c_void, size_t),
    [plain, link, open]: [c_long; 3],
) -> ssize_t {
    let words = |first: usize| match op {
        Op::ListAttributes => [first, to as usize, bytes, 0, 0],
        _ => [first, name as usize, to as usize, bytes, 0],
    };
    let host = |_, path: *const c_char| match of {
        AttributeTarget::Path(_, 0) => c::call(plain, words(path as usize)),
        AttributeTarget::Path(..) => c::call(link, words(path as usize)),
        AttributeTarget::Open(descriptor) => c::call(open, words(c::word(descriptor))),
    };
    let space = c::memory(to, bytes);
    let done = match of {
        AttributeTarget::Path(path, flags) => PathCall::new(op, HERE, path)
            .with(|request| {
                request.a = bytes as u64;
                request.flags = flags.cast_unsigned().into();
            })
            .second(c::text(name))
            .make(space, host, |got, text| {
                // Short answers are received elsewhere, since a path could have arrived instead.
                let length = got.length.min(bytes);
                let from = text.as_ptr();
                if length > 0 && !std::ptr::eq(from, to.cast()) {
                    c::memory(to, length).copy_from_slice(&text[..length]);
                }
                c_long::try_from(got.answer.value).unwrap_or(-1)
            }),
        AttributeTarget::Open(descriptor) => {
            let mut asked = request(op);
            asked.a = bytes as u64;
            match target::about(descriptor, asked, [&[], c::text(name), &[]], space) {
                None => host(HERE, std::ptr::null()),
                Some(Ok(got)) => c_long::try_from(got.answer.value).unwrap_or(-1),
                Some(Err(errno)) => c::fail(errno),
            }
        }
    };
    ssize_t::try_from(done).unwrap_or(-1)
}

const GETS: [c_long; 3] = [libc::SYS_getxattr, libc::SYS_lgetxattr, libc::SYS_fgetxattr];
const LISTS: [c_long; 3] = [
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_flistxattr,
];
const NOFOLLOW: c_int = libc::AT_SYMLINK_NOFOLLOW;

#[unsafe(no_mangle)]
extern "C" fn getxattr(
    path: *const c_char,
    name: *const c_char,
    to: *mut c_void,
    bytes: size_t,
) -> ssize_t {
    attribute(
        AttributeTarget::Path(path, 0),
        Op::GetAttribute,
        (name, to, bytes),
        GETS,
    )
}

#[unsafe(no_mangle)]
extern "C" fn lgetxattr(
    path: *const c_char,
    name: *const c_char,
    to: *mut c_void,
    bytes: size_t,
) -> ssize_t {
    let of = AttributeTarget::Path(path, NOFOLLOW);
    attribute(of, Op::GetAttribute, (name, to, bytes), GETS)
}

#[unsafe(no_mangle)]
extern "C" fn fgetxattr(
    descriptor: c_int,
    name: *const c_char,
    to: *mut c_void,
    bytes: size_t,
) -> ssize_t {
    let of = AttributeTarget::Open(descriptor);
    attribute(of, Op::GetAttribute, (name, to, bytes), GETS)
}

#[unsafe(no_mangle)]
extern "C" fn listxattr(path: *const c_char, to: *mut c_char, bytes: size_t) -> ssize_t {
    let into = (std::ptr::null(), to.cast(), bytes);
    attribute(
        AttributeTarget::Path(path, 0),
        Op::ListAttributes,
        into,
        LISTS,
    )
}

#[unsafe(no_mangle)]
extern "C" fn llistxattr(path: *const c_char, to: *mut c_char, bytes: size_t) -> ssize_t {
    let into = (std::ptr::null(), to.cast(), bytes);
    attribute(
        AttributeTarget::Path(path, NOFOLLOW),
        Op::ListAttributes,
        into,
        LISTS,
    )
}

#[unsafe(no_mangle)]
extern "C" fn flistxattr(descriptor: c_int, to: *mut c_char, bytes: size_t) -> ssize_t {
    let into = (std::ptr::null(), to.cast(), bytes);
    attribute(
        AttributeTarget::Open(descriptor),
        Op::ListAttributes,
        into,
        LISTS,
    )
}

fn set_attribute(
    of: AttributeTarget,
    (name, value, bytes, how): (*const c_char, *const c_void, size_t, c_int),
) -> c_int {
    let words = |first: usize| [first, name as usize, value as usize, bytes, c::word(how)];
    let texts = (c::text(name), c::bytes(value, bytes));
    if texts.1.len() > tidemill_preload_api::VALUE_BYTES_MAX {
        return c::int(c::fail(libc::E2BIG));
    }
    match of {
        AttributeTarget::Path(path, flags) => PathCall::new(Op::SetAttribute, HERE, path)
            .with(|request| {
                request.flags = flags.cast_unsigned().into();
                request.mode = how.cast_unsigned().into();
            })
            .second(texts.0)
            .third(texts.1)
            .execute_without_text(|_, path| {
                let number = match flags {
                    0 => libc::SYS_setxattr,
                    _ => libc::SYS_lsetxattr,
                };
                c::call(number, words(path as usize))
            }),
        AttributeTarget::Open(descriptor) => {
            let mut asked = request(Op::SetAttribute);
            asked.mode = how.cast_unsigned().into();
            about(
                descriptor,
                asked,
                [&[], texts.0, texts.1],
                |_| 0,
                || c::call(libc::SYS_fsetxattr, words(c::word(descriptor))),
            )
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn setxattr(
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    bytes: size_t,
    how: c_int,
) -> c_int {
    set_attribute(AttributeTarget::Path(path, 0), (name, value, bytes, how))
}

#[unsafe(no_mangle)]
extern "C" fn lsetxattr(
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    bytes: size_t,
    how: c_int,
) -> c_int {
    set_attribute(
        AttributeTarget::Path(path, NOFOLLOW),
        (name, value, bytes, how),
    )
}

#[unsafe(no_mangle)]
extern "C" fn fsetxattr(
    descriptor: c_int,
    name: *const c_char,
    value: *const c_void,
    bytes: size_t,
    how: c_int,
) -> c_int {
    set_attribute(AttributeTarget::Open(descriptor), (name, value, bytes, how))
}

fn remove_attribute(of: AttributeTarget, name: *const c_char) -> c_int {
    let words = |first: usize| [first, name as usize, 0, 0, 0];
    match of {
        AttributeTarget::Path(path, flags) => PathCall::new(Op::RemoveAttribute, HERE, path)
            .with(|request| request.flags = flags.cast_unsigned().into())
            .second(c::text(name))
            .execute_without_text(|_, path| {
                let number = match flags {
                    0 => libc::SYS_removexattr,
                    _ => libc::SYS_lremovexattr,
                };
                c::call(number, words(path as usize))
            }),
        AttributeTarget::Open(descriptor) => {
            let texts = [&[], c::text(name), &[]];
            about(
                descriptor,
                request(Op::RemoveAttribute),
                texts,
                |_| 0,
                || c::call(libc::SYS_fremovexattr, words(c::word(descriptor))),
            )
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn removexattr(path: *const c_char, name: *const c_char) -> c_int {
    remove_attribute(AttributeTarget::Path(path, 0), name)
}

#[unsafe(no_mangle)]
extern "C" fn lremovexattr(path: *const c_char, name: *const c_char) -> c_int {
    remove_attribute(AttributeTarget::Path(path, NOFOLLOW), name)
}

#[unsafe(no_mangle)]
extern "C" fn fremovexattr(descriptor: c_int, name: *const c_char) -> c_int {
    remove_attribute(AttributeTarget::Open(descriptor), name)
}
