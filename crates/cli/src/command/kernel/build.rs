//! `tidemill kernel build`: compiles a kernel's source, in the sandbox that kernels run in.

use super::NO_WASM;
use crate::context::CommandContext;
use crate::output::Message;
use crate::output::messages::BuiltKernel;
use anyhow::{Context as _, bail, ensure};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;
use tidemill_sandbox::{
    CodeSource, InputsAs, Launcher, LauncherSettings, Run, RunInput, RunLimits, find_program,
};

/// Header that kernels in C include.
pub(super) const HEADER: &str = include_str!("../../../../sandbox/include/tidemill_kernel.h");
pub(super) const HEADER_NAME: &str = "tidemill_kernel.h";

/// The crate that kernels in Rust use: its files by name.
pub(super) const API: &[(&str, &str)] = &[
    ("lib.rs", include_str!("../../../../kernel-api/src/lib.rs")),
    ("raw.rs", include_str!("../../../../kernel-api/src/raw.rs")),
    (
        "full_access.rs",
        include_str!("../../../../kernel-api/src/full_access.rs"),
    ),
];

/// Directory of the API, next to the source.
const API_DIRECTORY: &str = "tidemill-kernel-api";

/// Rust's name of that crate, and the target of modules.
const API_NAME: &str = "tidemill_kernel_api";
const WASM: &str = "wasm32-unknown-unknown";

/// Limits of one compiler.
const TIME_MAX: Duration = Duration::from_secs(300);
const MEMORY_BYTES_MAX: u64 = 4 << 30;
const OUTPUT_BYTES_MAX: u64 = 1 << 30;

/// Maximum number of files of a source directory.
const FILES_MAX: usize = 1000;

const EXAMPLES: &str = "Examples:
  tidemill kernel build denoise                       a directory: denoise/denoise.so and, if possible, denoise.wasm
  tidemill kernel build fold.c --output-dir built/";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Build {
    /// A source file (.c, .cc, .cpp, .rs), or a directory with one kernel's source
    source: PathBuf,
    /// Local directory for the results [default: that of the source]
    #[arg(long, short, value_name = "DIR")]
    output_dir: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BuildLanguage {
    C,
    Cpp,
    Rust,
}

/// A kernel's source.
struct KernelSource {
    name: String,
    language: BuildLanguage,
    /// Names of the main files, as the compiler sees them.
    main: Vec<String>,
    /// All files that the compiler may read, by those names.
    files: BTreeMap<String, PathBuf>,
    directory: PathBuf,
}

pub(crate) fn run(build: Build, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let scratch = tempfile::tempdir().context("can't make a directory to build in")?;
    let mut source = KernelSource::find(&build.source)?;
    source.add_interface(scratch.path())?;
    let workshop = Workshop {
        launcher: Launcher::new(LauncherSettings::default())?,
        directory: scratch.path().to_owned(),
        source: &source,
    };
    let to = build.output_dir.unwrap_or_else(|| source.directory.clone());
    fs::create_dir_all(&to).with_context(|| to.display().to_string())?;
    let mut made = Vec::new();
    let mut left_out = None;
    for ending in ["so", "wasm"] {
        if ending == "wasm" && !cfg!(feature = "wasm") {
            left_out = Some(NO_WASM.into());
            continue;
        }
        let file = format!("{}.{ending}", source.name);
        match workshop.compile(ending, &file)? {
            Built::Made(path) => {
                let target = to.join(&file);
                fs::copy(&path, &target).with_context(|| target.display().to_string())?;
                made.push(target.display().to_string());
            }
            Built::Failed(printed) if ending == "so" => {
                bail!(
                    "{} does not compile:\n{}",
                    build.source.display(),
                    printed.trim_end()
                );
            }
            Built::Failed(why) => left_out = Some(why),
        }
    }
    let mut text = made.join("\n");
    if let Some(why) = &left_out {
        let first: Vec<_> = why.trim_end().lines().take(6).collect();
        text.push_str(&format!(
            "\nno {}.wasm: {}",
            source.name,
            first.join("\n    ")
        ));
    }
    let no_wasm = left_out;
    context
        .output
        .show(&Message(text, BuiltKernel { made, no_wasm }))?;
    Ok(ExitCode::SUCCESS)
}

enum Built {
    Made(PathBuf),
    /// The message of the compiler, or the reason why no compiler ran.
    Failed(String),
}

fn language(path: &Path) -> Option<BuildLanguage> {
    match path.extension()?.to_str()? {
        "c" => Some(BuildLanguage::C),
        "cc" | "cpp" | "cxx" => Some(BuildLanguage::Cpp),
        "rs" => Some(BuildLanguage::Rust),
        _ => None,
    }
}

