//! Measures the share of a processor that one more kernel would have now: a kernel that only computes runs for a moment.
//!
//! No other source has this information: the competing processes, their priorities, sessions and control groups with their limits all
//! matter, and the probe is started like any other kernel.

use crate::launcher::Launcher;
use crate::private::remove_directory;
use crate::run::{CodeSource, Run, RunEnd, RunLimits, User};
use std::path::PathBuf;
use std::time::Duration;

/// Duration of the probe: several dozen time slices if several processes share a processor.
pub const PROBE_TIME: Duration = Duration::from_millis(150);

/// Minimum share that counts as a whole processor, because starting the probe takes a part of the time, too.
const WHOLE: f64 = 0.95;

/// Share that is reported for a probe that got no processor in the whole time: it would get one later.
const LEAST: f64 = 0.001;

/// Name of the program that computes during the probe.
const SHELL: &str = "sh";

/// Reason why the share of a processor cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The host has no shell for the probe.
    #[error("the program `{SHELL}` does not exist on this host")]
    NoShell,
    /// The run of the probe could not be prepared.
    #[error(transparent)]
    Prepare(#[from] crate::PrepareError),
    /// The run of the probe could not be started.
    #[error(transparent)]
    Spawn(#[from] crate::SpawnError),
    /// The operating system did not report how the probe ended.
    #[error("the end of the run is unknown: {0}")]
    Wait(#[from] std::io::Error),
    /// The probe ended before its time.
    #[error("{0}")]
    Ended(String),
}

impl Launcher {
    /// Returns the share of a processor, more than 0 and up to 1, that one more kernel of a user has now. `directory` is the probe's
    /// private directory, which must not exist and is removed. Takes [`PROBE_TIME`] and blocks.
    ///
    /// # Errors
    /// If no kernel can run on this host.
    pub fn probe(&self, directory: PathBuf, user: Option<User>) -> Result<f64, ProbeError> {
        let shell = self.find_program(SHELL).ok_or(ProbeError::NoShell)?;
        let mut run = Run::new(CodeSource::Program(shell), directory.clone());
        run.args = vec!["-c".to_owned(), "while :; do :; done".to_owned()];
        run.user = user;
        run.limits = RunLimits {
            time: PROBE_TIME,
            ..RunLimits::default()
        };
        let foreign = directory.symlink_metadata().is_ok();
        let share = self.share_of(run);
        if !foreign && let Err(error) = remove_directory(&directory) {
            tracing::warn!(directory = %directory.display(), %error, "the directory of a probe can't be removed");
        }
        share
    }

    fn share_of(&self, run: Run) -> Result<f64, ProbeError> {
        let prepared = self.prepare(run)?;
        let exit = self.spawn(&prepared)?.wait()?;
        if exit.end != RunEnd::TimeLimit {
            return Err(ProbeError::Ended(exit.message(&prepared.run().limits)));
        }
        let usage = exit.usage;
        let computed = (usage.user_cpu + usage.system_cpu).as_secs_f64();
        let share = computed / usage.wall.as_secs_f64();
        Ok(if share >= WHOLE {
            1.0
        } else {
            share.max(LEAST)
        })
    }
}
