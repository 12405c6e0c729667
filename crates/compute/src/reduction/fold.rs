//! Decodes pieces of a variable and adds their values to cells.

use super::cells::{Cells, Summable};
use super::counted::CellCounters;
use super::state::{BoxState, CellNumbers, CellSums, as_usize};
use super::task::{DimensionTarget, KeepRule, ReductionItem, ReductionTask};
use crate::array::codec::{self, Decoder};
use crate::array::pass::two_sum;
use crate::array::values::{BLOCK, RawValues};
use crate::array::{ArrayError, Codec, DIMENSIONS_MAX, Literal, RAW_BYTES_MAX, with_type};
use crate::loops::number::Number;
use crate::loops::simd::Level;

/// Fold of pieces into the cells of one box, one piece after the other.
pub struct BoxFold {
    task: ReductionTask,
    sink: Box<dyn FoldSink>,
    cells: (Vec<u64>, Vec<u64>),
    decoder: Decoder,
    rows: Vec<u8>,
}

impl std::fmt::Debug for BoxFold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Folding")
            .field("cells", &self.cells)
            .finish_non_exhaustive()
    }
}

impl BoxFold {
    /// Returns a fold without values. `cells` are the first cell of the box and its lengths.
    ///
    /// # Errors
    /// If there are too many cells, or if the task is invalid.
    pub fn new(task: ReductionTask, cells: (Vec<u64>, Vec<u64>)) -> Result<Self, ArrayError> {
        let rank = task.targets.len();
        if rank > DIMENSIONS_MAX {
            return Err(ArrayError::Dimensions(rank));
        }
        codec::check(&task.filters)?;
        let kept = task
            .targets
            .iter()
            .filter(|target| **target != DimensionTarget::Reduced)
            .count();
        let count = cells.1.iter().try_fold(1_usize, |all, length| {
            all.checked_mul(usize::try_from(*length).ok()?)
        });
        let count = count.filter(|count| {
            count.saturating_mul(task.cell_bytes()) <= super::STATE_BYTES_MAX
                && kept == cells.1.len()
                && kept == cells.0.len()
        });
        let count = count.ok_or(ArrayError::ResultTooLarge)?;
        task.counted
            .as_ref()
            .map_or(Ok(()), |counted| counted.check(count))?;
        let sink = with_type!(task.dtype, T => sink::<T>(&task, count)?);
        Ok(Self {
            task,
            sink,
            cells,
            decoder: Decoder::default(),
            rows: Vec::new(),
        })
    }

    /// Adds a piece to the fold. `stored` are the bytes of the piece in their stored form.
    ///
    /// # Errors
    /// If the bytes do not match the task, or if the piece is outside of the box.
    pub fn add(&mut self, item: &ReductionItem, stored: &[u8]) -> Result<(), ArrayError> {
        let task = &self.task;
        let size = task.dtype.size();
        let raw = check(task, item)?;
        let walk = walk(task, item, &self.cells)?;
        if item.bytes.is_empty() {
            let values = RawValues::constant(&task.fill, (task.dtype, task.big_endian))?;
            return self.sink.take(&walk, &values);
        }
        let raw = raw.ok_or(ArrayError::TooLarge)?;
        if let Some(stride) = item.stride {
            gather_rows(item, (stride, raw), stored, &mut self.rows)?;
            let values = RawValues::new(&self.rows, (task.dtype, task.big_endian), false);
            return self.sink.take(&walk, &values);
        }
        let applied = |place: usize| item.mask >> place.min(31) & 1 == 0;
        let codecs = task.filters.iter().enumerate().rev();
        let codecs: Vec<Codec> = codecs
            .filter(|(place, _)| applied(*place))
            .map(|(_, codec)| *codec)
            .collect();
        let (bytes, shuffled) = self.decoder.decode((&codecs, size), Some(raw), stored)?;
        if bytes.len() != raw {
            return Err(ArrayError::Size {
                found: bytes.len(),
                expected: raw,
            });
        }
        let values = RawValues::new(bytes, (task.dtype, task.big_endian), shuffled);
        self.sink.take(&walk, &values)
    }

    /// Returns the first cell of the box, and its lengths.
    #[must_use]
    pub fn cells(&self) -> &(Vec<u64>, Vec<u64>) {
        &self.cells
    }

    /// Returns the state of the box after all pieces.
    #[must_use]
    pub fn finish(self) -> BoxState {
        let (at, shape) = self.cells;
        self.sink.finish(at, shape)
    }
}

