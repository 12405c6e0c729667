//! Flows of bytes through shared devices and links.
//!
//! A flow uses up to four resources at once: a fetch uses its source's device and link and its target's link and device; a read or write
//! uses one device. Every resource gives equal shares to all flows that use it, and the rate of a flow is the least of its shares. The
//! unused part of a share, for a flow that is limited by another resource, is not given to other flows. So no resource is allocated twice,
//! and a change at one resource concerns only the flows that use it; with full max-min fairness it would affect the whole cluster.
//!
//! All numbers are integers: remaining bytes are stored in billionths, so that rates in bytes per second and times in nanoseconds multiply
//! exactly.

use super::clock::{Clock, PlannedEvent};
use tidemill_model::time::Time;

const BILLION: u128 = 1_000_000_000;

/// Maximum number of resources that a flow uses.
pub(super) const CROSSED_MAX: usize = 4;

/// Id of a flow: its slot, and the number of earlier uses of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FlowId {
    slot: u32,
    use_count: u32,
}

/// All resources and flows of a simulated cluster.
#[derive(Debug)]
pub(super) struct FlowNetwork {
    resources: Vec<Resource>,
    flows: Vec<ResourceFlow>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Resource {
    /// Rate of the resource, in bytes per second; `None` for no limit.
    bytes_per_sec: Option<u64>,
    flows: Vec<u32>,
}

#[derive(Debug)]
struct ResourceFlow {
    use_count: u32,
    /// Label for which the flow transfers bytes.
    label: u32,
    /// Maximum rate of the flow, in bytes per second.
    rate_max: u64,
    /// Resources that limit the flow, with the flow's index in the list of each resource.
    crossed: [(u32, u32); CROSSED_MAX],
    crossed_count: usize,
    /// Billionths of bytes that are left to transfer at `since`.
    left: u128,
    since: Time,
    /// Rate of the flow from `since` on, in bytes per second.
    rate: u64,
    /// Planned time on the clock at which the flow is checked; not after the flow's end.
    due: Time,
}

impl ResourceFlow {
    fn crossed(&self) -> &[(u32, u32)] {
        &self.crossed[..self.crossed_count]
    }

    fn end(&self) -> Time {
        let rate = u128::from(self.rate.max(1));
        let ns = self.left.div_ceil(rate);
        Time(
            self.since
                .0
                .saturating_add(u64::try_from(ns).unwrap_or(u64::MAX)),
        )
    }

