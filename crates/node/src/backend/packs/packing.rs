//! Packing of objects: one of the waiting threads packs the objects of all waiting threads together. The module reads cached objects, writes
//! packs to the external store and records them in the database.

use super::super::uploading::key;
use super::super::{Backend, Error, Overwrite, StoreFile};
use super::format::{self, CHUNK_BYTES_MAX, Hash, ManifestPart, PART_CHUNKS_MAX, Pack};
use super::rows::{self, NewPart, NotedPack, PackId};
use super::{DIRECTORY, reading};
use crate::store::{ObjectFile, ReadableObject, Store as _, StoreError};
use crate::task::now;
use bytes::Bytes;
use fastcdc::v2020::FastCDC;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use tidemill_model::id::ObjectId;
use tokio::task::JoinHandle;

/// Average size of chunks in bytes, and minimum size of all chunks except the last chunk of a file.
const CHUNK_BYTES: usize = 256 << 10;
const CHUNK_BYTES_MIN: usize = 64 << 10;
/// Maximum number of chunks in a part of a manifest; smaller in tests, so that files have several parts.
const PART_CHUNKS: usize = if cfg!(test) { 40 } else { PART_CHUNKS_MAX };
/// Maximum number of bytes per read of a file.
const PIECE_BYTES: usize = 4 << 20;
/// Maximum number of packs that are sent concurrently.
const FLIGHTS_MAX: usize = 4;

/// Objects that a thread has queued for packing and waits for.
#[derive(Debug)]
pub(in super::super) struct Ticket {
    objects: Vec<(ObjectId, ObjectFile)>,
    /// Results of packing the objects; `None` until they were packed.
    ended: Mutex<Option<Vec<Result<(), StoreError>>>>,
}

/// Reason why an object was not packed; many objects may share it.
#[derive(Clone, Debug)]
pub(super) enum PackError {
    /// The node has no such object.
    NotFound,
    Failed {
        path: String,
        why: Error,
    },
}

impl PackError {
    pub(super) fn of(error: StoreError) -> Self {
        match error {
            StoreError::NotFound { .. } => Self::NotFound,
            StoreError::Backend { path, why } => Self::Failed { path, why },
            error => Self::Failed {
                path: "an object of this node".into(),
                why: Error::Other(error.to_string()),
            },
        }
    }

    pub(super) fn error_of(self, object: ObjectId) -> StoreError {
        match self {
            Self::NotFound => StoreError::NotFound { object },
            Self::Failed { path, why } => StoreError::Backend { path, why },
        }
    }
}

/// Pack that is being sent.
struct PackUpload {
    id: PackId,
    path: String,
    task: JoinHandle<Result<StoreFile, Error>>,
    chunks: Vec<(Hash, format::ChunkSpot)>,
    parts: Vec<NewPart>,
}

/// State of packing several objects together.
pub(super) struct PackBatch<'a> {
    backend: &'a Backend,
    compress: bool,
    pack: Pack,
    nonce: [u8; format::NONCE_BYTES],
    parts: Vec<NewPart>,
    /// Hashes of chunks that are in a pack of this batch.
    fresh: HashSet<Hash>,
    flights: VecDeque<PackUpload>,
    /// First failure of the batch, after which it sends no further packs.
    trouble: Option<PackError>,
    ended: BTreeMap<ObjectId, Result<(), PackError>>,
}

/// Manifest of a file that is being cut into chunks.
struct Manifest {
    part: ManifestPart,
    hasher: blake3::Hasher,
}

pub(in super::super) fn now_s() -> i64 {
    i64::try_from(now().0 / 1_000_000_000).unwrap_or(i64::MAX)
}

