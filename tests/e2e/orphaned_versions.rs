//! Tests that versions and objects are completed or deleted, even if the mount, a client or a node has ended, and on full devices.

use crate::cluster::{Cluster, Device, Options, PATIENCE, wait};
use serde_json::Value;
use std::io::{BufRead as _, Write as _};
use std::process::{Child, Command, Stdio};

/// A program that holds a file open and executes commands, line by line: `w TEXT` appends, `s` syncs, `c` closes.
struct Writer(Child);

impl Writer {
    fn open(cluster: &Cluster, path: &str) -> Self {
        let program = format!(
            "import os,sys\nf=os.open('{}',os.O_CREAT|os.O_WRONLY)\nprint('open',flush=True)\n\
             for l in sys.stdin:\n \
              l=l.rstrip('\\n')\n \
              try:\n  \
               os.write(f,l[2:].encode()) if l[0]=='w' else os.fsync(f) if l[0]=='s' else os.close(f)\n  \
               print('done',flush=True)\n \
              except OSError as e: print(e.strerror,flush=True)",
            cluster.at(path).display()
        );
        let child = Command::new("python3")
            .args(["-c", &program])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut writer = Self(child);
        assert_eq!(writer.printed(), "open");
        writer
    }

    fn printed(&mut self) -> String {
        let mut line = String::new();
        // The reader has no buffer: bytes after the line belong to the next answer.
        let out = self.0.stdout.as_mut().unwrap();
        std::io::BufReader::with_capacity(1, out)
            .read_line(&mut line)
            .unwrap();
        line.trim().to_owned()
    }

