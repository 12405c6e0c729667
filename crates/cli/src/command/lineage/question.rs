//! A question about recorded tasks and versions of files, and its answer.

use super::criteria::Searched;
use crate::context::credentials;
use crate::files;
use crate::output::exact;
use anyhow::{Context as _, ensure};
use std::collections::BTreeSet;
use std::ffi::OsString;
use tidemill_client::Server;
use tidemill_model::display::escaped;
use tidemill_model::glob::Pattern;
use tidemill_model::id::{JobId, ObjectId, TaskId};
use tidemill_model::lineage::search::LineageCriteria;
use tidemill_model::lineage::{Graph, Vertex};
use tidemill_wire::v1;

/// Start of a graph.
#[derive(Debug, Default, clap::Args)]
pub(super) struct Start {
    /// Path in the cluster
    pub(super) path: Option<OsString>,
    /// Id of an object, instead of a path
    #[arg(long, value_name = "ID", conflicts_with = "path")]
    pub(super) object: Option<u64>,
    /// Id of a recorded task, instead of a path
    #[arg(long, value_name = "ID", conflicts_with_all = ["path", "object"])]
    pub(super) task: Option<u64>,
    /// Id of a job, for all its tasks, instead of a path
    #[arg(long, value_name = "ID", conflicts_with_all = ["path", "object", "task"])]
    pub(super) job: Option<u64>,
}

impl Start {
    /// Returns whether a start is given.
    pub(super) fn is_given(&self) -> bool {
        self.path.is_some() || self.object.is_some() || self.task.is_some() || self.job.is_some()
    }
}

/// Directions and extent of a graph.
#[derive(Debug, Default, clap::Args)]
pub(super) struct Ways {
    /// Show the origin of the file (the default without --down)
    #[arg(long)]
    up: bool,
    /// Show the files that derive from it
    #[arg(long)]
    down: bool,
    /// Maximum number of tasks on each way; 0: no limit
    #[arg(long, value_name = "N", default_value_t = 0)]
    depth: u32,
    /// Kernel at whose tasks the graph stops
    #[arg(long, value_name = "KERNEL")]
    stop: Option<String>,
}

/// Question about recorded tasks and versions.
#[derive(Debug, Default)]
pub(super) struct Question {
    pub(super) start: Start,
    pub(super) ways: Ways,
    pub(super) search: Searched,
    /// Whether all versions of the path are listed.
    pub(super) versions: bool,
}

impl Question {
    /// Returns the directions: up, to the origin of a file, by default; none from the results of a search.
    pub(super) fn directions(&self) -> (bool, bool) {
        let Ways { up, down, .. } = self.ways;
        let up = up || (!down && self.start.is_given() && !self.versions);
        (up, down)
    }

    fn has_criteria(&self) -> bool {
        !tidemill_wire::lineage::search(&self.search.to_wire()).is_empty()
    }

    /// Checks that the question is a search.
    ///
    /// # Errors
    /// If it has no condition.
    pub(super) fn need_condition(&self) -> anyhow::Result<()> {
        let restricts = self.search.outputs_of.is_some() || self.search.only.is_some();
        ensure!(
            self.has_criteria() || (self.start.is_given() && restricts),
            "no condition: give --kernel, --arg, --on, --since, --until or --annotation; or a path with --outputs-of or --only"
        );
        Ok(())
    }

    /// Returns the request for the server.
    ///
    /// # Errors
    /// If the path is malformed.
    pub(super) fn request(&self) -> anyhow::Result<v1::LineageRequest> {
        let path = self.start.path.as_ref().map(files::path).transpose()?;
        let (up, down) = self.directions();
        Ok(v1::LineageRequest {
            credentials: Some(credentials()),
            path: path.unwrap_or_default().into_bytes(),
            object: self.start.object.unwrap_or(0),
            up,
            down,
            depth: self.ways.depth,
            task: self.start.task.unwrap_or(0),
            job: self.start.job.unwrap_or(0),
            search: (!self.start.is_given()).then(|| self.search.to_wire()),
            versions: self.versions,
        })
    }
}

/// Answer to a question, as far as it is shown.
pub(super) struct LineageView {
    pub(super) reply: v1::LineageReply,
    pub(super) graph: Graph,
    /// Vertices from which the graph starts.
    pub(super) roots: Vec<Vertex>,
    /// Vertices that are listed instead of trees.
    pub(super) found: Option<Vec<Vertex>>,
}

