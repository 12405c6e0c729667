//! Writes results of reductions as netCDF, npy, CSV and JSON.

use std::io::{self, Write};

use serde_json::{Value as Json, json};
use tidemill_format::time::Units;
use tidemill_format::{Attribute, Value};

use super::error::{Error, Result};
use super::table::{Column, ResultAxis, ResultField, ResultTable};

/// File format of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum ResultFormat {
    Netcdf,
    Npy,
    Csv,
    Json,
}

impl ResultFormat {
    /// Returns the format for a result with this file name.
    ///
    /// # Errors
    /// If the file name does not end in `.nc`, `.npy`, `.csv` or `.json`.
    pub fn of(name: &str) -> Result<Self> {
        let forms = [
            (".nc", Self::Netcdf),
            (".npy", Self::Npy),
            (".csv", Self::Csv),
            (".json", Self::Json),
        ];
        let found = forms.into_iter().find(|(end, _)| name.ends_with(end));
        found.map(|(_, form)| form).ok_or_else(|| Error::Text {
            what: "output",
            text: name.into(),
            why: "its name ends in none of .nc, .npy, .csv, .json".into(),
        })
    }
}

impl Column {
    fn len(&self) -> usize {
        match self {
            Self::Whole(all) => all.len(),
            Self::Real(all) => all.len(),
        }
    }

    /// Returns the number of a cell as text; `None` if the cell has no value.
    #[must_use]
    pub fn text(&self, cell: usize) -> Option<String> {
        match self {
            Self::Whole(all) => all[cell].map(|one| one.to_string()),
            Self::Real(all) => all[cell].map(real),
        }
    }

    fn json(&self, cell: usize) -> Json {
        match self {
            Self::Whole(all) => match all[cell] {
                None => Json::Null,
                // Integers beyond 64 bits are written as text, because readers would round them.
                Some(one) => match (i64::try_from(one), u64::try_from(one)) {
                    (Ok(one), _) => json!(one),
                    (_, Ok(one)) => json!(one),
                    _ => json!(one.to_string()),
                },
            },
            Self::Real(all) => all[cell].map_or(Json::Null, number),
        }
    }
}

/// Returns a number as JSON. JSON has neither infinities nor NaN: they are written as text.
fn number(value: f64) -> Json {
    match value.is_finite() {
        true => json!(value),
        false => json!(value.to_string()),
    }
}

/// Returns the shortest text that parses to the same number.
fn real(value: f64) -> String {
    format!("{value:?}")
}

impl ResultAxis {
    /// Returns the name of each index of a dimension: its group, its time, its value, or its number.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        match (&self.labels, &self.coordinate) {
            (Some(labels), _) => labels.clone(),
            (None, Some(coordinate)) => {
                let value_of = |name| text(&coordinate.attributes, name);
                let calendar = value_of("calendar").unwrap_or("standard");
                let units = value_of("units").and_then(|units| Units::parse(units, calendar).ok());
                let name = |value: &f64| {
                    let moment = units.and_then(|units| units.moment(*value));
                    moment.map_or_else(|| value.to_string(), |moment| moment.to_string())
                };
                coordinate.values.iter().map(name).collect()
            }
            (None, None) => (0..self.length).map(|index| index.to_string()).collect(),
        }
    }
}

impl ResultTable {
    /// Returns the number of cells of the table.
    #[must_use]
    pub fn cells(&self) -> usize {
        self.fields.first().map_or(0, |field| field.values.len())
    }

    /// Returns the index of a cell along each dimension.
    #[must_use]
    pub fn indices(&self, cell: usize) -> Vec<usize> {
        let mut left = cell as u64;
        let mut indices = vec![0; self.axes.len()];
        for (index, axis) in indices.iter_mut().zip(&self.axes).rev() {
            *index = usize::try_from(left % axis.length.max(1)).unwrap_or(0);
            left /= axis.length.max(1);
        }
        indices
    }

    /// Returns the result as JSON.
    #[must_use]
    pub fn json(&self) -> Json {
        let axis = |axis: &ResultAxis| {
            json!({
                "name": axis.name,
                "length": axis.length,
                "values": axis.coordinate.as_ref().map(|coordinate| coordinate.values.iter().copied().map(number).collect::<Vec<_>>()),
                "units": axis.coordinate.as_ref().and_then(|coordinate| text(&coordinate.attributes, "units")),
                "labels": axis.labels,
            })
        };
        let dimensions: Vec<Json> = self.axes.iter().map(axis).collect();
        let of_variable = |fields: &[ResultField]| json!({ "variable": fields[0].variable, "units": fields[0].units, "values": self.values(fields) });
        let same = |one: &ResultField, other: &ResultField| one.variable == other.variable;
        let mut variables: Vec<Json> = self.fields.chunk_by(same).map(of_variable).collect();
        if variables.len() > 1 {
            return json!({ "dimensions": dimensions, "variables": variables });
        }
        let mut only = variables.pop().unwrap_or_default();
        only["dimensions"] = json!(dimensions);
        only
    }

    fn values(&self, fields: &[ResultField]) -> Json {
        let mut found = serde_json::Map::new();
        for field in fields {
            let values: Vec<Json> = (0..field.values.len())
                .map(|cell| field.values.json(cell))
                .collect();
            let values = if self.axes.is_empty() {
                values.into_iter().next().unwrap_or(Json::Null)
            } else {
                json!(values)
            };
            found.insert(field.name.to_string(), values);
        }
        Json::Object(found)
    }

