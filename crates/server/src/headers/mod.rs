//! Headers of scientific files, read once for each version and kept, so that files can be found by what they hold
//! (`docs/decisions/0034-finding-files.md`).
//!
//! A Zarr that is a folder (`zarr`) has its header in many files, of which one stands for it.
//!
//! `store` queues a version in the transaction that makes it visible under a name that such files have; `driver` reads
//! headers, a few at a time, by ranges from the elements that hold them; `facts` chooses what is kept of one, and
//! `coordinates` looks up how far its coordinates reach.

mod coordinates;
pub(crate) mod driver;
mod facts;
mod store;
pub(crate) mod zarr;

use parking_lot::Mutex;
use std::collections::BTreeSet;
use tokio::sync::Notify;

/// Endings of names of files whose headers are read.
const ENDINGS: [&str; 13] = [
    "nc", "nc3", "nc4", "cdf", "netcdf", "h5", "hdf5", "hdf", "he5", "fits", "fit", "fts", "zip",
];

/// Whether a file is taken for a scientific one by its name or path.
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

/// Wakes whoever reads headers.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    notify: Notify,
    /// Zarrs of which something changed since they were picked, by the object that stands for each. Changed by writers of the database only,
    /// one after the other.
    changed: Mutex<BTreeSet<u64>>,
}

#[cfg(test)]
mod tests {
    use super::by_name;

    #[test]
    fn by_name_recognises_extensions_of_headers() {
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
