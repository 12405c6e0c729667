//! Tests faults of directories that are attached to stores: listings that end too early, stores that are empty or offline, names that change.

use crate::attached::{Cloud, bare, version};
use crate::burst::nodes;
use crate::cluster::{Cluster, wait};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Number of objects in a page of a listing, plus one.
const MORE_THAN_A_PAGE: usize = 1001;

fn count(cluster: &Cluster, directory: &str) -> usize {
    std::fs::read_dir(cluster.at(directory)).map_or(0, Iterator::count)
}

fn listed(cluster: &Cluster) -> String {
    cluster.run(&["remote", "list"]).out
}

/// Attaches, and does not wait for the first listing, which waits for the second list of names.
fn begin(cloud: &Cloud, every: &str) -> std::process::Child {
    for number in 0..MORE_THAN_A_PAGE {
        cloud.put(&format!("{number:04}"), "x");
    }
    cloud.store.state().lists_given = Some(1);
    let mut attach = cloud.cluster.tidemill();
    attach.args(["remote", "attach", "cloud", "/cloud", "--every", every]);
    let attach = attach.spawn().unwrap();
    wait("a page exists", || count(&cloud.cluster, "cloud") == 1000);
    attach
}

fn end(mut child: std::process::Child) {
    child.kill().ok();
    child.wait().unwrap();
}

#[test]
fn attached_directory_keeps_files_after_killed_listing_or_empty_store() {
    let Some(mut cloud) = Cloud::start() else {
        return;
    };
    let attach = begin(&cloud, "1s");
    cloud.cluster.kill_node(cloud.last);
    let all = cloud.empty();
    cloud.store.state().lists_given = None;
    cloud.restart_node();
    wait("it is reported", || {
        listed(&cloud.cluster).contains("the store has no objects")
    });
    assert_eq!(count(&cloud.cluster, "cloud"), 1000);
    cloud.store.state().objects = all;
    wait("the work continues", || {
        count(&cloud.cluster, "cloud") == MORE_THAN_A_PAGE
    });
    end(attach);
    let cluster = &cloud.cluster;
    wait("all is well", || cluster.run(&["cluster", "health"]).ok);
    let health = cluster.run(&["cluster", "health"]).out;
    assert!(!health.contains("/cloud"), "{health}");
    assert_eq!(cluster.sh("cat cloud/0000 cloud/1000"), "xx");
    assert!(cluster.run(&["cluster", "fsck"]).ok);
}

/// Nobody repeats the request: the listing is completed anyway.
#[test]
fn attached_listing_resumes_after_kill_of_server_or_node() {
    let Some(mut cloud) = Cloud::start() else {
        return;
    };
    let attach = begin(&cloud, "0s");
    cloud.cluster.kill_server();
    end(attach);
    cloud.cluster.start_server();
    cloud.store.state().lists_given = None;
    wait("the scan continues", || {
        count(&cloud.cluster, "cloud") == MORE_THAN_A_PAGE
    });
    wait("the scan has ended", || {
        cloud.cluster.json(&["remote", "list"])[0]["attached"]["files"] == MORE_THAN_A_PAGE
    });
    cloud.put("later", "later\n");
    cloud.cluster.kill_node(cloud.last);
    cloud.restart_node();
    wait("each start begins a scan", || {
        cloud.cluster.at("cloud/later").exists()
    });
    assert_eq!(version(&cloud.cluster, "/cloud/0000"), 1);
    assert!(cloud.cluster.run(&["cluster", "fsck"]).ok);
}

