//! Restores a database from the files of a log.

use crate::database_file::DatabaseFile;
use crate::file::{AttachedFile, FileProblem, FileReader, Header, LogKey};
use crate::name::{FileKind, FileName, names_in};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

/// Database that was restored from a log.
#[derive(Debug)]
pub struct Restored {
    /// Last file that was applied.
    pub last: FileName,
    /// Id of the cluster.
    pub cluster: u64,
    /// Moment of the restored state, in nanoseconds since the epoch.
    pub time: i64,
    /// Number of segments after the snapshot.
    pub segments: u64,
    /// Highest term of all files.
    pub term_max: u64,
    /// Terms and random ids of all logs that have files.
    pub logs: Vec<(u64, u32)>,
    /// Whether files of a later term exist from which no state can be restored, although the last state was asked for.
    pub later: bool,
    /// Files of the server's directory.
    pub attached: Vec<AttachedFile>,
    /// Number of the first segment that is missing although later ones exist, and number of the last one; `None` if none is missing.
    pub gap: Option<(u64, u64)>,
    /// Files that can't be used, each with the reason. Copies of them may have been used.
    pub unusable: Vec<(PathBuf, FileProblem)>,
}

impl Restored {
    /// Returns whether files show that there was a later state than the restored one.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        self.gap.is_some() || self.later
    }
}

/// Reason why no database could be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The operating system returned an error.
    #[error("{path}: {source}")]
    Io {
        /// File or directory.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The directories have no files of a log, or none from the time asked for.
    #[error("no snapshot was found{}", first(.unusable))]
    NoSnapshot {
        /// Files that can't be used, each with the reason.
        unusable: Vec<(PathBuf, FileProblem)>,
    },
    /// Two servers wrote logs of the same term.
    #[error(
        "two servers wrote logs of the same term: {}; move the files of all but one elsewhere",
        .0.iter().map(|(term, log)| format!("{term:08}-{log:08x}")).collect::<Vec<_>>().join(" and ")
    )]
    TwoLogs(Vec<(u64, u32)>),
}

fn first(unusable: &[(PathBuf, FileProblem)]) -> String {
    match unusable.first() {
        Some((path, problem)) => format!(
            ", and files can't be used, for example {}: {problem}",
            path.display()
        ),
        None => String::new(),
    }
}

/// Restores a database from the files of a log in `directories`, which may be copies of one log with different gaps and damages. The
/// database has the last state that the log has, or the last state at the moment `until` in nanoseconds since the epoch.
///
/// # Errors
/// No snapshot can be used, two servers wrote the log at the same time, or `into` can't be written. `into` is incomplete in that case.
pub fn restore(
    directories: &[PathBuf],
    key: &LogKey,
    until: Option<i64>,
    into: &Path,
) -> Result<Restored, RestoreError> {
    let copies = Copies::find(directories)?;
    let database = DatabaseFile::open(into, true);
    let mut restore = Restore {
        database: database.map_err(|source| io_error(into, source))?,
        path: into,
        key,
        until: until.unwrap_or(i64::MAX),
        unusable: Vec::new(),
    };
    let term_max = copies.files.keys().map(|name| name.term).max();
    for term in copies.terms() {
        let names = copies.files.keys().filter(|name| name.term == term);
        let logs: BTreeSet<_> = names.map(|name| (name.term, name.log)).collect();
        let mut found = Vec::new();
        for &log in &logs {
            found.extend(restore.snapshot(&copies, log)?);
        }
        if found.len() > 1 {
            return Err(RestoreError::TwoLogs(logs.into_iter().collect()));
        }
        if logs.len() > 1
            && let Some((header, _)) = found.pop()
        {
            // The attempts for the other logs have written into the database.
            let log = (header.name.term, header.name.log);
            found.extend(restore.snapshot(&copies, log)?);
        }
        let Some((header, mut attached)) = found.pop() else {
            continue;
        };
        let (header, segments) = restore.segments(&copies, header, &mut attached)?;
        let ended = restore.database.end(&header);
        let ended = ended.and_then(|()| restore.database.sync());
        ended.map_err(|source| io_error(into, source))?;
        return Ok(Restored {
            last: header.name,
            cluster: header.cluster,
            time: header.time,
            segments,
            term_max: term_max.unwrap_or(term),
            logs: copies.logs(),
            later: until.is_none() && term_max.is_some_and(|max| max > term),
            attached,
            gap: restore.gap(&copies, &header),
            unusable: restore.unusable,
        });
    }
    let unusable = restore.unusable;
    Err(RestoreError::NoSnapshot { unusable })
}

fn io_error(path: &Path, source: io::Error) -> RestoreError {
    let path = path.to_owned();
    RestoreError::Io { path, source }
}

