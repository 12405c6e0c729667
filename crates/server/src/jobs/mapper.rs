//! Mappers: they find which bytes of a file hold the values of a variable, and how to decode the bytes. This module reads only headers, by
//! ranges and with bounded readers (`tidemill_format`), and reads no values.

pub(super) mod directory;
mod numbers;
pub(super) mod printed;
mod text;

use crate::files::stream::{SourceNodes, VersionStream};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::time::Duration;
use tidemill_compute::array::{Codec, HeldChunk, VariablePart};
use tidemill_format::{
    Bytes, DataKind, DataType, Endian, Filter, Format, Header, IndexRange as Indices, Storage,
    Variable, VariableSource, columns, pieces, zip::Zip,
};
use tidemill_lang::job::{MappedSelection, MapperResult, Mapping};
use tidemill_model::layout::{Layout, RANGES_MAX, Selection};
use tokio::time::Instant;

/// Maximum time for reading the headers of all inputs of one job.
pub(super) const HEADERS_MAX: Duration = Duration::from_secs(30);
/// Maximum number of chunks of one variable.
const CHUNKS_MAX: usize = 1 << 16;
/// Distance in bytes from which two records become separate chunks.
const APART_BYTES: u64 = 4 << 10;

/// Returns the error message for headers that take too long to read.
pub(super) fn slow() -> String {
    let seconds = HEADERS_MAX.as_secs();
    format!("headers took more than {seconds} s to be read")
}

/// A version whose bytes are read by ranges until a deadline.
pub(super) struct RangedVersion {
    source: VersionStream,
    until: Instant,
}

impl RangedVersion {
    pub(super) fn new(
        nodes: &SourceNodes,
        reading: tidemill_meta::read_pins::ReadVersion,
        until: Instant,
    ) -> Option<Self> {
        let source = VersionStream::new(nodes, reading)?;
        Some(Self { source, until })
    }

    pub(super) fn layout(&self) -> &Layout {
        self.source.layout()
    }
}

impl Bytes for RangedVersion {
    fn size(&self) -> u64 {
        self.layout().size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let end = offset.saturating_add(into.len() as u64);
        let window = tokio::time::timeout_at(self.until, self.source.window(offset..end));
        let bytes = tokio::runtime::Handle::current()
            .block_on(window)
            .map_err(|_| io::Error::other(slow()))?;
        let bytes = bytes.map_err(io::Error::other)?;
        // Bytes that were never written are zero.
        let (there, holes) = into.split_at_mut(bytes.len().min(into.len()));
        there.copy_from_slice(&bytes[..there.len()]);
        holes.fill(0);
        Ok(())
    }
}

/// Contiguous values of a variable in its file.
struct ContiguousValues {
    span: Range<u64>,
    start: Vec<u64>,
    shape: Vec<u64>,
    stride: Option<u64>,
    codecs: Option<Vec<Codec>>,
}

/// Returns the bytes of a file that each task instance reads, for a mapper.
///
/// # Errors
/// The text is for the author of the mapper: it lists the possible mappers or the variables of the file, or names the error in the mapper.
pub(super) fn map(
    bytes: &dyn Bytes,
    layout: &Layout,
    mapping: &Mapping<'_>,
) -> Result<MapperResult, String> {
    let mapper = mapping.mapper;
    let reported = |error: tidemill_format::Error| format!("{mapper}: {error}");
    let (kind, name) = mapper.split_once(':').unwrap_or((mapper, ""));
    if let Some(spec) = name.strip_prefix("csv,").filter(|_| kind == "columns") {
        return text::map(bytes, layout, (spec, mapping)).map_err(|why| format!("{mapper}: {why}"));
    }
    let header = match kind {
        "netcdf" | "hdf5" | "zarr" | "fits" => tidemill_format::read(bytes).map_err(reported)?,
        "columns" => columns::read(name, bytes).map_err(reported)?,
        _ => {
            return Err(format!(
                "{mapper:?} is not a mapper: give \"netcdf:VARIABLE\", \"hdf5:/GROUP/DATASET\", \"zarr:ARRAY\", \"fits:HDU\", \"columns:NAME=TYPE,…\" \"columns:csv,COLUMN\" or \"program:NAME ARGUMENTS\""
            ));
        }
    };
    let variable = chosen(&header, (kind, name)).map_err(|why| format!("{mapper}: {why}"))?;
    let zip = match header.format {
        Format::Zarr(_) => Some(Zip::open(bytes).map_err(reported)?),
        _ => None,
    };
    let store = zip.as_ref().map_or(VariableSource::File(bytes), |zip| {
        VariableSource::Directory(zip)
    });
    let wrong = |why| format!("{mapper}: {why}");
    let form = numbers::input_form(mapping.kernels, variable, header.format).map_err(wrong)?;
    let mut found = MappedVariable::new(variable, layout, store).map_err(wrong)?;
    found.held.absent = form.absent;
    let map = found.map(layout, mapping.per_part).map_err(wrong)?;
    Ok(MapperResult {
        args: form.args,
        ..map
    })
}

