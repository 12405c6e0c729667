//! The file system: inodes, names, versions and open files. It does not depend on FUSE. It sends requests to the server and the nodes,
//! and invalidations to the kernel (next: `mount/src/fuse/mod.rs`).
//!
//! Every operation takes a [`Pace`]: at [`Pace::Now`] it answers from the cache or returns [`Error::Later`] without any change, so that one
//! thread can serve the kernel without ever waiting.
//!
//! | file | subject |
//! |---|---|
//! | `backend` | requests to the server, places of nodes |
//! | `table` | inodes that the kernel knows, aliases of versions |
//! | `entries` | cached names, and the proofs that they are current |
//! | `names` | operations on the namespace |
//! | `file` | open files |
//! | `version` | beginning and ending versions |
//! | `takeover`, `holders` | one file for readers and writers, in place |
//! | `seal`, `unsealed` | sealing closed versions in batches, and the versions not sealed yet |
//! | `locks`, `sharing` | locks, and files that mounts share by them |
//! | `patience`, `repeat` | time limits of operations, and sending a change again |
//! | `object`, `remote`, `right` | bytes in place and over HTTP |
//! | `directory`, `drain` | listings, and waiting until the files below a directory have drained |
//! | `watch` | changes by other clients |
//! | `control` | the control directory |
//! | `bridged` | stores outside of the cluster |

pub(crate) mod backend;
pub(crate) mod bridged;
pub(crate) mod control;
pub(crate) mod directory;
mod drain;
mod entries;
pub(crate) mod file;
mod followed;
mod holders;
mod kept;
pub(crate) mod locks;
pub(crate) mod names;
pub(crate) mod object;
pub(crate) mod patience;
pub(crate) mod pending;
pub(crate) mod remote;
mod repeat;
pub(crate) mod right;
pub(crate) mod seal;
mod sharing;
mod spill;
mod striped;
mod striped_open;
pub(crate) mod table;
mod takeover;
pub(crate) mod together;
pub(crate) mod unsealed;
pub(crate) mod version;
pub(crate) mod watch;

pub(crate) use backend::{Caller, Pace};
pub(crate) use table::Key;

use backend::Backend;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use table::Way;
use tidemill_core::id::Inode;
use tidemill_wire::v1::{Attr, Kind};

/// Minimum size of files whose holes are counted, in bytes.
const SPARSE_BYTES_MIN: u64 = 1 << 20;

/// The file system of one mount.
#[derive(Debug)]
pub(crate) struct Fs {
    pub(crate) backend: Arc<Backend>,
    pub(crate) table: Arc<table::Table>,
    pub(crate) control: control::Control,
    /// The shown bridges, on mounts that show them.
    pub(crate) bridged: OnceLock<Arc<bridged::Bridged>>,
    pub(crate) locks: locks::Locks,
    pub(crate) mountpoint: PathBuf,
    sealer: seal::Sealer,
    files: Mutex<HashMap<u64, Arc<file::Handle>>>,
    followed: followed::Followed,
    directories: Mutex<HashMap<u64, Arc<directory::Listing>>>,
    next_handle: AtomicU64,
    attr_ttl: Duration,
    /// Whether the kernel gets object files to read and write by itself.
    direct: AtomicBool,
    kept: kept::Kept,
    /// Number of openers that wait for files that another client writes.
    busy_waiters: AtomicUsize,
    /// Source of information about closes, if it is not the kernel.
    closes: OnceLock<Arc<dyn watch::Closes>>,
}

/// Description of a name for the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) key: Key,
    pub(crate) attr: Attr,
    /// Size in 512-byte blocks.
    pub(crate) blocks: u64,
    /// Time for which the kernel may cache the attributes.
    pub(crate) ttl: Duration,
    /// Time at which this was known, on the table's clock.
    pub(crate) asked: u64,
    /// The entry that was looked up; `None` if the inode was not found by its name.
    pub(crate) entry: Option<entries::Slot>,
}

impl Found {
    /// Returns a description with only the kind of an inode.
    pub(crate) fn of_kind(key: Key, kind: Kind) -> Self {
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
        let table = Arc::new(table::Table::default());
        table.hold(Inode::ROOT.0);
        Self {
            sealer: seal::Sealer::new(backend.clone(), table.clone()),
            control: control::Control::default(),
            bridged: OnceLock::new(),
            locks: locks::Locks::default(),
            backend,
            table,
            mountpoint,
            files: Mutex::default(),
            followed: followed::Followed::default(),
            directories: Mutex::default(),
            next_handle: AtomicU64::new(1),
            attr_ttl,
            direct: AtomicBool::new(true),
            kept: kept::Kept::default(),
            busy_waiters: AtomicUsize::new(0),
            closes: OnceLock::new(),
        }
    }

    /// Declares that the kernel cannot read and write object files by itself.
    pub(crate) fn not_direct(&self) {
        self.direct.store(false, Ordering::Relaxed);
    }

    /// Sets the source of information about closes, in place of the kernel.
    pub(crate) fn set_closes(&self, closes: Arc<dyn watch::Closes>) {
        // Set once, before the first open.
        let _ = self.closes.set(closes);
    }

    /// Whether the kernel reads and writes the object's file by itself, if it may choose.
    fn is_direct(&self, object: &object::Object) -> bool {
        self.direct.load(Ordering::Relaxed) && object.local().is_some()
    }

    /// Returns how the kernel reads and writes an object; `shared`: other mounts may write it, too.
    fn way(&self, object: &object::Object, shared: bool) -> Way {
        match (shared, self.is_direct(object)) {
            (true, _) => Way::Uncached,
            (false, true) => Way::Direct,
            (false, false) => Way::Cached,
        }
    }

    fn handle_number(&self) -> u64 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes attributes from an answer to a question asked at `asked` ([`table::Table::now`]).
    fn adopt(&self, state: &mut table::State, attr: Attr, asked: u64) {
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

    /// Returns the description of an inode for the kernel.
    fn found(&self, vnode: &table::Vnode, state: &table::State) -> Found {
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
        let key = Key {
            ino: vnode.ino,
            alias: state.alias,
        };
        Found {
            key,
            attr,
            blocks,
            ttl,
            asked: self.table.now(),
            entry: None,
        }
    }

    /// Returns the blocks of a sealed file on its device, if that is on this host.
    fn blocks_of(&self, attr: &Attr) -> Option<u64> {
        if attr.parts {
            return None;
        }
        let place = self.backend.place(attr.node, Pace::Now).ok()?;
        let path = version::object_path(&place.directory?, attr.object);
        path.symlink_metadata().ok().map(|stat| stat.blocks())
    }

    /// Returns how long the kernel may cache the attributes and the name of an inode. The caller holds the table's gate until the kernel
    /// has received them.
    pub(crate) fn ttls(&self, found: &Found) -> (Duration, Duration) {
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

    fn vnode(&self, ino: u64) -> Arc<table::Vnode> {
        self.table.get_or_make(ino)
    }

    /// Returns the outcome of a version that was closed here.
    pub(crate) fn fate(&self, object: u64) -> unsealed::Fate {
        self.sealer.fate(object)
    }

    /// Waits until all closed versions are sealed. If `timeout` passes first, returns the versions that are not.
    pub(crate) fn drain(&self, timeout: Duration) -> Result<(), unsealed::Standing> {
        self.sealer.drain(timeout)
    }
}

/// Returns the kind of the type bits of a mode.
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
