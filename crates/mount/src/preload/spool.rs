//! The directory of asynchronously written files. Each file has a record of its identity, and neither outlives the other. The module
//! changes only this directory.
//!
//! The name of a spool file is a number; its record has the same name with the suffix `.r`. The record exists before a program gets the
//! file, and is removed when the bytes are stored. Whichever process ends in between, the next file system of the directory finds both the
//! file and its record.

use crate::fs::Caller;
use parking_lot::Mutex;
use prost::Message as _;
use rustix::fd::AsRawFd;
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, fallocate, linkat, open};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use tidemill_client::host_id;

/// Bytes of memory that are allocated in advance for the next file, because the allocation is most of the cost of a write.
const READY_BYTES: u64 = 128 << 20;
/// Type that `statfs` reports for a file system in memory (`TMPFS_MAGIC` of Linux).
const TMPFS: i64 = 0x0102_1994;

/// Identity of a file whose bytes are to be stored.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct SpoolRecord {
    #[prost(uint64, tag = "1")]
    pub(super) number: u64,
    #[prost(uint64, tag = "2")]
    pub(super) inode: u64,
    #[prost(uint32, tag = "3")]
    pub(super) uid: u32,
    #[prost(uint32, tag = "4")]
    pub(super) gid: u32,
    /// Objects of the versions that the file may follow: the previous version, and versions that were begun for the file. If the file's
    /// current version is another version, another client has written the file.
    #[prost(uint64, repeated, tag = "5")]
    pub(super) follows: Vec<u64>,
    /// Path of the file, as users see it.
    #[prost(bytes = "vec", tag = "6")]
    pub(super) path: Vec<u8>,
    #[prost(uint64, tag = "7")]
    pub(super) cluster: u64,
    /// Linux's id of the boot in which the file was written. The last field: a record without its end belongs to no boot.
    #[prost(string, tag = "8")]
    pub(super) boot: String,
}

impl SpoolRecord {
    pub(super) fn caller(&self) -> Caller {
        Caller {
            uid: self.uid,
            gid: self.gid,
            pid: 0,
        }
    }
}

/// A spool file that was found in the directory.
#[derive(Debug)]
pub(super) struct SpoolFile {
    pub(super) record: SpoolRecord,
    pub(super) file: File,
    /// Reason why the file cannot be stored.
    pub(super) foreign: Option<&'static str>,
}

/// Directory of asynchronously written files.
#[derive(Debug)]
pub(super) struct Spool {
    directory: PathBuf,
    cluster: u64,
    boot: String,
    next: AtomicU64,
    in_memory: bool,
    ready: Mutex<NextFile>,
}

/// File for the next request, if it was created in advance.
#[derive(Debug, Default)]
struct NextFile {
    /// Whether programs write files asynchronously.
    wanted: bool,
    /// The file itself. The file has no name yet, so it is deleted when this process ends.
    file: Option<File>,
}

impl Spool {
    pub(super) fn new(directory: PathBuf, cluster: u64) -> Self {
        let kind = rustix::fs::statfs(&directory).map(|stat| stat.f_type);
        Self {
            in_memory: kind.is_ok_and(|kind| i128::from(kind) == i128::from(TMPFS)),
            ready: Mutex::default(),
            directory,
            cluster,
            boot: host_id::boot(),
            next: AtomicU64::new(1),
        }
    }

    /// Returns the path of the spool file with this number.
    pub(super) fn path(&self, number: u64) -> PathBuf {
        self.directory.join(number.to_string())
    }

