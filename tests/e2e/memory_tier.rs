//! Tests nodes of the memory tier: which files are stored there, where files are stored when the memory is full, and which files the end of
//! their host loses.

use crate::cluster::{Cluster, directory_of_nobody, printed, wait};
use crate::require;
use serde_json::Value;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread::JoinHandle;

/// Id of the node of the memory tier of these clusters; nodes 0 and 1 are on a disk.
const MEMORY: u64 = 2;
const MEMORY_INDEX: usize = 2;
const MIB: usize = 1 << 20;

/// Starts a cluster with a node of the memory tier of 128 MiB, and a directory that requests it.
fn start() -> Option<Cluster> {
    let mut cluster = Cluster::start()?;
    cluster.add_node(&["--tier", "memory", "--capacity", "128MiB"]);
    cluster.sh("mkdir m d; chmod 777 m; setfattr -n user.tidemill.tier -v memory m; mkdir m/below");
    wait("the mount knows the node of the memory tier", || {
        cluster.sh("echo probe > m/probe");
        node_of(&cluster, "/m/probe") == MEMORY
    });
    Some(cluster)
}

/// Returns the node with the first replica of a file.
fn node_of(cluster: &Cluster, path: &str) -> u64 {
    let layout = cluster.json(&["stat", path]);
    layout["parts"][0]["replicas"][0]["node"].as_u64().unwrap()
}

/// Returns bytes that differ from place to place, so that a wrong place is detected.
fn bytes(count: usize, seed: u64) -> Vec<u8> {
    let words = (0..count as u64 / 8).map(|n| (n ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).collect()
}

fn node(cluster: &Cluster, id: u64) -> Value {
    let status = cluster.json(&["status"]);
    let nodes = status["nodes"].as_array().unwrap().iter();
    nodes.clone().find(|one| one["node"] == id).unwrap().clone()
}

/// Files are stored in memory if their directory asks for it, and only then. Tasks never run there, every kill leaves the
/// files unchanged, and draining the node moves them to disks.
#[test]
fn files_in_memory_on_request_survive_every_kill() {
    let Some(mut cluster) = start() else { return };
    let content = bytes(3 * MIB, 1);
    std::fs::write(cluster.at("m/below/f"), &content).unwrap();
    cluster.sh("for i in 1 2 3 4; do echo $i > d/f$i; done");
    assert_eq!(node_of(&cluster, "/m/below/f"), MEMORY);
    for i in 1..=4 {
        assert!(node_of(&cluster, &format!("/d/f{i}")) < MEMORY);
    }
    let reported = cluster.sh("getfattr --only-values -n user.tidemill.tier m/below/f");
    assert_eq!(reported, "memory");
    assert!(
        !cluster
            .try_sh("setfattr -n user.tidemill.tier -v tape d")
            .ok
    );
    let shown = node(&cluster, MEMORY);
    assert_eq!(
        (&shown["tier"], &shown["cores"]),
        (&"memory".into(), &0.into())
    );
    assert!(cluster.run(&["status"]).out.contains("store, memory"));
    // A task runs on another node in any case, and so its output is stored there.
    let job = cluster.submit(
        r#"name = "j"; workdir = "/m"; tasks = (
            { name = "t"; kernel = "/bin/cat"; args = ["below/f"]; input = ["below/f"]; output = ["out"]; stdout = "out"; },
            { name = "l"; kernel = "/bin/cat"; args = ["out"]; input = ["out"]; output = ["light"]; stdout = "light";
              cores = 0; } );"#,
    );
    cluster.done(job);
    assert!(node_of(&cluster, "/m/out") < MEMORY && node_of(&cluster, "/m/light") < MEMORY);
    assert!(std::fs::read(cluster.at("m/light")).unwrap() == content);
    // A reader with an open file can read on while its node is offline; after the restart, the node has all its files.
    let open = std::fs::File::open(cluster.at("m/below/f")).unwrap();
    cluster.kill_node(MEMORY_INDEX);
    let mut read = vec![0; content.len()];
    open.read_exact_at(&mut read, 0).unwrap();
    assert!(read == content);
    drop(open);
    cluster.kill_mount();
    cluster.kill_server();
    cluster.start_server();
    cluster.start_node(MEMORY_INDEX);
    cluster.wait_for_nodes(3);
    cluster.start_mount();
    assert!(std::fs::read(cluster.at("m/below/f")).unwrap() == content);
    assert!(cluster.run(&["cluster", "fsck", "--age", "0s"]).ok);
    // A rewritten file begins with its old content, and is in memory as well.
    cluster.sh("printf more >> m/below/f");
    assert_eq!(node_of(&cluster, "/m/below/f"), MEMORY);
    let drained = cluster.run(&["node", "drain", "2", "--wait"]);
    assert!(drained.ok, "{}{}", drained.out, drained.err);
    wait("it is in no use any more", || {
        cluster.run(&["node", "remove", "2"]).ok
    });
    assert!(node_of(&cluster, "/m/below/f") < MEMORY);
    let mut more = content;
    more.extend(b"more");
    assert!(std::fs::read(cluster.at("m/below/f")).unwrap() == more);
    cluster.sh("echo late > m/late");
    assert!(node_of(&cluster, "/m/late") < MEMORY);
}

