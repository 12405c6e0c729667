//! Requested reductions, and their text form: `mean`, `time=1990-01..1999-12,lat=30:60`, `month`.

use std::fmt;

use tidemill_format::time::{Date, DateTime, Units};

use super::bins::WantedBins;
use super::error::{Error, Result};
use super::ranks::QUANTILES_MAX;

/// Requested result for the values of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum ReduceOperation {
    Count,
    Min,
    Max,
    Sum,
    Mean,
    Stddev,
    Range,
    Stats,
    Median,
    Quantile,
    Histogram,
}

/// All operations, by their names.
pub(super) const OPERATIONS: [(&str, ReduceOperation); 11] = [
    ("count", ReduceOperation::Count),
    ("min", ReduceOperation::Min),
    ("max", ReduceOperation::Max),
    ("sum", ReduceOperation::Sum),
    ("mean", ReduceOperation::Mean),
    ("stddev", ReduceOperation::Stddev),
    ("range", ReduceOperation::Range),
    ("stats", ReduceOperation::Stats),
    ("median", ReduceOperation::Median),
    ("quantile", ReduceOperation::Quantile),
    ("histogram", ReduceOperation::Histogram),
];

/// Grouping of the indices of a time coordinate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum TimeGrouping {
    Year,
    Season,
    Month,
    Day,
    Hour,
    /// Times of the same season of all years form a group.
    SeasonOfYear,
    /// Times of the same month of all years form a group.
    MonthOfYear,
    /// Times of the same hour of all days form a group.
    HourOfDay,
}

pub(super) const GROUPINGS: [(&str, TimeGrouping); 8] = [
    ("year", TimeGrouping::Year),
    ("season", TimeGrouping::Season),
    ("month", TimeGrouping::Month),
    ("day", TimeGrouping::Day),
    ("hour", TimeGrouping::Hour),
    ("climatological-season", TimeGrouping::SeasonOfYear),
    ("climatological-month", TimeGrouping::MonthOfYear),
    ("climatological-hour", TimeGrouping::HourOfDay),
];

/// Selected part of a dimension of a variable.
#[derive(Clone, Debug, PartialEq)]
pub struct DimensionSelection {
    /// Name of the dimension.
    pub dimension: String,
    pub(super) what: IndexSelection,
    /// Step of the selection: every `step`-th selected index is used.
    pub(super) step: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum IndexSelection {
    All,
    /// Indices from the first number to before the second number, as in Python.
    Indices(Option<i64>, Option<i64>),
    /// A single index.
    Index(i64),
    /// Range of values of the dimension's coordinate, including both ends.
    Values(String, String),
}

/// Requested reduction of a variable.
#[derive(Clone, Debug, PartialEq)]
pub struct ReductionQuery {
    /// Requested result of the reduction.
    pub operation: ReduceOperation,
    /// Name of the variable.
    pub variable: String,
    /// Selected parts of the variable.
    pub select: Vec<DimensionSelection>,
    /// Names of the reduced dimensions; `None` for all dimensions.
    pub over: Option<Vec<String>>,
    /// Grouping of times.
    pub by: Option<TimeGrouping>,
    /// Dimension along which the weight of a value is the cosine of its coordinate, in degrees.
    pub weights: Option<String>,
    /// Number that is subtracted from the count in a standard deviation.
    pub ddof: u32,
    /// Requested quantiles, each from 0 to 1.
    pub quantiles: Vec<f64>,
    /// Requested bins of a histogram.
    pub bins: WantedBins,
    /// Dimension along which several files are joined.
    pub along: Option<String>,
    /// Whether the files are members of an ensemble, which are reduced, and not a series.
    pub ensemble: bool,
    /// Rule for coordinates of dimensions along which files are not joined.
    pub join: JoinRule,
    /// Position of time stamps in the intervals that values represent; `None` if it is not given.
    pub time_at: Option<TimeAt>,
}

/// Rule for coordinates of dimensions along which files are not joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JoinRule {
    /// All files must have the same coordinates.
    #[default]
    Exact,
    /// Files may have any coordinates; the coordinates of the first file are used.
    Override,
    /// Files may have any coordinates; the common part of the coordinates is reduced.
    Inner,
}

const JOINS: [(&str, JoinRule); 3] = [
    ("exact", JoinRule::Exact),
    ("override", JoinRule::Override),
    ("inner", JoinRule::Inner),
];

