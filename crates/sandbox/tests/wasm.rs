//! Tests kernels as WebAssembly modules: their imports, their limits, and the cache of compiled modules.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use support::merge_invariance::{Fold, cuts, series};
use support::{Place, compile, users};
use tidemill_sandbox::{
    CodeSource, Exit, Launcher, LauncherSettings, PrepareError, Run, RunEnd, RunInput, RunStage,
    STORE_USER,
};

/// Test environment with its own directory of compiled modules.
struct Mill {
    place: Place,
    launcher: Launcher,
}

impl Mill {
    fn new() -> Self {
        let place = Place::new();
        let modules = Some(place.path("modules"));
        let launcher = Launcher::new(LauncherSettings {
            modules,
            ..LauncherSettings::default()
        })
        .unwrap();
        Self { place, launcher }
    }

    fn module(&self, name: &str, text: &str) -> PathBuf {
        self.place.object(name, wat::parse_str(text).unwrap())
    }

    fn run(&self, module: &Path, args: &[&str]) -> Run {
        self.place.run(CodeSource::Wasm(module.to_owned()), args)
    }

    fn finish(&self, run: Run) -> Exit {
        let prepared = self.launcher.prepare(run).unwrap();
        self.launcher.spawn(&prepared).unwrap().wait().unwrap()
    }

    fn refused(&self, module: &Path) -> String {
        match self.launcher.prepare(self.run(module, &[])).unwrap_err() {
            PrepareError::Module { reason, .. } => reason,
            other => panic!("{other}"),
        }
    }

    /// Runs a module with memory whose `start_kernel` has this body; returns its output and end.
    fn start(&self, body: &str) -> Exit {
        let module = self.module("start", &starting("", body));
        let mut run = self.run(&module, &[]);
        run.limits.time = Duration::from_secs(20);
        run.limits.memory_bytes = 64 << 20;
        let exit = self.finish(run);
        fs::remove_file(module).unwrap();
        exit
    }

