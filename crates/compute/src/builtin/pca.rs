//! `pca`: principal components of the rows of a matrix, from its covariances.
//!
//! **Covariances** are a fold: rows are summed in blocks that begin at multiples of their size, around the block's mean. Blocks are
//! combined in pairs, pairs of pairs and so on (Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
//! Variances", 1979, eq. 1.5), always the same ones, whatever the order of arrival. Means are stored as a nearby value and the distance
//! from it, so the distance of values from 0 does not matter: with s and t the standard deviations of two columns, the error of their
//! covariance is at most 2¹⁴ × 2⁻⁵³ × s × t.
//!
//! **Values of type `f32`**, minus the nearby value, are multiplied in `f32`, and products are summed in `f32` over runs of at most 256
//! rows, whose sums are in `f64`: that error is at most 2⁻¹² × s × t. (A run has one rounding for each row, so at most 2⁸ × 2⁻²⁴ of the
//! squares around the nearby value, the mean of the first of eight runs, and those are at most eight times the squares around the mean.)
//! Blocks with squares near the ends of the range of `f32` are computed in `f64`.
//!
//! **Rows** with a missing value are skipped. A NaN or infinite value that is not missing is an error, which names the first.

use std::collections::BTreeMap;
use std::io::Write;

use serde::{Deserialize, Serialize};

use super::BuiltinError;
use super::matrix::{RowMatrix, any, not_finite};
use super::table::{
    BuiltinKernel, FoldInput, KernelArgument, KernelConstructor, KernelOptions, ReadyKernel,
};
use super::values::{FORMAT, ORDER, OUT, Take, fold_of_dtype, missing, with_dtype};
use crate::loops::eigen::eigen;
use crate::loops::gram::{Groups, gram};
use crate::loops::number::{Number, decimal};
use crate::loops::product::{Columns, Computed, Panel, RealNumber, multiply};
use crate::loops::simd::Level;

/// Kernel `pca`, for the table of built-in kernels.
pub(super) const KERNELS: &[BuiltinKernel] = &[BuiltinKernel {
    name: "pca",
    revision: 2,
    help: "principal components of the rows of a matrix",
    args: &[PCA, FORMAT, OUT, ORDER],
    usage: None,
    prepare: None,
    code: KernelConstructor::Either(FoldInput::Values, |options| {
        if options.is("show", "projection") {
            return Ok(ReadyKernel::Whole(project));
        }
        covariances(options)
    }),
}];

const PCA: &[KernelArgument] = &[
    KernelArgument {
        key: "columns",
        values: "COUNT",
        default: "",
        help: "values in a row, at most 1024",
    },
    KernelArgument {
        key: "components",
        values: "COUNT",
        default: "",
        help: "number of components, those of the largest variance (the default is all)",
    },
    KernelArgument {
        key: "show",
        values: "components|mean|projection",
        default: "components",
        help: "a line for each component: its variance, its share of all variance, its direction; or the mean; or each row, along the components",
    },
];

/// Maximum number of columns: the covariances of so many columns take 8 MiB.
const COLUMNS_MAX: usize = 1024;

/// Approximate number of values in a run, whose products are summed in the type of the computation.
const RUN_VALUES: usize = 1 << 13;

/// Minimum and maximum number of rows in a run.
const RUN_ROWS: (usize, usize) = (128, 256);

/// Number of runs in a block.
const RUNS: usize = 8;

/// Range of mean squares for computations in `f32`: sums do not overflow, and the products that matter are not so small that digits are
/// lost.
const NARROW: (f64, f64) = (1e-30, 1e34);

fn run_rows(columns: usize) -> usize {
    (RUN_VALUES / columns).clamp(RUN_ROWS.0, RUN_ROWS.1)
}

fn columns(options: &KernelOptions) -> Result<(usize, usize), BuiltinError> {
    let columns = options.needed("columns", options.positive("columns")?)?;
    if columns > COLUMNS_MAX {
        return Err(options.wrong("columns", &columns.to_string(), "1 to 1024"));
    }
    let components = options.positive("components")?.unwrap_or(columns);
    if components > columns {
        let valid = format!("1 to {columns}");
        return Err(options.wrong("components", &components.to_string(), &valid));
    }
    Ok((columns, components))
}

/// Returns the fold that computes covariances, with the form of its result.
fn covariances(options: &KernelOptions) -> Result<ReadyKernel, BuiltinError> {
    let (columns, components) = columns(options)?;
    let settings = PcaSettings {
        columns,
        components,
        mean: options.is("show", "mean"),
        raw: options.is("out", "f64"),
    };
    fold_of_dtype!(options, |T| missing::<T>(options).map(|missing| {
        Covariances::<T> {
            settings,
            missing,
            ..Covariances::default()
        }
    }))
    .map(ReadyKernel::Fold)
}

