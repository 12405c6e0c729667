//! State of the cluster that namespace operations need and the database does not have: space on nodes, the key that signs
//! capabilities, and the objects in use.

use super::claims::Claims;
use super::clock;
use super::feed::FeedCount;
use super::granted_capabilities::GrantedCapabilities;
use super::index::headers::HeaderWake;
use super::limits::Allowed;
use super::placement::burst::Bursts;
use super::placement::nodes::NodeStates;
use super::placement::suspensions::Suspensions;
use super::quota::Quotas;
use super::rules::Rules;
use super::wakes::{RELEASED, Wakes};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_model::layout::{FreeSpace, PlacementError, to_resume};
use tidemill_model::replicas::WantedReplicas;
use tidemill_wire::capability::{Attributes, Capability, CapabilityKey, rights};

/// Lifetime of a capability. After expiry, a client requests another capability; a mount does so when a node rejects the capability.
const CAPABILITY: Duration = Duration::from_secs(5 * 60);

/// Lifetime of a capability in a label, which may wait in a node's queue. Only nodes receive such a capability.
const LABEL: Duration = Duration::from_secs(24 * 3600);

/// Time window of the replicas from which the copy rate is computed, in nanoseconds.
const MADE_NS: i64 = 60 * 1_000_000_000;
const MADE_MAX: usize = 4096;

/// State that all namespace requests share.
#[derive(Debug)]
pub struct NamesShared {
    key: CapabilityKey,
    granted: GrantedCapabilities,
    spaces: RwLock<Arc<Spaces>>,
    holds: Mutex<Holds>,
    directory_nodes: AtomicBool,
    directory_replicas: AtomicBool,
    directory_stripes: AtomicBool,
    directory_tiers: AtomicBool,
    /// Number of versions that were requested in memory and were placed elsewhere.
    overflowed: AtomicU64,
    parts: AtomicBool,
    /// Wanted number of replicas of versions for which no directory sets a number.
    replicas: Mutex<WantedReplicas>,
    /// Whether any replica may be corrupt.
    corruption: AtomicBool,
    /// Creation times in nanoseconds, and sizes in bytes, of recent replicas.
    made: Mutex<VecDeque<(i64, u64)>>,
    files: AtomicU64,
    /// Inode of the directory of users' kernels; 0 before the inode is known.
    kernels_directory: AtomicU64,
    /// Paths of outputs that jobs have claimed.
    pub claims: Claims,
    /// Suspended nodes.
    pub suspensions: Arc<Suspensions>,
    /// Nodes that are draining, lost or removed.
    pub nodes: NodeStates,
    /// Nodes of the burst tier.
    pub bursts: Bursts,
    /// Space usage and quotas of workspaces.
    pub quotas: Quotas,
    /// Rules that are triggered when a version is sealed.
    pub rules: Rules,
    /// Number of stored rows of the feed.
    pub feed: FeedCount,
    /// Limits of each user.
    pub limits: Allowed,
    /// Signal that headers of files wait to be read.
    pub headers: HeaderWake,
    /// Whether the device of the server's directory is nearly full.
    pub low: Arc<AtomicBool>,
    /// Signals to the server's timed work.
    pub wakes: Arc<Wakes>,
}

/// Free space on the nodes of the cluster.
#[derive(Clone, Debug, Default)]
pub struct Spaces {
    /// Storage nodes that are up, in order of their ids.
    pub store: Vec<FreeSpace>,
    /// Storage nodes that are suspended, or are about to be suspended.
    pub suspended: Vec<FreeSpace>,
    /// All nodes that are up, in order of their ids, and whether each has answered recently.
    pub up: Vec<(u32, bool)>,
    /// URLs of the nodes that are up.
    pub urls: BTreeMap<u32, String>,
    /// Capacity of all storage nodes, in bytes; a disk that several nodes share counts once.
    pub capacity_bytes: u64,
    /// Free bytes of all storage nodes; a disk that several nodes share counts once.
    pub free_bytes: u64,
}