/// Checks that a piece fits the task; returns the number of bytes that the piece decodes to, if this number is within the limit.
fn check(task: &ReductionTask, item: &ReductionItem) -> Result<Option<usize>, ArrayError> {
    let rank = task.targets.len();
    if item.shape.len() != rank || item.within.len() != rank || item.at.len() != rank {
        return Err(ArrayError::Dimensions(item.shape.len()));
    }
    let outside = || ArrayError::Selection {
        dimensions: rank,
        given: rank,
    };
    for (range, length) in item.within.iter().zip(&item.shape) {
        let fits =
            *length > 0 && range.step > 0 && range.start <= range.end && range.end <= *length;
        if !fits || i64::try_from(*length).is_err() || range.step > 1 << 40 {
            return Err(outside());
        }
    }
    let raw = item
        .shape
        .iter()
        .try_fold(task.dtype.size() as u64, |all, length| {
            all.checked_mul(*length)
        });
    if raw.is_none_or(|raw| i64::try_from(raw).is_err()) {
        return Err(ArrayError::TooLarge);
    }
    let raw = raw.filter(|raw| *raw <= RAW_BYTES_MAX as u64);
    Ok(raw.and_then(|raw| usize::try_from(raw).ok()))
}

/// Copies rows that are apart in memory into a contiguous buffer.
fn gather_rows(
    item: &ReductionItem,
    (stride, raw): (u64, usize),
    stored: &[u8],
    rows: &mut Vec<u8>,
) -> Result<(), ArrayError> {
    rows.clear();
    let count = item
        .shape
        .first()
        .map_or(1, |count| as_usize(*count))
        .max(1);
    let row = raw / count;
    for place in 0..count {
        let start = as_usize(stride).saturating_mul(place);
        let bytes = stored.get(start..start.saturating_add(row));
        let found = stored.len();
        rows.extend_from_slice(bytes.ok_or(ArrayError::Size {
            found,
            expected: raw,
        })?);
    }
    Ok(())
}

/// One dimension of a walk over a piece.
#[derive(Debug, Clone)]
struct FoldDimension<'a> {
    length: usize,
    /// Distance from one index to the next, in values.
    step: usize,
    leads: Leads,
    weights: Option<&'a [f64]>,
}

#[derive(Debug, Clone, PartialEq)]
enum Leads {
    Nowhere,
    /// Distance from one index to the next, in cells of the box.
    On(usize),
    /// Cell of each index of the dimension.
    To(Vec<usize>),
}

/// Walk over the requested part of a piece, the slowest dimension first.
#[derive(Debug)]
struct FoldWalk<'a> {
    first: usize,
    cell: usize,
    dimensions: Vec<FoldDimension<'a>>,
    empty: bool,
}

/// Returns the distances from one index of each dimension to the next, in values, in a stored chunk.
fn strides(task: &ReductionTask, item: &ReductionItem) -> Option<Vec<usize>> {
    let rank = item.shape.len();
    let mut strides = vec![1_usize; rank];
    let order: Vec<usize> = match &task.order {
        Some(order) => order.iter().map(|one| *one as usize).collect(),
        None => (0..rank).collect(),
    };
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if !sorted.into_iter().eq(0..rank) {
        return None;
    }
    let mut stride = 1;
    for dimension in order.into_iter().rev() {
        strides[dimension] = stride;
        stride *= as_usize(item.shape[dimension]);
    }
    Some(strides)
}

/// Returns the destinations of the indices of a dimension that is not reduced, and the distance of the first destination from the start of
/// the box. `cells` is the distance from one index to the next in the box. Returns `None` if a destination is outside of the box.
fn leads(
    target: &DimensionTarget,
    (first, end): (usize, usize),
    (start, stop): (u64, u64),
    cells: usize,
) -> Option<(Leads, usize)> {
    match target {
        DimensionTarget::Reduced => Some((Leads::Nowhere, 0)),
        DimensionTarget::Grouped(groups) => {
            let cell = |group: &u32| {
                let group = u64::from(*group);
                let inside = (start..stop).contains(&group);
                inside.then(|| as_usize(group - start) * cells)
            };
            let groups = groups.get(first..end)?;
            let all: Option<Vec<usize>> = groups.iter().map(cell).collect();
            Some((Leads::To(all?), 0))
        }
        DimensionTarget::Kept(from) => {
            let from = from.checked_add(first as u64)?;
            let until = from.checked_add((end - first) as u64)?;
            let inside = from >= start && until <= stop;
            inside.then(|| (Leads::On(cells), as_usize(from - start) * cells))
        }
    }
}

