//! Tests files that tasks of a job exchange in memory.

use crate::array::{Array, Options, wait};
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

fn start() -> Option<Array> {
    Array::with(options())
}

/// Returns the size of a node's data in memory, and of its objects on the disk, in bytes.
fn bytes(array: &Array) -> (u64, u64) {
    fn all(folder: &Path) -> u64 {
        let entries = std::fs::read_dir(folder).unwrap().flatten();
        entries
            .map(|entry| match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => all(&entry.path()),
                Ok(metadata) => metadata.len(),
                Err(_) => 0,
            })
            .sum()
    }
    let folder = array.node_folder(0);
    (all(&folder.join("handed")), all(&folder.join("objects")))
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

fn expected(array: &Array, middle: u64) -> String {
    array.sh(&format!(
        "(head -c {middle} /dev/zero | tr '\\0' m; echo go) | cksum"
    ))
}

/// The intermediate is only in memory, is readable like any file, is recomputed if the memory of its host loses it, and
/// is removed after its use.
#[test]
fn intermediate_stays_in_memory_until_used_and_is_recomputed() {
    let Some(mut array) = start() else { return };
    array.sh("mkdir w");
    let middle = 20 * MIB;
    let id = array.submit(&job(middle));
    wait("it was made and read once", || array.at("w/said").exists());
    let (memory, disk) = bytes(&array);
    assert!(memory == middle && disk < MIB, "{memory} {disk}");
    assert_eq!(
        array.sh("head -c 5 w/middle; cat w/said w/kept"),
        format!("mmmmm{middle}\nmade\n")
    );
    // A kill loses no data.
    array.kill_node(0);
    array.start_node(0);
    array.wait_for_nodes(1);
    assert_eq!(bytes(&array).0, middle);
    assert_eq!(array.sh("head -c 5 w/middle"), "mmmmm");
    array.lose_handed(0);
    array.start_node(0);
    array.wait_for_nodes(1);
    wait("what is lost is known", || {
        let health = array.run(&["health", "--all"]);
        health.out.contains("/w/middle") || !array.try_sh("cat w/middle > /dev/null").ok
    });
    assert_eq!(array.sh("cat w/said w/kept"), format!("{middle}\nmade\n"));
    array.sh("echo go > w/go");
    let done = array.done(id);
    let task = |name: &str| {
        let mut tasks = done["tasks"].as_array().unwrap().iter();
        tasks.find(|task| task["name"] == name).unwrap()
    };
    assert_eq!(array.sh("cat w/out"), expected(&array, middle));
    assert_eq!(task("make")["in_memory_bytes"], middle);
    assert_eq!(
        (&task("make")["handed_on"], &task("use")["handed_on"]),
        (&1.into(), &0.into())
    );
    let report = array.json(&["report", &id.to_string()]);
    assert_eq!(report["total"]["in_memory_bytes"], middle);
    let explained = array.run(&["explain", &id.to_string()]).out;
    assert!(explained.contains("of it in the memory"), "{explained}");
    wait("it is gone", || {
        bytes(&array).0 == 0 && !array.at("w/middle").exists()
    });
    assert_eq!(array.sh("ls w"), "go\nkept\nout\nsaid\n");
    assert!(array.run(&["check", "--age", "0"]).ok);
}

/// Neither full memory nor missing memory is a failure.
#[test]
fn intermediate_too_large_for_memory_is_on_disk() {
    let Some(array) = start() else { return };
    array.sh("mkdir w; echo go > w/go");
    let middle = 80 * MIB;
    let id = array.submit(&job(middle));
    array.done(id);
    assert_eq!(array.sh("cat w/out"), expected(&array, middle));
    let report = array.json(&["report", &id.to_string()]);
    assert_eq!(
        (
            &report["total"]["in_memory_bytes"],
            &report["total"]["handed_on"]
        ),
        (&0.into(), &1.into())
    );
    let explained = array.run(&["explain", &id.to_string()]).out;
    assert!(explained.contains("not in memory"), "{explained}");
    wait("it is gone", || !array.at("w/middle").exists());
    let wrong = job(1).replace("\"memory\"", "\"memry\"");
    let said = array.try_submit(&wrong);
    assert!(!said.ok && said.err.contains("memory"), "{}", said.err);
    let small = array.try_sh(&format!(
        "{:?} node --id 7 --folder {:?} --intermediate-memory 1MiB",
        array.tidemill(),
        array.path("seven")
    ));
    assert!(
        !small.ok && small.err.contains("--intermediate-memory"),
        "{}",
        small.err
    );
}

/// Sets the mode of the parent of the nodes' folders.
fn set_mode(array: &Array, mode: u32) {
    std::fs::set_permissions(array.path(""), Permissions::from_mode(mode)).unwrap();
}

/// Kernels run as other users than root. They reach files in memory although they may not enter the folders above the
/// node's folder. If they could enter these folders once and no longer can, the error names the folder.
#[test]
fn kernels_reach_in_memory_files_in_closed_folders() {
    let Some(array) = Array::prepared(options(), |array| set_mode(array, 0o700)) else {
        return;
    };
    let handed = array.node_folder(0).join("handed");
    assert!(handed.is_symlink());
    array.sh("mkdir w");
    let middle = MIB;
    let id = array.submit(&job(middle));
    wait("it was made and read once", || array.at("w/said").exists());
    assert_eq!(array.sh("cat w/said"), format!("{middle}\n"));
    // The size of a host's shared memory is not fixed here: without space in it the file is on the disk.
    let room = rustix::fs::statvfs(&handed).unwrap();
    if room.f_bavail * room.f_frsize > 16 * MIB {
        assert_eq!(std::fs::read_dir(&handed).unwrap().count(), 1);
    }
    array.sh("echo go > w/go");
    array.done(id);
    assert_eq!(array.sh("cat w/out"), expected(&array, middle));
    wait("it is gone", || {
        std::fs::read_dir(&handed).unwrap().count() == 0
    });
}

#[test]
fn folder_closed_since_start_is_named() {
    let Some(mut array) = Array::prepared(options(), |array| set_mode(array, 0o711)) else {
        return;
    };
    if array.node_folder(0).join("handed").is_symlink() {
        // Root may mount nothing here: the file is in shared memory in any case.
        return;
    }
    array.sh("mkdir w");
    let id = array.submit(&job(MIB));
    wait("it was made and read once", || array.at("w/said").exists());
    set_mode(&array, 0o700);
    array.sh("echo go > w/go");
    let ended = array.ended(id);
    let open = format!("chmod o+x {}", array.path("").display());
    let open = open.trim_end_matches('/');
    assert!(ended.to_string().contains(open), "{ended}");
    // The node does not start either if its users cannot reach its files.
    array.sh("rm -r w; mkdir w");
    set_mode(&array, 0o711);
    array.submit(&job(MIB));
    wait("it was made and read once", || array.at("w/said").exists());
    array.kill_node(0);
    set_mode(&array, 0o700);
    array.start_node(0);
    wait("the node says why it can't start", || {
        array.log("node-0.log").contains(open)
    });
}
