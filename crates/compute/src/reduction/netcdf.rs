//! Writes results of reductions as netCDF classic files, at once or slab by slab.

use std::io::{self, Seek, SeekFrom, Write};

use tidemill_format::{Attribute, Value};

use super::error::{Error, Result};
use super::filters::is_of_stored_coordinate;
use super::slabs::CellRange;
use super::state::as_usize;
use super::table::{Column, ResultAxis, ResultField, ResultTable, Scalar};
use super::write::{integers, reals, singles};

impl ResultTable {
    /// Writes the result as netCDF classic; results with 64-bit integers use the form of the format that supports them.
    pub(super) fn netcdf(&self, out: &mut dyn Write) -> io::Result<()> {
        let stored = |field: &ResultField| match field.single {
            true => (FLOAT, singles(field, FILL, f32::to_be_bytes)),
            false => big(&field.values),
        };
        let mut variables = self.beside();
        for field in &self.fields {
            let (kind, bytes) = stored(field);
            variables.push(self.variable(field, (kind, bytes.len() as u64), bytes));
        }
        let (head, _) = self.head(&variables);
        out.write_all(&head)?;
        for one in &variables {
            out.write_all(&one.bytes)?;
            out.write_all(&[0; 3][..as_usize(padded(one.length) - one.length)])?;
        }
        Ok(())
    }

