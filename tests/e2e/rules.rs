//! Tests rules: files that arrive in a real mount are processed by real kernels, with kills.

use crate::cluster::{Cluster, Options, wait};
use serde_json::Value;

const RULE: &str = r#"
name = "count"; workdir = "/w"; pattern = "in/{n}.txt";
task = { kernel = "/bin/sh"; args = [ "-c", "wc -l < \"$1\"; sleep 0.02", "sh", "{file}" ];
         output = [ "out/{n}" ]; stdout = "out/{n}"; };
"#;

fn add(cluster: &Cluster, text: &str, flags: &[&str]) -> Value {
    let path = cluster.path("count.rule");
    std::fs::write(&path, text).unwrap();
    let path = path.display().to_string();
    cluster.json(&[&["rule", "create", &path], flags].concat())
}

fn show(cluster: &Cluster) -> Value {
    cluster.json(&["rule", "show", "count"])
}

fn done(cluster: &Cluster, count: u64) -> bool {
    let printed = cluster.run(&["--json", "rule", "show", "count"]);
    let rule: Value = serde_json::from_str(&printed.out).unwrap_or_default();
    printed.ok && rule["rule_runs"]["done"] == count
}

#[test]
fn rule_analyses_new_files_and_lineage_names_rule() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir -p w/in; seq 3 > w/in/before.txt");
    let rule = add(&cluster, RULE, &["--existing"]);
    assert_eq!(
        (rule["revision"].as_u64(), rule["name"].as_str()),
        (Some(1), Some("count"))
    );
    cluster.sh(
        "seq 5 > w/in/a.txt; seq 7 > w/in/.b.part; mv w/in/.b.part w/in/b.txt; seq 9 > w/in/other",
    );
    cluster
        .sh("mkdir w/next; seq 2 > w/next/c.txt; cp w/next/c.txt w/next/d.txt; mv w/next/* w/in/");
    wait("all have triggered the rule", || done(&cluster, 5));
    assert_eq!(
        cluster.sh("cd w/out; grep . *"),
        "a:5\nb:7\nbefore:3\nc:2\nd:2\n"
    );
    let lineage = cluster.run(&["lineage", "show", "/w/out/a"]).out;
    assert!(
        lineage.contains("count@1") && lineage.contains("/w/in/a.txt"),
        "{lineage}"
    );
    cluster.sh("seq 6 > w/in/a.txt");
    wait("the next version has", || done(&cluster, 6));
    assert_eq!(cluster.sh("cat w/out/a"), "6\n");

    let test = cluster.json(&["rule", "test", "count", "in/x.txt"]);
    assert_eq!(
        (test["matches"].as_bool(), test["captures"]["n"].as_str()),
        (Some(true), Some("x"))
    );
    let job = test["script"].as_str().unwrap();
    assert!(
        job.starts_with("[job]") && job.contains("[[task]]"),
        "{job}"
    );
    assert!(!cluster.run(&["rule", "test", "count", "in/x.dat"]).ok);
    assert!(cluster.run(&["rule", "list"]).out.contains("in/{n}.txt"));
    std::fs::write(
        cluster.path("wrong.rule"),
        RULE.replace("in/{n}", "in/[{n}"),
    )
    .unwrap();
    let wrong = cluster.path("wrong.rule").display().to_string();
    let printed = cluster.run(&["rule", "create", &wrong]);
    assert!(
        printed
            .err
            .contains("wrong.rule:2:47: pattern: this '[' is never closed"),
        "{}",
        printed.err
    );
    cluster.json(&["rule", "delete", "count"]);
    assert!(!cluster.run(&["rule", "show", "count"]).ok);
}

