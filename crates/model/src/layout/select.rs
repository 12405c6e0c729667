//! Selections: the part of a version that an input consists of. A selection is a whole version, one of its parts, or byte ranges of a
//! version or part. This module only computes byte ranges.

use super::{Layout, Part, PartPosition, Segment};
use crate::id::NodeId;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

/// Maximum number of byte ranges of one input.
pub const RANGES_MAX: usize = 1024;
/// Maximum length of a record, in bytes.
pub const RECORD_BYTES_MAX: u64 = 64 << 20;
/// Maximum length of the byte sequence that ends each record, in bytes.
const RECORD_END_BYTES_MAX: usize = 64;
/// Maximum number of runs of stripes in one input of records.
const RUNS_MAX: u64 = 1 << 20;
/// Maximum length of the text that describes the decoding of values, in bytes.
pub const VALUES_BYTES_MAX: usize = 48 << 10;
/// Prefix of the text that describes the decoding of values.
const VALUES: &str = "values ";
/// Maximum number of characters that an error shows of an invalid selection.
const TEXT_SHOWN_MAX: usize = 60;

/// Selection of bytes of a version. A reader gets the selected bytes one after the other, and nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selection {
    /// Index of the selected part in [`Layout::parts`]; `None` for the whole version.
    part: Option<u32>,
    /// Begins and ends of the selected ranges, in order; no range is empty or touches the next range. `None` selects all bytes.
    ranges: Option<Arc<[(u64, u64)]>>,
    /// Set if the selection consists of the records that begin in the selected bytes, wherever the records end.
    records: Option<Records>,
    /// Set if the selection consists of the values in the selected bytes: an uninterpreted text that describes their decoding.
    values: Option<Arc<String>>,
}

/// Format of the records of a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Records {
    /// Records of this number of bytes; the last record of the file may be shorter.
    Bytes(u64),
    /// Records that end with these bytes; the last record may lack these bytes. A record begins after each occurrence of these bytes.
    Until(Arc<[u8]>),
}

impl Records {
    /// Returns records of `bytes` bytes.
    ///
    /// # Errors
    /// If the number of bytes is 0 or too large.
    pub fn of_bytes(bytes: u64) -> Result<Self, SelectionError> {
        match bytes {
            1..=RECORD_BYTES_MAX => Ok(Self::Bytes(bytes)),
            _ => Err(SelectionError::RecordBytes(bytes)),
        }
    }

    /// Returns records that end with the bytes `end`.
    ///
    /// # Errors
    /// If `end` is empty or too long.
    pub fn until(end: &[u8]) -> Result<Self, SelectionError> {
        match end.len() {
            1..=RECORD_END_BYTES_MAX => Ok(Self::Until(end.into())),
            length => Err(SelectionError::RecordEnd(length)),
        }
    }
}

