//! Parser of rules in the format of the paper on Active Storage (Piernas and Nieplocha, §3): an XML document with a pattern, a program, its
//! arguments and its output. It is converted to the settings of a rule in libconfig.
//!
//! The parser knows elements, attributes, text, comments and the five named characters. There are no definitions, so no part of a document
//! can expand to more than its own text.

use crate::script::{Position, ScriptValue, Setting, SettingGroup, ValueData};

/// Maximum nesting depth of elements.
const DEPTH_MAX: usize = 8;

/// Fault in a document, and its position.
pub(super) type XmlFault = (Position, String);

struct XmlElement {
    name: String,
    at: Position,
    attributes: Vec<(String, String)>,
    children: Vec<XmlElement>,
    text: String,
}

/// Returns the settings of a document.
pub(super) fn read(text: &str) -> Result<SettingGroup, XmlFault> {
    let mut reader = XmlReader {
        rest: text.trim_start_matches('\u{feff}'),
        at: Position::START,
    };
    reader.prologue()?;
    let root = reader.element(0)?;
    reader.between()?;
    if !reader.rest.is_empty() {
        return Err((
            reader.at,
            "a rule is one element; nothing may follow it".into(),
        ));
    }
    settings(&root)
}

fn settings(root: &XmlElement) -> Result<SettingGroup, XmlFault> {
    known(root, "rule", &["name", "workdir"])?;
    let mut rule = SettingGroup::default();
    let mut task = SettingGroup::default();
    for (name, value) in &root.attributes {
        rule.settings
            .push(setting(name, root.at, ValueData::Text(value.clone())));
    }
    let (mut args, mut outputs) = (Vec::new(), Vec::new());
    for child in &root.children {
        let plain = || ValueData::Text(child.text.trim().to_owned());
        match child.name.as_str() {
            "pattern" => rule.settings.push(setting("pattern", child.at, plain())),
            "program" => {
                known(child, "program", &[])?;
                task.settings.push(setting("kernel", child.at, plain()));
            }
            "argument" => args.push(value(child.at, plain())),
            "arguments" => {
                let words = child.text.split_whitespace();
                args.extend(words.map(|word| value(child.at, ValueData::Text(word.to_owned()))));
            }
            "output" => {
                known(child, "output", &["local", "stdout"])?;
                if attribute(child, "local") == Some("no") {
                    let what =
                        "outputs are always made where the program runs: leave local=\"no\" out";
                    return Err((child.at, what.into()));
                }
                if attribute(child, "stdout") == Some("yes") {
                    task.settings.push(setting("stdout", child.at, plain()));
                }
                outputs.push(value(child.at, plain()));
            }
            other => {
                let what = format!(
                    "a rule has no element <{other}>; it has pattern, program, argument, arguments and output"
                );
                return Err((child.at, what));
            }
        }
        if let Some(inner) = child.children.first() {
            return Err((inner.at, format!("<{}> holds text only", child.name)));
        }
    }
    if !args.is_empty() {
        task.settings
            .push(setting("args", root.at, ValueData::Array(args)));
    }
    task.settings
        .push(setting("output", root.at, ValueData::Array(outputs)));
    rule.settings
        .push(setting("task", root.at, ValueData::Group(task)));
    Ok(rule)
}

fn known(element: &XmlElement, name: &str, attributes: &[&str]) -> Result<(), XmlFault> {
    if element.name != name {
        return Err((
            element.at,
            format!("expected <{name}>, found <{}>", element.name),
        ));
    }
    let mut given = element.attributes.iter().map(|(name, _)| name.as_str());
    match given.find(|given| !attributes.contains(given)) {
        Some(other) => Err((element.at, format!("<{name}> has no attribute \"{other}\""))),
        None => Ok(()),
    }
}

fn attribute<'a>(element: &'a XmlElement, name: &str) -> Option<&'a str> {
    let found = element.attributes.iter().find(|(given, _)| given == name);
    found.map(|(_, value)| value.as_str())
}

fn value(at: Position, data: ValueData) -> ScriptValue {
    ScriptValue { data, at }
}

fn setting(name: &str, at: Position, data: ValueData) -> Setting {
    Setting {
        name: name.to_owned(),
        at,
        value: value(at, data),
    }
}

struct XmlReader<'a> {
    rest: &'a str,
    at: Position,
}

