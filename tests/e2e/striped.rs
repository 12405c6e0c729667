//! Files that lie on several elements, in an array of real processes.

use crate::array::{Array, Options, wait};
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Numbers that look as if by chance, the same in each run.
struct Chance(u64);

impl Chance {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % below
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let byte = |_| u8::try_from(self.next(256)).unwrap();
        (0..count).map(byte).collect()
    }
}

fn three(remote: bool) -> Option<Array> {
    Array::with(Options {
        elements: 3,
        remote,
        ..Options::default()
    })
}

/// The object files of a striped file's parts.
fn parts(array: &Array, path: &str) -> Vec<PathBuf> {
    let layout = array.json(&["layout", path]);
    assert_eq!(layout["layout"], "striped", "{layout}");
    let part = |part: &Value| {
        let object = part["object"].as_str().unwrap();
        let element = part["copies"][0]["element"].as_u64().unwrap();
        let folder = array.element_folder(usize::try_from(element).unwrap());
        folder.join(format!("objects/{}/{object}", &object[14..]))
    };
    layout["parts"]
        .as_array()
        .unwrap()
        .iter()
        .map(part)
        .collect()
}

fn put(array: &Array, bytes: &[u8], flags: &[&str], path: &str) {
    let local = array.path("local");
    std::fs::write(&local, bytes).unwrap();
    let said = array.run(&[&["put"], flags, &[local.to_str().unwrap(), path]].concat());
    assert!(said.ok, "{}", said.err);
}

fn got(array: &Array, path: &str) -> Vec<u8> {
    let local = array.path("got");
    let said = array.run(&["get", path, local.to_str().unwrap()]);
    assert!(said.ok, "{}", said.err);
    std::fs::read(local).unwrap()
}

fn sealed(array: &Array, path: &str) {
    wait("the file is sealed", || {
        array.json(&["ls", path])["entries"][0]["writing"] != true
    });
}

#[test]
fn what_is_written_to_a_striped_file_is_read_from_all_its_elements() {
    for remote in [false, true] {
        let Some(array) = three(remote) else { return };
        array.sh("mkdir d");
        assert!(array.run(&["stripe", "/d", "64KiB"]).ok);
        assert_eq!(array.run(&["stripe", "/d"]).out, "/d: 64KiB\n");
        let mut chance = Chance(7);
        let bytes = chance.bytes((5 << 20) + 123);
        std::fs::write(array.at("d/f"), &bytes).unwrap();
        assert!(std::fs::read(array.at("d/f")).unwrap() == bytes);
        sealed(&array, "/d/f");
        assert!(got(&array, "/d/f") == bytes);
        // Each part is the file's stripes one after the other.
        for (index, part) in parts(&array, "/d/f").iter().enumerate() {
            let stripes = bytes.chunks(64 << 10).skip(index).step_by(3);
            assert!(std::fs::read(part).unwrap() == stripes.collect::<Vec<_>>().concat());
        }
        let said = array.sh("stat -c %s d/f; getfattr --only-values -n user.tidemill.stripe d/f; echo x >> d/f; tail -c 2 d/f");
        assert_eq!(said, format!("{}\n64KiB,3x\n", bytes.len()));
        sealed(&array, "/d/f");
        assert!(got(&array, "/d/f") == [&bytes[..], b"x\n"].concat());
        put(&array, &bytes[..1 << 20], &["--stripe", "4096,2"], "/g");
        assert!(std::fs::read(array.at("g")).unwrap() == bytes[..1 << 20]);
        assert_eq!(parts(&array, "/g").len(), 2);
        put(&array, b"", &["--stripe", "1MiB"], "/empty");
        assert_eq!(std::fs::read(array.at("empty")).unwrap(), b"");
        assert_eq!(got(&array, "/empty"), b"");
        let check = array.run(&["check", "--age", "0"]);
        assert!(check.ok, "{}{}", check.out, check.err);
        let all = [parts(&array, "/d/f"), parts(&array, "/g")].concat();
        array.sh("rm d/f g");
        wait("all parts are removed", || {
            all.iter().all(|part| !part.exists())
        });
        let check = array.run(&["check", "--age", "0"]);
        assert!(check.ok, "{}{}", check.out, check.err);
    }
}

