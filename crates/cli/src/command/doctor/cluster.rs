//! Checks of the program itself, its configuration and the way to the server.

use crate::args;
use crate::config::{self, ConfigFile};
use crate::context::CommandContext;
use crate::output::doctor::Check;
use std::time::Duration;
use tidemill_client::Error;

/// Longest wait for the server.
const PATIENCE: Duration = Duration::from_secs(10);

/// Shows the version of this program.
pub(super) fn version() -> Check {
    let protocol = tidemill_wire::PROTOCOL_VERSION;
    Check::ok("version", format!("{}, protocol {protocol}", args::VERSION))
}

/// Checks the configuration file.
pub(super) fn configuration(context: &CommandContext) -> Check {
    let path = config::located(context.global.config.as_deref());
    match (ConfigFile::load(path.as_deref()), path) {
        (Err(error), _) => Check::problem(
            "configuration",
            error.to_string(),
            (
                "every other command fails",
                "correct the file; `tidemill config check` checks it again",
            ),
        ),
        (Ok(_), Some(path)) => Check::ok("configuration", path.display().to_string()),
        (Ok(_), None) => Check::ok("configuration", "no file: every setting has its default"),
    }
}

/// Checks whether the server answers, and whether it has the same version.
pub(super) async fn server(context: &CommandContext) -> Check {
    let asked = async {
        let server = context.connect().await?;
        let status = server.status().await?;
        anyhow::Ok((server.endpoint().to_string(), status))
    };
    let is_named = context.global.server.is_some() || context.config.client.server.is_some();
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok((endpoint, status))) => {
            let up = status.nodes.iter().filter(|node| node.up).count();
            let nodes = status.nodes.len();
            let protocol = status.version;
            Check::ok(
                "server",
                format!("{endpoint}, protocol {protocol}, {up} of {nodes} nodes up"),
            )
        }
        Ok(Err(error)) => unreachable(&error, is_named),
        Err(_) => Check::problem(
            "server",
            format!("no answer within {} s", PATIENCE.as_secs()),
            (
                "commands and mounts wait for the server",
                "see the log of the server, and the network between this machine and the server",
            ),
        ),
    }
}

/// Explains a failed request.
fn unreachable(error: &anyhow::Error, is_named: bool) -> Check {
    let cause = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<Error>());
    match cause {
        Some(Error::Unreachable { .. }) if !is_named => Check::warning(
            "server",
            "no server is named, and no cluster of `tidemill up` runs here",
            (
                "commands that need a cluster fail",
                "run `tidemill up`, or name the server with --server or in the configuration",
            ),
        ),
        Some(Error::Version { theirs, ours }) => Check::problem(
            "server",
            format!("other version: the server has protocol {theirs}, this program {ours}"),
            (
                "the server refuses this program",
                "install the same version on all machines",
            ),
        ),
        _ => Check::problem(
            "server",
            format!("{error:#}"),
            (
                "commands and mounts can't use the cluster",
                "start the server, or correct --server, --token-file or --tls",
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::doctor::CheckState;

    #[test]
    fn missing_cluster_is_a_problem_only_for_a_named_server() {
        let error = || {
            anyhow::Error::new(Error::Unreachable {
                endpoint: "unix:/a".into(),
                reason: "no such file".into(),
            })
        };
        let state = |named| unreachable(&error().context("no server is named"), named).state;
        assert_eq!(state(false), CheckState::Warning);
        assert_eq!(state(true), CheckState::Problem);
        let other = anyhow::Error::new(Error::Version { theirs: 2, ours: 1 });
        let check = unreachable(&other, false);
        assert_eq!(check.state, CheckState::Problem);
        assert!(check.found.contains("protocol 2"), "{check:?}");
    }
}
