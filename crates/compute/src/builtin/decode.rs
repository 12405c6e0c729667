//! `decode`: extracts the values of a variable from the bytes of a file ([`crate::array::Encoded`]). Nodes run `decode` before the kernel
//! of a task whose input has a `variable`; it can also be run like any other kernel.

use std::io::{BufWriter, Write};

use super::BuiltinError;
use super::partial::InputLayout;
use super::series::open;
use super::table::{BuiltinKernel, KernelArgument, KernelConstructor, KernelOptions};
use crate::array::{ChunkError, Encoded, TextError, columns};
use tidemill_format::csv::Csv;

/// Kernel `decode`, for the table of built-in kernels.
pub(super) const KERNELS: &[BuiltinKernel] = &[BuiltinKernel {
    name: "decode",
    revision: 2,
    help: "the values of a variable, decoded from the bytes of the input, as for inputs with `variable`",
    args: &[HOW],
    usage: None,
    prepare: None,
    code: KernelConstructor::Whole(decode),
}];

const HOW: &[KernelArgument] = &[
    KernelArgument {
        key: "how",
        values: "JSON",
        default: "",
        help: "the locations of the values and their encoding; see docs/formats.md",
    },
    KernelArgument {
        key: "lies",
        values: "JSON",
        default: "",
        help: "for text: the bytes of the file that the input contains, for errors; an entry of TIDEMILL_LAYOUT",
    },
];

fn decode(
    options: &KernelOptions,
    inputs: &[String],
    out: &mut dyn Write,
) -> Result<(), BuiltinError> {
    let how = options.needed("how", options.text("how"))?;
    let values: Encoded = serde_json::from_str(how)
        .map_err(|error| options.wrong("how", &error.to_string(), "JSON as in docs/formats.md"))?;
    if inputs.len() != values.more() + 1 {
        let (kernel, count) = (options.kernel.name, inputs.len());
        return Err(BuiltinError::Inputs { kernel, count });
    }
    let files = inputs.iter().map(|input| open(input));
    let files: Vec<_> = files.collect::<Result<_, _>>()?;
    let mut out = BufWriter::with_capacity(1 << 20, out);
    match values {
        Encoded::Held(held) => {
            let stored: Vec<&[u8]> = files.iter().map(|file| &file[..]).collect();
            let decoded = held.decode_all(&stored, &mut out);
            decoded.map_err(|error| match error {
                ChunkError::Write(error) => BuiltinError::Write(error),
                error => BuiltinError::Held(error.to_string()),
            })?;
        }
        Encoded::Text { csv } => lines(&csv, &files[0], options.text("lies"), &mut out)?,
    }
    out.flush().map_err(BuiltinError::Write)
}

/// Writes the values of a column of whole lines. `position` is the position of the lines in the file, for errors.
fn lines(
    csv: &Csv,
    text: &[u8],
    position: Option<&str>,
    out: &mut dyn Write,
) -> Result<(), BuiltinError> {
    let extents = match position.filter(|position| !position.is_empty()) {
        Some(position) => InputLayout::read(position)?
            .extents(text.len())
            .unwrap_or_default(),
        None => vec![(0, text.len(), csv.begin)],
    };
    let begins = extents.first().map(|(_, _, offset)| *offset);
    let found = columns(csv, text, begins == Some(0), out);
    found.map_err(|error| match error {
        TextError::Write(error) => BuiltinError::Write(error),
        TextError::Line { line, at, why } => {
            let within = |(_, (begin, length, _)): &(usize, &(usize, usize, u64))| {
                (*begin..begin + length).contains(&at)
            };
            let place = match extents.iter().enumerate().find(within) {
                // All lines before it are available, too.
                Some((0, (_, _, offset))) if *offset == csv.begin => {
                    let byte = offset + at as u64;
                    format!("line {}, at byte {byte} of the file", csv.lines + line + 1)
                }
                Some((_, (begin, _, offset))) => {
                    let byte = offset + (at - begin) as u64;
                    format!(
                        "the line at byte {byte} of the file, number {} of those read here",
                        line + 1
                    )
                }
                None => format!("line {} of those read here", line + 1),
            };
            BuiltinError::Held(format!("{place}: {why}"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_error_names_line_of_whole_file() {
        let csv = Csv::read("b,skip=1", &b"made by hand\na,b\n1,2\n3,4\n5,x\n".to_vec()).unwrap();
        let reported = |text: &str, position: &str| {
            let error = lines(&csv, text.as_bytes(), Some(position), &mut Vec::new()).unwrap_err();
            error.to_string()
        };
        let whole = "1,2\n3,4\n5,x\n";
        assert_eq!(
            reported(whole, r#"{"input": "t", "size": 29, "bytes": [[17, 29]]}"#),
            "line 5, at byte 25 of the file: b is \"x\", which is no number"
        );
        assert_eq!(
            reported(whole, ""),
            reported(whole, r#"{"input": "t", "bytes": [[17, 29]]}"#)
        );
        // Stripes of four bytes; this part has every third stripe: those at 20 and 32.
        let part = r#"{"input": "t", "part": 2, "unit": 4, "width": 3, "bytes": [[4, 12]]}"#;
        assert!(
            reported("3,4\n5,x\n", part)
                .starts_with("the line at byte 32 of the file, number 2 of"),
            "{}",
            reported("3,4\n5,x\n", part)
        );
        assert!(
            reported(whole, r#"{"input": "t", "more": true}"#)
                .starts_with("line 3 of those read here")
        );
    }
}
