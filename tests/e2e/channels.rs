//! Tests channels of workspaces: one order, no acknowledged message lost, no message twice.

use crate::cluster::{Cluster, Device, Options, wait};
use serde_json::Value;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Stdio};

const OTHER_USER: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups";
const MEMORY_INDEX: usize = 2;
const LINES: usize = 3000;

fn start() -> Option<Cluster> {
    let mut cluster = Cluster::start()?;
    cluster.add_node(&["--tier", "memory", "--capacity", "128MiB"]);
    cluster.run(&["workspace", "create", "r", "--quota", "64MiB"]);
    Some(cluster)
}

fn channel(cluster: &Cluster, args: &[&str]) -> Child {
    let mut command = cluster.tidemill();
    command.arg("channel").args(args);
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    piped.stderr(Stdio::piped()).spawn().unwrap()
}

/// Returns the messages that a consumer received, as sender and number, in order.
fn lines(out: &[u8]) -> Vec<(String, usize)> {
    let lines = std::str::from_utf8(out).unwrap().lines();
    let line = lines.map(|line| line.split_once(' ').unwrap());
    line.map(|(who, what)| (who.to_owned(), what.parse().unwrap()))
        .collect()
}

fn state(cluster: &Cluster, name: &str) -> Value {
    let listed = cluster.json(&["channel", "list", "r"]);
    let mut listed = listed.as_array().unwrap().iter();
    listed.find(|one| one["channel"] == name).unwrap()["state"].clone()
}

/// Two senders send at once, while the node with the channel, the server and a consumer are killed repeatedly.
#[test]
#[expect(clippy::too_many_lines, reason = "one story")]
fn channel_delivers_each_message_once_in_order_despite_kills() {
    let Some(mut cluster) = start() else { return };
    let made = cluster.json(&["channel", "create", "r", "c", "--capacity", "256KiB"]);
    assert_eq!((&made["memory"], &made["node"]), (&true.into(), &2.into()));
    let all = (2 * LINES).to_string();
    let read = |consumer: &str, count: &str| {
        let args = [
            "receive",
            "r",
            "c",
            "--consumer",
            consumer,
            "-n",
            count,
            "--lines",
            "--wait",
            "--timeout",
            "120s",
        ];
        channel(&cluster, &args)
    };
    let mut slow = read("slow", &all);
    let mut child = read("all", &all);
    // A consumer that starts later begins with the messages that not all others have read by then.
    wait("both read", || {
        ["slow", "all"]
            .iter()
            .all(|one| state(&cluster, "c")["consumers"][*one].is_u64())
    });
    // No process waits for a consumer that does not empty its pipe.
    let slow = std::thread::spawn(move || slow.done());
    let senders = ["a", "b"].map(|who| {
        let mut child = channel(
            &cluster,
            &["send", "r", "c", "--lines", "--wait", "--timeout", "120s"],
        );
        let mut into = child.stdin.take().unwrap();
        let writing = std::thread::spawn(move || {
            for number in 0..LINES {
                // The messages are long enough to fill the channel: senders wait for consumers.
                writeln!(into, "{who} {number:0200}").unwrap();
                if number % 50 == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
            }
        });
        (child, writing)
    });
    let mut got = Vec::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    for round in 0..4 {
        for _ in 0..300 {
            let mut line = Vec::new();
            assert!(out.read_until(b'\n', &mut line).unwrap() > 0);
            got.extend(line);
        }
        match round {
            0 | 2 => {
                cluster.kill_node(MEMORY_INDEX);
                cluster.start_node(MEMORY_INDEX);
            }
            1 => {
                cluster.kill_server();
                assert!(
                    reads_on(&mut out, &mut got),
                    "it continues without a server"
                );
                cluster.start_server();
            }
            _ => {
                child.kill().unwrap();
                child.wait().unwrap();
                // Its output is in the pipe, up to a line in which it may have been killed.
                out.read_to_end(&mut got).unwrap();
                got.truncate(1 + got.iter().rposition(|byte| *byte == b'\n').unwrap());
            }
        }
    }
    cluster.wait_for_nodes(3);
    // Messages that it received but did not acknowledge are delivered again; no message is missing.
    let mut rest = Vec::new();
    let next = state(&cluster, "c")["consumers"]["all"].as_u64().unwrap();
    let left = (2 * LINES as u64 - next).to_string();
    let args = [
        "receive",
        "r",
        "c",
        "--consumer",
        "all",
        "-n",
        &left,
        "--lines",
        "--wait",
        "--timeout",
        "120s",
    ];
    rest.extend(channel(&cluster, &args).done());
    let slow = slow.join().unwrap();
    for (mut sender, writing) in senders {
        writing.join().unwrap();
        let printed = String::from_utf8(sender.done()).unwrap();
        assert!(printed.contains("messages"), "{printed}");
    }
    let slow = lines(&slow);
    assert_eq!(slow.len(), 2 * LINES);
    let mut next_of: HashMap<&str, usize> = HashMap::new();
    for (who, what) in &slow {
        let next = next_of.entry(who).or_default();
        assert_eq!(what, next, "{who}: no message twice, none missing");
        *next += 1;
    }
    let (got, rest) = (lines(&got), lines(&rest));
    let next = usize::try_from(next).unwrap();
    assert!(
        got.len() >= next,
        "acknowledged messages were written before"
    );
    assert_eq!(got, slow[..got.len()]);
    assert_eq!(rest, slow[next..], "all consumers see one order");
}

