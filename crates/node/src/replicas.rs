//! Batched replicas of small objects: one request to the source node and one sync of the device for many objects. The module writes
//! objects to the store.
//!
//! If an object can't be copied in a batch, the node copies it alone, which reports the error. Examples: the source is offline, lacks the
//! object or has other bytes than it declared, or the store is full. So the functions of this module never fail.

use crate::executor::ExecutorParts;
use crate::labels::{Live, NodeLabels, failed};
use crate::records::{self, Hash, ObjectRecord};
use crate::scrub;
use crate::store::ObjectFile;
use crate::task::{LabelEffects, now};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidemill_model::display::escaped;
use tidemill_model::id::{LabelId, NodeId, ObjectId};
use tidemill_model::label::{FailureKind, LabelInput, Lane, Operation, SealedOutput};
use tidemill_wire::replicas::{OBJECT_BYTES_MAX, OBJECTS_BYTES_MAX, OBJECTS_MAX, ReplicaData};

pub(crate) type TakenLabel = (LabelId, Live);

/// Takes the next labels that copy small objects from the queue, after the label `first`.
pub(crate) fn with_more(labels: &NodeLabels, first: TakenLabel) -> Vec<TakenLabel> {
    let mut bytes = small(&first.1).unwrap_or(OBJECTS_BYTES_MAX);
    let mut taken = vec![first];
    while bytes < OBJECTS_BYTES_MAX && taken.len() < OBJECTS_MAX {
        let Some(next) = labels.try_next(Lane::Copy) else {
            break;
        };
        // A large object is the last of its batch, so that no other object waits for it.
        bytes += small(&next.1).unwrap_or(OBJECTS_BYTES_MAX);
        taken.push(next);
    }
    taken
}

/// Returns the length in bytes of the small object that a label copies from another node; `None` for another label.
fn small(live: &Live) -> Option<u64> {
    let Operation::Copy { from, to, .. } = &live.label.operation else {
        return None;
    };
    let small = from.object == to.object && from.size <= OBJECT_BYTES_MAX;
    small.then_some(from.size)
}

/// Makes as many replicas as possible. Returns the labels whose replicas were not made.
pub(crate) fn make(
    parts: &ExecutorParts,
    labels: &Arc<NodeLabels>,
    taken: Vec<TakenLabel>,
) -> Vec<TakenLabel> {
    let new = |(_, live): &&TakenLabel| {
        let Operation::Copy { from, .. } = &live.label.operation else {
            return false;
        };
        // A corrupt object is recreated in its place, and an object that is stored here is not fetched.
        let known = |db: &rusqlite::Connection| records::has_object(db, from.object);
        small(live).is_some() && from.node != parts.node && !parts.db.read(known).unwrap_or(true)
    };
    let mut sources: BTreeMap<NodeId, Vec<&TakenLabel>> = BTreeMap::new();
    if taken.len() > 1 {
        for one in taken.iter().filter(new) {
            if let Operation::Copy { from, .. } = &one.1.label.operation {
                sources.entry(from.node).or_default().push(one);
            }
        }
    }
    let mut made = BTreeMap::new();
    for (node, wanted) in sources {
        bring(parts, node, &wanted, &mut made);
    }
    make_durable(parts, &mut made);
    let mut left = Vec::new();
    for (id, live) in taken {
        match made.remove(&id) {
            Some(work) => drop(labels.end(id, work)),
            None => left.push((id, live)),
        }
    }
    left
}

/// Makes the replicas durable at their final paths. A replica for which this fails is copied again alone, which reports the error.
fn make_durable(parts: &ExecutorParts, made: &mut BTreeMap<LabelId, LabelEffects>) {
    let mut labels = Vec::with_capacity(made.len());
    let mut objects = Vec::with_capacity(made.len());
    for (id, work) in made.iter() {
        for record in &work.made {
            let named = ObjectFile {
                path: escaped(&record.path),
                part: record.part.is_some(),
                hash: record.hash,
            };
            labels.push(*id);
            objects.push((record.id, named));
        }
    }
    let mut failed = 0;
    for (id, durable) in labels.into_iter().zip(parts.store.make_durable(&objects)) {
        if let Err(error) = durable {
            if failed == 0 {
                tracing::warn!(%error, "replicas are copied one by one");
            }
            failed += 1;
            made.remove(&id);
        }
    }
}

