//! Lineage: the graph of objects and the tasks that made them, how to walk it, and how to show it.
//!
//! Pure: whoever keeps lineage fills a [`Graph`]; [`Graph::up`] and [`Graph::down`] cut the part out
//! that answers a question, and [`text`], [`dot`], [`prov`] and [`svg`] show it.

pub mod dot;
pub mod prov;
pub mod svg;
pub mod text;

use crate::id::{ElementId, Inode, JobId, ObjectId, TaskId};
use crate::label::Owner;
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// One run of a task that ended well.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Record {
    /// The task.
    pub task: TaskId,
    /// Its job.
    pub job: JobId,
    /// The job's name in its script.
    pub job_name: String,
    /// The task's name in the script.
    pub name: String,
    /// The kernel's name.
    pub kernel: String,
    /// Hash of the kernel's code in hexadecimal.
    pub kernel_hash: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Where it ran.
    pub element: ElementId,
    /// When its inputs began to be pulled, since the Unix epoch.
    pub start: Time,
    /// When its outputs were sealed, since the Unix epoch.
    pub end: Time,
    /// Whose task it was.
    pub owner: Owner,
    /// What it read: the name that the kernel saw, and the exact version.
    pub inputs: Vec<(String, ObjectId)>,
    /// What it made: the name that the kernel wrote, and the version.
    pub outputs: Vec<(String, ObjectId)>,
    /// Bytes pulled from other elements.
    pub moved_bytes: u64,
    /// Bytes of all its inputs.
    pub read_bytes: u64,
    /// Bytes of all its outputs.
    pub written_bytes: u64,
    /// The kernel's exit code.
    pub exit: i32,
    /// Set if nothing ran: the earlier task whose result was used again.
    pub reused: Option<TaskId>,
}

/// Who wrote a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Writer {
    /// A task.
    Task(TaskId),
    /// A client, with this user's rights.
    Client(Owner),
}

/// One sealed version of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Its object.
    pub object: ObjectId,
    /// The file's path when it was sealed.
    pub path: String,
    /// Today's path; `None` if no name stands for this version any more.
    pub current_path: Option<String>,
    /// Its length in bytes.
    pub size: u64,
    /// The file.
    pub inode: Inode,
    /// Where its bytes are.
    pub element: ElementId,
    /// Who wrote it.
    pub writer: Writer,
    /// When it was sealed, since the Unix epoch.
    pub sealed_at: Time,
}

impl Version {
    /// The path to show: today's, else the one it had.
    #[must_use]
    pub fn shown_path(&self) -> &str {
        self.current_path.as_deref().unwrap_or(&self.path)
    }
}

/// Versions and the runs between them.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Graph {
    versions: BTreeMap<ObjectId, Version>,
    records: BTreeMap<TaskId, Record>,
    makers: BTreeMap<ObjectId, TaskId>,
    readers: BTreeMap<ObjectId, BTreeSet<TaskId>>,
}

impl Graph {
    /// Adds a version, or replaces what was known of it.
    pub fn add_version(&mut self, version: Version) {
        self.versions.insert(version.object, version);
    }

    /// Adds a run, or replaces what was known of it.
    pub fn add_record(&mut self, record: Record) {
        for (_, object) in &record.outputs {
            self.makers.insert(*object, record.task);
        }
        for (_, object) in &record.inputs {
            self.readers.entry(*object).or_default().insert(record.task);
        }
        self.records.insert(record.task, record);
    }

    /// All versions, by object.
    pub fn versions(&self) -> impl Iterator<Item = &Version> {
        self.versions.values()
    }

    /// All runs, by task.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.values()
    }

    /// One version.
    #[must_use]
    pub fn version(&self, object: ObjectId) -> Option<&Version> {
        self.versions.get(&object)
    }

    /// The run that made a version; `None` if a client wrote it or the run is not known.
    #[must_use]
    pub fn maker(&self, object: ObjectId) -> Option<&Record> {
        self.records.get(self.makers.get(&object)?)
    }

    /// The runs that read a version, by task.
    pub fn readers(&self, object: ObjectId) -> impl Iterator<Item = &Record> {
        self.readers
            .get(&object)
            .into_iter()
            .flatten()
            .filter_map(|task| self.records.get(task))
    }

    /// What a version was made from: the runs up to `depth` steps back (`None`: all) with all that they
    /// read and made.
    #[must_use]
    pub fn up(&self, object: ObjectId, depth: Option<usize>) -> Self {
        self.walk(
            object,
            depth,
            |graph, object| graph.maker(object).into_iter().collect(),
            |record| &record.inputs,
        )
    }

    /// What was made of a version: the runs up to `depth` steps on (`None`: all) with all that they read
    /// and made.
    #[must_use]
    pub fn down(&self, object: ObjectId, depth: Option<usize>) -> Self {
        self.walk(
            object,
            depth,
            |graph, object| graph.readers(object).collect(),
            |record| &record.outputs,
        )
    }

    fn walk<'a>(
        &'a self,
        object: ObjectId,
        depth: Option<usize>,
        next: impl Fn(&'a Self, ObjectId) -> Vec<&'a Record>,
        onward: impl Fn(&'a Record) -> &'a Vec<(String, ObjectId)>,
    ) -> Self {
        let mut part = Self::default();
        let mut seen = BTreeSet::from([object]);
        let mut pending = VecDeque::from([(object, 0)]);
        part.versions.extend(
            self.versions
                .get(&object)
                .map(|version| (object, version.clone())),
        );
        while let Some((object, steps)) = pending.pop_front() {
            if depth.is_some_and(|depth| steps >= depth) {
                continue;
            }
            for record in next(self, object) {
                if part.records.contains_key(&record.task) {
                    continue;
                }
                for (_, object) in record.inputs.iter().chain(&record.outputs) {
                    let known = self.versions.get(object);
                    part.versions
                        .extend(known.map(|version| (*object, version.clone())));
                }
                for (_, object) in onward(record) {
                    if seen.insert(*object) {
                        pending.push_back((*object, steps + 1));
                    }
                }
                part.add_record(record.clone());
            }
        }
        part
    }

    /// Everything of both graphs.
    #[must_use]
    pub fn union(mut self, other: Self) -> Self {
        self.versions.extend(other.versions);
        for record in other.records.into_values() {
            self.add_record(record);
        }
        self
    }
}

