//! HDF5 heaps: local (names of old groups), global (text of any length) and fractal (many links or attributes).

use super::file::Hdf5File;
use super::tree;
use crate::bytes::Cursor;
use crate::{Error, Result};

/// Maximum number of rows of a doubling table in a fractal heap.
const ROWS_MAX: u64 = 64;

/// Local heap: names of an old group, one after the other.
pub(super) struct LocalHeap {
    data: u64,
    size: u64,
}

impl LocalHeap {
    pub(super) fn open(file: &mut Hdf5File<'_>, address: u64) -> Result<Self> {
        let mut head = file.some(address, 64, "HDF5 local heap")?;
        head.expect(b"HEAP")?;
        head.skip(4)?;
        let size = file.length(&mut head)?;
        file.length(&mut head)?;
        let data = file
            .address(&mut head)?
            .ok_or_else(|| head.corrupt("it has no data"))?;
        Ok(Self { data, size })
    }

    pub(super) fn name(&self, file: &mut Hdf5File<'_>, offset: u64) -> Result<String> {
        let left = self.size.saturating_sub(offset).min(1024);
        file.some(
            self.data.saturating_add(offset),
            left,
            "name in an HDF5 local heap",
        )?
        .text_to_zero()
    }
}

/// Returns an object of a global heap, text of any length or a list, if the object has at most `len_max` bytes.
pub(super) fn global(
    file: &mut Hdf5File<'_>,
    address: u64,
    index: u16,
    len_max: u64,
) -> Result<Vec<u8>> {
    let what = "HDF5 global heap";
    let mut head = file.some(address, 32, what)?;
    head.expect(b"GCOL")?;
    head.skip(4)?;
    let end = address.saturating_add(file.length(&mut head)?);
    let mut at = address + head.position() as u64;
    while at < end {
        let mut object = file.some(at, 32, what)?;
        let number = object.u16()?;
        object.skip(6)?;
        let len = file.length(&mut object)?;
        let data = at + object.position() as u64;
        if number == index {
            return file.cursor(data, len.min(len_max), what)?.take_all();
        }
        if number == 0 {
            break;
        }
        at = data.saturating_add(len).saturating_add((8 - len % 8) % 8);
    }
    Err(Error::Corrupt {
        what,
        offset: file.base + address,
        why: format!("it has no object {index}"),
    })
}

/// Fractal heap: a heap whose blocks double in size.
pub(super) struct FractalHeap {
    id_len: usize,
    filtered: bool,
    huge: Option<u64>,
    width: u64,
    start: u64,
    direct_max: u64,
    offset_len: usize,
    len_len: usize,
    root: Option<u64>,
    root_rows: u64,
    address: u64,
}

impl FractalHeap {
    pub(super) fn open(file: &mut Hdf5File<'_>, address: u64) -> Result<Self> {
        let mut head = file.some(address, 256, "HDF5 fractal heap")?;
        head.expect(b"FRHP")?;
        head.skip(1)?;
        let id_len = usize::from(head.u16()?);
        let filtered = head.u16()? != 0;
        head.skip(1)?;
        let object_max = u64::from(head.u32()?);
        file.length(&mut head)?;
        let huge = file.address(&mut head)?;
        head.skip(9 * file.lengths + file.offsets)?;
        let width = u64::from(head.u16()?);
        let start = file.length(&mut head)?;
        let direct_max = file.length(&mut head)?;
        let bits = usize::from(head.u16()?);
        head.skip(2)?;
        let root = file.address(&mut head)?;
        let root_rows = u64::from(head.u16()?);
        let powers =
            start.is_power_of_two() && direct_max.is_power_of_two() && width.is_power_of_two();
        if !powers || start > direct_max || bits > 64 || root_rows > ROWS_MAX {
            return Err(head.corrupt("impossible sizes of blocks"));
        }
        let log2 = direct_max.ilog2() as usize;
        let len_len = (log2.div_ceil(8)).min(bytes_for(object_max));
        let offset_len = bits.div_ceil(8);
        Ok(Self {
            id_len,
            filtered,
            huge,
            width,
            start,
            direct_max,
            offset_len,
            len_len,
            root,
            root_rows,
            address,
        })
    }

    pub(super) fn id_len(&self) -> usize {
        self.id_len
    }

