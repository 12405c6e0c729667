//! Ranges of a file's coordinates: the smallest and largest value of each variable that has the same name as its only dimension. For long
//! coordinates, only the first and last values are examined, since CF requires an order (CF conventions, section 1.3).

use tidemill_compute::array::{ArrayOperation, ArraySlice, ArraySpec, Codec, Dtype};
use tidemill_format::time::{DateTime, Units};
use tidemill_format::{
    DataKind, DataType, Endian, ExactNumber, FileSpan as Bytes, Filter, Format, Header, IndexRange,
    Storage, Variable, VariableExtent, VariableSource, pieces,
};
use tidemill_meta::index::facts::CoordinateRange;
use tidemill_model::calendar::place_in_time;

/// Maximum number of coordinates examined in a file.
const COORDINATES_MAX: usize = 32;
/// Maximum number of chunks, or records, of a coordinate that is examined as a whole.
const PIECES_MAX: u64 = 4;
/// Maximum size in bytes of a coordinate that is examined as a whole, and of each of its chunks.
const BYTES_MAX: u64 = 64 << 10;
const PIECE_BYTES_MAX: u64 = 4 << 20;

/// Access to the stored bytes of a scientific file or directory.
pub(super) trait Stored {
    /// Reads bytes into `into`; returns `None` if the bytes are unavailable.
    fn read(&self, bytes: &Bytes, into: &mut [u8]) -> Option<()>;
    /// Decodes bytes to little-endian values; returns `None` if decoding fails.
    fn decode(&self, spec: ArraySpec, bytes: &Bytes) -> Option<Vec<u8>>;
    /// Records that bytes of a coordinate are missing and may appear later.
    fn lacks(&self) {}
}

/// Returns the ranges of all readable coordinates. Unreadable coordinates are left out.
pub(super) fn spans(
    header: &Header,
    store: VariableSource<'_>,
    stored: &dyn Stored,
) -> Vec<CoordinateRange> {
    let coordinates = header
        .variables
        .iter()
        .filter(|variable| is_coordinate(variable));
    let mut all = Vec::new();
    for variable in coordinates.take(COORDINATES_MAX) {
        let values = values(header.format, variable, (store, stored)).unwrap_or_default();
        let finite = || values.iter().copied().filter(|value| value.is_finite());
        let (low, high) = (finite().reduce(f64::min), finite().reduce(f64::max));
        if let (Some(low), Some(high)) = (low, high) {
            all.extend(named(variable, (low, high)));
        }
    }
    all
}

fn last_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn is_coordinate(variable: &Variable) -> bool {
    let [dimension] = variable.dimensions.as_slice() else {
        return false;
    };
    let numbers = matches!(
        variable.data_type.kind,
        DataKind::Int | DataKind::Uint | DataKind::Float
    );
    numbers && dimension.size > 0 && last_of(&variable.path) == dimension.name
}

/// Returns the range of a coordinate under the variable's name, its standard name, and the short forms `lat`, `lon` and `time`.
fn named(variable: &Variable, (low, high): (f64, f64)) -> Vec<CoordinateRange> {
    let units = Units::of(variable).ok().flatten();
    let placed = |value: f64| {
        let DateTime { date, seconds } = units?.moment(value)?;
        let place = place_in_time((date.year, date.month, date.day), seconds);
        Some((place, date.to_string()))
    };
    let times = placed(low).zip(placed(high));
    let (is_time, low, high, shown) = match times {
        Some(((from, first), (to, last))) => (true, from, to, (first, last)),
        None if units.is_some() => return Vec::new(),
        None => (false, low, high, (low.to_string(), high.to_string())),
    };
    let standard = variable.text("standard_name");
    let short = match variable.text("units").unwrap_or_default() {
        "degrees_north" | "degree_north" | "degrees_N" => Some("lat"),
        "degrees_east" | "degree_east" | "degrees_E" => Some("lon"),
        _ => is_time.then_some("time"),
    };
    let mut names = vec![last_of(&variable.path)];
    names.extend(standard.into_iter().chain(short));
    names.retain(|name| name.len() <= 256);
    names.sort_unstable();
    names.dedup();
    let span = |name: &str| CoordinateRange {
        name: name.to_owned(),
        is_time,
        low,
        high,
        shown: shown.clone(),
    };
    names.into_iter().map(span).collect()
}

