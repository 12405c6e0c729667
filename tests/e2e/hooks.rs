//! Tests hooks: kernels that run on new files, on the node of the burst tier that stores them. Semantics: docs/hooks.md.

use crate::cluster::{Cluster, Options, wait};
use serde_json::Value;
use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Starts a cluster with a node of the capacity tier, and node 1 of the burst tier.
fn start(args: &[&str]) -> Option<Cluster> {
    start_with(2, args)
}

/// Starts the same with nodes of `cores` cores.
fn start_with(cores: u32, args: &[&str]) -> Option<Cluster> {
    let mut cluster = Cluster::with(Options {
        mount: false,
        nodes: 1,
        cores,
        ..Options::default()
    })?;
    cluster.add_node(&[&["--tier", "burst"], args].concat());
    cluster.start_mount();
    Some(cluster)
}

fn show(cluster: &Cluster, name: &str) -> Value {
    let printed = cluster.run(&["--json", "rule", "show", name]);
    serde_json::from_str(&printed.out).unwrap_or_default()
}

/// Adds a hook with these arguments of the command line.
fn add(cluster: &Cluster, words: &str) -> Value {
    let printed = cluster.sh(&format!(
        "{:?} --json rule create {words}",
        cluster.tidemill()
    ));
    serde_json::from_str(&printed).unwrap()
}

/// Returns the number of files of a hook in a state.
fn count(cluster: &Cluster, name: &str, state: &str) -> u64 {
    show(cluster, name)["rule_runs"][state]
        .as_u64()
        .unwrap_or(0)
}

/// Returns the state of a batch of a hook.
fn batch(cluster: &Cluster, name: &str, number: u64) -> String {
    let hook = show(cluster, name);
    let batches = hook["hook"]["batches"].as_array().cloned();
    let mut batches = batches.unwrap_or_default().into_iter();
    let found = batches.find(|batch| batch["batch"] == number);
    found.unwrap_or_default()["state"]
        .as_str()
        .unwrap_or("")
        .to_owned()
}

fn create(cluster: &Cluster, name: &str) -> File {
    File::create(cluster.at(name)).unwrap()
}

/// Checks that lineage names the hook that deleted the files, and reports that they were mapped where they were written.
fn lineage_tells(cluster: &Cluster) {
    let reported = cluster.run(&["lineage", "show", "/run/all-1"]).out;
    assert!(
        reported.contains("step-10.txt") && reported.contains("dropped by hook words@1 after task"),
        "{reported}"
    );
    let runs = cluster.json(&["lineage", "show", "/run/all-1"])["runs"].clone();
    let runs = runs.as_array().unwrap().iter();
    let maps = runs.filter(|run| run["kernel"].as_str().unwrap().contains("wordcount"));
    let nodes: Vec<_> = maps.map(|run| run["node"].as_u64()).collect();
    assert_eq!(nodes, [Some(1); 4]);
}