/// Fetches objects of one node, as far as the node returns them without delay.
fn bring(
    parts: &ExecutorParts,
    node: NodeId,
    wanted: &[&TakenLabel],
    made: &mut BTreeMap<LabelId, LabelEffects>,
) {
    let objects: Vec<(&LabelInput, &[u8])> = wanted
        .iter()
        .filter_map(|(_, live)| match &live.label.operation {
            Operation::Copy { from, .. } => Some((from, live.capability(0))),
            _ => None,
        })
        .collect();
    let cancelled = || wanted.iter().all(|(_, live)| live.control.is_cancelled());
    let take = &mut |index: usize, reported: &Hash, bytes: &[u8]| {
        let (id, live): &TakenLabel = wanted[index];
        let hash: Hash = blake3::hash(bytes).into();
        if hash != *reported || live.control.is_cancelled() {
            return;
        }
        if let Some(work) = keep(parts, live, bytes, hash) {
            made.insert(*id, work);
        }
    };
    if let Err(error) = parts.fetcher.many(node, &objects, &cancelled, take) {
        tracing::debug!(%error, "replicas are copied one by one");
    }
}

/// Stores the bytes of a replica as a sealed object.
fn keep(parts: &ExecutorParts, live: &Live, bytes: &[u8], hash: Hash) -> Option<LabelEffects> {
    let Operation::Copy { to, part, mode, .. } = &live.label.operation else {
        return None;
    };
    parts.store.put(to.object, bytes).ok()?;
    let size = bytes.len() as u64;
    parts.counters.on_written(size);
    let mut outcome = failed(live.start, FailureKind::Device, String::new());
    outcome.kernel_start = live.start;
    outcome.end = now();
    (
        outcome.transferred_bytes,
        outcome.read_bytes,
        outcome.written_bytes,
    ) = (size, size, size);
    outcome.result = Ok(vec![SealedOutput::file(to.object, size)]);
    let record = ObjectRecord {
        id: to.object,
        size,
        owner: live.label.owner,
        inode: to.inode.0,
        path: to.path.clone().into_bytes(),
        mode: *mode,
        task: None,
        sealed_at: outcome.end,
        part: *part,
        hash: Some(hash),
        memory: false,
    };
    let mut work = LabelEffects::without_effect(outcome);
    work.label = Some(Arc::clone(&live.label));
    work.made.push(record);
    work.wrote.push((to.object, size));
    Some(work)
}

/// Returns the answer to a node that copies objects, in the order of the request. If the requesting node may not read an object, or must
/// request it alone, the answer reports the object as missing.
pub(crate) fn give(
    parts: &ExecutorParts,
    objects: &[Option<ObjectId>],
    with_bytes: bool,
) -> Vec<ReplicaData> {
    let sums = parts.db.read(|db| {
        let sum = |object: &Option<ObjectId>| match object {
            Some(object) => records::sum(db, *object),
            None => Ok(None),
        };
        objects.iter().map(sum).collect::<Result<Vec<_>, _>>()
    });
    let (mut given, mut new, mut total) = (Vec::with_capacity(objects.len()), Vec::new(), 0);
    for (object, sum) in objects.iter().zip(sums.unwrap_or_default()) {
        let one = object.zip(sum).and_then(|(object, sum)| {
            total = sum.size.saturating_add(total);
            let fits = sum.size <= OBJECT_BYTES_MAX && total <= 2 * OBJECTS_BYTES_MAX;
            if !fits || sum.corruption.is_some() {
                return None;
            }
            let read = with_bytes || sum.hash.is_none();
            let bytes = read
                .then(|| scrub::read_whole(parts, object, &sum))
                .transpose()
                .ok()?;
            let bytes = bytes.unwrap_or_default();
            let hash = sum.hash.unwrap_or_else(|| {
                let hash = blake3::hash(&bytes).into();
                new.push((object, hash));
                hash
            });
            let bytes = if with_bytes { bytes } else { Vec::new() };
            Some((hash, bytes))
        });
        given.push(one);
    }
    if !new.is_empty() {
        let keep = move |db: &rusqlite::Connection| {
            new.iter()
                .try_for_each(|(object, hash)| records::set_hash(db, *object, hash))
        };
        // If this fails, the object is hashed later.
        parts.db.submit(false, keep, drop);
    }
    given
}
