//! Tests unchanged programs without a mount: `tidemill exec`.

use crate::cluster::{Cluster, Options, Printed, copy_program, printed, wait};
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns the path of the built library.
fn library() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_tidemill")).with_file_name("deps/libtidemill_preload.so")
}

/// Starts a cluster without a mount.
fn unmounted() -> Option<Cluster> {
    Cluster::with(Options {
        mount: false,
        ..Options::default()
    })
}

fn args_of(cluster: &Cluster) -> Vec<OsString> {
    cluster.tidemill().get_args().map(OsStr::to_owned).collect()
}

/// Programs that see a cluster below `/t`, and the process with their file system.
pub(crate) struct Programs {
    /// Arguments with which `tidemill` finds the cluster.
    cluster: Vec<OsString>,
    pub(crate) directory: PathBuf,
    flags: Vec<String>,
}

impl Programs {
    fn of(cluster: &Cluster) -> Self {
        Self::with(cluster, "preload", &[])
    }

    pub(crate) fn with(cluster: &Cluster, name: &str, flags: &[&str]) -> Self {
        Self {
            cluster: args_of(cluster),
            directory: cluster.path(name),
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
        }
    }

    /// Makes programs that read all bytes as from another host.
    fn distant(cluster: &Cluster) -> Self {
        Self::with(cluster, "distant", &["--in-place", "false"])
    }

    /// Makes the same with files that are stored after their close.
    pub(crate) fn asynchronous(cluster: &Cluster, name: &str) -> Self {
        Self::with(cluster, name, &["--in-place", "false", "--async"])
    }

    fn tidemill(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidemill"));
        command.args(&self.cluster);
        command
    }

    /// Returns the same directory for another cluster.
    pub(crate) fn of_other(&self, cluster: &Cluster) -> Self {
        Self {
            cluster: args_of(cluster),
            directory: self.directory.clone(),
            flags: self.flags.clone(),
        }
    }

    pub(crate) fn add(&mut self, flags: &[&str]) {
        let flags = flags.iter().map(|flag| (*flag).to_owned());
        self.flags.extend(flags);
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = self.tidemill();
        command.arg("exec").arg("--data-dir").arg(&self.directory);
        command.arg("--library").arg(library());
        command.args(&self.flags).arg("--");
        command
    }

    pub(crate) fn try_sh(&self, script: &str) -> Printed {
        let script = format!("set -euo pipefail; cd /t; {script}");
        let mut command = self.command();
        printed(command.args(["bash", "-c", &script]).output().unwrap())
    }

    pub(crate) fn sh(&self, script: &str) -> String {
        let printed = self.try_sh(script);
        assert!(
            printed.ok,
            "{script}\n{}{}{}",
            printed.out,
            printed.err,
            self.log()
        );
        printed.out
    }

