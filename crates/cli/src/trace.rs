//! Converts the server's record of a job into the trace that the simulator reads.

use crate::context::credentials;
use anyhow::Context as _;
use std::collections::BTreeMap;
use tidemill_client::Server;
use tidemill_model::replicas::INPUT_CACHE_BYTES_MAX;
use tidemill_model::resources::Needs;
use tidemill_plan::sim::trace::{
    FORMAT, Trace, TraceFile, TraceHistory, TraceKernelKind, TraceNode, TraceOutput, TracePart,
    TraceTask, VERSION,
};
use tidemill_sched::policy;
use tidemill_wire::convert::role_name;
use tidemill_wire::v1;

/// Fetches the trace of a job.
///
/// # Errors
/// If the caller may see no such job, the job has not succeeded, or the server lacks data about it.
pub(crate) async fn fetch(server: &Server, job: u64) -> anyhow::Result<Trace> {
    let request = v1::GetJobRequest {
        credentials: Some(credentials()),
        job,
    };
    let reply = server.answer(server.jobs().trace(request).await)?;
    trace(reply).with_context(|| format!("job {job} has no trace"))
}

/// Converts an answer of the server.
///
/// # Errors
/// If the answer is incomplete.
pub(crate) fn trace(reply: v1::JobTrace) -> anyhow::Result<Trace> {
    let job = reply.job.context("the server's answer is incomplete")?;
    anyhow::ensure!(
        !reply.nodes.is_empty(),
        "the job has no trace: no node was online when it was submitted, or the server's database was recovered since; submit it again"
    );
    // Histories use the kernel's name in the script; traces name stored code by its path.
    let names: BTreeMap<String, String> = job
        .tasks
        .iter()
        .zip(&reply.tasks)
        .map(|(task, traced)| (kernel(task, traced), task.kernel.clone()))
        .collect();
    let paths: BTreeMap<u64, String> = reply
        .files
        .iter()
        .map(|file| (file.object, file.path.clone()))
        .collect();
    let states = reply.nodes.iter().filter_map(|one| one.traced.as_ref());
    let random_state = states.filter_map(|state| state.source).next();
    let submitted = job.submitted;
    let policy = Some(job.policy).filter(|policy| !policy.is_empty());
    // A release that did not ask for programs lists none.
    let asked = reply.nodes.iter().any(|one| !one.programs.is_empty());
    let nodes = reply.nodes.iter().map(|one| {
        let programs = || one.programs.iter().cloned().collect();
        TraceNode {
            programs: asked.then(programs),
            ..node(one, &names, &paths)
        }
    });
    let files = reply.files.into_iter().map(|file| TraceFile {
        path: file.path,
        size_bytes: file.size,
        node: file.node,
        unit_bytes: file.layout.as_ref().map_or(0, |layout| layout.unit),
        parts: file.layout.map_or_else(Vec::new, parts),
    });
    let tasks = job.tasks.into_iter().zip(reply.tasks);
    Ok(Trace {
        format: FORMAT.to_owned(),
        version: VERSION,
        job: job.name,
        policy: policy.unwrap_or_else(|| policy::DEFAULT.to_owned()),
        submitted_ns: u64::try_from(submitted).unwrap_or(0),
        makespan_ns: since(submitted, job.ended),
        random_state,
        nodes: nodes.collect(),
        files: files.collect(),
        tasks: tasks
            .map(|(one, traced)| task(one, traced, submitted))
            .collect::<anyhow::Result<_>>()?,
    })
}

fn parts(layout: v1::Layout) -> Vec<TracePart> {
    let part = |part: v1::LayoutPart| TracePart {
        node: part.node,
        size_bytes: part.size,
    };
    layout.parts.into_iter().map(part).collect()
}

fn kernel(task: &v1::Task, traced: &v1::TracedTask) -> String {
    if matches!(traced.kernel_kind.as_str(), "native" | "wasm" | "stored") {
        traced.kernel_path.clone()
    } else {
        task.kernel.clone()
    }
}

fn node(
    node: &v1::Node,
    names: &BTreeMap<String, String>,
    paths: &BTreeMap<u64, String>,
) -> TraceNode {
    let state = node.traced.clone().unwrap_or_default();
    let replicas = state.replicas.iter().filter_map(|object| paths.get(object));
    let history = names.iter().filter_map(|(kernel, name)| {
        let known = node.history.get(name)?;
        let history = TraceHistory {
            runs: known.runs,
            total_ns: known.total_ns,
            input_bytes: known.input_bytes,
        };
        Some((kernel.clone(), history))
    });
    TraceNode {
        node: node.node,
        server_cores: node.role == role_name(tidemill_model::event::Role::ServerCores),
        cores: node.cores,
        memory_bytes: node.memory_bytes,
        resources: node.resources.clone(),
        programs: None,
        link_bytes_per_sec: node.link_bytes_per_sec,
        device_bytes_per_sec: node.device_bytes_per_sec,
        watts_milli: node.watts_milli,
        input_cache_bytes_max: INPUT_CACHE_BYTES_MAX,
        history: history.collect(),
        replicas: replicas.cloned().collect(),
        last_turn: state.last,
    }
}

fn task(task: v1::Task, traced: v1::TracedTask, submitted: i64) -> anyhow::Result<TraceTask> {
    let kernel_kind = match traced.kernel_kind.as_str() {
        "builtin" => TraceKernelKind::Builtin,
        "native" => TraceKernelKind::Native,
        "wasm" => TraceKernelKind::Wasm,
        "stored" => TraceKernelKind::Stored,
        "program" => TraceKernelKind::Program,
        "pipeline" => TraceKernelKind::Pipeline,
        other => anyhow::bail!(
            "task `{}` has a kernel of the unknown kind `{other}`",
            task.name
        ),
    };
    let at = |time| since(submitted, time);
    let outputs = task.outputs.iter().zip(traced.output_sizes.iter());
    let took = since(task.kernel_start, task.end);
    let reused = task.reused_task != 0;
    let needs = traced.needs.as_ref().map(Needs::from).unwrap_or_default();
    Ok(TraceTask {
        cores: needs.cores,
        memory_bytes: needs.memory_bytes,
        resources: needs.named,
        kernel: kernel(&task, &traced),
        kernel_kind,
        outputs: outputs
            .map(|(path, &size_bytes)| TraceOutput {
                path: path.clone(),
                size_bytes,
            })
            .collect(),
        pinned: traced.pinned,
        node: task.node,
        sent_ns: if traced.sent == 0 {
            at(task.start)
        } else {
            at(traced.sent)
        },
        start_ns: at(task.start),
        kernel_start_ns: at(task.kernel_start),
        end_ns: at(task.end),
        read_ns: 0,
        compute_ns: if reused { traced.run_ns } else { took },
        reused_ns: reused.then_some(took),
        write_ns: 0,
        hash_ns: task.hash_ns,
        cpu_ns: task.cpu_ns,
        transferred_bytes: task.transferred_bytes,
        name: task.name,
        inputs: task.inputs,
        selections: task.selections,
    })
}

/// Returns the nanoseconds between two times; 0 if the second is earlier, as clocks of hosts may disagree.
fn since(from: i64, to: i64) -> u64 {
    u64::try_from(to.saturating_sub(from)).unwrap_or(0)
}
