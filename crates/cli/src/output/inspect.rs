//! Variables of a scientific file.

use super::table::{Text, columns};
use super::{Report, joined, records};
use crate::format::Bytes;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use tidemill_format::{Attribute, Dimension, Endian, Filter, Format, Storage, Value, Variable};
use tidemill_model::display::line;

records! {
    /// Scientific file.
    Inspection {
        /// File, as it was named.
        path: String,
        format: String,
        /// Attributes of the whole file.
        attributes: BTreeMap<String, Json>,
        /// All variables, or the named variables.
        variables: Vec<ShownVariable>,
        /// Whether the attributes of variables are shown.
        #[serde(skip)]
        detailed: bool,
    }

    /// Variable, and the locations of its bytes.
    ShownVariable {
        name: String,
        /// Type of the values.
        #[serde(rename = "type")]
        data_type: String,
        /// Number of bytes of a value.
        size: u32,
        big_endian: bool, dimensions: Vec<ShownDimension>, attributes: BTreeMap<String, Json>,
        /// Kind of storage, with the shape of chunks and the filters.
        storage: String,
        /// Shape of the chunks; null if the variable has no chunks.
        chunk_shape: Option<Vec<u64>>,
        /// Filters of the chunks, in the order of compression.
        filters: Vec<Json>,
        #[serde(rename = "where")]
        places: Vec<VariableLocation>,
        /// Whether there are more chunks than were counted.
        more: bool,
        /// Reason why the bytes can't be located.
        error: Option<String>,
        /// Attributes for people, in the order of the file.
        #[serde(skip)]
        details: Vec<String>,
    }

    /// Dimension of a variable.
    ShownDimension from of: Dimension {
        name: String, size: u64,
        /// Whether the dimension can grow.
        unlimited: bool,
    }

    /// Bytes of a variable in one part of the file.
    VariableLocation {
        part: Option<usize>, node: Option<u32>, bytes: Bytes,
        /// Number of chunks.
        chunks: u64,
    }
}

columns! { one: ShownVariable {
    left "NAME" => one.name,
    left "TYPE" => one.data_type,
    left "DIMENSIONS" => joined(one.dimensions.iter().map(|one| {
        // The star marks a dimension that can grow.
        format!("{}={}{}", one.name, one.size, if one.unlimited { "*" } else { "" })
    })),
    left "STORAGE" => one.storage,
    right "BYTES" => Bytes(one.places.iter().map(|place| place.bytes.0).sum()),
    left "WHERE" => one.location(),
} }

impl Report for Inspection {
    fn text(&self, out: &mut Text) {
        writeln!(out, "{}: {}", line(&self.path), self.format);
        out.table(&self.variables);
        for text in self
            .variables
            .iter()
            .filter(|_| self.detailed)
            .flat_map(|one| &one.details)
        {
            writeln!(out, "{text}");
        }
    }
}

impl ShownVariable {
    /// Makes the result from a variable; `error` is the reason why its bytes can't be located.
    pub(crate) fn new(
        variable: &Variable,
        places: Vec<VariableLocation>,
        more: bool,
        error: Option<String>,
    ) -> Self {
        let (chunk_shape, filters) = match &variable.storage {
            Storage::Chunked(chunked) => (Some(chunked.shape.clone()), &*chunked.filters),
            _ => (None, &[][..]),
        };
        Self {
            name: variable.path.clone(),
            data_type: variable.data_type.name(),
            size: variable.data_type.size,
            big_endian: variable.data_type.order == Endian::Big,
            dimensions: super::list(&variable.dimensions),
            attributes: attributes(&variable.attributes),
            storage: storage(&variable.storage),
            chunk_shape,
            filters: filters.iter().map(|filter| json!(filter)).collect(),
            places,
            more,
            error,
            details: variable
                .attributes
                .iter()
                .map(|one| detail(&variable.path, one))
                .collect(),
        }
    }

    fn location(&self) -> String {
        if let Some(error) = &self.error {
            return error.clone();
        }
        let place = |place: &VariableLocation| match (place.node, place.part) {
            (Some(node), Some(part)) => Some(format!("part {part} on node {node}")),
            (Some(node), None) => Some(format!("node {node}")),
            _ => None,
        };
        let more = self.more.then(|| "…".to_owned());
        joined(self.places.iter().filter_map(place).chain(more))
    }
}

/// Returns the name of a format.
pub(crate) fn format_name(format: Format) -> String {
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

/// Returns attributes by name: a text, a number or a list.
pub(crate) fn attributes(attributes: &[Attribute]) -> BTreeMap<String, Json> {
    let one = |one: &Attribute| (one.name.clone(), value(&one.value));
    attributes.iter().map(one).collect()
}

fn detail(variable: &str, of: &Attribute) -> String {
    let value = value(&of.value);
    let value = value.as_str().map_or_else(|| value.to_string(), line);
    format!("{}:{} = {value}", line(variable), line(&of.name))
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
