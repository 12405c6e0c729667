//! Tests files with several copies, in an array of real processes.

use crate::array::{Array, Options, wait};
use serde_json::Value;
use std::io::Read;
use std::path::PathBuf;

/// Returns the nodes that have a file and the states of its copies, from `tidemill layout`.
fn copies(array: &Array, path: &str) -> Vec<(u64, String)> {
    let layout = array.json(&["layout", path]);
    let copies = layout["parts"][0]["copies"].as_array().cloned();
    let copy = |copy: &Value| {
        let state = copy["state"].as_str().unwrap().to_owned();
        (copy["node"].as_u64().unwrap(), state)
    };
    copies.unwrap_or_default().iter().map(copy).collect()
}

/// Waits until a file has `count` copies that can be read.
fn copied(array: &Array, path: &str, count: usize) {
    wait("the file is copied", || {
        let copies = copies(array, path);
        copies.len() == count && copies.iter().all(|(_, state)| state == "current")
    });
}

/// Returns the paths at which the nodes would store the bytes of a file.
fn objects(array: &Array, path: &str) -> [PathBuf; 2] {
    let layout = array.json(&["layout", path]);
    let object = layout["parts"][0]["object"].as_str().unwrap().to_owned();
    let below = format!("objects/{}/{object}", &object[14..]);
    [0, 1].map(|index| array.node_folder(index).join(&below))
}

#[test]
fn file_is_copied_to_another_node_and_removed_from_both() {
    let Some(array) = Array::start() else {
        return;
    };
    array.sh("mkdir d; setfattr -n user.tidemill.copies -v 2 d; echo bytes > d/f; mkdir d/sub; echo x > d/sub/g");
    copied(&array, "/d/f", 2);
    copied(&array, "/d/sub/g", 2);
    let both = objects(&array, "/d/f");
    for object in &both {
        assert_eq!(std::fs::read_to_string(object).unwrap(), "bytes\n");
    }
    let said = array.sh("getfattr --only-values -n user.tidemill.layout d/f; getfattr --only-values -n user.tidemill.copies d/f");
    assert!(said.contains("current") && said.ends_with('2'), "{said}");
    let text = array.run(&["layout", "/d/f"]);
    assert!(
        text.out.contains("all copies are on one host"),
        "{}",
        text.out
    );
    let check = array.run(&["check", "--age", "0"]);
    assert!(check.ok, "{}{}", check.out, check.err);
    // First a new version, then none.
    array.sh("echo more >> d/f");
    wait("the first version is removed", || {
        both.iter().all(|object| !object.exists())
    });
    copied(&array, "/d/f", 2);
    let both = objects(&array, "/d/f");
    assert_eq!(std::fs::read_to_string(&both[1]).unwrap(), "bytes\nmore\n");
    array.sh("rm d/f");
    wait("both are removed", || {
        both.iter().all(|object| !object.exists())
    });
    // A user of `put` may request copies for a single file, without a folder.
    let local = array.path("local");
    std::fs::write(&local, "put").unwrap();
    let local = local.to_str().unwrap();
    assert!(array.run(&["put", "--copies", "2", local, "/h"]).ok);
    copied(&array, "/h", 2);
    for bad in ["0", "9", "x"] {
        let said = array.run(&["put", "--copies", bad, local, "/i"]);
        assert!(!said.ok && said.err.contains("--copies"), "{}", said.err);
        let set = format!("setfattr -n user.tidemill.copies -v {bad} d");
        assert!(!array.try_sh(&set).ok);
    }
    assert!(!array.try_sh("setfattr -n user.tidemill.copies -v 2 h").ok);
    assert!(!array.run(&["layout", "/d"]).ok);
}

