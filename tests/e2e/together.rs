//! Tests files that several mounts write at the same time, in a cluster of real processes.

use crate::chance::Chance;
use crate::cluster::{Cluster, Options, OtherMount, wait};
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A cluster with two more mounts, and the directories of all three.
struct Three {
    // These are dropped first.
    others: Vec<OtherMount>,
    cluster: Cluster,
}

impl Three {
    fn start(remote: bool) -> Option<Self> {
        let cluster = Cluster::with(Options {
            nodes: 3,
            remote,
            ..Options::default()
        })?;
        std::fs::write(cluster.at("f"), b"").unwrap();
        let others = ["b", "c"].map(|name| OtherMount::start(&cluster, name));
        Some(Self {
            cluster,
            others: others.into(),
        })
    }

    fn at(&self, mount: usize, path: &str) -> PathBuf {
        match mount {
            0 => self.cluster.at(path),
            _ => self.others[mount - 1].path.join(path),
        }
    }

    fn open(&self, mount: usize, path: &str) -> File {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        options.open(self.at(mount, path)).unwrap()
    }

    fn sealed(&self, path: &str) {
        wait("the file is sealed", || {
            self.cluster.json(&["ls", path])["entries"][0]["writing"] != true
        });
    }

    fn got(&self, path: &str) -> Vec<u8> {
        let local = self.cluster.path("got");
        let printed = self.cluster.run(&["get", path, local.to_str().unwrap()]);
        assert!(printed.ok, "{}", printed.err);
        std::fs::read(local).unwrap()
    }
}

fn put(file: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    file.resize(file.len().max(offset + bytes.len()), 0);
    file[offset..offset + bytes.len()].copy_from_slice(bytes);
}

fn same(path: &Path, expected: &[u8], what: &str) {
    let read = std::fs::read(path).unwrap();
    let at = read.iter().zip(expected).position(|(a, b)| a != b);
    let lengths = (read.len(), expected.len());
    assert!(
        read == expected,
        "{what}: lengths {lengths:?}, first difference {at:?}"
    );
}

