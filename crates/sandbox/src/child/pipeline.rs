//! Runs a pipeline of kernels within one sandbox: each kernel processes the output of the previous kernel.
//!
//! Adjacent built-in kernels are a chain on one thread, without a copy between them; programs are separate processes, with pipes; chains
//! and programs run at the same time. Users' kernels need whole files, so the input of such a kernel is first collected in a file, and so
//! is its output.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;

use super::native::{KernelCall, NativeError};
use super::own_fold::FoldKey;
use super::pipes;
use super::{ChildKernel, ChildStage, WRONG_USE, builtin_exit_code, own_exit_code, run_own};
use crate::prepare::{RESERVED, TEMPORARY};
use crate::run::RunPart;
use tidemill_compute::{BuiltinError, ChainLink, LinkError, chain, named_inputs, run_builtin};

/// Number of bytes that a built-in kernel reads from a pipe at a time.
const PIECE_BYTES: usize = 256 << 10;

/// Number that a shell adds to the number of the signal that ended a program.
const SIGNALLED: i32 = 128;

/// Reason why a pipeline failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum PipelineError {
    /// A built-in kernel failed.
    #[error(transparent)]
    Builtin(#[from] LinkError),
    /// A user's kernel could not be called.
    #[error("stage {0} ({1}): {2}")]
    Own(usize, String, NativeError),
    /// A user's kernel returned another value than 0.
    #[error("stage {0} ({1}) ended with exit code {2}")]
    Code(usize, String, u8),
    /// A program of the pipeline could not be started.
    #[error("stage {0} ({1}): cannot be run: {2}")]
    Start(usize, String, io::Error),
    /// A program of the pipeline failed.
    #[error("stage {0} ({1}) {end}", end = ended(*.2))]
    Program(usize, String, ExitStatus),
    /// A pipe, thread or file of the pipeline could not be made.
    #[error("the stages cannot be connected: {0}")]
    Together(#[from] io::Error),
}

fn ended(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".into(),
    }
}

impl PipelineError {
    /// Returns the exit code of the child process for this error.
    pub(super) fn exit_code(&self) -> u8 {
        let code = match self {
            Self::Builtin(error) => return builtin_exit_code(&error.source),
            Self::Code(_, _, code) => return *code,
            Self::Own(_, _, error) => return own_exit_code(error),
            Self::Start(..) => return WRONG_USE,
            Self::Program(_, _, status) => status
                .code()
                .unwrap_or(SIGNALLED + status.signal().unwrap_or_default()),
            Self::Together(_) => 1,
        };
        u8::try_from(code).unwrap_or(1)
    }

    /// Returns whether the only error is that the output has no reader: then the next stage decides whether that is a failure.
    fn is_unread(&self) -> bool {
        match self {
            Self::Builtin(LinkError {
                source: BuiltinError::Write(error),
                ..
            }) => error.kind() == io::ErrorKind::BrokenPipe,
            Self::Program(_, _, status) => status.signal() == Some(libc::SIGPIPE),
            _ => false,
        }
    }
}

/// Stage of a pipeline and its place, from 1.
type NumberedStage<'a> = (usize, &'a ChildStage);

/// Input of a pipeline stage.
enum StageInput {
    /// The task's inputs.
    Inputs,
    /// A file in which the output of the previous stages was collected.
    File(PathBuf),
    Pipe(PipeReader),
}

