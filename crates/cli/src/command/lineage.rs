//! `tidemill lineage`: what made a file, and what was made of it.

use crate::context::{Context, credentials};
use crate::files;
use crate::output::lineage::json;
use crate::output::prov;
use anyhow::Context as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidemill_core::id::ObjectId;
use tidemill_core::lineage::{dot, svg, text};
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill lineage /montage/mosaic.png             everything that made it
  tidemill lineage --down /raw/a.fits              everything that was made of it
  tidemill lineage --depth 1 /montage/mosaic.png   the last step only
  tidemill lineage --format svg -o mosaic.svg /montage/mosaic.png
  tidemill --json lineage --object 4711            an exact version, also of a file that is gone";

/// Tell which exact versions, kernels, arguments, elements and times produced a file
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Path in the array
    #[arg(required_unless_present = "object", conflicts_with = "object")]
    path: Option<String>,
    /// An object instead of a path, by its id
    #[arg(long, value_name = "ID")]
    object: Option<u64>,
    /// What made it (unless --down alone is given)
    #[arg(long)]
    up: bool,
    /// What was made of it
    #[arg(long)]
    down: bool,
    /// How many tasks to go from it; 0: all
    #[arg(long, value_name = "N", default_value_t = 0)]
    depth: u32,
    /// How to write it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Where to write it [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// How a graph is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// A tree, for people
    Text,
    /// Versions and runs with all that is known of them
    Json,
    /// A graph for Graphviz
    Dot,
    /// A picture
    Svg,
    /// PROV-JSON of the W3C
    ProvJson,
}

pub(crate) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let up = args.up || !args.down;
    let path = args.path.as_deref().map(files::path).transpose()?;
    let request = v1::LineageRequest {
        credentials: Some(credentials()),
        path: path.unwrap_or_default().into_bytes(),
        object: args.object.unwrap_or(0),
        up,
        down: args.down,
        depth: args.depth,
    };
    let reply = server.lineage().query(request).await;
    let reply = reply.map_err(|status| server.explain(status))?.into_inner();
    let format = if context.global.json && args.format == Format::Text {
        Format::Json
    } else {
        args.format
    };
    write(
        &render(&reply, format, up, args.down),
        args.output.as_deref(),
    )?;
    Ok(ExitCode::SUCCESS)
}

fn render(reply: &v1::LineageReply, format: Format, up: bool, down: bool) -> String {
    let graph = tidemill_wire::lineage::graph(reply);
    match format {
        Format::Text => text::trees(&graph, ObjectId(reply.object), up, down),
        Format::Json => format!("{:#}", json(reply)),
        Format::Dot => dot::render(&graph),
        Format::Svg => svg::render(&graph),
        Format::ProvJson => format!("{:#}", prov::document(&graph)),
    }
}

fn write(text: &str, output: Option<&Path>) -> anyhow::Result<()> {
    let text = format!("{}\n", text.trim_end_matches('\n'));
    match output {
        Some(path) => std::fs::write(path, text)
            .with_context(|| format!("can't write the lineage: {}", path.display())),
        None => Ok(std::io::Write::write_all(
            &mut std::io::stdout(),
            text.as_bytes(),
        )?),
    }
}
