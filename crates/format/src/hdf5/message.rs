//! Messages of HDF5 object headers: spaces, types, layouts, filters.

use serde::{Deserialize, Serialize};

use super::file::Hdf5File;
use crate::bytes::Cursor;
use crate::{CompoundMember, DataKind, DataType, Endian, Error, Filter, RANK_MAX, Result};

/// Maximum depth of nested data types.
const DEPTH_MAX: usize = 16;
/// Maximum number of members in one compound type.
const MEMBERS_MAX: usize = 1024;
/// Maximum number of filters in one filter pipeline: HDF5's own limit.
const FILTERS_MAX: usize = 32;
/// Maximum number of parameters of one filter.
const PARAMETERS_MAX: usize = 1024;

/// Current and maximum sizes of an array in each dimension (`u64::MAX` for no limit).
#[derive(Debug, Clone, Default)]
pub(super) struct Dataspace {
    pub(super) sizes: Vec<u64>,
    pub(super) most: Vec<u64>,
    /// Whether the array has no element, in contrast to an array without dimensions, which has one.
    pub(super) null: bool,
}

impl Dataspace {
    pub(super) fn elements(&self) -> u64 {
        if self.null {
            0
        } else {
            self.sizes
                .iter()
                .fold(1, |all: u64, size| all.saturating_mul(*size))
        }
    }
}

pub(super) fn space(file: &Hdf5File<'_>, body: &mut Cursor) -> Result<Dataspace> {
    let version = body.u8()?;
    let rank = usize::from(body.u8()?);
    let flags = body.u8()?;
    let kind = body.u8()?;
    match version {
        1 => body.skip(4)?,
        2 => {}
        _ => return Err(body.corrupt(format!("a dataspace of version {version}"))),
    }
    if rank > RANK_MAX {
        return Err(body.corrupt(format!("{rank} dimensions")));
    }
    let sizes = (0..rank)
        .map(|_| file.length(body))
        .collect::<Result<Vec<_>>>()?;
    let unlimited = u64::MAX >> (64 - 8 * file.lengths);
    let mut most = sizes.clone();
    if flags & 1 != 0 {
        for size in &mut most {
            *size = file.length(body)?;
            if *size == unlimited {
                *size = u64::MAX;
            }
        }
    }
    Ok(Dataspace {
        sizes,
        most,
        null: version == 2 && kind == 2,
    })
}

/// Parses a data type, including text of any length.
pub(super) fn data_type(body: &mut Cursor, depth: usize) -> Result<DataType> {
    let first = body.u8()?;
    let (class, version) = (first & 15, first >> 4);
    let bits = u32::try_from(body.uint(3)?).unwrap_or_default();
    let size = body.u32()?;
    if depth > DEPTH_MAX {
        return Err(body.corrupt("types within types without an end"));
    }
    let mut order = if bits & 1 == 0 {
        Endian::Little
    } else {
        Endian::Big
    };
    let other = |name: &str| DataKind::Other(name.into());
    let kind = match class {
        0 => integer(body, bits, size)?,
        1 => float(body, bits, size)?,
        2 => {
            body.skip(2)?;
            other("time")
        }
        3 => DataKind::Text,
        4 => {
            body.skip(4)?;
            DataKind::Uint
        }
        5 => {
            body.skip((bits & 255) as usize)?;
            other("opaque")
        }
        6 => {
            let (kind, parts) = compound(body, version, bits & 0xffff, size, depth)?;
            order = parts;
            kind
        }
        7 => other("reference"),
        8 => {
            let base = enumeration(body, version, bits & 0xffff, depth)?;
            order = base.order;
            base.kind
        }
        9 => {
            data_type(body, depth + 1)?;
            other(if bits & 15 == 1 { "text" } else { "list" })
        }
        10 => {
            let rank = usize::from(body.u8()?);
            body.skip(if version < 3 { 3 + 8 * rank } else { 4 * rank })?;
            data_type(body, depth + 1)?;
            other("array")
        }
        11 => {
            let part = data_type(body, depth + 1)?;
            order = part.order;
            complex(&part, size)
        }
        _ => return Err(body.corrupt(format!("a type of class {class}"))),
    };
    if size == 0 && class != 3 {
        return Err(body.corrupt("a type without bytes"));
    }
    Ok(DataType { kind, size, order })
}