#[derive(Clone, Copy, Debug, Default)]
struct PcaSettings {
    columns: usize,
    components: usize,
    mean: bool,
    raw: bool,
}

/// Mean and scatter of some rows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct RowMoments {
    rows: u64,
    /// Values near the means of the columns.
    near: Vec<f64>,
    /// Distances of the means from the values in `near`.
    off: Vec<f64>,
    /// Sums of products of distances from the means, for each column and the columns from it on, row by row.
    scatter: Vec<f64>,
}

impl RowMoments {
    /// Combines the moments of these rows and of the rows after them.
    #[allow(clippy::cast_precision_loss, reason = "counts are weights here")]
    fn with(mut self, after: &Self) -> Self {
        if after.rows == 0 {
            return self;
        }
        if self.rows == 0 {
            return after.clone();
        }
        let rows = self.rows + after.rows;
        let share = after.rows as f64 / rows as f64;
        let weight = self.rows as f64 * share;
        let far: Vec<f64> = (0..self.near.len())
            .map(|column| {
                (after.near[column] - self.near[column]) + (after.off[column] - self.off[column])
            })
            .collect();
        let mut scatter = self.scatter.iter_mut().zip(&after.scatter);
        for (first, a) in far.iter().enumerate() {
            for (b, (sum, other)) in far[first..].iter().zip(&mut scatter) {
                *sum += other + weight * a * b;
            }
        }
        for (off, far) in self.off.iter_mut().zip(&far) {
            *off += share * far;
        }
        self.rows = rows;
        self
    }

    fn mean(&self) -> Vec<f64> {
        let both = self.near.iter().zip(&self.off);
        both.map(|(near, off)| near + off).collect()
    }
}

/// Squares of a block are too small or too large for the type of the computation.
struct Unfit;

/// Computes mean and scatter of a block in `R`.
#[allow(clippy::cast_precision_loss, reason = "a block has few rows")]
fn moments_in<T: Number, R: RealNumber>(
    values: &[u8],
    columns: usize,
    groups: &mut Groups<R>,
    products: &mut Vec<f64>,
) -> Result<RowMoments, Unfit> {
    let row = columns * T::SIZE;
    let rows = values.len() / row;
    let mut moments = RowMoments {
        rows: rows as u64,
        near: vec![0.0; columns],
        off: vec![0.0; columns],
        scatter: Vec::with_capacity(columns * (columns + 1) / 2),
    };
    let (level, zeros) = (Level::best(), vec![R::default(); columns]);
    let mut runs = values.chunks(run_rows(columns) * row).peekable();
    let Some(first) = runs.peek() else {
        return Ok(moments);
    };
    groups.load::<T>(level, first, &zeros, &mut moments.near);
    let count = (first.len() / row) as f64;
    let near: Vec<R> = moments.near.iter().map(|sum| R::of(sum / count)).collect();
    moments.near = near.iter().map(|near| near.to_f64()).collect();
    products.clear();
    products.resize(groups.width() * groups.width(), 0.0);
    for run in runs {
        groups.load::<T>(level, run, &near, &mut moments.off);
        gram(level, groups, products);
    }
    let of_column = |first: usize| &products[first * groups.width()..][first..columns];
    if size_of::<R>() == 4 {
        let column = |column: usize| {
            let rows = values.chunks_exact(row);
            rows.map(move |row| T::read(&row[column * T::SIZE..]).to_f64())
        };
        let same = |at: usize| column(at).all(|value| value.total_cmp(&moments.near[at]).is_eq());
        let fits = |square: f64| (NARROW.0..NARROW.1).contains(&(square / rows as f64));
        if !(0..columns).all(|column| fits(of_column(column)[0]) || same(column)) {
            return Err(Unfit);
        }
    }
    moments.off.iter_mut().for_each(|sum| *sum /= rows as f64);
    for first in 0..columns {
        let (off, weight) = (&moments.off[first..], rows as f64 * moments.off[first]);
        let sums = of_column(first).iter().zip(off);
        moments
            .scatter
            .extend(sums.map(|(sum, off)| sum - weight * off));
    }
    Ok(moments)
}

/// Partial state of `pca`: covariances of the processed rows.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(bound = "")]
struct Covariances<T: Computed> {
    #[serde(skip)]
    settings: PcaSettings,
    #[serde(skip)]
    missing: Option<T>,
    /// Number of values processed so far.
    values: u64,
    /// Index of the first value that is not finite, if any.
    bad: Option<u64>,
    /// Bytes of incomplete blocks, by block and by the index of the first value.
    parts: BTreeMap<u64, BTreeMap<u64, Vec<u8>>>,
    /// Moments of `2^level` blocks each, by level and number.
    nodes: BTreeMap<(u8, u64), RowMoments>,
    #[serde(skip)]
    groups: Groups<T::Real>,
    #[serde(skip)]
    products: Vec<f64>,
}

