//! `tidemill check`: compares the namespace with what nodes hold.

use crate::context::CommandContext;
use crate::format;
use crate::output::check::{CheckedView, FindingView};
use std::process::ExitCode;
use tidemill_wire::v1::{self, check_reply::Message};

const EXAMPLES: &str = "Examples:
  tidemill check                    objects without a file, files whose bytes are missing or wrong
  tidemill check --repair           seal unsealed files that have a name, too
  tidemill check --repair --yes     set objects without a file aside, too; nodes remove them after a week
  tidemill --json check | jq -r 'select(.kind == \"missing\").path'

Exit codes: 0 no findings, 1 findings (repaired or not), or the check failed.";

/// Compare the namespace with the objects on nodes (administrators only)
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Seal unsealed files that have a name, and show the objects that --yes would remove
    #[arg(long)]
    repair: bool,
    /// With --repair: remove objects without a file. Their nodes keep them for a week
    #[arg(long, requires = "repair")]
    yes: bool,
    /// Minimum age of a reported object without a file, in seconds. A younger object may belong to a file in creation
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    age: u64,
}

pub(crate) async fn run(args: &Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let request = v1::CheckRequest {
        repair: args.repair,
        age_ns_min: args.age.saturating_mul(1_000_000_000),
        remove: args.yes,
    };
    let replies = server.cluster().check(request).await;
    let mut replies = replies
        .map_err(|status| server.explain(status))?
        .into_inner();
    let (mut findings, mut orphans) = (0_u64, 0_u64);
    loop {
        let reply = replies.message().await;
        let reply = reply.map_err(|status| server.explain(status))?;
        match reply.and_then(|reply| reply.message) {
            Some(Message::Finding(finding)) => {
                findings += 1;
                orphans += u64::from(finding.kind == "orphan");
                context.output.step(&FindingView(finding))?;
            }
            Some(Message::Checked(checked)) => {
                context.output.step(&CheckedView { checked, findings })?;
                if args.repair && !args.yes && orphans > 0 {
                    context.note(format_args!(
                        "{} would be removed: look at them, then run it again with --yes",
                        format::count(orphans, "object")
                    ));
                }
                return Ok(ExitCode::from(u8::from(findings > 0)));
            }
            None => anyhow::bail!(
                "the check broke off after {}: the server ended it; try again",
                format::count(findings, "finding")
            ),
        }
    }
}
