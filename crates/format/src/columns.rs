//! Fixed records: variables of a file without a header, by the user's description.
//!
//! `columns:time=<f8,id=>u4,flag=u1,name=S12` is a record of 25 bytes. `@128` at the end says that records begin after 128 bytes, `/32`
//! says that each record has 32 bytes, and `columns:_=V4` names unused bytes.

use crate::zarr::simple_type;
use crate::{
    Bytes, DataKind, DataType, Dimension, Error, Format, Header, Result, Storage, Variable,
};

/// Maximum number of columns in a record.
pub const COLUMNS_MAX: usize = 4096;

/// Returns the columns of the records as variables of one dimension, `record`. Bytes after the last whole record are ignored.
///
/// # Errors
/// If the description is invalid, or if the file ends before its first record.
pub fn read(text: &str, bytes: &dyn Bytes) -> Result<Header> {
    let spec = Spec(text);
    let (rest, begin) = match text.split_once('@') {
        Some((rest, at)) => (rest, spec.number(at)?),
        None => (text, 0),
    };
    let (fields, stride) = match rest.split_once('/') {
        Some((fields, len)) => (fields, Some(spec.number(len)?)),
        None => (rest, None),
    };
    let mut columns = Vec::new();
    let mut at = 0;
    for field in fields.split(',') {
        if columns.len() >= COLUMNS_MAX {
            return Err(Error::Limit {
                what: "columns",
                limit: COLUMNS_MAX as u64,
            });
        }
        let (name, data_type) = spec.column(field)?;
        let offset = at;
        at += u64::from(data_type.size);
        columns.push((name, data_type, offset));
    }
    let stride = stride.unwrap_or(at);
    if stride < at {
        return Err(spec.wrong(format!(
            "its columns have {at} bytes, and a record {stride}"
        )));
    }
    let size = bytes.size();
    let truncated = Error::Truncated {
        what: "first record",
        offset: begin,
        end: begin,
        size,
    };
    let records = size.checked_sub(begin).ok_or(truncated)? / stride.max(1);
    let variable = |(path, data_type, offset)| Variable {
        path,
        dimensions: vec![Dimension {
            name: "record".into(),
            size: records,
            unlimited: false,
        }],
        data_type,
        attributes: Vec::new(),
        storage: Storage::Records {
            offset: begin + offset,
            stride,
        },
        fill: None,
    };
    let wanted = columns.into_iter().filter(|(name, ..)| name != "_");
    let variables = wanted
        .map(|column| variable(column).checked())
        .collect::<Result<_>>()?;
    Ok(Header {
        format: Format::Columns,
        attributes: Vec::new(),
        groups: Vec::new(),
        variables,
    })
}

/// Description of fixed records by the user.
struct Spec<'a>(&'a str);

impl Spec<'_> {
    fn wrong(&self, why: String) -> Error {
        Error::Metadata {
            file: format!("columns:{}", self.0),
            why,
        }
    }

    fn number(&self, text: &str) -> Result<u64> {
        text.parse()
            .map_err(|_| self.wrong(format!("{text:?} is no number of bytes")))
    }

    fn column(&self, field: &str) -> Result<(String, DataType)> {
        let split = field.split_once('=');
        let (name, kind) = split.ok_or_else(|| self.wrong(format!("{field:?} is no NAME=TYPE")))?;
        let (name, kind) = (name.trim(), kind.trim());
        // A type with one byte needs no byte order.
        let unordered = !kind.starts_with(['<', '>']);
        let kind = if unordered {
            format!("|{}", kind.trim_start_matches('|'))
        } else {
            kind.into()
        };
        let unknown = || self.wrong(format!("{name}: no type {kind:?} (<f8, >i4, u1, S12)"));
        let data_type = simple_type(&kind).ok_or_else(unknown)?;
        let number = matches!(
            data_type.kind,
            DataKind::Int | DataKind::Uint | DataKind::Float | DataKind::Complex
        );
        if unordered && data_type.size > 1 && number {
            return Err(self.wrong(format!(
                "{name}: is it little-endian (<) or big-endian (>)?"
            )));
        }
        Ok((name.into(), data_type))
    }
}
