//! Compares the rows of the feed with the rules, and queues a rule run for each version that matches. Rule runs and cursor are written in
//! one transaction. Next: `server/src/rules/driver.rs`, which calls [`take`] and turns queued rule runs into jobs.

use super::runs::{MatchState, NewRun};
use super::{StoredRule, batches, jobs, runs, walks};
use crate::feed::{self, FeedKind, FeedRow};
use crate::shared::NamesShared;
use crate::transaction::Tx;
use crate::vnode::{Caller, InodeRecord, READ};
use crate::{Connection, Fault, attribute, ids, version};
use std::sync::atomic::Ordering;
use tidemill_lang::rule::hook::{BATCH_FILES_MAX, BatchEnd, InputAction};

/// Name of the counter with the number of the last row of the feed that rules need not see again.
const CURSOR: &str = "feed_of_rules";

/// Result of comparing some rows of the feed with the rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedStep {
    /// Number of the last row that was compared. The caller passes it to [`FeedStep::committed`].
    position: i64,
    /// Whether more rows may follow.
    pub more: bool,
    /// Whether the driver has to look for work.
    pub due: bool,
}

impl FeedStep {
    /// Records after the commit that the rows need not be read again.
    pub fn committed(self, shared: &NamesShared) {
        shared
            .rules
            .taken
            .fetch_max(self.position, Ordering::AcqRel);
    }
}

/// Returns the number of the last row of the feed that was compared with the rules; `i64::MAX` if there are no rules. The objects of later
/// rows are not removed.
pub fn position(db: &Connection, shared: &NamesShared) -> Result<i64, Fault> {
    if !shared.rules.any() {
        return Ok(i64::MAX);
    }
    let stored = ids::next(db, CURSOR)?.cast_signed();
    Ok(stored.max(shared.rules.taken.load(Ordering::Acquire)))
}

/// Compares the next rows of the feed with the rules. If no path of the rows concerns a rule, nothing is written.
pub fn take(db: &Connection, shared: &NamesShared, now: i64) -> Result<FeedStep, Fault> {
    page(db, shared, i64::MAX, now)
}

/// Compares all rows of the feed with the rules, before the rules or their batches change in the same transaction. The first rule sees no
/// earlier row.
pub fn take_all(db: &Connection, shared: &NamesShared, now: i64) -> Result<(), Fault> {
    take_until(db, shared, i64::MAX, now)?;
    ids::raise(db, &[(CURSOR, feed::last(db)?.cast_unsigned())])
}

/// Compares the rows up to a number with the rules, before these rows are deleted.
pub(crate) fn take_until(
    db: &Connection,
    shared: &NamesShared,
    until: i64,
    now: i64,
) -> Result<(), Fault> {
    loop {
        let step = page(db, shared, until, now)?;
        if !step.more {
            return Ok(());
        }
        // The transaction may still fail, so the position is only stored.
        ids::raise(db, &[(CURSOR, step.position.cast_unsigned())])?;
    }
}

fn page(db: &Connection, shared: &NamesShared, until: i64, now: i64) -> Result<FeedStep, Fault> {
    let rules = &shared.rules;
    if rules.unsure.load(Ordering::Acquire) {
        rules.load(db)?;
    }
    if !rules.any() {
        return Ok(FeedStep::default());
    }
    let rows = feed::rows(db, (position(db, shared)?, until), feed::PAGE)?;
    let Some(last) = rows.last() else {
        return Ok(FeedStep::default());
    };
    let root = Caller::root();
    let tx = Tx::new(db, shared, &root, 0, now);
    let mut concerned = false;
    for row in &rows {
        concerned |= tx.offer_row(row)?;
    }
    // Rows that concern no rule may be compared again after a restart, so that the cursor alone causes no commit.
    if concerned {
        ids::raise(db, &[(CURSOR, last.seq.cast_unsigned())])?;
    }
    Ok(FeedStep {
        position: last.seq,
        more: rows.len() as u64 == feed::PAGE.unsigned_abs(),
        // A row may be the last file that was being written.
        due: concerned || rules.any_batches(),
    })
}

