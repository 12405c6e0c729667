//! Values of a reduction's result, with a description of its dimensions.

use std::borrow::Cow;

use tidemill_format::{Attribute, Value};

use super::bins::{Edges, whole};
use super::error::{Error, Result};
use super::filters::is_of_stored_values;
use super::plan::ReductionPlan;
use super::query::ReduceOperation;
use super::slabs::CellRange;
use super::state::{BoxState, CellNumbers, CellSums, count, real, total};

/// Dimension of a reduction's result.
#[derive(Clone, Debug, PartialEq)]
pub struct ResultAxis {
    /// Name of the dimension.
    pub name: String,
    /// Number of indices of the dimension.
    pub length: u64,
    /// Coordinate values of the dimension, if it has any.
    pub coordinate: Option<Coordinate>,
    /// Names of the indices, if the indices are groups.
    pub labels: Option<Vec<String>>,
}

/// Coordinate values of a dimension.
#[derive(Clone, Debug, PartialEq)]
pub struct Coordinate {
    /// Coordinate value of each index.
    pub values: Vec<f64>,
    /// Attributes of the coordinate from the file.
    pub attributes: Vec<Attribute>,
    /// Start and end of each cell, if the cell is more than a point.
    pub bounds: Option<Vec<(f64, f64)>>,
}

/// Dimension of the variable that the result does not have.
#[derive(Clone, Debug, PartialEq)]
pub struct Scalar {
    /// Standard name of the dimension.
    pub name: String,
    /// Least and greatest of the reduced coordinate values.
    pub ends: (f64, f64),
    /// Attributes of the coordinate values, from the file.
    pub attributes: Vec<Attribute>,
}

/// Numbers of a result; an entry is `None` if no value of the cell counts.
#[derive(Clone, Debug, PartialEq)]
pub enum Column {
    /// Exact integers.
    Whole(Vec<Option<i128>>),
    /// Floating-point numbers.
    Real(Vec<Option<f64>>),
}

/// Results of one operation on one variable for all cells.
#[derive(Clone, Debug, PartialEq)]
pub struct ResultField {
    /// Name of the variable.
    pub variable: String,
    /// Units of the result's values.
    pub units: Option<String>,
    /// Name of the operation, such as `mean`.
    pub name: Cow<'static, str>,
    /// Value of each cell; the last dimension is the fastest.
    pub values: Column,
    /// Attributes of the field, without the units.
    pub attributes: Vec<Attribute>,
    /// Whether the values of the field are 32-bit floats.
    pub single: bool,
}

/// Result of a reduction, with all fields and dimensions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResultTable {
    /// Dimensions of the result; empty for a single value.
    pub axes: Vec<ResultAxis>,
    /// Fields of the result: one, or several of statistics, variable by variable.
    pub fields: Vec<ResultField>,
    /// Attributes of the whole first file, and a record of the reduction.
    pub attributes: Vec<Attribute>,
    /// Notes for the user about the result.
    pub notes: Vec<String>,
    /// Reduced dimensions, if they have coordinate values.
    pub scalars: Vec<Scalar>,
}

impl ResultTable {
    /// Joins the results of several variables to one table.
    ///
    /// # Errors
    /// If the dimensions of the results differ.
    pub fn join(tables: Vec<Self>) -> Result<Self> {
        let joined = tables.into_iter().map(Ok).reduce(|one, other| {
            let (mut one, other) = (one?, other?);
            if one.axes != other.axes {
                return Err(one.unlike(&other));
            }
            one.fields.extend(other.fields);
            one.scalars.retain(|scalar| other.scalars.contains(scalar));
            let new = |note: &String| !one.notes.contains(note);
            let notes: Vec<String> = other.notes.into_iter().filter(new).collect();
            one.notes.extend(notes);
            Ok(one)
        });
        joined.unwrap_or_else(|| Err(Error::Query("no variable was named".into())))
    }

    /// Returns whether the table has no values because they are too many to be computed at once.
    #[must_use]
    pub fn is_outline(&self) -> bool {
        self.cells() == 0 && self.axes.iter().all(|axis| axis.length > 0)
    }

    /// Returns the range of all cells of the table.
    #[must_use]
    pub fn all(&self) -> CellRange {
        let lengths: Vec<u64> = self.axes.iter().map(|axis| axis.length).collect();
        (vec![0; lengths.len()], lengths)
    }