/// Writes `records 8`, or `records until 0a` with the end bytes in hexadecimal.
impl fmt::Display for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "records {bytes}"),
            Self::Until(end) => {
                f.write_str("records until ")?;
                end.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

impl FromStr for Records {
    type Err = SelectionError;

    fn from_str(text: &str) -> Result<Self, SelectionError> {
        let wrong = || SelectionError::Text(text.chars().take(TEXT_SHOWN_MAX).collect());
        let Some(digits) = text.strip_prefix("until ") else {
            return Self::of_bytes(text.parse().map_err(|_| wrong())?);
        };
        let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
        Self::until(&bytes.ok_or_else(wrong)?)
    }
}

/// Error of a selection that is invalid, or that a version does not contain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// The selection has no byte range.
    #[error("no range of bytes is given")]
    NoRange,
    /// The selection has too many byte ranges.
    #[error("{0} ranges of bytes are too many for one input: at most {RANGES_MAX}")]
    Ranges(usize),
    /// A byte range of the selection is empty.
    #[error("the range of bytes that begins at {0} ends before that")]
    Empty(u64),
    /// A byte range begins before the end of the previous range.
    #[error(
        "the range of bytes that begins at {0} overlaps the one before it, or should stand before it"
    )]
    Order(u64),
    /// The number of bytes per record is invalid.
    #[error("records of {0} bytes are not allowed: give 1 to {RECORD_BYTES_MAX}")]
    RecordBytes(u64),
    /// The number of bytes that end a record is invalid.
    #[error("records can't end with {0} bytes: give 1 to {RECORD_END_BYTES_MAX}, or \"lines\"")]
    RecordEnd(usize),
    /// A record is longer than the maximum.
    #[error(
        "the record that begins before byte {0} does not end within {RECORD_BYTES_MAX} bytes: is that the end of a record?"
    )]
    RecordLength(u64),
    /// The selected part has too many stripes.
    #[error(
        "a part of {0} stripes is too many to look for its records: at most {RUNS_MAX}; stripe the file in larger units"
    )]
    Runs(u64),
    /// The text that describes the decoding of values is too long.
    #[error(
        "its chunks take {0} bytes to describe, more than the {VALUES_BYTES_MAX} that fit into the request of one task instance: use \
         per = \"chunk\", or store the variable in larger chunks or stripes"
    )]
    Values(usize),
    /// A text is not a valid selection.
    #[error(
        "`{0}` is not a range of bytes: give FIRST-LAST, such as 0-4095, several with commas between"
    )]
    Text(String),
    /// The version does not have the selected part.
    #[error("it has no part {part}: its parts are numbered from 0, and there {are} {parts}", are = if *parts == 1 { "is" } else { "are" })]
    NoPart {
        /// Index of the selected part.
        part: u32,
        /// Number of parts of the version.
        parts: usize,
    },
    /// The selection extends beyond the end of the version or part.
    #[error("bytes up to {last} are asked for, and {what} has {size}", what = if *part { "that part" } else { "it" })]
    Beyond {
        /// Last requested byte.
        last: u64,
        /// Number of bytes of the version or part.
        size: u64,
        /// Whether the selection is within a part.
        part: bool,
    },
}

impl Selection {
    /// Selection of a whole version.
    pub const WHOLE: Self = Self {
        part: None,
        ranges: None,
        records: None,
        values: None,
    };

    /// Returns the selection of all bytes of a part.
    #[must_use]
    pub fn part(part: u32) -> Self {
        Self {
            part: Some(part),
            ..Self::WHOLE
        }
    }

    /// Returns the selection of byte ranges of a version, or of one of its parts.
    ///
    /// # Errors
    /// If there are no ranges or too many, or if ranges are empty, out of order or overlap.
    pub fn ranges(part: Option<u32>, ranges: &[Range<u64>]) -> Result<Self, SelectionError> {
        if ranges.is_empty() {
            return Err(SelectionError::NoRange);
        }
        if ranges.len() > RANGES_MAX {
            return Err(SelectionError::Ranges(ranges.len()));
        }
        let mut joined: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
        for range in ranges {
            if range.is_empty() {
                return Err(SelectionError::Empty(range.start));
            }
            match joined.last_mut() {
                Some((_, end)) if range.start < *end => {
                    return Err(SelectionError::Order(range.start));
                }
                // Adjacent ranges are merged, so that equal bytes are equal selections.
                Some((_, end)) if range.start == *end => *end = range.end,
                _ => joined.push((range.start, range.end)),
            }
        }
        Ok(Self {
            part,
            ranges: Some(joined.into()),
            ..Self::WHOLE
        })
    }

    /// Returns the selection of the records that begin in the bytes of this selection.
    #[must_use]
    pub fn of_records(self, records: Option<Records>) -> Self {
        Self { records, ..self }
    }

    /// Returns the selection of the values in the bytes of this selection.
    ///
    /// # Errors
    /// If the text that describes the decoding is too long.
    pub fn of_values(self, values: Option<&str>) -> Result<Self, SelectionError> {
        match values {
            Some(text) if text.len() > VALUES_BYTES_MAX => Err(SelectionError::Values(text.len())),
            _ => Ok(Self {
                values: values.map(|text| Arc::new(text.to_owned())),
                ..self
            }),
        }
    }

    /// Returns the text that describes the decoding, if the selection consists of values.
    #[must_use]
    pub fn values(&self) -> Option<&str> {
        self.values.as_deref().map(String::as_str)
    }

