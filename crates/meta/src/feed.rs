//! The feed: one row for each change of names and versions, in the order of the commits. The transaction that makes a change writes its
//! row, and nothing else that follows from the change. The consumers read the rows after their cursors:
//!
//! - rules (`rules/matching.rs`, next: `server/src/rules/driver.rs`) and the index of headers (`index/headers.rs`, next:
//!   `server/src/headers/driver.rs`) store their cursors in the table `counter`, together with the work that they take from the rows. Rows
//!   are deleted only after these two consumers have taken them;
//! - clients that watch paths have their cursors themselves (next: `server/src/events.rs`). This file answers their requests.

use super::fault::Fault;
use super::ids;
use super::index::headers;
use super::query::stored_enum;
use super::rules;
use super::transaction::Tx;
use super::vnode::{Caller, InodeRecord, READ, SEARCH};
use crate::Connection;
use crate::query;
use rusqlite::{OptionalExtension, params};
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicI64, Ordering};
use tidemill_model::glob::Pattern;
use tidemill_model::id::Inode;
use tidemill_wire::v1::{self, Kind};

/// Maximum number of stored rows.
pub const KEPT_MAX: i64 = 1 << 18;
/// Number of the oldest rows that are deleted together when the maximum is exceeded.
const FORGOTTEN: i64 = 1024;
/// Maximum number of rows that a consumer reads in one transaction.
pub(crate) const PAGE: i64 = 1024;
/// Maximum number of names below a renamed directory that are examined.
const WALK_MAX: usize = 1 << 14;
/// Maximum number of file events, and of bytes of their paths and cursors, in one answer, which must fit into the answer of a label.
pub const ANSWER_MAX: usize = 256;
const ANSWER_BYTES_MAX: usize = 32 << 10;
/// Nanoseconds of a microsecond, the unit of the numbers of rows.
pub(crate) const MICROSECOND_NS: i64 = 1000;

/// Number of stored rows: counted once, then updated with each change.
#[derive(Debug)]
pub struct FeedCount(AtomicI64);

impl Default for FeedCount {
    fn default() -> Self {
        Self(AtomicI64::new(-1))
    }
}

stored_enum! {
    /// Kind of a change.
    FeedKind {
        /// A version of a file was sealed.
        Sealed = 0,
        /// A file with a sealed version received a name by a rename or a link.
        Named = 1,
        /// A directory received a name by a rename, and with it all files below the directory.
        Directory = 2,
        /// The write of a version has begun. Only recorded while a rule reads files that are being written.
        Begun = 3,
        /// A file without bytes, a file without a sealed version or a symbolic link received a name. Files may exist at the path or below it,
        /// or may exist there after their seal under another path.
        Appeared = 4,
    }
}

/// Position of a client in the file events: the client has received all events up to a number and, if the next event is about a directory,
/// the files in that directory up to a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventCursor {
    /// Number of the last file event that the client has received, even if it has received only some files of a directory.
    pub number: i64,
    within: Option<String>,
}

impl fmt::Display for EventCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.within {
            Some(path) => write!(f, "{}:{path}", self.number),
            None => write!(f, "{}", self.number),
        }
    }
}

impl FromStr for EventCursor {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (number, within) = match text.split_once(':') {
            Some((number, path)) => (number, Some(path.to_owned())),
            None => (text, None),
        };
        let number = number.parse().ok().filter(|number| *number >= 0);
        let number = number.ok_or(())?;
        Ok(Self { number, within })
    }
}

/// File events for a client from the next rows of the table.
#[derive(Debug, Default)]
pub struct EventPage {
    /// File events that the client may see and whose paths match the pattern, in the order of their numbers.
    pub events: Vec<v1::FileEvent>,
    /// Position after the examined rows, or within the row of a directory whose files did not all fit; the next page continues there.
    pub cursor: EventCursor,
    /// Whether earlier file events are no longer stored, or are too many to examine.
    pub missed: bool,
    /// Whether more rows of file events may follow.
    pub more: bool,
    bytes: usize,
}

impl EventPage {
    fn is_full(&self, limit: usize) -> bool {
        self.events.len() >= limit || self.bytes >= ANSWER_BYTES_MAX
    }

