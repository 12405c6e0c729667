//! Version 3: `zarr.json` in each directory, or all of them in that of the root.

use serde_json::{Map, Value as Json};

use super::{Index, Node, Reader, Said, Shard, attributes, dimensions, filled, joined, v2};
use crate::{Chunked, DataType, Error, Filter, Kind, Order, RANK_MAX, Result, Storage, Variable};

type Object = Map<String, Json>;

pub(super) fn nodes(reader: &mut Reader<'_>, root: Object) -> Result<Vec<(String, Node)>> {
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
        let group = matches!(node, Node::Group(_));
        found.push((path.into(), node));
        Ok(group)
    })?;
    Ok(found)
}

fn node(path: &str, json: &Object) -> Result<Node> {
    let said = Said {
        file: joined(path, "zarr.json"),
        json,
    };
    if json.get("zarr_format").and_then(Json::as_u64) != Some(3) {
        return Err(said.wrong("zarr_format is not 3"));
    }
    match said.text(json.get("node_type"), "node_type")? {
        "group" => Ok(Node::Group(attributes(json.get("attributes")))),
        "array" => array(path, &said),
        other => Err(said.wrong(format!("node_type {other:?}"))),
    }
}

fn array(path: &str, said: &Said<'_>) -> Result<Node> {
    let json = said.json;
    let sizes = said.numbers(json.get("shape"), "shape")?;
    let rank = sizes.len();
    if rank > RANK_MAX {
        return Err(Error::Limit {
            what: "dimensions of a variable",
            limit: RANK_MAX as u64,
        });
    }
    let transformers = json.get("storage_transformers").and_then(Json::as_array);
    if transformers.is_some_and(|all| !all.is_empty()) {
        return Err(said.wrong("storage_transformers, of which none is known"));
    }
    let configuration = |name: &str| json.get(name).and_then(|part| part.get("configuration"));
    let grid = json
        .get("chunk_grid")
        .and_then(|grid| grid.get("name"))
        .and_then(Json::as_str);
    if grid != Some("regular") {
        return Err(said.wrong(format!(
            "chunk_grid {grid:?}, and only regular ones are read"
        )));
    }
    let grid = configuration("chunk_grid").and_then(|grid| grid.get("chunk_shape"));
    let outer = said.chunk_shape(grid, "chunk_grid", rank)?;
    let mut data_type = data_type(said, json.get("data_type"))?;
    let codecs = json
        .get("codecs")
        .and_then(Json::as_array)
        .ok_or_else(|| said.wrong("no codecs"))?;
    let (codecs, shape, shard) = match sharding(said, codecs)? {
        None => (codecs, outer, None),
        Some(inner) => sharded(said, inner, outer)?,
    };
    let mut filters = Vec::new();
    for json in codecs {
        codec(said, json, rank, &mut data_type, &mut filters)?;
    }
    let names = json.get("dimension_names").and_then(Json::as_array);
    let (fill, unreadable) = filled(&data_type, json);
    Ok(Node::Array(Box::new(Variable {
        path: path.into(),
        dimensions: dimensions(sizes, names),
        fill,
        data_type,
        attributes: attributes(json.get("attributes")),
        storage: unreadable.unwrap_or(Storage::Chunked(Chunked {
            shape,
            filters,
            index: super::super::Index::Zarr(index(path, said, shard)?),
        })),
    })))
}

fn index(path: &str, said: &Said<'_>, shard: Option<Shard>) -> Result<Index> {
    let encoding = said.json.get("chunk_key_encoding");
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
            Ok(Index {
                prefix: joined(path, &format!("c{separator}")),
                separator,
                scalar: String::new(),
                shard,
            })
        }
        Some("v2") => {
            let separator = if separator == Some("/") { '/' } else { '.' };
            Ok(Index {
                prefix: joined(path, ""),
                separator,
                scalar: "0".into(),
                shard,
            })
        }
        Some(other) => Err(said.wrong(format!("chunk_key_encoding {other:?}"))),
    }
}

