//! Launcher: prepares runs of kernels, and starts kernels as confined processes.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::child::{self, KeeperHandle};
use crate::code;
use crate::error::{PrepareError, SetupError, SpawnError};
use crate::fork_server::{self, ForkServer};
use crate::modules::Modules;
use crate::peers::RankNetwork;
use crate::prepare::{self, Prepared, environment};
use crate::private::OWN_USER;
use crate::program;
use crate::run::{CodeSource, InputsAs, Run, RunLimits, User};
use crate::running::RunningKernel;
use crate::sandbox::calls::{self, Filters};
use crate::sandbox::files::{SYSTEM_PATHS, SystemRules, open_directory_path, open_path};
use crate::sandbox::group::{ControlGroup, LauncherLimits};
use crate::sandbox::ids::Ids;
use crate::sandbox::namespaces::Namespaces;
use crate::sandbox::{SandboxSupport, sandbox_support};
use crate::spare::Spares;
use crate::spawn::{self, ExecTarget, Process, ProcessImage};
use crate::watch::{self, Watched};

/// Directories in which programs are searched by default.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Maximum number of files that a kernel may have open.
const OPEN_FILES_MAX: u64 = 4096;

/// Number of processes and threads that other work of a kernel's user may start, if the user is not root, before the kernel can start no
/// more. This limit is the last resort if a fork bomb is faster than the watcher.
const OTHER_PROCESSES_MAX: u64 = 1024;

/// Upper limit for the length of `/proc/loadavg`, in bytes.
const LOAD_BYTES_MAX: usize = 256;

/// Processor time that a process may use beyond its time limit on all cores before the operating system ends it. This limit matters only
/// if the node has ended and no process watches the time.
const CPU_GRACE: Duration = Duration::from_secs(10);

/// Number of tries to execute a file. A file that was just written cannot be executed while the child of another thread, between fork and
/// exec, still holds the file open.
const BUSY_TRIES: u32 = 50;
const BUSY_PAUSE: Duration = Duration::from_millis(2);

/// Settings for the kernels on this host.
#[derive(Clone, Debug)]
pub struct LauncherSettings {
    /// Files and directories that every kernel may read and execute.
    pub system_paths: Vec<PathBuf>,
    /// Directories in which programs are searched; they are also the `PATH` of kernels.
    pub path: Vec<PathBuf>,
    /// Program in which built-in and native kernels run. Its `main` must begin with [`crate::child::main_if_child`]. `None` stands for this
    /// program itself.
    pub child: Option<PathBuf>,
    /// Directory of compiled modules. Its parent must not be writable for other users. It is created when the first module is compiled.
    /// `None` stands for a directory of this user in the system's directory for temporary files.
    pub modules: Option<PathBuf>,
    /// Whether the launcher works even if the host lacks a part of the sandbox; see [`SandboxSupport::missing`].
    pub allow_weak_sandbox: bool,
    /// Whether kernels get processors and devices only while these are idle (`SCHED_IDLE`), so that reads and writes of clients do not wait
    /// for kernels.
    pub idle: bool,
    /// Limits for all kernels of a launcher together, if the host allows control groups.
    pub together: Option<LauncherLimits>,
}

impl Default for LauncherSettings {
    fn default() -> Self {
        Self {
            system_paths: SYSTEM_PATHS.iter().map(PathBuf::from).collect(),
            path: std::env::split_paths(PATH).collect(),
            child: None,
            modules: None,
            allow_weak_sandbox: false,
            idle: true,
            together: None,
        }
    }
}

/// Launcher of kernels. One launcher serves a whole node and can be shared between threads.
#[derive(Debug)]
pub struct Launcher {
    settings: LauncherSettings,
    support: SandboxSupport,
    ids: Ids,
    namespaces: Option<Namespaces>,
    system: SystemRules,
    child: OwnedFd,
    keeper: Arc<KeeperHandle>,
    spares: Spares,
    modules: Modules,
    group: Option<Arc<ControlGroup>>,
    /// File with the number of threads on this host, which is read at each start.
    load: Option<File>,
    /// Fork server, which the first run that needs it starts.
    server: Mutex<Option<Arc<ForkServer>>>,
}

