//! Rules: a pattern, and a task to run for every version of a file that matches it (active storage, §3; the smart directories of AnalyzeThis,
//! §1).
//!
//! The text of a rule is TOML, libconfig or XML. [`Rule::read`] finds all errors in a rule's text; [`Rule::script`] returns the job script that is submitted for files. Neither does any
//! I/O: the server finds the versions and triggers each rule once per version. `docs/rules.md` is the user's page about rules.

mod conditions;
mod fill;
pub mod hook;
pub mod mime;
pub(crate) mod read;
mod xml;

pub use conditions::RuleConditions;
pub use fill::FillError;
pub use hook::Hook;

use crate::job::JobErrors;
use crate::script::{Position, ScriptProblem, SettingGroup, ValueData};
use tidemill_model::glob::Pattern;
use tidemill_model::similar_names::{did_you_mean, nearest};
use tidemill_model::time::Span;

/// Longest text of a rule, in bytes.
pub const MAX_RULE_BYTES: usize = 64 << 10;
/// Longest name of a rule, in bytes: together with a version's number it names tasks.
pub const MAX_NAME_BYTES: usize = 200;
/// Default length of a chain of triggers, in which each is caused by a file that the previous one has written.
pub const DEFAULT_DEPTH: u32 = 8;
/// Maximum length of such a chain.
pub const MAX_DEPTH: u32 = 1000;
/// Maximum number of files of one task.
pub const MAX_BATCH: u32 = 10_000;
/// Number of files of one task if only a time is given.
const BATCH_IN_TIME: u32 = 1000;

/// Names of variables in addition to those of a pattern.
pub const VARIABLES: [&str; 6] = ["path", "file", "name", "stem", "dir", "batch"];

/// Rule without errors in itself.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Name of the rule.
    pub name: String,
    /// Directory to which its pattern and all names are relative: absolute, without a slash at the end unless it is the root.
    pub workdir: String,
    /// Pattern of files, relative to the directory.
    pub pattern: Pattern,
    /// Further conditions on files.
    pub conditions: RuleConditions,
    /// Whether the rule is triggered when a version is begun, and reads the version as it grows; otherwise it is triggered when a version
    /// is sealed.
    pub streaming: bool,
    /// Grouping of files into one task; `None` if each file has its own task.
    pub batch: Option<FileGrouping>,
    /// Hook, if the rule is one.
    pub hook: Option<Hook>,
    /// Longest chain of triggers that the rule may end.
    pub depth: u32,
    /// Settings of its jobs except the tasks.
    job: SettingGroup,
    /// Settings of a task.
    task: SettingGroup,
}

/// Grouping of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileGrouping {
    /// Number of files of a task.
    pub files: u32,
    /// Time after which fewer files form a task, from the arrival of the first; `None` if they wait for more files.
    pub after: Option<Span>,
}

impl Rule {
    /// Returns the part of a path that is compared with the pattern: the path below the rule's directory.
    #[must_use]
    pub fn below<'a>(&self, path: &'a str) -> Option<&'a str> {
        let below = path.strip_prefix(self.workdir.trim_end_matches('/'))?;
        below.strip_prefix('/').filter(|below| !below.is_empty())
    }

    /// Returns a limit of its jobs in the notation of the text.
    #[must_use]
    pub fn limit(&self, name: &str) -> Option<String> {
        let ValueData::Group(limits) = &self.job.get("limits")?.value.data else {
            return None;
        };
        match &limits.get(name)?.value.data {
            ValueData::Text(text) => Some(text.clone()),
            ValueData::Integer(number) => Some(number.to_string()),
            _ => None,
        }
    }

    /// Returns whether an absolute path in the cluster matches.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        self.below(path)
            .is_some_and(|below| self.pattern.matches(below))
    }

    /// Returns the absolute path of the directory that contains all matching files.
    #[must_use]
    pub fn directory(&self) -> String {
        let workdir = self.workdir.trim_end_matches('/');
        let directory = match self.pattern.directory() {
            "" => workdir.to_owned(),
            directory => format!("{workdir}/{directory}"),
        };
        if directory.is_empty() {
            "/".into()
        } else {
            directory
        }
    }

    /// Returns whether files below an absolute directory may match.
    #[must_use]
    pub fn reaches(&self, directory: &str) -> bool {
        let own = self.directory();
        let within = |above: &str, below: &str| {
            let above = above.trim_end_matches('/');
            let rest = below.strip_prefix(above);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        within(&own, directory) || within(directory, &own)
    }
}