/// Writes 40 MiB in pieces, at the end or at their offsets; returns the content.
fn write(path: PathBuf, seed: u64, append: bool) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let content = bytes(40 * MIB, seed);
        let mut options = std::fs::File::options();
        let options = options
            .create(true)
            .write(true)
            .append(append)
            .truncate(!append);
        let mut file = options.open(path).unwrap();
        let pieces = content.chunks(700_001).enumerate();
        for (index, piece) in pieces {
            match append {
                true => file.write_all(piece).unwrap(),
                false => file.write_all_at(piece, index as u64 * 700_001).unwrap(),
            }
        }
        file.sync_all().unwrap();
        content
    })
}

/// Memory is used up in the middle of a write. The writer notices nothing, the user of the memory keeps their files,
/// and the bound holds.
#[test]
fn file_that_outgrows_memory_tier_continues_on_another_node() {
    let Some(cluster) = start() else { return };
    // Another user has taken most of the memory.
    cluster.sh(
        "setpriv --reuid 65534 --regid 65534 --clear-groups sh -c 'head -c 80000000 /dev/zero | tr \"\\0\" x > m/theirs'",
    );
    assert_eq!(node_of(&cluster, "/m/theirs"), MEMORY);
    // In place, by appends and by writes at any offset, three at a time.
    let names = ["m/appended", "m/written", "m/another"];
    let writers = [
        write(cluster.at(names[0]), 1, true),
        write(cluster.at(names[1]), 2, false),
        write(cluster.at(names[2]), 3, true),
    ];
    for (name, writer) in names.into_iter().zip(writers) {
        let content = writer.join().unwrap();
        let read = std::fs::read(cluster.at(name)).unwrap();
        assert!(read == content, "{name}: {} bytes", read.len());
    }
    let nodes = names.map(|name| node_of(&cluster, &format!("/{name}")));
    assert!(
        nodes.iter().filter(|&&one| one == MEMORY).count() <= 1,
        "{nodes:?}"
    );
    assert_eq!(node_of(&cluster, "/m/theirs"), MEMORY);
    let theirs = cluster.sh("wc -c < m/theirs; tr -d x < m/theirs | wc -c");
    assert_eq!(theirs, "80000000\n0\n");
    // The Linux kernel writes pages of a memory map, and a file only becomes longer.
    cluster.sh("python3 -c \"
import mmap, os
f = os.open('m/mapped', os.O_RDWR | os.O_CREAT)
os.ftruncate(f, 60 << 20)
m = mmap.mmap(f, 60 << 20)
for at in range(0, 60 << 20, 4096): m[at:at+8] = at.to_bytes(8, 'little')
m.flush(); m.close(); os.close(f)
f = open('m/mapped', 'rb')
for at in range(0, 60 << 20, 4096):
    f.seek(at); assert f.read(8) == at.to_bytes(8, 'little'), at
\"");
    assert!(cluster.json(&["status"])["overflowed"].as_u64().unwrap() >= 3);
    assert!(
        cluster
            .run(&["status"])
            .out
            .contains("found no space in memory")
    );
    // Files that were moved to disks use no memory any more.
    cluster.sh("rm m/theirs m/appended m/written m/another m/mapped");
    wait("memory is free again", || {
        node(&cluster, MEMORY)["free_bytes"].as_u64() > Some(100 << 20)
    });
    std::fs::write(cluster.at("m/new"), b"fits").unwrap();
    assert_eq!(node_of(&cluster, "/m/new"), MEMORY);
    wait("nothing is left over", || {
        cluster.run(&["cluster", "fsck", "--age", "0s"]).ok
    });
}

/// Returns the files that are reported as lost with their memory.
fn lost(cluster: &Cluster) -> Vec<String> {
    let mut command = cluster.tidemill();
    let printed = command
        .args(["--json", "cluster", "health", "--all"])
        .output()
        .unwrap();
    let health: Value = serde_json::from_slice(&printed.stdout).unwrap();
    let files = health["files"].as_array().unwrap().iter();
    let lost = files.filter(|one| {
        let what = one["what"].as_str().unwrap();
        what.contains("was in memory") && what.contains("no other replica")
    });
    let paths = lost.map(|one| one["path"].as_str().unwrap().to_owned());
    let mut paths: Vec<_> = paths.collect();
    paths.sort();
    paths
}

