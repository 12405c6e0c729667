//! Watches the limits of all running kernels, from one thread: time exactly, the rest every [`TICK`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::fs::{AtFlags, Dir, FileType, Stat};

use crate::child::Keeper;
use crate::private::{next, open_folder};
use crate::run::{End, Limits, Tail, Usage};
use crate::running::add;
use crate::sandbox::group::{ControlGroup, Full, Room, number_after};
use crate::spawn::Process;

/// How often memory, processes and written bytes are looked at.
const TICK: Duration = Duration::from_millis(100);

/// Looking takes at most one part in this many of the watcher's time, however large the folders are.
const REST_FACTOR: u32 = 20;

/// Folders within folders that a kernel may make: all of them are open while they are looked at.
const DEPTH_MAX: u32 = 64;

/// Files and folders that count nothing but what they hold, and what each further one counts: its place on the device.
const ENTRIES_FREE: u64 = 1000;
const ENTRY_BYTES: u64 = 1024;

/// What a folder's names take before that counts.
const NAMES_BYTES: u64 = 64 << 10;

/// Descriptors that processes of a kernel may have on the way between each other when it is looked at: what is open
/// through them can't be seen.
const UNDER_WAY_MAX: u64 = 16;

/// A run as its watcher, its waiter and those who may cancel it share it.
#[derive(Debug)]
pub(crate) struct Watched {
    /// First process, and so the group.
    pub(crate) process: Process,
    /// Just before it was started.
    pub(crate) started: Instant,
    pub(crate) limits: Limits,
    pub(crate) folder: Arc<OwnedFd>,
    /// The device that its folder is on, once somebody asked.
    pub(crate) device: OnceLock<u64>,
    /// Device and inode of what lies in the folder but was not written by the kernel.
    pub(crate) given: BTreeSet<(u64, u64)>,
    pub(crate) state: Mutex<State>,
    /// What processes used that none of the kernel's waited for.
    pub(crate) orphans: Mutex<Usage>,
    pub(crate) keeper: Arc<Keeper>,
    /// The control group that it is in, and how many processes that had lost for memory before.
    pub(crate) group: Option<(u64, Arc<ControlGroup>)>,
    /// Its own one within that, once it has run for a while, unless the system refused.
    pub(crate) room: OnceLock<Option<Room>>,
    pub(crate) stdout: Mutex<Tail>,
    pub(crate) stderr: Mutex<Tail>,
}

/// What changes.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Its first process was waited for.
    pub(crate) reaped: bool,
    /// Why it was killed, if it was.
    pub(crate) cause: Option<End>,
}

impl Watched {
    /// Kills the whole group, unless it has ended. The first cause is the one that counts.
    pub(crate) fn kill(&self, cause: End) {
        let mut state = self.state.lock();
        if state.reaped {
            return;
        }
        state.cause.get_or_insert(cause);
        self.process.kill_group();
    }

    /// Which memory was full, if the system ended processes of its control group for that while it ran.
    pub(crate) fn full(&self) -> Option<Full> {
        let (before, group) = self.group.as_ref()?;
        let room = self.room.get().and_then(Option::as_ref);
        let of_all = || (group.ended() > *before).then_some(Full::OfAll);
        room.and_then(Room::ended).or_else(of_all)
    }

    /// Bounds the memory that the system counts for a run, whoever of its processes has it, if any: what none of them has
    /// mapped, and what is the system's own.
    fn bound_memory(&self, processes: &[i32]) {
        let Some((_, group)) = &self.group else {
            return;
        };
        let room = self.room.get_or_init(|| {
            let made = group.room(self.limits.memory_bytes, self.limits.cpu_percent);
            let unmade =
                |error| tracing::debug!(%error, "a kernel's memory is not bounded by the system");
            made.map_err(unmade).ok()
        });
        if let Some(room) = room {
            room.enter(processes);
        }
    }

    /// Takes the ends of all processes of the group that have ended and whose parents had before, but not that of the
    /// first.
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
            // SAFETY: the pointer is to a live, writable value, which says who it is if there is one.
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

    /// What the kernel has in its folder now.
    pub(crate) fn written(&self) -> Written {
        let mut written = Written::default();
        // The folder itself has but one place where it is read.
        if let Ok(entries) = Dir::read_from(&self.folder) {
            sum(entries, &self.given, DEPTH_MAX, &mut written);
        }
        written
    }

    /// The same with what only its processes have open.
    fn written_and_open(&self, processes: &[i32]) -> Written {
        let mut written = self.written();
        let device = || rustix::fs::fstat(&self.folder).map_or(0, |data| data.st_dev);
        let device = *self.device.get_or_init(device);
        for process in processes {
            open_files(*process, device, &mut written);
        }
        written
    }
}

