//! `tidemill remote attach`, `refresh` and `detach`: a directory of the cluster mirrors a store.

use super::{list, transfer};
use crate::context::{CommandContext, credentials};
use crate::files;
use crate::format::{self, TimeLength};
use crate::output::Message;
use crate::output::remote::Remote;
use anyhow::Context as _;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;
use tidemill_client::{Server, users};
use tidemill_model::display::line;
use tidemill_remote::RemoteAddress;
use tidemill_wire::v1;

/// Interval at which the end of a scan is polled.
const PERIOD: Duration = Duration::from_millis(200);

const EXAMPLES: &str = "Examples:
  tidemill remote attach cloud /cloud                 scans the store every 60 s
  tidemill remote attach cloud /cloud --every 10m --owner alice --mode 640
  tidemill remote attach cloud /cloud --every 0s      scans the store only by `tidemill remote refresh`";

/// Arguments of `remote attach`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Remote name
    name: String,
    /// Directory of the cluster. The command creates a missing directory
    #[arg(value_name = "/DIRECTORY")]
    directory: OsString,
    /// Interval between two scans of the store, such as 10s; 0s: scan only by `tidemill remote refresh`
    #[arg(long, value_name = "TIME", default_value = "60s")]
    every: TimeLength,
    /// Owner of the files that scans create [default: you]
    #[arg(long, value_name = "USER")]
    owner: Option<String>,
    /// Group of these files, by number [default: the owner's]
    #[arg(long, value_name = "GID")]
    group: Option<u32>,
    /// Mode of these files, in octal
    #[arg(long, value_name = "MODE", default_value = "644", value_parser = mode)]
    mode: u32,
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok();
    let mode = mode.filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| format!("bad mode: `{text}`; give three octal digits, such as 640"))
}

pub(super) async fn attach(
    args: Args,
    server: &Server,
    context: &CommandContext,
) -> anyhow::Result<ExitCode> {
    let remote = one(server, &args.name).await?;
    let place = RemoteAddress::parse(&remote.uri)?;
    let (node, _) = transfer::holder(server, &place).await?;
    let uid = match &args.owner {
        Some(owner) => {
            users::uid(owner).with_context(|| format!("--owner {owner}: no such user"))?
        }
        None => credentials().uid,
    };
    let every = args.every.0.as_secs();
    let attachment = v1::Attachment {
        directory: files::path(&args.directory)?.text("a remote")?.to_owned(),
        node: node.0,
        every_s: u32::try_from(every).unwrap_or(u32::MAX),
        uid,
        gid: args.group.unwrap_or_else(|| users::gid(uid)),
        mode: args.mode,
        ..v1::Attachment::default()
    };
    let request = v1::AttachRemoteRequest {
        name: args.name,
        attachment: Some(attachment),
    };
    let attached = server.answer(server.remotes().attach(request).await)?;
    looked(attached, server, context).await
}

pub(super) async fn refresh(
    name: String,
    server: &Server,
    context: &CommandContext,
) -> anyhow::Result<ExitCode> {
    let request = v1::RefreshRemoteRequest { name };
    let asked = server.answer(server.remotes().refresh(request).await)?;
    looked(asked, server, context).await
}

async fn one(server: &Server, name: &str) -> anyhow::Result<v1::Remote> {
    let remote = list(server).await?.into_iter().find(|one| one.name == name);
    remote.with_context(|| format!("remote {name} does not exist: `tidemill remote list`"))
}

/// Waits for the end of a scan, and prints its result.
async fn looked(
    mut remote: v1::Remote,
    server: &Server,
    context: &CommandContext,
) -> anyhow::Result<ExitCode> {
    let asked = remote
        .attachment
        .as_ref()
        .map_or(0, |attachment| attachment.asked);
    let attachment = loop {
        let detached = || format!("remote {} was detached during the scan", remote.name);
        let attachment = remote.attachment.clone().with_context(detached)?;
        if attachment.answered >= asked {
            break attachment;
        }
        tokio::time::sleep(PERIOD).await;
        remote = one(server, &remote.name).await?;
    };
    if !attachment.trouble.is_empty() {
        anyhow::bail!(
            "{} is attached, and its files stay as they are: {}",
            attachment.directory,
            attachment.trouble
        );
    }
    let files = format::count(attachment.files, "object");
    let mut text = format!(
        "{} has the content of {}: {files}",
        attachment.directory, remote.name
    );
    if attachment.passed > 0 {
        let (passed, example) = (attachment.passed, line(&attachment.example));
        text.push_str(&format!("; {passed} skipped, such as {example}"));
    }
    context.output.finish(&Message(text, Remote::from(&remote)))
}

pub(super) async fn detach(
    name: String,
    server: &Server,
    context: &CommandContext,
) -> anyhow::Result<ExitCode> {
    let request = v1::DetachRemoteRequest { name };
    let detached = server.answer(server.remotes().detach(request).await)?;
    let attachment = detached.attachment.clone().unwrap_or_default();
    let text = format!(
        "{} is a normal directory from now on; its files of remote {} stay",
        attachment.directory, detached.name
    );
    context
        .output
        .show(&Message(text, Remote::from(&detached)))?;
    Ok(ExitCode::SUCCESS)
}
