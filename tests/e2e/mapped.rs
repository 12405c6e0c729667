//! Tests task instances of variables: tasks that find values in the bytes of a file with a known format (`variable`).

use crate::chance::Chance;
use crate::cluster::{Cluster, Options};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../format/tests/fixtures")
        .join(name)
}

fn cluster(remote: bool) -> Option<Cluster> {
    Cluster::with(Options {
        nodes: 3,
        remote,
        ..Options::default()
    })
}

fn put(cluster: &Cluster, local: &Path, path: &str) {
    let printed = cluster.run(&["put", "--stripe", "4096,3", local.to_str().unwrap(), path]);
    assert!(printed.ok, "{}", printed.err);
}

fn job(task: &str) -> String {
    format!(r#"name = "j"; workdir = "/"; tasks = ( {{ {task} }} );"#)
}

/// Returns the values of a fixture's variable, as the libraries read them.
fn values_of(name: &str, variable: &str) -> Vec<u8> {
    let reported = std::fs::read(fixture(&format!("{name}.json"))).unwrap();
    let reported: Value = serde_json::from_slice(&reported).unwrap();
    let all = reported["variables"].as_array().unwrap();
    let one = all.iter().find(|one| one["path"] == variable).unwrap();
    let hex = one["selections"][0]["hex"].as_str().unwrap();
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(byte).collect()
}

#[test]
fn program_reads_variable_values_as_plain_file() {
    for remote in [false, true] {
        let Some(cluster) = cluster(remote) else {
            return;
        };
        put(&cluster, &fixture("cdf1.nc"), "/cdf1.nc");
        put(&cluster, &fixture("netcdf4.nc"), "/netcdf4.nc");
        std::fs::write(
            cluster.at("show"),
            "#!/bin/sh\ncat $1\nprintf %s \"$TIDEMILL_LAYOUT\" > $2\n",
        )
        .unwrap();
        cluster.sh("chmod +x show");
        let show = |file: &str, variable: &str, per: &str| {
            let word = per.replace("stripe-object", "part");
            job(&format!(
                r#"name = "show"; kernel = "show"; args = [ "{file}", "l/{variable}.{{{word}}}" ]; per = "{per}"; variable = "netcdf:{variable}";
                   input = [ "{file}" ]; output = [ "v/{variable}.{{{word}}}", "l/{variable}.{{{word}}}" ]; stdout = "v/{variable}.{{{word}}}";"#
            ))
        };
        // Interleaved big-endian records: there is a chunk for each stripe that contains some.
        cluster.done(cluster.submit(&show("cdf1.nc", "f8_3t", "chunk")));
        assert_eq!(cluster.sh("ls v"), "f8_3t.0\nf8_3t.1\n");
        cluster.sh("cat v/f8_3t.* > v/all");
        assert_eq!(
            std::fs::read(cluster.at("v/all")).unwrap(),
            values_of("cdf1.nc", "f8_3t")
        );
        let first: Value = serde_json::from_str(&cluster.sh("cat l/f8_3t.0")).unwrap();
        let second: Value = serde_json::from_str(&cluster.sh("cat l/f8_3t.1")).unwrap();
        let records = first[0]["chunks"][0]["shape"][0].as_u64().unwrap();
        let expected = serde_json::json!([{
            "input": "cdf1.nc", "variable": "f8_3t", "dtype": "float64", "itemsize": 8, "shape": [4, 5, 7],
            "chunks": [{ "start": [records, 0, 0], "shape": [4 - records, 5, 7] }],
        }]);
        assert_eq!(second, expected);
        // The chunks are compressed and shuffled.
        cluster.done(cluster.submit(&show("netcdf4.nc", "deflated", "stripe-object")));
        let locations = cluster.json(&["inspect", "/netcdf4.nc", "deflated"]);
        let parts = locations["variables"][0]["where"].as_array().unwrap().len();
        let made = cluster.sh("ls v/deflated.*").lines().count();
        assert!((1..=parts).contains(&made), "{locations:#}");
        let size: usize = cluster
            .sh("cat v/deflated.* | wc -c")
            .trim()
            .parse()
            .unwrap();
        assert_eq!(size, values_of("netcdf4.nc", "deflated").len());
    }
}

/// Stores records of 24 bytes, in which the middle 8 bytes are a number.
fn with_records(cluster: &Cluster) -> Vec<i64> {
    let numbers: Vec<i64> = {
        let mut chance = Chance(3);
        (0..50_000)
            .map(|_| i64::try_from(chance.next(1 << 30)).unwrap())
            .collect()
    };
    let record = |number: &i64| [7_i64.to_le_bytes(), number.to_le_bytes(), [2; 8]].concat();
    let bytes: Vec<u8> = numbers.iter().flat_map(record).collect();
    let local = cluster.path("records");
    std::fs::write(&local, bytes).unwrap();
    put(cluster, &local, "/records");
    numbers
}

#[test]
fn kernels_run_on_nodes_with_values_and_read_each_once() {
    let Some(cluster) = cluster(true) else { return };
    let numbers = with_records(&cluster);
    let id = cluster.submit(&job(
        r#"name = "sum"; kernel = "sum"; args = [ "dtype=i64" ]; per = "stripe-object"; variable = "columns:_=V8,x=<i8,_=V8";
           input = [ "records" ]; output = [ "sum.{part}" ];"#,
    ));
    let reported = cluster.done(id);
    let tasks = reported["tasks"].as_array().unwrap();
    let layout = cluster.json(&["stat", "/records"]);
    for (task, part) in tasks.iter().zip(layout["parts"].as_array().unwrap()) {
        assert_eq!(task["node"], part["replicas"][0]["node"], "{reported:#}");
    }
    let transferred = tasks
        .iter()
        .map(|task| task["transferred_bytes"].as_u64().unwrap())
        .sum::<u64>();
    assert!(
        transferred < 20_000,
        "only what crosses stripes: {transferred}"
    );
    let sums = cluster.sh("cat sum.*");
    let sum: i64 = sums
        .lines()
        .map(|line| line.trim().parse::<i64>().unwrap())
        .sum();
    assert_eq!(sum, numbers.iter().sum::<i64>());
    // The same task over the same bytes is cached; a task for another column is another task.
    let again = cluster.done(cluster.submit(&job(
        r#"name = "sum"; kernel = "sum"; args = [ "dtype=i64" ]; per = "stripe-object"; variable = "columns:x=<i8,_=V16";
           input = [ "records" ]; output = [ "first.{part}" ];"#,
    )));
    assert!(again["tasks"][0]["reused"].is_null(), "{again:#}");
    let first: i64 = cluster
        .sh("cat first.*")
        .lines()
        .map(|line| line.trim().parse::<i64>().unwrap())
        .sum();
    assert_eq!(first, 7 * i64::try_from(numbers.len()).unwrap());
}

#[test]
fn missing_or_corrupt_variable_is_reported() {
    let Some(cluster) = cluster(false) else {
        return;
    };
    put(&cluster, &fixture("netcdf4.nc"), "/good.nc");
    let mut bytes = std::fs::read(fixture("netcdf4.nc")).unwrap();
    let reported = |file: &str, mapper: &str| {
        let task = format!(
            r#"name = "t"; kernel = "mean"; per = "chunk"; variable = "{mapper}"; input = [ "{file}" ]; output = [ "m.{{chunk}}" ];"#
        );
        let printed = cluster.try_submit(&job(&task));
        assert!(!printed.ok, "{file} {mapper}");
        printed.err
    };
    let missing = reported("good.nc", "netcdf:rain");
    assert!(
        missing.contains("rain") && missing.contains("deflated") && missing.contains("job.conf:1:"),
        "{missing}"
    );
    assert!(reported("good.nc", "zarr:deflated").contains("the file is hdf5"));
    assert!(reported("good.nc", "grib:t").contains("give \"netcdf:VARIABLE\""));
    assert!(reported("good.nc", "columns:a=<f8,b=<f8").contains("name the others _"));
    std::fs::write(cluster.path("cut"), &bytes[..bytes.len() / 2]).unwrap();
    put(&cluster, &cluster.path("cut"), "/cut.nc");
    reported("cut.nc", "netcdf:deflated");
    std::fs::write(cluster.path("noise"), Chance(9).bytes(20_000)).unwrap();
    put(&cluster, &cluster.path("noise"), "/noise.nc");
    assert!(reported("noise.nc", "netcdf:deflated").contains("first bytes are"));
    std::fs::write(cluster.path("none"), "").unwrap();
    put(&cluster, &cluster.path("none"), "/none.nc");
    reported("none.nc", "netcdf:deflated");
    // One byte within a chunk changes: the header stays the same.
    let locations = cluster.json(&["inspect", "/good.nc", "deflated"]);
    assert!(
        locations["variables"][0]["where"][0]["bytes"]
            .as_u64()
            .unwrap()
            > 0
    );
    let streams: Vec<usize> = (0..bytes.len() - 1)
        .filter(|&at| bytes[at] == 0x78 && matches!(bytes[at + 1], 0x01 | 0x5e | 0x9c | 0xda))
        .collect();
    for at in streams {
        bytes[at + 4] ^= 0xff;
    }
    std::fs::write(cluster.path("bad"), &bytes).unwrap();
    put(&cluster, &cluster.path("bad"), "/bad.nc");
    let id = cluster.submit(&job(
        r#"name = "t"; kernel = "wc"; args = [ "-c", "bad.nc" ]; type = "program"; per = "chunk"; variable = "netcdf:deflated";
           input = [ "bad.nc" ]; output = [ "w.{chunk}" ]; stdout = "w.{chunk}";"#,
    ));
    let ended = cluster.ended(id);
    let why = ended.to_string();
    assert_eq!(ended["state"], "failed");
    assert!(
        why.contains("input `bad.nc`")
            && why.contains("of deflated, from index")
            && why.contains("zlib"),
        "{ended:#}"
    );
    for index in 0..3 {
        let run = std::fs::read_dir(cluster.node_directory(index).join("run")).unwrap();
        let left: Vec<_> = run
            .flatten()
            .filter(|entry| entry.path().extension().is_some())
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// Returns the output of a built-in kernel for a file of this machine.
fn alone(cluster: &Cluster, kernel: &str, args: &str, path: &str) -> Vec<u8> {
    let task = format!(
        r#"name = "alone"; kernel = "{kernel}"; args = [ {args} ]; input = [ "{path}" ]; output = [ "alone" ];"#
    );
    cluster.done(cluster.submit(&format!("replace = true; {}", job(&task))));
    std::fs::read(cluster.at("alone")).unwrap()
}

#[test]
fn merged_result_of_instances_equals_whole_result() {
    for remote in [false, true] {
        let Some(cluster) = cluster(remote) else {
            return;
        };
        with_records(&cluster);
        put(&cluster, &fixture("netcdf4.nc"), "/netcdf4.nc");
        let values = values_of("netcdf4.nc", "deflated");
        std::fs::write(cluster.at("values"), values).unwrap();
        let kernels = [
            (
                "stats",
                r#""dtype=f32", "of=count,min,max,sum,mean,stddev,linreg""#,
            ),
            ("mean", r#""dtype=i16""#),
            ("extrema", r#""dtype=i32", "show=list""#),
            ("fingerprint", ""),
            ("wordcount", ""),
        ];
        for (kernel, args) in kernels {
            for per in ["stripe-object", "stripe"] {
                let task = format!(
                    r#"name = "m"; kernel = "{kernel}"; args = [ {args} ]; per = "{per}"; input = [ "records" ]; output = [ "merged" ];"#
                );
                let printed = cluster.try_submit(&format!("replace = true; {}", job(&task)));
                assert!(printed.ok, "{kernel}: {}", printed.err);
                let reply: Value = serde_json::from_str(&printed.out).unwrap();
                cluster.done(reply["job"].as_u64().unwrap());
                assert_eq!(
                    std::fs::read(cluster.at("merged")).unwrap(),
                    alone(&cluster, kernel, args, "records"),
                    "{kernel} {per}"
                );
            }
        }
        for per in ["stripe-object", "chunk"] {
            let task = format!(
                r#"name = "m"; kernel = "stats"; args = [ "dtype=f32" ]; per = "{per}"; variable = "netcdf:deflated"; input = [ "netcdf4.nc" ];
                   output = [ "merged" ];"#
            );
            cluster.done(cluster.submit(&format!("replace = true; {}", job(&task))));
            assert_eq!(
                std::fs::read(cluster.at("merged")).unwrap(),
                alone(&cluster, "stats", r#""dtype=f32""#, "values"),
                "{per}"
            );
        }
        let lineage = cluster.json(&["lineage", "show", "/merged", "--format", "json"]);
        let runs = lineage["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 1, "{lineage:#}");
        assert_eq!(
            (&runs[0]["name"], &runs[0]["args"]),
            (
                &"m".into(),
                &serde_json::json!(["dtype=f32", "missing=nan"])
            )
        );
        assert!(lineage.to_string().contains("/netcdf4.nc"), "{lineage:#}");
        let check = cluster.run(&["cluster", "fsck", "--age", "0s"]);
        assert!(check.ok, "{}{}", check.out, check.err);
    }
}

#[test]
fn user_kernel_merges_outputs_of_instances() {
    let Some(cluster) = cluster(false) else {
        return;
    };
    let numbers = with_records(&cluster);
    let reduced = r#"name = "r"; kernel = "od"; type = "program"; args = [ "-An", "-v", "-w8", "-td8", "records" ]; per = "stripe-object"; variable = "columns:_=V8,x=<i8,_=V8";
        input = [ "records" ]; output = [ "d/smallest" ]; stdout = "d/smallest"; reduce = "/usr/bin/sort -n {inputs}";"#;
    cluster.done(cluster.submit(&job(reduced)));
    let got = cluster.sh("cat d/smallest");
    let got: Vec<i64> = got
        .split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect();
    let mut expected = numbers;
    expected.sort_unstable();
    assert_eq!(got, expected);
    assert_eq!(
        cluster.sh("ls d"),
        "smallest\n",
        "outputs of task instances have no names"
    );
    let lineage = cluster.json(&["lineage", "show", "/d/smallest", "--format", "json"]);
    assert_eq!(lineage["runs"].as_array().unwrap().len(), 1, "{lineage:#}");
    // A failed task instance fails the task, and no output is left.
    let fails = r#"name = "r"; kernel = "sh"; type = "program"; args = [ "-c", "[ {part} != 1 ] && echo {part}" ]; per = "stripe-object"; retries = 0;
        input = [ "records" ]; output = [ "none" ]; stdout = "none"; reduce = "cat {inputs}";"#;
    let ended = cluster.ended(cluster.submit(&job(fails)));
    assert_eq!(ended["state"], "failed", "{ended:#}");
    assert!(!cluster.at("none").exists());
    let check = cluster.run(&["cluster", "fsck", "--age", "0s"]);
    assert!(check.ok, "{}{}", check.out, check.err);
}

/// Combines the output of task instances, values and their positions; values that were never written are left out.
fn assembled(cluster: &Cluster, size: usize) -> Vec<Option<Vec<u8>>> {
    let mut whole = vec![None; size];
    for number in cluster.sh("cd v; ls").lines() {
        let values = std::fs::read(cluster.at(&format!("v/{number}"))).unwrap();
        let reported = cluster.sh(&format!("cat l/{number}"));
        let reported: Value = serde_json::from_str(&reported).unwrap();
        let numbers = |json: &Value| -> Vec<usize> {
            let all = json.as_array().unwrap().iter();
            all.map(|one| usize::try_from(one.as_u64().unwrap()).unwrap())
                .collect()
        };
        let itemsize = usize::try_from(reported[0]["itemsize"].as_u64().unwrap()).unwrap();
        let mut values = values.chunks(itemsize);
        for chunk in reported[0]["chunks"].as_array().unwrap() {
            let (start, shape, all) = (
                numbers(&chunk["start"]),
                numbers(&chunk["shape"]),
                numbers(&reported[0]["shape"]),
            );
            for number in 0..shape.iter().product::<usize>() {
                let (mut rest, mut at, mut step) = (number, 0, 1);
                for ((start, taken), size) in start.iter().zip(&shape).zip(&all).rev() {
                    at += (start + rest % taken) * step;
                    rest /= taken;
                    step *= size;
                }
                let before = whole[at].replace(values.next().unwrap().to_vec());
                assert!(before.is_none(), "{at} twice");
            }
        }
        assert!(values.next().is_none());
    }
    whole
}

/// Checks one result of all task instances, its lineage, and a directory with files that are missing, corrupt, or changed.
fn a_directory_is_summed(cluster: &Cluster) {
    let sum = |output: &str| {
        job(&format!(
            r#"name = "n"; kernel = "stats"; args = [ "dtype=f32", "of=count" ]; per = "stripe-object"; variable = "zarr:tas"; input = [ "three.zarr" ]; output = [ "{output}" ];"#
        ))
    };
    cluster.done(cluster.submit(&sum("n1")));
    let chunk = cluster.sh("ls three.zarr/tas/c/0/0; mv three.zarr/tas/c/0/0 away; sync away");
    assert!(!chunk.is_empty());
    cluster.done(cluster.submit(&sum("n2")));
    assert_ne!(
        cluster.sh("cat n1"),
        cluster.sh("cat n2"),
        "it is in no chunk"
    );
    let lineage = cluster.json(&["lineage", "show", "/n1", "--format", "json"]);
    assert_eq!(lineage["runs"].as_array().unwrap().len(), 1, "{lineage:#}");
    assert!(lineage.to_string().contains("/tas/c/"), "{lineage:#}");
    // A corrupt chunk, and a directory that is no Zarr.
    cluster.sh("echo hello > three.zarr/tas/c/0/1; sync three.zarr/tas/c/0/1");
    let ended = cluster.ended(cluster.submit(&sum("n3")));
    assert_eq!(ended["state"], "failed");
    assert!(
        ended.to_string().contains("of tas, from index"),
        "{ended:#}"
    );
    for (input, mapper, why) in [
        (
            "three.zarr/tas/c",
            "zarr:tas",
            "the directory is not a Zarr",
        ),
        ("three.zarr", "zarr:rain", "no variable rain; there are"),
        ("three.zarr", "netcdf:tas", "is a directory"),
    ] {
        let task = format!(
            r#"name = "n"; kernel = "mean"; per = "stripe-object"; variable = "{mapper}"; input = [ "{input}" ]; output = [ "none" ];"#
        );
        let printed = cluster.try_submit(&job(&task));
        assert!(!printed.ok && printed.err.contains(why), "{}", printed.err);
    }
}

/// Missing values by three attributes, in two chunks of a Zarr.
#[test]
fn built_in_kernels_skip_same_missing_values_as_reduce() {
    let Some(cluster) = cluster(false) else {
        return;
    };
    std::fs::create_dir_all(cluster.at("z/x")).unwrap();
    let chunk = |values: [i16; 4]| values.map(i16::to_le_bytes).concat();
    for (name, bytes) in [
        (".zgroup", br#"{"zarr_format": 2}"#.to_vec()),
        ("x/.zattrs", br#"{"missing_value": -8, "valid_max": 100}"#.to_vec()),
        (
            "x/.zarray",
            br#"{"zarr_format": 2, "shape": [8], "chunks": [4], "dtype": "<i2", "fill_value": -9, "order": "C", "compressor": null, "filters": null}"#
                .to_vec(),
        ),
        ("x/0", chunk([1, 2, -9, -8])),
        ("x/1", chunk([101, 5, 6, 7])),
    ] {
        std::fs::write(cluster.at("z").join(name), bytes).unwrap();
    }
    cluster.sh("find z -type f -exec sync {} +");
    let stats = |args: &str| {
        job(&format!(
            r#"name = "s"; kernel = "stats"; args = [ {args} "of=count,sum" ]; per = "stripe-object"; variable = "zarr:x"; input = [ "z" ]; output = [ "s" ];"#
        ))
    };
    let found = |args: &str| {
        cluster.done(cluster.submit(&format!("replace = true; {}", stats(args))));
        let found = std::fs::read_to_string(cluster.at("s")).unwrap();
        found.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(found(r#""dtype=i16","#), "count 5 sum 21");
    for (operation, number) in [("count", 5), ("sum", 21)] {
        let reduced = cluster.json(&["reduce", operation, "/z:x"]);
        assert_eq!(reduced["values"][operation], number, "{reduced:#}");
    }
    // A task that names a missing value uses only that one.
    assert_eq!(found(r#""dtype=i16", "missing=1","#), "count 7 sum 104");
    for (args, word) in [
        ("", "dtype=i16"),
        (r#""dtype=i16", "order=big","#, "order=big"),
    ] {
        let printed = cluster.try_submit(&stats(args));
        assert!(!printed.ok && printed.err.contains(word), "{}", printed.err);
    }
}

#[test]
fn zarr_directory_is_read_on_nodes_with_its_chunks() {
    for remote in [false, true] {
        let Some(cluster) = cluster(remote) else {
            return;
        };
        let directories = [fixture("three.zarr"), fixture("two.zarr")];
        let [three, two] = directories.each_ref().map(|path| path.display());
        cluster.sh(&format!("cp -r {three} {two} .; mkdir v l"));
        cluster.sh("find . -name .tidemill -prune -o -type f -exec sync {} +");
        for (directory, variable, itemsize, per) in [
            ("three.zarr", "tas", 4, "stripe-object"),
            ("three.zarr", "group/sharded", 4, "stripe-object"),
            ("three.zarr", "group/sharded", 4, "chunk"),
            ("two.zarr/", "tas", 4, "stripe-object"),
        ] {
            let word = per.replace("stripe-object", "part");
            let task = format!(
                r#"name = "show"; kernel = "sh"; type = "program"; args = [ "-c", "cat $0; printf %s \"$TIDEMILL_LAYOUT\" > $1", "{{inputs}}", "l/{{{word}}}" ];
                   per = "{per}"; variable = "zarr:{variable}"; input = [ "{directory}" ]; output = [ "v/{{{word}}}", "l/{{{word}}}" ]; stdout = "v/{{{word}}}";"#
            );
            let reported = cluster.done(cluster.submit(&job(&task)));
            let tasks = reported["tasks"].as_array().unwrap();
            if per == "stripe-object" {
                assert!(
                    (1..=3).contains(&tasks.len()),
                    "one for each node: {reported:#}"
                );
                let transferred = tasks
                    .iter()
                    .map(|task| task["transferred_bytes"].as_u64().unwrap());
                assert_eq!(
                    transferred.sum::<u64>(),
                    0,
                    "chunks are read where they are: {reported:#}"
                );
            }
            let expected = values_of(directory.trim_end_matches('/'), variable);
            let whole = assembled(&cluster, expected.len() / itemsize);
            let there = whole.iter().flatten().count();
            assert!(there * 2 > whole.len(), "{variable} {there}");
            for (found, expected) in whole.iter().zip(expected.chunks(itemsize)) {
                assert!(
                    found.as_deref().is_none_or(|found| found == expected),
                    "{directory} {variable} {per}"
                );
            }
            cluster.sh("rm -r v l; mkdir v l");
        }
        a_directory_is_summed(&cluster);
        let check = cluster.run(&["cluster", "fsck", "--age", "0s"]);
        assert!(check.ok, "{}{}", check.out, check.err);
    }
}

#[test]
fn csv_columns_are_read_by_line_on_their_nodes() {
    for remote in [false, true] {
        let Some(cluster) = cluster(remote) else {
            return;
        };
        let mut chance = Chance(5);
        let mut text = "station,\"t, K\",n\n".to_owned();
        let mut numbers = Vec::new();
        for line in 0..20_000 {
            let n = i64::try_from(chance.next(1 << 40)).unwrap();
            numbers.push(n);
            text.push_str(&format!("\"s,{}\",{}.5,{n}\r\n", line % 7, line));
        }
        std::fs::write(cluster.path("text"), &text).unwrap();
        put(&cluster, &cluster.path("text"), "/t.csv");
        let task = |per: &str, rest: &str| {
            job(&format!(
                r#"name = "n"; kernel = "cat"; type = "program"; args = [ "t.csv" ]; per = "{per}"; input = [ "t.csv" ]; {rest}"#
            ))
        };
        let values = |files: &str| -> Vec<i64> {
            cluster.sh(&format!("cat {files} > all"));
            let bytes = std::fs::read(cluster.at("all")).unwrap();
            bytes
                .chunks(8)
                .map(|one| i64::from_ne_bytes(one.try_into().unwrap()))
                .collect()
        };
        let parts = task(
            "stripe-object",
            r#"variable = "columns:csv,n,type=i8"; output = [ "p.{part}" ]; stdout = "p.{part}";"#,
        );
        let reported = cluster.done(cluster.submit(&parts));
        let tasks = reported["tasks"].as_array().unwrap();
        let layout = cluster.json(&["stat", "/t.csv"]);
        for (task, part) in tasks.iter().zip(layout["parts"].as_array().unwrap()) {
            assert_eq!(task["node"], part["replicas"][0]["node"], "{reported:#}");
        }
        let mut found = values("p.*");
        found.sort_unstable();
        let mut sorted = numbers.clone();
        sorted.sort_unstable();
        assert_eq!(found, sorted);
        let chunks = task(
            "chunk",
            r#"variable = "columns:csv,#2,type=i8"; output = [ "d/{chunk}" ]; stdout = "d/{chunk}";"#,
        );
        cluster.done(cluster.submit(&chunks));
        assert_eq!(values("d/*"), numbers, "in the order of the file");
        // A column with a comma in its name; no kernel joins task instances here, because the order of lines is not known.
        let sum = |output: &str| {
            job(&format!(
                r#"name = "s"; kernel = "sum"; args = [ "dtype=f64" ]; per = "stripe-object"; variable = "columns:csv,\"t, K\""; input = [ "t.csv" ]; output = [ "{output}" ];"#
            ))
        };
        let printed = cluster.try_submit(&sum("total"));
        assert!(
            !printed.ok && printed.err.contains("set \"reduce\""),
            "{}",
            printed.err
        );
        cluster.done(cluster.submit(&sum("total.{part}")));
        let sums = cluster.sh("cat total.*");
        let sum: f64 = sums
            .split_whitespace()
            .map(|one| one.parse::<f64>().unwrap())
            .sum();
        assert!((sum - 20_000.0 * 10_000.0).abs() < 1e-3, "{sums}");
        // An invalid value, in a line that the error locates in the file, and quotes across two lines.
        for (wrong, why) in [
            ("x", "n is \"x\", which is no integer"),
            ("1\r\n\"a\nb\",2,3", "quotes are opened and not closed"),
        ] {
            let at = text.match_indices('\n').nth(9_999).unwrap().0 + 1;
            let mut bad = text.clone();
            bad.insert_str(at, &format!("q,1,{wrong}\r\n"));
            std::fs::write(cluster.path("text"), &bad).unwrap();
            let printed = cluster.run(&[
                "put",
                "--stripe",
                "4096,3",
                cluster.path("text").to_str().unwrap(),
                "/t.csv",
            ]);
            assert!(printed.ok, "{}", printed.err);
            let bad = task(
                "stripe-object",
                r#"retries = 0; variable = "columns:csv,n,type=i8"; output = [ "q.{part}" ]; stdout = "q.{part}";"#,
            );
            let ended = cluster.ended(cluster.submit(&bad));
            let reported = ended.to_string();
            let line = bad_line(&text, at, wrong);
            cluster.sh("rm -f q.*");
            assert!(
                ended["state"] == "failed"
                    && reported.contains(&line)
                    && reported.contains(&why.replace('"', "\\\"")),
                "{line}: {ended:#}"
            );
        }
    }
}

/// Returns the text with which an error names the line that was inserted at this byte, or the line after it.
fn bad_line(text: &str, at: usize, wrong: &str) -> String {
    assert!(text.len() > at);
    let first = wrong.find('\n').map_or(0, |end| "q,1,".len() + end + 1);
    format!("the line at byte {} of the file", at + first)
}
