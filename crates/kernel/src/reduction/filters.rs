//! Types and filters of a variable as they are decoded here.

use tidemill_format::{DataType, Filter, Kind, Meaning, Order, Storage, Variable};

use super::error::{Error, Result};
use crate::array::{Codec, Dtype, Literal};

/// What decodes a variable.
#[derive(Debug)]
pub(super) struct Coding {
    pub(super) dtype: Dtype,
    pub(super) big_endian: bool,
    pub(super) filters: Vec<Codec>,
    pub(super) order: Option<Vec<u32>>,
    pub(super) fill: Vec<u8>,
}

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
        big_endian: variable.data_type.order == Order::Big,
        filters,
        order,
        fill: fill.unwrap_or_else(|| vec![0; dtype.size()]),
    })
}

fn dtype(data_type: &DataType, unsigned: bool) -> Option<Dtype> {
    let unsigned = match data_type.kind {
        Kind::Int => unsigned,
        Kind::Uint | Kind::Bool => true,
        Kind::Float => {
            return match data_type.size {
                4 => Some(Dtype::Float32),
                8 => Some(Dtype::Float64),
                _ => None,
            };
        }
        _ => return None,
    };
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

/// Which values of a variable do not count: what its attributes say, and in netCDF also what nobody wrote (types of one byte apart).
pub(super) fn keep(meaning: &Meaning, coding: &Coding, netcdf: bool) -> super::Keep {
    let literal = |value: f64| Literal::Float(as_unsigned(value, coding.dtype));
    let mut missing: Vec<Literal> = meaning
        .fill_value
        .iter()
        .chain(&meaning.missing_value)
        .map(|value| literal(*value))
        .collect();
    if netcdf && meaning.fill_value.is_none() && coding.dtype.size() > 1 {
        missing.extend(written_never(coding));
    }
    let mut distinct: Vec<Literal> = Vec::new();
    for value in missing {
        if !distinct.contains(&value) {
            distinct.push(value);
        }
    }
    super::Keep {
        missing: distinct,
        least: meaning.valid_min.map(literal),
        most: meaning.valid_max.map(literal),
    }
}

/// The number of an attribute that was written as a signed integer, of a variable that is read as unsigned.
fn as_unsigned(value: f64, dtype: Dtype) -> f64 {
    let bits = match dtype {
        Dtype::Uint8 => 8,
        Dtype::Uint16 => 16,
        Dtype::Uint32 => 32,
        Dtype::Uint64 => 64,
        _ => return value,
    };
    if value < 0.0 {
        value + 2_f64.powi(bits)
    } else {
        value
    }
}

fn written_never(coding: &Coding) -> Option<Literal> {
    use crate::array::with_type;
    use crate::loops::number::Number;
    let mut bytes = coding.fill.clone();
    if coding.big_endian {
        bytes.reverse();
    }
    with_type!(coding.dtype, T => {
        let value = T::read(&bytes);
        if T::INTEGER {
            let text = value.text();
            text.parse().map(Literal::Int).or_else(|_| text.parse().map(Literal::Uint)).ok()
        } else {
            Some(Literal::Float(value.to_f64()))
        }
    })
}
