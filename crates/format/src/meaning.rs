//! Meaning of stored numbers: which numbers of a variable are missing, and how other numbers are unpacked. All code that reduces, finds or
//! shows values uses this interpretation of the attributes. Ambiguous attributes are refused by name.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use crate::model::{signed, unsigned};
use crate::{DataKind, Endian, Error, Format, Result, Value, Variable};

/// Exact number in an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExactNumber {
    /// An integer.
    Whole(i128),
    /// A floating-point number.
    Real(f64),
}

/// Statements of a variable's attributes about its values. All numbers except the last two refer to stored values.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ValueMeaning {
    /// Values that stand for missing values, in the type in which the variable is read: `_FillValue`, `missing_value`, FITS's `BLANK`, the
    /// `fill_value` of Zarr 2, and in netCDF the default fill value.
    pub missing: Vec<ExactNumber>,
    /// `valid_min`, or the first number of `valid_range`.
    pub valid_min: Option<ExactNumber>,
    /// `valid_max`, or the second number of `valid_range`.
    pub valid_max: Option<ExactNumber>,
    /// `scale_factor`, or FITS's `BSCALE`.
    pub scale_factor: Option<f64>,
    /// `add_offset`, or FITS's `BZERO`.
    pub add_offset: Option<f64>,
    /// Whether integers are read as unsigned: according to the variable's type, unless the attribute `_Unsigned` differs.
    pub unsigned: bool,
}

/// Magnitude up to which doubles represent all integers.
const EXACT: i128 = 1 << 53;

impl ExactNumber {
    /// Returns the double that is nearest to the number.
    #[must_use]
    pub fn real(self) -> f64 {
        match self {
            #[expect(clippy::cast_precision_loss, reason = "the nearest is wanted")]
            Self::Whole(number) => number as f64,
            Self::Real(number) => number,
        }
    }
}

impl ExactNumber {
    /// Compares two numbers exactly; `None` if either is NaN.
    fn order(self, other: Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Whole(one), Self::Whole(other)) => Some(one.cmp(&other)),
            (Self::Real(one), Self::Real(other)) => one.partial_cmp(&other),
            (Self::Whole(one), Self::Real(other)) => {
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "it saturates beyond all integers"
                )]
                let below = other.floor() as i128;
                let beside = if other.fract() == 0.0 {
                    Ordering::Equal
                } else {
                    Ordering::Less
                };
                (!other.is_nan()).then(|| one.cmp(&below).then(beside))
            }
            (Self::Real(_), Self::Whole(_)) => other.order(self).map(Ordering::reverse),
        }
    }
}

impl ValueMeaning {
    /// Returns the unpacked value of a stored number; `None` if the number is missing or NaN.
    #[must_use]
    pub fn value(&self, stored: ExactNumber) -> Option<f64> {
        let is = |other: ExactNumber, order| stored.order(other) == Some(order);
        let is_beyond = self
            .valid_min
            .is_some_and(|least| is(least, Ordering::Less))
            || self
                .valid_max
                .is_some_and(|most| is(most, Ordering::Greater));
        let is_missing = self
            .missing
            .iter()
            .any(|missing| is(*missing, Ordering::Equal));
        let (scale, offset) = (
            self.scale_factor.unwrap_or(1.0),
            self.add_offset.unwrap_or(0.0),
        );
        let counts = !(is_beyond || is_missing || stored.real().is_nan());
        counts.then(|| stored.real() * scale + offset)
    }
}

impl std::fmt::Display for ExactNumber {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Whole(number) => number.fmt(out),
            Self::Real(number) => write!(out, "{number:?}"),
        }
    }
}

/// Interpreter of a variable's attributes.
struct AttributeReader<'a> {
    variable: &'a Variable,
    format: Format,
    float: bool,
    bits: u32,
    unsigned: bool,
}

