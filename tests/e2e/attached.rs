//! Tests directories that are attached to stores: objects are found, changed and deleted in the store; files are written, deleted and processed
//! in the cluster; processes are killed.

use crate::cluster::{Cluster, Options, wait};
use crate::stand_in::StandIn;
use serde_json::Value;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

const OTHER_USER: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups";

pub(crate) fn bare(nodes: usize) -> Option<Cluster> {
    Cluster::with(Options {
        nodes,
        mount: false,
        ..Options::default()
    })
}

/// Two nodes of the capacity tier, and node 2, whose files are in an object store, below `top`; remote `cloud` leads to `top/data`.
pub(crate) struct Cloud {
    pub(crate) cluster: Cluster,
    pub(crate) store: StandIn,
    /// Index of the last node, which has that store.
    pub(crate) last: usize,
    _runtime: tokio::runtime::Runtime,
}

impl Cloud {
    pub(crate) fn start() -> Option<Self> {
        Self::with(2)
    }

    /// Starts with `nodes` other nodes.
    pub(crate) fn with(nodes: usize) -> Option<Self> {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let store = runtime.block_on(StandIn::start());
        store.state().key = Some("me".into());
        let mut cluster = bare(nodes)?;
        let keys = cluster.path("keys");
        let text = "access_key_id = \"me\"\nsecret_access_key = \"hush\"\n";
        std::fs::write(&keys, text).unwrap();
        std::fs::set_permissions(&keys, PermissionsExt::from_mode(0o600)).unwrap();
        let address = store.address.clone();
        cluster.add_node(&arguments(&cluster, &address).each_ref().map(String::as_str));
        cluster.start_mount();
        let uri = format!("s3://bucket/top/data?endpoint=http://{address}");
        cluster.json(&["remote", "add", "cloud", &uri]);
        Some(Self {
            cluster,
            store,
            last: nodes,
            _runtime: runtime,
        })
    }

    pub(crate) fn put(&self, name: &str, content: &str) {
        self.store
            .put(&format!("top/data/{name}"), content.as_bytes().to_vec());
    }

    pub(crate) fn there(&self, name: &str) -> Option<String> {
        let key = format!("top/data/{name}");
        let state = self.store.state();
        let found = state.objects.get(&key);
        found.map(|(content, _)| String::from_utf8_lossy(content).into_owned())
    }

    pub(crate) fn gone(&self, name: &str) {
        let key = format!("top/data/{name}");
        self.store.state().objects.remove(&key).unwrap();
    }

    pub(crate) fn refresh(&self) -> Value {
        self.cluster.json(&["remote", "refresh", "cloud"])["attached"].clone()
    }

    /// Removes all objects from the store, and returns them.
    pub(crate) fn empty(&self) -> std::collections::BTreeMap<String, (Vec<u8>, u64)> {
        std::mem::take(&mut self.store.state().objects)
    }

    pub(crate) fn restart_node(&mut self) {
        let arguments = arguments(&self.cluster, &self.store.address);
        self.cluster
            .restart_node(self.last, &arguments.each_ref().map(String::as_str));
    }
}

fn arguments(cluster: &Cluster, address: &str) -> [String; 4] {
    [
        "--backend".into(),
        format!("s3://bucket/top?endpoint=http://{address}"),
        "--backend-keys".into(),
        cluster.path("keys").display().to_string(),
    ]
}

pub(crate) fn version(cluster: &Cluster, path: &str) -> u64 {
    cluster.json(&["stat", path])["version"].as_u64().unwrap()
}

pub(crate) fn runs_done(cluster: &Cluster, rule: &str) -> u64 {
    let shown = cluster.json(&["rule", "show", rule]);
    shown["rule_runs"]["done"].as_u64().unwrap_or_default()
}

