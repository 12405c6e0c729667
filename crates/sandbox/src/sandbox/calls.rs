//! System calls that kernels may make. A call that is not on the list fails with EPERM, so that programs which merely try the call
//! continue. A call that is newer than the list fails as on a system that does not know it. Changes of file attributes seem to succeed, see
//! [`Filters::of`].
//!
//! The list contains the calls that programs need to compute, to use files and to start other programs. The list does not contain:
//! - calls for the network,
//! - access to processes that are not a kernel's own,
//! - memory that no process owns,
//! - changes of the system,
//! - ways around the file rules,
//! - calls that take from a resource pool of the whole host, and
//! - calls to leave the process group, because a time limit kills the group.

use std::collections::BTreeMap;

use rustix::fs::FallocateFlags;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};

use super::tree::{self, FilterVerdict};

/// Calls that are allowed with any arguments. Calls among them that change users and rights can only reduce rights.
const ALLOWED: &[i64] = &[
    // Files: Landlock and the user's rights decide which ones.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_chdir,
    libc::SYS_fchdir,
    libc::SYS_renameat2,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_symlinkat,
    libc::SYS_linkat,
    libc::SYS_mknodat,
    libc::SYS_truncate,
    libc::SYS_ftruncate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_tee,
    libc::SYS_vmsplice,
    libc::SYS_fadvise64,
    libc::SYS_readahead,
    libc::SYS_umask,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_fgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_flistxattr,
    // Waiting, and pipes.
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    libc::SYS_signalfd4,
    libc::SYS_pipe2,
    // Pairs of connected sockets; see `SOCKET_KIND`.
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    // Memory.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_msync,
    libc::SYS_mincore,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_mlockall,
    libc::SYS_munlockall,
    libc::SYS_membarrier,
    libc::SYS_get_mempolicy,
    libc::SYS_set_mempolicy,
    libc::SYS_mbind,
    libc::SYS_pkey_alloc,
    libc::SYS_pkey_free,
    libc::SYS_pkey_mprotect,
    // Own processes and threads: Landlock decides which ones may be signalled.
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getresuid,
    libc::SYS_getresgid,
    libc::SYS_getgroups,
    libc::SYS_getpgid,
    libc::SYS_getsid,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setgroups,
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_set_tid_address,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_rseq,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_seccomp,
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_restrict_self,
    // Time.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getitimer,
    libc::SYS_setitimer,
    libc::SYS_timer_create,
    libc::SYS_timer_settime,
    libc::SYS_timer_gettime,
    libc::SYS_timer_getoverrun,
    libc::SYS_timer_delete,
    // Processors and limits.
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_getattr,
    libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min,
    libc::SYS_sched_rr_get_interval,
    libc::SYS_getpriority,
    libc::SYS_ioprio_get,
    libc::SYS_getrusage,
    libc::SYS_times,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_getcpu,
    libc::SYS_getrandom,
];

/// Further allowed calls that only this architecture has.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[i64] = &[
    libc::SYS_open,
    libc::SYS_creat,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_symlink,
    libc::SYS_link,
    libc::SYS_mknod,
    libc::SYS_dup2,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_signalfd,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_getdents,
    libc::SYS_getpgrp,
    libc::SYS_time,
    libc::SYS_alarm,
    libc::SYS_pause,
    libc::SYS_arch_prctl,
    libc::SYS_renameat,
    libc::SYS_getrlimit,
    libc::SYS_setrlimit,
];
#[cfg(target_arch = "aarch64")]
const ALLOWED_HERE: &[i64] = &[libc::SYS_renameat, libc::SYS_getrlimit, libc::SYS_setrlimit];
#[cfg(target_arch = "riscv64")]
const ALLOWED_HERE: &[i64] = &[];

/// Newer calls without names in the library: `cachestat`, `map_shadow_stack`, `futex_wake`, `futex_wait`, `futex_requeue`, `mseal`.
const ALLOWED_NEW: &[i64] = &[451, 453, 454, 455, 456, 462];

