//! Scrubbing of sealed objects. The node hashes an object soon after its seal, and later, from time to time, reads the object and compares
//! it with the hash. The module reads the store, writes rows, sets files aside and reports to the server.
//!
//! An object that differs from its sealed content is corrupt. The object's row records the corruption, its file is set aside so that no
//! program reads it, and the node reports the object to the server. When the file has its sealed content again, the corruption is cleared.
//!
//! All functions block. Only background threads may call the functions, except [`look`].

use crate::db::DbError;
use crate::executor::ExecutorParts;
use crate::labels::{Live, NodeLabels, failed};
use crate::records::{self, Hash, ObjectChecksum};
use crate::store::{ReadAt, ReadableObject, StoreError};
use crate::task::{LabelEffects, now};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_model::id::ObjectId;
use tidemill_model::label::{Corrupt, FailureKind};
use tidemill_wire::v1::{self, from_node::Message};

/// Maximum number of bytes per read.
const PIECE_BYTES: usize = 1 << 20;
/// Minimum cost of a read in bytes, because reads of small objects cost time, too.
const PIECE_BYTES_MIN: u64 = 16 << 10;
/// Alignment in memory of buffers for direct reads, in bytes.
const ALIGNED_BYTES: usize = 4096;
/// Interval at which the node searches for unhashed objects.
const PERIOD: Duration = Duration::from_secs(1);
/// Maximum number of hashes per transaction.
const BATCH_MAX: u32 = 256;
/// Maximum pause between two reads on a node that is never idle.
const BUSY_MAX: Duration = Duration::from_secs(10);
/// Interval at which a scrub checks whether a busy node has become idle.
const BUSY_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of checks of an object that changes during each check.
const LOOKS_MAX: usize = 3;
/// Maximum number of corrupt objects per report.
const REPORTED_MAX: u32 = 4096;
/// Nice value of the threads of this module: they only use processor time that no other thread needs.
const NICE: i32 = 19;

/// Result of the check of an object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ScrubResult {
    /// The object has its sealed content, with this length in bytes.
    Good(u64),
    /// The node has no record of the object: it was removed, or never sealed.
    Unknown,
    /// The object is corrupt, for this human-readable reason.
    Corrupt(String),
    /// The check of the object was stopped.
    Stopped,
}

/// Reason why the state of an object is unknown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScrubError {
    /// The database returned an error.
    #[error(transparent)]
    Db(#[from] DbError),
    /// The object can't be read at present.
    #[error("object {0} can't be read now: {1}")]
    Read(ObjectId, String),
}

/// Reason why an object can't be hashed.
enum HashProblem {
    /// The object differs from its sealed content.
    Corruption(String),
    /// The state of the object can't be determined at present.
    Unknown(String),
    Stopped,
}

impl HashProblem {
    /// Classifies an error of opening or reading a file. A temporary error, or an error of this process, is no corruption.
    fn of(error: &std::io::Error) -> Self {
        let corrupt = [
            libc::EIO,
            libc::EACCES,
            libc::EPERM,
            libc::EISDIR,
            libc::ENOTDIR,
            libc::ELOOP,
            libc::ENXIO,
            libc::ENODATA,
            libc::EBADMSG,
            libc::EILSEQ,
            libc::EUCLEAN,
            libc::EREMOTEIO,
        ];
        match error.raw_os_error() {
            Some(libc::ENOENT) => Self::Corruption(MISSING.to_owned()),
            Some(errno) if corrupt.contains(&errno) => {
                Self::Corruption(format!("can't be read: {error}"))
            }
            _ => Self::Unknown(error.to_string()),
        }
    }
}

/// Rate limit of a scrub, and its read buffer.
pub(crate) struct ScrubPace<'a> {
    /// Labels that have priority over the scrub, and the limit in bytes per second. `None`: without limit.
    idle: Option<(&'a NodeLabels, u64)>,
    cancelled: &'a dyn Fn() -> bool,
    begun: Instant,
    /// Number of bytes that the scrub has read.
    bytes: u64,
    /// Read buffer of the scrub.
    memory: Vec<u8>,
}

