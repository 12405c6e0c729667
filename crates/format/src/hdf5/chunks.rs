//! Locations of the chunks of an HDF5 dataset, from six kinds of index.

use super::file::Hdf5File;
use super::message::{Hdf5Index, IndexKind};
use super::tree;
use crate::bytes::{Cursor, LimitedBytes};
use crate::select::grid;
use crate::{Bytes, Chunk, Chunked, Error, Result, Variable};

/// Maximum number of chunks of one variable.
pub const CHUNKS_MAX: u64 = 1 << 20;
/// Number of block sizes of an extensible array.
const BLOCKS_MAX: usize = 64;

/// Table of chunks that is being filled.
struct ChunkTable<'a> {
    index: &'a Hdf5Index,
    shape: &'a [u64],
    /// Number of chunks along each dimension of the variable, which may be longer than the dataset (a netCDF dimension that has grown).
    counts: Vec<u64>,
    chunks: Vec<Chunk>,
}

/// Returns the chunks of a variable, by their numbers, without the chunks that were never written.
///
/// # Errors
/// If the chunk index is corrupt, or has more than [`CHUNKS_MAX`] chunks.
pub fn chunks(
    variable: &Variable,
    chunked: &Chunked,
    index: &Hdf5Index,
    bytes: &dyn Bytes,
) -> Result<Vec<Chunk>> {
    let counts = grid(variable, chunked)?;
    let rank = counts.len();
    if index.sizes.len() != rank || index.most.len() != rank {
        let what = "an index of chunks with other dimensions".into();
        return Err(Error::Unsupported {
            variable: variable.path.clone(),
            what,
        });
    }
    let source = LimitedBytes::new(bytes);
    let mut file = Hdf5File {
        source,
        base: index.base,
        offsets: index.offsets.into(),
        lengths: index.lengths.into(),
    };
    let mut table = ChunkTable {
        index,
        shape: &chunked.shape,
        counts,
        chunks: Vec::new(),
    };
    match index.kind {
        IndexKind::None => {}
        IndexKind::Tree1(address) => table.tree1(&mut file, address)?,
        IndexKind::Single {
            address,
            size,
            mask,
        } => {
            let size = size.unwrap_or(index.chunk_bytes);
            table.add(
                &vec![0; rank],
                file.base.saturating_add(address),
                size,
                mask,
            )?;
        }
        IndexKind::Implicit(address) => table.implicit(file.base.saturating_add(address))?,
        IndexKind::FixedArray(address) => table.fixed(&mut file, address)?,
        IndexKind::ExtensibleArray(address) => table.extensible(&mut file, address)?,
        IndexKind::Tree2(address) => table.tree2(&mut file, address)?,
    }
    table.chunks.sort_unstable();
    if let Some(twice) = table
        .chunks
        .windows(2)
        .find(|two| two[0].number == two[1].number)
    {
        let why = format!("{} has chunk {} twice", variable.path, twice[0].number);
        return Err(Error::Corrupt {
            what: "index of chunks",
            offset: twice[1].offset,
            why,
        });
    }
    Ok(table.chunks)
}

