//! Tests pipelines of kernels, and cached results.

use crate::cluster::{Cluster, Options};
use serde_json::Value;

fn task<'a>(job: &'a Value, name: &str) -> &'a Value {
    let tasks = job["tasks"].as_array().unwrap();
    tasks.iter().find(|task| task["name"] == name).unwrap()
}

/// Returns the names of the tasks of a job that did not run.
fn reused(job: &Value) -> Vec<&str> {
    let tasks = job["tasks"].as_array().unwrap();
    let names = tasks.iter().filter(|task| !task["reused_task"].is_null());
    names.map(|task| task["name"].as_str().unwrap()).collect()
}

#[test]
fn kernel_pipeline_runs_as_one_task_without_intermediates() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh(
        r#"mkdir w; cd w; for i in 5 3 9 1; do echo tide $i; done > lines; echo mill 4 >> lines
           printf '#!/bin/sh\nsed "s/$1/$2/"\n' > swap; chmod +x swap"#,
    );
    let script = |kernel: &str, output: &str| {
        format!(
            "name = \"s\"; workdir = \"/w\"; retries = 0; tasks = ( {{ name = \"t\"; input = [ \"lines\" ]; \
             output = [ \"{output}\" ]; kernel = \"{kernel}\"; }} );"
        )
    };
    let kernel = "grep --lines 'tide|none' | swap tide ebb | /usr/bin/sort -k2n | head -n 2";
    let job = cluster.done(cluster.submit(&script(kernel, "out")));
    assert_eq!(cluster.sh("cat w/out"), "ebb 1\nebb 3\n");
    assert_eq!(task(&job, "t")["kernel"], kernel);
    assert!(!task(&job, "t")["kernel_hash"].as_str().unwrap().is_empty());
    assert_eq!(cluster.sh("ls w"), "lines\nout\nswap\n");
    let lineage = cluster.json(&["lineage", "show", "/w/out"]).to_string();
    assert!(lineage.contains("swap tide ebb"), "{lineage}");
    let refused = cluster.try_submit(&script("cat lines | swap tide | wordcount --no", "bad"));
    assert!(
        !refused.ok && refused.err.contains("--no"),
        "{}",
        refused.err
    );
    let failing = cluster.submit(&script("cat lines | swap tide | gunzip", "bad"));
    let failed = cluster.ended(failing);
    assert_eq!(failed["state"], "failed");
    let logs = cluster
        .json(&["job", "logs", &failing.to_string()])
        .to_string();
    assert!(logs.contains("stage "), "{logs}");
    assert_eq!(cluster.sh("ls w"), "lines\nout\nswap\n");
}

