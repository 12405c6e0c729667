//! Reader of netCDF classic files: CDF-1, CDF-2 (64-bit offset) and CDF-5 (64-bit data).
//!
//! The header is contiguous at the start of the file. Variables of fixed size are contiguous. Variables whose first dimension is the record
//! dimension are interleaved: each record contains one slice of each variable. The reader follows the format's specification, appendix B of
//! the netCDF user's guide.

use crate::bytes::LimitedBytes;
use crate::model::{ATTRIBUTE_BYTES_MAX, NAMES_MAX, RANK_MAX, values};
use crate::{
    Attribute, Bytes, DataKind, DataType, Dimension, Endian, Error, Format, Header, Result,
    Storage, Value, Variable,
};

const DIMENSIONS: u64 = 10;
const VARIABLES: u64 = 11;
const ATTRIBUTES: u64 = 12;

/// Numbers of records in a header that stand for an unknown number.
const STREAMING: [u64; 2] = [u32::MAX as u64, u64::MAX];

/// Reads the header of a classic file.
///
/// # Errors
/// If the file has another format, is corrupt, or has a larger header than any real file.
pub fn read(bytes: &dyn Bytes) -> Result<Header> {
    let mut source = LimitedBytes::new(bytes);
    let magic = source.read(0, 4, "netCDF magic number")?;
    let version = magic[3];
    if &magic[..3] != b"CDF" || !matches!(version, 1 | 2 | 5) {
        return Err(Error::Corrupt {
            what: "netCDF magic number",
            offset: 0,
            why: format!("it is {magic:02x?}"),
        });
    }
    let mut reader = ClassicReader {
        source,
        at: 4,
        version,
    };
    let records = reader.count("number of records")?;
    let dimensions = reader.dimensions()?;
    let attributes = reader.attributes()?;
    let declared = reader.variables(&dimensions)?;
    let variables = place(&reader, declared, &dimensions, records)?;
    Ok(Header {
        format: Format::Classic(version),
        attributes,
        groups: Vec::new(),
        variables,
    })
}

struct ClassicReader<'a> {
    source: LimitedBytes<'a>,
    at: u64,
    version: u8,
}

/// Variable as the header of a classic file declares it.
struct Declared {
    name: String,
    dimensions: Vec<usize>,
    attributes: Vec<Attribute>,
    data_type: DataType,
    begin: u64,
}