impl<'a> ScrubPace<'a> {
    /// Returns the unlimited pace of a check for which a caller waits.
    pub(crate) fn at_once(cancelled: &'a dyn Fn() -> bool) -> Self {
        Self::new(None, cancelled)
    }

    fn new(idle: Option<(&'a NodeLabels, u64)>, cancelled: &'a dyn Fn() -> bool) -> Self {
        Self {
            idle,
            cancelled,
            begun: Instant::now(),
            bytes: 0,
            memory: vec![0; PIECE_BYTES + ALIGNED_BYTES],
        }
    }

    /// Waits until the next read may start. Returns whether the scrub continues.
    fn wait(&self) -> bool {
        let Some((labels, rate)) = self.idle else {
            return !(self.cancelled)();
        };
        let since = Instant::now();
        loop {
            if (self.cancelled)() {
                return false;
            }
            let due = Duration::from_nanos(
                u64::try_from(u128::from(self.bytes) * 1_000_000_000 / u128::from(rate.max(1)))
                    .unwrap_or(u64::MAX),
            );
            let ahead = due.saturating_sub(self.begun.elapsed());
            let busy = labels.is_busy() && since.elapsed() < BUSY_MAX;
            if ahead.is_zero() && !busy {
                return true;
            }
            if labels.pause(ahead.clamp(Duration::from_millis(1), BUSY_PAUSE)) {
                return false;
            }
        }
    }
}

/// Hashes all bytes. Returns the hash and the number of bytes.
fn hash(bytes: &dyn ReadAt, pace: &mut ScrubPace<'_>) -> Result<(Hash, u64), HashProblem> {
    let mut memory = std::mem::take(&mut pace.memory);
    let slack = memory.as_ptr().align_offset(ALIGNED_BYTES);
    let piece = &mut memory[slack.min(ALIGNED_BYTES)..][..PIECE_BYTES];
    let hashed = hash_through(bytes, piece, pace);
    pace.memory = memory;
    hashed
}

fn hash_through(
    bytes: &dyn ReadAt,
    piece: &mut [u8],
    pace: &mut ScrubPace<'_>,
) -> Result<(Hash, u64), HashProblem> {
    let mut hasher = blake3::Hasher::new();
    let mut length = 0;
    loop {
        if !pace.wait() {
            return Err(HashProblem::Stopped);
        }
        let read = bytes.read_at(length, piece);
        let count = read.map_err(|error| HashProblem::of(&error))?;
        hasher.update(&piece[..count]);
        length += count as u64;
        pace.bytes += PIECE_BYTES_MIN.max(count as u64);
        if count < piece.len() {
            return Ok((hasher.finalize().into(), length));
        }
    }
}

/// Returns the bytes of an object. Fails if their number differs from the sealed length.
pub(crate) fn read_whole(
    parts: &ExecutorParts,
    object: ObjectId,
    sum: &ObjectChecksum,
) -> Result<Vec<u8>, StoreError> {
    let opened = parts.store.open(object)?;
    let mut bytes = vec![0; usize::try_from(sum.size).unwrap_or(0)];
    let read = opened.bytes.read_at(0, &mut bytes);
    match read {
        Ok(count) if opened.stat.sealed && opened.stat.size == sum.size && count == bytes.len() => {
            Ok(bytes)
        }
        _ => Err(StoreError::NotFound { object }),
    }
}

pub(crate) fn hash_file(path: &Path) -> std::io::Result<Hash> {
    let file = File::open(path)?;
    match hash(&file, &mut ScrubPace::at_once(&never)) {
        Ok((hash, _)) => Ok(hash),
        Err(HashProblem::Corruption(what) | HashProblem::Unknown(what)) => {
            Err(std::io::Error::other(what))
        }
        Err(HashProblem::Stopped) => Err(std::io::ErrorKind::Interrupted.into()),
    }
}

fn never() -> bool {
    false
}

const CHANGED: &str = "differs from its sealed content (BLAKE3)";
const MISSING: &str = "is missing";

/// Opens an object that the node should have, or returns the problem with the object.
fn opened(
    parts: &ExecutorParts,
    object: ObjectId,
    sum: &ObjectChecksum,
    cold: bool,
) -> Result<ReadableObject, HashProblem> {
    let opened = if cold {
        parts.store.open_cold(object)
    } else {
        parts.store.open(object)
    };
    let opened = opened.map_err(|error| match error {
        StoreError::NotFound { .. } => HashProblem::Corruption(MISSING.to_owned()),
        StoreError::Device { source, .. } => HashProblem::of(&source),
        StoreError::Backend { .. } => backend(&error),
        error => HashProblem::Unknown(error.to_string()),
    })?;
    if !opened.stat.sealed {
        return Err(HashProblem::Corruption(
            "is not a sealed object any more".to_owned(),
        ));
    }
    if opened.stat.size != sum.size {
        let (is, was) = (opened.stat.size, sum.size);
        let what = format!("has {is} bytes, and {was} were sealed");
        return Err(HashProblem::Corruption(what));
    }
    Ok(opened)
}

/// Classifies an error of the external store. If the external store does not answer, the object is not corrupt.
fn backend(error: &StoreError) -> HashProblem {
    match error {
        StoreError::Backend { why, .. } if why.is_loss() => {
            HashProblem::Corruption(error.to_string())
        }
        error => HashProblem::Unknown(error.to_string()),
    }
}

/// Returns the hash of an object. Fails if the object's length differs from the sealed length, or its hash from the known hash. The
/// function does not fetch an external object: if the store confirms that the file is unchanged, the result is the known hash.
fn hashed(
    parts: &ExecutorParts,
    object: ObjectId,
    sum: &ObjectChecksum,
    cold: bool,
    pace: &mut ScrubPace<'_>,
) -> Result<Option<Hash>, HashProblem> {
    if let Some(vouched) = parts.store.vouch(object) {
        return match vouched {
            Ok(()) => Ok(sum.hash),
            Err(error) => Err(backend(&error)),
        };
    }
    let opened = opened(parts, object, sum, cold)?;
    let (hash, length) = hash(opened.bytes.as_ref(), pace)?;
    if length != sum.size {
        let what = format!("has {length} bytes, and {} were sealed", sum.size);
        return Err(HashProblem::Corruption(what));
    }
    match sum.hash {
        Some(was) if was != hash => Err(HashProblem::Corruption(CHANGED.into())),
        _ => Ok(Some(hash)),
    }
}

/// Compares an object with its sealed content, or hashes the object for the first time. Stores the result.
pub(crate) fn check(
    parts: &ExecutorParts,
    object: ObjectId,
    cold: bool,
    pace: &mut ScrubPace<'_>,
) -> Result<ScrubResult, ScrubError> {
    let kept = || parts.db.read(|db| records::sum(db, object));
    for _ in 0..LOOKS_MAX {
        let Some(sum) = kept()? else {
            return Ok(ScrubResult::Unknown);
        };
        // The second attempt excludes transient errors of the device.
        let found = hashed(parts, object, &sum, cold, pace);
        let found = match found {
            Err(HashProblem::Corruption(_)) => hashed(parts, object, &sum, cold, pace),
            found => found,
        };
        // The object may have been removed or recreated during the check.
        if kept()?.as_ref() != Some(&sum) {
            continue;
        }
        return match (found, sum) {
            (Err(HashProblem::Stopped), _) => Ok(ScrubResult::Stopped),
            (Err(HashProblem::Unknown(why)), _) => Err(ScrubError::Read(object, why)),
            (Err(HashProblem::Corruption(what)), sum) => match sum.corruption {
                Some(known) if what == MISSING => Ok(ScrubResult::Corrupt(known)),
                _ => {
                    set_aside(parts, object, &what)?;
                    Ok(ScrubResult::Corrupt(what))
                }
            },
            (Ok(hash), sum) => {
                keep(parts, object, &sum, hash)?;
                Ok(ScrubResult::Good(sum.size))
            }
        };
    }
    Ok(ScrubResult::Stopped)
}

/// Records that an object has its sealed content, with this hash.
fn keep(
    parts: &ExecutorParts,
    object: ObjectId,
    sum: &ObjectChecksum,
    hash: Option<Hash>,
) -> Result<(), DbError> {
    let repaired = sum.corruption.is_some();
    if !repaired && (sum.hash.is_some() || hash.is_none()) {
        return Ok(());
    }
    // The change does not ride along: a node that fetches the object asks for the hash next.
    parts.db.write_blocking(false, move |db| {
        if let Some(hash) = hash {
            records::set_hash(db, object, &hash)?;
        }
        if repaired {
            records::set_corruption(db, object, None)?;
        }
        Ok(())
    })?;
    if repaired {
        tracing::info!(%object, "a corrupt object has its sealed content again");
        forget_corrupt(parts, object);
    }
    Ok(())
}

/// Removes the file that was set aside for a corrupt object, after the object was recreated.
pub(crate) fn forget_corrupt(parts: &ExecutorParts, object: ObjectId) {
    if let Err(error) = parts.store.forget_corrupt(object) {
        tracing::warn!(%error, %object, "the set-aside bytes of an object can't be removed");
    }
}

/// Handles a corrupt object: records the corruption, sets the object's file aside, and then reports the object to the server.
fn set_aside(parts: &ExecutorParts, object: ObjectId, what: &str) -> Result<(), DbError> {
    let text = what.to_owned();
    let mark = move |db: &rusqlite::Connection| records::set_corruption(db, object, Some(&text));
    if !parts.db.write_blocking(false, mark)? {
        return Ok(());
    }
    let node = parts.node;
    if what == MISSING {
        // A node that was killed while it removed the object gets here, too.
        tracing::warn!(%node, "object {object} {what}: the server logs an error if a file has it");
    } else {
        tracing::error!(%node, "object {object} {what}: it is corrupt, and is not read any more");
    }
    if let Err(error) = parts.store.set_aside(object) {
        tracing::error!(%error, %object, "a corrupt object can't be set aside");
    }
    let corrupt = vec![(object, what.to_owned())];
    parts.reports.send(damage_report(corrupt));
    Ok(())
}

fn damage_report(corrupt: Vec<(ObjectId, String)>) -> Message {
    let objects = corrupt.into_iter().map(|(object, what)| v1::CorruptObject {
        object: object.0,
        what,
    });
    Message::Corrupt(v1::CorruptObjects {
        objects: objects.collect(),
    })
}

/// Returns the reports of all corrupt objects, for a server that the node has just reached.
///
/// # Errors
/// If the database can't be read.
pub(crate) fn all_corrupt(db: &crate::db::Db) -> Result<Vec<Message>, DbError> {
    let mut messages = Vec::new();
    let mut last = None;
    loop {
        let page = db.read(|db| records::corrupt(db, last, REPORTED_MAX))?;
        let Some(&(object, _)) = page.last() else {
            return Ok(messages);
        };
        last = Some(object);
        messages.push(damage_report(page));
    }
}

/// Returns the human-readable corruption of an object that could not be opened. `None` if the node has no record of the object or can open
/// the object. The function does not read the bytes.
pub(crate) fn look(parts: &ExecutorParts, object: ObjectId) -> Option<String> {
    let sum = parts.db.read(|db| records::sum(db, object)).ok()??;
    if sum.corruption.is_some() {
        return sum.corruption;
    }
    let Err(HashProblem::Corruption(what)) = opened(parts, object, &sum, false) else {
        return None;
    };
    if let Err(error) = set_aside(parts, object, &what) {
        tracing::warn!(%error, %object, "the corruption of an object can't be recorded yet");
    }
    Some(what)
}

/// Returns whether an object has this BLAKE3 hash, so that its replica can be verified. If the stored hash is another hash, either the
/// object or the replica is corrupt, so the function reads the object.
pub(crate) fn confirm(
    parts: &ExecutorParts,
    object: ObjectId,
    theirs: &Hash,
    cancelled: &dyn Fn() -> bool,
) -> Result<bool, ScrubError> {
    if has_hash(parts, object, theirs)? {
        return Ok(true);
    }
    let found = compute(parts, object, cancelled)?;
    Ok(matches!(found, ScrubResult::Good(_)) && has_hash(parts, object, theirs)?)
}

/// Returns whether the stored hash of an object equals `hash`.
pub(crate) fn has_hash(
    parts: &ExecutorParts,
    object: ObjectId,
    theirs: &Hash,
) -> Result<bool, DbError> {
    let sum = parts.db.read(|db| records::sum(db, object))?;
    Ok(sum.is_some_and(|sum| sum.corruption.is_none() && sum.hash == Some(*theirs)))
}

/// Reads an object, compares it with its sealed content, and stores its hash. Fetches an external object that was never hashed.
pub(crate) fn compute(
    parts: &ExecutorParts,
    object: ObjectId,
    cancelled: &dyn Fn() -> bool,
) -> Result<ScrubResult, ScrubError> {
    let mut pace = ScrubPace::at_once(cancelled);
    let sum = parts.db.read(|db| records::sum(db, object))?;
    let unread = sum.filter(|sum| sum.corruption.is_none() && sum.hash.is_none());
    if let Some(sum) = unread
        && matches!(parts.store.vouch(object), Some(Ok(())))
    {
        let read = opened(parts, object, &sum, false)
            .and_then(|opened| hash(opened.bytes.as_ref(), &mut pace));
        let (hash, length) = match read {
            Ok(hashed) => hashed,
            Err(HashProblem::Stopped) => return Ok(ScrubResult::Stopped),
            // The corruption is examined below, on the next call.
            Err(HashProblem::Corruption(why) | HashProblem::Unknown(why)) => {
                return Err(ScrubError::Read(object, why));
            }
        };
        if length == sum.size {
            let keep = move |db: &rusqlite::Connection| records::set_hash(db, object, &hash);
            parts.db.write_blocking(false, keep)?;
        }
    }
    check(parts, object, false, &mut pace)
}

/// Checks objects that are marked as corrupt and whose file exists. Such an object exists if the node was killed before it set the file
/// aside or after it recreated the object, or if an administrator has restored the file.
pub(crate) fn settle(parts: &ExecutorParts) -> Result<(), DbError> {
    let mut last = None;
    loop {
        let page = parts
            .db
            .read(|db| records::corrupt(db, last, REPORTED_MAX))?;
        let Some(&(object, _)) = page.last() else {
            return Ok(());
        };
        last = Some(object);
        for (object, _) in page {
            if parts.store.stat(object).is_err() {
                continue;
            }
            match check(parts, object, false, &mut ScrubPace::at_once(&never)) {
                Err(ScrubError::Read(..)) | Ok(_) => {}
                Err(ScrubError::Db(error)) => return Err(error),
            }
        }
    }
}

/// Marks objects in the memory for intermediate files as corrupt that were lost when the host restarted.
pub(crate) fn mark_lost_memory(parts: &ExecutorParts) -> Result<(), DbError> {
    let lost = parts.db.read(records::in_memory)?;
    for object in lost {
        if parts.store.stat(object).is_err() {
            look(parts, object);
        }
    }
    Ok(())
}

/// Executes a label that verifies objects.
pub(crate) fn verify(
    parts: &ExecutorParts,
    live: &Live,
    labels: &NodeLabels,
    idle: bool,
    objects: &[ObjectId],
) -> LabelEffects {
    let mut outcome = failed(
        live.start,
        FailureKind::Cancelled,
        "the label was aborted".into(),
    );
    outcome.start = live.start;
    outcome.kernel_start = live.start;
    let cancelled = || live.control.is_cancelled();
    let mut pace = ScrubPace::new(idle.then(|| (labels, parts.rate())), &cancelled);
    let mut ended = Ok(Vec::new());
    for &object in objects {
        let corrupt = match check(parts, object, true, &mut pace) {
            Ok(ScrubResult::Good(bytes)) => {
                outcome.read_bytes = outcome.read_bytes.saturating_add(bytes);
                continue;
            }
            Ok(ScrubResult::Corrupt(what)) => what,
            // The server knows whether the object should be on this node.
            Ok(ScrubResult::Unknown) if parts.store.stat(object).is_err() => MISSING.to_owned(),
            Ok(ScrubResult::Unknown) => continue,
            Ok(ScrubResult::Stopped) => {
                ended = outcome.result.clone();
                break;
            }
            Err(error) => {
                let message = error.to_string();
                ended = Err(crate::task::failure(FailureKind::Device, message));
                break;
            }
        };
        outcome.corrupt.push(Corrupt {
            object,
            what: corrupt,
        });
    }
    outcome.result = ended;
    outcome.end = now();
    LabelEffects {
        label: Some(Arc::clone(&live.label)),
        ..LabelEffects::without_effect(outcome)
    }
}

/// Lowers the scheduling priority of the current thread.
pub(crate) fn lower_priority() {
    // A failure does no harm.
    let _ = rustix::process::setpriority_process(None, NICE);
}

/// Hashes objects soon after their seal, until the node stops.
pub(crate) fn hash_continuously(parts: &ExecutorParts, labels: &NodeLabels) {
    lower_priority();
    let mut written = parts.counters.written_bytes();
    let kept = Arc::default();
    let mut more = false;
    while !labels.pause(if more { Duration::ZERO } else { PERIOD }) {
        // Writers of many files have priority, too.
        let before = std::mem::replace(&mut written, parts.counters.written_bytes());
        if !more && before != written {
            continue;
        }
        let mut pace = ScrubPace::new(Some((labels, parts.rate())), &never);
        more = match hash_some(parts, &kept, &mut pace) {
            Ok(more) => more,
            Err(error) => {
                tracing::warn!(%error, "objects can't be hashed now");
                false
            }
        };
    }
}

/// Hashed objects whose hashes wait for a commit.
type HashedObjects = Arc<Mutex<BTreeSet<ObjectId>>>;

/// Hashes the next objects that have no hash. Returns whether more objects without a hash may exist. A hash needs no commit of its own,
/// since a restarted node hashes the object again.
fn hash_some(
    parts: &ExecutorParts,
    kept: &HashedObjects,
    pace: &mut ScrubPace<'_>,
) -> Result<bool, ScrubError> {
    let mut objects = parts.db.read(|db| records::unhashed(db, BATCH_MAX))?;
    let full = objects.len() >= BATCH_MAX as usize;
    objects.retain(|object| !kept.lock().contains(object));
    let mut hashes = Vec::with_capacity(objects.len());
    for &object in &objects {
        let Some(sum) = parts.db.read(|db| records::sum(db, object))? else {
            continue;
        };
        match hashed(parts, object, &sum, false, pace) {
            Ok(hash) => hashes.extend(hash.map(|hash| (object, hash))),
            Err(HashProblem::Stopped) => break,
            // A second check confirms the corruption before it is reported.
            Err(HashProblem::Corruption(_)) => drop(check(parts, object, false, pace)?),
            Err(HashProblem::Unknown(why)) => return Err(ScrubError::Read(object, why)),
        }
    }
    let hashed: Vec<ObjectId> = hashes.iter().map(|(object, _)| *object).collect();
    let keep = move |db: &rusqlite::Connection| {
        for (object, hash) in &hashes {
            records::set_hash(db, *object, hash)?;
        }
        Ok(())
    };
    if full {
        parts.db.write_blocking(false, keep)?;
    } else if !hashed.is_empty() {
        kept.lock().extend(&hashed);
        let kept = Arc::clone(kept);
        // If the hashes can't be stored, the objects are hashed again.
        parts.db.ride(false, keep, move |_| {
            kept.lock().retain(|object| !hashed.contains(object));
        });
    }
    Ok(full)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrub_does_not_report_lack_of_resources_as_corruption() {
        let of = |errno| HashProblem::of(&std::io::Error::from_raw_os_error(errno));
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EAGAIN] {
            assert!(matches!(of(errno), HashProblem::Unknown(_)), "{errno}");
        }
        for errno in [libc::EIO, libc::EACCES, libc::EISDIR, libc::ENOENT] {
            assert!(matches!(of(errno), HashProblem::Corruption(_)), "{errno}");
        }
        let taken = std::io::ErrorKind::ResourceBusy.into();
        assert!(matches!(HashProblem::of(&taken), HashProblem::Unknown(_)));
    }
}
