//! Compares reductions with a plain model: indices one by one, in whole numbers, whose sums are exact in `f64`.

#![allow(clippy::float_cmp, reason = "results are exact")]

use super::bins::Binning;
use super::ranks::QuantileSearch;
use super::state::{CellNumbers, CellSums, real, total};
use super::*;
use crate::array::{Dtype, Literal};
use crate::work::StoredBytes as Stored;
use proptest::prelude::*;
use tidemill_format::{FileSpan, IndexRange, VariableExtent};

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

#[allow(clippy::cast_possible_truncation, reason = "the values are small")]
fn bytes_of(value: i32, dtype: Dtype, big_endian: bool) -> Vec<u8> {
    let mut bytes = match dtype {
        Dtype::Float32 => (value as f32).to_le_bytes().to_vec(),
        Dtype::Float64 => f64::from(value).to_le_bytes().to_vec(),
        _ => i64::from(value).to_le_bytes()[..dtype.size()].to_vec(),
    };
    if big_endian {
        bytes.reverse();
    }
    bytes
}

type Cells = (Vec<u64>, Vec<u64>);

/// One dimension of a case: its length, selection, target, and the size of its chunks.
#[derive(Clone, Debug)]
struct Side {
    length: u64,
    range: IndexRange,
    target: DimensionTarget,
    chunk: u64,
}

fn side() -> impl Strategy<Value = Side> {
    (1..9_u64, 1..4_u64, 0..3_u8, 1..5_u64, any::<u64>()).prop_flat_map(
        |(length, step, kind, chunk, seed)| {
            (0..length).prop_map(move |start| {
                let range = IndexRange {
                    start,
                    end: length,
                    step,
                };
                let groups = (0..range.count())
                    .map(|at| u32::try_from((at ^ seed) % 3).unwrap())
                    .collect();
                let target = match kind {
                    0 => DimensionTarget::Reduced,
                    1 => DimensionTarget::Kept(0),
                    _ => DimensionTarget::Grouped(groups),
                };
                Side {
                    length,
                    range,
                    target,
                    chunk,
                }
            })
        },
    )
}

#[derive(Clone, Debug)]
struct Case {
    sides: Vec<Side>,
    dtype: Dtype,
    big_endian: bool,
    seed: u32,
    missing: Vec<i32>,
    /// Whether the valid range of values has bounds.
    bounded: bool,
    weighted: Option<usize>,
}

fn case() -> impl Strategy<Value = Case> {
    let sides = prop::collection::vec(side(), 0..4);
    let missing = prop::collection::vec(0..30_i32, 0..4);
    (
        sides,
        0..DTYPES.len(),
        any::<bool>(),
        any::<u32>(),
        missing,
        any::<bool>(),
        prop::option::of(0..4_usize),
    )
        .prop_map(
            |(sides, dtype, big_endian, seed, missing, bounded, weighted)| {
                let weighted = weighted.filter(|dimension| *dimension < sides.len());
                Case {
                    sides,
                    dtype: DTYPES[dtype],
                    big_endian,
                    seed,
                    missing,
                    bounded,
                    weighted,
                }
            },
        )
}

impl Case {
    fn value(&self, index: u64) -> i32 {
        let mixed = (u32::try_from(index).unwrap() ^ self.seed).wrapping_mul(2_654_435_761) >> 9;
        i32::try_from(mixed % 60).unwrap()
    }

    fn task(&self) -> ReductionTask {
        let weights = |dimension: usize| {
            (0..self.sides[dimension].range.count())
                .map(weight)
                .collect()
        };
        ReductionTask {
            dtype: self.dtype,
            big_endian: self.big_endian,
            filters: Vec::new(),
            order: None,
            fill: bytes_of(3, self.dtype, self.big_endian),
            keep: KeepRule {
                missing: self
                    .missing
                    .iter()
                    .map(|one| Literal::Int((*one).into()))
                    .collect(),
                least: self.bounded.then_some(Literal::Float(0.5)),
                most: self.bounded.then_some(Literal::Int(55)),
            },
            wants: WantedResults {
                sum: true,
                extremes: true,
                moments: true,
            },
            targets: self.sides.iter().map(|side| side.target.clone()).collect(),
            counted: None,
            weights: self
                .weighted
                .map(|dimension| (u32::try_from(dimension).unwrap(), weights(dimension))),
        }
    }

