//! `kmeans`: clusters of the rows of a matrix, by Lloyd's algorithm ("Least squares quantization in PCM", 1982). k-means++ (Arthur and
//! Vassilvitskii, 2007, §2.2) chooses the first centres among at most 65 536 rows from the whole matrix, or an input contains them.
//!
//! Computations use `f32` if that is the type of the rows and `f64` otherwise, after subtracting the mean of all rows. The nearest centre
//! c of a row x is the one with the largest x·c - |c|²/2, summed fused from -|c|²/2 on; of equal ones the first. Sums for new centres are
//! in `f64`, over fixed parts of the rows that are combined in order, so the result depends neither on `threads=` nor on the processor. A
//! centre without rows keeps its position.
//!
//! Rows with a missing value are skipped; their label is -1. A NaN or infinite value that is not missing is an error.

use std::io::Write;

use super::BuiltinError;
use super::matrix::{RowMatrix, any, not_finite};
use super::table::{BuiltinKernel, INPUT, KernelArgument, KernelConstructor, KernelOptions};
use super::values::{FORMAT, NumericResult, ORDER, OUT, missing, with_dtype};
use crate::loops::nearest::{Centres, Nearest};
use crate::loops::number::{Number, decimal};
use crate::loops::product::{Computed, Panel, RealNumber, add_rows};
use crate::loops::simd::{Level, SimdPass, run};
use crate::threads::{Pile, in_threads};

/// Kernel `kmeans`, for the table of built-in kernels.
pub(super) const KERNELS: &[BuiltinKernel] = &[BuiltinKernel {
    name: "kmeans",
    revision: 2,
    help: "clusters of the rows of a matrix, around centres",
    args: &[KMEANS, FORMAT, OUT, ORDER],
    usage: None,
    prepare: None,
    code: KernelConstructor::Whole(kmeans),
}];

const KMEANS: &[KernelArgument] = &[
    KernelArgument {
        key: "columns",
        values: "COUNT",
        default: "",
        help: "values in a row, at most 4096",
    },
    KernelArgument {
        key: "k",
        values: "COUNT",
        default: "",
        help: "number of clusters, at most 65536",
    },
    KernelArgument {
        key: "start",
        values: INPUT,
        default: "",
        help: "name of the input with the first centres, as rows (the default is to choose them)",
    },
    KernelArgument {
        key: "seed",
        values: "N",
        default: "0",
        help: "seed for the choice of the first centres",
    },
    KernelArgument {
        key: "iterations",
        values: "COUNT",
        default: "300",
        help: "maximum number of iterations",
    },
    KernelArgument {
        key: "tolerance",
        values: "NUMBER",
        default: "0.0001",
        help: "end if the sum of the squares of all moves is at most this many times the mean variance of the columns",
    },
    KernelArgument {
        key: "show",
        values: "centres|labels|summary",
        default: "centres",
        help: "a line for each cluster: its rows, its centre; or a line for each row: its cluster, from 0; or the sum of \
         squares, the iterations, whether it converged",
    },
    KernelArgument {
        key: "threads",
        values: "COUNT",
        default: "1",
        help: "threads that find the nearest centres; the result does not depend on them",
    },
];

const COLUMNS_MAX: usize = 4096;
const CLUSTERS_MAX: usize = 65_536;

/// Number of rows in a part of the matrix; the sums of parts are combined in order.
const PART_ROWS: usize = 1 << 13;

/// Approximate number of values that are processed at a time; they stay in the first-level cache.
const PANEL_VALUES: usize = 1 << 11;

/// Maximum number of rows among which k-means++ chooses the first centres.
const SAMPLE_ROWS: usize = 1 << 16;

fn kmeans(
    options: &KernelOptions,
    inputs: &[String],
    out: &mut dyn Write,
) -> Result<(), BuiltinError> {
    let bounded = |key, most: usize| match options.positive(key)? {
        Some(count) if count > most => {
            Err(options.wrong(key, &count.to_string(), &format!("1 to {most}")))
        }
        count => options.needed(key, count),
    };
    let (columns, k) = (
        bounded("columns", COLUMNS_MAX)?,
        bounded("k", CLUSTERS_MAX)?,
    );
    let matrix = RowMatrix::open(options, inputs, columns)?;
    with_dtype!(options, |T| Clustering::<T> {
        matrix: &matrix,
        missing: missing::<T>(options)?,
        threads: options.threads()?,
        shift: Vec::new(),
    }
    .run(options, k, out))
}