impl<T: Computed> Covariances<T> {
    /// Returns the number of values in a block.
    fn block_values(&self) -> usize {
        let columns = self.settings.columns;
        RUNS * run_rows(columns) * columns
    }

    /// Processes a complete block.
    fn block(&mut self, number: u64, values: &[u8]) {
        let first = number * self.block_values() as u64;
        let missing = self.missing;
        let passed =
            |row: &[u8]| missing.is_some_and(|missing| any(row, |value: T| value.same(missing)));
        let columns = self.settings.columns;
        let moments = if missing.is_some() {
            let rows = values.chunks_exact(columns * T::SIZE);
            let kept: Vec<u8> = rows.filter(|row| !passed(row)).flatten().copied().collect();
            self.moments(&kept)
        } else {
            self.moments(values)
        };
        // The mean shows whether a value is not finite.
        if moments.off.iter().any(|off| !off.is_finite())
            && let Some((row, column)) = not_finite::<T>(values, columns, passed)
        {
            let index = first + (row * columns + column) as u64;
            self.bad = Some(self.bad.map_or(index, |known| known.min(index)));
        }
        self.insert(0, number, moments);
    }

    /// Computes mean and scatter of a block.
    fn moments(&mut self, values: &[u8]) -> RowMoments {
        let columns = self.settings.columns;
        let (groups, products) = (&mut self.groups, &mut self.products);
        let moments = moments_in::<T, T::Real>(values, columns, groups, products);
        moments.unwrap_or_else(|Unfit| {
            let moments = moments_in::<T, f64>(values, columns, &mut Groups::default(), products);
            moments.unwrap_or_default()
        })
    }

    /// Adds the moments of `2^level` blocks, and combines them with their pair, as far as pairs are complete.
    fn insert(&mut self, mut level: u8, mut index: u64, mut moments: RowMoments) {
        while let Some(other) = self.nodes.remove(&(level, index ^ 1)) {
            moments = if index & 1 == 1 {
                other.with(&moments)
            } else {
                moments.with(&other)
            };
            level += 1;
            index >>= 1;
        }
        self.nodes.insert((level, index), moments);
    }

    /// Keeps a part of a block, or processes the block if all of its parts have arrived.
    fn keep(&mut self, first: u64, values: Vec<u8>) {
        let most = self.block_values();
        let number = first / most as u64;
        let parts = self.parts.entry(number).or_default();
        parts.insert(first, values);
        if parts.values().map(Vec::len).sum::<usize>() == most * T::SIZE {
            let whole: Vec<u8> = parts.values().flatten().copied().collect();
            self.parts.remove(&number);
            self.block(number, &whole);
        }
    }

    /// Returns the combined moments of all blocks, at the end of the input.
    fn all(mut self) -> Result<RowMoments, BuiltinError> {
        let columns = self.settings.columns as u64;
        if !self.values.is_multiple_of(columns) {
            let (values, columns) = (self.values, self.settings.columns);
            return Err(BuiltinError::RaggedRows { values, columns });
        }
        for (number, parts) in std::mem::take(&mut self.parts) {
            let values: Vec<u8> = parts.into_values().flatten().collect();
            self.block(number, &values);
        }
        if let Some(index) = self.bad {
            let (row, column) = (index / columns, index % columns);
            return Err(BuiltinError::NotFinite { row, column });
        }
        let mut nodes: Vec<_> = self.nodes.into_iter().collect();
        nodes.sort_unstable_by_key(|((level, index), _)| index << level);
        let nodes = nodes.into_iter().map(|(_, moments)| moments);
        let all = nodes
            .reduce(|all, next| all.with(&next))
            .unwrap_or_default();
        if all.rows < 2 {
            let (kernel, needed, rows) = ("pca", 2, all.rows);
            return Err(BuiltinError::TooFewRows {
                kernel,
                needed,
                rows,
            });
        }
        Ok(all)
    }
}

impl<T: Computed> Take<T> for Covariances<T> {
    fn take(&mut self, first: u64, mut values: &[u8]) {
        self.values += (values.len() / T::SIZE) as u64;
        let most = self.block_values();
        let mut index = first;
        while !values.is_empty() {
            let space =
                most - usize::try_from(index % most as u64).expect("a block has few values");
            let (block, rest) = values.split_at(values.len().min(space * T::SIZE));
            if block.len() == most * T::SIZE {
                self.block(index / most as u64, block);
            } else {
                self.keep(index, block.to_vec());
            }
            index += (block.len() / T::SIZE) as u64;
            values = rest;
        }
    }

