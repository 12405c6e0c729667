//! Tests nodes whose files are in stores of each kind, with real servers: SFTP always, the others if they are installed
//! (`scripts/stores.sh`).

use crate::backend::{backend, bare, nodes, noise};
use crate::cluster::{Cluster, printed, wait};
use crate::servers::{self, Server};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use tidemill_remote::{ListedItem, Remote};

/// A cluster with two nodes of the capacity tier, node 2 of the burst tier, and node 3, whose files are in the store.
struct There {
    cluster: Cluster,
    server: Server,
    store: Remote,
    runtime: tokio::runtime::Runtime,
}

/// Writes a file of keys in the form for its node.
fn keys(cluster: &Cluster, lines: &str) -> PathBuf {
    let path = cluster.path("keys");
    std::fs::write(&path, lines).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    path
}

impl There {
    fn start(server: Server) -> Option<Self> {
        let mut cluster = bare()?;
        keys(&cluster, &server.keys);
        cluster.add_node(&["--tier", "burst"]);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let store = {
            let _in = runtime.enter();
            server.open()
        };
        let mut there = Self {
            cluster,
            server,
            store,
            runtime,
        };
        let arguments = there.arguments();
        let arguments = arguments.each_ref().map(String::as_str);
        there.cluster.add_node(&arguments);
        there.cluster.start_mount();
        Some(there)
    }

    fn arguments(&self) -> [String; 6] {
        [
            "--backend".into(),
            self.server.uri.clone(),
            "--backend-keys".into(),
            self.cluster.path("keys").display().to_string(),
            "--backend-cache".into(),
            "1MiB".into(),
        ]
    }