fn walk<'a>(
    task: &'a ReductionTask,
    item: &ReductionItem,
    (at, lengths): &(Vec<u64>, Vec<u64>),
) -> Result<FoldWalk<'a>, ArrayError> {
    let rank = item.shape.len();
    let outside = || ArrayError::Selection {
        dimensions: rank,
        given: rank,
    };
    let strides = strides(task, item).ok_or_else(outside)?;
    let mut walk = FoldWalk {
        first: 0,
        cell: 0,
        dimensions: Vec::new(),
        empty: false,
    };
    let (mut cells, mut kept) = (1_usize, at.len());
    for dimension in (0..rank).rev() {
        let (range, first) = (item.within[dimension], as_usize(item.at[dimension]));
        let length = as_usize(range.count());
        let end = first.checked_add(length).ok_or_else(outside)?;
        walk.empty |= length == 0;
        walk.first += as_usize(range.start) * strides[dimension];
        let target = &task.targets[dimension];
        let mut span = (0, 0);
        let apart = cells;
        if *target != DimensionTarget::Reduced {
            kept -= 1;
            span = (at[kept], at[kept].saturating_add(lengths[kept]));
            cells *= as_usize(lengths[kept]);
        }
        let (leads, cell) = leads(target, (first, end), span, apart).ok_or_else(outside)?;
        walk.cell += cell;
        let weights = match &task.weights {
            Some((of, weights)) if *of as usize == dimension => {
                Some(weights.get(first..end).ok_or_else(outside)?)
            }
            _ => None,
        };
        walk.push(FoldDimension {
            length,
            step: as_usize(range.step) * strides[dimension],
            leads,
            weights,
        });
    }
    walk.dimensions.reverse();
    Ok(walk)
}

impl<'a> FoldWalk<'a> {
    /// Adds the next slower dimension; two dimensions are merged if a walk over both is a walk over one.
    fn push(&mut self, slower: FoldDimension<'a>) {
        if slower.length == 1 && slower.weights.is_none() && !matches!(slower.leads, Leads::To(_)) {
            return;
        }
        let Some(faster) = self.dimensions.last_mut() else {
            self.dimensions.push(slower);
            return;
        };
        let plain = faster.weights.is_none() && slower.weights.is_none();
        let alike = match (&faster.leads, &slower.leads) {
            (Leads::Nowhere, Leads::Nowhere) => true,
            (Leads::On(fast), Leads::On(slow)) => fast * faster.length == *slow,
            _ => false,
        };
        if plain && alike && faster.step * faster.length == slower.step {
            faster.length *= slower.length;
        } else {
            self.dimensions.push(slower);
        }
    }
}

/// Destination of the values of a walk.
trait FoldSink: Send {
    fn take(&mut self, walk: &FoldWalk<'_>, values: &RawValues<'_>) -> Result<(), ArrayError>;
    fn finish(self: Box<Self>, at: Vec<u64>, shape: Vec<u64>) -> BoxState;
}

struct Typed<T: Summable> {
    cells: Cells<T>,
    keep: ValueFilter<T>,
    buffers: [Vec<u8>; 2],
}

/// Rule for values of a type that count. NaN never counts.
#[derive(Clone, Debug)]
pub(crate) enum ValueFilter<T> {
    All,
    /// All values except this one.
    Not(T),
    Within {
        least: T,
        most: T,
        /// Excluded values: none, or two values, which may be the same.
        not: Option<[T; 2]>,
    },
    Many {
        least: T,
        most: T,
        not: Vec<T>,
    },
}

impl<T: Number> ValueFilter<T> {
    /// Returns whether a value counts.
    pub(crate) fn counts(&self, value: T) -> bool {
        let within = |least: T, most: T| (value >= least) & (value <= most);
        match self {
            Self::All => within(T::LOWEST, T::HIGHEST),
            Self::Not(one) => (value < *one) | (value > *one),
            Self::Within { least, most, not } => {
                within(*least, *most) && not.is_none_or(|not| !not.contains(&value))
            }
            Self::Many { least, most, not } => within(*least, *most) && !not.contains(&value),
        }
    }
}

fn sink<T: Summable>(task: &ReductionTask, cells: usize) -> Result<Box<dyn FoldSink>, ArrayError> {
    let wants = task.wants;
    let weighted = task.weights.is_some();
    let all = |wanted: bool| if wanted { cells } else { 0 };
    Ok(Box::new(Typed::<T> {
        cells: Cells {
            counts: vec![0; cells],
            sums: vec![T::Total::default(); all(wants.sum && !weighted)],
            weighted: vec![(0.0, 0.0); all(weighted)],
            weights: vec![(0.0, 0.0); all(weighted)],
            lows: vec![T::HIGHEST; all(wants.extremes)],
            highs: vec![T::LOWEST; all(wants.extremes)],
            moments: vec![(0.0, 0.0); all(wants.moments)],
            counters: task
                .counted
                .as_ref()
                .map(|counted| CellCounters::new(counted, cells)),
        },
        keep: kept(&task.keep)?,
        buffers: Default::default(),
    }))
}

