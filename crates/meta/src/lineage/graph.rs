//! Lineage in the database: the objects and tasks that a walk reaches, and the recorded facts about them. This module only reads.
//!
//! The module reads the tables `version`, `task`, `task_input` and `task_output`. Their rows remain when files are renamed, rewritten or
//! removed. A walk is one recursive query of any size; a few more queries read the rows of the objects and tasks in the walk.

use crate::Connection;
use crate::Fault;
use crate::jobs::spec::{StoredShare, StoredTask};
use crate::json::json_list;
use crate::query::{rows, unsigned};
use crate::rules::input_deletion;
use rusqlite::{OptionalExtension, Row, params};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_lang::job::MERGE;
use tidemill_model::display::escaped;
use tidemill_model::id::TaskId;
use tidemill_wire::v1;

/// Maximum number of objects in one walk.
pub(super) const OBJECTS_MAX: usize = 100_000;

/// Maximum number of tasks with reused results that are followed from one task to the original run.
const REUSE_HOPS_MAX: usize = 1000;

/// Direction of a walk through lineage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkDirection {
    /// From an object to the inputs from which it was made.
    Up,
    /// From an object to the objects that were made from it.
    Down,
}

/// Objects and tasks that a walk has reached.
#[derive(Debug, Default)]
pub struct Walked {
    pub objects: BTreeSet<u64>,
    pub tasks: BTreeSet<u64>,
    /// Reason why the walk is incomplete; `None` for a complete walk.
    pub cut: Option<String>,
}

impl Walked {
    pub(super) fn add(&mut self, more: Self) {
        self.objects.extend(more.objects);
        self.tasks.extend(more.tasks);
        self.cut = self.cut.take().or(more.cut);
    }
}

// The tables are in the order of the walk, which `CROSS JOIN` keeps: each table is read by its key.
const UP: &str = "FROM walk CROSS JOIN version ON version.object = walk.object AND version.task != 0 \
                  CROSS JOIN task_input AS next ON next.task = version.task";
const DOWN: &str = "FROM walk CROSS JOIN task_input ON task_input.object = walk.object \
                    CROSS JOIN task_output AS next ON next.task = task_input.task";
const MADE: &str = "SELECT DISTINCT version.task FROM json_each(?1) AS met \
                    CROSS JOIN version ON version.object = met.value WHERE version.task != 0";
const READ: &str = "SELECT DISTINCT task_input.task FROM json_each(?1) AS met \
                    CROSS JOIN task_input ON task_input.object = met.value";

/// Walks from versions and tasks over at most `depth` tasks, or without a limit if `depth` is 0. A task in `start` counts as the first.
pub(super) fn walk_from(
    db: &Connection,
    way: WalkDirection,
    start: &Walked,
    depth: u32,
) -> Result<Walked, Fault> {
    let mut walked = walk(db, way, &start.objects, depth)?;
    if !start.tasks.is_empty() && depth != 1 {
        let table = match way {
            WalkDirection::Up => "task_input",
            WalkDirection::Down => "task_output",
        };
        let ends = named(db, table, &json_list(start.tasks.iter().copied()))?;
        let ends = ends.into_values().flatten().map(|end| end.object).collect();
        walked.add(walk(db, way, &ends, depth.saturating_sub(1))?);
    }
    Ok(walked)
}

