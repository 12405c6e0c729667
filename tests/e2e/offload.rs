//! Tests measurements of kernels and advice where to run them, without a cluster and with one.

use crate::cluster::{Cluster, Options, wait};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

/// Calibration: on the client 10 MB/s and 10 ms to start; on node 2 a quarter of that. The files are small, so that each device has
/// space for them.
const CALIBRATION: &str = r#"
version = 1
host = "workstation"
cores = 8
command_ns = 0

[[kernel]]
name = "max"
args = []
hash = "0"
measured = "2026-11-21 15:00:00"
seed = 1
input_bytes = 1000000
output_bytes = 18
runs = 5
start_ns = 10000000
bytes_per_sec = 1e7
share = 1.0

[[kernel]]
name = "od"
args = []
hash = "0"
measured = "2026-11-21 15:00:00"
seed = 1
input_bytes = 1000000
output_bytes = 3000000
runs = 5
start_ns = 10000000
bytes_per_sec = 1e7
share = 1.0
"#;

fn offload(directory: &Path, args: &[&str]) -> Output {
    plan(directory, &[&["offload"], args].concat())
}

fn plan(directory: &Path, args: &[&str]) -> Output {
    let calibration = directory.join("calibration.toml");
    if !calibration.exists() {
        std::fs::write(&calibration, CALIBRATION).unwrap();
    }
    Command::new(env!("CARGO_BIN_EXE_tidemill"))
        .args(["--json", "--dir", ".", "plan"])
        .args(args)
        .current_dir(directory)
        .env("HOME", directory)
        .output()
        .unwrap()
}

fn advice(directory: &Path, args: &[&str]) -> Value {
    answer(&offload(directory, args), args)
}

fn answer(output: &Output, args: &[&str]) -> Value {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns one of the choices.
fn choice<'a>(advice: &'a Value, name: &str) -> &'a Value {
    let all = advice["choices"].as_array().unwrap();
    all.iter().find(|one| one["choice"] == name).unwrap()
}

fn close(value: &Value, expected: f64) {
    let value = value.as_f64().unwrap();
    assert!(
        (value - expected).abs() < 1e-9 * expected,
        "{value} is not {expected}"
    );
}

const ALONE: [&str; 5] = ["--size", "10000000 B", "--node-speed", "0.25", "--no-load"];

#[test]
fn plan_offload_without_cluster_needs_only_calibration() {
    let directory = tempfile::tempdir().unwrap();
    let over = |link: &str, rest: &[&str]| {
        advice(
            directory.path(),
            &[rest, &ALONE, &["--link", link]].concat(),
        )
    };
    let ask = |rest: &[&str]| over("10 Mbit/s", rest);
    assert_eq!(over("12.5 kB/s", &["max"])["best"], "node");
    let reduces = ask(&["max"]);
    assert_eq!(
        reduces["best"], "both",
        "the client's cores are faster and the link keeps up"
    );
    close(
        &choice(&reduces, "node")["seconds"],
        0.01 + 4.0 + 180.0 / 1.25e6,
    );
    close(&choice(&reduces, "client")["seconds"], 8.0 + 0.01 + 1.0);
    close(&choice(&reduces, "client")["transferred_bytes"], 1e7);
    let both = &choice(&reduces, "both")["seconds"];
    assert!(both.as_f64() <= choice(&reduces, "node")["seconds"].as_f64());

    let expands = ask(&["od"]);
    assert_eq!(expands["best"], "client");
    close(&choice(&expands, "node")["seconds"], 0.01 + 4.0 + 24.0);
    assert_eq!(choice(&expands, "both")["feasible"], false);
    assert!(
        choice(&expands, "both")["why"]
            .as_str()
            .unwrap()
            .contains("parts")
    );
    assert_eq!(ask(&["od", "--result", "node"])["best"], "node");
    assert_eq!(
        choice(&ask(&["od", "--splittable"]), "both")["feasible"],
        true
    );
}