impl XmlReader<'_> {
    fn skip(&mut self, bytes: usize) -> String {
        let (gone, rest) = self.rest.split_at(bytes);
        for c in gone.chars() {
            match c {
                '\n' => {
                    self.at.line += 1;
                    self.at.column = 1;
                }
                _ => self.at.column += 1,
            }
        }
        let gone = gone.to_owned();
        self.rest = rest;
        gone
    }

    fn expect(&mut self, text: &str) -> Result<(), XmlFault> {
        if self.rest.starts_with(text) {
            self.skip(text.len());
            return Ok(());
        }
        let found = self.rest.chars().next();
        let found = found.map_or_else(|| "the end".into(), |c| format!("{c:?}"));
        Err((self.at, format!("expected {text:?}, found {found}")))
    }

    /// Skips a text up to and including `end`.
    fn skip_past(&mut self, end: &str, what: &str) -> Result<String, XmlFault> {
        let at = self.at;
        let found = self.rest.find(end);
        let found = found.ok_or_else(|| (at, format!("this {what} is never closed")))?;
        let text = self.skip(found);
        self.skip(end.len());
        Ok(text)
    }

    fn spaces(&mut self) {
        let spaces = self.rest.len() - self.rest.trim_start().len();
        self.skip(spaces);
    }

    fn prologue(&mut self) -> Result<(), XmlFault> {
        self.spaces();
        if self.rest.starts_with("<?xml") {
            self.skip_past("?>", "declaration")?;
        }
        self.between()
    }

    /// Skips spaces and comments.
    fn between(&mut self) -> Result<(), XmlFault> {
        loop {
            self.spaces();
            if !self.rest.starts_with("<!--") {
                return Ok(());
            }
            self.skip_past("-->", "comment")?;
        }
    }

    fn name(&mut self) -> Result<String, XmlFault> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        match end {
            0 if self.rest.starts_with('!') => {
                let what = "definitions and CDATA are not read in rules: write the text itself";
                Err((self.at, what.into()))
            }
            0 => Err((self.at, "expected a name".into())),
            _ => Ok(self.skip(end)),
        }
    }

    fn element(&mut self, depth: usize) -> Result<XmlElement, XmlFault> {
        let at = self.at;
        if depth == DEPTH_MAX {
            return Err((
                at,
                format!("elements are nested more than {DEPTH_MAX} deep"),
            ));
        }
        self.expect("<")?;
        let mut element = XmlElement {
            name: self.name()?,
            at,
            attributes: Vec::new(),
            children: Vec::new(),
            text: String::new(),
        };
        loop {
            self.spaces();
            if self.rest.starts_with("/>") {
                self.skip(2);
                return Ok(element);
            }
            if self.rest.starts_with('>') {
                self.skip(1);
                break;
            }
            let name = self.name()?;
            self.expect("=")?;
            let quote = if self.rest.starts_with('\'') {
                "'"
            } else {
                "\""
            };
            self.expect(quote)?;
            let from = self.at;
            let value = self.skip_past(quote, "value")?;
            if element.attributes.iter().any(|(given, _)| *given == name) {
                return Err((from, format!("attribute \"{name}\" is set twice")));
            }
            element.attributes.push((name, plain(&value, from)?));
        }
        self.content(&mut element, depth)?;
        Ok(element)
    }

    fn content(&mut self, element: &mut XmlElement, depth: usize) -> Result<(), XmlFault> {
        loop {
            let from = self.at;
            let end = self.rest.find('<');
            let end =
                end.ok_or_else(|| (element.at, format!("<{}> is never closed", element.name)))?;
            let text = self.skip(end);
            element.text.push_str(&plain(&text, from)?);
            if self.rest.starts_with("<!--") {
                self.skip_past("-->", "comment")?;
            } else if self.rest.starts_with("</") {
                self.skip(2);
                let at = self.at;
                let name = self.name()?;
                if name != element.name {
                    return Err((at, format!("expected </{}>, found </{name}>", element.name)));
                }
                self.spaces();
                return self.expect(">");
            } else {
                let child = self.element(depth + 1)?;
                element.children.push(child);
            }
        }
    }
}

/// Returns a text in which named characters are replaced.
fn plain(text: &str, at: Position) -> Result<String, XmlFault> {
    const NAMES: [(&str, char); 5] = [
        ("amp;", '&'),
        ("lt;", '<'),
        ("gt;", '>'),
        ("quot;", '"'),
        ("apos;", '\''),
    ];
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        out.push_str(before);
        let known = NAMES
            .iter()
            .find_map(|(name, c)| Some((after.strip_prefix(name)?, *c)));
        let Some((left, c)) = known else {
            let what = "only &amp; &lt; &gt; &quot; and &apos; are known in rules";
            return Err((at, what.into()));
        };
        out.push(c);
        rest = left;
    }
    Ok(out + rest)
}
