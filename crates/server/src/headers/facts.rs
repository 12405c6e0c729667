//! Selection of the facts about a header that the database stores: the facts that users search for, within limits.

use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;
use tidemill_format::{Format, Header, Value, Variable};
use tidemill_meta::index::facts::{CoordinateRange, Facts};

/// Maximum number of a header's stored variables, and (`DIMENSIONS_MAX`, `ATTRIBUTES_MAX`) of its stored dimensions and attributes.
const VARIABLES_MAX: usize = 1000;
const DIMENSIONS_MAX: usize = 1000;
const ATTRIBUTES_MAX: usize = 256;
/// Maximum length in bytes of a stored text. Longer texts are left out.
const TEXT_BYTES_MAX: usize = 1024;
/// Attributes of variables for which users can search.
const TEXT_ATTRIBUTES: [&str; 3] = ["units", "standard_name", "long_name"];

/// Returns the facts about a header, with the ranges of its coordinates.
pub(super) fn facts_of(header: &Header, spans: Vec<CoordinateRange>) -> Facts {
    let mut facts = Facts::default();
    let format = format_name(header.format);
    facts.add_term("format", format.to_owned(), None);
    let (mut variables, mut sizes) = (Vec::new(), BTreeMap::new());
    for variable in header.variables.iter().take(VARIABLES_MAX) {
        variables.push(add_variable(&mut facts, variable));
        for dimension in &variable.dimensions {
            if sizes.len() < DIMENSIONS_MAX && short(&dimension.name) {
                sizes.insert((dimension.name.clone(), dimension.size), dimension.size);
            }
        }
    }
    let mut dimensions = Map::new();
    for ((name, size), _) in sizes {
        #[expect(clippy::cast_precision_loss, reason = "sizes are compared as numbers")]
        facts.add_term(&format!("dim.{name}"), size.to_string(), Some(size as f64));
        dimensions.insert(name, json!(size));
    }
    let mut attributes = Map::new();
    for attribute in header.attributes.iter().take(ATTRIBUTES_MAX) {
        let Some((text, number)) = one(&attribute.value).filter(|_| short(&attribute.name)) else {
            continue;
        };
        facts.add_term(&format!("attr.{}", attribute.name), text.clone(), number);
        attributes.insert(attribute.name.clone(), json!(text));
    }
    let reach = |span: &CoordinateRange| json!({"name": span.name, "from": span.shown.0, "to": span.shown.1});
    facts.body = json!({
        "format": format,
        "dimensions": dimensions,
        "variables": variables,
        "coordinates": spans.iter().map(reach).collect::<Vec<_>>(),
        "attributes": attributes,
    });
    facts.spans = spans;
    facts
}

/// Adds the terms of a variable. Returns its facts for display.
fn add_variable(facts: &mut Facts, variable: &Variable) -> Json {
    let mut shown = Map::new();
    let data_type = variable.data_type.name();
    if short(&data_type) {
        shown.insert("type".into(), json!(data_type));
        facts.add_term("type", data_type, None);
    }
    if short(&variable.path) {
        shown.insert("name".into(), json!(variable.path));
        facts.add_term("var", variable.path.clone(), None);
        if let Some((_, last)) = variable.path.rsplit_once('/') {
            facts.add_term("var", last.to_owned(), None);
        }
    }
    let dimensions = variable.dimensions.iter().map(|dimension| &dimension.name);
    let dimensions: Vec<&String> = dimensions.filter(|name| short(name)).collect();
    shown.insert("dimensions".into(), json!(dimensions));
    for key in TEXT_ATTRIBUTES {
        if let Some(text) = variable.text(key).filter(|text| short(text)) {
            shown.insert(key.into(), json!(text));
            facts.add_term(key, text.to_owned(), None);
        }
    }
    Json::Object(shown)
}

fn short(text: &str) -> bool {
    text.len() <= TEXT_BYTES_MAX
}

/// Returns an attribute as text, and also as a number if its value is a single number.
fn one(value: &Value) -> Option<(String, Option<f64>)> {
    let text = match value {
        Value::Text(text) => text.clone(),
        Value::Texts(texts) if texts.iter().map(String::len).sum::<usize>() <= TEXT_BYTES_MAX => {
            texts.join(", ")
        }
        Value::Int(numbers) => joined(numbers)?,
        Value::Uint(numbers) => joined(numbers)?,
        Value::Float(numbers) => joined(numbers)?,
        Value::Texts(_) | Value::Other => return None,
    };
    let number = match (value, &value.numbers()[..]) {
        (Value::Text(text), _) => text.trim().parse().ok(),
        (_, [number]) => Some(*number),
        _ => None,
    };
    let number = number.filter(|number: &f64| number.is_finite());
    short(&text).then_some((text, number))
}

fn joined<T: std::fmt::Display>(numbers: &[T]) -> Option<String> {
    let few = numbers.len() <= TEXT_BYTES_MAX / 2;
    let texts = || numbers.iter().map(T::to_string).collect::<Vec<_>>();
    few.then(|| texts().join(", "))
}

fn format_name(format: Format) -> &'static str {
    match format {
        Format::Classic(_) => "netcdf3",
        Format::Netcdf4 => "netcdf4",
        Format::Hdf5 => "hdf5",
        Format::Zarr(_) => "zarr",
        Format::Fits => "fits",
        Format::Columns => "columns",
    }
}
