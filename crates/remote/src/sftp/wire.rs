//! Packets of SFTP, version 3 (draft-ietf-secsh-filexfer-02), and the used packets of OpenSSH's extensions. The functions have no effects.

use bytes::{Buf, Bytes};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(super) const INIT: u8 = 1;
pub(super) const VERSION: u8 = 2;
pub(super) const OPEN: u8 = 3;
pub(super) const CLOSE: u8 = 4;
pub(super) const READ: u8 = 5;
pub(super) const WRITE: u8 = 6;
pub(super) const LSTAT: u8 = 7;
pub(super) const FSTAT: u8 = 8;
pub(super) const OPENDIR: u8 = 11;
pub(super) const READDIR: u8 = 12;
pub(super) const REMOVE: u8 = 13;
pub(super) const MKDIR: u8 = 14;
pub(super) const REALPATH: u8 = 16;
pub(super) const RENAME: u8 = 18;
pub(super) const EXTENDED: u8 = 200;
pub(super) const STATUS: u8 = 101;
pub(super) const HANDLE: u8 = 102;
pub(super) const DATA: u8 = 103;
pub(super) const NAME: u8 = 104;
pub(super) const ATTRS: u8 = 105;

pub(super) const OPEN_READ: u32 = 1;
pub(super) const OPEN_NEW: u32 = 0x2 | 0x8 | 0x20;

pub(super) const OK: u32 = 0;
const EOF: u32 = 1;
pub(super) const NO_SUCH_FILE: u32 = 2;
pub(super) const PERMISSION_DENIED: u32 = 3;

const SIZE: u32 = 1;
const IDS: u32 = 2;
const PERMISSIONS: u32 = 4;
const TIMES: u32 = 8;
const MORE: u32 = 0x8000_0000;

/// Request packet without its number.
#[derive(Debug)]
pub(super) struct Packet(Vec<u8>);

impl Packet {
    pub(super) fn new(kind: u8) -> Self {
        Self(vec![kind])
    }

    pub(super) fn number(mut self, number: u32) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub(super) fn long(mut self, number: u64) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub(super) fn bytes(self, bytes: &[u8]) -> Self {
        let count = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let mut packet = self.number(count);
        packet.0.extend(bytes);
        packet
    }

    /// Returns the bytes of the packet, with its number.
    pub(super) fn sent(self, number: Option<u32>) -> Vec<u8> {
        let numbered = number.map_or(0, |_| 4);
        let count = u32::try_from(self.0.len() + numbered).unwrap_or(u32::MAX);
        let mut sent = Vec::with_capacity(self.0.len() + 8);
        sent.extend(count.to_be_bytes());
        sent.push(self.0[0]);
        sent.extend(number.into_iter().flat_map(u32::to_be_bytes));
        sent.extend(&self.0[1..]);
        sent
    }
}

/// Unread bytes of an answer. The methods return `None` if a field is missing.
#[derive(Debug)]
pub(super) struct ReplyBody {
    pub(super) kind: u8,
    pub(super) left: Bytes,
}

impl ReplyBody {
    pub(super) fn number(&mut self) -> Option<u32> {
        self.left.try_get_u32().ok()
    }

    /// Returns whether the answer reports the end of a file or list.
    pub(super) fn is_end(&self) -> bool {
        self.kind == STATUS && self.left.starts_with(&EOF.to_be_bytes())
    }

    fn long(&mut self) -> Option<u64> {
        self.left.try_get_u64().ok()
    }

    pub(super) fn bytes(&mut self) -> Option<Bytes> {
        let count = usize::try_from(self.number()?).ok()?;
        (count <= self.left.len()).then(|| self.left.split_to(count))
    }

    pub(super) fn attributes(&mut self) -> Option<FileAttributes> {
        let flags = self.number()?;
        let mut found = FileAttributes::default();
        if flags & SIZE != 0 {
            found.size = Some(self.long()?);
        }
        if flags & IDS != 0 {
            found.ids = Some(self.long()?);
        }
        if flags & PERMISSIONS != 0 {
            found.mode = Some(self.number()?);
        }
        if flags & TIMES != 0 {
            self.number()?;
            found.modified_s = Some(self.number()?);
        }
        if flags & MORE != 0 {
            for _ in 0..self.number()? {
                self.bytes()?;
                self.bytes()?;
            }
        }
        Some(found)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FileAttributes {
    pub(super) size: Option<u64>,
    /// User id and group id of the file, in one number.
    ids: Option<u64>,
    mode: Option<u32>,
    modified_s: Option<u32>,
}

impl FileAttributes {
    /// Returns the type of the file in words; `None` for a regular file.
    pub(super) fn kind(&self) -> Option<&'static str> {
        match self.mode.map(|mode| mode & 0o170_000) {
            Some(0o100_000) => None,
            Some(0o040_000) => Some("a directory"),
            Some(0o120_000) => Some("a link"),
            Some(0o010_000) => Some("a pipe"),
            Some(_) => Some("a device or socket"),
            None => Some("of an unknown type"),
        }
    }

    /// Returns the tag of the file's version. Tags differ, unless versions have the same length and second of writing.
    pub(super) fn tag(&self) -> String {
        let (size, modified_s) = (self.size.unwrap_or(0), self.modified_s.unwrap_or(0));
        format!("{size}-{modified_s}")
    }

    pub(super) fn modified(&self) -> Option<SystemTime> {
        let modified_s = Duration::from_secs(self.modified_s?.into());
        UNIX_EPOCH.checked_add(modified_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sftp_packet_truncated_anywhere_is_rejected_without_panic() {
        let whole = Packet::new(ATTRS)
            .number(SIZE | IDS | PERMISSIONS | TIMES | MORE)
            .long(5)
            .long(0)
            .number(0o100_644)
            .number(1)
            .number(2)
            .number(1)
            .bytes(b"a")
            .bytes(b"b")
            .sent(None);
        let parse = |bytes: &[u8]| {
            let left = Bytes::copy_from_slice(bytes);
            ReplyBody { kind: ATTRS, left }.attributes()
        };
        let found = parse(&whole[5..]).unwrap();
        assert_eq!((found.size, found.kind()), (Some(5), None));
        assert_eq!(found.tag(), "5-2");
        for end in 5..whole.len() {
            assert_eq!(parse(&whole[5..end]), None, "{end}");
        }
        let left = Bytes::from_static(&[255; 6]);
        assert_eq!(ReplyBody { kind: DATA, left }.bytes(), None);
    }
}
