//! Reader of Zarr, versions 2 and 3: a directory of files, with metadata files that describe the other files.
//!
//! The name of a file determines its chunk; a shard has an index of its chunks in its file. Consolidated metadata, a description of all
//! arrays in one file, is used if it exists. The reader follows the Zarr specifications 2 and 3, and numcodecs' names of codecs.

mod v2;
mod v3;

pub(crate) use v2::simple_type;

use std::io;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use crate::model::{ATTRIBUTE_BYTES_MAX, NAMES_MAX, fill_of};
use crate::{
    Attribute, DataType, Dimension, Directory, Error, FileSpan, Format, Group, Header, Result,
    Storage, Value, Variable,
};

/// Names of metadata files, which describe the contents of a directory. Each of the first four makes the directory a Zarr.
pub const METADATA: [&str; 5] = ["zarr.json", ".zgroup", ".zarray", ".zmetadata", ".zattrs"];

/// Maximum size of a metadata file, in bytes.
const METADATA_MAX: u64 = 8 << 20;
/// Maximum size of all metadata files together, in bytes.
const METADATA_ALL_MAX: u64 = 32 << 20;
/// Maximum number of files and directories of a Zarr that are examined.
const LOOKS_MAX: usize = 1 << 18;
/// Maximum depth of nested groups in a Zarr.
const DEPTH_MAX: usize = 32;
/// Maximum number of chunks in a shard.
pub const SHARD_CHUNKS_MAX: u64 = 1 << 20;

/// Locations of the chunks of a Zarr array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZarrIndex {
    /// Text before the place of a chunk in a file's name: `tas/c/`, or `tas/`.
    prefix: String,
    /// Separator of the numbers in a chunk's place: `/` or `.`.
    separator: char,
    /// Name of the only chunk if the array has no dimensions.
    scalar: String,
    /// Shape of a shard in chunks, and location of the index in a shard; `None` if each chunk is a file.
    shard: Option<Shard>,
}

/// Shard: a file with several chunks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Shard {
    chunks: Vec<u64>,
    /// Whether the chunk index is at the start of the shard, and not at its end.
    first: bool,
    /// Whether a checksum of four bytes follows the chunk index.
    checksum: bool,
}

/// Reads the description of the Zarr arrays in a directory.
///
/// # Errors
/// If the directory is no Zarr, if its metadata is corrupt, or if it exceeds the limits of any real Zarr.
pub fn read(directory: &dyn Directory) -> Result<Header> {
    let mut reader = ZarrReader {
        directory,
        bytes_left: METADATA_ALL_MAX,
        looks_left: LOOKS_MAX,
    };
    let (version, found) = match reader.json("zarr.json")? {
        Some(root) => (3, v3::nodes(&mut reader, root)?),
        None => (2, v2::nodes(&mut reader)?),
    };
    let mut header = Header {
        format: Format::Zarr(version),
        attributes: vec![],
        groups: vec![],
        variables: vec![],
    };
    for (path, node) in found {
        // Names in metadata become names of files.
        if !path.is_empty() && path.split('/').any(|name| matches!(name, "" | "." | "..")) {
            return Err(Error::Metadata {
                file: path,
                why: "no name that an array or group can have".into(),
            });
        }
        match node {
            ZarrNode::Array(variable) => header.variables.push(variable.checked()?),
            ZarrNode::Group(attributes) if path.is_empty() => header.attributes = attributes,
            ZarrNode::Group(attributes) => header.groups.push(Group { path, attributes }),
        }
    }
    Ok(header)
}

