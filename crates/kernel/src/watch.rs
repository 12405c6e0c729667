//! Watches the limits of all running kernels, from one thread: time exactly, the rest every [`TICK`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::child::Keeper;
use crate::run::{End, Limits, Tail};
use crate::sandbox::group::ControlGroup;
use crate::spawn::kill_group;

/// How often memory, processes and written bytes are looked at.
const TICK: Duration = Duration::from_millis(100);

/// Looking takes at most one part in this many of the watcher's time, however large the folders are.
const REST_FACTOR: u32 = 20;

/// Folders within folders that are followed when written bytes are summed.
const DEPTH_MAX: u32 = 64;

/// A run as its watcher, its waiter and those who may cancel it share it.
#[derive(Debug)]
pub(crate) struct Watched {
    /// First process, and so the group.
    pub(crate) pid: i32,
    /// Just before it was started.
    pub(crate) started: Instant,
    pub(crate) limits: Limits,
    pub(crate) folder: PathBuf,
    /// Device and inode of what lies in the folder but was not written by the kernel.
    pub(crate) given: BTreeSet<(u64, u64)>,
    pub(crate) state: Mutex<State>,
    pub(crate) keeper: Arc<Keeper>,
    /// The control group that it is in, and how many processes that had lost for memory before.
    pub(crate) group: Option<(u64, Arc<ControlGroup>)>,
    pub(crate) stdout: Mutex<Tail>,
    pub(crate) stderr: Mutex<Tail>,
}

/// What changes.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Its first process was waited for: the process id is no longer ours.
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
        kill_group(self.pid);
    }

    /// Whether the system ended processes of its control group for memory while it ran.
    pub(crate) fn group_ended(&self) -> bool {
        let group = self.group.as_ref();
        group.is_some_and(|(before, group)| group.ended() > *before)
    }

    /// Bytes that the kernel has in its folder now.
    pub(crate) fn written(&self) -> Written {
        let mut written = Written::default();
        sum(&self.folder, &self.given, DEPTH_MAX, &mut written);
        written
    }
}

/// Bytes in a private folder.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Written {
    /// Space in use: holes do not count.
    pub(crate) bytes: u64,
    /// Length of the longest file.
    pub(crate) longest: u64,
}

/// Errors are passed over: the kernel may remove at any moment what was just listed.
fn sum(folder: &Path, given: &BTreeSet<(u64, u64)>, depth: u32, written: &mut Written) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        if kind.is_dir() {
            if depth > 0 {
                sum(&entry.path(), given, depth - 1, written);
            }
        } else if kind.is_file()
            && let Ok(data) = entry.metadata()
            && !given.contains(&(data.dev(), data.ino()))
        {
            written.bytes += data.len().min(data.blocks() * 512);
            written.longest = written.longest.max(data.len());
        }
    }
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
    let groups = groups(
        &old.iter()
            .map(|run| (run.pid, run.limits.processes))
            .collect(),
    );
    for run in old {
        let group = groups.get(&run.pid).copied().unwrap_or_default();
        if group.memory_bytes > run.limits.memory_bytes {
            run.kill(End::MemoryLimit);
        } else if group.processes > run.limits.processes {
            run.kill(End::ProcessLimit);
        } else if run.written().bytes > run.limits.output_bytes {
            run.kill(End::OutputLimit);
        }
    }
}

/// What the processes of one group have together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Group {
    /// Private and shared anonymous memory that is resident.
    pub(crate) memory_bytes: u64,
    /// Processes that have not ended.
    pub(crate) processes: u32,
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
        if !name
            .as_encoded_bytes()
            .first()
            .is_some_and(u8::is_ascii_digit)
        {
            continue;
        }
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
        if matches!(state, "Z" | "X") {
            continue;
        }
        let group = groups.entry(id).or_default();
        group.processes += 1;
        if group.processes > *most {
            break;
        }
        if let Ok(status) = fs::read_to_string(process.path().join("status")) {
            group.memory_bytes += kibibytes(&status, "RssAnon:") + kibibytes(&status, "RssShmem:");
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

fn kibibytes(status: &str, field: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok());
    number.unwrap_or(0) << 10
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
        let data = fs::metadata(&given).unwrap();
        let mut written = Written::default();
        sum(
            folder.path(),
            &BTreeSet::from([(data.dev(), data.ino())]),
            8,
            &mut written,
        );
        assert_eq!((written.bytes, written.longest), (5000, 1 << 40));
    }
}
