//! QoS goals of an application: how long its labels are gathered, and when its files are closed.

use std::time::Duration;

/// QoS goal of an application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Intent {
    /// The application has no particular goal.
    #[default]
    None,
    /// Low latency: files are closed as soon as they are written, so that other clients see the bytes soon.
    LowLatency,
    /// High throughput: labels are gathered, and files stay open longer.
    Bandwidth,
    /// Few wake-ups: files and labels are handled as for [`Self::Bandwidth`], and the agent checks seldom.
    Energy,
}

/// Settings of the agent for an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AgentSettings {
    /// Idle time after which a file is closed, so that all clients see it.
    pub(crate) rest: Duration,
    /// Time for which labels are gathered before they are carried out, unless a call waits for them or they reach `gather_bytes`.
    pub(crate) gather: Duration,
    pub(crate) gather_bytes: u64,
}

const MANNERS: [(Intent, AgentSettings); 4] = [
    (Intent::None, AgentSettings::of(5, 0, 0)),
    (Intent::LowLatency, AgentSettings::of(0, 0, 0)),
    (Intent::Bandwidth, AgentSettings::of(100, 20, 4 << 20)),
    (Intent::Energy, AgentSettings::of(1000, 250, 16 << 20)),
];

impl AgentSettings {
    const fn of(rest_ms: u64, gather_ms: u64, gather_bytes: u64) -> Self {
        Self {
            rest: Duration::from_millis(rest_ms),
            gather: Duration::from_millis(gather_ms),
            gather_bytes,
        }
    }
}

impl Intent {
    /// Returns the intent with a number.
    #[must_use]
    pub fn of(number: u32) -> Option<Self> {
        let all = MANNERS.iter().map(|(intent, _)| *intent);
        all.into_iter().find(|intent| *intent as u32 == number)
    }

    pub(crate) fn manner(self) -> AgentSettings {
        let found = MANNERS.iter().find(|(intent, _)| *intent == self);
        found.map_or(MANNERS[0].1, |(_, manner)| *manner)
    }

    /// Returns the default placement policy of analyses of an application with this intent.
    pub(crate) fn policy(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::LowLatency => Some("constraint:low-latency"),
            Self::Bandwidth => Some("constraint:bandwidth"),
            Self::Energy => Some("constraint:energy"),
        }
    }

    /// Returns the name of the intent for users.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::LowLatency => "low-latency",
            Self::Bandwidth => "bandwidth",
            Self::Energy => "energy",
        }
    }
}
