//! `grep`: lines that match a regular expression. The output is the number of these lines, the lines themselves, or their offsets.

use std::collections::BTreeMap;
use std::io::{self, Write};

use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{Searcher, SearcherBuilder, Sink, SinkMatch};
use serde::{Deserialize, Serialize};

use super::BuiltinError;
use super::table::{
    ArgumentUsage, BuiltinKernel, FoldInput, KernelConstructor, KernelOptions, ReadyKernel,
};
use crate::fold::{self, Fold, Stream};

const GREP_ARGS: &str = "-c or --count (the default), --lines (the lines that match), --offsets (the first byte of each), \
     -i (ignore case), -w (whole words), -v (lines that do not match), -F (no pattern but plain text), -j COUNT (threads that count), -e PATTERN, PATTERN";

/// Kernel `grep`, for the table of built-in kernels.
pub(super) const KERNELS: &[BuiltinKernel] = &[BuiltinKernel {
    name: "grep",
    revision: 1,
    help: "lines that match a regular expression: their number, the lines, or their offsets",
    args: &[],
    usage: Some(ArgumentUsage {
        text: GREP_ARGS,
        check: |options| Grep::parse(options).map(|_| ()),
    }),
    prepare: Some(|options, _| {
        let threads = Grep::parse(options)?.threads;
        if let Some(threads) = threads {
            options.set("threads", threads);
        }
        Ok(())
    }),
    code: KernelConstructor::Either(FoldInput::Bytes, |options| {
        let grep = Grep::parse(options)?;
        let show = grep.show;
        let search = grep.search()?;
        Ok(match show {
            GrepOutput::Count => ReadyKernel::Fold(Box::new(LineCounter {
                search,
                found: GrepState::default(),
            })),
            show => ReadyKernel::Stream(Box::new(LineWriter {
                search,
                show,
                begun: Vec::new(),
                offset: 0,
            })),
        })
    }),
}];

/// Form of the output of `grep`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum GrepOutput {
    #[default]
    Count,
    Lines,
    Offsets,
}

/// Pattern and options of `grep`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Grep {
    pattern: String,
    show: GrepOutput,
    ignore_case: bool,
    word: bool,
    invert: bool,
    fixed: bool,
    threads: Option<String>,
}

impl Grep {
    fn parse(options: &KernelOptions) -> Result<Self, BuiltinError> {
        let mut grep = Self::default();
        let mut found = None;
        let mut args = options.raw.iter();
        let mut flags_come = true;
        while let Some(arg) = args.next() {
            let pattern = match arg.as_str() {
                "--" if flags_come => {
                    flags_come = false;
                    continue;
                }
                "-e" if flags_come => args.next().ok_or_else(no_pattern)?,
                "-j" if flags_come => {
                    grep.threads = args.next().cloned();
                    continue;
                }
                flags if flags_come && flags.len() > 1 && flags.starts_with('-') => {
                    grep.flags(flags, options)?;
                    continue;
                }
                _ => arg,
            };
            if found.replace(pattern.clone()).is_some() {
                return Err(options.unknown(pattern));
            }
        }
        grep.pattern = found.ok_or_else(no_pattern)?;
        Ok(grep)
    }

    fn flags(&mut self, flags: &str, options: &KernelOptions) -> Result<(), BuiltinError> {
        match flags {
            "--count" => self.show = GrepOutput::Count,
            "--lines" => self.show = GrepOutput::Lines,
            "--offsets" => self.show = GrepOutput::Offsets,
            _ => {
                for flag in flags.chars().skip(1) {
                    match flag {
                        'c' => self.show = GrepOutput::Count,
                        'i' => self.ignore_case = true,
                        'w' => self.word = true,
                        'v' => self.invert = true,
                        'F' => self.fixed = true,
                        _ => return Err(options.unknown(flags)),
                    }
                }
            }
        }
        Ok(())
    }

