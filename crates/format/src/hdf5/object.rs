//! HDF5 objects: groups with their links, datasets, and the attributes of groups and datasets.

use super::file::{Hdf5File, HeaderMessage};
use super::heap::{self, FractalHeap, LocalHeap};
use super::message::{self, DatasetLayout};
use super::{is_only_dimension, tree};
use crate::bytes::Cursor;
use crate::model::{ATTRIBUTE_BYTES_MAX, values};
use crate::{
    Attribute, Chunked, DataKind, DataType, Dimension, Error, Filter, Index, NAMES_MAX, Result,
    Storage, Value, Variable,
};

/// Attributes that HDF5's dimension scales and the netCDF library reserve.
const RESERVED: [&str; 8] = [
    "CLASS",
    "NAME",
    "DIMENSION_LIST",
    "REFERENCE_LIST",
    "_Netcdf4Dimid",
    "_Netcdf4Coordinates",
    "_NCProperties",
    "_nc3_strict",
];

/// HDF5 object at an address.
pub(super) enum Hdf5Object {
    Group {
        links: Vec<(String, u64)>,
        attributes: Vec<Attribute>,
        netcdf: bool,
    },
    Dataset(Box<Dataset>),
    /// A named data type, or an object of a later version of the format.
    Other,
}

/// HDF5 dataset, and its data for the netCDF library.
pub(super) struct Dataset {
    pub(super) address: u64,
    /// Position of the dataset among all objects, in the order in which they were found.
    pub(super) order: usize,
    pub(super) variable: Variable,
    /// Whether the dataset is a dimension scale.
    pub(super) scale: bool,
    pub(super) only_dimension: bool,
    pub(super) dimension_id: Option<i64>,
    /// Numbers of the dataset's dimensions, if it is a coordinate with several dimensions.
    pub(super) coordinates: Vec<i64>,
    /// Address of each dimension's scale.
    pub(super) dimension_list: Vec<Option<u64>>,
}

pub(super) fn read(file: &mut Hdf5File<'_>, path: &str, address: u64) -> Result<Hdf5Object> {
    let mut messages = file.object(address)?;
    let mut attributes = ObjectAttributes::default();
    attributes.read(file, &mut messages)?;
    let has = |kind| messages.iter().any(|message| message.kind == kind);
    if has(0x01) && has(0x03) && has(0x08) {
        return dataset(file, path, address, messages, attributes)
            .map(|dataset| Hdf5Object::Dataset(Box::new(dataset)));
    }
    if has(0x02) || has(0x06) || has(0x11) || has(0x0a) {
        let links = links(file, messages)?;
        return Ok(Hdf5Object::Group {
            links,
            attributes: attributes.kept,
            netcdf: attributes.netcdf,
        });
    }
    Ok(Hdf5Object::Other)
}

fn dataset(
    file: &mut Hdf5File<'_>,
    path: &str,
    address: u64,
    messages: Vec<HeaderMessage>,
    attributes: ObjectAttributes,
) -> Result<Dataset> {
    let (mut space, mut data_type, mut layout) = (None, None, None);
    let (mut fill, mut pipeline, mut external) = (None, None, false);
    for HeaderMessage { kind, mut body } in messages {
        match kind {
            0x01 => space = Some(message::space(file, &mut body)?),
            0x03 => data_type = Some(message::data_type(&mut body, 0)?),
            0x04 => fill = fill.or(message::fill_old(&mut body)?),
            0x05 => fill = message::fill(&mut body)?.or(fill),
            0x07 => external = true,
            0x08 => layout = Some(message::layout(file, &mut body)?),
            0x0b => pipeline = Some(body),
            _ => {}
        }
    }
    let missing = || Error::Corrupt {
        what: "HDF5 dataset",
        offset: address,
        why: "it has no space, type or layout".into(),
    };
    let (space, data_type, layout) = (
        space.ok_or_else(missing)?,
        data_type.ok_or_else(missing)?,
        layout.ok_or_else(missing)?,
    );
    let filters = pipeline
        .map(|mut body| message::pipeline(&mut body, data_type.size))
        .transpose()?
        .unwrap_or_default();
    let sizes = if space.null { &[0][..] } else { &space.sizes };
    let dimension = |(position, size): (usize, &u64)| Dimension {
        name: format!("dim_{position}"),
        size: *size,
        unlimited: space.most.get(position) == Some(&u64::MAX),
    };
    let dimensions = sizes.iter().enumerate().map(dimension).collect();
    let storage = if external {
        Storage::Elsewhere("its bytes are in other files".into())
    } else {
        storage(file, layout, &space, &data_type, filters, address)?
    };
    let fill = fill.filter(|fill| fill.len() as u64 == u64::from(data_type.size));
    let variable = Variable {
        path: path.into(),
        dimensions,
        data_type,
        attributes: attributes.kept,
        storage,
        fill,
    };
    Ok(Dataset {
        address,
        order: 0,
        variable: variable.checked()?,
        scale: attributes.scale,
        only_dimension: attributes.only_dimension,
        dimension_id: attributes.dimension_id,
        coordinates: attributes.coordinates,
        dimension_list: attributes.dimension_list,
    })
}

