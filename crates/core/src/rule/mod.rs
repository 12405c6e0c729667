//! Rules: a pattern, and a task to be run for every version of a file that matches it (active storage, §3; the smart
//! folders of AnalyzeThis, §1).
//!
//! [`Rule::read`] finds everything that is wrong with a rule's text in itself; [`Rule::script`] makes the job script that
//! is submitted for files. Which versions there are, and that each fires once, is the server's business.
//! `docs/rules.md` is the user's page about all this.

mod fill;
pub mod hook;
pub mod mime;
mod pattern;
mod read;
mod xml;

pub use fill::FillError;
pub use hook::Hook;
pub use pattern::{MAX_PATTERN_BYTES, Pattern, PatternError};

use crate::job::JobErrors;
use crate::script::{Data, Group, Position, Problem as ScriptProblem};
use crate::time::Span;
use regex::Regex;

/// Longest text of a rule, in bytes.
pub const MAX_RULE_BYTES: usize = 64 << 10;
/// Longest name of a rule, in bytes: with a version's number it names tasks.
pub const MAX_NAME_BYTES: usize = 200;
/// How long a chain of firings may be if a rule does not say: each by a file that the one before has made.
pub const DEFAULT_DEPTH: u32 = 8;
/// The most that it may say.
pub const MAX_DEPTH: u32 = 1000;
/// Most files of one task.
pub const MAX_BATCH: u32 = 10_000;
/// Files of one task if only a time is given.
const BATCH_IN_TIME: u32 = 1000;

/// What `${…}` stands for besides a pattern's groups.
pub const VARIABLES: [&str; 6] = ["path", "file", "name", "stem", "dir", "batch"];

/// A rule that is right in itself.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its name.
    pub name: String,
    /// Folder that its pattern and all names are relative to: absolute, without a slash at the end unless it is the root.
    pub workdir: String,
    /// Which files, relative to the folder.
    pub pattern: Pattern,
    /// What else must hold of them.
    pub conditions: Conditions,
    /// Whether it begins when a version is begun, and reads it as it grows; else it fires when one is sealed.
    pub growing: bool,
    /// How files are gathered into one task; `None`: each has its own.
    pub batch: Option<Batch>,
    /// What makes it a hook.
    pub hook: Option<Hook>,
    /// Longest chain of firings that it may be the end of.
    pub depth: u32,
    /// Settings of its jobs, all but the tasks.
    job: Group,
    /// The settings of a task.
    task: Group,
}

/// How files are gathered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// So many make a task.
    pub files: u32,
    /// Fewer do when the first of them has waited for so long; `None`: they wait for more.
    pub after: Option<Span>,
}

/// What must hold of a version besides its path.
#[derive(Clone, Debug, Default)]
pub struct Conditions {
    /// Least bytes.
    pub size_min: u64,
    /// Most bytes; `None` for no bound.
    pub size_max: Option<u64>,
    /// One of these users' files; empty for everybody's.
    pub owners: Vec<u32>,
    /// One of these types.
    kinds: Vec<Regex>,
    /// What it begins with is of one of these.
    contents: Vec<Regex>,
    /// Attributes that are there, by name, with such a value.
    xattrs: Vec<(String, Regex)>,
}

impl Conditions {
    /// Whether a version of this size, of this user's file, fits.
    #[must_use]
    pub fn fit(&self, path: &str, size: u64, uid: u32) -> bool {
        let kind = || mime::of_name(path);
        size >= self.size_min
            && self.size_max.is_none_or(|max| size <= max)
            && (self.owners.is_empty() || self.owners.contains(&uid))
            && (self.kinds.is_empty() || self.kinds.iter().any(|wanted| wanted.is_match(kind())))
    }

    /// Whether it has to be known what a version begins with.
    #[must_use]
    pub fn look_inside(&self) -> bool {
        !self.contents.is_empty()
    }

