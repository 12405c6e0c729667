//! Tests a full disk of the server's database, and its recovery.

use crate::cluster::{Cluster, Device, Options, wait};

fn trouble(cluster: &Cluster) -> String {
    let status = cluster.json(&["status"]);
    status["trouble"].as_str().unwrap().to_owned()
}

/// Makes directories until there is no space for another; returns their number.
fn make_directories(cluster: &Cluster, from: usize) -> usize {
    let mut made = from;
    loop {
        let printed = cluster.try_sh(&format!("mkdir w/{made}"));
        if !printed.ok {
            assert!(
                printed.err.contains("No space left on device"),
                "{}",
                printed.err
            );
            return made;
        }
        made += 1;
    }
}

#[test]
fn server_resumes_names_and_jobs_when_disk_has_space() {
    let mut disk = None;
    let made = Cluster::prepared(Options::default(), |cluster| {
        disk = Some(Device::new(cluster.path("server"), "6m"));
    });
    let (Some(mut cluster), Some(disk)) = (made, disk) else {
        return;
    };
    cluster.sh("mkdir w; echo 3 > w/in; sync w/in");
    let copy = r#"name = "copy"; workdir = "/w"; tasks = (
        { name = "one"; kernel = "/bin/sh"; args = ["-c", "sleep 6; cat in > mid"];
          input = ["in"]; output = ["mid"]; },
        { name = "two"; kernel = "/bin/cp"; args = ["mid", "out"]; input = ["mid"]; output = ["out"]; } );"#;
    let job = cluster.submit(copy);
    wait("the job runs", || {
        cluster.job(job)["tasks"][0]["state"] == "running"
    });

    disk.fill();
    let made = make_directories(&cluster, 0);
    assert!(
        trouble(&cluster).contains("free some space"),
        "{}",
        trouble(&cluster)
    );
    let refused = cluster.try_submit(copy);
    assert!(
        !refused.ok && refused.err.contains("free some space"),
        "{}",
        refused.err
    );
    // The task ends after a while, and the end cannot be stored.
    wait("the dispatcher waits", || {
        trouble(&cluster).starts_with("jobs wait: ")
    });
    let names = cluster.try_sh("cat w/out");
    assert!(!names.ok, "not before it is kept");

    disk.free();
    cluster.done(job);
    assert_eq!(cluster.sh("cat w/out").trim(), "3");
    assert_eq!(trouble(&cluster), "");
    cluster.sh(&format!("mkdir w/{made}"));

    // The server is killed with a full disk, and restarted with free space.
    disk.fill();
    let more = make_directories(&cluster, made + 1);
    cluster.kill_server();
    disk.free();
    cluster.start_server();
    cluster.wait_for_nodes(2);
    for directory in 0..more {
        assert!(
            cluster.at(&format!("w/{directory}")).is_dir(),
            "{directory} of {more}"
        );
    }
    cluster.sh(&format!("mkdir w/{more}"));
    let again = copy.replace("sleep 6; ", "").replace("mid", "mid2");
    cluster.done(cluster.submit(&again.replace("\"out\"", "\"out2\"")));

    // A job is deleted completely, or not at all.
    disk.fill();
    let made = make_directories(&cluster, more + 1);
    let whole = cluster.json(&["job", "show", &job.to_string()]);
    let refused = cluster.run(&["job", "delete", &job.to_string()]);
    assert!(
        !refused.ok && refused.err.contains("free some space"),
        "{made}: {}{}",
        refused.out,
        refused.err
    );
    assert_eq!(cluster.json(&["job", "show", &job.to_string()]), whole);
    disk.free();
    assert!(cluster.run(&["job", "delete", &job.to_string()]).ok);
    assert!(!cluster.run(&["job", "show", &job.to_string()]).ok);
}

#[test]
fn server_with_full_disk_still_deletes_files_and_jobs() {
    let mut disk = None;
    let made = Cluster::prepared(Options::default(), |cluster| {
        disk = Some(Device::new(cluster.path("server"), "40m"));
    });
    let (Some(mut cluster), Some(disk)) = (made, disk) else {
        return;
    };
    cluster.sh("mkdir w; for n in $(seq 200); do echo $n > w/f$n; done; sync w");
    let copy = r#"name = "copy"; workdir = "/w"; tasks = (
        { name = "one"; kernel = "/bin/cp"; args = ["f1", "out"]; input = ["f1"]; output = ["out"]; } );"#;
    let job = cluster.submit(copy);
    cluster.done(job);

    disk.fill();
    make_directories(&cluster, 0);
    cluster.sh("for n in $(seq 1 100); do rm w/f$n; done; : > w/f101");
    assert!(cluster.run(&["job", "delete", &job.to_string()]).ok);

    // The same applies at the start.
    cluster.kill_server();
    cluster.start_server();
    cluster.wait_for_nodes(2);
    cluster.sh("for n in $(seq 102 200); do rm w/f$n; done");

    disk.free();
    cluster.sh("mkdir w/more");
    wait("the server has space", || trouble(&cluster).is_empty());
    cluster.done(
        cluster.submit(
            &copy
                .replace("\"f1\"", "\"f101\"")
                .replace("\"out\"", "\"out2\""),
        ),
    );
}
