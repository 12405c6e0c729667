//! Kernels that write the values of their input changed, in another order, or only some of them: `scale`, `cast`, `sort`, `subset`,
//! `transpose`.
//!
//! - **`scale`** writes `a·x + b` in the type of the input; see [`crate::loops::affine::Scalable`] for its rounding.
//! - **`cast`** writes the same numbers in another type; see [`crate::loops::convert`] for numbers that do not fit.
//! - **`sort`** is ascending. Floating-point numbers are in the total order of IEEE 754 (`-0` before `0`), but all NaN are last. Files
//!   are one series. Data that does not fit into the task's memory is sorted in slices by value, each gathered by a pass over the whole
//!   input.

use std::io::Write;

use rustix::process::{Resource, getrlimit};

use super::BuiltinError;
use super::series::{SeriesFile, open, text_pieces, whole_values};
use super::table::{BuiltinKernel, FoldInput, KernelArgument, KernelConstructor, KernelOptions};
use super::values::{DTYPES, FORMAT, ORDER, missing, size_of_dtype, with_dtype};
use crate::fold::Stream;
use crate::loops;
use crate::loops::affine::{self, ScaleFactors};
use crate::loops::convert::{Convert, FromWide, Wide, convert};
use crate::loops::huge_pages;
use crate::loops::number::{bytes_of, decimal};
use crate::loops::simd::Level;
use crate::loops::sort::sort_in_slices;
use crate::loops::subset::DimensionSpan;
use crate::loops::swap::swap;
use crate::loops::transpose::ColumnBlock;

/// Kernels `scale`, `cast`, `sort`, `subset` and `transpose`, for the table of built-in kernels.
pub(super) const KERNELS: &[BuiltinKernel] = &[
    BuiltinKernel {
        name: "cast",
        revision: 1,
        help: "the values in another type",
        args: &[FORMAT, CAST, BYTE_ORDER],
        usage: None,
        prepare: None,
        code: KernelConstructor::Stream(FoldInput::Values, cast),
    },
    BuiltinKernel {
        name: "scale",
        revision: 1,
        help: "a·x + b for each value, in its own type",
        args: &[FORMAT, SCALE, ORDER],
        usage: None,
        prepare: None,
        code: KernelConstructor::Stream(FoldInput::Values, scale),
    },
    BuiltinKernel {
        name: "sort",
        revision: 1,
        help: "all values in ascending order, NaN last",
        args: &[FORMAT, SORT, BYTE_ORDER],
        usage: None,
        prepare: None,
        code: KernelConstructor::Whole(sort),
    },
    BuiltinKernel {
        name: "subset",
        revision: 1,
        help: "a part of an array of any dimensions",
        args: &[FORMAT, SUBSET],
        usage: None,
        prepare: None,
        code: KernelConstructor::Whole(subset),
    },
    BuiltinKernel {
        name: "transpose",
        revision: 1,
        help: "the columns of a matrix as rows",
        args: &[FORMAT, TRANSPOSE],
        usage: None,
        prepare: None,
        code: KernelConstructor::Whole(transpose),
    },
];

const CAST: &[KernelArgument] = &[
    KernelArgument {
        key: "to",
        values: "TYPE",
        default: "",
        help: "type of the result: f64, f32, i8, i16, i32, i64, u8, u16, u32 or u64",
    },
    KernelArgument {
        key: "to_order",
        values: "little|big",
        default: "little",
        help: "byte order of the result",
    },
];

const SCALE: &[KernelArgument] = &[
    KernelArgument {
        key: "a",
        values: "NUMBER",
        default: "1",
        help: "factor",
    },
    KernelArgument {
        key: "b",
        values: "NUMBER",
        default: "0",
        help: "summand",
    },
];

const SUBSET: &[KernelArgument] = &[
    KernelArgument {
        key: "shape",
        values: "SIZES",
        default: "",
        help: "sizes of the dimensions, the slowest first, such as 100x640x480 (the default is one dimension)",
    },
    KernelArgument {
        key: "start",
        values: "INDICES",
        default: "",
        help: "the first index in each dimension, such as 0x10x20 (the default is 0)",
    },
    KernelArgument {
        key: "stop",
        values: "INDICES",
        default: "",
        help: "the index after the last in each dimension (the default is its size)",
    },
    KernelArgument {
        key: "step",
        values: "STEPS",
        default: "",
        help: "distance of indices in each dimension, such as 1x2x2 (the default is 1)",
    },
];