/// Returns the rule for values of a type that count.
///
/// # Errors
/// If there are too many values that stand for missing values.
#[allow(
    clippy::cast_precision_loss,
    reason = "the nearest bound is looked for"
)]
pub(crate) fn kept<T: Number>(keep: &KeepRule) -> Result<ValueFilter<T>, ArrayError> {
    let bound = |literal: &Literal, up: bool| match *literal {
        Literal::Float(value) => T::bound(value, up),
        Literal::Int(value) => T::parse(&value.to_string()).or(T::bound(value as f64, up)),
        Literal::Uint(value) => T::parse(&value.to_string()).or(T::bound(value as f64, up)),
    };
    let value = |literal: &Literal| match *literal {
        Literal::Float(value) if T::INTEGER => {
            T::bound(value, true).filter(|bound| bound.to_f64() - value == 0.0)
        }
        Literal::Float(value) => T::parse(&value.to_string()),
        Literal::Int(value) => T::parse(&value.to_string()),
        Literal::Uint(value) => T::parse(&value.to_string()),
    };
    // A missing value that the type cannot represent excludes nothing; a bound that no value meets excludes everything.
    let mut not: Vec<T> = keep
        .missing
        .iter()
        .filter_map(value)
        .filter(|value| value.partial_cmp(value).is_some())
        .collect();
    not.dedup();
    if not.len() > crate::array::MISSING_MAX {
        return Err(ArrayError::ManyMissing);
    }
    let none = (T::HIGHEST, T::LOWEST);
    let least = keep
        .least
        .as_ref()
        .map_or(Some(T::LOWEST), |least| bound(least, true));
    let most = keep
        .most
        .as_ref()
        .map_or(Some(T::HIGHEST), |most| bound(most, false));
    let (least, most) = least.zip(most).unwrap_or(none);
    let open = keep.least.is_none() && keep.most.is_none();
    let within = |not| ValueFilter::Within { least, most, not };
    Ok(match not[..] {
        [] if open => ValueFilter::All,
        [one] if open => ValueFilter::Not(one),
        [] => within(None),
        [one] => within(Some([one, one])),
        [one, other] => within(Some([one, other])),
        _ => ValueFilter::Many { least, most, not },
    })
}

/// Evaluates `$body` with `$keeps` as a closure that returns whether a value counts.
macro_rules! with_keep {
    ($keep:expr, $level:ident, $keeps:ident => $body:expr) => {{
        let $level = Level::best();
        match $keep {
            #[allow(clippy::eq_op, reason = "only NaN is not itself")]
            ValueFilter::All => {
                let $keeps = |value: T| value == value;
                $body
            }
            // One comparison, which is false for NaN.
            ValueFilter::Not(one) => {
                let $keeps = |value: T| (value < *one) | (value > *one);
                $body
            }
            ValueFilter::Within {
                least,
                most,
                not: Some([one, other]),
            } => {
                let $keeps = |value: T| {
                    (value >= *least) & (value <= *most) & (value != *one) & (value != *other)
                };
                $body
            }
            ValueFilter::Within {
                least,
                most,
                not: None,
            } => {
                let $keeps = |value: T| (value >= *least) & (value <= *most);
                $body
            }
            ValueFilter::Many { least, most, not } => {
                let $level = Level::Portable;
                let $keeps =
                    |value: T| (value >= *least) & (value <= *most) && !not.contains(&value);
                $body
            }
        }
    }};
}

impl<T: Summable> FoldSink for Typed<T> {
    fn take(&mut self, walk: &FoldWalk<'_>, values: &RawValues<'_>) -> Result<(), ArrayError> {
        if !walk.empty {
            self.go(&walk.dimensions, values, (walk.first, walk.cell), 1.0);
        }
        Ok(())
    }

    fn finish(self: Box<Self>, at: Vec<u64>, shape: Vec<u64>) -> BoxState {
        let Cells {
            counts,
            sums,
            weighted,
            weights,
            lows,
            highs,
            moments,
            counters,
        } = self.cells;
        let numbers = |values: Vec<T>| {
            if values.is_empty() {
                CellNumbers::None
            } else {
                T::numbers(&values)
            }
        };
        let extremes = [numbers(lows), numbers(highs)];
        let rounded = weights.iter().map(|(sum, lost)| two_sum(*sum, *lost));
        let (weights, weights_lost): (Vec<f64>, Vec<f64>) = rounded.unzip();
        let sums = match (weights.is_empty(), sums.is_empty()) {
            (false, _) => CellSums::Real(weighted),
            (_, false) => T::sums(sums),
            _ => CellSums::None,
        };
        BoxState {
            at,
            shape,
            counts,
            sums,
            extremes,
            moments,
            weights,
            weights_lost,
            counters: counters.map_or_else(Vec::new, |counters| counters.counts),
        }
    }
}