fn values(
    format: Format,
    variable: &Variable,
    (store, stored): (VariableSource<'_>, &dyn Stored),
) -> Option<Vec<f64>> {
    let meaning = variable.meaning(format).ok()?;
    let mut variable = variable.clone();
    variable.data_type.kind = match (variable.data_type.kind, meaning.unsigned) {
        (DataKind::Int | DataKind::Uint, true) => DataKind::Uint,
        (DataKind::Int | DataKind::Uint, false) => DataKind::Int,
        (other, _) => other,
    };
    let variable = &variable;
    let size = variable.dimensions.first()?.size;
    let few = match &variable.storage {
        Storage::Contiguous { .. } => {
            size.checked_mul(variable.data_type.size.into())? <= BYTES_MAX
        }
        Storage::Records { .. } => size <= PIECES_MAX,
        Storage::Chunked(chunked) => size.div_ceil(*chunked.shape.first()?.max(&1)) <= PIECES_MAX,
        Storage::Absent | Storage::Elsewhere(_) => false,
    };
    let wanted = match few {
        true => vec![(0, size)],
        false => vec![(0, 1), (size - 1, size)],
    };
    let mut all = Vec::new();
    for (start, end) in wanted {
        let range = IndexRange {
            start,
            end,
            step: 1,
        };
        for piece in pieces(variable, &[range], store, BYTES_MAX).ok()? {
            all.extend(of_piece(variable, &piece.ok()?, stored)?);
        }
    }
    let values = all.into_iter().filter_map(|one| meaning.value(one));
    Some(values.collect())
}

fn of_piece(
    variable: &Variable,
    piece: &VariableExtent,
    stored: &dyn Stored,
) -> Option<Vec<ExactNumber>> {
    let span = piece.span.as_ref();
    if span.is_none() {
        stored.lacks();
    }
    let span = span.filter(|span| span.size <= PIECE_BYTES_MAX)?;
    let within = piece.within.first()?;
    let filters: &[Filter] = match &variable.storage {
        Storage::Chunked(chunked) => &chunked.filters,
        _ => &[],
    };
    let codecs = codecs(filters, piece.mask)?;
    let data_type = &variable.data_type;
    if codecs.is_empty() {
        let mut bytes = vec![0; usize::try_from(span.size).ok()?];
        stored.read(span, &mut bytes)?;
        let all = numbers(&bytes, data_type)?;
        let (from, to) = (
            usize::try_from(within.start).ok()?,
            usize::try_from(within.end).ok()?,
        );
        return all.get(from..to).map(<[ExactNumber]>::to_vec);
    }
    let selection = ArraySlice {
        start: within.start.cast_signed(),
        end: within.end.cast_signed(),
        stride: 1,
    };
    let spec = ArraySpec {
        operation: ArrayOperation::Select,
        dtype: dtype(data_type)?,
        big_endian: data_type.order == Endian::Big,
        shape: Some(piece.shape.clone()),
        fortran: false,
        axes: None,
        selection: Some(vec![selection]),
        codecs,
        missing: None,
    };
    let values = stored.decode(spec, span)?;
    let little = DataType {
        order: Endian::Little,
        ..data_type.clone()
    };
    numbers(&values, &little)
}

/// Returns the codecs that decode stored bytes: the filters in reverse order, without the filters that the mask excludes.
fn codecs(filters: &[Filter], mask: u32) -> Option<Vec<Codec>> {
    let applied = filters.iter().enumerate().rev();
    let applied = applied.filter(|(place, _)| mask >> (*place).min(31) & 1 == 0);
    applied.map(|(_, filter)| Codec::of(filter)).collect()
}

fn dtype(data_type: &DataType) -> Option<Dtype> {
    Some(match (&data_type.kind, data_type.size) {
        (DataKind::Int, 1) => Dtype::Int8,
        (DataKind::Int, 2) => Dtype::Int16,
        (DataKind::Int, 4) => Dtype::Int32,
        (DataKind::Int, 8) => Dtype::Int64,
        (DataKind::Uint, 1) => Dtype::Uint8,
        (DataKind::Uint, 2) => Dtype::Uint16,
        (DataKind::Uint, 4) => Dtype::Uint32,
        (DataKind::Uint, 8) => Dtype::Uint64,
        (DataKind::Float, 4) => Dtype::Float32,
        (DataKind::Float, 8) => Dtype::Float64,
        _ => return None,
    })
}

/// Returns stored values as numbers; `None` if their type has no native counterpart.
fn numbers(stored: &[u8], data_type: &DataType) -> Option<Vec<ExactNumber>> {
    let size = dtype(data_type)?.size();
    let one = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..size].copy_from_slice(bytes);
        if data_type.order == Endian::Big {
            word[..size].reverse();
        }
        let bits = u64::from_le_bytes(word);
        let unused = 64 - 8 * size;
        match (&data_type.kind, size) {
            (DataKind::Float, 4) => {
                ExactNumber::Real(f32::from_bits(u32::try_from(bits).unwrap_or(0)).into())
            }
            (DataKind::Float, _) => ExactNumber::Real(f64::from_bits(bits)),
            (DataKind::Int, _) => {
                ExactNumber::Whole(((bits << unused).cast_signed() >> unused).into())
            }
            _ => ExactNumber::Whole(bits.into()),
        }
    };
    Some(stored.chunks_exact(size).map(one).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_format::{Attribute, Dimension, Value};

    /// A file whose bytes the test has in memory.
    struct TestFiles(Vec<u8>);

    impl Stored for TestFiles {
        fn read(&self, bytes: &Bytes, into: &mut [u8]) -> Option<()> {
            let begin = usize::try_from(bytes.offset).ok()?;
            into.copy_from_slice(self.0.get(begin..begin + into.len())?);
            Some(())
        }

        fn decode(&self, _: ArraySpec, _: &Bytes) -> Option<Vec<u8>> {
            None
        }
    }

    /// A range excludes the values that `tidemill reduce` excludes, too: missing values and values outside the valid range.
    #[test]
    fn coordinate_range_excludes_missing_and_invalid_values() {
        let big = (1_i64 << 53) + 1;
        let attributes = [
            ("missing_value", Value::Int(vec![big])),
            ("valid_min", Value::Int(vec![-90])),
        ];
        let attribute = |(name, value): (&str, Value)| Attribute {
            name: name.into(),
            value,
        };
        let values = [-9999, -90, 5, big, big - 1];
        let depth = Variable {
            path: "depth".into(),
            dimensions: vec![Dimension {
                name: "depth".into(),
                size: values.len() as u64,
                unlimited: false,
            }],
            data_type: DataType {
                kind: DataKind::Int,
                size: 8,
                order: Endian::Little,
            },
            attributes: attributes.map(attribute).into(),
            storage: Storage::Contiguous { offset: 0 },
            fill: None,
        };
        let header = Header {
            format: Format::Hdf5,
            attributes: Vec::new(),
            groups: Vec::new(),
            variables: vec![depth],
        };
        let here = TestFiles(values.map(i64::to_le_bytes).concat());
        let found = spans(&header, VariableSource::File(&here.0), &here);
        let [span] = &found[..] else {
            panic!("{} spans", found.len());
        };
        assert_eq!((span.low, span.high), (-90.0, 9_007_199_254_740_992.0));
    }
}
