//! Kernels as WebAssembly modules: the same interface as native ones (`include/tidemill_kernel.h`), with the same
//! names, for a machine of its own inside this process.
//!
//! A module is compiled in one child ([`compile`]) and run in others ([`run`]), which only map what was compiled. It
//! is offered two functions, `tidemill.write` and `tidemill.error`, and nothing else: no files, no clock, no chance.

#[cfg(feature = "wasm")]
mod engine;
#[cfg(feature = "wasm")]
mod guest;

use std::io::{self, Read, Write};
use std::os::fd::RawFd;

use super::native::{Call, NativeError};

/// Largest module, in bytes.
#[cfg(feature = "wasm")]
pub(crate) const MODULE_BYTES_MAX: u64 = 64 << 20;

/// Why a module could not be compiled or run.
#[derive(Debug, thiserror::Error)]
pub enum WasmError {
    /// This program cannot run any.
    #[error("this program was built without WASM; build it with `--features wasm`")]
    NotBuilt,
    /// It cannot be read or written.
    #[error("the module cannot be read or written: {0}")]
    Io(#[from] io::Error),
    /// It is longer than allowed.
    #[error("it has more than {bytes_max} bytes")]
    TooLong {
        /// What is allowed.
        bytes_max: u64,
    },
    /// It is no valid module.
    #[error("it is no valid module: {reason}")]
    Invalid {
        /// What is wrong with it.
        reason: String,
    },
    /// It wants something that kernels do not get.
    #[error(
        "it imports {module}.{name}, which kernels are not offered; there are tidemill.write and tidemill.error \
         (a module for WASI does not do: build it for wasm32-unknown-unknown)"
    )]
    Import {
        /// Where it looks for it.
        module: String,
        /// What it looks for.
        name: String,
    },
    /// It lacks something that all modules must have.
    #[error("the module does not export {name}: {what}")]
    Export {
        /// What is missing.
        name: &'static str,
        /// What it must be.
        what: &'static str,
    },
    /// It did something that cannot be done.
    #[error("the kernel was stopped: {reason}")]
    Trap {
        /// What it did.
        reason: String,
    },
    /// It cannot have as much memory as is needed to hand something over.
    #[error("out of memory: the module could not give {bytes} bytes for {what}")]
    Memory {
        /// How much was asked for.
        bytes: usize,
        /// What for.
        what: String,
    },
}

/// Compiles a module.
pub(super) fn compile(from: &mut dyn Read, to: &mut dyn Write) -> Result<(), WasmError> {
    #[cfg(feature = "wasm")]
    return engine::compile(from, to);
    #[cfg(not(feature = "wasm"))]
    {
        let _ = (from, to);
        Err(WasmError::NotBuilt)
    }
}

/// Runs the compiled module that this descriptor was opened on; `name` is what the kernel is told that it is called.
pub(super) fn run(name: &str, module: RawFd, call: Call<'_>) -> Result<u8, NativeError> {
    #[cfg(feature = "wasm")]
    return guest::run(name, module, call);
    #[cfg(not(feature = "wasm"))]
    {
        let _ = (name, module, call);
        Err(WasmError::NotBuilt.into())
    }
}

/// What compiled modules depend on beside the module: the engine's version and settings and this machine's
/// processor; `None` if modules cannot be run.
pub(crate) fn compatibility() -> Option<u64> {
    #[cfg(feature = "wasm")]
    return engine::compatibility();
    #[cfg(not(feature = "wasm"))]
    None
}

/// Makes what all runs of modules in this process and in copies of it share.
pub(super) fn prepare() {
    #[cfg(feature = "wasm")]
    // What fails here fails again, and is told, when a module is run.
    let _ = engine::engine();
}