    fn python(&self, script: &str) -> String {
        let mut command = self.command();
        let printed = printed(command.args(["python3", "-c", script]).output().unwrap());
        assert!(
            printed.ok,
            "{script}\n{}{}{}",
            printed.out,
            printed.err,
            self.log()
        );
        printed.out
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// Waits until all closed files are stored.
    pub(crate) fn try_wait(&self) -> Printed {
        let mut command = self.tidemill();
        command.arg("exec").arg("--data-dir").arg(&self.directory);
        let flags = self.flags.iter().filter(|flag| *flag != "--async");
        printed(command.args(flags).arg("--wait").output().unwrap())
    }

    fn wait(&self) {
        let printed = self.try_wait();
        assert!(printed.ok, "{}{}{}", printed.out, printed.err, self.log());
        assert_eq!(printed.out, "");
    }

    /// Returns whether the file system has a file open.
    pub(crate) fn has_open(&self, path: &Path) -> bool {
        let open = format!("/proc/{}/fd", self.process().as_raw_nonzero());
        let mut open = std::fs::read_dir(open).unwrap().flatten();
        open.any(|fd| std::fs::read_link(fd.path()).is_ok_and(|open| open == path))
    }

    /// Returns the process with the file system.
    fn process(&self) -> rustix::process::Pid {
        self.found().unwrap()
    }

    fn found(&self) -> Option<rustix::process::Pid> {
        let wanted = std::fs::canonicalize(self.directory.join("serving")).ok()?;
        let processes = std::fs::read_dir("/proc").ok()?.flatten();
        let found = processes
            .filter(|entry| {
                let open = std::fs::read_dir(entry.path().join("fd")).into_iter();
                let mut open = open.flatten().flatten();
                open.any(|fd| std::fs::read_link(fd.path()).is_ok_and(|path| path == wanted))
            })
            .find_map(|entry| entry.file_name().to_str()?.parse().ok());
        rustix::process::Pid::from_raw(found?)
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(self.process(), signal).unwrap();
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        if !self.directory.join("s").exists() {
            return;
        }
        if std::thread::panicking() {
            // The process may hold files that it cannot store, and would try again and again.
            if let Some(process) = self.found() {
                let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
            }
        } else {
            self.signal(rustix::process::Signal::TERM);
            wait("the file system has ended", || {
                !self.directory.join("s").exists()
            });
        }
    }
}

/// File operations of coreutils and the shell, in a directory of their own.
const COREUTILS: &str = r#"
mkdir -p w/deep/er; cd w; test "$(pwd)" = "/t/$D/w"
echo one > a; echo two >> a; cat a | tr a-z A-Z > b; test "$(cat a b | wc -l)" = 4
cat > here <<END
some text
END
cp a deep/c; cp -a deep deep2; mv deep2/c deep2/d; diff a deep2/d
dd if=/dev/urandom of=r bs=4k count=300 status=none; dd if=r of=r2 bs=1000 status=none; cmp r r2
printf 0123456789 | dd of=r bs=1 seek=100 conv=notrunc status=none; ! cmp -s r r2; test "$(stat -c %s r)" = "$(stat -c %s r2)"
ln -s deep/c l; test "$(readlink l)" = deep/c; cat l >/dev/null; ln a hard; test "$(stat -c %h a)" = 2
touch -d 2001-02-03 a; test "$(stat -c %Y a)" = "$(date -d 2001-02-03 +%s)"; cp -p a p; test "$(stat -c %Y p)" = "$(stat -c %Y a)"
chmod 640 a; test "$(stat -c %a a)" = 640; truncate -s 5 b; test "$(stat -c %s b)" = 5
test "$(ls)" = "$(printf '%s\n' a b deep deep2 hard here l p r r2)"; ls -la > /dev/null
test "$(find . -type f | wc -l)" = 9; test "$(find . -name d)" = ./deep2/d
seq 20000 | sort -R > s; sort -n -T . -S 32k s > s2; test "$(sed -n 777p s2)" = 777; sort -n -o s s; cmp s s2
tar cf t.tar deep deep2; mkdir x; tar xf t.tar -C x; diff -r deep x/deep
{ echo left; ls /t/nothing || true; } > out 2>&1; grep -q left out; grep -q nothing out
exec 5<> both; echo text >&5; exec 5>&-; test "$(cat both)" = text
test -e a -a -d deep -a ! -e none; test "$(realpath l)" = "/t/$D/w/deep/c"
(cd deep; cd ..; test "$(basename $PWD)" = w; cat ../w/a >/dev/null); test "$(sh -c 'cd deep && pwd')" = "/t/$D/w/deep"
cat a | tee q1 q2 | wc -c > /dev/null; cmp q1 q2; head -c 3 a > h; tail -c 3 a >> h; wc -c < h | grep -qx 6
printf '#!/bin/sh\necho script $1 $0\n' > run; chmod 755 run; test "$(./run x)" = "script x ./run"
cp /bin/echo prog; chmod 755 prog; test "$(./prog yes)" = yes; test "$(env ./prog yes)" = yes
cat < a > copy; sed -i s/one/three/ copy; grep -q three copy; mktemp -p . XXXXXX > name; test -e "$(cat name)"
cd ..; rm -r w/deep w/x; ! test -e w/deep
"#;

fn coreutils(programs: &Programs, name: &str) {
    programs.sh(&format!("export D={name}; mkdir $D; cd $D; {COREUTILS}"));
}

const PYTHON: &str = r"
import os, mmap, shutil, tempfile, sqlite3, subprocess, fcntl, threading, io
os.chdir('/t'); os.makedirs('py/sub'); os.chdir('py')
assert os.getcwd() == '/t/py', os.getcwd()
with open('a', 'w') as f: f.write('text'); f.flush(); assert os.fstat(f.fileno()).st_size == 4
st = os.stat('a'); fd = os.open('a', os.O_RDWR)
assert (os.fstat(fd).st_ino, os.fstat(fd).st_dev) == (st.st_ino, st.st_dev)
os.ftruncate(fd, 8192); m = mmap.mmap(fd, 8192); m[4096:4100] = b'page'; m.flush(); m.close()
os.fsync(fd); os.pwrite(fd, b'x', 8191); assert os.lseek(fd, 0, os.SEEK_END) == 8192; os.close(fd)
data = open('a', 'rb').read(); assert data[:4] == b'text' and data[4096:4100] == b'page' and data[-1:] == b'x'
with open('log', 'a') as f: f.write('1')
with open('log', 'a') as f: f.write('2')
assert open('log').read() == '12'
shutil.copytree('/t/py', '/t/py2'); assert sorted(os.listdir('/t/py2')) == ['a', 'log', 'sub']
os.rename('/t/py2/log', '/t/py/sub/log'); os.replace('sub/log', 'log2'); os.link('log2', 'log3')
assert os.stat('log3').st_nlink == 2; os.unlink('log3'); os.symlink('log2', 'ln'); assert os.readlink('ln') == 'log2'
os.chmod('a', 0o600); os.utime('a', (5, 7)); assert os.stat('a').st_mtime == 7
os.setxattr('a', 'user.note', b'value'); assert os.getxattr('a', 'user.note') == b'value'
assert 'user.note' in os.listxattr('a'); os.removexattr('a', 'user.note')
dirfd = os.open('sub', os.O_RDONLY); f = os.open('in', os.O_CREAT | os.O_WRONLY, dir_fd=dirfd); os.write(f, b'z'); os.close(f)
assert os.listdir(dirfd) == ['in']; os.fchdir(dirfd); assert open('in').read() == 'z'; os.chdir('..')
try: open('none'); assert False
except FileNotFoundError: pass
try: os.open('sub', os.O_WRONLY); assert False
except IsADirectoryError: pass
try: os.rmdir('sub'); assert False
except OSError as e: assert e.errno == 39, e
db = sqlite3.connect('db.sqlite'); db.execute('create table t (a)')
db.executemany('insert into t values (?)', [(i,) for i in range(1000)]); db.commit()
db.execute('begin immediate'); db.execute('insert into t values (1)'); db.rollback()
other = sqlite3.connect('db.sqlite', timeout=0.1); assert other.execute('select count(*) from t').fetchone() == (1000,)
db.execute('begin immediate')
try: other.execute('insert into t values (1)'); assert False
except sqlite3.OperationalError: pass
db.commit(); db.close(); other.close()
assert sqlite3.connect('/t/py/db.sqlite').execute('pragma integrity_check').fetchone() == ('ok',)
r = subprocess.run(['pwd'], cwd='/t/py/sub', capture_output=True, text=True, check=True); assert r.stdout == '/t/py/sub\n', r
with open('out', 'w') as f: subprocess.run('echo child; ls', shell=True, stdout=f, check=True)
assert open('out').read().startswith('child\n')
f = open('lock', 'w'); fcntl.flock(f, fcntl.LOCK_EX); g = open('lock', 'w')
try: fcntl.flock(g, fcntl.LOCK_EX | fcntl.LOCK_NB); assert False
except BlockingIOError: pass
fcntl.flock(f, fcntl.LOCK_UN); fcntl.flock(g, fcntl.LOCK_EX | fcntl.LOCK_NB); fcntl.lockf(f, fcntl.LOCK_EX); f.close(); g.close()
with tempfile.NamedTemporaryFile(dir='/t/py') as f: f.write(b'x'); assert os.path.dirname(f.name) == '/t/py'
def work(n):
    for i in range(20):
        p = f'/t/py/thread-{n}-{i}'
        with open(p, 'w') as f: f.write(p)
        assert open(p).read() == p and os.stat(p).st_size == len(p); os.unlink(p)
threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
pid = os.fork()
if pid == 0: open('/t/py/child', 'w').write('forked'); os._exit(0)
os.waitpid(pid, 0); assert open('child').read() == 'forked'
with open('big', 'wb') as f: f.write(os.urandom(9_000_001))
fd = os.open('big', os.O_RDWR); os.pwrite(fd, b'Q' * 10, 5_000_000); os.close(fd)
b = open('big', 'rb').read(); assert len(b) == 9_000_001 and b[5_000_000:5_000_010] == b'Q' * 10
print('all')
";

#[test]
fn unmodified_programs_work_under_preload_as_on_disk() {
    let Some(cluster) = unmounted() else { return };
    let asynchronous = Programs::asynchronous(&cluster, "asynchronous");
    for programs in [
        Programs::of(&cluster),
        Programs::distant(&cluster),
        asynchronous,
    ] {
        let name = programs.directory.file_name().unwrap().to_str().unwrap();
        coreutils(&programs, name);
        assert_eq!(programs.python(PYTHON), "all\n");
        programs.sh("rm -r py py2; printf '#include <stdio.h>\nint main(void){puts(\"compiled\");}' > m.c; gcc -o m m.c; test $(./m) = compiled; rm m m.c");
        // Existing files are visible to all.
        programs.wait();
        assert_eq!(
            cluster.run(&["cat", &format!("/{name}/w/here")]).out,
            "some text\n"
        );
    }
}

#[test]
fn mount_and_preload_see_files_of_each_other() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let (near, far) = (Programs::of(&cluster), Programs::distant(&cluster));
    cluster.sh("echo mount > a; mkdir d");
    for (index, programs) in [&near, &far].into_iter().enumerate() {
        assert_eq!(programs.sh("cat a"), "mount\n");
        programs.sh(&format!(
            "echo program > d/p{index}; mv a b; echo more >> b"
        ));
        assert_eq!(
            cluster.sh(&format!("cat d/p{index} b; mv b a; echo mount > a")),
            "program\nmount\nmore\n"
        );
    }
    assert_eq!(far.sh("cat d/p0; echo three > d/p0"), "program\n");
    assert_eq!(near.sh("cat d/p0; rm d/p0"), "three\n");
    assert_eq!(cluster.sh("ls d"), "p1\n");
}

