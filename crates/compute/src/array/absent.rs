//! Missing values of a variable: all missing values are replaced by one value, which built-in kernels skip. They are the values that
//! `tidemill reduce` leaves out.

use serde::{Deserialize, Serialize};
use tidemill_format::{Format, Variable};

use super::error::ArrayError;
use super::{Dtype, Literal, with_type};
use crate::loops::number::Number;
use crate::reduction::{KeepRule, keep_of, kept, type_of};

/// Missing values of a variable, and the value that replaces them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Absent {
    /// Type in which the values of the variable are read.
    pub dtype: Dtype,
    /// Rule that decides which values count.
    pub keep: KeepRule,
    /// Value that replaces missing values; `None` stands for NaN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub becomes: Option<Literal>,
}

/// Returns the type in which the values of a variable are read, and its missing values if its attributes declare any. Returns `None` if the
/// values are not numbers of 8 to 64 bits.
///
/// # Errors
/// If an attribute is ambiguous, or declares an infinity as missing.
pub fn absent(
    variable: &Variable,
    format: Format,
) -> Result<Option<(Dtype, Option<Absent>)>, String> {
    let meaning = variable
        .meaning(format)
        .map_err(|error| error.to_string())?;
    let Some(dtype) = type_of(&variable.data_type, meaning.unsigned) else {
        return Ok(None);
    };
    let keep = keep_of(&meaning);
    if keep == KeepRule::default() {
        return Ok(Some((dtype, None)));
    }
    let becomes =
        with_type!(dtype, T => stand_in::<T>(&keep)).map_err(|error| error.to_string())?;
    if becomes.is_none() && !matches!(dtype, Dtype::Float32 | Dtype::Float64) {
        // The valid range contains all values of the type.
        return Ok(Some((dtype, None)));
    }
    let absent = Absent {
        dtype,
        keep,
        becomes,
    };
    if absent.is_infinite() {
        return Err(format!(
            "an attribute of {} declares an infinity as missing: use the kernel `reduce`, which leaves it out",
            variable.path
        ));
    }
    Ok(Some((dtype, Some(absent))))
}

/// Returns a value of the type that does not count; `None` stands for NaN, which never counts.
fn stand_in<T: Number>(keep: &KeepRule) -> Result<Option<Literal>, ArrayError> {
    if !T::INTEGER {
        return Ok(None);
    }
    let kept = kept::<T>(keep)?;
    // Candidates are the missing values, and the values just outside the ends of the valid range.
    let missing = keep.missing.iter().map(ToString::to_string);
    let ends = [(keep.least, false), (keep.most, true)];
    let beside = ends.into_iter().filter_map(|(end, up)| {
        let end = T::parse(&end?.to_string())?;
        Some(if up { end.above() } else { end.below() }.text())
    });
    let all = missing
        .chain(beside)
        .chain([T::LOWEST.text(), T::HIGHEST.text()]);
    let mut values = all.filter_map(|text| Some((T::parse(&text)?, text)));
    let found = values.find(|(value, _)| !kept.counts(*value));
    Ok(found.and_then(|(_, text)| {
        let int = text.parse().map(Literal::Int).ok();
        int.or_else(|| text.parse().map(Literal::Uint).ok())
    }))
}

/// Function that replaces each value that does not count, in bytes of little-endian values.
pub(super) type Replace = Box<dyn Fn(&mut [u8])>;

impl Absent {
    /// Returns the kernel argument `missing=` for the replacing value.
    #[must_use]
    pub fn missing(&self) -> String {
        self.becomes
            .map_or_else(|| "nan".to_owned(), |value| value.to_string())
    }

    fn is_infinite(&self) -> bool {
        let ends = self.keep.least.iter().chain(&self.keep.most);
        let mut all = self.keep.missing.iter().chain(ends);
        all.any(|one| matches!(one, Literal::Float(value) if value.is_infinite()))
    }

