//! Tests operations that a kernel cannot do, with real processes.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{
    LAUNCHER, Place, finish, is_root, output, require, skip_without_root, start, users, wait_until,
};
use tidemill_sandbox::{
    CodeSource, InputsAs, Launcher, LauncherLimits, LauncherSettings, PrepareError, RunEnd,
    RunInput, User, sandbox_support,
};

#[test]
fn host_supports_every_part_of_sandbox() {
    let support = sandbox_support();
    assert_eq!(support.missing(), Vec::<&str>::new());
    assert!(support.signals());
}

#[test]
fn kernel_has_no_network() {
    let place = Place::new();
    let script = r#"
import socket, errno
for family, kind in [(socket.AF_INET, socket.SOCK_STREAM), (socket.AF_INET, socket.SOCK_DGRAM),
                     (socket.AF_INET6, socket.SOCK_STREAM), (socket.AF_UNIX, socket.SOCK_STREAM),
                     (16, socket.SOCK_RAW)]:
    try:
        socket.socket(family, kind)
        print("open", family)
    except OSError as error:
        assert error.errno == errno.EPERM, error
a, b = socket.socketpair()
a.send(b"x"); assert b.recv(1) == b"x"
print("done")
"#;
    for user in users() {
        let mut run = place.python(script);
        run.user = user;
        assert_eq!(output(run), "done\n");
    }
}

#[test]
fn kernel_cannot_read_list_or_create_foreign_files() {
    let place = Place::new();
    let secret = place.path("secret");
    fs::write(&secret, "secret").unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o666)).unwrap();
    let open = tempfile::tempdir().unwrap();
    fs::set_permissions(open.path(), Permissions::from_mode(0o777)).unwrap();
    for user in users() {
        let script = format!(
            "cat /etc/shadow; cat {0}; ls {1}; echo x > {0}; echo x > {1}/new; ln {0} link 2>&1 | grep -c cross-device >&2; ls /root; ls /proc/1; \
             cat /proc/1/cmdline; ls /tmp; ls /; ls /dev/shm; echo x > /tmp/tidemill-escape",
            secret.display(),
            open.path().display()
        );
        let mut run = place.shell(&script);
        run.user = user;
        let (_, exit) = finish(run);
        assert_eq!(exit.stdout.text(), "", "{user:?}");
        let denied = exit
            .stderr
            .text()
            .lines()
            .filter(|line| line.contains("ermission denied"))
            .count();
        assert_eq!(denied, 12, "{user:?}: {}", exit.stderr.text());
        assert_eq!(fs::read(&secret).unwrap(), b"secret");
        assert_eq!(fs::read_dir(open.path()).unwrap().count(), 0);
    }
}

#[test]
fn kernel_can_read_but_not_change_its_input() {
    let place = Place::new();
    for user in users() {
        let script = "cat in/put; echo x > in/put; echo x >> in/put; chmod 666 in/put; \
                      chown $(id -u) in/put; truncate -s 0 in/put; rm -f in/put";
        let mut run = place.shell(script);
        run.user = user;
        let object = place.input(&mut run, "in/put", "kept");
        let (_, exit) = finish(run);
        assert_eq!(exit.stdout.text(), "kept", "{user:?}");
        assert_eq!(
            fs::read(&object).unwrap(),
            b"kept",
            "{user:?}: {}",
            exit.stderr.text()
        );
        assert_eq!(
            fs::metadata(&object).unwrap().permissions().mode() & 0o7777,
            0o444,
            "{user:?}"
        );
        fs::remove_file(&object).unwrap();
    }
}

