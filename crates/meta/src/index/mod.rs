//! Index of the headers of scientific files.

pub mod facts;
pub mod find;
pub mod headers;
pub mod zarr;
