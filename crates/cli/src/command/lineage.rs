//! `tidemill lineage`: the origin of a file, the files that derive from it, and a search through all recorded tasks.

use crate::context::{CommandContext, credentials};
use crate::files;
use crate::output::lineage::{difference, json};
use crate::output::{atomic_file, exact, prov};
use anyhow::Context as _;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidemill_client::Server;
use tidemill_core::display::{day_of, escaped};
use tidemill_core::id::{JobId, ObjectId, TaskId};
use tidemill_core::lineage::search::{LineageCriteria, matches_pattern};
use tidemill_core::lineage::{Graph, Vertex, difference as differences, dot, svg, text};
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill lineage /montage/mosaic.png             the origin of the file
  tidemill lineage --down /raw/a.fits              all files that were made from it
  tidemill lineage --depth 1 /montage/mosaic.png   the last step only
  tidemill lineage --stop softmean /atlas-x.gif    no steps before softmean
  tidemill lineage --task 17                       a run, and the origin of its inputs
  tidemill lineage --versions /montage/mosaic.png  all versions of the path
  tidemill lineage --kernel align_warp --arg '-m 12' --on monday
  tidemill lineage --annotation center=UChicago    files with that attribute (setfattr -n user.center -v UChicago)
  tidemill lineage --down --annotation max=4095 --only 'atlas-*.gif'   the files that were made from such files
  tidemill lineage /run1/atlas-x.gif --diff /run2/atlas-x.gif          the differences between their origins
  tidemill lineage --format svg -o mosaic.svg /montage/mosaic.png

A search without a path covers all your tasks and all files that you may read. With a path, it covers the lineage of that path.";

/// Nanoseconds of a second.
const SECOND_NS: i64 = 1_000_000_000;

/// Show the exact versions, kernels, arguments, nodes and times that produced a file
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Path in the cluster
    path: Option<OsString>,
    /// Id of an object, instead of a path
    #[arg(long, value_name = "ID", conflicts_with = "path")]
    object: Option<u64>,
    /// Id of a recorded task
    #[arg(long, value_name = "ID", conflicts_with_all = ["path", "object"])]
    task: Option<u64>,
    /// Id of a job, for all its tasks
    #[arg(long, value_name = "ID", conflicts_with_all = ["path", "object", "task"])]
    job: Option<u64>,
    /// List all versions of the path, past versions included
    #[arg(long, requires = "path", conflicts_with_all = ["up", "down", "depth", "diff"])]
    versions: bool,
    /// Show the origin of the file (the default without --down)
    #[arg(long)]
    up: bool,
    /// Show the files that were made from it
    #[arg(long)]
    down: bool,
    /// Maximum number of tasks on each way; 0: no limit
    #[arg(long, value_name = "N", default_value_t = 0)]
    depth: u32,
    /// Kernel at whose tasks the graph stops
    #[arg(long, value_name = "KERNEL")]
    stop: Option<String>,
    /// Path, or id of the same kind as the first, whose lineage is compared with this one
    #[arg(long, value_name = "OTHER")]
    diff: Option<OsString>,
    #[command(flatten)]
    search: Searched,
    /// Restrict the result to files that a task with this kernel made
    #[arg(long, value_name = "KERNEL")]
    outputs_of: Option<String>,
    /// Restrict the result to files of this name; `*` and `?` stand for anything
    #[arg(long, value_name = "NAME")]
    only: Option<OsString>,
    /// Format of the output
    #[arg(long, value_enum, default_value_t = GraphFormat::Text)]
    format: GraphFormat,
    /// Output path [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Conditions of a search.
#[derive(Debug, clap::Args)]
struct Searched {
    /// Kernel or program of tasks; directory, version and ending may be left out
    #[arg(long, value_name = "KERNEL")]
    kernel: Option<String>,
    /// Words among the arguments of tasks, as in --arg '-m 12'
    #[arg(long = "arg", value_name = "WORDS", allow_hyphen_values = true)]
    args: Vec<String>,
    /// Day on which tasks began (UTC): a weekday or YYYY-MM-DD
    #[arg(long, value_name = "DAY", value_parser = day)]
    on: Option<Day>,
    /// Earliest begin of tasks (UTC): YYYY-MM-DD or YYYY-MM-DDTHH:MM:SS
    #[arg(long, value_name = "TIME", value_parser = time)]
    since: Option<i64>,
    /// End of the period in which tasks began (UTC), exclusive
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<i64>,
    /// Attribute `user.NAME` of files, or of inputs or outputs of tasks; with several values, any of them
    #[arg(long = "annotation", value_name = "NAME[=VALUE,...]", value_parser = annotation)]
    annotations: Vec<v1::AnnotationSearch>,
}

