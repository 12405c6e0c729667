//! Tests stores outside of the cluster that are full, busy, or refuse the keys, and clusters that are full: no file is lost, the reason is
//! reported, and the work continues afterwards.

use crate::backend::{nodes, noise};
use crate::cluster::{Cluster, Device, Options, Printed, printed, wait};
use crate::packs::files_below;
use crate::stand_in::{StandIn, Strike, Upload};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Number of files, of a megabyte each.
const FILES: usize = 12;
const BYTES: usize = 1_000_000;
/// Number of requests of a stage-out of two files to its store.
const STEPS: usize = 14;

fn fill(directory: &Path) {
    std::fs::create_dir_all(directory).unwrap();
    for number in 0..FILES {
        std::fs::write(directory.join(number.to_string()), content(number)).unwrap();
    }
}

fn content(number: usize) -> Vec<u8> {
    vec![u8::try_from(number + 1).unwrap(); BYTES]
}

/// Returns the number of files with content, which must be the content that was copied.
fn whole(directory: &Path) -> usize {
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let files = files.filter(|file| file.metadata().unwrap().len() > 0);
    let mut count = 0;
    for file in files {
        let number = file.file_name().to_str().unwrap().parse().unwrap();
        assert!(std::fs::read(file.path()).unwrap() == content(number));
        count += 1;
    }
    count
}

#[test]
fn import_into_full_cluster_keeps_whole_files_and_resumes() {
    let mut device = None;
    let options = Options {
        nodes: 1,
        ..Options::default()
    };
    let started = Cluster::prepared(options, |cluster| {
        device = Some(Device::new(cluster.node_directory(0), "128m"));
    });
    let (Some(cluster), Some(device)) = (started, device) else {
        return;
    };
    let source = cluster.path("source");
    fill(&source);
    cluster.json(&[
        "remote",
        "add",
        "source",
        &format!("file://{}", source.display()),
    ]);
    let mut import = cluster.tidemill();
    import.args(["cp", "source:", "/raw", "--limit-rate", "2MB"]);
    import
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let import = import.spawn().unwrap();
    wait("a file has come", || whole(&cluster.at("raw")) > 0);
    device.fill();
    let full = printed(import.wait_with_output().unwrap());
    assert!(!full.ok, "{}", full.out);
    assert!(full.err.contains("full"), "{}", full.err);
    let before = whole(&cluster.at("raw"));
    assert!((1..FILES).contains(&before));
    device.free();
    wait("there is space", || {
        let printed = cluster.run(&["cp", "source:", "/raw"]);
        printed.ok && whole(&cluster.at("raw")) == FILES
    });
    let again = cluster.json(&["cp", "source:", "/raw"]);
    assert_eq!(
        (&again["files"], &again["same"]),
        (&0.into(), &FILES.into())
    );
    assert!(cluster.run(&["cluster", "fsck"]).ok);
}

/// Starts a cluster in which node 0 is in the burst tier and node 1 has its files in a backend; there is no other.
fn burst(uri: &str, more: &[&str]) -> Option<Cluster> {
    let mut cluster = Cluster::with(Options {
        nodes: 0,
        mount: false,
        server_args: vec!["--stage-out-after".into(), "1s".into()],
        ..Options::default()
    })?;
    cluster.add_node(&["--tier", "burst"]);
    cluster.add_node(&[&["--backend", uri, "--backend-cache", "1MiB"], more].concat());
    cluster.start_mount();
    Some(cluster)
}

fn reported(cluster: &Cluster) -> String {
    cluster.run(&["status"]).out
}

fn staged_out(cluster: &Cluster, names: &[&str]) -> bool {
    cluster.run(&["stage", "out", "/d", "--evict"]);
    names
        .iter()
        .all(|name| nodes(cluster, &format!("/d/{name}")) == [1])
}