/// Inodes and objects in use. The server keeps the bytes of an object in use even if the object's file has no name any more.
#[derive(Debug, Default)]
struct Holds {
    /// For each mount the inodes and objects that it uses, and the nodes from which it may read each object.
    sessions: HashMap<u64, HashMap<(u64, u64), Vec<u32>>>,
    inodes: HashMap<u64, u32>,
    objects: HashMap<u64, u32>,
    /// Objects that jobs use, on any node.
    pins: HashMap<u64, u32>,
    /// Objects that mounts use, by node.
    places: HashMap<(u64, u32), u32>,
}

fn add<Id: Eq + Hash>(counts: &mut HashMap<Id, u32>, id: Id) {
    *counts.entry(id).or_default() += 1;
}

fn subtract<Id: Eq + Hash>(counts: &mut HashMap<Id, u32>, id: Id) {
    if let Some(count) = counts.get_mut(&id) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&id);
        }
    }
}

/// Returns the time `from_now` in the future, in nanoseconds since the Unix epoch.
fn expiry(from_now: Duration) -> u64 {
    let now = clock::now_ns().unsigned_abs();
    now.saturating_add(u64::try_from(from_now.as_nanos()).unwrap_or(u64::MAX))
}

impl AsRef<GrantedCapabilities> for Arc<NamesShared> {
    fn as_ref(&self) -> &GrantedCapabilities {
        &self.granted
    }
}

impl NamesShared {
    /// Returns the state of a server without nodes and mounts. `key` signs capabilities; `low` shows that the device is nearly full.
    pub fn new(key: CapabilityKey, low: Arc<AtomicBool>, wakes: Arc<Wakes>) -> Self {
        Self {
            key,
            granted: GrantedCapabilities::new(wakes.clone()),
            spaces: RwLock::default(),
            holds: Mutex::default(),
            directory_nodes: AtomicBool::new(false),
            directory_replicas: AtomicBool::new(false),
            directory_stripes: AtomicBool::new(false),
            directory_tiers: AtomicBool::new(false),
            overflowed: AtomicU64::new(0),
            parts: AtomicBool::new(false),
            replicas: Mutex::new(WantedReplicas::ONE),
            corruption: AtomicBool::new(false),
            made: Mutex::default(),
            files: AtomicU64::new(0),
            kernels_directory: AtomicU64::new(0),
            claims: Claims::default(),
            suspensions: Arc::new(Suspensions::new(wakes.clone())),
            nodes: NodeStates::default(),
            bursts: Bursts::default(),
            quotas: Quotas::default(),
            rules: Rules::default(),
            feed: FeedCount::default(),
            limits: Allowed::default(),
            headers: HeaderWake::default(),
            low,
            wakes,
        }
    }

    /// Signs a capability with `rights` to an object. Returns an empty capability for a file without bytes.
    pub fn sign(&self, node: u32, object: u64, rights: u32, uid: u32) -> Vec<u8> {
        if object == 0 {
            return Vec::new();
        }
        // The holder of the capability will use the node.
        self.suspensions.want(node);
        self.signed((node, object), rights, uid, CAPABILITY, None)
    }

    /// Signs as [`Self::sign`] does, with the right to write: the node stores these attributes of the object when it seals the object.
    pub fn sign_to_write(
        &self,
        node: u32,
        object: u64,
        rights: u32,
        uid: u32,
        attributes: Attributes,
    ) -> Vec<u8> {
        if object == 0 {
            return Vec::new();
        }
        self.suspensions.want(node);
        let attributes = Some(attributes);
        self.signed((node, object), rights, uid, CAPABILITY, attributes)
    }

    /// Signs as [`Self::sign`] does, for an ordinary user: the capability is revoked if the permissions of the file change.
    pub(crate) fn grant(&self, ino: u64, node: u32, object: u64, rights: u32, uid: u32) -> Vec<u8> {
        let right = self.sign(node, object, rights, uid);
        self.on_granted(ino, node, object);
        right
    }

