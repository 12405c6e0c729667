//! Times that values represent: the time stamp of a value, or the interval that the file has for it.

use super::error::Result;
use super::plan::{PlannedCoordinate, PlannedFile};
use super::query::TimeAt;

/// Distance from the end of an interval within which a time counts as the end, in seconds.
const BEFORE_END: f64 = 1e-3;

/// Returns a time for each index, in the units of the file. If the meaning of time stamps is not given, no stamp may be in another group
/// than its whole interval in the file.
pub(super) fn stamps(
    file: &PlannedFile<'_>,
    dimension: usize,
    (found, at): (&PlannedCoordinate, Option<TimeAt>),
    group: impl Fn(f64) -> Option<i64>,
) -> Result<Vec<f64>> {
    let Some(units) = found.units else {
        return Ok(found.values.clone());
    };
    let before = |value: f64| units.value(units.seconds(value) - BEFORE_END);
    match at {
        Some(TimeAt::Start | TimeAt::Middle) => Ok(found.values.clone()),
        Some(TimeAt::End) => Ok(found.values.iter().map(|value| before(*value)).collect()),
        Some(TimeAt::Bounds) => {
            let intervals = file.intervals(dimension)?;
            let intervals = intervals.ok_or_else(|| {
                file.wrong(
                    dimension,
                    "the file has no bounds for it, which --time-at needs",
                )
            })?;
            // An index without a time has no interval either.
            let middle = |(value, (start, end)): (&f64, &(f64, f64))| match value.is_nan() {
                true => f64::NAN,
                false => start + (end - start) / 2.0,
            };
            Ok(found.values.iter().zip(&intervals).map(middle).collect())
        }
        None => {
            for (value, (start, end)) in found
                .values
                .iter()
                .zip(file.intervals(dimension)?.iter().flatten())
            {
                let inside = (group(*start), group(before(*end)));
                let is_other = |one: i64| group(*value).is_some_and(|own| own != one);
                if start < end && inside.0 == inside.1 && inside.0.is_some_and(is_other) {
                    let why = format!(
                        "its stamps are outside of their intervals ({} for {} to {}), and values would count for another time; \
                         give their meaning by --time-at bounds, start, middle or end",
                        found.shown(*value),
                        found.shown(*start),
                        found.shown(*end)
                    );
                    return Err(file.wrong(dimension, why));
                }
            }
            Ok(found.values.clone())
        }
    }
}

/// Returns the interval between successive times, if it is always the same: `1 day`, `6 hours`.
pub(super) fn interval(seconds: &[f64]) -> Option<String> {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    let steps = || sorted.windows(2).map(|pair| pair[1] - pair[0]);
    let step = steps().next().filter(|step| *step > 0.0)?.round();
    if !steps().all(|one| (one - step).abs() <= BEFORE_END) {
        return None;
    }
    let units = [
        (86_400.0, "day"),
        (3600.0, "hour"),
        (60.0, "minute"),
        (1.0, "second"),
    ];
    let (many, name) = units
        .into_iter()
        .map(|(length, name)| (step / length, name))
        .find(|(many, _)| *many >= 1.0 && many.fract().abs() < 1e-9)?;
    let plural = if many > 1.5 { "s" } else { "" };
    Some(format!("{many} {name}{plural}"))
}
