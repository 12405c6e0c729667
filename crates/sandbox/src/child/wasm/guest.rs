//! Running WebAssembly module: its memory, the structures of `include/tidemill_kernel.h` in this memory, and calls.
//!
//! A module's addresses have 32 bits, so its structures have the layout of a C compiler for `wasm32`.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{BorrowedFd, RawFd};

use rustix::process::Resource;
use wasmtime::{
    Caller, Extern, Instance, Linker, Memory, Module, ResourceLimiter, Store, TypedFunc,
    WasmParams, WasmResults,
};

use super::super::abi::{ABI_VERSION, create, map};
use super::super::native::{KernelCall, NativeError};
use super::super::own_fold::{self, OwnFold, PIECE_BYTES};
use super::WasmError;
use super::engine::{ERROR, HOST, WRITE, engine, invalid};
use crate::run::RunPart;

/// Maximum number of entries in a module's tables of functions.
const TABLE_ENTRIES_MAX: usize = 1 << 20;

/// Maximum size of a message that is shown, in bytes.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Exit code if the module returns a value that is not an exit code, or returns no state.
const FAILED: u8 = 1;

/// Size of `struct tidemill_task` in a module, in bytes.
const TASK_BYTES: u32 = 40;
const INPUT_BYTES: usize = 16;
const OUTPUT_BYTES: usize = 8;

/// Data of this program that a running module's functions use.
struct Host {
    outputs: Vec<File>,
    memory_bytes_max: usize,
    /// Whether a request of the module for memory was refused.
    refused: bool,
}

impl ResourceLimiter for Host {
    fn memory_growing(
        &mut self,
        _: usize,
        wanted: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        self.refused |= wanted > self.memory_bytes_max;
        Ok(wanted <= self.memory_bytes_max)
    }

    fn table_growing(
        &mut self,
        _: usize,
        wanted: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(wanted <= TABLE_ENTRIES_MAX)
    }
}

/// Runs the compiled module that the descriptor `module` was opened on.
pub(super) fn run(name: &str, module: RawFd, call: KernelCall<'_>) -> Result<u8, NativeError> {
    // SAFETY: the launcher left the descriptor open for this, and no other code here uses it; reading a closed descriptor returns an
    // error.
    let module = unsafe { BorrowedFd::borrow_raw(module) };
    let mut guest = WasmGuest::new(module, call.outputs)?;
    let whole = call.part == RunPart::Whole;
    if whole && let Some(start) = guest.function::<u32, i32>("start_kernel") {
        let task = guest.task(name, call, call.inputs)?;
        return Ok(exit_code(guest.call(&start, task)?));
    }
    let Some(functions) = WasmFunctions::find(&mut guest) else {
        return Err(if whole {
            WasmError::Export {
                name: "start_kernel",
                what: "nor all of tidemill_fold_init, _update, _merge, _state and _finish, with the types of \
                       tidemill_kernel.h",
            }
            .into()
        } else {
            NativeError::NoFold
        });
    };
    let task = guest.task(name, call, &[])?;
    let state = guest.call(&functions.init, task)?;
    if state == 0 {
        return Ok(FAILED);
    }
    let mut fold = WasmFold {
        guest,
        functions,
        task,
        state,
        buffer: (0, 0),
    };
    own_fold::run(&mut fold, call.part, call.key, call.inputs)
}

fn exit_code(code: i32) -> u8 {
    u8::try_from(code).unwrap_or(FAILED)
}

/// Instance of a module with its memory.
struct WasmGuest {
    store: Store<Host>,
    instance: Instance,
    memory: Memory,
    alloc: TypedFunc<u32, u32>,
}

impl WasmGuest {
    fn new(module: BorrowedFd<'_>, outputs: &[String]) -> Result<Self, NativeError> {
        let engine = engine()?;
        let file = File::from(module.try_clone_to_owned().map_err(WasmError::Io)?);
        // SAFETY: the node opened the file in a directory that only its own user can write to, and a compiler of its own wrote the file;
        // no process changes it afterwards.
        let module = unsafe { Module::deserialize_open_file(&engine, file) };
        let module = module.map_err(|error| invalid(&error))?;
        // The operating system's limit for this process is the limit of the run.
        let limit = rustix::process::getrlimit(Resource::Data).current;
        let limit = limit.and_then(|bytes| usize::try_from(bytes).ok());
        let host = Host {
            outputs: create(outputs)?,
            memory_bytes_max: limit.unwrap_or(usize::MAX),
            refused: false,
        };
        let mut store = Store::new(&engine, host);
        store.limiter(|host| host);
        let mut linker = Linker::new(&engine);
        linker
            .func_wrap(HOST, WRITE, write)
            .and_then(|linker| linker.func_wrap(HOST, ERROR, report))
            .map_err(|error| invalid(&error))?;
        let instance = linker.instantiate(&mut store, &module);
        let instance = instance.map_err(|error| trap(&error, &store))?;
        let what = "the memory that the program reads and writes";
        let memory = instance.get_memory(&mut store, "memory");
        let memory = memory.ok_or(WasmError::Export {
            name: "memory",
            what,
        })?;
        let what = "a function from a size to an address";
        let alloc = instance.get_typed_func(&mut store, "tidemill_alloc");
        let alloc = alloc.map_err(|_| WasmError::Export {
            name: "tidemill_alloc",
            what,
        })?;
        let mut guest = Self {
            store,
            instance,
            memory,
            alloc,
        };
        guest.check_version()?;
        if let Some(initialize) = guest.function::<(), ()>("_initialize") {
            guest.call(&initialize, ())?;
        }
        Ok(guest)
    }

