//! What a kernel can reach in the file system: its private folder, the system's programs and libraries,
//! and the files that the run names. Nothing else can be opened, listed or made.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetError, Scope,
};
use rustix::fs::{Mode, OFlags};

/// The newest interface this crate knows; older systems leave out what they lack.
const VERSION: ABI = ABI::V6;

/// Files and folders of the host that every kernel may read and execute. What does not exist is left out.
/// `/etc` is not open as a whole since a kernel that runs as root could read secrets there.
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

/// The rules that are the same for all runs, with the files they name held open.
#[derive(Debug)]
pub(crate) struct SystemRules {
    rules: Vec<(OwnedFd, BitFlags<AccessFs>)>,
}

impl SystemRules {
    /// Opens what exists of `paths` and the default devices.
    pub(crate) fn open(paths: &[PathBuf]) -> Self {
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
            // A rule holds for all below it: on merged-usr systems /bin and /lib lie in /usr.
            if seen.iter().any(|above| canonical.starts_with(above)) {
                continue;
            }
            if let Ok(file) = open_path(&canonical) {
                rules.push((file, access));
                seen.push(canonical);
            }
        }
        Self { rules }
    }

    /// The ruleset of one run; `None` where Landlock is missing.
    pub(crate) fn ruleset(
        &self,
        folder: &impl AsFd,
        readable: &[OwnedFd],
    ) -> Result<Option<OwnedFd>, RulesetError> {
        let mut ruleset = Ruleset::default()
            .handle_access(AccessFs::from_all(VERSION))?
            .handle_access(AccessNet::from_all(VERSION))?
            .scope(Scope::from_all(VERSION))?
            .create()?;
        for (file, access) in &self.rules {
            ruleset = ruleset.add_rule(PathBeneath::new(file, *access))?;
        }
        for file in readable {
            ruleset = ruleset.add_rule(PathBeneath::new(file, read()))?;
        }
        ruleset = ruleset.add_rule(PathBeneath::new(folder, AccessFs::from_all(VERSION)))?;
        Ok(descriptor(ruleset))
    }
}

fn descriptor(ruleset: RulesetCreated) -> Option<OwnedFd> {
    ruleset.into()
}

/// Reading, listing and executing.
fn read() -> BitFlags<AccessFs> {
    AccessFs::from_read(VERSION)
}

/// The bits of Landlock for reading a file and listing a folder, for the rule that only the new process
/// can add: its own folder of `/proc`.
pub(crate) fn read_bits() -> u64 {
    (AccessFs::ReadFile | AccessFs::ReadDir).bits()
}

/// Opens a path as the object of a rule, without the right to read it.
pub(crate) fn open_path(path: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}