/// Only results stay: the files are mapped where the tier stored them, are deleted after the map is recorded, and are
/// reduced in their order, through kills of all processes. Lineage names the hook that deleted them. A file with
/// another name stays under that name.
#[test]
fn hook_deletes_mapped_files_and_reduces_results_in_order() {
    let Some(mut cluster) = start(&[]) else {
        return;
    };
    cluster.sh("mkdir run");
    let made = add(
        &cluster,
        "'/run/step-*.txt' --map wordcount --reduce 'cat {inputs}' --result 'all-{batch}' --inputs delete --group 4 --name words",
    );
    assert_eq!(
        (&made["workdir"], &made["hook"]["group"]),
        (&"/run".into(), &4.into())
    );
    cluster.sh("cd run; seq 10 > step-10.txt; seq 2 > step-2.txt; seq 1 > step-1.txt");
    cluster.kill_node(1);
    cluster.kill_server();
    cluster.start_server();
    cluster.start_node(1);
    cluster.wait_for_nodes(2);
    cluster.sh("cd run; seq 3 > ../kept; ln ../kept step-30.txt");
    wait("the batch is reduced", || {
        batch(&cluster, "words", 1) == "done"
    });
    assert_eq!(cluster.sh("cut -d' ' -f1 run/all-1"), "1\n2\n10\n3\n");
    wait("the files are deleted", || {
        cluster.sh("ls run") == "all-1\n"
    });
    wait("reduced files are deleted, too", || {
        cluster.sh("ls run/.words").is_empty()
    });
    assert_eq!(cluster.sh("cat kept"), "1\n2\n3\n");
    assert_eq!(show(&cluster, "words")["hook"]["dropped"], 4);

    lineage_tells(&cluster);

    // A batch ends earlier on request; there is no batch before the first file.
    let none = cluster.run(&["rule", "flush", "words"]);
    assert!(none.err.contains("no file has arrived"), "{}", none.err);
    cluster.sh("seq 7 > run/step-7.txt");
    let ended = cluster.json(&["rule", "flush", "words", "--wait"]);
    assert_eq!(
        (&ended["batch"], &ended["state"]),
        (&2.into(), &"done".into()),
        "{ended}"
    );
    assert_eq!(cluster.sh("cut -d' ' -f1 run/all-2"), "7\n");
    assert!(cluster.run(&["rule", "list"]).out.contains("step-*.txt"));
    cluster.json(&["rule", "delete", "words"]);
    cluster.sh("seq 2 > run/step-8.txt");
    assert_eq!(cluster.json(&["rule", "list"]), serde_json::json!([]));

    // A file may stay, and is evicted from the tier as soon as it is stored.
    add(
        &cluster,
        "'/run/step-*.txt' --map wordcount --result 'w/{name}' --inputs evict",
    );
    cluster.sh("seq 6 > run/step-6.txt");
    wait("it is mapped", || count(&cluster, "wordcount", "done") == 1);
    cluster.run(&["stage", "out", "/run", "--wait"]);
    wait("the file is stored, and evicted from the tier", || {
        let layout = cluster.json(&["stat", "/run/step-6.txt"]);
        let replicas = layout["parts"][0]["replicas"].as_array().unwrap().clone();
        replicas.len() == 1 && replicas[0]["node"] == 0
    });
    assert_eq!(cluster.sh("wc -l < run/step-6.txt"), "6\n");
    let check = cluster.run(&["cluster", "fsck"]);
    assert!(check.ok, "{}{}", check.out, check.err);
}

const FUNC: &str = "#include <stddef.h>\n#include <stdio.h>\n#include <unistd.h>\n\
    void func(void *buf, size_t size, int fd)\n{\n    unsigned long sum = 0;\n    for (size_t at = 0; at < size; at++)\n        \
    sum = sum * 31 + ((unsigned char *)buf)[at];\n    dprintf(fd, \"%zu %lu\\n\", size, sum);\n}\n";

/// Builds a kernel with the paper's function, a fold and a kernel that needs whole files.
fn own_kernels(cluster: &Cluster) {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/kernels");
    std::fs::write(cluster.path("func.c"), FUNC).unwrap();
    for name in ["func", "range", "tail"] {
        let source = cluster.path(&format!("{name}.c"));
        if name != "func" {
            std::fs::copy(format!("{examples}/{name}.c"), &source).unwrap();
        }
        cluster.run(&["kernel", "build", source.to_str().unwrap()]);
        let built = source.with_extension("so");
        std::fs::copy(built, cluster.at(&format!("lib/{name}.so"))).unwrap();
    }
}

fn value(at: u64) -> f64 {
    f64::from(u32::try_from(at * 2_654_435_761 % 1_000_003).unwrap()) / 1e6 - 0.3
}

fn numbers(range: std::ops::Range<u64>) -> Vec<u8> {
    range.flat_map(|at| value(at).to_le_bytes()).collect()
}

