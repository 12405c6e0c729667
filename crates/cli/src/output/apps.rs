//! Applications that submit asynchronous I/O requests.

use super::energy::{self, ESTIMATED, Energy};
use super::table::{Text, columns};
use super::{Report, exact, list, records};
use crate::format::Bytes;
use tidemill_label::apps;
use tidemill_wire::v1;

records! {
    /// Applications with asynchronous I/O, and their agent.
    Applications from of: apps::Applications {
        /// Process id of the agent; null if no agent runs.
        agent: Option<u32>,
        /// Directory of the logs of requests, on this machine.
        directory: String = exact(&of.directory),
        applications: Vec<Application> = list(&of.applications),
        /// Logs of requests that can't be carried out.
        corrupt: Vec<String> = of.corrupt.iter().map(exact).collect(),
    }

    /// Application with asynchronous I/O.
    Application from app: apps::Application {
        name: String,
        /// Process id.
        pid: u32,
        runs: bool,
        /// Number of requests.
        labels: u64,
        bytes: Bytes,
        /// Number of failed requests.
        failed: u64,
        /// Bytes of the requests that are not done.
        used: Bytes,
        /// Quota of these bytes.
        capacity: Bytes,
        /// Mount point of the cluster.
        mount: String = exact(&app.mount),
        /// Energy of the kernels of requests that analyse.
        energy: Option<Energy> = drew(app),
    }
}

columns! { app: Application {
    left "APPLICATION" => app.name,
    right "PID" => app.pid,
    left "STATE" => if app.runs { "runs" } else { "ended" },
    right "LABELS" => app.labels,
    right "BYTES" => app.bytes,
    right "FAILED" => app.failed,
    right "NOT DONE" => app.used,
    right "QUOTA" => app.capacity,
    left "MOUNT" => app.mount,
    left "ENERGY" => energy::cell(&app.energy),
} }

impl Report for Applications {
    fn text(&self, out: &mut Text) {
        out.table(&self.applications);
        let known = |app: &Application| app.energy.as_ref().is_some_and(|energy| energy.runs > 0);
        if self.applications.iter().any(known) {
            writeln!(
                out,
                "ENERGY is of the kernels of labels that analyse, {ESTIMATED}."
            );
        }
        if self.agent.is_none() && !self.applications.is_empty() {
            writeln!(
                out,
                "no agent runs: `tidemill async agent --detach` starts one, or the next application does"
            );
        }
        for path in &self.corrupt {
            writeln!(
                out,
                "{path} can't be carried out: see {}/agent.log",
                self.directory
            );
        }
    }
}

/// Returns the energy of an application; `None`: no kernel ran for it.
fn drew(app: &apps::Application) -> Option<Energy> {
    let count = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    let estimated = v1::Estimated {
        microjoules: app.drew.microjoules,
        runs: count(app.drew.runs),
        unknown: count(app.drew.unknown),
    };
    (estimated.runs > 0 || estimated.unknown > 0).then(|| Energy::from(&estimated))
}
