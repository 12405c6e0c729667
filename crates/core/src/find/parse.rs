//! Parser of search expressions.

use super::{
    COMPILED_BYTES_MAX, CompareOperator, ComparedValue, DEPTH_MAX, Expr, FindError, SearchTime,
    TESTS_MAX, TEXT_BYTES_MAX, Test,
};

/// Words that are no coordinates.
const TEXT_FIELDS: [&str; 6] = [
    "var",
    "units",
    "standard_name",
    "long_name",
    "type",
    "format",
];

/// Parses an expression.
///
/// # Errors
/// The fault in the expression, and its position.
pub fn read(text: &str) -> Result<Expr, FindError> {
    if text.len() > TEXT_BYTES_MAX {
        let what = format!("an expression has at most {TEXT_BYTES_MAX} bytes");
        return Err(wrong(0, what));
    }
    let mut reader = FindParser {
        tokens: tokens(text)?,
        at: 0,
        end: text.chars().count(),
        depth: 0,
        tests: 0,
    };
    let expr = reader.any()?;
    match reader.peek() {
        None => Ok(expr),
        Some(FindToken::Close) => Err(reader.here("this ')' has no '('")),
        Some(_) => Err(reader.here("\"and\" or \"or\" is missing before this")),
    }
}

fn wrong(at: usize, what: impl Into<String>) -> FindError {
    let what = what.into();
    FindError { at, what }
}

#[derive(Clone, Debug, PartialEq)]
enum FindToken {
    Open,
    Close,
    Compare(CompareOperator),
    /// Word, and whether it was in quotes.
    Word(String, bool),
}

fn tokens(text: &str) -> Result<Vec<(usize, FindToken)>, FindError> {
    let chars: Vec<char> = text.chars().collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&c) = chars.get(at) {
        let begin = at;
        at += 1;
        let equals = chars.get(at) == Some(&'=');
        let token = match c {
            c if c.is_whitespace() => continue,
            '\0' => return Err(wrong(begin, "a zero byte can't be looked for")),
            '(' => FindToken::Open,
            ')' => FindToken::Close,
            '~' => FindToken::Compare(CompareOperator::Matches),
            '=' | '!' | '<' | '>' => {
                at += usize::from(equals);
                FindToken::Compare(match (c, equals) {
                    ('=', _) => CompareOperator::Equal,
                    ('!', true) => CompareOperator::Unequal,
                    ('<', false) => CompareOperator::Less,
                    ('<', true) => CompareOperator::AtMost,
                    ('>', false) => CompareOperator::Greater,
                    ('>', true) => CompareOperator::AtLeast,
                    _ => {
                        return Err(wrong(
                            begin,
                            "'!' stands before '=': for the opposite of a condition write \"not\"",
                        ));
                    }
                })
            }
            '"' | '\'' => {
                let (word, next) = quoted(&chars, begin)?;
                at = next;
                FindToken::Word(word, true)
            }
            _ => {
                let ends = |c: &char| c.is_whitespace() || "()=!<>~\"'\0".contains(*c);
                let rest = chars[begin..].iter().position(ends);
                at = rest.map_or(chars.len(), |length| begin + length);
                FindToken::Word(chars[begin..at].iter().collect(), false)
            }
        };
        tokens.push((begin, token));
    }
    Ok(tokens)
}

/// Returns the text up to the closing quote, and the position after it. A backslash escapes a quote or itself, and is a plain character
/// otherwise.
fn quoted(chars: &[char], begin: usize) -> Result<(String, usize), FindError> {
    let (quote, mut at, mut word) = (chars[begin], begin + 1, String::new());
    loop {
        match (chars.get(at), chars.get(at + 1)) {
            (None, _) => return Err(wrong(begin, "this quote is never closed")),
            (Some('\0'), _) => return Err(wrong(at, "a zero byte can't be looked for")),
            (Some('\\'), Some(&next)) if next == quote || next == '\\' => {
                // A backslash that a regular expression must see as escaped stays escaped.
                word.push_str(if next == '\\' { "\\\\" } else { "" });
                if next == quote {
                    word.push(quote);
                }
                at += 2;
            }
            (Some(&c), _) if c == quote => return Ok((word, at + 1)),
            (Some(&c), _) => {
                word.push(c);
                at += 1;
            }
        }
    }
}

