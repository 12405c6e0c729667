//! Tests task instances: a task for each stripe object, stripe or file, and their common output (Active Storage §4).

use crate::chance::Chance;
use crate::cluster::{Cluster, Device, Options, OtherMount, wait};
use serde_json::Value;
use std::path::Path;

/// Size of a stripe, in bytes.
const UNIT: usize = 64 << 10;

/// Starts a cluster with three nodes and a file of stripes on them.
fn with_stripes(remote: bool, size: usize) -> Option<(Cluster, Vec<u8>)> {
    let cluster = Cluster::with(Options {
        nodes: 3,
        remote,
        ..Options::default()
    })?;
    let bytes = Chance(size as u64).bytes(size);
    cluster.sh("mkdir d");
    assert!(cluster.run(&["set", "/d", "stripe=64KiB"]).ok);
    std::fs::write(cluster.at("d/f"), &bytes).unwrap();
    cluster.sh("sync d/f");
    Some((cluster, bytes))
}

/// Returns a job with one task.
fn job(task: &str) -> String {
    format!(r#"name = "j"; workdir = "/"; tasks = ( {{ {task} }} );"#)
}

fn got(cluster: &Cluster, path: &str) -> Vec<u8> {
    let to = cluster.path("got");
    let printed = cluster.run(&["get", path, to.to_str().unwrap()]);
    assert!(printed.ok, "{path}: {}", printed.err);
    std::fs::read(to).unwrap()
}

fn nodes(cluster: &Cluster, path: &str) -> Vec<u64> {
    let layout = cluster.json(&["stat", path]);
    let parts = layout["parts"].as_array().unwrap().iter();
    let first = |part: &Value| part["replicas"][0]["node"].as_u64().unwrap();
    parts.map(first).collect()
}

fn upper(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| byte ^ 0x20).collect()
}

/// Stores a user's program that flips bit 5 of each byte of a file; it works in any directory.
fn with_program(cluster: &Cluster) {
    let script = "#!/usr/bin/python3\nimport sys\nd = open(sys.argv[1], 'rb').read()\n\
                  open(sys.argv[2], 'wb').write(bytes(b ^ 32 for b in d))\n";
    std::fs::write(cluster.at("turn"), script).unwrap();
    cluster.sh("chmod +x turn");
}

const TURN: &str = r#"name = "turned"; kernel = "turn"; args = [ "d/f", "out" ]; per = "stripe-object"; layout = "same";
    input = [ "d/f" ]; output = [ "out" ];"#;

