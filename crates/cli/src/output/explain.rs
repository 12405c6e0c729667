//! Reasons for the placement of tasks.

use super::{View, energy, table, write_table};
use crate::format;
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_wire::v1;

/// Decisions of the dispatcher.
#[derive(Debug)]
pub(crate) struct ExplainView(pub(crate) Vec<v1::Decision>);

impl View for ExplainView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.0.is_empty() {
            return writeln!(
                out,
                "no task has been sent to a node yet; `tidemill job show ID` shows the inputs that tasks wait for"
            );
        }
        for decision in &self.0 {
            writeln!(
                out,
                "{} -> node {} ({})",
                decision.name, decision.node, decision.policy
            )?;
            writeln!(out, "  why    {}", decision.reason)?;
            write_selections(out, decision)?;
            if decision.chained {
                writeln!(
                    out,
                    "  chain  sent along with a task it depends on; the node went on without asking"
                )?;
            }
            if decision.reused_task != 0 {
                writeln!(
                    out,
                    "  reused the result of task {} of job {}: same kernel, arguments and inputs, so nothing was run",
                    decision.reused_task, decision.reused_job
                )?;
            }
            write_costs(out, decision)?;
            write_memory_outputs(out, decision)?;
            write_streamed(out, decision)?;
            if decision.estimates.is_empty() {
                writeln!(out)?;
                continue;
            }
            let mut rows = table(
                &["  NODE", "WAIT", "TRANSFER", "", "RUN", "TOTAL", ""],
                &[0, 1, 2, 3, 4, 5],
            );
            for estimate in &decision.estimates {
                let total = estimate.wait_ns + estimate.transfer_ns + estimate.run_ns;
                let chosen = estimate.node == decision.node;
                rows.add_row([
                    format!("  {}", estimate.node),
                    format::span(estimate.wait_ns),
                    format::bytes(estimate.transfer_bytes),
                    format::span(estimate.transfer_ns),
                    if estimate.run_ns == 0 {
                        "?".into()
                    } else {
                        format::span(estimate.run_ns)
                    },
                    format::span(total),
                    if chosen {
                        "chosen".into()
                    } else {
                        String::new()
                    },
                ]);
            }
            write_table(out, &rows)?;
            writeln!(out)?;
        }
        writeln!(
            out,
            "WAIT, TRANSFER and RUN are estimates from when the task was sent; ? where the kernel had not run before."
        )
    }

    fn json(&self) -> Value {
        json!({ "decisions": self.0.iter().map(decision_json).collect::<Vec<_>>() })
    }
}

fn write_costs(out: &mut dyn Write, decision: &v1::Decision) -> io::Result<()> {
    let fetched = format::bytes(decision.transferred_bytes);
    writeln!(
        out,
        "  inputs {fetched} fetched from other nodes (measured)"
    )?;
    match energy::text(decision.energy.as_ref()) {
        Some(energy) => writeln!(out, "  energy {energy}"),
        None => Ok(()),
    }
}

/// Writes the selected bytes of the inputs that a task reads only partly.
fn write_selections(out: &mut dyn Write, decision: &v1::Decision) -> io::Result<()> {
    let some = decision.inputs.iter().zip(&decision.selections);
    for (input, selection) in some.filter(|(_, selection)| !selection.is_empty()) {
        writeln!(out, "  reads  {input}, {selection}")?;
    }
    Ok(())
}

/// Writes the location of outputs for other tasks of the job, if they were requested in memory.
fn write_memory_outputs(out: &mut dyn Write, decision: &v1::Decision) -> io::Result<()> {
    let outputs = format::count(decision.memory_outputs, "output");
    match (decision.memory_outputs, decision.in_memory_bytes) {
        (0, _) => Ok(()),
        (_, 0) => writeln!(
            out,
            "  memory {outputs} for other tasks of the job, not in memory: the node had no memory for them, or no space in it"
        ),
        (_, bytes) => writeln!(
            out,
            "  memory {outputs} for other tasks of the job, {} of it in the memory of the node",
            format::bytes(bytes)
        ),
    }
}

/// Writes the number of streaming inputs that the task read while they were written, if it may read any.
fn write_streamed(out: &mut dyn Write, decision: &v1::Decision) -> io::Result<()> {
    let streamed = format::count(u64::from(decision.streamed), "input");
    match (decision.streaming, decision.streamed) {
        (0, _) => Ok(()),
        (_, 0) => writeln!(
            out,
            "  stream no input while the task that made it ran: that task had ended, was on another node, or left no free core; \
             or streaming failed, as `tidemill job logs` reports"
        ),
        (_, _) => writeln!(out, "  stream {streamed} while the task that made it ran"),
    }
}

fn decision_json(decision: &v1::Decision) -> Value {
    let estimate = |estimate: &v1::Estimate| {
        json!({
            "node": estimate.node,
            "wait_ns": estimate.wait_ns,
            "transfer_ns": estimate.transfer_ns,
            "transfer_bytes": estimate.transfer_bytes,
            "run_ns": estimate.run_ns,
        })
    };
    json!({
        "task": decision.task,
        "name": decision.name,
        "label": decision.label,
        "node": decision.node,
        "policy": decision.policy,
        "reason": decision.reason,
        "chained": decision.chained,
        "reused_task": (decision.reused_task != 0).then_some(decision.reused_task),
        "reused_job": (decision.reused_task != 0).then_some(decision.reused_job),
        "transferred_bytes": decision.transferred_bytes,
        "memory_outputs": decision.memory_outputs,
        "in_memory_bytes": decision.in_memory_bytes,
        "streaming": decision.streaming,
        "streamed": decision.streamed,
        "energy": energy::value(decision.energy.as_ref()),
        "inputs": decision.inputs,
        "selections": decision.selections,
        "estimates": decision.estimates.iter().map(estimate).collect::<Vec<_>>(),
    })
}
