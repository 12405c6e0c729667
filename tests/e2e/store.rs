//! Tests a full disk of the server's database, and its recovery.

use crate::array::{Array, Device, Options, wait};

fn trouble(array: &Array) -> String {
    let status = array.json(&["status"]);
    status["trouble"].as_str().unwrap().to_owned()
}

/// Makes folders until there is no space for another; returns their number.
fn make_folders(array: &Array, from: usize) -> usize {
    let mut made = from;
    loop {
        let said = array.try_sh(&format!("mkdir w/{made}"));
        if !said.ok {
            assert!(said.err.contains("No space left on device"), "{}", said.err);
            return made;
        }
        made += 1;
    }
}

#[test]
fn names_and_jobs_resume_when_disk_has_space() {
    let mut disk = None;
    let made = Array::prepared(Options::default(), |array| {
        disk = Some(Device::new(array.path("server"), "6m"));
    });
    let (Some(mut array), Some(disk)) = (made, disk) else {
        return;
    };
    array.sh("mkdir w; echo 3 > w/in; sync w/in");
    let copy = r#"name = "copy"; workdir = "/w"; tasks = (
        { name = "one"; kernel = "/bin/sh"; args = ["-c", "sleep 6; cat in > mid"];
          input = ["in"]; output = ["mid"]; },
        { name = "two"; kernel = "/bin/cp"; args = ["mid", "out"]; input = ["mid"]; output = ["out"]; } );"#;
    let job = array.submit(copy);
    wait("the job runs", || {
        array.job(job)["tasks"][0]["state"] == "running"
    });

    disk.fill();
    let made = make_folders(&array, 0);
    assert!(
        trouble(&array).contains("free some space"),
        "{}",
        trouble(&array)
    );
    let refused = array.try_submit(copy);
    assert!(
        !refused.ok && refused.err.contains("free some space"),
        "{}",
        refused.err
    );
    // The task ends after a while, and the end cannot be stored.
    wait("the dispatcher waits", || {
        trouble(&array).starts_with("jobs wait: ")
    });
    let names = array.try_sh("cat w/out");
    assert!(!names.ok, "not before it is kept");

    disk.free();
    array.done(job);
    assert_eq!(array.sh("cat w/out").trim(), "3");
    assert_eq!(trouble(&array), "");
    array.sh(&format!("mkdir w/{made}"));

    // The server is killed with a full disk, and restarted with free space.
    disk.fill();
    let more = make_folders(&array, made + 1);
    array.kill_server();
    disk.free();
    array.start_server();
    array.wait_for_nodes(2);
    for folder in 0..more {
        assert!(
            array.at(&format!("w/{folder}")).is_dir(),
            "{folder} of {more}"
        );
    }
    array.sh(&format!("mkdir w/{more}"));
    let again = copy.replace("sleep 6; ", "").replace("mid", "mid2");
    array.done(array.submit(&again.replace("\"out\"", "\"out2\"")));

    // A job is deleted completely, or not at all.
    disk.fill();
    let made = make_folders(&array, more + 1);
    let whole = array.json(&["jobs", &job.to_string()]);
    let refused = array.run(&["jobs", "--delete", &job.to_string()]);
    assert!(
        !refused.ok && refused.err.contains("free some space"),
        "{made}: {}{}",
        refused.out,
        refused.err
    );
    assert_eq!(array.json(&["jobs", &job.to_string()]), whole);
    disk.free();
    assert!(array.run(&["jobs", "--delete", &job.to_string()]).ok);
    assert!(!array.run(&["jobs", &job.to_string()]).ok);
}

#[test]
fn files_and_jobs_are_removed_on_full_disk() {
    let mut disk = None;
    let made = Array::prepared(Options::default(), |array| {
        disk = Some(Device::new(array.path("server"), "40m"));
    });
    let (Some(mut array), Some(disk)) = (made, disk) else {
        return;
    };
    array.sh("mkdir w; for n in $(seq 200); do echo $n > w/f$n; done; sync w");
    let copy = r#"name = "copy"; workdir = "/w"; tasks = (
        { name = "one"; kernel = "/bin/cp"; args = ["f1", "out"]; input = ["f1"]; output = ["out"]; } );"#;
    let job = array.submit(copy);
    array.done(job);

    disk.fill();
    make_folders(&array, 0);
    array.sh("for n in $(seq 1 100); do rm w/f$n; done; : > w/f101");
    assert!(array.run(&["jobs", "--delete", &job.to_string()]).ok);

    // The same applies at the start.
    array.kill_server();
    array.start_server();
    array.wait_for_nodes(2);
    array.sh("for n in $(seq 102 200); do rm w/f$n; done");

    disk.free();
    array.sh("mkdir w/more");
    wait("the server has room", || trouble(&array).is_empty());
    array.done(
        array.submit(
            &copy
                .replace("\"f1\"", "\"f101\"")
                .replace("\"out\"", "\"out2\""),
        ),
    );
}
