//! Lineage for people: a tree of versions and of the tasks that made them, and the same as JSON.

use super::View;
use crate::format;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use tidemill_wire::v1;

/// The graph around one version of a file.
#[derive(Debug)]
pub(crate) struct LineageView {
    /// What the server said.
    pub(crate) reply: v1::LineageReply,
    /// Whether what made it is shown.
    pub(crate) up: bool,
    /// Whether what was made of it is shown.
    pub(crate) down: bool,
}

impl View for LineageView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut tree = Tree::new(&self.reply);
        if self.up {
            tree.walk(out, Direction::Up)?;
        }
        if self.down {
            if self.up {
                writeln!(out)?;
            }
            writeln!(out, "What was made of it:")?;
            tree.walk(out, Direction::Down)?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        json!({
            "object": self.reply.object,
            "versions": self.reply.versions.iter().map(version_json).collect::<Vec<_>>(),
            "runs": self.reply.runs.iter().map(run_json).collect::<Vec<_>>(),
        })
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Up,
    Down,
}

/// One line that is still to be written, with what it hangs from.
enum Line {
    /// A version, with the name that the task knew it by.
    Version(u64, Option<String>),
    Run(u64),
}

/// The graph by ids. Each version and each task is written out once; later it is only named.
struct Tree<'a> {
    root: u64,
    versions: BTreeMap<u64, &'a v1::Version>,
    runs: BTreeMap<u64, &'a v1::Run>,
    readers: BTreeMap<u64, Vec<u64>>,
}

impl<'a> Tree<'a> {
    fn new(reply: &'a v1::LineageReply) -> Self {
        let mut readers: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for run in &reply.runs {
            let objects: BTreeSet<u64> = run.inputs.iter().map(|input| input.object).collect();
            for object in objects {
                readers.entry(object).or_default().push(run.task);
            }
        }
        Self {
            root: reply.object,
            versions: reply
                .versions
                .iter()
                .map(|version| (version.object, version))
                .collect(),
            runs: reply.runs.iter().map(|run| (run.task, run)).collect(),
            readers,
        }
    }

    /// Writes everything in one direction from the root. Keeps a stack of its own: chains of tasks can be long.
    fn walk(&mut self, out: &mut dyn Write, direction: Direction) -> io::Result<()> {
        let mut shown = BTreeSet::new();
        let mut stack = vec![(Line::Version(self.root, None), String::new(), String::new())];
        while let Some((line, lead, indent)) = stack.pop() {
            let (text, key) = match &line {
                Line::Version(object, name) => {
                    (self.version(*object, name.as_deref()), (0, *object))
                }
                Line::Run(task) => (self.run(*task), (1, *task)),
            };
            let next = self.next(&line, direction);
            if !next.is_empty() && !shown.insert(key) {
                writeln!(out, "{lead}{text} (see above)")?;
                continue;
            }
            writeln!(out, "{lead}{text}")?;
            let last = next.len().saturating_sub(1);
            for (index, line) in next.into_iter().enumerate().rev() {
                let (branch, bar) = if index == last {
                    ("└─ ", "   ")
                } else {
                    ("├─ ", "│  ")
                };
                stack.push((line, format!("{indent}{branch}"), format!("{indent}{bar}")));
            }
        }
        Ok(())
    }

    fn next(&self, line: &Line, direction: Direction) -> Vec<Line> {
        let named = |objects: &[v1::NamedObject]| {
            objects
                .iter()
                .map(|object| Line::Version(object.object, Some(object.name.clone())))
                .collect()
        };
        match (line, direction) {
            (Line::Version(object, _), Direction::Up) => {
                let maker = self.versions.get(object).map_or(0, |version| version.task);
                self.runs
                    .get(&maker)
                    .map(|run| Line::Run(run.task))
                    .into_iter()
                    .collect()
            }
            (Line::Version(object, _), Direction::Down) => self
                .readers
                .get(object)
                .into_iter()
                .flatten()
                .map(|task| Line::Run(*task))
                .collect(),
            (Line::Run(task), Direction::Up) => self
                .runs
                .get(task)
                .map_or_else(Vec::new, |run| named(&run.inputs)),
            (Line::Run(task), Direction::Down) => self
                .runs
                .get(task)
                .map_or_else(Vec::new, |run| named(&run.outputs)),
        }
    }

    fn version(&self, object: u64, name: Option<&str>) -> String {
        let Some(version) = self.versions.get(&object) else {
            return format!("{} (object {object})", name.unwrap_or("?"));
        };
        let mut text = format!(
            "{} version {}, {}, object {object} on element {}",
            version.path,
            version.version,
            format::bytes(version.size),
            version.element,
        );
        if version.current_path.is_empty() {
            text.push_str(", has no name any more");
        } else if version.current_path != version.path {
            text = format!("{text}, now called {}", version.current_path);
        }
        if version.task == 0 {
            text = format!(
                "{text}, written by user {} {} UTC",
                version.uid,
                format::time(version.sealed_at)
            );
        }
        text
    }