fn storage(
    file: &Hdf5File<'_>,
    layout: DatasetLayout,
    space: &message::Dataspace,
    data_type: &DataType,
    filters: Vec<Filter>,
    address: u64,
) -> Result<Storage> {
    Ok(match layout {
        DatasetLayout::Compact(offset) => Storage::Contiguous { offset },
        DatasetLayout::Contiguous(Some(address)) => Storage::Contiguous {
            offset: file.base.saturating_add(address),
        },
        DatasetLayout::Contiguous(None) => Storage::Absent,
        DatasetLayout::Virtual => {
            Storage::Elsewhere("a virtual dataset, whose bytes are in other datasets".into())
        }
        DatasetLayout::Chunked { shape, mut index } => {
            let element = u64::from(data_type.size);
            let bytes = shape
                .iter()
                .try_fold(element, |all, size| all.checked_mul(*size));
            if shape.len() != space.sizes.len() || bytes != Some(index.chunk_bytes) {
                let why = format!(
                    "chunks of the shape {shape:?} for dimensions {:?}",
                    space.sizes
                );
                return Err(Error::Corrupt {
                    what: "HDF5 dataset",
                    offset: file.base.saturating_add(address),
                    why,
                });
            }
            index.sizes.clone_from(&space.sizes);
            index.most.clone_from(&space.most);
            Storage::Chunked(Chunked {
                shape,
                filters,
                index: Index::Hdf5(index),
            })
        }
    })
}

#[derive(Default)]
struct ObjectAttributes {
    kept: Vec<Attribute>,
    netcdf: bool,
    scale: bool,
    only_dimension: bool,
    dimension_id: Option<i64>,
    coordinates: Vec<i64>,
    dimension_list: Vec<Option<u64>>,
}

/// Value and type of an attribute, before its purpose is known.
struct Raw {
    name: String,
    data_type: DataType,
    body: Cursor,
    elements: u64,
}