/// One change of a file.
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
fn random_writes_to_a_striped_file_leave_what_they_leave_in_any_file() {
    for remote in [false, true] {
        let Some(array) = three(remote) else { return };
        array.sh("mkdir d");
        assert!(array.run(&["stripe", "/d", "8KiB,3"]).ok);
        let mut chance = Chance(11);
        let bytes = chance.bytes(300_000);
        let (ours, model) = (array.at("d/f"), array.path("model"));
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
            sealed(&array, "/d/f");
            assert!(got(&array, "/d/f") == written, "{remote} {round}");
        }
    }
}

#[test]
fn what_reached_the_elements_is_sealed_when_a_mount_dies() {
    for remote in [false, true] {
        let Some(mut array) = three(remote) else {
            return;
        };
        array.sh("mkdir d");
        assert!(array.run(&["stripe", "/d", "64KiB"]).ok);
        let bytes = Chance(5).bytes(1 << 20);
        let mut file = File::create(array.at("d/f")).unwrap();
        file.write_all(&bytes).unwrap();
        file.sync_all().unwrap();
        array.kill_mount();
        drop(file);
        wait("the server seals it", || {
            array.json(&["ls", "/d/f"])["entries"][0]["size"] == 1 << 20
        });
        assert!(got(&array, "/d/f") == bytes);
        let check = array.run(&["check", "--age", "0"]);
        assert!(check.ok, "{}{}", check.out, check.err);
    }
}

#[test]
fn tasks_read_a_striped_file_as_one_wherever_they_run() {
    for remote in [false, true] {
        let Some(array) = three(remote) else { return };
        array.sh("mkdir d");
        assert!(array.run(&["stripe", "/d", "64KiB"]).ok);
        let bytes = Chance(3).bytes((1 << 20) + 77);
        std::fs::write(array.at("d/f"), &bytes).unwrap();
        let sum = array.sh("sha256sum < d/f");
        let task = |element: u32| {
            format!(
                r#"{{ name = "t{element}"; kernel = "/usr/bin/sha256sum"; stdin = "d/f"; input = ["d/f"];
                   output = ["o{element}"]; stdout = "o{element}"; element = {element}; }}"#
            )
        };
        let free = r#"{ name = "free"; kernel = "/usr/bin/sha256sum"; stdin = "d/f"; input = ["d/f"];
            output = ["o"]; stdout = "o"; }"#;
        let tasks = [task(0), task(1), task(2), free.to_owned()].join(",");
        let script =
            format!(r#"name = "j"; workdir = "/"; policy = "input-locality"; tasks = ({tasks});"#);
        array.done(array.submit(&script));
        for output in ["o", "o0", "o1", "o2"] {
            assert_eq!(array.sh(&format!("cat {output}")), sum);
        }
        // Two of three parts had to come.
        let jobs = array.json(&["jobs", "1"]);
        let moved = jobs["tasks"][0]["moved_bytes"].as_u64().unwrap();
        assert!((640 << 10..=768 << 10).contains(&moved), "{moved}");
        // What a job makes in such a folder is a file like others.
        let lineage = array.run(&["lineage", "/o1"]);
        assert!(
            lineage.ok && lineage.out.contains("d/f"),
            "{}{}",
            lineage.out,
            lineage.err
        );
    }
}

#[test]
fn a_rebuilt_array_has_its_striped_files() {
    let Some(mut array) = three(false) else {
        return;
    };
    array.sh("mkdir d; setfattr -n user.tidemill.stripe -v 4096 d");
    let bytes = Chance(9).bytes(100_000);
    std::fs::write(array.at("d/f"), &bytes).unwrap();
    array.sh("mv d/f d/g; setfattr -n user.tidemill.copies -v 2 d; head -c 50000 d/g > d/h");
    wait("all parts are copied", || {
        let layout = array.json(&["layout", "/d/h"]);
        let parts = layout["parts"].as_array().unwrap();
        parts.iter().all(|part| {
            let copies = part["copies"].as_array().unwrap();
            copies.len() == 2 && copies.iter().all(|copy| copy["state"] == "current")
        })
    });
    let lost = array.element_folder(0);
    let said = array.rebuild();
    assert_eq!(
        (&said["missing"], &said["unnoted"]),
        (&Value::from([0; 0]), &Value::from([0; 0])),
        "{said}"
    );
    assert!(std::fs::read(array.at("d/g")).unwrap() == bytes);
    assert!(std::fs::read(array.at("d/h")).unwrap() == bytes[..50_000]);
    let check = array.run(&["check", "--age", "0"]);
    assert!(check.ok, "{}{}", check.out, check.err);
    // Of each part there is a copy elsewhere.
    array.kill_element(0);
    std::fs::rename(&lost, array.path("lost")).unwrap();
    assert!(got(&array, "/d/h") == bytes[..50_000]);
    assert!(std::fs::read(array.at("d/h")).unwrap() == bytes[..50_000]);
}

