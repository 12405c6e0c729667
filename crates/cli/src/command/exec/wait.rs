//! `tidemill exec --wait`: waits until all asynchronous files are stored, and reports files that could not be stored.

use super::owned_by_us_or_root;
use crate::context::CommandContext;
use crate::output::messages::{FileNotStored, StoredFiles};
use crate::output::{Message, exact};
use anyhow::Context as _;
use rustix::fd::OwnedFd;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tidemill_model::backoff::Backoff;
use tidemill_model::display;
use tidemill_mount::preload::{self, NotStored, UnstoredFiles};

/// Pauses between two requests.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(200));

/// Waits for all file systems of these directories; `start` starts a file system that has ended and has files left.
pub(super) fn run(
    context: &CommandContext,
    directories: &[PathBuf],
    start: impl Fn(&PathBuf) -> anyhow::Result<OwnedFd>,
) -> anyhow::Result<ExitCode> {
    let (mut failed, mut all) = (0, Vec::new());
    for directory in directories
        .iter()
        .filter(|directory| owned_by_us_or_root(directory))
    {
        let connection = match preload::connect(directory) {
            Ok(connection) => connection,
            Err(_) if preload::has_left(directory) => start(directory)?,
            Err(_) => continue,
        };
        let standing = stored(&connection)?;
        failed += standing.failed;
        all.extend(standing.not_stored);
    }
    let text = text_of(failed, &all);
    let not_stored = all.iter().map(|one| FileNotStored {
        path: exact(&one.path),
        why: one.why.clone(),
        bytes_in: exact(&one.file),
    });
    let not_stored = not_stored.collect();
    context
        .output
        .show(&Message(text, StoredFiles { failed, not_stored }))?;
    Ok(ExitCode::from(u8::from(failed > 0)))
}

/// Reports the files that could not be stored, when no file is on its way any more.
fn stored(connection: &OwnedFd) -> anyhow::Result<UnstoredFiles> {
    let mut pauses = AGAIN;
    let (mut warned, mut again) = (false, true);
    loop {
        let mut standing = preload::standing(connection, std::mem::take(&mut again)).context(
            "the file system has ended during the wait: run the command again, the next file system continues with its files",
        )?;
        if standing.waiting == 0 {
            return Ok(standing);
        }
        let mut waits = standing.not_stored.drain(..).filter(|one| one.waits);
        if let Some(one) = waits.next()
            && !std::mem::replace(&mut warned, true)
        {
            eprintln!("waiting: {}", line(&one));
        }
        std::thread::sleep(pauses.pause());
    }
}

fn line(one: &NotStored) -> String {
    let (path, file) = (one.path.display(), one.file.display());
    display::line(&format!(
        "{path} is not stored: {}; its bytes are in {file}",
        one.why
    ))
}

fn text_of(failed: u64, all: &[NotStored]) -> String {
    let mut text = String::new();
    for one in all {
        // Writing to a string can't fail.
        let _ = writeln!(text, "{}", line(one));
    }
    let more = failed.saturating_sub(all.len() as u64);
    if more > 0 {
        let _ = writeln!(text, "and {more} more files");
    }
    text
}