/// A cluster without any other node has no place for files that its store must not have.
#[test]
fn write_that_only_read_only_store_could_take_is_refused() {
    let Some(cloud) = Cloud::with(0) else { return };
    let cluster = &cloud.cluster;
    cloud.put("a", "theirs\n");
    cluster.json(&["remote", "delete", "cloud"]);
    let uri = format!("s3://bucket/top?endpoint=http://{}", cloud.store.address);
    cluster.json(&["remote", "add", "cloud", &uri, "--read-only"]);
    cluster.json(&["remote", "attach", "cloud", "/cloud", "--every", "0s"]);
    let before = cloud.store.state().objects.clone();
    for script in [
        "echo new > cloud/new",
        "echo more >> cloud/data/a",
        "setfattr -n user.tidemill.node -v 0 cloud; echo new > cloud/other",
        "mkdir cloud/d; echo new > cloud/d/new",
    ] {
        let printed = cluster.try_sh(script);
        assert!(
            !printed.ok && printed.err.contains("Read-only file system"),
            "{script}: {}",
            printed.err
        );
    }
    let file = cluster.path("file").display().to_string();
    std::fs::write(&file, "new").unwrap();
    for args in [
        &["put", &file, "/cloud/put"][..],
        &["put", "--node", "0", &file, "/cloud/put"],
    ] {
        let put = cluster.run(args);
        assert!(!put.ok && put.err.contains("read-only"), "{}", put.err);
    }
    assert_eq!(
        cluster.sh("cat cloud/data/a; ls cloud"),
        "theirs\nd\ndata\n"
    );
    // New objects appear as files anyway, and other directories work as in other clusters.
    cloud.put("b", "new\n");
    cloud.refresh();
    cluster.sh("echo kept > kept");
    assert_eq!(cluster.sh("cat cloud/data/b kept"), "new\nkept\n");
    wait("it is durable in the backend", || {
        cluster.json(&["status"])["nodes"][0]["backend"]["waiting"] == 0
    });
    let mut now = cloud.store.state().objects.clone();
    now.retain(|key, _| !["top/data/b", "top/kept", "top/.tidemill-store"].contains(&key.as_str()));
    assert_eq!(now, before);
}

/// Names belong to the cluster: a rename moves no object of the store, loses none and duplicates none.
#[test]
fn rename_in_attached_directory_keeps_object_in_store() {
    let Some(cloud) = Cloud::start() else { return };
    let cluster = &cloud.cluster;
    for (name, content) in [
        ("theirs", "theirs\n"),
        ("d/x", "x\n"),
        ("d/y", "y\n"),
        ("over", "over\n"),
    ] {
        cloud.put(name, content);
    }
    cluster.json(&["remote", "attach", "cloud", "/cloud", "--every", "0s"]);
    cluster.sh("echo ours > cloud/ours; echo tmp > cloud/tmp; mkdir out; echo in > in");
    let durable = || cluster.json(&["status"])["nodes"][2]["backend"]["waiting"] == 0;
    wait("both exist", || {
        cloud.there("ours").is_some() && cloud.there("tmp").is_some() && durable()
    });
    let before = cloud.store.state().objects.clone();
    // Renames within the directory, out of it, into it, of a directory, and over an existing file.
    cluster.sh(
        "mv cloud/ours cloud/renamed; mv cloud/theirs out; mv in cloud; mv cloud/d cloud/e; mv -f cloud/tmp cloud/over",
    );
    let all = "cat cloud/renamed out/theirs cloud/in cloud/e/x cloud/over; ls cloud";
    let seen = "ours\ntheirs\nin\nx\ntmp\ne\nin\nover\nrenamed\n";
    for _ in 0..2 {
        assert_eq!(cloud.refresh()["skipped"], 0);
        assert_eq!(cluster.sh(all), seen);
        assert_eq!(cloud.store.state().objects, before);
    }
    for path in ["/cloud/renamed", "/cloud/e/x", "/cloud/over", "/out/theirs"] {
        assert_eq!(version(cluster, path), 1, "{path}");
    }
    renamed_and_changed(&cloud);
}

fn renamed_and_changed(cloud: &Cloud) {
    let cluster = &cloud.cluster;
    // An object that changes there is a new file under its name there; the previous content is lost, and this is reported.
    cloud.put("d/x", "changed\n");
    cloud.refresh();
    assert_eq!(cluster.sh("cat cloud/d/x cloud/e/y"), "changed\ny\n");
    cluster.run(&["cluster", "scrub", "/cloud/e", "--wait"]);
    wait("it is reported", || {
        let health = cluster.run(&["cluster", "health"]).out;
        assert!(!health.contains("/y"), "{health}");
        // The report contains the name under which the file was made.
        health.contains("/cloud/d/x")
    });
    // If an object is deleted there, its content is lost under any name. A file that has another name by now is not deleted.
    cloud.gone("theirs");
    cloud.refresh();
    assert!(cluster.at("out/theirs").exists());
    // New content is stored there under the file's name here.
    cluster.sh("echo more >> cloud/renamed; echo again > cloud/in; echo last > cloud/over");
    wait("they exist", || {
        let now = |name: &str| cloud.there(name);
        now("renamed").as_deref() == Some("ours\nmore\n")
            && now("in").as_deref() == Some("again\n")
            && now("over").as_deref() == Some("last\n")
    });
    wait(
        "files that the cluster no longer has are deleted there",
        || cloud.there("ours").is_none() && cloud.there("tmp").is_none(),
    );
    assert_eq!(cloud.refresh()["skipped"], 0);
    cluster.sh("rm -r cloud/e/x out cloud/renamed");
    wait("removed files are deleted, too", || {
        cloud.there("renamed").is_none()
    });
    assert_eq!(cloud.there("d/y").as_deref(), Some("y\n"));
    assert!(cluster.run(&["cluster", "fsck"]).ok);
}

