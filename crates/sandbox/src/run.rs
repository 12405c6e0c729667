//! Description of a run and of its end: the plain data types of this crate's API.

use std::path::PathBuf;
use std::time::Duration;

/// Maximum number of last bytes that are kept of a kernel's standard output, and of its standard error.
pub const TAIL_BYTES_MAX: usize = 64 << 10;

/// Source of a kernel's code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CodeSource {
    /// Built-in kernel; see [`tidemill_compute::builtin_names`].
    Builtin(String),
    /// Native shared object (see `include/tidemill_kernel.h`).
    Native(PathBuf),
    /// WebAssembly module with the same interface as native kernels. It has no standard input.
    Wasm(PathBuf),
    /// Executable file: a program of the host, or a stored program or script. A file that the task's user may not execute, such as a sealed
    /// object, is copied into the private directory first. Scripts name their interpreter in their first line (`#!`).
    Program(PathBuf),
    /// Pipeline of kernels in one confined tree of processes: the first kernel reads the inputs, each later kernel reads the output of the
    /// previous one, and the last kernel writes the standard output. No stage is itself a pipeline. The arguments of the run are not used.
    Pipeline(Vec<RunStage>),
}

impl CodeSource {
    /// Returns the code that is executed: this code itself, or the stages of a pipeline.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Self> {
        let (single, stages) = match self {
            Self::Pipeline(stages) => (None, stages.as_slice()),
            single => (Some(single), [].as_slice()),
        };
        single
            .into_iter()
            .chain(stages.iter().map(|stage| &stage.code))
    }

    /// Returns the file that contains the code, if any.
    pub(crate) fn file(&self) -> Option<&PathBuf> {
        match self {
            Self::Native(path) | Self::Wasm(path) | Self::Program(path) => Some(path),
            Self::Builtin(_) | Self::Pipeline(_) => None,
        }
    }
}

/// One kernel of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunStage {
    /// Code of the stage's kernel.
    pub code: CodeSource,
    /// Arguments of the kernel, without the kernel's own name.
    pub args: Vec<String>,
}

/// Part of a kernel's work that a run does. All parts except the first are for folds of users (see `include/tidemill_kernel.h`); partial
/// states are output 0, and inputs, of such runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum RunPart {
    /// The run does all work: from whole inputs to the result.
    #[default]
    Whole,
    /// The run folds a piece of an input, the run's only input, to a partial state.
    Piece {
        /// Number of the input that the piece belongs to, from 0.
        input: usize,
        /// Offset of the piece in the input, in bytes: a multiple of [`crate::child::PIECE_ALIGN`].
        offset: u64,
    },
    /// The run merges partial states to one partial state.
    Merge,
    /// The run computes the result from partial states.
    Finish,
}

/// File that the kernel of a run may read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunInput {
    /// Path of the file that the kernel sees, relative to the run's private directory; may contain `/`.
    pub name: String,
    /// Absolute path of the file itself.
    pub path: PathBuf,
}

/// Form of the inputs in the private directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum InputsAs {
    /// Inputs are hard links, for a node that runs as root: the files belong to another user than the task's, so the task can read but
    /// never change them. [`crate::Launcher::prepare`] refuses files that the task could change.
    #[default]
    HardLink,
    /// Inputs are symbolic links, with a sandbox rule that allows reading their targets. This form needs Landlock.
    Symlink,
}

/// Limits of one run. A run that exceeds a limit is killed, with all its processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunLimits {
    /// Maximum wall-clock time of the run.
    pub time: Duration,
    /// Maximum private memory, in bytes: of each process (allocation fails) and of all processes together (the run is killed). Inputs that
    /// are mapped for reading do not count.
    pub memory_bytes: u64,
    /// Maximum total size of all files in the private directory except the inputs, in bytes; also the maximum size of each file.
    pub output_bytes: u64,
    /// Maximum number of processes of the run at one time, not counting threads.
    pub processes: u32,
    /// Maximum processor time, in hundredths of a processor. The limit applies if the system has control groups for it and once the run has
    /// lasted for a moment. `None` means no limit.
    pub cpu_percent: Option<u32>,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self {
            time: Duration::from_secs(3600),
            memory_bytes: 8 << 30,
            output_bytes: 64 << 30,
            processes: 512,
            cpu_percent: None,
        }
    }
}

/// User whose rights a kernel has, as ids of the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct User {
    /// Numeric user id.
    pub uid: u32,
    /// Numeric group id; the kernel has no further groups.
    pub gid: u32,
}

