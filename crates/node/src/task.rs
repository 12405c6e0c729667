//! Execution of one label: analyse, copy or remove. The module works on the node's store and the label's private directory; `scrub`
//! executes the labels that verify objects.
//!
//! The functions run on a worker thread and block. The functions change files only; [`LabelEffects::keep`] changes the rows, in the
//! transaction that records the outcome. When a label runs again after the node was killed, its outputs replace those of the first run,
//! which no client has seen.

use crate::db::Db;
use crate::directory::{allocated, close_for_ever};
use crate::executor::ExecutorParts;
use crate::fetch::{FetchError, FetchedInput, InputLocations};
use crate::flash_model::FlashModel;
use crate::input_reads::ReadServer;
use crate::labels::{Live, failed};
use crate::ranks::lead::{self, LeadResult};
use crate::records::{self, Hash, ObjectRecord};
use crate::runner::{self, RunResult};
use crate::scrub;
use crate::store::{ObjectFile, StoreError};
use crate::streaming_inputs::GrowingOutput;
use crate::streaming_pipe::{Streamed, StreamingPipe, StreamingShare};
use parking_lot::Mutex;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tidemill_compute::array::Encoded;
use tidemill_model::content;
use tidemill_model::directory;
use tidemill_model::id::{Inode, LabelId, ObjectId, TaskId};
use tidemill_model::label::{
    Analysis, Failure, FailureKind, Kernel, Label, LabelInput, LabelOutput, Operation, Outcome,
    Owner, SealedOutput,
};
use tidemill_model::label::{MAX_INPUTS, MAX_PATH_BYTES};
use tidemill_model::layout::{Layout, PartOf, RANGES_MAX, SelectedBytes};
use tidemill_model::runtime_environment::RuntimeEnvironment;
use tidemill_model::time::{Span, Time};
use tidemill_sandbox::peers::RankNetwork;
use tidemill_sandbox::{DirectoryBounds, OutputError, Prepared, PrivateFile};
use tidemill_wire::v1;

/// Environment of a rank for MPI libraries. The rank's standard input connects the rank with the process that started it (PMI). TCP through
/// the only network device connects the rank with the other ranks. The sandbox has no other devices that UCX and libfabric use.
const MPI: [(&str, &str); 6] = [
    ("PMI_FD", "0"),
    ("UCX_TLS", "tcp,self"),
    ("UCX_NET_DEVICES", "lo"),
    ("UCX_LOG_LEVEL", "error"),
    ("FI_PROVIDER", "tcp"),
    ("FI_TCP_IFACE", "lo"),
];

/// Returns the current time in nanoseconds since the Unix epoch.
#[must_use]
pub fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Time(since.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
}

/// Effects of a label that the node stores in the database.
#[derive(Debug)]
pub struct LabelEffects {
    /// Outcome of the label.
    pub outcome: Outcome,
    /// Executed label; `None` if the label changed nothing.
    pub label: Option<std::sync::Arc<Label>>,
    /// Objects that the label sealed.
    pub made: Vec<ObjectRecord>,
    /// Number of bytes that each new object has written to the device. Objects in memory are left out.
    pub wrote: Vec<(ObjectId, u64)>,
    /// Objects that the label removed.
    pub removed: Vec<ObjectId>,
}

impl LabelEffects {
    /// Returns the effects of a label that has changed nothing.
    #[must_use]
    pub fn without_effect(outcome: Outcome) -> Self {
        Self {
            outcome,
            label: None,
            made: Vec::new(),
            wrote: Vec::new(),
            removed: Vec::new(),
        }
    }

    /// Returns whether the label made a replica of an object.
    pub(crate) fn is_copy(&self) -> bool {
        let copies = |label: &Label| matches!(label.operation, Operation::Copy { .. });
        !self.made.is_empty() && self.label.as_deref().is_some_and(copies)
    }

    /// Stores the effects of the label in the database.
    ///
    /// # Errors
    /// SQLite returns an error.
    pub fn keep(&self, connection: &rusqlite::Connection) -> Result<(), rusqlite::Error> {
        for object in &self.made {
            records::put_object(connection, object)?;
        }
        for &object in &self.removed {
            records::remove_object(connection, object)?;
        }
        match &self.label {
            Some(label) => match &label.operation {
                Operation::Analyse(analysis) => {
                    records::put_task(connection, analysis, label.owner, &self.outcome)
                }
                Operation::Copy { .. } | Operation::Remove { .. } | Operation::Verify { .. } => {
                    Ok(())
                }
            },
            None => Ok(()),
        }
    }

    /// Reports the written and removed objects to the model of the flash device. The caller must have stored the effects before.
    pub fn tell(&self, flash: &FlashModel) {
        // A link writes nothing, and the bytes that were fetched instead of a link are few.
        let written = self.outcome.reused.is_none();
        for &(object, bytes) in self.wrote.iter().filter(|_| written) {
            flash.on_written(object, bytes);
        }
        for &object in &self.removed {
            flash.on_removed(object);
        }
    }
}

/// Executes a label. The function calls `phase` when the label starts to fetch inputs and when the label starts to run.
#[must_use]
pub fn run(parts: &ExecutorParts, live: &Live, phase: &dyn Fn(&'static str)) -> LabelEffects {
    let mut run = RunningLabel::new(parts, live);
    let result = match &live.label.operation {
        Operation::Analyse(analysis) => run.analyse(analysis, phase),
        Operation::Copy {
            from,
            to,
            part,
            mode,
        } => run.copy(from, (to, *part, *mode), phase),
        Operation::Remove { objects } => run.remove(objects),
        Operation::Verify { .. } => Ok(Vec::new()),
    };
    if result.is_err() {
        run.discard();
    }
    run.outcome.result = result;
    // The core stays taken until the hashes are computed, so that waiting labels and the planner see this time.
    let hashed = now();
    run.hash_inputs();
    run.forget_decoded();
    run.outcome.end = now();
    run.outcome.hashing = run.outcome.end.since(hashed);
    run.count();
    LabelEffects {
        outcome: run.outcome,
        label: Some(std::sync::Arc::clone(&live.label)),
        made: run.made,
        wrote: run.wrote,
        removed: run.removed,
    }
}

/// Empties a label's private directory for reuse by another label, or removes it.
pub fn clean(parts: &ExecutorParts, label: LabelId) {
    clean_directory(parts, &private_directory(parts, label));
}

fn clean_directory(parts: &ExecutorParts, directory: &Path) {
    if parts.runner.recycle(directory) {
        return;
    }
    match tidemill_sandbox::remove_directory(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(directory = %directory.display(), %error, "a private directory can't be removed");
        }
        _ => {}
    }
}

