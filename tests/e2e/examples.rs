//! Runs every job in the documentation exactly as printed.

use crate::cluster::{Cluster, Options, can_mount, printed};
use std::path::Path;
use std::process::Command;

/// Root of the documentation.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Preparation of each job of the documentation, as a shell command in the mount, and a check of its result. Add a line here for each new
/// example.
const JOBS: &[(&str, &str, &str)] = &[
    (
        "getmax",
        "mkdir -p scratch/getmax; cd scratch/getmax; cp {directory}/getmax.so .
         printf '\\0\\0\\0\\0\\0\\0\\xf0\\x3f' > 1.dat; cp 1.dat 2.dat",
        "test $(cat scratch/getmax/max.dat) = 1",
    ),
    (
        "top",
        "mkdir logs; for i in $(seq 300); do echo page$i $((i * 7 % 300)); done > logs/access.log",
        "sort -k 2 -n -r logs/access.log | head -n 100 | cmp - logs/top.log",
    ),
    (
        "calibrate",
        "mkdir -p calibrate/raw; cd calibrate; echo flat > flat; for x in a b c; do echo $x > raw/$x.fits; done",
        "test \"$(tr '\\n' ' ' < calibrate/sum)\" = 'flat a flat b flat c '",
    ),
    (
        "parts",
        "mkdir parts; seq 250 > parts/access.log",
        "test \"$(sort parts/list | tr '\\n' ' ')\" = 'by-100/aa by-100/ab by-100/ac ' && test $(tail -n 1 parts/by-100/ac) = 250",
    ),
    (
        "count",
        "mkdir count; for i in $(seq 300); do echo word$((i % 7)); done > count/words",
        "cd count; sort words | uniq -c | cmp - counts",
    ),
    (
        "train",
        "mkdir train; seq 100 | shuf > train/a",
        "cd train; seq 100 | sort | cmp - model",
    ),
    (
        "climate",
        "mkdir climate; setfattr -n user.tidemill.stripe -v 1MiB,2 climate; head -c 4194304 /dev/urandom > climate/tas.dat",
        "cd climate; part() { dd if=tas.dat bs=1 skip=$1 count=100 status=none; }
         { head -c 4096 tas.dat; part 1048576; part 3145728; } | cmp - ends && test -s sum0 && ! cmp -s sum0 sum1",
    ),
    (
        "dscal",
        "mkdir dscal; setfattr -n user.tidemill.stripe -v 64KiB,2 dscal; seq -f 'line %g' 40000 > dscal/x.dat",
        "cd dscal; tr a-z A-Z < x.dat | cmp - y.dat && test \"$(awk '{ s += $1 } END { print s, NR }' counts)\" = '40000 2'",
    ),
    (
        "log",
        "mkdir log",
        "cd log; seq 1000000 | grep 7 | cmp - sevens",
    ),
    (
        "pack",
        "mkdir example; cd example; head -c 800 /dev/zero > a.dat; head -c 32 /dev/zero > key",
        "test -s example/a.packed",
    ),
    (
        "largest",
        "mkdir w; seq 1 200000 > w/1.dat; seq 5 300000 > w/2.dat",
        "test \"$(cat w/result)\" = 300000",
    ),
    (
        "extract",
        "mkdir -p example; printf 'flare\\nquiet\\n' > example/sun.log",
        "test \"$(cat example/flares)\" = flare",
    ),
];

/// Returns the jobs of a page with their names, in TOML or libconfig. Single tasks are completed to jobs.
fn scripts(page: &Path) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(page).unwrap();
    let blocks = text.split("\n```").skip(1).step_by(2);
    // Rules and blocks without a task are tested by `lang`, and rules in `rules.rs`, too.
    let jobs = blocks.filter(|block| {
        let of_unnamed_form = block.starts_with('\n') && block.contains("kernel = \"");
        assert!(!of_unnamed_form, "{}: {block}", page.display());
        (block.starts_with("toml\n") && block.contains("[[task]]"))
            || (block.starts_with("libconfig\n") && block.contains("tasks = ("))
    });
    jobs.map(|block| {
        let (_, script) = block.split_once('\n').unwrap();
        let name = script.split('"').nth(1).unwrap().to_owned();
        let whole = if script.starts_with("[[task]]") {
            format!("[job]\nname = \"{name}\"\nworkdir = \"/example\"\n\n{script}")
        } else {
            script.to_owned()
        };
        (name, whole)
    })
    .collect()
}

