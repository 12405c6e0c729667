//! Watches the limits of all running kernels. One thread checks only the time limits, exactly; another thread checks the other limits every
//! [`TICK`]. If counting the files that a kernel has written takes long, a separate thread counts them, so that no kernel delays the checks
//! of others. Causes of kills are stored in `RunState`, which the waiter of the run reads.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::fs::{AtFlags, Dir, FileType, Stat};

use crate::child::KeeperHandle;
use crate::private::{next, open_directory};
use crate::run::{RunEnd, RunLimits, RunUsage, StreamTail};
use crate::running::add;
use crate::sandbox::group::{ControlGroup, Full, RunCgroup, number_after};
use crate::spawn::Process;

/// Interval of the checks of memory, processes and written bytes.
const TICK: Duration = Duration::from_millis(100);

/// Divisor of the time that checks may take: for the usage that all runs share, and for each run's directory.
const REST_FACTOR: u32 = 20;

/// Maximum time of counting a run's written files after which a separate thread counts them from then on.
const LOOK_MAX: Duration = Duration::from_millis(2);

/// Interval at which a separate thread checks whether its run has ended.
const APART_PAUSE: Duration = Duration::from_secs(1);

/// Maximum pause of a separate thread between two counts, however long the last count took.
const APART_REST_MAX: Duration = Duration::from_secs(30);

/// Maximum number of descriptors and mappings of a run's processes that are examined. A larger number counts as an exceeded output limit:
/// their contents could not be counted in time.
const OPEN_MAX: usize = 1_000_000;

/// Maximum depth of directories that a kernel may make: all of them are open during a count.
const DEPTH_MAX: u32 = 64;

/// Number of files and directories that only count by their contents; the next constant is the number of bytes that each further entry
/// counts: its space on the device.
const ENTRIES_FREE: u64 = 1000;
const ENTRY_BYTES: u64 = 1024;

/// Number of bytes of names in a directory that do not count.
const NAMES_BYTES: u64 = 64 << 10;

/// Maximum number of descriptors that may be in transit between processes of a kernel during a check: files that are open only through them
/// cannot be seen.
const UNDER_WAY_MAX: u64 = 16;

/// Run in the form that its watcher, its waiter and its cancellers share.
#[derive(Debug)]
pub(crate) struct Watched {
    /// First process of the run, which stands for its process group.
    pub(crate) process: Process,
    /// Time just before the run started.
    pub(crate) started: Instant,
    pub(crate) limits: RunLimits,
    pub(crate) directory: Arc<OwnedFd>,
    /// Device of the run's directory, once it was needed.
    pub(crate) device: OnceLock<u64>,
    /// Device and inode of the files in the directory that the kernel did not write.
    pub(crate) given: BTreeSet<(u64, u64)>,
    pub(crate) state: Mutex<RunState>,
    /// Usage of processes that no process of the kernel waited for.
    pub(crate) orphans: Mutex<RunUsage>,
    pub(crate) keeper: Arc<KeeperHandle>,
    /// Control group of the run, and the number of processes that the group lost for memory before the run.
    pub(crate) group: Option<(u64, Arc<ControlGroup>)>,
    /// The run's own control group within `group`, once it has run for a while, unless the system refused.
    pub(crate) cgroup: OnceLock<Option<RunCgroup>>,
    pub(crate) looks: Mutex<WriteChecks>,
    pub(crate) stdout: Mutex<StreamTail>,
    pub(crate) stderr: Mutex<StreamTail>,
}

/// State of the checks of a run's written files.
#[derive(Debug, Default)]
pub(crate) struct WriteChecks {
    /// Earliest time of the next check of written files.
    next: Option<Instant>,
    /// Whether a separate thread does the checks of written files.
    apart: bool,
}

/// Changing state of a run.
#[derive(Debug, Default)]
pub(crate) struct RunState {
    /// Whether the first process of the run was waited for.
    pub(crate) reaped: bool,
    /// Cause of the kill, if the run was killed.
    pub(crate) cause: Option<RunEnd>,
}

impl Watched {
    /// Returns the time at which the run's time limit expires.
    fn end(&self) -> Instant {
        self.started + self.limits.time
    }

    /// Kills the whole process group of the run, unless it has ended. Only the first cause counts.
    pub(crate) fn kill(&self, cause: RunEnd) {
        let mut state = self.state.lock();
        if state.reaped {
            return;
        }
        state.cause.get_or_insert(cause);
        self.process.kill_group();
    }

