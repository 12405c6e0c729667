//! Results of the checks of this machine.

use super::table::Text;
use super::{Report, records};
use crate::format;
use schemars::JsonSchema;
use serde::Serialize;

/// State of a check, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CheckState {
    /// All works.
    Ok,
    /// Something is slower, weaker or missing, but optional.
    Warning,
    /// A part of the program does not work.
    Problem,
}

records! {
    /// Result of one check.
    #[derive(PartialEq, Eq)]
    Check {
        /// Name of the check, one word.
        name: &'static str,
        state: CheckState,
        /// The state that was found.
        found: String,
        /// Features that do not work; empty if all work.
        effect: String,
        /// Advice; empty if there is nothing to do.
        advice: String,
    }
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

records! {
    /// Results of all checks.
    Checks {
        /// The worst state.
        state: CheckState,
        /// Number of problems.
        problems: usize,
        /// Number of warnings.
        warnings: usize,
        checks: Vec<Check>,
    }
}

impl From<Vec<Check>> for Checks {
    fn from(checks: Vec<Check>) -> Self {
        let count = |state| checks.iter().filter(|check| check.state == state).count();
        let worst = checks.iter().map(|check| check.state).max();
        Self {
            state: worst.unwrap_or(CheckState::Ok),
            problems: count(CheckState::Problem),
            warnings: count(CheckState::Warning),
            checks,
        }
    }
}

impl Report for Checks {
    fn text(&self, out: &mut Text) {
        for check in &self.checks {
            let state = match check.state {
                CheckState::Ok => "ok",
                CheckState::Warning => "warning",
                CheckState::Problem => "problem",
            };
            writeln!(out, "{state:<8}  {:<14}{}", check.name, check.found);
            for (title, text) in [("effect", &check.effect), ("advice", &check.advice)] {
                if !text.is_empty() {
                    writeln!(out, "{:24}{title}: {text}", "");
                }
            }
        }
        let problems = format::count(self.problems as u64, "problem");
        writeln!(
            out,
            "\n{problems}, {}",
            format::count(self.warnings as u64, "warning")
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doctor_reports_worst_state_with_effect_and_advice() {
        let worst = |checks: &[Check]| Checks::from(checks.to_vec()).state;
        let mut checks = vec![Check::ok("linux", "6.9")];
        assert_eq!(worst(&checks), CheckState::Ok);
        checks.push(Check::warning("shm", "none", ("a", "b")));
        assert_eq!(worst(&checks), CheckState::Warning);
        let consequence = ("no mount", "modprobe fuse");
        checks.push(Check::problem("fuse", "none", consequence));
        assert_eq!(worst(&checks), CheckState::Problem);
        let text = crate::output::text_of(&Checks::from(checks));
        assert!(text.contains("effect: no mount") && text.contains("advice: modprobe fuse"));
        assert!(text.ends_with("1 problem, 1 warning\n"), "{text}");
    }
}