    /// Returns the shape of the case's result.
    fn shape(&self) -> Vec<u64> {
        let length = |side: &Side| match &side.target {
            DimensionTarget::Reduced => None,
            DimensionTarget::Kept(_) => Some(side.range.count()),
            DimensionTarget::Grouped(_) => Some(3),
        };
        self.sides.iter().filter_map(length).collect()
    }

    /// Returns the values of each cell, and the values' weights.
    fn model(&self) -> Vec<Vec<(i32, f64)>> {
        let cells: u64 = self.shape().iter().product();
        let mut found = vec![Vec::new(); usize::try_from(cells).unwrap()];
        let counts: Vec<u64> = self.sides.iter().map(|side| side.range.count()).collect();
        for number in 0..counts.iter().product::<u64>() {
            let (mut left, mut at) = (number, vec![0; counts.len()]);
            for dimension in (0..counts.len()).rev() {
                at[dimension] = left % counts[dimension];
                left /= counts[dimension];
            }
            let (mut index, mut cell, mut weighs) = (0, 0, 1.0);
            for (dimension, (side, at)) in self.sides.iter().zip(&at).enumerate() {
                index = index * side.length + side.range.start + at * side.range.step;
                match &side.target {
                    DimensionTarget::Reduced => {}
                    DimensionTarget::Kept(_) => cell = cell * side.range.count() + at,
                    DimensionTarget::Grouped(groups) => {
                        cell = cell * 3 + u64::from(groups[usize::try_from(*at).unwrap()])
                    }
                }
                if self.weighted == Some(dimension) {
                    weighs = weight(*at);
                }
            }
            let value = self.value(index);
            let within = !self.bounded || (1..=55).contains(&value);
            if within && !self.missing.contains(&value) {
                found[usize::try_from(cell).unwrap()].push((value, weighs));
            }
        }
        found
    }

    fn empty(&self, task: &ReductionTask) -> BoxState {
        let whole = !matches!(self.dtype, Dtype::Float32 | Dtype::Float64);
        BoxState::empty(self.shape(), whole, task.wants, task.weights.is_some())
    }

    /// Folds chunk by chunk, each into its own box, and merges the states.
    fn fold(&self, mut all: BoxState, task: impl Fn(&Cells) -> ReductionTask) -> BoxState {
        let grid: Vec<u64> = self
            .sides
            .iter()
            .map(|side| side.length.div_ceil(side.chunk))
            .collect();
        for number in 0..grid.iter().product::<u64>() {
            let Some((item, stored)) = self.chunk(number, &grid) else {
                continue;
            };
            let cells = self.task().cells(&item);
            let mut folding = BoxFold::new(task(&cells), cells).unwrap();
            folding.add(&item, &stored).unwrap();
            let state = folding.finish();
            let sent: BoxState =
                postcard::from_bytes(&postcard::to_allocvec(&state).unwrap()).unwrap();
            all.merge(&sent).unwrap();
        }
        all
    }

