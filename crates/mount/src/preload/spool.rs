//! The directory of asynchronously written files. Each file has a record of its identity, and neither outlives the other. The module
//! changes only this directory.
//!
//! The name of a spool file is a number; its record has the same name with the suffix `.r`. The record exists before a program gets the
//! file, and is removed when the bytes are stored. Whichever process ends in between, the next file system of the directory finds both the
//! file and its record.

use crate::fs::Caller;
use parking_lot::Mutex;
use rustix::fd::AsRawFd;
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, fallocate, linkat, open};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// First line of a record, with the version of its format.
const HEAD: &str = "tidemill-asynchronous 1";
const RECORD_BYTES_MAX: u64 = 64 << 10;
/// Bytes of memory that are allocated in advance for the next file, because the allocation is most of the cost of a write.
const READY_BYTES: u64 = 128 << 20;
/// Type that `statfs` reports for a file system in memory (`TMPFS_MAGIC` of Linux).
const TMPFS: i64 = 0x0102_1994;
/// File with Linux's id of the current boot of the host.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Identity of a file whose bytes are to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShelfRecord {
    pub(super) number: u64,
    pub(super) inode: u64,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Objects of the versions that the file may follow: the previous version, and versions that were begun for the file. If the file's
    /// current version is another version, another client has written the file.
    pub(super) follows: Vec<u64>,
    /// Path of the file, as users see it.
    pub(super) path: Vec<u8>,
}

