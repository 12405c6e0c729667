//! Names of the files of a log.

use std::fmt;
use std::io;
use std::path::Path;
use std::str::FromStr;

/// Kind of a file of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKind {
    /// All pages of the database.
    Snapshot,
    /// The pages that changed since the segment before.
    Segment,
}

impl FileKind {
    fn suffix(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshot",
            Self::Segment => "segment",
        }
    }
}

/// Name of a file of the log. Names are ordered by term, log and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileName {
    /// Number of the start of the server that wrote the file: 1 for the first.
    pub term: u64,
    /// Random id of the log. It differs between two servers that write logs of the same term by mistake.
    pub log: u32,
    /// Number of the segment in its log, or of the last segment that the snapshot includes. The first segment has the number 1.
    pub number: u64,
    /// Kind of the file.
    pub kind: FileKind,
}

impl FileName {
    /// Returns the term and the random id of the log to which the file belongs.
    #[must_use]
    pub fn log_id(&self) -> (u64, u32) {
        (self.term, self.log)
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            term,
            log,
            number,
            kind,
        } = self;
        write!(f, "{term:08}-{log:08x}-{number:012}.{}", kind.suffix())
    }
}

impl FromStr for FileName {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let parse = || {
            let (parts, suffix) = text.split_once('.')?;
            let mut parts = parts.split('-');
            let name = Self {
                term: parts.next()?.parse().ok()?,
                log: u32::from_str_radix(parts.next()?, 16).ok()?,
                number: parts.next()?.parse().ok()?,
                kind: match suffix {
                    "snapshot" => FileKind::Snapshot,
                    "segment" => FileKind::Segment,
                    _ => return None,
                },
            };
            // Each file has one name only.
            (name.to_string() == text).then_some(name)
        };
        parse().ok_or(())
    }
}

/// Returns the names of the complete files in a log's directory, without an order.
///
/// # Errors
/// The directory can't be read.
pub fn names_in(directory: &Path) -> io::Result<Vec<FileName>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let name = entry?.file_name();
        names.extend(name.to_str().and_then(|name| name.parse::<FileName>().ok()));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_written_and_no_others() {
        let name = FileName {
            term: 3,
            log: 0x9f,
            number: 17,
            kind: FileKind::Segment,
        };
        let text = "00000003-0000009f-000000000017.segment";
        assert_eq!(name.to_string(), text);
        assert_eq!(text.parse(), Ok(name));
        let long = FileName {
            term: u64::MAX,
            number: u64::MAX,
            ..name
        };
        assert_eq!(long.to_string().parse(), Ok(long));
        for other in [
            "",
            "00000003-0000009f-000000000017",
            "3-9f-17.segment",
            "00000003-0000009F-000000000017.segment",
            "00000003-0000009f-000000000017.segment.part",
            "../00000003-0000009f-000000000017.segment",
            "+0000003-0000009f-000000000017.segment",
            "00000003-0000009f-000000000017-1.segment",
        ] {
            assert_eq!(other.parse::<FileName>(), Err(()), "{other}");
        }
    }
}
