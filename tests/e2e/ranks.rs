//! Tests hooks whose kernels use MPI: one process on each node that has a part of a file. Semantics: docs/hooks.md.

use crate::cluster::{Cluster, Options, OtherMount, wait};
use crate::require::skip;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::process::Command;

const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Starts a cluster of three nodes, with a directory of files that are on all of them.
fn start() -> Option<Cluster> {
    if Command::new("mpicc.mpich")
        .arg("--version")
        .output()
        .is_err()
    {
        skip("there is no mpicc of MPICH: apt-get install libmpich-dev");
        return None;
    }
    let cluster = Cluster::with(Options {
        nodes: 3,
        ..Options::default()
    })?;
    cluster.sh("mkdir -p lib run/wide");
    cluster.json(&["set", "/run/wide", "stripe=64KiB"]);
    Some(cluster)
}

/// Builds a kernel with the compiler of MPICH and stores it in the cluster.
fn build(cluster: &Cluster, name: &str, source: &str) {
    let file = cluster.path(&format!("{name}.c"));
    std::fs::write(&file, source).unwrap();
    let mut command = Command::new("mpicc.mpich");
    command.args(["-w", "-shared", "-fPIC", "-o"]);
    let built = file.with_extension("so");
    let built_well = command.arg(&built).arg(&file).status().unwrap();
    assert!(built_well.success(), "{name} can't be built");
    std::fs::copy(built, cluster.at(&format!("lib/{name}.so"))).unwrap();
}

fn add(cluster: &Cluster, words: &str) {
    cluster.sh(&format!(
        "{:?} --json rule create {words}",
        cluster.tidemill()
    ));
}

fn show(cluster: &Cluster, name: &str) -> Value {
    let printed = cluster.run(&["--json", "rule", "show", name]);
    serde_json::from_str(&printed.out).unwrap_or_default()
}

fn count(cluster: &Cluster, name: &str, state: &str) -> u64 {
    show(cluster, name)["rule_runs"][state]
        .as_u64()
        .unwrap_or(0)
}

fn failed(cluster: &Cluster, name: &str) -> String {
    wait(name, || count(cluster, name, "failed") > 0);
    cluster.run(&["rule", "log", name, "--state", "failed"]).out
}

/// Kernel that prints the rank, the sum of the whole file as this rank reads it, and the messages between ranks.
const TELL: &str = r#"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
void func(int in_fd, int out_fd, MPI_Comm comm)
{
    int rank, ranks;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    unsigned long sum = 0;
    static unsigned char bytes[1 << 20];
    ssize_t got;
    while ((got = read(in_fd, bytes, sizeof bytes)) > 0)
        for (long i = 0; i < got; i++)
            sum = sum * 31 + bytes[i];
    /* Large enough that it does not fit into any buffer on the way. */
    int size = 3 << 20;
    unsigned char *sent = malloc(size), *came = malloc(size);
    for (int i = 0; i < size; i++)
        sent[i] = (i * 7 + rank) & 255;
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    MPI_Sendrecv(sent, size, MPI_CHAR, next, 0, came, size, MPI_CHAR, before, 0, comm, MPI_STATUS_IGNORE);
    long wrong = 0;
    for (int i = 0; i < size; i++)
        wrong += came[i] != ((i * 7 + before) & 255);
    dprintf(out_fd, "%d of %d: %lu, %ld wrong\n", rank, ranks, sum, wrong);
}
"#;

fn values(count: usize) -> Vec<u8> {
    let value = |at: usize| f64::from(u32::try_from(at * 7919 % 10007).unwrap()) - 100.0;
    (0..count).flat_map(|at| value(at).to_le_bytes()).collect()
}

/// Returns the sum that [`TELL`] computes for a file.
fn sum(bytes: &[u8]) -> u64 {
    let add = |sum: u64, byte: &u8| sum.wrapping_mul(31).wrapping_add((*byte).into());
    bytes.iter().fold(0, add)
}

/// Returns the output of its ranks.
fn reported(ranks: usize, bytes: &[u8]) -> String {
    let line = |rank| format!("{rank} of {ranks}: {}, 0 wrong\n", sum(bytes));
    (0..ranks).map(line).collect()
}

/// Returns the number of nodes that have a part of a file.
fn nodes(cluster: &Cluster, path: &str) -> usize {
    let layout = cluster.json(&["stat", path]);
    let parts = layout["parts"].as_array().unwrap().iter();
    let all: BTreeSet<_> = parts
        .map(|part| part["replicas"][0]["node"].as_u64().unwrap())
        .collect();
    all.len()
}

/// Three mounts write a third of a file each, at the same time.
fn write_together(cluster: &Cluster, others: &[OtherMount], bytes: &[u8]) {
    let mut open = OpenOptions::new();
    open.read(true).write(true).create(true);
    let places = [cluster.at("run/n1.f64")].into_iter();
    let places = places.chain(others.iter().map(|other| other.path.join("run/n1.f64")));
    let files: Vec<_> = places.map(|path| open.open(path).unwrap()).collect();
    let third = bytes.len() / 3;
    for (part, file) in files.iter().enumerate() {
        let at = part * third;
        file.write_all_at(&bytes[at..at + third], at as u64)
            .unwrap();
    }
}

