//! Child process of built-in kernels and of users' kernels: the node's own program, started again under the sandbox with a hidden
//! first argument.

mod abi;
mod keeper;
mod native;
mod own_fold;
mod pipeline;
mod pipes;
mod ranked;
mod reducer;
mod wasm;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use native::KernelCall;
use own_fold::FoldKey;

use crate::program::hash_file;
use crate::run::{CodeSource, Run, RunPart};
use crate::{fork_server, peers};
use tidemill_compute::{BuiltinError, run_builtin};

pub use abi::ABI_VERSION;
pub(crate) use keeper::KeeperHandle;
pub use native::{NativeError, SLICE_BYTES};
pub use own_fold::PIECE_ALIGN;
pub use wasm::WasmError;
pub(crate) use wasm::compatibility;

/// Hidden first argument of a child process.
const MARK: &str = "__kernel";

/// Exit code of a built-in kernel with wrong arguments or inputs.
const WRONG_USE: u8 = 2;

/// Exit code of a user's kernel that could not be loaded.
const CANNOT_LOAD: u8 = 126;

/// Exit code of a WebAssembly module that trapped, like that of a program which aborts.
const TRAPPED: u8 = 134;

/// Kind of a child that compiles the WebAssembly module on its standard input.
const COMPILER: &str = "compiler";

/// Kind of a child that reduces arrays.
const REDUCER: &str = "reducer";

/// Kind of a child that runs a pipeline.
const PIPELINE: &str = "pipeline";

/// Kind of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChildKernel {
    Builtin,
    Native,
    /// WebAssembly module; the child inherits its compiled form as this descriptor.
    Wasm(RawFd),
    Program,
}

impl ChildKernel {
    const WASM: &str = "wasm";

    fn word(self) -> String {
        match self {
            Self::Builtin => "builtin".into(),
            Self::Native => "native".into(),
            Self::Wasm(module) => format!("{}:{module}", Self::WASM),
            Self::Program => "program".into(),
        }
    }

    fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "builtin" => Self::Builtin,
            "native" => Self::Native,
            "program" => Self::Program,
            _ => {
                let (kind, module) = word.split_once(':')?;
                let module = module.parse().ok().filter(|_| kind == Self::WASM)?;
                Self::Wasm(module)
            }
        })
    }
}

/// Kernel that runs in the child process, or that the child starts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ChildStage {
    kind: ChildKernel,
    /// Name of the kernel, or path of its code.
    name: String,
    args: Vec<String>,
}

/// Returns kind and name of a single kernel as arguments; takes the descriptor of a compiled module from `modules`.
fn words(code: &CodeSource, modules: &mut impl Iterator<Item = RawFd>) -> [String; 2] {
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let (kind, name) = match code {
        CodeSource::Builtin(name) => (ChildKernel::Builtin, name.clone()),
        CodeSource::Native(file) => (ChildKernel::Native, path(file)),
        CodeSource::Wasm(file) => (ChildKernel::Wasm(modules.next().unwrap_or(-1)), path(file)),
        CodeSource::Program(file) => (ChildKernel::Program, path(file)),
        CodeSource::Pipeline(_) => return [PIPELINE.to_owned(), String::new()],
    };
    [kind.word(), name]
}

/// Returns the arguments of a child that compiles a module.
pub(crate) fn compiler_arguments() -> Vec<String> {
    ["tidemill", MARK, COMPILER].map(str::to_owned).into()
}

/// Returns the arguments of a child that reduces arrays.
pub(crate) fn reducer_arguments() -> Vec<String> {
    ["tidemill", MARK, REDUCER].map(str::to_owned).into()
}

/// Returns the arguments of a child, with its own name first, without those of a single kernel. `modules` are the descriptors of its
/// compiled modules, in their order.
///
/// An input that is the kernel's own code is not passed to the kernel, nor is an output that receives the kernel's standard output, unless
/// stages must write it.
pub(crate) fn arguments(
    code: &CodeSource,
    run: &Run,
    modules: impl IntoIterator<Item = RawFd>,
) -> Vec<String> {
    let is_code = |path: &Path| {
        code.parts()
            .filter_map(CodeSource::file)
            .any(|file| file == path)
    };
    let inputs: Vec<_> = run
        .inputs
        .iter()
        .filter(|input| !is_code(&input.path) && !is_code(&run.directory.join(&input.name)))
        .map(|input| input.name.clone())
        .collect();
    let outputs: Vec<_> = run
        .outputs
        .iter()
        .filter(|name| {
            matches!(code, CodeSource::Pipeline(_)) || Some(*name) != run.stdout.as_ref()
        })
        .cloned()
        .collect();
    let mut all = vec!["tidemill".to_owned(), MARK.to_owned()];
    let mut modules = modules.into_iter();
    match code {
        CodeSource::Pipeline(stages) => {
            all.extend([PIPELINE.to_owned(), stages.len().to_string()]);
            for stage in stages {
                all.extend(words(&stage.code, &mut modules));
                all.push(stage.args.len().to_string());
                all.extend(stage.args.iter().cloned());
            }
        }
        single => {
            all.extend(words(single, &mut modules));
            all.push(part_word(run, single.file().map(PathBuf::as_path)));
        }
    }
    for list in [inputs, outputs] {
        all.push(list.len().to_string());
        all.extend(list);
    }
    all
}

