//! Parser of conditions.

use super::{
    COMPARISONS_MAX, CompareOperator, Comparison, Condition, ConditionError, DEPTH_MAX, Operand,
    TEXT_BYTES_MAX, Tree,
};
use std::ops::Range;

/// Parses a condition.
///
/// # Errors
/// The fault in the condition, and its position.
pub fn parse(text: &str) -> Result<Condition, ConditionError> {
    if text.len() > TEXT_BYTES_MAX {
        let what = format!("a condition has at most {TEXT_BYTES_MAX} bytes");
        return Err(wrong(0, what));
    }
    let chars: Vec<char> = text.chars().collect();
    let mut reader = ConditionParser {
        tokens: tokens(&chars)?,
        at: 0,
        end: chars.len(),
        depth: 0,
        comparisons: 0,
    };
    let condition = reader.any()?;
    match reader.peek() {
        None => Ok(condition),
        Some(Token::Close) => Err(reader.here("this ')' has no '('")),
        Some(_) => Err(reader.here("\"and\" or \"or\" is missing before this")),
    }
}

fn wrong(at: usize, what: impl Into<String>) -> ConditionError {
    ConditionError::new(at, what)
}

#[derive(Clone, Debug)]
enum Token {
    Open,
    Close,
    Compare(CompareOperator),
    Operand(Operand),
}

/// Operators of other languages, and the advice.
const FOREIGN: [(&str, &str); 4] = [
    (
        "==",
        "'==' is not an operator of conditions: write = instead",
    ),
    (
        "&&",
        "'&&' is not an operator of conditions: write and instead",
    ),
    (
        "||",
        "'||' is not an operator of conditions: write or instead",
    ),
    (
        "!",
        "'!' stands before '=': for the opposite of a condition write not",
    ),
];

/// Operators; an operator stands before its beginnings.
const OPERATORS: [(&str, CompareOperator); 7] = [
    ("!=", CompareOperator::Unequal),
    ("<=", CompareOperator::AtMost),
    (">=", CompareOperator::AtLeast),
    ("=", CompareOperator::Equal),
    ("<", CompareOperator::Less),
    (">", CompareOperator::Greater),
    ("~", CompareOperator::Matches),
];

fn begins(chars: &[char], text: &str) -> bool {
    let length = text.chars().count();
    chars.len() >= length && text.chars().eq(chars[..length].iter().copied())
}

/// Returns the tokens with the positions of their first characters.
fn tokens(chars: &[char]) -> Result<Vec<(usize, Token)>, ConditionError> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&c) = chars.get(at) {
        let begin = at;
        let rest = &chars[begin..];
        let operator = OPERATORS.iter().find(|(sign, _)| begins(rest, sign));
        let foreign = FOREIGN.iter().find(|(sign, _)| begins(rest, sign));
        at += 1;
        let token = match (c, operator, foreign) {
            (c, ..) if c.is_whitespace() => continue,
            ('\0', ..) => return Err(wrong(begin, "a condition has no zero byte")),
            ('(', ..) => Token::Open,
            (')', ..) => Token::Close,
            // "!=" is an operator although it begins with '!'.
            (_, Some((sign, operator)), _) if *sign == "!=" || foreign.is_none() => {
                at = begin + sign.len();
                Token::Compare(*operator)
            }
            (_, _, Some((_, advice))) => return Err(wrong(begin, *advice)),
            ('"' | '\'', ..) => {
                let (text, next) = quoted(chars, begin)?;
                at = next;
                Token::Operand(operand(text, Some(c), begin..at))
            }
            _ => {
                let length = word_length(rest);
                at = begin + length;
                Token::Operand(operand(rest[..length].iter().collect(), None, begin..at))
            }
        };
        tokens.push((begin, token));
    }
    Ok(tokens)
}

fn operand(text: String, quote: Option<char>, span: Range<usize>) -> Operand {
    Operand { text, quote, span }
}

/// Returns the number of characters before the end of a text without quotes.
fn word_length(rest: &[char]) -> usize {
    let ends = |at: &usize| {
        let c = rest[*at];
        c.is_whitespace()
            || "()=!<>~\"'\0".contains(c)
            || begins(&rest[*at..], "&&")
            || begins(&rest[*at..], "||")
    };
    (0..rest.len()).find(ends).unwrap_or(rest.len())
}

