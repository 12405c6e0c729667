//! Jobs in the database: the server writes a job when it accepts the job, and reads unfinished jobs again after a restart.

use super::SubmittedJob;
use std::collections::BTreeMap;
use tidemill_meta::jobs::data;
use tidemill_meta::jobs::records::{self, Heading, JobSettings, TaskRow};
use tidemill_meta::jobs::spec::{SPEC, StoredOrigin, StoredTask, awaited_key};
use tidemill_meta::jobs::{awaited, outbox};
use tidemill_meta::{Connection, Fault};
use tidemill_model::directory;
use tidemill_model::event::{InputSpec, JobSpec, Origin, OutputSpec, RecoveredState};
use tidemill_model::id::{LabelId, ObjectId};
use tidemill_model::label::Operation;
use tidemill_model::object::Placed;
use tidemill_wire::v1::State;

/// Writes an accepted job. The paths of awaited inputs in `accepted` have no owner yet; this function adds the job's owner.
pub(crate) fn insert(
    db: &Connection,
    heading: &Heading,
    accepted: &mut SubmittedJob,
) -> Result<(), Fault> {
    let spec = &mut accepted.spec;
    let settings = JobSettings {
        job: spec.job,
        owner: spec.owner,
        groups: accepted.groups.clone(),
        policy: spec.policy.clone(),
        cache: accepted.cache,
        replace: accepted.replace,
    };
    let tasks = spec.tasks.iter().zip(&accepted.lifetimes);
    let tasks = tasks.map(|(task, lifetime)| {
        let stored = StoredTask::new(task, *lifetime, &accepted.anchors);
        (task.task, stored)
    });
    records::insert(db, heading, &settings, tasks)?;
    let is_awaited = |input: &InputSpec| input.origin == Origin::Awaited;
    let uid = spec.owner.uid;
    let inputs = spec.tasks.iter().flat_map(|task| &task.inputs);
    let inputs = inputs.filter(|input| is_awaited(input));
    awaited::insert(db, spec.job, uid, inputs.map(|input| input.path.as_str()))?;
    let inputs = spec.tasks.iter_mut().flat_map(|task| &mut task.inputs);
    for input in inputs.filter(|input| is_awaited(input)) {
        input.path = awaited_key(uid, &input.path);
    }
    Ok(())
}

/// Returns all jobs in the database that have not ended.
pub(crate) fn unfinished(db: &Connection) -> Result<Vec<SubmittedJob>, Fault> {
    let jobs = records::unfinished(db)?;
    jobs.into_iter().map(|job| load(db, job)).collect()
}

fn load(db: &Connection, settings: JobSettings) -> Result<SubmittedJob, Fault> {
    let mut job = SubmittedJob {
        spec: JobSpec {
            job: settings.job,
            owner: settings.owner,
            policy: settings.policy,
            tasks: Vec::new(),
        },
        groups: settings.groups,
        cache: settings.cache,
        replace: settings.replace,
        anchors: BTreeMap::new(),
        lifetimes: Vec::new(),
        files: BTreeMap::new(),
    };
    let resolved = awaited::resolved_inputs(db, settings.job)?;
    for row in records::tasks(db, settings.job)? {
        load_task(db, &mut job, row, &resolved)?;
    }
    Ok(job)
}

fn load_task(
    db: &Connection,
    job: &mut SubmittedJob,
    row: TaskRow,
    resolved: &BTreeMap<String, Placed>,
) -> Result<(), Fault> {
    let (task, mut stored) = (row.task, row.spec);
    for input in &mut stored.inputs {
        if let (StoredOrigin::Awaited, Some(placed)) = (input.origin, resolved.get(&input.path)) {
            let Placed { object, node, size } = *placed;
            input.origin = StoredOrigin::File {
                object: object.0,
                node: node.0,
                size,
            };
        }
    }
    let files = data::output_files(db, task)?;
    let done = outputs(&stored, &files);
    let ended = how_ended(db, done, row.state, row.label, row.tries)?;
    if stored.has_directory() && matches!(ended, Some(RecoveredState::Done(_))) {
        job.files.insert(task, files);
    }
    job.anchors.append(&mut stored.anchors);
    let spec = stored.task_spec(task, job.spec.owner.uid, ended);
    let unknown = || Fault::Corrupt(format!("{SPEC} {task}: unknown kind of kernel"));
    job.spec.tasks.push(spec.ok_or_else(unknown)?);
    job.lifetimes.push(stored.lifetime());
    Ok(())
}

fn how_ended(
    db: &Connection,
    done: Vec<Placed>,
    state: State,
    label: LabelId,
    tries: u32,
) -> Result<Option<RecoveredState>, Fault> {
    Ok(match state {
        State::Done => Some(RecoveredState::Done(done)),
        State::Failed | State::Cancelled => Some(RecoveredState::Failed),
        State::Sent => outbox::find(db, label)?.map(|(node, sent)| RecoveredState::Sent {
            label,
            node,
            objects: match &sent.operation {
                Operation::Analyse(analysis) => {
                    analysis.outputs.iter().map(|one| one.object).collect()
                }
                Operation::Copy { .. } | Operation::Remove { .. } | Operation::Verify { .. } => {
                    Vec::new()
                }
            },
            tries: tries.saturating_sub(1),
        }),
        _ => None,
    })
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