/// Kernels of all kinds map a file while it is written. The result equals the result of the sealed file, although some parts were holes
/// or contained other bytes at the time of the read.
#[test]
fn hook_map_during_write_equals_map_of_sealed_file() {
    let Some(cluster) = start_with(8, &[]) else {
        return;
    };
    cluster.sh("mkdir run lib");
    own_kernels(&cluster);
    let kernels = [
        ("max", "max"),
        ("filter", "filter above=0.5"),
        ("sort", "sort"),
        ("func", "/lib/func.so"),
        ("range", "/lib/range.so"),
        ("tail", "/lib/tail.so"),
        ("sum", "/usr/bin/sha256sum"),
        ("pipeline", "filter above=0 | /usr/bin/wc -c"),
    ];
    for (name, map) in kernels {
        for on in ["write", "seal"] {
            add(
                &cluster,
                &format!(
                    "'/run/*.f64' --map '{map}' --result '{name}/{{stem}}-{on}' --on {on} --name {name}-{on}"
                ),
            );
        }
    }
    let mut file = create(&cluster, "run/a.f64");
    file.write_all(&numbers(0..500_000)).unwrap();
    // The second quarter is a hole at this time.
    file.seek(std::io::SeekFrom::Start(8_000_000)).unwrap();
    file.write_all(&numbers(1_000_000..1_300_000)).unwrap();
    wait("a map runs while the file is open", || {
        count(&cluster, "max-write", "running") == 1
    });
    assert_eq!(count(&cluster, "max-seal", "done"), 0);
    file.seek(std::io::SeekFrom::Start(4_000_000)).unwrap();
    file.write_all(&numbers(500_000..1_000_000)).unwrap();
    drop(file);
    // The other file is only appended to.
    let mut file = create(&cluster, "run/b.f64");
    for part in 0..4 {
        file.write_all(&numbers(part * 200_000..(part + 1) * 200_000))
            .unwrap();
    }
    drop(file);
    for (name, _) in kernels {
        for on in ["write", "seal"] {
            let name = format!("{name}-{on}");
            wait(&name, || count(&cluster, &name, "done") == 2);
        }
        cluster.sh(&format!(
            "cd run/{name}; for f in a b; do test -s $f-seal; cmp $f-write $f-seal; done"
        ));
    }
    assert_eq!(cluster.sh("wc -l < run/func/a-write"), "3\n");
    let max = (0..1_300_000).map(value).fold(f64::MIN, f64::max);
    let found = cluster.sh("cat run/max/a-write");
    assert_eq!(
        found.trim().parse::<f64>().unwrap().to_bits(),
        max.to_bits()
    );
}

/// Kernels that crash, hang or write without end harm only their own task. A file that a hook could not map is not
/// deleted.
#[test]
fn hook_with_failing_kernel_fails_alone_and_keeps_files() {
    let Some(cluster) = start(&[]) else {
        return;
    };
    cluster.sh("mkdir run");
    for (name, map) in [
        ("crash", "/bin/sh -c \"kill -SEGV \\$\\$\""),
        ("hang", "/bin/sleep 1000"),
        ("endless", "/bin/cat /dev/zero"),
    ] {
        let bounds = "--on write --time 3s --size 1MB";
        add(
            &cluster,
            &format!(
                "'/run/*.dat' --map '{map}' --result '{name}/{{name}}' --name {name} {bounds}"
            ),
        );
    }
    let reduced = "--map wordcount --result all --reduce 'cat {inputs}' --inputs delete";
    add(&cluster, &format!("'/run/*.dat' {reduced} --name good"));
    cluster.sh("seq 5 > run/a.dat");
    for name in ["crash", "hang", "endless"] {
        wait(name, || count(&cluster, name, "failed") == 1);
        let log = cluster.run(&["rule", "log", name]).out;
        let why = match name {
            "crash" => "exit code 139",
            "hang" => "time limit",
            _ => "output limit",
        };
        assert!(log.contains(why), "{log}");
    }
    wait("the good hook is not delayed", || {
        batch(&cluster, "good", 1) == "done"
    });
    assert_eq!(
        cluster.sh("cat run/a.dat | wc -l; cut -d' ' -f1 run/all"),
        "5\n5\n"
    );
    // One of the hooks that could not map the file is fixed, and the others are removed: then no hook needs the file any more.
    for name in ["hang", "endless"] {
        cluster.json(&["rule", "delete", name]);
    }
    add(
        &cluster,
        "'/run/*.dat' --map wordcount --result 'repaired/{name}' --name crash --replace",
    );
    cluster.json(&["rule", "retry", "crash"]);
    wait(
        "the repaired hook maps the file, and the file is deleted",
        || !cluster.try_sh("test -e run/a.dat").ok,
    );
    assert_eq!(cluster.sh("cut -d' ' -f1 run/repaired/a.dat"), "5\n");
}