/// A day that something was done on.
#[derive(Clone, Copy, Debug)]
enum Day {
    /// 1 Monday to 7 Sunday.
    OfWeek(u32),
    /// Nanoseconds since the Unix epoch at its begin.
    Date(i64),
}

fn day(text: &str) -> Result<Day, String> {
    const NAMES: [&str; 7] = [
        "monday",
        "tuesday",
        "wednesday",
        "thursday",
        "friday",
        "saturday",
        "sunday",
    ];
    let small = text.to_ascii_lowercase();
    let is = |name: &str| small.len() >= 2 && name.starts_with(&small);
    if let Some(number) = (1..)
        .zip(&NAMES)
        .find_map(|(number, name)| is(name).then_some(number))
    {
        return Ok(Day::OfWeek(number));
    }
    let date = text
        .split_once('T')
        .is_none()
        .then(|| time(text).ok())
        .flatten();
    date.map(Day::Date).ok_or_else(|| {
        format!("`{text}` is neither a weekday, as `monday`, nor a date, as 2026-07-27")
    })
}

/// Nanoseconds since the Unix epoch.
fn time(text: &str) -> Result<i64, String> {
    let wrong = || format!("`{text}` is no time in UTC, as 2026-07-27 or 2026-07-27T18:30:00");
    let (date, clock) = text.split_once('T').unwrap_or((text, "0:0:0"));
    let numbers = |text: &str, between: char| -> Option<Vec<i64>> {
        let part = |part: &str| part.parse().ok().filter(|number| *number >= 0);
        text.split(between).map(part).collect()
    };
    let clock = clock.strip_suffix('Z').unwrap_or(clock);
    let (Some(date), Some(clock)) = (numbers(date, '-'), numbers(clock, ':')) else {
        return Err(wrong());
    };
    let (
        &[year @ 1970..=2200, month @ 1..=12, day @ 1..=31],
        &[hour @ 0..24, minute @ 0..60, ref second @ ..],
    ) = (date.as_slice(), clock.as_slice())
    else {
        return Err(wrong());
    };
    let second = match second {
        [] => 0,
        [second @ 0..60] => *second,
        _ => return Err(wrong()),
    };
    let seconds = ((day_of(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
    Ok(seconds * SECOND_NS)
}

fn annotation(text: &str) -> Result<v1::AnnotationSearch, String> {
    let (name, values) = text.split_once('=').unwrap_or((text, ""));
    let name = name.strip_prefix("user.").unwrap_or(name);
    if name.is_empty() {
        return Err("an annotation has a name: NAME, NAME=VALUE or NAME=VALUE,VALUE".into());
    }
    let values = values.split(',').filter(|value| !value.is_empty());
    Ok(v1::AnnotationSearch {
        name: name.to_owned(),
        values: values.map(str::to_owned).collect(),
    })
}

impl Searched {
    fn to_wire(&self) -> v1::LineageSearch {
        let (mut since, mut until) = (self.since.unwrap_or(0), self.until.unwrap_or(0));
        let mut weekday = 0;
        match self.on {
            Some(Day::OfWeek(day)) => weekday = day,
            Some(Day::Date(begin)) => {
                let end = begin + 24 * 3600 * SECOND_NS;
                since = since.max(begin);
                until = if until == 0 { end } else { until.min(end) };
            }
            None => {}
        }
        v1::LineageSearch {
            kernel: self.kernel.clone().unwrap_or_default(),
            args: self.args.clone(),
            since,
            until,
            weekday,
            annotations: self.annotations.clone(),
        }
    }
}

/// Format of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum GraphFormat {
    /// A tree or a list, for people
    Text,
    /// Versions and runs with all recorded values
    Json,
    /// A graph for Graphviz
    Dot,
    /// A picture
    Svg,
    /// PROV-JSON of the W3C
    ProvJson,
}

impl Args {
    fn has_start(&self) -> bool {
        self.path.is_some() || self.object.is_some() || self.task.is_some() || self.job.is_some()
    }

    /// Returns the directions: up, to the origin of a file, by default; none from the results of a search.
    fn ways(&self) -> (bool, bool) {
        let up = self.up || (!self.down && self.has_start() && !self.versions);
        (up, self.down)
    }

    fn request(&self) -> anyhow::Result<v1::LineageRequest> {
        let search = self.search.to_wire();
        let empty = tidemill_wire::lineage::search(&search).is_empty();
        anyhow::ensure!(
            self.has_start() || !empty,
            "say which file, or what to search for: a path, --object, --task, --job, --kernel, --arg, --on, --since, \
             --until or --annotation"
        );
        let path = self.path.as_ref().map(files::path).transpose()?;
        let (up, down) = self.ways();
        Ok(v1::LineageRequest {
            credentials: Some(credentials()),
            path: path.unwrap_or_default().into_bytes(),
            object: self.object.unwrap_or(0),
            up,
            down,
            depth: self.depth,
            task: self.task.unwrap_or(0),
            job: self.job.unwrap_or(0),
            search: (!self.has_start()).then_some(search),
            versions: self.versions,
        })
    }

    /// The same question of another start.
    fn other(
        &self,
        request: &v1::LineageRequest,
        other: &OsStr,
    ) -> anyhow::Result<v1::LineageRequest> {
        let id = || -> anyhow::Result<u64> {
            let wrong = || format!("--diff {}: give an id, as for the first", other.display());
            let id = other.to_str().and_then(|id| id.parse().ok());
            id.with_context(wrong)
        };
        let mut request = request.clone();
        if self.task.is_some() {
            request.task = id()?;
        } else if self.job.is_some() {
            request.job = id()?;
        } else if self.object.is_some() {
            request.object = id()?;
        } else {
            anyhow::ensure!(
                self.path.is_some(),
                "--diff compares with a path, or with what --task, --job or --object say"
            );
            request.path = files::path(other)?.into_bytes();
        }
        Ok(request)
    }
}

/// An answer, as far as it is shown.
struct LineageView {
    reply: v1::LineageReply,
    graph: Graph,
    /// Where it starts.
    roots: Vec<Vertex>,
    /// Vertices that are listed instead of trees.
    found: Option<Vec<Vertex>>,
}

async fn ask(
    args: &Args,
    server: &Server,
    request: v1::LineageRequest,
) -> anyhow::Result<LineageView> {
    let (up, down) = args.ways();
    let search = tidemill_wire::lineage::search(&args.search.to_wire());
    let job = request.job;
    let task = request.task;
    let reply = server.lineage().query(request).await;
    let reply = reply.map_err(|status| server.explain(status))?.into_inner();
    let mut graph = tidemill_wire::lineage::graph(&reply);
    let mut matching = matching(&search, &graph);
    let roots = if task != 0 {
        vec![Vertex::Run(TaskId(task))]
    } else if job != 0 {
        ends_of(&graph, JobId(job), up)
    } else if args.versions {
        graph
            .versions()
            .map(|version| Vertex::Version(version.object))
            .collect()
    } else if args.has_start() {
        vec![Vertex::Version(ObjectId(reply.object))]
    } else {
        matching.clone()
    };
    if let Some(kernel) = &args.stop {
        graph = graph.stopped(&roots, (up, down), |run| run.is_of(kernel));
        matching.retain(|one| has(&graph, *one));
    }
    let selects = args.outputs_of.is_some() || args.only.is_some();
    let found = if selects {
        Some(selected(
            args,
            &graph,
            if search.is_empty() || up || down {
                None
            } else {
                Some(&matching)
            },
        ))
    } else if args.versions {
        let file = files::path(args.path.as_deref().unwrap_or_default())?;
        Some(of_path(&graph, &file))
    } else if !search.is_empty() && (args.has_start() || !(up || down)) {
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

/// The versions of a path, without what their tasks read.
fn of_path(graph: &Graph, path: &files::ClusterPath) -> Vec<Vertex> {
    let path = &*escaped(path.as_ref());
    let of = |version: &&tidemill_core::lineage::LineageVersion| {
        version.path == path || version.current_path.as_deref() == Some(path)
    };
    let mut versions: Vec<_> = graph.versions().filter(of).collect();
    versions.sort_by_key(|version| (version.sealed_at, version.object));
    versions
        .into_iter()
        .map(|version| Vertex::Version(version.object))
        .collect()
}

/// The files that are wanted, of those that some runs made or of all.
fn selected(args: &Args, graph: &Graph, among: Option<&[Vertex]>) -> Vec<Vertex> {
    let only = args.only.as_ref().map(exact);
    let named = |object: ObjectId| {
        let Some(pattern) = &only else {
            return true;
        };
        let path = graph
            .version(object)
            .map_or("", |version| version.shown_path());
        let name = path.rsplit('/').next().unwrap_or_default();
        matches_pattern(name, pattern) || matches_pattern(path, pattern)
    };
    let makers = |object: ObjectId| {
        let maker = graph.maker(object);
        let wanted = |run: &tidemill_core::lineage::LineageRecord| {
            let of = args.outputs_of.as_ref();
            of.is_none_or(|kernel| run.is_of(kernel))
                && among.is_none_or(|among| among.contains(&Vertex::Run(run.task)))
        };
        let listed = among.is_some_and(|among| among.contains(&Vertex::Version(object)));
        let anything = args.outputs_of.is_none() && (among.is_none() || listed);
        anything || maker.is_some_and(wanted)
    };
    let versions = graph.versions().filter(|version| !version.hidden);
    let versions = versions.map(|version| version.object);
    versions
        .filter(|object| named(*object) && makers(*object))
        .map(Vertex::Version)
        .collect()
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let request = args.request()?;
    let server = context.connect().await?;
    let format = if context.global.json && args.format == GraphFormat::Text {
        GraphFormat::Json
    } else {
        args.format
    };
    let text = if let Some(other) = &args.diff {
        let other = args.other(&request, other)?;
        let (first, second) = (
            ask(&args, &server, request).await?,
            ask(&args, &server, other).await?,
        );
        let differences = differences::differences(&first.graph, &second.graph);
        match format {
            GraphFormat::Text => differences::text(&differences),
            GraphFormat::Json => format!("{:#}", difference(&differences)),
            _ => anyhow::bail!("differences are written as text or JSON only"),
        }
    } else {
        render(&ask(&args, &server, request).await?, format, args.ways())
    };
    write(&text, args.output.as_deref())?;
    Ok(ExitCode::SUCCESS)
}

fn render(answer: &LineageView, format: GraphFormat, (up, down): (bool, bool)) -> String {
    let LineageView {
        reply,
        graph,
        roots,
        found,
    } = answer;
    match (format, found) {
        (GraphFormat::Text, Some(found)) => text::list(graph, found),
        (GraphFormat::Text, None) => text::trees(graph, roots, up, down),
        (GraphFormat::Json, _) => format!("{:#}", json(reply, graph, found.as_deref())),
        (GraphFormat::Dot, _) => dot::render(graph),
        (GraphFormat::Svg, _) => svg::render(graph),
        (GraphFormat::ProvJson, _) => format!("{:#}", prov::document(graph, reply.cluster)),
    }
}

fn write(text: &str, output: Option<&Path>) -> anyhow::Result<()> {
    let text = format!("{}\n", text.trim_end_matches('\n'));
    match output {
        Some(path) => atomic_file::write(path, text.as_bytes()),
        None => Ok(std::io::Write::write_all(
            &mut std::io::stdout(),
            text.as_bytes(),
        )?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lineage_parses_times_days_and_annotations() {
        assert_eq!(time("1970-01-02"), Ok(86_400 * SECOND_NS));
        assert_eq!(time("1970-01-01T01:02:03Z"), Ok(3_723 * SECOND_NS));
        assert_eq!(time("1970-01-01T01:02"), Ok(3_720 * SECOND_NS));
        for wrong in [
            "",
            "monday",
            "1970",
            "1970-13-01",
            "1970-01-01T24:00",
            "1970-01-01T1",
            "70-1-1",
        ] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
        assert!(matches!(day("Monday"), Ok(Day::OfWeek(1))));
        assert!(matches!(day("sun"), Ok(Day::OfWeek(7))));
        assert!(matches!(day("1970-01-02"), Ok(Day::Date(_))));
        assert!(day("someday").is_err() && day("m").is_err());
        let read = annotation("user.modality=speech,audio").unwrap();
        assert_eq!((read.name.as_str(), read.values.len()), ("modality", 2));
        assert!(annotation("modality").unwrap().values.is_empty());
        assert!(annotation("=x").is_err());
    }
}
