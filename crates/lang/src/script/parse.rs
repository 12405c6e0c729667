//! Parser for the grammar of libconfig without `@include`. One character decides the next rule, so nothing is read twice and an error
//! always refers to the position where it was found.

use super::{MAX_DEPTH, Position, ScriptProblem, ScriptValue, Setting, SettingGroup, ValueData};
use std::collections::BTreeMap;
use winnow::combinator::opt;
use winnow::error::ParserError;
use winnow::stream::Location;
use winnow::token::{any, take_until, take_while};
use winnow::{LocatingSlice, Parser, Stateful};

/// Parses a whole text in libconfig.
///
/// # Errors
/// The first position at which `text` is not libconfig.
pub(super) fn libconfig(text: &str) -> Result<SettingGroup, (Position, ScriptProblem)> {
    let state = ParserState {
        cursor: TextCursor::new(text),
        depth: 0,
    };
    let mut input = Stateful {
        input: LocatingSlice::new(text),
        state,
    };
    settings(&mut input, None)
        .map_err(|failure| (TextCursor::new(text).at(failure.offset), failure.problem))
}

/// Returns whether libconfig can express the name of a setting.
pub(super) fn is_name(name: &str) -> bool {
    name.starts_with(starts_name) && name.chars().all(in_name)
}

type ParseInput<'s> = Stateful<LocatingSlice<&'s str>, ParserState<'s>>;
type ParseResult<T> = Result<T, ParseFailure>;

#[derive(Clone, Debug)]
struct ParserState<'s> {
    cursor: TextCursor<'s>,
    depth: u32,
}

/// Converts offsets to lines and columns. Offsets are nearly in order, so the cursor continues from the last one.
#[derive(Clone, Debug)]
struct TextCursor<'s> {
    text: &'s str,
    offset: usize,
    position: Position,
}

impl<'s> TextCursor<'s> {
    fn new(text: &'s str) -> Self {
        Self {
            text,
            offset: 0,
            position: Position::START,
        }
    }

    fn at(&mut self, offset: usize) -> Position {
        if offset < self.offset {
            *self = Self::new(self.text);
        }
        for c in self.text[self.offset..offset].chars() {
            if c == '\n' {
                self.position = Position {
                    line: self.position.line + 1,
                    column: 1,
                };
            } else {
                self.position.column += 1;
            }
        }
        self.offset = offset;
        self.position
    }
}

#[derive(Debug)]
struct ParseFailure {
    offset: usize,
    problem: ScriptProblem,
}

impl<'s> ParserError<ParseInput<'s>> for ParseFailure {
    type Inner = Self;

    fn from_input(input: &ParseInput<'s>) -> Self {
        expected(input, "something else")
    }

    fn into_inner(self) -> Result<Self::Inner, Self> {
        Ok(self)
    }
}

fn failure(offset: usize, problem: ScriptProblem) -> ParseFailure {
    ParseFailure { offset, problem }
}

fn expected(input: &ParseInput<'_>, what: impl Into<String>) -> ParseFailure {
    let problem = ScriptProblem::Expected {
        what: what.into(),
        found: found(input),
    };
    failure(input.current_token_start(), problem)
}

/// Returns the name of the next token, for errors.
fn found(input: &ParseInput<'_>) -> String {
    /// Longer words are cut in errors.
    const SHOWN_CHARS: usize = 24;
    let rest: &str = input;
    let word: String = rest
        .chars()
        .take_while(|&c| in_number(c))
        .take(SHOWN_CHARS)
        .collect();
    match rest.chars().next() {
        None => "the end of the script".to_owned(),
        Some('"') => "a string".to_owned(),
        Some(c) if word.is_empty() => format!("{c:?}"),
        Some(_) => format!("{word:?}"),
    }
}

fn next(input: &ParseInput<'_>) -> Option<char> {
    input.chars().next()
}

fn here(input: &mut ParseInput<'_>) -> Position {
    let offset = input.current_token_start();
    input.state.cursor.at(offset)
}

/// Skips white space and comments.
fn blank(input: &mut ParseInput<'_>) -> ParseResult<()> {
    loop {
        take_while(0.., [' ', '\t', '\n', '\r', '\x0c'])
            .void()
            .parse_next(input)?;
        if input.starts_with('#') || input.starts_with("//") {
            take_while(0.., |c| c != '\n').void().parse_next(input)?;
        } else if input.starts_with("/*") {
            let start = input.current_token_start();
            (take_until(2.., "*/"), "*/")
                .void()
                .parse_next(input)
                .map_err(|_: ParseFailure| failure(start, ScriptProblem::UnclosedComment))?;
        } else {
            return Ok(());
        }
    }
}

