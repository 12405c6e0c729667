//! Conversions between messages and the types of the data model. An invalid message causes a [`ConvertError`]; no value is guessed.

use crate::v1;
use std::collections::BTreeMap;
use tidemill_model::event::{Decision, Estimate, History, JobState, NodeView, Role, TaskState};
use tidemill_model::id::{Inode, JobId, LabelId, NodeId, ObjectId, TaskId};
use tidemill_model::label as model;
use tidemill_model::layout::{
    Extents, Layout, Part, PartOf, Records, Selection, StripedLayout, decode_extents,
};
use tidemill_model::locks::{Lock, LockHolder, LockSpace};
use tidemill_model::resources::{NAMES_MAX, Needs, Offers, is_name};
use tidemill_model::runtime_environment::RuntimeEnvironment;
use tidemill_model::time::{Span, Time};

/// A message lacks a part or has a value that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message has no valid `{0}`: the peer speaks another version or is broken")]
pub struct ConvertError(pub &'static str);

/// Returns a time as nanoseconds since the Unix epoch, the form of messages.
#[must_use]
pub fn time_to_wire(time: Time) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}

/// Returns the time of nanoseconds since the Unix epoch in a message; times before the epoch become 0.
#[must_use]
pub fn time_from_wire(nanos: i64) -> Time {
    Time(u64::try_from(nanos).unwrap_or(0))
}

impl From<&Lock> for v1::Lock {
    fn from(lock: &Lock) -> Self {
        Self {
            whole_file: lock.owner.space == LockSpace::Files,
            owner: lock.owner.id,
            start: lock.start,
            end: lock.end,
            exclusive: lock.exclusive,
            pid: lock.pid,
            uid: lock.uid,
            ino: 0,
        }
    }
}

impl From<&v1::Lock> for Lock {
    /// Converts a lock of a mount. The mount that owns the lock is known from the sender.
    fn from(lock: &v1::Lock) -> Self {
        let space = if lock.whole_file {
            LockSpace::Files
        } else {
            LockSpace::Ranges
        };
        let owner = LockHolder {
            mount: 0,
            space,
            id: lock.owner,
        };
        Self {
            owner,
            start: lock.start,
            end: lock.end,
            exclusive: lock.exclusive,
            pid: lock.pid,
            uid: lock.uid,
        }
    }
}

impl From<&model::Label> for v1::Label {
    /// Converts a label for a message. The capabilities of its inputs stay empty; the server fills them in.
    fn from(label: &model::Label) -> Self {
        use v1::label::Operation;
        let operation = match &label.operation {
            model::Operation::Analyse(analysis) => Operation::Analyse(analyse(analysis)),
            model::Operation::Copy {
                from,
                to,
                part,
                mode,
            } => Operation::Copy(v1::Copy {
                mode: *mode,
                from: Some(input(from)),
                to: to.object.0,
                ino: to.inode.0,
                path: to.path.clone(),
                part: part.map(|part| v1::PartOf {
                    version: part.version.0,
                    index: part.index,
                    width: part.width,
                    unit: part.unit,
                }),
            }),
            model::Operation::Remove { objects } => Operation::Remove(v1::Remove {
                objects: objects.iter().map(|object| object.0).collect(),
            }),
            model::Operation::Verify {
                scrub,
                idle,
                objects,
            } => Operation::Verify(v1::Verify {
                scrub: *scrub,
                idle: *idle,
                objects: objects.iter().map(|object| object.0).collect(),
            }),
        };
        Self {
            id: label.id.0,
            uid: label.owner.uid,
            gid: label.owner.gid,
            after: label.after.iter().map(|id| id.0).collect(),
            operation: Some(operation),
        }
    }
}