    fn search(self) -> Result<LineSearch, BuiltinError> {
        let matcher = RegexMatcherBuilder::new()
            .case_insensitive(self.ignore_case)
            .word(self.word)
            .fixed_strings(self.fixed)
            .line_terminator(Some(b'\n'))
            .build(&self.pattern);
        let matcher = matcher.map_err(|error| BuiltinError::Pattern {
            reason: error.to_string(),
            pattern: self.pattern,
        })?;
        let searcher = SearcherBuilder::new()
            .line_number(false)
            .invert_match(self.invert)
            .bom_sniffing(false)
            .build();
        Ok(LineSearch { matcher, searcher })
    }
}

fn no_pattern() -> BuiltinError {
    BuiltinError::NoPattern {
        valid: GREP_ARGS.to_owned(),
    }
}

/// Searches whole lines for the pattern.
#[derive(Debug)]
struct LineSearch {
    matcher: RegexMatcher,
    searcher: Searcher,
}

impl LineSearch {
    fn each(
        &mut self,
        lines: &[u8],
        sink: impl Sink<Error = io::Error>,
    ) -> Result<(), BuiltinError> {
        let searched = self.searcher.search_slice(&self.matcher, lines, sink);
        searched.map_err(BuiltinError::Write)
    }

    fn count(&mut self, lines: &[u8]) -> Result<u64, BuiltinError> {
        let mut count = 0;
        self.each(
            lines,
            LineSink(|_: &SinkMatch<'_>| {
                count += 1;
                Ok(())
            }),
        )?;
        Ok(count)
    }
}

/// Passes each matching line to a function.
struct LineSink<F>(F);

impl<F: FnMut(&SinkMatch<'_>) -> io::Result<()>> Sink for LineSink<F> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, line: &SinkMatch<'_>) -> Result<bool, Self::Error> {
        (self.0)(line).map(|()| true)
    }
}

/// Splits bytes into the rest of the first line, whole lines, and the start of the last line; `None` if the bytes contain no newline.
fn lines(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let first = memchr::memchr(b'\n', bytes)? + 1;
    let last = memchr::memrchr(b'\n', bytes)? + 1;
    Some((&bytes[..first], &bytes[first..last], &bytes[last..]))
}

/// Counts matching lines, in any pieces of the input.
#[derive(Debug)]
struct LineCounter {
    search: LineSearch,
    found: GrepState,
}

/// Partial state of `grep`: number of matching lines, and stretches of processed bytes, by the offset of their first byte.
#[derive(Debug, Default, Serialize, Deserialize)]
struct GrepState {
    lines: u64,
    stretches: BTreeMap<u64, LineStretch>,
}

/// Lines at the two ends of a processed stretch, which may be parts of lines.
#[derive(Debug, Serialize, Deserialize)]
struct LineStretch {
    end: u64,
    /// Bytes up to and including the first newline; all bytes if there is no newline.
    head: Vec<u8>,
    /// Bytes after the last newline, if there is any.
    tail: Option<Vec<u8>>,
}

impl LineCounter {
    /// Adds a processed stretch and joins it with its neighbours.
    fn join(&mut self, mut start: u64, mut stretch: LineStretch) -> Result<(), BuiltinError> {
        if let Some(after) = self.found.stretches.remove(&stretch.end) {
            stretch = self.joined(stretch, after)?;
        }
        let before = self.found.stretches.range(..start).next_back();
        if let Some((&first, _)) = before.filter(|(_, before)| before.end == start) {
            let before = self.found.stretches.remove(&first);
            let before = before.expect("it was found just now");
            stretch = self.joined(before, stretch)?;
            start = first;
        }
        self.found.stretches.insert(start, stretch);
        Ok(())
    }