/// The commands of the tour in README.md, except for the build, as a new user types them.
#[test]
fn readme_tour_runs_as_printed() {
    if !can_mount() {
        return;
    }
    let readme = std::fs::read_to_string(format!("{ROOT}/README.md")).unwrap();
    let (_, tour) = readme.split_once("\n## A tour\n").unwrap();
    let (_, tour) = tour.split_once("```sh\n").unwrap();
    let (tour, _) = tour.split_once("```").unwrap();
    let typed: Vec<&str> = tour.lines().skip(1).collect();
    assert!(tour.starts_with("make build") && typed.last().unwrap().starts_with("tidemill down"));
    let home = tempfile::Builder::new()
        .prefix("tidemill-e2e-")
        .tempdir()
        .unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_tidemill"));
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", program.parent().unwrap().display());
    std::os::unix::fs::symlink(format!("{ROOT}/examples"), home.path().join("examples")).unwrap();
    let shell = |text: &str| {
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", text]);
        command.current_dir(home.path()).env("PATH", &path);
        command.env("HOME", home.path());
        command.env("TIDEMILL_DIR", home.path().join("cluster"));
        printed(command.output().unwrap())
    };
    let toured = shell(&typed.join("\n"));
    if !toured.ok {
        shell("tidemill down --force");
    }
    assert!(toured.ok, "{}{}", toured.out, toured.err);
    assert!(toured.out.contains("\n300000\n"), "{}", toured.out);
    let svg = std::fs::read_to_string(home.path().join("result.svg")).unwrap();
    assert!(svg.contains("largest") || svg.contains("max"), "{svg}");
}

#[test]
fn documented_job_scripts_run_as_printed() {
    let mut pages = vec![Path::new(ROOT).join("README.md")];
    let docs = std::fs::read_dir(Path::new(ROOT).join("docs")).unwrap();
    pages.extend(docs.map(|entry| entry.unwrap().path()));
    pages.retain(|page| page.extension().is_some_and(|end| end == "md"));
    pages.sort();
    let shown: Vec<_> = pages.iter().flat_map(|page| scripts(page)).collect();
    for (name, ..) in JOBS {
        let is_shown = shown.iter().any(|(shown, _)| shown == name);
        assert!(is_shown, "no page shows the job {name} any more");
    }
    let offers = ["--memory", "2GiB", "--resources", "gpu=1,licence.x=1"];
    let options = Options {
        node_args: offers.map(str::to_owned).into(),
        ..Options::default()
    };
    let Some(cluster) = Cluster::with(options) else {
        return;
    };
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-I"])
        .arg(format!("{ROOT}/crates/sandbox/include"))
        .arg(format!("{ROOT}/examples/listing1/getmax.c"))
        .arg("-o")
        .arg(cluster.path("getmax.so"))
        .status()
        .unwrap();
    assert!(built.success());
    let directory = cluster.path("").display().to_string();
    for (name, before, after) in JOBS {
        cluster.sh(&before.replace("{directory}", &directory));
        for (_, script) in shown.iter().filter(|(shown, _)| shown == name) {
            let path = cluster.path("example.toml");
            std::fs::write(&path, script).unwrap();
            let path = path.display().to_string();
            let printed = cluster.run(&["submit", "--replace", "--no-cache", "--watch", &path]);
            assert!(printed.ok, "{script}\n{}{}", printed.out, printed.err);
            cluster.sh(after);
        }
    }
    for (name, script) in &shown {
        let is_known = JOBS.iter().any(|(known, ..)| known == name);
        assert!(is_known, "nothing is known of the job {name}:\n{script}");
    }
}
