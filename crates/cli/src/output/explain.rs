//! Reasons for the placement of tasks.

use super::energy::Energy;
use super::table::{Text, columns};
use super::{Report, given, list, maybe, records};
use crate::format::{self, Bytes, Span};
use tidemill_wire::v1;

records! {
    /// Decisions of the scheduler.
    Decisions { decisions: Vec<Decision> }

    /// Decision to run a task on a node.
    Decision from of: v1::Decision {
        task: u64, name: String,
        /// Id of the unit of work.
        label: u64,
        node: u32, policy: String, reason: String,
        /// Whether the task was sent along with a task that it depends on.
        chained: bool,
        /// Task and job whose cached result was used; null if the task ran.
        reused_task: Option<u64> = given(&of.reused_task),
        reused_job: Option<u64> = (of.reused_task != 0).then_some(of.reused_job),
        /// Bytes of inputs that were fetched from other nodes.
        transferred_bytes: Bytes,
        /// Number of outputs for other tasks of the job that were requested in memory.
        memory_outputs: u64,
        in_memory_bytes: Bytes,
        /// Number of streaming inputs, and of those that were read while they were written.
        streaming: u32,
        streamed: u32,
        energy: Option<Energy> = maybe(&of.energy),
        /// Paths of the inputs.
        inputs: Vec<String>,
        /// Selected part of each input; empty for a whole file.
        selections: Vec<String>,
        estimates: Vec<Estimate> = of.estimates.iter().map(|one| Estimate::of(one, of.node)).collect(),
    }

    /// Estimate of a task on a node, at the time of the decision.
    Estimate {
        node: u32,
        /// Time until a core is free.
        wait_ns: Span,
        transfer_ns: Span, transfer_bytes: Bytes,
        /// Time of the run; 0 if the kernel has not run on the node before.
        run_ns: Span,
        #[serde(skip)]
        chosen: bool,
    }
}

columns! { one: Estimate {
    right "  NODE" => format!("  {}", one.node),
    right "WAIT" => one.wait_ns,
    right "TRANSFER" => one.transfer_bytes,
    right "TIME" => one.transfer_ns,
    right "RUN" => if one.run_ns.0 == 0 { "?".to_owned() } else { one.run_ns.to_string() },
    right "TOTAL" => Span(one.wait_ns.0 + one.transfer_ns.0 + one.run_ns.0),
    left "CHOICE" => if one.chosen { "chosen" } else { "" },
} }

impl Estimate {
    fn of(one: &v1::Estimate, chosen: u32) -> Self {
        Self {
            node: one.node,
            wait_ns: Span(one.wait_ns),
            transfer_ns: Span(one.transfer_ns),
            transfer_bytes: Bytes(one.transfer_bytes),
            run_ns: Span(one.run_ns),
            chosen: one.node == chosen,
        }
    }
}

impl From<Vec<v1::Decision>> for Decisions {
    fn from(all: Vec<v1::Decision>) -> Self {
        Self {
            decisions: list(&all),
        }
    }
}

impl Report for Decisions {
    fn text(&self, out: &mut Text) {
        if self.decisions.is_empty() {
            return writeln!(
                out,
                "no task has been sent to a node yet; `tidemill job show ID` shows the inputs that tasks wait for"
            );
        }
        for decision in &self.decisions {
            writeln!(
                out,
                "{} -> node {} ({})",
                decision.name, decision.node, decision.policy
            );
            writeln!(out, "  why    {}", decision.reason);
            decision.notes(out);
            if !decision.estimates.is_empty() {
                out.table(&decision.estimates);
            }
            writeln!(out);
        }
        writeln!(
            out,
            "WAIT, TRANSFER and RUN are estimates from when the task was sent; ? where the kernel had not run before."
        );
    }
}

impl Decision {
    fn notes(&self, out: &mut Text) {
        let some = self.inputs.iter().zip(&self.selections);
        for (input, selection) in some.filter(|(_, selection)| !selection.is_empty()) {
            writeln!(out, "  reads  {input}, {selection}");
        }
        if self.chained {
            writeln!(
                out,
                "  chain  sent along with a task it depends on; the node went on without asking"
            );
        }
        if let (Some(task), Some(job)) = (self.reused_task, self.reused_job) {
            writeln!(
                out,
                "  reused the result of task {task} of job {job}: same kernel, arguments and inputs, so nothing was run"
            );
        }
        writeln!(
            out,
            "  inputs {} fetched from other nodes (measured)",
            self.transferred_bytes
        );
        if let Some(energy) = self.energy.as_ref().and_then(Energy::text) {
            writeln!(out, "  energy {energy}");
        }
        let outputs = format::count(self.memory_outputs, "output");
        match (self.memory_outputs, self.in_memory_bytes) {
            (0, _) => {}
            (_, Bytes(0)) => writeln!(
                out,
                "  memory {outputs} for other tasks of the job, not in memory: the node had no memory for them, or no space in it"
            ),
            (_, bytes) => writeln!(
                out,
                "  memory {outputs} for other tasks of the job, {bytes} of it in the memory of the node"
            ),
        }
        match (self.streaming, format::count(self.streamed, "input")) {
            (0, _) => {}
            (_, _) if self.streamed == 0 => writeln!(
                out,
                "  stream no input while the task that made it ran: that task had ended, was on another node, or left no free core; \
                 or streaming failed, as `tidemill job logs` reports"
            ),
            (_, streamed) => writeln!(out, "  stream {streamed} while the task that made it ran"),
        }
    }
}
