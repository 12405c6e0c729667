//! Text in lines of separated columns: the user's description of a text file, and the columns according to its first lines.
//!
//! `csv,tas` is the column with this name in the header line, and `csv,#2` is the third column. Options follow, separated by commas:
//! `separator=;` (or `tab`, `blanks`), `quote='` (or `none`), `type=i8`, `missing=NA|-`, `fill=-1`, `comment=#`, `skip=3`, `header=no`.
//! An option that contains a comma is enclosed in double quotes.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::{Bytes, Error, Result};

/// Maximum size of the start of a text file that contains its header line, in bytes.
const HEADER_BYTES_MAX: u64 = 1 << 20;
/// Number of bytes at the start of a file that are read first.
const SHORT_BYTES: u64 = 16 << 10;
/// Maximum number of columns in a line.
pub const COLUMNS_MAX: usize = 1 << 16;
/// Maximum number of texts that stand for a missing value; the next constant is the maximum length of such a text.
const MISSING_MAX: usize = 32;
const TEXT_MAX: usize = 1024;
/// Maximum number of column names in an error.
const NAMES_LISTED: usize = 20;
/// Optional byte order mark at the start of a UTF-8 file.
pub const MARK: &[u8] = &[0xef, 0xbb, 0xbf];

/// One column of a text file, and the format of its lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Csv {
    /// Name of the column, for messages.
    pub column: String,
    /// Index of the column in a line, from 0.
    pub index: usize,
    /// Type of the column's values.
    pub number: CsvType,
    /// Separator of the columns in a line.
    pub separator: Separator,
    /// Quote character of a column that contains separators, or contains the quote character twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quote: Option<u8>,
    /// First byte of comment lines, which are skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<u8>,
    /// Texts, in addition to the empty text, that stand for a missing value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// Integer that replaces a missing value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fill: Option<i64>,
    /// Offset of the first line with values, in bytes.
    pub begin: u64,
    /// Number of lines before the first line with values.
    pub lines: u64,
}

/// Type of the values in a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CsvType {
    /// `f8`: values are floating-point numbers of 64 bits.
    Float,
    /// `i8`: values are signed integers of 64 bits.
    Int,
}

/// Separator of columns in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Separator {
    /// This byte separates columns.
    Byte(u8),
    /// Any number of spaces and tabs; spaces and tabs at the ends of a line are ignored.
    Blanks,
}

/// A column, and the rest of the line after the next separator.
type Cut<'a> = (Cow<'a, [u8]>, Option<&'a [u8]>);

/// Reason why a line cannot be divided into columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// A quote is not closed. The next line may belong to the quoted column: only a reader that starts at the start of the file knows this.
    #[error("quotes are opened and not closed: a line must end outside of them")]
    Open,
    /// Text follows the quote that closes a column.
    #[error("a column has characters after its closing quotes")]
    Behind,
    /// The line has more columns than the maximum.
    #[error("more than {COLUMNS_MAX} columns")]
    Columns,
}

impl Csv {
    /// Returns a column of a text file, from the user's description (after `csv,`) and the file's first lines.
    ///
    /// # Errors
    /// If the description is invalid, or if the file has no such column.
    pub fn read(text: &str, bytes: &dyn Bytes) -> Result<Self> {
        let spec = Spec(text);
        let parsed = spec.parse()?;
        // Most headers are short.
        let short = first_bytes(bytes, SHORT_BYTES)?;
        match parsed.clone().of(spec, &short) {
            Err(_) if bytes.size() > SHORT_BYTES => {
                parsed.of(spec, &first_bytes(bytes, HEADER_BYTES_MAX)?)
            }
            found => found,
        }
    }