/// A batch without one of its files has no result. It continues after the kernel is fixed.
#[test]
fn hook_batch_with_unmapped_file_fails_until_kernel_is_fixed() {
    let Some(cluster) = start(&[]) else {
        return;
    };
    cluster.sh("mkdir run");
    let half = |map: &str| {
        format!(
            "'/run/*.csv' --map '{map}' --result half --reduce 'cat {{inputs}}' --marker DONE --inputs delete --name half"
        )
    };
    add(&cluster, &half("/bin/grep -v bad"));
    cluster.sh("cd run; echo good > 1.csv; echo bad > 2.csv; touch DONE");
    wait("the batch has failed", || {
        batch(&cluster, "half", 1) == "failed"
    });
    let printed = cluster.run(&["rule", "show", "half"]).out;
    assert!(printed.contains("/run/2.csv was not mapped"), "{printed}");
    assert!(!cluster.try_sh("test -e run/half").ok);
    wait("mapped files are deleted, and no others", || {
        cluster.sh("ls run/*.csv") == "run/2.csv\n"
    });
    add(&cluster, &(half("/bin/cat") + " --replace"));
    cluster.json(&["rule", "retry", "half"]);
    wait("the batch is whole", || {
        batch(&cluster, "half", 1) == "done"
    });
    assert_eq!(cluster.sh("cat run/half"), "good\nbad\n");
}

/// Hooks read and delete files with the rights of their owner. Other users see nothing of them.
#[test]
fn hooks_have_only_the_rights_of_their_owner() {
    let Some(cluster) = start(&[]) else {
        return;
    };
    cluster.sh("mkdir -m 755 run; mkdir -m 777 out");
    add(
        &cluster,
        "'/run/*.dat' --map wordcount --result '/out/root-{name}' --name roots",
    );
    let other = |args: &str| {
        let user = "setpriv --reuid 65534 --regid 65534 --clear-groups";
        cluster.try_sh(&format!("{user} {:?} {args}", cluster.tidemill()))
    };
    let mine = other(
        "rule create '/run/*.dat' --map wordcount --result '/out/{name}' --inputs delete --name mine",
    );
    assert!(mine.ok, "{}", mine.err);
    for what in ["show", "flush", "delete"] {
        let printed = other(&format!("rule {what} roots"));
        assert!(
            !printed.ok && printed.err.contains("no rule roots"),
            "{what}: {}",
            printed.err
        );
    }
    let all = other("rule create --for-all /dev/null");
    assert!(!all.ok, "{}", all.out);
    cluster.sh("umask 077; echo secret > run/secret.dat; umask 022; echo plain > run/plain.dat");
    wait(
        "both hooks have mapped the files that they may read",
        || count(&cluster, "roots", "done") == 2 && count(&cluster, "mine", "done") == 1,
    );
    // A user who may read a file need not be able to delete it.
    wait("the reason why it stays is reported", || {
        cluster
            .run(&["rule", "log", "mine"])
            .out
            .contains("the file stays: ")
    });
    assert_eq!(
        cluster.sh("ls run | paste -sd,; ls out | paste -sd,"),
        "plain.dat,secret.dat\nplain.dat,root-plain.dat,root-secret.dat\n"
    );
}

