//! Tests `cat --wait`: files that are read while they are written.

use crate::cluster::{Cluster, Options, OtherMount, wait};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Command, Stdio};

/// Starts `tidemill cat --wait PATH`, with its output in a pipe.
fn follow(cluster: &Cluster, path: &str) -> Child {
    let mut command = cluster.tidemill();
    command.args(["cat", "--wait", path]);
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    piped.spawn().unwrap()
}

/// Reads its next bytes, as many as are expected.
fn next(reader: &mut Child, expected: &str) {
    let mut bytes = vec![0; expected.len()];
    reader
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut bytes)
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&bytes), expected);
}

/// Returns the rest of its output, whether it succeeded, and its error messages.
fn end(reader: Child) -> (String, bool, String) {
    let output = reader.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        text(&output.stdout),
        output.status.success(),
        text(&output.stderr),
    )
}

/// The bytes appear while the file is open, also after a kill of the server and the node. The reader ends when the
/// file is closed, and reports if the bytes that it got differ from the final file.
#[test]
fn follow_reads_file_while_it_is_written() {
    let Some(mut cluster) = Cluster::start() else {
        return;
    };
    let path = cluster.at("f");
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(b"one\n").unwrap();
    let mut reader = follow(&cluster, "/f");
    next(&mut reader, "one\n");
    // Like on any other host: over HTTP, and by another user with read permission.
    file.write_all(b"two\n").unwrap();
    next(&mut reader, "two\n");
    cluster.kill_server();
    cluster.kill_node(0);
    cluster.kill_node(1);
    file.write_all(b"three\n").unwrap();
    cluster.start_server();
    cluster.start_node(0);
    cluster.start_node(1);
    next(&mut reader, "three\n");
    file.write_all(&[b'x'; 3 << 20]).unwrap();
    drop(file);
    let (rest, ok, complaint) = end(reader);
    assert!(ok && rest.len() == 3 << 20, "{} {complaint}", rest.len());
    // For a file without a writer, the output equals that of `cat`.
    let closed = cluster.run(&["cat", "--wait", "/f"]);
    assert_eq!(closed.out.len(), 14 + (3 << 20));
    // A new version is read from its start.
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(b"new").unwrap();
    let mut reader = follow(&cluster, "/f");
    next(&mut reader, "new");
    drop(file);
    assert!(end(reader).1);

    // A writer that overwrites earlier bytes makes another file: this is reported.
    let mut file = std::fs::File::create(cluster.at("back")).unwrap();
    file.write_all(b"head body").unwrap();
    let mut reader = follow(&cluster, "/back");
    next(&mut reader, "head body");
    std::os::unix::fs::FileExt::write_all_at(&file, b"HEAD", 0).unwrap();
    drop(file);
    let (_, ok, complaint) = end(reader);
    assert!(!ok && complaint.contains("went back"), "{complaint}");
    assert_eq!(cluster.run(&["cat", "--wait", "/back"]).out, "HEAD body");

    // A user without read permission gets no bytes.
    cluster.sh("echo secret > secret; chmod 600 secret");
    let mut file = std::fs::File::options()
        .append(true)
        .open(cluster.at("secret"))
        .unwrap();
    file.write_all(b"more").unwrap();
    let foreign = cluster.try_sh(&format!(
        "setpriv --reuid 65534 --regid 65534 --clear-groups {:?} cat --wait /secret",
        cluster.tidemill()
    ));
    assert!(!foreign.ok && foreign.out.is_empty(), "{}", foreign.out);
    assert!(!cluster.run(&["cat", "--wait", "/nothing"]).ok);
}

/// The writer's mount dies, or the file is removed: the reader gets an error or the remaining bytes.
#[test]
fn follow_never_waits_for_dead_writers() {
    let Some(mut cluster) = Cluster::with(Options {
        remote: true,
        ..Options::default()
    }) else {
        return;
    };
    // A separate process writes, so that the end of the mount affects no descriptor of this process.
    let script = format!(
        "exec > '{}'; printf kept; sync /dev/fd/1; read x",
        cluster.at("f").display()
    );
    let mut writer = Command::new("bash");
    let mut writer = writer
        .args(["-c", &script])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    wait("it is begun", || cluster.run(&["ls", "/f"]).ok);
    let mut reader = follow(&cluster, "/f");
    next(&mut reader, "kept");
    cluster.kill_mount();
    let (rest, ok, complaint) = end(reader);
    assert!(ok && rest.is_empty(), "{rest} {complaint}");
    writer.kill().unwrap();
    writer.wait().unwrap();
    assert_eq!(cluster.run(&["cat", "/f"]).out, "kept");
    cluster.start_mount();

    let file = std::fs::File::create(cluster.at("gone")).unwrap();
    (&file).write_all(b"gone").unwrap();
    let mut reader = follow(&cluster, "/gone");
    next(&mut reader, "gone");
    cluster.sh("rm gone");
    drop(file);
    let (_, ok, complaint) = end(reader);
    assert!(!ok && !complaint.is_empty(), "{complaint}");
}

