//! Adapter between a task and `tidemill_sandbox`. The module prepares a run, starts the kernel process in a private directory, and converts
//! its end into a label's outcome.

use crate::allowed_dirs::AllowedDirs;
use crate::config::NodeConfig;
use crate::input_reads::ReadServer;
use crate::task::failure;
use parking_lot::Mutex;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidemill_model::directory::is_directory;
use tidemill_model::label::{Analysis, Failure, FailureKind, Kernel, Owner, TAIL_BYTES_MAX};
use tidemill_model::resources::LIGHT_MAX;
use tidemill_model::time::Span;
use tidemill_sandbox::peers::RankNetwork;
use tidemill_sandbox::reduce_workers::{ReduceError, Reducing};
use tidemill_sandbox::{
    CodeSource, Exit, InputsAs, Launcher, LauncherLimits, LauncherSettings, PrepareError, Prepared,
    ProbeError, Run, RunEnd, RunInput, RunLimits, RunStage, SetupError, SpawnError, StreamTail,
    User,
};

/// Maximum number of processes and threads of all kernels on a node together. The limit bounds the effect of hostile kernels of many users.
const THREADS_MAX: u32 = 16_384;

/// Limit of processor time of a task without a core, in hundredths of a core: all such tasks that run on a node together get two cores.
const LIGHT_PERCENT: u32 = 200 / LIGHT_MAX;

/// Files that MPI libraries read: the names of network devices, and the identifier by which two ranks detect that they are on one host.
const LOOKED_AT: [&str; 2] = ["/sys/class/net", "/proc/sys/kernel/random/boot_id"];

/// Number of the signal with which the operating system kills processes (SIGKILL).
const KILLED: i32 = 9;

/// Component of a node that starts its kernels.
#[derive(Debug)]
pub struct Runner {
    launcher: Launcher,
    shown: AllowedDirs,
    environment: Vec<(String, String)>,
    root: bool,
    uid: u32,
}

/// Description of one run of a kernel.
#[derive(Debug)]
pub struct RunRequest<'a> {
    /// Task of the kernel.
    pub analysis: &'a Analysis,
    /// User and group whose rights the kernel has.
    pub owner: Owner,
    /// Private directory of the run, which must not exist.
    pub directory: &'a Path,
    /// Names of the inputs, and the paths of their files.
    pub inputs: &'a [(String, PathBuf)],
    /// Additional environment variables of the kernel.
    pub environment: Vec<(String, String)>,
    /// Server for the kernel's reads, if the kernel may read all of its inputs.
    pub(crate) reads: Option<&'a ReadServer<'a>>,
    /// Network of the rank and connection to its starter, if the kernel is one of several ranks. The start of the kernel takes the value.
    pub(crate) joined: Mutex<Option<(Arc<RankNetwork>, OwnedFd)>>,
}

/// Result of one run of a kernel.
#[derive(Debug)]
pub struct RunResult {
    /// Ended kernel with its outputs, if the kernel succeeded.
    pub result: Result<Prepared, Failure>,
    /// User and system time that the kernel used.
    pub cpu: Span,
    /// Maximum resident set size of the kernel, in bytes.
    pub memory_bytes: u64,
    /// Hash of the kernel's code in hexadecimal; empty if the code was not available.
    pub kernel_hash: String,
    /// Last bytes of the kernel's standard output.
    pub stdout: String,
    /// Last bytes of the kernel's standard error.
    pub stderr: String,
}

/// Handle that cancels a label, whether its kernel has been started or not.
#[derive(Debug, Default)]
pub struct RunHandle {
    cancelled: AtomicBool,
    kernel: Mutex<Option<tidemill_sandbox::Control>>,
}

impl RunHandle {
    /// Kills the kernel, or prevents its start.
    pub fn cancel(&self) {
        let kernel = self.kernel.lock();
        self.cancelled.store(true, Ordering::Release);
        if let Some(kernel) = &*kernel {
            kernel.cancel();
        }
    }

    /// Returns whether the label was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Returns the last bytes of the kernel's standard output and standard error so far.
    #[must_use]
    pub fn printed(&self) -> (String, String) {
        let kernel = self.kernel.lock();
        kernel
            .as_ref()
            .map(|kernel| (text(&kernel.stdout()), text(&kernel.stderr())))
            .unwrap_or_default()
    }

    fn attach(&self, kernel: tidemill_sandbox::Control) {
        let mut slot = self.kernel.lock();
        if self.is_cancelled() {
            kernel.cancel();
        }
        *slot = Some(kernel);
    }
}