impl KernelSource {
    fn find(path: &Path) -> anyhow::Result<Self> {
        let full = fs::canonicalize(path).with_context(|| path.display().to_string())?;
        let name = full.file_stem().and_then(|name| name.to_str());
        let name = name.context("the source has no name in UTF-8")?.to_owned();
        if full.is_file() {
            let language = language(&full).context(
                "not a source file: kernels are built from .c, .cc, .cpp or .rs; scripts need no building",
            )?;
            let file = full
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let directory = full.parent().unwrap_or(&full).to_owned();
            return Ok(Self {
                name,
                language,
                main: vec![file.clone()],
                files: BTreeMap::from([(file, full)]),
                directory,
            });
        }
        let mut files = BTreeMap::new();
        collect(&full, "", &mut files)?;
        let root = ["src/lib.rs", "lib.rs"]
            .into_iter()
            .find(|file| files.contains_key(*file));
        let (language, main) = match root {
            Some(root) => (BuildLanguage::Rust, vec![root.to_owned()]),
            None => sources_in(&files).with_context(|| {
                format!(
                    "no source in {}: neither src/lib.rs nor a .c, .cc or .cpp file",
                    path.display()
                )
            })?,
        };
        Ok(Self {
            name,
            language,
            main,
            files,
            directory: full,
        })
    }

    /// The header or crate that the source needs, unless it brings its own.
    fn add_interface(&mut self, scratch: &Path) -> anyhow::Result<()> {
        let wanted: Vec<(String, &str)> = if self.language == BuildLanguage::Rust {
            let name = |file: &str| format!("{API_DIRECTORY}/{file}");
            API.iter().map(|(file, text)| (name(file), *text)).collect()
        } else {
            vec![(HEADER_NAME.to_owned(), HEADER)]
        };
        for (name, text) in wanted {
            let path = scratch.join(name.replace('/', "-"));
            fs::write(&path, text)?;
            self.files.entry(name).or_insert(path);
        }
        Ok(())
    }
}

/// Returns the files in C in the directory itself, or those in C++ if there are any.
fn sources_in(files: &BTreeMap<String, PathBuf>) -> Option<(BuildLanguage, Vec<String>)> {
    let all: Vec<_> = files
        .iter()
        .filter(|(name, _)| !name.contains('/'))
        .filter_map(|(name, path)| Some((name.clone(), language(path)?)))
        .filter(|(_, language)| *language != BuildLanguage::Rust)
        .collect();
    let cpp = all
        .iter()
        .any(|(_, language)| *language == BuildLanguage::Cpp);
    let language = if cpp {
        BuildLanguage::Cpp
    } else {
        BuildLanguage::C
    };
    (!all.is_empty()).then(|| (language, all.into_iter().map(|(name, _)| name).collect()))
}

/// Collects all files of a directory except hidden files and build results.
fn collect(
    directory: &Path,
    at: &str,
    files: &mut BTreeMap<String, PathBuf>,
) -> anyhow::Result<()> {
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_str().context("a file's name is no UTF-8")?;
        if name.starts_with('.') || name == "target" {
            continue;
        }
        let below = format!("{at}{name}");
        let kind = entry.file_type()?;
        if kind.is_dir() {
            collect(&entry.path(), &format!("{below}/"), files)?;
        } else if kind.is_file() && !name.ends_with(".so") && !name.ends_with(".wasm") {
            files.insert(below, entry.path());
        }
        ensure!(
            files.len() <= FILES_MAX,
            "more than {FILES_MAX} files in {}",
            directory.display()
        );
    }
    Ok(())
}

/// Directory and launcher in which compilers run.
struct Workshop<'a> {
    launcher: Launcher,
    directory: PathBuf,
    source: &'a KernelSource,
}

