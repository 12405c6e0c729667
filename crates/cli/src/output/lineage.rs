//! Lineage of files: versions, and the runs that made them.

use super::{given, list, maybe, records, sorted};
use crate::drawing::difference;
use crate::format::{Bytes, Time};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use tidemill_model::id::{ObjectId, TaskId};
use tidemill_model::lineage::{Graph, Vertex};
use tidemill_wire::v1;

records! {
    /// Lineage, or a part of it.
    Lineage {
        /// Object of the start; null if the start is no file.
        object: Option<u64>,
        /// Id of the cluster, in 16 hexadecimal digits.
        cluster: String,
        versions: Vec<Version>, runs: Vec<Run>,
        /// Reason why the graph is not complete; null if it is.
        cut: Option<String>,
        /// Results of a search; absent without a search.
        #[serde(skip_serializing_if = "Option::is_none")]
        found: Option<FoundVertices>,
    }

    /// Results of a search: ids of objects, and of tasks.
    FoundVertices { objects: Vec<u64>, tasks: Vec<u64> }
}

/// Version of a file. Of a hidden version, only the ids are known.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Version {
    /// Version of a file that the caller may not read.
    Hidden {
        object: u64,
        task: u64,
        hidden: bool,
    },
    /// Version of a file.
    Shown(ShownVersion),
}

records! {
    /// Version of a file.
    ShownVersion from of: v1::Version {
        object: u64,
        /// Path at the time of the seal.
        path: String,
        current_path: String, size: Bytes,
        inode: u64 = of.ino,
        version: u64, uid: u32, sealed_at: Time, node: u32,
        /// Task that wrote the version; 0 for a client.
        task: u64,
        /// Whether the file has a newer version.
        superseded: bool,
        /// Reason why the bytes were deleted.
        dropped: Option<String> = given(&of.dropped),
        hash: Option<String> = given(&of.hash),
        annotations: BTreeMap<String, String> = annotations(of),
    }
}

/// Run of a kernel. Of a hidden run, only the ids are known.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Run {
    /// Run of another user.
    Hidden {
        task: u64,
        hidden: bool,
        inputs: Vec<NamedObject>,
        outputs: Vec<NamedObject>,
    },
    /// Run.
    Shown(Box<ShownRun>),
}

records! {
    /// Run of a kernel.
    ShownRun from of: v1::Run {
        task: u64, job: u64, job_name: String, name: String, kernel: String,
        /// Hash of the code of the kernel.
        kernel_hash: String,
        args: Vec<String>,
        runtime_environment: Option<RuntimeEnvironment> = maybe(&of.runtime_environment),
        node: u32, uid: u32, start: Time, end: Time, read_bytes: Bytes, written_bytes: Bytes,
        transferred_bytes: Bytes,
        /// Task whose cached result was used; null if the kernel ran.
        reused_task: Option<u64> = given(&of.reused_task),
        inputs: Vec<NamedObject> = list(&of.inputs),
        outputs: Vec<NamedObject> = list(&of.outputs),
    }

    /// Input or output of a run.
    NamedObject from of: v1::NamedObject {
        name: String, object: u64,
        /// Selected part of an input; absent for the whole file.
        #[serde(skip_serializing_if = "Option::is_none")]
        selection: Option<String> = given(&of.selection),
    }

    /// Environment that a task requested.
    RuntimeEnvironment from of: v1::RuntimeEnvironment {
        environment: BTreeMap<String, String> = sorted(&of.environment),
        /// Directories of programs.
        path: Vec<String>,
        /// Bind mounts.
        directories: Vec<String>,
    }

    /// Differences of two lineages.
    Differences { differences: Vec<Difference> }

    /// Difference of two lineages.
    Difference from of: difference::Difference {
        run: String,
        /// Name of the value.
        what: &'static str,
        /// Values; empty if a lineage has none.
        first: String,
        second: String,
    }
}

impl From<&v1::Version> for Version {
    fn from(of: &v1::Version) -> Self {
        match of.hidden {
            true => Self::Hidden {
                object: of.object,
                task: of.task,
                hidden: true,
            },
            false => Self::Shown(of.into()),
        }
    }
}

impl From<&v1::Run> for Run {
    fn from(of: &v1::Run) -> Self {
        match of.hidden {
            true => Self::Hidden {
                task: of.task,
                hidden: true,
                inputs: list(&of.inputs),
                outputs: list(&of.outputs),
            },
            false => Self::Shown(Box::new(of.into())),
        }
    }
}

impl Lineage {
    /// Makes the result from the reply of the server, limited to the graph, and the ids of the found vertices.
    pub(crate) fn new(reply: &v1::LineageReply, graph: &Graph, found: Option<&[Vertex]>) -> Self {
        let versions = reply.versions.iter();
        let runs = reply.runs.iter();
        let found = found.map(|found| {
            let mut ids = FoundVertices {
                objects: Vec::new(),
                tasks: Vec::new(),
            };
            for vertex in found {
                match vertex {
                    Vertex::Version(object) => ids.objects.push(object.0),
                    Vertex::Run(task) => ids.tasks.push(task.0),
                }
            }
            ids
        });
        Self {
            object: given(&reply.object),
            cluster: format!("{:016x}", reply.cluster),
            versions: list(
                versions.filter(|version| graph.version(ObjectId(version.object)).is_some()),
            ),
            runs: list(runs.filter(|run| graph.record(TaskId(run.task)).is_some())),
            cut: given(&reply.cut),
            found,
        }
    }
}

fn annotations(version: &v1::Version) -> BTreeMap<String, String> {
    let one = |one: &v1::Annotation| {
        let value = String::from_utf8_lossy(&one.value);
        (one.name.clone(), value.into_owned())
    };
    version.annotations.iter().map(one).collect()
}
