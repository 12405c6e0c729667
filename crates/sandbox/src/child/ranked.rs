//! Kernel that runs as several processes (ranks): `void func(int in_fd, int out_fd, MPI_Comm comm)` of Active Burst-Buffer (§III-D).
//!
//! This program does not link MPI. The kernel links its own MPI library, MPICH or a library with the same binary interface, and MPI's
//! functions are looked up in the same way as the kernel's. The process that started the kernel speaks PMI at the other end of its stdin.

use std::ffi::{c_char, c_int};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, IntoRawFd};

use libloading::{Library, Symbol};

use super::abi;
use super::native::{KernelCall, NativeError};
use crate::run::RANKS_VARIABLE;

/// `MPI_COMM_WORLD` of MPICH and of all libraries with its binary interface.
const WORLD: c_int = 0x4400_0000;

/// PMI message of a rank that has finished; the next constant is the answer when all ranks have finished.
const BARRIER: &[u8] = b"cmd=barrier_in last=yes\n";

type RankInit = unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char) -> c_int;
type Barrier = unsafe extern "C" fn(c_int) -> c_int;
type RankCall = unsafe extern "C" fn(c_int, c_int, c_int);

/// Returns whether this process runs one rank of a kernel with several ranks.
pub(super) fn is_one() -> bool {
    std::env::var_os(RANKS_VARIABLE).is_some()
}

/// Calls the kernel's function on this rank, and ends the process when the function has returned on all ranks.
pub(super) fn run(library: &'static Library, call: KernelCall<'_>) -> Result<u8, NativeError> {
    // SAFETY: no code is called; this only looks up a symbol of another library.
    if unsafe { library.get::<*const u8>(c"ompi_mpi_comm_world") }.is_ok() {
        return Err(NativeError::OtherMpi);
    }
    // SAFETY: MPI declares the functions with these types.
    let (init, barrier) = unsafe {
        let init: Result<Symbol<'static, RankInit>, _> = library.get(c"MPI_Init");
        (init, library.get::<Barrier>(c"MPI_Barrier"))
    };
    let (Ok(init), Ok(barrier)) = (init, barrier) else {
        return Err(NativeError::NoMpi);
    };
    // SAFETY: the paper declares the function with this type.
    let func = unsafe { library.get::<RankCall>(c"func") };
    let func = func.map_err(|_| NativeError::NoRanked)?;
    let input = input(call.inputs)?;
    let made = abi::create(call.outputs)?;
    let [output] = made.as_slice() else {
        return Err(NativeError::Outputs(made.len()));
    };
    // SAFETY: null means no arguments. Errors of MPI end the process, because the kernel has not set another handler.
    unsafe {
        init(std::ptr::null_mut(), std::ptr::null_mut());
        func(input.into_raw_fd(), output.as_raw_fd(), WORLD);
        barrier(WORLD);
    }
    done().map_err(NativeError::Starter)?;
    // `MPI_Finalize` of MPICH 4.0 over UCX sometimes waits for a peer that waits for it. All messages have arrived by now. SAFETY:
    // flushes the kernel's output, and ends the process without the cleanup code of libraries.
    unsafe {
        libc::fflush(std::ptr::null_mut());
        libc::_exit(0)
    }
}

/// Returns the only input, or all inputs concatenated.
fn input(names: &[String]) -> Result<File, NativeError> {
    let error = |name: &str, source| NativeError::Input {
        name: name.to_owned(),
        source,
    };
    if let [name] = names {
        return File::open(name).map_err(|source| error(name, source));
    }
    let directory = std::env::temp_dir();
    let mut all = tempfile(&directory).map_err(|source| error("the inputs together", source))?;
    for name in names {
        let copied = File::open(name).and_then(|mut file| io::copy(&mut file, &mut all));
        copied.map_err(|source| error(name, source))?;
    }
    all.rewind()
        .map_err(|source| error("the inputs together", source))?;
    Ok(all)
}

/// Returns a file without a name in a directory.
fn tempfile(directory: &std::path::Path) -> io::Result<File> {
    let path = directory.join("inputs");
    let mut options = File::options();
    let file = options
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// Waits until all ranks have finished.
fn done() -> io::Result<()> {
    let starter = rustix::io::dup(io::stdin())?;
    let mut starter = File::from(starter);
    starter.write_all(BARRIER)?;
    let mut byte = [0];
    while byte != *b"\n" {
        starter.read_exact(&mut byte)?;
    }
    Ok(())
}
