//! Data types and filters of a variable, for decoding.

use tidemill_format::{
    DataKind, DataType, Endian, ExactNumber, Filter, Storage, ValueMeaning, Variable,
};

use super::error::{Error, Result};
use super::task::{ReductionTask, WantedResults};
use crate::array::{Codec, Dtype, Literal};

/// Description of a variable's decoding.
#[derive(Debug)]
pub(super) struct Coding {
    pub(super) dtype: Dtype,
    pub(super) big_endian: bool,
    pub(super) filters: Vec<Codec>,
    pub(super) order: Option<Vec<u32>>,
    pub(super) fill: Vec<u8>,
}

impl Coding {
    /// Returns the task that folds values with this decoding; the caller adds the targets.
    pub(super) fn task(self, meaning: &ValueMeaning, wants: WantedResults) -> ReductionTask {
        ReductionTask {
            dtype: self.dtype,
            big_endian: self.big_endian,
            filters: self.filters,
            order: self.order,
            fill: self.fill,
            keep: keep(meaning),
            wants,
            targets: Vec::new(),
            weights: None,
            counted: None,
        }
    }
}

/// Returns the decoding of a variable. `unsigned` is true if integers are read as unsigned ([`ValueMeaning::unsigned`]).
pub(super) fn coding(file: &str, variable: &Variable, unsigned: bool) -> Result<Coding> {
    let unsupported = |what: String| Error::Unsupported {
        file: file.into(),
        variable: variable.path.clone(),
        what,
    };
    let dtype = dtype(&variable.data_type, unsigned).ok_or_else(|| {
        unsupported(format!(
            "values that are no numbers of 8 to 64 bits ({:?} of {} bytes)",
            variable.data_type.kind, variable.data_type.size
        ))
    })?;
    let (mut filters, mut order) = (Vec::new(), None);
    if let Storage::Chunked(chunked) = &variable.storage {
        for filter in &chunked.filters {
            match filter {
                Filter::Transpose { order: stored } if filters.is_empty() && order.is_none() => {
                    order = Some(stored.clone())
                }
                filter => filters.push(Codec::of(filter).ok_or_else(|| {
                    unsupported(format!("chunks with the filter {}", name(filter)))
                })?),
            }
        }
    }
    let fill = variable
        .fill
        .clone()
        .filter(|fill| fill.len() == dtype.size());
    Ok(Coding {
        dtype,
        big_endian: variable.data_type.order == Endian::Big,
        filters,
        order,
        fill: fill.unwrap_or_else(|| vec![0; dtype.size()]),
    })
}

/// Returns the type of numbers of 8 to 64 bits; `None` for other data types.
pub(crate) fn dtype(data_type: &DataType, unsigned: bool) -> Option<Dtype> {
    match data_type.kind {
        DataKind::Int | DataKind::Uint | DataKind::Bool => {}
        DataKind::Float => {
            return match data_type.size {
                4 => Some(Dtype::Float32),
                8 => Some(Dtype::Float64),
                _ => None,
            };
        }
        _ => return None,
    }
    Some(match (data_type.size, unsigned) {
        (1, false) => Dtype::Int8,
        (2, false) => Dtype::Int16,
        (4, false) => Dtype::Int32,
        (8, false) => Dtype::Int64,
        (1, true) => Dtype::Uint8,
        (2, true) => Dtype::Uint16,
        (4, true) => Dtype::Uint32,
        (8, true) => Dtype::Uint64,
        _ => return None,
    })
}

fn name(filter: &Filter) -> String {
    match filter {
        Filter::Other { name, .. } => name.clone(),
        Filter::Checksum { name } => name.clone(),
        Filter::Szip { .. } => "szip".into(),
        Filter::Bitshuffle { .. } => "bitshuffle".into(),
        Filter::Nbit { .. } => "nbit".into(),
        Filter::ScaleOffset { .. } => "scaleoffset".into(),
        other => format!("{other:?}").to_lowercase(),
    }
}

/// Returns the rule for values that count, according to the attributes of a variable.
pub(crate) fn keep(meaning: &ValueMeaning) -> super::KeepRule {
    super::KeepRule {
        missing: meaning.missing.iter().map(literal).collect(),
        least: meaning.valid_min.as_ref().map(literal),
        most: meaning.valid_max.as_ref().map(literal),
    }
}

fn literal(number: &ExactNumber) -> Literal {
    match *number {
        ExactNumber::Real(real) => Literal::Float(real),
        ExactNumber::Whole(whole) => match (i64::try_from(whole), u64::try_from(whole)) {
            (Ok(whole), _) => Literal::Int(whole),
            (_, Ok(whole)) => Literal::Uint(whole),
            _ => Literal::Float(number.real()),
        },
    }
}

/// Attributes that describe storage and missing values.
const OF_STORAGE: [&str; 8] = [
    "_FillValue",
    "missing_value",
    "scale_factor",
    "add_offset",
    "valid_min",
    "valid_max",
    "valid_range",
    "_Unsigned",
];

/// Returns whether a result leaves out an attribute of a coordinate: the attribute describes storage, or names a variable that the result
/// does not have.
pub(super) fn is_of_stored_coordinate(attribute: &str) -> bool {
    OF_STORAGE.contains(&attribute)
        || matches!(attribute, "bounds" | "climatology" | "formula_terms")
}

/// Returns whether a result leaves out an attribute of the reduced variable, or has its own value instead.
pub(super) fn is_of_stored_values(attribute: &str) -> bool {
    OF_STORAGE.contains(&attribute)
        || matches!(
            attribute,
            "actual_range"
                | "units"
                | "cell_methods"
                | "coordinates"
                | "ancillary_variables"
                | "cell_measures"
                | "grid_mapping"
                | "BSCALE"
                | "BZERO"
                | "BLANK"
        )
}