/// Parses the settings of a group up to its `}`, which is consumed, or of the whole script up to its end.
fn settings(input: &mut ParseInput<'_>, open: Option<usize>) -> ParseResult<SettingGroup> {
    let mut group = SettingGroup::default();
    let mut names = BTreeMap::new();
    let mut separated = true;
    loop {
        blank(input)?;
        match (next(input), open) {
            (None, None) => return Ok(group),
            (None, Some(open)) => return Err(unclosed(input, open, '{', '}')),
            (Some('}'), Some(_)) => {
                any.void().parse_next(input)?;
                return Ok(group);
            }
            (Some(c), _) if starts_name(c) => {}
            _ if input.starts_with("@include") => {
                return Err(failure(input.current_token_start(), ScriptProblem::Include));
            }
            _ => return Err(expected_setting(input, &group, separated, open.is_some())),
        }
        let start = input.current_token_start();
        let setting = setting(input)?;
        if let Some(&first) = names.get(&setting.name) {
            return Err(failure(
                start,
                ScriptProblem::Twice {
                    name: setting.name,
                    first,
                },
            ));
        }
        names.insert(setting.name.clone(), setting.at);
        group.settings.push(setting);
        blank(input)?;
        separated = opt(winnow::token::one_of([';', ',']))
            .parse_next(input)?
            .is_some();
    }
}

fn expected_setting(
    input: &ParseInput<'_>,
    group: &SettingGroup,
    separated: bool,
    inner: bool,
) -> ParseFailure {
    let end = if inner { "'}'" } else { "the next setting" };
    match group.settings.last() {
        Some(last) if !separated => expected(
            input,
            format!("';' or {end} after the value of \"{}\"", last.name),
        ),
        _ if inner => expected(input, "the name of a setting or '}'"),
        _ => expected(input, "the name of a setting"),
    }
}

fn unclosed(input: &ParseInput<'_>, offset: usize, open: char, close: char) -> ParseFailure {
    failure(
        offset,
        ScriptProblem::Unclosed {
            open,
            close,
            found: found(input),
        },
    )
}

fn starts_name(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '*'
}

fn in_name(c: char) -> bool {
    // Dots are an extension: names of resources contain them.
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '*' | '.')
}

fn setting(input: &mut ParseInput<'_>) -> ParseResult<Setting> {
    let at = here(input);
    let name: &str = take_while(1.., in_name).parse_next(input)?;
    blank(input)?;
    if opt(winnow::token::one_of(['=', ':']))
        .parse_next(input)?
        .is_none()
    {
        return Err(expected(input, format!("'=' after the name \"{name}\"")));
    }
    blank(input)?;
    let value = value(input, &|| format!("a value for \"{name}\""))?;
    Ok(Setting {
        name: name.to_owned(),
        at,
        value,
    })
}

fn value(input: &mut ParseInput<'_>, what: &dyn Fn() -> String) -> ParseResult<ScriptValue> {
    let at = here(input);
    let data = match next(input) {
        Some('"') => ValueData::Text(text(input)?),
        Some('{') => nested(input, |input, open| {
            settings(input, Some(open)).map(ValueData::Group)
        })?,
        Some('(') => nested(input, |input, open| {
            elements(input, open, '(', ')').map(ValueData::List)
        })?,
        Some('[') => nested(input, array)?,
        Some(c) if c.is_ascii_digit() || matches!(c, '+' | '-' | '.') => number(input)?,
        Some(c) if c.is_ascii_alphabetic() => boolean(input, what)?,
        _ => return Err(expected(input, what())),
    };
    Ok(ScriptValue { data, at })
}

/// Parses an opening bracket and its content, one level deeper.
fn nested<'s>(
    input: &mut ParseInput<'s>,
    rest: impl FnOnce(&mut ParseInput<'s>, usize) -> ParseResult<ValueData>,
) -> ParseResult<ValueData> {
    let open = input.current_token_start();
    if input.state.depth == MAX_DEPTH {
        return Err(failure(open, ScriptProblem::Depth));
    }
    any.void().parse_next(input)?;
    input.state.depth += 1;
    let data = rest(input, open)?;
    input.state.depth -= 1;
    Ok(data)
}

/// Parses the values between brackets, separated by commas; a comma after the last value is allowed.
fn elements(
    input: &mut ParseInput<'_>,
    start: usize,
    open: char,
    close: char,
) -> ParseResult<Vec<ScriptValue>> {
    let mut values = Vec::new();
    let mut separated = true;
    loop {
        blank(input)?;
        match next(input) {
            None => return Err(unclosed(input, start, open, close)),
            Some(c) if c == close => {
                any.void().parse_next(input)?;
                return Ok(values);
            }
            // A name or another closing bracket is an error here: the closing bracket is missing.
            Some(';' | ')' | ']' | '}' | '=' | ':') => {
                return Err(unclosed(input, start, open, close));
            }
            Some(_) if !separated => {
                return Err(expected(input, format!("',' or '{close}' after the value")));
            }
            Some(_) => {}
        }
        values.push(value(input, &|| format!("a value or '{close}'"))?);
        blank(input)?;
        separated = opt(',').parse_next(input)?.is_some();
    }
}