impl Variable {
    /// Returns the meaning of the variable's numbers according to its attributes.
    ///
    /// # Errors
    /// [`Error::Attribute`] if an attribute of the variable is ambiguous.
    pub fn meaning(&self, format: Format) -> Result<ValueMeaning> {
        let numeric = match self.data_type.kind {
            DataKind::Int | DataKind::Uint | DataKind::Bool => {
                matches!(self.data_type.size, 1 | 2 | 4 | 8)
            }
            DataKind::Float => matches!(self.data_type.size, 4 | 8),
            _ => false,
        };
        if !numeric {
            return Ok(ValueMeaning::default());
        }
        let mut reader = AttributeReader {
            variable: self,
            format,
            float: self.data_type.kind == DataKind::Float,
            bits: 8 * self.data_type.size,
            unsigned: matches!(self.data_type.kind, DataKind::Uint | DataKind::Bool),
        };
        reader.unsigned = reader.is_unsigned()?;
        reader.meaning()
    }
}

impl AttributeReader<'_> {
    fn wrong(&self, attribute: &str, why: impl Into<String>) -> Error {
        Error::Attribute {
            variable: self.variable.path.clone(),
            attribute: attribute.into(),
            why: why.into(),
        }
    }

    fn type_name(&self) -> String {
        let kind = match (self.float, self.unsigned) {
            (true, _) => "float",
            (false, true) => "uint",
            (false, false) => "int",
        };
        format!("{kind}{}", self.bits)
    }

    fn is_unsigned(&self) -> Result<bool> {
        let own = self.unsigned;
        if self.float || self.format == Format::Fits {
            return Ok(own);
        }
        match self.variable.attribute("_Unsigned") {
            None => Ok(own),
            Some(Value::Text(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
            Some(Value::Text(text)) if text.eq_ignore_ascii_case("false") => {
                Ok(self.variable.data_type.kind == DataKind::Bool)
            }
            Some(_) => Err(self.wrong("_Unsigned", "it is neither \"true\" nor \"false\"")),
        }
    }

    fn meaning(&self) -> Result<ValueMeaning> {
        if self.format == Format::Fits {
            // The standard defines BLANK for integers only: missing floats are NaN.
            let blank = match self.float {
                true => Vec::new(),
                false => self.missing("BLANK")?,
            };
            return Ok(ValueMeaning {
                missing: blank,
                scale_factor: self.one("BSCALE")?,
                add_offset: self.one("BZERO")?,
                unsigned: self.unsigned,
                ..ValueMeaning::default()
            });
        }
        let (scale_factor, add_offset) = (self.one("scale_factor")?, self.one("add_offset")?);
        let packed = scale_factor.is_some() || add_offset.is_some();
        let (valid_min, valid_max) = self.range(packed)?;
        Ok(ValueMeaning {
            missing: self.all_missing()?,
            valid_min,
            valid_max,
            scale_factor,
            add_offset,
            unsigned: self.unsigned,
        })
    }

    /// Returns the only finite number of an attribute, if the attribute exists.
    fn one(&self, name: &str) -> Result<Option<f64>> {
        let Some(value) = self.variable.attribute(name) else {
            return Ok(None);
        };
        match value.numbers().as_slice() {
            [one] if one.is_finite() => Ok(Some(*one)),
            _ => Err(self.wrong(
                name,
                "it is not one finite number; write one number of a numeric type",
            )),
        }
    }

    /// Returns all numbers of an attribute.
    fn numbers(&self, name: &str) -> Result<Vec<ExactNumber>> {
        let Some(value) = self.variable.attribute(name) else {
            return Ok(Vec::new());
        };
        Ok(match value {
            Value::Int(all) => all
                .iter()
                .map(|one| ExactNumber::Whole((*one).into()))
                .collect(),
            Value::Uint(all) => all
                .iter()
                .map(|one| ExactNumber::Whole((*one).into()))
                .collect(),
            Value::Float(all) => all.iter().copied().map(ExactNumber::Real).collect(),
            Value::Text(text) if self.is_zarr() => vec![self.number_of_text(name, text)?],
            _ => {
                let why = format!(
                    "it is not numeric, and the variable is {}; write it with the type of the variable",
                    self.type_name()
                );
                return Err(self.wrong(name, why));
            }
        })
    }

    /// Returns whether the variable is the coordinate of its only dimension; such a variable has no missing values (CF conventions, 5).
    fn is_coordinate(&self) -> bool {
        let name = self.variable.path.rsplit('/').next();
        matches!(self.variable.dimensions.as_slice(), [one] if Some(one.name.as_str()) == name)
    }

    fn is_zarr(&self) -> bool {
        matches!(self.format, Format::Zarr(_))
    }

    /// Parses a number that JSON stores as text: a number that JSON cannot represent, or a double in base64 as xarray writes it in Zarr
    /// 3.
    fn number_of_text(&self, name: &str, text: &str) -> Result<ExactNumber> {
        let special = match text {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        };
        let number = match self.float {
            true => special.or_else(|| double_of_base64(text)),
            false => None,
        };
        number.map(ExactNumber::Real).ok_or_else(|| {
            let why = format!(
                "{text:?} is neither a number, \"NaN\", nor a double in base64, and the variable is {}; write it as a number",
                self.type_name()
            );
            self.wrong(name, why)
        })
    }

    /// Returns the numbers that stand for missing values, in the type of the variable. Numbers that the type cannot represent are dropped.
    fn missing(&self, name: &str) -> Result<Vec<ExactNumber>> {
        let mut all = Vec::new();
        for number in self.numbers(name)? {
            all.extend(self.typed(name, number)?);
        }
        Ok(all)
    }

    /// Converts a number to a value of the variable's type, if it is exactly representable. NaN is dropped, because NaN never counts.
    fn typed(&self, name: &str, number: ExactNumber) -> Result<Option<ExactNumber>> {
        if matches!(number, ExactNumber::Real(real) if real.is_nan()) {
            return Ok(None);
        }
        let found = match self.float {
            true => self.float_of(number),
            false => whole_of(number).and_then(|whole| self.whole_in(whole)),
        };
        found.map(Some).ok_or_else(|| {
            let why = format!(
                "{number} is no {}, which the values are; write it with the type of the variable",
                self.type_name()
            );
            self.wrong(name, why)
        })
    }

    fn float_of(&self, number: ExactNumber) -> Option<ExactNumber> {
        let real = match number {
            ExactNumber::Whole(whole) if whole.abs() > EXACT => return None,
            number => number.real(),
        };
        let rounded = self.rounded(real);
        // JSON has decimal numbers without a type: they are read in the type of the variable.
        let same = rounded.to_bits() == real.to_bits() || self.is_zarr();
        let is_zero = |number: f64| number == 0.0;
        (same && is_zero(rounded) == is_zero(real) && rounded.is_finite() == real.is_finite())
            .then_some(ExactNumber::Real(rounded))
    }

    /// Returns the number nearest to `real` that the variable's type can represent.
    fn rounded(&self, real: f64) -> f64 {
        match self.bits {
            #[expect(clippy::cast_possible_truncation, reason = "the nearest is wanted")]
            32 => f64::from(real as f32),
            _ => real,
        }
    }

    /// Returns an integer in the type in which the variable is read; a negative integer of a signed type that is read as unsigned is
    /// converted to the unsigned integer with the same bits.
    fn whole_in(&self, whole: i128) -> Option<ExactNumber> {
        let all = 1_i128 << self.bits;
        let (least, end) = match self.unsigned {
            true => (0, all),
            false => (-all / 2, all / 2),
        };
        let stored_signed = self.variable.data_type.kind == DataKind::Int;
        let moved = match (stored_signed, self.unsigned) {
            (true, true) if (-all / 2..0).contains(&whole) => whole + all,
            (false, false) if (all / 2..all).contains(&whole) => whole - all,
            _ => whole,
        };
        (least..end)
            .contains(&moved)
            .then_some(ExactNumber::Whole(moved))
    }

    fn all_missing(&self) -> Result<Vec<ExactNumber>> {
        if self.numbers("_FillValue")?.len() > 1 {
            return Err(self.wrong(
                "_FillValue",
                "it is several numbers; write one, and others as missing_value",
            ));
        }
        let mut all = self.missing("_FillValue")?;
        let named = self.variable.attribute("_FillValue").is_some();
        if self.format == Format::Zarr(2)
            && !self.is_coordinate()
            && let Some(fill) = self.fill()
        {
            if let [one] = all.as_slice()
                && *one != fill
                && !matches!(fill, ExactNumber::Real(fill) if fill.is_nan())
            {
                let why = format!(
                    "it is {one}, and fill_value of the array is {fill}, which other readers treat as missing instead; write the same value in both"
                );
                return Err(self.wrong("_FillValue", why));
            }
            all.push(fill);
        }
        for number in self.numbers("missing_value")? {
            // A number with more digits than the variable's type still means the fill value that was read.
            let rounded = ExactNumber::Real(self.rounded(number.real()));
            if !self.float || !all.contains(&rounded) {
                all.extend(self.typed("missing_value", number)?);
            }
        }
        if !named {
            all.extend(self.never_written());
        }
        let mut distinct: Vec<ExactNumber> = Vec::new();
        for one in all {
            let is_nan = matches!(one, ExactNumber::Real(real) if real.is_nan());
            if !is_nan && !distinct.contains(&one) {
                distinct.push(one);
            }
        }
        Ok(distinct)
    }

    /// Returns the value that the netCDF library stores for elements of this variable that were never written, if it stores one.
    fn never_written(&self) -> Option<ExactNumber> {
        let data_type = &self.variable.data_type;
        let mut default = crate::classic::default_fill(data_type)?;
        if data_type.order == Endian::Little {
            default.reverse();
        }
        let writes = match self.format {
            Format::Classic(_) => true,
            Format::Netcdf4 => self.variable.fill.as_ref() == Some(&default),
            _ => false,
        };
        (writes && data_type.size > 1).then(|| self.number_of(&default))
    }

    fn fill(&self) -> Option<ExactNumber> {
        let fill = self.variable.fill.as_deref()?;
        (fill.len() == self.variable.data_type.size as usize).then(|| self.number_of(fill))
    }

    fn number_of(&self, bytes: &[u8]) -> ExactNumber {
        let order = self.variable.data_type.order;
        match (self.float, self.unsigned, self.bits) {
            (true, _, 32) => {
                let bits = u32::try_from(unsigned(bytes, order)).unwrap_or_default();
                ExactNumber::Real(f32::from_bits(bits).into())
            }
            (true, _, _) => ExactNumber::Real(f64::from_bits(unsigned(bytes, order))),
            (false, true, _) => ExactNumber::Whole(unsigned(bytes, order).into()),
            (false, false, _) => ExactNumber::Whole(signed(bytes, order).into()),
        }
    }

    fn range(&self, packed: bool) -> Result<(Option<ExactNumber>, Option<ExactNumber>)> {
        let (least, most) = (
            self.bound("valid_min", packed)?,
            self.bound("valid_max", packed)?,
        );
        let range = self.numbers("valid_range")?;
        if self.variable.attribute("valid_range").is_none() {
            return Ok((least, most));
        }
        let [low, high] = range[..] else {
            return Err(self.wrong(
                "valid_range",
                format!("it is {} numbers, and not two", range.len()),
            ));
        };
        let ends = (
            self.end("valid_range", low, packed)?,
            self.end("valid_range", high, packed)?,
        );
        let differs = |one: Option<ExactNumber>, end| one.is_some_and(|one| one != end);
        if differs(least, ends.0) || differs(most, ends.1) {
            let why = "valid_min or valid_max differs; keep valid_range or these two";
            return Err(self.wrong("valid_range", why));
        }
        Ok((Some(ends.0), Some(ends.1)))
    }

    fn bound(&self, name: &str, packed: bool) -> Result<Option<ExactNumber>> {
        match self.numbers(name)?[..] {
            [] if self.variable.attribute(name).is_none() => Ok(None),
            [one] => self.end(name, one, packed).map(Some),
            _ => Err(self.wrong(name, "it is not one number")),
        }
    }

    /// Returns an end of the variable's valid range, which refers to stored values.
    fn end(&self, name: &str, number: ExactNumber, packed: bool) -> Result<ExactNumber> {
        match number {
            ExactNumber::Real(real) if real.is_nan() => Err(self.wrong(name, "it is NaN")),
            ExactNumber::Real(_) if packed && !self.float => {
                let why = format!(
                    "{number} is of floating point, and the packed values are {}: it may mean packed or unpacked values; write it with the type of the packed values (CF conventions, 8.1)",
                    self.type_name()
                );
                Err(self.wrong(name, why))
            }
            number if self.float => Ok(ExactNumber::Real(self.rounded(number.real()))),
            ExactNumber::Whole(whole) => Ok(self.whole_in(whole).unwrap_or(number)),
            number => Ok(number),
        }
    }
}

/// Returns the integer that is exactly equal to a number, if there is one.
fn whole_of(number: ExactNumber) -> Option<i128> {
    match number {
        ExactNumber::Whole(whole) => Some(whole),
        #[expect(clippy::cast_possible_truncation, reason = "it is whole and small")]
        ExactNumber::Real(real) => {
            (real.fract() == 0.0 && real.abs() < 1e30).then_some(real as i128)
        }
    }
}

/// Converts eight bytes in base64, the lowest byte first, to a double.
fn double_of_base64(text: &str) -> Option<f64> {
    let digits = text.strip_suffix('=').filter(|digits| digits.len() == 11)?;
    let mut bits = 0_u128;
    for letter in digits.bytes() {
        let digit = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u128::from(digit);
    }
    // There are 66 bits; the last two have no meaning.
    let bytes = u64::try_from(bits >> 2).ok()?.to_be_bytes();
    Some(f64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attribute, DataType, Dimension, Storage};

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
                order: Endian::Little,
            },
            attributes: attributes.iter().map(attribute).collect(),
            storage: Storage::Absent,
            fill: None,
        }
    }

    fn whole(all: &[i128]) -> Vec<ExactNumber> {
        all.iter().copied().map(ExactNumber::Whole).collect()
    }

    #[test]
    fn meaning_keeps_64_bit_integers_exact() {
        for (kind, value, number) in [
            (
                DataKind::Int,
                Value::Int(vec![i64::MAX]),
                i128::from(i64::MAX),
            ),
            (
                DataKind::Int,
                Value::Int(vec![i64::MIN + 2]),
                i128::from(i64::MIN) + 2,
            ),
            (
                DataKind::Int,
                Value::Int(vec![(1 << 53) + 1]),
                (1 << 53) + 1,
            ),
            (DataKind::Uint, Value::Uint(vec![u64::MAX]), u64::MAX.into()),
        ] {
            let found = variable(kind, 8, &[("_FillValue", value)]).meaning(Format::Netcdf4);
            assert_eq!(found.unwrap().missing, whole(&[number]));
        }
    }

    #[test]
    fn meaning_compares_values_exactly_with_missing_and_limits() {
        let big = 1_i64 << 53;
        let attributes = [
            ("_FillValue", Value::Int(vec![big + 1])),
            ("valid_min", Value::Int(vec![-90])),
            ("valid_max", Value::Float(vec![9.5e15])),
        ];
        let found = variable(DataKind::Int, 8, &attributes)
            .meaning(Format::Netcdf4)
            .unwrap();
        let value = |whole: i64| found.value(ExactNumber::Whole(whole.into()));
        #[expect(clippy::cast_precision_loss, reason = "they are exact")]
        let same = |whole: i64| Some(whole as f64);
        assert_eq!((value(big), value(big + 2)), (same(big), same(big + 2)));
        assert_eq!(
            (value(big + 1), value(-91), value(-90)),
            (None, None, same(-90))
        );
        assert_eq!(value(9_500_000_000_000_001), None);
        let attributes = [
            ("missing_value", Value::Float(vec![0.0])),
            ("scale_factor", Value::Float(vec![0.5])),
        ];
        let found = variable(DataKind::Float, 8, &attributes)
            .meaning(Format::Netcdf4)
            .unwrap();
        let value = |real| found.value(ExactNumber::Real(real));
        assert_eq!(
            (value(-0.0), value(f64::NAN), value(3.0)),
            (None, None, Some(1.5))
        );
        // A `missing_value` that rounds to zero would be another number, so it is refused.
        let attributes = [("missing_value", Value::Float(vec![1e-60]))];
        variable(DataKind::Float, 4, &attributes)
            .meaning(Format::Zarr(3))
            .unwrap_err();
    }

    #[test]
    fn missing_values_have_the_type_of_the_read_values() {
        let yes = ("_Unsigned", Value::Text("true".into()));
        let found = variable(
            DataKind::Int,
            1,
            &[
                yes.clone(),
                ("_FillValue", Value::Int(vec![-1])),
                ("missing_value", Value::Float(vec![254.0, f64::NAN, -3.0])),
                ("valid_range", Value::Int(vec![1, -6])),
            ],
        );
        let found = found.meaning(Format::Classic(1)).unwrap();
        assert_eq!(found.missing, whole(&[255, 254, 253]));
        let ends = (found.valid_min, found.valid_max, found.unsigned);
        assert_eq!(
            ends,
            (
                Some(ExactNumber::Whole(1)),
                Some(ExactNumber::Whole(250)),
                true
            )
        );
        let no = ("_Unsigned", Value::Text("false".into()));
        let found = variable(
            DataKind::Uint,
            2,
            &[no, ("_FillValue", Value::Uint(vec![65535]))],
        );
        let found = found.meaning(Format::Netcdf4).unwrap();
        assert_eq!((found.missing, found.unsigned), (whole(&[-1]), false));
        // JSON has no types, so decimal numbers have the type of the variable.
        let attributes = [("missing_value", Value::Float(vec![0.1]))];
        let found = variable(DataKind::Float, 4, &attributes)
            .meaning(Format::Zarr(3))
            .unwrap();
        assert_eq!(found.missing, [ExactNumber::Real(f64::from(0.1_f32))]);
    }

    #[test]
    fn fill_values_of_zarr_match_xarray() {
        let text = |text: &str| [("_FillValue", Value::Text(text.into()))];
        for (encoded, expected) in [
            ("AAAAAICHw8A=", vec![ExactNumber::Real(-9999.0)]),
            ("AAAAAAAA+H8=", vec![]),
            ("NaN", vec![]),
            ("-Infinity", vec![ExactNumber::Real(f64::NEG_INFINITY)]),
        ] {
            let found = variable(DataKind::Float, 4, &text(encoded)).meaning(Format::Zarr(3));
            assert_eq!(found.unwrap().missing, expected, "{encoded}");
        }
        let refused = variable(DataKind::Float, 4, &text("AAAAAICHw8A=")).meaning(Format::Netcdf4);
        refused.unwrap_err();
        let mut two = variable(DataKind::Int, 2, &[]);
        two.fill = Some(vec![7, 0]);
        assert_eq!(two.meaning(Format::Zarr(2)).unwrap().missing, whole(&[7]));
        assert_eq!(two.meaning(Format::Zarr(3)).unwrap().missing, []);
        two.dimensions.push(Dimension {
            name: "x".into(),
            size: 3,
            unlimited: false,
        });
        assert_eq!(two.meaning(Format::Zarr(2)).unwrap().missing, []);
        two.dimensions[0].name = "y".into();
        two.attributes =
            variable(DataKind::Int, 2, &[("_FillValue", Value::Int(vec![8]))]).attributes;
        two.meaning(Format::Zarr(2)).unwrap_err();
    }

    #[test]
    fn default_fill_values_are_missing_where_netcdf_writes_them() {
        let mut found = variable(DataKind::Int, 2, &[]);
        assert_eq!(
            found.meaning(Format::Classic(1)).unwrap().missing,
            whole(&[-32767])
        );
        assert_eq!(found.meaning(Format::Netcdf4).unwrap().missing, []);
        found.fill = Some(vec![0, 0]);
        assert_eq!(found.meaning(Format::Netcdf4).unwrap().missing, []);
        found.fill = Some((-32767_i16).to_le_bytes().to_vec());
        assert_eq!(
            found.meaning(Format::Netcdf4).unwrap().missing,
            whole(&[-32767])
        );
        assert_eq!(found.meaning(Format::Hdf5).unwrap().missing, []);
        let byte = variable(DataKind::Int, 1, &[]);
        assert_eq!(byte.meaning(Format::Classic(1)).unwrap().missing, []);
    }

    #[test]
    fn fits_blank_is_missing_only_in_integer_images() {
        let attributes = [
            ("BLANK", Value::Int(vec![0])),
            ("BZERO", Value::Int(vec![32768])),
        ];
        let integers = variable(DataKind::Int, 2, &attributes);
        let found = integers.meaning(Format::Fits).unwrap();
        assert_eq!(
            (found.missing, found.add_offset),
            (whole(&[0]), Some(32768.0))
        );
        let floats = variable(DataKind::Float, 4, &attributes);
        assert_eq!(floats.meaning(Format::Fits).unwrap().missing, []);
        let other = integers.meaning(Format::Hdf5).unwrap();
        assert_eq!((other.missing, other.add_offset), (vec![], None));
    }

    #[test]
    fn meaning_refuses_ambiguous_attributes_by_name() {
        let scale = ("scale_factor", Value::Float(vec![0.1]));
        let (int, float) = ((DataKind::Int, 2), (DataKind::Float, 4));
        for (kind, attributes) in [
            (
                int.clone(),
                vec![("missing_value", Value::Float(vec![1e20]))],
            ),
            (
                int.clone(),
                vec![("missing_value", Value::Float(vec![0.5]))],
            ),
            (
                int.clone(),
                vec![("missing_value", Value::Text("-999".into()))],
            ),
            (int.clone(), vec![("_FillValue", Value::Int(vec![40000]))]),
            (int.clone(), vec![("_FillValue", Value::Int(vec![1, 2]))]),
            (int.clone(), vec![("valid_range", Value::Int(vec![1]))]),
            (
                int.clone(),
                vec![("valid_range", Value::Float(vec![0.0, 9.5])), scale.clone()],
            ),
            (int.clone(), vec![("valid_min", Value::Text("0".into()))]),
            (
                int.clone(),
                vec![("scale_factor", Value::Text("0.1".into()))],
            ),
            (int.clone(), vec![("add_offset", Value::Int(vec![]))]),
            (int, vec![("_Unsigned", Value::Int(vec![1]))]),
            (
                float.clone(),
                vec![("missing_value", Value::Float(vec![0.1]))],
            ),
            (
                float.clone(),
                vec![("missing_value", Value::Float(vec![1e300]))],
            ),
            (
                float.clone(),
                vec![("missing_value", Value::Int(vec![(1 << 53) + 1]))],
            ),
            (float, vec![("valid_max", Value::Float(vec![f64::NAN]))]),
        ] {
            let refused = variable(kind.0, kind.1, &attributes).meaning(Format::Netcdf4);
            let refused = refused.unwrap_err().to_string();
            assert!(
                refused.starts_with(&format!("x: attribute {}", attributes[0].0)),
                "{refused}"
            );
        }
        // A number that differs from the fill value only in digits that the type cannot represent is no other value.
        let fill = ("_FillValue", Value::Float(vec![f64::from(1e20_f32)]));
        let attributes = [fill, ("missing_value", Value::Float(vec![1e20]))];
        let found = variable(DataKind::Float, 4, &attributes)
            .meaning(Format::Netcdf4)
            .unwrap();
        assert_eq!(found.missing, [ExactNumber::Real(f64::from(1e20_f32))]);
    }
}
