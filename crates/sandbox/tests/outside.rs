//! Checks that a process outside of the sandbox with the same user cannot affect a kernel: each test attacks one guarantee with such a
//! same-UID process.
//!
//! If the node runs as an ordinary user, this user is also the node's, and nothing is guaranteed; so these tests need root.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::fs::{self, Permissions};
use std::io::{BufRead as _, Read as _};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use support::{LAUNCHER, Place, compile, finish, output, skip_without_root, start, wait_until};
use tidemill_sandbox::{CodeSource, KERNELS_FROM, PrepareError, RunningKernel, User};

const SAME_UID: User = User {
    uid: 1000,
    gid: 1000,
};

/// Time after which it is certain that a process waits for the same-UID process.
const HANG: Duration = Duration::from_secs(60);

/// Returns the output of a script that runs as a same-UID process: it tries operations and prints the names of those that succeeded.
fn same_uid_process(script: &str, args: &[&str]) -> String {
    let mut command = Command::new("/usr/bin/python3");
    command.arg("-c").arg(format!("{ATTEMPTS}{script}"));
    command.args(args).uid(SAME_UID.uid).gid(SAME_UID.gid);
    let done = command.current_dir("/").output().unwrap();
    let printed = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.success(), "{printed}");
    String::from_utf8(done.stdout).unwrap()
}

const ATTEMPTS: &str = "
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(what, call):
    try: result = call()
    except OSError: return
    if result is None or not isinstance(result, int) or result >= 0: print('could', what)
";

/// Starts a kernel of the same-UID process's user that reports when it runs, and then waits.
fn waiting(place: &Place) -> (tidemill_sandbox::Prepared, RunningKernel) {
    let mut run = place.shell("mkdir sub; echo x > sub/out; echo > ready; sleep 1000");
    run.user = Some(SAME_UID);
    let (prepared, running) = start(run);
    let ready = prepared.run().directory.join("ready");
    wait_until("the kernel runs", || ready.exists());
    (prepared, running)
}

#[test]
fn same_uid_process_cannot_inspect_or_stop_kernel() {
    if skip_without_root() {
        return;
    }
    let place = Place::new();
    let (prepared, running) = waiting(&place);
    let pid = running.pid().to_string();
    let directory = prepared.run().directory.to_str().unwrap();
    let script = "
pid, directory = int(sys.argv[1]), sys.argv[2]
for name in ('cwd', 'root', 'exe', 'fd/0', 'fd/1', 'ns/user'):
    attempt('readlink ' + name, lambda: os.readlink(f'/proc/{pid}/{name}'))
for name in ('mem', 'maps', 'environ', 'cwd/ready', 'root/etc/shadow', 'fd/0', 'syscall', 'stack', 'io', 'auxv'):
    attempt('open ' + name, lambda: os.read(os.open(f'/proc/{pid}/{name}', os.O_RDONLY), 1))
attempt('list fd', lambda: os.listdir(f'/proc/{pid}/fd'))
for number in (0, signal.SIGSTOP, signal.SIGTERM):
    attempt(f'signal {number}', lambda: os.kill(pid, number))
    attempt(f'signal group {number}', lambda: os.killpg(pid, number))
pidfd = os.pidfd_open(pid)
attempt('pidfd_getfd', lambda: libc.syscall(438, pidfd, 1, 0))
attempt('enter its namespaces', lambda: libc.setns(pidfd, 0x10000000))
attempt('ptrace', lambda: libc.ptrace(16, pid, 0, 0))
attempt('seize', lambda: libc.ptrace(0x4206, pid, 0, 0))
attempt('choose its processors', lambda: os.sched_setaffinity(pid, {0}))
attempt('set its priority', lambda: os.setpriority(os.PRIO_PROCESS, pid, 5))
class Part(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('length', ctypes.c_size_t)]
own = ctypes.create_string_buffer(8)
here, there = Part(ctypes.addressof(own), 8), Part(0x400000, 8)
attempt('read its memory', lambda: libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0))
for path in (directory, directory + '/.tidemill', directory + '/.tidemill/tmp', directory + '/sub', directory + '/sub/out'):
    attempt('open ' + path, lambda: os.open(path, os.O_RDONLY))
    attempt('write ' + path, lambda: os.open(path, os.O_WRONLY))