impl From<&model::Kernel> for v1::Kernel {
    fn from(kernel: &model::Kernel) -> Self {
        use v1::kernel::Code;
        let stage = |stage: &model::Stage| v1::Stage {
            kernel: Some((&stage.kernel).into()),
            args: stage.args.clone(),
        };
        let code = match kernel {
            model::Kernel::Builtin(name) => Code::Builtin(name.clone()),
            model::Kernel::Native { input } => Code::Native(input.clone()),
            model::Kernel::Wasm { input } => Code::Wasm(input.clone()),
            model::Kernel::Stored { input } => Code::Stored(input.clone()),
            model::Kernel::Program(name) => Code::Program(name.clone()),
            model::Kernel::Pipeline(pipeline) => Code::Pipeline(v1::Pipeline {
                text: pipeline.text.clone(),
                stages: pipeline.stages.iter().map(stage).collect(),
            }),
        };
        Self { code: Some(code) }
    }
}

impl TryFrom<&v1::Kernel> for model::Kernel {
    type Error = ConvertError;

    fn try_from(kernel: &v1::Kernel) -> Result<Self, ConvertError> {
        use v1::kernel::Code;
        Ok(match kernel.code.as_ref().ok_or(ConvertError("kernel"))? {
            Code::Builtin(name) => Self::Builtin(name.clone()),
            Code::Native(input) => Self::Native {
                input: input.clone(),
            },
            Code::Wasm(input) => Self::Wasm {
                input: input.clone(),
            },
            Code::Stored(input) => Self::Stored {
                input: input.clone(),
            },
            Code::Program(name) => Self::Program(name.clone()),
            Code::Pipeline(pipeline) => {
                let stages = pipeline.stages.iter().map(stage);
                Self::Pipeline(Box::new(model::Pipeline {
                    text: pipeline.text.clone(),
                    stages: stages.collect::<Result<_, _>>()?,
                }))
            }
        })
    }
}

fn stage(stage: &v1::Stage) -> Result<model::Stage, ConvertError> {
    let kernel = stage.kernel.as_ref().ok_or(ConvertError("stage.kernel"))?;
    if matches!(kernel.code, Some(v1::kernel::Code::Pipeline(_))) {
        return Err(ConvertError("stage.kernel"));
    }
    Ok(model::Stage {
        kernel: kernel.try_into()?,
        args: stage.args.clone(),
    })
}

fn analyse(analysis: &model::Analysis) -> v1::Analyse {
    let output = |output: &model::LabelOutput| v1::Output {
        name: output.name.clone(),
        object: output.object.0,
        ino: output.inode.0,
        path: output.path.clone(),
        memory: output.memory,
    };
    v1::Analyse {
        task: analysis.task.0,
        job: analysis.job.0,
        name: analysis.name.clone(),
        kernel: Some((&analysis.kernel).into()),
        args: analysis.args.clone(),
        inputs: analysis.inputs.iter().map(input).collect(),
        outputs: analysis.outputs.iter().map(output).collect(),
        stdin: analysis.stdin.clone(),
        stdout: analysis.stdout.clone(),
        streaming: analysis.streaming.clone(),
        time_ns_max: analysis.limits.time.0,
        memory_bytes_max: analysis.limits.memory_bytes,
        output_bytes_max: analysis.limits.output_bytes,
        cores: needed_cores(analysis),
        memory_bytes: analysis.needs.memory_bytes,
        resources: analysis.needs.named.clone(),
        cached_result: None,
        runtime_environment: runtime_environment(&analysis.runtime_environment),
    }
}

impl From<RuntimeEnvironment> for v1::RuntimeEnvironment {
    fn from(runtime_environment: RuntimeEnvironment) -> Self {
        Self {
            environment: runtime_environment.environment,
            path: runtime_environment.path,
            directories: runtime_environment.directories,
        }
    }
}

impl From<v1::RuntimeEnvironment> for RuntimeEnvironment {
    fn from(runtime_environment: v1::RuntimeEnvironment) -> Self {
        Self {
            environment: runtime_environment.environment,
            path: runtime_environment.path,
            directories: runtime_environment.directories,
        }
    }
}

