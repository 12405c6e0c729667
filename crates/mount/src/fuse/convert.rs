//! Conversions between the file system's types and the types of FUSE.

use crate::error::Error;
use crate::fs::{Caller, LookupResult};
use fuser::{FileAttr, FileType, INodeNo, Request, TimeOrNow};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidemill_wire::v1::Kind;

/// Size of a block in `stat`, in bytes.
const BLOCK_BYTES: u32 = 4096;
const SECOND_NS: i128 = 1_000_000_000;

pub(super) fn caller(request: &Request) -> Caller {
    Caller {
        uid: request.uid(),
        gid: request.gid(),
        pid: request.pid(),
    }
}

pub(super) fn errno(error: &Error) -> fuser::Errno {
    let errno = error.errno();
    if errno == libc::EIO {
        tracing::warn!("an operation failed: {error}");
    }
    fuser::Errno::from_i32(errno)
}

pub(super) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::File | Kind::Unspecified => FileType::RegularFile,
    }
}

/// Returns FUSE attributes with the inode number that the Linux kernel uses or shows.
pub(super) fn attr_of(found: &LookupResult, ino: u64) -> FileAttr {
    let attr = &found.attr;
    FileAttr {
        ino: INodeNo(ino),
        size: attr.size,
        blocks: found.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: UNIX_EPOCH,
        kind: file_type(attr.kind()),
        perm: u16::try_from(attr.mode & 0o7777).unwrap_or(0),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

fn system_time(nanos: i64) -> SystemTime {
    let distance = Duration::from_nanos(nanos.unsigned_abs());
    if nanos >= 0 {
        UNIX_EPOCH + distance
    } else {
        UNIX_EPOCH - distance
    }
}

/// Returns nanoseconds since the Unix epoch. The Linux kernel gives a time before the epoch as whole seconds backwards and a fraction
/// forwards; `fuser` adds the fraction to the backward distance, and this function corrects the sum.
pub(super) fn nanoseconds(time: TimeOrNow) -> i64 {
    let time = match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => SystemTime::now(),
    };
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => {
            let (back, fraction) = (
                before.duration().as_secs(),
                before.duration().subsec_nanos(),
            );
            let nanos = i128::from(fraction) - i128::from(back) * SECOND_NS;
            i64::try_from(nanos).unwrap_or(i64::MIN)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a time as `fuser` derives it from the Linux kernel's numbers.
    fn from_kernel(seconds: i64, nanos: u32) -> TimeOrNow {
        let distance = Duration::new(seconds.unsigned_abs(), nanos);
        TimeOrNow::SpecificTime(if seconds >= 0 {
            UNIX_EPOCH + distance
        } else {
            UNIX_EPOCH - distance
        })
    }

    #[test]
    fn fuse_times_before_and_after_epoch_convert_exactly() {
        for nanos in [0, 1, 1_700_000_000_123_456_789] {
            assert_eq!(
                nanoseconds(TimeOrNow::SpecificTime(system_time(nanos))),
                nanos
            );
        }
        for nanos in [-1, -250_000_000, -1_000_000_000, -1_000_000_001, i64::MIN] {
            let (seconds, rest) = (
                nanos.div_euclid(1_000_000_000),
                nanos.rem_euclid(1_000_000_000),
            );
            let reported = from_kernel(seconds, u32::try_from(rest).unwrap());
            assert_eq!(nanoseconds(reported), nanos);
        }
        assert_eq!(nanoseconds(from_kernel(-1 << 40, 0)), i64::MIN);
    }
}