attempt('make a file', lambda: os.open(directory + '/sub/new', os.O_WRONLY | os.O_CREAT))
";
    assert_eq!(same_uid_process(script, &[&pid, directory]), "");
    // It still runs, with a user number that no process outside has.
    let owner = fs::metadata(format!("/proc/{pid}")).unwrap().uid();
    assert_eq!(owner, KERNELS_FROM + SAME_UID.uid);
    running.control().cancel();
    running.wait().unwrap();
}

/// Returns an open descriptor of a directory, as an attacker who acquired it would have it.
fn door(path: &Path) -> OwnedFd {
    let file = fs::File::open(path).unwrap();
    // The same-UID process inherits the descriptor.
    rustix::io::dup(&file).unwrap()
}

#[test]
fn old_descriptor_of_recycled_directory_reaches_no_new_file() {
    if skip_without_root() {
        return;
    }
    let place = Place::new();
    let (prepared, running) = waiting(&place);
    let directory = prepared.run().directory.clone();
    let doors = ["", ".tidemill", ".tidemill/tmp", "sub"].map(|name| door(&directory.join(name)));
    running.control().cancel();
    running.wait().unwrap();
    let made = prepared.output("sub/out").unwrap();
    let target = place.path("made-by-root");
    let numbers = doors.each_ref().map(|door| door.as_raw_fd().to_string());
    let plant = |names: &[&str]| {
        let script = "
import subprocess
target, numbers, names = sys.argv[1], sys.argv[2].split(','), sys.argv[3:]
for door in map(int, numbers):
    for name in names:
        attempt(f'link {name} in {door}', lambda: os.symlink(target, name, dir_fd=door))
    attempt(f'open in {door}', lambda: os.open('out', os.O_WRONLY, dir_fd=door))
    attempt(f'exchange in {door}', lambda: os.rename('out', 'other', src_dir_fd=door, dst_dir_fd=door))
    attempt(f'open up {door}', lambda: os.fchmod(door, 0o777))
";
        let numbers = numbers.join(",");
        let mut args = vec![target.to_str().unwrap(), numbers.as_str()];
        args.extend(names);
        same_uid_process_with(&doors, script, &args)
    };
    assert_eq!(plant(&["payload.sh"]), "");
    assert_eq!(made.size().unwrap(), 2);
    // After reuse, the directory belongs to another kernel.
    drop(made);
    fs::remove_dir_all(directory.join("sub")).unwrap();
    assert!(LAUNCHER.recycle(&directory));
    assert_eq!(plant(&["payload.sh"]), "");
    let payload = place.object("payload.sh", "#!/bin/sh\necho ran\n");
    let mut run = place.run(CodeSource::Program(payload.clone()), &[]);
    run.user = Some(SAME_UID);
    run.inputs.push(tidemill_sandbox::RunInput {
        name: "payload.sh".into(),
        path: payload,
    });
    let again = LAUNCHER.prepare(run).unwrap();
    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    let reserved = again.run().directory.join(".tidemill");
    assert_eq!(
        inode(&reserved),
        rustix::fs::fstat(&doors[1]).unwrap().st_ino
    );
    assert_eq!(plant(&["payload.sh", "other"]), "");
    let exit = LAUNCHER.spawn(&again).unwrap().wait().unwrap();
    assert_eq!(exit.stdout.text(), "ran\n");
    assert!(!target.exists());
}

/// Runs a script like [`same_uid_process`], with descriptors that the script inherits.
fn same_uid_process_with(doors: &[OwnedFd], script: &str, args: &[&str]) -> String {
    for door in doors {
        let none = rustix::io::FdFlags::empty();
        rustix::io::fcntl_setfd(door, none).unwrap();
    }
    same_uid_process(script, args)
}