    fn push(&mut self, path: &str, vnode: &InodeRecord, cursor: &EventCursor) {
        let cursor = cursor.to_string();
        self.bytes += path.len() + cursor.len();
        self.events.push(v1::FileEvent {
            path: path.to_owned(),
            ino: vnode.ino,
            version: vnode.version,
            object: vnode.object,
            size: vnode.size,
            mtime: vnode.mtime,
            uid: vnode.uid,
            cursor,
        });
    }
}

/// A row of the table `feed`.
#[derive(Debug)]
pub struct FeedRow {
    /// Number of the row: the time of the change in microseconds since the Unix epoch, or the last number plus one if that is larger.
    pub seq: i64,
    /// Kind of the change.
    pub kind: FeedKind,
    /// Inode of the file or directory.
    pub ino: u64,
    /// Object of the version at the change; 0 for a directory and a symbolic link.
    pub object: u64,
    /// Whether a user other than the owner and root has given the name.
    pub by_other: bool,
    /// Path of the file or directory at the change, from the root and with the leading slash; not necessarily UTF-8.
    pub path: Vec<u8>,
}

impl Tx<'_> {
    /// Records that a version was sealed at a path.
    pub(crate) fn feed_sealed(&self, vnode: &InodeRecord, path: &[u8]) -> Result<(), Fault> {
        match vnode.has_version() {
            true => self.feed(FeedKind::Sealed, vnode, (vnode.object, false), path),
            false => Ok(()),
        }
    }

    /// Records that the write of a version has begun.
    pub(crate) fn feed_begun(&self, vnode: &InodeRecord) -> Result<(), Fault> {
        let path = self.path_of(vnode.ino)?.unwrap_or_default();
        self.feed(FeedKind::Begun, vnode, (vnode.writing, false), &path)
    }

    /// Records that a file has a version without bytes.
    pub(crate) fn feed_appeared(&self, vnode: &InodeRecord, path: &[u8]) -> Result<(), Fault> {
        self.feed(FeedKind::Appeared, vnode, (0, false), path)
    }

    /// Records that a file, directory or symbolic link has received a name in a directory.
    pub(crate) fn feed_named(
        &self,
        vnode: &InodeRecord,
        directory: u64,
        name: &[u8],
    ) -> Result<(), Fault> {
        let (kind, object) = match vnode.kind {
            Kind::File if vnode.has_version() => (FeedKind::Named, vnode.object),
            Kind::Directory => (FeedKind::Directory, 0),
            Kind::File | Kind::Symlink => (FeedKind::Appeared, 0),
            _ => return Ok(()),
        };
        let Some(mut path) = self.path_of(directory)? else {
            return Ok(());
        };
        if !path.ends_with(b"/") {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        let by_other = ![0, vnode.uid].contains(&self.caller.uid);
        self.feed(kind, vnode, (object, by_other), &path)
    }

    fn feed(
        &self,
        kind: FeedKind,
        vnode: &InodeRecord,
        (object, by_other): (u64, bool),
        path: &[u8],
    ) -> Result<(), Fault> {
        if path.is_empty() {
            return Ok(());
        }
        // No number is assigned twice, even if a power failure loses the last commits.
        let sql = "INSERT INTO feed VALUES (max(?1, 1 + coalesce((SELECT max(seq) FROM feed), 0), \
                   1 + (SELECT next FROM counter WHERE name = 'feed')), ?2, ?3, ?4, ?5, ?6)";
        let (now, ino) = (self.now / MICROSECOND_NS, vnode.ino.cast_signed());
        let row = params![now, kind, ino, object.cast_signed(), by_other, path];
        query::execute(self.db, sql, row)?;
        self.shared.rules.wake_for_feed();
        self.shared.headers.wake_for(kind, path);
        self.forget_rows()
    }

    fn forget_rows(&self) -> Result<(), Fault> {
        let FeedCount(kept) = &self.shared.feed;
        if kept.load(Ordering::Relaxed) < 0 {
            let sql = "SELECT count(*) FROM feed";
            let counted = self.db.sql.query_row(sql, [], |row| row.get::<_, i64>(0))?;
            kept.store(counted - 1, Ordering::Relaxed);
        }
        if kept.fetch_add(1, Ordering::Relaxed) < KEPT_MAX + FORGOTTEN {
            return Ok(());
        }
        let sql = "SELECT seq FROM feed ORDER BY seq LIMIT 1 OFFSET ?1";
        let last: Option<i64> = self
            .db
            .sql
            .query_row(sql, [FORGOTTEN - 1], |row| row.get(0))
            .optional()?;
        let Some(last) = last else { return Ok(()) };
        // A consumer that lags by the whole feed slows the changes down, and misses none.
        rules::take_until(self.db, self.shared, last, self.now)?;
        headers::take_until(self.db, last)?;
        let deleted = self
            .db
            .sql
            .execute("DELETE FROM feed WHERE seq <= ?1", [last])?;
        ids::raise(self.db, &[("feed", last.cast_unsigned())])?;
        kept.fetch_sub(i64::try_from(deleted).unwrap_or(0), Ordering::Relaxed);
        Ok(())
    }

    /// Returns at most `limit` file events that the caller may see, from the position of a cursor.
    pub fn events(
        &self,
        pattern: &Pattern,
        since: &EventCursor,
        limit: usize,
    ) -> Result<EventPage, Fault> {
        let floor = floor(self.db)?;
        let mut page = EventPage {
            cursor: since.clone(),
            missed: since.number < floor,
            ..EventPage::default()
        };
        if page.missed {
            page.cursor = EventCursor {
                number: floor,
                within: None,
            };
        }
        let from = page.cursor.number - i64::from(page.cursor.within.is_some());
        let rows = rows(self.db, (from, i64::MAX), PAGE)?;
        page.more = rows.len() as u64 >= PAGE.unsigned_abs();
        for row in rows {
            if page.is_full(limit) {
                page.more = true;
                break;
            }
            let Ok(path) = std::str::from_utf8(&row.path) else {
                page.cursor = row.heard();
                continue;
            };
            if row.kind == FeedKind::Directory {
                if !self.tell_below(&row, path, pattern, limit, &mut page)? {
                    page.more = true;
                    break;
                }
            } else if row.is_file_event()
                && pattern.matches(&path[1..])
                && let Some(vnode) = self.seen_at(path, pattern)?
                && (vnode.ino, vnode.object) == (row.ino, row.object)
            {
                page.push(path, &vnode, &row.heard());
            }
            page.cursor = row.heard();
        }
        Ok(page)
    }

    /// Adds the files in a renamed directory to the page; returns whether all of the files fit.
    fn tell_below(
        &self,
        row: &FeedRow,
        path: &str,
        pattern: &Pattern,
        limit: usize,
        page: &mut EventPage,
    ) -> Result<bool, Fault> {
        if !reaches(pattern, path) {
            return Ok(true);
        }
        let heard = page.cursor.within.clone();
        let heard = heard.filter(|_| page.cursor.number == row.seq);
        let Some(files) = self.files_below(row, path, pattern)? else {
            page.missed = true;
            return Ok(true);
        };
        for path in files {
            if heard.as_ref().is_some_and(|heard| path <= *heard) {
                continue;
            }
            if page.is_full(limit) {
                return Ok(false);
            }
            page.cursor = EventCursor {
                number: row.seq,
                within: Some(path.clone()),
            };
            if let Some(vnode) = self.seen_at(&path, pattern)?
                && vnode.has_version()
            {
                let cursor = page.cursor.clone();
                page.push(&path, &vnode, &cursor);
            }
        }
        Ok(true)
    }

    /// Returns the paths below a directory that match the pattern, in order; `None` if there are too many names.
    fn files_below(
        &self,
        row: &FeedRow,
        path: &str,
        pattern: &Pattern,
    ) -> Result<Option<Vec<String>>, Fault> {
        // The directory may have been renamed since.
        if self.path_of(row.ino)?.as_deref() != Some(path.as_bytes()) {
            return Ok(Some(Vec::new()));
        }
        let (mut directories, mut files) = (vec![(row.ino, path.to_owned())], Vec::new());
        let mut looked = 0;
        let sql = "SELECT dirent.name, dirent.ino, inode.kind FROM dirent CROSS JOIN inode ON inode.ino = dirent.ino \
                   WHERE dirent.parent = ?1";
        let mut statement = self.db.sql.prepare_cached(sql)?;
        while let Some((directory, path)) = directories.pop() {
            let mut rows = statement.query([directory.cast_signed()])?;
            while let Some(row) = rows.next()? {
                looked += 1;
                if looked > WALK_MAX {
                    return Ok(None);
                }
                let name: Vec<u8> = row.get(0)?;
                let Ok(name) = String::from_utf8(name) else {
                    continue;
                };
                let path = format!("{path}/{name}");
                let kind: i32 = row.get(2)?;
                if kind == Kind::Directory as i32 {
                    if reaches(pattern, &path) {
                        directories.push((query::unsigned(row, 1)?, path));
                    }
                } else if kind == Kind::File as i32 && pattern.matches(&path[1..]) {
                    files.push(path);
                }
            }
        }
        files.sort_unstable();
        Ok(Some(files))
    }

    /// Returns the file at a path without symbolic links, if the caller may read the file and may list every directory that the pattern
    /// does not name exactly.
    fn seen_at(&self, path: &str, pattern: &Pattern) -> Result<Option<InodeRecord>, Fault> {
        let caller = Caller {
            checked: false,
            ..self.caller.clone()
        };
        let mut vnode = InodeRecord::get(self.db, Inode::ROOT.0)?;
        let mut walked = 0;
        for name in path[1..].split('/') {
            let named = walked < pattern.directory().len();
            let needed = if named { SEARCH } else { SEARCH | READ };
            if !vnode.is_dir() || !caller.may(&vnode, needed) {
                return Ok(None);
            }
            let Some(next) = InodeRecord::child(self.db, vnode.ino, name.as_bytes())? else {
                return Ok(None);
            };
            vnode = next;
            walked += name.len() + 1;
        }
        let seen = vnode.kind == Kind::File && caller.may(&vnode, READ);
        Ok(seen.then_some(vnode))
    }
}

