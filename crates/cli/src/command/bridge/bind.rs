//! `tidemill bridge bind`, `refresh` and `unbind`: a directory of the cluster mirrors a store.

use super::{carry, list};
use crate::context::{Context, credentials};
use crate::files;
use crate::format::{self, Length};
use crate::output::Said;
use crate::output::bridge::bridge_json;
use anyhow::Context as _;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;
use tidemill_bridge::Place;
use tidemill_client::{Server, users};
use tidemill_core::shown::line;
use tidemill_wire::v1;

/// How often it is looked whether a look has ended.
const PERIOD: Duration = Duration::from_millis(200);

/// Arguments of `bridge bind`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Bridge name
    name: String,
    /// Directory of the cluster. The command makes a missing directory
    #[arg(value_name = "/DIRECTORY")]
    directory: OsString,
    /// Interval between two scans of the store, such as 10s; 0: scan only by `tidemill bridge refresh`
    #[arg(long, value_name = "TIME", default_value = "60s")]
    every: Length,
    /// Owner of the files that scans make [default: yours]
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
    mode.ok_or_else(|| format!("`{text}` is no mode: give three octal digits, such as 640"))
}

pub(super) async fn bind(
    args: Args,
    server: &Server,
    context: &Context,
) -> anyhow::Result<ExitCode> {
    let bridge = one(server, &args.name).await?;
    let place = Place::parse(&bridge.uri)?;
    let (node, _) = carry::holder(server, &place).await?;
    let uid = match &args.owner {
        Some(owner) => users::uid(owner).with_context(|| format!("there is no user {owner}"))?,
        None => credentials().uid,
    };
    let every = args.every.0.as_secs();
    let binding = v1::Binding {
        directory: files::path(&args.directory)?.text("a bridge")?.to_owned(),
        node: node.0,
        every_s: u32::try_from(every).unwrap_or(u32::MAX),
        uid,
        gid: args.group.unwrap_or_else(|| users::gid(uid)),
        mode: args.mode,
        ..v1::Binding::default()
    };
    let request = v1::BindBridgeRequest {
        name: args.name,
        binding: Some(binding),
    };
    let bound = server.bridges().bind(request).await;
    let bound = bound.map_err(|status| server.explain(status))?;
    looked(bound.into_inner(), server, context).await
}

pub(super) async fn refresh(
    name: String,
    server: &Server,
    context: &Context,
) -> anyhow::Result<ExitCode> {
    let request = v1::RefreshBridgeRequest { name };
    let asked = server.bridges().refresh(request).await;
    let asked = asked.map_err(|status| server.explain(status))?;
    looked(asked.into_inner(), server, context).await
}

async fn one(server: &Server, name: &str) -> anyhow::Result<v1::Bridge> {
    let bridge = list(server).await?.into_iter().find(|one| one.name == name);
    bridge.with_context(|| format!("bridge {name} does not exist: `tidemill bridge list`"))
}

/// Waits for a look, and shows how it went.
async fn looked(
    mut bridge: v1::Bridge,
    server: &Server,
    context: &Context,
) -> anyhow::Result<ExitCode> {
    let asked = bridge.binding.as_ref().map_or(0, |binding| binding.asked);
    let binding = loop {
        let unbound = || format!("bridge {} was unbound during the scan", bridge.name);
        let binding = bridge.binding.clone().with_context(unbound)?;
        if binding.answered >= asked {
            break binding;
        }
        tokio::time::sleep(PERIOD).await;
        bridge = one(server, &bridge.name).await?;
    };
    if !binding.trouble.is_empty() {
        anyhow::bail!(
            "{} is bound, and its files stay as they are: {}",
            binding.directory,
            binding.trouble
        );
    }
    let files = format::count(binding.files, "object");
    let mut text = format!(
        "{} has the content of {}: {files}",
        binding.directory, bridge.name
    );
    if binding.passed > 0 {
        let (passed, example) = (binding.passed, line(&binding.example));
        text.push_str(&format!("; {passed} passed by, such as {example}"));
    }
    context
        .output
        .show(&Said::new(text, bridge_json(&bridge)))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn unbind(
    name: String,
    server: &Server,
    context: &Context,
) -> anyhow::Result<ExitCode> {
    let request = v1::UnbindBridgeRequest { name };
    let unbound = server.bridges().unbind(request).await;
    let unbound = unbound
        .map_err(|status| server.explain(status))?
        .into_inner();
    let binding = unbound.binding.clone().unwrap_or_default();
    let text = format!(
        "{} is a normal directory from now on; its files of bridge {} stay",
        binding.directory, unbound.name
    );
    context
        .output
        .show(&Said::new(text, bridge_json(&unbound)))?;
    Ok(ExitCode::SUCCESS)
}