/// Returns the part of a fold as an argument for the child, with the key that binds states to the kernel: its code and arguments.
fn part_word(run: &Run, code: Option<&Path>) -> String {
    let verb = match run.part {
        RunPart::Whole => return "whole".to_owned(),
        RunPart::Piece { input, offset } => format!("piece:{input}:{offset}"),
        RunPart::Merge => "merge".to_owned(),
        RunPart::Finish => "finish".to_owned(),
    };
    // If the code cannot be read, it cannot be loaded either; then loading reports the error.
    let hash = code.and_then(|path| hash_file(path).ok());
    let text = format!("{} {:?}", hash.unwrap_or_default(), run.args);
    format!("{}:{verb}", &blake3::hash(text.as_bytes()).to_hex()[..16])
}

fn parse_part(word: &str) -> Option<(FoldKey, RunPart)> {
    if word == "whole" {
        return Some((FoldKey::default(), RunPart::Whole));
    }
    let (key, verb) = word.split_once(':')?;
    let key = u64::from_str_radix(key, 16).ok()?.to_be_bytes();
    let part = match verb {
        "merge" => RunPart::Merge,
        "finish" => RunPart::Finish,
        piece => {
            let (input, offset) = piece.strip_prefix("piece:")?.split_once(':')?;
            RunPart::Piece {
                input: input.parse().ok()?,
                offset: offset.parse().ok()?,
            }
        }
    };
    Some((key, part))
}

/// Work of a child process, parsed from its arguments.
#[derive(Debug, PartialEq, Eq)]
struct ChildTask {
    what: ChildWork,
    inputs: Vec<String>,
    outputs: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum ChildWork {
    /// A single kernel, and the part of its work that the child does.
    Single(ChildStage, (FoldKey, RunPart)),
    Pipeline(Vec<ChildStage>),
}

impl ChildTask {
    /// Parses the output of [`arguments`], without the program's name and the hidden first argument.
    fn parse(mut args: impl Iterator<Item = String>) -> Option<Self> {
        let kind = args.next()?;
        let mut what = if kind == PIPELINE {
            let count: usize = args.next()?.parse().ok()?;
            let mut stages = Vec::new();
            for _ in 0..count {
                let kind = ChildKernel::parse(&args.next()?)?;
                let name = args.next()?;
                let args = list(&mut args)?;
                stages.push(ChildStage { kind, name, args });
            }
            ChildWork::Pipeline(stages)
        } else {
            let stage = ChildStage {
                kind: ChildKernel::parse(&kind)?,
                name: args.next()?,
                args: Vec::new(),
            };
            ChildWork::Single(stage, parse_part(&args.next()?)?)
        };
        let inputs = list(&mut args)?;
        let outputs = list(&mut args)?;
        if let ChildWork::Single(stage, _) = &mut what {
            stage.args = args.collect();
        }
        Some(Self {
            what,
            inputs,
            outputs,
        })
    }

