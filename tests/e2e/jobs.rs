//! Tests jobs from script to result.

use crate::cluster::{Cluster, Options, wait};
use std::process::Command;

/// Returns little-endian doubles.
fn doubles(values: &[f64]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

const LISTING_1: &str = include_str!("../../examples/listing1/getmax.conf");

#[test]
fn analyzethis_listing_1_runs_before_its_data_exists() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let kernel = cluster.path("getmax.so");
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-I"])
        .arg(format!("{root}/crates/sandbox/include"))
        .arg(format!("{root}/examples/listing1/getmax.c"))
        .arg("-o")
        .arg(&kernel)
        .status()
        .unwrap();
    assert!(built.success());
    cluster.sh(&format!(
        "mkdir -p scratch/getmax && cp {} scratch/getmax/",
        kernel.display()
    ));
    let script = cluster.path("getmax.conf");
    std::fs::write(&script, LISTING_1).unwrap();
    cluster.sh(&format!(
        "echo {} > .tidemill/root/submit",
        script.display()
    ));
    let list = cluster.sh("cat .tidemill/root/joblist; cat .analyzethis/root/joblist");
    let handle: u64 = list
        .lines()
        .next()
        .unwrap()
        .split_whitespace()
        .last()
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(
        cluster.job(handle)["state"],
        "running",
        "it waits for its inputs"
    );
    std::fs::write(
        cluster.at("scratch/getmax/1.dat"),
        doubles(&[1.0, 8.0, 3.0]),
    )
    .unwrap();
    std::fs::write(cluster.at("scratch/getmax/2.dat"), doubles(&[4.0, 2.0])).unwrap();
    cluster.done(handle);
    let mean: f64 = cluster
        .sh("cat scratch/getmax/max.dat")
        .trim()
        .parse()
        .unwrap();
    assert!((mean - 6.0).abs() < 1e-12, "{mean}");
    let status = cluster.sh(&format!("cat .tidemill/root/{handle}-status"));
    assert!(status.contains("getmax.reduce"), "{status}");
}

/// Returns a job of eight maps and a reduce, with a script stored in the cluster.
fn word_count(policy: &str) -> String {
    let maps: String = (0..8)
        .map(|i| {
            format!(
                "{{ name = \"map{i}\"; kernel = \"count.sh\"; args = [\"in{i}\"]; input = [\"in{i}\"]; \
                 output = [\"out{i}\"]; stdout = \"out{i}\"; }},\n"
            )
        })
        .collect();
    let outs: Vec<String> = (0..8).map(|i| format!("\"out{i}\"")).collect();
    format!(
        "name = \"count\"; workdir = \"/w\"; policy = \"{policy}\"; strict = true;\ntasks = (\n{maps}\
         {{ name = \"sum\"; kernel = \"sum.sh\"; args = [{0}]; input = [{0}]; output = [\"total\"]; stdout = \"total\"; }} );\n",
        outs.join(", ")
    )
}

#[test]
fn job_result_is_same_under_every_policy_with_explanation() {
    let options = Options {
        nodes: 3,
        cores: 1,
        server_cores: 1,
        ..Options::default()
    };
    let Some(cluster) = Cluster::with(options) else {
        return;
    };
    cluster.sh(
        r#"mkdir w; cd w; printf '#!/bin/sh\nwc -w < "$1"\n' > count.sh
           printf '#!/bin/sh\ncat "$@" | awk "{s+=\\$1} END {print s}"\n' > sum.sh; chmod +x *.sh
           for i in $(seq 0 7); do seq $((i * 100)) > in$i; done"#,
    );
    for policy in [
        "round-robin",
        "random",
        "input-locality",
        "min-wait",
        "hybrid",
        "random:all",
        "constraint:energy",
        "constraint:load=2,capacity=0.5",
        "minmax",
    ] {
        let job = cluster.done(cluster.submit(&word_count(policy)));
        assert_eq!(cluster.sh("cat w/total").trim(), "2800", "{policy}");
        let tasks = job["tasks"].as_array().unwrap();
        assert_eq!(tasks.len(), 9);
        for task in tasks {
            assert!(!task["kernel_hash"].as_str().unwrap().is_empty(), "{task}");
        }
        let explained = cluster.json(&["job", "explain", &job["job"].to_string()]);
        let decisions = explained["decisions"].as_array().unwrap();
        assert!(decisions.len() >= 9, "{explained}");
        assert!(
            decisions
                .iter()
                .all(|d| !d["reason"].as_str().unwrap().is_empty())
        );
        cluster.sh("rm w/out* w/total");
    }
}