    fn compiled(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.place.path("modules")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

fn starting(more: &str, body: &str) -> String {
    format!(
        r#"(module
            (import "tidemill" "write" (func $write (param i32 i32 i32) (result i32)))
            (memory (export "memory") 1)
            (global $next (mut i32) (i32.const 1024))
            (func (export "tidemill_alloc") (param i32) (result i32)
                (global.get $next)
                (global.set $next (i32.and (i32.add (i32.add (global.get $next) (local.get 0)) (i32.const 15)) (i32.const -16))))
            {more}
            (func (export "start_kernel") (param $task i32) (result i32) {body}))"#
    )
}

const PLACES: &str = include_str!("kernels/places.wat");

#[test]
fn wasm_start_gets_arguments_inputs_and_outputs() {
    let mill = Mill::new();
    // Writes the letter in the second argument, then both inputs, to the outputs with the same numbers.
    let body = "
        (drop (call $write (i32.const 0)
            (i32.load offset=8 (i32.load offset=12 (local.get $task))) (i32.load offset=8 (local.get $task))))
        (drop (call $write (i32.const 0)
            (i32.load offset=4 (i32.load offset=20 (local.get $task)))
            (i32.load offset=8 (i32.load offset=20 (local.get $task)))))
        (drop (call $write (i32.const 1)
            (i32.load offset=20 (i32.load offset=20 (local.get $task)))
            (i32.load offset=24 (i32.load offset=20 (local.get $task)))))
        (i32.add (i32.load offset=16 (local.get $task)) (i32.mul (i32.load offset=24 (local.get $task)) (i32.const 10)))";
    for user in users() {
        let module = mill.module("start", &starting("", body));
        let mut run = mill.run(&module, &["x", "and"]);
        run.user = user;
        let inputs = [
            mill.place.input(&mut run, "one", "first"),
            mill.place.input(&mut run, "two", "second"),
        ];
        run.outputs = vec!["a".into(), "deep/b".into()];
        let prepared = mill.launcher.prepare(run).unwrap();
        let exit = mill.launcher.spawn(&prepared).unwrap().wait().unwrap();
        assert_eq!(exit.end, RunEnd::Code(22), "{}", exit.stderr.text());
        let directory = &prepared.run().directory;
        assert_eq!(fs::read_to_string(directory.join("a")).unwrap(), "andfirst");
        assert_eq!(
            fs::read_to_string(directory.join("deep/b")).unwrap(),
            "second"
        );
        fs::remove_file(module).unwrap();
        inputs
            .into_iter()
            .for_each(|input| fs::remove_file(input).unwrap());
    }
    let compiled = mill.compiled().len();
    assert_eq!(compiled, users().len(), "once for each user");
}

#[test]
fn wasm_fold_matches_native_fold() {
    let mill = Mill::new();
    let module = mill.module("places", PLACES);
    let native = compile(&mill.place, "tests/kernels/places.c", "places.so");
    let inputs = [series(3_000_000, 1), series(0, 2), series(1234, 3)];
    let of = |code: CodeSource| {
        Fold {
            place: &mill.place,
            launcher: &mill.launcher,
            code,
            args: &["7"],
        }
        .whole(&inputs)
    };
    assert_eq!(
        of(CodeSource::Wasm(module.clone())),
        of(CodeSource::Native(native))
    );
    let exit = mill.finish(mill.run(&module, &[]));
    assert_eq!(exit.end, RunEnd::Code(1));
    assert_eq!(exit.stderr.text(), "places: a factor\n");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    #[test]
    fn wasm_fold_is_independent_of_split(lengths in prop::collection::vec(0..40_000_usize, 1..3), seed: u64) {
        let mill = Mill::new();
        let inputs: Vec<_> = lengths.iter().zip(0..).map(|(length, salt)| series(*length, salt)).collect();
        let code = CodeSource::Wasm(mill.module("places", PLACES));
        let fold = Fold { place: &mill.place, launcher: &mill.launcher, code, args: &["3"] };
        let whole = fold.whole(&inputs);
        prop_assert_eq!(fold.in_parts(&inputs, &cuts(&inputs, seed), seed), whole);
    }
}

#[test]
fn wasm_vector_instructions_are_available() {
    let body = "(i32x4.extract_lane 2 (i32x4.add (v128.const i32x4 1 2 3 4) (i32x4.splat (i32.const 40))))";
    assert_eq!(Mill::new().start(body).end, RunEnd::Code(43));
}

#[test]
fn wasm_module_traps_at_forbidden_operation() {
    let mill = Mill::new();
    let trapped = |body: &str, words: &str| {
        let exit = mill.start(body);
        let printed = exit.stderr.text();
        assert_eq!(exit.end, RunEnd::Code(134), "{printed}");
        assert!(printed.contains(words), "{printed}");
    };
    trapped("unreachable", "unreachable");
    trapped("(i32.load (i32.const -65536))", "out of bounds");
    trapped("(i32.div_u (i32.const 1) (i32.const 0))", "divide by zero");
    trapped("(i32.load offset=4 (i32.const -2))", "out of bounds");
    let module = starting(
        "(func $deep (param i32) (result i32) (i32.add (i32.const 1) (call $deep (local.get 0))))",
        "(call $deep (i32.const 0))",
    );
    let module = mill.module("deep", &module);
    let exit = mill.finish(mill.run(&module, &[]));
    assert!(
        exit.stderr.text().contains("stack"),
        "{}",
        exit.stderr.text()
    );
}

#[test]
fn wasm_module_gets_error_of_invalid_write() {
    let mill = Mill::new();
    let write = |output: i32, at: i32, length: i32| {
        mill.start(&format!(
            "(call $write (i32.const {output}) (i32.const {at}) (i32.const {length}))"
        ))
        .end
    };
    assert_eq!(write(0, 0, 0), RunEnd::Code(0));
    assert_eq!(write(1, 0, 4), RunEnd::Code(libc::EINVAL));
    assert_eq!(write(0, 65535, 2), RunEnd::Code(libc::EFAULT));
    assert_eq!(write(0, -1, -1), RunEnd::Code(libc::EFAULT));
    assert_eq!(write(-1, 0, 1), RunEnd::Code(libc::EINVAL));
}

#[test]
fn wasm_endless_loop_ends_at_time_limit() {
    let mill = Mill::new();
    let module = mill.module("loop", &starting("", "(loop $on (br $on)) (i32.const 0)"));
    let mut run = mill.run(&module, &[]);
    run.limits.time = Duration::from_millis(500);
    assert_eq!(mill.finish(run).end, RunEnd::TimeLimit);
}

#[test]
fn wasm_memory_growth_ends_at_limit() {
    let mill = Mill::new();
    let grow = "
        (block $full (loop $more
            (br_if $full (i32.eq (memory.grow (i32.const 16)) (i32.const -1)))
            (memory.fill (i32.shl (i32.sub (memory.size) (i32.const 16)) (i32.const 16)) (i32.const 7) (i32.const 1048576))
            (br $more)))";
    let exit = mill.start(&format!("{grow} unreachable"));
    assert_eq!(exit.end, RunEnd::MemoryLimit, "{}", exit.stderr.text());
    assert!(exit.usage.rss_bytes_max < 128 << 20);
    // A module that does not need more memory continues.
    let exit = mill.start(&format!("{grow} (i32.lt_u (memory.size) (i32.const 1024))"));
    assert_eq!(exit.end, RunEnd::Code(1), "{}", exit.stderr.text());
    let module = mill.module("start", &starting("", "(i32.const 0)"));
    let mut run = mill.run(&module, &[]);
    run.limits.memory_bytes = 64 << 20;
    let path = mill.place.path("large");
    fs::File::create(&path).unwrap().set_len(5 << 30).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o444)).unwrap();
    if support::is_root() {
        std::os::unix::fs::chown(&path, Some(STORE_USER.uid), Some(STORE_USER.gid)).unwrap();
    }
    run.inputs.push(RunInput {
        name: "large".into(),
        path,
    });
    let exit = mill.finish(run);
    assert_eq!(exit.end, RunEnd::MemoryLimit, "{}", exit.stderr.text());
}

