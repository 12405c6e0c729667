//! Tests files on several nodes, in a cluster of real processes.

use crate::chance::Chance;
use crate::cluster::{Cluster, Options, Printed, wait};
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

fn three(remote: bool) -> Option<Cluster> {
    Cluster::with(Options {
        nodes: 3,
        remote,
        ..Options::default()
    })
}

/// Returns the object files of a striped file's parts.
fn parts(cluster: &Cluster, path: &str) -> Vec<PathBuf> {
    let layout = cluster.json(&["stat", path]);
    assert_eq!(layout["layout"], "striped", "{layout}");
    cluster.object_files(path)
}

fn put(cluster: &Cluster, bytes: &[u8], flags: &[&str], path: &str) {
    let local = cluster.path("local");
    std::fs::write(&local, bytes).unwrap();
    let printed = cluster.run(&[&["put"], flags, &[local.to_str().unwrap(), path]].concat());
    assert!(printed.ok, "{}", printed.err);
}

fn got(cluster: &Cluster, path: &str) -> Vec<u8> {
    let local = cluster.path("got");
    let printed = cluster.run(&["get", path, local.to_str().unwrap()]);
    assert!(printed.ok, "{}", printed.err);
    std::fs::read(local).unwrap()
}

fn sealed(cluster: &Cluster, path: &str) {
    wait("the file is sealed", || {
        cluster.json(&["ls", path])["entries"][0]["writing"] != true
    });
}

#[test]
fn striped_file_is_read_back_from_all_nodes() {
    for remote in [false, true] {
        let Some(cluster) = three(remote) else { return };
        cluster.sh("mkdir d");
        assert!(cluster.run(&["set", "/d", "stripe=64KiB"]).ok);
        assert_eq!(cluster.json(&["set", "/d"])["settings"]["stripe"], "64KiB");
        let mut chance = Chance(7);
        let bytes = chance.bytes((5 << 20) + 123);
        std::fs::write(cluster.at("d/f"), &bytes).unwrap();
        assert!(std::fs::read(cluster.at("d/f")).unwrap() == bytes);
        sealed(&cluster, "/d/f");
        assert!(got(&cluster, "/d/f") == bytes);
        // Each part consists of the file's stripes, one after the other.
        for (index, part) in parts(&cluster, "/d/f").iter().enumerate() {
            let stripes = bytes.chunks(64 << 10).skip(index).step_by(3);
            assert!(std::fs::read(part).unwrap() == stripes.collect::<Vec<_>>().concat());
        }
        let printed = cluster.sh("stat -c %s d/f; getfattr --only-values -n user.tidemill.stripe d/f; echo x >> d/f; tail -c 2 d/f");
        assert_eq!(printed, format!("{}\n64KiB,3x\n", bytes.len()));
        sealed(&cluster, "/d/f");
        assert!(got(&cluster, "/d/f") == [&bytes[..], b"x\n"].concat());
        put(&cluster, &bytes[..1 << 20], &["--stripe", "4096,2"], "/g");
        assert!(std::fs::read(cluster.at("g")).unwrap() == bytes[..1 << 20]);
        assert_eq!(parts(&cluster, "/g").len(), 2);
        put(&cluster, b"", &["--stripe", "1MiB"], "/empty");
        assert_eq!(std::fs::read(cluster.at("empty")).unwrap(), b"");
        assert_eq!(got(&cluster, "/empty"), b"");
        let check = cluster.run(&["cluster", "fsck", "--age", "0s"]);
        assert!(check.ok, "{}{}", check.out, check.err);
        let all = [parts(&cluster, "/d/f"), parts(&cluster, "/g")].concat();
        cluster.sh("rm d/f g");
        wait("all parts are removed", || {
            all.iter().all(|part| !part.exists())
        });
        let check = cluster.run(&["cluster", "fsck", "--age", "0s"]);
        assert!(check.ok, "{}{}", check.out, check.err);
    }
}

/// Makes one random change of a file.
fn change(chance: &mut Chance, file: &File, bytes: &[u8]) {
    let offset = chance.next(700_000);
    match chance.next(8) {
        0 => file.set_len(offset).unwrap(),
        1 => (&*file).write_all(&bytes[..5000]).unwrap(),
        _ => {
            let length = 1 + chance.next(200_000);
            let from = chance.next(1000);
            let place = |offset: u64| usize::try_from(offset).unwrap();
            let piece = &bytes[place(from)..place(from + length)];
            file.write_all_at(piece, offset).unwrap();
        }
    }
}