/// Server and nodes are killed while files are dropped and analysed: every file has exactly one result.
#[test]
fn rule_runs_happen_exactly_once_despite_kills() {
    let options = Options {
        node_timeout_secs: 60,
        ..Options::default()
    };
    let Some(mut cluster) = Cluster::with(options) else {
        return;
    };
    cluster.sh("mkdir -p w/in w/out");
    add(&cluster, RULE, &[]);
    for round in 0..4_u64 {
        cluster.sh(&format!(
            "for i in $(seq 25); do seq $i > w/in/{round}-$i.txt; done"
        ));
        match round % 3 {
            0 => cluster.kill_server(),
            1 => cluster.kill_node(0),
            _ => {
                cluster.kill_node(1);
                cluster.kill_server();
            }
        }
        if round % 3 != 1 {
            cluster.start_server();
        }
        if round % 3 != 0 {
            cluster.start_node(usize::try_from(round % 3 - 1).unwrap());
        }
    }
    wait("all have triggered the rule", || done(&cluster, 100));
    assert_eq!(show(&cluster)["rule_runs"].as_object().unwrap().len(), 1);
    assert_eq!(
        cluster.sh("ls w/out | wc -l; cat w/out/* | paste -sd+ | bc"),
        "100\n1300\n"
    );
    // Each output was named once: a second result of a file would be a second version, or another name.
    let versions = cluster.sh("cd w/out; for f in *; do getfattr --only-values -n user.tidemill.version $f 2>/dev/null; echo; done | sort -u");
    assert!(["1\n", "\n"].contains(&versions.as_str()), "{versions}");
    let log = cluster.json(&["rule", "log", "count", "-n", "1000"]);
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
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir -p w/in");
    let text = RULE
        .replace("\"out/{n}\"", "\"in/{n}x.txt\"")
        .replace("task =", "depth = 2; retries = 0; task =");
    add(&cluster, &text, &[]);
    cluster.sh("echo > w/in/a.txt");
    wait("the chain has ended", || {
        show(&cluster)["rule_runs"]["loop"] == 1
    });
    let log = cluster
        .run(&["rule", "log", "count", "--state", "loop"])
        .out;
    assert!(
        log.contains("/w/in/axx.txt") && log.contains("a chain of 2 rule runs"),
        "{log}"
    );
    let failing = RULE.replace("sleep 0.02", "test -e /nowhere");
    let rule = add(
        &cluster,
        &failing.replace("task =", "retries = 0; task ="),
        &["--replace"],
    );
    assert_eq!(rule["revision"], 2);
    cluster.sh("echo > w/in/b.txt");
    wait("it has failed", || {
        show(&cluster)["rule_runs"]["failed"] == 1
    });
    add(&cluster, RULE, &["--replace"]);
    cluster.json(&["rule", "retry", "count", "/w/in/b.txt"]);
    wait("the rule has run again", || done(&cluster, 3));
    assert_eq!(cluster.sh("cat w/out/b"), "1\n");
}

const OF_DIRECTORY: &str = r#"
pattern = "*.txt"; retries = 0;
task = { kernel = "/bin/sh"; args = [ "-c", "wc -l < \"$1\"", "sh", "{file}" ]; output = [ "out/{stem}" ]; stdout = "out/{stem}"; };
"#;

/// Checks invalid rules, and directories and files that cannot have a rule.
fn what_is_wrong_is_refused(cluster: &Cluster, file: &str, set: &str) {
    for wrong in [
        "nonsense",
        "",
        &format!("workdir = \\\"/\\\"; $(cat '{file}')"),
    ] {
        let printed = cluster.try_sh(&format!("setfattr -n user.tidemill.rule -v \"{wrong}\" c"));
        assert!(
            !printed.ok && printed.err.contains("Invalid argument"),
            "{}",
            printed.err
        );
    }
    // A user who may only write in a directory cannot have its files processed by a rule: only its owner can.
    cluster.sh("chmod 777 c");
    let other_user = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    let printed = cluster.try_sh(&format!("{other_user} {set} c"));
    assert!(
        !printed.ok && printed.err.contains("not permitted"),
        "{}",
        printed.err
    );
    assert!(
        !cluster
            .try_sh(&format!("{other_user} setfattr -x user.tidemill.rule c"))
            .ok
    );
    std::fs::write(
        cluster.path("wrong.rule"),
        OF_DIRECTORY.replace("*.txt", "[*.txt"),
    )
    .unwrap();
    let wrong = cluster.path("wrong.rule").display().to_string();
    let printed = cluster.run(&["rule", "create", "--path", "/c", &wrong]);
    assert!(
        printed.err.contains("/c:user.tidemill.rule:2:"),
        "{}",
        printed.err
    );
    let printed = cluster.try_sh(&format!("{set} c/y.txt"));
    assert!(!printed.ok, "a file has no rule");
}