impl Runner {
    /// Returns a runner, after detecting the capabilities of this host.
    ///
    /// # Errors
    /// This host can't confine kernels.
    pub fn new(config: &NodeConfig) -> Result<Self, SetupError> {
        let shown = AllowedDirs::new(config);
        let mut defaults = LauncherSettings::default();
        let path = config.kernels_path.iter();
        let path: Vec<PathBuf> = path.filter_map(|directory| shown.own(directory)).collect();
        defaults.system_paths.extend(path.clone());
        defaults.path.splice(0..0, path);
        let settings = LauncherSettings {
            child: Some(config.program.clone()),
            modules: Some(config.directory.join("wasm")),
            idle: config.kernels_idle,
            together: Some(LauncherLimits {
                memory_bytes: config.kernels_memory_bytes(),
                threads: THREADS_MAX,
                idle: config.kernels_idle,
            }),
            ..defaults
        };
        let uid = rustix::process::geteuid();
        Ok(Self {
            launcher: Launcher::new(settings)?,
            shown,
            environment: config.kernels_environment.clone(),
            root: uid.is_root(),
            uid: uid.as_raw(),
        })
    }

    /// Returns a human-readable description of the sandbox of kernels.
    #[must_use]
    pub fn sandbox(&self) -> String {
        let support = self.launcher.support();
        let mut parts = Vec::new();
        if support.files() {
            parts.push(format!("Landlock {}", support.landlock_version));
        }
        if support.files() && !support.cuts() {
            parts.push("no truncation by path".to_owned());
        }
        if !self.root && !support.signals() {
            parts.push("signals not confined".to_owned());
        }
        if support.seccomp {
            parts.push("seccomp".to_owned());
        }
        if self.launcher.has_users_of_kernels() {
            parts.push("users of kernels".to_owned());
        } else if support.switches_user {
            parts.push("own user".to_owned());
        }
        if self.launcher.has_namespaces() {
            parts.push("namespaces".to_owned());
        }
        if self.launcher.bounds_together() {
            parts.push("control group".to_owned());
        }
        if self.launcher.bounds_cpu() {
            parts.push("cores".to_owned());
        }
        parts.join(", ")
    }

    /// Returns whether kernels on this host can run the program `name`: a name in the kernels' PATH, or an absolute path. A name that ends
    /// in a slash is a directory that the host shows to kernels.
    #[must_use]
    pub fn has_program(&self, name: &str) -> bool {
        match name.strip_suffix('/') {
            Some(directory) => self.shown.find(directory).is_some(),
            None => self.launcher.find_program(name).is_some(),
        }
    }

    /// Returns the directories that the host shows to kernels, if a query for programs contains a directory.
    #[must_use]
    pub fn offers(&self, asked: &[String]) -> Vec<String> {
        if !asked.iter().any(|name| is_directory(name)) {
            return Vec::new();
        }
        let offered = self.shown.offered();
        offered.filter(|name| !asked.contains(name)).collect()
    }

    /// Returns the share of a processor that a kernel of this user would get now. `directory` becomes its private directory.
    ///
    /// # Errors
    /// The host can't run a kernel.
    pub fn probe(&self, directory: PathBuf, owner: Owner) -> Result<f64, ProbeError> {
        let Owner { uid, gid } = owner;
        self.launcher
            .probe(directory, self.root.then_some(User { uid, gid }))
    }

    /// Starts a child process that reduces arrays for a user; its private directory must not exist.
    ///
    /// # Errors
    /// The child process can't be started.
    pub fn start_reducing(&self, directory: &Path, owner: Owner) -> Result<Reducing, ReduceError> {
        let Owner { uid, gid } = owner;
        self.launcher
            .start_reducing(directory, self.root.then_some(User { uid, gid }))
    }

    /// Creates the network of a rank of a task.
    ///
    /// # Errors
    /// This host gives kernels no network of their own.
    pub(crate) fn network(&self, rank: usize) -> std::io::Result<Arc<RankNetwork>> {
        self.launcher.network(rank)
    }

    /// Takes over the private directory of an ended kernel, for the next kernel of its user. `false`: the caller must remove it.
    #[must_use]
    pub fn recycle(&self, directory: &Path) -> bool {
        self.launcher.recycle(directory)
    }

    /// Runs a kernel and waits for its end. The private directory and its files stay.
    #[must_use]
    pub fn run(&self, request: &RunRequest<'_>, control: &RunHandle) -> RunResult {
        let mut ran = RunResult {
            result: Err(cancelled()),
            cpu: Span(0),
            memory_bytes: 0,
            kernel_hash: String::new(),
            stdout: String::new(),
            stderr: String::new(),
        };
        ran.result = self.attempt(request, control, &mut ran);
        ran
    }

