//! The confinement of kernels. Everything that can be prepared is prepared here in the parent; `spawn`
//! puts it up between fork and exec.
//!
//! - `files`: what a kernel can reach in the file system (Landlock).
//! - `calls`: the system calls that it can make (seccomp).
//! - `group`: what all kernels may have together (control groups).
//! - `ids`: under whose numbers they run.
//! - `namespaces`: what they are in instead of the system's users, network and messages.
//!
//! Rights of users, capabilities and resource limits are set directly by `spawn`.

pub(crate) mod calls;
pub(crate) mod files;
pub(crate) mod group;
pub(crate) mod ids;
pub(crate) mod namespaces;
mod tree;

/// `LANDLOCK_CREATE_RULESET_VERSION` of `linux/landlock.h`.
const RULESET_VERSION: libc::c_uint = 1;

/// The Landlock version that also keeps signals and abstract sockets inside.
const SCOPES_SINCE: i32 = 6;

/// The Landlock version that also governs cutting off files. Before, a path is enough for that, or a file that may be read.
const CUTS_SINCE: i32 = 3;

/// What this host offers to confine kernels with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SandboxSupport {
    /// Version of Landlock's interface; 0 where there is none. Without it kernels reach every file that
    /// their user can.
    pub landlock_version: i32,
    /// Whether system calls can be filtered. Without it kernels have a network.
    pub seccomp: bool,
    /// Whether kernels can have another user than this process, which is root.
    pub switches_user: bool,
}

impl SandboxSupport {
    /// Whether kernels reach only the files that they are given.
    #[must_use]
    pub fn files(&self) -> bool {
        self.landlock_version >= 1
    }

    /// Whether kernels may cut off files by a path: only where that is kept to the files that they may write.
    #[must_use]
    pub fn cuts(&self) -> bool {
        self.landlock_version >= CUTS_SINCE
    }

    /// Whether kernels can signal only their own processes. Where they cannot and this process is not
    /// root, a kernel can kill other processes of the same user.
    #[must_use]
    pub fn signals(&self) -> bool {
        self.landlock_version >= SCOPES_SINCE
    }

    /// What is missing that user code must not run without, in words.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        let mut missing = Vec::new();
        if !self.files() {
            missing.push("no Landlock, so kernels would reach every file of their user");
        }
        if !self.seccomp {
            missing.push("no seccomp filters, so kernels would have a network");
        }
        missing
    }
}

/// Asks the running system what it offers.
#[must_use]
pub fn sandbox_support() -> SandboxSupport {
    // SAFETY: with this flag the call takes a null attribute of size 0 and only answers a number.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0_usize,
            RULESET_VERSION,
        )
    };
    let action: u32 = libc::SECCOMP_RET_ERRNO;
    // SAFETY: this operation reads one u32 that outlives the call and changes nothing.
    let seccomp = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_ACTION_AVAIL,
            0,
            &raw const action,
        )
    };
    SandboxSupport {
        landlock_version: i32::try_from(version).unwrap_or(0).max(0),
        seccomp: seccomp == 0,
        switches_user: rustix::process::geteuid().is_root(),
    }
}