#[test]
fn random_writes_to_striped_file_match_plain_file() {
    for remote in [false, true] {
        let Some(cluster) = three(remote) else { return };
        cluster.sh("mkdir d");
        assert!(cluster.run(&["set", "/d", "stripe=8KiB,3"]).ok);
        let mut chance = Chance(11);
        let bytes = chance.bytes(300_000);
        let (ours, model) = (cluster.at("d/f"), cluster.path("model"));
        let open = |path: &Path| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            options.open(path).unwrap()
        };
        for round in 0..12 {
            let seed = chance.next(1 << 30);
            for path in [&ours, &model] {
                let mut chance = Chance(seed);
                let file = open(path);
                for _ in 0..=chance.next(20) {
                    change(&mut chance, &file, &bytes);
                }
                let open = std::fs::read(path).unwrap();
                assert_eq!(open.len() as u64, file.metadata().unwrap().len());
            }
            let written = std::fs::read(&model).unwrap();
            assert!(std::fs::read(&ours).unwrap() == written, "{remote} {round}");
            sealed(&cluster, "/d/f");
            assert!(got(&cluster, "/d/f") == written, "{remote} {round}");
        }
    }
}

#[test]
fn striped_file_of_dead_mount_is_sealed_with_its_bytes() {
    for remote in [false, true] {
        let Some(mut cluster) = three(remote) else {
            return;
        };
        cluster.sh("mkdir d");
        assert!(cluster.run(&["set", "/d", "stripe=64KiB"]).ok);
        let bytes = Chance(5).bytes(1 << 20);
        let mut file = File::create(cluster.at("d/f")).unwrap();
        file.write_all(&bytes).unwrap();
        file.sync_all().unwrap();
        cluster.kill_mount();
        drop(file);
        wait("the server seals it", || {
            cluster.json(&["ls", "/d/f"])["entries"][0]["size"] == 1 << 20
        });
        assert!(got(&cluster, "/d/f") == bytes);
        let check = cluster.run(&["cluster", "fsck", "--age", "0s"]);
        assert!(check.ok, "{}{}", check.out, check.err);
    }
}

#[test]
fn tasks_read_striped_file_as_one_on_any_node() {
    for remote in [false, true] {
        let Some(cluster) = three(remote) else { return };
        cluster.sh("mkdir d");
        assert!(cluster.run(&["set", "/d", "stripe=64KiB"]).ok);
        let bytes = Chance(3).bytes((1 << 20) + 77);
        std::fs::write(cluster.at("d/f"), &bytes).unwrap();
        let sum = cluster.sh("sha256sum < d/f");
        let task = |node: u32| {
            format!(
                r#"{{ name = "t{node}"; kernel = "/usr/bin/sha256sum"; stdin = "d/f"; input = ["d/f"];
                   output = ["o{node}"]; stdout = "o{node}"; node = {node}; }}"#
            )
        };
        let free = r#"{ name = "free"; kernel = "/usr/bin/sha256sum"; stdin = "d/f"; input = ["d/f"];
            output = ["o"]; stdout = "o"; }"#;
        let tasks = [task(0), task(1), task(2), free.to_owned()].join(",");
        let script =
            format!(r#"name = "j"; workdir = "/"; policy = "input-locality"; tasks = ({tasks});"#);
        cluster.done(cluster.submit(&script));
        for output in ["o", "o0", "o1", "o2"] {
            assert_eq!(cluster.sh(&format!("cat {output}")), sum);
        }
        // Two of three parts were transferred.
        let jobs = cluster.json(&["job", "show", "1"]);
        let tasks = jobs["tasks"].as_array().unwrap().iter();
        // A task that ran at the same time as the first may have transferred it for both.
        let there = tasks.filter(|task| task["node"] == 0);
        let moved: u64 = there
            .map(|task| task["transferred_bytes"].as_u64().unwrap())
            .sum();
        assert!((640 << 10..=768 << 10).contains(&moved), "{moved}");
        // An output of a job in such a directory is a normal file.
        let lineage = cluster.run(&["lineage", "show", "/o1"]);
        assert!(
            lineage.ok && lineage.out.contains("d/f"),
            "{}{}",
            lineage.out,
            lineage.err
        );
    }
}