    /// Returns the heap object with this id; `None` if the object is larger than `len_max`.
    pub(super) fn object(
        &self,
        file: &mut Hdf5File<'_>,
        id: &[u8],
        len_max: u64,
    ) -> Result<Option<Cursor>> {
        let what = "object of an HDF5 fractal heap";
        let at = file.base + self.address;
        let mut id = Cursor::over(id.to_vec(), at, what);
        let first = id.u8()?;
        if self.filtered {
            return Err(id.corrupt("it is compressed"));
        }
        match first >> 4 & 3 {
            0 => {
                let offset = id.uint(self.offset_len)?;
                let len = id.uint(self.len_len)?;
                let address = self
                    .managed(file, offset)?
                    .ok_or_else(|| id.corrupt("its block does not exist"))?;
                if len > len_max {
                    return Ok(None);
                }
                file.cursor(address, len, what).map(Some)
            }
            1 => {
                let huge = self
                    .huge
                    .ok_or_else(|| id.corrupt("there are no huge objects"))?;
                let number = id.uint(file.lengths.min(id.left()))?;
                let (offsets, lengths) = (file.offsets, file.lengths);
                let mut found = None;
                tree::each2(file, huge, |record, _| {
                    let address = record.uint(offsets)?;
                    let len = record.uint(lengths)?;
                    if record.uint(lengths)? == number {
                        found = Some((address, len));
                    }
                    Ok(())
                })?;
                match found {
                    None => Err(id.corrupt(format!("there is no huge object {number}"))),
                    Some((_, len)) if len > len_max => Ok(None),
                    Some((address, len)) => file.cursor(address, len, what).map(Some),
                }
            }
            2 => {
                let extended = self.id_len > 18;
                let len = usize::from(first & 15);
                let len = if extended {
                    len << 8 | usize::from(id.u8()?)
                } else {
                    len
                };
                id.part(len + 1, what).map(Some)
            }
            _ => Err(id.corrupt("an id of an unknown kind")),
        }
    }

    /// Returns the address of the byte of the heap at offset `wanted`.
    fn managed(&self, file: &mut Hdf5File<'_>, wanted: u64) -> Result<Option<u64>> {
        let Some(mut address) = self.root else {
            return Ok(None);
        };
        if self.root_rows == 0 {
            return Ok(Some(address.saturating_add(wanted)));
        }
        let (mut rows, mut begin) = (self.root_rows, 0_u64);
        let direct_rows = u64::from(self.direct_max.ilog2() - self.start.ilog2()) + 2;
        for _ in 0..ROWS_MAX {
            let Some((entry, row, block, at)) = self.entry(rows, begin, wanted) else {
                return Ok(None);
            };
            let len = (5 + file.offsets + self.offset_len) as u64;
            let place = address
                .saturating_add(len)
                .saturating_add(entry * file.offsets as u64);
            file.cursor(address, 4, "HDF5 fractal heap")?
                .expect(b"FHIB")?;
            let mut child = file.cursor(place, file.offsets as u64, "HDF5 fractal heap")?;
            let Some(child) = file.address(&mut child)? else {
                return Ok(None);
            };
            if row < direct_rows {
                return Ok(Some(child.saturating_add(wanted - at)));
            }
            (address, begin) = (child, at);
            rows = u64::from(block.ilog2())
                .saturating_sub(u64::from(self.start.ilog2() + self.width.ilog2()))
                + 1;
        }
        Ok(None)
    }

    /// Returns the entry of an indirect block that contains a byte: the entry's number, row, size, and first byte.
    fn entry(&self, rows: u64, begin: u64, wanted: u64) -> Option<(u64, u64, u64, u64)> {
        let mut at = begin;
        for row in 0..rows {
            let block = self
                .start
                .checked_shl(u32::try_from(row.saturating_sub(1)).ok()?)?;
            let all = block.checked_mul(self.width)?;
            if wanted.checked_sub(at)? < all && block > 0 {
                let column = (wanted - at) / block;
                return Some((row * self.width + column, row, block, at + column * block));
            }
            at = at.checked_add(all)?;
        }
        None
    }
}

/// Returns the number of bytes that represent any number up to `limit`.
pub(super) fn bytes_for(limit: u64) -> usize {
    limit.checked_ilog2().unwrap_or(0) as usize / 8 + 1
}
