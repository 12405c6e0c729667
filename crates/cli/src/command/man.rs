//! `tidemill man`: the manual pages and the reference of the book, made from the same texts as `--help`.

use crate::args::command_line;
use crate::context::CommandContext;
use crate::output::messages::ManualPages;
use crate::output::{Message, exact};
use crate::reference;
use anyhow::Context as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "Examples:
  tidemill man ~/.local/share/man/man1 && man tidemill-submit
  tidemill man --format markdown reference     reference of commands, settings, variables and attributes

`make install` installs the manual pages for all users, and `make book` writes the reference into the book.";

/// Write the manual pages, or the reference in Markdown, into a directory
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Path of the directory. The command makes a missing directory
    directory: PathBuf,
    /// Format of the pages
    #[arg(long, value_name = "FORMAT", default_value = "man")]
    format: PageFormat,
}

/// Format of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum PageFormat {
    /// Manual pages, one for each command
    Man,
    /// Reference of commands, configuration, environment variables, attributes and job files
    Markdown,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let directory = &args.directory;
    let (pages, written) = match args.format {
        PageFormat::Man => ("manual pages", write_manual(directory)),
        PageFormat::Markdown => ("reference pages", write_reference(directory)),
    };
    written.with_context(|| format!("can't write {pages}: {}", directory.display()))?;
    let text = format!("{pages} in {}", directory.display());
    let directory = exact(directory);
    context
        .output
        .show(&Message(text, ManualPages { directory }))?;
    Ok(ExitCode::SUCCESS)
}

fn write_manual(directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    clap_mangen::generate_to(command_line(), directory)
}

fn write_reference(directory: &Path) -> io::Result<()> {
    for (name, text) in reference::pages() {
        let path = directory.join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(directory))?;
        std::fs::write(path, text)?;
    }
    Ok(())
}