    /// Writes the result in a format.
    ///
    /// # Errors
    /// If the table has several fields and the format is npy, if it has no values yet, or if it cannot be written.
    pub fn write(&self, form: ResultFormat, out: &mut dyn Write) -> Result<()> {
        if self.is_outline() {
            return Err(Error::TooLarge(self.all().1.iter().product()));
        }
        if matches!(form, ResultFormat::Npy | ResultFormat::Netcdf) {
            self.fields
                .iter()
                .try_for_each(ResultField::check_integers)?;
        }
        let wrote = match form {
            ResultFormat::Json => serde_json::to_writer_pretty(&mut *out, &self.json())
                .map_err(io::Error::from)
                .and_then(|()| writeln!(out)),
            ResultFormat::Csv => self.csv(out),
            ResultFormat::Npy if self.fields.len() > 1 => {
                return Err(Error::Query(
                    "an npy file contains one array, and the result has several; write .nc, .csv or .json".into(),
                ));
            }
            ResultFormat::Npy => self.npy(out),
            ResultFormat::Netcdf => self.netcdf(out),
        };
        wrote.map_err(|source| Error::Io {
            file: "the result".into(),
            source,
        })
    }

    fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let names = self
            .axes
            .iter()
            .map(|axis| axis.name.clone())
            .chain(self.fields.iter().map(|field| self.title(field)));
        writeln!(out, "{}", names.collect::<Vec<_>>().join(","))?;
        let known: Vec<Vec<String>> = self.axes.iter().map(ResultAxis::names).collect();
        for cell in 0..self.cells() {
            let labels = known
                .iter()
                .zip(self.indices(cell))
                .map(|(names, index)| names[index].clone());
            let values = self
                .fields
                .iter()
                .map(|field| field.values.text(cell).unwrap_or_default());
            writeln!(
                out,
                "{}",
                labels.chain(values).collect::<Vec<_>>().join(",")
            )?;
        }
        Ok(())
    }

    fn npy(&self, out: &mut dyn Write) -> io::Result<()> {
        let Some(field) = self.fields.first() else {
            return Ok(());
        };
        let (descr, bytes) = match field.single {
            true => ("<f4", singles(field, f64::NAN, f32::to_le_bytes)),
            false => little(&field.values),
        };
        let lengths: Vec<String> = self
            .axes
            .iter()
            .map(|axis| format!("{},", axis.length))
            .collect();
        let mut head = format!(
            "{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}), }}",
            lengths.join(" ")
        );
        let pad = (64 - (10 + head.len() + 1) % 64) % 64;
        head.push_str(&" ".repeat(pad));
        head.push('\n');
        out.write_all(b"\x93NUMPY\x01\x00")?;
        out.write_all(
            &u16::try_from(head.len())
                .map_err(io::Error::other)?
                .to_le_bytes(),
        )?;
        out.write_all(head.as_bytes())?;
        out.write_all(&bytes)
    }
}

pub(super) fn text<'a>(attributes: &'a [Attribute], name: &str) -> Option<&'a str> {
    attributes
        .iter()
        .find(|one| one.name == name)
        .and_then(|one| match &one.value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })
}

impl ResultField {
    /// Refuses integers that would be rounded when they are written as doubles.
    fn check_integers(&self) -> Result<()> {
        let Column::Whole(all) = &self.values else {
            return Ok(());
        };
        let rounds = |one: &i128| one.unsigned_abs() > 1 << 53;
        match all.iter().flatten().find(|one| rounds(one)) {
            Some(one) if integers(all).is_none() => Err(Error::Query(format!(
                "{}: {one} has no exact form in this format, as not all values are integers of 64 bits; write .json or .csv",
                self.name
            ))),
            _ => Ok(()),
        }
    }
}

/// Returns all numbers as integers of 64 bits, if every cell has a number and each number fits.
pub(super) fn integers(all: &[Option<i128>]) -> Option<(bool, Vec<u64>)> {
    let signed: Option<Vec<u64>> = all
        .iter()
        .map(|one| i64::try_from((*one)?).ok().map(i64::cast_unsigned))
        .collect();
    signed.map(|all| (true, all)).or_else(|| {
        let unsigned: Option<Vec<u64>> =
            all.iter().map(|one| u64::try_from((*one)?).ok()).collect();
        unsigned.map(|all| (false, all))
    })
}

pub(super) fn reals(values: &Column, none: f64) -> Vec<f64> {
    match values {
        Column::Whole(all) => all
            .iter()
            .map(|one| one.map_or(none, super::state::real))
            .collect(),
        Column::Real(all) => all.iter().map(|one| one.unwrap_or(none)).collect(),
    }
}

/// Returns the values of a field of 32-bit floats as bytes.
pub(super) fn singles(field: &ResultField, none: f64, bytes: fn(f32) -> [u8; 4]) -> Vec<u8> {
    let values = reals(&field.values, none).into_iter();
    #[expect(
        clippy::cast_possible_truncation,
        reason = "they were 32-bit floats before"
    )]
    let values = values.flat_map(|value| bytes(value as f32));
    values.collect()
}

fn little(values: &Column) -> (&'static str, Vec<u8>) {
    match values {
        Column::Whole(all) => match integers(all) {
            Some((signed, all)) => {
                let bytes = all.into_iter().flat_map(u64::to_le_bytes).collect();
                (if signed { "<i8" } else { "<u8" }, bytes)
            }
            None => (
                "<f8",
                reals(values, f64::NAN)
                    .into_iter()
                    .flat_map(f64::to_le_bytes)
                    .collect(),
            ),
        },
        Column::Real(_) => (
            "<f8",
            reals(values, f64::NAN)
                .into_iter()
                .flat_map(f64::to_le_bytes)
                .collect(),
        ),
    }
}
