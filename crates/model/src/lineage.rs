//! Lineage: the graph of objects and the tasks that wrote them, and its representations.
//!
//! This module does no I/O. The caller selects the part of the lineage that answers a question and fills a [`Graph`] with this part;
//! [`text`] shows the graph's vertices and [`Graph::edges`].

pub mod search;
pub mod text;

use crate::display::civil;
use crate::id::{Inode, JobId, NodeId, ObjectId, TaskId};
use crate::label::Owner;
use crate::runtime_environment::RuntimeEnvironment;
use crate::time::Time;
use crate::user_kernels::OwnName;
use std::collections::{BTreeMap, BTreeSet};

/// Lineage of one successful run of a task.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LineageRecord {
    /// Id of the task.
    pub task: TaskId,
    /// Job of the task.
    pub job: JobId,
    /// Name of the job in its script.
    pub job_name: String,
    /// Name of the task in the script.
    pub name: String,
    /// Name of the kernel.
    pub kernel: String,
    /// Hash of the kernel's code in hexadecimal.
    pub kernel_hash: String,
    /// Arguments of the task.
    pub args: Vec<String>,
    /// Environment that the task requested.
    pub runtime_environment: RuntimeEnvironment,
    /// Node that ran the task.
    pub node: NodeId,
    /// Time at which the fetch of the task's inputs began, since the Unix epoch.
    pub start: Time,
    /// Time at which the task's outputs were sealed, since the Unix epoch.
    pub end: Time,
    /// Owner of the task.
    pub owner: Owner,
    /// Inputs of the task: the names that the kernel saw, and the exact versions.
    pub inputs: Vec<(String, ObjectId)>,
    /// Outputs of the task: the names that the kernel wrote, and the versions.
    pub outputs: Vec<(String, ObjectId)>,
    /// Bytes that the task fetched from other nodes.
    pub transferred_bytes: u64,
    /// Size of all inputs of the task, in bytes.
    pub read_bytes: u64,
    /// Size of all outputs of the task, in bytes.
    pub written_bytes: u64,
    /// Exit code of the kernel.
    pub exit: i32,
    /// Earlier task whose cached result was returned, if no kernel ran. `node`, `start` and `end` are those of the earlier task.
    pub reused: Option<TaskId>,
    /// Whether the viewer may see only the task and its objects.
    pub hidden: bool,
}

/// Writer of a version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VersionWriter {
    /// A task wrote the version.
    Task(TaskId),
    /// A client wrote the version, with this user's rights.
    Client(Owner),
}

/// Lineage of one sealed version of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineageVersion {
    /// Object that holds the version.
    pub object: ObjectId,
    /// Path of the file when the version was sealed.
    pub path: String,
    /// Current path of the file; `None` if the file is deleted.
    pub current_path: Option<String>,
    /// Size of the version, in bytes.
    pub size: u64,
    /// Inode of the file.
    pub inode: Inode,
    /// Node that stores the bytes of the version.
    pub node: NodeId,
    /// Writer of the version.
    pub writer: VersionWriter,
    /// Time at which the version was sealed, since the Unix epoch.
    pub sealed_at: Time,
    /// Number of the version within its file, from 1.
    pub number: u64,
    /// Whether the file has a later version.
    pub superseded: bool,
    /// Annotations of the file while this version was the current one: names without `user.`, and values.
    pub annotations: Vec<(String, String)>,
    /// BLAKE3 of the version's bytes in hexadecimal, if the bytes were hashed.
    pub hash: Option<String>,
    /// First object with the same content, if this is another object than the version's own.
    pub same_as: Option<ObjectId>,
    /// Hook that deleted the file after its map, if a hook did so.
    pub dropped: Option<String>,
    /// Whether the viewer may see only the object.
    pub hidden: bool,
}

/// Placeholder for data that the viewer has no right to see.
pub const HIDDEN: &str = "(not yours to see)";

impl LineageVersion {
    /// Returns the path to show: the file's current path, or its path at the seal if the file is deleted.
    #[must_use]
    pub fn shown_path(&self) -> &str {
        let known = self.current_path.as_deref().unwrap_or(&self.path);
        if self.hidden || known.is_empty() {
            return HIDDEN;
        }
        known
    }
}

/// Vertex of the lineage graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Vertex {
    /// A version of a file, whether its data is known or not.
    Version(ObjectId),
    /// A run of a task.
    Run(TaskId),
}

/// Edge in the direction of the data: from a version to a run that read it, or from a run to a version that it wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Edge<'a> {
    /// Source of the data.
    pub from: Vertex,
    /// Target of the data.
    pub to: Vertex,
    /// Name that the kernel used for the version.
    pub name: &'a str,
}

