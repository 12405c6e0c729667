//! Tests of a full device: seals, removals, outcomes of labels and a start of the node still succeed.

#![allow(clippy::unwrap_used, reason = "a test that fails here has failed")]

use crate::cluster::*;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use tidemill_client::Objects;
use tidemill_client::objects::ObjectAddress;
use tidemill_model::id::ObjectId;
use tidemill_node::RunningNode;
use tidemill_wire::capability::rights;
use tidemill_wire::route::SealBody;

/// Small device with a file system, which is unmounted when this value is dropped.
struct Device {
    path: PathBuf,
    _image: tempfile::TempDir,
}

fn run(program: &str, args: &[&str]) -> bool {
    let done = Command::new(program).args(args).output();
    done.is_ok_and(|output| output.status.success())
}

impl Device {
    /// Creates a device of 50 MB with the file system `kind`. Prints a message and returns `None` if this is not possible.
    fn new(kind: &str) -> Option<Self> {
        let image = directory();
        let path = image.path().join("device");
        let file = image.path().join("image");
        std::fs::create_dir(&path).unwrap();
        let (to, from) = (path.to_str().unwrap(), file.to_str().unwrap());
        let made = match kind {
            "tmpfs" => run("mount", &["-t", "tmpfs", "-o", "size=50m", "tmpfs", to]),
            _ => {
                File::create(&file).unwrap().set_len(50 << 20).unwrap();
                run(&format!("mkfs.{kind}"), &["-q", "-F", from])
                    && run("mount", &["-o", "loop", from, to])
            }
        };
        if made {
            return Some(Self {
                path,
                _image: image,
            });
        }
        let why = format!("SKIPPED: no file system {kind} can be made and mounted here");
        assert!(std::env::var_os("TIDEMILL_TEST_REQUIRE").is_none(), "{why}");
        eprintln!("{why}");
        None
    }

    /// Writes a file until the device has no free byte.
    fn fill(&self) {
        for (name, piece) in [("filler", 1 << 20), ("more", 4096), ("last", 1)] {
            let mut file = File::options()
                .append(true)
                .create(true)
                .open(self.path.join(name))
                .unwrap();
            let zeros = vec![1; piece];
            while file.write(&zeros).is_ok_and(|count| count > 0) {}
            let _ = file.sync_all();
        }
        let space = rustix::fs::statvfs(&self.path).unwrap();
        let free_bytes = space.f_bavail * space.f_frsize;
        assert!(free_bytes < 64 << 10, "{free_bytes} bytes are still free");
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        run("umount", &["-l", self.path.to_str().unwrap()]);
    }
}

fn object_file(device: &Device, object: u64) -> PathBuf {
    device.path.join(ObjectId(object).relative_path())
}

async fn seal(node: &RunningNode, object: u64) -> Result<u64, tidemill_client::Error> {
    let remote: ObjectAddress = remote(node, object, rights::READ | rights::WRITE);
    let sealed = Objects::new(None).seal(&remote, &SealBody::default()).await;
    sealed.map(|sealed| sealed.size)
}

async fn remove(connection: &mut Connection, objects: impl Iterator<Item = u64>) {
    let objects: Vec<u64> = objects.collect();
    let outcome = connection.remove(&objects).await;
    assert_eq!(outcome.failure, None);
}

