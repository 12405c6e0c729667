//! Conditions of rules on a version in addition to its path: `size >= 1MB and (owner = alice or user.project = "tide*")`.
//!
//! The content of a version is read only before the task runs, from the nodes. Sizes, owners, types and attributes are checked when the
//! version triggers the rule. Each condition of an outer `and` is therefore either on the content, or on the other names.

use super::{RuleProblem, mime};
use regex::Regex;
use tidemill_model::condition::{
    self, CompareOperator, ComparedValue, Comparison, Condition, ConditionError, Operand, Tree,
    only,
};

/// Names in conditions of rules. The last name stands for all names that begin with it.
const NAMES: [&str; 5] = ["size", "owner", "type", "content", "user."];
/// Name of the condition on the content.
const CONTENT: &str = "content";

/// Conditions on a version in addition to its path.
#[derive(Clone, Debug, Default)]
pub struct RuleConditions {
    /// Conditions that are checked when a version triggers the rule.
    version: Vec<Tree<VersionTest>>,
    /// Conditions on the first bytes of a version.
    content: Vec<Tree<WantedText>>,
    /// Position of the first name that is unknown while a file is being written, and the name.
    sealed_only: Option<(usize, String)>,
}

/// Test of a version.
#[derive(Clone, Debug)]
enum VersionTest {
    Size(CompareOperator, u64),
    Owner {
        equal: bool,
        user: String,
        /// Number of the user; `None` if the user is unknown.
        uid: Option<u32>,
    },
    Type(WantedText),
    Attribute(String, WantedText),
}

/// Test of a text.
#[derive(Clone, Debug)]
struct WantedText {
    compare: CompareOperator,
    value: WantedValue,
}

#[derive(Clone, Debug)]
enum WantedValue {
    /// Pattern of the whole text, for `=` and `!=`.
    Pattern(Regex),
    /// Regular expression or number.
    Compared(ComparedValue),
}

/// Compiles a text in which `*` matches anything, for comparison with a whole value.
fn stars(text: &str) -> Result<Regex, String> {
    let parts: Vec<String> = text.split('*').map(regex::escape).collect();
    let regex = Regex::new(&format!("\\A(?s:{})\\z", parts.join(".*")));
    regex.map_err(|error| error.to_string())
}

impl WantedText {
    fn read(compare: CompareOperator, value: &Operand) -> Result<Self, ConditionError> {
        let value = match compare {
            CompareOperator::Equal | CompareOperator::Unequal => {
                let pattern = stars(&value.text);
                let pattern = pattern.map_err(|what| ConditionError::new(value.span.start, what));
                WantedValue::Pattern(pattern?)
            }
            _ => WantedValue::Compared(ComparedValue::read(compare, value)?),
        };
        Ok(Self { compare, value })
    }

    fn fits(&self, text: &str) -> bool {
        match &self.value {
            WantedValue::Pattern(regex) => {
                regex.is_match(text) == (self.compare == CompareOperator::Equal)
            }
            WantedValue::Compared(value) => value.fits(self.compare, text),
        }
    }
}

impl RuleConditions {
    /// Reads the conditions of a rule.
    ///
    /// # Errors
    /// The fault in the text, and its position.
    pub fn read(text: &str) -> Result<Self, ConditionError> {
        let mut found = Self::default();
        for tree in condition::parse(text)?.conjuncts() {
            found.add(&tree)?;
        }
        Ok(found)
    }

    fn add(&mut self, tree: &Condition) -> Result<(), ConditionError> {
        let comparisons = tree.tests();
        for comparison in &comparisons {
            condition::known_name(comparison, &NAMES)?;
            let name = &comparison.left;
            // Owners and types are known while a file is being written.
            if self.sealed_only.is_none() && !matches!(name.text.as_str(), "owner" | "type") {
                self.sealed_only = Some((name.span.start, name.text.clone()));
            }
        }
        let of_content = |comparison: &Comparison| comparison.left.text == CONTENT;
        let Some(content) = comparisons.iter().find(|one| of_content(one)) else {
            self.version.push(tree.try_map(&mut version_test)?);
            return Ok(());
        };
        if !comparisons.iter().all(|one| of_content(one)) {
            let what = "content and other names can't be joined by \"or\" or \"not\", because the content is read later: join them by \"and\"";
            return Err(ConditionError::new(content.left.span.start, what));
        }
        self.content.push(tree.try_map(&mut content_test)?);
        Ok(())
    }