/// Returns `None` if the task has only the default runtime environment.
#[must_use]
pub fn runtime_environment(
    runtime_environment: &RuntimeEnvironment,
) -> Option<v1::RuntimeEnvironment> {
    (!runtime_environment.is_empty()).then(|| runtime_environment.clone().into())
}

/// Returns the number of cores that an analysis needs; `None` if it needs one core and is not limited to it.
fn needed_cores(analysis: &model::Analysis) -> Option<u32> {
    let needs = analysis.needs.cores;
    (analysis.limits.cores.is_some() || needs != 1).then_some(needs)
}

/// Returns the valid amounts of resources in a message: amounts that have a name and are not 0, up to the maximum number.
fn amounts(named: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let named = named
        .iter()
        .filter(|(name, amount)| is_name(name) && **amount > 0);
    let named = named.map(|(name, amount)| (name.clone(), *amount));
    named.take(NAMES_MAX).collect()
}

fn input(input: &model::LabelInput) -> v1::Input {
    v1::Input {
        name: input.name.clone(),
        object: input.object.0,
        node: input.node.0,
        size: input.size,
        capability: Vec::new(),
        layout: None,
        selection: selection(&input.selection),
        streaming: false,
        leaves: 0,
    }
}

fn selection(selection: &Selection) -> Option<v1::Selection> {
    if selection.is_whole() {
        return None;
    }
    let ranges = selection.byte_ranges();
    let ranges = ranges.into_iter().flatten().map(|range| v1::ByteRange {
        start: range.start,
        end: range.end,
    });
    Some(v1::Selection {
        part: selection.of_part(),
        ranges: ranges.collect(),
        records: selection.records().map(|records| match records {
            Records::Bytes(bytes) => v1::selection::Records::Bytes(*bytes),
            Records::Until(end) => v1::selection::Records::Until(end.to_vec()),
        }),
        values: selection.values().unwrap_or_default().to_owned(),
    })
}

impl TryFrom<&v1::Selection> for Selection {
    type Error = ConvertError;

    fn try_from(selection: &v1::Selection) -> Result<Self, ConvertError> {
        let wrong = |_| ConvertError("input.selection");
        let records = selection.records.as_ref().map(|records| match records {
            v1::selection::Records::Bytes(bytes) => Records::of_bytes(*bytes),
            v1::selection::Records::Until(end) => Records::until(end),
        });
        let records = records.transpose().map_err(wrong)?;
        let values = Some(selection.values.as_str()).filter(|values| !values.is_empty());
        if selection.ranges.is_empty() {
            let all = selection.part.map_or(Self::WHOLE, Self::part);
            return all.of_records(records).of_values(values).map_err(wrong);
        }
        let ranges = selection.ranges.iter().map(|range| range.start..range.end);
        let ranges: Vec<_> = ranges.collect();
        let bytes = Self::ranges(selection.part, &ranges).map_err(wrong)?;
        bytes.of_records(records).of_values(values).map_err(wrong)
    }
}

impl TryFrom<&v1::Label> for model::Label {
    type Error = ConvertError;

    fn try_from(label: &v1::Label) -> Result<Self, ConvertError> {
        use v1::label::Operation;
        let operation = match label.operation.as_ref().ok_or(ConvertError("operation"))? {
            Operation::Analyse(analyse) => model::Operation::Analyse(Box::new(analyse.try_into()?)),
            Operation::Copy(copy) => model::Operation::Copy {
                from: copied(copy)?,
                to: model::LabelOutput {
                    name: String::new(),
                    object: ObjectId(copy.to),
                    inode: Inode(copy.ino),
                    path: copy.path.clone(),
                    memory: false,
                },
                part: copy.part.as_ref().map(part_of),
                mode: copy.mode,
            },
            Operation::Remove(remove) => model::Operation::Remove {
                objects: remove.objects.iter().copied().map(ObjectId).collect(),
            },
            Operation::Verify(verify) => model::Operation::Verify {
                scrub: verify.scrub,
                idle: verify.idle,
                objects: verify.objects.iter().copied().map(ObjectId).collect(),
            },
        };
        Ok(Self {
            id: LabelId(label.id),
            owner: model::Owner {
                uid: label.uid,
                gid: label.gid,
            },
            after: label.after.iter().copied().map(LabelId).collect(),
            operation,
        })
    }
}