/// Runs all stages of a pipeline.
///
/// # Errors
/// The first failure of a stage. Processes of other stages may still run then: this process must end, which ends them.
pub(super) fn run(
    stages: &[ChildStage],
    inputs: &[String],
    output: &str,
) -> Result<(), PipelineError> {
    // A stage whose reader ended early gets an error instead of a signal. SAFETY: sets a disposition to one that runs no code.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let placed: Vec<NumberedStage<'_>> = (1..).zip(stages).collect();
    let inputs = &data(stages, inputs);
    let mut source = StageInput::Inputs;
    let mut rest = placed.as_slice();
    while let Some((first, more)) = rest.split_first() {
        let piped = rest
            .iter()
            .take_while(|(_, stage)| {
                matches!(stage.kind, ChildKernel::Builtin | ChildKernel::Program)
            })
            .count();
        let (now, later) = if piped == 0 {
            (std::slice::from_ref(first), more)
        } else {
            rest.split_at(piped)
        };
        let last = now.last().map_or(0, |(number, _)| *number);
        let path = if later.is_empty() {
            PathBuf::from(output)
        } else {
            between(last)
        };
        if piped == 0 {
            call(*first, &source, inputs, &path)?;
        } else {
            let file = File::create(&path)?;
            pipeline(now, source, inputs, file)?;
        }
        source = StageInput::File(path);
        rest = later;
    }
    Ok(())
}

/// Returns the inputs without those that arguments of later stages name. The first stage leaves out the inputs that its own arguments name.
fn data(stages: &[ChildStage], inputs: &[String]) -> Vec<String> {
    let named = |stage: &ChildStage| match stage.kind {
        ChildKernel::Builtin => named_inputs(&stage.name, &stage.args),
        ChildKernel::Native | ChildKernel::Wasm(_) | ChildKernel::Program => Vec::new(),
    };
    let Some((first, later)) = stages.split_first() else {
        return inputs.to_vec();
    };
    let kept = named(first);
    let taken: Vec<String> = later.iter().flat_map(named).collect();
    let data = |input: &&String| kept.contains(input) || !taken.contains(input);
    inputs.iter().filter(data).cloned().collect()
}

/// Returns the path of the file that collects the output, or the input, of stage `number`.
fn between(number: usize) -> PathBuf {
    [RESERVED, TEMPORARY, &format!("stage-{number}")]
        .iter()
        .collect()
}

/// Calls a user's kernel over whole files.
fn call(
    (number, stage): NumberedStage<'_>,
    source: &StageInput,
    inputs: &[String],
    output: &Path,
) -> Result<(), PipelineError> {
    let name = || stage.name.clone();
    let inputs = match source {
        StageInput::File(path) => vec![path.to_string_lossy().into_owned()],
        StageInput::Inputs | StageInput::Pipe(_) => inputs.to_vec(),
    };
    let outputs = [output.to_string_lossy().into_owned()];
    let call = KernelCall {
        args: &stage.args,
        inputs: &inputs,
        outputs: &outputs,
        part: RunPart::Whole,
        key: FoldKey::default(),
    };
    match run_own(stage.kind, &stage.name, call) {
        Ok(0) => Ok(()),
        Ok(code) => Err(PipelineError::Code(number, name(), code)),
        Err(error) => Err(PipelineError::Own(number, name(), error)),
    }
}

/// Segment of a pipeline: adjacent built-in kernels, or a program.
enum PipelineSegment<'a> {
    Builtins(Vec<ChainLink>),
    Program(NumberedStage<'a>),
}

fn segments<'a>(stages: &[NumberedStage<'a>]) -> Vec<PipelineSegment<'a>> {
    let mut segments = Vec::new();
    for &(number, stage) in stages {
        let link = || ChainLink {
            number,
            name: stage.name.clone(),
            args: stage.args.clone(),
            spool: between(number).with_extension("in"),
        };
        match (stage.kind, segments.last_mut()) {
            (ChildKernel::Builtin, Some(PipelineSegment::Builtins(links))) => links.push(link()),
            (ChildKernel::Builtin, _) => segments.push(PipelineSegment::Builtins(vec![link()])),
            (_, _) => segments.push(PipelineSegment::Program((number, stage))),
        }
    }
    segments
}

