//! Examples in TOML: all job files below `examples` are free of errors, and conversions of other forms give the same jobs and rules.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};
use tidemill_lang::job::{Job, JobError, JobProblem};
use tidemill_lang::rule::Rule;
use tidemill_lang::script::{self, TextForm};

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

/// Returns the files below a directory with this extension, and their texts.
fn files(directory: &Path, extension: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|given| given == extension) {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path.display().to_string(), text));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn example_job_files_in_toml_have_no_errors() {
    let all = files(&examples(), "toml").into_iter();
    // Configurations, costs and sites are TOML, too.
    let jobs = all.filter(|(_, text)| text.lines().any(|line| line == "[job]"));
    let (mut tasks, mut rules, mut hooks) = (0, 0, 0);
    for (file, text) in jobs {
        assert_eq!(TextForm::of(&text), TextForm::Toml, "{file}");
        if text.lines().any(|line| line == "[on]") {
            let rule = Rule::read(&file, &text).unwrap_or_else(|errors| panic!("{errors}"));
            match rule.hook {
                Some(_) => hooks += 1,
                None => rules += 1,
            }
        } else {
            // Patterns of inputs match nothing here.
            let no_match = |error: &JobError| matches!(error.problem, JobProblem::NoMatch(_));
            tasks += match Job::parse(&file, text.as_bytes()) {
                Ok(job) => job.tasks.len(),
                Err(errors) if errors.errors.iter().all(no_match) => 0,
                Err(errors) => panic!("{errors}"),
            };
        }
    }
    assert!(tasks >= 3 && rules >= 1 && hooks >= 1);
}

#[test]
fn example_job_scripts_convert_to_the_same_jobs() {
    let scripts = files(&examples(), "conf");
    assert!(!scripts.is_empty());
    for (file, text) in scripts {
        let group = script::parse(&file, text.as_bytes()).unwrap();
        let toml = group.to_toml();
        assert_eq!(TextForm::of(&toml), TextForm::Toml, "{file}");
        let back = script::parse(&file, toml.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
        let read = |text: String| Job::parse(&file, text.as_bytes()).map(|job| job.tasks.len());
        // Both texts have the same layout, so positions are equal, too.
        assert_eq!(
            read(back.to_string()).map_err(|errors| errors.to_string()),
            read(group.to_string()).map_err(|errors| errors.to_string()),
            "{file}"
        );
    }
}

#[test]
fn example_rules_are_the_same_rules_in_libconfig() {
    let all = files(&examples(), "toml").into_iter();
    let rules: Vec<_> = all
        .filter(|(_, text)| text.lines().any(|line| line == "[on]"))
        .collect();
    assert!(rules.len() >= 5);
    for (file, text) in rules {
        let libconfig = Rule::settings(&file, &text).unwrap().to_string();
        assert_eq!(TextForm::of(&libconfig), TextForm::Libconfig, "{file}");
        let rule = Rule::read(&file, &libconfig).unwrap_or_else(|errors| panic!("{errors}"));
        let first = Rule::read(&file, &text).unwrap();
        assert_eq!(rule.pattern.text(), first.pattern.text());
        assert_eq!((rule.name, rule.streaming), (first.name, first.streaming));
    }
}
