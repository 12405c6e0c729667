//! Tests recordings of real runs, which are replayed and predicted.

use crate::cluster::{Cluster, Options};
use serde_json::Value;

/// Returns a job with eight files, eight tasks that take some time for one file each, and a task that reads all.
fn script(name: &str) -> String {
    let parts = (0..8).map(|index| {
        format!(
            r#"{{ name = "part{index}"; kernel = "/bin/sh"; args = ["-c", "sleep 0.2; cp in{index} {name}{index}"];
                 input = ["in{index}"]; output = ["{name}{index}"]; }}"#
        )
    });
    let parts: Vec<String> = parts.collect();
    let all: Vec<String> = (0..8).map(|index| format!("\"{name}{index}\"")).collect();
    format!(
        r#"name = "split"; workdir = "/w"; tasks = ( {}, {{ name = "sum"; kernel = "wordcount"; input = [ {} ];
           output = [ "{name}" ]; }} );"#,
        parts.join(", "),
        all.join(", ")
    )
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

#[test]
fn exported_trace_replays_run_and_predicts_similar_run() {
    let options = Options {
        cores: 1,
        ..Options::default()
    };
    let Some(cluster) = Cluster::with(options) else {
        return;
    };
    cluster.sh("mkdir w; for i in 0 1 2 3 4 5 6 7; do head -c $((10000 * (i + 1))) /dev/urandom > w/in$i; done");
    let first = cluster.submit(&script("a"));
    let refused = cluster.run(&["job", "export-trace", &first.to_string()]);
    assert!(
        !refused.ok && refused.err.contains("is running"),
        "{}",
        refused.err
    );
    cluster.done(first);
    let second = cluster.submit(&script("b"));
    cluster.done(second);
    let (first, second) = (first.to_string(), second.to_string());

    let trace = cluster.json(&["job", "export-trace", &first]);
    check(&trace, &cluster.json(&["job", "show", &first]));
    let file = cluster.path("first.json").display().to_string();
    assert!(
        cluster
            .run(&["job", "export-trace", &first, "--output", &file])
            .ok
    );
    let replayed = cluster.json(&["plan", "run", &file]);
    assert_eq!(replayed["placement"], "recorded");
    assert_eq!(replayed["tasks"].as_array().unwrap().len(), 9);
    // There are nine tasks; eight of them take 0.2 s, two at a time.
    assert!(
        number(&replayed["makespan_ns"]) > 800_000_000,
        "{replayed:#}"
    );
    let elsewhere = cluster.json(&[
        "plan",
        "run",
        &file,
        "--policy",
        "round-robin",
        "--placement",
        "random",
    ]);
    assert_eq!(elsewhere["policy"], "round-robin");

    let same = cluster.json(&["plan", "compare", &first]);
    assert_eq!(same["tasks"].as_array().unwrap().len(), 9);
    assert_eq!(same["makespan_ns"]["measured"], trace["makespan_ns"]);
    let text = cluster.run(&["plan", "compare", &second, "--times-of", &file]);
    assert!(
        text.ok && text.out.contains("part7"),
        "{}{}",
        text.out,
        text.err
    );
    refuses(&cluster);
}

/// Checks that a trace has the same data as its job, in a possible order.
fn check(trace: &Value, job: &Value) {
    assert_eq!(trace["format"], "tidemill-trace");
    assert_eq!(trace["policy"], "min-wait");
    assert_eq!(trace["nodes"].as_array().unwrap().len(), 2);
    let sizes: u64 = trace["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| number(&file["size_bytes"]))
        .sum();
    assert_eq!(sizes, 360_000);
    let tasks = trace["tasks"].as_array().unwrap();
    assert_eq!(tasks.len(), 9);
    for task in tasks {
        let time = |field: &str| number(&task[field]);
        assert!(
            time("sent_ns") > 0 && time("sent_ns") <= time("start_ns"),
            "{task:#}"
        );
        assert!(
            time("start_ns") <= time("kernel_start_ns") && time("kernel_start_ns") < time("end_ns")
        );
        assert!(time("end_ns") <= number(&trace["makespan_ns"]), "{task:#}");
    }
    let transferred: u64 = tasks
        .iter()
        .map(|task| number(&task["transferred_bytes"]))
        .sum();
    assert_eq!(transferred, number(&job["transferred_bytes"]));
}

fn refuses(cluster: &Cluster) {
    for (args, part) in [
        (vec!["job", "export-trace"], "<JOB>"),
        (vec!["job", "export-trace", "999"], "job 999 does not exist"),
        (vec!["plan", "compare", "999"], "job 999 does not exist"),
        (vec!["plan", "compare", "none.json"], "none.json"),
    ] {
        let printed = cluster.run(&args);
        assert!(
            !printed.ok && printed.err.contains(part),
            "{args:?}: {}",
            printed.err
        );
    }
}