struct FindParser {
    tokens: Vec<(usize, FindToken)>,
    at: usize,
    /// Number of characters of the whole text.
    end: usize,
    depth: usize,
    tests: usize,
}

impl FindParser {
    fn peek(&self) -> Option<&FindToken> {
        self.tokens.get(self.at).map(|(_, token)| token)
    }

    fn place(&self) -> usize {
        self.tokens.get(self.at).map_or(self.end, |(at, _)| *at)
    }

    fn here(&self, what: impl Into<String>) -> FindError {
        wrong(self.place(), what)
    }

    /// Skips a word of the grammar if it is next, and returns whether it was.
    fn keyword(&mut self, word: &str) -> bool {
        let is = matches!(self.peek(), Some(FindToken::Word(next, false)) if next.eq_ignore_ascii_case(word));
        self.at += usize::from(is);
        is
    }

    fn any(&mut self) -> Result<Expr, FindError> {
        let mut all = vec![self.all()?];
        while self.keyword("or") {
            all.push(self.all()?);
        }
        Ok(one_or(all, Expr::Any))
    }

    fn all(&mut self) -> Result<Expr, FindError> {
        let mut all = vec![self.single()?];
        while self.keyword("and") {
            all.push(self.single()?);
        }
        Ok(one_or(all, Expr::All))
    }

    fn single(&mut self) -> Result<Expr, FindError> {
        let begin = self.place();
        let not = self.keyword("not");
        if !not && self.peek() != Some(&FindToken::Open) {
            return self.test().map(Expr::Test);
        }
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            let what = format!("more than {DEPTH_MAX} nested parentheses and \"not\"s");
            return Err(wrong(begin, what));
        }
        let expr = if not {
            Expr::Not(Box::new(self.single()?))
        } else {
            self.at += 1;
            let inner = self.any()?;
            match self.peek() {
                Some(FindToken::Close) => self.at += 1,
                None => return Err(wrong(begin, "this '(' is never closed")),
                Some(_) => return Err(self.here("\"and\", \"or\" or ')' is missing before this")),
            }
            inner
        };
        self.depth -= 1;
        Ok(expr)
    }

    fn test(&mut self) -> Result<Test, FindError> {
        let begin = self.place();
        self.tests += 1;
        if self.tests > TESTS_MAX {
            return Err(wrong(begin, format!("more than {TESTS_MAX} conditions")));
        }
        let wanted = "a condition is expected here, as in var = tas";
        let name = match self.peek() {
            Some(FindToken::Word(word, _)) => word.clone(),
            _ => return Err(self.here(wanted)),
        };
        self.at += 1;
        let Some(&FindToken::Compare(compare)) = self.peek() else {
            let what =
                format!("after {name} one of = != < <= > >= ~ is missing, as in var = {name}");
            return Err(self.here(what));
        };
        self.at += 1;
        let place = self.place();
        let Some(FindToken::Word(value, _)) = self.peek() else {
            let what = format!(
                "{name} {} needs a value after it; put a value with special characters or spaces in quotes",
                compare.sign()
            );
            return Err(wrong(place, what));
        };
        let value = value.clone();
        self.at += 1;
        condition((begin, &name), compare, (place, value))
    }
}

fn one_or(mut all: Vec<Expr>, several: impl FnOnce(Vec<Expr>) -> Expr) -> Expr {
    match (all.len(), all.pop()) {
        (1, Some(one)) => one,
        (_, last) => {
            all.extend(last);
            several(all)
        }
    }
}

