//! Zarr version 3: metadata in `zarr.json` of each directory, or all metadata in `zarr.json` of the root directory.

use serde_json::{Map, Value as Json};

use super::{
    MetadataFile, Shard, ZarrIndex, ZarrNode, ZarrReader, attributes, dimensions, filled, joined,
    v2,
};
use crate::{
    Chunked, DataKind, DataType, Endian, Error, Filter, RANK_MAX, Result, Storage, Variable,
};

type JsonObject = Map<String, Json>;

pub(super) fn nodes(
    reader: &mut ZarrReader<'_>,
    root: JsonObject,
) -> Result<Vec<(String, ZarrNode)>> {
    let all = root
        .get("consolidated_metadata")
        .and_then(|all| all.get("metadata"))
        .and_then(Json::as_object);
    let mut found = Vec::new();
    if let Some(all) = all {
        found.push((String::new(), node("", &root)?));
        for (path, json) in all {
            if let Some(json) = json.as_object() {
                found.push((path.clone(), node(path, json)?));
            }
        }
        return Ok(found);
    }
    let mut root = Some(root);
    reader.walk(|reader, path| {
        let json = match root.take() {
            Some(root) => Some(root),
            None => reader.json(&joined(path, "zarr.json"))?,
        };
        let Some(json) = json else { return Ok(false) };
        let node = node(path, &json)?;
        let group = matches!(node, ZarrNode::Group(_));
        found.push((path.into(), node));
        Ok(group)
    })?;
    Ok(found)
}

fn node(path: &str, json: &JsonObject) -> Result<ZarrNode> {
    let metadata = MetadataFile {
        file: joined(path, "zarr.json"),
        json,
    };
    if json.get("zarr_format").and_then(Json::as_u64) != Some(3) {
        return Err(metadata.wrong("zarr_format is not 3"));
    }
    match metadata.text(json.get("node_type"), "node_type")? {
        "group" => Ok(ZarrNode::Group(attributes(json.get("attributes")))),
        "array" => array(path, &metadata),
        other => Err(metadata.wrong(format!("node_type {other:?}"))),
    }
}

fn array(path: &str, metadata: &MetadataFile<'_>) -> Result<ZarrNode> {
    let json = metadata.json;
    let sizes = metadata.numbers(json.get("shape"), "shape")?;
    let rank = sizes.len();
    if rank > RANK_MAX {
        return Err(Error::Limit {
            what: "dimensions of a variable",
            limit: RANK_MAX as u64,
        });
    }
    let transformers = json.get("storage_transformers").and_then(Json::as_array);
    if transformers.is_some_and(|all| !all.is_empty()) {
        return Err(metadata.wrong("storage_transformers, of which none is known"));
    }
    let configuration = |name: &str| json.get(name).and_then(|part| part.get("configuration"));
    let grid = json
        .get("chunk_grid")
        .and_then(|grid| grid.get("name"))
        .and_then(Json::as_str);
    if grid != Some("regular") {
        return Err(metadata.wrong(format!(
            "chunk_grid {grid:?}, and only regular ones are read"
        )));
    }
    let grid = configuration("chunk_grid").and_then(|grid| grid.get("chunk_shape"));
    let outer = metadata.chunk_shape(grid, "chunk_grid", rank)?;
    let mut data_type = data_type(metadata, json.get("data_type"))?;
    let codecs = json
        .get("codecs")
        .and_then(Json::as_array)
        .ok_or_else(|| metadata.wrong("no codecs"))?;
    let (codecs, shape, shard) = match sharding(metadata, codecs)? {
        None => (codecs, outer, None),
        Some(inner) => sharded(metadata, inner, outer)?,
    };
    let mut filters = Vec::new();
    for json in codecs {
        codec(metadata, json, rank, &mut data_type, &mut filters)?;
    }
    let names = json.get("dimension_names").and_then(Json::as_array);
    let (fill, unreadable) = filled(&data_type, json);
    Ok(ZarrNode::Array(Box::new(Variable {
        path: path.into(),
        dimensions: dimensions(sizes, names),
        fill,
        data_type,
        attributes: attributes(json.get("attributes")),
        storage: unreadable.unwrap_or(Storage::Chunked(Chunked {
            shape,
            filters,
            index: super::super::Index::Zarr(index(path, metadata, shard)?),
        })),
    })))
}

fn index(path: &str, metadata: &MetadataFile<'_>, shard: Option<Shard>) -> Result<ZarrIndex> {
    let encoding = metadata.json.get("chunk_key_encoding");
    let separator = encoding
        .and_then(|one| one.get("configuration"))
        .and_then(|one| one.get("separator"));
    let separator = separator.and_then(Json::as_str);
    match encoding
        .and_then(|encoding| encoding.get("name"))
        .and_then(Json::as_str)
    {
        None | Some("default") => {
            let separator = if separator == Some(".") { '.' } else { '/' };
            // Without dimensions the name is only `c`.
            Ok(ZarrIndex {
                prefix: joined(path, &format!("c{separator}")),
                separator,
                scalar: String::new(),
                shard,
            })
        }
        Some("v2") => {
            let separator = if separator == Some("/") { '/' } else { '.' };
            Ok(ZarrIndex {
                prefix: joined(path, ""),
                separator,
                scalar: "0".into(),
                shard,
            })
        }
        Some(other) => Err(metadata.wrong(format!("chunk_key_encoding {other:?}"))),
    }
}

fn name(json: &Json) -> Option<&str> {
    json.as_str()
        .or_else(|| json.get("name").and_then(Json::as_str))
}

