//! The system calls that no kernel may make. Most fail with EPERM, so that programs which merely try them
//! go on; changes of file attributes seem to succeed, see [`Filters::of`].
//!
//! This is a list of what is denied: kernels are arbitrary programs, and Landlock, user rights and limits
//! do the rest. Denied are the network, ways to other processes, changes of the system, ways around the
//! file rules, and leaving the process group, which is what a time limit kills.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};

use super::tree::{self, Answer};

const DENIED: &[i64] = &[
    // Network. Pairs of connected sockets (socketpair) stay: they reach nobody else.
    libc::SYS_socket,
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_setsid,
    libc::SYS_setpgid,
    // Memory and messages that outlive the processes or are shared with others.
    libc::SYS_shmget,
    libc::SYS_semget,
    libc::SYS_msgget,
    libc::SYS_mq_open,
    libc::SYS_memfd_secret,
    // Mounts, roots and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    // The operating system's own machinery.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_lookup_dcookie,
];

#[cfg(target_arch = "x86_64")]
const DENIED_HERE: &[i64] = &[
    libc::SYS_kexec_file_load,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
];
#[cfg(not(target_arch = "x86_64"))]
const DENIED_HERE: &[i64] = &[];

/// The architecture, and its mark `AUDIT_ARCH_…` of `linux/audit.h`.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: (TargetArch, u32) = (TargetArch::x86_64, 0xc000_003e);
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: (TargetArch, u32) = (TargetArch::aarch64, 0xc000_00b7);
#[cfg(target_arch = "riscv64")]
const ARCHITECTURE: (TargetArch, u32) = (TargetArch::riscv64, 0xc000_00f3);

/// Flags of `clone` that make a namespace.
const NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// Calls newer than glibc's oldest fallbacks: they answer ENOSYS, and programs then use older ones that a
/// filter can judge. `clone3` has its flags in memory where a filter cannot see them; the others change
/// attributes of files (`fchmodat2`, `setxattrat`, `removexattrat`, `open_tree_attr`, `file_setattr`).
const UNKNOWN: &[i64] = &[libc::SYS_clone3, 452, 463, 466, 467, 469];

/// Calls that change the mode, owner or times of any file by its path. Landlock does not govern them, so a
/// kernel could open its owner's files to others, or, if that is root, the system's.
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

/// The same for an open file. A kernel can only open what it may read, but that is enough to change it if
/// its user owns inputs or programs.
const OPEN_ATTRIBUTES: &[i64] = &[libc::SYS_fchmod, libc::SYS_fchown, libc::SYS_utimensat];

/// Extended attributes, which nobody keeps for a kernel either.
const EXTENDED: &[i64] = &[
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
];

/// `FS_IOC_SETFLAGS` and `FS_IOC_FSSETXATTR` of `linux/fs.h`: attributes of files once more.
const FILE_FLAGS: [u64; 2] = [0x4008_6602, 0x401c_5820];

/// Filters of system calls.
#[derive(Debug)]
pub(crate) struct Filters {
    usual: BpfProgram,
    owner: BpfProgram,
}

impl Filters {
    /// The filter of one kernel. `owns_files` says whether its user owns files that it can open for
    /// reading but must not change: then it cannot change attributes of open files either.
    ///
    /// Changes of attributes are not refused but seem to succeed without effect: many programs copy modes
    /// and times and fail if they cannot, and an array keeps neither of outputs.
    pub(crate) fn of(&self, owns_files: bool) -> &BpfProgram {
        if owns_files { &self.owner } else { &self.usual }
    }
}

/// Answers by the number of the call.
type Answers = BTreeMap<u32, Answer>;

/// Builds the filters.
///
/// # Errors
/// If the list makes no valid filter, which is a fault of this file.
pub(crate) fn filters() -> Result<Filters, BackendError> {
    let mut answers = Answers::new();
    deny(&mut answers, &[DENIED, DENIED_HERE], libc::EPERM);
    deny(&mut answers, &[UNKNOWN], libc::ENOSYS);
    deny(&mut answers, &[EXTENDED], libc::EOPNOTSUPP);
    deny(&mut answers, &[ATTRIBUTES, ATTRIBUTES_HERE], 0);
    let namespaces = u64::from(NAMESPACES.cast_unsigned());
    let mut clone = Vec::new();
    for bit in (0..32)
        .map(|bit| 1_u64 << bit)
        .filter(|bit| namespaces & bit != 0)
    {
        clone.push(when(0, SeccompCmpOp::MaskedEq(bit), bit)?);
    }
    deny_some(&mut answers, libc::SYS_clone, clone, libc::EPERM)?;
    // The signal that ends a kernel when its element dies must stay.
    let death = libc::PR_SET_PDEATHSIG.cast_unsigned().into();
    let death = vec![when(0, SeccompCmpOp::Eq, death)?];
    deny_some(&mut answers, libc::SYS_prctl, death, libc::EPERM)?;
    // Limits and priorities of other processes: only one's own, which is 0.
    let other = vec![when(0, SeccompCmpOp::Ne, 0)?];
    deny_some(&mut answers, libc::SYS_prlimit64, other, libc::EPERM)?;
    let other = vec![when(1, SeccompCmpOp::Ne, 0)?];
    deny_some(&mut answers, libc::SYS_setpriority, other, libc::EPERM)?;
    // Typing into a terminal, and file attributes.
    let requests = vec![
        when(1, SeccompCmpOp::Eq, libc::TIOCSTI)?,
        when(1, SeccompCmpOp::Eq, libc::TIOCLINUX)?,
        when(1, SeccompCmpOp::Eq, FILE_FLAGS[0])?,
        when(1, SeccompCmpOp::Eq, FILE_FLAGS[1])?,
    ];
    deny_some(&mut answers, libc::SYS_ioctl, requests, libc::EPERM)?;
    let mut owner = answers.clone();
    deny(&mut owner, &[OPEN_ATTRIBUTES], 0);
    // Without a path it concerns an open file.
    let path = SeccompCondition::new(1, SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, 0)?;
    let with_path = vec![SeccompRule::new(vec![path])?];
    deny_some(&mut answers, libc::SYS_utimensat, with_path, 0)?;
    Ok(Filters {
        usual: tree::program(ARCHITECTURE.1, answers),
        owner: tree::program(ARCHITECTURE.1, owner),
    })
}

fn denial(errno: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno.cast_unsigned()
}

fn number(call: i64) -> u32 {
    u32::try_from(call).expect("calls have small numbers")
}

/// Denies calls whatever their arguments are.
fn deny(answers: &mut Answers, calls: &[&[i64]], errno: i32) {
    for call in calls.iter().copied().flatten() {
        let before = answers.insert(number(*call), Answer::Return(denial(errno)));
        assert!(before.is_none(), "call {call} is listed twice");
    }
}

/// Denies a call where one of the rules holds.
fn deny_some(
    answers: &mut Answers,
    call: i64,
    rules: Vec<SeccompRule>,
    errno: i32,
) -> Result<(), BackendError> {
    let denied = SeccompAction::Errno(errno.cast_unsigned());
    let rules = BTreeMap::from([(call, rules)]);
    let program = SeccompFilter::new(rules, SeccompAction::Allow, denied, ARCHITECTURE.0)?;
    let before = answers.insert(number(call), Answer::Program(program.try_into()?));
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