#[test]
fn kernel_cannot_change_file_attributes() {
    // The kernel's user owns this file: the file rules do not cover attributes.
    let place = Place::new();
    let script = "import os, sys
path = sys.argv[1]
os.chmod(path, 0o777); os.utime(path, (1, 1)); os.chown(path, -1, -1)
os.system('chmod 777 ' + path)
f = os.open('input', os.O_RDONLY)
for change in (lambda: os.fchmod(f, 0o777), lambda: os.utime(f, (1, 1))):
    try: change()
    except PermissionError: pass
try: os.setxattr(path, 'user.x', b'1'); print('set')
except OSError: pass
open('own', 'w').close(); os.chmod('own', 0o600); os.utime('own')
print(os.access('own', os.R_OK))";
    for user in users() {
        let own = place.path("own");
        fs::write(&own, "x").unwrap();
        fs::set_permissions(&own, Permissions::from_mode(0o600)).unwrap();
        if let Some(User { uid, gid }) = user {
            std::os::unix::fs::chown(&own, Some(uid), Some(gid)).unwrap();
        }
        let state = |path| {
            let data = fs::metadata(path).unwrap();
            (data.permissions(), data.modified().unwrap())
        };
        let mut run = place.python(script);
        run.args.push(own.to_str().unwrap().into());
        run.user = user;
        let input = place.input(&mut run, "input", "");
        let before = (state(&own), state(&input));
        let (_, exit) = finish(run);
        assert_eq!(before, (state(&own), state(&input)), "{user:?}");
        assert_eq!(
            exit.stdout.text(),
            "True\n",
            "{user:?}: {}",
            exit.stderr.text()
        );
        fs::remove_file(&input).unwrap();
    }
}

#[test]
fn kernel_of_input_owner_cannot_change_linked_input() {
    let place = Place::new();
    let object = place.path("own");
    fs::write(&object, "kept").unwrap();
    let script = "cat input; echo x > input; echo x > $(readlink input); rm -f $(readlink input)";
    let mut run = place.shell(script);
    run.inputs.push(RunInput {
        name: "input".into(),
        path: object.clone(),
    });
    run.inputs_as = InputsAs::HardLink;
    let refused = support::LAUNCHER.prepare(run.clone()).unwrap_err();
    assert!(
        matches!(refused, PrepareError::WritableInput { .. }),
        "{refused}"
    );
    run.inputs_as = InputsAs::Symlink;
    run.directory = place.path("again");
    let (_, exit) = finish(run);
    assert_eq!(exit.stdout.text(), "kept");
    assert_eq!(
        fs::read(&object).unwrap(),
        b"kept",
        "{}",
        exit.stderr.text()
    );
}

