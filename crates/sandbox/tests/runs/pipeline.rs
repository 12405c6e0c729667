//! Tests pipelines of kernels in one sandbox.

use std::fs;
use std::path::{Path, PathBuf};

use tidemill_sandbox::{CodeSource, Exit, Prepared, Run, RunEnd, RunStage};

use super::compile;
use crate::support::{Place, finish, users};

fn builtin(name: &str, args: &[&str]) -> RunStage {
    stage(CodeSource::Builtin(name.into()), args)
}

fn program(path: &str, args: &[&str]) -> RunStage {
    stage(CodeSource::Program(PathBuf::from(path)), args)
}

fn stage(code: CodeSource, args: &[&str]) -> RunStage {
    RunStage {
        code,
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
    }
}

fn pipeline(place: &Place, stages: Vec<RunStage>) -> Run {
    let mut run = place.run(CodeSource::Pipeline(stages), &[]);
    run.outputs.push("result".into());
    run.stdout = Some("result".into());
    run
}

fn result(prepared: &Prepared) -> String {
    let path = prepared.run().directory.join("result");
    String::from_utf8(fs::read(path).unwrap()).unwrap()
}

/// Runs stages over `content` as each user; all runs must succeed. Returns their output.
fn through(content: &[u8], stages: &[RunStage]) -> String {
    let place = Place::new();
    let mut results: Vec<String> = Vec::new();
    for user in users() {
        let mut run = pipeline(&place, stages.to_vec());
        run.user = user;
        let object = place.input(&mut run, "in", content);
        let (prepared, exit) = finish(run);
        assert!(exit.success(), "{:?}: {}", exit.end, exit.stderr.text());
        assert_eq!(exit.stderr.text(), "");
        results.push(result(&prepared));
        fs::remove_file(object).unwrap();
    }
    results.dedup();
    assert_eq!(results.len(), 1, "users get different results: {results:?}");
    results.remove(0)
}

fn failing(content: &[u8], stages: Vec<RunStage>) -> Exit {
    let place = Place::new();
    let mut run = pipeline(&place, stages);
    place.input(&mut run, "in", content);
    let (_, exit) = finish(run);
    exit
}

