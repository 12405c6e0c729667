//! Files of a store whose element is lost: packs say what is in them, so they are all that is needed.

use super::super::{Failure, Far, Placed};
use super::format::{self, Directory, Hash, Part, Spot};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Why a pack tells nothing.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// The store does not give it.
    #[error("{0}")]
    Far(#[from] Failure),
    /// It is none, or it is damaged.
    #[error("{0}")]
    Malformed(#[from] format::Malformed),
}

/// What is in the packs of a store.
#[derive(Debug, Default)]
pub struct Contents {
    packs: Vec<Placed>,
    /// In which packs a chunk is, and where in them: what was found to be bad was put there again.
    chunks: HashMap<Hash, Vec<(usize, Spot)>>,
    /// Parts by version, when that was put there, and where in it they begin. It may have been begun more than once.
    versions: BTreeMap<(u64, u64), BTreeMap<u64, Part>>,
}

/// A version of a file that packs have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Its number.
    pub object: u64,
    /// Its name, below the store.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// When it was put there, in nanoseconds since 1970.
    pub time_ns: u64,
    /// All of its bytes are there.
    pub whole: bool,
}

/// A version's bytes, from the first to the last.
#[derive(Debug)]
pub struct Reading<'a> {
    contents: &'a Contents,
    far: Arc<dyn Far>,
    parts: Vec<&'a Part>,
    /// The next chunk.
    next: (usize, usize),
    hasher: blake3::Hasher,
    /// The frame that was read last.
    frame: Option<(usize, format::Frame, Bytes)>,
}

impl Contents {
    /// Reads what a pack says that it has.
    ///
    /// # Errors
    /// If it can't be read, or is none: then nothing of it is taken.
    pub async fn add(&mut self, far: &dyn Far, placed: Placed) -> Result<(), Unreadable> {
        let short = Unreadable::Malformed(format::Malformed("it is too short"));
        let from = placed.size.checked_sub(format::TAIL_BYTES as u64);
        let from = from.ok_or(short)?;
        let tail = far.read(&placed, from, format::TAIL_BYTES as u64).await?;
        let tail = format::Tail::read(&tail, placed.size)?;
        let directory = far.read(&placed, tail.at, u64::from(tail.stored)).await?;
        let Directory { chunks, parts } = tail.directory(&directory)?;
        let pack = self.packs.len();
        self.packs.push(placed);
        for (hash, spot) in chunks {
            self.chunks.entry(hash).or_default().push((pack, spot));
        }
        for part in parts {
            let version = self.versions.entry((part.object, part.time)).or_default();
            version.insert(part.at, part);
        }
        Ok(())
    }

    /// All versions of files, the newest of each name last. What was removed lately may be among them.
    #[must_use]
    pub fn files(&self) -> Vec<Recovered> {
        let mut files: Vec<Recovered> = self
            .versions
            .keys()
            .filter_map(|version| self.file(*version))
            .collect();
        files.sort_by(|one, other| (&one.name, one.time_ns).cmp(&(&other.name, other.time_ns)));
        files
    }

    fn file(&self, version: (u64, u64)) -> Option<Recovered> {
        let first = self.versions.get(&version)?.values().next()?;
        Some(Recovered {
            object: first.object,
            name: first.name.clone(),
            size: first.size,
            time_ns: first.time,
            whole: self.parts(version).is_some(),
        })
    }

    /// The parts of a version, if they follow each other to its end and all of their chunks are there.
    fn parts(&self, version: (u64, u64)) -> Option<Vec<&Part>> {
        let parts: Vec<&Part> = self.versions.get(&version)?.values().collect();
        let first = parts.first()?;
        let mut at = 0;
        for part in &parts {
            let same = (&part.name, part.size) == (&first.name, first.size);
            let there = |(hash, size): &(Hash, u32)| {
                let found = self.chunks.get(hash);
                let same = |(_, spot): &(usize, Spot)| spot.size == *size;
                found.is_some_and(|found| found.iter().any(same))
            };
            if part.at != at || !same || !part.chunks.iter().all(there) {
                return None;
            }
            at = part.end();
        }
        (at == first.size).then_some(parts)
    }

    /// Begins to read a version; `None`: it is not whole.
    #[must_use]
    pub fn read(&self, far: Arc<dyn Far>, file: &Recovered) -> Option<Reading<'_>> {
        Some(Reading {
            contents: self,
            far,
            parts: self.parts((file.object, file.time_ns))?,
            next: (0, 0),
            hasher: blake3::Hasher::new(),
            frame: None,
        })
    }
}

impl Reading<'_> {
    /// The next bytes; none at the end, if all were what was put there.
    ///
    /// # Errors
    /// If the store does not give them, or they are not what was put there.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        while let Some(part) = self.parts.get(self.next.0) {
            let Some((hash, _)) = part.chunks.get(self.next.1) else {
                self.next = (self.next.0 + 1, 0);
                continue;
            };
            let chunk = self.chunk(hash).await?;
            self.hasher.update(&chunk);
            self.next.1 += 1;
            return Ok(Some(chunk));
        }
        // What all of it hashes to was known when the last part was written.
        let hash = self.parts.last().map(|part| part.hash);
        match hash == Some(self.hasher.finalize().into()) {
            true => Ok(None),
            false => Err(Failure::Changed),
        }
    }

    /// A chunk, wherever it still is what it was.
    async fn chunk(&mut self, hash: &Hash) -> Result<Bytes, Failure> {
        let contents = self.contents;
        let mut failure = Failure::Missing;
        for (pack, spot) in contents.chunks.get(hash).into_iter().flatten() {
            match self.frame_of(*pack, spot.frame).await {
                Ok(frame) => match spot.of(&frame, hash) {
                    Some(chunk) => return Ok(chunk),
                    None => failure = Failure::Changed,
                },
                Err(why) => failure = why,
            }
        }
        Err(failure)
    }

    async fn frame_of(&mut self, pack: usize, frame: format::Frame) -> Result<Bytes, Failure> {
        if let Some((of, was, bytes)) = &self.frame
            && (*of, *was) == (pack, frame)
        {
            return Ok(bytes.clone());
        }
        let placed = &self.contents.packs[pack];
        let bytes = self
            .far
            .read(placed, frame.at, frame.end() - frame.at)
            .await?;
        let bytes = frame.opened(bytes)?;
        self.frame = Some((pack, frame, bytes.clone()));
        Ok(bytes)
    }
}
