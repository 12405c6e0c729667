//! Zarr version 2: metadata in `.zgroup`, `.zarray`, `.zattrs`, and all of them in `.zmetadata`.

use serde_json::{Map, Value as Json};

use super::{
    MetadataFile, ZarrIndex, ZarrNode, ZarrReader, attributes, dimensions, filled, joined,
};
use crate::{
    Chunked, CompoundMember, DataKind, DataType, Endian, Error, Filter, Result, Storage, Variable,
};

type JsonObject = Map<String, Json>;

pub(super) fn nodes(reader: &mut ZarrReader<'_>) -> Result<Vec<(String, ZarrNode)>> {
    let mut found = Vec::new();
    if let Some(all) = reader.json(".zmetadata")? {
        let all = all
            .get("metadata")
            .and_then(Json::as_object)
            .cloned()
            .unwrap_or_default();
        for (key, json) in &all {
            let (path, name) = key.rsplit_once('/').unwrap_or(("", key));
            let attributes_json = all.get(&joined(path, ".zattrs")).and_then(Json::as_object);
            match (name, json.as_object()) {
                (".zarray", Some(json)) => {
                    found.push((path.into(), array(path, json, attributes_json)?))
                }
                (".zgroup", _) => found.push((
                    path.into(),
                    ZarrNode::Group(attributes(
                        attributes_json
                            .map(|all| Json::Object(all.clone()))
                            .as_ref(),
                    )),
                )),
                _ => {}
            }
        }
        return Ok(found);
    }
    reader.walk(|reader, path| {
        let attributes_json = |reader: &mut ZarrReader<'_>| reader.json(&joined(path, ".zattrs"));
        if let Some(json) = reader.json(&joined(path, ".zarray"))? {
            let attributes_json = attributes_json(reader)?;
            found.push((path.into(), array(path, &json, attributes_json.as_ref())?));
            return Ok(false);
        }
        let group = reader.json(&joined(path, ".zgroup"))?.is_some();
        if group {
            let attributes_json = attributes_json(reader)?.map(Json::Object);
            found.push((
                path.into(),
                ZarrNode::Group(attributes(attributes_json.as_ref())),
            ));
        } else if path.is_empty() {
            let why = "neither zarr.json nor .zgroup nor .zarray exists: this directory is no Zarr"
                .into();
            return Err(Error::Metadata {
                file: ".zgroup".into(),
                why,
            });
        }
        Ok(group)
    })?;
    Ok(found)
}

fn array(path: &str, json: &JsonObject, attributes_json: Option<&JsonObject>) -> Result<ZarrNode> {
    let metadata = MetadataFile {
        file: joined(path, ".zarray"),
        json,
    };
    let sizes = metadata.numbers(json.get("shape"), "shape")?;
    let rank = sizes.len();
    if rank > crate::RANK_MAX {
        return Err(Error::Limit {
            what: "dimensions of a variable",
            limit: crate::RANK_MAX as u64,
        });
    }
    let shape = metadata.chunk_shape(json.get("chunks"), "chunks", rank)?;
    let data_type = data_type(&metadata, json.get("dtype"))?;
    let names = attributes_json
        .and_then(|all| all.get("_ARRAY_DIMENSIONS"))
        .and_then(Json::as_array);
    let filters = filters(&metadata, rank, data_type.size)?;
    let separator = json
        .get("dimension_separator")
        .and_then(Json::as_str)
        .unwrap_or(".");
    let separator = match separator {
        "." => '.',
        "/" => '/',
        other => return Err(metadata.wrong(format!("dimension_separator {other:?}"))),
    };
    let index = ZarrIndex {
        prefix: joined(path, ""),
        separator,
        scalar: "0".into(),
        shard: None,
    };
    let (fill, unreadable) = filled(&data_type, json);
    Ok(ZarrNode::Array(Box::new(Variable {
        path: path.into(),
        dimensions: dimensions(sizes, names),
        fill,
        data_type,
        attributes: attributes(
            attributes_json
                .map(|all| Json::Object(all.clone()))
                .as_ref(),
        ),
        storage: unreadable.unwrap_or(Storage::Chunked(Chunked {
            shape,
            filters,
            index: super::super::Index::Zarr(index),
        })),
    })))
}