/// Returns the variable that the mapper names, from the variables in the file's header.
fn chosen<'a>(header: &'a Header, (kind, name): (&str, &str)) -> Result<&'a Variable, String> {
    let format = match header.format {
        Format::Classic(_) => "netcdf",
        Format::Netcdf4 | Format::Hdf5 => "hdf5",
        Format::Zarr(_) => "zarr",
        Format::Fits => "fits",
        Format::Columns => "columns",
    };
    if format != kind && (format, kind) != ("hdf5", "netcdf") {
        return Err(format!("the file is {format}"));
    }
    match (&header.variables[..], kind) {
        ([one], "columns") => Ok(one),
        (all, "columns") => {
            let names: Vec<_> = all.iter().map(|one| one.path.as_str()).collect();
            Err(format!(
                "a mapper reads one column, not {}: name the others _",
                names.join(", ")
            ))
        }
        _ => header.find(name).map_err(|error| error.to_string()),
    }
}

/// A variable and its chunks.
struct MappedVariable {
    held: VariablePart,
    chunks: Vec<ContiguousValues>,
}

impl MappedVariable {
    fn new(
        variable: &Variable,
        layout: &Layout,
        store: VariableSource<'_>,
    ) -> Result<Self, String> {
        let (dtype, swap) = dtype(&variable.data_type)?;
        let mut found = Self {
            held: VariablePart {
                variable: variable.path.clone(),
                dtype,
                element: variable.data_type.size,
                swap,
                shape: variable.shape(),
                chunk_shape: None,
                codecs: Vec::new(),
                more: 0,
                absent: None,
                chunks: Vec::new(),
            },
            chunks: Vec::new(),
        };
        match &variable.storage {
            Storage::Contiguous { offset } => {
                found.rows((*offset, variable.elements()), 0, layout)?
            }
            Storage::Records { offset, stride } => found.records((*offset, *stride), layout)?,
            Storage::Chunked(chunked) => {
                found.held.chunk_shape = Some(chunked.shape.clone());
                found.held.codecs = codecs(&chunked.filters, 0)?;
                found.chunks(variable, &chunked.filters, store)?;
            }
            Storage::Absent => {}
            Storage::Elsewhere(what) => return Err(format!("{what}, which can't be read")),
        }
        if found.chunks.is_empty() {
            return Err(
                "none of its values were ever written, so there is nothing to read".to_owned(),
            );
        }
        let end = found.chunks.iter().map(|chunk| chunk.span.end).max();
        match end.filter(|end| *end > layout.size()) {
            Some(end) => Err(format!(
                "its values end at byte {end}, and the file at {}: it is truncated or corrupt",
                layout.size()
            )),
            None => Ok(found),
        }
    }

    fn push(&mut self, chunk: ContiguousValues) -> Result<(), String> {
        if self.chunks.len() >= CHUNKS_MAX {
            return Err(format!(
                "it has more than {CHUNKS_MAX} chunks: store it in larger chunks, or stripe the file in larger units"
            ));
        }
        self.chunks.push(chunk);
        Ok(())
    }

    /// Adds contiguous values that start at a byte offset, the first with the value number `first`. Each stripe gets one chunk with the
    /// values that begin in the stripe.
    fn rows(
        &mut self,
        (mut at, count): (u64, u64),
        mut first: u64,
        layout: &Layout,
    ) -> Result<(), String> {
        let size = u64::from(self.held.element);
        let end = first.saturating_add(count);
        while first < end {
            let space = stripe_end(layout, at).saturating_sub(at).div_ceil(size);
            let taken = space.clamp(1, end - first);
            let span = at..at.saturating_add(taken.saturating_mul(size));
            at = span.end;
            let (start, shape) = (indices(first, &self.held.shape), vec![taken]);
            first += taken;
            self.push(ContiguousValues {
                span,
                start,
                shape,
                stride: None,
                codecs: None,
            })?;
        }
        Ok(())
    }