/// All copies of the files of logs.
struct Copies {
    files: BTreeMap<FileName, Vec<PathBuf>>,
}

impl Copies {
    fn find(directories: &[PathBuf]) -> Result<Self, RestoreError> {
        let mut files: BTreeMap<FileName, Vec<PathBuf>> = BTreeMap::new();
        for directory in directories {
            let names = names_in(directory).map_err(|source| io_error(directory, source))?;
            for name in names {
                let path = directory.join(name.to_string());
                files.entry(name).or_default().push(path);
            }
        }
        Ok(Self { files })
    }

    /// Returns the terms of the logs, the last one first.
    fn terms(&self) -> Vec<u64> {
        let terms: BTreeSet<u64> = self.files.keys().map(|name| name.term).collect();
        terms.into_iter().rev().collect()
    }

    /// Returns the terms and the random ids of the logs.
    fn logs(&self) -> Vec<(u64, u32)> {
        let logs = self.files.keys().map(|name| (name.term, name.log));
        logs.collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn of(&self, name: FileName) -> &[PathBuf] {
        self.files.get(&name).map_or(&[], Vec::as_slice)
    }
}

struct Restore<'a> {
    database: DatabaseFile,
    path: &'a Path,
    key: &'a LogKey,
    until: i64,
    unusable: Vec<(PathBuf, FileProblem)>,
}

impl Restore<'_> {
    /// Writes the pages of the last snapshot of a log that can be used.
    fn snapshot(
        &mut self,
        copies: &Copies,
        (term, log): (u64, u32),
    ) -> Result<Option<(Header, Vec<AttachedFile>)>, RestoreError> {
        let names = copies
            .files
            .keys()
            .filter(|name| (name.term, name.log, name.kind) == (term, log, FileKind::Snapshot));
        for &name in names.rev() {
            for path in copies.of(name) {
                match self.apply(path, name, None) {
                    Ok(applied) => match applied {
                        Some(applied) => return Ok(Some(applied)),
                        None => break,
                    },
                    Err(problem) => self.refuse(path, problem)?,
                }
            }
        }
        Ok(None)
    }

    /// Applies the segments after a state, and replaces the attached files by changed ones. Returns the last state, and the number of segments.
    fn segments(
        &mut self,
        copies: &Copies,
        mut state: Header,
        attached: &mut Vec<AttachedFile>,
    ) -> Result<(Header, u64), RestoreError> {
        let mut count = 0;
        'segments: loop {
            let name = FileName {
                number: state.name.number + 1,
                kind: FileKind::Segment,
                ..state.name
            };
            for path in copies.of(name) {
                match self.apply(path, name, Some(&state)) {
                    Ok(Some((header, changed))) => {
                        state = header;
                        if !changed.is_empty() {
                            *attached = changed;
                        }
                        count += 1;
                        continue 'segments;
                    }
                    Ok(None) => return Ok((state, count)),
                    Err(problem) => self.refuse(path, problem)?,
                }
            }
            return Ok((state, count));
        }
    }

    /// Returns the first missing segment and the last existing one, if segments of the wanted time exist after the first missing one.
    fn gap(&self, copies: &Copies, state: &Header) -> Option<(u64, u64)> {
        let missing = state.name.number + 1;
        let later = copies.files.keys().filter(|name| {
            (name.term, name.log) == (state.name.term, state.name.log) && name.number >= missing
        });
        let is_wanted = |name: &&FileName| {
            let time = |path: &PathBuf| {
                let (reader, _) = FileReader::open(open(path).ok()?, **name, self.key).ok()?;
                Some(reader.header.time)
            };
            let mut copies = copies.of(**name).iter();
            self.until == i64::MAX
                || copies.any(|path| time(path).is_some_and(|at| at <= self.until))
        };
        let last = later.filter(is_wanted).map(|name| name.number).max()?;
        Some((missing, last))
    }

    fn refuse(&mut self, path: &Path, problem: FileProblem) -> Result<(), RestoreError> {
        if let FileProblem::Database(source) = problem {
            return Err(io_error(self.path, source));
        }
        self.unusable.push((path.to_owned(), problem));
        Ok(())
    }

    /// Applies a file to a state; `None` for a snapshot. Returns the state after the file, unless the file is later than the moment asked for.
    fn apply(
        &self,
        path: &Path,
        name: FileName,
        state: Option<&Header>,
    ) -> Result<Option<(Header, Vec<AttachedFile>)>, FileProblem> {
        let open = || FileReader::open(open(path)?, name, self.key);
        self.database.apply(open, state, self.until)
    }
}

fn open(path: &Path) -> io::Result<BufReader<File>> {
    Ok(BufReader::with_capacity(1 << 18, File::open(path)?))
}