    fn run(&self) -> u8 {
        match &self.what {
            ChildWork::Single(stage, _) if stage.kind == ChildKernel::Builtin => {
                builtin_main(stage, self)
            }
            ChildWork::Single(stage, part) => own_main(stage, *part, self),
            ChildWork::Pipeline(stages) => pipeline_main(stages, self),
        }
    }
}

/// Parses a list of arguments that follows its length.
fn list(args: &mut impl Iterator<Item = String>) -> Option<Vec<String>> {
    let count: usize = args.next()?.parse().ok()?;
    let list: Vec<_> = args.take(count).collect();
    (list.len() == count).then_some(list)
}

/// Returns the command of a child that is no kernel but serves this process: the child is started from `program`, an open file, as a
/// process of this kind, and reads its orders from standard input.
pub(crate) fn serving(program: RawFd, kind: &str, orders: OwnedFd) -> Command {
    let mut command = Command::new(format!("/proc/self/fd/{program}"));
    command.args([MARK, kind]).env_clear().current_dir("/");
    command
        .stdin(orders)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    command
}

/// Runs a kernel and ends the process, if this process was started as the child for a kernel. A program whose children run kernels must
/// call this function first in its `main`.
pub fn main_if_child() {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_none_or(|mark| mark != MARK) {
        return;
    }
    let mut args = args.peekable();
    if args.peek().is_some_and(|kind| kind == keeper::KIND) {
        keeper::keep();
        std::process::exit(0);
    }
    if args.peek().is_some_and(|kind| kind == peers::KIND) {
        peers::serve();
        std::process::exit(0);
    }
    if args.peek().is_some_and(|kind| kind == fork_server::KIND) {
        wasm::prepare();
        fork_server::serve();
        std::process::exit(0);
    }
    if args.peek().is_some_and(|kind| kind == COMPILER) {
        std::process::exit(compiler_main().into());
    }
    let text = args.map(|arg| arg.to_string_lossy().into_owned());
    std::process::exit(run_task(text).into());
}

/// Runs a kernel according to the arguments after the hidden first one; returns the exit code of the kernel.
pub(crate) fn run_task(args: impl Iterator<Item = String>) -> u8 {
    let mut args = args.peekable();
    if args.peek().is_some_and(|kind| kind == REDUCER) {
        return reducer::serve();
    }
    let Some(task) = ChildTask::parse(args) else {
        complain("tidemill: this argument is for the program's own use");
        return WRONG_USE;
    };
    task.run()
}

fn builtin_main(stage: &ChildStage, task: &ChildTask) -> u8 {
    let grows = task.inputs.iter().any(|name| pipes::is_pipe(name));
    let result = match task.outputs.as_slice() {
        [] if grows => rustix::io::dup(io::stdout())
            .map_err(|error| BuiltinError::Write(error.into()))
            .and_then(|out| pipeline::streamed(stage, &task.inputs, out.into())),
        [output] if grows => File::create(output)
            .map_err(BuiltinError::Write)
            .and_then(|out| pipeline::streamed(stage, &task.inputs, out)),
        [] => run_builtin(
            &stage.name,
            &stage.args,
            &task.inputs,
            &mut io::stdout().lock(),
        ),
        [output] => File::create(output)
            .map_err(BuiltinError::Write)
            .and_then(|mut file| run_builtin(&stage.name, &stage.args, &task.inputs, &mut file)),
        more => Err(BuiltinError::Outputs {
            kernel: kernel_name(&stage.name),
            count: more.len(),
        }),
    };
    let Err(error) = result else { return 0 };
    complain(&format!("{}: {error}", stage.name));
    builtin_exit_code(&error)
}

fn builtin_exit_code(error: &BuiltinError) -> u8 {
    match error {
        BuiltinError::Read { .. } | BuiltinError::Write(_) | BuiltinError::Gather(_) => 1,
        _ => WRONG_USE,
    }
}

fn pipeline_main(stages: &[ChildStage], task: &ChildTask) -> u8 {
    let output = task.outputs.first().map_or("", String::as_str);
    match pipeline::run(stages, &task.inputs, output) {
        Ok(()) => 0,
        Err(error) => {
            complain(&error.to_string());
            error.exit_code()
        }
    }
}

fn kernel_name(name: &str) -> &'static str {
    tidemill_compute::builtin_names()
        .into_iter()
        .find(|known| *known == name)
        .unwrap_or("this kernel")
}

/// Runs a user's kernel according to its kind.
fn run_own(kind: ChildKernel, name: &str, call: KernelCall<'_>) -> Result<u8, NativeError> {
    match kind {
        ChildKernel::Wasm(module) => wasm::run(name, module, call),
        ChildKernel::Native | ChildKernel::Builtin | ChildKernel::Program => {
            native::run(name, call)
        }
    }
}

fn own_main(stage: &ChildStage, (key, part): (FoldKey, RunPart), task: &ChildTask) -> u8 {
    let call = KernelCall {
        args: &stage.args,
        inputs: &task.inputs,
        outputs: &task.outputs,
        part,
        key,
    };
    match run_own(stage.kind, &stage.name, call) {
        Ok(code) => code,
        Err(error) => {
            complain(&error.to_string());
            own_exit_code(&error)
        }
    }
}

fn own_exit_code(error: &NativeError) -> u8 {
    match error {
        NativeError::Wasm(WasmError::Trap { .. }) => TRAPPED,
        _ => CANNOT_LOAD,
    }
}

fn compiler_main() -> u8 {
    let result = wasm::compile(&mut io::stdin().lock(), &mut io::stdout().lock());
    let Err(error) = result else { return 0 };
    complain(&error.to_string());
    1
}

/// Writes a message to standard error; if standard error is closed, the message is lost.
fn complain(message: &str) {
    let _ = writeln!(io::stderr(), "{message}");
}

/// Lets this crate's tests be the children that the tests start. The product calls [`main_if_child`] itself.
#[cfg(test)]
#[used]
#[unsafe(link_section = ".init_array")]
static HOOK: extern "C" fn() = {
    extern "C" fn hook() {
        main_if_child();
    }
    hook
};