#[test]
fn instance_outputs_are_striped_like_input_without_moves() {
    for remote in [false, true] {
        let Some((cluster, bytes)) = with_stripes(remote, (1 << 20) + 77) else {
            return;
        };
        with_program(&cluster);
        let id = cluster.submit(&job(TURN));
        cluster.done(id);
        assert!(got(&cluster, "/out") == upper(&bytes));
        assert!(std::fs::read(cluster.at("out")).unwrap() == upper(&bytes));
        let locations = nodes(&cluster, "/d/f");
        assert_eq!(nodes(&cluster, "/out"), locations);
        let reported = cluster.json(&["job", "show", &id.to_string()]);
        let tasks = reported["tasks"].as_array().unwrap();
        assert_eq!(
            tasks.len(),
            4,
            "three task instances and the task that joins their outputs"
        );
        for (index, task) in tasks[..3].iter().enumerate() {
            assert_eq!(task["name"], format!("turned[{index}]"));
            assert_eq!(task["node"].as_u64(), Some(locations[index]), "{task:#}");
        }
        // The script, which is stored in the cluster, is transferred; the file is not.
        let transferred = |task: &Value| task["transferred_bytes"].as_u64().unwrap();
        assert!(
            tasks[..3].iter().map(transferred).sum::<u64>() < 1000,
            "{reported:#}"
        );
        // The lineage shows the task instances as one task.
        let lineage = cluster.json(&["lineage", "show", "/out", "--format", "json"]);
        let runs = lineage["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 1, "{lineage:#}");
        assert_eq!(runs[0]["name"], "turned");
        let read = runs[0]["read_bytes"].as_u64().unwrap();
        let all = bytes.len() as u64;
        assert!((all..all + 1000).contains(&read), "{lineage:#}");
        assert!(lineage.to_string().contains("/d/f"), "{lineage:#}");
        let check = cluster.run(&["cluster", "fsck", "--age", "0s"]);
        assert!(check.ok, "{}{}", check.out, check.err);
    }
}

#[test]
fn task_instance_outputs_survive_loss_of_any_node() {
    let Some((mut cluster, bytes)) = with_stripes(false, 500_000) else {
        return;
    };
    with_program(&cluster);
    let id = cluster.submit(&job(TURN));
    cluster.done(id);
    cluster.kill_server();
    cluster.start_server();
    cluster.wait_for_nodes(3);
    assert!(got(&cluster, "/out") == upper(&bytes));
    cluster.sh("setfattr -n user.tidemill.replicas -v 2 /; true");
    let printed = cluster.recover_database();
    assert_eq!(printed["incomplete"], false, "{printed}");
    assert!(std::fs::read(cluster.at("out")).unwrap() == upper(&bytes));
    assert_eq!(cluster.json(&["stat", "/out"])["layout"], "striped");
    let check = cluster.run(&["cluster", "fsck", "--age", "0s"]);
    assert!(check.ok, "{}{}", check.out, check.err);
    // The deletion of the file removes its parts, and nothing else.
    let before = objects(&cluster);
    cluster.sh("rm out");
    wait("its parts are deleted", || objects(&cluster) == before - 3);
    assert!(got(&cluster, "/d/f") == bytes);
}

/// Returns the number of objects on all three nodes.
fn objects(cluster: &Cluster) -> usize {
    let on = |index| files(&cluster.node_directory(index).join("objects"));
    (0..3).map(on).sum()
}

/// Returns the number of files below a directory.
fn files(directory: &Path) -> usize {
    let entries = std::fs::read_dir(directory).unwrap().flatten();
    let below = entries.map(|entry| match entry.path() {
        path if path.is_dir() => files(&path),
        _ => 1,
    });
    below.sum()
}

#[test]
fn task_per_stripe_writes_a_file_for_each_stripe() {
    let Some((cluster, bytes)) = with_stripes(false, 10 * UNIT + 5) else {
        return;
    };
    let id = cluster.submit(&job(
        r#"name = "sum"; kernel = "md5sum"; type = "program"; per = "stripe"; args = [ "d/f" ]; input = [ "d/f" ];
           output = [ "sums/{stripe}" ]; stdout = "sums/{stripe}";"#,
    ));
    cluster.done(id);
    let names = cluster.sh("ls sums");
    let names: Vec<&str> = names.split_whitespace().collect();
    assert_eq!(names.len(), 11);
    assert_eq!(
        (names[0], names[10]),
        ("00", "10"),
        "in the order of the stripes"
    );
    for (name, chunk) in names.iter().zip(bytes.chunks(UNIT)) {
        std::fs::write(cluster.path("chunk"), chunk).unwrap();
        let sum = cluster.sh(&format!("md5sum < {}", cluster.path("chunk").display()));
        let printed = std::fs::read_to_string(cluster.at(&format!("sums/{name}"))).unwrap();
        assert_eq!(
            printed.split_whitespace().next(),
            sum.split_whitespace().next()
        );
    }
    let locations = nodes(&cluster, "/d/f");
    let reported = cluster.json(&["job", "show", &id.to_string()]);
    for (index, task) in reported["tasks"].as_array().unwrap().iter().enumerate() {
        assert_eq!(
            task["node"].as_u64(),
            Some(locations[index % 3]),
            "{task:#}"
        );
        assert_eq!(task["transferred_bytes"], 0);
    }
}

#[test]
fn task_instance_per_file_runs_and_later_task_reads_all() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir raw; for i in a b c; do echo $i > raw/$i.txt; done");
    let script = r#"name = "j"; workdir = "/"; tasks = (
        { name = "up"; kernel = "tr"; type = "program"; args = [ "a-z", "A-Z" ]; per = "file"; input = [ "raw/*.txt" ];
          stdin = "raw/{name}"; output = [ "up/{stem}.up" ]; stdout = "up/{stem}.up"; },
        { name = "all"; kernel = "cat"; type = "program"; args = [ "{inputs}" ]; input = [ "up/*" ]; output = [ "all" ]; stdout = "all"; } );"#;
    let id = cluster.submit(script);
    cluster.done(id);
    assert_eq!(cluster.sh("cat all"), "A\nB\nC\n");
}