/// What a kernel wrote.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    /// Space in use: holes do not count.
    pub(crate) bytes: u64,
    /// Length of the longest file.
    pub(crate) longest: u64,
    /// Files and folders.
    entries: u64,
    /// Whether there is more than can be counted.
    uncounted: bool,
    /// Device and inode of those with several names.
    seen: BTreeSet<(u64, u64)>,
}

impl Written {
    /// Whether it is more than `limit` bytes, with what so many files take beside their contents.
    pub(crate) fn exceeds(&self, limit: u64) -> bool {
        let entries = self.entries.saturating_sub(ENTRIES_FREE) * ENTRY_BYTES;
        self.uncounted || self.bytes.saturating_add(entries) > limit
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

/// Errors are passed over: the kernel may remove at any moment what was just listed. No link is followed.
fn sum(mut entries: Dir, given: &BTreeSet<(u64, u64)>, depth: u32, written: &mut Written) {
    while let Some(Ok(entry)) = next(&mut entries) {
        let (Ok(folder), name) = (entries.fd(), entry.file_name()) else {
            return;
        };
        let Ok(data) = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else {
            continue;
        };
        let id = (data.st_dev, data.st_ino);
        match FileType::from_raw_mode(data.st_mode) {
            FileType::Directory => {
                written.entries += 1;
                written.bytes += (data.st_blocks.cast_unsigned() * 512).saturating_sub(NAMES_BYTES);
                if depth == 0 {
                    written.uncounted = true;
                } else if let Ok(inner) = open_folder(folder, name)
                    && let Ok(inner) = Dir::new(inner)
                {
                    sum(inner, given, depth - 1, written);
                }
            }
            FileType::RegularFile if given.contains(&id) => {}
            FileType::RegularFile if data.st_nlink > 1 && !written.seen.insert(id) => {}
            FileType::RegularFile => written.add(&data),
            _ => written.entries += 1,
        }
    }
}

/// Adds files without a name that a process has open or mapped. What it alone may look at is passed over.
fn open_files(process: i32, device: u64, written: &mut Written) {
    let of = |name: &str| PathBuf::from(format!("/proc/{process}/{name}"));
    let maps = fs::read_to_string(of("maps")).unwrap_or_default();
    let mapped = maps.contains("(deleted)").then(|| of("map_files"));
    let open = [Some(of("fd")), mapped].into_iter().flatten();
    for entry in open
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flatten()
    {
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

/// Descriptors that were sent to a socket and not yet received.
fn under_way(process: i32, socket: &Path) -> u64 {
    let number = socket.file_name().unwrap_or_default().to_string_lossy();
    let about = fs::read_to_string(format!("/proc/{process}/fdinfo/{number}")).unwrap_or_default();
    number_after(&about, "scm_fds:")
}

struct Watcher {
    runs: Mutex<Vec<Weak<Watched>>>,
    changed: Condvar,
}

static WATCHER: LazyLock<&'static Watcher> = LazyLock::new(|| {
    let watcher: &'static Watcher = Box::leak(Box::new(Watcher {
        runs: Mutex::new(Vec::new()),
        changed: Condvar::new(),
    }));
    if let Err(error) = std::thread::Builder::new()
        .name("limits".into())
        .spawn(|| watcher.run())
    {
        tracing::error!(%error, "cannot start the thread that watches the limits of kernels");
    }
    watcher
});

/// Watches a run until nobody holds it any more or it has ended.
pub(crate) fn watch(run: &Arc<Watched>) {
    let mut runs = WATCHER.runs.lock();
    runs.push(Arc::downgrade(run));
    if runs.len() == 1 || run.limits.time < TICK {
        WATCHER.changed.notify_one();
    }
}

impl Watcher {
    fn run(&self) {
        go_first();
        let mut look_at = Instant::now();
        loop {
            let mut runs = self.runs.lock();
            runs.retain(|run| run.upgrade().is_some_and(|run| !run.state.lock().reaped));
            let live: Vec<Arc<Watched>> = runs.iter().filter_map(Weak::upgrade).collect();
            if live.is_empty() {
                self.changed.wait(&mut runs);
                continue;
            }
            let now = Instant::now();
            let end = live
                .iter()
                .map(|run| run.started + run.limits.time)
                .filter(|end| *end > now)
                .min();
            let wake = end.map_or(look_at, |end| end.min(look_at));
            if wake > now {
                drop(live);
                self.changed.wait_until(&mut runs, wake);
                continue;
            }
            drop(runs);
            for run in live
                .iter()
                .filter(|run| run.started + run.limits.time <= now)
            {
                run.kill(End::TimeLimit);
            }
            if look_at <= now {
                look(&live, now);
                look_at = Instant::now() + TICK.max(now.elapsed() * REST_FACTOR);
            }
        }
    }
}

