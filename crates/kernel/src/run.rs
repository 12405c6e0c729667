//! What to run and what became of it: the plain types of this crate's API.

use std::path::PathBuf;
use std::time::Duration;

/// Bytes of a kernel's standard output and standard error that are kept, from the end.
pub const TAIL_BYTES_MAX: usize = 64 << 10;

/// Where a kernel's code comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// A kernel that is part of this crate; see [`crate::builtin_names`].
    Builtin(String),
    /// A native shared object (see `include/tidemill_kernel.h`).
    Native(PathBuf),
    /// A WebAssembly module with the same interface. It has no standard input.
    Wasm(PathBuf),
    /// An executable file: a program of the host, or a stored program or script. A file that the task's
    /// user may not execute, such as a sealed object, is copied into the private folder first. Scripts
    /// name their interpreter in their first line (`#!`).
    Program(PathBuf),
    /// Kernels one behind the other in one confined tree of processes: the first reads the inputs, each other
    /// what the one before writes, and the last writes the standard output. No stage is a stack itself. The
    /// arguments of the run are not used.
    Stack(Vec<Stage>),
}

impl Code {
    /// What is really run: itself, or the stages of a stack.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Self> {
        let (single, stages) = match self {
            Self::Stack(stages) => (None, stages.as_slice()),
            single => (Some(single), [].as_slice()),
        };
        single
            .into_iter()
            .chain(stages.iter().map(|stage| &stage.code))
    }

    /// The file that holds it, if one does.
    pub(crate) fn file(&self) -> Option<&PathBuf> {
        match self {
            Self::Native(path) | Self::Wasm(path) | Self::Program(path) => Some(path),
            Self::Builtin(_) | Self::Stack(_) => None,
        }
    }
}

/// One kernel of a stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stage {
    /// Its code.
    pub code: Code,
    /// Its arguments, without its own name.
    pub args: Vec<String>,
}

/// What of its work a run does. All but the first are for folds of one's own (see `include/tidemill_kernel.h`);
/// partial states are output 0, and inputs, of such runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Part {
    /// All of it: from whole inputs to the result.
    #[default]
    Whole,
    /// From a piece of an input, which is the run's only input, to a partial state.
    Piece {
        /// Number of the input that it is a piece of, from 0.
        input: usize,
        /// Where in that input it begins, in bytes: a multiple of [`crate::child::PIECE_ALIGN`].
        offset: u64,
    },
    /// From partial states to one of all of them.
    Merge,
    /// From partial states to the result.
    Finish,
}

/// A file the kernel may read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunInput {
    /// The path the kernel sees, relative to its private folder; may contain `/`.
    pub name: String,
    /// The file itself, absolute.
    pub path: PathBuf,
}

/// How inputs appear in the private folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum InputsAs {
    /// Hard links, for an element that runs as root: the files belong to another user than the task's, so
    /// the task can read but never change them. [`crate::Launcher::prepare`] refuses files that it could.
    #[default]
    HardLink,
    /// Symbolic links, with a rule of the sandbox that allows reading the file they lead to. Needs
    /// Landlock.
    Symlink,
}

/// Bounds on one run. What goes beyond is killed, with all its processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Wall-clock time.
    pub time: Duration,
    /// Private memory, in bytes: of each process (allocation fails) and of all together (killed). Inputs
    /// that are mapped to be read do not count.
    pub memory_bytes: u64,
    /// All that may lie in the private folder beside the inputs, in bytes; also the size of each file.
    pub output_bytes: u64,
    /// Processes (threads not counted) that may exist at once.
    pub processes: u32,
    /// Time of processors, in hundredths of one, where the system has control groups for that and once the run has
    /// lasted for a moment; `None`: what there is.
    pub cpu_percent: Option<u32>,
}

impl Default for Limits {
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

/// Whose rights a kernel has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct User {
    /// Numeric user id.
    pub uid: u32,
    /// Numeric group id; there are no further groups.
    pub gid: u32,
}

/// The variable whose value, with `.ask` and `.answer` behind it, are the pipes of a run that may ask.
pub const READ_VARIABLE: &str = "TIDEMILL_READ";

/// The variable that is set where a kernel is one of several ranks; see [`crate::Prepared::join`].
pub const RANKS_VARIABLE: &str = "TIDEMILL_MPI";

/// One run of a kernel.
#[derive(Clone, Debug)]
pub struct Run {
    /// The code.
    pub code: Code,
    /// Its arguments, without the kernel's own name.
    pub args: Vec<String>,
    /// The private folder, absolute: made by [`crate::Launcher::prepare`], the kernel's working
    /// directory, and all that it can write. Removing it is left to the caller.
    pub folder: PathBuf,
    /// What of its work it does.
    pub part: Part,
    /// Everything it may read beside the system's programs and libraries.
    pub inputs: Vec<RunInput>,
    /// The paths of the files that it is to write, relative to the private folder. Folders that they lie
    /// in are made; the files are not. A path with a slash at its end is a folder that it is to fill, which is made.
    pub outputs: Vec<String>,
    /// Name among `inputs` that becomes its standard input (else that is empty).
    pub stdin: Option<String>,
    /// Name among `outputs` that takes its standard output (else the end of it is kept in [`Exit`]).
    pub stdout: Option<String>,
    /// Whose rights it gets. `None`: those of this process, less all capabilities. Needs root otherwise.
    pub user: Option<User>,
    /// Bounds.
    pub limits: Limits,
    /// How inputs appear.
    pub inputs_as: InputsAs,
    /// Further files and folders that it may read and execute, absolute.
    pub readable: Vec<PathBuf>,
    /// Folders of the host that it may read and execute from beside those of all kernels, absolute, and with no link on
    /// the way: where one has come to be there is none that it could have.
    pub shown: Vec<PathBuf>,
    /// Folders that come before those of all kernels in its `PATH`.
    pub path: Vec<PathBuf>,
    /// Further environment variables; of one name the last holds.
    pub environment: Vec<(String, String)>,
    /// Whether it may ask whoever runs it, by two pipes that [`READ_VARIABLE`] names.
    pub asks: bool,
}

