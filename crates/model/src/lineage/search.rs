//! Search in lineage: finds runs by kernel, arguments, time, inputs and outputs, and finds versions by annotations.
//!
//! The server searches all recorded runs; a caller that shows the lineage of one file searches that lineage.

use super::{Graph, LineageRecord, LineageVersion};
use crate::time::Time;
use std::collections::BTreeSet;

/// Nanoseconds in a day.
const DAY_NS: u64 = 86_400_000_000_000;

/// Criteria of a lineage search; a criterion that is not given matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineageCriteria {
    /// Kernel of the run; see [`LineageRecord::is_of`].
    pub kernel: Option<String>,
    /// Groups of words that must be consecutive among the run's arguments; all groups must match.
    pub args: Vec<String>,
    /// Earliest start of the run.
    pub since: Option<Time>,
    /// End of the range of starts, exclusive.
    pub until: Option<Time>,
    /// Day of the week on which the run started, in UTC: 1 Monday to 7 Sunday.
    pub weekday: Option<u32>,
    /// Annotations that a version must have; all must match.
    pub annotations: Vec<Annotated>,
}

/// Criterion for an annotation of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Annotated {
    /// Name of the annotation, without `user.`.
    pub name: String,
    /// Accepted values of the annotation; any value if the list is empty.
    pub values: Vec<String>,
}

impl LineageCriteria {
    /// Returns whether there are no criteria.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.is_of_runs() && self.annotations.is_empty()
    }

    /// Returns whether the search is for runs and not for versions.
    #[must_use]
    pub fn is_of_runs(&self) -> bool {
        self.kernel.is_some()
            || !self.args.is_empty()
            || self.since.is_some()
            || self.until.is_some()
            || self.weekday.is_some()
    }

    /// Returns the runs of a graph that match the criteria, if the search is for runs.
    pub fn runs<'a>(&'a self, graph: &'a Graph) -> impl Iterator<Item = &'a LineageRecord> {
        let annotated: BTreeSet<_> = graph
            .versions()
            .filter(|version| self.matches_version(version))
            .map(|version| version.object)
            .collect();
        graph.records().filter(move |record| {
            let mut ends = record.inputs.iter().chain(&record.outputs);
            self.is_of_runs()
                && self.matches_run(record)
                && (self.annotations.is_empty() || ends.any(|end| annotated.contains(&end.1)))
        })
    }

    /// Returns the versions of a graph that match the criteria, if the search is for versions.
    pub fn versions<'a>(&'a self, graph: &'a Graph) -> impl Iterator<Item = &'a LineageVersion> {
        let versions = graph.versions();
        versions.filter(|version| !self.is_of_runs() && self.matches_version(version))
    }

    /// Returns whether a run matches the criteria, regardless of annotations. A hidden run never matches.
    #[must_use]
    pub fn matches_run(&self, run: &LineageRecord) -> bool {
        let kernel = self.kernel.as_ref();
        !run.hidden
            && !run.is_others()
            && kernel.is_none_or(|kernel| run.is_of(kernel))
            && self.args.iter().all(|words| has_words(&run.args, words))
            && self.since.is_none_or(|since| run.start >= since)
            && self.until.is_none_or(|until| run.start < until)
            && self.weekday.is_none_or(|day| weekday(run.start) == day)
    }

    /// Returns whether a version has all annotations of the criteria, if there are any.
    #[must_use]
    pub fn matches_version(&self, version: &LineageVersion) -> bool {
        let has = |wanted: &Annotated| {
            version.annotations.iter().any(|(name, value)| {
                *name == wanted.name && (wanted.values.is_empty() || wanted.values.contains(value))
            })
        };
        !version.hidden && !self.annotations.is_empty() && self.annotations.iter().all(has)
    }
}

/// Returns whether words are consecutive among arguments, or are one argument as a whole.
fn has_words(args: &[String], wanted: &str) -> bool {
    let words: Vec<&str> = wanted.split_whitespace().collect();
    let follow = |some: &[String]| some.iter().eq(words.iter());
    args.iter().any(|arg| arg == wanted)
        || (!words.is_empty() && args.windows(words.len()).any(follow))
}

