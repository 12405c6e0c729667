//! Settings for suspending nodes, and the manager that suspends and resumes them. This is the worker manager of LABIOS (§3.3). Next:
//! `server/src/elastic/manager.rs`, which executes the decisions about [`Suspensions`](tidemill_meta::placement::suspensions::Suspensions).

mod command;
pub(crate) mod manager;

pub use command::{Commands, ShellCommand};

use std::collections::BTreeMap;
use std::time::Duration;
use tidemill_meta::placement::suspensions::span;
use tidemill_sched::elastic::ElasticLimits;

/// Settings for suspending the nodes of a cluster.
#[derive(Clone, Debug)]
pub struct Elastic {
    /// Idle time after which a node is suspended; `None`: nodes are suspended only on request.
    pub after: Option<Duration>,
    /// Commands that suspend and resume nodes without an entry in `each`.
    pub all: Commands,
    /// Commands that suspend and resume particular nodes, by node id.
    pub each: BTreeMap<u32, Commands>,
    /// Time limit for resuming a node.
    pub resume_limit: Duration,
}

impl Default for Elastic {
    fn default() -> Self {
        Self {
            after: None,
            all: Commands::default(),
            each: BTreeMap::new(),
            resume_limit: Duration::from_nanos(ElasticLimits::default().resume.0),
        }
    }
}

impl Elastic {
    /// Returns the commands that suspend and resume a node.
    fn commands(&self, node: u32) -> Commands {
        let own = self.each.get(&node).cloned().unwrap_or_default();
        Commands {
            suspend: own.suspend.or_else(|| self.all.suspend.clone()),
            resume: own.resume.or_else(|| self.all.resume.clone()),
        }
    }

    fn limits(&self) -> ElasticLimits {
        ElasticLimits {
            resume: span(self.resume_limit),
            ..ElasticLimits::default()
        }
    }
}