    /// Returns the selection of the bytes themselves, without records and values.
    #[must_use]
    pub fn of_bytes(&self) -> Self {
        Self {
            values: None,
            ..self.clone()
        }
    }

    /// Returns the format of the records, if the selection consists of records.
    #[must_use]
    pub fn records(&self) -> Option<&Records> {
        self.records.as_ref()
    }

    /// Returns whether the whole version is selected.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        *self == Self::WHOLE
    }

    /// Returns the index of the selected part, or of the part whose bytes are selected.
    #[must_use]
    pub fn of_part(&self) -> Option<u32> {
        self.part
    }

    /// Returns the selected byte ranges; `None` for all bytes.
    pub fn byte_ranges(&self) -> Option<impl Iterator<Item = Range<u64>> + '_> {
        let ranges = self.ranges.as_ref()?;
        Some(ranges.iter().map(|&(start, end)| start..end))
    }

    /// Returns the selection of the same byte ranges in the whole version.
    #[must_use]
    pub fn of_whole(&self) -> Self {
        Self {
            part: None,
            ..self.clone()
        }
    }

    /// Returns the number of selected bytes in a version that is one object of `size` bytes. The number is smaller than the selection if
    /// the version does not have all selected bytes.
    #[must_use]
    pub fn bytes_of(&self, size: u64) -> u64 {
        match (self.part, &self.ranges) {
            (None | Some(0), None) => size,
            (None | Some(0), Some(ranges)) => {
                let length = |&(start, end): &(u64, u64)| end.min(size).saturating_sub(start);
                ranges.iter().map(length).sum()
            }
            (Some(_), _) => 0,
        }
    }

    /// Returns the ranges selected from `size` bytes.
    fn within(&self, size: u64) -> Result<Vec<Range<u64>>, SelectionError> {
        let Some(ranges) = &self.ranges else {
            return Ok(std::iter::once(0..size).collect());
        };
        match ranges.last() {
            Some(&(_, end)) if end > size => Err(SelectionError::Beyond {
                last: end - 1,
                size,
                part: self.part.is_some(),
            }),
            _ => Ok(ranges.iter().map(|&(start, end)| start..end).collect()),
        }
    }
}

/// Writes `part 2`, `bytes 0-4095,8192-8199` or both: `part 2 bytes 0-4095`. A suffix ` records 8` or ` records until 0a` selects the
/// records that begin in these bytes, and a suffix ` values …` selects the decoded values. The text of a whole version is empty.
impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        words.extend(self.part.map(|part| format!("part {part}")));
        if let Some(ranges) = &self.ranges {
            let range = |(start, end): &(u64, u64)| format!("{start}-{}", end - 1);
            let ranges: Vec<String> = ranges.iter().map(range).collect();
            words.push(format!("bytes {}", ranges.join(",")));
        }
        words.extend(self.records.as_ref().map(Records::to_string));
        words.extend(
            self.values
                .as_ref()
                .map(|values| format!("{VALUES}{values}")),
        );
        f.write_str(&words.join(" "))
    }
}

/// Parses the text that [`Display`](fmt::Display) writes.
impl FromStr for Selection {
    type Err = SelectionError;

    fn from_str(text: &str) -> Result<Self, SelectionError> {
        let wrong = || SelectionError::Text(text.chars().take(TEXT_SHOWN_MAX).collect());
        if let Some((rest, values)) = text.split_once(VALUES) {
            let bytes: Self = rest.trim_end_matches(' ').parse()?;
            return bytes.of_values(Some(values));
        }
        if let Some((rest, records)) = text.rsplit_once("records ") {
            let bytes: Self = rest.trim_end_matches(' ').parse()?;
            return Ok(bytes.of_records(Some(records.parse()?)));
        }
        let (part, rest) = match text.strip_prefix("part ") {
            None => (None, text),
            Some(rest) => {
                let (part, rest) = rest.split_once(' ').unwrap_or((rest, ""));
                (Some(part.parse().map_err(|_| wrong())?), rest)
            }
        };
        match rest.strip_prefix("bytes ") {
            Some(ranges) => Self::ranges(part, &byte_ranges(ranges)?),
            None if rest.is_empty() => Ok(Self {
                part,
                ..Self::WHOLE
            }),
            None => Err(wrong()),
        }
    }
}

