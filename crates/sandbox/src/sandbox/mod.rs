//! Confinement of kernels. This module prepares in the parent process everything that can be prepared before the fork; `spawn` applies it
//! between fork and exec.
//!
//! - `files`: access to files (Landlock).
//! - `calls`: filter of system calls (seccomp).
//! - `group`: limits of all kernels together (control groups).
//! - `ids`: user numbers of kernels.
//! - `namespaces`: separate users, network and messages of kernels.
//!
//! The module `spawn` itself sets rights of users, capabilities and resource limits.

pub(crate) mod calls;
pub(crate) mod files;
pub(crate) mod group;
pub(crate) mod ids;
pub(crate) mod namespaces;
mod tree;

/// Flag `LANDLOCK_CREATE_RULESET_VERSION` of `linux/landlock.h`.
const RULESET_VERSION: libc::c_uint = 1;

/// First Landlock version that also confines signals and abstract sockets.
const SCOPES_SINCE: i32 = 6;

/// First Landlock version that also governs truncation. With older versions, a file's path, or the right to read the file, is enough to
/// truncate it.
const CUTS_SINCE: i32 = 3;

/// Parts of the confinement that this host supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SandboxSupport {
    /// Version of Landlock's interface; 0 if the host lacks Landlock. Without Landlock, kernels reach every file that their user can.
    pub landlock_version: i32,
    /// Whether the host can filter system calls. Without a filter, kernels have a network.
    pub seccomp: bool,
    /// Whether kernels can run as another user than this process's user, which is root.
    pub switches_user: bool,
}

impl SandboxSupport {
    /// Returns whether kernels reach only their own files.
    #[must_use]
    pub fn files(&self) -> bool {
        self.landlock_version >= 1
    }

    /// Returns whether kernels may truncate files by a path: only if truncation is limited to files that they may write.
    #[must_use]
    pub fn cuts(&self) -> bool {
        self.landlock_version >= CUTS_SINCE
    }

    /// Returns whether kernels can signal only their own processes. If not, and if this process is not root, a kernel can kill other
    /// processes of the same user.
    #[must_use]
    pub fn signals(&self) -> bool {
        self.landlock_version >= SCOPES_SINCE
    }

    /// Returns the missing protections without which user code must not run, in words.
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

/// Returns the protections that the running system supports.
#[must_use]
pub fn sandbox_support() -> SandboxSupport {
    // SAFETY: with this flag the call takes a null attribute of size 0 and only returns a number.
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
