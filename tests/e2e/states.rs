//! States that need an administrator. Real processes cause each state, and `status`, `health`, its exit code and the server's
//! log name it. `docs/troubleshooting.md` has a row for each state.

use crate::cluster::{Cluster, Device, Options, Printed, printed, wait};
use crate::stand_in::StandIn;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tidemill_wire::condition;

/// Cluster with the devices and processes that the cases need.
struct Bench {
    cluster: Cluster,
    device: Option<Device>,
    /// Process that a case has started.
    other: Option<Child>,
    store: StandIn,
    _runtime: tokio::runtime::Runtime,
}

/// State, its node, the exit code of `health`, and functions that begin and end the state.
struct Case {
    state: &'static str,
    node: Option<u64>,
    exit: i32,
    begin: fn(&mut Bench),
    end: fn(&mut Bench),
}

impl Bench {
    fn start(options: Options, device: Option<(&str, &str)>) -> Option<Self> {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let store = runtime.block_on(StandIn::start());
        let mut made = None;
        let cluster = Cluster::prepared(options, |cluster| {
            made = device.map(|(directory, size)| Device::new(cluster.path(directory), size));
        })?;
        Some(Self {
            cluster,
            device: made,
            other: None,
            store,
            _runtime: runtime,
        })
    }

    /// Starts a process that the case ends.
    fn spawn(&mut self, command: &mut Command) {
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        self.other = Some(command.spawn().unwrap());
    }

