//! Reads a file while it is written: passes bytes on as soon as they exist, until the writer has closed the file. The module sends requests
//! to nodes and to the server (next: `node/src`, `server/src`).
//!
//! The client gets no notification of a program's direct writes, so it polls the object, and asks the server for the object's state when no
//! bytes have been added. If several mounts write the file, the client asks them to publish their writes. At the end the client compares
//! the bytes that it passed on with the sealed version.
//!
//! The object of a file that one mount writes is the file only until another mount writes the file, too: from then on the file's bytes may
//! be anywhere in the object. The server knows the second writer before its first byte is written. So after such a read the client asks the
//! server whether the object was still the file.

mod streaming;

use crate::error::Error;
use crate::opened::OpenedVersion;
use crate::transfer::{PIECE_BYTES, Transfer};
use bytes::Bytes;
use parking_lot::Mutex;
use std::ops::Range;
use std::time::Duration;
use streaming::{StreamLocation, StreamingFile, VersionUpdate};
use tidemill_model::backoff::Backoff;
use tidemill_model::display::escaped;
use tidemill_model::layout::Layout;
use tidemill_wire::v1;

/// Longest pause between two polls.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Pauses after polls without new bytes.
const POLLS: Backoff = Backoff::new(Duration::from_millis(10), PAUSE_MAX);
/// Number of bytes in one request for bytes of a version being written.
const GROWN_BYTES: u64 = 1 << 20;

/// Length and unwritten ranges of a file that was read to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FollowedFile {
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Ranges that no writer has written and that read as zeros. Known for files that several mounts wrote.
    pub unwritten: Vec<Range<u64>>,
}

/// Range of bytes that were passed on, and its location in an object.
#[derive(Clone, Copy, Debug)]
struct PassedBytes {
    offset: u64,
    length: u64,
    object: u64,
    at: u64,
}

#[derive(Debug, Default)]
struct ReadProgress {
    bytes: u64,
    hasher: blake3::Hasher,
    pieces: Vec<PassedBytes>,
}

impl ReadProgress {
    /// Passes on the next bytes, which are at offset `at` of an object.
    fn hand_on(
        &mut self,
        (object, at): (u64, u64),
        bytes: Bytes,
        piece: &mut impl FnMut(Bytes) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let length = bytes.len() as u64;
        match self.pieces.last_mut() {
            Some(last) if (last.object, last.at + last.length) == (object, at) => {
                last.length += length;
            }
            _ => self.pieces.push(PassedBytes {
                offset: self.bytes,
                length,
                object,
                at,
            }),
        }
        self.bytes += length;
        self.hasher.update(&bytes);
        piece(bytes)
    }

    /// Whether all bytes that were passed on are still at their locations. Published bytes are never written again.
    fn is_unchanged(&self, layout: &Layout) -> bool {
        self.pieces.iter().all(|piece| {
            let range = piece.offset..piece.offset + piece.length;
            layout.segments(range).all(|now| {
                now.at.is_some_and(|at| {
                    let object = layout.parts()[at.part].object.0;
                    (object, at.offset) == (piece.object, piece.at + (now.offset - piece.offset))
                })
            })
        })
    }
}

/// Returns the ranges of a sealed version that were never written.
fn unwritten(layout: &Layout, size: u64) -> Vec<Range<u64>> {
    let holes = layout
        .segments(0..size)
        .filter(|segment| segment.at.is_none());
    holes
        .map(|hole| hole.offset..hole.offset + hole.length)
        .collect()
}

