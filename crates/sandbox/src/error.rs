//! Errors before a kernel runs. Failures of a running kernel are described by [`crate::RunEnd`].

use std::io;
use std::path::PathBuf;

/// Reason why a [`crate::Launcher`] could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The host lacks a part of the sandbox.
    #[error(
        "this host cannot confine kernels: {missing}; allow a weak sandbox in the settings if you trust every user of this \
         cluster with all data that the node can reach"
    )]
    WeakSandbox {
        /// Names of the missing parts of the sandbox.
        missing: String,
    },
    /// The filter of system calls could not be built.
    #[error("the filter of system calls cannot be built: {0}")]
    Filter(String),
    /// The keeper, the process that ends the kernels when this process dies, could not be started.
    #[error("cannot start the process that ends kernels when this one dies: {0}")]
    Keeper(#[source] io::Error),
    /// The program in which built-in and native kernels run cannot be opened.
    #[error("cannot open {path}, the program that built-in and native kernels run in: {source}")]
    Child {
        /// Path of the program.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
}

/// Reason why the private directory of a run could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// A path of the run is not absolute.
    #[error("{0} is not an absolute path")]
    NotAbsolute(PathBuf),
    /// The name of an input or output leads out of the private directory, or into its reserved part.
    #[error(
        "the file name {0:?} cannot be used in a private directory: it must be relative, without `.`, `..` or \
         empty parts, and not begin with `.tidemill`"
    )]
    Name(String),
    /// A pipeline does not write exactly one output.
    #[error(
        "a pipeline of kernels writes one output, the standard output of its last kernel, but the task names {0}"
    )]
    PipelineOutput(usize),
    /// A stage of a pipeline is itself a pipeline.
    #[error("a pipeline of kernels can't be part of another pipeline")]
    NestedPipeline,
    /// Two inputs or outputs have the same name, or the name of one is a directory of the other.
    #[error("the file name {0:?} is used twice, or both as a file and as a directory")]
    NameTwice(String),
    /// `stdin` or `stdout` names no file of the run.
    #[error("{stream} is {name:?}, which is not among the task's {list}")]
    Stream {
        /// Name of the stream: `stdin` or `stdout`.
        stream: &'static str,
        /// Name that was given for the stream.
        name: String,
        /// List that lacks the name: `inputs` or `outputs`.
        list: &'static str,
    },
    /// An input is missing, unreadable or not a plain file.
    #[error("input {name:?} ({path}) cannot be used: {source}")]
    Input {
        /// Name of the input.
        name: String,
        /// Path of the input's file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The task could change an input through a hard link in its directory.
    #[error(
        "input {name:?} ({path}) belongs to the task's own user or is writable by it, so a hard link would let \
         the task change it; present inputs as symbolic links"
    )]
    WritableInput {
        /// Name of the input.
        name: String,
        /// Path of the input's file.
        path: PathBuf,
    },
    /// Kernels cannot run as this user or group, because its number is in the range of the kernels' own numbers.
    #[error(
        "kernels of user or group {0} can't be run: numbers from {from} on are those of kernels",
        from = crate::sandbox::ids::KERNELS
    )]
    UserNumber(u32),
    /// A built-in kernel of this name does not exist.
    #[error("built-in kernel {name:?} does not exist; known are: {known}")]
    UnknownBuiltin {
        /// Requested name of a kernel.
        name: String,
        /// Names of the built-in kernels.
        known: String,
    },
    /// The file of a program or shared object cannot be used.
    #[error("the kernel's code {path} cannot be used: {source}")]
    Code {
        /// Path of the code file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// This program was built without support for WebAssembly modules.
    #[error(
        "this node was built without WASM, so it cannot run modules; build `tidemill` with `--features wasm`, \
         or use the kernel as a shared object"
    )]
    NoWasm,
    /// A WebAssembly module cannot be compiled.
    #[error("the module {path} cannot be used: {reason}")]
    Module {
        /// Path of the module.
        path: PathBuf,
        /// Message of the compiler about the module.
        reason: String,
    },
    /// The child process that compiles WebAssembly modules could not be run.
    #[error("cannot compile the module {path}: {source}")]
    Compiler {
        /// Path of the module.
        path: PathBuf,
        /// Cause.
        source: Box<SpawnError>,
    },
    /// Other users can write to the directory of compiled modules, or the directory does not belong to this program's user.
    #[error(
        "compiled modules are not kept in {path}: it must be a directory of user {uid} that nobody else can write to"
    )]
    ModuleDirectory {
        /// Path of the directory of compiled modules.
        path: PathBuf,
        /// Id of the user that must own the directory.
        uid: u32,
    },
    /// The task's user has no right to use this file of the host as code.
    #[error("user {uid} may not read the kernel's code {path}, or may not execute it")]
    Forbidden {
        /// Path of the code file.
        path: PathBuf,
        /// Id of the task's user.
        uid: u32,
    },
    /// The interpreter that a script names does not exist.
    #[error(
        "the script {path} names the interpreter {interpreter:?} in its first line, which does not exist"
    )]
    Interpreter {
        /// Path of the script.
        path: PathBuf,
        /// Interpreter in the script's first line.
        interpreter: String,
    },
    /// The private directory, or a file or directory in it, could not be made.
    #[error("cannot make {path}: {source}")]
    Make {
        /// Path that could not be made.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
}

