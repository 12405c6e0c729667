use super::*;
use tidemill_model::time::Span;

const SPLIT: &str = r#"{
  "name": "tiny", "schemaVersion": "1.5",
  "workflow": {
    "specification": {
      "tasks": [
        { "name": "cut_ID01", "id": "cut_ID01", "parents": [], "children": ["sum_ID02"],
          "inputFiles": ["raw"], "outputFiles": ["part"] },
        { "name": "sum_ID02", "id": "sum_ID02", "parents": ["cut_ID01"], "children": ["say_ID03"],
          "inputFiles": ["part"], "outputFiles": ["total"] },
        { "name": "say_ID03", "id": "say_ID03", "parents": ["sum_ID02"], "children": [] }
      ],
      "files": [
        { "id": "raw", "sizeInBytes": 1000 },
        { "id": "part", "sizeInBytes": 100 },
        { "id": "total", "sizeInBytes": 8 }
      ]
    },
    "execution": {
      "makespanInSeconds": 3, "executedAt": "2026-01-01T00:00:00Z",
      "tasks": [
        { "id": "cut_ID01", "runtimeInSeconds": 1.5, "command": { "program": "cut" } },
        { "id": "sum_ID02", "runtimeInSeconds": 1 },
        { "id": "say_ID03", "runtimeInSeconds": 0.25 }
      ]
    }
  }
}"#;

const WHOLE: &str = r#"{
  "name": "tiny", "schemaVersion": "1.4",
  "workflow": {
    "makespanInSeconds": 2, "executedAt": "2026-01-01T00:00:00Z",
    "tasks": [
      { "name": "cut_01", "id": "01", "type": "compute", "runtimeInSeconds": 1.5, "parents": [],
        "children": ["sum_02"], "files": [
          { "link": "input", "name": "raw", "sizeInBytes": 1000 },
          { "link": "output", "name": "part", "sizeInBytes": 100 } ] },
      { "name": "sum_02", "id": "02", "type": "compute", "runtimeInSeconds": 0.5, "parents": ["01"],
        "children": [], "files": [
          { "link": "input", "name": "part", "sizeInBytes": 100 } ] }
    ]
  }
}"#;

fn error(text: &str, from: &str, to: &str) -> String {
    let changed = text.replacen(from, to, 1);
    assert_ne!(changed, text, "nothing was replaced");
    parse("w.json", &changed).unwrap_err().to_string()
}

#[test]
fn wfformat_1_5_gives_tasks_files_and_run_times() {
    let workflow = parse("w.json", SPLIT).unwrap();
    let kernels: Vec<&str> = workflow
        .tasks
        .iter()
        .map(|task| task.kernel.name())
        .collect();
    assert_eq!(kernels, ["cut", "sum", "say"]);
    let times: Vec<u64> = workflow
        .tasks
        .iter()
        .map(|task| task.compute.0 / 1_000_000)
        .collect();
    assert_eq!(times, [1500, 1000, 250]);
    assert_eq!(workflow.files[1].maker, Some((0, 0)));
    assert_eq!(critical_path(&workflow), Span::from_millis(2750));
}

#[test]
fn dependency_without_file_gets_an_empty_file() {
    let workflow = parse("w.json", SPLIT).unwrap();
    let done = workflow.tasks[2].inputs[0];
    assert_eq!(
        (workflow.files[done].size, workflow.files[done].maker),
        (0, Some((1, 1)))
    );
    // A file joins the first two tasks already.
    assert_eq!(workflow.tasks[1].inputs.len(), 1);
}

#[test]
fn wfformat_1_4_has_files_and_run_times_in_tasks() {
    let workflow = parse("w.json", WHOLE).unwrap();
    assert_eq!(workflow.files.len(), 2);
    assert_eq!(workflow.tasks[1].inputs, [1]);
    assert_eq!(critical_path(&workflow), Span::from_millis(2000));
}

