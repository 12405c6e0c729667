//! Jobs in the database: the server writes a job when it accepts the job, and reads unfinished jobs again after a restart.

use super::outbox;
use super::spec::{SPEC, StoredOrigin, StoredTask};
use super::{SubmittedJob, awaited_key};
use crate::names::Fault;
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::BTreeMap;
use tidemill_model::directory;
use tidemill_model::event::{JobSpec, Origin, OutputSpec, RecoveredState, TaskState};
use tidemill_model::id::{Inode, JobId, LabelId, NodeId, ObjectId, TaskId};
use tidemill_model::label::{Operation, Owner};
use tidemill_model::object::Placed;
use tidemill_wire::v1::State;

/// Name, origin and submission time of a job.
#[derive(Clone, Debug)]
pub(crate) struct Heading {
    pub(crate) name: String,
    pub(crate) source: String,
    pub(crate) workdir: String,
    pub(crate) script: String,
    /// Submission id of the job, if the client has sent one.
    pub(crate) submission_id: Option<String>,
    pub(crate) submitted: i64,
}

/// Returns the number that represents a job's state in the database.
pub(crate) fn state_number(state: State) -> i32 {
    state.into()
}

/// Returns the job that a user has submitted with this submission id.
pub(crate) fn known(
    db: &Connection,
    uid: u32,
    submission_id: Option<&str>,
) -> Result<Option<JobId>, Fault> {
    let Some(submission_id) = submission_id else {
        return Ok(None);
    };
    let sql = "SELECT job FROM job WHERE uid = ?1 AND submission_id = ?2";
    let mut job = db.prepare_cached(sql)?;
    let job = job.query_row(params![uid, submission_id], |row| row.get::<_, i64>(0));
    Ok(job.optional()?.map(|job| JobId(job.cast_unsigned())))
}

/// Writes an accepted job. The paths of awaited inputs in `accepted` have no owner yet; this function adds the job's owner.
pub(crate) fn insert(
    db: &Connection,
    heading: &Heading,
    accepted: &mut SubmittedJob,
) -> Result<(), Fault> {
    let spec = &mut accepted.spec;
    let (job, owner) = (spec.job.0.cast_signed(), spec.owner);
    let row = params![
        job,
        heading.name,
        heading.source,
        heading.workdir,
        owner.uid,
        owner.gid,
        json(&accepted.groups),
        spec.policy,
        state_number(State::Running),
        heading.submitted,
        heading.script,
        accepted.cache,
        accepted.replace,
        heading.submission_id,
    ];
    let sql = "INSERT INTO job(job, name, source, workdir, uid, gid, groups, policy, state, submitted, ended, script, \
               cache, replacing, submission_id) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, 0, ?11, ?12, ?13, ?14)";
    db.prepare_cached(sql)?.execute(row)?;
    let mut tasks = db.prepare_cached(
        "INSERT INTO task(task, job, spec, state, changed) VALUES (?1, ?2, ?3, ?4, 0)",
    )?;
    let mut awaited =
        db.prepare_cached("INSERT OR IGNORE INTO awaited(job, path, uid) VALUES (?1, ?2, ?3)")?;
    for (task, lifetime) in spec.tasks.iter_mut().zip(&accepted.lifetimes) {
        let stored = json(&StoredTask::new(task, *lifetime, &accepted.anchors));
        tasks.execute(params![
            task.task.0.cast_signed(),
            job,
            stored,
            state_number(State::Waiting)
        ])?;
        for input in task
            .inputs
            .iter_mut()
            .filter(|input| input.origin == Origin::Awaited)
        {
            awaited.execute(params![job, input.path, owner.uid])?;
            input.path = awaited_key(owner.uid, &input.path);
        }
    }
    Ok(())
}

/// Deletes labels of tasks that no longer wait for the labels: labels of jobs that have ended, and of superseded tries. Call this before
/// any job is resumed. A node that never received such a label never reports its outcome. If a node does report an outcome, the server
/// handles the report like that of an unwanted label.
pub(crate) fn forget_overtaken(db: &Connection) -> Result<(), Fault> {
    let sql = "DELETE FROM label WHERE task != 0 AND NOT EXISTS (SELECT 1 FROM task JOIN job ON job.job = task.job \
               WHERE task.task = label.task AND task.label = label.label AND job.state = ?1 \
               AND task.state IN (?2, ?3))";
    let states = [State::Running, State::Sent, State::Running].map(state_number);
    db.execute(sql, states)?;
    Ok(())
}