/// Number of the first of the newer calls (after `clone3`). A newer call that is not on the list fails as on a system without it, because
/// its caller may have an alternative. Older calls have existed for as long as Landlock.
const NEW_FROM: u32 = 436;

/// Calls that fail as unknown. `clone3` has its flags in memory, where a filter can't see them; programs then use `clone`. `memfd_create`
/// makes memory that no limit of a process counts.
const UNKNOWN: &[i64] = &[libc::SYS_clone3, libc::SYS_memfd_create];

/// Calls that seem to succeed: their effects on other processes are slow, and no program relies on them within a sandbox.
const WITHOUT_EFFECT: &[i64] = &[libc::SYS_sync, libc::SYS_syncfs];

/// Architecture of this host, and its constant `AUDIT_ARCH_…` of `linux/audit.h`.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: (TargetArch, u32) = (TargetArch::x86_64, 0xc000_003e);
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: (TargetArch, u32) = (TargetArch::aarch64, 0xc000_00b7);
#[cfg(target_arch = "riscv64")]
const ARCHITECTURE: (TargetArch, u32) = (TargetArch::riscv64, 0xc000_00f3);

/// Bits of a socket's type that contain its kind. Only kinds that stay connected to their partner may be paired: a datagram socket can send
/// to any socket of the host that has a path.
const SOCKET_KIND: u64 = 0xf;

/// `IOPRIO_WHO_PROCESS` of `linux/ioprio.h`.
pub(crate) const IOPRIO_WHO_PROCESS: u64 = 1;

/// Flags of `clone` that make a namespace.
const NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// Calls that change the mode, owner or times of any file by its path. Landlock does not govern them, so a kernel could open its owner's
/// files to other users, or, if the owner is root, the system's files.
const ATTRIBUTES: &[i64] = &[libc::SYS_fchmodat, libc::SYS_fchownat];

#[cfg(target_arch = "x86_64")]
const ATTRIBUTES_HERE: &[i64] = &[
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
];
#[cfg(not(target_arch = "x86_64"))]
const ATTRIBUTES_HERE: &[i64] = &[];

/// Calls that change the mode, owner or times of an open file. A kernel can open only files that it may read, but that is enough to change
/// them if its user owns inputs or programs.
const OPEN_ATTRIBUTES: &[i64] = &[libc::SYS_fchmod, libc::SYS_fchown, libc::SYS_utimensat];

/// Calls that change extended attributes, which kernels must not change either.
const EXTENDED: &[i64] = &[
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
];

/// `FS_IOC_SETFLAGS` and `FS_IOC_FSSETXATTR` of `linux/fs.h`: further changes of file attributes.
const FILE_FLAGS: [u64; 2] = [0x4008_6602, 0x401c_5820];

/// Calls of a kernel with peers, which has a separate network: it needs these calls to communicate. [`to_peers`] limits the sockets that it
/// may make.
const OF_PEERS: &[i64] = &[
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
];

/// Kind of a kernel's filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct FilterKind {
    /// Whether the kernel's user owns files that the kernel can open for reading but must not change: then the kernel cannot change
    /// attributes of open files either.
    pub(crate) owns_files: bool,
    /// Whether the kernel may communicate with other ranks of its run.
    pub(crate) has_peers: bool,
}

/// Filters of system calls for all kinds of kernels.
#[derive(Debug)]
pub(crate) struct Filters {
    usual: [BpfProgram; 2],
    owner: [BpfProgram; 2],
}

impl Filters {
    /// Returns the filter for one kind of kernel.
    ///
    /// Changes of attributes are not refused but seem to succeed without effect: many programs copy modes and times and fail if they
    /// cannot, and a cluster keeps neither mode nor times of outputs.
    pub(crate) fn of(&self, kind: FilterKind) -> &BpfProgram {
        let filters = if kind.owns_files {
            &self.owner
        } else {
            &self.usual
        };
        &filters[usize::from(kind.has_peers)]
    }
}