fn integer(body: &mut Cursor, bits: u32, size: u32) -> Result<DataKind> {
    let place = (body.u16()?, u32::from(body.u16()?));
    Ok(match (place == (0, size.saturating_mul(8)), bits & 8) {
        (false, _) => DataKind::Other("integer of odd size".into()),
        (true, 0) => DataKind::Uint,
        (true, _) => DataKind::Int,
    })
}

/// Parses the type of an enumeration's values, and skips their names.
fn enumeration(body: &mut Cursor, version: u8, names: u32, depth: usize) -> Result<DataType> {
    let base = data_type(body, depth + 1)?;
    for _ in 0..names {
        let from = body.position();
        body.text_to_zero()?;
        if version < 3 {
            body.skip((8 - (body.position() - from) % 8) % 8)?;
        }
    }
    body.skip((names as usize).saturating_mul(base.size as usize))?;
    Ok(base)
}

fn complex(part: &DataType, size: u32) -> DataKind {
    if part.kind == DataKind::Float && part.size.checked_mul(2) == Some(size) {
        DataKind::Complex
    } else {
        DataKind::Other("complex".into())
    }
}

fn float(body: &mut Cursor, bits: u32, size: u32) -> Result<DataKind> {
    let (offset, precision) = (body.u16()?, body.u16()?);
    let places = (body.u8()?, body.u8()?, body.u8()?, body.u8()?);
    let bias = body.u32()?;
    let sign = bits >> 8 & 255;
    let ieee = match size {
        2 => (places, bias, sign) == ((10, 5, 0, 10), 15, 15),
        4 => (places, bias, sign) == ((23, 8, 0, 23), 127, 31),
        8 => (places, bias, sign) == ((52, 11, 0, 52), 1023, 63),
        _ => false,
    };
    let whole = offset == 0 && u32::from(precision) == size.saturating_mul(8) && bits & 0x40 == 0;
    Ok(if ieee && whole {
        DataKind::Float
    } else {
        DataKind::Other("floating-point number of odd size".into())
    })
}

fn compound(
    body: &mut Cursor,
    version: u8,
    count: u32,
    size: u32,
    depth: usize,
) -> Result<(DataKind, Endian)> {
    let count = count as usize;
    if count > MEMBERS_MAX {
        return Err(body.corrupt(format!("{count} members")));
    }
    let offset_bytes = match size {
        _ if version < 3 => 4,
        0..=0xff => 1,
        0x100..=0xffff => 2,
        0x1_0000..=0xff_ffff => 3,
        _ => 4,
    };
    let mut members = Vec::new();
    for _ in 0..count {
        let from = body.position();
        let name = body.text_to_zero()?;
        if version < 3 {
            body.skip((8 - (body.position() - from) % 8) % 8)?;
        }
        let offset = u32::try_from(body.uint(offset_bytes)?).unwrap_or(u32::MAX);
        let rank = if version == 1 { body.u8()? } else { 0 };
        body.skip(if version == 1 { 27 } else { 0 })?;
        let data_type = data_type(body, depth + 1)?;
        if rank > 0 || u64::from(offset) + u64::from(data_type.size) > u64::from(size) {
            return Err(body.corrupt(format!("member {name} does not fit")));
        }
        members.push(CompoundMember {
            name,
            offset,
            data_type,
        });
    }
    Ok(match members.as_slice() {
        // h5py writes complex numbers in this form.
        [real, imaginary]
            if (real.name.as_str(), imaginary.name.as_str()) == ("r", "i")
                && real.data_type.kind == DataKind::Float
                && real.data_type == imaginary.data_type
                && real.data_type.size.checked_mul(2) == Some(size) =>
        {
            (DataKind::Complex, real.data_type.order)
        }
        _ => (DataKind::Compound(members), Endian::Little),
    })
}

/// Location of the bytes of an HDF5 dataset.
#[derive(Debug, Clone)]
pub(super) enum DatasetLayout {
    /// The bytes are in the message itself, at this offset of the file.
    Compact(u64),
    /// The bytes are contiguous at this address; `None` if no byte was written.
    Contiguous(Option<u64>),
    Chunked {
        shape: Vec<u64>,
        index: Hdf5Index,
    },
    Virtual,
}

