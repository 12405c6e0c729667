//! `tidemill remote`: stores outside of the cluster, by name; and the code that `tidemill cp` and `tidemill sync` share.

mod attach;
mod incoming;
mod limit;
pub(super) mod summary;
pub(super) mod transfer;

use crate::context::{CommandContext, own_token_file};
use crate::format;
use crate::output::Message;
use crate::output::list as listed;
use crate::output::messages::RemoteCheck;
use crate::output::remote as shown;
use anyhow::Context as _;
use std::path::PathBuf;
use std::process::ExitCode;
use tidemill_client::Server;
use tidemill_remote::{Keys, Remote, RemoteAddress};
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill remote add scratch file:///scratch
  tidemill remote add cloud 's3://bucket/run-7?endpoint=https://s3.example.org&region=eu-1'
  tidemill remote add survey https://data.example.org/dr9 --read-only
  tidemill remote list
  tidemill remote check cloud                     test that the store answers and accepts your keys
  tidemill remote attach cloud /cloud               objects appear in /cloud; new files in /cloud are written to the store
  tidemill remote refresh cloud                   scan the store now
  tidemill remote detach cloud                    files and objects stay
  tidemill remote delete cloud                    objects in the store stay

Keys are in ~/.config/tidemill/remotes/NAME, or in the file of --keys, with mode 0600:
  access_key_id = \"…\"        for S3, with secret_access_key, and optionally session_token
  username = \"…\"             for WebDAV and HTTP, with password; or token";

/// Manage remotes: names of external stores such as directories, S3, WebDAV or HTTP
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: RemoteCommand,
}

#[derive(Debug, clap::Subcommand)]
enum RemoteCommand {
    /// Name an external store, for all users (administrators only)
    Add {
        /// Remote name
        name: String,
        /// Address of the store: file:///DIRECTORY, s3://BUCKET/…, sftp://HOST/…, webdav(s)://HOST/…, (s)webhdfs://HOST/… or
        /// http(s)://HOST/…, without keys; docs/remotes.md has them all
        uri: String,
        /// Forbid exports to this store
        #[arg(long)]
        read_only: bool,
    },
    /// List remotes
    List,
    /// Test whether a store answers and accepts your keys
    Check {
        /// Remote name
        name: String,
        #[command(flatten)]
        keys: KeysFile,
    },
    /// Attach a store to a directory of the cluster: objects appear as files, and new files are written to the store
    /// (administrators only)
    Attach(attach::Args),
    /// Scan a store again for its directory, and wait for the end of the scan
    Refresh {
        /// Remote name
        name: String,
    },
    /// Detach a store from its directory. Files in the directory remain (administrators only)
    Detach {
        /// Remote name
        name: String,
    },
    /// Delete a remote. The content of the store remains (administrators only)
    Delete {
        /// Remote name
        name: String,
    },
}

/// File with the keys.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct KeysFile {
    /// File with the store's keys, which nobody else may be able to read [default: ~/.config/tidemill/remotes/NAME]
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
}

/// A remote with an open connection.
#[derive(Debug)]
pub(super) struct ConnectedRemote {
    pub(super) name: String,
    pub(super) remote: Remote,
    pub(super) place: RemoteAddress,
    pub(super) read_only: bool,
}

impl KeysFile {
    /// Returns the keys of a remote; none if there is no file and none was named.
    fn read(&self, name: &str) -> anyhow::Result<Keys> {
        if let Some(named) = &self.keys {
            return Ok(Keys::read(named)?);
        }
        Ok(Keys::read_if_exists(Self::usual(name).as_deref())?)
    }

    /// Returns the path of this user's keys of a remote, if the file exists.
    pub(crate) fn usual(name: &str) -> Option<PathBuf> {
        own_token_file().map(|token| token.with_file_name("remotes").join(name))
    }

    /// Opens the remote with this name.
    pub(super) async fn open(
        &self,
        server: &Server,
        name: &str,
    ) -> anyhow::Result<ConnectedRemote> {
        let known = list(server).await?;
        let known = known.into_iter().find(|remote| remote.name == name);
        let known = known
            .with_context(|| format!("remote {name} does not exist: `tidemill remote list`"))?;
        let place = RemoteAddress::parse(&known.uri)?;
        let remote = tidemill_remote::open(&place, &self.read(name)?)?;
        Ok(ConnectedRemote {
            name: known.name,
            remote,
            place,
            read_only: known.read_only,
        })
    }
}

pub(super) async fn list(server: &Server) -> anyhow::Result<Vec<v1::Remote>> {
    let listed = server.answer(server.remotes().list(v1::ListRemotesRequest {}).await)?;
    Ok(listed.remotes)
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    match args.command {
        RemoteCommand::Add {
            name,
            uri,
            read_only,
        } => {
            // An address that may contain a key is not sent.
            let place = RemoteAddress::parse(&uri)?;
            let request = v1::AddRemoteRequest {
                name,
                uri,
                read_only: read_only || place.is_plain_http(),
            };
            let added = server.answer(server.remotes().add(request).await)?;
            let text = format!("remote {} leads to {}", added.name, added.uri);
            context
                .output
                .show(&Message(text, shown::Remote::from(&added)))?;
        }
        RemoteCommand::List => context
            .output
            .show(&shown::RemoteList(listed(&list(&server).await?)))?,
        RemoteCommand::Check { name, keys } => {
            let opened = keys.open(&server, &name).await?;
            let checked = opened.remote.check().await;
            checked.with_context(|| format!("remote {name}"))?;
            let text = format!("remote {name} answers");
            let (remote, answers) = (name, true);
            context
                .output
                .show(&Message(text, RemoteCheck { remote, answers }))?;
        }
        RemoteCommand::Attach(args) => return attach::attach(args, &server, context).await,
        RemoteCommand::Refresh { name } => return attach::refresh(name, &server, context).await,
        RemoteCommand::Detach { name } => return attach::detach(name, &server, context).await,
        RemoteCommand::Delete { name } => {
            let request = v1::RemoveRemoteRequest { name };
            let deleted = server.answer(server.remotes().remove(request).await)?;
            let text = format!("remote {} is deleted", deleted.name);
            context
                .output
                .show(&Message(text, shown::Remote::from(&deleted)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Arguments of all commands that copy.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct TransferArgs {
    #[command(flatten)]
    pub(super) keys: KeysFile,
    /// Maximum rate in bytes per second, such as 50MB [default: no limit]
    #[arg(long, value_name = "RATE")]
    pub(super) limit_rate: Option<format::ByteSize>,
    /// Show the files that would be copied or deleted, and change nothing
    #[arg(long)]
    pub(super) dry_run: bool,
}
