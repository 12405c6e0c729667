//! Patterns of paths and names, in the one dialect of globs: `*`, `?`, `[a-z]`, `[!a-z]`, `**`, `\*`, and in rules and `foreach` named
//! wildcards such as `{variable}`. A [`Pattern`] is a glob or a regular expression; matching takes time linear in the path's length.

use crate::substitute;
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
    /// Names of its wildcards or groups, and the numbers of the groups in `regex`.
    names: Vec<(String, usize)>,
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
    /// Compiles a glob; braces in it are literal.
    ///
    /// # Errors
    /// The fault in the glob, and its position.
    pub fn new(text: &str) -> Result<Self, PatternError> {
        Self::glob(text, false)
    }

    /// Compiles a glob with named wildcards: `{name}` matches one or more characters except a slash, as few as possible.
    ///
    /// # Errors
    /// The fault in the glob, and its position.
    pub fn with_names(text: &str) -> Result<Self, PatternError> {
        Self::glob(text, true)
    }

    fn glob(text: &str, named: bool) -> Result<Self, PatternError> {
        check_length(text)?;
        let chars: Vec<char> = text.chars().collect();
        let mut parser = GlobParser {
            chars: &chars,
            named,
            at: 0,
            out: String::from("\\A(?s:"),
            names: Vec::new(),
            literal: String::new(),
            is_literal: true,
        };
        parser.all()?;
        let regex = compile(&format!("{})\\z", parser.out)).map_err(|(_, what)| wrong(0, what))?;
        let names = std::mem::take(&mut parser.names);
        Ok(Self {
            text: text.to_owned(),
            regex,
            names: names.into_iter().zip(1..).collect(),
            directory: parser.directory(),
        })
    }

    /// Compiles a regular expression. Its named groups have names; groups without names only group.
    ///
    /// # Errors
    /// The fault in the expression, and its position.
    pub fn of_regex(text: &str) -> Result<Self, PatternError> {
        check_length(text)?;
        // Alone first: positions of errors are those in the text, and a bracket can't end the group around the text.
        compile(text).map_err(|(at, what)| wrong(at, what))?;
        let regex = compile(&format!("\\A(?:{text})\\z"));
        // A comment at the end hides the bracket.
        let regex = regex.or_else(|_| compile(&format!("\\A(?:{text}\n)\\z")));
        let regex = regex.map_err(|(_, what)| wrong(0, what))?;
        let groups = regex.capture_names().enumerate();
        let groups = groups.filter_map(|(index, name)| Some((name?.to_owned(), index)));
        let names: Vec<_> = groups.collect();
        if let Some((name, _)) = names.iter().find(|(name, _)| !substitute::is_name(name)) {
            let what =
                format!("{name:?} can't be the name of a group: use letters, digits and '_'");
            return Err(wrong(0, what));
        }
        Ok(Self {
            text: text.to_owned(),
            regex,
            names,
            directory: String::new(),
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

    /// Returns the names of its wildcards or groups, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|(name, _)| name.as_str())
    }

    /// Returns the text of each named wildcard or group in a matching path. The text of a group that did not take part is empty.
    #[must_use]
    pub fn captures(&self, path: &str) -> Option<Vec<(String, String)>> {
        let captures = self.regex.captures(path)?;
        let value = |index| captures.get(index).map_or("", |found| found.as_str());
        let named = self.names.iter();
        let named = named.map(|(name, index)| (name.clone(), value(*index).to_owned()));
        Some(named.collect())
    }
}

fn check_length(text: &str) -> Result<(), PatternError> {
    match text.is_empty() || text.len() > MAX_PATTERN_BYTES {
        true => {
            let what = format!("a pattern has 1 to {MAX_PATTERN_BYTES} bytes");
            Err(wrong(0, what))
        }
        false => Ok(()),
    }
}

/// Returns a name as a glob that matches only this name.
#[must_use]
pub fn escaped(name: &str) -> String {
    let special = |c: char| matches!(c, '*' | '?' | '[' | '{' | '\\');
    let one = |c: char| special(c).then_some('\\').into_iter().chain([c]);
    name.chars().flat_map(one).collect()
}

/// Returns whether a text may be a glob, or has characters that a glob escapes.
#[must_use]
pub fn is_special(text: &str) -> bool {
    text.contains(['*', '?', '[', '\\'])
}

/// Returns the only name that a glob without named wildcards matches; `None` if it has wildcards.
#[must_use]
pub fn literal(text: &str) -> Option<String> {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '*' | '?' | '[' => return None,
            '\\' => plain.push(chars.next()?),
            c => plain.push(c),
        }
    }
    Some(plain)
}

/// Indentation of the drawing in an error.
const INDENT: usize = 4;

/// Compiles a regular expression. An error contains the index of its character, or 0 if that is unknown.
fn compile(text: &str) -> Result<Regex, (usize, String)> {
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
            let what = advised(last.trim_start_matches("error: "));
            (mark.unwrap_or(0), what)
        }
    })
}

/// Returns the message about a fault in a regular expression, with the probable intention.
fn advised(what: &str) -> String {
    match what.starts_with("repetition operator missing") {
        true => "in a regular expression '*', '?' and '+' repeat the item before them, and there is none here: write [^/]* for any characters, or set \"files\" to a glob".to_owned(),
        false => what.to_owned(),
    }
}

struct GlobParser<'a> {
    chars: &'a [char],
    /// Whether `{name}` is a wildcard.
    named: bool,
    at: usize,
    out: String,
    names: Vec<String>,
    /// Text before the first wildcard.
    literal: String,
    is_literal: bool,
}

impl GlobParser<'_> {
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
                '{' if self.named => self.name(first)?,
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

    /// Reads `{name}`: one or more characters, never a slash.
    fn name(&mut self, first: bool) -> Result<(), PatternError> {
        let start = self.at;
        let inner: String = self.chars[start + 1..]
            .iter()
            .take_while(|c| **c != '}')
            .collect();
        let length = inner.chars().count();
        if start + 1 + length == self.chars.len() || !substitute::is_name(&inner) {
            let what = "braces hold a name of letters, digits, '_' and '-', with no digit first, as in {x}; write \\{ for the character";
            return Err(wrong(start, what));
        }
        if self.names.contains(&inner) {
            let what = format!("{{{inner}}} may stand once");
            return Err(wrong(start, what));
        }
        if !self.names.is_empty() && self.out.ends_with("?)") {
            return Err(wrong(start, "two names need text between them"));
        }
        self.names.push(inner);
        self.out
            .push_str(if first { "([^/.][^/]*?)" } else { "([^/]+?)" });
        self.wildcard(length + 2);
        Ok(())
    }

    /// Reads `[a-z]` or `[!a-z]`: one character, never a slash.
    fn class(&mut self, first: bool) -> Result<(), PatternError> {
        let start = self.at;
        let not = self.peek(1) == Some('!');
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
        compile(&class).map_err(|(_, what)| wrong(start, what))?;
        self.out.push_str(&class);
        self.wildcard(at + 1 - start);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