#[test]
fn invalid_wfformat_is_reported_with_line() {
    for (error, expected) in [
        (
            error(SPLIT, "\"1.5\"", "\"1.2\""),
            "w.json: version 1.2 of WfFormat can't be read",
        ),
        (
            error(SPLIT, "[\"raw\"]", "[\"row\"]"),
            "w.json:6: task `cut_ID01` names file `row`",
        ),
        (
            error(SPLIT, "[\"say_ID03\"]", "[\"say\"]"),
            "w.json:8: task `sum_ID02` names task `say`",
        ),
        (
            error(SPLIT, "[\"total\"]", "[\"part\"]"),
            "w.json:8: task `sum_ID02` writes `part`, which task",
        ),
        (
            error(SPLIT, "[\"raw\"]", "[\"part\"]"),
            "w.json:6: task `cut_ID01` reads `part`, which it writes itself",
        ),
        (
            error(SPLIT, "[\"raw\"]", "[\"total\"]"),
            "w.json:6: tasks need each other in a circle: `cut_ID01` needs `sum_ID02` needs `cut_ID01`",
        ),
        (
            error(SPLIT, "1000 }", "-1 }"),
            "w.json:13: the size of file `raw` can't be negative",
        ),
        (
            error(SPLIT, "1000 }", "\"big\" }"),
            "w.json:13: invalid type",
        ),
        (
            error(SPLIT, "1.5, \"c", "-1.5, \"c"),
            "w.json:6: `-1.5` for the run time of task `cut_ID01`",
        ),
        (
            error(
                SPLIT,
                "{ \"id\": \"say_ID03\", \"runtimeInSeconds\": 0.25 }",
                "{ \"id\": \"x\", \"runtimeInSeconds\": 1 }",
            ),
            "w.json:23: task `execution` names task `x`",
        ),
        (
            error(
                SPLIT,
                ",\n        { \"id\": \"say_ID03\", \"runtimeInSeconds\": 0.25 }",
                "",
            ),
            "w.json:10: the run time of task `say_ID03` is not known",
        ),
        (
            error(WHOLE, "\"id\": \"02\"", "\"id\": \"01\""),
            "w.json:10: task `01` exists twice, first in line 6",
        ),
        (
            error(WHOLE, "\"sizeInBytes\": 1000 }", "\"sizeInBytes\": -5 }"),
            "w.json:6: the size of file `raw` can't be negative",
        ),
        (
            error(WHOLE, "\"sum_02\"], \"f", "\"sum_03\"], \"f"),
            "w.json:6: task `01` names task `sum_03`",
        ),
    ] {
        assert!(error.starts_with(expected), "{error}\nexpected {expected}");
    }
}

#[test]
fn misspelt_wfformat_keys_are_reported_with_suggestion() {
    for (error, expected) in [
        (
            error(WHOLE, "\"workflow\"", "\"workflows\""),
            "w.json:3: the workflow's file has no `workflows`; did you mean `workflow`?",
        ),
        (
            error(
                SPLIT,
                "\"inputFiles\": [\"part\"]",
                "\"inputFile\": [\"part\"]",
            ),
            "w.json:9: a task has no `inputFile`; did you mean `inputFiles`?",
        ),
        (
            error(
                SPLIT,
                "\"runtimeInSeconds\": 1 }",
                "\"runtimeInSecond\": 1 }",
            ),
            "w.json:22: a task has no `runtimeInSecond`; did you mean `runtimeInSeconds`?",
        ),
        (
            error(SPLIT, "\"execution\"", "\"exekution\""),
            "w.json:18: `workflow` has no `exekution`; did you mean `execution`?",
        ),
        (
            error(SPLIT, "\"files\"", "\"fils\""),
            "w.json:12: `specification` has no `fils`; did you mean `files`?",
        ),
        (
            error(SPLIT, "{ \"id\": \"part\"", "{ \"id\": \"raw\""),
            "w.json:14: file `raw` is listed twice, first in line 13",
        ),
    ] {
        assert!(error.starts_with(expected), "{error}\nexpected {expected}");
    }
}