    fn chunk(&self, number: u64, grid: &[u64]) -> Option<(ReductionItem, Vec<u8>)> {
        let mut item = ReductionItem {
            chunk: number,
            bytes: Vec::new(),
            mask: 0,
            shape: Vec::new(),
            stride: None,
            within: Vec::new(),
            at: Vec::new(),
        };
        let mut left = number;
        let mut lows = Vec::new();
        for (side, count) in self.sides.iter().zip(grid).rev() {
            let low = left % count * side.chunk;
            left /= count;
            let length = side.chunk.min(side.length - low);
            let before = |index: u64| {
                index
                    .saturating_sub(side.range.start)
                    .div_ceil(side.range.step)
                    .min(side.range.count())
            };
            let (first, last) = (before(low), before(low + length));
            if first >= last {
                return None;
            }
            let start = side.range.start + first * side.range.step - low;
            let end = start + (last - first - 1) * side.range.step + 1;
            item.shape.insert(0, length);
            item.within.insert(
                0,
                IndexRange {
                    start,
                    end,
                    step: side.range.step,
                },
            );
            item.at.insert(0, first);
            lows.insert(0, low);
        }
        let count: u64 = item.shape.iter().product();
        let mut stored = Vec::new();
        for value in 0..count {
            let (mut left, mut index, mut stride) = (value, 0, 1);
            for dimension in (0..lows.len()).rev() {
                index += (left % item.shape[dimension] + lows[dimension]) * stride;
                left /= item.shape[dimension];
                stride *= self.sides[dimension].length;
            }
            stored.extend(bytes_of(self.value(index), self.dtype, self.big_endian));
        }
        item.bytes = vec![Stored::Sent(stored.len() as u64)];
        Some((item, stored))
    }
}

/// Returns a weight; sums of these weights times small numbers are exact.
fn weight(at: u64) -> f64 {
    [0.5, 1.0, 0.25, 2.0][usize::try_from(at % 4).unwrap()]
}

/// Returns a quantile of sorted values, after scaling the values.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is a place"
)]
fn sorted_quantile(
    values: &[(i32, f64)],
    (scale, offset): (f64, f64),
    quantile: f64,
) -> Option<f64> {
    let value = |(value, _): &(i32, f64)| f64::from(*value) * scale + offset;
    let mut sorted: Vec<f64> = values.iter().map(value).collect();
    sorted.sort_by(f64::total_cmp);
    let place = quantile * state::count(sorted.len().checked_sub(1)? as u64);
    let (low, high) = (
        sorted[place.floor() as usize],
        sorted[place.ceil() as usize],
    );
    let far = place - place.floor();
    Some(if far < 0.5 {
        low + (high - low) * far
    } else {
        high - (high - low) * (1.0 - far)
    })
}

/// Checks quantiles that are found pass by pass, with `space` bytes for counters.
fn check_quantiles(case: &Case, space: usize, unpack: Option<(f64, f64)>) {
    let quantiles = [0.0, 1.0 / 3.0, 0.5, 0.99, 1.0];
    let mut task = case.task();
    (task.wants, task.weights) = (WantedResults::default(), None);
    let shape = case.shape();
    let kind = (case.dtype, unpack.is_some());
    let mut search = QuantileSearch::new(&quantiles, kind, shape.iter().product(), space).unwrap();
    loop {
        let mut all = case.empty(&task);
        all.counters = vec![0; all.counts.len() * search.counters()];
        let digits = |cells: &Cells| Some(Counted::Digits(search.digits(unpack, cells, &shape)));
        let found = case.fold(all, |cells| ReductionTask {
            counted: digits(cells),
            ..task.clone()
        });
        if !search.next(&found).unwrap() {
            break;
        }
    }
    let found = search.values();
    for (cell, values) in case.model().iter().enumerate() {
        for (quantile, found) in quantiles.iter().zip(&found) {
            assert_eq!(
                found[cell],
                sorted_quantile(values, unpack.unwrap_or((1.0, 0.0)), *quantile),
                "{case:?}"
            );
        }
    }
}

