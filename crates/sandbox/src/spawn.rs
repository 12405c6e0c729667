//! Start of a confined process: all code between fork and exec.
//!
//! The child shares the parent's memory until it executes its program (`CLONE_VM | CLONE_VFORK`), so the cost of a start does not depend
//! on the size of the parent. For this reason the child's code allocates nothing, takes no lock and makes bare system calls: C libraries
//! wrap some calls, such as `setresuid`, in code that acts on all threads of the parent.
//!
//! A child has its new user while it still shares the memory of this process. So a process whose children change users must hide its
//! memory from other processes: [`show_memory`].
//!
//! Kernels die with the *thread* that started them, so threads of this module that never end start all kernels.

use std::cell::UnsafeCell;
use std::ffi::{CString, c_char, c_int, c_long, c_uint, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::{Arc, LazyLock, mpsc};

use parking_lot::Mutex;
use seccompiler::{BpfProgram, sock_filter};

use crate::error::SpawnError;
use crate::run::User;
use crate::sandbox::calls::IOPRIO_WHO_PROCESS;
use crate::sandbox::files;

/// Maximum number of threads that start processes. A start keeps a processor busy for a millisecond at most.
const SPAWNERS_MAX: usize = 4;

/// Size of the child's stack until it executes its program, in bytes.
const STACK_BYTES: usize = 64 << 10;

/// Out-of-memory score of the kernel process: if the host runs out of memory, the system ends kernels before the node.
const OUT_OF_MEMORY_SCORE: &[u8] = b"500";

/// Class `IOPRIO_CLASS_IDLE` of `linux/ioprio.h`, shifted to its bits in a priority.
const IOPRIO_IDLE: c_int = 3 << 13;

/// Flag `PIDFD_SIGNAL_PROCESS_GROUP` of `linux/pidfd.h`.
const WHOLE_GROUP: c_uint = 1 << 2;

/// Securebits of the process: user 0 has no special rights, and this setting is locked (`linux/securebits.h`).
const SECUREBITS: libc::c_ulong = 0b1111 | 0b1100_0000;

/// Process to start: all data that the child needs, ready for use.
#[derive(Debug)]
pub(crate) struct ProcessImage {
    /// Program to execute: a path, or an open file.
    pub(crate) program: ExecTarget,
    /// Arguments of the program; the first is the program's own name.
    pub(crate) args: Vec<CString>,
    /// Environment variables of the program.
    pub(crate) environment: Vec<CString>,
    /// Standard input, output and error of the process.
    pub(crate) streams: [OwnedFd; 3],
    /// Descriptors above the streams that stay open under their numbers; the creator of the image holds them.
    pub(crate) kept: Vec<RawFd>,
    /// Doors of the control group that the process enters; the creator of the image holds them.
    pub(crate) doors: Vec<RawFd>,
    /// Working directory of the process.
    pub(crate) directory: Arc<OwnedFd>,
    /// Namespaces that the process enters, in this order; the creator of the image holds them.
    pub(crate) namespaces: Vec<RawFd>,
    /// User whose rights the process gets, in the numbers of the namespace that it has entered.
    pub(crate) user: Option<User>,
    /// Resource limits of the process: the resource and its limit.
    pub(crate) limits: Vec<(c_uint, libc::rlimit64)>,
    /// Whether the process runs only while processors are otherwise idle.
    pub(crate) idle: bool,
    /// Landlock ruleset of the process.
    pub(crate) ruleset: Option<OwnedFd>,
    /// Filter of the process's system calls.
    pub(crate) filter: Option<&'static BpfProgram>,
}

/// Program that is executed.
#[derive(Debug)]
pub(crate) enum ExecTarget {
    Path(CString),
    File(RawFd),
}

/// A started process.
#[derive(Debug)]
pub(crate) struct Process {
    /// Id of the process, which is also the id of its group and session.
    pub(crate) pid: i32,
    /// Process descriptor, readable once the process has ended.
    pub(crate) pidfd: OwnedFd,
}

/// Descriptions of the steps that can fail, in words for users.
const STEPS: &[&str] = &[
    "executing",
    "session",
    "standard streams",
    "working directory",
    "descriptors",
    "resource limits",
    "priority",
    "capabilities",
    "user",
    "death with the node",
    "no new privileges",
    "file rules",
    "system call filter",
    "control group",
    "namespaces",
];
const EXECUTING: usize = 0;
const SESSION: usize = 1;
const STREAMS: usize = 2;
const DIRECTORY: usize = 3;
pub(crate) const DESCRIPTORS: usize = 4;
const LIMITS: usize = 5;
const PRIORITY: usize = 6;
const CAPABILITIES: usize = 7;
const USER: usize = 8;
const DEATH: usize = 9;
const PRIVILEGES: usize = 10;
const FILE_RULES: usize = 11;
pub(crate) const CALL_FILTER: usize = 12;
const GROUP: usize = 13;
const NAMESPACES: usize = 14;

/// Data that the child process reads, and the one cell that it writes.
struct SpawnData<'a> {
    image: &'a ProcessImage,
    argv: Vec<*const c_char>,
    envp: Vec<*const c_char>,
    parent: i32,
    privileged: bool,
    failure: UnsafeCell<Option<(usize, i32)>>,
}

