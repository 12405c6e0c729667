//! `tidemill bridge`: stores outside of the cluster, by name; and what `import`, `export` and `sync` have in common.

mod bind;
mod carry;
pub(crate) mod export;
pub(crate) mod import;
mod incoming;
mod limit;
pub(crate) mod sync;
mod tally;

use crate::context::{Context, own_token_file};
use crate::format;
use crate::output::Said;
use crate::output::bridge::{BridgesView, bridge_json};
use anyhow::Context as _;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use tidemill_bridge::{Bridge, Keys, Place};
use tidemill_client::Server;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill bridge add scratch file:///scratch
  tidemill bridge add cloud 's3://bucket/run-7?endpoint=https://s3.example.org&region=eu-1'
  tidemill bridge add survey https://data.example.org/dr9 --read-only
  tidemill bridge list
  tidemill bridge check cloud                     test that the store answers and accepts your keys
  tidemill bridge bind cloud /cloud               objects appear in /cloud; new files in /cloud are written to the store
  tidemill bridge refresh cloud                   scan the store now
  tidemill bridge unbind cloud                    files and objects stay
  tidemill bridge remove cloud                    objects in the store stay

Keys are in ~/.config/tidemill/bridges/NAME, or in the file of --keys, with mode 0600:
  access_key_id = \"…\"        for S3, with secret_access_key, and optionally session_token
  username = \"…\"             for WebDAV and HTTP, with password; or token";

/// Manage bridges: names of external stores such as directories, S3, WebDAV or HTTP
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: BridgeCommand,
}

#[derive(Debug, clap::Subcommand)]
enum BridgeCommand {
    /// Name a store, for all users; only administrators
    Add {
        /// Bridge name
        name: String,
        /// Address of the store: file:///DIRECTORY, s3://BUCKET/…, sftp://HOST/…, webdav(s)://HOST/…, (s)webhdfs://HOST/… or
        /// http(s)://HOST/…, without keys; docs/bridges.md has them all
        uri: String,
        /// Forbid exports to this store
        #[arg(long)]
        read_only: bool,
    },
    /// List bridges
    List,
    /// Test whether a store answers and accepts your keys
    Check {
        /// Bridge name
        name: String,
        #[command(flatten)]
        keys: KeysFile,
    },
    /// Bind a store to a directory of the cluster: objects appear as files, and new files are written to the store; only the cluster's
    /// administrators
    Bind(bind::Args),
    /// Scan a store again for its directory, and wait for the end of the scan
    Refresh {
        /// Bridge name
        name: String,
    },
    /// Unbind a store from its directory. Files in the directory remain; only administrators
    Unbind {
        /// Bridge name
        name: String,
    },
    /// Delete a bridge. The content of the store remains; only administrators
    Remove {
        /// Bridge name
        name: String,
    },
}

/// File with the keys.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct KeysFile {
    /// File with the store's keys, which nobody else may be able to read [default: ~/.config/tidemill/bridges/NAME]
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
}

/// A bridge with an open connection.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) name: String,
    pub(super) bridge: Bridge,
    pub(super) place: Place,
    pub(super) read_only: bool,
}

impl KeysFile {
    /// The keys of a bridge; none if there is no file and none was named.
    fn read(&self, name: &str) -> anyhow::Result<Keys> {
        if let Some(named) = &self.keys {
            return Ok(Keys::read(named)?);
        }
        Ok(Self::of_bridge(name)?)
    }

    /// Where this user's keys of a bridge are, if there are any.
    pub(crate) fn usual(name: &str) -> Option<PathBuf> {
        own_token_file().map(|token| token.with_file_name("bridges").join(name))
    }

    /// This user's keys of a bridge; none if there is no file of them.
    pub(crate) fn of_bridge(name: &str) -> Result<Keys, tidemill_bridge::Error> {
        match Self::usual(name).filter(|path| path.exists()) {
            Some(path) => Keys::read(&path),
            None => Ok(Keys::default()),
        }
    }

    /// Goes to a bridge of this name.
    pub(super) async fn open(&self, server: &Server, name: &str) -> anyhow::Result<Opened> {
        let known = list(server).await?;
        let known = known.into_iter().find(|bridge| bridge.name == name);
        let known = known
            .with_context(|| format!("bridge {name} does not exist: `tidemill bridge list`"))?;
        let place = Place::parse(&known.uri)?;
        let bridge = Bridge::open(&place, &self.read(name)?)?;
        Ok(Opened {
            name: known.name,
            bridge,
            place,
            read_only: known.read_only,
        })
    }
}

/// The bridge and the path there of `BRIDGE/PATH`; of a path of the cluster nothing.
pub(super) fn named(text: &str) -> Option<(&str, &str)> {
    let (name, path) = text.split_once('/').unwrap_or((text, ""));
    (!name.is_empty()).then_some((name, path.trim_end_matches('/')))
}

pub(super) fn bridge_of(text: &str) -> anyhow::Result<(&str, &str)> {
    named(text).with_context(|| {
        format!(
            "{text} is a path of the cluster: give BRIDGE/PATH, with a name of `tidemill bridge list`"
        )
    })
}

pub(super) async fn list(server: &Server) -> anyhow::Result<Vec<v1::Bridge>> {
    let listed = server.bridges().list(v1::ListBridgesRequest {}).await;
    let listed = listed.map_err(|status| server.explain(status))?;
    Ok(listed.into_inner().bridges)
}

pub(crate) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    match args.command {
        BridgeCommand::Add {
            name,
            uri,
            read_only,
        } => {
            // Nothing that may have a key in it is sent.
            let place = Place::parse(&uri)?;
            let request = v1::AddBridgeRequest {
                name,
                uri,
                read_only: read_only || place.is_plain_http(),
            };
            let added = server.bridges().add(request).await;
            let added = added.map_err(|status| server.explain(status))?.into_inner();
            let text = format!("bridge {} leads to {}", added.name, added.uri);
            context.output.show(&Said::new(text, bridge_json(&added)))?;
        }
        BridgeCommand::List => context.output.show(&BridgesView(list(&server).await?))?,
        BridgeCommand::Check { name, keys } => {
            let opened = keys.open(&server, &name).await?;
            let checked = opened.bridge.check().await;
            checked.with_context(|| format!("bridge {name}"))?;
            let text = format!("bridge {name} answers");
            let said = json!({ "bridge": name, "answers": true });
            context.output.show(&Said::new(text, said))?;
        }
        BridgeCommand::Bind(args) => return bind::bind(args, &server, context).await,
        BridgeCommand::Refresh { name } => return bind::refresh(name, &server, context).await,
        BridgeCommand::Unbind { name } => return bind::unbind(name, &server, context).await,
        BridgeCommand::Remove { name } => {
            let request = v1::RemoveBridgeRequest { name };
            let removed = server.bridges().remove(request).await;
            let removed = removed.map_err(|status| server.explain(status))?;
            let removed = removed.into_inner();
            let text = format!("bridge {} is forgotten", removed.name);
            context
                .output
                .show(&Said::new(text, bridge_json(&removed)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Arguments of all commands that copy.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Way {
    #[command(flatten)]
    pub(super) keys: KeysFile,
    /// Maximum rate in bytes per second, such as 50MB [default: no limit]
    #[arg(long, value_name = "RATE")]
    pub(super) limit: Option<format::Size>,
}
