//! Model of the bytes of files that several mounts write, from the view of programs. For each byte the model records when a program began
//! to write it, and since when all programs have to see it. It also determines which bytes must not be read because of newer bytes.

use std::collections::BTreeMap;
use std::ops::Range;

/// Number of entries of a file's history that are reported.
const HISTORY_MAX: usize = 40;

/// Id of an opening: all writers of a file on one mount between its opening and its close.
pub(crate) type Opening = u64;

/// Bytes that were written in one operation.
#[derive(Clone, Debug)]
struct Write {
    range: Range<u64>,
    /// Value of the written bytes; 0 means no bytes, as after the end of a file.
    token: u64,
    opening: Opening,
    /// Time at which the writer opened the file.
    opened: u64,
    start: u64,
    /// Time since which all programs see the bytes.
    shown: Option<u64>,
    /// Time of the writer's close: programs that open the file later see the bytes.
    closed: Option<u64>,
    /// Whether the written bytes survive all faults.
    firm: bool,
}

/// Model of the files that several mounts write. Time is counted in operations.
#[derive(Debug, Default)]
pub(crate) struct Model {
    now: u64,
    /// Time at which each opening began.
    openings: Vec<u64>,
    files: BTreeMap<u64, Vec<Write>>,
    /// Content of each sealed version.
    sealed: BTreeMap<u64, Vec<u64>>,
    /// Publications of the server by version and number, which must be the same for all mounts.
    published: BTreeMap<(u64, u64), Vec<u8>>,
    /// Operations on each file, as text.
    history: BTreeMap<u64, Vec<String>>,
    /// Number of reads that were compared with the model.
    pub(crate) reads: u64,
}

impl Model {
    pub(crate) fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// Records the text of an operation on a file.
    pub(crate) fn note(&mut self, ino: u64, opening: Opening, what: &str) {
        let now = self.tick();
        let text = format!("{now} opening {opening}: {what}");
        self.history.entry(ino).or_default().push(text);
    }

    fn history_text(&self, ino: u64) -> String {
        let all = self.history.get(&ino).map_or(&[][..], Vec::as_slice);
        all[all.len().saturating_sub(HISTORY_MAX)..].join("\n")
    }

    pub(crate) fn opening(&mut self) -> Opening {
        let now = self.tick();
        self.openings.push(now);
        self.openings.len() as u64 - 1
    }

    /// Sets the beginning of an opening to the current time, and returns this time.
    pub(crate) fn reopen(&mut self, opening: Opening) -> u64 {
        let now = self.tick();
        self.openings[usize::try_from(opening).unwrap_or(0)] = now;
        now
    }

    /// Records a write of a byte range and returns the value of the written bytes.
    pub(crate) fn write(&mut self, ino: u64, opening: Opening, range: Range<u64>) -> u64 {
        self.record(ino, opening, range, true)
    }

    /// Records a truncation of a file to `size` bytes.
    pub(crate) fn cut(&mut self, ino: u64, opening: Opening, size: u64) {
        self.record(ino, opening, size..u64::MAX, false);
    }

    fn record(&mut self, ino: u64, opening: Opening, range: Range<u64>, bytes: bool) -> u64 {
        let start = self.tick();
        let token = if bytes { start } else { 0 };
        self.files.entry(ino).or_default().push(Write {
            range,
            token,
            opening,
            opened: self.openings[usize::try_from(opening).unwrap_or(0)],
            start,
            shown: None,
            closed: None,
            firm: false,
        });
        token
    }

    fn of(&mut self, ino: u64, opening: Opening, until: u64) -> impl Iterator<Item = &mut Write> {
        let writes = self.files.entry(ino).or_default().iter_mut();
        writes.filter(move |write| write.opening == opening && write.start <= until)
    }

    /// Makes all writes of an opening up to the time `until` visible to all reads from now on.
    pub(crate) fn show(&mut self, ino: u64, opening: Opening, until: u64) {
        let now = self.tick();
        for write in self.of(ino, opening, until) {
            write.shown.get_or_insert(now);
        }
    }

