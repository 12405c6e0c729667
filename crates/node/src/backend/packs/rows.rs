//! Rows of packs, their chunks and the manifests of files, in the node's database. The functions use only the given connection.
//!
//! The **live** bytes of a pack are the bytes of its used chunks and of the parts of manifests in it. Counts change in the same transaction
//! as the counted rows. Rows of chunks and packs are deleted only while the caller holds the packer's lock, so that the packer can rely on
//! its queries.

use super::super::StoreFile;
use super::super::rows::{placed, size as unsigned};
use super::format::{ChunkSpot, Frame, Hash, ManifestPart};
use rusqlite::{Connection, Error, OptionalExtension, Result, Row, params};
use std::collections::{HashMap, HashSet};
use tidemill_model::id::ObjectId;

/// Number of a pack in this database.
pub(super) type PackId = i64;

/// State of a pack that is being written. If the process ends or the write fails, the pack is unused.
const BEGUN: u8 = 0;
/// State of a pack that the external store holds.
const STORED: u8 = 1;
/// State of a pack that is to be removed from the external store.
const DELETED: u8 = 2;

/// Value of the column for removed objects: the object was not completed.
const UNFINISHED: u8 = 2;

/// Size in bytes below which a pack is small.
const SMALL_BYTES: u64 = 1 << 20;
/// Number of small packs at which they are merged.
const SMALL_MAX: usize = 32;
/// Maximum number of uncompressed bytes that one batch rewrites.
const REWRITE_BYTES_MAX: u64 = 64 << 20;
/// Maximum live bytes of a small pack, so that one batch can rewrite all packs of a merge.
const SMALL_LIVE: u64 = REWRITE_BYTES_MAX / SMALL_MAX as u64;
/// Maximum number of rows per query.
const SOME: u32 = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChunkLocation {
    pub(super) pack: PackId,
    pub(super) placed: StoreFile,
    pub(super) spot: ChunkSpot,
    /// Whether a read at this location returned bytes that differ from the chunk.
    pub(super) bad: bool,
}

/// Part of a manifest that is stored with a pack.
#[derive(Clone, Debug)]
pub(super) struct NewPart {
    pub(super) part: ManifestPart,
    pub(super) encoded: Vec<u8>,
    /// Whether the part was in another pack before.
    pub(super) moved: bool,
    /// Whether this part completes the manifest of the object.
    pub(super) last: bool,
}

/// Pack that the external store now holds, with its chunks and parts.
#[derive(Debug)]
pub(super) struct NotedPack {
    pub(super) id: PackId,
    pub(super) placed: StoreFile,
    pub(super) chunks: Vec<(Hash, ChunkSpot)>,
    pub(super) parts: Vec<NewPart>,
}

fn signed(number: u64) -> i64 {
    number.cast_signed()
}

fn spot(row: &Row<'_>, from: usize) -> Result<ChunkSpot> {
    Ok(ChunkSpot {
        frame: Frame {
            at: unsigned(row, from)?,
            stored: row.get(from + 1)?,
            plain: row.get(from + 2)?,
        },
        at: row.get(from + 3)?,
        size: row.get(from + 4)?,
    })
}

/// Returns the error for a row that does not have the form in which this module writes rows.
fn malformed(error: super::format::Malformed) -> Error {
    Error::FromSqlConversionFailure(0, rusqlite::types::Type::Blob, Box::new(error))
}

/// Changes of the live bytes of packs, to be written together.
#[derive(Debug, Default)]
struct LiveChanges(HashMap<PackId, i64>);

impl LiveChanges {
    fn add(&mut self, pack: PackId, bytes: i64) {
        *self.0.entry(pack).or_default() += bytes;
    }

    /// Writes the changes to the database. `since_s` is the time (in seconds) from which an unused pack is kept for a while.
    fn make(self, db: &Connection, since_s: i64) -> Result<()> {
        let sql = "UPDATE pack SET live = live + ?2, since = CASE WHEN ?2 > 0 THEN 0 ELSE max(since, ?3) END WHERE id = ?1";
        let mut update = db.prepare_cached(sql)?;
        for (pack, bytes) in self.0 {
            update.execute(params![pack, bytes, since_s])?;
        }
        Ok(())
    }
}

