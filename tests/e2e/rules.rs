//! Tests rules: files that arrive in a real mount are processed by real kernels, with kills.

use crate::array::{Array, Options, wait};
use serde_json::Value;

const RULE: &str = r#"
name = "count"; workdir = "/w"; pattern = "in/(?<n>[^/]+)\.txt";
task = { kernel = "/bin/sh"; args = [ "-c", "wc -l < \"$1\"; sleep 0.02", "sh", "${file}" ];
         output = [ "out/${n}" ]; stdout = "out/${n}"; };
"#;

fn add(array: &Array, text: &str, flags: &[&str]) -> Value {
    let path = array.path("count.rule");
    std::fs::write(&path, text).unwrap();
    let path = path.display().to_string();
    array.json(&[&["rule", "add", &path], flags].concat())
}

fn show(array: &Array) -> Value {
    array.json(&["rule", "show", "count"])
}

fn done(array: &Array, count: u64) -> bool {
    let said = array.run(&["--json", "rule", "show", "count"]);
    let rule: Value = serde_json::from_str(&said.out).unwrap_or_default();
    said.ok && rule["firings"]["done"] == count
}

#[test]
fn new_files_are_analysed_and_lineage_names_rule() {
    let Some(array) = Array::start() else { return };
    array.sh("mkdir -p w/in; seq 3 > w/in/before.txt");
    let rule = add(&array, RULE, &["--existing"]);
    assert_eq!(
        (rule["revision"].as_u64(), rule["name"].as_str()),
        (Some(1), Some("count"))
    );
    array.sh(
        "seq 5 > w/in/a.txt; seq 7 > w/in/.b.part; mv w/in/.b.part w/in/b.txt; seq 9 > w/in/other",
    );
    array.sh("mkdir w/next; seq 2 > w/next/c.txt; cp w/next/c.txt w/next/d.txt; mv w/next/* w/in/");
    wait("all have fired", || done(&array, 5));
    assert_eq!(
        array.sh("cd w/out; grep . *"),
        "a:5\nb:7\nbefore:3\nc:2\nd:2\n"
    );
    let lineage = array.run(&["lineage", "/w/out/a"]).out;
    assert!(
        lineage.contains("count@1") && lineage.contains("/w/in/a.txt"),
        "{lineage}"
    );
    array.sh("seq 6 > w/in/a.txt");
    wait("the next version has", || done(&array, 6));
    assert_eq!(array.sh("cat w/out/a"), "6\n");

    let test = array.json(&["rule", "test", "count", "in/x.txt"]);
    assert_eq!(
        (test["matches"].as_bool(), test["captures"]["n"].as_str()),
        (Some(true), Some("x"))
    );
    assert!(!array.run(&["rule", "test", "count", "in/x.dat"]).ok);
    assert!(
        array
            .run(&["rule", "list"])
            .out
            .contains("in/(?<n>[^/]+)\\.txt")
    );
    std::fs::write(array.path("wrong.rule"), RULE.replace("]+)", "]+")).unwrap();
    let wrong = array.path("wrong.rule").display().to_string();
    let said = array.run(&["rule", "add", &wrong]);
    assert!(
        said.err
            .contains("wrong.rule:2:47: pattern: this '(' is never closed"),
        "{}",
        said.err
    );
    array.json(&["rule", "remove", "count"]);
    assert!(!array.run(&["rule", "show", "count"]).ok);
}

/// Server and nodes are killed while files are dropped and analysed: every file has exactly one result.
#[test]
fn kills_lose_no_firing_and_repeat_none() {
    let options = Options {
        node_timeout_secs: 60,
        ..Options::default()
    };
    let Some(mut array) = Array::with(options) else {
        return;
    };
    array.sh("mkdir -p w/in w/out");
    add(&array, RULE, &[]);
    for round in 0..4_u64 {
        array.sh(&format!(
            "for i in $(seq 25); do seq $i > w/in/{round}-$i.txt; done"
        ));
        match round % 3 {
            0 => array.kill_server(),
            1 => array.kill_node(0),
            _ => {
                array.kill_node(1);
                array.kill_server();
            }
        }
        if round % 3 != 1 {
            array.start_server();
        }
        if round % 3 != 0 {
            array.start_node(usize::try_from(round % 3 - 1).unwrap());
        }
    }
    wait("all have fired", || done(&array, 100));
    assert_eq!(show(&array)["firings"].as_object().unwrap().len(), 1);
    assert_eq!(
        array.sh("ls w/out | wc -l; cat w/out/* | paste -sd+ | bc"),
        "100\n1300\n"
    );
    // Each output was named once: a second result of a file would be a second version, or another name.
    let versions = array.sh("cd w/out; for f in *; do getfattr --only-values -n user.tidemill.version $f 2>/dev/null; echo; done | sort -u");
    assert!(["1\n", "\n"].contains(&versions.as_str()), "{versions}");
    let log = array.json(&["rule", "log", "count", "-n", "1000"]);
    let mut paths: Vec<&str> = log
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["path"].as_str().unwrap())
        .collect();
    paths.sort_unstable();
    paths.dedup();
    assert_eq!(paths.len(), 100);
}

