//! Lineage: the task or writer that made an object, the exact inputs of the task, and the objects that were made from the object. The
//! answer contains each version and each task as far as the asker may see them. These modules only read the database.
//!
//! Users may see a version if they may read its file, or own the file. If the file was deleted, its writer may see the version, and so may
//! owners of tasks that have read or made the version. Only the writer may see the path at the time of the seal: other users see the
//! present path.
//!
//! A task may be seen by the owner of its job. Any other user who may see an output of the task sees that the task existed, its owner,
//! time and node, its built-in kernel, and the versions that this user may see: the answer omits the job, the arguments and the names
//! of inputs and outputs. For all other users the answer contains the task's number and its connections, so that the graph stays
//! complete. A search finds the asker's own tasks, and versions that the asker may see.

mod graph;

pub use graph::{WalkDirection, original_ns, versions_of, walk};

use super::fault::Fault;
use super::transaction::Tx;
use super::visibility::Visibility;
use super::vnode::{Caller, InodeRecord, READ};
use graph::{
    LineageFilter, OBJECTS_MAX, SearchedTasks, Walked, annotated, runs, tasks, versions, walk_from,
};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_compute::is_builtin;
use tidemill_model::display::escaped;
use tidemill_model::user_kernels::OwnName;
use tidemill_wire::v1;

/// Answers a question about lineage: an object, the versions of a file, the runs of a job, or a search. The rights of `viewer` determine
/// the visible parts of the answer.
pub fn query(
    tx: &Tx<'_>,
    viewer: &Caller,
    question: &v1::LineageRequest,
) -> Result<v1::LineageReply, Fault> {
    let mut asked = 0;
    let start = if question.versions {
        versions_at(tx, viewer, &question.path)?
    } else if question.task != 0 || question.job != 0 {
        runs_of(tx, viewer, question.job, question.task)?
    } else if let Some(search) = &question.search
        && question.object == 0
        && question.path.is_empty()
    {
        found(tx, viewer, search)?
    } else {
        asked = match question.object {
            0 => object_at(tx, &question.path)?,
            object => object,
        };
        let first = versions(tx.db, &BTreeSet::from([asked]))?.pop();
        let first = first.ok_or_else(|| {
            Fault::NotFound(format!(
                "object {asked} has no lineage: it was never sealed"
            ))
        })?;
        check(tx, &first)?;
        Walked {
            objects: BTreeSet::from([asked]),
            ..Walked::default()
        }
    };
    let mut walked = Walked::default();
    for (way, wanted) in [
        (WalkDirection::Up, question.up),
        (WalkDirection::Down, question.down),
    ] {
        if wanted {
            walked.add(walk_from(tx.db, way, &start, question.depth)?);
        }
    }
    walked.add(start);
    answer(tx, viewer, asked, walked)
}

/// Returns all versions of the file at a path that the asker may see. The file may have been deleted.
fn versions_at(tx: &Tx<'_>, viewer: &Caller, path: &[u8]) -> Result<Walked, Fault> {
    let ino = match tx.resolve(path, true) {
        Ok(vnode) => vnode.ino,
        Err(Fault::NotFound(_)) => 0,
        Err(fault) => return Err(fault),
    };
    let objects = versions_of(tx.db, ino, path)?;
    let mut walked = Walked::default();
    let mut visibility = Visibility::new(tx, viewer);
    for version in versions(tx.db, &objects)? {
        let version = shown(version, 0, &BTreeSet::new(), &mut visibility)?;
        walked
            .objects
            .extend((!version.hidden).then_some(version.object));
        walked
            .tasks
            .extend((!version.hidden && version.task != 0).then_some(version.task));
    }
    if walked.objects.is_empty() {
        if let Err(fault) = tx.resolve(path, true) {
            return Err(tx.advised(path, fault));
        }
        let path = String::from_utf8_lossy(path);
        return Err(Fault::NotFound(format!(
            "{path} has no versions that you may see"
        )));
    }
    Ok(walked)
}

/// Returns one task, or all tasks of a job, to the owner of the job.
fn runs_of(tx: &Tx<'_>, viewer: &Caller, job: u64, task: u64) -> Result<Walked, Fault> {
    let (what, among) = if job == 0 {
        (format!("task {task}"), SearchedTasks::Task(task))
    } else {
        (format!("job {job}"), SearchedTasks::Job(job))
    };
    let wanted = LineageFilter {
        among,
        uid: of_viewer(viewer),
        ..LineageFilter::default()
    };
    let found = tasks(tx.db, &wanted, OBJECTS_MAX)?;
    if found.is_empty() {
        return Err(Fault::NotFound(format!(
            "{what} has no lineage: no task of it has succeeded, or it belongs to another user"
        )));
    }
    Ok(Walked {
        tasks: found.into_iter().collect(),
        ..Walked::default()
    })
}