/// Records that a pack is about to be written.
pub(super) fn begin(db: &Connection, path: &str, now_s: i64) -> Result<PackId> {
    let sql = "INSERT INTO pack (path, state, size, tag, checked, total, live, since)
                   VALUES (?1, ?2, 0, '', 0, 0, 0, ?3)";
    db.prepare_cached(sql)?
        .execute(params![path, BEGUN, now_s])?;
    Ok(db.last_insert_rowid())
}

/// Returns the location of a chunk; `None` if no pack has the chunk.
pub(super) fn find(db: &Connection, hash: &Hash) -> Result<Option<ChunkLocation>> {
    let sql = "SELECT chunk.pack, path, pack.size, tag, checked, frame, stored, plain, at, chunk.size, bad
                   FROM chunk JOIN pack ON pack.id = chunk.pack WHERE hash = ?1";
    let found = |row: &Row<'_>| {
        Ok(ChunkLocation {
            pack: row.get(0)?,
            placed: placed(row, 1)?,
            spot: spot(row, 5)?,
            bad: row.get(10)?,
        })
    };
    db.prepare_cached(sql)?.query_row([hash], found).optional()
}

/// Records that a read of a chunk returned wrong bytes, so that the next object with this chunk uploads the chunk again.
pub(super) fn mark_bad(db: &Connection, hash: &Hash, at: (PackId, ChunkSpot)) -> Result<()> {
    let sql = "UPDATE chunk SET bad = 1 WHERE hash = ?1 AND pack = ?2 AND frame = ?3";
    let (pack, spot) = at;
    db.prepare_cached(sql)?
        .execute(params![hash, pack, signed(spot.frame.at)])?;
    Ok(())
}

/// Records that the external store holds a pack, and which objects are complete with it. Fails and changes nothing if a chunk is in no
/// pack.
pub(super) fn note(db: &Connection, noted: &NotedPack) -> Result<()> {
    let sizes = noted.chunks.iter().map(|(_, spot)| u64::from(spot.size));
    let parts = noted.parts.iter().map(|part| part.encoded.len() as u64);
    let total: u64 = sizes.chain(parts).sum();
    let sql =
        "UPDATE pack SET state = ?2, size = ?3, tag = ?4, checked = ?5, total = ?6 WHERE id = ?1";
    let at = &noted.placed;
    db.prepare_cached(sql)?.execute(params![
        noted.id,
        STORED,
        signed(at.size),
        at.tag,
        at.checked_by_store,
        signed(total)
    ])?;
    let mut changes = LiveChanges::default();
    for (hash, spot) in &noted.chunks {
        put_chunk(db, noted.id, (hash, spot), &mut changes)?;
    }
    for part in &noted.parts {
        match part.moved {
            true => move_part(db, noted.id, part, &mut changes)?,
            false => put_part(db, noted.id, part, &mut changes)?,
        }
    }
    changes.make(db, 0)
}

/// Records that a chunk is in a new pack instead of its former pack.
fn put_chunk(
    db: &Connection,
    pack: PackId,
    (hash, spot): (&Hash, &ChunkSpot),
    changes: &mut LiveChanges,
) -> Result<()> {
    let before = db
        .prepare_cached("SELECT pack, size FROM chunk WHERE hash = ?1 AND count > 0")?
        .query_row([hash], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
        })
        .optional()?;
    if let Some((before, size)) = before {
        changes.add(before, -size);
        changes.add(pack, i64::from(spot.size));
    }
    let sql = "INSERT INTO chunk (hash, pack, frame, stored, plain, at, size, count, bad)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0, 0)
                   ON CONFLICT (hash) DO UPDATE SET pack = ?2, frame = ?3, stored = ?4, plain = ?5, at = ?6, size = ?7, bad = 0";
    db.prepare_cached(sql)?.execute(params![
        hash,
        pack,
        signed(spot.frame.at),
        spot.frame.stored,
        spot.frame.plain,
        spot.at,
        spot.size
    ])?;
    Ok(())
}