/// Checks counts of values between edges, found pass by pass, against a search of all edges.
fn check_histogram(case: &Case, wanted: WantedBins, unpack: Option<(f64, f64)>) {
    let mut task = case.task();
    (task.wants, task.weights) = (WantedResults::default(), None);
    let mut binning = Binning::new(wanted, case.shape().iter().product()).unwrap();
    let (edges, found) = loop {
        let edges = binning.edges();
        let task = ReductionTask {
            wants: WantedResults {
                extremes: edges.is_none(),
                ..WantedResults::default()
            },
            counted: edges.map(|edges| Counted::Bins(Bins { unpack, edges })),
            ..task.clone()
        };
        let mut all = case.empty(&task);
        all.counters = vec![0; edges.map_or(0, |edges| all.counts.len() * edges.counters())];
        let mut found = case.fold(all, |_| task.clone());
        if let (None, Some((scale, offset))) = (edges, unpack) {
            found = found.unpacked(scale, offset);
        }
        if !binning.next(&found).unwrap() {
            break (edges.unwrap(), found);
        }
    };
    let (scale, offset) = unpack.unwrap_or((1.0, 0.0));
    let model = case.model();
    let value = |(value, _): &(i32, f64)| f64::from(*value) * scale + offset;
    let all: Vec<f64> = model.iter().flatten().map(value).collect();
    let ends = edges.lower_ends();
    let (low, high) = (ends[1], ends[ends.len() - 1]);
    let least = all.iter().copied().reduce(f64::min).unwrap_or(0.0);
    let most = all.iter().copied().reduce(f64::max).unwrap_or(1.0);
    let between = match wanted.between {
        Some(between) => between,
        None if least < most => (least, most),
        None => (least - 0.5, least + 0.5),
    };
    assert_eq!((low, high), between);
    let bins = ends.len() - 2;
    for (bin, end) in ends[1..=bins].iter().enumerate() {
        let expected = bin as f64 * ((high - low) / bins as f64) + low;
        assert_eq!(*end, expected);
    }
    for (cell, values) in model.iter().enumerate() {
        let mut expected = vec![0; bins + 2];
        for value in values.iter().map(value) {
            let place = match value {
                _ if value < low => 0,
                _ if value > high => bins + 1,
                _ => ends
                    .iter()
                    .rposition(|end| *end <= value)
                    .unwrap()
                    .min(bins),
            };
            expected[place] += 1;
        }
        let counters = &found.counters[cell * (bins + 2)..(cell + 1) * (bins + 2)];
        assert_eq!(counters, expected, "{case:?}");
    }
}

/// Checks sums alone, which the product computes in separate loops.
fn check_sums(case: &Case, model: &[Vec<(i32, f64)>]) {
    let mut task = case.task();
    (task.wants.extremes, task.wants.moments) = (false, false);
    task.weights = None;
    let state = case.fold(case.empty(&task), |_| task.clone());
    for (cell, values) in model.iter().enumerate() {
        let sum = match &state.sums {
            CellSums::Whole(all) => real(all[cell]),
            CellSums::Real(all) => total(all[cell]),
            CellSums::None => f64::NAN,
        };
        let expected: i32 = values.iter().map(|(value, _)| value).sum();
        assert_eq!(state.counts[cell], values.len() as u64, "{case:?}");
        assert_eq!(sum, f64::from(expected), "{case:?}");
    }
}

