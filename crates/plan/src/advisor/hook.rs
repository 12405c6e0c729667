//! Advice on hooks: decides whether the burst tier can map the files of a burst before the next burst begins. Active Flash (FAST 2013,
//! §3.3) asks the same question: analysis must end within the interval. The model considers each of the nodes that share a burst, and the
//! processors that maps leave to writers. The equations are numbered H1 to H7 as in `docs/advisor-equations.md`. This module only computes.

use crate::units::{Bytes, BytesPerSecond, Seconds};
use schemars::JsonSchema;
use serde::Serialize;
use thiserror::Error;

/// Input of the advice. Bytes and files are totals of one burst, over all nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HookCase {
    /// Size of a burst over all nodes.
    pub burst: Bytes,
    /// Number of files in a burst over all nodes.
    pub files: u32,
    /// Time from the begin of one burst to the begin of the next.
    pub every: Seconds,
    /// Rate at which programs write to one node.
    pub write: BytesPerSecond,
    /// Number of nodes of the burst tier that share a burst.
    pub nodes: u32,
    /// Number of cores per node that run maps.
    pub cores: u32,
    /// Input rate of the map on one free core.
    pub rate: BytesPerSecond,
    /// Time of a map over a very small input.
    pub start: Seconds,
    /// Whether maps run while files are written. Otherwise maps run when the files are closed, which is at the end of the burst.
    pub on_write: bool,
    /// Share of the processors that maps leave to writers, from 0 to below 1.
    pub share: f64,
    /// Time for which maps wait at the beginning of a burst.
    pub held: Seconds,
    /// Bytes staged out of the tier per written byte: 1 if files stay, or the output ratio of the map if only results stay.
    pub leaves: f64,
    /// Rate at which one node stages out files, if the rate is known.
    pub stage_out: Option<BytesPerSecond>,
    /// Space for bursts on one node, if the space is known.
    pub space: Option<Bytes>,
}

/// Reason for which the burst tier can't keep up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TierShortage {
    /// Writing a burst takes longer than the time to the next burst.
    Writing,
    /// Maps of a burst have not ended when the next burst begins.
    Cores,
    /// Data that must leave the tier is not staged out when the next burst begins.
    StageOut,
    /// A burst does not fit into the space of the tier.
    Space,
}

/// Advice on a hook, for each node of the burst tier.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct HookAdvice {
    /// Whether all work on a burst ends before the next burst begins.
    pub keeps_up: bool,
    /// Reasons for which the tier does not keep up.
    pub lacks: Vec<TierShortage>,
    /// Duration of a burst (H1).
    pub burst_seconds: Seconds,
    /// Core time of the maps of a burst (H2).
    pub work_seconds: Seconds,
    /// Part of the maps' core time that is used during the burst (H4).
    pub done_in_burst_seconds: Seconds,
    /// Time from the start of the burst to the last result, if no map of an earlier burst is left (H5).
    pub results_seconds: Seconds,
    /// Bytes that each burst adds to the backlog of unmapped bytes (H6).
    pub behind_bytes: Bytes,
    /// Number of bursts until the tier is full, if it fills up and its space is known (H6).
    pub bursts_until_full: Option<f64>,
    /// Rate at which data must be staged out from a node (H7).
    #[serde(rename = "stage_out_bytes_per_sec")]
    pub stage_out: BytesPerSecond,
    /// Minimum number of cores per node with which maps keep up, if any number of cores suffices (H5).
    pub cores_needed: Option<u32>,
}

/// Invalid number in a hook's case.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("{what} is {value}: {must}")]
pub struct HookCaseError {
    what: &'static str,
    value: f64,
    must: &'static str,
}

impl HookCase {
    fn check(&self) -> Result<(), HookCaseError> {
        let wrong = |what, value, must| Err(HookCaseError { what, value, must });
        let above = [
            ("the size of a burst", self.burst.get()),
            ("the time between bursts", self.every.get()),
            ("the rate of writers", self.write.get()),
            ("the kernel's throughput", self.rate.get()),
            ("the number of files", f64::from(self.files)),
            ("the number of nodes", f64::from(self.nodes)),
            ("the number of cores", f64::from(self.cores)),
        ];
        let stage_out = self
            .stage_out
            .map(|rate| ("the stage-out's rate", rate.get()));
        for (what, value) in above.into_iter().chain(stage_out) {
            if !(value > 0.0 && value.is_finite()) {
                return wrong(what, value, "it must be above zero and finite");
            }
        }
        let space = self.space.unwrap_or(Bytes::ZERO).get();
        let others = [
            ("the time to start a map", self.start.get()),
            ("the wait", self.held.get()),
            ("what leaves the tier of a byte", self.leaves),
            ("the space", space),
        ];
        for (what, value) in others {
            if !(value >= 0.0 && value.is_finite()) {
                return wrong(what, value, "it must not be negative or infinite");
            }
        }
        match (0.0..1.0).contains(&self.share) {
            true => Ok(()),
            false => wrong("the share", self.share, "it must be from 0 to below 1"),
        }
    }