#[test]
fn program_runs_only_for_permitted_users() {
    if skip_without_root() {
        return;
    }
    let place = Place::new();
    let closed = place.path("closed");
    fs::create_dir(&closed).unwrap();
    let script = |path: &Path, mode| {
        fs::write(path, "#!/bin/sh\necho ran as $(id -u)\n").unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    };
    let inner = closed.join("backup.sh");
    script(&inner, 0o755);
    fs::set_permissions(&closed, Permissions::from_mode(0o700)).unwrap();
    let of_root = place.path("of-root.sh");
    script(&of_root, 0o700);
    let unreadable = place.path("unreadable.sh");
    script(&unreadable, 0o711);
    for path in [&inner, &of_root, &unreadable] {
        let mut run = place.run(CodeSource::Program(path.clone()), &[]);
        run.user = Some(SAME_UID);
        let refused = LAUNCHER.prepare(run).unwrap_err();
        assert!(
            matches!(refused, PrepareError::Forbidden { .. }),
            "{refused}"
        );
    }
    // The owner may run a program that no other user may.
    let own = place.path("own");
    fs::create_dir(&own).unwrap();
    let private = own.join("private.sh");
    script(&private, 0o700);
    fs::set_permissions(&own, Permissions::from_mode(0o700)).unwrap();
    for path in [&own, &private] {
        chown(path, Some(SAME_UID.uid), Some(SAME_UID.gid)).unwrap();
    }
    let mut run = place.run(CodeSource::Program(private), &[]);
    run.user = Some(SAME_UID);
    assert_eq!(output(run), "ran as 1000\n");
}

/// A directory of the same-UID process's user with a program that all users may run, and files of root that no other user may read.
struct Swapped {
    place: Place,
    tool: PathBuf,
    good: PathBuf,
    secrets: [PathBuf; 2],
}

impl Swapped {
    fn new() -> Self {
        let place = Place::new();
        let own = place.path("own");
        fs::create_dir(&own).unwrap();
        let tool = own.join("tool");
        fs::write(&tool, "#!/bin/sh\necho good\n").unwrap();
        fs::set_permissions(&tool, Permissions::from_mode(0o755)).unwrap();
        let good = own.join("good");
        fs::copy(&tool, &good).unwrap();
        for path in [&own, &tool, &good] {
            chown(path, Some(SAME_UID.uid), Some(SAME_UID.gid)).unwrap();
        }
        let closed = place.path("closed");
        fs::create_dir(&closed).unwrap();
        fs::set_permissions(&closed, Permissions::from_mode(0o700)).unwrap();
        // Only root may read the first secret; all users may read the second, but cannot reach it.
        let secrets = [place.path("secret"), closed.join("secret")];
        for (secret, mode) in secrets.iter().zip([0o700, 0o755]) {
            fs::write(secret, format!("#!/bin/sh\necho {mode:o}\n")).unwrap();
            fs::set_permissions(secret, Permissions::from_mode(mode)).unwrap();
        }
        Self {
            place,
            tool,
            good,
            secrets,
        }
    }

    fn run(&self) -> tidemill_sandbox::Run {
        let mut run = self.place.run(CodeSource::Program(self.tool.clone()), &[]);
        run.user = Some(SAME_UID);
        run
    }

    /// Replaces the program in the directory by another file.
    fn swap(&self, make: impl FnOnce(&Path)) {
        fs::remove_file(&self.tool).unwrap();
        make(&self.tool);
    }
}