impl Run {
    /// A run of `code` in `folder` without inputs, outputs and arguments, under the default limits.
    #[must_use]
    pub fn new(code: Code, folder: impl Into<PathBuf>) -> Self {
        Self {
            code,
            args: Vec::new(),
            folder: folder.into(),
            part: Part::default(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            stdin: None,
            stdout: None,
            user: None,
            limits: Limits::default(),
            inputs_as: InputsAs::default(),
            readable: Vec::new(),
            shown: Vec::new(),
            path: Vec::new(),
            environment: Vec::new(),
            asks: false,
        }
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The kernel's first process ended with this code; 0 is success.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
    /// It ran past its time limit and was killed.
    TimeLimit,
    /// It wanted more memory than its limit. Certain when it was killed for the memory in use; when the
    /// kernel itself gave up as an allocation failed, this is told from what it wrote to standard error.
    MemoryLimit,
    /// It wrote more than its limit.
    OutputLimit,
    /// It had more processes than its limit and was killed.
    ProcessLimit,
    /// The system ended it since all kernels of its launcher together wanted more memory than they may have.
    GroupLimit,
    /// [`crate::Control::cancel`] killed it.
    Cancelled,
}

/// What a run used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Usage {
    /// Wall-clock time from before the fork to the end.
    pub wall: Duration,
    /// Processor time in user mode of the first process and all its descendants.
    pub user_cpu: Duration,
    /// The same in system mode.
    pub system_cpu: Duration,
    /// Largest resident set of one process, in bytes.
    pub rss_bytes_max: u64,
    /// What lay in the private folder at the end, inputs not counted, in bytes.
    pub written_bytes: u64,
}

/// The end of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Tail {
    /// The last [`TAIL_BYTES_MAX`] bytes at most.
    pub bytes: Vec<u8>,
    /// Bytes in all.
    pub total_bytes: u64,
}

impl Tail {
    /// The kept bytes as text; what is not UTF-8 is replaced.
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

/// What became of a run.
#[derive(Clone, Debug)]
pub struct Exit {
    /// How it ended.
    pub end: End,
    /// What it used.
    pub usage: Usage,
    /// The end of its standard error.
    pub stderr: Tail,
    /// The end of its standard output; empty if that went to an output.
    pub stdout: Tail,
}

impl Exit {
    /// Whether the kernel ended well.
    #[must_use]
    pub fn success(&self) -> bool {
        self.end == End::Code(0)
    }

    /// What happened, for the user, in one sentence.
    #[must_use]
    pub fn message(&self, limits: &Limits) -> String {
        match self.end {
            End::Code(0) => "the kernel ended well".into(),
            End::Code(code) => format!(
                "the kernel ended with exit code {code}{}",
                self.perhaps_memory(limits)
            ),
            End::Signal(signal) => format!(
                "the kernel was ended by signal {signal} ({}){}",
                signal_name(signal),
                self.perhaps_memory(limits)
            ),
            End::TimeLimit => format!(
                "the kernel ran past its time limit of {} s and was killed; raise limits.time if it needs longer",
                limits.time.as_secs_f64()
            ),
            End::MemoryLimit => format!(
                "the kernel wanted more than its memory limit of {} bytes; raise limits.memory if it needs more",
                limits.memory_bytes
            ),
            End::OutputLimit => format!(
                "the kernel wrote more than its output limit of {} bytes; raise limits.output if it needs more",
                limits.output_bytes
            ),
            End::ProcessLimit => format!(
                "the kernel had more than {} processes at once and was killed",
                limits.processes
            ),
            End::GroupLimit => "the kernel was killed: all kernels of this element together wanted more memory than \
                                they may have (kernels-memory of the element); it may pass when fewer run at once"
                .into(),
            End::Cancelled => "the run was cancelled".into(),
        }
    }
}

impl Exit {
    /// Names the memory limit, if a request for memory that was refused may be why: nobody sees that, and many programs
    /// don't look at the answer.
    fn perhaps_memory(&self, limits: &Limits) -> String {
        let used = self.usage.rss_bytes_max;
        let perhaps = match self.end {
            End::Signal(signal) => {
                [libc::SIGSEGV, libc::SIGABRT, libc::SIGBUS, libc::SIGTRAP].contains(&signal)
            }
            _ => self.stderr.text().trim().is_empty() || used >= limits.memory_bytes / 10 * 9,
        };
        if !perhaps {
            return String::new();
        }
        format!(
            "; should it have asked for more than its memory limit of {} bytes (limits.memory), it got none: it used \
             {used} at most",
            limits.memory_bytes
        )
    }
}

/// The name of a signal, for messages.
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
    fn tail_keeps_last_bytes() {
        let mut tail = Tail::default();
        tail.push(&vec![b'a'; TAIL_BYTES_MAX]);
        tail.push(b"the end");
        assert_eq!(tail.bytes.len(), TAIL_BYTES_MAX);
        assert_eq!(tail.total_bytes, TAIL_BYTES_MAX as u64 + 7);
        assert!(tail.bytes.ends_with(b"athe end"));
        tail.push(&vec![b'b'; 3 * TAIL_BYTES_MAX]);
        assert_eq!(tail.bytes, vec![b'b'; TAIL_BYTES_MAX]);
    }
}
