//! Patterns of paths: `run-(?<n>\d+)/*.nc`. Wildcards are those of a shell, and groups in parentheses are those of regular expressions; the
//! text of a group can be used by name or number. Matching takes time linear in the path's length.

use regex::{Regex, RegexBuilder};

/// Longest pattern, in bytes.
pub const MAX_PATTERN_BYTES: usize = 1024;
/// Maximum memory of a compiled pattern, in bytes.
const COMPILED_BYTES_MAX: usize = 1 << 20;

/// Compiled pattern. It matches whole paths relative to a directory, without a slash at their beginning.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    regex: Regex,
    /// Directories with which all matching paths begin, without a slash at the end.
    directory: String,
}

/// Error of a pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct PatternError {
    /// Number of characters before the error.
    pub at: usize,
    /// Fault at this position, and advice.
    pub what: String,
}

fn wrong(at: usize, what: impl Into<String>) -> PatternError {
    let what = what.into();
    PatternError { at, what }
}

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// The fault in the pattern, and its position.
    pub fn new(text: &str) -> Result<Self, PatternError> {
        if text.is_empty() || text.len() > MAX_PATTERN_BYTES {
            let what = format!("a pattern has 1 to {MAX_PATTERN_BYTES} bytes");
            return Err(wrong(0, what));
        }
        let chars: Vec<char> = text.chars().collect();
        let mut reader = PatternParser {
            chars: &chars,
            at: 0,
            out: String::from("\\A(?s:"),
            literal: String::new(),
            is_literal: true,
        };
        reader.all()?;
        let regex = compile(&format!("{})\\z", reader.out)).map_err(|what| wrong(0, what))?;
        let directory = reader.directory();
        let mut names = regex.capture_names().flatten();
        if let Some(name) = names.find(|name| super::VARIABLES.contains(name)) {
            let what = format!("a group may not be called \"{name}\": that name is reserved");
            return Err(wrong(0, what));
        }
        let text = text.to_owned();
        Ok(Self {
            text,
            regex,
            directory,
        })
    }

    /// Returns the text of the pattern.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the directories with which all matching paths begin, without a slash at the end; empty if there are none.
    #[must_use]
    pub fn directory(&self) -> &str {
        &self.directory
    }

    /// Returns whether a path matches.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        self.regex.is_match(path)
    }

    /// Returns the names of its groups: the given names, and all numbers from 1.
    pub fn groups(&self) -> impl Iterator<Item = String> + '_ {
        let names = self.regex.capture_names().enumerate().skip(1);
        names.flat_map(|(index, name)| {
            let name = name.map(str::to_owned);
            std::iter::once(index.to_string()).chain(name)
        })
    }

    /// Returns the text of each group in a matching path, by name and number. The text of a group that did not take part is empty.
    #[must_use]
    pub fn captures(&self, path: &str) -> Option<Vec<(String, String)>> {
        let captures = self.regex.captures(path)?;
        let names = self.regex.capture_names().enumerate().skip(1);
        let values = names.flat_map(|(index, name)| {
            let value = captures.get(index).map_or("", |found| found.as_str());
            let name = name.map(|name| (name.to_owned(), value.to_owned()));
            std::iter::once((index.to_string(), value.to_owned())).chain(name)
        });
        Some(values.collect())
    }
}

/// Compiles a text in which `*` matches anything, for comparison with a whole value.
pub(super) fn stars(text: &str) -> Result<Regex, String> {
    let parts: Vec<String> = text.split('*').map(regex::escape).collect();
    compile(&format!("\\A(?s:{})\\z", parts.join(".*")))
}

/// Indentation of the drawing in an error.
const INDENT: usize = 4;

fn compile(text: &str) -> Result<Regex, String> {
    compile_at(text).map_err(|(_, what)| what)
}

/// Compiles like [`compile`]. An error contains the index of its character, or 0 if that is unknown.
fn compile_at(text: &str) -> Result<Regex, (usize, String)> {
    let mut builder = RegexBuilder::new(text);
    let regex = builder
        .size_limit(COMPILED_BYTES_MAX)
        .nest_limit(50)
        .build();
    regex.map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => {
            let what = "bytes of memory; repeat less";
            (0, format!("it needs more than {COMPILED_BYTES_MAX} {what}"))
        }
        // The error is a drawing with a mark below the position; its last line is the message.
        error => {
            let text = error.to_string();
            let last = text.lines().last().unwrap_or_default();
            let mark = text.lines().find_map(|line| {
                let at = line
                    .find('^')
                    .filter(|_| line.trim_matches([' ', '^']).is_empty())?;
                at.checked_sub(INDENT)
            });
            (
                mark.unwrap_or(0),
                advised(last.trim_start_matches("error: ")),
            )
        }
    })
}

/// Returns the message about a fault in a regular expression, with the probable intention.
fn advised(what: &str) -> String {
    match what.starts_with("repetition operator missing") {
        true => "in parentheses '*', '?' and '+' repeat the item before them, and there is none here: write [^/]* for any characters".to_owned(),
        false => what.to_owned(),
    }
}

