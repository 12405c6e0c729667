//! Parser of rules in the format of the paper on Active Storage (Piernas and Nieplocha, §3): an XML document with a pattern, a program, its
//! arguments and its output. It is converted to the settings of a rule in libconfig.
//!
//! Documents have elements, attributes, text, comments and the five named characters. There are no definitions, so no part of a document can
//! expand to more than its own text.

use crate::script::{Position, Positions, ScriptValue, Setting, SettingGroup, ValueData};
use quick_xml::escape::unescape;
use quick_xml::events::{BytesStart, Event};
use quick_xml::reader::Reader;

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
    settings(&parse(text.trim_start_matches('\u{feff}'))?)
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

/// Returns the root element of a document.
fn parse(text: &str) -> Result<XmlElement, XmlFault> {
    const AROUND: &str = "a rule is one element <rule>, with only comments around it";
    let positions = Positions::new(text);
    let mut reader = Reader::from_str(text);
    reader.config_mut().expand_empty_elements = true;
    // Otherwise errors would not name the position of the name.
    reader.config_mut().check_end_names = false;
    let (mut open, mut root): (Vec<XmlElement>, Option<XmlElement>) = (Vec::new(), None);
    loop {
        let begun = usize::try_from(reader.buffer_position()).unwrap_or(usize::MAX);
        let at = |more: usize| positions.at(begun + more);
        let event = reader.read_event();
        match event.map_err(|error| (at(0), error.to_string()))? {
            Event::Start(_) if open.len() == DEPTH_MAX => {
                let what = format!("elements are nested more than {DEPTH_MAX} deep");
                return Err((at(0), what));
            }
            Event::Start(tag) if root.is_none() => open.push(element(&tag, at(0))?),
            Event::End(tag) => {
                let element = open.pop().ok_or_else(|| (at(0), AROUND.to_owned()))?;
                if tag.name().as_ref() != element.name {
                    let (expected, found) = (element.name, tag.name());
                    let what = format!("expected </{expected}>, found </{}>", found.as_ref());
                    return Err((at(2), what));
                }
                match open.last_mut() {
                    Some(parent) => parent.children.push(element),
                    None => root = Some(element),
                }
            }
            Event::Text(text) if open.is_empty() && text.trim().is_empty() => {}
            Event::Comment(_) => {}
            Event::Decl(_) if open.is_empty() && root.is_none() => {}
            Event::Decl(_) | Event::PI(_) | Event::DocType(_) | Event::CData(_) => {
                let what = "definitions and CDATA are not read in rules: write the text itself";
                return Err((at(1), what.into()));
            }
            Event::Eof if open.is_empty() => {
                return root.ok_or_else(|| (at(0), AROUND.to_owned()));
            }
            event => match (event, open.last_mut()) {
                (Event::Text(text), Some(element)) => element.text.push_str(&text),
                (Event::GeneralRef(name), Some(element)) => {
                    let plain = plain(&format!("&{};", &*name), at(0))?;
                    element.text.push_str(&plain);
                }
                (Event::Eof, Some(element)) => {
                    return Err((element.at, format!("<{}> is never closed", element.name)));
                }
                _ => return Err((at(0), AROUND.into())),
            },
        }
    }
}

/// Returns the element of a start tag, without its content.
fn element(tag: &BytesStart<'_>, at: Position) -> Result<XmlElement, XmlFault> {
    let attributes = tag.attributes().map(|attribute| {
        let attribute = attribute.map_err(|error| (at, error.to_string()))?;
        let value = plain(&attribute.value, at)?;
        Ok((attribute.key.as_ref().to_owned(), value))
    });
    Ok(XmlElement {
        name: tag.name().as_ref().to_owned(),
        at,
        attributes: attributes.collect::<Result<_, XmlFault>>()?,
        children: Vec::new(),
        text: String::new(),
    })
}

/// Returns a text in which named characters are replaced.
fn plain(text: &str, at: Position) -> Result<String, XmlFault> {
    match unescape(text) {
        Ok(plain) if !text.contains("&#") => Ok(plain.into_owned()),
        _ => {
            let what = "only &amp; &lt; &gt; &quot; and &apos; are known in rules";
            Err((at, what.into()))
        }
    }
}
