//! Description of a scientific file, independent of its format.

use serde::{Deserialize, Serialize};

use crate::{Error, Result, hdf5, zarr};

/// Maximum number of dimensions of a variable: HDF5's own limit.
pub const RANK_MAX: usize = 32;
/// Maximum number of variables, dimensions or groups of a file.
pub const NAMES_MAX: usize = 1 << 16;
/// Maximum size of an attribute whose value is stored, in bytes.
pub const ATTRIBUTE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of existing names in an error.
const NAMES_REPORTED: usize = 20;

/// Supported file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// netCDF classic, by its version byte: 1, 2 (64-bit offset) or 5 (64-bit data).
    Classic(u8),
    /// HDF5 in the form that the netCDF library writes.
    Netcdf4,
    /// HDF5 in any other form.
    Hdf5,
    /// Zarr, version 2 or 3.
    Zarr(u8),
    /// FITS.
    Fits,
    /// Fixed records that the user describes.
    Columns,
}

/// Variables of a file, and attributes of the whole file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Format of the file.
    pub format: Format,
    /// Attributes of the file or its root group.
    pub attributes: Vec<Attribute>,
    /// Groups of the file except the root group, by their paths.
    pub groups: Vec<Group>,
    /// All variables of the file, in all groups.
    pub variables: Vec<Variable>,
}

impl Header {
    /// Returns the variable with this name; a variable in a group has its path as the name.
    ///
    /// # Errors
    /// [`Error::NoVariable`], with the names of existing variables.
    pub fn find(&self, name: &str) -> Result<&Variable> {
        let wanted = name.trim_matches('/');
        self.variables
            .iter()
            .find(|variable| variable.path == wanted)
            .ok_or_else(|| Error::NoVariable {
                name: name.into(),
                there: self
                    .variables
                    .iter()
                    .take(NAMES_REPORTED)
                    .map(|variable| variable.path.clone())
                    .collect(),
            })
    }
}

/// Group of a file below its root group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Path of the group, without slashes at its ends.
    pub path: String,
    /// Attributes of the group.
    pub attributes: Vec<Attribute>,
}

/// Variable of a file (array, dataset, image).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Variable {
    /// Path of the variable: the names of its groups, with slashes between them, and its own name.
    pub path: String,
    /// Dimensions of the variable; the index of the first dimension changes slowest. Empty for a single value.
    pub dimensions: Vec<Dimension>,
    /// Type of an element of the variable.
    pub data_type: DataType,
    /// Attributes of the variable, without those that the format reserves (netCDF-4's dimension scales).
    pub attributes: Vec<Attribute>,
    /// Location of the variable's bytes.
    pub storage: Storage,
    /// Bytes of an element that was never written, in the byte order of `data_type`; `None` stands for zeros.
    pub fill: Option<Vec<u8>>,
}

/// Dimension of a variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dimension {
    /// Name of the dimension; `dim_0`, `dim_1`, … if the file gives no name.
    pub name: String,
    /// Number of indices of the dimension.
    pub size: u64,
    /// Whether the dimension can grow.
    pub unlimited: bool,
}

/// Type and size of an element of a variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataType {
    /// Kind of data in an element.
    pub kind: DataKind,
    /// Size of an element, in bytes.
    pub size: u32,
    /// Byte order of a number in an element.
    pub order: Endian,
}

/// Kind of data in an element.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataKind {
    /// Signed integer in two's complement.
    Int,
    /// Unsigned integer.
    Uint,
    /// Floating-point number of IEEE 754.
    Float,
    /// Two floating-point numbers of IEEE 754: real and imaginary part.
    Complex,
    /// Truth value in one byte: 0 or 1.
    Bool,
    /// Text of fixed length, up to its first zero byte.
    Text,
    /// Several named numbers.
    Compound(Vec<CompoundMember>),
    /// Any other kind, such as text of any length, by its name.
    Other(String),
}

/// Member of a compound type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompoundMember {
    /// Name of the member.
    pub name: String,
    /// Offset of the member in an element, in bytes.
    pub offset: u32,
    /// Type of the member.
    pub data_type: DataType,
}

/// Byte order of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Endian {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