async fn a_full_device_takes_no_bytes_but_seals_removes_and_starts(kind: &str) {
    const FILES: u64 = 3000;
    let Some(device) = Device::new(kind) else {
        return;
    };
    let mut server = FakeServer::start().await;
    let start = async |server: &mut FakeServer| {
        let node = RunningNode::start(config(1, &device.path, server))
            .await
            .unwrap();
        (node, server.welcomed().await)
    };
    let (node, mut connection) = start(&mut server).await;
    put(&node, 1, b"before").await;
    // The files are written in place, like by a mount on the same host.
    for object in 2..FILES {
        std::fs::write(object_file(&device, object), b"in place").unwrap();
    }
    let write = remote(&node, 1_000_000, rights::READ | rights::WRITE);
    device.fill();

    let refused = Objects::new(None)
        .write(&write, 0, vec![7; 1 << 20].into())
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("full"), "{refused}");
    for object in 2..FILES / 2 {
        assert_eq!(seal(&node, object).await.unwrap(), 8, "object {object}");
        if object % 300 == 0 {
            device.fill();
        }
    }
    let reported = connection.status(|status| !status.trouble.is_empty()).await;
    assert!(reported.trouble.contains("full"), "{}", reported.trouble);

    // The node is restarted without a free byte, once in order and once not.
    node.stop().await;
    device.fill();
    let (node, mut connection) = start(&mut server).await;
    for object in FILES / 2..FILES - 10 {
        assert_eq!(seal(&node, object).await.unwrap(), 8, "object {object}");
    }
    assert_eq!(get(&node, 1).await, b"before");
    let label = program_label(7, "true", &[]);
    connection.labels(std::slice::from_ref(&label));
    connection.finished(7).await;
    device.fill();

    remove(&mut connection, 2..FILES / 2).await;
    device.fill();
    remove(&mut connection, FILES / 2..FILES).await;
    assert!(!object_file(&device, 5).exists());
    for file in ["filler", "more", "last"] {
        let _ = std::fs::remove_file(device.path.join(file));
    }
    put(&node, 3_000_000, &vec![1; 4 << 20]).await;
    connection.status(|status| status.trouble.is_empty()).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_on_full_tmpfs_refuses_bytes_but_seals_removes_and_starts() {
    a_full_device_takes_no_bytes_but_seals_removes_and_starts("tmpfs").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_on_full_ext4_refuses_bytes_but_seals_removes_and_starts() {
    a_full_device_takes_no_bytes_but_seals_removes_and_starts("ext4").await;
}

fn spawn(directory: &Path, server: &FakeServer) -> std::process::Child {
    Command::new(program())
        .args(["1".as_ref(), directory.as_os_str(), server.url.as_ref()])
        .stdin(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn node_killed_on_full_device_starts_again() {
    for kind in ["tmpfs", "ext4"] {
        let Some(device) = Device::new(kind) else {
            return;
        };
        let mut server = FakeServer::start().await;
        let mut child = spawn(&device.path, &server);
        let mut connection = server.welcomed().await;
        let objects: Vec<u64> = (1..1000).collect();
        for &object in &objects {
            std::fs::write(object_file(&device, object), b"x").unwrap();
        }
        connection.labels(&[program_label(1, "true", &[])]);
        connection.finished(1).await;
        device.fill();
        for round in 0..3 {
            child.kill().unwrap();
            child.wait().unwrap();
            device.fill();
            child = spawn(&device.path, &server);
            connection = server.welcomed().await;
            let batch = objects.iter().copied().skip(round * 300).take(300);
            remove(&mut connection, batch).await;
            device.fill();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn seal_after_lost_writer_ignores_its_late_writes() {
    let directory = directory();
    let mut server = FakeServer::start().await;
    let node = RunningNode::start(config(1, directory.path(), &server))
        .await
        .unwrap();
    let _connection = server.welcomed().await;
    let seal = async |object: u64, lost: bool| {
        let body = SealBody {
            lost,
            ..SealBody::default()
        };
        let remote = remote(&node, object, rights::READ | rights::WRITE);
        Objects::new(None).seal(&remote, &body).await.unwrap().size
    };
    let path = |object: u64| directory.path().join(ObjectId(object).relative_path());
    // The file has a megabyte of data, a megabyte of hole, and some bytes.
    let writer = File::create(path(1)).unwrap();
    writer.write_all_at(&[b'a'; 1 << 20], 0).unwrap();
    writer.write_all_at(b"end", 2 << 20).unwrap();
    let blocks = |file: &Path| std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
    let before = (std::fs::read(path(1)).unwrap(), blocks(&path(1)));
    let size = (2 << 20) + 3;
    assert_eq!(seal(1, true).await, size);
    writer.write_all_at(b"late", 0).unwrap();
    writer.set_len(10).unwrap();
    assert_eq!((std::fs::read(path(1)).unwrap(), blocks(&path(1))), before);
    // The request is repeated, as after a lost answer.
    assert_eq!(seal(1, true).await, size);
    assert_eq!(get(&node, 1).await, before.0);
    drop(writer);

    // Without a writer, the object stays the same file.
    let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&path.metadata().unwrap());
    std::fs::write(path(2), b"closed").unwrap();
    let file = inode(&path(2));
    assert_eq!(seal(2, true).await, 6);
    assert_eq!(inode(&path(2)), file);
    // A mount that still runs has the file open for writing when it seals the file.
    let own = File::create(path(3)).unwrap();
    let file = inode(&path(3));
    assert_eq!(seal(3, false).await, 0);
    assert_eq!(inode(&path(3)), file);
    drop(own);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn outputs_are_removed_if_outcome_was_not_committed() {
    let directory = directory();
    let mut server = FakeServer::start().await;
    let mut child = spawn(directory.path(), &server);
    let mut connection = server.welcomed().await;
    connection.labels(&[
        program_label(1, "sh", &["-c", "echo x > out; sleep 1000"]).output("out", 11),
        program_label(2, "sleep", &["1000"]).output("out", 12),
    ]);
    connection.running(1).await;
    connection.running(2).await;
    child.kill().unwrap();
    child.wait().unwrap();
    // This is the state after a kill between the rename of the output and the commit.
    let output = directory.path().join(ObjectId(11).relative_path());
    std::fs::write(&output, b"half").unwrap();
    let other = directory.path().join(ObjectId(99).relative_path());
    std::fs::write(&other, b"somebody's").unwrap();
    child = spawn(directory.path(), &server);
    let mut connection = server.welcomed().await;
    // In the meantime, the server has given the label to another node.
    connection.abort(1);
    assert!(connection.finished(1).await.failure.is_some());
    assert!(!output.exists());
    assert!(other.exists());
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_removal_reports_removed_objects() {
    let directory = directory();
    let mut server = FakeServer::start().await;
    let node = RunningNode::start(config(1, directory.path(), &server))
        .await
        .unwrap();
    let mut connection = server.welcomed().await;
    put(&node, 1, b"x").await;
    // Even root can't unlink a directory.
    let stuck = directory.path().join(ObjectId(2).relative_path());
    std::fs::create_dir(&stuck).unwrap();
    let outcome = connection.remove(&[1, 2, 3]).await;
    assert_eq!(failure(&outcome).kind, "device");
    assert_eq!(outcome.removed, [1, 3]);
    std::fs::remove_dir(&stuck).unwrap();
    let outcome = connection.remove(&[1, 2, 3]).await;
    assert_eq!((outcome.failure, outcome.removed), (None, vec![]));
    node.stop().await;
}
