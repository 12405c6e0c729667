//! `tidemill server recover`: recovers a lost server database from the nodes.

use crate::context::CommandContext;
use crate::format;
use crate::output::Message;
use crate::output::messages::RecoveredCluster;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidemill_server::rebuild::{self, LostFoundEntry, Rebuilt};

const EXAMPLES: &str = "Examples:
  tidemill server recover                            the cluster of `tidemill up`, after its server.db was lost
  tidemill server recover --data-dir /srv/server /srv/el-0 /copies/node-1.db

Stop the server and move a corrupt server.db (with its -wal and -shm) elsewhere first. Name every node of the
cluster: its directory, or a copy of its node.db. `sqlite3 node.db '.backup COPY'` copies the database of a
running node; a plain copy lacks the writes in node.db-wal, and is refused. Names, links, owners, modes, times, versions,
extended attributes and lineage are restored as the server last noted them on the nodes, about a second after each change.
Records that only the server has are lost: lifetimes, job files, and unfinished jobs.

Exit codes: 0 all files that nodes know of were found, 1 some were not found, or the database could not be made.";

/// Maximum number of files that the text names; JSON names all.
const SHOWN_MAX: usize = 20;

/// Recover a lost server database from the records of the nodes
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The server's directory [default: DIR/server]
    #[arg(long, value_name = "DIRECTORY", env = "TIDEMILL_SERVER_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Directories of all nodes, or copies of their node.db [default: those of `tidemill up`]
    #[arg(value_name = "NODE")]
    nodes: Vec<PathBuf>,
}

pub(super) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let directory = args
        .data_dir
        .or_else(|| context.config.server.data_dir.clone());
    let directory = directory.unwrap_or_else(|| context.cluster.server());
    let nodes = if args.nodes.is_empty() {
        let ids = context.cluster.nodes().into_iter();
        let mut all: Vec<PathBuf> = ids.map(|id| context.cluster.node(id)).collect();
        let server_cores = directory.join("cores");
        all.extend(
            server_cores
                .join("node.db")
                .is_file()
                .then_some(server_cores),
        );
        all
    } else {
        args.nodes
    };
    let owner = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    context.note(format_args!("reading {} nodes", nodes.len()));
    let rebuilt = rebuild::rebuild(&directory, &nodes, owner)?;
    context.output.show(&Message(
        summary(&rebuilt),
        RecoveredCluster::from(&rebuilt),
    ))?;
    Ok(ExitCode::from(u8::from(rebuilt.less)))
}

fn summary(rebuilt: &Rebuilt) -> String {
    let mut text = format!(
        "recovered from {} nodes ({}): {} files ({}) in {} directories, {} tasks, {} rules",
        rebuilt.nodes.len(),
        numbers(&rebuilt.nodes),
        rebuilt.files,
        format::bytes(rebuilt.bytes),
        rebuilt.directories,
        rebuilt.tasks,
        rebuilt.rules
    );
    let lists = [
        ("files have lost their bytes", shown(&rebuilt.missing)),
        (
            "files are as they were when they were sealed, with version 1: nodes have no newer record of them",
            shown(&rebuilt.unnoted),
        ),
        (
            "files and directories that could not get their own place are in /lost+found",
            rebuilt.apart.iter().map(apart).collect(),
        ),
        (
            "rules are lost: the directories that had them as an attribute do not exist, or have another rule",
            rebuilt.rules_left.clone(),
        ),
    ];
    for (what, list) in lists.iter().filter(|(_, list)| !list.is_empty()) {
        let _ = write!(text, "\n{} {what}:", list.len());
        for one in list.iter().take(SHOWN_MAX) {
            let _ = write!(text, "\n  {one}");
        }
        if list.len() > SHOWN_MAX {
            let _ = write!(
                text,
                "\n  and {} more (--json names all)",
                list.len() - SHOWN_MAX
            );
        }
    }
    text += &warnings(rebuilt);
    text += "\nnot kept by nodes: lifetimes, job files, jobs that had not ended, times of directories, which files triggered rules";
    text += "\nstart the server to use it (`tidemill up`)";
    text
}

fn numbers(nodes: &[u32]) -> String {
    let numbers: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    numbers.join(", ")
}

/// Returns the facts that an administrator must know before using the database.
fn warnings(rebuilt: &Rebuilt) -> String {
    let mut text = String::new();
    if !rebuilt.removed.is_empty() {
        let _ = write!(
            text,
            "\nremoved from the cluster before, and left out: {}",
            numbers(&rebuilt.removed)
        );
    }
    for node in &rebuilt.absent {
        let _ = write!(
            text,
            "\nnode {node} was not given: its files are unknown. If it was removed from the cluster, it is a member again when \
             it runs: stop it, or remove it again (`tidemill node remove {node}`)"
        );
    }
    if rebuilt.less {
        let _ = write!(
            text,
            "\nless was found than existed: {} without their bytes, {} that their nodes do not know. Don't use this database if \
             there are better copies: move it elsewhere and run this command again. For a week, no object is removed because it lacks a file",
            format::count(rebuilt.missing.len() as u64, "file"),
            format::count(rebuilt.unknown, "object")
        );
    }
    text
}

/// Writes paths for people.
fn shown(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| readable(path)).collect()
}

/// Returns a path for people: names need not be UTF-8, and may contain control characters for a terminal.
fn readable(path: &Path) -> String {
    path.to_string_lossy().replace(char::is_control, "\u{fffd}")
}

fn apart(file: &LostFoundEntry) -> String {
    format!("{}  was {}", readable(&file.path), readable(&file.was))
}
