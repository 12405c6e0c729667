//! Can the burst tier map what is written there before the next burst comes? The question of Active Flash (FAST 2013, §3.3: analysis
//! must end within the interval), asked of a hook: of each of the elements that share a burst, with what maps leave to who writes.
//! The equations are numbered H1 to H7 as in `docs/advisor.md`.

use crate::units::{Bytes, BytesPerSecond, Seconds};
use serde::Serialize;
use thiserror::Error;

/// What is asked. Bytes and files are of one burst, over all elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HookCase {
    /// What a burst writes.
    pub burst: Bytes,
    /// In how many files.
    pub files: u32,
    /// From the beginning of one burst to that of the next.
    pub every: Seconds,
    /// What programs write into one element.
    pub write: BytesPerSecond,
    /// Elements of the tier that share it.
    pub elements: u32,
    /// Cores of one that run maps.
    pub cores: u32,
    /// Input per second of the map on one free core.
    pub rate: BytesPerSecond,
    /// What a map takes over next to nothing.
    pub start: Seconds,
    /// Whether maps run while files are written; else when they are closed, which is when the burst ends.
    pub on_write: bool,
    /// Part of the processors that maps leave to who writes, 0 to below 1.
    pub share: f64,
    /// How long they wait at the beginning of a burst.
    pub held: Seconds,
    /// What leaves the tier of each byte that is written: 1 if files stay, what maps make of it if only results do.
    pub leaves: f64,
    /// How fast that drains from one element, if it is known.
    pub drain: Option<BytesPerSecond>,
    /// Room for bursts on one element, if it is known.
    pub room: Option<Bytes>,
}

/// Why the tier can't keep up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lack {
    /// A burst takes longer than the time to the next one.
    Writing,
    /// Maps of a burst have not ended when the next one comes.
    Cores,
    /// What leaves the tier has not when the next burst comes.
    Draining,
    /// A burst does not fit.
    Room,
}

/// The answer, for one element.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HookAdvice {
    /// Whether all is done before the next burst comes.
    pub keeps_up: bool,
    /// Why not.
    pub lacks: Vec<Lack>,
    /// How long a burst takes (H1).
    pub burst_seconds: Seconds,
    /// What its maps take, in time of one core (H2).
    pub work_seconds: Seconds,
    /// What of that is done while it goes on (H4).
    pub done_in_burst_seconds: Seconds,
    /// From its beginning to the last result, if no map of an earlier one is left (H5).
    pub results_seconds: Seconds,
    /// Bytes that each burst adds to those that are not mapped (H6).
    pub behind_bytes: Bytes,
    /// Bursts until the tier is full of them, if it gets full and its room is known (H6).
    pub bursts_until_full: Option<f64>,
    /// What has to drain from an element each second (H7).
    #[serde(rename = "drains_bytes_per_sec")]
    pub drains: BytesPerSecond,
    /// The fewest cores of an element with which maps keep up, if any number does (H5).
    pub cores_needed: Option<u32>,
}