/// Environment variable for the pipes of a run that may ask: their names are its value with the suffixes `.ask` and `.answer`.
pub const READ_VARIABLE: &str = "TIDEMILL_READ";

/// Environment variable that is set if a kernel is one of several ranks; see [`crate::Prepared::join`].
pub const RANKS_VARIABLE: &str = "TIDEMILL_MPI";

/// One run of a kernel.
#[derive(Clone, Debug)]
pub struct Run {
    /// Code of the kernel.
    pub code: CodeSource,
    /// Arguments of the kernel, without the kernel's own name.
    pub args: Vec<String>,
    /// Absolute path of the private directory: made by [`crate::Launcher::prepare`], the kernel's working directory, and the only place
    /// that the kernel can write to. The caller must remove the directory.
    pub directory: PathBuf,
    /// Part of the kernel's work that the run does.
    pub part: RunPart,
    /// All files that the kernel may read in addition to the system's programs and libraries.
    pub inputs: Vec<RunInput>,
    /// Paths of the output files, relative to the private directory. Their parent directories are made; the files are not. A path with a
    /// slash at its end is an output directory, which is made.
    pub outputs: Vec<String>,
    /// Name among `inputs` that becomes the standard input; `None` for an empty standard input.
    pub stdin: Option<String>,
    /// Name among `outputs` that receives the standard output; if `None`, the last bytes of the standard output are kept in [`Exit`].
    pub stdout: Option<String>,
    /// User whose rights the kernel gets. `None` stands for the user of this process, without any capabilities. `Some` needs root.
    pub user: Option<User>,
    /// Limits of the run.
    pub limits: RunLimits,
    /// Form of the inputs in the private directory.
    pub inputs_as: InputsAs,
    /// Absolute paths of further files and directories that the kernel may read and execute.
    pub readable: Vec<PathBuf>,
    /// Absolute paths of directories of the host that the kernel may read and execute from in addition to those of all kernels. A path that
    /// has become a link, or contains a link, is not used.
    pub shown: Vec<PathBuf>,
    /// Directories that precede the directories of all kernels in the kernel's `PATH`.
    pub path: Vec<PathBuf>,
    /// Further environment variables of the kernel; if a name occurs several times, the last value counts.
    pub environment: Vec<(String, String)>,
    /// Whether the kernel may ask its starter, through two pipes that [`READ_VARIABLE`] names.
    pub asks: bool,
}

impl Run {
    /// Returns a run of `code` in `directory` without inputs, outputs and arguments, under the default limits.
    #[must_use]
    pub fn new(code: CodeSource, directory: impl Into<PathBuf>) -> Self {
        Self {
            code,
            args: Vec::new(),
            directory: directory.into(),
            part: RunPart::default(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            stdin: None,
            stdout: None,
            user: None,
            limits: RunLimits::default(),
            inputs_as: InputsAs::default(),
            readable: Vec::new(),
            shown: Vec::new(),
            path: Vec::new(),
            environment: Vec::new(),
            asks: false,
        }
    }
}

/// Cause of the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// The kernel's first process ended with this code; 0 is success.
    Code(i32),
    /// A signal ended the kernel's first process.
    Signal(i32),
    /// The run exceeded its time limit and was killed.
    TimeLimit,
    /// The run exceeded its memory limit. This is certain if it was killed for its memory in use. If an allocation failed and the kernel
    /// ended itself, the text on standard error is the only evidence.
    MemoryLimit,
    /// The run exceeded its output limit.
    OutputLimit,
    /// The run exceeded its limit of processes and was killed.
    ProcessLimit,
    /// The operating system ended the run because all kernels of its launcher together exceeded their memory limit.
    GroupLimit,
    /// [`crate::Control::cancel`] killed the run.
    Cancelled,
}

/// Resources that a run used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RunUsage {
    /// Wall-clock time of the run from before the fork to the end.
    pub wall: Duration,
    /// Processor time in user mode of the first process and all its descendants.
    pub user_cpu: Duration,
    /// Processor time in system mode of the first process and all its descendants.
    pub system_cpu: Duration,
    /// Largest resident set of one process, in bytes.
    pub rss_bytes_max: u64,
    /// Total size of all files in the private directory at the end, without inputs, in bytes.
    pub written_bytes: u64,
}

/// Last bytes of a kernel's output stream.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct StreamTail {
    /// The last bytes of the stream, at most [`TAIL_BYTES_MAX`].
    pub bytes: Vec<u8>,
    /// Total number of bytes that the kernel wrote to the stream.
    pub total_bytes: u64,
}