impl ChunkTable<'_> {
    /// Records a chunk by its place in the grid; a chunk outside of the variable is ignored.
    fn add(&mut self, place: &[u64], offset: u64, size: u64, mut mask: u32) -> Result<()> {
        if place
            .iter()
            .zip(&self.counts)
            .any(|(at, count)| at >= count)
        {
            return Ok(());
        }
        if self.chunks.len() as u64 >= CHUNKS_MAX {
            return Err(Error::Limit {
                what: "chunks of a variable",
                limit: CHUNKS_MAX,
            });
        }
        let over =
            |((at, shape), size): ((&u64, &u64), &u64)| (at + 1).saturating_mul(*shape) > *size;
        if self.index.partial_unfiltered
            && place
                .iter()
                .zip(self.shape)
                .zip(&self.index.sizes)
                .any(over)
        {
            mask = u32::MAX;
        }
        let number = place
            .iter()
            .zip(&self.counts)
            .fold(0, |number, (at, count)| number * count + at);
        self.chunks.push(Chunk {
            number,
            offset,
            size,
            mask,
        });
        Ok(())
    }

    fn tree1(&mut self, file: &mut Hdf5File<'_>, address: u64) -> Result<()> {
        let base = file.base;
        let key_len = 8 + 8 * (self.counts.len() + 1);
        tree::each1(file, address, key_len, &mut |_, mut key, child| {
            let size = u64::from(key.u32()?);
            let mask = key.u32()?;
            let shape = self.shape;
            let place = shape
                .iter()
                .map(|shape| Ok(key.uint(8)? / shape))
                .collect::<Result<Vec<_>>>()?;
            self.add(&place, base.saturating_add(child), size, mask)
        })
    }

    fn tree2(&mut self, file: &mut Hdf5File<'_>, address: u64) -> Result<()> {
        let (base, offsets) = (file.base, file.offsets);
        let rank = self.counts.len();
        tree::each2(file, address, |record, len| {
            let at = base.saturating_add(record.uint(offsets)?);
            let (size, mask) = match len.checked_sub(offsets + 8 * rank) {
                Some(0) => (self.index.chunk_bytes, 0),
                Some(len @ 5..=12) => (record.uint(len - 4)?, record.u32()?),
                _ => return Err(record.corrupt("a chunk's record of another length")),
            };
            let place = (0..rank)
                .map(|_| record.uint(8))
                .collect::<Result<Vec<_>>>()?;
            self.add(&place, at, size, mask)
        })
    }

    fn implicit(&mut self, address: u64) -> Result<()> {
        let all = self.numbers().unwrap_or(u64::MAX);
        if all > CHUNKS_MAX {
            return Err(Error::Limit {
                what: "chunks of a variable",
                limit: CHUNKS_MAX,
            });
        }
        for number in 0..all {
            if let Some(place) = self.place(number, None) {
                let at = address.saturating_add(number.saturating_mul(self.index.chunk_bytes));
                self.add(&place, at, self.index.chunk_bytes, 0)?;
            }
        }
        Ok(())
    }

    /// Returns the number of entries of a chunk array, if the array cannot grow.
    fn numbers(&self) -> Option<u64> {
        let mut counts = self
            .index
            .most
            .iter()
            .zip(self.shape)
            .map(|(most, shape)| most.div_ceil(*shape));
        counts.try_fold(1_u64, |all, count| all.checked_mul(count))
    }

    /// Returns the place of a chunk in the grid from its number in a chunk array; the unlimited dimension counts as the first.
    fn place(&self, number: u64, unlimited: Option<usize>) -> Option<Vec<u64>> {
        let rank = self.counts.len();
        let first = unlimited.into_iter();
        let order: Vec<usize> = first
            .chain((0..rank).filter(|at| Some(*at) != unlimited))
            .collect();
        let mut place = vec![0; rank];
        let mut left = number;
        for (position, dimension) in order.iter().enumerate().rev() {
            let count = self.index.most[*dimension].div_ceil(self.shape[*dimension]);
            if position == 0 {
                place[*dimension] = left;
            } else {
                place[*dimension] = left.checked_rem(count)?;
                left /= count;
            }
        }
        Some(place)
    }

    /// Reads consecutive elements of a chunk array; the first element has the number `first`.
    fn elements(
        &mut self,
        cursor: &mut Cursor,
        first: u64,
        count: u64,
        array: &ChunkArray,
    ) -> Result<()> {
        let undefined = u64::MAX >> (64 - 8 * array.offsets);
        for number in first..first.saturating_add(count) {
            let address = cursor.uint(array.offsets)?;
            let (size, mask) = match array.element - array.offsets {
                0 => (self.index.chunk_bytes, 0),
                len => (cursor.uint(len - 4)?, cursor.u32()?),
            };
            if address != undefined
                && let Some(place) = self.place(number, array.unlimited)
            {
                self.add(&place, self.index.base.saturating_add(address), size, mask)?;
            }
        }
        Ok(())
    }

    fn fixed(&mut self, file: &mut Hdf5File<'_>, address: u64) -> Result<()> {
        let mut head = file.some(address, 64, "HDF5 fixed array")?;
        head.expect(b"FAHD")?;
        head.skip(2)?;
        let array = ChunkArray::new(&mut head, file, None)?;
        let page_bits = head.u8()?;
        let count = file.length(&mut head)?;
        let Some(block) = file.address(&mut head)? else {
            return Ok(());
        };
        if count > CHUNKS_MAX {
            return Err(Error::Limit {
                what: "chunks of a variable",
                limit: CHUNKS_MAX,
            });
        }
        let page = 1_u64
            .checked_shl(page_bits.into())
            .ok_or_else(|| head.corrupt("impossible pages"))?;
        let start = block.saturating_add(6 + file.offsets as u64);
        file.cursor(block, 4, "HDF5 fixed array")?.expect(b"FADB")?;
        self.block(file, start, 0, count, page, &array, None)
    }

    /// Reads a block of elements at `start`; the block has pages with checksums if it has more elements than a page. Bits mark the pages
    /// that were written: the bits are before the pages, or elsewhere (`bits`, from one of them on).
    #[expect(
        clippy::too_many_arguments,
        reason = "a block of either array, written in full"
    )]
    fn block(
        &mut self,
        file: &mut Hdf5File<'_>,
        start: u64,
        first: u64,
        count: u64,
        page: u64,
        array: &ChunkArray,
        bits: Option<(&[u8], u64)>,
    ) -> Result<()> {
        let what = "HDF5 array of chunks";
        if count <= page {
            let mut elements =
                file.cursor(start, count.saturating_mul(array.element as u64), what)?;
            return self.elements(&mut elements, first, count, array);
        }
        let pages = count.div_ceil(page);
        let (written, first_bit, mut at) = match bits {
            Some((bits, first)) => (bits.to_vec(), first, start.saturating_add(4)),
            None => {
                let len = pages.div_ceil(8);
                (
                    file.cursor(start, len, what)?.take_all()?,
                    0,
                    start.saturating_add(len + 4),
                )
            }
        };
        for number in 0..pages {
            let some = page.min(count - number * page);
            let bit = first_bit + number;
            let byte = usize::try_from(bit / 8)
                .ok()
                .and_then(|at| written.get(at))
                .copied()
                .unwrap_or(0);
            if byte & (0x80 >> (bit % 8)) != 0 {
                let mut elements =
                    file.cursor(at, some.saturating_mul(array.element as u64), what)?;
                self.elements(
                    &mut elements,
                    first.saturating_add(number * page),
                    some,
                    array,
                )?;
            }
            at = at.saturating_add(page.saturating_mul(array.element as u64) + 4);
        }
        Ok(())
    }

    fn extensible(&mut self, file: &mut Hdf5File<'_>, address: u64) -> Result<()> {
        let what = "HDF5 extensible array";
        let mut head = file.some(address, 128, what)?;
        head.expect(b"EAHD")?;
        head.skip(2)?;
        let unlimited = self.index.most.iter().position(|most| *most == u64::MAX);
        let array = ChunkArray::new(&mut head, file, unlimited)?;
        let shape = Extensible {
            bits: head.u8()?,
            in_index: head.u8()?,
            block_min: head.u8()?.into(),
            pointers_min: head.u8()?.into(),
            page: 1_u64.checked_shl(head.u8()?.into()).unwrap_or(0),
        };
        shape.check(&head)?;
        head.skip(6 * file.lengths)?;
        let Some(index) = file.address(&mut head)? else {
            return Ok(());
        };
        let (direct, all) = (shape.direct(), shape.blocks());
        let start = 6 + file.offsets;
        let in_direct: usize = (0..direct.min(all)).map(|block| 1 << (block / 2)).sum();
        let len = start
            + usize::from(shape.in_index) * array.element
            + (in_direct + all.saturating_sub(direct)) * file.offsets;
        let mut body = file.cursor(index, len as u64, what)?;
        body.expect(b"EAIB")?;
        body.skip(start - 4)?;
        self.elements(&mut body, 0, shape.in_index.into(), &array)?;
        let mut number = u64::from(shape.in_index);
        for block in 0..all {
            let (blocks, count) = shape.sizes(block);
            if block < direct {
                for _ in 0..blocks {
                    if let Some(at) = file.address(&mut body)? {
                        self.data_block(file, at, number, count, &shape, &array, None)?;
                    }
                    number = number.saturating_add(count);
                }
            } else {
                if let Some(at) = file.address(&mut body)? {
                    self.super_block(file, at, number, block, &shape, &array)?;
                }
                number = number.saturating_add(blocks.saturating_mul(count));
            }
        }
        Ok(())
    }

    fn super_block(
        &mut self,
        file: &mut Hdf5File<'_>,
        address: u64,
        mut number: u64,
        block: usize,
        shape: &Extensible,
        array: &ChunkArray,
    ) -> Result<()> {
        let (blocks, count) = shape.sizes(block);
        // The bits of each block follow those of the previous block, but the bytes for them are counted block by block.
        let pages = if count > shape.page {
            count / shape.page
        } else {
            0
        };
        let bits_len = blocks.saturating_mul(pages.div_ceil(8));
        let start = (6 + file.offsets + shape.offset_len()) as u64;
        let len = start
            .saturating_add(bits_len)
            .saturating_add(blocks.saturating_mul(file.offsets as u64));
        let mut body = file.cursor(address, len, "HDF5 extensible array")?;
        body.expect(b"EASB")?;
        body.skip(usize::try_from(start).unwrap_or(0) - 4)?;
        let bits = body.take(usize::try_from(bits_len).unwrap_or(0))?.to_vec();
        for block in 0..blocks {
            if let Some(at) = file.address(&mut body)? {
                self.data_block(
                    file,
                    at,
                    number,
                    count,
                    shape,
                    array,
                    Some((&bits, block * pages)),
                )?;
            }
            number = number.saturating_add(count);
        }
        Ok(())
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "a block of an array, written in full"
    )]
    fn data_block(
        &mut self,
        file: &mut Hdf5File<'_>,
        address: u64,
        number: u64,
        count: u64,
        shape: &Extensible,
        array: &ChunkArray,
        bits: Option<(&[u8], u64)>,
    ) -> Result<()> {
        file.cursor(address, 4, "HDF5 extensible array")?
            .expect(b"EADB")?;
        let start = address.saturating_add((6 + file.offsets + shape.offset_len()) as u64);
        self.block(
            file,
            start,
            number,
            count,
            shape.page,
            array,
            bits.or(Some((&[], 0))),
        )
    }
}

