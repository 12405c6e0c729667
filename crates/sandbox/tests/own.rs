//! Tests users' kernels in C: the three forms of kernels, and the merge invariance of folds with real processes.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use support::merge_invariance::{Fold, cuts, series};
use support::{LAUNCHER, Place, compile, finish, output, users};
use tidemill_sandbox::child::{PIECE_ALIGN, SLICE_BYTES};
use tidemill_sandbox::{CodeSource, Launcher, LauncherSettings, Run, RunEnd, RunInput, RunPart};

#[test]
fn map_kernel_gets_slices_in_order_and_may_change_them() {
    let place = Place::new();
    let slices = compile(&place, "tests/kernels/slices.c", "slices.so");
    let run = || {
        let mut run = place.run(CodeSource::Native(slices.clone()), &[]);
        for (name, letter, length) in [("a", "a", 2 * SLICE_BYTES + 5), ("b", "b", 7), ("c", "", 0)]
        {
            let path = place.path(&format!("object-{name}"));
            if !path.exists() {
                place.object(&format!("object-{name}"), letter.repeat(length));
            }
            let name = name.to_owned();
            run.inputs.push(RunInput { name, path });
        }
        run
    };
    let lines = format!("{SLICE_BYTES} a\n{SLICE_BYTES} a\n5 a\n7 b\n");
    assert_eq!(
        output(run()),
        lines,
        "without an output it is standard output"
    );
    let mut one = run();
    one.outputs.push("out".into());
    let (prepared, exit) = finish(one);
    assert!(exit.success(), "{}", exit.stderr.text());
    let written = prepared.run().directory.join("out");
    assert_eq!(fs::read_to_string(written).unwrap(), lines);
    let mut two = run();
    two.outputs = vec!["o1".into(), "o2".into()];
    let (_, exit) = finish(two);
    assert_eq!(exit.end, RunEnd::Code(126));
    assert!(
        exit.stderr
            .text()
            .contains("writes one output; the task has 2")
    );
    let mut part = run();
    part.part = RunPart::Merge;
    let (_, exit) = finish(part);
    assert!(
        exit.stderr.text().contains("is no fold"),
        "{}",
        exit.stderr.text()
    );
}

#[test]
fn example_kernels_match_their_description() {
    let place = Place::new();
    for user in users() {
        let text = place.object("text", "low tide\n");
        let code = compile(&place, "../../examples/kernels/upper.c", "upper.so");
        let mut upper = place.run(CodeSource::Native(code.clone()), &[]);
        upper.user = user;
        upper.inputs.push(RunInput {
            name: "text".into(),
            path: text.clone(),
        });
        assert_eq!(output(upper), "LOW TIDE\n");
        fs::remove_file(code).unwrap();

        let code = compile(&place, "../../examples/kernels/tail.c", "tail.so");
        let mut tail = place.run(CodeSource::Native(code.clone()), &["5"]);
        tail.user = user;
        tail.inputs.push(RunInput {
            name: "text".into(),
            path: text.clone(),
        });
        assert_eq!(output(tail), "tide\n");
        let (_, exit) = finish(place.run(CodeSource::Native(code.clone()), &["none"]));
        assert_eq!(exit.end, RunEnd::Code(2));
        assert!(exit.stderr.text().starts_with("tail: the argument"));
        fs::remove_file(code).unwrap();
        fs::remove_file(text).unwrap();
    }
    let code = compile(&place, "../../examples/kernels/range.c", "range.so");
    let mut range = place.run(CodeSource::Native(code), &[]);
    let values = [3.5, f64::NAN, -2.0, 9.25];
    place.input(&mut range, "a", values.map(f64::to_le_bytes).concat());
    place.input(&mut range, "b", 10.0_f64.to_le_bytes());
    range.outputs.push("out".into());
    let (prepared, exit) = finish(range);
    assert!(exit.success(), "{}", exit.stderr.text());
    let written = fs::read(prepared.run().directory.join("out")).unwrap();
    assert_eq!(
        written,
        [(-2.0_f64).to_le_bytes(), 10.0_f64.to_le_bytes()].concat()
    );
}

fn places(place: &Place) -> PathBuf {
    compile(place, "tests/kernels/places.c", "places.so")
}