/// A point in time as ISO 8601 in UTC with milliseconds, as xsd:dateTime wants it.
#[must_use]
pub fn iso_time(time: Time) -> String {
    let millis = time.0 / 1_000_000;
    let (days, of_day) = (millis / 86_400_000, millis % 86_400_000);
    let (year, month, day) = civil(days);
    let (hour, minute) = (of_day / 3_600_000, of_day / 60_000 % 60);
    let (second, milli) = (of_day / 1000 % 60, of_day % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// The Gregorian date of a day since 1970-01-01, counted in eras of 400 years that begin on 1 March, so
/// that the leap day is the last of its year.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let leaps = day_of_era / 1460;
    let year_of_era = (day_of_era - leaps + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(object: u64, path: &str, writer: Writer) -> Version {
        Version {
            object: ObjectId(object),
            path: path.into(),
            current_path: Some(path.into()),
            size: object * 1000,
            inode: Inode(object + 100),
            element: ElementId(1),
            writer,
            sealed_at: Time(1_700_000_000_000_000_000),
        }
    }

    fn record(task: u64, name: &str, inputs: &[u64], outputs: &[u64]) -> Record {
        let named = |objects: &[u64]| {
            objects
                .iter()
                .map(|&id| (format!("o{id}"), ObjectId(id)))
                .collect()
        };
        Record {
            task: TaskId(task),
            job: JobId(5),
            job_name: "mosaic".into(),
            name: name.into(),
            kernel: name.into(),
            kernel_hash: "abcd".into(),
            args: vec!["-x".into(), "a \"b\" <c> & {d}".into()],
            element: ElementId(2),
            start: Time(1_700_000_000_000_000_000),
            end: Time(1_700_000_001_500_000_000),
            owner: Owner {
                uid: 1000,
                gid: 100,
            },
            inputs: named(inputs),
            outputs: named(outputs),
            ..Record::default()
        }
    }

    /// Two raw files are projected, then added; the sum is drawn.
    pub(super) fn mosaic() -> Graph {
        let mut graph = Graph::default();
        let client = Writer::Client(Owner {
            uid: 1000,
            gid: 100,
        });
        graph.add_version(version(1, "/raw/1.fits", client));
        graph.add_version(version(2, "/raw/2.fits", client));
        graph.add_version(version(3, "/p/1.fits", Writer::Task(TaskId(11))));
        graph.add_version(version(4, "/p/2.fits", Writer::Task(TaskId(12))));
        graph.add_version(version(5, "/mosaic.fits", Writer::Task(TaskId(13))));
        graph.add_version(version(6, "/mosaic <1>.png", Writer::Task(TaskId(14))));
        graph.add_record(record(11, "project1", &[1], &[3]));
        graph.add_record(record(12, "project2", &[2], &[4]));
        graph.add_record(record(13, "add", &[3, 4], &[5]));
        graph.add_record(record(14, "view", &[5], &[6]));
        graph
    }

    fn tasks(graph: &Graph) -> Vec<u64> {
        graph.records().map(|record| record.task.0).collect()
    }

    #[test]
    fn walking_up_finds_all_that_a_version_was_made_from_and_nothing_else() {
        let all = mosaic();
        assert_eq!(tasks(&all.up(ObjectId(5), None)), [11, 12, 13]);
        assert_eq!(tasks(&all.up(ObjectId(5), Some(1))), [13]);
        assert_eq!(tasks(&all.up(ObjectId(1), None)), [0; 0]);
        assert_eq!(all.up(ObjectId(1), None).versions().count(), 1);
        assert_eq!(all.up(ObjectId(6), None), all);
    }

    #[test]
    fn walking_down_finds_all_that_was_made_of_a_version() {
        let all = mosaic();
        assert_eq!(tasks(&all.down(ObjectId(1), None)), [11, 13, 14]);
        assert_eq!(tasks(&all.down(ObjectId(1), Some(2))), [11, 13]);
        assert_eq!(tasks(&all.down(ObjectId(6), None)), [0; 0]);
        // A run that was met is shown with all that it read.
        assert!(all.down(ObjectId(1), None).version(ObjectId(4)).is_some());
    }

    #[test]
    fn both_ways_together_are_a_union() {
        let all = mosaic();
        let both = all.up(ObjectId(3), None).union(all.down(ObjectId(3), None));
        assert_eq!(tasks(&both), [11, 13, 14]);
    }

    #[test]
    fn times_are_civil_dates_in_utc() {
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
