//! Selects the indices of a dimension by a range of its coordinate's values.

use tidemill_format::IndexRange;

use super::plan::PlannedCoordinate;

/// Maximum number of runs of indices of one dimension of a file.
const RUNS_MAX: usize = 64;

/// Selected indices of a dimension.
pub(super) struct ChosenIndices {
    /// Runs of selected indices, in the order of the result.
    pub(super) runs: Vec<IndexRange>,
    /// All values of the coordinate, in which selected longitudes are those of the selection; `None` if all are the file's own values.
    pub(super) values: Option<Vec<f64>>,
    /// Number of missing values of the coordinate.
    pub(super) missing: usize,
}

/// Range from the least to the greatest selected value, and whether the greatest value is included.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValueInterval {
    pub(super) least: f64,
    pub(super) most: f64,
    pub(super) through: bool,
}

impl ValueInterval {
    /// Converts the ends of the range to the coordinate's own type.
    pub(super) fn of(found: &PlannedCoordinate, (least, most, through): (f64, f64, bool)) -> Self {
        let own = |value: f64| match found.single && found.units.is_none() {
            #[expect(clippy::cast_possible_truncation, reason = "the nearest is wanted")]
            true => f64::from(value as f32),
            false => value,
        };
        let slack = if found.units.is_none() {
            found.slack
        } else {
            0.0
        };
        Self {
            least: own(least) - slack,
            most: own(most) + slack,
            through,
        }
    }

    pub(super) fn has(self, value: f64) -> bool {
        value >= self.least && (value < self.most || self.through && value <= self.most)
    }

    /// Returns whether the range extends more than one and a half steps beyond the values of the coordinate.
    pub(super) fn is_beyond(
        self,
        values: impl Iterator<Item = f64>,
        picked: Option<(f64, f64)>,
    ) -> bool {
        let mut sorted: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        sorted.dedup();
        let [first, second, ..] = sorted[..] else {
            return false;
        };
        let [.., before, last] = sorted[..] else {
            return false;
        };
        let (low, high) = picked.unwrap_or((first, last));
        let below = self.least.is_finite() && self.least < low - 1.5 * (second - first);
        below || self.most.is_finite() && self.most > high + 1.5 * (last - before)
    }
}

fn run(start: usize, end: usize) -> IndexRange {
    IndexRange {
        start: start as u64,
        end: end as u64,
        step: 1,
    }
}

/// Returns the runs of indices for which a condition is true.
fn runs(count: usize, holds: impl Fn(usize) -> bool) -> Vec<(usize, usize)> {
    let mut found: Vec<(usize, usize)> = Vec::new();
    for index in (0..count).filter(|index| holds(*index)) {
        match found.last_mut() {
            Some((_, end)) if *end == index => *end += 1,
            _ => found.push((index, index + 1)),
        }
    }
    found
}

fn few(found: &[(usize, usize)]) -> Result<(), String> {
    match found.len() <= RUNS_MAX {
        true => Ok(()),
        false => Err(format!(
            "the selection has more than {RUNS_MAX} runs of indices"
        )),
    }
}

/// Selects indices by the ascending or descending values of a coordinate. Some of the values may be missing.
pub(super) fn by_values(values: &[f64], span: ValueInterval) -> Result<ChosenIndices, String> {
    let found = runs(values.len(), |index| span.has(values[index]));
    few(&found)?;
    let gaps = found.windows(2).map(|pair| pair[0].1..pair[1].0);
    let mut between = gaps.flat_map(|gap| &values[gap]);
    if between.any(|value| !value.is_nan()) {
        return Err("the selected values are not contiguous, because the coordinate is periodic or not monotonic; select by index: [START:END]".into());
    }
    Ok(ChosenIndices {
        runs: found
            .into_iter()
            .map(|(start, end)| run(start, end))
            .collect(),
        values: None,
        missing: values.iter().filter(|value| value.is_nan()).count(),
    })
}