/// Error of a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{at}: {problem}")]
pub struct RuleError {
    /// Name of the text, as the user gave it.
    pub file: String,
    /// Position.
    pub at: Position,
    /// Problem.
    pub problem: RuleProblem,
}

/// Problem of a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleProblem {
    /// The text is not TOML or libconfig.
    #[error(transparent)]
    Script(ScriptProblem),
    /// The text is not the XML of rules.
    #[error("{0}")]
    Xml(String),
    /// A mandatory setting is missing.
    #[error("{0} is missing: {1}")]
    Missing(String, &'static str),
    /// A value has the wrong type.
    #[error("setting \"{name}\" should be {expected}, not {found}")]
    Type {
        /// Name of the setting.
        name: String,
        /// Expected type.
        expected: &'static str,
        /// Type of the value.
        found: &'static str,
    },
    /// A place does not have this setting.
    #[error("{place} has no setting \"{name}\"; {advice}")]
    Unknown {
        /// `batch` or a task of a rule.
        place: &'static str,
        /// Name of the setting.
        name: String,
        /// Valid settings.
        advice: String,
    },
    /// A name is invalid.
    #[error(
        "{0:?} can't be the name of a rule: give 1 to {MAX_NAME_BYTES} letters, digits, '.', '_' or '-', no '.' first"
    )]
    Name(String),
    /// A pattern is invalid.
    #[error("pattern: {0}")]
    Pattern(String),
    /// The rule has both a glob and a regular expression.
    #[error("\"{0}\" and \"regex\" both select files: leave one of them out")]
    BothPatterns(&'static str),
    /// The pattern matches paths outside of the directory.
    #[error("the pattern is absolute and does not begin with the directory {0:?} of \"workdir\"")]
    Outside(String),
    /// The value of `when` is neither `"sealed"` nor `"streaming"`.
    #[error(
        "when = {0:?} does not exist: a rule is triggered when a version is \"sealed\", or begins with a version that is \"streaming\""
    )]
    When(String),
    /// A value is invalid.
    #[error("setting \"{name}\": {what}")]
    Value {
        /// Name of the setting.
        name: &'static str,
        /// Fault of the value, and advice.
        what: String,
    },
    /// The variable is unknown.
    #[error(
        "\"{place}\" has the unknown variable {{{name}}}{} may be: {known}; write {{{{{name}}}}} for the text {{{name}}}",
        did_you_mean(.nearest.as_deref())
    )]
    Variable {
        /// Name of the variable.
        name: String,
        /// Name of the setting.
        place: String,
        /// Variable that was probably meant, in braces.
        nearest: Option<String>,
        /// All known variables, in braces.
        known: String,
    },
    /// The variable is not allowed in this place.
    #[error("{{{name}}} may not stand in \"{place}\": {why}")]
    Place {
        /// Name of the variable.
        name: String,
        /// Name of the setting.
        place: String,
        /// Reason.
        why: &'static str,
    },
    /// The rule is so long that its job would be refused.
    #[error("the rule is too long: {0} bytes, of {MAX_RULE_BYTES}")]
    Length(usize),
}

/// Returns the advice about an unknown setting: the nearest name, and all names.
fn advice(name: &str, valid: &[&str]) -> String {
    let valid_names = valid.join(", ");
    match nearest(name, valid) {
        Some(nearest) => format!("did you mean \"{nearest}\"? It may have: {valid_names}"),
        None => format!("it may have: {valid_names}"),
    }
}

/// All errors of a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleErrors {
    /// Errors of the rule itself.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Rule(Vec<RuleError>),
    /// Errors of its task.
    #[error(transparent)]
    Job(#[from] JobErrors),
}

#[cfg(test)]
mod tests;
