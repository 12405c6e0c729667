//! Lineage as a text tree for terminals. A version or run appears only once.

use super::{Graph, LineageRecord, LineageVersion, VersionWriter, Vertex, iso_time};
use crate::display::{self, bytes};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Maximum number of characters of an annotation's value in a line of the tree.
const VALUE_CHARS_MAX: usize = 60;

/// Direction in which a tree grows from its root version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TreeDirection {
    /// Towards the inputs of the version.
    Up,
    /// Towards the versions that were computed from the version.
    Down,
}

/// Returns the trees of the origins (`up`) and of the results (`down`) of the given versions and runs.
#[must_use]
pub fn trees(graph: &Graph, roots: &[Vertex], up: bool, down: bool) -> String {
    let up = up.then(|| render(graph, roots, TreeDirection::Up));
    let down = down.then(|| {
        let tree = render(graph, roots, TreeDirection::Down);
        format!("Created from it:\n{tree}")
    });
    up.into_iter().chain(down).collect::<Vec<_>>().join("\n")
}

/// Returns one line for each version or run, and further lines with the inputs and outputs of a run.
#[must_use]
pub fn list(graph: &Graph, found: &[Vertex]) -> String {
    let mut out = String::new();
    for &item in found {
        let _ = writeln!(out, "{}", display::line(&line(graph, item)));
        let Vertex::Run(task) = item else { continue };
        let Some(record) = graph.record(task) else {
            continue;
        };
        for (what, ends) in [("read", &record.inputs), ("made", &record.outputs)] {
            for (_, object) in ends {
                let end = line(graph, Vertex::Version(*object));
                let _ = writeln!(out, "   {what} {}", display::line(&end));
            }
        }
    }
    if found.is_empty() {
        out.push_str("nothing found\n");
    }
    if let Some(cut) = &graph.cut {
        let _ = writeln!(out, "{cut}");
    }
    out
}

/// Returns the trees of versions or runs, with a line per version and per run. The depth is not limited.
fn render(graph: &Graph, roots: &[Vertex], direction: TreeDirection) -> String {
    let mut out = String::new();
    let mut shown = BTreeSet::new();
    // Items still to print, in reverse order: the indentation, and whether the item is the last of its siblings.
    let root = |root: &Vertex| (*root, String::new(), None);
    let mut pending: Vec<_> = roots.iter().rev().map(root).collect();
    while let Some((item, indent, last)) = pending.pop() {
        let branch = last.map_or("", |last| if last { "└─ " } else { "├─ " });
        let below = last.map_or(String::new(), |last| {
            format!("{indent}{}", if last { "   " } else { "│  " })
        });
        let again = !shown.insert(item);
        if again && last.is_none() {
            continue;
        }
        let children = if again {
            Vec::new()
        } else {
            children(graph, item, direction)
        };
        let note = if again && has_children(graph, item, direction) {
            "  (see above)"
        } else {
            ""
        };
        // Names may contain control characters for a terminal.
        let line = display::line(&line(graph, item));
        let _ = writeln!(out, "{indent}{branch}{line}{note}");
        let count = children.len();
        for (index, child) in children.into_iter().enumerate().rev() {
            pending.push((child, below.clone(), Some(index + 1 == count)));
        }
    }
    if let Some(cut) = &graph.cut {
        let _ = writeln!(out, "{cut}");
    }
    out
}

fn children(graph: &Graph, item: Vertex, direction: TreeDirection) -> Vec<Vertex> {
    let versions = |record: &LineageRecord| {
        let list = if direction == TreeDirection::Up {
            &record.inputs
        } else {
            &record.outputs
        };
        list.iter()
            .map(|(_, object)| Vertex::Version(*object))
            .collect()
    };
    match (item, direction) {
        (Vertex::Version(object), TreeDirection::Up) => graph
            .maker(object)
            .map(|record| Vertex::Run(record.task))
            .into_iter()
            .collect(),
        (Vertex::Version(object), TreeDirection::Down) => graph
            .readers(object)
            .map(|record| Vertex::Run(record.task))
            .collect(),
        (Vertex::Run(task), _) => graph.record(task).map(versions).unwrap_or_default(),
    }
}

fn has_children(graph: &Graph, item: Vertex, direction: TreeDirection) -> bool {
    !children(graph, item, direction).is_empty()
}

fn line(graph: &Graph, item: Vertex) -> String {
    match item {
        Vertex::Version(object) => match graph.version(object) {
            Some(version) => {
                let unknown = match version.writer {
                    // The record of the task was lost with its node.
                    VersionWriter::Task(task) if unexplained(graph, version) => {
                        format!(", made by task {task}, without further details")
                    }
                    _ => String::new(),
                };
                version_line(version) + &unknown
            }
            None => format!("object {object}, without further details"),
        },
        Vertex::Run(task) => graph.record(task).map(run_line).unwrap_or_default(),
    }
}

/// Returns whether the task that wrote a version is not part of the graph.
fn unexplained(graph: &Graph, version: &LineageVersion) -> bool {
    !version.hidden && graph.maker(version.object).is_none()
}