    /// Returns the position and the name of the first condition that cannot be checked while a file is being written.
    pub(super) fn sealed_only(&self) -> Option<(usize, &str)> {
        let (at, name) = self.sealed_only.as_ref()?;
        Some((*at, name))
    }

    /// Looks up the numbers of users that the conditions name. Returns the users that `find` does not know; no version is theirs.
    pub fn find_users(&mut self, find: impl Fn(&str) -> Option<u32>) -> Vec<String> {
        let mut unknown = Vec::new();
        for tree in &mut self.version {
            *tree = tree.map(&mut |test| {
                let mut test = test.clone();
                if let VersionTest::Owner { user, uid, .. } = &mut test {
                    *uid = uid.or_else(|| find(user));
                    if uid.is_none() {
                        unknown.push(user.clone());
                    }
                }
                test
            });
        }
        unknown
    }

    /// Returns whether a version of this path, size and owner matches. Attributes of the file are looked up one by one.
    ///
    /// # Errors
    /// The error of a look-up.
    pub fn fit<E>(
        &self,
        (path, size, owner): (&str, u64, u32),
        look: impl Fn(&str) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<bool, E> {
        let mut holds = |test: &VersionTest| match test {
            VersionTest::Size(compare, bytes) => Ok(compare.holds(&size, bytes)),
            VersionTest::Owner { equal, uid, .. } => Ok((*uid == Some(owner)) == *equal),
            VersionTest::Type(wanted) => Ok(wanted.fits(mime::of_name(path))),
            VersionTest::Attribute(name, wanted) => {
                let value = look(name)?;
                let text = value
                    .as_deref()
                    .and_then(|value| std::str::from_utf8(value).ok());
                Ok(text.is_some_and(|text| wanted.fits(text)))
            }
        };
        for tree in &self.version {
            if !tree.holds(&mut holds)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns whether the conditions depend on the first bytes of a version.
    #[must_use]
    pub fn look_inside(&self) -> bool {
        !self.content.is_empty()
    }

    /// Returns whether a version matches that begins with these bytes: the first [`mime::HEAD_BYTES`], or all bytes if there are fewer.
    ///
    /// # Errors
    /// The type of the version if it does not match.
    pub fn fit_content(&self, head: &[u8]) -> Result<(), &'static str> {
        let kind = mime::of_content(head);
        let mut holds = |wanted: &WantedText| Ok::<_, &'static str>(wanted.fits(kind));
        for tree in &self.content {
            if !tree.holds(&mut holds)? {
                return Err(kind);
            }
        }
        Ok(())
    }
}

fn version_test(comparison: &Comparison) -> Result<VersionTest, ConditionError> {
    let Comparison {
        left,
        operator: compare,
        right,
    } = comparison;
    match left.text.as_str() {
        "size" => {
            only(comparison, &CompareOperator::ORDER)?;
            condition::size(right).map(|bytes| VersionTest::Size(*compare, bytes))
        }
        "owner" => {
            only(
                comparison,
                &[CompareOperator::Equal, CompareOperator::Unequal],
            )?;
            let (equal, user) = (*compare == CompareOperator::Equal, right.text.clone());
            let uid = user.parse().ok();
            Ok(VersionTest::Owner { equal, user, uid })
        }
        "type" => {
            let by = "the end of a name; use files";
            kind(comparison, mime::is_known, by).map(VersionTest::Type)
        }
        name => {
            let wanted = WantedText::read(*compare, right)?;
            Ok(VersionTest::Attribute(name.to_owned(), wanted))
        }
    }
}

fn content_test(comparison: &Comparison) -> Result<WantedText, ConditionError> {
    kind(
        comparison,
        mime::is_known_content,
        "the first bytes of files",
    )
}

/// Reads a type of files, which must be known.
fn kind(
    comparison: &Comparison,
    known: fn(&Regex) -> bool,
    by: &str,
) -> Result<WantedText, ConditionError> {
    use CompareOperator::{Equal, Matches, Unequal};
    only(comparison, &[Equal, Unequal, Matches])?;
    let value = &comparison.right;
    let wanted = WantedText::read(comparison.operator, value)?;
    let regex = match &wanted.value {
        WantedValue::Pattern(regex) => Some(regex),
        WantedValue::Compared(value) => value.regex.as_ref(),
    };
    if regex.is_some_and(known) {
        return Ok(wanted);
    }
    let what = format!("{:?} is not a type that is recognised by {by}", value.text);
    Err(ConditionError::new(value.span.start, what))
}

impl From<ConditionError> for RuleProblem {
    fn from(error: ConditionError) -> Self {
        let (name, what) = ("where", error.what);
        Self::Value { name, what }
    }
}