/// Returns a workflow: two counts, their sum, and a program with the text `last` that processes the sum.
fn workflow(last: &str, extra: &str) -> String {
    format!(
        "name = \"f\"; workdir = \"/w\"; policy = \"round-robin\"; {extra}\ntasks = (
        {{ name = \"a\"; kernel = \"count.sh\"; args = [\"1\"]; input = [\"1\"]; output = [\"1.n\"]; }},
        {{ name = \"b\"; kernel = \"count.sh\"; args = [\"2\"]; input = [\"2\"]; output = [\"2.n\"]; }},
        {{ name = \"c\"; kernel = \"sum\"; args = [\"dtype=text\"]; input = [\"1.n\", \"2.n\"]; output = [\"s\"]; }},
        {{ name = \"d\"; kernel = \"/bin/sh\"; args = [\"-c\", \"{last}\"]; input = [\"s\"]; output = [\"d\"]; }} );"
    )
}

#[test]
fn unchanged_task_reuses_cached_result() {
    let options = Options {
        nodes: 2,
        ..Options::default()
    };
    let Some(cluster) = Cluster::with(options) else {
        return;
    };
    // The time in the output shows whether the task ran.
    cluster.sh(
        r#"mkdir w; cd w; seq 10 > 1; seq 20 > 2
           printf '#!/bin/sh\nwc -l < $1 > $1.n; date +%%s%%N >> $1.n\n' > count.sh; chmod +x count.sh"#,
    );
    let all = ["a", "b", "c", "d"];
    let first = cluster.done(cluster.submit(&workflow("cat s > d", "")));
    assert!(reused(&first).is_empty(), "{first:#}");
    let result = cluster.sh("cd w; cat 1.n 2.n s d");
    let refused = cluster.try_submit(&workflow("cat s > d", ""));
    assert!(
        !refused.ok && refused.err.contains("--replace"),
        "{}",
        refused.err
    );

    let again = cluster.done(cluster.submit(&workflow("cat s > d", "replace = true;")));
    assert_eq!(reused(&again), all);
    assert_eq!(cluster.sh("cd w; cat 1.n 2.n s d"), result);
    assert_eq!(task(&again, "a")["reused_job"], first["job"]);
    // The time for returning a cached result is not reported as the time of a run.
    let traced = |job: &Value| {
        let trace = cluster.json(&["job", "export-trace", &job["job"].to_string()]);
        trace["tasks"][0].clone()
    };
    let (ran, given) = (traced(&first), traced(&again));
    assert_eq!(
        (&ran["name"], &ran["reused_ns"]),
        (&given["name"], &Value::Null)
    );
    assert!(given["reused_ns"].is_u64(), "{given:#}");
    assert_eq!(given["compute_ns"], ran["compute_ns"]);
    assert_eq!(
        task(&again, "a")["kernel_hash"],
        task(&first, "a")["kernel_hash"]
    );
    assert_eq!(task(&again, "d")["cpu_ns"], 0);
    let id = again["job"].to_string();
    let explained = cluster.json(&["job", "explain", &id, "c"]);
    assert_eq!(
        explained["decisions"][0]["reused_job"], first["job"],
        "{explained:#}"
    );
    let printed = cluster.run(&["job", "explain", &id]).out;
    assert!(printed.contains("reused the result of task"), "{printed}");

    let lineage = cluster.run(&["lineage", "show", "/w/d"]).out;
    assert_eq!(lineage.matches("used again").count(), 4, "{lineage}");
    // The last step changes, and then the data of one of two inputs: the tasks that depend on the change run.
    let changed =
        cluster.done(cluster.submit(&workflow("cat s > d; echo x >> d", "replace = true;")));
    assert_eq!(reused(&changed), ["a", "b", "c"]);
    assert!(cluster.sh("cat w/d").ends_with("x\n"));
    cluster.sh("cd w; seq 30 > 2");
    let data = cluster.done(cluster.submit(&workflow("cat s > d", "replace = true;")));
    assert_eq!(reused(&data), ["a"]);
    // A kernel in the cluster that was written again is another kernel, even with the same text.
    cluster.sh("cd w; cp count.sh c; chmod +x c; mv c count.sh");
    let kernel = cluster.done(cluster.submit(&workflow("cat s > d", "replace = true;")));
    assert!(reused(&kernel).is_empty(), "{kernel:#}");

    // If the user says so, no cached result is used, and the new result is cached.
    let before = cluster.sh("cat w/1.n");
    let forced =
        cluster.done(cluster.submit(&workflow("cat s > d", "replace = true; cache = false;")));
    assert!(reused(&forced).is_empty(), "{forced:#}");
    assert_ne!(cluster.sh("cat w/1.n"), before);
    let after = cluster.done(cluster.submit(&workflow("cat s > d", "replace = true;")));
    assert_eq!(reused(&after), all);
    assert_eq!(task(&after, "a")["reused_job"], forced["job"]);
}

#[test]
fn cached_result_without_outputs_or_inputs_is_recomputed() {
    let Some(mut cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir w; seq 10 > w/in");
    let script = |input: &str| {
        format!(
            "name = \"s\"; workdir = \"/w\"; tasks = ( {{ name = \"t\"; input = [ {input} ]; output = [ \"out\" ]; \
             kernel = \"/bin/sh\"; args = [ \"-c\", \"date +%s%N > out\" ]; }} );"
        )
    };
    cluster.done(cluster.submit(&script("\"in\"")));
    cluster.sh("rm w/out");
    let again = cluster.done(cluster.submit(&script("\"in\"")));
    assert!(reused(&again).is_empty(), "{again:#}");
    // Cached results survive kills of the server and the node.
    cluster.sh("mkdir x; mv w/out x/kept");
    cluster.kill_server();
    cluster.kill_node(0);
    cluster.start_server();
    cluster.start_node(0);
    cluster.wait_for_nodes(2);
    let third = cluster.done(cluster.submit(&script("\"in\"")));
    assert_eq!(reused(&third), ["t"]);
    assert_eq!(cluster.sh("cat w/out"), cluster.sh("cat x/kept"));
    // The file has two names on the node: each can be deleted without the other.
    cluster.sh("rm x/kept; sync; sleep 0.2; test $(wc -c < w/out) -gt 10");
    cluster.sh("rm w/out");
    cluster.done(cluster.submit(&script("")));
    let once = cluster.sh("cat w/out; rm w/out");
    cluster.done(cluster.submit(&script("")));
    assert_ne!(cluster.sh("cat w/out"), once);
}

/// Two steps; the first clearly takes longer than hashing its few bytes.
const STEPS: &str = r#"name = "s"; workdir = "/w"; replace = true; policy = "round-robin"; tasks = (
  { name = "a"; kernel = "/bin/sh"; node = 0; input = [ "in", "other" ]; output = [ "mid" ];
    args = [ "-c", "i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done; date +%s%N | cat in other - > mid" ]; },
  { name = "b"; kernel = "/bin/sh"; input = [ "mid" ]; output = [ "out" ];
    args = [ "-c", "date +%s%N | cat mid - > out" ]; } );"#;

#[test]
fn cached_result_is_reused_for_equal_bytes_in_new_version() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    // The directory is on another node than the first step, so that the file must be transferred.
    cluster.sh("mkdir w; setfattr -n user.tidemill.node -v 1 w; cd w; seq 10 > in; seq 5 > other");
    let first = cluster.done(cluster.submit(STEPS));
    assert!(reused(&first).is_empty(), "{first:#}");
    let result = cluster.sh("cat w/mid w/out");

    // The file is overwritten, and another file is renamed over it.
    let rewrites = [
        ("seq 10 > in", 21),
        ("seq 10 > new; mv new in; seq 5 > other", 31),
    ];
    for (rewrite, bytes) in rewrites {
        cluster.sh(&format!("cd w; {rewrite}"));
        let again = cluster.done(cluster.submit(STEPS));
        assert_eq!(reused(&again), ["a", "b"], "{rewrite}: {again:#}");
        assert_eq!(task(&again, "a")["transferred_bytes"], bytes);
        assert_eq!(cluster.sh("cat w/mid w/out"), result);
        let explained = cluster
            .run(&["job", "explain", &again["job"].to_string()])
            .out;
        assert!(
            explained.contains("reused the result of task"),
            "{explained}"
        );
    }
    // The same length, other bytes.
    cluster.sh("cd w; seq 11 20 | head -c 21 > in; test $(wc -c < in) = $(seq 10 | wc -c)");
    let other = cluster.done(cluster.submit(STEPS));
    assert!(reused(&other).is_empty(), "{other:#}");
    assert!(cluster.sh("cat w/out").starts_with("11\n"));
}

#[test]
fn task_cheaper_than_hashing_its_input_runs_again() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let script = r#"name = "s"; workdir = "/w"; replace = true; tasks = ( { name = "t"; kernel = "/bin/sh";
        input = [ "in" ]; output = [ "out" ]; args = [ "-c", "wc -c < in > out" ]; } );"#;
    cluster.sh("mkdir w; head -c 64M /dev/zero > w/in");
    cluster.done(cluster.submit(script));
    let again = cluster.done(cluster.submit(script));
    assert_eq!(reused(&again), ["t"]);
    cluster.sh("head -c 64M /dev/zero > w/in");
    let recomputed = cluster.done(cluster.submit(script));
    assert!(reused(&recomputed).is_empty(), "{recomputed:#}");
}
