//! Computation on bytes, without processes and without the network: the built-in kernels, arrays of scientific files and reductions.
//!
//! `tidemill-sandbox` runs this code in confined processes.

pub mod array;
mod builtin;
mod exact_sums;
mod fold;
mod loops;
pub mod memory;
pub mod reduction;
mod threads;
pub mod work;

pub use builtin::chain::{ChainLink, ChainSink, LinkError, chain, named_inputs};
pub use builtin::series::SeriesFile;
pub use builtin::{
    BuiltinError, BuiltinKernel, KernelArgument, KernelInputFormat, MERGE, PARTIAL, builtin_hash,
    builtin_kernels, builtin_names, check_arguments, fold_builtin, is_builtin, reads_numbers,
    run_builtin, stream_builtin,
};
pub use fold::{Folding, STATE_VERSION, Streaming};
