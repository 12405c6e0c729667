//! `tidemill element remove`: an element is the array's no more.

use crate::context::Context;
use crate::format;
use crate::output::Said;
use serde_json::json;
use std::process::ExitCode;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill element drain 3 --wait && tidemill element remove 3
  tidemill element remove 3 --lose          its disk is lost: lose files that no other element has

The number is not given again: the server refuses an element with it. The folder of the element stays as it is.";

/// Remove an element from the array for good (root and the server's user only)
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Number of the element, as in `tidemill status`
    #[arg(value_name = "ELEMENT")]
    element: u32,
    /// Lose the files that no other element has. Only their names and their lineage remain
    #[arg(long)]
    lose: bool,
}

pub(crate) async fn run(args: &Args, context: &Context) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let request = v1::RemoveElementRequest {
        element: args.element,
        lose: args.lose,
    };
    let removed = server.places().remove(request).await;
    let lost = removed
        .map_err(|status| server.explain(status))?
        .into_inner()
        .files_lost;
    let text = match lost {
        0 => format!("element {} is the array's no more", args.element),
        lost => format!(
            "element {} is the array's no more; {} lost: `tidemill status` names some",
            args.element,
            format::count(lost, "file")
        ),
    };
    let said = json!({ "element": args.element, "files_lost": lost });
    context.output.show(&Said::new(text, said))?;
    Ok(ExitCode::SUCCESS)
}
