//! State of a node in the dispatcher: its presence, its queue, and the expected time of its work. It sends no actions.

use super::small_map::SmallMap;
use super::{LEFT_PART, QUEUE_FACTOR, QUEUE_FACTOR_MAX, QUEUE_MIN, QUEUE_TARGET};
use crate::score::{ScoreInputs, energy_class, share, speed_class};
use std::collections::BTreeMap;
use tidemill_model::event::{History, NodeView};
use tidemill_model::id::LabelId;
use tidemill_model::resources::{LIGHT_MAX, Needs};
use tidemill_model::time::{Span, Time};

/// Presence of a node in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// Objects or labels are recorded as stored on the node, but it has not connected yet.
    Expected,
    Up,
    /// The node is suspended and resumes when a task needs it.
    Suspended,
    Down,
}

/// State of one node in the dispatcher.
#[derive(Debug)]
pub(super) struct NodeState {
    pub(super) presence: Presence,
    /// Reported status of the node; the kernel histories of the status are moved to `Learned`.
    pub(super) view: NodeView,
    /// Labels that occupy a place in the node's queue.
    pub(super) outstanding: SmallMap<LabelId, Queued>,
    /// Running labels of the queue, with the times since which each label runs.
    pub(super) running: SmallMap<LabelId, (Time, Queued)>,
    /// Core time that the labels in `outstanding` are expected to take.
    pub(super) backlog: Span,
    /// Cores that `outstanding` and `running` need: the sum over all labels.
    load: u64,
    running_cores: u64,
    /// Number of labels in `outstanding` that need no core.
    light: usize,
    /// Resources that labels in `outstanding` need, for labels that need more than cores.
    choosy: BTreeMap<LabelId, Needs>,
    /// Labels in `outstanding` that can't begin before another label has ended, with the resources that count as needed from then on.
    following: BTreeMap<LabelId, Needs>,
    spent: Spent,
}

/// Label in a node's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Queued {
    /// Expected run time of the label.
    pub(super) expected: Span,
    /// Number of cores that the label takes during its run time.
    pub(super) cores: u32,
}

impl Queued {
    /// Returns the core time that the label takes.
    pub(super) fn work(self) -> Span {
        Span(self.expected.0.saturating_mul(self.cores.into()))
    }

    /// Returns the part of the label's expected core time that the label can use up by running.
    fn spendable(self) -> Span {
        Span(spendable(self.expected).0.saturating_mul(self.cores.into()))
    }

    /// Returns the core time that the label has used up since `start`.
    fn spent(self, start: Time, now: Time) -> u64 {
        let had = now.since(start).0.saturating_mul(self.cores.into());
        had.min(self.spendable().0)
    }
}

/// Core time that running labels have used up of their expected time, stored so that it need not be summed for every placed task.
#[derive(Debug, Default)]
struct Spent {
    /// Number of cores of running labels that are within their expected time.
    active: u64,
    /// Sum of the start times, one per core, of running labels within their expected time, modulo 2^64: elapsed times are small enough.
    starts_ns: u64,
    /// Core time that all other running labels have used up, in nanoseconds.
    over_ns: u64,
    /// First time at which the sums hold; they hold until a label exceeds its expected time.
    from: Time,
    until: Time,
}

impl NodeState {
    pub(super) fn new(presence: Presence, view: NodeView) -> Self {
        Self {
            presence,
            view,
            outstanding: SmallMap::default(),
            running: SmallMap::default(),
            backlog: Span::default(),
            load: 0,
            running_cores: 0,
            light: 0,
            choosy: BTreeMap::new(),
            following: BTreeMap::new(),
            spent: Spent::default(),
        }
    }

    pub(super) fn up(&self) -> bool {
        self.presence == Presence::Up
    }

    pub(super) fn cores(&self) -> usize {
        usize::try_from(self.view.offers.cores.max(1)).unwrap_or(usize::MAX)
    }

    /// Returns whether the node's queue accepts another label. The queue accepts a few labels per core. It accepts more while all queued
    /// labels are short, or while a core is free because queued labels wait for other labels.
    pub(super) fn has_space(&self) -> bool {
        let count = self.outstanding.len();
        let cores = self.cores();
        let few = count < self.few();
        let short = self.backlog.0 / (cores as u64) < QUEUE_TARGET.0;
        self.up() && (few || ((short || self.has_free_core()) && count < self.bound()))
    }

    /// Returns the number of labels that the node's queue accepts in any case.
    fn few(&self) -> usize {
        self.cores().saturating_mul(QUEUE_FACTOR).max(QUEUE_MIN)
    }

    /// Returns the minimum number of labels that the node's queue accepts now.
    pub(super) fn slots(&self) -> usize {
        if !self.has_space() {
            return 0;
        }
        self.few().saturating_sub(self.outstanding.len()).max(1)
    }

