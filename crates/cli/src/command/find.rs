//! `tidemill find`: searches files by their metadata.

use crate::context::{CommandContext, credentials};
use crate::files;
use crate::output::find::Found;
use anyhow::anyhow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidemill_client::Error;
use tidemill_lang::find::read;
use tidemill_mount::mountpoint::is_mounted;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill find 'var = tas and time >= 1990 and lat < 30'   by headers of netCDF, HDF5 and FITS files
  tidemill find 'units = K and dim.lat >= 180' --under /cmip6
  tidemill find 'attr.institution ~ \"NC.*\" or standard_name = air_temperature'
  tidemill find 'user.project = x and not owner = alice'      by attributes that setfattr sets
  tidemill find 'name = *.nc and size > 1G and mtime >= 2026-01-01'
  tidemill find 'made-by = monthly and from = /raw/a.nc'      by kernel, task, job or rule; by input
  tidemill find 'time = 1999-12' --under /mnt/tidemill/cmip6  prints paths of the mount
  tidemill --json find 'var = tas' --header | jq -r '.header.attributes.experiment'";

/// Find files by name, size, owner, attributes, lineage and the content of their headers
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Condition: comparisons, joined by and, or, not and parentheses
    #[arg(value_name = "EXPR")]
    expression: String,
    /// Directory of the cluster, or of a mount, to search below
    #[arg(long, value_name = "DIRECTORY", default_value = "/")]
    under: OsString,
    /// With --json: show all known values of each file's header
    #[arg(long)]
    header: bool,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    read(&args.expression).map_err(|error| anyhow!(error.pointed(&args.expression)))?;
    let (mount, under) = directory(&args.under)?;
    let server = context.connect().await?;
    let mut request = v1::FindRequest {
        credentials: Some(credentials()),
        expression: args.expression,
        under: under.into_bytes(),
        headers: args.header && context.global.json,
        ..v1::FindRequest::default()
    };
    loop {
        let reply = server.finder().query(request.clone()).await;
        let reply = reply.map_err(Error::from)?.into_inner();
        for file in reply.files {
            let mount = mount.as_deref();
            context.output.step(&Found::new(mount, &file))?;
        }
        if reply.after == 0 {
            if reply.unread > 0 {
                let unread = reply.unread;
                context.note(format_args!(
                    "{unread} headers have not been read yet: there may be more"
                ));
            }
            return Ok(ExitCode::SUCCESS);
        }
        request.after = reply.after;
    }
}

/// Returns the mountpoint, if the directory is a path of a mount, and the directory's path in the cluster.
fn directory(text: &OsStr) -> anyhow::Result<(Option<PathBuf>, files::ClusterPath)> {
    if matches!(text.as_bytes(), [b'/' | b'.', ..]) {
        let whole = std::path::absolute(text)?;
        let whole: PathBuf = whole.components().collect();
        if let Some(mount) = whole.ancestors().find(|path| is_mounted(path)) {
            let below = whole.strip_prefix(mount).unwrap_or(Path::new(""));
            return Ok((Some(mount.to_owned()), files::path(below)?));
        }
    }
    Ok((None, files::path(text)?))
}
