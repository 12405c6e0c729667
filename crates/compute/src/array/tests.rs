//! Compares reductions of arrays with a plain model: indices one by one, in `f64`, which represents all values and sums of these tests
//! exactly.

#![allow(clippy::float_cmp, reason = "results are exact")]

use super::codec::{crc32c, fletcher32};
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const DTYPES: [Dtype; 10] = [
    Dtype::Int8,
    Dtype::Int16,
    Dtype::Int32,
    Dtype::Int64,
    Dtype::Uint8,
    Dtype::Uint16,
    Dtype::Uint32,
    Dtype::Uint64,
    Dtype::Float32,
    Dtype::Float64,
];

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the values are small"
)]
fn bytes_of(value: f64, dtype: Dtype, big_endian: bool) -> Vec<u8> {
    let mut bytes = match dtype {
        Dtype::Float32 => (value as f32).to_le_bytes().to_vec(),
        Dtype::Float64 => value.to_le_bytes().to_vec(),
        // The high bits of two's complement are cut off.
        _ => (value as i64).to_le_bytes()[..dtype.size()].to_vec(),
    };
    if big_endian {
        bytes.reverse();
    }
    bytes
}

fn values_of(bytes: &[u8], dtype: Dtype) -> Vec<f64> {
    use crate::loops::number::Number;
    with_type!(dtype, T => bytes.chunks(dtype.size()).map(|value| T::read(value).to_f64()).collect())
}

/// Applies the inverse of `codecs`, as the writer of the array does.
fn store(raw: &[u8], codecs: &[Codec]) -> Vec<u8> {
    let level = libdeflater::CompressionLvl::new(1).unwrap();
    let mut bytes = raw.to_vec();
    for codec in codecs.iter().rev() {
        let mut packer = libdeflater::Compressor::new(level);
        let mut packed = vec![0; bytes.len() * 2 + 100];
        bytes = match codec {
            Codec::Gzip => {
                let length = packer.gzip_compress(&bytes, &mut packed).unwrap();
                packed[..length].to_vec()
            }
            Codec::Zlib => {
                let length = packer.zlib_compress(&bytes, &mut packed).unwrap();
                packed[..length].to_vec()
            }
            Codec::Zstd => zstd::bulk::compress(&bytes, 1).unwrap(),
            Codec::Blosc | Codec::Blosc2 | Codec::Lzf | Codec::Bitshuffle { .. } => unreachable!(),
            Codec::Shuffle(size) => {
                let (size, whole) = (usize::from(*size), bytes.len() / usize::from(*size));
                let plane = |byte: usize| bytes[..whole * size].iter().skip(byte).step_by(size);
                let mut shuffled: Vec<u8> = (0..size).flat_map(plane).copied().collect();
                shuffled.extend(&bytes[whole * size..]);
                shuffled
            }
            Codec::Crc32c => [bytes.as_slice(), &crc32c(&bytes).to_le_bytes()].concat(),
            Codec::Lz4(false) => {
                let length = u32::try_from(bytes.len()).unwrap().to_le_bytes();
                [&length[..], &lz4_flex::block::compress(&bytes)].concat()
            }
            Codec::Lz4(true) => {
                let mut blocks = (bytes.len() as u64).to_be_bytes().to_vec();
                blocks.extend(100_u32.to_be_bytes());
                for block in bytes.chunks(100) {
                    let packed = lz4_flex::block::compress(block);
                    let packed = if packed.len() < block.len() {
                        &packed
                    } else {
                        block
                    };
                    blocks.extend(u32::try_from(packed.len()).unwrap().to_be_bytes());
                    blocks.extend(packed);
                }
                blocks
            }
            Codec::Bzip2 => {
                let mut packer =
                    bzip2::read::BzEncoder::new(bytes.as_slice(), bzip2::Compression::fast());
                let mut packed = Vec::new();
                std::io::Read::read_to_end(&mut packer, &mut packed).unwrap();
                packed
            }
            Codec::Fletcher32 => {
                let sum = fletcher32(&bytes).to_le_bytes();
                [bytes.as_slice(), &sum].concat()
            }
        };
    }
    bytes
}