/// Returns whether a directory is a Zarr.
///
/// # Errors
/// If files of the directory cannot be read.
pub fn is(directory: &dyn Directory) -> io::Result<bool> {
    for name in &METADATA[..4] {
        if directory.size(name)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

enum ZarrNode {
    Array(Box<Variable>),
    Group(Vec<Attribute>),
}

struct ZarrReader<'a> {
    directory: &'a dyn Directory,
    bytes_left: u64,
    looks_left: usize,
}

impl ZarrReader<'_> {
    fn look(&mut self) -> Result<()> {
        self.looks_left = self.looks_left.checked_sub(1).ok_or(Error::Limit {
            what: "files of a Zarr's metadata",
            limit: LOOKS_MAX as u64,
        })?;
        Ok(())
    }

    /// Returns the contents of a metadata file, if it exists.
    fn json(&mut self, path: &str) -> Result<Option<Map<String, Json>>> {
        let what = "metadata of a Zarr";
        self.look()?;
        let failed = |source| Error::Io {
            what,
            offset: 0,
            source,
        };
        let Some(size) = self.directory.size(path).map_err(failed)? else {
            return Ok(None);
        };
        let left = self
            .bytes_left
            .checked_sub(size)
            .filter(|_| size <= METADATA_MAX);
        self.bytes_left = left.ok_or(Error::Limit {
            what: "bytes of a Zarr's metadata",
            limit: METADATA_MAX,
        })?;
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        self.directory
            .read_at(path, 0, &mut bytes)
            .map_err(failed)?;
        // Python's writers store numbers that JSON does not support.
        let json = serde_json::from_slice(&bytes).or_else(|error| {
            let found = with_texts(&bytes).ok_or(error)?;
            serde_json::from_slice(&found)
        });
        json.map(Some).map_err(|error| Error::Metadata {
            file: path.into(),
            why: error.to_string(),
        })
    }

    fn list(&mut self, path: &str) -> Result<Vec<String>> {
        self.look()?;
        let mut names = self.directory.list(path).map_err(|source| Error::Io {
            what: "a directory of a Zarr",
            offset: 0,
            source,
        })?;
        names.sort();
        Ok(names)
    }

    /// Visits the directories below the root that may be arrays or groups, each once: `at` returns whether a directory is a group.
    fn walk(&mut self, mut at: impl FnMut(&mut Self, &str) -> Result<bool>) -> Result<()> {
        let mut left = vec![(String::new(), 0)];
        let mut seen = 0;
        while let Some((path, depth)) = left.pop() {
            if !at(self, &path)? {
                continue;
            }
            if depth >= DEPTH_MAX {
                return Err(Error::Limit {
                    what: "groups within groups",
                    limit: DEPTH_MAX as u64,
                });
            }
            for name in self.list(&path)?.into_iter().rev() {
                if name.starts_with('.') || name == "zarr.json" {
                    continue;
                }
                seen += 1;
                if seen > NAMES_MAX {
                    return Err(Error::Limit {
                        what: "arrays and groups",
                        limit: NAMES_MAX as u64,
                    });
                }
                left.push((joined(&path, &name), depth + 1));
            }
        }
        Ok(())
    }
}

/// First character of a JSON text that stands for a number which JSON does not support.
const NUMBER: char = '\0';

/// Returns the same JSON with `NaN`, `Infinity` and `-Infinity` as texts; `None` if it contains none of these.
fn with_texts(bytes: &[u8]) -> Option<Vec<u8>> {
    let (mut out, mut at, mut inside, mut found) = (Vec::new(), 0, false, false);
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let words = [&b"NaN"[..], b"Infinity", b"-Infinity"];
        let word = words
            .into_iter()
            .find(|word| !inside && rest.starts_with(word));
        if let Some(word) = word {
            out.extend(b"\"\\u0000");
            out.extend(word);
            out.push(b'"');
            at += word.len();
            found = true;
            continue;
        }
        let taken = if inside && rest[0] == b'\\' {
            2.min(rest.len())
        } else {
            1
        };
        inside ^= rest[0] == b'"';
        out.extend(&rest[..taken]);
        at += taken;
    }
    found.then_some(out)
}

/// Returns a number of a JSON value, including a number that JSON does not support.
pub(crate) fn real(json: &Json) -> Option<f64> {
    let text = json.as_str().and_then(|text| text.strip_prefix(NUMBER));
    match text {
        Some("NaN") => Some(f64::NAN),
        Some("Infinity") => Some(f64::INFINITY),
        Some("-Infinity") => Some(f64::NEG_INFINITY),
        _ => json.as_f64(),
    }
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.into()
    } else {
        format!("{path}/{name}")
    }
}

/// Contents of a Zarr metadata file, with its path for errors.
struct MetadataFile<'a> {
    file: String,
    json: &'a Map<String, Json>,
}

impl MetadataFile<'_> {
    fn wrong(&self, why: impl Into<String>) -> Error {
        Error::Metadata {
            file: self.file.clone(),
            why: why.into(),
        }
    }

    fn numbers(&self, json: Option<&Json>, of: &str) -> Result<Vec<u64>> {
        let numbers: Option<Vec<u64>> = json
            .and_then(Json::as_array)
            .and_then(|list| list.iter().map(Json::as_u64).collect());
        numbers.ok_or_else(|| self.wrong(format!("no list of sizes at {of}")))
    }

    /// Returns the sizes of the chunks of an array with `rank` dimensions.
    fn chunk_shape(&self, json: Option<&Json>, of: &str, rank: usize) -> Result<Vec<u64>> {
        let shape = self.numbers(json, of)?;
        if shape.len() != rank || shape.contains(&0) {
            return Err(self.wrong(format!(
                "chunks of {shape:?} at {of}, for {rank} dimensions"
            )));
        }
        Ok(shape)
    }

    fn text<'b>(&self, json: Option<&'b Json>, of: &str) -> Result<&'b str> {
        json.and_then(Json::as_str)
            .ok_or_else(|| self.wrong(format!("no text at {of}")))
    }
}