#[test]
fn attached_directory_lists_store_and_jobs_name_it_by_remote() {
    let Some(cloud) = Cloud::start() else { return };
    let cluster = &cloud.cluster;
    cloud.put("a.txt", "one\n");
    cloud.put("deep/er/ä b.txt", "two\n");
    cloud.put("x//y", "no name of a file");
    cloud.put(&"n".repeat(300), "too long");
    let job = r#"name = "copy"; workdir = "/"; tasks = ( { name = "copy"; kernel = "/bin/sh";
        args = ["-c", "cat cloud/a.txt > cloud/out.txt"]; input = ["/remotes/cloud/a.txt"]; output = ["/remotes/cloud/out.txt"]; } );"#;
    let printed = cluster.try_submit(job);
    assert!(
        printed.err.contains("remote attach cloud"),
        "{}",
        printed.err
    );
    let rule = r#"name = "count"; workdir = "/"; pattern = "/remotes/cloud/{n}.txt";
        task = { kernel = "/bin/sh"; args = [ "-c", "wc -c < \"$1\"", "sh", "{file}" ]; output = [ "out/{n}" ]; stdout = "out/{n}"; };"#;
    std::fs::write(cluster.path("rule"), rule).unwrap();
    let rule = cluster.path("rule").display().to_string();
    let printed = cluster.run(&["rule", "create", &rule]);
    assert!(
        !printed.ok && printed.err.contains("remote attach cloud"),
        "{}",
        printed.err
    );
    let other_user = format!(
        "{OTHER_USER} {:?} remote attach cloud /cloud",
        cluster.tidemill()
    );
    assert!(!cluster.try_sh(&other_user).ok);
    for directory in ["/", "/remotes/cloud", "/a/../b"] {
        assert!(
            !cluster.run(&["remote", "attach", "cloud", directory]).ok,
            "{directory}"
        );
    }

    let reported = cluster.json(&[
        "remote", "attach", "cloud", "/cloud", "--every", "0s", "--mode", "640",
    ]);
    let reported = &reported["attached"];
    assert_eq!(
        (&reported["files"], &reported["skipped"]),
        (&2.into(), &2.into()),
        "{reported}"
    );
    assert_eq!(
        cluster.sh("cat cloud/a.txt 'cloud/deep/er/ä b.txt'"),
        "one\ntwo\n"
    );
    let about = std::fs::metadata(cluster.at("cloud/a.txt")).unwrap();
    assert_eq!((about.mode() & 0o777, about.uid()), (0o640, 0));
    assert!(!cluster.try_sh(&format!("{OTHER_USER} cat cloud/a.txt")).ok);
    let nested = cluster.run(&["remote", "attach", "cloud", "/cloud/deep"]);
    assert!(nested.err.contains("detach"), "{}", nested.err);
    assert!(!cluster.run(&["remote", "delete", "cloud"]).ok);

    cluster.sh("mkdir out");
    cluster.json(&["rule", "create", &rule, "--existing"]);
    wait("the rule has run", || runs_done(cluster, "count") == 1);
    cluster.done(cluster.submit(job));
    wait("the output is in the store", || {
        cloud.there("out.txt").as_deref() == Some("one\n")
    });
    wait("and runs", || runs_done(cluster, "count") == 2);
    assert_eq!(cloud.refresh()["files"], 3);
    assert_eq!(version(cluster, "/cloud/out.txt"), 1);
    changed_there(&cloud);
    written_here(&cloud);
}

fn changed_there(cloud: &Cloud) {
    let cluster = &cloud.cluster;
    cloud.put("a.txt", "another\n");
    cloud.put("new.txt", "new\n");
    cloud.gone("deep/er/ä b.txt");
    cloud.refresh();
    assert_eq!(
        cluster.sh("cat cloud/a.txt cloud/new.txt"),
        "another\nnew\n"
    );
    assert!(!cluster.at("cloud/deep/er/ä b.txt").exists());
    assert_eq!(version(cluster, "/cloud/a.txt"), 2);
    wait("both have triggered the rule", || {
        runs_done(cluster, "count") == 4
    });
    cloud.refresh();
    assert_eq!(version(cluster, "/cloud/a.txt"), 2);
    assert_eq!(runs_done(cluster, "count"), 4);
    assert_eq!(cluster.sh("cat out/a"), "8\n");
}