/// Parses byte ranges in the notation of users: `0-4095,8192-8199`, each with its first and last byte.
///
/// # Errors
/// If the text is not a list of ranges. The conditions of [`Selection::ranges`] are not checked.
pub fn byte_ranges(text: &str) -> Result<Vec<Range<u64>>, SelectionError> {
    let wrong = || SelectionError::Text(text.chars().take(TEXT_SHOWN_MAX).collect());
    let number = |digits: &str| {
        let digits = digits.trim();
        // `parse` also accepts a sign, which is no digit.
        let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| digits.parse::<u64>().ok()).flatten()
    };
    let range = |range: &str| {
        let (first, last) = range.split_once('-').ok_or_else(wrong)?;
        let (first, last) = number(first).zip(number(last)).ok_or_else(wrong)?;
        let end = last.checked_add(1).ok_or_else(wrong)?;
        if end <= first {
            return Err(SelectionError::Empty(first));
        }
        Ok(first..end)
    };
    text.split(',').map(range).collect()
}

/// Selected bytes of a layout: their locations in parts, and their positions in the reader's input.
#[derive(Clone, Debug)]
pub struct SelectedBytes<'a> {
    layout: &'a Layout,
    part: Option<usize>,
    pub(super) ranges: Vec<Range<u64>>,
}

/// Consecutive selected bytes of a part, which the reader requests from the part's node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectedSpan {
    /// Index of the part in [`Layout::parts`].
    pub part: usize,
    /// Bytes of the part's object.
    pub bytes: Range<u64>,
    /// Start of the range to which the bytes belong: in the version or part, and in the reader's input.
    from: u64,
    to: u64,
}

impl Layout {
    /// Returns the selected bytes of the version. For records, these are the bytes in which the selected records begin.
    ///
    /// # Errors
    /// If the version does not have the selected part, or lacks some of the selected bytes.
    pub fn selected(&self, selection: &Selection) -> Result<SelectedBytes<'_>, SelectionError> {
        let (part, size) = match selection.part {
            None => (None, self.size()),
            Some(part) => {
                let index = usize::try_from(part).unwrap_or(usize::MAX);
                let parts = self.parts().len();
                let size = self.part_length(index);
                let size = size.ok_or(SelectionError::NoPart { part, parts })?;
                (Some(index), size)
            }
        };
        Ok(SelectedBytes {
            layout: self,
            part,
            ranges: selection.within(size)?,
        })
    }

    /// Returns the selected byte ranges of the file, in order. For records, these are the bytes in which the selected records begin.
    pub fn runs(&self, selection: &Selection) -> Result<Vec<Range<u64>>, SelectionError> {
        let selected = self.selected(selection)?;
        let Some(part) = selected.part else {
            return Ok(selected.ranges);
        };
        let mut runs: Vec<Range<u64>> = Vec::new();
        for range in selected.ranges {
            if let Self::Striped(striped) = self
                && striped.parts.len() > 1
                && (range.end - range.start) / striped.unit > RUNS_MAX
            {
                return Err(SelectionError::Runs(
                    (range.end - range.start) / striped.unit,
                ));
            }
            let segments = match self {
                // Bytes that an object lacks at its end are zeros.
                Self::Striped(striped) => striped.segments_of(part, range),
                Self::Whole(_) | Self::Extents(_) => self.segments_of(part, range),
            };
            for segment in segments {
                let end = segment.offset + segment.length;
                match runs.last_mut() {
                    Some(last) if last.end == segment.offset => last.end = end,
                    _ => runs.push(segment.offset..end),
                }
            }
        }
        runs.sort_unstable_by_key(|run| run.start);
        Ok(runs)
    }

    /// Returns the byte ranges of the selected records: the records that begin in the selected bytes. `begin` returns the first position at
    /// or after a byte at which a record begins, or the end of the file if there is no such position. Returns `None` if the records have
    /// exactly the boundaries of the selected bytes.
    ///
    /// # Errors
    /// Errors of `begin`, and an error if the version does not have the selected bytes.
    pub fn records<E: From<SelectionError>>(
        &self,
        selection: &Selection,
        mut begin: impl FnMut(u64) -> Result<u64, E>,
    ) -> Result<Option<SelectedBytes<'_>>, E> {
        let runs = self.runs(selection)?;
        let mut ranges: Vec<Range<u64>> = Vec::with_capacity(runs.len());
        let mut same = true;
        for run in runs {
            let found = begin(run.start)?..begin(run.end)?;
            same &= found == run;
            match ranges.last_mut() {
                _ if found.is_empty() => {}
                Some(last) if last.end == found.start => last.end = found.end,
                _ => ranges.push(found),
            }
        }
        let part = None;
        let layout = self;
        let selected = SelectedBytes {
            layout,
            part,
            ranges,
        };
        Ok((!same).then_some(selected))
    }

    /// Returns the number of bytes of the file that a part represents. Bytes that the part's object lacks are zeros.
    #[must_use]
    pub fn part_length(&self, index: usize) -> Option<u64> {
        let part: &Part = self.parts().get(index)?;
        Some(match self {
            Self::Whole(_) | Self::Extents(_) => part.size,
            Self::Striped(striped) => striped.length_of(index),
        })
    }
}