/// Position of the time stamp in the interval that a value represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum TimeAt {
    Start,
    Middle,
    End,
    /// The file contains both ends of the interval.
    Bounds,
}

const TIMES_AT: [(&str, TimeAt); 4] = [
    ("start", TimeAt::Start),
    ("middle", TimeAt::Middle),
    ("end", TimeAt::End),
    ("bounds", TimeAt::Bounds),
];

impl ReductionQuery {
    /// Returns a reduction of the whole variable to one value.
    #[must_use]
    pub fn new(operation: ReduceOperation, variable: &str) -> Self {
        Self {
            operation,
            variable: variable.into(),
            select: Vec::new(),
            over: None,
            by: None,
            weights: None,
            ddof: 0,
            quantiles: vec![0.25, 0.5, 0.75],
            bins: WantedBins::default(),
            along: None,
            ensemble: false,
            join: JoinRule::Exact,
            time_at: None,
        }
    }
}

impl ReductionQuery {
    /// Returns the requested quantiles, including the median of the operation `median`.
    pub(super) fn wanted(&self) -> Vec<f64> {
        match self.operation {
            ReduceOperation::Median => vec![0.5],
            ReduceOperation::Quantile => self.quantiles.clone(),
            _ => Vec::new(),
        }
    }
}

/// Parses quantiles from numbers separated by commas.
fn quantiles(text: &str) -> Result<Vec<f64>> {
    let text = if text.trim().is_empty() {
        "0.25,0.5,0.75"
    } else {
        text
    };
    let number = |word: &str| word.trim().parse().ok().filter(|q| (0.0..=1.0).contains(q));
    let found: Option<Vec<f64>> = text.split(',').map(number).collect();
    found
        .filter(|all| all.len() <= QUANTILES_MAX)
        .ok_or_else(|| Error::Text {
            what: "quantiles",
            text: text.into(),
            why: format!(
                "they are numbers from 0 to 1 with commas between, at most {QUANTILES_MAX}"
            ),
        })
}

fn named<T: Copy>(what: &'static str, known: &[(&str, T)], text: &str) -> Result<T> {
    let found = known.iter().find(|(name, _)| *name == text);
    let names: Vec<_> = known.iter().map(|(name, _)| *name).collect();
    found.map(|(_, value)| *value).ok_or_else(|| Error::Text {
        what,
        text: text.into(),
        why: format!("it is none of {}", names.join(", ")),
    })
}

impl std::str::FromStr for ReduceOperation {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        named("operation", &OPERATIONS, text)
    }
}

impl fmt::Display for ReduceOperation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = OPERATIONS.iter().find(|(_, operation)| operation == self);
        out.write_str(name.map_or("", |(name, _)| name))
    }
}

impl std::str::FromStr for TimeGrouping {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        named("grouping", &GROUPINGS, &text.trim().replace(' ', "-"))
    }
}

