//! Queues versions that match a rule, in the transaction that makes the versions visible under a name. Next: `server/src/rules/driver.rs`,
//! which turns queued rule runs into jobs.

use super::run_outcome::end;
use super::store::one;
use super::{MatchState, StoredRule, batches};
use crate::names::Fault;
use crate::names::transaction::Tx;
use crate::names::vnode::{InodeRecord, READ};
use rusqlite::params;
use tidemill_wire::v1::Kind;

impl Tx<'_> {
    /// Queues a newly sealed version of a file at this path for all rules that match.
    pub(crate) fn trigger_for(&self, vnode: &InodeRecord, path: &[u8]) -> Result<(), Fault> {
        self.offer(vnode, path, None)
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
                && !batches::lags(self.db, kept)?
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
        let sql = "SELECT rule_run, state FROM rule_run WHERE object = ?1 AND state <= 2";
        let mut statement = self.db.prepare_cached(sql)?;
        let rows = statement.query_map([object.cast_signed()], |row| {
            Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get::<_, i64>(1)?))
        })?;
        let rules = &self.shared.rules;
        for row in rows.collect::<Result<Vec<_>, _>>()? {
            let (rule_run, state) = row;
            let states = MatchState::ALL.map(|(state, _)| state);
            let state = states.into_iter().find(|one| one.number() == state);
            let before = (rule_run, state.unwrap_or(MatchState::Queued));
            end(self.db, rules, before, MatchState::Deleted, (why, self.now))?;
        }
        self.shared.rules.wake();
        Ok(())
    }

    /// Queues a file or directory that has received a name. Rules for all users see a file only if its owner or root gave the name, and a
    /// directory only if its owner or root moved the directory: such a rule must not read files that another user put into its directory.
    pub(crate) fn trigger_for_moved(
        &self,
        vnode: &InodeRecord,
        directory: u64,
        name: &[u8],
    ) -> Result<(), Fault> {
        let rules = &self.shared.rules;
        if !rules.any() {
            return Ok(());
        }
        let Some(mut path) = self.path_of(directory)? else {
            return Ok(());
        };
        if !path.ends_with(b"/") {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        let by_other_user = ![0, vnode.uid].contains(&self.caller.uid);
        if !vnode.is_dir() {
            return self.offer_moved(vnode, &path, None, by_other_user);
        }
        let Ok(path) = std::str::from_utf8(&path) else {
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
            return self.walk_below(rule, ino);
        }
        for kept in reached().filter(|kept| !kept.for_all) {
            self.walk_below(kept.id, ino)?;
        }
        Ok(())
    }

    /// Queues the present version of a file, for all rules that match or for the rule `only`.
    pub(super) fn offer(
        &self,
        vnode: &InodeRecord,
        path: &[u8],
        only: Option<u64>,
    ) -> Result<(), Fault> {
        self.offer_moved(vnode, path, only, false)
    }

    /// Queues a version as [`Self::offer`] does, for a file that a user other than its owner may have moved. In that case rules for all
    /// users do not see the file.
    pub(super) fn offer_moved(
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
            let sql = "SELECT value FROM xattr WHERE ino = ?1 AND name = ?2";
            let key = params![vnode.ino.cast_signed(), name.as_bytes()];
            one(self.db, sql, key, |row| row.get(0))
        })?;
        Ok(fit && (kept.for_all || self.seen_by(kept, vnode)?))
    }

    pub(super) fn seen_by(&self, kept: &StoredRule, vnode: &InodeRecord) -> Result<bool, Fault> {
        let tx = Tx::new(self.db, self.shared, &kept.owner, 0, self.now);
        match tx.reach(vnode.ino) {
            Ok(_) => Ok(kept.owner.may(vnode, READ)),
            Err(fault) if fault.is_database_failure() => Err(fault),
            Err(_) => Ok(false),
        }
    }

    fn queue(&self, kept: &StoredRule, vnode: &InodeRecord, path: &str) -> Result<(), Fault> {
        let (rule, object) = (kept.id.cast_signed(), vnode.object.cast_signed());
        let sql = "SELECT rule_job.depth + 1 FROM version JOIN task ON task.task = version.task \
                   JOIN rule_job ON rule_job.job = task.job WHERE version.object = ?1 AND version.task != 0";
        let depth = one(self.db, sql, [object], |row| row.get::<_, u32>(0))?.unwrap_or(0);
        let sql = "SELECT 1 FROM rule_run WHERE rule = ?1 AND path = ?2 AND state <= 2";
        let max = kept.rule.depth;
        let (state, error) = if depth >= max {
            let error = format!(
                "a chain of {depth} rule runs led to this file, and rule {} allows {max}: do its outputs match a rule again? \
                 Change a pattern, or raise \"depth\" if the chain ends",
                kept.rule.name
            );
            (MatchState::Loop, error)
        } else if one(self.db, sql, params![rule, path], |_| Ok(()))?.is_some() {
            (MatchState::Waiting, String::new())
        } else {
            (MatchState::Queued, String::new())
        };
        let uid = if kept.for_all {
            vnode.uid
        } else {
            kept.owner.uid
        };
        let ended = if state == MatchState::Loop {
            self.now
        } else {
            0
        };
        // A version triggers a rule once, however often it gets a name.
        let sql = "INSERT OR IGNORE INTO rule_run(rule, object, ino, uid, path, depth, state, queued, ended, error) \
                   SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10 WHERE EXISTS (SELECT 1 FROM rule WHERE rule = ?1)";
        let queued = self.db.prepare_cached(sql)?.execute(params![
            rule,
            object,
            vnode.ino.cast_signed(),
            uid,
            path,
            depth,
            state.number(),
            self.now,
            ended,
            error
        ])?;
        if queued == 1 {
            self.add_to_batch(kept, vnode.object)?;
        }
        if queued == 0 {
            self.may_go_by_now(vnode.object)?;
        }
        self.shared.rules.wake();
        Ok(())
    }
}