fn name(json: &Json) -> Option<&str> {
    json.as_str()
        .or_else(|| json.get("name").and_then(Json::as_str))
}

/// Returns the configuration of a sharding codec, which must be the only codec.
fn sharding<'a>(said: &Said<'_>, codecs: &'a [Json]) -> Result<Option<&'a Json>> {
    let Some(one) = codecs
        .iter()
        .find(|codec| name(codec) == Some("sharding_indexed"))
    else {
        return Ok(None);
    };
    if codecs.len() > 1 {
        return Err(said.wrong("codecs beside sharding_indexed are not read"));
    }
    one.get("configuration")
        .map(Some)
        .ok_or_else(|| said.wrong("sharding_indexed without a configuration"))
}

fn sharded<'a>(
    said: &Said<'_>,
    json: &'a Json,
    outer: Vec<u64>,
) -> Result<(&'a Vec<Json>, Vec<u64>, Option<Shard>)> {
    let inner = said.chunk_shape(json.get("chunk_shape"), "sharding_indexed", outer.len())?;
    if outer
        .iter()
        .zip(&inner)
        .any(|(outer, inner)| outer % inner != 0)
    {
        return Err(said.wrong(format!(
            "shards of {outer:?} are no whole chunks of {inner:?}"
        )));
    }
    let codecs = json
        .get("codecs")
        .and_then(Json::as_array)
        .ok_or_else(|| said.wrong("sharding_indexed without codecs"))?;
    if sharding(said, codecs).is_err()
        || codecs
            .iter()
            .any(|codec| name(codec) == Some("sharding_indexed"))
    {
        return Err(said.wrong("shards within shards are not read"));
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
        return Err(said.wrong("index_codecs other than bytes (little) and crc32c are not read"));
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
    said: &Said<'_>,
    json: &Json,
    rank: usize,
    data_type: &mut DataType,
    filters: &mut Vec<Filter>,
) -> Result<()> {
    let configuration = json.get("configuration");
    let of = |key: &str| configuration.and_then(|all| all.get(key));
    let name = name(json).ok_or_else(|| said.wrong("a codec without a name"))?;
    match name {
        "bytes" => {
            if of("endian").and_then(Json::as_str) == Some("big") {
                data_type.order = Order::Big;
            }
        }
        "transpose" => {
            let order = said.numbers(of("order"), "the order of transpose")?;
            let mut sorted = order.clone();
            sorted.sort_unstable();
            if !sorted.iter().copied().eq(0..rank as u64) {
                return Err(said.wrong(format!("transpose to {order:?}")));
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
            filters.push(v2::codec(said, &Json::Object(old), data_type.size)?);
        }
    }
    Ok(())
}

fn data_type(said: &Said<'_>, json: Option<&Json>) -> Result<DataType> {
    let name = json
        .and_then(name)
        .ok_or_else(|| said.wrong("no data_type"))?;
    let (kind, size) = match name {
        "bool" => (Kind::Bool, 1),
        "int8" => (Kind::Int, 1),
        "int16" => (Kind::Int, 2),
        "int32" => (Kind::Int, 4),
        "int64" => (Kind::Int, 8),
        "uint8" => (Kind::Uint, 1),
        "uint16" => (Kind::Uint, 2),
        "uint32" => (Kind::Uint, 4),
        "uint64" => (Kind::Uint, 8),
        "float16" => (Kind::Float, 2),
        "float32" => (Kind::Float, 4),
        "float64" => (Kind::Float, 8),
        "complex64" => (Kind::Complex, 8),
        "complex128" => (Kind::Complex, 16),
        "numpy.datetime64" | "numpy.timedelta64" => (Kind::Int, 8),
        // Such a type is useless for computations, but no reason to refuse the whole file.
        other => (Kind::Other(other.into()), 8),
    };
    Ok(DataType {
        kind,
        size,
        order: Order::Little,
    })
}
