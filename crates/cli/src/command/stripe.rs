//! `tidemill stripe`: how new files below a directory are spread over nodes.

use super::put;
use crate::context::{CommandContext, credentials};
use crate::files;
use crate::format;
use crate::output::Printed;
use crate::progress::Progress;
use anyhow::Context as _;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::process::ExitCode;
use tidemill_client::{Error, Server};
use tidemill_core::layout::Stripes;
use tidemill_wire::v1::{self, Kind, name_op::Op, name_result::Result as Answer};

const EXAMPLES: &str = "Examples:
  tidemill stripe /big 1MiB        new files below /big: 1 MiB to each node in turn
  tidemill stripe /big 4MiB,8      to 8 nodes each
  tidemill stripe /big off         new files are whole again
  tidemill stripe /big             show the stripes of the directory
  tidemill stripe --rewrite /big/file 1MiB,4     rewrite the file itself
  tidemill stripe --rewrite /big 1MiB            rewrite all existing files below /big
  tidemill layout /big/file        show the nodes with the bytes of a file

An existing file stays as it is until it is written again. --rewrite writes it now, with the same bytes, owner, mode, time
and number of replicas, as a new version, and refuses a file that is being written.";

/// The directory attribute.
const NAME: &[u8] = b"user.tidemill.stripe";

/// Stripe new files below a directory over nodes
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A directory in the cluster; with --rewrite a file, too
    #[arg(value_name = "DIRECTORY")]
    path: OsString,
    /// Rewrite the file, or all files below the directory, in the new stripes
    #[arg(long, requires = "stripes")]
    rewrite: bool,
    /// Bytes of a stripe, a multiple of 4 KiB (bytes, KiB, MiB, GiB), and number of nodes [default: all]; `off`: whole files
    #[arg(value_name = "UNIT[,WIDTH]|off", value_parser = stripes)]
    stripes: Option<String>,
}

fn stripes(text: &str) -> Result<String, String> {
    if text == "off" {
        return Ok(text.into());
    }
    let stripes: Result<Stripes, _> = text.parse();
    let stripes = stripes.map_err(|error| error.to_string())?;
    Ok(stripes.to_string())
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let path = files::path(&args.path)?;
    let found = files::resolve(&server, &path, true).await?;
    let attr = found.attr.unwrap_or_default();
    if args.rewrite && attr.kind() == Kind::File {
        return rewrite(context, &server, (path, found), args.stripes).await;
    }
    if let Some(stripes) = args.stripes.clone() {
        anyhow::ensure!(
            attr.kind() == Kind::Directory,
            "{path} is a file, and stays as it lies; new files of a directory are striped: `tidemill stripe DIRECTORY {stripes}`, or \
             `tidemill stripe --rewrite {path} {stripes}` to rewrite it"
        );
        let set = v1::SetXattr {
            ino: attr.ino,
            name: NAME.to_vec(),
            value: stripes.into_bytes(),
            ..v1::SetXattr::default()
        };
        server.one(&credentials(), Op::SetXattr(set)).await?;
    }
    if args.rewrite {
        return rewrite(context, &server, (path, found), args.stripes).await;
    }
    let text = match stated(&server, attr.ino).await? {
        Some(stated) => stated,
        None => "whole".into(),
    };
    let json = serde_json::json!({ "path": path, "stripe": text });
    context
        .output
        .show(&Printed::new(format!("{path}: {text}"), json))?;
    Ok(ExitCode::SUCCESS)
}

/// Rewrites a file, or all files below a directory.
async fn rewrite(
    context: &CommandContext,
    server: &Server,
    (path, found): (files::ClusterPath, v1::Entry),
    stripes: Option<String>,
) -> anyhow::Result<ExitCode> {
    // `off` is no stripes.
    let stripes: Option<Stripes> = stripes.and_then(|text| text.parse().ok());
    let wanted = below(server, path, found).await?;
    let transfer = context.transfer().await?;
    let progress = Progress::new(context, wanted.iter().map(|(_, size)| size).sum());
    let (mut count, mut bytes) = (0_u64, 0);
    for (path, _) in wanted {
        progress.now(&path);
        let written = transfer.rewrite(&path, stripes, |bytes| progress.add(bytes));
        bytes += written
            .await
            .with_context(|| format!("can't rewrite {path}"))?;
        count += 1;
    }
    progress.end();
    let files = format::count(count, "file");
    let text = format!("{files}, {} rewritten", format::bytes(bytes));
    put::tell(
        context,
        text,
        serde_json::json!({ "files": count, "bytes": bytes }),
    )?;
    Ok(ExitCode::SUCCESS)
}

/// The file, or all below the directory, each once, and its length.
async fn below(
    server: &Server,
    path: files::ClusterPath,
    entry: v1::Entry,
) -> anyhow::Result<Vec<(files::ClusterPath, u64)>> {
    let (mut left, mut files) = (vec![(path, entry)], Vec::new());
    let mut seen = BTreeSet::new();
    while let Some((path, entry)) = left.pop() {
        let attr = entry.attr.unwrap_or_default();
        match attr.kind() {
            Kind::Directory => {
                let entries = files::list(server, attr.ino).await?.into_iter().rev();
                left.extend(entries.map(|one| (path.join(&one.name), one)));
            }
            Kind::File if seen.insert(attr.ino) => files.push((path, attr.size)),
            _ => {}
        }
    }
    Ok(files)
}

async fn stated(server: &Server, ino: u64) -> anyhow::Result<Option<String>> {
    let get = v1::GetXattr {
        ino,
        name: NAME.to_vec(),
    };
    match server.one(&credentials(), Op::GetXattr(get)).await {
        Ok(Answer::Bytes(bytes)) => Ok(Some(String::from_utf8_lossy(&bytes.value).into_owned())),
        Ok(_) => Err(Error::Answer("GetXattr").into()),
        Err(error) if error.is(rustix::io::Errno::NODATA) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
