//! Tests channels of rooms: one order, no acknowledged message lost, no message twice.

use crate::array::{Array, Device, Options, wait};
use serde_json::Value;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Stdio};

const STRANGER: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups";
const MEMORY_INDEX: usize = 2;
const LINES: usize = 3000;

fn start() -> Option<Array> {
    let mut array = Array::start()?;
    array.add_node(&["--medium", "memory", "--capacity", "128MiB"]);
    array.run(&["room", "create", "r", "--quota", "64MiB"]);
    Some(array)
}

fn channel(array: &Array, args: &[&str]) -> Child {
    let mut command = array.tidemill();
    command.arg("channel").args(args);
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    piped.stderr(Stdio::piped()).spawn().unwrap()
}

/// Returns the messages that a reader received, as sender and number, in order.
fn lines(out: &[u8]) -> Vec<(String, usize)> {
    let lines = std::str::from_utf8(out).unwrap().lines();
    let line = lines.map(|line| line.split_once(' ').unwrap());
    line.map(|(who, what)| (who.to_owned(), what.parse().unwrap()))
        .collect()
}

fn state(array: &Array, name: &str) -> Value {
    let listed = array.json(&["channel", "list", "r"]);
    let mut listed = listed.as_array().unwrap().iter();
    listed.find(|one| one["channel"] == name).unwrap()["state"].clone()
}