#[test]
fn plan_offload_reports_missing_calibration() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |args: &[&str], words: &str| {
        let output = offload(directory.path(), args);
        assert!(!output.status.success(), "{args:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(words), "{args:?}: {text}");
    };
    refused(&["min", "--size", "1 GB"], "tidemill kernel bench min");
    refused(&["max", "--size", "1 GB"], "give --link");
    refused(&["max", "--size", "1 X"], "is not a size");
    refused(
        &["max", "--size", "1 GB", "--node-speed", "0"],
        "above zero",
    );
    refused(&["max"], "required");
    refused(&["max", "/a"], "can't reach the server");
    refused(
        &["max", "--size", "1 GB", "--calibration", "none.toml"],
        "none.toml does not exist",
    );
    let unknown = advice(
        directory.path(),
        &["max", "--size", "1 GB", "--link", "1 GB/s"],
    );
    assert_eq!(unknown["best"], "client");
    assert!(
        choice(&unknown, "node")["why"]
            .as_str()
            .unwrap()
            .contains("never measured")
    );
}

#[test]
fn bench_measures_kernels_and_advises_on_file() {
    let Some(cluster) = Cluster::with(Options {
        mount: false,
        ..Options::default()
    }) else {
        return;
    };
    let file = cluster.path("calibration.toml");
    let file = file.to_str().unwrap();
    let bench = |args: &[&str]| {
        cluster.json(
            &[
                &[
                    "kernel", "bench", "--size", "32Mi", "--runs", "3", "-o", file,
                ],
                args,
            ]
            .concat(),
        )
    };
    let measured = bench(&["--nodes", "grep"]);
    assert_eq!(measured["kernel"].as_array().unwrap().len(), 1);
    assert_eq!(measured["node"].as_array().unwrap().len(), 2);
    for node in measured["node"].as_array().unwrap() {
        let kernel = &node["kernel"][0];
        assert_eq!(kernel["hash"], measured["kernel"][0]["hash"]);
        assert_eq!(
            kernel["output_bytes"],
            measured["kernel"][0]["output_bytes"]
        );
        assert!(kernel["bytes_per_sec"].as_f64().unwrap() > 0.0);
        assert!(node["link_bytes_per_sec"].as_f64().unwrap() > 0.0);
    }
    assert_eq!(
        cluster.run(&["ls", "/"]).out.trim(),
        "kernels",
        "the benchmark's files are deleted"
    );
    bench(&["base64"]);

    a_file_is_advised_on(&cluster, file, &measured);
}

fn a_file_is_advised_on(cluster: &Cluster, file: &str, measured: &Value) {
    let local = cluster.path("text");
    std::fs::write(&local, "tide and mill\n".repeat(10_000)).unwrap();
    assert!(
        cluster
            .run(&["put", "--node", "1", local.to_str().unwrap(), "/text"])
            .ok
    );
    let ask =
        |kernel: &str| cluster.json(&["plan", "offload", kernel, "/text", "--calibration", file]);
    let known = ask("grep");
    close(&known["input_bytes"], 140_000.0);
    let rate = |all: &Value| {
        let kernel = &all["kernel"][0];
        kernel["bytes_per_sec"].as_f64().unwrap() / kernel["share"].as_f64().unwrap()
    };
    close(&known["node_bytes_per_sec"], rate(&measured["node"][1]));
    // Both are on this machine.
    close(&known["client_bytes_per_sec"], rate(&measured["node"][1]));
    for share in ["client_processor_share", "node_processor_share"] {
        let share = known[share].as_f64().unwrap();
        assert!(share > 0.0 && share <= 1.0, "{share}");
    }
    for one in known["choices"].as_array().unwrap() {
        assert_eq!(one["feasible"], true, "{one}");
    }
    // The kernel was never measured on the node, but its rate is known after it has run there.
    assert_eq!(choice(&ask("base64"), "node")["feasible"], false);
    let job = r#"name = "b"; workdir = "/"; tasks = ( { name = "b"; kernel = "base64"; input = ["text"];
        output = ["b64"]; stdin = "text"; stdout = "b64"; } );"#;
    cluster.done(cluster.submit(job));
    // Nodes report their history at intervals.
    wait("the node's history", || {
        choice(&ask("base64"), "node")["feasible"] == true
    });
}