    fn attempt(
        &self,
        request: &RunRequest<'_>,
        control: &RunHandle,
        ran: &mut RunResult,
    ) -> Result<Prepared, Failure> {
        let run = self.describe(request)?;
        if control.is_cancelled() {
            return Err(cancelled());
        }
        let prepared = self.launcher.prepare(run);
        let mut prepared = prepared.map_err(|e| unprepared(&e))?;
        if let Some((network, starter)) = request.joined.lock().take() {
            prepared.join(network, starter);
        }
        prepared.code_hash().clone_into(&mut ran.kernel_hash);
        let run = || self.run_to_its_end(&prepared, control);
        let exit = match request.reads.zip(prepared.take_pipes()) {
            None => run(),
            Some((reads, pipes)) => reads.meanwhile(pipes, run).unwrap_or_else(|error| {
                let message = format!("the node can't answer the kernel: {error}");
                Err(failure(FailureKind::Device, message))
            }),
        }?;
        let cpu = exit.usage.user_cpu + exit.usage.system_cpu;
        ran.cpu = Span(u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX));
        ran.memory_bytes = exit.usage.rss_bytes_max;
        ran.stdout = text(&exit.stdout);
        ran.stderr = text(&exit.stderr);
        judge(&exit, &prepared.run().limits)?;
        Ok(prepared)
    }

    fn run_to_its_end(&self, prepared: &Prepared, control: &RunHandle) -> Result<Exit, Failure> {
        let running = self
            .launcher
            .spawn(prepared)
            .map_err(|error| unspawned(&error))?;
        control.attach(running.control());
        running.wait().map_err(|error| {
            let message = format!("the node can't tell how the kernel ended: {error}");
            failure(FailureKind::Device, message)
        })
    }

    /// Returns whether the code of the kernel has this hash. The inputs of the request must be on this node. A kernel that is stored in the
    /// cluster is identified by its object and need not be compared.
    #[must_use]
    pub fn is_code(&self, request: &RunRequest<'_>, expected: &str) -> bool {
        if matches!(
            request.analysis.kernel,
            Kernel::Native { .. } | Kernel::Stored { .. }
        ) {
            return true;
        }
        let run = self.describe(request);
        run.is_ok_and(|run| (self.launcher.code_hash(&run)).is_ok_and(|hash| hash == expected))
    }

    fn describe(&self, request: &RunRequest<'_>) -> Result<Run, Failure> {
        let analysis = request.analysis;
        let mut run = Run::new(
            self.code(&analysis.kernel, request.inputs)?,
            request.directory,
        );
        run.args.clone_from(&analysis.args);
        run.inputs = request
            .inputs
            .iter()
            .map(|(name, path)| RunInput {
                name: name.clone(),
                path: path.clone(),
            })
            .collect();
        run.outputs = analysis.outputs.iter().map(|o| o.name.clone()).collect();
        run.stdin.clone_from(&analysis.stdin);
        run.stdout.clone_from(&analysis.stdout);
        run.limits = RunLimits {
            time: std::time::Duration::from_nanos(analysis.limits.time.0),
            memory_bytes: analysis.limits.memory_bytes,
            output_bytes: analysis.limits.output_bytes,
            cpu_percent: analysis.limits.cores.map(percent_of),
            ..RunLimits::default()
        };
        self.apply_environment(&mut run, request)?;
        run.asks = request.reads.is_some();
        if request.joined.lock().is_some() {
            let looked = LOOKED_AT.iter().map(PathBuf::from);
            run.readable.extend(looked.filter(|path| path.exists()));
        }
        if self.root {
            run.user = Some(User {
                uid: request.owner.uid,
                gid: request.owner.gid,
            });
        } else {
            if request.owner.uid != self.uid {
                let message = format!(
                    "this node runs as user {} and can't run a task of user {}; start it as root",
                    self.uid, request.owner.uid
                );
                return Err(failure(FailureKind::Kernel, message));
            }
            run.inputs_as = InputsAs::Symlink;
        }
        Ok(run)
    }

    /// Applies the environment of the node and of the task to a run. Fails if this node does not show a directory that the task needs.
    fn apply_environment(&self, run: &mut Run, request: &RunRequest<'_>) -> Result<(), Failure> {
        let runtime_environment = &request.analysis.runtime_environment;
        let own = runtime_environment.environment.iter();
        let own = own.map(|(name, value)| (name.clone(), value.clone()));
        // Of two variables with one name, the later is valid.
        run.environment.clone_from(&self.environment);
        run.environment.extend(own);
        run.environment.extend(request.environment.iter().cloned());
        run.path = runtime_environment.path.iter().map(PathBuf::from).collect();
        for directory in runtime_environment.shown() {
            let found = self.shown.find(directory).ok_or_else(|| {
                let message =
                    format!("this node shows no directory {directory} to kernels; see --task-dirs");
                failure(FailureKind::Unfit, message)
            });
            run.shown.push(found?);
        }
        Ok(())
    }

    fn code(&self, kernel: &Kernel, inputs: &[(String, PathBuf)]) -> Result<CodeSource, Failure> {
        let Kernel::Pipeline(pipeline) = kernel else {
            return self.single(kernel, inputs);
        };
        let stages = pipeline.stages.iter().map(|stage| {
            let code = self.single(&stage.kernel, inputs)?;
            let args = stage.args.clone();
            Ok(RunStage { code, args })
        });
        Ok(CodeSource::Pipeline(stages.collect::<Result<_, _>>()?))
    }

    fn single(&self, kernel: &Kernel, inputs: &[(String, PathBuf)]) -> Result<CodeSource, Failure> {
        let file = |input: &str| {
            let found = inputs.iter().find(|(name, _)| name == input);
            found.map(|(_, path)| path.clone()).ok_or_else(|| {
                let message = format!("the kernel `{input}` is not among the task's inputs");
                failure(FailureKind::Kernel, message)
            })
        };
        match kernel {
            Kernel::Builtin(name) => Ok(CodeSource::Builtin(name.clone())),
            Kernel::Native { input } => file(input).map(CodeSource::Native),
            Kernel::Wasm { input } => file(input).map(CodeSource::Wasm),
            Kernel::Stored { input } => file(input).map(CodeSource::Program),
            Kernel::Program(name) => {
                let found = self.launcher.find_program(name);
                found.map(CodeSource::Program).ok_or_else(|| {
                    let message = format!("no program `{name}` is installed on this node's host");
                    failure(FailureKind::Unfit, message)
                })
            }
            Kernel::Pipeline(_) => {
                let message = "a pipeline of kernels can't be part of another pipeline".to_owned();
                Err(failure(FailureKind::Kernel, message))
            }
        }
    }
}

