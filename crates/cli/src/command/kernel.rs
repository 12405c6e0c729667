//! `tidemill kernel`: kernels of one's own from the first line to the cluster, the kernels that are built in, and
//! trying one on files of this machine.

mod build;
mod merge_invariance;
mod new;
mod store;

use crate::context::CommandContext;
use crate::format;
use crate::output::{Printed, table};
use anyhow::{Context as _, bail};
use clap::Subcommand;
use serde_json::json;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tidemill_core::job::quantity;
use tidemill_kernel::{
    BuiltinKernel, CodeSource, Exit, InputsAs, Launcher, LauncherSettings, Prepared, Run, RunInput,
    RunLimits, builtin_kernels, builtin_names, find_program, is_builtin,
};

/// Why a module is neither made nor kept.
const NO_WASM: &str = "this tidemill was built without WebAssembly, as `tidemill --version` tells; build it with its default features";

const EXAMPLES: &str = "Examples:
  tidemill kernel list
  tidemill kernel new denoise --language rust
  tidemill kernel build denoise
  tidemill kernel test denoise/denoise.so denoise/test.f64 --merge-invariance
  tidemill kernel add denoise/denoise.so --shared
  tidemill kernel remove denoise@1
  tidemill kernel test max values.f64
  tidemill kernel test grep notes.txt -- -c tide
  tidemill kernel test ./fold.so a.dat b.dat --output result.txt --keep out/";

/// Largest output that is shown as text, in bytes.
const SHOWN_BYTES_MAX: u64 = 4096;

/// Manage kernels: make, build, try, add, list and remove them
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: KernelCommand,
}

#[derive(Debug, Subcommand)]
enum KernelCommand {
    /// Make a directory with a kernel's source, its headers, and a file to test it on
    New(new::NewKernel),
    /// Compile a kernel to a shared object and, if the tools are installed, to a module, inside the sandbox
    Build(build::Build),
    /// Store a kernel in the cluster. A changed kernel becomes a new version, and old versions remain
    Add(store::AddKernel),
    /// Delete your kernels from the cluster
    Remove(store::Remove),
    /// List the built-in kernels with descriptions and arguments (`--quiet`: their names), and your own
    List(ListKernels),
    /// Run a kernel on local files in the sandbox and under the limits of a node; no cluster is needed
    Test(TestKernel),
}