#[test]
fn written_bytes_survive_any_kill_under_preload() {
    let Some(cluster) = unmounted() else { return };
    for programs in [Programs::of(&cluster), Programs::distant(&cluster)] {
        let name = programs
            .directory
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        let file = format!("/t/writer-{name}");
        // A killed writer has closed its file.
        let mut command = programs.command();
        let script = format!("exec 3> {file}; echo written >&3; echo ready; exec sleep 1000");
        command.args(["bash", "-c", &script]).stdout(Stdio::piped());
        let mut writer = command.spawn().unwrap();
        let mut line = String::new();
        let out = writer.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
        assert_eq!(line, "ready\n");
        let elsewhere = || cluster.run(&["cat", &file[2..]]).out;
        assert_eq!(elsewhere(), "", "it is open");
        writer.kill().unwrap();
        writer.wait().unwrap();
        wait("the written bytes are sealed", || {
            elsewhere() == "written\n"
        });
        // The file system is killed: its programs get an error, the next program has another file system.
        let script = format!("exec 3< {file}; echo ready; read; cat <&3; cat {file} || echo gone");
        let mut command = programs.command();
        command.args(["bash", "-c", &script]);
        let mut reader = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut out = std::io::BufReader::new(reader.stdout.take().unwrap());
        let mut line = String::new();
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        programs.signal(rustix::process::Signal::KILL);
        drop(reader.stdin.take());
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut out, &mut rest).unwrap();
        reader.wait().unwrap();
        assert_eq!(rest, "written\ngone\n");
        assert_eq!(programs.sh(&format!("cat {file}")), "written\n");
    }
}