fn filters(metadata: &MetadataFile<'_>, rank: usize, element: u32) -> Result<Vec<Filter>> {
    let json = metadata.json;
    let mut filters = Vec::new();
    if json.get("order").and_then(Json::as_str) == Some("F") && rank > 1 {
        filters.push(Filter::Transpose {
            order: (0..u32::try_from(rank).unwrap_or(0)).rev().collect(),
        });
    }
    for filter in json
        .get("filters")
        .and_then(Json::as_array)
        .into_iter()
        .flatten()
        .chain(json.get("compressor"))
    {
        if !filter.is_null() {
            filters.push(codec(metadata, filter, element)?);
        }
    }
    Ok(filters)
}

/// Returns the filter for a codec with a name of numcodecs.
pub(super) fn codec(metadata: &MetadataFile<'_>, json: &Json, element: u32) -> Result<Filter> {
    let name = metadata.text(json.get("id"), "the id of a codec")?;
    Ok(match name {
        "zlib" => Filter::Deflate,
        "gzip" => Filter::Gzip,
        "zstd" => Filter::Zstd,
        "blosc" => Filter::Blosc,
        "lz4" => Filter::Lz4 { blocks: false },
        "bz2" => Filter::Bzip2,
        "shuffle" => {
            let size = json
                .get("elementsize")
                .and_then(Json::as_u64)
                .and_then(|size| u32::try_from(size).ok());
            Filter::Shuffle {
                element: size.unwrap_or(element),
            }
        }
        "fletcher32" => Filter::Fletcher32,
        "crc32c" => Filter::Crc32c,
        "crc32" | "adler32" => Filter::Checksum { name: name.into() },
        _ => Filter::Other {
            name: name.into(),
            optional: false,
            parameters: Vec::new(),
        },
    })
}

/// Parses a data type in numpy's notation: `<f4`, `|S8`, or a list of names and types.
fn data_type(metadata: &MetadataFile<'_>, json: Option<&Json>) -> Result<DataType> {
    if let Some(Json::Array(list)) = json {
        let (mut members, mut size) = (Vec::new(), 0_u32);
        for member in list {
            let name = metadata
                .text(member.get(0), "the name of a member of dtype")?
                .to_owned();
            let data_type = simple(
                metadata,
                metadata.text(member.get(1), "the type of a member of dtype")?,
            )?;
            members.push(CompoundMember {
                name,
                offset: size,
                data_type: data_type.clone(),
            });
            size = size
                .checked_add(data_type.size)
                .ok_or_else(|| metadata.wrong("a dtype that is too large"))?;
        }
        return Ok(DataType {
            kind: DataKind::Compound(members),
            size: size.max(1),
            order: Endian::Little,
        });
    }
    simple(metadata, metadata.text(json, "dtype")?)
}

fn simple(metadata: &MetadataFile<'_>, text: &str) -> Result<DataType> {
    simple_type(text).ok_or_else(|| metadata.wrong(format!("dtype {text:?}")))
}

/// Parses a data type in numpy's notation, except a list.
pub(crate) fn simple_type(text: &str) -> Option<DataType> {
    let mut letters = text.chars();
    let order = match letters.next() {
        Some('>') => Endian::Big,
        Some('<' | '|' | '=') => Endian::Little,
        _ => return None,
    };
    let kind = letters.next();
    let digits: String = letters.take_while(char::is_ascii_digit).collect();
    let mut size: u32 = digits.parse().unwrap_or(0);
    let other = |name: &str| DataKind::Other(name.into());
    let kind = match kind {
        Some('i') => DataKind::Int,
        Some('u') => DataKind::Uint,
        Some('f') => DataKind::Float,
        Some('c') => DataKind::Complex,
        Some('b') => DataKind::Bool,
        Some('S') => DataKind::Text,
        Some('M' | 'm') => {
            size = 8;
            DataKind::Int
        }
        Some('O') => {
            size = 8;
            other("text of any length")
        }
        Some('U') => {
            size = size.saturating_mul(4);
            other("text of wide characters")
        }
        Some('V') => other("opaque"),
        _ => return None,
    };
    let fits = match kind {
        DataKind::Int | DataKind::Uint => matches!(size, 1 | 2 | 4 | 8),
        DataKind::Float => matches!(size, 2 | 4 | 8),
        DataKind::Complex => matches!(size, 8 | 16),
        DataKind::Bool => size == 1,
        _ => size > 0,
    };
    fits.then_some(DataType { kind, size, order })
}