/// Elements of an array of chunks.
struct ChunkArray {
    element: usize,
    offsets: usize,
    unlimited: Option<usize>,
}

impl ChunkArray {
    fn new(head: &mut Cursor, file: &Hdf5File<'_>, unlimited: Option<usize>) -> Result<Self> {
        // The length of an element determines its kind; it is stored after the kind.
        let element = usize::from(head.u8()?);
        match element.checked_sub(file.offsets) {
            Some(0 | 5..=12) => Ok(Self {
                element,
                offsets: file.offsets,
                unlimited,
            }),
            _ => Err(head.corrupt(format!("elements of {element} bytes"))),
        }
    }
}

/// Shape of an extensible array, whose blocks grow with the number of elements.
struct Extensible {
    bits: u8,
    in_index: u8,
    block_min: u64,
    pointers_min: u64,
    page: u64,
}

impl Extensible {
    fn check(&self, head: &Cursor) -> Result<()> {
        let powers = self.block_min.is_power_of_two()
            && self.pointers_min.is_power_of_two()
            && self.page > 0;
        if powers
            && self.bits <= 64
            && u32::from(self.bits) >= self.block_min.ilog2()
            && self.blocks() <= BLOCKS_MAX
        {
            return Ok(());
        }
        Err(head.corrupt("impossible blocks"))
    }

    fn offset_len(&self) -> usize {
        usize::from(self.bits).div_ceil(8)
    }

    /// Returns the number of super blocks.
    fn blocks(&self) -> usize {
        1 + usize::from(self.bits).saturating_sub(self.block_min.ilog2() as usize)
    }

    /// Returns the number of super blocks whose data blocks are in the index.
    fn direct(&self) -> usize {
        2 * self.pointers_min.ilog2() as usize
    }

    /// Returns the number of data blocks of a super block, and the number of elements in each.
    fn sizes(&self, block: usize) -> (u64, u64) {
        let shifted = |number: u64, by: usize| {
            number
                .checked_shl(u32::try_from(by).unwrap_or(64))
                .unwrap_or(u64::MAX)
        };
        (
            shifted(1, block / 2),
            shifted(1, block.div_ceil(2)).saturating_mul(self.block_min),
        )
    }
}
