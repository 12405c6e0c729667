//! Tests the first steps and the mistakes of a new user.

use crate::cluster::{Cluster, Options, printed};
use serde_json::Value;

fn other_commands_mean_the_newest_too(cluster: &Cluster, newest: u64) {
    for command in ["explain", "report", "logs"] {
        let of_newest = cluster.run(&["job", command]);
        let of_it = cluster.run(&["job", command, &newest.to_string()]);
        assert!(of_newest.ok, "{command}: {}", of_newest.err);
        assert_eq!(of_newest.out, of_it.out, "{command}");
    }
}

#[test]
fn job_watch_shows_newest_job_and_delete_removes_ended_jobs() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let lost = cluster.run(&["job", "watch"]);
    assert!(
        !lost.ok && lost.err.contains("tidemill submit"),
        "{}",
        lost.err
    );
    cluster.sh("mkdir w; seq 100 > w/in");
    let script = |name: &str, kernel: &str| {
        format!(
            "name = \"{name}\"; workdir = \"/w\"; tasks = ({{ name = \"t\"; kernel = \"{kernel}\"; \
             input = [\"in\"]; output = [\"{name}.out\"]; }});"
        )
    };
    let good = cluster.submit(&script("good", "gzip"));
    cluster.done(good);
    let bad = cluster.submit(&script("bad", "/bin/false"));
    assert_eq!(cluster.ended(bad)["state"], "failed");
    let newest = cluster.run(&["job", "watch"]);
    assert!(!newest.ok && newest.out.contains("bad"), "{}", newest.out);
    other_commands_mean_the_newest_too(&cluster, bad);

    let listed = |args: &[&str]| -> Vec<u64> {
        let jobs = cluster.json(&[&["job", "list"], args].concat());
        let jobs = jobs.as_array().unwrap().iter();
        jobs.map(|job| job["job"].as_u64().unwrap()).collect()
    };
    assert_eq!(listed(&[]), [bad, good]);
    assert_eq!(listed(&["--limit", "1"]), [bad]);
    assert_eq!(listed(&["--state", "done"]), [good]);
    assert_eq!(listed(&["--state", "failed,cancelled"]), [bad]);
    assert_eq!(listed(&["--name", "g*d"]), [good]);
    assert_eq!(listed(&["--name", "[g]ood"]), [good]);
    assert_eq!(listed(&["--name", "\\[g]ood"]), [0_u64; 0]);

    // A job that has not ended stays.
    let waits = cluster.submit(&script("waits", "gzip").replace("\"in\"", "\"later\""));
    let refused = cluster.run(&["job", "delete", &waits.to_string()]).err;
    assert!(refused.contains("tidemill job cancel"), "{refused}");
    // Of many concurrent deletions, one deletes the job, and the others report that it does not exist.
    let started = std::thread::scope(|scope| {
        let delete = || {
            let printed = cluster.run(&["job", "delete", "--json", &good.to_string()]);
            let says: serde_json::Value = serde_json::from_str(&printed.out).unwrap();
            assert!(says.get("error").is_some() || printed.ok, "{says}");
            says["deleted"].as_array().map_or(0, Vec::len)
        };
        let all: Vec<_> = (0..4).map(|_| scope.spawn(delete)).collect();
        let all = all.into_iter().map(|one| one.join().unwrap());
        all.sum::<usize>()
    });
    assert_eq!(started, 1);
    assert!(
        cluster
            .run(&["job", "delete", "--older", "1d"])
            .out
            .contains("0 jobs")
    );
    assert_eq!(listed(&[]), [waits, bad]);
    assert!(!cluster.run(&["job", "show", &good.to_string()]).ok);
    // Its files and their lineage are unchanged, and its result is used again.
    let lineage = cluster.run(&["lineage", "show", "/w/good.out"]);
    assert!(
        lineage.ok && lineage.out.contains("gzip"),
        "{}{}",
        lineage.out,
        lineage.err
    );
    let again = cluster.submit(&format!("replace = true; {}", script("good", "gzip")));
    assert_eq!(
        cluster.done(again)["tasks"][0]["reused_task"].as_u64(),
        Some(1)
    );
}

#[test]
fn status_counts_disk_of_several_nodes_once() {
    let options = Options {
        nodes: 3,
        ..Options::default()
    };
    let Some(cluster) = Cluster::with(options) else {
        return;
    };
    let disk = rustix::fs::statvfs(cluster.node_directory(0)).unwrap();
    let disk = disk.f_blocks * disk.f_frsize;
    let mounted = rustix::fs::statvfs(cluster.at("")).unwrap();
    assert_eq!(mounted.f_blocks * mounted.f_frsize / disk, 1);
    assert_eq!(
        cluster.json(&["status"])["capacity_bytes"].as_u64(),
        Some(disk)
    );
}

#[test]
fn failed_command_with_json_flag_prints_json() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    for args in [
        &["job", "show", "99"][..],
        &["jbos"],
        &["ls", "/nowhere"],
        &["put", "/no/such/file", "/"],
        &["status", "--no-such-flag"],
    ] {
        let failed = printed(
            cluster
                .tidemill()
                .arg("--json")
                .args(args)
                .output()
                .unwrap(),
        );
        assert!(!failed.ok, "{args:?}");
        let json: Value = serde_json::from_str(&failed.out).unwrap();
        assert!(!json["error"].as_str().unwrap().is_empty(), "{args:?}");
    }
}

