//! Access to the bytes of an HDF5 file by the file's own addresses, and to object headers.

use crate::bytes::{Cursor, LimitedBytes};
use crate::{Bytes, Error, Result};

const SIGNATURE: &[u8] = b"\x89HDF\r\n\x1a\n";
/// Maximum number of blocks of one object header.
const CONTINUATIONS_MAX: usize = 256;

/// Returns the offset of HDF5's signature in a file, if the file has the signature.
pub(super) fn signature(bytes: &dyn Bytes) -> Option<u64> {
    let starts = std::iter::once(0).chain((9..40).map(|bits| 1 << bits));
    let mut found = [0; 8];
    starts
        .take_while(|start| start + 8 <= bytes.size())
        .find(|start| bytes.read_at(*start, &mut found).is_ok() && found == SIGNATURE)
}

/// HDF5 file, with the sizes of addresses and lengths according to its superblock.
pub(super) struct Hdf5File<'a> {
    pub(super) source: LimitedBytes<'a>,
    /// Offset in the file of HDF5 address 0.
    pub(super) base: u64,
    /// Size of an address in the file, in bytes.
    pub(super) offsets: usize,
    /// Size of a length in the file, in bytes.
    pub(super) lengths: usize,
}

/// One message of an HDF5 object header.
pub(super) struct HeaderMessage {
    pub(super) kind: u16,
    pub(super) body: Cursor,
}

impl<'a> Hdf5File<'a> {
    /// Opens an HDF5 file; also returns the address of its root group.
    pub(super) fn open(bytes: &'a dyn Bytes) -> Result<(Self, u64)> {
        let what = "HDF5 superblock";
        let start = signature(bytes).ok_or_else(|| Error::Corrupt {
            what,
            offset: 0,
            why: "no signature".into(),
        })?;
        let mut source = LimitedBytes::new(bytes);
        let len = (source.size() - start).min(128);
        let mut block = source.cursor(start, len, what)?;
        block.skip(8)?;
        let version = block.u8()?;
        let (offsets, lengths) = match version {
            0 | 1 => {
                block.skip(4)?;
                let sizes = (block.u8()?, block.u8()?);
                block.skip(if version == 0 { 9 } else { 13 })?;
                sizes
            }
            2 | 3 => {
                let sizes = (block.u8()?, block.u8()?);
                block.skip(1)?;
                sizes
            }
            _ => return Err(block.corrupt(format!("version {version}"))),
        };
        if !matches!(offsets, 2 | 4 | 8) || !matches!(lengths, 2 | 4 | 8) {
            return Err(block.corrupt(format!(
                "addresses of {offsets} and lengths of {lengths} bytes"
            )));
        }
        let mut file = Self {
            source,
            base: 0,
            offsets: offsets.into(),
            lengths: lengths.into(),
        };
        let base = block.uint(file.offsets)?;
        block.skip(file.offsets)?;
        let end = block.uint(file.offsets)?;
        block.skip(if version < 2 { 2 * file.offsets } else { 0 })?;
        let root = file
            .address(&mut block)?
            .ok_or_else(|| block.corrupt("it has no root group"))?;
        // Bytes before the signature may be missing, or may not be counted.
        file.base = if base == start { base } else { start };
        let (end, size) = (
            end.saturating_add(file.base - base.min(file.base)),
            file.source.size(),
        );
        if end > size {
            return Err(Error::Truncated {
                what: "HDF5 file",
                offset: start,
                end,
                size,
            });
        }
        Ok((file, root))
    }

    pub(super) fn cursor(&mut self, address: u64, len: u64, what: &'static str) -> Result<Cursor> {
        self.source
            .cursor(address.saturating_add(self.base), len, what)
    }

    /// Returns the bytes from `address` on that exist in the file, but no more than `len`.
    pub(super) fn some(&mut self, address: u64, len: u64, what: &'static str) -> Result<Cursor> {
        let there = self
            .source
            .size()
            .saturating_sub(address.saturating_add(self.base));
        self.cursor(address, len.min(there), what)
    }

    /// Reads an address; returns `None` if the address is undefined.
    pub(super) fn address(&self, cursor: &mut Cursor) -> Result<Option<u64>> {
        let address = cursor.uint(self.offsets)?;
        Ok((address != u64::MAX >> (64 - 8 * self.offsets)).then_some(address))
    }

    pub(super) fn length(&self, cursor: &mut Cursor) -> Result<u64> {
        cursor.uint(self.lengths)
    }