/// Kernels of a node on the same machine: the node's estimate includes the wait for them, and the client's does
/// not.
#[test]
fn plan_offload_charges_running_and_queued_tasks_to_node() {
    let Some(cluster) = Cluster::with(Options {
        mount: false,
        ..Options::default()
    }) else {
        return;
    };
    let calibration = cluster.path("calibration.toml");
    std::fs::write(&calibration, CALIBRATION).unwrap();
    let local = cluster.path("data");
    std::fs::write(&local, [0; 8000]).unwrap();
    assert!(
        cluster
            .run(&["put", "--node", "1", local.to_str().unwrap(), "/data"])
            .ok
    );
    let ask = |rest: &[&str]| {
        let calibration = calibration.to_str().unwrap();
        let fixed = ["--node-speed", "1", "--link", "1 GB/s", "--calibration"];
        cluster.json(
            &[
                &["plan", "offload", "max", "/data"],
                &fixed[..],
                &[calibration],
                rest,
            ]
            .concat(),
        )
    };
    let waits = |advice: &Value, side| choice(advice, side)["waiting_seconds"].as_f64().unwrap();
    let idle = ask(&[]);
    assert_eq!((waits(&idle, "node"), waits(&idle, "client")), (0.0, 0.0));
    let sleep = |n: u32| {
        format!(
            "{{ name = \"s{n}\"; kernel = \"sleep\"; args = [ \"600\" ]; output = [ \"o{n}\" ]; \
             stdout = \"o{n}\"; node = 1; }}"
        )
    };
    let tasks: Vec<String> = (0..20).map(sleep).collect();
    let tasks = tasks.join(", ");
    let job = cluster.submit(&format!(
        "name = \"busy\"; workdir = \"/\"; tasks = ( {tasks} );"
    ));
    wait("a kernel that runs", || {
        cluster.json(&["job", "show", &job.to_string()])["tasks"][0]["state"] == "running"
    });
    let busy = ask(&[]);
    // Their durations are not known: a minute is assumed for each.
    assert!(waits(&busy, "node") > 60.0, "{busy}");
    assert!(waits(&busy, "client") == 0.0, "{busy}");
    assert_eq!(busy["best"], "client");
    assert!(
        busy["reason"]
            .as_str()
            .unwrap()
            .contains("waiting for a core"),
        "{busy}"
    );
    assert!(busy.to_string().contains("wait for its"), "{busy}");
    assert!(waits(&ask(&["--no-load"]), "node") < f64::EPSILON);
    assert!(cluster.run(&["job", "cancel", &job.to_string()]).ok);
}

#[test]
fn advised_policy_runs_job_and_explains_it() {
    let Some(cluster) = Cluster::with(Options {
        server_cores: 1,
        mount: false,
        ..Options::default()
    }) else {
        return;
    };
    let local = cluster.path("text");
    std::fs::write(&local, "tide\n").unwrap();
    assert!(cluster.run(&["put", local.to_str().unwrap(), "/text"]).ok);
    let job = r#"name = "a"; workdir = "/"; policy = "advised"; tasks = (
        { name = "one"; kernel = "wordcount"; input = ["text"]; output = ["1"]; },
        { name = "two"; kernel = "wordcount"; input = ["1"]; output = ["2"]; } );"#;
    let job = cluster.submit(job);
    cluster.done(job);
    let why = cluster.json(&["job", "explain", &job.to_string()]);
    let text = why.to_string();
    assert!(
        text.contains("\"advised\"") && text.contains("of all nodes and the server cores"),
        "{text}"
    );
}