impl Backend {
    /// Packs objects. Returns the result for each object.
    pub(in super::super) fn pack(
        &self,
        compress: bool,
        objects: Vec<(ObjectId, ObjectFile)>,
    ) -> Vec<Result<(), StoreError>> {
        if objects.is_empty() {
            return Vec::new();
        }
        let ticket = Arc::new(Ticket {
            objects,
            ended: Mutex::default(),
        });
        self.packs.queue.lock().push(Arc::clone(&ticket));
        let turn = self.packs.turn.lock();
        if let Some(ended) = ticket.ended.lock().take() {
            return ended;
        }
        let tickets = std::mem::take(&mut *self.packs.queue.lock());
        let wanted = tickets.iter().flat_map(|ticket| &ticket.objects);
        let ended = self.pack_all(compress, wanted);
        for ticket in tickets {
            let error_of = |(object, _): &(ObjectId, ObjectFile)| match ended.get(object).cloned() {
                Some(ended) => ended.map_err(|trouble| trouble.error_of(*object)),
                None => Err(PackError::NotFound.error_of(*object)),
            };
            *ticket.ended.lock() = Some(ticket.objects.iter().map(error_of).collect());
        }
        drop(turn);
        self.make_space();
        let ended = ticket.ended.lock().take();
        ended.unwrap_or_default()
    }

    fn pack_all<'a>(
        &self,
        compress: bool,
        wanted: impl Iterator<Item = &'a (ObjectId, ObjectFile)>,
    ) -> BTreeMap<ObjectId, Result<(), PackError>> {
        let mut batch = match PackBatch::new(self, compress) {
            Ok(batch) => batch,
            Err(trouble) => {
                return wanted
                    .map(|(object, _)| (*object, Err(trouble.clone())))
                    .collect();
            }
        };
        for (object, named) in wanted {
            if batch.ended.contains_key(object) {
                continue;
            }
            // The result stays this one until the object is complete. A pack that is sent now may already contain parts of the object.
            let waits = Err(PackError::NotFound);
            batch.ended.insert(*object, waits);
            if self.is_far(*object) {
                batch.ended.insert(*object, Ok(()));
            } else if let Err(trouble) = batch.add(*object, named) {
                batch.ended.insert(*object, Err(trouble));
            }
        }
        let (ended, _) = batch.finish();
        self.count_packs();
        ended
    }
}

impl<'a> PackBatch<'a> {
    pub(super) fn new(backend: &'a Backend, compress: bool) -> Result<Self, PackError> {
        let nonce = nonce()?;
        Ok(Self {
            backend,
            compress,
            pack: Pack::new(nonce, compress),
            nonce,
            parts: Vec::new(),
            fresh: HashSet::new(),
            flights: VecDeque::new(),
            trouble: None,
            ended: BTreeMap::new(),
        })
    }

    fn failed(&self, error: &crate::db::DbError) -> PackError {
        PackError::of(self.backend.failed(error))
    }

    fn add(&mut self, object: ObjectId, named: &ObjectFile) -> Result<(), PackError> {
        self.goes_on()?;
        let opened = self.backend.cache.open(object).map_err(PackError::of)?;
        self.backend.release(object).map_err(PackError::of)?;
        let mut manifest = Manifest {
            part: ManifestPart {
                object: object.0,
                time: now().0,
                size: opened.stat.size,
                hash: named.hash.unwrap_or_default(),
                at: 0,
                name: key(object, &named.path, named.part),
                chunks: Vec::new(),
            },
            hasher: blake3::Hasher::new(),
        };
        cut(&opened, &mut |chunk| {
            self.add_chunk_of(&mut manifest, chunk)
        })?;
        let hash: Hash = manifest.hasher.finalize().into();
        if named.hash.is_some_and(|sealed| sealed != hash) {
            return Err(PackError::Failed {
                path: manifest.part.name,
                why: Error::Other("its content differs from the sealed content".into()),
            });
        }
        manifest.part.hash = hash;
        self.add_part(manifest.part, true);
        if self.pack.is_full() {
            self.send()?;
        }
        Ok(())
    }