/// Verdicts of a filter by the number of the call.
type CallVerdicts = BTreeMap<u32, FilterVerdict>;

/// Builds the filters. `cuts` is true if files may be truncated by a path on this system.
///
/// # Errors
/// If the list makes no valid filter, which is a fault of this source file.
pub(crate) fn filters(cuts: bool) -> Result<Filters, BackendError> {
    let mut answers = CallVerdicts::new();
    let allowed = [ALLOWED, ALLOWED_HERE, ALLOWED_NEW];
    put(&mut answers, &allowed, libc::SECCOMP_RET_ALLOW);
    put(&mut answers, &[UNKNOWN], denial(libc::ENOSYS));
    put(&mut answers, &[EXTENDED], denial(libc::EOPNOTSUPP));
    let nothing = [ATTRIBUTES, ATTRIBUTES_HERE, WITHOUT_EFFECT];
    put(&mut answers, &nothing, denial(0));
    some(&mut answers)?;
    if !cuts {
        cut_nothing(&mut answers)?;
    }
    let mut owner = answers.clone();
    put(&mut owner, &[OPEN_ATTRIBUTES], denial(0));
    // Libraries pass their threads' ids when they choose processors; if other processes have the same user, an id may belong to any of
    // them.
    let call = libc::SYS_sched_setaffinity;
    let others_too = vec![when(0, SeccompCmpOp::Ne, 0)?];
    deny_some(&mut owner, call, others_too, libc::EPERM)?;
    put(&mut answers, &[&[call]], libc::SECCOMP_RET_ALLOW);
    let open = [libc::SYS_fchmod, libc::SYS_fchown];
    put(&mut answers, &[&open], libc::SECCOMP_RET_ALLOW);
    // Without a path the call changes an open file.
    let path = SeccompCondition::new(1, SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, 0)?;
    let with_path = vec![SeccompRule::new(vec![path])?];
    deny_some(&mut answers, libc::SYS_utimensat, with_path, 0)?;
    let program = |answers| tree::program(ARCHITECTURE.1, answers, others);
    let both = |answers: CallVerdicts| {
        let mut peers = answers.clone();
        to_peers(&mut peers)?;
        Ok::<_, BackendError>([program(answers), program(peers)])
    };
    Ok(Filters {
        usual: both(answers)?,
        owner: both(owner)?,
    })
}

/// Allows the calls for peers: TCP over IPv4, and calls that list the devices and addresses, because libraries read them.
fn to_peers(answers: &mut CallVerdicts) -> Result<(), BackendError> {
    put(answers, &[OF_PEERS], libc::SECCOMP_RET_ALLOW);
    let is = |argument, operator, value: i32| {
        let value = u64::from(value.cast_unsigned());
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
    };
    let kind = SeccompCmpOp::MaskedEq(SOCKET_KIND);
    let tcp = |protocol| {
        SeccompRule::new(vec![
            is(0, SeccompCmpOp::Eq, libc::AF_INET)?,
            is(1, kind.clone(), libc::SOCK_STREAM)?,
            is(2, SeccompCmpOp::Eq, protocol)?,
        ])
    };
    let devices = vec![
        is(0, SeccompCmpOp::Eq, libc::AF_NETLINK)?,
        is(2, SeccompCmpOp::Eq, libc::NETLINK_ROUTE)?,
    ];
    let rules = vec![tcp(0)?, tcp(libc::IPPROTO_TCP)?, SeccompRule::new(devices)?];
    allow_some(answers, libc::SYS_socket, rules)
}