/// A path at which a file is awaited, with the state that decides about the rows of the feed that may concern the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwaitedPath {
    path: Vec<u8>,
    /// Inode of the file if the file exists and may be sealed under another of its names; 0 otherwise.
    pub ino: u64,
    /// Whether the file may appear by a change of any path, since the path leads through symbolic links.
    pub anywhere: bool,
}

impl AwaitedPath {
    /// Returns the state of a path that was not looked up yet: any row may concern it.
    pub fn unknown(path: &[u8]) -> Self {
        Self {
            path: path.to_vec(),
            ino: 0,
            anywhere: true,
        }
    }

    /// Whether the file may exist after a change.
    pub fn is_concerned(&self, row: &FeedRow) -> bool {
        let below = self.path.strip_prefix(row.path.as_slice());
        let below = below.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"));
        self.anywhere || below || (self.ino != 0 && self.ino == row.ino)
    }
}

impl Tx<'_> {
    /// Returns the present state of a path at which a file is awaited.
    pub fn awaited(&self, path: &[u8]) -> Result<AwaitedPath, Fault> {
        let (vnode, links) = self.resolve_counting_links(path);
        let ino = match vnode {
            Ok(vnode) => vnode.ino,
            Err(fault) if fault.is_database_failure() => return Err(fault),
            Err(_) => 0,
        };
        let mut names = path.split(|&byte| byte == b'/');
        let odd = names.next().is_none_or(|first| !first.is_empty())
            || names.any(|name| matches!(name, b"" | b"." | b".."));
        Ok(AwaitedPath {
            path: path.to_vec(),
            ino,
            anywhere: odd || links > 0,
        })
    }
}

