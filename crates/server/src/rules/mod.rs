//! Rules: work that runs when a version of a matching file becomes visible. The module `names/rules` compares each version with the rules
//! and stores the rule runs. Next: `server/src/jobs`, whose driver runs the jobs of rules.
//!
//! - `driver` turns queued rule runs into jobs. The transaction that stores a job also updates the rule runs, so that even a server that is
//!   killed at any moment triggers each rule exactly once per version.
//! - `selection` chooses the next rule run, `content_check` reads the first bytes of its files.
//! - `batches` starts the jobs that reduce the results of a hook's map tasks.
//! - `markers` closes a batch when a marker file appears.
//! - `deferred` delays map tasks of hooks until the end of a burst of writes.
//! - `service` answers clients' requests about rules.

pub(crate) mod batches;
mod content_check;
pub(crate) mod deferred;
pub(crate) mod driver;
mod markers;
mod selection;
pub(crate) mod service;
#[cfg(feature = "simulation")]
mod simulated;

use tidemill_meta::rules::{Rules, runs};
use tidemill_meta::{Connection, Fault};

/// Returns the number of rules with failed runs, and the number of these runs.
pub(crate) fn failed(db: &Connection, rules: &Rules) -> Result<(u64, u64), Fault> {
    let (mut failing, mut runs) = (0, 0);
    for kept in rules.all().iter() {
        let failed = runs::count_failed(db, kept.id)?;
        failing += u64::from(failed > 0);
        runs += failed;
    }
    Ok((failing, runs))
}