    fn record_path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{number}.r"))
    }

    /// Creates a spool file. Returns the file with its record, which is not stored yet.
    pub(super) fn make(&self, record: SpoolRecord) -> io::Result<(SpoolRecord, File)> {
        let mut ready = self.ready.lock();
        ready.wanted = true;
        let file = ready.file.take();
        drop(ready);
        let record = SpoolRecord {
            number: self.next.fetch_add(1, Ordering::Relaxed),
            cluster: self.cluster,
            boot: self.boot.clone(),
            ..record
        };
        let path = self.path(record.number);
        if let Some(file) = file {
            let open = format!("/proc/self/fd/{}", file.as_raw_fd());
            linkat(CWD, open, CWD, path, AtFlags::SYMLINK_FOLLOW)?;
            return Ok((record, file));
        }
        let mut how = File::options();
        let file = how.read(true).write(true).create_new(true).mode(0o600);
        Ok((record, file.open(path)?))
    }

    /// Creates a spool file with memory after its end for the next request, if programs write files asynchronously.
    pub(super) fn prepare(&self) -> io::Result<()> {
        let mut ready = self.ready.lock();
        if !self.in_memory || !ready.wanted || ready.file.is_some() {
            return Ok(());
        }
        // Set again only when the next file is requested.
        ready.wanted = false;
        let how = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = File::from(open(&self.directory, how, Mode::RUSR | Mode::WUSR)?);
        fallocate(&file, FallocateFlags::KEEP_SIZE, 0, READY_BYTES)?;
        ready.file = Some(file);
        Ok(())
    }

    /// Frees the space after the end of a file without writers. The times of the file stay.
    pub(super) fn trim(&self, file: &File) -> io::Result<()> {
        let stat = file.metadata()?;
        if !self.in_memory || stat.blocks() * 512 <= stat.len() {
            return Ok(());
        }
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(file, how, stat.len(), READY_BYTES)?)
    }

    /// Stores a record of a spool file, in place of the previous record.
    pub(super) fn keep(&self, record: &SpoolRecord) -> io::Result<()> {
        let path = self.record_path(record.number);
        let new = path.with_extension("new");
        std::fs::write(&new, record.encode_to_vec())?;
        std::fs::rename(new, path)
    }

    /// Removes a spool file that is stored or unwanted, with its record.
    pub(super) fn remove(&self, number: u64) {
        for path in [self.record_path(number), self.path(number)] {
            if let Err(error) = std::fs::remove_file(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!("{} can't be removed: {error}", path.display());
            }
        }
    }

    /// Returns the spool files of an earlier process, the oldest first, and removes incomplete files. If several spool files belong to one
    /// file of the cluster, only the newest is returned.
    pub(super) fn find(&self) -> io::Result<Vec<SpoolFile>> {
        let mut numbers = BTreeSet::new();
        for entry in std::fs::read_dir(&self.directory)? {
            let name = entry?.file_name();
            let text = name.to_string_lossy();
            let number = text.split('.').next().and_then(|text| text.parse().ok());
            let Some(number) = number else { continue };
            self.next.fetch_max(number + 1, Ordering::Relaxed);
            if !text.contains('.') {
                numbers.insert(number);
            } else if text.ends_with(".new") || !self.path(number).exists() {
                std::fs::remove_file(self.directory.join(&name))?;
            }
        }
        let mut found = Vec::new();
        for number in numbers {
            match self.take(number) {
                Ok(one) => self.add(&mut found, one),
                Err(error) if error.kind() == io::ErrorKind::NotFound => self.remove(number),
                Err(error) => tracing::warn!("{number} can't be used: {error}"),
            }
        }
        Ok(found)
    }

    /// Adds a spool file in place of an older spool file of the same file.
    fn add(&self, found: &mut Vec<SpoolFile>, mut one: SpoolFile) {
        let same = |other: &SpoolFile| {
            let ours = one.foreign.is_none() && other.foreign.is_none();
            ours && other.record.inode == one.record.inode
        };
        if let Some(at) = found.iter().position(same) {
            let before = found.remove(at);
            one.record.follows.extend(before.record.follows);
            // Both exist until the merged record is stored.
            if self.keep(&one.record).is_ok() {
                self.remove(before.record.number);
            }
        }
        found.push(one);
    }

    fn take(&self, number: u64) -> io::Result<SpoolFile> {
        let bytes = std::fs::read(self.record_path(number))?;
        let record = SpoolRecord::decode(&bytes[..])?;
        let file = File::options()
            .read(true)
            .write(true)
            .open(self.path(number))?;
        let foreign = if record.cluster != self.cluster {
            Some("it belongs to another cluster that had this address before")
        } else if record.boot != self.boot {
            Some("the host was restarted before it was stored, so it may be corrupt")
        } else {
            None
        };
        Ok(SpoolFile {
            record,
            file,
            foreign,
        })
    }
}

/// Whether a directory that no process serves contains spool files.
pub(super) fn is_left(directory: &Path) -> bool {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.file_name());
    names.any(|name| name.as_bytes().ends_with(b".r"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(inode: u64) -> SpoolRecord {
        SpoolRecord {
            inode,
            uid: 7,
            follows: vec![0, inode],
            path: b"/a\n \xff".to_vec(),
            ..SpoolRecord::default()
        }
    }

    #[test]
    fn spool_record_round_trips_and_truncated_record_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let spool = Spool::new(directory.path().to_owned(), 0x7b);
        let (one, _) = spool.make(record(5)).unwrap();
        spool.keep(&one).unwrap();
        let path = spool.record_path(one.number);
        let bytes = std::fs::read(&path).unwrap();
        for length in 0..bytes.len() {
            std::fs::write(&path, &bytes[..length]).unwrap();
            let cut = spool.take(one.number);
            assert!(cut.is_err() || cut.unwrap().foreign.is_some(), "{length}");
        }
        std::fs::write(&path, &bytes).unwrap();
        let back = spool.take(one.number).unwrap();
        assert_eq!((back.record, back.foreign), (one, None));
    }

    #[test]
    fn spool_files_of_earlier_process_are_found_by_own_cluster() {
        let directory = tempfile::tempdir().unwrap();
        let spool = Spool::new(directory.path().to_owned(), 1);
        let make = |inode: u64| spool.make(record(inode)).unwrap().0;
        let (unknown, made) = (make(1).number, [5, 6, 5].map(make));
        assert!(!is_left(directory.path()));
        made.iter().for_each(|one| spool.keep(one).unwrap());
        assert!(is_left(directory.path()));
        let [old, other, new] = made.map(|one| one.number);
        let again = Spool::new(directory.path().to_owned(), 1);
        let found = again.find().unwrap();
        let numbers: Vec<_> = found.iter().map(|one| one.record.number).collect();
        assert_eq!(numbers, [other, new]);
        assert_eq!(found[1].record.follows, [0, 5, 0, 5]);
        assert!(found.iter().all(|one| one.foreign.is_none()));
        assert!(!again.path(unknown).exists() && !again.path(old).exists());
        assert_eq!(again.make(record(7)).unwrap().0.number, new + 1);
        let foreign = Spool::new(directory.path().to_owned(), 2).find().unwrap();
        assert!(foreign.iter().all(|one| one.foreign.is_some()));
        again.remove(other);
        again.remove(new);
        assert!(!is_left(directory.path()) && again.find().unwrap().is_empty());
    }
}