const TRANSPOSE: &[KernelArgument] = &[KernelArgument {
    key: "columns",
    values: "COUNT",
    default: "",
    help: "values in a row of the input",
}];

/// Argument for the byte order only: these kernels use all values, so no value stands for missing values.
const BYTE_ORDER: &[KernelArgument] = &[ORDER[0]];

const SORT: &[KernelArgument] = &[
    KernelArgument {
        key: "threads",
        values: "COUNT",
        default: "1",
        help: "threads that sort",
    },
    KernelArgument {
        key: "memory",
        values: "BYTES",
        default: "",
        help: "memory to use, at most the limit of the task (the default is most of it), at least a thousandth of the input",
    },
];

fn sort(
    options: &KernelOptions,
    inputs: &[String],
    out: &mut dyn Write,
) -> Result<(), BuiltinError> {
    let threads = options.threads()?;
    let memory = options.positive("memory")?;
    // Memory is needed for the result, for as many gathered values, and for scratch memory of half that size.
    let limit = memory.map_or_else(memory_limit, |memory| memory / 5 * 2) / size_of_dtype(options);
    if options.is("dtype", "text") {
        return sort_text(inputs, limit, threads, out);
    }
    let files: Vec<SeriesFile> = inputs
        .iter()
        .map(|name| open(name))
        .collect::<Result<_, _>>()?;
    for (name, file) in inputs.iter().zip(&files) {
        whole_values(name, file, size_of_dtype(options))?;
    }
    let files: Vec<&[u8]> = files.iter().map(|file| &**file).collect();
    let big = options.is("order", "big");
    with_dtype!(options, |T| {
        sort_in_slices::<T, _>(&files, big, limit.max(1), threads, |keys| {
            out.write_all(bytes_of(keys)).map_err(BuiltinError::Write)
        })
    })
}

/// Sorts decimal numbers of text; each number is a line of the result.
fn sort_text(
    inputs: &[String],
    limit: usize,
    threads: usize,
    out: &mut dyn Write,
) -> Result<(), BuiltinError> {
    let mut values = Vec::new();
    text_pieces(inputs, |piece| {
        values.extend_from_slice(piece);
        Ok(())
    })?;
    let mut text = Vec::new();
    sort_in_slices::<f64, _>(&[&values], false, limit.max(1), threads, |keys| {
        for key in keys.chunks(1 << 16) {
            text.clear();
            for value in key {
                let value = f64::from_bits(u64::from_le_bytes(value.to_ne_bytes()));
                text.extend(decimal(value).bytes());
                text.push(b'\n');
            }
            out.write_all(&text).map_err(BuiltinError::Write)?;
        }
        Ok(())
    })
}

/// Returns the size of a result that this process has memory for, in bytes: two fifths of its memory, because gathered values need as much
/// as the result, and scratch memory half of it.
fn memory_limit() -> usize {
    let limit = getrlimit(Resource::Data).current.unwrap_or(u64::MAX);
    usize::try_from(limit / 5 * 2).unwrap_or(usize::MAX)
}

type ConvertValue = Box<dyn FnMut(&[u8], &mut Vec<u8>) + Send>;

/// Maps each input value to an output value, as values arrive.
struct ValueMap {
    size: usize,
    /// Bytes of an incomplete value at the end of the input so far.
    torn: Vec<u8>,
    given: Vec<u8>,
    /// Function that appends the results for whole values.
    each: ConvertValue,
}

impl std::fmt::Debug for ValueMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Map")
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

impl ValueMap {
    fn give(&mut self, values: &[u8], out: &mut dyn Write) -> Result<(), BuiltinError> {
        for piece in values.chunks(PIECE_BYTES) {
            self.given.clear();
            (self.each)(piece, &mut self.given);
            out.write_all(&self.given).map_err(BuiltinError::Write)?;
        }
        Ok(())
    }
}

