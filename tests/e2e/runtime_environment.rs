//! Tests the environment of tasks: variables, directories of programs, and directories of the host that are shown read-only.

use crate::cluster::{Cluster, Options};
use serde_json::Value;
use std::fs::{Permissions, create_dir_all, set_permissions, write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

/// Software as on hosts, which all users may read, and files that no user may read.
struct Host(tempfile::TempDir);

impl Host {
    fn new() -> Self {
        let host = Self(tempfile::tempdir().unwrap());
        let root = host.0.path();
        let hello = "#!/bin/sh\ncat \"$HELLO_LIB/words\" || exit 1\necho \"$PATH\" $EVERY\n\
                     for new in new words; do echo WRITTEN 2> /dev/null > $HELLO_LIB/$new; done\ntrue\n";
        for (file, content, mode) in [
            ("sw/bin/hello", hello, 0o755),
            ("always/everywhere", "#!/bin/sh\necho always\n", 0o755),
            ("sw/lib/words", "hello from the host\n", 0o666),
            ("sw/lib/key", "for root alone\n", 0o600),
            ("sw/fake/libc.so.6", "no library\n", 0o755),
            ("secret/words", "nobody reads this\n", 0o666),
        ] {
            let path = root.join(file);
            create_dir_all(path.parent().unwrap()).unwrap();
            write(&path, content).unwrap();
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        }
        set_permissions(root, Permissions::from_mode(0o755)).unwrap();
        symlink(root.join("secret"), root.join("sw/link")).unwrap();
        host
    }

    fn at(&self, path: &str) -> String {
        self.0.path().join(path).to_str().unwrap().to_owned()
    }

    /// Starts a cluster whose node 1 shows software, and node 0 nothing.
    fn cluster(&self) -> Option<Cluster> {
        let options = Options {
            nodes: 1,
            ..Options::default()
        };
        let mut cluster = Cluster::with(options)?;
        cluster.add_node(&[
            "--task-dirs",
            &format!("{},/etc,/proc", self.at("sw")),
            "--kernels-path",
            &self.at("always"),
            "--kernels-environment",
            "EVERY=where",
        ]);
        cluster.sh("mkdir w; for i in 1 2 3 4; do echo x$i > w/in$i; done");
        Some(cluster)
    }
}

/// Returns four similar tasks, each with a file of its own, on all nodes in turn by default.
fn script(all: &str, task: &str) -> String {
    let tasks = (1..=4).map(|i| {
        format!("{{ name = \"t{i}\"; input = [ \"in{i}\" ]; output = [ \"out{i}\" ]; stdout = \"out{i}\"; {task} }}")
    });
    let tasks: Vec<String> = tasks.collect();
    format!(
        "name = \"s\"; workdir = \"/w\"; policy = \"round-robin\"; retries = 0; replace = true; {all} tasks = ( {} );",
        tasks.join(", ")
    )
}

fn nodes(job: &Value) -> Vec<u64> {
    let tasks = job["tasks"].as_array().unwrap().iter();
    tasks.map(|task| task["node"].as_u64().unwrap()).collect()
}

impl Host {
    /// Returns tasks that run `hello` with everything it needs.
    fn hello(&self) -> String {
        let around = format!(
            "path = [ \"{}\" ]; directories = [ \"{}\" ]; environment = {{ HELLO_LIB = \"{}\"; EVERY = \"one\"; }};",
            self.at("sw/bin"),
            self.at("sw"),
            self.at("sw/lib")
        );
        script(&around, "kernel = \"hello\";")
    }
}

#[test]
fn tasks_run_where_their_directories_are_and_find_them() {
    let host = Host::new();
    let Some(mut cluster) = host.cluster() else {
        return;
    };
    let hello = host.hello();
    let job = cluster.done(cluster.submit(&hello));
    assert_eq!(nodes(&job), [1; 4]);
    let out = cluster.sh("cat w/out3");
    let path = format!("{}:{}:", host.at("sw/bin"), host.at("always"));
    let begin = format!("hello from the host\n{path}");
    assert!(out.starts_with(&begin) && out.ends_with(" one\n"), "{out}");
    let words = std::fs::read_to_string(host.at("sw/lib/words")).unwrap();
    assert_eq!(words, "hello from the host\n");
    assert!(!Path::new(&host.at("sw/lib/new")).exists());
    // A server that was killed in between knows the environment that its tasks requested.
    let late = hello
        .replace("\"in1\"", "\"late\"")
        .replace("\"out", "\"then");
    let waiting = cluster.submit(&late);
    cluster.kill_server();
    cluster.start_server();
    cluster.wait_for_nodes(2);
    cluster.sh("echo late > w/late");
    assert_eq!(nodes(&cluster.done(waiting)), [1; 4]);
    assert_eq!(cluster.sh("cat w/then1"), out);
    // Software that the administrator provides for all is found without a request.
    let everywhere = cluster.done(cluster.submit(&script("", "kernel = \"everywhere\";")));
    assert_eq!(nodes(&everywhere), [1; 4]);
    assert_eq!(cluster.sh("cat w/out1"), "always\n");
}

#[test]
fn runtime_environment_of_task_is_part_of_its_result_key() {
    let host = Host::new();
    let Some(cluster) = host.cluster() else {
        return;
    };
    let hello = host.hello();
    cluster.done(cluster.submit(&hello));
    let reported = cluster.run(&["lineage", "show", "/w/out1"]).out;
    let program = host.at("sw/bin/hello");
    assert!(
        reported.contains("EVERY=one") && reported.contains(&program),
        "{reported}"
    );
    let more = |setting: &str| {
        let begin = format!("{setting} = [");
        hello.replacen(&begin, &format!("{begin} \"{}\",", host.at("sw/lib")), 1)
    };
    for (other, is_first) in [
        (hello.clone(), false),
        (hello.replace("\"one\"", "\"two\""), true),
        (more("path"), true),
        (more("directories"), true),
    ] {
        let of = |cluster: &Cluster| cluster.done(cluster.submit(&other))["tasks"][0].clone();
        let (first, again) = (of(&cluster), of(&cluster));
        assert_eq!(first["reused_task"].is_null(), is_first, "{other}");
        assert!(!again["reused_task"].is_null(), "{other}");
        let variable = &again["runtime_environment"]["environment"]["EVERY"];
        assert!(other.contains(variable.as_str().unwrap()), "{again:#}");
    }
}

#[test]
fn directories_that_are_not_offered_are_refused() {
    let host = Host::new();
    let Some(cluster) = host.cluster() else {
        return;
    };
    let (node, server) = (cluster.node_directory(1), cluster.path("server"));
    for asked in [
        &*host.at("secret"),
        &host.at("sw/link"),
        &host.at("sw/lib/key"),
        "/etc",
        "/etc/ssl",
        "/proc/1",
        "/root",
        "/tmp",
        &node.display().to_string(),
        &format!("{}/objects", node.display()),
        &server.display().to_string(),
    ] {
        for setting in ["directories", "path"] {
            let asks = format!("kernel = \"sh\"; type = \"program\"; {setting} = [ \"{asked}\" ];");
            let refused = cluster.try_submit(&script("", &asks));
            assert!(!refused.ok, "{asked}");
            let why = format!("no storage node shows the directory `{asked}`; ");
            assert!(refused.err.contains(&why), "{}", refused.err);
            assert!(refused.err.contains("--task-dirs"), "{}", refused.err);
        }
    }
}

#[test]
fn invalid_runtime_environments_are_refused_with_alternatives() {
    let host = Host::new();
    let Some(cluster) = host.cluster() else {
        return;
    };
    let offered = format!("tasks see {} and the directories below", host.at("sw"));
    let pinned = format!(
        "kernel = \"sort\"; node = 0; directories = [ \"{}\" ];",
        host.at("sw")
    );
    for (asks, why) in [
        (&*pinned, "; node 1 does"),
        (
            "kernel = \"sort\"; directories = [ \"/sw/../etc\" ];",
            "without \"..\"",
        ),
        (
            "kernel = \"sort\"; directories = [ \"/nowhere\" ];",
            &offered,
        ),
        (
            "kernel = \"sort\"; environment = { LD_PRELOAD = \"/w/x.so\"; };",
            "\"LD_PRELOAD\" can't be set",
        ),
        (
            "kernel = \"sort\"; environment = { PATH = \"/w\"; };",
            "programs are found by \"path\"",
        ),
        (
            "kernel = \"hello\"; path = [ \"/usr/bin\" ];",
            "kernel \"hello\" was not found",
        ),
    ] {
        let refused = cluster.try_submit(&script("", asks));
        assert!(
            !refused.ok && refused.err.contains(why),
            "{asks}: {}",
            refused.err
        );
    }
    for (flag, value, why) in [
        (
            "--kernels-environment",
            "LD_AUDIT=/x.so",
            "\"LD_AUDIT\" can't be set",
        ),
        ("--kernels-environment", "A", "write NAME=VALUE"),
        ("--task-dirs", "sw", "sw is not an absolute path"),
        (
            "--kernels-path",
            "/sw:/etc",
            "/sw:/etc is not an absolute path",
        ),
    ] {
        let wrong = cluster.run(&["node", "run", "--id", "7", flag, value]);
        assert!(!wrong.ok && wrong.err.contains(why), "{}", wrong.err);
    }
}

#[test]
fn private_files_are_not_read_and_libraries_stay_inside() {
    let host = Host::new();
    let Some(cluster) = host.cluster() else {
        return;
    };
    // Shown directories contain only files that are open to all users, even for root's jobs, and links out of them have no target. Directories
    // that were not requested are closed.
    let sw = format!("directories = [ \"{}\" ];", host.at("sw"));
    for (file, directories) in [
        ("sw/lib/key", &*sw),
        ("sw/link/words", &sw),
        ("sw/../secret/words", &sw),
        ("sw/lib/words", "node = 1;"),
    ] {
        let read = format!(
            "kernel = \"cat\"; type = \"program\"; args = [ \"{}\" ]; {directories}",
            host.at(file)
        );
        let failed = cluster.ended(cluster.submit(&script("", &read)));
        assert_eq!(failed["state"], "failed", "{file}");
        let logs = cluster
            .run(&["job", "logs", &failed["job"].to_string()])
            .out;
        assert!(logs.contains("ermission denied"), "{file}: {logs}");
    }
    // Libraries of a task are loaded only within the sandbox: the program that starts its kernel does not use them.
    let fake = format!(
        "environment = {{ LD_LIBRARY_PATH = \"{}\"; }};",
        host.at("sw/fake")
    );
    let failed = cluster.ended(cluster.submit(&script(
        &fake,
        &format!("kernel = \"cat\"; type = \"program\"; {sw}"),
    )));
    assert_eq!(failed["state"], "failed");
    cluster.done(cluster.submit(&script(&fake, &format!("kernel = \"wordcount\"; {sw}"))));
}
