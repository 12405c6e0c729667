//! Lineage in the database: which objects and tasks a walk comes to, and what is known of them.
//!
//! Answered from the tables `version`, `task`, `task_input` and `task_output`, whose rows stay when files are
//! renamed, rewritten or removed. A walk is one recursive query, whatever it comes to; the rows of what it came to
//! are three more.

use super::fault::Fault;
use crate::jobs::spec::{SPEC, StoredTask};
use crate::jobs::store::parse;
use rusqlite::{Connection, Row, params};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_wire::v1;

/// Objects that one walk comes to at most.
pub(crate) const OBJECTS_MAX: usize = 100_000;

/// Which way a walk goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// To what an object was made from.
    Up,
    /// To what was made of it.
    Down,
}

/// What a walk came to.
#[derive(Debug, Default)]
pub(crate) struct Walked {
    pub(crate) objects: BTreeSet<u64>,
    pub(crate) tasks: BTreeSet<u64>,
    /// What was left out, if anything was.
    pub(crate) cut: Option<String>,
}

// The order of the tables is that of the walk, which `CROSS JOIN` keeps: each is looked into by its key.
const UP: &str = "FROM walk CROSS JOIN version ON version.object = walk.object AND version.task != 0 \
                  CROSS JOIN task_input AS next ON next.task = version.task";
const DOWN: &str = "FROM walk CROSS JOIN task_input ON task_input.object = walk.object \
                    CROSS JOIN task_output AS next ON next.task = task_input.task";
const MADE: &str = "SELECT DISTINCT version.task FROM json_each(?1) AS met \
                    CROSS JOIN version ON version.object = met.value WHERE version.task != 0";
const READ: &str = "SELECT DISTINCT task_input.task FROM json_each(?1) AS met \
                    CROSS JOIN task_input ON task_input.object = met.value";

/// Walks from an object, `depth` tasks far if that is not 0.
pub(crate) fn walk(db: &Connection, way: Way, from: u64, depth: u32) -> Result<Walked, Fault> {
    let (onward, tasks) = match way {
        Way::Up => (UP, MADE),
        Way::Down => (DOWN, READ),
    };
    // Each object once; where depth counts, once a depth.
    let sql = if depth == 0 {
        format!(
            "WITH RECURSIVE walk(object) AS (VALUES (?1) UNION SELECT next.object {onward} LIMIT ?2) \
             SELECT object, 0 FROM walk WHERE ?3 = 0"
        )
    } else {
        format!(
            "WITH RECURSIVE walk(object, depth) AS (VALUES (?1, 0) UNION \
             SELECT next.object, depth + 1 {onward} WHERE depth < ?3 LIMIT ?2) \
             SELECT object, min(depth) FROM walk GROUP BY object"
        )
    };
    let limit = OBJECTS_MAX as u64 + 1;
    let row = params![from.cast_signed(), limit.cast_signed(), depth];
    let mut statement = db.prepare_cached(&sql)?;
    let rows = statement.query_map(row, |row| Ok((long(row, 0)?, row.get::<_, u32>(1)?)))?;
    let mut met = rows.collect::<Result<Vec<_>, _>>()?;
    let cut_objects = met.len() > OBJECTS_MAX;
    met.truncate(OBJECTS_MAX);
    let inner = met.iter().filter(|(_, at)| depth == 0 || *at < depth);
    let edge = met.iter().filter(|(_, at)| depth != 0 && *at == depth);
    let found = |objects: &mut dyn Iterator<Item = u64>| -> Result<BTreeSet<u64>, Fault> {
        let mut statement = db.prepare_cached(tasks)?;
        let rows = statement.query_map([list(objects)], |row| long(row, 0))?;
        Ok(rows.collect::<Result<_, _>>()?)
    };
    let tasks = found(&mut inner.map(|(object, _)| *object))?;
    let beyond = found(&mut edge.map(|(object, _)| *object))?;
    let cut = if cut_objects {
        Some(format!(
            "more than {OBJECTS_MAX} versions: the rest is left out; ask with a depth, or for a version on the way"
        ))
    } else if beyond.is_subset(&tasks) {
        None
    } else {
        Some(format!("there is more beyond {depth} tasks"))
    };
    Ok(Walked {
        objects: met.into_iter().map(|(object, _)| object).collect(),
        tasks,
        cut,
    })
}