fn private_directory(parts: &ExecutorParts, label: LabelId) -> PathBuf {
    parts.directory.join("run").join(label.to_string())
}

/// Label that is being executed.
struct RunningLabel<'a> {
    parts: &'a ExecutorParts,
    live: &'a Live,
    outcome: Outcome,
    /// Names and files of the kernel's inputs. `None` for an input whose bytes belong to the values of an earlier input.
    inputs: Vec<Option<(String, PathBuf)>>,
    /// Number of following inputs whose bytes belong to the values of the last fetched input.
    behind: usize,
    /// Inputs that the kernel reads from pipes, each with its index.
    streaming: Vec<(usize, StreamingPipe)>,
    /// Open files of inputs on this node. While the files are open, no mount reuses them for another version.
    held: Vec<std::fs::File>,
    /// Fetched inputs, whose files are not removed while this list contains them.
    fetched: Vec<FetchedInput>,
    /// Files with values that were decoded for the kernel.
    decoded: Vec<PathBuf>,
    /// Descriptions, for the kernel, of the inputs that it has only in part.
    laid: Vec<serde_json::Value>,
    made: Vec<ObjectRecord>,
    wrote: Vec<(ObjectId, u64)>,
    removed: Vec<ObjectId>,
}

type TaskResult = Result<Vec<SealedOutput>, Failure>;

/// Parameters of one rank of a task that joins the other ranks.
#[derive(Debug)]
pub(crate) struct RankParameters {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) network: Arc<RankNetwork>,
    pub(crate) starter: OwnedFd,
}

#[derive(Debug)]
pub(crate) struct RankResult {
    pub(crate) outcome: Outcome,
    /// Whether the rank read other bytes of an input than the bytes that were finally sealed.
    pub(crate) stale: bool,
    /// Output file of the rank, if the rank succeeded.
    pub(crate) made: Option<PrivateFile>,
}

/// Runs a rank of a task whose label may belong to another node. Blocks. The output stays in the rank's directory until [`forget_rank`].
pub(crate) fn run_rank(parts: &ExecutorParts, live: &Live, joined: RankParameters) -> RankResult {
    let mut run = RunningLabel::new(parts, live);
    run.outcome.start = now();
    let ran = match &live.label.operation {
        Operation::Analyse(analysis) => run.run_rank(analysis, joined),
        _ => Err(failure(FailureKind::Kernel, "it is no task".to_owned())),
    };
    let stale = ran.as_ref().is_ok_and(|(stale, _)| *stale);
    let (result, made) = match ran {
        Ok((_, made)) => (Ok(Vec::new()), made),
        Err(failed) => (Err(failed), None),
    };
    run.outcome.result = result;
    run.outcome.end = now();
    RankResult {
        outcome: run.outcome,
        stale,
        made,
    }
}

/// Empties the directory of a rank.
pub(crate) fn forget_rank(parts: &ExecutorParts, label: LabelId, rank: usize) {
    clean_directory(parts, &rank_directory(parts, label, rank));
}

/// Returns the directory of a rank. The removal of unused directories skips this directory, as the label may belong to another node.
fn rank_directory(parts: &ExecutorParts, label: LabelId, rank: usize) -> PathBuf {
    let name = format!("rank-{label}-{rank}");
    parts.directory.join("run").join(name)
}

impl<'a> RunningLabel<'a> {
    fn new(parts: &'a ExecutorParts, live: &'a Live) -> Self {
        let mut run = Self {
            parts,
            live,
            outcome: failed(live.start, FailureKind::Device, String::new()),
            inputs: Vec::new(),
            behind: 0,
            streaming: Vec::new(),
            held: Vec::new(),
            fetched: Vec::new(),
            decoded: Vec::new(),
            laid: Vec::new(),
            made: Vec::new(),
            wrote: Vec::new(),
            removed: Vec::new(),
        };
        run.outcome.start = live.start;
        run
    }
}