#[test]
fn what_is_no_striping_is_refused_and_says_why() {
    let Some(array) = three(false) else { return };
    array.sh("mkdir d; echo x > f");
    for bad in ["0", "1000", "1MB", "x", "4096,0", "4096,9999", "2GiB"] {
        let said = array.run(&["stripe", "/d", bad]);
        assert!(!said.ok && said.err.contains(bad), "{}", said.err);
        assert!(
            !array
                .try_sh(&format!("setfattr -n user.tidemill.stripe -v {bad} d"))
                .ok
        );
        let local = array.path("local");
        std::fs::write(&local, "x").unwrap();
        let said = array.run(&["put", "--stripe", bad, local.to_str().unwrap(), "/g"]);
        assert!(!said.ok, "{bad}");
    }
    // More elements than there are.
    assert!(array.run(&["stripe", "/d", "4096,4"]).ok);
    let said = array.try_sh("echo x > d/g");
    assert!(
        !said.ok && said.err.contains("Invalid argument"),
        "{}",
        said.err
    );
    let local = array.path("local");
    let said = array.run(&["put", local.to_str().unwrap(), "/d/g"]);
    assert!(
        !said.ok && said.err.contains("4 elements: 3 are up"),
        "{}",
        said.err
    );
    let said = array.run(&["stripe", "/f", "4096"]);
    assert!(
        !said.ok && said.err.contains("/f is a file"),
        "{}",
        said.err
    );
    assert!(
        !array
            .try_sh("setfattr -n user.tidemill.stripe -v 4096 f")
            .ok
    );
    // A folder below may say otherwise.
    assert!(array.run(&["stripe", "/d", "off"]).ok);
    array.sh("echo x > d/g");
    assert_eq!(array.json(&["layout", "/d/g"])["layout"], "whole");
}

#[test]
fn parts_leave_an_element_that_is_emptied_and_readers_do_not_notice() {
    for remote in [false, true] {
        let Some(mut array) = three(remote) else {
            return;
        };
        array.sh("mkdir d; setfattr -n user.tidemill.stripe -v 16KiB,2 d");
        let bytes = Chance(13).bytes(200_000);
        for name in ["a", "b", "c"] {
            std::fs::write(array.at("d").join(name), &bytes).unwrap();
            sealed(&array, &format!("/d/{name}"));
        }
        let open = File::open(array.at("d/a")).unwrap();
        let mut read = vec![0; 100];
        open.read_exact_at(&mut read, 0).unwrap();
        // What is being written there ends there, and goes then.
        let mut writing = File::create(array.at("d/w")).unwrap();
        writing.write_all(&bytes[..100_000]).unwrap();
        let said = array.run(&["move", "/d/a", "--element", "0"]);
        assert!(!said.ok && said.err.contains("striped"), "{}", said.err);
        assert!(array.run(&["element", "drain", "0"]).ok);
        writing.write_all(&bytes[100_000..]).unwrap();
        drop(writing);
        sealed(&array, "/d/w");
        let said = array.run(&["element", "drain", "0", "--wait"]);
        assert!(said.ok, "{}", said.err);
        std::fs::write(array.at("d/new"), &bytes).unwrap();
        sealed(&array, "/d/new");
        for name in ["a", "b", "c", "w", "new"] {
            let layout = array.json(&["layout", &format!("/d/{name}")]);
            for part in layout["parts"].as_array().unwrap() {
                assert_ne!(part["copies"][0]["element"], 0, "{name}: {layout}");
            }
        }
        let mut rest = vec![0; bytes.len()];
        open.read_exact_at(&mut rest, 0).unwrap();
        assert!(rest == bytes);
        drop(open);
        wait("the element is in no use", || {
            array.run(&["element", "remove", "0"]).ok
        });
        array.kill_element(0);
        std::fs::rename(array.element_folder(0), array.path("gone")).unwrap();
        for name in ["a", "b", "c", "w", "new"] {
            assert!(
                std::fs::read(array.at("d").join(name)).unwrap() == bytes,
                "{name}"
            );
        }
        let check = array.run(&["check", "--age", "0"]);
        assert!(check.ok, "{}{}", check.out, check.err);
    }
}
