//! Energy consumption of nodes: the power, measured or derived from the configuration, multiplied by the time for which the power was
//! known. Times of unknown power are not counted.

use super::nodes;
use crate::Connection;
use crate::fault::Fault;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tidemill_sched::elastic::NodePower;
use tokio::time::Instant;

/// Maximum time between two measurements of power. A longer time is not counted.
const GAP: Duration = Duration::from_secs(10);

/// Facts from which a node's present power is computed.
#[derive(Clone, Debug, Default)]
pub struct PowerFacts {
    /// Number of the node.
    pub node: u32,
    /// Configured power of the node, from which its power is estimated when no meter reading is available.
    pub power: NodePower,
    /// Number of running kernels; `cores` is the number of the node's cores.
    pub running: u32,
    /// Number of the node's cores, by which `running` is divided to estimate the load.
    pub cores: u32,
    /// Whether the node is connected to the server.
    pub up: bool,
    /// Whether the node is suspended.
    pub suspended: bool,
    /// Whether the node is being resumed, for which its power at full load is assumed.
    pub resuming: bool,
    /// Reading of a power meter in thousandths of a watt, and the meter's name; `None` without a meter.
    pub measured: Option<(u64, String)>,
}

/// Energy consumption of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drawn {
    /// Consumed energy in millionths of a joule.
    pub microjoules: u64,
    /// Time for which the power was known, in nanoseconds.
    pub counted_ns: u64,
    /// Source of the power values: a meter or the configuration.
    pub by: String,
}

/// Energy consumption of all nodes.
#[derive(Debug, Default)]
pub struct Energy {
    drawn: Mutex<BTreeMap<u32, Drawn>>,
    last: Mutex<Option<Instant>>,
}

const CONFIGURED: &str = "estimated by configured power";

impl PowerFacts {
    /// Returns the power in thousandths of a watt, and its source; `None` if the power is unknown.
    fn milliwatts(&self) -> Option<(u64, String)> {
        if let (true, Some((milli, by))) = (self.up, &self.measured) {
            return Some((*milli, by.clone()));
        }
        let power = self.power;
        let milli = match (self.up, self.resuming, self.suspended) {
            (true, ..) => power.at(self.running, self.cores)?,
            (_, true, _) => Some(power.busy_milli).filter(|&milli| milli > 0)?,
            (_, _, true) => Some(power.suspended_milli).filter(|&milli| milli > 0)?,
            _ => return None,
        };
        Some((milli, CONFIGURED.into()))
    }
}

impl Energy {
    /// Replaces the energy of all nodes in memory by the stored energy, after a restart of the server.
    pub fn restore(&self, db: &Connection) -> Result<(), Fault> {
        *self.drawn.lock() = nodes::energy(db)?;
        Ok(())
    }

    /// Adds the energy consumed since the last measurement.
    pub fn count(&self, draws: &[PowerFacts]) {
        let now = Instant::now();
        let Some(last) = self.last.lock().replace(now) else {
            return;
        };
        let since = now.saturating_duration_since(last);
        if since > GAP {
            return;
        }
        let nanos = u64::try_from(since.as_nanos()).unwrap_or(0);
        let mut all = self.drawn.lock();
        for draw in draws {
            let Some((milli, by)) = draw.milliwatts() else {
                continue;
            };
            let drawn = all.entry(draw.node).or_default();
            let micro = u128::from(milli) * u128::from(nanos) / 1_000_000;
            let micro = u64::try_from(micro).unwrap_or(u64::MAX);
            drawn.microjoules = drawn.microjoules.saturating_add(micro);
            drawn.counted_ns = drawn.counted_ns.saturating_add(nanos);
            if !drawn.by.contains(&by) && drawn.by.len() < 512 {
                let both = [drawn.by.as_str(), by.as_str()];
                let both = both.into_iter().filter(|one| !one.is_empty());
                drawn.by = both.collect::<Vec<_>>().join("; ");
            }
        }
    }

    /// Returns the energy that a node has consumed so far; `None` if its power was never known.
    pub fn of(&self, node: u32) -> Option<Drawn> {
        self.drawn.lock().get(&node).cloned()
    }

    /// Returns the energy that each node has consumed so far, by the number of the node.
    pub fn all(&self) -> BTreeMap<u32, Drawn> {
        self.drawn.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn energy_counts_known_power_only_and_names_its_source() {
        let energy = Energy::default();
        let power = NodePower {
            busy_milli: 100_000,
            idle_milli: 50_000,
            suspended_milli: 0,
        };
        let mut draw = PowerFacts {
            node: 3,
            power,
            running: 1,
            cores: 2,
            up: true,
            ..PowerFacts::default()
        };
        energy.count(std::slice::from_ref(&draw));
        assert_eq!(energy.of(3), None);
        let pass = |seconds| tokio::time::advance(Duration::from_secs(seconds));
        pass(2).await;
        energy.count(std::slice::from_ref(&draw));
        let half_busy = energy.of(3).unwrap();
        assert_eq!(half_busy.microjoules, 2 * 75_000_000);
        // The power is not configured for a suspended or offline node.
        for suspended in [true, false] {
            (draw.up, draw.suspended) = (false, suspended);
            pass(2).await;
            energy.count(std::slice::from_ref(&draw));
            assert_eq!(energy.of(3), Some(half_busy.clone()));
        }
        (draw.up, draw.measured) = (true, Some((10_000, "measured by `m`".into())));
        pass(1).await;
        energy.count(std::slice::from_ref(&draw));
        let after = energy.of(3).unwrap();
        assert_eq!(after.microjoules - half_busy.microjoules, 10_000_000);
        assert_eq!(after.counted_ns, 3_000_000_000);
        assert_eq!(after.by, format!("{CONFIGURED}; measured by `m`"));
        // The server did nothing for a while.
        pass(3600).await;
        energy.count(&[draw]);
        assert_eq!(energy.of(3), Some(after));
    }
}
