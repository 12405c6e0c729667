//! Rows of a matrix in files, for kernels that read it several times.

use super::BuiltinError;
use super::series::{SeriesInputs, memory};
use super::table::KernelOptions;
use super::values::size_of_dtype;
use crate::loops::number::Number;
use crate::loops::swap::swap;

/// Matrix of values in rows; each file contains whole rows.
#[derive(Debug)]
pub(super) struct RowMatrix {
    files: Vec<SeriesInputs>,
    size: usize,
    big: bool,
    columns: usize,
}

impl RowMatrix {
    pub(super) fn open(
        options: &KernelOptions,
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

    /// Returns the size of a row, in bytes.
    pub(super) fn row_bytes(&self) -> usize {
        self.columns * self.size
    }

    pub(super) fn rows(&self) -> usize {
        let bytes: usize = self.files.iter().map(|file| file.len()).sum();
        bytes / self.row_bytes()
    }

    /// Returns all rows of the matrix, at most `rows` at a time; the blocks are the same in every pass.
    pub(super) fn blocks(&self, rows: usize) -> impl Iterator<Item = &[u8]> {
        let files = self.files.iter();
        files.flat_map(move |file| file.chunks(rows * self.row_bytes()))
    }

    /// Returns values in little-endian byte order.
    pub(super) fn little<'a>(&self, values: &'a [u8], swapped: &'a mut Vec<u8>) -> &'a [u8] {
        if !self.big {
            return values;
        }
        swapped.resize(values.len(), 0);
        swap(values, swapped, self.size);
        swapped
    }
}

/// Returns whether the condition `is` is true for any value.
pub(super) fn any<T: Number>(values: &[u8], is: impl Fn(T) -> bool) -> bool {
    // Each piece is examined completely, so that vectors can be used.
    let found = |piece: &[u8]| {
        let values = piece.chunks_exact(T::SIZE).map(T::read);
        values.fold(false, |any, value| any | is(value))
    };
    values.chunks(512 * T::SIZE).any(found)
}

/// Returns the row and column of the first value that is not finite, except in skipped rows.
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