    /// Returns the number of files on the node with the most files.
    fn files_each(&self) -> u32 {
        self.files.div_ceil(self.nodes)
    }

    /// H3: returns the number of cores that maps use, since a file is mapped by one core.
    fn used(&self, cores: u32) -> f64 {
        f64::from(cores.min(self.files_each()))
    }

    /// H4 and H5: returns the core time available during the burst and after it.
    fn capacity(&self, cores: u32, burst: Seconds) -> (Seconds, Seconds) {
        let used = self.used(cores);
        let open = (burst.get() - self.held.get()).max(0.0);
        let within = match self.on_write {
            true => open * used * (1.0 - self.share),
            false => 0.0,
        };
        let after = (self.every.get() - burst.get()).max(0.0) * used;
        (Seconds::new(within), Seconds::new(after))
    }
}

/// Returns whether the burst tier keeps up, with the reasons and times.
///
/// # Errors
/// An invalid number in the case.
pub fn advise_hook(case: &HookCase) -> Result<HookAdvice, HookCaseError> {
    case.check()?;
    let each = case.burst / f64::from(case.nodes);
    let burst = each / case.write;
    let work = each / case.rate + case.start * f64::from(case.files_each());
    let (within, after) = case.capacity(case.cores, burst);
    let done = Seconds::new(within.get().min(work.get()));
    let left = (work.get() - done.get() - after.get()).max(0.0);
    // Rounding may leave a small rest where the division should leave none.
    let left = if left > work.get() * 1e-9 { left } else { 0.0 };
    let behind = each * (left / work.get());
    let results = Seconds::new(burst.get() + (work.get() - done.get()) / case.used(case.cores));
    let stage_out = each * case.leaves / case.every;
    let mut lacks = Vec::new();
    let mut lack = |is: bool, lack| {
        if is {
            lacks.push(lack);
        }
    };
    lack(burst > case.every, TierShortage::Writing);
    lack(left > 0.0, TierShortage::Cores);
    lack(
        case.stage_out.is_some_and(|rate| stage_out > rate),
        TierShortage::StageOut,
    );
    lack(
        case.space.is_some_and(|space| each > space),
        TierShortage::Space,
    );
    let enough = |cores: &u32| {
        let (within, after) = case.capacity(*cores, burst);
        within.get().min(work.get()) + after.get() >= work.get() * (1.0 - 1e-9)
    };
    Ok(HookAdvice {
        keeps_up: lacks.is_empty(),
        bursts_until_full: case.space.filter(|_| left > 0.0).map(|space| {
            let spare = (space.get() - each.get()).max(0.0);
            (spare / behind.get()).floor() + 1.0
        }),
        lacks,
        burst_seconds: burst,
        work_seconds: work,
        done_in_burst_seconds: done,
        results_seconds: results,
        behind_bytes: behind,
        stage_out,
        cores_needed: least(case.files_each(), enough),
    })
}

