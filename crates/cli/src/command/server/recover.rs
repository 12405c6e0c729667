//! `tidemill server recover`: recovers a lost server database from its log, and from what nodes know about their objects.

use crate::command::cluster::backup;
use crate::command::node::backend;
use crate::context::CommandContext;
use crate::format;
use crate::output::Message;
use crate::output::messages::RecoveredDatabase;
use crate::progress::Progress;
use anyhow::Context as _;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidemill_server::recovery::{self, LostFoundEntry, RecoverOptions, Recovered};

const EXAMPLES: &str = "Examples:
  tidemill server recover                            the cluster of `tidemill up`
  tidemill server recover --data-dir /srv/server /copies/node-0 /copies/node-1
  tidemill server recover --remote-keys keys --key cluster.key s3://backups/tidemill
  tidemill server recover --dry-run --until '2026-11-30 09:15:00' /copies/node-0

Stop the server and move a corrupt server.db (with its -wal and -shm) elsewhere first. A source
is the directory of a node, a directory with a backup or a copy of a node's `log`, or the address
of a store with a backup. Two nodes have the log of the server's database, complete up to half a second before the loss. Name every
node of the cluster to add the files that were sealed after that. The log also has the tokens
and the certificate of the cluster.

Without any log, the nodes (their directories, or copies of node.db) still know the path of each
file at its creation, its owner, its mode and its bytes, and the lineage of their tasks. Everything
else is lost: the exit code is 1.

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
    /// File with the keys of a store
    #[arg(long, value_name = "FILE")]
    remote_keys: Option<PathBuf>,
    /// Directories of all nodes, and directories and stores with copies of the log [default: those of `tidemill up`]
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
    context.note(format_args!(
        "reading {}",
        format::count(nodes.len() as u64, "source")
    ));
    let options = RecoverOptions {
        until: args.until,
        key: args.key,
        dry_run: args.dry_run,
        root_owner: (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        ),
    };
    let fetched = tempfile::Builder::new().prefix("tidemill-log-").tempdir()?;
    let sources = local(
        nodes,
        args.remote_keys.as_deref(),
        (fetched.path(), context),
    )
    .await?;
    let recover = move || recovery::recover(&directory, &sources, &options);
    let recovered = tokio::task::spawn_blocking(recover).await??;
    drop(fetched);
    let message = Message(
        summary(&recovered, args.dry_run),
        RecoveredDatabase::of(&recovered, args.dry_run),
    );
    context.output.show(&message)?;
    Ok(ExitCode::from(u8::from(recovered.is_incomplete())))
}

/// Returns the sources as directories: files of the log in stores are fetched into directories below `into`.
async fn local(
    sources: Vec<PathBuf>,
    keys: Option<&Path>,
    (into, context): (&Path, &CommandContext),
) -> anyhow::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for (number, source) in sources.into_iter().enumerate() {
        let uri = source.to_str().filter(|text| backup::is_store(text));
        let Some(uri) = uri else {
            all.push(source);
            continue;
        };
        let at = || uri.to_owned();
        let store = backend::open(uri, keys).with_context(at)?;
        let files = backup::files_in(&store).await.with_context(at)?;
        anyhow::ensure!(!files.is_empty(), "{uri} has no file of a log");
        let directory = into.join(number.to_string());
        std::fs::create_dir(&directory)?;
        let bytes = files.iter().map(|(_, file)| file.size).sum();
        let progress = Progress::new(context, bytes);
        for (name, file) in files {
            let mut reader = store.read(&file).await.with_context(at)?;
            let mut to = std::fs::File::create(directory.join(name.to_string()))?;
            while let Some(piece) = reader.next().await.with_context(at)? {
                to.write_all(&piece)?;
                progress.add(piece.len() as u64);
            }
        }
        all.push(directory);
    }
    Ok(all)
}

fn summary(recovered: &Recovered, dry_run: bool) -> String {
    let verb = if dry_run {
        "could recover"
    } else {
        "recovered"
    };
    let mut text = match &recovered.restored {
        Some(restored) => format!(
            "{verb} the state of {} (term {}, segment {}) from the log",
            format::time(restored.time),
            restored.last.term,
            restored.last.number,
        ),
        None => format!(
            "{verb} {} and {} from the objects of nodes, without a log",
            format::count(recovered.added.len() as u64, "file"),
            format::count(recovered.tasks as u64, "task"),
        ),
    };
    let unusable = recovered.restored.iter();
    let unusable = unusable.flat_map(|restored| &restored.unusable);
    let unusable = unusable.map(|(path, problem)| format!("{}: {problem}", readable(path)));
    let later = match recovered.restored.is_some() {
        true => shown(&recovered.added),
        false => Vec::new(),
    };
    let lists = [
        ("files were sealed later, and were added from nodes", later),
        (
            "files that could not get their own path are in /lost+found",
            recovered.lost_and_found.iter().map(apart).collect(),
        ),
        ("files have lost their bytes", shown(&recovered.missing)),
        (
            "files of the log can't be used; copies of them may have been",
            unusable.collect(),
        ),
    ];
    for (what, list) in lists.iter().filter(|(_, list)| !list.is_empty()) {
        add_list(&mut text, what, list);
    }
    text += &warnings(recovered);
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

fn numbers(nodes: &[u32]) -> String {
    let numbers: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    numbers.join(", ")
}

/// Returns the facts that an administrator must know before using the database.
fn warnings(recovered: &Recovered) -> String {
    let mut text = String::new();
    match &recovered.restored {
        Some(restored) => {
            if let Some((first, last)) = restored.gap {
                let _ = write!(
                    text,
                    "\nsegments {first} to {last} are not complete: what they changed is lost. Name more nodes, or other copies of the log, if there are any"
                );
            }
            if restored.later {
                text += "\na later server wrote a log, too, but no snapshot of it can be used: what it changed is lost. Name more nodes, or other copies of the log, if there are any";
            }
        }
        None => {
            text += "\nfiles are as they were when they were created, version numbers begin at 1 again, and deleted files may be back. Lost are directories without files, links, \
                     attributes, jobs that had not ended, rules, workspaces, tokens and lifetimes. Don't use this database if there is any copy of the log: \
                     move it elsewhere and run this command again with that copy";
        }
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
    if !recovered.removed.is_empty() {
        let _ = write!(
            text,
            "\nremoved from the cluster before, and left out: {}",
            numbers(&recovered.removed)
        );
    }
    for node in recovered
        .absent
        .iter()
        .filter(|_| recovered.restored.is_none())
    {
        let _ = write!(
            text,
            "\nnode {node} was not given: its files are unknown. If it was removed from the cluster, it is a member again when \
             it runs: stop it, or remove it again (`tidemill node remove {node}`)"
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