#[test]
fn duplicate_or_absurd_wfformat_values_are_reported() {
    for (error, expected) in [
        (
            error(SPLIT, "{ \"id\": \"part\"", "{ \"id\": \"\""),
            "w.json:14: a file has no name",
        ),
        (
            error(SPLIT, "{ \"id\": \"sum_ID02\"", "{ \"id\": \"cut_ID01\""),
            "w.json:22: task `cut_ID01` exists twice, first in line 21",
        ),
        (
            error(SPLIT, "\"tiny\"", "\" \""),
            "w.json: the workflow has no name",
        ),
        (
            error(WHOLE, "\"id\": \"02\"", "\"id\": \"\""),
            "w.json:10: task number 2 has no name",
        ),
        (
            error(
                WHOLE,
                "\"part\", \"sizeInBytes\": 100 } ] }\n",
                "\"part\", \"sizeInBytes\": 7 } ] }\n",
            ),
            "w.json:10: file `part` has 7 bytes here and 100 in line 6",
        ),
        (
            error(SPLIT, "1000 }", "9000000000000000000 }"),
            "w.json:6: the files that all tasks read and write together are more than 1 EB",
        ),
        (
            error(SPLIT, "1.5, \"c", "9e9, \"c"),
            "w.json:6: the run times of all tasks together are more than 100 years",
        ),
    ] {
        assert!(error.starts_with(expected), "{error}\nexpected {expected}");
    }
}

#[test]
fn wfformat_ignores_unknown_extensions() {
    let more = SPLIT.replacen(
        "\"schemaVersion\"",
        "\"author\": {}, \"note\": 1, \"schemaVersion\"",
        1,
    );
    let more = more.replacen(
        "\"inputFiles\"",
        "\"inputFile\": 1, \"colour\": 2, \"inputFiles\"",
        1,
    );
    assert_eq!(parse("w.json", &more), parse("w.json", SPLIT));
    let number = SPLIT.replace("\"name\": \"say_ID03\"", "\"name\": \"42\"");
    assert_eq!(
        parse("w.json", &number).unwrap().tasks[2].kernel.name(),
        "42"
    );
}

#[test]
fn core_count_of_wfformat_sets_needed_cores() {
    let counted = |text: &str, from: &str, to: &str| {
        let text = text.replacen(from, to, 1);
        let workflow = parse("w.json", &text).unwrap();
        let cores: Vec<u32> = workflow.tasks.iter().map(|task| task.needs.cores).collect();
        cores
    };
    let runtime = "\"runtimeInSeconds\": 1.5";
    for (count, expected) in [("4", 4), ("2.0", 2), ("1.5", 2), ("0", 0)] {
        let with = format!("\"coreCount\": {count}, {runtime}");
        assert_eq!(counted(SPLIT, runtime, &with), [expected, 1, 1]);
        assert_eq!(counted(WHOLE, runtime, &with), [expected, 1]);
    }
    for count in ["-1", "1e9"] {
        let with = format!("\"coreCount\": {count}, {runtime}");
        let error = error(SPLIT, runtime, &with);
        assert!(
            error.starts_with("w.json:") && error.contains("coreCount of task `cut_ID01`"),
            "{error}"
        );
    }
}

/// Returns the time of the longest chain of tasks on cores of speed 1 without any reading, writing or waiting: no run on such cores can be
/// shorter.
fn critical_path(workflow: &Workflow) -> Span {
    let mut ends = vec![Span(0); workflow.tasks.len()];
    for task in workflow.order().unwrap_or_default() {
        let makers = workflow.dependencies(task);
        let start = makers.into_iter().map(|maker| ends[maker]).max();
        ends[task] = start.unwrap_or_default() + workflow.tasks[task].compute;
    }
    ends.into_iter().max().unwrap_or_default()
}
