//! Planning from the command line. Needs no array.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn plan(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidemill"))
        .args(args)
        .current_dir(folder)
        .env("HOME", folder)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(folder: &Path, args: &[&str]) -> Value {
    let output = plan(folder, args);
    assert!(
        output.status.success(),
        "{args:?}: {}",
        text(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_paper_is_printed_beside_the_models() {
    let folder = tempfile::tempdir().unwrap();
    let output = plan(folder.path(), &["plan", "model", "paper"]);
    assert!(output.status.success());
    let out = text(&output.stdout);
    for part in [
        "Table 4",
        "Table 5",
        "Table 7",
        "Fig. 3a",
        "Fig. 4",
        "not reproduced",
    ] {
        assert!(out.contains(part), "no {part} in:\n{out}");
    }
    let report = json(folder.path(), &["--json", "plan", "model", "paper"]);
    let rows = report["rows"].as_array().unwrap();
    assert!(
        rows.iter()
            .all(|row| row["published"].is_number() && row["computed"].is_number())
    );
    let printed = |item: &str, report: &Value| {
        let rows = report["figure_4"].as_array().unwrap().clone();
        let row = rows
            .into_iter()
            .find(|row| row["application"] == "S3D" && row["kernel"] == item);
        row.unwrap()
    };
    let k_means = printed("k-means", &report);
    assert_eq!(
        k_means["active_flash"]["infeasible"]["reason"],
        "kernel-too-slow"
    );
    let without = [
        "--json",
        "plan",
        "model",
        "paper",
        "--without",
        "overload-infeasible",
    ];
    let report = json(folder.path(), &without);
    assert!(printed("k-means", &report)["active_flash"]["feasible"].is_object());
}

#[test]
fn a_site_is_reported_by_section_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let output = plan(folder.path(), &["plan", "model", "staging"]);
    assert!(output.status.success());
    assert!(
        text(&output.stderr).contains("--site"),
        "says whose site it is"
    );
    let out = text(&output.stdout);
    assert!(
        out.contains("Largest staging ratio") && !out.contains("Energy of one run"),
        "{out}"
    );

    let jaguar = include_str!("../../examples/site/jaguar.toml");
    std::fs::write(folder.path().join("mine.toml"), jaguar).unwrap();
    let args = [
        "--json",
        "plan",
        "model",
        "all",
        "--site",
        "mine.toml",
        "--charts",
        "a/charts",
    ];
    let all = json(folder.path(), &args);
    for section in ["staging", "feasibility", "energy", "cost"] {
        assert!(!all[section].as_array().unwrap().is_empty(), "{section}");
    }
    let cost = json(
        folder.path(),
        &["--json", "plan", "model", "cost", "--site", "mine.toml"],
    );
    assert_eq!(cost["cost"], all["cost"]);
    assert!(cost.get("energy").is_none());
    let drawn: Vec<_> = std::fs::read_dir(folder.path().join("a/charts"))
        .unwrap()
        .map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap())
        .collect();
    assert!(drawn.len() >= 4, "{}", drawn.len());
    assert!(
        drawn
            .iter()
            .all(|svg| svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"))
    );
}

#[test]
fn a_wrong_site_is_refused_with_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |args: &[&str]| {
        let output = plan(folder.path(), args);
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let jaguar = include_str!("../../examples/site/jaguar.toml");
    let line = 1 + jaguar
        .lines()
        .position(|line| line.starts_with("nodes"))
        .unwrap();
    let wrong: Vec<_> = jaguar
        .lines()
        .map(|line| {
            if line.starts_with("nodes") {
                "nodes = -3"
            } else {
                line
            }
        })
        .collect();
    std::fs::write(folder.path().join("site.toml"), wrong.join("\n")).unwrap();
    let (code, out, err) = refused(&["plan", "model", "all", "--site", "site.toml"]);
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
    assert!(err.contains(&format!("site.toml:{line}:")), "{err}");
    let (code, _, err) = refused(&["plan", "model", "cost", "--site", "none.toml"]);
    assert!(code == Some(1) && err.contains("none.toml"), "{err}");
    let (code, _, err) = refused(&["plan", "model", "paper", "--without", "gravity"]);
    assert!(code == Some(2) && err.contains("drain-at-share"), "{err}");
}