    fn end_other(&mut self) {
        let mut child = self.other.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Command of an additional node.
    fn node(&self, id: u32, directory: &str) -> Command {
        let mut command = self.cluster.tidemill();
        command.args([
            "node",
            "run",
            "--cores",
            "1",
            "--listen",
            "127.0.0.1:0",
            "--id",
        ]);
        command
            .arg(id.to_string())
            .arg("--data-dir")
            .arg(self.cluster.path(directory));
        command
    }

    /// Blocks all writes to a database, as a hanging backup does.
    fn lock(&mut self, database: &str) {
        let database = self.cluster.path(database);
        let program = "import sqlite3,sys,time\nd=sqlite3.connect(sys.argv[1],isolation_level=None,timeout=60)\n\
                       d.execute('BEGIN IMMEDIATE')\nprint('locked',flush=True)\ntime.sleep(1000)";
        let mut command = Command::new("python3");
        let mut child = command
            .args(["-c", program])
            .arg(database)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = child.stdout.as_mut().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
        assert_eq!(line, "locked\n");
        self.other = Some(child);
    }

    fn json(&self, command: &str) -> (Option<i32>, Value) {
        let printed = printed(
            self.cluster
                .tidemill()
                .arg("--json")
                .args(command.split(' '))
                .output()
                .unwrap(),
        );
        let value = serde_json::from_str(&printed.out);
        (
            printed.code,
            value.unwrap_or_else(|error| panic!("{error}: {}{}", printed.out, printed.err)),
        )
    }

    /// Returns the exit code of a command and its report of a state.
    fn find(&self, command: &str, case: &Case) -> Option<(Option<i32>, Value)> {
        let (code, shown) = self.json(command);
        let states = shown["states"].as_array().unwrap();
        let found = states
            .iter()
            .find(|one| one["name"] == case.state && one["node"] == Value::from(case.node));
        found.map(|found| (code, found.clone()))
    }

    /// Returns the number of lines of the server's log that begin this state.
    fn logged(&self, case: &Case) -> usize {
        let node = case.node.map(|node| format!("node {node}: "));
        let begin = format!("state {}: {}", case.state, node.unwrap_or_default());
        let log = self.cluster.log("server.log");
        let lines = log
            .lines()
            .filter(|line| line.contains(&begin) && !line.contains("has ended"));
        lines.count()
    }

    /// Causes a state, checks its reports, and ends the state.
    fn check(&mut self, case: &Case) {
        let name = case.state;
        let before = self.logged(case);
        wait("nothing is wrong", || {
            self.json("cluster health").0 == Some(0)
        });
        (case.begin)(self);
        let mut seen = None;
        wait(&format!("health names {name}"), || {
            seen = self.find("cluster health", case);
            seen.is_some()
        });
        let (code, shown) = seen.unwrap();
        assert_eq!(code, Some(case.exit), "{name}: {shown}");
        let kind = condition::ALL
            .iter()
            .find(|kind| kind.name == name)
            .unwrap();
        assert_eq!(
            (&shown["exit"], &shown["remedy"]),
            (&kind.exit.into(), &kind.remedy.into())
        );
        wait("status names it, too", || {
            self.find("status", case).is_some()
        });
        let text = self.cluster.run(&["status"]).out;
        assert!(text.contains(&format!("state     {name}: ")), "{text}");
        wait(&format!("the log names {name}"), || {
            self.logged(case) > before
        });
        assert!(self.find("cluster health", case).is_some(), "{name} lasts");
        (case.end)(self);
        wait(&format!("{name} ends"), || {
            self.find("cluster health", case).is_none()
        });
        assert_eq!(self.logged(case), before + 1, "{name} is logged once");
    }

    fn put(&self, name: &str, flags: &[&str]) -> Printed {
        let local = self.cluster.path("local");
        std::fs::write(&local, "text\n").unwrap();
        let local = local.display().to_string();
        self.cluster
            .run(&[&["put"], flags, &[local.as_str(), name]].concat())
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if self.other.is_some() {
            self.end_other();
        }
    }
}

fn all(bench: Option<Bench>, cases: &[Case]) -> Option<Bench> {
    let mut bench = bench?;
    for case in cases {
        bench.check(case);
    }
    Some(bench)
}

fn kill(bench: &mut Bench) {
    bench.cluster.kill_node(1);
}

fn start(bench: &mut Bench) {
    bench.cluster.start_node(1);
    bench.cluster.wait_for_nodes(3);
}

fn end_other(bench: &mut Bench) {
    bench.end_other();
}

/// Nodes that are dead, stopped, without their disk, or not let in.
const NODES: &[Case] = &[
    Case {
        state: "node-offline",
        node: Some(1),
        exit: 3,
        begin: kill,
        end: start,
    },
    Case {
        state: "node-failed",
        node: Some(1),
        exit: 3,
        begin: kill,
        end: start,
    },
    Case {
        state: "node-silent",
        node: Some(1),
        exit: 3,
        begin: |bench| bench.cluster.signal_node(1, Signal::STOP),
        end: |bench| bench.cluster.signal_node(1, Signal::CONT),
    },
    Case {
        state: "data-unavailable",
        node: None,
        exit: 4,
        begin: |bench| {
            assert!(bench.put("/one", &["--node", "1"]).ok);
            kill(bench);
        },
        end: |bench| {
            start(bench);
            bench.cluster.sh("rm one");
        },
    },
    Case {
        state: "node-directory",
        node: Some(1),
        exit: 3,
        begin: |bench| {
            let directory = bench.cluster.node_directory(1);
            std::fs::rename(&directory, bench.cluster.path("aside")).unwrap();
            std::fs::create_dir(&directory).unwrap();
        },
        end: |bench| {
            let directory = bench.cluster.node_directory(1);
            let _ = std::fs::remove_dir_all(&directory);
            std::fs::rename(bench.cluster.path("aside"), &directory).unwrap();
        },
    },
    Case {
        state: "node-database",
        node: Some(1),
        exit: 3,
        begin: |bench| bench.lock("node-1/node.db"),
        end: end_other,
    },
    Case {
        state: "node-full",
        node: Some(2),
        exit: 3,
        begin: |bench| bench.device.as_ref().unwrap().fill(),
        end: |bench| bench.device.as_ref().unwrap().free(),
    },
    Case {
        state: "node-twice",
        node: Some(1),
        exit: 3,
        begin: |bench| bench.spawn(&mut bench.node(1, "second")),
        end: end_other,
    },
    Case {
        state: "node-plain",
        node: Some(8),
        exit: 3,
        begin: |bench| bench.spawn(bench.node(8, "plain").args(["--tls", "off"])),
        end: end_other,
    },
    Case {
        state: "node-other-cluster",
        node: Some(7),
        exit: 3,
        begin: of_another_cluster,
        end: end_other,
    },
];

#[test]
fn node_states_have_name_exit_code_and_one_log_line() {
    let options = Options {
        nodes: 3,
        server_args: ["--repair-after", "14s"].map(str::to_owned).into(),
        ..Options::default()
    };
    all(Bench::start(options, Some(("node-2", "64m"))), NODES);
}

/// A node whose directory was a cluster's that is no more.
fn of_another_cluster(bench: &mut Bench) {
    let mut never = Command::new(env!("CARGO_BIN_EXE_tidemill"));
    never.args(["--server", "unix:/nowhere", "node", "run", "--id", "7"]);
    never.args(["--listen", "127.0.0.1:0", "--data-dir"]);
    never.arg(bench.cluster.path("other"));
    bench.spawn(&mut never);
    let database = bench.cluster.path("other/node.db");
    let set = "INSERT INTO identity VALUES ('cluster', x'0102030405060708')";
    wait("it has a database", || {
        let printed = printed(
            Command::new("sqlite3")
                .arg(&database)
                .arg(set)
                .output()
                .unwrap(),
        );
        printed.ok
    });
    bench.end_other();
    bench.spawn(&mut bench.node(7, "other"));
}

/// Files that are lost, lack replicas, or can't be sealed; rules; the server's database.
const FILES: &[Case] = &[
    Case {
        state: "replicas-no-space",
        node: None,
        exit: 3,
        begin: |bench| assert!(bench.put("/four", &["--replicas", "4"]).ok),
        end: |bench| drop(bench.cluster.sh("rm four")),
    },
    Case {
        state: "data-lost",
        node: None,
        exit: 4,
        begin: |bench| {
            bench.cluster.sh("echo alone > h; sync h");
            assert!(bench.cluster.run(&["cluster", "scrub", "--wait", "/h"]).ok);
            let object = bench.cluster.object_files("/h").remove(0);
            std::fs::set_permissions(&object, PermissionsExt::from_mode(0o644)).unwrap();
            let mut file = std::fs::File::options().write(true).open(&object).unwrap();
            file.write_all(b"X").unwrap();
            assert!(!bench.cluster.run(&["cluster", "scrub", "--wait", "/h"]).ok);
        },
        end: |bench| drop(bench.cluster.sh("rm h")),
    },
    Case {
        // The node of the intact replica is offline.
        state: "files-corrupt",
        node: None,
        exit: 4,
        begin: corrupt_a_replica,
        end: |bench| {
            bench.cluster.start_node(0);
            bench.cluster.wait_for_nodes(3);
        },
    },
    Case {
        state: "rule-failed",
        node: None,
        exit: 0,
        begin: |bench| {
            let rule = "name = \"bad\"; workdir = \"/w\"; pattern = \"*.txt\"; retries = 0;
                task = { kernel = \"/bin/sh\"; args = [ \"-c\", \"exit 3\" ]; output = [ \"out\" ]; };";
            let path = bench.cluster.path("bad.rule");
            std::fs::write(&path, rule).unwrap();
            bench.cluster.sh("mkdir w");
            bench
                .cluster
                .json(&["rule", "create", &path.display().to_string()]);
            bench.cluster.sh("echo x > w/x.txt");
        },
        end: |bench| assert!(bench.cluster.run(&["rule", "delete", "bad"]).ok),
    },
    Case {
        state: "files-unsealed",
        node: Some(1),
        exit: 3,
        begin: |bench| {
            bench
                .cluster
                .sh("mkdir e1; setfattr -n user.tidemill.node -v 1 e1");
            let mut file = std::fs::File::create(bench.cluster.at("e1/open")).unwrap();
            file.write_all(b"begun").unwrap();
            file.sync_all().unwrap();
            bench.cluster.kill_mount();
            kill(bench);
        },
        end: |bench| {
            start(bench);
            bench.cluster.start_mount();
        },
    },
    Case {
        state: "server-database",
        node: None,
        exit: 3,
        begin: |bench| {
            bench.lock("server/server.db");
            // The server refuses the request, or makes the directory after the lock is released.
            drop(
                bench
                    .cluster
                    .tidemill()
                    .args(["mkdir", "/waits"])
                    .spawn()
                    .unwrap(),
            );
        },
        end: |bench| {
            bench.end_other();
            bench.cluster.sh("mkdir unlocked");
        },
    },
    Case {
        state: "server-full",
        node: None,
        exit: 3,
        begin: |bench| {
            bench.device.as_ref().unwrap().fill();
            let printed = bench
                .cluster
                .try_sh("for i in $(seq 100000); do mkdir full$i; done");
            assert!(printed.err.contains("No space left"), "{}", printed.err);
        },
        end: |bench| {
            bench.device.as_ref().unwrap().free();
            bench.cluster.sh("mkdir -p again");
        },
    },
    Case {
        state: "store-failing",
        node: Some(3),
        exit: 3,
        begin: |bench| {
            bench.store.state().key = Some("me".into());
            let keys = bench.cluster.path("keys");
            std::fs::write(
                &keys,
                "access_key_id = \"me\"\nsecret_access_key = \"hush\"\n",
            )
            .unwrap();
            std::fs::set_permissions(&keys, PermissionsExt::from_mode(0o600)).unwrap();
            let uri = format!("s3://bucket/top?endpoint=http://{}", bench.store.address);
            let keys = keys.display().to_string();
            bench
                .cluster
                .add_node(&["--backend", &uri, "--backend-keys", &keys]);
            bench
                .cluster
                .sh("mkdir s3; setfattr -n user.tidemill.node -v 3 s3");
            bench.store.state().key = Some("another".into());
            bench.cluster.try_sh("echo refused > s3/refused");
        },
        end: |bench| bench.store.state().key = Some("me".into()),
    },
    Case {
        state: "store-offline",
        node: Some(4),
        exit: 3,
        begin: |bench| {
            let directory = bench.cluster.path("pfs");
            std::fs::create_dir_all(&directory).unwrap();
            let uri = format!("file://{}", directory.display());
            bench.cluster.add_node(&["--backend", &uri]);
            let there = directory.join("d/stored");
            bench
                .cluster
                .sh("mkdir d; setfattr -n user.tidemill.node -v 4 d; echo text > d/stored");
            wait("its files are in the backend", || there.exists());
            bench.cluster.kill_node(4);
            std::fs::rename(&directory, bench.cluster.path("unmounted")).unwrap();
            std::fs::create_dir(&directory).unwrap();
            bench.cluster.start_node(4);
            bench.cluster.wait_for_nodes(5);
        },
        end: |bench| {
            bench.cluster.kill_node(4);
            let directory = bench.cluster.path("pfs");
            std::fs::remove_dir_all(&directory).unwrap();
            std::fs::rename(bench.cluster.path("unmounted"), &directory).unwrap();
            bench.cluster.start_node(4);
            bench.cluster.wait_for_nodes(5);
        },
    },
];

#[test]
fn file_states_have_name_exit_code_and_one_log_line() {
    let options = Options {
        nodes: 3,
        server_args: ["--repair-after", "1h"].map(str::to_owned).into(),
        ..Options::default()
    };
    all(Bench::start(options, Some(("server", "24m"))), FILES);
}

/// Writes a file with two replicas, kills the node of the first replica and changes the second replica.
fn corrupt_a_replica(bench: &mut Bench) {
    assert!(bench.put("/two", &["--node", "0", "--replicas", "2"]).ok);
    let second = |bench: &Bench| -> Option<PathBuf> {
        let layout = bench.cluster.json(&["stat", "/two"]);
        let part = &layout["parts"][0];
        let object = part["object"].as_str()?.to_owned();
        let node = part["replicas"][1]["node"].as_u64()?;
        let directory = bench.cluster.node_directory(usize::try_from(node).ok()?);
        Some(directory.join(format!("objects/{}/{object}", &object[14..])))
    };
    wait("it has two replicas", || second(bench).is_some());
    let replica = second(bench).unwrap();
    wait("both are as they were written", || {
        bench
            .cluster
            .run(&["cluster", "scrub", "--wait", "/two"])
            .ok
    });
    bench.cluster.kill_node(0);
    std::fs::set_permissions(&replica, PermissionsExt::from_mode(0o644)).unwrap();
    std::fs::write(&replica, "TEXT\n").unwrap();
    bench.cluster.run(&["cluster", "scrub", "--wait", "/two"]);
}

/// Writes files until the cluster takes no more.
fn fill(bench: &mut Bench) {
    wait("the node takes files", || {
        bench.cluster.run(&["mkdir", "-p", "/large"]).ok && bench.put("/large/first", &[]).ok
    });
    let local = bench.cluster.path("large").display().to_string();
    for size in [8_000_000, 500_000] {
        std::fs::write(&local, vec![0; size]).unwrap();
        let put = |number: u32| {
            let to = format!("/large/{size}.{number}");
            bench.cluster.run(&["put", &local, &to]).ok
        };
        assert!((0..200).any(|number| !put(number)), "it is never full");
    }
}

/// A small cluster: no node, full nodes, an incomplete rebuild.
#[test]
fn small_cluster_states_have_name_exit_code_and_log_line() {
    let options = Options {
        nodes: 0,
        mount: false,
        capacity: Some("64M"),
        ..Options::default()
    };
    let Some(mut bench) = Bench::start(options, None) else {
        return;
    };
    let (code, shown) = bench.json("cluster health");
    assert_eq!(
        (code, &shown["states"][0]["name"]),
        (Some(3), &"no-node".into())
    );
    bench.cluster.add_node(&[]);
    let full = Case {
        state: "cluster-full",
        node: None,
        exit: 3,
        begin: fill,
        end: |bench| assert!(bench.cluster.run(&["rm", "-r", "/large"]).ok),
    };
    (full.begin)(&mut bench);
    for command in ["cluster health", "status"] {
        wait("the full cluster is named", || {
            bench.find(command, &full).is_some()
        });
    }
    assert_eq!(bench.json("cluster health").0, Some(full.exit));
    (full.end)(&mut bench);
    wait("the cluster takes files again", || {
        bench.find("cluster health", &full).is_none()
    });
    wait("there is space again", || bench.put("/kept", &[]).ok);
    let object = bench.cluster.object_files("/kept").remove(0);
    bench.cluster.kill_server();
    std::fs::remove_file(object).unwrap();
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(bench.cluster.path(&format!("server/server.db{suffix}")));
    }
    bench.cluster.forget_log();
    let (server, node) = (
        bench.cluster.path("server"),
        bench.cluster.node_directory(0),
    );
    let paths = [server, node].map(|path| path.display().to_string());
    let rebuilt = bench.cluster.run(&[
        "--json",
        "server",
        "recover",
        "--data-dir",
        &paths[0],
        &paths[1],
    ]);
    assert_eq!(rebuilt.code, Some(1), "{}{}", rebuilt.out, rebuilt.err);
    let members: Value = serde_json::from_str(&rebuilt.out).unwrap();
    assert_eq!(members["members"], serde_json::json!([0]));
    bench.cluster.start_server();
    bench.cluster.wait_for_nodes(1);
    let less = Case {
        state: "rebuilt-incomplete",
        node: None,
        exit: 3,
        begin: |_| {},
        end: |_| {},
    };
    assert!(bench.find("cluster health", &less).is_some());
    wait("the log names it", || bench.logged(&less) == 1);
}

/// A node that is taken out ends, does not start again, is left out by `server recover`, and is no member after it.
#[test]
fn removed_node_stays_out_after_recovery() {
    let options = Options {
        nodes: 3,
        mount: false,
        ..Options::default()
    };
    let Some(mut bench) = Bench::start(options, None) else {
        return;
    };
    assert!(bench.put("/kept", &["--node", "0"]).ok);
    let cluster = &mut bench.cluster;
    assert!(cluster.run(&["node", "drain", "2", "--wait"]).ok);
    wait("the node is removed", || {
        cluster.run(&["node", "remove", "2"]).ok
    });
    wait("its process has ended", || cluster.node_code(2) == Some(6));
    cluster.start_node(2);
    wait("it does not start again", || {
        cluster.node_code(2) == Some(6)
    });
    let log = cluster.log("node-2.log");
    assert_eq!(
        log.matches("was taken out of the cluster, and does not start")
            .count(),
        2,
        "{log}"
    );
    Cluster::wait_for_log();
    cluster.kill_server();
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(cluster.path(&format!("server/server.db{suffix}")));
    }
    let server = cluster.path("server").display().to_string();
    let directories = [0, 1, 2].map(|index| cluster.node_directory(index).display().to_string());
    let [zero, one, two] = directories.each_ref().map(String::as_str);
    let rebuilt = cluster.json(&["server", "recover", "--data-dir", &server, zero, one, two]);
    assert_eq!(rebuilt["members"], serde_json::json!([0, 1]));
    assert_eq!(rebuilt["removed"], serde_json::json!([2]));
    cluster.start_server();
    cluster.wait_for_nodes(2);
    assert_eq!(cluster.run(&["cat", "/kept"]).out, "text\n");
    // Without its mark it is not let in, either.
    let forget = "DELETE FROM identity WHERE key = 'removed'";
    let database = cluster.node_directory(2).join("node.db");
    assert!(
        printed(
            Command::new("sqlite3")
                .arg(database)
                .arg(forget)
                .output()
                .unwrap()
        )
        .ok
    );
    cluster.start_node(2);
    wait("it is refused", || cluster.node_code(2) == Some(6));
    let nodes = cluster.json(&["status"])["nodes"].as_array().unwrap().len();
    assert_eq!(nodes, 2);
}

