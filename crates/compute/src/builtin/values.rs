//! Folds over arrays of numbers: parses the arguments that all numeric kernels share, reassembles values that were cut between pieces,
//! swaps bytes, and passes blocks of whole little-endian values to a kernel's [`Take`].

use std::collections::BTreeMap;
use std::io::Write;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::BuiltinError;
use super::table::{KernelArgument, KernelOptions};
use crate::fold::{self, Fold};
use crate::loops::number::{Number, decimal};
use crate::loops::swap;

/// Number types that an input may contain.
pub(crate) const DTYPES: &str = "f64, f32, i8, i16, i32, i64, u8, u16, u32, u64, text";

/// Arguments of all numeric kernels.
pub(crate) const FORMAT: &[KernelArgument] = &[KernelArgument {
    key: "dtype",
    values: "TYPE",
    default: "f64",
    help: "type of the values: f64, f32, i8, i16, i32, i64, u8, u16, u32, u64, or text (decimals between white space, read as f64)",
}];

/// Further arguments of all numeric kernels, listed last.
pub(crate) const ORDER: &[KernelArgument] = &[
    KernelArgument {
        key: "order",
        values: "little|big",
        default: "little",
        help: "byte order of the values",
    },
    KernelArgument {
        key: "missing",
        values: "VALUE",
        default: "",
        help: "a value (or nan) that means missing and is skipped; indices still count it",
    },
];

/// Argument for the form of a numeric result.
pub(crate) const OUT: &[KernelArgument] = &[KernelArgument {
    key: "out",
    values: "text|f64",
    default: "text",
    help: "the result as decimal text, or as raw little-endian f64 that the next kernel can read",
}];

/// Number of bytes that are byte-swapped at a time: they stay in the first-level cache.
const SWAPPED_BYTES: usize = 16 << 10;

/// Input format of all numeric kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NumberFormat {
    pub(crate) big_endian: bool,
}

/// Kernel for values of type `T`, without the parts that [`ValueFold`] implements. The serialised kernel is its partial state; data from
/// arguments is skipped.
pub(crate) trait Take<T: Number>:
    Serialize + DeserializeOwned + Send + std::fmt::Debug + 'static
{
    /// Processes whole little-endian values, the first with index `first` in the series. Blocks arrive in any order without overlaps.
    fn take(&mut self, first: u64, values: &[u8]);

    /// Merges the partial state of other blocks.
    fn merge(&mut self, other: Self);

    /// Writes the result of the kernel.
    fn finish(self, out: &mut dyn Write) -> Result<(), BuiltinError>;
}

/// Evaluates `$make` for the type `$T` that `dtype=` names: a `Result` of a [`Take`] that becomes a fold.
macro_rules! fold_of_dtype {
    ($options:expr, |$T:ident| $make:expr) => {{
        let options: &$crate::builtin::table::KernelOptions = $options;
        $crate::builtin::values::of_dtype!(options, |$T| {
            $crate::builtin::values::boxed::<$T, _>(options, $make?)
        })
    }};
}
pub(crate) use fold_of_dtype;

/// Evaluates `$make` for the type `$T` that `dtype=` names: a `Result` of a stream.
macro_rules! stream_of_dtype {
    ($options:expr, |$T:ident| $make:expr) => {{
        let options: &$crate::builtin::table::KernelOptions = $options;
        $crate::builtin::values::of_dtype!(options, |$T| {
            $make.map(|stream| Box::new(stream) as Box<dyn $crate::fold::Stream>)
        })
    }};
}
pub(crate) use stream_of_dtype;

/// Evaluates `$make` for the type `$T` that `dtype=` names.
macro_rules! of_dtype {
    ($options:expr, |$T:ident| $make:expr) => {{
        let options: &$crate::builtin::table::KernelOptions = $options;
        macro_rules! made {
            ($type:ty) => {{
                type $T = $type;
                $make
            }};
        }
        match options.text("dtype").unwrap_or_default() {
            "f64" | "text" => made!(f64),
            "f32" => made!(f32),
            "i8" => made!(i8),
            "i16" => made!(i16),
            "i32" => made!(i32),
            "i64" => made!(i64),
            "u8" => made!(u8),
            "u16" => made!(u16),
            "u32" => made!(u32),
            "u64" => made!(u64),
            other => Err(options.wrong("dtype", other, $crate::builtin::values::DTYPES)),
        }
    }};
}
pub(crate) use of_dtype;

/// Evaluates `$body` with `$T` as the type that `dtype=` names; text is `f64`.
macro_rules! with_dtype {
    ($options:expr, |$T:ident| $body:expr) => {{
        macro_rules! with {
            ($type:ty) => {{
                type $T = $type;
                $body
            }};
        }
        match $options.text("dtype").unwrap_or_default() {
            "f64" | "text" => with!(f64),
            "f32" => with!(f32),
            "i8" => with!(i8),
            "i16" => with!(i16),
            "i32" => with!(i32),
            "i64" => with!(i64),
            "u8" => with!(u8),
            "u16" => with!(u16),
            "u32" => with!(u32),
            "u64" => with!(u64),
            other => Err($options.wrong("dtype", other, $crate::builtin::values::DTYPES)),
        }
    }};
}
pub(crate) use with_dtype;

/// Returns the size in bytes of a value of the type that `dtype=` names; text counts as `f64`.
pub(crate) fn size_of_dtype(options: &KernelOptions) -> usize {
    match options.text("dtype").unwrap_or_default() {
        "i8" | "u8" => 1,
        "i16" | "u16" => 2,
        "f32" | "i32" | "u32" => 4,
        _ => 8,
    }
}

