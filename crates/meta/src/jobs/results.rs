//! Results that later tasks reuse, and the content hashes that find them.

use crate::Connection;
use crate::Fault;
use crate::query;
use rusqlite::params;
use tidemill_model::id::TaskId;

/// Maximum number of results of one shape that are examined.
const RESULTS_MAX: u32 = 8;

/// Hash that identifies a cached result, or that results of one shape have in common.
pub type ResultKey = [u8; blake3::OUT_LEN];

/// Hash by which cached results are searched.
#[derive(Clone, Copy, Debug)]
pub enum ResultSearch {
    /// Hash of all properties of the result.
    Key(ResultKey),
    /// Hash of the same properties, with the sizes of the data in place of its objects.
    Shape(ResultKey),
}

/// A task with a cached result.
#[derive(Debug)]
pub struct CachedTask {
    /// Last successful task with the key of the result; the outputs of this task can be reused.
    pub task: TaskId,
    /// Hash of the task's code.
    pub kernel_hash: String,
}

/// Stores the result of a task in the cache, or replaces the result with the same key.
pub fn put(
    db: &Connection,
    task: TaskId,
    key: &ResultKey,
    shape: Option<&ResultKey>,
) -> Result<(), Fault> {
    let shape = shape.map(ResultKey::as_slice);
    let sql = "INSERT OR REPLACE INTO result VALUES (?1, ?2, ?3)";
    let row = params![key.as_slice(), task.0.cast_signed(), shape];
    query::execute(db, sql, row)
}

/// Returns the newest cached results that a search matches.
pub fn find(db: &Connection, search: &ResultSearch) -> Result<Vec<CachedTask>, Fault> {
    let (column, value) = match search {
        ResultSearch::Key(key) => ("key", key),
        ResultSearch::Shape(shape) => ("shape", shape),
    };
    let sql = format!(
        "SELECT result.task, kernel_hash FROM result JOIN task ON task.task = result.task \
         WHERE {column} = ?1 ORDER BY result.task DESC LIMIT {RESULTS_MAX}"
    );
    query::rows(db, &sql, [value.as_slice()], |row| {
        Ok(CachedTask {
            task: TaskId(query::unsigned(row, 0)?),
            kernel_hash: row.get(1)?,
        })
    })
}

/// Returns the first object with the content of `object`.
pub fn first(db: &Connection, object: u64) -> Result<u64, Fault> {
    let sql = "SELECT first FROM content WHERE object = ?1 AND first IS NOT NULL";
    let found = query::find(db, sql, [object.cast_signed()], |row| row.get::<_, i64>(0))?;
    Ok(found.map_or(object, i64::cast_unsigned))
}

/// Records the first object with the content of `object`.
pub fn put_first(db: &Connection, object: u64, first: u64) -> Result<(), Fault> {
    let sql =
        "INSERT INTO content(object, first) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET first = ?2";
    query::execute(db, sql, [object, first].map(u64::cast_signed))
}

/// Returns the hash of an object's content, if the object was hashed.
pub fn content(db: &Connection, object: u64) -> Result<Option<String>, Fault> {
    let sql = "SELECT hash FROM content WHERE object = ?1 AND hash IS NOT NULL";
    query::find(db, sql, [object.cast_signed()], |row| row.get(0))
}

/// Stores the hash of an object, and the first object with the same content.
pub fn put_content(db: &Connection, object: u64, hash: &str) -> Result<(), Fault> {
    let first_before = first(db, object)?;
    if content(db, first_before)?.is_some() {
        return Ok(());
    }
    let sql = "SELECT min(object) FROM content WHERE hash = ?1";
    let mut statement = db.sql.prepare_cached(sql)?;
    let known: Option<i64> = statement.query_row([hash], |row| row.get(0))?;
    let row = params![first_before.cast_signed(), hash];
    let sql =
        "INSERT INTO content(object, hash) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET hash = ?2";
    query::execute(db, sql, row)?;
    match known {
        Some(known) if first_before == object => {
            put_first(db, object, first(db, known.cast_unsigned())?)
        }
        // Objects that are the first object of others keep that role; a search by shape compares the hashes.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema;

    #[test]
    fn result_cache_gives_objects_with_equal_hash_same_first_object() {
        let directory = tempfile::tempdir().unwrap();
        let db = schema::open_writer(&directory.path().join("server.db")).unwrap();
        let learn = |object, hash| put_content(&db, object, hash).unwrap();
        learn(5, "one");
        learn(3, "one");
        learn(9, "one");
        learn(8, "two");
        let firsts = |objects: [u64; 4]| objects.map(|object| first(&db, object).unwrap());
        assert_eq!(firsts([5, 3, 9, 8]), [5, 5, 5, 8]);
        // An object that reuses a result without a hash has the object of that result as its first object, and keeps it.
        put_first(&db, 11, 10).unwrap();
        learn(11, "one");
        assert_eq!(firsts([10, 11, 9, 8]), [10, 10, 5, 8]);
        assert_eq!(content(&db, 10).unwrap().as_deref(), Some("one"));
        learn(12, "one");
        assert_eq!(first(&db, 12).unwrap(), 5);
    }
}
