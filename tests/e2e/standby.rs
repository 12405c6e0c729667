//! Two servers with a log in NATS: the second one takes over when the first one is killed, hangs or is stopped.

use crate::broker::Broker;
use crate::cluster::{Cluster, Options, PATIENCE, spawn, wait};
use crate::require::skip;
use rustix::process::Signal;
use serde_json::Value;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Cluster with two servers.
struct Pair {
    cluster: Cluster,
    broker: Broker,
    servers: [Option<Child>; 2],
    listen: [String; 2],
}

fn free_addresses() -> [String; 2] {
    let bound = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    bound.map(|one| one.local_addr().unwrap().to_string())
}

impl Pair {
    fn start(mount: bool) -> Option<Self> {
        let broker = Broker::start(1, skip)?;
        let listen = free_addresses();
        let endpoint = format!("https://{},{}", listen[0], listen[1]);
        let options = Options {
            endpoint: Some(endpoint),
            nodes: 0,
            mount: false,
            ..Options::default()
        };
        let cluster = Cluster::without_server(options)?;
        let mut pair = Self {
            cluster,
            broker,
            servers: [None, None],
            listen,
        };
        pair.begin(0);
        wait("the first server leads", || {
            pair.cluster.run(&["status"]).ok
        });
        let key = pair.cluster.path("server/cluster.key");
        std::fs::create_dir(pair.directory(1)).unwrap();
        std::fs::copy(key, pair.directory(1).join("cluster.key")).unwrap();
        pair.begin(1);
        pair.cluster.add_node(&[]);
        pair.wait_for_standby();
        if mount {
            pair.cluster.start_mount();
        }
        Some(pair)
    }

    fn directory(&self, server: usize) -> PathBuf {
        self.cluster.path(["server", "standby"][server])
    }

