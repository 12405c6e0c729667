//! Tests cores, memory and named resources of tasks, from the script to the kernel.

use crate::cluster::{Cluster, Options};
use serde_json::Value;

fn cluster() -> Option<Cluster> {
    Cluster::with(Options {
        node_args: [
            "--memory",
            "1GiB",
            "--resources",
            "gpu=1,licence.x=2",
            "--device-rate",
            "3600M",
            "--busy-power",
            "12.5 W",
        ]
        .map(str::to_owned)
        .into(),
        ..Options::default()
    })
}

/// Returns a job of these tasks, which write files of their names.
fn script(tasks: &[(&str, &str)]) -> String {
    let tasks = tasks.iter().map(|(name, rest)| {
        format!("{{ name = \"{name}\"; output = [ \"{name}\" ]; stdout = \"{name}\"; type = \"program\"; {rest} }}")
    });
    let tasks: Vec<String> = tasks.collect();
    format!(
        "name = \"j\"; workdir = \"/w\"; cache = false; tasks = ( {} );",
        tasks.join(", ")
    )
}

#[test]
fn resources_are_shown_and_impossible_requests_refused() {
    let Some(cluster) = cluster() else { return };
    cluster.sh("mkdir w");
    let status = cluster.json(&["status"]);
    let node = &status["nodes"][0];
    assert_eq!(node["memory_bytes"], 1 << 30);
    assert_eq!(node["resources"]["licence.x"], 2);
    assert_eq!(node["watts_milli"], 12_500);
    assert_eq!([&node["speed_class"], &node["energy_class"]], [5, 4]);
    let shown = cluster.run(&["status"]).out;
    assert!(shown.contains("gpu=1,licence.x=2"), "{shown}");
    for (rest, why) in [
        (
            "cores = 3;",
            "it needs cores = 3, and the most that a node offers is 2",
        ),
        ("memory = \"2 GiB\";", "it needs memory = 2147483648 bytes"),
        (
            "resources = { gpu = 2; };",
            "it needs gpu = 2, and the most that a node offers is 1",
        ),
        (
            "resources = { fpga = 1; };",
            "it needs fpga = 1, and the most that a node offers is 0",
        ),
        (
            "resources = { gpu = 1; }; node = 9;",
            "the cluster has no node 9",
        ),
    ] {
        let refused = cluster.try_submit(&script(&[("a", &format!("kernel = \"true\"; {rest}"))]));
        assert!(!refused.ok && refused.err.contains(why), "{}", refused.err);
    }
    for (policy, why) in [
        ("constraint:load=0", "all weights are zero"),
        ("constraint:load=nan", "a number from 0 to 1000"),
        ("min-wat", "min-wait"),
    ] {
        let of = |script: String| format!("policy = \"{policy}\"; {script}");
        let script = of(script(&[("a", "kernel = \"true\";")]));
        let refused = cluster.try_submit(&script);
        assert!(!refused.ok && refused.err.contains(why), "{}", refused.err);
    }
    let flags = [
        ["--resources", "gpu=x"],
        ["--resources", "cores=1"],
        ["--busy-power", "much"],
    ];
    for flags in &flags {
        let wrong = cluster.run(&[&["node", "run", "--id", "7"][..], flags].concat());
        assert!(
            !wrong.ok && wrong.err.contains(flags[1].split('=').next().unwrap()),
            "{}",
            wrong.err
        );
    }
}

/// Returns whether two tasks of a trace ran at the same time on one node.
fn overlap(one: &Value, other: &Value) -> bool {
    let at = |task: &Value, name: &str| task[name].as_u64().unwrap();
    one["node"] == other["node"]
        && at(one, "start_ns") < at(other, "end_ns")
        && at(other, "start_ns") < at(one, "end_ns")
}

#[test]
fn tasks_share_resources_and_know_their_own() {
    let Some(cluster) = cluster() else { return };
    cluster.sh("mkdir w");
    let gpu = "kernel = \"sleep\"; args = [ \"0.2\" ]; resources = { gpu = 1; };";
    let large = "kernel = \"sleep\"; args = [ \"0.2\" ]; memory = \"600 MiB\"; cores = 0;";
    let both = "kernel = \"sh\"; args = [ \"-c\", \"echo $TIDEMILL_CORES $TIDEMILL_MEMORY_BYTES\" ]; \
                cores = 2; memory = \"64 MiB\";";
    let tasks = [
        ("g1", gpu),
        ("m1", large),
        ("g2", gpu),
        ("both", both),
        ("m2", large),
        ("g3", gpu),
        ("m3", large),
        ("g4", gpu),
    ];
    let job = cluster.submit(&script(&tasks));
    cluster.done(job);
    assert_eq!(cluster.sh("cat w/both"), "2 67108864\n");
    let thrifty = format!("policy = \"constraint:energy\"; {}", script(&[("e", gpu)]));
    let thrifty = cluster.submit(&thrifty.replace("\"j\"", "\"k\""));
    cluster.done(thrifty);
    let why = cluster.json(&["job", "explain", &thrifty.to_string()])["decisions"][0].to_string();
    assert!(why.contains("speed class 5, energy class 4"), "{why}");
    let trace = cluster.path("trace.json");
    let exported = [
        "job",
        "export-trace",
        &job.to_string(),
        "--output",
        trace.to_str().unwrap(),
    ];
    assert!(cluster.run(&exported).ok);
    let text = std::fs::read_to_string(&trace).unwrap();
    let trace: Value = serde_json::from_str(&text).unwrap();
    let all = trace["tasks"].as_array().unwrap();
    for (index, one) in all.iter().enumerate() {
        for other in &all[index + 1..] {
            let names = [one, other].map(|task| task["name"].as_str().unwrap());
            let contend = ["g", "m"]
                .iter()
                .any(|kind| names.iter().all(|name| name.starts_with(kind)));
            let alone = names.contains(&"both") && !names.iter().any(|name| name.starts_with('m'));
            assert!(!(contend || alone) || !overlap(one, other), "{one} {other}");
        }
    }
    let simulated = cluster.run(&["plan", "run", cluster.path("trace.json").to_str().unwrap()]);
    assert!(simulated.ok, "{}", simulated.err);
}

#[test]
fn task_gets_only_requested_memory() {
    let Some(cluster) = cluster() else { return };
    cluster.sh("mkdir w");
    let hungry = "kernel = \"python3\"; args = [ \"-c\", \"data = b'x' * (300 << 20)\" ]; memory = \"128 MiB\"; retries = 0;";
    let job = cluster.submit(&script(&[("a", hungry)]));
    let ended = cluster.ended(job);
    assert_eq!(ended["state"], "failed");
    let error = ended["tasks"][0]["error"].as_str().unwrap();
    assert!(error.contains("memory limit of 134217728 bytes"), "{error}");
}
