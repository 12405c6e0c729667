//! The file system: inodes, names, versions and open files. The module does not depend on FUSE. The module sends requests to the server and
//! the nodes, and invalidations to the Linux kernel (next: `mount/src/fuse/mod.rs`).
//!
//! Every operation takes a [`WaitPolicy`]: with [`WaitPolicy::Now`] the operation answers from the cache or returns [`Error::Later`]
//! without any change, so that one thread can serve the Linux kernel without ever waiting.
//!
//! | file | subject |
//! |---|---|
//! | `backend` | requests to the server, places of nodes |
//! | `table` | inodes that the kernel knows, aliases of versions |
//! | `cached_files` | limit of the files that the mount knows |
//! | `entries` | cached names, and the proofs that they are current |
//! | `names` | operations on the namespace |
//! | `file` | open files |
//! | `version` | beginning and ending versions |
//! | `takeover`, `holders` | one file for readers and writers, in place |
//! | `seal`, `unsealed` | sealing closed versions in batches, and the versions not sealed yet |
//! | `locks`, `sharing` | locks, and files that mounts share by them |
//! | `patience`, `repeat` | time limits of operations, and sending a change again |
//! | `object`, `remote`, `right` | bytes in place and over HTTP |
//! | `directory`, `stage_out` | listings, and waiting until the files below a directory are staged out |
//! | `watch` | changes by other clients |
//! | `control` | the control directory |
//! | `remote_stores` | stores outside of the cluster |

pub(crate) mod backend;
pub(crate) mod cached_files;
mod cached_rights;
pub(crate) mod control;
pub(crate) mod deadline;
pub(crate) mod directory;
mod entries;
pub(crate) mod file;
mod file_users;
mod followed;
pub(crate) mod locks;
pub(crate) mod multi_writer;
pub(crate) mod names;
pub(crate) mod object;
mod overflow;
pub(crate) mod pending;
pub(crate) mod remote;
pub(crate) mod remote_stores;
mod retry;
pub(crate) mod right;
pub(crate) mod seal;
mod sharing;
mod stage_out;
mod striped;
mod striped_open;
pub(crate) mod table;
mod takeover;
pub(crate) mod unsealed;
pub(crate) mod version;
pub(crate) mod watch;

pub(crate) use backend::{Caller, WaitPolicy};
pub(crate) use table::InodeKey;

use backend::Backend;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use table::CachingMode;
use tidemill_model::id::Inode;
use tidemill_wire::v1::{Attr, Kind};

/// Minimum size in bytes of files whose holes are subtracted from their space.
const SPARSE_BYTES_MIN: u64 = 1 << 20;

/// The file system of one mount.
#[derive(Debug)]
pub(crate) struct Fs {
    pub(crate) backend: Arc<Backend>,
    pub(crate) table: Arc<table::InodeTable>,
    pub(crate) control: control::ControlState,
    /// State of the remotes that the mount shows; unset on mounts that show no remotes.
    pub(crate) remote_stores: OnceLock<Arc<remote_stores::RemoteStores>>,
    pub(crate) locks: locks::MountLocks,
    pub(crate) mountpoint: PathBuf,
    sealer: seal::Sealer,
    files: Mutex<HashMap<u64, Arc<file::FileHandle>>>,
    followed: followed::FollowedHandles,
    directories: Mutex<HashMap<u64, Arc<directory::DirectoryListing>>>,
    next_handle: AtomicU64,
    attr_ttl: Duration,
    /// Whether the Linux kernel gets object files to read and write directly.
    direct: AtomicBool,
    kept: cached_rights::KeptRights,
    /// Number of openers that wait for files that another client writes.
    busy_waiters: AtomicUsize,
    /// Source of information about closes, if the source is not the Linux kernel.
    closes: OnceLock<Arc<dyn watch::Closes>>,
}

/// Description of a looked-up name for the Linux kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LookupResult {
    pub(crate) key: InodeKey,
    pub(crate) attr: Attr,
    /// Size of the file in 512-byte blocks.
    pub(crate) blocks: u64,
    /// Time for which the Linux kernel may cache the attributes.
    pub(crate) ttl: Duration,
    /// Time at which the description was requested, on the table's clock.
    pub(crate) asked: u64,
    /// Directory entry that was looked up; `None` if the inode was not found by its name.
    pub(crate) entry: Option<entries::ChangeSlot>,
}

impl LookupResult {
    /// Returns a description with only the kind of the inode.
    pub(crate) fn of_kind(key: InodeKey, kind: Kind) -> Self {
        let attr = Attr {
            ino: key.ino,
            kind: kind.into(),
            ..Attr::default()
        };
        Self {
            key,
            attr,
            blocks: 0,
            ttl: Duration::ZERO,
            asked: 0,
            entry: None,
        }
    }
}

impl Fs {
    pub(crate) fn new(backend: Arc<Backend>, mountpoint: PathBuf, attr_ttl: Duration) -> Self {
        let table = Arc::new(table::InodeTable::default());
        table.hold(Inode::ROOT.0);
        Self {
            sealer: seal::Sealer::new(backend.clone(), table.clone()),
            control: control::ControlState::default(),
            remote_stores: OnceLock::new(),
            locks: locks::MountLocks::default(),
            backend,
            table,
            mountpoint,
            files: Mutex::default(),
            followed: followed::FollowedHandles::default(),
            directories: Mutex::default(),
            next_handle: AtomicU64::new(1),
            attr_ttl,
            direct: AtomicBool::new(true),
            kept: cached_rights::KeptRights::default(),
            busy_waiters: AtomicUsize::new(0),
            closes: OnceLock::new(),
        }
    }

