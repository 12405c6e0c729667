//! What a file says about itself, whatever its format.

use serde::{Deserialize, Serialize};

use crate::{Error, Result, hdf5, zarr};

/// Most dimensions that a variable may have: HDF5's own bound.
pub const RANK_MAX: usize = 32;
/// Most variables, dimensions or groups of a file.
pub const NAMES_MAX: usize = 1 << 16;
/// Longest attribute whose value is kept, in bytes.
pub const ATTRIBUTE_BYTES_MAX: u64 = 1 << 20;
/// Names that an error tells of.
const NAMES_TOLD: usize = 20;

/// A format that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// netCDF classic, by its version byte: 1, 2 (64-bit offset) or 5 (64-bit data).
    Classic(u8),
    /// HDF5 as the netCDF library writes it.
    Netcdf4,
    /// Any other HDF5.
    Hdf5,
    /// Zarr, version 2 or 3.
    Zarr(u8),
    /// FITS.
    Fits,
    /// Fixed records.
    Columns,
}

/// A file's variables and what is said about all of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Which format it has.
    pub format: Format,
    /// Attributes of the file or its root group.
    pub attributes: Vec<Attribute>,
    /// Its groups but the root, by their paths.
    pub groups: Vec<Group>,
    /// All variables, in all groups.
    pub variables: Vec<Variable>,
}

impl Header {
    /// The variable of this name, or path if it is in a group.
    ///
    /// # Errors
    /// [`Error::NoVariable`], with those that are there.
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
                    .take(NAMES_TOLD)
                    .map(|variable| variable.path.clone())
                    .collect(),
            })
    }
}

/// A group below the root.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Its path, without a slash at its ends.
    pub path: String,
    /// What is said about it.
    pub attributes: Vec<Attribute>,
}

/// One variable (array, dataset, image).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Variable {
    /// Its name, after the names of its groups and slashes.
    pub path: String,
    /// Its dimensions, the one whose index changes slowest first. None for a single value.
    pub dimensions: Vec<Dimension>,
    /// What an element is.
    pub data_type: DataType,
    /// What is said about it. What the format uses for itself (netCDF-4's dimension scales) is left out.
    pub attributes: Vec<Attribute>,
    /// Where its bytes are.
    pub storage: Storage,
    /// The bytes of an element that was never written, in the order of bytes of `data_type`; zeros if none.
    pub fill: Option<Vec<u8>>,
}

/// One dimension of a variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dimension {
    /// Its name; `dim_0`, `dim_1`, … if the file has none.
    pub name: String,
    /// How many indices it has.
    pub size: u64,
    /// Whether it can grow.
    pub unlimited: bool,
}

/// What an element is, and how many bytes it has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataType {
    /// What the bytes mean.
    pub kind: Kind,
    /// Bytes of an element.
    pub size: u32,
    /// In which order the bytes of a number are.
    pub order: Order,
}

/// What the bytes of an element mean.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A signed integer of two's complement.
    Int,
    /// An unsigned integer.
    Uint,
    /// IEEE 754.
    Float,
    /// Two of IEEE 754: real and imaginary part.
    Complex,
    /// One byte: 0 or 1.
    Bool,
    /// Text of fixed length, to its first zero.
    Text,
    /// Numbers of several names.
    Compound(Vec<Member>),
    /// Something else, such as text of any length, by name.
    Other(String),
}

/// One member of a compound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Bytes before it in an element.
    pub offset: u32,
    /// What it is.
    pub data_type: DataType,
}

/// An order of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Least significant first.
    Little,
    /// Most significant first.
    Big,
}

/// What is said about a variable, a group or a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attribute {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: Value,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    /// One text.
    Text(String),
    /// Several.
    Texts(Vec<String>),
    /// Signed integers.
    Int(Vec<i64>),
    /// Unsigned integers.
    Uint(Vec<u64>),
    /// Floating-point numbers.
    Float(Vec<f64>),
    /// Something that is not kept: references, compounds, or more than [`ATTRIBUTE_BYTES_MAX`].
    Other,
}

