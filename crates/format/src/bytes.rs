//! Access of format readers to bytes: reads are few and limited, and each read is checked against the end of the file.

use std::collections::BTreeMap;
use std::io;

use crate::{Error, Result};

/// File on any kind of storage, as a format reader accesses it.
pub trait Bytes {
    /// Returns the size of the file in bytes.
    fn size(&self) -> u64;
    /// Fills `into` with the file's bytes at `offset`. Callers request only bytes before the end of the file.
    ///
    /// # Errors
    /// If the bytes cannot be read.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;
}

impl Bytes for [u8] {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(offset)
            .ok()
            .and_then(|start| self.get(start..)?.get(..into.len()));
        into.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl Bytes for Vec<u8> {
    fn size(&self) -> u64 {
        self.as_slice().size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.as_slice().read_at(offset, into)
    }
}

#[cfg(unix)]
impl Bytes for std::fs::File {
    fn size(&self) -> u64 {
        self.metadata().map_or(0, |metadata| metadata.len())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, into, offset)
    }
}

/// Number of bytes that are fetched at once: over a network, a request costs more than its bytes.
const PAGE: u64 = 16 << 10;
/// Maximum number of cached pages.
const PAGES_MAX: usize = 256;
/// Maximum number of bytes of one read from a header.
pub(crate) const READ_MAX: u64 = 32 << 20;
/// Maximum number of bytes that one pass over a header may read, including repeated reads. It also limits the data that readers keep.
pub(crate) const LOOKED_AT_MAX: u64 = 128 << 20;
/// Maximum number of reads in one pass over a header.
const LOOKS_MAX: u64 = 2 << 20;

/// Bytes of a file with a limit on reads, through cached pages.
pub(crate) struct LimitedBytes<'a> {
    bytes: &'a dyn Bytes,
    size: u64,
    pages: BTreeMap<u64, Vec<u8>>,
    bytes_left: u64,
    looks_left: u64,
}

impl<'a> LimitedBytes<'a> {
    pub(crate) fn new(bytes: &'a dyn Bytes) -> Self {
        Self {
            bytes,
            size: bytes.size(),
            pages: BTreeMap::new(),
            bytes_left: LOOKED_AT_MAX,
            looks_left: LOOKS_MAX,
        }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Counts data that a reader keeps in addition to the bytes that it has read.
    pub(crate) fn charge(&mut self, bytes: u64) -> Result<()> {
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or(Error::Limit {
            what: "bytes of header",
            limit: LOOKED_AT_MAX,
        })?;
        Ok(())
    }

    /// Returns `len` bytes of the file from `offset` on; `what` describes the bytes in errors.
    pub(crate) fn read(&mut self, offset: u64, len: u64, what: &'static str) -> Result<Vec<u8>> {
        let end = offset.saturating_add(len);
        if end > self.size {
            return Err(Error::Truncated {
                what,
                offset,
                end,
                size: self.size,
            });
        }
        if len > READ_MAX {
            return Err(Error::Limit {
                what,
                limit: READ_MAX,
            });
        }
        self.charge(len)?;
        self.looks_left = self.looks_left.checked_sub(1).ok_or(Error::Limit {
            what: "pieces of header",
            limit: LOOKS_MAX,
        })?;
        let mut into = vec![0; usize::try_from(len).unwrap_or(0)];
        if len > PAGE {
            self.fetch(offset, &mut into, what)?;
            return Ok(into);
        }
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            let page = self.page(at / PAGE, what)?;
            let from = usize::try_from(at % PAGE).unwrap_or(0);
            let some = (into.len() - done).min(page.len() - from);
            into[done..done + some].copy_from_slice(&page[from..from + some]);
            done += some;
        }
        Ok(into)
    }

    fn page(&mut self, number: u64, what: &'static str) -> Result<&[u8]> {
        if !self.pages.contains_key(&number) {
            let start = number * PAGE;
            let mut page = vec![0; usize::try_from(PAGE.min(self.size - start)).unwrap_or(0)];
            self.fetch(start, &mut page, what)?;
            if self.pages.len() >= PAGES_MAX {
                self.pages.clear();
            }
            self.pages.insert(number, page);
        }
        Ok(self.pages.get(&number).map_or(&[], Vec::as_slice))
    }

