//! Applications that publish labels.

use super::{View, energy, table, write_table};
use crate::format;
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_core::display::line;
use tidemill_label::apps::{Application, Applications};
use tidemill_wire::v1;

/// Output of `tidemill async status`.
#[derive(Debug)]
pub(crate) struct AppsView(pub(crate) Applications);

impl View for AppsView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let header = [
            "APPLICATION",
            "PID",
            "STATE",
            "LABELS",
            "BYTES",
            "FAILED",
            "NOT DONE",
            "QUOTA",
            "MOUNT",
            "ENERGY",
        ];
        let mut rows = table(&header, &[1, 3, 4, 5, 6, 7]);
        for app in &self.0.applications {
            rows.add_row([
                line(&app.name),
                app.pid.to_string(),
                if app.runs { "runs" } else { "ended" }.into(),
                app.labels.to_string(),
                format::bytes(app.bytes),
                app.failed.to_string(),
                format::bytes(app.used),
                format::bytes(app.capacity),
                line(&app.mount.display().to_string()),
                energy::short(drew(app).as_ref()).unwrap_or_else(|| "-".into()),
            ]);
        }
        write_table(out, &rows)?;
        if self.0.applications.iter().any(|app| app.drew.runs > 0) {
            writeln!(
                out,
                "ENERGY is of the kernels of labels that analyse, {}.",
                energy::ESTIMATED
            )?;
        }
        if self.0.agent.is_none() && !self.0.applications.is_empty() {
            writeln!(
                out,
                "no agent runs: `tidemill async agent --detach` starts one, or the next application does"
            )?;
        }
        for path in &self.0.corrupt {
            let log = self.0.directory.join("agent.log");
            writeln!(
                out,
                "{} can't be carried out: see {}",
                path.display(),
                log.display()
            )?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let of = |app: &Application| {
            json!({
                "name": app.name,
                "pid": app.pid,
                "runs": app.runs,
                "labels": app.labels,
                "bytes": app.bytes,
                "failed": app.failed,
                "used": app.used,
                "capacity": app.capacity,
                "mount": app.mount,
                "energy": energy::value(drew(app).as_ref()),
            })
        };
        json!({
            "agent": self.0.agent,
            "directory": self.0.directory,
            "applications": self.0.applications.iter().map(of).collect::<Vec<_>>(),
            "corrupt": self.0.corrupt,
        })
    }
}

/// Returns the energy of an application; `None`: no kernel ran for it.
fn drew(app: &Application) -> Option<v1::Estimated> {
    let count = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    let estimated = v1::Estimated {
        microjoules: app.drew.microjoules,
        runs: count(app.drew.runs),
        unknown: count(app.drew.unknown),
    };
    (estimated.runs > 0 || estimated.unknown > 0).then_some(estimated)
}
