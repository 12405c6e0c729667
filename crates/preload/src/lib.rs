//! `libtidemill_preload.so`: functions with the names of the C library's functions, for programs that do not know the cluster.
//!
//! Calls about paths below the prefix, or about open files of the cluster, are sent to the process that has the file system (next:
//! `mount/src/preload/mod.rs`). All other calls are passed to the operating system unchanged. An open file is a descriptor from that
//! process, so the library does not intercept reading, writing, mapping, seeking, duplicating and passing on.
//!
//! **The library keeps no state about descriptors**: the link in `/proc/self/fd` shows the kind of a descriptor. So no state has to be
//! maintained through `dup`, `fork`, `vfork`, `exec` and threads. The only state of a process is its working directory, if it is in the
//! cluster; an environment variable passes it to child processes.
//!
//! The library's functions that POSIX allows in signal handlers neither allocate nor lock.
//!
//! | file | subject |
//! |---|---|
//! | `c` | the system and pointers of C: all unsafe code |
//! | `talk` | connections to the file system, requests |
//! | `place` | targets of paths and descriptors; the working directory |
//! | `open`, `attributes`, `names`, `descriptors` | calls of POSIX |
//! | `directory`, `stdio`, `programs` | calls of the C library that contain other calls |

#![allow(
    clippy::needless_pass_by_value,
    reason = "the C library's functions take what they take"
)]

mod attributes;
mod c;
mod connection;
mod descriptors;
mod directory;
mod names;
mod open;
mod programs;
mod stdio;
mod target;

/// Initialiser that runs when the library is loaded, before the program.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    target::begin();
    attributes::find();
    stdio::find();
    directory::find();
    programs::find();
}
