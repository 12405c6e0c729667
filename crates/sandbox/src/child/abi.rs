//! Structures of `include/tidemill_kernel.h`, field by field, and the functions that native kernels receive with them.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::ptr;

use super::native::NativeError;
use super::pipes;
use tidemill_compute::SeriesFile;

/// Version of the interface between this program and users' kernels.
pub const ABI_VERSION: u32 = 1;

#[repr(C)]
#[derive(Debug)]
pub(super) struct RawInput {
    name: *const c_char,
    data: *const c_void,
    size: u64,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct RawOutput {
    name: *const c_char,
    fd: c_int,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct RawTask {
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

/// A task for a native kernel, and all data that its C structure points to.
#[derive(Debug)]
pub(super) struct CTask {
    raw: Box<RawTask>,
    owned: Owned,
}

/// Data that only the C structure points to.
#[derive(Debug)]
#[expect(dead_code, reason = "the task's structure points to all of it")]
struct Owned {
    names: [Vec<CString>; 3],
    argv: Vec<*const c_char>,
    files: Vec<SeriesFile>,
    made: Vec<File>,
    inputs: Vec<RawInput>,
    outputs: Vec<RawOutput>,
}

impl CTask {
    /// Returns a task for a native kernel; `args` begin with the kernel's path. Outputs are created, and inputs are mapped.
    pub(super) fn new(
        args: impl Iterator<Item = String>,
        inputs: &[String],
        outputs: &[String],
    ) -> Result<Self, NativeError> {
        let args = strings(args)?;
        let pointers = args.iter().map(|arg| arg.as_ptr());
        let argv: Vec<_> = pointers.chain([ptr::null()]).collect();
        let files = inputs
            .iter()
            .map(|name| map(name))
            .collect::<Result<Vec<_>, _>>()?;
        let made = create(outputs)?;
        let input_names = strings(inputs.iter().cloned())?;
        let output_names = strings(outputs.iter().cloned())?;
        let raw_inputs: Vec<_> = (input_names.iter().zip(&files))
            .map(|(name, file)| RawInput {
                name: name.as_ptr(),
                data: file.as_ptr().cast(),
                size: file.len() as u64,
            })
            .collect();
        let raw_outputs: Vec<_> = (output_names.iter().zip(&made))
            .map(|(name, file)| RawOutput {
                name: name.as_ptr(),
                fd: file.as_raw_fd(),
            })
            .collect();
        let raw = Box::new(RawTask {
            abi_version: ABI_VERSION,
            struct_size: u32::try_from(size_of::<RawTask>()).unwrap_or(u32::MAX),
            argc: c_int::try_from(args.len()).unwrap_or(c_int::MAX),
            argv: argv.as_ptr(),
            input_count: raw_inputs.len(),
            inputs: raw_inputs.as_ptr(),
            output_count: raw_outputs.len(),
            outputs: raw_outputs.as_ptr(),
            write: write_output,
            error: report_error,
        });
        // A move keeps addresses: these are vectors, whose elements are stored elsewhere.
        let owned = Owned {
            names: [args, input_names, output_names],
            argv,
            files,
            made,
            inputs: raw_inputs,
            outputs: raw_outputs,
        };
        Ok(Self { raw, owned })
    }

    pub(super) fn as_ptr(&self) -> *const RawTask {
        &raw const *self.raw
    }

    pub(super) fn outputs(&mut self) -> &mut [File] {
        &mut self.owned.made
    }
}

/// Maps an input for reading.
pub(super) fn map(name: &str) -> Result<SeriesFile, NativeError> {
    // A kernel that needs a whole input receives a streaming input after its end.
    let mapped = match pipes::is_pipe(name) {
        true => pipes::gathered(name),
        false => SeriesFile::open(name),
    };
    mapped.map_err(|source| NativeError::Input {
        name: name.to_owned(),
        source,
    })
}

/// Creates the outputs; opens the outputs that are directories, in which the kernel creates files by itself.
pub(super) fn create(outputs: &[String]) -> Result<Vec<File>, NativeError> {
    let create = |name: &String| {
        let opened = if name.ends_with('/') {
            File::open(name)
        } else {
            File::create(name)
        };
        opened.map_err(|source| NativeError::Output {
            name: name.clone(),
            source,
        })
    };
    outputs.iter().map(create).collect()
}

fn strings(names: impl Iterator<Item = String>) -> Result<Vec<CString>, NativeError> {
    Ok(names.map(CString::new).collect::<Result<_, _>>()?)
}

/// Appends bytes to an output; returns 0 or an errno value.
///
/// # Safety
/// `task` must be the task passed to the kernel and `data` readable for `size` bytes.
unsafe extern "C" fn write_output(
    task: *const RawTask,
    output: usize,
    data: *const c_void,
    size: usize,
) -> c_int {
    // SAFETY: the caller guarantees this.
    let task = unsafe { &*task };
    let fd = match (output, task.output_count) {
        (0, 0) => libc::STDOUT_FILENO,
        (output, count) if output >= count => return libc::EINVAL,
        // SAFETY: the array has `output_count` elements, which live as long as the task.
        _ => unsafe { (*task.outputs.add(output)).fd },
    };
    let mut done = 0;
    while done < size {
        // SAFETY: the caller guarantees this; `done < size`.
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

/// Writes a message of the kernel for the user to standard error.
///
/// # Safety
/// `message` must be null or a string that ends with a zero byte.
unsafe extern "C" fn report_error(_: *const RawTask, message: *const c_char) {
    if message.is_null() {
        return;
    }
    // SAFETY: the caller guarantees this.
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy();
    let _ = writeln!(io::stderr(), "{message}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_program_and_docs_have_same_abi_version() {
        let header = include_str!("../../include/tidemill_kernel.h");
        assert!(header.contains(&format!("#define TIDEMILL_ABI_VERSION {ABI_VERSION}\n")));
        let formats = include_str!("../../../../docs/formats.md");
        assert!(formats.contains(&format!("| `TIDEMILL_ABI_VERSION` {ABI_VERSION} |")));
    }
}