/// Returns the smallest number up to `most` that is enough. Every number above a number that is enough must be enough, too.
fn least(most: u32, enough: impl Fn(&u32) -> bool) -> Option<u32> {
    if !enough(&most) {
        return None;
    }
    let (mut low, mut high) = (1, most);
    while low < high {
        let middle = low + (high - low) / 2;
        match enough(&middle) {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    Some(high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the case of 100 GB per minute into four nodes at 2.5 GB/s each, mapped on four cores of 1 GB/s.
    fn case() -> HookCase {
        HookCase {
            burst: Bytes::new(100e9),
            files: 64,
            every: Seconds::new(60.0),
            write: BytesPerSecond::new(2.5e9),
            nodes: 4,
            cores: 4,
            rate: BytesPerSecond::new(1e9),
            start: Seconds::new(0.0625),
            on_write: true,
            share: 0.9,
            held: Seconds::new(1.0),
            leaves: 1.0,
            stage_out: None,
            space: None,
        }
    }

    fn close(value: f64, expected: f64) {
        assert!(
            (value - expected).abs() <= 1e-9 * expected.abs().max(1.0),
            "{value} is not {expected}"
        );
    }

    #[test]
    fn hook_advice_matches_hand_computation() {
        let advice = advise_hook(&case()).unwrap();
        assert!(advice.keeps_up, "{advice:?}");
        close(advice.burst_seconds.get(), 10.0);
        close(advice.work_seconds.get(), 25.0 + 1.0);
        close(advice.done_in_burst_seconds.get(), 9.0 * 4.0 * 0.1);
        close(advice.results_seconds.get(), 10.0 + (26.0 - 3.6) / 4.0);
        close(advice.stage_out.get(), 25e9 / 60.0);
        assert_eq!(advice.cores_needed, Some(1));

        // A tenth of the speed: 250 s of work, which consists of 3.6 s during the burst, 200 s after it, and a rest.
        let slow = HookCase {
            rate: BytesPerSecond::new(1e8),
            start: Seconds::ZERO,
            space: Some(Bytes::new(50e9)),
            stage_out: Some(BytesPerSecond::new(1e8)),
            ..case()
        };
        let advice = advise_hook(&slow).unwrap();
        assert_eq!(advice.lacks, [TierShortage::Cores, TierShortage::StageOut]);
        close(
            advice.behind_bytes.get(),
            25e9 * (250.0 - 3.6 - 200.0) / 250.0,
        );
        close(advice.bursts_until_full.unwrap(), 6.0);
        assert_eq!(advice.cores_needed, Some(5));
        // One file is mapped by one core.
        let one = HookCase { files: 4, ..slow };
        assert_eq!(advise_hook(&one).unwrap().cores_needed, None);
    }

    #[test]
    fn hook_advice_refuses_invalid_case_and_lists_lacks() {
        let refused = |case: &HookCase| advise_hook(case).unwrap_err().to_string();
        assert!(refused(&HookCase { files: 0, ..case() }).contains("number of files is 0"));
        assert!(
            refused(&HookCase {
                share: 1.0,
                ..case()
            })
            .contains("below 1")
        );
        let rate = BytesPerSecond::new(f64::NAN);
        assert!(refused(&HookCase { rate, ..case() }).contains("throughput"));
        let every = Seconds::new(9.0);
        let space = Some(Bytes::new(24e9));
        let advice = advise_hook(&HookCase {
            every,
            space,
            ..case()
        })
        .unwrap();
        assert_eq!(
            advice.lacks,
            [
                TierShortage::Writing,
                TierShortage::Cores,
                TierShortage::Space
            ]
        );
    }

    /// Simulates one node in small time steps. Returns the unmapped bytes at the end of each of many periods.
    fn stepped(case: &HookCase, periods: u32, steps: u32) -> Vec<f64> {
        let each = case.burst.get() / f64::from(case.nodes);
        let files = f64::from(case.files.div_ceil(case.nodes));
        let total = each / case.rate.get() + case.start.get() * files;
        let burst = each / case.write.get();
        let step = case.every.get() / f64::from(steps);
        let cores = f64::from(case.cores).min(files);
        let (mut left, mut ends) = (0.0_f64, Vec::new());
        for _ in 0..periods {
            let mut written = 0.0;
            for at in 0..steps {
                let now = (f64::from(at) + 0.5) * step;
                let busy = now < burst;
                // With maps at close, all bytes arrive at the end of the burst; with maps on write, they arrive as they are written.
                let come = match (busy, case.on_write) {
                    (true, true) => (now / burst).min(1.0) * total,
                    (true, false) => 0.0,
                    (false, _) => total,
                };
                left += come - written;
                written = come;
                let part = match (busy, case.on_write && now >= case.held.get()) {
                    (true, true) => 1.0 - case.share,
                    (true, false) => 0.0,
                    (false, _) => 1.0,
                };
                left = (left - step * cores * part).max(0.0);
            }
            ends.push(left / total * each);
        }
        ends
    }

    proptest! {
        /// The advice gives the same unmapped bytes after each period, or none, as a simulation of small time steps.
        #[test]
        fn hook_advice_matches_simulation_in_small_steps(
            burst in 1e8..1e11_f64, every in 5.0..100.0_f64, part in 0.05..0.95_f64, rate in 1e7..5e9_f64, files in 1_u32..100,
            nodes in 1_u32..8, cores in 1_u32..16, on_write: bool, share in 0.0..0.99_f64,
        ) {
            let each = burst / f64::from(nodes);
            let case = HookCase {
                burst: Bytes::new(burst), files, every: Seconds::new(every), nodes, cores, on_write, share,
                write: BytesPerSecond::new(each / (every * part)),
                rate: BytesPerSecond::new(rate),
                start: Seconds::new(0.01),
                ..case()
            };
            let advice = advise_hook(&case).unwrap();
            let walked = stepped(&case, 3, 20_000);
            // The rest of one burst adds to the rest of the next one; both have the same steps.
            let tolerance = each * 1e-3 + 2e-4 * every * rate * f64::from(cores);
            let behind = advice.behind_bytes.get();
            if behind > tolerance {
                prop_assert!(!advice.keeps_up);
                for (count, left) in (1..).zip(&walked) {
                    let expected = behind * f64::from(count);
                    // Maps with a backlog work in moments in which they would otherwise wait for bytes: the backlog is never larger than
                    // expected.
                    prop_assert!((left - expected).abs() <= tolerance * f64::from(count) || *left < expected, "{left} is not {expected}");
                }
                prop_assert!((walked[0] - behind).abs() <= tolerance, "{} is not {behind}", walked[0]);
            } else {
                prop_assert!(walked.iter().all(|left| *left <= 2.0 * tolerance), "{walked:?}");
            }
            if let Some(needed) = advice.cores_needed {
                let with = |cores| advise_hook(&HookCase { cores, ..case }).unwrap();
                prop_assert!(!with(needed).lacks.contains(&TierShortage::Cores));
                prop_assert!(needed == 1 || with(needed - 1).lacks.contains(&TierShortage::Cores));
            }
        }
    }
}