#[test]
fn program_sees_only_its_own_files_under_names_of_the_job() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir -p w/sub; echo data > w/sub/in; echo secret > w/secret");
    let script = r#"name = "see"; workdir = "/w"; tasks = ( { name = "look"; kernel = "/bin/sh";
        args = ["-c", "ls -R . > sub/out; cat sub/in >> sub/out; cat /etc/shadow /root/.profile 2>/dev/null >> sub/out; echo end >> sub/out"];
        input = ["sub/in"]; output = ["sub/out"]; } );"#;
    cluster.done(cluster.submit(script));
    let seen = cluster.sh("cat w/sub/out");
    assert!(seen.contains("data") && seen.contains("end"), "{seen}");
    assert!(
        !seen.contains("secret") && !seen.contains("root:"),
        "{seen}"
    );
}

#[test]
fn job_logs_show_last_output_of_every_task() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir w");
    let task = |name: &str, command: &str| {
        format!(
            "{{ name = \"{name}\"; kernel = \"/bin/sh\"; args = [\"-c\", \"{command}\"]; input = []; output = [\"{name}.out\"]; }}"
        )
    };
    let tasks = [
        task("well", "echo fine; echo careful >&2; echo > well.out"),
        task("badly", "echo begun; echo broken >&2; exit 4"),
        task("silent", "echo > silent.out"),
        task(
            "much",
            "echo first; head -c 100000 /dev/zero | tr '\\\\0' x; echo last; echo > much.out",
        ),
    ];
    let script = format!(
        "name = \"say\"; workdir = \"/w\"; tasks = ( {} );",
        tasks.join(",\n")
    );
    let job = cluster.ended(cluster.submit(&script));
    let id = job["job"].to_string();
    let logs = cluster.json(&["job", "logs", &id]);
    let logs = logs.as_array().unwrap();
    let printed: Vec<_> = logs
        .iter()
        .map(|log| log["name"].as_str().unwrap())
        .collect();
    assert_eq!(printed, ["well", "badly", "much"]);
    assert_eq!(
        (&logs[0]["stdout"], &logs[0]["stderr"]),
        (&"fine\n".into(), &"careful\n".into())
    );
    assert_eq!(
        (&logs[1]["stdout"], &logs[1]["stderr"]),
        (&"begun\n".into(), &"broken\n".into())
    );
    assert!(
        logs[1]["error"].as_str().unwrap().contains('4'),
        "{}",
        logs[1]
    );
    let much = logs[2]["stdout"].as_str().unwrap();
    assert_eq!(much.len(), 16 << 10);
    assert!(much.ends_with("xlast\n") && !much.contains("first"));
    let text = cluster.run(&["job", "logs", &id, "well"]).out;
    assert!(
        text.contains("> fine") && text.contains("| careful"),
        "{text}"
    );
    let silent = cluster.run(&["job", "logs", &id, "silent"]);
    assert!(silent.ok && silent.out.contains("silent"), "{}", silent.out);
}

#[test]
fn empty_files_are_valid_inputs_on_any_node() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let local = cluster.path("empty");
    std::fs::write(&local, b"").unwrap();
    for node in [0, 1] {
        cluster.sh(&format!(
            "mkdir w{node}; setfattr -n user.tidemill.node -v {node} w{node}; cd w{node}; \
             touch touched; : > opened; \
             python3 -c 'import os; os.mknod(\"made\", 0o100644)'; truncate -s 0 cut; \
             echo full > emptied; : > emptied"
        ));
        let printed = cluster.run(&["put", local.to_str().unwrap(), &format!("/w{node}/put")]);
        assert!(printed.ok, "{}", printed.err);
    }
    let names = ["touched", "opened", "made", "cut", "emptied", "put"];
    let mut tasks = Vec::new();
    for from in [0, 1] {
        for on in [0, 1] {
            let inputs: Vec<String> = names.iter().map(|n| format!("\"/w{from}/{n}\"")).collect();
            tasks.push(format!(
                "{{ name = \"from{from}on{on}\"; kernel = \"/bin/sh\"; node = {on}; \
                 args = [\"-c\", \"ls | wc -l; cat {0} | wc -c\"]; input = [{1}]; output = [\"{from}{on}\"]; stdout = \"{from}{on}\"; }}",
                names.join(" "),
                inputs.join(", ")
            ));
        }
    }
    let script = format!(
        "name = \"empty\"; workdir = \"/out\"; strict = true; tasks = ( {} );",
        tasks.join(",\n")
    );
    cluster.sh("mkdir out");
    cluster.done(cluster.submit(&script));
    for output in ["00", "01", "10", "11"] {
        let printed = cluster.sh(&format!("cat out/{output}"));
        let numbers: Vec<&str> = printed.split_whitespace().collect();
        assert_eq!(numbers[1], "0", "{output}: {printed}");
    }
}