/// A number that makes no sense.
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
            ("the number of elements", f64::from(self.elements)),
            ("the number of cores", f64::from(self.cores)),
        ];
        let drain = self.drain.map(|rate| ("the drain's rate", rate.get()));
        for (what, value) in above.into_iter().chain(drain) {
            if !(value > 0.0 && value.is_finite()) {
                return wrong(what, value, "it must be above zero and finite");
            }
        }
        let room = self.room.unwrap_or(Bytes::ZERO).get();
        let others = [
            ("the time to start a map", self.start.get()),
            ("the wait", self.held.get()),
            ("what leaves the tier of a byte", self.leaves),
            ("the room", room),
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

    /// Files of an element: the one with the most of them.
    fn files_each(&self) -> u32 {
        self.files.div_ceil(self.elements)
    }

    /// H3: a file has one core.
    fn used(&self, cores: u32) -> f64 {
        f64::from(cores.min(self.files_each()))
    }

    /// H4 and H5: what is done in the burst, and what can be after it.
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

/// Says whether the tier keeps up.
///
/// # Errors
/// A number of the case that makes no sense.
pub fn advise_hook(case: &HookCase) -> Result<HookAdvice, HookCaseError> {
    case.check()?;
    let each = case.burst / f64::from(case.elements);
    let burst = each / case.write;
    let work = each / case.rate + case.start * f64::from(case.files_each());
    let (within, after) = case.capacity(case.cores, burst);
    let done = Seconds::new(within.get().min(work.get()));
    let left = (work.get() - done.get() - after.get()).max(0.0);
    // Divisions of what comes out even may leave a rest.
    let left = if left > work.get() * 1e-9 { left } else { 0.0 };
    let behind = each * (left / work.get());
    let results = Seconds::new(burst.get() + (work.get() - done.get()) / case.used(case.cores));
    let drains = each * case.leaves / case.every;
    let mut lacks = Vec::new();
    let mut lack = |is: bool, lack| {
        if is {
            lacks.push(lack);
        }
    };
    lack(burst > case.every, Lack::Writing);
    lack(left > 0.0, Lack::Cores);
    lack(case.drain.is_some_and(|rate| drains > rate), Lack::Draining);
    lack(case.room.is_some_and(|room| each > room), Lack::Room);
    let enough = |cores: &u32| {
        let (within, after) = case.capacity(*cores, burst);
        within.get().min(work.get()) + after.get() >= work.get() * (1.0 - 1e-9)
    };
    Ok(HookAdvice {
        keeps_up: lacks.is_empty(),
        bursts_until_full: case.room.filter(|_| left > 0.0).map(|room| {
            let spare = (room.get() - each.get()).max(0.0);
            (spare / behind.get()).floor() + 1.0
        }),
        lacks,
        burst_seconds: burst,
        work_seconds: work,
        done_in_burst_seconds: done,
        results_seconds: results,
        behind_bytes: behind,
        drains,
        cores_needed: least(case.files_each(), enough),
    })
}

/// The least number up to one that is enough, as all above it are.
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

    /// 100 GB a minute into four elements at 2.5 GB/s each, mapped on four cores of 1 GB/s.
    fn case() -> HookCase {
        HookCase {
            burst: Bytes::new(100e9),
            files: 64,
            every: Seconds::new(60.0),
            write: BytesPerSecond::new(2.5e9),
            elements: 4,
            cores: 4,
            rate: BytesPerSecond::new(1e9),
            start: Seconds::new(0.0625),
            on_write: true,
            share: 0.9,
            held: Seconds::new(1.0),
            leaves: 1.0,
            drain: None,
            room: None,
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
        close(advice.drains.get(), 25e9 / 60.0);
        assert_eq!(advice.cores_needed, Some(1));

        // A tenth of the speed: 250 s of work, of which 3.6 s are done in the burst and 200 s after it.
        let slow = HookCase {
            rate: BytesPerSecond::new(1e8),
            start: Seconds::ZERO,
            room: Some(Bytes::new(50e9)),
            drain: Some(BytesPerSecond::new(1e8)),
            ..case()
        };
        let advice = advise_hook(&slow).unwrap();
        assert_eq!(advice.lacks, [Lack::Cores, Lack::Draining]);
        close(
            advice.behind_bytes.get(),
            25e9 * (250.0 - 3.6 - 200.0) / 250.0,
        );
        close(advice.bursts_until_full.unwrap(), 6.0);
        assert_eq!(advice.cores_needed, Some(5));
        // One file has one core.
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
        let room = Some(Bytes::new(24e9));
        let advice = advise_hook(&HookCase {
            every,
            room,
            ..case()
        })
        .unwrap();
        assert_eq!(advice.lacks, [Lack::Writing, Lack::Cores, Lack::Room]);
    }

    /// One element, step by step: bytes that were written, work that is left of each of many periods.
    fn stepped(case: &HookCase, periods: u32, steps: u32) -> Vec<f64> {
        let each = case.burst.get() / f64::from(case.elements);
        let files = f64::from(case.files.div_ceil(case.elements));
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
                // What is closed at the end comes at once; what is read as it grows, as it does.
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
        /// The remaining work after each period, or its absence, is the same as in a simulation of small time steps.
        #[test]
        fn hook_advice_matches_simulation_in_small_steps(
            burst in 1e8..1e11_f64, every in 5.0..100.0_f64, part in 0.05..0.95_f64, rate in 1e7..5e9_f64, files in 1_u32..100,
            elements in 1_u32..8, cores in 1_u32..16, on_write: bool, share in 0.0..0.99_f64,
        ) {
            let each = burst / f64::from(elements);
            let case = HookCase {
                burst: Bytes::new(burst), files, every: Seconds::new(every), elements, cores, on_write, share,
                write: BytesPerSecond::new(each / (every * part)),
                rate: BytesPerSecond::new(rate),
                start: Seconds::new(0.01),
                ..case()
            };
            let advice = advise_hook(&case).unwrap();
            let walked = stepped(&case, 3, 20_000);
            // What is left of one is beside what the next one leaves; both have the same steps.
            let tolerance = each * 1e-3 + 2e-4 * every * rate * f64::from(cores);
            let behind = advice.behind_bytes.get();
            if behind > tolerance {
                prop_assert!(!advice.keeps_up);
                for (count, left) in (1..).zip(&walked) {
                    let expected = behind * f64::from(count);
                    // Maps that are behind work in moments in which they would have waited for bytes: they are never further behind.
                    prop_assert!((left - expected).abs() <= tolerance * f64::from(count) || *left < expected, "{left} is not {expected}");
                }
                prop_assert!((walked[0] - behind).abs() <= tolerance, "{} is not {behind}", walked[0]);
            } else {
                prop_assert!(walked.iter().all(|left| *left <= 2.0 * tolerance), "{walked:?}");
            }
            if let Some(needed) = advice.cores_needed {
                let with = |cores| advise_hook(&HookCase { cores, ..case }).unwrap();
                prop_assert!(!with(needed).lacks.contains(&Lack::Cores));
                prop_assert!(needed == 1 || with(needed - 1).lacks.contains(&Lack::Cores));
            }
        }
    }
}
