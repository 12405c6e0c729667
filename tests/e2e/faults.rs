//! Injects real faults: no acknowledged data is lost, and the user gets a report.

use crate::cluster::{Cluster, Device, Options, wait};
use std::process::Command;

/// Returns a job with one task that runs a shell command.
fn shell(command: &str, extra: &str) -> String {
    format!(
        "name = \"s\"; workdir = \"/w\"; tasks = ( {{ name = \"t\"; kernel = \"/bin/sh\"; \
         args = [\"-c\", \"{command}\"]; input = [\"in\"]; output = [\"out\"]; {extra} }} );"
    )
}

#[test]
fn misbehaving_kernel_fails_alone_with_reason() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir w; echo x > w/in");
    let cases = [
        ("crash", shell("echo why >&2; kill -SEGV $$", ""), "signal"),
        ("exit", shell("echo why >&2; exit 3", ""), "3"),
        (
            "hang",
            shell("sleep 1000", "limits = { time = 1; };"),
            "time",
        ),
        (
            "hang in the background",
            shell("sleep 1000 & sleep 1000", "limits = { time = 1; };"),
            "time",
        ),
        (
            "too much",
            shell(
                "head -c 50000000 /dev/zero > out",
                "limits = { output = \\\"1M\\\"; };",
            )
            .replace("\\\"", "\""),
            "output",
        ),
        ("no output", shell("true", ""), "out"),
    ];
    for (what, script, word) in cases {
        let job = cluster.ended(cluster.submit(&script));
        assert_eq!(job["state"], "failed", "{what}");
        let error = job["tasks"][0]["error"].as_str().unwrap();
        assert!(error.contains(word), "{what}: {error}");
        if what == "crash" || what == "exit" {
            let logs = cluster.run(&["job", "logs", &job["job"].to_string()]).out;
            assert!(logs.contains("why"), "{what}: {logs}");
        }
        assert!(
            !cluster.at("w/out").exists(),
            "{what} left a half-written output"
        );
    }
    let memory = r#"name = "m"; workdir = "/w"; tasks = ( { name = "t"; kernel = "python3";
        args = ["-c", "x = bytearray(2 << 30); open('out', 'w').write('x')"]; input = ["in"]; output = ["out"];
        limits = { memory = "256M"; }; } );"#;
    let job = cluster.ended(cluster.submit(memory));
    assert_eq!(job["state"], "failed", "{job}");
    cluster.done(cluster.submit(&shell("cat in > out", "")));
}

#[test]
fn task_retries_are_counted_and_bounded() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir w; echo x > w/in");
    let job = cluster.ended(cluster.submit(&shell("exit 1", "retries = 2;")));
    assert_eq!(job["state"], "failed");
    assert_eq!(job["tasks"][0]["tries"], 3);
}

#[test]
fn full_device_refuses_writes_and_loses_nothing() {
    let mut device = None;
    let options = Options {
        nodes: 1,
        ..Options::default()
    };
    let prepare = |cluster: &Cluster| device = Some(Device::new(cluster.node_directory(0), "64m"));
    let Some(cluster) = Cluster::prepared(options, prepare) else {
        return;
    };
    cluster.sh("echo small > before; mkdir w; echo x > w/in");
    let printed = cluster.try_sh("head -c 100000000 /dev/zero > big");
    assert!(
        !printed.ok && printed.err.contains("No space"),
        "a 64 MB device took 100 MB: {}",
        printed.err
    );
    assert_eq!(cluster.sh("cat before").trim(), "small");
    let job = cluster.ended(cluster.submit(&shell("head -c 90000000 /dev/zero > out", "")));
    assert_eq!(job["state"], "failed", "{job}");
    cluster.sh("rm -f big");
    wait("there is space again", || {
        cluster
            .try_sh("head -c 1000000 /dev/zero > again && sync again")
            .ok
    });
    cluster.done(cluster.submit(&shell("cat in > out", "")));
    assert_eq!(cluster.sh("cat before").trim(), "small");
}

#[test]
fn node_over_its_quota_gets_no_new_files() {
    let options = Options {
        nodes: 1,
        capacity: Some("64M"),
        ..Options::default()
    };
    let Some(cluster) = Cluster::with(options) else {
        return;
    };
    cluster.sh("echo small > before; head -c 60000000 /dev/zero > big");
    let refused = || {
        !cluster
            .try_sh("head -c 1000000 /dev/zero > more && rm more")
            .ok
    };
    wait("the node is known to be full", refused);
    assert_eq!(cluster.sh("cat before").trim(), "small");
    cluster.sh("rm -f big more");
    wait("there is space again", || {
        cluster.try_sh("head -c 1000000 /dev/zero > again").ok
    });
}

