//! Tests nodes whose files are in a backend: staged-out files are stored there under their names, and are read from there.

use crate::cluster::{Cluster, Device, Options, wait};
use crate::stand_in::StandIn;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

const OTHER_USER: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups";
const SECRET: &str = "hush-hush-hush";
/// Two blocks and a part of a third.
pub(crate) const BYTES: usize = (9 << 20) + 3;

pub(crate) fn noise(mut seed: u64) -> Vec<u8> {
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        seed.to_be_bytes()[0]
    };
    (0..BYTES).map(|_| next()).collect()
}

pub(crate) fn bare() -> Option<Cluster> {
    Cluster::with(Options {
        mount: false,
        server_args: vec!["--stage-out-after".into(), "1s".into()],
        ..Options::default()
    })
}

/// Returns the nodes that have a file.
pub(crate) fn nodes(cluster: &Cluster, path: &str) -> Vec<u64> {
    let layout = cluster.json(&["stat", path]);
    let replicas = layout["parts"][0]["replicas"].as_array().unwrap();
    replicas
        .iter()
        .map(|replica| replica["node"].as_u64().unwrap())
        .collect()
}

pub(crate) fn backend(cluster: &Cluster, index: usize) -> Value {
    cluster.json(&["status"])["nodes"][index]["backend"].clone()
}

/// A cluster with two nodes of the capacity tier, node 2 of the burst tier, and node 3, whose files are in an object store.
struct Cloud {
    cluster: Cluster,
    store: StandIn,
    _runtime: tokio::runtime::Runtime,
}

impl Cloud {
    fn start() -> Option<Self> {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let store = runtime.block_on(StandIn::start());
        store.state().key = Some("me".into());
        let mut cluster = bare()?;
        cluster.add_node(&["--tier", "burst"]);
        let keys = cluster.path("keys");
        let text = format!("access_key_id = \"me\"\nsecret_access_key = \"{SECRET}\"\n");
        std::fs::write(&keys, text).unwrap();
        std::fs::set_permissions(&keys, PermissionsExt::from_mode(0o600)).unwrap();
        let cloud = Self {
            cluster,
            store,
            _runtime: runtime,
        };
        Some(cloud.with_backend())
    }

    fn arguments(&self) -> [String; 6] {
        [
            "--backend".into(),
            format!("s3://bucket/top?endpoint=http://{}", self.store.address),
            "--backend-keys".into(),
            self.cluster.path("keys").display().to_string(),
            "--backend-cache".into(),
            "1MiB".into(),
        ]
    }

    fn with_backend(mut self) -> Self {
        let arguments = self.arguments();
        self.cluster
            .add_node(&arguments.each_ref().map(String::as_str));
        self.cluster.start_mount();
        self
    }

    /// Waits until all closed files of a directory are stored in the backend and nowhere else: a close does not wait for this.
    fn stage_out(&self, directory: &str, names: &[&str]) {
        wait("all is in the backend only", || {
            let printed = self
                .cluster
                .run(&["stage", "out", directory, "--evict", "--wait"]);
            assert!(printed.ok, "{}", printed.err);
            let only = |name: &&str| nodes(&self.cluster, &format!("{directory}/{name}")) == [3];
            names.iter().all(only)
        });
    }

    fn below(&self, prefix: &str) -> Vec<String> {
        let state = self.store.state();
        let all = state.objects.keys();
        all.filter(|key| key.starts_with(prefix)).cloned().collect()
    }

    fn there(&self, name: &str) -> Option<Vec<u8>> {
        let key = format!("top/{name}");
        let state = self.store.state();
        state.objects.get(&key).map(|(content, _)| content.clone())
    }
}

#[test]
fn files_are_staged_out_to_object_store_and_are_usable_there() {
    let Some(mut cloud) = Cloud::start() else {
        return;
    };
    let (large, other) = (noise(1), noise(2));
    let cluster = &cloud.cluster;
    cloud
        .store
        .put("top/d/theirs", b"of somebody else".to_vec());
    cluster.sh("mkdir d; echo one > d/small; : > d/empty; echo ours > d/theirs; echo ö > 'd/ä b'");
    std::fs::write(cluster.at("d/large"), &large).unwrap();
    cloud.stage_out("/d", &["small", "empty", "theirs", "ä b", "large"]);
    for (name, content) in [("small", "one\n"), ("ä b", "ö\n"), ("empty", "")] {
        assert_eq!(
            cloud.there(&format!("d/{name}")).unwrap(),
            content.as_bytes()
        );
        assert_eq!(nodes(cluster, &format!("/d/{name}")), [3], "{name}");
    }
    assert!(cloud.there("d/large").unwrap() == large);
    // An object that somebody else has put there is not changed.
    assert_eq!(cloud.there("d/theirs").unwrap(), b"of somebody else");
    assert_eq!(cluster.sh("cat d/theirs"), "ours\n");
    // A node reports its counts several times a second.
    wait("it is reported", || {
        let reported = backend(cluster, 3);
        (&reported["objects"], &reported["waiting"]) == (&5.into(), &0.into())
    });

    // A file that is no longer in the cache is fetched, but only the requested bytes of it.
    wait("the large one is not in the cache", || {
        !cluster.object_files("/d/large")[0].exists()
    });
    assert!(std::fs::read(cluster.at("d/large")).unwrap() == large);
    cluster.sh("cp d/large copy; cmp copy d/large; tail -c 3 d/large | cmp - <(tail -c 3 copy)");
    let job = r#"name = "count"; workdir = "/"; tasks = ( { name = "count"; kernel = "/bin/sh";
        args = ["-c", "cat d/large | wc -c > count; cat d/small >> count"];
        input = ["d/large", "d/small"]; output = ["count"]; } );"#;
    cluster.done(cluster.submit(job));
    assert_eq!(cluster.sh("cat count"), format!("{BYTES}\none\n"));

    replaced_and_removed(&cloud, &other);
    killed_and_refused(&mut cloud);
    changed_by_others(&cloud);
    let kept = cloud.cluster.log("node-3.log") + &cloud.cluster.run(&["status", "--json"]).out;
    assert!(!kept.contains(SECRET));
}