/// The output of a task is placed by its directory, wherever the task runs.
#[test]
fn job_outputs_in_attached_directory_are_in_the_store() {
    let Some(cloud) = Cloud::start() else { return };
    let cluster = &cloud.cluster;
    cluster.json(&["remote", "attach", "cloud", "/cloud", "--every", "0s"]);
    cluster.sh("for i in $(seq 6); do echo $i > in$i; done");
    let tasks: Vec<String> = (1..=6)
        .map(|number| {
            format!(
                r#"{{ name = "t{number}"; kernel = "/bin/cp"; args = ["in{number}", "cloud/out{number}"];
                input = ["in{number}"]; output = ["/remotes/cloud/out{number}"]; }}"#
            )
        })
        .collect();
    let job = format!(
        r#"name = "out"; workdir = "/"; tasks = ( {} );"#,
        tasks.join(", ")
    );
    cluster.done(cluster.submit(&job));
    wait("all exist", || {
        (1..=6).all(|number| cloud.there(&format!("out{number}")) == Some(format!("{number}\n")))
    });
    assert_eq!(cloud.refresh()["files"], 6);
}

/// File system of others, which is mounted or not.
struct Pfs {
    directory: tempfile::TempDir,
}

impl Pfs {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["real", "at"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        let pfs = Self { directory };
        pfs.mount();
        pfs
    }

    fn real(&self, name: &str) -> PathBuf {
        self.directory.path().join("real").join(name)
    }

    fn at(&self) -> PathBuf {
        self.directory.path().join("at")
    }

    fn uri(&self) -> String {
        format!("file://{}", self.at().display())
    }

    fn mount(&self) {
        let mounted = Command::new("mount")
            .arg("--bind")
            .args([self.real(""), self.at()])
            .status();
        assert!(mounted.unwrap().success(), "it can't be mounted");
    }

    fn unmount(&self) {
        let unmounted = Command::new("umount").arg("-l").arg(self.at()).status();
        assert!(unmounted.unwrap().success());
    }

    fn files(&self) -> Vec<PathBuf> {
        crate::packs::files_below(&self.real(""))
    }
}

impl Drop for Pfs {
    fn drop(&mut self) {
        let at = self.at();
        let _ = Command::new("umount").arg("-l").arg(at).status();
    }
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).unwrap().next().is_none()
}

#[test]
fn unmounted_backend_is_offline_and_loses_no_file() {
    offline(&[]);
}

#[test]
fn unmounted_backend_with_packs_loses_no_file() {
    offline(&["--backend-format", "dedup"]);
}