/// Starts a program that reads a file of another mount, with its output in a pipe.
fn program(command: &str) -> Child {
    let mut shell = Command::new("bash");
    let piped = shell.args(["-c", command]).stdout(Stdio::piped());
    piped.stderr(Stdio::piped()).spawn().unwrap()
}

/// Checks that a reader has read all written bytes, waits, and ends on a signal.
fn is_asked_to_end(mut reader: Child) {
    next(&mut reader, "one\n");
    let id = i32::try_from(reader.id()).unwrap();
    let id = rustix::process::Pid::from_raw(id).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    assert!(!reader.wait().unwrap().success());
}

/// Checks a mount on which a program has the previous version open: a read that would wait gets an error until that version is closed.
fn before_is_open(cluster: &Cluster, other: &OtherMount) {
    cluster.sh("echo before > w/held");
    let held = other.path.join("w/held").display().to_string();
    wait("it exists", || {
        std::fs::read(&held).is_ok_and(|read| read == b"before\n")
    });
    let before = std::fs::File::open(&held).unwrap();
    let mut again = std::fs::File::create(cluster.at("w/held")).unwrap();
    again.write_all(b"after").unwrap();
    again.sync_all().unwrap();
    let busy = || {
        cluster
            .try_sh(&format!("timeout 20 head -c 5 {held}"))
            .err
            .contains("busy")
    };
    wait("it is reported that another version is open", busy);
    drop(before);
    let followed = || cluster.try_sh(&format!("timeout 20 head -c 5 {held}")).out == "after";
    wait("it is followed", followed);
    drop(again);
}