impl StreamTail {
    /// Returns the kept bytes as text; invalid UTF-8 is replaced.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.total_bytes += bytes.len() as u64;
        let new = &bytes[bytes.len().saturating_sub(TAIL_BYTES_MAX)..];
        let excess = (self.bytes.len() + new.len()).saturating_sub(TAIL_BYTES_MAX);
        self.bytes.drain(..excess);
        self.bytes.extend_from_slice(new);
    }
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Exit {
    /// Cause of the run's end.
    pub end: RunEnd,
    /// Resources that the run used.
    pub usage: RunUsage,
    /// Last bytes of the kernel's standard error.
    pub stderr: StreamTail,
    /// Last bytes of the kernel's standard output; empty if an output file received the standard output.
    pub stdout: StreamTail,
}

impl Exit {
    /// Returns whether the kernel succeeded.
    #[must_use]
    pub fn success(&self) -> bool {
        self.end == RunEnd::Code(0)
    }

    /// Returns a description of the run's end for the user, in one sentence.
    #[must_use]
    pub fn message(&self, limits: &RunLimits) -> String {
        match self.end {
            RunEnd::Code(0) => "the kernel ended well".into(),
            RunEnd::Code(code) => format!(
                "the kernel ended with exit code {code}{}",
                self.perhaps_memory(limits)
            ),
            RunEnd::Signal(signal) => format!(
                "the kernel was ended by signal {signal} ({}){}",
                signal_name(signal),
                self.perhaps_memory(limits)
            ),
            RunEnd::TimeLimit => format!(
                "the kernel exceeded its time limit of {} s and was killed; raise limits.time if it needs longer",
                limits.time.as_secs_f64()
            ),
            RunEnd::MemoryLimit => format!(
                "the kernel wanted more than its memory limit of {} bytes; raise limits.memory if it needs more",
                limits.memory_bytes
            ),
            RunEnd::OutputLimit => format!(
                "the kernel wrote more than its output limit of {} bytes; raise limits.output if it needs more",
                limits.output_bytes
            ),
            RunEnd::ProcessLimit => format!(
                "the kernel had more than {} processes at once and was killed",
                limits.processes
            ),
            RunEnd::GroupLimit => "the kernel was killed: all kernels of this node together wanted more memory than \
                                they may have (kernels-memory of the node); it may pass when fewer run at once"
                .into(),
            RunEnd::Cancelled => "the run was cancelled".into(),
        }
    }
}

impl Exit {
    /// Returns the memory limit as a possible cause of a failure, if a refused request for memory may be the cause. Nothing reports a
    /// refused request, and many programs do not check the result.
    fn perhaps_memory(&self, limits: &RunLimits) -> String {
        let used = self.usage.rss_bytes_max;
        let perhaps = match self.end {
            RunEnd::Signal(signal) => {
                [libc::SIGSEGV, libc::SIGABRT, libc::SIGBUS, libc::SIGTRAP].contains(&signal)
            }
            _ => self.stderr.text().trim().is_empty() || used >= limits.memory_bytes / 10 * 9,
        };
        if !perhaps {
            return String::new();
        }
        format!(
            "; if it requested more than its memory limit of {} bytes (limits.memory), the request was refused: it used {used} at most",
            limits.memory_bytes
        )
    }
}

/// Returns the name of a signal, for messages.
fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGABRT => "aborted",
        libc::SIGBUS => "bus error",
        libc::SIGFPE => "arithmetic error",
        libc::SIGHUP => "hang-up",
        libc::SIGILL => "illegal instruction",
        libc::SIGINT => "interrupted",
        libc::SIGKILL => "killed",
        libc::SIGPIPE => "broken pipe",
        libc::SIGSEGV => "invalid memory access",
        libc::SIGSYS => "forbidden system call",
        libc::SIGTERM => "terminated",
        libc::SIGTRAP => "trap",
        libc::SIGXCPU => "processor time limit",
        libc::SIGXFSZ => "file size limit",
        _ => "see signal(7)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stderr_tail_keeps_last_bytes() {
        let mut tail = StreamTail::default();
        tail.push(&vec![b'a'; TAIL_BYTES_MAX]);
        tail.push(b"the end");
        assert_eq!(tail.bytes.len(), TAIL_BYTES_MAX);
        assert_eq!(tail.total_bytes, TAIL_BYTES_MAX as u64 + 7);
        assert!(tail.bytes.ends_with(b"athe end"));
        tail.push(&vec![b'b'; 3 * TAIL_BYTES_MAX]);
        assert_eq!(tail.bytes, vec![b'b'; TAIL_BYTES_MAX]);
    }
}