#[test]
fn kernel_has_rights_of_owner_and_no_capabilities() {
    let place = Place::new();
    for user in users() {
        let mut run = place
            .shell("id -u; id -g; id -G; grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status");
        run.args[1] = "exec python3 -c 'import os
print(os.getuid(), os.geteuid(), os.getgid(), os.getgroups())
print(*[l.strip() for l in open(\"/proc/self/status\") if l.startswith((\"Cap\", \"NoNewPrivs\", \"Seccomp:\"))])
'"
        .into();
        run.user = user;
        let text = output(run);
        if let Some(User { uid, gid }) = user {
            assert!(
                text.starts_with(&format!("{uid} {uid} {gid} []\n")),
                "{text}"
            );
        }
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert!(
                text.contains(&format!("{set}:\t0000000000000000")),
                "{text}"
            );
        }
        if is_root() {
            assert!(text.contains("CapBnd:\t0000000000000000"), "{text}");
        }
        assert!(
            text.contains("NoNewPrivs:\t1") && text.contains("Seccomp:\t2"),
            "{text}"
        );
    }
}

#[test]
fn root_kernel_cannot_become_another_user() {
    if skip_without_root() {
        return;
    }
    let place = Place::new();
    let script = "import os
for call in (lambda: os.setuid(65534), lambda: os.setgroups([0]), lambda: os.chroot('.'), lambda: os.mknod('x', 0o60600, 1)):
    try:
        call(); print('did')
    except PermissionError:
        pass";
    assert_eq!(output(place.python(script)), "");
}

#[test]
fn forbidden_system_calls_of_kernel_fail() {
    let place = Place::new();
    let script = r#"
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def denied(name, *args):
    ctypes.set_errno(0)
    result = getattr(libc, name)(*args)
    assert result == -1 and ctypes.get_errno() == errno.EPERM, (name, result, ctypes.get_errno())
denied("ptrace", 0, 0, 0, 0)
denied("unshare", 0x10000000)
denied("unshare", 0)
denied("mount", b"none", b".", b"tmpfs", 0, None)
denied("setsid")
denied("setpgid", 0, 0)
denied("prctl", 1, 0, 0, 0, 0)
denied("setpriority", 0, os.getppid(), 5)
denied("setpriority", 2, 0, 7)
denied("shmget", 1234, 4096, 0o1600)
denied("syscall", 206, 1, ctypes.byref(ctypes.c_ulong()))  # io_setup
denied("inotify_init1", 0)
denied("personality", 0x0040000)
denied("name_to_handle_at", -100, b".", None, None, 0)
# What is newer than the list is not there: memfd_create, and a number that no call has.
for number in (319, 2000):
    ctypes.set_errno(0)
    assert libc.syscall(number, b"x", 0) == -1 and ctypes.get_errno() == errno.ENOSYS, number
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
try: os.sched_setaffinity(os.getppid(), {0}); assert False
except PermissionError: pass
with open('ahead', 'wb') as file:
    ctypes.set_errno(0)
    assert libc.fallocate(file.fileno(), 1, 0, 1 << 20) == -1 and ctypes.get_errno() == errno.EOPNOTSUPP
    assert libc.fallocate(file.fileno(), 3, 0, 1 << 20) == 0
    os.posix_fallocate(file.fileno(), 0, 1 << 20)
denied("syscall", 425, 8, None)   # io_uring_setup
denied("syscall", 321, 0, None, 0)  # bpf
denied("syscall", 0x40000000 | 41, 2, 1, 0)  # socket of x32
denied("clone", None, None, 0x10000000 | 17, None) if False else None
child = os.fork()
if child == 0:
    os._exit(0 if libc.syscall(56, 0x10000000 | 17, None, None, None, None) == -1 else 1)
assert os.waitpid(child, 0)[1] == 0
print("done")
"#
    .replace(
        "denied(\"clone\", None, None, 0x10000000 | 17, None) if False else None\n",
        "",
    );
    if cfg!(target_arch = "x86_64") {
        assert_eq!(output(place.python(&script)), "done\n");
    }
}

#[test]
fn kernel_cannot_signal_other_processes() {
    let place = Place::new();
    let script = format!(
        "kill -TERM {} && echo signalled; kill -9 -1 ; echo survived",
        std::process::id()
    );
    let text = output(place.shell(&script));
    assert!(!text.contains("signalled"), "{text}");
}

#[test]
fn kernel_that_cannot_be_watched_does_not_run() {
    const NAME: &str = "kernel_that_cannot_be_watched_does_not_run";
    const PLAY: &str = "PLAY_WITHOUT_DESCRIPTORS";
    const DESCRIPTORS: u64 = 300;
    /// Maximum number of free descriptors: the start of a kernel needs fewer.
    const FREE_MAX: usize = 14;
    // The test runs in a process of its own, where no other code needs a descriptor.
    if std::env::var_os(PLAY).is_none() {
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", NAME, "--nocapture"]).env(PLAY, "1");
        assert!(again.status().unwrap().success());
        return;
    }
    let children = || {
        let of = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap();
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        let all: String = tasks.map(|task| of(task.unwrap())).collect();
        all.split_ascii_whitespace().count()
    };
    let place = Place::new();
    let builtin = || {
        let mut run = place.run(CodeSource::Builtin("count".into()), &[]);
        run.user = users().last().copied().flatten();
        run
    };
    finish(builtin());
    let before = children();
    let most = getrlimit(Resource::Nofile);
    let (mut refused, mut started) = (0, 0);
    let both = |free| [(free, builtin()), (free, place.shell("sleep 1000"))];
    for (free, run) in (0..FREE_MAX).flat_map(both) {
        let prepared = support::LAUNCHER.prepare(run).unwrap();
        let few = Rlimit {
            current: Some(DESCRIPTORS),
            ..most
        };
        setrlimit(Resource::Nofile, few).unwrap();
        let mut taken: Vec<_> =
            std::iter::from_fn(|| rustix::io::dup(std::io::stdin()).ok()).collect();
        taken.truncate(taken.len().saturating_sub(free));
        let running = support::LAUNCHER.spawn(&prepared);
        drop(taken);
        setrlimit(Resource::Nofile, most).unwrap();
        match running {
            Err(_) => refused += 1,
            Ok(running) => {
                running.control().cancel();
                running.wait().unwrap();
                started += 1;
            }
        }
        // If the launcher dropped its fork server, this starts a new one.
        finish(builtin());
        assert_eq!(children(), before, "with {free} descriptors");
    }
    assert!(refused > 4 && started > 4);
}

#[test]
fn no_process_escapes_from_its_group() {
    let place = Place::new();
    for escape in [
        "setsid sleep 1000 & echo $!; sleep 1000",
        "setsid -f sleep 1000; sleep 1000",
        "(sleep 1000 & sleep 1000 &) ; sleep 1000",
        "python3 -c 'import os,time
if os.fork() == 0:
    try: os.setsid()
    except PermissionError: pass
    try: os.setpgid(0, 0)
    except PermissionError: pass
    if os.fork() == 0: time.sleep(1000)
' ; sleep 1000",
    ] {
        let mut run = place.shell(escape);
        run.limits.time = Duration::from_millis(1500);
        let (_, running) = start(run);
        let group = running.pid().cast_signed();
        let exit = running.wait().unwrap();
        assert_eq!(
            exit.end,
            RunEnd::TimeLimit,
            "{escape}: {}",
            exit.stderr.text()
        );
        assert_eq!(live_members(group), Vec::<String>::new(), "{escape}");
    }
}

#[test]
fn remaining_processes_of_kernel_are_killed() {
    let place = Place::new();
    let (_, running) = start(place.shell("sleep 1000 >/dev/null 2>&1 & echo started"));
    let group = running.pid().cast_signed();
    let exit = running.wait().unwrap();
    assert!(exit.success());
    assert_eq!(exit.stdout.text(), "started\n");
    assert_eq!(live_members(group), Vec::<String>::new());
}

#[test]
fn kernel_cannot_raise_its_own_priority() {
    let place = Place::new();
    let script = "import os
print(os.sched_getscheduler(0) == os.SCHED_IDLE)
for call in (lambda: os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0)), lambda: os.nice(-1),
             lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))):
    try:
        call(); print('did')
    except PermissionError:
        pass
