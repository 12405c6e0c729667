//! Tests small new files that labels write, many at a time. Semantics: docs/labels.md, docs/semantics.md.

use crate::apps::{Labels, line};
use crate::cluster::{Cluster, Options, OtherMount, wait};
use rustix::process::Signal;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// Id of a user without an account.
const USER: u32 = 1234;

/// Calls of `new-files`, for scripts in Python.
const CALL: &str = "
import errno, os, struct, sys
def call(*files):
    body = b'TMNF' + struct.pack('<II', 1, len(files))
    for directory, name, data in files:
        body += struct.pack('<QIII', directory, 0o640, len(name), len(data)) + name + data
    return body
def opened(): return os.open(f'.tidemill/{os.geteuid()}/new-files', os.O_RDWR)
def made(handle, body, count):
    try: assert os.pwrite(handle, body, 0) == len(body)
    except OSError as error:
        reported = os.pread(handle, 65536, 0)
        return error.errno, list(struct.unpack(f'<{len(reported) // 4}i', reported))
    reported = os.pread(handle, 65536, 0)
    assert reported == bytes(4 * count), reported
    return 0, [0] * count
";

/// There are more files than are kept open. Each has its bytes, mode, owner and group, and is visible to others, too,
/// after its label was waited for. A file that exists already is written, not created. A file that is forbidden or
/// fails is reported by its label alone.
#[test]
fn many_new_files_equal_files_created_one_by_one() {
    let Some(cluster) = Cluster::with(Options::default()) else {
        return;
    };
    cluster.sh(
        "mkdir w own w/g w/directory && chmod 777 w && chmod 700 own && chgrp 77 w/g && chmod 2777 w/g
         printf 0123456789 > w/there && chmod 666 w/there && ln -s target w/link",
    );
    let other = OtherMount::start(&cluster, "m1");
    let labels = Labels::of(&cluster, USER);
    let script = format!(
        "
def bytes_of(n): return b'%d ' % n * (n % 40)
good = {{f'w/{{n}}': bytes_of(n) for n in range(600)}}
good.update({{f'w/g/{{n}}': b'g' for n in range(5)}})
good.update({{'w/there': b'ab', 'w/link': b'through it', 'w/large': b'x' * 70000, 'w/./dot': b'dot'}})
bad = {{'own/f': 'PermissionError', 'none/f': 'FileNotFoundError', 'w/directory': 'IsADirectoryError',
       'w/' + 'n' * 256: 'OSError', 'w/there/f': 'NotADirectoryError'}}
# Beginnings of files, and what comes behind in labels of their own.
steps = [app.write(f'tidemill:/w/steps-{{n}}', at * 10, b'%09d\\n' % at) for n in range(20) for at in range(30)]
of = {{path: app.write('tidemill:/' + path, 0, good.get(path, b'x')) for path in [*good, *bad]}}
durable = app.write('tidemill:/w/durable', 0, b'd', DURABLE)
for path, label in of.items():
    try:
        label.wait()
        assert path in good, path
    except OSError as error: assert bad.get(path) == type(error).__name__, (path, error)
for label in steps + [durable]: label.wait()
good['w/there'], good['w/target'] = b'ab23456789', b'through it'
good.update({{f'w/steps-{{n}}': b''.join(b'%09d\\n' % at for at in range(30)) for n in range(20)}})
for mount in os.environ['TIDEMILL_MOUNT'], '{}':
    for path, data in good.items():
        read = open(f'{{mount}}/{{path}}', 'rb').read()
        assert read == data, (mount, path, read[:50])
    assert len(os.listdir(mount + '/w')) == 600 + 20 + 8, len(os.listdir(mount + '/w'))
    for path in 'w/1', 'w/599': assert os.stat(f'{{mount}}/{{path}}').st_mode == 0o100644, path
    is_ = os.stat(f'{{mount}}/w/3')
    assert (is_.st_uid, is_.st_gid, is_.st_nlink, os.stat(f'{{mount}}/w/g/3').st_gid) == ({USER}, {USER}, 1, 77)
# They were made by calls: the agent has the file of these open.
agent = int(open(os.environ['TIDEMILL_LABELS'] + '/agent.lock').read())
links = [os.readlink(f'/proc/{{agent}}/fd/{{fd}}') for fd in os.listdir(f'/proc/{{agent}}/fd')]
assert any(link.endswith('/new-files') for link in links), links
",
        other.path.display()
    );
    labels.printed_by(&script);
    // An application that gets only a directory is not misled by another directory with the name of the control directory.
    labels.printed_by(
        "
mount = os.environ['TIDEMILL_MOUNT'] + '/w'
os.makedirs(f'{mount}/.tidemill/{os.geteuid()}')
open(f'{mount}/.tidemill/{os.geteuid()}/new-files', 'w').close()
directory = App('directory', mount)
for label in [directory.write(f'tidemill:/in-{n}', 0, b'%d' % n) for n in range(300)]: label.wait()
for n in range(300):
    assert open(f'{mount}/in-{n}').read() == str(n), n
    os.remove(f'{mount}/in-{n}')
assert os.path.getsize(f'{mount}/.tidemill/{os.geteuid()}/new-files') == 0
import shutil
shutil.rmtree(f'{mount}/.tidemill')
",
    );
    labels.wait_until_done();
    // The entries that the Linux kernel cached for the directory are not shown any more.
    assert_eq!(cluster.sh("ls w | wc -l; ls w/g | wc -l"), "628\n5\n");
    cluster.sh("for n in 1 2 3; do echo more >> w/$n; done; rm w/4; mv w/5 w/6; test ! -e w/4; tail -1 w/2 | grep -q more");
    assert!(cluster.run(&["cluster", "fsck"]).ok);
}