fn written_here(cloud: &Cloud) {
    let cluster = &cloud.cluster;
    cluster.sh(
        "echo more >> cloud/a.txt; mkdir cloud/here; echo mine > cloud/here/mine; rm cloud/new.txt",
    );
    wait("written files are in the store", || {
        cloud.there("a.txt").as_deref() == Some("another\nmore\n")
            && cloud.there("here/mine").is_some()
    });
    cloud.refresh();
    assert_eq!(version(cluster, "/cloud/a.txt"), 3);
    assert_eq!(version(cluster, "/cloud/here/mine"), 1);
    // An object that somebody else has put there stays, and becomes a file when it is another one.
    assert_eq!(cloud.there("new.txt").as_deref(), Some("new\n"));
    assert!(!cluster.at("cloud/new.txt").exists());
    cloud.put("new.txt", "newer\n");
    cluster.sh("rm cloud/here/mine");
    cloud.refresh();
    assert_eq!(cluster.sh("cat cloud/new.txt"), "newer\n");
    wait("removed files are deleted there", || {
        cloud.there("here/mine").is_none()
    });
    // Other programs change objects that the cluster has put there.
    cloud.put("a.txt", "theirs\n");
    cloud.refresh();
    assert_eq!(cluster.sh("cat cloud/a.txt"), "theirs\n");
    assert_eq!(version(cluster, "/cloud/a.txt"), 4);
    let health = cluster.run(&["cluster", "health"]).out;
    assert!(!health.contains("/cloud"), "{health}");
    cluster.json(&["remote", "detach", "cloud"]);
    cloud.put("late.txt", "late\n");
    cluster.sh("echo no more > cloud/other");
    assert!(!cluster.run(&["remote", "refresh", "cloud"]).ok);
    assert!(!cluster.at("cloud/late.txt").exists() && cloud.there("other").is_none());
    assert_eq!(cluster.sh("cat cloud/a.txt"), "theirs\n");
}

#[test]
fn attached_directory_keeps_both_versions_of_conflicting_writes() {
    let Some(cloud) = Cloud::start() else { return };
    let cluster = &cloud.cluster;
    cloud.put("both", "first\n");
    cloud.put("directory/a", "a\n");
    cloud.put("file", "file\n");
    cluster.sh("mkdir -p cloud/file; echo b > cloud/directory");
    cluster.json(&["remote", "attach", "cloud", "/cloud", "--every", "0s"]);
    let passed = cloud.refresh();
    assert_eq!(passed["skipped"], 2, "{passed}");
    assert_eq!(cluster.sh("cat cloud/both cloud/directory"), "first\nb\n");
    // The store gets another object before the file that was written here is stored there.
    cloud.store.state().key = Some("nobody".into());
    cluster.sh("echo ours > cloud/both");
    cloud.put("both", "theirs\n");
    cloud.store.state().key = Some("me".into());
    let theirs = || {
        let state = cloud.store.state();
        state
            .objects
            .values()
            .any(|(content, _)| content == b"ours\n")
    };
    wait("files that were written here are stored there, too", theirs);
    let both = cloud.refresh();
    assert_eq!(both["skipped"], 3, "{both}");
    let listed = cluster.run(&["remote", "list"]).out;
    assert!(
        listed.contains("3 objects of the store can be no file"),
        "{listed}"
    );
    assert_eq!(cluster.sh("cat cloud/both"), "ours\n");
    assert_eq!(cloud.there("both").as_deref(), Some("theirs\n"));
    assert_eq!(cluster.sh("ls cloud"), "both\ndirectory\nfile\n");
    // The user resolves the conflict by renaming or deleting one of both.
    cluster.sh("mv cloud/both kept; rm cloud/directory; rmdir cloud/file");
    assert_eq!(cloud.refresh()["skipped"], 0);
    assert_eq!(
        cluster.sh("cat kept cloud/both cloud/directory/a cloud/file"),
        "ours\ntheirs\na\nfile\n"
    );
}

#[test]
fn attached_store_that_is_offline_or_empty_deletes_no_file() {
    let Some(mut cloud) = Cloud::start() else {
        return;
    };
    let cluster = &cloud.cluster;
    cloud.put("a", "a\n");
    cloud.put("b", "b\n");
    cluster.json(&["remote", "attach", "cloud", "/cloud", "--every", "1s"]);
    cloud.store.state().key = Some("nobody".into());
    wait("the cluster reports it", || {
        cluster
            .run(&["remote", "list"])
            .out
            .contains("remote cloud: ")
            && cluster.json(&["status"])["nodes"][2]["trouble"] != ""
    });
    let refused = cluster.run(&["remote", "refresh", "cloud"]);
    assert!(
        !refused.ok && refused.err.contains("stay as they are"),
        "{}",
        refused.err
    );
    assert_eq!(cluster.sh("ls cloud"), "a\nb\n");
    cloud.store.state().key = Some("me".into());
    wait("all is well", || {
        cluster.json(&["status"])["nodes"][2]["trouble"] == ""
    });
    let all = std::mem::take(&mut cloud.store.state().objects);
    wait("it is empty", || {
        cluster
            .run(&["remote", "list"])
            .out
            .contains("the store has no objects")
    });
    assert_eq!(cluster.sh("ls cloud"), "a\nb\n");
    cloud.store.state().objects = all;
    cloud.put("c", "c\n");
    // A file exists, and is empty, until its first version is sealed.
    wait("the work continues", || {
        cluster.try_sh("cat cloud/*").out == "a\nb\nc\n"
    });

    // A recovered database knows the files and the attachment.
    let cluster = &mut cloud.cluster;
    cluster.recover_database();
    cloud.restart_node();
    let cluster = &cloud.cluster;
    cluster.wait_for_nodes(3);
    assert_eq!(cluster.sh("cat cloud/*"), "a\nb\nc\n");
    assert_eq!(version(cluster, "/cloud/a"), 1);
    assert!(cluster.run(&["cluster", "fsck"]).ok);
}

