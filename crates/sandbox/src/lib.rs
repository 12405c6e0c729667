//! Processes of kernels: the launcher, the confinement of kernels, and the limits on them.
//!
//! This crate makes the private directory of a run, starts the kernel in a separate confined process, watches its limits and reports how it
//! ended. It also contains the runtimes that load native kernels and WebAssembly modules. It does not depend on labels, objects or the
//! network: a node fills in a [`Run`].
//!
//! ```no_run
//! use tidemill_sandbox::{CodeSource, Launcher, LauncherSettings, Run, RunInput};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! tidemill_sandbox::child::main_if_child(); // first thing in `main`
//! let launcher = Launcher::new(LauncherSettings::default())?;
//! let mut run = Run::new(CodeSource::Builtin("max".into()), "/srv/node/run/7");
//! run.inputs.push(RunInput { name: "a.dat".into(), path: "/srv/node/objects/00/01".into() });
//! run.outputs.push("max.txt".into());
//! let prepared = launcher.prepare(run)?;
//! let exit = launcher.spawn(&prepared)?.wait()?;
//! if exit.success() {
//!     let made = prepared.output("max.txt")?;
//!     made.move_to(std::path::Path::new("/srv/node/objects/00/02"))?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! **Confinement of a kernel.**
//! - A kernel cannot reach files other than its directory, its inputs and the system's programs (Landlock).
//! - A kernel has no network and cannot leave its process group (seccomp and namespaces).
//! - A kernel runs as a user that no process outside of the sandbox has, without capabilities.
//! - Time, memory, output and number of processes of a kernel are limited.
//! - A kernel dies when its node dies.
//!
//! [`sandbox_support`] reports which of these protections the host supports.

pub mod child;
mod code;
mod directory;
mod error;
mod fork_server;
mod launcher;
pub mod locks;
mod modules;
pub mod peers;
mod prepare;
mod private;
mod probe;
mod program;
pub mod reduce_workers;
mod run;
mod running;
mod sandbox;
mod spare;
mod spawn;
mod watch;

pub use directory::DirectoryBounds;
pub use error::{OutputError, PrepareError, SetupError, SpawnError};
pub use launcher::{Launcher, LauncherSettings};
pub use prepare::{Prepared, RESERVED};
pub use private::{PrivateFile, open_as_made, remove_directory};
pub use probe::{PROBE_TIME, ProbeError};
pub use program::{find_program, hash_file};
pub use run::{
    CodeSource, Exit, InputsAs, RANKS_VARIABLE, READ_VARIABLE, Run, RunEnd, RunInput, RunLimits,
    RunPart, RunStage, RunUsage, StreamTail, TAIL_BYTES_MAX, User,
};
pub use running::{Control, RunningKernel};
pub use sandbox::files::SYSTEM_PATHS;
pub use sandbox::group::{LauncherLimits, memory_limit};
pub use sandbox::ids::{KERNELS_FROM, STORE_USER};
pub use sandbox::{SandboxSupport, sandbox_support};