#[test]
fn prepare_refuses_program_without_execute_right() {
    if skip_without_root() {
        return;
    }
    let swapped = Swapped::new();
    let refused = || {
        let run = swapped.run();
        let hash = LAUNCHER.code_hash(&run).unwrap_err().to_string();
        let prepared = LAUNCHER.prepare(run).unwrap_err().to_string();
        assert_eq!(hash, prepared);
        hash
    };
    for secret in &swapped.secrets {
        swapped.swap(|tool| symlink(secret, tool).unwrap());
        assert!(refused().contains("may not"), "{}", refused());
    }
    // The link leads to an open file of this process.
    let open = fs::File::open(&swapped.secrets[1]).unwrap();
    let number = format!("/proc/self/fd/{}", open.as_raw_fd());
    swapped.swap(|tool| symlink(number, tool).unwrap());
    refused();
    // Opening this file would block.
    swapped.swap(|tool| {
        let mode = rustix::fs::Mode::from_raw_mode(0o777);
        rustix::fs::mknodat(rustix::fs::CWD, tool, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        fs::set_permissions(tool, Permissions::from_mode(0o777)).unwrap();
    });
    refused();
    swapped.swap(|tool| fs::create_dir(tool).unwrap());
    refused();
}

#[test]
fn program_swapped_after_check_is_not_run() {
    if skip_without_root() {
        return;
    }
    let swapped = Swapped::new();
    let other = swapped.place.path("other.sh");
    fs::write(&other, "#!/bin/sh\necho other\n").unwrap();
    fs::set_permissions(&other, Permissions::from_mode(0o755)).unwrap();
    let prepared = LAUNCHER.prepare(swapped.run()).unwrap();
    swapped.swap(|tool| symlink(&other, tool).unwrap());
    let refused = LAUNCHER.spawn(&prepared).unwrap_err();
    assert!(
        matches!(refused, tidemill_sandbox::SpawnError::Execute { .. }),
        "{refused}"
    );
}

#[test]
fn program_swapped_during_prepare_is_not_run() {
    const ROUNDS: usize = 300;
    // A busy host may stop the same-UID process for all of the first rounds.
    const ROUNDS_MAX: usize = 30 * ROUNDS;
    if skip_without_root() {
        return;
    }
    let swapped = Swapped::new();
    let script = "
tool, good, *secrets = sys.argv[1:]
os.chdir(os.path.dirname(tool))
print('ready', flush=True)
while True:
    for make in (lambda: os.link(good, 'new'), lambda: os.symlink(secrets[0], 'new'),
                 lambda: os.link(good, 'new'), lambda: os.symlink(secrets[1], 'new'),
                 lambda: os.link(good, 'new'), lambda: os.mkfifo('new', 0o777)):
        make()
        os.rename('new', tool)
        if os.path.lexists('new'): os.unlink('new')
";
    let mut command = Command::new("/usr/bin/python3");
    command.arg("-c").arg(format!("{ATTEMPTS}{script}"));
    command.args([&swapped.tool, &swapped.good]);
    command
        .args(&swapped.secrets)
        .uid(SAME_UID.uid)
        .gid(SAME_UID.gid);
    let mut same_uid_process = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut printed = [0; 5];
    let mut from_same_uid_process = same_uid_process.stdout.take().unwrap();
    from_same_uid_process.read_exact(&mut printed).unwrap();
    let good = tidemill_sandbox::hash_file(&swapped.good).unwrap();
    let runs: Vec<_> = (0..ROUNDS_MAX).map(|_| swapped.run()).collect();
    let (sender, receiver) = std::sync::mpsc::channel();
    // The calls run on another thread, so that this thread detects if they hang.
    std::thread::spawn(move || {
        for run in runs {
            let hash = LAUNCHER.code_hash(&run);
            let prepared = LAUNCHER.prepare(run);
            let prepared = prepared.map(|prepared| prepared.code_hash().to_owned());
            if sender.send([hash, prepared]).is_err() {
                return;
            }
        }
    });
    let mut found = 0;
    for round in 0..ROUNDS_MAX {
        if round >= ROUNDS && found > 0 {
            break;
        }
        let seen = receiver.recv_timeout(HANG);
        let seen = seen.unwrap_or_else(|_| panic!("round {round} hangs"));
        for hash in seen.iter().flatten() {
            assert_eq!(*hash, good);
            found += 1;
        }
    }
    assert!(
        same_uid_process.try_wait().unwrap().is_none(),
        "the same-UID process gave up"
    );
    same_uid_process.kill().unwrap();
    same_uid_process.wait().unwrap();
    assert!(found > 0, "no call found the program itself");
}

#[test]
fn directory_removal_never_follows_swapped_in_links() {
    const ROUNDS: usize = 60;
    if skip_without_root() {
        return;
    }
    let place = Place::new();
    let outside = place.path("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("kept"), "kept").unwrap();
    let state = || {
        let of = |path: &Path| {
            let data = fs::metadata(path).unwrap();
            (data.mode(), data.uid(), data.nlink(), data.ctime_nsec())
        };
        (of(&outside), of(&outside.join("kept")))
    };
    let before = state();
    let all = place.path("all");
    fs::create_dir(&all).unwrap();
    chown(&all, Some(SAME_UID.uid), Some(SAME_UID.gid)).unwrap();
    let script = "
all, outside, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
def quietly(call, *args):
    try: call(*args)
    except OSError: pass
for number in range(rounds):
    directory = f'{all}/{number}'
    os.makedirs(directory + '/sub/deep')
    inner = os.open(directory, os.O_RDONLY)
    print(number, flush=True)
    # Until it has come back: then nothing can be made in it.
    while True:
        try:
            os.fchdir(inner)
            os.symlink(outside, 'link')
            os.rename('sub', 'away')
            os.rename('link', 'sub')
            for mode in (0, 0o777): quietly(os.fchmod, inner, mode)
            os.rename('sub', 'link')
            os.rename('away', 'sub')
            os.unlink('link')
            quietly(os.makedirs, 'sub/deep/er')
        except OSError:
            if not os.path.exists(directory) or os.fstat(inner).st_uid != os.getuid(): break
            for undo in (('unlink', 'link'), ('unlink', 'sub')): quietly(getattr(os, undo[0]), undo[1])
            quietly(os.rename, 'away', 'sub')
            quietly(os.makedirs, 'sub/deep')
    os.close(inner)
    os.chdir('/')
";
    let mut command = Command::new("/usr/bin/python3");
    command.arg("-c").arg(format!("{ATTEMPTS}{script}"));
    command
        .args([&all, &outside])
        .arg(ROUNDS.to_string())
        .uid(SAME_UID.uid)
        .gid(SAME_UID.gid);
    let mut same_uid_process = command.stdout(Stdio::piped()).spawn().unwrap();
    let rounds = std::io::BufReader::new(same_uid_process.stdout.take().unwrap()).lines();
    for number in rounds {
        let directory = all.join(number.unwrap());
        tidemill_sandbox::remove_directory(&directory).unwrap();
        assert!(!directory.exists());
        assert_eq!(state(), before);
    }
    assert!(same_uid_process.wait().unwrap().success());
}

#[test]
fn input_writable_by_its_reader_is_refused() {
    if skip_without_root() {
        return;
    }
    let place = Place::new();
    let object = place.object("object", "kept");
    chown(&object, Some(SAME_UID.uid), Some(SAME_UID.gid)).unwrap();
    let mut run = place.shell("cat input");
    run.user = Some(SAME_UID);
    run.inputs.push(tidemill_sandbox::RunInput {
        name: "input".into(),
        path: object,
    });
    let refused = LAUNCHER.prepare(run).unwrap_err();
    assert!(
        matches!(refused, PrepareError::WritableInput { .. }),
        "{refused}"
    );
}

#[test]
fn shared_object_runs_for_every_user() {
    if skip_without_root() {
        return;
    }
    let place = Place::new();
    let built = compile(&place, "tests/kernels/leftovers.c", "left.so");
    // Objects are stored in a directory that is closed to users.
    let closed = place.path("objects");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, Permissions::from_mode(0o700)).unwrap();
    let object = closed.join("object");
    fs::rename(built, &object).unwrap();
    for uid in [SAME_UID.uid, 0] {
        let mut run = place.run(CodeSource::Native(object.clone()), &["nothing"]);
        run.user = Some(User { uid, gid: uid });
        run.inputs.push(tidemill_sandbox::RunInput {
            name: "left.so".into(),
            path: object.clone(),
        });
        run.outputs.push("found".into());
        let (prepared, exit) = finish(run);
        assert!(exit.success(), "{}", exit.stderr.text());
        assert_eq!(prepared.output("found").unwrap().size().unwrap(), 2);
    }
}

#[test]
fn fork_server_child_has_no_data_of_earlier_order() {
    let place = Place::new();
    let object = compile(&place, "tests/kernels/leftovers.c", "left.so");
    let users = support::users();
    let mark = "PRIVATE-ARGUMENT-OF-ANOTHER";
    let long = format!("{}{mark}", "q".repeat(3000));
    let mut before = place.run(CodeSource::Builtin("grep".into()), &["-c", &long]);
    before.user = users.last().copied().flatten();
    place.input(&mut before, "in", "text\n");
    let (_, exit) = finish(before);
    assert!(exit.success(), "{}", exit.stderr.text());
    let backwards: String = mark.chars().rev().collect();
    let mut run = place.run(CodeSource::Native(object), &[&backwards]);
    run.outputs.push("found".into());
    let (prepared, exit) = finish(run);
    assert!(exit.success(), "{}", exit.stderr.text());
    let found = fs::read_to_string(prepared.run().directory.join("found")).unwrap();
    assert_eq!(found, "0\n");
}

#[test]
fn no_datagram_leaves_sandbox() {
    let place = Place::new();
    let open = tempfile::tempdir().unwrap();
    fs::set_permissions(open.path(), Permissions::from_mode(0o777)).unwrap();
    let path = open.path().join("socket");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
    socket.set_nonblocking(true).unwrap();
    let script = "
import array, socket, sys
path = sys.argv[1]
kinds = [(socket.SOCK_DGRAM, 0), (socket.SOCK_RAW, 0), (socket.SOCK_DGRAM, socket.SOCK_CLOEXEC),
         (socket.SOCK_STREAM, 0), (socket.SOCK_SEQPACKET, 0)]
for kind, flags in kinds:
    try: a, b = socket.socketpair(socket.AF_UNIX, kind | flags)
    except PermissionError: print('no pair of', kind.name); continue
    for call in (lambda: a.sendto(b'x', path),
                 lambda: a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [1]))], 0, path),
                 lambda: a.connect(path), lambda: a.bind('own')):
        try: call()
        except OSError: pass
