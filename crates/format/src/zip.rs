//! Zip file as a directory, for a Zarr in the zip file. Only uncompressed members can be read: the bytes of a compressed member are not in
//! the zip file.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

use crate::bytes::{Cursor, LimitedBytes};
use crate::{Bytes, Directory, Error, Result};

/// Maximum number of members of a zip file.
pub const MEMBERS_MAX: u64 = 1 << 20;
/// Number of bytes at the end of a zip file that may contain the end of the directory: its record and the longest comment.
const END_MAX: u64 = 22 + 0xffff;
const WHAT: &str = "zip directory";

struct ZipMember {
    header: u64,
    size: u64,
    stored: bool,
}

/// Zip file, read as a directory of its members.
pub struct Zip<'a> {
    bytes: &'a dyn Bytes,
    members: BTreeMap<String, ZipMember>,
    /// Offsets of members in the zip file, each looked up once.
    begins: RefCell<BTreeMap<String, u64>>,
}

impl std::fmt::Debug for Zip<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Zip")
            .field("members", &self.members.len())
            .finish_non_exhaustive()
    }
}

impl<'a> Zip<'a> {
    /// Reads the directory of a zip file.
    ///
    /// # Errors
    /// If the zip file has no directory, if its directory is corrupt, or if it has more than [`MEMBERS_MAX`] members.
    pub fn open(bytes: &'a dyn Bytes) -> Result<Self> {
        let mut source = LimitedBytes::new(bytes);
        let (start, len, count) = directory(&mut source)?;
        if count > MEMBERS_MAX {
            return Err(Error::Limit {
                what: "members of a zip file",
                limit: MEMBERS_MAX,
            });
        }
        let mut directory = source.cursor(start, len, WHAT)?;
        let mut members = BTreeMap::new();
        for _ in 0..count {
            let (name, member) = member(&mut directory)?;
            source.charge(128)?;
            members.insert(name, member);
        }
        Ok(Self {
            bytes,
            members,
            begins: RefCell::default(),
        })
    }

    /// Returns the offset of the first byte of a member in the zip file.
    fn begin(&self, path: &str) -> io::Result<u64> {
        if let Some(begin) = self.begins.borrow().get(path) {
            return Ok(*begin);
        }
        let member = self.members.get(path).ok_or(io::ErrorKind::NotFound)?;
        let mut head = [0; 30];
        let end = member
            .header
            .checked_add(30)
            .filter(|end| *end <= self.bytes.size());
        end.ok_or(io::ErrorKind::UnexpectedEof)?;
        self.bytes.read_at(member.header, &mut head)?;
        if &head[..4] != b"PK\x03\x04" || !member.stored {
            let why = if member.stored {
                "has no header"
            } else {
                "is compressed in the zip file"
            };
            return Err(io::Error::other(format!("{path} {why}")));
        }
        let len = |at: usize| u64::from(u16::from_le_bytes([head[at], head[at + 1]]));
        let begin = member.header + 30 + len(26) + len(28);
        if begin
            .checked_add(member.size)
            .is_none_or(|end| end > self.bytes.size())
        {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("{path} extends beyond the end of the zip file"),
            ));
        }
        self.begins.borrow_mut().insert(path.into(), begin);
        Ok(begin)
    }
}

/// Returns the offset of the zip file's directory, its length and its number of members.
fn directory(source: &mut LimitedBytes<'_>) -> Result<(u64, u64, u64)> {
    let len = source.size().min(END_MAX);
    let start = source.size() - len;
    let tail = source.read(start, len, WHAT)?;
    let found = tail.windows(4).rposition(|bytes| bytes == b"PK\x05\x06");
    let wrong = |why: &str| Error::Corrupt {
        what: WHAT,
        offset: start,
        why: why.into(),
    };
    let found = found.ok_or_else(|| wrong("it has no end"))?;
    let end = start + found as u64;
    let mut record = Cursor::over(tail[found..].to_vec(), end, WHAT);
    record.skip(10)?;
    let count = record.uint(2)?;
    let (len, begin) = (record.uint(4)?, record.uint(4)?);
    if count != 0xffff && len != 0xffff_ffff && begin != 0xffff_ffff {
        return Ok((begin, len, count));
    }
    let mut pointer = source.cursor(
        end.checked_sub(20)
            .ok_or_else(|| wrong("it has no end of 64 bits"))?,
        20,
        WHAT,
    )?;
    pointer.expect(b"PK\x06\x07")?;
    pointer.skip(4)?;
    let mut record = source.cursor(pointer.uint(8)?, 56, WHAT)?;
    record.expect(b"PK\x06\x06")?;
    record.skip(28)?;
    let (count, len) = (record.uint(8)?, record.uint(8)?);
    Ok((record.uint(8)?, len, count))
}

fn member(directory: &mut Cursor) -> Result<(String, ZipMember)> {
    directory.expect(b"PK\x01\x02")?;
    directory.skip(6)?;
    let method = directory.u16()?;
    directory.skip(8)?;
    let (mut packed, mut size) = (directory.uint(4)?, directory.uint(4)?);
    let lens = (
        directory.usize(2)?,
        directory.usize(2)?,
        directory.usize(2)?,
    );
    directory.skip(8)?;
    let mut header = directory.uint(4)?;
    let name = directory.text(lens.0)?;
    let mut extra = directory.part(lens.1, WHAT)?;
    directory.skip(lens.2)?;
    while extra.left() >= 4 {
        let (id, len) = (extra.u16()?, extra.usize(2)?);
        let mut field = extra.part(len.min(extra.left()), WHAT)?;
        if id == 1 {
            for number in [&mut size, &mut packed, &mut header] {
                if *number == 0xffff_ffff {
                    *number = field.uint(8)?;
                }
            }
        }
    }
    Ok((
        name,
        ZipMember {
            header,
            size,
            stored: method == 0 && packed == size,
        },
    ))
}

impl Directory for Zip<'_> {
    fn size(&self, path: &str) -> io::Result<Option<u64>> {
        Ok(self.members.get(path).map(|member| member.size))
    }

    fn read_at(&self, path: &str, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let begin = self.begin(path)?;
        let size = self.members.get(path).map_or(0, |member| member.size);
        if offset
            .checked_add(into.len() as u64)
            .is_none_or(|end| end > size)
        {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.bytes.read_at(begin + offset, into)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let prefix = if path.is_empty() {
            String::new()
        } else {
            format!("{path}/")
        };
        let below = self
            .members
            .range(prefix.clone()..)
            .map_while(|(name, _)| name.strip_prefix(&prefix));
        let names: BTreeSet<&str> = below.filter_map(|name| name.split('/').next()).collect();
        Ok(names
            .into_iter()
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect())
    }

    fn place(&self, path: &str) -> io::Result<(Option<String>, u64)> {
        self.begin(path).map(|begin| (None, begin))
    }
}