/// Returns the result of a search: the asker's own tasks, or versions that the asker may see.
fn found(tx: &Tx<'_>, viewer: &Caller, wanted: &v1::LineageSearch) -> Result<Walked, Fault> {
    let search = tidemill_wire::lineage::search(wanted);
    let mut visibility = Visibility::new(tx, viewer);
    let mut start = Walked::default();
    if let Some(first) = search.annotations.first() {
        for version in versions(tx.db, &annotated(tx.db, &first.name)?)? {
            let version = shown(version, 0, &BTreeSet::new(), &mut visibility)?;
            let matches = search.matches_version(&tidemill_wire::lineage::version(&version));
            start.objects.extend(matches.then_some(version.object));
        }
    }
    if !search.is_of_runs() {
        return Ok(start);
    }
    let of = LineageFilter {
        among: SearchedTasks::All,
        uid: of_viewer(viewer),
        word: kernel_word(&wanted.kernel),
        since: wanted.since,
        until: wanted.until,
    };
    let candidates = if search.annotations.is_empty() {
        tasks(tx.db, &of, OBJECTS_MAX + 1)?.into_iter().collect()
    } else {
        // Few tasks are connected to annotated versions.
        let mut near = BTreeSet::new();
        for way in [WalkDirection::Up, WalkDirection::Down] {
            near.extend(walk(tx.db, way, &start.objects, 1)?.tasks);
        }
        near
    };
    let mut walked = Walked::default();
    for run in runs(tx.db, &candidates)? {
        let matches =
            visibility.owns(run.uid) && search.matches_run(&tidemill_wire::lineage::record(&run));
        walked.tasks.extend(matches.then_some(run.task));
    }
    if candidates.len() > OBJECTS_MAX {
        walked.cut = Some(format!(
            "only the newest {OBJECTS_MAX} tasks were searched; give a time range or a kernel"
        ));
    }
    Ok(walked)
}

/// Returns the user whose tasks a viewer may see; `None`: the viewer may see the tasks of all users. A permission check by a mount's Linux
/// kernel grants no rights to tasks.
fn of_viewer(viewer: &Caller) -> Option<u32> {
    (viewer.uid != 0).then_some(viewer.uid)
}

/// Returns a word that the stored text of each task with this kernel contains. The word is empty if JSON may encode a character of the
/// kernel's name differently.
fn kernel_word(kernel: &str) -> &str {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let stem = OwnName::parse(kernel).stem;
    if stem.chars().all(plain) { stem } else { "" }
}

fn object_at(tx: &Tx<'_>, path: &[u8]) -> Result<u64, Fault> {
    let vnode = tx
        .resolve(path, true)
        .map_err(|fault| tx.advised(path, fault))?;
    tx.need(&vnode, READ, &String::from_utf8_lossy(path))?;
    if vnode.object == 0 {
        let path = String::from_utf8_lossy(path);
        return Err(Fault::NotFound(format!(
            "{path} has no lineage: it has no sealed version with bytes"
        )));
    }
    Ok(vnode.object)
}

/// Checks that the caller may see the origin of a version: as a reader of the file, or as its owner if the file was deleted.
fn check(tx: &Tx<'_>, version: &v1::Version) -> Result<(), Fault> {
    let what = format!("object {}", version.object);
    match InodeRecord::find(tx.db, version.ino)? {
        Some(vnode) => {
            tx.reach(vnode.ino)?;
            tx.need(&vnode, READ, &what)
        }
        None if tx.caller.uid == 0 || tx.caller.uid == version.uid => Ok(()),
        None => Err(Fault::Denied(what, tx.caller.uid)),
    }
}