impl Stream for ValueMap {
    fn push(&mut self, mut bytes: &[u8], out: &mut dyn Write) -> Result<(), BuiltinError> {
        if !self.torn.is_empty() {
            let (first, rest) = bytes.split_at(bytes.len().min(self.size - self.torn.len()));
            self.torn.extend_from_slice(first);
            bytes = rest;
            if self.torn.len() < self.size {
                return Ok(());
            }
            let whole = std::mem::take(&mut self.torn);
            self.give(&whole, out)?;
        }
        let (whole, rest) = bytes.split_at(bytes.len() / self.size * self.size);
        self.torn.extend_from_slice(rest);
        self.give(whole, out)
    }

    fn finish(self: Box<Self>, _: &mut dyn Write) -> Result<(), BuiltinError> {
        if self.torn.is_empty() {
            return Ok(());
        }
        Err(BuiltinError::Ragged {
            bytes: self.torn.len(),
            size: self.size,
        })
    }
}

/// Number of bytes that are written at a time: a file written in pieces of this size is read fastest later.
const PIECE_BYTES: usize = 1 << 20;

fn map(
    options: &KernelOptions,
    each: impl FnMut(&[u8], &mut Vec<u8>) + Send + 'static,
) -> Box<dyn Stream> {
    Box::new(ValueMap {
        size: size_of_dtype(options),
        torn: Vec::new(),
        given: Vec::with_capacity(PIECE_BYTES),
        each: Box::new(each),
    })
}

/// Returns an error if the input is text, because these kernels write raw values for raw values.
fn binary(options: &KernelOptions) -> Result<(), BuiltinError> {
    if options.is("dtype", "text") {
        let valid = DTYPES.trim_end_matches(", text");
        return Err(options.wrong("dtype", "text", valid));
    }
    Ok(())
}

fn scale(options: &KernelOptions) -> Result<Box<dyn Stream>, BuiltinError> {
    binary(options)?;
    let number = |key| Ok(options.number(key, "a number")?.unwrap_or_default());
    let by = ScaleFactors::new(number("a")?, number("b")?);
    let big = options.is("order", "big");
    let mut turned = Vec::new();
    with_dtype!(options, |T| {
        let missing = missing::<T>(options)?;
        Ok(map(options, move |values, given| {
            given.resize(values.len(), 0);
            let level = Level::best();
            if big {
                turned.resize(values.len(), 0);
                swap(values, &mut turned, size_of::<T>());
                affine::scale_in_place::<T>(&mut turned, by, missing, level);
                swap(&turned, given, size_of::<T>());
            } else {
                affine::scale::<T>(values, given, by, missing, level);
            }
        }))
    })
}

fn cast(options: &KernelOptions) -> Result<Box<dyn Stream>, BuiltinError> {
    binary(options)?;
    let to = options.needed("to", options.text("to"))?;
    with_dtype!(options, |T| cast_from::<T>(options, to))
}

fn cast_from<T: Convert<Wide: Wide>>(
    options: &KernelOptions,
    to: &str,
) -> Result<Box<dyn Stream>, BuiltinError> {
    match to {
        "f64" => Ok(cast_to::<T, f64>(options)),
        "f32" => Ok(cast_to::<T, f32>(options)),
        "i8" => Ok(cast_to::<T, i8>(options)),
        "i16" => Ok(cast_to::<T, i16>(options)),
        "i32" => Ok(cast_to::<T, i32>(options)),
        "i64" => Ok(cast_to::<T, i64>(options)),
        "u8" => Ok(cast_to::<T, u8>(options)),
        "u16" => Ok(cast_to::<T, u16>(options)),
        "u32" => Ok(cast_to::<T, u32>(options)),
        "u64" => Ok(cast_to::<T, u64>(options)),
        _ => Err(options.wrong("to", to, DTYPES.trim_end_matches(", text"))),
    }
}

fn cast_to<T: Convert<Wide: Wide>, U: FromWide>(options: &KernelOptions) -> Box<dyn Stream> {
    let (big, to_big) = (options.is("order", "big"), options.is("to_order", "big"));
    let (mut turned, mut made) = (Vec::new(), Vec::new());
    map(options, move |values, given| {
        let from = if big {
            turned.resize(values.len(), 0);
            swap(values, &mut turned, T::SIZE);
            &turned
        } else {
            values
        };
        let length = values.len() / T::SIZE * size_of::<U>();
        given.resize(length, 0);
        if to_big {
            made.resize(length, 0);
            convert::<T, U>(from, &mut made, Level::best());
            swap(&made, given, size_of::<U>());
        } else {
            convert::<T, U>(from, given, Level::best());
        }
    })
}

