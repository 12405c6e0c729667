//! Slabs of results that are too large to be computed at once: each slab is computed like a separate result.

use tidemill_format::{IndexRange, Storage};

use super::bins::Binning;
use super::error::{Error, Result};
use super::plan::{FilePlan, ReductionPlan, wants};
use super::state::as_usize;
use super::table::{ResultAxis, ResultTable};
use super::task::{DimensionTarget, ReductionTask};
use super::{CELLS_MAX, bins, ranks};

/// Range of cells of a result: the first cell along each axis, and the number of cells along each axis.
pub type CellRange = (Vec<u64>, Vec<u64>);

/// Maximum number of cells in a slab; the state of such a slab stays below some 100 MB.
const SLAB_CELLS: u64 = 2 << 20;
/// Maximum number of quantiles in a slab; a pass then finds 4 bits of each quantile.
const SLAB_QUANTILES: u64 = 128 << 10;

impl ReductionPlan {
    /// Returns the number of cells of the result.
    #[must_use]
    pub fn cells(&self) -> u64 {
        product(&self.shape())
    }

    /// Returns whether the result has more cells than can be computed at once.
    #[must_use]
    pub fn is_large(&self) -> bool {
        self.cells() > self.limited(CELLS_MAX, ranks::CELLS_MAX)
    }

    /// Returns the maximum number of cells of a slab, if each cell has several quantiles or bins.
    fn limited(&self, cells: u64, quantiles: u64) -> u64 {
        let counts = |bins: u32| (bins::COUNTERS_MAX / (u64::from(bins) + 2)).max(1);
        match (self.quantiles.len() as u64, self.bin_count()) {
            (0, None) => cells,
            (0, Some(bins)) => cells.min(counts(bins)),
            (each, _) => cells.min((quantiles / each).max(1)),
        }
    }

    /// Returns the result without its values.
    ///
    /// # Errors
    /// If the ends of bins are known only after all values have been read.
    pub fn outline(&self) -> Result<ResultTable> {
        let edges = match self.binning(1).transpose()? {
            None => None,
            Some(Binning::Counted(edges, _)) => Some(edges),
            Some(Binning::Ends(_)) => {
                return Err(Error::Query(
                    "the result is too large for bins between the extremes: give the ends, as --bins LOW:HIGH:N".into(),
                ));
            }
        };
        let none = self.state(wants(self.operation), vec![0; self.shape().len()]);
        Ok(self.table(&none, vec![Vec::new(); self.quantiles.len()], edges))
    }

    /// Returns the plans of the result's slabs, each with its cells.
    pub fn slabs(&self) -> impl Iterator<Item = (CellRange, Self)> {
        self.slabs_of(self.limited(SLAB_CELLS, SLAB_QUANTILES))
    }

    /// Returns the slabs of at most `most` cells, like [`Self::slabs`].
    pub(super) fn slabs_of(&self, most: u64) -> impl Iterator<Item = (CellRange, Self)> {
        let shape = self.shape();
        let lengths = lengths(&shape, &self.order(most), most);
        let counts = shape
            .iter()
            .zip(&lengths)
            .map(|(all, some)| all.div_ceil(*some));
        let counts: Vec<u64> = counts.collect();
        (0..product(&counts)).map(move |number| {
            let (mut left, mut cells) = (number, (lengths.clone(), lengths.clone()));
            for axis in (0..shape.len()).rev() {
                let first = left % counts[axis] * lengths[axis];
                left /= counts[axis];
                cells.0[axis] = first;
                cells.1[axis] = lengths[axis].min(shape[axis] - first);
            }
            let slab = self.slab(&cells);
            (cells, slab)
        })
    }

    fn slab(&self, cells: &CellRange) -> Self {
        let axis = |(axis, length): (&ResultAxis, &u64)| ResultAxis {
            name: axis.name.clone(),
            length: *length,
            coordinate: None,
            labels: None,
        };
        let files = self.files.iter();
        self.with(
            files.flat_map(|file| file.within(cells)).collect(),
            self.axes.iter().zip(&cells.1).map(axis).collect(),
        )
    }

    /// Returns the order in which axes are cut: first the axes whose cuts cause the fewest repeated reads.
    fn order(&self, most: u64) -> Vec<usize> {
        let shape = self.shape();
        let mut order: Vec<(f64, usize)> = (0..shape.len())
            .map(|axis| {
                let length = lengths(&shape, &[axis], most)[axis];
                let files = self.files.iter().take(SAMPLED);
                let worst = files.map(|file| file.read_again(axis, length));
                (worst.fold(1.0, f64::max), axis)
            })
            .collect();
        order.sort_by(|one, other| one.0.total_cmp(&other.0));
        order.into_iter().map(|(_, axis)| axis).collect()
    }
}

/// Maximum number of files that are examined to choose the cuts of the result.
const SAMPLED: usize = 64;

#[expect(clippy::cast_precision_loss, reason = "a ratio is wanted")]
fn real(count: u64) -> f64 {
    count as f64
}

fn product(lengths: &[u64]) -> u64 {
    lengths
        .iter()
        .fold(1, |all: u64, one| all.saturating_mul(*one))
}