/// Returns a job of twelve tasks of half a second each, whose inputs are distributed over the nodes.
fn slow_job() -> String {
    let tasks: Vec<String> = (0..12)
        .map(|i| {
            format!(
                "{{ name = \"t{i}\"; kernel = \"/bin/sh\"; args = [\"-c\", \"sleep 0.5; cp in{i} out{i}\"]; \
                 input = [\"in{i}\"]; output = [\"out{i}\"]; }}"
            )
        })
        .collect();
    format!(
        "name = \"slow\"; workdir = \"/w\"; tasks = ( {} );",
        tasks.join(",\n")
    )
}

fn some_tasks_are_done(cluster: &Cluster, job: u64) -> bool {
    let job = cluster.job(job);
    job["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .any(|task| task["state"] == "done")
}

fn check_slow_outputs(cluster: &Cluster) {
    cluster.sh("for i in $(seq 0 11); do cmp w/in$i w/out$i; done");
}

#[test]
fn job_succeeds_after_its_node_is_killed_and_restarted() {
    let Some(mut cluster) = Cluster::with(Options {
        cores: 1,
        ..Options::default()
    }) else {
        return;
    };
    cluster.sh("mkdir w; for i in $(seq 0 11); do echo $i > w/in$i; done");
    let job = cluster.submit(&slow_job());
    wait("some tasks are done", || some_tasks_are_done(&cluster, job));
    cluster.kill_node(0);
    std::thread::sleep(std::time::Duration::from_secs(5));
    let waiting = cluster.job(job);
    assert_eq!(
        waiting["state"], "running",
        "tasks must wait for inputs that only the lost node has"
    );
    let says = |task: &serde_json::Value| {
        let error = task["error"].as_str().unwrap();
        task["state"] == "waiting" && error.contains("only on node 0, which is down")
    };
    let tasks = waiting["tasks"].as_array().unwrap();
    assert!(tasks.iter().any(says), "{waiting:#}");
    cluster.start_node(0);
    let done = cluster.done(job);
    let tasks = done["tasks"].as_array().unwrap();
    assert!(tasks.iter().all(|task| task["error"] == ""), "{done:#}");
    check_slow_outputs(&cluster);
}

#[test]
fn tasks_of_lost_node_run_on_other_nodes() {
    let Some(mut cluster) = Cluster::with(Options {
        cores: 1,
        ..Options::default()
    }) else {
        return;
    };
    cluster.sh("mkdir w; setfattr -n user.tidemill.node -v 1 w; for i in $(seq 0 11); do echo $i > w/in$i; done");
    let job = cluster.submit(&slow_job().replace(
        "name = \"slow\";",
        "name = \"slow\"; policy = \"round-robin\";",
    ));
    wait("node 0 works", || {
        let job = cluster.job(job);
        job["tasks"]
            .as_array()
            .unwrap()
            .iter()
            .any(|t| t["state"] == "running" && t["node"] == 0)
    });
    cluster.kill_node(0);
    cluster.done(job);
    let explained = cluster.json(&["job", "explain", &job.to_string()]);
    let mut places = std::collections::BTreeMap::<u64, Vec<u64>>::new();
    for decision in explained["decisions"].as_array().unwrap() {
        let task = decision["task"].as_u64().unwrap();
        places
            .entry(task)
            .or_default()
            .push(decision["node"].as_u64().unwrap());
    }
    assert!(
        places
            .values()
            .any(|p| p.len() > 1 && p[0] == 0 && p.last() == Some(&1)),
        "no task moved: {places:?}"
    );
    cluster.start_node(0);
    cluster.wait_for_nodes(2);
    check_slow_outputs(&cluster);
}

/// The server reschedules labels from a node that has not begun them, and the node is killed before it answers.
#[test]
fn node_killed_during_reschedule_keeps_or_returns_labels() {
    let Some(mut cluster) = Cluster::with(Options {
        cores: 1,
        node_timeout_secs: 20,
        ..Options::default()
    }) else {
        return;
    };
    cluster.sh("mkdir w; for i in $(seq 0 11); do echo $i > w/in$i; done");
    cluster.kill_node(1);
    cluster.wait_for_nodes(1);
    let tasks: Vec<String> = (0..4)
        .map(|i| {
            format!(
                r#"{{ name = "t{i}"; kernel = "/bin/sh"; args = ["-c", "sleep 1; echo {i} > o{i}"]; output = ["o{i}"]; }}"#
            )
        })
        .collect();
    let tasks = tasks.join(", ");
    let job = cluster.submit(&format!(
        r#"name = "back"; workdir = "/w"; tasks = ( {tasks} );"#
    ));
    wait("the first runs", || {
        cluster.job(job)["tasks"][0]["state"] == "running"
    });
    cluster.signal_node(0, rustix::process::Signal::STOP);
    cluster.start_node(1);
    cluster.wait_for_nodes(2);
    // The request to the node is in transit, and is never answered.
    cluster.kill_node(0);
    cluster.start_node(0);
    let done = cluster.done(job);
    for (i, task) in done["tasks"].as_array().unwrap().iter().enumerate() {
        assert_eq!(task["state"], "done", "{done:#}");
        assert_eq!(cluster.sh(&format!("cat w/o{i}")), format!("{i}\n"));
    }
    let there = |task: &serde_json::Value| task["node"] == 1;
    assert!(
        done["tasks"].as_array().unwrap().iter().any(there),
        "{done:#}"
    );
    assert!(cluster.run(&["cluster", "fsck"]).ok);
}

#[test]
fn killed_server_continues_its_jobs_after_restart() {
    let Some(mut cluster) = Cluster::with(Options {
        cores: 1,
        ..Options::default()
    }) else {
        return;
    };
    cluster.sh("mkdir w; for i in $(seq 0 11); do echo $i > w/in$i; done");
    let job = cluster.submit(&slow_job());
    for _ in 0..3 {
        std::thread::sleep(std::time::Duration::from_millis(700));
        cluster.kill_server();
        cluster.start_server();
    }
    cluster.done(job);
    wait("the mount is back", || cluster.try_sh("ls w").ok);
    check_slow_outputs(&cluster);
}

#[test]
fn sealed_or_fsynced_file_survives_kill_of_mount() {
    let Some(mut cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir d; for i in $(seq 20); do echo $i > d/f$i; done; sync d/f20");
    let writer = format!(
        "import os,time\nf=open('{}','wb')\nf.write(b'x'*100000)\nf.flush()\nos.fsync(f.fileno())\nprint('synced',flush=True)\ntime.sleep(100)",
        cluster.at("d/open").display()
    );
    let mut child = Command::new("python3")
        .arg("-c")
        .arg(writer)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(child.stdout.as_mut().unwrap()),
        &mut line,
    )
    .unwrap();
    assert_eq!(line.trim(), "synced");
    cluster.kill_mount();
    child.kill().unwrap();
    child.wait().unwrap();
    cluster.start_mount();
    for i in 1..=20 {
        assert_eq!(cluster.sh(&format!("cat d/f{i}")).trim(), i.to_string());
    }
    wait(
        "the interrupted file is sealed at the length that was synced",
        || std::fs::metadata(cluster.at("d/open")).is_ok_and(|m| m.len() == 100_000),
    );
}

#[test]
fn acknowledged_data_survives_kill_of_whole_cluster() {
    let Some(mut cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir -p a/b; echo data > a/b/f; mv a/b/f a/g; sync a/g; mkdir w; echo x > w/in");
    let job = cluster.submit(&shell("sleep 1; cat in > out", ""));
    cluster.kill_mount();
    cluster.kill_server();
    cluster.kill_node(0);
    cluster.kill_node(1);
    cluster.start_server();
    cluster.start_node(0);
    cluster.start_node(1);
    cluster.wait_for_nodes(2);
    cluster.start_mount();
    assert_eq!(cluster.sh("cat a/g").trim(), "data");
    cluster.done(job);
    assert_eq!(cluster.sh("cat w/out").trim(), "x");
}

/// Returns names, kinds, owners, sizes and contents of all entries in the two directories of the test below.
fn tree(cluster: &Cluster) -> String {
    cluster.sh(
        "export LC_ALL=C; find w other ! -name gone -printf '%p %y %i %m %U %G %n %l\\n' | sort; \
         find w other -type f ! -name gone -printf '%p %s %T@\\n' | sort; \
         find w other -type f ! -name gone -print0 | sort -z | xargs -0 sha256sum; getfattr -d w/s1; \
         for f in w/twice w/s1; do getfattr --only-values -n user.tidemill.version $f; done",
    )
}

/// Returns the runs that made `/w/count`, as far as nodes know them.
fn runs_of_count(cluster: &Cluster) -> serde_json::Value {
    let mut all = cluster.json(&["lineage", "show", "/w/count", "--up"]);
    for run in all["runs"].as_array_mut().unwrap() {
        run["job_name"] = "".into();
        // Nodes record the objects that a task read, not the paths in its script.
        for input in run["inputs"].as_array_mut().unwrap() {
            let name = input["name"].as_str().unwrap().rsplit('/').next().unwrap();
            input["name"] = name.into();
        }
    }
    all["runs"].take()
}

#[test]
fn lost_server_database_is_recovered_from_log() {
    let Some(mut cluster) = Cluster::start() else {
        return;
    };
    cluster.sh(
        "mkdir -p w/deep/er other; for i in 1 2 3 4 5 6; do seq $i 100 > w/deep/er/$i; done; \
         chmod 640 w/deep/er/2; chown 1234:1234 other; \
         setpriv --reuid 1234 --regid 1234 --clear-groups sh -c 'seq 5 > other/theirs'; \
         seq 10 > w/twice; seq 20 > w/twice; seq 3 > w/gone; rm w/gone; chmod 600 w/deep/er/6; cat w/deep/er/6 > w/later; \
         echo one > w/s1; echo two > w/s2; mv w/s1 w/t; mv w/s2 w/s1; mv w/t w/s2; mkdir -p w/old/empty; echo q > w/old/in; \
         mv w/old w/new-directory; chmod 2750 w/new-directory; ln -s twice w/link; ln w/s1 w/hard; : > w/nothing; \
         printf raw > \"w/$(printf '\\377\\376')\"; touch -d 2001-02-03T04:05:06 w/s2; setfattr -n user.k -v v w/s1",
    );
    let chain = r#"name = "chain"; workdir = "/w"; tasks = (
        { name = "first"; kernel = "/bin/sh"; args = ["-c", "cat deep/er/1 twice > mid"]; input = ["deep/er/1", "twice"]; output = ["mid"]; },
        { name = "second"; kernel = "wordcount"; input = ["mid"]; output = ["count"]; } );"#;
    cluster.done(cluster.submit(chain));
    let (before, made) = (tree(&cluster), runs_of_count(&cluster));
    Cluster::wait_for_log();
    cluster.kill_mount();
    cluster.kill_server();
    let directory = cluster.path("server");
    let directory = directory.to_str().unwrap();
    let nodes = [0, 1].map(|index| cluster.node_directory(index).display().to_string());
    let [first, second] = &nodes;
    let refused = cluster.run(&["server", "recover", "--data-dir", directory, first, second]);
    assert!(
        !refused.ok && refused.err.contains("exists"),
        "{}",
        refused.err
    );
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(cluster.path(&format!("server/server.db{suffix}")));
    }
    let refused = cluster.run(&["server", "recover", "--data-dir", directory, first, first]);
    assert!(
        !refused.ok && refused.err.contains("given before"),
        "{}",
        refused.err
    );
    assert!(!cluster.path("server/server.db").exists());

    let printed = cluster.recover_database();
    assert_eq!(printed["members"], serde_json::json!([0, 1]));
    assert_eq!(printed["incomplete"], false, "{printed}");
    for nothing in ["missing", "added", "lost_and_found"] {
        assert_eq!(printed[nothing], serde_json::json!([]), "{printed}");
    }
    assert_eq!(tree(&cluster), before);
    assert_eq!(runs_of_count(&cluster), made);

    cluster.sh("seq 7 > w/new; echo more >> w/twice; rm w/deep/er/3; mv w/later w/deep");
    let again = cluster.done(
        cluster.submit(
            &chain
                .replace("mid", "mid2")
                .replace("count\"]", "count2\"]"),
        ),
    );
    assert_eq!(again["state"], "done");
}

