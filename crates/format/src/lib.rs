//! Which bytes of a file hold a variable, for files of netCDF, HDF5, Zarr and FITS.
//!
//! Headers are read through [`Bytes`] (a file) or [`Folder`] (a folder of files), wherever those lie; what is in them is
//! told in one form ([`Header`]) whatever the format. [`pieces`] goes from a selection to the bytes that hold it.
//! Nothing is decoded here. Files are somebody else's: every size is checked before it is believed, and what one pass
//! over a header may read and keep is bounded.

mod bytes;
mod error;
mod folder;
mod meaning;
mod model;
mod select;

pub mod classic;
pub mod columns;
pub mod csv;
pub mod fits;
pub mod hdf5;
pub mod time;
pub mod zarr;
pub mod zip;

pub use bytes::Bytes;
pub use error::{Error, Result};
pub use folder::Folder;
pub use meaning::{Meaning, Number};
pub use model::{
    ATTRIBUTE_BYTES_MAX, Attribute, Chunk, Chunked, DataType, Dimension, Filter, Format, Group,
    Header, Index, Kind, Member, NAMES_MAX, Order, RANK_MAX, Storage, Value, Variable,
};
pub use select::{Piece, Pieces, Range, Span, Store, pieces};

/// Reads the header of a file in whatever format it has. One that is a zip file is a folder ([`zip::Zip`]) to [`pieces`].
///
/// # Errors
/// If its format is not known, or its header is damaged.
pub fn read(bytes: &dyn Bytes) -> Result<Header> {
    let mut first = vec![0; usize::try_from(bytes.size().min(8)).unwrap_or(8)];
    bytes.read_at(0, &mut first).map_err(|source| Error::Io {
        what: "first bytes",
        offset: 0,
        source,
    })?;
    match first.as_slice() {
        [b'C', b'D', b'F', 1 | 2 | 5, ..] => classic::read(bytes),
        [b'S', b'I', b'M', b'P', b'L', b'E', b' ', b' '] => fits::read(bytes),
        [b'P', b'K', 3, 4, ..] => zarr::read(&zip::Zip::open(bytes)?),
        _ if hdf5::is(bytes) => hdf5::read(bytes),
        _ => Err(Error::Unknown {
            first: first.iter().map(|byte| format!("{byte:02x}")).collect(),
        }),
    }
}