/// Reads of any program wait at the end of the written bytes if the file or its directory has the attribute: until more
/// bytes appear, until the close, or until the program gets a signal. No other program waits with them.
#[test]
fn reads_on_another_mount_wait_for_bytes_still_to_be_written() {
    let Some(mut cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir w v; echo other > w/other; setfattr -n user.tidemill.wait -v 1 w");
    let printed = cluster.try_sh("setfattr -n user.tidemill.wait -v maybe w");
    assert!(!printed.ok, "an invalid value is refused");
    let other = OtherMount::start(&cluster, "b");
    let there = |path: &str| other.path.join(path).display().to_string();
    let mut file = std::fs::File::create(cluster.at("w/f")).unwrap();
    file.write_all(b"one\n").unwrap();
    file.sync_all().unwrap();
    let mut reader = program(&format!("exec cat {}", there("w/f")));
    next(&mut reader, "one\n");
    let last = program(&format!("exec tail -n 1 {}", there("w/f")));
    let mut piece = program(&format!("exec dd if={} bs=4 skip=1 count=1", there("w/f")));
    let killed: Vec<Child> = (0..40)
        .map(|_| program(&format!("exec cat {}", there("w/f"))))
        .collect();
    // All other programs continue.
    let listed = program(&format!("cat {}; ls {}", there("w/other"), there("w")));
    assert_eq!(end(listed).0, "other\nf\nother\n");
    killed.into_iter().for_each(is_asked_to_end);
    file.write_all(b"two\n").unwrap();
    file.sync_all().unwrap();
    next(&mut piece, "two\n");
    assert!(end(piece).1);
    next(&mut reader, "two\n");
    cluster.kill_server();
    for node in 0..2 {
        cluster.kill_node(node);
    }
    cluster.start_server();
    for node in 0..2 {
        cluster.start_node(node);
    }
    file.write_all(b"three\n").unwrap();
    file.sync_all().unwrap();
    next(&mut reader, "three\n");
    drop(file);
    assert_eq!(end(last).0, "three\n");
    let (rest, ok, complaint) = end(reader);
    assert!(ok && rest.is_empty(), "{rest} {complaint}");

    // Without the attribute, a read returns the sealed content.
    let open = std::fs::File::create(cluster.at("v/f")).unwrap();
    (&open).write_all(b"open").unwrap();
    assert_eq!(end(program(&format!("cat {}", there("v/f")))).0, "");

    before_is_open(&cluster, &other);

    // If its writer aborts it, readers get an error. If its writer's mount dies, the written bytes are the file.
    let gone = std::fs::File::create(cluster.at("w/gone")).unwrap();
    (&gone).write_all(b"gone").unwrap();
    gone.sync_all().unwrap();
    let mut reader = program(&format!("exec cat {}", there("w/gone")));
    next(&mut reader, "gone");
    cluster.sh("rm w/gone");
    drop(gone);
    let (_, ok, complaint) = end(reader);
    assert!(!ok && !complaint.is_empty(), "{complaint}");
    let script = format!(
        "exec > '{}'; printf kept; sync /dev/fd/1; read x",
        there("w/kept")
    );
    let mut writer = Command::new("bash");
    let writer = writer.args(["-c", &script]).stdin(Stdio::piped());
    let mut writer = writer.spawn().unwrap();
    wait("it is begun", || cluster.run(&["ls", "/w/kept"]).ok);
    let mut reader = program(&format!("exec cat {}", cluster.at("w/kept").display()));
    next(&mut reader, "kept");
    other.signal(rustix::process::Signal::KILL);
    let (rest, ok, complaint) = end(reader);
    assert!(ok && rest.is_empty(), "{rest} {complaint}");
    writer.kill().unwrap();
    writer.wait().unwrap();
}

/// The bytes of a file of several mounts appear in order, wherever they are stored, and missing bytes are awaited: by
/// `cat --wait` and by programs of a mount that only reads. The reader ends when the last writer has closed the file,
/// and reports the bytes that nobody wrote.
#[test]
fn follow_reads_file_of_several_mounts_while_they_write_it() {
    let Some(mut cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir w; setfattr -n user.tidemill.wait -v 1 w");
    let (second, third) = (
        OtherMount::start(&cluster, "b"),
        OtherMount::start(&cluster, "c"),
    );
    let one = std::fs::File::create(cluster.at("w/f")).unwrap();
    one.write_all_at(b"one ", 0).unwrap();
    // They start while it has one writer.
    let mut reader = follow(&cluster, "/w/f");
    next(&mut reader, "one ");
    let path = third.path.join("w/f");
    let mut waiting = program(&format!("exec cat {}", path.display()));
    next(&mut waiting, "one ");
    let other = std::fs::File::options()
        .write(true)
        .open(second.path.join("w/f"))
        .unwrap();
    // Bytes after a gap are held back.
    other.write_all_at(b"three ", 8).unwrap();
    one.write_all_at(b"two ", 4).unwrap();
    next(&mut reader, "two three ");
    next(&mut waiting, "two three ");
    cluster.kill_server();
    cluster.kill_node(0);
    cluster.kill_node(1);
    other.write_all_at(b"four ", 14).unwrap();
    cluster.start_server();
    cluster.start_node(0);
    cluster.start_node(1);
    next(&mut reader, "four ");
    next(&mut waiting, "four ");
    one.write_all_at(b"end", 9000).unwrap();
    drop(other);
    one.write_all_at(b"five ", 19).unwrap();
    next(&mut reader, "five ");
    next(&mut waiting, "five ");
    drop(one);
    let whole = format!("{}end", "\0".repeat(9000 - 24));
    let (rest, ok, complaint) = end(reader);
    assert!(ok && rest == whole, "{} {complaint}", rest.len());
    assert!(complaint.contains("bytes 24 to 8999"), "{complaint}");
    let (rest, ok, complaint) = end(waiting);
    assert!(ok && rest == whole, "{} {complaint}", rest.len());
    let now = std::fs::read(cluster.at("w/f")).unwrap();
    assert!(now.starts_with(b"one two three four five \0") && now.ends_with(b"\0end"));
}

/// A second writer joins while a file is read. From then on the first writer may write anywhere in its object, and no
/// reader gets these bytes in another place.
#[test]
fn follow_returns_correct_bytes_when_second_writer_joins() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir w; setfattr -n user.tidemill.wait -v 1 w");
    let (second, third) = (
        OtherMount::start(&cluster, "b"),
        OtherMount::start(&cluster, "c"),
    );
    let (head, first) = (4 << 20, 64 << 10);
    let one = std::fs::File::create(cluster.at("w/f")).unwrap();
    one.write_all_at(&vec![b'a'; head], 0).unwrap();
    one.sync_all().unwrap();
    // They have started, and wait until this test reads their output.
    let path = second.path.join("w/f");
    let mut readers = [
        follow(&cluster, "/w/f"),
        program(&format!("exec cat {}", path.display())),
    ];
    for reader in &mut readers {
        next(reader, &"a".repeat(first));
    }
    let mut other = std::fs::File::options();
    let other = other.write(true).open(third.path.join("w/f")).unwrap();
    one.write_all_at(&[b'x'; 4096], 8 << 20).unwrap();
    one.sync_all().unwrap();
    for reader in &mut readers {
        next(reader, &"a".repeat(head - first));
    }
    other.write_all_at(b"there", head as u64).unwrap();
    for reader in &mut readers {
        next(reader, "there");
    }
    drop((one, other));
    let whole = format!("{}{}", "\0".repeat(head - 5), "x".repeat(4096));
    for reader in readers {
        let (rest, ok, complaint) = end(reader);
        assert!(ok && rest == whole, "{} {complaint}", rest.len());
    }
}

/// A writer that overwrites earlier bytes in a file of several mounts changes bytes that a reader already has. That is reported. The same
/// bytes once more are not.
#[test]
fn follow_reports_overwrites_by_several_mounts() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let second = OtherMount::start(&cluster, "b");
    let both = |name: &str| {
        let one = std::fs::File::create(cluster.at(name)).unwrap();
        one.write_all_at(b"head ", 0).unwrap();
        let mut other = std::fs::File::options();
        let other = other.write(true).open(second.path.join(name)).unwrap();
        other.write_all_at(b"body", 5).unwrap();
        (one, other)
    };
    for (now, good) in [(b"HEAD ", false), (b"head ", true)] {
        let (one, other) = both("f");
        let mut reader = follow(&cluster, "/f");
        next(&mut reader, "head body");
        other.write_all_at(now, 0).unwrap();
        drop((one, other));
        let (rest, ok, complaint) = end(reader);
        assert_eq!((rest.as_str(), ok), ("", good), "{complaint}");
        assert!(good || complaint.contains("went back"), "{complaint}");
    }
    let (one, other) = both("gone");
    let mut reader = follow(&cluster, "/gone");
    next(&mut reader, "head body");
    cluster.sh("rm gone");
    drop((one, other));
    let (_, ok, complaint) = end(reader);
    assert!(!ok && !complaint.is_empty(), "{complaint}");

    // A user without read permission gets no bytes.
    cluster.sh("touch secret; chmod 600 secret");
    let (_one, _other) = both("secret");
    let foreign = cluster.try_sh(&format!(
        "timeout 20 setpriv --reuid 65534 --regid 65534 --clear-groups {:?} cat --wait /secret",
        cluster.tidemill()
    ));
    assert!(!foreign.ok && foreign.out.is_empty(), "{}", foreign.out);
}

