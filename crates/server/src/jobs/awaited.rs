//! Files that jobs wait for. The driver looks a path up once when a job names it, and again only when a row of the feed concerns the path.
//! All paths are looked up after the start, after the driver missed rows of the feed, and after permissions have changed, since the feed has
//! no row for such a change.

use super::submit::sealed;
use crate::clock;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_meta::feed::{self, FeedRow};
use tidemill_meta::shared::NamesShared;
use tidemill_meta::transaction::Tx;
use tidemill_meta::{Caller, Connection, Fault};
use tidemill_model::id::JobId;
use tidemill_model::object::Placed;

/// Number of rows of the feed that are read at once.
const ROWS: i64 = 1024;

/// A path, and the user whose jobs wait for a file at the path.
type PathKey = (String, u32);

/// All files that jobs wait for.
#[derive(Debug, Default)]
pub(super) struct AwaitedFiles {
    paths: BTreeMap<PathKey, WaitingJobs>,
    /// Paths of files that are not sealed, by inode.
    unsealed: BTreeMap<u64, BTreeSet<PathKey>>,
    /// Paths through symbolic links, which any row of the feed may concern.
    anywhere: BTreeSet<PathKey>,
    /// Paths that were not looked up yet.
    fresh: BTreeSet<PathKey>,
    /// Number of the last row of the feed that was read; `None` if all paths are to be looked up.
    seen: Option<i64>,
}

/// Jobs of one user that wait for the same path.
#[derive(Debug)]
struct WaitingJobs {
    caller: Caller,
    jobs: BTreeSet<JobId>,
    ino: u64,
}

/// A file that jobs waited for.
#[derive(Debug)]
pub(super) struct FoundFile {
    pub(super) uid: u32,
    pub(super) path: String,
    pub(super) placed: Placed,
    pub(super) jobs: BTreeSet<JobId>,
}

impl AwaitedFiles {
    pub(super) fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// Adds a job that waits for a file with the rights of `caller`.
    pub(super) fn add(
        &mut self,
        path: &str,
        job: JobId,
        caller: impl FnOnce() -> Caller,
        uid: u32,
    ) {
        let key = (path.to_owned(), uid);
        let waiting = self.paths.entry(key.clone()).or_insert_with(|| {
            self.fresh.insert(key);
            WaitingJobs {
                caller: caller(),
                jobs: BTreeSet::new(),
                ino: 0,
            }
        });
        waiting.jobs.insert(job);
    }

    /// Removes a job that has ended.
    pub(super) fn end(&mut self, job: JobId) {
        let mut left = Vec::new();
        for (key, waiting) in &mut self.paths {
            if waiting.jobs.remove(&job) && waiting.jobs.is_empty() {
                left.push(key.clone());
            }
        }
        for key in left {
            self.remove(&key);
        }
    }

    fn remove(&mut self, key: &PathKey) -> BTreeSet<JobId> {
        self.fresh.remove(key);
        self.anywhere.remove(key);
        let waiting = self.paths.remove(key);
        if self.paths.is_empty() {
            // Rows of the feed are not read while no job waits.
            self.seen = None;
        }
        let Some(waiting) = waiting else {
            return BTreeSet::new();
        };
        self.forget_inode(waiting.ino, key);
        waiting.jobs
    }

    fn forget_inode(&mut self, ino: u64, key: &PathKey) {
        if let Some(keys) = self.unsealed.get_mut(&ino) {
            keys.remove(key);
            if keys.is_empty() {
                self.unsealed.remove(&ino);
            }
        }
    }

    /// Makes the next look examine all paths.
    pub(super) fn look_at_all(&mut self) {
        self.seen = None;
    }

    /// Looks up the paths that changes may concern. The jobs of a found file no longer wait for it.
    pub(super) fn look(
        &mut self,
        db: &Connection,
        shared: &NamesShared,
    ) -> Result<Vec<FoundFile>, Fault> {
        let last = feed::last(db)?;
        let mut found = Vec::new();
        for key in self.concerned(db, last)? {
            let Some(waiting) = self.paths.get(&key) else {
                continue;
            };
            let tx = Tx::new(db, shared, &waiting.caller, 0, clock::now_ns());
            match sealed(&tx, &key.0)? {
                Some(placed) => found.push((key, placed)),
                None => {
                    let awaited = tx.awaited(key.0.as_bytes())?;
                    self.keep(&key, awaited.ino, awaited.anywhere);
                }
            }
        }
        self.seen = Some(last);
        let found = found.into_iter().map(|(key, placed)| FoundFile {
            jobs: self.remove(&key),
            path: key.0,
            uid: key.1,
            placed,
        });
        Ok(found.collect())
    }

    /// Returns the paths that the rows of the feed up to `last` may concern, and the paths that were not looked up yet.
    fn concerned(&self, db: &Connection, last: i64) -> Result<BTreeSet<PathKey>, Fault> {
        let floor = feed::floor(db)?;
        let Some(mut seen) = self.seen.filter(|seen| *seen >= floor) else {
            return Ok(self.paths.keys().cloned().collect());
        };
        let mut keys = self.fresh.clone();
        loop {
            let rows = feed::rows(db, (seen, last), ROWS)?;
            let Some(newest) = rows.last() else {
                return Ok(keys);
            };
            seen = newest.seq;
            keys.extend(self.anywhere.iter().cloned());
            for row in &rows {
                self.add_concerned(row, &mut keys);
            }
        }
    }