/// Attribute of a variable, a group or a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attribute {
    /// Name of the attribute.
    pub name: String,
    /// Value of the attribute.
    pub value: Value,
}

/// Value of an attribute.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    /// One text.
    Text(String),
    /// Several texts.
    Texts(Vec<String>),
    /// Signed integers.
    Int(Vec<i64>),
    /// Unsigned integers.
    Uint(Vec<u64>),
    /// Floating-point numbers.
    Float(Vec<f64>),
    /// Value that is not stored: references, compounds, or more than [`ATTRIBUTE_BYTES_MAX`] bytes.
    Other,
}

impl Value {
    /// Returns all numbers of the value, as floating-point numbers.
    pub fn numbers(&self) -> Vec<f64> {
        #[expect(clippy::cast_precision_loss, reason = "that is what is asked for")]
        match self {
            Self::Int(numbers) => numbers.iter().map(|number| *number as f64).collect(),
            Self::Uint(numbers) => numbers.iter().map(|number| *number as f64).collect(),
            Self::Float(numbers) => numbers.clone(),
            Self::Text(_) | Self::Texts(_) | Self::Other => Vec::new(),
        }
    }
}

/// Location of the bytes of a variable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    /// All elements are contiguous in the file.
    Contiguous {
        /// Offset of the first element in the file.
        offset: u64,
    },
    /// The records (indices of the first dimension) follow each other, with the bytes of other variables in between.
    Records {
        /// Offset of the first record in the file.
        offset: u64,
        /// Distance from the start of a record to the start of the next record, in bytes.
        stride: u64,
    },
    /// The variable is stored in chunks of equal shape, each with its own location.
    Chunked(Chunked),
    /// No element was ever written: all values are the fill value.
    Absent,
    /// The bytes have a location that this reader does not support.
    Elsewhere(String),
}

/// Storage of a variable in chunks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Chunked {
    /// Number of elements of a chunk along each dimension. Chunks at the ends of dimensions have the same size as other chunks.
    pub shape: Vec<u64>,
    /// Filters that a writer applied to each chunk, first to last.
    pub filters: Vec<Filter>,
    /// Index that contains the locations of the chunks.
    pub index: Index,
}

/// Kind and location of a chunk index.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Index {
    /// The index is in an HDF5 file.
    Hdf5(hdf5::Hdf5Index),
    /// The names of files are the index (Zarr).
    Zarr(zarr::ZarrIndex),
}

/// Filter that a writer applied to a chunk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Filter {
    /// First bytes of all elements, then second bytes, and so on.
    Shuffle {
        /// Size of an element, in bytes.
        element: u32,
    },
    /// Compression as a zlib stream.
    Deflate,
    /// Compression as a gzip file.
    Gzip,
    /// Fletcher's checksum in four bytes at the end.
    Fletcher32,
    /// Checksum CRC-32C in four bytes at the end.
    Crc32c,
    /// Checksum in four bytes (CRC-32, Adler-32, …) as numcodecs writes it.
    Checksum {
        /// Name of the checksum algorithm.
        name: String,
    },
    /// libaec's extended Rice coding, in HDF5's form.
    Szip {
        /// HDF5's mask of options.
        mask: u32,
        /// Number of pixels in a block.
        block: u32,
        /// Number of bits in a pixel.
        bits: u32,
        /// Number of pixels in a scan line.
        line: u32,
    },
    /// Compression as a Zstandard frame.
    Zstd,
    /// Compression as a Blosc frame, which contains its own compression and shuffle settings.
    Blosc,
    /// Compression as a Blosc 2 frame.
    Blosc2,
    /// Compression with LZ4: HDF5's blocks with their lengths, or numcodecs' single block after its length.
    Lz4 {
        /// Whether the data has HDF5's form.
        blocks: bool,
    },
    /// Compression with bzip2.
    Bzip2,
    /// Compression with LZF, as in h5py.
    Lzf,
    /// Bits of one significance are grouped, and compressed with LZ4 or Zstandard.
    Bitshuffle {
        /// Parameters of the filter as in the file.
        parameters: Vec<u32>,
    },
    /// HDF5's n-bit filter for integers of odd sizes.
    Nbit {
        /// Parameters of the filter as in the file.
        parameters: Vec<u32>,
    },
    /// HDF5's scale-offset filter.
    ScaleOffset {
        /// Parameters of the filter as in the file.
        parameters: Vec<u32>,
    },
    /// Dimensions are stored in another order: the first stored dimension is `order[0]`, ….
    Transpose {
        /// Index of the dimension at each stored position.
        order: Vec<u32>,
    },
    /// Any other filter.
    Other {
        /// Name of the filter, or its number in HDF5.
        name: String,
        /// Whether a chunk may be stored without the filter.
        optional: bool,
        /// Parameters of the filter as in the file.
        parameters: Vec<u32>,
    },
}

