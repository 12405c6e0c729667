//! `tidemill rule flush`: closes the open batch of a hook.

use super::hook;
use crate::context::{CommandContext, credentials};
use crate::output::Message;
use crate::output::messages::ClosedBatch;
use std::process::ExitCode;
use std::time::Duration;
use tidemill_client::Server;
use tidemill_wire::v1;

/// Interval at which the state of the batch is polled with `--wait`.
const PERIOD: Duration = Duration::from_millis(200);

const EXAMPLES: &str = "Examples:
  tidemill rule flush max
  tidemill rule flush max --wait          until the batch is reduced; exit code 1 if it failed";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Name or number of the hook
    #[arg(value_name = "HOOK")]
    name: String,
    /// Wait until the batch is reduced
    #[arg(long)]
    wait: bool,
}

pub(super) async fn run(
    args: Args,
    context: &CommandContext,
    server: &Server,
) -> anyhow::Result<ExitCode> {
    let request = v1::RuleRequest {
        credentials: Some(credentials()),
        name: args.name.clone(),
    };
    let closed = server.answer(server.rules().end_batch(request).await)?;
    let number = closed.batch;
    if !args.wait {
        let text = format!("batch {number} is closed: it is reduced when all its files are mapped");
        let (state, error) = ("ending".to_owned(), None);
        let closed = ClosedBatch {
            batch: number,
            state,
            error,
        };
        return context.output.finish(&Message(text, closed));
    }
    let batch = reduced(server, &args.name, number).await?;
    let mut text = format!("batch {number} is {}", batch.state);
    let failed = batch.state == "failed";
    if failed {
        text = format!("{text}: {}", batch.error);
    }
    let (state, error) = (batch.state, Some(batch.error));
    let closed = ClosedBatch {
        batch: number,
        state,
        error,
    };
    context.output.show(&Message(text, closed))?;
    Ok(match failed {
        true => ExitCode::from(crate::FAILED),
        false => ExitCode::SUCCESS,
    })
}

/// Waits for the end of a batch. Returns an empty batch if the server no longer knows the batch.
async fn reduced(server: &Server, name: &str, number: u64) -> anyhow::Result<v1::HookBatch> {
    loop {
        let hook = hook(server, name).await?.hook.unwrap_or_default();
        let mut batches = hook.batches.into_iter();
        let batch = batches.find(|batch| batch.batch == number);
        let batch = batch.unwrap_or_default();
        if matches!(batch.state.as_str(), "done" | "failed" | "empty" | "") {
            return Ok(batch);
        }
        tokio::time::sleep(PERIOD).await;
    }
}