/// Selects indices by longitudes, which are periodic with 360 degrees.
pub(super) fn by_longitudes(
    found: &PlannedCoordinate,
    span: ValueInterval,
) -> Result<ChosenIndices, String> {
    let values = &found.values;
    if !span.least.is_finite() || !span.most.is_finite() {
        return by_values(values, span);
    }
    let slack = if found.single { 3.1e-5 } else { 1e-9 };
    let turned = |value: f64| {
        if span.has(value) {
            return Some(value);
        }
        let turns = ((span.least - slack - value) / 360.0).ceil();
        let turned = value + 360.0 * turns;
        (turned <= span.most + slack).then_some(turned)
    };
    let turned: Vec<Option<f64>> = values.iter().map(|value| turned(*value)).collect();
    let turns =
        |index: usize| turned[index].map(|turned| ((turned - values[index]) / 360.0).round());
    let mut all = Vec::new();
    for (start, end) in runs(values.len(), |index| turned[index].is_some()) {
        let mut from = start;
        for index in start..end {
            if index + 1 == end || turns(index) != turns(index + 1) {
                all.push((from, index + 1));
                from = index + 1;
            }
        }
    }
    few(&all)?;
    let first = |run: &(usize, usize)| turned[run.0].unwrap_or(f64::NAN);
    let ends = |run: &(usize, usize)| (first(run), turned[run.1 - 1].unwrap_or(f64::NAN));
    let descends = all
        .iter()
        .map(ends)
        .find(|(first, last)| (first - last).abs() > 0.0)
        .is_some_and(|(first, last)| first > last);
    let sign = if descends { -1.0 } else { 1.0 };
    all.sort_by(|one, other| (sign * first(one)).total_cmp(&(sign * first(other))));
    let order: Vec<f64> = all
        .iter()
        .flat_map(|(start, end)| &turned[*start..*end])
        .flatten()
        .map(|value| sign * value)
        .collect();
    let wraps = (0..values.len()).any(|index| turns(index).is_some_and(|turns| turns.abs() > 0.5));
    if !wraps {
        return by_values(values, span);
    }
    if !order.windows(2).all(|pair| pair[0] < pair[1]) {
        return Err(
            "two of its values are one longitude, or they are not monotonic; select by index: [START:END]"
                .into(),
        );
    }
    let shown = turned.iter().zip(values);
    Ok(ChosenIndices {
        runs: all.iter().map(|(start, end)| run(*start, *end)).collect(),
        values: Some(
            shown
                .map(|(turned, value)| turned.unwrap_or(*value))
                .collect(),
        ),
        missing: values.iter().filter(|value| value.is_nan()).count(),
    })
}

/// Selects every `step`-th of the selected indices; `taken` counts the selected indices of the previous files.
pub(super) fn every(runs: &[IndexRange], step: u64, taken: &mut u64) -> Vec<IndexRange> {
    let mut left = Vec::new();
    for one in runs {
        let skipped = (step - *taken % step) % step;
        *taken += one.count();
        let start = one.start + skipped;
        if start < one.end {
            left.push(IndexRange {
                start,
                end: one.end,
                step,
            });
        }
    }
    left
}

/// Returns the runs of indices without the excluded indices.
pub(super) fn without(
    ranges: &[IndexRange],
    left_out: impl Fn(u64) -> bool,
) -> Result<Vec<IndexRange>, String> {
    let mut all = Vec::new();
    for range in ranges {
        let at = |place: usize| range.start + place as u64 * range.step;
        let count = usize::try_from(range.count()).unwrap_or(usize::MAX);
        let kept = runs(count, |place| !left_out(at(place)));
        let of = |(start, end): (usize, usize)| IndexRange {
            start: at(start),
            end: at(end - 1) + 1,
            step: range.step,
        };
        all.extend(kept.into_iter().map(of));
    }
    match all.len() <= RUNS_MAX.max(ranges.len()) {
        true => Ok(all),
        false => Err(format!(
            "without missing values, it has more than {RUNS_MAX} runs of indices"
        )),
    }
}