    /// Declares that the Linux kernel cannot read and write object files directly.
    pub(crate) fn not_direct(&self) {
        self.direct.store(false, Ordering::Relaxed);
    }

    /// Sets the source of information about closes, in place of the Linux kernel.
    pub(crate) fn set_closes(&self, closes: Arc<dyn watch::Closes>) {
        // Set once, before the first open.
        let _ = self.closes.set(closes);
    }

    /// Whether the Linux kernel reads and writes the object's file directly, unless other mounts write it.
    fn is_direct(&self, object: &object::OpenObject) -> bool {
        self.direct.load(Ordering::Relaxed) && object.local().is_some()
    }

    /// Returns how the Linux kernel reads and writes an object. `shared` is whether other mounts may write the object, too.
    fn way(&self, object: &object::OpenObject, shared: bool) -> CachingMode {
        match (shared, self.is_direct(object)) {
            (true, _) => CachingMode::Uncached,
            (false, true) => CachingMode::Direct,
            (false, false) => CachingMode::Cached,
        }
    }

    fn handle_number(&self) -> u64 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    /// Stores the attributes of an answer to a request that was sent at `asked` ([`table::InodeTable::now`]).
    fn adopt(&self, state: &mut table::InodeState, attr: Attr, asked: u64) {
        let overtaken = state.stamp > asked || attr.version < state.attr.version;
        // An old answer is better than none: without a kind the kernel drops the inode for good.
        if overtaken && state.attr.ino != 0 {
            return;
        }
        let before = std::mem::replace(&mut state.attr, attr);
        state.add_pending();
        state.check_kept(&before);
        // A file that another client writes is fetched each time: it is about to change.
        let settled = !overtaken && (!attr.writing || state.is_writing());
        let believed = settled && !self.table.changed_since(attr.ino, asked);
        state.fresh = believed.then(|| Instant::now() + self.attr_ttl);
    }

    /// Returns the description of an inode for the Linux kernel.
    fn found(&self, vnode: &table::CachedInode, state: &table::InodeState) -> LookupResult {
        let (attr, mut blocks) = state.shown();
        if attr.size >= SPARSE_BYTES_MIN && state.written().is_none() {
            blocks = self.blocks_of(&attr).unwrap_or(blocks);
        }
        // Memory mapped writes change size and times without updating the kernel's cache.
        let believed = !state.is_writing() && state.is_fresh();
        let ttl = if believed {
            self.attr_ttl
        } else {
            Duration::ZERO
        };
        let key = InodeKey {
            ino: vnode.ino,
            alias: state.alias,
        };
        LookupResult {
            key,
            attr,
            blocks,
            ttl,
            asked: self.table.now(),
            entry: None,
        }
    }

    /// Returns the 512-byte blocks of a sealed file on its device, if the device is on this host.
    fn blocks_of(&self, attr: &Attr) -> Option<u64> {
        if attr.parts {
            return None;
        }
        let place = self.backend.place(attr.node, WaitPolicy::Now).ok()?;
        let path = version::object_path(&place.directory?, attr.object);
        path.symlink_metadata().ok().map(|stat| stat.blocks())
    }

    /// Returns how long the Linux kernel may cache the attributes and the name of an inode. The caller holds the table's gate until the
    /// Linux kernel has received them.
    pub(crate) fn ttls(&self, found: &LookupResult) -> (Duration, Duration) {
        let (ino, asked) = (found.key.ino, found.asked);
        if found.key.is_special() || self.table.changed_since(ino, asked) {
            return (Duration::ZERO, Duration::ZERO);
        }
        let changed = |entry| self.table.entry_changed_since(entry, asked);
        let named = !found.entry.is_some_and(changed);
        // The number of an aliased inode is not the one that users should see: they have to ask for attributes.
        let attr = if found.key.alias == 0 {
            found.ttl
        } else {
            Duration::ZERO
        };
        (attr, if named { self.attr_ttl } else { Duration::ZERO })
    }

    fn vnode(&self, ino: u64) -> Arc<table::CachedInode> {
        self.table.get_or_make(ino)
    }

    /// Returns the outcome of a version that was closed on this mount.
    pub(crate) fn fate(&self, object: u64) -> unsealed::CloseOutcome {
        self.sealer.fate(object)
    }

    /// Waits until all closed versions are sealed. If `timeout` passes first, returns a summary of the unsealed versions.
    pub(crate) fn drain(&self, timeout: Duration) -> Result<(), unsealed::UnsealedSummary> {
        self.sealer.drain(timeout)
    }
}

/// Returns the kind of file for the type bits of a mode.
pub(crate) fn kind_of_mode(mode: u32) -> Option<Kind> {
    use rustix::fs::FileType;
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => Some(Kind::File),
        FileType::Directory => Some(Kind::Directory),
        FileType::Symlink => Some(Kind::Symlink),
        FileType::Fifo => Some(Kind::Fifo),
        FileType::Socket => Some(Kind::Socket),
        FileType::CharacterDevice => Some(Kind::CharDevice),
        FileType::BlockDevice => Some(Kind::BlockDevice),
        FileType::Unknown => None,
    }
}
