//! Arguments for built-in kernels of numbers: the kernels read a variable in its type and without its missing values. If that is
//! impossible, the job is refused.

use tidemill_compute::array::{self, Absent, Dtype};
use tidemill_compute::{KernelInputFormat, reads_numbers};
use tidemill_format::{DataKind, DataType, Format, Variable};

/// Form in which a kernel receives the values of a variable.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ValueForm {
    /// The missing values of the variable, which are replaced by one value.
    pub(super) absent: Option<Absent>,
    /// Additional arguments for the kernel.
    pub(super) args: Vec<String>,
}

/// Returns the form in which the kernels of a pipeline receive the values of a variable.
///
/// # Errors
/// If the kernel would read other values; the text is for the author of the task, and names the argument to add.
pub(super) fn input_form(
    kernels: &[Vec<String>],
    variable: &Variable,
    format: Format,
) -> Result<ValueForm, String> {
    let Some((name, reads)) = first(kernels) else {
        return Ok(ValueForm::default());
    };
    let stated = reads.missing.is_some() || !reads.passes_over;
    let found = match array::absent(variable, format) {
        Err(_) if stated => return typed(&name, &reads, &names(&variable.data_type, None)),
        found => found,
    };
    let found = found.map_err(|why| {
        format!("{why}; or name the missing value in the arguments of {name}, as missing=-9999")
    })?;
    let dtype = found.as_ref().map(|(dtype, _)| *dtype);
    let plain = typed(&name, &reads, &names(&variable.data_type, dtype))?;
    let absent = match found {
        Some((_, absent)) if !stated => absent,
        _ => return Ok(plain),
    };
    let missing = absent.as_ref().map_or("nan".to_owned(), Absent::missing);
    let is_float = matches!(dtype, Some(Dtype::Float32 | Dtype::Float64));
    match kernels {
        [_] if absent.is_some() || is_float => Ok(ValueForm {
            absent,
            args: vec![format!("missing={missing}")],
        }),
        [_, _, ..] if absent.is_some() => Err(format!(
            "some values of {} are missing, and {name} passes them to the next kernel: name the missing value in the arguments of each kernel, as missing=-9999",
            variable.path
        )),
        _ => Ok(plain),
    }
}

/// Returns the form as [`input_form`] does, for values without attributes, with at most one `missing` value.
pub(super) fn of_type(
    kernels: &[Vec<String>],
    dtype: Dtype,
    missing: Option<String>,
) -> Result<ValueForm, String> {
    let Some((name, reads)) = first(kernels) else {
        return Ok(ValueForm::default());
    };
    let plain = typed(&name, &reads, &[short(dtype)])?;
    Ok(match (kernels, missing) {
        ([_], Some(missing)) if reads.missing.is_none() && reads.passes_over => ValueForm {
            args: vec![format!("missing={missing}")],
            ..plain
        },
        _ => plain,
    })
}

/// Returns the first kernel of a pipeline and its input format, if it is a built-in kernel that reads numbers.
fn first(kernels: &[Vec<String>]) -> Option<(String, KernelInputFormat)> {
    let (name, args) = kernels.first()?.split_first()?;
    let name = name.strip_suffix(".so").unwrap_or(name);
    Some((name.to_owned(), reads_numbers(name, args)?))
}

fn typed(name: &str, reads: &KernelInputFormat, known: &[&str]) -> Result<ValueForm, String> {
    let [first, ..] = known else {
        return Err(format!(
            "its values are not numbers of 8 to 64 bits, as {name} needs them"
        ));
    };
    if !known.contains(&reads.dtype.as_str()) {
        return Err(format!(
            "its values are {first}, and {name} would read {}: set dtype={first}",
            reads.dtype
        ));
    }
    if reads.big_endian {
        return Err(format!(
            "{name} gets its values with the lowest byte first: leave out order=big"
        ));
    }
    Ok(ValueForm::default())
}

/// Returns the types in which kernels can read the values, as in `dtype=`: the intended type, or the types of the parts of complex numbers
/// and text.
fn names(data_type: &DataType, meant: Option<Dtype>) -> Vec<&'static str> {
    if let Some(dtype) = meant {
        return vec![short(dtype)];
    }
    match (&data_type.kind, data_type.size) {
        (DataKind::Int | DataKind::Uint | DataKind::Bool | DataKind::Text, 1) => vec!["u8", "i8"],
        (DataKind::Text, _) => vec!["u8"],
        (DataKind::Int | DataKind::Uint, 2) => vec!["i16", "u16"],
        (DataKind::Int | DataKind::Uint, 4) => vec!["i32", "u32"],
        (DataKind::Int | DataKind::Uint, 8) => vec!["i64", "u64"],
        (DataKind::Float, 4) | (DataKind::Complex, 8) => vec!["f32"],
        (DataKind::Float, 8) | (DataKind::Complex, 16) => vec!["f64"],
        _ => Vec::new(),
    }
}