/// Files of a removed node are reported as lost for good, not as offline.
#[test]
fn files_of_abandoned_node_are_lost_for_good() {
    let options = Options {
        mount: false,
        ..Options::default()
    };
    let Some(mut bench) = Bench::start(options, None) else {
        return;
    };
    assert!(bench.put("/gone", &["--node", "1"]).ok);
    bench.cluster.kill_node(1);
    let lost = |bench: &Bench| {
        let (code, shown) = bench.json("cluster health");
        let names: Vec<Value> = shown["states"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["name"].clone())
            .collect();
        (code, names, shown["files"].clone())
    };
    wait("it is offline", || lost(&bench).0 == Some(4));
    let (_, names, files) = lost(&bench);
    assert_eq!(names, ["data-unavailable", "node-offline"]);
    assert_eq!(files[0]["what"], "its nodes do not answer");
    wait("it is declared failed", || {
        bench
            .cluster
            .run(&["node", "remove", "1", "--lose", "--yes"])
            .ok
    });
    let (code, names, files) = lost(&bench);
    assert_eq!(
        (code, names.as_slice()),
        (Some(4), &["data-lost".into()][..])
    );
    assert_eq!(files[0]["what"], "its nodes were removed from the cluster");
    assert!(bench.cluster.run(&["rm", "/gone"]).ok);
    wait("all is well", || lost(&bench).0 == Some(0));
}