#[test]
fn failed_task_instance_is_retried_alone() {
    let Some((mut cluster, bytes)) = with_stripes(false, 3 * UNIT) else {
        return;
    };
    // Only the second part begins with the first byte of the second stripe.
    let first = bytes[UNIT];
    let script = format!(
        "#!/usr/bin/python3\nimport sys\nd = open('d/f', 'rb').read()\n\
         if d[0] == {first} and len(d) == {UNIT}: sys.exit('this one will not do')\nopen('out', 'wb').write(d)\n"
    );
    std::fs::write(cluster.at("turn"), script).unwrap();
    cluster.sh("chmod +x turn");
    let fails = TURN.replace("name = \"turned\"", "name = \"turned\"; retries = 1");
    cluster.sh("sync turn");
    let before = objects(&cluster);
    let id = cluster.submit(&job(&fails));
    let reported = cluster.ended(id);
    assert_eq!(reported["state"], "failed", "{reported:#}");
    let reported = cluster.json(&["job", "show", &id.to_string()]);
    let failed: Vec<&Value> = reported["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|task| task["state"] == "failed")
        .collect();
    assert_eq!(failed.len(), 1, "{reported:#}");
    assert_eq!(failed[0]["name"], "turned[1]");
    assert_eq!(failed[0]["tries"], 2);
    let logs = cluster.json(&["job", "logs", &id.to_string()]);
    assert!(
        logs.to_string().contains("this one will not do"),
        "{logs:#}"
    );
    assert!(!cluster.at("out").exists());
    wait("outputs of the other task instances are deleted", || {
        objects(&cluster) == before
    });
    // If a node is killed during the job, the output is the same.
    with_slow_program(&cluster);
    let id = cluster.submit(&job(TURN));
    std::thread::sleep(std::time::Duration::from_millis(500));
    cluster.kill_node(1);
    cluster.kill_server();
    cluster.start_server();
    cluster.start_node(1);
    cluster.done(id);
    assert!(got(&cluster, "/out") == upper(&bytes));
}

/// Stores the same program, but each task instance takes a second.
fn with_slow_program(cluster: &Cluster) {
    let script = "#!/usr/bin/python3\nimport time\nd = open('d/f', 'rb').read()\ntime.sleep(1)\n\
                  open('out', 'wb').write(bytes(b ^ 32 for b in d))\n";
    std::fs::write(cluster.at("turn"), script).unwrap();
    cluster.sh("chmod +x turn; sync turn");
}

#[test]
fn task_instance_on_full_device_runs_on_another_node() {
    let mut device = None;
    let options = Options {
        nodes: 3,
        ..Options::default()
    };
    let prepare = |cluster: &Cluster| device = Some(Device::new(cluster.node_directory(1), "64m"));
    let Some(cluster) = Cluster::prepared(options, prepare) else {
        return;
    };
    let device = device.unwrap();
    // Each part is larger than the space that a node reserves for its own database, and frees when there is no space.
    let bytes = Chance(7).bytes(300 * UNIT);
    cluster.sh("mkdir d");
    assert!(cluster.run(&["set", "/d", "stripe=64KiB"]).ok);
    std::fs::write(cluster.at("d/f"), &bytes).unwrap();
    with_slow_program(&cluster);
    cluster.sh("sync d/f");
    // The node is full after the task instance has begun, then before it begins: another node reads its part, and no other task instance
    // runs again.
    for begun in [true, false] {
        let id = cluster.submit(&job(TURN));
        if begun {
            std::thread::sleep(std::time::Duration::from_millis(700));
            device.fill();
        }
        cluster.done(id);
        assert!(got(&cluster, "/out") == upper(&bytes));
        let reported = cluster.json(&["job", "show", &id.to_string()]);
        let tasks = &reported["tasks"].as_array().unwrap()[..3];
        let elsewhere = tasks.iter().all(|task| task["node"] != 1);
        assert!(elsewhere || begun, "{reported:#}");
        let once = tasks.iter().filter(|task| task["tries"] == 1);
        assert!(once.count() >= 2, "{reported:#}");
        cluster.sh("rm out");
    }
    device.free();
    let check = cluster.run(&["cluster", "fsck", "--age", "0s"]);
    assert!(check.ok, "{}{}", check.out, check.err);
    assert!(got(&cluster, "/d/f") == bytes);
}

#[test]
fn input_of_task_instances_may_be_overwritten_by_second_mount() {
    let Some((cluster, bytes)) = with_stripes(true, 5 * UNIT + 3) else {
        return;
    };
    let other = OtherMount::start(&cluster, "other");
    with_slow_program(&cluster);
    let id = cluster.submit(&job(TURN));
    std::thread::sleep(std::time::Duration::from_millis(300));
    // The file is changed in place, and is replaced by another file of that name: neither is the input that the job was submitted for.
    let new = vec![b'x'; 2 * UNIT];
    std::fs::write(other.path.join("d/f"), &new).unwrap();
    cluster.done(id);
    assert!(got(&cluster, "/out") == upper(&bytes));
    assert!(got(&cluster, "/d/f") == new);
    cluster.sh("rm out");
    let id = cluster.submit(&job(TURN));
    std::thread::sleep(std::time::Duration::from_millis(300));
    std::fs::remove_file(other.path.join("d/f")).unwrap();
    cluster.done(id);
    assert!(got(&cluster, "/out") == upper(&new));
}

#[test]
fn striped_output_may_shrink_and_invalid_layouts_are_refused() {
    let Some((cluster, bytes)) = with_stripes(false, 7 * UNIT) else {
        return;
    };
    let script = "#!/usr/bin/python3\nimport sys\nd = open('d/f', 'rb').read()\nopen('out', 'wb').write(d[::int(sys.argv[1])])\n";
    std::fs::write(cluster.at("turn"), script).unwrap();
    cluster.sh("chmod +x turn");
    let every = |step: usize| job(&TURN.replace("\"d/f\", \"out\"", &format!("\"{step}\"")));
    let id = cluster.submit(&every(2));
    cluster.done(id);
    let expected: Vec<u8> = bytes.iter().copied().step_by(2).collect();
    assert!(got(&cluster, "/out") == expected);
    assert_eq!(cluster.json(&["stat", "/out"])["unit"], UNIT / 2);
    cluster.sh("rm out");
    let id = cluster.submit(&every(3));
    let reported = cluster.ended(id);
    assert_eq!(reported["state"], "failed", "{reported:#}");
    let reported = cluster.json(&["job", "show", &id.to_string()]);
    assert!(
        reported
            .to_string()
            .contains("every task instance writes as many bytes as it reads"),
        "{reported:#}"
    );
    let refused = [
        (
            TURN.replace("per = \"stripe-object\";", ""),
            "it needs per = \\\"stripe-object\\\"",
        ),
        (
            TURN.replace("stripe-object", "stripe"),
            "it needs per = \\\"stripe-object\\\"",
        ),
        (
            TURN.replace("layout = \"same\";", ""),
            "all task instances would write \"out\"",
        ),
        (
            TURN.replace("\"d/f\" ]; output", "\"d/g\" ]; output"),
            "must be all of one file that exists",
        ),
        (
            TURN.replace("stripe-object", "stripe-objekt"),
            "did you mean \"stripe-object\"",
        ),
        (
            TURN.replace("input = [ \"d/f\" ];", ""),
            "\"per\" needs an input",
        ),
        (
            TURN.replace("[ \"out\" ]", "[ \"out/\" ]"),
            "not for directories",
        ),
    ];
    for (task, why) in refused {
        let printed = cluster.try_submit(&job(&task));
        let why = why.replace('\\', "");
        assert!(
            !printed.ok && printed.err.contains(&why),
            "{task}: {}",
            printed.err
        );
    }
}

/// Returns lines, some of them longer than a stripe; the last one has no line end.
fn lines_of_all_lengths() -> Vec<u8> {
    let mut chance = Chance(77);
    let mut text = Vec::new();
    for line in 0..4000 {
        let length = match line % 1000 {
            999 => 2 * UNIT + 17,
            _ => usize::try_from(chance.next(150)).unwrap(),
        };
        text.extend(format!("{line} {}\n", "x".repeat(length)).bytes());
    }
    text.extend(b"the last one");
    text
}

fn lines_of(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|byte| *byte == b'\n').collect()
}

