//! Interface for users' kernels in Rust.
//!
//! One trait and one macro make a kernel that exports the interface of `tidemill_kernel.h`: as a shared object
//! (`crate-type = ["cdylib"]`) and, built for `wasm32-unknown-unknown`, as a WebAssembly module. This crate has no
//! dependencies; it only converts between Rust and the C interface.
//!
//! ```
//! use tidemill_kernel_api::{Fold, Result, Task, fold};
//!
//! /// Counts the bytes that equal the first byte of the argument.
//! struct Count {
//!     wanted: u8,
//!     found: u64,
//! }
//!
//! impl Fold for Count {
//!     fn init(task: &Task) -> Result<Self> {
//!         let wanted = *task.arg(0).ok_or("count: which byte?")?.as_bytes().first().ok_or("count: an empty argument")?;
//!         Ok(Self { wanted, found: 0 })
//!     }
//!     fn update(&mut self, _input: usize, _offset: u64, piece: &[u8]) -> Result {
//!         self.found += piece.iter().filter(|byte| **byte == self.wanted).count() as u64;
//!         Ok(())
//!     }
//!     fn state(&self) -> Vec<u8> {
//!         self.found.to_le_bytes().to_vec()
//!     }
//!     fn merge(&mut self, state: &[u8]) -> Result {
//!         self.found += u64::from_le_bytes(state.try_into()?);
//!         Ok(())
//!     }
//!     fn finish(self, task: &Task) -> Result {
//!         task.write(0, format!("{}\n", self.found).as_bytes())
//!     }
//! }
//! fold!(Count);
//! # fn main() {}
//! ```

mod full_access;
pub mod raw;

pub use full_access::{READ_BYTES_MAX, read};

use std::ffi::CStr;
use std::fmt;
use std::marker::PhantomData;
use std::ptr;

/// Error of a kernel; the user who runs the job sees its message.
pub type Error = Box<dyn std::error::Error>;

/// Result of a function of a kernel.
pub type Result<T = ()> = std::result::Result<T, Error>;

/// Kernel that processes its input in pieces. The kernel's result must not depend on how the input was cut, on the order in which the
/// pieces arrive, or on the order in which states are merged.
pub trait Fold: Sized {
    /// Returns an empty state for the task's arguments.
    ///
    /// # Errors
    /// The arguments are wrong.
    fn init(task: &Task<'_>) -> Result<Self>;

    /// Processes a piece of input number `input` that begins at byte `offset`. Pieces begin at multiples of 4096 bytes, and the length of
    /// all but the last piece of an input is a multiple of 4096 bytes.
    ///
    /// # Errors
    /// The kernel cannot process the piece.
    fn update(&mut self, input: usize, offset: u64, piece: &[u8]) -> Result;

    /// Returns the state as bytes that have the same meaning on every machine.
    fn state(&self) -> Vec<u8>;

    /// Merges a state that [`Fold::state`] returned for other pieces, perhaps on another machine.
    ///
    /// # Errors
    /// The bytes are not a state of this kernel.
    fn merge(&mut self, state: &[u8]) -> Result;

    /// Writes the result of the kernel to the task's outputs.
    ///
    /// # Errors
    /// There is no result, or the result cannot be written.
    fn finish(self, task: &Task<'_>) -> Result;
}

/// Task that runs a kernel.
#[derive(Clone, Copy)]
pub struct Task<'a> {
    raw: &'a raw::AbiTask,
    /// Marker that keeps the task on the thread of the kernel, which alone may call the task's functions.
    here: PhantomData<*const ()>,
}

/// Input of a task: a whole file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input<'a> {
    /// Name of the input in the job script.
    pub name: &'a str,
    /// Contents of the file.
    pub data: &'a [u8],
}

impl<'a> Task<'a> {
    /// Creates a task from the data of the program that runs the kernel.
    ///
    /// # Safety
    /// `raw` must point to a task as `tidemill_kernel.h` describes, valid for `'a`.
    #[must_use]
    pub unsafe fn new(raw: *const raw::AbiTask) -> Self {
        Self {
            // SAFETY: the caller guarantees this.
            raw: unsafe { &*raw },
            here: PhantomData,
        }
    }

