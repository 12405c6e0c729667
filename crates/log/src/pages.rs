//! The pages of a database as of the last transaction that the log includes. Page contents come from the write-ahead log, as far as that log
//! has been read, and otherwise from the database file, which only checkpoints change.

use crate::file::{CHUNK_PAGES, Chunk, FileWriter, hash_of};
use crate::wal::{self, WalPosition};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Places in the shared memory of the write-ahead log (`server.db-shm`) of the number of frames, and of the number of frames that a checkpoint
/// has copied or is copying into the database.
const LAST_FRAME: u64 = 16;
const BACKFILL_ATTEMPTED: u64 = 128;

/// Reason why changes can't be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SourceProblem {
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Another program, or a repair of the write-ahead log, made a checkpoint.
    #[error("a checkpoint was made that the log did not expect")]
    Disturbed,
}

/// All pages as of one moment, as long as no checkpoint changes the database.
#[derive(Clone, Debug)]
pub(crate) struct PageView {
    database: Arc<File>,
    wal: Option<Arc<File>>,
    /// Place in the write-ahead log of each page that the log has.
    places: HashMap<u32, u64>,
    pub(crate) pages: u32,
    pub(crate) page_size: u32,
    at: Option<WalPosition>,
}

impl PageView {
    /// Reads a page; a page after the last page, or one that was never written, has zeros.
    fn read(&self, page: u32, into: &mut [u8]) -> io::Result<()> {
        into.fill(0);
        if page > self.pages {
            return Ok(());
        }
        if let (Some(&place), Some(wal)) = (self.places.get(&page), &self.wal) {
            return wal.read_exact_at(into, place);
        }
        let place = u64::from(page - 1) * u64::from(self.page_size);
        match self.database.read_exact_at(into, place) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                into.fill(0);
                Ok(())
            }
            read => read,
        }
    }

    /// Writes all pages.
    pub(crate) fn write_all<W: Write>(&self, to: &mut FileWriter<W>) -> io::Result<()> {
        let mut page = vec![0; self.page_size as usize];
        let mut numbers = (1..=self.pages).peekable();
        while numbers.peek().is_some() {
            let mut chunk = Chunk::default();
            let mut hash = blake3::Hasher::new();
            for number in numbers.by_ref().take(CHUNK_PAGES) {
                self.read(number, &mut page)?;
                hash.update(&page);
                chunk.numbers.push(number);
                chunk.changes.extend(&page);
            }
            chunk.hash = hash_of(&hash);
            to.chunk(&chunk)?;
        }
        Ok(())
    }
}

/// Pages that changed since the last segment.
#[derive(Debug)]
pub(crate) struct PageChanges {
    /// Number of each page and the place of its content in the write-ahead log, in the order of the numbers.
    latest: Vec<(u32, u64)>,
    at: WalPosition,
    pages: u32,
}

impl PageChanges {
    /// Returns the number of pages of the database, and of changed pages.
    pub(crate) fn counts(&self) -> (u32, u32) {
        let changed = u32::try_from(self.latest.len()).unwrap_or(u32::MAX);
        (self.pages, changed)
    }
}

/// A database with its write-ahead log.
#[derive(Debug)]
pub(crate) struct Source {
    wal_path: PathBuf,
    shm_path: PathBuf,
    shm: Option<File>,
    view: PageView,
    /// Whether SQLite may begin the write-ahead log again, since a checkpoint copied all of it and nothing was appended since then.
    may_restart: bool,
}

impl Source {
    /// Opens a database that is open in this process. The returned value must outlive the connections of SQLite: if a process closes a file
    /// of a database, the process loses all locks on the file.
    pub(crate) fn open(database: &Path) -> io::Result<Self> {
        let with = |suffix: &str| {
            let mut path = database.as_os_str().to_owned();
            path.push(suffix);
            PathBuf::from(path)
        };
        let file = File::open(database)?;
        let mut size = [0; 2];
        file.read_exact_at(&mut size, 16)?;
        let page_size = match u16::from_be_bytes(size) {
            1 => 65536,
            size => u32::from(size),
        };
        let view = PageView {
            database: Arc::new(file),
            wal: None,
            places: HashMap::new(),
            pages: 0,
            page_size,
            at: None,
        };
        let mut source = Self {
            wal_path: with("-wal"),
            shm_path: with("-shm"),
            shm: None,
            view,
            may_restart: false,
        };
        source.look_again()?;
        Ok(source)
    }

    /// Reads the whole write-ahead log as it is now, so that a snapshot may begin.
    pub(crate) fn look_again(&mut self) -> io::Result<()> {
        if self.view.wal.is_none() {
            self.view.wal = optional(File::open(&self.wal_path))?.map(Arc::new);
        }
        if self.shm.is_none() {
            self.shm = optional(File::open(&self.shm_path))?;
        }
        let view = &mut self.view;
        view.places.clear();
        view.at = None;
        let mut database_pages = 0;
        if let Some(wal) = &view.wal
            && let Some(begin) = wal::begin(wal)?
        {
            let (frames, end) = wal::read(wal, begin)?;
            view.places.extend(frames.pages);
            view.at = Some(end);
            database_pages = frames.database_pages;
        }
        if database_pages == 0 {
            let mut count = [0; 4];
            view.database.read_exact_at(&mut count, 28)?;
            database_pages = u32::from_be_bytes(count);
        }
        view.pages = database_pages;
        view.places.retain(|page, _| *page <= database_pages);
        self.may_restart = false;
        Ok(())
    }