#[test]
fn copies_now_waits_until_copies_exist() {
    let Some(mut array) = Array::start() else {
        return;
    };
    let local = array.path("local");
    std::fs::write(&local, vec![7; 1 << 20]).unwrap();
    let local = local.to_str().unwrap();
    let both = |array: &Array, path: &str| {
        let copies = copies(array, path);
        assert!(
            copies.len() == 2 && copies.iter().all(|(_, state)| state == "current"),
            "{path}: {copies:?}"
        );
    };
    assert!(array.run(&["put", "--copies", "2,now", local, "/put"]).ok);
    both(&array, "/put");
    array.sh("mkdir d; setfattr -n user.tidemill.copies -v 2,now d; echo bytes > d/f; sync d/f");
    both(&array, "/d/f");
    // Several files, and a striped file with two copies of each part.
    array.sh("for i in 1 2 3 4 5 6; do echo $i > d/$i; done; sync d/1 d/2 d/3 d/4 d/5 d/6");
    for name in 1..=6 {
        both(&array, &format!("/d/{name}"));
    }
    assert!(
        array
            .run(&[
                "put", "--copies", "2,now", "--stripe", "64KiB,2", local, "/striped"
            ])
            .ok
    );
    for part in array.json(&["layout", "/striped"])["parts"]
        .as_array()
        .unwrap()
    {
        let copies = part["copies"].as_array().unwrap();
        assert!(
            copies.len() == 2 && copies.iter().all(|copy| copy["state"] == "current"),
            "{part}"
        );
    }
    // An offline node delays no operation for long, and its missing copies are made when it is online again.
    array.kill_node(1);
    array.sh("echo alone > d/alone; timeout 60 sync d/alone; cat d/alone");
    array.start_node(1);
    copied(&array, "/d/alone", 2);
}

/// A node is killed and its folder is deleted while readers and a job use it: neither the readers nor the job fail.
#[test]
fn readers_and_jobs_use_another_copy_when_node_is_lost() {
    for remote in [true, false] {
        let Some(mut array) = Array::with(Options {
            remote,
            ..Options::default()
        }) else {
            return;
        };
        let text: String = (0..4_000_000).map(|line| format!("{line}\n")).collect();
        let local = array.path("local");
        std::fs::write(&local, &text).unwrap();
        let local = local.to_str().unwrap();
        array.sh("mkdir d");
        let put = ["put", "--copies", "2", "--node", "0", local, "/d/f"];
        assert!(array.run(&put).ok);
        array.sh("setfattr -n user.tidemill.copies -v 2 d; setfattr -n user.tidemill.node -v 0 d; echo small > d/g");
        copied(&array, "/d/f", 2);
        copied(&array, "/d/g", 2);
        let mut open = std::fs::File::open(array.at("d/f")).unwrap();
        let mut read = vec![0; 1 << 20];
        open.read_exact(&mut read).unwrap();
        array.kill_node(0);
        std::fs::rename(array.node_folder(0), array.path("lost")).unwrap();
        open.read_to_end(&mut read).unwrap();
        assert!(read == text.as_bytes(), "{} bytes", read.len());
        // The file was not open before.
        assert_eq!(array.sh("cat d/g"), "small\n");
        assert_eq!(array.run(&["cat", "/d/g"]).out, "small\n");
        let back = array.path("back");
        assert!(array.run(&["get", "/d/f", back.to_str().unwrap()]).ok);
        assert!(std::fs::read(&back).unwrap() == text.as_bytes());
        let job = r#"name = "j"; workdir = "/d"; tasks = ( { name = "t"; kernel = "/bin/cat"; args = ["g"];
            input = ["g"]; output = ["out"]; stdout = "out"; node = 1; } );"#;
        array.done(array.submit(job));
        // Writes continue, too, from content that only the copy has.
        array.sh("setfattr -x user.tidemill.node d; echo more >> d/g");
        assert_eq!(array.sh("cat d/g"), "small\nmore\n");
        let copies = copies(&array, "/d/f");
        assert_eq!(copies, [(0, "away".to_owned()), (1, "current".to_owned())]);
    }
}

/// The server still counts the node as up, and the client has sent its request to the node.
#[test]
fn client_uses_another_copy_when_node_hangs() {
    let Some(array) = Array::with(Options {
        remote: true,
        ..Options::default()
    }) else {
        return;
    };
    let local = array.path("local");
    std::fs::write(&local, "bytes\n").unwrap();
    let local = local.to_str().unwrap();
    let put = ["put", "--copies", "2", "--node", "0", local, "/f"];
    assert!(array.run(&put).ok);
    copied(&array, "/f", 2);
    array.signal_node(0, rustix::process::Signal::STOP);
    assert_eq!(array.run(&["cat", "/f"]).out, "bytes\n");
    array.signal_node(0, rustix::process::Signal::CONT);
}

