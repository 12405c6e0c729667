//! Locates the bytes of a variable in files of netCDF, HDF5, Zarr and FITS.
//!
//! Readers get headers through [`Bytes`] (a file) or [`Directory`] (a directory of files), on any storage, and return the headers of all
//! formats in one form ([`Header`]). [`pieces`] converts a selection to the bytes that contain it. This crate decodes no values. Files are
//! untrusted input: every size is checked before use, and one pass over a header can read and keep only a limited amount of data.

mod bytes;
mod directory;
mod error;
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
pub use directory::Directory;
pub use error::{Error, Result};
pub use meaning::{ExactNumber, ValueMeaning};
pub use model::{
    ATTRIBUTE_BYTES_MAX, Attribute, Chunk, Chunked, CompoundMember, DataKind, DataType, Dimension,
    Endian, Filter, Format, Group, Header, Index, NAMES_MAX, RANK_MAX, Storage, Value, Variable,
};
pub use select::{FileSpan, IndexRange, Pieces, VariableExtent, VariableSource, pieces};

/// Reads the header of a file in any known format. For the contents of a zip file, pass it to [`pieces`] as a [`zip::Zip`] directory.
///
/// # Errors
/// If the format of the file is not known, or if the header is corrupt.
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