/// `setfattr` makes a rule of a directory. The rule moves with the directory, is deleted with it, and is restored with a lost
/// server.
#[test]
fn directory_rule_is_set_by_attribute() {
    let Some(mut cluster) = Cluster::start() else {
        return;
    };
    let file = cluster.path("of_directory.rule").display().to_string();
    std::fs::write(&file, OF_DIRECTORY).unwrap();
    let set = format!("setfattr -n user.tidemill.rule -v 0s$(base64 -w0 '{file}')");
    cluster.sh(&format!(
        "mkdir a b; seq 4 > a/before.txt; getfattr -n user.tidemill.version a/before.txt; {set} a; seq 5 > a/x.txt; seq 6 > b/x.txt"
    ));
    let listed = cluster.json(&["rule", "list"]);
    let rule = &listed[0];
    assert_eq!(
        (&rule["workdir"], &rule["of_directory"]),
        (&"/a".into(), &true.into())
    );
    let name = rule["name"].as_str().unwrap().to_owned();
    assert!(name.starts_with("directory-"), "{name}");
    let done = |cluster: &Cluster, count: u64| {
        wait("all have triggered the rule", || {
            let printed = cluster.run(&["--json", "rule", "show", &name]);
            let rule: Value = serde_json::from_str(&printed.out).unwrap_or_default();
            printed.ok && rule["rule_runs"]["done"] == count
        });
    };
    done(&cluster, 1);
    assert_eq!(
        cluster.sh("cat a/out/x; ls a/out b | paste -sd,"),
        "5\na/out:,x,,b:,x.txt\n"
    );

    cluster.sh("mv a c; seq 7 > c/y.txt");
    // Files that existed before the rule count as if they were moved there now.
    done(&cluster, 3);
    assert_eq!(cluster.sh("cat c/out/y c/out/before"), "7\n4\n");
    what_is_wrong_is_refused(&cluster, &file, &set);

    add(&cluster, RULE, &[]);
    cluster.sh("mkdir -p w/in");
    cluster.recover_database();
    cluster.sh("seq 8 > c/z.txt; seq 9 > w/in/a.txt");
    done(&cluster, 4);
    wait("the other rule has run, too", || self::done(&cluster, 1));
    assert_eq!(cluster.sh("cat c/out/z w/out/a"), "8\n9\n");

    cluster.sh(
        "setfattr -x user.tidemill.rule c; seq 1 > c/late.txt; sleep 0.5; ls c/out | paste -sd,",
    );
    assert!(!cluster.run(&["rule", "show", &name]).ok);
    cluster.sh(&format!("mkdir d; {set} d; rmdir d; {set} b"));
    let listed = cluster.json(&["rule", "list"]);
    assert_eq!(listed.as_array().unwrap().len(), 2, "{listed}");
    let name = listed[1]["name"].as_str().unwrap();
    cluster.json(&["rule", "delete", name]);
    assert!(!cluster.try_sh("getfattr -n user.tidemill.rule b").ok);
    assert_eq!(cluster.sh("ls c/out | paste -sd,"), "before,x,y,z\n");
}

const STREAMING: &str = r#"
name = "count"; workdir = "/w"; pattern = "*.log"; when = "streaming";
task = { kernel = "/bin/sh"; args = [ "-c", "while read -r line; do echo $line; done" ];
         stdin = "{file}"; output = [ "out/{stem}" ]; stdout = "out/{stem}"; };