impl TimeGrouping {
    pub(super) fn name(self) -> &'static str {
        GROUPINGS
            .iter()
            .find(|(_, by)| *by == self)
            .map_or("", |(name, _)| name)
    }

    /// Returns whether a group contains times of all years, or of all days.
    pub(super) fn is_of_all_years(self) -> bool {
        matches!(
            self,
            Self::SeasonOfYear | Self::MonthOfYear | Self::HourOfDay
        )
    }

    /// Returns start and end of a group of times.
    pub(super) fn period(self, group: i64, units: &Units) -> (f64, f64) {
        let day = |month: i64, day: i64| {
            let (year, month) = (month.div_euclid(12), month.rem_euclid(12) + 1);
            units.at(Date { year, month, day })
        };
        let months = |first: i64, count: i64| (day(first, 1), day(first + count, 1));
        let one_day = |group: i64| day(group.div_euclid(31), group.rem_euclid(31) + 1);
        let later = |value: f64, seconds: f64| units.value(units.seconds(value) + seconds);
        match self {
            Self::Year => months(group * 12, 12),
            Self::Season => months(group * 3 - 1, 3),
            Self::Day => (one_day(group), later(one_day(group), 86_400.0)),
            Self::Hour => {
                #[expect(clippy::cast_precision_loss, reason = "at most 23")]
                let hour = group.rem_euclid(24) as f64;
                let start = later(one_day(group.div_euclid(24)), hour * 3600.0);
                (start, later(start, 3600.0))
            }
            _ => months(group, 1),
        }
    }

    /// Returns the number of the group that contains a time; groups are in the order of these numbers.
    pub(super) fn group(self, at: &DateTime) -> i64 {
        let date = at.date;
        let month = date.year * 12 + date.month - 1;
        let day = month * 31 + date.day - 1;
        match self {
            Self::Year => date.year,
            // A winter belongs to the year in which it ends.
            Self::Season => (month + 1).div_euclid(3),
            Self::Month => month,
            Self::Day => day,
            Self::Hour => day * 24 + at.hour(),
            Self::SeasonOfYear => (month + 1).div_euclid(3).rem_euclid(4),
            Self::MonthOfYear => date.month - 1,
            Self::HourOfDay => at.hour(),
        }
    }

    /// Returns the name of a group of times.
    pub(super) fn label(self, group: i64) -> String {
        const SEASONS: [&str; 4] = ["DJF", "MAM", "JJA", "SON"];
        let season = |group: i64| SEASONS[usize::try_from(group.rem_euclid(4)).unwrap_or(0)];
        let month = |group: i64| {
            format!(
                "{:04}-{:02}",
                group.div_euclid(12),
                group.rem_euclid(12) + 1
            )
        };
        let day = |group: i64| {
            format!(
                "{}-{:02}",
                month(group.div_euclid(31)),
                group.rem_euclid(31) + 1
            )
        };
        match self {
            Self::Year => format!("{group:04}"),
            Self::Season => format!("{:04}-{}", group.div_euclid(4), season(group)),
            Self::Month => month(group),
            Self::Day => day(group),
            Self::Hour => format!("{}T{:02}", day(group.div_euclid(24)), group.rem_euclid(24)),
            Self::SeasonOfYear => season(group).into(),
            Self::MonthOfYear => format!("{:02}", group + 1),
            Self::HourOfDay => format!("{group:02}"),
        }
    }
}

impl DimensionSelection {
    /// Parses selections of several dimensions, separated by commas: `time=1990-01..1999-12,lat=30:60,lon=[0:180:2]`.
    ///
    /// # Errors
    /// If a selection of the text is invalid.
    pub fn parse(text: &str) -> Result<Vec<Self>> {
        text.split(',')
            .filter(|one| !one.trim().is_empty())
            .map(Self::one)
            .collect()
    }

    fn one(text: &str) -> Result<Self> {
        let wrong = |why: &str| Error::Text {
            what: "selection",
            text: text.into(),
            why: why.into(),
        };
        let (name, what) = text.split_once('=').ok_or_else(|| {
            wrong("it is NAME=LOW..HIGH by the coordinate's values, or NAME=[START:END] by index; ::STEP may follow")
        })?;
        let (name, what) = (name.trim(), what.trim());
        let select = |what, step| {
            Ok(Self {
                dimension: name.into(),
                what,
                step,
            })
        };
        let step_of = |text: &str| {
            let step = text.trim().parse().ok().filter(|step| *step > 0);
            step.ok_or_else(|| wrong("a step is a number from 1 on"))
        };
        if let Some(indices) = what.strip_prefix('[') {
            let indices = indices
                .strip_suffix(']')
                .ok_or_else(|| wrong("there is no ] at its end"))?;
            let parts: Vec<&str> = indices.split(':').map(str::trim).collect();
            let number = |text: &str| {
                text.parse::<i64>()
                    .map_err(|_| wrong("indices are whole numbers"))
            };
            let end = |text: &str| {
                if text.is_empty() {
                    Ok(None)
                } else {
                    number(text).map(Some)
                }
            };
            return match parts[..] {
                [one] => select(IndexSelection::Index(number(one)?), 1),
                [start, stop] => select(IndexSelection::Indices(end(start)?, end(stop)?), 1),
                [start, stop, step] => select(
                    IndexSelection::Indices(end(start)?, end(stop)?),
                    step_of(step)?,
                ),
                _ => Err(wrong("indices are [START:END] or [START:END:STEP]")),
            };
        }
        let (what, step) = match what.rsplit_once("::") {
            Some((what, step)) => (what.trim(), step_of(step)?),
            None => (what, 1),
        };
        if what.is_empty() {
            return select(IndexSelection::All, step);
        }
        // A time of day has colons, too: a single colon makes a range only between numbers.
        let is_number = |text: &str| text.trim().parse::<f64>().is_ok();
        let span = what.split_once("..").or_else(|| {
            what.split_once(':').filter(|(low, high)| {
                (is_number(low) || low.trim().is_empty())
                    && (is_number(high) || high.trim().is_empty())
            })
        });
        let (low, high) = span.unwrap_or((what, what));
        select(
            IndexSelection::Values(low.trim().into(), high.trim().into()),
            step,
        )
    }
}