    fn command(&self, server: usize) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidemill"));
        command.args(["server", "run", "--data-dir"]);
        command.arg(self.directory(server));
        command.args([
            "--listen",
            &self.listen[server],
            "--log",
            &self.broker.url(),
        ]);
        command
    }

    fn begin(&mut self, server: usize) {
        let log = self.cluster.path(["server.log", "standby.log"][server]);
        self.servers[server] = Some(spawn(&mut self.command(server), &log));
    }

    fn kill(&mut self, server: usize) {
        let mut child = self.servers[server].take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn signal(&self, server: usize, signal: Signal) {
        let child = self.servers[server].as_ref().unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
    }

    /// Returns the state of the log; null while no server leads.
    fn replication(&self) -> Value {
        let printed = self.cluster.run(&["--json", "status"]);
        let status: Value = serde_json::from_str(&printed.out).unwrap_or_default();
        status["replication"].clone()
    }

    fn wait_for_standby(&self) {
        wait("the leader knows its standby", || {
            let replication = self.replication();
            replication["standbys"]
                .as_array()
                .is_some_and(|all| !all.is_empty())
        });
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for server in self.servers.iter_mut().flatten() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

#[test]
fn standby_takes_over_and_programs_see_no_error() {
    let Some(mut pair) = Pair::start(true) else {
        return;
    };
    pair.cluster
        .sh("mkdir d; echo one > d/a; exec 3> d/open; echo begun >&3");
    let open = std::fs::File::create(pair.cluster.at("d/held")).unwrap();
    let mut leader = 0;
    for (round, way) in ["kill", "stop", "end", "promote"].into_iter().enumerate() {
        let begun = Instant::now();
        match way {
            "promote" => std::fs::write(pair.directory(1 - leader).join("promote"), "").unwrap(),
            "kill" => pair.kill(leader),
            "stop" => pair.signal(leader, Signal::STOP),
            _ => pair.signal(leader, Signal::TERM),
        }
        std::fs::write(pair.cluster.at(&format!("d/{way}")), way).unwrap();
        let pause = begun.elapsed();
        assert!(pause < Duration::from_secs(25), "{way}: {pause:?}");
        if way == "stop" {
            // The old leader can't acknowledge anything, and becomes a standby.
            pair.signal(leader, Signal::CONT);
        } else if way != "promote" {
            if way == "end" {
                pair.servers[leader].take().unwrap().wait().unwrap();
            }
            pair.begin(leader);
        }
        leader = 1 - leader;
        wait("the other server leads", || {
            pair.replication()["term"] == round as u64 + 2
        });
        pair.wait_for_standby();
        let listed = pair.cluster.run(&["ls", "/d"]).out;
        assert!(listed.contains(way), "{listed}");
    }
    drop(open);
    let listed = pair
        .cluster
        .sh("cat d/a d/open d/kill d/stop d/end d/promote");
    assert_eq!(listed, "one\nbegun\nkillstopendpromote");
    assert!(pair.cluster.run(&["cluster", "fsck"]).ok);
}

#[test]
fn leader_without_its_log_acknowledges_nothing() {
    let Some(mut pair) = Pair::start(false) else {
        return;
    };
    assert!(pair.cluster.run(&["mkdir", "/before"]).ok);
    pair.broker.stop(0);
    let mut waiting = pair.cluster.tidemill();
    let mut waiting = waiting.args(["mkdir", "/during"]).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(3));
    assert!(waiting.try_wait().unwrap().is_none(), "it was acknowledged");
    pair.broker.go_on(0);
    let until = Instant::now() + PATIENCE;
    let ended = loop {
        match waiting.try_wait().unwrap() {
            Some(ended) => break ended,
            None => assert!(Instant::now() < until),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(ended.success());
    let listed = pair.cluster.run(&["ls", "/"]).out;
    assert!(
        listed.contains("before") && listed.contains("during"),
        "{listed}"
    );
    // Both servers end in order, although the log does not answer.
    pair.broker.stop(0);
    for server in [1, 0] {
        pair.signal(server, Signal::TERM);
        let ended = pair.servers[server].take().unwrap().wait().unwrap();
        assert!(ended.success(), "{ended}");
    }
}

#[test]
fn databases_that_are_no_copy_of_the_log_are_refused() {
    let Some(mut pair) = Pair::start(false) else {
        return;
    };
    assert!(pair.cluster.run(&["mkdir", "/kept"]).ok);
    pair.kill(1);
    pair.kill(0);
    let refused = |command: &mut Command| {
        let printed = crate::cluster::printed(command.output().unwrap());
        assert!(!printed.ok, "{}", printed.out);
        printed.err
    };
    // A server without its log would lose changes.
    let mut without = Command::new(env!("CARGO_BIN_EXE_tidemill"));
    without
        .args(["server", "run", "--data-dir"])
        .arg(pair.directory(0));
    let error = refused(&mut without);
    assert!(error.contains("--log"), "{error}");
    // A database that changed without the log is not replaced.
    std::fs::remove_file(pair.directory(0).join("replicated")).unwrap();
    let error = refused(&mut pair.command(0));
    assert!(error.contains("not a copy"), "{error}");
    // The log is as long as this server remembers.
    std::fs::write(pair.directory(1).join("replicated"), "1000000\n").unwrap();
    let error = refused(&mut pair.command(1));
    assert!(error.contains("ends at message"), "{error}");
    // The state is that of the log.
    std::fs::remove_dir_all(pair.directory(1)).unwrap();
    std::fs::create_dir(pair.directory(1)).unwrap();
    let key = pair.directory(0).join("cluster.key");
    std::fs::copy(key, pair.directory(1).join("cluster.key")).unwrap();
    pair.begin(1);
    // The last leader may answer reads, as far as this server knows: an administrator knows better.
    std::fs::write(pair.directory(1).join("promote"), "").unwrap();
    wait("a new server leads", || {
        pair.cluster.run(&["ls", "/kept"]).ok
    });
}