/// The text of the paper, written to a file of the mount, creates hooks. An invalid text is reported and creates no
/// hook. The file returns such a text.
#[test]
fn hooks_file_of_active_burst_buffer_paper_is_accepted() {
    let Some(cluster) = start(&[]) else {
        return;
    };
    cluster.sh("mkdir run");
    let text = "<run/*.dat>\n op: map\n lib_path: wordcount\n output: parts/{name}\n cache times: 1\n</run/*.dat>\n\
                <run/*.dat>\n op: reduce\n lib_path: cat {inputs}\n output: all\n</run/*.dat>\n";
    std::fs::write(
        cluster.at(".tidemill/hooks"),
        text.replace("op: map", "op: mop"),
    )
    .unwrap_err();
    let error = cluster.sh("cat .tidemill/$(id -un)/last-error");
    assert!(error.contains("line 6") && error.contains("mop"), "{error}");
    assert_eq!(cluster.json(&["rule", "list"]), serde_json::json!([]));
    std::fs::write(cluster.at(".tidemill/hooks"), text).unwrap();
    let listed = cluster.sh("cat .tidemill/hooks");
    assert!(
        listed.contains("</run/*.dat>\n") && listed.contains("cache times: 1"),
        "{listed}"
    );
    cluster.sh("seq 4 > run/a.dat");
    wait("the batch is reduced", || {
        batch(&cluster, "wordcount", 1) == "done"
    });
    assert_eq!(cluster.sh("cut -d' ' -f1 run/all"), "4\n");
    // The listed text makes the same hook again.
    cluster.json(&["rule", "delete", "wordcount"]);
    std::fs::write(cluster.at(".tidemill/hooks"), &listed).unwrap();
    assert_eq!(cluster.sh("cat .tidemill/hooks"), listed);
    // A hook that is deleted while its writer has the file open stays deleted.
    cluster.json(&["rule", "delete", "wordcount"]);
    let mut hooks = File::create(cluster.at(".tidemill/hooks")).unwrap();
    hooks.write_all(text.as_bytes()).unwrap();
    cluster.json(&["rule", "delete", "wordcount"]);
    drop(hooks);
    assert_eq!(cluster.json(&["rule", "list"]), serde_json::json!([]));
    // The file also takes a hook in TOML.
    let toml = "[job]\nname = \"lines\"\nworkdir = \"/run\"\n[on]\nfiles = \"*.dat\"\n\
                [hook]\nmap = \"wordcount\"\noutput = \"lines/{name}\"\n";
    std::fs::write(cluster.at(".tidemill/hooks"), toml).unwrap();
    let listed = cluster.sh("cat .tidemill/hooks");
    assert!(listed.contains("name: lines\n"), "{listed}");
}

/// Maps that can't keep up run after their files are closed, and the lag is reported. A hook that is replaced while
/// files are open continues with its new definition, a removed hook leaves nothing, and writers wait for a full tier
/// without a failure.
#[test]
fn lagging_hook_maps_run_after_close_and_lose_no_file() {
    let Some(mut cluster) = start(&["--capacity", "128MiB"]) else {
        return;
    };
    cluster.sh("mkdir run");
    let hook = |map: &str| {
        format!("'/run/*.dat' --map {map} --result 'sums/{{name}}' --on write --name sums")
    };
    add(&cluster, &hook("/usr/bin/md5sum"));
    let gone = add(
        &cluster,
        "'/run/*.dat' --map wordcount --result 'w/{name}' --on write --name gone",
    );
    let files = |name: &str| {
        cluster
            .json(&["rule", "log", name])
            .as_array()
            .unwrap()
            .len()
    };
    let first = create(&cluster, "run/first.dat");
    wait("it is begun", || files("sums") == 1);
    cluster.json(&["rule", "delete", &gone["rule"].to_string()]);
    drop(first);
    wait("it is mapped", || count(&cluster, "sums", "done") == 1);
    cluster.json(&["rule", "pause", "sums"]);
    cluster.sh("for i in $(seq 20); do head -c 8M /dev/urandom > run/$i.dat; done");
    let behind = || show(&cluster, "sums")["hook"]["behind"].clone();
    wait("all are closed", || behind()["files"] == 20);
    assert_eq!(behind()["lags"], true);
    assert_eq!(cluster.json(&["status"])["hooks_behind"][0]["name"], "sums");
    assert!(cluster.run(&["status"]).out.contains("sums lags behind"));
    let begun = files("sums");
    let late = create(&cluster, "run/late.dat");
    cluster.sh("ls -l run");
    assert_eq!(files("sums"), begun, "the map runs after the close");
    add(&cluster, &(hook("/usr/bin/sha256sum") + " --replace"));
    cluster.json(&["rule", "resume", "sums"]);
    cluster.kill_server();
    cluster.kill_node(1);
    cluster.start_server();
    cluster.start_node(1);
    cluster.wait_for_nodes(2);
    drop(late);
    wait("all are mapped", || count(&cluster, "sums", "done") == 22);
    cluster.sh("cd run; for f in *.dat; do sha256sum < $f | cut -d' ' -f1; done > ../a; for f in *.dat; do cut -d' ' -f1 sums/$f; done > ../b");
    let (first, rest) = (cluster.sh("cat a"), cluster.sh("cat b"));
    let same = first
        .lines()
        .zip(rest.lines())
        .filter(|(one, other)| one == other)
        .count();
    // The previous definition of the hook started the first map.
    assert!(same >= 21 && rest.lines().count() == 22, "{first}\n{rest}");
    assert_eq!(show(&cluster, "sums")["hook"]["behind"]["files"], 0);
    let health = cluster.json(&["cluster", "health"]);
    assert_eq!(health["lost"], 0, "{health}");
    assert_eq!(health["unavailable"], 0, "{health}");
}

