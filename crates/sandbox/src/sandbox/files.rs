//! File access of kernels: the private directory, the system's programs and libraries, and the files that the run names. A kernel cannot
//! open, list or make any other file.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use landlock::{ABI, Access, AccessFs, AccessNet, BitFlags, Ruleset, RulesetAttr, Scope};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};

use crate::error::SpawnError;

/// Newest version of Landlock's interface that this crate uses; on older systems, rights that do not exist are left out.
const VERSION: ABI = ABI::V6;

/// Files and directories of the host that every kernel may read and execute. Paths that do not exist are skipped. `/etc` is not open as a
/// whole because a kernel that runs as root could read secrets in it.
pub const SYSTEM_PATHS: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/opt",
    "/nix/store",
    "/gnu/store",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/localtime",
    "/etc/timezone",
    "/etc/locale.alias",
    "/etc/os-release",
    "/etc/mime.types",
    "/etc/magic",
    "/etc/fonts",
    "/etc/ImageMagick-6",
    "/etc/ImageMagick-7",
    "/etc/python3",
    "/etc/perl",
    "/etc/R",
    "/etc/terminfo",
    "/etc/ssl/openssl.cnf",
    "/etc/ssl/certs",
    "/var/cache/fontconfig",
    "/dev/random",
    "/dev/urandom",
    "/proc/cpuinfo",
    "/proc/filesystems",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/uptime",
    "/proc/version",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/vm/overcommit_memory",
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
];

/// Devices that every kernel may read and write.
const WRITABLE_DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full"];

/// Constant `LANDLOCK_RULE_PATH_BENEATH` of `linux/landlock.h`.
const RULE_PATH_BENEATH: libc::c_int = 1;

/// The `struct landlock_path_beneath_attr` of `linux/landlock.h`.
#[repr(C, packed)]
struct PathBeneathAttr {
    allowed_access: u64,
    parent_fd: i32,
}

/// Rules that are the same for all runs, with their files open and the access that each allows.
#[derive(Debug)]
pub(crate) struct SystemRules {
    rules: Vec<(OwnedFd, u64)>,
    /// Version of Landlock's interface on this system.
    version: ABI,
}

impl SystemRules {
    /// Opens the existing files and directories of `paths` and the default devices.
    pub(crate) fn open(paths: &[PathBuf], version: i32) -> Self {
        let version = version.into();
        let mut seen = Vec::new();
        let mut rules = Vec::new();
        let devices = WRITABLE_DEVICES
            .iter()
            .map(|path| (Path::new(path), read() | AccessFs::WriteFile));
        for (path, access) in paths
            .iter()
            .map(|path| (path.as_path(), read()))
            .chain(devices)
        {
            let Ok(canonical) = path.canonicalize() else {
                continue;
            };
            // A rule covers all files below it: on merged-usr systems /bin and /lib are in /usr.
            if seen.iter().any(|above| canonical.starts_with(above)) {
                continue;
            }
            if let Ok(file) = open_path(&canonical)
                && let Ok(access) = known(&file, access, version)
            {
                rules.push((file, access));
                seen.push(canonical);
            }
        }
        Self { rules, version }
    }

    /// Returns the Landlock ruleset of one run; `None` if the system lacks Landlock.
    pub(crate) fn ruleset<'a>(
        &self,
        directory: &OwnedFd,
        readable: impl Iterator<Item = BorrowedFd<'a>>,
        has_peers: bool,
    ) -> Result<Option<OwnedFd>, SpawnError> {
        let made = Ruleset::default().handle_access(AccessFs::from_all(VERSION))?;
        // A kernel with peers is in a network without any other process.
        let made = match has_peers {
            true => made,
            false => made.handle_access(AccessNet::from_all(VERSION))?,
        };
        let made = made.scope(Scope::from_all(VERSION))?.create()?;
        let Some(ruleset) = Option::<OwnedFd>::from(made) else {
            return Ok(None);
        };
        let add = |file: BorrowedFd<'_>, access| match add_rule(&ruleset, file, access) {
            0 => Ok(()),
            _ => Err(SpawnError::Process(io::Error::last_os_error())),
        };
        for (file, access) in &self.rules {
            add(file.as_fd(), *access)?;
        }
        for file in readable {
            let access = known(file, read(), self.version).map_err(SpawnError::Process)?;
            add(file, access)?;
        }
        let all = AccessFs::from_all(VERSION) & AccessFs::from_all(self.version);
        add(directory.as_fd(), all.bits())?;
        Ok(Some(ruleset))
    }
}

/// Returns the part of `access` that exists for a file of this kind on a system of this version.
fn known(file: impl AsFd, access: BitFlags<AccessFs>, version: ABI) -> io::Result<u64> {
    let data = rustix::fs::fstat(file)?;
    let there = match FileType::from_raw_mode(data.st_mode) {
        FileType::Directory => AccessFs::from_all(version),
        _ => AccessFs::from_file(version),
    };
    Ok((access & there).bits())
}

/// Adds a rule to a ruleset by a bare system call, as is necessary between fork and exec; returns the result of the call.
pub(crate) fn add_rule(ruleset: &OwnedFd, file: BorrowedFd<'_>, access: u64) -> libc::c_long {
    let rule = PathBeneathAttr {
        allowed_access: access,
        parent_fd: file.as_raw_fd(),
    };
    let (call, ruleset, rule) = (
        libc::SYS_landlock_add_rule,
        ruleset.as_raw_fd(),
        &raw const rule,
    );
    // SAFETY: the attribute lives through the call that reads it.
    unsafe { libc::syscall(call, ruleset, RULE_PATH_BENEATH, rule, 0) }
}

/// Returns Landlock's rights of reading, listing and executing.
fn read() -> BitFlags<AccessFs> {
    AccessFs::from_read(VERSION)
}

/// Returns Landlock's bits for reading a file and listing a directory, for the rule that only the new process can add: its own directory of
/// `/proc`.
pub(crate) fn read_bits() -> u64 {
    (AccessFs::ReadFile | AccessFs::ReadDir).bits()
}

/// Opens a path as the object of a rule, without the right to read it.
pub(crate) fn open_path(path: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// Opens a directory as the object of a rule, if its path contains no link.
pub(crate) fn open_directory_path(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let through = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), through)
}