    /// Signs as [`Self::sign_to_write`] does, for an ordinary user: the capability is revoked if the permissions of the file change.
    pub(crate) fn grant_to_write(
        &self,
        node: u32,
        object: u64,
        rights: u32,
        uid: u32,
        attributes: Attributes,
    ) -> Vec<u8> {
        let ino = attributes.inode;
        let right = self.sign_to_write(node, object, rights, uid, attributes);
        self.on_granted(ino, node, object);
        right
    }

    /// Records a capability that was just signed for a user.
    fn on_granted(&self, ino: u64, node: u32, object: u64) {
        if object != 0 {
            let until = expiry(CAPABILITY);
            self.granted.on_granted(ino, (node, object), until);
        }
    }

    /// Signs as [`Self::sign`] does, with the longer lifetime of capabilities in labels.
    pub fn sign_for_label(&self, node: u32, object: u64, rights: u32, uid: u32) -> Vec<u8> {
        if object == 0 {
            return Vec::new();
        }
        self.signed((node, object), rights, uid, LABEL, None)
    }

    /// Signs a capability for the server itself to list and remove all objects of a node.
    pub fn sign_for_listing(&self, node: u32) -> Vec<u8> {
        let status = (node, ObjectId::STATUS.0);
        self.signed(status, rights::REMOVE, 0, CAPABILITY, None)
    }

    fn signed(
        &self,
        (node, object): (u32, u64),
        rights: u32,
        uid: u32,
        good_for: Duration,
        attributes: Option<Attributes>,
    ) -> Vec<u8> {
        self.key.sign(&Capability {
            object: ObjectId(object),
            node: NodeId(node),
            rights,
            uid,
            expires_at_ns: expiry(good_for),
            attributes,
        })
    }

    /// Returns the record of capabilities that were granted to users.
    pub fn granted(&self) -> &GrantedCapabilities {
        &self.granted
    }

    /// Returns the key with which nodes check capabilities.
    pub fn key(&self) -> &CapabilityKey {
        &self.key
    }

    /// Returns the free space as last reported by the nodes.
    pub fn spaces(&self) -> Arc<Spaces> {
        self.spaces.read().clone()
    }

    /// Replaces the free space of the nodes by newer reports.
    pub fn set_spaces(&self, spaces: Spaces) {
        *self.spaces.write() = Arc::new(spaces);
    }