#[test]
fn recovered_cluster_has_its_striped_files() {
    let Some(mut cluster) = three(false) else {
        return;
    };
    cluster.sh("mkdir d; setfattr -n user.tidemill.stripe -v 4096 d");
    let bytes = Chance(9).bytes(100_000);
    std::fs::write(cluster.at("d/f"), &bytes).unwrap();
    cluster.sh("mv d/f d/g; setfattr -n user.tidemill.replicas -v 2 d; head -c 50000 d/g > d/h");
    wait("all parts are copied", || {
        let layout = cluster.json(&["stat", "/d/h"]);
        let parts = layout["parts"].as_array().unwrap();
        parts.iter().all(|part| {
            let replicas = part["replicas"].as_array().unwrap();
            replicas.len() == 2 && replicas.iter().all(|replica| replica["state"] == "current")
        })
    });
    let lost = cluster.node_directory(0);
    let printed = cluster.recover_database();
    assert_eq!(printed["incomplete"], false, "{printed}");
    assert!(std::fs::read(cluster.at("d/g")).unwrap() == bytes);
    assert!(std::fs::read(cluster.at("d/h")).unwrap() == bytes[..50_000]);
    let check = cluster.run(&["cluster", "fsck", "--age", "0s"]);
    assert!(check.ok, "{}{}", check.out, check.err);
    // Each part has a replica on another node.
    cluster.kill_node(0);
    std::fs::rename(&lost, cluster.path("lost")).unwrap();
    assert!(got(&cluster, "/d/h") == bytes[..50_000]);
    assert!(std::fs::read(cluster.at("d/h")).unwrap() == bytes[..50_000]);
}

#[test]
fn invalid_striping_is_refused_with_reason() {
    let Some(cluster) = three(false) else { return };
    cluster.sh("mkdir d; echo x > f");
    for bad in ["0", "1000", "1MB", "x", "4096,0", "4096,9999", "2GiB"] {
        let printed = cluster.run(&["set", "/d", &format!("stripe={bad}")]);
        assert!(!printed.ok && printed.err.contains(bad), "{}", printed.err);
        assert!(
            !cluster
                .try_sh(&format!("setfattr -n user.tidemill.stripe -v {bad} d"))
                .ok
        );
        let local = cluster.path("local");
        std::fs::write(&local, "x").unwrap();
        let printed = cluster.run(&["put", "--stripe", bad, local.to_str().unwrap(), "/g"]);
        assert!(!printed.ok, "{bad}");
    }
    // The stripe count exceeds the number of nodes.
    assert!(cluster.run(&["set", "/d", "stripe=4096,4"]).ok);
    let printed = cluster.try_sh("echo x > d/g");
    assert!(
        !printed.ok && printed.err.contains("Invalid argument"),
        "{}",
        printed.err
    );
    let local = cluster.path("local");
    let printed = cluster.run(&["put", local.to_str().unwrap(), "/d/g"]);
    assert!(
        !printed.ok && printed.err.contains("4 nodes: 3 are up"),
        "{}",
        printed.err
    );
    let printed = cluster.run(&["set", "/f", "stripe=4096"]);
    assert!(
        !printed.ok && printed.err.contains("not a directory: /f"),
        "{}",
        printed.err
    );
    assert!(
        !cluster
            .try_sh("setfattr -n user.tidemill.stripe -v 4096 f")
            .ok
    );
    // A subdirectory may have another setting.
    assert!(cluster.run(&["set", "/d", "stripe=off"]).ok);
    cluster.sh("echo x > d/g");
    assert_eq!(cluster.json(&["stat", "/d/g"])["layout"], "whole");
}