const MANY: usize = 200;

#[test]
fn attached_object_becomes_one_file_and_triggers_rule_once() {
    let Some(mut cloud) = Cloud::start() else {
        return;
    };
    for number in 0..MANY {
        cloud.put(&format!("in/{number}"), &format!("{number}\n"));
    }
    let rule = r#"name = "once"; workdir = "/"; regex = "cloud/in/(?<n>[0-9]+)";
        task = { kernel = "/bin/sh"; args = [ "-c", "cat \"$1\"", "sh", "{file}" ]; stdout = "out/{n}"; output = [ "out/{n}" ]; };"#;
    std::fs::write(cloud.cluster.path("rule"), rule).unwrap();
    cloud.cluster.sh("mkdir out");
    let rule = cloud.cluster.path("rule").display().to_string();
    cloud.cluster.json(&["rule", "create", &rule]);
    let mut attach = cloud.cluster.tidemill();
    attach.args(["remote", "attach", "cloud", "/cloud", "--every", "1s"]);
    let mut attach = attach.spawn().unwrap();
    let made =
        |cluster: &Cluster| std::fs::read_dir(cluster.at("cloud/in")).map_or(0, Iterator::count);
    wait("some exist", || made(&cloud.cluster) > 20);
    cloud.cluster.kill_node(2);
    cloud.restart_node();
    wait("more exist", || made(&cloud.cluster) > 100);
    cloud.cluster.kill_server();
    cloud.cluster.start_server();
    wait("all exist", || made(&cloud.cluster) == MANY);
    let cluster = &cloud.cluster;
    wait("all have triggered the rule", || {
        runs_done(cluster, "once") == MANY as u64
    });
    cluster.json(&["remote", "refresh", "cloud"]);
    let rule_runs = cluster.json(&["rule", "show", "once"])["rule_runs"].clone();
    let all = rule_runs.as_object().unwrap().values();
    let all: u64 = all.filter_map(Value::as_u64).sum();
    assert_eq!(
        (&rule_runs["done"], all),
        (&MANY.into(), MANY as u64),
        "{rule_runs}"
    );
    assert_eq!(
        cluster.sh("cat out/* | sort -n | uniq | wc -l").trim(),
        MANY.to_string()
    );
    let there = |key: &&String| key.starts_with("top/data/");
    assert_eq!(
        cloud.store.state().objects.keys().filter(there).count(),
        MANY
    );
    attach.kill().ok();
    attach.wait().unwrap();
    assert!(cluster.run(&["cluster", "fsck"]).ok);
    // An aborted version may have taken the first number. No version was sealed twice.
    let sealed = "SELECT count(*), count(DISTINCT ino), count(DISTINCT path), max(version) <= 2 FROM version WHERE CAST(path AS TEXT) LIKE '/cloud/in/%'";
    let sealed = cluster.sh(&format!(
        "sqlite3 {:?} \"{sealed}\"",
        cluster.path("server/server.db")
    ));
    assert_eq!(sealed.trim(), format!("{MANY}|{MANY}|{MANY}|1"));
}

