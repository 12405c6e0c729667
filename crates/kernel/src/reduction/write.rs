//! Results as netCDF, npy, CSV and JSON.

use std::io::{self, Write};

use serde_json::{Value as Json, json};
use tidemill_format::time::Units;
use tidemill_format::{Attribute, Value};

use super::error::{Error, Result};
use super::table::{Axis, Column, Field, Scalar, Table};

/// How a result is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Form {
    Netcdf,
    Npy,
    Csv,
    Json,
}

impl Form {
    /// That of a file's name.
    ///
    /// # Errors
    /// If it ends in none of `.nc`, `.npy`, `.csv`, `.json`.
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

    /// A number as text; none if there is none.
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
                // Beyond 64 bits they are text, as readers would round them.
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

/// JSON has neither infinities nor NaN: they are text.
fn number(value: f64) -> Json {
    match value.is_finite() {
        true => json!(value),
        false => json!(value.to_string()),
    }
}

/// The shortest text that is the same number.
fn real(value: f64) -> String {
    format!("{value:?}")
}

impl Axis {
    /// What each index is called: its group, its time, its value, or its number.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        match (&self.labels, &self.coordinate) {
            (Some(labels), _) => labels.clone(),
            (None, Some(coordinate)) => {
                let said = |name| text(&coordinate.attributes, name);
                let calendar = said("calendar").unwrap_or("standard");
                let units = said("units").and_then(|units| Units::parse(units, calendar).ok());
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

impl Table {
    /// How many cells it has.
    #[must_use]
    pub fn cells(&self) -> usize {
        self.fields.first().map_or(0, |field| field.values.len())
    }

    /// The index along each dimension of a cell.
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

    /// As JSON.
    #[must_use]
    pub fn json(&self) -> Json {
        let axis = |axis: &Axis| {
            json!({
                "name": axis.name,
                "length": axis.length,
                "values": axis.coordinate.as_ref().map(|coordinate| coordinate.values.iter().copied().map(number).collect::<Vec<_>>()),
                "units": axis.coordinate.as_ref().and_then(|coordinate| text(&coordinate.attributes, "units")),
                "labels": axis.labels,
            })
        };
        let dimensions: Vec<Json> = self.axes.iter().map(axis).collect();
        let of_variable = |fields: &[Field]| json!({ "variable": fields[0].variable, "units": fields[0].units, "values": self.values(fields) });
        let same = |one: &Field, other: &Field| one.variable == other.variable;
        let mut variables: Vec<Json> = self.fields.chunk_by(same).map(of_variable).collect();
        if variables.len() > 1 {
            return json!({ "dimensions": dimensions, "variables": variables });
        }
        let mut only = variables.pop().unwrap_or_default();
        only["dimensions"] = json!(dimensions);
        only
    }

    fn values(&self, fields: &[Field]) -> Json {
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

    /// Writes it.
    ///
    /// # Errors
    /// If it has several fields and is to be npy, or can't be written.
    pub fn write(&self, form: Form, out: &mut dyn Write) -> Result<()> {
        if matches!(form, Form::Npy | Form::Netcdf) {
            self.fields.iter().try_for_each(Field::check_integers)?;
        }
        let wrote = match form {
            Form::Json => serde_json::to_writer_pretty(&mut *out, &self.json())
                .map_err(io::Error::from)
                .and_then(|()| writeln!(out)),
            Form::Csv => self.csv(out),
            Form::Npy if self.fields.len() > 1 => {
                return Err(Error::Query(
                    "npy holds one array, and these are several; write .nc, .csv or .json".into(),
                ));
            }
            Form::Npy => self.npy(out),
            Form::Netcdf => self.netcdf(out),
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
        let known: Vec<Vec<String>> = self.axes.iter().map(Axis::names).collect();
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

    /// netCDF classic; with 64-bit integers, the form of it that has them.
    fn netcdf(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut dimensions = self
            .axes
            .iter()
            .map(|axis| (axis.name.clone(), axis.length))
            .collect::<Vec<_>>();
        let is_bounded = |axis: &Axis| {
            axis.coordinate
                .as_ref()
                .is_some_and(|one| one.bounds.is_some())
        };
        if self.axes.iter().any(is_bounded) {
            let mut name = "bnds".to_owned();
            while dimensions.iter().any(|(known, _)| *known == name) {
                name.push('_');
            }
            dimensions.push((name, 2));
        }
        let mut variables = self.coordinates();
        variables.extend(self.scalars.iter().map(scalar));
        variables.extend(self.fields.iter().map(|field| self.variable(field)));
        let own = |one: &&Attribute| one.name != "Conventions" && !one.name.starts_with("_NC");
        let mut attributes = vec![attribute("Conventions", Value::Text("CF-1.8".into()))];
        attributes.extend(self.attributes.iter().filter(own).cloned());
        written(&dimensions, &attributes, &variables, out)
    }

    /// The coordinates of all dimensions, each behind its bounds, of which the last dimension is that behind the others.
    fn coordinates(&self) -> Vec<Written> {
        let mut variables = Vec::new();
        for (number, axis) in self.axes.iter().enumerate() {
            if let Some(coordinate) = &axis.coordinate {
                let mut attributes: Vec<Attribute> = coordinate
                    .attributes
                    .iter()
                    .filter(|one| !PACKED.contains(&one.name.as_str()))
                    .cloned()
                    .collect();
                if let Some(bounds) = &coordinate.bounds {
                    let name = self.bounds_of(&axis.name);
                    attributes.push(attribute("bounds", Value::Text(name.clone())));
                    let ends = bounds.iter().flat_map(|(low, high)| [low, high]);
                    variables.push(Written {
                        name,
                        dimensions: vec![number, self.axes.len()],
                        attributes: Vec::new(),
                        kind: DOUBLE,
                        bytes: ends.flat_map(|end| end.to_be_bytes()).collect(),
                    });
                }
                variables.push(Written {
                    name: axis.name.clone(),
                    dimensions: vec![number],
                    attributes,
                    kind: DOUBLE,
                    bytes: coordinate
                        .values
                        .iter()
                        .flat_map(|value| value.to_be_bytes())
                        .collect(),
                });
            }
        }
        variables
    }

    /// What the bounds of a coordinate are called.
    fn bounds_of(&self, name: &str) -> String {
        let mut name = format!("{name}_bnds");
        while self.fields.iter().any(|field| field.variable == name) {
            name.push('_');
        }
        name
    }

    fn variable(&self, field: &Field) -> Written {
        let others = self
            .fields
            .iter()
            .filter(|one| one.variable == field.variable);
        let name = match others.count() {
            1 => field.variable.replace('/', "_"),
            // Names have letters, digits and underscores.
            _ => field.title().replace('.', "_"),
        };
        let (kind, bytes) = match field.single {
            true => (FLOAT, singles(field, FILL, f32::to_be_bytes)),
            false => big(&field.values),
        };
        let mut attributes = field.attributes.clone();
        if field.name == "count" {
            attributes.push(attribute("units", Value::Text("1".into())));
        } else if let Some(units) = &field.units {
            attributes.push(attribute("units", Value::Text(units.clone())));
        }
        if !self.scalars.is_empty() {
            let names: Vec<&str> = self.scalars.iter().map(|one| one.name.as_str()).collect();
            attributes.push(attribute("coordinates", Value::Text(names.join(" "))));
        }
        if matches!(kind, FLOAT | DOUBLE) {
            attributes.push(attribute("_FillValue", Value::Float(vec![FILL])));
        }
        Written {
            name,
            dimensions: (0..self.axes.len()).collect(),
            attributes,
            kind,
            bytes,
        }
    }
}

/// The middle of what was reduced of a dimension.
fn scalar(scalar: &Scalar) -> Written {
    let (low, high) = scalar.ends;
    let is_kept = |one: &&Attribute| !PACKED.contains(&one.name.as_str());
    Written {
        name: scalar.name.clone(),
        dimensions: Vec::new(),
        attributes: scalar.attributes.iter().filter(is_kept).cloned().collect(),
        kind: DOUBLE,
        bytes: (low + (high - low) / 2.0).to_be_bytes().to_vec(),
    }
}

/// What a file says about numbers that are packed there, or lie in another variable that is not written.
const PACKED: [&str; 11] = [
    "_FillValue",
    "missing_value",
    "scale_factor",
    "add_offset",
    "valid_min",
    "valid_max",
    "valid_range",
    "_Unsigned",
    "bounds",
    "climatology",
    "formula_terms",
];

/// netCDF's default for a double that nobody wrote.
const FILL: f64 = 9.969_209_968_386_869e36;

const CHAR: u32 = 2;
const INT: u32 = 4;
const FLOAT: u32 = 5;
const DOUBLE: u32 = 6;
const INT64: u32 = 10;
const UINT64: u32 = 11;

struct Written {
    name: String,
    dimensions: Vec<usize>,
    attributes: Vec<Attribute>,
    kind: u32,
    bytes: Vec<u8>,
}

fn attribute(name: &str, value: Value) -> Attribute {
    Attribute {
        name: name.into(),
        value,
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

impl Field {
    /// Refuses integers that would be rounded: those that are written as doubles.
    fn check_integers(&self) -> Result<()> {
        let Column::Whole(all) = &self.values else {
            return Ok(());
        };
        let rounds = |one: &i128| one.unsigned_abs() > 1 << 53;
        match all.iter().flatten().find(|one| rounds(one)) {
            Some(one) if integers(all).is_none() => Err(Error::Query(format!(
                "{}: {one} has no exact form there, as not all values are integers of 64 bits; write .json or .csv",
                self.name
            ))),
            _ => Ok(()),
        }
    }
}

/// All as integers of 64 bits, if there is one everywhere and each fits.
fn integers(all: &[Option<i128>]) -> Option<(bool, Vec<u64>)> {
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

fn reals(values: &Column, none: f64) -> Vec<f64> {
    match values {
        Column::Whole(all) => all
            .iter()
            .map(|one| one.map_or(none, super::state::real))
            .collect(),
        Column::Real(all) => all.iter().map(|one| one.unwrap_or(none)).collect(),
    }
}

/// Values of a field of 32-bit floats.
fn singles(field: &Field, none: f64, bytes: fn(f32) -> [u8; 4]) -> Vec<u8> {
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

fn big(values: &Column) -> (u32, Vec<u8>) {
    let doubles = || {
        (
            DOUBLE,
            reals(values, FILL)
                .into_iter()
                .flat_map(f64::to_be_bytes)
                .collect(),
        )
    };
    let Column::Whole(all) = values else {
        return doubles();
    };
    let short: Option<Vec<i32>> = all.iter().map(|one| i32::try_from((*one)?).ok()).collect();
    if let Some(short) = short {
        return (INT, short.into_iter().flat_map(i32::to_be_bytes).collect());
    }
    match integers(all) {
        Some((signed, all)) => (
            if signed { INT64 } else { UINT64 },
            all.into_iter().flat_map(u64::to_be_bytes).collect(),
        ),
        None => doubles(),
    }
}

/// The header of a classic file, whose numbers have 8 bytes where its version is 5.
struct Head {
    bytes: Vec<u8>,
    wide: bool,
}

impl Head {
    fn number(&mut self, number: u64) {
        if self.wide {
            self.bytes.extend(number.to_be_bytes());
        } else {
            self.bytes
                .extend(u32::try_from(number).unwrap_or(u32::MAX).to_be_bytes());
        }
    }

    fn tag(&mut self, tag: u32) {
        self.bytes.extend(tag.to_be_bytes());
    }

    fn padded(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn name(&mut self, name: &str) {
        self.number(name.len() as u64);
        self.padded(name.as_bytes());
    }

    fn list(&mut self, tag: u32, count: usize) {
        self.tag(if count == 0 { 0 } else { tag });
        self.number(count as u64);
    }

    /// Those of a variable of 32-bit floats have its type where they are about its values.
    fn attributes(&mut self, attributes: &[Attribute], of: u32) {
        let kept: Vec<(&str, u32, u64, Vec<u8>)> = attributes
            .iter()
            .filter_map(|one| {
                let (kind, count, bytes) = match &one.value {
                    Value::Float(all) if of == FLOAT && one.name == "_FillValue" => {
                        #[expect(
                            clippy::cast_possible_truncation,
                            reason = "the fill value of that type"
                        )]
                        let bytes = all.iter().flat_map(|value| (*value as f32).to_be_bytes());
                        (FLOAT, all.len(), bytes.collect())
                    }
                    Value::Text(text) => (CHAR, text.len(), text.as_bytes().to_vec()),
                    Value::Float(all) => (
                        DOUBLE,
                        all.len(),
                        all.iter().flat_map(|value| value.to_be_bytes()).collect(),
                    ),
                    Value::Int(_) | Value::Uint(_) => {
                        let all = one.value.numbers();
                        (
                            DOUBLE,
                            all.len(),
                            all.into_iter().flat_map(f64::to_be_bytes).collect(),
                        )
                    }
                    Value::Texts(all) => {
                        let [text] = &all[..] else { return None };
                        (CHAR, text.len(), text.as_bytes().to_vec())
                    }
                    Value::Other => return None,
                };
                Some((one.name.as_str(), kind, count as u64, bytes))
            })
            .collect();
        self.list(12, kept.len());
        for (name, kind, count, bytes) in kept {
            self.name(name);
            self.tag(kind);
            self.number(count);
            self.padded(&bytes);
        }
    }
}

fn written(
    dimensions: &[(String, u64)],
    attributes: &[Attribute],
    variables: &[Written],
    out: &mut dyn Write,
) -> io::Result<()> {
    let wide = variables
        .iter()
        .any(|one| one.kind >= INT64 || one.bytes.len() > i32::MAX as usize);
    let head = |begins: &[u64]| {
        let mut head = Head {
            bytes: b"CDF".to_vec(),
            wide,
        };
        head.bytes.push(if wide { 5 } else { 2 });
        head.number(0);
        head.list(10, dimensions.len());
        for (name, length) in dimensions {
            head.name(name);
            head.number(*length);
        }
        head.attributes(attributes, DOUBLE);
        head.list(11, variables.len());
        for (one, begin) in variables.iter().zip(begins) {
            head.name(&one.name);
            head.number(one.dimensions.len() as u64);
            one.dimensions
                .iter()
                .for_each(|dimension| head.number(*dimension as u64));
            head.attributes(&one.attributes, one.kind);
            head.tag(one.kind);
            head.number(one.bytes.len().next_multiple_of(4) as u64);
            head.bytes.extend(begin.to_be_bytes());
        }
        head.bytes
    };
    let mut begin = head(&vec![0; variables.len()]).len() as u64;
    let mut begins = Vec::new();
    for one in variables {
        begins.push(begin);
        begin += one.bytes.len().next_multiple_of(4) as u64;
    }
    out.write_all(&head(&begins))?;
    for one in variables {
        out.write_all(&one.bytes)?;
        out.write_all(&[0; 3][..one.bytes.len().next_multiple_of(4) - one.bytes.len()])?;
    }
    Ok(())
}
