//! Kernels as WebAssembly modules: the same interface as native kernels (`include/tidemill_kernel.h`), with the same names, for a
//! separate virtual machine inside this process.
//!
//! A module is compiled in one child process ([`compile`]) and run in other child processes ([`run`]), which only map the compiled code. A
//! module can import two functions, `tidemill.write` and `tidemill.error`, and nothing else: no files, no clock, no random numbers.

#[cfg(feature = "wasm")]
mod engine;
#[cfg(feature = "wasm")]
mod guest;

use std::io::{self, Read, Write};
use std::os::fd::RawFd;

use super::native::{KernelCall, NativeError};

/// Maximum size of a WebAssembly module, in bytes.
#[cfg(feature = "wasm")]
pub(crate) const MODULE_BYTES_MAX: u64 = 64 << 20;

/// Reason why a WebAssembly module could not be compiled or run.
#[derive(Debug, thiserror::Error)]
pub enum WasmError {
    /// This program was built without support for WebAssembly modules.
    #[error("this program was built without WASM; build it with `--features wasm`")]
    NotBuilt,
    /// The module cannot be read or written.
    #[error("the module cannot be read or written: {0}")]
    Io(#[from] io::Error),
    /// The module is larger than the limit.
    #[error("it has more than {bytes_max} bytes")]
    TooLong {
        /// Limit in bytes.
        bytes_max: u64,
    },
    /// The module is invalid.
    #[error("it is no valid module: {reason}")]
    Invalid {
        /// Reason why the module is invalid.
        reason: String,
    },
    /// The module imports a function that kernels cannot import.
    #[error(
        "it imports {module}.{name}, which kernels don't get; they get tidemill.write and tidemill.error (a module for WASI \
         does not work: build it for wasm32-unknown-unknown)"
    )]
    Import {
        /// Name of the module that the import names.
        module: String,
        /// Name of the imported function.
        name: String,
    },
    /// The module lacks a required export.
    #[error("the module does not export {name}: {what}")]
    Export {
        /// Name of the missing export.
        name: &'static str,
        /// Kind that the export must have.
        what: &'static str,
    },
    /// The module executed an invalid operation.
    #[error("the kernel was stopped: {reason}")]
    Trap {
        /// Description of the operation.
        reason: String,
    },
    /// The module has no memory left for data from the program.
    #[error("out of memory: the module could not allocate {bytes} bytes for {what}")]
    Memory {
        /// Requested size, in bytes.
        bytes: usize,
        /// Purpose of the requested memory.
        what: String,
    },
}

/// Compiles the module `from`, and writes the compiled code to `to`.
pub(super) fn compile(from: &mut dyn Read, to: &mut dyn Write) -> Result<(), WasmError> {
    #[cfg(feature = "wasm")]
    return engine::compile(from, to);
    #[cfg(not(feature = "wasm"))]
    {
        let _ = (from, to);
        Err(WasmError::NotBuilt)
    }
}

/// Runs the compiled module that the descriptor `module` was opened on; `name` is the name that the kernel sees.
pub(super) fn run(name: &str, module: RawFd, call: KernelCall<'_>) -> Result<u8, NativeError> {
    #[cfg(feature = "wasm")]
    return guest::run(name, module, call);
    #[cfg(not(feature = "wasm"))]
    {
        let _ = (name, module, call);
        Err(WasmError::NotBuilt.into())
    }
}

/// Returns a hash of everything that compiled modules depend on in addition to the module: the engine's version and settings and this
/// machine's processor; `None` if this program cannot run modules.
pub(crate) fn compatibility() -> Option<u64> {
    #[cfg(feature = "wasm")]
    return engine::compatibility();
    #[cfg(not(feature = "wasm"))]
    None
}

/// Prepares the data that all runs of modules in this process and in its copies share.
pub(super) fn prepare() {
    #[cfg(feature = "wasm")]
    // An error here occurs again, and is reported, when a module is run.
    let _ = engine::engine();
}
