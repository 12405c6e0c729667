//! Rust types of `tidemill_kernel.h`, field by field, and the functions that the macros call. Kernels use the types of the crate's root
//! instead.

use std::ffi::{CString, c_char, c_int, c_void};

use crate::{Fold, Folding, NOTHING, Result, Task as Safe};

/// Version of the interface.
pub const ABI_VERSION: u32 = 1;

/// `struct tidemill_input`.
#[repr(C)]
#[derive(Debug)]
pub struct AbiInput {
    /// Name, a string.
    pub name: *const c_char,
    /// First byte.
    pub data: *const c_void,
    /// Size in bytes.
    pub size: u64,
}

/// `struct tidemill_output`.
#[repr(C)]
#[derive(Debug)]
pub struct AbiOutput {
    /// Name, a string.
    pub name: *const c_char,
    /// Open file.
    pub fd: c_int,
}

/// `struct tidemill_task`.
#[repr(C)]
#[derive(Debug)]
pub struct AbiTask {
    /// Version of the program.
    pub abi_version: u32,
    /// Size of this structure in the program, in bytes.
    pub struct_size: u32,
    /// Number of arguments, including the kernel's path.
    pub argc: c_int,
    /// Arguments, which are strings.
    pub argv: *const *const c_char,
    /// Number of inputs.
    pub input_count: usize,
    /// Inputs.
    pub inputs: *const AbiInput,
    /// Number of outputs.
    pub output_count: usize,
    /// Outputs.
    pub outputs: *const AbiOutput,
    /// Function that appends to an output; null in modules.
    pub write: Option<unsafe extern "C" fn(*const AbiTask, usize, *const c_void, usize) -> c_int>,
    /// Function that shows a message; null in modules.
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

/// Appends to an output; returns an errno value.
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

/// Shows a message.
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

/// Allocates memory for data from the program. The program owns it from then on.
#[must_use]
pub fn alloc(size: usize) -> *mut u8 {
    let layout = std::alloc::Layout::from_size_align(size.max(1), 16);
    // SAFETY: the size is not 0.
    layout.map_or(std::ptr::null_mut(), |layout| unsafe {
        std::alloc::alloc(layout)
    })
}

/// `start_kernel`.
///
/// # Safety
/// As the header says; the same applies to all functions below.
pub unsafe fn start(task: *const AbiTask, function: fn(&Safe<'_>) -> Result) -> i32 {
    // SAFETY: the caller guarantees this.
    let task = unsafe { Safe::new(task) };
    task.code(function(&task))
}

/// `tidemill_fold_init`.
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

/// `tidemill_fold_update`.
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

/// `tidemill_fold_merge`.
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

/// `tidemill_fold_state`.
///
/// # Safety
/// See [`start`].
pub unsafe fn state<F: Fold>(state: *mut c_void, task: *const AbiTask) -> i32 {
    // SAFETY: the state is the result of `init`, and the task is valid.
    let (folding, task) = unsafe { (&*state.cast::<Folding<F>>(), Safe::new(task)) };
    task.code(task.write(0, &folding.fold.state()))
}

/// `tidemill_fold_finish`.
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
    fn header_names_the_same_abi_version() {
        let header = include_str!("../../kernel/include/tidemill_kernel.h");
        assert!(header.contains(&format!("#define TIDEMILL_ABI_VERSION {ABI_VERSION}\n")));
    }
}