#[test]
fn preload_refuses_unsuitable_programs() {
    let Some(cluster) = unmounted() else { return };
    let programs = Programs::of(&cluster);
    let refused = |program: &str, why: &str| {
        let mut command = programs.command();
        let printed = printed(command.arg(program).output().unwrap());
        assert!(
            !printed.ok && printed.err.contains(why),
            "{program}: {}",
            printed.err
        );
    };
    let built = |name: &str, flags: &[&str]| {
        let (source, path) = (cluster.path("p.c"), cluster.path(name));
        std::fs::write(&source, "int main(void) { return 0; }").unwrap();
        let mut command = Command::new("gcc");
        let done = command
            .args(flags)
            .arg("-o")
            .arg(&path)
            .arg(&source)
            .status();
        assert!(done.unwrap().success());
        path
    };
    let fixed = built("static", &["-static"]);
    refused(fixed.to_str().unwrap(), "is linked statically");
    let script = cluster.path("script");
    std::fs::write(&script, format!("#!{}\n", fixed.display())).unwrap();
    refused(script.to_str().unwrap(), "is run by");
    let go = built("go", &[]);
    let section = Command::new("objcopy")
        .args(["--add-section", ".go.buildinfo=/dev/null"])
        .arg(&go)
        .status();
    assert!(section.unwrap().success());
    refused(go.to_str().unwrap(), "is a Go program");
    let other = built("setuid", &[]);
    std::os::unix::fs::chown(&other, Some(4_000_001), None).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    std::fs::set_permissions(&other, mode).unwrap();
    refused(other.to_str().unwrap(), "set-user-id");
    refused("no-such-program", "no program");
    let mut command = cluster.tidemill();
    let printed = printed(
        command
            .args(["exec", "--prefix", "/", "--", "ls"])
            .output()
            .unwrap(),
    );
    assert!(printed.err.contains("not /"), "{}", printed.err);
}