/// A command or a process that can't go on says so by a word and an exit code.
#[test]
fn failing_commands_and_processes_name_their_state() {
    let options = Options {
        nodes: 1,
        mount: false,
        remote: true,
        ..Options::default()
    };
    let Some(mut cluster) = Cluster::with(options) else {
        return;
    };
    let broken = cluster.path("broken");
    std::fs::create_dir(&broken).unwrap();
    std::fs::write(broken.join("node.db"), vec![7; 8192]).unwrap();
    let forged = cluster.path("forged");
    let token = std::fs::read_to_string(cluster.token_file()).unwrap();
    let line = token
        .lines()
        .find(|line| line.starts_with("token: "))
        .unwrap();
    let other = format!("token: {}", "0".repeat(line.len() - "token: ".len()));
    std::fs::write(&forged, token.replace(line, &other)).unwrap();
    std::fs::set_permissions(&forged, PermissionsExt::from_mode(0o600)).unwrap();
    let (address, own) = (cluster.address(), cluster.token_file());
    let port = address.split_once("//").unwrap().1.to_owned();
    let text = |path: &Path| path.display().to_string();
    let node = |directory: PathBuf, id: &str, listen: &str| -> Vec<String> {
        let words = ["node", "run", "--id", id, "--listen", listen, "--data-dir"];
        words
            .map(str::to_owned)
            .into_iter()
            .chain([text(&directory)])
            .collect()
    };
    let server = |directory: &str| {
        let words = ["server", "run", "--listen", "127.0.0.1:0", "--data-dir"];
        words
            .map(str::to_owned)
            .into_iter()
            .chain([text(&cluster.path(directory))])
            .collect::<Vec<String>>()
    };
    let any = "127.0.0.1:0";
    let commands: BTreeMap<&str, Vec<String>> = [
        ("token-refused", vec!["ls".to_owned(), "/".to_owned()]),
        ("other-directory", node(cluster.node_directory(0), "5", any)),
        ("port-taken", node(cluster.path("fresh"), "6", &port)),
        ("database-broken", node(broken, "7", any)),
        ("directory-in-use", server("server")),
    ]
    .into();
    for (state, args) in commands {
        if state == "other-directory" {
            cluster.kill_node(0);
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidemill"));
        let token = if state == "token-refused" {
            &forged
        } else {
            &own
        };
        command
            .args(["--json", "--server", &address, "--token-file"])
            .arg(token)
            .args(args);
        named(&printed(command.output().unwrap()), state, 1);
    }
    without_server(&mut cluster);
}

fn without_server(cluster: &mut Cluster) {
    cluster.kill_server();
    named(
        &cluster.run(&["--json", "cluster", "health"]),
        "server-offline",
        5,
    );
    let nowhere = tempfile::tempdir().unwrap();
    let mut unnamed = Command::new(env!("CARGO_BIN_EXE_tidemill"));
    unnamed
        .env_remove("TIDEMILL_SERVER")
        .args(["--json", "--dir"])
        .arg(nowhere.path())
        .arg("status");
    let unnamed = printed(unnamed.output().unwrap());
    named(&unnamed, "server-offline", 5);
    assert!(unnamed.err.contains("TIDEMILL_SERVER"), "{}", unnamed.err);
}

fn named(ended: &Printed, state: &str, code: i32) {
    assert_eq!(
        ended.code,
        Some(code),
        "{state}: {}{}",
        ended.out,
        ended.err
    );
    let value: Value = serde_json::from_str(&ended.out).unwrap_or_default();
    assert_eq!(value["state"], state, "{}{}", ended.out, ended.err);
    assert!(
        ended.err.starts_with("error: ") || ended.err.contains("\nerror: "),
        "{}",
        ended.err
    );
}

/// The book has a row for each state, with its exit code, in cells that fit.
#[test]
fn troubleshooting_page_has_a_row_for_each_state() {
    let book = include_str!("../../docs/troubleshooting.md");
    let (_, section) = book
        .split_once("\n## States that need an administrator\n")
        .unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let mut rows: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        for cell in &cells {
            assert!(cell.split_whitespace().count() <= 12, "{cell}");
        }
        rows.entry(cells[0].trim_matches('`')).or_insert(cells);
    }
    for kind in condition::ALL {
        let row = rows
            .get(kind.name)
            .unwrap_or_else(|| panic!("no row for {}", kind.name));
        assert_eq!(
            (row.len(), row[1]),
            (5, kind.exit.to_string().as_str()),
            "{row:?}"
        );
    }
}
