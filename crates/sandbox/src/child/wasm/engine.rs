//! Settings of the WebAssembly engine, which must be the same for compiling and for running modules, and the compilation.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Write};
use std::sync::LazyLock;

use wasmtime::{Config, Engine, ExternType, Module};

use super::{MODULE_BYTES_MAX, WasmError};

/// Size of a module's stack, in bytes.
const STACK_BYTES: usize = 1 << 20;

/// Name of the host module from which modules import; the next constants are its functions.
pub(super) const HOST: &str = "tidemill";
pub(super) const WRITE: &str = "write";
pub(super) const ERROR: &str = "error";

/// Returns the WebAssembly engine. The time limit is enforced from outside, by killing the process: counting inside the engine (epochs)
/// costs scans more than half of their speed.
pub(super) fn engine() -> Result<Engine, WasmError> {
    static ENGINE: LazyLock<Result<Engine, String>> = LazyLock::new(|| {
        let mut config = Config::new();
        config.max_wasm_stack(STACK_BYTES);
        config.wasm_simd(true);
        // This setting gives the same result on every processor.
        config.relaxed_simd_deterministic(true);
        Engine::new(&config).map_err(|error| format!("{error:#}"))
    });
    let reason = |reason: &String| WasmError::Invalid {
        reason: reason.clone(),
    };
    ENGINE.as_ref().map_err(reason).cloned()
}

pub(super) fn invalid(error: &wasmtime::Error) -> WasmError {
    WasmError::Invalid {
        reason: format!("{error:#}"),
    }
}

pub(super) fn compatibility() -> Option<u64> {
    static HASH: LazyLock<Option<u64>> = LazyLock::new(|| {
        let engine = engine().ok()?;
        // Hashes need to match only within one build of the program: hashes of other builds differ.
        let mut hasher = DefaultHasher::new();
        engine.precompile_compatibility_hash().hash(&mut hasher);
        Some(hasher.finish())
    });
    *HASH
}

pub(super) fn compile(from: &mut dyn Read, to: &mut dyn Write) -> Result<(), WasmError> {
    let mut code = Vec::new();
    from.take(MODULE_BYTES_MAX + 1).read_to_end(&mut code)?;
    if code.len() as u64 > MODULE_BYTES_MAX {
        let bytes_max = MODULE_BYTES_MAX;
        return Err(WasmError::TooLong { bytes_max });
    }
    let module = Module::new(&engine()?, &code).map_err(|error| invalid(&error))?;
    for import in module.imports() {
        let function = matches!(import.ty(), ExternType::Func(_));
        if !function || import.module() != HOST || ![WRITE, ERROR].contains(&import.name()) {
            let (module, name) = (import.module().to_owned(), import.name().to_owned());
            return Err(WasmError::Import { module, name });
        }
    }
    to.write_all(&module.serialize().map_err(|error| invalid(&error))?)?;
    Ok(())
}
