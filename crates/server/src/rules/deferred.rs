//! Map tasks of hooks that wait for the end of a burst of writes. No map task starts in the first moment of a burst, since many bursts end
//! within that moment ([`tidemill_model::processor_share`]). The delay applies only to files in the burst tier, and only to hooks.

use super::{MatchState, Rules, StoredRule};
use crate::names::Fault;
use crate::names::shared::NamesShared;
use rusqlite::{Connection, params};
use std::collections::BTreeMap;
use tidemill_model::processor_share::begins;
use tidemill_model::time::Time;

/// Maximum number of waiting files of a hook that are counted.
const COUNTED_MAX: i64 = 10_000;

/// SQL expression for the node of the burst tier on which an object is being written or is stored.
pub(super) const NODE: &str = "coalesce((SELECT node FROM writing WHERE writing.object = rule_run.object), \
                                  (SELECT node FROM burst WHERE burst.object = rule_run.object))";

/// Start times of the newest files that are being written on each node of the burst tier.
#[derive(Debug, Default)]
pub(crate) struct Deferred(BTreeMap<u32, Time>);

impl Deferred {
    pub(crate) fn read(db: &Connection, shared: &NamesShared) -> Result<Self, Fault> {
        let bursts = &shared.bursts;
        let hooks = || {
            shared
                .rules
                .all()
                .iter()
                .any(|kept| kept.rule.hook.is_some())
        };
        if !bursts.any() || bursts.limits().share == 0 || !hooks() {
            return Ok(Self::default());
        }
        let sql = "SELECT node, max(started) FROM writing GROUP BY node";
        let mut statement = db.prepare_cached(sql)?;
        let rows = statement.query_map([], |row| {
            let started = Time(row.get::<_, i64>(1)?.max(0).cast_unsigned());
            Ok((u32::try_from(row.get::<_, i64>(0)?).ok(), started))
        })?;
        let mut newest = BTreeMap::new();
        for row in rows {
            if let (Some(node), started) = row?
                && bursts.has(node)
            {
                newest.insert(node, started);
            }
        }
        Ok(Self(newest))
    }

    /// Whether any file is being written in the burst tier.
    pub(super) fn any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Returns the time from which a file on this node that was queued at `queued` may be mapped; `None` if the file may be mapped now.
    pub(super) fn until(
        &self,
        kept: &StoredRule,
        (node, queued): (Option<u32>, i64),
        now: i64,
    ) -> Option<i64> {
        kept.rule.hook.as_ref()?;
        let newest = self.0.get(&node?).copied()?;
        let at = begins(Time(queued.max(0).cast_unsigned()), Some(newest));
        let at = i64::try_from(at.0).unwrap_or(i64::MAX);
        (at > now).then_some(at)
    }

    /// Returns the number of files of a hook that wait for the end of a burst.
    pub(super) fn count(&self, db: &Connection, kept: &StoredRule, now: i64) -> Result<u64, Fault> {
        if self.0.is_empty() || kept.rule.hook.is_none() {
            return Ok(0);
        }
        let sql =
            format!("SELECT {NODE}, queued FROM rule_run WHERE rule = ?1 AND state = ?2 LIMIT ?3");
        let mut statement = db.prepare_cached(&sql)?;
        let queued = MatchState::Queued.number();
        let key = params![kept.id.cast_signed(), queued, COUNTED_MAX];
        let rows = statement.query_map(key, |row| {
            let node = row.get::<_, Option<i64>>(0)?;
            Ok((node.and_then(|one| one.try_into().ok()), row.get(1)?))
        })?;
        let mut count = 0;
        for row in rows {
            count += u64::from(self.until(kept, row?, now).is_some());
        }
        Ok(count)
    }

    /// Returns the number of files of all hooks that wait for the end of a burst.
    pub(crate) fn count_all(&self, db: &Connection, rules: &Rules, now: i64) -> Result<u64, Fault> {
        let rules = rules.all();
        let count = |kept| self.count(db, kept, now);
        rules.iter().map(|kept| count(kept)).sum()
    }
}