/// Returns the bytes of an element that was never written, or the reason why it is not known.
fn filled(data_type: &DataType, json: &Map<String, Json>) -> (Option<Vec<u8>>, Option<Storage>) {
    match fill_of(data_type, json.get("fill_value")) {
        Ok(fill) => (fill, None),
        Err(why) => (None, Some(Storage::Elsewhere(why))),
    }
}

/// Returns the dimensions of an array, with these sizes and with the names that exist.
fn dimensions(sizes: Vec<u64>, names: Option<&Vec<Json>>) -> Vec<Dimension> {
    let name = |position: usize| names?.get(position)?.as_str();
    let dimension = |(position, size): (usize, u64)| Dimension {
        name: name(position).map_or(format!("dim_{position}"), str::to_owned),
        size,
        unlimited: false,
    };
    sizes.into_iter().enumerate().map(dimension).collect()
}

fn attributes(json: Option<&Json>) -> Vec<Attribute> {
    let all = json.and_then(Json::as_object).into_iter().flatten();
    let kept = all.filter(|(name, _)| name.as_str() != "_ARRAY_DIMENSIONS");
    kept.map(|(name, json)| Attribute {
        name: name.clone(),
        value: value(json),
    })
    .collect()
}

fn value(json: &Json) -> Value {
    let list = match json {
        Json::Array(list) => list.as_slice(),
        one => std::slice::from_ref(one),
    };
    if list.len() as u64 > ATTRIBUTE_BYTES_MAX / 8 {
        return Value::Other;
    }
    if let Some(numbers) = list.iter().map(Json::as_i64).collect() {
        return Value::Int(numbers);
    }
    if let Some(numbers) = list.iter().map(Json::as_u64).collect() {
        return Value::Uint(numbers);
    }
    if let Some(numbers) = list.iter().map(real).collect() {
        return Value::Float(numbers);
    }
    let texts: Option<Vec<String>> = list
        .iter()
        .map(|text| text.as_str().map(str::to_owned))
        .collect();
    match (json, texts) {
        (Json::String(text), _) => Value::Text(text.clone()),
        (_, Some(texts)) => Value::Texts(texts),
        _ => Value::Other,
    }
}

/// Finder of the chunks of a Zarr array by their places in the grid.
pub(crate) struct Lookup<'a> {
    index: &'a ZarrIndex,
    directory: &'a dyn Directory,
    /// Index of the last used shard: the shard's place, and the bytes of its index.
    shard: Option<(Vec<u64>, Option<Vec<u8>>)>,
}

impl std::fmt::Debug for Lookup<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Lookup")
            .field("index", self.index)
            .finish_non_exhaustive()
    }
}

impl<'a> Lookup<'a> {
    pub(crate) fn new(index: &'a ZarrIndex, directory: &'a dyn Directory) -> Self {
        Self {
            index,
            directory,
            shard: None,
        }
    }

    fn name(&self, place: &[u64]) -> String {
        let mut numbers = place.iter();
        let Some(first) = numbers.next() else {
            let name = format!("{}{}", self.index.prefix, self.index.scalar);
            return name.trim_end_matches(self.index.separator).to_owned();
        };
        let mut name = format!("{}{first}", self.index.prefix);
        for number in numbers {
            name.push(self.index.separator);
            name.push_str(&number.to_string());
        }
        name
    }

    fn size(&self, name: &str) -> Result<Option<u64>> {
        self.directory.size(name).map_err(|source| Error::Io {
            what: "a chunk of a Zarr",
            offset: 0,
            source,
        })
    }

    fn span(&self, name: &str, offset: u64, size: u64) -> Result<FileSpan> {
        let place = self.directory.place(name);
        let (file, begin) = place.map_err(|source| Error::Io {
            what: "a chunk of a Zarr",
            offset,
            source,
        })?;
        Ok(FileSpan {
            file,
            offset: begin.saturating_add(offset),
            size,
        })
    }

