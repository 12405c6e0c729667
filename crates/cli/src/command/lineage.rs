//! `tidemill lineage`: the origin of files, the files that derive from them, and searches through all recorded tasks.

mod criteria;
mod question;

use crate::context::CommandContext;
use crate::drawing::{difference as differences, dot, svg};
use crate::output::lineage::{Differences, Lineage};
use crate::output::{Message, Output, Registered, atomic_file, list, prov};
use anyhow::{Context as _, ensure};
use clap::Subcommand;
use criteria::Searched;
use question::{LineageView, Question, Start, Ways, ask};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidemill_model::lineage::text;

const EXAMPLES: &str = "Examples:
  tidemill lineage show /montage/mosaic.png            the origin of a file
  tidemill lineage show --down /raw/a.fits             all files that derive from it
  tidemill lineage versions /montage/mosaic.png        all versions of a path
  tidemill lineage search --kernel align_warp --on monday
  tidemill lineage diff /run1/atlas-x.gif /run2/atlas-x.gif";

const SHOW_EXAMPLES: &str = "Examples:
  tidemill lineage show /montage/mosaic.png            the origin of the file
  tidemill lineage show --down /raw/a.fits             all files that derive from it
  tidemill lineage show --depth 1 /montage/mosaic.png  the last step only
  tidemill lineage show --stop softmean /atlas-x.gif   no steps before softmean
  tidemill lineage show --task 17                      a task, and the origin of its inputs
  tidemill lineage show --format svg -o mosaic.svg /montage/mosaic.png";

const VERSIONS_EXAMPLES: &str = "Examples:
  tidemill lineage versions /montage/mosaic.png
  tidemill --json lineage versions /montage/mosaic.png | jq .found.objects";

const SEARCH_EXAMPLES: &str = "Examples:
  tidemill lineage search --kernel align_warp --arg '-m 12' --on monday
  tidemill lineage search --annotation center=UChicago    files with that attribute (setfattr -n user.center -v UChicago)
  tidemill lineage search --down --annotation max=4095 --only 'atlas-*.gif'    files of this name that derive from such files
  tidemill lineage search --outputs-of softmean /atlas-x.gif    files that softmean made, in the lineage of one file

Without a path, the search covers all your tasks and all files that you may read. With a path, it covers the lineage of that path.";

const DIFF_EXAMPLES: &str = "Examples:
  tidemill lineage diff /run1/atlas-x.gif /run2/atlas-x.gif    two files
  tidemill lineage diff --task 17 29                           two tasks
  tidemill lineage diff --job 3 4                              two jobs";

/// Show the exact versions, kernels, arguments, nodes and times that produced a file
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: LineageCommand,
}

#[derive(Debug, Subcommand)]
enum LineageCommand {
    Show(ShowArgs),
    Versions(VersionsArgs),
    Search(Box<SearchArgs>),
    Diff(DiffArgs),
}

/// Show the origin of a file, or the files that derive from it
#[derive(Debug, clap::Args)]
#[command(after_help = SHOW_EXAMPLES)]
struct ShowArgs {
    #[command(flatten)]
    start: Start,
    #[command(flatten)]
    ways: Ways,
    #[command(flatten)]
    written: Written,
}

/// List all versions of a path, past versions included
#[derive(Debug, clap::Args)]
#[command(after_help = VERSIONS_EXAMPLES)]
struct VersionsArgs {
    /// Path in the cluster
    path: OsString,
    #[command(flatten)]
    written: Written,
}

/// Search recorded tasks and files
#[derive(Debug, clap::Args)]
#[command(after_help = SEARCH_EXAMPLES)]
struct SearchArgs {
    #[command(flatten)]
    start: Start,
    #[command(flatten)]
    search: Searched,
    #[command(flatten)]
    ways: Ways,
    #[command(flatten)]
    written: Written,
}