struct PatternParser<'a> {
    chars: &'a [char],
    at: usize,
    out: String,
    /// Text before the first wildcard.
    literal: String,
    is_literal: bool,
}

impl PatternParser<'_> {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    /// Returns whether a part of the path begins here, where a wildcard matches no hidden name.
    fn begins(&self) -> bool {
        self.at == 0 || self.chars[self.at - 1] == '/'
    }

    fn all(&mut self) -> Result<(), PatternError> {
        while let Some(c) = self.peek(0) {
            let first = self.begins();
            match c {
                '*' if self.peek(1) == Some('*') => self.directories()?,
                '*' => {
                    self.out
                        .push_str(if first { "(?:[^/.][^/]*)?" } else { "[^/]*" });
                    self.wildcard(1);
                }
                '?' => {
                    self.out.push_str(if first { "[^/.]" } else { "[^/]" });
                    self.wildcard(1);
                }
                '[' => self.class(first)?,
                '(' => self.group()?,
                ')' => {
                    return Err(wrong(
                        self.at,
                        "this ')' has no '('; write \\) for the character",
                    ));
                }
                '\\' => {
                    let next = self.peek(1);
                    let next = next.ok_or_else(|| wrong(self.at, "nothing follows this '\\'"))?;
                    self.at += 1;
                    self.plain(next);
                }
                '\0' => return Err(wrong(self.at, "a path has no zero byte")),
                c => self.plain(c),
            }
        }
        Ok(())
    }

    fn plain(&mut self, c: char) {
        self.out
            .push_str(&regex::escape(c.encode_utf8(&mut [0; 4])));
        if self.is_literal {
            self.literal.push(c);
        }
        self.at += 1;
    }

    /// Records a wildcard of `chars` characters.
    fn wildcard(&mut self, chars: usize) {
        self.at += chars;
        self.is_literal = false;
    }

    /// Returns the directories before the first wildcard.
    fn directory(self) -> String {
        let directory = self.literal.rsplit_once('/');
        directory.map_or_else(String::new, |(directory, _)| directory.to_owned())
    }

    /// Reads `**`: any directories, or all files below.
    fn directories(&mut self) -> Result<(), PatternError> {
        let alone = self.begins() && matches!(self.peek(2), None | Some('/'));
        if !alone {
            let what = "'**' stands alone between slashes, as in a/**/*.nc";
            return Err(wrong(self.at, what));
        }
        self.out.push_str("(?:[^/.][^/]*/)*");
        if self.peek(2).is_none() {
            self.out.push_str("[^/.][^/]*");
        }
        let slash = usize::from(self.peek(2).is_some());
        self.wildcard(2 + slash);
        Ok(())
    }

    /// Reads `[a-z]` or `[!a-z]`: one character, never a slash.
    fn class(&mut self, first: bool) -> Result<(), PatternError> {
        let start = self.at;
        let not = matches!(self.peek(1), Some('!' | '^'));
        let mut inner = String::new();
        let mut at = start + 1 + usize::from(not);
        loop {
            let unclosed = || {
                wrong(
                    start,
                    "this '[' is never closed; write \\[ for the character",
                )
            };
            match self.chars.get(at).copied().ok_or_else(unclosed)? {
                ']' if !inner.is_empty() => break,
                '\\' => {
                    at += 1;
                    let c = self.chars.get(at).copied().ok_or_else(unclosed)?;
                    inner.push_str(&regex::escape(c.encode_utf8(&mut [0; 4])));
                }
                '-' => inner.push('-'),
                c => inner.push_str(&regex::escape(c.encode_utf8(&mut [0; 4]))),
            }
            at += 1;
        }
        let sign = if not { "^" } else { "" };
        let without = if first { "/." } else { "/" };
        let class = format!("[[{sign}{inner}]&&[^{without}]]");
        compile(&class).map_err(|what| wrong(start, what))?;
        self.out.push_str(&class);
        self.wildcard(at + 1 - start);
        Ok(())
    }

    /// Reads a group as in a regular expression, up to its closing parenthesis.
    fn group(&mut self) -> Result<(), PatternError> {
        let start = self.at;
        let (mut depth, mut class, mut at) = (0_u32, false, start);
        loop {
            let unclosed = || {
                wrong(
                    start,
                    "this '(' is never closed; write \\( for the character",
                )
            };
            match self.chars.get(at).copied().ok_or_else(unclosed)? {
                '\\' => at += 1,
                '[' => class = true,
                ']' => class = false,
                '(' if !class => depth += 1,
                ')' if !class => depth -= 1,
                _ => {}
            }
            at += 1;
            if depth == 0 {
                break;
            }
        }
        let text: String = self.chars[start..at].iter().collect();
        compile_at(&text).map_err(|(at, what)| wrong(start + at, what))?;
        if let Some(c @ ('*' | '?' | '+' | '{')) = self.chars.get(at) {
            let what = format!(
                "'{c}' after a group could mean two things: write it within, as in ((…){c})"
            );
            return Err(wrong(at, what));
        }
        // Flags within the group, such as (?x), end with it.
        self.out.push_str(&format!("(?:{text})"));
        self.wildcard(at - start);
        Ok(())
    }
}