/// Makes this process the parent of processes whose parents ended without waiting for them, so that their usage is counted with their
/// kernel.
fn become_subreaper() {
    // SAFETY: this option takes a plain number and only changes the parent of future processes.
    if unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } != 0 {
        tracing::warn!("the usage of processes that no kernel waits for will not be counted");
    }
}

impl Launcher {
    /// Examines the sandbox support of the host and opens the files that all kernels share.
    ///
    /// # Errors
    /// If the host lacks a part of the sandbox and the settings do not allow a weak sandbox.
    pub fn new(settings: LauncherSettings) -> Result<Self, SetupError> {
        let support = sandbox_support();
        let missing = support.missing();
        if !missing.is_empty() {
            let missing = missing.join("; ");
            if !settings.allow_weak_sandbox {
                return Err(SetupError::WeakSandbox { missing });
            }
            tracing::warn!(%missing, "kernels run in a weak sandbox, as the settings allow");
        }
        if support.seccomp {
            filters()?;
        }
        let ids = Ids::of_this_host();
        if support.switches_user {
            // Threads that start kernels share their memory with children that have other users.
            spawn::show_memory(false);
        }
        let unmade = |error| tracing::warn!(%error, "kernels share the network of this host, though they can't use it");
        let namespaces = Namespaces::make(ids).map_err(unmade).ok();
        let path = settings
            .child
            .clone()
            .unwrap_or_else(|| "/proc/self/exe".into());
        // The file stays open, so that kernels still start after a newer release has replaced it.
        let child = open_path(&path).map_err(|error| SetupError::Child {
            path,
            source: error.into(),
        })?;
        let keeper = Arc::new(KeeperHandle::start(&child).map_err(SetupError::Keeper)?);
        become_subreaper();
        let system = SystemRules::open(&settings.system_paths, support.landlock_version);
        let group = settings.together.as_ref().and_then(|together| {
            let group = ControlGroup::make(together);
            let warn = |error| tracing::info!(%error, "kernels have no common limit");
            group.map_err(warn).ok().map(Arc::new)
        });
        Ok(Self {
            group,
            server: Mutex::default(),
            modules: Modules::new(settings.modules.clone()),
            load: File::open("/proc/loadavg").ok(),
            settings,
            support,
            ids,
            namespaces,
            system,
            child,
            keeper,
            spares: Spares::default(),
        })
    }

    /// Returns the parts of the sandbox that the host supports.
    #[must_use]
    pub fn support(&self) -> SandboxSupport {
        self.support
    }

    /// Returns whether all kernels are in one control group that limits their common usage.
    #[must_use]
    pub fn bounds_together(&self) -> bool {
        self.group.is_some()
    }

    /// Returns whether this launcher can limit the processor time of runs.
    #[must_use]
    pub fn bounds_cpu(&self) -> bool {
        self.group.as_ref().is_some_and(|group| group.bounds_cpu())
    }

    /// Returns whether kernels run as users that no other process on this host has. If not, other processes of a kernel's user can
    /// interfere with the kernel.
    #[must_use]
    pub fn has_users_of_kernels(&self) -> bool {
        self.ids == Ids::OfKernels
    }

    /// Returns whether kernels have users, a network and messages that are separate from those of this host.
    #[must_use]
    pub fn has_namespaces(&self) -> bool {
        self.namespaces.is_some()
    }

    /// Returns the settings of the launcher.
    #[must_use]
    pub fn settings(&self) -> &LauncherSettings {
        &self.settings
    }