    fn find(&self, wanted: &str, header: &[u8], spec: Spec<'_>) -> Result<usize> {
        let names = self
            .columns(header)
            .map_err(|error| spec.wrong(format!("the header line: {error}")))?;
        let names: Vec<_> = names
            .iter()
            .map(|name| String::from_utf8_lossy(name).trim().to_owned())
            .collect();
        let mut same = (0..).zip(&names).filter(|(_, name)| *name == wanted);
        match (same.next(), same.next(), number_of(wanted)) {
            (Some((index, _)), None, _) => Ok(index),
            (Some((first, _)), Some((second, _)), _) => Err(spec.wrong(format!(
                "the columns #{first} and #{second} both have the name {wanted}: give the number of one"
            ))),
            (None, _, Some(index)) if index < names.len() => Ok(index),
            (None, _, Some(index)) => Err(spec.wrong(format!("no column #{index}: there are {}, from #0 on", names.len()))),
            _ => Err(Error::NoVariable {
                name: wanted.to_owned(),
                there: names.iter().take(NAMES_LISTED).cloned().collect(),
            }),
        }
    }

    /// Returns all columns of a line; `line` is without its line end.
    ///
    /// # Errors
    /// If the line cannot be divided into columns.
    pub fn columns<'a>(
        &self,
        line: &'a [u8],
    ) -> std::result::Result<Vec<Cow<'a, [u8]>>, LineError> {
        let mut all = Vec::new();
        let mut left = Some(self.trimmed(line));
        while let Some(rest) = left {
            if all.len() == COLUMNS_MAX {
                return Err(LineError::Columns);
            }
            let (column, after) = self.first(rest)?;
            all.push(column);
            left = after;
        }
        Ok(all)
    }

    /// Returns this column of a line; `None` if the line has fewer columns. A line without quotes is parsed only up to the column.
    ///
    /// # Errors
    /// If the line cannot be divided into columns.
    pub fn column<'a>(
        &self,
        line: &'a [u8],
    ) -> std::result::Result<Option<Cow<'a, [u8]>>, LineError> {
        if self.quote.is_some_and(|quote| line.contains(&quote)) {
            let mut all = self.columns(line)?;
            return Ok((self.index < all.len()).then(|| all.swap_remove(self.index)));
        }
        let found = match self.separator {
            Separator::Byte(separator) => line.split(|&byte| byte == separator).nth(self.index),
            Separator::Blanks => {
                let words = line.split(|&byte| is_blank(byte));
                words.filter(|word| !word.is_empty()).nth(self.index)
            }
        };
        Ok(found.map(Cow::Borrowed))
    }

    /// Returns whether a line, without its line end, is skipped because it is empty or a comment.
    pub fn passes_over(&self, line: &[u8]) -> bool {
        self.comment
            .is_some_and(|comment| line.first() == Some(&comment))
            || line.iter().all(|&byte| is_blank(byte) || byte == b'\r')
    }

    fn trimmed<'a>(&self, line: &'a [u8]) -> &'a [u8] {
        match self.separator {
            Separator::Blanks => trimmed(line),
            Separator::Byte(_) => line,
        }
    }

    fn ends(&self, byte: u8) -> bool {
        match self.separator {
            Separator::Byte(separator) => byte == separator,
            Separator::Blanks => is_blank(byte),
        }
    }

    /// Returns the first column of a line, and the rest of the line after the next separator.
    fn first<'a>(&self, line: &'a [u8]) -> std::result::Result<Cut<'a>, LineError> {
        let (column, rest) = match self.quote.filter(|quote| line.first() == Some(quote)) {
            Some(quote) => quoted(&line[1..], quote)?,
            None => {
                let end = line.iter().position(|&byte| self.ends(byte));
                let (column, rest) = line.split_at(end.unwrap_or(line.len()));
                (Cow::Borrowed(column), rest)
            }
        };
        let Some((&next, after)) = rest.split_first() else {
            return Ok((column, None));
        };
        match self.separator {
            _ if !self.ends(next) => Err(LineError::Behind),
            Separator::Byte(_) => Ok((column, Some(after))),
            Separator::Blanks => Ok((column, Some(trimmed(after)))),
        }
    }
}

