//! Requests to reduce stored arrays: where the bytes are, the reductions, and the limits of a request.

use serde::{Deserialize, Serialize};

use crate::array::{ArrayError, ArraySpec, RAW_BYTES_MAX};
use crate::reduction::ReductionBatch;

/// Maximum number of pieces of one array.
pub const PIECES_MAX: usize = 1 << 16;

/// Maximum size of a stored array, in bytes.
pub const STORED_BYTES_MAX: u64 = RAW_BYTES_MAX as u64;

/// Maximum number of bytes that may be sent with an order.
pub const SENT_BYTES_MAX: usize = 64 << 20;

/// Location of stored bytes; the locations of an array are in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoredBytes {
    /// The bytes are in the file that is sent with the order.
    Held {
        /// Offset of the first byte in the file.
        offset: u64,
        /// Number of bytes in the file.
        length: u64,
    },
    /// This number of bytes is sent with the order.
    Sent(u64),
    /// This number of bytes was never written: all of them are zeros.
    Hole(u64),
}

/// A reduction of an array, and the array's stored bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArrayReduction {
    /// Description of the reduction.
    pub spec: ArraySpec,
    /// Locations of the stored bytes, in order.
    pub pieces: Vec<StoredBytes>,
}

/// Work of a child on the bytes of one file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ReducerWork {
    /// One array is reduced to its [`Reduced`](crate::array::Reduced).
    Array(ArrayReduction),
    /// Pieces of a variable are folded to their [`State`](crate::reduction::BoxState).
    Batch(ReductionBatch),
}

impl ReducerWork {
    /// Returns the locations of all stored bytes, in order.
    pub fn pieces(&self) -> Box<dyn Iterator<Item = &StoredBytes> + '_> {
        match self {
            Self::Array(order) => Box::new(order.pieces.iter()),
            Self::Batch(batch) => Box::new(batch.items.iter().flat_map(|item| &item.bytes)),
        }
    }

    /// Returns the same work with its bytes at the locations `to`, which must be as many.
    #[must_use]
    pub fn moved(mut self, to: impl IntoIterator<Item = StoredBytes>) -> Self {
        let places: Box<dyn Iterator<Item = &mut StoredBytes>> = match &mut self {
            Self::Array(order) => Box::new(order.pieces.iter_mut()),
            Self::Batch(batch) => Box::new(batch.items.iter_mut().flat_map(|item| &mut item.bytes)),
        };
        places.zip(to).for_each(|(place, to)| *place = to);
        self
    }

    /// Returns the number of bytes that are sent with the work.
    ///
    /// # Errors
    /// If a limit on the work is exceeded.
    pub fn check(&self) -> Result<u64, ReducerError> {
        let (mut all, mut sent, mut count) = (0_u64, 0_u64, 0_usize);
        for piece in self.pieces() {
            let (StoredBytes::Held { length, .. }
            | StoredBytes::Sent(length)
            | StoredBytes::Hole(length)) = piece;
            (all, count) = (all.saturating_add(*length), count + 1);
            if let StoredBytes::Sent(length) = piece {
                sent = sent.saturating_add(*length);
            }
        }
        if all > STORED_BYTES_MAX || sent > SENT_BYTES_MAX as u64 || count > PIECES_MAX {
            return Err(ArrayError::TooLarge.into());
        }
        if let Self::Array(order) = self {
            crate::array::ArrayPlan::new(&order.spec)?;
        }
        Ok(sent)
    }
}

impl ArrayReduction {
    /// Returns the number of bytes that are sent with the reduction.
    ///
    /// # Errors
    /// If a limit on the work is exceeded.
    pub fn check(&self) -> Result<u64, ReducerError> {
        ReducerWork::Array(self.clone()).check()
    }
}

/// Error of a request that a child refuses. A second try would fail, too.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct ReducerError {
    /// Description of the error.
    pub message: String,
    /// Whether the stored bytes are the cause of the error.
    pub of_data: bool,
}

impl From<ArrayError> for ReducerError {
    fn from(error: ArrayError) -> Self {
        Self {
            message: error.to_string(),
            of_data: error.is_of_data(),
        }
    }
}