impl<T: Summable> Typed<T> {
    fn go(
        &mut self,
        dimensions: &[FoldDimension<'_>],
        values: &RawValues<'_>,
        (value, cell): (usize, usize),
        weight: f64,
    ) {
        let Some((outer, inner)) = dimensions.split_first() else {
            let one = FoldDimension {
                length: 1,
                step: 1,
                leads: Leads::Nowhere,
                weights: None,
            };
            return self.row(&one, values, (value, cell), weight);
        };
        if inner.is_empty() {
            return self.row(outer, values, (value, cell), weight);
        }
        for index in 0..outer.length {
            let to = match &outer.leads {
                Leads::Nowhere => cell,
                Leads::On(cells) => cell + index * cells,
                Leads::To(cells) => cell + cells[index],
            };
            let weight = outer
                .weights
                .map_or(weight, |weights| weight * weights[index]);
            self.go(inner, values, (value + index * outer.step, to), weight);
        }
    }

    fn row(
        &mut self,
        inner: &FoldDimension<'_>,
        values: &RawValues<'_>,
        (value, cell): (usize, usize),
        weight: f64,
    ) {
        let at_once = (BLOCK - 1) / inner.step.max(1) + 1;
        let whole = inner.step == 1 && inner.leads == Leads::Nowhere && inner.weights.is_none();
        let added = whole && self.cells.are_sums();
        let [mut read, mut picked] = std::mem::take(&mut self.buffers);
        for first in (0..inner.length).step_by(at_once) {
            let count = at_once.min(inner.length - first);
            let stored = added.then(|| values.swapped(value + first, count));
            if let Some(stored) = stored.flatten() {
                let cells = &mut self.cells;
                with_keep!(&self.keep, level, keeps => cells.add_swapped(level, (stored, cell), keeps));
                continue;
            }
            let span = (count - 1) * inner.step + 1;
            let mut block = values.block(value + first * inner.step, span, &mut read);
            if inner.step != 1 && count > 1 {
                picked.resize(BLOCK * T::SIZE, 0);
                for (place, to) in picked.chunks_exact_mut(T::SIZE).take(count).enumerate() {
                    to.copy_from_slice(&block[place * inner.step * T::SIZE..][..T::SIZE]);
                }
                block = &picked[..count * T::SIZE];
            }
            let run = ValueRun {
                inner,
                first,
                count,
            };
            run.put(&mut self.cells, &self.keep, block, (cell, weight));
        }
        self.buffers = [read, picked];
    }
}

/// Contiguous values of a row.
struct ValueRun<'a, 'b> {
    inner: &'a FoldDimension<'b>,
    first: usize,
    count: usize,
}

impl ValueRun<'_, '_> {
    fn put<T: Summable>(
        &self,
        cells: &mut Cells<T>,
        keep: &ValueFilter<T>,
        block: &[u8],
        (cell, weight): (usize, f64),
    ) {
        let Self {
            inner,
            first,
            count,
        } = *self;
        match (&inner.leads, inner.weights) {
            (Leads::Nowhere, None) => {
                with_keep!(keep, level, keeps => cells.all(level, (block, cell), keeps, weight));
            }
            (Leads::On(1), None) => {
                with_keep!(keep, level, keeps => cells.each(level, (block, cell + first), keeps, weight));
            }
            // Neighbours with the same cell and weight are added together.
            (leads, weights) => {
                let to = |index: usize| match leads {
                    Leads::Nowhere => 0,
                    Leads::On(apart) => (first + index) * apart,
                    Leads::To(cells) => cells[first + index],
                };
                let of = |index: usize| weights.map_or(1.0, |weights| weights[first + index]);
                let mut start = 0;
                while start < count {
                    let same = |index: &usize| {
                        to(*index) == to(start) && of(*index).to_bits() == of(start).to_bits()
                    };
                    let length = (start..count).take_while(same).count();
                    let values = &block[start * T::SIZE..(start + length) * T::SIZE];
                    let into = (values, cell + to(start));
                    with_keep!(keep, level, keeps => cells.all(level, into, keeps, weight * of(start)));
                    start += length;
                }
            }
        }
    }
}
