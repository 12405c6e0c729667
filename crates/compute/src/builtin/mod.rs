//! Built-in kernels. They run in a separate confined process like all other kernels; see `child`.
//!
//! Each group of kernels has a file and its part of the table. Numeric kernels read raw arrays (`dtype=`, default `f64`) or text, from all
//! inputs in order as one series; see `values`.

pub(crate) mod chain;
mod cipher;
mod codec;
mod content;
mod decode;
mod distribution;
mod error;
mod expression;
mod extrema;
mod grep;
mod image;
mod kmeans;
mod matrix;
mod partial;
mod pca;
mod reduce;
mod reshape;
mod select;
pub(crate) mod series;
mod signal;
mod statistics;
mod table;
pub(crate) mod values;
mod wordcount;

use std::io::Write;

pub use error::BuiltinError;
pub use partial::{MERGE, PARTIAL};
pub use table::{BuiltinKernel, KernelArgument};
use table::{KernelOptions, ReadyKernel};

use crate::fold::{Folding, Streaming};

/// All built-in kernels, one group for each file.
static GROUPS: &[&[BuiltinKernel]] = &[
    cipher::KERNELS,
    codec::KERNELS,
    content::KERNELS,
    decode::KERNELS,
    image::KERNELS,
    kmeans::KERNELS,
    pca::KERNELS,
    reduce::KERNELS,
    reshape::KERNELS,
    signal::KERNELS,
    statistics::KERNELS,
    distribution::KERNELS,
    extrema::KERNELS,
    select::KERNELS,
    grep::KERNELS,
    wordcount::KERNELS,
];

/// Returns all built-in kernels, sorted by name.
#[must_use]
pub fn builtin_kernels() -> Vec<&'static BuiltinKernel> {
    let mut kernels: Vec<_> = GROUPS.iter().copied().flatten().collect();
    kernels.sort_unstable_by_key(|kernel| kernel.name);
    kernels
}

/// Returns the names of all built-in kernels, sorted.
#[must_use]
pub fn builtin_names() -> Vec<&'static str> {
    builtin_kernels().iter().map(|kernel| kernel.name).collect()
}

/// Returns whether a built-in kernel of this name exists.
#[must_use]
pub fn is_builtin(name: &str) -> bool {
    find(name).is_ok()
}

/// Checks the arguments of a built-in kernel: whether the kernel knows them, and the values of arguments with a fixed set of values.
///
/// # Errors
/// If no kernel of this name exists, or if an argument is invalid.
pub fn check_arguments(name: &str, args: &[String]) -> Result<(), BuiltinError> {
    match partial::asked(args) {
        Some((_, args)) => fold_builtin(name, args).map(drop),
        None => KernelOptions::parse(find(name)?, args).map(drop),
    }
}

/// Number format that a built-in kernel reads, according to its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelInputFormat {
    /// Type of the kernel's input values, in the notation of `dtype=`.
    pub dtype: String,
    /// Whether the most significant byte of a value is first.
    pub big_endian: bool,
    /// Whether the kernel can skip a value that stands for missing values.
    pub passes_over: bool,
    /// Value of the kernel's argument `missing=`, which the kernel leaves out.
    pub missing: Option<String>,
}

/// Returns the number format that a built-in kernel reads; `None` if the kernel reads no numbers, or if its arguments are wrong.
#[must_use]
pub fn reads_numbers(name: &str, args: &[String]) -> Option<KernelInputFormat> {
    let options = KernelOptions::parse(find(name).ok()?, args).ok()?;
    let owned = |key| options.text(key).map(str::to_owned);
    Some(KernelInputFormat {
        dtype: owned("dtype")?,
        big_endian: options.is("order", "big"),
        passes_over: options.kernel.args().any(|arg| arg.key == "missing"),
        missing: owned("missing"),
    })
}

pub(crate) fn find(name: &str) -> Result<&'static BuiltinKernel, BuiltinError> {
    let mut kernels = GROUPS.iter().copied().flatten();
    let known = kernels.find(|kernel| kernel.name == name);
    known.ok_or_else(|| BuiltinError::Unknown(name.to_owned()))
}