    fn tell(&mut self, what: &str) -> String {
        writeln!(self.0.stdin.as_mut().unwrap(), "{what}").unwrap();
        self.printed()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the content that a client without a mount reads.
fn content(cluster: &Cluster, path: &str) -> String {
    cluster.run(&["cat", path]).out
}

fn unsealed(cluster: &Cluster) -> Vec<Value> {
    cluster.json(&["status"])["unsealed"]
        .as_array()
        .unwrap()
        .clone()
}

#[test]
fn synced_file_is_sealed_after_mount_and_nodes_died() {
    let Some(mut cluster) = Cluster::start() else {
        return;
    };
    let mut first = Writer::open(&cluster, "first");
    let mut second = Writer::open(&cluster, "second");
    for writer in [&mut first, &mut second] {
        assert_eq!(writer.tell("w synced"), "done");
        assert_eq!(writer.tell("s"), "done");
    }
    cluster.kill_mount();
    cluster.kill_node(0);
    cluster.kill_node(1);
    drop((first, second));
    wait("the server reports the reason of its wait", || {
        let left = unsealed(&cluster);
        let offline = |one: &Value| one["why"].as_str().unwrap().ends_with("is offline");
        !left.is_empty() && left.iter().all(|one| one["ended"] == true && offline(one))
    });
    cluster.start_node(0);
    cluster.start_node(1);
    wait("both are sealed", || unsealed(&cluster).is_empty());
    assert_eq!(content(&cluster, "/first"), "synced");
    assert_eq!(content(&cluster, "/second"), "synced");
    cluster.start_mount();
    assert_eq!(cluster.sh("cat first second"), "syncedsynced");
}

#[test]
fn program_that_outlives_its_mount_cannot_change_sealed_file() {
    let Some(mut cluster) = Cluster::start() else {
        return;
    };
    let mut writer = Writer::open(&cluster, "f");
    assert_eq!(writer.tell("w before"), "done");
    cluster.kill_mount();
    // With direct local access, writes may continue.
    let goes_on = writer.tell("w +after") == "done";
    wait("the file is sealed", || unsealed(&cluster).is_empty());
    let sealed = content(&cluster, "/f");
    assert!(sealed.starts_with("before"), "{sealed}");
    if goes_on {
        assert_eq!(sealed, "before+after");
        // The write returns success, as for a file that was deleted.
        assert_eq!(writer.tell("w too late"), "done");
        let logs = cluster.log("node-0.log") + &cluster.log("node-1.log");
        assert!(logs.contains("is sealed as a copy"), "{logs}");
        let who = format!("python3 ({})", writer.0.id());
        assert!(logs.contains(&who), "{logs}");
    }
    assert_eq!(content(&cluster, "/f"), sealed);
    cluster.start_mount();
    assert_eq!(cluster.sh("cat f"), sealed);
    assert_eq!(writer.tell("w too late"), "done");
    assert_eq!(cluster.sh("cat f"), sealed);
    let found = cluster.json(&["cluster", "fsck"]);
    assert_eq!(found["findings"], 0, "{found}");
}

#[test]
fn status_lists_live_and_dead_mounts() {
    let Some(mut cluster) = Cluster::start() else {
        return;
    };
    let mounts = || {
        cluster.json(&["status"])["mounts"]
            .as_array()
            .unwrap()
            .clone()
    };
    let path = cluster.path("mnt").display().to_string();
    let there = mounts();
    assert_eq!(there.len(), 1, "{there:?}");
    assert_eq!(there[0]["path"], path);
    assert_ne!(there[0]["host"], "");
    let text = cluster.run(&["status"]).out;
    assert!(text.contains(&format!("mounted   {path}")), "{text}");
    cluster.kill_mount();
    wait("it is offline", || {
        cluster.json(&["status"])["mounts"] == Value::Array(Vec::new())
    });
}

#[test]
#[expect(clippy::too_many_lines, reason = "one story")]
fn fsck_finds_and_repairs_orphans_and_missing_objects() {
    // The node detects corruption by itself when it hashes or reads an object, so the scrub is off here.
    let options = Options {
        node_args: vec!["--scrub-rate".into(), "off".into()],
        ..Options::default()
    };
    let Some(cluster) = Cluster::with(options) else {
        return;
    };
    cluster
        .sh("mkdir w; for i in 1 2 3 4 5 6; do echo $i > w/f$i; done; sync w/f6; seq 100 > w/open");
    let check = |more: &[&str]| {
        let args = [&["--json", "cluster", "fsck", "--age", "0s"], more].concat();
        let printed = cluster.run(&args);
        let found: Vec<Value> = serde_json::Deserializer::from_str(&printed.out)
            .into_iter()
            .collect::<Result<_, _>>()
            .unwrap();
        (printed.ok, found)
    };
    wait("all is sealed", || unsealed(&cluster).is_empty());
    let (ok, found) = check(&[]);
    assert!(ok && found.len() == 1, "{found:?}");
    assert!(found[0]["files"].as_u64() >= Some(7), "{found:?}");

    let place = |name: &str| {
        let listed = cluster.json(&["ls", "/w"]);
        let entries = listed["entries"].as_array().unwrap();
        let entry = entries.iter().find(|entry| entry["name"] == name).unwrap();
        let object = entry["object"].as_u64().unwrap();
        let node = usize::try_from(entry["node"].as_u64().unwrap()).unwrap();
        let file = format!("objects/{:02x}/{object:016x}", object & 0xff);
        (object, cluster.node_directory(node).join(file))
    };
    let (missing, file) = place("f1");
    std::fs::remove_file(file).unwrap();
    let (short, file) = place("f2");
    std::fs::write(file, "").unwrap();
    let (open, file) = place("f3");
    Command::new("chmod").arg("600").arg(file).status().unwrap();
    let orphan = cluster
        .node_directory(1)
        .join("objects/34/0000000000aa1234");
    std::fs::write(&orphan, "nobody's").unwrap();

    let kinds = |found: &[Value]| {
        let mut kinds: Vec<(String, u64)> = found
            .iter()
            .filter(|one| one["kind"] != "checked")
            .map(|one| {
                let kind = one["kind"].as_str().unwrap().to_owned();
                (kind, one["object"].as_u64().unwrap())
            })
            .collect();
        kinds.sort();
        kinds
    };
    let expected = [
        ("length".to_owned(), short),
        ("missing".to_owned(), missing),
        ("orphan".to_owned(), 0x00aa_1234),
        ("unsealed".to_owned(), open),
    ];
    let (ok, found) = check(&[]);
    assert!(!ok);
    assert_eq!(kinds(&found), expected);
    assert!(orphan.exists());
    let (_, found) = check(&["--repair"]);
    assert_eq!(kinds(&found), expected);
    // A check that only shows faults deletes nothing.
    let (_, found) = check(&["--repair"]);
    assert_eq!(kinds(&found), expected[..3]);
    assert!(orphan.exists());
    let (_, found) = check(&["--repair", "--yes"]);
    assert_eq!(kinds(&found), expected[..3]);
    let (ok, found) = check(&[]);
    assert!(!ok);
    assert_eq!(kinds(&found), expected[..2]);
    assert!(orphan.exists());
    // A week later.
    let database = cluster.path("server/server.db").display().to_string();
    let later = "UPDATE replica SET since = since - 8 * 86400 * 1000000000 WHERE object = 11145780";
    let moved = Command::new("sqlite3")
        .args([database.as_str(), later])
        .status();
    assert!(moved.unwrap().success());
    wait("the orphan is removed", || !orphan.exists());
    let (ok, found) = check(&[]);
    assert!(!ok);
    assert_eq!(kinds(&found), expected[..2]);
    cluster.sh("rm w/f1 w/f2; cat w/f3 w/f4 w/f5 w/f6 w/open | wc -l | grep 104");
    wait("nothing is left to be found", || check(&[]).0);
}

/// Starts a `tidemill put` from standard input that has written some bytes and waits for more.
fn put(cluster: &Cluster, path: &str) -> Child {
    let open = unsealed(cluster).len();
    let mut put = cluster
        .tidemill()
        .args(["put", "-", path])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let input = put.stdin.as_mut().unwrap();
    input.write_all(&vec![b'x'; 5 << 20]).unwrap();
    wait("it writes", || {
        let open_now = unsealed(cluster);
        let versions = |one: &Value| one["versions"].as_u64().unwrap();
        open_now.iter().map(versions).sum::<u64>() > open as u64
    });
    put
}

#[test]
fn killed_put_is_aborted_and_waiting_put_is_not() {
    let Some(cluster) = Cluster::with(Options {
        nodes: 1,
        ..Options::default()
    }) else {
        return;
    };
    cluster.sh("echo old > f");
    wait("all is sealed", || unsealed(&cluster).is_empty());
    // It started before the other, so it would be silent for longer.
    let mut slow = put(&cluster, "/slow");
    let mut killed = put(&cluster, "/f");
    killed.kill().unwrap();
    killed.wait().unwrap();
    let start = std::time::Instant::now();
    let open = || {
        let versions = |one: &Value| one["versions"].as_u64().unwrap();
        unsealed(&cluster).iter().map(versions).sum::<u64>()
    };
    while open() > 1 {
        assert!(start.elapsed() < 3 * PATIENCE, "it is never abandoned");
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    assert_eq!((open(), content(&cluster, "/f").as_str()), (1, "old\n"));
    let mut input = slow.stdin.take().unwrap();
    input.write_all(b"the end").unwrap();
    drop(input);
    assert!(slow.wait().unwrap().success());
    assert_eq!(content(&cluster, "/slow").len(), (5 << 20) + 7);
    wait("the bytes of the other are deleted", || {
        cluster.run(&["cluster", "fsck", "--age", "0s"]).ok
    });
}

#[test]
fn full_device_with_open_files_fails_writes_but_no_seal() {
    let mut device = None;
    let options = Options {
        nodes: 1,
        ..Options::default()
    };
    let prepare = |cluster: &Cluster| device = Some(Device::new(cluster.node_directory(0), "50m"));
    let Some(mut cluster) = Cluster::prepared(options, prepare) else {
        return;
    };
    cluster.sh("echo old content > before");
    let mut victim = Writer::open(&cluster, "victim");
    let mut before = Writer::open(&cluster, "before");
    assert_eq!(victim.tell("w victim"), "done");
    assert_eq!(before.tell("w new"), "done");
    device.as_ref().unwrap().fill();
    for writer in [&mut victim, &mut before] {
        assert_eq!(writer.tell("s"), "done");
        assert_eq!(writer.tell("c"), "done");
    }
    wait("both are sealed on a full device", || {
        content(&cluster, "/victim") == "victim" && content(&cluster, "/before") == "new content\n"
    });
    wait("the node reports that it is full", || {
        let status = cluster.json(&["status"]);
        let trouble = status["nodes"][0]["trouble"].as_str().unwrap();
        trouble.contains("full")
    });
    // The node starts without free space, and deletes objects.
    device.as_ref().unwrap().fill();
    cluster.kill_node(0);
    device.as_ref().unwrap().fill();
    cluster.start_node(0);
    cluster.wait_for_nodes(1);
    device.as_ref().unwrap().fill();
    let printed = cluster.try_sh("echo more > more");
    assert!(
        !printed.ok && printed.err.contains("No space"),
        "{}",
        printed.err
    );
    cluster.sh("rm before");
    wait("its bytes are deleted", || {
        cluster.run(&["cluster", "fsck", "--age", "0s"]).ok
    });
    device.as_ref().unwrap().free();
    wait("there is space again", || {
        cluster.try_sh("head -c 1000000 /dev/zero > again").ok
    });
    assert_eq!(cluster.sh("cat victim"), "victim");
}
