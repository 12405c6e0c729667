//! Checks of the isolation of kernels, and of the compilers for own kernels.

use super::host::program;
use crate::output::doctor::Check;
use rustix::fs::{Access, access};
use std::path::{Path, PathBuf};
use tidemill_sandbox::{KERNELS_FROM, SandboxSupport, sandbox_support};

/// Controllers that limit the memory and the processes of kernels.
const CONTROLLERS: [&str; 2] = ["memory", "pids"];
/// Controller that limits the processor time of kernels.
const CPU: &str = "cpu";

/// Advice for a daemon without the right to make control groups.
const DELEGATE: &str = "run the node as a systemd service with Delegate=yes, or as root";

/// Runs all checks.
pub(super) fn checks() -> Vec<Check> {
    let support = sandbox_support();
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let groups = Groups::find(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"));
    vec![
        landlock(support),
        seccomp(support),
        control_groups(&groups),
        users(support.switches_user, &read("/proc/self/uid_map")),
        compilers(program("cc").is_some(), program("rustc").is_some()),
    ]
}

fn landlock(support: SandboxSupport) -> Check {
    let found = format!("version {}", support.landlock_version);
    if !support.files() {
        return Check::problem(
            "landlock",
            "missing",
            (
                "a node runs no kernels of users, because they would reach every file of their user",
                "use Linux 5.13 or newer, with `landlock` in the list of security modules (boot parameter lsm=)",
            ),
        );
    }
    if !support.cuts() {
        return Check::warning(
            "landlock",
            found,
            (
                "kernels can't truncate files by a path",
                "install Linux 6.2 or newer",
            ),
        );
    }
    if !support.signals() {
        return Check::warning(
            "landlock",
            found,
            (
                "signals and abstract sockets are not confined: under a node of another user than root, a kernel can kill processes of \
                 that user",
                "install Linux 6.12 or newer",
            ),
        );
    }
    Check::ok("landlock", found)
}

fn seccomp(support: SandboxSupport) -> Check {
    match support.seccomp {
        true => Check::ok("seccomp", "system calls can be filtered"),
        false => Check::problem(
            "seccomp",
            "missing",
            (
                "a node runs no kernels of users, because they would have a network",
                "use a Linux with CONFIG_SECCOMP_FILTER; in a container, allow the call seccomp()",
            ),
        ),
    }
}

/// Control groups of this process.
#[derive(Debug, PartialEq, Eq)]
struct Groups {
    /// Version: 1 or 2; 0: there are none with a controller for memory.
    version: u32,
    /// Available controllers.
    controllers: Vec<String>,
    /// Whether this process can make groups below its own.
    is_delegated: bool,
}

impl Groups {
    fn find(mounts: &str, own: &str) -> Self {
        let may_write = |directory: &Path| access(directory, Access::WRITE_OK).is_ok();
        if let Some(directory) = directory(mounts, own, None) {
            let listed = std::fs::read_to_string(directory.join("cgroup.controllers"));
            let listed = listed.unwrap_or_default();
            let controllers: Vec<String> = listed.split_whitespace().map(str::to_owned).collect();
            if controllers.iter().any(|name| name == CONTROLLERS[0]) {
                return Self {
                    version: 2,
                    controllers,
                    is_delegated: may_write(&directory),
                };
            }
        }
        let names = CONTROLLERS.into_iter().chain([CPU]);
        let places = names.filter_map(|name| Some((name, directory(mounts, own, Some(name))?)));
        let places: Vec<(&str, PathBuf)> = places.collect();
        Self {
            version: u32::from(places.iter().any(|(name, _)| *name == CONTROLLERS[0])),
            is_delegated: places.iter().all(|(_, directory)| may_write(directory)),
            controllers: places
                .into_iter()
                .map(|(name, _)| name.to_owned())
                .collect(),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.controllers.iter().any(|known| known == name)
    }
}

/// Returns the directory of this process's group in the hierarchy of a controller, or in the hierarchy of version 2.
fn directory(mounts: &str, own: &str, controller: Option<&str>) -> Option<PathBuf> {
    let lists = |list: &str, name: &str| list.split(',').any(|known| known == name);
    let path = own.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let fits = controller.map_or(controllers.is_empty(), |name| lists(controllers, name));
        fits.then_some(path)
    })?;
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, point) = (place.next()?, place.next()?);
        let mut kind = kind.split(' ');
        let fits = match (kind.next()?, controller) {
            ("cgroup2", None) => true,
            ("cgroup", Some(name)) => lists(kind.nth(1)?, name),
            _ => false,
        };
        let below = Path::new(path).strip_prefix(root).ok()?;
        fits.then(|| Path::new(point).join(below))
    })
}

