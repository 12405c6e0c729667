//! Sites other than the paper's: whatever a user writes is an error with its line, or a report of finite numbers.

use proptest::prelude::*;
use serde_json::Value;
use std::path::Path;
use tidemill_plan::model::{Corrections, Section, Site, report};

const JAGUAR: &str = include_str!("../../../examples/site/jaguar.toml");

/// The example with the number of each line times its factor; what must be whole or at most 1 stays.
fn scaled(factors: &[f64]) -> String {
    let mut factors = factors.iter().cycle();
    let mut text = String::new();
    for line in JAGUAR.lines() {
        let changed = line.split_once(" = \"").and_then(|(key, value)| {
            let dollar = if value.starts_with('$') { "$" } else { "" };
            let value = value.trim_start_matches('$');
            let end = value.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
            let number: f64 = value[..end].parse().ok()?;
            let factor = factors.next()?;
            Some(format!(
                "{key} = \"{dollar}{}{}",
                number * factor,
                &value[end..]
            ))
        });
        text += changed.as_deref().unwrap_or(line);
        text.push('\n');
    }
    text
}

/// Where in a report there is no number where one should be: JSON has no infinity, so it becomes null.
fn nulls(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Null if !path.ends_with("/devices") => found.push(path.to_owned()),
        Value::Array(values) => values.iter().for_each(|value| nulls(value, path, found)),
        Value::Object(map) => map
            .iter()
            .for_each(|(key, value)| nulls(value, &format!("{path}/{key}"), found)),
        _ => {}
    }
}

#[test]
fn scaling_by_one_changes_nothing() {
    let corrections = Corrections::default();
    let json = |text: &str| {
        let site = Site::parse(text, Path::new("site.toml")).unwrap();
        serde_json::to_value(report(&site, &corrections)).unwrap()
    };
    assert_eq!(json(&scaled(&[1.0])), json(JAGUAR));
    assert_ne!(json(&scaled(&[2.0])), json(JAGUAR));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A machine a thousand times larger or smaller in any part still has a report without infinities.
    #[test]
    fn any_machine_has_a_report(exponents in proptest::collection::vec(-3.0..3.0_f64, 41)) {
        let factors: Vec<_> = exponents.iter().map(|exponent| 10_f64.powf(*exponent)).collect();
        let text = scaled(&factors);
        let site = Site::parse(&text, Path::new("site.toml")).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let corrections = Corrections::default();
        let report = report(&site, &corrections);
        let mut found = Vec::new();
        nulls(&serde_json::to_value(&report).unwrap(), "", &mut found);
        // There is no total where no application is feasible, and only there.
        let (totals, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|path| path == "/cost/total_dollars");
        prop_assert!(others.is_empty(), "{others:?}");
        let infeasible = report.cost.iter().filter(|row| row.applications.is_empty());
        prop_assert_eq!(totals.len(), infeasible.count());
        let shown = format!("{:?}", report.parts(&Section::ALL));
        prop_assert!(!shown.contains("NaN"));
    }

    /// Any line replaced by anything is an error that names file and line, or a site all the same.
    #[test]
    fn any_text_is_read_or_refused(line in 0..JAGUAR.lines().count(), with in "\\PC{0,30}") {
        let lines = JAGUAR.lines().enumerate();
        let text: Vec<_> = lines.map(|(number, text)| if number == line { with.as_str() } else { text }).collect();
        if let Err(error) = Site::parse(&text.join("\n"), Path::new("site.toml")) {
            let error = error.to_string();
            let rest = error.strip_prefix("site.toml:").map(|rest| rest.split(':').next().unwrap_or(""));
            let number: usize = rest.and_then(|number| number.parse().ok()).unwrap_or(0);
            prop_assert!((1..=JAGUAR.lines().count()).contains(&number), "{error}");
        }
    }
}
