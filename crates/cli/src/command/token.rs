//! `tidemill token`: tokens, which identify users on other hosts.

use crate::context::CommandContext;
use crate::format::TimeLength;
use crate::output::messages::CreatedToken;
use crate::output::token::{Token, Tokens};
use crate::output::{Message, exact, list};
use anyhow::Context as _;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidemill_client::users;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill token create --user alice --expires 90d --output alice.token
  tidemill token create --output ~/.config/tidemill/token      for yourself, on the server's host
  tidemill token create --daemon --note node7 --output node7.token
  tidemill token list
  tidemill token revoke 3

On a client host put the file at ~/.config/tidemill/token (chmod 600), or name it with --token-file.";

/// Manage tokens: each lets its bearer use the cluster from another host as one user
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, clap::Subcommand)]
enum TokenCommand {
    /// Create a token. Its secret is shown once, and stored nowhere else
    Create(CreateToken),
    /// List your tokens; as root, all tokens
    List {
        /// Name or number of a user, for this user's tokens only
        #[arg(long, value_name = "USER", value_parser = user)]
        user: Option<u32>,
    },
    /// Revoke a token, and end the requests that use it
    Revoke {
        /// Number of the token
        token: u64,
    },
}

#[derive(Debug, clap::Args)]
struct CreateToken {
    /// Name or number of the token's user [default: yours]
    #[arg(long, value_name = "USER", value_parser = user)]
    user: Option<u32>,
    /// Create a token without a user: its bearer may act for anybody, as with the cluster's token. For mounts and nodes of one host
    #[arg(long, conflicts_with_all = ["user", "read_only"])]
    daemon: bool,
    /// Restrict the token to reading
    #[arg(long)]
    read_only: bool,
    /// Lifetime of the token, such as 12h, 90d [default: until it is revoked]
    #[arg(long, value_name = "TIME")]
    expires: Option<TimeLength>,
    /// Note on the purpose of the token
    #[arg(long, default_value = "", value_name = "TEXT")]
    note: String,
    /// File for the token, readable by nobody else [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

fn user(text: &str) -> Result<u32, String> {
    users::uid(text).ok_or_else(|| format!("`{text}` is no user of this host; give a number"))
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    match args.command {
        TokenCommand::Create(args) => return create(args, context, &server).await,
        TokenCommand::List { user } => {
            let request = v1::ListTokensRequest { uid: user };
            let reply = server.answer(server.tokens().list(request).await)?;
            context.output.show(&Tokens(list(&reply.tokens)))?;
        }
        TokenCommand::Revoke { token } => {
            let request = v1::RevokeTokenRequest { token };
            let token = server.answer(server.tokens().revoke(request).await)?;
            let token = Token::from(&token);
            let text = format!("token {} of {} is revoked", token.token, token.user());
            context.output.show(&Message(text, token))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the time that is this far from now, in nanoseconds since the Unix epoch.
fn expiry(good: Duration) -> anyhow::Result<i64> {
    let ends = SystemTime::now()
        .duration_since(UNIX_EPOCH)?
        .checked_add(good);
    let ends = ends.and_then(|ends| i64::try_from(ends.as_nanos()).ok());
    ends.context("--expires is too long")
}

async fn create(
    args: CreateToken,
    context: &CommandContext,
    server: &tidemill_client::Server,
) -> anyhow::Result<ExitCode> {
    let me = rustix::process::geteuid().as_raw();
    let uid = (!args.daemon).then(|| args.user.unwrap_or(me));
    let expires = args.expires.map(|TimeLength(time)| expiry(time));
    let expires = expires.transpose()?;
    let request = v1::CreateTokenRequest {
        uid,
        read_only: args.read_only,
        expires: expires.unwrap_or(0),
        note: args.note,
    };
    // The file is made before the token: a token that can't be stored would have to be revoked.
    let file = args.output.as_deref().map(private_file).transpose()?;
    let reply = server.tokens().create(request).await;
    let reply = match reply.map_err(|status| server.explain(status)) {
        Ok(reply) => reply.into_inner(),
        Err(error) => {
            if let Some(path) = &args.output {
                let _ = std::fs::remove_file(path);
            }
            return Err(error.into());
        }
    };
    let token = Token::from(&reply.token.unwrap_or_default());
    let of = format!("token {} of {}", token.token, token.user());
    let (Some(mut file), Some(path)) = (file, &args.output) else {
        context.note(format_args!("{of}; keep what follows secret"));
        let (text, credential, file) = (reply.credential.clone(), Some(reply.credential), None);
        let created = CreatedToken {
            token,
            credential,
            file,
        };
        return context.output.finish(&Message(text, created));
    };
    let written = file
        .write_all(reply.credential.as_bytes())
        .and_then(|()| file.sync_all());
    written.with_context(|| path.display().to_string())?;
    if let Some(uid) = uid.filter(|uid| *uid != me) {
        let owner = std::os::unix::fs::fchown(&file, Some(uid), Some(users::gid(uid)));
        owner.with_context(|| path.display().to_string())?;
    }
    let text = format!("{of} is in {}", path.display());
    let (credential, file) = (None, Some(exact(path)));
    let created = CreatedToken {
        token,
        credential,
        file,
    };
    context.output.finish(&Message(text, created))
}

/// Creates a file that only its owner can read. An existing file is not overwritten: it may be a token in use.
fn private_file(path: &Path) -> anyhow::Result<std::fs::File> {
    let in_directory = || path.display().to_string();
    if let Some(directory) = path
        .parent()
        .filter(|directory| !directory.as_os_str().is_empty())
    {
        std::fs::create_dir_all(directory).with_context(in_directory)?;
    }
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    file.with_context(in_directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_expiry_too_far_in_future_is_refused() {
        assert!(expiry(Duration::from_secs(90 * 86_400)).unwrap() > 0);
        for far in [Duration::from_nanos(u64::MAX), Duration::MAX] {
            assert!(expiry(far).is_err());
        }
    }
}