    /// Adds records that are interleaved with records of other variables.
    fn records(&mut self, (offset, stride): (u64, u64), layout: &Layout) -> Result<(), String> {
        let (count, row) = match self.held.shape.split_first() {
            Some((&count, row)) => (count, row.iter().product::<u64>()),
            None => (1, 1),
        };
        let bytes = row.saturating_mul(self.held.element.into());
        if stride == bytes {
            return self.rows((offset, count.saturating_mul(row)), 0, layout);
        }
        let mut index = 0;
        while index < count && bytes > 0 {
            let at = offset.saturating_add(stride.saturating_mul(index));
            if stride > APART_BYTES || stride < bytes {
                self.rows((at, row), index.saturating_mul(row), layout)?;
                index += 1;
                continue;
            }
            let taken = stripe_end(layout, at)
                .saturating_sub(at)
                .div_ceil(stride)
                .clamp(1, count - index);
            let span = at..at
                .saturating_add((taken - 1).saturating_mul(stride))
                .saturating_add(bytes);
            let mut shape = self.held.shape.clone();
            let mut start = vec![0; shape.len()];
            (start[0], shape[0]) = (index, taken);
            self.push(ContiguousValues {
                span,
                start,
                shape,
                stride: Some(stride),
                codecs: None,
            })?;
            index += taken;
        }
        Ok(())
    }

    fn chunks(
        &mut self,
        variable: &Variable,
        filters: &[Filter],
        store: VariableSource<'_>,
    ) -> Result<(), String> {
        let all: Vec<_> = variable.shape().into_iter().map(Indices::all).collect();
        let found = pieces(variable, &all, store, u64::MAX).map_err(|error| error.to_string())?;
        for (looked, chunk) in found.enumerate() {
            // Most chunks of a sparse variable may never have been written.
            if looked >= 16 * CHUNKS_MAX {
                return Err(format!("it has more than {} chunks", 16 * CHUNKS_MAX));
            }
            let chunk = chunk.map_err(|error| error.to_string())?;
            let Some(span) = chunk.span else { continue };
            if let Some(file) = span.file {
                return Err(format!("its bytes are in another file, {file}"));
            }
            let codecs = (chunk.mask != 0)
                .then(|| codecs(filters, chunk.mask))
                .transpose()?;
            self.push(ContiguousValues {
                span: span.offset..span.offset.saturating_add(span.size),
                start: chunk.at,
                shape: chunk.within.iter().map(Indices::count).collect(),
                stride: None,
                codecs,
            })?;
        }
        Ok(())
    }

    /// Returns the selection of bytes that each task instance reads.
    fn map(&self, layout: &Layout, per_part: bool) -> Result<MapperResult, String> {
        if !per_part {
            let one = |(number, chunk)| {
                let selection = self.selection(layout, &[chunk])?;
                Ok(MappedSelection { number, selection })
            };
            let instances = self
                .chunks
                .iter()
                .enumerate()
                .map(one)
                .collect::<Result<Vec<_>, String>>()?;
            let count = instances.len();
            return Ok(MapperResult {
                instances,
                count,
                ..MapperResult::default()
            });
        }
        let mut parts: BTreeMap<usize, Vec<&ContiguousValues>> = BTreeMap::new();
        let mut lookups = Lookups::new(layout);
        for chunk in &self.chunks {
            let spans = lookups.spans(chunk.span.clone())?;
            // The part with the most bytes; among equal parts the first.
            let most = spans
                .iter()
                .rev()
                .max_by_key(|(_, bytes)| bytes.end - bytes.start);
            parts
                .entry(most.map_or(0, |(part, _)| *part))
                .or_default()
                .push(chunk);
        }
        let one = |(number, chunks): (usize, Vec<&ContiguousValues>)| {
            let selection = self
                .selection(layout, &chunks)
                .map_err(|why| format!("part {number}: {why}"))?;
            Ok(MappedSelection { number, selection })
        };
        let instances = parts.into_iter().map(one).collect::<Result<_, String>>()?;
        let count = layout.parts().len();
        Ok(MapperResult {
            instances,
            count,
            ..MapperResult::default()
        })
    }