/// Job for a thread that never ends; the thread provides a stack to the job.
type ThreadJob = Box<dyn FnOnce(&mut [u128]) + Send>;

static SPAWNERS: LazyLock<mpsc::Sender<ThreadJob>> = LazyLock::new(|| {
    let (sender, receiver) = mpsc::channel::<ThreadJob>();
    let receiver: &'static Mutex<mpsc::Receiver<ThreadJob>> =
        Box::leak(Box::new(Mutex::new(receiver)));
    let count = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(SPAWNERS_MAX);
    for number in 0..count {
        let thread = std::thread::Builder::new().name(format!("spawn-{number}"));
        if let Err(error) = thread.spawn(move || spawner(receiver)) {
            tracing::error!(%error, "cannot start a thread that starts kernels");
        }
    }
    sender
});

/// Starts a process, and waits until the process executes its program.
///
/// # Errors
/// If the process could not be confined or executed; then no code of the program ran.
pub(crate) fn spawn(image: ProcessImage) -> Result<Process, SpawnError> {
    on_lasting_thread(move |stack| start(&image, stack)).map_err(SpawnError::Process)?
}

/// Runs work on a thread that never ends, so that processes started by the work do not die with the thread, and waits for the result.
///
/// # Errors
/// If the thread cannot be started.
pub(crate) fn on_lasting_thread<T: Send + 'static>(
    work: impl FnOnce(&mut [u128]) -> T + Send + 'static,
) -> io::Result<T> {
    let gone = || io::Error::other("the threads that start kernels have ended");
    let (sender, receiver) = mpsc::sync_channel(1);
    let job: ThreadJob = Box::new(move |stack| {
        // The caller waits for the result.
        let _ = sender.send(work(stack));
    });
    SPAWNERS.send(job).map_err(|_| gone())?;
    receiver.recv().map_err(|_| gone())
}

fn spawner(jobs: &Mutex<mpsc::Receiver<ThreadJob>>) {
    // No handler of this process may run in a child that shares its memory.
    // SAFETY: a zeroed set is valid storage for sigfillset, and the mask concerns this thread only.
    unsafe {
        let mut all = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, ptr::null_mut());
    }
    let mut stack = vec![0_u128; STACK_BYTES / size_of::<u128>()];
    loop {
        let job = jobs.lock().recv();
        let Ok(job) = job else { return };
        job(&mut stack);
    }
}

impl Process {
    /// Kills all processes of the process's group, even if the first process has ended.
    pub(crate) fn kill_group(&self) {
        self.signal_group(libc::SIGKILL);
    }

    /// Returns whether the process's group has any processes.
    pub(crate) fn has_group(&self) -> bool {
        self.signal_group(0)
    }

    /// Sends a signal to the process's group; returns whether there was a process to receive the signal. The descriptor stands for this
    /// group and no later group with the same number.
    fn signal_group(&self, signal: c_int) -> bool {
        let (call, pidfd, none) = (
            libc::SYS_pidfd_send_signal,
            self.pidfd.as_raw_fd(),
            ptr::null::<c_void>(),
        );
        // SAFETY: takes numbers; that there is no further information is allowed.
        if unsafe { libc::syscall(call, pidfd, signal, none, WHOLE_GROUP) } == 0 {
            return true;
        }
        // Systems before 6.9 identify groups by their number only. SAFETY: kill has no memory effects.
        errno() == libc::EINVAL && unsafe { libc::kill(-self.pid, signal) } == 0
    }
}