#[test]
fn parts_leave_drained_node_unnoticed_by_readers() {
    for remote in [false, true] {
        let Some(mut cluster) = three(remote) else {
            return;
        };
        cluster.sh("mkdir d; setfattr -n user.tidemill.stripe -v 16KiB,2 d");
        let bytes = Chance(13).bytes(200_000);
        for name in ["a", "b", "c"] {
            std::fs::write(cluster.at("d").join(name), &bytes).unwrap();
            sealed(&cluster, &format!("/d/{name}"));
        }
        let open = File::open(cluster.at("d/a")).unwrap();
        let mut read = vec![0; 100];
        open.read_exact_at(&mut read, 0).unwrap();
        // A file that is being written there is completed there, and is moved then.
        let mut writing = File::create(cluster.at("d/w")).unwrap();
        writing.write_all(&bytes[..100_000]).unwrap();
        assert!(cluster.run(&["node", "drain", "0"]).ok);
        writing.write_all(&bytes[100_000..]).unwrap();
        drop(writing);
        sealed(&cluster, "/d/w");
        let printed = cluster.run(&["node", "drain", "0", "--wait"]);
        assert!(printed.ok, "{}", printed.err);
        std::fs::write(cluster.at("d/new"), &bytes).unwrap();
        sealed(&cluster, "/d/new");
        for name in ["a", "b", "c", "w", "new"] {
            let layout = cluster.json(&["stat", &format!("/d/{name}")]);
            for part in layout["parts"].as_array().unwrap() {
                assert_ne!(part["replicas"][0]["node"], 0, "{name}: {layout}");
            }
        }
        let mut rest = vec![0; bytes.len()];
        open.read_exact_at(&mut rest, 0).unwrap();
        assert!(rest == bytes);
        drop(open);
        wait("the node is in no use", || {
            cluster.run(&["node", "remove", "0"]).ok
        });
        cluster.kill_node(0);
        std::fs::rename(cluster.node_directory(0), cluster.path("gone")).unwrap();
        for name in ["a", "b", "c", "w", "new"] {
            assert!(
                std::fs::read(cluster.at("d").join(name)).unwrap() == bytes,
                "{name}"
            );
        }
        let check = cluster.run(&["cluster", "fsck", "--age", "0s"]);
        assert!(check.ok, "{}{}", check.out, check.err);
    }
}

#[test]
fn remaining_bytes_of_corrupt_striped_file_can_be_read() {
    let Some(cluster) = three(true) else { return };
    let mut bytes = Chance(3).bytes(1_000_000);
    put(&cluster, &bytes, &["--stripe", "64KiB,3"], "/f");
    let scrub = cluster.run(&["cluster", "scrub", "--wait"]);
    assert!(scrub.ok, "{}{}", scrub.out, scrub.err);
    let parts = parts(&cluster, "/f");
    let object = OpenOptions::new().write(true).open(&parts[1]).unwrap();
    object.write_all_at(&[!bytes[64 << 10]], 0).unwrap();
    std::fs::remove_file(&parts[2]).unwrap();
    let found = cluster.run(&["cluster", "scrub", "--wait", "/f"]);
    assert!(
        !found.ok && found.out.contains("2 corrupt"),
        "{}",
        found.out
    );
    let back = cluster.path("back");
    let back = back.to_str().unwrap();
    let refused = cluster.run(&["get", "/f", back]);
    assert!(
        !refused.ok && refused.err.contains("--corrupt"),
        "{}",
        refused.err
    );
    let got = cluster.run(&["get", "--corrupt", "/f", back]);
    assert!(got.ok, "{}", got.err);
    bytes[64 << 10] = !bytes[64 << 10];
    for stripe in bytes.chunks_mut(64 << 10).skip(2).step_by(3) {
        stripe.fill(0);
    }
    assert!(std::fs::read(back).unwrap() == bytes);
    // Without corruption, the output equals that without the flag.
    put(&cluster, &bytes, &["--stripe", "64KiB,3"], "/f");
    assert!(cluster.run(&["get", "--corrupt", "/f", back]).ok);
    assert!(std::fs::read(back).unwrap() == bytes);
}

/// Returns the node of each part of a file, from `layout`.
fn nodes(cluster: &Cluster, path: &str) -> Vec<u64> {
    let layout = cluster.json(&["stat", path]);
    let parts = layout["parts"].as_array().unwrap().iter();
    parts
        .map(|part| part["replicas"][0]["node"].as_u64().unwrap())
        .collect()
}

/// Stores a file with stripes of 64 KiB on three nodes.
fn with_stripes(cluster: &Cluster, bytes: &[u8]) {
    cluster.sh("mkdir d");
    assert!(cluster.run(&["set", "/d", "stripe=64KiB"]).ok);
    std::fs::write(cluster.at("d/f"), bytes).unwrap();
    sealed(cluster, "/d/f");
}

