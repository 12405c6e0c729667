//! Tests task instances that read bytes of their inputs outside of their own parts (`access = "full"`), and kernels that misuse this.

use crate::chance::Chance;
use crate::cluster::{Cluster, Options, wait};
use crate::kernels::{OTHER, other};
use std::process::Command;

const SIZE: u64 = 40_000;

fn cluster(remote: bool) -> Option<Cluster> {
    Cluster::with(Options {
        nodes: 3,
        remote,
        ..Options::default()
    })
}

/// Stores a file `x` on three nodes.
fn with_file(cluster: &Cluster) -> Vec<u8> {
    let bytes = Chance(5).bytes(usize::try_from(SIZE).unwrap());
    let local = cluster.path("x");
    std::fs::write(&local, &bytes).unwrap();
    let printed = cluster.run(&["put", "--stripe", "4096,3", local.to_str().unwrap(), "/w/x"]);
    assert!(printed.ok, "{}", printed.err);
    bytes
}

/// Stores a shell script in the cluster, with `get OFFSET LENGTH NAME`.
fn script(cluster: &Cluster, name: &str, text: &str) {
    let get = r#"get() {
  printf '%s\n' "$1 $2 $3" >&3
  read -r count why <&4
  if [ "$count" -lt 0 ]; then echo "$count $why" >&2; return 1; fi
  head -c "$count" <&4
}
exec 3> "$TIDEMILL_READ.ask" 4< "$TIDEMILL_READ.answer"
"#;
    std::fs::write(
        cluster.at(&format!("w/{name}")),
        format!("#!/bin/sh\n{get}{text}\n"),
    )
    .unwrap();
    cluster.sh(&format!("chmod 755 w/{name}"));
}

fn task(rest: &str) -> String {
    format!(
        r#"name = "j"; workdir = "/w"; tasks = ( {{ name = "t"; input = [ "x" ]; retries = 0; {rest} }} );"#
    )
}