child = os.fork()
if child == 0:
    os._exit(0 if os.sched_getscheduler(0) == os.SCHED_IDLE else 1)
print(os.waitpid(child, 0)[1])";
    for user in users() {
        let mut run = place.python(script);
        run.user = user;
        assert_eq!(output(run), "True\n0\n");
    }
}

#[test]
fn fork_bomb_is_bounded_and_killed() {
    let place = Place::new();
    for user in users() {
        let mut run = place.shell("f() { f | f & }; f; sleep 1000");
        run.user = user;
        run.limits.processes = 100;
        run.limits.time = Duration::from_secs(8);
        let (_, running) = start(run);
        let group = running.pid().cast_signed();
        let exit = running.wait().unwrap();
        // A user's fork bomb may run against RLIMIT_NPROC, which keeps it just below the limit until its time is over.
        let bounded =
            exit.end == RunEnd::ProcessLimit || (user.is_some() && exit.end == RunEnd::TimeLimit);
        assert!(bounded, "{:?}", exit.end);
        assert_eq!(live_members(group), Vec::<String>::new());
    }
}

#[test]
fn kernel_inherits_no_descriptors_or_variables() {
    let place = Place::new();
    // An open file without close-on-exec, as a careless library would leave it.
    let file = fs::File::open("/etc/passwd").unwrap();
    let copy = rustix::io::dup(&file).unwrap();
    assert!(
        !rustix::io::fcntl_getfd(&copy)
            .unwrap()
            .contains(rustix::io::FdFlags::CLOEXEC)
    );
    let mut run =
        place.python("import os; print(sorted(os.environ)); print(os.listdir('/proc/self/fd'))");
    run.environment.push(("TIDEMILL_TASK".into(), "one".into()));
    let text = output(run);
    let (environment, open) = text.split_once('\n').unwrap();
    // Python itself adds LC_CTYPE when the locale is C.
    let environment = environment.replace("'LC_CTYPE', ", "");
    assert_eq!(
        environment,
        "['HOME', 'LANG', 'PATH', 'PWD', 'TIDEMILL_TASK', 'TMPDIR']"
    );
    // The fourth is the directory being listed.
    assert_eq!(open, "['0', '1', '2', '3']\n");
    drop(copy);
}