/// Location of a dataset's chunk index in an HDF5 file; addresses are offsets in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hdf5Index {
    /// Kind and location of the index; without a location if no chunk was written.
    pub(super) kind: IndexKind,
    /// Current and maximum sizes of the dataset itself, which determine the numbers of its chunks.
    pub(super) sizes: Vec<u64>,
    pub(super) most: Vec<u64>,
    /// Size of a chunk before filters are applied, in bytes.
    pub(super) chunk_bytes: u64,
    /// Whether chunks that extend beyond the end of the dataset are stored without filters.
    pub(super) partial_unfiltered: bool,
    /// Offset of address 0 in the file; the next fields are the sizes of an address and of a length in bytes.
    pub(super) base: u64,
    pub(super) offsets: u8,
    pub(super) lengths: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum IndexKind {
    None,
    Tree1(u64),
    Single {
        address: u64,
        size: Option<u64>,
        mask: u32,
    },
    Implicit(u64),
    FixedArray(u64),
    ExtensibleArray(u64),
    Tree2(u64),
}

pub(super) fn layout(file: &Hdf5File<'_>, body: &mut Cursor) -> Result<DatasetLayout> {
    let version = body.u8()?;
    match version {
        1 | 2 => layout_old(file, body),
        3..=5 => layout_new(file, body, version),
        _ => Err(body.corrupt(format!("a layout of version {version}"))),
    }
}

fn layout_old(file: &Hdf5File<'_>, body: &mut Cursor) -> Result<DatasetLayout> {
    let rank = usize::from(body.u8()?);
    let class = body.u8()?;
    body.skip(5)?;
    let address = if class == 0 {
        None
    } else {
        file.address(body)?
    };
    let dimensions = (0..rank)
        .map(|_| body.u32().map(u64::from))
        .collect::<Result<Vec<_>>>()?;
    match class {
        0 => {
            body.skip(4)?;
            Ok(DatasetLayout::Compact(body.offset()))
        }
        1 => Ok(DatasetLayout::Contiguous(address)),
        2 => chunked(
            file,
            body,
            dimensions,
            address.map_or(IndexKind::None, IndexKind::Tree1),
            false,
        ),
        _ => Err(body.corrupt(format!("a layout of class {class}"))),
    }
}

fn layout_new(file: &Hdf5File<'_>, body: &mut Cursor, version: u8) -> Result<DatasetLayout> {
    match body.u8()? {
        0 => {
            body.skip(2)?;
            Ok(DatasetLayout::Compact(body.offset()))
        }
        1 => Ok(DatasetLayout::Contiguous(file.address(body)?)),
        2 if version == 3 => {
            let rank = usize::from(body.u8()?);
            let address = file.address(body)?;
            let dimensions = (0..rank)
                .map(|_| body.u32().map(u64::from))
                .collect::<Result<Vec<_>>>()?;
            chunked(
                file,
                body,
                dimensions,
                address.map_or(IndexKind::None, IndexKind::Tree1),
                false,
            )
        }
        2 => {
            let flags = body.u8()?;
            let rank = usize::from(body.u8()?);
            let len = usize::from(body.u8()?);
            let dimensions = (0..rank)
                .map(|_| body.uint(len))
                .collect::<Result<Vec<_>>>()?;
            let kind = body.u8()?;
            let mut single = None;
            match kind {
                1 if flags & 2 != 0 => single = Some((file.length(body)?, body.u32()?)),
                1 | 2 => {}
                3 => body.skip(1)?,
                4 => body.skip(5)?,
                5 => body.skip(6)?,
                _ => return Err(body.corrupt(format!("an index of chunks of kind {kind}"))),
            }
            let index = match (file.address(body)?, kind) {
                (None, _) => IndexKind::None,
                (Some(address), 1) => IndexKind::Single {
                    address,
                    size: single.map(|(size, _)| size),
                    mask: single.map_or(0, |(_, mask)| mask),
                },
                (Some(address), 2) => IndexKind::Implicit(address),
                (Some(address), 3) => IndexKind::FixedArray(address),
                (Some(address), 4) => IndexKind::ExtensibleArray(address),
                (Some(address), _) => IndexKind::Tree2(address),
            };
            chunked(file, body, dimensions, index, flags & 1 != 0)
        }
        3 => Ok(DatasetLayout::Virtual),
        class => Err(body.corrupt(format!("a layout of class {class}"))),
    }
}