/// Location of a chunk in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Chunk {
    /// Number of the chunk among all possible chunks; the last dimension is the fastest.
    pub number: u64,
    /// Offset of the chunk's first byte.
    pub offset: u64,
    /// Size of the stored chunk in bytes.
    pub size: u64,
    /// Bit *n* is set if filter *n* was not applied to the chunk.
    pub mask: u32,
}

impl DataType {
    /// Returns the name of the type, in numpy's notation if numpy has one.
    pub fn name(&self) -> String {
        let bits = u64::from(self.size) * 8;
        match &self.kind {
            DataKind::Int => format!("int{bits}"),
            DataKind::Uint => format!("uint{bits}"),
            DataKind::Float => format!("float{bits}"),
            DataKind::Complex => format!("complex{bits}"),
            DataKind::Bool => "bool".into(),
            DataKind::Text if self.size == 1 => "char".into(),
            DataKind::Text => format!("text of {}", self.size),
            DataKind::Compound(members) => {
                let of = members
                    .iter()
                    .map(|member| format!("{} {}", member.data_type.name(), member.name));
                format!("({})", of.collect::<Vec<_>>().join(", "))
            }
            DataKind::Other(name) => name.clone(),
        }
    }
}

impl Variable {
    /// Returns the sizes of all dimensions of the variable.
    pub fn shape(&self) -> Vec<u64> {
        self.dimensions
            .iter()
            .map(|dimension| dimension.size)
            .collect()
    }

    /// Returns the number of elements of the variable.
    pub fn elements(&self) -> u64 {
        self.dimensions.iter().fold(1, |product: u64, dimension| {
            product.saturating_mul(dimension.size)
        })
    }

    /// Returns the variable's attribute with this name.
    pub fn attribute(&self, name: &str) -> Option<&Value> {
        self.attributes
            .iter()
            .find(|attribute| attribute.name == name)
            .map(|attribute| &attribute.value)
    }

    /// Returns the variable's attribute with this name if its value is text.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.attribute(name) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// Refuses a variable with sizes that no file can contain, so that later multiplications need no check.
    pub(crate) fn checked(self) -> Result<Self> {
        let bytes = self
            .dimensions
            .iter()
            .try_fold(u64::from(self.data_type.size), |product, dimension| {
                product.checked_mul(dimension.size)
            });
        if self.dimensions.len() > RANK_MAX {
            return Err(Error::Limit {
                what: "dimensions of a variable",
                limit: RANK_MAX as u64,
            });
        }
        match bytes {
            Some(bytes) if i64::try_from(bytes).is_ok() => Ok(self),
            _ => Err(Error::Limit {
                what: "bytes of a variable",
                limit: i64::MAX.unsigned_abs(),
            }),
        }
    }
}

/// Converts numbers or texts in `bytes` to an attribute's value.
pub(crate) fn values(data_type: &DataType, bytes: &[u8]) -> Value {
    let size = data_type.size as usize;
    if size == 0 {
        return Value::Other;
    }
    let words = bytes.chunks_exact(size);
    match (&data_type.kind, size) {
        (DataKind::Int, 1 | 2 | 4 | 8) => {
            Value::Int(words.map(|word| signed(word, data_type.order)).collect())
        }
        (DataKind::Uint | DataKind::Bool, 1 | 2 | 4 | 8) => {
            Value::Uint(words.map(|word| unsigned(word, data_type.order)).collect())
        }
        (DataKind::Float, 4) => Value::Float(
            words
                .map(|word| {
                    f64::from(f32::from_bits(
                        u32::try_from(unsigned(word, data_type.order)).unwrap_or_default(),
                    ))
                })
                .collect(),
        ),
        (DataKind::Float, 8) => Value::Float(
            words
                .map(|word| f64::from_bits(unsigned(word, data_type.order)))
                .collect(),
        ),
        (DataKind::Text, _) => {
            let mut texts: Vec<String> = words.map(crate::bytes::text).collect();
            if texts.len() == 1 {
                Value::Text(texts.remove(0))
            } else {
                Value::Texts(texts)
            }
        }
        _ => Value::Other,
    }
}