/// Reason why a prepared run could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// An argument or environment variable contains a zero byte.
    #[error("an argument, variable or path contains a zero byte: {0:?}")]
    ZeroByte(String),
    /// The operating system refused to start the kernel's code.
    #[error("cannot start {program}: {}", explain_execute(.source))]
    Execute {
        /// Path of the program.
        program: String,
        /// Cause.
        source: io::Error,
    },
    /// A part of the sandbox could not be set up, so no code ran.
    #[error("the sandbox could not be set up ({step}): {source}")]
    Sandbox {
        /// The step that failed.
        step: &'static str,
        /// Cause.
        source: io::Error,
    },
    /// The Landlock rules of file access could not be made.
    #[error("the rules of file access cannot be made: {0}")]
    Rules(#[from] landlock::RulesetError),
    /// A file that the kernel may read cannot be opened.
    #[error("cannot open {path}, which the kernel may read: {source}")]
    Readable {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The operating system provided no pipe, process or thread.
    #[error("cannot start a process: {0}")]
    Process(io::Error),
}

/// Reason why an output of a kernel cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The kernel did not write the output.
    #[error("the kernel ended well but did not write its output {0:?}")]
    Missing(String),
    /// The output is not a plain file but a directory, a link or another kind of file.
    #[error("the output {0:?} is not a plain file of its own, or its path has a symbolic link")]
    NotAFile(String),
    /// The output is no longer a directory, although it was a directory when the kernel started.
    #[error("the output {0:?} is not a directory any more")]
    NotADirectory(String),
    /// The output directory contains no file.
    #[error("the kernel ended well but wrote no file into its output {0:?}")]
    Empty(String),
    /// The output directory contains an entry that is neither a file nor a directory.
    #[error(
        "{0:?}, which the kernel wrote, is neither a plain file nor a directory: links, pipes and devices can't be kept"
    )]
    Strange(String),
    /// The output directory contains an entry whose name is not valid text.
    #[error("{0:?}, which the kernel wrote, has a name that is not UTF-8 and can't be kept")]
    NoText(String),
    /// The output directory contains more entries than its limits allow.
    #[error(
        "there are more than {files_max} files, or more than {depth_max} nested directories, in the output {name:?}; pack them, or split the task"
    )]
    TooMany {
        /// Name of the output directory.
        name: String,
        /// Maximum number of files.
        files_max: usize,
        /// Maximum depth of nested directories.
        depth_max: usize,
    },
    /// The output could not be examined.
    #[error("the output {name:?} cannot be kept: {source}")]
    Io {
        /// Name of the output.
        name: String,
        /// Cause.
        source: io::Error,
    },
}

/// Returns a clear text for errors of `execve` whose own text is misleading.
fn explain_execute(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOENT) => "it, or the interpreter or loader that it names, does not exist".into(),
        Some(libc::ENOEXEC) => {
            "it is neither a program for this machine nor a script whose first line names its interpreter (#!)"
                .into()
        }
        Some(libc::EACCES) => {
            "it, or the interpreter that it names, may not be executed by this user inside the sandbox".into()
        }
        Some(libc::E2BIG) => "its arguments are too long for this system; name fewer files per task".into(),
        _ => error.to_string(),
    }
}