/// Returns the bytes in part `index` of three of a file with stripes of 64 KiB.
fn part_of(bytes: &[u8], index: usize) -> Vec<u8> {
    let stripes = bytes.chunks(64 << 10).skip(index).step_by(3);
    stripes.flatten().copied().collect()
}

#[test]
fn task_per_part_runs_on_its_node_without_transfer() {
    for remote in [false, true] {
        let Some(cluster) = three(remote) else { return };
        let bytes = Chance(5).bytes((1 << 20) + 77);
        with_stripes(&cluster, &bytes);
        let script = r#"name = "j"; workdir = "/"; policy = "input-locality"; tasks = ( { name = "t{p}"; foreach = { p = "0..2"; };
            kernel = "cp"; type = "program"; args = [ "{inputs}", "o{p}" ]; input = ( { file = "d/f"; part = "{p}"; name = "part"; } ); output = [ "o{p}" ]; } );"#;
        let job = cluster.submit(script);
        cluster.done(job);
        let locations = nodes(&cluster, "/d/f");
        let reported = cluster.json(&["job", "show", &job.to_string()]);
        for (index, task) in reported["tasks"].as_array().unwrap().iter().enumerate() {
            let read = got(&cluster, &format!("/o{index}"));
            assert!(read == part_of(&bytes, index), "part {index}");
            assert_eq!(task["node"].as_u64(), Some(locations[index]), "{task:#}");
            assert_eq!(task["transferred_bytes"].as_u64(), Some(0), "{task:#}");
            assert_eq!(task["read_bytes"].as_u64(), Some(read.len() as u64));
            assert_eq!(task["selections"][0], format!("part {index}"));
        }
        let printed = cluster.run(&["job", "explain", &job.to_string()]);
        assert!(
            printed.out.contains("reads  /d/f, part 1\n"),
            "{}",
            printed.out
        );
        let lineage = cluster.json(&["lineage", "show", "/o1", "--format", "json"]);
        assert_eq!(lineage["runs"][0]["inputs"][0]["selection"], "part 1");
    }
}

#[test]
fn task_of_byte_range_transfers_only_its_bytes() {
    for remote in [false, true] {
        let Some(cluster) = three(remote) else { return };
        let bytes = Chance(6).bytes((1 << 20) + 77);
        with_stripes(&cluster, &bytes);
        let locations = nodes(&cluster, "/d/f");
        // The end of the first stripe and the start of the second, and the last bytes; the task runs where the first part is not.
        let ranges = "65000-66000,1048600-1048652";
        let script = format!(
            r#"name = "j"; workdir = "/"; tasks = ( {{ name = "t"; kernel = "cat"; type = "program"; args = [ "head", "d/f" ]; stdout = "o";
               input = ( {{ file = "d/f"; bytes = "{ranges}"; }}, {{ file = "d/f"; part = 2; bytes = "0-9"; name = "head"; }} );
               output = [ "o" ]; node = {}; }} );"#,
            locations[1]
        );
        let before = planned(&cluster, &script);
        let job = cluster.submit(&script);
        cluster.done(job);
        let expected = [
            &part_of(&bytes, 2)[..10],
            &bytes[65_000..=66_000],
            &bytes[1_048_600..],
        ];
        assert!(got(&cluster, "/o") == expected.concat());
        let reported = cluster.json(&["job", "show", &job.to_string()]);
        // 536 bytes of the first stripe, ten of the third part, and the last stripe, which is the second's.
        let moved: u64 = 536 + 10;
        assert_eq!(
            reported["tasks"][0]["transferred_bytes"], moved,
            "{reported:#}"
        );
        assert_eq!(reported["tasks"][0]["read_bytes"], 10 + 1001 + 53);
        assert_eq!((before, simulated(&cluster, job)), (moved, moved));
        let printed = cluster.run(&["job", "explain", &job.to_string()]);
        assert!(
            printed.out.contains("bytes 65000-66000,1048600-1048652"),
            "{}",
            printed.out
        );
        assert!(printed.out.contains("546 B fetched"), "{}", printed.out);
        // On another node more would be transferred: the requested bytes, not the file.
        let explained = cluster.json(&["job", "explain", &job.to_string()]);
        for estimate in explained["decisions"][0]["estimates"].as_array().unwrap() {
            let bytes = estimate["transfer_bytes"].as_u64().unwrap();
            assert!(bytes <= 1064, "{explained:#}");
        }
    }
}