";
    for user in support::users() {
        let mut run = place.python(script);
        run.args.push(path.to_str().unwrap().into());
        run.user = user;
        let expected = "no pair of SOCK_DGRAM\nno pair of SOCK_RAW\nno pair of SOCK_DGRAM\n";
        assert_eq!(output(run), expected);
        assert!(socket.recv(&mut [0; 8]).is_err(), "{user:?}");
    }
}

#[test]
fn kernel_of_unprivileged_node_stays_inside_sandbox() {
    const NAME: &str = "kernel_of_unprivileged_node_stays_inside_sandbox";
    // This test's own binary plays the node.
    if let Ok(directory) = std::env::var("PLAY_OWN_NODE") {
        return own_node(Path::new(&directory));
    }
    if skip_without_root() {
        return;
    }
    let place = Place::new();
    let program = place.path("node");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let directory = place.path("own");
    fs::create_dir(&directory).unwrap();
    let secret = directory.join("secret");
    fs::write(&secret, "secret").unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    for path in [&directory, &secret] {
        chown(path, Some(SAME_UID.uid), Some(SAME_UID.gid)).unwrap();
    }
    let done = Command::new(program)
        .args(["--exact", NAME, "--nocapture"])
        .env("PLAY_OWN_NODE", &directory)
        .env("TMPDIR", &directory)
        .current_dir("/")
        .uid(SAME_UID.uid)
        .gid(SAME_UID.gid)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{printed}");
    assert!(printed.contains("1 passed"), "{printed}");
}