impl ShelfRecord {
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
    pub(super) record: ShelfRecord,
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
        let boot = std::fs::read_to_string(BOOT).unwrap_or_default();
        let kind = rustix::fs::statfs(&directory).map(|stat| stat.f_type);
        Self {
            in_memory: kind.is_ok_and(|kind| i128::from(kind) == i128::from(TMPFS)),
            ready: Mutex::default(),
            directory,
            cluster,
            boot: boot.trim().to_owned(),
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

    /// Returns a new spool file without a record, and its number.
    pub(super) fn make(&self) -> io::Result<(u64, File)> {
        let mut ready = self.ready.lock();
        ready.wanted = true;
        let file = ready.file.take();
        drop(ready);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if let Some(file) = file {
            let open = format!("/proc/self/fd/{}", file.as_raw_fd());
            linkat(CWD, open, CWD, self.path(number), AtFlags::SYMLINK_FOLLOW)?;
            return Ok((number, file));
        }
        let mut how = File::options();
        let file = how.read(true).write(true).create_new(true).mode(0o600);
        Ok((number, file.open(self.path(number))?))
    }

    /// Whether a spool file should be created in advance.
    pub(super) fn wants_one(&self) -> bool {
        let ready = self.ready.lock();
        self.in_memory && ready.wanted && ready.file.is_none()
    }

    /// Creates a spool file for the next request, with memory after its end.
    pub(super) fn prepare(&self) -> io::Result<()> {
        let mut ready = self.ready.lock();
        if ready.file.is_some() {
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
    pub(super) fn keep(&self, record: &ShelfRecord) -> io::Result<()> {
        let path = self.record_path(record.number);
        let new = path.with_extension("new");
        let mut how = File::options();
        let file = how.write(true).create(true).truncate(true).mode(0o600);
        file.open(&new)?.write_all(&self.encode(record))?;
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
        let mut found: BTreeMap<u64, SpoolFile> = BTreeMap::new();
        for entry in std::fs::read_dir(&self.directory)? {
            let name = entry?.file_name();
            let text = name.to_string_lossy();
            let number = text.split('.').next().and_then(|text| text.parse().ok());
            let Some(number) = number else { continue };
            self.next.fetch_max(number + 1, Ordering::Relaxed);
            if text.contains('.') {
                if text.ends_with(".new") || !self.path(number).exists() {
                    std::fs::remove_file(self.directory.join(&name))?;
                }
                continue;
            }
            match self.take(number) {
                Ok(one) => {
                    found.insert(number, one);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => self.remove(number),
                Err(error) => tracing::warn!("{} can't be used: {error}", text),
            }
        }
        Ok(self.newest(found))
    }

    fn newest(&self, found: BTreeMap<u64, SpoolFile>) -> Vec<SpoolFile> {
        let mut newest: Vec<SpoolFile> = Vec::new();
        for (number, mut one) in found {
            let same = |other: &SpoolFile| {
                let ours = one.foreign.is_none() && other.foreign.is_none();
                ours && other.record.inode == one.record.inode
            };
            if let Some(at) = newest.iter().position(same) {
                let before = newest.remove(at);
                one.record.follows.extend(before.record.follows);
                // Both exist until the merged record is stored.
                if self.keep(&one.record).is_ok() {
                    self.remove(before.record.number);
                }
            }
            one.record.number = number;
            newest.push(one);
        }
        newest
    }

    fn take(&self, number: u64) -> io::Result<SpoolFile> {
        let path = self.record_path(number);
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "its record is invalid");
        if path.symlink_metadata()?.len() > RECORD_BYTES_MAX {
            return Err(wrong());
        }
        let bytes = std::fs::read(&path)?;
        let (record, cluster, boot) = decode(number, &bytes).ok_or_else(wrong)?;
        let file = File::options()
            .read(true)
            .write(true)
            .open(self.path(number))?;
        let foreign = if cluster != self.cluster {
            Some("it belongs to another cluster that had this address before")
        } else if boot != self.boot {
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

    fn encode(&self, record: &ShelfRecord) -> Vec<u8> {
        let follows: Vec<_> = record.follows.iter().map(u64::to_string).collect();
        let head = format!(
            "{HEAD}\ncluster {:016x}\nboot {}\nfile {} {} {}\nfollows {}\npath ",
            self.cluster,
            self.boot,
            record.inode,
            record.uid,
            record.gid,
            follows.join(" ")
        );
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(&record.path);
        bytes.push(b'\n');
        bytes
    }
}

/// Returns a record, the id of its cluster and the boot id of its host; `None` if the bytes are not a complete record.
fn decode(number: u64, bytes: &[u8]) -> Option<(ShelfRecord, u64, String)> {
    let mut lines = bytes.strip_suffix(b"\n")?.splitn(6, |&byte| byte == b'\n');
    let mut line = |name: &str| {
        let line = std::str::from_utf8(lines.next()?).ok()?;
        line.strip_prefix(name)?.strip_prefix(' ')
    };
    let version = line("tidemill-asynchronous")?;
    let (cluster, boot) = (line("cluster")?, line("boot")?.to_owned());
    let mut file = line("file")?.split(' ');
    let mut number_of = || file.next()?.parse::<u64>().ok();
    let (inode, uid, gid) = (number_of()?, number_of()?, number_of()?);
    let follows = line("follows")?.split(' ').map(|word| word.parse().ok());
    let record = ShelfRecord {
        number,
        inode,
        uid: uid.try_into().ok()?,
        gid: gid.try_into().ok()?,
        follows: follows.collect::<Option<_>>()?,
        path: lines.next()?.strip_prefix(b"path ")?.to_vec(),
    };
    let cluster = u64::from_str_radix(cluster, 16).ok()?;
    (HEAD.ends_with(version) && version == "1").then_some((record, cluster, boot))
}

/// Whether a directory that no process serves contains spool files.
pub(super) fn is_left(directory: &Path) -> bool {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.file_name());
    names.any(|name| name.as_bytes().ends_with(b".r"))
}

/// Returns a path in the form in which users see it.
pub(super) fn shown(path: &Path) -> Vec<u8> {
    path.to_owned().into_os_string().into_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u64, inode: u64) -> ShelfRecord {
        ShelfRecord {
            number,
            inode,
            uid: 7,
            gid: 8,
            follows: vec![0, number],
            path: b"/a\n \xff".to_vec(),
        }
    }

    #[test]
    fn spool_record_round_trips_and_truncated_record_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let spool = Spool::new(directory.path().to_owned(), 0x7b);
        let one = record(3, 5);
        let bytes = spool.encode(&one);
        let (back, cluster, boot) = decode(3, &bytes).unwrap();
        assert_eq!((back, cluster, boot), (one, 0x7b, spool.boot.clone()));
        for length in 0..bytes.len() {
            // The path may contain line ends: a record that is cut there is shorter, but valid.
            let cut = decode(3, &bytes[..length]).map(|(record, ..)| record.path);
            assert!(cut.is_none_or(|path| path == b"/a"), "{length}");
        }
    }

    #[test]
    fn spool_files_of_earlier_process_are_found_by_own_cluster() {
        let directory = tempfile::tempdir().unwrap();
        let spool = Spool::new(directory.path().to_owned(), 1);
        let make = |inode: u64| {
            let (number, file) = spool.make().unwrap();
            (&file).write_all(inode.to_string().as_bytes()).unwrap();
            number
        };
        let (unknown, old, other, new) = (make(1), make(5), make(6), make(5));
        assert!(!is_left(directory.path()));
        for (number, inode) in [(old, 5), (other, 6), (new, 5)] {
            spool.keep(&record(number, inode)).unwrap();
        }
        assert!(is_left(directory.path()));
        let again = Spool::new(directory.path().to_owned(), 1);
        let found = again.find().unwrap();
        let numbers: Vec<_> = found.iter().map(|one| one.record.number).collect();
        assert_eq!(numbers, [other, new]);
        assert_eq!(found[1].record.follows, [0, new, 0, old]);
        assert!(found.iter().all(|one| one.foreign.is_none()));
        assert!(!again.path(unknown).exists() && !again.path(old).exists());
        assert_eq!(again.make().unwrap().0, new + 1);
        let foreign = Spool::new(directory.path().to_owned(), 2).find().unwrap();
        assert!(foreign.iter().all(|one| one.foreign.is_some()));
        again.remove(other);
        again.remove(new);
        assert!(!is_left(directory.path()) && again.find().unwrap().is_empty());
    }
}