/// The log lists the files that a rule's own jobs create, and the failures.
#[test]
fn rule_loops_end_and_failures_can_be_retried() {
    let Some(array) = Array::start() else { return };
    array.sh("mkdir -p w/in");
    let text = RULE
        .replace("\"out/${n}\"", "\"in/${n}x.txt\"")
        .replace("task =", "depth = 2; retries = 0; task =");
    add(&array, &text, &[]);
    array.sh("echo > w/in/a.txt");
    wait("the chain has ended", || {
        show(&array)["firings"]["loop"] == 1
    });
    let log = array.run(&["rule", "log", "count", "--state", "loop"]).out;
    assert!(
        log.contains("/w/in/axx.txt") && log.contains("a chain of 2 firings"),
        "{log}"
    );
    let failing = RULE.replace("sleep 0.02", "test -e /nowhere");
    let rule = add(
        &array,
        &failing.replace("task =", "retries = 0; task ="),
        &["--replace"],
    );
    assert_eq!(rule["revision"], 2);
    array.sh("echo > w/in/b.txt");
    wait("it has failed", || show(&array)["firings"]["failed"] == 1);
    add(&array, RULE, &["--replace"]);
    array.json(&["rule", "retry", "count", "/w/in/b.txt"]);
    wait("it was fired again", || done(&array, 3));
    assert_eq!(array.sh("cat w/out/b"), "1\n");
}

const OF_FOLDER: &str = r#"
pattern = "*.txt"; retries = 0;
task = { kernel = "/bin/sh"; args = [ "-c", "wc -l < \"$1\"", "sh", "${file}" ]; output = [ "out/${stem}" ]; stdout = "out/${stem}"; };
"#;

/// Checks invalid rules, and folders and files that cannot have a rule.
fn what_is_wrong_is_refused(array: &Array, file: &str, set: &str) {
    for wrong in [
        "nonsense",
        "",
        &format!("workdir = \\\"/\\\"; $(cat '{file}')"),
    ] {
        let said = array.try_sh(&format!("setfattr -n user.tidemill.rule -v \"{wrong}\" c"));
        assert!(
            !said.ok && said.err.contains("Invalid argument"),
            "{}",
            said.err
        );
    }
    // A user who may only write in a folder cannot have its files processed by a rule: only its owner can.
    array.sh("chmod 777 c");
    let stranger = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    let said = array.try_sh(&format!("{stranger} {set} c"));
    assert!(
        !said.ok && said.err.contains("not permitted"),
        "{}",
        said.err
    );
    assert!(
        !array
            .try_sh(&format!("{stranger} setfattr -x user.tidemill.rule c"))
            .ok
    );
    std::fs::write(
        array.path("wrong.rule"),
        OF_FOLDER.replace("*.txt", "(*.txt"),
    )
    .unwrap();
    let wrong = array.path("wrong.rule").display().to_string();
    let said = array.run(&["rule", "add", "--folder", "/c", &wrong]);
    assert!(
        said.err.contains("/c:user.tidemill.rule:2:"),
        "{}",
        said.err
    );
    let said = array.try_sh(&format!("{set} c/y.txt"));
    assert!(!said.ok, "a file has no rule");
}