    /// Returns the header of a file with these variables, and the offset of each variable; the last offset is the end of the file.
    fn head(&self, variables: &[WrittenVariable]) -> (Vec<u8>, Vec<u64>) {
        let mut dimensions = self
            .axes
            .iter()
            .map(|axis| (axis.name.clone(), axis.length))
            .collect::<Vec<_>>();
        let is_bounded = |axis: &ResultAxis| {
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
        let own = |one: &&Attribute| one.name != "Conventions" && !one.name.starts_with("_NC");
        let mut attributes = vec![attribute("Conventions", Value::Text("CF-1.8".into()))];
        attributes.extend(self.attributes.iter().filter(own).cloned());
        head(&dimensions, &attributes, variables)
    }

    /// Returns the variables in addition to the fields: coordinates, their bounds, and scalars.
    fn beside(&self) -> Vec<WrittenVariable> {
        let mut variables = self.coordinates();
        variables.extend(self.scalars.iter().map(scalar));
        variables
    }

    /// Returns the coordinates of all dimensions, each after its bounds. The last dimension of bounds follows all dimensions of the result.
    fn coordinates(&self) -> Vec<WrittenVariable> {
        let mut variables = Vec::new();
        for (number, axis) in self.axes.iter().enumerate() {
            if let Some(coordinate) = &axis.coordinate {
                let mut attributes: Vec<Attribute> = coordinate
                    .attributes
                    .iter()
                    .filter(|one| !is_of_stored_coordinate(&one.name))
                    .cloned()
                    .collect();
                if let Some(bounds) = &coordinate.bounds {
                    let name = self.bounds_of(&axis.name);
                    attributes.push(attribute("bounds", Value::Text(name.clone())));
                    let ends = bounds.iter().flat_map(|(low, high)| [low, high]);
                    variables.push(doubles(
                        (name, vec![number, self.axes.len()]),
                        Vec::new(),
                        ends.copied(),
                    ));
                }
                variables.push(doubles(
                    (axis.name.clone(), vec![number]),
                    attributes,
                    coordinate.values.iter().copied(),
                ));
            }
        }
        variables
    }

    /// Returns the name of the variable that holds the bounds of a coordinate.
    fn bounds_of(&self, name: &str) -> String {
        let mut name = format!("{name}_bnds");
        while self.fields.iter().any(|field| field.variable == name) {
            name.push('_');
        }
        name
    }

    fn variable(
        &self,
        field: &ResultField,
        (kind, length): (u32, u64),
        bytes: Vec<u8>,
    ) -> WrittenVariable {
        let others = self
            .fields
            .iter()
            .filter(|one| one.variable == field.variable);
        let name = match others.count() {
            1 => field.variable.replace('/', "_"),
            // Names have letters, digits and underscores.
            _ => field.title().replace('.', "_"),
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
        WrittenVariable {
            name,
            dimensions: (0..self.axes.len()).collect(),
            attributes,
            kind,
            length,
            bytes,
        }
    }
}

/// Returns a scalar variable with the middle of the reduced part of a dimension.
fn scalar(scalar: &Scalar) -> WrittenVariable {
    let (low, high) = scalar.ends;
    let is_kept = |one: &&Attribute| !is_of_stored_coordinate(&one.name);
    doubles(
        (scalar.name.clone(), Vec::new()),
        scalar.attributes.iter().filter(is_kept).cloned().collect(),
        [low + (high - low) / 2.0].into_iter(),
    )
}

fn doubles(
    (name, dimensions): (String, Vec<usize>),
    attributes: Vec<Attribute>,
    values: impl Iterator<Item = f64>,
) -> WrittenVariable {
    let bytes: Vec<u8> = values.flat_map(f64::to_be_bytes).collect();
    WrittenVariable {
        name,
        dimensions,
        attributes,
        kind: DOUBLE,
        length: bytes.len() as u64,
        bytes,
    }
}

/// netCDF's default fill value for doubles that were never written.
const FILL: f64 = 9.969_209_968_386_869e36;

const CHAR: u32 = 2;
const INT: u32 = 4;
const FLOAT: u32 = 5;
const DOUBLE: u32 = 6;
const INT64: u32 = 10;
const UINT64: u32 = 11;

struct WrittenVariable {
    name: String,
    dimensions: Vec<usize>,
    attributes: Vec<Attribute>,
    kind: u32,
    /// Length of the variable in bytes.
    length: u64,
    /// Values of the variable, unless they are written later.
    bytes: Vec<u8>,
}

fn attribute(name: &str, value: Value) -> Attribute {
    Attribute {
        name: name.into(),
        value,
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

/// Header of a netCDF classic file; its numbers have 8 bytes in version 5.
struct ClassicHeader {
    bytes: Vec<u8>,
    wide: bool,
}

impl ClassicHeader {
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

    /// Writes attributes to the header. Fill values have the type `of` of their variable.
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
                    Value::Int(all) if of == INT64 && one.name == "_FillValue" => {
                        let bytes = all.iter().flat_map(|value| value.to_be_bytes());
                        (INT64, all.len(), bytes.collect())
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

fn padded(length: u64) -> u64 {
    length.next_multiple_of(4)
}

/// Returns the header of a file, and the offset of each variable; the last offset is the end of the file.
fn head(
    dimensions: &[(String, u64)],
    attributes: &[Attribute],
    variables: &[WrittenVariable],
) -> (Vec<u8>, Vec<u64>) {
    let wide = variables
        .iter()
        .any(|one| one.kind >= INT64 || one.length > i32::MAX.unsigned_abs().into());
    let head = |begins: &[u64]| {
        let mut head = ClassicHeader {
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
            head.number(padded(one.length));
            head.bytes.extend(begin.to_be_bytes());
        }
        head.bytes
    };
    let mut begins = vec![head(&vec![0; variables.len()]).len() as u64];
    for one in variables {
        begins.push(begins[begins.len() - 1] + padded(one.length));
    }
    (head(&begins), begins)
}

/// netCDF file of a result whose values are written slab by slab.
#[derive(Debug)]
pub struct Netcdf<W> {
    out: W,
    shape: Vec<u64>,
    fields: Vec<FieldLocation>,
}

/// Location of a field in the file.
#[derive(Debug)]
struct FieldLocation {
    name: String,
    begin: u64,
    kind: u32,
}

impl<W: Write + Seek> Netcdf<W> {
    /// Writes everything except the values of the fields to a new file. Integers are written with 64 bits.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn create(outline: &ResultTable, mut out: W) -> Result<Self> {
        let shape: Vec<u64> = outline.axes.iter().map(|axis| axis.length).collect();
        let cells = shape.iter().product::<u64>();
        let mut variables = outline.beside();
        let first = variables.len();
        for field in &outline.fields {
            let kind = match (&field.values, field.single) {
                (_, true) => FLOAT,
                (Column::Real(_), _) => DOUBLE,
                (Column::Whole(_), _) => INT64,
            };
            let mut variable = outline.variable(field, (kind, cells * bytes_of(kind)), Vec::new());
            if kind == INT64 {
                let fill = attribute("_FillValue", Value::Int(vec![WHOLE_FILL]));
                variable.attributes.push(fill);
            }
            variables.push(variable);
        }
        let (head, begins) = outline.head(&variables);
        let written = (|| {
            out.write_all(&head)?;
            for (one, begin) in variables.iter().zip(&begins) {
                out.seek(SeekFrom::Start(*begin))?;
                out.write_all(&one.bytes)?;
            }
            // Padding may follow the last value.
            let end = begins.last().copied().unwrap_or(0);
            out.seek(SeekFrom::Start(end.saturating_sub(1)))?;
            out.write_all(&[0])
        })();
        written.map_err(unwritten)?;
        let places = variables.into_iter().zip(begins).skip(first);
        let place = |(one, begin): (WrittenVariable, u64)| FieldLocation {
            name: one.name,
            begin,
            kind: one.kind,
        };
        let fields = places.map(place).collect();
        Ok(Self { out, shape, fields })
    }

    /// Writes the values of some cells. The fields of the table are the fields of the file from `first` on.
    ///
    /// # Errors
    /// If the file cannot be written, or if integers do not fit into 64 bits.
    pub fn put(
        &mut self,
        first: usize,
        (at, lengths): &CellRange,
        table: &ResultTable,
    ) -> Result<()> {
        let mut cells = (at.clone(), lengths.clone());
        // Each slab contains the whole axis of bins.
        for axis in &self.shape[at.len()..] {
            cells.0.push(0);
            cells.1.push(*axis);
        }
        for (place, field) in self.fields[first..].iter().zip(&table.fields) {
            let bytes = place.bytes(field)?;
            let rows = rows(&self.shape, &cells, bytes_of(place.kind));
            for (offset, row) in rows.zip(bytes.chunks(row_bytes(&self.shape, &cells, place.kind)))
            {
                let written = self.out.seek(SeekFrom::Start(place.begin + offset));
                let written = written.and_then(|_| self.out.write_all(row));
                written.map_err(unwritten)?;
            }
        }
        Ok(())
    }

    /// Completes the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn finish(mut self) -> Result<W> {
        self.out.flush().map_err(unwritten)?;
        Ok(self.out)
    }
}

fn unwritten(source: io::Error) -> Error {
    Error::Io {
        file: "the result".into(),
        source,
    }
}

/// netCDF's default fill value for 64-bit integers that were never written.
pub(super) const WHOLE_FILL: i64 = -9_223_372_036_854_775_806;

fn bytes_of(kind: u32) -> u64 {
    match kind {
        CHAR => 1,
        INT | FLOAT => 4,
        _ => 8,
    }
}

impl FieldLocation {
    fn bytes(&self, field: &ResultField) -> Result<Vec<u8>> {
        let Column::Whole(all) = &field.values else {
            return Ok(match self.kind {
                FLOAT => singles(field, FILL, f32::to_be_bytes),
                _ => big(&field.values).1,
            });
        };
        let mut bytes = Vec::with_capacity(8 * all.len());
        for one in all {
            let one = match one {
                None => WHOLE_FILL,
                Some(one) => match i64::try_from(*one) {
                    Ok(one) if one != WHOLE_FILL => one,
                    _ => {
                        return Err(Error::Query(format!(
                            "{}: {one} is no value of 64-bit integers with a fill value, which is the form of large results: select less",
                            self.name
                        )));
                    }
                },
            };
            bytes.extend(one.to_be_bytes());
        }
        Ok(bytes)
    }
}

/// Returns the last axis along which the cells are only a part, or the first axis: cells are contiguous along all later axes.
fn cut(shape: &[u64], (_, lengths): &CellRange) -> usize {
    let parts = shape.iter().zip(lengths);
    parts
        .into_iter()
        .rposition(|(all, some)| all != some)
        .unwrap_or(0)
}

/// Returns the number of contiguous bytes in a range of cells.
fn row_bytes(shape: &[u64], cells: &CellRange, kind: u32) -> usize {
    let cut = cut(shape, cells);
    as_usize(cells.1[cut..].iter().product::<u64>() * bytes_of(kind)).max(1)
}

/// Returns the offsets of the contiguous parts of a range of cells, in bytes.
fn rows(shape: &[u64], cells: &CellRange, size: u64) -> impl Iterator<Item = u64> {
    let (at, lengths) = cells;
    let cut = cut(shape, cells);
    let strides: Vec<u64> = (0..shape.len())
        .map(|axis| shape[axis + 1..].iter().product::<u64>() * size)
        .collect();
    let first: u64 = at
        .iter()
        .zip(&strides)
        .map(|(at, stride)| at * stride)
        .sum();
    let outer: Vec<(u64, u64)> = lengths[..cut].iter().copied().zip(strides).collect();
    let count: u64 = outer.iter().map(|(length, _)| length).product();
    (0..count).map(move |number| {
        let mut left = number;
        let mut offset = first;
        for (length, stride) in outer.iter().rev() {
            offset += left % length * stride;
            left /= length;
        }
        offset
    })
}
