//! `tidemill async status`: applications that publish labels on this host.

use crate::context::CommandContext;
use crate::output::apps::Applications;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "Examples:
  tidemill async status
  tidemill --json async status | jq '.applications[] | select(.failed > 0)'

The list has your applications on this host. A finished application stays until all its labels are done.";

/// Show the applications that publish labels on this host, and their unfinished labels
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Directory of the logs [default: /dev/shm/tidemill-labels-UID]
    #[arg(long, value_name = "DIR", env = "TIDEMILL_LABELS")]
    data_dir: Option<PathBuf>,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let known = tidemill_label::apps::list(args.data_dir.as_deref())?;
    context.output.finish(&Applications::from(&known))
}