/// Runs a built-in kernel in this process, over files named relative to the working directory. Kernels of tasks run through
/// the launcher of `tidemill-sandbox` instead, which confines them.
///
/// # Errors
/// If the arguments or inputs are invalid, or if the result cannot be written.
pub fn run_builtin(
    name: &str,
    args: &[String],
    inputs: &[String],
    result: &mut dyn Write,
) -> Result<(), BuiltinError> {
    if let Some((asked, args)) = partial::asked(args) {
        return partial::run(asked, (name, args), inputs, result);
    }
    let kernel = find(name)?;
    let mut options = KernelOptions::parse(kernel, args)?;
    let inputs = &*options.without_named(inputs)?;
    if inputs.is_empty() {
        return Err(BuiltinError::NoInput(kernel.name));
    }
    if let Some(prepare) = kernel.prepare {
        prepare(&mut options, inputs)?;
    }
    let (input, made) = kernel.code.make(&options)?;
    match made {
        ReadyKernel::Fold(fold) => series::fold(inputs, input, &options, fold)?.finish(result),
        ReadyKernel::Stream(mut stream) => {
            series::stream(inputs, input, &options, &mut *stream, result)?;
            stream.finish(result)
        }
        ReadyKernel::Whole(run) => run(&options, inputs, result),
    }
}

/// Starts a built-in kernel that accepts its input in pieces, at offsets, in any order. Input numbers must be binary.
///
/// # Errors
/// If no kernel of this name exists, if it is no fold, or if the arguments are invalid.
pub fn fold_builtin(name: &str, args: &[String]) -> Result<Folding, BuiltinError> {
    let kernel = find(name)?;
    let options = KernelOptions::parse(kernel, args)?;
    let (_, ReadyKernel::Fold(fold)) = kernel.code.make(&options)? else {
        let what = "takes its input as a whole or as a stream with these arguments, not in pieces";
        let kernel = kernel.name;
        return Err(BuiltinError::Form { kernel, what });
    };
    if options.is("dtype", "text") {
        let what = "reads text as a whole only: the index of a value in text depends on all text before it";
        let kernel = kernel.name;
        return Err(BuiltinError::Form { kernel, what });
    }
    let args: Vec<_> = args
        .iter()
        .filter(|arg| !arg.starts_with("threads="))
        .collect();
    let text = format!("{} {} {args:?}", kernel.name, kernel.revision);
    let mut key = [0; 8];
    key.copy_from_slice(&blake3::hash(text.as_bytes()).as_bytes()[..8]);
    Ok(Folding { fold, key })
}

/// Starts a built-in kernel that processes bytes as they are written to it, and that writes its output to `next`.
///
/// # Errors
/// If no kernel of this name exists, if it is no stream, or if the arguments are invalid.
pub fn stream_builtin<W: Write>(
    name: &str,
    args: &[String],
    next: W,
) -> Result<Streaming<W>, BuiltinError> {
    let kernel = find(name)?;
    let options = KernelOptions::parse(kernel, args)?;
    let (_, ReadyKernel::Stream(stream)) = kernel.code.make(&options)? else {
        let what = "gives its result at the end only with these arguments, and is no stream";
        let kernel = kernel.name;
        return Err(BuiltinError::Form { kernel, what });
    };
    Ok(Streaming { stream, next })
}

/// Returns the hash of a built-in kernel, in hexadecimal: of its name, its revision and the version of this crate, so the hash is the same
/// on all nodes of one release. Returns `None` if no such kernel exists.
#[must_use]
pub fn builtin_hash(name: &str) -> Option<String> {
    let (revision, version) = (find(name).ok()?.revision, env!("CARGO_PKG_VERSION"));
    let text = format!("tidemill {version} builtin {name} {revision}");
    Some(blake3::hash(text.as_bytes()).to_hex().to_string())
}

#[cfg(test)]
mod tests;