/// Returns the lengths of slabs of at most `most` cells, if cuts along the axes in this order are sufficient.
fn lengths(shape: &[u64], order: &[usize], most: u64) -> Vec<u64> {
    let mut lengths = shape.to_vec();
    for axis in order {
        if product(&lengths) <= most {
            break;
        }
        let mut others = lengths.clone();
        others[*axis] = 1;
        lengths[*axis] = (most / product(&others)).clamp(1, shape[*axis].max(1));
    }
    lengths
}

/// Part of a dimension whose values belong to some cells: indices of the variable, their target, and their places in the selection.
type SlabPart = (IndexRange, DimensionTarget, std::ops::Range<usize>);

impl FilePlan {
    /// Returns the dimension of the variable that corresponds to an axis of the result.
    fn dimension(&self, axis: usize) -> Option<usize> {
        let kept = self.task.targets.iter().enumerate();
        let mut kept = kept.filter(|(_, target)| **target != DimensionTarget::Reduced);
        kept.nth(axis).map(|(dimension, _)| dimension)
    }

    /// Returns the number of times that a value is read, if slabs have the length `length` along an axis.
    fn read_again(&self, axis: usize, length: u64) -> f64 {
        let Some(dimension) = self.dimension(axis) else {
            return 1.0;
        };
        let indices = self.selection[dimension].count();
        let all = match &self.task.targets[dimension] {
            DimensionTarget::Grouped(groups) if !groups.is_sorted() => return f64::INFINITY,
            DimensionTarget::Grouped(groups) => {
                let ends = groups.first().zip(groups.last());
                ends.map_or(1, |(first, last)| u64::from(last - first) + 1)
            }
            _ => indices.max(1),
        };
        let chunk = match &self.variable.storage {
            Storage::Chunked(chunked) => chunked.shape[dimension],
            _ => 1,
        };
        let read = (real(indices) * real(length.min(all)) / real(all)).max(1.0);
        (read + real(chunk) - 1.0) / read
    }

    /// Returns the work on the file for a range of cells.
    fn within(&self, (first, lengths): &CellRange) -> Vec<Self> {
        let mut axis = 0;
        let mut boxes: Vec<Vec<SlabPart>> = vec![Vec::new()];
        for (target, run) in self.task.targets.iter().zip(&self.selection) {
            let parts = match target {
                DimensionTarget::Reduced => {
                    vec![(*run, DimensionTarget::Reduced, 0..as_usize(run.count()))]
                }
                target => {
                    let cells = (first[axis], lengths[axis]);
                    axis += 1;
                    parts(*run, target, cells)
                }
            };
            let with = |known: &Vec<SlabPart>| {
                let one = |part: &SlabPart| known.iter().cloned().chain([part.clone()]).collect();
                parts.iter().map(one).collect::<Vec<Vec<SlabPart>>>()
            };
            boxes = boxes.iter().flat_map(with).collect();
        }
        boxes.into_iter().map(|parts| self.of(&parts)).collect()
    }

    fn of(&self, parts: &[SlabPart]) -> Self {
        let weights = self.task.weights.as_ref().map(|(dimension, weights)| {
            let places = parts[*dimension as usize].2.clone();
            (*dimension, weights[places].to_vec())
        });
        Self {
            input: self.input,
            variable: self.variable.clone(),
            selection: parts.iter().map(|(run, ..)| *run).collect(),
            task: ReductionTask {
                targets: parts.iter().map(|(_, target, _)| target.clone()).collect(),
                weights,
                ..self.task.clone()
            },
            unpack: self.unpack,
        }
    }
}

/// Returns the parts of a run whose values belong to some cells of its axis.
fn parts(run: IndexRange, target: &DimensionTarget, (first, length): (u64, u64)) -> Vec<SlabPart> {
    let end = first + length;
    let part = |places: std::ops::Range<usize>, target| {
        let start = run.start + places.start as u64 * run.step;
        let last = run.start + (places.end as u64 - 1) * run.step;
        let range = IndexRange {
            start,
            end: last + 1,
            step: run.step,
        };
        (range, target, places)
    };
    match target {
        DimensionTarget::Reduced => Vec::new(),
        DimensionTarget::Kept(at) => {
            let (low, high) = (first.max(*at), end.min(at + run.count()));
            match low < high {
                true => {
                    let places = as_usize(low - at)..as_usize(high - at);
                    vec![part(places, DimensionTarget::Kept(low - first))]
                }
                false => Vec::new(),
            }
        }
        DimensionTarget::Grouped(groups) => {
            let is_within = |group: &u32| (first..end).contains(&u64::from(*group));
            let mut found = Vec::new();
            let mut place = 0;
            for some in groups.chunk_by(|one, other| is_within(one) == is_within(other)) {
                let places = place..place + some.len();
                place = places.end;
                if is_within(&some[0]) {
                    let own = some.iter().map(|group| u64::from(*group) - first);
                    let own = own.map(|group| u32::try_from(group).unwrap_or(u32::MAX));
                    found.push(part(places, DimensionTarget::Grouped(own.collect())));
                }
            }
            found
        }
    }
}
