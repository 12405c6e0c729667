//! The child process of built-in kernels and of those of one's own: the element's own program, started again under the
//! sandbox with a hidden first argument.

mod abi;
mod keeper;
mod native;
mod own_fold;
mod wasm;

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use native::Call;
use own_fold::Key;

use crate::builtin::{BuiltinError, run_builtin};
use crate::program::hash_file;
use crate::run::{Code, Part, Run};

pub use abi::ABI_VERSION;
pub(crate) use keeper::Keeper;
pub use native::{NativeError, SLICE_BYTES};
pub use own_fold::PIECE_ALIGN;
pub use wasm::WasmError;
pub(crate) use wasm::compatibility;

/// The hidden first argument.
const MARK: &str = "__kernel";

/// Exit code of a kernel that was used wrongly.
const WRONG_USE: u8 = 2;

/// Exit code of a kernel of one's own that could not be loaded.
const CANNOT_LOAD: u8 = 126;

/// Exit code of a module that trapped, as that of a program which aborts.
const TRAPPED: u8 = 134;

/// What the child is told to be in order to compile the module on its standard input.
const COMPILER: &str = "compiler";

/// The arguments of a child that compiles a module.
pub(crate) fn compiler_arguments() -> Vec<String> {
    ["tidemill", MARK, COMPILER].map(str::to_owned).into()
}

/// The arguments of a child, its own name first, those of the kernel left out.
///
/// An input that is the kernel's own code is not handed to the kernel, nor is an output that takes its
/// standard output.
pub(crate) fn arguments(code: &Code, run: &Run) -> Vec<String> {
    let (kind, name) = match code {
        Code::Builtin(name) => (Kind::Builtin, name.clone()),
        Code::Native(path) | Code::Program(path) => {
            (Kind::Native, path.to_string_lossy().into_owned())
        }
        Code::Wasm(path) => (Kind::Wasm, path.to_string_lossy().into_owned()),
    };
    let own = match code {
        Code::Native(code) | Code::Wasm(code) => Some(code.as_path()),
        Code::Builtin(_) | Code::Program(_) => None,
    };
    let is_code = |path: &Path| own == Some(path);
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
        kind.word().to_owned(),
        part_word(run, own),
        name,
    ];
    for list in [inputs, outputs] {
        all.push(list.len().to_string());
        all.extend(list);
    }
    all
}

/// What the code of a kernel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Builtin,
    Native,
    Wasm,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Builtin, Self::Native, Self::Wasm];

    fn word(self) -> &'static str {
        match self {
            Self::Builtin => "builtin",
            Self::Native => "native",
            Self::Wasm => "wasm",
        }
    }
}

/// The part of a fold as the child is told it, with what ties states to the kernel: its code and arguments.
fn part_word(run: &Run, code: Option<&Path>) -> String {
    let verb = match run.part {
        Part::Whole => return "whole".to_owned(),
        Part::Piece { input, offset } => format!("piece:{input}:{offset}"),
        Part::Merge => "merge".to_owned(),
        Part::Finish => "finish".to_owned(),
    };
    // Code that cannot be read can't be loaded either, and then says so.
    let hash = code.and_then(|path| hash_file(path).ok());
    let text = format!("{} {:?}", hash.unwrap_or_default(), run.args);
    format!("{}:{verb}", &blake3::hash(text.as_bytes()).to_hex()[..16])
}

fn parse_part(word: &str) -> Option<(Key, Part)> {
    if word == "whole" {
        return Some((Key::default(), Part::Whole));
    }
    let (key, verb) = word.split_once(':')?;
    let key = u64::from_str_radix(key, 16).ok()?.to_be_bytes();
    let part = match verb {
        "merge" => Part::Merge,
        "finish" => Part::Finish,
        piece => {
            let (input, offset) = piece.strip_prefix("piece:")?.split_once(':')?;
            Part::Piece {
                input: input.parse().ok()?,
                offset: offset.parse().ok()?,
            }
        }
    };
    Some((key, part))
}

/// What a child was told to do.
#[derive(Debug, PartialEq, Eq)]
struct Task {
    kind: Kind,
    key: Key,
    part: Part,
    name: String,
    inputs: Vec<String>,
    outputs: Vec<String>,
    args: Vec<String>,
}

impl Task {
    /// Reads what [`arguments`] wrote, without the program's name and the mark.
    fn parse(mut args: impl Iterator<Item = String>) -> Option<Self> {
        let word = args.next()?;
        let kind = Kind::ALL.into_iter().find(|kind| kind.word() == word)?;
        let (key, part) = parse_part(&args.next()?)?;
        let name = args.next()?;
        let mut list = || {
            let count: usize = args.next()?.parse().ok()?;
            let list: Vec<_> = args.by_ref().take(count).collect();
            (list.len() == count).then_some(list)
        };
        let inputs = list()?;
        let outputs = list()?;
        Some(Self {
            kind,
            key,
            part,
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
    if args.peek().is_some_and(|kind| kind == COMPILER) {
        std::process::exit(compiler_main().into());
    }
    let text = args.map(|arg| arg.to_string_lossy().into_owned());
    let code = match Task::parse(text) {
        Some(task) if task.kind == Kind::Builtin => builtin_main(&task),
        Some(task) => own_main(&task),
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

fn own_main(task: &Task) -> u8 {
    let call = Call {
        args: &task.args,
        inputs: &task.inputs,
        outputs: &task.outputs,
        part: task.part,
        key: task.key,
    };
    let result = match task.kind {
        Kind::Wasm => wasm::run(&task.name, call),
        Kind::Native | Kind::Builtin => native::run(&task.name, call),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            complain(&error.to_string());
            match error {
                NativeError::Wasm(WasmError::Trap { .. }) => TRAPPED,
                _ => CANNOT_LOAD,
            }
        }
    }
}

fn compiler_main() -> u8 {
    let result = wasm::compile(&mut io::stdin().lock(), &mut io::stdout().lock());
    let Err(error) = result else { return 0 };
    complain(&error.to_string());
    1
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