impl Tx<'_> {
    /// Offers a change to all rules. Returns whether its path concerns any rule.
    fn offer_row(&self, row: &FeedRow) -> Result<bool, Fault> {
        // Jobs can only express paths in UTF-8.
        let Ok(path) = std::str::from_utf8(&row.path) else {
            return Ok(false);
        };
        let concerns = |kept: &StoredRule| match row.kind {
            FeedKind::Sealed | FeedKind::Named => kept.rule.matches(path) || is_marker(kept, path),
            FeedKind::Directory => kept.rule.reaches(path),
            FeedKind::Begun => kept.rule.streaming && kept.rule.matches(path),
            FeedKind::Appeared => false,
        };
        if !self.shared.rules.all().iter().any(|kept| concerns(kept)) {
            return Ok(false);
        }
        match row.kind {
            FeedKind::Directory => self.walk_moved(0, row.ino, path, row.by_other)?,
            FeedKind::Begun => self.offer_begun(row, path)?,
            _ => {
                if let Some(vnode) = self.version_at(row)? {
                    self.offer(&vnode, path, None, row.by_other)?;
                    self.offer_marker(&vnode, path, row.seq)?;
                }
            }
        }
        Ok(true)
    }

    /// Returns the file of a row with the version at the change; `None` if the file was removed since.
    fn version_at(&self, row: &FeedRow) -> Result<Option<InodeRecord>, Fault> {
        let found = InodeRecord::find(self.db, row.ino)?.filter(|vnode| vnode.nlink > 0);
        let Some(mut vnode) = found else {
            return Ok(None);
        };
        if vnode.object != row.object {
            let Some(size) = version::find(self.db, row.object)?.and_then(|found| found.size)
            else {
                return Ok(None);
            };
            (vnode.object, vnode.size) = (row.object, size);
        }
        Ok(Some(vnode))
    }

    /// Records that the write of a version has begun, for rules that read streaming files. The seal does not trigger these rules again, since
    /// the version keeps its object.
    pub(crate) fn feed_stream(&self, vnode: &InodeRecord) -> Result<(), Fault> {
        match self.shared.rules.any_streaming() && self.is_stream(vnode)? {
            true => self.feed_begun(vnode),
            false => Ok(()),
        }
    }

    /// Queues a version whose write has begun and has not ended since, for rules that read streaming files.
    fn offer_begun(&self, row: &FeedRow, path: &str) -> Result<(), Fault> {
        let Some(vnode) = InodeRecord::find(self.db, row.ino)? else {
            return Ok(());
        };
        if vnode.writing != row.object || vnode.nlink == 0 {
            return Ok(());
        }
        let begun = InodeRecord {
            object: vnode.writing,
            ..vnode
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

    /// Queues a version of a file, for all rules that match or for the rule `only`. Rules for all users see a file only if its owner or root
    /// gave the name, and a moved directory only if its owner or root moved it: such a rule must not read files that another user put into
    /// its directory.
    pub(super) fn offer(
        &self,
        vnode: &InodeRecord,
        path: &str,
        only: Option<u64>,
        by_other_user: bool,
    ) -> Result<(), Fault> {
        // A file that was never written has no version.
        if !vnode.has_version() {
            return Ok(());
        }
        let rules = self.shared.rules.all();
        for kept in rules.iter() {
            if only.is_some_and(|rule| rule != kept.id) {
                continue;
            }
            let hidden = by_other_user && kept.for_all;
            if !hidden && kept.rule.matches(path) && self.fits(kept, vnode, path)? {
                self.queue(kept, vnode, path)?;
            }
        }
        Ok(())
    }

    /// Records with the open batch of a hook that the batch's marker was sealed in the row `seq` of the feed. A marker ends nothing if no
    /// file can belong to its batch: the rows of later files may follow at once.
    pub(super) fn offer_marker(
        &self,
        vnode: &InodeRecord,
        path: &str,
        seq: i64,
    ) -> Result<(), Fault> {
        if !vnode.has_version() {
            return Ok(());
        }
        let rules = self.shared.rules.all();
        for kept in rules.iter().filter(|kept| is_marker(kept, path)) {
            if self.seen_by(kept, vnode)? && self.may_have_files(kept, seq)? {
                self.mark(kept.id)?;
            }
        }
        Ok(())
    }

    /// Whether a file can belong to the batch of a marker that was sealed in the row `seq` of the feed.
    fn may_have_files(&self, kept: &StoredRule, seq: i64) -> Result<bool, Fault> {
        if batches::open(self.db, kept.id)?.is_some() || walks::any(self.db, kept.id)? {
            return Ok(true);
        }
        let until = seq.saturating_mul(feed::MICROSECOND_NS);
        let written = batches::files_written(self.db, self.shared, until)?;
        Ok(written.iter().any(|(_, path)| kept.rule.matches(path)))
    }

    /// Whether a hook will remove the file of a version that was just sealed at a path.
    pub(super) fn is_deleted_by_hook(
        &self,
        vnode: &InodeRecord,
        path: &[u8],
    ) -> Result<bool, Fault> {
        let Ok(path) = std::str::from_utf8(path) else {
            return Ok(false);
        };
        for kept in self.shared.rules.all().iter() {
            if kept.input_action() == InputAction::Delete
                && kept.rule.matches(path)
                && self.fits(kept, vnode, path)?
            {
                return Ok(true);
            }
        }
        Ok(false)
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

/// Whether a file at a path is a marker of a hook's batches.
fn is_marker(kept: &StoredRule, path: &str) -> bool {
    let Some(BatchEnd::Marker(marker)) = kept.batch_end() else {
        return false;
    };
    let below = kept.rule.below(path);
    below.is_some_and(|below| marker.matches(below))
}

#[cfg(test)]
mod tests;
