//! Axis of a chart: its scale, its range and its ticks.

use super::canvas::text_width;
use crate::units::{significant, thousands};

/// Conversion of values to positions on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AxisScale {
    /// Linear scale of an axis.
    Linear,
    /// Logarithmic scale; values that are not above zero are not shown.
    Log,
}

/// Axis of a chart.
#[derive(Debug, Clone, PartialEq)]
pub struct ChartAxis {
    /// Name of the quantity on the axis, with its unit.
    pub label: String,
    /// Conversion of values to positions on the axis.
    pub scale: AxisScale,
    /// Lowest and highest value; `None` for the range of the data.
    pub range: Option<(f64, f64)>,
}

impl ChartAxis {
    /// Returns a linear axis with the range of its data.
    pub fn linear(label: impl Into<String>) -> Self {
        Self {
            label: label.into(),
            scale: AxisScale::Linear,
            range: None,
        }
    }

    /// Returns a logarithmic axis with the range of its data.
    pub fn log(label: impl Into<String>) -> Self {
        Self {
            label: label.into(),
            scale: AxisScale::Log,
            range: None,
        }
    }

    /// Returns the same axis from `low` to `high`.
    #[must_use]
    pub fn from_to(mut self, low: f64, high: f64) -> Self {
        self.range = Some((low, high));
        self
    }

    /// Returns whether the axis can show a value at all.
    pub(super) fn shows(&self, value: f64) -> bool {
        value.is_finite() && (self.scale == AxisScale::Linear || value > 0.0)
    }

    /// Returns the range to show for these values, widened to ticks. Linear bars start at zero: pass zero as a value.
    pub fn fit(&self, values: impl Iterator<Item = f64>) -> (f64, f64) {
        if let Some(range) = self.range {
            return range;
        }
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| self.shows(*value)) {
            low = low.min(value);
            high = high.max(value);
        }
        if low > high {
            (low, high) = (1.0, 10.0);
        }
        match self.scale {
            AxisScale::Log => {
                let (low, high) = (low.log10().floor(), high.log10().ceil());
                (10_f64.powf(low), 10_f64.powf(high.max(low + 1.0)))
            }
            AxisScale::Linear => {
                if high - low <= f64::EPSILON * high.abs() {
                    high = low + low.abs().max(1.0);
                }
                // Widening to ticks can make the ticks coarser, so the range is widened until they agree.
                loop {
                    let step = step(high - low);
                    let wide = ((low / step).floor() * step, (high / step).ceil() * step);
                    let grown = wide.1 - wide.0 - (high - low);
                    (low, high) = wide;
                    if grown <= step * 1e-6 {
                        return wide;
                    }
                }
            }
        }
    }

    /// Returns the position of a value in a range: 0 at the low end of the range, 1 at its high end.
    pub fn place(&self, value: f64, (low, high): (f64, f64)) -> f64 {
        match self.scale {
            AxisScale::Linear => (value - low) / (high - low),
            AxisScale::Log => (value / low).ln() / (high / low).ln(),
        }
    }

    /// Returns the values of the axis' ticks within a range.
    pub(super) fn ticks(&self, (low, high): (f64, f64)) -> Vec<f64> {
        match self.scale {
            AxisScale::Linear => {
                let step = step(high - low);
                let mut ticks = Vec::new();
                let mut tick = (low / step).ceil();
                while tick * step <= high + step * 1e-9 {
                    // Adding zero turns -0 into 0.
                    ticks.push(tick * step + 0.0);
                    tick += 1.0;
                }
                ticks
            }
            AxisScale::Log => {
                let decades = (high / low).log10();
                let marks: &[f64] = if decades > 2.5 {
                    &[1.0]
                } else {
                    &[1.0, 2.0, 5.0]
                };
                let ticks = marked(marks, (low, high));
                if ticks.len() < TICKS_MIN {
                    // Between 1 and 2 of a decade there is none of these: the axis is nearly linear there.
                    return ChartAxis::linear("").ticks((low, high));
                }
                ticks
            }
        }
    }
}

/// Minimum number of ticks with which an axis is legible.
const TICKS_MIN: usize = 3;