#[derive(Debug, clap::Args)]
struct ListKernels {
    /// List kernels of all users, not only your own
    #[arg(long)]
    all: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
struct TestKernel {
    /// A built-in kernel, a shared object (`.so`), a module (`.wasm`), an executable file, or a program of this machine
    kernel: String,
    /// Input files; the kernel sees them under their last names
    inputs: Vec<PathBuf>,
    /// Name of an output file; give the flag again for more [default: standard output is the result]
    #[arg(long, short, value_name = "NAME")]
    output: Vec<String>,
    /// Directory for outputs [default: short outputs are shown, then all are removed]
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Time limit, such as 90, 1.5s, 10m
    #[arg(long, value_name = "TIME", value_parser = duration)]
    time: Option<Duration>,
    /// Memory limit, such as 512M, 4G
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,
    /// Cut the inputs in many ways and check that the result stays the same (for your own fold)
    #[arg(long)]
    merge_invariance: bool,
    /// Arguments of the kernel
    #[arg(last = true)]
    args: Vec<String>,
}

fn duration(text: &str) -> Result<Duration, String> {
    let span = quantity::duration(text).ok_or("a time is a number with s, m, h or d")?;
    Ok(Duration::from_nanos(span.0))
}

fn size(text: &str) -> Result<u64, String> {
    quantity::size(text).ok_or_else(|| "a size is a number with K, M, G or T".to_owned())
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    use tokio::task::block_in_place;
    match args.command {
        KernelCommand::New(new) => new::run(&new, context),
        KernelCommand::Build(build) => block_in_place(|| build::run(build, context)),
        KernelCommand::Add(add) => store::add(add, context).await,
        KernelCommand::Remove(remove) => store::remove(remove, context).await,
        KernelCommand::List(args) => list(&args, context).await,
        KernelCommand::Test(test) => block_in_place(|| try_out(test, context)),
    }
}

async fn list(args: &ListKernels, context: &CommandContext) -> anyhow::Result<ExitCode> {
    // The built-in ones can be listed without a cluster.
    let own = match store::kept(context, args.all).await {
        Err(_) if !args.all && context.global.server.is_none() => Vec::new(),
        own => own?,
    };
    let kernels = builtin_kernels();
    let names: Vec<_> = kernels.iter().map(|kernel| kernel.name).collect();
    let mut text = if context.quiet() {
        names.join("\n")
    } else {
        kernels.iter().map(|kernel| described(kernel)).collect()
    };
    if !own.is_empty() && !context.quiet() {
        let _ = write!(text, "\nkept in the cluster:\n{}", store::described(&own));
    }
    let own: Vec<_> = own.iter().map(store::StoredKernel::json).collect();
    let all: Vec<_> = kernels
        .iter()
        .map(|kernel| {
            let args: Vec<_> = kernel
                .args()
                .map(|arg| {
                    let (key, values) = (arg.key, arg.values);
                    json!({ "key": key, "values": values, "default": arg.default, "help": arg.help })
                })
                .collect();
            json!({
                "name": kernel.name, "revision": kernel.revision, "help": kernel.help, "usage": kernel.usage(),
                "args": args, "fold": kernel.is_fold(), "stream": kernel.is_stream(),
            })
        })
        .collect();
    context.output.show(&Printed::new(
        text,
        json!({ "builtin": names, "kernels": all, "own": own }),
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// A kernel and its arguments, in lines.
fn described(kernel: &BuiltinKernel) -> String {
    let mut text = format!("{}: {}\n", kernel.name, kernel.help);
    if kernel.args().next().is_none() {
        let _ = writeln!(text, "    {}", kernel.usage());
    }
    for arg in kernel.args() {
        let _ = write!(text, "    {}={}", arg.key, arg.values);
        if !arg.default.is_empty() {
            let _ = write!(text, " [{}]", arg.default);
        }
        let _ = writeln!(text, "  {}", arg.help);
    }
    text
}

/// Returns the code that a name on the command line stands for, as in a job script.
fn code(name: &str, launcher: &Launcher) -> anyhow::Result<CodeSource> {
    let path = Path::new(name);
    let ends = |with: &str| path.extension().is_some_and(|end| end == with);
    if path.is_file() && (name.contains('/') || ends("so") || ends("wasm")) {
        let full = fs::canonicalize(path)?;
        return Ok(if ends("so") {
            CodeSource::Native(full)
        } else if ends("wasm") {
            CodeSource::Wasm(full)
        } else {
            CodeSource::Program(full)
        });
    }
    let plain = name.strip_suffix(".so").unwrap_or(name);
    if is_builtin(plain) {
        return Ok(CodeSource::Builtin(plain.to_owned()));
    }
    if name.contains('/') {
        bail!("no kernel {name}: there is no such file, or it is none; name one of this machine");
    }
    match find_program(name, &launcher.settings().path) {
        Some(program) => Ok(CodeSource::Program(program)),
        None => bail!(
            "there is no kernel `{name}` (a file of one's own is written with a `/`, as in ./{name}): no built-in one ({}), no program in {}",
            builtin_names().join(", "),
            std::env::join_paths(&launcher.settings().path)?.display()
        ),
    }
}

fn input(path: &Path) -> anyhow::Result<RunInput> {
    let full = fs::canonicalize(path).with_context(|| format!("input {}", path.display()))?;
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .with_context(|| format!("input {} has no name in UTF-8", path.display()))?;
    Ok(RunInput {
        name: name.to_owned(),
        path: full,
    })
}

fn try_out(test: TestKernel, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let launcher = Launcher::new(LauncherSettings::default())?;
    // Beside where outputs are kept, so that they need not be copied there.
    let directory = match &test.keep {
        Some(keep) => fs::create_dir_all(keep).and_then(|()| tempfile::tempdir_in(keep)),
        None => tempfile::tempdir(),
    };
    let directory = directory.context("can't make a directory for the run")?;
    let mut run = Run::new(code(&test.kernel, &launcher)?, directory.path().join("run"));
    run.inputs = test
        .inputs
        .iter()
        .map(|path| input(path))
        .collect::<Result<_, _>>()?;
    let input_bytes: u64 = run
        .inputs
        .iter()
        .filter_map(|input| Some(fs::metadata(&input.path).ok()?.len()))
        .sum();
    run.inputs_as = InputsAs::Symlink;
    run.args = test.args;
    run.outputs.clone_from(&test.output);
    let default = RunLimits::default();
    run.limits = RunLimits {
        time: test.time.unwrap_or(default.time),
        memory_bytes: test.memory.unwrap_or(default.memory_bytes),
        ..default
    };
    if test.merge_invariance {
        return merge_invariance::run(&launcher, &run, directory.path(), context);
    }
    let prepared = launcher.prepare(run)?;
    let exit = launcher.spawn(&prepared)?.wait()?;
    let tried = TrialOutput {
        name: &test.kernel,
        input_bytes,
        exit: &exit,
        outputs: outputs(&prepared, &exit, &test.output, test.keep.as_deref())?,
        message: exit.message(&prepared.run().limits),
    };
    context
        .output
        .show(&Printed::new(tried.text(context.quiet()), tried.json()))?;
    Ok(ExitCode::from(u8::from(!exit.success())))
}

/// An output: its name, its length and, if it is short and text, its content.
struct KernelOutput {
    name: String,
    bytes: u64,
    text: Option<String>,
}

fn outputs(
    prepared: &Prepared,
    exit: &Exit,
    names: &[String],
    keep: Option<&Path>,
) -> anyhow::Result<Vec<KernelOutput>> {
    if !exit.success() {
        return Ok(Vec::new());
    }
    let mut written = Vec::new();
    for name in names {
        let bytes = prepared.output(name)?.size()?;
        let path = prepared.run().directory.join(name);
        let text = (bytes <= SHOWN_BYTES_MAX)
            .then(|| fs::read_to_string(&path).ok())
            .flatten();
        if let Some(keep) = keep {
            let to = keep.join(name);
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent)
                    .with_context(|| format!("can't make {}", parent.display()))?;
            }
            let moved = fs::rename(&path, &to);
            // Another device, as where `to` leads through a link: then it is copied.
            let kept = moved.or_else(|_| fs::copy(&path, &to).map(drop));
            kept.with_context(|| format!("can't write {}", to.display()))?;
        }
        written.push(KernelOutput {
            name: name.clone(),
            bytes,
            text,
        });
    }
    Ok(written)
}

struct TrialOutput<'a> {
    name: &'a str,
    input_bytes: u64,
    exit: &'a Exit,
    outputs: Vec<KernelOutput>,
    message: String,
}

impl TrialOutput<'_> {
    #[expect(clippy::cast_precision_loss, reason = "display only")]
    fn bytes_per_sec(&self) -> f64 {
        self.input_bytes as f64 / self.exit.usage.wall.as_secs_f64().max(1e-9)
    }

