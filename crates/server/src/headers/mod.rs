//! Headers of scientific files: the server reads the header of each version once and stores facts, so that files can be found by their
//! content (`docs/decisions/0033-metadata-search.md`).
//!
//! A Zarr that is a directory has its header in many files, which `zarr` reads. One of these files represents the Zarr.
//!
//! The queue of headers and the stored facts are in `meta/src/index`. `driver` reads headers, a few at a time, by ranges from the nodes that
//! hold the files. `facts` selects the stored facts of a header, and `coordinates` determines the ranges of its coordinates.

mod coordinates;
pub(crate) mod driver;
mod facts;
mod zarr;