impl Value {
    /// All numbers, as floating point.
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

/// Where the bytes of a variable are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    /// All elements one after the other.
    Contiguous {
        /// Byte of the file at which they begin.
        offset: u64,
    },
    /// Each index of the first dimension one after the other, with the bytes of other variables between.
    Records {
        /// Byte of the file at which the first begins.
        offset: u64,
        /// Bytes from the beginning of one to that of the next.
        stride: u64,
    },
    /// Pieces of one shape, each with its place.
    Chunked(Chunked),
    /// Nothing was ever written: all is fill value.
    Absent,
    /// Where this reader can't follow.
    Elsewhere(String),
}

/// A variable in chunks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Chunked {
    /// Elements of a chunk along each dimension. Chunks at the ends are as large as others.
    pub shape: Vec<u64>,
    /// What was done to a chunk when it was written, first to last.
    pub filters: Vec<Filter>,
    /// Where to look chunks up.
    pub index: Index,
}

/// Where a file says where its chunks are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Index {
    /// In an HDF5 file.
    Hdf5(hdf5::Index),
    /// In names of files.
    Zarr(zarr::Index),
}

/// What was done to a chunk when it was written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Filter {
    /// First bytes of all elements, then second bytes, …
    Shuffle {
        /// Bytes of an element.
        element: u32,
    },
    /// A zlib stream.
    Deflate,
    /// A gzip file.
    Gzip,
    /// Four bytes of checksum at the end.
    Fletcher32,
    /// Four bytes of checksum (CRC-32C) at the end.
    Crc32c,
    /// Four bytes of checksum (CRC-32, Adler-32, …) as numcodecs writes them.
    Checksum {
        /// Which.
        name: String,
    },
    /// libaec's extended Rice coding, as HDF5 calls it.
    Szip {
        /// HDF5's mask of options.
        mask: u32,
        /// Pixels of a block.
        block: u32,
        /// Bits of a pixel.
        bits: u32,
        /// Pixels of a scan line.
        line: u32,
    },
    /// A Zstandard frame.
    Zstd,
    /// A Blosc frame, which says itself how it is compressed and shuffled.
    Blosc,
    /// A Blosc 2 frame.
    Blosc2,
    /// LZ4: HDF5's blocks with their lengths, or numcodecs' one block after its length.
    Lz4 {
        /// Whether it is HDF5's.
        blocks: bool,
    },
    /// bzip2.
    Bzip2,
    /// LZF, as h5py has it.
    Lzf,
    /// Bits of one significance together, and LZ4 or Zstandard.
    Bitshuffle {
        /// Parameters as in the file.
        parameters: Vec<u32>,
    },
    /// HDF5's integers of odd sizes.
    Nbit {
        /// Parameters as in the file.
        parameters: Vec<u32>,
    },
    /// HDF5's scale and offset.
    ScaleOffset {
        /// Parameters as in the file.
        parameters: Vec<u32>,
    },
    /// Dimensions in another order: the first that is stored is `order[0]`, ….
    Transpose {
        /// The order.
        order: Vec<u32>,
    },
    /// Anything else.
    Other {
        /// Its name, or HDF5's number of it.
        name: String,
        /// Whether a chunk may lack it.
        optional: bool,
        /// Parameters as in the file.
        parameters: Vec<u32>,
    },
}

/// Where a chunk lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Chunk {
    /// Its number among all there can be, the last dimension first.
    pub number: u64,
    /// First of its bytes.
    pub offset: u64,
    /// How many there are.
    pub size: u64,
    /// Bit *n* is set if filter *n* was not applied to it.
    pub mask: u32,
}

impl DataType {
    /// Its name, as numpy has it where it has one.
    pub fn name(&self) -> String {
        let bits = u64::from(self.size) * 8;
        match &self.kind {
            Kind::Int => format!("int{bits}"),
            Kind::Uint => format!("uint{bits}"),
            Kind::Float => format!("float{bits}"),
            Kind::Complex => format!("complex{bits}"),
            Kind::Bool => "bool".into(),
            Kind::Text if self.size == 1 => "char".into(),
            Kind::Text => format!("text of {}", self.size),
            Kind::Compound(members) => {
                let of = members
                    .iter()
                    .map(|member| format!("{} {}", member.data_type.name(), member.name));
                format!("({})", of.collect::<Vec<_>>().join(", "))
            }
            Kind::Other(name) => name.clone(),
        }
    }
}

