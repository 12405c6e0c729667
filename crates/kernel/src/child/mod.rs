//! The child process of built-in and native kernels: the element's own program, started again under the
//! sandbox with a hidden first argument.

mod keeper;
mod native;
mod stack;

use std::fs::File;
use std::io::{self, Write};

use crate::builtin::{BuiltinError, run_builtin};
use crate::run::{Code, Run};

pub(crate) use keeper::Keeper;
pub use native::{ABI_VERSION, NativeError};

/// The hidden first argument.
const MARK: &str = "__kernel";

/// Exit code of a kernel that was used wrongly.
const WRONG_USE: u8 = 2;

/// Exit code of a native kernel that could not be loaded.
const CANNOT_LOAD: u8 = 126;

/// The kind of a child that runs a stack.
const STACK: &str = "stack";

/// What a stage is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Builtin,
    Native,
    Program,
}

impl Kind {
    const ALL: [(&'static str, Self); 3] = [
        ("builtin", Self::Builtin),
        ("native", Self::Native),
        ("program", Self::Program),
    ];

    fn word(self) -> &'static str {
        let known = Self::ALL.iter().find(|(_, kind)| *kind == self);
        known.map_or("", |(word, _)| word)
    }

    fn parse(word: &str) -> Option<Self> {
        let known = Self::ALL.iter().find(|(known, _)| *known == word);
        known.map(|(_, kind)| *kind)
    }
}

/// A kernel that runs in this process, or is started by it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stage {
    kind: Kind,
    /// Its name, or the path of its code.
    name: String,
    args: Vec<String>,
}

/// Kind and name of a single kernel.
fn words(code: &Code) -> [String; 2] {
    let (kind, name) = match code {
        Code::Builtin(name) => (Kind::Builtin, name.clone()),
        Code::Native(path) => (Kind::Native, path.to_string_lossy().into_owned()),
        Code::Program(path) => (Kind::Program, path.to_string_lossy().into_owned()),
        Code::Stack(_) => return [STACK.to_owned(), String::new()],
    };
    [kind.word().to_owned(), name]
}

/// The arguments of a child, its own name first, those of a single kernel left out.
///
/// An input that is the kernel's own code is not handed to the kernel, nor is an output that takes its
/// standard output, unless stages are to write it.
pub(crate) fn arguments(code: &Code, run: &Run) -> Vec<String> {
    let is_code =
        |path: &std::path::Path| code.parts().filter_map(Code::file).any(|file| file == path);
    let inputs: Vec<_> = run
        .inputs
        .iter()
        .filter(|input| !is_code(&input.path) && !is_code(&run.folder.join(&input.name)))
        .map(|input| input.name.clone())
        .collect();
    let outputs: Vec<_> = run
        .outputs
        .iter()
        .filter(|name| matches!(code, Code::Stack(_)) || Some(*name) != run.stdout.as_ref())
        .cloned()
        .collect();
    let mut all = vec!["tidemill".to_owned(), MARK.to_owned()];
    match code {
        Code::Stack(stages) => {
            all.extend([STACK.to_owned(), stages.len().to_string()]);
            for stage in stages {
                all.extend(words(&stage.code));
                all.push(stage.args.len().to_string());
                all.extend(stage.args.iter().cloned());
            }
        }
        single => all.extend(words(single)),
    }
    for list in [inputs, outputs] {
        all.push(list.len().to_string());
        all.extend(list);
    }
    all
}

/// What a child was told to do.
#[derive(Debug, PartialEq, Eq)]
struct Task {
    what: What,
    inputs: Vec<String>,
    outputs: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum What {
    Single(Stage),
    Stack(Vec<Stage>),
}

impl Task {
    /// Reads what [`arguments`] wrote, without the program's name and the mark.
    fn parse(mut args: impl Iterator<Item = String>) -> Option<Self> {
        let kind = args.next()?;
        let mut what = if kind == STACK {
            let count: usize = args.next()?.parse().ok()?;
            let mut stages = Vec::new();
            for _ in 0..count {
                let kind = Kind::parse(&args.next()?)?;
                let name = args.next()?;
                let args = list(&mut args)?;
                stages.push(Stage { kind, name, args });
            }
            What::Stack(stages)
        } else {
            What::Single(Stage {
                kind: Kind::parse(&kind)?,
                name: args.next()?,
                args: Vec::new(),
            })
        };
        let inputs = list(&mut args)?;
        let outputs = list(&mut args)?;
        if let What::Single(stage) = &mut what {
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
            What::Single(stage) if stage.kind == Kind::Builtin => builtin_main(stage, self),
            What::Single(stage) => native_main(stage, self),
            What::Stack(stages) => stack_main(stages, self),
        }
    }
}

/// A list behind its length.
fn list(args: &mut impl Iterator<Item = String>) -> Option<Vec<String>> {
    let count: usize = args.next()?.parse().ok()?;
    let list: Vec<_> = args.take(count).collect();
    (list.len() == count).then_some(list)
}

/// Runs a kernel and ends the process, if this process was started for that. A program whose children run
/// kernels calls this first in its `main`.
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
    let text = args.map(|arg| arg.to_string_lossy().into_owned());
    let code = match Task::parse(text) {
        Some(task) => task.run(),
        None => {
            complain("tidemill: this argument is for the program's own use");
            WRONG_USE
        }
    };
    std::process::exit(code.into());
}

fn builtin_main(stage: &Stage, task: &Task) -> u8 {
    let result = match task.outputs.as_slice() {
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

fn stack_main(stages: &[Stage], task: &Task) -> u8 {
    let output = task.outputs.first().map_or("", String::as_str);
    match stack::run(stages, &task.inputs, output) {
        Ok(()) => 0,
        Err(error) => {
            complain(&error.to_string());
            error.exit_code()
        }
    }
}

fn kernel_name(name: &str) -> &'static str {
    crate::builtin::builtin_names()
        .into_iter()
        .find(|known| *known == name)
        .unwrap_or("this kernel")
}

fn native_main(stage: &Stage, task: &Task) -> u8 {
    match native::run(&stage.name, &stage.args, &task.inputs, &task.outputs) {
        Ok(code) => code,
        Err(error) => {
            complain(&error.to_string());
            CANNOT_LOAD
        }
    }
}

/// Writes to standard error; when that is closed nobody is there to be told.
fn complain(message: &str) {
    let _ = writeln!(io::stderr(), "{message}");
}

/// Keeps the hook in programs that are linked with it.
pub(crate) fn keep_hook() {
    #[cfg(feature = "child-hook")]
    std::hint::black_box(&HOOK);
}

/// Runs before `main` in programs that are linked with this feature, such as tests.
#[cfg(feature = "child-hook")]
#[used]
#[unsafe(link_section = ".init_array")]
static HOOK: extern "C" fn() = {
    extern "C" fn hook() {
        main_if_child();
    }
    hook
};