fn start(image: &ProcessImage, stack: &mut [u128]) -> Result<Process, SpawnError> {
    let plan = SpawnData {
        image,
        argv: pointers(&image.args),
        envp: pointers(&image.environment),
        parent: rustix::process::getpid().as_raw_nonzero().get(),
        privileged: rustix::process::geteuid().is_root(),
        failure: UnsafeCell::new(None),
    };
    let mut pidfd: c_int = -1;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
    // SAFETY: `child` follows the rules in the head of this file, the stack is this thread's own and large
    // enough, and CLONE_VFORK keeps this thread (and so `plan` and `stack`) in place until the child has
    // executed its program or ended.
    let pid = unsafe {
        libc::clone(
            child,
            stack.as_mut_ptr_range().end.cast(),
            flags,
            (&raw const plan).cast_mut().cast(),
            &raw mut pidfd,
        )
    };
    if pid < 0 {
        return Err(SpawnError::Process(io::Error::last_os_error()));
    }
    // SAFETY: clone succeeded, so it stored a descriptor that only this process owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    let Some((step, errno)) = plan.failure.into_inner() else {
        return Ok(Process { pid, pidfd });
    };
    // SAFETY: waits for the child that has ended; a null status and rusage are allowed.
    unsafe { libc::waitpid(pid, ptr::null_mut(), 0) };
    let source = io::Error::from_raw_os_error(errno);
    if step == EXECUTING {
        let program = match &image.program {
            ExecTarget::Path(path) => path.to_string_lossy().into_owned(),
            ExecTarget::File(_) => "this program".into(),
        };
        return Err(SpawnError::Execute { program, source });
    }
    Err(failed(step, errno))
}

/// Returns the error of a failed step of the sandbox.
pub(crate) fn failed(step: usize, errno: i32) -> SpawnError {
    SpawnError::Sandbox {
        step: STEPS.get(step).copied().unwrap_or("unknown"),
        source: io::Error::from_raw_os_error(errno),
    }
}

/// Sets up the sandbox of `image` around this process, whose parent is the node.
///
/// # Safety
/// This function may only be called in a process of one thread that is about to run a kernel.
pub(crate) unsafe fn confine_copy(image: &ProcessImage, parent: i32) -> Result<(), (usize, i32)> {
    let plan = SpawnData {
        image,
        argv: Vec::new(),
        envp: Vec::new(),
        parent,
        privileged: rustix::process::geteuid().is_root(),
        failure: UnsafeCell::new(None),
    };
    // SAFETY: the caller guarantees the same.
    unsafe { confine(&plan) }
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings
        .iter()
        .map(|string| string.as_ptr())
        .chain([ptr::null()])
        .collect()
}

