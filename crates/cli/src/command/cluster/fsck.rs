//! `tidemill cluster fsck`: compares the namespace with the objects on nodes.

use crate::context::CommandContext;
use crate::format::{self, TimeLength};
use crate::output::check::{Checked, Finding};
use std::process::ExitCode;
use tidemill_wire::v1::{self, check_reply::Message};

const EXAMPLES: &str = "Examples:
  tidemill cluster fsck                             objects without a file, files whose bytes are missing or wrong
  tidemill cluster fsck --repair --dry-run          show the repairs, and change nothing
  tidemill cluster fsck --repair                    seal unsealed files that have a name, too
  tidemill cluster fsck --repair --yes              set objects without a file aside, too; nodes remove them after a week
  tidemill --json cluster fsck | jq -r 'select(.kind == \"missing\").path'

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
    /// With --repair: show the repairs, and change nothing
    #[arg(long, requires = "repair")]
    dry_run: bool,
    /// Minimum age of a reported object without a file. A younger object may belong to a file in creation
    #[arg(long, value_name = "TIME", default_value = "1h")]
    age: TimeLength,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let request = v1::CheckRequest {
        repair: args.repair && !args.dry_run,
        age_ns_min: u64::try_from(args.age.0.as_nanos()).unwrap_or(u64::MAX),
        remove: args.yes && !args.dry_run,
    };
    let mut replies = server.answer(server.cluster().check(request).await)?;
    let (mut findings, mut orphans, mut unsealed) = (0_u64, 0_u64, 0_u64);
    loop {
        let reply = replies.message().await;
        let reply = reply.map_err(|status| server.explain(status))?;
        match reply.and_then(|reply| reply.message) {
            Some(Message::Finding(finding)) => {
                findings += 1;
                orphans += u64::from(finding.kind == "orphan");
                unsealed += u64::from(finding.kind == "unsealed");
                context.output.step(&Finding::from(&finding))?;
            }
            Some(Message::Checked(checked)) => {
                context.output.step(&Checked::new(&checked, findings))?;
                note_left(&args, (orphans, unsealed), context);
                return Ok(ExitCode::from(u8::from(findings > 0)));
            }
            None => anyhow::bail!(
                "the check broke off after {}: the server ended it; try again",
                format::count(findings, "finding")
            ),
        }
    }
}

/// Says which repairs were left out, because --dry-run was given or --yes was not.
fn note_left(args: &Args, (orphans, unsealed): (u64, u64), context: &CommandContext) {
    if args.dry_run && unsealed > 0 {
        let files = format::count(unsealed, "unsealed file");
        context.note(format_args!(
            "{files} would be sealed, if a name refers to the file"
        ));
    }
    if args.repair && orphans > 0 && (args.dry_run || !args.yes) {
        let objects = format::count(orphans, "object");
        context.note(match args.yes {
            true => format!("{objects} would be removed"),
            false => format!("{objects} would be removed with --yes: look at the list first"),
        });
    }
}