/// A new version takes the name, and a deletion deletes the object there, too.
fn replaced_and_removed(cloud: &Cloud, other: &[u8]) {
    let cluster = &cloud.cluster;
    cluster.sh("echo two > d/small");
    std::fs::write(cluster.at("d/large"), other).unwrap();
    wait("the new versions exist", || {
        assert!(cluster.run(&["stage", "out", "/d", "--evict", "--wait"]).ok);
        cloud.there("d/small").unwrap() == b"two\n" && cloud.there("d/large").unwrap() == other
    });
    assert_eq!(cluster.sh("cat d/small"), "two\n");
    cluster.sh("rm d/large d/theirs d/empty");
    wait("removed files are deleted there", || {
        cloud.below("top/d/").len() < 4
    });
    let left = ["top/d/small", "top/d/theirs", "top/d/ä b"];
    assert_eq!(cloud.below("top/d/"), left);
    assert!(cloud.store.state().uploads.is_empty());
}

/// The node is killed while it writes there; the store refuses the keys, and accepts them later.
fn killed_and_refused(cloud: &mut Cloud) {
    cloud.cluster.sh("mkdir k; for i in $(seq 40); do head -c 50000 /dev/urandom > k/$i; done; sha256sum k/* > sums");
    cloud.store.state().key = Some("nobody".into());
    assert!(cloud.cluster.run(&["stage", "out", "/k"]).ok);
    let refused = |cluster: &Cluster| cluster.log("node-3.log").contains("k/");
    wait("the store refuses", || refused(&cloud.cluster));
    assert!(cloud.there("k/7").is_none());
    cloud.cluster.sh("sha256sum --quiet -c sums");
    cloud.store.state().key = Some("me".into());
    wait("some exist", || cloud.there("k/7").is_some());
    cloud.cluster.kill_node(3);
    let arguments = cloud.arguments();
    let arguments = arguments.each_ref().map(String::as_str);
    cloud.cluster.restart_node(3, &arguments);
    cloud.cluster.wait_for_nodes(4);
    let cluster = &cloud.cluster;
    let names: Vec<String> = (1..=40).map(|number| number.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    cloud.stage_out("/k", &names);
    cluster.sh("sha256sum --quiet -c sums");
    assert_eq!(cloud.below("top/k/").len(), 40);
    cluster.sh("rm -r k");
    wait("they are deleted there", || {
        cloud.below("top/k/").is_empty()
    });
    assert!(cluster.run(&["cluster", "fsck"]).ok);
}

/// Others overwrite the object: no reader gets their bytes as the file's content, and this is reported.
fn changed_by_others(cloud: &Cloud) {
    let cluster = &cloud.cluster;
    std::fs::write(cluster.at("d/mine"), noise(3)).unwrap();
    cloud.stage_out("/d", &["mine"]);
    assert!(cloud.there("d/mine").unwrap() == noise(3));
    let cached = &cluster.object_files("/d/mine")[0];
    let object = cached.strip_prefix(cluster.node_directory(3)).unwrap();
    // While the burst tier has the file, it would be recreated from there.
    let burst = cluster.node_directory(2).join(object);
    wait("it is nowhere else", || !cached.exists() && !burst.exists());
    cloud.store.put("top/d/mine", noise(4));
    cluster.run(&["cluster", "scrub", "/d", "--wait"]);
    wait("it is reported", || {
        cluster.run(&["cluster", "health"]).out.contains("/d/mine")
            || cluster.run(&["status"]).out.contains("corrupt")
    });
    let got = cluster.path("got").display().to_string();
    assert!(!cluster.run(&["get", "/d/mine", &got]).ok);
    cluster.sh("rm d/mine");
    assert!(cloud.there("d/mine").unwrap() == noise(4));
}

/// Zero-copy import: nothing is copied, and the files of the backend stay when their stub files are removed.
#[test]
fn backend_files_are_imported_and_read_without_copy() {
    let Some(mut cluster) = bare() else {
        return;
    };
    let directory: PathBuf = cluster.path("pfs");
    std::fs::create_dir_all(directory.join("run/deep")).unwrap();
    let large = noise(5);
    std::fs::write(directory.join("run/large"), &large).unwrap();
    std::fs::write(directory.join("run/deep/small"), "small\n").unwrap();
    let uri = format!("file://{}", directory.display());
    cluster.add_node(&["--backend", &uri]);
    cluster.start_mount();
    cluster.json(&["remote", "add", "pfs", &format!("{uri}/run")]);
    cluster.json(&["remote", "add", "else", "file:///usr"]);
    let elsewhere = cluster.run(&["cp", "--no-copy", "else:bin", "/x"]);
    assert!(
        elsewhere.err.contains("--backend file:///usr"),
        "{}",
        elsewhere.err
    );
    cluster.sh("mkdir theirs; chmod 777 theirs");
    let other_user = format!(
        "{OTHER_USER} {:?} cp --no-copy pfs: /theirs",
        cluster.tidemill()
    );
    let other_user = cluster.try_sh(&other_user);
    assert!(
        !other_user.ok && other_user.err.contains("import it"),
        "{}",
        other_user.err
    );

    let reported = cluster.json(&["cp", "--no-copy", "pfs:", "/raw"]);
    assert_eq!(reported["files"], 2, "{reported}");
    assert_eq!(nodes(&cluster, "/raw/large"), [2]);
    assert!(!cluster.object_files("/raw/large")[0].exists());
    assert!(std::fs::read(cluster.at("raw/large")).unwrap() == large);
    assert_eq!(
        cluster.json(&["cp", "--no-copy", "pfs:", "/raw"])["same"],
        2
    );
    let job = r#"name = "count"; workdir = "/"; tasks = ( { name = "count"; kernel = "/bin/sh";
        args = ["-c", "cat raw/large raw/deep/small | wc -c > count"];
        input = ["raw/large", "raw/deep/small"]; output = ["count"]; } );"#;
    cluster.done(cluster.submit(job));
    assert_eq!(cluster.sh("cat count"), format!("{}\n", BYTES + 6));

    // A file that is written there by name is stored there soon, under its name, and survives.
    cluster.sh("mkdir here; setfattr -n user.tidemill.node -v 2 here; echo mine > here/mine");
    wait("it is in the backend", || {
        directory.join("here/mine").exists()
    });
    cluster.sh("mv raw/deep/small raw/moved; echo more >> raw/moved");
    cluster.sh("sync -f .");
    // A recovered database knows the files, in the cache or not.
    cluster.recover_database();
    assert!(std::fs::read(cluster.at("raw/large")).unwrap() == large);
    cluster.restart_node(2, &["--backend", &uri]);
    cluster.wait_for_nodes(3);
    assert_eq!(cluster.sh("cat here/mine raw/moved"), "mine\nsmall\nmore\n");

    std::fs::write(directory.join("run/large"), "short").unwrap();
    // The mount still has its pages with the previous content. Other readers ask the store.
    let got = cluster.path("got").display().to_string();
    assert!(!cluster.run(&["get", "/raw/large", &got]).ok);
    cluster.sh("rm -r raw here");
    wait("written files are deleted", || {
        !directory.join("here/mine").exists()
    });
    assert_eq!(
        std::fs::read(directory.join("run/large")).unwrap(),
        b"short"
    );
    assert!(directory.join("run/deep/small").exists());
}