impl ObjectAttributes {
    fn read(&mut self, file: &mut Hdf5File<'_>, messages: &mut [HeaderMessage]) -> Result<()> {
        for message in messages {
            match message.kind {
                0x0c => self.one(file, &mut message.body)?,
                0x15 => self.dense(file, &mut message.body)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn dense(&mut self, file: &mut Hdf5File<'_>, body: &mut Cursor) -> Result<()> {
        body.skip(1)?;
        let flags = body.u8()?;
        body.skip(if flags & 1 == 0 { 0 } else { 2 })?;
        let (Some(heap), Some(names)) = (file.address(body)?, file.address(body)?) else {
            return Ok(());
        };
        let heap = FractalHeap::open(file, heap)?;
        for id in ids(file, names, 0, heap.id_len())? {
            match heap.object(file, &id, ATTRIBUTE_BYTES_MAX)? {
                Some(mut body) => self.one(file, &mut body)?,
                None => self.kept.push(Attribute {
                    name: "(one that is too large)".into(),
                    value: Value::Other,
                }),
            }
        }
        Ok(())
    }

    fn one(&mut self, file: &mut Hdf5File<'_>, body: &mut Cursor) -> Result<()> {
        file.source.charge(64)?;
        let raw = raw(file, body)?;
        if raw.name == "DIMENSION_LIST" {
            self.dimension_list = references(file, raw)?;
            return Ok(());
        }
        let name = raw.name.clone();
        let value = value(file, raw)?;
        let first = |value: &Value| match value {
            Value::Int(numbers) => numbers.first().copied(),
            _ => None,
        };
        match name.as_str() {
            "CLASS" => self.scale = value == Value::Text("DIMENSION_SCALE".into()),
            "NAME" => self.only_dimension = is_only_dimension(&value),
            "_Netcdf4Dimid" => self.dimension_id = first(&value),
            "_Netcdf4Coordinates" => {
                if let Value::Int(numbers) = &value {
                    self.coordinates.clone_from(numbers);
                }
            }
            "_NCProperties" | "_nc3_strict" => self.netcdf = true,
            _ => {}
        }
        if !RESERVED.contains(&name.as_str()) {
            self.kept.push(Attribute { name, value });
        }
        Ok(())
    }
}

/// Returns the ids of a heap's objects, from a tree of names whose records have `before` bytes before the id.
fn ids(file: &mut Hdf5File<'_>, names: u64, before: usize, len: usize) -> Result<Vec<Vec<u8>>> {
    let mut ids = Vec::new();
    tree::each2(file, names, |record, _| {
        record.skip(before)?;
        ids.push(record.take(len)?.to_vec());
        if ids.len() > NAMES_MAX {
            return Err(Error::Limit {
                what: "attributes or links",
                limit: NAMES_MAX as u64,
            });
        }
        Ok(())
    })?;
    Ok(ids)
}

fn raw(file: &mut Hdf5File<'_>, body: &mut Cursor) -> Result<Raw> {
    let version = body.u8()?;
    let flags = body.u8()?;
    let lens = (body.usize(2)?, body.usize(2)?, body.usize(2)?);
    match version {
        1 | 2 => {}
        3 => body.skip(1)?,
        _ => return Err(body.corrupt(format!("an attribute of version {version}"))),
    }
    let padded = |len: usize| {
        if version == 1 {
            len.next_multiple_of(8)
        } else {
            len
        }
    };
    let name = body.text(padded(lens.0))?;
    let mut data_type = body.part(padded(lens.1), "type of an HDF5 attribute")?;
    let mut space = body.part(padded(lens.2), "space of an HDF5 attribute")?;
    if version > 1 && flags & 1 != 0 {
        data_type = file.shared_message(0x03, &mut data_type)?;
    }
    if version > 1 && flags & 2 != 0 {
        space = file.shared_message(0x01, &mut space)?;
    }
    let data_type = message::data_type(&mut data_type, 0)?;
    let elements = message::space(file, &mut space)?.elements();
    let len = elements.saturating_mul(u64::from(data_type.size));
    let len = usize::try_from(len).map_err(|_| body.corrupt("a value with an impossible size"))?;
    let body = body.part(len, "value of an HDF5 attribute")?;
    Ok(Raw {
        name,
        data_type,
        body,
        elements,
    })
}

fn value(file: &mut Hdf5File<'_>, mut raw: Raw) -> Result<Value> {
    file.source.charge(raw.elements.saturating_mul(32))?;
    if raw.data_type.kind != DataKind::Other("text".into()) {
        return Ok(values(&raw.data_type, &raw.body.take_all()?));
    }
    let mut texts = Vec::new();
    for _ in 0..raw.elements {
        texts.push(crate::bytes::text(&listed(file, &mut raw.body, 1)?));
    }
    Ok(if texts.len() == 1 {
        Value::Text(texts.remove(0))
    } else {
        Value::Texts(texts)
    })
}

/// Returns the data of an element of variable length; empty if it exceeds the limit.
fn listed(file: &mut Hdf5File<'_>, body: &mut Cursor, element: u64) -> Result<Vec<u8>> {
    let len = u64::from(body.u32()?).saturating_mul(element);
    let address = file.address(body)?;
    let index = u16::try_from(body.u32()?).unwrap_or(u16::MAX);
    match address {
        Some(address) if address > 0 && (1..=ATTRIBUTE_BYTES_MAX).contains(&len) => {
            heap::global(file, address, index, len)
        }
        _ => Ok(Vec::new()),
    }
}

/// Returns the first dimension scale of each dimension.
fn references(file: &mut Hdf5File<'_>, mut raw: Raw) -> Result<Vec<Option<u64>>> {
    let mut scales = Vec::new();
    if raw.data_type.kind != DataKind::Other("list".into()) {
        return Ok(scales);
    }
    for _ in 0..raw.elements.min(crate::RANK_MAX as u64) {
        let bytes = listed(file, &mut raw.body, file.offsets as u64)?;
        let mut first = Cursor::over(bytes, 0, "reference to a dimension scale");
        scales.push(if first.left() < file.offsets {
            None
        } else {
            file.address(&mut first)?
        });
    }
    Ok(scales)
}

fn links(file: &mut Hdf5File<'_>, messages: Vec<HeaderMessage>) -> Result<Vec<(String, u64)>> {
    let mut links = Vec::new();
    for HeaderMessage { kind, mut body } in messages {
        match kind {
            0x02 => {
                body.skip(1)?;
                let flags = body.u8()?;
                body.skip(if flags & 1 == 0 { 0 } else { 8 })?;
                let (Some(heap), Some(names)) =
                    (file.address(&mut body)?, file.address(&mut body)?)
                else {
                    continue;
                };
                let heap = FractalHeap::open(file, heap)?;
                let mut found = Vec::new();
                for id in ids(file, names, 4, heap.id_len())? {
                    if let Some(mut body) = heap.object(file, &id, ATTRIBUTE_BYTES_MAX)? {
                        found.extend(link(file, &mut body)?);
                    }
                }
                // The tree is sorted by a hash of the names.
                found.sort();
                links.extend(found.into_iter().map(|(_, name, address)| (name, address)));
            }
            0x06 => links.extend(link(file, &mut body)?.map(|(_, name, address)| (name, address))),
            0x11 => {
                let (Some(names), Some(heap)) =
                    (file.address(&mut body)?, file.address(&mut body)?)
                else {
                    continue;
                };
                let heap = LocalHeap::open(file, heap)?;
                tree::each1(file, names, file.lengths, &mut |file, _, address| {
                    links.extend(symbols(file, &heap, address)?);
                    Ok(())
                })?;
            }
            _ => {}
        }
    }
    Ok(links)
}

/// Returns the name and address of a link; `None` for a link to another name or file.
fn link(file: &Hdf5File<'_>, body: &mut Cursor) -> Result<Option<(u64, String, u64)>> {
    body.skip(1)?;
    let flags = body.u8()?;
    let kind = if flags & 8 == 0 { 0 } else { body.u8()? };
    let order = if flags & 4 == 0 { 0 } else { body.uint(8)? };
    body.skip(usize::from(flags & 0x10 != 0))?;
    let len = body.usize(1 << (flags & 3))?;
    let name = body.text(len)?;
    if kind != 0 {
        return Ok(None);
    }
    Ok(file.address(body)?.map(|address| (order, name, address)))
}

/// Returns the names and addresses in a symbol table node of an old group.
fn symbols(file: &mut Hdf5File<'_>, heap: &LocalHeap, address: u64) -> Result<Vec<(String, u64)>> {
    let what = "HDF5 symbol table node";
    let mut head = file.cursor(address, 8, what)?;
    head.expect(b"SNOD")?;
    head.skip(2)?;
    let count = head.uint(2)?;
    let len = count * (2 * file.offsets as u64 + 24);
    let mut body = file.cursor(address.saturating_add(8), len, what)?;
    let mut found = Vec::new();
    for _ in 0..count {
        let name = body.uint(file.offsets)?;
        let address = file.address(&mut body)?;
        let cached = body.u32()?;
        body.skip(20)?;
        // 2: a link to another name.
        if let (Some(address), true) = (address, cached != 2) {
            found.push((heap.name(file, name)?, address));
        }
    }
    Ok(found)
}