/// Reads for a while.
fn reads_on(out: &mut impl BufRead, got: &mut Vec<u8>) -> bool {
    (0..300).all(|_| {
        let mut line = Vec::new();
        let read = out.read_until(b'\n', &mut line).unwrap() > 0;
        got.extend(line);
        read
    })
}

trait Output {
    fn done(&mut self) -> Vec<u8>;
}

impl Output for Child {
    fn done(&mut self) -> Vec<u8> {
        drop(self.stdin.take());
        let mut out = Vec::new();
        self.stdout.as_mut().unwrap().read_to_end(&mut out).unwrap();
        let mut err = String::new();
        self.stderr
            .as_mut()
            .unwrap()
            .read_to_string(&mut err)
            .unwrap();
        assert!(self.wait().unwrap().success(), "{err}");
        out
    }
}

/// Limits and rights of a channel, and its ends: with its workspace, and with the memory that stored it.
#[test]
#[expect(clippy::too_many_lines, reason = "one story")]
fn channel_is_bounded_and_ends_with_its_workspace_or_memory() {
    let Some(mut cluster) = start() else { return };
    for wrong in ["", "..", ".x", "a/b", &"a".repeat(65)] {
        let printed = cluster.run(&["channel", "create", "r", wrong]);
        assert!(
            !printed.ok && printed.err.contains("can't be the name"),
            "{}",
            printed.err
        );
    }
    let many = |size: &str| cluster.run(&["channel", "create", "r", "c", "--capacity", size]);
    for (size, why) in [("1KiB", "64 KiB"), ("8GiB", "4 GiB"), ("65MiB", "quota")] {
        let printed = many(size);
        assert!(!printed.ok && printed.err.contains(why), "{}", printed.err);
    }
    assert!(many("1MiB").ok);
    assert!(many("1MiB").err.contains("already"));
    let workspaces = cluster.json(&["workspace", "list"]);
    assert_eq!(workspaces[0]["used_bytes"], 1 << 20, "reserved at once");
    let message = cluster.path("message");
    std::fs::write(&message, vec![b'x'; 400_000]).unwrap();
    let message = message.to_str().unwrap().to_owned();
    let send = |cluster: &Cluster, wait: &[&str]| {
        cluster.run(&[&["channel", "send", "r", "c", &message], wait].concat())
    };
    assert!(send(&cluster, &[]).ok && send(&cluster, &[]).ok);
    let full = send(&cluster, &["--wait", "--timeout", "1s"]);
    assert!(!full.ok && full.err.contains("is full"), "{}", full.err);
    let long = cluster.path("long");
    std::fs::write(&long, vec![0; (1 << 20) + 1]).unwrap();
    let printed = cluster.run(&["channel", "send", "r", "c", long.to_str().unwrap()]);
    assert!(
        !printed.ok && printed.err.contains("longer"),
        "{}",
        printed.err
    );
    // A message that one consumer has not read is kept for it; a consumer that was removed delays no other.
    let receive = |cluster: &Cluster, more: &[&str]| {
        let mut args = vec!["--json", "channel", "receive", "r", "c"];
        args.extend(more);
        cluster.run(&args)
    };
    assert!(receive(&cluster, &["--consumer", "one", "-n", "2"]).ok);
    assert!(send(&cluster, &[]).ok, "all consumers have read");
    assert!(
        receive(&cluster, &["--consumer", "two", "--from", "99"])
            .err
            .contains("no further message")
    );
    assert!(send(&cluster, &[]).ok && !send(&cluster, &[]).ok);
    assert!(
        cluster
            .run(&["channel", "delete-consumer", "r", "c", "one"])
            .ok
    );
    assert!(send(&cluster, &[]).ok, "two has read up to there");
    let got = receive(&cluster, &["--from", "0"]).out;
    let got: Value = serde_json::from_str(&got).unwrap();
    assert_eq!(got["number"], 3, "the first that is there");
    // Other users have no access to it.
    let tidemill = format!("{OTHER_USER} {:?}", cluster.tidemill());
    for command in [
        "list r",
        "receive r c",
        "receive r c --consumer two",
        "delete-consumer r c two",
        "delete r c",
        "create r theirs",
        "send r c /etc/hostname",
    ] {
        let printed = cluster.try_sh(&format!("{tidemill} channel {command}"));
        assert!(!printed.ok, "{command}: {}{}", printed.out, printed.err);
    }
    // Users with read permission for the workspace may receive, and delay no other; users who lose the permission get an error at once.
    cluster.sh("chmod 755 workspaces/r");
    assert!(
        cluster
            .try_sh(&format!("{tidemill} channel receive r c"))
            .ok
    );
    for command in [
        "receive r c --consumer theirs",
        "send r c /etc/hostname",
        "delete-consumer r c two",
    ] {
        assert!(!cluster.try_sh(&format!("{tidemill} channel {command}")).ok);
    }
    // The host ends that has the channel in its memory.
    cluster.kill_mount();
    cluster.lose_memory(MEMORY_INDEX);
    cluster.start_node(MEMORY_INDEX);
    cluster.wait_for_nodes(3);
    for printed in [
        send(&cluster, &["--wait", "--timeout", "5s"]),
        receive(&cluster, &["--wait", "--timeout", "5s"]),
    ] {
        assert!(
            !printed.ok && printed.err.contains("lost with the memory"),
            "{}",
            printed.err
        );
    }
    assert_eq!(cluster.json(&["channel", "list", "r"])[0]["lost"], true);
    assert!(cluster.run(&["channel", "delete", "r", "c"]).ok);
    assert!(
        cluster
            .run(&["channel", "create", "r", "c", "--capacity", "1MiB"])
            .ok
    );
    assert!(send(&cluster, &["--wait", "--timeout", "5s"]).ok);
    let waits = channel(
        &cluster,
        &[
            "receive",
            "r",
            "c",
            "--from",
            "1",
            "--wait",
            "--timeout",
            "60s",
        ],
    );
    assert!(cluster.run(&["workspace", "delete", "r"]).ok);
    let ended = waits.wait_with_output().unwrap();
    let why = String::from_utf8_lossy(&ended.stderr);
    assert!(
        !ended.status.success()
            && (why.contains("ended with its workspace")
                || why.contains("workspace r does not exist")),
        "{why}"
    );
    let kept = |index| {
        let directory = cluster.node_directory(index).join("channels");
        std::fs::read_dir(Path::new(&directory)).unwrap().count()
    };
    wait("nothing of it is left", || {
        (0..3).all(|index| kept(index) == 0)
    });
}