#[test]
fn kernels_die_with_their_node() {
    // This test's own binary plays the node: it starts a kernel that sleeps, and is killed.
    if let Ok(directory) = std::env::var("PLAY_NODE") {
        let mut run = tidemill_sandbox::Run::new(
            CodeSource::Program("/bin/sh".into()),
            format!("{directory}/run"),
        );
        run.args = vec!["-c".into(), "sleep 1000 & echo > ready; sleep 1000".into()];
        run.inputs_as = InputsAs::Symlink;
        run.user = is_root().then_some(User {
            uid: 1000,
            gid: 1000,
        });
        let (_, running) = start(run);
        fs::write(format!("{directory}/new"), running.pid().to_string()).unwrap();
        fs::rename(format!("{directory}/new"), format!("{directory}/pid")).unwrap();
        let _ = running.wait();
        return;
    }
    let place = Place::new();
    let mut node = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kernels_die_with_their_node"])
        .env("PLAY_NODE", place.directory.path())
        .spawn()
        .unwrap();
    let file = place.path("pid");
    wait_until("the kernel runs", || {
        file.exists() && place.path("run/ready").exists()
    });
    let group: i32 = fs::read_to_string(&file).unwrap().parse().unwrap();
    wait_until("its processes run", || live_members(group).len() == 3);
    node.kill().unwrap();
    node.wait().unwrap();
    wait_until("the kernel is dead", || live_members(group).is_empty());
}

/// Returns the processes of a group that have not ended.
fn live_members(group: i32) -> Vec<String> {
    let mut members = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        let fields: Vec<&str> = stat[stat.rfind(')').unwrap() + 2..].split(' ').collect();
        if fields[2] == group.to_string() && fields[0] != "Z" {
            members.push(stat.clone());
        }
    }
    members
}

#[test]
fn kernels_share_one_memory_limit() {
    let place = Place::new();
    let together = Some(LauncherLimits {
        memory_bytes: 128 << 20,
        threads: 64,
        idle: false,
    });
    let launcher = Launcher::new(LauncherSettings {
        together,
        ..LauncherSettings::default()
    })
    .unwrap();
    if !launcher.bounds_together() {
        require::skip("this process may not make control groups for memory");
        return;
    }
    // Each is within its own limits.
    let hungry = "data = b'x' * (100 << 20); import time; time.sleep(20)";
    let runs = [0, 1].map(|_| {
        let prepared = launcher.prepare(place.python(hungry)).unwrap();
        launcher.spawn(&prepared).unwrap()
    });
    let controls = [runs[0].control(), runs[1].control()];
    let ends = runs.map(|run| std::thread::spawn(|| run.wait().unwrap().end));
    let before = Instant::now();
    while ends.iter().all(|end| !end.is_finished()) && before.elapsed() < Duration::from_secs(15) {
        std::thread::sleep(Duration::from_millis(10));
    }
    controls.iter().for_each(tidemill_sandbox::Control::cancel);
    let mut ends: Vec<_> = ends.into_iter().map(|end| end.join().unwrap()).collect();
    ends.sort_by_key(|end| *end == RunEnd::Cancelled);
    assert_eq!(ends[0], RunEnd::GroupLimit, "{ends:?}");
    // The other run continues; built-in kernels are in the group too.
    assert_ne!(ends[1], RunEnd::Code(0));
    let mut run = place.run(CodeSource::Builtin("sort".into()), &["dtype=u8"]);
    place.input(&mut run, "in", vec![7; 1 << 20]);
    let prepared = launcher.prepare(run).unwrap();
    assert!(launcher.spawn(&prepared).unwrap().wait().unwrap().success());
}

