//! `tidemill cluster rebalance`: full nodes give files to empty ones.

use crate::context::CommandContext;
use crate::output::places::Rebalance;
use std::process::ExitCode;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill cluster rebalance --dry-run              show the planned migrations
  tidemill cluster rebalance                        move files, in the background
  tidemill cluster rebalance --within 2             balance smaller differences, too
  tidemill cluster rebalance --cancel               stop; files that have not moved yet stay

The fill level is the used share of a node's capacity. Only nodes that are up and are not being emptied take part.";

/// Balance the fill level of nodes (administrators only)
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Show the planned migrations, and move nothing
    #[arg(long)]
    dry_run: bool,
    /// Difference of fill levels that is tolerated, in percent of the capacity, 1 to 100
    #[arg(long, value_name = "PERCENT", default_value_t = 5)]
    within: u32,
    /// Stop the move: files that have not moved yet stay
    #[arg(long, conflicts_with = "dry_run")]
    cancel: bool,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let request = v1::RebalanceRequest {
        dry_run: args.dry_run,
        cancel: args.cancel,
        within_percent: args.within,
    };
    let planned = server.answer(server.places().rebalance(request).await)?;
    if args.cancel {
        context.note("files that have not moved yet stay on their nodes");
        return Ok(ExitCode::SUCCESS);
    }
    let begun = !args.dry_run && !planned.flows.is_empty();
    context.output.show(&Rebalance::from(&planned))?;
    if begun {
        context.note("the move has begun, in the background: `tidemill cluster tasks` shows its progress, `tidemill cluster rebalance --cancel` stops it");
    }
    Ok(ExitCode::SUCCESS)
}