#[test]
fn task_instances_read_records_across_stripes_once_and_whole() {
    for remote in [false, true] {
        let Some((cluster, _)) = with_stripes(remote, 10) else {
            return;
        };
        let text = lines_of_all_lengths();
        std::fs::write(cluster.at("d/t"), &text).unwrap();
        cluster.sh("sync d/t");
        let count = |records: &str, per: &str, output: &str| {
            let word = per.replace("stripe-object", "part");
            format!(
                r#"name = "{output}"; kernel = "cat"; type = "program"; args = [ "d/t" ]; per = "{per}"; records = {records};
                   input = [ "d/t" ]; output = [ "{output}/{{{word}}}" ]; stdout = "{output}/{{{word}}}";"#
            )
        };
        let run = |records: &str, per: &str, output: &str| {
            let id = cluster.submit(&job(&count(records, per, output)));
            cluster.done(id);
            id
        };
        let lines = run("\"lines\"", "stripe-object", "lines");
        run("\"lines\"", "stripe", "striped");
        run("\"x\\n\"", "stripe-object", "ends");
        run("777", "stripe-object", "fixed");
        let all = lines_of(&text);
        for directory in ["lines", "striped"] {
            let read = read_all(&cluster, directory);
            let mut lines: Vec<&[u8]> = read.iter().flat_map(|bytes| lines_of(bytes)).collect();
            lines.sort_by_key(|line| all.iter().position(|one| one == line));
            assert!(lines == all, "{directory}");
        }
        assert!(
            read_all(&cluster, "striped").concat() == text,
            "stripes are in order"
        );
        let fixed = read_all(&cluster, "fixed");
        assert_eq!(fixed.iter().map(Vec::len).sum::<usize>(), text.len());
        let odd: Vec<usize> = fixed
            .iter()
            .map(|bytes| bytes.len() % 777)
            .filter(|rest| *rest != 0)
            .collect();
        assert_eq!(odd, [text.len() % 777], "only the last record is short");
        assert_eq!(
            read_all(&cluster, "ends")
                .iter()
                .map(Vec::len)
                .sum::<usize>(),
            text.len()
        );
        // Only the bytes at the seams were transferred from neighbours: four times two stripes, and some lines.
        assert!(transferred(&cluster, lines) < 10 * UNIT as u64);
        let printed =
            cluster
                .try_submit(&job(&count("\"lines\"", "stripe-object", "out")
                    .replace("per = \"stripe-object\";", "")));
        assert!(printed.err.contains("it needs \"per\""), "{}", printed.err);
    }
}