/// Changes the use counts of the chunks of a part by `by`. Fails if one of the chunks is in no pack.
fn count(db: &Connection, part: &ManifestPart, by: i64, changes: &mut LiveChanges) -> Result<()> {
    let sql = "UPDATE chunk SET count = count + ?2 WHERE hash = ?1 RETURNING count, pack, size";
    let mut update = db.prepare_cached(sql)?;
    for (hash, size) in &part.chunks {
        let counted = |row: &Row<'_>| {
            let size_there: u32 = row.get(2)?;
            Ok((row.get::<_, i64>(0)?, row.get(1)?, size_there))
        };
        let (count, pack, there) = update.query_row(params![hash, by], counted)?;
        if there != *size {
            return Err(malformed(super::format::Malformed(
                "a chunk has another length",
            )));
        }
        match (by > 0, count) {
            (true, 1) => changes.add(pack, i64::from(there)),
            (false, 0) => changes.add(pack, -i64::from(there)),
            _ => {}
        }
    }
    Ok(())
}

fn length(encoded: &[u8]) -> i64 {
    i64::try_from(encoded.len()).unwrap_or(i64::MAX)
}

fn put_part(db: &Connection, pack: PackId, new: &NewPart, changes: &mut LiveChanges) -> Result<()> {
    let part = &new.part;
    count(db, part, 1, changes)?;
    changes.add(pack, length(&new.encoded));
    db.prepare_cached("INSERT INTO manifest (object, at, pack, part) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![
            signed(part.object),
            signed(part.at),
            pack,
            new.encoded
        ])?;
    let sql =
        "INSERT OR REPLACE INTO backend (object, path, size, tag, checked, stub, deleted, packed)
                   VALUES (?1, ?2, ?3, '', 0, 0, ?4, 1)";
    db.prepare_cached(sql)?.execute(params![
        signed(part.object),
        part.name,
        signed(part.size),
        if new.last { 0 } else { UNFINISHED }
    ])?;
    Ok(())
}

/// Records that a part was moved to another pack, unless its object was removed.
fn move_part(
    db: &Connection,
    pack: PackId,
    new: &NewPart,
    changes: &mut LiveChanges,
) -> Result<()> {
    let key = (signed(new.part.object), signed(new.part.at));
    let before = db
        .prepare_cached("SELECT pack FROM manifest WHERE object = ?1 AND at = ?2")?
        .query_row(key, |row| row.get(0))
        .optional()?;
    if let Some(before) = before {
        changes.add(before, -length(&new.encoded));
        changes.add(pack, length(&new.encoded));
        db.prepare_cached("UPDATE manifest SET pack = ?3 WHERE object = ?1 AND at = ?2")?
            .execute(params![key.0, key.1, pack])?;
    }
    Ok(())
}

/// Returns whether the database has a part of a manifest for an object.
pub(super) fn has_parts(db: &Connection, object: ObjectId) -> Result<bool> {
    db.prepare_cached("SELECT EXISTS (SELECT 1 FROM manifest WHERE object = ?1)")?
        .query_row([signed(object.0)], |row| row.get(0))
}

/// Deletes one part of an object's manifest. Returns whether a part existed. `since_s`: see [`LiveChanges::make`].
pub(super) fn release(db: &Connection, object: ObjectId, since_s: i64) -> Result<bool> {
    let sql =
        "DELETE FROM manifest WHERE rowid = (SELECT rowid FROM manifest WHERE object = ?1 LIMIT 1)
                   RETURNING pack, part";
    let deleted = db
        .prepare_cached(sql)?
        .query_row([signed(object.0)], |row| {
            Ok((row.get(0)?, row.get::<_, Vec<u8>>(1)?))
        })
        .optional()?;
    let Some((pack, encoded)) = deleted else {
        return Ok(false);
    };
    let part = ManifestPart::decoded(&encoded).map_err(malformed)?;
    let mut changes = LiveChanges::default();
    count(db, &part, -1, &mut changes)?;
    changes.add(pack, -length(&encoded));
    changes.make(db, since_s)?;
    Ok(true)
}