/// In all cases, whether a file was written at once, by several mounts or to several nodes, all ranks read the whole of it and
/// communicate with each other.
#[test]
fn mpi_ranks_on_all_nodes_map_same_file() {
    let Some(cluster) = start() else {
        return;
    };
    let others = ["b", "c"].map(|name| OtherMount::start(&cluster, name));
    let example = std::fs::read_to_string(format!("{DIRECTORY}/examples/mpi/extremes.c")).unwrap();
    build(&cluster, "extremes", &example);
    build(&cluster, "tell", TELL);
    for map in ["extremes", "tell"] {
        let words = format!(
            "'/run/**/*.f64' --mpi --map /lib/{map}.so --result '/{map}/{{stem}}' --name {map}"
        );
        add(&cluster, &words);
    }
    let bytes = values(300_000);
    std::fs::write(cluster.at("run/one.f64"), &bytes).unwrap();
    std::fs::write(cluster.at("run/wide/three.f64"), &bytes).unwrap();
    write_together(&cluster, &others, &bytes);
    for name in ["extremes", "tell"] {
        wait(name, || count(&cluster, name, "done") == 3);
    }
    assert_eq!(nodes(&cluster, "/run/wide/three.f64"), 3);
    for (path, stem) in [
        ("run/one", "one"),
        ("run/n1", "n1"),
        ("run/wide/three", "three"),
    ] {
        let ranks = nodes(&cluster, &format!("/{path}.f64"));
        assert_eq!(
            cluster.sh(&format!("cat tell/{stem}")),
            reported(ranks, &bytes)
        );
        assert_eq!(
            cluster.sh(&format!("cat extremes/{stem}")),
            "-100 9906 4903.01\n"
        );
    }

    // The input of a reduce is also read as one file, in the order of the files.
    add(
        &cluster,
        "'/run/*.step' --mpi --map /lib/extremes.so --reduce /lib/tell.so --group 2 --result '/all' --name all",
    );
    cluster.sh("cp run/one.f64 run/2.step; cp run/one.f64 run/10.step");
    wait("the batch is reduced", || cluster.try_sh("test -s all").ok);
    let lines = "-100 9906 4903.01\n".repeat(2);
    let found = cluster.sh("cat all");
    assert!(
        found.contains(&format!(": {}, 0 wrong\n", sum(lines.as_bytes()))),
        "{found}"
    );

    // One mount writes: the file is read while it is written.
    add(
        &cluster,
        "'/run/*.grows' --mpi --map /lib/tell.so --result '/tell/{stem}' --on write --name grows",
    );
    let mut file = File::create(cluster.at("run/g.grows")).unwrap();
    file.write_all(&bytes[..1_000_000]).unwrap();
    wait("it runs while the file is open", || {
        count(&cluster, "grows", "running") == 1
    });
    file.write_all(&bytes[1_000_000..]).unwrap();
    // The bytes that were read have changed.
    file.write_all_at(&[0; 4096], 0).unwrap();
    drop(file);
    let mut bytes = bytes;
    bytes[..4096].fill(0);
    wait("it is mapped", || count(&cluster, "grows", "done") == 1);
    assert_eq!(cluster.sh("cat tell/g"), reported(1, &bytes));
}

/// Failing ranks: the second of three fails, while the others wait for it.
const BAD: [(&str, &str, &str); 4] = [
    ("crash", "*(volatile int *)0 = 1;", "rank 1 (node "),
    ("hang", "for (;;) sleep(1);", "exceeded its time limit"),
    ("leave", "exit(0);", "it ended before func returned"),
    (
        "abort",
        "fprintf(stderr, \"too bad\\n\"); MPI_Abort(comm, 3);",
        "too bad",
    ),
];

fn bad(what: &str) -> String {
    format!(
        "#include <mpi.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n\
        void func(int in_fd, int out_fd, MPI_Comm comm)\n{{\n    int rank;\n    MPI_Comm_rank(comm, &rank);\n    \
        dprintf(out_fd, \"begun\\n\");\n    MPI_Barrier(comm);\n    if (rank == 1) {{ {what} }}\n    MPI_Barrier(comm);\n}}\n"
    )
}

/// Returns a rank that tries to reach everything except its peers. It writes the names of successful attempts.
fn reach(port: u16) -> String {
    format!(
        r#"
#include <mpi.h>
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
static int to(const char *where, int port)
{{
    struct sockaddr_in at = {{ .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = inet_addr(where) }};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    return fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) == 0;
}}
void func(int in_fd, int out_fd, MPI_Comm comm)
{{
    int rank;
    MPI_Comm_rank(comm, &rank);
    int kinds = (socket(AF_INET, SOCK_DGRAM, 0) >= 0) + (socket(AF_INET6, SOCK_STREAM, 0) >= 0)
        + (socket(AF_UNIX, SOCK_STREAM, 0) >= 0) + (socket(AF_NETLINK, SOCK_RAW, 15) >= 0);
    int host = to("127.0.0.1", {port}) + to("198.18.0.1", {port}) + to("0.0.0.0", {port}) + to("192.0.2.1", 80);
    dprintf(out_fd, "%d %d\n", kinds, host);
}}
"#
    )
}

