//! Checks of the host: Linux, FUSE, limits, memory and clock.

use crate::format;
use crate::output::doctor::Check;
use rustix::process::{Resource, geteuid, getrlimit};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// First Linux with Landlock, without which kernels do not run.
const LINUX_MIN: (u32, u32) = (5, 13);
/// First Linux that can pass reads and writes of a mount through to files.
const PASSTHROUGH_SINCE: (u32, u32) = (6, 9);
/// Number of open files that suffices for most mounts and servers.
const OPEN_FILES_GOOD: u64 = 65_536;
/// Memory with which a node and a few kernels run, in bytes.
const MEMORY_GOOD_BYTES: u64 = 1 << 30;
/// Space in `/dev/shm` that suffices for asynchronous requests, in bytes.
const SHM_GOOD_BYTES: u64 = 64 << 20;
/// Longest wait for the program that knows the state of the clock.
const CLOCK_PATIENCE: Duration = Duration::from_secs(3);

/// Runs all checks that need no waiting.
pub(super) fn checks() -> Vec<Check> {
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let is_root = geteuid().is_root();
    let mut open = std::fs::File::options();
    let fuse = open.read(true).write(true).open("/dev/fuse");
    let shm = rustix::fs::statvfs("/dev/shm").ok();
    let shm = shm.map(|shm| (shm.f_frsize * shm.f_blocks, shm.f_frsize * shm.f_bavail));
    vec![
        linux(&release),
        passthrough(&release, is_root),
        device(fuse.err().as_ref()),
        fusermount(is_root, program("fusermount3").is_some()),
        open_files(getrlimit(Resource::Nofile).maximum),
        memory(tidemill_node::config::machine_memory_bytes()),
        shared_memory(shm),
    ]
}

/// Returns the path of a program of the search path.
pub(super) fn program(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).map(|directory| directory.join(name));
    places.into_iter().find(|place| place.is_file())
}

/// Returns the version of Linux from the text of its release, such as `6.1.0-21-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn linux(release: &str) -> Check {
    match version(release) {
        Some(version) if version >= LINUX_MIN => Check::ok("linux", release),
        Some(_) => Check::problem(
            "linux",
            release,
            (
                "there is no Landlock before Linux 5.13, so nodes run no kernels of users",
                "install a newer Linux",
            ),
        ),
        None => Check::warning(
            "linux",
            format!("{release}: unknown version"),
            ("features may be missing", "use Linux 5.13 or newer"),
        ),
    }
}

fn passthrough(release: &str, is_root: bool) -> Check {
    let is_new = version(release).is_some_and(|version| version >= PASSTHROUGH_SINCE);
    let effect = "a mount copies the bytes of files on this machine through its own process, which is slower";
    match (is_new, is_root) {
        (true, true) => Check::ok(
            "passthrough",
            "Linux reads and writes files of local nodes itself",
        ),
        (true, false) => Check::warning(
            "passthrough",
            "only for mounts of root",
            (effect, "mount as root if speed matters"),
        ),
        (false, _) => Check::warning(
            "passthrough",
            "not in this Linux",
            (effect, "install Linux 6.9 or newer"),
        ),
    }
}

fn device(error: Option<&std::io::Error>) -> Check {
    let Some(error) = error else {
        return Check::ok("fuse", "/dev/fuse can be opened");
    };
    let advice = match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            "the administrator of this machine opens it by `chmod 666 /dev/fuse`"
        }
        _ => "load the module (`modprobe fuse`); in a container, give it the device /dev/fuse",
    };
    let effect = "no mount; `tidemill put`, `get` and `submit` work";
    Check::problem("fuse", format!("/dev/fuse: {error}"), (effect, advice))
}

fn fusermount(is_root: bool, exists: bool) -> Check {
    match (is_root, exists) {
        (_, true) => Check::ok("fusermount3", "installed"),
        (true, false) => Check::ok("fusermount3", "missing, but root does not need it"),
        (false, false) => Check::problem(
            "fusermount3",
            "missing",
            (
                "only root can mount; `tidemill put`, `get` and `submit` work",
                "install fuse3",
            ),
        ),
    }
}

fn open_files(maximum: Option<u64>) -> Check {
    match maximum {
        None => Check::ok("open-files", "no limit"),
        Some(maximum) if maximum >= OPEN_FILES_GOOD => {
            Check::ok("open-files", format!("{maximum} at most"))
        }
        Some(maximum) => Check::warning(
            "open-files",
            format!("{maximum} at most"),
            (
                "a mount or a server with more open files and connections fails with EMFILE",
                "raise the hard limit to 65536 or more (`ulimit -Hn`; systemd: LimitNOFILE=)",
            ),
        ),
    }
}

