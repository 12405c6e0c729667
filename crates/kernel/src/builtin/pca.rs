//! `pca`: principal components of the rows of a matrix, by its covariances.
//!
//! **Covariances** are a fold: rows are summed in blocks that begin at multiples of their size, around the block's mean, and blocks are put
//! together in pairs, pairs of pairs and so on (Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing
//! Sample Variances", 1979, eq. 1.5), always the same ones, whatever comes when. Means are kept as a value nearby and the distance from
//! it, so how far values are from 0 does not matter: with s and t the standard deviations of two columns, the error of their covariance
//! is at most 2¹⁴ × 2⁻⁵³ × s × t.
//!
//! **Rows** with a missing value are passed over. A NaN or infinite value that is not missing is an error, which names the first.

use std::collections::BTreeMap;
use std::io::Write;

use serde::{Deserialize, Serialize};

use super::BuiltinError;
use super::matrix::{Matrix, any, not_finite};
use super::table::{Arg, Code, Input, Kernel, Made, Options};
use super::values::{FORMAT, ORDER, OUT, Take, fold_of_dtype, missing, with_dtype};
use crate::loops::eigen::eigen;
use crate::loops::number::{Number, decimal};
use crate::loops::product::{Columns, Panel, add_rows, gram, multiply};
use crate::loops::simd::Level;

/// This group's part of the table.
pub(super) const KERNELS: &[Kernel] = &[Kernel {
    name: "pca",
    revision: 1,
    help: "principal components of the rows of a matrix",
    args: &[PCA, FORMAT, OUT, ORDER],
    usage: None,
    prepare: None,
    code: Code::Either(Input::Values, |options| {
        if options.is("show", "projection") {
            return Ok(Made::Whole(project));
        }
        covariances(options)
    }),
}];

const PCA: &[Arg] = &[
    Arg {
        key: "columns",
        values: "COUNT",
        default: "",
        help: "values in a row, at most 1024",
    },
    Arg {
        key: "components",
        values: "COUNT",
        default: "",
        help: "how many components to give, those of the largest variance (the default is all)",
    },
    Arg {
        key: "show",
        values: "components|mean|projection",
        default: "components",
        help: "a line a component: its variance, its share of all variance, its direction; or the mean; or each row, along the components",
    },
];

/// Most columns: covariances of as many are 8 MiB.
const COLUMNS_MAX: usize = 1024;

/// Values of a block, about; it stays in the second-level cache.
const BLOCK_VALUES: usize = 1 << 15;

/// Rows of a block, at least and at most.
const BLOCK_ROWS: (usize, usize) = (128, 4096);