/// The directory of the node, through which files are staged out, is full: the files are staged out to another node of the capacity tier.
#[test]
fn stage_out_uses_another_node_if_backend_node_is_full() {
    let Some(mut cluster) = bare() else {
        return;
    };
    cluster.add_node(&["--tier", "burst"]);
    let directory = cluster.path("pfs");
    std::fs::create_dir_all(&directory).unwrap();
    let device = Device::new(cluster.node_directory(3), "64m");
    let uri = format!("file://{}", directory.display());
    cluster.add_node(&["--backend", &uri, "--backend-cache", "1MiB"]);
    cluster.start_mount();
    device.fill();
    let trouble = || cluster.json(&["status"])["nodes"][3]["trouble"] != "";
    wait("the node reports that it has no space", trouble);
    let large = noise(6);
    cluster.sh("mkdir d");
    std::fs::write(cluster.at("d/large"), &large).unwrap();
    let stored = |name: &str, there: &[u64]| {
        cluster.run(&["stage", "out", "/d", "--evict", "--wait"]).ok
            && nodes(&cluster, name).iter().all(|one| there.contains(one))
    };
    wait("it is stored elsewhere", || stored("/d/large", &[0, 1]));
    assert!(std::fs::read(cluster.at("d/large")).unwrap() == large);
    assert!(!directory.join("d/large").exists());
    device.free();
    wait("it has space again", || !trouble());
    std::fs::write(cluster.at("d/later"), &large).unwrap();
    wait("later files are stored in the backend", || {
        stored("/d/later", &[3])
    });
    assert!(std::fs::read(directory.join("d/later")).unwrap() == large);
}