impl FeedRow {
    /// Whether a sealed version has appeared under the path of the row.
    pub(crate) fn is_file_event(&self) -> bool {
        matches!(self.kind, FeedKind::Sealed | FeedKind::Named)
    }

    /// Whether the change may concern a client that watches paths.
    pub fn concerns(&self, pattern: &Pattern) -> bool {
        let Ok(path) = std::str::from_utf8(&self.path) else {
            return false;
        };
        match self.kind {
            FeedKind::Directory => reaches(pattern, path),
            _ => self.is_file_event() && pattern.matches(path.trim_start_matches('/')),
        }
    }

    fn heard(&self) -> EventCursor {
        EventCursor {
            number: self.seq,
            within: None,
        }
    }
}

/// Returns whether files below a directory may match the pattern.
fn reaches(pattern: &Pattern, directory: &str) -> bool {
    let own = pattern.directory();
    let directory = directory.trim_matches('/');
    let within = |above: &str, below: &str| {
        let rest = below.strip_prefix(above);
        rest.is_some_and(|rest| above.is_empty() || rest.is_empty() || rest.starts_with('/'))
    };
    within(own, directory) || within(directory, own)
}

/// Returns the highest number of a deleted row.
pub fn floor(db: &Connection) -> Result<i64, Fault> {
    Ok(ids::next(db, "feed")?.cast_signed())
}