    fn add_chunk_of(&mut self, manifest: &mut Manifest, chunk: &[u8]) -> Result<(), PackError> {
        manifest.hasher.update(chunk);
        let hash: Hash = blake3::hash(chunk).into();
        if !self.is_there(&hash)? {
            self.add_chunk(hash, chunk)?;
        }
        let part = &mut manifest.part;
        // A chunk is always shorter than this.
        let size = u32::try_from(chunk.len()).unwrap_or(u32::MAX);
        part.chunks.push((hash, size));
        if part.chunks.len() == PART_CHUNKS && part.end() < part.size {
            let next = ManifestPart {
                at: part.end(),
                chunks: Vec::new(),
                ..part.clone()
            };
            let full = std::mem::replace(part, next);
            self.add_part(full, false);
        }
        Ok(())
    }

    /// Returns whether the external store has a chunk, so that it need not be sent.
    fn is_there(&self, hash: &Hash) -> Result<bool, PackError> {
        if self.fresh.contains(hash) {
            return Ok(true);
        }
        let found = self.backend.db.read(|db| rows::find(db, hash));
        let Some(found) = found
            .map_err(|error| self.failed(&error))?
            .filter(|found| !found.bad)
        else {
            return Ok(false);
        };
        let there = self
            .backend
            .has_pack(found.pack, &found.placed, reading::BELIEVED);
        there.map_err(|why| PackError::Failed {
            path: found.placed.path,
            why,
        })
    }

    /// Adds a chunk to the current pack, even if another pack has the chunk.
    pub(super) fn add_chunk(&mut self, hash: Hash, chunk: &[u8]) -> Result<(), PackError> {
        self.pack.add(hash, chunk).map_err(made)?;
        self.fresh.insert(hash);
        if self.pack.is_full() {
            self.send()?;
        }
        Ok(())
    }

    fn add_part(&mut self, part: ManifestPart, last: bool) {
        let encoded = part.encoded();
        self.pack.add_part(encoded.clone());
        self.parts.push(NewPart {
            part,
            encoded,
            moved: false,
            last,
        });
    }

    /// Adds a part of a complete object's manifest to the current pack, in place of its former pack.
    pub(super) fn move_part(
        &mut self,
        part: ManifestPart,
        encoded: Vec<u8>,
    ) -> Result<(), PackError> {
        self.pack.add_part(encoded.clone());
        self.parts.push(NewPart {
            part,
            encoded,
            moved: true,
            last: false,
        });
        match self.pack.is_full() {
            true => self.send(),
            false => Ok(()),
        }
    }

    /// Checks that the batch can continue.
    ///
    /// # Errors
    /// The first failure of the batch.
    pub(super) fn goes_on(&self) -> Result<(), PackError> {
        self.trouble.clone().map_or(Ok(()), Err)
    }

    /// Sends the current pack to the external store and starts the next pack.
    fn send(&mut self) -> Result<(), PackError> {
        while self.flights.len() >= FLIGHTS_MAX {
            self.finish_oldest();
        }
        self.goes_on()?;
        let path = path(&self.nonce);
        self.nonce = nonce()?;
        let next = Pack::new(self.nonce, self.compress);
        let made = std::mem::replace(&mut self.pack, next)
            .made()
            .map_err(made)?;
        let begun = path.clone();
        let begin = move |db: &rusqlite::Connection| rows::begin(db, &begun, now_s());
        // The row is written before the pack, so that the store never holds an unknown pack.
        let id = self.backend.db.write_blocking(true, begin);
        let id = id.map_err(|error| self.failed(&error))?;
        let (reach, bytes, to) = (Arc::clone(&self.backend.reach), made.bytes, path.clone());
        let task = self.backend.reach.runtime.spawn(async move {
            let (size, mut left) = (bytes.len() as u64, Some(bytes));
            let pieces = move || Ok::<Option<Bytes>, std::io::Error>(left.take());
            let pieces = Box::new(pieces);
            reach
                .far
                .write(&to, size, pieces, Overwrite::Anything)
                .await
        });
        self.flights.push_back(PackUpload {
            id,
            path,
            task,
            chunks: made.chunks,
            parts: std::mem::take(&mut self.parts),
        });
        Ok(())
    }