#[test]
fn concurrent_writes_of_mounts_form_one_file() {
    for remote in [false, true] {
        let Some(three) = Three::start(remote) else {
            return;
        };
        let mut chance = Chance(3);
        let mut expected = Vec::new();
        let files: Vec<File> = (0..3).map(|mount| three.open(mount, "f")).collect();
        // The writers take turns with strips of a size that fits no page.
        for strip in 0..60 {
            let bytes = chance.bytes_above_zero(47_008);
            let offset = strip * bytes.len();
            files[strip % 3]
                .write_all_at(&bytes, offset as u64)
                .unwrap();
            put(&mut expected, offset, &bytes);
        }
        for file in &files {
            file.sync_all().unwrap();
        }
        for (mount, file) in files.iter().enumerate() {
            let mut read = vec![0; expected.len()];
            file.read_exact_at(&mut read, 0).unwrap();
            assert!(read == expected, "mount {mount} does not see all");
            same(&three.at(mount, "f"), &expected, "another reader");
        }
        drop(files);
        three.sealed("/f");
        for mount in 0..3 {
            same(&three.at(mount, "f"), &expected, "after the seal");
        }
        assert!(three.got("/f") == expected);
        let layout = three.cluster.json(&["stat", "/f"]);
        assert_eq!(layout["layout"], "extents", "{layout}");
        assert_eq!(
            layout["parts"].as_array().map(Vec::len),
            Some(3),
            "{layout}"
        );
        let check = three.cluster.run(&["cluster", "fsck", "--age", "0s"]);
        assert!(check.ok, "{}{}", check.out, check.err);
        // The file works like any file.
        three
            .cluster
            .sh("echo more >> f; tail -c 5 f; cp f g; cmp f g; mv g h; rm h");
        let job = three.cluster.submit(r#"name = "j"; workdir = "/"; tasks = ({ name = "t"; kernel = "/usr/bin/sha256sum"; stdin = "f"; input = ["f"]; output = ["sum"]; stdout = "sum"; });"#);
        three.cluster.done(job);
        three.cluster.sh("sha256sum < f | cmp - sum");
        three.cluster.sh("rm f");
        let check = three.cluster.run(&["cluster", "fsck", "--age", "0s"]);
        assert!(check.ok, "{}{}", check.out, check.err);
    }
}

/// Reads through a file that was open before.
fn reads_some(file: &File, offset: u64, expected: &[u8], what: &str) {
    let mut read = vec![0; 30_000];
    let count = file.read_at(&mut read, offset).unwrap();
    let there = expected.get(usize::try_from(offset).unwrap()..);
    let there = there.unwrap_or_default();
    let there = &there[..there.len().min(read.len())];
    assert!(
        read[..count] == *there,
        "{what} reads old bytes at {offset}"
    );
}

/// Writes, truncates, fsyncs, closes and opens at random on three mounts. Each state that is visible to all is checked through all.
fn random_changes(remote: bool, seed: u64, steps: usize) {
    let Some(three) = Three::start(remote) else {
        return;
    };
    let mut chance = Chance(seed);
    let mut expected = Vec::new();
    let mut files: Vec<Option<File>> = vec![None, None, None];
    let mut done = Vec::new();
    for step in 0..steps {
        let mount = usize::try_from(chance.next(3)).unwrap();
        let Some(file) = &files[mount] else {
            files[mount] = Some(three.open(mount, "f"));
            done.push(format!("{step}: {mount} opens"));
            continue;
        };
        match chance.next(10) {
            0..=5 => {
                let length = 1 + chance.next(70_000);
                let offset = chance.next(400_000);
                let bytes = chance.bytes_above_zero(usize::try_from(length).unwrap());
                file.write_all_at(&bytes, offset).unwrap();
                done.push(format!("{step}: {mount} writes {offset}+{length}"));
                put(&mut expected, usize::try_from(offset).unwrap(), &bytes);
                // The mount whose turn it is has notified the others.
                file.sync_data().unwrap();
            }
            6 => {
                let size = chance.next(500_000);
                file.set_len(size).unwrap();
                done.push(format!("{step}: {mount} cuts to {size}"));
                expected.resize(usize::try_from(size).unwrap(), 0);
            }
            7 => {
                files[mount] = None;
                done.push(format!("{step}: {mount} closes"));
            }
            8 => {
                let size = std::fs::metadata(three.at(mount, "f")).unwrap().len();
                let done = &done[done.len().saturating_sub(12)..];
                assert_eq!(
                    size,
                    expected.len() as u64,
                    "step {step} of {seed}, mount {mount}: {done:#?}"
                );
            }
            _ => {
                let reader = usize::try_from(chance.next(3)).unwrap();
                let what = format!("step {step} of {seed}, mount {reader}");
                same(&three.at(reader, "f"), &expected, &what);
            }
        }
        if chance.next(4) == 0 {
            let reader = usize::try_from(chance.next(3)).unwrap();
            if let Some(file) = &files[reader] {
                let what = format!("step {step} of {seed}, mount {reader}");
                reads_some(file, chance.next(400_000), &expected, &what);
            }
        }
    }
    files.clear();
    three.sealed("/f");
    for mount in 0..3 {
        same(&three.at(mount, "f"), &expected, &format!("seed {seed}"));
    }
    assert!(three.got("/f") == expected);
}

#[test]
fn random_changes_on_three_mounts_are_visible_to_all() {
    for (remote, seed) in [(false, 1), (true, 2), (false, 3), (true, 4)] {
        random_changes(remote, seed, 200);
    }
}

#[test]
fn closed_bytes_are_visible_while_other_mounts_write() {
    for remote in [false, true] {
        let Some(three) = Three::start(remote) else {
            return;
        };
        let stays = three.open(0, "f");
        stays.write_all_at(b"0000", 0).unwrap();
        for round in 0..20_u64 {
            let writer = three.open(1, "f");
            let text = format!("{round:04}");
            writer
                .write_all_at(text.as_bytes(), 4 * (round + 1))
                .unwrap();
            drop(writer);
            for mount in [2, 0, 1] {
                let read = std::fs::read(three.at(mount, "f")).unwrap();
                let end = read.len().saturating_sub(4);
                assert_eq!(read[end..], *text.as_bytes(), "mount {mount}, {round}");
            }
        }
        drop(stays);
        three.sealed("/f");
        assert_eq!(three.got("/f").len(), 84);
    }
}

#[test]
fn reader_sees_writes_of_other_mount_that_begin_later() {
    let Some(three) = Three::start(false) else {
        return;
    };
    let others = [1, 2].map(|mount| three.open(mount, "f"));
    others[0].write_all_at(b"first", 0).unwrap();
    others[0].sync_all().unwrap();
    let reader = File::open(three.at(0, "f")).unwrap();
    reads_some(&reader, 0, b"first", "what another mount has published");
    for (bytes, what) in [(b"later", "a writer here"), (b"third", "another one")] {
        let writer = three.open(0, "f");
        writer.write_all_at(bytes, 0).unwrap();
        reads_some(&reader, 0, bytes, what);
        drop(writer);
        // The part is sealed, the file is not.
        same(&three.at(1, "f"), bytes, "what was closed");
    }
    others[1].write_all_at(b"other", 0).unwrap();
    others[1].sync_all().unwrap();
    reads_some(&reader, 0, b"other", "what another mount has published");
}

/// Locks work for files of several writers, too: a process that gets the lock sees the bytes written under the lock
/// before.
#[test]
fn counter_under_file_locks_of_several_mounts_is_exact() {
    use rustix::fs::{FlockOperation, flock};
    for remote in [false, true] {
        let Some(three) = Three::start(remote) else {
            return;
        };
        // All write to the file before any process locks it.
        let files: Vec<File> = (0..3).map(|mount| three.open(mount, "f")).collect();
        for (mount, file) in files.iter().enumerate() {
            file.write_all_at(b"............", 100 + 12 * mount as u64)
                .unwrap();
        }
        let count = |file: &File| {
            for _ in 0..20 {
                flock(file, FlockOperation::LockExclusive).unwrap();
                let mut bytes = [0; 8];
                let read = file.read_at(&mut bytes, 0).unwrap();
                assert!(read == 8 || read == 0, "{read}");
                let next = u64::from_le_bytes(bytes) + 1;
                file.write_all_at(&next.to_le_bytes(), 0).unwrap();
                flock(file, FlockOperation::Unlock).unwrap();
            }
        };
        std::thread::scope(|scope| {
            for file in &files {
                scope.spawn(|| count(file));
            }
        });
        drop(files);
        three.sealed("/f");
        let read = std::fs::read(three.at(0, "f")).unwrap();
        assert_eq!(read[..8], 60_u64.to_le_bytes());
        assert_eq!(read[100..], [b'.'; 36]);
    }
}

/// Each user may write only files that permissions allow, also together with others.
#[test]
fn write_permission_is_required_to_join_writers() {
    let Some(three) = Three::start(false) else {
        return;
    };
    let writer = three.open(0, "f");
    writer.write_all_at(b"root's", 0).unwrap();
    three.cluster.sh("chmod 644 f; chmod 755 .");
    let directory = three.cluster.path("");
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o711)).unwrap();
    let path = three.at(1, "f");
    let write = || {
        std::process::Command::new("setpriv")
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
            .args([
                "sh",
                "-c",
                "printf nobody | dd conv=notrunc bs=6 seek=1 of=\"$1\"",
                "sh",
            ])
            .arg(&path)
            .output()
            .unwrap()
    };
    let refused = write();
    let printed = String::from_utf8_lossy(&refused.stderr);
    assert!(printed.contains("Permission denied"), "{printed}");
    // A user with write permission writes the file, although the mount of the other writer belongs to root.
    three.cluster.sh("chmod 666 f");
    wait("the mode is seen", || write().status.success());
    drop(writer);
    three.sealed("/f");
    assert_eq!(std::fs::read(three.at(2, "f")).unwrap(), b"root'snobody");
}