impl RunningLabel<'_> {
    fn id(&self) -> LabelId {
        self.live.label.id
    }

    fn owner(&self) -> Owner {
        self.live.label.owner
    }

    fn analyse(&mut self, analysis: &Analysis, phase: &dyn Fn(&'static str)) -> TaskResult {
        if let Some(memory) = self.live.cached_result.clone() {
            phase("fetching");
            let same = self.compare(analysis, &memory.contents);
            match same.and_then(|()| self.recall(analysis, &memory)) {
                Ok(sealed) => return Ok(sealed),
                Err(error) => {
                    tracing::debug!(label = %self.id(), message = error.message, "a cached result can't be used");
                    self.discard();
                    self.outcome.transferred_bytes =
                        self.fetched.iter().map(|one| one.transferred_bytes).sum();
                }
            }
            if self.live.control.is_cancelled() {
                return Err(runner::cancelled());
            }
        }
        if analysis
            .inputs
            .iter()
            .any(|input| directory::is_directory(&input.name))
        {
            let message = format!(
                "the directories that it reads have more than {MAX_INPUTS} files together, or too long names; split it"
            );
            return Err(failure(FailureKind::Kernel, message));
        }
        if analysis.runtime_environment.is_ranked() {
            phase("running");
            self.outcome.kernel_start = now();
            return self.lead(analysis);
        }
        let here = |input: &LabelInput| self.local(input.object).is_some();
        if !analysis.inputs.iter().all(here) {
            phase("fetching");
        }
        self.fetch_all(analysis)?;
        phase("running");
        self.outcome.kernel_start = now();
        let mut result = self.run_kernel(analysis);
        let changed = self.streamed(analysis)?;
        // The kernel may read sealed files in ways in which it can't read a pipe, or faster, within its time limit.
        let failed = result.as_ref().err().filter(|_| self.outcome.streamed > 0);
        if changed || failed.is_some() {
            let why = self.streamed_in_vain(analysis, failed);
            drop(result);
            clean(self.parts, self.id());
            self.outcome.kernel_start = now();
            result = self.run_kernel(analysis);
            self.outcome.say(&why);
        }
        self.take_outputs(&result?, analysis)
    }

    fn fetch_all(&mut self, analysis: &Analysis) -> Result<(), Failure> {
        while let Some(input) = analysis.inputs.get(self.inputs.len()) {
            let path = self.input(self.inputs.len(), input)?;
            self.inputs.push(Some((input.name.clone(), path)));
            let behind = std::mem::take(&mut self.behind);
            self.inputs.extend((0..behind).map(|_| None));
        }
        Ok(())
    }

    /// Runs all ranks of the task and stores their result as the output.
    fn lead(&mut self, analysis: &Analysis) -> TaskResult {
        let [output] = analysis.outputs.as_slice() else {
            let what = "a task with mpi must have exactly one output".to_owned();
            return Err(failure(FailureKind::Kernel, what));
        };
        let own = private_directory(self.parts, self.id()).with_extension("ranks");
        let device = |error: &std::io::Error| device_failure(&own, error);
        let file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&own);
        let mut file = file.map_err(|error| device(&error))?;
        let mut led = LeadResult::default();
        let of = (self.parts, self.live);
        let result = lead::lead(of, analysis, (&mut file, &mut led));
        drop(file);
        let kept = result.and_then(|()| {
            let made = own_file(&own)?;
            self.parts
                .store
                .adopt(output.object, &made)
                .map_err(|error| store_failure(&error))
        });
        self.outcome.cpu = led.cpu;
        self.outcome.memory_bytes = led.memory_bytes;
        self.outcome.transferred_bytes += led.transferred_bytes;
        self.outcome.read_bytes += led.read_bytes;
        self.outcome.kernel_hash = led.kernel_hash;
        self.outcome.stdout = led.stdout;
        self.outcome.stderr = led.stderr;
        let size = kept.inspect_err(|_| {
            // The caller reports the error of the ranks.
            let _ = std::fs::remove_file(&own);
        })?;
        self.outcome.written_bytes = self.written(output.object);
        self.made.push(self.made_by(analysis, output, size));
        Ok(vec![SealedOutput::file(output.object, size)])
    }

    /// Runs one rank of a task. Returns its output, and whether the rank read other bytes than were sealed.
    fn run_rank(
        &mut self,
        analysis: &Analysis,
        joined: RankParameters,
    ) -> Result<(bool, Option<PrivateFile>), Failure> {
        self.fetch_all(analysis)?;
        self.outcome.kernel_start = now();
        let directory = rank_directory(self.parts, self.id(), joined.rank);
        let inputs: Vec<_> = self.inputs.iter().flatten().cloned().collect();
        let mut environment = self.environment(analysis);
        let own = |(name, value): (&str, String)| (name.to_owned(), value);
        environment.extend(MPI.map(|(name, value)| own((name, value.to_owned()))));
        environment.push(own(("PMI_RANK", joined.rank.to_string())));
        environment.push(own(("PMI_SIZE", joined.size.to_string())));
        let request = runner::RunRequest {
            environment,
            joined: Some((joined.network, joined.starter)).into(),
            ..self.request(analysis, &directory, &inputs)
        };
        let ran = self.parts.runner.run(&request, &self.live.control);
        self.outcome.cpu = ran.cpu;
        self.outcome.memory_bytes = ran.memory_bytes;
        self.outcome.kernel_hash = ran.kernel_hash;
        self.outcome.stdout = ran.stdout;
        self.outcome.stderr = ran.stderr;
        if self.streamed(analysis)? {
            return Ok((true, None));
        }
        let prepared = ran.result?;
        let name = analysis.outputs.first().map_or("", |one| one.name.as_str());
        let made = prepared.output(name).map_err(|error| unwritten(&error))?;
        Ok((false, Some(made)))
    }

    /// Returns the path of an input's file, or of the pipe of a streaming input.
    fn input(&mut self, index: usize, input: &LabelInput) -> Result<PathBuf, Failure> {
        let way = self.live.ways.get(index);
        let (streaming, leaves) = way.map_or((false, 0), |way| (way.streaming, way.leaves));
        let mut streaming_inputs = self.live.streaming_inputs.iter();
        let produced = streaming_inputs.find(|one| one.index == index && !one.fate.has_succeeded());
        if produced.is_some() || streaming && is_unsealed(self.parts, input.object) {
            let making = produced.map(|one| {
                self.outcome.streamed += 1;
                GrowingOutput::new(private_directory(self.parts, one.maker), one)
            });
            let pipe = private_directory(self.parts, self.id());
            let pipe = pipe.with_extension(format!("{index}.streaming"));
            let from = (Arc::clone(&self.parts.store), input.object);
            let turn = StreamingShare::new(Arc::clone(&self.parts.pace), leaves);
            let (db, object) = (self.parts.db.clone(), input.object);
            let is_recorded = move || is_recorded(&db, object);
            let begun = StreamingPipe::begin(from, is_recorded, making, pipe.clone(), turn);
            let begun = begun.map_err(|error| device_failure(&pipe, &error))?;
            self.streaming.push((index, begun));
            return Ok(pipe);
        }
        let (path, size) = self.fetch(index, input)?;
        self.outcome.read_bytes += size;
        Ok(path)
    }

    /// Waits until all unsealed inputs are sealed. Returns whether an input differs from the bytes that the kernel received, so that the
    /// kernel has to run again with the sealed inputs.
    fn streamed(&mut self, analysis: &Analysis) -> Result<bool, Failure> {
        let mut again = false;
        for (index, streaming) in std::mem::take(&mut self.streaming) {
            let input = &analysis.inputs[index];
            match streaming.end(|| self.live.control.is_cancelled()) {
                Ok(Streamed::Same) => {}
                Ok(Streamed::Changed) => again = true,
                Ok(Streamed::Abandoned) => return Err(runner::cancelled()),
                Err(StoreError::NotFound { .. }) => {
                    return Err(lacks(input, "was aborted before it was sealed"));
                }
                Err(error) => return Err(store_failure(&error)),
            }
            let (path, size) = self.fetch(index, input)?;
            self.outcome.read_bytes += size;
            self.inputs[index] = Some((input.name.clone(), path));
        }
        Ok(again)
    }

    /// Returns the message about a discarded run that used unfinished inputs.
    fn streamed_in_vain(&mut self, analysis: &Analysis, failed: Option<&Failure>) -> String {
        if std::mem::take(&mut self.outcome.streamed) == 0 {
            return String::new();
        }
        let streaming_inputs = self.live.streaming_inputs.iter();
        let names = streaming_inputs
            .filter_map(|one| Some(format!("`{}`", analysis.inputs.get(one.index)?.name)));
        let names = names.collect::<Vec<_>>().join(", ");
        let how = failed.map(|failure| match failure.kind {
            FailureKind::Exit(code) => format!("exit code {code}"),
            _ => failure.message.clone(),
        });
        let why = match how {
            Some(how) => format!(
                "it failed ({how}). A program that seeks in its input, reads it twice, or has too little time can't read a streaming input: \
                 leave this input out of \"streaming\""
            ),
            None => "bytes were overwritten after the task read them".to_owned(),
        };
        format!(
            "tidemill: {names}: read as a streaming input, and {why}. The task was run again with the sealed input.\n"
        )
    }

    fn run_kernel(&mut self, analysis: &Analysis) -> Result<Prepared, Failure> {
        let directory = private_directory(self.parts, self.id());
        let reads = analysis.runtime_environment.reads_all();
        let reads = reads.then(|| ReadServer::new(self.parts, self.live, analysis));
        let inputs: Vec<_> = self.inputs.iter().flatten().cloned().collect();
        let request = runner::RunRequest {
            reads: reads.as_ref(),
            ..self.request(analysis, &directory, &inputs)
        };
        let RunResult {
            result,
            cpu,
            memory_bytes,
            kernel_hash,
            stdout,
            stderr,
        } = self.parts.runner.run(&request, &self.live.control);
        self.outcome.cpu = self.outcome.cpu + cpu;
        self.outcome.memory_bytes = memory_bytes;
        self.outcome.kernel_hash = kernel_hash;
        self.outcome.stdout = stdout;
        self.outcome.stderr = stderr;
        let Some(reads) = reads else { return result };
        self.outcome.transferred_bytes += reads.transferred_bytes();
        self.outcome.read_bytes += reads.read_bytes();
        // The task may succeed on a node that can read the bytes.
        match (result, reads.lost()) {
            (Err(failed), Some(lost)) if matches!(failed.kind, FailureKind::Exit(_)) => Err(lost),
            (result, _) => result,
        }
    }

    fn request<'a>(
        &self,
        analysis: &'a Analysis,
        directory: &'a Path,
        inputs: &'a [(String, PathBuf)],
    ) -> runner::RunRequest<'a> {
        runner::RunRequest {
            analysis,
            owner: self.owner(),
            directory,
            inputs,
            environment: self.environment(analysis),
            reads: None,
            joined: Mutex::default(),
        }
    }

    fn reads_all(&self) -> bool {
        match &self.live.label.operation {
            Operation::Analyse(analysis) => analysis.runtime_environment.reads_all(),
            _ => false,
        }
    }

    /// Checks that the inputs have the content hashes `expected`. An input whose object has no known hash is fetched and read.
    fn compare(&mut self, analysis: &Analysis, expected: &[String]) -> Result<(), Failure> {
        let other = |what: String| failure(FailureKind::Input, what);
        if !expected.is_empty() && expected.len() != analysis.inputs.len() {
            return Err(other("the number of inputs differs".into()));
        }
        let expected = expected.iter().enumerate();
        for (index, expected) in expected.filter(|(_, hash)| !hash.is_empty()) {
            let input = &analysis.inputs[index];
            if !input.selection.is_whole() {
                return Err(other(format!(
                    "input `{}` is not read as a whole",
                    input.name
                )));
            }
            let (path, _) = self.fetch(index, input)?;
            let hash = tidemill_sandbox::hash_file(&path)
                .map_err(|error| other(format!("input `{}` can't be read: {error}", input.name)))?;
            let same = hash == *expected;
            self.note(index, hash);
            if !same {
                return Err(other(format!(
                    "input `{}` differs from the expected content",
                    input.name
                )));
            }
        }
        Ok(())
    }

    /// Records the content hash of an input.
    fn note(&mut self, index: usize, hash: String) {
        let contents = &mut self.outcome.contents;
        contents.resize(contents.len().max(index + 1), String::new());
        contents[index] = hash;
    }

    /// Hashes the inputs that a task has read, if the cost is justified. The hash of an unreadable input stays unknown.
    fn hash_inputs(&mut self) {
        let Operation::Analyse(analysis) = &self.live.label.operation else {
            return;
        };
        let ran = self.outcome.result.is_ok() && self.outcome.reused.is_none();
        if !ran || !content::pays(self.outcome.cpu, self.inputs.len(), self.outcome.read_bytes) {
            return;
        }
        let inputs = std::mem::take(&mut self.inputs).into_iter().enumerate();
        let seen = inputs.filter_map(|(index, input)| Some((index, input?)));
        for (index, (name, path)) in seen {
            if self.live.control.is_cancelled() {
                return;
            }
            // Content hashes describe whole versions.
            let input = analysis.inputs.get(index);
            let is_whole = input.is_some_and(|input| input.selection.is_whole());
            if analysis.kernel.is_in(&name) || !is_whole {
                continue;
            }
            match tidemill_sandbox::hash_file(&path) {
                Ok(hash) => self.note(index, hash),
                Err(error) => {
                    tracing::warn!(%error, path = %path.display(), "an input can't be hashed")
                }
            }
        }
    }

    /// Uses the outputs of an earlier task as the outputs of this task: links objects of this node and fetches other objects. If this
    /// fails, the task must run.
    fn recall(&mut self, analysis: &Analysis, memory: &v1::CachedResult) -> TaskResult {
        let other = |what: &str| failure(FailureKind::Input, what.to_owned());
        let inputs: Vec<_> = analysis
            .inputs
            .iter()
            .filter_map(|input| Some((input.name.clone(), self.local(input.object)?.0)))
            .collect();
        let directory = private_directory(self.parts, self.id());
        let request = self.request(analysis, &directory, &inputs);
        if !(self.parts.runner).is_code(&request, &memory.kernel_hash) {
            return Err(other("the kernel's code has changed"));
        }
        let outputs =
            cached_result(analysis, memory).ok_or_else(|| other("its outputs do not fit"))?;
        self.outcome.kernel_start = now();
        let mut sealed = Vec::with_capacity(memory.outputs.len());
        for (index, (from, (output, name))) in (0..).zip(memory.outputs.iter().zip(outputs)) {
            let own = directory.with_extension(format!("{index}.again"));
            let linked = self.link(from, &own).and_then(|()| own_file(&own));
            let size = linked.and_then(|made| {
                let adopted = self.parts.store.adopt(output.object, &made);
                adopted.map_err(|error| store_failure(&error))
            });
            // The link still exists after a failure, and if the object already existed as the same file.
            let _ = std::fs::remove_file(&own);
            let size = size?;
            self.made.push(self.made_by(analysis, &output, size));
            let object = output.object;
            sealed.push(SealedOutput { object, size, name });
        }
        self.outcome.kernel_hash.clone_from(&memory.kernel_hash);
        self.outcome.reused = Some(TaskId(memory.task));
        Ok(sealed)
    }

    /// Creates `own` as a link to the file of a sealed object. The file is never changed under either name.
    fn link(&mut self, from: &v1::Input, own: &Path) -> Result<(), Failure> {
        let input = LabelInput::try_from(from);
        let input = input.map_err(|error| failure(FailureKind::Input, error.to_string()))?;
        if let Some((path, _)) = self.local(input.object) {
            let linked = std::fs::hard_link(&path, own).or_else(|error| match error.kind() {
                // The object is in memory, on another file system.
                std::io::ErrorKind::CrossesDevices => File::open(&path)
                    .and_then(|file| copy_file(file, own))
                    .map(drop),
                _ => Err(error),
            });
            return linked.map_err(|error| device_failure(own, &error));
        }
        let cancelled = || self.live.control.is_cancelled();
        let fetched = self
            .parts
            .fetcher
            .copy(&input, &from.capability, own, &cancelled);
        let transferred = fetched.map_err(|error| {
            fetch_failure(&error, |error| {
                failure(FailureKind::Input, error.to_string())
            })
        })?;
        self.outcome.transferred_bytes += transferred;
        Ok(())
    }

    /// Returns the number of bytes that a newly sealed object has written to the device.
    fn written(&mut self, object: ObjectId) -> u64 {
        let bytes = self.parts.store.allocated(object);
        self.wrote.push((object, bytes));
        bytes
    }

    fn made_by(&self, analysis: &Analysis, output: &LabelOutput, size: u64) -> ObjectRecord {
        ObjectRecord {
            id: output.object,
            size,
            owner: self.owner(),
            inode: output.inode.0,
            path: output.path.clone().into_bytes(),
            mode: None,
            task: Some(analysis.task.0),
            sealed_at: now(),
            part: None,
            hash: None,
            memory: false,
        }
    }

    fn environment(&self, analysis: &Analysis) -> Vec<(String, String)> {
        let variable = |name: &str, value: String| (format!("TIDEMILL_{name}"), value);
        let needs = &analysis.needs;
        let memory = (needs.memory_bytes > 0).then_some(needs.memory_bytes);
        let memory = memory.map(|bytes| variable("MEMORY_BYTES", bytes.to_string()));
        // A task without cores still uses a part of one.
        let cores = variable("CORES", needs.cores.max(1).to_string());
        let mut all = vec![
            variable("NODE", self.parts.node.to_string()),
            variable("JOB", analysis.job.to_string()),
            variable("TASK", analysis.task.to_string()),
            variable("TASK_NAME", analysis.name.clone()),
            cores,
        ];
        all.extend(memory);
        if !self.laid.is_empty() {
            let laid = serde_json::Value::from(self.laid.clone());
            all.push(variable("LAYOUT", laid.to_string()));
        }
        all
    }

    /// Returns the path and length of the file of an object that is sealed on this node.
    fn local(&self, object: ObjectId) -> Option<(PathBuf, u64)> {
        local(self.parts, object)
    }

    /// Returns the path and length of the file of an input, or of the values in the input. Fetches the bytes if necessary.
    fn fetch(&mut self, index: usize, input: &LabelInput) -> Result<(PathBuf, u64), Failure> {
        let Some(how) = input.selection.values() else {
            return self.fetch_bytes(index, input);
        };
        let Operation::Analyse(analysis) = &self.live.label.operation else {
            return Err(lacks(input, "holds values, which only a task can decode"));
        };
        let found: Option<Encoded> = serde_json::from_str(how).ok();
        // The bytes of the values may continue in the following inputs.
        let more = found.as_ref().map_or(0, Encoded::more);
        let files = analysis.inputs.get(index..=index.saturating_add(more));
        let files = files.ok_or_else(|| {
            let what = format!("continues in {more} further inputs, which the task does not have");
            failure(
                FailureKind::Kernel,
                format!("input `{}` {what}", input.name),
            )
        })?;
        let (described, mut stored, mut size) = (self.laid.len(), Vec::new(), 0);
        for (index, input) in (index..).zip(files) {
            let selection = input.selection.of_bytes();
            let bytes = LabelInput {
                selection,
                ..input.clone()
            };
            let (path, length) = self.fetch_bytes(index, &bytes)?;
            stored.push(path);
            size += length;
        }
        self.behind = more;
        let mut args = vec![format!("how={how}")];
        // The positions of the bytes say nothing about the values. For text, the decoder needs them to name the line of an error.
        let positions = self.laid.drain(described..).next();
        if let (Some(Encoded::Text { .. }), Some(positions)) = (&found, positions) {
            args.push(format!("lies={positions}"));
        }
        let values = self.decode((index, analysis), (input, &stored), args)?;
        self.laid
            .extend(found.map(|found| found.described(&input.name)));
        Ok((values, size))
    }

    /// Decodes values in a separate sandbox, because users control the bytes. Returns the path and length of the file of values.
    fn decode(
        &mut self,
        (index, analysis): (usize, &Analysis),
        (input, stored): (&LabelInput, &[PathBuf]),
        args: Vec<String>,
    ) -> Result<PathBuf, Failure> {
        let output = LabelOutput {
            name: "values".to_owned(),
            object: ObjectId(0),
            inode: Inode(0),
            path: String::new(),
            memory: false,
        };
        let analysis = Analysis {
            kernel: Kernel::Builtin("decode".to_owned()),
            args,
            inputs: Vec::new(),
            outputs: vec![output],
            stdin: None,
            stdout: None,
            streaming: Vec::new(),
            runtime_environment: RuntimeEnvironment::default(),
            ..analysis.clone()
        };
        let directory =
            private_directory(self.parts, self.id()).with_extension(format!("{index}.decode"));
        let inputs = (0..).zip(stored);
        let inputs: Vec<_> = inputs
            .map(|(number, path): (u32, _)| (format!("stored.{number}"), path.clone()))
            .collect();
        let request = runner::RunRequest {
            environment: Vec::new(),
            ..self.request(&analysis, &directory, &inputs)
        };
        let ran = self.parts.runner.run(&request, &self.live.control);
        self.outcome.cpu = self.outcome.cpu + ran.cpu;
        let to = directory.with_extension("values");
        let taken = ran
            .result
            .map_err(|failed| decode_failure(input, failed, &ran.stderr))
            .and_then(|prepared| {
                let made = prepared
                    .output("values")
                    .map_err(|error| unwritten(&error))?;
                let kept = close_for_ever(made.file()).and_then(|()| made.move_to(&to));
                kept.and_then(|()| made.file().metadata())
                    .map(|metadata| allocated(&metadata))
                    .map_err(|error| device_failure(&to, &error))
            });
        clean_directory(self.parts, &directory);
        self.parts.counters.on_written(taken?);
        self.decoded.push(to.clone());
        Ok(to)
    }

    fn forget_decoded(&mut self) {
        for path in self.decoded.drain(..) {
            if let Err(error) = std::fs::remove_file(&path) {
                tracing::warn!(%error, path = %path.display(), "values that were decoded can't be removed");
            }
        }
    }

    fn fetch_bytes(&mut self, index: usize, input: &LabelInput) -> Result<(PathBuf, u64), Failure> {
        if input.selection.is_whole() {
            if self.reads_all()
                && let Ok(locations) = input_locations((self.parts, self.live), index, input)
            {
                self.laid.push(layout_described(input, &locations.layout));
            }
            return self.fetch_whole(index, input);
        }
        let failed = |kind: FailureKind, error: &FetchError| {
            failure(kind, format!("input `{}`: {error}", input.name))
        };
        let locations = input_locations((self.parts, self.live), index, input);
        let locations = locations.map_err(|error| failed(FailureKind::Input, &error))?;
        let here = |object| Some(self.local(object)?.0);
        let cancelled = || self.live.control.is_cancelled();
        let lost = |error: &FetchError| failed(FailureKind::Input, error);
        let selected = self
            .parts
            .fetcher
            .selected(input, &locations, &here, &cancelled);
        let (selected, exact) = selected.map_err(|error| match error {
            // Another attempt would not find more.
            FetchError::Selection(_) => failed(FailureKind::Kernel, &error),
            error => fetch_failure(&error, lost),
        })?;
        let mut described = laid(input, &locations.layout, (&selected, exact));
        if self.reads_all()
            && let (Some(described), Some(more)) = (
                described.as_object_mut(),
                layout_described(input, &locations.layout).as_object_mut(),
            )
        {
            described.append(more);
        }
        let part = input.selection.of_part();
        let part = part.filter(|_| exact && input.selection.byte_ranges().is_none());
        let part = part.and_then(|part| locations.part(&input.name, part as usize));
        // A part whose trailing zeros are not stored is extended by the code below.
        let part = part.filter(|(part, _)| part.size > 0 && part.size == selected.length());
        if let Some((part, capability)) = part {
            self.laid.push(described);
            return self.fetch_object(&part, capability);
        }
        let chosen = (&locations, &selected, exact);
        let got = self.parts.fetcher.select(input, chosen, &here, &cancelled);
        self.laid.push(described);
        Ok(self.take_fetched(got.map_err(|error| fetch_failure(&error, lost))?))
    }

    fn take_fetched(&mut self, got: FetchedInput) -> (PathBuf, u64) {
        self.outcome.transferred_bytes += got.transferred_bytes;
        let found = (got.path.clone(), got.size);
        self.fetched.push(got);
        found
    }

    fn fetch_whole(&mut self, index: usize, input: &LabelInput) -> Result<(PathBuf, u64), Failure> {
        let way = self.live.ways.get(index);
        let layout = way.and_then(|way| way.layout.as_ref());
        let Some(layout) = layout.filter(|_| self.local(input.object).is_none()) else {
            let live = self.live;
            return self.fetch_object(input, live.capability(index));
        };
        let here = |object| self.parts.store.local_path(object);
        let cancelled = || self.live.control.is_cancelled();
        let fetcher = &self.parts.fetcher;
        let got = fetcher.assemble(input, (layout, self.parts.node), &here, &cancelled);
        let lost = |error: &FetchError| lacks(input, &format!("can't be assembled: {error}"));
        Ok(self.take_fetched(got.map_err(|error| fetch_failure(&error, lost))?))
    }

    /// Returns the path and length of the file of an object that is an input.
    fn fetch_object(
        &mut self,
        input: &LabelInput,
        capability: &[u8],
    ) -> Result<(PathBuf, u64), Failure> {
        if let Some(found) = self.local(input.object)
            && let Ok(held) = tidemill_client::object_file::open(&found.0)
        {
            self.held.push(held);
            return Ok(found);
        }
        if input.node == self.parts.node && self.parts.backend.is_none() {
            // The server learns about the corruption before this label ends, and sends the label to another node.
            let what = scrub::look(self.parts, input.object);
            let corruption = what.map_or_else(String::new, |what| format!(": there it {what}"));
            let message = format!("is not on node {}{corruption}", input.node);
            return Err(lacks(input, &message));
        }
        let cancelled = || self.live.control.is_cancelled();
        let got = self
            .parts
            .fetcher
            .fetch_or_share(input, capability, &cancelled);
        let lost = |error: &FetchError| {
            let from = input.node;
            lacks(
                input,
                &format!("can't be fetched from node {from}: {error}"),
            )
        };
        Ok(self.take_fetched(got.map_err(|error| fetch_failure(&error, lost))?))
    }

    /// Stores the outputs of the ended kernel one after the other, in the order in which they are found. Storing the first output also
    /// takes the output directory back from the user.
    fn take_outputs(&mut self, prepared: &Prepared, analysis: &Analysis) -> TaskResult {
        let mut sealed = Vec::with_capacity(analysis.outputs.len());
        let mut left = RemainingLimits {
            files: usize::try_from(directory::FILES_MAX).unwrap_or(usize::MAX),
            path_bytes: directory::PATH_BYTES_MAX,
        };
        let (limit, mut total) = (analysis.limits.output_bytes, 0_u64);
        for output in &analysis.outputs {
            let files = files_of(prepared, output, &mut left)?;
            // Checks the total first: one file may have several names, and each name becomes a file.
            let bytes = files
                .iter()
                .fold(0_u64, |sum, file| sum.saturating_add(file.size));
            if total.saturating_add(bytes) > limit {
                return Err(over(limit));
            }
            for SealedOutput { object, name, .. } in files {
                let output = below(output, object, &name);
                let made = prepared.output(&output.name).map_err(|e| unwritten(&e))?;
                let size = made.size().map_err(|error| {
                    let message = format!("output `{}` can't be read: {error}", output.name);
                    failure(FailureKind::Device, message)
                })?;
                total = total.saturating_add(size);
                if total > limit {
                    return Err(over(limit));
                }
                let in_memory = match output.memory {
                    true => self.parts.store.adopt_in_memory(object, &made),
                    false => Ok(None),
                };
                let in_memory = in_memory.map_err(|error| store_failure(&error))?;
                let size = match in_memory {
                    Some(size) => size,
                    None => {
                        let adopted = self.parts.store.adopt(object, &made);
                        adopted.map_err(|error| store_failure(&error))?
                    }
                };
                let memory = in_memory.is_some();
                if memory {
                    let written = self.parts.store.allocated(object);
                    self.outcome.written_bytes += written;
                    self.outcome.in_memory_bytes += written;
                } else {
                    self.outcome.written_bytes += self.written(object);
                }
                self.made.push(ObjectRecord {
                    memory,
                    ..self.made_by(analysis, &output, size)
                });
                sealed.push(SealedOutput { object, size, name });
            }
        }
        Ok(sealed)
    }

    fn copy(
        &mut self,
        from: &LabelInput,
        (to, part, mode): (&LabelOutput, Option<PartOf>, Option<u32>),
        phase: &dyn Fn(&'static str),
    ) -> TaskResult {
        phase("fetching");
        self.outcome.kernel_start = self.outcome.start;
        let directory = private_directory(self.parts, self.id());
        let own = directory.with_extension("copy");
        // A corrupt local replica is recreated from another replica.
        let recreates = from.object == to.object && from.node != self.parts.node;
        let local = self.local(from.object).filter(|_| !recreates);
        let local = local.map(|(path, _)| path);
        let fetched = local.is_none();
        let transferred = match local {
            Some(path) => File::open(&path)
                .and_then(|file| copy_file(file, &own))
                .map(|_| 0)
                .map_err(|error| device_failure(&own, &error))?,
            None => self
                .parts
                .fetcher
                .copy(from, self.live.capability(0), &own, &|| {
                    self.live.control.is_cancelled()
                })
                .map_err(|error| {
                    fetch_failure(&error, |error| {
                        let message = format!(
                            "object {:016x} can't be copied from node {}: {error}",
                            from.object.0, from.node
                        );
                        failure(FailureKind::Input, message)
                    })
                })?,
        };
        self.outcome.transferred_bytes = transferred;
        let hash = self.confirmed(from, &own, fetched).inspect_err(|_| {
            // The caller reports the error of the comparison.
            let _ = std::fs::remove_file(&own);
        })?;
        let size = own_file(&own).and_then(|made| {
            let adopted = self.parts.store.adopt(to.object, &made);
            adopted.map_err(|error| store_failure(&error))
        });
        let size = size.inspect_err(|_| {
            // The caller reports the error of the store.
            let _ = std::fs::remove_file(&own);
        })?;
        // The source may be removed as soon as the outcome is reported, so the replica must be durable before.
        let named = ObjectFile {
            path: to.path.clone(),
            part: part.is_some(),
            hash: Some(hash),
        };
        for durable in self.parts.store.make_durable(&[(to.object, named)]) {
            durable.map_err(|error| {
                self.parts.remove_if_unkept(to.object);
                store_failure(&error)
            })?;
        }
        self.outcome.read_bytes = size;
        self.outcome.written_bytes = self.written(to.object);
        self.made.push(ObjectRecord {
            id: to.object,
            size,
            owner: self.owner(),
            inode: to.inode.0,
            path: to.path.clone().into_bytes(),
            mode,
            task: None,
            sealed_at: now(),
            part,
            hash: Some(hash),
            memory: false,
        });
        scrub::forget_corrupt(self.parts, to.object);
        Ok(vec![SealedOutput::file(to.object, size)])
    }

    /// Returns the hash of a file that was copied from an object. Fails if the source object was sealed with another hash.
    fn confirmed(&self, from: &LabelInput, own: &Path, fetched: bool) -> Result<Hash, Failure> {
        let hash = scrub::hash_file(own).map_err(|error| device_failure(own, &error))?;
        let cancelled = || self.live.control.is_cancelled();
        let same = if fetched {
            let asked = self
                .parts
                .fetcher
                .confirm(from, self.live.capability(0), &hash);
            asked.map_err(|error| failure(FailureKind::Input, error.to_string()))?
        } else {
            scrub::confirm(self.parts, from.object, &hash, &cancelled)
                .map_err(|error| failure(FailureKind::Device, error.to_string()))?
        };
        if same {
            return Ok(hash);
        }
        let message = format!(
            "object {:016x} from node {}: the bytes differ from the sealed object: it is corrupt there, or was corrupted in transit",
            from.object.0, from.node
        );
        Err(failure(FailureKind::Input, message))
    }

    /// Removes all objects that can be removed. Returns the first failure; the effects list the removed objects even after a failure.
    fn remove(&mut self, objects: &[ObjectId]) -> TaskResult {
        self.outcome.kernel_start = self.outcome.start;
        let mut failed = None;
        for &object in objects.iter().filter(|object| object.is_data()) {
            self.parts.counters.on_removed(object);
            match self.parts.store.remove(object) {
                Ok(_) => self.removed.push(object),
                Err(error) => {
                    tracing::warn!(%error, %object, "an object can't be removed yet");
                    failed.get_or_insert(error);
                }
            }
        }
        match failed {
            None => Ok(Vec::new()),
            Some(error) => {
                self.outcome.removed.clone_from(&self.removed);
                Err(store_failure(&error))
            }
        }
    }

    /// Removes the objects that were stored before a failure.
    fn discard(&mut self) {
        for object in self.made.drain(..) {
            if let Err(error) = self.parts.store.remove(object.id) {
                tracing::warn!(%error, object = %object.id, "an output of a failed task can't be removed");
            }
        }
    }

    fn count(&self) {
        let outcome = &self.outcome;
        let counters = &self.parts.counters;
        // A copy writes exactly the bytes that it fetches.
        let fetched = match self.live.label.operation {
            Operation::Analyse(_) => outcome.transferred_bytes,
            Operation::Copy { .. } | Operation::Remove { .. } | Operation::Verify { .. } => 0,
        };
        counters.on_written(outcome.written_bytes.saturating_add(fetched));
        if let (Operation::Analyse(analysis), Ok(_)) = (&self.live.label.operation, &outcome.result)
            && outcome.reused.is_none()
        {
            let Span(run_ns) = outcome.end.since(outcome.kernel_start);
            counters.on_run(analysis.kernel.name(), run_ns, outcome.read_bytes);
        }
    }
}

