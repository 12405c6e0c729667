//! Kernel `heartbeat`: R peaks of an electrocardiogram with one lead; all inputs are one series. The output is the index of each peak, from
//! 0, in a line each, or as raw little-endian `f64`. A missing (or NaN) sample counts as the previous sample.

use std::io::Write;

use super::BuiltinError;
use super::series::{open, text_pieces, whole_values};
use super::table::{BuiltinKernel, KernelArgument, KernelConstructor, KernelOptions};
use super::values::{FORMAT, NumericResult, ORDER, OUT, missing, size_of_dtype, with_dtype};
use crate::loops::heartbeat::{RATE_AT_LEAST, RATE_AT_MOST, r_peaks};
use crate::loops::number::Number;
use crate::loops::swap::swap;

/// Kernel `heartbeat`, for the table of built-in kernels.
pub(super) const KERNELS: &[BuiltinKernel] = &[BuiltinKernel {
    name: "heartbeat",
    revision: 1,
    help: "indices of the R peaks of an electrocardiogram",
    args: &[FORMAT, HEARTBEAT, OUT, ORDER],
    usage: None,
    prepare: None,
    code: KernelConstructor::Whole(heartbeat),
}];

const HEARTBEAT: &[KernelArgument] = &[KernelArgument {
    key: "rate",
    values: "HERTZ",
    default: "",
    help: "samples a second, from 50 to 1000000",
}];

fn heartbeat(
    options: &KernelOptions,
    inputs: &[String],
    out: &mut dyn Write,
) -> Result<(), BuiltinError> {
    const VALID: &str = "samples a second, from 50 to 1000000";
    let rate: f64 = options.needed("rate", options.number("rate", VALID)?)?;
    if !(RATE_AT_LEAST..=RATE_AT_MOST).contains(&rate) {
        return Err(options.wrong("rate", &rate.to_string(), VALID));
    }
    let signal = signal(options, inputs)?;
    let peaks = r_peaks(&signal, rate);
    if options.is("out", "f64") {
        #[allow(clippy::cast_precision_loss, reason = "far fewer than 2^53 samples")]
        let peaks = peaks.into_iter().map(|peak| peak as f64).collect();
        return NumericResult::floats(peaks).write(true, out);
    }
    let lines: String = peaks.into_iter().map(|peak| format!("{peak}\n")).collect();
    out.write_all(lines.as_bytes()).map_err(BuiltinError::Write)
}

/// Returns all samples of all inputs; NaN for missing samples.
fn signal(options: &KernelOptions, inputs: &[String]) -> Result<Vec<f64>, BuiltinError> {
    let mut signal = Vec::new();
    if options.is("dtype", "text") {
        let missing = missing::<f64>(options)?;
        text_pieces(inputs, |piece| {
            append::<f64>(piece, missing, &mut signal);
            Ok(())
        })?;
        return Ok(signal);
    }
    with_dtype!(options, |T| {
        let missing = missing::<T>(options)?;
        for name in inputs {
            let file = open(name)?;
            whole_values(name, &file, size_of_dtype(options))?;
            if options.is("order", "big") {
                let mut turned = vec![0; file.len()];
                swap(&file, &mut turned, size_of::<T>());
                append::<T>(&turned, missing, &mut signal);
            } else {
                append::<T>(&file, missing, &mut signal);
            }
        }
        Ok(signal)
    })
}

fn append<T: Number>(values: &[u8], missing: Option<T>, signal: &mut Vec<f64>) {
    signal.extend(
        values
            .chunks_exact(T::SIZE)
            .map(T::read)
            .map(|value| match missing {
                Some(missing) if missing.same(value) => f64::NAN,
                _ => value.to_f64(),
            }),
    );
}