pub(crate) fn unsigned(word: &[u8], order: Endian) -> u64 {
    let join = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
    match order {
        Endian::Little => word.iter().rev().fold(0, join),
        Endian::Big => word.iter().fold(0, join),
    }
}

pub(crate) fn signed(word: &[u8], order: Endian) -> i64 {
    let unused = 64 - 8 * word.len();
    (unsigned(word, order) << unused).cast_signed() >> unused
}

/// Returns an element according to a Zarr array's `fill_value`; `None` if the array has none, or if the type has no numbers.
///
/// # Errors
/// The reason why `fill_value` is not a value of the type.
pub(crate) fn fill_of(
    data_type: &DataType,
    json: Option<&serde_json::Value>,
) -> std::result::Result<Option<Vec<u8>>, String> {
    let Some(json) = json.filter(|json| !json.is_null()) else {
        return Ok(None);
    };
    let little = match data_type.kind {
        DataKind::Float => float_of(data_type.size, json),
        DataKind::Int | DataKind::Uint | DataKind::Bool => whole_of(data_type, json),
        _ => return Ok(None),
    };
    let mut bytes = little.ok_or_else(|| {
        format!(
            "chunks that nobody wrote have the fill_value {json}, which is no {}",
            data_type.name()
        )
    })?;
    if data_type.order == Endian::Big {
        bytes.reverse();
    }
    Ok(Some(bytes))
}

/// Returns the bytes of a float of `size` bytes, the lowest byte first. Floats of two bytes are not supported.
fn float_of(size: u32, json: &serde_json::Value) -> Option<Vec<u8>> {
    let text = json.as_str();
    if let Some(digits) = text.and_then(|text| text.strip_prefix("0x")) {
        let bits = u64::from_str_radix(digits, 16).ok();
        let bits = bits.filter(|_| digits.len() == 2 * size as usize)?;
        return bits.to_le_bytes().get(..size as usize).map(<[u8]>::to_vec);
    }
    let real = match text {
        Some("NaN") => f64::NAN,
        Some("Infinity") => f64::INFINITY,
        Some("-Infinity") => f64::NEG_INFINITY,
        _ => zarr::real(json)?,
    };
    match size {
        2 => Some(vec![0; 2]),
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the value of a type of this size"
        )]
        4 => Some((real as f32).to_le_bytes().to_vec()),
        8 => Some(real.to_le_bytes().to_vec()),
        _ => None,
    }
}

/// Returns the bytes of an integer of the type, the lowest byte first.
fn whole_of(data_type: &DataType, json: &serde_json::Value) -> Option<Vec<u8>> {
    use serde_json::Value as Json;
    let number = match json {
        Json::Bool(yes) => i128::from(*yes),
        // This is a missing time.
        Json::String(text) if text == "NaT" => i64::MIN.into(),
        _ => match (json.as_i64(), json.as_u64()) {
            (Some(number), _) => number.into(),
            (None, Some(number)) => number.into(),
            // numcodecs also writes floating-point numbers for integers.
            #[expect(clippy::cast_possible_truncation, reason = "it is whole")]
            _ => json.as_f64().filter(|real| real.fract() == 0.0)? as i128,
        },
    };
    let all = 1_i128 << (8 * data_type.size.min(8));
    let inside = match data_type.kind {
        DataKind::Int => (-all / 2..all / 2).contains(&number),
        _ => (0..all).contains(&number),
    };
    let bytes = number.to_le_bytes();
    inside.then(|| bytes[..data_type.size as usize].to_vec())
}