/// Returns the range of a coordinate from one text to another: the lowest value, the highest value, and whether the highest is included.
///
/// If values are periodic (`around`), a range from 350 to 10 ends at 370.
pub(super) fn bounds(
    units: Option<&Units>,
    (low, high): (&str, &str),
    around: bool,
) -> std::result::Result<(f64, f64, bool), String> {
    if let Some(units) = units {
        let span = |low, high| units.span(low, high).map_err(|error| error.to_string());
        let low = if low.is_empty() {
            f64::NEG_INFINITY
        } else {
            span(low, low)?.0
        };
        let high = if high.is_empty() {
            f64::INFINITY
        } else {
            span(high, high)?.1
        };
        return Ok((low, high, false));
    }
    let number = |text: &str, none: f64| match text {
        "" => Ok(none),
        text => text
            .parse::<f64>()
            .ok()
            .filter(|value| !value.is_nan())
            .ok_or_else(|| format!("{text:?} is no number")),
    };
    let low = number(low, f64::NEG_INFINITY)?;
    let mut high = number(high, f64::INFINITY)?;
    if around && low > high && low.is_finite() && high.is_finite() {
        high += 360.0 * ((low - high) / 360.0).ceil();
    }
    if low > high {
        return Err(format!("{low} is above {high}"));
    }
    Ok((low, high, true))
}

/// Texts of a query, as users write them.
#[derive(Clone, Debug, Default)]
pub struct QueryText<'a> {
    /// Name of the operation.
    pub operation: &'a str,
    /// Name of the variable.
    pub variable: &'a str,
    /// Selections, separated by commas.
    pub select: &'a str,
    /// Names of dimensions, separated by commas; empty for all dimensions.
    pub over: &'a str,
    /// Name of a grouping of times, or empty.
    pub by: &'a str,
    /// Name of the dimension with weights, or empty.
    pub weights: &'a str,
    /// Number that is subtracted from the count in a standard deviation; empty for 0.
    pub ddof: &'a str,
    /// Quantiles from 0 to 1, separated by commas; empty for quartiles.
    pub quantiles: &'a str,
    /// Bins as `N` or `LOW:HIGH:N`; empty for ten bins.
    pub bins: &'a str,
    /// Name of the dimension along which files are joined, or empty.
    pub along: &'a str,
    /// `yes` if the files are members of an ensemble, or empty.
    pub ensemble: &'a str,
    /// Join rule `exact`, `override` or `inner`, or empty.
    pub join: &'a str,
    /// Position of time stamps `start`, `middle`, `end` or `bounds`, or empty.
    pub time_at: &'a str,
}

impl QueryText<'_> {
    /// Parses the texts of the query.
    ///
    /// # Errors
    /// If a text of the query is invalid.
    pub fn query(&self) -> Result<ReductionQuery> {
        let some = |text: &str| {
            Some(text.trim())
                .filter(|text| !text.is_empty())
                .map(str::to_owned)
        };
        let names = |text: &str| text.split(',').filter_map(some).collect::<Vec<_>>();
        let ddof = some(self.ddof).map_or(Ok(0), |text: String| {
            text.parse().map_err(|_| Error::Text {
                what: "ddof",
                text: text.clone(),
                why: "it is a whole number from 0 on".into(),
            })
        })?;
        Ok(ReductionQuery {
            operation: self.operation.parse()?,
            variable: self.variable.into(),
            select: DimensionSelection::parse(self.select)?,
            over: Some(names(self.over)).filter(|names| !names.is_empty()),
            by: some(self.by).map(|by| by.parse()).transpose()?,
            weights: some(self.weights),
            ddof,
            quantiles: quantiles(self.quantiles)?,
            bins: self.bins.trim().parse()?,
            along: some(self.along),
            ensemble: some(self.ensemble)
                .map(|text| named("ensemble", &[("yes", true), ("no", false)], &text))
                .transpose()?
                .unwrap_or_default(),
            join: some(self.join)
                .map(|text| named("join", &JOINS, &text))
                .transpose()?
                .unwrap_or_default(),
            time_at: some(self.time_at)
                .map(|text| named("time-at", &TIMES_AT, &text))
                .transpose()?,
        })
    }
}
