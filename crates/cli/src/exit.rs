//! Exit codes of all commands.

use std::fmt::Write as _;
use tidemill_wire::condition::{DEGRADED, UNAVAILABLE};

/// Exit code if the command ran, but its job or check failed.
pub(crate) const FAILED: u8 = 1;
/// Exit code of a command line that can't be parsed.
pub(crate) const USAGE: u8 = 2;
/// Exit code if the cluster can't be reached.
pub(crate) const UNREACHABLE: u8 = 5;
/// Exit code if the node was removed from the cluster: a restart has no use.
pub(crate) const GONE: u8 = 6;

/// All exit codes with their meanings, as Markdown.
pub(crate) const EXIT_CODES: [(u32, &str); 7] = [
    (0, "done"),
    (
        FAILED as u32,
        "failed, also if the watched job or the check failed",
    ),
    (USAGE as u32, "wrong usage"),
    (DEGRADED, "`cluster health`: the cluster is degraded"),
    (
        UNAVAILABLE,
        "`cluster health`: files are unavailable or lost",
    ),
    (UNREACHABLE as u32, "the cluster can't be reached"),
    (
        GONE as u32,
        "`node run`: the node was removed from the cluster",
    ),
];

/// Returns the exit codes for the help.
pub(crate) fn help() -> String {
    let mut text = String::from("Exit codes:\n");
    for (number, meaning) in EXIT_CODES {
        let _ = writeln!(text, "  {number}  {}", meaning.replace('`', ""));
    }
    text
}