/// Returns the path and length of the file of an object that is sealed on this node.
pub(crate) fn local(parts: &ExecutorParts, object: ObjectId) -> Option<(PathBuf, u64)> {
    let stat = parts.store.stat(object).ok()?;
    let path = parts.store.local_path(object)?;
    stat.sealed.then_some((path, stat.size))
}

/// Returns whether an object is still being written on this node. A sealed object whose file is missing is not: nobody will write it.
pub(crate) fn is_unsealed(parts: &ExecutorParts, object: ObjectId) -> bool {
    local(parts, object).is_none() && !is_recorded(&parts.db, object)
}

fn is_recorded(db: &Db, object: ObjectId) -> bool {
    let recorded = |db: &rusqlite::Connection| records::has_object(db, object);
    db.read(recorded).unwrap_or(false)
}

pub(crate) fn input_locations(
    (parts, live): (&ExecutorParts, &Live),
    index: usize,
    input: &LabelInput,
) -> Result<InputLocations, FetchError> {
    let way = live.ways.get(index);
    if let Some(layout) = way.and_then(|way| way.layout.as_ref()) {
        return InputLocations::parted(layout, input.size);
    }
    // The label does not know the length of an object that an earlier label made here.
    let size = local(parts, input.object).map_or(input.size, |(_, size)| size);
    Ok(InputLocations::whole(input, size, live.capability(index)))
}

