//! Lineage graphs for tests.

use super::*;

pub(crate) fn version(object: u64, path: &str, writer: VersionWriter) -> LineageVersion {
    LineageVersion {
        object: ObjectId(object),
        path: path.into(),
        current_path: Some(path.into()),
        size: object * 1000,
        inode: Inode(object + 100),
        node: NodeId(1),
        writer,
        sealed_at: Time(1_700_000_000_000_000_000),
        number: 1,
        superseded: false,
        dropped: None,
        annotations: Vec::new(),
        hash: None,
        same_as: None,
        hidden: false,
    }
}

pub(crate) fn record(task: u64, name: &str, inputs: &[u64], outputs: &[u64]) -> LineageRecord {
    let named = |objects: &[u64]| {
        objects
            .iter()
            .map(|&id| (format!("o{id}"), ObjectId(id)))
            .collect()
    };
    LineageRecord {
        task: TaskId(task),
        job: JobId(5),
        job_name: "mosaic".into(),
        name: name.into(),
        kernel: name.into(),
        kernel_hash: "abcd".into(),
        args: vec!["-x".into(), "a \"b\" <c> & {d}".into()],
        node: NodeId(2),
        start: Time(1_700_000_000_000_000_000),
        end: Time(1_700_000_001_500_000_000),
        owner: Owner {
            uid: 1000,
            gid: 100,
        },
        inputs: named(inputs),
        outputs: named(outputs),
        ..LineageRecord::default()
    }
}

/// Two raw files are projected and then added; the sum is drawn.
pub(crate) fn mosaic() -> Graph {
    let mut graph = Graph::default();
    let client = VersionWriter::Client(Owner {
        uid: 1000,
        gid: 100,
    });
    graph.add_version(version(1, "/raw/1.fits", client));
    graph.add_version(version(2, "/raw/2.fits", client));
    graph.add_version(version(3, "/p/1.fits", VersionWriter::Task(TaskId(11))));
    graph.add_version(version(4, "/p/2.fits", VersionWriter::Task(TaskId(12))));
    graph.add_version(version(5, "/mosaic.fits", VersionWriter::Task(TaskId(13))));
    graph.add_version(version(
        6,
        "/mosaic <1>.png",
        VersionWriter::Task(TaskId(14)),
    ));
    graph.add_record(record(11, "project1", &[1], &[3]));
    graph.add_record(record(12, "project2", &[2], &[4]));
    graph.add_record(record(13, "add", &[3, 4], &[5]));
    graph.add_record(record(14, "view", &[5], &[6]));
    graph
}
