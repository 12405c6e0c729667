//! Rust types of `tidemill_kernel.h`, field by field, and the functions that the crate's macros call. Kernels use the types of the crate's
//! root instead.

use std::ffi::{CString, c_char, c_int, c_void};

use crate::{Fold, Folding, NOTHING, Result, Task as Safe};

/// Version of the kernel interface.
pub const ABI_VERSION: u32 = 1;

/// Input of a task: `struct tidemill_input` of the header.
#[repr(C)]
#[derive(Debug)]
pub struct AbiInput {
    /// Name of the input, a C string.
    pub name: *const c_char,
    /// Pointer to the first byte of the input.
    pub data: *const c_void,
    /// Size of the input in bytes.
    pub size: u64,
}

/// Output of a task: `struct tidemill_output` of the header.
#[repr(C)]
#[derive(Debug)]
pub struct AbiOutput {
    /// Name of the output, a C string.
    pub name: *const c_char,
    /// Descriptor of the output's open file.
    pub fd: c_int,
}

/// Task of a kernel: `struct tidemill_task` of the header.
#[repr(C)]
#[derive(Debug)]
pub struct AbiTask {
    /// Version of the interface in the program that runs the kernel.
    pub abi_version: u32,
    /// Size of this structure in the program that runs the kernel, in bytes.
    pub struct_size: u32,
    /// Number of arguments, including the kernel's path.
    pub argc: c_int,
    /// Pointer to the arguments, which are C strings.
    pub argv: *const *const c_char,
    /// Number of inputs.
    pub input_count: usize,
    /// Pointer to the inputs.
    pub inputs: *const AbiInput,
    /// Number of outputs.
    pub output_count: usize,
    /// Pointer to the outputs.
    pub outputs: *const AbiOutput,
    /// Function that appends bytes to an output; null in WebAssembly modules.
    pub write: Option<unsafe extern "C" fn(*const AbiTask, usize, *const c_void, usize) -> c_int>,
    /// Function that shows a message to the user; null in WebAssembly modules.
    pub error: Option<unsafe extern "C" fn(*const AbiTask, *const c_char)>,
}

#[cfg(target_family = "wasm")]
#[link(wasm_import_module = "tidemill")]
unsafe extern "C" {
    #[link_name = "write"]
    fn import_write(output: usize, data: *const u8, size: usize) -> i32;
    #[link_name = "error"]
    fn import_error(message: *const u8, size: usize);
}

/// Appends bytes to an output; returns an errno value, or 0.
pub(crate) fn write(task: &AbiTask, output: usize, bytes: &[u8]) -> i32 {
    #[cfg(target_family = "wasm")]
    {
        let _ = task;
        // SAFETY: the bytes are readable during the call.
        unsafe { import_write(output, bytes.as_ptr(), bytes.len()) }
    }
    #[cfg(not(target_family = "wasm"))]
    match task.write {
        // SAFETY: the task belongs to the function, and the bytes are readable during the call.
        Some(write) => unsafe { write(task, output, bytes.as_ptr().cast(), bytes.len()) },
        None => 0,
    }
}

/// Shows a message to the user who runs the job.
pub(crate) fn show(task: &AbiTask, message: &str) {
    #[cfg(target_family = "wasm")]
    {
        let _ = task;
        // SAFETY: the bytes are readable during the call.
        unsafe { import_error(message.as_ptr(), message.len()) }
    }
    #[cfg(not(target_family = "wasm"))]
    {
        let text = message.replace('\0', " ");
        if let (Some(error), Ok(text)) = (task.error, CString::new(text)) {
            // SAFETY: the task belongs to the function, and the string ends with a zero byte.
            unsafe { error(task, text.as_ptr()) }
        }
    }
}

/// Allocates memory for data from the program that runs the kernel. The program owns the memory afterwards.
#[must_use]
pub fn alloc(size: usize) -> *mut u8 {
    let layout = std::alloc::Layout::from_size_align(size.max(1), 16);
    // SAFETY: the size is not 0.
    layout.map_or(std::ptr::null_mut(), |layout| unsafe {
        std::alloc::alloc(layout)
    })
}

/// Implements `start_kernel` of the header.
///
/// # Safety
/// The conditions of the header; all functions below have the same conditions.
pub unsafe fn start(task: *const AbiTask, function: fn(&Safe<'_>) -> Result) -> i32 {
    // SAFETY: the caller guarantees this.
    let task = unsafe { Safe::new(task) };
    task.code(function(&task))
}

/// Implements `tidemill_fold_init` of the header.
///
/// # Safety
/// See [`start`].
pub unsafe fn init<F: Fold>(raw: *const AbiTask) -> *mut c_void {
    // SAFETY: the caller guarantees this.
    let task = unsafe { Safe::new(raw) };
    match F::init(&task) {
        Ok(fold) => Folding { fold, task: raw }.into_raw(),
        Err(error) => {
            task.show(&error.to_string());
            NOTHING
        }
    }
}

/// Implements `tidemill_fold_update` of the header.
///
/// # Safety
/// See [`start`].
pub unsafe fn update<F: Fold>(
    state: *mut c_void,
    input: usize,
    offset: u64,
    data: *const u8,
    size: usize,
) -> i32 {
    // SAFETY: the state is the result of `init`, and the piece is readable.
    let (folding, piece) = unsafe {
        let folding = &mut *state.cast::<Folding<F>>();
        (folding, std::slice::from_raw_parts(data, size))
    };
    let result = folding.fold.update(input, offset, piece);
    folding.code(result)
}

/// Implements `tidemill_fold_merge` of the header.
///
/// # Safety
/// See [`start`].
pub unsafe fn merge<F: Fold>(state: *mut c_void, partial: *const u8, size: usize) -> i32 {
    // SAFETY: the state is the result of `init`, and the partial state is readable.
    let (folding, partial) = unsafe {
        let folding = &mut *state.cast::<Folding<F>>();
        (folding, std::slice::from_raw_parts(partial, size))
    };
    let result = folding.fold.merge(partial);
    folding.code(result)
}

/// Implements `tidemill_fold_state` of the header.
///
/// # Safety
/// See [`start`].
pub unsafe fn state<F: Fold>(state: *mut c_void, task: *const AbiTask) -> i32 {
    // SAFETY: the state is the result of `init`, and the task is valid.
    let (folding, task) = unsafe { (&*state.cast::<Folding<F>>(), Safe::new(task)) };
    task.code(task.write(0, &folding.fold.state()))
}

/// Implements `tidemill_fold_finish` of the header.
///
/// # Safety
/// See [`start`]. The state must not be used again.
pub unsafe fn finish<F: Fold>(state: *mut c_void, task: *const AbiTask) -> i32 {
    // SAFETY: the state is the pointer that `init` returned, used for the last time, and the task is valid.
    let (folding, task) = unsafe { (Box::from_raw(state.cast::<Folding<F>>()), Safe::new(task)) };
    task.code(folding.fold.finish(&task))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_header_has_abi_version_of_crate() {
        let header = include_str!("../../sandbox/include/tidemill_kernel.h");
        assert!(header.contains(&format!("#define TIDEMILL_ABI_VERSION {ABI_VERSION}\n")));
    }
}
