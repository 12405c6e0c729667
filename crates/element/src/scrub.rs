//! Scrubbing: sealed objects are hashed soon after their seal, and read against that hash now and then.
//!
//! An object that is not what was sealed is damaged: its row says so from then on, its file is set aside, so that nobody
//! reads it, and the server is told. What is in its place again and is what was sealed is no longer damaged.
//!
//! All this blocks. It is for threads that nobody waits for, but for [`look`].

use crate::db::DbError;
use crate::executor::Parts;
use crate::labels::{Labels, Live, failed};
use crate::outside::Failure;
use crate::records::{self, Hash, Sum};
use crate::store::{Opened, ReadAt, StoreError};
use crate::task::{Work, now};
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};
use tidemill_core::id::ObjectId;
use tidemill_core::label::{Damaged, FailureKind};
use tidemill_wire::v1::{self, from_element::Message};

/// Bytes read at once.
const PIECE_BYTES: usize = 1 << 20;
/// A piece counts at least so many: small objects cost time, too.
const PIECE_BYTES_MIN: u64 = 16 << 10;
/// What a device reads at once lies at a multiple of this in memory.
const ALIGNED_BYTES: usize = 4096;
/// How often it is looked whether there is something new to be hashed.
const PERIOD: Duration = Duration::from_secs(1);
/// Objects that are hashed before that is kept.
const BATCH_MAX: u32 = 256;
/// An element that is never idle is read from all the same, one piece in this time.
const BUSY_MAX: Duration = Duration::from_secs(10);
/// How often an element that is busy is asked whether it still is.
const BUSY_PAUSE: Duration = Duration::from_millis(100);
/// Times that an object is looked at which is another one each time.
const LOOKS_MAX: usize = 3;
/// Damaged objects that are told of at once.
const TOLD_MAX: u32 = 4096;
/// The threads here have what nobody else wants of the processors.
const NICE: i32 = 19;

/// What became of an object that was looked at.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It is what was sealed, and has so many bytes.
    Good(u64),
    /// Nothing is kept of it: it was removed, or never sealed.
    Unknown,
    /// It is not; what is wrong, for people.
    Damaged(String),
    /// It was to be read no further.
    Stopped,
}

/// Why it is not known whether an object is what was sealed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    /// The database.
    #[error(transparent)]
    Db(#[from] DbError),
    /// The system can't read it now.
    #[error("object {0} can't be read now: {1}")]
    Read(ObjectId, String),
}

/// Why an object can't be hashed.
enum Problem {
    /// It is not what was sealed.
    Damage(String),
    /// That can't be told now.
    Unknown(String),
    Stopped,
}

impl Problem {
    /// Why a file can't be opened or read. What is wrong with this process or this moment is no damage.
    fn of(error: &std::io::Error) -> Self {
        let damages = [
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
            Some(libc::ENOENT) => Self::Damage(MISSING.to_owned()),
            Some(errno) if damages.contains(&errno) => {
                Self::Damage(format!("can't be read: {error}"))
            }
            _ => Self::Unknown(error.to_string()),
        }
    }
}

/// How fast it goes on.
pub(crate) struct Pace<'a> {
    /// What comes first, if everything else does, and bytes per second then.
    idle: Option<(&'a Labels, u64)>,
    cancelled: &'a dyn Fn() -> bool,
    begun: Instant,
    /// That were read so far.
    bytes: u64,
    /// Where they are read to.
    memory: Vec<u8>,
}

impl<'a> Pace<'a> {
    /// Somebody waits for it.
    pub(crate) fn at_once(cancelled: &'a dyn Fn() -> bool) -> Self {
        Self::new(None, cancelled)
    }