    /// Returns the byte ranges of some chunks, with the description of how to decode their values.
    fn selection(
        &self,
        layout: &Layout,
        chunks: &[&ContiguousValues],
    ) -> Result<Selection, String> {
        let within = |chunk: &&ContiguousValues| within_part(layout, &chunk.span);
        let parts: Option<Vec<_>> = chunks.iter().map(within).collect();
        let (part, spans) = match parts.filter(|all| all.iter().all(|(part, _)| *part == all[0].0))
        {
            Some(all) if matches!(layout, Layout::Striped(_)) => {
                let part = u32::try_from(all[0].0).map_err(|error| error.to_string())?;
                (Some(part), all.into_iter().map(|(_, span)| span).collect())
            }
            _ => (
                None,
                chunks
                    .iter()
                    .map(|chunk| chunk.span.clone())
                    .collect::<Vec<_>>(),
            ),
        };
        let mut ranges = joined(spans.clone());
        if ranges.len() > RANGES_MAX && (part.is_some() || layout.parts().len() == 1) {
            join_near(&mut ranges);
        }
        let mut held = self.held.clone();
        held.chunks = chunks
            .iter()
            .zip(spans)
            .map(|(chunk, span)| HeldChunk {
                start: chunk.start.clone(),
                shape: chunk.shape.clone(),
                offset: place(&ranges, span.start),
                length: span.end - span.start,
                stride: chunk.stride,
                codecs: chunk.codecs.clone(),
            })
            .collect();
        let text = serde_json::to_string(&held).map_err(|error| error.to_string())?;
        let selection =
            Selection::ranges(part, &ranges).and_then(|bytes| bytes.of_values(Some(&text)));
        selection.map_err(|error| error.to_string())
    }
}

/// Returns the end of the stripe that contains the byte at offset `at`.
fn stripe_end(layout: &Layout, at: u64) -> u64 {
    match layout {
        Layout::Striped(striped) if striped.parts.len() > 1 => {
            (at / striped.unit + 1).saturating_mul(striped.unit)
        }
        Layout::Striped(_) | Layout::Whole(_) | Layout::Extents(_) => u64::MAX,
    }
}

/// Translates a byte range of the file to a byte range of one part, if one part has all of the bytes.
fn within_part(layout: &Layout, span: &Range<u64>) -> Option<(usize, Range<u64>)> {
    match &layout.spans(span.clone())[..] {
        [(part, within)] if within.end - within.start == span.end - span.start => {
            Some((*part, within.clone()))
        }
        _ => None,
    }
}

/// Returns the ranges in order, with overlapping or adjacent ranges merged.
fn joined(mut spans: Vec<Range<u64>>) -> Vec<Range<u64>> {
    spans.sort_unstable_by_key(|span| span.start);
    let mut ranges: Vec<Range<u64>> = Vec::with_capacity(spans.len());
    for span in spans {
        match ranges.last_mut() {
            Some(last) if span.start <= last.end => last.end = last.end.max(span.end),
            _ => ranges.push(span),
        }
    }
    ranges
}

/// Reduces the number of ranges to the allowed maximum by merging the ranges with the smallest gaps between them.
fn join_near(ranges: &mut Vec<Range<u64>>) {
    let mut gaps: Vec<u64> = ranges
        .windows(2)
        .map(|pair| pair[1].start - pair[0].end)
        .collect();
    gaps.sort_unstable();
    let read = gaps[ranges.len() - RANGES_MAX - 1];
    let mut kept: Vec<Range<u64>> = Vec::with_capacity(RANGES_MAX);
    for range in ranges.drain(..) {
        match kept.last_mut() {
            Some(last) if range.start - last.end <= read => last.end = range.end,
            _ => kept.push(range),
        }
    }
    *ranges = kept;
}

/// Returns the offset of a byte in the concatenation of these ranges.
fn place(ranges: &[Range<u64>], at: u64) -> u64 {
    let before = ranges.iter().take_while(|range| range.end <= at);
    let skipped: u64 = before.clone().map(|range| range.end - range.start).sum();
    ranges
        .get(before.count())
        .map_or(skipped, |range| skipped + at - range.start)
}

/// Returns the index along each dimension of the value with this number in row-major order.
fn indices(mut number: u64, shape: &[u64]) -> Vec<u64> {
    let mut indices = vec![0; shape.len()];
    for (index, &size) in indices.iter_mut().zip(shape).rev() {
        *index = number % size.max(1);
        number /= size.max(1);
    }
    indices
}

