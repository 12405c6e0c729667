//! Map tasks of hooks that wait for the end of a burst of writes. No map task starts in the first moment of a burst, since many bursts end
//! within that moment ([`tidemill_model::processor_share`]). The delay applies only to files in the burst tier, and only to hooks.

use std::collections::BTreeMap;
use tidemill_meta::rules::{Rules, StoredRule, runs};
use tidemill_meta::shared::NamesShared;
use tidemill_meta::{Connection, Fault, version};
use tidemill_model::processor_share::begins;
use tidemill_model::time::Time;

/// Maximum number of waiting files of a hook that are counted.
const COUNTED_MAX: u32 = 10_000;

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
        let newest = version::newest_writes(db)?.into_iter();
        Ok(Self(newest.filter(|(node, _)| bursts.has(*node)).collect()))
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
        let queued = runs::queued_since(db, kept.id, COUNTED_MAX)?.into_iter();
        let waiting = queued.filter(|since| self.until(kept, *since, now).is_some());
        Ok(waiting.count() as u64)
    }

    /// Returns the number of files of all hooks that wait for the end of a burst.
    pub(crate) fn count_all(&self, db: &Connection, rules: &Rules, now: i64) -> Result<u64, Fault> {
        let rules = rules.all();
        let count = |kept| self.count(db, kept, now);
        rules.iter().map(|kept| count(kept)).sum()
    }
}
