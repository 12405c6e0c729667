//! Substitution: texts of jobs, rules and hooks refer to values by `{name}`.
//!
//! Only `{name}` with a name of letters, digits, `_` and `-` is a reference; all other braces are literal text. Where a reference could
//! stand, `{{` and `}}` are literal braces: `{{name}}` is the text `{name}`, and `{{{name}}}` is the value of `name` in braces.
//!
//! A text is parsed to a [`Template`] once. Its literals and the values that are filled in are never parsed again. [`Template::written`]
//! returns the notation of a template for a later stage, which parses it to the same template.

use std::borrow::Cow;
use std::fmt::{Display, Formatter, Write as _};

/// Name of the reference to all inputs of a task, which stands for a whole argument.
pub const INPUTS: &str = "inputs";

/// Text with references.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Template(Vec<Piece>);

/// Part of a template. Literals are not empty, and no two of them are adjacent.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Literal(String),
    Reference(String),
}

/// First place of a text at which braces surround a name.
struct Found<'t> {
    /// Text before the braces.
    before: &'t str,
    /// Number of opening braces directly before the name.
    open: usize,
    name: &'t str,
    /// Number of pairs of braces around the name: the smaller number of opening and closing braces.
    pairs: usize,
    /// Text after the pairs.
    after: &'t str,
}

/// Finds the first name in braces.
fn find(text: &str) -> Option<Found<'_>> {
    let mut start = 0;
    loop {
        let at = start + text[start..].find('{')?;
        let from = &text[at..];
        let inner = from.trim_start_matches('{');
        let open = from.len() - inner.len();
        let name = &inner[..name_length(inner)];
        let rest = &inner[name.len()..];
        let close = rest.len() - rest.trim_start_matches('}').len();
        let pairs = open.min(close);
        if !name.is_empty() && pairs > 0 {
            return Some(Found {
                before: &text[..at],
                open,
                name,
                pairs,
                after: &rest[pairs..],
            });
        }
        start = at + open + name.len();
    }
}

/// Returns the length of the name at the beginning of a text.
fn name_length(text: &str) -> usize {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_';
    match text.starts_with(first) {
        true => text.find(|c: char| !in_name(c)).unwrap_or(text.len()),
        false => 0,
    }
}

fn in_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

/// Returns whether a reference can have this name.
#[must_use]
pub fn is_name(name: &str) -> bool {
    !name.is_empty() && name_length(name) == name.len()
}

/// Returns the text that refers to a name.
#[must_use]
pub fn reference(name: &str) -> String {
    format!("{{{name}}}")
}

/// Returns the notation of a text without references.
#[must_use]
pub fn escaped(text: &str) -> String {
    Template::literal(text).written()
}

fn braces(out: &mut String, brace: char, count: usize) {
    out.extend(std::iter::repeat_n(brace, count));
}