    /// Checks the interface version, which is a variable in the module's memory; the module exports its address.
    fn check_version(&mut self) -> Result<(), NativeError> {
        let name = "tidemill_kernel_abi_version";
        let Some(address) = self.instance.get_global(&mut self.store, name) else {
            return Ok(());
        };
        let at = address.get(&mut self.store).i32().unwrap_or(0);
        let mut version = [0; 4];
        let read = self.memory.read(&self.store, index(at), &mut version);
        match u32::from_le_bytes(version) {
            kernel if read.is_ok() && kernel > ABI_VERSION => Err(NativeError::Version { kernel }),
            _ => Ok(()),
        }
    }

    fn function<P: WasmParams, R: WasmResults>(&mut self, name: &str) -> Option<TypedFunc<P, R>> {
        let function = self.instance.get_typed_func(&mut self.store, name);
        function.ok()
    }

    fn call<P: WasmParams, R: WasmResults>(
        &mut self,
        function: &TypedFunc<P, R>,
        params: P,
    ) -> Result<R, WasmError> {
        let result = function.call(&mut self.store, params);
        result.map_err(|error| trap(&error, &self.store))
    }

    /// Allocates `length` bytes in the module's memory.
    fn space(&mut self, length: usize, what: &str) -> Result<u32, WasmError> {
        let none = || WasmError::Memory {
            bytes: length,
            what: what.to_owned(),
        };
        let wanted = u32::try_from(length).map_err(|_| none())?;
        // No address is 0, not even the address of an empty block.
        let at = self.call(&self.alloc.clone(), wanted.max(1))?;
        if at == 0 { Err(none()) } else { Ok(at) }
    }

    fn place(&mut self, at: u32, bytes: &[u8]) -> Result<(), WasmError> {
        let placed = self.memory.write(&mut self.store, at as usize, bytes);
        placed.map_err(|_| WasmError::Trap {
            reason: "tidemill_alloc returned an address outside of the module's memory".into(),
        })
    }

    /// Copies bytes to newly allocated memory of the module; returns their address.
    fn put(&mut self, bytes: &[u8], what: &str) -> Result<u32, WasmError> {
        let at = self.space(bytes.len(), what)?;
        self.place(at, bytes)?;
        Ok(at)
    }

    fn string(&mut self, text: &str) -> Result<u32, NativeError> {
        let text = std::ffi::CString::new(text)?;
        Ok(self.put(text.as_bytes_with_nul(), "a name or argument")?)
    }

    /// Copies `struct tidemill_task` and all data that it points to into the module's memory; returns its address.
    fn task(
        &mut self,
        name: &str,
        call: KernelCall<'_>,
        inputs: &[String],
    ) -> Result<u32, NativeError> {
        let mut argv = Vec::new();
        for arg in [name]
            .into_iter()
            .chain(call.args.iter().map(String::as_str))
        {
            argv.extend(self.string(arg)?.to_le_bytes());
        }
        argv.extend([0; 4]);
        let mut structures = Vec::with_capacity(inputs.len() * INPUT_BYTES);
        for input in inputs {
            let file = map(input)?;
            structures.extend(self.string(input)?.to_le_bytes());
            structures.extend(self.put(&file, input)?.to_le_bytes());
            structures.extend((file.len() as u64).to_le_bytes());
        }
        let mut outputs = Vec::with_capacity(call.outputs.len() * OUTPUT_BYTES);
        for output in call.outputs {
            outputs.extend(self.string(output)?.to_le_bytes());
            outputs.extend((-1_i32).to_le_bytes());
        }
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let words = [
            ABI_VERSION,
            TASK_BYTES,
            count(call.args.len() + 1),
            self.put(&argv, "arguments")?,
            count(inputs.len()),
            self.put(&structures, "inputs")?,
            count(call.outputs.len()),
            self.put(&outputs, "outputs")?,
            0,
            0,
        ];
        let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        Ok(self.put(&bytes, "the task")?)
    }
}