    fn joined(
        &mut self,
        before: LineStretch,
        after: LineStretch,
    ) -> Result<LineStretch, BuiltinError> {
        let (mut head, end) = (before.head, after.end);
        let Some(mut begun) = before.tail else {
            head.extend(after.head);
            let tail = after.tail;
            return Ok(LineStretch { end, head, tail });
        };
        begun.extend(after.head);
        let tail = match after.tail {
            None => begun,
            Some(tail) => {
                self.found.lines += self.search.count(&begun)?;
                tail
            }
        };
        let tail = Some(tail);
        Ok(LineStretch { end, head, tail })
    }
}

impl Fold for LineCounter {
    fn update(&mut self, offset: u64, bytes: &[u8]) -> Result<(), BuiltinError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let end = offset + bytes.len() as u64;
        let stretch = match lines(bytes) {
            None => LineStretch {
                end,
                head: bytes.to_vec(),
                tail: None,
            },
            Some((head, whole, tail)) => {
                self.found.lines += self.search.count(whole)?;
                LineStretch {
                    end,
                    head: head.to_vec(),
                    tail: Some(tail.to_vec()),
                }
            }
        };
        self.join(offset, stretch)
    }

    fn state(&self) -> Result<Vec<u8>, BuiltinError> {
        fold::encode(&self.found)
    }

    fn merge(&mut self, state: &[u8]) -> Result<(), BuiltinError> {
        let other: GrepState = fold::decode(state)?;
        self.found.lines += other.lines;
        for (start, stretch) in other.stretches {
            self.join(start, stretch)?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>, out: &mut dyn Write) -> Result<(), BuiltinError> {
        let mut lines = self.found.lines;
        for stretch in self.found.stretches.values() {
            lines += self.search.count(&stretch.head)?;
            lines += self
                .search
                .count(stretch.tail.as_deref().unwrap_or_default())?;
        }
        writeln!(out, "{lines}").map_err(BuiltinError::Write)
    }
}

/// Writes matching lines, or their offsets, as they arrive.
#[derive(Debug)]
struct LineWriter {
    search: LineSearch,
    show: GrepOutput,
    /// Start of the current line, whose end has not arrived.
    begun: Vec<u8>,
    /// Offset of the current line in the input.
    offset: u64,
}

impl LineWriter {
    /// Searches whole lines; only the last line may have no newline.
    fn search(&mut self, lines: &[u8], out: &mut dyn Write) -> Result<(), BuiltinError> {
        let (show, start) = (self.show, self.offset);
        self.offset += lines.len() as u64;
        self.search.each(
            lines,
            LineSink(|line: &SinkMatch<'_>| match show {
                GrepOutput::Offsets => writeln!(out, "{}", start + line.absolute_byte_offset()),
                _ if line.bytes().ends_with(b"\n") => out.write_all(line.bytes()),
                _ => out
                    .write_all(line.bytes())
                    .and_then(|()| out.write_all(b"\n")),
            }),
        )
    }
}

impl Stream for LineWriter {
    fn push(&mut self, bytes: &[u8], out: &mut dyn Write) -> Result<(), BuiltinError> {
        let Some((mut head, mut whole, tail)) = lines(bytes) else {
            self.begun.extend_from_slice(bytes);
            return Ok(());
        };
        if self.begun.is_empty() {
            whole = &bytes[..head.len() + whole.len()];
            head = &[];
        }
        if !head.is_empty() {
            let mut begun = std::mem::take(&mut self.begun);
            begun.extend_from_slice(head);
            self.search(&begun, out)?;
        }
        self.search(whole, out)?;
        self.begun = tail.to_vec();
        Ok(())
    }

    /// Ends the current line at the end of a file, so that offsets count within the next file.
    fn next_input(&mut self, out: &mut dyn Write) -> Result<(), BuiltinError> {
        let begun = std::mem::take(&mut self.begun);
        self.search(&begun, out)?;
        self.offset = 0;
        Ok(())
    }

    fn finish(mut self: Box<Self>, out: &mut dyn Write) -> Result<(), BuiltinError> {
        self.next_input(out)
    }
}
