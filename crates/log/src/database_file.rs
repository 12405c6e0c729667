//! Application of the files of a log to the file of a database that no other process uses.

use crate::file::{AttachedFile, Chunk, FileProblem, FileReader, Header, hash_of};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// An open file of a log, and the attached files in it.
pub(crate) type OpenedFile<R> = (FileReader<R>, Vec<AttachedFile>);

/// File of a database to which files of a log are applied.
#[derive(Debug)]
pub(crate) struct DatabaseFile(File);

impl DatabaseFile {
    /// Opens a database, or creates it if it is missing.
    pub(crate) fn open(path: &Path, empty: bool) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true).read(true).create(true).truncate(empty);
        Ok(Self(options.mode(0o600).open(path)?))
    }

    /// Gives the database the length of a state.
    pub(crate) fn end(&self, state: &Header) -> io::Result<()> {
        let pages = u64::from(state.pages) * u64::from(state.page_size);
        self.0.set_len(pages)
    }

    /// Waits until the database is on the disk.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }

    /// Applies a snapshot, or a segment to the state before it. `open` opens the file at its beginning. Returns the state after the file,
    /// unless the file is later than the moment `until`.
    pub(crate) fn apply<R: Read>(
        &self,
        open: impl Fn() -> Result<OpenedFile<R>, FileProblem>,
        state: Option<&Header>,
        until: i64,
    ) -> Result<Option<(Header, Vec<AttachedFile>)>, FileProblem> {
        let (reader, attached) = open()?;
        let header = reader.header;
        if header.time > until {
            return Ok(None);
        }
        let fits = match state {
            None => header.stored == header.pages,
            Some(state) => (header.cluster, header.page_size) == (state.cluster, state.page_size),
        };
        if !fits {
            return Err(FileProblem::OutOfOrder);
        }
        if state.is_some() {
            // The whole segment is checked before the first change, so that another copy can be applied to the same state.
            self.read(open()?.0, state, false)?;
        } else {
            self.0.set_len(0).map_err(FileProblem::Database)?;
        }
        self.read(reader, state, true)?;
        let length = u64::from(header.pages) * u64::from(header.page_size);
        self.0.set_len(length).map_err(FileProblem::Database)?;
        Ok(Some((header, attached)))
    }

    /// Checks the pages of a file, and writes them if `write`.
    fn read<R: Read>(
        &self,
        mut reader: FileReader<R>,
        state: Option<&Header>,
        write: bool,
    ) -> Result<(), FileProblem> {
        let size = reader.header.page_size as usize;
        let mut last = 0;
        while let Some(mut chunk) = reader.chunk()? {
            for &number in &chunk.numbers {
                if number <= last || number > reader.header.pages {
                    return Err(FileProblem::Damaged);
                }
                last = number;
            }
            let contents = self.contents(&mut chunk, (state, size))?;
            if !write {
                continue;
            }
            let (numbers, mut contents) = (&chunk.numbers, contents.as_slice());
            for run in numbers.chunk_by(|one, next| one + 1 == *next) {
                let (pages, rest) = contents.split_at(run.len() * size);
                let place = u64::from(run[0] - 1) * size as u64;
                let written = self.0.write_all_at(pages, place);
                written.map_err(FileProblem::Database)?;
                contents = rest;
            }
        }
        Ok(())
    }

    /// Returns the new contents of a chunk's pages.
    fn contents(
        &self,
        chunk: &mut Chunk,
        (state, size): (Option<&Header>, usize),
    ) -> Result<Vec<u8>, FileProblem> {
        let mut contents = std::mem::take(&mut chunk.changes);
        if let Some(state) = state {
            let mut former = vec![0; size];
            let pages = contents.chunks_exact_mut(size);
            for (number, page) in chunk.numbers.iter().zip(pages) {
                if *number > state.pages {
                    continue;
                }
                let place = u64::from(number - 1) * size as u64;
                let read = self.0.read_exact_at(&mut former, place);
                read.map_err(FileProblem::Database)?;
                page.iter_mut()
                    .zip(&former)
                    .for_each(|(new, former)| *new ^= former);
            }
        }
        let mut hash = blake3::Hasher::new();
        hash.update(&contents);
        match hash_of(&hash) == chunk.hash {
            true => Ok(contents),
            false => Err(FileProblem::OutOfOrder),
        }
    }
}