/// Returns the configuration of a sharding codec, which must be the only codec.
fn sharding<'a>(metadata: &MetadataFile<'_>, codecs: &'a [Json]) -> Result<Option<&'a Json>> {
    let Some(one) = codecs
        .iter()
        .find(|codec| name(codec) == Some("sharding_indexed"))
    else {
        return Ok(None);
    };
    if codecs.len() > 1 {
        return Err(metadata.wrong("other codecs with sharding_indexed are not supported"));
    }
    one.get("configuration")
        .map(Some)
        .ok_or_else(|| metadata.wrong("sharding_indexed without a configuration"))
}

fn sharded<'a>(
    metadata: &MetadataFile<'_>,
    json: &'a Json,
    outer: Vec<u64>,
) -> Result<(&'a Vec<Json>, Vec<u64>, Option<Shard>)> {
    let inner = metadata.chunk_shape(json.get("chunk_shape"), "sharding_indexed", outer.len())?;
    if outer
        .iter()
        .zip(&inner)
        .any(|(outer, inner)| outer % inner != 0)
    {
        return Err(metadata.wrong(format!(
            "shards of {outer:?} are no whole chunks of {inner:?}"
        )));
    }
    let codecs = json
        .get("codecs")
        .and_then(Json::as_array)
        .ok_or_else(|| metadata.wrong("sharding_indexed without codecs"))?;
    if sharding(metadata, codecs).is_err()
        || codecs
            .iter()
            .any(|codec| name(codec) == Some("sharding_indexed"))
    {
        return Err(metadata.wrong("shards within shards are not read"));
    }
    let of_index = json
        .get("index_codecs")
        .and_then(Json::as_array)
        .map_or(&[][..], Vec::as_slice);
    let known = |codec: &Json| match name(codec) {
        Some("bytes") => codec
            .get("configuration")
            .and_then(|all| all.get("endian"))
            .is_none_or(|order| order == "little"),
        Some("crc32c") => true,
        _ => false,
    };
    if !of_index.iter().all(known) {
        return Err(
            metadata.wrong("index_codecs other than bytes (little) and crc32c are not read")
        );
    }
    let shard = Shard {
        chunks: outer
            .iter()
            .zip(&inner)
            .map(|(outer, inner)| outer / inner)
            .collect(),
        first: json.get("index_location").and_then(Json::as_str) == Some("start"),
        checksum: of_index.iter().any(|codec| name(codec) == Some("crc32c")),
    };
    Ok((codecs, inner, Some(shard)))
}

fn codec(
    metadata: &MetadataFile<'_>,
    json: &Json,
    rank: usize,
    data_type: &mut DataType,
    filters: &mut Vec<Filter>,
) -> Result<()> {
    let configuration = json.get("configuration");
    let of = |key: &str| configuration.and_then(|all| all.get(key));
    let name = name(json).ok_or_else(|| metadata.wrong("a codec without a name"))?;
    match name {
        "bytes" => {
            if of("endian").and_then(Json::as_str) == Some("big") {
                data_type.order = Endian::Big;
            }
        }
        "transpose" => {
            let order = metadata.numbers(of("order"), "the order of transpose")?;
            let mut sorted = order.clone();
            sorted.sort_unstable();
            if !sorted.iter().copied().eq(0..rank as u64) {
                return Err(metadata.wrong(format!("transpose to {order:?}")));
            }
            filters.push(Filter::Transpose {
                order: order
                    .iter()
                    .filter_map(|at| u32::try_from(*at).ok())
                    .collect(),
            });
        }
        "gzip" => filters.push(Filter::Gzip),
        "zstd" => filters.push(Filter::Zstd),
        "blosc" => filters.push(Filter::Blosc),
        "crc32c" => filters.push(Filter::Crc32c),
        _ => {
            // numcodecs' codecs have their names of version 2 after this prefix.
            let id = name.strip_prefix("numcodecs.").unwrap_or(name);
            let mut old = configuration
                .and_then(Json::as_object)
                .cloned()
                .unwrap_or_default();
            old.insert("id".into(), id.into());
            filters.push(v2::codec(metadata, &Json::Object(old), data_type.size)?);
        }
    }
    Ok(())
}

fn data_type(metadata: &MetadataFile<'_>, json: Option<&Json>) -> Result<DataType> {
    let name = json
        .and_then(name)
        .ok_or_else(|| metadata.wrong("no data_type"))?;
    let (kind, size) = match name {
        "bool" => (DataKind::Bool, 1),
        "int8" => (DataKind::Int, 1),
        "int16" => (DataKind::Int, 2),
        "int32" => (DataKind::Int, 4),
        "int64" => (DataKind::Int, 8),
        "uint8" => (DataKind::Uint, 1),
        "uint16" => (DataKind::Uint, 2),
        "uint32" => (DataKind::Uint, 4),
        "uint64" => (DataKind::Uint, 8),
        "float16" => (DataKind::Float, 2),
        "float32" => (DataKind::Float, 4),
        "float64" => (DataKind::Float, 8),
        "complex64" => (DataKind::Complex, 8),
        "complex128" => (DataKind::Complex, 16),
        "numpy.datetime64" | "numpy.timedelta64" => (DataKind::Int, 8),
        // Such a type is useless for computations, but no reason to refuse the whole file.
        other => (DataKind::Other(other.into()), 8),
    };
    Ok(DataType {
        kind,
        size,
        order: Endian::Little,
    })
}