#[test]
fn long_run_is_limited_to_its_cpu_percent() {
    let place = Place::new();
    let launcher = Launcher::new(LauncherSettings {
        together: Some(LauncherLimits {
            memory_bytes: 700 << 20,
            threads: 64,
            idle: true,
        }),
        ..LauncherSettings::default()
    })
    .unwrap();
    if !launcher.bounds_cpu() {
        require::skip("this process may not make control groups for processors");
        return;
    }
    // After this time the run has been checked often enough.
    let busy = "import time
time.sleep(2)
begin, used = time.monotonic(), time.process_time()
while time.monotonic() < begin + 1: pass
print((time.process_time() - used) / (time.monotonic() - begin))";
    let mut run = place.python(busy);
    run.limits.cpu_percent = Some(20);
    let prepared = launcher.prepare(run).unwrap();
    let exit = launcher.spawn(&prepared).unwrap().wait().unwrap();
    assert!(exit.success(), "{}", exit.stderr.text());
    let share: f64 = exit.stdout.text().trim().parse().unwrap();
    // A fifth, and the maximum addition of one period.
    assert!(share < 0.4, "{share} of a processor");
}

#[test]
fn unmapped_memory_counts_for_its_kernel_alone() {
    let place = Place::new();
    let launcher = Launcher::new(LauncherSettings {
        together: Some(LauncherLimits {
            memory_bytes: 700 << 20,
            threads: 64,
            idle: false,
        }),
        ..LauncherSettings::default()
    })
    .unwrap();
    if !launcher.bounds_together() {
        require::skip("this process may not make control groups for memory");
        return;
    }
    let start = |run| {
        let prepared = launcher.prepare(run).unwrap();
        launcher.spawn(&prepared).unwrap()
    };
    // Another run, which uses more memory than the first can be seen to use.
    let innocent =
        "data = b'x' * (200 << 20); print('ready', flush=True); import time; time.sleep(1000)";
    let innocent = start(place.python(innocent));
    let control = innocent.control();
    let other = std::thread::spawn(|| innocent.wait().unwrap());
    wait_until("the other has its memory", || {
        control.stdout().text().contains("ready")
    });
    // A run that lasts has a limit of its own after a few checks.
    let hidden = "import mmap, time
time.sleep(2)
m = mmap.mmap(-1, 1 << 30)
for i in range(0, 1 << 30, 1 << 20):
    for page in range(i, i + (1 << 20), 4096): m[page] = 1
    m.madvise(mmap.MADV_DONTNEED, i, 1 << 20)
time.sleep(1000)";
    let mut run = place.python(hidden);
    run.limits.memory_bytes = 64 << 20;
    let exit = start(run).wait().unwrap();
    assert_eq!(exit.end, RunEnd::MemoryLimit, "{}", exit.stderr.text());
    control.cancel();
    assert_eq!(other.join().unwrap().end, RunEnd::Cancelled);
}