    /// Returns which memory limit was reached, if the system ended processes of the run's control group for memory during the run.
    pub(crate) fn full(&self) -> Option<Full> {
        let (before, group) = self.group.as_ref()?;
        let cgroup = self.cgroup.get().and_then(Option::as_ref);
        let of_all = || (group.ended() > *before).then_some(Full::OfAll);
        cgroup.and_then(RunCgroup::ended).or_else(of_all)
    }

    /// Limits the memory that the system counts for a run, including memory that no process maps and memory of the system itself.
    fn bound_memory(&self, processes: &[i32]) {
        let Some((_, group)) = &self.group else {
            return;
        };
        let cgroup = self.cgroup.get_or_init(|| {
            let made = group.run_cgroup(self.limits.memory_bytes, self.limits.cpu_percent);
            let unmade =
                |error| tracing::debug!(%error, "the system does not limit a kernel's memory");
            made.map_err(unmade).ok()
        });
        if let Some(cgroup) = cgroup {
            cgroup.enter(processes);
        }
    }

    /// Reaps all ended processes of the group whose parents ended before them, but not the first process.
    pub(crate) fn reap_orphans(&self) {
        let group = self.process.pid.cast_unsigned();
        let state = self.state.lock();
        loop {
            // SAFETY: all-zero is a valid siginfo and a valid rusage.
            let (mut ended, mut used) = unsafe {
                (
                    std::mem::zeroed::<libc::siginfo_t>(),
                    std::mem::zeroed::<libc::rusage>(),
                )
            };
            let look = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            // SAFETY: the pointer is to a live, writable value, which contains the process id if there is one.
            let pid = unsafe {
                if libc::waitid(libc::P_PGID, group, &raw mut ended, look) != 0 {
                    return;
                }
                ended.si_pid()
            };
            if pid == 0 || (pid == self.process.pid && !state.reaped) {
                return;
            }
            let none = std::ptr::null_mut();
            // SAFETY: a null status is allowed; the other pointer is to a live, writable value.
            if unsafe { libc::wait4(pid, none, libc::WNOHANG, &raw mut used) } <= 0 {
                return;
            }
            add(&mut self.orphans.lock(), &used);
        }
    }

    /// Returns the amount of data in the kernel's directory.
    pub(crate) fn written(&self) -> WrittenBytes {
        let mut written = WrittenBytes::default();
        self.add_written(&mut written);
        written
    }

    fn add_written(&self, written: &mut WrittenBytes) {
        // The directory itself can be read at only one position.
        if let Ok(entries) = Dir::read_from(&self.directory) {
            sum(entries, &self.given, DEPTH_MAX, written);
        }
    }

    /// Returns the amount of data including files that only the run's processes have open; `None` if they cannot be examined in this time.
    fn written_and_open(&self, processes: &[i32], most: Option<Duration>) -> Option<WrittenBytes> {
        let limit = self.limits.output_bytes;
        let mut written = WrittenBytes {
            until: most.map(|most| Instant::now() + most),
            enough: Some(limit),
            ..WrittenBytes::default()
        };
        self.add_written(&mut written);
        let device = || rustix::fs::fstat(&self.directory).map_or(0, |data| data.st_dev);
        let device = *self.device.get_or_init(device);
        for process in processes {
            if written.is_over() {
                break;
            }
            open_files(*process, device, &mut written);
        }
        (written.exceeds(limit) || !written.is_late()).then_some(written)
    }

    /// Checks the written files of a run, in this thread or, if that takes long, in a separate thread.
    fn look_at_written(self: &Arc<Self>, processes: &[i32]) {
        let mut looks = self.looks.lock();
        let began = Instant::now();
        if looks.apart || looks.next.is_some_and(|next| next > began) {
            return;
        }
        let seen = self.written_and_open(processes, Some(LOOK_MAX));
        looks.next = Some(Instant::now() + began.elapsed() * REST_FACTOR);
        match seen {
            Some(written) if written.exceeds(self.limits.output_bytes) => {
                self.kill(RunEnd::OutputLimit);
            }
            Some(_) => {}
            None => {
                let run = Arc::downgrade(self);
                let thread = std::thread::Builder::new().name("look".into());
                match thread.spawn(move || look_apart(&run)) {
                    Ok(_) => looks.apart = true,
                    Err(error) => {
                        tracing::warn!(%error, "cannot examine the files that a kernel writes")
                    }
                }
            }
        }
    }
}