/// Walks from objects over at most `depth` tasks, or without a limit if `depth` is 0.
pub fn walk(
    db: &Connection,
    way: WalkDirection,
    from: &BTreeSet<u64>,
    depth: u32,
) -> Result<Walked, Fault> {
    let (onward, tasks) = match way {
        WalkDirection::Up => (UP, MADE),
        WalkDirection::Down => (DOWN, READ),
    };
    // Each object appears once; with a depth, once for each depth.
    let sql = if depth == 0 {
        format!(
            "WITH RECURSIVE walk(object) AS (SELECT value FROM json_each(?1) UNION SELECT next.object {onward} LIMIT ?2) \
             SELECT object, 0 FROM walk WHERE ?3 = 0"
        )
    } else {
        format!(
            "WITH RECURSIVE walk(object, depth) AS (SELECT value, 0 FROM json_each(?1) UNION \
             SELECT next.object, depth + 1 {onward} WHERE depth < ?3 LIMIT ?2) \
             SELECT object, min(depth) FROM walk GROUP BY object"
        )
    };
    let limit = OBJECTS_MAX as u64 + 1;
    let from = json_list(from.iter().copied());
    let row = params![from, limit.cast_signed(), depth];
    let mut met: Vec<_> = rows(db, &sql, row, |row| {
        Ok((unsigned(row, 0)?, row.get::<_, u32>(1)?))
    })?;
    let cut_objects = met.len() > OBJECTS_MAX;
    met.truncate(OBJECTS_MAX);
    let inner = met.iter().filter(|(_, at)| depth == 0 || *at < depth);
    let edge = met.iter().filter(|(_, at)| depth != 0 && *at == depth);
    let found = |objects: &mut dyn Iterator<Item = u64>| -> Result<BTreeSet<u64>, Fault> {
        rows(db, tasks, [json_list(objects)], |row| unsigned(row, 0))
    };
    let tasks = found(&mut inner.map(|(object, _)| *object))?;
    let beyond = found(&mut edge.map(|(object, _)| *object))?;
    let cut = if cut_objects {
        Some(format!(
            "more than {OBJECTS_MAX} versions: the rest is left out; ask with a depth, or for a version in between"
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

/// Returns the records of versions, in the order of their ids, without the versions' present paths. A record may be incomplete if a node
/// was lost before the database was recovered.
pub(super) fn versions(
    db: &Connection,
    objects: &BTreeSet<u64>,
) -> Result<Vec<v1::Version>, Fault> {
    let sql = "SELECT version.object, version.path, size, ino, version.version, uid, sealed_at, \
               iif(node >= 0, node, coalesce((SELECT part.node FROM part \
               WHERE part.object = version.object AND seq = 0), 0)), task, \
               coalesce(same.first, 0), coalesce(content.hash, '') FROM json_each(?1) AS met \
               CROSS JOIN version ON version.object = met.value LEFT JOIN content AS same ON same.object = version.object \
               LEFT JOIN content ON content.object = coalesce(same.first, version.object)";
    let wanted = json_list(objects.iter().copied());
    let mut annotations = annotations(db, &wanted)?;
    let mut statement = db.sql.prepare_cached(sql)?;
    let rows = statement.query_map([&wanted], |row| {
        let object = unsigned(row, 0)?;
        let same_as = unsigned(row, 9)?;
        Ok(v1::Version {
            object,
            same_as: if same_as == object { 0 } else { same_as },
            hash: row.get(10)?,
            annotations: annotations.remove(&object).unwrap_or_default(),
            path: escaped(&row.get::<_, Vec<u8>>(1)?),
            size: unsigned(row, 2)?,
            ino: unsigned(row, 3)?,
            version: unsigned(row, 4)?,
            uid: row.get(5)?,
            sealed_at: row.get(6)?,
            node: row.get(7)?,
            task: unsigned(row, 8)?,
            ..v1::Version::default()
        })
    })?;
    let mut versions = rows.collect::<Result<Vec<_>, _>>()?;
    for version in &mut versions {
        version.dropped = input_deletion::reported(db, version.object)?;
    }
    Ok(versions)
}

/// SQL condition: the attributes of an inode belong to its current version, and did not change while the next version was written.
const SHARED: &str = "(inode.writing = 0 OR NOT EXISTS \
                      (SELECT 1 FROM annotation AS own WHERE own.object = inode.object AND own.name = x''))";

/// Returns the attributes that users have set on versions, present or former, without the attributes that the cluster reads.
fn annotations(
    db: &Connection,
    objects: &str,
) -> Result<BTreeMap<u64, Vec<v1::Annotation>>, Fault> {
    let sql = format!(
        "SELECT met.value, xattr.name, xattr.value FROM json_each(?1) AS met \
         CROSS JOIN version ON version.object = met.value \
         CROSS JOIN inode ON inode.ino = version.ino AND inode.object = version.object \
         CROSS JOIN xattr ON xattr.ino = inode.ino WHERE {SHARED} \
         UNION ALL SELECT met.value, annotation.name, annotation.value FROM json_each(?1) AS met \
         CROSS JOIN annotation ON annotation.object = met.value \
         CROSS JOIN version ON version.object = met.value \
         LEFT JOIN inode ON inode.ino = version.ino AND inode.object = version.object \
         WHERE inode.ino IS NULL OR NOT {SHARED}"
    );
    let mut statement = db.sql.prepare_cached(&sql)?;
    let mut rows = statement.query([objects])?;
    let mut annotations: BTreeMap<u64, Vec<_>> = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let name = String::from_utf8_lossy(&row.get::<_, Vec<u8>>(1)?).into_owned();
        let Some(name) = name.strip_prefix("user.") else {
            continue;
        };
        if !name.starts_with("tidemill.") {
            let of = annotations.entry(unsigned(row, 0)?).or_default();
            of.push(v1::Annotation {
                name: name.to_owned(),
                value: row.get(2)?,
            });
        }
    }
    Ok(annotations)
}

/// Returns the versions with an attribute of this name, either now or while they were the current version.
pub(super) fn annotated(db: &Connection, name: &str) -> Result<BTreeSet<u64>, Fault> {
    let sql = "SELECT inode.object FROM xattr JOIN inode ON inode.ino = xattr.ino \
               WHERE xattr.name = ?1 AND inode.object != 0 \
               UNION SELECT object FROM annotation WHERE name = ?1";
    let name = format!("user.{name}").into_bytes();
    rows(db, sql, [name], |row| unsigned(row, 0))
}

/// Set of tasks that a search of lineage covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SearchedTasks {
    #[default]
    All,
    Job(u64),
    Task(u64),
}

/// Filter for successful tasks: by user, time, and a word in the task's recorded specification.
#[derive(Debug, Default)]
pub(super) struct LineageFilter<'a> {
    pub(super) among: SearchedTasks,
    pub(super) uid: Option<u32>,
    pub(super) word: &'a str,
    /// Range of start times, in nanoseconds since the Unix epoch; 0 means no limit.
    pub(super) since: i64,
    pub(super) until: i64,
}

/// Returns the tasks that match the filter, the newest first. The start of a task with a reused result is the start of the original task;
/// this search ignores that start.
pub(super) fn tasks(
    db: &Connection,
    wanted: &LineageFilter<'_>,
    max: usize,
) -> Result<Vec<u64>, Fault> {
    let (which, id) = match wanted.among {
        SearchedTasks::All => ("?1 = 0", 0),
        SearchedTasks::Job(job) => ("task.job = ?1", job),
        SearchedTasks::Task(task) => ("task.task = ?1", task),
    };
    let sql = format!(
        "SELECT task.task FROM task JOIN job ON job.job = task.job WHERE {which} AND task.state = ?2 \
         AND (?3 IS NULL OR job.uid = ?3) AND instr(task.spec, ?4) > 0 \
         AND (task.reused != 0 OR (task.start >= ?5 AND (?6 = 0 OR task.start < ?6))) \
         ORDER BY task.task DESC LIMIT ?7"
    );
    let row = params![
        id.cast_signed(),
        i32::from(v1::State::Done),
        wanted.uid,
        wanted.word,
        wanted.since,
        wanted.until,
        i64::try_from(max).unwrap_or(i64::MAX),
    ];
    rows(db, &sql, row, |row| unsigned(row, 0))
}

/// Returns the versions of a file, and all versions that were sealed under the file's path.
pub fn versions_of(db: &Connection, ino: u64, path: &[u8]) -> Result<BTreeSet<u64>, Fault> {
    let sql = "SELECT object FROM version WHERE ino = ?1 UNION SELECT object FROM version WHERE path = ?2 LIMIT ?3";
    let row = params![
        ino.cast_signed(),
        path,
        i64::try_from(OBJECTS_MAX).unwrap_or(i64::MAX)
    ];
    rows(db, sql, row, |row| unsigned(row, 0))
}

/// Fills the node, start and duration of the original run into the record of a task with a reused result.
fn resolve_reuse(db: &Connection, run: &mut v1::Run) -> Result<(), Fault> {
    run.reused_task = follow_reuse(db, run.reused_task, |row| {
        (run.kernel_hash, run.node) = (row.get(1)?, row.get(2)?);
        (run.start, run.end) = (row.get(3)?, row.get(4)?);
        run.read_bytes = unsigned(row, 5)?;
        run.written_bytes = unsigned(row, 6)?;
        run.transferred_bytes = unsigned(row, 7)?;
        Ok(())
    })?
    .0;
    Ok(())
}

/// Returns the duration of the run that made the reused result of a task, in nanoseconds; 0 if the duration is unknown. `reused` is the
/// task whose result was reused; 0 if there is none.
pub fn original_ns(db: &Connection, reused: u64) -> Result<u64, Fault> {
    let mut ns = 0;
    let (_, known) = follow_reuse(db, reused, |row| {
        ns = row.get::<_, i64>(4)? - row.get::<_, i64>(8)?;
        Ok(())
    })?;
    Ok(if known {
        u64::try_from(ns).unwrap_or(0)
    } else {
        0
    })
}

/// Reads the record of each task from which a result was reused, up to the original run. Returns the last task, and whether its record
/// exists.
fn follow_reuse(
    db: &Connection,
    reused: u64,
    mut read: impl FnMut(&Row<'_>) -> rusqlite::Result<()>,
) -> Result<(u64, bool), Fault> {
    let sql = "SELECT reused, kernel_hash, node, start, end, read_bytes, written_bytes, transferred_bytes, kernel_start \
               FROM task WHERE task = ?1";
    let mut statement = db.sql.prepare_cached(sql)?;
    let (mut task, mut next) = (reused, reused);
    for _ in 0..REUSE_HOPS_MAX {
        if next == 0 {
            break;
        }
        task = next;
        let found = statement.query_row([task.cast_signed()], |row| {
            read(row)?;
            unsigned(row, 0)
        });
        match found.optional()? {
            Some(before) => next = before,
            None => return Ok((task, false)),
        }
    }
    Ok((task, true))
}

/// Sets the lineage record of a task whose task instances ran: the run extends from the first start to the last end of the task instances,
/// and its bytes are their sums.
fn total(db: &Connection, spec: &StoredTask, run: &mut v1::Run) -> Result<(), Fault> {
    let sql = "SELECT min(start), max(end), sum(read_bytes), sum(written_bytes), sum(transferred_bytes) \
               FROM json_each(?1) AS met CROSS JOIN task ON task.task = met.value";
    let mut statement = db.sql.prepare_cached(sql)?;
    let instances = json_list(spec.instances().into_iter().map(|task| task.0));
    statement.query_row([instances], |row| {
        (run.start, run.end) = (row.get(0)?, row.get(1)?);
        run.read_bytes = unsigned(row, 2)?;
        run.written_bytes = unsigned(row, 3)?;
        run.transferred_bytes = unsigned(row, 4)?;
        Ok(())
    })?;
    Ok(())
}

/// Returns the records of tasks, in the order of their ids.
pub(super) fn runs(db: &Connection, tasks: &BTreeSet<u64>) -> Result<Vec<v1::Run>, Fault> {
    let sql = "SELECT task.task, task.job, job.name, spec, kernel_hash, node, uid, start, end, read_bytes, \
               written_bytes, transferred_bytes, reused FROM json_each(?1) AS met \
               CROSS JOIN task ON task.task = met.value CROSS JOIN job ON job.job = task.job";
    let wanted = json_list(tasks.iter().copied());
    let mut inputs = named(db, "task_input", &wanted)?;
    let mut outputs = named(db, "task_output", &wanted)?;
    let mut statement = db.sql.prepare_cached(sql)?;
    let mut rows = statement.query([&wanted])?;
    let mut runs = Vec::with_capacity(tasks.len());
    while let Some(row) = rows.next()? {
        let task = unsigned(row, 0)?;
        let stored = StoredTask::parse(&row.get::<_, String>(3)?, TaskId(task))?;
        let joins = matches!(stored.share, StoredShare::Join | StoredShare::Merge);
        let joins = joins.then(|| stored.clone());
        let own = stored.args.into_iter().filter(|arg| *arg != MERGE);
        let mut run = v1::Run {
            task,
            job: unsigned(row, 1)?,
            job_name: row.get(2)?,
            name: stored.name,
            kernel: stored.kernel,
            kernel_hash: row.get(4)?,
            args: own.collect(),
            runtime_environment: tidemill_wire::convert::runtime_environment(
                &stored.runtime_environment,
            ),
            node: row.get(5)?,
            uid: row.get(6)?,
            start: row.get(7)?,
            end: row.get(8)?,
            read_bytes: unsigned(row, 9)?,
            written_bytes: unsigned(row, 10)?,
            transferred_bytes: unsigned(row, 11)?,
            reused_task: unsigned(row, 12)?,
            inputs: inputs.remove(&task).unwrap_or_default(),
            outputs: outputs.remove(&task).unwrap_or_default(),
            hidden: false,
        };
        if let Some(stored) = joins {
            total(db, &stored, &mut run)?;
        }
        runs.push(run);
    }
    for run in &mut runs {
        resolve_reuse(db, run)?;
    }
    Ok(runs)
}

/// Returns the inputs or outputs of tasks, in the order of the tasks' specifications.
fn named(
    db: &Connection,
    table: &str,
    tasks: &str,
) -> Result<BTreeMap<u64, Vec<v1::NamedObject>>, Fault> {
    let selection = match table {
        "task_input" => "selection",
        _ => "''",
    };
    let sql = format!(
        "SELECT task, name, object, {selection} FROM json_each(?1) AS met CROSS JOIN {table} ON {table}.task = met.value \
         ORDER BY task, seq"
    );
    let mut statement = db.sql.prepare_cached(&sql)?;
    let mut rows = statement.query([tasks])?;
    let mut named: BTreeMap<u64, Vec<_>> = BTreeMap::new();
    while let Some(row) = rows.next()? {
        named
            .entry(unsigned(row, 0)?)
            .or_default()
            .push(v1::NamedObject {
                name: row.get(1)?,
                object: unsigned(row, 2)?,
                selection: row.get(3)?,
            });
    }
    Ok(named)
}