/// Returns software of a host on which every user has all rights, except for a private directory, and a link out of it.
fn software(secret: &Path) -> tempfile::TempDir {
    let sw = tempfile::tempdir().unwrap();
    let at = |path: &str| sw.path().join(path);
    for directory in ["bin", "private"] {
        fs::create_dir(at(directory)).unwrap();
    }
    for (path, text) in [
        ("data", "data\n"),
        ("bin/tool", "#!/bin/sh\necho tool\n"),
        ("private/key", "key\n"),
    ] {
        fs::write(at(path), text).unwrap();
    }
    for (path, mode) in [
        ("", 0o777),
        ("data", 0o666),
        ("bin", 0o777),
        ("bin/tool", 0o777),
        ("private", 0o700),
    ] {
        fs::set_permissions(at(path), Permissions::from_mode(mode)).unwrap();
    }
    std::os::unix::fs::symlink(secret, at("link")).unwrap();
    sw
}

/// Returns all entries of a directory: names, modes, times of change, and contents.
fn all_in(directory: &Path) -> Vec<(String, u32, i64, Vec<u8>)> {
    let mut all = Vec::new();
    for one in fs::read_dir(directory).unwrap() {
        let path = one.unwrap().path();
        let data = fs::symlink_metadata(&path).unwrap();
        let content = fs::read(&path).unwrap_or_default();
        let time = data.mtime() ^ data.mtime_nsec();
        all.push((path.display().to_string(), data.mode(), time, content));
        if data.is_dir() {
            all.extend(all_in(&path));
        }
    }
    all.sort();
    all
}

#[test]
fn shown_directory_is_readable_and_executable_but_unchangeable() {
    let place = Place::new();
    let secret = place.path("secret");
    fs::write(&secret, "secret\n").unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o666)).unwrap();
    let sw = software(&secret);
    let before = all_in(sw.path());
    let changes = "cp /dev/null data; echo x >> data; echo x > new; mkdir sub; ln data bin/hard; mv data moved; rm data; \
                   rmdir bin; ln -s data soft; mkfifo pipe; (: > bin/tool); touch -d @0 data; setfattr -n user.x -v y data; \
                   mv bin/tool \"$TMPDIR\"; echo x > link; cp $TMPDIR/own own; mv $TMPDIR/own own; chmod 0 data bin bin/tool";
    let script = format!(
        "cd {}; cat data; tool; ls bin; cat link 2> /dev/null || echo closed; echo own > $TMPDIR/own; {changes}; true",
        sw.path().display()
    );
    for user in users() {
        let mut run = place.shell(&script);
        run.user = user;
        run.shown = vec![sw.path().canonicalize().unwrap()];
        run.path = vec![sw.path().join("bin")];
        let printed = output(run);
        assert_eq!(printed, "data\ntool\ntool\nclosed\n", "{user:?}");
        assert_eq!(all_in(sw.path()), before, "{user:?}");
        assert_eq!(fs::read(&secret).unwrap(), b"secret\n");
    }
}

#[test]
fn shown_directory_respects_permissions_and_links() {
    let place = Place::new();
    let sw = software(&place.path(""));
    let shown = |user, script: &str, shown: &[&str]| {
        let mut run = place.shell(&format!("cd {}; {script}", sw.path().display()));
        run.user = user;
        run.shown = shown.iter().map(|path| sw.path().join(path)).collect();
        run
    };
    for user in users() {
        let read = |directories: &[&str]| {
            let run = shown(user, "cat data private/key", directories);
            finish(run).1.stdout.text()
        };
        assert_eq!(read(&[]), "", "{user:?}");
        assert_eq!(read(&["bin"]), "", "{user:?}");
        // For root, and for the only user, it is not private.
        let all = if user.is_some() {
            "data\n"
        } else {
            "data\nkey\n"
        };
        assert_eq!(read(&["."]), all, "{user:?}");
        // They were directories when they were checked.
        for path in ["link", "link/run", "data", "nothing"] {
            let prepared = LAUNCHER.prepare(shown(user, "true", &[path])).unwrap();
            assert!(LAUNCHER.spawn(&prepared).is_err(), "{path} {user:?}");
        }
    }
}