    fn fetch(&self, offset: u64, into: &mut [u8], what: &'static str) -> Result<()> {
        self.bytes
            .read_at(offset, into)
            .map_err(|source| Error::Io {
                what,
                offset,
                source,
            })
    }

    pub(crate) fn cursor(&mut self, offset: u64, len: u64, what: &'static str) -> Result<Cursor> {
        Ok(Cursor {
            data: self.read(offset, len, what)?,
            at: 0,
            offset,
            what,
        })
    }
}

/// Part of a header that is parsed from its start to its end. Its numbers are little-endian.
pub(crate) struct Cursor {
    data: Vec<u8>,
    at: usize,
    offset: u64,
    what: &'static str,
}

impl Cursor {
    /// Returns a cursor for bytes that were read from `offset` of the file.
    pub(crate) fn over(data: Vec<u8>, offset: u64, what: &'static str) -> Self {
        Self {
            data,
            at: 0,
            offset,
            what,
        }
    }

    pub(crate) fn offset(&self) -> u64 {
        self.offset + self.at as u64
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn left(&self) -> usize {
        self.data.len() - self.at
    }

    pub(crate) fn corrupt(&self, why: impl Into<String>) -> Error {
        Error::Corrupt {
            what: self.what,
            offset: self.offset(),
            why: why.into(),
        }
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&[u8]> {
        if self.left() < len {
            return Err(self.corrupt(format!(
                "{len} bytes are to follow, and it has {}",
                self.left()
            )));
        }
        self.at += len;
        Ok(&self.data[self.at - len..self.at])
    }

    /// Takes all remaining bytes of the cursor.
    pub(crate) fn take_all(&mut self) -> Result<Vec<u8>> {
        Ok(self.take(self.left())?.to_vec())
    }

    /// Takes the next `len` bytes as a separate cursor.
    pub(crate) fn part(&mut self, len: usize, what: &'static str) -> Result<Self> {
        let offset = self.offset();
        Ok(Self {
            data: self.take(len)?.to_vec(),
            at: 0,
            offset,
            what,
        })
    }

    pub(crate) fn skip(&mut self, len: usize) -> Result<()> {
        self.take(len).map(|_| ())
    }

    pub(crate) fn expect(&mut self, magic: &[u8]) -> Result<()> {
        let at = self.at;
        if self.take(magic.len())? == magic {
            return Ok(());
        }
        self.at = at;
        Err(self.corrupt(format!(
            "it does not begin with {}",
            String::from_utf8_lossy(magic)
        )))
    }

    /// Takes an unsigned number of `len` bytes, at most 8.
    pub(crate) fn uint(&mut self, len: usize) -> Result<u64> {
        if len > 8 {
            return Err(self.corrupt(format!("a number of {len} bytes")));
        }
        Ok(self
            .take(len)?
            .iter()
            .rev()
            .fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        Ok(u16::try_from(self.uint(2)?).unwrap_or(u16::MAX))
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(u32::try_from(self.uint(4)?).unwrap_or(u32::MAX))
    }

    pub(crate) fn usize(&mut self, len: usize) -> Result<usize> {
        let number = self.uint(len)?;
        usize::try_from(number).map_err(|_| self.corrupt(format!("a length of {number}")))
    }

    /// Takes `len` bytes of text, and returns the text up to its first zero byte, or all of it.
    pub(crate) fn text(&mut self, len: usize) -> Result<String> {
        Ok(text(self.take(len)?))
    }

    /// Takes text up to and including a zero byte, which must exist.
    pub(crate) fn text_to_zero(&mut self) -> Result<String> {
        let len = self.data[self.at..].iter().position(|byte| *byte == 0);
        let len = len.ok_or_else(|| self.corrupt("text without an end"))?;
        let text = self.text(len)?;
        self.skip(1)?;
        Ok(text)
    }
}

/// Converts bytes to text up to the first zero byte; invalid UTF-8 is replaced by a visible character.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