    /// Returns the path of the kernel file.
    #[must_use]
    pub fn kernel(&self) -> &'a str {
        self.word(0).unwrap_or_default()
    }

    /// Returns the argument number `index`, counted from 0; `None` after the last argument.
    #[must_use]
    pub fn arg(&self, index: usize) -> Option<&'a str> {
        self.word(index + 1)
    }

    /// Returns all arguments of the task.
    pub fn args(&self) -> impl Iterator<Item = &'a str> {
        let task = *self;
        (0..).map_while(move |index| task.arg(index))
    }

    fn word(&self, index: usize) -> Option<&'a str> {
        let count = usize::try_from(self.raw.argc).unwrap_or(0);
        // SAFETY: there are `argc` strings, which end with a zero byte and live as long as the task.
        let word = (index < count).then(|| unsafe { CStr::from_ptr(*self.raw.argv.add(index)) })?;
        Some(word.to_str().unwrap_or_default())
    }

    /// Returns the inputs of the task. The list is empty for a fold, which gets pieces of the inputs instead.
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = Input<'a>> {
        let raw = self.raw;
        (0..raw.input_count).map(move |index| {
            // SAFETY: there are so many inputs, each of `size` readable bytes that no process changes, and a name; all live as long as
            // the task.
            unsafe {
                let input = &*raw.inputs.add(index);
                let size = usize::try_from(input.size).unwrap_or(usize::MAX);
                Input {
                    name: CStr::from_ptr(input.name).to_str().unwrap_or_default(),
                    data: std::slice::from_raw_parts(input.data.cast(), size),
                }
            }
        })
    }

    /// Returns the names of the outputs in the job script. If the list is empty, output 0 is standard output.
    pub fn outputs(&self) -> impl ExactSizeIterator<Item = &'a str> {
        let raw = self.raw;
        (0..raw.output_count).map(move |index| {
            // SAFETY: there are so many outputs, each with a name that lives as long as the task.
            let name = unsafe { CStr::from_ptr((*raw.outputs.add(index)).name) };
            name.to_str().unwrap_or_default()
        })
    }

    /// Appends bytes to output number `output`.
    ///
    /// # Errors
    /// There is no output with this number, or the output cannot be written.
    pub fn write(&self, output: usize, bytes: &[u8]) -> Result {
        match raw::write(self.raw, output, bytes) {
            0 => Ok(()),
            errno => Err(format!(
                "cannot write output {output}: {}",
                std::io::Error::from_raw_os_error(errno)
            )
            .into()),
        }
    }

    /// Shows a message to the user who runs the job.
    pub fn show(&self, message: &str) {
        raw::show(self.raw, message);
    }

    /// Converts a result to an exit code, and shows the message of its error to the user.
    fn code(&self, result: Result) -> i32 {
        match result {
            Ok(()) => 0,
            Err(error) => {
                self.show(&error.to_string());
                1
            }
        }
    }
}

impl fmt::Debug for Task<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("kernel", &self.kernel())
            .field("args", &self.args().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// Makes a type that implements [`Fold`] the kernel of this library.
#[macro_export]
macro_rules! fold {
    ($kernel:ty) => {
        $crate::version!();

        #[unsafe(no_mangle)]
        unsafe extern "C" fn tidemill_fold_init(
            task: *const $crate::raw::AbiTask,
        ) -> *mut ::core::ffi::c_void {
            // SAFETY: the program calls it as the header says; the same holds below.
            unsafe { $crate::raw::init::<$kernel>(task) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn tidemill_fold_update(
            state: *mut ::core::ffi::c_void,
            input: usize,
            offset: u64,
            data: *const u8,
            size: usize,
        ) -> i32 {
            // SAFETY: see above.
            unsafe { $crate::raw::update::<$kernel>(state, input, offset, data, size) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn tidemill_fold_merge(
            state: *mut ::core::ffi::c_void,
            partial: *const u8,
            size: usize,
        ) -> i32 {
            // SAFETY: see above.
            unsafe { $crate::raw::merge::<$kernel>(state, partial, size) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn tidemill_fold_state(
            state: *mut ::core::ffi::c_void,
            task: *const $crate::raw::AbiTask,
        ) -> i32 {
            // SAFETY: see above.
            unsafe { $crate::raw::state::<$kernel>(state, task) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn tidemill_fold_finish(
            state: *mut ::core::ffi::c_void,
            task: *const $crate::raw::AbiTask,
        ) -> i32 {
            // SAFETY: see above.
            unsafe { $crate::raw::finish::<$kernel>(state, task) }
        }
    };
}

/// Makes a function from a [`Task`] with all its inputs to a [`Result`] the kernel of this library.
#[macro_export]
macro_rules! start {
    ($function:path) => {
        $crate::version!();

        #[unsafe(no_mangle)]
        unsafe extern "C" fn start_kernel(task: *const $crate::raw::AbiTask) -> i32 {
            // SAFETY: the program calls it as the header says.
            unsafe { $crate::raw::start(task, $function) }
        }
    };
}

/// Exports the version function that all kernels have, in addition to their own functions.
#[doc(hidden)]
#[macro_export]
macro_rules! version {
    () => {
        #[unsafe(no_mangle)]
        #[used]
        static tidemill_kernel_abi_version: u32 = $crate::raw::ABI_VERSION;

        #[cfg(target_family = "wasm")]
        #[unsafe(no_mangle)]
        extern "C" fn tidemill_alloc(size: usize) -> *mut u8 {
            $crate::raw::alloc(size)
        }
    };
}

/// Fold in progress: its state, and the task that shows messages to the user.
#[derive(Debug)]
struct Folding<F> {
    fold: F,
    task: *const raw::AbiTask,
}

impl<F: Fold> Folding<F> {
    /// Passes ownership of the fold to the program, as a pointer.
    fn into_raw(self) -> *mut std::ffi::c_void {
        Box::into_raw(Box::new(self)).cast()
    }

    /// Converts a result to an exit code, for a call that has no task of its own to show the error.
    fn code(&self, result: Result) -> i32 {
        // SAFETY: the task of init is valid until finish, since it is the same in one process.
        unsafe { Task::new(self.task) }.code(result)
    }
}

/// Null pointer that stands for a missing state.
const NOTHING: *mut std::ffi::c_void = ptr::null_mut();