/// Returns the input of a label that copies an object: the whole object.
fn copied(copy: &v1::Copy) -> Result<model::LabelInput, ConvertError> {
    let from: model::LabelInput = copy
        .from
        .as_ref()
        .ok_or(ConvertError("copy.from"))?
        .try_into()?;
    match from.selection.is_whole() {
        true => Ok(from),
        false => Err(ConvertError("copy.from.selection")),
    }
}

/// Converts the version and index of a part.
fn part_of(part: &v1::PartOf) -> PartOf {
    PartOf {
        version: ObjectId(part.version),
        index: part.index,
        width: part.width,
        unit: part.unit,
    }
}

/// Returns the layout of a version of `size` bytes, with the location at which each part is to be read or written.
///
/// # Errors
/// The layout is inconsistent.
pub fn layout(layout: &v1::Layout, size: u64) -> Result<Layout, ConvertError> {
    let part = |part: &v1::LayoutPart| {
        let (object, node) = (ObjectId(part.object), NodeId(part.node));
        Part::on(object, part.size, node)
    };
    let parts = layout.parts.iter().map(part).collect();
    let made = if layout.unit == 0 {
        let extents = decode_extents(&layout.extents);
        extents.and_then(|extents| Extents::of(size, parts, extents).map(Layout::Extents))
    } else {
        let striped = Layout::Striped(StripedLayout {
            unit: layout.unit,
            size,
            parts,
        });
        striped.check().map(|()| striped)
    };
    made.map_err(|_| ConvertError("layout"))
}

impl TryFrom<&v1::Input> for model::LabelInput {
    type Error = ConvertError;

    fn try_from(input: &v1::Input) -> Result<Self, ConvertError> {
        let selection = input.selection.as_ref().map(Selection::try_from);
        Ok(Self {
            name: input.name.clone(),
            object: ObjectId(input.object),
            node: NodeId(input.node),
            size: input.size,
            selection: selection.transpose()?.unwrap_or_default(),
        })
    }
}

impl TryFrom<&v1::Analyse> for model::Analysis {
    type Error = ConvertError;

    fn try_from(analyse: &v1::Analyse) -> Result<Self, ConvertError> {
        let kernel = analyse.kernel.as_ref().ok_or(ConvertError("kernel"))?;
        let output = |output: &v1::Output| model::LabelOutput {
            name: output.name.clone(),
            object: ObjectId(output.object),
            inode: Inode(output.ino),
            path: output.path.clone(),
            memory: output.memory,
        };
        Ok(Self {
            task: TaskId(analyse.task),
            job: JobId(analyse.job),
            name: analyse.name.clone(),
            kernel: kernel.try_into()?,
            args: analyse.args.clone(),
            inputs: analyse
                .inputs
                .iter()
                .map(TryInto::try_into)
                .collect::<Result<_, _>>()?,
            outputs: analyse.outputs.iter().map(output).collect(),
            stdin: analyse.stdin.clone(),
            stdout: analyse.stdout.clone(),
            streaming: analyse.streaming.clone(),
            needs: Needs {
                cores: analyse.cores.unwrap_or(1),
                memory_bytes: analyse.memory_bytes,
                named: amounts(&analyse.resources),
            },
            limits: model::Limits {
                time: Span(analyse.time_ns_max),
                memory_bytes: analyse.memory_bytes_max,
                output_bytes: analyse.output_bytes_max,
                cores: analyse.cores,
            },
            runtime_environment: analyse
                .runtime_environment
                .clone()
                .unwrap_or_default()
                .into(),
        })
    }
}

