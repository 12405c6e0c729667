//! Reader of FITS files: images in the primary header and in extensions. Variables are named by numbers; the primary image is `0`.
//!
//! Tables and images compressed in tables are skipped. The reader follows the FITS standard, version 4.0.

use std::collections::BTreeMap;

use crate::bytes::LimitedBytes;
use crate::{
    Attribute, Bytes, DataKind, DataType, Dimension, Endian, Error, Format, Header, Result,
    Storage, Value, Variable,
};

const BLOCK: u64 = 2880;
const CARD: usize = 80;
/// Maximum number of headers in a FITS file.
const HEADERS_MAX: usize = 4096;
/// Maximum number of cards (keyword records) in a header.
const CARDS_MAX: usize = 36_000;
/// Maximum number of axes of an image, according to the FITS standard.
const AXES_MAX: i64 = 999;
const WHAT: &str = "FITS header";
/// Keywords of cards that are not returned as attributes.
const STRUCTURE: [&str; 8] = [
    "SIMPLE", "XTENSION", "BITPIX", "NAXIS", "EXTEND", "PCOUNT", "GCOUNT", "END",
];

/// Reads the headers of a FITS file.
///
/// # Errors
/// If the file has another format, or is corrupt.
pub fn read(bytes: &dyn Bytes) -> Result<Header> {
    let mut source = LimitedBytes::new(bytes);
    let (mut variables, mut attributes) = (Vec::new(), Vec::new());
    let mut at = 0;
    for number in 0..=HEADERS_MAX {
        if number == HEADERS_MAX {
            return Err(Error::Limit {
                what: "FITS headers",
                limit: HEADERS_MAX as u64,
            });
        }
        let unit = FitsUnit::read(&mut source, at)?;
        let data = unit.data;
        let size = unit.size()?;
        if number == 0 {
            attributes.clone_from(&unit.attributes);
        }
        if let Some(variable) = unit.image(number)? {
            variables.push(variable.checked()?);
        }
        let end = data.saturating_add(size);
        at = end.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX);
        // Any bytes except a header may follow the last unit.
        let next =
            at.saturating_add(8) <= source.size() && source.read(at, 8, WHAT)? == b"XTENSION";
        if !next {
            return Ok(Header {
                format: Format::Fits,
                attributes,
                groups: Vec::new(),
                variables,
            });
        }
    }
    unreachable!("the loop ends by an answer")
}

/// Header of a FITS unit, and the offset of the unit's data.
struct FitsUnit {
    at: u64,
    data: u64,
    numbers: BTreeMap<String, i64>,
    kind: String,
    attributes: Vec<Attribute>,
}

impl FitsUnit {
    fn read(source: &mut LimitedBytes<'_>, at: u64) -> Result<Self> {
        let mut unit = Self {
            at,
            data: at,
            numbers: BTreeMap::new(),
            kind: "IMAGE".into(),
            attributes: Vec::new(),
        };
        let mut cards = 0;
        loop {
            let block = source.read(unit.data, BLOCK, WHAT)?;
            unit.data += BLOCK;
            for card in block.chunks_exact(CARD) {
                if card.starts_with(b"END     ") {
                    return Ok(unit);
                }
                cards += 1;
                if cards > CARDS_MAX {
                    return Err(Error::Limit {
                        what: "cards of a FITS header",
                        limit: CARDS_MAX as u64,
                    });
                }
                source.charge(64)?;
                unit.card(card);
            }
        }
    }

    fn card(&mut self, card: &[u8]) {
        let text = String::from_utf8_lossy(card).into_owned();
        let (Some(name), Some(rest)) = (text.get(..8), text.get(8..)) else {
            return;
        };
        let name = name.trim_end();
        if name == "CONTINUE" {
            if let (
                Some(Attribute {
                    value: Value::Text(last),
                    ..
                }),
                Value::Text(more),
            ) = (self.attributes.last_mut(), value(rest))
                && last.ends_with('&')
            {
                last.pop();
                last.push_str(&more);
            }
            return;
        }
        let Some(rest) = rest.strip_prefix("= ") else {
            return;
        };
        let value = value(rest);
        match &value {
            Value::Int(numbers) => {
                self.numbers.insert(name.into(), numbers[0]);
            }
            Value::Text(kind) if name == "XTENSION" => self.kind.clone_from(kind),
            _ => {}
        }
        if !STRUCTURE.contains(&name) && !name.starts_with("NAXIS") && value != Value::Other {
            self.attributes.push(Attribute {
                name: name.into(),
                value,
            });
        }
    }

