//! Inputs of labels from other nodes. This module fetches the inputs into the node's directory `input-cache`, shares a fetched input
//! between the labels that use it, and keeps it for a time after use.
//!
//! A fetched object is stored as `input-cache/<16 hex>`, in the same form as a sealed object in `objects/`. Labels that need the same
//! object concurrently share its file: one label fetches the object, the other labels wait. Unused objects are kept up to a size limit; the
//! oldest is removed first. The directory is emptied when the node starts.
//!
//! A kernel may read only some bytes of an input. Then the module fetches only these bytes, into a separate file. Labels that need the same
//! bytes share this file like a whole object.
//!
//! If the other node runs on the same host and its directory is reachable, the object is linked (on the same file system) or copied. In
//! both cases all its bytes count as transferred, since they crossed from one node to another. With the configuration `in_place = false`
//! the bytes cross a network connection, for measurements.

use crate::directory::{allocated, close_for_ever};
use crate::flash_model::FlashModel;
use crate::part_reader::Spans;
use crate::record_starts::RecordStarts;
use crate::records::Hash;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{BufWriter, Read as _, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidemill_client::objects::ObjectAddress;
use tidemill_client::reader::{self, Grant, Turn};
use tidemill_client::{Objects, Trust};
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_model::label::LabelInput;
use tidemill_model::layout::{
    Layout, Part, Records, SelectedBytes, SelectedSpan, Selection, SelectionError,
};
use tidemill_wire::replicas::{self, OBJECT_BYTES_MAX, ReplicaItem};
use tidemill_wire::{convert, route, v1};

/// Time without any received byte after which a fetch fails.
const STALL_MAX: Duration = Duration::from_secs(30);

/// Interval at which a running fetch is checked for a stall or a cancellation.
const WATCH_PERIOD: Duration = Duration::from_millis(200);

/// Maximum number of attempts of a fetch whose connection fails.
const TRIES: u32 = 3;

/// Minimum size in bytes of a fetch that is used to measure the rate of the link.
const MEASURED_BYTES_MIN: u64 = 1 << 20;

/// Maximum number of bytes per write to the device, and per request for a range of an object.
const PIECE_BYTES: usize = 1 << 20;

/// Client that fetches objects from other nodes and shares them between labels.
#[derive(Debug)]
pub struct Fetcher {
    directory: PathBuf,
    host: String,
    in_place: bool,
    idle_bytes_max: u64,
    objects: Mutex<Objects>,
    runtime: tokio::runtime::Handle,
    peers: Mutex<BTreeMap<NodeId, PeerNode>>,
    slots: Mutex<Slots>,
    changed: Condvar,
    flash: Arc<FlashModel>,
    measured_bytes_per_sec: AtomicU64,
}

#[derive(Clone, Debug)]
struct PeerNode {
    url: Arc<str>,
    host: String,
    directory: PathBuf,
}

/// Id of a wanted object, and the selection of its wanted bytes.
type WantedObject = (ObjectId, Selection);

#[derive(Debug, Default)]
struct Slots {
    slots: HashMap<WantedObject, PullSlot>,
    /// Fetched files that no label uses, the least recently used file first.
    idle: VecDeque<WantedObject>,
    idle_bytes: u64,
    /// Number of selections that were fetched since the node started.
    selections: u64,
}

#[derive(Debug)]
struct PullSlot {
    users: usize,
    /// Length of the file in bytes; `None` while the file is being fetched.
    size: Option<u64>,
    file: PulledFile,
}

/// Path of a fetched file, and its identifier.
#[derive(Clone, Debug)]
struct PulledFile {
    path: PathBuf,
    /// Identifier of the file in the model of the flash device.
    known: ObjectId,
}

/// First identifier of selections in the model of the flash device: no object has this or a larger id.
const SELECTED: u64 = 1 << 59;

/// Locations of the bytes of an input.
#[derive(Debug)]
pub struct InputLocations {
    /// Objects that hold the bytes, each with its node.
    pub layout: Layout,
    /// Capabilities for the nodes of the parts, in the order of the parts.
    pub capabilities: Vec<Vec<u8>>,
}

impl InputLocations {
    /// Returns the location of an input whose bytes are in several objects.
    ///
    /// # Errors
    /// If the layout is invalid.
    pub fn parted(layout: &v1::Layout, size: u64) -> Result<Self, FetchError> {
        let wrong = |_| tidemill_client::Error::Answer("layout");
        let parts = layout.parts.iter();
        Ok(Self {
            layout: convert::layout(layout, size).map_err(wrong)?,
            capabilities: parts.map(|part| part.capability.clone()).collect(),
        })
    }

    /// Returns the location of an input whose bytes are in one object.
    #[must_use]
    pub fn whole(input: &LabelInput, size: u64, capability: &[u8]) -> Self {
        Self {
            layout: Layout::Whole(Part::on(input.object, size, input.node)),
            capabilities: vec![capability.to_vec()],
        }
    }

    /// Returns one of the parts as a separate input, and the capability for the part's node.
    #[must_use]
    pub fn part(&self, name: &str, index: usize) -> Option<(LabelInput, &[u8])> {
        let part = self.layout.parts().get(index)?;
        let input = LabelInput {
            name: name.to_owned(),
            object: part.object,
            node: part.replicas.first()?.node,
            size: part.size,
            selection: Selection::WHOLE,
        };
        let capability = self.capabilities.get(index).map_or(&[][..], Vec::as_slice);
        Some((input, capability))
    }
}

/// Fetched object in use. Its file stays at `path` until this value is dropped.
#[derive(Debug)]
pub struct FetchedInput {
    fetcher: Arc<Fetcher>,
    wanted: WantedObject,
    /// Path of the fetched file.
    pub path: PathBuf,
    /// Length of the fetched file in bytes.
    pub size: u64,
    /// Bytes that this fetch transferred; 0 if another label fetched the object before.
    pub transferred_bytes: u64,
}

/// Result of the transfer of an object to this node.
#[derive(Clone, Copy, Debug)]
struct FetchedObject {
    /// Length of the object in bytes.
    size: u64,
    /// Bytes written to the device for the object; 0 if its file was linked.
    written: u64,
}

impl FetchedObject {
    /// Returns the result for an object of `size` bytes that was written to a new file at `path`.
    fn written(size: u64, path: &Path) -> Self {
        let metadata = path.metadata();
        let written = metadata.map_or(size, |metadata| allocated(&metadata));
        Self { size, written }
    }
}

/// Reason why an object could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The server has not reported the address of the object's node.
    #[error("node {0} is unknown or offline")]
    Unknown(NodeId),
    /// The other node refused the request, or the connection failed.
    #[error(transparent)]
    Client(#[from] tidemill_client::Error),
    /// The other node sent nothing for `STALL_MAX`.
    #[error("node at {url} sent nothing for {} s", STALL_MAX.as_secs())]
    Stalled {
        /// URL of the other node.
        url: String,
    },
    /// This node's device returned an I/O error.
    #[error("can't store it at {path}: {source}")]
    Device {
        /// Path of the new file.
        path: PathBuf,
        /// Error of the system call.
        source: std::io::Error,
    },
    /// The input has no part or bytes as requested.
    #[error(transparent)]
    Selection(#[from] SelectionError),
    /// The label that needs the object was cancelled.
    #[error("the fetch was cancelled")]
    Cancelled,
}

impl Fetcher {
    /// Returns a fetcher that stores its files in `directory`, which is emptied or created.
    ///
    /// # Errors
    /// If the system can't empty or create the directory.
    pub fn new(
        directory: PathBuf,
        host: String,
        in_place: bool,
        idle_bytes_max: u64,
        runtime: tokio::runtime::Handle,
        flash: Arc<FlashModel>,
    ) -> std::io::Result<Self> {
        crate::directory::empty(&directory)?;
        std::fs::set_permissions(&directory, Permissions::from_mode(0o700))?;
        Ok(Self {
            directory,
            host,
            in_place,
            idle_bytes_max,
            objects: Mutex::new(Objects::new(None)),
            runtime,
            peers: Mutex::default(),
            slots: Mutex::default(),
            changed: Condvar::new(),
            flash,
            measured_bytes_per_sec: AtomicU64::new(0),
        })
    }

    /// Sets the certificates by which the fetcher authenticates other nodes.
    pub fn set_trust(&self, trust: &Trust) {
        *self.objects.lock() = Objects::new(Some(trust));
    }

    /// Changes the known addresses of other nodes.
    pub fn set_peers(&self, changes: v1::Peers) {
        let peer = |node: v1::Node| {
            let peer = PeerNode {
                url: node.url.into(),
                host: node.host,
                directory: node.directory.into(),
            };
            (NodeId(node.node), peer)
        };
        let mut peers = self.peers.lock();
        if changes.whole {
            peers.clear();
        }
        for node in changes.offline {
            peers.remove(&NodeId(node));
        }
        peers.extend(changes.nodes.into_iter().map(peer));
    }

    /// Returns the runtime for requests of this node to other nodes.
    pub(crate) fn runtime(&self) -> &tokio::runtime::Handle {
        &self.runtime
    }

    /// Returns the client for requests to other nodes.
    pub(crate) fn objects(&self) -> Objects {
        self.objects.lock().clone()
    }

    fn peer(&self, node: NodeId) -> Result<PeerNode, FetchError> {
        let peer = self.peers.lock().get(&node).cloned();
        peer.ok_or(FetchError::Unknown(node))
    }

    /// Returns the address of an object on another node.
    ///
    /// # Errors
    /// [`FetchError::Unknown`].
    pub(crate) fn remote(
        &self,
        node: NodeId,
        object: ObjectId,
        capability: &[u8],
    ) -> Result<ObjectAddress, FetchError> {
        Ok(ObjectAddress {
            node,
            url: self.peer(node)?.url,
            object,
            capability: capability.to_vec(),
        })
    }

    /// Returns the smoothed rate of fetches over the network in bytes per second; `None` before the first large fetch.
    #[must_use]
    pub fn measured_bytes_per_sec(&self) -> Option<u64> {
        Some(self.measured_bytes_per_sec.load(Ordering::Relaxed)).filter(|&rate| rate > 0)
    }

    /// Fetches an object, or shares the file of a label that has fetched the object. Blocks; must not be called on a thread of the runtime.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub fn fetch_or_share(
        self: &Arc<Self>,
        input: &LabelInput,
        capability: &[u8],
        cancelled: &dyn Fn() -> bool,
    ) -> Result<FetchedInput, FetchError> {
        self.shared((input.object, Selection::WHOLE), cancelled, |path| {
            let fetched = self.fetch(input, capability, path, true, cancelled)?;
            Ok((fetched, fetched.size))
        })
    }

    /// Returns the selection of an input, and whether it is exact. If records do not end at the ends of stripes, the selection contains
    /// additional bytes. `here` returns the file of an object that this node has.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub fn selected<'a>(
        self: &Arc<Self>,
        input: &LabelInput,
        locations: &'a InputLocations,
        here: &dyn Fn(ObjectId) -> Option<PathBuf>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<(SelectedBytes<'a>, bool), FetchError> {
        let size = locations.layout.size();
        let found = match input.selection.records() {
            None => None,
            Some(Records::Bytes(bytes)) => {
                let begin = |at: u64| {
                    Ok::<_, FetchError>(at.div_ceil(*bytes).saturating_mul(*bytes).min(size))
                };
                locations.layout.records(&input.selection, begin)?
            }
            Some(Records::Until(end)) => {
                let runs = locations.layout.runs(&input.selection)?;
                let mut seams = RecordStarts::new(self, locations, (here, cancelled), (runs, end));
                locations
                    .layout
                    .records(&input.selection, |at| seams.begin(at, end))?
            }
        };
        Ok(match found {
            Some(selected) => (selected, false),
            None => (locations.layout.selected(&input.selection)?, true),
        })
    }

    /// Fetches the selected bytes of an input, one range after the other, into one file, or shares the file of a label that has fetched the
    /// same bytes. `here` returns the file of an object that this node has.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub fn select(
        self: &Arc<Self>,
        input: &LabelInput,
        (locations, selected, exact): (&InputLocations, &SelectedBytes<'_>, bool),
        here: &dyn Fn(ObjectId) -> Option<PathBuf>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<FetchedInput, FetchError> {
        let wanted = (input.object, input.selection.clone());
        self.shared(wanted, cancelled, |path| {
            let whole = exact && input.selection.of_part().is_none();
            let brought = match self.ready(input.object).filter(|_| whole) {
                // Another label has fetched the whole object.
                Some(all) => {
                    let found = |_| Some(all.path.clone());
                    let locations = InputLocations::whole(input, all.size, &[]);
                    let selected = locations.layout.selected(&input.selection)?;
                    self.gather((&locations, &selected), path, &found, cancelled)
                }
                None => self.gather((locations, selected), path, here, cancelled),
            };
            if brought.is_err() {
                // The caller reports the error of the fetch.
                let _ = std::fs::remove_file(path);
            }
            brought
                .map(|transferred| (FetchedObject::written(selected.length(), path), transferred))
        })
    }

    /// Writes a file of the selected bytes of an input. Returns how many bytes came from other nodes.
    fn gather(
        self: &Arc<Self>,
        (locations, selected): (&InputLocations, &SelectedBytes<'_>),
        path: &Path,
        here: &dyn Fn(ObjectId) -> Option<PathBuf>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<u64, FetchError> {
        let device = |source| FetchError::Device {
            path: path.to_owned(),
            source,
        };
        let file = File::create(path).map_err(device)?;
        file.set_len(selected.length()).map_err(device)?;
        let ahead = selected.spans().map(|span| (span.part, span.bytes));
        let mut spans = Spans::new(self, locations, (here, cancelled), ahead);
        let mut transferred = 0;
        for span in selected.spans() {
            let place = |at: u64, bytes: &[u8]| {
                write_span((&file, selected), &span, at, bytes).map_err(device)
            };
            let length = span.bytes.end - span.bytes.start;
            let here = spans.read((span.part, span.bytes.clone()), place, device)?;
            transferred += if here { 0 } else { length };
        }
        close_for_ever(&file).map_err(device)?;
        Ok(transferred)
    }

    /// Returns the source of a part's bytes: a file on this node or on this host, or the part's node.
    pub(crate) fn source(
        self: &Arc<Self>,
        locations: &InputLocations,
        part: usize,
        here: &dyn Fn(ObjectId) -> Option<PathBuf>,
    ) -> Result<FetchSource, FetchError> {
        let (part, capability) = locations
            .part("", part)
            .ok_or(tidemill_client::Error::Answer("layout"))?;
        let own = here(part.object).map(|path| (path, None));
        let fetched = || {
            let fetched = self.ready(part.object)?;
            Some((fetched.path.clone(), Some(fetched)))
        };
        if let Some((path, fetched)) = own.or_else(fetched)
            && let Ok(file) = tidemill_client::object_file::open(&path)
        {
            return Ok(FetchSource {
                from: PartReader::File(file),
                here: true,
                _fetched: fetched,
            });
        }
        let peer = self.peer(part.node)?;
        let path = peer.directory.join(part.object.relative_path());
        let in_place = self.in_place && peer.host == self.host;
        let file = in_place.then(|| sealed_file(&path).ok()).flatten();
        let from = match file {
            Some(file) => PartReader::File(file),
            None => PartReader::Node(self.remote(part.node, part.object, capability)?),
        };
        Ok(FetchSource {
            from,
            here: false,
            _fetched: None,
        })
    }

    /// Reads several byte ranges from the node of their object concurrently.
    pub(crate) fn receive_ranges(
        &self,
        remote: &ObjectAddress,
        ranges: &[Range<u64>],
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Vec<Bytes>, FetchError> {
        let (objects, arrived) = (self.objects(), AtomicU64::new(0));
        let read = async { Ok(objects.read_ranges(remote, ranges).await?) };
        self.wait(read, (&arrived, &remote.url, cancelled))
    }

    /// Waits for requests to a node, until they stall or are cancelled.
    fn wait<T>(
        &self,
        requests: impl Future<Output = Result<T, FetchError>>,
        (arrived, url, cancelled): (&AtomicU64, &Arc<str>, &dyn Fn() -> bool),
    ) -> Result<T, FetchError> {
        reader::block_on(&self.runtime, requests, watch(arrived, url, cancelled))
    }

    /// Reads a byte range from the node of its object, in pieces of limited size.
    pub(crate) fn receive_span(
        &self,
        remote: &ObjectAddress,
        span: &Range<u64>,
        mut place: impl FnMut(u64, &[u8]) -> Result<(), FetchError>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<(), FetchError> {
        let (objects, grant) = (self.objects(), LabelGrant(remote));
        for at in (span.start..span.end).step_by(PIECE_BYTES) {
            let bytes = at..span.end.min(at + PIECE_BYTES as u64);
            let read = async { Ok(reader::read(&grant, &objects, bytes).await?) };
            let read = self.wait(read, (&AtomicU64::new(0), &remote.url, cancelled));
            place(at, &read?)?;
        }
        Ok(())
    }

    /// Shares the file of a whole object that has been fetched; `None` if the object is not in the input cache.
    fn ready(self: &Arc<Self>, object: ObjectId) -> Option<FetchedInput> {
        let wanted = (object, Selection::WHOLE);
        let mut slots = self.slots.lock();
        let (path, size) = slots.take_part(&wanted)?;
        drop(slots);
        Some(FetchedInput {
            fetcher: Arc::clone(self),
            wanted,
            path,
            size,
            transferred_bytes: 0,
        })
    }

    /// Shares a file that another label has fetched, or calls `bring` with the path of a new file. `bring` returns the length of the file
    /// and the number of transferred bytes.
    fn shared(
        self: &Arc<Self>,
        wanted: WantedObject,
        cancelled: &dyn Fn() -> bool,
        bring: impl FnOnce(&Path) -> Result<(FetchedObject, u64), FetchError>,
    ) -> Result<FetchedInput, FetchError> {
        let (path, size, transferred_bytes) = match self.share(&wanted, cancelled)? {
            SharedFetch::Here(path, size) => (path, size, 0),
            SharedFetch::ToBring(PulledFile { path, known }) => {
                let brought = bring(&path);
                let mut slots = self.slots.lock();
                if let (Ok((fetched, _)), Some(slot)) = (&brought, slots.slots.get_mut(&wanted)) {
                    slot.size = Some(fetched.size);
                    self.flash.on_fetched(known, fetched.written);
                } else {
                    slots.slots.remove(&wanted);
                }
                drop(slots);
                self.changed.notify_all();
                let (fetched, transferred) = brought?;
                (path, fetched.size, transferred)
            }
        };
        Ok(FetchedInput {
            fetcher: Arc::clone(self),
            wanted,
            path,
            size,
            transferred_bytes,
        })
    }

    /// Copies an object into a new file at `path`. Returns the object's length in bytes; all its bytes were transferred.
    ///
    /// # Errors
    /// See [`FetchError`]; after an error the new file does not exist.
    pub fn copy(
        &self,
        input: &LabelInput,
        capability: &[u8],
        path: &Path,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<u64, FetchError> {
        self.fetch(input, capability, path, false, cancelled)
            .map(|fetched| fetched.size)
    }

    /// Fetches small objects of one node, as far as the node returns them without delay. `take` receives the index of each object, the hash
    /// that the node reports, and the object's bytes.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub fn many(
        &self,
        node: NodeId,
        wanted: &[(&LabelInput, &[u8])],
        cancelled: &dyn Fn() -> bool,
        take: &mut dyn FnMut(usize, &Hash, &[u8]),
    ) -> Result<(), FetchError> {
        let peer = self.peer(node)?;
        let in_place = self.in_place && peer.host == self.host;
        let item = |(input, capability): &(&LabelInput, &[u8])| ReplicaItem {
            object: input.object.0,
            capability: route::hex(capability),
        };
        let items: Vec<ReplicaItem> = wanted.iter().map(item).collect();
        let objects = self.objects();
        let arrived = AtomicU64::new(0);
        let given = async { Ok(objects.replicas(node, &peer.url, &items, !in_place).await?) };
        let given = self.wait(given, (&arrived, &peer.url, cancelled))?;
        let (mut rest, mut buffer) = (&*given, Vec::new());
        for (index, (input, _)) in wanted.iter().enumerate() {
            let wrong = tidemill_client::Error::Answer("replicas");
            let (one, after) = replicas::decode(rest).ok_or(wrong)?;
            rest = after;
            let Some((hash, bytes)) = one else { continue };
            if !in_place {
                take(index, hash, bytes);
                continue;
            }
            let path = peer.directory.join(input.object.relative_path());
            buffer.clear();
            let read = sealed_file(&path)
                .and_then(|file| file.take(OBJECT_BYTES_MAX + 1).read_to_end(&mut buffer));
            if read.is_ok() {
                take(index, hash, &buffer);
            }
        }
        Ok(())
    }

    /// Returns whether the node from which an object was copied confirms this hash of the object.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub fn confirm(
        &self,
        input: &LabelInput,
        capability: &[u8],
        hash: &Hash,
    ) -> Result<bool, FetchError> {
        let remote = self.remote(input.node, input.object, capability)?;
        Ok(self
            .runtime
            .block_on(self.objects().confirm(&remote, hash))?)
    }

    /// Shares a file that exists, waits for a file that is being fetched, or makes the caller fetch the file.
    fn share(
        &self,
        wanted: &WantedObject,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<SharedFetch, FetchError> {
        let mut slots = self.slots.lock();
        loop {
            if cancelled() {
                return Err(FetchError::Cancelled);
            }
            if !slots.slots.contains_key(wanted) {
                let file = slots.file(&self.directory, wanted);
                let slot = PullSlot {
                    users: 1,
                    size: None,
                    file: file.clone(),
                };
                slots.slots.insert(wanted.clone(), slot);
                return Ok(SharedFetch::ToBring(file));
            }
            if let Some((path, size)) = slots.take_part(wanted) {
                return Ok(SharedFetch::Here(path, size));
            }
            self.changed.wait_for(&mut slots, WATCH_PERIOD);
        }
    }

    fn give_back(&self, wanted: &WantedObject) {
        let mut slots = self.slots.lock();
        let Some(slot) = slots.slots.get_mut(wanted) else {
            return;
        };
        slot.users -= 1;
        let (users, size) = (slot.users, slot.size.unwrap_or(0));
        if users > 0 {
            return;
        }
        slots.idle.push_back(wanted.clone());
        slots.idle_bytes += size;
        while slots.idle_bytes > self.idle_bytes_max {
            let Some(oldest) = slots.idle.pop_front() else {
                break;
            };
            let Some(PullSlot { size, file, .. }) = slots.slots.remove(&oldest) else {
                continue;
            };
            slots.idle_bytes -= size.unwrap_or(0);
            self.flash.on_fetched_removed(file.known);
            let path = &file.path;
            if let Err(error) = std::fs::remove_file(path) {
                tracing::warn!(path = %path.display(), %error, "a fetched object can't be removed");
            }
        }
    }

    /// Combines the parts of an input into one file, or shares the file of a label that has combined the same parts. `here` returns the
    /// file of a part that this node has.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub fn assemble(
        self: &Arc<Self>,
        input: &LabelInput,
        (layout, own): (&v1::Layout, NodeId),
        here: &dyn Fn(ObjectId) -> Option<PathBuf>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<FetchedInput, FetchError> {
        let wrong = |_| tidemill_client::Error::Answer("layout");
        let all = convert::layout(layout, input.size).map_err(wrong)?;
        self.shared((input.object, Selection::WHOLE), cancelled, |path| {
            let put = self.put_together(input, (layout, &all, own), path, here, cancelled);
            if put.is_err() {
                // The caller reports the error of the fetch.
                let _ = std::fs::remove_file(path);
            }
            put.map(|transferred| (FetchedObject::written(input.size, path), transferred))
        })
    }

    /// Writes a file of all parts of an input. Returns how many bytes came from other nodes.
    fn put_together(
        &self,
        input: &LabelInput,
        (layout, all, own): (&v1::Layout, &Layout, NodeId),
        path: &Path,
        here: &dyn Fn(ObjectId) -> Option<PathBuf>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<u64, FetchError> {
        let device = |source| FetchError::Device {
            path: path.to_owned(),
            source,
        };
        let whole = File::create(path).map_err(device)?;
        whole.set_len(input.size).map_err(device)?;
        let mut transferred = 0;
        for (index, part) in layout.parts.iter().enumerate() {
            let local = (part.node == own.0).then(|| here(ObjectId(part.object)));
            let place = (&whole, all, index);
            transferred += match local.flatten() {
                Some(local) => copy_part(&local, place).map(|()| 0).map_err(device)?,
                None => self.put_part(input, part, (place, path), cancelled)?,
            };
        }
        close_for_ever(&whole).map_err(device)?;
        Ok(transferred)
    }

    /// Fetches one part of an input and writes the part's bytes at their places in the combined file. Returns the number of bytes.
    fn put_part(
        &self,
        input: &LabelInput,
        part: &v1::LayoutPart,
        (place, path): (CombinedPart<'_>, &Path),
        cancelled: &dyn Fn() -> bool,
    ) -> Result<u64, FetchError> {
        let of = LabelInput {
            name: input.name.clone(),
            object: ObjectId(part.object),
            node: NodeId(part.node),
            size: part.size,
            selection: Selection::WHOLE,
        };
        let own = path.with_extension(place.2.to_string());
        let transferred = self.copy(&of, &part.capability, &own, cancelled)?;
        let put = copy_part(&own, place).map_err(|source| FetchError::Device {
            path: own.clone(),
            source,
        });
        // The caller reports the error of the fetch.
        let _ = std::fs::remove_file(&own);
        put.map(|()| transferred)
    }

    fn fetch(
        &self,
        input: &LabelInput,
        capability: &[u8],
        path: &Path,
        link: bool,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<FetchedObject, FetchError> {
        let peer = self.peer(input.node)?;
        let device = |source| FetchError::Device {
            path: path.to_owned(),
            source,
        };
        // An interrupted fetch may have left its file.
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(device(e)),
            _ => {}
        }
        if self.in_place && peer.host == self.host {
            let source = peer.directory.join(input.object.relative_path());
            if let Some(fetched) = from_directory(&source, path, link).map_err(device)? {
                return Ok(fetched);
            }
        }
        let remote = self.remote(input.node, input.object, capability)?;
        let fetched = self.fetch_remote(&remote, path, cancelled);
        if fetched.is_err() {
            // The caller reports the error of the fetch.
            let _ = std::fs::remove_file(path);
        }
        fetched.map(|size| FetchedObject::written(size, path))
    }

    fn fetch_remote(
        &self,
        remote: &ObjectAddress,
        path: &Path,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<u64, FetchError> {
        let device = |source| FetchError::Device {
            path: path.to_owned(),
            source,
        };
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)
            .map_err(device)?;
        let mut file = BufWriter::with_capacity(PIECE_BYTES, file);
        let (begun, arrived) = (Instant::now(), AtomicU64::new(0));
        let write = |piece: Bytes| {
            arrived.fetch_add(piece.len() as u64, Ordering::Relaxed);
            file.write_all(&piece)
                .map_err(|source| tidemill_client::Error::Local {
                    path: path.display().to_string(),
                    source,
                })
        };
        let (objects, grant) = (self.objects(), LabelGrant(remote));
        let fetched = async {
            let fetched = reader::stream(&grant, &objects, (0, None), write).await;
            fetched.map_err(|error| match error {
                tidemill_client::Error::Local { source, .. } => device(source),
                error => error.into(),
            })
        };
        let size = self.wait(fetched, (&arrived, &remote.url, cancelled))?;
        let file = file.into_inner().map_err(|e| device(e.into_error()))?;
        close_for_ever(&file).map_err(device)?;
        self.measure(size, begun.elapsed());
        Ok(size)
    }

    /// Updates the smoothed rate of the last few fetches with a fetch of `bytes` bytes.
    fn measure(&self, bytes: u64, time: Duration) {
        if bytes < MEASURED_BYTES_MIN || time.is_zero() {
            return;
        }
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let rate = u128::from(bytes) * 1_000_000_000 / u128::from(nanos);
        let rate = u64::try_from(rate).unwrap_or(u64::MAX).max(1);
        let before = self.measured_bytes_per_sec.load(Ordering::Relaxed);
        let smooth = if before == 0 {
            rate
        } else {
            before / 4 * 3 + rate / 4
        };
        self.measured_bytes_per_sec
            .store(smooth.max(1), Ordering::Relaxed);
    }
}

impl Slots {
    /// Returns the path and the identifier of the file for a new fetch.
    fn file(&mut self, directory: &Path, (object, selection): &WantedObject) -> PulledFile {
        if selection.is_whole() {
            return PulledFile {
                path: directory.join(format!("{:016x}", object.0)),
                known: *object,
            };
        }
        self.selections += 1;
        let number = self.selections;
        PulledFile {
            path: directory.join(format!("{:016x}-{number}", object.0)),
            known: ObjectId(SELECTED | number),
        }
    }

    /// Marks an existing file as used by one more label. Returns the file's path and length.
    fn take_part(&mut self, wanted: &WantedObject) -> Option<(PathBuf, u64)> {
        let slot = self.slots.get_mut(wanted)?;
        let size = slot.size?;
        let idle = slot.users == 0;
        slot.users += 1;
        let path = slot.file.path.clone();
        if idle {
            self.idle.retain(|other| other != wanted);
            self.idle_bytes -= size;
        }
        Some((path, size))
    }
}

/// Result of a label's request for a file that several labels may share.
enum SharedFetch {
    /// The file exists at this path, with this length in bytes.
    Here(PathBuf, u64),
    /// The caller has to fetch the file.
    ToBring(PulledFile),
}

/// Source from which the bytes of a part are read.
#[derive(Debug)]
pub(crate) struct FetchSource {
    pub(crate) from: PartReader,
    /// Whether the source is on this node, so that no bytes are transferred.
    pub(crate) here: bool,
    /// Fetched file that contains the part; the file is not removed while this value exists.
    _fetched: Option<FetchedInput>,
}

#[derive(Debug)]
pub(crate) enum PartReader {
    File(File),
    Node(ObjectAddress),
}

impl Drop for FetchedInput {
    fn drop(&mut self) {
        self.fetcher.give_back(&self.wanted);
    }
}

/// A label's capability for an object on one node: the server has chosen the node.
struct LabelGrant<'a>(&'a ObjectAddress);

impl Grant for LabelGrant<'_> {
    async fn next(&self, turn: &Turn) -> Result<Option<NodeId>, tidemill_client::Error> {
        Ok(turn.tried().is_empty().then_some(self.0.node))
    }

    async fn address(&self, _node: NodeId) -> Result<ObjectAddress, tidemill_client::Error> {
        Ok(self.0.clone())
    }

    /// A stalled fetch ends by [`watch`].
    fn patience(&self, _node: NodeId, _turn: &Turn) -> Option<Duration> {
        None
    }

    fn is_node_error(&self, error: &tidemill_client::Error) -> bool {
        matches!(error, tidemill_client::Error::Node { .. })
    }

    async fn again(&self, turn: &Turn) -> bool {
        let tries = turn.round() + 1;
        if tries < TRIES {
            tokio::time::sleep(WATCH_PERIOD * tries).await;
        }
        tries < TRIES
    }
}

/// Waits until a fetch stalls or is cancelled. Returns the reason to stop the fetch.
async fn watch(arrived: &AtomicU64, url: &Arc<str>, cancelled: &dyn Fn() -> bool) -> FetchError {
    let mut seen = 0;
    let mut since = Instant::now();
    loop {
        tokio::time::sleep(WATCH_PERIOD).await;
        if cancelled() {
            return FetchError::Cancelled;
        }
        let now = arrived.load(Ordering::Relaxed);
        if now != seen {
            seen = now;
            since = Instant::now();
        } else if since.elapsed() > STALL_MAX {
            return FetchError::Stalled {
                url: url.to_string(),
            };
        }
    }
}

/// Writes bytes of a part, starting at the part's offset `at`, to their places in the file of the selection.
fn write_span(
    (file, selected): (&File, &SelectedBytes<'_>),
    span: &SelectedSpan,
    at: u64,
    bytes: &[u8],
) -> std::io::Result<()> {
    for piece in selected.places(span, at..at + bytes.len() as u64) {
        let from = piece.at.map_or(at, |within| within.offset) - at;
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let length = usize::try_from(piece.length).unwrap_or(usize::MAX);
        let piece_bytes = bytes.get(from..from.saturating_add(length));
        let piece_bytes = piece_bytes.ok_or(std::io::ErrorKind::InvalidData)?;
        file.write_all_at(piece_bytes, piece.offset)?;
    }
    Ok(())
}

/// Reads a byte range from a file, in pieces of limited size.
pub(crate) fn read_span(
    part: &File,
    span: &Range<u64>,
    mut place: impl FnMut(u64, &[u8]) -> Result<(), FetchError>,
    cancelled: &dyn Fn() -> bool,
    device: impl Fn(std::io::Error) -> FetchError,
) -> Result<(), FetchError> {
    let longest = (span.end - span.start).min(PIECE_BYTES as u64);
    let mut buffer = vec![0; usize::try_from(longest).unwrap_or(PIECE_BYTES)];
    let mut at = span.start;
    while at < span.end {
        if cancelled() {
            return Err(FetchError::Cancelled);
        }
        let length = (span.end - at).min(longest);
        let piece = &mut buffer[..usize::try_from(length).unwrap_or(PIECE_BYTES)];
        part.read_exact_at(piece, at).map_err(&device)?;
        place(at, piece)?;
        at += length;
    }
    Ok(())
}

/// Opens the file of a sealed object of another node on this host.
fn sealed_file(path: &Path) -> std::io::Result<File> {
    let file = tidemill_client::object_file::open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.mode() & 0o222 != 0 {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    Ok(file)
}

/// Combined file, the layout of its input, and the index of a part.
type CombinedPart<'a> = (&'a File, &'a Layout, usize);

/// Copies the bytes of a part to their places in the combined file.
fn copy_part(part: &Path, (whole, layout, index): CombinedPart<'_>) -> std::io::Result<()> {
    let part = File::open(part)?;
    let mut buffer = vec![0; PIECE_BYTES];
    let mut at = 0;
    loop {
        let count = part.read_at(&mut buffer, at)?;
        if count == 0 {
            return Ok(());
        }
        for piece in layout.segments_of(index, at..at + count as u64) {
            let from = piece.at.map_or(at, |within| within.offset) - at;
            let from = usize::try_from(from).unwrap_or(0);
            let length = usize::try_from(piece.length).unwrap_or(0);
            whole.write_all_at(&buffer[from..from + length], piece.offset)?;
        }
        at += count as u64;
    }
}

/// Links or copies a sealed object from another node's directory on this host; `None` if that is not possible.
fn from_directory(
    source: &Path,
    path: &Path,
    link: bool,
) -> std::io::Result<Option<FetchedObject>> {
    let Ok(mut from) = sealed_file(source) else {
        return Ok(None);
    };
    let metadata = from.metadata()?;
    if link && std::fs::hard_link(source, path).is_ok() {
        return Ok(Some(FetchedObject {
            size: metadata.len(),
            written: 0,
        }));
    }
    let mut to = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    let copied = std::io::copy(&mut from, &mut to).and_then(|size| {
        close_for_ever(&to)?;
        Ok(size)
    });
    if copied.is_err() {
        // The caller reports the error of the copy.
        let _ = std::fs::remove_file(path);
    }
    copied.map(|size| Some(FetchedObject::written(size, path)))
}