"#;

/// Writes into a file, and waits until its rule's task has read the line.
fn grow(cluster: &Cluster, file: &mut std::fs::File, line: &str) {
    use std::io::Write as _;
    writeln!(file, "{line}").unwrap();
    let directories = [0, 1].map(|node| cluster.node_directory(node).join("run"));
    let [first, second] = directories.map(|directory| directory.display().to_string());
    // The kernel has written the line to an output that no other process sees yet.
    let find = format!("find {first} {second} -type f -exec grep -qsx '{line}' {{}} \\; -print");
    wait(line, || !cluster.try_sh(&find).out.is_empty());
}

/// A task reads while its input is written, and ends after the seal of its input. There is one rule run of one version.
#[test]
fn rule_task_reads_streaming_file_while_it_is_written() {
    use std::io::{Seek as _, Write as _};
    let Some(mut cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir -p w/out");
    add(&cluster, STREAMING, &[]);
    let create =
        |cluster: &Cluster, name: &str| std::fs::File::create(cluster.path("mnt/w").join(name));
    let mut file = create(&cluster, "a.log").unwrap();
    for line in ["one", "two", "three"] {
        grow(&cluster, &mut file, line);
    }
    assert_eq!(cluster.sh("ls w/out"), "");
    drop(file);
    wait("it ends with its input", || done(&cluster, 1));
    assert_eq!(cluster.sh("cat w/out/a"), "one\ntwo\nthree\n");
    let object = cluster.sh("getfattr --only-values -n user.tidemill.object w/a.log");
    let log = cluster.json(&["rule", "log", "count"]);
    assert_eq!(log[0]["object"].to_string(), object);
    assert!(
        cluster
            .run(&["lineage", "show", "/w/out/a"])
            .out
            .contains("/w/a.log")
    );

    // If a writer overwrites bytes that were read, the task reads them again.
    let mut file = create(&cluster, "b.log").unwrap();
    grow(&cluster, &mut file, "first");
    file.rewind().unwrap();
    file.write_all(b"FIRST\nlast\n").unwrap();
    drop(file);
    wait("the sealed content counts", || done(&cluster, 2));
    assert_eq!(cluster.sh("cat w/out/b"), "FIRST\nlast\n");

    // After a kill of its node, the task reads from the start.
    let mut file = create(&cluster, "c.log").unwrap();
    grow(&cluster, &mut file, "before");
    for node in 0..2 {
        cluster.kill_node(node);
    }
    for node in 0..2 {
        cluster.start_node(node);
    }
    cluster.wait_for_nodes(2);
    grow(&cluster, &mut file, "after");
    cluster.kill_server();
    cluster.start_server();
    grow(&cluster, &mut file, "later");
    drop(file);
    wait("it ends once", || done(&cluster, 3));
    assert_eq!(cluster.sh("cat w/out/c"), "before\nafter\nlater\n");
    assert_eq!(show(&cluster)["rule_runs"].as_object().unwrap().len(), 1);

    // The writer dies: the bytes that it has written are the version.
    let mut file = create(&cluster, "d.log").unwrap();
    grow(&cluster, &mut file, "all");
    cluster.kill_mount();
    drop(file);
    cluster.start_mount();
    wait("it is sealed for the mount", || done(&cluster, 4));
    assert_eq!(cluster.sh("cat w/out/d"), "all\n");
}

/// A file that is removed before its seal ends its task, and blocks nobody.
#[test]
fn streaming_file_that_is_removed_ends_its_task() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir -p w/out");
    add(&cluster, STREAMING, &[]);
    let mut file = std::fs::File::create(cluster.path("mnt/w/a.log")).unwrap();
    grow(&cluster, &mut file, "one");
    cluster.sh("rm w/a.log");
    drop(file);
    wait("it has ended", || {
        let rule = show(&cluster);
        rule["jobs"] == 0 && rule["rule_runs"]["running"].is_null()
    });
    let log = cluster.json(&["rule", "log", "count"]);
    assert_eq!(log.as_array().unwrap().len(), 1);
    // The task ignores its input and ends at once: its result counts when its input is sealed.
    let early = STREAMING.replace("while read", "exit 0; while read");
    add(&cluster, &early, &["--replace"]);
    cluster.sh("seq 1000000 > w/b.log");
    wait("it has ended", || {
        show(&cluster)["rule_runs"]["done"].as_u64() >= Some(1)
    });
    cluster.sh("seq 3 > w/c.log; seq 3 > w/c.log");
    wait("all have ended", || {
        let rule_runs = show(&cluster)["rule_runs"].clone();
        rule_runs["running"].is_null()
            && rule_runs["queued"].is_null()
            && rule_runs["waiting"].is_null()
    });
}

