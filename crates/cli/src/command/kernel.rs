//! `tidemill kernel`: kernels of one's own from the first line to the cluster, the built-in kernels, and tests and
//! measurements of a kernel on this machine.

mod bench;
mod build;
mod merge_invariance;
mod new;
mod store;

use crate::context::CommandContext;
use crate::format::{ByteSize, Bytes, Span, TimeLength};
use crate::output::kernel::{Builtin, KernelOutput, KernelRun, Kernels};
use crate::output::list as listed;
use anyhow::{Context as _, bail};
use clap::Subcommand;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tidemill_compute::{builtin_kernels, builtin_names, is_builtin};
use tidemill_sandbox::{
    CodeSource, Exit, InputsAs, Launcher, LauncherSettings, Prepared, Run, RunInput, RunLimits,
    find_program,
};

/// Reason why no module is built or stored.
const NO_WASM: &str = "this tidemill was built without WebAssembly, as `tidemill --version` shows; build it with `--features dist`";

const EXAMPLES: &str = "Examples:
  tidemill kernel list
  tidemill kernel new denoise --language rust
  tidemill kernel build denoise
  tidemill kernel test denoise/denoise.so denoise/test.f64 --merge-invariance
  tidemill kernel add denoise/denoise.so --shared
  tidemill kernel delete denoise@1
  tidemill kernel bench --nodes denoise                  measure it for `tidemill plan offload`";

const TEST_EXAMPLES: &str = "Examples:
  tidemill kernel test max values.f64
  tidemill kernel test grep notes.txt -- -c tide
  tidemill kernel test ./fold.so a.dat b.dat --result result.txt --output-dir out/
  tidemill kernel test ./fold.so a.dat --time 30s --memory 512MB";

/// Largest output that is shown as text, in bytes.
const SHOWN_BYTES_MAX: u64 = 4096;

/// Manage kernels: create, build, test, measure, add, list and delete kernels
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: KernelCommand,
}

#[derive(Debug, Subcommand)]
enum KernelCommand {
    /// Create a directory with a kernel's source, its headers, and a file to test it on
    New(new::NewKernel),
    /// Compile a kernel to a shared object and, if the tools are installed, to a module, inside the sandbox
    Build(build::Build),
    /// Run a kernel on local files in the sandbox and under the limits of a node; no cluster is needed
    Test(TestKernel),
    Bench(bench::Args),
    /// Store a kernel in the cluster. A changed kernel becomes a new version, and old versions remain
    Add(store::AddKernel),
    /// List the built-in kernels with descriptions and arguments (`--quiet`: their names), and your own
    List(ListKernels),
    /// Delete your kernels from the cluster
    Delete(store::DeleteKernels),
}

#[derive(Debug, clap::Args)]
struct ListKernels {
    /// List kernels of all users, not only your own
    #[arg(long)]
    all: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = TEST_EXAMPLES)]
struct TestKernel {
    /// A built-in kernel, a shared object (`.so`), a module (`.wasm`), an executable file, or a program of this machine
    kernel: String,
    /// Input files; the kernel sees them under their last names
    inputs: Vec<PathBuf>,
    /// Name of a file that the kernel writes; give the flag again for more [default: standard output is the result]
    #[arg(long, value_name = "NAME")]
    result: Vec<String>,
    /// Local directory for the result files [default: short results are printed, then all are deleted]
    #[arg(long, short, value_name = "DIR")]
    output_dir: Option<PathBuf>,
    /// Time limit, such as 90s, 10m [default: that of a node]
    #[arg(long, value_name = "TIME")]
    time: Option<TimeLength>,
    /// Memory limit, such as 512MB, 4GiB [default: that of a node]
    #[arg(long, value_name = "SIZE")]
    memory: Option<ByteSize>,
    /// Cut the inputs in many ways and check that the result stays the same (for your own fold)
    #[arg(long)]
    merge_invariance: bool,
    /// Arguments of the kernel
    #[arg(last = true)]
    args: Vec<String>,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    use tokio::task::block_in_place;
    match args.command {
        KernelCommand::New(new) => new::run(&new, context),
        KernelCommand::Build(build) => block_in_place(|| build::run(build, context)),
        KernelCommand::Test(test) => block_in_place(|| try_out(test, context)),
        KernelCommand::Bench(args) => bench::run(args, context).await,
        KernelCommand::Add(add) => store::add(add, context).await,
        KernelCommand::List(args) => list(&args, context).await,
        KernelCommand::Delete(args) => store::delete(args, context).await,
    }
}