/// Returns a column in quotes, whose first quote was already taken, and the rest of the line.
fn quoted(text: &[u8], quote: u8) -> std::result::Result<(Cow<'_, [u8]>, &[u8]), LineError> {
    let mut whole = Vec::new();
    let mut rest = text;
    loop {
        let end = rest
            .iter()
            .position(|&byte| byte == quote)
            .ok_or(LineError::Open)?;
        let after = &rest[end + 1..];
        if after.first() != Some(&quote) {
            let column = match whole.is_empty() {
                true => Cow::Borrowed(&rest[..end]),
                false => {
                    whole.extend_from_slice(&rest[..end]);
                    Cow::Owned(whole)
                }
            };
            return Ok((column, after));
        }
        // A double quote character stands for itself.
        whole.extend_from_slice(&rest[..=end]);
        rest = &after[1..];
    }
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

fn trimmed(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

/// Parses a column number in the user's notation, such as `#2`.
fn number_of(column: &str) -> Option<usize> {
    let number = column.strip_prefix('#')?.parse().ok()?;
    (number < COLUMNS_MAX).then_some(number)
}

fn first_bytes(bytes: &dyn Bytes, most: u64) -> Result<Vec<u8>> {
    let size = bytes.size().min(most);
    let mut first = vec![0; usize::try_from(size).unwrap_or(0)];
    let read = bytes.read_at(0, &mut first);
    read.map_err(|source| Error::Io {
        what: "first lines",
        offset: 0,
        source,
    })?;
    Ok(first)
}

/// Description of a column by the user, before the header line was read.
#[derive(Clone)]
struct Parsed {
    csv: Csv,
    skip: u64,
    header: bool,
}

impl Parsed {
    /// Returns the column of a file that starts with these lines.
    fn of(self, spec: Spec<'_>, first: &[u8]) -> Result<Csv> {
        let Self {
            mut csv,
            skip,
            header,
        } = self;
        let mut rest = first.strip_prefix(MARK).unwrap_or(first);
        for _ in 0..skip {
            rest = spec.line(rest, first)?.1;
        }
        let wanted = csv.column.clone();
        if header {
            let (line, after) = spec.line(rest, first)?;
            rest = after;
            csv.index = csv.find(&wanted, line, spec)?;
            csv.lines = skip + 1;
        } else {
            let number = number_of(&wanted).ok_or_else(|| {
                spec.wrong(format!(
                    "without a header line, columns have only numbers: #0 in place of {wanted:?}"
                ))
            })?;
            csv.index = number;
            csv.lines = skip;
        }
        // A mark belongs to the first line, if that line has values.
        csv.begin = match csv.lines {
            0 => 0,
            _ => (first.len() - rest.len()) as u64,
        };
        Ok(csv)
    }
}

/// Text of the description by the user.
#[derive(Clone, Copy)]
struct Spec<'a>(&'a str);

impl Spec<'_> {
    fn wrong(self, why: String) -> Error {
        Error::Metadata {
            file: format!("csv,{}", self.0),
            why,
        }
    }

    /// Returns the first line, without its line end, and the rest of the text.
    fn line<'b>(self, text: &'b [u8], whole: &[u8]) -> Result<(&'b [u8], &'b [u8])> {
        let end = text.iter().position(|&byte| byte == b'\n');
        let end = end.ok_or_else(|| {
            let why = format!(
                "no header line ends within the first {} bytes: give header=no, or a smaller skip=",
                whole.len()
            );
            self.wrong(why)
        })?;
        Ok((
            text[..end].strip_suffix(b"\r").unwrap_or(&text[..end]),
            &text[end + 1..],
        ))
    }

    fn parse(self) -> Result<Parsed> {
        let mut csv = Csv {
            column: String::new(),
            index: 0,
            number: CsvType::Float,
            separator: Separator::Byte(b','),
            quote: Some(b'"'),
            comment: None,
            missing: Vec::new(),
            fill: None,
            begin: 0,
            lines: 0,
        };
        let (mut skip, mut header) = (0, true);
        for (place, word) in self.words()?.into_iter().enumerate() {
            if place == 0 {
                csv.column = word;
                continue;
            }
            let (key, value) = word.split_once('=').unwrap_or((&word, ""));
            match key {
                "type" => {
                    csv.number =
                        self.choice(value, &[("f8", CsvType::Float), ("i8", CsvType::Int)])?
                }
                "separator" => csv.separator = self.separator(value)?,
                "quote" if value == "none" => csv.quote = None,
                "quote" => csv.quote = Some(self.byte(value)?),
                "comment" => csv.comment = Some(self.byte(value)?),
                "missing" => csv.missing = value.split('|').map(str::to_owned).collect(),
                "fill" => {
                    csv.fill = Some(
                        value
                            .parse()
                            .map_err(|_| self.wrong(format!("fill: {value:?} is no integer")))?,
                    )
                }
                "skip" => {
                    skip = value
                        .parse()
                        .map_err(|_| self.wrong(format!("skip: {value:?} is no number of lines")))?
                }
                "header" => header = self.choice(value, &[("yes", true), ("no", false)])?,
                other => {
                    let why = format!(
                        "{other:?} is none of type, separator, quote, comment, missing, fill, skip, header"
                    );
                    return Err(self.wrong(why));
                }
            }
        }
        self.check(&csv)?;
        Ok(Parsed { csv, skip, header })
    }

    /// Checks that the options of the description are consistent.
    fn check(self, csv: &Csv) -> Result<()> {
        if csv.column.is_empty() {
            return Err(self.wrong("which column? Give its name, or its number: #0".into()));
        }
        let long = csv
            .missing
            .iter()
            .chain([&csv.column])
            .any(|text| text.len() > TEXT_MAX);
        if long || csv.missing.len() > MISSING_MAX {
            return Err(self.wrong(format!("at most {MISSING_MAX} texts of {TEXT_MAX} bytes")));
        }
        if csv.fill.is_some() && csv.number == CsvType::Float {
            return Err(self.wrong("fill is for integers: a missing double is NaN".into()));
        }
        let same = |byte: u8| csv.separator == Separator::Byte(byte);
        if csv.quote.is_some_and(same)
            || csv.comment.is_some_and(same)
            || csv.quote.is_some() && csv.quote == csv.comment
        {
            return Err(self.wrong("separator, quote and comment must be different".into()));
        }
        Ok(())
    }

    /// Returns the parts of the description between commas that are not in quotes.
    fn words(self) -> Result<Vec<String>> {
        let (mut words, mut word, mut open) = (Vec::new(), String::new(), false);
        for letter in self.0.chars() {
            match letter {
                '"' => open = !open,
                ',' if !open => words.push(std::mem::take(&mut word)),
                _ => word.push(letter),
            }
        }
        words.push(word);
        match open {
            true => Err(self.wrong("quotes are opened and not closed".into())),
            false => Ok(words),
        }
    }

    fn choice<T: Copy>(self, value: &str, all: &[(&str, T)]) -> Result<T> {
        let found = all.iter().find(|(name, _)| *name == value);
        found.map(|(_, one)| *one).ok_or_else(|| {
            let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
            self.wrong(format!("{value:?} is none of {}", names.join(", ")))
        })
    }

    fn separator(self, value: &str) -> Result<Separator> {
        match value {
            "tab" => Ok(Separator::Byte(b'\t')),
            "blanks" => Ok(Separator::Blanks),
            _ => self.byte(value).map(Separator::Byte),
        }
    }

    fn byte(self, value: &str) -> Result<u8> {
        match value.as_bytes() {
            [byte @ 0x20..=0x7e] if !byte.is_ascii_alphanumeric() => Ok(*byte),
            _ => Err(self.wrong(format!("{value:?} is no single character"))),
        }
    }
}
