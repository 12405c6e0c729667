//! `tidemill cluster health`: the states that need an administrator, and files that are unavailable or lack replicas.

use crate::context::CommandContext;
use crate::output::health::Health;
use std::process::ExitCode;
use tidemill_client::Server;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill cluster health
  tidemill cluster health --all                 every file's name
  tidemill --json cluster health --all | jq -r '.files[] | select(.kind == \"lost\").path'

Exit codes: 0 all is well; 3 all files are available, but a state of the cluster needs an administrator, or replicas are missing;
4 files are unavailable (their nodes do not answer) or lost (no intact replica remains); 5 the cluster can't be reached; another code: the
command failed.
docs/troubleshooting.md lists the states by name.";

/// The lists of files.
const KINDS: [&str; 4] = ["lost", "unavailable", "corrupt", "short"];

/// Show the states that need an administrator, and files that are unavailable, corrupt or lack replicas
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Name all files, not only the first few
    #[arg(long)]
    all: bool,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let status = server.status().await?;
    let mut health = ask(&server, "", 0).await?;
    if args.all {
        health.ailing.clear();
        for kind in KINDS {
            let mut after = 0;
            loop {
                let page = ask(&server, kind, after).await?;
                after = page.ailing.last().map_or(after, |one| one.object);
                health.ailing.extend(page.ailing);
                if !page.more {
                    break;
                }
            }
        }
    }
    let health = Health::new(&health, &status.nodes, &status.conditions);
    context.output.show(&health)?;
    Ok(ExitCode::from(health.exit()))
}

async fn ask(server: &Server, kind: &str, after: u64) -> anyhow::Result<v1::HealthReply> {
    let request = v1::HealthRequest {
        kind: kind.into(),
        after,
    };
    Ok(server.answer(server.health().show(request).await)?)
}
