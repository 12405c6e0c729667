//! Tests the mount with programs. Semantics: docs/semantics.md, docs/consistency.md.

use crate::cluster::{Cluster, Options, wait};

#[test]
fn cp_tar_rsync_and_shell_tools_keep_content_on_mount() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let source = cluster.path("source");
    std::fs::create_dir_all(source.join("deep/er")).unwrap();
    std::fs::write(source.join("a"), vec![7u8; 3_000_000]).unwrap();
    std::fs::write(source.join("deep/er/empty"), b"").unwrap();
    std::os::unix::fs::symlink("a", source.join("link")).unwrap();
    let src = source.display();
    cluster.sh(&format!(
        "cp -a {src} copy && diff -r {src} copy && test -L copy/link"
    ));
    cluster.sh(&format!(
        "tar -C {src} -cf a.tar . && mkdir t && tar -C t -xf a.tar && diff -r {src} t"
    ));
    cluster.sh(&format!(
        "rsync -a {src}/ synced/ && rsync -a --delete {src}/ synced/ && diff -r {src} synced"
    ));
    cluster.sh("echo one > f; echo two >> f; [ \"$(cat f)\" = $'one\\ntwo' ]");
    cluster.sh("echo new > f.tmp && mv f.tmp f && [ \"$(cat f)\" = new ]");
    cluster.sh("sed -i s/new/old/ f && [ \"$(cat f)\" = old ]");
    cluster.sh("sqlite3 x.db 'create table t(a); insert into t values(1),(2)' && [ \"$(sqlite3 x.db 'select sum(a) from t')\" = 3 ]");
    cluster.sh("rm -r copy t synced && ! test -e copy");
}

#[test]
fn git_clones_commits_and_passes_fsck_on_mount() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh(
        "export GIT_CONFIG_GLOBAL=/dev/null; git init -q -b main origin && cd origin && git config user.email a@b && \
         git config user.name n && for i in $(seq 50); do echo $i > f$i; done && git add . && git commit -qm first && \
         cd .. && git clone -q origin clone && cd clone && git fsck --strict 2>&1 && [ \"$(ls | wc -l)\" = 50 ]",
    );
}

#[test]
fn python_maps_seeks_and_truncates_files_on_mount() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh(r#"python3 - <<'P'
import mmap, os
with open("m", "w+b") as f:
    f.truncate(1 << 20)
    with mmap.mmap(f.fileno(), 0) as m:
        m[4096:4101] = b"hello"
        m.flush()
    f.seek(4096)
    assert f.read(5) == b"hello"
    f.truncate(5000)
assert os.path.getsize("m") == 5000
with open("m", "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
    assert m[4096:4101] == b"hello" and m[0] == 0
fd = os.open("holes", os.O_RDWR | os.O_CREAT)
os.pwrite(fd, b"x", 1 << 24)
assert os.pread(fd, 1, 5) == b"\0"
os.fsync(fd)
os.close(fd)
assert os.stat("holes").st_size == (1 << 24) + 1
os.setxattr("m", "user.colour", b"blue")
assert os.getxattr("m", "user.colour") == b"blue"
assert os.statvfs(".").f_blocks > 0
P"#);
}

#[test]
fn file_of_put_is_readable_on_mount_and_by_get() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let local = cluster.path("local.bin");
    let bytes: Vec<u8> = (0..9_000_000u32).map(|i| (i % 251) as u8).collect();
    std::fs::write(&local, &bytes).unwrap();
    let printed = cluster.run(&["put", local.to_str().unwrap(), "/in.bin"]);
    assert!(printed.ok, "{}", printed.err);
    assert_eq!(std::fs::read(cluster.at("in.bin")).unwrap(), bytes);
    std::fs::copy(cluster.at("in.bin"), cluster.at("again.bin")).unwrap();
    let back = cluster.path("back.bin");
    let printed = cluster.run(&["get", "/again.bin", back.to_str().unwrap()]);
    assert!(printed.ok, "{}", printed.err);
    assert_eq!(std::fs::read(back).unwrap(), bytes);
    let names = cluster.run(&["ls", "/"]).out;
    assert!(
        names.contains("in.bin") && names.contains("again.bin"),
        "{names}"
    );
}