impl Variable {
    /// The sizes of all dimensions.
    pub fn shape(&self) -> Vec<u64> {
        self.dimensions
            .iter()
            .map(|dimension| dimension.size)
            .collect()
    }

    /// How many elements it has.
    pub fn elements(&self) -> u64 {
        self.dimensions.iter().fold(1, |product: u64, dimension| {
            product.saturating_mul(dimension.size)
        })
    }

    /// The attribute of this name.
    pub fn attribute(&self, name: &str) -> Option<&Value> {
        self.attributes
            .iter()
            .find(|attribute| attribute.name == name)
            .map(|attribute| &attribute.value)
    }

    /// The attribute of this name if it is text.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.attribute(name) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// Refuses what no file can hold, so that whoever multiplies later need not.
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

/// A vector of numbers that lie in `bytes`, or texts.
pub(crate) fn values(data_type: &DataType, bytes: &[u8]) -> Value {
    let size = data_type.size as usize;
    if size == 0 {
        return Value::Other;
    }
    let words = bytes.chunks_exact(size);
    match (&data_type.kind, size) {
        (Kind::Int, 1 | 2 | 4 | 8) => {
            Value::Int(words.map(|word| signed(word, data_type.order)).collect())
        }
        (Kind::Uint | Kind::Bool, 1 | 2 | 4 | 8) => {
            Value::Uint(words.map(|word| unsigned(word, data_type.order)).collect())
        }
        (Kind::Float, 4) => Value::Float(
            words
                .map(|word| {
                    f64::from(f32::from_bits(
                        u32::try_from(unsigned(word, data_type.order)).unwrap_or_default(),
                    ))
                })
                .collect(),
        ),
        (Kind::Float, 8) => Value::Float(
            words
                .map(|word| f64::from_bits(unsigned(word, data_type.order)))
                .collect(),
        ),
        (Kind::Text, _) => {
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

pub(crate) fn unsigned(word: &[u8], order: Order) -> u64 {
    let join = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
    match order {
        Order::Little => word.iter().rev().fold(0, join),
        Order::Big => word.iter().fold(0, join),
    }
}

pub(crate) fn signed(word: &[u8], order: Order) -> i64 {
    let unused = 64 - 8 * word.len();
    (unsigned(word, order) << unused).cast_signed() >> unused
}

/// An element as a Zarr's `fill_value` says it; none if it says nothing, or the type has no numbers.
///
/// # Errors
/// Why it is no value of the type.
pub(crate) fn fill_of(
    data_type: &DataType,
    json: Option<&serde_json::Value>,
) -> std::result::Result<Option<Vec<u8>>, String> {
    let Some(json) = json.filter(|json| !json.is_null()) else {
        return Ok(None);
    };
    let little = match data_type.kind {
        Kind::Float => float_of(data_type.size, json),
        Kind::Int | Kind::Uint | Kind::Bool => whole_of(data_type, json),
        _ => return Ok(None),
    };
    let mut bytes = little.ok_or_else(|| {
        format!(
            "chunks that nobody wrote have the fill_value {json}, which is no {}",
            data_type.name()
        )
    })?;
    if data_type.order == Order::Big {
        bytes.reverse();
    }
    Ok(Some(bytes))
}

/// A float of so many bytes, the lowest first. None of two bytes is read.
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

/// An integer of the type, the lowest byte first.
fn whole_of(data_type: &DataType, json: &serde_json::Value) -> Option<Vec<u8>> {
    use serde_json::Value as Json;
    let number = match json {
        Json::Bool(yes) => i128::from(*yes),
        // Of times.
        Json::String(text) if text == "NaT" => i64::MIN.into(),
        _ => match (json.as_i64(), json.as_u64()) {
            (Some(number), _) => number.into(),
            (None, Some(number)) => number.into(),
            // numcodecs writes numbers of floating point for integers, too.
            #[expect(clippy::cast_possible_truncation, reason = "it is whole")]
            _ => json.as_f64().filter(|real| real.fract() == 0.0)? as i128,
        },
    };
    let all = 1_i128 << (8 * data_type.size.min(8));
    let inside = match data_type.kind {
        Kind::Int => (-all / 2..all / 2).contains(&number),
        _ => (0..all).contains(&number),
    };
    let bytes = number.to_le_bytes();
    inside.then(|| bytes[..data_type.size as usize].to_vec())
}