fn check(case: &Case) {
    let task = case.task();
    let state = case.fold(case.empty(&task), |_| task.clone());
    let found = case.model();
    check_sums(case, &found);
    for (cell, values) in found.iter().enumerate() {
        assert_eq!(state.counts[cell], values.len() as u64, "{case:?}");
        let sum = match &state.sums {
            CellSums::Whole(all) => real(all[cell]),
            CellSums::Real(all) => total(all[cell]),
            CellSums::None => f64::NAN,
        };
        let weights = |(value, weighs): &(i32, f64)| {
            f64::from(*value)
                * if case.weighted.is_some() {
                    *weighs
                } else {
                    1.0
                }
        };
        assert_eq!(sum, values.iter().map(weights).sum::<f64>());
        if case.weighted.is_some() {
            assert_eq!(
                state.weights[cell],
                values.iter().map(|(_, weighs)| weighs).sum::<f64>()
            );
        }
        let Some(low) = values.iter().map(|(value, _)| *value).min() else {
            continue;
        };
        let high = values.iter().map(|(value, _)| *value).max().unwrap();
        let extremes = [0, 1].map(|which| match &state.extremes[which] {
            CellNumbers::Whole(all) => real(all[cell]),
            CellNumbers::Real(all) => all[cell],
            CellNumbers::None => f64::NAN,
        });
        assert_eq!(extremes, [f64::from(low), f64::from(high)]);
        let count = state::count(values.len() as u64);
        let mean = values
            .iter()
            .map(|(value, _)| f64::from(*value))
            .sum::<f64>()
            / count;
        let squares: f64 = values
            .iter()
            .map(|(value, _)| (f64::from(*value) - mean).powi(2))
            .sum();
        assert!((state.moments[cell].0 - mean).abs() <= 1e-12 * mean);
        assert!((state.moments[cell].1 - squares).abs() <= 1e-12 * squares.max(1.0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn variable_reduction_matches_model_for_any_case(case in case()) {
        check(&case);
    }

    /// Quantiles that are found in any number of digits match sorted values.
    #[test]
    fn reduction_quantiles_match_sorted_values(
        case in case(),
        space in prop_oneof![1..4096_usize, Just(1 << 20)],
        unpack in prop::option::of((prop_oneof![Just(-0.5), Just(0.25)], -3.0..3.0)),
    ) {
        check_quantiles(&case, space, unpack);
    }

    /// The edges of the histogram are given or computed, and the values are packed or not.
    #[test]
    fn reduction_histogram_matches_plain_search_of_edges(
        case in case(),
        bins in prop_oneof![1..12_u32, Just(1000)],
        between in prop::option::of((-20.0..40.0_f64, prop_oneof![Just(1.0), Just(30.0), 0.001..50.0_f64])),
        unpack in prop::option::of((prop_oneof![Just(-0.5), Just(0.1)], -3.0..3.0)),
    ) {
        let between = between.map(|(low, far)| (low, low + far));
        check_histogram(&case, WantedBins { bins, between }, unpack);
    }

    /// Pieces that are cut at any byte have the same values at the same places. No piece longer than one value crosses an end.
    #[test]
    fn pieces_cut_at_any_byte_have_values_of_whole_variable(
        shape in prop::collection::vec(1..6_u64, 1..4),
        step in 1..3_u64,
        mut ends in prop::collection::vec(1..2000_u64, 0..8),
    ) {
        const SIZE: u64 = 8;
        let size = shape.iter().product::<u64>() * SIZE;
        ends.retain(|end| *end < size);
        ends.sort_unstable();
        ends.dedup();
        let within: Vec<IndexRange> = shape.iter().map(|length| IndexRange { start: 0, end: *length, step }).collect();
        let span = FileSpan { file: None, offset: 100, size };
        let whole = VariableExtent { chunk: 0, span: Some(span), mask: 0, at: vec![0; shape.len()], stride: None, within, shape };
        let ends: Vec<u64> = ends.into_iter().map(|end| end + 100).collect();
        let mut places = Vec::new();
        for piece in cut(&whole, &ends) {
            let span = piece.span.clone().unwrap();
            let crossed = ends.iter().any(|end| span.offset < *end && *end < span.offset + span.size);
            prop_assert!(!crossed || span.size == SIZE);
            prop_assert_eq!(span.size, piece.shape.iter().product::<u64>() * SIZE);
            places.extend(indices(&piece, SIZE));
        }
        places.sort_unstable();
        let mut expected = indices(&whole, SIZE);
        expected.sort_unstable();
        prop_assert_eq!(places, expected);
    }

    /// Any item that a client may send is folded or refused.
    #[test]
    fn box_fold_accepts_or_refuses_any_item(
        case in case(),
        numbers in prop::collection::vec(prop_oneof![0..9_u64, any::<u64>()], 16),
        stored in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut task = case.task();
        let rank = task.targets.len();
        let next = |place: usize| numbers[place % numbers.len()];
        let range = |place: usize| IndexRange { start: next(place), end: next(place + 1), step: next(place + 2) };
        let item = ReductionItem {
            chunk: 0,
            bytes: vec![Stored::Sent(stored.len() as u64); usize::from(next(3) % 2 == 0)],
            mask: 0,
            shape: (0..rank).map(next).collect(),
            stride: Some(next(5)).filter(|stride| stride % 2 == 0),
            within: (0..rank).map(range).collect(),
            at: (0..rank).map(|place| next(place + 7)).collect(),
        };
        let cells = case.shape();
        let small = |place: usize| u32::try_from(next(place) % 80).unwrap();
        task.counted = match next(2) % 3 {
            0 => None,
            1 => Some(Counted::Digits(Digits {
                real: None,
                below: small(8),
                bits: small(9),
                ranks: u32::try_from(next(10) % (1 << 32)).unwrap(),
                known: vec![next(11); usize::try_from(next(12) % 40).unwrap()],
            })),
            // The bits of any numbers.
            _ => {
                let edges = (f64::from_bits(next(13)), f64::from_bits(next(14)), next(15));
                let sent = postcard::to_allocvec(&(1_u32, Some((next(8) as f64, f64::from_bits(next(9)))), edges)).unwrap();
                postcard::from_bytes(&sent).ok()
            }
        };
        if let Ok(mut folding) = BoxFold::new(task, (cells.iter().map(|_| next(9) % 2).collect(), cells)) {
            let _ = folding.add(&item, &stored);
        }
    }
}

/// Returns the position of each value in the file, and its place in the selection.
fn indices(piece: &VariableExtent, size: u64) -> Vec<(u64, Vec<u64>)> {
    let counts: Vec<u64> = piece.within.iter().map(IndexRange::count).collect();
    let mut all = Vec::new();
    for number in 0..counts.iter().product::<u64>() {
        let (mut left, mut place, mut stride) = (number, piece.span.as_ref().unwrap().offset, size);
        let mut at = vec![0; counts.len()];
        for dimension in (0..counts.len()).rev() {
            let index = left % counts[dimension];
            left /= counts[dimension];
            at[dimension] = piece.at[dimension] + index;
            place +=
                (piece.within[dimension].start + index * piece.within[dimension].step) * stride;
            stride *= piece.shape[dimension];
        }
        all.push((place, at));
    }
    all
}

#[test]
fn dimension_selection_parses_ranges_steps_and_times() {
    use super::query::{DimensionSelection, IndexSelection};
    let one = |text: &str| DimensionSelection::parse(text).unwrap().remove(0);
    let values = |low: &str, high: &str| IndexSelection::Values(low.into(), high.into());
    assert_eq!(one("lat=30:60").what, values("30", "60"));
    assert_eq!(one("lat=-30..60::2").step, 2);
    assert_eq!(
        one("time=1990-01..1999-12").what,
        values("1990-01", "1999-12")
    );
    assert_eq!(
        one("time=1990-01-01T12:00").what,
        values("1990-01-01T12:00", "1990-01-01T12:00")
    );
    assert_eq!(
        one("lat=[10:-1:3]").what,
        IndexSelection::Indices(Some(10), Some(-1))
    );
    assert_eq!(
        (one("lat=::4").what, one("lat=::4").step),
        (IndexSelection::All, 4)
    );
    assert_eq!(one("lat=[-1]").what, IndexSelection::Index(-1));
    for wrong in ["lat", "lat=[1", "lat=[a]", "lat=::0", "lat=[1:2:3:4]"] {
        DimensionSelection::parse(wrong).unwrap_err();
    }
    assert_eq!(
        "climatological month".parse::<TimeGrouping>().unwrap(),
        TimeGrouping::MonthOfYear
    );
    assert!(
        "mode"
            .parse::<ReduceOperation>()
            .unwrap_err()
            .to_string()
            .contains("median, quantile, histogram")
    );
    let bins = |text: &str| text.parse::<WantedBins>();
    assert_eq!(bins("").unwrap(), WantedBins::default());
    let wanted = WantedBins {
        bins: 80,
        between: Some((-5.0, 35.5)),
    };
    assert_eq!(bins("-5:35.5:80").unwrap(), wanted);
    for wrong in [
        "0",
        "1048577",
        "a",
        "1:2",
        "2:1:5",
        "1:1:5",
        "0:inf:3",
        "nan:1:3",
        "-1e308:1e308:2",
        "1:1.0000000000000002:2",
    ] {
        bins(wrong).unwrap_err();
    }
    assert!(
        "fortnight"
            .parse::<TimeGrouping>()
            .unwrap_err()
            .to_string()
            .contains("year, season")
    );
}

#[test]
fn quantile_of_values_that_change_between_passes_fails() {
    let mut search = QuantileSearch::new(&[0.5], (Dtype::Float32, false), 1, 1 << 20).unwrap();
    let counted = |count: u64, of: usize| {
        let mut state = BoxState::empty(Vec::new(), false, WantedResults::default(), false);
        (state.counts, state.counters) = (vec![count], vec![0; of]);
        state
    };
    let mut first = counted(3, search.counters());
    first.counters[5] = 3;
    assert!(search.next(&first).unwrap());
    // There are fewer values, or as many, and none begins like the one that was found.
    for count in [2, 3] {
        let found = counted(count, search.counters());
        assert!(matches!(search.next(&found), Err(Error::Changed)));
    }
}

#[test]
fn histogram_of_values_that_change_between_passes_fails() {
    let state = |counts: u64, counters: Vec<u64>| {
        let mut state = BoxState::empty(Vec::new(), false, WantedResults::default(), false);
        (state.counts, state.counters) = (vec![counts], counters);
        state
    };
    let mut ends = state(3, Vec::new());
    ends.extremes = [CellNumbers::Real(vec![1.0]), CellNumbers::Real(vec![2.0])];
    let mut binning = Binning::new("2".parse().unwrap(), 1).unwrap();
    assert!(binning.next(&ends).unwrap());
    // There are fewer values, or as many, and one is outside of the range.
    for found in [state(2, vec![0, 1, 1, 0]), state(3, vec![0, 1, 1, 1])] {
        assert!(matches!(binning.next(&found), Err(Error::Changed)));
    }
    assert!(!binning.next(&state(3, vec![0, 1, 2, 0])).unwrap());
    // There are no bins between infinities; too many counters are refused before any value is read.
    ends.extremes[1] = CellNumbers::Real(vec![f64::INFINITY]);
    let mut binning = Binning::new("2".parse().unwrap(), 1).unwrap();
    let refused = binning.next(&ends).unwrap_err().to_string();
    assert!(refused.contains("--bins LOW:HIGH:N"), "{refused}");
    Binning::new("1022".parse().unwrap(), 2 << 11).unwrap_err();
}

/// Files of several types form one series. If one type has no value in a cell, the extremes of the cell are those of
/// the other types.
#[test]
fn extremes_ignore_type_without_values_in_cell() {
    let wants = WantedResults {
        sum: false,
        extremes: true,
        moments: false,
    };
    let empty = || BoxState::empty(vec![1], true, wants, false);
    // State of a fold of bytes without values, and of a fold of shorts.
    let mut bytes = empty();
    bytes.extremes = [255, 0].map(|end| CellNumbers::Whole(vec![end]));
    let mut shorts = empty();
    shorts.extremes = [-50, -47].map(|end| CellNumbers::Whole(vec![end]));
    shorts.counts = vec![2];
    for order in [[&bytes, &shorts], [&shorts, &bytes]] {
        let mut all = empty();
        order.into_iter().for_each(|one| all.merge(one).unwrap());
        let found = all.extremes.map(|end| match end {
            CellNumbers::Whole(end) => end,
            _ => Vec::new(),
        });
        assert_eq!(found, [vec![-50], vec![-47]]);
        let mut one = order[0].clone();
        one.merge(order[1]).unwrap();
        assert!(matches!(&one.extremes[1], CellNumbers::Whole(end) if *end == [-47]));
    }
}