#[test]
fn invalid_wasm_module_is_refused_with_reason() {
    let mill = Mill::new();
    let bad = mill.place.object("bad", "\0asm but no module");
    assert!(mill.refused(&bad).contains("no valid module"));
    let wasi = r#"(module (import "wasi_snapshot_preview1" "fd_write" (func (param i32 i32 i32 i32) (result i32))))"#;
    let printed = mill.refused(&mill.module("wasi", wasi));
    assert!(
        printed.contains("imports wasi_snapshot_preview1.fd_write"),
        "{printed}"
    );
    let memory = r#"(module (import "tidemill" "write" (memory 1)))"#;
    assert!(
        mill.refused(&mill.module("import", memory))
            .contains("imports tidemill.write")
    );
    let huge = mill.place.path("huge");
    fs::File::create(&huge)
        .unwrap()
        .set_len((64 << 20) + 1)
        .unwrap();
    assert!(mill.refused(&huge).contains("more than 67108864 bytes"));
    let wrong = |name: &str, text: &str, words: &str| {
        let module = mill.module(name, text);
        let exit = mill.finish(mill.run(&module, &[]));
        assert_eq!(exit.end, RunEnd::Code(126));
        let printed = exit.stderr.text();
        assert!(printed.contains(words), "{printed}");
    };
    let type_of_write =
        r#"(module (import "tidemill" "write" (func (param i64))) (memory (export "memory") 1))"#;
    let module = mill.module("type", type_of_write);
    let printed = mill.finish(mill.run(&module, &[])).stderr.text();
    assert!(printed.contains("types incompatible"), "{printed}");
    wrong("none", "(module)", "does not export memory");
    wrong(
        "bare",
        r#"(module (memory (export "memory") 1))"#,
        "does not export tidemill_alloc",
    );
    let idle = r#"(module (memory (export "memory") 1) (func (export "tidemill_alloc") (param i32) (result i32) (i32.const 8)))"#;
    wrong("idle", idle, "does not export start_kernel");
    let new = starting(
        r#"(global (export "tidemill_kernel_abi_version") i32 (i32.const 32)) (data (i32.const 32) "\02")"#,
        "(i32.const 0)",
    );
    wrong("new", &new, "built for version 2 of the interface");
}

#[test]
fn compiled_module_changeable_by_others_is_recompiled() {
    let mill = Mill::new();
    let module = mill.module("start", &starting("", "(i32.const 5)"));
    assert_eq!(mill.finish(mill.run(&module, &[])).end, RunEnd::Code(5));
    let kept = mill.compiled();
    let [kept] = kept.as_slice() else {
        panic!("{kept:?}")
    };
    assert_eq!(
        fs::metadata(kept).unwrap().permissions().mode() & 0o777,
        0o400
    );
    let directory = fs::metadata(kept.parent().unwrap()).unwrap();
    assert_eq!(directory.permissions().mode() & 0o777, 0o700);
    fs::set_permissions(kept, Permissions::from_mode(0o666)).unwrap();
    fs::write(kept, "not what was compiled").unwrap();
    assert_eq!(
        mill.finish(mill.run(&module, &[])).end,
        RunEnd::Code(5),
        "it was compiled again"
    );
    let again = mill.compiled();
    assert_eq!(again.len(), 1);
    assert_eq!(
        fs::metadata(&again[0]).unwrap().permissions().mode() & 0o777,
        0o400
    );
}