impl Workshop<'_> {
    fn compile(&self, ending: &str, file: &str) -> anyhow::Result<Built> {
        let wasm = ending == "wasm";
        match self.source.language {
            BuildLanguage::Rust => self.rust(wasm, file),
            language => self.c(language, wasm, file),
        }
    }

    fn c(&self, language: BuildLanguage, wasm: bool, file: &str) -> anyhow::Result<Built> {
        let (compiler, flags): (_, &[&str]) = match (language, wasm) {
            (BuildLanguage::Cpp, false) => ("c++", &["-std=c++17", "-shared", "-fPIC"]),
            (_, false) => ("cc", &["-std=gnu11", "-shared", "-fPIC"]),
            (BuildLanguage::Cpp, true) => {
                ("clang++", &["-std=c++17", "-fno-exceptions", "-fno-rtti"])
            }
            (_, true) => ("clang", &["-std=gnu11"]),
        };
        let found = |name: &str| find_program(name, &self.launcher.settings().path);
        let Some(program) = found(compiler) else {
            return Ok(Built::Failed(format!("{compiler} is not installed")));
        };
        if wasm && found("wasm-ld").is_none() {
            return Ok(Built::Failed(
                "wasm-ld is not installed (Debian: package lld)".into(),
            ));
        }
        let mut args: Vec<&str> = ["-O3", "-Wall", "-I", "."].into();
        args.extend(flags);
        if wasm {
            let wasm = ["--target=wasm32", "-msimd128", "-nostdlib"];
            args.extend(wasm);
            args.push("-Wl,--no-entry,--export-dynamic");
        }
        args.extend(["-o", file]);
        args.extend(self.source.main.iter().map(String::as_str));
        self.run(program, &args, &[], Vec::new(), file)
    }

    /// Compiles the crate that kernels use, then the kernel.
    fn rust(&self, wasm: bool, file: &str) -> anyhow::Result<Built> {
        let Some(sysroot) = sysroot() else {
            return Ok(Built::Failed("rustc is not installed".into()));
        };
        if wasm && !sysroot.join("lib/rustlib").join(WASM).exists() {
            return Ok(Built::Failed(format!(
                "Rust for {WASM} is not installed; run `rustup target add {WASM}`"
            )));
        }
        let mut args = vec!["--edition=2024", "-Copt-level=3", "-Cpanic=abort"];
        if wasm {
            args.extend([
                "--target",
                WASM,
                "-Ctarget-feature=+simd128",
                "-Cstrip=debuginfo",
            ]);
        }
        let rlib = format!("lib{API_NAME}.rlib");
        let root = format!("{API_DIRECTORY}/lib.rs");
        let mut first = args.clone();
        first.extend([
            "--crate-type=rlib",
            "--crate-name",
            API_NAME,
            &root,
            "-o",
            &rlib,
        ]);
        let rustc = sysroot.join("bin/rustc");
        let readable = [sysroot];
        let api = match self.run(rustc.clone(), &first, &readable, Vec::new(), &rlib)? {
            Built::Made(path) => path,
            failed @ Built::Failed(_) => return Ok(failed),
        };
        let external = format!("{API_NAME}={rlib}");
        let name: String = self
            .source
            .name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
            .collect();
        let name = format!("kernel_{name}");
        args.extend([
            "--crate-type=cdylib",
            "--crate-name",
            &name,
            "--extern",
            &external,
        ]);
        args.push(&self.source.main[0]);
        args.extend(["-o", file]);
        self.run(rustc, &args, &readable, vec![(rlib.clone(), api)], file)
    }

    /// Runs a compiler over the source, and `more` files.
    fn run(
        &self,
        program: PathBuf,
        args: &[&str],
        readable: &[PathBuf],
        more: Vec<(String, PathBuf)>,
        output: &str,
    ) -> anyhow::Result<Built> {
        let directory = tempfile::Builder::new()
            .prefix("step-")
            .tempdir_in(&self.directory)?
            .keep();
        let mut run = Run::new(CodeSource::Program(program), directory.join("run"));
        run.args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let files = self
            .source
            .files
            .iter()
            .map(|(name, path)| (name.clone(), path.clone()));
        run.inputs = files
            .chain(more)
            .map(|(name, path)| RunInput { name, path })
            .collect();
        run.inputs_as = InputsAs::Symlink;
        run.outputs.push(output.to_owned());
        run.readable = readable.to_vec();
        run.limits = RunLimits {
            time: TIME_MAX,
            memory_bytes: MEMORY_BYTES_MAX,
            output_bytes: OUTPUT_BYTES_MAX,
            ..RunLimits::default()
        };
        let limits = run.limits;
        let prepared = self.launcher.prepare(run)?;
        let exit = self.launcher.spawn(&prepared)?.wait()?;
        if !exit.success() {
            let printed = exit.stderr.text();
            let printed = if printed.trim().is_empty() {
                exit.message(&limits)
            } else {
                printed
            };
            return Ok(Built::Failed(printed));
        }
        prepared.output(output)?;
        Ok(Built::Made(prepared.run().directory.join(output)))
    }
}

/// Returns the directories in which Rust is installed, as `rustc` on the PATH may only be a wrapper.
fn sysroot() -> Option<PathBuf> {
    let asked = Command::new("rustc")
        .args(["--print", "sysroot"])
        .stderr(Stdio::null())
        .output();
    let printed = asked.ok().filter(|printed| printed.status.success())?;
    let path = PathBuf::from(String::from_utf8(printed.stdout).ok()?.trim_end());
    path.join("bin/rustc").exists().then_some(path)
}