/// Input and state of a clustering.
struct Clustering<'a, T: Computed> {
    matrix: &'a RowMatrix,
    missing: Option<T>,
    threads: usize,
    /// Values that are subtracted from each column before the computation.
    shift: Vec<T::Real>,
}

/// Results of a pass over a part of the rows.
#[derive(Default)]
struct RowsResult {
    /// Sums of the rows of each cluster.
    sums: Vec<f64>,
    counts: Vec<u64>,
    /// Sum of the squared distances of the rows from their centres, if requested.
    squares: f64,
    /// Cluster label of each row, if requested.
    labels: Vec<i32>,
}

/// Results that a pass returns in addition to the number of rows in each cluster.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PassResults {
    Counts,
    Sums,
    Labels,
    Squares,
}

impl<T: Computed> Clustering<'_, T> {
    fn run(
        mut self,
        options: &KernelOptions,
        k: usize,
        out: &mut dyn Write,
    ) -> Result<(), BuiltinError> {
        let columns = self.matrix.columns();
        let most = options.number("iterations", "a whole number")?;
        let most: u64 = most.unwrap_or_default();
        let tolerance: f64 = options.number("tolerance", "a number")?.unwrap_or(0.0);
        let (rows, mean, variance) = self.overview(tolerance > 0.0)?;
        if rows < k as u64 {
            let (kernel, needed) = ("kmeans", k as u64);
            return Err(BuiltinError::TooFewRows {
                kernel,
                needed,
                rows,
            });
        }
        self.shift = mean.iter().map(|mean| T::Real::of(*mean)).collect();
        let mut centres = match options.text("start") {
            Some(name) => self.start(options, name, k)?,
            None => self.choose(
                rows,
                k,
                options
                    .number("seed", "a whole number")?
                    .unwrap_or_default(),
            ),
        };
        let tolerance = tolerance * variance;
        let (mut iterations, mut converged) = (0, false);
        while iterations < most && !converged {
            let found = self.pass(&centres, PassResults::Sums);
            let mut moved = 0.0;
            for (cluster, count) in found
                .counts
                .iter()
                .enumerate()
                .filter(|(_, count)| **count > 0)
            {
                let place = cluster * columns..(cluster + 1) * columns;
                for (centre, sum) in centres[place.clone()].iter_mut().zip(&found.sums[place]) {
                    #[allow(clippy::cast_precision_loss, reason = "a count is a divisor here")]
                    let new = sum / *count as f64;
                    moved += (new - *centre) * (new - *centre);
                    *centre = new;
                }
            }
            iterations += 1;
            converged = moved <= tolerance;
        }
        let look = match options.text("show") {
            Some("labels") => PassResults::Labels,
            Some("summary") => PassResults::Squares,
            _ => PassResults::Counts,
        };
        let found = self.pass(&centres, look);
        self.show(options, &centres, &found, iterations, converged, out)
    }

    fn passed(&self, row: &[u8]) -> bool {
        let missing = self.missing;
        missing.is_some_and(|missing| any(row, |value: T| value.same(missing)))
    }

    /// Calls `work` for each part of the rows with the number of its first row, on all threads; returns the results in order.
    fn parts<O: Send>(&self, work: impl Fn(usize, &[u8]) -> O + Sync) -> Vec<O> {
        let mut first = 0;
        let mut parts: Vec<_> = self
            .matrix
            .blocks(PART_ROWS)
            .map(|part| {
                let numbered = (first, part);
                first += part.len() / self.matrix.row_bytes();
                numbered
            })
            .collect();
        parts.reverse();
        let threads = self.threads.min(parts.len()).max(1);
        let parts = Pile::new(parts);
        let done = in_threads(vec![(); threads], |()| {
            let mut swapped = Vec::new();
            let mut done = Vec::new();
            while let Some((first, part)) = parts.take() {
                let part = self.matrix.little(part, &mut swapped);
                done.push((first, work(first, part)));
            }
            done
        });
        let mut done: Vec<_> = done.into_iter().flatten().collect();
        done.sort_unstable_by_key(|(first, _)| *first);
        done.into_iter().map(|(_, found)| found).collect()
    }

    /// Returns the number of rows that count, the mean of each column, and the mean of the columns' variances, if requested.
    #[allow(clippy::cast_precision_loss, reason = "counts are divisors here")]
    fn overview(&self, variance: bool) -> Result<(u64, Vec<f64>, f64), BuiltinError> {
        let columns = self.matrix.columns();
        let zeros = vec![0.0; columns];
        let (rows, sums) = self.column_sums(&zeros, |distance| distance);
        // The sum shows whether a value is not finite.
        if !sums.iter().all(|sum| sum.is_finite()) {
            let bad = self.parts(|first, part| {
                let bad = not_finite::<T>(part, columns, |row| self.passed(row));
                bad.map(|(row, column)| (first + row, column))
            });
            if let Some((row, column)) = bad.into_iter().flatten().next() {
                let (row, column) = (row as u64, column as u64);
                return Err(BuiltinError::NotFinite { row, column });
            }
        }
        let mean: Vec<_> = sums.iter().map(|sum| sum / rows.max(1) as f64).collect();
        if !variance {
            return Ok((rows, mean, 0.0));
        }
        let (_, squares) = self.column_sums(&mean, |distance| distance * distance);
        let variance = squares.iter().sum::<f64>() / rows.max(1) as f64 / columns as f64;
        Ok((rows, mean, variance))
    }

    /// Returns the number of rows, and for each column the sum of the results of `of` for distances from `from`.
    fn column_sums(&self, from: &[f64], of: impl Fn(f64) -> f64 + Copy + Sync) -> (u64, Vec<f64>) {
        let found = self.parts(|_, part| {
            let (mut rows, mut sums) = (0_u64, vec![0.0; from.len()]);
            let mut panel = Panel::default();
            self.panels(part, |bytes, _| {
                panel.load::<T>(Level::best(), bytes, from);
                rows += panel.rows as u64;
                add_rows(Level::best(), &panel, &mut sums, of);
            });
            (rows, sums)
        });
        found.into_iter().fold(
            (0, vec![0.0; from.len()]),
            |(rows, mut all), (more, sums)| {
                all.iter_mut().zip(&sums).for_each(|(all, sum)| *all += sum);
                (rows + more, all)
            },
        )
    }

    /// Passes on some rows at a time, without skipped rows, and a mask of the skipped rows.
    fn panels(&self, part: &[u8], mut work: impl FnMut(&[u8], &[bool])) {
        let row = self.matrix.row_bytes();
        let rows = (PANEL_VALUES / self.matrix.columns()).next_multiple_of(64);
        let (mut kept, mut passed) = (Vec::new(), Vec::new());
        for bytes in part.chunks(rows * row) {
            if self.missing.is_none() {
                work(bytes, &[]);
                continue;
            }
            kept.clear();
            passed.clear();
            for row in bytes.chunks_exact(row) {
                passed.push(self.passed(row));
                if !passed[passed.len() - 1] {
                    kept.extend_from_slice(row);
                }
            }
            work(&kept, &passed);
        }
    }

    /// Returns the first centres from an input, minus the shift.
    fn start(
        &self,
        options: &KernelOptions,
        name: &str,
        k: usize,
    ) -> Result<Vec<f64>, BuiltinError> {
        let columns = self.matrix.columns();
        let start = RowMatrix::open(options, std::slice::from_ref(&name.to_owned()), columns)?;
        let mut centres = Vec::new();
        let mut swapped = Vec::new();
        for block in start.blocks(PART_ROWS) {
            let values = start.little(block, &mut swapped);
            centres.extend(
                values
                    .chunks_exact(T::SIZE)
                    .map(|value| T::read(value).to_f64()),
            );
        }
        let rows = start.rows();
        if rows != k || centres.iter().any(|value| !value.is_finite()) {
            let valid = format!(
                "an input of {k} rows of {columns} finite values, but this has {rows} rows"
            );
            return Err(options.wrong("start", name, &valid));
        }
        for row in centres.chunks_exact_mut(columns) {
            row.iter_mut()
                .zip(&self.shift)
                .for_each(|(value, shift)| *value -= shift.to_f64());
        }
        Ok(centres)
    }

    /// Returns the first centres that k-means++ chooses among the `there` rows that count, minus the shift.
    fn choose(&self, there: u64, k: usize, seed: u64) -> Vec<f64> {
        let columns = self.matrix.columns();
        let step = there.div_ceil(SAMPLE_ROWS.max(2 * k) as u64);
        let (mut sample, mut swapped) = (Vec::new(), Vec::new());
        let mut panel = Panel::default();
        // One row of each `step`, at a random place that does not follow patterns of the data.
        let mut chance = SplitMix(!seed);
        let (mut turn, mut picked) = (0, 0);
        for row in self.matrix.blocks(1) {
            if self.missing.is_some() && self.passed(self.matrix.little(row, &mut swapped)) {
                continue;
            }
            if turn % step == 0 {
                picked = turn + chance.below(step);
            }
            if turn == picked {
                let row = self.matrix.little(row, &mut swapped);
                panel.load::<T>(Level::Portable, row, &self.shift);
                sample.extend(panel.values[..columns].iter().map(|value| value.to_f64()));
            }
            turn += 1;
        }
        plus_plus(&sample, columns, k, seed)
    }

    /// Finds the nearest centre of each row, and returns the requested results.
    fn pass(&self, centres: &[f64], look: PassResults) -> RowsResult {
        let columns = self.matrix.columns();
        let k = centres.len() / columns;
        let packed = Centres::<T::Real>::new(centres, columns);
        let parts = self.parts(|_, part| {
            let mut found = RowsResult {
                counts: vec![0; k],
                ..RowsResult::default()
            };
            let (mut panel, mut nearest) = (Panel::default(), Nearest::default());
            let (mut clusters, mut sums) = (Vec::new(), Vec::new());
            let level = Level::best();
            self.panels(part, |bytes, passed| {
                panel.load::<T>(level, bytes, &self.shift);
                nearest.find(level, &panel, &packed, &mut clusters);
                let (panel, clusters) = (&panel, &clusters[..]);
                for cluster in clusters {
                    found.counts[*cluster as usize] += 1;
                }
                match look {
                    PassResults::Counts => {}
                    PassResults::Sums => {
                        sums.resize(k * panel.width, 0.0);
                        let sums = &mut sums[..];
                        run(
                            level,
                            Gather {
                                panel,
                                clusters,
                                sums,
                            },
                        );
                    }
                    PassResults::Labels => label(clusters, passed, &mut found.labels),
                    PassResults::Squares => {
                        found.squares += squares(panel, clusters, centres, columns)
                    }
                }
            });
            let sums = sums.chunks_exact(panel.width.max(1));
            found.sums = sums.flat_map(|sums| &sums[..columns]).copied().collect();
            found
        });
        parts
            .into_iter()
            .reduce(RowsResult::with)
            .unwrap_or_default()
    }

    fn show(
        &self,
        options: &KernelOptions,
        centres: &[f64],
        found: &RowsResult,
        iterations: u64,
        converged: bool,
        out: &mut dyn Write,
    ) -> Result<(), BuiltinError> {
        let raw = options.is("out", "f64");
        #[allow(
            clippy::cast_precision_loss,
            reason = "counts are given as f64 where asked"
        )]
        match options.text("show") {
            Some("labels") => {
                let labels = found.labels.chunks(1 << 16);
                labels
                    .map(|labels| labels.iter().map(|label| f64::from(*label)).collect())
                    .try_for_each(|values: Vec<f64>| {
                        let text: String =
                            values.iter().map(|label| format!("{label}\n")).collect();
                        let text = text.trim_end().to_owned();
                        NumericResult { values, text }.write(raw, out)
                    })
            }
            Some("summary") => {
                let values = vec![
                    found.squares,
                    iterations as f64,
                    f64::from(u8::from(converged)),
                ];
                let converged = if converged { "converged" } else { "stopped" };
                let text = format!("{} {iterations} {converged}", decimal(found.squares));
                NumericResult { values, text }.write(raw, out)
            }
            _ => {
                let columns = self.matrix.columns();
                for (centre, count) in centres.chunks_exact(columns).zip(&found.counts) {
                    let mut row = vec![*count as f64];
                    row.extend(
                        centre
                            .iter()
                            .zip(&self.shift)
                            .map(|(value, shift)| value + shift.to_f64()),
                    );
                    NumericResult::floats(row).write(raw, out)?;
                }
                Ok(())
            }
        }
    }
}

