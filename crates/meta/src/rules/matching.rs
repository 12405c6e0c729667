//! Queues versions that match a rule, in the transaction that makes the versions visible under a name. Next: `server/src/rules/driver.rs`,
//! which turns queued rule runs into jobs.

use super::runs::{MatchState, NewRun};
use super::{StoredRule, batches, jobs, runs, walks};
use crate::transaction::Tx;
use crate::vnode::{InodeRecord, READ};
use crate::{Fault, attribute};
use tidemill_lang::rule::hook::{BATCH_FILES_MAX, BatchEnd};
use tidemill_wire::v1::Kind;

impl Tx<'_> {
    /// Queues a newly sealed version of a file at this path for all rules that match.
    pub(crate) fn trigger_for(&self, vnode: &InodeRecord, path: &[u8]) -> Result<(), Fault> {
        self.offer(vnode, path, None, false)
    }

    /// Queues a version whose write has begun, for rules that read streaming files. The seal does not trigger these rules again, since the
    /// version keeps its object.
    pub(crate) fn trigger_for_begun(&self, vnode: &InodeRecord) -> Result<(), Fault> {
        if !self.shared.rules.any_streaming() || !self.is_stream(vnode)? {
            return Ok(());
        }
        let Some(path) = self.path_of(vnode.ino)? else {
            return Ok(());
        };
        let Ok(path) = std::str::from_utf8(&path) else {
            return Ok(());
        };
        let begun = InodeRecord {
            object: vnode.writing,
            ..vnode.clone()
        };
        let rules = self.shared.rules.all();
        for kept in rules.iter().filter(|kept| kept.rule.streaming) {
            // If a hook's maps lag, it maps the file after the write.
            if kept.rule.matches(path)
                && self.fits(kept, &begun, path)?
                && !runs::lags(self.db, kept)?
            {
                self.queue(kept, &begun, path)?;
            }
        }
        Ok(())
    }

    /// Whether a version is written as one stream. Versions of several objects, and versions that may migrate during the write, are not.
    fn is_stream(&self, vnode: &InodeRecord) -> Result<bool, Fault> {
        let node = self.writing_node(vnode.writing)?;
        let node = node.and_then(|node| u32::try_from(node).ok());
        Ok(node.is_some_and(|node| !self.shared.in_memory(node)))
    }

    /// Ends the rule runs of a version whose write has begun and was aborted.
    pub(crate) fn end_begun(&self, object: u64, why: &str) -> Result<(), Fault> {
        if !self.shared.rules.any() {
            return Ok(());
        }
        for before in runs::open_for(self.db, object)? {
            let end = (why, self.now);
            runs::end(
                self.db,
                &self.shared.rules,
                before,
                MatchState::Deleted,
                end,
            )?;
        }
        self.shared.rules.wake();
        Ok(())
    }

    /// Queues a file or directory that has received a name. Rules for all users see a file only if its owner or root gave the name, and a
    /// directory only if its owner or root moved the directory: such a rule must not read files that another user put into its directory.
    pub(crate) fn trigger_for_moved(&self, vnode: &InodeRecord, path: &[u8]) -> Result<(), Fault> {
        let rules = &self.shared.rules;
        if !rules.any() {
            return Ok(());
        }
        let by_other_user = ![0, vnode.uid].contains(&self.caller.uid);
        if !vnode.is_dir() {
            return self.offer(vnode, path, None, by_other_user);
        }
        let Ok(path) = std::str::from_utf8(path) else {
            return Ok(());
        };
        if rules.all().iter().any(|kept| kept.rule.reaches(path)) {
            self.walk_moved(0, vnode.ino, path, by_other_user)?;
            rules.wake();
        }
        Ok(())
    }

    /// Starts a walk of all files below a moved directory. `by_other_user` states that a user other than the owner may have moved it.
    pub(super) fn walk_moved(
        &self,
        rule: u64,
        ino: u64,
        path: &str,
        by_other_user: bool,
    ) -> Result<(), Fault> {
        let all = self.shared.rules.all();
        let reached = || all.iter().filter(|kept| kept.rule.reaches(path));
        if rule != 0 || !by_other_user || !reached().any(|kept| kept.for_all) {
            return walks::add(self.db, rule, ino);
        }
        for kept in reached().filter(|kept| !kept.for_all) {
            walks::add(self.db, kept.id, ino)?;
        }
        Ok(())
    }

    /// Queues the present version of a file, for all rules that match or for the rule `only`. If a user other than the file's owner may have
    /// moved the file, rules for all users do not see it.
    pub(super) fn offer(
        &self,
        vnode: &InodeRecord,
        path: &[u8],
        only: Option<u64>,
        by_other_user: bool,
    ) -> Result<(), Fault> {
        // A file that was never written has no version.
        if vnode.kind != Kind::File || vnode.object == 0 || vnode.version == 0 {
            return Ok(());
        }
        // Jobs can only express paths in UTF-8.
        let Ok(path) = std::str::from_utf8(path) else {
            return Ok(());
        };
        let rules = self.shared.rules.all();
        for kept in rules.iter() {
            if only.is_some_and(|rule| rule != kept.id) {
                continue;
            }
            let hidden = by_other_user && kept.for_all;
            if !hidden && kept.rule.matches(path) && self.fits(kept, vnode, path)? {
                self.queue(kept, vnode, path)?;
            }
            if only.is_none() {
                self.marks(kept, vnode, path)?;
            }
        }
        // This may have been the last file that was being written.
        if self.shared.rules.any_batches() {
            self.shared.rules.wake();
        }
        Ok(())
    }

    /// Whether a version fulfils a rule's conditions, and whether the rule may see the version.
    fn fits(&self, kept: &StoredRule, vnode: &InodeRecord, path: &str) -> Result<bool, Fault> {
        let version = (path, vnode.size, vnode.uid);
        let fit = kept.rule.conditions.fit(version, |name| {
            attribute::value_of(self.db, vnode.ino, name.as_bytes())
        })?;
        Ok(fit && (kept.for_all || self.seen_by(kept, vnode)?))
    }

    fn seen_by(&self, kept: &StoredRule, vnode: &InodeRecord) -> Result<bool, Fault> {
        let tx = Tx::new(self.db, self.shared, &kept.owner, 0, self.now);
        match tx.reach(vnode.ino) {
            Ok(_) => Ok(kept.owner.may(vnode, READ)),
            Err(fault) if fault.is_database_failure() => Err(fault),
            Err(_) => Ok(false),
        }
    }

    fn queue(&self, kept: &StoredRule, vnode: &InodeRecord, path: &str) -> Result<(), Fault> {
        let depth = jobs::depth(self.db, vnode.object)?;
        let max = kept.rule.depth;
        let (state, error) = if depth >= max {
            let error = format!(
                "a chain of {depth} rule runs led to this file, and rule {} allows {max}: do its outputs match a rule again? \
                 Change a pattern, or raise \"depth\" if the chain ends",
                kept.rule.name
            );
            (MatchState::Loop, error)
        } else if runs::any_open_at(self.db, kept.id, path)? {
            (MatchState::Waiting, String::new())
        } else {
            (MatchState::Queued, String::new())
        };
        let uid = if kept.for_all {
            vnode.uid
        } else {
            kept.owner.uid
        };
        let new = NewRun {
            rule: kept.id,
            vnode,
            uid,
            path,
            depth,
            state,
            error,
        };
        if runs::add(self.db, &new, self.now)? {
            self.add_to_batch(kept, vnode.object)?;
        } else {
            self.may_go_by_now(vnode.object)?;
        }
        self.shared.rules.wake();
        Ok(())
    }

    /// Adds a version that was queued for a hook to the hook's open batch.
    fn add_to_batch(&self, kept: &StoredRule, object: u64) -> Result<(), Fault> {
        let Some(end) = kept.batch_end() else {
            return Ok(());
        };
        let batch = batches::open_or_begin(self.db, kept.id, self.now)?;
        let files = runs::add_to_batch(self.db, (kept.id, object), batch)?;
        let most = match end {
            BatchEnd::Files(files) => *files,
            BatchEnd::Close | BatchEnd::Marker(_) => BATCH_FILES_MAX,
        };
        if files >= most {
            let open = batches::open(self.db, kept.id)?;
            batches::end_open(self.db, kept.id)?;
            if open.is_some_and(|open| open.marked) {
                // Files that were closed before the batch's marker may still arrive.
                self.mark(kept.id)?;
            }
        }
        Ok(())
    }

    /// Checks whether a file is the marker of a hook's batch, and records the marker if it is.
    fn marks(&self, kept: &StoredRule, vnode: &InodeRecord, path: &str) -> Result<(), Fault> {
        let Some(BatchEnd::Marker(marker)) = kept.batch_end() else {
            return Ok(());
        };
        let below = kept.rule.below(path);
        if below.is_some_and(|below| marker.matches(below)) && self.seen_by(kept, vnode)? {
            self.mark(kept.id)?;
        }
        Ok(())
    }

    /// Records with the open batch of a hook that the batch's marker was sealed.
    fn mark(&self, rule: u64) -> Result<(), Fault> {
        batches::mark(self.db, rule, self.now)?;
        self.shared.rules.wake_for_marker();
        Ok(())
    }

    /// Queues failed runs of a rule again: all failed runs, or those of one path. Retries failed batches, too. Returns the number of queued
    /// runs and batches.
    pub fn retry_rule(&self, rule: u64, path: &str) -> Result<u64, Fault> {
        let rules = self.shared.rules.all();
        let kept = rules.iter().find(|kept| kept.id == rule);
        if let Some(kept) = kept.filter(|kept| kept.batch_end().is_some()) {
            for object in runs::failed_without_batch(self.db, rule, path)? {
                self.add_to_batch(kept, object)?;
            }
        }
        let count = runs::retry(self.db, (rule, path), self.now)?;
        Ok((count + batches::retry(self.db, rule)?) as u64)
    }
}