impl Transfer {
    /// Reads a file from its beginning to its end, and passes its bytes to `piece` in chunks. If one or several mounts write the file, the
    /// function passes its bytes on in order as they are added, until the file is sealed. Otherwise it passes on the bytes of the current
    /// version, once no client writes the file.
    ///
    /// # Errors
    /// The file may not be read; the version was abandoned ([`Error::Abandoned`]); some bytes of the version were changed after they were
    /// passed on ([`Error::WrittenOver`]); the server does not answer for a minute; or `piece` returned an error.
    pub async fn follow(
        &self,
        path: impl AsRef<[u8]>,
        mut piece: impl FnMut(Bytes) -> Result<(), Error>,
    ) -> Result<FollowedFile, Error> {
        let ino = self.resolve(&path).await?.ino;
        let Some(mut version) = self.begun(ino).await? else {
            let bytes = self.read(path, piece).await?;
            return Ok(FollowedFile {
                bytes,
                ..FollowedFile::default()
            });
        };
        let path = &*escaped(path.as_ref());
        let mut read = ReadProgress::default();
        let mut pauses = POLLS;
        while !version.is_sealed() {
            let before = read.bytes;
            self.read_on(path, &mut version, &mut read, &mut piece)
                .await?;
            if version.is_sealed() {
                break;
            }
            if read.bytes != before {
                pauses.reset();
            }
            tokio::time::sleep(pauses.pause()).await;
            version.adopt(self.news(&version, path, read.bytes).await?)?;
        }
        match version.parts() {
            Some(parts) => self.rest_of_parts(path, &version, parts, read, piece).await,
            None => self.rest(path, version.opened(), read, piece).await,
        }
    }

    /// Returns the version of a file that is being written; `None` if no client writes the file.
    async fn begun(&self, ino: u64) -> Result<Option<StreamingFile>, Error> {
        let mut pauses = POLLS;
        loop {
            let opened = self.opened_streaming(ino).await?;
            let attr = opened.attr.ok_or(Error::Answer("Open"))?;
            if opened.object != attr.object {
                return StreamingFile::new(ino, opened).map(Some);
            }
            if !attr.writing {
                return Ok(None);
            }
            // The version is striped: it is read when it is sealed.
            tokio::time::sleep(pauses.pause()).await;
        }
    }

    /// Returns the server's report on the state of a version. `bytes` is the number of bytes that were read.
    async fn news(
        &self,
        version: &StreamingFile,
        path: &str,
        bytes: u64,
    ) -> Result<VersionUpdate, Error> {
        let news = self.look(&version.known()).await?;
        news.ok_or_else(|| Error::Abandoned {
            path: path.to_owned(),
            bytes,
        })
    }

    /// Passes on the bytes that are added to a version, until it is sealed. If nodes cannot return some bytes, it reads them later.
    async fn read_on(
        &self,
        path: &str,
        version: &mut StreamingFile,
        read: &mut ReadProgress,
        piece: &mut impl FnMut(Bytes) -> Result<(), Error>,
    ) -> Result<(), Error> {
        while !version.is_sealed()
            && let StreamLocation::Object(remote, range) = version.at(read.bytes, GROWN_BYTES)
        {
            let length = range.end - range.start;
            let bytes = match self.objects().read(&remote, range.start, length).await {
                Ok(bytes) if bytes.is_empty() => break,
                Ok(bytes) => bytes,
                Err(error) => {
                    tracing::debug!("a file that is being written can't be read yet: {error}");
                    break;
                }
            };
            if version.is_alone() {
                version.adopt(self.news(version, path, read.bytes).await?)?;
                if !version.is_one_object() {
                    continue;
                }
            }
            read.hand_on((remote.object.0, range.start), bytes, piece)?;
        }
        Ok(())
    }

    /// Passes on the rest of a version that was sealed as one object.
    async fn rest(
        &self,
        path: &str,
        opened: &v1::Opened,
        mut read: ReadProgress,
        mut piece: impl FnMut(Bytes) -> Result<(), Error>,
    ) -> Result<FollowedFile, Error> {
        let remote = Self::remote(opened)?;
        if read.bytes < opened.size {
            let rest = OpenedVersion::new(opened)?;
            let rest = rest.stream(self, read.bytes, |bytes| {
                let at = (remote.object.0, read.bytes);
                read.hand_on(at, bytes, &mut piece)
            });
            rest.await?;
        }
        let hash = read.hasher.finalize();
        let same = read.bytes == opened.size
            && (read.bytes == 0 || self.objects().confirm(&remote, hash.as_bytes()).await?);
        match same {
            true => Ok(FollowedFile {
                bytes: read.bytes,
                ..FollowedFile::default()
            }),
            false => Err(Error::WrittenOver(path.to_owned())),
        }
    }