    fn new(idle: Option<(&'a Labels, u64)>, cancelled: &'a dyn Fn() -> bool) -> Self {
        Self {
            idle,
            cancelled,
            begun: Instant::now(),
            bytes: 0,
            memory: vec![0; PIECE_BYTES + ALIGNED_BYTES],
        }
    }

    /// Waits until the next piece may be read; whether it is to be.
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

/// Hashes bytes up to their end.
fn hash(bytes: &dyn ReadAt, pace: &mut Pace<'_>) -> Result<(Hash, u64), Problem> {
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
    pace: &mut Pace<'_>,
) -> Result<(Hash, u64), Problem> {
    let mut hasher = blake3::Hasher::new();
    let mut length = 0;
    loop {
        if !pace.wait() {
            return Err(Problem::Stopped);
        }
        let read = bytes.read_at(length, piece);
        let count = read.map_err(|error| Problem::of(&error))?;
        hasher.update(&piece[..count]);
        length += count as u64;
        pace.bytes += PIECE_BYTES_MIN.max(count as u64);
        if count < piece.len() {
            return Ok((hasher.finalize().into(), length));
        }
    }
}

/// The bytes of an object that is as long as it was sealed.
pub(crate) fn read_whole(
    parts: &Parts,
    object: ObjectId,
    sum: &Sum,
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

/// What the bytes of a file hash to.
pub(crate) fn hash_file(path: &Path) -> std::io::Result<Hash> {
    let file = File::open(path)?;
    match hash(&file, &mut Pace::at_once(&never)) {
        Ok((hash, _)) => Ok(hash),
        Err(Problem::Damage(what) | Problem::Unknown(what)) => Err(std::io::Error::other(what)),
        Err(Problem::Stopped) => Err(std::io::ErrorKind::Interrupted.into()),
    }
}

fn never() -> bool {
    false
}

const CHANGED: &str = "has another content than what was sealed (BLAKE3)";
const MISSING: &str = "is missing";

/// Opens an object that is kept; what is wrong with it otherwise.
fn opened(parts: &Parts, object: ObjectId, sum: &Sum, cold: bool) -> Result<Opened, Problem> {
    let opened = if cold {
        parts.store.open_cold(object)
    } else {
        parts.store.open(object)
    };
    let opened = opened.map_err(|error| match error {
        StoreError::NotFound { .. } => Problem::Damage(MISSING.to_owned()),
        StoreError::Device { source, .. } => Problem::of(&source),
        StoreError::Outside { .. } => outside(&error),
        error => Problem::Unknown(error.to_string()),
    })?;
    if !opened.stat.sealed {
        return Err(Problem::Damage("is no sealed object any more".to_owned()));
    }
    if opened.stat.size != sum.size {
        let (is, was) = (opened.stat.size, sum.size);
        let what = format!("has {is} bytes, and {was} were sealed");
        return Err(Problem::Damage(what));
    }
    Ok(opened)
}

/// What is wrong with one that is outside: that the store can't be asked now is no damage.
fn outside(error: &StoreError) -> Problem {
    match error {
        StoreError::Outside {
            why: Failure::Missing | Failure::Changed,
            ..
        } => Problem::Damage(error.to_string()),
        error => Problem::Unknown(error.to_string()),
    }
}

/// What an object hashes to that is as long as it was sealed. Of one that is outside, which is not fetched for that, it is what was
/// known before: the store says whether it is what was put there.
fn hashed(
    parts: &Parts,
    object: ObjectId,
    sum: &Sum,
    cold: bool,
    pace: &mut Pace<'_>,
) -> Result<Option<Hash>, Problem> {
    if let Some(vouched) = parts.store.vouch(object) {
        return match vouched {
            Ok(()) => Ok(sum.hash),
            Err(error) => Err(outside(&error)),
        };
    }
    let opened = opened(parts, object, sum, cold)?;
    let (hash, length) = hash(opened.bytes.as_ref(), pace)?;
    if length != sum.size {
        let what = format!("has {length} bytes, and {} were sealed", sum.size);
        return Err(Problem::Damage(what));
    }
    match sum.hash {
        Some(was) if was != hash => Err(Problem::Damage(CHANGED.into())),
        _ => Ok(Some(hash)),
    }
}

/// Compares an object with what was sealed, or hashes it for the first time, and keeps what is found.
pub(crate) fn check(
    parts: &Parts,
    object: ObjectId,
    cold: bool,
    pace: &mut Pace<'_>,
) -> Result<Found, Trouble> {
    let kept = || parts.db.read(|db| records::sum(db, object));
    for _ in 0..LOOKS_MAX {
        let Some(sum) = kept()? else {
            return Ok(Found::Unknown);
        };
        // Once more, for what is wrong at first: a device that erred is not one that forgot.
        let found = hashed(parts, object, &sum, cold, pace);
        let found = match found {
            Err(Problem::Damage(_)) => hashed(parts, object, &sum, cold, pace),
            found => found,
        };
        // It may have been removed, or made anew, meanwhile.
        if kept()?.as_ref() != Some(&sum) {
            continue;
        }
        return match (found, sum) {
            (Err(Problem::Stopped), _) => Ok(Found::Stopped),
            (Err(Problem::Unknown(why)), _) => Err(Trouble::Read(object, why)),
            (Err(Problem::Damage(what)), sum) => match sum.damage {
                Some(known) if what == MISSING => Ok(Found::Damaged(known)),
                _ => {
                    set_aside(parts, object, &what)?;
                    Ok(Found::Damaged(what))
                }
            },
            (Ok(hash), sum) => {
                keep(parts, object, &sum, hash)?;
                Ok(Found::Good(sum.size))
            }
        };
    }
    Ok(Found::Stopped)
}

/// An object is what was sealed, with this hash.
fn keep(parts: &Parts, object: ObjectId, sum: &Sum, hash: Option<Hash>) -> Result<(), DbError> {
    let repaired = sum.damage.is_some();
    if !repaired && (sum.hash.is_some() || hash.is_none()) {
        return Ok(());
    }
    parts.db.write_blocking(false, move |db| {
        if let Some(hash) = hash {
            records::set_hash(db, object, &hash)?;
        }
        if repaired {
            records::set_damage(db, object, None)?;
        }
        Ok(())
    })?;
    if repaired {
        tracing::info!(%object, "a damaged object is what it was again");
        forget_damaged(parts, object);
    }
    Ok(())
}

/// A damaged object was made anew: what was set aside of it is of no use any more.
pub(crate) fn forget_damaged(parts: &Parts, object: ObjectId) {
    if let Err(error) = parts.store.forget_damaged(object) {
        tracing::warn!(%error, %object, "the set-aside bytes of an object can't be removed");
    }
}

/// An object is damaged: notes that, then nobody finds it any more, then the server is told.
fn set_aside(parts: &Parts, object: ObjectId, what: &str) -> Result<(), DbError> {
    let text = what.to_owned();
    let mark = move |db: &rusqlite::Connection| records::set_damage(db, object, Some(&text));
    if !parts.db.write_blocking(false, mark)? {
        return Ok(());
    }
    let element = parts.element;
    if what == MISSING {
        // An element that was killed while it removed the object finds it so, too.
        tracing::warn!(%element, "object {object} {what}: the server logs an error if a file has it");
    } else {
        tracing::error!(%element, "object {object} {what}: it is damaged, and is not read any more");
    }
    if let Err(error) = parts.store.set_aside(object) {
        tracing::error!(%error, %object, "a damaged object can't be set aside");
    }
    let damaged = vec![(object, what.to_owned())];
    parts.reports.send(told(damaged));
    Ok(())
}

/// Sets aside objects that are not what their writer sealed them as.
pub(crate) fn refuse(parts: &Parts, wrong: &[(ObjectId, String)]) {
    for (object, what) in wrong {
        if let Err(error) = set_aside(parts, *object, what) {
            tracing::warn!(%error, %object, "that an object {what} can't be kept yet");
        }
    }
}

fn told(damaged: Vec<(ObjectId, String)>) -> Message {
    let objects = damaged.into_iter().map(|(object, what)| v1::DamagedObject {
        object: object.0,
        what,
    });
    Message::Damaged(v1::DamagedObjects {
        objects: objects.collect(),
    })
}

/// All that a server has to be told that has just been reached.
///
/// # Errors
/// If the database can't be read.
pub(crate) fn all_damaged(db: &crate::db::Db) -> Result<Vec<Message>, DbError> {
    let mut messages = Vec::new();
    let mut last = None;
    loop {
        let page = db.read(|db| records::damaged(db, last, TOLD_MAX))?;
        let Some(&(object, _)) = page.last() else {
            return Ok(messages);
        };
        last = Some(object);
        messages.push(told(page));
    }
}

/// What is wrong with an object that could not be opened, for people, if it is one that is kept. Its bytes are not read.
pub(crate) fn look(parts: &Parts, object: ObjectId) -> Option<String> {
    let sum = parts.db.read(|db| records::sum(db, object)).ok()??;
    if sum.damage.is_some() {
        return sum.damage;
    }
    let Err(Problem::Damage(what)) = opened(parts, object, &sum, false) else {
        return None;
    };
    if let Err(error) = set_aside(parts, object, &what) {
        tracing::warn!(%error, %object, "that an object is damaged can't be kept yet");
    }
    Some(what)
}

/// Whether an object has this hash (BLAKE3), so that a copy of it can be compared. If it has another hash, the object or the
/// copy is damaged: the object is read.
pub(crate) fn confirm(
    parts: &Parts,
    object: ObjectId,
    theirs: &Hash,
    cancelled: &dyn Fn() -> bool,
) -> Result<bool, Trouble> {
    if has_hash(parts, object, theirs)? {
        return Ok(true);
    }
    let found = compute(parts, object, cancelled)?;
    Ok(matches!(found, Found::Good(_)) && has_hash(parts, object, theirs)?)
}

/// Whether it is known already that an object has this hash.
pub(crate) fn has_hash(parts: &Parts, object: ObjectId, theirs: &Hash) -> Result<bool, DbError> {
    let sum = parts.db.read(|db| records::sum(db, object))?;
    Ok(sum.is_some_and(|sum| sum.damage.is_none() && sum.hash == Some(*theirs)))
}

/// Reads an object, compares it with what was sealed, and keeps its hash. One that is outside and was not hashed before is
/// fetched for that.
pub(crate) fn compute(
    parts: &Parts,
    object: ObjectId,
    cancelled: &dyn Fn() -> bool,
) -> Result<Found, Trouble> {
    let mut pace = Pace::at_once(cancelled);
    let sum = parts.db.read(|db| records::sum(db, object))?;
    let unread = sum.filter(|sum| sum.damage.is_none() && sum.hash.is_none());
    if let Some(sum) = unread
        && matches!(parts.store.vouch(object), Some(Ok(())))
    {
        let read = opened(parts, object, &sum, false)
            .and_then(|opened| hash(opened.bytes.as_ref(), &mut pace));
        let (hash, length) = match read {
            Ok(hashed) => hashed,
            Err(Problem::Stopped) => return Ok(Found::Stopped),
            // Whether it is damaged is looked at below, when somebody asks again.
            Err(Problem::Damage(why) | Problem::Unknown(why)) => {
                return Err(Trouble::Read(object, why));
            }
        };
        if length == sum.size {
            let keep = move |db: &rusqlite::Connection| records::set_hash(db, object, &hash);
            parts.db.write_blocking(false, keep)?;
        }
    }
    check(parts, object, false, &mut pace)
}

/// Looks at what is marked as damaged and is in its place all the same: the element was killed before it was set aside, or
/// after it was made anew, or somebody has brought it back.
pub(crate) fn settle(parts: &Parts) -> Result<(), DbError> {
    let mut last = None;
    loop {
        let page = parts.db.read(|db| records::damaged(db, last, TOLD_MAX))?;
        let Some(&(object, _)) = page.last() else {
            return Ok(());
        };
        last = Some(object);
        for (object, _) in page {
            if parts.store.stat(object).is_err() {
                continue;
            }
            match check(parts, object, false, &mut Pace::at_once(&never)) {
                Err(Trouble::Read(..)) | Ok(_) => {}
                Err(Trouble::Db(error)) => return Err(error),
            }
        }
    }
}

/// What was in memory and is not any more went with the host: it is damaged.
pub(crate) fn settle_memory(parts: &Parts) -> Result<(), DbError> {
    let lost = parts.db.read(records::in_memory)?;
    for object in lost {
        if parts.store.stat(object).is_err() {
            look(parts, object);
        }
    }
    Ok(())
}

/// A label that compares objects.
pub(crate) fn verify(
    parts: &Parts,
    live: &Live,
    labels: &Labels,
    idle: bool,
    objects: &[ObjectId],
) -> Work {
    let mut outcome = failed(
        live.start,
        FailureKind::Cancelled,
        "the label was given up".into(),
    );
    outcome.start = live.start;
    outcome.kernel_start = live.start;
    let cancelled = || live.control.is_cancelled();
    let mut pace = Pace::new(idle.then(|| (labels, parts.rate())), &cancelled);
    let mut ended = Ok(Vec::new());
    for &object in objects {
        let damaged = match check(parts, object, true, &mut pace) {
            Ok(Found::Good(bytes)) => {
                outcome.read_bytes = outcome.read_bytes.saturating_add(bytes);
                continue;
            }
            Ok(Found::Damaged(what)) => what,
            // The server knows whether it should be here.
            Ok(Found::Unknown) if parts.store.stat(object).is_err() => MISSING.to_owned(),
            Ok(Found::Unknown) => continue,
            Ok(Found::Stopped) => {
                ended = outcome.result.clone();
                break;
            }
            Err(error) => {
                let message = error.to_string();
                ended = Err(crate::task::failure(FailureKind::Device, message));
                break;
            }
        };
        outcome.damaged.push(Damaged {
            object,
            what: damaged,
        });
    }
    outcome.result = ended;
    outcome.end = now();
    Work {
        label: Some(std::sync::Arc::clone(&live.label)),
        ..Work::without_effect(outcome)
    }
}

/// This thread takes nothing from others.
pub(crate) fn be_nice() {
    // It is only a wish.
    let _ = rustix::process::setpriority_process(None, NICE);
}

/// Hashes objects soon after they were sealed, until the element stops.
pub(crate) fn keep_hashing(parts: &Parts, labels: &Labels) {
    be_nice();
    let mut written = parts.counters.written_bytes();
    let mut more = false;
    while !labels.pause(if more { Duration::ZERO } else { PERIOD }) {
        // Who writes many files comes first, too.
        let before = std::mem::replace(&mut written, parts.counters.written_bytes());
        if !more && before != written {
            continue;
        }
        let mut pace = Pace::new(Some((labels, parts.rate())), &never);
        more = match hash_some(parts, &mut pace) {
            Ok(more) => more,
            Err(error) => {
                tracing::warn!(%error, "objects can't be hashed now");
                false
            }
        };
    }
}

/// Hashes the next objects that have no hash; whether there may be more.
fn hash_some(parts: &Parts, pace: &mut Pace<'_>) -> Result<bool, Trouble> {
    let objects = parts.db.read(|db| records::unhashed(db, BATCH_MAX))?;
    let mut hashes = Vec::with_capacity(objects.len());
    for &object in &objects {
        let Some(sum) = parts.db.read(|db| records::sum(db, object))? else {
            continue;
        };
        match hashed(parts, object, &sum, false, pace) {
            Ok(hash) => hashes.extend(hash.map(|hash| (object, hash))),
            Err(Problem::Stopped) => break,
            // It is looked at once more, and then told.
            Err(Problem::Damage(_)) => drop(check(parts, object, false, pace)?),
            Err(Problem::Unknown(why)) => return Err(Trouble::Read(object, why)),
        }
    }
    let full = objects.len() >= BATCH_MAX as usize;
    let keep = move |db: &rusqlite::Connection| {
        for (object, hash) in &hashes {
            records::set_hash(db, *object, hash)?;
        }
        Ok(())
    };
    parts.db.write_blocking(false, keep)?;
    Ok(full)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lack_of_resources_is_not_damage() {
        let of = |errno| Problem::of(&std::io::Error::from_raw_os_error(errno));
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EAGAIN] {
            assert!(matches!(of(errno), Problem::Unknown(_)), "{errno}");
        }
        for errno in [libc::EIO, libc::EACCES, libc::EISDIR, libc::ENOENT] {
            assert!(matches!(of(errno), Problem::Damage(_)), "{errno}");
        }
        let taken = std::io::ErrorKind::ResourceBusy.into();
        assert!(matches!(Problem::of(&taken), Problem::Unknown(_)));
    }
}