/// Returns all jobs in the database that have not ended.
pub(crate) fn unfinished(db: &Connection) -> Result<Vec<SubmittedJob>, Fault> {
    let sql = "SELECT job, uid, gid, groups, policy, cache, replacing FROM job WHERE state = ?1 ORDER BY job";
    let mut statement = db.prepare(sql)?;
    let rows = statement.query_map([state_number(State::Running)], |row| {
        let owner = Owner {
            uid: row.get(1)?,
            gid: row.get(2)?,
        };
        let job = JobId(row.get::<_, i64>(0)?.cast_unsigned());
        let spec = JobSpec {
            job,
            owner,
            policy: row.get(4)?,
            tasks: Vec::new(),
        };
        let accepted = SubmittedJob {
            spec,
            groups: Vec::new(),
            cache: row.get(5)?,
            replace: row.get(6)?,
            anchors: BTreeMap::new(),
            lifetimes: Vec::new(),
            files: BTreeMap::new(),
        };
        Ok((accepted, row.get::<_, String>(3)?))
    })?;
    let mut jobs = Vec::new();
    for row in rows {
        let (mut job, groups) = row?;
        job.groups = parse(&groups, "groups of job", job.spec.job.0)?;
        load_tasks(db, &mut job)?;
        jobs.push(job);
    }
    Ok(jobs)
}

fn load_tasks(db: &Connection, job: &mut SubmittedJob) -> Result<(), Fault> {
    let resolved = resolved_inputs(db, job.spec.job)?;
    let uid = job.spec.owner.uid;
    let mut statement = db
        .prepare("SELECT task, spec, state, label, tries FROM task WHERE job = ?1 ORDER BY task")?;
    let mut rows = statement.query([job.spec.job.0.cast_signed()])?;
    while let Some(row) = rows.next()? {
        let task = TaskId(row.get::<_, i64>(0)?.cast_unsigned());
        let text: String = row.get(1)?;
        let mut stored: StoredTask = parse(&text, SPEC, task.0)?;
        for input in &mut stored.inputs {
            if let (StoredOrigin::Awaited, Some(placed)) = (input.origin, resolved.get(&input.path))
            {
                let Placed { object, node, size } = *placed;
                input.origin = StoredOrigin::File {
                    object: object.0,
                    node: node.0,
                    size,
                };
            }
        }
        let label = LabelId(row.get::<_, i64>(3)?.cast_unsigned());
        let files = files(db, task)?;
        let done = outputs(&stored, &files);
        let ended = how_ended(db, done, row.get(2)?, label, row.get(4)?)?;
        if stored.has_directory() && matches!(ended, Some(RecoveredState::Done(_))) {
            job.files.insert(task, files);
        }
        job.anchors.append(&mut stored.anchors);
        let spec = stored.task_spec(task, uid, ended);
        let unknown = || Fault::Corrupt(format!("{SPEC} {task}: unknown kind of kernel"));
        job.spec.tasks.push(spec.ok_or_else(unknown)?);
        job.lifetimes.push(stored.lifetime());
    }
    Ok(())
}

fn how_ended(
    db: &Connection,
    done: Vec<Placed>,
    state: i32,
    label: LabelId,
    tries: u32,
) -> Result<Option<RecoveredState>, Fault> {
    Ok(match State::try_from(state).unwrap_or(State::Unspecified) {
        State::Done => Some(RecoveredState::Done(done)),
        State::Failed | State::Cancelled => Some(RecoveredState::Failed),
        State::Sent | State::Running => {
            outbox::find(db, label)?.map(|(node, sent)| RecoveredState::Sent {
                label,
                node,
                objects: match &sent.operation {
                    Operation::Analyse(analysis) => {
                        analysis.outputs.iter().map(|one| one.object).collect()
                    }
                    Operation::Copy { .. }
                    | Operation::Remove { .. }
                    | Operation::Verify { .. } => Vec::new(),
                },
                tries: tries.saturating_sub(1),
            })
        }
        _ => None,
    })
}