/// Converts an address or size, which is unsigned although the engine returns it as a signed number.
fn index(number: i32) -> usize {
    number.cast_unsigned() as usize
}

/// Returns the error of a module that trapped, in words.
fn trap(error: &wasmtime::Error, store: &Store<Host>) -> WasmError {
    let reason = match error.downcast_ref::<wasmtime::Trap>() {
        Some(trap) => trap.to_string(),
        None => error.root_cause().to_string(),
    };
    // The launcher recognises an exceeded memory limit by these words.
    let reason = if store.data().refused {
        format!("out of memory ({reason})")
    } else {
        reason
    };
    WasmError::Trap { reason }
}

fn bytes_of<'a>(
    caller: &'a mut Caller<'_, Host>,
    at: i32,
    length: i32,
) -> Option<(&'a [u8], &'a mut Host)> {
    let Some(Extern::Memory(memory)) = caller.get_export("memory") else {
        return None;
    };
    let (bytes, host) = memory.data_and_store_mut(caller);
    Some((bytes.get(index(at)..)?.get(..index(length))?, host))
}

fn write(mut caller: Caller<'_, Host>, output: i32, at: i32, length: i32) -> i32 {
    let Some((bytes, host)) = bytes_of(&mut caller, at, length) else {
        return libc::EFAULT;
    };
    let result = match (index(output), host.outputs.len()) {
        (0, 0) => io::stdout().write_all(bytes),
        (output, count) if output >= count => return libc::EINVAL,
        (output, _) => host.outputs[output].write_all(bytes),
    };
    match result {
        Ok(()) => 0,
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
    }
}

fn report(mut caller: Caller<'_, Host>, at: i32, length: i32) {
    if let Some((bytes, _)) = bytes_of(&mut caller, at, length) {
        let shown = &bytes[..bytes.len().min(MESSAGE_BYTES_MAX)];
        // If standard error is closed, the message is lost.
        let _ = writeln!(io::stderr(), "{}", String::from_utf8_lossy(shown));
    }
}

struct WasmFunctions {
    init: TypedFunc<u32, u32>,
    update: TypedFunc<(u32, u32, u64, u32, u32), i32>,
    merge: TypedFunc<(u32, u32, u32), i32>,
    state: TypedFunc<(u32, u32), i32>,
    finish: TypedFunc<(u32, u32), i32>,
}

impl WasmFunctions {
    /// Returns all functions of a fold, or `None` if the module lacks any of them.
    fn find(guest: &mut WasmGuest) -> Option<Self> {
        Some(Self {
            init: guest.function("tidemill_fold_init")?,
            update: guest.function("tidemill_fold_update")?,
            merge: guest.function("tidemill_fold_merge")?,
            state: guest.function("tidemill_fold_state")?,
            finish: guest.function("tidemill_fold_finish")?,
        })
    }
}

struct WasmFold {
    guest: WasmGuest,
    functions: WasmFunctions,
    task: u32,
    state: u32,
    /// Address and size of the module's buffer for pieces.
    buffer: (u32, usize),
}

impl WasmFold {
    /// Copies a piece or a state into the module's reused buffer; returns its address and length.
    fn hand_over(&mut self, bytes: &[u8]) -> Result<(u32, u32), WasmError> {
        if bytes.len() > self.buffer.1 || self.buffer.0 == 0 {
            let length = bytes.len().max(PIECE_BYTES);
            self.buffer = (self.guest.space(length, "a piece of the input")?, length);
        }
        self.guest.place(self.buffer.0, bytes)?;
        Ok((
            self.buffer.0,
            u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        ))
    }
}

impl OwnFold for WasmFold {
    fn update(&mut self, input: usize, offset: u64, piece: &[u8]) -> Result<u8, NativeError> {
        let (at, length) = self.hand_over(piece)?;
        let input = u32::try_from(input).unwrap_or(u32::MAX);
        let params = (self.state, input, offset, at, length);
        Ok(exit_code(self.guest.call(&self.functions.update, params)?))
    }

    fn merge(&mut self, state: &[u8]) -> Result<u8, NativeError> {
        let (at, length) = self.hand_over(state)?;
        let params = (self.state, at, length);
        Ok(exit_code(self.guest.call(&self.functions.merge, params)?))
    }

    fn state(&mut self) -> Result<u8, NativeError> {
        let params = (self.state, self.task);
        Ok(exit_code(self.guest.call(&self.functions.state, params)?))
    }

    fn finish(&mut self) -> Result<u8, NativeError> {
        let params = (self.state, self.task);
        Ok(exit_code(self.guest.call(&self.functions.finish, params)?))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        own_fold::write_first(&mut self.guest.store.data_mut().outputs, bytes)
    }
}
