//! Sites other than the paper's: any user input gives an error with its line, or a report of finite numbers.
#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;
use serde_json::Value;
use std::path::Path;
use tidemill_plan::model::{Corrections, ReportSection, Site, report};

const JAGUAR: &str = include_str!("../../../examples/site/jaguar.toml");

/// Returns the example site with the number of each line multiplied by its factor; numbers that must be whole or at most 1 stay unchanged.
/// With `orderly`, a number that must not exceed another key's (idle power, output interval) grows with it.
fn scaled(factors: &[f64], orderly: bool) -> String {
    let mut factors = factors.iter().copied().cycle();
    let mut before = 1.0;
    let mut text = String::new();
    for line in JAGUAR.lines() {
        let changed = line.split_once(" = \"").and_then(|(key, value)| {
            let dollar = if value.starts_with('$') { "$" } else { "" };
            let value = value.trim_start_matches('$');
            let end = value.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
            let number: f64 = value[..end].parse().ok()?;
            let mut factor: f64 = factors.next()?;
            let bounded = matches!(key, "idle-power" | "output-interval");
            if bounded && orderly {
                factor = factor.min(before);
            }
            before = factor;
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

/// Returns the numbers of a key in the text of a site, in the order of the text.
fn numbers(text: &str, key: &str) -> Vec<f64> {
    let start = format!("{key} = \"");
    let values = text.lines().filter_map(|line| line.strip_prefix(&start));
    let number = |value: &str| value.split(' ').next().unwrap().parse().unwrap();
    values.map(number).collect()
}

/// Returns whether a site contradicts itself: busy powers and durations are in the units of idle powers and intervals, except for hours.
/// The first idle power is that of simulation nodes, which have no busy power.
fn contradicts(text: &str) -> bool {
    let idle = &numbers(text, "idle-power")[1..];
    let busy = numbers(text, "busy-power");
    let powers = idle.iter().zip(&busy).any(|(idle, busy)| idle > busy);
    powers || numbers(text, "output-interval")[0] > numbers(text, "duration")[0]
}

/// Finds the places in a report without a number where a number is required: JSON has no infinity, so infinity becomes null.
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
fn site_scaled_by_one_has_the_same_report() {
    let corrections = Corrections::default();
    let json = |text: &str| {
        let site = Site::parse(text, Path::new("site.toml")).unwrap();
        serde_json::to_value(report(&site, &corrections)).unwrap()
    };
    assert_eq!(json(&scaled(&[1.0], false)), json(JAGUAR));
    assert_ne!(json(&scaled(&[2.0], false)), json(JAGUAR));
    assert!(!contradicts(JAGUAR));
}

fn factors(exponents: &[f64]) -> Vec<f64> {
    let factors = exponents.iter().map(|exponent| 10_f64.powf(*exponent));
    factors.collect()
}

/// Checks a report: it has no infinities, and all of its parts agree on each pair of application and kernel.
fn is_finite(site: &Site) -> Result<(), TestCaseError> {
    let report = report(site, &Corrections::default());
    let mut found = Vec::new();
    nulls(&serde_json::to_value(&report).unwrap(), "", &mut found);
    // There is no total where no application is feasible, and only there.
    let (totals, others): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|path| path == "/cost/total_price");
    prop_assert!(others.is_empty(), "{others:?}");
    let infeasible = report.cost.iter().filter(|row| row.applications.is_empty());
    prop_assert_eq!(totals.len(), infeasible.count());
    for row in &report.feasibility {
        let here = row.required_bytes_per_second.feasible().is_some();
        let largest = row.largest_ratio.feasible();
        let within = largest.is_some_and(|largest| report.staging_ratio <= largest.ratio);
        prop_assert_eq!(here, within, "{:?}", row);
    }
    let shown = format!("{:?}", report.parts(&ReportSection::ALL));
    prop_assert!(!shown.contains("NaN"));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A machine that is a thousand times larger or smaller in any part still has a report without infinities.
    #[test]
    fn site_with_scaled_machine_has_a_finite_report(exponents in proptest::collection::vec(-3.0..3.0_f64, 41)) {
        let text = scaled(&factors(&exponents), true);
        let site = Site::parse(&text, Path::new("site.toml")).map_err(|error| TestCaseError::fail(error.to_string()))?;
        is_finite(&site)?;
    }

    /// A machine with absurd numbers has a report without infinities as well, as long as its numbers are accepted.
    #[test]
    fn site_with_absurd_machine_has_a_finite_report(exponents in proptest::collection::vec(-14.0..14.0_f64, 41)) {
        let text = scaled(&factors(&exponents), true);
        let site = Site::parse(&text, Path::new("site.toml")).map_err(|error| TestCaseError::fail(error.to_string()))?;
        is_finite(&site)?;
    }

    /// A site that contradicts itself is refused, and no other site is.
    #[test]
    fn site_parser_refuses_only_contradictory_sites(exponents in proptest::collection::vec(-1.0..1.0_f64, 41)) {
        let text = scaled(&factors(&exponents), false);
        let refused = Site::parse(&text, Path::new("site.toml")).err().map(|error| error.to_string());
        prop_assert_eq!(refused.is_some(), contradicts(&text), "{:?}", refused);
    }

    /// If any line is replaced by any text, the result is an error that names file and line, or a valid site.
    #[test]
    fn site_with_any_replaced_line_parses_or_names_that_line(line in 0..JAGUAR.lines().count(), with in "\\PC{0,30}") {
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
