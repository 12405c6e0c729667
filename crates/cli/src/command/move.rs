//! `tidemill move`: files lie on another element from then on.

use crate::context::{Context, credentials};
use crate::files;
use crate::output::places::MovedView;
use std::process::ExitCode;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill move /raw/a.fits --element 2
  tidemill move /raw --element 2            all files below it
  tidemill move /raw --cancel               what has not been moved stays

It is done in the background, by labels (`tidemill labels`), and goes on after a restart of the server. Whoever reads the files
does not notice. Of a file with several copies the first one moves.";

/// Have files of the array lie on another element
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Files and folders; all below a folder moves
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// Where they shall lie
    #[arg(long, value_name = "ELEMENT", required_unless_present = "cancel")]
    element: Option<u32>,
    /// Leave what has not been moved where it is
    #[arg(long, conflicts_with = "element")]
    cancel: bool,
}

pub(crate) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    for path in &args.paths {
        let path = files::path(path)?;
        let request = v1::MoveRequest {
            credentials: Some(credentials()),
            path: path.clone().into_bytes(),
            element: args.element.unwrap_or(0),
            cancel: args.cancel,
        };
        let moved = server.places().r#move(request).await;
        let moved = moved.map_err(|status| server.explain(status))?.into_inner();
        context.output.step(&MovedView {
            path,
            element: args.element,
            moved,
        })?;
    }
    Ok(ExitCode::SUCCESS)
}
