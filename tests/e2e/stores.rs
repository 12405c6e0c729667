//! Tests nodes whose files are in stores of each kind, with real servers: SFTP always, the others if they are installed
//! (`scripts/stores.sh`).

use crate::array::{Array, said, wait};
use crate::outside::{bare, nodes, noise, outside};
use crate::servers::{self, Server};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use tidemill_bridge::{Bridge, Listed};

/// An array with two nodes that store, node 2 of the burst tier, and node 3, whose files are in the store.
struct There {
    array: Array,
    server: Server,
    store: Bridge,
    runtime: tokio::runtime::Runtime,
}

/// Writes a file of keys in the form for its node.
fn keys(array: &Array, lines: &str) -> PathBuf {
    let path = array.path("keys");
    std::fs::write(&path, lines).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    path
}

impl There {
    fn start(server: Server) -> Option<Self> {
        let mut array = bare()?;
        keys(&array, &server.keys);
        array.add_node(&["--tier", "burst"]);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let store = {
            let _in = runtime.enter();
            server.open()
        };
        let mut there = Self {
            array,
            server,
            store,
            runtime,
        };
        let arguments = there.arguments();
        let arguments = arguments.each_ref().map(String::as_str);
        there.array.add_node(&arguments);
        there.array.start_mount();
        Some(there)
    }

    fn arguments(&self) -> [String; 6] {
        [
            "--outside".into(),
            self.server.uri.clone(),
            "--outside-keys".into(),
            self.array.path("keys").display().to_string(),
            "--near".into(),
            "1MiB".into(),
        ]
    }

    fn drain(&self, folder: &str, names: &[&str]) {
        wait("all is outside only", || {
            let said = self.array.run(&["drain", folder, "--free", "--wait"]);
            let only = |name: &&str| nodes(&self.array, &format!("{folder}/{name}")) == [3];
            said.ok && names.iter().all(only)
        });
    }

    fn content(&self, path: &str) -> Option<Vec<u8>> {
        self.runtime.block_on(async {
            let object = self.store.stat(path).await.ok()?;
            let mut reader = self.store.read(&object).await.ok()?;
            let mut all = Vec::new();
            while let Some(piece) = reader.next().await.ok()? {
                all.extend_from_slice(&piece);
            }
            Some(all)
        })
    }

    fn names(&self, folder: &str) -> Vec<String> {
        self.runtime.block_on(async {
            let (mut names, mut listed) = (Vec::new(), self.store.list(folder));
            while let Ok(Some(Listed::Object(object))) = listed.next().await {
                names.push(object.path);
            }
            names.sort();
            names
        })
    }
}