/// Amount of data that a kernel wrote.
#[derive(Clone, Debug, Default)]
pub(crate) struct WrittenBytes {
    /// Space that the data uses, in bytes: holes do not count.
    pub(crate) bytes: u64,
    /// Length of the longest file, in bytes.
    pub(crate) longest: u64,
    /// Number of files and directories.
    entries: u64,
    /// Whether there are more files than can be counted.
    uncounted: bool,
    /// Device and inode of files with several names.
    seen: BTreeSet<(u64, u64)>,
    /// Number of names of input files: as many names as existed before the run do not count.
    given: usize,
    /// Number of descriptors and mappings that were examined.
    open: usize,
    /// Time at which the count must end.
    until: Option<Instant>,
    /// Limit in bytes beyond which the count ends.
    enough: Option<u64>,
}

impl WrittenBytes {
    /// Returns whether the data is more than `limit` bytes, including the space that many files take in addition to their contents.
    pub(crate) fn exceeds(&self, limit: u64) -> bool {
        let entries = self.entries.saturating_sub(ENTRIES_FREE) * ENTRY_BYTES;
        self.uncounted || self.bytes.saturating_add(entries) > limit
    }

    /// Returns whether the count must end for lack of time: then not all files were seen.
    fn is_late(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Returns whether the count must end for lack of time, or need not continue.
    fn is_over(&self) -> bool {
        self.is_late() || self.enough.is_some_and(|limit| self.exceeds(limit))
    }

    /// Counts examined descriptors or mappings.
    fn look_at_open(&mut self, count: usize) {
        self.open = self.open.saturating_add(count);
        self.uncounted |= self.open > OPEN_MAX;
    }

    fn add(&mut self, data: &Stat) {
        let (length, used) = (
            data.st_size.cast_unsigned(),
            data.st_blocks.cast_unsigned() * 512,
        );
        self.entries += 1;
        self.longest = self.longest.max(length);
        self.bytes += length.min(used);
    }
}

/// Adds a directory's contents to the count, without following links. Errors are ignored: the kernel may remove an entry at any moment.
fn sum(mut entries: Dir, given: &BTreeSet<(u64, u64)>, depth: u32, written: &mut WrittenBytes) {
    while let Some(Ok(entry)) = next(&mut entries) {
        if written.is_over() {
            return;
        }
        let (Ok(directory), name) = (entries.fd(), entry.file_name()) else {
            return;
        };
        let Ok(data) = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else {
            continue;
        };
        let id = (data.st_dev, data.st_ino);
        match FileType::from_raw_mode(data.st_mode) {
            FileType::Directory => {
                written.entries += 1;
                written.bytes += (data.st_blocks.cast_unsigned() * 512).saturating_sub(NAMES_BYTES);
                if depth == 0 {
                    written.uncounted = true;
                } else if let Ok(inner) = open_directory(directory, name)
                    && let Ok(inner) = Dir::new(inner)
                {
                    sum(inner, given, depth - 1, written);
                }
            }
            FileType::RegularFile if given.contains(&id) => {
                written.given += 1;
                written.entries += u64::from(written.given > given.len());
            }
            // Another name of a counted file.
            FileType::RegularFile if data.st_nlink > 1 && !written.seen.insert(id) => {
                written.entries += 1;
            }
            FileType::RegularFile => written.add(&data),
            _ => written.entries += 1,
        }
    }
}

/// Adds files without a name that a process has open or mapped. Files that only the process itself may examine are skipped.
fn open_files(process: i32, device: u64, written: &mut WrittenBytes) {
    let of = |name: &str| PathBuf::from(format!("/proc/{process}/{name}"));
    let maps = fs::read_to_string(of("maps")).unwrap_or_default();
    written.look_at_open(maps.lines().count());
    let mapped = maps.contains("(deleted)").then(|| of("map_files"));
    let open = [Some(of("fd")), mapped].into_iter().flatten();
    for entry in open
        .filter_map(|directory| fs::read_dir(directory).ok())
        .flatten()
    {
        written.look_at_open(1);
        if written.is_over() {
            return;
        }
        let Some(path) = entry.ok().map(|entry| entry.path()) else {
            continue;
        };
        let Ok(data) = rustix::fs::stat(&path) else {
            continue;
        };
        match FileType::from_raw_mode(data.st_mode) {
            FileType::RegularFile
                if data.st_nlink == 0
                    && data.st_dev == device
                    && written.seen.insert((data.st_dev, data.st_ino)) =>
            {
                written.add(&data);
            }
            FileType::Socket if under_way(process, &path) > UNDER_WAY_MAX => {
                written.uncounted = true;
            }
            _ => {}
        }
    }
}

/// Returns the number of descriptors that were sent to a socket and not yet received.
fn under_way(process: i32, socket: &Path) -> u64 {
    let number = socket.file_name().unwrap_or_default().to_string_lossy();
    let about = fs::read_to_string(format!("/proc/{process}/fdinfo/{number}")).unwrap_or_default();
    number_after(&about, "scm_fds:")
}

struct Watcher {
    runs: Mutex<WatchedRuns>,
    /// Signals that a run has an earlier time limit than all known runs.
    sooner: Condvar,
    /// Signals that there are runs to watch again.
    some: Condvar,
}

#[derive(Default)]
struct WatchedRuns {
    all: Vec<Weak<Watched>>,
    /// Time at which the thread of time limits wakes up without a signal.
    wakes: Option<Instant>,
    /// Whether the thread of the other limits waits for runs.
    idle: bool,
}

impl WatchedRuns {
    fn live(&mut self) -> Vec<Arc<Watched>> {
        let lives = |run: &Arc<Watched>| !run.state.lock().reaped;
        let live = |run: &Weak<Watched>| run.upgrade().filter(lives);
        let found = self.all.iter().filter_map(live).collect();
        self.all.retain(|run| live(run).is_some());
        found
    }
}

static WATCHER: LazyLock<&'static Watcher> = LazyLock::new(|| {
    let watcher: &'static Watcher = Box::leak(Box::new(Watcher {
        runs: Mutex::default(),
        sooner: Condvar::new(),
        some: Condvar::new(),
    }));
    let start = |name: &str, work: fn(&Watcher)| {
        let thread = std::thread::Builder::new().name(name.into());
        if let Err(error) = thread.spawn(move || work(watcher)) {
            tracing::error!(%error, "cannot start a thread that watches the limits of kernels");
        }
    };
    start("limits", Watcher::keep_time);
    start("looks", Watcher::keep_looking);
    watcher
});