impl Template {
    /// Parses the notation of a text.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut template = Self::default();
        let (mut literal, mut rest) = (String::new(), text);
        while let Some(found) = find(rest) {
            let inner = found.pairs / 2;
            literal.push_str(found.before);
            braces(&mut literal, '{', found.open - found.pairs + inner);
            if found.pairs % 2 == 1 {
                template.push(&std::mem::take(&mut literal));
                template.0.push(Piece::Reference(found.name.to_owned()));
            } else {
                literal.push_str(found.name);
            }
            braces(&mut literal, '}', inner);
            rest = found.after;
        }
        template.push(&(literal + rest));
        template
    }

    /// Parses an argument of a task without other references: it is `{inputs}`, or text.
    #[must_use]
    pub fn of_argument(text: &str) -> Self {
        match is_inputs(text) {
            true => Self::parse(text),
            false => Self::literal(text),
        }
    }

    /// Returns a template without references.
    #[must_use]
    pub fn literal(text: &str) -> Self {
        let mut template = Self::default();
        template.push(text);
        template
    }

    /// Appends a literal.
    fn push(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Literal(last)) => last.push_str(text),
            _ => self.0.push(Piece::Literal(text.to_owned())),
        }
    }

    /// Returns the names of its references.
    pub fn references(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|piece| match piece {
            Piece::Literal(_) => None,
            Piece::Reference(name) => Some(name.as_str()),
        })
    }

    /// Returns the text of a template without references.
    #[must_use]
    pub fn as_literal(&self) -> Option<&str> {
        match &self.0[..] {
            [] => Some(""),
            [Piece::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// Returns whether the whole text refers to all inputs.
    #[must_use]
    pub fn is_inputs(&self) -> bool {
        matches!(&self.0[..], [Piece::Reference(name)] if name == INPUTS)
    }

    /// Returns the template with values in place of the references that have one.
    #[must_use]
    pub fn fill<'v>(&self, value: impl Fn(&str) -> Option<Cow<'v, str>>) -> Self {
        let mut filled = Self::default();
        for piece in &self.0 {
            match piece {
                Piece::Literal(text) => filled.push(text),
                Piece::Reference(name) => match value(name) {
                    Some(value) => filled.push(&value),
                    None => filled.0.push(piece.clone()),
                },
            }
        }
        filled
    }

    /// Returns the template with changed literals.
    ///
    /// # Errors
    /// The first error of a change.
    pub fn try_map<E>(&self, change: impl Fn(&str) -> Result<String, E>) -> Result<Self, E> {
        let mut changed = Self::default();
        for piece in &self.0 {
            match piece {
                Piece::Literal(text) => changed.push(&change(text)?),
                Piece::Reference(_) => changed.0.push(piece.clone()),
            }
        }
        Ok(changed)
    }

    /// Returns the notation of the template, which [`Template::parse`] converts back to the same template.
    #[must_use]
    pub fn written(&self) -> String {
        let mut out = String::new();
        for (index, piece) in self.0.iter().enumerate() {
            let before = index.checked_sub(1).map(|index| &self.0[index]);
            let after = self.0.get(index + 1);
            match piece {
                Piece::Literal(text) => {
                    // Braces next to a reference are written together with it.
                    let mut text = text.as_str();
                    if let Some(Piece::Reference(_)) = before {
                        text = text.trim_start_matches('}');
                    }
                    if let Some(Piece::Reference(_)) = after {
                        text = text.trim_end_matches('{');
                    }
                    write_literal(&mut out, text);
                }
                Piece::Reference(name) => {
                    let open = before.map_or(0, |piece| match piece {
                        Piece::Literal(text) => text.len() - text.trim_end_matches('{').len(),
                        Piece::Reference(_) => 0,
                    });
                    let close = after.map_or(0, |piece| match piece {
                        Piece::Literal(text) => text.len() - text.trim_start_matches('}').len(),
                        Piece::Reference(_) => 0,
                    });
                    let pairs = 1 + open.min(close);
                    braces(&mut out, '{', open + pairs);
                    out.push_str(name);
                    braces(&mut out, '}', close + pairs);
                }
            }
        }
        out
    }

    /// Returns the notation of the template as an argument, for [`Template::of_argument`].
    #[must_use]
    pub fn written_argument(&self) -> String {
        let plain = self.to_string();
        match is_inputs(&plain) {
            true => self.written(),
            false => plain,
        }
    }
}

/// Prints the text; references without a value stay as they are written.
impl Display for Template {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|piece| match piece {
            Piece::Literal(text) => f.write_str(text),
            Piece::Reference(name) => write!(f, "{{{name}}}"),
        })
    }
}

/// Returns whether a text is `inputs` in braces.
fn is_inputs(text: &str) -> bool {
    find(text).is_some_and(|found| {
        found.before.is_empty() && found.name == INPUTS && found.after.trim_matches('}').is_empty()
    })
}