/// Returns the number of bytes that the tasks of a job have transferred.
fn transferred(cluster: &Cluster, job: u64) -> u64 {
    let reported = cluster.json(&["job", "show", &job.to_string()]);
    let tasks = reported["tasks"].as_array().unwrap().iter();
    tasks
        .map(|task| task["transferred_bytes"].as_u64().unwrap())
        .sum()
}

/// Returns the files that task instances have written to a directory, in the order of their names.
fn read_all(cluster: &Cluster, directory: &str) -> Vec<Vec<u8>> {
    let names = cluster.sh(&format!("ls {directory}"));
    let names = names.split_whitespace();
    names
        .map(|name| std::fs::read(cluster.at(directory).join(name)).unwrap())
        .collect()
}

#[test]
fn task_instance_with_halo_reads_bytes_beyond_its_stripe() {
    let Some((cluster, bytes)) = with_stripes(false, 3 * UNIT + 100) else {
        return;
    };
    let id = cluster.submit(&job(
        r#"name = "s"; kernel = "sh"; type = "program"; args = [ "-c", "cat d/f; echo {before} {after}" ]; per = "stripe"; halo = 8;
           input = [ "d/f" ]; output = [ "s/{stripe}" ]; stdout = "s/{stripe}";"#,
    ));
    cluster.done(id);
    let read = read_all(&cluster, "s");
    assert!(read[0] == [&bytes[..UNIT + 8], b"0 8\n"].concat());
    assert!(read[1] == [&bytes[UNIT - 8..2 * UNIT + 8], b"8 8\n"].concat());
    assert!(read[3] == [&bytes[3 * UNIT - 8..], b"8 0\n"].concat());
    // A stripe is a number of records.
    let id = cluster.submit(&job(
        r#"name = "r"; kernel = "sh"; type = "program"; args = [ "-c", "cat d/f; echo {before} {after}" ]; per = "stripe"; records = 100; halo = 2;
           input = [ "d/f" ]; output = [ "r/{stripe}" ]; stdout = "r/{stripe}";"#,
    ));
    cluster.done(id);
    let read = read_all(&cluster, "r");
    let (begin, end) = (UNIT.div_ceil(100) * 100, (2 * UNIT).div_ceil(100) * 100);
    assert!(read[0] == [&bytes[..begin + 200], b"0 2\n"].concat());
    assert!(read[1] == [&bytes[begin - 200..end + 200], b"2 2\n"].concat());
}

