//! Variables of a scientific file.

use super::{View, exact, table, write_table};
use crate::format;
use serde_json::{Value as Json, json};
use std::ffi::OsString;
use std::io::{self, Write};
use tidemill_core::display::line;
use tidemill_format::{Attribute, Endian, Filter, Format, Storage, Value, Variable};

/// Output of `tidemill inspect`.
#[derive(Debug)]
pub(crate) struct InspectView {
    /// File, as it was named.
    pub(crate) path: OsString,
    /// Format of the file.
    pub(crate) format: Format,
    /// Attributes of the whole file.
    pub(crate) attributes: Vec<Attribute>,
    /// Variables, or some of them.
    pub(crate) variables: Vec<ShownVariable>,
    /// Whether their attributes are shown.
    pub(crate) detailed: bool,
}

/// Variable, and the locations of its bytes.
#[derive(Debug)]
pub(crate) struct ShownVariable {
    pub(crate) variable: Variable,
    pub(crate) places: Vec<VariableLocation>,
    /// Whether there are more chunks than were counted.
    pub(crate) more: bool,
    /// Reason why its bytes can't be located.
    pub(crate) why: Option<String>,
}

/// Bytes of a variable in one part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VariableLocation {
    pub(crate) part: Option<usize>,
    pub(crate) node: Option<u32>,
    pub(crate) bytes: u64,
    pub(crate) chunks: u64,
}

impl View for InspectView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "{}: {}",
            line(&self.path.to_string_lossy()),
            format_name(self.format)
        )?;
        let mut rows = table(
            &["NAME", "TYPE", "DIMENSIONS", "STORAGE", "BYTES", "WHERE"],
            &[4],
        );
        for shown in &self.variables {
            let variable = &shown.variable;
            rows.add_row([
                line(&variable.path),
                variable.data_type.name(),
                line(&dimensions(variable)),
                line(&storage(&variable.storage)),
                format::bytes(shown.places.iter().map(|place| place.bytes).sum()),
                line(&shown.places()),
            ]);
        }
        write_table(out, &rows)?;
        for shown in self.variables.iter().filter(|_| self.detailed) {
            for attribute in &shown.variable.attributes {
                let name = format!("{}:{}", shown.variable.path, attribute.name);
                writeln!(
                    out,
                    "{} = {}",
                    line(&name),
                    line(&value_text(&attribute.value))
                )?;
            }
        }
        Ok(())
    }

    fn json(&self) -> Json {
        json!({
            "path": exact(&self.path),
            "format": format_name(self.format),
            "attributes": attributes(&self.attributes),
            "variables": self.variables.iter().map(ShownVariable::json).collect::<Vec<_>>(),
        })
    }
}

impl ShownVariable {
    fn places(&self) -> String {
        if let Some(why) = &self.why {
            return why.clone();
        }
        let place = |place: &VariableLocation| match (place.node, place.part) {
            (Some(node), Some(part)) => format!("part {part} on node {node}"),
            (Some(node), None) => format!("node {node}"),
            _ => String::new(),
        };
        let mut places: Vec<String> = self
            .places
            .iter()
            .map(place)
            .filter(|text| !text.is_empty())
            .collect();
        if self.more {
            places.push("…".into());
        }
        places.join(", ")
    }

    fn json(&self) -> Json {
        let variable = &self.variable;
        let dimension = |one: &tidemill_format::Dimension| json!({ "name": one.name, "size": one.size, "unlimited": one.unlimited });
        let (chunk_shape, filters) = match &variable.storage {
            Storage::Chunked(chunked) => (json!(chunked.shape), json!(chunked.filters)),
            _ => (Json::Null, json!([])),
        };
        let place = |place: &VariableLocation| json!({ "part": place.part, "node": place.node, "bytes": place.bytes, "chunks": place.chunks });
        json!({
            "name": variable.path,
            "type": variable.data_type.name(),
            "size": variable.data_type.size,
            "big_endian": variable.data_type.order == Endian::Big,
            "dimensions": variable.dimensions.iter().map(dimension).collect::<Vec<_>>(),
            "attributes": attributes(&variable.attributes),
            "storage": storage(&variable.storage),
            "chunk_shape": chunk_shape,
            "filters": filters,
            "where": self.places.iter().map(place).collect::<Vec<_>>(),
            "more": self.more,
            "error": self.why,
        })
    }
}

fn format_name(format: Format) -> String {
    match format {
        Format::Classic(1) => "netCDF classic".into(),
        Format::Classic(2) => "netCDF 64-bit offset".into(),
        Format::Classic(_) => "netCDF 64-bit data".into(),
        Format::Netcdf4 => "netCDF-4".into(),
        Format::Hdf5 => "HDF5".into(),
        Format::Zarr(version) => format!("Zarr {version}"),
        Format::Fits => "FITS".into(),
        Format::Columns => "columns".into(),
    }
}

/// Returns the dimensions, such as `time=120*, lat=90`: the star marks a dimension that can grow.
fn dimensions(variable: &Variable) -> String {
    let one = |dimension: &tidemill_format::Dimension| {
        let star = if dimension.unlimited { "*" } else { "" };
        format!("{}={}{star}", dimension.name, dimension.size)
    };
    variable
        .dimensions
        .iter()
        .map(one)
        .collect::<Vec<_>>()
        .join(", ")
}

fn storage(storage: &Storage) -> String {
    match storage {
        Storage::Contiguous { .. } => "contiguous".into(),
        Storage::Records { .. } => "records".into(),
        Storage::Absent => "nothing written".into(),
        Storage::Elsewhere(what) => what.clone(),
        Storage::Chunked(chunked) => {
            let sizes: Vec<String> = chunked.shape.iter().map(u64::to_string).collect();
            let filters: Vec<String> = chunked.filters.iter().map(filter_name).collect();
            let with = if filters.is_empty() {
                String::new()
            } else {
                format!(", {}", filters.join("+"))
            };
            format!("chunks {}{with}", sizes.join("×"))
        }
    }
}

fn filter_name(filter: &Filter) -> String {
    match serde_json::to_value(filter) {
        Ok(Json::String(name)) => name,
        Ok(Json::Object(all)) => match filter {
            Filter::Other { name, .. } => name.clone(),
            _ => all.keys().next().cloned().unwrap_or_default(),
        },
        _ => String::new(),
    }
}

fn attributes(attributes: &[Attribute]) -> Json {
    attributes
        .iter()
        .map(|attribute| (attribute.name.clone(), value(&attribute.value)))
        .collect()
}

fn value(value: &Value) -> Json {
    let one = |list: Json| match list {
        Json::Array(mut list) if list.len() == 1 => list.remove(0),
        list => list,
    };
    match value {
        Value::Text(text) => json!(text),
        Value::Texts(texts) => json!(texts),
        Value::Int(numbers) => one(json!(numbers)),
        Value::Uint(numbers) => one(json!(numbers)),
        Value::Float(numbers) => one(json!(numbers)),
        Value::Other => Json::Null,
    }
}

fn value_text(of: &Value) -> String {
    match of {
        Value::Text(text) => text.clone(),
        other => value(other).to_string(),
    }
}
