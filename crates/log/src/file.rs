//! Format of the files of a log: a header, and chunks of pages that are compressed and encrypted.

use crate::name::{FileKind, FileName};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

/// First bytes of each file.
const MAGIC: &[u8; 8] = b"TIDEMLOG";
/// Version of the format.
const VERSION: u32 = 1;
/// Length of the header in bytes.
const HEADER_LEN: usize = 80;
/// Maximum number of pages in a chunk.
pub(crate) const CHUNK_PAGES: usize = 1 << 8;
/// Largest page of SQLite, in bytes.
const PAGE_MAX: usize = 65536;
/// Maximum length of a compressed chunk in a file: pages that can't be compressed, their numbers, and what encryption adds.
const CHUNK_BYTES_MAX: usize = CHUNK_PAGES * (PAGE_MAX + 4) + 65536;
/// Maximum length of the list of attached files in bytes.
const ATTACHED_BYTES_MAX: usize = 16 << 20;
/// Level of compression with zstd.
const LEVEL: i32 = 1;

/// Reason why a file of the log can't be used.
#[derive(Debug, thiserror::Error)]
pub enum FileProblem {
    /// The operating system returned an error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The restored database can't be read or written.
    #[error("the restored database can't be written: {0}")]
    Database(io::Error),
    /// The file is not a file of a log.
    #[error("it is not a file of a log")]
    Foreign,
    /// A later release wrote the file.
    #[error("it has version {0} of the format, this program knows {VERSION}: use a later release")]
    Newer(u32),
    /// The file was written for another cluster.
    #[error("it belongs to another cluster, or was encrypted with another key")]
    Key,
    /// The name and the content contradict each other.
    #[error("its content belongs to a file with another name")]
    Name,
    /// The content was changed or truncated.
    #[error("it was changed or truncated")]
    Damaged,
    /// The segment does not follow the state to which it would be applied.
    #[error("it does not follow the segment before it")]
    OutOfOrder,
}

/// Key of a cluster's log.
#[derive(Clone)]
pub struct LogKey {
    key: [u8; 32],
    id: u64,
}

impl std::fmt::Debug for LogKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogKey").finish_non_exhaustive()
    }
}

impl LogKey {
    /// Derives the key of the log from a cluster's key.
    #[must_use]
    pub fn new(cluster_key: &[u8]) -> Self {
        let key = blake3::derive_key("tidemill 2026-11 log of changed pages", cluster_key);
        let id = blake3::keyed_hash(&key, b"id of the key");
        let id = id.as_bytes().first_chunk().copied().unwrap_or_default();
        let id = u64::from_le_bytes(id);
        Self { key, id }
    }

    /// Returns a text by which logs with this key are found. It reveals nothing of the key.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{:016x}", self.id)
    }

    /// Returns the key of one file. The header, which no other file has, is a part of the key, so a changed header changes the key.
    fn of_file(&self, header: &[u8]) -> LessSafeKey {
        let key = blake3::keyed_hash(&self.key, header);
        let key = UnboundKey::new(&AES_256_GCM, key.as_bytes());
        LessSafeKey::new(key.expect("the key of a hash has the length of a key"))
    }
}

/// Small file of the server's directory that a snapshot contains, as the cluster's certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedFile {
    /// Name in the server's directory.
    pub name: String,
    /// Content of the file.
    pub content: Vec<u8>,
}

/// Header of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) name: FileName,
    /// Id of the cluster.
    pub(crate) cluster: u64,
    /// Moment of the state, in nanoseconds since the epoch.
    pub(crate) time: i64,
    pub(crate) page_size: u32,
    /// Number of pages of the database.
    pub(crate) pages: u32,
    /// Number of pages in the file.
    pub(crate) stored: u32,
}

impl Header {
    fn to_bytes(self, key: &LogKey) -> [u8; HEADER_LEN] {
        let mut bytes = Vec::with_capacity(HEADER_LEN);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.page_size.to_le_bytes());
        bytes.extend(key.id.to_le_bytes());
        bytes.extend(self.cluster.to_le_bytes());
        bytes.extend(self.name.term.to_le_bytes());
        bytes.extend(self.name.number.to_le_bytes());
        bytes.extend(self.name.log.to_le_bytes());
        bytes.extend((self.name.kind as u32).to_le_bytes());
        bytes.extend(self.time.to_le_bytes());
        bytes.extend(self.pages.to_le_bytes());
        bytes.extend(self.stored.to_le_bytes());
        bytes.resize(HEADER_LEN, 0);
        bytes.try_into().unwrap_or([0; HEADER_LEN])
    }

    fn from_bytes(bytes: &[u8; HEADER_LEN], key: &LogKey) -> Result<Self, FileProblem> {
        let four = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        let eight = |at: usize| u64::from(four(at)) | u64::from(four(at + 4)) << 32;
        if &bytes[..8] != MAGIC {
            return Err(FileProblem::Foreign);
        }
        if four(8) != VERSION {
            return Err(FileProblem::Newer(four(8)));
        }
        if eight(16) != key.id {
            return Err(FileProblem::Key);
        }
        let kind = match four(52) {
            0 => FileKind::Snapshot,
            1 => FileKind::Segment,
            _ => return Err(FileProblem::Damaged),
        };
        let header = Self {
            page_size: four(12),
            cluster: eight(24),
            name: FileName {
                term: eight(32),
                number: eight(40),
                log: four(48),
                kind,
            },
            time: eight(56).cast_signed(),
            pages: four(64),
            stored: four(68),
        };
        let size = header.page_size as usize;
        match size.is_power_of_two() && (512..=PAGE_MAX).contains(&size) {
            true if header.to_bytes(key) == *bytes => Ok(header),
            _ => Err(FileProblem::Damaged),
        }
    }
}