/// Denies the calls that truncate files which are not open for writing.
fn cut_nothing(answers: &mut CallVerdicts) -> Result<(), BackendError> {
    answers.remove(&number(libc::SYS_truncate));
    put(answers, &[&[libc::SYS_truncate]], denial(libc::EPERM));
    // The call has its flags in memory; programs then use `openat`.
    answers.remove(&number(libc::SYS_openat2));
    put(answers, &[&[libc::SYS_openat2]], denial(libc::ENOSYS));
    // Landlock requires no right to write if a file is opened for reading, or for neither, which is the case with both bits of the access
    // mode set.
    let mut instead = |call, argument| {
        answers.remove(&number(call));
        let flags = libc::O_ACCMODE | libc::O_TRUNC;
        let flags = SeccompCmpOp::MaskedEq(u64::from(flags.cast_unsigned()));
        let cuts = |kind: i32| u64::from((kind | libc::O_TRUNC).cast_unsigned());
        let read = when(argument, flags.clone(), cuts(libc::O_RDONLY))?;
        let neither = when(argument, flags, cuts(libc::O_ACCMODE))?;
        deny_some(answers, call, vec![read, neither], libc::EPERM)
    };
    instead(libc::SYS_openat, 2)?;
    #[cfg(target_arch = "x86_64")]
    instead(libc::SYS_open, 1)?;
    Ok(())
}

/// Returns the verdict for calls that are on no list.
fn others(number: u32) -> FilterVerdict {
    FilterVerdict::Return(denial(if number < NEW_FROM {
        libc::EPERM
    } else {
        libc::ENOSYS
    }))
}

/// Sets the verdicts of calls that are allowed with some arguments only.
fn some(answers: &mut CallVerdicts) -> Result<(), BackendError> {
    let namespaces = u64::from(NAMESPACES.cast_unsigned());
    let mut clone = Vec::new();
    for bit in (0..32)
        .map(|bit| 1_u64 << bit)
        .filter(|bit| namespaces & bit != 0)
    {
        clone.push(when(0, SeccompCmpOp::MaskedEq(bit), bit)?);
    }
    deny_some(answers, libc::SYS_clone, clone, libc::EPERM)?;
    // The kernel must keep the signal that ends it when its node dies.
    let death = libc::PR_SET_PDEATHSIG.cast_unsigned().into();
    let death = vec![when(0, SeccompCmpOp::Eq, death)?];
    deny_some(answers, libc::SYS_prctl, death, libc::EPERM)?;
    // Limits and priorities: only a process's own, which is 0.
    let other = |argument| when(argument, SeccompCmpOp::Ne, 0);
    for call in [
        libc::SYS_prlimit64,
        libc::SYS_sched_setscheduler,
        libc::SYS_sched_setparam,
        libc::SYS_sched_setattr,
    ] {
        deny_some(answers, call, vec![other(0)?], libc::EPERM)?;
    }
    // Space after the end of a file: no limit of a process counts it. Releasing such space is allowed.
    let keep = FallocateFlags::KEEP_SIZE.bits();
    let mask = keep | FallocateFlags::PUNCH_HOLE.bits();
    let ahead = when(1, SeccompCmpOp::MaskedEq(mask.into()), keep.into())?;
    let call = libc::SYS_fallocate;
    deny_some(answers, call, vec![ahead], libc::EOPNOTSUPP)?;
    let all_of_a_user = when(0, SeccompCmpOp::Ne, libc::PRIO_PROCESS.into())?;
    let other_than_own = vec![all_of_a_user, other(1)?];
    deny_some(answers, libc::SYS_setpriority, other_than_own, libc::EPERM)?;
    let other_than_own = vec![when(0, SeccompCmpOp::Ne, IOPRIO_WHO_PROCESS)?, other(1)?];
    deny_some(answers, libc::SYS_ioprio_set, other_than_own, libc::EPERM)?;
    // Typing into a terminal, and file attributes.
    let requests = vec![
        when(1, SeccompCmpOp::Eq, libc::TIOCSTI)?,
        when(1, SeccompCmpOp::Eq, libc::TIOCLINUX)?,
        when(1, SeccompCmpOp::Eq, FILE_FLAGS[0])?,
        when(1, SeccompCmpOp::Eq, FILE_FLAGS[1])?,
    ];
    deny_some(answers, libc::SYS_ioctl, requests, libc::EPERM)?;
    let pair = |kind: i32| {
        let is = |argument, operator, value: i32| {
            let value = u64::from(value.cast_unsigned());
            SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
        };
        SeccompRule::new(vec![
            is(0, SeccompCmpOp::Eq, libc::AF_UNIX)?,
            is(1, SeccompCmpOp::MaskedEq(SOCKET_KIND), kind)?,
        ])
    };
    let pairs = vec![pair(libc::SOCK_STREAM)?, pair(libc::SOCK_SEQPACKET)?];
    allow_some(answers, libc::SYS_socketpair, pairs)
}