    /// Returns the path of a program of the host, given its absolute path or its name.
    #[must_use]
    pub fn find_program(&self, name: &str) -> Option<PathBuf> {
        program::find_program(name, &self.settings.path)
    }

    /// Makes the private directory of a run: links to the run's inputs, and directories for its outputs.
    ///
    /// # Errors
    /// If a name cannot be used, a file is missing, or the directory exists already or cannot be made. The caller must remove the parts
    /// that were made until then.
    pub fn prepare(&self, run: Run) -> Result<Prepared, PrepareError> {
        prepare::check(&run)?;
        let opened = code::open(&run, self.ids)?;
        let files = run.code.parts().filter(|part| part.file().is_some());
        let user = run.user.unwrap_or(*OWN_USER).uid;
        let module = |(part, opened): (&CodeSource, _)| match part {
            CodeSource::Wasm(path) => Some(self.modules.open(self, user, path, opened)),
            _ => None,
        };
        let modules = files.zip(&opened).filter_map(module);
        let modules = modules.collect::<Result<_, _>>()?;
        let mut prepared = prepare::prepare(run, self.ids, Some(&self.spares), opened)?;
        prepared.modules = modules;
        Ok(prepared)
    }

    /// Returns the hash of the code that a run would use now, in hexadecimal.
    ///
    /// # Errors
    /// If the user of the run has no right to the code.
    pub fn code_hash(&self, run: &Run) -> Result<String, PrepareError> {
        prepare::check_code(run)?;
        Ok(code::hash(&run.code, &code::open(run, self.ids)?))
    }

    /// Makes a network for rank `rank` of a kernel with several ranks.
    ///
    /// # Errors
    /// If kernels have no separate network on this host.
    pub fn network(&self, rank: usize) -> io::Result<Arc<RankNetwork>> {
        if self.namespaces.is_none() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        RankNetwork::make(&self.child, self.ids, rank).map(Arc::new)
    }

    /// Prepares the run of a child that compiles `module`.
    pub(crate) fn prepare_compiler(
        &self,
        run: Run,
        module: File,
    ) -> Result<Prepared, PrepareError> {
        let mut prepared = prepare::prepare(run, self.ids, None, Vec::new())?;
        prepared.streams.get_mut().stdin = Some(module);
        prepared.compiles = true;
        Ok(prepared)
    }

    /// Prepares the run of a child that executes the reductions it receives on `socket`.
    pub(crate) fn prepare_reducer(&self, run: Run, socket: File) -> Result<Prepared, PrepareError> {
        let mut prepared = prepare::prepare(run, self.ids, Some(&self.spares), Vec::new())?;
        prepared.streams.get_mut().stdin = Some(socket);
        prepared.reduces = true;
        Ok(prepared)
    }

    /// Makes the private directory of an ended run available for another run of the same user. Returns `false` if this is not possible;
    /// then the caller must remove the directory. Spare directories are stored in the same parent directory and are named `spare-*`.
    #[must_use]
    pub fn recycle(&self, directory: &Path) -> bool {
        self.spares.put(directory)
    }

    /// Starts a prepared run in a separate confined process. The process is killed when the result is dropped, and when this process ends.
    ///
    /// # Errors
    /// If the process could not be confined or executed; then no code of the kernel has run.
    pub fn spawn(&self, prepared: &Prepared) -> Result<RunningKernel, SpawnError> {
        let mut tries = 0;
        loop {
            match self.spawn_once(prepared) {
                Err(SpawnError::Execute { source, .. })
                    if source.kind() == io::ErrorKind::ExecutableFileBusy && tries < BUSY_TRIES =>
                {
                    tries += 1;
                    thread::sleep(BUSY_PAUSE);
                }
                result => return result,
            }
        }
    }