pub(crate) fn boxed<T: Number, K: Take<T>>(
    options: &KernelOptions,
    kernel: K,
) -> Result<Box<dyn Fold>, BuiltinError> {
    // Text is converted to little-endian f64 before this step.
    let big_endian = options.is("order", "big") && !options.is("dtype", "text");
    Ok(Box::new(ValueFold {
        format: NumberFormat { big_endian },
        torn: Torn::default(),
        kernel,
        swapped: Vec::new(),
        type_: PhantomData::<T>,
    }))
}

/// Returns the value that stands for missing values, if the argument `missing=` names a value.
pub(crate) fn missing<T: Number>(options: &KernelOptions) -> Result<Option<T>, BuiltinError> {
    let Some(text) = options.text("missing") else {
        return Ok(None);
    };
    let value = T::parse(text)
        .ok_or_else(|| options.wrong("missing", text, "a value of the type that dtype= names"))?;
    Ok(Some(value))
}

/// Bytes of values that were cut between two pieces, by the index of the value: a mask of the present bytes, and the bytes.
type CutValues = BTreeMap<u64, (u8, [u8; 8])>;

/// Values that have arrived only in part.
#[derive(Debug, Default, Serialize, serde::Deserialize)]
struct Torn(CutValues);

impl Torn {
    /// Adds bytes from `offset` on, all within one value of `size` bytes. Returns the value if all of its bytes have arrived.
    fn add(&mut self, offset: u64, bytes: &[u8], size: usize) -> Option<(u64, [u8; 8])> {
        let index = offset / size as u64;
        let mut value = [0; 8];
        let mut there = 0_u8;
        for (place, byte) in (offset % size as u64..).zip(bytes) {
            there |= 1 << place;
            value[usize::try_from(place).expect("a place in a value is below 8")] = *byte;
        }
        self.join(index, there, value, size)
    }

    fn join(
        &mut self,
        index: u64,
        there: u8,
        value: [u8; 8],
        size: usize,
    ) -> Option<(u64, [u8; 8])> {
        let part = self.0.entry(index).or_default();
        part.0 |= there;
        for (byte, new) in part.1.iter_mut().zip(value) {
            *byte |= new;
        }
        let whole = part.0.count_ones() as usize == size;
        whole.then(|| self.0.remove(&index).map(|part| (index, part.1)))?
    }
}

/// Fold over values of type `T`.
#[derive(Debug)]
struct ValueFold<T, K> {
    format: NumberFormat,
    torn: Torn,
    kernel: K,
    swapped: Vec<u8>,
    type_: PhantomData<T>,
}

impl<T: Number, K: Take<T>> ValueFold<T, K> {
    /// Passes whole values to the kernel.
    fn whole(&mut self, first: u64, values: &[u8]) {
        if T::SIZE == 1 || !self.format.big_endian {
            self.kernel.take(first, values);
            return;
        }
        for (index, piece) in (0_u64..).zip(values.chunks(SWAPPED_BYTES)) {
            self.swapped.resize(piece.len(), 0);
            swap::swap(piece, &mut self.swapped, T::SIZE);
            let before = index * (SWAPPED_BYTES / T::SIZE) as u64;
            self.kernel.take(first + before, &self.swapped);
        }
    }

    fn torn(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if let Some((index, value)) = self.torn.add(offset, bytes, T::SIZE) {
            self.whole(index, &value[..T::SIZE]);
        }
    }
}

impl<T: Number, K: Take<T>> Fold for ValueFold<T, K> {
    fn update(&mut self, offset: u64, bytes: &[u8]) -> Result<(), BuiltinError> {
        let size = T::SIZE as u64;
        let to_next =
            usize::try_from(offset.next_multiple_of(size) - offset).expect("a value has few bytes");
        let (head, rest) = bytes.split_at(to_next.min(bytes.len()));
        self.torn(offset, head);
        let (values, tail) = rest.split_at(rest.len() / T::SIZE * T::SIZE);
        let start = offset + head.len() as u64;
        if !values.is_empty() {
            self.whole(start / size, values);
        }
        self.torn(start + values.len() as u64, tail);
        Ok(())
    }

    fn state(&self) -> Result<Vec<u8>, BuiltinError> {
        fold::encode(&(&self.torn, &self.kernel))
    }

    fn merge(&mut self, state: &[u8]) -> Result<(), BuiltinError> {
        let (torn, kernel): (Torn, K) = fold::decode(state)?;
        self.kernel.merge(kernel);
        for (index, (there, value)) in torn.0 {
            if let Some((index, value)) = self.torn.join(index, there, value, T::SIZE) {
                self.whole(index, &value[..T::SIZE]);
            }
        }
        Ok(())
    }

    fn finish(self: Box<Self>, out: &mut dyn Write) -> Result<(), BuiltinError> {
        if let Some(index) = self.torn.0.keys().next() {
            return Err(BuiltinError::Gap(index * T::SIZE as u64));
        }
        self.kernel.finish(out)
    }
}

/// Result of a numeric kernel: numbers, and their text (exact for integers).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NumericResult {
    pub(crate) values: Vec<f64>,
    pub(crate) text: String,
}

impl NumericResult {
    pub(crate) fn floats(values: Vec<f64>) -> Self {
        let text: Vec<_> = values.iter().map(|value| decimal(*value)).collect();
        Self {
            values,
            text: text.join(" "),
        }
    }

    /// Writes the result as one line, or as raw numbers.
    pub(crate) fn write(&self, raw: bool, out: &mut dyn Write) -> Result<(), BuiltinError> {
        if raw {
            let bytes: Vec<u8> = self
                .values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect();
            out.write_all(&bytes)
        } else {
            writeln!(out, "{}", self.text)
        }
        .map_err(BuiltinError::Write)
    }
}