/// Maps that began with a file end when the file is abandoned, although their hook is removed. Maps of other files
/// continue.
#[test]
fn maps_of_removed_hook_end_with_their_abandoned_file() {
    let Some(cluster) = start(&[]) else { return };
    cluster.sh("mkdir run");
    add(
        &cluster,
        "'/run/*.dat' --map /usr/bin/md5sum --result 'sums/{name}' --on write --name sums",
    );
    let running = || {
        let jobs = cluster.json(&["job", "list"]);
        let jobs = jobs.as_array().unwrap().iter();
        jobs.filter(|job| job["state"] == "running").count()
    };
    // One after the other, so that each has a job of its own.
    let begin = |name: &str, jobs: usize| {
        let mut file = create(&cluster, &format!("run/{name}.dat"));
        file.write_all(b"begun").unwrap();
        wait("it is begun", || running() == jobs);
        file
    };
    let (abandoned, stays) = (begin("abandoned", 1), begin("stays", 2));
    cluster.json(&["rule", "delete", "sums"]);
    cluster.sh("rm run/abandoned.dat");
    drop(abandoned);
    wait("no map waits for deleted files", || running() == 1);
    drop(stays);
    wait("the other is mapped", || {
        cluster.at("run/sums/stays.dat").exists()
    });
    wait("all jobs have ended", || running() == 0);
    assert!(cluster.run(&["cluster", "fsck"]).ok);
}

/// Writes files in another directory on the same node, so that a new file is always open, until `end` is set.
fn writes_on_and_on(cluster: &Cluster, end: &AtomicBool) {
    let mut open = create(cluster, "other/0");
    for number in 1.. {
        if end.load(Ordering::Relaxed) {
            return;
        }
        open.write_all(&[7; 1 << 20]).unwrap();
        let next = create(cluster, &format!("other/{}", number % 4));
        drop(std::mem::replace(&mut open, next));
        std::thread::sleep(Duration::from_millis(50));
    }
}

struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// While a program writes, maps wait for the end of the burst, and the wait is reported. They end even if the burst
/// never ends, next to kernels that use all resources or hang.
#[test]
fn hook_maps_wait_for_end_of_burst_up_to_a_limit() {
    let Some(cluster) = start(&[]) else {
        return;
    };
    cluster.sh("mkdir run other");
    for (name, map) in [
        ("burns", "/bin/sh -c \"while :; do :; done\""),
        ("hangs", "/bin/sleep 1000"),
        ("good", "max"),
    ] {
        let bounds = "--on write --time 3s";
        let words =
            format!("'/run/*.f64' --map '{map}' --result '{name}/{{stem}}' --name {name} {bounds}");
        add(&cluster, &words);
    }
    let end = AtomicBool::new(false);
    let files = std::thread::scope(|scope| {
        scope.spawn(|| writes_on_and_on(&cluster, &end));
        // The writer ends in any case.
        let _end = Ends(&end);
        let mut files = 0;
        wait("maps wait", || {
            let file = cluster.at(&format!("run/{files}.f64"));
            std::fs::write(file, numbers(files..files + 9)).unwrap();
            files += 1;
            let status = cluster.json(&["status"]);
            assert_eq!(status["burst_share"], 90);
            status["maps_held"].as_u64().unwrap() > 0
        });
        wait("all are mapped", || {
            count(&cluster, "good", "done") == files
        });
        for name in ["burns", "hangs"] {
            wait("it has failed", || count(&cluster, name, "failed") == files);
        }
        files
    });
    for file in 0..files {
        let max = (file..file + 9).map(value).fold(f64::MIN, f64::max);
        let found = cluster.sh(&format!("cat run/good/{file}"));
        assert_eq!(
            found.trim().parse::<f64>().unwrap().to_bits(),
            max.to_bits()
        );
    }
    wait("no work is queued", || {
        cluster.json(&["status"])["maps_held"] == 0
    });
}
