//! Watches the limits of all running kernels: time exactly, from one thread that does nothing else, the rest every [`TICK`],
//! from another one. What a kernel has written that takes long to look at is looked at by a thread of its own, so that no
//! kernel keeps those of others from being watched.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::fs::{AtFlags, Dir, FileType, Stat};

use crate::child::Keeper;
use crate::private::{next, open_folder};
use crate::run::{End, Limits, Tail, Usage};
use crate::running::add;
use crate::sandbox::group::{ControlGroup, Full, Room, number_after};
use crate::spawn::Process;

/// How often memory, processes and written bytes are looked at.
const TICK: Duration = Duration::from_millis(100);

/// Looking takes at most one part in this many of the time, for what all runs have together and for each run's folder.
const REST_FACTOR: u32 = 20;

/// What a run has written is looked at apart from that of others from when it has taken longer than this.
const LOOK_MAX: Duration = Duration::from_millis(2);

/// How often a run that is looked at apart is asked whether it has ended.
const APART_PAUSE: Duration = Duration::from_secs(1);

/// A run that is looked at apart is looked at again after this, however long the look before took.
const APART_REST_MAX: Duration = Duration::from_secs(30);

/// Descriptors and mappings of a run's processes that are looked at. More are more than its limit of output: nobody could
/// say in time what is in them.
const OPEN_MAX: usize = 1_000_000;

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
    pub(crate) looks: Mutex<Looks>,
    pub(crate) stdout: Mutex<Tail>,
    pub(crate) stderr: Mutex<Tail>,
}

/// How often it is looked at what a run has written.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    /// Not before this.
    next: Option<Instant>,
    /// By a thread of its own.
    apart: bool,
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
    /// When its time is over.
    fn end(&self) -> Instant {
        self.started + self.limits.time
    }

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
        self.add_written(&mut written);
        written
    }

    fn add_written(&self, written: &mut Written) {
        // The folder itself has but one place where it is read.
        if let Ok(entries) = Dir::read_from(&self.folder) {
            sum(entries, &self.given, DEPTH_MAX, written);
        }
    }

    /// The same with what only its processes have open; `None` if that can't be seen in this time.
    fn written_and_open(&self, processes: &[i32], most: Option<Duration>) -> Option<Written> {
        let limit = self.limits.output_bytes;
        let mut written = Written {
            until: most.map(|most| Instant::now() + most),
            enough: Some(limit),
            ..Written::default()
        };
        self.add_written(&mut written);
        let device = || rustix::fs::fstat(&self.folder).map_or(0, |data| data.st_dev);
        let device = *self.device.get_or_init(device);
        for process in processes {
            if written.is_over() {
                break;
            }
            open_files(*process, device, &mut written);
        }
        (written.exceeds(limit) || !written.is_late()).then_some(written)
    }

    /// Looks at what it has written, here or, if that takes long, by a thread of its own.
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
                self.kill(End::OutputLimit);
            }
            Some(_) => {}
            None => {
                let run = Arc::downgrade(self);
                let thread = std::thread::Builder::new().name("look".into());
                match thread.spawn(move || look_apart(&run)) {
                    Ok(_) => looks.apart = true,
                    Err(error) => tracing::warn!(%error, "cannot look at what a kernel writes"),
                }
            }
        }
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
    /// Names of files that it was given: as many as there are do not count.
    given: usize,
    /// Descriptors and mappings that were looked at.
    open: usize,
    /// When it is too late to look for more.
    until: Option<Instant>,
    /// The limit beyond which it is not looked for more.
    enough: Option<u64>,
}

impl Written {
    /// Whether it is more than `limit` bytes, with what so many files take beside their contents.
    pub(crate) fn exceeds(&self, limit: u64) -> bool {
        let entries = self.entries.saturating_sub(ENTRIES_FREE) * ENTRY_BYTES;
        self.uncounted || self.bytes.saturating_add(entries) > limit
    }