    fn settle(&mut self, now: Time) {
        let gone = u128::from(now.since(self.since).0) * u128::from(self.rate);
        self.left = self.left.saturating_sub(gone);
        self.since = now;
    }
}

impl FlowNetwork {
    /// Returns a network with one resource for each rate in bytes per second, named by its index; `None` has no limit.
    pub(super) fn new(rates: impl Iterator<Item = Option<u64>>) -> Self {
        let resource = |bytes_per_sec| Resource {
            bytes_per_sec,
            flows: Vec::new(),
        };
        Self {
            resources: rates.map(resource).collect(),
            flows: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Starts a flow for a label with at most `rate_max` bytes per second. Returns whether the flow takes time. Plans the time at which the
    /// flow may have ended on the clock.
    pub(super) fn start(
        &mut self,
        (label, rate_max): (u32, u64),
        bytes: u64,
        crossed: &[u32],
        clock: &mut Clock,
    ) -> bool {
        let limits = |resource: &u32| self.resources[*resource as usize].bytes_per_sec.is_some();
        if bytes == 0 || !crossed.iter().any(limits) {
            return false;
        }
        let slot = self.slot(label, bytes, clock.now());
        self.flows[slot as usize].rate_max = rate_max;
        for &resource in crossed {
            let Some(shared) = self.resources.get_mut(resource as usize) else {
                continue;
            };
            if shared.bytes_per_sec.is_none() {
                continue;
            }
            let flow = &mut self.flows[slot as usize];
            let place = u32::try_from(shared.flows.len()).unwrap_or(u32::MAX);
            flow.crossed[flow.crossed_count] = (resource, place);
            flow.crossed_count += 1;
            shared.flows.push(slot);
        }
        self.share(slot, clock);
        true
    }

    fn slot(&mut self, label: u32, bytes: u64, now: Time) -> u32 {
        let flow = ResourceFlow {
            use_count: 0,
            label,
            rate_max: u64::MAX,
            crossed: [(0, 0); CROSSED_MAX],
            crossed_count: 0,
            left: u128::from(bytes) * BILLION,
            since: now,
            rate: 0,
            due: Time(u64::MAX),
        };
        if let Some(slot) = self.free.pop() {
            let old = &mut self.flows[slot as usize];
            let use_count = old.use_count.wrapping_add(1);
            *old = ResourceFlow { use_count, ..flow };
            return slot;
        }
        self.flows.push(flow);
        u32::try_from(self.flows.len() - 1).unwrap_or(u32::MAX)
    }

    /// Handles the planned time of a flow. Returns the label if the flow has ended, and whether the planned time was still valid.
    pub(super) fn on_due(&mut self, id: FlowId, clock: &mut Clock) -> (Option<u32>, bool) {
        let now = clock.now();
        let flow = &mut self.flows[id.slot as usize];
        if flow.use_count != id.use_count || flow.due != now {
            return (None, false);
        }
        let end = flow.end();
        if end > now {
            flow.due = end;
            clock.plan(end, PlannedEvent::Flow(id));
            return (None, true);
        }
        let label = flow.label;
        flow.due = Time(u64::MAX);
        self.leave(id.slot);
        self.share(id.slot, clock);
        let flow = &mut self.flows[id.slot as usize];
        flow.crossed_count = 0;
        self.free.push(id.slot);
        (Some(label), true)
    }

    fn leave(&mut self, slot: u32) {
        let flow = &self.flows[slot as usize];
        let (crossed, count) = (flow.crossed, flow.crossed_count);
        for &(resource, place) in &crossed[..count] {
            let members = &mut self.resources[resource as usize].flows;
            members.swap_remove(place as usize);
            if let Some(&moved) = members.get(place as usize) {
                let places = self.flows[moved as usize].crossed.iter_mut();
                for at in places.filter(|(other, _)| *other == resource) {
                    at.1 = place;
                }
            }
        }
    }

    /// Updates the rates of all flows that share a resource with a flow.
    fn share(&mut self, slot: u32, clock: &mut Clock) {
        let flow = &self.flows[slot as usize];
        let (crossed, count) = (flow.crossed, flow.crossed_count);
        for &(resource, _) in &crossed[..count] {
            for index in 0..self.resources[resource as usize].flows.len() {
                let other = self.resources[resource as usize].flows[index];
                self.retune(other, clock);
            }
        }
    }

    fn retune(&mut self, slot: u32, clock: &mut Clock) {
        let flow = &self.flows[slot as usize];
        let shares = flow.crossed().iter().filter_map(|&(resource, _)| {
            let shared = &self.resources[resource as usize];
            Some(shared.bytes_per_sec? / shared.flows.len().max(1) as u64)
        });
        let rate = shares.min().unwrap_or(u64::MAX);
        let rate = rate.min(flow.rate_max).max(1);
        let flow = &mut self.flows[slot as usize];
        if rate == flow.rate {
            return;
        }
        flow.settle(clock.now());
        flow.rate = rate;
        let end = flow.end();
        // A flow that has become slower is checked at its old end, and then planned again.
        if end < flow.due {
            flow.due = end;
            let id = FlowId {
                slot,
                use_count: flow.use_count,
            };
            clock.plan(end, PlannedEvent::Flow(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs flows of (start in seconds, bytes, resources) and returns the end of each flow, in milliseconds.
    fn run(rates: &[Option<u64>], flows: &[(u64, u64, &[u32])]) -> Vec<u64> {
        run_bounded(rates, flows, u64::MAX)
    }

    /// Runs flows like `run`, with a limit on the rate of each flow.
    fn run_bounded(rates: &[Option<u64>], flows: &[(u64, u64, &[u32])], rate_max: u64) -> Vec<u64> {
        let mut network = FlowNetwork::new(rates.iter().copied());
        let mut clock = Clock::default();
        let mut ends = vec![0; flows.len()];
        for (index, (start, ..)) in (0..).zip(flows) {
            clock.plan(Time(start * 1_000_000_000), PlannedEvent::Step(index));
        }
        while let Some(wake) = clock.next() {
            match wake {
                PlannedEvent::Step(index) => {
                    let (_, bytes, crossed) = flows[index as usize];
                    if !network.start((index, rate_max), bytes, crossed, &mut clock) {
                        ends[index as usize] = clock.now().0 / 1_000_000;
                    }
                }
                PlannedEvent::Flow(id) => {
                    if let (Some(label), _) = network.on_due(id, &mut clock) {
                        ends[label as usize] = clock.now().0 / 1_000_000;
                    }
                }
                PlannedEvent::Mail(_) | PlannedEvent::Look | PlannedEvent::Up(_) => {}
            }
        }
        assert!(network.resources.iter().all(|one| one.flows.is_empty()));
        ends
    }

    #[test]
    fn single_flow_has_rate_of_slowest_resource() {
        let rates = [Some(100), Some(50), None];
        assert_eq!(run(&rates, &[(0, 100, &[0])]), [1000]);
        assert_eq!(run(&rates, &[(0, 100, &[0, 1, 2])]), [2000]);
        assert_eq!(run(&rates, &[(1, 100, &[2]), (1, 0, &[0])]), [1000, 1000]);
    }

    #[test]
    fn flows_share_equally_and_speed_up_as_others_end() {
        // Both flows run at 50 for 2 s; then the second alone transfers its other 100 at 100.
        let ends = run(&[Some(100)], &[(0, 100, &[0]), (0, 200, &[0])]);
        assert_eq!(ends, [2000, 3000]);
        // The first flow runs alone for 1 s, then at half the rate: the remaining 100 of 200 take 2 s.
        let ends = run(&[Some(100)], &[(0, 200, &[0]), (1, 500, &[0])]);
        assert_eq!(ends, [3000, 7000]);
    }

    #[test]
    fn flow_never_exceeds_its_own_limit() {
        // Two tasks use two of three processors; then three tasks share two.
        assert_eq!(
            run_bounded(&[Some(30)], &[(0, 10, &[0]), (0, 20, &[0])], 10),
            [1000, 2000]
        );
        let three: [(u64, u64, &[u32]); 3] = [(0, 20, &[0]); 3];
        assert_eq!(run_bounded(&[Some(30)], &three, 15), [2000; 3]);
    }

    #[test]
    fn flow_limited_elsewhere_keeps_its_equal_share() {
        // The first flow has 10 of the second resource; its share of the first stays 50.
        let ends = run(&[Some(100), Some(10)], &[(0, 100, &[0, 1]), (0, 100, &[0])]);
        assert_eq!(ends, [10_000, 2000]);
    }

    #[test]
    fn many_flows_use_the_full_rate_of_a_resource() {
        let flows: Vec<(u64, u64, &[u32])> =
            (0..100).map(|i| (i % 7, 1000 + i, &[0_u32][..])).collect();
        let last = run(&[Some(977)], &flows).into_iter().max().unwrap();
        let bytes: u64 = flows.iter().map(|flow| flow.1).sum();
        // Shares are whole bytes per second, so at most one byte per flow and second is lost.
        let least = bytes * 1000 / 977;
        assert!(
            (least..=least * 977 / (977 - 100) + 1).contains(&last),
            "{last} {least}"
        );
    }
}
