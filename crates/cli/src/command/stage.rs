//! `tidemill stage`: what is stored gets a copy in the burst tier, where a program is about to read it.

use super::drain;
use crate::context::Context;
use std::process::ExitCode;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill stage /input --wait              until all below it has a copy in the burst tier
  tidemill stage /input --element 8         on that element of the tier
  tidemill --json stage /input | jq .bytes
  tidemill drain /output --free --wait      the other way, when the program has ended

Without --element it is an element of the tier on this host, if there is one, else the one with the most room. Copies there are none of
those that `copies` counts, and go when room is wanted, those that were staged last come last. Files have to be readable for the caller.";

/// Copy stored files to the burst tier, near a program that will read them
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Files and folders; all below a folder is staged
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// Wait until it is done, and say how far it is meanwhile
    #[arg(long)]
    wait: bool,
    /// The element of the burst tier
    #[arg(long, value_name = "N")]
    element: Option<u32>,
}

pub(crate) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    let bring = v1::Bring {
        element: args.element.map_or(0, |element| element.saturating_add(1)),
        host: tidemill_client::host::id(),
    };
    let request = v1::StageRequest {
        bring: Some(bring),
        ..v1::StageRequest::default()
    };
    drain::ask(context, (&args.paths, request), args.wait).await?;
    Ok(ExitCode::SUCCESS)
}
