//! Results of a simulation.

use super::{View, table, write_table};
use crate::format;
use serde_json::Value;
use std::io::{self, Write};
use tidemill_plan::sim::SimulationReport;

/// Simulated job.
#[derive(Debug)]
pub(crate) struct SimulationReportView {
    pub(crate) report: SimulationReport,
    /// Whether the text shows every task.
    pub(crate) tasks: bool,
}

impl View for SimulationReportView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        write!(out, "{}", self.report.text())?;
        if !self.tasks {
            return Ok(());
        }
        writeln!(out)?;
        let header = [
            "TASK", "KERNEL", "NODE", "CORE", "START", "FETCH", "READ", "COMPUTE", "WRITE", "END",
            "TRANSFER",
        ];
        let mut rows = table(&header, &[2, 3, 4, 5, 6, 7, 8, 9, 10]);
        for task in &self.report.tasks {
            rows.add_row([
                task.name.clone(),
                task.kernel.clone(),
                task.node.to_string(),
                numbers(&task.cores),
                format::span(task.start_ns),
                format::span(task.kernel_start_ns - task.start_ns),
                format::span(task.read_ns),
                format::span(task.compute_ns),
                format::span(task.write_ns),
                format::span(task.end_ns),
                format::bytes(task.transferred_bytes),
            ]);
        }
        write_table(out, &rows)
    }

    fn json(&self) -> Value {
        serde_json::to_value(&self.report).unwrap_or_default()
    }
}

/// Returns the numbers of cores, with ranges in short form.
fn numbers(cores: &[u32]) -> String {
    match cores {
        [] => "-".to_owned(),
        [first, .., last] if last - first + 1 == u32::try_from(cores.len()).unwrap_or(0) => {
            format!("{first}-{last}")
        }
        cores => {
            let cores = cores.iter().map(u32::to_string);
            cores.collect::<Vec<_>>().join(",")
        }
    }
}