/// Deletes some parts of the manifests of objects that were removed or not completed.
pub(super) fn release_deleted(db: &Connection, now_s: i64) -> Result<()> {
    let mut left = SOME;
    for (object, was_whole) in deleted_objects(db)? {
        let since_s = if was_whole { 0 } else { now_s };
        while left > 0 && release(db, object, since_s)? {
            left -= 1;
        }
        if has_parts(db, object)? {
            break;
        }
        super::super::rows::removed(db, object)?;
    }
    Ok(())
}

/// Returns some objects that were removed or not completed, each with whether it was complete.
pub(super) fn deleted_objects(db: &Connection) -> Result<Vec<(ObjectId, bool)>> {
    let sql = "SELECT object, deleted FROM backend WHERE deleted > 0 AND packed = 1 LIMIT ?1";
    db.prepare_cached(sql)?
        .query_map([SOME], |row| {
            let deleted: u8 = row.get(1)?;
            Ok((ObjectId(unsigned(row, 0)?), deleted != UNFINISHED))
        })?
        .collect()
}

/// Returns the parts of an object's manifest that contain bytes between `from` and `end`.
pub(super) fn parts(
    db: &Connection,
    object: ObjectId,
    from: u64,
    end: u64,
) -> Result<Vec<ManifestPart>> {
    let sql = "SELECT part FROM manifest WHERE object = ?1 AND at < ?3
                   AND at >= (SELECT max(at) FROM manifest WHERE object = ?1 AND at <= ?2) ORDER BY at";
    let bounds = (signed(object.0), signed(from), signed(end));
    let encoded: Result<Vec<Vec<u8>>> = db
        .prepare_cached(sql)?
        .query_map(bounds, |row| row.get(0))?
        .collect();
    let decoded = |encoded: Vec<u8>| ManifestPart::decoded(&encoded).map_err(malformed);
    encoded?.into_iter().map(decoded).collect()
}

/// Returns the total size in bytes of all packs.
pub(super) fn bytes(db: &Connection) -> Result<u64> {
    let sql = "SELECT coalesce(sum(size), 0) FROM pack WHERE state != ?1";
    db.prepare_cached(sql)?
        .query_row([BEGUN], |row| unsigned(row, 0))
}

/// Returns whether [`retire_dead`] would mark any pack.
pub(super) fn has_dead(db: &Connection, before_s: i64) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM pack WHERE state = 0)
                   OR EXISTS (SELECT 1 FROM pack WHERE state = 1 AND live = 0 AND since < ?1)";
    db.prepare_cached(sql)?
        .query_row([before_s], |row| row.get(0))
}

/// Marks packs of interrupted writes, and packs unused since `before_s`, for removal. The caller holds the packer's lock.
pub(super) fn retire_dead(db: &Connection, before_s: i64) -> Result<()> {
    db.prepare_cached("UPDATE pack SET state = 2 WHERE state = 0")?
        .execute([])?;
    let sql = "SELECT id FROM pack WHERE state = 1 AND live = 0 AND since < ?1 LIMIT ?2";
    let dead: Result<Vec<PackId>> = db
        .prepare_cached(sql)?
        .query_map(params![before_s, SOME], |row| row.get(0))?
        .collect();
    dead?.into_iter().try_for_each(|pack| retire(db, pack))
}