impl LineageRecord {
    /// Returns whether the kernel has this name, either in the task's notation or without directory, version and extension.
    #[must_use]
    pub fn is_of(&self, kernel: &str) -> bool {
        let file = self.kernel.rsplit('/').next().unwrap_or_default();
        let own = OwnName::parse(file);
        let without_version = || {
            own.stem.len() + own.ending.len() == kernel.len()
                && kernel.starts_with(own.stem)
                && kernel.ends_with(own.ending)
        };
        [self.kernel.as_str(), file, own.stem].contains(&kernel) || without_version()
    }

    /// Returns the run's name to show.
    #[must_use]
    pub fn shown_name(&self) -> &str {
        if self.hidden || self.is_others() {
            HIDDEN
        } else {
            &self.name
        }
    }

    /// Returns whether the run belongs to another user, so that its job, names and arguments are hidden.
    #[must_use]
    pub fn is_others(&self) -> bool {
        self.name.is_empty()
    }
}

/// Lineage graph: versions of files and the runs between them.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Graph {
    versions: BTreeMap<ObjectId, LineageVersion>,
    records: BTreeMap<TaskId, LineageRecord>,
    makers: BTreeMap<ObjectId, TaskId>,
    readers: BTreeMap<ObjectId, BTreeSet<TaskId>>,
    /// Description of omitted data, if any; each representation of the graph shows it.
    pub cut: Option<String>,
}

impl Graph {
    /// Adds a version to the graph, or replaces the version's older description.
    pub fn add_version(&mut self, version: LineageVersion) {
        self.versions.insert(version.object, version);
    }

    /// Adds a run to the graph, or replaces the run's older description.
    pub fn add_record(&mut self, record: LineageRecord) {
        for (_, object) in &record.outputs {
            self.makers.insert(*object, record.task);
        }
        for (_, object) in &record.inputs {
            self.readers.entry(*object).or_default().insert(record.task);
        }
        self.records.insert(record.task, record);
    }

    /// Returns all versions of the graph, in the order of object ids.
    pub fn versions(&self) -> impl Iterator<Item = &LineageVersion> {
        self.versions.values()
    }

    /// Returns all runs of the graph, in the order of task ids.
    pub fn records(&self) -> impl Iterator<Item = &LineageRecord> {
        self.records.values()
    }

    /// Returns all edges in the direction of the data, run by run: first the run's inputs, then its outputs.
    pub fn edges(&self) -> impl Iterator<Item = Edge<'_>> {
        self.records.values().flat_map(|record| {
            let run = Vertex::Run(record.task);
            let read = record.inputs.iter().map(move |(name, object)| Edge {
                from: Vertex::Version(*object),
                to: run,
                name,
            });
            let made = record.outputs.iter().map(move |(name, object)| Edge {
                from: run,
                to: Vertex::Version(*object),
                name,
            });
            read.chain(made)
        })
    }

    /// Returns the version that an object holds, if the graph contains it.
    #[must_use]
    pub fn version(&self, object: ObjectId) -> Option<&LineageVersion> {
        self.versions.get(&object)
    }

    /// Returns the run of a task, if the graph contains it.
    #[must_use]
    pub fn record(&self, task: TaskId) -> Option<&LineageRecord> {
        self.records.get(&task)
    }

    /// Returns the run that wrote a version; `None` if a client wrote the version or the run is not known.
    #[must_use]
    pub fn maker(&self, object: ObjectId) -> Option<&LineageRecord> {
        self.records.get(self.makers.get(&object)?)
    }

    /// Returns the part of the graph that is reachable from `roots`, where paths end at runs for which `stop` returns true. The part
    /// contains the inputs of such a run (upwards) or its outputs (downwards), and nothing beyond them.
    #[must_use]
    pub fn stopped(
        &self,
        roots: &[Vertex],
        (up, down): (bool, bool),
        stop: impl Fn(&LineageRecord) -> bool,
    ) -> Self {
        let mut part = Self {
            cut: self.cut.clone(),
            ..Self::default()
        };
        for upwards in [true, false] {
            if !(if upwards { up } else { down }) {
                continue;
            }
            let mut seen = BTreeSet::new();
            let mut pending = roots.to_vec();
            while let Some(vertex) = pending.pop() {
                if !seen.insert(vertex) {
                    continue;
                }
                match vertex {
                    Vertex::Version(object) if upwards => {
                        pending.extend(self.maker(object).map(|run| Vertex::Run(run.task)));
                    }
                    Vertex::Version(object) => {
                        pending.extend(self.readers(object).map(|run| Vertex::Run(run.task)));
                    }
                    Vertex::Run(task) => {
                        let Some(record) = self.record(task) else {
                            continue;
                        };
                        part.add_record(record.clone());
                        if !stop(record) {
                            let next = if upwards {
                                &record.inputs
                            } else {
                                &record.outputs
                            };
                            let objects = next.iter().map(|(_, object)| Vertex::Version(*object));
                            pending.extend(objects);
                        }
                    }
                }
            }
        }
        let ends: BTreeSet<Vertex> = part.edges().flat_map(|edge| [edge.from, edge.to]).collect();
        for vertex in ends.iter().chain(roots) {
            if let Vertex::Version(object) = vertex {
                part.versions
                    .extend(self.version(*object).map(|one| (*object, one.clone())));
            }
        }
        part
    }

    /// Returns the runs that read a version, in the order of task ids.
    pub fn readers(&self, object: ObjectId) -> impl Iterator<Item = &LineageRecord> {
        self.readers
            .get(&object)
            .into_iter()
            .flatten()
            .filter_map(|task| self.records.get(task))
    }
}