/// Compare the lineage of two files, tasks or jobs
#[derive(Debug, clap::Args)]
#[command(after_help = DIFF_EXAMPLES)]
struct DiffArgs {
    /// Path in the cluster, or an id
    one: OsString,
    /// Path in the cluster, or an id of the same kind
    other: OsString,
    /// Compare two objects, given by their ids
    #[arg(long)]
    object: bool,
    /// Compare two tasks, given by their ids
    #[arg(long, conflicts_with = "object")]
    task: bool,
    /// Compare two jobs, given by their ids
    #[arg(long, conflicts_with_all = ["object", "task"])]
    job: bool,
    #[command(flatten)]
    ways: Ways,
    /// Output path on this machine [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Form and destination of the result.
#[derive(Debug, clap::Args)]
struct Written {
    /// Format of the output
    #[arg(long, value_enum, default_value_t = GraphFormat::Text)]
    format: GraphFormat,
    /// Output path on this machine [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
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

impl DiffArgs {
    /// Returns the start of one side.
    fn start(&self, text: &OsStr) -> anyhow::Result<Start> {
        let mut start = Start::default();
        let id = match (self.object, self.task, self.job) {
            (true, ..) => &mut start.object,
            (_, true, _) => &mut start.task,
            (_, _, true) => &mut start.job,
            _ => {
                start.path = Some(text.to_owned());
                return Ok(start);
            }
        };
        let number: Option<u64> = text.to_str().and_then(|text| text.parse().ok());
        *id = Some(number.with_context(|| format!("not an id: {}", text.display()))?);
        Ok(start)
    }
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let (question, written) = match args.command {
        LineageCommand::Show(args) => {
            ensure!(
                args.start.is_given(),
                "no start: give a path, --object, --task or --job; `tidemill lineage search` searches all tasks"
            );
            let question = Question {
                start: args.start,
                ways: args.ways,
                ..Question::default()
            };
            (question, args.written)
        }
        LineageCommand::Versions(args) => {
            let question = Question {
                start: Start {
                    path: Some(args.path),
                    ..Start::default()
                },
                versions: true,
                ..Question::default()
            };
            (question, args.written)
        }
        LineageCommand::Search(args) => {
            let question = Question {
                start: args.start,
                ways: args.ways,
                search: args.search,
                versions: false,
            };
            question.need_condition()?;
            (question, args.written)
        }
        LineageCommand::Diff(args) => return diff(args, context).await,
    };
    let request = question.request()?;
    let server = context.connect().await?;
    let format = if context.output.json && written.format == GraphFormat::Text {
        GraphFormat::Json
    } else {
        written.format
    };
    let answer = ask(&question, &server, request).await?;
    if format == GraphFormat::Json {
        let lineage = Lineage::new(&answer.reply, &answer.graph, answer.found.as_deref());
        print(lineage, written.output.as_deref(), context)?;
        return Ok(ExitCode::SUCCESS);
    }
    let text = render(&answer, format, question.directions());
    write(&text, written.output.as_deref())?;
    Ok(ExitCode::SUCCESS)
}

async fn diff(args: DiffArgs, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let (one, other) = (args.start(&args.one)?, args.start(&args.other)?);
    let server = context.connect().await?;
    let mut question = Question {
        start: one,
        ways: args.ways,
        ..Question::default()
    };
    let first = ask(&question, &server, question.request()?).await?;
    question.start = other;
    let second = ask(&question, &server, question.request()?).await?;
    let differences = differences::differences(&first.graph, &second.graph);
    let output = args.output.as_deref();
    if context.output.json {
        let differences = list(&differences);
        print(Differences { differences }, output, context)?;
    } else {
        write(&differences::text(&differences), output)?;
    }
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
        (GraphFormat::Text | GraphFormat::Json, Some(found)) => text::list(graph, found),
        (GraphFormat::Text | GraphFormat::Json, None) => text::trees(graph, roots, up, down),
        (GraphFormat::Dot, _) => dot::render(graph),
        (GraphFormat::Svg, _) => svg::render(graph),
        (GraphFormat::ProvJson, _) => format!("{:#}", prov::document(graph, reply.cluster)),
    }
}

/// Writes a result as JSON to a file, or prints it.
fn print(
    report: impl Registered,
    output: Option<&Path>,
    context: &CommandContext,
) -> anyhow::Result<()> {
    if let Some(path) = output {
        return atomic_file::write(
            path,
            (serde_json::to_string_pretty(&report)? + "\n").as_bytes(),
        );
    }
    let json = Output {
        json: true,
        ..context.output.clone()
    };
    json.show(&Message(String::new(), report))
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
