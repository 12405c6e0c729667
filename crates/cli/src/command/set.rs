//! `tidemill set`: settings of a directory for new files below it.

use crate::context::{CommandContext, credentials};
use crate::files;
use crate::output::files::{self as shown, kind};
use anyhow::ensure;
use std::ffi::OsString;
use std::process::ExitCode;
use tidemill_client::{Error, Server};
use tidemill_model::layout::{Stripes, Tier};
use tidemill_model::replicas::WantedReplicas;
use tidemill_sched::burst::Durable;
use tidemill_wire::v1::{self, Kind, name_op::Op, name_result::Result as Answer};

const EXAMPLES: &str = "Examples:
  tidemill set /big                        show the settings of the directory
  tidemill set /big stripe=1MiB            new files below /big: 1 MiB to each node in turn
  tidemill set /big stripe=4MiB,8          each file over 8 nodes
  tidemill set /big stripe=off             each file on one node
  tidemill set /raw replicas=2 node=3      several settings at once
  tidemill set /scratch tier=memory        new files in the memory tier
  tidemill set /run durable=staged         fsync of the directory waits until its files are staged out
  tidemill set /raw node=                  remove a setting

A setting applies to new files, and to files that are written again, of the directory and of all directories below it. The setting of
the nearest directory counts. `tidemill migrate --rewrite` applies stripe and tier to existing files.

The settings are the attributes user.tidemill.replicas, .stripe, .tier, .node and .durable, which setfattr sets through a mount, too.";

/// Keys of settings, in the order in which they are shown.
const KEYS: [&str; 5] = ["replicas", "stripe", "tier", "node", "durable"];

/// Set the replicas, stripes, tier, node or durability of new files below a directory, or show these settings
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[allow(rustdoc::broken_intra_doc_links, reason = "users type the brackets")]
pub(crate) struct Args {
    /// Directory in the cluster
    #[arg(value_name = "DIRECTORY")]
    path: OsString,
    /// Settings: replicas=N[,now], stripe=UNIT[,WIDTH] or stripe=off, tier=memory|disk, node=ID, durable=synced|staged. An empty value
    /// removes the setting [default: show the settings]
    #[arg(value_name = "KEY=VALUE", value_parser = setting)]
    settings: Vec<Setting>,
}

/// Setting as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Setting {
    key: &'static str,
    /// Value; `None` removes the setting.
    value: Option<String>,
}

fn setting(text: &str) -> Result<Setting, String> {
    let (key, value) = text
        .split_once('=')
        .ok_or("no value: give KEY=VALUE, or KEY= to remove the setting")?;
    let known = KEYS.into_iter().find(|known| *known == key);
    let key = known.ok_or_else(|| format!("no such setting: {key}; give {}", KEYS.join(", ")))?;
    let value = match value.trim() {
        "" => None,
        value => Some(checked(key, value)?),
    };
    Ok(Setting { key, value })
}

/// Returns the value of a setting in the form of the attribute.
fn checked(key: &str, value: &str) -> Result<String, String> {
    match key {
        "stripe" if value == "off" => Ok(()),
        "stripe" => {
            let stripes: Result<Stripes, _> = value.parse();
            return stripes
                .map(|stripes| stripes.to_string())
                .map_err(|error| error.to_string());
        }
        "replicas" => value.parse::<WantedReplicas>().map(|_| ()),
        "tier" => value.parse::<Tier>().map(|_| ()),
        "durable" => value.parse::<Durable>().map(|_| ()),
        _ => match value.parse::<u32>() {
            Ok(_) => Ok(()),
            Err(_) => Err(format!("`{value}` is not the id of a node: give a number")),
        },
    }?;
    Ok(value.to_owned())
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let path = files::path(&args.path)?;
    let found = files::resolve(&server, &path, true).await?;
    ensure!(
        kind(&found) == Kind::Directory,
        "not a directory: {path}; set the directory of the file, then `tidemill migrate --rewrite {path}`"
    );
    let ino = found.attr.map_or(0, |attr| attr.ino);
    for setting in args.settings {
        set(&server, ino, setting).await?;
    }
    let mut settings = Vec::new();
    for key in KEYS {
        settings.push((key, value(&server, ino, key).await?));
    }
    context.output.finish(&shown::Settings::new(path, settings))
}

fn attribute(key: &str) -> Vec<u8> {
    format!("user.tidemill.{key}").into_bytes()
}

async fn set(server: &Server, ino: u64, setting: Setting) -> anyhow::Result<()> {
    let name = attribute(setting.key);
    let op = match setting.value {
        Some(value) => Op::SetXattr(v1::SetXattr {
            ino,
            name,
            value: value.into_bytes(),
            ..v1::SetXattr::default()
        }),
        None => Op::RemoveXattr(v1::RemoveXattr { ino, name }),
    };
    let removes = matches!(op, Op::RemoveXattr(_));
    match server.one(&credentials(), op).await {
        Err(error) if removes && error.is(rustix::io::Errno::NODATA) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => Ok(()),
    }
}

/// Returns the value of a setting of a directory; `None` if the directory itself does not have the setting.
async fn value(server: &Server, ino: u64, key: &str) -> anyhow::Result<Option<String>> {
    let get = v1::GetXattr {
        ino,
        name: attribute(key),
    };
    match server.one(&credentials(), Op::GetXattr(get)).await {
        Ok(Answer::Bytes(bytes)) => Ok(Some(String::from_utf8_lossy(&bytes.value).into_owned())),
        Ok(_) => Err(Error::Answer("GetXattr").into()),
        Err(error) if error.is(rustix::io::Errno::NODATA) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked_and_empty_values_remove() {
        let value = |text| setting(text).map(|setting| setting.value);
        assert_eq!(value("replicas=2,now"), Ok(Some("2,now".to_owned())));
        assert_eq!(value("stripe=off"), Ok(Some("off".to_owned())));
        assert_eq!(value("node="), Ok(None));
        assert!(value("stripe=1MiB,4").is_ok_and(|value| value.is_some()));
        for wrong in [
            "node",
            "node=x",
            "replicas=0",
            "stripe=x",
            "tier=tape",
            "durable=no",
            "copies=2",
        ] {
            assert!(setting(wrong).is_err(), "{wrong}");
        }
    }
}
