//! Loads a native kernel and calls it through the entry points that it exports.
//!
//! The shared object is loaded after the sandbox is set up, because its constructors are user code too.

use std::alloc::Layout;
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use libloading::{Library, Symbol};

use super::abi::{ABI_VERSION, CTask, RawTask, create};
use super::own_fold::{self, FoldKey, OwnFold};
use super::ranked;
use crate::run::RunPart;

/// Exit code for entry points that return a value which is not an exit code.
const FAILED: u8 = 1;

/// Size of a slice of a map, in bytes; `TIDEMILL_SLICE_BYTES` of the header.
pub const SLICE_BYTES: usize = 4 << 20;

/// Name of MPICH's shared library.
const MPICH: &str = "libmpich.so";

/// Alignment of slices of a map, in bytes.
const SLICE_ALIGN: usize = 4096;

/// Reason why a user's kernel could not be called.
#[derive(Debug, thiserror::Error)]
pub enum NativeError {
    /// The file is no shared object for this machine, or needs shared objects that are missing.
    #[error("cannot load the kernel: {}", why(.0))]
    Load(libloading::Error),
    /// The shared object exports no form of a kernel, or only a part of a form.
    #[error(
        "the kernel has no entry point: it exports neither start_kernel nor all of tidemill_fold_init, _update, \
         _merge, _state and _finish nor tidemill_map (or func)"
    )]
    EntryPoint,
    /// Only folds can be run in parts.
    #[error("the kernel is no fold, so it can only run on whole inputs")]
    NoFold,
    /// The kernel was built for a newer version of the interface.
    #[error(
        "the kernel was built for version {kernel} of the interface; this program has version {ABI_VERSION}"
    )]
    Version {
        /// Version of the interface that the kernel was built for.
        kernel: u32,
    },
    /// An input could not be read.
    #[error("cannot read {name}: {source}")]
    Input {
        /// Name of the input.
        name: String,
        /// Cause.
        source: io::Error,
    },
    /// An output could not be created.
    #[error("cannot write {name}: {source}")]
    Output {
        /// Name of the output.
        name: String,
        /// Cause.
        source: io::Error,
    },
    /// The first output could not be written.
    #[error("cannot write the first output: {0}")]
    Write(#[source] io::Error),
    /// A map kernel has more or fewer results than one.
    #[error("a kernel with tidemill_map writes one output; the task has {0}")]
    Outputs(usize),
    /// A partial state of a fold cannot be used.
    #[error("{name} is no partial state that can be merged: {reason}")]
    State {
        /// Name of the input that holds the state.
        name: String,
        /// Reason why the state cannot be used.
        reason: &'static str,
    },
    /// The piece of a fold is invalid.
    #[error(
        "a piece is one input that begins at a multiple of {} bytes",
        own_fold::PIECE_ALIGN
    )]
    Piece,
    /// A kernel with several ranks is not linked with MPI.
    #[error(
        "the kernel links no MPI, or calls none of its functions: build it by mpicc -shared -fPIC (Debian: apt-get install libmpich-dev)"
    )]
    NoMpi,
    /// The kernel is linked with another MPI than MPICH's.
    #[error(
        "the kernel was built for Open MPI: build it by mpicc of MPICH (Debian: mpicc.mpich of libmpich-dev)"
    )]
    OtherMpi,
    /// A kernel with several ranks does not export a function for ranks.
    #[error("the kernel does not export void func(int in_fd, int out_fd, MPI_Comm comm)")]
    NoRanked,
    /// The process that started the kernel has ended.
    #[error("the other ranks can't be waited for: {0}")]
    Starter(#[source] io::Error),
    /// A name or argument contains a zero byte.
    #[error("a name or argument contains a zero byte")]
    ZeroByte(#[from] std::ffi::NulError),
    /// A WebAssembly module failed.
    #[error(transparent)]
    Wasm(#[from] super::wasm::WasmError),
}

/// Returns the message of the system's loader, which names a missing library or symbol.
fn why(error: &libloading::Error) -> String {
    let message = std::error::Error::source(error);
    let mut message = message.map_or_else(|| error.to_string(), ToString::to_string);
    if message.starts_with(MPICH) {
        message.push_str(
            "; MPICH is not installed on this node's host (Debian: apt-get install libmpich12)",
        );
    }
    message
}

/// Arguments of a call of a native kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelCall<'a> {
    pub(super) args: &'a [String],
    pub(super) inputs: &'a [String],
    pub(super) outputs: &'a [String],
    pub(super) part: RunPart,
    pub(super) key: FoldKey,
}

type StartKernel = unsafe extern "C" fn(*const RawTask) -> c_int;
type NativeInit = unsafe extern "C" fn(*const RawTask) -> *mut c_void;
type Update = unsafe extern "C" fn(*mut c_void, usize, u64, *const c_void, usize) -> c_int;
type Merge = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> c_int;
type Give = unsafe extern "C" fn(*mut c_void, *const RawTask) -> c_int;
type MemoryCall = unsafe extern "C" fn(*mut c_void, usize, c_int);

/// Loads the shared object at `path` and calls its kernel. The kernel's return value is the exit code.
pub(super) fn run(path: &str, call: KernelCall<'_>) -> Result<u8, NativeError> {
    // SAFETY: this runs the user's code, which may do anything that this process may; for this reason the process is confined and holds
    // no valuable data.
    let library = unsafe { Library::new(path) }.map_err(NativeError::Load)?;
    // Functions that the kernel registered for the end of the process must still be loaded then.
    let library: &'static Library = Box::leak(Box::new(library));
    // SAFETY: the header declares the symbol as a constant of this type.
    if let Ok(version) = unsafe { library.get::<*const u32>(c"tidemill_kernel_abi_version") } {
        // SAFETY: as above; the library stays loaded.
        let kernel = unsafe { **version };
        if kernel > ABI_VERSION {
            return Err(NativeError::Version { kernel });
        }
    }
    if ranked::is_one() {
        return ranked::run(library, call);
    }
    let whole = call.part == RunPart::Whole;
    let args = || {
        [path.to_owned()]
            .into_iter()
            .chain(call.args.iter().cloned())
    };
    // SAFETY: the header declares the entry points with these types.
    let start = unsafe { library.get::<StartKernel>(c"start_kernel") };
    if whole && let Ok(start) = start {
        let task = CTask::new(args(), call.inputs, call.outputs)?;
        // SAFETY: the task and all it points to live until the call returns.
        return Ok(exit_code(unsafe { start(task.as_ptr()) }));
    }
    if let Some(functions) = NativeFunctions::find(library) {
        let task = CTask::new(args(), &[], call.outputs)?;
        // SAFETY: as above.
        let state = unsafe { (functions.init)(task.as_ptr()) };
        if state.is_null() {
            return Ok(FAILED);
        }
        let mut fold = NativeFold {
            functions,
            task,
            state,
        };
        return own_fold::run(&mut fold, call.part, call.key, call.inputs);
    }
    if !whole {
        return Err(NativeError::NoFold);
    }
    // SAFETY: the header declares the entry point with this type.
    let map = unsafe { library.get::<MemoryCall>(c"tidemill_map") };
    // The name of this function in Active Burst-Buffer (§III-D). Other functions have that name, too, so it is looked up last. SAFETY: as
    // above.
    let map = map.or_else(|_| unsafe { library.get::<MemoryCall>(c"func") });
    run_map(map.map_err(|_| NativeError::EntryPoint)?, call)
}

fn exit_code(code: c_int) -> u8 {
    u8::try_from(code).unwrap_or(FAILED)
}

#[derive(Debug)]
struct NativeFunctions {
    init: Symbol<'static, NativeInit>,
    update: Symbol<'static, Update>,
    merge: Symbol<'static, Merge>,
    state: Symbol<'static, Give>,
    finish: Symbol<'static, Give>,
}

impl NativeFunctions {
    /// Returns all functions of a fold, or `None` if the library lacks any of them.
    fn find(library: &'static Library) -> Option<Self> {
        // SAFETY: the header declares the functions with these types.
        unsafe {
            Some(Self {
                init: library.get(c"tidemill_fold_init").ok()?,
                update: library.get(c"tidemill_fold_update").ok()?,
                merge: library.get(c"tidemill_fold_merge").ok()?,
                state: library.get(c"tidemill_fold_state").ok()?,
                finish: library.get(c"tidemill_fold_finish").ok()?,
            })
        }
    }
}

#[derive(Debug)]
struct NativeFold {
    functions: NativeFunctions,
    task: CTask,
    state: *mut c_void,
}

impl OwnFold for NativeFold {
    fn update(&mut self, input: usize, offset: u64, piece: &[u8]) -> Result<u8, NativeError> {
        let data = piece.as_ptr().cast();
        // SAFETY: the state is the result of init; the piece is readable during the call.
        let code = unsafe { (self.functions.update)(self.state, input, offset, data, piece.len()) };
        Ok(exit_code(code))
    }

    fn merge(&mut self, state: &[u8]) -> Result<u8, NativeError> {
        let data = state.as_ptr().cast();
        // SAFETY: as in `update`.
        let code = unsafe { (self.functions.merge)(self.state, data, state.len()) };
        Ok(exit_code(code))
    }

    fn state(&mut self) -> Result<u8, NativeError> {
        // SAFETY: the state is the result of init; the task lives until the call returns.
        let code = unsafe { (self.functions.state)(self.state, self.task.as_ptr()) };
        Ok(exit_code(code))
    }

    fn finish(&mut self) -> Result<u8, NativeError> {
        // SAFETY: as in `state`.
        let code = unsafe { (self.functions.finish)(self.state, self.task.as_ptr()) };
        Ok(exit_code(code))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        own_fold::write_first(self.task.outputs(), bytes)
    }
}

/// Page-aligned memory that a map kernel may write to.
struct PageSlice {
    begin: NonNull<u8>,
    layout: Layout,
}

impl PageSlice {
    fn new() -> Self {
        let layout = Layout::from_size_align(SLICE_BYTES, SLICE_ALIGN)
            .expect("a constant size at a constant power of two");
        // SAFETY: the size is not 0.
        let begin = unsafe { std::alloc::alloc_zeroed(layout) };
        let begin = NonNull::new(begin).unwrap_or_else(|| std::alloc::handle_alloc_error(layout));
        Self { begin, layout }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: this value owns the memory, which is initialised and has that length.
        unsafe { std::slice::from_raw_parts_mut(self.begin.as_ptr(), self.layout.size()) }
    }
}

impl Drop for PageSlice {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout.
        unsafe { std::alloc::dealloc(self.begin.as_ptr(), self.layout) }
    }
}

