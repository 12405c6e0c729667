//! Inner loops: pure functions over slices, without files, arguments or states.
//!
//! Each loop has a portable path, which every processor runs (compiled for NEON on AArch64, where it has not been tested). For AVX2 and
//! AVX-512, the portable path is compiled again or there is a separate path. [`simd::Level`] chooses the path at run time. All paths give
//! the same results, to the last bit; tests compare them.

pub(crate) mod affine;
pub(crate) mod bytes;
pub(crate) mod convert;
pub(crate) mod edges;
pub(crate) mod eigen;
pub(crate) mod extremes;
pub(crate) mod fingerprint;
pub(crate) mod gram;
pub(crate) mod heartbeat;
pub(crate) mod huge_pages;
pub(crate) mod lanes;
pub(crate) mod local_extrema;
pub(crate) mod moments;
pub(crate) mod nearest;
pub(crate) mod number;
pub(crate) mod pick;
pub(crate) mod product;
pub(crate) mod simd;
pub(crate) mod sort;
pub(crate) mod subset;
pub(crate) mod swap;
pub(crate) mod transpose;
