//! `tidemill lineage`: what made a file, and what was made of it.

use crate::context::{Context, credentials};
use crate::files;
use crate::output::View;
use crate::output::lineage::LineageView;
use anyhow::Context as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill lineage /montage/mosaic.png             everything that made it
  tidemill lineage --down /raw/a.fits              everything that was made of it
  tidemill lineage --depth 1 /montage/mosaic.png   the last step only
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
    let view = LineageView {
        reply,
        up,
        down: args.down,
    };
    let format = if context.global.json && args.format == Format::Text {
        Format::Json
    } else {
        args.format
    };
    write(&render(&view, format)?, args.output.as_deref())?;
    Ok(ExitCode::SUCCESS)
}

fn render(view: &LineageView, format: Format) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    match format {
        Format::Text => view.text(&mut text)?,
        Format::Json => text = format!("{:#}\n", view.json()).into_bytes(),
    }
    Ok(text)
}

fn write(text: &[u8], output: Option<&Path>) -> anyhow::Result<()> {
    match output {
        Some(path) => std::fs::write(path, text)
            .with_context(|| format!("can't write the lineage: {}", path.display())),
        None => Ok(std::io::Write::write_all(&mut std::io::stdout(), text)?),
    }
}