impl RowsResult {
    /// Combines the results of this part and the next part.
    fn with(mut self, after: Self) -> Self {
        self.sums
            .iter_mut()
            .zip(&after.sums)
            .for_each(|(sum, more)| *sum += more);
        self.counts
            .iter_mut()
            .zip(&after.counts)
            .for_each(|(count, more)| *count += more);
        self.squares += after.squares;
        self.labels.extend(after.labels);
        self
    }
}

/// Writes the cluster label of each row, and -1 for skipped rows.
fn label(nearest: &[u32], passed: &[bool], labels: &mut Vec<i32>) {
    let mut nearest = nearest
        .iter()
        .map(|cluster| i32::try_from(*cluster).unwrap_or(i32::MAX));
    if passed.is_empty() {
        return labels.extend(nearest);
    }
    labels.extend(passed.iter().map(|passed| {
        if *passed {
            -1
        } else {
            nearest.next().unwrap_or(-1)
        }
    }));
}

/// Returns the sum of the squared distances of rows from their centres.
fn squares<R: RealNumber>(
    panel: &Panel<R>,
    nearest: &[u32],
    centres: &[f64],
    columns: usize,
) -> f64 {
    let rows = panel.values.chunks_exact(panel.width).zip(nearest);
    rows.map(|(row, cluster)| distance(row, &centres[*cluster as usize * columns..][..columns]))
        .sum()
}