/// Returns the files that a successful task wrote, with their names in the task's private directory, and without paths.
pub(crate) fn files(db: &Connection, task: TaskId) -> Result<Vec<(OutputSpec, Placed)>, Fault> {
    let sql = "SELECT object, node, size, name, ino FROM task_output WHERE task = ?1 ORDER BY seq";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([task.0.cast_signed()], |row| {
        let output = OutputSpec {
            name: row.get(3)?,
            path: String::new(),
            part: false,
            memory: false,
            inode: Inode(row.get::<_, i64>(4)?.cast_unsigned()),
        };
        Ok((output, placed(row)?))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Returns the outputs of a task that has written these files; empty if the files do not match the task's outputs.
pub(crate) fn outputs(task: &StoredTask, files: &[(OutputSpec, Placed)]) -> Vec<Placed> {
    let names = files.iter().map(|(file, _)| file.name.as_str());
    let outputs = task.outputs.iter().map(|output| output.name.as_str());
    let owners = directory::outputs_of(outputs, names).unwrap_or_default();
    let mut all: Vec<Placed> = Vec::with_capacity(task.outputs.len());
    for (owner, (_, placed)) in owners.into_iter().zip(files) {
        match all.get_mut(owner) {
            Some(output) => output.size += placed.size,
            None if directory::is_directory(&task.outputs[owner].name) => all.push(Placed {
                // The object that stands for the directory precedes the object of its first file.
                object: ObjectId(placed.object.0 - 1),
                ..*placed
            }),
            None => all.push(*placed),
        }
    }
    all
}

/// Returns the number of the job that contains a task; 0 if the task is unknown.
pub(crate) fn job_of(db: &Connection, task: TaskId) -> Result<u64, Fault> {
    let mut statement = db.prepare_cached("SELECT job FROM task WHERE task = ?1")?;
    let mut rows = statement.query([task.0.cast_signed()])?;
    let Some(row) = rows.next()? else {
        return Ok(0);
    };
    Ok(row.get::<_, i64>(0)?.cast_unsigned())
}

fn placed(row: &rusqlite::Row<'_>) -> rusqlite::Result<Placed> {
    Ok(Placed {
        object: ObjectId(row.get::<_, i64>(0)?.cast_unsigned()),
        node: NodeId(row.get(1)?),
        size: row.get::<_, i64>(2)?.cast_unsigned(),
    })
}

/// Returns the files that a job waited for and that exist now, with the versions that the job reads.
pub(crate) fn resolved_inputs(
    db: &Connection,
    job: JobId,
) -> Result<BTreeMap<String, Placed>, Fault> {
    let sql = "SELECT object, node, size, path FROM awaited WHERE job = ?1 AND object != -1";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([job.0.cast_signed()], |row| Ok((row.get(3)?, placed(row)?)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Records the version of an awaited file that the jobs of a user will read.
pub(crate) fn resolve_awaited(
    db: &Connection,
    uid: u32,
    path: &str,
    placed: Placed,
) -> Result<(), Fault> {
    let sql = "UPDATE awaited SET object = ?3, node = ?4, size = ?5 WHERE uid = ?1 AND path = ?2 AND object = -1";
    let Placed { object, node, size } = placed;
    let row = params![
        uid,
        path,
        object.0.cast_signed(),
        node.0,
        size.cast_signed()
    ];
    db.prepare_cached(sql)?.execute(row)?;
    Ok(())
}

/// Returns the number that represents a task's state in the database.
pub(crate) fn task_state(state: TaskState) -> i32 {
    state_number(state.into())
}

/// Returns a value of numbers and names as JSON. The conversion of such values can't fail.
pub(crate) fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Parses JSON that [`json`] has written: the value `what` of the row with this id.
pub(crate) fn parse<T: serde::de::DeserializeOwned>(
    text: &str,
    what: &str,
    id: u64,
) -> Result<T, Fault> {
    serde_json::from_str(text).map_err(|error| Fault::Corrupt(format!("{what} {id}: {error}")))
}