/// The host ends: files that were only in its memory are reported as lost, also files being written, and no other file is lost.
#[test]
fn files_lost_with_host_memory_are_reported() {
    let Some(mut cluster) = start() else { return };
    cluster.sh(
        "mkdir m/two; setfattr -n user.tidemill.replicas -v 2,now m/two; echo kept > m/two/kept; sync m/two/kept
         echo gone > m/gone; echo disk > d/disk; echo old > m/again; sync m/gone m/again",
    );
    let replicas = cluster.json(&["stat", "/m/two/kept"]);
    assert_eq!(replicas["parts"][0]["replicas"][0]["node"], MEMORY);
    let mut open = std::fs::File::create(cluster.at("m/open")).unwrap();
    open.write_all(b"half").unwrap();
    cluster.kill_mount();
    cluster.lose_memory(MEMORY_INDEX);
    cluster.start_node(MEMORY_INDEX);
    cluster.wait_for_nodes(3);
    drop(open);
    cluster.start_mount();
    let named = ["/m/again", "/m/gone", "/m/open", "/m/probe"];
    wait("lost files are named", || lost(&cluster) == named);
    for path in named {
        let printed = cluster.run(&["cat", path]);
        let named = printed.err.contains(path) && printed.err.contains("was in memory");
        assert!(!printed.ok && named, "{}", printed.err);
        assert!(!cluster.try_sh(&format!("cat .{path}")).ok);
    }
    assert_eq!(cluster.sh("cat m/two/kept d/disk"), "kept\ndisk\n");
    let check = cluster.run(&["cluster", "fsck", "--age", "0s"]);
    assert!(!check.ok && check.out.contains("/m/gone"), "{}", check.out);
    // The loss is recorded permanently.
    cluster.kill_server();
    cluster.start_server();
    cluster.wait_for_nodes(3);
    assert_eq!(lost(&cluster), named);
    // A file with another replica is recreated in memory, and a file that is written again is available again.
    cluster.sh("echo new > m/again; rm m/gone m/open m/probe");
    wait("all is well", || cluster.run(&["cluster", "health"]).ok);
    assert_eq!(cluster.sh("cat m/again m/two/kept"), "new\nkept\n");
    assert_eq!(node_of(&cluster, "/m/again"), MEMORY);
    wait("nothing is left over", || {
        cluster.run(&["cluster", "fsck", "--age", "0s"]).ok
    });
}

/// A user who may mount no file system in memory gets the host's shared memory, up to the configured size.
#[test]
fn up_of_ordinary_user_gets_memory_tier_up_to_limit() {
    let Some(directory) = directory_of_nobody("test -w /dev/shm") else {
        return;
    };
    let run = |program: &str, args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            program,
        ]);
        command.env("HOME", directory.path()).current_dir("/");
        printed(command.args(args).output().unwrap())
    };
    let dir = directory.path().to_str().unwrap();
    let tidemill = |args: &[&str]| {
        let args = [&["--dir", dir], args].concat();
        run(env!("CARGO_BIN_EXE_tidemill"), &args)
    };
    let device = std::fs::metadata("/dev/fuse").unwrap().permissions().mode();
    if device & 0o006 != 0o006 || !tidemill(&["--version"]).ok {
        require::tell("users may not mount, or not run the program");
        return;
    }
    let up = tidemill(&["up", "--nodes", "1", "--memory-tier", "64MiB"]);
    let target = std::fs::read_link(directory.path().join("node-999"));
    let script = format!(
        "set -e; cd {dir}/mnt; mkdir m; setfattr -n user.tidemill.tier -v memory m; echo small > m/small
         seq 20000000 | head -c 100000000 > m/large; seq 20000000 | head -c 100000000 | cmp - m/large; cat m/small"
    );
    let printed = run("sh", &["-c", &script]);
    let place = |path: &str| {
        let layout = tidemill(&["--json", "stat", path]).out;
        let layout: Value = serde_json::from_str(&layout).unwrap_or_default();
        layout["parts"][0]["replicas"][0]["node"].as_u64()
    };
    let places = (place("/m/small"), place("/m/large"));
    let down = tidemill(&["down"]);
    // A later start knows that the memory node exists.
    let again = tidemill(&["up"]);
    let read = run("cat", &[&format!("{dir}/mnt/m/small")]);
    let down_again = tidemill(&["down"]);
    if let Ok(target) = &target {
        std::fs::remove_dir_all(target).unwrap();
    }
    assert!(up.ok && again.ok, "{}{}{}", up.out, up.err, again.err);
    assert!(target.unwrap().starts_with("/dev/shm"));
    assert!(
        printed.ok && printed.out == "small\n",
        "{}{}",
        printed.out,
        printed.err
    );
    assert_eq!(places, (Some(999), Some(0)));
    assert!(down.ok && down_again.ok, "{}{}", down.err, down_again.err);
    assert_eq!(read.out, "small\n", "{}", read.err);
}