/// Changes the first byte of an object on its node's disk.
fn spoil(object: &std::path::Path) {
    use std::os::unix::fs::{FileExt, PermissionsExt};
    let mode = |mode| std::fs::set_permissions(object, std::fs::Permissions::from_mode(mode));
    mode(0o600).unwrap();
    let file = std::fs::File::options().write(true).open(object).unwrap();
    file.write_all_at(b"X", 0).unwrap();
    mode(0o444).unwrap();
}

#[test]
fn corruption_is_found_reported_and_repaired_or_readable() {
    for remote in [false, true] {
        let Some(array) = Array::with(Options {
            remote,
            ..Options::default()
        }) else {
            return;
        };
        array.sh("mkdir d; setfattr -n user.tidemill.copies -v 2 d; echo bytes > d/f; echo others > d/g; echo alone > h");
        copied(&array, "/d/f", 2);
        copied(&array, "/d/g", 2);
        // All objects are hashed, then two of them are damaged.
        let scrub = array.run(&["scrub", "--wait"]);
        assert!(scrub.ok, "{}{}", scrub.out, scrub.err);
        spoil(&objects(&array, "/d/f")[0]);
        std::fs::remove_file(&objects(&array, "/d/g")[1]).unwrap();
        let found = array.run(&["scrub", "--wait", "/d"]);
        assert!(
            !found.ok && found.out.contains("2 damaged"),
            "{}",
            found.out
        );
        wait("both are mended", || array.run(&["health"]).ok);
        for (name, bytes) in [("f", "bytes\n"), ("g", "others\n")] {
            for object in objects(&array, &format!("/d/{name}")) {
                assert_eq!(std::fs::read_to_string(object).unwrap(), bytes);
            }
            assert_eq!(array.sh(&format!("cat d/{name}")), bytes);
        }
        let again = array.run(&["scrub", "--wait", "/d"]);
        assert!(again.ok, "{}{}", again.out, again.err);
        // The third file has no other copy.
        let layout = array.json(&["layout", "/h"]);
        let on = layout["parts"][0]["copies"][0]["node"].as_u64().unwrap();
        let alone = &objects(&array, "/h")[usize::try_from(on).unwrap()];
        spoil(alone);
        assert!(!array.run(&["scrub", "--wait", "/h"]).ok);
        assert!(!alone.exists());
        let health = array.run(&["health"]);
        assert_eq!(health.code, Some(4), "{}", health.out);
        assert!(
            health.out.contains("/h") && health.out.contains("--damaged"),
            "{}",
            health.out
        );
        let said = array.try_sh("cat h");
        assert!(
            !said.ok && said.err.contains("Input/output error"),
            "{}",
            said.err
        );
        let cat = array.run(&["cat", "/h"]);
        assert!(!cat.ok && cat.err.contains("is damaged"), "{}", cat.err);
        let back = array.path("back");
        let get = ["get", "--damaged", "/h", back.to_str().unwrap()];
        assert!(array.run(&get).ok);
        assert_eq!(std::fs::read_to_string(&back).unwrap(), "Xlone\n");
        let check = array.run(&["check"]);
        assert!(check.out.contains("damaged"), "{}", check.out);
        array.sh("echo anew > h");
        wait("nothing is damaged", || array.run(&["health"]).ok);
        assert_eq!(array.sh("cat h"), "anew\n");
    }
}

/// Nodes and the server are killed during the scrub and the repairs.
#[test]
fn scrub_and_its_repairs_survive_kills() {
    let Some(mut array) = Array::start() else {
        return;
    };
    array.sh("mkdir d; setfattr -n user.tidemill.copies -v 2 d; for i in $(seq 40); do head -c 300000 /dev/urandom > d/$i; done");
    let sums = array.sh("cd d; sha256sum $(seq 40)");
    for i in 1..=40 {
        copied(&array, &format!("/d/{i}"), 2);
    }
    assert!(array.run(&["scrub", "--wait"]).ok);
    for i in 1..=40 {
        let both = objects(&array, &format!("/d/{i}"));
        spoil(&both[i % 2]);
    }
    assert!(array.run(&["scrub"]).ok);
    for round in 0..4 {
        match round % 2 {
            0 => {
                array.kill_node(0);
                array.start_node(0);
            }
            _ => {
                array.kill_server();
                array.start_server();
            }
        }
        array.wait_for_nodes(2);
    }
    wait("all is mended", || {
        array.run(&["scrub", "--wait"]).ok && array.run(&["health"]).ok
    });
    assert_eq!(array.sh("cd d; sha256sum $(seq 40)"), sums);
}
