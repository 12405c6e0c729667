//! `tidemill stat`: kind, owner and times of files, and the nodes that hold their bytes.

use crate::context::{CommandContext, credentials};
use crate::files;
use crate::output::files::kind;
use crate::output::stat::{Layout, Stat};
use anyhow::Context as _;
use std::ffi::OsString;
use std::process::ExitCode;
use tidemill_client::{Error, Server};
use tidemill_wire::v1::{self, Kind, name_op::Op, name_result::Result as Answer};

const EXAMPLES: &str = "Examples:
  tidemill stat /raw/a.fits
  tidemill stat /raw                       a directory; `tidemill set /raw` shows its settings
  tidemill --json stat /raw/a.fits | jq '.parts[].replicas'";

/// Show the metadata of files, and the nodes that hold their bytes
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Paths in the cluster
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let nodes = server.status().await?.nodes;
    for path in &args.paths {
        let path = files::path(path)?;
        let entry = files::resolve(&server, &path, true).await?;
        let layout = match kind(&entry) {
            Kind::File => layout(&server, &path, &entry).await?,
            _ => None,
        };
        context
            .output
            .step(&Stat::new(path, &entry, layout, &nodes))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the layout of a file; `None` if the file has no layout.
async fn layout(
    server: &Server,
    path: &files::ClusterPath,
    entry: &v1::Entry,
) -> anyhow::Result<Option<Layout>> {
    let get = v1::GetXattr {
        ino: entry.attr.map_or(0, |attr| attr.ino),
        name: b"user.tidemill.layout".to_vec(),
    };
    match server.one(&credentials(), Op::GetXattr(get)).await {
        Ok(Answer::Bytes(bytes)) => {
            let layout = serde_json::from_slice(&bytes.value);
            Ok(Some(layout.with_context(|| {
                format!("can't read the layout of {path}: it is no JSON")
            })?))
        }
        Ok(_) => Err(Error::Answer("GetXattr").into()),
        Err(error) if error.is(rustix::io::Errno::NODATA) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
