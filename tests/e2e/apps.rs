//! Tests applications that submit asynchronous requests. Semantics: docs/labels.md.

use crate::cluster::{Cluster, Options, OtherMount, wait};
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Id of a user without an account.
pub(crate) const USER: u32 = 1234;

pub(crate) struct Labels {
    mount: PathBuf,
    pub(crate) directory: PathBuf,
    user: u32,
}

impl Labels {
    pub(crate) fn of(cluster: &Cluster, user: u32) -> Self {
        let directory = cluster.path(&format!("labels-{user}"));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&directory)
            .unwrap();
        chown(&directory, Some(user), Some(user)).unwrap();
        Self {
            mount: cluster.at(""),
            directory,
            user,
        }
    }

    /// Uses an existing directory.
    pub(crate) fn again(cluster: &Cluster, user: u32, directory: PathBuf) -> Self {
        Self {
            mount: cluster.at(""),
            directory,
            user,
        }
    }

    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let tidemill = Path::new(env!("CARGO_BIN_EXE_tidemill"));
        let library = tidemill.with_file_name("deps/libtidemill_label.so");
        let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/labels");
        let mut command = Command::new(program);
        command.env("TIDEMILL_LABELS", &self.directory);
        command.env("TIDEMILL_MOUNT", &self.mount);
        command.env("TIDEMILL", tidemill);
        command.env("TIDEMILL_LABEL_LIBRARY", library);
        command.env("PYTHONPATH", examples);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command.uid(self.user).gid(self.user);
        command
    }

    /// Starts a Python program that has `app`, and prints.
    pub(crate) fn python(&self, script: &str) -> Child {
        self.python_reading(script, Stdio::inherit())
    }

    /// Starts the same with a standard input.
    fn python_reading(&self, script: &str, input: Stdio) -> Child {
        let prelude = "import os, sys\nfrom tidemill_label import *\napp = App('test')\n";
        let mut command = self.command("python3");
        command.arg("-c").arg(format!("{prelude}{script}"));
        command.stdin(input).stdout(Stdio::piped()).spawn().unwrap()
    }

    pub(crate) fn printed_by(&self, script: &str) -> String {
        let ended = self.python(script).wait_with_output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        String::from_utf8(ended.stdout).unwrap()
    }

    pub(crate) fn known(&self) -> serde_json::Value {
        let mut command = self.command(env!("CARGO_BIN_EXE_tidemill"));
        let output = command
            .args(["--json", "async", "status"])
            .output()
            .unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Returns whether scripts of jobs were left.
    fn has_scripts(&self) -> bool {
        let mut left = std::fs::read_dir(&self.directory).unwrap();
        left.any(|entry| {
            entry
                .unwrap()
                .path()
                .extension()
                .is_some_and(|end| end == "job")
        })
    }

    pub(crate) fn kill_agent(&self) {
        let pid = self.known()["agent"]
            .as_i64()
            .and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    pub(crate) fn start_agent(&self) {
        let mut command = self.command(env!("CARGO_BIN_EXE_tidemill"));
        assert!(
            command
                .args(["async", "agent", "--detach"])
                .status()
                .unwrap()
                .success()
        );
    }

    pub(crate) fn wait_until_done(&self) {
        wait("all labels are done", || {
            let known = self.known();
            assert_eq!(known["corrupt"].as_array().unwrap().len(), 0);
            known["applications"].as_array().unwrap().is_empty()
        });
    }
}

impl Drop for Labels {
    fn drop(&mut self) {
        self.kill_agent();
    }
}

/// Returns the next line that a program prints.
pub(crate) fn line(out: &mut ChildStdout) -> String {
    use std::io::Read;
    let mut line = Vec::new();
    let mut byte = [0];
    while out.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

const STEPS: usize = 1500;
const FILES: usize = 20;

/// Writes pieces of files in turn, and a log, and prints its progress.
const PUBLISHES: &str = "
for n in range(1500):
    app.write(f'tidemill:/w/{n % 20}', n // 20 * 100, b'%099d\\n' % n)
    last = app.append('tidemill:/w/log', b'%09d\\n' % n)
    if n % 300 == 150: app.rename(f'tidemill:/w/{n % 20}', f'tidemill:/w/{n % 20}')
    if n % 100 == 99: print(n, flush=True)
    if n % 250 == 249: last.wait()
print('all', flush=True)
sys.stdin.readline()
";

fn check_published(cluster: &Cluster) {
    let read = |name: String| std::fs::read_to_string(cluster.at(&name)).unwrap();
    for file in 0..FILES {
        let numbers = (file..STEPS).step_by(FILES);
        let expected: String = numbers.map(|n| format!("{n:099}\n")).collect();
        assert_eq!(read(format!("w/{file}")), expected, "{file}");
    }
    let expected: String = (0..STEPS).map(|n| format!("{n:09}\n")).collect();
    assert_eq!(read("w/log".into()), expected);
}

/// Agents are killed while they work, and the application is killed after it has published all labels: each label runs
/// once.
#[test]
fn application_labels_run_once_despite_kills() {
    let Some(cluster) = Cluster::with(Options::default()) else {
        return;
    };
    cluster.sh("mkdir w && chmod 777 w");
    let labels = Labels::of(&cluster, USER);
    let mut program = labels.python_reading(PUBLISHES, Stdio::piped());
    let mut out = program.stdout.take().unwrap();
    while line(&mut out) != "all" {
        labels.kill_agent();
    }
    // The log stays as long as the application, even if no label is left to run.
    labels.kill_agent();
    let left = labels.known();
    assert_eq!(left["applications"][0]["failed"], 0, "{left}");
    program.kill().unwrap();
    program.wait().unwrap();
    labels.start_agent();
    labels.wait_until_done();
    check_published(&cluster);
    let owner = cluster.sh("stat -c %u w/log");
    assert_eq!(owner.trim(), USER.to_string());
}

/// Puts files into a workspace and prints its progress.
const PUTS: &str = "
for n in range(600):
    app.put(f'workspace:/r/{n}', b'%09d' % n * (1 + n % 400))
    app.put('workspace:/r/last', b'%09d' % n)
    if n % 100 == 99: print(n, flush=True)
print('all', flush=True)
sys.stdin.readline()
";

const GETS: &str = "
for n in range(600):
    assert app.get(f'workspace:/r/{n}', 60) == b'%09d' % n * (1 + n % 400), n
while int(app.get('workspace:/r/last', 60)) < 599: pass
print('got all')
";

/// A program reads the complete bytes that another program puts into a workspace at once, also while server and agent are
/// down. The bytes are stored after the restart, although the writing program has ended.
#[test]
fn workspace_get_returns_put_at_once_despite_kills() {
    let Some(mut cluster) = Cluster::with(Options::default()) else {
        return;
    };
    cluster.run(&["workspace", "create", "r"]);
    cluster.sh("chown 1234:1234 workspaces/r");
    let labels = Labels::of(&cluster, USER);
    let gets = labels.python(GETS);
    let mut puts = labels.python_reading(PUTS, Stdio::piped());
    let mut out = puts.stdout.take().unwrap();
    loop {
        match line(&mut out).as_str() {
            "all" => break,
            "299" => cluster.kill_server(),
            "499" => cluster.start_server(),
            _ => labels.kill_agent(),
        }
    }
    let got = gets.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&got.stdout), "got all\n");
    labels.kill_agent();
    puts.kill().unwrap();
    puts.wait().unwrap();
    // Other users see stored files, and can get the files that they may read.
    let other_user = Labels::of(&cluster, 65534);
    let printed = other_user.printed_by(
        "try: app.get('workspace:/r/599')\nexcept OSError as error: print(error.errno)\n",
    );
    assert_ne!(printed, "");
    labels.start_agent();
    labels.wait_until_done();
    let sizes =
        cluster.sh("cd workspaces/r; cat last; for n in $(seq 0 599); do stat -c %s $n; done");
    let expected: String = (0..600)
        .map(|n| format!("{}\n", 9 * (1 + n % 400)))
        .collect();
    assert_eq!(sizes, format!("000000599{expected}"));
    let by_others = "
import subprocess
app.put('workspace:/r/a', b'mine').wait()
subprocess.run(['sh', '-c', f'echo theirs > {app_mount}/workspaces/r/b; mv {app_mount}/workspaces/r/b {app_mount}/workspaces/r/a'], check=True)
print(app.get('workspace:/r/a').decode())
";
    let mount = format!("app_mount = {:?}\n", cluster.at("").display().to_string());
    assert_eq!(
        labels.printed_by(&format!("{mount}{by_others}")),
        "theirs\n\n"
    );
}

/// While the mount is down, labels wait, and no file of theirs is written into the directory below the mountpoint.
#[test]
fn application_labels_wait_until_cluster_is_mounted() {
    let Some(mut cluster) = Cluster::with(Options::default()) else {
        return;
    };
    let directory = cluster.at("");
    {
        let labels = Labels::of(&cluster, 0);
        labels.printed_by("app.write('tidemill:/a', 0, b'before').wait()");
        labels.kill_agent();
        labels.printed_by(
            "
for n in range(100): app.append('tidemill:/b', b'%09d\\n' % n)
",
        );
        labels.kill_agent();
    }
    cluster.kill_mount();
    // The Linux kernel may still have the mount, without a process that serves it.
    let mut unmount = Command::new("umount");
    let _ = unmount
        .arg("-l")
        .arg(&directory)
        .stderr(Stdio::null())
        .status();
    let labels = Labels {
        mount: cluster.at(""),
        directory: cluster.path("labels-0"),
        user: 0,
    };
    labels.start_agent();
    std::thread::sleep(std::time::Duration::from_millis(300));
    // There is one file, which explains this, and no other.
    let below: Vec<_> = std::fs::read_dir(&directory).unwrap().collect();
    assert!(
        below.len() <= 1 && !directory.join("b").exists(),
        "{below:?}"
    );
    drop(labels);
    cluster.start_mount();
    let labels = Labels {
        mount: cluster.at(""),
        directory: cluster.path("labels-0"),
        user: 0,
    };
    labels.start_agent();
    labels.wait_until_done();
    let log = std::fs::read_to_string(cluster.at("b")).unwrap();
    let expected: String = (0..100).map(|n| format!("{n:09}\n")).collect();
    assert_eq!(log, expected);
}

/// After a successful wait all hosts see the bytes. A user without write permission gets an error that names the user.
#[test]
fn awaited_label_write_is_visible_on_other_hosts_with_user_rights() {
    let Some(cluster) = Cluster::with(Options::default()) else {
        return;
    };
    cluster.sh("mkdir w own && chmod 777 w && chmod 700 own");
    let other = OtherMount::start(&cluster, "m1");
    let labels = Labels::of(&cluster, USER);
    let there = other.path.join("w/f");
    let script = format!(
        "
for n in range(20):
    app.write('tidemill:/w/f', n, b'%c' % (97 + n)).wait()
    seen = open('{}').read()
    assert len(seen) == n + 1, seen
assert app.read('tidemill:/w/f', 3, 4).wait() == b'defg'
try: app.write('tidemill:/own/f', 0, b'x').wait()
except PermissionError as error: print(error)
",
        there.display()
    );
    let printed = labels.printed_by(&script);
    assert!(
        printed.contains("tidemill:/own/f: Permission denied"),
        "{printed}"
    );
    labels.wait_until_done();
}

/// On other hosts, errors of a file appear at its close: the label fails, or all its bytes are stored.
#[test]
fn label_wait_reports_errors_of_close() {
    let options = Options {
        nodes: 1,
        remote: true,
        capacity: Some("40MB"),
        ..Options::default()
    };
    let Some(cluster) = Cluster::with(options) else {
        return;
    };
    let labels = Labels::of(&cluster, 0);
    labels.printed_by(
        "
import time
mount = os.environ['TIDEMILL_MOUNT']
# More than a mount takes before it asks the node; less; and several labels that are written as one.
for size, labels in (8000000, 1), (3000000, 1), (500000, 6):
    for n in range(0, 48000000 // size, labels):
        of = [app.write(f'tidemill:/{n}', at * size, b'x' * size) for at in range(labels)]
        failed = 0
        for label in of:
            try: label.wait()
            except OSError as error: failed += 1
        if not failed: assert len(open(f'{mount}/{n}', 'rb').read()) == size * labels, n
        elif n: break
    assert failed, 'there was space for too much'
    for n in range(16 * 6):
        try: os.remove(f'{mount}/{n}')
        except FileNotFoundError: pass
    while os.statvfs(mount).f_bavail * os.statvfs(mount).f_frsize < 39000000: time.sleep(.05)
",
    );
}

/// An analysis reads the bytes of earlier labels and no later bytes, and a read of its output waits for the analysis.
/// Each analysis fails alone, with its reason.
#[test]
fn analysis_labels_run_in_order_with_other_labels() {
    let Some(cluster) = Cluster::with(Options::default()) else {
        return;
    };
    cluster.sh("mkdir w own && chmod 777 w && chmod 700 own");
    let labels = Labels::of(&cluster, USER);
    let printed = labels.printed_by(
        "
for n in range(5): app.append('tidemill:/w/in', b'%d\\n' % n)
out, head = 'tidemill:/w/lines', 'tidemill:/w/head'
lines = app.analyse('wc', ['-l', 'in'], inputs=['tidemill:/w/in'], outputs=[out], stdout=out, result=100)
app.append('tidemill:/w/in', b'later\\n')
seen = app.read(out, 0, 100)
again = app.analyse('sh', ['-c', 'cat lines; cat in | wc -l'], inputs=[out, 'tidemill:/w/in'], outputs=[head], stdout=head, result=3)
script = '''name = \"own\"; workdir = \"/w\"; tasks = ( { name = \"t\"; kernel = \"sh\"; args = [ \"-c\", \"cat head; exit 3\" ];
  input = [ \"head\" ]; output = [ \"o\" ]; stdout = \"o\"; retries = 0; } ); # no line behind it'''
own = app.job(script, after=again)
assert lines.wait() == b'5 in\\n' == seen.wait()
assert again.wait() == b'5 i'
app.flush()
assert open(os.environ['TIDEMILL_MOUNT'] + '/w/head').read() == '5 in\\n6\\n'
# What can't be, in the order of what is asked for.
label = lambda kernel, args=(), inputs=(), outputs=[out], **more: app.analyse(kernel, args, inputs, outputs, **more)
for wrong in [own, label('nosuchkernel'), label('wc', ['-l', 'none'], ['tidemill:/w/none']), label('true', outputs=['tidemill:/own/x']),
              label('a | '), app.job('none'), label('true', stdout='tidemill:/w/other'), label('cat', outputs=[out, out])]:
    try: wrong.wait(); print('done')
    except OSError as error: print(error)
own_directory = App('directory', os.environ['TIDEMILL_MOUNT'] + '/w')
try: own_directory.analyse('true', outputs=['tidemill:/x'])
except OSError as error: print(error)
for wrong in [dict(outputs=[]), dict(outputs=['/etc/x']), dict(inputs=['s3://x/y']), dict(result=1 << 40), dict(args=['x' * (17 << 20)])]:
    try: label('true', **wrong); print('published')
    except OSError as error: print(error)
",
    );
    let printed: Vec<_> = printed.lines().filter(|line| !line.is_empty()).collect();
    let expected = [
        "[Errno 5] the analysis failed: job ",
        "kernel \"nosuchkernel\" was not found",
        "input \"/w/none\" does not exist",
        "/own",
        "script:",
        "script:",
        "other",
        "lines",
        "no cluster is mounted on",
        "an analysis needs an output",
        "is not an address",
        "is not an address",
        "at most 1073741824 bytes",
        "the script and the result of a job have at most 16777216 bytes",
    ];
    for expected in expected {
        assert!(
            printed.iter().any(|line| line.contains(expected)),
            "{expected}: {printed:#?}"
        );
    }
    assert!(
        printed
            .iter()
            .all(|line| !["done", "published"].contains(line)),
        "{printed:#?}"
    );
    labels.wait_until_done();
    assert!(!labels.has_scripts());
}

/// Checks that the energy of an application's analyses is that of their jobs.
fn check_energy(cluster: &Cluster, labels: &Labels, runs: usize) {
    let app = labels.known()["applications"][0]["energy"].clone();
    assert_eq!(
        (&app["runs"], &app["runs_unknown"]),
        (&runs.into(), &0.into()),
        "{app}"
    );
    let jobs = cluster.json(&["job", "list", "--all"]);
    let drew = |job: &serde_json::Value| job["energy"]["joules_above_idle"].as_f64().unwrap();
    let jobs: f64 = jobs.as_array().unwrap().iter().map(drew).sum();
    let app = app["joules_above_idle"].as_f64().unwrap();
    assert!(
        app > 0.0 && (app - jobs).abs() < 0.001 * 10.0,
        "{app} {jobs}"
    );
}

/// Ten analyses, whose agent is killed at as many steps.
const ANALYSES: &str = "
import time
def kill():
    try: os.kill(int(open(os.environ['TIDEMILL_LABELS'] + '/agent.lock').read()), 9)
    except (OSError, ValueError): pass
for n in range(10):
    out = f'tidemill:/w/{n}'
    app.write('tidemill:/w/in', 0, b'%d' % n)
    label = app.analyse('sh', ['-c', 'sleep 0.05; cat in'], ['tidemill:/w/in'], [out], stdout=out, result=9)
    time.sleep(n * n * 0.001)
    kill()
    assert label.wait() == b'%d' % n
print('done', flush=True)
time.sleep(600)
";

/// If any process is killed at any step, each job exists once, its label reports the outcome, and its energy counts
/// once.
#[test]
fn analysis_label_becomes_one_job_despite_kills() {
    let Some(mut cluster) = Cluster::with(Options {
        node_args: ["--busy-power=100 W", "--idle-power=50 W"]
            .map(str::to_owned)
            .into(),
        ..Options::default()
    }) else {
        return;
    };
    cluster.sh("mkdir w && chmod 777 w");
    let labels = Labels::of(&cluster, USER);
    let mut program = labels.python(ANALYSES);
    assert_eq!(line(program.stdout.as_mut().unwrap()), "done");
    check_energy(&cluster, &labels, 10);
    program.kill().unwrap();
    program.wait().unwrap();
    let jobs = || {
        cluster
            .sh(&format!("cat .tidemill/{USER}/joblist"))
            .lines()
            .count()
    };
    assert_eq!(jobs(), 10);
    let mut program = labels.python(
        "
wait = lambda n, s: app.analyse('sleep', [str(s)], outputs=[f'tidemill:/w/s{n}'], stdout=f'tidemill:/w/s{n}')
long, other, short = wait(0, 60), wait(1, 60), wait(2, 2)
free = app.write('tidemill:/w/free', 0, b'x')
behind = app.write('tidemill:/w/s0', 0, b'behind')
free.wait()
print('begun', flush=True)
assert short.wait() == b''
assert not long.test() and not behind.test() and behind.cancel()
assert long.cancel()
for label in [long, other, behind]:
    try: label.wait(); print('done')
    except OSError as error: print(error.errno, flush=True)
",
    );
    let mut out = program.stdout.take().unwrap();
    assert_eq!(line(&mut out), "begun");
    let directory = labels.directory.clone();
    drop(labels);
    cluster.kill_server();
    cluster.start_server();
    assert_eq!(line(&mut out), libc_canceled());
    let labels = Labels {
        mount: cluster.at(""),
        directory,
        user: USER,
    };
    // Another user cancels the jobs.
    let list = cluster.sh(&format!("cat .tidemill/{USER}/joblist"));
    for job in list.lines().filter_map(|line| line.rsplit_once(' ')) {
        cluster.run(&["job", "cancel", job.1]);
    }
    assert_eq!(
        (line(&mut out), line(&mut out)),
        (libc_canceled(), libc_canceled())
    );
    assert!(program.wait().unwrap().success());
    assert_eq!(list.lines().count(), 13, "{list}");
    labels.wait_until_done();
}

/// A key makes repeated and concurrent submissions one job, and only for its user.
#[test]
fn job_with_submission_id_is_submitted_once() {
    let Some(cluster) = Cluster::with(Options::default()) else {
        return;
    };
    cluster.sh("mkdir w && chmod 777 w");
    let script = |output: &str| {
        format!(
            "name = \"j\"; workdir = \"/w\"; submission-id = \"word\"; \
             tasks = ( {{ name = \"t\"; kernel = \"true\"; output = [ \"{output}\" ]; stdout = \"{output}\"; }} );"
        )
    };
    let path = cluster.path("submission-id.conf");
    std::fs::write(&path, script("x")).unwrap();
    let submit = || {
        let mut command = cluster.tidemill();
        let output = command.args(["--json", "submit"]).arg(&path).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        let reply: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        reply["job"].as_u64().unwrap()
    };
    let jobs: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(submit)).collect();
        let jobs = threads.into_iter().map(|thread| thread.join().unwrap());
        jobs.collect()
    });
    assert_eq!(jobs, vec![jobs[0]; 4]);
    cluster.done(jobs[0]);
    // The output exists, so a new submission would be refused; a repeated one does not check it.
    assert_eq!(
        (submit(), cluster.submit(&script("none/x"))),
        (jobs[0], jobs[0])
    );
    cluster.sh(&format!("echo '{}' > w/theirs.conf", script("y")));
    let labels = Labels::of(&cluster, USER);
    labels.printed_by(
        "
at = os.environ['TIDEMILL_MOUNT']
say = lambda name, line: os.write(os.open(f'{at}/.tidemill/{os.getuid()}/{name}', os.O_WRONLY), line.encode() + b'\\n')
for n in range(2): say('submit', f'{at}/w/theirs.conf')
try: say('cancel', 'nothing'); assert False
except OSError as error: assert error.errno == 22
",
    );
    let list = cluster.sh(&format!("cat .tidemill/{USER}/joblist"));
    assert_eq!(list.lines().count(), 1, "{list}");
    // The submission key is deleted with the job.
    assert!(cluster.run(&["job", "delete", &jobs[0].to_string()]).ok);
    cluster.sh("rm w/x");
    assert_ne!(submit(), jobs[0]);
}

/// Returns `ECANCELED` in the form in which a program prints it.
fn libc_canceled() -> String {
    rustix::io::Errno::CANCELED.raw_os_error().to_string()
}