    pub(super) fn replace(&self, element: u32) -> Result<Replace, ArrayError> {
        if element as usize != self.dtype.size() {
            return Err(ArrayError::ElementSize);
        }
        with_type!(self.dtype, T => {
            let kept = kept::<T>(&self.keep)?;
            let becomes = self.becomes.map_or_else(|| "nan".to_owned(), |value| value.to_string());
            let becomes = T::parse(&becomes).ok_or(ArrayError::ElementSize)?;
            Ok(Box::new(move |values: &mut [u8]| {
                for value in values.chunks_exact_mut(T::SIZE) {
                    if !kept.counts(T::read(value)) {
                        becomes.write(value);
                    }
                }
            }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::{HeldChunk, VariablePart};
    use tidemill_format::{Attribute, DataKind, DataType, Endian, Storage, Value};

    fn variable(kind: DataKind, size: u32, attributes: &[(&str, Value)]) -> Variable {
        let attribute = |(name, value): &(&str, Value)| Attribute {
            name: (*name).into(),
            value: value.clone(),
        };
        Variable {
            path: "x".into(),
            dimensions: Vec::new(),
            data_type: DataType {
                kind,
                size,
                order: Endian::Big,
            },
            attributes: attributes.iter().map(attribute).collect(),
            storage: Storage::Absent,
            fill: None,
        }
    }

    /// Returns the values that a task instance gets from big-endian values of 8 bytes.
    fn decoded(absent: Absent, stored: &[[u8; 8]]) -> Vec<[u8; 8]> {
        let held = VariablePart {
            variable: "x".into(),
            dtype: absent.dtype.name().into(),
            element: 8,
            swap: Some(8),
            shape: vec![stored.len() as u64],
            chunk_shape: None,
            codecs: Vec::new(),
            more: 0,
            absent: Some(absent),
            chunks: vec![HeldChunk {
                start: vec![0],
                shape: vec![stored.len() as u64],
                offset: 0,
                length: 8 * stored.len() as u64,
                stride: None,
                codecs: None,
            }],
        };
        // The description is sent to a node in this form.
        let sent = serde_json::to_string(&held).unwrap();
        let held: VariablePart = serde_json::from_str(&sent).unwrap();
        let mut out = Vec::new();
        held.decode(&stored.concat(), &mut out).unwrap();
        let values = out.chunks_exact(8).map(|value| value.try_into().unwrap());
        values.collect()
    }

    #[test]
    fn missing_integers_are_decoded_as_one_exact_value() {
        let big = (1_i64 << 53) + 1;
        let attributes = [
            ("_FillValue", Value::Int(vec![big])),
            ("missing_value", Value::Int(vec![-9, i64::MAX])),
            ("valid_min", Value::Int(vec![-99])),
        ];
        let found = absent(&variable(DataKind::Int, 8, &attributes), Format::Hdf5);
        let (dtype, found) = found.unwrap().unwrap();
        let found = found.unwrap();
        assert_eq!((dtype, found.missing()), (Dtype::Int64, big.to_string()));
        let stored = [
            big,
            big - 1,
            big + 1,
            -9,
            -8,
            i64::MAX,
            i64::MAX - 1,
            -99,
            -100,
        ];
        let values = decoded(found, &stored.map(i64::to_be_bytes));
        let values: Vec<i64> = values.into_iter().map(i64::from_le_bytes).collect();
        let expected = [big, big - 1, big + 1, big, -8, big, i64::MAX - 1, -99, big];
        assert_eq!(values, expected);
    }

    #[test]
    fn decode_marks_values_outside_valid_range_as_missing() {
        let attributes = [
            ("_Unsigned", Value::Text("true".into())),
            ("valid_max", Value::Int(vec![-2])),
        ];
        let found = absent(&variable(DataKind::Int, 8, &attributes), Format::Netcdf4);
        let (dtype, found) = found.unwrap().unwrap();
        let found = found.unwrap();
        assert_eq!(
            (dtype, found.missing()),
            (Dtype::Uint64, u64::MAX.to_string())
        );
        let stored = [0, u64::MAX - 1, u64::MAX];
        let values = decoded(found, &stored.map(u64::to_be_bytes));
        assert_eq!(values, stored.map(u64::to_le_bytes));
    }

    #[test]
    fn missing_floats_are_decoded_as_nan() {
        let attributes = [
            ("_FillValue", Value::Float(vec![1e20])),
            ("valid_range", Value::Float(vec![-1.0, 2e20])),
        ];
        let found = absent(&variable(DataKind::Float, 8, &attributes), Format::Netcdf4);
        let (_, found) = found.unwrap().unwrap();
        let found = found.unwrap();
        assert_eq!(found.missing(), "nan");
        let stored = [1e20, -1.0, -1.5, f64::NAN, 2e20, 3e20];
        let values = decoded(found, &stored.map(f64::to_be_bytes));
        let counts: Vec<bool> = values
            .into_iter()
            .map(|value| !f64::from_le_bytes(value).is_nan())
            .collect();
        assert_eq!(counts, [false, true, false, false, true, false]);
    }

    #[test]
    fn decode_refuses_ambiguous_missing_value_attributes() {
        let text = [("missing_value", Value::Text("-9".into()))];
        let refused = absent(&variable(DataKind::Int, 2, &text), Format::Netcdf4);
        assert!(refused.unwrap_err().contains("missing_value"));
        let infinite = [("_FillValue", Value::Float(vec![f64::NEG_INFINITY]))];
        let refused = absent(&variable(DataKind::Float, 8, &infinite), Format::Netcdf4);
        assert!(refused.unwrap_err().contains("`reduce`"));
        let plain = absent(&variable(DataKind::Float, 4, &[]), Format::Hdf5);
        assert_eq!(plain, Ok(Some((Dtype::Float32, None))));
        let complex = absent(&variable(DataKind::Complex, 8, &[]), Format::Hdf5);
        assert_eq!(complex, Ok(None));
    }
}
