//! Control group of all kernels of a launcher, if this host allows control groups: it limits the common usage of the kernels.
//!
//! Resource limits and `watch` limit a single run. The group handles cases that they cannot see: many runs that are each within their
//! limits and together need more than the host has. The operating system then reclaims the group's pages of files, and if that is not
//! enough, ends one of the group's processes, and no other. A run that lasts gets a separate [`RunCgroup`] in the group: entering a group
//! can take some milliseconds, and most runs end before they could do harm. The run's group also limits its processor time, if the run has
//! such a limit.
//!
//! Both versions of control groups are supported. With version 2, a group can be made only below a group without processes: a service that
//! is alone in its group (systemd: `Delegate=yes`) moves into a subgroup next to the subgroup of its kernels.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};

/// Prefix of names of control groups; the process that made the group and a number follow.
const NAME: &str = "tidemill-kernels-";

/// Name of the inner group of all runs without a separate group; the next constant is the prefix of the groups of single runs.
const ALL: &str = "all";
const RUN_CGROUP: &str = "run-";

/// Memory of a run's group in addition to the run's limit, in bytes: pages of files, and memory that the system uses for the run.
const RUN_CGROUP_BYTES: u64 = 64 << 20;

/// Number of times that all processes of a run are moved: new processes start in the group of their parents.
const MOVES: u32 = 3;

/// Group to which a service moves if it must leave its original group.
const SERVICE: &str = "tidemill-node";

/// Upper limit for the length of a file of events, in bytes.
const EVENTS_BYTES_MAX: usize = 1024;

/// Controllers of control groups that this module needs.
const CONTROLLERS: [&str; 2] = ["memory", "pids"];
/// Controller of processor time, which is used if it is available.
const CPU: &str = "cpu";
/// Period of the limit of processor time, in microseconds; the system's default.
const PERIOD_US: u64 = 100_000;

/// Limits for all kernels of a launcher together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LauncherLimits {
    /// Maximum memory, including cached pages of files, in bytes.
    pub memory_bytes: u64,
    /// Maximum number of processes and threads.
    pub threads: u32,
    /// Whether kernels run only while processors are otherwise idle. A group with a limit of processor time needs this setting, because the
    /// system divides the time among groups first, and then within each group.
    pub idle: bool,
}

/// Existing control group of a launcher. It is removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct ControlGroup {
    name: String,
    doors: Vec<OwnedFd>,
    directories: Vec<PathBuf>,
    /// Parent of the groups that limit the memory of single runs.
    memory: Option<(PathBuf, CgroupVersion)>,
    /// Parent of the groups that limit the processor time of single runs; with version 2 it is the same as `memory`.
    cpu: Option<(PathBuf, CgroupVersion)>,
    next: AtomicU64,
    /// File that counts, among other events, processes that were ended for memory. It stays open, because it is read at each start.
    events: Option<File>,
}

impl ControlGroup {
    /// Makes the control group of a launcher.
    ///
    /// # Errors
    /// If this process has no right to make groups, or if the host has no control groups.
    pub(crate) fn make(together: &LauncherLimits) -> io::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let unified =
            directory(&mounts, &own, None).filter(|directory| offers(directory, CONTROLLERS[0]));
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{NAME}{}-{number}", std::process::id());
        let mut group = Self {
            name,
            doors: Vec::new(),
            directories: Vec::new(),
            memory: None,
            cpu: None,
            next: AtomicU64::new(0),
            events: None,
        };
        if let Some(directory) = unified {
            vacate(&directory)?;
            group.add(&directory, &CONTROLLERS, together, CgroupVersion::Two)?;
            let own = directory.join(&group.name);
            let switch = own.join("cgroup.subtree_control");
            if offers(&own, CPU) && fs::write(switch, format!("+{CPU}")).is_ok() {
                yield_to_others(&own, together, CgroupVersion::Two);
                group.cpu = Some((own, CgroupVersion::Two));
            }
            return Ok(group);
        }
        for controller in CONTROLLERS {
            if let Some(directory) = directory(&mounts, &own, Some(controller)) {
                group.add(&directory, &[controller], together, CgroupVersion::One)?;
            }
        }
        if let Some(below) = directory(&mounts, &own, Some(CPU))
            && let Err(error) = group.add_cpu(&below, together)
        {
            tracing::info!(%error, "kernels are not limited to the cores that their tasks request");
        }
        if group.doors.is_empty() {
            let what = "this host has no control groups for memory";
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        Ok(group)
    }