    fn add_concerned(&self, row: &FeedRow, keys: &mut BTreeSet<PathKey>) {
        keys.extend(self.unsealed.get(&row.ino).into_iter().flatten().cloned());
        let Ok(path) = std::str::from_utf8(&row.path) else {
            return;
        };
        let mut add = |first: String, holds: &dyn Fn(&str) -> bool| {
            let from = self.paths.range((first, 0)..).map(|(key, _)| key);
            keys.extend(from.take_while(|key| holds(&key.0)).cloned());
        };
        add(path.to_owned(), &|key| key == path);
        let below = format!("{path}/");
        add(below.clone(), &|key| key.starts_with(&below));
    }

    /// Records what decides about the rows of the feed that concern a path.
    fn keep(&mut self, key: &PathKey, ino: u64, anywhere: bool) {
        self.fresh.remove(key);
        let before = self.paths.get_mut(key);
        let before = before.map(|waiting| std::mem::replace(&mut waiting.ino, ino));
        if let Some(before) = before.filter(|before| *before != ino) {
            self.forget_inode(before, key);
        }
        if ino != 0 {
            self.unsealed.entry(ino).or_default().insert(key.clone());
        }
        match anywhere {
            true => self.anywhere.insert(key.clone()),
            false => self.anywhere.remove(key),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_meta::{SqliteNames, ids};
    use tidemill_wire::v1::{self, Kind};

    fn write<T: Send + 'static>(
        names: &SqliteNames,
        work: impl FnOnce(&mut Tx<'_>) -> Result<T, Fault> + Send + 'static,
    ) -> T {
        let shared = names.shared().clone();
        let work = move |db: &Connection| work(&mut Tx::new(db, &shared, &Caller::root(), 0, 1));
        names.database().write_blocking(work).unwrap()
    }

    /// Creates a file without bytes, which a job can read at once, or a directory, or a symbolic link.
    fn make(names: &SqliteNames, path: &'static str, kind: Kind, target: &'static str) {
        write(names, move |tx| {
            let op = v1::Create {
                name: path.into(),
                kind: kind.into(),
                mode: 0o755,
                ino: ids::reserve(tx.db, "inode", 1)?,
                target: target.into(),
                make_parents: true,
                ..v1::Create::default()
            };
            tx.create(&op).map(drop)
        });
    }

    fn awaited(paths: &[&str]) -> AwaitedFiles {
        let mut awaited = AwaitedFiles::default();
        for (job, path) in (1..).zip(paths) {
            awaited.add(path, JobId(job), Caller::root, 0);
        }
        awaited
    }

    fn found(names: &SqliteNames, awaited: &mut AwaitedFiles) -> Vec<String> {
        let look = |db: &Connection| awaited.look(db, names.shared());
        let found = names.database().read(look).unwrap();
        found.into_iter().map(|file| file.path).collect()
    }

    /// Returns the paths that the next look examines.
    fn next(names: &SqliteNames, awaited: &AwaitedFiles) -> Vec<String> {
        let look = |db: &Connection| awaited.concerned(db, feed::last(db)?);
        let keys = names.database().read(look).unwrap();
        keys.into_iter().map(|(path, _)| path).collect()
    }

    #[test]
    fn awaited_files_are_looked_up_only_after_rows_that_concern_them() {
        let directory = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&directory.path().join("server.db"), (0, 0)).unwrap();
        make(&names, "/to/there", Kind::File, "");
        make(&names, "/link", Kind::Symlink, "/to");
        let mut awaited = awaited(&["/a/x", "/a/y", "/a/y.txt", "/b/c/z", "/link/q", "/to/there"]);
        assert_eq!(found(&names, &mut awaited), ["/to/there"]);
        assert!(next(&names, &awaited).is_empty());
        make(&names, "/other", Kind::File, "");
        // A path through a symbolic link may be concerned by any row.
        assert_eq!(next(&names, &awaited), ["/link/q"]);
        assert!(found(&names, &mut awaited).is_empty());
        make(&names, "/a/y", Kind::File, "");
        assert_eq!(next(&names, &awaited), ["/a/y", "/link/q"]);
        assert_eq!(found(&names, &mut awaited), ["/a/y"]);
        make(&names, "/to/q", Kind::File, "");
        assert_eq!(found(&names, &mut awaited), ["/link/q"]);
        make(&names, "/d/c/z", Kind::File, "");
        assert!(next(&names, &awaited).is_empty());
        write(&names, |tx| {
            let op = v1::Rename {
                parent: 1,
                name: b"d".to_vec(),
                new_parent: 1,
                new_name: b"b".to_vec(),
                ..v1::Rename::default()
            };
            tx.rename(&op).map(drop)
        });
        assert_eq!(found(&names, &mut awaited), ["/b/c/z"]);
        // A job that ends waits for nothing; the others are looked up again after permissions have changed.
        awaited.end(JobId(3));
        awaited.look_at_all();
        assert_eq!(next(&names, &awaited), ["/a/x"]);
        assert!(found(&names, &mut awaited).is_empty());
        // Rows were deleted before the driver has read them.
        make(&names, "/a/x", Kind::File, "");
        write(&names, |tx| {
            let last = feed::last(tx.db)?.cast_unsigned();
            tx.db.raw().execute("DELETE FROM feed", [])?;
            ids::raise(tx.db, &[("feed", last)])
        });
        assert_eq!(found(&names, &mut awaited), ["/a/x"]);
        assert!(awaited.is_empty() && awaited.fresh.is_empty() && awaited.anywhere.is_empty());
    }
}