fn python(slice: ArraySlice, length: i64) -> Vec<u64> {
    let clamp = |index: i64, low: i64, high: i64| {
        (if index < 0 { index + length } else { index }).clamp(low, high)
    };
    let (low, high) = if slice.stride > 0 {
        (0, length)
    } else {
        (-1, length - 1)
    };
    let (mut at, end) = (clamp(slice.start, low, high), clamp(slice.end, low, high));
    let mut taken = Vec::new();
    while if slice.stride > 0 { at < end } else { at > end } {
        taken.push(u64::try_from(at).unwrap());
        at += slice.stride;
    }
    taken
}

/// Returns all indices of a box with these lengths; the last index varies fastest.
fn indices(lengths: &[usize]) -> Vec<Vec<usize>> {
    lengths.iter().fold(vec![Vec::new()], |all, length| {
        let longer =
            |index: Vec<usize>| (0..*length).map(move |last| [index.as_slice(), &[last]].concat());
        all.into_iter().flat_map(longer).collect()
    })
}

fn is_missing(missing: Option<&Missing>, value: f64) -> bool {
    let number = |literal: &Literal| literal.to_string().parse::<f64>().unwrap();
    match missing {
        None => false,
        Some(Missing::Values(values)) => values.iter().any(|one| number(one) == value),
        Some(Missing::Outside(least, most)) => {
            least.is_some_and(|least| value < number(&least))
                || most.is_some_and(|most| value > number(&most))
        }
    }
}

/// Returns the expected values and counts, by the index in the result.
fn model(spec: &ArraySpec, at: impl Fn(&[u64]) -> f64) -> (Vec<f64>, Vec<i64>, Vec<u64>) {
    let shape = spec.shape.clone().unwrap();
    let all = |length: &u64| (0..*length).collect::<Vec<_>>();
    let taken: Vec<Vec<u64>> = match &spec.selection {
        None => shape.iter().map(all).collect(),
        Some(slices) => {
            let lengths = shape.iter().map(|length| i64::try_from(*length).unwrap());
            slices
                .iter()
                .zip(lengths)
                .map(|(slice, length)| python(*slice, length))
                .collect()
        }
    };
    let selects = spec.operation == ArrayOperation::Select;
    let reduced = |axis: usize| match &spec.axes {
        _ if selects => false,
        None => true,
        Some(axes) => axes.contains(&u32::try_from(axis).unwrap()),
    };
    let kept: Vec<usize> = (0..shape.len()).filter(|axis| !reduced(*axis)).collect();
    let lengths: Vec<usize> = taken.iter().map(Vec::len).collect();
    let result: Vec<usize> = kept.iter().map(|axis| lengths[*axis]).collect();
    let mut cells: BTreeMap<Vec<usize>, Vec<f64>> = BTreeMap::new();
    for index in indices(&lengths) {
        let value = at(&(0..index.len())
            .map(|axis| taken[axis][index[axis]])
            .collect::<Vec<_>>());
        let cell: Vec<usize> = kept.iter().map(|axis| index[*axis]).collect();
        cells.entry(cell).or_default().push(value);
    }
    let as_array = spec.fortran
        && (selects || (spec.axes == Some(vec![]) && spec.operation != ArrayOperation::Count));
    let mut order = indices(&result);
    if as_array {
        order.sort_by_key(|index| index.iter().rev().copied().collect::<Vec<_>>());
    }
    let raw = selects || spec.axes == Some(vec![]);
    let (mut values, mut counts) = (Vec::new(), Vec::new());
    for index in order {
        let all = cells.remove(&index).unwrap_or_default();
        let there = all
            .iter()
            .copied()
            .filter(|value| !is_missing(spec.missing.as_ref(), *value));
        let count = i64::try_from(there.clone().count()).unwrap();
        counts.push(count);
        values.push(match spec.operation {
            #[allow(clippy::cast_precision_loss, reason = "it is small")]
            ArrayOperation::Count => count as f64,
            _ if raw => all[0],
            ArrayOperation::Sum => there.sum(),
            ArrayOperation::Min if count > 0 => there.fold(f64::INFINITY, f64::min),
            ArrayOperation::Max if count > 0 => there.fold(f64::NEG_INFINITY, f64::max),
            operation => of_none(spec.dtype, operation == ArrayOperation::Max),
        });
    }
    if selects {
        counts = vec![counts.iter().sum()];
    }
    let result = result.iter().map(|length| *length as u64).collect();
    (values, counts, result)
}