    fn add(
        &mut self,
        below: &Path,
        controllers: &[&str],
        together: &LauncherLimits,
        version: CgroupVersion,
    ) -> io::Result<()> {
        remove_old(below);
        let directory = below.join(&self.name);
        let number = |path: &str| directory.join(path);
        match fs::create_dir(&directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => self.directories.push(directory.clone()),
        }
        for controller in controllers {
            let (file, value) = match (*controller, version) {
                ("memory", CgroupVersion::One) => ("memory.limit_in_bytes", together.memory_bytes),
                ("memory", CgroupVersion::Two) => ("memory.max", together.memory_bytes),
                _ => ("pids.max", together.threads.into()),
            };
            fs::write(number(file), value.to_string())?;
            if *controller == "memory" {
                self.events = Some(File::open(number(match version {
                    CgroupVersion::One => "memory.oom_control",
                    CgroupVersion::Two => "memory.events",
                }))?);
            }
        }
        let inner = match version {
            CgroupVersion::One => directory,
            // With version 2, a group contains either processes or groups.
            CgroupVersion::Two => {
                fs::write(directory.join("cgroup.subtree_control"), "+memory")?;
                let all = directory.join(ALL);
                fs::create_dir_all(&all)?;
                all
            }
        };
        if controllers.contains(&"memory") {
            self.memory = Some((below.join(&self.name), version));
        }
        self.doors.push(door(&inner)?);
        Ok(())
    }

    /// Makes the group for the processor time, of version 1; runs enter only its subgroups.
    fn add_cpu(&mut self, below: &Path, together: &LauncherLimits) -> io::Result<()> {
        remove_old(below);
        let directory = below.join(&self.name);
        match fs::create_dir(&directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => self.directories.push(directory.clone()),
        }
        yield_to_others(&directory, together, CgroupVersion::One);
        self.cpu = Some((directory, CgroupVersion::One));
        Ok(())
    }

    /// Returns whether the processor time of runs can be limited.
    pub(crate) fn bounds_cpu(&self) -> bool {
        self.cpu.is_some()
    }

    /// Makes a group for one run, and another group for its processor time if processor time has a separate hierarchy.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub(crate) fn run_cgroup(
        &self,
        memory_bytes: u64,
        cpu_percent: Option<u32>,
    ) -> io::Result<RunCgroup> {
        let (within, version) = self.memory.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let directory = within.join(format!("{RUN_CGROUP}{number}"));
        fs::create_dir(&directory)?;
        let limit = memory_bytes.saturating_add(RUN_CGROUP_BYTES);
        let (most, swap) = match version {
            CgroupVersion::One => ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
            CgroupVersion::Two => ("memory.max", "memory.swap.max"),
        };
        let mut cgroup = RunCgroup {
            door: door(&directory)?,
            directory: directory.clone(),
            cpu: None,
            version: *version,
            limit,
            moves: AtomicU32::new(0),
        };
        if let Some(percent) = cpu_percent {
            cgroup.cpu = self.cpu_cgroup(&directory, percent).unwrap_or_else(|error| {
                tracing::debug!(%error, "a kernel is not limited to the cores that its task requests");
                None
            });
        }
        fs::write(directory.join(most), limit.to_string())?;
        let with_swap = match version {
            CgroupVersion::One => limit,
            CgroupVersion::Two => 0,
        };
        // Not all systems count swap space.
        let _ = fs::write(directory.join(swap), with_swap.to_string());
        Ok(cgroup)
    }

    /// Limits the processor time of one run's group: the group `directory` with version 2, or a separate group.
    fn cpu_cgroup(&self, directory: &Path, percent: u32) -> io::Result<Option<(PathBuf, OwnedFd)>> {
        let quota_us = (u64::from(percent.max(1)) * PERIOD_US / 100).to_string();
        match &self.cpu {
            None => Ok(None),
            Some((_, CgroupVersion::Two)) => {
                fs::write(directory.join("cpu.max"), format!("{quota_us} {PERIOD_US}"))?;
                Ok(None)
            }
            Some((within, CgroupVersion::One)) => {
                let own = within.join(directory.file_name().unwrap_or_default());
                fs::create_dir(&own)?;
                let made =
                    fs::write(own.join("cpu.cfs_quota_us"), quota_us).and_then(|()| door(&own));
                if made.is_err() {
                    let _ = fs::remove_dir(&own);
                }
                Ok(Some((own, made?)))
            }
        }
    }

    /// Returns the doors of the group: a process that writes `0` to each of them moves into the group.
    pub(crate) fn doors(&self) -> &[OwnedFd] {
        &self.doors
    }

    /// Returns the number of the group's processes that were ended so far because the group exceeded its memory.
    pub(crate) fn ended(&self) -> u64 {
        let mut bytes = [0; EVENTS_BYTES_MAX];
        let read = self
            .events
            .as_ref()
            .and_then(|events| events.read_at(&mut bytes, 0).ok());
        let text = str::from_utf8(&bytes[..read.unwrap_or(0)]).unwrap_or_default();
        number_after(text, "oom_kill ")
    }
}