impl SelectedBytes<'_> {
    /// Returns the selected byte ranges of the version or of the part.
    #[must_use]
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// Returns the number of selected bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.ranges
            .iter()
            .map(|range| range.end - range.start)
            .sum()
    }

    /// Returns the selected bytes that objects hold, in the order of reading, except that the bytes of one part are adjacent.
    pub fn spans(&self) -> impl Iterator<Item = SelectedSpan> + '_ {
        let mut to = 0;
        let runs = self.ranges.iter().map(move |range| {
            let begin = to;
            to += range.end - range.start;
            (begin, range.clone())
        });
        runs.flat_map(move |(to, range)| {
            let spans = match self.part {
                None => self.layout.spans(range.clone()),
                Some(part) => vec![(part, range.clone())],
            };
            let span = move |(part, bytes): (usize, Range<u64>)| {
                // Bytes that an object lacks at its end are zeros.
                let has = self.layout.parts().get(part).map_or(0, |part| part.size);
                let bytes = bytes.start..bytes.end.min(has);
                let from = range.start;
                (!bytes.is_empty()).then_some(SelectedSpan {
                    part,
                    bytes,
                    from,
                    to,
                })
            };
            spans.into_iter().filter_map(span)
        })
    }

    /// Returns the positions of some bytes of a span in the reader's input: segments with offsets in the input, in the order of the part.
    pub fn places(&self, span: &SelectedSpan, bytes: Range<u64>) -> Vec<Segment> {
        let bytes = bytes.start.max(span.bytes.start)..bytes.end.min(span.bytes.end);
        if bytes.is_empty() {
            return Vec::new();
        }
        let mut segments = match self.part {
            None => self.layout.segments_of(span.part, bytes),
            Some(part) => vec![Segment {
                offset: bytes.start,
                length: bytes.end - bytes.start,
                at: Some(PartPosition {
                    part,
                    offset: bytes.start,
                }),
            }],
        };
        for segment in &mut segments {
            segment.offset = segment.offset - span.from + span.to;
        }
        segments
    }

    /// Returns the number of selected bytes per part, without parts that have no selected bytes.
    #[must_use]
    pub fn bytes_by_part(&self) -> BTreeMap<usize, u64> {
        let mut bytes: BTreeMap<usize, u64> = BTreeMap::new();
        for span in self.spans() {
            *bytes.entry(span.part).or_default() += span.bytes.end - span.bytes.start;
        }
        bytes
    }

    /// Returns the number of selected bytes per node, counting every readable replica: the bytes that a task finds on the node.
    #[must_use]
    pub fn bytes_by_node(&self) -> BTreeMap<NodeId, u64> {
        let mut all: BTreeMap<NodeId, u64> = BTreeMap::new();
        for (part, bytes) in self.bytes_by_part() {
            for replica in self.layout.parts()[part].current() {
                *all.entry(replica.node).or_default() += bytes;
            }
        }
        all
    }
}
