//! `tidemill rebuild`: makes a lost server database again from the elements.

use crate::context::Context;
use crate::format;
use crate::output::Said;
use serde_json::json;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use tidemill_server::rebuild::{self, Rebuilt};

const EXAMPLES: &str = "Examples:
  tidemill rebuild                                   the array of `tidemill up`, after its server.db was lost
  tidemill rebuild --folder /srv/server /srv/el-0 /copies/element-1.db

Stop the server and move a damaged server.db (with its -wal and -shm) away first. Name every element of the
array: its folder, or a copy of its element.db. Files get the path they had when they were sealed, with owner,
mode and lineage; what only the server knew is lost: renames and changes of mode or owner since, links, empty
files and folders, extended attributes, job scripts, and jobs that had not ended.";

/// Files that are named in the text; all are in the JSON.
const SHOWN_MAX: usize = 20;

/// Make a lost server database again from what the elements keep
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The server's folder [default: DIR/server]
    #[arg(long, value_name = "FOLDER", env = "TIDEMILL_SERVER_FOLDER")]
    folder: Option<PathBuf>,
    /// Folders of all elements, or copies of their element.db [default: those of `tidemill up`]
    #[arg(value_name = "ELEMENT")]
    elements: Vec<PathBuf>,
}

pub(crate) fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    let folder = args.folder.or_else(|| context.config.server.folder.clone());
    let folder = folder.unwrap_or_else(|| context.array.server());
    let elements = if args.elements.is_empty() {
        let ids = context.array.elements().into_iter();
        let mut all: Vec<PathBuf> = ids.map(|id| context.array.element(id)).collect();
        let host = folder.join("host");
        all.extend(host.join("element.db").is_file().then_some(host));
        all
    } else {
        args.elements
    };
    let owner = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    context.note(format_args!("reading {} elements", elements.len()));
    let rebuilt = rebuild::rebuild(&folder, &elements, owner)?;
    context.output.show(&said(&rebuilt))?;
    Ok(ExitCode::SUCCESS)
}

fn said(rebuilt: &Rebuilt) -> Said {
    let mut text = format!(
        "rebuilt from {} elements: {} files ({}) in {} folders, {} tasks",
        rebuilt.elements,
        rebuilt.files,
        format::bytes(rebuilt.bytes),
        rebuilt.directories,
        rebuilt.tasks
    );
    if rebuilt.missing > 0 {
        let _ = write!(text, "\n{} files have lost their bytes", rebuilt.missing);
    }
    if !rebuilt.apart.is_empty() {
        let count = rebuilt.apart.len();
        let _ = write!(
            text,
            "\n{count} files whose path was taken are in /lost+found:"
        );
        for file in rebuilt.apart.iter().take(SHOWN_MAX) {
            let _ = write!(text, "\n  {}  was {}", file.path, file.was);
        }
        if count > SHOWN_MAX {
            let _ = write!(text, "\n  and {} more", count - SHOWN_MAX);
        }
    }
    text += "\nstart the server to use it (`tidemill up`)";
    let apart = rebuilt.apart.iter();
    let apart: Vec<_> = apart
        .map(|file| json!({"path": file.path, "was": file.was}))
        .collect();
    let json = json!({
        "elements": rebuilt.elements,
        "files": rebuilt.files,
        "bytes": rebuilt.bytes,
        "directories": rebuilt.directories,
        "tasks": rebuilt.tasks,
        "missing": rebuilt.missing,
        "apart": apart,
    });
    Said::new(text, json)
}