/// A caller without labels has only its own rights, finds no directory by its number alone, and breaks nothing.
#[test]
fn new_files_call_refuses_invalid_arguments() {
    let Some(cluster) = Cluster::with(Options::default()) else {
        return;
    };
    cluster.sh("mkdir w closed && mkdir closed/open && chmod 777 w closed/open && chmod 700 closed && touch w/there");
    let directory = cluster.at("");
    let numbers = cluster.sh("stat -c %i w closed/open closed .tidemill w/there | tr '\\n' ,");
    let script = format!(
        "{CALL}
w, hidden, closed, control, there = {numbers}
os.chdir('{}')
handle = opened()
assert made(handle, call((w, b'a', b'one'), (w, b'b', b'')), 2) == (0, [0, 0])
assert (open('w/a', 'rb').read(), os.path.getsize('w/b')) == (b'one', 0)
assert os.stat('w/a').st_mode == 0o100640 and os.stat('w/a').st_uid == os.geteuid()
# One that can't be is reported, and the others are made.
mixed = made(handle, call((w, b'c', b'c'), (w, b'there', b'x'), (hidden, b'd', b'd'), (closed, b'e', b''), (w, b'f', b'f')), 5)
refused = 0 if os.geteuid() == 0 else errno.EACCES
assert mixed == (errno.EEXIST, [0, errno.EEXIST, refused, refused, 0]), mixed
assert (open('w/c').read(), open('w/f').read(), os.path.getsize('w/there')) == ('c', 'f', 0)
wrong = [(control, b'x', b''), (1 << 63, b'x', b''), (0, b'x', b''), (1 << 47, b'x', b''), (w | 1 << 48, b'x', b''), (there, b'x', b''),
         (w, b'', b''), (w, b'.', b''), (w, b'..', b''), (w, b'x/y', b''), (w, b'x\\0', b''), (w, b'n' * 256, b''), (1, b'.tidemill', b'')]
before = sorted(os.listdir('w'))
for file in wrong:
    error, reported = made(handle, call(file), 1)
    assert error and reported == [error], (file, error, reported)
many = made(handle, call(*[(w, b'there', b'')] * 20, (w, b'z', b'z')), 21)
assert many[1].count(errno.EEXIST) == 8 and many[1][-1] == errno.EAGAIN, many
assert made(handle, call((w, b'z', b'z'), (w, b'z', b'other')), 2) == (errno.EEXIST, [0, errno.EEXIST])
assert open('w/z').read() == 'z'
good = call((w, b'y', b'y' * 100))
for body in [b'x', good[:-1], good + b'x', b'TMNF' + bytes(8), os.urandom(4000), good[:4] + b'\\2' + good[5:], call((w, b'y', bytes(65537)))]:
    assert made(handle, body, 0) == (errno.EINVAL, []), body[:40]
assert sorted(os.listdir('w')) == sorted(before + ['z'])
if os.geteuid():
    try: os.open('.tidemill/0/new-files', os.O_RDWR); sys.exit('opened what is of another')
    except PermissionError: pass
    os.remove('w/a')
    for name in 'bcfz': os.remove('w/' + name)
",
        directory.display()
    );
    for user in [USER, 0] {
        let mut python = Command::new("python3");
        let ended = python.arg("-c").arg(&script).uid(user).gid(user).output();
        let ended = ended.unwrap();
        assert!(ended.status.success(), "{user}: {ended:?}");
    }
    assert_eq!(
        cluster.sh("cat closed/open/d; ls -A closed closed/open"),
        "dclosed:\ne\nopen\n\nclosed/open:\nd\n"
    );
}

