//! Difference between two lineages, for example of two results of the same workflow, or of two runs of a workflow.
//!
//! Runs with the same name in their scripts are compared, in order if several runs have the name. Nodes and times of runs are no
//! differences, and neither are the paths of outputs: a user who compares two runs knows that these differ.

use std::collections::{BTreeMap, BTreeSet};
use tidemill_model::id::ObjectId;
use tidemill_model::lineage::{Graph, LineageRecord, LineageVersion};

/// One difference between two lineages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Name of the run in its script.
    pub(crate) run: String,
    /// Name of the property that differs.
    pub(crate) what: &'static str,
    /// Value in the first lineage; empty if the first lineage has no value.
    pub(crate) first: String,
    /// Value in the second lineage; empty if the second lineage has no value.
    pub(crate) second: String,
}

/// Name of the property that differs if one of the lineages lacks the run.
pub(crate) const MISSING: &str = "run";

/// Returns all differences, in the order of the runs' names. Data that the viewer may not see is left out.
pub(crate) fn differences(first: &Graph, second: &Graph) -> Vec<Difference> {
    let (left, right) = (named(first), named(second));
    let names: BTreeSet<_> = left.keys().chain(right.keys()).copied().collect();
    let mut found = Vec::new();
    for name in names {
        let none = Vec::new();
        let (left, right) = (
            left.get(name).unwrap_or(&none),
            right.get(name).unwrap_or(&none),
        );
        for at in 0..left.len().max(right.len()) {
            let mut differ = |what, first: String, second: String| {
                let run = name.to_owned();
                let one = Difference {
                    run,
                    what,
                    first,
                    second,
                };
                found.extend((one.first != one.second).then_some(one));
            };
            let (Some(one), Some(other)) = (left.get(at), right.get(at)) else {
                let of =
                    |run: Option<&&LineageRecord>| run.map(|run| command(run)).unwrap_or_default();
                differ(MISSING, of(left.get(at)), of(right.get(at)));
                continue;
            };
            differ("kernel", one.kernel.clone(), other.kernel.clone());
            if one.kernel == other.kernel {
                differ("code", one.kernel_hash.clone(), other.kernel_hash.clone());
            }
            differ("arguments", one.args.join(" "), other.args.join(" "));
            let around = |run: &LineageRecord| run.runtime_environment.to_string();
            differ("runtime_environment", around(one), around(other));
            let (read, read_other) = (sources(first, one), sources(second, other));
            let (read, read_other) = without_same(read, read_other);
            differ("inputs", shown(&read), shown(&read_other));
            let inner = |graph, run| sizes(graph, run);
            differ("output bytes", inner(first, one), inner(second, other));
        }
    }
    found
}

fn named(graph: &Graph) -> BTreeMap<&str, Vec<&LineageRecord>> {
    let mut named: BTreeMap<&str, Vec<&LineageRecord>> = BTreeMap::new();
    for record in graph
        .records()
        .filter(|run| !run.hidden && !run.is_others())
    {
        named.entry(&record.name).or_default().push(record);
    }
    named
}

fn command(run: &LineageRecord) -> String {
    let words = std::iter::once(&run.kernel).chain(&run.args);
    words.map(String::as_str).collect::<Vec<_>>().join(" ")
}

/// Returns the inputs of a run that no run of the graph has written; other inputs differ because their producers differ.
fn sources<'a>(graph: &'a Graph, run: &LineageRecord) -> Vec<KnownRead<'a>> {
    let objects = run.inputs.iter().map(|(_, object)| *object);
    let sources = objects.filter(|object| graph.maker(*object).is_none());
    sources
        .map(|object| (object, graph.version(object)))
        .collect()
}

/// Object of a version that a run read, and the known data of the version.
type KnownRead<'a> = (ObjectId, Option<&'a LineageVersion>);

