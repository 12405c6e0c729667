//! Outcome of copying files.

use crate::context::CommandContext;
use crate::format;
use crate::output::Message;
use crate::output::messages::{CopySummary, PlannedCopy, PlannedDeletion};
use std::process::ExitCode;

/// Outcome of copying one file.
#[derive(Debug)]
pub(in crate::command) enum FileOutcome {
    /// The file was copied: number of bytes.
    Copied(u64),
    /// The file existed already, unchanged.
    Same,
    /// The file would be copied, without `--dry-run`.
    Planned {
        /// Path of the source.
        from: String,
        /// Path of the destination.
        to: String,
        /// Size of the file.
        bytes: u64,
    },
}

#[derive(Debug, Default)]
pub(in crate::command) struct Summary {
    dry_run: bool,
    files: u64,
    bytes: u64,
    same: u64,
    passed: u64,
    failed: u64,
    deleted: u64,
}

impl Summary {
    pub(in crate::command) fn new(dry_run: bool) -> Self {
        Self {
            dry_run,
            ..Self::default()
        }
    }

    /// Counts the outcome of one file, and prints the outcome of a dry run.
    ///
    /// # Errors
    /// If standard output can't be written.
    pub(in crate::command) fn add(
        &mut self,
        context: &CommandContext,
        outcome: anyhow::Result<FileOutcome>,
    ) -> anyhow::Result<()> {
        match outcome {
            Ok(FileOutcome::Copied(bytes)) => {
                self.files += 1;
                self.bytes += bytes;
            }
            Ok(FileOutcome::Planned { from, to, bytes }) => {
                self.files += 1;
                self.bytes += bytes;
                let text = format!("would copy {from} to {to} ({})", format::bytes(bytes));
                let (dry_run, bytes) = (true, format::Bytes(bytes));
                let copy = PlannedCopy {
                    dry_run,
                    from,
                    to,
                    bytes,
                };
                context.output.step(&Message(text, copy))?;
            }
            Ok(FileOutcome::Same) => self.same += 1,
            Err(error) => {
                self.failed += 1;
                context.note(format!("{error:#}"));
            }
        }
        Ok(())
    }

    /// Reports a path that is not a file, or has no valid name.
    pub(in crate::command) fn pass(
        &mut self,
        context: &CommandContext,
        path: impl std::fmt::Display,
        what: &str,
    ) {
        self.passed += 1;
        context.note(format!("skipped: {path}: {what}"));
    }

    /// Counts a deleted file, and prints the file in a dry run.
    ///
    /// # Errors
    /// If standard output can't be written.
    pub(in crate::command) fn delete(
        &mut self,
        context: &CommandContext,
        path: impl std::fmt::Display,
    ) -> anyhow::Result<()> {
        self.deleted += 1;
        if self.dry_run {
            let (dry_run, delete) = (true, path.to_string());
            let text = format!("would delete {path}");
            context
                .output
                .step(&Message(text, PlannedDeletion { dry_run, delete }))?;
        }
        Ok(())
    }

    /// Whether every file was copied, or existed unchanged.
    pub(in crate::command) fn is_whole(&self) -> bool {
        self.failed == 0 && self.passed == 0
    }

    pub(in crate::command) fn is_empty(&self) -> bool {
        self.files + self.same + self.passed + self.failed == 0
    }

    pub(in crate::command) fn end(
        &self,
        context: &CommandContext,
        done: &str,
    ) -> anyhow::Result<ExitCode> {
        let would = if self.dry_run { "would be " } else { "" };
        let mut text = format!(
            "{}, {} {would}{done}; {} unchanged",
            format::count(self.files, "file"),
            format::bytes(self.bytes),
            self.same
        );
        for (count, what) in [
            (self.deleted, &*format!("{would}deleted")),
            (self.passed, "skipped"),
            (self.failed, "failed"),
        ] {
            if count > 0 {
                text.push_str(&format!("; {count} {what}"));
            }
        }
        let summary = CopySummary {
            files: self.files,
            bytes: format::Bytes(self.bytes),
            same: self.same,
            deleted: self.deleted,
            skipped: self.passed,
            failed: self.failed,
            dry_run: self.dry_run,
        };
        context.output.show(&Message(text, summary))?;
        Ok(match self.failed {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        })
    }
}