    /// Returns the inputs of the node's score: its reported properties and its load.
    pub(super) fn standing(&self) -> ScoreInputs {
        let queue = self.few() as u64;
        ScoreInputs {
            available: self.up() && self.has_free_core(),
            capacity: share(self.view.free_bytes, self.view.capacity_bytes),
            load: share(self.outstanding.len() as u64, queue),
            speed: speed_class(self.view.device_bytes_per_sec),
            energy: energy_class(self.view.watts_milli),
        }
    }

    /// Returns the maximum number of labels in the node's queue.
    pub(super) fn bound(&self) -> usize {
        self.cores().saturating_mul(QUEUE_FACTOR_MAX)
    }

    /// Returns the number of idle cores of the node.
    pub(super) fn idle_cores(&self) -> usize {
        if self.up() {
            let load = usize::try_from(self.load).unwrap_or(usize::MAX);
            self.cores().saturating_sub(load)
        } else {
            0
        }
    }

    /// Returns whether a label that needs one core and nothing else could run at once.
    pub(super) fn has_free_core(&self) -> bool {
        self.load < self.cores() as u64
    }

    /// Returns whether `cores` cores are free beyond the cores that queued labels need. Labels that follow other labels need no core yet.
    pub(super) fn has_space_for(&self, cores: u32) -> bool {
        self.load + u64::from(cores) <= self.cores() as u64
    }

    /// Returns whether running labels use more cores than the node has, for example after the node reported fewer cores.
    pub(super) fn overrun(&self) -> bool {
        self.running_cores > self.cores() as u64
    }

    /// Returns whether labels wait for resources that other labels of the node hold.
    pub(super) fn crowded(&self) -> bool {
        self.up()
            && (self.load > self.cores() as u64
                || self.light > LIGHT_MAX as usize
                || !self.choosy.is_empty() && self.is_short())
    }

    /// Returns whether the node's labels together need more memory, or more of a named resource, than the node offers.
    fn is_short(&self) -> bool {
        let offers = &self.view.offers;
        let memory = self.choosy.values().map(|needs| needs.memory_bytes);
        let memory = memory.fold(0, u64::saturating_add);
        let mut named = self.choosy.values().flat_map(|needs| needs.named.keys());
        offers.memory_bytes > 0 && memory > offers.memory_bytes
            || named.any(|name| self.needed(name) > offers.named.get(name).copied().unwrap_or(0))
    }

    /// Returns the amount of a named resource that the node's labels need together.
    fn needed(&self, name: &str) -> u64 {
        let needed = self
            .choosy
            .values()
            .filter_map(|needs| needs.named.get(name));
        needed.fold(0, |sum, amount| sum.saturating_add(*amount))
    }

    /// Returns the time until all resources that a label needs are free; `plain` is the result of [`Self::wait`].
    pub(super) fn wait_for(&self, needs: &Needs, plain: Span, now: Time) -> Span {
        let cores = match needs.cores {
            0 => self.wait_for_light(now),
            1 => plain,
            cores if self.load + u64::from(cores) <= self.cores() as u64 => Span::default(),
            // No label waits in front of this one: the wait lasts until running labels have ended, on average.
            _ if self.has_free_core() => {
                Span(self.backlog.0.saturating_sub(self.spent_now(now)) / self.load.max(1))
            }
            _ => plain,
        };
        let offers = &self.view.offers;
        let mut wait = cores;
        if needs.memory_bytes > 0 && offers.memory_bytes > 0 {
            let of = |other: &Needs| other.memory_bytes;
            wait = wait.max(self.wait_for_share(needs.memory_bytes, offers.memory_bytes, of, now));
        }
        for (name, &amount) in &needs.named {
            let offered = offers.named.get(name).copied().unwrap_or(0);
            let of = |other: &Needs| other.named.get(name).copied().unwrap_or(0);
            wait = wait.max(self.wait_for_share(amount, offered, of, now));
        }
        wait
    }

    /// Returns the time until a task that needs no core finds a place in the node's queue.
    fn wait_for_light(&self, now: Time) -> Span {
        if self.light < LIGHT_MAX as usize {
            return Span::default();
        }
        let light = self
            .outstanding
            .entries()
            .filter(|(_, queued)| queued.cores == 0);
        let left = light.map(|(label, _)| self.left(label, now));
        let left = left.fold(0_u128, |sum, left| sum + u128::from(left));
        Span(u64::try_from(left / u128::from(LIGHT_MAX)).unwrap_or(u64::MAX))
    }

