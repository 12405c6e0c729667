//! `tidemill mv`: renames files and directories of the cluster.

use crate::context::{CommandContext, credentials};
use crate::files;
use crate::output::files::kind;
use std::ffi::OsString;
use std::process::ExitCode;
use tidemill_wire::v1::{self, name_op::Op};

const EXAMPLES: &str = "Examples:
  tidemill mv /raw/a.fits /raw/b.fits
  tidemill mv /mosaic.png /results         into an existing directory";

/// Rename a file or directory of the cluster; its bytes stay on their node
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Present path
    from: OsString,
    /// New path, or an existing directory to move it into
    to: OsString,
    /// Fail if the new path exists
    #[arg(long, short)]
    no_replace: bool,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let (from, mut to) = (files::path(&args.from)?, files::path(&args.to)?);
    let (directory, name) = from.split()?;
    // Resolves the source first, so that an error names its whole path.
    files::resolve(&server, &from, false).await?;
    let target = files::find(&server, &to, true).await;
    if target.is_ok_and(|entry| kind(&entry) == v1::Kind::Directory) {
        to = to.join(name);
    }
    let (new_directory, new_name) = to.split()?;
    let rename = v1::Rename {
        parent: files::inode(&server, directory).await?,
        name: name.to_vec(),
        new_parent: files::inode(&server, new_directory).await?,
        new_name: new_name.to_vec(),
        no_replace: args.no_replace,
        ..v1::Rename::default()
    };
    server.one(&credentials(), Op::Rename(rename)).await?;
    Ok(ExitCode::SUCCESS)
}
