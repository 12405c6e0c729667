//! `tidemill server recover`: recovers a lost server database from its log, or from the notes of the nodes.

use crate::context::CommandContext;
use crate::format;
use crate::output::Message;
use crate::output::messages::{RecoveredCluster, RecoveredLog};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidemill_server::rebuild::{self, LogRecovery, LostFoundEntry, Rebuilt, RecoveredFromLog};

const EXAMPLES: &str = "Examples:
  tidemill server recover                            the cluster of `tidemill up`
  tidemill server recover --data-dir /srv/server /copies/node-0 /copies/node-1
  tidemill server recover --dry-run --until '2026-11-30 09:15:00' /copies/node-0

Stop the server and move a corrupt server.db (with its -wal and -shm) elsewhere first. A source
is the directory of a node, or a directory with a backup or a copy of a node's `log`. Two nodes
have the log of the server's database, complete up to half a second before the loss. Name every
node of the cluster to add the files that were sealed after that. The log also has the tokens
and the certificate of the cluster.

Without any log, names, links, owners, modes, times, versions, attributes and lineage are
restored from the notes of the nodes (directories of nodes, or copies of node.db), and
lifetimes, job files and unfinished jobs are lost.

Exit codes: 0 everything was recovered, 1 something is missing, or no database could be made.";

/// Maximum number of files that the text names; JSON names all.
const SHOWN_MAX: usize = 20;

/// Recover a lost server database from the copies of its log
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The server's directory [default: DIR/server]
    #[arg(long, value_name = "DIRECTORY", env = "TIDEMILL_SERVER_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Restore the state at this moment (UTC)
    #[arg(long, value_name = "TIME", value_parser = format::parse_time)]
    until: Option<i64>,
    /// File with the cluster's key, if no node's directory is given [default: cluster.key in the server's directory]
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Restore and check everything, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Directories of all nodes, and directories with copies of the log [default: those of `tidemill up`]
    #[arg(value_name = "SOURCE")]
    sources: Vec<PathBuf>,
}

pub(super) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let directory = args
        .data_dir
        .or_else(|| context.config.server.data_dir.clone());
    let directory = directory.unwrap_or_else(|| context.cluster.server());
    let nodes = if args.sources.is_empty() {
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
        args.sources
    };
    let owner = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    context.note(format_args!(
        "reading {}",
        format::count(nodes.len() as u64, "source")
    ));
    let options = LogRecovery {
        until: args.until,
        key: args.key,
        dry_run: args.dry_run,
    };
    let from_log = {
        let (directory, nodes, options) = (directory.clone(), nodes.clone(), options.clone());
        let recover = move || rebuild::recover(&directory, &nodes, &options);
        tokio::task::spawn_blocking(recover).await??
    };
    if let Some(recovered) = from_log {
        let message = Message(
            of_log(&recovered, args.dry_run),
            RecoveredLog::of(&recovered, args.dry_run),
        );
        context.output.show(&message)?;
        return Ok(ExitCode::from(u8::from(recovered.restored.is_incomplete())));
    }
    if options.until.is_some() || options.dry_run {
        anyhow::bail!(
            "no source has a log of the server's database; --until and --dry-run need one"
        );
    }
    let rebuilt = rebuild::rebuild(&directory, &nodes, owner)?;
    context.output.show(&Message(
        summary(&rebuilt),
        RecoveredCluster::from(&rebuilt),
    ))?;
    Ok(ExitCode::from(u8::from(rebuilt.less)))
}

fn of_log(recovered: &RecoveredFromLog, dry_run: bool) -> String {
    let restored = &recovered.restored;
    let mut text = format!(
        "{} the state of {} (term {}, segment {}) from the log",
        if dry_run {
            "could recover"
        } else {
            "recovered"
        },
        format::time(restored.time),
        restored.last.term,
        restored.last.number,
    );
    let unusable = restored
        .unusable
        .iter()
        .map(|(path, problem)| format!("{}: {problem}", readable(path)))
        .collect();
    let lists = [
        (
            "files were sealed later, and were added from nodes",
            shown(&recovered.added),
        ),
        (
            "files of the log can't be used; copies of them may have been",
            unusable,
        ),
    ];
    for (what, list) in lists.iter().filter(|(_, list)| !list.is_empty()) {
        add_list(&mut text, what, list);
    }
    if let Some((first, last)) = restored.gap {
        let _ = write!(
            text,
            "\nsegments {first} to {last} are not complete: what they changed is lost. Name more nodes, or other copies of the log, if there are any"
        );
    }
    if restored.later {
        text += "\na later server wrote a log, too, but no snapshot of it can be used: what it changed is lost. Name more nodes, or other copies of the log, if there are any";
    }
    if recovered.unknown > 0 {
        let _ = write!(
            text,
            "\n{} without a file in this state: nodes keep them (`tidemill cluster fsck` shows them)",
            format::count(recovered.unknown, "object")
        );
    }
    match recovered.nodes.as_slice() {
        [] => text += "\nno node was given: files that were sealed after this state are not in it",
        nodes => {
            _ = write!(
                text,
                "\ncompared with the objects of nodes {}",
                numbers(nodes)
            )
        }
    }
    if !dry_run {
        text += "\nstart the server to use it (`tidemill up`)";
    }
    text
}

/// Adds a list with its heading, shortened.
fn add_list(text: &mut String, what: &str, list: &[String]) {
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
        add_list(&mut text, what, list);
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