/// Returns the day of the week in UTC: 1 Monday to 7 Sunday. The Unix epoch began on a Thursday.
#[must_use]
pub fn weekday(time: Time) -> u32 {
    const EPOCH: u64 = 3;
    match (time.0 / DAY_NS + EPOCH) % 7 {
        0 => 1,
        1 => 2,
        2 => 3,
        3 => 4,
        4 => 5,
        5 => 6,
        _ => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::samples::mosaic;
    use super::*;
    use crate::id::ObjectId;

    fn tasks(search: &LineageCriteria, graph: &Graph) -> Vec<u64> {
        search.runs(graph).map(|run| run.task.0).collect()
    }

    #[test]
    fn search_finds_runs_by_kernel_argument_and_time() {
        let graph = mosaic();
        let of = |kernel: &str| LineageCriteria {
            kernel: Some(kernel.into()),
            ..LineageCriteria::default()
        };
        assert_eq!(tasks(&of("add"), &graph), [13]);
        assert_eq!(tasks(&of("ad"), &graph), [0; 0]);
        let with = |arg: &str| LineageCriteria {
            args: vec![arg.into()],
            ..LineageCriteria::default()
        };
        assert_eq!(tasks(&with("-x"), &graph), [11, 12, 13, 14]);
        assert_eq!(tasks(&with("x"), &graph), [0; 0], "whole words");
        assert_eq!(tasks(&with("a \"b\" <c> & {d}"), &graph).len(), 4);
        // 14 November 2023 was a Tuesday.
        let on = |day| LineageCriteria {
            weekday: Some(day),
            ..LineageCriteria::default()
        };
        assert_eq!(tasks(&on(2), &graph).len(), 4);
        assert_eq!(tasks(&on(1), &graph).len(), 0);
        let begun = Time(1_700_000_000_000_000_000);
        let since = |since| LineageCriteria {
            since: Some(since),
            ..LineageCriteria::default()
        };
        assert_eq!(tasks(&since(begun), &graph).len(), 4);
        assert_eq!(tasks(&since(Time(begun.0 + 1)), &graph).len(), 0);
        assert_eq!(weekday(Time(0)), 4);
    }

    #[test]
    fn has_words_needs_consecutive_whole_words() {
        let args = ["-q", "-m", "12"].map(String::from);
        for (words, found) in [
            ("-m 12", true),
            ("-q 12", false),
            ("-m 1", false),
            ("", false),
        ] {
            assert_eq!(has_words(&args, words), found, "{words}");
        }
    }

    #[test]
    fn search_by_annotation_finds_versions_and_their_runs() {
        let mut graph = mosaic();
        let mut raw = graph.version(ObjectId(1)).unwrap().clone();
        raw.annotations = vec![("center".into(), "UChicago".into())];
        graph.add_version(raw.clone());
        let annotated = |values: &[&str]| {
            let values = values.iter().map(ToString::to_string).collect();
            vec![Annotated {
                name: "center".into(),
                values,
            }]
        };
        let mut search = LineageCriteria {
            annotations: annotated(&["IIT", "UChicago"]),
            ..LineageCriteria::default()
        };
        let objects = |search: &LineageCriteria, graph: &Graph| {
            search
                .versions(graph)
                .map(|one| one.object.0)
                .collect::<Vec<_>>()
        };
        assert_eq!(objects(&search, &graph), [1]);
        search.annotations = annotated(&["IIT"]);
        assert_eq!(objects(&search, &graph), [0; 0]);
        search.annotations = annotated(&[]);
        search.kernel = Some("project1".into());
        assert_eq!(tasks(&search, &graph), [11]);
        assert_eq!(objects(&search, &graph), [0; 0]);
        raw.hidden = true;
        graph.add_version(raw);
        assert_eq!(tasks(&search, &graph), [0; 0]);
    }
}