fn condition(
    (begin, name): (usize, &str),
    compare: CompareOperator,
    (place, text): (usize, String),
) -> Result<Test, FindError> {
    use CompareOperator::{Equal, Matches, Unequal};
    let only = |allowed: &[CompareOperator]| match allowed.contains(&compare) {
        true => Ok(()),
        false => {
            let signs: Vec<&str> = allowed.iter().map(|sign| sign.sign()).collect();
            let signs = signs.join(" ");
            Err(wrong(
                begin,
                format!("{name} is compared by one of {signs}"),
            ))
        }
    };
    let order = || match compare {
        Matches => Err(wrong(
            begin,
            format!("{name} is not a text: it is compared by one of = != < <= > >="),
        )),
        _ => Ok(()),
    };
    match name {
        "name" => {
            only(&[Equal, Unequal, Matches])?;
            Ok(Test::Name { compare, text })
        }
        "size" => {
            order()?;
            let bytes = crate::job::size(&text).ok_or_else(|| {
                wrong(place, format!("{text} is not a size: give bytes, or a number with kB, MB, GB, TB or KiB, MiB, GiB, TiB"))
            })?;
            Ok(Test::Size { compare, bytes })
        }
        "mtime" => {
            order()?;
            let moment = SearchTime::read(&text).ok_or_else(|| no_time(place, &text))?;
            Ok(Test::Modified { compare, moment })
        }
        "owner" | "made-by" | "from" => {
            only(&[Equal])?;
            Ok(match name {
                "owner" => Test::Owner { user: text },
                "made-by" => Test::MadeBy { name: text },
                _ => Test::From { path: text },
            })
        }
        _ if TEXT_FIELDS.contains(&name)
            || name.starts_with("dim.")
            || name.starts_with("attr.") =>
        {
            let value = value(compare, (place, text))?;
            let key = name.to_owned();
            Ok(Test::Text {
                key,
                compare,
                value,
            })
        }
        _ if name.starts_with("user.") => {
            let value = value(compare, (place, text))?;
            let name = name.to_owned();
            Ok(Test::Attribute {
                name,
                compare,
                value,
            })
        }
        _ => {
            order()?;
            coordinate(name, compare, (place, &text))
        }
    }
}

fn coordinate(
    name: &str,
    compare: CompareOperator,
    (place, text): (usize, &str),
) -> Result<Test, FindError> {
    let (number, moment) = (number(text), SearchTime::read(text));
    if number.is_none() && moment.is_none() {
        let what = format!(
            "{name} is taken for a coordinate, and {text} is neither a number nor a time; other conditions are on var, units, \
             standard_name, long_name, type, format, dim.NAME, attr.NAME, user.NAME, name, size, owner, mtime, made-by, from"
        );
        return Err(wrong(place, what));
    }
    Ok(Test::Coordinate {
        name: name.to_owned(),
        compare,
        number,
        moment,
    })
}

fn no_time(place: usize, text: &str) -> FindError {
    wrong(
        place,
        format!("{text} is not a time: write 2026, 2026-01, 2026-01-31 or 2026-01-31T12:30"),
    )
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

/// Converts the value of a property that is text or a number.
fn value(
    compare: CompareOperator,
    (place, text): (usize, String),
) -> Result<ComparedValue, FindError> {
    let number = number(&text);
    let regex = match compare {
        CompareOperator::Equal | CompareOperator::Unequal => None,
        CompareOperator::Matches => Some(regex(&text).map_err(|what| wrong(place, what))?),
        _ if number.is_some() => None,
        _ => {
            return Err(wrong(
                place,
                format!("{text} is not a number, which {} needs", compare.sign()),
            ));
        }
    };
    Ok(ComparedValue {
        text,
        number,
        regex,
    })
}

fn regex(text: &str) -> Result<regex::Regex, String> {
    let mut builder = regex::RegexBuilder::new(text);
    let built = builder
        .size_limit(COMPILED_BYTES_MAX)
        .nest_limit(50)
        .build();
    built.map_err(|error| {
        let text = error.to_string();
        let last = text.lines().last().unwrap_or_default();
        format!(
            "not a regular expression: {}",
            last.trim_start_matches("error: ")
        )
    })
}
