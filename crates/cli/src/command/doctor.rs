//! `tidemill doctor`: checks this machine, its configuration and the way to the server.

mod cluster;
mod host;
mod kernels;

use crate::context::CommandContext;
use crate::output::doctor::{CheckState, Checks};
use std::process::ExitCode;

const EXAMPLES: &str = "Examples:
  tidemill doctor
  tidemill --server https://10.0.0.1:7700 doctor            check the way to that server, too
  tidemill --json doctor | jq '.checks[] | select(.state != \"ok\")'

Run it as the user that runs the daemon: some results differ between root and other users. The command changes nothing.

Exit codes: 0 no problem, 1 a problem. A warning names a part that is slower, weaker or missing, but optional.";

/// Check this machine: Linux, FUSE, isolation of kernels, limits, clock, configuration and server
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {}

pub(crate) async fn run(_args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let mut checks = vec![cluster::version(), cluster::configuration(context)];
    checks.extend(host::checks());
    checks.push(host::clock().await);
    checks.extend(kernels::checks());
    checks.push(cluster::server(context).await);
    let checks = Checks::from(checks);
    context.output.show(&checks)?;
    Ok(match checks.state {
        CheckState::Problem => ExitCode::from(crate::FAILED),
        CheckState::Ok | CheckState::Warning => ExitCode::SUCCESS,
    })
}