/// `setfattr` makes a rule of a folder. The rule moves with the folder, is deleted with it, and is restored with a lost
/// server.
#[test]
fn folder_rule_is_set_by_attribute() {
    let Some(mut array) = Array::start() else {
        return;
    };
    let file = array.path("of_folder.rule").display().to_string();
    std::fs::write(&file, OF_FOLDER).unwrap();
    let set = format!("setfattr -n user.tidemill.rule -v 0s$(base64 -w0 '{file}')");
    array.sh(&format!(
        "mkdir a b; seq 4 > a/before.txt; getfattr -n user.tidemill.version a/before.txt; {set} a; seq 5 > a/x.txt; seq 6 > b/x.txt"
    ));
    let listed = array.json(&["rule", "list"]);
    let rule = &listed[0];
    assert_eq!(
        (&rule["workdir"], &rule["of_folder"]),
        (&"/a".into(), &true.into())
    );
    let name = rule["name"].as_str().unwrap().to_owned();
    assert!(name.starts_with("folder-"), "{name}");
    let done = |array: &Array, count: u64| {
        wait("all have fired", || {
            let said = array.run(&["--json", "rule", "show", &name]);
            let rule: Value = serde_json::from_str(&said.out).unwrap_or_default();
            said.ok && rule["firings"]["done"] == count
        });
    };
    done(&array, 1);
    assert_eq!(
        array.sh("cat a/out/x; ls a/out b | paste -sd,"),
        "5\na/out:,x,,b:,x.txt\n"
    );

    array.sh("mv a c; seq 7 > c/y.txt");
    // Files that existed before the rule count as if they were moved there now.
    done(&array, 3);
    assert_eq!(array.sh("cat c/out/y c/out/before"), "7\n4\n");
    what_is_wrong_is_refused(&array, &file, &set);

    array.wait_for_notes();
    add(&array, RULE, &[]);
    array.sh("mkdir -p w/in");
    array.wait_for_notes();
    array.rebuild();
    array.sh("seq 8 > c/z.txt; seq 9 > w/in/a.txt");
    done(&array, 1);
    wait("the other has fired, too", || self::done(&array, 1));
    assert_eq!(array.sh("cat c/out/z w/out/a"), "8\n9\n");

    array.sh(
        "setfattr -x user.tidemill.rule c; seq 1 > c/late.txt; sleep 0.5; ls c/out | paste -sd,",
    );
    assert!(!array.run(&["rule", "show", &name]).ok);
    array.sh(&format!("mkdir d; {set} d; rmdir d; {set} b"));
    let listed = array.json(&["rule", "list"]);
    assert_eq!(listed.as_array().unwrap().len(), 2, "{listed}");
    let name = listed[1]["name"].as_str().unwrap();
    array.json(&["rule", "remove", name]);
    assert!(!array.try_sh("getfattr -n user.tidemill.rule b").ok);
    assert_eq!(array.sh("ls c/out | paste -sd,"), "before,x,y,z\n");
}

const GROWING: &str = r#"
name = "count"; workdir = "/w"; pattern = "*.log"; when = "growing";
task = { kernel = "/bin/sh"; args = [ "-c", "while read -r line; do echo $line; done" ];
         stdin = "${file}"; output = [ "out/${stem}" ]; stdout = "out/${stem}"; };
"#;

/// Writes into a file, and waits until its rule's task has read the line.
fn grow(array: &Array, file: &mut std::fs::File, line: &str) {
    use std::io::Write as _;
    writeln!(file, "{line}").unwrap();
    let folders = [0, 1].map(|node| array.node_folder(node).join("run"));
    let [first, second] = folders.map(|folder| folder.display().to_string());
    // The kernel has written the line to an output that no other process sees yet.
    let find = format!("find {first} {second} -type f -exec grep -qsx '{line}' {{}} \\; -print");
    wait(line, || !array.try_sh(&find).out.is_empty());
}

/// A task reads while its input is written, and ends after the seal of its input. There is one firing of one version.
#[test]
fn growing_file_is_read_while_written() {
    use std::io::{Seek as _, Write as _};
    let Some(mut array) = Array::start() else {
        return;
    };
    array.sh("mkdir -p w/out");
    add(&array, GROWING, &[]);
    let create = |array: &Array, name: &str| std::fs::File::create(array.path("mnt/w").join(name));
    let mut file = create(&array, "a.log").unwrap();
    for line in ["one", "two", "three"] {
        grow(&array, &mut file, line);
    }
    assert_eq!(array.sh("ls w/out"), "");
    drop(file);
    wait("it ends with its input", || done(&array, 1));
    assert_eq!(array.sh("cat w/out/a"), "one\ntwo\nthree\n");
    let object = array.sh("getfattr --only-values -n user.tidemill.object w/a.log");
    let log = array.json(&["rule", "log", "count"]);
    assert_eq!(log[0]["object"].to_string(), object);
    assert!(array.run(&["lineage", "/w/out/a"]).out.contains("/w/a.log"));

    // If a writer overwrites bytes that were read, the task reads them again.
    let mut file = create(&array, "b.log").unwrap();
    grow(&array, &mut file, "first");
    file.rewind().unwrap();
    file.write_all(b"FIRST\nlast\n").unwrap();
    drop(file);
    wait("what was sealed counts", || done(&array, 2));
    assert_eq!(array.sh("cat w/out/b"), "FIRST\nlast\n");

    // After a kill of its node, the task reads from the start.
    let mut file = create(&array, "c.log").unwrap();
    grow(&array, &mut file, "before");
    for node in 0..2 {
        array.kill_node(node);
    }
    for node in 0..2 {
        array.start_node(node);
    }
    array.wait_for_nodes(2);
    grow(&array, &mut file, "after");
    array.kill_server();
    array.start_server();
    grow(&array, &mut file, "later");
    drop(file);
    wait("it ends once", || done(&array, 3));
    assert_eq!(array.sh("cat w/out/c"), "before\nafter\nlater\n");
    assert_eq!(show(&array)["firings"].as_object().unwrap().len(), 1);

    // The writer dies: the bytes that it has written are the version.
    let mut file = create(&array, "d.log").unwrap();
    grow(&array, &mut file, "all");
    array.kill_mount();
    drop(file);
    array.start_mount();
    wait("it is sealed for the mount", || done(&array, 4));
    assert_eq!(array.sh("cat w/out/d"), "all\n");
}