#[test]
fn new_files_spread_over_nodes_or_follow_directory_setting() {
    let Some(cluster) = Cluster::with(Options {
        nodes: 3,
        ..Options::default()
    }) else {
        return;
    };
    cluster.sh("for i in $(seq 30); do echo $i > f$i; done");
    let node = |name: &str| {
        cluster.sh(&format!(
            "getfattr --only-values -n user.tidemill.node {name}"
        ))
    };
    let mut used: Vec<String> = (1..=30).map(|i| node(&format!("f{i}"))).collect();
    used.sort();
    used.dedup();
    assert_eq!(used.len(), 3, "{used:?}");
    cluster.sh("mkdir -p d/e && setfattr -n user.tidemill.node -v 2 d && for i in $(seq 9); do echo > d/e/f$i; done");
    for i in 1..=9 {
        assert_eq!(node(&format!("d/e/f{i}")), "2");
    }
}

#[test]
fn node_counts_bytes_that_mount_writes_directly() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("setfattr -n user.tidemill.node -v 1 .; head -c 3000000 /dev/zero > f; sync f");
    let written = |index: u64| {
        let status = cluster.json(&["status"]);
        let nodes = status["nodes"].as_array().unwrap().clone();
        let node = nodes.iter().find(|e| e["node"] == index).unwrap();
        node["bytes_written"].as_u64().unwrap()
    };
    wait("the node reports it", || written(1) == 3_000_000);
    assert_eq!(written(0), 0);
}

#[test]
fn node_reports_flash_model_of_its_writes() {
    let Some(mut cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("setfattr -n user.tidemill.node -v 1 .; head -c 3000000 /dev/zero > f");
    let model = |cluster: &Cluster, index: u64| {
        let status = cluster.json(&["status"]);
        let nodes = status["nodes"].as_array().unwrap().clone();
        let node = nodes.iter().find(|e| e["node"] == index).unwrap();
        node["flash_model"].clone()
    };
    let reported = |cluster: &Cluster, host: u64, sectors: u64| {
        let model = model(cluster, 1);
        model["host_bytes"] == host && model["used_bytes"] == sectors * 4096
    };
    wait("a write is reported", || reported(&cluster, 3_000_000, 733));
    cluster.sh("head -c 1000000 /dev/zero > f");
    wait("an overwrite is reported", || {
        reported(&cluster, 4_000_000, 245)
    });
    assert_eq!(model(&cluster, 0)["host_bytes"], 0);
    assert_eq!(model(&cluster, 1)["flash_bytes"], (733 + 245) * 4096);
    let text = cluster.sh("cat .tidemill/nodes/1/status");
    for part in [
        "flash model",
        "written      4000000 bytes",
        "amplified    1.00",
    ] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    cluster.kill_node(1);
    cluster.start_node(1);
    cluster.wait_for_nodes(2);
    wait("the count survives a kill", || {
        reported(&cluster, 4_000_000, 245)
    });
}

#[test]
fn mount_denies_files_and_control_directories_of_other_users() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("chmod 755 . ; mkdir open; chmod 777 open; echo secret > s; chmod 600 s");
    let as_nobody = |script: &str| {
        cluster.try_sh(&format!(
            "setpriv --reuid 65534 --regid 65534 --clear-groups bash -c '{script}'"
        ))
    };
    std::fs::set_permissions(
        cluster.path("."),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    assert!(!as_nobody("cat s").ok);
    assert!(as_nobody("echo mine > open/mine && cat open/mine").ok);
    assert!(!as_nobody("echo no > nope").ok);
    assert!(!as_nobody("cat .tidemill/root/joblist").ok);
}

#[test]
fn mount_keeps_chmod_right_after_close() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("for i in $(seq 300); do echo x > f$i; chmod 600 f$i; done");
    assert_eq!(
        cluster
            .sh("find . -maxdepth 1 -type f ! -perm 600 | wc -l")
            .trim(),
        "0"
    );
    let names = cluster.run(&["ls", "-l", "/"]).out;
    assert_eq!(
        names
            .lines()
            .filter(|line| line.contains("-rw-------"))
            .count(),
        300,
        "{names}"
    );
}
