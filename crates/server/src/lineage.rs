//! Lineage: which task or writer made an object, from which exact inputs, and what was made of it.
//!
//! Answered from the tables `version`, `task`, `task_input` and `task_output`, whose rows stay when files
//! are renamed, rewritten or removed.

use crate::access::Access;
use crate::clock;
use crate::jobs::spec::StoredTask;
use crate::names::node::{Node, READ};
use crate::names::transaction::{Tx, path_of};
use crate::names::{Fault, SqliteNames};
use crate::namespace_service::refused;
use rusqlite::{Connection, OptionalExtension, Row};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidemill_wire::v1;
use tonic::{Request, Response, Status};

/// Objects in one answer.
const OBJECTS_MAX: usize = 100_000;

/// The gRPC service of lineage.
#[derive(Clone, Debug)]
pub(crate) struct LineageService {
    pub(crate) names: Arc<SqliteNames>,
    pub(crate) access: Arc<Access>,
}

#[tonic::async_trait]
impl v1::lineage_server::Lineage for LineageService {
    async fn query(
        &self,
        request: Request<v1::LineageRequest>,
    ) -> Result<Response<v1::LineageReply>, Status> {
        let caller = self
            .access
            .caller(&request, request.get_ref().credentials.as_ref())?;
        let question = request.into_inner();
        let names = self.names.clone();
        // A large graph takes a while to read.
        let answer = tokio::task::spawn_blocking(move || {
            names.database().read(|db| {
                let tx = Tx::new(db, names.shared(), &caller, 0, clock::now_ns());
                query(&tx, &question)
            })
        });
        let answer = answer.await.map_err(|_| refused(&Fault::Closed))?;
        Ok(Response::new(answer.map_err(|fault| refused(&fault))?))
    }
}

fn query(tx: &Tx<'_>, question: &v1::LineageRequest) -> Result<v1::LineageReply, Fault> {
    let object = if question.object == 0 {
        object_at(tx, &question.path)?
    } else {
        question.object
    };
    let first = version(tx.db, object)?.ok_or_else(|| {
        Fault::NotFound(format!(
            "object {object} has no lineage: it was never sealed"
        ))
    })?;
    check(tx, &first)?;
    let mut walk = Walk {
        db: tx.db,
        versions: BTreeMap::new(),
        runs: BTreeMap::new(),
    };
    walk.versions.insert(object, first);
    let depth = if question.depth == 0 {
        usize::MAX
    } else {
        question.depth as usize
    };
    if question.up {
        walk.go(object, depth, Walk::up)?;
    }
    if question.down {
        walk.go(object, depth, Walk::down)?;
    }
    Ok(v1::LineageReply {
        object,
        versions: walk.versions.into_values().collect(),
        runs: walk.runs.into_values().collect(),
    })
}

fn object_at(tx: &Tx<'_>, path: &[u8]) -> Result<u64, Fault> {
    let node = tx.resolve(path, true)?;
    tx.need(&node, READ, &String::from_utf8_lossy(path))?;
    if node.object == 0 {
        let path = String::from_utf8_lossy(path);
        return Err(Fault::NotFound(format!(
            "{path} has no lineage: it has no sealed version with bytes"
        )));
    }
    Ok(node.object)
}

/// Who may read a file may know where it comes from; of a file that is gone, its owner may.
fn check(tx: &Tx<'_>, version: &v1::Version) -> Result<(), Fault> {
    let what = format!("object {}", version.object);
    match Node::find(tx.db, version.ino)? {
        Some(node) => {
            tx.reach(node.ino)?;
            tx.need(&node, READ, &what)
        }
        None if tx.caller.uid == 0 || tx.caller.uid == version.uid => Ok(()),
        None => Err(Fault::Denied(what, tx.caller.uid)),
    }
}

struct Walk<'a> {
    db: &'a Connection,
    versions: BTreeMap<u64, v1::Version>,
    runs: BTreeMap<u64, v1::Run>,
}

impl Walk<'_> {
    /// Breadth first, one generation of tasks per step.
    fn go(
        &mut self,
        from: u64,
        depth: usize,
        step: fn(&mut Self, u64) -> Result<Vec<u64>, Fault>,
    ) -> Result<(), Fault> {
        let mut seen = BTreeSet::from([from]);
        let mut generation = vec![from];
        for _ in 0..depth {
            let mut next = Vec::new();
            for object in generation {
                for found in step(self, object)? {
                    if seen.insert(found) {
                        next.push(found);
                    }
                }
            }
            if next.is_empty() || seen.len() > OBJECTS_MAX {
                break;
            }
            generation = next;
        }
        Ok(())
    }

    /// What the task that made an object read.
    fn up(&mut self, object: u64) -> Result<Vec<u64>, Fault> {
        let task = self.versions.get(&object).map_or(0, |version| version.task);
        self.take_run(task)?;
        let inputs = self
            .runs
            .get(&task)
            .map(|run| run.inputs.clone())
            .unwrap_or_default();
        self.take(&inputs)
    }

    /// What tasks that read an object made.
    fn down(&mut self, object: u64) -> Result<Vec<u64>, Fault> {
        let mut statement = self.db.prepare_cached(
            "SELECT DISTINCT task FROM task_input WHERE object = ?1 ORDER BY task",
        )?;
        let tasks = statement.query_map([object.cast_signed()], |row| row.get::<_, i64>(0))?;
        let tasks = tasks.collect::<Result<Vec<_>, _>>()?;
        let mut made = Vec::new();
        for task in tasks.into_iter().map(i64::cast_unsigned) {
            self.take_run(task)?;
            let outputs = self
                .runs
                .get(&task)
                .map(|run| run.outputs.clone())
                .unwrap_or_default();
            made.extend(self.take(&outputs)?);
        }
        Ok(made)
    }

    fn take(&mut self, objects: &[v1::NamedObject]) -> Result<Vec<u64>, Fault> {
        for named in objects {
            if !self.versions.contains_key(&named.object)
                && let Some(found) = version(self.db, named.object)?
            {
                self.versions.insert(named.object, found);
            }
        }
        Ok(objects.iter().map(|named| named.object).collect())
    }

    fn take_run(&mut self, task: u64) -> Result<(), Fault> {
        if task != 0
            && !self.runs.contains_key(&task)
            && let Some(found) = run(self.db, task)?
        {
            self.runs.insert(task, found);
        }
        Ok(())
    }
}

