//! Results of the checks of this machine.

use super::View;
use crate::format;
use serde_json::{Value, json};
use std::io::{self, Write};

/// State of a check, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CheckState {
    /// All works.
    Ok,
    /// Something is slower, weaker or missing, but optional.
    Warning,
    /// A part of the program does not work.
    Problem,
}

impl CheckState {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    /// Name of the check, one word for programs.
    pub(crate) name: &'static str,
    pub(crate) state: CheckState,
    /// The state that was found.
    pub(crate) found: String,
    /// Features that do not work; empty if all work.
    pub(crate) effect: String,
    /// Advice; empty if there is nothing to do.
    pub(crate) advice: String,
}

impl Check {
    /// Makes the result of a check without a fault.
    pub(crate) fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            state: CheckState::Ok,
            found: found.into(),
            effect: String::new(),
            advice: String::new(),
        }
    }

    /// Makes the result of a check with a fault that leaves the rest usable.
    pub(crate) fn warning(
        name: &'static str,
        found: impl Into<String>,
        (effect, advice): (&str, &str),
    ) -> Self {
        Self {
            state: CheckState::Warning,
            effect: effect.to_owned(),
            advice: advice.to_owned(),
            ..Self::ok(name, found)
        }
    }

    /// Makes the result of a check with a fault that disables a part of the program.
    pub(crate) fn problem(
        name: &'static str,
        found: impl Into<String>,
        consequence: (&str, &str),
    ) -> Self {
        Self {
            state: CheckState::Problem,
            ..Self::warning(name, found, consequence)
        }
    }
}

/// Output of `tidemill doctor`.
#[derive(Debug)]
pub(crate) struct DoctorView(pub(crate) Vec<Check>);

impl DoctorView {
    /// Returns the worst state.
    pub(crate) fn worst(&self) -> CheckState {
        let states = self.0.iter().map(|check| check.state);
        states.max().unwrap_or(CheckState::Ok)
    }

    fn count(&self, state: CheckState) -> u64 {
        let found = self.0.iter().filter(|check| check.state == state);
        found.count() as u64
    }
}

impl View for DoctorView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for check in &self.0 {
            writeln!(
                out,
                "{:<8}  {:<14}{}",
                check.state.name(),
                check.name,
                check.found
            )?;
            for (title, text) in [("effect", &check.effect), ("advice", &check.advice)] {
                if !text.is_empty() {
                    writeln!(out, "{:24}{title}: {text}", "")?;
                }
            }
        }
        let problems = format::count(self.count(CheckState::Problem), "problem");
        let warnings = format::count(self.count(CheckState::Warning), "warning");
        writeln!(out, "\n{problems}, {warnings}")
    }

    fn json(&self) -> Value {
        let checks = self.0.iter().map(|check| {
            json!({
                "name": check.name,
                "state": check.state.name(),
                "found": check.found,
                "effect": check.effect,
                "advice": check.advice,
            })
        });
        json!({
            "state": self.worst().name(),
            "problems": self.count(CheckState::Problem),
            "warnings": self.count(CheckState::Warning),
            "checks": checks.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doctor_reports_worst_state_with_effect_and_advice() {
        let mut view = DoctorView(vec![Check::ok("linux", "6.9")]);
        assert_eq!(view.worst(), CheckState::Ok);
        view.0.push(Check::warning("shm", "none", ("a", "b")));
        assert_eq!(view.worst(), CheckState::Warning);
        view.0.push(Check::problem(
            "fuse",
            "none",
            ("no mount", "modprobe fuse"),
        ));
        assert_eq!(view.worst(), CheckState::Problem);
        let mut text = Vec::new();
        view.text(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("effect: no mount") && text.contains("advice: modprobe fuse"));
        assert!(text.ends_with("1 problem, 1 warning\n"), "{text}");
        assert_eq!(view.json()["state"], "problem");
    }
}