    /// Whether a version fits that begins with these bytes, [`mime::HEAD_BYTES`] if it has so many; otherwise its type.
    ///
    /// # Errors
    /// The type that it has.
    pub fn fit_content(&self, head: &[u8]) -> Result<(), &'static str> {
        let kind = mime::of_content(head);
        match self.contents.is_empty() || self.contents.iter().any(|one| one.is_match(kind)) {
            true => Ok(()),
            false => Err(kind),
        }
    }

    /// Whether the attributes of a file fit, which are looked up one by one.
    ///
    /// # Errors
    /// That of the look-up.
    pub fn fit_xattrs<E>(
        &self,
        look: impl Fn(&str) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<bool, E> {
        for (name, wanted) in &self.xattrs {
            let value = look(name)?;
            let text = value
                .as_deref()
                .and_then(|value| std::str::from_utf8(value).ok());
            if !text.is_some_and(|text| wanted.is_match(text)) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Rule {
    /// The part of a path that the pattern is held against: what lies below the rule's folder.
    #[must_use]
    pub fn below<'a>(&self, path: &'a str) -> Option<&'a str> {
        let below = path.strip_prefix(self.workdir.trim_end_matches('/'))?;
        below.strip_prefix('/').filter(|below| !below.is_empty())
    }

    /// A limit of its jobs, as the text says it.
    #[must_use]
    pub fn limit(&self, name: &str) -> Option<String> {
        let Data::Group(limits) = &self.job.get("limits")?.value.data else {
            return None;
        };
        match &limits.get(name)?.value.data {
            Data::Text(text) => Some(text.clone()),
            Data::Integer(number) => Some(number.to_string()),
            _ => None,
        }
    }

    /// Whether a path, absolute in the array, matches.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        self.below(path)
            .is_some_and(|below| self.pattern.matches(below))
    }

    /// The folder, absolute, that all matching files lie in.
    #[must_use]
    pub fn folder(&self) -> String {
        let workdir = self.workdir.trim_end_matches('/');
        let folder = match self.pattern.folder() {
            "" => workdir.to_owned(),
            folder => format!("{workdir}/{folder}"),
        };
        if folder.is_empty() {
            "/".into()
        } else {
            folder
        }
    }

    /// Whether files below a folder, absolute, may match.
    #[must_use]
    pub fn reaches(&self, folder: &str) -> bool {
        let own = self.folder();
        let within = |above: &str, below: &str| {
            let above = above.trim_end_matches('/');
            let rest = below.strip_prefix(above);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        within(&own, folder) || within(folder, &own)
    }
}

/// Something wrong with a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{at}: {problem}")]
pub struct RuleError {
    /// The text, as its user named it.
    pub file: String,
    /// Where.
    pub at: Position,
    /// What.
    pub problem: Problem,
}

/// What can be wrong with a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// It is not libconfig.
    #[error(transparent)]
    Script(ScriptProblem),
    /// It is not XML as rules have it.
    #[error("{0}")]
    Xml(String),
    /// A setting that must be there.
    #[error("setting \"{0}\" is missing: {1}")]
    Missing(&'static str, &'static str),
    /// A value of the wrong type.
    #[error("setting \"{name}\" should be {expected}, not {found}")]
    Type {
        /// Which.
        name: String,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// A setting that a place does not have.
    #[error("{place} has no setting \"{name}\"; {advice}")]
    Unknown {
        /// `where`, `batch` or a task of a rule.
        place: &'static str,
        /// The setting.
        name: String,
        /// What there is.
        advice: &'static str,
    },
    /// A bad name.
    #[error(
        "{0:?} can't be the name of a rule: give 1 to {MAX_NAME_BYTES} letters, digits, '.', '_' or '-', no '.' first"
    )]
    Name(String),
    /// A bad pattern.
    #[error("pattern: {0}")]
    Pattern(String),
    /// The pattern leads elsewhere.
    #[error("the pattern is absolute and does not begin with the folder {0:?} of \"workdir\"")]
    Outside(String),
    /// Neither `when = "sealed"` nor `"growing"`.
    #[error(
        "when = {0:?} does not exist: a rule fires when a version is \"sealed\", or begins with a version that is \"growing\""
    )]
    When(String),
    /// A value that makes no sense.
    #[error("setting \"{name}\": {what}")]
    Value {
        /// Which.
        name: &'static str,
        /// What is wrong with it, and what to do.
        what: String,
    },
    /// `${x}` that stands for nothing.
    #[error("\"${{{name}}}\" stands for nothing; there are {known}")]
    Variable {
        /// `x`.
        name: String,
        /// All that do.
        known: String,
    },
    /// `${…}` where it may not stand.
    #[error("\"${{{name}}}\" may not stand in \"{place}\": {why}")]
    Place {
        /// The variable.
        name: String,
        /// The setting.
        place: String,
        /// Why.
        why: &'static str,
    },
    /// Its job would be refused.
    #[error("the rule is too long: {0} bytes, of {MAX_RULE_BYTES}")]
    Length(usize),
}

/// Everything that is wrong with a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleErrors {
    /// With the rule itself.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Rule(Vec<RuleError>),
    /// With the task that it has.
    #[error(transparent)]
    Job(#[from] JobErrors),
}

#[cfg(test)]
mod tests;