/// Stands for a file of this machine.
const LOCAL: &str = "LOCAL";

/// Mistakes, and the cause, place and remedy that each answer must contain.
const MISTAKES: &[(&[&str], &[&str])] = &[
    (&["noode"], &["noode", "similar", "node"]),
    (
        &["job", "list", "--state", "bad"],
        &["bad", "--state", "running"],
    ),
    (
        &["job", "show", "7"],
        &["job 7 does not exist", "tidemill job list"],
    ),
    (&["job", "show", "one"], &["one", "JOB"]),
    (
        &["job", "show", "1", "2"],
        &["job 1 does not exist", "tidemill job list"],
    ),
    (&["job", "delete"], &["required", "<JOB>"]),
    (
        &["job", "delete", "--older", "soon"],
        &["soon", "s, m, h or d"],
    ),
    (&["job", "watch"], &["no jobs", "tidemill submit"]),
    (
        &["job", "logs", "9"],
        &["job 9 does not exist", "tidemill job list"],
    ),
    (
        &["job", "cancel", "9"],
        &["job 9 does not exist", "tidemill job list"],
    ),
    (
        &["job", "explain", "9"],
        &["job 9 does not exist", "tidemill job list"],
    ),
    (
        &["job", "report", "9"],
        &["job 9 does not exist", "tidemill job list"],
    ),
    (
        &["cat", "/w/dta"],
        &["/w/dta", "no such file", "did you mean /w/data?"],
    ),
    (
        &["ls", "/ww/dta"],
        &["/ww/dta", "no such file", "did you mean /w/data?"],
    ),
    (
        &["get", "/w/daat", "x"],
        &["/w/daat", "no such file", "did you mean /w/data?"],
    ),
    (
        &["lineage", "show", "/w/dat"],
        &["/w/dat", "no such file", "did you mean /w/data?"],
    ),
    (&["cat", "/w"], &["/w", "get -r"]),
    (
        &["get", "/w/data", "/no/such/x"],
        &["/w/data", "/no/such", "this machine"],
    ),
    (&["get", "/w", "x"], &["/w", "-r"]),
    (&["put", "/no/file", "/w"], &["/no/file", "this machine"]),
    (
        &["put", LOCAL, "/none/x"],
        &["/none", "no such", "tidemill ls"],
    ),
    (&["put", LOCAL, "/ww/x"], &["/ww", "did you mean /w?"]),
    (&["put", LOCAL, "/../x"], &["/../x", "full path"]),
    (&["ls", "/none"], &["/none", "no such", "tidemill ls"]),
    (&["rm", "/w"], &["/w", "-r"]),
    (&["rm", "/w/none"], &["/w/none", "no such", "tidemill ls"]),
    (
        &["mv", "/w/none", "/w/b"],
        &["/w/none", "no such", "tidemill ls"],
    ),
    (&["mkdir", "/x/y"], &["/x", "no such", "tidemill ls"]),
    (&["mkdir", "/w"], &["/w", "exists"]),
    (&["submit", "no.conf"], &["no.conf", "local file"]),
    (
        &["lineage", "show", "/w/none"],
        &["/w/none", "no such", "tidemill ls /w"],
    ),
    (
        &["kernel", "add", "./none.py"],
        &["./none.py", "this machine"],
    ),
    (
        &["kernel", "test", "./none.py"],
        &["./none.py", "does not exist", "this machine"],
    ),
    (
        &["kernel", "build", "./none.c"],
        &["./none.c", "this machine"],
    ),
    (
        &["plan", "sweep", "none.json"],
        &["none.json", "this machine"],
    ),
    (
        &["plan", "offload", "max", "/w/data"],
        &["no calibration", "tidemill kernel bench"],
    ),
    (
        &["token", "create", "--user", "no-such-user"],
        &["no-such-user", "number"],
    ),
    (
        &["--config", "none.toml", "status"],
        &["none.toml", "--config"],
    ),
];

/// Each error message names the mistake, its place and the remedy.
#[test]
fn command_errors_name_cause_place_and_remedy() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir w; echo x > w/data; echo 'name = ;' > w/bad.conf");
    let local = cluster.path("local");
    std::fs::write(&local, "x").unwrap();
    let local = local.to_str().unwrap();
    assert!(MISTAKES.len() >= 30);
    let mut wrong = Vec::new();
    for (args, parts) in MISTAKES {
        let args: Vec<&str> = args
            .iter()
            .map(|&arg| if arg == LOCAL { local } else { arg })
            .collect();
        let reported = cluster.run(&args);
        let twice = reported.err.matches("os error 2").count() > 1;
        let panics = reported.err.contains("panicked") || reported.err.contains("inode ");
        if reported.ok || twice || panics || !parts.iter().all(|part| reported.err.contains(part)) {
            wrong.push(format!("{args:?} wants {parts:?}: {}", reported.err));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let mounted = cluster.at("w/data");
    let reported = cluster.run(&["cat", mounted.to_str().unwrap()]);
    assert!(
        reported.err.contains("the name is /w/data"),
        "{}",
        reported.err
    );
}