/// Returns the squared distance of a row from a centre.
fn distance<R: RealNumber>(row: &[R], centre: &[f64]) -> f64 {
    let pairs = row.iter().zip(centre);
    pairs
        .map(|(value, centre)| (value.to_f64() - centre) * (value.to_f64() - centre))
        .sum()
}

/// Adds rows to the sums of their clusters; the sums are as wide as the panel.
struct Gather<'a, R> {
    panel: &'a Panel<R>,
    clusters: &'a [u32],
    sums: &'a mut [f64],
}

impl<R: RealNumber> SimdPass for Gather<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let width = self.panel.width;
        let rows = self.panel.values.chunks_exact(width);
        for (row, cluster) in rows.zip(self.clusters) {
            let sums = &mut self.sums[*cluster as usize * width..][..width];
            // Compilers find vectors for this loop, but not all do for rows in pieces of fixed length.
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum += value.to_f64();
            }
        }
    }
}

/// Chooses `k` rows: each next row with a probability in proportion to its squared distance from the nearest chosen row.
fn plus_plus(rows: &[f64], columns: usize, k: usize, seed: u64) -> Vec<f64> {
    let rows: Vec<&[f64]> = rows.chunks_exact(columns).collect();
    let mut chance = SplitMix(seed);
    let mut far = vec![f64::INFINITY; rows.len()];
    let mut chosen = Vec::with_capacity(k * columns);
    let some = chance.below(rows.len() as u64);
    let mut next = usize::try_from(some).expect("it is below the number of rows");
    for _ in 0..k {
        let centre = rows[next.min(rows.len() - 1)];
        chosen.extend_from_slice(centre);
        for (far, row) in far.iter_mut().zip(&rows) {
            *far = far.min(distance(row, centre));
        }
        let mut left = chance.next() * far.iter().sum::<f64>();
        // The last row with any distance, in case rounding leaves a rest.
        let last = far.iter().rposition(|far| *far > 0.0).unwrap_or(0);
        let found = far.iter().position(|far| {
            left -= far;
            left <= 0.0 && *far > 0.0
        });
        next = found.unwrap_or(last);
    }
    chosen
}

/// Random numbers from 0 to 1: SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
struct SplitMix(u64);

impl SplitMix {
    /// Returns a random whole number below `end`.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "far fewer than 2^53 are chosen among"
    )]
    fn below(&mut self, end: u64) -> u64 {
        ((self.next() * end as f64) as u64).min(end - 1)
    }

    #[allow(clippy::cast_precision_loss, reason = "53 bits are left")]
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}
