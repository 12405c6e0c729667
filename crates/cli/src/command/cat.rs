//! `tidemill cat`: a file of the cluster on standard output.

use crate::context::CommandContext;
use crate::files;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use tidemill_client::follow::FollowedFile;

/// Maximum number of unwritten ranges that are reported for one file.
const UNWRITTEN_MAX: usize = 8;

const EXAMPLES: &str = "Examples:
  tidemill cat /results/counts.txt
  tidemill cat /raw/a.fits | fitsheader -
  tidemill cat --wait /run/step-7.txt | analyse       while it is written, until it is closed";

/// Print files of the cluster
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Paths in the cluster
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// Follow a file that is being written: print its bytes as they arrive, until the file is closed
    #[arg(long)]
    wait: bool,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let transfer = context.transfer().await?;
    for path in &args.paths {
        let path = &files::path(path)?;
        let copied = to_stdout(&transfer, path, args.wait).await?;
        for hole in copied.unwritten.iter().take(UNWRITTEN_MAX) {
            context.note(format_args!(
                "nobody has written bytes {} to {} of {path}: they are zeros",
                hole.start,
                hole.end - 1
            ));
        }
        if copied.unwritten.len() > UNWRITTEN_MAX {
            let more = copied.unwritten.len() - UNWRITTEN_MAX;
            context.note(format_args!("and {more} more ranges of it"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Copies one file to standard output.
/// Copies one file to standard output.
/// # Errors
/// If the file can't be read. If the reader of the output has closed it, an `std::io::Error` of that kind.
pub(crate) async fn to_stdout(
    transfer: &tidemill_client::transfer::Transfer,
    path: &files::ClusterPath,
    wait: bool,
) -> anyhow::Result<FollowedFile> {
    let piece = |piece: bytes::Bytes| {
        let mut out = std::io::stdout().lock();
        out.write_all(&piece)
            .and_then(|()| out.flush())
            .map_err(|source| tidemill_client::Error::Local {
                path: "standard output".into(),
                source,
            })
    };
    let copied = match wait {
        true => transfer.follow(path, piece).await,
        false => transfer.read(path, piece).await.map(|bytes| FollowedFile {
            bytes,
            ..FollowedFile::default()
        }),
    };
    match copied {
        Err(tidemill_client::Error::Local { source, .. }) => Err(source.into()),
        Err(error) if error.is(rustix::io::Errno::ISDIR) => Err(anyhow::anyhow!(
            "{error}; name the files in it, or copy it with `tidemill get -r {path} DIRECTORY`"
        )),
        other => Ok(other?),
    }
}
