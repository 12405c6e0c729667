//! The reference pages of the book, made from the same definitions as the program: commands, configuration, environment variables,
//! attributes and job files. `make book` writes them to `docs/reference/`.

mod attributes;
mod commands;
mod configuration;
mod environment;
mod job_file;
mod markdown;
#[cfg(test)]
mod tests;

use crate::args::Cli;
use clap::CommandFactory;

/// Returns all pages: paths below the directory of the reference, and texts.
pub(crate) fn pages() -> Vec<(String, String)> {
    let keys = Cli::command();
    let mut line = Cli::command();
    line.build();
    let named = |(name, text): (&str, String)| (name.to_owned(), text);
    let mut pages = Vec::from(
        [
            ("commands.md", commands::overview(&line)),
            ("configuration.md", configuration::page(&keys)),
            ("environment-variables.md", environment::page(&line)),
            ("attributes.md", attributes::page()),
            ("job-file.md", job_file::page()),
        ]
        .map(named),
    );
    let subcommands = line.get_subcommands();
    for command in subcommands.filter(|command| command.get_name() != "help") {
        let name = format!("commands/{}.md", command.get_name());
        pages.push((name, commands::page(command)));
    }
    pages
}