    fn text(&self, quiet: bool) -> String {
        let mut text = self.exit.stdout.text();
        text.push_str(&self.exit.stderr.text());
        for output in &self.outputs {
            if let Some(content) = &output.text {
                text.push_str(content);
            }
        }
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        if quiet {
            return text;
        }
        let usage = &self.exit.usage;
        let nanos =
            |time: Duration| format::span(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let mut rows = table(
            &["kernel", "time", "processor", "memory", "read", "rate"],
            &[1, 2, 3, 4, 5],
        );
        rows.add_row([
            self.name.to_owned(),
            nanos(usage.wall),
            nanos(usage.user_cpu + usage.system_cpu),
            format::bytes(usage.rss_bytes_max),
            format::bytes(self.input_bytes),
            format!("{:.2} GB/s", self.bytes_per_sec() / 1e9),
        ]);
        for line in rows.lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        for output in &self.outputs {
            let _ = writeln!(text, "{}: {}", output.name, format::bytes(output.bytes));
        }
        if !self.exit.success() {
            let _ = writeln!(text, "{}", self.message);
        }
        text
    }

    fn json(&self) -> serde_json::Value {
        let usage = &self.exit.usage;
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let outputs: Vec<_> = self
            .outputs
            .iter()
            .map(
                |output| json!({ "name": output.name, "bytes": output.bytes, "text": output.text }),
            )
            .collect();
        json!({
            "kernel": self.name,
            "success": self.exit.success(),
            "message": self.message,
            "wall_ns": nanos(usage.wall),
            "cpu_ns": nanos(usage.user_cpu + usage.system_cpu),
            "memory_bytes": usage.rss_bytes_max,
            "input_bytes": self.input_bytes,
            "written_bytes": usage.written_bytes,
            "outputs": outputs,
            "stdout": self.exit.stdout.text(),
            "stderr": self.exit.stderr.text(),
        })
    }
}