    /// Returns whether any directory has an attribute that selects a node.
    pub(crate) fn directory_nodes(&self) -> bool {
        self.directory_nodes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_directory_nodes(&self) {
        self.directory_nodes.store(true, Ordering::Relaxed);
    }

    /// Returns whether any directory has an attribute that sets the number of replicas.
    pub(crate) fn directory_replicas(&self) -> bool {
        self.directory_replicas.load(Ordering::Relaxed)
    }

    pub(crate) fn set_directory_replicas(&self) {
        self.directory_replicas.store(true, Ordering::Relaxed);
    }

    /// Returns whether any directory has an attribute that sets stripes.
    pub(crate) fn directory_stripes(&self) -> bool {
        self.directory_stripes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_directory_stripes(&self) {
        self.directory_stripes.store(true, Ordering::Relaxed);
    }

    /// Returns whether any directory has an attribute that selects a tier.
    pub(crate) fn directory_tiers(&self) -> bool {
        self.directory_tiers.load(Ordering::Relaxed)
    }

    pub(crate) fn set_directory_tiers(&self) {
        self.directory_tiers.store(true, Ordering::Relaxed);
    }

    /// Counts a version that was requested in memory and is placed elsewhere.
    pub(crate) fn on_overflowed(&self) {
        self.overflowed.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of versions since the server's start that were requested in memory and placed elsewhere.
    pub fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// Returns whether a node is up and keeps its objects in memory.
    pub fn in_memory(&self, node: u32) -> bool {
        let spaces = self.spaces.read();
        let mut spaces = spaces.store.iter();
        spaces.any(|space| space.node.0 == node && space.memory)
    }

    /// Returns whether any version consists of several objects, or did at some time since the server's start.
    pub fn parts(&self) -> bool {
        self.parts.load(Ordering::Relaxed)
    }

    pub(crate) fn set_parts(&self) {
        self.parts.store(true, Ordering::Relaxed);
    }

    /// Returns the wanted number of replicas of versions for which no directory sets a number.
    pub fn replicas(&self) -> WantedReplicas {
        *self.replicas.lock()
    }

    /// Sets the wanted number of replicas of versions for which no directory sets a number.
    pub fn set_replicas(&self, replicas: WantedReplicas) {
        *self.replicas.lock() = replicas;
    }

    /// Returns whether any replica may be corrupt. If not, readers need not check for corruption.
    pub fn corruption(&self) -> bool {
        self.corruption.load(Ordering::Relaxed)
    }

    pub(crate) fn set_corruption(&self) {
        self.corruption.store(true, Ordering::Relaxed);
    }

    /// Records that a new replica of `bytes` bytes was created.
    pub fn on_copied(&self, bytes: u64) {
        let now = clock::now_ns();
        let mut made = self.made.lock();
        made.retain(|(at, _)| *at > now - MADE_NS);
        if bytes > 0 && made.len() < MADE_MAX {
            made.push_back((now, bytes));
        }
    }

    /// Returns the rate at which recent replicas were created, in bytes per second; `None` if there were no recent replicas.
    pub fn copied_bytes_per_sec(&self) -> Option<u64> {
        let now = clock::now_ns();
        let made = self.made.lock();
        let lately = made.iter().filter(|(at, _)| *at > now - MADE_NS);
        let (first, bytes) = lately.fold((now, 0_u64), |(first, sum), &(at, bytes)| {
            (first.min(at), sum.saturating_add(bytes))
        });
        let seconds = ((now - first) / 1_000_000_000).max(1).unsigned_abs();
        Some(bytes / seconds).filter(|&rate| rate > 0)
    }

    /// Returns whether a node is up.
    pub fn is_up(&self, node: u32) -> bool {
        self.spaces.read().up.iter().any(|(up, _)| *up == node)
    }

    /// Returns whether a node is up and has sent a message recently.
    pub fn answers(&self, node: u32) -> bool {
        self.spaces.read().up.contains(&(node, true))
    }

    /// Resumes suspended nodes that could store bytes for which the nodes that are up have no space. Placement fails until one has resumed.
    pub fn resume(&self, error: PlacementError, spaces: &Spaces) -> PlacementError {
        let resumed = to_resume(error, &spaces.suspended);
        for node in &resumed {
            self.suspensions.want(node.0);
        }
        let first = resumed.first();
        first.map_or(error, |&first| PlacementError::Suspended(first))
    }

    /// Returns the inode of the directory of users' kernels; 0 if the directory does not exist.
    pub(crate) fn kernels_directory(&self) -> u64 {
        self.kernels_directory.load(Ordering::Relaxed)
    }

    pub(crate) fn set_kernels_directory(&self, ino: u64) {
        self.kernels_directory.store(ino, Ordering::Relaxed);
    }

    /// Returns the approximate number of inodes.
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    pub(crate) fn add_files(&self, count: u64) {
        self.files.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn remove_file(&self) {
        let _ = self
            .files
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| {
                Some(n.saturating_sub(1))
            });
    }

    /// Records that a mount begins to use an object of an inode on a node. A second call for the same object has no further effect.
    pub fn hold(&self, session: u64, (ino, object): (u64, u64), node: u32) {
        if session == 0 {
            return;
        }
        let mut guard = self.holds.lock();
        let holds = &mut *guard;
        let held = holds.sessions.entry(session).or_default();
        let places = held.entry((ino, object)).or_default();
        if places.is_empty() {
            add(&mut holds.inodes, ino);
            add(&mut holds.objects, object);
        }
        if !places.contains(&node) {
            places.push(node);
            add(&mut holds.places, (object, node));
        }
    }

    /// Records that a mount no longer uses an object.
    pub fn release(&self, session: u64, ino: u64, object: u64) {
        let mut guard = self.holds.lock();
        let holds = &mut *guard;
        let held = holds.sessions.get_mut(&session);
        if let Some(places) = held.and_then(|held| held.remove(&(ino, object))) {
            holds.let_go((ino, object), &places);
        }
        drop(guard);
        self.wakes.wake(RELEASED);
    }

    /// Ends the session of a mount. Returns the inodes that it used.
    pub fn end_session(&self, session: u64) -> Vec<u64> {
        let mut guard = self.holds.lock();
        let holds = &mut *guard;
        let held = holds.sessions.remove(&session).unwrap_or_default();
        for (&held, places) in &held {
            holds.let_go(held, places);
        }
        drop(guard);
        self.wakes.wake(RELEASED);
        held.into_keys().map(|(ino, _)| ino).collect()
    }

    /// Records that a job will read an object. [`Self::unpin`] reverts one call of this function.
    pub fn pin(&self, object: u64) {
        let mut holds = self.holds.lock();
        add(&mut holds.objects, object);
        add(&mut holds.pins, object);
    }

    /// Records that a job no longer uses an object.
    pub fn unpin(&self, object: u64) {
        let mut holds = self.holds.lock();
        subtract(&mut holds.objects, object);
        subtract(&mut holds.pins, object);
        drop(holds);
        self.wakes.wake(RELEASED);
    }

    /// Returns whether any mount uses the inode.
    pub(crate) fn inode_held(&self, ino: u64) -> bool {
        self.holds.lock().inodes.contains_key(&ino)
    }

    /// Returns whether any mount or job uses the object.
    pub fn object_held(&self, object: u64) -> bool {
        self.holds.lock().objects.contains_key(&object)
    }

    /// Returns whether any job uses the object.
    pub fn pinned(&self, object: u64) -> bool {
        self.holds.lock().pins.contains_key(&object)
    }

    /// Returns whether any mount uses the object on this node, or any job uses the object.
    pub fn replica_held(&self, object: u64, node: u32) -> bool {
        let holds = self.holds.lock();
        holds.pins.contains_key(&object) || holds.places.contains_key(&(object, node))
    }
}

impl Holds {
    fn let_go(&mut self, (ino, object): (u64, u64), places: &[u32]) {
        subtract(&mut self.inodes, ino);
        subtract(&mut self.objects, object);
        for &node in places {
            subtract(&mut self.places, (object, node));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_in_use_are_held_until_last_user_releases_them() {
        let shared = NamesShared::new(CapabilityKey::new([0; 32]), Arc::default(), Arc::default());
        shared.hold(1, (7, 70), 0);
        shared.hold(1, (7, 70), 0);
        shared.hold(2, (7, 70), 3);
        shared.hold(2, (7, 70), 4);
        assert!([0, 3, 4].iter().all(|&node| shared.replica_held(70, node)));
        assert!(!shared.replica_held(70, 1));
        shared.pin(70);
        shared.release(1, 7, 70);
        assert!(shared.inode_held(7));
        assert_eq!(shared.end_session(2), vec![7]);
        assert!(!shared.inode_held(7) && shared.object_held(70));
        assert!(shared.replica_held(70, 1), "a job may read it on any node");
        shared.unpin(70);
        assert!(!shared.object_held(70));
        shared.hold(1, (7, 70), 0);
        shared.release(1, 7, 70);
        assert!(!shared.replica_held(70, 0));
    }
}