fn long(row: &Row<'_>, at: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(at).map(i64::cast_unsigned)
}

fn version(db: &Connection, object: u64) -> Result<Option<v1::Version>, Fault> {
    let sql = "SELECT path, size, ino, version, uid, sealed_at, element, task FROM version WHERE object = ?1";
    let found = db
        .prepare_cached(sql)?
        .query_row([object.cast_signed()], |row| {
            Ok(v1::Version {
                object,
                path: String::from_utf8_lossy(&row.get::<_, Vec<u8>>(0)?).into_owned(),
                size: long(row, 1)?,
                ino: long(row, 2)?,
                version: long(row, 3)?,
                uid: row.get(4)?,
                sealed_at: row.get(5)?,
                element: row.get(6)?,
                task: long(row, 7)?,
                current_path: String::new(),
            })
        });
    let Some(mut version) = found.optional()? else {
        return Ok(None);
    };
    let node = Node::find(db, version.ino)?;
    if node.is_some_and(|node| node.object == object) {
        let path = path_of(db, version.ino)?.unwrap_or_default();
        version.current_path = String::from_utf8_lossy(&path).into_owned();
    }
    Ok(Some(version))
}

fn run(db: &Connection, task: u64) -> Result<Option<v1::Run>, Fault> {
    let sql = "SELECT task.job, job.name, spec, kernel_hash, element, uid, start, end, read_bytes, written_bytes, \
               moved_bytes, reused FROM task JOIN job ON job.job = task.job WHERE task = ?1";
    let found = db
        .prepare_cached(sql)?
        .query_row([task.cast_signed()], |row| {
            let stored: Option<StoredTask> = serde_json::from_str(&row.get::<_, String>(2)?).ok();
            let (name, kernel, args) = stored
                .map(|task| (task.name, task.kernel, task.args))
                .unwrap_or_default();
            Ok(v1::Run {
                task,
                job: long(row, 0)?,
                job_name: row.get(1)?,
                name,
                kernel,
                kernel_hash: row.get(3)?,
                args,
                element: row.get(4)?,
                uid: row.get(5)?,
                start: row.get(6)?,
                end: row.get(7)?,
                read_bytes: long(row, 8)?,
                written_bytes: long(row, 9)?,
                moved_bytes: long(row, 10)?,
                reused_task: long(row, 11)?,
                inputs: Vec::new(),
                outputs: Vec::new(),
            })
        });
    let Some(mut run) = found.optional()? else {
        return Ok(None);
    };
    run.inputs = named(
        db,
        "SELECT name, object FROM task_input WHERE task = ?1 ORDER BY seq",
        task,
    )?;
    run.outputs = named(
        db,
        "SELECT name, object FROM task_output WHERE task = ?1 ORDER BY seq",
        task,
    )?;
    Ok(Some(run))
}

fn named(db: &Connection, sql: &str, task: u64) -> Result<Vec<v1::NamedObject>, Fault> {
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([task.cast_signed()], |row| {
        Ok(v1::NamedObject {
            name: row.get(0)?,
            object: long(row, 1)?,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// What made an object, as JSON: the answer of the attribute `user.tidemill.lineage`.
pub(crate) fn summary(db: &Connection, object: u64) -> Result<String, Fault> {
    let Some(version) = version(db, object)? else {
        return Ok("null".into());
    };
    let run = if version.task == 0 {
        None
    } else {
        run(db, version.task)?
    };
    let list = |objects: &[v1::NamedObject]| -> Vec<serde_json::Value> {
        objects
            .iter()
            .map(|o| serde_json::json!({"name": o.name, "object": o.object}))
            .collect()
    };
    let run = run.map(|run| {
        serde_json::json!({
            "task": run.task, "job": run.job, "job_name": run.job_name, "name": run.name,
            "kernel": run.kernel, "kernel_hash": run.kernel_hash, "args": run.args,
            "element": run.element, "uid": run.uid, "start": run.start, "end": run.end,
            "reused_task": (run.reused_task != 0).then_some(run.reused_task),
            "inputs": list(&run.inputs), "outputs": list(&run.outputs),
        })
    });
    Ok(serde_json::json!({
        "object": version.object, "path": version.path, "size": version.size, "ino": version.ino,
        "version": version.version, "uid": version.uid, "sealed_at": version.sealed_at,
        "element": version.element, "run": run,
    })
    .to_string())
}