/// Returns the highest number that a row ever received.
pub fn last(db: &Connection) -> Result<i64, Fault> {
    let sql = "SELECT max(seq) FROM feed";
    let last: Option<i64> = db
        .sql
        .prepare_cached(sql)?
        .query_row([], |row| row.get(0))?;
    Ok(last.unwrap_or(0).max(floor(db)?))
}

/// Returns the next rows after the first of two numbers, up to and including the second.
pub fn rows(
    db: &Connection,
    (after, until): (i64, i64),
    limit: i64,
) -> Result<Vec<FeedRow>, Fault> {
    let sql = "SELECT seq, kind, ino, object, by_other, path FROM feed WHERE seq > ?1 AND seq <= ?2 ORDER BY seq LIMIT ?3";
    query::rows(db, sql, [after, until, limit], |row| {
        Ok(FeedRow {
            seq: row.get(0)?,
            kind: row.get(1)?,
            ino: query::unsigned(row, 2)?,
            object: query::unsigned(row, 3)?,
            by_other: row.get(4)?,
            path: row.get(5)?,
        })
    })
}

#[cfg(test)]
pub(crate) use tests::make;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SqliteNames;

    fn names(directory: &tempfile::TempDir) -> SqliteNames {
        SqliteNames::open(&directory.path().join("server.db"), (0, 0)).unwrap()
    }

    /// Calls `work` in a transaction with the rights of root.
    fn with<T: Send + 'static>(
        names: &SqliteNames,
        work: impl FnOnce(&mut Tx<'_>) -> Result<T, Fault> + Send + 'static,
    ) -> T {
        let shared = names.shared().clone();
        let work = move |db: &Connection| {
            let root = Caller::root();
            work(&mut Tx::new(db, &shared, &root, 0, 1))
        };
        names.database().write_here(false, work).unwrap().value
    }

    /// Creates a file or directory of a user with a mode. Returns the inode.
    pub(crate) fn make(
        tx: &mut Tx<'_>,
        path: &str,
        kind: Kind,
        (uid, mode): (u32, u32),
    ) -> Result<u64, Fault> {
        let (directory, name) = path.rsplit_once('/').unwrap();
        let parent = tx.resolve(format!("{directory}/").as_bytes(), true)?.ino;
        let ino = ids::reserve(tx.db, "inode", 1)?;
        tx.create(&v1::Create {
            parent,
            name: name.as_bytes().to_vec(),
            kind: kind.into(),
            mode,
            ino,
            uid,
            gid: uid,
            ..v1::Create::default()
        })?;
        Ok(ino)
    }

    /// Gives a file a new version, as a seal does.
    fn seal(tx: &Tx<'_>, path: &str) -> Result<(), Fault> {
        let vnode = tx.resolve(path.as_bytes(), true)?;
        let sql = "UPDATE inode SET version = version + 1, object = 1000 * ino + version + 1 WHERE ino = ?1";
        tx.db.sql.execute(sql, [vnode.ino.cast_signed()])?;
        tx.feed_sealed(&InodeRecord::get(tx.db, vnode.ino)?, path.as_bytes())
    }

    fn put(names: &SqliteNames, path: &'static str, mode: u32) {
        with(names, move |tx| {
            make(tx, path, Kind::File, (0, mode))?;
            seal(tx, path)
        });
    }

    fn rename(
        names: &SqliteNames,
        from: (&'static str, &'static str),
        to: (&'static str, &'static str),
    ) {
        with(names, move |tx| {
            let op = v1::Rename {
                parent: tx.resolve(from.0.as_bytes(), true)?.ino,
                name: from.1.into(),
                new_parent: tx.resolve(to.0.as_bytes(), true)?.ino,
                new_name: to.1.into(),
                ..v1::Rename::default()
            };
            tx.rename(&op).map(drop)
        });
    }

    fn page(
        names: &SqliteNames,
        uid: u32,
        pattern: &str,
        since: &EventCursor,
        limit: usize,
    ) -> EventPage {
        let caller = Caller {
            uid,
            gid: uid,
            ..Caller::default()
        };
        let pattern = Pattern::new(pattern).unwrap();
        let look = |db: &Connection| {
            Tx::new(db, names.shared(), &caller, 0, 1).events(&pattern, since, limit)
        };
        names.database().read(look).unwrap()
    }

    fn now(names: &SqliteNames) -> EventCursor {
        let number = names.database().read(last).unwrap();
        EventCursor {
            number,
            within: None,
        }
    }

    fn paths(page: &EventPage) -> Vec<&str> {
        page.events.iter().map(|one| one.path.as_str()).collect()
    }

    /// Reads all file events one by one, and returns each event with its previous cursor as text.
    fn one_by_one(names: &SqliteNames, pattern: &str, since: &EventCursor) -> Vec<String> {
        let (mut since, mut all) = (since.clone(), Vec::new());
        loop {
            let page = page(names, 0, pattern, &since, 1);
            assert!(!page.missed);
            let Some(one) = page.events.into_iter().next() else {
                return all;
            };
            since = one.cursor.parse().unwrap();
            all.push(one.path);
        }
    }

    #[test]
    fn file_events_are_listed_in_commit_order_from_any_cursor() {
        let directory = tempfile::tempdir().unwrap();
        let names = names(&directory);
        with(&names, |tx| make(tx, "/run", Kind::Directory, (0, 0o755)));
        let begin = now(&names);
        for path in ["/run/step-2", "/run/step-1", "/run/other", "/run/step-3"] {
            put(&names, path, 0o644);
        }
        let reported = page(&names, 0, "run/step-*", &begin, 10);
        assert_eq!(
            paths(&reported),
            ["/run/step-2", "/run/step-1", "/run/step-3"]
        );
        assert_eq!(reported.cursor, now(&names));
        assert_eq!(one_by_one(&names, "run/step-*", &begin), paths(&reported));
        // A replaced version is reported as its replacement, a renamed file under its present name, a removed file not at all.
        with(&names, |tx| seal(tx, "/run/step-1"));
        rename(&names, ("/run", "other"), ("/run", "step-4"));
        rename(&names, ("/run", "step-2"), ("/", "elsewhere"));
        let reported = page(&names, 0, "run/step-*", &begin, 10);
        assert_eq!(
            paths(&reported),
            ["/run/step-3", "/run/step-1", "/run/step-4"]
        );
        assert_eq!(
            reported.events[1].version, 3,
            "made, closed, and closed again"
        );
        assert_eq!(page(&names, 0, "**", &now(&names), 10).events, []);
    }

    #[test]
    fn file_events_after_directory_rename_list_files_at_new_path() {
        let directory = tempfile::tempdir().unwrap();
        let names = names(&directory);
        with(&names, |tx| {
            make(tx, "/new", Kind::Directory, (0, 0o755))?;
            make(tx, "/new/b", Kind::Directory, (0, 0o755))?;
            make(tx, "/run", Kind::Directory, (0, 0o755))
        });
        let begin = now(&names);
        for path in ["/new/b/2", "/new/1", "/new/3.tmp", "/new/b/1"] {
            put(&names, path, 0o644);
        }
        rename(&names, ("/", "new"), ("/run", "old"));
        put(&names, "/run/9", 0o644);
        let all = ["/run/old/1", "/run/old/b/1", "/run/old/b/2", "/run/9"];
        let pattern = "run/**/[0-9]";
        assert_eq!(paths(&page(&names, 0, pattern, &begin, 100)), all);
        assert_eq!(one_by_one(&names, pattern, &begin), all);
        // After a second rename the files no longer exist under the first name.
        rename(&names, ("/run", "old"), ("/run", "older"));
        let reported = page(&names, 0, pattern, &begin, 100);
        assert_eq!(
            paths(&reported),
            ["/run/9", "/run/older/1", "/run/older/b/1", "/run/older/b/2"]
        );
        // A directory with too many names is reported as missed file events.
        with(&names, |tx| {
            let parent = tx.resolve(b"/run/older", true)?.ino.cast_signed();
            let sql = "WITH RECURSIVE n(i) AS (SELECT 100000 UNION ALL SELECT i + 1 FROM n WHERE i < 120000) \
                       INSERT INTO dirent SELECT ?1, CAST(i AS BLOB), 1 FROM n";
            Ok(tx.db.sql.execute(sql, [parent])?)
        });
        assert!(page(&names, 0, pattern, &begin, 100).missed);
    }

    #[test]
    fn file_events_hide_files_that_caller_cannot_read_or_list() {
        let directory = tempfile::tempdir().unwrap();
        let names = names(&directory);
        with(&names, |tx| {
            make(tx, "/open", Kind::Directory, (0, 0o755))?;
            make(tx, "/closed", Kind::Directory, (0, 0o700))?;
            make(tx, "/unlisted", Kind::Directory, (0, 0o711))
        });
        let begin = now(&names);
        put(&names, "/open/shared", 0o644);
        put(&names, "/open/private", 0o600);
        put(&names, "/closed/shared", 0o644);
        put(&names, "/unlisted/shared", 0o644);
        let all = page(&names, 0, "**", &begin, 100);
        assert_eq!(all.events.len(), 4);
        for pattern in ["**", "unlisted/*", "closed/**", "open/*"] {
            let reported = page(&names, 7, pattern, &begin, 100);
            let open: &[&str] = match pattern {
                "**" | "open/*" => &["/open/shared"],
                _ => &[],
            };
            assert_eq!(paths(&reported), open, "{pattern}");
            // The cursor of these users advances as well, and does not reveal the number of files.
            assert_eq!(reported.cursor, now(&names));
        }
    }

    #[test]
    fn file_events_report_missed_if_cursor_is_too_old() {
        let directory = tempfile::tempdir().unwrap();
        let names = names(&directory);
        let begin = now(&names);
        with(&names, |tx| {
            let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1) \
                       INSERT INTO feed SELECT ?2 + i, 0, 1, 7, 0, CAST('/x' AS BLOB) FROM n";
            let floor = floor(tx.db)?;
            Ok(tx.db.sql.execute(sql, [KEPT_MAX + FORGOTTEN, floor])?)
        });
        assert!(!page(&names, 0, "a", &begin, 100).missed);
        put(&names, "/a", 0o644);
        let reported = page(&names, 0, "a", &begin, 100);
        assert!(reported.missed);
        let known = with(&names, |tx| Ok(rows(tx.db, (0, i64::MAX), i64::MAX)?.len()));
        // The file's creation and its seal have one row each.
        assert_eq!(known as i64, KEPT_MAX + 2);
        // From there on no file event is missed.
        let mut since = reported.cursor;
        assert_eq!(since.number, begin.number + FORGOTTEN + PAGE);
        loop {
            let next = page(&names, 0, "a", &since, 100);
            assert!(!next.missed);
            if !next.more {
                assert_eq!(paths(&next), ["/a"]);
                break;
            }
            assert_eq!(next.events, []);
            since = next.cursor;
        }
        // A new cluster has no record of earlier file events.
        let later = tempfile::tempdir().unwrap();
        let later = self::names(&later);
        let old = EventCursor {
            number: begin.number - 10_000_000,
            within: None,
        };
        assert!(page(&later, 0, "a", &old, 1).missed);
    }

    #[test]
    fn awaited_path_is_concerned_by_its_name_directories_and_inode() {
        let row = |path: &str, ino| FeedRow {
            seq: 1,
            kind: FeedKind::Sealed,
            ino,
            object: 7,
            by_other: false,
            path: path.into(),
        };
        let mut awaited = AwaitedPath::unknown(b"/run/a/b");
        assert!(awaited.is_concerned(&row("/other", 5)));
        awaited.anywhere = false;
        for (path, concerned) in [
            ("/run/a/b", true),
            ("/run", true),
            ("/run/a/bc", false),
            ("/ru", false),
            ("/run/a/b/c", false),
        ] {
            assert_eq!(awaited.is_concerned(&row(path, 5)), concerned, "{path}");
        }
        awaited.ino = 5;
        assert!(awaited.is_concerned(&row("/other", 5)));
        assert!(!awaited.is_concerned(&row("/other", 6)));
    }
}
