//! Rules of directories: the attribute `user.tidemill.rule` of a directory, whose value is the text of a rule for the files below the
//! directory. Changes of the attribute are written to the tables of rules.

use super::{RULES_EACH_MAX, RULES_MAX, StoredRule, check_users, definitions};
use crate::Connection;
use crate::Fault;
use crate::attribute::{self, DIRECTORY_RULE};
use crate::transaction::{Tx, shown};
use crate::vnode::InodeRecord;
use tidemill_lang::rule::Rule;

/// Returns the name of a directory's rule whose text contains no name.
pub(super) fn name_of(directory: u64) -> String {
    format!("directory-{directory}")
}

/// Returns a directory's path as text for rules. Fails if the path is not valid UTF-8.
pub(super) fn shown_path(path: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(path).map_err(|_| format!("{}: a rule needs a path in UTF-8", shown(path)))
}

impl Tx<'_> {
    /// Sets the attribute of a directory: from now on the directory has this rule, owned by the caller.
    pub(crate) fn set_directory_rule(
        &self,
        directory: &InodeRecord,
        value: &[u8],
    ) -> Result<(), Fault> {
        self.need_own_directory(directory)?;
        let path = self.path_of(directory.ino)?.unwrap_or_default();
        let path = shown_path(&path).map_err(Fault::BadRule)?;
        let source = format!("{path}:user.tidemill.rule");
        let text = String::from_utf8_lossy(value).into_owned();
        let rule = Rule::read_of_directory(&source, &text, path, &name_of(directory.ino));
        let mut rule = rule.map_err(|error| Fault::BadRule(error.to_string()))?;
        check_users(&source, &mut rule).map_err(Fault::BadRule)?;
        let all = self.shared.rules.all();
        let before = all.iter().find(|kept| kept.directory == directory.ino);
        let uid = self.caller.uid;
        let own = || {
            all.iter()
                .filter(|kept| kept.owner.uid == uid && kept.directory != directory.ino)
        };
        if own().any(|kept| kept.rule.name == rule.name) {
            let what = format!(
                "you have a rule {} already: give it another name",
                rule.name
            );
            return Err(Fault::BadRule(what));
        }
        let bounded = uid != 0;
        if all.len() >= RULES_MAX || (bounded && own().count() >= RULES_EACH_MAX) {
            return Err(Fault::BadRule(format!(
                "there are {} rules, and at most {RULES_MAX} are allowed, {RULES_EACH_MAX} of a user: remove some",
                all.len()
            )));
        }
        let kept = StoredRule {
            id: 0,
            owner: self.caller.clone(),
            revision: before.map_or(1, |kept| kept.revision + 1),
            for_all: false,
            paused: before.is_some_and(|kept| kept.paused),
            source,
            text,
            changed: self.now,
            directory: directory.ino,
            rule,
        };
        self.settle_rules()?;
        definitions::put(self.db, &kept, before.map(|kept| kept.id))?;
        self.reload_rules()
    }

    /// Checks whether the caller may set or remove a directory's rule. The Linux kernel of a mount has only checked write permission on the
    /// directory.
    pub(crate) fn need_own_directory(&self, directory: &InodeRecord) -> Result<(), Fault> {
        match self.caller.uid == 0 || self.caller.uid == directory.uid {
            true => Ok(()),
            false => Err(Fault::NotOwner(self.called(directory.ino))),
        }
    }

    /// Deletes the rule of a directory after the attribute or the directory was removed.
    pub(crate) fn drop_directory_rule(&self, directory: u64) -> Result<(), Fault> {
        if !self.shared.rules.any() {
            return Ok(());
        }
        let all = self.shared.rules.all();
        let Some(kept) = all.iter().find(|kept| kept.directory == directory) else {
            return Ok(());
        };
        self.settle_rules()?;
        definitions::remove(self.db, kept.id)?;
        self.reload_rules()
    }

    /// Compares all changes with the rules before directories with rules, or their ancestors, receive other paths.
    pub(crate) fn settle_directory_rules(&self) -> Result<(), Fault> {
        match self.shared.rules.any_of_directory() {
            true => self.settle_rules(),
            false => Ok(()),
        }
    }

    /// Reads the rules again after directories with rules, or their ancestors, have received other paths.
    pub(crate) fn moved_directory_rules(&self) -> Result<(), Fault> {
        match self.shared.rules.any_of_directory() {
            true => self.reload_rules(),
            false => Ok(()),
        }
    }
}

/// Deletes a rule, and the attribute of the directory that has the rule.
pub fn remove(db: &Connection, kept: &StoredRule) -> Result<(), Fault> {
    attribute::remove(db, kept.directory, DIRECTORY_RULE)?;
    definitions::remove(db, kept.id)
}