/// Returns the number of transferred bytes in the plan of a job before its submission.
fn planned(cluster: &Cluster, script: &str) -> u64 {
    let file = cluster.path("planned.conf");
    std::fs::write(&file, script).unwrap();
    let dry = cluster.json(&["submit", "--dry-run", file.to_str().unwrap()]);
    dry["plan"]["transferred_bytes"].as_u64().unwrap()
}

/// Returns the number of transferred bytes in the simulation of a job's trace.
fn simulated(cluster: &Cluster, job: u64) -> u64 {
    let trace = cluster.path("trace.json");
    let trace = trace.to_str().unwrap();
    let printed = cluster.run(&["job", "export-trace", &job.to_string(), "--output", trace]);
    assert!(printed.ok, "{}", printed.err);
    let simulated = cluster.json(&["plan", "run", trace]);
    simulated["transferred_bytes"].as_u64().unwrap()
}

#[test]
fn bytes_moved_for_striped_file_are_predicted() {
    let Some(cluster) = three(true) else { return };
    let bytes = Chance(4).bytes((1 << 20) + 77);
    with_stripes(&cluster, &bytes);
    let locations = nodes(&cluster, "/d/f");
    let task = |name: &str, input: &str, node: u64| {
        format!(
            r#"{{ name = "{name}"; kernel = "cp"; type = "program"; args = [ "{{inputs}}", "{name}.out" ]; input = ( {input} );
               output = [ "{name}.out" ]; node = {node}; }}"#
        )
    };
    let tasks = [
        task("all", r#""d/f""#, locations[0]),
        task("part", r#"{ file = "d/f"; part = 1; }"#, locations[2]),
        task("here", r#"{ file = "d/f"; part = 2; }"#, locations[2]),
        task(
            "some",
            r#"{ file = "d/f"; bytes = "5-100004"; }"#,
            locations[1],
        ),
    ];
    let script = format!(
        r#"name = "j"; workdir = "/"; tasks = ( {} );"#,
        tasks.join(", ")
    );
    let before = planned(&cluster, &script);
    let job = cluster.submit(&script);
    cluster.done(job);
    let moved = [
        bytes.len() - part_of(&bytes, 0).len(),
        part_of(&bytes, 1).len(),
        0,
        65_531,
    ];
    let reported = cluster.job(job);
    for (task, moved) in reported["tasks"].as_array().unwrap().iter().zip(moved) {
        assert_eq!(
            task["transferred_bytes"].as_u64(),
            Some(moved as u64),
            "{task:#}"
        );
    }
    let all: u64 = moved.iter().map(|&moved| moved as u64).sum();
    assert_eq!((before, simulated(&cluster, job)), (all, all));
}

#[test]
fn selection_beyond_file_is_refused_once_known() {
    let Some(cluster) = three(false) else { return };
    let bytes = Chance(7).bytes(100_000);
    with_stripes(&cluster, &bytes);
    std::fs::write(cluster.at("whole"), b"0123456789").unwrap();
    let script = |input: &str| {
        format!(
            r#"name = "j"; workdir = "/"; tasks = ( {{ name = "t"; kernel = "cat"; type = "program"; args = [ "{{inputs}}" ];
               stdout = "o"; input = ( {input} ); output = [ "o" ]; }} );"#
        )
    };
    let refused = |input: &str| {
        let printed = cluster.try_submit(&script(input));
        assert!(!printed.ok, "{}", printed.out);
        printed.err
    };
    let printed = refused(r#"{ file = "d/f"; bytes = "0-100000"; }"#);
    assert!(
        printed.contains("bytes up to 100000 are asked for, and it has 100000"),
        "{printed}"
    );
    let printed = refused(r#"{ file = "d/f"; part = 2; bytes = "0-0"; }"#);
    assert!(printed.contains("that part has 0"), "{printed}");
    let printed = refused(r#"{ file = "d/f"; part = 3; }"#);
    assert!(printed.contains("it has no part 3"), "{printed}");
    let printed = refused(r#"{ file = "whole"; part = 1; }"#);
    assert!(printed.contains("it has no part 1"), "{printed}");
    // Only the node detects a wrong range of a future file, and does not try again.
    let late = r#"name = "j"; workdir = "/"; tasks = (
        { name = "make"; kernel = "cp"; type = "program"; args = [ "whole", "made" ]; input = [ "whole" ]; output = [ "made" ]; },
        { name = "fits"; kernel = "cp"; type = "program"; args = [ "made", "o" ]; input = ( { file = "made"; bytes = "2-3"; } ); output = [ "o" ]; },
        { name = "not"; kernel = "cp"; type = "program"; args = [ "made", "p" ]; input = ( { file = "made"; bytes = "2-10"; } ); output = [ "p" ]; } );"#;
    let job = cluster.submit(late);
    let reported = cluster.ended(job);
    assert_eq!(reported["state"], "failed", "{reported:#}");
    assert_eq!(got(&cluster, "/o"), b"23");
    let failed = &reported["tasks"][2];
    let error = failed["error"].as_str().unwrap();
    assert!(
        error.contains("bytes up to 10 are asked for, and it has 10"),
        "{failed:#}"
    );
    assert_eq!(failed["tries"], 1, "{failed:#}");
}

/// A result of a part is never used for another part, or for the whole. An equal selection reuses the result.
#[test]
fn results_of_striped_file_parts_are_cached_separately() {
    let Some(cluster) = three(false) else { return };
    let bytes = Chance(8).bytes(300_000);
    with_stripes(&cluster, &bytes);
    let run = |directory: &str, input: &str| {
        cluster.sh(&format!("mkdir {directory}"));
        let script = format!(
            r#"name = "j"; workdir = "/{directory}"; tasks = ( {{ name = "t"; kernel = "sha256sum"; type = "program"; stdin = "/d/f";
               input = ( {input} ); stdout = "o"; output = [ "o" ]; }} );"#
        );
        let reported = cluster.done(cluster.submit(&script));
        let reused = reported["tasks"][0]["reused_task"].is_u64();
        let sum = String::from_utf8(got(&cluster, &format!("/{directory}/o"))).unwrap();
        (reused, sum)
    };
    let inputs = [
        r#""/d/f""#,
        r#"{ file = "/d/f"; part = 0; }"#,
        r#"{ file = "/d/f"; part = 1; }"#,
        r#"{ file = "/d/f"; bytes = "0-65535"; }"#,
        r#"{ file = "/d/f"; part = 0; bytes = "0-65535"; }"#,
    ];
    let all = |round: &str| -> Vec<(bool, String)> {
        let inputs = (0..).zip(inputs);
        inputs
            .map(|(at, input): (u32, _)| run(&format!("{round}{at}"), input))
            .collect()
    };
    let (first, again) = (all("first"), all("again"));
    for (first, again) in first.iter().zip(&again) {
        assert!(!first.0 && again.0, "{first:?} {again:?}");
        assert_eq!(first.1, again.1);
    }
    let mut sums: Vec<&String> = first.iter().map(|(_, sum)| sum).collect();
    sums.sort();
    sums.dedup();
    // The first stripe is the start of the first part.
    assert_eq!(sums.len(), inputs.len() - 1);
    // The same file with another stripe size: its ranges are the same, its parts differ.
    assert!(cluster.run(&["set", "/d", "stripe=128KiB"]).ok);
    std::fs::write(cluster.at("d/new"), &bytes).unwrap();
    cluster.sh("mv d/new d/f");
    sealed(&cluster, "/d/f");
    let (reused, sum) = run("otherwise", inputs[1]);
    assert!(!reused && sum != first[1].1);
}