    /// Waits for the oldest pack that is being sent and records it.
    fn finish_oldest(&mut self) {
        let Some(flight) = self.flights.pop_front() else {
            return;
        };
        let ended = self.backend.reach.wait(flight.task);
        let ended = ended.unwrap_or_else(|error| Err(Error::Other(error.to_string())));
        let placed = match ended {
            Ok(placed) => placed,
            Err(why) => {
                return self.abandon(PackError::Failed {
                    path: flight.path,
                    why,
                });
            }
        };
        let mut parts = flight.parts;
        if self.trouble.is_some() {
            // An earlier pack is missing, so the objects are not complete. The chunks of this pack are usable by the next attempt.
            parts.clear();
        }
        let last = parts.iter().filter(|new| new.last);
        let whole: Vec<(ObjectId, u64)> = last
            .map(|new| (ObjectId(new.part.object), new.part.size))
            .collect();
        let noted = NotedPack {
            id: flight.id,
            placed,
            chunks: flight.chunks,
            parts,
        };
        let note = move |db: &rusqlite::Connection| rows::note(db, &noted);
        if let Err(error) = self.backend.db.write_blocking(true, note) {
            return self.abandon(self.failed(&error));
        }
        for (object, size) in whole {
            self.backend.is_kept(object, size, true);
            self.ended.insert(object, Ok(()));
        }
    }

    fn abandon(&mut self, trouble: PackError) {
        self.trouble.get_or_insert(trouble);
    }

    /// Waits for all sent packs. Objects that are not complete then have failed. Must be called after a failure, too, because packs that
    /// are being sent must not be left alone.
    pub(super) fn finish(
        mut self,
    ) -> (BTreeMap<ObjectId, Result<(), PackError>>, Option<PackError>) {
        if self.trouble.is_none()
            && !self.pack.is_empty()
            && let Err(trouble) = self.send()
        {
            self.abandon(trouble);
        }
        while !self.flights.is_empty() {
            self.finish_oldest();
        }
        if let Some(trouble) = &self.trouble {
            let failed = self.ended.values_mut().filter(|ended| ended.is_err());
            failed.for_each(|ended| *ended = Err(trouble.clone()));
        }
        (self.ended, self.trouble)
    }
}

fn made(error: std::io::Error) -> PackError {
    PackError::Failed {
        path: "new pack".into(),
        why: Error::Other(error.to_string()),
    }
}

/// Returns the random number that distinguishes a pack from all others, of any node.
fn nonce() -> Result<[u8; format::NONCE_BYTES], PackError> {
    let mut nonce = [0; format::NONCE_BYTES];
    rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| made(errno.into()))?;
    Ok(nonce)
}

/// Returns the path of a pack in the external store.
fn path(nonce: &[u8; format::NONCE_BYTES]) -> String {
    let name = u128::from_be_bytes(*nonce);
    format!("{DIRECTORY}/{:02x}/{name:032x}", nonce[0])
}

/// Cuts an object into chunks and passes them on, one after the other.
fn cut(
    opened: &ReadableObject,
    each: &mut dyn FnMut(&[u8]) -> Result<(), PackError>,
) -> Result<(), PackError> {
    let (size, mut at) = (opened.stat.size, 0);
    let mut buffer =
        Vec::with_capacity(PIECE_BYTES.min(usize::try_from(size).unwrap_or(PIECE_BYTES)));
    while at < size || !buffer.is_empty() {
        let left = usize::try_from(size - at).unwrap_or(usize::MAX);
        let filled = buffer.len();
        buffer.resize(filled + left.min(PIECE_BYTES - filled), 0);
        let count = opened
            .bytes
            .read_at(at, &mut buffer[filled..])
            .map_err(made)?;
        if count < buffer.len() - filled {
            return Err(made(std::io::ErrorKind::UnexpectedEof.into()));
        }
        at += count as u64;
        let mut done = 0;
        for chunk in FastCDC::new(&buffer, CHUNK_BYTES_MIN, CHUNK_BYTES, CHUNK_BYTES_MAX) {
            let end = chunk.offset + chunk.length;
            // The chunk may continue in the next bytes of the object.
            if end == buffer.len() && at < size {
                break;
            }
            each(&buffer[chunk.offset..end])?;
            done = end;
        }
        buffer.drain(..done);
    }
    Ok(())
}
