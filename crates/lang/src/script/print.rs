//! Printer of a tree of values as libconfig, which parses back to the same tree.

use super::{ScriptValue, SettingGroup, ValueData};
use std::fmt::{Display, Formatter, Result, Write};

impl Display for SettingGroup {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        settings(f, self, 0)
    }
}

impl Display for ScriptValue {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        value(f, self, 0)
    }
}

fn indent(f: &mut Formatter<'_>, level: usize) -> Result {
    (0..level).try_for_each(|_| f.write_str("  "))
}

fn settings(f: &mut Formatter<'_>, group: &SettingGroup, level: usize) -> Result {
    for setting in &group.settings {
        indent(f, level)?;
        write!(f, "{} = ", setting.name)?;
        value(f, &setting.value, level)?;
        f.write_str(";\n")?;
    }
    Ok(())
}

fn value(f: &mut Formatter<'_>, printed: &ScriptValue, level: usize) -> Result {
    match &printed.data {
        ValueData::Boolean(boolean) => write!(f, "{boolean}"),
        // libconfig requires the suffix for numbers that do not fit in 32 bits.
        ValueData::Integer(number) if i32::try_from(*number).is_err() => write!(f, "{number}L"),
        ValueData::Integer(number) => write!(f, "{number}"),
        ValueData::Float(number) => write!(f, "{number:?}"),
        ValueData::Text(text) => quoted(f, text),
        ValueData::Template(template) => quoted(f, &template.written()),
        ValueData::Array(values) => elements(f, values, ["[ ", " ]"], level),
        ValueData::List(values) => elements(f, values, ["( ", " )"], level),
        ValueData::Group(group) => {
            f.write_str("{\n")?;
            settings(f, group, level + 1)?;
            indent(f, level)?;
            f.write_char('}')
        }
    }
}

fn elements(
    f: &mut Formatter<'_>,
    values: &[ScriptValue],
    ends: [&str; 2],
    level: usize,
) -> Result {
    f.write_str(ends[0])?;
    for (index, element) in values.iter().enumerate() {
        if index > 0 {
            f.write_str(", ")?;
        }
        value(f, element, level)?;
    }
    f.write_str(ends[1])
}

fn quoted(f: &mut Formatter<'_>, text: &str) -> Result {
    f.write_char('"')?;
    for c in text.chars() {
        match c {
            '"' | '\\' => write!(f, "\\{c}")?,
            '\n' => f.write_str("\\n")?,
            '\t' => f.write_str("\\t")?,
            '\r' => f.write_str("\\r")?,
            c if c.is_ascii_control() => write!(f, "\\x{:02x}", u32::from(c))?,
            c => f.write_char(c)?,
        }
    }
    f.write_char('"')
}
