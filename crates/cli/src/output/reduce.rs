//! Results of a reduction.

use super::table::Text;
use super::{Report, records};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::collections::BTreeMap;
use tidemill_compute::reduction::{ResultAxis, ResultFormat, ResultTable};

/// Maximum number of cells that are shown in columns; a larger result is shown as CSV.
const ROWS_MAX: usize = 1000;

/// Result of a reduction.
#[derive(Debug, JsonSchema)]
pub(crate) struct Reduced(#[schemars(with = "ReducedForm")] pub(crate) ResultTable);

impl Serialize for Reduced {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.json().serialize(serializer)
    }
}

/// Form of a result: of one variable, or of several variables.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(
    dead_code,
    reason = "the schema of a value that another crate serialises"
)]
enum ReducedForm {
    One {
        #[serde(flatten)]
        variable: ReducedVariable,
        dimensions: Vec<ReducedDimension>,
    },
    Several {
        variables: Vec<ReducedVariable>,
        dimensions: Vec<ReducedDimension>,
    },
}

records! {
    /// Dimension of the result.
    ReducedDimension {
        name: String, length: usize,
        /// Coordinates.
        values: Option<Vec<Value>>,
        units: Option<String>,
        /// Names of the groups, such as months.
        labels: Option<Vec<String>>,
    }

    /// Results of a variable.
    ReducedVariable {
        variable: String, units: Option<String>,
        /// Values of each reduction, by its name; the last dimension varies fastest. Missing values are null.
        values: BTreeMap<String, Value>,
    }
}

impl Report for Reduced {
    fn text(&self, out: &mut Text) {
        let of = &self.0;
        let value = |field: &tidemill_compute::reduction::ResultField, cell| {
            super::dash(&field.values.text(cell))
        };
        if of.axes.is_empty() {
            for field in &of.fields {
                match of.fields.len() {
                    1 => writeln!(out, "{}", value(field, 0)),
                    _ => writeln!(out, "{:8}{}", of.title(field), value(field, 0)),
                }
            }
            return;
        }
        if of.cells() > ROWS_MAX {
            let mut csv = Vec::new();
            if of.write(ResultFormat::Csv, &mut csv).is_ok() {
                out.push(&String::from_utf8_lossy(&csv));
            }
            return;
        }
        let axes = of.axes.iter().map(|axis| (axis.name.to_uppercase(), false));
        let fields = of
            .fields
            .iter()
            .map(|field| (of.title(field).to_uppercase(), true));
        let titles: Vec<_> = axes.chain(fields).collect();
        let known: Vec<Vec<String>> = of.axes.iter().map(ResultAxis::names).collect();
        let rows = (0..of.cells()).map(|cell| {
            let labels = known.iter().zip(of.indices(cell));
            let labels = labels.map(|(names, index)| names[index].clone());
            let values = of.fields.iter().map(|field| value(field, cell));
            labels.chain(values).collect()
        });
        out.grid(&titles, rows);
    }
}