#[test]
fn bytes_visible_before_death_of_mount_stay_visible() {
    for remote in [false, true] {
        let Some(mut three) = Three::start(remote) else {
            return;
        };
        let stays = three.open(0, "f");
        let dies = three.open(2, "f");
        stays.write_all_at(b"aaaa", 0).unwrap();
        dies.write_all_at(b"bbbb", 4).unwrap();
        dies.sync_all().unwrap();
        dies.write_all_at(b"cccc", 8).unwrap();
        drop(three.others.remove(1));
        drop(dies);
        stays.write_all_at(b"dddd", 12).unwrap();
        drop(stays);
        three.sealed("/f");
        let read = std::fs::read(three.at(1, "f")).unwrap();
        assert_eq!(read.len(), 16);
        assert_eq!(read[..8], *b"aaaabbbb");
        assert_eq!(read[12..], *b"dddd");
    }
}

#[test]
fn killed_server_loses_nothing_of_several_writers() {
    let Some(mut three) = Three::start(false) else {
        return;
    };
    let files: Vec<File> = (0..3).map(|mount| three.open(mount, "f")).collect();
    let mut expected = Vec::new();
    let mut chance = Chance(11);
    for round in 0..9 {
        let bytes = chance.bytes_above_zero(5000);
        let offset = round * 4000;
        files[round % 3]
            .write_all_at(&bytes, offset as u64)
            .unwrap();
        put(&mut expected, offset, &bytes);
        if round % 4 == 3 {
            three.cluster.kill_server();
            three.cluster.start_server();
            three.cluster.wait_for_nodes(3);
        }
        files[round % 3].sync_all().unwrap();
    }
    three.cluster.kill_server();
    drop(files);
    three.cluster.start_server();
    three.cluster.wait_for_nodes(3);
    three.sealed("/f");
    for mount in 0..3 {
        same(&three.at(mount, "f"), &expected, "after restarts");
    }
}

#[test]
fn file_of_several_writers_survives_recovery() {
    let Some(mut three) = Three::start(false) else {
        return;
    };
    let files: Vec<File> = (0..3).map(|mount| three.open(mount, "f")).collect();
    let mut expected = Vec::new();
    let mut chance = Chance(5);
    for round in 0..30 {
        let bytes = chance.bytes_above_zero(3000);
        let offset = round * 2500;
        files[round % 3]
            .write_all_at(&bytes, offset as u64)
            .unwrap();
        files[round % 3].sync_all().unwrap();
        put(&mut expected, offset, &bytes);
    }
    drop(files);
    three.sealed("/f");
    same(&three.at(0, "f"), &expected, "before");
    three.others.clear();
    let recovered: Value = three.cluster.recover_database();
    assert_eq!(recovered["incomplete"], false, "{recovered}");
    same(&three.at(0, "f"), &expected, "after the recovery");
    assert!(three.got("/f") == expected);
}