/// Two senders send at once, while the node with the channel, the server and a reader are killed repeatedly.
#[test]
#[expect(clippy::too_many_lines, reason = "one story")]
fn channel_delivers_each_message_once_in_order_despite_kills() {
    let Some(mut array) = start() else { return };
    let made = array.json(&["channel", "create", "r", "c", "--capacity", "256KiB"]);
    assert_eq!((&made["memory"], &made["node"]), (&true.into(), &2.into()));
    let all = (2 * LINES).to_string();
    let read = |reader: &str, count: &str| {
        let args = [
            "receive", "r", "c", "--reader", reader, "-n", count, "--lines", "--wait", "120s",
        ];
        channel(&array, &args)
    };
    let mut slow = read("slow", &all);
    let mut child = read("all", &all);
    // A reader that starts later begins with the messages that not all others have read by then.
    wait("both read", || {
        ["slow", "all"]
            .iter()
            .all(|one| state(&array, "c")["readers"][*one].is_u64())
    });
    // No process waits for a reader that does not empty its pipe.
    let slow = std::thread::spawn(move || slow.done());
    let senders = ["a", "b"].map(|who| {
        let mut child = channel(&array, &["send", "r", "c", "--lines", "--wait", "120s"]);
        let mut into = child.stdin.take().unwrap();
        let writing = std::thread::spawn(move || {
            for number in 0..LINES {
                // The messages are long enough to fill the channel: senders wait for readers.
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
                array.kill_node(MEMORY_INDEX);
                array.start_node(MEMORY_INDEX);
            }
            1 => {
                array.kill_server();
                assert!(reads_on(&mut out, &mut got), "it goes on without a server");
                array.start_server();
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
    array.wait_for_nodes(3);
    // Messages that it received but did not acknowledge are delivered again; no message is missing.
    let mut rest = Vec::new();
    let next = state(&array, "c")["readers"]["all"].as_u64().unwrap();
    let left = (2 * LINES as u64 - next).to_string();
    let args = [
        "receive", "r", "c", "--reader", "all", "-n", &left, "--lines", "--wait", "120s",
    ];
    rest.extend(channel(&array, &args).done());
    let slow = slow.join().unwrap();
    for (mut sender, writing) in senders {
        writing.join().unwrap();
        let said = String::from_utf8(sender.done()).unwrap();
        assert!(said.contains("messages"), "{said}");
    }
    let slow = lines(&slow);
    assert_eq!(slow.len(), 2 * LINES);
    let mut next_of: HashMap<&str, usize> = HashMap::new();
    for (who, what) in &slow {
        let next = next_of.entry(who).or_default();
        assert_eq!(what, next, "{who}: none twice, none left out");
        *next += 1;
    }
    let (got, rest) = (lines(&got), lines(&rest));
    let next = usize::try_from(next).unwrap();
    assert!(
        got.len() >= next,
        "what was acknowledged was written before"
    );
    assert_eq!(got, slow[..got.len()]);
    assert_eq!(rest, slow[next..], "all see one order");
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

/// Limits and rights of a channel, and its ends: with its room, and with the memory that stored it.
#[test]
#[expect(clippy::too_many_lines, reason = "one story")]
fn channel_is_bounded_and_ends_with_its_room_or_memory() {
    let Some(mut array) = start() else { return };
    for wrong in ["", "..", ".x", "a/b", &"a".repeat(65)] {
        let said = array.run(&["channel", "create", "r", wrong]);
        assert!(
            !said.ok && said.err.contains("can't be the name"),
            "{}",
            said.err
        );
    }
    let many = |size: &str| array.run(&["channel", "create", "r", "c", "--capacity", size]);
    for (size, why) in [("1KiB", "64 KiB"), ("8GiB", "4 GiB"), ("65MiB", "quota")] {
        let said = many(size);
        assert!(!said.ok && said.err.contains(why), "{}", said.err);
    }
    assert!(many("1MiB").ok);
    assert!(many("1MiB").err.contains("already"));
    let rooms = array.json(&["room", "list"]);
    assert_eq!(rooms[0]["used_bytes"], 1 << 20, "promised at once");
    let message = array.path("message");
    std::fs::write(&message, vec![b'x'; 400_000]).unwrap();
    let message = message.to_str().unwrap().to_owned();
    let send = |array: &Array, wait: &str| {
        array.run(&["channel", "send", "r", "c", &message, "--wait", wait])
    };
    assert!(send(&array, "0").ok && send(&array, "0").ok);
    let full = send(&array, "1s");
    assert!(!full.ok && full.err.contains("is full"), "{}", full.err);
    let long = array.path("long");
    std::fs::write(&long, vec![0; (1 << 20) + 1]).unwrap();
    let said = array.run(&["channel", "send", "r", "c", long.to_str().unwrap()]);
    assert!(!said.ok && said.err.contains("longer"), "{}", said.err);
    // A message that one reader has not read is kept for it; a reader that was removed delays no other.
    let receive = |array: &Array, more: &[&str]| {
        let mut args = vec!["--json", "channel", "receive", "r", "c"];
        args.extend(more);
        array.run(&args)
    };
    assert!(receive(&array, &["--reader", "one", "-n", "2"]).ok);
    assert!(send(&array, "0").ok, "all who read have read");
    assert!(
        receive(&array, &["--reader", "two", "--from", "99"])
            .err
            .contains("no further message")
    );
    assert!(send(&array, "0").ok && !send(&array, "0").ok);
    assert!(array.run(&["channel", "forget", "r", "c", "one"]).ok);
    assert!(send(&array, "0").ok, "two has read up to there");
    let got = receive(&array, &["--from", "0"]).out;
    let got: Value = serde_json::from_str(&got).unwrap();
    assert_eq!(got["number"], 3, "the first that is there");
    // Other users have no access to it.
    let tidemill = format!("{STRANGER} {:?}", array.tidemill());
    for command in [
        "list r",
        "receive r c",
        "receive r c --reader two",
        "forget r c two",
        "remove r c",
        "create r theirs",
        "send r c /etc/hostname",
    ] {
        let said = array.try_sh(&format!("{tidemill} channel {command}"));
        assert!(!said.ok, "{command}: {}{}", said.out, said.err);
    }
    // Users with read permission for the room may receive, and delay no other; users who lose the permission get an error at once.
    array.sh("chmod 755 rooms/r");
    assert!(array.try_sh(&format!("{tidemill} channel receive r c")).ok);
    for command in [
        "receive r c --reader theirs",
        "send r c /etc/hostname",
        "forget r c two",
    ] {
        assert!(!array.try_sh(&format!("{tidemill} channel {command}")).ok);
    }
    // The host ends that has the channel in its memory.
    array.kill_mount();
    array.lose_memory(MEMORY_INDEX);
    array.start_node(MEMORY_INDEX);
    array.wait_for_nodes(3);
    for said in [send(&array, "5s"), receive(&array, &["--wait", "5s"])] {
        assert!(
            !said.ok && said.err.contains("lost with the memory"),
            "{}",
            said.err
        );
    }
    assert_eq!(array.json(&["channel", "list", "r"])[0]["lost"], true);
    assert!(array.run(&["channel", "remove", "r", "c"]).ok);
    assert!(
        array
            .run(&["channel", "create", "r", "c", "--capacity", "1MiB"])
            .ok
    );
    assert!(send(&array, "5s").ok);
    let waits = channel(
        &array,
        &["receive", "r", "c", "--from", "1", "--wait", "60s"],
    );
    assert!(array.run(&["room", "remove", "r"]).ok);
    let ended = waits.wait_with_output().unwrap();
    let why = String::from_utf8_lossy(&ended.stderr);
    assert!(
        !ended.status.success()
            && (why.contains("ended with its room") || why.contains("room r does not exist")),
        "{why}"
    );
    let kept = |index| {
        let folder = array.node_folder(index).join("channels");
        std::fs::read_dir(Path::new(&folder)).unwrap().count()
    };
    wait("nothing of it is left", || {
        (0..3).all(|index| kept(index) == 0)
    });
}

/// A device without free space accepts the messages for which the channel has reserved space, and accepts no further
/// channel.
#[test]
fn full_device_accepts_messages_within_channel_promise() {
    let mut device = None;
    let options = Options {
        nodes: 1,
        ..Options::default()
    };
    let prepare = |array: &Array| device = Some(Device::new(array.node_folder(0), "96m"));
    let Some(array) = Array::prepared(options, prepare) else {
        return;
    };
    let device = device.unwrap();
    array.run(&["room", "create", "r"]);
    assert!(
        array
            .run(&["channel", "create", "r", "c", "--capacity", "1MiB"])
            .ok
    );
    device.fill();
    let message = array.path("message");
    std::fs::write(&message, vec![b'm'; 900_000]).unwrap();
    let message = message.to_str().unwrap();
    for number in 0..20 {
        let sent = array.json(&["channel", "send", "r", "c", message]);
        assert_eq!(sent["first"], number);
        let got = array.run(&["channel", "receive", "r", "c", "--reader", "one"]);
        assert!(got.ok && got.out.len() == 900_000, "{}", got.err);
    }
    let more = array.run(&["channel", "create", "r", "d", "--capacity", "1MiB"]);
    assert!(!more.ok, "{}", more.out);
    assert_eq!(
        array
            .json(&["channel", "list", "r"])
            .as_array()
            .unwrap()
            .len(),
        1
    );
    device.free();
}