/// The node is started while the directory of its store is empty: no file is corrupt, and no file is stored there.
fn offline(more: &[&str]) {
    let Some(mut cluster) = bare(1) else { return };
    let pfs = Pfs::new();
    let uri = pfs.uri();
    let arguments = [&["--backend", &uri, "--backend-cache", "0"], more].concat();
    cluster.add_node(&arguments);
    cluster.start_mount();
    cluster
        .sh("mkdir d; setfattr -n user.tidemill.node -v 1 d; echo one > d/one; echo two > d/two");
    let backend = |cluster: &Cluster| cluster.json(&["status"])["nodes"][1].clone();
    let durable = |cluster: &Cluster| {
        let backend = &backend(cluster)["backend"];
        backend["waiting"] == 0 && backend["objects"] != 0
    };
    wait("both exist", || durable(&cluster));
    cluster.kill_node(1);
    pfs.unmount();
    cluster.restart_node(1, &arguments);
    cluster.wait_for_nodes(2);
    let trouble = |cluster: &Cluster| {
        let reported = backend(cluster)["trouble"].as_str().unwrap().to_owned();
        reported.contains("none of the known files exists")
    };
    wait("it is reported", || trouble(&cluster));
    cluster.run(&["cluster", "scrub", "/d", "--wait"]);
    let healthy = |cluster: &Cluster| {
        let health = cluster.run(&["cluster", "health"]);
        !health.out.contains("/d/")
            && cluster.json(&["status"])["replicas"]["corrupt"]
                .as_u64()
                .unwrap_or(0)
                == 0
    };
    assert!(
        healthy(&cluster),
        "{}",
        cluster.run(&["cluster", "health"]).out
    );
    let got = cluster.path("got").display().to_string();
    assert!(!cluster.run(&["get", "/d/one", &got]).ok);
    assert!(
        healthy(&cluster),
        "{}",
        cluster.run(&["cluster", "health"]).out
    );
    cluster.sh("echo three > d/three; rm d/two");
    wait("it waits", || backend(&cluster)["backend"]["waiting"] == 1);
    assert_eq!(cluster.sh("cat d/three"), "three\n");
    assert!(is_empty(&pfs.at()));
    pfs.mount();
    wait("it is there again", || {
        !trouble(&cluster) && durable(&cluster) && backend(&cluster)["backend"]["objects"] == 2
    });
    cluster.kill_mount();
    cluster.start_mount();
    assert_eq!(cluster.sh("cat d/one d/three"), "one\nthree\n");
    if more.is_empty() {
        wait("removed files are deleted there", || {
            !pfs.real("d/two").exists()
        });
    }
    really_gone(&cluster, &pfs);
}

/// Somebody has deleted all files, and confirms it: then the files are corrupt.
fn really_gone(cluster: &Cluster, pfs: &Pfs) {
    for file in pfs.files() {
        std::fs::remove_file(file).unwrap();
    }
    std::fs::remove_file(pfs.real(".tidemill-store")).unwrap();
    let scrub = || cluster.run(&["cluster", "scrub", "/d", "--wait"]);
    scrub();
    wait("it is reported as a store that is offline", || {
        let status = cluster.run(&["status"]).out;
        status.contains("none of the known files exists")
    });
    assert!(!cluster.run(&["cluster", "health"]).out.contains("/d/one"));
    std::fs::write(pfs.real(".tidemill-store"), "").unwrap();
    wait("it is corruption", || {
        scrub();
        cluster.run(&["cluster", "health"]).out.contains("/d/one")
    });
    cluster.sh("rm -r d; mkdir d; setfattr -n user.tidemill.node -v 1 d; echo new > d/new");
    wait("the work continues", || {
        let backend = cluster.json(&["status"])["nodes"][1]["backend"].clone();
        backend["waiting"] == 0 && backend["objects"] == 1
    });
}

/// Files are staged out to nodes that may have them, although the node with the read-only store has the most space.
#[test]
fn read_only_remote_gets_no_staged_out_files() {
    let Some(mut cloud) = Cloud::start() else {
        return;
    };
    cloud.cluster.add_node(&["--tier", "burst"]);
    cloud.cluster.wait_for_nodes(4);
    let cluster = &cloud.cluster;
    cluster.json(&["remote", "delete", "cloud"]);
    let uri = format!("s3://bucket/top?endpoint=http://{}", cloud.store.address);
    cluster.json(&["remote", "add", "cloud", &uri, "--read-only"]);
    cluster.json(&["remote", "attach", "cloud", "/cloud", "--every", "0s"]);
    cluster.sh("for n in 0 1 2 3 4 5 6 7; do echo $n > cloud/$n; done");
    let on = |n: u32| nodes(cluster, &format!("/cloud/{n}"));
    assert!((0..8).all(|n| on(n) == [3]), "they are in the burst tier");
    cluster.run(&["stage", "out", "/cloud", "--evict", "--wait"]);
    for n in 0..8 {
        assert!(matches!(on(n)[..], [0 | 1]), "{n} is on {:?}", on(n));
    }
    let names: Vec<String> = cloud.store.state().objects.keys().cloned().collect();
    assert!(
        names.iter().all(|name| name.starts_with("top/.tidemill-")),
        "{names:?}"
    );
    assert_eq!(cluster.sh("cat cloud/*"), "0\n1\n2\n3\n4\n5\n6\n7\n");
}
