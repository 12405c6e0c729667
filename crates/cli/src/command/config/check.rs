//! `tidemill config check`: checks a configuration file.

use crate::config::{self, ConfigFile};
use crate::context::CommandContext;
use crate::output::messages::ConfigurationCheck;
use crate::output::{Message, exact};
use anyhow::Context as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidemill_client::Endpoint;

const EXAMPLES: &str = "Examples:
  tidemill config check                    the file that commands read
  tidemill config check new.toml && mv new.toml /etc/tidemill.toml

An error has the number of its line. Exit codes: 0 the file is right, 1 it has an error or can't be read.";

/// Check a configuration file: unknown keys, bad values, times without a unit
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Configuration file [default: the file that commands read]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let named = args.file.as_deref().or(context.global.config.as_deref());
    let Some(path) = config::located(named) else {
        let text = "no configuration file: every setting has its default";
        let check = ConfigurationCheck {
            file: None,
            valid: true,
        };
        return context.output.finish(&Message(text.to_owned(), check));
    };
    let file = ConfigFile::load(Some(&path))?;
    check_values(&file, &path)?;
    let text = format!("{}: valid", path.display());
    let check = ConfigurationCheck {
        file: Some(exact(&path)),
        valid: true,
    };
    context.output.finish(&Message(text, check))
}

/// Checks values that are parsed only when they are used.
fn check_values(file: &ConfigFile, path: &Path) -> anyhow::Result<()> {
    let at = |key: &str| format!("bad configuration: {}: {key}", path.display());
    if let Some(server) = &file.client.server {
        let parsed = server.parse::<Endpoint>();
        parsed.with_context(|| at("`server` of [client]"))?;
    }
    if let Some(queue) = &file.server.queue {
        queue.place().with_context(|| at("`queue` of [server]"))?;
    }
    for node in file.server.nodes.keys() {
        let number = node.parse::<u32>();
        number.with_context(|| at(&format!("[server.nodes.{node}]: not the number of a node")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_are_parsed_late_are_checked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.toml");
        let checked = |text: &str| {
            std::fs::write(&path, text).unwrap();
            check_values(&ConfigFile::load(Some(&path)).unwrap(), &path)
        };
        assert!(checked("[client]\nserver = \"unix:/a\"\n").is_ok());
        for bad in [
            "[client]\nserver = \"localhost\"\n",
            "[server]\nqueue = \"nowhere\"\n",
            "[server.nodes.x]\nsuspend = \"true\"\n",
        ] {
            let error = checked(bad).unwrap_err().to_string();
            assert!(error.starts_with("bad configuration: "), "{error}");
        }
    }
}