/// A rule's task may have task instances: a rule run succeeds if all of them succeed, on the version that triggered it.
#[test]
fn task_of_rule_may_have_instances() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let text = |command: &str| {
        let task = format!(
            "kernel = \"/bin/sh\"; args = [ \"-c\", \"{command}\", \"sh\", \"{{file}}\" ]; retries = 0; per = \"stripe-object\"; layout = \"same\";"
        );
        let outputs = "output = [ \"out/{stem}\" ]; stdout = \"out/{stem}\";";
        format!(
            "name = \"count\"; workdir = \"/w\"; pattern = \"*.txt\"; task = {{ {task} {outputs} }};"
        )
    };
    cluster.sh("mkdir -p w/out; setfattr -n user.tidemill.stripe -v 4096 w");
    add(&cluster, &text("tr a-z A-Z < \\\"$1\\\""), &[]);
    let lines = "seq -f 'line %g' 2000";
    cluster.sh(&format!(
        "{lines} > w/a.txt; {lines} > w/b.txt; seq 3 > w/small.txt"
    ));
    wait("all have triggered the rule", || done(&cluster, 3));
    cluster.sh(&format!(
        "{lines} | tr a-z A-Z | cmp - w/out/a; cmp w/out/a w/out/b; seq 3 | cmp - w/out/small"
    ));
    let log = cluster.json(&["rule", "log", "count"]);
    assert_eq!(log.as_array().unwrap().len(), 3);
    add(&cluster, &text("exit 3; cat \\\"$1\\\""), &["--replace"]);
    cluster.sh(&format!("{lines} > w/c.txt"));
    wait("it has failed", || {
        show(&cluster)["rule_runs"]["failed"] == 1
    });
    let log = cluster
        .run(&["rule", "log", "count", "--state", "failed"])
        .out;
    assert!(log.contains("/w/c.txt") && log.contains('3'), "{log}");
}

/// The content of a file decides, whatever the file's name is, on each node.
#[test]
fn rule_matches_content_of_file() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir -p w/in w/out");
    let text = RULE.replace("task =", "where = \"content = application/gzip\"; task =");
    add(&cluster, &text, &[]);
    cluster.sh("cd w/in; seq 5 | gzip > zipped.txt; seq 5 > plain.txt; seq 50000 | gzip > big.txt");
    cluster.sh("mkdir w/s; setfattr -n user.tidemill.stripe -v 4096 w/s; head -c 20000 /dev/urandom | gzip > w/s/striped.txt; mv w/s/striped.txt w/in/");
    wait("all were looked at", || {
        let rule_runs = show(&cluster)["rule_runs"].clone();
        rule_runs["done"] == 3 && rule_runs["other"] == 1
    });
    assert_eq!(cluster.sh("ls w/out | paste -sd,"), "big,striped,zipped\n");
    let log = cluster
        .run(&["rule", "log", "count", "--state", "other"])
        .out;
    assert!(
        log.contains("plain.txt") && log.contains("it holds text/plain"),
        "{log}"
    );
}