/// A device without free space accepts the messages for which the channel has reserved space, and accepts no further
/// channel.
#[test]
fn full_device_accepts_messages_within_channel_reservation() {
    let mut device = None;
    let options = Options {
        nodes: 1,
        ..Options::default()
    };
    let prepare = |cluster: &Cluster| device = Some(Device::new(cluster.node_directory(0), "96m"));
    let Some(cluster) = Cluster::prepared(options, prepare) else {
        return;
    };
    let device = device.unwrap();
    cluster.run(&["workspace", "create", "r"]);
    assert!(
        cluster
            .run(&["channel", "create", "r", "c", "--capacity", "1MiB"])
            .ok
    );
    device.fill();
    let message = cluster.path("message");
    std::fs::write(&message, vec![b'm'; 900_000]).unwrap();
    let message = message.to_str().unwrap();
    for number in 0..20 {
        let sent = cluster.json(&["channel", "send", "r", "c", message]);
        assert_eq!(sent["first"], number);
        let got = cluster.run(&["channel", "receive", "r", "c", "--consumer", "one"]);
        assert!(got.ok && got.out.len() == 900_000, "{}", got.err);
    }
    let more = cluster.run(&["channel", "create", "r", "d", "--capacity", "1MiB"]);
    assert!(!more.ok, "{}", more.out);
    assert_eq!(
        cluster
            .json(&["channel", "list", "r"])
            .as_array()
            .unwrap()
            .len(),
        1
    );
    device.free();
}