fn chunked(
    file: &Hdf5File<'_>,
    body: &Cursor,
    mut dimensions: Vec<u64>,
    kind: IndexKind,
    partial_unfiltered: bool,
) -> Result<DatasetLayout> {
    let all = dimensions
        .iter()
        .try_fold(1_u64, |all, size| all.checked_mul(*size));
    let chunk_bytes = match all {
        Some(bytes) if bytes > 0 => bytes,
        _ => return Err(body.corrupt(format!("chunks of the shape {dimensions:?}"))),
    };
    // The last number is the size of an element in bytes.
    dimensions.pop();
    let index = Hdf5Index {
        kind,
        sizes: Vec::new(),
        most: Vec::new(),
        chunk_bytes,
        partial_unfiltered,
        base: file.base,
        offsets: u8::try_from(file.offsets).unwrap_or(8),
        lengths: u8::try_from(file.lengths).unwrap_or(8),
    };
    Ok(DatasetLayout::Chunked {
        shape: dimensions,
        index,
    })
}

/// Parses the filters of chunks, in the order in which a writer applies the filters.
pub(super) fn pipeline(body: &mut Cursor, element: u32) -> Result<Vec<Filter>> {
    let version = body.u8()?;
    let count = usize::from(body.u8()?);
    match version {
        1 => body.skip(6)?,
        2 => {}
        _ => return Err(body.corrupt(format!("filters of version {version}"))),
    }
    if count > FILTERS_MAX {
        return Err(Error::Limit {
            what: "filters of a dataset",
            limit: FILTERS_MAX as u64,
        });
    }
    let mut filters = Vec::new();
    for _ in 0..count {
        let id = body.u16()?;
        let name_len = if version == 1 || id >= 256 {
            usize::from(body.u16()?)
        } else {
            0
        };
        let optional = body.u16()? & 1 != 0;
        let parameters = usize::from(body.u16()?);
        if parameters > PARAMETERS_MAX {
            return Err(body.corrupt(format!("{parameters} parameters of a filter")));
        }
        let name = body.text(if version == 1 {
            name_len.next_multiple_of(8)
        } else {
            name_len
        })?;
        let values = (0..parameters)
            .map(|_| body.u32())
            .collect::<Result<Vec<_>>>()?;
        body.skip(if version == 1 && parameters % 2 == 1 {
            4
        } else {
            0
        })?;
        filters.push(filter(id, name, optional, values, element));
    }
    Ok(filters)
}

fn filter(id: u16, name: String, optional: bool, parameters: Vec<u32>, element: u32) -> Filter {
    let parameter = |at: usize| parameters.get(at).copied();
    match id {
        1 => Filter::Deflate,
        2 => Filter::Shuffle {
            element: parameter(0).unwrap_or(element),
        },
        3 => Filter::Fletcher32,
        4 => {
            let at = |place| parameter(place).unwrap_or_default();
            Filter::Szip {
                mask: at(0),
                block: at(1),
                bits: at(2),
                line: at(3),
            }
        }
        5 => Filter::Nbit { parameters },
        6 => Filter::ScaleOffset { parameters },
        307 => Filter::Bzip2,
        32000 => Filter::Lzf,
        32001 => Filter::Blosc,
        32004 => Filter::Lz4 { blocks: true },
        32008 => Filter::Bitshuffle { parameters },
        32015 => Filter::Zstd,
        32026 => Filter::Blosc2,
        _ => Filter::Other {
            name: if name.is_empty() {
                id.to_string()
            } else {
                format!("{id} {name}")
            },
            optional,
            parameters,
        },
    }
}

/// Parses a fill value from a message of the new kind (0x05); `None` if no fill value is defined.
pub(super) fn fill(body: &mut Cursor) -> Result<Option<Vec<u8>>> {
    let version = body.u8()?;
    let defined = match version {
        1 | 2 => {
            body.skip(2)?;
            body.u8()? != 0 || version == 1
        }
        3 => body.u8()? & 0x20 != 0,
        _ => return Err(body.corrupt(format!("a fill value of version {version}"))),
    };
    if !defined || body.left() < 4 {
        Ok(None)
    } else {
        fill_old(body)
    }
}

/// Parses a fill value from a message of the old kind (0x04).
pub(super) fn fill_old(body: &mut Cursor) -> Result<Option<Vec<u8>>> {
    let len = body.u32()? as usize;
    let value = body
        .take(if len == 0xffff_ffff { 0 } else { len })?
        .to_vec();
    Ok((!value.is_empty()).then_some(value))
}