#[test]
fn fold_refuses_wrong_partial_states() {
    let place = Place::new();
    let code = CodeSource::Native(places(&place));
    let say = |run: Run| finish(run).1.stderr.text();
    assert!(say(place.run(code.clone(), &[])).contains("places: one argument"));
    let state = |args: &[&str]| {
        let mut run = place.run(code.clone(), args);
        run.part = RunPart::Piece {
            input: 0,
            offset: PIECE_ALIGN,
        };
        run.outputs.push("state".into());
        let name = "piece".to_owned();
        let path = place.path("piece");
        if !path.exists() {
            place.object("piece", "some bytes");
        }
        run.inputs.push(RunInput { name, path });
        let (prepared, exit) = finish(run);
        assert!(exit.success(), "{}", exit.stderr.text());
        prepared.run().directory.join("state")
    };
    let merge = |args: &[&str], from: &Path| {
        let mut run = place.run(code.clone(), args);
        run.part = RunPart::Finish;
        run.outputs.push("result".into());
        place.input(
            &mut run,
            &format!("s{}", from.display()).replace('/', "-"),
            fs::read(from).unwrap(),
        );
        say(run)
    };
    let one = state(&["1"]);
    assert_eq!(merge(&["1"], &one), "");
    assert!(merge(&["2"], &one).contains("of another kernel or other arguments"));
    let short = place.object("short", "\u{1}");
    assert!(merge(&["1"], &short).contains("too short"));
    let mut odd = fs::read(&one).unwrap();
    odd[0] = 9;
    let odd = place.object("odd", odd);
    assert!(merge(&["1"], &odd).contains("by another version"));
    let mut askew = place.run(code.clone(), &["1"]);
    askew.part = RunPart::Piece {
        input: 0,
        offset: 1,
    };
    place.input(&mut askew, "askew", "x");
    assert!(say(askew).contains("multiple of 4096"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn c_fold_is_independent_of_split(lengths in prop::collection::vec(0..60_000_usize, 1..3), seed: u64) {
        let place = Place::new();
        let inputs: Vec<_> = lengths.iter().zip(0..).map(|(length, salt)| series(*length, salt)).collect();
        let fold = Fold { place: &place, launcher: &support::LAUNCHER, code: CodeSource::Native(places(&place)), args: &["3"] };
        let whole = fold.whole(&inputs);
        prop_assert_eq!(fold.in_parts(&inputs, &cuts(&inputs, seed), seed), whole);
    }
}

#[test]
fn kernel_inherits_nothing_from_node() {
    let place = Place::new();
    let code = compile(&place, "tests/kernels/around.c", "around.so");
    for user in users() {
        let mut run = place.run(CodeSource::Native(code.clone()), &[]);
        run.user = user;
        run.environment = vec![("MINE".into(), "1".into())];
        let printed = output(run);
        let line = |name: &str| {
            printed
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .unwrap()
        };
        assert_eq!(line("descriptors"), " 0 1 2", "{printed}");
        assert_eq!(line("signals"), "", "{printed}");
        assert_eq!(line("leader"), " 1", "{printed}");
        assert_eq!(line("dumpable"), " 1", "{printed}");
        assert!(line("variables").contains(" MINE"), "{printed}");
        // The kernel has no variable of this process.
        assert!(!line("variables").contains("CARGO"), "{printed}");
        if let Some(user) = user {
            let (uid, gid) = (user.uid, user.gid);
            assert_eq!(line("ids"), format!(" {uid} {uid} {gid}"), "{printed}");
        }
    }
}

/// The parent of a node may make the node ignore signals, as `nohup` does. The node's kernels do not ignore these signals.
#[test]
fn ignored_signals_are_reset_for_kernels() {
    let again = "kernel_inherits_nothing_from_node";
    let script = "trap '' HUP INT QUIT TERM USR1; exec \"$@\"";
    let mut node = std::process::Command::new("/bin/sh");
    node.args(["-c", script, "sh"])
        .arg(std::env::current_exe().unwrap());
    let printed = node.args(["--exact", again]).output().unwrap();
    let text = String::from_utf8_lossy(&printed.stdout);
    assert!(
        printed.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

/// Returns the ids of this process's children that are fork servers.
fn fork_servers() -> Vec<i32> {
    let own = std::process::id().to_string();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|process| {
            let read = |name: &str| fs::read_to_string(process.path().join(name)).ok();
            let parent = read("status")?
                .lines()
                .find_map(|line| line.strip_prefix("PPid:").map(str::to_owned))?;
            let is_server = read("cmdline")?.contains("fork-server");
            let id = process.file_name().to_str()?.parse().ok()?;
            (is_server && parent.trim() == own).then_some(id)
        })
        .collect()
}

#[test]
fn kernels_survive_kill_of_fork_server() {
    let place = Place::new();
    let count = |launcher: &Launcher| {
        let mut run = place.run(CodeSource::Builtin("count".into()), &["dtype=u8"]);
        let object = place.input(&mut run, "in", "12345");
        let prepared = launcher.prepare(run).unwrap();
        let exit = launcher.spawn(&prepared).unwrap().wait().unwrap();
        fs::remove_file(object).unwrap();
        exit.stdout.text()
    };
    // The server of the other tests exists before the one of this test.
    assert_eq!(count(&LAUNCHER), "5\n");
    let before = fork_servers();
    let launcher = Launcher::new(LauncherSettings::default()).unwrap();
    assert_eq!(count(&launcher), "5\n");
    let mut new = fork_servers();
    new.retain(|id| !before.contains(id));
    let [server] = new[..] else {
        panic!("{before:?} {new:?}")
    };
    let killed = std::process::Command::new("kill")
        .args(["-9", &server.to_string()])
        .status();
    assert!(killed.unwrap().success());
    for _ in 0..3 {
        assert_eq!(count(&launcher), "5\n");
    }
    // A process that was just forked has the name of its parent.
    for _ in 0..100 {
        let mut again = fork_servers();
        again.retain(|id| !before.contains(id) && *id != server);
        if again.len() == 1 {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("no other one took its place, or several did");
}
