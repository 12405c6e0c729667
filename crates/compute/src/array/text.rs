//! Values of a column of text, line by line. The process that has read the file's header line sends the column and its format ([`Csv`]);
//! this module trusts neither the column and its format nor the text.

use super::held::VariablePart;
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use tidemill_format::csv::{Csv, CsvType, LineError, MARK};

/// Maximum number of bytes of a column that an error message shows.
const SHOWN_BYTES_MAX: usize = 40;

/// Encoding of the values of an input with a `variable`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Encoded {
    /// The values are numbers in chunks of a file.
    Held(VariablePart),
    /// The values are a column of text.
    Text {
        /// Column with its format.
        csv: Csv,
    },
}

impl Encoded {
    /// Returns the number of further inputs of the task, after the first, that contain the bytes of the variable.
    #[must_use]
    pub fn more(&self) -> usize {
        match self {
            Self::Held(held) => held.more as usize,
            Self::Text { .. } => 0,
        }
    }

    /// Returns the description of the values for a program, as JSON.
    #[must_use]
    pub fn described(&self, input: &str) -> serde_json::Value {
        match self {
            Self::Held(held) => held.described(input),
            Self::Text { csv } => serde_json::json!({
                "input": input, "variable": csv.column, "dtype": dtype(csv.number), "itemsize": 8,
            }),
        }
    }
}

fn dtype(number: CsvType) -> &'static str {
    match number {
        CsvType::Float => "float64",
        CsvType::Int => "int64",
    }
}

/// Reason why the values of a column cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A line of the text is invalid.
    #[error("{why}")]
    Line {
        /// Number of the line in the available text, from 0; `at` is the offset of its first byte.
        line: u64,
        /// Offset of the line's first byte.
        at: usize,
        /// Cause of the error.
        why: String,
    },
    /// The output cannot be written.
    #[error(transparent)]
    Write(#[from] io::Error),
}

/// Writes the values of whole lines, in this machine's byte order. `first` is true if the lines are the first lines of a file.
///
/// # Errors
/// The error of the first line without a value in the column, or of `out`.
pub fn columns(csv: &Csv, text: &[u8], first: bool, out: &mut dyn Write) -> Result<(), TextError> {
    let mark = if first && text.starts_with(MARK) {
        MARK.len()
    } else {
        0
    };
    let (mut at, mut line) = (mark, 0);
    while at < text.len() {
        let end = memchr::memchr(b'\n', &text[at..]).map_or(text.len(), |length| at + length);
        let whole = &text[at..end];
        let whole = whole.strip_suffix(b"\r").unwrap_or(whole);
        if !csv.passes_over(whole) {
            let value = value(csv, whole).map_err(|why| TextError::Line { line, at, why })?;
            out.write_all(&value)?;
        }
        (at, line) = (end + 1, line + 1);
    }
    Ok(())
}

fn value(csv: &Csv, line: &[u8]) -> Result<[u8; 8], String> {
    let column = csv
        .column(line)
        .map_err(|error: LineError| error.to_string())?;
    let column = column.ok_or_else(|| {
        let count = csv.columns(line).map_or(0, |all| all.len());
        format!(
            "there are {count} columns, and {} is column #{}",
            csv.column, csv.index
        )
    })?;
    let text = column.trim_ascii();
    let no_value = text.is_empty() || csv.missing.iter().any(|missing| missing.as_bytes() == text);
    let wrong = |what: &str| format!("{} is {}, which is {what}", csv.column, shown(text));
    let parsed = std::str::from_utf8(text).ok();
    match csv.number {
        CsvType::Float if no_value => Ok(f64::NAN.to_ne_bytes()),
        CsvType::Float => {
            let number = parsed.and_then(|text| text.parse::<f64>().ok());
            number
                .map(f64::to_ne_bytes)
                .ok_or_else(|| wrong("no number"))
        }
        CsvType::Int if no_value => csv.fill.map(i64::to_ne_bytes).ok_or_else(|| {
            format!(
                "{} has no value: give a value for missing values (fill=-1), or read doubles (type=f8)",
                csv.column
            )
        }),
        CsvType::Int => {
            let number = parsed.and_then(|text| text.parse::<i64>().ok());
            number
                .map(i64::to_ne_bytes)
                .ok_or_else(|| wrong("no integer of 64 bits"))
        }
    }
}