fn control_groups(groups: &Groups) -> Check {
    let Groups { version, .. } = groups;
    let found = format!("version {version}: {}", groups.controllers.join(", "));
    let no_limit = "kernels have no common limit of memory and processes: together they can use up those of this machine";
    if *version == 0 {
        let advice = "mount control groups, with the controllers memory and pids";
        return Check::warning("cgroups", "none", (no_limit, advice));
    }
    if !groups.is_delegated {
        let found = format!("{found}; not delegated to this user");
        return Check::warning("cgroups", found, (no_limit, DELEGATE));
    }
    if !CONTROLLERS.iter().all(|name| groups.has(name)) {
        let advice = "delegate the controllers memory and pids to the service of the node";
        return Check::warning("cgroups", found, (no_limit, advice));
    }
    if !groups.has(CPU) {
        let effect = "kernels are not held to the cores that their tasks ask for";
        let advice = "delegate the controller cpu to the service of the node";
        return Check::warning("cgroups", found, (effect, advice));
    }
    Check::ok("cgroups", found)
}

/// Checks the numbers of users that kernels run as.
fn users(is_root: bool, map: &str) -> Check {
    if !is_root {
        return Check::ok(
            "users",
            "not root: a node runs the kernels of all users as this user",
        );
    }
    let numbers = |line: &str| {
        let mut fields = line.split_whitespace();
        let first: u64 = fields.next()?.parse().ok()?;
        let length: u64 = fields.nth(1)?.parse().ok()?;
        Some((first, first.checked_add(length)?))
    };
    let holds =
        |(first, end): (u64, u64)| first <= u64::from(KERNELS_FROM) && end >= u64::from(u32::MAX);
    match map.lines().filter_map(numbers).any(holds) {
        true => Check::ok(
            "users",
            "kernels get user numbers of their own; /etc/subuid is not needed",
        ),
        false => Check::warning(
            "users",
            "this user namespace has too few user numbers",
            (
                "kernels run with the numbers of their owners, and can reach other processes of their owners",
                "run the node outside of the container's user namespace, or map all numbers into it",
            ),
        ),
    }
}

/// Checks the compilers of `tidemill kernel build`.
fn compilers(has_c: bool, has_rust: bool) -> Check {
    let effect = "`tidemill kernel build` can't build kernels in that language here";
    match (has_c, has_rust) {
        (true, true) => Check::ok("compilers", "cc and rustc"),
        (true, false) => Check::ok("compilers", "cc; no rustc, which only kernels in Rust need"),
        (false, true) => Check::warning(
            "compilers",
            "rustc; no cc",
            (
                effect,
                "install a C compiler if you write kernels in C or C++",
            ),
        ),
        (false, false) => Check::warning(
            "compilers",
            "neither cc nor rustc",
            (effect, "install a C compiler or Rust if you write kernels"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::doctor::CheckState::{Ok, Problem, Warning};

    fn support(landlock_version: i32, seccomp: bool) -> SandboxSupport {
        SandboxSupport {
            landlock_version,
            seccomp,
            switches_user: true,
        }
    }

    #[test]
    fn missing_isolation_is_a_problem() {
        assert_eq!(landlock(support(0, true)).state, Problem);
        assert_eq!(landlock(support(2, true)).state, Warning);
        assert_eq!(landlock(support(5, true)).state, Warning);
        assert_eq!(landlock(support(6, true)).state, Ok);
        assert_eq!(seccomp(support(6, false)).state, Problem);
        assert_eq!(seccomp(support(6, true)).state, Ok);
    }

    #[test]
    fn cgroup_directory_is_found_in_both_versions() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n\
                      31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let own = "5:memory:/jobs\n0::/system.slice/a.service\n";
        let two = directory(mounts, own, None).unwrap();
        assert_eq!(two, Path::new("/sys/fs/cgroup/system.slice/a.service"));
        let one = directory(mounts, own, Some("memory")).unwrap();
        assert_eq!(one, Path::new("/sys/fs/cgroup/memory/jobs"));
        assert_eq!(directory(mounts, own, Some("pids")), None);
    }

    #[test]
    fn control_groups_need_delegation_and_controllers() {
        let groups = |version, names: &[&str], is_delegated| Groups {
            version,
            controllers: names.iter().map(|name| (*name).to_owned()).collect(),
            is_delegated,
        };
        let all = ["memory", "pids", "cpu"];
        assert_eq!(control_groups(&groups(2, &all, true)).state, Ok);
        assert_eq!(control_groups(&groups(2, &all, false)).state, Warning);
        assert_eq!(control_groups(&groups(2, &all[..2], true)).state, Warning);
        assert_eq!(control_groups(&groups(1, &all[..1], true)).state, Warning);
        assert_eq!(control_groups(&Groups::find("", "")).state, Warning);
    }

    #[test]
    fn few_user_numbers_are_a_warning() {
        let whole = "         0          0 4294967295\n";
        assert_eq!(users(true, whole).state, Ok);
        assert_eq!(users(true, "0 1000 1\n1 100000 65536\n").state, Warning);
        assert_eq!(users(false, "").state, Ok);
    }
}