fn denial(errno: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno.cast_unsigned()
}

fn number(call: i64) -> u32 {
    u32::try_from(call).expect("calls have small numbers")
}

/// Sets the verdict of calls with any arguments.
fn put(answers: &mut CallVerdicts, calls: &[&[i64]], answer: u32) {
    for call in calls.iter().copied().flatten() {
        let before = answers.insert(number(*call), FilterVerdict::Return(answer));
        assert!(before.is_none(), "call {call} is listed twice");
    }
}

/// Allows a system call only if one of the rules matches.
fn allow_some(
    answers: &mut CallVerdicts,
    call: i64,
    rules: Vec<SeccompRule>,
) -> Result<(), BackendError> {
    let denied = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let rules = BTreeMap::from([(call, rules)]);
    let program = SeccompFilter::new(rules, denied, SeccompAction::Allow, ARCHITECTURE.0)?;
    let before = answers.insert(number(call), FilterVerdict::Program(program.try_into()?));
    assert!(before.is_none(), "call {call} is listed twice");
    Ok(())
}

/// Denies a system call if one of the rules matches.
fn deny_some(
    answers: &mut CallVerdicts,
    call: i64,
    rules: Vec<SeccompRule>,
    errno: i32,
) -> Result<(), BackendError> {
    let denied = SeccompAction::Errno(errno.cast_unsigned());
    let rules = BTreeMap::from([(call, rules)]);
    let program = SeccompFilter::new(rules, SeccompAction::Allow, denied, ARCHITECTURE.0)?;
    let before = answers.insert(number(call), FilterVerdict::Program(program.try_into()?));
    assert!(before.is_none(), "call {call} is listed twice");
    Ok(())
}