#[test]
fn kernels_in_container_with_few_ids_run_as_owners() {
    const NAME: &str = "kernels_in_container_with_few_ids_run_as_owners";
    if std::env::var_os("PLAY_CONTAINER").is_some() {
        return in_container();
    }
    if skip_without_root() {
        return;
    }
    let script = "
if libc.unshare(0x10000000): sys.exit('no namespace of users')
print('made', flush=True)
sys.stdin.readline()
os.setgroups([]); os.setgid(0); os.setuid(0)
os.execv(sys.argv[1], sys.argv[1:])
";
    let mut container = Command::new("/usr/bin/python3")
        .args(["-c", &format!("{ATTEMPTS}{script}")])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env("PLAY_CONTAINER", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut printed = std::io::BufReader::new(container.stdout.take().unwrap());
    let mut line = String::new();
    printed.read_line(&mut line).unwrap();
    assert_eq!(line, "made\n");
    for map in ["uid_map", "gid_map"] {
        let path = format!("/proc/{}/{map}", container.id());
        fs::write(path, "0 0 2000\n65534 65534 1\n").unwrap();
    }
    drop(container.stdin.take());
    let mut rest = String::new();
    printed.read_to_string(&mut rest).unwrap();
    assert!(container.wait().unwrap().success(), "{rest}");
    assert!(rest.contains("1 passed"), "{rest}");
}

/// A node of root in a container runs a kernel of an existing user, and a kernel of a user that does not exist.
fn in_container() {
    assert!(!LAUNCHER.has_users_of_kernels() && LAUNCHER.has_namespaces());
    let place = Place::new();
    let mut other_user = place.shell("echo ran");
    other_user.user = Some(User {
        uid: 3000,
        gid: 3000,
    });
    LAUNCHER.prepare(other_user).unwrap_err();
    let (_, running) = waiting(&place);
    let pid = running.pid();
    let owner = fs::metadata(format!("/proc/{pid}")).unwrap().uid();
    assert_eq!(owner, SAME_UID.uid);
    let script = "
pid = int(sys.argv[1])
for name in ('cwd', 'root', 'exe', 'fd/0', 'ns/user'):
    attempt('readlink ' + name, lambda: os.readlink(f'/proc/{pid}/{name}'))
for name in ('mem', 'maps', 'environ', 'cwd/ready', 'fd/0', 'syscall', 'auxv'):
    attempt('open ' + name, lambda: os.read(os.open(f'/proc/{pid}/{name}', os.O_RDONLY), 1))
pidfd = os.pidfd_open(pid)
attempt('pidfd_getfd', lambda: libc.syscall(438, pidfd, 1, 0))
attempt('enter its namespaces', lambda: libc.setns(pidfd, 0x10000000))
attempt('ptrace', lambda: libc.ptrace(16, pid, 0, 0))
attempt('signal', lambda: os.kill(pid, 0))
";
    assert_eq!(
        same_uid_process(script, &[&pid.to_string()]),
        "could signal\n"
    );
    running.control().cancel();
    running.wait().unwrap();
    // A kernel that is part of the program runs in the same way.
    let mut run = place.run(CodeSource::Builtin("count".into()), &[]);
    run.user = Some(SAME_UID);
    place.input(&mut run, "data", "12345678");
    assert!(finish(run).1.success());
}

/// A node of an ordinary user runs a kernel that tries operations which this user could do outside.
fn own_node(directory: &Path) {
    let script = "
import socket
node, secret = os.getppid(), sys.argv[1]
attempt('read', lambda: os.open(secret, os.O_RDONLY))
attempt('write', lambda: os.open(secret, os.O_WRONLY))
attempt('make', lambda: os.open(secret + '-new', os.O_WRONLY | os.O_CREAT))
attempt('remove', lambda: os.unlink(secret))
attempt('signal', lambda: os.kill(node, signal.SIGTERM))
attempt('limit', lambda: libc.prlimit64(node, 7, b'\\0' * 16, None))
attempt('choose processors', lambda: os.sched_setaffinity(node, {0}))
attempt('give priority', lambda: os.setpriority(os.PRIO_USER, 0, 19))
attempt('network', lambda: socket.socket())
attempt('ptrace', lambda: libc.ptrace(16, node, 0, 0))
for name in ('mem', 'environ', 'fd', 'root/etc/passwd', 'cwd'):
    attempt(name, lambda: os.open(f'/proc/{node}/{name}', os.O_RDONLY))
attempt('become root', lambda: os.setuid(0))
attempt('have rights', lambda: os.chroot('.'))
print(os.getuid())
";
    let mut run = tidemill_sandbox::Run::new(
        CodeSource::Program("/usr/bin/python3".into()),
        directory.join("run"),
    );
    let secret = directory.join("secret");
    run.args = vec!["-c".into(), format!("{ATTEMPTS}{script}")];
    run.args.push(secret.to_str().unwrap().into());
    run.inputs_as = tidemill_sandbox::InputsAs::Symlink;
    assert!(!LAUNCHER.has_users_of_kernels());
    assert_eq!(output(run), format!("{}\n", SAME_UID.uid));
    assert_eq!(fs::read(&secret).unwrap(), b"secret");
    // A kernel that is part of the program is confined in the same way.
    let place = Place::new();
    let mut run = place.run(CodeSource::Builtin("max".into()), &["dtype=u8"]);
    let input = place.path("data");
    fs::write(&input, [1, 7, 3]).unwrap();
    run.inputs.push(tidemill_sandbox::RunInput {
        name: "data".into(),
        path: input,
    });
    assert_eq!(output(run), "7\n");
}
