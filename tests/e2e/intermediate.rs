//! Tests files that tasks of a job exchange in memory.

use crate::cluster::{Cluster, Options, wait};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const MIB: u64 = 1 << 20;

fn options() -> Options {
    Options {
        nodes: 1,
        node_args: vec!["--intermediate-memory".into(), "64MiB".into()],
        ..Options::default()
    }
}

fn start() -> Option<Cluster> {
    Cluster::with(options())
}

/// Returns the size of a node's data in memory, and of its objects on the disk, in bytes.
fn bytes(cluster: &Cluster) -> (u64, u64) {
    fn all(directory: &Path) -> u64 {
        let entries = std::fs::read_dir(directory).unwrap().flatten();
        entries
            .map(|entry| match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => all(&entry.path()),
                Ok(metadata) => metadata.len(),
                Err(_) => 0,
            })
            .sum()
    }
    let directory = cluster.node_directory(0);
    (
        all(&directory.join("intermediates")),
        all(&directory.join("objects")),
    )
}

fn job(middle: u64) -> String {
    format!(
        r#"name = "j"; workdir = "/w"; intermediate = "memory"; cache = false; tasks = (
            {{ name = "make"; kernel = "/bin/sh"; args = ["-c", "head -c {middle} /dev/zero | tr '\\0' m > middle; echo made > kept"];
               output = ["middle", "kept"]; }},
            {{ name = "said"; kernel = "/bin/sh"; args = ["-c", "wc -c < middle > said"]; input = ["middle"]; output = ["said"];
               lifetime = "keep"; }},
            {{ name = "use"; kernel = "/bin/sh"; args = ["-c", "cat middle go | cksum > out"]; input = ["middle", "go"];
               output = ["out"]; }} );"#
    )
}

fn expected(cluster: &Cluster, middle: u64) -> String {
    cluster.sh(&format!(
        "(head -c {middle} /dev/zero | tr '\\0' m; echo go) | cksum"
    ))
}

/// The intermediate is only in memory, is readable like any file, is recomputed if the memory of its host loses it, and
/// is removed after its use.
#[test]
fn intermediate_file_stays_in_memory_until_used_and_is_recomputed() {
    let Some(mut cluster) = start() else { return };
    cluster.sh("mkdir w");
    let middle = 20 * MIB;
    let id = cluster.submit(&job(middle));
    wait("it was made and read once", || {
        cluster.at("w/said").exists()
    });
    let (memory, disk) = bytes(&cluster);
    assert!(memory == middle && disk < MIB, "{memory} {disk}");
    assert_eq!(
        cluster.sh("head -c 5 w/middle; cat w/said w/kept"),
        format!("mmmmm{middle}\nmade\n")
    );
    // A kill loses no data.
    cluster.kill_node(0);
    cluster.start_node(0);
    cluster.wait_for_nodes(1);
    assert_eq!(bytes(&cluster).0, middle);
    assert_eq!(cluster.sh("head -c 5 w/middle"), "mmmmm");
    cluster.lose_intermediates(0);
    cluster.start_node(0);
    cluster.wait_for_nodes(1);
    wait("the loss is known", || {
        let health = cluster.run(&["cluster", "health", "--all"]);
        health.out.contains("/w/middle") || !cluster.try_sh("cat w/middle > /dev/null").ok
    });
    assert_eq!(cluster.sh("cat w/said w/kept"), format!("{middle}\nmade\n"));
    cluster.sh("echo go > w/go");
    let done = cluster.done(id);
    let task = |name: &str| {
        let mut tasks = done["tasks"].as_array().unwrap().iter();
        tasks.find(|task| task["name"] == name).unwrap()
    };
    assert_eq!(cluster.sh("cat w/out"), expected(&cluster, middle));
    assert_eq!(task("make")["in_memory_bytes"], middle);
    assert_eq!(
        (
            &task("make")["memory_outputs"],
            &task("use")["memory_outputs"]
        ),
        (&1.into(), &0.into())
    );
    let report = cluster.json(&["job", "report", &id.to_string()]);
    assert_eq!(report["total"]["in_memory_bytes"], middle);
    let explained = cluster.run(&["job", "explain", &id.to_string()]).out;
    assert!(explained.contains("of it in the memory"), "{explained}");
    wait("it is deleted", || {
        bytes(&cluster).0 == 0 && !cluster.at("w/middle").exists()
    });
    assert_eq!(cluster.sh("ls w"), "go\nkept\nout\nsaid\n");
    assert!(cluster.run(&["cluster", "fsck", "--age", "0s"]).ok);
}

