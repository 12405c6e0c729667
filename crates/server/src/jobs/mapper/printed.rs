//! Maps that users' mapper programs print: the bytes of a file that form each chunk, and how to decode them. The server validates every
//! value (`docs/variables.md`).

use super::{CHUNKS_MAX, ContiguousValues, Lookups, MappedVariable, joined};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ops::Range;
use tidemill_compute::array::{Codec, VariablePart};
use tidemill_lang::job::{MappedSelection, MapperResult};
use tidemill_model::layout::{Layout, RANGES_MAX, Selection};

/// Version of the format of printed maps.
const VERSION: u32 = 1;
/// Maximum number of dimensions of a variable.
const DIMENSIONS_MAX: usize = 32;
/// Maximum length in bytes of a text value of fixed length.
const TEXT_BYTES_MAX: u32 = 1 << 16;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Printed {
    version: u32,
    #[serde(default)]
    overlap: bool,
    variable: Option<String>,
    dtype: Option<String>,
    order: Option<NumberOrder>,
    shape: Option<Vec<u64>>,
    chunk_shape: Option<Vec<u64>>,
    codecs: Option<Vec<String>>,
    chunks: Vec<PrintedChunk>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum NumberOrder {
    Little,
    Big,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PrintedChunk {
    bytes: Vec<[u64; 2]>,
    start: Option<Vec<u64>>,
    shape: Option<Vec<u64>>,
    codecs: Option<Vec<String>>,
}

impl PrintedChunk {
    fn spans(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.bytes.iter().map(|&[begin, end]| begin..end)
    }
}

/// Returns the map that a mapper program printed.
///
/// # Errors
/// The error in the map, and the position of the error.
pub(in crate::jobs) fn map(
    text: &[u8],
    layout: &Layout,
    per_part: bool,
) -> Result<MapperResult, String> {
    let printed: Printed = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if printed.version != VERSION {
        return Err(format!(
            "it has version {}, and this release knows version {VERSION}",
            printed.version
        ));
    }
    match printed.chunks.len() {
        0 => return Err("it has no chunks".to_owned()),
        count if count > CHUNKS_MAX => {
            return Err(format!(
                "it has {count} chunks, and at most {CHUNKS_MAX} are allowed"
            ));
        }
        _ => {}
    }
    for (number, chunk) in printed.chunks.iter().enumerate() {
        within(chunk, layout.size()).map_err(|why| format!("chunk {number}: {why}"))?;
    }
    if !printed.overlap {
        apart(&printed.chunks)?;
    }
    match &printed.dtype {
        Some(dtype) => values(&printed, dtype)?.map(layout, per_part),
        None => bytes(&printed, layout, per_part),
    }
}

/// Checks that the byte ranges of a chunk are in order and within the file.
fn within(chunk: &PrintedChunk, size: u64) -> Result<(), String> {
    if !(1..=RANGES_MAX).contains(&chunk.bytes.len()) {
        let count = chunk.bytes.len();
        return Err(format!(
            "it has {count} ranges of bytes, not 1 to {RANGES_MAX}"
        ));
    }
    let mut before = 0;
    for Range { start, end } in chunk.spans() {
        if start >= end {
            return Err(format!(
                "[{start}, {end}] is not a range of bytes: give begin and end, with the end not included"
            ));
        }
        if end > size {
            return Err(format!(
                "bytes {start} to {end} are beyond the file's end, {size}"
            ));
        }
        if start < before {
            return Err(format!(
                "the range from {start} on begins before the end of the previous range, {before}"
            ));
        }
        before = end;
    }
    Ok(())
}

/// Checks that no byte of the file belongs to two chunks.
fn apart(chunks: &[PrintedChunk]) -> Result<(), String> {
    let numbered = |(number, chunk): (usize, &PrintedChunk)| {
        chunk
            .spans()
            .map(move |span| (span.start, span.end, number))
            .collect::<Vec<_>>()
    };
    let mut spans: Vec<_> = chunks.iter().enumerate().flat_map(numbered).collect();
    spans.sort_unstable();
    match spans.windows(2).find(|pair| pair[1].0 < pair[0].1) {
        Some(pair) => Err(format!(
            "chunks {} and {} both have byte {}: set \"overlap\": true if that is intended",
            pair[0].2, pair[1].2, pair[1].0
        )),
        None => Ok(()),
    }
}

/// Returns a map whose chunks are raw bytes.
fn bytes(printed: &Printed, layout: &Layout, per_part: bool) -> Result<MapperResult, String> {
    let of_values = |chunk: &PrintedChunk| {
        chunk.start.is_some() || chunk.shape.is_some() || chunk.codecs.is_some()
    };
    if printed.order.is_some()
        || printed.shape.is_some()
        || printed.chunk_shape.is_some()
        || printed.codecs.is_some()
        || printed.chunks.iter().any(of_values)
    {
        return Err("\"order\", \"shape\", \"chunk_shape\", \"start\" and \"codecs\" need values: set their type by \"dtype\"".to_owned());
    }
    let mapped = |(number, ranges): (usize, Vec<Range<u64>>)| {
        let selection = Selection::ranges(None, &ranges).map_err(|error| error.to_string())?;
        Ok(MappedSelection { number, selection })
    };
    if !per_part {
        let ranges = |chunk: &PrintedChunk| joined(chunk.spans().collect());
        let chunks = printed.chunks.iter().map(ranges).enumerate();
        let instances = chunks.map(mapped).collect::<Result<Vec<_>, String>>()?;
        let count = instances.len();
        return Ok(MapperResult {
            instances,
            count,
            ..MapperResult::default()
        });
    }
    let mut parts: BTreeMap<usize, Vec<Range<u64>>> = BTreeMap::new();
    let mut lookups = Lookups::new(layout);
    for chunk in &printed.chunks {
        let mut held: BTreeMap<usize, u64> = BTreeMap::new();
        for span in chunk.spans() {
            for (part, bytes) in lookups.spans(span)? {
                *held.entry(part).or_default() += bytes.end - bytes.start;
            }
        }
        let most = held.iter().rev().max_by_key(|(_, bytes)| **bytes);
        let part = most.map_or(0, |(part, _)| *part);
        parts.entry(part).or_default().extend(chunk.spans());
    }
    let all = parts.into_iter().map(|(part, spans)| {
        mapped((part, joined(spans))).map_err(|why| format!("part {part}: {why}"))
    });
    let instances = all.collect::<Result<_, String>>()?;
    let count = layout.parts().len();
    Ok(MapperResult {
        instances,
        count,
        ..MapperResult::default()
    })
}

/// Returns a map whose chunks are values of an array.
fn values(printed: &Printed, dtype: &str) -> Result<MappedVariable, String> {
    let (element, number) = sizes(dtype).ok_or_else(|| {
        format!("{dtype:?} is not a type of values: give a type such as \"float32\", \"uint8\", \"complex64\", \"bool\" or \"S8\"")
    })?;
    let native = match cfg!(target_endian = "big") {
        true => NumberOrder::Big,
        false => NumberOrder::Little,
    };
    let swap = printed.order.is_some_and(|order| order != native);
    let codecs = |names: &Vec<String>| {
        let codecs = names.iter().map(|name| codec(name));
        codecs.collect::<Result<Vec<_>, String>>()
    };
    let mut found = MappedVariable {
        held: VariablePart {
            variable: printed.variable.clone().unwrap_or_default(),
            dtype: dtype.to_owned(),
            element,
            swap: swap.then_some(number).filter(|number| *number > 1),
            shape: Vec::new(),
            chunk_shape: printed.chunk_shape.clone(),
            codecs: printed
                .codecs
                .as_ref()
                .map(codecs)
                .transpose()?
                .unwrap_or_default(),
            chunks: Vec::new(),
            more: 0,
            absent: None,
        },
        chunks: Vec::new(),
    };
    let decoded = printed.codecs.is_some() || printed.chunks.iter().any(|one| one.codecs.is_some());
    if decoded && printed.chunk_shape.is_none() {
        return Err(
            "\"codecs\" need \"chunk_shape\", the shape that a chunk has when it is decoded"
                .to_owned(),
        );
    }
    let mut counted = 0;
    for (number, chunk) in printed.chunks.iter().enumerate() {
        let named = |why: String| format!("chunk {number}: {why}");
        let (start, shape) = placed(printed, chunk, (element, &mut counted)).map_err(named)?;
        found.chunks.push(ContiguousValues {
            span: chunk.bytes[0][0]..chunk.bytes[0][1],
            start,
            shape,
            stride: None,
            codecs: chunk
                .codecs
                .as_ref()
                .map(codecs)
                .transpose()
                .map_err(named)?,
        });
    }
    found.held.shape = printed.shape.clone().unwrap_or_else(|| vec![counted]);
    Ok(found)
}

/// Returns the first index of a chunk in each dimension and the chunk's shape; `counted` is the number of values in earlier chunks.
fn placed(
    printed: &Printed,
    chunk: &PrintedChunk,
    (element, counted): (u32, &mut u64),
) -> Result<(Vec<u64>, Vec<u64>), String> {
    let [[begin, end]] = chunk.bytes[..] else {
        return Err("a chunk of values has one range of bytes".to_owned());
    };
    let count = |shape: &[u64]| {
        shape
            .iter()
            .try_fold(1_u64, |all, one| all.checked_mul(*one))
    };
    let held = (end - begin) / u64::from(element);
    let shape = match (&chunk.shape, &printed.chunk_shape) {
        (Some(shape), _) => shape.clone(),
        (None, Some(chunk_shape)) => chunk_shape.clone(),
        (None, None) => vec![held],
    };
    let values = count(&shape).filter(|values| *values > 0);
    let values = values.ok_or("its shape has no values")?;
    match &printed.chunk_shape {
        None if values.checked_mul(element.into()) != Some(end - begin) => {
            return Err(format!(
                "{} bytes are not {values} values of {element} bytes",
                end - begin
            ));
        }
        Some(chunk_shape) if !fits(&shape, chunk_shape) => {
            return Err(format!(
                "its shape {shape:?} is not within that of a chunk, {chunk_shape:?}"
            ));
        }
        _ => {}
    }
    let start = match (&chunk.start, &printed.shape) {
        (Some(start), _) => start.clone(),
        (None, None) => vec![*counted],
        (None, Some(_)) => {
            return Err("it has no \"start\", and the variable has a \"shape\"".to_owned());
        }
    };
    *counted = counted
        .checked_add(values)
        .ok_or("there are too many values")?;
    let Some(whole) = &printed.shape else {
        return match start.len() {
            1 if shape.len() == 1 => Ok((start, shape)),
            _ => Err(
                "its indices have several dimensions: give the \"shape\" of the variable"
                    .to_owned(),
            ),
        };
    };
    let inside = start.len() == whole.len() && start.iter().zip(whole).all(|(at, size)| at < size);
    let ends = match shape.len() == whole.len() {
        true => start
            .iter()
            .zip(&shape)
            .zip(whole)
            .all(|((at, count), size)| at.checked_add(*count).is_some_and(|end| end <= *size)),
        // Values in one sequence.
        false => shape.len() == 1 && printed.chunk_shape.is_none() && count(whole).is_some(),
    };
    match inside && ends && whole.len() <= DIMENSIONS_MAX {
        true => Ok((start, shape)),
        false => Err(format!(
            "from {start:?} on, its values {shape:?} are not within the variable's shape {whole:?}"
        )),
    }
}

fn fits(shape: &[u64], chunk_shape: &[u64]) -> bool {
    shape.len() == chunk_shape.len() && shape.iter().zip(chunk_shape).all(|(one, most)| one <= most)
}

/// Returns the size in bytes of a value, and of each number in the value, from numpy's name of the type.
fn sizes(dtype: &str) -> Option<(u32, u8)> {
    let bits = |text: &str, valid: &[u8]| {
        let bits: u8 = text.parse().ok()?;
        valid.contains(&bits).then_some(bits / 8)
    };
    let plain = |size: u8| (u32::from(size), size);
    if dtype == "bool" {
        return Some((1, 1));
    }
    if let Some(text) = dtype.strip_prefix('S') {
        let size = text
            .parse()
            .ok()
            .filter(|size| (1..=TEXT_BYTES_MAX).contains(size))?;
        return Some((size, 1));
    }
    if let Some(text) = dtype.strip_prefix("complex") {
        let size = bits(text, &[64, 128])?;
        return Some((size.into(), size / 2));
    }
    if let Some(text) = dtype.strip_prefix("float") {
        return bits(text, &[16, 32, 64]).map(plain);
    }
    let text = dtype.strip_prefix("uint").or(dtype.strip_prefix("int"))?;
    bits(text, &[8, 16, 32, 64]).map(plain)
}

/// Returns the codec with this name and these arguments.
fn codec(name: &str) -> Result<Codec, String> {
    Ok(match name {
        "gzip" => Codec::Gzip,
        "zlib" => Codec::Zlib,
        "zstd" => Codec::Zstd,
        "blosc" => Codec::Blosc,
        "blosc2" => Codec::Blosc2,
        "lzf" => Codec::Lzf,
        "lz4" => Codec::Lz4(false),
        "bzip2" => Codec::Bzip2,
        "fletcher32" => Codec::Fletcher32,
        "crc32c" => Codec::Crc32c,
        other => {
            let size = other
                .strip_prefix("shuffle:")
                .and_then(|size| size.parse().ok());
            let size = size.filter(|size| *size > 0).ok_or_else(|| {
                format!(
                    "{other:?} can't be decoded: the codecs are gzip, zlib, zstd, blosc, blosc2, lzf, lz4, bzip2, fletcher32, crc32c and shuffle:BYTES"
                )
            })?;
            Codec::Shuffle(size)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_model::id::{NodeId, ObjectId};
    use tidemill_model::layout::{Extent, Extents, Part, PartPosition, StripedLayout};

    const SIZE: u64 = 40_000;

    fn striped() -> Layout {
        let on = |index: usize| {
            let id = u32::try_from(index).unwrap();
            let size = StripedLayout::part_size(4096, 3, SIZE, index);
            Part::on(ObjectId(u64::from(id) + 1), size, NodeId(id))
        };
        Layout::Striped(StripedLayout {
            unit: 4096,
            size: SIZE,
            parts: (0..3).map(on).collect(),
        })
    }

    const GOOD: [&str; 3] = [
        r#"{"version":1,"chunks":[{"bytes":[[0,10],[4090,4100]]},{"bytes":[[8192,8193],[39999,40000]]}]}"#,
        r#"{"version":1,"overlap":true,"dtype":"float32","order":"big","chunks":[{"bytes":[[0,40]]},{"bytes":[[20,44]],"start":[3]}]}"#,
        r#"{"version":1,"variable":"t","dtype":"int16","shape":[4,90],"chunk_shape":[2,50],"codecs":["zlib","shuffle:2"],"chunks":[
            {"bytes":[[100,190]],"start":[0,0]},{"bytes":[[5000,5009]],"start":[2,50],"shape":[2,40],"codecs":["zstd"]}]}"#,
    ];

    /// Each chunk covers all of a file that consists of 2000 extents.
    #[test]
    fn printed_map_crossing_too_many_extents_is_refused() {
        let part = |id: u32| Part::on(ObjectId(u64::from(id) + 1), 1000, NodeId(id));
        let extent = |number: u64| Extent {
            offset: number,
            length: 1,
            at: PartPosition {
                part: usize::from(number % 2 == 1),
                offset: number / 2,
            },
        };
        let parts = vec![part(0), part(1)];
        let extents = Extents::of(2000, parts, (0..2000).map(extent)).unwrap();
        let layout = Layout::Extents(extents);
        let chunks = |count: usize| {
            let chunks = vec![r#"{"bytes":[[0,2000]]}"#; count].join(",");
            format!(r#"{{"version":1,"overlap":true,"chunks":[{chunks}]}}"#)
        };
        map(chunks(500).as_bytes(), &layout, true).unwrap();
        let refused = map(chunks(600).as_bytes(), &layout, true).unwrap_err();
        assert!(refused.contains("more than 1048576 extents"), "{refused}");
        map(chunks(600).as_bytes(), &layout, false).unwrap();
    }

    #[test]
    fn printed_map_chunks_have_exactly_the_printed_byte_ranges() {
        let layout = striped();
        let ranges = |map: &MapperResult| {
            let all = map.instances.iter();
            all.map(|one| {
                let ranges = one.selection.byte_ranges().unwrap();
                (
                    one.number,
                    one.selection.of_part(),
                    ranges.collect::<Vec<_>>(),
                )
            })
            .collect::<Vec<_>>()
        };
        let chunks = map(GOOD[0].as_bytes(), &layout, false).unwrap();
        assert_eq!(
            ranges(&chunks),
            [
                (0, None, vec![0..10, 4090..4100]),
                (1, None, vec![8192..8193, 39_999..40_000]),
            ]
        );
        // The second chunk has equal shares of part 0 and part 2: the first of them receives it.
        let parts = map(GOOD[0].as_bytes(), &layout, true).unwrap();
        let all = vec![0..10, 4090..4100, 8192..8193, 39_999..40_000];
        assert_eq!((ranges(&parts), parts.count), (vec![(0, None, all)], 3));
        let values = map(GOOD[2].as_bytes(), &layout, false).unwrap();
        let held = values.instances[1].selection.values().unwrap();
        let held: VariablePart = serde_json::from_str(held).unwrap();
        assert_eq!(held.codecs, [Codec::Zlib, Codec::Shuffle(2)]);
        assert_eq!(held.chunks[0].codecs, Some(vec![Codec::Zstd]));
        assert_eq!(
            (&held.chunks[0].start, &held.chunks[0].shape),
            (&vec![2, 50], &vec![2, 40])
        );
        // The second chunk begins in stripe 1.
        assert_eq!(values.instances[1].selection.of_part(), Some(1));
    }

    #[test]
    fn printed_map_with_too_many_chunks_is_refused() {
        let of = |count: usize| {
            let chunks = vec![r#"{"bytes":[[0,1]]}"#; count].join(",");
            let text = format!(r#"{{"version":1,"overlap":true,"chunks":[{chunks}]}}"#);
            map(text.as_bytes(), &striped(), false)
        };
        assert_eq!(of(CHUNKS_MAX).unwrap().count, CHUNKS_MAX);
        assert!(of(CHUNKS_MAX + 1).unwrap_err().contains("65537 chunks"));
        assert!(of(0).unwrap_err().contains("no chunks"));
    }

    #[test]
    fn printed_map_of_any_text_never_reads_past_file() {
        let mut random = 3_u64;
        let mut next = move |below: usize| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            usize::try_from(random >> 33).unwrap() % below
        };
        let layout = striped();
        let mut taken = 0;
        for turn in 0..20_000 {
            let mut text = GOOD[turn % GOOD.len()].as_bytes().to_vec();
            for _ in 0..=next(3) {
                let at = next(text.len());
                match next(3) {
                    0 => text[at] = b"0123456789[],:\"-. "[next(18)],
                    1 => drop(text.remove(at)),
                    _ => text.insert(at, b'0' + u8::try_from(next(10)).unwrap()),
                }
            }
            let Ok(map) = map(&text, &layout, next(2) == 0) else {
                continue;
            };
            taken += 1;
            for instance in map.instances {
                let part = instance.selection.of_part();
                let size = part.map_or(SIZE, |part| layout.parts()[part as usize].size);
                let mut ranges = instance.selection.byte_ranges().unwrap();
                assert!(ranges.all(|range| range.start < range.end && range.end <= size));
            }
        }
        assert!(taken > 200, "few of them are maps: {taken}");
    }
}