/// Asks the server.
///
/// # Errors
/// If the start does not exist, or the caller may not read it.
pub(super) async fn ask(
    question: &Question,
    server: &Server,
    request: v1::LineageRequest,
) -> anyhow::Result<LineageView> {
    let (up, down) = question.directions();
    let search = tidemill_wire::lineage::search(&question.search.to_wire());
    let job = request.job;
    let task = request.task;
    let reply = server.answer(server.lineage().query(request).await)?;
    let mut graph = tidemill_wire::lineage::graph(&reply);
    let mut matching = matching(&search, &graph);
    let roots = if task != 0 {
        vec![Vertex::Run(TaskId(task))]
    } else if job != 0 {
        ends_of(&graph, JobId(job), up)
    } else if question.versions {
        graph
            .versions()
            .map(|version| Vertex::Version(version.object))
            .collect()
    } else if question.start.is_given() {
        vec![Vertex::Version(ObjectId(reply.object))]
    } else {
        matching.clone()
    };
    if let Some(kernel) = &question.ways.stop {
        graph = graph.stopped(&roots, (up, down), |run| run.is_of(kernel));
        matching.retain(|one| has(&graph, *one));
    }
    let selects = question.search.outputs_of.is_some() || question.search.only.is_some();
    let found = if selects {
        Some(selected(
            question,
            &graph,
            if search.is_empty() || up || down {
                None
            } else {
                Some(&matching)
            },
        )?)
    } else if question.versions {
        let file = files::path(question.start.path.as_deref().unwrap_or_default())?;
        Some(of_path(&graph, &file))
    } else if !search.is_empty() && (question.start.is_given() || !(up || down)) {
        Some(matching)
    } else {
        None
    };
    Ok(LineageView {
        reply,
        graph,
        roots,
        found,
    })
}

fn has(graph: &Graph, vertex: Vertex) -> bool {
    match vertex {
        Vertex::Version(object) => graph.version(object).is_some(),
        Vertex::Run(task) => graph.record(task).is_some(),
    }
}

fn matching(search: &LineageCriteria, graph: &Graph) -> Vec<Vertex> {
    let runs = search.runs(graph).map(|run| Vertex::Run(run.task));
    let versions = search
        .versions(graph)
        .map(|version| Vertex::Version(version.object));
    runs.chain(versions).collect()
}

/// Returns the files that a job made and did not read itself, or the other way round.
fn ends_of(graph: &Graph, job: JobId, up: bool) -> Vec<Vertex> {
    let runs: Vec<_> = graph.records().filter(|run| run.job == job).collect();
    let made = runs
        .iter()
        .flat_map(|run| &run.outputs)
        .map(|(_, object)| *object);
    let read = runs
        .iter()
        .flat_map(|run| &run.inputs)
        .map(|(_, object)| *object);
    let (made, read): (BTreeSet<_>, BTreeSet<_>) = (made.collect(), read.collect());
    let (of, without) = if up { (made, read) } else { (read, made) };
    of.difference(&without)
        .map(|object| Vertex::Version(*object))
        .collect()
}

/// Returns the versions of a path, without the inputs of their tasks.
fn of_path(graph: &Graph, path: &files::ClusterPath) -> Vec<Vertex> {
    let path = &*escaped(path.as_ref());
    let of = |version: &&tidemill_model::lineage::LineageVersion| {
        version.path == path || version.current_path.as_deref() == Some(path)
    };
    let mut versions: Vec<_> = graph.versions().filter(of).collect();
    versions.sort_by_key(|version| (version.sealed_at, version.object));
    versions
        .into_iter()
        .map(|version| Vertex::Version(version.object))
        .collect()
}

/// Returns the selected files, among the outputs of some runs or among all files.
fn selected(
    question: &Question,
    graph: &Graph,
    among: Option<&[Vertex]>,
) -> anyhow::Result<Vec<Vertex>> {
    let only = question.search.only.as_ref().map(exact);
    let pattern = |text: &str| {
        let pattern = Pattern::new(text.trim_start_matches('/'));
        pattern.with_context(|| format!("bad pattern {text}"))
    };
    let only = only.as_deref().map(pattern).transpose()?;
    let named = |object: ObjectId| {
        let Some(pattern) = &only else {
            return true;
        };
        let path = graph
            .version(object)
            .map_or("", |version| version.shown_path());
        let name = path.rsplit('/').next().unwrap_or_default();
        pattern.matches(name) || pattern.matches(path.trim_start_matches('/'))
    };
    let makers = |object: ObjectId| {
        let maker = graph.maker(object);
        let wanted = |run: &tidemill_model::lineage::LineageRecord| {
            let of = question.search.outputs_of.as_ref();
            of.is_none_or(|kernel| run.is_of(kernel))
                && among.is_none_or(|among| among.contains(&Vertex::Run(run.task)))
        };
        let listed = among.is_some_and(|among| among.contains(&Vertex::Version(object)));
        let anything = question.search.outputs_of.is_none() && (among.is_none() || listed);
        anything || maker.is_some_and(wanted)
    };
    let versions = graph.versions().filter(|version| !version.hidden);
    let versions = versions.map(|version| version.object);
    let versions = versions.filter(|object| named(*object) && makers(*object));
    Ok(versions.map(Vertex::Version).collect())
}