    /// Whether it is too late to look for more: not all was seen then.
    fn is_late(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Whether it is too late to look for more, or of no use.
    fn is_over(&self) -> bool {
        self.is_late() || self.enough.is_some_and(|limit| self.exceeds(limit))
    }

    /// Counts descriptors or mappings that are looked at.
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

/// Errors are passed over: the kernel may remove at any moment what was just listed. No link is followed.
fn sum(mut entries: Dir, given: &BTreeSet<(u64, u64)>, depth: u32, written: &mut Written) {
    while let Some(Ok(entry)) = next(&mut entries) {
        if written.is_over() {
            return;
        }
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
            FileType::RegularFile if given.contains(&id) => {
                written.given += 1;
                written.entries += u64::from(written.given > given.len());
            }
            // Another name of it.
            FileType::RegularFile if data.st_nlink > 1 && !written.seen.insert(id) => {
                written.entries += 1;
            }
            FileType::RegularFile => written.add(&data),
            _ => written.entries += 1,
        }
    }
}

/// Adds files without a name that a process has open or mapped. What it alone may look at is passed over.
fn open_files(process: i32, device: u64, written: &mut Written) {
    let of = |name: &str| PathBuf::from(format!("/proc/{process}/{name}"));
    let maps = fs::read_to_string(of("maps")).unwrap_or_default();
    written.look_at_open(maps.lines().count());
    let mapped = maps.contains("(deleted)").then(|| of("map_files"));
    let open = [Some(of("fd")), mapped].into_iter().flatten();
    for entry in open
        .filter_map(|folder| fs::read_dir(folder).ok())
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

/// Descriptors that were sent to a socket and not yet received.
fn under_way(process: i32, socket: &Path) -> u64 {
    let number = socket.file_name().unwrap_or_default().to_string_lossy();
    let about = fs::read_to_string(format!("/proc/{process}/fdinfo/{number}")).unwrap_or_default();
    number_after(&about, "scm_fds:")
}

struct Watcher {
    runs: Mutex<Runs>,
    /// A run ends sooner than all that were known.
    sooner: Condvar,
    /// There are runs again.
    some: Condvar,
}

#[derive(Default)]
struct Runs {
    all: Vec<Weak<Watched>>,
    /// When the thread that keeps the time wakes up, if it does by itself.
    wakes: Option<Instant>,
    /// Whether the thread that looks at the rest waits for runs.
    idle: bool,
}

impl Runs {
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

/// Watches a run until nobody holds it any more or it has ended.
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

/// When the next of these times is over. What is past is tried again soon: it may not have ended yet.
fn wake(ends: impl Iterator<Item = Instant>, now: Instant) -> Option<Instant> {
    ends.map(|end| if end > now { end } else { now + TICK })
        .min()
}

impl Watcher {
    /// Kills what is past its time. Nothing else is done here, so that nothing delays that.
    fn keep_time(&self) {
        go_first();
        let mut runs = self.runs.lock();
        loop {
            let now = Instant::now();
            let mut due = runs.live();
            due.retain(|run| run.end() <= now);
            MutexGuard::unlocked(&mut runs, || {
                due.iter().for_each(|run| run.kill(End::TimeLimit));
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

    /// Looks at all that is not time.
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
            // Each run's folder has a rest of its own.
            let apart = began.elapsed().saturating_sub(together);
            std::thread::sleep(TICK.max(together * REST_FACTOR) + apart);
        }
    }
}

/// Looks at what a run has written until it has ended.
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
            run.kill(End::OutputLimit);
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

/// Looks at all that is not time; gives how long that took of what all runs have together. Runs younger than a tick are let
/// be: most end before it matters.
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
    let none = Group::default();
    let group = |run: &Watched| groups.get(&run.process.pid).unwrap_or(&none);
    for run in &old {
        let (group, limits) = (group(run), &run.limits);
        run.bound_memory(&group.members);
        if group.memory_bytes > limits.memory_bytes {
            run.kill(End::MemoryLimit);
        } else if group.processes > limits.processes {
            run.kill(End::ProcessLimit);
        }
    }
    let together = now.elapsed();
    for run in old {
        run.look_at_written(&group(run).members);
    }
    together
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
    fn process_name_cannot_forge_group() {
        assert_eq!(
            state_and_group("7 (a) R 1 9 9) S 1 42 42 0"),
            Some(("S", 42))
        );
    }

    #[test]
    fn own_process_group_is_seen_with_memory() {
        let group = rustix::process::getpgrp().as_raw_nonzero().get();
        let seen = groups(&BTreeMap::from([(group, u32::MAX)]));
        assert!(seen[&group].processes >= 1);
        assert!(seen[&group].memory_bytes > 0);
    }

    #[test]
    fn wake_is_never_in_past() {
        let now = Instant::now();
        let (soon, late) = (now + TICK / 2, now + TICK * 1000);
        let past = now.checked_sub(TICK * 10).unwrap();
        assert_eq!(wake([].into_iter(), now), None);
        assert_eq!(wake([late, soon].into_iter(), now), Some(soon));
        // One that was killed may not have ended: it is seen to again.
        assert_eq!(wake([late, past].into_iter(), now), Some(now + TICK));
        assert_eq!(wake([now, soon].into_iter(), now), Some(soon));
    }

    #[test]
    fn late_scan_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..100 {
            fs::write(folder.path().join(number.to_string()), "text").unwrap();
        }
        let open = || Dir::new(open_folder(rustix::fs::CWD, folder.path()).unwrap()).unwrap();
        let mut written = Written {
            until: Some(Instant::now()),
            ..Written::default()
        };
        sum(open(), &BTreeSet::new(), 8, &mut written);
        open_files(std::process::id().cast_signed(), 0, &mut written);
        assert!(written.is_late() && written.entries == 0);
        written.until = None;
        sum(open(), &BTreeSet::new(), 8, &mut written);
        assert!(!written.is_late() && written.entries == 100);
    }

    #[test]
    fn hard_links_count_and_scan_stops_at_limit() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
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
        let open = || Dir::new(open_folder(rustix::fs::CWD, folder.path()).unwrap()).unwrap();
        let mut written = Written::default();
        sum(open(), &given.into(), 8, &mut written);
        assert_eq!(written.entries, ENTRIES_FREE + 101);
        assert!(written.exceeds(100 * ENTRY_BYTES) && !written.exceeds(101 * ENTRY_BYTES));
        let mut written = Written {
            enough: Some(0),
            ..Written::default()
        };
        sum(open(), &given.into(), 8, &mut written);
        assert_eq!(written.entries, ENTRIES_FREE + 1);
        assert!(written.exceeds(0) && !written.is_late());
        // Nor is what nobody could count in time.
        let mut written = Written::default();
        written.look_at_open(OPEN_MAX);
        assert!(!written.exceeds(0));
        open_files(std::process::id().cast_signed(), 0, &mut written);
        assert!(written.exceeds(u64::MAX));
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