    fn stage_out(&self, directory: &str, names: &[&str]) {
        wait("all is in the backend only", || {
            let printed = self
                .cluster
                .run(&["stage", "out", directory, "--evict", "--wait"]);
            let only = |name: &&str| nodes(&self.cluster, &format!("{directory}/{name}")) == [3];
            printed.ok && names.iter().all(only)
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

    fn names(&self, directory: &str) -> Vec<String> {
        self.runtime.block_on(async {
            let (mut names, mut listed) = (Vec::new(), self.store.list(directory));
            while let Ok(Some(ListedItem::Object(object))) = listed.next().await {
                names.push(object.path);
            }
            names.sort();
            names
        })
    }
}

/// Staged-out files are stored there, complete, under their names; replaced and deleted files are replaced and deleted there; no file is
/// lost when the node is killed or the store is offline.
fn files_of_a_cluster_are_there(server: Server) {
    let Some(mut there) = There::start(server) else {
        return;
    };
    let (large, other) = (noise(1), noise(2));
    let cluster = &there.cluster;
    cluster.sh("mkdir d; echo one > d/small; : > d/empty; echo ö > 'd/ä b%+'");
    std::fs::write(cluster.at("d/large"), &large).unwrap();
    there.stage_out("/d", &["small", "empty", "ä b%+", "large"]);
    assert_eq!(there.content("d/small").unwrap(), b"one\n");
    assert_eq!(there.content("d/ä b%+").unwrap(), "ö\n".as_bytes());
    assert!(there.content("d/large").unwrap() == large);
    let cached = cluster.object_files("/d/large")[0].clone();
    wait("the large one is not in the cache", || !cached.exists());
    assert!(std::fs::read(cluster.at("d/large")).unwrap() == large);

    cluster.sh("echo two > d/small; rm d/empty");
    std::fs::write(cluster.at("d/large"), &other).unwrap();
    wait("the new versions exist", || {
        assert!(cluster.run(&["stage", "out", "/d", "--evict", "--wait"]).ok);
        there.content("d/small").unwrap() == b"two\n" && there.content("d/large").unwrap() == other
    });
    let left = ["d/large", "d/small", "d/ä b%+"];
    wait("removed files are deleted there", || {
        there.names("d") == left
    });

    cluster.sh("mkdir k; for i in $(seq 30); do head -c 50000 /dev/urandom > k/$i; done; sha256sum k/* > sums");
    there.server.gate.shut();
    assert!(cluster.run(&["stage", "out", "/k"]).ok);
    wait("it is reported", || {
        cluster.log("node-3.log").contains("k/")
    });
    cluster.sh("sha256sum --quiet -c sums");
    there.server.gate.open();
    wait("some exist", || !there.names("k").is_empty());
    there.cluster.kill_node(3);
    let arguments = there.arguments();
    let arguments = arguments.each_ref().map(String::as_str);
    there.cluster.restart_node(3, &arguments);
    there.cluster.wait_for_nodes(4);
    let cluster = &there.cluster;
    let names: Vec<String> = (1..=30).map(|number| number.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    there.stage_out("/k", &names);
    cluster.sh("sha256sum --quiet -c sums; sha256sum sums > twice");
    assert_eq!(there.names("k").len(), 30);
    assert_eq!(backend(cluster, 3)["waiting"], 0);
    cluster.sh("rm -r k");
    wait("they are deleted there", || there.names("k").is_empty());
    assert!(cluster.run(&["cluster", "fsck"]).ok);
}

#[test]
fn files_of_cluster_are_stored_by_sftp() {
    let Some(server) = servers::sftp() else {
        return;
    };
    files_of_a_cluster_are_there(server);
}

#[test]
fn files_of_cluster_are_stored_by_webdav() {
    let Some(server) = servers::webdav() else {
        return;
    };
    files_of_a_cluster_are_there(server);
}

#[test]
fn files_of_cluster_are_stored_by_webhdfs() {
    let Some(server) = servers::webhdfs() else {
        return;
    };
    files_of_a_cluster_are_there(server);
}

#[cfg(feature = "azblob")]
#[test]
fn files_of_cluster_are_stored_by_azblob() {
    let Some(server) = servers::azblob() else {
        return;
    };
    files_of_a_cluster_are_there(server);
}

#[cfg(feature = "gcs")]
#[test]
fn files_of_cluster_are_stored_by_gcs() {
    let Some(server) = servers::gcs() else { return };
    files_of_a_cluster_are_there(server);
}

/// An export that is killed leaves no partial file under any name, and the next export completes it. A remote is
/// visible in the mount.
#[test]
fn killed_sftp_export_is_repeated_without_partial_files() {
    let (Some(server), Some(cluster)) = (servers::sftp(), Cluster::start()) else {
        return;
    };
    let files = server.files.clone().unwrap();
    cluster.json(&["remote", "add", "far", &server.uri]);
    let keys = keys(&cluster, &server.keys).display().to_string();
    cluster.sh("mkdir raw; for i in $(seq 8); do head -c 500000 /dev/urandom > raw/$i; done");
    let export = ["cp", "/raw", "far:run", "--keys", &keys];
    let mut killed = cluster.tidemill();
    let mut killed = killed
        .args(export)
        .args(["--limit-rate", "1MB"])
        .spawn()
        .unwrap();
    let whole = || (1..=8).filter(|number| files.join(format!("run/{number}")).exists());
    wait("a file exists", || whole().count() > 0);
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
    let reported = cluster.json(&export);
    assert_eq!(
        reported["files"].as_u64().unwrap() + reported["same"].as_u64().unwrap(),
        8
    );
    cluster.sh(&format!(
        "diff -r --exclude '.tidemill-part-*' raw {:?}",
        files.join("run")
    ));
    std::fs::write(files.join("run/new"), "from there").unwrap();
    cluster.json(&["cp", "far:run/new", "/back", "--keys", &keys]);
    assert_eq!(cluster.sh("cat back/new"), "from there");
    let refused = cluster.run(&["cp", "/raw", "far:run"]);
    assert!(
        !refused.ok && refused.err.contains("known hosts"),
        "{}",
        refused.err
    );
    let mut check = cluster.tidemill();
    check.args(["remote", "check", "far", "--keys", &keys]);
    assert!(printed(check.output().unwrap()).ok);
}