    fn spawn_once(&self, prepared: &Prepared) -> Result<RunningKernel, SpawnError> {
        let run = &prepared.run;
        let streams = prepared.streams.lock();
        let stdin = match &streams.stdin {
            Some(file) => file.try_clone(),
            None => File::open("/dev/null"),
        };
        let stdin = stdin.map_err(SpawnError::Process)?.into();
        let (stdout_reader, stdout) = match &streams.stdout {
            Some(file) => (None, file.try_clone().map_err(SpawnError::Process)?.into()),
            None => pipe().map(|(reader, writer)| (Some(reader), writer))?,
        };
        drop(streams);
        let (stderr_reader, stderr) = pipe()?;
        let path = std::env::join_paths(run.path.iter().chain(&self.settings.path));
        let path = path.unwrap_or_else(|_| PATH.into());
        let variables = environment(run, &path.to_string_lossy());
        let filter = self.filter(prepared)?;
        let image = ProcessImage {
            program: match &prepared.code {
                CodeSource::Program(path) => ExecTarget::Path(c_path(path)?),
                CodeSource::Builtin(_)
                | CodeSource::Native(_)
                | CodeSource::Wasm(_)
                | CodeSource::Pipeline(_) => ExecTarget::File(self.child.as_raw_fd()),
            },
            args: Vec::new(),
            environment: variables
                .iter()
                .map(|(name, value)| c_string(format!("{name}={value}")))
                .collect::<Result<_, _>>()?,
            streams: [stdin, stdout, stderr],
            kept: kept(prepared),
            doors: self.doors().iter().map(AsRawFd::as_raw_fd).collect(),
            directory: Arc::clone(&prepared.directory),
            namespaces: self.namespaces(prepared),
            user: self.user(prepared),
            limits: resource_limits(
                &run.limits,
                (!self.runs_as_root(run)).then(|| self.threads()),
            ),
            // A client waits for the answer of a reducer, as it waits for bytes of a read.
            idle: self.settings.idle && !prepared.reduces,
            ruleset: self.ruleset(prepared)?,
            filter: filter.map(|(kind, filters)| filters.of(kind)),
        };
        let group = self.group.clone().map(|group| (group.ended(), group));
        let started = Instant::now();
        let process = self.start(prepared, image, filter.map(|(kind, _)| kind))?;
        // A process that starts at the same time inherits the open files of this process, for a moment that may be longer than the kernel
        // runs.
        prepared.close_streams();
        self.keeper.started(process.pid);
        let watched = Arc::new(Watched {
            process,
            started,
            limits: run.limits,
            directory: Arc::clone(&prepared.directory),
            given: prepared.given.clone(),
            state: Default::default(),
            orphans: Default::default(),
            cgroup: Default::default(),
            looks: Default::default(),
            device: Default::default(),
            group,
            keeper: Arc::clone(&self.keeper),
            stdout: Default::default(),
            stderr: Default::default(),
        });
        watch::watch(&watched);
        Ok(RunningKernel::new(watched, stdout_reader, stderr_reader))
    }

    /// Returns the namespaces of a run. A run as this process's own user, root, stays in the namespaces of the host.
    fn namespaces(&self, prepared: &Prepared) -> Vec<RawFd> {
        let enters = prepared.run.user.is_some() || !self.support.switches_user;
        let own = prepared
            .network
            .as_ref()
            .map(|network| network.namespaces());
        let entered = own.or(self.namespaces.as_ref().filter(|_| enters));
        let descriptors = entered.map(Namespaces::descriptors);
        (descriptors.iter().flatten())
            .map(AsRawFd::as_raw_fd)
            .collect()
    }

    /// Returns the user as which a run's process runs, in the numbers of its namespaces.
    fn user(&self, prepared: &Prepared) -> Option<User> {
        if self.namespaces.is_some() || prepared.network.is_some() {
            prepared.run.user
        } else {
            prepared.user
        }
    }

    /// Returns whether a run has root's rights over files.
    fn runs_as_root(&self, run: &Run) -> bool {
        run.user.map_or(self.support.switches_user, |user| {
            user.uid == 0 && self.ids == Ids::OfOwners
        })
    }