    /// Returns the present pages.
    pub(crate) fn view(&self) -> &PageView {
        &self.view
    }

    /// Returns the number of bytes of the write-ahead log that have not been read, and that have been read. The file may be longer than the
    /// log, since SQLite begins it again without truncating it.
    pub(crate) fn wal_bytes(&self) -> (u64, u64) {
        let frames = self.shared_number(LAST_FRAME).unwrap_or(0);
        let read = self.view.at.map_or(0, |at| at.frames());
        let unread = match frames >= read {
            true => frames - read,
            false => frames,
        };
        let bytes = |frames: u64| frames * u64::from(self.view.page_size);
        (bytes(unread), bytes(read))
    }

    /// Returns whether the database is as the pages of a view need it.
    pub(crate) fn is_undisturbed(&self, view: &PageView) -> io::Result<bool> {
        let (Some(wal), Some(at)) = (&view.wal, &view.at) else {
            return Ok(self.attempted()? == 0);
        };
        let same = wal::begin(wal)?.is_some_and(|begin| begin.is_same_log(at));
        Ok(same && self.attempted()? <= at.frames())
    }

    /// Returns the number of frames that a checkpoint has copied or is copying.
    fn attempted(&self) -> io::Result<u64> {
        self.shared_number(BACKFILL_ATTEMPTED)
    }

    /// Returns a number in the shared memory of the write-ahead log; 0 if there is no such memory.
    fn shared_number(&self, place: u64) -> io::Result<u64> {
        let Some(shm) = &self.shm else {
            return Ok(0);
        };
        let mut number = [0; 4];
        match shm.read_exact_at(&mut number, place) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
            read => read.map(|()| u64::from(u32::from_ne_bytes(number))),
        }
    }

    /// Returns the changes since the last call of [`Self::advance`]; `None` if there are none.
    pub(crate) fn changes(&mut self) -> Result<Option<PageChanges>, SourceProblem> {
        if self.view.wal.is_none() {
            self.view.wal = optional(File::open(&self.wal_path))?.map(Arc::new);
            self.shm = optional(File::open(&self.shm_path))?;
        }
        let Some(wal) = self.view.wal.clone() else {
            return Ok(None);
        };
        let begin = wal::begin(&wal)?;
        let from = match (begin, self.view.at) {
            (None, None) => return Ok(None),
            (Some(begin), Some(at)) if begin.is_same_log(&at) => at,
            (Some(begin), None) => begin,
            (Some(begin), Some(at)) if self.may_restart && at.is_followed_by(&begin) => begin,
            _ => return Err(SourceProblem::Disturbed),
        };
        if from.page_size != self.view.page_size {
            return Err(SourceProblem::Disturbed);
        }
        // A checkpoint that copied frames which have not been read would have changed the pages from which the differences are made.
        if self.attempted()? > from.frames() {
            return Err(SourceProblem::Disturbed);
        }
        let (frames, at) = wal::read(&wal, from)?;
        if frames.pages.is_empty() {
            return Ok(None);
        }
        let mut latest: HashMap<u32, u64> = frames.pages.into_iter().collect();
        latest.retain(|page, _| (1..=frames.database_pages).contains(page));
        let mut latest: Vec<_> = latest.into_iter().collect();
        latest.sort_unstable();
        Ok(Some(PageChanges {
            latest,
            at,
            pages: frames.database_pages,
        }))
    }

    /// Writes changed pages.
    pub(crate) fn write<W: Write>(
        &self,
        changes: &PageChanges,
        to: &mut FileWriter<W>,
    ) -> io::Result<()> {
        let Some(wal) = &self.view.wal else {
            return Ok(());
        };
        let size = self.view.page_size as usize;
        let (mut new, mut former) = (vec![0; size], vec![0; size]);
        for pages in changes.latest.chunks(CHUNK_PAGES) {
            let mut chunk = Chunk::default();
            let mut hash = blake3::Hasher::new();
            for &(page, place) in pages {
                wal.read_exact_at(&mut new, place)?;
                self.view.read(page, &mut former)?;
                hash.update(&new);
                chunk.numbers.push(page);
                let difference = new.iter().zip(&former).map(|(new, former)| new ^ former);
                chunk.changes.extend(difference);
            }
            chunk.hash = hash_of(&hash);
            to.chunk(&chunk)?;
        }
        Ok(())
    }

    /// Makes changes part of the present pages.
    pub(crate) fn advance(&mut self, changes: PageChanges) {
        let view = &mut self.view;
        if view.at.is_none_or(|at| !at.is_same_log(&changes.at)) {
            view.places.clear();
        }
        view.places.extend(changes.latest);
        if changes.pages < view.pages {
            view.places.retain(|page, _| *page <= changes.pages);
        }
        view.pages = changes.pages;
        view.at = Some(changes.at);
        self.may_restart = false;
    }

    /// Records that a checkpoint has copied the whole write-ahead log into the database. All of the log must have been read.
    pub(crate) fn checkpointed(&mut self) {
        self.view.places.clear();
        self.may_restart = true;
    }
}

fn optional(opened: io::Result<File>) -> io::Result<Option<File>> {
    match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}