    fn unlike(&self, other: &Self) -> Error {
        let reported = |table: &Self| {
            let axis = |axis: &ResultAxis| format!("{} ({})", axis.name, axis.length);
            let axes: Vec<String> = table.axes.iter().map(axis).collect();
            let variable = table
                .fields
                .first()
                .map_or("", |field| field.variable.as_str());
            match axes.is_empty() {
                true => format!("{variable} is one value"),
                false => format!("{variable} is over {}", axes.join(", ")),
            }
        };
        Error::Query(format!(
            "the results don't have the same dimensions with the same values, and can't be joined: {}, {}",
            reported(self),
            reported(other)
        ))
    }

    /// Adds a line to the attribute `history` of the result.
    pub fn log(&mut self, line: &str) {
        let history = self.attributes.iter_mut().find(|one| one.name == "history");
        match history.map(|one| &mut one.value) {
            Some(Value::Text(text)) if !text.trim().is_empty() => {
                text.truncate(text.trim_end().len());
                text.push('\n');
                text.push_str(line);
            }
            Some(value) => *value = Value::Text(line.to_owned()),
            None => self.attributes.push(Attribute {
                name: "history".into(),
                value: Value::Text(line.to_owned()),
            }),
        }
    }

    /// Returns whether all fields of the table belong to one variable.
    pub(super) fn is_of_one(&self) -> bool {
        let first = self.fields.first().map(|field| &field.variable);
        let is_first = |field: &ResultField| Some(&field.variable) == first;
        self.fields.iter().all(is_first)
    }

    /// Returns the title that distinguishes a field from the other fields of the table.
    #[must_use]
    pub fn title(&self, field: &ResultField) -> String {
        match self.is_of_one() {
            true => field.name.to_string(),
            false => field.title(),
        }
    }
}

impl ResultField {
    /// Returns the variable and the operation of the field as a title.
    pub(super) fn title(&self) -> String {
        format!("{}_{}", self.variable.replace('/', "_"), self.name)
    }
}

impl ReductionPlan {
    /// Returns the table for a state, with the quantiles that were found.
    pub(super) fn table(
        &self,
        state: &BoxState,
        quantiles: Vec<Vec<Option<f64>>>,
        edges: Option<Edges>,
    ) -> ResultTable {
        let of = Finder {
            plan: self,
            state,
            ddof: self.ddof,
        };
        let fields = match self.operation {
            ReduceOperation::Count => vec![of.counts()],
            ReduceOperation::Min => vec![of.extreme(0)],
            ReduceOperation::Max => vec![of.extreme(1)],
            ReduceOperation::Range => vec![of.range()],
            ReduceOperation::Sum => vec![of.sum()],
            ReduceOperation::Mean => vec![of.mean()],
            ReduceOperation::Stddev => vec![of.stddev()],
            ReduceOperation::Stats => vec![
                of.counts(),
                of.extreme(0),
                of.extreme(1),
                of.sum(),
                of.mean(),
                of.stddev(),
            ],
            ReduceOperation::Median | ReduceOperation::Quantile => self.quantiled(quantiles),
            ReduceOperation::Histogram => {
                vec![self.field("count", Column::Whole(whole(&state.counters)))]
            }
        };
        let bins = edges.map(|edges| self.bin_axis(edges));
        ResultTable {
            axes: self.axes.iter().cloned().chain(bins).collect(),
            fields,
            attributes: self.attributes[1].clone(),
            notes: self.notes.clone(),
            scalars: self.scalars.clone(),
        }
    }

    fn field(&self, name: impl Into<Cow<'static, str>>, values: Column) -> ResultField {
        let name = name.into();
        ResultField {
            variable: self.variable.clone(),
            units: self.units.clone(),
            single: self.single && matches!(&*name, "min" | "max"),
            attributes: self.described(&name),
            name,
            values,
        }
    }

    /// Returns the attributes of the variable in the file that also apply to the result.
    fn described(&self, name: &str) -> Vec<Attribute> {
        let text = |name: &str, text: String| Attribute {
            name: name.into(),
            value: Value::Text(text),
        };
        let own = &self.attributes[0];
        let mut attributes: Vec<Attribute> = own
            .iter()
            .filter(|one| !is_of_stored_values(&one.name))
            .cloned()
            .collect();
        let method = match name {
            "min" => "minimum",
            "max" => "maximum",
            "stddev" => "standard_deviation",
            "sum" | "mean" | "range" | "median" => name,
            // CF has no name for it.
            _ => {
                attributes.retain(|one| one.name != "standard_name" && one.name != "long_name");
                let what = if name == "count" {
                    "number of values"
                } else {
                    name
                };
                attributes.push(text("long_name", format!("{what} of {}", self.variable)));
                return attributes;
            }
        };
        let (before, behind) = &self.methods;
        let earlier = super::write::text(own, "cell_methods")
            .unwrap_or_default()
            .trim();
        let methods = match before.is_empty() {
            true => earlier.to_owned(),
            false => format!("{earlier} {before}{method}{behind}")
                .trim()
                .to_owned(),
        };
        if !methods.is_empty() {
            attributes.push(text("cell_methods", methods));
        }
        attributes
    }

