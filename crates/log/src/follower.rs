//! A copy of a database that follows the replicated log of its leader (next: `log/src/replicator.rs`).

use crate::database_file::DatabaseFile;
use crate::file::{AttachedFile, FileProblem, FileReader, Header, LogKey};
use crate::name::{FileKind, FileName};
use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;

/// Copy of a database at the state after a record. No program may have the copy open.
#[derive(Debug)]
pub struct Follower {
    database: DatabaseFile,
    key: LogKey,
    state: Header,
    attached: Vec<AttachedFile>,
}

impl Follower {
    /// Makes the database `path` from a snapshot in the file `snapshot`, which was stored under the name `name`.
    ///
    /// # Errors
    /// The snapshot can't be used, or the database can't be written.
    pub fn restore(
        path: &Path,
        key: &LogKey,
        (name, snapshot): (FileName, &Path),
    ) -> Result<Self, FileProblem> {
        let database = DatabaseFile::open(path, true).map_err(FileProblem::Database)?;
        let open = || {
            let from = BufReader::with_capacity(1 << 18, File::open(snapshot)?);
            FileReader::open(from, name, key)
        };
        let (state, attached) = database
            .apply(open, None, i64::MAX)?
            .ok_or(FileProblem::Damaged)?;
        let key = key.clone();
        Ok(Self {
            database,
            key,
            state,
            attached,
        })
    }

    /// Applies the next record of the log.
    ///
    /// # Errors
    /// The record is not the next one, was changed, or the database can't be written. The state is the same as before unless the database
    /// can't be written.
    pub fn apply(&mut self, record: &[u8]) -> Result<(), FileProblem> {
        let name = FileName {
            number: self.state.name.number + 1,
            kind: FileKind::Segment,
            ..self.state.name
        };
        let open = || FileReader::open(record, name, &self.key);
        let applied = self.database.apply(open, Some(&self.state), i64::MAX)?;
        let (state, attached) = applied.ok_or(FileProblem::Damaged)?;
        self.state = state;
        if !attached.is_empty() {
            self.attached = attached;
        }
        Ok(())
    }

    /// Expects the records of a new leader, whose first record follows the present state.
    pub fn begin_term(&mut self, term: u64, log: u32) {
        self.state.name = FileName {
            term,
            log,
            number: 0,
            kind: FileKind::Segment,
        };
    }

    /// Returns the name of the last record or snapshot in the state.
    #[must_use]
    pub fn name(&self) -> FileName {
        self.state.name
    }

    /// Returns the id of the cluster.
    #[must_use]
    pub fn cluster(&self) -> u64 {
        self.state.cluster
    }

    /// Returns the files of the server's directory.
    #[must_use]
    pub fn attached(&self) -> &[AttachedFile] {
        &self.attached
    }

    /// Completes the database. After a power loss it may be damaged: then it must be made from the log again.
    ///
    /// # Errors
    /// The database can't be written.
    pub fn end(&self) -> io::Result<()> {
        self.database.end(&self.state)
    }
}