    /// Makes all writes of an opening visible to programs that open the file from now on.
    pub(crate) fn close(&mut self, ino: u64, opening: Opening) {
        let now = self.tick();
        for write in self.of(ino, opening, u64::MAX) {
            write.closed = Some(now);
        }
    }

    /// Marks all writes of an opening up to the time `until` as surviving all faults.
    pub(crate) fn keep(&mut self, ino: u64, opening: Opening, until: u64) {
        self.of(ino, opening, until)
            .for_each(|write| write.firm = true);
    }

    /// Handles the death of a mount: writes that were closed but did not reach the server need not be visible.
    pub(crate) fn lose(&mut self, ino: u64, opening: Opening) {
        let all = self.of(ino, opening, u64::MAX);
        all.filter(|write| !write.firm)
            .for_each(|write| write.closed = None);
    }

    /// Checks the bytes of a read. The reader opened the file at `opened` and must see all bytes that were visible to all programs at
    /// `since`. It must also see the writes of its own opening before a time.
    pub(crate) fn read(
        &mut self,
        (ino, own): (u64, Option<(Opening, u64)>),
        (opened, since): (u64, u64),
        bytes: &[u64],
        by: &str,
    ) {
        self.reads += 1;
        let writes = self.files.get(&ino).map_or(&[][..], Vec::as_slice);
        let is_seen = |write: &Write| {
            let before = |time: Option<u64>, end| time.is_some_and(|time| time < end);
            let is_own =
                own.is_some_and(|(own, began)| own == write.opening && write.start < began);
            // A truncation that has not been reported yet may be under way.
            is_own && write.token != 0 || before(write.shown, since) || before(write.closed, opened)
        };
        let is_over = |new: &Write, old: &Write| match new.opening == old.opening {
            true => new.start > old.start,
            false => {
                let shown = old.shown.is_some_and(|shown| shown < new.start);
                shown || old.closed.is_some_and(|closed| closed < new.opened)
            }
        };
        // The check includes bytes after the end of the read, because required bytes may be missing there.
        let ends = writes.iter().filter(|write| write.token != 0);
        let end = ends.map(|write| write.range.end).max().unwrap_or(0);
        for at in 0..end.max(bytes.len() as u64) {
            let token = usize::try_from(at).ok().and_then(|at| bytes.get(at));
            let token = token.copied().unwrap_or(0);
            let covers = |write: &&Write| write.range.contains(&at);
            let seen = || writes.iter().filter(covers).filter(|write| is_seen(write));
            let mut found = writes.iter().filter(covers).filter(|w| w.token == token);
            let newest = |old: &Write| !seen().any(|new| is_over(new, old));
            let is_good = found.any(newest) || token == 0 && seen().next().is_none();
            if !is_good {
                let all: Vec<&Write> = writes.iter().filter(covers).collect();
                let history_text = self.history_text(ino);
                panic!(
                    "inode {ino}, byte {at}: {by} reads {token}, opened {opened}, since {since}; {all:?}\n{history_text}"
                );
            }
        }
    }

    /// Makes surviving writes visible to all programs at the end of the run.
    pub(crate) fn end(&mut self) {
        let now = self.tick();
        for write in self.files.values_mut().flatten() {
            if write.firm && write.shown.is_none() && write.closed.is_none() {
                write.closed = Some(now);
            }
        }
    }

    /// Records the content of a sealed version, which never changes.
    pub(crate) fn holds(&mut self, version: u64, bytes: &[u64]) {
        let known = self.sealed.entry(version).or_insert_with(|| bytes.into());
        assert_eq!(known, bytes, "version {version} changed");
    }

    /// Records a publication that the server reported.
    pub(crate) fn published(&mut self, version: u64, number: u64, extents: &[u8]) {
        let known = self.published.entry((version, number));
        let known = known.or_insert_with(|| extents.into());
        assert_eq!(known, extents, "publication {number} of {version} changed");
    }
}