fn list(ids: &mut dyn Iterator<Item = u64>) -> String {
    let ids: Vec<i64> = ids.map(u64::cast_signed).collect();
    serde_json::to_string(&ids).unwrap_or_default()
}

fn long(row: &Row<'_>, at: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(at).map(i64::cast_unsigned)
}

/// What is known of versions, in the order of their ids, without today's paths. Not of all something is: an element
/// that was lost before a database was rebuilt has taken it along.
pub(crate) fn versions(
    db: &Connection,
    objects: &BTreeSet<u64>,
) -> Result<Vec<v1::Version>, Fault> {
    let sql = "SELECT object, version.path, size, ino, version.version, uid, sealed_at, element, task FROM json_each(?1) AS met \
               CROSS JOIN version ON version.object = met.value";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([list(&mut objects.iter().copied())], |row| {
        Ok(v1::Version {
            object: long(row, 0)?,
            path: String::from_utf8_lossy(&row.get::<_, Vec<u8>>(1)?).into_owned(),
            size: long(row, 2)?,
            ino: long(row, 3)?,
            version: long(row, 4)?,
            uid: row.get(5)?,
            sealed_at: row.get(6)?,
            element: row.get(7)?,
            task: long(row, 8)?,
            ..v1::Version::default()
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// What is known of tasks, in the order of their ids.
pub(crate) fn runs(db: &Connection, tasks: &BTreeSet<u64>) -> Result<Vec<v1::Run>, Fault> {
    let sql = "SELECT task.task, task.job, job.name, spec, kernel_hash, element, uid, start, end, read_bytes, \
               written_bytes, moved_bytes, reused FROM json_each(?1) AS met \
               CROSS JOIN task ON task.task = met.value CROSS JOIN job ON job.job = task.job";
    let wanted = list(&mut tasks.iter().copied());
    let mut inputs = named(db, "task_input", &wanted)?;
    let mut outputs = named(db, "task_output", &wanted)?;
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query([&wanted])?;
    let mut runs = Vec::with_capacity(tasks.len());
    while let Some(row) = rows.next()? {
        let task = long(row, 0)?;
        let stored: StoredTask = parse(&row.get::<_, String>(3)?, SPEC, task)?;
        runs.push(v1::Run {
            task,
            job: long(row, 1)?,
            job_name: row.get(2)?,
            name: stored.name,
            kernel: stored.kernel,
            kernel_hash: row.get(4)?,
            args: stored.args,
            element: row.get(5)?,
            uid: row.get(6)?,
            start: row.get(7)?,
            end: row.get(8)?,
            read_bytes: long(row, 9)?,
            written_bytes: long(row, 10)?,
            moved_bytes: long(row, 11)?,
            reused_task: long(row, 12)?,
            inputs: inputs.remove(&task).unwrap_or_default(),
            outputs: outputs.remove(&task).unwrap_or_default(),
            hidden: false,
        });
    }
    Ok(runs)
}

/// The inputs or outputs of tasks, in their order.
fn named(
    db: &Connection,
    table: &str,
    tasks: &str,
) -> Result<BTreeMap<u64, Vec<v1::NamedObject>>, Fault> {
    let sql = format!(
        "SELECT task, name, object FROM json_each(?1) AS met CROSS JOIN {table} ON {table}.task = met.value \
         ORDER BY task, seq"
    );
    let mut statement = db.prepare_cached(&sql)?;
    let mut rows = statement.query([tasks])?;
    let mut named: BTreeMap<u64, Vec<_>> = BTreeMap::new();
    while let Some(row) = rows.next()? {
        named
            .entry(long(row, 0)?)
            .or_default()
            .push(v1::NamedObject {
                name: row.get(1)?,
                object: long(row, 2)?,
            });
    }
    Ok(named)
}