#[test]
fn instance_job_is_planned_reported_once_and_replaced() {
    let Some((cluster, mut bytes)) = with_stripes(false, 5 * UNIT) else {
        return;
    };
    with_program(&cluster);
    let id = cluster.submit(&job(TURN)).to_string();
    cluster.done(id.parse().unwrap());
    // The bytes that task instances read and wrote are not counted again for the task that joins them.
    let report = cluster.json(&["job", "report", &id]);
    let written = report["kernels"][0]["written_bytes"].as_u64();
    assert_eq!(written, Some(bytes.len() as u64), "{report:#}");
    let trace = cluster.path("trace.json");
    let trace = trace.to_str().unwrap();
    assert!(
        cluster
            .run(&["job", "export-trace", &id, "--output", trace])
            .ok
    );
    let simulated = cluster.run(&["plan", "run", trace]);
    assert!(simulated.ok, "{}", simulated.err);
    bytes[7] ^= 1;
    std::fs::write(cluster.at("d/f"), &bytes).unwrap();
    let script = cluster.path("again.conf");
    std::fs::write(&script, job(TURN)).unwrap();
    let script = script.to_str().unwrap();
    let planned = cluster.run(&["submit", "--dry-run", "--replace", script]);
    assert!(planned.ok, "{}", planned.err);
    let refused = cluster.run(&["submit", script]);
    assert!(refused.err.contains("exists already"), "{}", refused.err);
    let again = cluster.json(&["submit", "--replace", script]);
    cluster.done(again["job"].as_u64().unwrap());
    assert!(got(&cluster, "/out") == upper(&bytes));
    let versions = cluster.json(&["lineage", "show", "/out", "--format", "json"]);
    assert!(
        versions.to_string().contains("\"version\":2"),
        "{versions:#}"
    );
    let check = cluster.run(&["cluster", "fsck", "--age", "0s"]);
    assert!(check.ok, "{}{}", check.out, check.err);
}

