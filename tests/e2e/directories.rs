//! Tests directories as outputs: real programs make them, other nodes read them, with kills and repetitions.

use crate::cluster::{Cluster, Options, wait};
use serde_json::Value;
use std::path::Path;

/// Returns a job with a task that writes a directory of files in directories, and a task that reads all of it on another node.
fn script(make: &str, extra: &str) -> String {
    format!(
        "name = \"cube\"; workdir = \"/w\"; {extra} tasks = (
        {{ name = \"make\"; kernel = \"/bin/sh\"; args = [\"-c\", \"{make}\"]; input = [\"in\"]; output = [\"cube.zarr/\"]; node = 0; }},
        {{ name = \"read\"; kernel = \"/bin/sh\"; args = [\"-c\", \"find cube.zarr -type f | sort | xargs md5sum\"];
           input = [\"cube.zarr/\"]; output = [\"sums\"]; stdout = \"sums\"; node = 1; }} );"
    )
}

const MAKE: &str = "cd cube.zarr; for i in 0 1 2; do mkdir $i; for j in 0 1 2 3; do seq $i$j > $i/0.$j; done; done; \
                    echo '{}' > .zattrs; cat ../in > .zarray";

fn task<'a>(job: &'a Value, name: &str) -> &'a Value {
    let tasks = job["tasks"].as_array().unwrap();
    tasks.iter().find(|task| task["name"] == name).unwrap()
}

#[test]
fn output_directory_is_made_read_elsewhere_cached_and_replaced() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir w; echo input > w/in");
    let job = cluster.done(cluster.submit(&script(MAKE, "")));
    assert_eq!(task(&job, "make")["outputs"][0], "/w/cube.zarr/");
    let expected = cluster.sh("cd w; find cube.zarr -type f | sort | xargs md5sum");
    assert_eq!(expected.lines().count(), 14);
    assert_eq!(cluster.sh("cat w/sums"), expected);
    assert!(task(&job, "read")["transferred_bytes"].as_u64().unwrap() > 0);
    let lineage = cluster
        .json(&["lineage", "show", "/w/cube.zarr/2/0.3"])
        .to_string();
    assert!(
        lineage.contains("cube.zarr/2/0.3") && lineage.contains("make"),
        "{lineage}"
    );
    // The directory exists already.
    let refused = cluster.try_submit(&script(MAKE, ""));
    assert!(
        refused.err.contains("/w/cube.zarr/\" exists already"),
        "{}",
        refused.err
    );
    // Its contents are replaced with it, and a cached result includes all its files.
    cluster.sh("cd w; mkdir cube.zarr/more; echo mine > cube.zarr/more/mine; cp -r cube.zarr kept");
    let job = cluster.done(cluster.submit(&script(MAKE, "replace = true;")));
    assert!(!task(&job, "make")["reused_task"].is_null(), "{job:#}");
    assert!(!task(&job, "read")["reused_task"].is_null(), "{job:#}");
    assert_eq!(
        cluster.sh("cd w; find cube.zarr -type f | sort | xargs md5sum"),
        expected
    );
    assert_eq!(
        cluster.sh("cat w/kept/more/mine; ls -a w/cube.zarr"),
        "mine\n.\n..\n.zarray\n.zattrs\n0\n1\n2\n"
    );
    // Another kernel makes another directory, which replaces all of this one.
    let job = cluster.submit(&script("echo x > cube.zarr/x", "replace = true;"));
    cluster.done(job);
    assert_eq!(cluster.sh("ls -A w/cube.zarr"), "x\n");
    // A failed task leaves the existing directory unchanged.
    let hostile = "ln -s /etc/passwd cube.zarr/passwd; echo y > cube.zarr/x";
    let failed = cluster.ended(cluster.submit(&script(hostile, "replace = true; retries = 0;")));
    let error = task(&failed, "make")["error"].as_str().unwrap();
    assert!(
        error.contains("is neither a plain file nor a directory"),
        "{error}"
    );
    assert_eq!(
        cluster.sh("cd w; ls -A cube.zarr; cat cube.zarr/x"),
        "x\nx\n"
    );
    wait("nothing is left over", || {
        cluster.run(&["cluster", "fsck", "--age", "0s"]).ok
    });
}

/// Returns the number of files in a directory of objects.
fn objects(node: &Path) -> usize {
    let directories = std::fs::read_dir(node.join("objects")).unwrap();
    let count = |directory: std::io::Result<std::fs::DirEntry>| {
        directory
            .and_then(|directory| std::fs::read_dir(directory.path()))
            .map_or(0, Iterator::count)
    };
    directories.map(count).sum()
}

/// A node that is killed while it stores thousands of files of a directory runs the task again. The server is killed
/// as well.
#[test]
fn killed_daemons_leave_a_complete_output_directory_or_none() {
    let options = Options {
        node_timeout_secs: 60,
        ..Options::default()
    };
    let Some(mut cluster) = Cluster::with(options) else {
        return;
    };
    cluster.sh("mkdir w; echo input > w/in");
    let make =
        "cd cube.zarr; mkdir a b; seq 4000 | while read i; do echo $i > a/$i; echo $i > b/$i; done";
    // The reader runs on the same node: there are more files than a process may have open by default.
    let here = script(make, "").replace("node = 1", "node = 0");
    let job = cluster.submit(&here);
    let directory = cluster.node_directory(0);
    wait("its files are being taken", || objects(&directory) > 100);
    cluster.kill_node(0);
    cluster.kill_server();
    cluster.start_server();
    cluster.start_node(0);
    cluster.done(job);
    assert_eq!(
        cluster.sh("cd w; ls cube.zarr/a cube.zarr/b | wc -l; cat cube.zarr/a/4000; wc -l < sums"),
        "8003\n4000\n8000\n"
    );
    wait("nothing is left over", || {
        cluster.run(&["cluster", "fsck", "--age", "0s"]).ok
    });
    // Its status, the input, the sums, and all files of the directory.
    assert_eq!(objects(&directory), 3 + 8000);
}
