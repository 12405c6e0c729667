//! `tidemill job report`: time and bytes of a job.

use super::{get, named_or_newest};
use crate::context::{CommandContext, credentials};
use crate::output::report::{JobReport, edges};
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use tidemill_client::transfer::Transfer;

const EXAMPLES: &str = "Examples:
  tidemill job report                   your newest job
  tidemill job report 3
  tidemill --json job report 3 | jq .total.transferred_bytes";

/// Show a job's time and bytes per kernel, and the bytes that a run on one client would have moved
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Id of the job [default: your newest]
    job: Option<u64>,
}

pub(super) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let job = named_or_newest(&server, args.job).await?;
    let job = get(&server, job).await?;
    let nodes = server.status().await?.nodes;
    let server_cores: BTreeSet<u32> = nodes
        .iter()
        .filter(|node| node.role == "server-cores")
        .map(|node| node.node)
        .collect();
    let transfer = Transfer::new(server, credentials());
    let (inputs, results) = edges(&job);
    let paths: Vec<&str> = inputs.iter().chain(&results).map(String::as_str).collect();
    let found = transfer.find_all(&paths).await?;
    let sizes = paths.into_iter().zip(found);
    let sizes = sizes.filter_map(|(path, attr)| Some((path.to_owned(), attr?.size)));
    let sizes: BTreeMap<String, u64> = sizes.collect();
    let report = JobReport::new(&job, &sizes, &server_cores);
    context.output.finish(&report)
}