/// Returns the limit of processor time of a task with `cores` cores, in hundredths of a core.
fn percent_of(cores: u32) -> u32 {
    match cores {
        0 => LIGHT_PERCENT,
        cores => cores.saturating_mul(100),
    }
}

fn judge(exit: &Exit, limits: &RunLimits) -> Result<(), Failure> {
    let kind = match exit.end {
        RunEnd::Code(0) => return Ok(()),
        RunEnd::Code(code) => FailureKind::Exit(code),
        RunEnd::Signal(signal) => FailureKind::Signal(signal),
        // The cause may be outside of the task: it may succeed on another node, or later.
        RunEnd::GroupLimit => FailureKind::Signal(KILLED),
        RunEnd::TimeLimit => FailureKind::Timeout,
        RunEnd::MemoryLimit => FailureKind::MemoryLimit,
        RunEnd::OutputLimit => FailureKind::OutputLimit,
        // For the user, this is one more resource that the kernel has exceeded.
        RunEnd::ProcessLimit => FailureKind::Kernel,
        RunEnd::Cancelled => FailureKind::Cancelled,
    };
    Err(Failure {
        kind,
        message: exit.message(limits),
    })
}

/// Returns the tail of a kernel's output as text within the limit of bytes. Bytes that are not UTF-8 need more bytes as text.
fn text(tail: &StreamTail) -> String {
    let mut text = tail.text();
    let mut start = text.len().saturating_sub(TAIL_BYTES_MAX);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text.drain(..start);
    text
}

pub(crate) fn cancelled() -> Failure {
    failure(FailureKind::Cancelled, "the label was aborted".into())
}

fn unprepared(error: &PrepareError) -> Failure {
    let kind = match error {
        PrepareError::Input { .. } | PrepareError::WritableInput { .. } => FailureKind::Input,
        PrepareError::Make { .. }
        | PrepareError::Compiler { .. }
        | PrepareError::ModuleDirectory { .. } => FailureKind::Device,
        _ => FailureKind::Kernel,
    };
    failure(kind, error.to_string())
}

fn unspawned(error: &SpawnError) -> Failure {
    let kind = match error {
        SpawnError::ZeroByte(_) | SpawnError::Execute { .. } => FailureKind::Kernel,
        SpawnError::Readable { .. } => FailureKind::Input,
        SpawnError::Sandbox { .. } | SpawnError::Rules(_) | SpawnError::Process(_) => {
            FailureKind::Device
        }
    };
    failure(kind, error.to_string())
}