fn nonce(chunk: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[..8].copy_from_slice(&chunk.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

/// Pages of a file, in the order of their numbers: of each page its number, and the exclusive or of its new with its former content.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    pub(crate) numbers: Vec<u32>,
    pub(crate) changes: Vec<u8>,
    /// Hash of the new contents of all pages.
    pub(crate) hash: [u8; 16],
}

/// Returns the hash of pages' contents.
pub(crate) fn hash_of(contents: &blake3::Hasher) -> [u8; 16] {
    let hash = contents.finalize();
    hash.as_bytes().first_chunk().copied().unwrap_or_default()
}

/// Writer of one file.
pub(crate) struct FileWriter<W> {
    to: W,
    key: LessSafeKey,
    compressor: zstd::bulk::Compressor<'static>,
    chunk: u64,
    bytes: u64,
}

impl<W: Write> FileWriter<W> {
    /// Writes the header and the attached files.
    pub(crate) fn new(
        mut to: W,
        header: &Header,
        key: &LogKey,
        attached: &[AttachedFile],
    ) -> io::Result<Self> {
        let header = header.to_bytes(key);
        to.write_all(&header)?;
        let mut writer = Self {
            to,
            key: key.of_file(&header),
            compressor: zstd::bulk::Compressor::new(LEVEL)?,
            chunk: 0,
            bytes: HEADER_LEN as u64,
        };
        let attached = serde_json::to_vec(attached)?;
        writer.put(&attached)?;
        Ok(writer)
    }

    fn put(&mut self, plain: &[u8]) -> io::Result<()> {
        let mut sealed = self.compressor.compress(plain)?;
        let nonce = nonce(self.chunk);
        self.key
            .seal_in_place_append_tag(nonce, Aad::empty(), &mut sealed)
            .map_err(|_| io::Error::other("can't encrypt"))?;
        self.chunk += 1;
        let length = u32::try_from(sealed.len()).map_err(io::Error::other)?;
        self.to.write_all(&length.to_le_bytes())?;
        self.to.write_all(&sealed)?;
        self.bytes += 4 + u64::from(length);
        Ok(())
    }

    /// Writes the next pages.
    pub(crate) fn chunk(&mut self, chunk: &Chunk) -> io::Result<()> {
        let mut plain = Vec::with_capacity(16 + 4 * chunk.numbers.len() + chunk.changes.len());
        plain.extend(chunk.hash);
        plain.extend(chunk.numbers.iter().flat_map(|number| number.to_le_bytes()));
        plain.extend(&chunk.changes);
        self.put(&plain)
    }

    /// Returns the writer of the bytes, and the number of bytes.
    pub(crate) fn finish(self) -> (W, u64) {
        (self.to, self.bytes)
    }
}

/// Reader of one file.
pub(crate) struct FileReader<R> {
    from: R,
    pub(crate) header: Header,
    key: LessSafeKey,
    decompressor: zstd::bulk::Decompressor<'static>,
    chunk: u64,
    left: usize,
}

impl<R: Read> FileReader<R> {
    /// Reads the header and the attached files, and checks that they belong to the name.
    pub(crate) fn open(
        mut from: R,
        name: FileName,
        key: &LogKey,
    ) -> Result<(Self, Vec<AttachedFile>), FileProblem> {
        let mut bytes = [0; HEADER_LEN];
        from.read_exact(&mut bytes).map_err(truncated)?;
        let header = Header::from_bytes(&bytes, key)?;
        if header.name != name {
            return Err(FileProblem::Name);
        }
        let mut reader = Self {
            from,
            header,
            key: key.of_file(&bytes),
            decompressor: zstd::bulk::Decompressor::new()?,
            chunk: 0,
            left: header.stored as usize,
        };
        let attached = reader.take(ATTACHED_BYTES_MAX)?;
        let attached = serde_json::from_slice(&attached).map_err(|_| FileProblem::Damaged)?;
        Ok((reader, attached))
    }

    fn take(&mut self, capacity: usize) -> Result<Vec<u8>, FileProblem> {
        let mut length = [0; 4];
        self.from.read_exact(&mut length).map_err(truncated)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > CHUNK_BYTES_MAX {
            return Err(FileProblem::Damaged);
        }
        let mut sealed = vec![0; length];
        self.from.read_exact(&mut sealed).map_err(truncated)?;
        let opened = self
            .key
            .open_in_place(nonce(self.chunk), Aad::empty(), &mut sealed);
        let opened = opened.map_err(|_| FileProblem::Damaged)?;
        self.chunk += 1;
        let plain = self.decompressor.decompress(opened, capacity);
        plain.map_err(|_| FileProblem::Damaged)
    }

    /// Reads the next pages; `None` at the end of the file.
    pub(crate) fn chunk(&mut self) -> Result<Option<Chunk>, FileProblem> {
        let count = self.left.min(CHUNK_PAGES);
        if count == 0 {
            return match self.from.read(&mut [0])? {
                0 => Ok(None),
                _ => Err(FileProblem::Damaged),
            };
        }
        let size = self.header.page_size as usize;
        let length = 16 + count * (4 + size);
        let plain = self.take(length)?;
        if plain.len() != length {
            return Err(FileProblem::Damaged);
        }
        self.left -= count;
        let (hash, rest) = plain.split_first_chunk().ok_or(FileProblem::Damaged)?;
        let (numbers, changes) = rest.split_at(4 * count);
        let (numbers, _) = numbers.as_chunks();
        Ok(Some(Chunk {
            hash: *hash,
            numbers: numbers.iter().copied().map(u32::from_le_bytes).collect(),
            changes: changes.to_vec(),
        }))
    }
}

fn truncated(error: io::Error) -> FileProblem {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => FileProblem::Damaged,
        _ => FileProblem::Io(error),
    }
}