/// Watches a run until it has ended or no one holds it any more.
pub(crate) fn watch(run: &Arc<Watched>) {
    let mut runs = WATCHER.runs.lock();
    runs.all.push(Arc::downgrade(run));
    if runs.wakes.is_none_or(|wakes| run.end() < wakes) {
        WATCHER.sooner.notify_one();
    }
    if runs.idle {
        WATCHER.some.notify_one();
    }
}

/// Returns the next of the times `ends`. A past time is tried again soon: its run may not have ended yet.
fn wake(ends: impl Iterator<Item = Instant>, now: Instant) -> Option<Instant> {
    ends.map(|end| if end > now { end } else { now + TICK })
        .min()
}

impl Watcher {
    /// Kills runs that exceed their time limit. This thread does nothing else, so nothing delays it.
    fn keep_time(&self) {
        go_first();
        let mut runs = self.runs.lock();
        loop {
            let now = Instant::now();
            let mut due = runs.live();
            due.retain(|run| run.end() <= now);
            MutexGuard::unlocked(&mut runs, || {
                due.iter().for_each(|run| run.kill(RunEnd::TimeLimit));
                drop(due);
            });
            let live = runs.live();
            runs.wakes = wake(live.iter().map(|run| run.end()), now);
            drop(live);
            match runs.wakes {
                Some(wakes) => {
                    self.sooner.wait_until(&mut runs, wakes);
                }
                None => self.sooner.wait(&mut runs),
            }
        }
    }

    /// Checks all limits of all runs except time.
    fn keep_looking(&self) {
        go_first();
        loop {
            let live = {
                let mut runs = self.runs.lock();
                let live = runs.live();
                if live.is_empty() {
                    runs.idle = true;
                    self.some.wait(&mut runs);
                    runs.idle = false;
                    continue;
                }
                live
            };
            let began = Instant::now();
            let together = look(&live, began);
            drop(live);
            // Each run's directory has a pause of its own.
            let apart = began.elapsed().saturating_sub(together);
            std::thread::sleep(TICK.max(together * REST_FACTOR) + apart);
        }
    }
}