fn array(input: &mut ParseInput<'_>, open: usize) -> ParseResult<ValueData> {
    let before = input.state.cursor.clone();
    let values = elements(input, open, '[', ']')?;
    let Some(first) = values.first() else {
        return Ok(ValueData::Array(values));
    };
    let expected = if first.data.is_plain() {
        first.data.kind()
    } else {
        "a plain value"
    };
    let wrong = values
        .iter()
        .find(|value| !value.data.is_plain() || value.data.kind() != expected);
    match wrong {
        None => Ok(ValueData::Array(values)),
        Some(value) => {
            let problem = ScriptProblem::Mixed {
                expected,
                found: value.data.kind(),
            };
            Err(failure(offset_of(before, value.at), problem))
        }
    }
}

/// Returns the offset of a position at or after the cursor's.
fn offset_of(mut cursor: TextCursor<'_>, at: Position) -> usize {
    let mut offset = cursor.offset;
    for c in cursor.text[offset..].chars() {
        if cursor.at(offset) >= at {
            break;
        }
        offset += c.len_utf8();
    }
    offset
}

fn boolean(input: &mut ParseInput<'_>, what: &dyn Fn() -> String) -> ParseResult<ValueData> {
    let word = input.split(|c| !in_name(c)).next().unwrap_or_default();
    let value = if word.eq_ignore_ascii_case("true") {
        true
    } else if word.eq_ignore_ascii_case("false") {
        false
    } else {
        return Err(expected(input, format!("{} (text needs quotes)", what())));
    };
    take_while(1.., in_name).void().parse_next(input)?;
    Ok(ValueData::Boolean(value))
}

/// Returns whether a character can be part of a number; the number is checked after it is cut out.
fn in_number(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '_')
}

fn number(input: &mut ParseInput<'_>) -> ParseResult<ValueData> {
    let start = input.current_token_start();
    let word: &str = take_while(1.., in_number).parse_next(input)?;
    integer(word)
        .or_else(|| float(word))
        .unwrap_or_else(|| Err(ScriptProblem::Number(word.to_owned())))
        .map_err(|problem| failure(start, problem))
}

/// Parses an integer; `None` if the word is no integer at all.
fn integer(word: &str) -> Option<Result<ValueData, ScriptProblem>> {
    let range = || ScriptProblem::Range(word.to_owned());
    let bare = word
        .strip_suffix("LL")
        .or_else(|| word.strip_suffix('L'))
        .unwrap_or(word);
    let (radix, digits) = match bare.get(..2).map(str::to_ascii_lowercase).as_deref() {
        Some("0x") => (16, &bare[2..]),
        Some("0o" | "0q") => (8, &bare[2..]),
        Some("0b") => (2, &bare[2..]),
        _ => (10, bare.strip_prefix(['+', '-']).unwrap_or(bare)),
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    let number = if radix == 10 {
        bare.parse().map_err(|_| range())
    } else {
        i64::from_str_radix(digits, radix).map_err(|_| range())
    };
    Some(number.map(ValueData::Integer))
}

/// Parses a float; `None` if the word is no float.
fn float(word: &str) -> Option<Result<ValueData, ScriptProblem>> {
    let plain = |c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E');
    if !word.chars().all(plain) {
        return None;
    }
    let number: f64 = word.parse().ok()?;
    Some(if number.is_finite() {
        Ok(ValueData::Float(number))
    } else {
        Err(ScriptProblem::Range(word.to_owned()))
    })
}

/// Parses one or more adjacent strings.
fn text(input: &mut ParseInput<'_>) -> ParseResult<String> {
    let mut all = String::new();
    while next(input) == Some('"') {
        one_text(input, &mut all)?;
        blank(input)?;
    }
    Ok(all)
}

fn one_text(input: &mut ParseInput<'_>, all: &mut String) -> ParseResult<()> {
    let start = input.current_token_start();
    any.void().parse_next(input)?;
    loop {
        let plain: &str = take_while(0.., |c| c != '"' && c != '\\').parse_next(input)?;
        all.push_str(plain);
        let offset = input.current_token_start();
        match opt(any).parse_next(input)? {
            None => return Err(failure(start, ScriptProblem::UnclosedText)),
            Some('"') => return Ok(()),
            Some(_) => escape(input, offset, all)?,
        }
    }
}

/// Parses the character after a backslash. As in libconfig, a backslash before any other character stands for itself.
fn escape(input: &mut ParseInput<'_>, offset: usize, all: &mut String) -> ParseResult<()> {
    let plain = match next(input) {
        Some('n') => '\n',
        Some('t') => '\t',
        Some('r') => '\r',
        Some('f') => '\x0c',
        Some('a') => '\x07',
        Some('b') => '\x08',
        Some('v') => '\x0b',
        Some(c @ ('"' | '\\')) => c,
        Some('x') => {
            let code = input
                .get(1..3)
                .filter(|code| code.chars().all(|c| c.is_ascii_hexdigit()));
            let code = code.and_then(|code| u8::from_str_radix(code, 16).ok());
            let c = code
                .filter(u8::is_ascii)
                .ok_or_else(|| failure(offset, ScriptProblem::Escape))?;
            (any, any).void().parse_next(input)?;
            char::from(c)
        }
        _ => {
            all.push('\\');
            return Ok(());
        }
    };
    any.void().parse_next(input)?;
    all.push(plain);
    Ok(())
}