    fn run(&self, task: u64) -> String {
        let Some(run) = self.runs.get(&task) else {
            return format!("task {task}");
        };
        let command = std::iter::once(&run.kernel)
            .chain(&run.args)
            .map(String::as_str)
            .collect::<Vec<_>>();
        let took = u64::try_from(run.end - run.start).unwrap_or(0);
        format!(
            "{} [{}] task {task} of job {} {}, element {}, {} UTC, {}, kernel {}",
            run.name,
            command.join(" "),
            run.job,
            run.job_name,
            run.element,
            format::time(run.start),
            format::span(took),
            run.kernel_hash.get(..12).unwrap_or(&run.kernel_hash),
        )
    }
}

fn version_json(version: &v1::Version) -> Value {
    json!({
        "object": version.object,
        "path": version.path,
        "current_path": version.current_path,
        "size": version.size,
        "inode": version.ino,
        "version": version.version,
        "uid": version.uid,
        "sealed_at": version.sealed_at,
        "element": version.element,
        "task": version.task,
    })
}

fn run_json(run: &v1::Run) -> Value {
    let named = |objects: &[v1::NamedObject]| -> Value {
        objects
            .iter()
            .map(|object| json!({ "name": object.name, "object": object.object }))
            .collect()
    };
    json!({
        "task": run.task,
        "job": run.job,
        "job_name": run.job_name,
        "name": run.name,
        "kernel": run.kernel,
        "kernel_hash": run.kernel_hash,
        "args": run.args,
        "element": run.element,
        "uid": run.uid,
        "start": run.start,
        "end": run.end,
        "read_bytes": run.read_bytes,
        "written_bytes": run.written_bytes,
        "moved_bytes": run.moved_bytes,
        "inputs": named(&run.inputs),
        "outputs": named(&run.outputs),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(objects: &[(&str, u64)]) -> Vec<v1::NamedObject> {
        let named = |(name, object): &(&str, u64)| v1::NamedObject {
            name: (*name).into(),
            object: *object,
        };
        objects.iter().map(named).collect()
    }

    /// in(1) → left(2), right(3) → out(4)
    fn diamond() -> v1::LineageReply {
        let version = |object, path: &str, task| v1::Version {
            object,
            path: path.into(),
            current_path: path.into(),
            version: 1,
            task,
            ..v1::Version::default()
        };
        let run = |task, name: &str, inputs: &[(&str, u64)], outputs: &[(&str, u64)]| v1::Run {
            task,
            name: name.into(),
            kernel: "cat".into(),
            inputs: named(inputs),
            outputs: named(outputs),
            ..v1::Run::default()
        };
        v1::LineageReply {
            object: 4,
            versions: vec![
                version(1, "/in", 0),
                version(2, "/left", 10),
                version(3, "/right", 11),
                version(4, "/out", 12),
            ],
            runs: vec![
                run(10, "split", &[("in", 1)], &[("left", 2)]),
                run(11, "turn", &[("in", 1), ("left", 2)], &[("right", 3)]),
                run(12, "join", &[("left", 2), ("right", 3)], &[("out", 4)]),
            ],
        }
    }

    fn first_words(view: &LineageView) -> Vec<String> {
        let mut out = Vec::new();
        view.text(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        text.lines()
            .map(|line| {
                let word = line
                    .trim_start_matches(['│', '├', '└', '─', ' '])
                    .split(' ')
                    .next()
                    .unwrap();
                let again = if line.ends_with("(see above)") {
                    "*"
                } else {
                    ""
                };
                format!("{word}{again}")
            })
            .collect()
    }

    #[test]
    fn what_made_it_is_a_tree_that_writes_each_part_once() {
        let view = LineageView {
            reply: diamond(),
            up: true,
            down: false,
        };
        let expected = [
            "/out", "join", "/left", "split", "/in", "/right", "turn", "/in", "/left*",
        ];
        assert_eq!(first_words(&view), expected);
    }

    #[test]
    fn what_was_made_of_it_goes_the_other_way() {
        let mut reply = diamond();
        reply.object = 1;
        let view = LineageView {
            reply,
            up: false,
            down: true,
        };
        let expected = [
            "What", "/in", "split", "/left", "turn", "/right", "join", "/out", "join*", "turn*",
        ];
        assert_eq!(first_words(&view), expected);
    }
}