/// Formats a point in time as ISO 8601 in UTC with milliseconds, as xsd:dateTime requires.
#[must_use]
pub fn iso_time(time: Time) -> String {
    let millis = time.0 / 1_000_000;
    let (days, of_day) = (millis / 86_400_000, millis % 86_400_000);
    let (year, month, day) = civil(days.cast_signed());
    let (hour, minute) = (of_day / 3_600_000, of_day / 60_000 % 60);
    let (second, milli) = (of_day / 1000 % 60, of_day % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

#[cfg(test)]
mod tests {
    pub(super) mod samples;

    use super::*;
    use samples::{mosaic, record};

    #[test]
    fn lineage_edges_point_in_direction_of_data_flow() {
        let graph = mosaic();
        let edges: Vec<_> = graph.edges().collect();
        assert_eq!(edges.len(), 9);
        let (run, sum) = (Vertex::Run(TaskId(13)), Vertex::Version(ObjectId(5)));
        let into: Vec<_> = edges.iter().filter(|edge| edge.to == run).collect();
        assert_eq!(into.len(), 2);
        assert_eq!(
            (into[0].from, into[0].name),
            (Vertex::Version(ObjectId(3)), "o3")
        );
        let out = edges.iter().find(|edge| edge.from == run).unwrap();
        assert_eq!((out.to, out.name), (sum, "o5"));
    }

    #[test]
    fn lineage_graph_stops_at_given_kernel() {
        let graph = mosaic();
        let root = [Vertex::Version(ObjectId(6))];
        let part = graph.stopped(&root, (true, false), |run| run.is_of("add"));
        let tasks: Vec<_> = part.records().map(|run| run.task.0).collect();
        assert_eq!(tasks, [13, 14]);
        let objects: Vec<_> = part.versions().map(|version| version.object.0).collect();
        assert_eq!(
            objects,
            [3, 4, 5, 6],
            "its inputs are shown, and not the runs that made them"
        );
        let whole = graph.stopped(&root, (true, false), |_| false);
        assert_eq!(whole, graph);
        let down = graph.stopped(&[Vertex::Version(ObjectId(1))], (false, true), |run| {
            run.is_of("add")
        });
        let tasks: Vec<_> = down.records().map(|run| run.task.0).collect();
        assert_eq!(tasks, [11, 13]);
    }

    #[test]
    fn run_is_found_by_full_or_short_kernel_name() {
        let mut run = record(1, "x", &[], &[]);
        run.kernel = "/kernels/1000/denoise@2.so".into();
        for name in [
            "denoise",
            "denoise.so",
            "denoise@2.so",
            "/kernels/1000/denoise@2.so",
        ] {
            assert!(run.is_of(name), "{name}");
        }
        for name in ["", "noise", "den", "denoise.wasm", "denoise@1.so"] {
            assert!(!run.is_of(name), "{name}");
        }
        run.kernel = "/opt/fmri/align_warp".into();
        assert!(run.is_of("align_warp"));
    }

    #[test]
    fn iso_time_prints_utc_dates() {
        assert_eq!(iso_time(Time(0)), "1970-01-01T00:00:00.000Z");
        assert_eq!(
            iso_time(Time(1_700_000_000_123_456_789)),
            "2023-11-14T22:13:20.123Z"
        );
        assert_eq!(
            iso_time(Time(951_782_400_000_000_000)),
            "2000-02-29T00:00:00.000Z"
        );
        assert_eq!(
            iso_time(Time(4_107_542_400_000_000_000)),
            "2100-03-01T00:00:00.000Z"
        );
    }
}
