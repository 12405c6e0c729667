//! Loads a native kernel and calls its entry point. The types here are those of
//! `include/tidemill_kernel.h`, field by field.
//!
//! The shared object is loaded when the sandbox is already up: what it runs on being loaded (constructors)
//! is user code too.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::ptr;

use libloading::Library;

use crate::builtin::series::Mapped;

/// Version of the interface between this program and native kernels.
pub const ABI_VERSION: u32 = 1;

/// Exit code for entry points that return something an exit code cannot be.
const FAILED: u8 = 1;

/// Why a native kernel could not be called.
#[derive(Debug, thiserror::Error)]
pub enum NativeError {
    /// It is no shared object for this machine, or needs others that are missing.
    #[error("cannot load the kernel: {0}")]
    Load(libloading::Error),
    /// It lacks the entry point.
    #[error("the kernel has no entry point start_kernel: {0}")]
    EntryPoint(libloading::Error),
    /// It was built for a newer program.
    #[error(
        "the kernel was built for version {kernel} of the interface; this program has version {ABI_VERSION}"
    )]
    Version {
        /// The kernel's version.
        kernel: u32,
    },
    /// An input could not be mapped.
    #[error("cannot read {name}: {source}")]
    Input {
        /// Its name.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// An output could not be made.
    #[error("cannot write {name}: {source}")]
    Output {
        /// Its name.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// A name or argument holds a zero byte.
    #[error("a name or argument holds a zero byte")]
    ZeroByte(#[from] std::ffi::NulError),
}

#[repr(C)]
struct RawInput {
    name: *const c_char,
    data: *const c_void,
    size: u64,
}

#[repr(C)]
struct RawOutput {
    name: *const c_char,
    fd: c_int,
}

#[repr(C)]
struct RawTask {
    abi_version: u32,
    struct_size: u32,
    argc: c_int,
    argv: *const *const c_char,
    input_count: usize,
    inputs: *const RawInput,
    output_count: usize,
    outputs: *const RawOutput,
    write: unsafe extern "C" fn(*const Self, usize, *const c_void, usize) -> c_int,
    error: unsafe extern "C" fn(*const Self, *const c_char),
}

type StartKernel = unsafe extern "C" fn(*const RawTask) -> c_int;

/// Loads the shared object at `path` and calls its entry point. Its exit code is what that returns.
pub(super) fn run(
    path: &str,
    args: &[String],
    inputs: &[String],
    outputs: &[String],
) -> Result<u8, NativeError> {
    // SAFETY: this runs the user's code, which may do anything this process can; that is why this process
    // is confined and holds nothing of value.
    let library = unsafe { Library::new(path) }.map_err(NativeError::Load)?;
    // SAFETY: the header declares the symbol as a constant of this type.
    if let Ok(version) = unsafe { library.get::<*const u32>(c"tidemill_kernel_abi_version") } {
        // SAFETY: as above; the library stays loaded.
        let kernel = unsafe { **version };
        if kernel > ABI_VERSION {
            return Err(NativeError::Version { kernel });
        }
    }
    // SAFETY: the header declares the entry point with this type.
    let start =
        unsafe { library.get::<StartKernel>(c"start_kernel") }.map_err(NativeError::EntryPoint)?;

    let names = strings(args)?;
    let mut argv: Vec<_> = [CString::new(path)?].into_iter().chain(names).collect();
    let pointers: Vec<_> = argv
        .iter()
        .map(|arg| arg.as_ptr())
        .chain([ptr::null()])
        .collect();
    let files = inputs
        .iter()
        .map(|name| {
            Mapped::open(name).map_err(|source| NativeError::Input {
                name: name.clone(),
                source,
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    let made = outputs
        .iter()
        .map(|name| {
            File::create(name).map_err(|source| NativeError::Output {
                name: name.clone(),
                source,
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    let (input_names, output_names) = (strings(inputs)?, strings(outputs)?);
    let raw_inputs: Vec<_> = input_names
        .iter()
        .zip(&files)
        .map(|(name, file)| RawInput {
            name: name.as_ptr(),
            data: file.as_ptr().cast(),
            size: file.len() as u64,
        })
        .collect();
    let raw_outputs: Vec<_> = output_names
        .iter()
        .zip(&made)
        .map(|(name, file)| RawOutput {
            name: name.as_ptr(),
            fd: file.as_raw_fd(),
        })
        .collect();
    let task = RawTask {
        abi_version: ABI_VERSION,
        struct_size: u32::try_from(size_of::<RawTask>()).unwrap_or(u32::MAX),
        argc: c_int::try_from(argv.len()).unwrap_or(c_int::MAX),
        argv: pointers.as_ptr(),
        input_count: raw_inputs.len(),
        inputs: raw_inputs.as_ptr(),
        output_count: raw_outputs.len(),
        outputs: raw_outputs.as_ptr(),
        write: write_output,
        error: report_error,
    };
    // SAFETY: the task and all it points to live until the call returns.
    let code = unsafe { start(&raw const task) };
    argv.clear();
    // What the kernel registered for the end of the process must still be loaded then.
    std::mem::forget(library);
    Ok(u8::try_from(code).unwrap_or(FAILED))
}

fn strings(names: &[String]) -> Result<Vec<CString>, NativeError> {
    Ok(names
        .iter()
        .map(|name| CString::new(name.as_str()))
        .collect::<Result<_, _>>()?)
}

/// Appends to an output; returns 0 or an errno value.
///
/// # Safety
/// `task` must be the task handed to the kernel and `data` readable for `size` bytes.
unsafe extern "C" fn write_output(
    task: *const RawTask,
    output: usize,
    data: *const c_void,
    size: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let task = unsafe { &*task };
    if output >= task.output_count {
        return libc::EINVAL;
    }
    // SAFETY: the array has `output_count` elements, which live as long as the task.
    let fd = unsafe { (*task.outputs.add(output)).fd };
    let mut done = 0;
    while done < size {
        // SAFETY: the caller's promise; `done < size`.
        let count = unsafe { libc::write(fd, data.cast::<u8>().add(done).cast(), size - done) };
        match usize::try_from(count) {
            Ok(count) => done += count,
            Err(_) => match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                error => return error.unwrap_or(libc::EIO),
            },
        }
    }
    0
}

/// Shows a message to the user, as standard error.
///
/// # Safety
/// `message` must be null or a string that ends with a zero byte.
unsafe extern "C" fn report_error(_: *const RawTask, message: *const c_char) {
    if message.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy();
    let _ = writeln!(io::stderr(), "{message}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_the_program_and_the_documents_name_one_version() {
        let header = include_str!("../../include/tidemill_kernel.h");
        assert!(header.contains(&format!("#define TIDEMILL_ABI_VERSION {ABI_VERSION}\n")));
        let formats = include_str!("../../../../docs/formats.md");
        assert!(formats.contains(&format!("| `TIDEMILL_ABI_VERSION` {ABI_VERSION} |")));
    }
}
