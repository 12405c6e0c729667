//! `tidemill layout`: which nodes have the bytes of a file.

use crate::context::{CommandContext, credentials};
use crate::files;
use crate::output::layout::LayoutView;
use anyhow::Context as _;
use std::ffi::OsString;
use std::process::ExitCode;
use tidemill_client::Error;
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};

const EXAMPLES: &str = "Examples:
  tidemill layout /raw/a.fits
  tidemill --json layout /raw/a.fits | jq '.parts[].replicas'";

/// Show the nodes that hold the bytes of files
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Paths of files in the cluster
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let nodes = server.status().await?.nodes;
    for path in &args.paths {
        let path = files::path(path)?;
        let found = files::resolve(&server, &path, true).await?;
        let get = v1::GetXattr {
            ino: found.attr.map_or(0, |attr| attr.ino),
            name: b"user.tidemill.layout".to_vec(),
        };
        let layout = match server.one(&credentials(), Op::GetXattr(get)).await {
            Ok(Answer::Bytes(bytes)) => serde_json::from_slice(&bytes.value)
                .with_context(|| format!("the layout of {path} makes no sense"))?,
            Ok(_) => return Err(Error::Answer("GetXattr").into()),
            Err(error) if error.is(rustix::io::Errno::NODATA) => {
                anyhow::bail!("no layout: {path}; only files that were written to have one")
            }
            Err(error) => return Err(error.into()),
        };
        context.output.step(&LayoutView {
            path,
            layout,
            nodes: nodes.clone(),
        })?;
    }
    Ok(ExitCode::SUCCESS)
}