    /// Returns the axis of the bins of a histogram: the values below, the bins, and the values above, each by its start.
    fn bin_axis(&self, edges: Edges) -> ResultAxis {
        let mut name = "bin".to_owned();
        while self.axes.iter().any(|axis| axis.name == name) {
            name.push('_');
        }
        let text = |name: &str, text: &str| Attribute {
            name: name.into(),
            value: Value::Text(text.into()),
        };
        let mut attributes = vec![text(
            "long_name",
            "lower edge; the first counts the values below all bins, the last the values above",
        )];
        attributes.extend(self.units.as_ref().map(|units| text("units", units)));
        let values = edges.lower_ends();
        ResultAxis {
            name,
            length: values.len() as u64,
            coordinate: Some(Coordinate {
                values,
                attributes,
                bounds: None,
            }),
            labels: None,
        }
    }

    fn quantiled(&self, found: Vec<Vec<Option<f64>>>) -> Vec<ResultField> {
        let field = |(quantile, values): (&f64, Vec<Option<f64>>)| {
            let name = match self.operation {
                ReduceOperation::Median => "median".into(),
                _ => format!("q{quantile}"),
            };
            self.field(name, Column::Real(values))
        };
        self.quantiles.iter().zip(found).map(field).collect()
    }
}

struct Finder<'a> {
    plan: &'a ReductionPlan,
    state: &'a BoxState,
    ddof: u32,
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

    fn counts(&self) -> ResultField {
        let values = Column::Whole(self.each(|_, count| Some(i128::from(count))));
        self.plan.field("count", values)
    }

    fn extreme(&self, which: usize) -> ResultField {
        let values = match &self.state.extremes[which] {
            CellNumbers::None => Column::Real(self.each(|_, _| None)),
            CellNumbers::Whole(all) => {
                Column::Whole(self.each(|cell, count| (count > 0).then(|| all[cell])))
            }
            CellNumbers::Real(all) => {
                Column::Real(self.each(|cell, count| (count > 0).then(|| all[cell])))
            }
        };
        self.plan.field(["min", "max"][which], values)
    }

    fn range(&self) -> ResultField {
        let values = match &self.state.extremes {
            [CellNumbers::Whole(low), CellNumbers::Whole(high)] => {
                Column::Whole(self.each(|cell, count| (count > 0).then(|| high[cell] - low[cell])))
            }
            [CellNumbers::Real(low), CellNumbers::Real(high)] => {
                Column::Real(self.each(|cell, count| (count > 0).then(|| high[cell] - low[cell])))
            }
            _ => Column::Real(self.each(|_, _| None)),
        };
        self.plan.field("range", values)
    }

    /// Returns the field of sums: 0 without values; a sum of integers is exact, also beyond 64 bits.
    fn sum(&self) -> ResultField {
        let values = match &self.state.sums {
            CellSums::None => Column::Real(self.each(|_, _| None)),
            CellSums::Whole(all) => Column::Whole(self.each(|cell, _| Some(all[cell]))),
            CellSums::Real(all) => Column::Real(self.each(|cell, _| Some(total(all[cell])))),
        };
        self.plan.field("sum", values)
    }

    fn mean(&self) -> ResultField {
        let many = |cell: usize, counted: u64| match self.state.weight(cell) {
            Some(weight) => weight,
            None => count(counted),
        };
        let sum = |cell: usize| match &self.state.sums {
            CellSums::None => f64::NAN,
            CellSums::Whole(all) => real(all[cell]),
            CellSums::Real(all) => total(all[cell]),
        };
        let values = self.each(|cell, count| (count > 0).then(|| sum(cell) / many(cell, count)));
        self.plan.field("mean", Column::Real(values))
    }

    fn stddev(&self) -> ResultField {
        let ddof = u64::from(self.ddof);
        let of = |cell: usize, counted: u64| {
            let free = counted.checked_sub(ddof).filter(|free| *free > 0)?;
            Some((self.state.moments.get(cell)?.1 / count(free)).sqrt())
        };
        self.plan.field("stddev", Column::Real(self.each(of)))
    }
}