/// Returns the text up to the closing quote, and the position after it. A backslash escapes the quote. Other backslashes stay, so that a
/// regular expression or pattern sees them; of two backslashes, neither escapes a quote.
fn quoted(chars: &[char], begin: usize) -> Result<(String, usize), ConditionError> {
    let (quote, mut at, mut word) = (chars[begin], begin + 1, String::new());
    loop {
        match (chars.get(at), chars.get(at + 1)) {
            (None, _) => return Err(wrong(begin, "this quote is never closed")),
            (Some('\0'), _) => return Err(wrong(at, "a condition has no zero byte")),
            (Some('\\'), Some('\\')) => {
                word.push_str("\\\\");
                at += 2;
            }
            (Some('\\'), Some(next)) if *next == quote => {
                word.push(quote);
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

struct ConditionParser {
    tokens: Vec<(usize, Token)>,
    at: usize,
    /// Number of characters of the whole text.
    end: usize,
    depth: usize,
    comparisons: usize,
}

impl ConditionParser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(_, token)| token)
    }

    fn place(&self) -> usize {
        self.tokens.get(self.at).map_or(self.end, |(at, _)| *at)
    }

    fn here(&self, what: impl Into<String>) -> ConditionError {
        wrong(self.place(), what)
    }

    /// Skips a word of the grammar if it is next, and returns whether it was.
    fn keyword(&mut self, word: &str) -> bool {
        let is = matches!(self.peek(), Some(Token::Operand(next)) if next.quote.is_none() && next.text.eq_ignore_ascii_case(word));
        self.at += usize::from(is);
        is
    }

    fn any(&mut self) -> Result<Condition, ConditionError> {
        let mut all = vec![self.all()?];
        while self.keyword("or") {
            all.push(self.all()?);
        }
        Ok(one_or(all, Tree::Any))
    }

    fn all(&mut self) -> Result<Condition, ConditionError> {
        let mut all = vec![self.single()?];
        while self.keyword("and") {
            all.push(self.single()?);
        }
        Ok(one_or(all, Tree::All))
    }

    fn single(&mut self) -> Result<Condition, ConditionError> {
        let begin = self.place();
        let not = self.keyword("not");
        if !not && !matches!(self.peek(), Some(Token::Open)) {
            return self.comparison().map(Tree::Test);
        }
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            let what = format!("more than {DEPTH_MAX} nested parentheses and \"not\"s");
            return Err(wrong(begin, what));
        }
        let tree = if not {
            Tree::Not(Box::new(self.single()?))
        } else {
            self.at += 1;
            let inner = self.any()?;
            match self.peek() {
                Some(Token::Close) => self.at += 1,
                None => return Err(wrong(begin, "this '(' is never closed")),
                Some(_) => return Err(self.here("\"and\", \"or\" or ')' is missing before this")),
            }
            inner
        };
        self.depth -= 1;
        Ok(tree)
    }

    fn comparison(&mut self) -> Result<Comparison, ConditionError> {
        self.comparisons += 1;
        if self.comparisons > COMPARISONS_MAX {
            return Err(self.here(format!("more than {COMPARISONS_MAX} comparisons")));
        }
        let Some(Token::Operand(left)) = self.peek().cloned() else {
            return Err(self.here("a comparison is expected here, as in size > 1MB"));
        };
        self.at += 1;
        let Some(&Token::Compare(operator)) = self.peek() else {
            let what =
                format!("after {left} one of = != < <= > >= ~ is missing, as in {left} = value");
            return Err(self.here(what));
        };
        self.at += 1;
        let Some(Token::Operand(right)) = self.peek().cloned() else {
            let what = format!(
                "{left} {} needs a value after it; put a value with special characters or spaces in quotes",
                operator.sign()
            );
            return Err(self.here(what));
        };
        self.at += 1;
        if let Some(Token::Compare(next)) = self.peek() {
            let (first, next) = (operator.sign(), next.sign());
            let what = format!(
                "a comparison has two sides: write {left} {first} {right} and {right} {next} …"
            );
            return Err(self.here(what));
        }
        Ok(Comparison {
            left,
            operator,
            right,
        })
    }
}

fn one_or(mut all: Vec<Condition>, several: impl FnOnce(Vec<Condition>) -> Condition) -> Condition {
    match (all.len(), all.pop()) {
        (1, Some(one)) => one,
        (_, last) => {
            all.extend(last);
            several(all)
        }
    }
}