/// Checks the written files of a run until it has ended.
fn look_apart(run: &Weak<Watched>) {
    go_first();
    let live = || run.upgrade().filter(|run| !run.state.lock().reaped);
    while let Some(run) = live() {
        let began = Instant::now();
        let process = run.process.pid;
        let groups = groups(&BTreeMap::from([(process, run.limits.processes)]));
        let members = groups.get(&process).map(|group| &group.members[..]);
        let written = run.written_and_open(members.unwrap_or_default(), None);
        if written.is_some_and(|written| written.exceeds(run.limits.output_bytes)) {
            run.kill(RunEnd::OutputLimit);
        }
        drop(run);
        let rest = (began.elapsed() * REST_FACTOR).clamp(TICK, APART_REST_MAX);
        let next = Instant::now() + rest;
        while live().is_some()
            && let Some(rest) = next.checked_duration_since(Instant::now())
        {
            std::thread::sleep(rest.min(APART_PAUSE));
        }
    }
}

/// Gives this thread priority over all kernels, however many they are, if this process may ask for priority: among thousands of runnable
/// processes the thread would not run in time to kill them. Otherwise the limit of processes per user keeps kernels from being that many.
fn go_first() {
    let priority = libc::sched_param { sched_priority: 1 };
    let policy = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
    // SAFETY: 0 is the calling thread; the parameter is read during the call.
    if unsafe { libc::sched_setscheduler(0, policy, &raw const priority) } != 0 {
        tracing::debug!("the watcher of limits runs at the same priority as kernels");
    }
}

/// Checks all limits except time; returns the duration of the checks that all runs share. Runs younger than a tick are skipped: most of
/// them end before a check would matter.
fn look(runs: &[Arc<Watched>], now: Instant) -> Duration {
    let old: Vec<_> = runs
        .iter()
        .filter(|run| run.started + TICK <= now)
        .collect();
    if old.is_empty() {
        return Duration::ZERO;
    }
    old.iter().for_each(|run| run.reap_orphans());
    let groups = groups(
        &old.iter()
            .map(|run| (run.process.pid, run.limits.processes))
            .collect(),
    );
    let none = GroupUsage::default();
    let group = |run: &Watched| groups.get(&run.process.pid).unwrap_or(&none);
    for run in &old {
        let (group, limits) = (group(run), &run.limits);
        run.bound_memory(&group.members);
        if group.memory_bytes > limits.memory_bytes {
            run.kill(RunEnd::MemoryLimit);
        } else if group.processes > limits.processes {
            run.kill(RunEnd::ProcessLimit);
        }
    }
    let together = now.elapsed();
    for run in old {
        run.look_at_written(&group(run).members);
    }
    together
}

/// Usage of all processes of one process group.
#[derive(Clone, Debug, Default)]
pub(crate) struct GroupUsage {
    /// Resident private and shared anonymous memory of the processes, in bytes.
    pub(crate) memory_bytes: u64,
    /// Number of processes, including ended processes that no process waited for: they still take a place on the host.
    pub(crate) processes: u32,
    /// Number of processes that have not ended.
    pub(crate) live: u32,
    members: Vec<i32>,
}

/// Counts the processes of the `wanted` groups among all processes. Stops at the first group that has more processes than its given limit:
/// a fork bomb grows faster than it can be counted.
pub(crate) fn groups(wanted: &BTreeMap<i32, u32>) -> BTreeMap<i32, GroupUsage> {
    let mut groups = BTreeMap::<i32, GroupUsage>::new();
    let Ok(processes) = fs::read_dir("/proc") else {
        return groups;
    };
    for process in processes.flatten() {
        let name = process.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // Processes that have ended since the listing are skipped.
        let Ok(stat) = fs::read_to_string(process.path().join("stat")) else {
            continue;
        };
        let Some((state, id)) = state_and_group(&stat) else {
            continue;
        };
        let Some(most) = wanted.get(&id) else {
            continue;
        };
        let group = groups.entry(id).or_default();
        group.processes += 1;
        if group.processes > *most {
            break;
        }
        if matches!(state, "Z" | "X") {
            continue;
        }
        group.live += 1;
        group.members.push(pid);
        if let Ok(status) = fs::read_to_string(process.path().join("status")) {
            let kibibytes = ["RssAnon:", "RssShmem:"].map(|name| number_after(&status, name));
            group.memory_bytes += kibibytes.iter().sum::<u64>() << 10;
        }
    }
    groups
}