/// Returns the products of `marks` and powers of ten within a range.
fn marked(marks: &[f64], (low, high): (f64, f64)) -> Vec<f64> {
    let mut ticks = Vec::new();
    let mut decade = low.log10().floor();
    while 10_f64.powf(decade) <= high * (1.0 + 1e-9) {
        let ten = 10_f64.powf(decade);
        let within = |tick: &f64| *tick >= low * (1.0 - 1e-9) && *tick <= high * (1.0 + 1e-9);
        ticks.extend(marks.iter().map(|mark| mark * ten).filter(within));
        decade += 1.0;
    }
    ticks
}

/// Returns the label of a tick.
pub fn tick_label(value: f64) -> String {
    let number = significant(value);
    match number.strip_prefix('-') {
        Some(size) => format!("\u{2212}{}", thousands(size)),
        None => thousands(&number),
    }
}

/// Returns the width that the labels of these ticks take, in pixels.
pub(super) fn labels_width(ticks: &[f64]) -> f64 {
    let widths = ticks
        .iter()
        .map(|tick| text_width(&tick_label(*tick), 11.0));
    widths.fold(30.0, f64::max)
}

/// Returns a round step that divides a span into four to ten pieces.
fn step(span: f64) -> f64 {
    let rough = span / 6.0;
    let ten = 10_f64.powf(rough.log10().floor());
    let times = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|times| times * ten >= rough);
    times.unwrap_or(10.0) * ten
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn same(left: &[f64], right: &[f64]) -> bool {
        left.len() == right.len()
            && left
                .iter()
                .zip(right)
                .all(|(left, right)| (left - right).abs() < 1e-9)
    }

    #[test]
    fn axis_ticks_are_round_numbers() {
        let axis = ChartAxis::linear("");
        assert!(same(
            &axis.ticks((0.0, 100.0)),
            &[0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
        ));
        assert!(same(
            &ChartAxis::log("").ticks((0.01, 100.0)),
            &[0.01, 0.1, 1.0, 10.0, 100.0]
        ));
        assert!(same(
            &ChartAxis::log("").ticks((1.0, 30.0)),
            &[1.0, 2.0, 5.0, 10.0, 20.0]
        ));
        assert_eq!(tick_label(-2500.0), "\u{2212}2,500");
    }

    #[test]
    fn short_log_axis_has_enough_distinct_ticks() {
        for (low, high) in [
            (210.0, 330.0),
            (1.05, 1.9),
            (95.0, 99.0),
            (900.0, 1100.0),
            (0.1, 1e7),
        ] {
            let ticks = ChartAxis::log("").from_to(low, high).ticks((low, high));
            assert!(
                (3..=12).contains(&ticks.len()),
                "{low} to {high}: {ticks:?}"
            );
            let labels: Vec<String> = ticks.iter().map(|tick| tick_label(*tick)).collect();
            for (at, label) in labels.iter().enumerate() {
                assert!(!labels[..at].contains(label), "{labels:?}");
            }
        }
    }

    #[test]
    fn axis_range_contains_few_or_no_values() {
        let axis = ChartAxis::linear("");
        assert_eq!(axis.fit([0.0, 97.0].into_iter()), (0.0, 100.0));
        let (low, _) = axis.fit([-236.0, 0.0, 922.0].into_iter());
        assert!((low + 500.0).abs() < 1e-9, "a range ends at a tick");
        let (low, high) = axis.fit(std::iter::empty());
        assert!(low < high);
        let (low, high) = axis.fit([5.0].into_iter());
        assert!(low <= 5.0 && high > low);
        let (low, high) = ChartAxis::log("").fit([0.0, -3.0, 7.0].into_iter());
        assert!(low > 0.0 && high >= 7.0);
    }

    proptest! {
        #[test]
        fn axis_places_any_data_within_plot(
            values in proptest::collection::vec(-1e6..1e6_f64, 1..20), log in any::<bool>(),
        ) {
            let axis = if log { ChartAxis::log("") } else { ChartAxis::linear("") };
            let range = axis.fit(values.iter().copied());
            prop_assert!(range.0 < range.1);
            for value in values.into_iter().filter(|value| axis.shows(*value)) {
                let place = axis.place(value, range);
                prop_assert!((-1e-9..=1.0 + 1e-9).contains(&place), "{place}");
            }
            prop_assert!((1..=30).contains(&axis.ticks(range).len()));
        }
    }
}