#[test]
fn full_store_keeps_file_in_tier_until_it_has_space() {
    let directory = tempfile::tempdir().unwrap();
    let pfs = directory.path().join("pfs");
    let device = Device::new(pfs.clone(), "32m");
    let uri = format!("file://{}", pfs.display());
    let Some(cluster) = burst(&uri, &[]) else {
        return;
    };
    cluster.sh("mkdir d; echo first > d/first");
    wait("it is staged out", || staged_out(&cluster, &["first"]));
    device.fill();
    std::fs::write(cluster.at("d/large"), noise(1)).unwrap();
    cluster.sh("echo small > d/small");
    cluster.run(&["stage", "out", "/d"]);
    wait("it is reported", || {
        reported(&cluster).contains("No space left")
    });
    assert_eq!(nodes(&cluster, "/d/large"), [0]);
    assert!(std::fs::read(cluster.at("d/large")).unwrap() == noise(1));
    let there = files_below(&pfs);
    assert_eq!(there, [pfs.join("d/first"), pfs.join("filler")]);
    device.free();
    wait("all is staged out", || {
        staged_out(&cluster, &["large", "small"])
    });
    assert!(std::fs::read(pfs.join("d/large")).unwrap() == noise(1));
    assert_eq!(std::fs::read(pfs.join("d/small")).unwrap(), b"small\n");
    assert_eq!(files_below(&pfs).len(), 3);
    wait("nothing is reported any more", || {
        !reported(&cluster).contains("No space left")
    });
    assert!(cluster.run(&["cluster", "fsck"]).ok);
}

/// The store is overloaded, refuses the keys, or has another clock.
#[test]
fn refusing_store_gets_files_later_and_reason_is_shown() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let store = runtime.block_on(StandIn::start());
    let uri = format!("s3://bucket/top?endpoint=http://{}", store.address);
    let Some(mut cluster) = burst(&uri, &[]) else {
        return;
    };
    cluster.sh("mkdir d");
    for (name, (status, code), why) in [
        (
            "skewed",
            (403, "RequestTimeTooSkewed"),
            "set this host's clock",
        ),
        ("revoked", (403, "InvalidAccessKeyId"), "the keys are wrong"),
        ("busy", (503, "SlowDown"), "overloaded"),
    ] {
        store.state().deny = Some((status, code));
        std::fs::write(cluster.at(format!("d/{name}").as_str()), noise(1)).unwrap();
        cluster.run(&["stage", "out", "/d"]);
        wait("it is reported", || reported(&cluster).contains(why));
        assert_eq!(nodes(&cluster, &format!("/d/{name}")), [0]);
        assert!(store.state().denied > 0);
        store.state().deny = None;
        wait("it is staged out", || staged_out(&cluster, &[name]));
        let key = format!("top/d/{name}");
        assert!(store.state().objects[&key].0 == noise(1));
        assert!(store.state().uploads.is_empty());
        wait("nothing is reported any more", || {
            !reported(&cluster).contains(why)
        });
    }
    cluster.kill_mount();
    cluster.start_mount();
    cluster.sh("cmp d/skewed d/revoked; cmp d/revoked d/busy");
}

/// A multipart upload that fails leaves none of its parts and is started again.
#[test]
fn failed_upload_of_large_file_leaves_no_part_and_retries() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let store = runtime.block_on(StandIn::start());
    let uri = format!("s3://bucket/top?endpoint=http://{}", store.address);
    let Some(cluster) = burst(&uri, &[]) else {
        return;
    };
    store.state().bad_part = Some(2);
    cluster.sh("mkdir d; head -c 40000000 /dev/urandom > d/large; sha256sum d/large > sum");
    cluster.run(&["stage", "out", "/d"]);
    wait("it is reported", || {
        reported(&cluster).contains("InvalidPart")
    });
    assert!(!store.state().objects.contains_key("top/d/large"));
    store.state().bad_part = None;
    wait("it is staged out", || staged_out(&cluster, &["large"]));
    assert!(store.state().uploads.is_empty());
    cluster.sh("sha256sum --quiet -c sum");
}

