//! The rows of a matrix that lies in files, for kernels that pass over it several times.

use super::BuiltinError;
use super::series::{Memory, memory};
use super::table::Options;
use super::values::size_of_dtype;
use crate::loops::number::Number;
use crate::loops::swap::swap;

/// Rows of values, in each file whole ones.
#[derive(Debug)]
pub(super) struct Matrix {
    files: Vec<Memory>,
    size: usize,
    big: bool,
    columns: usize,
}

impl Matrix {
    pub(super) fn open(
        options: &Options,
        inputs: &[String],
        columns: usize,
    ) -> Result<Self, BuiltinError> {
        let size = size_of_dtype(options);
        let files = memory(inputs, options)?;
        for file in &files {
            let values = (file.len() / size) as u64;
            if !values.is_multiple_of(columns as u64) {
                return Err(BuiltinError::RaggedRows { values, columns });
            }
        }
        Ok(Self {
            files,
            size,
            big: options.is("order", "big") && !options.is("dtype", "text"),
            columns,
        })
    }

    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// Bytes of a row.
    pub(super) fn row_bytes(&self) -> usize {
        self.columns * self.size
    }

    pub(super) fn rows(&self) -> usize {
        let bytes: usize = self.files.iter().map(|file| file.len()).sum();
        bytes / self.row_bytes()
    }

    /// All rows, at most so many at a time; always the same blocks.
    pub(super) fn blocks(&self, rows: usize) -> impl Iterator<Item = &[u8]> {
        let files = self.files.iter();
        files.flat_map(move |file| file.chunks(rows * self.row_bytes()))
    }

    /// Values in little-endian order.
    pub(super) fn little<'a>(&self, values: &'a [u8], swapped: &'a mut Vec<u8>) -> &'a [u8] {
        if !self.big {
            return values;
        }
        swapped.resize(values.len(), 0);
        swap(values, swapped, self.size);
        swapped
    }
}

/// Whether a value is such.
pub(super) fn any<T: Number>(values: &[u8], is: impl Fn(T) -> bool) -> bool {
    // Without an end within a piece, so that vectors can be used.
    let found = |piece: &[u8]| {
        let values = piece.chunks_exact(T::SIZE).map(T::read);
        values.fold(false, |any, value| any | is(value))
    };
    values.chunks(512 * T::SIZE).any(found)
}

/// The row and column of the first value that is not finite, but in rows that are passed over.
pub(super) fn not_finite<T: Number>(
    values: &[u8],
    columns: usize,
    passed: impl Fn(&[u8]) -> bool,
) -> Option<(usize, usize)> {
    if T::INTEGER || !any(values, |value: T| !value.to_f64().is_finite()) {
        return None;
    }
    let rows = values.chunks_exact(columns * T::SIZE).enumerate();
    let mut bad = rows
        .filter(|(_, row)| !passed(row))
        .filter_map(|(row, bytes)| {
            let mut numbers = bytes.chunks_exact(T::SIZE).map(T::read);
            let column = numbers.position(|value| !value.to_f64().is_finite())?;
            Some((row, column))
        });
    bad.next()
}
