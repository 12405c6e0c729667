//! Fixed records: what a user says of a file that says nothing itself.
//!
//! `columns:time=<f8,id=>u4,flag=u1,name=S12` is a record of 25 bytes; `@128` at its end says that records begin after as many bytes, `/32`
//! that each has so many, and `columns:_=V4` names bytes that nobody wants.

use crate::zarr::simple_type;
use crate::{Bytes, Dimension, Error, Format, Header, Kind, Result, Storage, Variable};

/// Most columns.
pub const COLUMNS_MAX: usize = 4096;

/// The columns of a file as variables of one dimension, `record`. What follows the last whole record does not count.
///
/// # Errors
/// If the text can't be understood, or the file ends before its first record.
pub fn read(text: &str, bytes: &dyn Bytes) -> Result<Header> {
    let wrong = |why: String| Error::Metadata {
        file: format!("columns:{text}"),
        why,
    };
    let number = |text: &str| {
        text.parse::<u64>()
            .map_err(|_| wrong(format!("{text:?} is no number of bytes")))
    };
    let (rest, begin) = text
        .split_once('@')
        .map_or(Ok((text, 0)), |(rest, at)| Ok((rest, number(at)?)))?;
    let (fields, stride) = match rest.split_once('/') {
        Some((fields, len)) => (fields, Some(number(len)?)),
        None => (rest, None),
    };
    let mut columns = Vec::new();
    let mut at = 0_u64;
    for field in fields.split(',') {
        let (name, kind) = field
            .split_once('=')
            .ok_or_else(|| wrong(format!("{field:?} is no NAME=TYPE")))?;
        let (name, kind) = (name.trim(), kind.trim());
        // What has one byte needs no order.
        let kind = if kind.starts_with(['<', '>', '|']) {
            kind.to_owned()
        } else {
            format!("|{kind}")
        };
        let data_type = simple_type(&kind)
            .ok_or_else(|| wrong(format!("{name}: no type {kind:?} (<f8, >i4, u1, S12)")))?;
        if kind.starts_with('|')
            && data_type.size > 1
            && matches!(data_type.kind, Kind::Int | Kind::Uint | Kind::Float)
        {
            return Err(wrong(format!(
                "{name}: is it little-endian (<) or big-endian (>)?"
            )));
        }
        if columns.len() >= COLUMNS_MAX {
            return Err(Error::Limit {
                what: "columns",
                limit: COLUMNS_MAX as u64,
            });
        }
        let offset = at;
        at += u64::from(data_type.size);
        columns.push((name.to_owned(), data_type, offset));
    }
    let stride = stride.unwrap_or(at);
    if stride < at {
        return Err(wrong(format!(
            "its columns have {at} bytes, and a record {stride}"
        )));
    }
    let data = bytes.size().checked_sub(begin);
    let data = data.ok_or(Error::Truncated {
        what: "first record",
        offset: begin,
        end: begin,
        size: bytes.size(),
    })?;
    let dimension = Dimension {
        name: "record".into(),
        size: data / stride.max(1),
        unlimited: false,
    };
    let variable = |(path, data_type, offset)| Variable {
        path,
        dimensions: vec![dimension.clone()],
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
