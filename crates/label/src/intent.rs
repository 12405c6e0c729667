//! What an application wants most: how long its labels are gathered, and when its files are closed.

use std::time::Duration;

/// What an application wants most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Intent {
    /// Nothing in particular.
    #[default]
    None,
    /// That others see soon what was written: files are closed as soon as they are written.
    LowLatency,
    /// That much is written: labels are gathered, and files stay open longer.
    Bandwidth,
    /// That little is woken: as for bandwidth, and the agent looks seldom.
    Energy,
}

/// What an intent means for the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Manner {
    /// A file that was not written for that long is closed, so that all see it.
    pub(crate) rest: Duration,
    /// How long labels that nobody waits for are gathered before they are carried out, unless they take so many bytes.
    pub(crate) gather: Duration,
    pub(crate) gather_bytes: u64,
}

const MANNERS: [(Intent, Manner); 4] = [
    (Intent::None, Manner::of(5, 0, 0)),
    (Intent::LowLatency, Manner::of(0, 0, 0)),
    (Intent::Bandwidth, Manner::of(100, 20, 4 << 20)),
    (Intent::Energy, Manner::of(1000, 250, 16 << 20)),
];

impl Manner {
    const fn of(rest_ms: u64, gather_ms: u64, gather_bytes: u64) -> Self {
        Self {
            rest: Duration::from_millis(rest_ms),
            gather: Duration::from_millis(gather_ms),
            gather_bytes,
        }
    }
}

impl Intent {
    /// By the number that stands for it.
    #[must_use]
    pub fn of(number: u32) -> Option<Self> {
        let all = MANNERS.iter().map(|(intent, _)| *intent);
        all.into_iter().find(|intent| *intent as u32 == number)
    }

    pub(crate) fn manner(self) -> Manner {
        let found = MANNERS.iter().find(|(intent, _)| *intent == self);
        found.map_or(MANNERS[0].1, |(_, manner)| *manner)
    }

    /// How the elements of its analyses are chosen, if they do not say.
    pub(crate) fn policy(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::LowLatency => Some("constraint:low-latency"),
            Self::Bandwidth => Some("constraint:bandwidth"),
            Self::Energy => Some("constraint:energy"),
        }
    }

    /// Its name, as it is shown.
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