    /// Returns all messages of the object at `address`, with shared messages resolved.
    pub(super) fn object(&mut self, address: u64) -> Result<Vec<HeaderMessage>> {
        let mut messages = Vec::new();
        self.messages(address, &mut messages, true)?;
        Ok(messages)
    }

    fn messages(
        &mut self,
        address: u64,
        into: &mut Vec<HeaderMessage>,
        follow: bool,
    ) -> Result<()> {
        let what = "HDF5 object header";
        let mut start = self.some(address, 64, what)?;
        let mut pieces = Vec::new();
        let mut version = 2;
        let mut ordered = false;
        if start.expect(b"OHDR").is_ok() {
            if start.u8()? != 2 {
                return Err(start.corrupt("its version is not 2"));
            }
            let flags = start.u8()?;
            ordered = flags & 4 != 0;
            start.skip(
                if flags & 0x20 == 0 { 0 } else { 16 } + if flags & 0x10 == 0 { 0 } else { 4 },
            )?;
            let len = start.uint(1 << (flags & 3))?;
            pieces.push((address + start.position() as u64, len));
        } else {
            version = start.u8()?;
            if version != 1 {
                return Err(start.corrupt(format!("version {version}")));
            }
            start.skip(7)?;
            let len = start.u32()?;
            pieces.push((address + 16, u64::from(len)));
        }
        let mut done = 0;
        while let Some((address, len)) = pieces.get(done).copied() {
            done += 1;
            if done > CONTINUATIONS_MAX {
                return Err(Error::Limit {
                    what: "pieces of an HDF5 object header",
                    limit: CONTINUATIONS_MAX as u64,
                });
            }
            let mut piece = self.cursor(address, len, what)?;
            if done > 1 && version == 2 {
                piece.expect(b"OCHK")?;
            }
            self.piece(
                &mut piece,
                version,
                ordered,
                done > 1,
                &mut pieces,
                into,
                follow,
            )?;
        }
        Ok(())
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one call, of what would be its loop's body"
    )]
    fn piece(
        &mut self,
        piece: &mut Cursor,
        version: u8,
        ordered: bool,
        continued: bool,
        pieces: &mut Vec<(u64, u64)>,
        into: &mut Vec<HeaderMessage>,
        follow: bool,
    ) -> Result<()> {
        let head = if version == 1 {
            8
        } else {
            4 + 2 * usize::from(ordered)
        };
        // The length of a continuation includes its checksum; that of the first piece does not.
        let tail = if version == 2 && continued { 4 } else { 0 };
        while piece.left() >= head + tail {
            let kind = if version == 1 {
                piece.u16()?
            } else {
                piece.u8()?.into()
            };
            let len = piece.usize(2)?;
            let flags = piece.u8()?;
            piece.skip(head - if version == 1 { 5 } else { 4 })?;
            let mut body = piece.part(len, "HDF5 message")?;
            match kind {
                0x10 => {
                    let address = self
                        .address(&mut body)?
                        .ok_or_else(|| body.corrupt("no address"))?;
                    pieces.push((address, self.length(&mut body)?));
                }
                0 => {}
                _ if flags & 2 != 0 => {
                    if follow {
                        self.shared(kind, &mut body, into)?;
                    }
                }
                _ => into.push(HeaderMessage { kind, body }),
            }
        }
        Ok(())
    }

    /// Reads a message that is stored in another object's header.
    fn shared(
        &mut self,
        kind: u16,
        body: &mut Cursor,
        into: &mut Vec<HeaderMessage>,
    ) -> Result<()> {
        let address = self.shared_address(body)?;
        let mut there = Vec::new();
        self.messages(address, &mut there, false)?;
        into.extend(there.into_iter().find(|message| message.kind == kind));
        Ok(())
    }

    fn shared_address(&mut self, body: &mut Cursor) -> Result<u64> {
        let version = body.u8()?;
        let kind = body.u8()?;
        match (version, kind) {
            (1, _) => body.skip(6)?,
            (2, _) | (3, 2) => {}
            _ => {
                return Err(
                    body.corrupt("a message in a table of shared messages, which is not read")
                );
            }
        }
        self.address(body)?
            .ok_or_else(|| body.corrupt("no address"))
    }

    /// Returns the message that a shared message within another message refers to: a committed data type.
    pub(super) fn shared_message(&mut self, kind: u16, body: &mut Cursor) -> Result<Cursor> {
        let address = self.shared_address(body)?;
        let mut there = Vec::new();
        self.messages(address, &mut there, false)?;
        let found = there.into_iter().find(|message| message.kind == kind);
        found
            .map(|message| message.body)
            .ok_or_else(|| body.corrupt("it shares a message that does not exist"))
    }
}