fn run_map(map: Symbol<'static, MemoryCall>, call: KernelCall<'_>) -> Result<u8, NativeError> {
    let made = create(call.outputs)?;
    let fd = match made.as_slice() {
        [] => libc::STDOUT_FILENO,
        [one] => one.as_raw_fd(),
        more => return Err(NativeError::Outputs(more.len())),
    };
    let mut slice = PageSlice::new();
    for name in call.inputs {
        let error = |source| NativeError::Input {
            name: name.clone(),
            source,
        };
        let mut file = File::open(name).map_err(error)?;
        loop {
            let length = fill(&mut file, slice.bytes()).map_err(error)?;
            if length == 0 {
                break;
            }
            // SAFETY: the first `length` bytes of the slice are the input's, and the kernel may use all of it during the call.
            unsafe { map(slice.begin.as_ptr().cast(), length, fd) };
        }
    }
    Ok(0)
}

/// Reads a file until the buffer is full or the file is at its end; returns the number of bytes.
pub(super) fn fill(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_and_program_have_same_bounds() {
        let header = include_str!("../../include/tidemill_kernel.h");
        let align = own_fold::PIECE_ALIGN;
        assert!(header.contains(&format!("#define TIDEMILL_PIECE_ALIGN {align}\n")));
        let mebibytes = SLICE_BYTES >> 20;
        assert!(header.contains(&format!(
            "#define TIDEMILL_SLICE_BYTES ({mebibytes} << 20)\n"
        )));
        assert_eq!(PIECE_BYTES_OVER, 0);
    }

    const PIECE_BYTES_OVER: u64 = own_fold::PIECE_BYTES as u64 % own_fold::PIECE_ALIGN;
}