/// The store is a file system of others. Users of the cluster try to create files elsewhere and to read files without
/// permission.
#[test]
fn attached_file_system_ignores_links_of_users() {
    let Some(mut cluster) = bare(2) else { return };
    let directory: PathBuf = cluster.path("pfs");
    std::fs::create_dir_all(directory.join("run")).unwrap();
    let uri = format!("file://{}", directory.display());
    cluster.add_node(&["--backend", &uri]);
    cluster.start_mount();
    cluster.json(&["remote", "add", "pfs", &format!("{uri}/run")]);
    cluster.sh("mkdir -p theirs cloud; chmod 777 cloud; chmod 755 theirs");
    cluster.sh(&format!(
        "{OTHER_USER} ln -s /theirs cloud/d 2>&1 || true; {OTHER_USER} ln -s ../theirs cloud/e"
    ));
    for (name, content) in [("d/x", "x\n"), ("e/x", "x\n"), ("one", "one\n")] {
        std::fs::create_dir_all(directory.join("run").join(name).parent().unwrap()).unwrap();
        std::fs::write(directory.join("run").join(name), content).unwrap();
    }
    let attach = [
        "remote", "attach", "pfs", "/cloud", "--every", "1s", "--owner", "65534", "--mode", "600",
    ];
    let reported = cluster.json(&attach);
    assert_eq!(reported["attached"]["skipped"], 2, "{reported}");
    assert_eq!(
        cluster.sh("ls theirs; cat cloud/one; ls cloud"),
        "one\nd\ne\none\n"
    );
    assert_eq!(
        std::fs::metadata(cluster.at("cloud/one")).unwrap().uid(),
        65534
    );
    cluster.sh(&format!(
        "{OTHER_USER} sh -c 'echo two > cloud/two; echo again >> cloud/one'"
    ));
    wait("it exists", || {
        let read = |name: &str| std::fs::read_to_string(directory.join("run").join(name)).ok();
        read("two").as_deref() == Some("two\n") && read("one").as_deref() == Some("one\nagain\n")
    });
    std::fs::write(directory.join("run/one"), "changed\n").unwrap();
    wait("the next version is here", || {
        cluster.try_sh("cat cloud/one").out == "changed\n"
    });
    std::fs::remove_file(directory.join("run/one")).unwrap();
    wait("it is deleted", || !cluster.at("cloud/one").exists());
    // The parent of the attached directory is missing, as when a file system is not mounted.
    std::fs::rename(directory.join("run"), directory.join("away")).unwrap();
    wait("it is reported", || {
        cluster
            .run(&["remote", "list"])
            .out
            .contains("remote pfs: ")
    });
    assert_eq!(cluster.sh("ls cloud"), "d\ne\ntwo\n");
}

/// A job fails if it reads a version that others have replaced in the store. No file is marked as corrupt, and the next
/// version is looked for.
#[test]
fn attached_object_replaced_after_listing_is_not_corrupt() {
    let Some(cloud) = Cloud::start() else { return };
    let cluster = &cloud.cluster;
    cloud.put("a", "first\n");
    cluster.json(&["remote", "attach", "cloud", "/cloud", "--every", "0s"]);
    cloud.put("a", "other\n");
    let job = r#"name = "read"; workdir = "/"; tasks = ( { name = "read"; kernel = "/bin/cat"; args = ["cloud/a"];
        input = ["/remotes/cloud/a"]; stdout = "out"; output = ["out"]; } );"#;
    let ended = cluster.ended(cluster.submit(job));
    let state = ended["state"].as_str().unwrap_or_default().to_owned();
    assert!(state == "failed", "{ended}");
    wait("the next version is here", || {
        cluster.try_sh("cat cloud/a").out == "other\n"
    });
    cluster.done(cluster.submit(job));
    assert_eq!(cluster.sh("cat out"), "other\n");
    let health = cluster.run(&["cluster", "health"]);
    assert!(
        health.ok && !health.out.contains("/cloud/a"),
        "{}",
        health.out
    );
}