/// The node is killed at its first request to the store, at its second and so on, before the request is done or
/// after. At the same time a file is replaced and a large file is uploaded in parts.
#[test]
fn node_killed_at_each_stage_out_step_leaves_files_whole() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let store = runtime.block_on(StandIn::start());
    let uri = format!("s3://bucket/top?endpoint=http://{}", store.address);
    let Some(mut cluster) = burst(&uri, &[]) else {
        return;
    };
    let theirs = Upload {
        key: "top/d/large-1".into(),
        begun: "2001-01-01T00:00:00.000Z".into(),
        ..Upload::default()
    };
    store.state().uploads.insert("theirs".into(), theirs);
    cluster.sh("mkdir d; echo first > d/same");
    wait("the first version exists", || {
        staged_out(&cluster, &["same"])
    });
    let mut struck = 0;
    for step in 0..STEPS {
        let (sender, strikes) = std::sync::mpsc::channel();
        store.state().strike = Some(Strike {
            left: step,
            done: step % 2 == 1,
            sender,
        });
        let large = format!("large-{step}");
        cluster.sh(&format!(
            "head -c 40000000 /dev/urandom > d/{large}; echo {step} > d/same; (cd d; sha256sum {large} same) > sums"
        ));
        wait("all exists", || {
            if strikes.try_recv().is_ok() {
                struck += 1;
                cluster.restart_node(1, &["--backend", &uri, "--backend-cache", "1MiB"]);
                cluster.wait_for_nodes(2);
            }
            staged_out(&cluster, &["same", &large])
        });
        store.state().strike = None;
        cluster.sh("cd d; sha256sum --quiet -c ../sums");
        let state = store.state();
        assert!(state.objects["top/d/same"].0 == format!("{step}\n").into_bytes());
        assert_eq!(state.objects[&format!("top/d/{large}")].0.len(), 40_000_000);
        drop(state);
        cluster.sh(&format!("rm d/{large}"));
        wait("nothing else is left", || {
            let state = store.state();
            let names = state.objects.keys();
            names.filter(|name| name.starts_with("top/d/")).count() == 1
                && state.uploads.keys().eq(["theirs"])
        });
    }
    assert!(struck > STEPS / 2);
    assert!(cluster.run(&["cluster", "fsck"]).ok);
}

/// The keys are revoked while files are copied, and are valid again later.
#[test]
fn copy_with_revoked_keys_continues_when_they_are_valid() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let store = runtime.block_on(StandIn::start());
    let key = |key: &str| store.state().key = Some(key.into());
    key("me");
    let uri = format!("s3://bucket/top?endpoint=http://{}", store.address);
    cluster.json(&["remote", "add", "cloud", &uri]);
    let keys = cluster.path("keys");
    let text = "access_key_id = \"me\"\nsecret_access_key = \"hush-hush\"\n";
    std::fs::write(&keys, text).unwrap();
    std::fs::set_permissions(&keys, PermissionsExt::from_mode(0o600)).unwrap();
    let keys = keys.display().to_string();
    let begin = |args: &[&str]| {
        let mut command = cluster.tidemill();
        let more = ["--keys", &keys, "--limit-rate", "2MB"];
        command.args(args).args(more);
        command.stdout(std::process::Stdio::piped());
        command
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    };
    let refused = |printed: Printed| {
        let why = printed.err.clone() + &printed.out;
        assert!(!printed.ok && why.contains("the keys are wrong"), "{why}");
        assert!(!why.contains("hush-hush"));
    };
    for number in 0..FILES {
        store.put(&format!("top/in/{number}"), content(number));
    }
    let import = begin(&["cp", "cloud:in", "/raw"]);
    wait("a file has come", || whole(&cluster.at("raw")) > 0);
    key("other");
    refused(printed(import.wait_with_output().unwrap()));
    assert!((1..FILES).contains(&whole(&cluster.at("raw"))));
    key("me");
    let ended = printed(
        begin(&["cp", "cloud:in", "/raw"])
            .wait_with_output()
            .unwrap(),
    );
    assert!(ended.ok, "{}", ended.err);
    assert_eq!(whole(&cluster.at("raw")), FILES);

    let there = || {
        let state = store.state();
        let below = state
            .objects
            .iter()
            .filter(|(key, _)| key.starts_with("top/out/"));
        let lengths = below.map(|(_, (content, _))| content.len());
        lengths.collect::<Vec<_>>()
    };
    let export = begin(&["cp", "/raw", "cloud:out"]);
    wait("a file exists", || !there().is_empty());
    store.state().deny = Some((403, "RequestTimeTooSkewed"));
    let skewed = printed(export.wait_with_output().unwrap());
    let why = skewed.err.clone() + &skewed.out;
    assert!(!skewed.ok && why.contains("set this host's clock"), "{why}");
    assert!(there().len() < FILES && there().iter().all(|&bytes| bytes == BYTES));
    store.state().deny = None;
    let ended = printed(
        begin(&["cp", "/raw", "cloud:out"])
            .wait_with_output()
            .unwrap(),
    );
    assert!(ended.ok, "{}", ended.err);
    assert_eq!(there(), [BYTES; FILES]);
    assert!(store.state().uploads.is_empty());
}