    fn wrong(&self, why: String) -> Error {
        Error::Corrupt {
            what: WHAT,
            offset: self.at,
            why,
        }
    }

    fn number(&self, name: &str) -> Result<i64> {
        self.numbers
            .get(name)
            .copied()
            .ok_or_else(|| self.wrong(format!("it has no {name}")))
    }

    fn axes(&self) -> Result<Vec<u64>> {
        let count = self.number("NAXIS")?;
        if !(0..=AXES_MAX).contains(&count) {
            return Err(self.wrong(format!("NAXIS is {count}")));
        }
        let axis = |axis| {
            let size = self.number(&format!("NAXIS{axis}"))?;
            u64::try_from(size).map_err(|_| self.wrong(format!("NAXIS{axis} is {size}")))
        };
        (1..=count).map(axis).collect()
    }

    /// Returns the size of the unit's data, in bytes.
    fn size(&self) -> Result<u64> {
        let axes = self.axes()?;
        let element = self.number("BITPIX")?.unsigned_abs() / 8;
        // Random groups begin with an axis of 0.
        let counted = if axes.first() == Some(&0) && axes.len() > 1 {
            &axes[1..]
        } else {
            &axes
        };
        let one = if axes.is_empty() {
            Some(0)
        } else {
            counted
                .iter()
                .try_fold(1_u64, |all, size| all.checked_mul(*size))
        };
        let other = |name: &str, default| {
            u64::try_from(self.numbers.get(name).copied().unwrap_or(default)).ok()
        };
        let size = (|| {
            let each = one?.checked_add(other("PCOUNT", 0)?)?;
            each.checked_mul(other("GCOUNT", 1)?)?.checked_mul(element)
        })();
        size.ok_or_else(|| self.wrong(format!("data of {axes:?} elements")))
    }

    fn image(self, number: usize) -> Result<Option<Variable>> {
        let axes = self.axes()?;
        if self.kind != "IMAGE" || axes.is_empty() || axes.contains(&0) {
            return Ok(None);
        }
        let bits = self.number("BITPIX")?;
        let (kind, size) = match bits {
            8 => (DataKind::Uint, 1),
            16 => (DataKind::Int, 2),
            32 => (DataKind::Int, 4),
            64 => (DataKind::Int, 8),
            -32 => (DataKind::Float, 4),
            -64 => (DataKind::Float, 8),
            _ => return Err(self.wrong(format!("BITPIX is {bits}"))),
        };
        let dimension = |(axis, size): (usize, &u64)| Dimension {
            name: format!("axis_{}", axis + 1),
            size: *size,
            unlimited: false,
        };
        Ok(Some(Variable {
            path: number.to_string(),
            dimensions: axes.iter().enumerate().rev().map(dimension).collect(),
            data_type: DataType {
                kind,
                size,
                order: Endian::Big,
            },
            attributes: self.attributes,
            storage: Storage::Contiguous { offset: self.data },
            fill: None,
        }))
    }
}

/// Parses the value of a card: text in quotes, T or F, or a number.
fn value(rest: &str) -> Value {
    let rest = rest.trim_start();
    if let Some(quoted) = rest.strip_prefix('\'') {
        let mut text = String::new();
        let mut letters = quoted.chars().peekable();
        while let Some(letter) = letters.next() {
            if letter == '\'' && letters.next_if_eq(&'\'').is_none() {
                break;
            }
            text.push(letter);
        }
        return Value::Text(text.trim_end().into());
    }
    let word = rest.split('/').next().unwrap_or("").trim();
    match word {
        "T" => Value::Uint(vec![1]),
        "F" => Value::Uint(vec![0]),
        _ => match (word.parse(), word.replace(['D', 'd'], "E").parse()) {
            (Ok(number), _) => Value::Int(vec![number]),
            (Err(_), Ok(number)) => Value::Float(vec![number]),
            _ => Value::Other,
        },
    }
}