async fn list(args: &ListKernels, context: &CommandContext) -> anyhow::Result<ExitCode> {
    // The built-in ones can be listed without a cluster.
    let own = match store::kept(context, args.all).await {
        Err(_) if !args.all && context.global.server.is_none() => Vec::new(),
        own => own?,
    };
    let kernels: Vec<Builtin> = listed(builtin_kernels());
    context.output.finish(&Kernels {
        builtin: kernels.iter().map(|kernel| kernel.name).collect(),
        kernels,
        own,
        quiet: context.quiet(),
    })
}

/// Returns the code that a name on the command line stands for, as in a job file.
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
        bail!(
            "no kernel {name}: the file does not exist on this machine, or is not a regular file"
        );
    }
    match find_program(name, &launcher.settings().path) {
        Some(program) => Ok(CodeSource::Program(program)),
        None => bail!(
            "no kernel {name}: it is neither a built-in kernel ({}) nor a program in {}; for a file of your own give its path, \
             such as ./{name}",
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
    // The directory is in that of the results, so that they need not be copied.
    let directory = match &test.output_dir {
        Some(to) => fs::create_dir_all(to).and_then(|()| tempfile::tempdir_in(to)),
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
    run.outputs.clone_from(&test.result);
    let default = RunLimits::default();
    run.limits = RunLimits {
        time: test.time.map_or(default.time, |TimeLength(time)| time),
        memory_bytes: test
            .memory
            .map_or(default.memory_bytes, |ByteSize(bytes)| bytes),
        ..default
    };
    if test.merge_invariance {
        return merge_invariance::run(&launcher, &run, directory.path(), context);
    }
    let prepared = launcher.prepare(run)?;
    let exit = launcher.spawn(&prepared)?.wait()?;
    let usage = &exit.usage;
    let span = |time: Duration| Span(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    context.output.show(&KernelRun {
        kernel: test.kernel,
        success: exit.success(),
        message: exit.message(&prepared.run().limits),
        wall_ns: span(usage.wall),
        cpu_ns: span(usage.user_cpu + usage.system_cpu),
        memory_bytes: Bytes(usage.rss_bytes_max),
        input_bytes: Bytes(input_bytes),
        written_bytes: Bytes(usage.written_bytes),
        outputs: outputs(&prepared, &exit, &test.result, test.output_dir.as_deref())?,
        stdout: exit.stdout.text(),
        stderr: exit.stderr.text(),
        quiet: context.quiet(),
    })?;
    Ok(ExitCode::from(u8::from(!exit.success())))
}

fn outputs(
    prepared: &Prepared,
    exit: &Exit,
    names: &[String],
    directory: Option<&Path>,
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
        if let Some(directory) = directory {
            let to = directory.join(name);
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent)
                    .with_context(|| format!("can't make {}", parent.display()))?;
            }
            let moved = fs::rename(&path, &to);
            // If `to` is on another device, such as through a link, the file is copied.
            let kept = moved.or_else(|_| fs::copy(&path, &to).map(drop));
            kept.with_context(|| format!("can't write {}", to.display()))?;
        }
        written.push(KernelOutput {
            name: name.clone(),
            bytes: Bytes(bytes),
            text,
        });
    }
    Ok(written)
}
