//! `libtidemill_preload.so`: functions with the names of the C library's, for programs that do not know the cluster.
//!
//! Calls about paths below the prefix, or about open files of the cluster, are sent to the process that has the file system (next:
//! `mount/src/preload/mod.rs`). All other calls are passed to the system unchanged. An open file is a descriptor from that process, so
//! reading, writing, mapping, seeking, duplicating and passing on are not intercepted at all.
//!
//! **The library keeps no state about descriptors**: the name in `/proc/self/fd` shows the kind of a descriptor. So no state has to be
//! maintained through `dup`, `fork`, `vfork`, `exec` and threads. The only state of a process is its working directory, if that is in the
//! cluster; the environment passes it on.
//!
//! Functions that POSIX allows in signal handlers neither allocate nor lock here.
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

/// Runs when the library is loaded, before the program.
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
