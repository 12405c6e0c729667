//! Compares the plan of a job that is not submitted with the later execution of the job.

use crate::cluster::{Cluster, Printed};
use serde_json::Value;

const JOB: &str = r#"
name = "two"; workdir = "/w";
tasks = (
  { name = "sort"; kernel = "sort"; type = "program"; args = [ "in" ]; input = [ "in" ]; output = [ "sorted" ]; stdout = "sorted"; },
  { name = "head"; kernel = "head"; args = [ "-n", "1", "sorted" ]; input = [ "sorted" ]; output = [ "first" ]; stdout = "first"; }
);
"#;

fn dry_run(cluster: &Cluster, script: &str, flags: &[&str]) -> Printed {
    let path = cluster.path("dry.conf");
    std::fs::write(&path, script).unwrap();
    let args = [&["submit", "--dry-run"], flags, &[path.to_str().unwrap()]].concat();
    cluster.run(&args)
}

fn plan(cluster: &Cluster, script: &str, flags: &[&str]) -> Value {
    let printed = dry_run(cluster, script, &[&["--json"], flags].concat());
    assert!(printed.ok, "{}{}", printed.out, printed.err);
    let json: Value = serde_json::from_str(&printed.out).unwrap();
    assert_eq!(json["job"], Value::Null);
    json["plan"].clone()
}

fn has_nothing(cluster: &Cluster) {
    assert!(
        cluster
            .json(&["job", "list"])
            .as_array()
            .unwrap()
            .is_empty()
    );
    assert_eq!(cluster.sh("ls w"), "in\n");
}

#[test]
fn dry_run_predicts_the_job_and_submits_nothing() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir w; seq 1000 -1 1 > w/in");
    let first = plan(&cluster, JOB, &[]);
    assert_eq!(first["complete"], false, "{first:#}");
    assert_eq!(first["unknown_kernels"]["sort"], 1);
    assert_eq!(
        first["energy_joules"],
        Value::Null,
        "the power of nodes is not known"
    );
    let printed = dry_run(&cluster, JOB, &[]);
    let reported = format!("{}{}", printed.out, printed.err);
    for part in [
        "not known",
        "nobody ran sort yet",
        "unknown",
        "nothing was submitted",
    ] {
        assert!(reported.contains(part), "no {part} in:\n{reported}");
    }
    has_nothing(&cluster);

    let job = cluster.done(cluster.submit(JOB));
    let recomputed = plan(&cluster, JOB, &["--replace", "--no-cache"]);
    assert_eq!(recomputed["complete"], true, "{recomputed:#}");
    assert!(recomputed["makespan_ns"].as_u64().unwrap() > 0);
    let tasks = recomputed["tasks"].as_array().unwrap();
    let names: Vec<_> = tasks.iter().map(|task| &task["name"]).collect();
    assert_eq!(names, ["sort", "head"]);
    // A task runs on the node with its input.
    assert_eq!(tasks[0]["node"], job["tasks"][0]["node"]);
    assert!(tasks[1]["start_ns"].as_u64() >= tasks[0]["end_ns"].as_u64());
    let again = plan(&cluster, JOB, &["--replace"]);
    let reused = again["tasks"].as_array().unwrap().iter();
    assert!(
        reused.clone().all(|task| task["reused_job"] == job["job"]),
        "{again:#}"
    );
    assert_eq!(again["makespan_ns"], 0);
    let printed = dry_run(&cluster, JOB, &["--replace"]);
    assert!(
        printed.out.contains("cached result of job 1"),
        "{}",
        printed.out
    );
    assert_eq!(cluster.json(&["job", "list"]).as_array().unwrap().len(), 1);

    // A dry run refuses the same jobs as a submission.
    let refused = dry_run(&cluster, JOB, &[]);
    let submitted = cluster.run(&["submit", cluster.path("dry.conf").to_str().unwrap()]);
    assert!(!refused.ok && !submitted.ok);
    assert_eq!(refused.err, submitted.err);
    assert!(refused.err.contains("/w/sorted"), "{}", refused.err);
}

#[test]
fn dry_run_lists_awaited_files_and_energy_of_given_power() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir w; seq 1000 -1 1 > w/in");
    let misspelt = JOB.replace("\"in\"", "\"inn\"");
    let printed = dry_run(&cluster, &misspelt, &[]);
    assert!(printed.ok, "{}", printed.err);
    let waits = "task sort waits for /w/inn, which does not exist yet; did you mean /w/in?";
    assert!(printed.out.contains(waits), "{}", printed.out);
    has_nothing(&cluster);
    cluster.done(cluster.submit(JOB));

    let config = cluster.path("plan.toml");
    let write = |text: &str| std::fs::write(&config, format!("[submit]\n{text}")).unwrap();
    let config = [
        "--config",
        config.to_str().unwrap(),
        "--replace",
        "--no-cache",
    ];
    write("busy-power = \"100 W\"\nidle-power = \"0 W\"\nenergy-price = \"0.30 EUR/kWh\"\n");
    let priced = plan(&cluster, JOB, &config);
    // A node has two cores. One of them works, so the node draws half of the additional power.
    let seconds = priced["tasks"].as_array().unwrap().iter().map(|task| {
        (task["end_ns"].as_u64().unwrap() - task["start_ns"].as_u64().unwrap()) as f64 / 1e9
    });
    let expected = seconds.sum::<f64>() * 50.0;
    let joules = priced["energy_joules"].as_f64().unwrap();
    assert!(
        (joules / expected - 1.0).abs() < 1e-9,
        "{joules} is not {expected}"
    );
    assert!(
        priced["cost"].as_str().unwrap().ends_with(" EUR"),
        "{priced:#}"
    );
    write("busy-power = \"1 W\"\nidle-power = \"2 W\"\n");
    let printed = dry_run(&cluster, JOB, &config);
    assert!(
        printed
            .out
            .contains("energy is not reported: idle-power 2 W"),
        "{}",
        printed.out
    );
}