#[test]
fn wasm_modules_run_as_stages_of_pipeline() {
    let mill = Mill::new();
    // Writes its input, then its argument, which ends with a point.
    let body = "
        (drop (call $write (i32.const 0)
            (i32.load offset=4 (i32.load offset=20 (local.get $task)))
            (i32.load offset=8 (i32.load offset=20 (local.get $task)))))
        (call $write (i32.const 0) (i32.load offset=4 (i32.load offset=12 (local.get $task))) (i32.const 3))";
    let first = mill.module("first.wasm", &starting("", body));
    let second = mill.module("second.wasm", &starting("(func (export \"other\"))", body));
    let stage = |code, args: &[&str]| RunStage {
        code,
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
    };
    let upper = PathBuf::from("/usr/bin/tr");
    let stages = [
        stage(CodeSource::Wasm(first.clone()), &["one"]),
        stage(CodeSource::Program(upper), &["a-z", "A-Z"]),
        stage(CodeSource::Wasm(second), &["two"]),
        stage(CodeSource::Wasm(first), &["end"]),
    ];
    for user in users() {
        let mut run = (mill.place).run(CodeSource::Pipeline(stages.to_vec()), &[]);
        run.user = user;
        run.outputs.push("result".into());
        run.stdout = Some("result".into());
        let object = mill.place.input(&mut run, "in", "x");
        let exit = mill.finish(run.clone());
        assert!(exit.success(), "{}", exit.stderr.text());
        let result = fs::read_to_string(run.directory.join("result")).unwrap();
        assert_eq!(result, "XONEtwoend");
        fs::remove_file(object).unwrap();
    }
    let trap = mill.module("trap.wasm", &starting("", "unreachable"));
    let stages = vec![
        stage(CodeSource::Builtin("sort".into()), &["dtype=u8"]),
        stage(CodeSource::Wasm(trap), &[]),
    ];
    let mut run = mill.place.run(CodeSource::Pipeline(stages), &[]);
    run.outputs.push("result".into());
    run.stdout = Some("result".into());
    mill.place.input(&mut run, "in", "x");
    let exit = mill.finish(run);
    let printed = exit.stderr.text();
    assert!(
        printed.contains("stage 2 (") && printed.contains("unreachable"),
        "{printed}"
    );
}

/// A streaming input arrives through a pipe: a fold takes the input in pieces, and other modules get all of it at its end.
#[test]
fn wasm_modules_read_streaming_input() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: as root kernels can't write to the pipe that they read");
        return;
    }
    let mill = Mill::new();
    let body = "
        (call $write (i32.const 0)
            (i32.load offset=4 (i32.load offset=20 (local.get $task)))
            (i32.load offset=8 (i32.load offset=20 (local.get $task))))";
    let copies = mill.module("copies", &starting("", body));
    let places = mill.module("places", PLACES);
    for (module, args, length) in [
        (copies, [].as_slice(), 3000),
        (places, ["7"].as_slice(), 3_000_000),
    ] {
        let bytes = series(length, 5);
        let outputs = [false, true].map(|grows| {
            let mut run = mill.run(&module, args);
            run.outputs = vec!["out".into()];
            run.stdout = Some("out".into());
            let object = if grows {
                let pipe = mill.place.path("pipe");
                let made = std::process::Command::new("mkfifo")
                    .args(["-m", "444"])
                    .arg(&pipe)
                    .status();
                assert!(made.unwrap().success());
                std::os::unix::fs::chown(&pipe, Some(STORE_USER.uid), Some(STORE_USER.gid))
                    .unwrap();
                let (name, path) = ("in".to_owned(), pipe.clone());
                run.inputs.push(RunInput { name, path });
                pipe
            } else {
                mill.place.input(&mut run, "in", &bytes)
            };
            let writer = grows.then(|| {
                let (pipe, bytes) = (object.clone(), bytes.clone());
                std::thread::spawn(move || fs::write(pipe, bytes).unwrap())
            });
            let exit = mill.finish(run.clone());
            assert!(exit.success(), "{}", exit.stderr.text());
            writer.into_iter().for_each(|writer| writer.join().unwrap());
            fs::remove_file(object).unwrap();
            let made = fs::read(run.directory.join("out")).unwrap();
            fs::remove_dir_all(&run.directory).unwrap();
            made
        });
        assert_eq!(outputs[0], outputs[1]);
        assert!(!outputs[0].is_empty());
    }
}