/// Returns the description, for a kernel, of an input that the kernel may read completely.
fn layout_described(input: &LabelInput, layout: &Layout) -> serde_json::Value {
    let mut described = serde_json::json!({ "input": input.name, "size": layout.size() });
    if let Layout::Striped(striped) = layout {
        described["unit"] = striped.unit.into();
        described["width"] = striped.parts.len().into();
    }
    described
}

/// Returns the description, for a kernel, of a partial input: a whole part, or byte ranges of the version or of a part.
fn laid(
    input: &LabelInput,
    layout: &Layout,
    (selected, exact): (&SelectedBytes<'_>, bool),
) -> serde_json::Value {
    let mut described = serde_json::json!({ "input": input.name, "size": layout.size() });
    let part = input.selection.of_part().filter(|_| exact);
    if let (Some(part), Layout::Striped(striped)) = (part, layout) {
        described["part"] = part.into();
        described["unit"] = striped.unit.into();
        described["width"] = striped.parts.len().into();
    }
    let whole = part.is_some() && input.selection.byte_ranges().is_none();
    if selected.ranges().len() > RANGES_MAX {
        described["more"] = true.into();
    } else if !whole {
        let ranges = selected
            .ranges()
            .iter()
            .map(|range| [range.start, range.end]);
        described["bytes"] = serde_json::json!(ranges.collect::<Vec<_>>());
    }
    described
}

/// Returns the failure of an input whose values can't be decoded; a retry would fail, too.
fn decode_failure(input: &LabelInput, failed: Failure, printed: &str) -> Failure {
    let ranges = input.selection.byte_ranges().is_some();
    let part = input.selection.of_part().filter(|_| ranges);
    let part = part.map_or_else(String::new, |part| format!(" (part {part})"));
    let (kind, why) = match failed.kind {
        FailureKind::Exit(_) => (
            FailureKind::Kernel,
            printed.trim().trim_start_matches("decode: "),
        ),
        kind => (kind, failed.message.as_str()),
    };
    failure(kind, format!("input `{}`{part}: {why}", input.name))
}

/// Returns the failure for an input that is not available.
fn lacks(input: &LabelInput, what: &str) -> Failure {
    let message = format!(
        "input `{}` (object {:016x}) {what}",
        input.name, input.object.0
    );
    failure(FailureKind::Input, message)
}

pub(crate) fn failure(kind: FailureKind, message: String) -> Failure {
    Failure { kind, message }
}

/// Returns the destination of one file of an output: the output itself, or the file `name` if the output is a directory.
fn below(output: &LabelOutput, object: ObjectId, name: &str) -> LabelOutput {
    if name.is_empty() {
        return output.clone();
    }
    LabelOutput {
        name: format!("{}{name}", output.name),
        object,
        inode: Inode(output.inode.0 + (object.0 - output.object.0)),
        path: format!("{}/{name}", output.path),
        memory: output.memory,
    }
}

/// Remaining limits of the directories among a task's outputs.
struct RemainingLimits {
    files: usize,
    path_bytes: usize,
}

/// Returns the files of an output: the output's file, or the files of its directory.
fn files_of(
    prepared: &Prepared,
    output: &LabelOutput,
    left: &mut RemainingLimits,
) -> Result<Vec<SealedOutput>, Failure> {
    if !directory::is_directory(&output.name) {
        return Ok(vec![SealedOutput::file(output.object, 0)]);
    }
    let most = DirectoryBounds {
        files: left.files,
        depth: directory::DEPTH_MAX,
    };
    let found = prepared.output_files(&output.name, most);
    let found = found.map_err(|error| unwritten(&error))?;
    let mut files = Vec::with_capacity(found.len());
    for (object, (name, size)) in output.objects().zip(found) {
        let name = name[output.name.len()..].to_owned();
        let object = ObjectId(object);
        let path_bytes = output.path.len() + 1 + name.len();
        let fits = left.path_bytes.checked_sub(path_bytes);
        let Some(path_bytes_left) = fits.filter(|_| path_bytes <= MAX_PATH_BYTES) else {
            let message = format!(
                "the names in the output {:?} are too long: a path has at most {MAX_PATH_BYTES} bytes, and all of a task \
                 have at most {} together; use shorter names",
                output.name,
                directory::PATH_BYTES_MAX
            );
            return Err(failure(FailureKind::OutputLimit, message));
        };
        left.path_bytes = path_bytes_left;
        files.push(SealedOutput { object, size, name });
    }
    left.files -= files.len();
    Ok(files)
}

/// Returns the files of the outputs of an earlier task, each with its name in the output directory. `None` if the earlier outputs do not
/// match the outputs of this task.
fn cached_result(
    analysis: &Analysis,
    memory: &v1::CachedResult,
) -> Option<Vec<(LabelOutput, String)>> {
    let outputs = &analysis.outputs;
    let names = memory.outputs.iter().map(|file| file.name.as_str());
    let owners = directory::outputs_of(outputs.iter().map(|one| one.name.as_str()), names)?;
    let mut objects: Vec<_> = outputs.iter().map(LabelOutput::objects).collect();
    let file = |(file, owner): (&v1::Input, usize)| {
        let output = &outputs[owner];
        let object = ObjectId(objects[owner].next()?);
        let name = if directory::is_directory(&output.name) {
            &file.name[output.name.len()..]
        } else {
            ""
        };
        Some((below(output, object, name), name.to_owned()))
    };
    memory.outputs.iter().zip(owners).map(file).collect()
}

fn over(limit: u64) -> Failure {
    let message = format!("the outputs have more than the limit of {limit} bytes together");
    failure(FailureKind::OutputLimit, message)
}

fn unwritten(error: &OutputError) -> Failure {
    let kind = match error {
        OutputError::Io { .. } => FailureKind::Device,
        OutputError::TooMany { .. } => FailureKind::OutputLimit,
        _ => FailureKind::MissingOutput,
    };
    failure(kind, error.to_string())
}

fn store_failure(error: &StoreError) -> Failure {
    failure(FailureKind::Device, error.to_string())
}

fn device_failure(path: &Path, error: &std::io::Error) -> Failure {
    let message = format!("the node can't write {}: {error}", path.display());
    failure(FailureKind::Device, message)
}

fn fetch_failure(error: &FetchError, input: impl Fn(&FetchError) -> Failure) -> Failure {
    match error {
        FetchError::Cancelled => failure(FailureKind::Cancelled, "the label was aborted".into()),
        FetchError::Device { path, source } => device_failure(path, source),
        error => input(error),
    }
}

/// Opens a file of this node that is about to become an object.
fn own_file(path: &Path) -> Result<PrivateFile, Failure> {
    PrivateFile::open(path).map_err(|error| device_failure(path, &error))
}

fn copy_file(mut from: File, path: &Path) -> std::io::Result<u64> {
    let mut to = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    std::io::copy(&mut from, &mut to)
}
