//! What became of the files that were to be copied.

use crate::context::CommandContext;
use crate::format;
use crate::output::Printed;
use serde_json::json;
use std::process::ExitCode;

/// What became of one file.
#[derive(Debug)]
pub(super) enum FileOutcome {
    /// It was copied: so many bytes.
    Copied(u64),
    /// The file existed already, unchanged.
    Same,
}

#[derive(Debug, Default)]
pub(super) struct Summary {
    files: u64,
    bytes: u64,
    same: u64,
    passed: u64,
    failed: u64,
    deleted: u64,
}

impl Summary {
    pub(super) fn add(&mut self, context: &CommandContext, outcome: anyhow::Result<FileOutcome>) {
        match outcome {
            Ok(FileOutcome::Copied(bytes)) => {
                self.files += 1;
                self.bytes += bytes;
            }
            Ok(FileOutcome::Same) => self.same += 1,
            Err(error) => {
                self.failed += 1;
                context.note(format!("{error:#}"));
            }
        }
    }

    /// Reports a path that is not a file, or has no valid name.
    pub(super) fn pass(
        &mut self,
        context: &CommandContext,
        path: impl std::fmt::Display,
        what: &str,
    ) {
        self.passed += 1;
        context.note(format!("passed by: {path}: {what}"));
    }

    pub(super) fn delete(&mut self) {
        self.deleted += 1;
    }

    /// Whether all that was found was copied or there.
    pub(super) fn is_whole(&self) -> bool {
        self.failed == 0 && self.passed == 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files + self.same + self.passed + self.failed == 0
    }

    pub(super) fn end(&self, context: &CommandContext, done: &str) -> anyhow::Result<ExitCode> {
        let mut text = format!(
            "{}, {} {done}; {} as they were",
            format::count(self.files, "file"),
            format::bytes(self.bytes),
            self.same
        );
        for (count, what) in [
            (self.deleted, "deleted"),
            (self.passed, "passed by"),
            (self.failed, "failed"),
        ] {
            if count > 0 {
                text.push_str(&format!("; {count} {what}"));
            }
        }
        let printed = json!({
            "files": self.files, "bytes": self.bytes, "same": self.same, "deleted": self.deleted,
            "passed_by": self.passed, "failed": self.failed,
        });
        context.output.show(&Printed::new(text, printed))?;
        Ok(match self.failed {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        })
    }
}
