//! Results of a reduction.

use super::{View, table, write_table};
use serde_json::Value as Json;
use std::io::{self, Write};
use tidemill_core::display::line;
use tidemill_kernel::reduction::{ResultAxis, ResultFormat, ResultTable};

/// Maximum number of cells that are shown in columns; a larger result is shown as CSV.
const ROWS_MAX: usize = 1000;

/// Result.
#[derive(Debug)]
pub(crate) struct TableView(pub(crate) ResultTable);

impl View for TableView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self(of) = self;
        let none = || "-".to_owned();
        if of.axes.is_empty() {
            for field in &of.fields {
                let value = field.values.text(0).unwrap_or_else(none);
                match of.fields.len() {
                    1 => writeln!(out, "{value}")?,
                    _ => writeln!(out, "{:8}{value}", of.title(field))?,
                }
            }
            return Ok(());
        }
        if of.cells() > ROWS_MAX {
            return of.write(ResultFormat::Csv, out).map_err(io::Error::other);
        }
        let names = of.axes.iter().map(|axis| line(&axis.name).to_uppercase());
        let fields = of.fields.iter().map(|field| of.title(field).to_uppercase());
        let names: Vec<String> = names.chain(fields).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let numbers: Vec<usize> = (of.axes.len()..names.len()).collect();
        let mut rows = table(&names, &numbers);
        let known: Vec<Vec<String>> = of.axes.iter().map(ResultAxis::names).collect();
        for cell in 0..of.cells() {
            let labels = known
                .iter()
                .zip(of.indices(cell))
                .map(|(names, index)| line(&names[index]));
            let values = of
                .fields
                .iter()
                .map(|field| field.values.text(cell).unwrap_or_else(none));
            rows.add_row(labels.chain(values));
        }
        write_table(out, &rows)
    }

    fn json(&self) -> Json {
        self.0.json()
    }
}