/// Code of the child process. It ends in the program, or in `_exit` after recording the failure.
extern "C" fn child(plan: *mut c_void) -> c_int {
    // SAFETY: `start` passes a plan that outlives this function. `start` is suspended until then, so no other code accesses the plan.
    let plan = unsafe { &*plan.cast::<SpawnData<'_>>() };
    // SAFETY: runs in a fresh child, as these functions demand.
    let failure = unsafe {
        default_signals();
        confine(plan).and_then(|()| execute(plan))
    };
    if let Err(failure) = failure {
        // SAFETY: see above; the parent reads the cell only after this process has ended.
        unsafe { *plan.failure.get() = Some(failure) };
    }
    // SAFETY: ends this process without running handlers of the parent.
    unsafe { libc::_exit(127) }
}

type StepResult = Result<(), (usize, i32)>;

/// Sets whether other processes of the same user may access this process. A program that this process executes decides for itself again.
pub(crate) fn show_memory(shown: bool) {
    // SAFETY: takes numbers and changes an attribute of this process only.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, libc::c_ulong::from(shown), 0, 0, 0) };
}

/// Converts the result of a system call to the result of a step of the sandbox.
fn done(step: usize, result: c_long) -> StepResult {
    if result >= 0 {
        return Ok(());
    }
    Err((step, errno()))
}

fn errno() -> i32 {
    // SAFETY: the location is this thread's (the child borrows that of the suspended parent).
    unsafe { *libc::__errno_location() }
}

/// Sets up the whole sandbox around the child process.
///
/// # Safety
/// This function may only be called in a child process that is about to execute a program, or in its own copy before it runs a kernel.
unsafe fn confine(plan: &SpawnData<'_>) -> StepResult {
    // SAFETY: the caller guarantees the conditions of all these functions.
    unsafe {
        done(SESSION, libc::syscall(libc::SYS_setsid))?;
        for door in &plan.image.doors {
            let own = b"0";
            let entered = libc::syscall(libc::SYS_write, *door, own.as_ptr(), own.len());
            // Another process may have removed the group while it was empty.
            if entered >= 0 || errno() != libc::ENODEV {
                done(GROUP, entered)?;
            }
        }
        libc::syscall(libc::SYS_umask, 0o022);
        streams(plan.image)?;
        done(
            DIRECTORY,
            libc::syscall(libc::SYS_fchdir, plan.image.directory.as_raw_fd()),
        )?;
        // All other open descriptors are closed at exec.
        let all = (3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
        done(
            DESCRIPTORS,
            libc::syscall(libc::SYS_close_range, all.0, all.1, all.2),
        )?;
        for kept in &plan.image.kept {
            done(
                DESCRIPTORS,
                libc::syscall(libc::SYS_fcntl, *kept, libc::F_SETFD, 0),
            )?;
        }
        limits(plan.image)?;
        for namespace in &plan.image.namespaces {
            done(NAMESPACES, libc::syscall(libc::SYS_setns, *namespace, 0))?;
        }
        rights(plan)?;
        done(
            DEATH,
            libc::syscall(
                libc::SYS_prctl,
                libc::PR_SET_PDEATHSIG,
                libc::SIGKILL,
                0,
                0,
                0,
            ),
        )?;
        if libc::syscall(libc::SYS_getppid) != c_long::from(plan.parent) {
            return Err((DEATH, libc::ESRCH));
        }
        done(
            PRIVILEGES,
            libc::syscall(libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        )?;
        file_rules(plan.image)?;
        // This is a late step, because the node's thread waits for this child until it executes its program.
        if plan.image.idle {
            give_way()?;
        }
        call_filter(plan.image)
    }
}

/// Makes the process take processors and devices only while they are otherwise idle, so that reads and writes through the node are not
/// delayed. Descendants inherit this class, and without rights no process can leave it.
///
/// # Safety
/// The conditions of [`confine`].
unsafe fn give_way() -> StepResult {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the first reads the structure on this stack, the second takes numbers only.
    unsafe {
        done(
            PRIORITY,
            libc::syscall(
                libc::SYS_sched_setscheduler,
                0,
                libc::SCHED_IDLE,
                &raw const priority,
            ),
        )?;
        // Hosts whose devices have no scheduler ignore this call.
        libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_IDLE);
    }
    Ok(())
}

/// # Safety
/// The conditions of [`confine`].
unsafe fn default_signals() {
    // SAFETY: a zeroed action is SIG_DFL with an empty mask; the dispositions of this child are its own.
    unsafe {
        let action = std::mem::zeroed::<libc::sigaction>();
        for signal in 1..=64 {
            // Signals that cannot be set have their default action.
            libc::sigaction(signal, &raw const action, ptr::null_mut());
        }
    }
}

/// Stops ignoring the signals that the starter of this program ignores, as `nohup` does. Handlers are this program's own, and so is its
/// rule that a broken pipe is an error.
pub(crate) fn heed_signals() {
    for signal in (1..=64).filter(|&signal| signal != libc::SIGPIPE) {
        // SAFETY: zeroed actions are valid storage, and SIG_DFL with an empty mask. No handler is set.
        unsafe {
            let mut known = std::mem::zeroed::<libc::sigaction>();
            let found = libc::sigaction(signal, ptr::null(), &raw mut known);
            if found == 0 && known.sa_sigaction == libc::SIG_IGN {
                let default = std::mem::zeroed::<libc::sigaction>();
                libc::sigaction(signal, &raw const default, ptr::null_mut());
            }
        }
    }
}

/// # Safety
/// The conditions of [`confine`].
unsafe fn streams(image: &ProcessImage) -> StepResult {
    for (number, stream) in (0..).zip(&image.streams) {
        // SAFETY: plain descriptor calls. The sources are above 2, see `Launcher::spawn`.
        unsafe {
            done(
                STREAMS,
                libc::syscall(libc::SYS_dup3, stream.as_raw_fd(), number, 0),
            )?
        };
    }
    Ok(())
}

/// # Safety
/// The conditions of [`confine`].
unsafe fn limits(image: &ProcessImage) -> StepResult {
    for (which, limit) in &image.limits {
        // SAFETY: reads one rlimit64, writes nothing.
        unsafe {
            let none = ptr::null_mut::<c_void>();
            done(
                LIMITS,
                libc::syscall(libc::SYS_prlimit64, 0, *which, ptr::from_ref(limit), none),
            )?;
        }
    }
    // SAFETY: the path is a terminated literal and the buffer is static. On a host without this file, the system merely does not prefer
    // the kernel when it runs out of memory.
    unsafe {
        let path = c"/proc/self/oom_score_adj".as_ptr();
        let file = libc::syscall(
            libc::SYS_openat,
            libc::AT_FDCWD,
            path,
            libc::O_WRONLY | libc::O_CLOEXEC,
            0,
        );
        if file >= 0 {
            libc::syscall(
                libc::SYS_write,
                file,
                OUT_OF_MEMORY_SCORE.as_ptr(),
                OUT_OF_MEMORY_SCORE.len(),
            );
            libc::syscall(libc::SYS_close, file);
        }
    }
    Ok(())
}

/// Makes the process run as the image's user and drops all capabilities, permanently.
///
/// # Safety
/// The conditions of [`confine`].
unsafe fn rights(plan: &SpawnData<'_>) -> StepResult {
    // SAFETY: `prctl`, `setgroups` of none, and the id calls take numbers only; `capset` reads the two
    // structures on this stack.
    unsafe {
        if plan.privileged {
            for capability in 0..64 {
                let result =
                    libc::syscall(libc::SYS_prctl, libc::PR_CAPBSET_DROP, capability, 0, 0, 0);
                if result < 0 && errno() == libc::EINVAL {
                    break; // past the last one this system knows
                }
                done(CAPABILITIES, result)?;
            }
            done(
                CAPABILITIES,
                libc::syscall(
                    libc::SYS_prctl,
                    libc::PR_SET_SECUREBITS,
                    SECUREBITS,
                    0,
                    0,
                    0,
                ),
            )?;
        }
        if let Some(User { uid, gid }) = plan.image.user {
            if plan.privileged {
                done(
                    USER,
                    libc::syscall(libc::SYS_setgroups, 0, ptr::null::<libc::gid_t>()),
                )?;
            }
            done(USER, libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
            done(USER, libc::syscall(libc::SYS_setresuid, uid, uid, uid))?;
        }
        // Version 3 of `struct __user_cap_header_struct` and two empty `__user_cap_data_struct`.
        let header: [u32; 2] = [0x2008_0522, 0];
        let none = [0_u32; 6];
        done(
            CAPABILITIES,
            libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()),
        )
    }
}

/// # Safety
/// The conditions of [`confine`].
unsafe fn file_rules(image: &ProcessImage) -> StepResult {
    let Some(ruleset) = &image.ruleset else {
        return Ok(());
    };
    // SAFETY: the path is a terminated literal, and the descriptor is open until it is closed below.
    unsafe {
        // Only the child can name its own directory of /proc; many run-time libraries read it.
        let path = c"/proc/self".as_ptr();
        let own = libc::syscall(
            libc::SYS_openat,
            libc::AT_FDCWD,
            path,
            libc::O_PATH | libc::O_CLOEXEC,
            0,
        );
        if let Ok(parent_fd) = c_int::try_from(own)
            && parent_fd >= 0
        {
            let own = BorrowedFd::borrow_raw(parent_fd);
            done(
                FILE_RULES,
                files::add_rule(ruleset, own, files::read_bits()),
            )?;
            libc::syscall(libc::SYS_close, parent_fd);
        }
        done(
            FILE_RULES,
            libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0),
        )
    }
}

/// # Safety
/// The conditions of [`confine`].
unsafe fn call_filter(image: &ProcessImage) -> StepResult {
    let Some(filter) = image.filter else {
        return Ok(());
    };
    #[allow(
        clippy::cast_possible_truncation,
        reason = "filters have some hundred instructions"
    )]
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast::<libc::sock_filter>().cast_mut(),
    };
    const _: () = assert!(size_of::<sock_filter>() == size_of::<libc::sock_filter>());
    // SAFETY: both filter types are the C structure; the kernel only reads it, during the call.
    unsafe {
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        done(
            CALL_FILTER,
            libc::syscall(libc::SYS_seccomp, mode, 0, &raw const program),
        )
    }
}

/// # Safety
/// The conditions of [`confine`].
unsafe fn execute(plan: &SpawnData<'_>) -> StepResult {
    let (argv, envp) = (plan.argv.as_ptr(), plan.envp.as_ptr());
    // SAFETY: both arrays end with a null pointer, and their strings live in the image.
    unsafe {
        let none = 0_u64;
        let set = &raw const none;
        let unset = ptr::null_mut::<c_void>();
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            set,
            unset,
            size_of::<u64>(),
        );
        done(
            EXECUTING,
            match &plan.image.program {
                ExecTarget::Path(path) => {
                    libc::syscall(libc::SYS_execve, path.as_ptr(), argv, envp)
                }
                ExecTarget::File(file) => {
                    let empty = c"".as_ptr();
                    libc::syscall(
                        libc::SYS_execveat,
                        *file,
                        empty,
                        argv,
                        envp,
                        libc::AT_EMPTY_PATH,
                    )
                }
            },
        )
    }
}
