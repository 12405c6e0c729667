//! `libtidemill_preload.so`: functions of the C library's names, for programs that know nothing of an array.
//!
//! What is about paths below the prefix, or about open files of the array, is asked of the process that has the file system
//! (`tidemill-mount`, `preload`); all else goes to the system as if this library were not there. A file is opened by being given
//! a descriptor, so reading, writing, mapping, seeking, duplicating and handing on are not intercepted at all.
//!
//! **Nothing is known of descriptors here**: what one is, is told by what `/proc/self/fd` calls it. So there is nothing
//! to keep right through `dup`, `fork`, `vfork`, `exec` and threads. The one thing that a process has of its own is its working
//! directory, if that is in the array; it is handed on in the environment.
//!
//! What POSIX lets signal handlers call allocates and locks nothing here.
//!
//! | file | subject |
//! |---|---|
//! | `c` | the system and pointers of C: all that is unsafe |
//! | `talk` | connections to the file system, requests |
//! | `place` | what paths and descriptors lead to; the working directory |
//! | `open`, `attributes`, `names`, `descriptors` | calls of POSIX |
//! | `folder`, `stdio`, `programs` | calls of the C library that hide others in them |

#![allow(
    clippy::needless_pass_by_value,
    reason = "the C library's functions take what they take"
)]

mod attributes;
mod c;
mod descriptors;
mod folder;
mod names;
mod open;
mod place;
mod programs;
mod stdio;
mod talk;

/// Runs when the library is loaded, before the program.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    place::begin();
    attributes::find();
    stdio::find();
    folder::find();
    programs::find();
}