/// No operation in the directory of a read-only store changes the store. New files of the directory are stored in the cluster.
#[test]
fn attached_read_only_store_stays_unchanged() {
    let Some(cloud) = Cloud::start() else { return };
    let cluster = &cloud.cluster;
    cloud.put("a", "theirs\n");
    cluster.json(&["remote", "delete", "cloud"]);
    // The address is the same as that of the node: files that it stored there would be in the store's own directory.
    let uri = format!("s3://bucket/top?endpoint=http://{}", cloud.store.address);
    cluster.json(&["remote", "add", "cloud", &uri, "--read-only"]);
    cluster.json(&["remote", "attach", "cloud", "/cloud", "--every", "0s"]);
    let before = cloud.store.state().objects.clone();
    cluster.sh(
        "echo more >> cloud/data/a; echo new > cloud/new; echo over > cloud/t; mv cloud/t cloud/u",
    );
    // Files of a directory of that node are in the store: this file would be, too, if it were stored there.
    cluster.sh("mkdir goes; setfattr -n user.tidemill.node -v 2 goes; echo x > goes/x");
    let key = "top/goes/x";
    wait("all files of the node are durable", || {
        cloud.store.state().objects.contains_key(key)
    });
    wait("no work is queued", || {
        cluster.json(&["status"])["nodes"][2]["backend"]["waiting"] == 0
    });
    let mut now = cloud.store.state().objects.clone();
    now.remove(key);
    now.remove("top/.tidemill-store");
    assert_eq!(now, before);
    let read = cluster.sh("cat cloud/data/a cloud/new cloud/u");
    assert_eq!(read, "theirs\nmore\nnew\nover\n");
    cloud.put("a", "newer\n");
    assert_eq!(cloud.refresh()["skipped"], 1);
    assert_eq!(cluster.sh("cat cloud/data/a"), "theirs\nmore\n");
    cluster.json(&["remote", "detach", "cloud"]);
}

/// The store accepted the file, and the node was killed before it got the answer. The file belongs to the cluster, not
/// to others.
#[test]
fn object_written_by_killed_node_counts_as_written_by_cluster() {
    let Some(mut cloud) = Cloud::start() else {
        return;
    };
    cloud.put("a", "theirs\n");
    cloud
        .cluster
        .json(&["remote", "attach", "cloud", "/cloud", "--every", "0s"]);
    // The first file in a store also stores the store's mark.
    cloud.cluster.sh("echo first > cloud/first");
    wait("the first exists", || cloud.there("first").is_some());
    cloud.store.state().mute = true;
    cloud.cluster.sh("echo new > cloud/b");
    wait("the store has the file", || {
        cloud.there("b").as_deref() == Some("new\n")
    });
    cloud.cluster.kill_node(2);
    cloud.store.state().mute = false;
    cloud.restart_node();
    cloud.cluster.wait_for_nodes(3);
    wait("it is known as the cluster's", || {
        cloud.cluster.json(&["status"])["nodes"][2]["backend"]["waiting"] == 0
    });
    assert_eq!(cloud.refresh()["skipped"], 0);
    assert_eq!(version(&cloud.cluster, "/cloud/b"), 1);
    assert_eq!(
        cloud.cluster.sh("cat cloud/a cloud/b; ls cloud"),
        "theirs\nnew\na\nb\nfirst\n"
    );
    let state = cloud.store.state();
    let siblings = |key: &&String| key.starts_with("top/data/b.");
    assert_eq!(state.objects.keys().filter(siblings).count(), 0);
}

/// The mode of a directory decides which users may use it, and only administrators attach. A remote that is attached to another directory starts
/// again there.
#[test]
fn attached_directory_obeys_mode_and_is_plain_after_detach() {
    let Some(cloud) = Cloud::start() else { return };
    let cluster = &cloud.cluster;
    cloud.put("d/a", "theirs\n");
    cluster.json(&[
        "remote", "attach", "cloud", "/cloud", "--every", "0s", "--mode", "600",
    ]);
    assert_eq!(cluster.sh("cat cloud/d/a"), "theirs\n");
    assert!(!cluster.try_sh(&format!("{OTHER_USER} ls cloud")).ok);
    let tidemill = format!("{OTHER_USER} {:?}", cluster.tidemill());
    for command in ["refresh cloud", "detach cloud", "attach cloud /mine"] {
        assert!(
            !cluster.try_sh(&format!("{tidemill} remote {command}")).ok,
            "{command}"
        );
    }
    let special = cluster.run(&["remote", "attach", "cloud", "/data (old)"]);
    assert!(!special.ok, "{}", special.out);
    cluster.json(&["remote", "detach", "cloud"]);
    let asked = cluster.try_sh("getfattr -n user.tidemill.node cloud");
    assert!(!asked.ok, "{}", asked.out);
    cluster.json(&["remote", "attach", "cloud", "/other", "--every", "0s"]);
    assert_eq!(cluster.sh("cat other/d/a cloud/d/a"), "theirs\ntheirs\n");
}
