//! The child process of built-in and native kernels: the element's own program, started again under the
//! sandbox with a hidden first argument.

mod keeper;
mod native;

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

/// The arguments of a child, its own name first, those of the kernel left out.
///
/// An input that is the kernel's own code is not handed to the kernel, nor is an output that takes its
/// standard output.
pub(crate) fn arguments(code: &Code, run: &Run) -> Vec<String> {
    let (kind, name) = match code {
        Code::Builtin(name) => ("builtin", name.clone()),
        Code::Native(path) | Code::Program(path) => ("native", path.to_string_lossy().into_owned()),
    };
    let is_code = |path: &std::path::Path| matches!(code, Code::Native(code) if code == path);
    let inputs: Vec<_> = run
        .inputs
        .iter()
        .filter(|input| !is_code(&input.path) && !is_code(&run.folder.join(&input.name)))
        .map(|input| input.name.clone())
        .collect();
    let outputs: Vec<_> = run
        .outputs
        .iter()
        .filter(|name| Some(*name) != run.stdout.as_ref())
        .cloned()
        .collect();
    let mut all = vec![
        "tidemill".to_owned(),
        MARK.to_owned(),
        kind.to_owned(),
        name,
    ];
    for list in [inputs, outputs] {
        all.push(list.len().to_string());
        all.extend(list);
    }
    all
}

/// What a child was told to do.
#[derive(Debug, PartialEq, Eq)]
struct Task {
    native: bool,
    name: String,
    inputs: Vec<String>,
    outputs: Vec<String>,
    args: Vec<String>,
}

impl Task {
    /// Reads what [`arguments`] wrote, without the program's name and the mark.
    fn parse(mut args: impl Iterator<Item = String>) -> Option<Self> {
        let native = match args.next()?.as_str() {
            "builtin" => false,
            "native" => true,
            _ => return None,
        };
        let name = args.next()?;
        let mut list = || {
            let count: usize = args.next()?.parse().ok()?;
            let list: Vec<_> = args.by_ref().take(count).collect();
            (list.len() == count).then_some(list)
        };
        let inputs = list()?;
        let outputs = list()?;
        Some(Self {
            native,
            name,
            inputs,
            outputs,
            args: args.collect(),
        })
    }
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
        Some(task) if task.native => native_main(&task),
        Some(task) => builtin_main(&task),
        None => {
            complain("tidemill: this argument is for the program's own use");
            WRONG_USE
        }
    };
    std::process::exit(code.into());
}

fn builtin_main(task: &Task) -> u8 {
    let result = match task.outputs.as_slice() {
        [] => run_builtin(
            &task.name,
            &task.args,
            &task.inputs,
            &mut io::stdout().lock(),
        ),
        [output] => File::create(output)
            .map_err(BuiltinError::Write)
            .and_then(|mut file| run_builtin(&task.name, &task.args, &task.inputs, &mut file)),
        more => Err(BuiltinError::Outputs {
            kernel: kernel_name(&task.name),
            count: more.len(),
        }),
    };
    let Err(error) = result else { return 0 };
    complain(&format!("{}: {error}", task.name));
    match error {
        BuiltinError::Read { .. } | BuiltinError::Write(_) => 1,
        _ => WRONG_USE,
    }
}

fn kernel_name(name: &str) -> &'static str {
    crate::builtin::builtin_names()
        .into_iter()
        .find(|known| *known == name)
        .unwrap_or("this kernel")
}

fn native_main(task: &Task) -> u8 {
    match native::run(&task.name, &task.args, &task.inputs, &task.outputs) {
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