    /// Returns the time until `amount` of the `offered` amount of a resource is free. `of` returns the amount that a label needs.
    fn wait_for_share(
        &self,
        amount: u64,
        offered: u64,
        of: impl Fn(&Needs) -> u64,
        now: Time,
    ) -> Span {
        let holders = || self.choosy.iter().map(|(&label, needs)| (label, of(needs)));
        let needed = holders().fold(amount, |sum, (_, of)| sum.saturating_add(of));
        if needed <= offered {
            return Span::default();
        }
        let left = holders().map(|(label, of)| u128::from(self.left(label, now)) * u128::from(of));
        let left = left.sum::<u128>() / u128::from(offered.max(1));
        Span(u64::try_from(left).unwrap_or(u64::MAX))
    }

    /// Returns the remaining expected time of a label, in nanoseconds.
    fn left(&self, label: LabelId, now: Time) -> u64 {
        let expected = self
            .outstanding
            .get(label)
            .copied()
            .unwrap_or_default()
            .expected;
        let had = self
            .running
            .get(label)
            .map(|(start, _)| now.since(*start).0);
        expected.0 - had.unwrap_or(0).min(spendable(expected).0)
    }

    /// Returns the time until a core of the node is free, as [`Self::wait`] does, but faster.
    pub(super) fn wait_now(&mut self, now: Time) -> Span {
        if self.has_free_core() {
            return Span::default();
        }
        if now < self.spent.from || now > self.spent.until {
            self.sum_up(now);
        }
        let now_all = self.spent.active.wrapping_mul(now.0);
        let active = now_all.wrapping_sub(self.spent.starts_ns);
        let spent = active.saturating_add(self.spent.over_ns);
        let wait = Span(self.backlog.0.saturating_sub(spent) / self.cores() as u64);
        debug_assert_eq!(
            wait,
            self.wait(now),
            "what running labels spent is summed up wrongly"
        );
        wait
    }

    fn sum_up(&mut self, now: Time) {
        let mut spent = Spent {
            from: now,
            until: Time(u64::MAX),
            ..Spent::default()
        };
        for &(start, queued) in self.running.values() {
            // Both sums grow per nanosecond by the number of cores.
            let end = start + spendable(queued.expected);
            if start > now {
                spent.until = spent.until.min(start);
            } else if end < now {
                spent.over_ns = spent.over_ns.saturating_add(queued.spent(start, now));
            } else if queued.cores > 0 {
                let cores = u64::from(queued.cores);
                spent.active += cores;
                spent.starts_ns = spent.starts_ns.wrapping_add(start.0.wrapping_mul(cores));
                spent.until = spent.until.min(end);
            }
        }
        self.spent = spent;
    }

    /// Returns whether the last computed wait of the node stays constant as time passes.
    pub(super) fn wait_is_constant(&self) -> bool {
        self.spent.active == 0 && self.spent.until == Time(u64::MAX)
    }

    /// Returns the time until a core of the node is free (see the policy `min-wait` for the equation).
    pub(super) fn wait(&self, now: Time) -> Span {
        if self.has_free_core() {
            return Span::default();
        }
        Span(self.backlog.0.saturating_sub(self.spent_now(now)) / self.cores() as u64)
    }

    /// Returns the time until all labels of the node have ended, if the needed cores share the work equally.
    pub(super) fn all_left(&self, now: Time) -> Span {
        let cores = self.cores().min(self.outstanding.len().max(1));
        Span(self.backlog.0.saturating_sub(self.spent_now(now)) / cores as u64)
    }

    fn spent_now(&self, now: Time) -> u64 {
        let running = self.running.values();
        let spent = running.map(|(start, queued)| queued.spent(*start, now));
        spent.fold(0, u64::saturating_add)
    }

    /// Records that a label has started to run on the node.
    pub(super) fn start(&mut self, label: LabelId, now: Time) {
        self.follows_no_more(label);
        let queued = self.outstanding.get(label).copied().unwrap_or_default();
        if let Some((_, old)) = self.running.insert(label, (now, queued)) {
            self.running_cores -= u64::from(old.cores);
        }
        self.running_cores += u64::from(queued.cores);
        self.spent.from = Time(u64::MAX);
    }

    /// Adds a label to the node's queue. A label that `follows` another label takes no resources before the other label has ended.
    pub(super) fn add(&mut self, label: LabelId, expected: Span, needs: Needs, follows: bool) {
        let cores = needs.cores;
        let queued = Queued { expected, cores };
        if self.outstanding.insert(label, queued).is_some() {
            return;
        }
        self.backlog = self.backlog + queued.work();
        if follows {
            self.following.insert(label, needs);
        } else {
            self.count(label, needs);
        }
    }

    /// Counts the resources that a label needs.
    fn count(&mut self, label: LabelId, needs: Needs) {
        self.load += u64::from(needs.cores);
        self.light += usize::from(needs.cores == 0);
        if !needs.only_cores() {
            self.choosy.insert(label, needs);
        }
    }