/// A file is closed, and a node with its bytes is offline before the reader looks again: the reader waits for the
/// node.
#[test]
fn follow_waits_for_offline_nodes_of_its_file() {
    let Some(mut cluster) = Cluster::start() else {
        return;
    };
    let second = OtherMount::start(&cluster, "b");
    cluster.sh("setfattr -n user.tidemill.wait -v 1 .");
    for together in [false, true] {
        let one = std::fs::File::create(cluster.at("f")).unwrap();
        one.write_all_at(b"begun ", 0).unwrap();
        let path = second.path.join("f");
        let other = together.then(|| {
            let other = std::fs::File::options().write(true).open(&path).unwrap();
            other.write_all_at(b"there ", 6).unwrap();
            other
        });
        one.sync_all().unwrap();
        let mut reader = follow(&cluster, "/f");
        let begun = if together { "begun there " } else { "begun " };
        next(&mut reader, begun);
        let reader_pid = rustix::process::Pid::from_child(&reader);
        let signal = |signal| rustix::process::kill_process(reader_pid, signal).unwrap();
        signal(rustix::process::Signal::STOP);
        one.write_all_at(b"end", 12).unwrap();
        drop((one, other));
        wait("it is closed", || {
            cluster.run(&["cat", "/f"]).out.ends_with("end")
        });
        cluster.kill_node(0);
        cluster.kill_node(1);
        wait("the nodes are known to be offline", || {
            !cluster.run(&["cat", "/f"]).ok
        });
        signal(rustix::process::Signal::CONT);
        std::thread::sleep(std::time::Duration::from_secs(2));
        assert!(reader.try_wait().unwrap().is_none(), "it waits");
        cluster.start_node(0);
        cluster.start_node(1);
        let (rest, ok, complaint) = end(reader);
        let expected = if together { "end" } else { "\0\0\0\0\0\0end" };
        assert!(ok && rest == expected, "{rest} {complaint}");
        cluster.sh("rm f");
    }
}