#[test]
fn preload_programs_started_together_share_file_system() {
    let Some(cluster) = unmounted() else { return };
    for name in ["together", "again"] {
        let programs = Programs::with(&cluster, name, &[]);
        let started: Vec<_> = (0..6)
            .map(|number| {
                let mut command = programs.command();
                let script = format!("echo {number} > /t/{name}-{number}");
                command.args(["bash", "-c", &script]).stderr(Stdio::piped());
                command.spawn().unwrap()
            })
            .collect();
        for program in started {
            let printed = printed(program.wait_with_output().unwrap());
            assert!(printed.ok, "{}{}", printed.err, programs.log());
        }
        assert_eq!(programs.sh(&format!("cat {name}-*")), "0\n1\n2\n3\n4\n5\n");
    }
}

/// Returns program and library in a directory that users can reach, unlike the build directory.
fn installed() -> tempfile::TempDir {
    let own = tempfile::tempdir().unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(own.path(), mode).unwrap();
    copy_program(&own.path().join("tidemill"));
    std::fs::copy(library(), own.path().join("libtidemill_preload.so")).unwrap();
    own
}

/// Starts a file system for all users; returns its directory, too.
fn everybody(cluster: &Cluster) -> (std::process::Child, PathBuf) {
    std::fs::set_permissions(
        cluster.path(""),
        std::os::unix::fs::PermissionsExt::from_mode(0o711),
    )
    .unwrap();
    let directory = cluster.path("everybody");
    let mut command = cluster.tidemill();
    command
        .args(["exec", "--serve", "--allow-other", "--data-dir"])
        .arg(&directory);
    let serving = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait("it is served", || directory.join("s").exists());
    (serving, directory)
}

const USER: u32 = 4_000_011;

