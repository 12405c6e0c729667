//! Reading of the write-ahead log that SQLite appends to, as SQLite itself reads the log after a crash: a frame counts if its salts are those
//! of the log's header and its checksum continues that of the frame before it, and if a frame that ends a transaction follows.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Length of the log's header, and of the header of each frame.
const HEADER_LEN: usize = 32;
const FRAME_LEN: usize = 24;
/// Number of frames that are read at once.
const FRAMES: usize = 64;

/// Running checksum of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Checksum(u32, u32);

impl Checksum {
    fn add(&mut self, big_endian: bool, bytes: &[u8]) {
        let (words, _) = bytes.as_chunks();
        for pair in words.chunks_exact(2) {
            let word = |at: usize| match big_endian {
                true => u32::from_be_bytes(pair[at]),
                false => u32::from_le_bytes(pair[at]),
            };
            self.0 = self.0.wrapping_add(word(0)).wrapping_add(self.1);
            self.1 = self.1.wrapping_add(word(1)).wrapping_add(self.0);
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([0, 1, 2, 3].map(|i| bytes[at + i]))
}

/// Place in the log after which nothing has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WalPosition {
    /// Salts of the log, which change each time when SQLite begins the log again.
    salts: [u8; 8],
    big_endian: bool,
    pub(crate) page_size: u32,
    offset: u64,
    checksum: Checksum,
}

impl WalPosition {
    /// Returns the number of frames before this place.
    pub(crate) fn frames(&self) -> u64 {
        (self.offset - HEADER_LEN as u64) / (FRAME_LEN as u64 + u64::from(self.page_size))
    }

    /// Returns whether SQLite has begun the log again exactly once between this place and `next`.
    pub(crate) fn is_followed_by(&self, next: &Self) -> bool {
        word(&next.salts, 0) == word(&self.salts, 0).wrapping_add(1)
    }

    /// Returns whether two places are in the same log.
    pub(crate) fn is_same_log(&self, other: &Self) -> bool {
        self.salts == other.salts
    }
}

/// Pages of the transactions in a part of the log.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// Number of each page, and the place of its content in the file, in the order of the log.
    pub(crate) pages: Vec<(u32, u64)>,
    /// Number of pages of the database after the last transaction; 0 if there is none.
    pub(crate) database_pages: u32,
}

/// Returns the beginning of the log; `None` if the log is empty.
pub(crate) fn begin(file: &File) -> io::Result<Option<WalPosition>> {
    let mut header = [0; HEADER_LEN];
    match file.read_exact_at(&mut header, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let big_endian = match word(&header, 0) {
        0x377f_0682 => false,
        0x377f_0683 => true,
        _ => return Ok(None),
    };
    let mut checksum = Checksum::default();
    checksum.add(big_endian, &header[..24]);
    if checksum != Checksum(word(&header, 24), word(&header, 28)) {
        return Ok(None);
    }
    let mut salts = [0; 8];
    salts.copy_from_slice(&header[16..24]);
    Ok(Some(WalPosition {
        salts,
        big_endian,
        page_size: word(&header, 8),
        offset: HEADER_LEN as u64,
        checksum,
    }))
}

/// Reads the complete transactions after a place, and returns their pages and the place after them.
pub(crate) fn read(file: &File, from: WalPosition) -> io::Result<(Frames, WalPosition)> {
    let size = FRAME_LEN + from.page_size as usize;
    let mut buffer = vec![0; size * FRAMES];
    let (mut at, mut end) = (from, from);
    let (mut frames, mut complete) = (Frames::default(), 0);
    loop {
        let read = read_some(file, &mut buffer, at.offset)?;
        for frame in buffer[..read].chunks_exact(size) {
            let (header, page) = frame.split_at(FRAME_LEN);
            at.checksum.add(at.big_endian, &header[..8]);
            at.checksum.add(at.big_endian, page);
            let expected = Checksum(word(header, 16), word(header, 20));
            if header[8..16] != at.salts || at.checksum != expected {
                frames.pages.truncate(complete);
                return Ok((frames, end));
            }
            frames
                .pages
                .push((word(header, 0), at.offset + FRAME_LEN as u64));
            at.offset += size as u64;
            let database_pages = word(header, 4);
            if database_pages != 0 {
                (frames.database_pages, complete, end) = (database_pages, frames.pages.len(), at);
            }
        }
        if read < buffer.len() {
            frames.pages.truncate(complete);
            return Ok((frames, end));
        }
    }
}

fn read_some(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(count) => read += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}