/// Sets the stripes of `/d`, and rewrites the files of a path. Returns the output, also as JSON.
fn rewritten(cluster: &Cluster, path: &str, stripes: &str) -> (Printed, Value) {
    let stripes = format!("stripe={stripes}");
    assert!(cluster.run(&["set", "/d", &stripes]).ok);
    let printed = cluster.run(&["--json", "migrate", "--rewrite", path]);
    let value = serde_json::from_str(&printed.out).unwrap_or_default();
    (printed, value)
}

#[test]
fn existing_files_are_rewritten_striped_or_whole() {
    for remote in [false, true] {
        let Some(mut cluster) = three(remote) else {
            return;
        };
        let bytes = Chance(5).bytes(20_000_000);
        cluster.sh("mkdir d d/sub; setfattr -n user.tidemill.replicas -v 2 d");
        std::fs::write(cluster.at("d/f"), &bytes).unwrap();
        cluster.sh("echo small > d/sub/g; touch d/empty; chmod 640 d/f; touch -d 2001-02-03 d/f; ln d/f d/second; ln -s f d/link");
        sealed(&cluster, "/d/f");
        let stat = |cluster: &Cluster| cluster.sh("stat -c '%a %u %s %y' d/f");
        let before = stat(&cluster);
        let mut open = File::open(cluster.at("d/f")).unwrap();
        let refused = cluster.run(&["set", "/d/f", "stripe=64KiB"]);
        assert!(
            !refused.ok && refused.err.contains("--rewrite"),
            "{}",
            refused.err
        );
        let (_, done) = rewritten(&cluster, "/d/f", "64KiB,2");
        assert_eq!(
            (done["files"].as_u64(), done["bytes"].as_u64()),
            (Some(1), Some(20_000_000))
        );
        assert_eq!(parts(&cluster, "/d/f").len(), 2);
        assert!(got(&cluster, "/d/f") == bytes);
        assert!(std::fs::read(cluster.at("d/f")).unwrap() == bytes);
        assert_eq!(stat(&cluster), before);
        assert_eq!(
            cluster.sh("getfattr --only-values -n user.tidemill.replicas d/f"),
            "2"
        );
        // A reader with the old file open can continue to read.
        let mut read = Vec::new();
        std::io::Read::read_to_end(&mut open, &mut read).unwrap();
        assert!(read == bytes);
        // A file that is open for writing is not changed.
        let mut written = OpenOptions::new()
            .append(true)
            .open(cluster.at("d/f"))
            .unwrap();
        written.write_all(b"more").unwrap();
        let (refused, _) = rewritten(&cluster, "/d/f", "off");
        assert!(
            !refused.ok && refused.err.contains("being written"),
            "{}",
            refused.err
        );
        drop(written);
        let bytes = [&bytes[..], b"more"].concat();
        assert!(got(&cluster, "/d/f") == bytes);
        // The file is made from any available replica.
        wait("it has its replicas", || {
            let layout = cluster.json(&["stat", "/d/f"]);
            layout["parts"].as_array().unwrap().iter().all(|part| {
                let replicas = part["replicas"].as_array().unwrap();
                replicas.len() == 2 && replicas.iter().all(|replica| replica["state"] == "current")
            })
        });
        cluster.kill_node(0);
        let (printed, _) = rewritten(&cluster, "/d/f", "off");
        assert!(printed.ok, "{}", printed.err);
        assert_eq!(cluster.json(&["stat", "/d/f"])["layout"], "whole");
        assert!(got(&cluster, "/d/f") == bytes);
        cluster.start_node(0);
        cluster.wait_for_nodes(3);
        // A directory with all its contents, each file once.
        let (_, done) = rewritten(&cluster, "/d", "8KiB");
        assert_eq!(done["files"], 3, "{done}");
        assert_eq!(parts(&cluster, "/d/f").len(), 3);
        assert_eq!(parts(&cluster, "/d/sub/g").len(), 3);
        assert_eq!(cluster.sh("cat d/sub/g d/empty"), "small\n");
        assert!(got(&cluster, "/d/second") == bytes);
        assert_eq!(cluster.json(&["set", "/d"])["settings"]["stripe"], "8KiB");
    }
}

/// A job reads the version that existed when it was submitted. This holds for parts and ranges, too.
#[test]
fn job_reads_parts_of_version_at_submission() {
    let Some(mut cluster) = three(false) else {
        return;
    };
    let bytes = Chance(11).bytes(400_000);
    with_stripes(&cluster, &bytes);
    let script = r#"name = "j"; workdir = "/"; tasks = ( { name = "t"; kernel = "cat"; type = "program"; args = [ "part", "some" ];
        input = ( { file = "d/f"; part = 1; name = "part"; }, { file = "d/f"; bytes = "70000-300000"; name = "some"; }, "go" );
        output = [ "o" ]; stdout = "o"; } );"#;
    let job = cluster.submit(script);
    std::fs::write(cluster.at("d/f"), b"another").unwrap();
    sealed(&cluster, "/d/f");
    // A restarted server uses the same versions.
    cluster.kill_server();
    cluster.start_server();
    cluster.wait_for_nodes(3);
    std::fs::write(cluster.at("go"), b"now").unwrap();
    cluster.done(job);
    let expected = [&part_of(&bytes, 1)[..], &bytes[70_000..=300_000]].concat();
    assert!(got(&cluster, "/o") == expected);
}
