//! What share of a processor one more kernel would have now: found by running one that only computes for a moment.
//!
//! Nothing else tells: who else wants a processor, at which priority, in which session and in which control group of
//! what limits, all count, and this kernel is started as others are.

use crate::launcher::Launcher;
use crate::private::remove_folder;
use crate::run::{Code, End, Limits, Run, User};
use std::path::PathBuf;
use std::time::Duration;

/// How long it computes: some dozen turns where several take turns on a processor.
pub const PROBE_TIME: Duration = Duration::from_millis(150);

/// More than this is a whole processor: starting takes a moment of the time, too.
const WHOLE: f64 = 0.95;

/// A kernel that had no turn in the whole time is told to have this much: it will have one.
const LEAST: f64 = 0.001;

/// The program that computes.
const SHELL: &str = "sh";

/// Why the share can't be told.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// There is nothing to run.
    #[error("there is no program `{SHELL}` here")]
    NoShell,
    /// It could not be prepared.
    #[error(transparent)]
    Prepare(#[from] crate::PrepareError),
    /// It could not be started.
    #[error(transparent)]
    Spawn(#[from] crate::SpawnError),
    /// It can't be told how it ended.
    #[error("can't tell how it ended: {0}")]
    Wait(#[from] std::io::Error),
    /// It did not compute for as long as it should have.
    #[error("{0}")]
    Ended(String),
}

impl Launcher {
    /// The share of a processor, more than 0 and up to 1, that one more kernel of a user has now. `folder` is its private
    /// one, which must not exist and is removed. Takes [`PROBE_TIME`] and blocks.
    ///
    /// # Errors
    /// If no kernel can be run here.
    pub fn probe(&self, folder: PathBuf, user: Option<User>) -> Result<f64, ProbeError> {
        let shell = self.find_program(SHELL).ok_or(ProbeError::NoShell)?;
        let mut run = Run::new(Code::Program(shell), folder.clone());
        run.args = vec!["-c".to_owned(), "while :; do :; done".to_owned()];
        run.user = user;
        run.limits = Limits {
            time: PROBE_TIME,
            ..Limits::default()
        };
        let foreign = folder.symlink_metadata().is_ok();
        let share = self.share_of(run);
        if !foreign && let Err(error) = remove_folder(&folder) {
            tracing::warn!(folder = %folder.display(), %error, "the folder of a probe can't be removed");
        }
        share
    }

    fn share_of(&self, run: Run) -> Result<f64, ProbeError> {
        let prepared = self.prepare(run)?;
        let exit = self.spawn(&prepared)?.wait()?;
        if exit.end != End::TimeLimit {
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