    /// Returns the current number of threads on this host, at least the number of any one user; the limit counts all threads of a user.
    fn threads(&self) -> u64 {
        let mut bytes = [0; LOAD_BYTES_MAX];
        let read = (self.load.as_ref()).and_then(|load| load.read_at(&mut bytes, 0).ok());
        let text = str::from_utf8(&bytes[..read.unwrap_or(0)]).unwrap_or_default();
        let tasks = text.split_ascii_whitespace().nth(3);
        let total = tasks.and_then(|tasks| tasks.split_once('/')?.1.parse().ok());
        total.unwrap_or(OTHER_PROCESSES_MAX)
    }

    /// Starts a run: through the fork server if the run's code is no program, else by executing the code.
    fn start(
        &self,
        prepared: &Prepared,
        mut image: ProcessImage,
        filter: Option<calls::FilterKind>,
    ) -> Result<Process, SpawnError> {
        let is_part = !matches!(prepared.code, CodeSource::Program(_)) && !prepared.compiles;
        if is_part && let Some(server) = self.server() {
            image.args = arguments(prepared, fork_server::KEPT_FIRST..)?;
            if let Some(started) = server.spawn(&image, filter) {
                return started;
            }
            // The next run starts a new server.
            *self.server.lock() = None;
        }
        image.args = arguments(prepared, kept(prepared))?;
        spawn::spawn(image)
    }

    fn doors(&self) -> &[OwnedFd] {
        let doors = self.group.as_ref().map(|group| group.doors());
        doors.unwrap_or_default()
    }

    fn server(&self) -> Option<Arc<ForkServer>> {
        let mut server = self.server.lock();
        if server.is_none() {
            let started = ForkServer::start(&self.child, self.doors());
            let warn = |error| tracing::warn!(%error, "kernels start slowly: there is no server that forks them");
            *server = started.map_err(warn).ok().map(Arc::new);
        }
        server.clone()
    }

    /// Returns the filters of system calls and the kind of filter that a run gets.
    fn filter(
        &self,
        prepared: &Prepared,
    ) -> Result<Option<(calls::FilterKind, &'static Filters)>, SpawnError> {
        if !self.support.seccomp {
            return Ok(None);
        }
        let run = &prepared.run;
        let owns_files = self.runs_as_root(run) || run.inputs_as == InputsAs::Symlink;
        let filters = filters().map_err(|error| SpawnError::Process(io::Error::other(error)))?;
        let kind = calls::FilterKind {
            owns_files,
            has_peers: prepared.network.is_some(),
        };
        Ok(Some((kind, filters)))
    }

    fn ruleset(&self, prepared: &Prepared) -> Result<Option<OwnedFd>, SpawnError> {
        if !self.support.files() {
            return Ok(None);
        }
        let run = &prepared.run;
        let open = |path: &Path| {
            open_path(path).map_err(|error| SpawnError::Readable {
                path: path.to_owned(),
                source: error.into(),
            })
        };
        let mut readable = run
            .readable
            .iter()
            .map(|path| open(path))
            .collect::<Result<Vec<_>, _>>()?;
        for path in &run.shown {
            let opened = open_directory_path(path).map_err(|source| SpawnError::Readable {
                path: path.clone(),
                source: source.into(),
            });
            readable.push(opened?);
        }
        for input in &run.inputs {
            let link = run.directory.join(&input.name);
            // An input on another file system always has a symbolic link.
            if run.inputs_as == InputsAs::Symlink || link.is_symlink() {
                readable.push(open(&input.path)?);
            }
        }
        let own = (!matches!(prepared.code, CodeSource::Program(_))).then(|| self.child.as_fd());
        let readable = (readable.iter().map(AsFd::as_fd))
            .chain(prepared.files.iter().map(AsFd::as_fd))
            .chain(own);
        let has_peers = prepared.network.is_some();
        self.system
            .ruleset(&prepared.directory, readable, has_peers)
    }
}