/// Returns the sources that are not the same in both runs; all sources if the runs have different numbers of sources.
fn without_same<'a>(
    left: Vec<KnownRead<'a>>,
    right: Vec<KnownRead<'a>>,
) -> (Vec<KnownRead<'a>>, Vec<KnownRead<'a>>) {
    if left.len() != right.len() {
        return (left, right);
    }
    let pairs = left.into_iter().zip(right);
    pairs.filter(|(left, right)| !same(left, right)).unzip()
}

/// Returns whether two versions have the same content: the same object, or objects known to have the same content.
fn same(left: &KnownRead<'_>, right: &KnownRead<'_>) -> bool {
    let first = |(object, version): &KnownRead<'_>| {
        version
            .and_then(|version| version.same_as)
            .unwrap_or(*object)
    };
    let hash = |(_, version): &KnownRead<'_>| version.and_then(|one| one.hash.clone());
    first(left) == first(right) || hash(left).is_some_and(|of| Some(of) == hash(right))
}

fn shown(sources: &[KnownRead<'_>]) -> String {
    let one = |(object, version): &KnownRead<'_>| match version {
        Some(version) => format!("{} (object {object})", version.shown_path()),
        None => format!("object {object}"),
    };
    sources.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn sizes(graph: &Graph, run: &LineageRecord) -> String {
    let size = |(_, object): &(String, ObjectId)| match graph.version(*object) {
        Some(version) if !version.hidden => version.size.to_string(),
        _ => "?".to_owned(),
    };
    run.outputs.iter().map(size).collect::<Vec<_>>().join(", ")
}

/// Returns one line per difference: `-` only in the first lineage, `+` only in the second, `~` in both, with different values.
pub(crate) fn text(differences: &[Difference]) -> String {
    let mut out = String::new();
    for Difference {
        run,
        what,
        first,
        second,
    } in differences
    {
        let line = match (*what, first.is_empty()) {
            (MISSING, true) => format!("+ {run}: {second}"),
            (MISSING, false) => format!("- {run}: {first}"),
            _ => format!("~ {run}: {what}: {first} \u{2192} {second}"),
        };
        out.push_str(&tidemill_model::display::line(&line));
        out.push('\n');
    }
    if differences.is_empty() {
        out.push_str("no difference\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::tests::mosaic;
    use super::*;
    use tidemill_model::id::TaskId;

    #[test]
    fn lineage_graph_has_no_difference_from_itself() {
        assert_eq!(differences(&mosaic(), &mosaic()), []);
        assert_eq!(text(&[]), "no difference\n");
    }

    #[test]
    fn lineage_difference_lists_runs_arguments_code_and_sources() {
        let mut other = mosaic();
        let mut run = other.record(TaskId(11)).unwrap().clone();
        run.args = vec!["-m".into(), "13".into()];
        run.inputs[0].1 = ObjectId(77);
        other.add_record(run);
        let mut run = other.record(TaskId(13)).unwrap().clone();
        run.kernel_hash = "ef".into();
        other.add_record(run);
        let mut run = other.record(TaskId(14)).unwrap().clone();
        run.name = "draw".into();
        other.add_record(run);
        let printed = text(&differences(&mosaic(), &other));
        let lines: Vec<&str> = printed.lines().collect();
        assert_eq!(
            lines,
            [
                "~ add: code: abcd \u{2192} ef",
                "+ draw: view -x a \"b\" <c> & {d}",
                "~ project1: arguments: -x a \"b\" <c> & {d} \u{2192} -m 13",
                "~ project1: inputs: /raw/1.fits (object 1) \u{2192} object 77",
                "- view: view -x a \"b\" <c> & {d}",
            ]
        );
    }

    #[test]
    fn lineage_difference_ignores_inputs_of_same_content() {
        let mut other = mosaic();
        let mut run = other.record(TaskId(11)).unwrap().clone();
        run.inputs[0].1 = ObjectId(77);
        other.add_record(run);
        let mut copy = other.version(ObjectId(1)).unwrap().clone();
        (copy.object, copy.same_as) = (ObjectId(77), Some(ObjectId(1)));
        other.add_version(copy);
        assert_eq!(differences(&mosaic(), &other), []);
    }
}