fn of_none(dtype: Dtype, max: bool) -> f64 {
    use super::pass::Adds;
    use crate::loops::number::Number;
    with_type!(dtype, T => (if max { <T as Adds>::LEAST } else { <T as Adds>::MOST }).to_f64())
}

fn slices(shape: Vec<u64>) -> impl Strategy<Value = Vec<ArraySlice>> {
    let slice = |length: u64| {
        let end = i64::try_from(length).unwrap() + 2;
        let stride = prop_oneof![3 => Just(1_i64), 1 => Just(-1), 2 => -7_i64..8]
            .prop_filter("not 0", |stride| *stride != 0);
        let ends = (
            prop_oneof![Just(0), -end..end],
            prop_oneof![Just(end), -end..end],
        );
        (ends, stride).prop_map(|((start, end), stride)| ArraySlice { start, end, stride })
    };
    shape.into_iter().map(slice).collect::<Vec<_>>()
}

fn codecs(size: usize) -> impl Strategy<Value = Vec<Codec>> {
    let size = u8::try_from(size).unwrap();
    prop_oneof![
        Just(vec![]),
        Just(vec![Codec::Gzip]),
        Just(vec![Codec::Shuffle(size)]),
        Just(vec![Codec::Zlib, Codec::Shuffle(size)]),
        Just(vec![Codec::Fletcher32, Codec::Zlib, Codec::Shuffle(size)]),
        Just(vec![Codec::Zstd, Codec::Fletcher32, Codec::Shuffle(3)]),
        Just(vec![Codec::Crc32c, Codec::Lz4(true)]),
        Just(vec![Codec::Crc32c, Codec::Bzip2, Codec::Shuffle(2)]),
        Just(vec![Codec::Lz4(false), Codec::Shuffle(4)]),
        Just(vec![
            Codec::Gzip,
            Codec::Zlib,
            Codec::Shuffle(3),
            Codec::Shuffle(size)
        ]),
    ]
}

fn missing() -> impl Strategy<Value = Option<Missing>> {
    let value = || (0_i64..40).prop_map(Literal::Int);
    prop_oneof![
        3 => Just(None),
        1 => value().prop_map(|one| Some(Missing::Values(vec![one]))),
        1 => proptest::collection::vec(value(), 0..5).prop_map(|all| Some(Missing::Values(all))),
        1 => value().prop_map(|least| Some(Missing::Outside(Some(least), None))),
        1 => value().prop_map(|most| Some(Missing::Outside(None, Some(most)))),
        1 => (0_i64..20, 20_i64..40).prop_map(|(least, most)| {
            Some(Missing::Outside(Some(Literal::Int(least)), Some(Literal::Int(most))))
        }),
    ]
}

fn shapes() -> impl Strategy<Value = Vec<u64>> {
    prop_oneof![
        4 => proptest::collection::vec(1_u64..7, 1..5),
        1 => (1_u64..4, 1_u64..4, 1_u64..9000).prop_map(|(a, b, c)| vec![a, b, c]),
        1 => (1_u64..9000, 1_u64..3).prop_map(|(a, b)| vec![a, b]),
    ]
}

prop_compose! {
    fn specs()(shape in shapes(), dtype in proptest::sample::select(&DTYPES[..]))(
        operation in proptest::sample::select(&[
            ArrayOperation::Count, ArrayOperation::Min, ArrayOperation::Max, ArrayOperation::Sum, ArrayOperation::Select,
        ][..]),
        selection in proptest::option::of(slices(shape.clone())),
        axes in proptest::option::of(proptest::sample::subsequence(
            (0..u32::try_from(shape.len()).unwrap()).collect::<Vec<_>>(), 0..=shape.len(),
        )),
        codecs in codecs(dtype.size()),
        missing in missing(),
        (big_endian, fortran) in any::<(bool, bool)>(),
        (shape, dtype) in Just((shape, dtype)),
    ) -> ArraySpec {
        ArraySpec { operation, dtype, big_endian, shape: Some(shape), fortran, axes, selection, codecs, missing }
    }
}