/// Returns the number that follows a name in the text of a system file, 0 if the name does not occur.
pub(crate) fn number_after(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok());
    number.unwrap_or(0)
}

fn door(directory: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let path = directory.join("cgroup.procs");
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Control group whose memory was exhausted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// The memory of the run's own group was exhausted.
    Own,
    /// The memory of the group of all runs was exhausted.
    OfAll,
}

/// Control group of one run. It is removed when this value is dropped; the run must have ended.
#[derive(Debug)]
pub(crate) struct RunCgroup {
    directory: PathBuf,
    /// Separate group for the run's processor time, if there is one.
    cpu: Option<(PathBuf, OwnedFd)>,
    version: CgroupVersion,
    door: OwnedFd,
    limit: u64,
    moves: AtomicU32,
}

impl RunCgroup {
    /// Moves processes into the group. After several moves all processes are in the group, and so are new ones.
    pub(crate) fn enter(&self, processes: &[i32]) {
        if self.moves.fetch_add(1, Ordering::Relaxed) >= MOVES {
            return;
        }
        for process in processes {
            // Processes that have ended since then no longer exist.
            let _ = rustix::io::write(&self.door, process.to_string().as_bytes());
            if let Some((_, door)) = &self.cpu {
                let _ = rustix::io::write(door, process.to_string().as_bytes());
            }
        }
    }

    /// Returns which group's memory was exhausted, if the system ended a process of this group for memory.
    pub(crate) fn ended(&self) -> Option<Full> {
        let read = |name: &str| fs::read_to_string(self.directory.join(name)).unwrap_or_default();
        match self.version {
            CgroupVersion::One => {
                let most = number_after(&read("memory.max_usage_in_bytes"), "");
                let own = most >= self.limit - self.limit / 64;
                // The event is counted in the group of the process, whichever group was full.
                let ended = number_after(&read("memory.oom_control"), "oom_kill ") > 0;
                ended.then_some(if own { Full::Own } else { Full::OfAll })
            }
            CgroupVersion::Two => {
                let own = number_after(&read("memory.events.local"), "oom ") > 0;
                own.then_some(Full::Own)
            }
        }
    }
}

impl Drop for RunCgroup {
    fn drop(&mut self) {
        let cpu = self.cpu.as_ref().map(|(directory, _)| directory);
        for directory in std::iter::once(&self.directory).chain(cpu) {
            if let Err(error) = fs::remove_dir(directory) {
                tracing::debug!(%error, "a run's control group could not be removed");
            }
        }
    }
}

/// Removes a control group without processes, with its subgroups.
fn remove(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
    let _ = fs::remove_dir(directory);
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        for directory in &self.directories {
            // If the last process of a group has not quite ended, the next maker of a group removes it.
            remove(directory);
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum CgroupVersion {
    One,
    Two,
}

/// Returns the directory of this process's group in the hierarchy of a controller, or in the hierarchy of version 2.
fn directory(mounts: &str, own: &str, controller: Option<&str>) -> Option<PathBuf> {
    let has = |list: &str, name: &str| list.split(',').any(|known| known == name);
    let path = own.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let mine = controller.map_or(controllers.is_empty(), |name| has(controllers, name));
        mine.then_some(path)
    })?;
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, point) = (place.next()?, place.next()?);
        let mut kind = kind.split(' ');
        let mine = match (kind.next()?, controller) {
            ("cgroup2", None) => true,
            ("cgroup", Some(name)) => has(kind.nth(1)?, name),
            _ => false,
        };
        let below = Path::new(path).strip_prefix(root).ok()?;
        mine.then(|| Path::new(point).join(below))
    })
}

/// Returns the memory limit of this process's control groups, in bytes; `None` if there is no limit.
#[must_use]
pub fn memory_limit() -> Option<u64> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let versions = [
        (None, "memory.max"),
        (Some("memory"), "memory.limit_in_bytes"),
    ];
    let limits = versions.into_iter().filter_map(|(controller, file)| {
        let directory = directory(&mounts, &own, controller)?;
        least(&directory, file)
    });
    limits.min()
}

/// Returns the smallest number in the file `file` of a group and its parents.
fn least(directory: &Path, file: &str) -> Option<u64> {
    let numbers = directory.ancestors().filter_map(|group| {
        let text = fs::read_to_string(group.join(file)).ok()?;
        text.trim().parse().ok()
    });
    numbers.min()
}

