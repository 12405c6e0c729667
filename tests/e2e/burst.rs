//! The burst tier: new files go to its elements, and drain to those that store.

use crate::array::{Array, Options, wait};
use serde_json::Value;

/// An array with two elements that store, and number 2 of the burst tier.
fn start(args: &[&str]) -> Option<Array> {
    let mut array = Array::with(Options {
        mount: false,
        ..Options::default()
    })?;
    let mut all = vec!["--tier", "burst"];
    all.extend(args);
    array.add_element(&all);
    array.start_mount();
    Some(array)
}

/// Which elements have a file, the first first, and how.
fn places(array: &Array, path: &str) -> Vec<(u64, String)> {
    let layout = array.json(&["layout", path]);
    let copies = layout["parts"][0]["copies"].as_array().unwrap();
    let place = |copy: &Value| {
        let state = copy["state"].as_str().unwrap().to_owned();
        (copy["element"].as_u64().unwrap(), state)
    };
    copies.iter().map(place).collect()
}

fn elements(array: &Array, path: &str) -> Vec<u64> {
    places(array, path)
        .into_iter()
        .map(|(element, _)| element)
        .collect()
}

/// New files lie in the burst tier, whoever writes them, and stay there beside their copies; on request they are gone from there.
/// All of that survives `kill -9` of the server and the element.
#[test]
fn what_is_written_goes_to_the_burst_tier_first_and_drains_from_there() {
    let Some(mut array) = start(&[]) else {
        return;
    };
    array.sh("mkdir d; for i in $(seq 20); do head -c 100000 /dev/urandom > d/$i; done; sha256sum d/* > /tmp/sums-$$; mv /tmp/sums-$$ sums");
    std::fs::write(array.path("local"), b"put").unwrap();
    array.run(&["put", array.path("local").to_str().unwrap(), "/d/put"]);
    for path in ["/d/1", "/d/20", "/d/put", "/sums"] {
        assert_eq!(places(&array, path), [(2, "burst".to_owned())], "{path}");
    }
    let told = array.json(&["status"]);
    let burst = &told["elements"][2];
    assert_eq!(
        (&burst["tier"], &burst["staged"]["drained"]),
        (&"burst".into(), &0.into())
    );
    assert_eq!(burst["staged"]["objects"], 22);
    // Whoever may not change the files may not have them moved either.
    let foreign = array.try_sh(&format!(
        "setpriv --reuid 65534 --regid 65534 --clear-groups {:?} drain /d",
        array.tidemill()
    ));
    assert!(!foreign.ok && foreign.err.contains("/d"), "{}", foreign.err);
    assert!(!array.run(&["move", "/d/1", "--element", "2"]).ok);

    let begun = array.json(&["drain", "/d"]);
    assert!(begun["objects"].as_u64().unwrap() > 0, "{begun}");
    array.kill_server();
    array.kill_element(2);
    array.start_server();
    array.start_element(2);
    array.wait_for_elements(3);
    array.run(&["drain", "/d", "--wait"]);
    let both = places(&array, "/d/7");
    assert_eq!(
        (both.len(), &both[0]),
        (2, &(2, "burst".to_owned())),
        "{both:?}"
    );
    assert_eq!(both[1].1, "current");
    assert_eq!(places(&array, "/sums").len(), 1);
    array.sh("sha256sum --quiet -c sums");

    // A file that somebody reads there stays there meanwhile.
    let reader = std::fs::File::open(array.at("d/7")).unwrap();
    array.run(&["drain", "/d", "--free"]);
    wait("the others are gone from the burst tier", || {
        elements(&array, "/d/8").len() == 1
    });
    assert_ne!(elements(&array, "/d/8"), [2]);
    array.sh("sha256sum --quiet -c sums");
    drop(reader);
    array.run(&["drain", "/d", "--free", "--wait"]);
    assert_ne!(elements(&array, "/d/7"), [2]);

    // What is changed is written there again; what is only added to stays where it is.
    array.sh("echo new > d/8; echo more >> d/9");
    assert_eq!(elements(&array, "/d/8"), [2]);
    assert_ne!(elements(&array, "/d/9"), [2]);
    // A version that goes leaves nothing behind.
    array.sh("rm -r d sums");
    wait("the burst tier is empty", || {
        array.json(&["status"])["elements"][2]["staged"]["objects"] == 0
    });
    let check = array.run(&["check"]);
    assert!(check.ok, "{}{}", check.out, check.err);
}