/// Builds the answer from all results of a walk, without facts that the asker may not see.
fn answer(
    tx: &Tx<'_>,
    viewer: &Caller,
    asked: u64,
    mut walked: Walked,
) -> Result<v1::LineageReply, Fault> {
    let mut runs = runs(tx.db, &walked.tasks)?;
    // A user who may see one output of a task may see the task.
    let ends = runs
        .iter()
        .flat_map(|run| run.inputs.iter().chain(&run.outputs));
    for named in ends {
        if walked.objects.len() > OBJECTS_MAX && !walked.objects.contains(&named.object) {
            let left_out = || "tasks with more inputs and outputs than can be shown".to_owned();
            walked.cut.get_or_insert_with(left_out);
            break;
        }
        walked.objects.insert(named.object);
    }
    let mut visibility = Visibility::new(tx, viewer);
    let own = runs.iter().filter(|run| visibility.owns(run.uid));
    let own = own.flat_map(|run| run.inputs.iter().chain(&run.outputs));
    let used: BTreeSet<u64> = own.map(|named| named.object).collect();
    let mut seen = BTreeMap::new();
    for version in versions(tx.db, &walked.objects)? {
        let version = shown(version, asked, &used, &mut visibility)?;
        seen.insert(version.object, version);
    }
    let known = |named: &v1::NamedObject| seen.get(&named.object).map(|version| !version.hidden);
    for run in &mut runs {
        if !visibility.owns(run.uid) {
            let made = run.outputs.iter().any(|made| known(made) == Some(true));
            conceal(run, made);
        }
    }
    Ok(v1::LineageReply {
        object: asked,
        versions: seen.into_values().collect(),
        runs,
        cut: walked.cut.unwrap_or_default(),
        cluster: super::cluster_id(tx.db)?,
    })
}

/// Removes from another user's task the facts that the asker may not see. Few facts remain if the asker may see an output of the task, else
/// only the task's number and connections remain.
fn conceal(run: &mut v1::Run, made: bool) {
    let whole = std::mem::take(run);
    let nameless = |objects: Vec<v1::NamedObject>| -> Vec<v1::NamedObject> {
        let nameless = objects.into_iter().map(|named| v1::NamedObject {
            name: String::new(),
            selection: String::new(),
            ..named
        });
        nameless.collect()
    };
    *run = v1::Run {
        task: whole.task,
        inputs: nameless(whole.inputs),
        outputs: nameless(whole.outputs),
        hidden: !made,
        ..v1::Run::default()
    };
    if made {
        run.uid = whole.uid;
        run.node = whole.node;
        (run.start, run.end) = (whole.start, whole.end);
        if is_builtin(&whole.kernel) {
            (run.kernel, run.kernel_hash) = (whole.kernel, whole.kernel_hash);
        }
    }
}

/// Returns a version with its present path, or only its number if the asker may not see the version.
fn shown(
    mut version: v1::Version,
    asked: u64,
    used: &BTreeSet<u64>,
    visibility: &mut Visibility<'_>,
) -> Result<v1::Version, Fault> {
    let file = visibility.file(version.ino)?;
    let allowed = match &file {
        Some(file) => file.allowed,
        None => visibility.owns(version.uid) || used.contains(&version.object),
    };
    // The access to the requested version was checked before, perhaps by a Linux kernel that knows more.
    if !allowed && version.object != asked {
        return Ok(v1::Version {
            object: version.object,
            task: version.task,
            hidden: true,
            ..v1::Version::default()
        });
    }
    version.superseded = file
        .as_ref()
        .is_some_and(|file| file.object != version.object);
    let path = file.map(|file| file.path).unwrap_or_default();
    version.current_path = escaped(&path);
    if !visibility.owns(version.uid) {
        version.path = version.current_path.clone();
    }
    Ok(version)
}

/// Returns the origin of an object as JSON: the answer of the attribute `user.tidemill.lineage`.
pub fn summary(tx: &Tx<'_>, object: u64) -> Result<String, Fault> {
    let mut walked = walk(tx.db, WalkDirection::Up, &BTreeSet::from([object]), 1)?;
    walked.objects = BTreeSet::from([object]);
    let reply = answer(tx, tx.caller, object, walked)?;
    let Some(version) = reply.versions.iter().find(|one| one.object == object) else {
        return Ok("null".into());
    };
    let list = |objects: &[v1::NamedObject]| -> Vec<serde_json::Value> {
        objects
            .iter()
            .map(|o| serde_json::json!({"name": o.name, "object": o.object}))
            .collect()
    };
    let run = reply.runs.first().map(|run| {
        serde_json::json!({
            "task": run.task, "job": run.job, "job_name": run.job_name, "name": run.name,
            "kernel": run.kernel, "kernel_hash": run.kernel_hash, "args": run.args,
            "runtime_environment": run.runtime_environment.as_ref().map(|one| serde_json::json!({
                "environment": one.environment, "path": one.path, "directories": one.directories
            })),
            "node": run.node, "uid": run.uid, "start": run.start, "end": run.end,
            "reused_task": (run.reused_task != 0).then_some(run.reused_task),
            "inputs": list(&run.inputs), "outputs": list(&run.outputs),
        })
    });
    Ok(serde_json::json!({
        "object": version.object, "path": version.path, "size": version.size, "ino": version.ino,
        "version": version.version, "uid": version.uid, "sealed_at": version.sealed_at,
        "node": version.node, "run": run,
    })
    .to_string())
}