fn when(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(
        argument,
        SeccompCmpArgLen::Dword,
        operator,
        value,
    )?])
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: u32 = libc::SECCOMP_RET_ALLOW;

    /// Returns the verdict of a filter on a call, by executing the instructions of the filter.
    fn answer(program: &BpfProgram, call: i64, arguments: &[u64]) -> u32 {
        let load = |at: u32| match at {
            0 => number(call),
            4 => ARCHITECTURE.1,
            at => {
                let (argument, half) = ((at - 16) / 8, (at - 16) % 8);
                let value = arguments.get(argument as usize).copied().unwrap_or(0);
                u32::try_from(value >> (half * 8) & u64::from(u32::MAX)).unwrap()
            }
        };
        let (mut at, mut word) = (0, 0);
        loop {
            let step = &program[at];
            let jump = |holds: bool| usize::from(if holds { step.jt } else { step.jf });
            at += 1 + match step.code {
                0x20 => {
                    word = load(step.k);
                    0
                }
                0x54 => {
                    word &= step.k;
                    0
                }
                0x05 => step.k as usize,
                0x15 => jump(word == step.k),
                0x25 => jump(word > step.k),
                0x35 => jump(word >= step.k),
                0x45 => jump(word & step.k != 0),
                0x06 => return step.k,
                code => panic!("unknown instruction {code:#x}"),
            };
        }
    }

    fn all(filters: &Filters) -> impl Iterator<Item = &BpfProgram> {
        filters.usual.iter().chain(&filters.owner)
    }

    fn bits(value: i32) -> u64 {
        u64::from(value.cast_unsigned())
    }

    #[test]
    fn socketpair_allows_only_connected_unix_sockets() {
        let denied = denial(libc::EPERM);
        let filters = filters(true).unwrap();
        for program in all(&filters) {
            let pair = |family, kind| {
                let arguments = [bits(family), bits(kind), 0, 0];
                answer(program, libc::SYS_socketpair, &arguments)
            };
            for kind in [libc::SOCK_STREAM, libc::SOCK_SEQPACKET] {
                let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
                assert_eq!(pair(libc::AF_UNIX, kind), ALLOWED);
                assert_eq!(pair(libc::AF_UNIX, kind | flags), ALLOWED);
                for family in (0..64).filter(|family| *family != libc::AF_UNIX) {
                    assert_eq!(pair(family, kind), denied, "family {family}");
                }
            }
            for kind in [0, libc::SOCK_DGRAM, libc::SOCK_RAW, libc::SOCK_RDM, 6, 10] {
                assert_eq!(pair(libc::AF_UNIX, kind), denied, "kind {kind}");
            }
        }
    }

    #[test]
    fn seccomp_filter_allows_peers_only_tcp_sockets() {
        let denied = denial(libc::EPERM);
        let filters = filters(true).unwrap();
        for [alone, peers] in [&filters.usual, &filters.owner] {
            let make = |program, family, kind, protocol| {
                let arguments = [bits(family), bits(kind), bits(protocol)];
                answer(program, libc::SYS_socket, &arguments)
            };
            let stream = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
            for protocol in [0, libc::IPPROTO_TCP] {
                assert_eq!(make(peers, libc::AF_INET, stream, protocol), ALLOWED);
                assert_eq!(make(alone, libc::AF_INET, stream, protocol), denied);
            }
            for protocol in [libc::IPPROTO_SCTP, libc::IPPROTO_MPTCP, 256, 17] {
                assert_eq!(make(peers, libc::AF_INET, stream, protocol), denied);
            }
            assert_eq!(make(peers, libc::AF_INET, libc::SOCK_DGRAM, 0), denied);
            assert_eq!(make(peers, libc::AF_UNIX, stream, 0), denied);
            let route = libc::NETLINK_ROUTE;
            assert_eq!(
                make(peers, libc::AF_NETLINK, libc::SOCK_RAW, route),
                ALLOWED
            );
        }
    }

    #[test]
    fn truncation_is_denied_where_landlock_cannot_govern_it() {
        let read_and_cut = bits(libc::O_RDONLY | libc::O_TRUNC | libc::O_CLOEXEC);
        let only_cut = bits(libc::O_ACCMODE | libc::O_TRUNC);
        let write_and_cut = bits(libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC);
        for cuts in [false, true] {
            let refused = |errno| if cuts { ALLOWED } else { denial(errno) };
            let filters = filters(cuts).unwrap();
            for program in all(&filters) {
                let truncate = answer(program, libc::SYS_truncate, &[1, 2]);
                assert_eq!(truncate, refused(libc::EPERM));
                assert_eq!(answer(program, libc::SYS_ftruncate, &[1, 2]), ALLOWED);
                let openat2 = answer(program, libc::SYS_openat2, &[0; 4]);
                assert_eq!(openat2, refused(libc::ENOSYS));
                let open = |flags| answer(program, libc::SYS_openat, &[3, 1, flags, 0]);
                assert_eq!(open(read_and_cut), refused(libc::EPERM));
                assert_eq!(open(only_cut), refused(libc::EPERM));
                assert_eq!(open(write_and_cut), ALLOWED);
                assert_eq!(open(bits(libc::O_RDONLY)), ALLOWED);
                #[cfg(target_arch = "x86_64")]
                {
                    let open = |flags| answer(program, libc::SYS_open, &[1, flags, 0]);
                    assert_eq!(open(read_and_cut), refused(libc::EPERM));
                    assert_eq!(open(only_cut), refused(libc::EPERM));
                    assert_eq!(open(write_and_cut), ALLOWED);
                }
            }
        }
    }
}