/// Eight times as much as fits is written: whoever writes waits for the tier to drain, and is not refused.
#[test]
fn writers_wait_for_room_in_the_burst_tier_and_lose_nothing() {
    let Some(array) = start(&["--capacity", "64MiB"]) else {
        return;
    };
    array.sh("for i in $(seq 64); do head -c 8M /dev/urandom > f$i; done; sha256sum f* > sums");
    array.sh("sha256sum --quiet -c sums");
    let first = elements(&array, "/f1");
    assert!(!first.contains(&2), "{first:?}");
    wait("the tier is emptied to its mark", || {
        let free = array.json(&["status"])["elements"][2]["free_bytes"]
            .as_u64()
            .unwrap();
        free >= (64 << 20) / 5
    });
    array.run(&["drain", "/", "--wait"]);
    let health = array.json(&["health"]);
    assert_eq!(health["lost"], 0, "{health}");
}

/// Nothing stores, the tier is full, and more is written at once than fits: only those wait who make files, until there is room
/// again, and no byte is lost.
#[test]
fn a_full_tier_that_can_drain_nowhere_holds_up_only_those_who_make_files() {
    let Some(mut array) = start(&["--capacity", "128MiB"]) else {
        return;
    };
    array.sh("mkdir out; head -c 8M /dev/urandom > first; sha256sum first > sum");
    array.kill_element(0);
    array.kill_element(1);
    let script = "for i in $(seq 40); do head -c 4M /dev/urandom > g$i & done; wait; sha256sum g* > gsums; ls g[0-9]* | wc -l";
    let mut many = std::process::Command::new("sh");
    many.args(["-ec", script]).current_dir(array.at("out"));
    let many = many.stdout(std::process::Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(3));
    array.sh(
        "timeout 10 sha256sum --quiet -c sum; timeout 10 ls -l > /dev/null; mkdir d; mv first d/",
    );
    let put = array.path("put");
    std::fs::write(&put, b"put").unwrap();
    array.kill_server();
    array.start_server();
    array.start_element(0);
    array.start_element(1);
    let said = many.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), "40");
    array.sh("(cd out; sha256sum --quiet -c gsums); cd d; sha256sum --quiet -c ../sum");
    let put = array.run(&["put", put.to_str().unwrap(), "/put"]);
    assert!(put.ok, "{}", put.err);
}

/// An element of the tier that is gone for good: what had drained is there, what had not is named, and nothing else is.
#[test]
fn what_had_drained_survives_the_burst_element_and_the_rest_is_named() {
    let Some(mut array) = start(&[]) else {
        return;
    };
    array.sh("echo kept > kept; echo lost > lost");
    array.run(&["drain", "/kept", "--wait"]);
    array.kill_element(2);
    let said = array.json(&["drain", "/lost"]);
    assert_eq!(said["away"], 2, "{said}");
    assert_eq!(array.sh("cat kept").trim(), "kept");
    let removed = array.run(&["element", "remove", "2", "--lose"]);
    assert!(removed.ok, "{}", removed.err);
    assert_eq!(array.sh("cat kept").trim(), "kept");
    assert!(!array.run(&["cat", "/lost"]).ok);
    wait("the lost file is named, and no other", || {
        array.json(&["status"])["copies"]["lost_paths"] == serde_json::json!(["/lost"])
    });
    // Files go to elements that store from then on.
    array.sh("echo new > new");
    assert_ne!(elements(&array, "/new"), [2]);
}

/// Elements know themselves what they have, so a lost database changes nothing.
#[test]
fn a_database_that_is_made_anew_drains_what_had_not() {
    let Some(mut array) = start(&[]) else {
        return;
    };
    array.sh("mkdir d; echo a > d/a; echo b > d/b");
    array.run(&["drain", "/d/a", "--wait"]);
    array.wait_for_notes();
    array.rebuild();
    wait("the element has said what it has", || {
        array.json(&["status"])["elements"][2]["staged"]["objects"] == 2
    });
    array.run(&["drain", "/d", "--free", "--wait"]);
    for path in ["/d/a", "/d/b"] {
        let places = elements(&array, path);
        assert!(places.len() == 1 && places != [2], "{places:?}");
    }
}