#[test]
fn task_instances_read_parts_on_other_nodes() {
    for remote in [false, true] {
        let Some(cluster) = cluster(remote) else {
            return;
        };
        cluster.sh(&format!("mkdir w; chown {OTHER}:{OTHER} w"));
        let bytes = with_file(&cluster);
        script(
            &cluster,
            "all",
            "get 0 1000000 x; get 40000 1 x >&2; get 0 1 ../x || get 0 1 /etc/passwd || echo \"$TIDEMILL_LAYOUT\" >&2",
        );
        let all = |name: &str| {
            task(&format!(
                r#"kernel = "all"; per = "stripe-object"; access = "full"; output = [ "{name}.{{part}}" ]; stdout = "{name}.{{part}}";"#
            ))
        };
        let reported = cluster.done(cluster.submit(&all("o")));
        for part in 0..3 {
            assert_eq!(
                std::fs::read(cluster.at(&format!("w/o.{part}"))).unwrap(),
                bytes
            );
        }
        let tasks = reported["tasks"].as_array().unwrap();
        let transferred: u64 = tasks
            .iter()
            .map(|task| task["transferred_bytes"].as_u64().unwrap())
            .sum();
        assert!(
            transferred >= 2 * SIZE,
            "bytes from other nodes are counted: {reported:#}"
        );
        let log = cluster.run(&["job", "logs", &reported["job"].to_string()]);
        let log = format!("{}{}", log.out, log.err);
        assert!(
            log.contains(r#"-2 the task has no input "../x""#)
                && log.contains(r#"-2 the task has no input "/etc/passwd""#)
                && log.contains(r#""size":40000,"unit":4096,"width":3"#),
            "{log}"
        );
        // The bytes that the task read are not known, so the result is not cached.
        let again = all("o").replacen("name", "replace = true; name", 1);
        let again = cluster.done(cluster.submit(&again));
        assert!(again["tasks"][0]["reused"].is_null(), "{again:#}");
        if !remote {
            // As another user, who owns the pipes.
            cluster.sh(&format!("chown {OTHER} w/all"));
            let path = cluster.path("other.conf");
            std::fs::write(&path, all("p")).unwrap();
            let printed = other(&cluster, &["submit", "--watch", path.to_str().unwrap()]);
            assert!(printed.ok, "{}{}", printed.out, printed.err);
            assert_eq!(std::fs::read(cluster.at("w/p.2")).unwrap(), bytes);
        }
        shared_objects_do_so_too(&cluster, &bytes);
    }
}

/// Uses the functions of the header.
fn shared_objects_do_so_too(cluster: &Cluster, bytes: &[u8]) {
    let source = r#"#define TIDEMILL_FULL_ACCESS
        #include <tidemill_kernel.h>
        TIDEMILL_KERNEL;
        int start_kernel(const struct tidemill_task *task) {
            static char data[30000];
            int64_t count = tidemill_read("x", 20001, data, sizeof data);
            if (count < 0)
                return (int)-count;
            if (tidemill_read("y", 0, data, 1) != -ENOENT || tidemill_read("x", 50000, data, 1) != 0)
                return 3;
            return tidemill_write(task, 0, data, (size_t)count);
        }"#;
    let path = cluster.path("far.c");
    std::fs::write(&path, source).unwrap();
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../sandbox/include"))
        .arg("-o")
        .args([cluster.at("w/far.so"), path])
        .status();
    assert!(built.unwrap().success());
    let far = |access: &str| {
        task(&format!(
            r#"kernel = "far.so"; per = "stripe-object"; {access} output = [ "far.{{part}}" ];"#
        ))
    };
    cluster.done(cluster.submit(&far("access = \"full\";")));
    assert_eq!(
        std::fs::read(cluster.at("w/far.1")).unwrap(),
        &bytes[20001..]
    );
    let ended = cluster.ended(cluster.submit(&far("").replacen("name", "replace = true; name", 1)));
    assert!(
        ended.to_string().contains("exit code 38"),
        "ENOSYS: {ended:#}"
    );
}

#[test]
fn malformed_read_requests_of_kernel_fail_only_its_task() {
    let Some(mut cluster) = cluster(true) else {
        return;
    };
    cluster.sh("mkdir w");
    with_file(&cluster);
    let one = |name: &str| {
        task(&format!(
            r#"kernel = "{name}"; access = "full"; output = [ "{name}.o" ]; stdout = "{name}.o"; limits = {{ time = 3; }};"#
        ))
    };
    // Random bytes, lines without an end, and other files in place of the pipes: the task ends as if there were none.
    script(
        &cluster,
        "noise",
        "head -c 3000 /dev/urandom >&3; echo >&3; yes | tr -d '\\n' | head -c 9000 >&3; rm $TIDEMILL_READ.*; ln -s /etc/passwd $TIDEMILL_READ.ask; \
         mkfifo $TIDEMILL_READ.answer; echo 1 -1 x >&3; echo 18446744073709551615 18446744073709551615 x >&3",
    );
    cluster.done(cluster.submit(&one("noise")));
    // The kernel requests more than any process reads.
    script(&cluster, "greedy", "yes '0 4194304 x' >&3");
    let ended = cluster.ended(cluster.submit(&one("greedy")));
    assert!(ended.to_string().contains("time limit"), "{ended:#}");
    // A node is offline: the task fails for this reason, not for the kernel's reaction to it.
    script(
        &cluster,
        "slow",
        "get 0 40000 x > got; echo ready >&2; while get 4096 8000 x > got; do sleep 0.1; done; exit 9",
    );
    let slow = one("slow")
        .replace("time = 3", "time = 60")
        .replace("access", "node = 0; access");
    let id = cluster.submit(&slow);
    wait("it reads", || {
        cluster.job(id)["tasks"][0]["state"] == "running"
    });
    std::thread::sleep(std::time::Duration::from_secs(1));
    let layout = cluster.json(&["stat", "/w/x"]);
    let on = |part: usize| {
        layout["parts"][part]["replicas"][0]["node"]
            .as_u64()
            .unwrap()
    };
    let gone = (0..3).map(on).find(|node| *node != 0).unwrap();
    cluster.kill_node(usize::try_from(gone).unwrap());
    wait("it has failed, or waits for its input", || {
        cluster.job(id)["tasks"][0]["state"] != "running"
    });
    let reported = cluster.job(id).to_string();
    assert!(!reported.contains("exit code 9"), "{reported}");
    cluster.start_node(usize::try_from(gone).unwrap());
    cluster.wait_for_nodes(3);
    cluster.run(&["job", "cancel", &id.to_string()]);
    // The cluster is unchanged.
    script(&cluster, "fine", "get 12345 6 x");
    cluster.done(cluster.submit(&one("fine")));
    assert_eq!(
        cluster.sh("cmp w/fine.o <(tail -c +12346 w/x | head -c 6)"),
        ""
    );
}