#[test]
fn job_cancel_stops_running_and_waiting_tasks() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir w");
    let job = cluster.submit(
        r#"name = "c"; workdir = "/w"; tasks = (
        { name = "long"; kernel = "/bin/sleep"; args = ["1000"]; input = []; output = ["a"]; },
        { name = "next"; kernel = "/bin/cat"; args = ["a"]; input = ["a"]; output = ["b"]; stdout = "b"; } );"#,
    );
    wait("it runs", || {
        cluster.job(job)["tasks"][0]["state"] == "running"
    });
    assert!(cluster.run(&["job", "cancel", &job.to_string()]).ok);
    assert_eq!(cluster.ended(job)["state"], "cancelled");
    assert!(cluster.run(&["status"]).ok);
    wait("the node is idle", || {
        let status = cluster.json(&["status"]);
        status["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .all(|e| e["running"] == 0)
    });
}

#[test]
fn intermediates_with_lifetime_are_removed_and_results_stay() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir w; echo x > w/in");
    let job = cluster.submit(
        r#"name = "l"; workdir = "/w"; lifetime = "used"; tasks = (
        { name = "one"; kernel = "/bin/cp"; args = ["in", "mid"]; input = ["in"]; output = ["mid"]; },
        { name = "two"; kernel = "/bin/cp"; args = ["mid", "out"]; input = ["mid"]; output = ["out"]; } );"#,
    );
    cluster.done(job);
    wait("the intermediate is deleted", || {
        !cluster.at("w/mid").exists()
    });
    assert_eq!(cluster.sh("cat w/out").trim(), "x");
}

#[test]
fn keywords_of_c_sources_agree_with_grep() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/keywords");
    let data = cluster.path("data");
    let data = data.display();
    cluster.sh(&format!("{example}/get-data.sh --part kernel --groups 6 {data} >&2 && {example}/make-job.py {data} /k >&2"));
    cluster.sh(&format!("mkdir k && cp {data}/input/* k/"));
    let printed = cluster.run(&["submit", &format!("{data}/keywords.toml"), "--watch"]);
    assert!(printed.ok, "{}{}", printed.out, printed.err);
    cluster.sh(&format!("{example}/check.sh {data} k/keywords.tsv"));
}

#[test]
fn montage_job_gives_same_mosaic_as_run_outside_cluster() {
    let options = Options {
        nodes: 4,
        cores: 1,
        server_cores: 1,
        ..Options::default()
    };
    let Some(cluster) = Cluster::with(options) else {
        return;
    };
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/montage");
    let (data, plain) = (cluster.path("data"), cluster.path("plain"));
    let (data, plain) = (data.display(), plain.display());
    cluster.sh(&format!(
        "{example}/get-data.sh {data} >&2 && {example}/make-job.py {data} /m >&2 && {example}/offline.sh {plain} {data} >&2"
    ));
    cluster.sh(&format!("mkdir m && cp {data}/images/* {data}/plan/* m/"));
    let printed = cluster.run(&[
        "submit",
        &format!("{data}/montage.toml"),
        "--policy",
        "hybrid",
        "--watch",
    ]);
    assert!(printed.ok, "{}{}", printed.out, printed.err);
    cluster.sh(&format!(
        "cmp m/mosaic.fits {plain}/mosaic.fits && cmp m/mosaic.png {plain}/mosaic.png"
    ));
    let lineage = cluster.json(&["lineage", "show", "/m/mosaic.png", "--up"]);
    assert_eq!(
        lineage["runs"].as_array().unwrap().len(),
        36,
        "every task had a part in it"
    );
}