/// Drained files are stored there, complete, under their names; replaced and deleted files are replaced and deleted there; no file is
/// lost when the node is killed or the store is offline.
fn files_of_an_array_are_there(server: Server) {
    let Some(mut there) = There::start(server) else {
        return;
    };
    let (large, other) = (noise(1), noise(2));
    let array = &there.array;
    array.sh("mkdir d; echo one > d/small; : > d/empty; echo ö > 'd/ä b%+'");
    std::fs::write(array.at("d/large"), &large).unwrap();
    there.drain("/d", &["small", "empty", "ä b%+", "large"]);
    assert_eq!(there.content("d/small").unwrap(), b"one\n");
    assert_eq!(there.content("d/ä b%+").unwrap(), "ö\n".as_bytes());
    assert!(there.content("d/large").unwrap() == large);
    let near = array.object_files("/d/large")[0].clone();
    wait("the large one is not near", || !near.exists());
    assert!(std::fs::read(array.at("d/large")).unwrap() == large);

    array.sh("echo two > d/small; rm d/empty");
    std::fs::write(array.at("d/large"), &other).unwrap();
    wait("the new versions are there", || {
        assert!(array.run(&["drain", "/d", "--free", "--wait"]).ok);
        there.content("d/small").unwrap() == b"two\n" && there.content("d/large").unwrap() == other
    });
    let left = ["d/large", "d/small", "d/ä b%+"];
    wait("what was removed is gone there", || {
        there.names("d") == left
    });

    array.sh("mkdir k; for i in $(seq 30); do head -c 50000 /dev/urandom > k/$i; done; sha256sum k/* > sums");
    there.server.gate.shut();
    assert!(array.run(&["drain", "/k"]).ok);
    wait("it is told", || array.log("node-3.log").contains("k/"));
    array.sh("sha256sum --quiet -c sums");
    there.server.gate.open();
    wait("some are there", || !there.names("k").is_empty());
    there.array.kill_node(3);
    let arguments = there.arguments();
    let arguments = arguments.each_ref().map(String::as_str);
    there.array.restart_node(3, &arguments);
    there.array.wait_for_nodes(4);
    let array = &there.array;
    let names: Vec<String> = (1..=30).map(|number| number.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    there.drain("/k", &names);
    array.sh("sha256sum --quiet -c sums; sha256sum sums > twice");
    assert_eq!(there.names("k").len(), 30);
    assert_eq!(outside(array, 3)["waiting"], 0);
    array.sh("rm -r k");
    wait("they are gone there", || there.names("k").is_empty());
    assert!(array.run(&["check"]).ok);
}

#[test]
fn files_of_array_are_stored_by_sftp() {
    let Some(server) = servers::sftp() else {
        return;
    };
    files_of_an_array_are_there(server);
}

#[test]
fn files_of_array_are_stored_by_webdav() {
    let Some(server) = servers::webdav() else {
        return;
    };
    files_of_an_array_are_there(server);
}

#[test]
fn files_of_array_are_stored_by_webhdfs() {
    let Some(server) = servers::webhdfs() else {
        return;
    };
    files_of_an_array_are_there(server);
}

#[cfg(feature = "azblob")]
#[test]
fn files_of_array_are_stored_by_azblob() {
    let Some(server) = servers::azblob() else {
        return;
    };
    files_of_an_array_are_there(server);
}

#[cfg(feature = "gcs")]
#[test]
fn files_of_array_are_stored_by_gcs() {
    let Some(server) = servers::gcs() else { return };
    files_of_an_array_are_there(server);
}

/// An export that is killed leaves no partial file under any name, and the next export completes it. A bridge is
/// visible in the mount.
#[test]
fn killed_sftp_export_is_repeated_without_partial_files() {
    let (Some(server), Some(array)) = (servers::sftp(), Array::start()) else {
        return;
    };
    let files = server.files.clone().unwrap();
    array.json(&["bridge", "add", "far", &server.uri]);
    let keys = keys(&array, &server.keys).display().to_string();
    array.sh("mkdir raw; for i in $(seq 8); do head -c 500000 /dev/urandom > raw/$i; done");
    let export = ["export", "/raw", "far/run", "--keys", &keys];
    let mut killed = array.tidemill();
    let mut killed = killed
        .args(export)
        .args(["--limit", "1MB"])
        .spawn()
        .unwrap();
    let whole = || (1..=8).filter(|number| files.join(format!("run/{number}")).exists());
    wait("a file is there", || whole().count() > 0);
    killed.kill().unwrap();
    killed.wait().unwrap();
    let mut lengths = whole().map(|number| {
        files
            .join(format!("run/{number}"))
            .metadata()
            .unwrap()
            .len()
    });
    assert!(lengths.all(|length| length == 500_000));
    let told = array.json(&export);
    assert_eq!(
        told["files"].as_u64().unwrap() + told["same"].as_u64().unwrap(),
        8
    );
    array.sh(&format!(
        "diff -r --exclude '.tidemill-part-*' raw {:?}",
        files.join("run")
    ));
    std::fs::write(files.join("run/new"), "from there").unwrap();
    array.json(&["import", "far/run/new", "/back", "--keys", &keys]);
    assert_eq!(array.sh("cat back/new"), "from there");
    let refused = array.run(&["export", "/raw", "far/run"]);
    assert!(
        !refused.ok && refused.err.contains("known hosts"),
        "{}",
        refused.err
    );
    let mut check = array.tidemill();
    check.args(["bridge", "check", "far", "--keys", &keys]);
    assert!(said(check.output().unwrap()).ok);
}