/// Returns the only input of a kernel that processes a whole array.
fn whole_array(options: &KernelOptions, inputs: &[String]) -> Result<SeriesFile, BuiltinError> {
    binary(options)?;
    let [name] = inputs else {
        let (kernel, count) = (options.kernel.name, inputs.len());
        return Err(BuiltinError::Inputs { kernel, count });
    };
    with_dtype!(options, |T| {
        let file = open(name)?;
        whole_values(name, &file, size_of::<T>())?;
        Ok(file)
    })
}

fn subset(
    options: &KernelOptions,
    inputs: &[String],
    out: &mut dyn Write,
) -> Result<(), BuiltinError> {
    let array = whole_array(options, inputs)?;
    let size = size_of_dtype(options);
    let spans = spans(options, array.len() / size)?;
    let mut out = std::io::BufWriter::with_capacity(PIECE_BYTES, out);
    loops::subset::subset(&array, size, &spans, &mut |piece| out.write_all(piece))
        .and_then(|()| out.flush())
        .map_err(BuiltinError::Write)
}

/// Returns the part of an array of `values` values that the arguments select.
fn spans(options: &KernelOptions, values: usize) -> Result<Vec<DimensionSpan>, BuiltinError> {
    const VALID: &str = "numbers with x between them, one for each dimension";
    let list = |key, default: Vec<usize>| match options.text(key) {
        None => Ok(default),
        Some(text) => {
            let list: Option<Vec<_>> = text.split('x').map(|part| part.parse().ok()).collect();
            list.filter(|list| key == "shape" || list.len() == default.len())
                .ok_or_else(|| options.wrong(key, text, VALID))
        }
    };
    let shape = list("shape", vec![values])?;
    let wanted = shape
        .iter()
        .try_fold(1_usize, |all, size| all.checked_mul(*size));
    if wanted != Some(values) {
        let shape = options.text("shape").unwrap_or_default();
        let valid = format!("sizes whose product is {values}, the values of the input");
        return Err(options.wrong("shape", shape, &valid));
    }
    let start = list("start", vec![0; shape.len()])?;
    let stop = list("stop", shape.clone())?;
    let step = list("step", vec![1; shape.len()])?;
    let mut spans = Vec::new();
    for (dimension, size) in shape.into_iter().enumerate() {
        let (start, stop, step) = (start[dimension], stop[dimension], step[dimension]);
        if step == 0 {
            return Err(options.wrong("step", "0", "1 or more"));
        }
        if start > stop || stop > size {
            let range = format!("{start} to {stop}");
            let valid = format!("from start to stop within 0 to {size} in dimension {dimension}");
            return Err(options.wrong("stop", &range, &valid));
        }
        let count = (stop - start).div_ceil(step);
        spans.push(DimensionSpan {
            size,
            start,
            step,
            count,
        });
    }
    Ok(spans)
}

/// Number of bytes of result rows that are computed at a time.
const BAND_BYTES: usize = 16 << 20;

fn transpose(
    options: &KernelOptions,
    inputs: &[String],
    out: &mut dyn Write,
) -> Result<(), BuiltinError> {
    let matrix = whole_array(options, inputs)?;
    let size = size_of_dtype(options);
    let width = options.needed("columns", options.positive("columns")?)?;
    let values = matrix.len() / size;
    if !values.is_multiple_of(width) {
        let valid = format!("a divisor of {values}, the values of the input");
        return Err(options.wrong("columns", &width.to_string(), &valid));
    }
    let rows = values / width;
    if rows == 0 {
        return Ok(());
    }
    // The columns are whole lines of the input's rows, so that no line is read twice.
    let columns = (BAND_BYTES / (rows * size)).next_multiple_of(64 / size);
    let mut band = huge_pages::zeros(rows * columns.min(width) * size);
    for first in (0..width).step_by(columns) {
        let columns = columns.min(width - first);
        let band = &mut band[..rows * columns * size];
        let from = &matrix;
        loops::transpose::transpose(
            ColumnBlock {
                from,
                size,
                rows,
                width,
                first,
                columns,
            },
            band,
            Level::best(),
        );
        out.write_all(band).map_err(BuiltinError::Write)?;
    }
    Ok(())
}
