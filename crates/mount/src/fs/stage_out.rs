//! Directories whose `fsync` waits until the files below them are staged out of the burst tier. It asks the server (next: `server/src`).

use super::backend::credentials;
use super::{Caller, Fs, deadline};
use crate::error::Error;
use rustix::io::Errno;
use std::time::{Duration, Instant};
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};

/// Maximum time that `fsync` waits while no file is staged out.
const STAGE_OUT_PATIENCE: Duration = Duration::from_secs(600);
/// Minimum pause before the progress is requested again; longer if the answer takes long, up to [`STAGE_OUT_PAUSE_MAX`].
const STAGE_OUT_PAUSE: Duration = Duration::from_millis(100);
const STAGE_OUT_PAUSE_MAX: Duration = Duration::from_secs(10);

impl Fs {
    /// Makes all acknowledged changes durable. If the directory's settings request it, also waits until the files below the directory are
    /// staged out of the burst tier.
    pub(crate) fn sync_directory(&self, caller: Caller, ino: u64) -> Result<(), Error> {
        let ops = vec![Op::StageOutWait(v1::StageOutWait { ino })];
        let answers = self.backend.apply(caller, ops, true)?;
        match answers.into_iter().next() {
            Some(Answer::Bytes(bytes)) if bytes.value == b"staged" => self.staged_out(caller, ino),
            // A directory that the caller cannot reach any more has no files to wait for.
            _ => Ok(()),
        }
    }

    /// Waits until all files that were closed below a directory are staged out.
    fn staged_out(&self, caller: Caller, ino: u64) -> Result<(), Error> {
        let mut request = v1::StageRequest {
            credentials: Some(credentials(caller)),
            directory: ino,
            ..v1::StageRequest::default()
        };
        let server = &self.backend.server;
        let mut least = (u64::MAX, u64::MAX);
        let mut end = deadline::now();
        loop {
            let asked = Instant::now();
            let staged = self.backend.ask_server(|| async {
                let staged = server.places().stage(request.clone()).await;
                staged.map_err(|status| server.explain(status))
            })?;
            let staged = staged.into_inner();
            if staged.objects == 0 {
                return Ok(());
            }
            // The call does not wait for files that are closed from now on.
            if request.until != staged.until {
                request.until = staged.until;
                least = (u64::MAX, u64::MAX);
            }
            if staged.objects < least.0 || staged.bytes < least.1 {
                least = (least.0.min(staged.objects), least.1.min(staged.bytes));
                end = deadline::now() + STAGE_OUT_PATIENCE;
            } else if deadline::now() >= end {
                tracing::warn!(
                    ino,
                    "a directory can't be synced: {} files in the burst tier are not staged out",
                    staged.objects
                );
                return Err(Errno::IO.into());
            }
            deadline::sleep((asked.elapsed() * 10).clamp(STAGE_OUT_PAUSE, STAGE_OUT_PAUSE_MAX));
            deadline::renew();
        }
    }
}