fn numbers(values: &[f64]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

#[test]
fn pipeline_chains_built_in_kernels_of_all_forms() {
    let content = numbers(&[3.0, -1.0, 8.0, 5.0, 2.0]);
    // A stream, a kernel that needs the whole input, another stream, and a fold.
    let stages = [
        builtin("filter", &["above=0"]),
        builtin("sort", &[]),
        builtin("scale", &["a=10", "b=1"]),
        builtin("stats", &["of=min,max,count"]),
    ];
    assert_eq!(through(&content, &stages), "min 21\nmax 81\ncount 4\n");
    // A fold in the middle, whose text the next kernel reads as numbers.
    let stages = [builtin("sum", &[]), builtin("max", &["dtype=text"])];
    assert_eq!(through(&content, &stages), "17\n");
    // The kernel first finds the bins in the input, so it needs the whole input.
    let stages = [builtin("sort", &[]), builtin("histogram", &["bins=1"])];
    assert!(through(&content, &stages).starts_with("-1 8 5\n"));
}

#[test]
fn pipeline_chains_programs_and_built_in_kernels() {
    let text = "tide\nmill\nebb tide\n".repeat(100_000);
    let stages = [
        builtin("grep", &["--lines", "tide"]),
        program("/usr/bin/tr", &["a-z", "A-Z"]),
        builtin("grep", &["--lines", "EBB"]),
        program("/usr/bin/wc", &["-l"]),
    ];
    assert_eq!(through(text.as_bytes(), &stages), "100000\n");
    let stages = [program("/bin/cat", &["in"]), builtin("wordcount", &[])];
    assert_eq!(
        through(b"a b\nc\n", &stages).split_whitespace().next(),
        Some("2")
    );
}

#[test]
fn pipeline_stage_that_ends_early_stops_earlier_stages() {
    let text = "tide\n".repeat(2_000_000);
    let first = program("/usr/bin/head", &["-n", "1"]);
    let stages = [builtin("grep", &["--lines", "tide"]), first.clone()];
    assert_eq!(through(text.as_bytes(), &stages), "tide\n");
    let stages = [program("/bin/cat", &["in"]), first];
    assert_eq!(through(text.as_bytes(), &stages), "tide\n");
}

#[test]
fn native_kernels_run_at_any_stage_of_pipeline() {
    let place = Place::new();
    let library = compile(&place, "../../examples/listing1/getmax.c", "getmax.so");
    let native = |args: &[&str]| stage(CodeSource::Native(library.clone()), args);
    let content = numbers(&[3.0, -1.0, 8.0]);
    let alone = through(&content, &[native(&[])]);
    assert!(!alone.is_empty());
    let scaled = numbers(&[30.0, -10.0, 80.0]);
    let stages = [builtin("scale", &["a=10"]), native(&[])];
    assert_eq!(through(&content, &stages), through(&scaled, &[native(&[])]));
    let stages = [native(&[]), program("/bin/cat", &[])];
    assert_eq!(through(&content, &stages), alone);
    let stages = [builtin("sort", &[]), native(&[]), builtin("wordcount", &[])];
    assert!(!through(&content, &stages).is_empty());
}

#[test]
fn pipeline_failure_names_its_stage() {
    let wrong = failing(b"", vec![builtin("sort", &[]), builtin("scale", &["c=1"])]);
    assert_eq!(wrong.end, RunEnd::Code(2));
    let text = wrong.stderr.text();
    assert!(
        text.starts_with("stage 2 (scale): scale does not know the argument \"c=1\""),
        "{text}"
    );
    let torn = failing(
        b"12345678x",
        vec![builtin("filter", &["above=0"]), builtin("sort", &[])],
    );
    assert_eq!(torn.end, RunEnd::Code(2));
    assert!(
        torn.stderr
            .text()
            .starts_with("stage 1 (filter): in has 9 bytes"),
        "{}",
        torn.stderr.text()
    );
    let torn = failing(
        b"123",
        vec![program("/bin/cat", &["in"]), builtin("sum", &[])],
    );
    assert!(
        torn.stderr.text().starts_with("stage 2 (sum): "),
        "{}",
        torn.stderr.text()
    );
    let exit = failing(
        b"",
        vec![
            program("/bin/sh", &["-c", "exit 7"]),
            builtin("wordcount", &[]),
        ],
    );
    assert_eq!(exit.end, RunEnd::Code(7));
    assert_eq!(
        exit.stderr.text(),
        "stage 1 (/bin/sh) ended with exit code 7\n"
    );
    // Stages that still run are ended with the pipeline.
    let sleeping = program("/bin/sleep", &["1000"]);
    let exit = failing(
        b"",
        vec![sleeping, program("/bin/sh", &["-c", "kill -9 $$"])],
    );
    assert_eq!(exit.end, RunEnd::Code(137));
    assert_eq!(
        exit.stderr.text(),
        "stage 2 (/bin/sh) was ended by signal 9\n"
    );
}

#[test]
fn pipeline_input_named_by_later_stage_is_not_data() {
    let place = Place::new();
    let content = numbers(&[3.0, -1.0, 8.0]);
    let through = |stages: Vec<RunStage>, content: &[u8]| {
        let mut run = pipeline(&place, stages);
        let object = place.input(&mut run, "in", content);
        let key = place.input(&mut run, "key", [7; 32]);
        let (prepared, exit) = finish(run);
        assert!(exit.success(), "{}", exit.stderr.text());
        fs::remove_file(object).unwrap();
        fs::remove_file(key).unwrap();
        fs::read(prepared.run().directory.join("result")).unwrap()
    };
    let packing = ["sort", "zstd"].map(|name| builtin(name, &[]));
    let packing = [&packing[..], &[builtin("encrypt", &["key=key"])]].concat();
    let packed = through(packing, &content);
    let unpacking = [
        &[builtin("decrypt", &["key=key"])],
        &[builtin("unzstd", &[])][..],
    ]
    .concat();
    assert_eq!(through(unpacking, &packed), numbers(&[-1.0, 3.0, 8.0]));
}

#[test]
fn pipeline_writes_one_output_and_cannot_nest() {
    let place = Place::new();
    let mut run = pipeline(&place, vec![builtin("sort", &[])]);
    run.outputs.push("another".into());
    let error = crate::support::LAUNCHER.prepare(run).unwrap_err();
    assert!(error.to_string().contains("writes one output"), "{error}");
    let nested = stage(CodeSource::Pipeline(vec![builtin("sort", &[])]), &[]);
    let error = crate::support::LAUNCHER
        .prepare(pipeline(&place, vec![nested]))
        .unwrap_err();
    assert!(
        error.to_string().contains("part of another pipeline"),
        "{error}"
    );
}

#[test]
fn stored_programs_with_same_name_do_not_collide() {
    let place = Place::new();
    let script = |word: &str| format!("#!/bin/sh\ncat; echo {word}\n");
    let mut run = pipeline(&place, Vec::new());
    let mut stages = Vec::new();
    for (name, word) in [("a/run", "one"), ("b/run", "two"), ("c/run", "three")] {
        let path = place.input(&mut run, name, script(word));
        stages.push(program(&path.to_string_lossy(), &[]));
    }
    run.code = CodeSource::Pipeline(stages);
    let (prepared, exit) = finish(run);
    assert!(exit.success(), "{}", exit.stderr.text());
    assert_eq!(result(&prepared), "one\ntwo\nthree\n");
    assert!(
        !Path::new(&prepared.run().directory)
            .join(".tidemill/tmp/stage-1.in")
            .exists()
    );
}
