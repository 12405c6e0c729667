//! The values of a result, with what its dimensions are.

use std::borrow::Cow;

use tidemill_format::Attribute;

use super::plan::Plan;
use super::query::Operation;
use super::state::{Numbers, State, Sums, count, real, total};

/// A dimension of a result.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Its name.
    pub name: String,
    /// How many indices it has.
    pub length: u64,
    /// Its values, if it has any.
    pub coordinate: Option<Coordinate>,
    /// What its indices are called, where they are groups.
    pub labels: Option<Vec<String>>,
}

/// The values of a dimension.
#[derive(Clone, Debug, PartialEq)]
pub struct Coordinate {
    /// One for each index.
    pub values: Vec<f64>,
    /// What the file says about them.
    pub attributes: Vec<Attribute>,
}

/// Numbers of a result; none where no value counts.
#[derive(Clone, Debug, PartialEq)]
pub enum Column {
    /// Whole ones, exact.
    Whole(Vec<Option<i128>>),
    /// Others.
    Real(Vec<Option<f64>>),
}

/// What was found of each cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// What: `mean`.
    pub name: Cow<'static, str>,
    /// One for each cell, the last dimension first.
    pub values: Column,
}

/// A result.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Of which variable.
    pub variable: String,
    /// What its values are measured in.
    pub units: Option<String>,
    /// Its dimensions; none if it is one value.
    pub axes: Vec<Axis>,
    /// One, or several of statistics.
    pub fields: Vec<Field>,
}

impl Plan {
    /// The result that a state is of, with the quantiles that were looked for.
    pub(super) fn table(&self, state: &State, quantiles: Vec<Vec<Option<f64>>>) -> Table {
        let of = Finder {
            state,
            ddof: self.ddof,
            unsigned: self.unsigned,
        };
        let fields = match self.operation {
            Operation::Count => vec![of.counts()],
            Operation::Min => vec![of.extreme(0)],
            Operation::Max => vec![of.extreme(1)],
            Operation::Range => vec![of.range()],
            Operation::Sum => vec![of.sum()],
            Operation::Mean => vec![of.mean()],
            Operation::Stddev => vec![of.stddev()],
            Operation::Stats => vec![
                of.counts(),
                of.extreme(0),
                of.extreme(1),
                of.sum(),
                of.mean(),
                of.stddev(),
            ],
            Operation::Median | Operation::Quantile => self.quantiled(quantiles),
        };
        Table {
            variable: self.variable.clone(),
            units: self.units.clone(),
            axes: self.axes.clone(),
            fields,
        }
    }

    fn quantiled(&self, found: Vec<Vec<Option<f64>>>) -> Vec<Field> {
        let field = |(quantile, values): (&f64, Vec<Option<f64>>)| Field {
            name: match self.operation {
                Operation::Median => "median".into(),
                _ => format!("q{quantile}").into(),
            },
            values: Column::Real(values),
        };
        self.quantiles.iter().zip(found).map(field).collect()
    }
}

struct Finder<'a> {
    state: &'a State,
    ddof: u32,
    unsigned: bool,
}

impl Finder<'_> {
    fn each<T>(&self, value: impl Fn(usize, u64) -> Option<T>) -> Vec<Option<T>> {
        self.state
            .counts
            .iter()
            .enumerate()
            .map(|(cell, count)| value(cell, *count))
            .collect()
    }

    fn counts(&self) -> Field {
        let values = Column::Whole(self.each(|_, count| Some(i128::from(count))));
        Field {
            name: "count".into(),
            values,
        }
    }

    fn extreme(&self, which: usize) -> Field {
        let values = match &self.state.extremes[which] {
            Numbers::None => Column::Real(self.each(|_, _| None)),
            Numbers::Whole(all) => {
                Column::Whole(self.each(|cell, count| (count > 0).then(|| all[cell])))
            }
            Numbers::Real(all) => {
                Column::Real(self.each(|cell, count| (count > 0).then(|| all[cell])))
            }
        };
        Field {
            name: ["min", "max"][which].into(),
            values,
        }
    }

    fn range(&self) -> Field {
        let values = match &self.state.extremes {
            [Numbers::Whole(low), Numbers::Whole(high)] => {
                Column::Whole(self.each(|cell, count| (count > 0).then(|| high[cell] - low[cell])))
            }
            [Numbers::Real(low), Numbers::Real(high)] => {
                Column::Real(self.each(|cell, count| (count > 0).then(|| high[cell] - low[cell])))
            }
            _ => Column::Real(self.each(|_, _| None)),
        };
        Field {
            name: "range".into(),
            values,
        }
    }

    /// The sum of nothing is 0; one of integers wraps at 64 bits, as numpy's does.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it wraps"
    )]
    fn sum(&self) -> Field {
        let wrapped = |sum: i128| {
            if self.unsigned {
                i128::from(sum as u64)
            } else {
                i128::from(sum as i64)
            }
        };
        let values = match &self.state.sums {
            Sums::None => Column::Real(self.each(|_, _| None)),
            Sums::Whole(all) => Column::Whole(self.each(|cell, _| Some(wrapped(all[cell])))),
            Sums::Real(all) => Column::Real(self.each(|cell, _| Some(total(all[cell])))),
        };
        Field {
            name: "sum".into(),
            values,
        }
    }

    fn mean(&self) -> Field {
        let many = |cell: usize, counted: u64| match self.state.weights.get(cell) {
            Some(weight) => *weight,
            None => count(counted),
        };
        let sum = |cell: usize| match &self.state.sums {
            Sums::None => f64::NAN,
            Sums::Whole(all) => real(all[cell]),
            Sums::Real(all) => total(all[cell]),
        };
        let values = self.each(|cell, count| (count > 0).then(|| sum(cell) / many(cell, count)));
        Field {
            name: "mean".into(),
            values: Column::Real(values),
        }
    }

    fn stddev(&self) -> Field {
        let ddof = u64::from(self.ddof);
        let of = |cell: usize, counted: u64| {
            let free = counted.checked_sub(ddof).filter(|free| *free > 0)?;
            Some((self.state.moments.get(cell)?.1 / count(free)).sqrt())
        };
        Field {
            name: "stddev".into(),
            values: Column::Real(self.each(of)),
        }
    }
}