/// Returns fields 3 and 5 of `/proc/<pid>/stat`. The name before them, in parentheses, may contain any characters.
fn state_and_group(stat: &str) -> Option<(&str, i32)> {
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    let state = fields.next()?;
    Some((state, fields.nth(1)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_name_cannot_forge_process_group() {
        assert_eq!(
            state_and_group("7 (a) R 1 9 9) S 1 42 42 0"),
            Some(("S", 42))
        );
    }

    #[test]
    fn watcher_finds_own_process_group_with_memory() {
        let group = rustix::process::getpgrp().as_raw_nonzero().get();
        let seen = groups(&BTreeMap::from([(group, u32::MAX)]));
        assert!(seen[&group].processes >= 1);
        assert!(seen[&group].memory_bytes > 0);
    }

    #[test]
    fn watcher_wake_time_is_never_in_past() {
        let now = Instant::now();
        let (soon, late) = (now + TICK / 2, now + TICK * 1000);
        let past = now.checked_sub(TICK * 10).unwrap();
        assert_eq!(wake([].into_iter(), now), None);
        assert_eq!(wake([late, soon].into_iter(), now), Some(soon));
        // A killed run may not have ended: it is checked again.
        assert_eq!(wake([late, past].into_iter(), now), Some(now + TICK));
        assert_eq!(wake([now, soon].into_iter(), now), Some(soon));
    }

    #[test]
    fn written_bytes_scan_reports_exceeded_time() {
        let directory = tempfile::tempdir().unwrap();
        for number in 0..100 {
            fs::write(directory.path().join(number.to_string()), "text").unwrap();
        }
        let open = || Dir::new(open_directory(rustix::fs::CWD, directory.path()).unwrap()).unwrap();
        let mut written = WrittenBytes {
            until: Some(Instant::now()),
            ..WrittenBytes::default()
        };
        sum(open(), &BTreeSet::new(), 8, &mut written);
        open_files(std::process::id().cast_signed(), 0, &mut written);
        assert!(written.is_late() && written.entries == 0);
        written.until = None;
        sum(open(), &BTreeSet::new(), 8, &mut written);
        assert!(!written.is_late() && written.entries == 100);
    }

    #[test]
    fn written_bytes_count_hard_links_and_stop_at_limit() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["made", "given", "other"] {
            fs::write(at(name), "").unwrap();
        }
        let given = ["given", "other"].map(|name| {
            let data = rustix::fs::stat(at(name)).unwrap();
            (data.st_dev, data.st_ino)
        });
        for number in 0..ENTRIES_FREE + 100 {
            let from = if number % 2 == 0 { "made" } else { "given" };
            fs::hard_link(at(from), at(&number.to_string())).unwrap();
        }
        let open = || Dir::new(open_directory(rustix::fs::CWD, directory.path()).unwrap()).unwrap();
        let mut written = WrittenBytes::default();
        sum(open(), &given.into(), 8, &mut written);
        assert_eq!(written.entries, ENTRIES_FREE + 101);
        assert!(written.exceeds(100 * ENTRY_BYTES) && !written.exceeds(101 * ENTRY_BYTES));
        let mut written = WrittenBytes {
            enough: Some(0),
            ..WrittenBytes::default()
        };
        sum(open(), &given.into(), 8, &mut written);
        assert_eq!(written.entries, ENTRIES_FREE + 1);
        assert!(written.exceeds(0) && !written.is_late());
        // The count also exceeds each limit if it could not be finished in time.
        let mut written = WrittenBytes::default();
        written.look_at_open(OPEN_MAX);
        assert!(!written.exceeds(0));
        open_files(std::process::id().cast_signed(), 0, &mut written);
        assert!(written.exceeds(u64::MAX));
    }

    #[test]
    fn written_bytes_ignore_holes_and_input_files() {
        let directory = tempfile::tempdir().unwrap();
        let given = directory.path().join("given");
        fs::write(&given, [1; 10_000]).unwrap();
        fs::create_dir(directory.path().join("sub")).unwrap();
        fs::write(directory.path().join("sub/made"), [1; 5000]).unwrap();
        fs::File::create(directory.path().join("hole"))
            .unwrap()
            .set_len(1 << 40)
            .unwrap();
        let data = rustix::fs::stat(&given).unwrap();
        let given = BTreeSet::from([(data.st_dev, data.st_ino)]);
        let open = || Dir::new(open_directory(rustix::fs::CWD, directory.path()).unwrap()).unwrap();
        let mut written = WrittenBytes::default();
        sum(open(), &given, 8, &mut written);
        assert_eq!((written.bytes, written.longest), (5000, 1 << 40));
        assert!(written.exceeds(4999) && !written.exceeds(5000));
        // The directories are deeper than the maximum depth.
        sum(open(), &given, 0, &mut written);
        assert!(written.exceeds(u64::MAX));
    }
}