/// A file that is removed before its seal ends its task, and blocks nobody.
#[test]
fn growing_file_that_is_removed_ends_its_task() {
    let Some(array) = Array::start() else { return };
    array.sh("mkdir -p w/out");
    add(&array, GROWING, &[]);
    let mut file = std::fs::File::create(array.path("mnt/w/a.log")).unwrap();
    grow(&array, &mut file, "one");
    array.sh("rm w/a.log");
    drop(file);
    wait("it has ended", || {
        let rule = show(&array);
        rule["jobs"] == 0 && rule["firings"]["running"].is_null()
    });
    let log = array.json(&["rule", "log", "count"]);
    assert_eq!(log.as_array().unwrap().len(), 1);
    // The task ignores its input and ends at once: its result counts when its input is sealed.
    let early = GROWING.replace("while read", "exit 0; while read");
    add(&array, &early, &["--replace"]);
    array.sh("seq 1000000 > w/b.log");
    wait("it has ended", || {
        show(&array)["firings"]["done"].as_u64() >= Some(1)
    });
    array.sh("seq 3 > w/c.log; seq 3 > w/c.log");
    wait("all have ended", || {
        let firings = show(&array)["firings"].clone();
        firings["running"].is_null() && firings["queued"].is_null() && firings["waiting"].is_null()
    });
}

/// A rule's task may have components: a firing succeeds if all of them succeed, on the version that fired it.
#[test]
fn task_of_rule_may_have_components() {
    let Some(array) = Array::start() else { return };
    let text = |command: &str| {
        let task = format!(
            "kernel = \"/bin/sh\"; args = [ \"-c\", \"{command}\", \"sh\", \"${{file}}\" ]; retries = 0; per = \"part\"; layout = \"same\";"
        );
        let outputs = "output = [ \"out/${stem}\" ]; stdout = \"out/${stem}\";";
        format!(
            "name = \"count\"; workdir = \"/w\"; pattern = \"*.txt\"; task = {{ {task} {outputs} }};"
        )
    };
    array.sh("mkdir -p w/out; setfattr -n user.tidemill.stripe -v 4096 w");
    add(&array, &text("tr a-z A-Z < \\\"$1\\\""), &[]);
    let lines = "seq -f 'line %g' 2000";
    array.sh(&format!(
        "{lines} > w/a.txt; {lines} > w/b.txt; seq 3 > w/small.txt"
    ));
    wait("all have fired", || done(&array, 3));
    array.sh(&format!(
        "{lines} | tr a-z A-Z | cmp - w/out/a; cmp w/out/a w/out/b; seq 3 | cmp - w/out/small"
    ));
    let log = array.json(&["rule", "log", "count"]);
    assert_eq!(log.as_array().unwrap().len(), 3);
    add(&array, &text("exit 3; cat \\\"$1\\\""), &["--replace"]);
    array.sh(&format!("{lines} > w/c.txt"));
    wait("it has failed", || show(&array)["firings"]["failed"] == 1);
    let log = array
        .run(&["rule", "log", "count", "--state", "failed"])
        .out;
    assert!(log.contains("/w/c.txt") && log.contains('3'), "{log}");
}

/// The content of a file decides, whatever the file's name is, on each node.
#[test]
fn rule_matches_content_of_file() {
    let Some(array) = Array::start() else { return };
    array.sh("mkdir -p w/in w/out");
    let text = RULE.replace(
        "task =",
        "where = { content = [ \"application/gzip\" ]; }; task =",
    );
    add(&array, &text, &[]);
    array.sh("cd w/in; seq 5 | gzip > zipped.txt; seq 5 > plain.txt; seq 50000 | gzip > big.txt");
    array.sh("mkdir w/s; setfattr -n user.tidemill.stripe -v 4096 w/s; head -c 20000 /dev/urandom | gzip > w/s/striped.txt; mv w/s/striped.txt w/in/");
    wait("all were looked at", || {
        let firings = show(&array)["firings"].clone();
        firings["done"] == 3 && firings["other"] == 1
    });
    assert_eq!(array.sh("ls w/out | paste -sd,"), "big,striped,zipped\n");
    let log = array.run(&["rule", "log", "count", "--state", "other"]).out;
    assert!(
        log.contains("plain.txt") && log.contains("it holds text/plain"),
        "{log}"
    );
}
