//! Kernel `edges` for grey images with one byte for each pixel: raw (`width=` is the number of pixels in a row) or binary PGM with values
//! up to 255. The result has the form of the input.
//!
//! - **`method=sobel`** writes the length of the gradient, `|∂x| + |∂y|` but at most 255; the image is mirrored at its border.
//! - **`method=canny`** writes 255 on edges and 0 elsewhere: an edge needs a gradient above `high`, and continues along gradients above
//!   `low`. Pixels at the border are repeated. Both methods match OpenCV's, with a kernel of 3 by 3.

use std::io::Write;

use super::BuiltinError;
use super::series::open;
use super::table::{BuiltinKernel, KernelArgument, KernelConstructor, KernelOptions};
use crate::loops::edges::GreyImage;
use crate::loops::edges::canny::canny;
use crate::loops::edges::sobel::sobel;
use crate::loops::simd::Level;

/// Kernel `edges`, for the table of built-in kernels.
pub(super) const KERNELS: &[BuiltinKernel] = &[BuiltinKernel {
    name: "edges",
    revision: 1,
    help: "edges of a grey image, by Sobel or Canny",
    args: &[EDGES],
    usage: None,
    prepare: None,
    code: KernelConstructor::Whole(edges),
}];

const EDGES: &[KernelArgument] = &[
    KernelArgument {
        key: "method",
        values: "sobel|canny",
        default: "sobel",
        help: "sobel: the length of the gradient; canny: 255 on edges, 0 elsewhere",
    },
    KernelArgument {
        key: "width",
        values: "PIXELS",
        default: "",
        help: "pixels in a row of a raw image (a PGM file contains it)",
    },
    KernelArgument {
        key: "low",
        values: "LENGTH",
        default: "100",
        help: "canny: gradients longer than this continue an edge",
    },
    KernelArgument {
        key: "high",
        values: "LENGTH",
        default: "200",
        help: "canny: gradients longer than this make an edge",
    },
];

fn edges(
    options: &KernelOptions,
    inputs: &[String],
    out: &mut dyn Write,
) -> Result<(), BuiltinError> {
    let [name] = inputs else {
        let (kernel, count) = (options.kernel.name, inputs.len());
        return Err(BuiltinError::Inputs { kernel, count });
    };
    let file = open(name)?;
    let (head, image) = match options.text("width") {
        Some(_) => (&file[..0], raw(options, &file)?),
        None => pgm(&file).ok_or_else(|| BuiltinError::NoImage(name.clone()))?,
    };
    let mut to = vec![0; image.pixels.len()];
    if options.is("method", "canny") {
        let low = threshold(options, "low")?;
        let high = threshold(options, "high")?;
        canny(image, low.min(high), low.max(high), &mut to, Level::best());
    } else {
        sobel(image, &mut to, Level::best());
    }
    out.write_all(head)
        .and_then(|()| out.write_all(&to))
        .map_err(BuiltinError::Write)
}

/// Returns a threshold for the length of gradients; no gradient is longer than 2040.
fn threshold(options: &KernelOptions, key: &'static str) -> Result<i16, BuiltinError> {
    const VALID: &str = "a number from 0 to 32767";
    let value: Option<i16> = options.number(key, VALID)?;
    match value {
        Some(value) if value < 0 => Err(options.wrong(key, &value.to_string(), VALID)),
        value => options.needed(key, value),
    }
}

fn raw<'a>(options: &KernelOptions, pixels: &'a [u8]) -> Result<GreyImage<'a>, BuiltinError> {
    let valid = format!("a divisor of {}, the bytes of the input", pixels.len());
    match options.number("width", &valid)? {
        Some(width) if width > 0 && pixels.len().is_multiple_of(width) => {
            Ok(GreyImage { pixels, width })
        }
        _ => Err(options.wrong("width", options.text("width").unwrap_or_default(), &valid)),
    }
}

/// Returns the header and the pixels of a binary PGM file.
fn pgm(file: &[u8]) -> Option<(&[u8], GreyImage<'_>)> {
    let mut rest = file.strip_prefix(b"P5")?;
    let mut number = || {
        loop {
            rest = rest.trim_ascii_start();
            let Some(comment) = rest.strip_prefix(b"#") else {
                break;
            };
            let end = comment.iter().position(|byte| *byte == b'\n')?;
            rest = &comment[end..];
        }
        let digits = rest.iter().position(|byte| !byte.is_ascii_digit())?;
        let (number, after) = rest.split_at(digits);
        rest = after;
        std::str::from_utf8(number).ok()?.parse::<usize>().ok()
    };
    let (width, height, highest) = (number()?, number()?, number()?);
    let pixels = rest.get(1..)?;
    let whole =
        width.checked_mul(height)? == pixels.len() && width > 0 && (1..=255).contains(&highest);
    whole.then(|| {
        (
            &file[..file.len() - pixels.len()],
            GreyImage { pixels, width },
        )
    })
}