fn short(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Int8 => "i8",
        Dtype::Int16 => "i16",
        Dtype::Int32 => "i32",
        Dtype::Int64 => "i64",
        Dtype::Uint8 => "u8",
        Dtype::Uint16 => "u16",
        Dtype::Uint32 => "u32",
        Dtype::Uint64 => "u64",
        Dtype::Float32 => "f32",
        Dtype::Float64 => "f64",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_format::{Attribute, Endian, Storage, Value};

    fn variable(kind: DataKind, size: u32, attributes: &[(&str, Value)]) -> Variable {
        let attribute = |(name, value): &(&str, Value)| Attribute {
            name: (*name).into(),
            value: value.clone(),
        };
        Variable {
            path: "tas".into(),
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

    fn stages(text: &str) -> Vec<Vec<String>> {
        let stages = text.split('|');
        let words = |stage: &str| stage.split_whitespace().map(str::to_owned).collect();
        stages.map(words).collect()
    }

    fn args(text: &str, variable: &Variable) -> Result<Vec<String>, String> {
        input_form(&stages(text), variable, Format::Netcdf4).map(|form| form.args)
    }

    #[test]
    fn number_kernels_skip_missing_values_declared_in_file() {
        let fill = ("_FillValue", Value::Int(vec![-9]));
        let also = ("missing_value", Value::Int(vec![-8]));
        let ints = variable(DataKind::Int, 4, &[fill, also]);
        let found = input_form(&stages("mean dtype=i32"), &ints, Format::Netcdf4).unwrap();
        assert_eq!(found.args, ["missing=-9"]);
        assert!(found.absent.is_some());
        let floats = variable(
            DataKind::Float,
            4,
            &[("_FillValue", Value::Float(vec![1e20]))],
        );
        assert!(
            args("mean dtype=f32", &floats).is_err(),
            "1e20 is not an f32"
        );
        let floats = variable(
            DataKind::Float,
            8,
            &[("_FillValue", Value::Float(vec![1e20]))],
        );
        assert_eq!(args("mean", &floats).unwrap(), ["missing=nan"]);
        // NaN never counts, with any arguments; for integers without attributes all values count.
        assert_eq!(
            args("mean", &variable(DataKind::Float, 8, &[])).unwrap(),
            ["missing=nan"]
        );
        assert!(
            args("mean dtype=u8", &variable(DataKind::Uint, 1, &[]))
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn missing_value_argument_of_task_overrides_value_in_file() {
        let wrong = ("missing_value", Value::Text("-9".into()));
        let ints = variable(DataKind::Int, 2, &[wrong]);
        let refused = args("mean dtype=i16", &ints).unwrap_err();
        assert!(
            refused.contains("missing_value") && refused.contains("missing=-9999"),
            "{refused}"
        );
        let found = input_form(&stages("mean dtype=i16 missing=7"), &ints, Format::Netcdf4);
        assert_eq!(found, Ok(ValueForm::default()));
        let fill = variable(DataKind::Int, 2, &[("_FillValue", Value::Int(vec![-9]))]);
        let found = input_form(&stages("mean dtype=i16 missing=7"), &fill, Format::Netcdf4);
        assert_eq!(found, Ok(ValueForm::default()));
        let refused = args("scale dtype=i16 a=2 | mean dtype=i16", &fill).unwrap_err();
        assert!(refused.contains("each kernel"), "{refused}");
        // Programs and kernels of bytes receive values as they are stored.
        for text in ["fingerprint", "mine.so dtype=f64", ""] {
            let found = input_form(&stages(text), &fill, Format::Netcdf4);
            assert_eq!(found, Ok(ValueForm::default()), "{text}");
        }
    }

    #[test]
    fn kernel_with_other_dtype_than_variable_is_refused() {
        let unsigned = ("_Unsigned", Value::Text("true".into()));
        let bytes = variable(DataKind::Int, 1, &[unsigned]);
        let refused = args("max dtype=i8", &bytes).unwrap_err();
        assert!(refused.contains("dtype=u8"), "{refused}");
        assert_eq!(args("max dtype=u8", &bytes), Ok(Vec::new()));
        let floats = variable(DataKind::Float, 4, &[]);
        for (text, word) in [
            ("mean", "dtype=f32"),
            ("mean dtype=text", "dtype=f32"),
            ("mean dtype=f32 order=big", "order=big"),
            ("mean missing=0", "dtype=f32"),
        ] {
            let refused = args(text, &floats).unwrap_err();
            assert!(refused.contains(word), "{text}: {refused}");
        }
        let half = variable(DataKind::Float, 2, &[]);
        assert!(args("mean", &half).unwrap_err().contains("8 to 64 bits"));
        assert_eq!(
            args("mean dtype=f32", &variable(DataKind::Complex, 8, &[])),
            Ok(Vec::new())
        );
        assert!(of_type(&stages("mean"), Dtype::Int64, None).is_err());
        let csv = of_type(&stages("mean dtype=i64"), Dtype::Int64, Some("-1".into()));
        assert_eq!(csv.unwrap().args, ["missing=-1"]);
    }
}