impl ClassicReader<'_> {
    fn take(&mut self, len: u64, what: &'static str) -> Result<Vec<u8>> {
        let taken = self.source.read(self.at, len, what)?;
        self.at += len;
        Ok(taken)
    }

    fn number(&mut self, len: u64, what: &'static str) -> Result<u64> {
        Ok(self
            .take(len, what)?
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn corrupt(&self, what: &'static str, why: impl Into<String>) -> Error {
        Error::Corrupt {
            what,
            offset: self.at,
            why: why.into(),
        }
    }

    /// Reads a count or size: 8 bytes in CDF-5, 4 bytes in earlier versions.
    fn count(&mut self, what: &'static str) -> Result<u64> {
        self.number(if self.version == 5 { 8 } else { 4 }, what)
    }

    /// Returns the number of entries of a list: its tag and count, or zeros.
    fn list(&mut self, tag: u64, what: &'static str) -> Result<usize> {
        let found = self.number(4, what)?;
        let count = self.count(what)?;
        if found != tag && (found, count) != (0, 0) {
            return Err(self.corrupt(what, format!("its tag is {found} and not {tag}")));
        }
        match usize::try_from(count) {
            Ok(count) if count <= NAMES_MAX => Ok(count),
            _ => Err(Error::Limit {
                what,
                limit: NAMES_MAX as u64,
            }),
        }
    }

    fn padded(&mut self, len: u64, what: &'static str) -> Result<Vec<u8>> {
        let taken = self.take(len, what)?;
        self.take((4 - len % 4) % 4, what)?;
        Ok(taken)
    }

    fn name(&mut self, what: &'static str) -> Result<String> {
        let len = self.count(what)?;
        if len > 1024 {
            return Err(self.corrupt(what, format!("a name of {len} bytes")));
        }
        let name = self.padded(len, what)?;
        String::from_utf8(name).map_err(|_| self.corrupt(what, "a name that is no UTF-8"))
    }

    fn dimensions(&mut self) -> Result<Vec<Dimension>> {
        let count = self.list(DIMENSIONS, "list of dimensions")?;
        let mut dimensions: Vec<Dimension> = Vec::new();
        for _ in 0..count {
            let name = self.name("dimension")?;
            let size = self.count("dimension")?;
            if size == 0 && dimensions.iter().any(|dimension| dimension.unlimited) {
                return Err(self.corrupt("dimension", "a second record dimension"));
            }
            dimensions.push(Dimension {
                name,
                size,
                unlimited: size == 0,
            });
        }
        Ok(dimensions)
    }

    fn attributes(&mut self) -> Result<Vec<Attribute>> {
        let count = self.list(ATTRIBUTES, "list of attributes")?;
        let mut attributes = Vec::new();
        for _ in 0..count {
            self.source.charge(64)?;
            let name = self.name("attribute")?;
            let data_type = self.data_type()?;
            let count = self.count("attribute")?;
            let len = count.saturating_mul(u64::from(data_type.size));
            let value = if len > ATTRIBUTE_BYTES_MAX {
                let end = self
                    .at
                    .saturating_add(len)
                    .saturating_add((4 - len % 4) % 4);
                if end > self.source.size() {
                    let size = self.source.size();
                    return Err(Error::Truncated {
                        what: "attribute",
                        offset: self.at,
                        end,
                        size,
                    });
                }
                self.at = end;
                Value::Other
            } else {
                let bytes = self.padded(len, "attribute")?;
                self.source.charge(8 * count)?;
                match data_type.kind {
                    DataKind::Text => Value::Text(crate::bytes::text(&bytes)),
                    _ => values(&data_type, &bytes),
                }
            };
            attributes.push(Attribute { name, value });
        }
        Ok(attributes)
    }

    fn data_type(&mut self) -> Result<DataType> {
        let number = self.number(4, "type")?;
        let last = if self.version == 5 { 11 } else { 6 };
        let (kind, size) = match number {
            1 => (DataKind::Int, 1),
            2 => (DataKind::Text, 1),
            3 => (DataKind::Int, 2),
            4 => (DataKind::Int, 4),
            5 => (DataKind::Float, 4),
            6 => (DataKind::Float, 8),
            7 => (DataKind::Uint, 1),
            8 => (DataKind::Uint, 2),
            9 => (DataKind::Uint, 4),
            10 => (DataKind::Int, 8),
            11 => (DataKind::Uint, 8),
            _ => return Err(self.corrupt("type", format!("no type has the number {number}"))),
        };
        if number > last {
            return Err(self.corrupt("type", format!("CDF-{} has no type {number}", self.version)));
        }
        Ok(DataType {
            kind,
            size,
            order: Endian::Big,
        })
    }

    fn variables(&mut self, dimensions: &[Dimension]) -> Result<Vec<Declared>> {
        let count = self.list(VARIABLES, "list of variables")?;
        let mut variables = Vec::new();
        for _ in 0..count {
            let name = self.name("variable")?;
            let rank = self.count("variable")?;
            if rank > RANK_MAX as u64 {
                return Err(Error::Limit {
                    what: "dimensions of a variable",
                    limit: RANK_MAX as u64,
                });
            }
            let mut ids = Vec::new();
            for position in 0..rank {
                let id = self.count("variable")?;
                let known = usize::try_from(id).ok().filter(|id| *id < dimensions.len());
                let id = known.ok_or_else(|| {
                    self.corrupt("variable", format!("{name} has dimension {id}"))
                })?;
                if position > 0 && dimensions[id].unlimited {
                    return Err(self.corrupt(
                        "variable",
                        format!("records are not the first dimension of {name}"),
                    ));
                }
                // Each variable keeps the names of its dimensions.
                self.source.charge(dimensions[id].name.len() as u64 + 48)?;
                ids.push(id);
            }
            let attributes = self.attributes()?;
            let data_type = self.data_type()?;
            // The size that follows is not reliable: it is truncated if it needs more than 4 bytes.
            self.count("variable")?;
            let begin = self.number(if self.version == 1 { 4 } else { 8 }, "variable")?;
            variables.push(Declared {
                name,
                dimensions: ids,
                attributes,
                data_type,
                begin,
            });
        }
        Ok(variables)
    }
}

/// Returns the size in bytes of a variable of fixed size, or of one record of a variable.
fn bytes_of(declared: &Declared, dimensions: &[Dimension]) -> Option<u64> {
    let mut fixed = declared
        .dimensions
        .iter()
        .map(|id| &dimensions[*id])
        .filter(|dimension| !dimension.unlimited);
    fixed.try_fold(u64::from(declared.data_type.size), |bytes, dimension| {
        bytes.checked_mul(dimension.size)
    })
}

fn place(
    reader: &ClassicReader<'_>,
    declared: Vec<Declared>,
    dimensions: &[Dimension],
    records: u64,
) -> Result<Vec<Variable>> {
    let is_record = |variable: &Declared| {
        variable
            .dimensions
            .first()
            .is_some_and(|id| dimensions[*id].unlimited)
    };
    let too_large = || Error::Limit {
        what: "bytes of a variable",
        limit: i64::MAX.unsigned_abs(),
    };
    let mut record_vars = declared.iter().filter(|variable| is_record(variable));
    let stride = match (record_vars.next(), record_vars.next()) {
        // Records of the only record variable are not padded.
        (Some(only), None) => bytes_of(only, dimensions).ok_or_else(too_large)?,
        _ => declared
            .iter()
            .filter(|variable| is_record(variable))
            .try_fold(0_u64, |sum, variable| {
                bytes_of(variable, dimensions)
                    .and_then(|bytes| sum.checked_add(bytes.checked_next_multiple_of(4)?))
                    .ok_or_else(too_large)
            })?,
    };
    let first = declared
        .iter()
        .filter(|variable| is_record(variable))
        .map(|variable| variable.begin)
        .min();
    let streaming =
        STREAMING.contains(&records) && (reader.version == 5 || records == STREAMING[0]);
    let records = match first {
        Some(first) if streaming && stride > 0 => {
            reader.source.size().saturating_sub(first) / stride
        }
        _ if streaming => 0,
        _ => records,
    };
    let sized = |id: &usize| {
        let dimension = dimensions[*id].clone();
        Dimension {
            size: if dimension.unlimited {
                records
            } else {
                dimension.size
            },
            ..dimension
        }
    };
    let variable = |declared: Declared| {
        let storage = if is_record(&declared) {
            Storage::Records {
                offset: declared.begin,
                stride,
            }
        } else {
            Storage::Contiguous {
                offset: declared.begin,
            }
        };
        let variable = Variable {
            path: declared.name,
            dimensions: declared.dimensions.iter().map(sized).collect(),
            fill: default_fill(&declared.data_type),
            data_type: declared.data_type,
            attributes: declared.attributes,
            storage,
        };
        variable.checked()
    };
    declared.into_iter().map(variable).collect()
}

/// Returns the value that the netCDF library stores for elements that were never written.
pub(crate) fn default_fill(data_type: &DataType) -> Option<Vec<u8>> {
    const FLOAT: f32 = 9.969_21e36;
    Some(match (&data_type.kind, data_type.size) {
        (DataKind::Int, 1) => vec![0x81],
        (DataKind::Int, 2) => (-32767_i16).to_be_bytes().to_vec(),
        (DataKind::Int, 4) => (-2_147_483_647_i32).to_be_bytes().to_vec(),
        (DataKind::Int, 8) => (-9_223_372_036_854_775_806_i64).to_be_bytes().to_vec(),
        (DataKind::Uint, 8) => (u64::MAX - 1).to_be_bytes().to_vec(),
        (DataKind::Uint, size) => vec![255; size as usize],
        (DataKind::Float, 4) => FLOAT.to_be_bytes().to_vec(),
        (DataKind::Float, 8) => f64::from(FLOAT).to_be_bytes().to_vec(),
        (DataKind::Text, 1) => vec![0],
        _ => return None,
    })
}