/// Number of cores that the processes of a kernel can use at once. It is determined once, because this needs about a dozen files.
static CORES: LazyLock<u32> = LazyLock::new(|| {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    u32::try_from(cores).unwrap_or(u32::MAX)
});

/// Returns the filters of system calls, which are built once.
pub(crate) fn filters() -> Result<&'static Filters, SetupError> {
    static FILTERS: LazyLock<Result<Filters, String>> = LazyLock::new(|| {
        let cuts = sandbox_support().cuts();
        calls::filters(cuts).map_err(|error| error.to_string())
    });
    FILTERS
        .as_ref()
        .map_err(|error| SetupError::Filter(error.clone()))
}

/// Returns a pipe whose reading end does not block, so that one thread can serve several pipes.
fn pipe() -> Result<(OwnedFd, OwnedFd), SpawnError> {
    let pipe = || -> rustix::io::Result<_> {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&reader, true)?;
        Ok((reader, writer))
    };
    pipe().map_err(|error| SpawnError::Process(error.into()))
}

fn c_string(text: impl Into<Vec<u8>>) -> Result<CString, SpawnError> {
    CString::new(text).map_err(|error| {
        SpawnError::ZeroByte(String::from_utf8_lossy(&error.into_vec()).into_owned())
    })
}

fn c_path(path: &Path) -> Result<CString, SpawnError> {
    c_string(path.as_os_str().as_bytes())
}

/// Returns the descriptors of the open compiled modules of a run.
fn kept(prepared: &Prepared) -> Vec<RawFd> {
    prepared.modules.iter().map(AsRawFd::as_raw_fd).collect()
}

/// Returns the arguments of a run whose child process gets its modules as these descriptors.
fn arguments(
    prepared: &Prepared,
    modules: impl IntoIterator<Item = RawFd>,
) -> Result<Vec<CString>, SpawnError> {
    let run = &prepared.run;
    let mut all = match &prepared.code {
        CodeSource::Program(path) => vec![c_path(path)?],
        _ if prepared.compiles => child::compiler_arguments()
            .into_iter()
            .map(c_string)
            .collect::<Result<_, _>>()?,
        _ if prepared.reduces => child::reducer_arguments()
            .into_iter()
            .map(c_string)
            .collect::<Result<_, _>>()?,
        code => child::arguments(code, run, modules)
            .into_iter()
            .map(c_string)
            .collect::<Result<Vec<_>, _>>()?,
    };
    for arg in &run.args {
        all.push(c_string(arg.as_str())?);
    }
    Ok(all)
}

fn resource_limits(
    limits: &RunLimits,
    threads: Option<u64>,
) -> Vec<(libc::c_uint, libc::rlimit64)> {
    let both = |value| libc::rlimit64 {
        rlim_cur: value,
        rlim_max: value,
    };
    let cpu = limits.time.saturating_mul(*CORES).saturating_add(CPU_GRACE);
    let cpu = libc::rlimit64 {
        rlim_cur: cpu.as_secs(),
        rlim_max: cpu.as_secs().saturating_add(1),
    };
    let mut all = vec![
        (libc::RLIMIT_CORE, both(0)),
        (libc::RLIMIT_CPU, cpu),
        // Private writable memory is limited. A limit of the address space would count mapped inputs, and the empty ranges that run-time
        // libraries reserve.
        (libc::RLIMIT_DATA, both(limits.memory_bytes)),
        (libc::RLIMIT_FSIZE, both(limits.output_bytes)),
        (libc::RLIMIT_NOFILE, both(OPEN_FILES_MAX)),
    ];
    if let Some(threads) = threads {
        let most = threads + OTHER_PROCESSES_MAX + u64::from(limits.processes);
        all.push((libc::RLIMIT_NPROC, both(most)));
    }
    all
}