fn columns(options: &Options) -> Result<(usize, usize), BuiltinError> {
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

/// The fold; what is shown of it at its end.
fn covariances(options: &Options) -> Result<Made, BuiltinError> {
    let (columns, components) = columns(options)?;
    let settings = Settings {
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
    .map(Made::Fold)
}

#[derive(Clone, Copy, Debug, Default)]
struct Settings {
    columns: usize,
    components: usize,
    mean: bool,
    raw: bool,
}

/// Mean and scatter of some rows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Moments {
    rows: u64,
    /// Values near the means.
    near: Vec<f64>,
    /// How far the means are from there.
    off: Vec<f64>,
    /// Sums of products of distances from the means, of columns and those not before them, row by row.
    scatter: Vec<f64>,
}

impl Moments {
    /// Of these and the rows behind them.
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

/// What was found so far.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(bound = "")]
struct Covariances<T: Number> {
    #[serde(skip)]
    settings: Settings,
    #[serde(skip)]
    missing: Option<T>,
    /// Values taken.
    values: u64,
    /// The index of the first value that is not finite.
    bad: Option<u64>,
    /// Parts of blocks, by block and by the index of the first value.
    parts: BTreeMap<u64, BTreeMap<u64, Vec<u8>>>,
    /// Of `2^level` blocks each: level, which of them, and they.
    nodes: BTreeMap<(u8, u64), Moments>,
    #[serde(skip)]
    panel: Panel<f64>,
    #[serde(skip)]
    scatter: Vec<f64>,
}

impl<T: Number> Covariances<T> {
    /// Values of a block.
    fn block_values(&self) -> usize {
        let columns = self.settings.columns;
        (BLOCK_VALUES / columns).clamp(BLOCK_ROWS.0, BLOCK_ROWS.1) * columns
    }

    /// Takes in a block, all rows of which are whole.
    fn block(&mut self, number: u64, values: &[u8]) {
        let first = number * self.block_values() as u64;
        let missing = self.missing;
        let passed =
            |row: &[u8]| missing.is_some_and(|missing| any(row, |value: T| value.same(missing)));
        let columns = self.settings.columns;
        if let Some((row, column)) = not_finite::<T>(values, columns, passed) {
            let index = first + (row * columns + column) as u64;
            self.bad = Some(self.bad.map_or(index, |known| known.min(index)));
        }
        let moments = if missing.is_some() {
            let rows = values.chunks_exact(columns * T::SIZE);
            let kept: Vec<u8> = rows.filter(|row| !passed(row)).flatten().copied().collect();
            self.moments(&kept)
        } else {
            self.moments(values)
        };
        self.insert(0, number, moments);
    }

    /// Mean and scatter of a block.
    #[allow(clippy::cast_precision_loss, reason = "a block has few rows")]
    fn moments(&mut self, values: &[u8]) -> Moments {
        let columns = self.settings.columns;
        let rows = values.len() / T::SIZE / columns;
        let mut near = vec![0.0; columns];
        if rows > 0 {
            let level = Level::best();
            self.panel.load::<T>(level, values, &near);
            add_rows(level, &self.panel, &mut near, |value| value);
            near.iter_mut().for_each(|sum| *sum /= rows as f64);
            self.panel.load::<T>(level, values, &near);
        }
        let mut off = vec![0.0; columns];
        let mut scatter = Vec::with_capacity(columns * (columns + 1) / 2);
        if rows > 0 {
            add_rows(Level::best(), &self.panel, &mut off, |value| value);
            off.iter_mut().for_each(|sum| *sum /= rows as f64);
            let width = self.panel.width;
            self.scatter.clear();
            self.scatter.resize(width * width, 0.0);
            gram(Level::best(), &self.panel, &mut self.scatter);
            for first in 0..columns {
                let sums = &self.scatter[first * width + first..(first * width) + columns];
                let rounded = sums.iter().zip(&off[first..]);
                scatter.extend(rounded.map(|(sum, far)| sum - rows as f64 * off[first] * far));
            }
        }
        let rows = rows as u64;
        Moments {
            rows,
            near,
            off,
            scatter,
        }
    }

    /// Adds what was found in `2^level` blocks, and puts it together with its pair as far as that is there.
    fn insert(&mut self, mut level: u8, mut index: u64, mut moments: Moments) {
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

    /// Keeps a part of a block, or takes the block in if all of it is there.
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

    /// All that there is, at the end.
    fn all(mut self) -> Result<Moments, BuiltinError> {
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

impl<T: Number> Take<T> for Covariances<T> {
    fn take(&mut self, first: u64, mut values: &[u8]) {
        self.values += (values.len() / T::SIZE) as u64;
        let most = self.block_values();
        let mut index = first;
        while !values.is_empty() {
            let room = most - usize::try_from(index % most as u64).expect("a block has few values");
            let (block, rest) = values.split_at(values.len().min(room * T::SIZE));
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

/// Writes numbers as a line, or raw.
fn write_row(row: &[f64], raw: bool, out: &mut dyn Write) -> Result<(), BuiltinError> {
    if raw {
        let bytes: Vec<u8> = row.iter().flat_map(|value| value.to_le_bytes()).collect();
        return out.write_all(&bytes).map_err(BuiltinError::Write);
    }
    let words: Vec<_> = row.iter().map(|value| decimal(*value)).collect();
    writeln!(out, "{}", words.join(" ")).map_err(BuiltinError::Write)
}

/// The components of the largest variance.
struct Components {
    columns: usize,
    total: f64,
    variances: Vec<f64>,
    vectors: Vec<f64>,
}

impl Components {
    #[allow(clippy::cast_precision_loss, reason = "the count of rows is a divisor")]
    fn new(all: &Moments, settings: Settings) -> Self {
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

/// Rows that are projected at a time.
const ROWS_AT_ONCE: usize = 1024;

/// Gives each row along the components, in a second pass; NaN for those that are passed over.
fn project(options: &Options, inputs: &[String], out: &mut dyn Write) -> Result<(), BuiltinError> {
    let (columns, _) = columns(options)?;
    let matrix = Matrix::open(options, inputs, columns)?;
    with_dtype!(options, |T| project_values::<T>(options, &matrix, out))
}

fn project_values<T: Number>(
    options: &Options,
    matrix: &Matrix,
    out: &mut dyn Write,
) -> Result<(), BuiltinError> {
    let (columns, components) = columns(options)?;
    let missing = missing::<T>(options)?;
    let mut fold = Covariances::<T> {
        settings: Settings {
            columns,
            components,
            ..Settings::default()
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