    pub(crate) fn find(&mut self, place: &[u64]) -> Result<Option<FileSpan>> {
        let index = self.index;
        let Some(shard) = &index.shard else {
            let name = self.name(place);
            return self
                .size(&name)?
                .map(|size| self.span(&name, 0, size))
                .transpose();
        };
        if shard.chunks.len() != place.len() || shard.chunks.contains(&0) {
            return Err(Error::Metadata {
                file: index.prefix.clone(),
                why: "shards of another shape".into(),
            });
        }
        let of: Vec<u64> = place
            .iter()
            .zip(&shard.chunks)
            .map(|(at, chunks)| at / chunks)
            .collect();
        let name = self.name(&of);
        let Some(size) = self.size(&name)? else {
            return Ok(None);
        };
        if self.shard.as_ref().is_none_or(|(last, _)| *last != of) {
            self.shard = Some((of, self.shard_index(shard, &name, size)?));
        }
        let Some((_, Some(bytes))) = &self.shard else {
            return Ok(None);
        };
        let number = place
            .iter()
            .zip(&shard.chunks)
            .fold(0, |number, (at, chunks)| number * chunks + at % chunks);
        let at = usize::try_from(number)
            .unwrap_or(usize::MAX)
            .saturating_mul(16);
        let word = |at: usize| {
            bytes
                .get(at..at + 8)
                .and_then(|word| word.try_into().ok())
                .map(u64::from_le_bytes)
        };
        let (Some(offset), Some(len)) = (word(at), word(at.saturating_add(8))) else {
            return Ok(None);
        };
        if (offset, len) == (u64::MAX, u64::MAX) {
            return Ok(None);
        }
        if offset.checked_add(len).is_none_or(|end| end > size) {
            let why = format!("chunk {place:?} has {len} bytes at {offset} of {size}");
            return Err(Error::Metadata { file: name, why });
        }
        self.span(&name, offset, len).map(Some)
    }

    fn shard_index(&self, shard: &Shard, name: &str, size: u64) -> Result<Option<Vec<u8>>> {
        let chunks = shard
            .chunks
            .iter()
            .try_fold(1_u64, |all, chunks| all.checked_mul(*chunks));
        let chunks = chunks.filter(|chunks| *chunks <= SHARD_CHUNKS_MAX);
        let chunks = chunks.ok_or(Error::Limit {
            what: "chunks of a shard",
            limit: SHARD_CHUNKS_MAX,
        })?;
        let len = 16 * chunks + if shard.checksum { 4 } else { 0 };
        let Some(end) = size.checked_sub(len) else {
            return Err(Error::Truncated {
                what: "index of a shard",
                offset: 0,
                end: len,
                size,
            });
        };
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        let offset = if shard.first { 0 } else { end };
        let read = self.directory.read_at(name, offset, &mut bytes);
        read.map_err(|source| Error::Io {
            what: "index of a shard",
            offset,
            source,
        })?;
        Ok(Some(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataKind, Endian};

    fn data_type(kind: DataKind, size: u32) -> DataType {
        DataType {
            kind,
            size,
            order: Endian::Little,
        }
    }

    #[test]
    fn zarr_reads_json_with_nan_and_infinity() {
        let text = br#"{"a": NaN, "b": [1, -Infinity], "c": "NaN, \"Infinity", "d": Infinity}"#;
        let found: Json = serde_json::from_slice(&with_texts(text).unwrap()).unwrap();
        assert!(matches!(value(&found["a"]), Value::Float(all) if all[0].is_nan()));
        assert_eq!(
            value(&found["b"]),
            Value::Float(vec![1.0, f64::NEG_INFINITY])
        );
        assert_eq!(value(&found["c"]), Value::Text("NaN, \"Infinity".into()));
        assert_eq!(value(&found["d"]), Value::Float(vec![f64::INFINITY]));
        assert_eq!(with_texts(br#"{"a": "NaN"}"#), None);
        assert_eq!(value(&Json::from("NaN")), Value::Text("NaN".into()));
    }

    #[test]
    fn zarr_fill_value_matches_type_or_is_refused() {
        let float = data_type(DataKind::Float, 4);
        let (int, byte) = (data_type(DataKind::Int, 8), data_type(DataKind::Uint, 1));
        for (of, text, expected) in [
            (&float, r#""0x3f800000""#, &1_f32.to_le_bytes()[..]),
            (&float, r#""-Infinity""#, &f32::NEG_INFINITY.to_le_bytes()),
            (&float, "-9999", &(-9999_f32).to_le_bytes()),
            (&int, "9223372036854775807", &i64::MAX.to_le_bytes()),
            (&int, "\"NaT\"", &i64::MIN.to_le_bytes()),
            (&byte, "255", &[255]),
            (&byte, "7.0", &[7]),
        ] {
            let json = serde_json::from_str(text).unwrap();
            assert_eq!(
                fill_of(of, Some(&json)),
                Ok(Some(expected.to_vec())),
                "{text}"
            );
        }
        for (of, text) in [
            (&float, r#""0x3f80""#),
            (&float, r#""none""#),
            (&int, "1.5"),
            (&int, r#""NaN""#),
            (&int, "1e300"),
            (&byte, "-1"),
            (&byte, "256"),
        ] {
            let json = serde_json::from_str(text).unwrap();
            fill_of(of, Some(&json)).unwrap_err();
        }
        assert_eq!(fill_of(&int, Some(&Json::Null)), Ok(None));
    }
}
