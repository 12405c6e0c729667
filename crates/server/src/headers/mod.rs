//! Headers of scientific files: the server reads the header of each version once and stores facts, so that files can be found by their
//! content (`docs/decisions/0033-metadata-search.md`).
//!
//! A Zarr that is a directory (`zarr`) has its header in many files. One of these files represents the Zarr.
//!
//! `store` queues a version in the transaction that makes the version visible under the name of a scientific file. `driver` reads headers,
//! a few at a time, by ranges from the nodes that hold the files. `facts` selects the stored facts of a header, and `coordinates`
//! determines the ranges of its coordinates.

mod coordinates;
pub(crate) mod driver;
mod facts;
mod store;
pub(crate) mod zarr;

use parking_lot::Mutex;
use std::collections::BTreeSet;
use tokio::sync::Notify;

/// Extensions of the names of files whose headers are read.
const ENDINGS: [&str; 13] = [
    "nc", "nc3", "nc4", "cdf", "netcdf", "h5", "hdf5", "hdf", "he5", "fits", "fit", "fts", "zip",
];

/// Whether a file counts as scientific, according to its name or path.
fn by_name(path: &[u8]) -> bool {
    if zarr::is_metadata(path) {
        return true;
    }
    let dot = path.iter().rposition(|&byte| byte == b'.' || byte == b'/');
    let ending = match dot {
        Some(dot) if path[dot] == b'.' => &path[dot + 1..],
        _ => return false,
    };
    let is = |known: &&str| ending.eq_ignore_ascii_case(known.as_bytes());
    ENDINGS.iter().any(is)
}

/// Signal that wakes the reader of headers, and the set of changed Zarrs.
#[derive(Debug, Default)]
pub(crate) struct HeaderWake {
    notify: Notify,
    /// Zarrs that were changed since they were selected, by the object that represents each Zarr. Only writers of the database change the
    /// set, one after the other.
    changed: Mutex<BTreeSet<u64>>,
}

#[cfg(test)]
mod tests {
    use super::by_name;

    #[test]
    fn by_name_recognises_extensions_of_scientific_files() {
        for name in [
            "a.nc",
            "/x/y.NC",
            "/x.d/tas_2015.h5",
            ".fits",
            "a.b.he5",
            "/a/.zarray",
        ] {
            assert!(by_name(name.as_bytes()), "{name}");
        }
        for name in ["nc", "/a.nc/b", "a.nc.tmp", "a.n", "", "a.", "/a.nc/"] {
            assert!(!by_name(name.as_bytes()), "{name}");
        }
    }
}