/// A rank that fails makes all ranks fail with its reason. None of their outputs is kept, and ranks reach nobody but
/// each other.
#[test]
fn mpi_ranks_fail_together_and_reach_only_each_other() {
    let Some(mut cluster) = start() else {
        return;
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    build(
        &cluster,
        "reach",
        &reach(listener.local_addr().unwrap().port()),
    );
    for (name, what, _) in BAD {
        build(&cluster, name, &bad(what));
        let words = format!(
            "'/run/wide/a.bad' --mpi --map /lib/{name}.so --result '/out/{name}' --name {name}"
        );
        let limit = if name == "hang" { "--time 3s" } else { "" };
        add(&cluster, &format!("{words} {limit}"));
    }
    without_mpi(&cluster);
    add(
        &cluster,
        "'/run/wide/a.bad' --mpi --map /lib/reach.so --result '/out/reach' --name reach",
    );
    let bytes = values(100_000);
    std::fs::write(cluster.at("run/wide/a.bad"), &bytes).unwrap();
    for (name, _, why) in BAD {
        let printed = failed(&cluster, name);
        assert!(printed.contains(why), "{name}: {printed}");
    }
    let printed = failed(&cluster, "other");
    assert!(
        printed.contains("MPICH is not installed on this node's host"),
        "{printed}"
    );
    let printed = failed(&cluster, "none");
    assert!(printed.contains("links no MPI"), "{printed}");
    wait("reach", || {
        count(&cluster, "reach", "done") + count(&cluster, "reach", "failed") == 1
    });
    let log = cluster.run(&["rule", "log", "reach"]).out;
    assert_eq!(count(&cluster, "reach", "done"), 1, "{log}");
    assert_eq!(cluster.sh("cat out/reach"), "0 0\n".repeat(3));
    assert!(listener.accept().is_err());
    assert_eq!(cluster.sh("ls out"), "reach\n");

    killed(&mut cluster, &bytes);
}

/// Two nodes are killed while ranks run, the leading one and another one: the task runs again.
fn killed(cluster: &mut Cluster, bytes: &[u8]) {
    let slow = TELL.replace(
        "unsigned long sum = 0;",
        "unsigned long sum = 0;\n    sleep(1);",
    );
    build(cluster, "slow", &slow);
    add(
        cluster,
        "'/run/wide/*.slow' --mpi --map /lib/slow.so --result '/out/{stem}' --name slow",
    );
    for leads in [true, false] {
        std::fs::write(cluster.at(&format!("run/wide/{leads}.slow")), bytes).unwrap();
        let mut leader = None;
        wait("it runs", || {
            let jobs = cluster.json(&["job", "list"]);
            let job = jobs.as_array().and_then(|jobs| jobs.first().cloned());
            let job = job.unwrap_or_default()["job"].as_u64().unwrap_or(0);
            let task = cluster.job(job)["tasks"][0].clone();
            leader = task["node"].as_u64();
            leader.is_some() && task["state"] == "running"
        });
        let leader = usize::try_from(leader.unwrap()).unwrap();
        let node = if leads { leader } else { (leader + 1) % 3 };
        cluster.kill_node(node);
        cluster.start_node(node);
        cluster.wait_for_nodes(3);
        let path = format!("out/{leads}");
        wait("it has been run", || {
            cluster.try_sh(&format!("test -s {path}")).ok
        });
        assert_eq!(cluster.sh(&format!("cat {path}")), reported(3, bytes));
    }
    let left = cluster.sh("ls ../node-*/run | grep -c rank- || true");
    assert_eq!(left, "0\n");
}

/// Kernels that link no MPI, or one that does not exist.
fn without_mpi(cluster: &Cluster) {
    std::fs::write(
        cluster.path("none.c"),
        "void func(int in_fd, int out_fd, int comm) {}\n",
    )
    .unwrap();
    let script = format!(
        "cd {:?}; gcc -shared -fPIC -o none.so none.c; gcc -shared -Wl,-soname,libmpich.so.99 -o libmpich.so.99 none.c; \
        gcc -shared -fPIC -Wl,--no-as-needed -o other.so none.c libmpich.so.99; cp none.so other.so mnt/lib",
        cluster.path("")
    );
    cluster.sh(&script);
    for name in ["none", "other"] {
        add(
            cluster,
            &format!(
                "'/run/wide/a.bad' --mpi --map /lib/{name}.so --result '/out/{name}' --name {name}"
            ),
        );
    }
    let refused = cluster.run(&[
        "rule", "create", "/run/*", "--mpi", "--map", "max", "--result", "o/{stem}",
    ]);
    assert!(
        refused
            .err
            .contains("with mpi it must be one shared object"),
        "{}",
        refused.err
    );
}
