//! Converts the server's answers about lineage to a graph of the crate `model`, which prints the graph as text.

use crate::convert::time_from_wire;
use crate::v1;
use tidemill_model::id::{Inode, JobId, NodeId, ObjectId, TaskId};
use tidemill_model::label::Owner;
use tidemill_model::lineage::search::{Annotated, LineageCriteria};
use tidemill_model::lineage::{Graph, LineageRecord, LineageVersion, VersionWriter};

/// Converts a server's answer about lineage to a graph.
#[must_use]
pub fn graph(reply: &v1::LineageReply) -> Graph {
    let mut graph = Graph::default();
    for version in &reply.versions {
        graph.add_version(self::version(version));
    }
    for run in &reply.runs {
        graph.add_record(record(run));
    }
    graph.cut = (!reply.cut.is_empty()).then(|| reply.cut.clone());
    graph
}

/// Returns the owner with this user id. Messages contain no groups, because groups have no information about the origin of a file.
fn owner(uid: u32) -> Owner {
    Owner { uid, gid: 0 }
}

/// Converts a version in a message. Values that are not valid text are converted as far as possible.
#[must_use]
pub fn version(version: &v1::Version) -> LineageVersion {
    let named = !version.current_path.is_empty();
    LineageVersion {
        object: ObjectId(version.object),
        path: version.path.clone(),
        current_path: named.then(|| version.current_path.clone()),
        size: version.size,
        inode: Inode(version.ino),
        node: NodeId(version.node),
        writer: match version.task {
            0 => VersionWriter::Client(owner(version.uid)),
            task => VersionWriter::Task(TaskId(task)),
        },
        sealed_at: time_from_wire(version.sealed_at),
        number: version.version,
        superseded: version.superseded,
        annotations: version.annotations.iter().map(annotation).collect(),
        hash: (!version.hash.is_empty()).then(|| version.hash.clone()),
        same_as: (version.same_as != 0).then_some(ObjectId(version.same_as)),
        dropped: (!version.dropped.is_empty()).then(|| version.dropped.clone()),
        hidden: version.hidden,
    }
}

fn annotation(annotation: &v1::Annotation) -> (String, String) {
    let value = String::from_utf8_lossy(&annotation.value);
    (annotation.name.clone(), value.into_owned())
}

/// Converts the search criteria in a message.
#[must_use]
pub fn search(search: &v1::LineageSearch) -> LineageCriteria {
    let time = |at: i64| (at != 0).then(|| time_from_wire(at));
    let annotated = |one: &v1::AnnotationSearch| Annotated {
        name: one.name.clone(),
        values: one.values.clone(),
    };
    LineageCriteria {
        kernel: (!search.kernel.is_empty()).then(|| search.kernel.clone()),
        args: search.args.clone(),
        since: time(search.since),
        until: time(search.until),
        weekday: (search.weekday != 0).then_some(search.weekday),
        annotations: search.annotations.iter().map(annotated).collect(),
    }
}

/// Returns the name of an object for users, with the part of the object that was read.
fn named(object: &v1::NamedObject) -> String {
    let v1::NamedObject {
        name, selection, ..
    } = object;
    match selection.is_empty() {
        true => name.clone(),
        false => format!("{name} ({selection})"),
    }
}

/// Converts a run in a message to a lineage record.
#[must_use]
pub fn record(run: &v1::Run) -> LineageRecord {
    let objects = |objects: &[v1::NamedObject]| {
        let pair = |object: &v1::NamedObject| (named(object), ObjectId(object.object));
        objects.iter().map(pair).collect()
    };
    LineageRecord {
        task: TaskId(run.task),
        job: JobId(run.job),
        job_name: run.job_name.clone(),
        name: run.name.clone(),
        kernel: run.kernel.clone(),
        kernel_hash: run.kernel_hash.clone(),
        args: run.args.clone(),
        runtime_environment: run.runtime_environment.clone().unwrap_or_default().into(),
        node: NodeId(run.node),
        start: time_from_wire(run.start),
        end: time_from_wire(run.end),
        owner: owner(run.uid),
        inputs: objects(&run.inputs),
        outputs: objects(&run.outputs),
        transferred_bytes: run.transferred_bytes,
        read_bytes: run.read_bytes,
        written_bytes: run.written_bytes,
        // Only successful runs have lineage.
        exit: 0,
        reused: (run.reused_task != 0).then_some(TaskId(run.reused_task)),
        hidden: run.hidden,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lineage_reply_becomes_graph_with_edges() {
        let named = |name: &str, object| {
            vec![v1::NamedObject {
                name: name.into(),
                object,
                selection: String::new(),
            }]
        };
        let version = |object, task| v1::Version {
            object,
            task,
            uid: 7,
            ..v1::Version::default()
        };
        let run = v1::Run {
            task: 10,
            inputs: named("in", 1),
            outputs: named("out", 2),
            ..v1::Run::default()
        };
        let reply = v1::LineageReply {
            object: 2,
            versions: vec![version(1, 0), version(2, 10)],
            runs: vec![run],
            ..v1::LineageReply::default()
        };
        let graph = graph(&reply);
        assert_eq!(graph.maker(ObjectId(2)).unwrap().task, TaskId(10));
        assert_eq!(graph.readers(ObjectId(1)).count(), 1);
        let writer = graph.version(ObjectId(1)).unwrap().writer;
        assert_eq!(writer, VersionWriter::Client(owner(7)));
        assert_eq!(graph.version(ObjectId(2)).unwrap().current_path, None);
    }
}