impl From<&Needs> for v1::Needs {
    fn from(needs: &Needs) -> Self {
        Self {
            cores: needs.cores,
            memory_bytes: needs.memory_bytes,
            resources: needs.named.clone(),
        }
    }
}

impl From<&v1::Needs> for Needs {
    fn from(needs: &v1::Needs) -> Self {
        Self {
            cores: needs.cores,
            memory_bytes: needs.memory_bytes,
            named: amounts(&needs.resources),
        }
    }
}

impl From<&model::Outcome> for v1::LabelOutcome {
    fn from(outcome: &model::Outcome) -> Self {
        let sealed = outcome.result.iter().flatten();
        Self {
            sealed: sealed
                .map(|s| v1::SealedObject {
                    object: s.object.0,
                    size: s.size,
                    name: s.name.clone(),
                })
                .collect(),
            failure: outcome.result.as_ref().err().map(Into::into),
            start: time_to_wire(outcome.start),
            kernel_start: time_to_wire(outcome.kernel_start),
            end: time_to_wire(outcome.end),
            transferred_bytes: outcome.transferred_bytes,
            read_bytes: outcome.read_bytes,
            written_bytes: outcome.written_bytes,
            in_memory_bytes: outcome.in_memory_bytes,
            streamed: outcome.streamed,
            cpu_ns: outcome.cpu.0,
            memory_bytes: outcome.memory_bytes,
            kernel_hash: outcome.kernel_hash.clone(),
            stdout: outcome.stdout.clone(),
            stderr: outcome.stderr.clone(),
            reused_task: outcome.reused.map_or(0, |task| task.0),
            contents: outcome.contents.clone(),
            removed: outcome.removed.iter().map(|object| object.0).collect(),
            hash_ns: outcome.hashing.0,
            corrupt: outcome.corrupt.iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<&v1::LabelOutcome> for model::Outcome {
    type Error = ConvertError;

    fn try_from(outcome: &v1::LabelOutcome) -> Result<Self, ConvertError> {
        let sealed = |s: &v1::SealedObject| model::SealedOutput {
            object: ObjectId(s.object),
            size: s.size,
            name: s.name.clone(),
        };
        let result = match &outcome.failure {
            Some(failure) => Err(failure.try_into()?),
            None => Ok(outcome.sealed.iter().map(sealed).collect()),
        };
        Ok(Self {
            result,
            start: time_from_wire(outcome.start),
            kernel_start: time_from_wire(outcome.kernel_start),
            end: time_from_wire(outcome.end),
            hashing: Span(outcome.hash_ns),
            transferred_bytes: outcome.transferred_bytes,
            read_bytes: outcome.read_bytes,
            written_bytes: outcome.written_bytes,
            in_memory_bytes: outcome.in_memory_bytes,
            streamed: outcome.streamed,
            cpu: Span(outcome.cpu_ns),
            memory_bytes: outcome.memory_bytes,
            reused: (outcome.reused_task != 0).then_some(TaskId(outcome.reused_task)),
            kernel_hash: outcome.kernel_hash.clone(),
            contents: outcome.contents.clone(),
            removed: outcome.removed.iter().copied().map(ObjectId).collect(),
            corrupt: outcome.corrupt.iter().map(Into::into).collect(),
            stdout: outcome.stdout.clone(),
            stderr: outcome.stderr.clone(),
        })
    }
}

impl From<&model::Corrupt> for v1::CorruptObject {
    fn from(corrupt: &model::Corrupt) -> Self {
        Self {
            object: corrupt.object.0,
            what: corrupt.what.clone(),
        }
    }
}

impl From<&v1::CorruptObject> for model::Corrupt {
    fn from(corrupt: &v1::CorruptObject) -> Self {
        Self {
            object: ObjectId(corrupt.object),
            what: corrupt.what.clone(),
        }
    }
}

impl From<&model::Failure> for v1::FailureReport {
    fn from(failure: &model::Failure) -> Self {
        use model::FailureKind as K;
        let (kind, code) = match failure.kind {
            K::Kernel => ("kernel", 0),
            K::Exit(code) => ("exit", code),
            K::Signal(signal) => ("signal", signal),
            K::Timeout => ("timeout", 0),
            K::OutputLimit => ("output-limit", 0),
            K::MemoryLimit => ("memory-limit", 0),
            K::MissingOutput => ("missing-output", 0),
            K::Input => ("input", 0),
            K::Device => ("device", 0),
            K::Cancelled => ("cancelled", 0),
            K::Dependency => ("dependency", 0),
            K::NodeLost => ("node-lost", 0),
            K::Rescheduled => ("rescheduled", 0),
            K::Unfit => ("unfit", 0),
        };
        Self {
            kind: kind.into(),
            code,
            message: failure.message.clone(),
        }
    }
}

impl TryFrom<&v1::FailureReport> for model::Failure {
    type Error = ConvertError;

    fn try_from(report: &v1::FailureReport) -> Result<Self, ConvertError> {
        use model::FailureKind as K;
        let kind = match report.kind.as_str() {
            "kernel" => K::Kernel,
            "exit" => K::Exit(report.code),
            "signal" => K::Signal(report.code),
            "timeout" => K::Timeout,
            "output-limit" => K::OutputLimit,
            "memory-limit" => K::MemoryLimit,
            "missing-output" => K::MissingOutput,
            "input" => K::Input,
            "device" => K::Device,
            "cancelled" => K::Cancelled,
            "dependency" => K::Dependency,
            "node-lost" => K::NodeLost,
            "rescheduled" => K::Rescheduled,
            "unfit" => K::Unfit,
            _ => return Err(ConvertError("failure.kind")),
        };
        Ok(Self {
            kind,
            message: report.message.clone(),
        })
    }
}

/// Returns the name of a role in messages and in the configuration.
#[must_use]
pub fn role_name(role: Role) -> &'static str {
    match role {
        Role::Store => "store",
        Role::ServerCores => "server-cores",
    }
}

/// Name of the burst tier in messages. Files that are written to its nodes are staged out to other nodes.
pub const BURST: &str = "burst";

/// Parses the name of a role as [`role_name`] returns it.
///
/// # Errors
/// The name is neither `store` nor `server-cores`.
pub fn parse_role(name: &str) -> Result<Role, ConvertError> {
    match name {
        "store" => Ok(Role::Store),
        "server-cores" => Ok(Role::ServerCores),
        _ => Err(ConvertError("node.role")),
    }
}

impl TryFrom<&v1::Node> for NodeView {
    type Error = ConvertError;

    fn try_from(node: &v1::Node) -> Result<Self, ConvertError> {
        let history = |(name, h): (&String, &v1::KernelHistory)| {
            let history = History {
                runs: h.runs,
                total_ns: h.total_ns,
                input_bytes: h.input_bytes,
            };
            (name.clone(), history)
        };
        Ok(Self {
            role: parse_role(&node.role)?,
            offers: Offers {
                cores: node.cores,
                memory_bytes: node.memory_bytes,
                named: amounts(&node.resources),
            },
            capacity_bytes: node.capacity_bytes,
            free_bytes: node.free_bytes,
            link_bytes_per_sec: node.link_bytes_per_sec,
            device_bytes_per_sec: node.device_bytes_per_sec,
            watts_milli: node.watts_milli,
            history: node.history.iter().map(history).collect(),
        })
    }
}

impl From<TaskState> for v1::State {
    fn from(state: TaskState) -> Self {
        match state {
            TaskState::Waiting => Self::Waiting,
            TaskState::Ready => Self::Ready,
            TaskState::Sent => Self::Sent,
            TaskState::Running => Self::Running,
            TaskState::Done => Self::Done,
            TaskState::Failed => Self::Failed,
            TaskState::Cancelled => Self::Cancelled,
        }
    }
}

impl From<JobState> for v1::State {
    fn from(state: JobState) -> Self {
        match state {
            JobState::Running => Self::Running,
            JobState::Done => Self::Done,
            JobState::Failed => Self::Failed,
            JobState::Cancelled => Self::Cancelled,
        }
    }
}

/// Returns the name of a state for users: `running`, `done`, …
#[must_use]
pub fn state_name(state: v1::State) -> &'static str {
    match state {
        v1::State::Unspecified => "unknown",
        v1::State::Waiting => "waiting",
        v1::State::Ready => "ready",
        v1::State::Sent => "sent",
        v1::State::Running => "running",
        v1::State::Done => "done",
        v1::State::Failed => "failed",
        v1::State::Cancelled => "cancelled",
    }
}

impl From<&Decision> for v1::Decision {
    /// Converts a decision, without the task's name and the measured bytes, which the decision does not contain.
    fn from(decision: &Decision) -> Self {
        let estimate = |e: &Estimate| v1::Estimate {
            node: e.node.0,
            wait_ns: e.wait_ns,
            transfer_ns: e.transfer_ns,
            transfer_bytes: e.transfer_bytes,
            run_ns: e.run_ns,
        };
        Self {
            task: decision.task.0,
            name: String::new(),
            label: decision.label.0,
            node: decision.node.0,
            policy: decision.policy.clone(),
            reason: decision.reason.clone(),
            chained: decision.chained,
            estimates: decision.estimates.iter().map(estimate).collect(),
            transferred_bytes: 0,
            at: time_to_wire(decision.at),
            reused_task: 0,
            reused_job: 0,
            inputs: Vec::new(),
            selections: Vec::new(),
            in_memory_bytes: 0,
            memory_outputs: 0,
            streaming: 0,
            streamed: 0,
            energy: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_model::label as model;

    #[test]
    fn pipeline_message_round_trips_and_refuses_nested_pipeline() {
        let kernels = [
            model::Kernel::Builtin("sort".into()),
            model::Kernel::Program("/bin/cat".into()),
            model::Kernel::Stored { input: "f".into() },
        ];
        let stages = kernels.map(|kernel| model::Stage {
            kernel,
            args: vec!["x".into()],
        });
        let pipeline = model::Kernel::Pipeline(Box::new(model::Pipeline {
            text: "sort x | …".into(),
            stages: stages.to_vec(),
        }));
        let message = v1::Kernel::from(&pipeline);
        assert_eq!(model::Kernel::try_from(&message), Ok(pipeline.clone()));
        let nested = model::Kernel::Pipeline(Box::new(model::Pipeline {
            text: "a | b".into(),
            stages: vec![model::Stage {
                kernel: pipeline,
                args: Vec::new(),
            }],
        }));
        assert!(model::Kernel::try_from(&v1::Kernel::from(&nested)).is_err());
    }

    fn label() -> model::Label {
        let analysis = model::Analysis {
            task: TaskId(1),
            job: JobId(2),
            name: "t".into(),
            kernel: model::Kernel::Native {
                input: "k.so".into(),
            },
            args: vec!["a".into()],
            inputs: vec![model::LabelInput {
                name: "in".into(),
                object: ObjectId(3),
                node: NodeId(4),
                size: 5,
                selection: Selection::ranges(Some(2), &[0..5, 7..u64::MAX])
                    .unwrap()
                    .of_values(Some("{}"))
                    .unwrap(),
            }],
            outputs: vec![model::LabelOutput {
                name: "out".into(),
                object: ObjectId(6),
                inode: Inode(7),
                path: "/w/out".into(),
                memory: true,
            }],
            stdin: Some("in".into()),
            streaming: vec![0],
            stdout: None,
            needs: Needs {
                cores: 0,
                memory_bytes: 7,
                named: BTreeMap::from([("licence.x".into(), 2)]),
            },
            limits: model::Limits {
                cores: Some(0),
                ..model::Limits::default()
            },
            runtime_environment: RuntimeEnvironment {
                environment: [("A".into(), "1".into())].into(),
                path: vec!["/sw/bin".into()],
                directories: vec!["/sw".into()],
            },
        };
        model::Label {
            id: LabelId(9),
            owner: model::Owner { uid: 1, gid: 2 },
            after: vec![LabelId(8)],
            operation: model::Operation::Analyse(Box::new(analysis)),
        }
    }

    #[test]
    fn label_message_round_trips() {
        assert_eq!(
            model::Label::try_from(&v1::Label::from(&label())),
            Ok(label())
        );
        let mut broken = v1::Label::from(&label());
        broken.operation = None;
        assert_eq!(
            model::Label::try_from(&broken),
            Err(ConvertError("operation"))
        );
    }

    /// A label whose selected bytes are invalid is refused, because a kernel that reads other bytes returns a wrong result.
    #[test]
    fn label_with_invalid_ranges_is_refused() {
        let with = |selection: Option<v1::Selection>| {
            let mut label = v1::Label::from(&label());
            if let Some(v1::label::Operation::Analyse(analyse)) = &mut label.operation {
                analyse.inputs[0].selection = selection;
            }
            let read = model::Label::try_from(&label)?;
            let model::Operation::Analyse(analysis) = read.operation else {
                panic!("it analyses");
            };
            Ok(analysis.inputs[0].selection.clone())
        };
        let selection = |part: Option<u32>, ranges: &[(u64, u64)]| {
            let range = |&(start, end): &(u64, u64)| v1::ByteRange { start, end };
            let ranges = ranges.iter().map(range).collect();
            Some(v1::Selection {
                part,
                ranges,
                records: None,
                values: String::new(),
            })
        };
        assert_eq!(with(None), Ok(Selection::WHOLE));
        assert_eq!(with(selection(None, &[])), Ok(Selection::WHOLE));
        assert_eq!(
            with(selection(Some(u32::MAX), &[])),
            Ok(Selection::part(u32::MAX))
        );
        let many: Vec<(u64, u64)> = (0..2000).map(|at| (2 * at, 2 * at + 1)).collect();
        let refused: [&[(u64, u64)]; 7] = [
            &[(0, 0)],
            &[(u64::MAX, u64::MAX)],
            &[(5, 4)],
            &[(0, 5), (4, 9)],
            &[(5, 9), (0, 3)],
            &[(0, u64::MAX), (u64::MAX - 1, u64::MAX)],
            &many,
        ];
        for ranges in refused {
            assert_eq!(
                with(selection(None, ranges)),
                Err(ConvertError("input.selection"))
            );
        }
    }

    #[test]
    fn label_message_without_cores_needs_one_core() {
        let mut old = v1::Label::from(&label());
        if let Some(v1::label::Operation::Analyse(analyse)) = &mut old.operation {
            (analyse.cores, analyse.memory_bytes) = (None, 0);
            analyse.resources.clear();
        }
        let read = model::Label::try_from(&old).unwrap();
        assert_eq!(read.operation.needs(), Some(&Needs::default()));
        let model::Operation::Analyse(analysis) = &read.operation else {
            panic!("it analyses");
        };
        assert_eq!(analysis.limits.cores, None);
        assert_eq!(v1::Label::from(&read), old);
    }

    #[test]
    fn every_failure_kind_message_round_trips() {
        use model::FailureKind as K;
        for kind in [
            K::Kernel,
            K::Exit(3),
            K::Signal(9),
            K::Timeout,
            K::OutputLimit,
            K::MemoryLimit,
            K::MissingOutput,
            K::Input,
            K::Device,
            K::Cancelled,
            K::Dependency,
            K::NodeLost,
            K::Rescheduled,
            K::Unfit,
        ] {
            let failure = model::Failure {
                kind,
                message: "m".into(),
            };
            assert_eq!(
                model::Failure::try_from(&v1::FailureReport::from(&failure)),
                Ok(failure)
            );
        }
    }
}