/// Returns numpy's name of a data type; if the byte order differs from this machine's, also the size in bytes of each number to swap.
fn dtype(of: &DataType) -> Result<(String, Option<u8>), String> {
    let bits = of.size.saturating_mul(8);
    let (name, number) = match (&of.kind, of.size) {
        (DataKind::Int, 1 | 2 | 4 | 8) => (format!("int{bits}"), of.size),
        (DataKind::Uint, 1 | 2 | 4 | 8) => (format!("uint{bits}"), of.size),
        (DataKind::Float, 2 | 4 | 8) => (format!("float{bits}"), of.size),
        (DataKind::Complex, 8 | 16) => (format!("complex{bits}"), of.size / 2),
        (DataKind::Bool, 1) => ("bool".to_owned(), 1),
        (DataKind::Text, size @ 1..) => (format!("S{size}"), 1),
        (kind, size) => {
            return Err(format!(
                "values of {size} bytes ({kind:?}) can't be read as an array"
            ));
        }
    };
    let native = if cfg!(target_endian = "big") {
        Endian::Big
    } else {
        Endian::Little
    };
    let swap = (of.order != native && number > 1).then(|| u8::try_from(number).unwrap_or(0));
    Ok((name, swap))
}

/// Returns the codecs that undo these filters, except the filters that the mask excludes.
fn codecs(filters: &[Filter], mask: u32) -> Result<Vec<Codec>, String> {
    let applied = filters.iter().enumerate();
    let applied = applied.filter(|(index, _)| {
        mask.checked_shr(u32::try_from(*index).unwrap_or(32))
            .unwrap_or(0)
            & 1
            == 0
    });
    let mut codecs = Vec::new();
    for (_, filter) in applied.rev() {
        if let Filter::Transpose { order } = filter
            && order.iter().zip(0..).all(|(one, place)| *one == place)
        {
            continue;
        }
        codecs.push(Codec::of(filter).ok_or_else(|| {
            format!("it was stored with {filter:?}, which can't be decoded here")
        })?);
    }
    Ok(codecs)
}

/// Maximum number of extents that one map may cross, counted once for each chunk.
const EXTENTS_MAX: usize = 1 << 20;

/// Translates byte ranges of the file to byte ranges of parts, with a limit on the extents for all chunks of a map.
struct Lookups<'a> {
    layout: &'a Layout,
    left: usize,
}

impl<'a> Lookups<'a> {
    fn new(layout: &'a Layout) -> Self {
        let left = EXTENTS_MAX;
        Self { layout, left }
    }