#[test]
fn users_keep_their_own_rights_under_preload() {
    let Some(cluster) = unmounted() else { return };
    let (mut serving, directory) = everybody(&cluster);
    let programs = Programs::with(&cluster, "everybody", &[]);
    programs.sh("mkdir open private; chmod 1777 open; chmod 700 private; echo secret > private/s; echo public > p; echo x > open/root");
    let own = installed();
    let run = |script: &str| {
        let mut command = Command::new(own.path().join("tidemill"));
        command
            .uid(USER)
            .gid(USER)
            .current_dir("/")
            .env("HOME", "/nonexistent");
        command.args(["exec", "--data-dir"]).arg(&directory);
        printed(command.args(["--", "bash", "-c", script]).output().unwrap())
    };
    let mine = run(
        "cd /t; cat p; echo mine > open/mine; stat -c %u open/mine; umask 077; echo > open/n; stat -c %a open/n",
    );
    assert_eq!(mine.out, format!("public\n{USER}\n600\n"), "{}", mine.err);
    for refused in [
        "cat private/s",
        "echo > new",
        "echo >> p",
        "rm -f open/root",
        "chmod 777 p",
        "ls private",
        "truncate -s 0 p",
        "mv open/root open/r2",
    ] {
        let printed = run(&format!("cd /t; {refused}"));
        assert!(!printed.ok, "{refused}");
        assert!(printed.err.contains("ermi"), "{refused}: {}", printed.err);
    }
    assert_eq!(
        programs.sh("cat p private/s open/root open/mine"),
        "public\nsecret\nx\nmine\n"
    );
    // A file system of one user serves only that user.
    let only = Programs::of(&cluster);
    only.sh("true");
    let mut command = Command::new(own.path().join("tidemill"));
    command
        .uid(USER)
        .gid(USER)
        .current_dir("/")
        .args(["exec", "--data-dir"])
        .arg(&only.directory);
    let printed = printed(command.args(["--", "cat", "/t/p"]).output().unwrap());
    assert!(
        !printed.ok && !printed.out.contains("public"),
        "{}",
        printed.out
    );
    drop(programs);
    serving.wait().unwrap();
}

#[test]
fn preload_waits_for_server_and_open_files_continue() {
    let Some(mut cluster) = unmounted() else {
        return;
    };
    let mut command = {
        let programs = Programs::of(&cluster);
        programs.sh("echo before > f");
        let command = programs.command();
        std::mem::forget(programs);
        command
    };
    let script = "exec 3>> /t/f; echo ready; read; echo while >&3; cat /t/f; echo after > /t/g; exec 3>&-; cat /t/g";
    command.args(["bash", "-c", script]);
    let mut program = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = std::io::BufReader::new(program.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    cluster.kill_server();
    drop(program.stdin.take());
    std::thread::sleep(std::time::Duration::from_secs(1));
    cluster.start_server();
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut out, &mut rest).unwrap();
    assert!(program.wait().unwrap().success());
    assert_eq!(rest, "before\nwhile\nafter\n");
    let programs = Programs::of(&cluster);
    wait("it is sealed", || {
        cluster.run(&["cat", "/f"]).out == "before\nwhile\n"
    });
    drop(programs);
}

/// Tries to open a file below a directory, and to list the directory, by its number.
const BY_NUMBER: &str = r"
import socket, struct, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1); s.connect(sys.argv[1])
for op, path in [(1, b's'), (4, b''), (2, b'')]:
    s.send(struct.pack('<14Q', 1, op, 0, 0, int(sys.argv[2]), 0, 0, 0, 0, 0, len(path), 0, 0, 2) + path + b'/t')
    print(struct.unpack('<Q', s.recv(65536)[:8])[0], end=' ')
s.send(b'x' * 50); print(struct.unpack('<Q', s.recv(65536)[:8])[0])
";

#[test]
fn preload_directory_by_number_gives_no_more_rights_than_path() {
    let Some(cluster) = unmounted() else { return };
    let (mut serving, directory) = everybody(&cluster);
    let programs = Programs::with(&cluster, "everybody", &[]);
    let script = "mkdir -p private/in open; chmod 755 private/in open; echo > private/in/s; echo > open/s; chmod 700 private";
    programs.sh(script);
    let ask = |path: &str| {
        let number = programs.sh(&format!("stat -c %i {path}"));
        let mut command = Command::new("/usr/bin/python3");
        command
            .uid(USER)
            .gid(USER)
            .current_dir("/")
            .args(["-c", BY_NUMBER]);
        command.arg(directory.join("s")).arg(number.trim());
        let printed = printed(command.output().unwrap());
        assert!(printed.ok, "{}", printed.err);
        printed.out
    };
    let denied = rustix::io::Errno::ACCESS.raw_os_error();
    let unknown = rustix::io::Errno::PROTO.raw_os_error();
    assert_eq!(
        ask("private/in"),
        format!("{denied} {denied} {denied} {unknown}\n")
    );
    assert_eq!(ask("open"), format!("0 0 0 {unknown}\n"));
    drop(programs);
    serving.wait().unwrap();
}