/// Runs pipeline stages that process bytes as they arrive, all at the same time.
fn pipeline(
    stages: &[NumberedStage<'_>],
    source: StageInput,
    inputs: &[String],
    out: File,
) -> Result<(), PipelineError> {
    let segments = segments(stages);
    let count = segments.len();
    let (sender, results) = mpsc::channel();
    let mut source = source;
    let mut out = Some(out);
    for (index, segment) in segments.into_iter().enumerate() {
        let (into, next): (OwnedFd, StageInput) = if index + 1 < count {
            let (reader, writer): (PipeReader, PipeWriter) = io::pipe()?;
            (writer.into(), StageInput::Pipe(reader))
        } else {
            let out = out.take().expect("only the last segment takes it");
            (out.into(), StageInput::Inputs)
        };
        let source = std::mem::replace(&mut source, next);
        let sender = sender.clone();
        let tell = move |result: Result<(), PipelineError>| {
            // The receiver stops listening after the first failure.
            let _ = sender.send((index, result));
        };
        match segment {
            PipelineSegment::Builtins(links) => {
                let inputs = inputs.to_vec();
                thread::Builder::new()
                    .spawn(move || tell(builtins(&links, source, inputs, into.into())))?;
            }
            PipelineSegment::Program(placed) => {
                let (number, name) = (placed.0, placed.1.name.clone());
                let mut child = start(placed, source, into)?;
                thread::Builder::new().spawn(move || tell(wait(&mut child, number, name)))?;
            }
        }
    }
    drop(sender);
    for (index, result) in results {
        match result {
            Err(error) if error.is_unread() && index + 1 < count => {}
            result => result?,
        }
    }
    Ok(())
}

fn builtins(
    links: &[ChainLink],
    source: StageInput,
    inputs: Vec<String>,
    out: File,
) -> Result<(), PipelineError> {
    let files = match source {
        StageInput::Inputs => inputs,
        StageInput::File(path) => vec![path.to_string_lossy().into_owned()],
        StageInput::Pipe(mut pipe) => {
            let mut sink = chain(links, out)?;
            let mut piece = vec![0; PIECE_BYTES];
            loop {
                let count = pipe.read(&mut piece)?;
                if count == 0 {
                    break;
                }
                let written = sink.write_all(&piece[..count]);
                written.map_err(|error| links[0].failed(BuiltinError::Write(error)))?;
            }
            return Ok(sink.finish()?);
        }
    };
    let Some((first, others)) = links.split_first() else {
        return Ok(());
    };
    if pipes::any(first, &files) {
        return Ok(pipes::push(first, &files, chain(links, out)?)?);
    }
    let mut sink = chain(others, out)?;
    let run = run_builtin(&first.name, &first.args, &files, &mut sink);
    run.map_err(|error| first.failed(error))?;
    Ok(sink.finish()?)
}

/// Runs one built-in kernel over inputs, at least one of them streaming.
pub(super) fn streamed(
    stage: &ChildStage,
    inputs: &[String],
    out: File,
) -> Result<(), BuiltinError> {
    let link = ChainLink {
        number: 1,
        name: stage.name.clone(),
        args: stage.args.clone(),
        spool: between(1).with_extension("in"),
    };
    let sink = chain(std::slice::from_ref(&link), out);
    let pushed = sink.and_then(|sink| pipes::push(&link, inputs, sink));
    pushed.map_err(|error| error.source)
}

fn start(
    (number, stage): NumberedStage<'_>,
    source: StageInput,
    out: OwnedFd,
) -> Result<Child, PipelineError> {
    let failed = |error| PipelineError::Start(number, stage.name.clone(), error);
    let stdin = match source {
        // The task's standard input.
        StageInput::Inputs => Stdio::inherit(),
        StageInput::File(path) => File::open(path).map_err(failed)?.into(),
        StageInput::Pipe(pipe) => pipe.into(),
    };
    let mut command = Command::new(&stage.name);
    command.args(&stage.args).stdin(stdin).stdout(out);
    command.spawn().map_err(failed)
}

fn wait(child: &mut Child, number: usize, name: String) -> Result<(), PipelineError> {
    let status = child.wait()?;
    if status.success() {
        Ok(())
    } else {
        Err(PipelineError::Program(number, name, status))
    }
}