/// A restored copy of the server's database does not know the files that were made after the copy. New files must not take their ids.
#[test]
fn files_can_be_written_after_restore_of_older_server_database() {
    let Some(mut cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir w; for i in 1 2 3 4; do seq $i 50 > w/old-$i; done");
    let database = cluster.path("server/server.db");
    let copy = cluster.path("copy.db");
    let open = rusqlite::Connection::open(&database).unwrap();
    open.execute("VACUUM INTO ?1", [copy.to_str().unwrap()])
        .unwrap();
    drop(open);
    cluster.sh("for i in 1 2 3 4; do seq $i 60 > w/lost-$i; done; seq 9 > w/old-4");
    cluster.kill_mount();
    cluster.kill_server();
    for suffix in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(cluster.path(&format!("server/server.db{suffix}")));
    }
    std::fs::copy(&copy, &database).unwrap();
    cluster.start_server();
    cluster.wait_for_nodes(2);
    cluster.start_mount();
    cluster.sh(
        "for i in 1 2 3; do test \"$(cat w/old-$i)\" = \"$(seq $i 50)\"; test ! -e w/lost-$i; done; \
         for i in 1 2 3 4 5 6 7 8 9 10; do seq $i 70 > w/new-$i; done; \
         for i in 1 2 3 4 5 6 7 8 9 10; do test \"$(cat w/new-$i)\" = \"$(seq $i 70)\"; done",
    );
}