/// Lets this thread run before all kernels, however many they are, where this process may ask for that:
/// among thousands of runnable processes it would not get to kill them. Elsewhere the limit of processes
/// a user has keeps them from being that many.
fn go_first() {
    let priority = libc::sched_param { sched_priority: 1 };
    let policy = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
    // SAFETY: 0 is the calling thread; the parameter is read during the call.
    if unsafe { libc::sched_setscheduler(0, policy, &raw const priority) } != 0 {
        tracing::debug!("the watcher of limits runs at the same priority as kernels");
    }
}

/// Looks at all that is not time. Runs younger than a tick are let be: most end before it matters.
fn look(runs: &[Arc<Watched>], now: Instant) {
    let old: Vec<_> = runs
        .iter()
        .filter(|run| run.started + TICK <= now)
        .collect();
    if old.is_empty() {
        return;
    }
    old.iter().for_each(|run| run.reap_orphans());
    let groups = groups(
        &old.iter()
            .map(|run| (run.process.pid, run.limits.processes))
            .collect(),
    );
    let none = Group::default();
    for run in old {
        let group = groups.get(&run.process.pid).unwrap_or(&none);
        let limits = &run.limits;
        run.bound_memory(&group.members);
        if group.memory_bytes > limits.memory_bytes {
            run.kill(End::MemoryLimit);
        } else if group.processes > limits.processes {
            run.kill(End::ProcessLimit);
        } else if run
            .written_and_open(&group.members)
            .exceeds(limits.output_bytes)
        {
            run.kill(End::OutputLimit);
        }
    }
}

/// What the processes of one group have together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    /// Private and shared anonymous memory that is resident.
    pub(crate) memory_bytes: u64,
    /// Processes, those that have ended and that nobody waited for included: they still take a place on the host.
    pub(crate) processes: u32,
    /// Processes that have not ended.
    pub(crate) live: u32,
    members: Vec<i32>,
}

/// Looks all processes over for those of the `wanted` groups. Stops at the first group that has more
/// processes than is given with it: a fork bomb grows faster than it can be counted.
pub(crate) fn groups(wanted: &BTreeMap<i32, u32>) -> BTreeMap<i32, Group> {
    let mut groups = BTreeMap::<i32, Group>::new();
    let Ok(processes) = fs::read_dir("/proc") else {
        return groups;
    };
    for process in processes.flatten() {
        let name = process.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // Processes that ended meanwhile are passed over.
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

/// Fields 3 and 5 of `/proc/<pid>/stat`. The name before them, in brackets, may hold anything.
fn state_and_group(stat: &str) -> Option<(&str, i32)> {
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    let state = fields.next()?;
    Some((state, fields.nth(1)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_cannot_forge_its_group() {
        assert_eq!(
            state_and_group("7 (a) R 1 9 9) S 1 42 42 0"),
            Some(("S", 42))
        );
    }

    #[test]
    fn this_process_is_seen_with_its_memory() {
        let group = rustix::process::getpgrp().as_raw_nonzero().get();
        let seen = groups(&BTreeMap::from([(group, u32::MAX)]));
        assert!(seen[&group].processes >= 1);
        assert!(seen[&group].memory_bytes > 0);
    }

    #[test]
    fn holes_and_given_files_do_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let given = folder.path().join("given");
        fs::write(&given, [1; 10_000]).unwrap();
        fs::create_dir(folder.path().join("sub")).unwrap();
        fs::write(folder.path().join("sub/made"), [1; 5000]).unwrap();
        fs::File::create(folder.path().join("hole"))
            .unwrap()
            .set_len(1 << 40)
            .unwrap();
        let data = rustix::fs::stat(&given).unwrap();
        let given = BTreeSet::from([(data.st_dev, data.st_ino)]);
        let open = || Dir::new(open_folder(rustix::fs::CWD, folder.path()).unwrap()).unwrap();
        let mut written = Written::default();
        sum(open(), &given, 8, &mut written);
        assert_eq!((written.bytes, written.longest), (5000, 1 << 40));
        assert!(written.exceeds(4999) && !written.exceeds(5000));
        // Deeper than is looked at.
        sum(open(), &given, 0, &mut written);
        assert!(written.exceeds(u64::MAX));
    }
}