/// Array of pseudorandom values, with their positions.
struct Array {
    stored: Vec<u8>,
    values: Vec<f64>,
    strides: Vec<u64>,
}

impl Array {
    fn of(spec: &ArraySpec, seed: u64) -> Self {
        let shape = spec.shape.clone().unwrap();
        let count: u64 = shape.iter().product();
        let value = |place: u64| {
            let mixed = (place + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            f64::from(u8::try_from(mixed % 40).unwrap())
        };
        let values: Vec<f64> = (0..count).map(value).collect();
        let raw = values
            .iter()
            .flat_map(|value| bytes_of(*value, spec.dtype, spec.big_endian));
        let raw: Vec<u8> = raw.collect();
        let mut strides = vec![1; shape.len()];
        let axes: Vec<usize> = (0..shape.len()).collect();
        let axes: Vec<usize> = match spec.fortran {
            true => axes,
            false => axes.into_iter().rev().collect(),
        };
        let mut stride = 1;
        for axis in axes {
            strides[axis] = stride;
            stride *= shape[axis];
        }
        Self {
            stored: store(&raw, &spec.codecs),
            values,
            strides,
        }
    }

    fn at(&self, index: &[u64]) -> f64 {
        let place: u64 = index
            .iter()
            .zip(&self.strides)
            .map(|(at, stride)| at * stride)
            .sum();
        self.values[usize::try_from(place).unwrap()]
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn array_reduction_matches_model_for_any_spec(spec in specs(), seed in any::<u32>()) {
        let array = Array::of(&spec, seed.into());
        let (values, counts, shape) = model(&spec, |index| array.at(index));
        let found = Reducer::default().reduce(&spec, &array.stored).unwrap();
        prop_assert_eq!(&found.shape, &shape);
        prop_assert_eq!(&found.counts, &counts);
        let expected = if spec.operation == ArrayOperation::Count { Dtype::Int64 } else { spec.dtype };
        prop_assert_eq!(found.dtype, expected);
        // Sums of small types wrap: the high bits of the model's sums are cut off.
        let cut = |value: f64| match spec.operation {
            ArrayOperation::Sum => values_of(&bytes_of(value, expected, false), expected)[0],
            _ => value,
        };
        let values: Vec<f64> = values.into_iter().map(cut).collect();
        prop_assert_eq!(values_of(&found.bytes, found.dtype), values);
    }

    #[test]
    fn merged_states_of_array_pieces_equal_whole_reduction(spec in specs(), seed in any::<u32>(), cut in any::<usize>()) {
        // The reduced dimension is the first of an array in C order.
        let spec = ArraySpec { fortran: false, selection: None, codecs: vec![], axes: None, ..spec };
        prop_assume!(spec.operation != ArrayOperation::Select);
        let array = Array::of(&spec, seed.into());
        let shape = spec.shape.clone().unwrap();
        let rows = usize::try_from(shape[0]).unwrap();
        let row = array.stored.len() / rows;
        let cut = cut % (rows + 1);
        let mut all: Option<ArrayState> = None;
        for (range, length) in [(0..cut, cut), (cut..rows, rows - cut)] {
            if length == 0 {
                continue;
            }
            let piece = [&[length as u64], &shape[1..]].concat();
            let part = ArraySpec { shape: Some(piece), ..spec.clone() };
            let bytes = &array.stored[range.start * row..range.end * row];
            let state = Reducer::default().fold(&part, bytes).unwrap();
            let sent = postcard::to_allocvec(&state).unwrap();
            let state: ArrayState = postcard::from_bytes(&sent).unwrap();
            match &mut all {
                None => all = Some(state),
                Some(all) => all.merge(&state).unwrap(),
            }
        }
        let whole = Reducer::default().reduce(&spec, &array.stored).unwrap();
        prop_assert_eq!(all.unwrap().finish(), whole);
    }

    #[test]
    fn array_reduction_refuses_corrupt_bytes_or_bounds_memory(
        spec in specs(), seed in any::<u32>(), at in any::<usize>(), bit in 0..8, cut in any::<bool>(),
    ) {
        let mut array = Array::of(&spec, seed.into());
        let place = at % array.stored.len();
        if cut {
            array.stored.truncate(place);
        } else {
            array.stored[place] ^= 1_u8 << bit;
        }
        let mut reducer = Reducer::default();
        let checked = spec.codecs.iter().any(|codec| {
            matches!(codec, Codec::Gzip | Codec::Zlib | Codec::Fletcher32)
        });
        let found = reducer.reduce(&spec, &array.stored);
        // The next reduction uses the same buffers.
        let whole = Array::of(&spec, seed.into());
        let right = reducer.reduce(&spec, &whole.stored).unwrap();
        match found {
            Err(error) => prop_assert!(error.is_of_data(), "{}", error),
            // Some bits of headers have no meaning.
            Ok(found) => prop_assert!(!cut && (!checked || found == right)),
        }
    }

    #[test]
    fn array_reduction_accepts_or_refuses_any_spec(
        shape in proptest::option::of(proptest::collection::vec(any::<u64>(), 0..4)),
        axes in proptest::option::of(proptest::collection::vec(any::<u32>(), 0..3)),
        ends in proptest::option::of(proptest::collection::vec(any::<[i64; 3]>(), 0..4)),
        stored in proptest::collection::vec(any::<u8>(), 0..100),
        codec in proptest::sample::select(&[Codec::Gzip, Codec::Zstd, Codec::Blosc2, Codec::Shuffle(0)][..]),
        small in any::<bool>(),
    ) {
        let shape = shape.map(|shape| match small {
            true => shape.iter().map(|length| length % 5).collect(),
            false => shape,
        });
        let slice = |[start, end, stride]: [i64; 3]| ArraySlice { start, end, stride };
        let spec = ArraySpec {
            shape,
            axes,
            selection: ends.map(|ends| ends.into_iter().map(slice).collect()),
            codecs: if small { vec![] } else { vec![codec] },
            ..plain(ArrayOperation::Sum, Dtype::Uint8)
        };
        let _ = Reducer::default().reduce(&spec, &stored);
        if let Some(length) = spec.shape.as_ref().filter(|_| small).map(|shape| shape.iter().product::<u64>()) {
            let _ = Reducer::default().reduce(&spec, &vec![1; usize::try_from(length).unwrap()]);
        }
    }
}

fn plain(operation: ArrayOperation, dtype: Dtype) -> ArraySpec {
    ArraySpec {
        operation,
        dtype,
        big_endian: false,
        shape: None,
        fortran: false,
        axes: None,
        selection: None,
        codecs: vec![],
        missing: None,
    }
}

fn floats(operation: ArrayOperation, values: &[f64], missing: Option<Missing>) -> (f64, i64) {
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    let spec = ArraySpec {
        missing,
        ..plain(operation, Dtype::Float64)
    };
    let found = Reducer::default().reduce(&spec, &bytes).unwrap();
    (values_of(&found.bytes, found.dtype)[0], found.counts[0])
}

#[test]
fn array_reduction_treats_nan_and_infinity_as_documented() {
    let (nan, infinity) = (f64::NAN, f64::INFINITY);
    let above_0 = Some(Missing::Outside(Some(Literal::Int(0)), None));
    assert!(
        floats(ArrayOperation::Max, &[1.0, nan, 2.0], None)
            .0
            .is_nan()
    );
    assert!(floats(ArrayOperation::Min, &[nan, 1.0], None).0.is_nan());
    assert!(
        floats(ArrayOperation::Sum, &[nan, 1.0], above_0.clone())
            .0
            .is_nan()
    );
    assert_eq!(
        floats(ArrayOperation::Sum, &[nan, 1.0, -1.0], above_0.clone()).1,
        2
    );
    assert_eq!(
        floats(ArrayOperation::Count, &[nan, 1.0, -1.0], above_0),
        (1.0, 1)
    );
    assert_eq!(
        floats(ArrayOperation::Sum, &[infinity, 1.0], None).0,
        infinity
    );
    assert!(
        floats(ArrayOperation::Sum, &[infinity, -infinity], None)
            .0
            .is_nan()
    );
    assert_eq!(floats(ArrayOperation::Max, &[-infinity], None).0, -infinity);
    let only_1 = Some(Missing::Values(vec![Literal::Float(1.0)]));
    assert_eq!(
        floats(ArrayOperation::Max, &[1.0, 1.0], only_1.clone()),
        (f64::MIN, 0)
    );
    assert_eq!(floats(ArrayOperation::Sum, &[1.0, nan], only_1).1, 1);
}

#[test]
fn compensated_sums_are_close_to_exact() {
    // One large value, and many that a plain sum would lose one by one.
    let values: Vec<f64> = std::iter::once(1e16)
        .chain(std::iter::repeat_n(1.0, 1 << 20))
        .collect();
    assert_eq!(
        floats(ArrayOperation::Sum, &values, None).0,
        1e16 + f64::from(1 << 20)
    );
    let ones: Vec<u8> = std::iter::repeat_n(1.0_f32.to_le_bytes(), 20_000_000)
        .flatten()
        .collect();
    let found = Reducer::default()
        .reduce(&plain(ArrayOperation::Sum, Dtype::Float32), &ones)
        .unwrap();
    assert_eq!(values_of(&found.bytes, Dtype::Float32), [2e7]);
}

#[test]
fn integer_sums_wrap_in_their_type() {
    for (dtype, values, sum) in [
        (Dtype::Int8, vec![127_i64, 1], -128_i64),
        (
            Dtype::Int32,
            vec![i64::from(i32::MAX), 1],
            i64::from(i32::MIN),
        ),
        (Dtype::Int64, vec![i64::MAX, 1], i64::MIN),
        (Dtype::Int64, vec![i64::MAX, i64::MIN, 5], 4),
    ] {
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes()[..dtype.size()].to_vec())
            .collect();
        let found = Reducer::default()
            .reduce(&plain(ArrayOperation::Sum, dtype), &bytes)
            .unwrap();
        assert_eq!(found.bytes, &sum.to_le_bytes()[..dtype.size()], "{dtype}");
    }
}

#[test]
fn fletcher32_matches_hdf5() {
    // libhdf5 stores this checksum after these bytes.
    assert_eq!(fletcher32(b"abcde"), 0x4ff0_29c7);
    let raw = [1_u8, 2, 3, 4, 5, 6, 7, 8];
    let spec = ArraySpec {
        shape: Some(vec![8]),
        codecs: vec![Codec::Fletcher32],
        ..plain(ArrayOperation::Sum, Dtype::Uint8)
    };
    let mut stored = store(&raw, &spec.codecs);
    assert_eq!(
        Reducer::default().reduce(&spec, &stored).unwrap().bytes,
        [36]
    );
    // Old libraries wrote the checksum in this order.
    stored[8..].reverse();
    stored[8..].rotate_left(2);
    assert!(Reducer::default().reduce(&spec, &stored).is_ok());
    stored[9] ^= 1;
    let wrong = Reducer::default().reduce(&spec, &stored).unwrap_err();
    assert!(matches!(wrong, ArrayError::Checksum { .. }), "{wrong}");
}

#[test]
fn array_reduction_refuses_invalid_spec_before_reading() {
    let spec = |shape: &[u64]| ArraySpec {
        shape: Some(shape.to_vec()),
        ..plain(ArrayOperation::Sum, Dtype::Float64)
    };
    let why = |spec: &ArraySpec| ArrayPlan::new(spec).unwrap_err();
    assert_eq!(why(&spec(&[])), ArrayError::Dimensions(0));
    assert_eq!(why(&spec(&[2, 0])), ArrayError::EmptyDimension(1));
    assert_eq!(why(&spec(&[u64::MAX, 9])), ArrayError::TooLarge);
    assert_eq!(why(&spec(&[1 << 30])), ArrayError::TooLarge);
    let axes = |axes: &[u32]| ArraySpec {
        axes: Some(axes.to_vec()),
        ..spec(&[2, 3])
    };
    assert_eq!(
        why(&axes(&[2])),
        ArrayError::Axis {
            axis: 2,
            dimensions: 2
        }
    );
    assert_eq!(why(&axes(&[1, 0])), ArrayError::AxesOrder);
    assert_eq!(why(&axes(&[1, 1])), ArrayError::AxesOrder);
    let bits = Codec::Bitshuffle {
        element: 4,
        block: 0,
        packed: 9,
    };
    let unknown = ArraySpec {
        codecs: vec![bits],
        ..spec(&[2])
    };
    assert!(why(&unknown).to_string().contains("bitshuffle"));
    let missing = |missing| ArraySpec {
        missing: Some(missing),
        ..plain(ArrayOperation::Sum, Dtype::Int8)
    };
    for bad in [
        Literal::Int(128),
        Literal::Float(1.5),
        Literal::Uint(u64::MAX),
    ] {
        let refused = why(&missing(Missing::Values(vec![bad])));
        assert!(matches!(refused, ArrayError::Missing { .. }), "{refused}");
    }
    let empty = Missing::Outside(Some(Literal::Int(3)), Some(Literal::Int(3)));
    assert_eq!(
        why(&missing(empty)),
        ArrayError::EmptyRange("3".into(), "3".into())
    );
}

#[test]
fn array_reduction_refuses_missing_value_outside_dtype() {
    // A whole float is an integer; floats cannot represent all integers.
    let as_type = |dtype, literal| {
        let spec = ArraySpec {
            missing: Some(Missing::Values(vec![literal])),
            ..plain(ArrayOperation::Sum, dtype)
        };
        ArrayPlan::new(&spec).map(drop)
    };
    let odd = (1 << 53) + 1;
    for (dtype, literal, is_good) in [
        (Dtype::Int8, Literal::Float(-128.0), true),
        (Dtype::Int8, Literal::Float(f64::NAN), false),
        (Dtype::Int64, Literal::Int(odd), true),
        (
            Dtype::Int64,
            Literal::Float(-9_223_372_036_854_775_808.0),
            false,
        ),
        (Dtype::Uint64, Literal::Uint(u64::MAX), true),
        (
            Dtype::Uint64,
            Literal::Float(18_446_744_073_709_551_616.0),
            false,
        ),
        (Dtype::Float64, Literal::Int(odd), false),
        (Dtype::Float64, Literal::Int(odd - 1), true),
        (Dtype::Float32, Literal::Int(16_777_217), false),
        (Dtype::Float32, Literal::Float(0.1), true),
        (Dtype::Float32, Literal::Float(1e-60), false),
        (Dtype::Float32, Literal::Float(1e300), false),
        (Dtype::Float64, Literal::Float(f64::INFINITY), false),
    ] {
        assert_eq!(
            as_type(dtype, literal).is_ok(),
            is_good,
            "{dtype} {literal:?}"
        );
    }
}

#[test]
fn decompression_bomb_stops_at_array_size() {
    let zeros = vec![0; 64 << 20];
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    for codec in [Codec::Gzip, Codec::Zlib, Codec::Zstd] {
        let stored = store(&zeros, &[codec]);
        let spec = ArraySpec {
            shape: Some(vec![1000]),
            codecs: vec![codec],
            ..plain(ArrayOperation::Sum, Dtype::Int32)
        };
        let refused = Reducer::default().reduce(&spec, &stored).unwrap_err();
        assert!(matches!(refused, ArrayError::Corrupt { .. }), "{refused}");
        let open = ArraySpec {
            shape: None,
            ..spec
        };
        assert_eq!(
            Reducer::default().reduce(&open, &stored).unwrap().counts,
            [16 << 20]
        );
    }
}