/// Gives a group only idle processor time, if the settings say so.
fn yield_to_others(directory: &Path, together: &LauncherLimits, version: CgroupVersion) {
    if !together.idle || fs::write(directory.join("cpu.idle"), "1").is_ok() {
        return;
    }
    // Older systems get the smallest possible share.
    let (file, least) = match version {
        CgroupVersion::One => ("cpu.shares", "2"),
        CgroupVersion::Two => ("cpu.weight", "1"),
    };
    let _ = fs::write(directory.join(file), least);
}

fn offers(directory: &Path, controller: &str) -> bool {
    let offered = fs::read_to_string(directory.join("cgroup.controllers")).unwrap_or_default();
    offered
        .split_ascii_whitespace()
        .any(|name| name == controller)
}

/// Enables the controllers for groups below this group, of version 2: this process leaves the group if it is its only process.
fn vacate(directory: &Path) -> io::Result<()> {
    let switch = directory.join("cgroup.subtree_control");
    let wanted: Vec<String> = CONTROLLERS
        .iter()
        .chain([&CPU])
        .filter(|name| offers(directory, name))
        .map(|name| format!("+{name}"))
        .collect();
    let wanted = wanted.join(" ");
    // The root group may contain processes.
    if !directory.join("cgroup.type").exists() {
        return fs::write(switch, wanted);
    }
    if !is_delegated(directory) {
        let what = "this process's control group is not its own (systemd: Delegate=yes)";
        return Err(io::Error::other(what));
    }
    let own = std::process::id().to_string();
    let there = fs::read_to_string(directory.join("cgroup.procs"))?;
    if there.trim() != own {
        let what = "this process shares its control group with others";
        return Err(io::Error::other(what));
    }
    let inner = directory.join(SERVICE);
    if let Err(error) = fs::create_dir(&inner)
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(error);
    }
    fs::write(inner.join("cgroup.procs"), &own)?;
    fs::write(switch, wanted).inspect_err(|_| {
        // This restores the previous state; a failure here changes nothing that matters.
        let _ = fs::write(directory.join("cgroup.procs"), &own);
        let _ = fs::remove_dir(&inner);
    })
}

/// Returns whether a group was delegated to the processes in it. Without systemd no other program manages the group.
fn is_delegated(directory: &Path) -> bool {
    let says = |name: &&str| {
        let mut value = [0];
        rustix::fs::getxattr(directory, *name, &mut value).is_ok_and(|length| length == 1)
            && value == *b"1"
    };
    let marks = ["trusted.delegate", "user.delegate"];
    !Path::new("/run/systemd/system").exists() || marks.iter().any(says)
}

/// Removes control groups whose makers have ended.
fn remove_old(below: &Path) {
    let entries = fs::read_dir(below).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let maker = name
            .to_str()
            .and_then(|name| name.strip_prefix(NAME)?.split('-').next());
        if maker.is_some_and(|maker| !Path::new("/proc").join(maker).exists()) {
            remove(&entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /docker/7 /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const OWN: &str = "4:memory:/docker/7/inner\n2:cpu,cpuacct:/\n1:name=systemd:/\n0::/system.slice/mill.service\n";

    #[test]
    fn own_cgroup_is_found_in_each_hierarchy() {
        let found = |controller| directory(MOUNTS, OWN, controller);
        assert_eq!(
            found(Some("memory")),
            Some("/sys/fs/cgroup/memory/inner".into())
        );
        assert_eq!(
            found(Some("cpuacct")),
            Some("/sys/fs/cgroup/cpu,cpuacct/".into())
        );
        assert_eq!(
            found(None),
            Some("/sys/fs/cgroup/unified/system.slice/mill.service".into())
        );
        assert_eq!(found(Some("pids")), None);
        // A part of the hierarchy without this process is mounted.
        assert_eq!(directory(MOUNTS, "4:memory:/other", Some("memory")), None);
    }

    #[test]
    fn memory_limit_is_smallest_of_cgroup_and_its_parents() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("container/service");
        fs::create_dir_all(&inner).unwrap();
        let limit = |group: &Path, text: &str| fs::write(group.join("memory.max"), text).unwrap();
        limit(&inner, "max\n");
        assert_eq!(least(&inner, "memory.max"), None);
        limit(directory.path(), "8589934592\n");
        limit(inner.parent().unwrap(), "2147483648\n");
        assert_eq!(least(&inner, "memory.max"), Some(2 << 30));
        assert_eq!(least(&inner, "memory.limit_in_bytes"), None);
    }
}