    fn merge(&mut self, other: Self) {
        self.values += other.values;
        self.bad = self.bad.into_iter().chain(other.bad).min();
        for (first, values) in other.parts.into_values().flatten() {
            self.keep(first, values);
        }
        for ((level, index), moments) in other.nodes {
            self.insert(level, index, moments);
        }
    }

    fn finish(self, out: &mut dyn Write) -> Result<(), BuiltinError> {
        let settings = self.settings;
        let all = self.all()?;
        if settings.mean {
            return write_row(&all.mean(), settings.raw, out);
        }
        let components = Components::new(&all, settings);
        for (variance, direction) in components.variances.iter().zip(components.directions()) {
            let mut row = vec![*variance, variance / components.total];
            row.extend(direction);
            write_row(&row, settings.raw, out)?;
        }
        Ok(())
    }
}

/// Writes numbers as a line of text, or raw.
fn write_row(row: &[f64], raw: bool, out: &mut dyn Write) -> Result<(), BuiltinError> {
    if raw {
        let bytes: Vec<u8> = row.iter().flat_map(|value| value.to_le_bytes()).collect();
        return out.write_all(&bytes).map_err(BuiltinError::Write);
    }
    let words: Vec<_> = row.iter().map(|value| decimal(*value)).collect();
    writeln!(out, "{}", words.join(" ")).map_err(BuiltinError::Write)
}

/// Principal components with the largest variance.
struct Components {
    columns: usize,
    total: f64,
    variances: Vec<f64>,
    vectors: Vec<f64>,
}

impl Components {
    #[allow(clippy::cast_precision_loss, reason = "the count of rows is a divisor")]
    fn new(all: &RowMoments, settings: PcaSettings) -> Self {
        let columns = settings.columns;
        let mut matrix = vec![0.0; columns * columns];
        let mut scatter = all.scatter.iter();
        for first in 0..columns {
            for (second, sum) in (first..columns).zip(&mut scatter) {
                let covariance = sum / (all.rows - 1) as f64;
                matrix[first * columns + second] = covariance;
                matrix[second * columns + first] = covariance;
            }
        }
        let total = (0..columns)
            .map(|column| matrix[column * (columns + 1)])
            .sum();
        let (mut variances, mut vectors) = eigen(Level::best(), &matrix, columns);
        variances.truncate(settings.components);
        vectors.truncate(settings.components * columns);
        Self {
            columns,
            total,
            variances,
            vectors,
        }
    }

    fn directions(&self) -> impl Iterator<Item = &[f64]> {
        self.vectors.chunks_exact(self.columns)
    }
}

/// Number of rows that are projected at a time.
const ROWS_AT_ONCE: usize = 1024;

/// Projects each row on the components, in a second pass over the input; writes NaN for skipped rows.
fn project(
    options: &KernelOptions,
    inputs: &[String],
    out: &mut dyn Write,
) -> Result<(), BuiltinError> {
    let (columns, _) = columns(options)?;
    let matrix = RowMatrix::open(options, inputs, columns)?;
    with_dtype!(options, |T| project_values::<T>(options, &matrix, out))
}

fn project_values<T: Computed>(
    options: &KernelOptions,
    matrix: &RowMatrix,
    out: &mut dyn Write,
) -> Result<(), BuiltinError> {
    let (columns, components) = columns(options)?;
    let missing = missing::<T>(options)?;
    let mut fold = Covariances::<T> {
        settings: PcaSettings {
            columns,
            components,
            ..PcaSettings::default()
        },
        missing,
        ..Covariances::default()
    };
    let settings = fold.settings;
    let (mut swapped, mut first) = (Vec::new(), 0);
    for block in matrix.blocks(ROWS_AT_ONCE) {
        fold.take(first, matrix.little(block, &mut swapped));
        first += (block.len() / T::SIZE) as u64;
    }
    let all = fold.all()?;
    let mean = all.mean();
    let directions = Columns::new(&Components::new(&all, settings).vectors, columns);
    let raw = options.is("out", "f64");
    let mut out = std::io::BufWriter::with_capacity(1 << 20, out);
    let (mut panel, mut projected) = (Panel::default(), Vec::new());
    for block in matrix.blocks(ROWS_AT_ONCE) {
        let block = matrix.little(block, &mut swapped);
        panel.load::<T>(Level::best(), block, &mean);
        multiply(Level::best(), &panel, &directions, &mut projected);
        let rows = block.chunks_exact(matrix.row_bytes());
        for (row, projected) in rows.zip(projected.chunks_exact_mut(components)) {
            if missing.is_some_and(|missing| any(row, |value: T| value.same(missing))) {
                projected.fill(f64::NAN);
            }
            write_row(projected, raw, &mut out)?;
        }
    }
    out.flush().map_err(BuiltinError::Write)
}
