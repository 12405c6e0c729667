//! Number of commits that an operation costs in the databases of the server and of the nodes. The numbers must only fall.
//!
//! A commit is a change that asks for a transaction. A group commit may combine several changes.

#![allow(
    clippy::unwrap_used,
    reason = "a test that can't do what it needs fails"
)]

use crate::cluster::{MountCluster, Mounted, ServerSetup, can_mount, require};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tidemill_model::time::Span;
use tidemill_node::NodeConfig;
use tidemill_node::backend::BackendSettings;
use tidemill_remote::{Keys, RemoteAddress};
use tidemill_wire::v1::{self, State};

/// Commits of a node with its status, which fall into the time of an operation and are no part of it.
const STATUSES: u64 = 4;
/// Time without a commit after which the cluster is at rest: longer than the periods of all background work.
const REST: Duration = Duration::from_secs(3);
/// Maximum time until a cluster is at rest.
const PATIENCE: Duration = Duration::from_secs(60);
/// Number of operations. One of them has to cost the expected number of commits.
const ATTEMPTS: u32 = 3;

/// Sets up a node that runs small tasks.
fn two_cores(config: &mut NodeConfig) {
    config.cores = 2;
    config.program = program();
}

/// Returns the program that runs built-in kernels: an example of the crate `tidemill-node`.
fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().join("../examples/node")
}

fn in_burst_tier(config: &mut NodeConfig) {
    two_cores(config);
    config.burst = true;
}

fn with_backend(config: &mut NodeConfig) {
    two_cores(config);
    let files: PathBuf = config.directory.with_extension("files");
    fs::create_dir_all(&files).unwrap();
    let address = RemoteAddress::parse(&format!("file://{}", files.display())).unwrap();
    let open = || tidemill_remote::open(&address, &Keys::default()).unwrap();
    config.backend = Some(BackendSettings {
        far: open(),
        scans: open(),
        address: address.clone(),
        packing: Default::default(),
        cache_bytes_max: 1 << 30,
    });
}

/// Waits until nothing is committed any more, and returns the numbers of commits of the server and of each node.
fn at_rest(cluster: &MountCluster) -> Vec<u64> {
    let begun = Instant::now();
    let (mut last, mut since) = (cluster.commits(), Instant::now());
    while since.elapsed() < REST {
        assert!(begun.elapsed() < PATIENCE, "the cluster is never at rest");
        std::thread::sleep(Duration::from_millis(20));
        let now = cluster.commits();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    last
}

/// Checks the commits of the server, and of each node without those of its status, that `operation` costs until the cluster is at rest again.
/// An earlier operation of the same kind has reserved the ids. On a busy machine changes that usually ride along come too late and need a
/// commit of their own, so one of several operations has to cost this number.
fn assert_commits(cluster: &MountCluster, operation: impl Fn(u32), server: u64, nodes: &[u64]) {
    operation(0);
    let mut before = at_rest(cluster);
    let mut seen = Vec::new();
    for number in 1..=ATTEMPTS {
        operation(number);
        let after = at_rest(cluster);
        let commits: Vec<u64> = before.iter().zip(&after).map(|(a, b)| b - a).collect();
        let own = |(commits, own): (&u64, &u64)| (*own..=own + STATUSES).contains(commits);
        if commits[0] == server && commits[1..].iter().zip(nodes).all(own) {
            return;
        }
        assert!(
            commits[0] >= server,
            "fewer commits of the server: {commits:?}"
        );
        seen.push(commits);
        before = after;
    }
    panic!("server, nodes: {seen:?}, and not {server}, {nodes:?}");
}

fn write(mounted: &Mounted, number: u32) {
    fs::write(mounted.join(format!("file{number}")), [7; 4096]).unwrap();
}

/// Runs a task that reads one file and writes another.
fn run_task(cluster: &MountCluster, number: u32) {
    let script = format!(
        r#"name = "j"; workdir = "/"; tasks = ({{ name = "t"; kernel = "wordcount"; input = ["in"]; output = ["out{number}"]; }});"#
    );
    let job = cluster.ask(async |server| {
        let request = v1::SubmitRequest {
            script: script.clone(),
            source: "test.job".into(),
            ..v1::SubmitRequest::default()
        };
        let reply = server.jobs().submit(request).await?.into_inner();
        assert_eq!(reply.errors, Vec::<String>::new());
        let request = v1::GetJobRequest {
            job: reply.job,
            ..v1::GetJobRequest::default()
        };
        let mut events = server.jobs().watch(request.clone()).await?.into_inner();
        while events.message().await?.is_some() {}
        Ok(server.jobs().get(request).await?.into_inner())
    });
    assert_eq!(job.state(), State::Done, "{job:?}");
}

#[test]
fn small_file_costs_few_commits() {
    if !can_mount() {
        return;
    }
    let mut cluster = MountCluster::start_with(|_| {}, &[two_cores]);
    let mounted = cluster.mount(true);
    // The name; the seal. The node: the object.
    assert_commits(&cluster, |number| write(&mounted, number), 2, &[1]);
    mounted.unmount();
}

#[test]
fn task_costs_few_commits() {
    if !can_mount() {
        return;
    }
    if !program().exists() {
        return require::skip("the example `node` of the crate `tidemill-node` is not built");
    }
    let mut cluster = MountCluster::start_with(|_| {}, &[two_cores]);
    let mounted = cluster.mount(true);
    fs::write(mounted.join("in"), "1\n2\n").unwrap();
    // A block of ids; the job; the label; the end of task and job. The node: the label; the outcome.
    assert_commits(&cluster, |number| run_task(&cluster, number), 4, &[2]);
    mounted.unmount();
}

#[test]
fn staged_file_costs_few_commits() {
    if !can_mount() {
        return;
    }
    let setup: ServerSetup = |config| {
        config.burst.after = Span::default();
        // Files leave the tier as soon as they are stored.
        (config.burst.low, config.burst.high) = (0, 0);
    };
    let mut cluster = MountCluster::start_with(setup, &[in_burst_tier, with_backend]);
    let mounted = cluster.mount(true);
    // The name; the seal; the label to copy; the end of the copy; the request to evict; the replica's removal; the label to remove; the end
    // of the removal. The burst node: the object; its hash; the label; the outcome. The other node: the
    // label; the attempt to write; the file; the outcome.
    assert_commits(&cluster, |number| write(&mounted, number), 8, &[4, 4]);
    mounted.unmount();
}