    /// Records that the label before `label` has ended: `label` runs as soon as its resources are free. Returns whether it followed any.
    pub(super) fn follows_no_more(&mut self, label: LabelId) -> bool {
        let needs = self.following.remove(&label);
        needs.map(|needs| self.count(label, needs)).is_some()
    }

    /// Returns whether a label waits for another label of the node's queue.
    pub(super) fn follows(&self, label: LabelId) -> bool {
        self.following.contains_key(&label)
    }

    /// Changes the expected run time of a label.
    pub(super) fn expect(&mut self, label: LabelId, expected: Span) {
        let Some(known) = self.outstanding.get(label).copied() else {
            return;
        };
        let queued = Queued { expected, ..known };
        self.outstanding.insert(label, queued);
        self.backlog = Span(self.backlog.0.saturating_sub(known.work().0)) + queued.work();
        if let Some((start, _)) = self.running.get(label).copied() {
            self.running.insert(label, (start, queued));
            self.spent.from = Time(u64::MAX);
        }
    }

    /// Removes a label from the node's queue. Returns whether the queue contained the label.
    pub(super) fn remove(&mut self, label: LabelId) -> bool {
        if let Some((_, queued)) = self.running.remove(label) {
            self.running_cores -= u64::from(queued.cores);
            // The sums are recomputed at the next query.
            self.spent.from = Time(u64::MAX);
        }
        let removed = self.outstanding.remove(label);
        if let Some(queued) = removed {
            self.backlog = Span(self.backlog.0.saturating_sub(queued.work().0));
            if self.following.remove(&label).is_none() {
                self.load -= u64::from(queued.cores);
                self.light -= usize::from(queued.cores == 0);
                self.choosy.remove(&label);
            }
        }
        removed.is_some()
    }

    /// Returns the cores that the node's labels need and the number of labels without a core, for checks of invariants.
    pub(super) fn counted(&self) -> (u64, u64, usize) {
        (self.load, self.running_cores, self.light)
    }
}

/// Returns the part of a label's expected time that the label can use up by running.
fn spendable(expected: Span) -> Span {
    Span(expected.0 - expected.0 / LEFT_PART)
}

/// Returns the expected time of a kernel run over `input_bytes` bytes: the mean of past runs, scaled by the size of the inputs. The scale
/// is limited to a factor of four, since a kernel's start does not shrink with its input and few kernels grow faster than their input.
/// Returns `None` without a history.
#[must_use]
pub fn expected_run(history: &History, input_bytes: u64) -> Option<Span> {
    Some(Mean::of(history)?.scaled(input_bytes))
}

/// Mean run time and mean input size of past runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mean {
    ns: u64,
    bytes: u64,
}

impl Mean {
    pub(super) fn of(history: &History) -> Option<Self> {
        Some(Self {
            ns: history.total_ns.checked_div(history.runs)?,
            bytes: history.input_bytes / history.runs,
        })
    }

    /// Returns the expected time of a run over `input_bytes` bytes; see [`expected_run`].
    pub(super) fn scaled(self, input_bytes: u64) -> Span {
        if self.bytes == 0 {
            return Span(self.ns);
        }
        let scaled = multiply_divide(self.ns, input_bytes, self.bytes);
        Span(scaled.clamp(self.ns / 4, self.ns.saturating_mul(4)))
    }
}

/// Returns the time that fetching bytes over a link takes.
pub(super) fn transfer(bytes: u64, bytes_per_sec: u64) -> Span {
    Span(multiply_divide(bytes, 1_000_000_000, bytes_per_sec.max(1)))
}

/// Returns `a * b / c`, or the largest number if the result is larger. Most products fit in 64 bits, where division is several times
/// faster.
fn multiply_divide(a: u64, b: u64, c: u64) -> u64 {
    if let Some(product) = a.checked_mul(b) {
        return product / c;
    }
    let wide = u128::from(a) * u128::from(b) / u128::from(c);
    u64::try_from(wide).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_run_scales_mean_by_size_within_factor_four() {
        let history = History {
            runs: 2,
            total_ns: 200,
            input_bytes: 20,
        };
        assert_eq!(expected_run(&history, 10), Some(Span(100)));
        assert_eq!(expected_run(&history, 20), Some(Span(200)));
        assert_eq!(expected_run(&history, 1000), Some(Span(400)));
        assert_eq!(expected_run(&history, 0), Some(Span(25)));
        assert_eq!(expected_run(&History::default(), 10), None);
    }

    #[test]
    fn transfer_time_is_bytes_over_rate_even_at_rate_zero() {
        assert_eq!(transfer(125_000_000, 125_000_000), Span::from_secs(1));
        assert_eq!(transfer(5, 0), Span::from_secs(5));
    }
}