/// Neither full memory nor missing memory is a failure.
#[test]
fn intermediate_file_too_large_for_memory_is_on_disk() {
    let Some(cluster) = start() else { return };
    cluster.sh("mkdir w; echo go > w/go");
    let middle = 80 * MIB;
    let id = cluster.submit(&job(middle));
    cluster.done(id);
    assert_eq!(cluster.sh("cat w/out"), expected(&cluster, middle));
    let report = cluster.json(&["job", "report", &id.to_string()]);
    assert_eq!(
        (
            &report["total"]["in_memory_bytes"],
            &report["total"]["memory_outputs"]
        ),
        (&0.into(), &1.into())
    );
    let explained = cluster.run(&["job", "explain", &id.to_string()]).out;
    assert!(explained.contains("not in memory"), "{explained}");
    wait("it is deleted", || !cluster.at("w/middle").exists());
    let wrong = job(1).replace("\"memory\"", "\"memry\"");
    let printed = cluster.try_submit(&wrong);
    assert!(
        !printed.ok && printed.err.contains("memory"),
        "{}",
        printed.err
    );
    let small = cluster.try_sh(&format!(
        "{:?} node run --id 7 --data-dir {:?} --intermediate-memory 1MiB",
        cluster.tidemill(),
        cluster.path("seven")
    ));
    assert!(
        !small.ok && small.err.contains("--intermediate-memory"),
        "{}",
        small.err
    );
}

/// Sets the mode of the parent of the nodes' directories.
fn set_mode(cluster: &Cluster, mode: u32) {
    std::fs::set_permissions(cluster.path(""), Permissions::from_mode(mode)).unwrap();
}

/// Kernels run as other users than root. They reach files in memory although they may not enter the directories above the
/// node's directory. If they could enter these directories once and no longer can, the error names the directory.
#[test]
fn kernels_reach_in_memory_files_in_closed_directories() {
    let Some(cluster) = Cluster::prepared(options(), |cluster| set_mode(cluster, 0o700)) else {
        return;
    };
    let intermediates = cluster.node_directory(0).join("intermediates");
    assert!(intermediates.is_symlink());
    cluster.sh("mkdir w");
    let middle = MIB;
    let id = cluster.submit(&job(middle));
    wait("it was made and read once", || {
        cluster.at("w/said").exists()
    });
    assert_eq!(cluster.sh("cat w/said"), format!("{middle}\n"));
    // The size of a host's shared memory is not fixed here: without space in it the file is on the disk.
    let space = rustix::fs::statvfs(&intermediates).unwrap();
    if space.f_bavail * space.f_frsize > 16 * MIB {
        assert_eq!(std::fs::read_dir(&intermediates).unwrap().count(), 1);
    }
    cluster.sh("echo go > w/go");
    cluster.done(id);
    assert_eq!(cluster.sh("cat w/out"), expected(&cluster, middle));
    wait("it is deleted", || {
        std::fs::read_dir(&intermediates).unwrap().count() == 0
    });
}

#[test]
fn in_memory_task_error_names_directory_closed_since_start() {
    let Some(mut cluster) = Cluster::prepared(options(), |cluster| set_mode(cluster, 0o711)) else {
        return;
    };
    if cluster.node_directory(0).join("intermediates").is_symlink() {
        // Root may mount nothing here: the file is in shared memory in any case.
        return;
    }
    cluster.sh("mkdir w");
    let id = cluster.submit(&job(MIB));
    wait("it was made and read once", || {
        cluster.at("w/said").exists()
    });
    set_mode(&cluster, 0o700);
    cluster.sh("echo go > w/go");
    let ended = cluster.ended(id);
    let open = format!("chmod o+x {}", cluster.path("").display());
    let open = open.trim_end_matches('/');
    assert!(ended.to_string().contains(open), "{ended}");
    // The node does not start either if its users cannot reach its files.
    cluster.sh("rm -r w; mkdir w");
    set_mode(&cluster, 0o711);
    cluster.submit(&job(MIB));
    wait("it was made and read once", || {
        cluster.at("w/said").exists()
    });
    cluster.kill_node(0);
    set_mode(&cluster, 0o700);
    cluster.start_node(0);
    wait("the node reports why it can't start", || {
        cluster.log("node-0.log").contains(open)
    });
}