fn shown(text: &[u8]) -> String {
    let some = &text[..text.len().min(SHOWN_BYTES_MAX)];
    let dots = if some.len() < text.len() { "…" } else { "" };
    format!("{:?}{dots}", String::from_utf8_lossy(some))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn csv(spec: &str, text: &str) -> Result<Csv, String> {
        Csv::read(spec, &text.as_bytes().to_vec()).map_err(|error| error.to_string())
    }

    fn floats(spec: &str, text: &str) -> Result<Vec<f64>, String> {
        let csv = csv(spec, text)?;
        let mut out = Vec::new();
        let from = usize::try_from(csv.begin).unwrap();
        columns(&csv, &text.as_bytes()[from..], from == 0, &mut out).map_err(
            |error| match error {
                TextError::Line { line, at, why } => format!("{line} {at} {why}"),
                TextError::Write(error) => error.to_string(),
            },
        )?;
        let number = |bytes: &[u8]| match csv.number {
            CsvType::Float => f64::from_ne_bytes(bytes.try_into().unwrap()),
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            CsvType::Int => i64::from_ne_bytes(bytes.try_into().unwrap()) as f64,
        };
        Ok(out.chunks(8).map(number).collect())
    }

    #[test]
    fn csv_columns_are_found_by_name_and_options() {
        let text = "time,\"a \"\"tas\"\", K\",n\r\n1,2.5,7\r\n\r\n2,\"-1e3\",8\n3, ,9";
        assert_eq!(floats("time", text).unwrap(), [1.0, 2.0, 3.0]);
        assert_eq!(floats("#2,type=i8", text).unwrap(), [7.0, 8.0, 9.0]);
        let tas = floats("#1", text).unwrap();
        assert_eq!(tas[..2], [2.5, -1000.0]);
        assert!(tas[2].is_nan());
        assert_eq!(csv("#1", text).unwrap().index, 1);
        let table = "# made by hand\n  x   y\n# units\n 1.5\t 2\n  3  inf  \n";
        assert_eq!(
            floats("x,separator=blanks,skip=1,comment=#", table).unwrap(),
            [1.5, 3.0]
        );
        assert_eq!(
            floats("y,separator=blanks,skip=1,comment=#", table).unwrap(),
            [2.0, f64::INFINITY]
        );
        let plain = "\u{feff}1;'2;3';-\n4;5;6\n";
        assert_eq!(
            floats("#0,separator=;,quote=',header=no", plain).unwrap(),
            [1.0, 4.0]
        );
        assert_eq!(
            floats(
                "#2,separator=;,quote=',header=no,type=i8,missing=-|NA,fill=-1",
                plain
            )
            .unwrap(),
            [-1.0, 6.0]
        );
        assert_eq!(floats("tas", "\u{feff}tas,b\n1,2\n").unwrap(), [1.0]);
    }

    #[test]
    fn csv_error_names_line_and_byte() {
        for (spec, text, why) in [
            (
                "b",
                "a,b\n1,2\n3\n",
                "1 4 there are 1 columns, and b is column #1",
            ),
            ("b", "a,b\n1,x\n", "0 0 b is \"x\", which is no number"),
            (
                "a,type=i8",
                "a\n1.5\n",
                "0 0 a is \"1.5\", which is no integer of 64 bits",
            ),
            (
                "a,type=i8",
                "a,b\n,1\n",
                "0 0 a has no value: give a value for missing values",
            ),
            // A reader that starts after the quote could not detect it.
            (
                "a",
                "a,b\n1,\"two\nlines\"\n",
                "0 0 quotes are opened and not closed",
            ),
            (
                "b",
                "a,b\n\"1\"x,2\n",
                "0 0 a column has characters after its closing quotes",
            ),
            ("c", "a,b\n", "no variable c; there are a, b"),
            ("a", "a,a\n", "#0 and #1 both have the name a"),
            ("#7", "a,b\n", "no column #7"),
            ("a,header=no", "a\n", "without a header line"),
            ("a", "a", "no header line ends"),
            ("", "a\n", "which column?"),
            ("a,type=f4", "a\n", "\"f4\" is none of f8, i8"),
            ("a,colour=red", "a\n", "is none of type, separator"),
            ("a,separator=ab", "a\n", "is no single character"),
            ("a,quote=;,separator=;", "a\n", "must be different"),
            ("a,fill=3", "a\n", "fill is for integers"),
        ] {
            let found = floats(spec, text).unwrap_err();
            assert!(found.contains(why), "{spec}: {found}");
        }
    }

    proptest! {
        /// Pieces of a text that are cut at any end of a line give the same values as the whole text.
        #[test]
        fn csv_pieces_cut_at_line_ends_give_values_of_whole_text(
            rows in proptest::collection::vec((any::<f64>(), "[a-z,\"]{0,6}", any::<i64>()), 1..30), cut in any::<proptest::sample::Index>(),
        ) {
            let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
            let line = |(x, name, n): &(f64, String, i64)| format!("{x},{},{n}\n", quoted(name));
            let lines: Vec<String> = rows.iter().map(line).collect();
            let text = format!("x,name,n\n{}", lines.concat());
            let csv = csv("n,type=i8", &text).unwrap();
            let begin = usize::try_from(csv.begin).unwrap();
            let expected: Vec<u8> = rows.iter().flat_map(|(_, _, n)| n.to_ne_bytes()).collect();
            let cut = begin + lines[..cut.index(lines.len())].concat().len();
            let mut out = Vec::new();
            columns(&csv, &text.as_bytes()[begin..cut], false, &mut out).unwrap();
            columns(&csv, &text.as_bytes()[cut..], false, &mut out).unwrap();
            prop_assert_eq!(out, expected);
            let x = floats("x", &text).unwrap();
            let bits = |x: &f64| if x.is_nan() { f64::NAN.to_bits() } else { x.to_bits() };
            prop_assert!(x.iter().map(bits).eq(rows.iter().map(|(x, ..)| bits(x))));
        }

        #[test]
        fn csv_parser_terminates_on_any_text(spec in "\\PC{0,40}", text in "[a-c0-9,;\"'\n\r #.\\-\u{feff}]{0,80}") {
            let _ = floats(&spec, &text);
            let _ = floats(&format!("#0,{spec}"), &text);
            if let Ok(found) = floats("#1,header=no,separator=blanks,type=i8,fill=0", &text) {
                prop_assert!(found.len() <= text.lines().count());
            }
        }
    }
}