/// Covers a planned hook, on a tier that need not exist, and an existing hook, with the tier's measurements of its
/// kernel. For an unknown value the command asks by the flag that sets it.
#[test]
fn advice_says_whether_burst_tier_keeps_up_with_hook() {
    let directory = tempfile::tempdir().unwrap();
    let to_be = "burst /run/*.f64 --map max --burst 100GB --files 64 --nodes 4 --cores 4 --write-rate 2.5GB/s --every";
    let to_be: Vec<&str> = to_be.split(' ').collect();
    let ask = |more: &[&str]| {
        let args = [&to_be, more].concat();
        answer(&plan(directory.path(), &args), &args)
    };
    let fast = ask(&["60s", "--kernel-rate", "1 GB/s"]);
    assert_eq!(
        (&fast["keeps_up"], &fast["cores_needed"]),
        (&true.into(), &1.into())
    );
    close(&fast["burst_seconds"], 10.0);
    close(&fast["done_in_burst_seconds"], 9.0 * 4.0 * 0.1);
    close(&fast["results_seconds"], 10.0 + (25.0 - 3.6) / 4.0);
    let slow = ask(&["60s", "--kernel-rate", "100 MB/s", "--space", "50GB"]);
    assert_eq!(slow["lacks"], serde_json::json!(["cores"]));
    assert_eq!(
        (&slow["cores_needed"], &slow["bursts_until_full"]),
        (&5.into(), &6.0.into())
    );
    close(&slow["behind_bytes"], 25e9 * (250.0 - 3.6 - 200.0) / 250.0);
    let refused = |args: &[&str], words: &str| {
        let output = plan(directory.path(), args);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && text.contains(words),
            "{args:?}: {text}"
        );
    };
    refused(
        &[&to_be[..], &["0s", "--kernel-rate", "1 GB/s"]].concat(),
        "above zero",
    );
    refused(
        &[
            &to_be[..],
            &["1s", "--share", "100", "--kernel-rate", "1 GB/s"],
        ]
        .concat(),
        "0..=99",
    );
    refused(&[&to_be[..], &["60s"]].concat(), "can't reach the server");
    refused(&["burst", "h", "/a"], "unexpected argument '/a'");
    refused(
        &["offload", "max", "/a", "--burst", "1GB"],
        "unexpected argument '--burst'",
    );

    let Some(mut cluster) = Cluster::with(Options {
        mount: false,
        nodes: 1,
        ..Options::default()
    }) else {
        return;
    };
    let missing = |args: &[&str], words: &str| {
        let printed = cluster.run(&[&["plan", "burst"], args].concat());
        assert!(
            !printed.ok && printed.err.contains(words),
            "{}",
            printed.err
        );
    };
    let rates = [
        "--map",
        "max",
        "--burst",
        "1GB",
        "--every",
        "60s",
        "--write-rate",
        "1 GB/s",
    ];
    missing(
        &[&["/r/*"], &rates[..]].concat(),
        "no node of the burst tier",
    );
    cluster.add_node(&["--tier", "burst"]);
    cluster.start_mount();
    let missing = |args: &[&str], words: &str| {
        let printed = cluster.run(&[&["plan", "burst"], args].concat());
        assert!(
            !printed.ok && printed.err.contains(words),
            "{}",
            printed.err
        );
    };
    let timed = ["--burst", "1GB", "--every", "60s"];
    missing(&[&["none"], &timed[..]].concat(), "none");
    cluster.sh("mkdir run");
    cluster.json(&[
        "rule",
        "create",
        "/run/*.f64",
        "--map",
        "max",
        "--result",
        "max/{stem}",
        "--name",
        "top",
    ]);
    missing(
        &[&["top"], &timed[..]].concat(),
        "tidemill kernel bench --nodes max",
    );
    cluster.sh("head -c 8M /dev/zero > run/a.f64");
    let of = |args: &[&str]| cluster.run(&[&["--json", "plan", "burst", "top"], args].concat());
    wait("the rate of the kernel is known", || {
        of(&timed).err.contains("--write-rate")
    });
    let reported = of(&rates[2..]);
    let reported: Value =
        serde_json::from_str(&reported.out).unwrap_or_else(|_| panic!("{}", reported.err));
    assert!(
        reported["sources"][0]
            .as_str()
            .unwrap()
            .contains("1 runs so far"),
        "{reported}"
    );
    assert_eq!(
        (&reported["map"], &reported["nodes"], &reported["on_write"]),
        (&"max".into(), &1.into(), &false.into())
    );
    close(
        &reported["work_seconds"],
        1e9 / reported["kernel_bytes_per_sec"].as_f64().unwrap(),
    );
    let text = cluster
        .run(&[&["plan", "burst", "top"], &rates[2..]].concat())
        .out;
    assert!(text.contains("keeps up: "), "{text}");
}