    fn spans(&mut self, bytes: Range<u64>) -> Result<Vec<(usize, Range<u64>)>, String> {
        let crossed = match self.layout {
            Layout::Whole(_) | Layout::Striped(_) => 1,
            Layout::Extents(_) => {
                let segments = self.layout.segments(bytes.clone());
                segments.take(self.left + 1).count()
            }
        };
        let left = self.left.checked_sub(crossed);
        self.left = left.ok_or_else(|| {
            format!(
                "the chunks cross more than {EXTENTS_MAX} extents of a file that several mounts wrote: name fewer chunks, or copy the file and map the copy"
            )
        })?;
        Ok(self.layout.spans(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value as Json;
    use std::path::{Path, PathBuf};
    use tidemill_model::id::{NodeId, ObjectId};
    use tidemill_model::layout::{Part, StripedLayout};

    pub(super) fn fixtures() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../format/tests/fixtures")
    }

    /// Returns the layout of a file that is striped over `width` nodes, or of one object if `width` is 0.
    pub(super) fn file_layout(size: u64, unit: u64, width: usize) -> Layout {
        let on = |index: usize| {
            let id = u32::try_from(index).unwrap();
            let size = StripedLayout::part_size(unit, width, size, index);
            Part::on(ObjectId(u64::from(id) + 1), size, NodeId(id))
        };
        match width {
            0 => Layout::Whole(Part::on(ObjectId(1), size, NodeId(0))),
            _ => Layout::Striped(StripedLayout {
                unit,
                size,
                parts: (0..width).map(on).collect(),
            }),
        }
    }

    /// Returns the mapping of a variable for a task whose kernel is not built-in.
    pub(super) fn plain(mapper: &str, per_part: bool) -> Mapping<'_> {
        Mapping {
            mapper,
            per_part,
            kernels: &[],
        }
    }

    /// Returns the bytes that nodes read for the selection of a task instance.
    fn gathered(file: &[u8], layout: &Layout, selection: &Selection) -> Vec<u8> {
        let at = |offset: u64| usize::try_from(offset).unwrap();
        let part = selection.of_part().map(|part| part as usize);
        let whole = part.map(|part| {
            let segments = layout.segments_of(part, 0..u64::MAX);
            let bytes = segments
                .iter()
                .flat_map(|segment| &file[at(segment.offset)..][..at(segment.length)]);
            bytes.copied().collect::<Vec<u8>>()
        });
        let from = whole.as_deref().unwrap_or(file);
        let ranges = selection.byte_ranges().unwrap();
        ranges
            .flat_map(|range| from[at(range.start)..at(range.end)].to_vec())
            .collect()
    }

    /// Puts the values of task instances into the array of the variable, each place at most once. Returns the number of places filled.
    fn put_together(
        map: &MapperResult,
        file: &[u8],
        layout: &Layout,
        into: &mut [Option<Vec<u8>>],
    ) -> usize {
        let mut put = 0;
        for instance in &map.instances {
            let held: VariablePart =
                serde_json::from_str(instance.selection.values().unwrap()).unwrap();
            let mut values = Vec::new();
            held.decode(&gathered(file, layout, &instance.selection), &mut values)
                .unwrap();
            let mut values = values.chunks(held.element as usize);
            for chunk in &held.chunks {
                let strides: Vec<u64> = (0..held.shape.len())
                    .map(|one| held.shape[one + 1..].iter().product())
                    .collect();
                let first: u64 = chunk
                    .start
                    .iter()
                    .zip(&strides)
                    .map(|(index, stride)| index * stride)
                    .sum();
                for number in 0..chunk.shape.iter().product::<u64>() {
                    let is_run = chunk.shape.len() != held.shape.len();
                    let within = indices(number, &chunk.shape);
                    let moved = within
                        .iter()
                        .zip(&strides)
                        .map(|(index, stride)| index * stride)
                        .sum();
                    let place = first + if is_run { number } else { moved };
                    let value = values.next().unwrap().to_vec();
                    let before = into[usize::try_from(place).unwrap()].replace(value);
                    assert!(before.is_none(), "{place} of {} twice", held.variable);
                    put += 1;
                }
            }
            assert!(values.next().is_none(), "{}", held.variable);
        }
        put
    }

    fn bytes_of(hex: &str) -> Vec<u8> {
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(byte).collect()
    }

    #[test]
    fn kernel_and_core_crates_have_equal_names_of_arguments() {
        assert_eq!(tidemill_compute::PARTIAL, tidemill_lang::job::PARTIAL);
        assert_eq!(tidemill_compute::MERGE, tidemill_lang::job::MERGE);
    }

    /// Returns the name of the mapper for the format of a fixture file.
    fn kind(name: &str) -> &str {
        match name.rsplit_once('.').unwrap().1 {
            "nc" => "netcdf",
            "zip" => "zarr",
            "h5" => "hdf5",
            other => other,
        }
    }

    /// Returns all values of a variable as the reference libraries read them; `None` if the libraries could not read them.
    pub(super) fn expected(variable: &Json) -> Option<Vec<u8>> {
        let all = &variable["selections"][0];
        let taken = all["ranges"]
            .as_array()?
            .iter()
            .map(|range| (&range[0], &range[1]));
        let sizes = variable["dimensions"].as_array()?.iter().map(|one| &one[1]);
        let whole = taken
            .zip(sizes)
            .all(|((start, end), size)| *start == 0 && end == size);
        Some(bytes_of(all["hex"].as_str().filter(|_| whole)?))
    }

    /// Maps a variable for every layout of its file and compares the values with the expected values; returns the differences.
    fn compared(file: &[u8], mapper: &str, expected: &[u8]) -> Vec<String> {
        let (mut wrong, bytes) = (Vec::new(), file.to_vec());
        for (unit, width) in [(0, 0), (4096, 1), (4096, 3), (100, 2), (24, 7), (7, 3)] {
            let layout = file_layout(file.len() as u64, unit, width);
            for per_part in [true, false] {
                let mapping = plain(mapper, per_part);
                let map = match map(&bytes, &layout, &mapping) {
                    Ok(map) => map,
                    Err(why) => {
                        wrong.push(why);
                        continue;
                    }
                };
                let held = map.instances[0].selection.values().unwrap();
                let held: VariablePart = serde_json::from_str(held).unwrap();
                let size = held.element as usize;
                let mut found = vec![None; expected.len() / size];
                let put = put_together(&map, file, &layout, &mut found);
                for (found, expected) in found.iter().zip(expected.chunks(size)) {
                    let same = found.as_deref().is_none_or(|found| found == expected);
                    assert!(same, "{mapper} in stripes of {unit} over {width}");
                }
                if put < found.len() {
                    wrong.push(format!("{mapper}: {put} of {}", found.len()));
                }
            }
        }
        wrong.sort();
        wrong.dedup();
        wrong
    }

    /// Compares every variable of every fixture with the values that the reference libraries read, for all stripings of the file, per part
    /// and per chunk.
    #[test]
    fn mapped_task_instances_hold_values_that_libraries_read() {
        let (mut right, mut wrong) = (0, Vec::new());
        for name in [
            "cdf1.nc",
            "cdf1-one-record.nc",
            "cdf5.nc",
            "netcdf4.nc",
            "netcdf4-classic.nc",
            "new.h5",
            "old.h5",
            "images.fits",
            "three.zarr.zip",
        ] {
            let file = std::fs::read(fixtures().join(name)).unwrap();
            let reported = std::fs::read(fixtures().join(format!("{name}.json"))).unwrap();
            let reported: Json = serde_json::from_slice(&reported).unwrap();
            for variable in reported["variables"].as_array().unwrap() {
                let Some(expected) = expected(variable) else {
                    continue;
                };
                let mapper = format!("{}:{}", kind(name), variable["path"].as_str().unwrap());
                let found = compared(&file, &mapper, &expected);
                right += usize::from(found.is_empty());
                wrong.extend(found.into_iter().map(|why| format!("{name} {why}")));
            }
        }
        assert!(right >= 122, "{right} {wrong:#?}");
        // Unwritten chunks are stored nowhere, and some filters have no decoder.
        let sparse = [
            "netcdf:short: 16 of 40",
            "zarr:tas: 60 of 90",
            "zarr:first: 12 of 20",
            "zarr:group/sharded: 48 of 90",
        ];
        let known = |why: &&String| {
            ["can't be decoded here", "were ever written"]
                .iter()
                .any(|known| why.contains(known))
                || sparse.iter().any(|known| why.ends_with(known))
        };
        let unknown: Vec<_> = wrong.iter().filter(|why| !known(why)).collect();
        assert!(unknown.is_empty(), "{unknown:#?}");
    }

    /// A writer that accepts a limited number of bytes.
    struct Space(usize);

    impl io::Write for Space {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self
                .0
                .checked_sub(bytes.len())
                .ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Changes a few bytes of each fixture. With any resulting header, mapping ends and reads nothing beyond the end of the file.
    #[test]
    fn mapper_never_reads_past_file_for_any_corrupt_header() {
        let mut random = 7_u64;
        let mut next = move |below: usize| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            usize::try_from(random >> 33).unwrap() % below
        };
        let cases = [
            ("cdf1.nc", "netcdf:f4_3t"),
            ("cdf5.nc", "netcdf:u8_1t"),
            ("netcdf4.nc", "netcdf:deflated"),
            ("old.h5", "hdf5:deflated"),
            ("images.fits", "fits:0"),
            ("three.zarr.zip", "zarr:tas"),
        ];
        for (name, mapper) in cases {
            let good = std::fs::read(fixtures().join(name)).unwrap();
            for _ in 0..200 {
                let mut file = good.clone();
                for _ in 0..=next(4) {
                    let at = next(file.len());
                    file[at] = [0, 0xff, 0x7f, 1 << next(8)][next(4)];
                }
                file.truncate(file.len() - next(2) * next(file.len()));
                let layout = file_layout(file.len() as u64, 100, 3);
                let mapping = plain(mapper, next(2) == 0);
                for instance in map(&file, &layout, &mapping)
                    .into_iter()
                    .flat_map(|map| map.instances)
                {
                    let held: VariablePart =
                        serde_json::from_str(instance.selection.values().unwrap()).unwrap();
                    // Undecodable values return an error; decodable values are written until the space is used up.
                    let _ = held.decode(
                        &gathered(&file, &layout, &instance.selection),
                        &mut Space(1 << 24),
                    );
                }
            }
        }
    }
}
