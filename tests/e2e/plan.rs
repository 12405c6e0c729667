//! Tests planning from the command line. Needs no cluster.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn plan(directory: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidemill"))
        .args(args)
        .current_dir(directory)
        .env("HOME", directory)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(directory: &Path, args: &[&str]) -> Value {
    let output = plan(directory, args);
    assert!(
        output.status.success(),
        "{args:?}: {}",
        text(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn plan_model_reports_site_by_section() {
    let directory = tempfile::tempdir().unwrap();
    let output = plan(directory.path(), &["plan", "model", "staging"]);
    assert!(output.status.success());
    assert!(
        text(&output.stderr).contains("--site"),
        "the output names the site"
    );
    let out = text(&output.stdout);
    assert!(
        out.contains("Largest staging ratio") && !out.contains("Energy of one run"),
        "{out}"
    );

    let of_mine = |section: &str, more: &[&str]| of_own_site(directory.path(), section, more);
    let all = of_mine("all", &[]);
    for section in ["staging", "feasibility", "energy", "cost"] {
        assert!(!all[section].as_array().unwrap().is_empty(), "{section}");
    }
    let cost = of_mine("cost", &[]);
    assert_eq!(cost["cost"], all["cost"]);
    assert!(cost.get("energy").is_none());
    let k_means = |report: &Value| {
        let rows = report["energy"].as_array().unwrap().clone();
        let row = rows
            .into_iter()
            .find(|row| row["application"] == "S3D" && row["kernel"] == "k-means");
        row.unwrap()["active_flash"].clone()
    };
    assert_eq!(k_means(&all)["infeasible"]["reason"], "kernel-too-slow");
    let printed = of_mine("energy", &["--without", "overload-infeasible"]);
    assert!(k_means(&printed)["feasible"].is_object());
}

/// Returns a section of the models for a copy of the paper's site.
fn of_own_site(directory: &Path, section: &str, more: &[&str]) -> Value {
    let jaguar = include_str!("../../examples/site/jaguar.toml");
    std::fs::write(directory.join("mine.toml"), jaguar).unwrap();
    let args = ["--json", "plan", "model", section, "--site", "mine.toml"];
    json(directory, &[&args, more].concat())
}

#[test]
fn plan_model_says_kernel_keeps_up_at_its_largest_ratio() {
    let directory = tempfile::tempdir().unwrap();
    let of_mine = |section: &str, more: &[&str]| of_own_site(directory.path(), section, more);
    let all = of_mine("all", &[]);
    // A kernel keeps up at its largest feasible ratio, and does not at the next one.
    let feasible = |report: &Value| {
        let rows = report["feasibility"].as_array().unwrap().clone();
        let mut rows = rows.into_iter();
        rows.find(|row| row["application"] == "S3D" && row["kernel"] == "k-means")
            .unwrap()
    };
    let largest = &feasible(&all)["largest_ratio"]["feasible"];
    assert_eq!(largest["bound"], "kernel");
    let ratio = largest["ratio"].as_f64().unwrap();
    for (ratio, keeps_up) in [(ratio, true), (ratio + 0.01, false)] {
        let report = of_mine("feasible", &["--ratio", &ratio.to_string()]);
        let needed = &feasible(&report)["required_bytes_per_second"];
        assert_eq!(
            needed["feasible"].is_number(),
            keeps_up,
            "{ratio}: {needed}"
        );
    }
    let args = [
        "plan",
        "model",
        "cost",
        "--site",
        "mine.toml",
        "--ratio",
        "18001",
    ];
    let refused = plan(directory.path(), &args);
    let err = text(&refused.stderr);
    assert!(
        !refused.status.success() && err.contains("--ratio: a staging ratio of 18001 is above"),
        "{err}"
    );
}

#[test]
fn plan_model_refuses_invalid_site_with_file_and_line() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |args: &[&str]| {
        let output = plan(directory.path(), args);
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let jaguar = include_str!("../../examples/site/jaguar.toml");
    let line = 1 + jaguar
        .lines()
        .position(|line| line.starts_with("nodes"))
        .unwrap();
    let wrong: Vec<_> = jaguar
        .lines()
        .map(|line| {
            if line.starts_with("nodes") {
                "nodes = -3"
            } else {
                line
            }
        })
        .collect();
    std::fs::write(directory.path().join("site.toml"), wrong.join("\n")).unwrap();
    let (code, out, err) = refused(&["plan", "model", "all", "--site", "site.toml"]);
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
    assert!(err.contains(&format!("site.toml:{line}:")), "{err}");
    let (code, _, err) = refused(&["plan", "model", "cost", "--site", "none.toml"]);
    assert!(code == Some(1) && err.contains("none.toml"), "{err}");
    let (code, _, err) = refused(&["plan", "model", "all", "--without", "gravity"]);
    assert!(
        code == Some(2) && err.contains("stage-out-at-share"),
        "{err}"
    );
}

const PLATFORM: &str = include_str!("../../examples/planning/cluster.ini");
const COSTS: &str = include_str!("../../examples/planning/getmax.toml");
const SCRIPT: &str = include_str!("../../examples/listing1/getmax.conf");

/// Returns a directory with the examples' job, costs and platform.
fn job() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("cluster.ini", PLATFORM),
        ("costs.toml", COSTS),
        ("job.conf", SCRIPT),
    ] {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

const RUN: [&str; 7] = [
    "plan",
    "run",
    "job.conf",
    "--costs",
    "costs.toml",
    "--platform",
    "cluster.ini",
];

#[test]
fn plan_run_simulates_and_draws_job_script() {
    let directory = job();
    let with = |more: &[&'static str]| [&RUN[..], more].concat();
    let shown = plan(
        directory.path(),
        &with(&["--tasks", "--gantt", "chart.svg"]),
    );
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    let out = text(&shown.stdout);
    for part in ["makespan", "getmax.reduce", "policy"] {
        assert!(out.contains(part), "no {part} in:\n{out}");
    }
    let chart = std::fs::read_to_string(directory.path().join("chart.svg")).unwrap();
    assert!(chart.starts_with("<svg") && chart.contains("getmax.2"));

    let report = json(directory.path(), &[&["--json"], &RUN[..]].concat());
    // 2 GB are read at 550 MB/s and processed at 400 MB/s; the rest takes tens of milliseconds.
    let makespan = report["makespan_ns"].as_u64().unwrap();
    assert!(
        (8_640_000_000..9_000_000_000).contains(&makespan),
        "{makespan}"
    );
    assert_eq!(report["tasks"].as_array().unwrap().len(), 3);
    let policy = |name: &'static str| {
        let args = [&["--json"], &with(&["--policy", name, "--seed", "3"])[..]].concat();
        json(directory.path(), &args)
    };
    assert_eq!(policy("random"), policy("random"), "a seed replays its run");
    assert_eq!(policy("wa")["policy"], "wa");
}

#[test]
fn plan_sweep_covers_clusters_of_many_shapes() {
    let directory = job();
    let mut args = vec!["--json", "plan", "sweep"];
    args.extend(&RUN[2..]);
    args.extend(["--nodes", "1-2", "--cores", "1-3", "--plot", "plot.svg"]);
    let points = json(directory.path(), &args);
    let points = points.as_array().unwrap();
    assert_eq!(points.len(), 2 * 2 * 3);
    let makespan = |nodes: u64, cores: u64| {
        let shape = |point: &&Value| point["nodes"] == nodes && point["cores"] == cores;
        points.iter().find(shape).unwrap()["makespan_ns"]
            .as_u64()
            .unwrap()
    };
    assert!(
        makespan(1, 1) > makespan(2, 1),
        "two tasks gain by a second node"
    );
    assert_eq!(makespan(2, 2), makespan(2, 3), "and by no third core");
    let plot = std::fs::read_to_string(directory.path().join("plot.svg")).unwrap();
    assert!(plot.contains("round-robin") && plot.contains("write-amplification"));
    let table = text(&plan(directory.path(), &args[1..]).stdout);
    assert_eq!(table.lines().count(), 1 + 2 * 2, "{table}");
}

/// The plan covers a cluster that does not exist, and reports nothing for a cost that is not given.
#[test]
fn plan_power_counts_cost_of_resuming() {
    let directory = job();
    let base = ["plan", "power", "job.conf", "--costs", "costs.toml"];
    let on = |platform: &str, more: &[&str]| {
        let args = [
            &["--json"],
            base.as_slice(),
            &["--platform", platform],
            more,
        ];
        json(directory.path(), &args.concat())
    };
    let reported = on("cluster.ini", &[]);
    assert_eq!(
        reported["points"][0]["static"]["energy_joules"],
        Value::Null
    );
    let cluster = std::fs::read_to_string(directory.path().join("cluster.ini")).unwrap();
    let power = "power_busy = 165\npower_idle = 165\npower_suspended = 16\nresume = 2\n[SERVER]";
    let cluster = cluster.replace("[SERVER]", power);
    std::fs::write(directory.path().join("power.ini"), cluster).unwrap();
    let reported = on("power.ini", &["--active", "1"]);
    let point = &reported["points"][0];
    let joules = |way: &str| point[way]["energy_joules"].as_f64().unwrap();
    // All four are active for longer than a resume takes.
    assert!(
        joules("all") > 4.0 * 165.0 * 8.0 && joules("static") > 0.0,
        "{point:#}"
    );
    assert!(point["all"]["resumes"].as_u64() > Some(0), "{point:#}");
    let refused = [
        base.as_slice(),
        &["--platform", "power.ini", "--active", "999"],
    ]
    .concat();
    let refused = plan(directory.path(), &refused);
    assert!(!refused.status.success());
    assert!(text(&refused.stderr).contains("--active 999: the platform has"));
}

#[test]
fn plan_run_refuses_invalid_input_with_file_and_line() {
    let directory = job();
    let refused = |args: &[&str], code: i32, part: &str| {
        let output = plan(directory.path(), args);
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {err}");
        assert!(err.contains(part), "{args:?}: {err}\nlacks {part}");
        assert!(output.stdout.is_empty(), "{args:?}");
    };
    let write =
        |name: &str, text: String| std::fs::write(directory.path().join(name), text).unwrap();
    refused(&RUN[..5], 1, "--platform");
    refused(
        &["plan", "run", "job.conf", "--platform", "cluster.ini"],
        1,
        "--costs",
    );
    refused(
        &["plan", "run", "none.json", "--platform", "cluster.ini"],
        1,
        "none.json",
    );
    refused(&[&RUN[..], &["--policy", "best"]].concat(), 2, "min-wait");
    refused(&["plan", "sweep", "job.conf", "--cores", "0-2"], 2, "`0`");
    write("cluster.ini", PLATFORM.replace("= 450", "= 450 MB"));
    refused(
        &RUN,
        1,
        "cluster.ini:5: write_bandwidth can't be measured in `MB`",
    );
    write(
        "cluster.ini",
        PLATFORM.replace("number_afes       = 4", "number_afes = 0"),
    );
    refused(&RUN, 1, "no nodes");
    write("cluster.ini", PLATFORM.into());
    write("costs.toml", COSTS.replace("\"1 GB\"", "\"-1 GB\""));
    refused(&RUN, 1, "costs.toml:4: a file's size can't be negative");
    write(
        "cut.json",
        r#"{ "format": "tidemill-trace", "version": 1,"#.into(),
    );
    refused(&["plan", "run", "cut.json"], 1, "cut.json:1: ");
    for (name, content, part) in [
        (
            "nothing.json",
            "{}",
            "nothing.json:1: it is JSON, but neither",
        ),
        ("list.json", "[]", "list.json:1: it is JSON, but neither"),
        ("empty.conf", "\n", "empty.conf: it is empty"),
        ("prose.txt", "Dear all,\n", "prose.txt:1:"),
    ] {
        write(name, content.into());
        refused(&["plan", "run", name, "--platform", "cluster.ini"], 1, part);
    }
    let circle = r#"{ "name": "w", "schemaVersion": "1.5", "workflow": { "specification": { "tasks": [
        { "name": "a", "id": "a", "parents": ["b"], "children": ["b"] },
        { "name": "b", "id": "b", "parents": ["a"], "children": ["a"] } ], "files": [] },
        "execution": { "tasks": [ { "id": "a", "runtimeInSeconds": 1 }, { "id": "b", "runtimeInSeconds": 1 } ] } } }"#;
    write("circle.json", circle.into());
    refused(
        &["plan", "run", "circle.json", "--platform", "cluster.ini"],
        1,
        "circle.json:2: tasks need each other in a circle",
    );
}