#[test]
fn instances_with_several_outputs_are_counted_once() {
    let Some((cluster, bytes)) = with_stripes(false, 4 * UNIT + 9) else {
        return;
    };
    let id = cluster.submit(&job(
        r#"name = "two"; kernel = "sh"; type = "program"; args = [ "-c", "cp d/f one; cp d/f other" ]; per = "stripe-object"; layout = "same";
           input = [ "d/f" ]; output = [ "one", "other" ];"#,
    ));
    cluster.done(id);
    let locations = nodes(&cluster, "/d/f");
    for path in ["/one", "/other"] {
        assert!(got(&cluster, path) == bytes, "{path}");
        assert_eq!(nodes(&cluster, path), locations, "{path}");
    }
    let lineage = cluster.json(&["lineage", "show", "/other", "--format", "json"]);
    let run = &lineage["runs"][0];
    assert_eq!(run["read_bytes"], bytes.len(), "{lineage:#}");
    assert_eq!(run["written_bytes"], 2 * bytes.len(), "{lineage:#}");
}

#[test]
fn cancelled_instances_leave_nothing_and_parts_are_private() {
    let Some((cluster, bytes)) = with_stripes(false, 3 * UNIT) else {
        return;
    };
    // The first task instance ends at once; the others would take a minute.
    let first = bytes[0];
    let script = format!(
        "#!/usr/bin/python3\nimport time\nd = open('d/f', 'rb').read()\n\
         if d[0] != {first}: time.sleep(60)\nopen('out', 'wb').write(d)\n"
    );
    std::fs::write(cluster.at("turn"), script).unwrap();
    cluster.sh("chmod +x turn; sync turn");
    let before = objects(&cluster);
    let id = cluster.submit(&job(TURN)).to_string();
    wait("one task instance has ended", || {
        let reported = cluster.json(&["job", "show", &id]);
        reported["tasks_by_state"]["done"] == 1
    });
    assert!(!cluster.at("out").exists(), "a part is no file");
    assert!(cluster.run(&["job", "cancel", &id]).ok);
    wait("all outputs are deleted", || objects(&cluster) == before);
    assert!(!cluster.at("out").exists());
    // A user who may not read a file learns nothing of its parts, and gets none of them.
    cluster.sh("chmod 700 d; mkdir -m 777 theirs");
    let script = r#"name = "j"; workdir = "/theirs"; tasks = ( { name = "t"; kernel = "cat"; type = "program"; args = [ "f" ];
        per = "stripe-object"; input = [ "/d/f" ]; output = [ "o.{part}" ]; stdout = "o.{part}"; } );"#;
    let file = cluster.at("theirs/job.conf");
    std::fs::write(&file, script).unwrap();
    let submit = cluster.at(".tidemill/65534/submit");
    let submit = format!(
        "setpriv --reuid 65534 --regid 65534 --clear-groups sh -c 'echo {} > {}'",
        file.display(),
        submit.display()
    );
    assert!(!cluster.try_sh(&submit).ok);
    assert_eq!(cluster.sh("ls theirs"), "job.conf\n");
    // The permission was the only reason.
    cluster.sh("chmod 755 d");
    cluster.sh(&submit);
    wait("the parts are read", || {
        cluster.try_sh("cat theirs/o.* | wc -c").out.trim() == bytes.len().to_string()
    });
}

/// The report looks up many files in one request. Deleted files neither hide nor shift the sizes of the files after them.
#[test]
fn report_counts_files_between_deleted_files() {
    const TASKS: u64 = 250;
    const DELETED: [u64; 5] = [1, 2, 100, 249, 250];
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir w");
    let id = cluster.submit(&format!(
        r#"name = "j"; workdir = "/w"; tasks = ({{ name = "t{{i}}"; foreach = {{ i = "1..{TASKS}"; }}; kernel = "/usr/bin/head";
           args = ["-c", "{{i}}", "/dev/zero"]; output = ["o{{i}}"]; stdout = "o{{i}}"; }});"#
    ));
    cluster.done(id);
    for number in DELETED {
        std::fs::remove_file(cluster.at(&format!("w/o{number}"))).unwrap();
    }
    let report = cluster.json(&["job", "report", &id.to_string()]);
    let bytes = TASKS * (TASKS + 1) / 2 - DELETED.iter().sum::<u64>();
    let results = &report["results"];
    assert_eq!(
        (&results["files"], &results["unknown"], &results["bytes"]),
        (&TASKS.into(), &DELETED.len().into(), &bytes.into()),
        "{report:#}"
    );
}