    /// Passes on the rest of a version that several mounts have written.
    async fn rest_of_parts(
        &self,
        path: &str,
        version: &StreamingFile,
        parts: &OpenedVersion,
        mut read: ReadProgress,
        mut piece: impl FnMut(Bytes) -> Result<(), Error>,
    ) -> Result<FollowedFile, Error> {
        let size = version.opened().size;
        let window = |from: u64, end: u64| from..end.min(from + PIECE_BYTES as u64);
        if read.bytes > size {
            return Err(Error::WrittenOver(path.to_owned()));
        }
        if !read.is_unchanged(parts.layout()) {
            // The same bytes may have been written once more.
            let (mut hasher, mut at) = (blake3::Hasher::new(), 0);
            while at < read.bytes {
                let bytes = parts.read(self, window(at, read.bytes)).await?;
                hasher.update(&bytes);
                at += bytes.len() as u64;
            }
            if hasher.finalize() != read.hasher.finalize() {
                return Err(Error::WrittenOver(path.to_owned()));
            }
        }
        while read.bytes < size {
            let bytes = parts.read(self, window(read.bytes, size)).await?;
            read.bytes += bytes.len() as u64;
            piece(bytes)?;
        }
        Ok(FollowedFile {
            bytes: size,
            unwritten: unwritten(parts.layout(), size),
        })
    }
}

/// A version that is being written, for random access by a reader that waits for later bytes.
#[derive(Debug)]
pub struct Following {
    transfer: Transfer,
    version: Mutex<StreamingFile>,
}

impl Following {
    /// Returns a reader of a file that was opened while the file is being written.
    ///
    /// # Errors
    /// The server's answer is invalid.
    pub fn new(transfer: Transfer, ino: u64, opened: v1::Opened) -> Result<Self, Error> {
        let version = Mutex::new(StreamingFile::new(ino, opened)?);
        Ok(Self { transfer, version })
    }

    /// Reads up to `length` bytes: waits until the version has bytes at `offset`, or until it is sealed without them. Returns `None` if
    /// `go_on` returned false.
    ///
    /// # Errors
    /// The version was abandoned ([`Error::Abandoned`]) or may not be read any more, or the server does not answer for a minute.
    pub async fn read(
        &self,
        (offset, length): (u64, u64),
        go_on: impl Fn() -> bool,
    ) -> Result<Option<Bytes>, Error> {
        let mut pauses = POLLS;
        loop {
            let (at, alone, sealed) = {
                let version = self.version.lock();
                let at = version.at(offset, length);
                (at, version.is_alone(), version.is_sealed())
            };
            let objects = self.transfer.objects();
            let read = match at {
                StreamLocation::Object(remote, range) => {
                    let length = range.end - range.start;
                    objects.read(&remote, range.start, length).await
                }
                StreamLocation::Parts(parts, range) => parts.read(&self.transfer, range).await,
                StreamLocation::NotYet => Ok(Bytes::new()),
                StreamLocation::End => return Ok(Some(Bytes::new())),
                StreamLocation::Offline(node) => Err(Error::NodeDown(node)),
            };
            match read {
                Ok(bytes) if alone && !bytes.is_empty() => {
                    self.look(offset).await?;
                    if self.version.lock().is_one_object() {
                        return Ok(Some(bytes));
                    }
                    continue;
                }
                Ok(bytes) if sealed || !bytes.is_empty() => return Ok(Some(bytes)),
                Ok(_) => {}
                // The node may return, or another right is needed.
                Err(error) => tracing::debug!("a streaming version can't be read yet: {error}"),
            }
            tokio::time::sleep(pauses.pause()).await;
            if !go_on() {
                return Ok(None);
            }
            self.look(offset).await?;
        }
    }

    /// Fetches the state of the version, for a reader that is at `offset`.
    async fn look(&self, offset: u64) -> Result<(), Error> {
        let known = self.version.lock().known();
        let Some(news) = self.transfer.look(&known).await? else {
            return Err(Error::Abandoned {
                path: format!("file {}", known.ino),
                bytes: offset,
            });
        };
        self.version.lock().adopt(news)
    }
}