fn write_literal(out: &mut String, text: &str) {
    let mut rest = text;
    while let Some(found) = find(rest) {
        out.push_str(found.before);
        braces(out, '{', found.open + found.pairs);
        out.push_str(found.name);
        braces(out, '}', 2 * found.pairs);
        rest = found.after;
    }
    let _ = out.write_str(rest);
}

/// Returns the text before the first reference, in the notation.
#[must_use]
pub fn before_references(text: &str) -> &str {
    let mut rest = text;
    while let Some(found) = find(rest) {
        if found.pairs % 2 == 1 {
            let left = rest.len() - found.before.len();
            return &text[..text.len() - left];
        }
        rest = found.after;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filled(text: &str) -> String {
        let value = |name: &str| (name == "x").then_some(Cow::Borrowed("{y}"));
        Template::parse(text).fill(value).to_string()
    }

    #[test]
    fn only_names_in_braces_are_references() {
        let cases = [
            ("{x}", "{y}"),
            ("a{x}b{x}", "a{y}b{y}"),
            ("awk '{print $1}'", "awk '{print $1}'"),
            ("{} {1} { x } {x y} {x", "{} {1} { x } {x y} {x"),
            ("{\"a\":{\"b\":1}}", "{\"a\":{\"b\":1}}"),
            ("{other}", "{other}"),
            ("{{x}}", "{x}"),
            ("{{{x}}}", "{{y}}"),
            ("{{{{x}}}}", "{{x}}"),
            ("{{x}", "{{y}"),
            ("{x}}", "{y}}"),
            ("${{x}}", "${x}"),
            ("{{ }}", "{{ }}"),
            ("}{x}{", "}{y}{"),
            ("{é}", "{é}"),
        ];
        for (text, expected) in cases {
            assert_eq!(filled(text), expected, "{text}");
        }
    }

    #[test]
    fn argument_is_inputs_or_text() {
        let of = Template::of_argument;
        assert!(of("{inputs}").is_inputs());
        assert!(!of("{{inputs}}").is_inputs());
        for (text, plain) in [
            ("{{inputs}}", "{inputs}"),
            ("x{inputs}", "x{inputs}"),
            ("{{x}}", "{{x}}"),
        ] {
            assert_eq!(of(text).as_literal(), Some(plain));
        }
    }

    #[test]
    fn text_before_references_ends_at_the_first_one() {
        assert_eq!(before_references("a{{x}}/b{y}{z}"), "a{{x}}/b");
        assert_eq!(before_references("a{{x}}"), "a{{x}}");
    }

    fn any_template() -> impl Strategy<Value = Template> {
        let literal = "([{}]|a|b-|1|\\$| |%part|é){0,5}".prop_map(Piece::Literal);
        let name = "[a-b_][a1-]{0,2}".prop_map(Piece::Reference);
        prop::collection::vec(prop_oneof![literal, name], 0..6).prop_map(|pieces| {
            let mut template = Template::default();
            for piece in pieces {
                match piece {
                    Piece::Literal(text) => template.push(&text),
                    reference => template.0.push(reference),
                }
            }
            template
        })
    }

    proptest! {
        #[test]
        fn written_template_parses_to_the_same(template in any_template()) {
            prop_assert_eq!(Template::parse(&template.written()), template);
        }

        #[test]
        fn written_argument_parses_to_the_same(text in "[{}]{0,3}(inputs|x)?[{}]{0,3}") {
            let literal = Template::literal(&text);
            let written = literal.written_argument();
            prop_assert_eq!(Template::of_argument(&written), literal);
        }

        #[test]
        fn filled_value_is_never_a_reference(value in "([{}]|x|y|%part|\\$){0,6}", around in "[{}a]{0,3}") {
            let text = format!("{around}{{x}}{around}");
            let template = Template::parse(&text);
            prop_assume!(template.references().eq(["x"]));
            let once = template.fill(|_| Some(Cow::Borrowed(value.as_str())));
            prop_assert!(once.as_literal().is_some_and(|text| text.contains(&value)));
            prop_assert_eq!(Template::parse(&once.written()), once);
        }
    }
}
