//! Copies of the log of the server's database, in the directory `log` of the node (next: `server/src/log_copies.rs`). The node can't read
//! the files without the cluster's key and does not interpret them. If the server's host is lost, `tidemill server recover` reads the copies.

use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tidemill_log::FileName;
use tidemill_wire::v1;

/// Suffix of a file that is not complete.
const PART: &str = "part";

/// Copies of the log on this node.
#[derive(Debug)]
pub(crate) struct LogCopies {
    directory: PathBuf,
    /// File that is being received, and its length so far.
    receiving: Mutex<Option<ReceivedFile>>,
}

#[derive(Debug)]
struct ReceivedFile {
    name: FileName,
    file: File,
    length: u64,
}

impl LogCopies {
    /// Uses the directory `log` of a node's directory, which the first file creates.
    pub(crate) fn new(node: &Path) -> Self {
        Self {
            directory: node.join("log"),
            receiving: Mutex::default(),
        }
    }

    /// Executes a request of the server.
    pub(crate) fn store(&self, copy: &v1::LogCopy) -> v1::LogCopied {
        let done = match copy.name.is_empty() {
            true => self.remove(&copy.removed).and_then(|()| self.files()),
            false => self.receive(copy).map(|()| Vec::new()),
        };
        let (files, error) = match done {
            Ok(files) => (files, String::new()),
            Err(error) => {
                tracing::warn!(%error, "can't store the log of the server's database");
                (Vec::new(), error.to_string())
            }
        };
        v1::LogCopied {
            name: copy.name.clone(),
            error,
            files,
        }
    }

    fn path(&self, name: FileName) -> PathBuf {
        self.directory.join(name.to_string())
    }

    fn receive(&self, copy: &v1::LogCopy) -> io::Result<()> {
        let mut receiving = self.receiving.lock();
        let name = parse(&copy.name)?;
        let part = self.path(name).with_added_extension(PART);
        let taken = receiving.take().filter(|one| one.name == name);
        let mut one = match copy.offset {
            0 => {
                let mut builder = std::fs::DirBuilder::new();
                builder
                    .recursive(true)
                    .mode(0o700)
                    .create(&self.directory)?;
                let mut options = OpenOptions::new();
                options.write(true).create(true).truncate(true).mode(0o600);
                let file = options.open(&part)?;
                ReceivedFile {
                    name,
                    file,
                    length: 0,
                }
            }
            _ => taken.ok_or_else(|| io::Error::other("the beginning of the file is missing"))?,
        };
        if copy.offset != one.length {
            return Err(io::Error::other("a part of the file is missing"));
        }
        one.file.write_all(&copy.content)?;
        one.length += copy.content.len() as u64;
        if !copy.last {
            *receiving = Some(one);
            return Ok(());
        }
        one.file.sync_all()?;
        std::fs::rename(part, self.path(name))?;
        File::open(&self.directory)?.sync_all()
    }

    fn remove(&self, names: &[String]) -> io::Result<()> {
        for name in names {
            match std::fs::remove_file(self.path(parse(name)?)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the complete files, and removes those that are not complete.
    fn files(&self) -> io::Result<Vec<String>> {
        let receiving = self.receiving.lock();
        let entries = match std::fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut files = Vec::new();
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if parse(&name).is_ok() {
                files.push(name);
            } else if receiving.is_none() && Path::new(&name).extension() == Some(PART.as_ref()) {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(files)
    }
}

fn parse(name: &str) -> io::Result<FileName> {
    let problem = |()| io::Error::other("the server sent a name that no file of a log has");
    name.parse().map_err(problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(name: &str, offset: u64, content: &str, last: bool) -> v1::LogCopy {
        v1::LogCopy {
            name: name.into(),
            offset,
            content: content.into(),
            last,
            removed: Vec::new(),
        }
    }

    #[test]
    fn complete_files_are_kept_and_others_refused() {
        let directory = tempfile::tempdir().unwrap();
        let copies = LogCopies::new(directory.path());
        let list = |removed: &[&str]| {
            let removed = removed.iter().map(ToString::to_string).collect();
            let copied = copies.store(&v1::LogCopy {
                removed,
                ..v1::LogCopy::default()
            });
            assert_eq!(copied.error, "");
            let mut names = copied.files;
            names.sort();
            names
        };
        let error = |copy: &v1::LogCopy| copies.store(copy).error;
        assert_eq!(list(&[]), Vec::<String>::new());
        let (one, two) = (
            "00000001-0000009f-000000000000.snapshot",
            "00000001-0000009f-000000000001.segment",
        );
        assert_eq!(error(&piece(one, 0, "ab", false)), "");
        assert_eq!(list(&[]), Vec::<String>::new());
        assert_eq!(error(&piece(one, 2, "cd", true)), "");
        assert_eq!(list(&[]), [one]);
        assert_eq!(
            std::fs::read(directory.path().join("log").join(one)).unwrap(),
            b"abcd"
        );
        // A part that does not follow, and one of a file that was not begun.
        assert_eq!(error(&piece(two, 0, "ab", false)), "");
        assert!(error(&piece(two, 3, "cd", true)).contains("missing"));
        assert!(error(&piece(two, 2, "cd", true)).contains("missing"));
        assert_eq!(list(&[]), [one]);
        assert_eq!(error(&piece(two, 0, "", true)), "");
        assert_eq!(list(&[one]), [two]);
        for name in ["../node.db", "/etc/passwd", "node.db", "a.segment"] {
            assert!(error(&piece(name, 0, "", true)).contains("no file of a log"));
            let removed = vec![name.into()];
            let copy = v1::LogCopy {
                removed,
                ..v1::LogCopy::default()
            };
            assert!(error(&copy).contains("no file of a log"));
        }
        assert_eq!(list(&[]), [two]);
    }
}