/// Marks a pack for removal, unless a part or a chunk of the pack is used. The caller holds the packer's lock.
pub(super) fn retire(db: &Connection, pack: PackId) -> Result<()> {
    let sql = "SELECT EXISTS (SELECT 1 FROM chunk WHERE pack = ?1 AND count > 0)
                   OR EXISTS (SELECT 1 FROM manifest WHERE pack = ?1)";
    let needed: bool = db
        .prepare_cached(sql)?
        .query_row([pack], |row| row.get(0))?;
    if needed {
        return Ok(());
    }
    db.prepare_cached("DELETE FROM chunk WHERE pack = ?1")?
        .execute([pack])?;
    db.prepare_cached("UPDATE pack SET state = ?2 WHERE id = ?1")?
        .execute(params![pack, DELETED])?;
    Ok(())
}

/// Returns some packs that are to be removed from the external store.
pub(super) fn deleted_packs(db: &Connection) -> Result<Vec<(PackId, StoreFile)>> {
    db.prepare_cached("SELECT id, path, size, tag, checked FROM pack WHERE state = 2 LIMIT ?1")?
        .query_map([SOME], |row| Ok((row.get(0)?, placed(row, 1)?)))?
        .collect()
}

/// Records that a pack was removed from the external store.
pub(super) fn removed(db: &Connection, pack: PackId) -> Result<()> {
    db.prepare_cached("DELETE FROM pack WHERE id = ?1 AND state = ?2")?
        .execute(params![pack, DELETED])?;
    Ok(())
}

/// Returns the packs that are to be rewritten, except packs in `but`: packs with mostly unused bytes, or many small packs.
pub(super) fn sparse(db: &Connection, but: &HashSet<PackId>) -> Result<Vec<PackId>> {
    let some = |sql: &str, bounds: &[u64]| -> Result<Vec<(PackId, u64)>> {
        let bounds = bounds.iter().copied().map(signed);
        db.prepare_cached(sql)?
            .query_map(rusqlite::params_from_iter(bounds), |row| {
                Ok((row.get(0)?, unsigned(row, 1)?))
            })?
            .filter(|found| found.as_ref().map_or(true, |(pack, _)| !but.contains(pack)))
            .take(SOME as usize)
            .collect()
    };
    // The query must repeat the condition of the partial index, or SQLite would not use the index.
    let sparse = "SELECT id, live FROM pack INDEXED BY pack_sparse
                      WHERE state = 1 AND live > 0 AND total > live * 2";
    let small =
        "SELECT id, live FROM pack WHERE state = 1 AND size < ?1 AND live > 0 AND live <= ?2";
    let mut found = some(sparse, &[])?;
    if found.is_empty() {
        found = some(small, &[SMALL_BYTES, SMALL_LIVE])?;
        if found.len() < SMALL_MAX {
            found.clear();
        }
    }
    let mut bytes = 0_u64;
    let fits = |(_, live): &(PackId, u64)| {
        bytes = bytes.saturating_add(*live);
        bytes <= REWRITE_BYTES_MAX || bytes == *live
    };
    Ok(found
        .into_iter()
        .take_while(fits)
        .map(|(pack, _)| pack)
        .collect())
}

/// Used content of a pack: its chunks in their order, and its parts of manifests.
#[derive(Debug)]
pub(super) struct Needed {
    pub(super) placed: StoreFile,
    pub(super) chunks: Vec<(Hash, ChunkSpot)>,
    pub(super) parts: Vec<Vec<u8>>,
}

pub(super) fn needed(db: &Connection, pack: PackId) -> Result<Needed> {
    let placed = db
        .prepare_cached("SELECT path, size, tag, checked FROM pack WHERE id = ?1")?
        .query_row([pack], |row| placed(row, 0))?;
    let sql = "SELECT hash, frame, stored, plain, at, size FROM chunk WHERE pack = ?1 AND count > 0 ORDER BY frame, at";
    let chunks: Result<_> = db
        .prepare_cached(sql)?
        .query_map([pack], |row| Ok((row.get(0)?, spot(row, 1)?)))?
        .collect();
    let parts: Result<_> = db
        .prepare_cached("SELECT part FROM manifest WHERE pack = ?1 ORDER BY object, at")?
        .query_map([pack], |row| row.get(0))?
        .collect();
    Ok(Needed {
        placed,
        chunks: chunks?,
        parts: parts?,
    })
}