/// In the middle of many files agent, mount, node and server are killed, and the node hangs: each file has its
/// bytes, and no label fails.
#[test]
fn new_files_call_leaves_whole_files_after_any_kill() {
    let Some(mut cluster) = Cluster::with(Options {
        nodes: 1,
        ..Options::default()
    }) else {
        return;
    };
    let labels = Labels::of(&cluster, 0);
    for (round, who) in ["agent", "mount", "node", "server", "hang"]
        .iter()
        .enumerate()
    {
        let directory = format!("r{round}");
        cluster.sh(&format!("mkdir {directory}"));
        let count = if *who == "hang" { 6000 } else { 2000 };
        let script = format!(
            "
all = [app.write(f'tidemill:/{directory}/{{n}}', 0, b'%d ' % n * 30) for n in range({count})]
print('published', flush=True)
for label in all: label.wait()
"
        );
        let mut program = labels.python(&script);
        assert_eq!(line(program.stdout.as_mut().unwrap()), "published");
        std::thread::sleep(Duration::from_millis(100));
        match *who {
            "agent" => {
                labels.kill_agent();
                labels.start_agent();
            }
            "mount" => {
                cluster.kill_mount();
                cluster.start_mount();
            }
            // The number of files that are closed but not sealed stays limited.
            "hang" => {
                cluster.signal_node(0, Signal::STOP);
                for _ in 0..30 {
                    let standing = cluster.sh("head -1 .tidemill/status");
                    let count = standing.trim().rsplit_once(' ').unwrap().1;
                    assert!(count.parse::<usize>().unwrap() <= 4096 + 2 * 256, "{count}");
                    std::thread::sleep(Duration::from_millis(100));
                }
                cluster.signal_node(0, Signal::CONT);
            }
            "node" => {
                cluster.kill_node(0);
                cluster.start_node(0);
            }
            _ => {
                cluster.kill_server();
                cluster.start_server();
            }
        }
        let ended = program.wait_with_output().unwrap();
        assert!(ended.status.success(), "{who}: {ended:?}");
        cluster.sh(&format!(
            "python3 -c '
import os
assert len(os.listdir(\"{directory}\")) == {count}
for n in range({count}):
    data = open(f\"{directory}/{{n}}\", \"rb\").read()
    assert data == b\"%d \" % n * 30, (n, data)
'"
        ));
    }
    labels.wait_until_done();
    assert!(cluster.run(&["cluster", "fsck"]).ok);
}

/// On a node of another host without free space, a label fails or its file is whole.
#[test]
fn many_new_files_fill_node_without_partial_files() {
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
os.mkdir(os.environ['TIDEMILL_MOUNT'] + '/full')
of = [app.write(f'tidemill:/full/{n}', 0, b'%05d' % n * 12000) for n in range(900)]
failed = 0
for n, label in enumerate(of):
    try: label.wait()
    except OSError as error:
        failed += 1
        continue
    data = open(os.environ['TIDEMILL_MOUNT'] + f'/full/{n}', 'rb').read()
    assert data == b'%05d' % n * 12000, n
assert 100 < failed < 800, failed
",
    );
}

/// In a full workspace, in memory, and under rules, new files behave as files created one by one: no label is reported done
/// without its bytes, the quota holds, each file is stored in memory and triggers its rule once, and its lineage names its
/// creator.
#[test]
fn many_new_files_respect_quotas_tiers_and_rules() {
    let Some(mut cluster) = Cluster::with(Options {
        nodes: 1,
        ..Options::default()
    }) else {
        return;
    };
    cluster.add_node(&["--tier", "memory", "--capacity", "64MiB"]);
    assert!(
        cluster
            .run(&["workspace", "create", "r", "--quota", "1MiB"])
            .ok
    );
    cluster.sh("mkdir -p w/in");
    let rule = r#"name = "seen"; workdir = "/w"; regex = "in/(?<n>[0-9]+)";
        task = { kernel = "/usr/bin/wc"; args = [ "-c", "{file}" ]; output = [ "out/{n}" ]; stdout = "out/{n}"; };"#;
    std::fs::write(cluster.path("seen.rule"), rule).unwrap();
    cluster.json(&[
        "rule",
        "create",
        &cluster.path("seen.rule").display().to_string(),
    ]);
    wait("the mount knows the node of the memory tier", || {
        cluster.sh("echo x > workspaces/r/probe");
        cluster.json(&["stat", "/workspaces/r/probe"])["parts"][0]["replicas"][0]["node"] == 1
    });
    cluster.sh("rm workspaces/r/probe");
    let labels = Labels::of(&cluster, 0);
    labels.printed_by(
        "
import time
mount = os.environ['TIDEMILL_MOUNT']
done = 0
for round in range(4):
    of = {f'workspaces/r/{round}-{n}': b'%07d\\n' % n * 128 for n in range(400)}
    of = {path: (data, app.write('tidemill:/' + path, 0, data)) for path, data in of.items()}
    for path, (data, label) in of.items():
        try: label.wait()
        except OSError as error:
            assert error.errno == 122, error
            continue
        assert open(f'{mount}/{path}', 'rb').read() == data, path
        done += 1
    time.sleep(.1)
assert 900 <= done <= 1300, done
of = [app.write(f'tidemill:/w/in/' + (str(n) if n < 40 else f'other-{n}'), 0, b'x' * n) for n in range(300)]
for label in of: label.wait()
",
    );
    let file = cluster.sh("ls workspaces/r | sed -n 1p");
    let layout = cluster.json(&["stat", &format!("/workspaces/r/{}", file.trim())]);
    assert_eq!(layout["parts"][0]["replicas"][0]["node"], 1, "{layout:#}");
    wait("each file has triggered its rule", || {
        cluster.json(&["rule", "show", "seen"])["rule_runs"]["done"] == 40
    });
    assert!(cluster.sh("cat w/out/39").starts_with("39 "));
    assert_eq!(cluster.sh("ls w/out | wc -l"), "40\n");
    assert!(
        cluster
            .run(&["lineage", "show", "/w/out/39"])
            .out
            .contains("/w/in/39")
    );
}
