//! The text kernels: `wordcount` and `grep`.

use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{Searcher, SearcherBuilder, Sink, SinkMatch};

use super::BuiltinError;
use super::series::each;
use super::table::{Code, Kernel, Options};
use crate::loops::simd::{self, Level, Pass};

/// This group's part of the table.
pub(super) const KERNELS: &[Kernel] = &[
    Kernel {
        name: "grep",
        revision: 1,
        help: "lines that match a regular expression",
        args: &[],
        usage: Some(GREP_ARGS),
        code: Code::Whole(|options, inputs, out| {
            let count = Grep::parse(options)?.count(inputs)?;
            writeln!(out, "{count}").map_err(BuiltinError::Write)
        }),
    },
    Kernel {
        name: "wordcount",
        revision: 1,
        help: "lines, words and bytes, as wc counts them",
        args: &[],
        usage: None,
        code: Code::Whole(|_, inputs, out| {
            let [lines, words, bytes] = wordcount(inputs, Level::best())?;
            writeln!(out, "{lines} {words} {bytes}").map_err(BuiltinError::Write)
        }),
    },
];

/// Arguments of `grep`.
pub(crate) const GREP_ARGS: &str = "-c (always on), -i (ignore case), -w (whole words), -v (lines that do not match), -F (no pattern but plain \
     text), -e PATTERN, PATTERN";

/// Bytes that are counted before the narrow counters of [`Count`] could overflow.
const PIECE: usize = 255 * LANES;

/// Counters of one byte each.
const LANES: usize = 64;

/// Lines, words and bytes of all inputs, as `wc` counts them: a line is a newline, a word is a longest run
/// of bytes that are not white space. No word spans files.
pub(crate) fn wordcount(inputs: &[String], level: Level) -> Result<[u64; 3], BuiltinError> {
    let mut all = [0; 3];
    each(inputs, |file| {
        let mut before = b' ';
        for piece in file.chunks(PIECE) {
            let (lines, words) = simd::run(level, Count { before, piece });
            before = piece.last().copied().unwrap_or(b' ');
            all[0] += lines;
            all[1] += words;
        }
        all[2] += file.len() as u64;
        Ok(())
    })?;
    Ok(all)
}

/// Newlines in a piece, and words that begin in it.
struct Count<'a> {
    before: u8,
    piece: &'a [u8],
}

impl Pass for Count<'_> {
    type Output = (u64, u64);

    #[inline(always)]
    fn run(self) -> (u64, u64) {
        let (mut lines, mut words) = ([0_u8; LANES], [0_u8; LANES]);
        let Some((first, rest)) = self.piece.split_first() else {
            return (0, 0);
        };
        lines[0] += u8::from(*first == b'\n');
        words[0] += u8::from(!white(*first) & white(self.before));
        // Two views of the same bytes, one apart, so that each byte meets the one before it.
        let mut now = rest.chunks_exact(LANES);
        let mut before = self.piece.chunks_exact(LANES);
        for (now, before) in now.by_ref().zip(before.by_ref()) {
            for lane in 0..LANES {
                lines[lane] += u8::from(now[lane] == b'\n');
                words[lane] += u8::from(!white(now[lane])) & u8::from(white(before[lane]));
            }
        }
        let rest = now.remainder();
        let before = &self.piece[self.piece.len() - 1 - rest.len()..];
        let mut count = (0, 0);
        for (now, before) in rest.iter().zip(before) {
            count.0 += u64::from(*now == b'\n');
            count.1 += u64::from(!white(*now) & white(*before));
        }
        let sum = |lanes: [u8; LANES]| lanes.into_iter().map(u64::from).sum::<u64>();
        (count.0 + sum(lines), count.1 + sum(words))
    }
}

/// White space of the C locale.
#[inline(always)]
fn white(byte: u8) -> bool {
    (byte == b' ') | (byte.wrapping_sub(b'\t') < 5)
}

/// What `grep` looks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grep {
    pattern: Option<String>,
    ignore_case: bool,
    word: bool,
    invert: bool,
    fixed: bool,
}

impl Grep {
    /// Reads the arguments. Only counting is offered, so `-c` may be given or not.
    pub(crate) fn parse(options: &Options) -> Result<Self, BuiltinError> {
        let mut grep = Self::default();
        let mut args = options.raw.iter();
        let mut flags_come = true;
        while let Some(arg) = args.next() {
            let pattern = match arg.as_str() {
                "--" if flags_come => {
                    flags_come = false;
                    continue;
                }
                "-e" if flags_come => args.next().ok_or_else(no_pattern)?,
                flags if flags_come && flags.len() > 1 && flags.starts_with('-') => {
                    grep.flags(flags, options)?;
                    continue;
                }
                _ => arg,
            };
            if grep.pattern.replace(pattern.clone()).is_some() {
                return Err(options.unknown(pattern));
            }
        }
        if grep.pattern.is_some() {
            Ok(grep)
        } else {
            Err(no_pattern())
        }
    }

    fn flags(&mut self, flags: &str, options: &Options) -> Result<(), BuiltinError> {
        for flag in flags[1..].chars() {
            match flag {
                'c' => {}
                'i' => self.ignore_case = true,
                'w' => self.word = true,
                'v' => self.invert = true,
                'F' => self.fixed = true,
                _ => {
                    return Err(options.unknown(flags));
                }
            }
        }
        Ok(())
    }

    /// Lines of all inputs that match.
    pub(crate) fn count(&self, inputs: &[String]) -> Result<u64, BuiltinError> {
        let pattern = self.pattern.as_deref().ok_or_else(no_pattern)?;
        let matcher = RegexMatcherBuilder::new()
            .case_insensitive(self.ignore_case)
            .word(self.word)
            .fixed_strings(self.fixed)
            .line_terminator(Some(b'\n'))
            .build(pattern)
            .map_err(|error| BuiltinError::Pattern {
                pattern: pattern.to_owned(),
                reason: error.to_string(),
            })?;
        let mut searcher = SearcherBuilder::new()
            .line_number(false)
            .invert_match(self.invert)
            .bom_sniffing(false)
            .build();
        let mut lines = Lines(0);
        each(inputs, |file| {
            let searched: Result<(), std::io::Error> =
                searcher.search_slice::<&RegexMatcher, _>(&matcher, file, &mut lines);
            searched.map_err(BuiltinError::Write)
        })?;
        Ok(lines.0)
    }
}

fn no_pattern() -> BuiltinError {
    BuiltinError::NoPattern {
        valid: GREP_ARGS.to_owned(),
    }
}

/// Counts matching lines.
struct Lines(u64);

impl Sink for Lines {
    type Error = std::io::Error;

    fn matched(&mut self, _: &Searcher, _: &SinkMatch<'_>) -> Result<bool, Self::Error> {
        self.0 += 1;
        Ok(true)
    }
}