/// Returns the line that describes a version.
#[must_use]
pub fn version_line(version: &LineageVersion) -> String {
    if version.hidden {
        return format!("{}  [object {}]", version.shown_path(), version.object);
    }
    let moved = match &version.current_path {
        Some(path) if *path == version.path => String::new(),
        Some(_) => format!(", was {}", version.path),
        None => ", has no name any more".to_owned(),
    };
    let dropped = version.dropped.as_ref();
    let dropped = dropped.map_or(String::new(), |how| format!(", dropped {how}"));
    let older = if version.superseded {
        format!(", version {} and not the last", version.number)
    } else {
        String::new()
    };
    let writer = match version.writer {
        VersionWriter::Task(_) => String::new(),
        VersionWriter::Client(owner) => {
            format!(
                ", written by user {} at {}",
                owner.uid,
                iso_time(version.sealed_at)
            )
        }
    };
    format!(
        "{}  [object {}, {}, node {}{older}{moved}{dropped}{writer}]{}",
        version.shown_path(),
        version.object,
        bytes(version.size),
        version.node,
        annotations(version)
    )
}

/// Returns the annotations of a version for the end of its line.
fn annotations(version: &LineageVersion) -> String {
    let cut = |text: &str| -> String {
        let mut kept: String = text.chars().take(VALUE_CHARS_MAX).collect();
        if kept.len() < text.len() {
            kept.push('\u{2026}');
        }
        kept
    };
    let one = |(name, value): &(String, String)| format!("{name}={}", cut(value));
    let all: Vec<String> = version.annotations.iter().map(one).collect();
    if all.is_empty() {
        return String::new();
    }
    format!("  {{{}}}", all.join(", "))
}

/// Returns the line that describes a run.
#[must_use]
pub fn run_line(record: &LineageRecord) -> String {
    if record.hidden {
        return format!("{}  [task {}]", record.shown_name(), record.task);
    }
    if record.is_others() {
        let ran = record.end.since(record.start).as_secs_f64();
        return format!(
            "{}: {}  [task {} of user {}, node {}, {}, {ran:.3} s]",
            record.shown_name(),
            record.kernel,
            record.task,
            record.owner.uid,
            record.node,
            iso_time(record.start),
        );
    }
    let mut command = record.kernel.clone();
    for arg in &record.args {
        command.push(' ');
        command.push_str(arg);
    }
    if !record.runtime_environment.is_empty() {
        command.push_str(&format!("  with {}", record.runtime_environment));
    }
    let hash: String = record.kernel_hash.chars().take(12).collect();
    let reused = record
        .reused
        .map(|task| format!(", result of task {task} used again, which ran there and then"))
        .unwrap_or_default();
    format!(
        "{}: {command}  [task {} of job {}, node {}, {}, {:.3} s, transferred {}, kernel {hash}{reused}]",
        record.name,
        record.task,
        record.job,
        record.node,
        iso_time(record.start),
        record.end.since(record.start).as_secs_f64(),
        bytes(record.transferred_bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::samples::mosaic;
    use super::*;
    use crate::id::{ObjectId, TaskId};

    fn of(object: u64) -> [Vertex; 1] {
        [Vertex::Version(ObjectId(object))]
    }

    fn names(text: &str) -> Vec<&str> {
        text.lines()
            .map(|line| line.split("  [").next().unwrap_or(line))
            .collect()
    }

    #[test]
    fn text_tree_grows_up_from_result_to_sources() {
        let text = render(&mosaic(), &of(5), TreeDirection::Up);
        let args = "-x a \"b\" <c> & {d}";
        assert_eq!(
            names(&text),
            [
                "/mosaic.fits".to_owned(),
                format!("└─ add: add {args}"),
                "   ├─ /p/1.fits".to_owned(),
                format!("   │  └─ project1: project1 {args}"),
                "   │     └─ /raw/1.fits".to_owned(),
                "   └─ /p/2.fits".to_owned(),
                format!("      └─ project2: project2 {args}"),
                "         └─ /raw/2.fits".to_owned(),
            ]
        );
        assert!(
            text.contains("written by user 1000 at 2023-11-14T22:13:20.000Z"),
            "{text}"
        );
        assert!(text.contains("task 13 of job 5, node 2"), "{text}");
    }

    #[test]
    fn text_tree_grows_down_and_reports_unknown_object() {
        let text = render(&mosaic(), &of(2), TreeDirection::Down);
        assert!(text.contains("/mosaic <1>.png"), "{text}");
        assert!(
            render(&mosaic(), &of(99), TreeDirection::Up)
                .starts_with("object 99, without further details")
        );
    }

    #[test]
    fn text_tree_shows_repeated_input_once() {
        let mut graph = mosaic();
        let mut again = graph.records[&TaskId(13)].clone();
        again.inputs.push(("again".into(), ObjectId(3)));
        graph.add_record(again);
        let text = render(&graph, &of(5), TreeDirection::Up);
        assert_eq!(text.matches("/raw/1.fits").count(), 1, "{text}");
        assert_eq!(text.matches("(see above)").count(), 1, "{text}");
    }
}