fn memory(bytes: u64) -> Check {
    let found = format!("{} for kernels by default", format::bytes(bytes));
    match bytes >= MEMORY_GOOD_BYTES {
        true => Check::ok("memory", found),
        false => Check::warning(
            "memory",
            found,
            (
                "kernels with large inputs are ended when the memory is used up",
                "add memory, or raise the limit of the control group of the daemon",
            ),
        ),
    }
}

/// Checks size and free space of `/dev/shm`.
fn shared_memory(space: Option<(u64, u64)>) -> Check {
    let effect = "asynchronous I/O and nodes of the memory tier have no space";
    match space {
        Some((size, free)) if free >= SHM_GOOD_BYTES => {
            let (size, free) = (format::bytes(size), format::bytes(free));
            Check::ok("shm", format!("/dev/shm: {free} free of {size}"))
        }
        Some((size, free)) => {
            let (size, free) = (format::bytes(size), format::bytes(free));
            Check::warning(
                "shm",
                format!("/dev/shm: {free} free of {size}"),
                (
                    effect,
                    "enlarge it (`mount -o remount,size=1G /dev/shm`; containers: --shm-size)",
                ),
            )
        }
        None => Check::warning("shm", "no /dev/shm", (effect, "mount a tmpfs at /dev/shm")),
    }
}

/// Checks whether the clock is synchronised. `timedatectl` reads the state of the Linux kernel with `adjtimex()`.
pub(super) async fn clock() -> Check {
    let mut command = tokio::process::Command::new("timedatectl");
    command
        .args(["show", "--property=NTPSynchronized", "--value"])
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(CLOCK_PATIENCE, command.output()).await;
    let output = output.ok().and_then(Result::ok);
    let answer = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let is_marked = Path::new("/run/systemd/timesync/synchronized").exists();
    synchronised(answer.as_deref(), is_marked)
}

fn synchronised(answer: Option<&str>, is_marked: bool) -> Check {
    let effect =
        "tokens and certificates may be refused, and times of files differ between machines";
    match (answer, is_marked) {
        (Some("yes"), _) | (_, true) => Check::ok("clock", "synchronised"),
        (Some("no"), false) => Check::warning(
            "clock",
            "not synchronised",
            (effect, "start chrony or systemd-timesyncd"),
        ),
        _ => Check::warning(
            "clock",
            "unknown: `timedatectl` does not answer",
            (
                effect,
                "make sure that a time service runs on this machine or on its host",
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::doctor::CheckState::{Ok, Problem, Warning};

    #[test]
    fn linux_version_decides_landlock_and_passthrough() {
        assert_eq!(version("6.1.0-21-amd64"), Some((6, 1)));
        assert_eq!(version("5.15-custom"), Some((5, 15)));
        assert_eq!(version("unknown"), None);
        assert_eq!(linux("5.12.9").state, Problem);
        assert_eq!(linux("5.13.0").state, Ok);
        assert_eq!(linux("x").state, Warning);
        assert_eq!(passthrough("6.8.0", true).state, Warning);
        assert_eq!(passthrough("6.9.0", false).state, Warning);
        assert_eq!(passthrough("6.10.1", true).state, Ok);
    }

    #[test]
    fn missing_fuse_is_a_problem_with_advice() {
        let denied = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        let check = device(Some(&denied));
        assert_eq!(check.state, Problem);
        assert!(check.advice.contains("chmod"), "{check:?}");
        assert_eq!(device(None).state, Ok);
        assert_eq!(fusermount(true, false).state, Ok);
        assert_eq!(fusermount(false, false).state, Problem);
    }

    #[test]
    fn low_limits_are_warnings() {
        assert_eq!(open_files(Some(1024)).state, Warning);
        assert_eq!(open_files(None).state, Ok);
        assert_eq!(memory(1 << 29).state, Warning);
        assert_eq!(shared_memory(Some((1 << 30, 0))).state, Warning);
        assert_eq!(shared_memory(Some((1 << 30, 1 << 30))).state, Ok);
        assert_eq!(shared_memory(None).state, Warning);
    }

    #[test]
    fn unknown_clock_is_a_warning() {
        assert_eq!(synchronised(Some("yes"), false).state, Ok);
        assert_eq!(synchronised(Some("no"), true).state, Ok);
        assert_eq!(synchronised(Some("no"), false).state, Warning);
        assert_eq!(synchronised(None, false).state, Warning);
    }
}
