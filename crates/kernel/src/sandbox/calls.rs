//! The system calls that no kernel may make. They fail with EPERM, so that programs which merely try
//! them go on.
//!
//! This is a list of what is denied: kernels are arbitrary programs, and Landlock, user rights and limits
//! do the rest. Denied are the network, ways to other processes, changes of the system, ways around the
//! file rules, and leaving the process group, which is what a time limit kills.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, sock_filter,
};

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

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: TargetArch = TargetArch::x86_64;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: TargetArch = TargetArch::aarch64;
#[cfg(target_arch = "riscv64")]
const ARCHITECTURE: TargetArch = TargetArch::riscv64;

/// Flags of `clone` that make a namespace.
const NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// The two filters every kernel gets.
#[derive(Debug)]
pub(crate) struct Filters {
    /// Fails what is denied with EPERM.
    pub(crate) denied: BpfProgram,
    /// Fails `clone3` with ENOSYS: its flags lie in memory where a filter cannot see them, and C libraries
    /// then use `clone`.
    pub(crate) clone3: BpfProgram,
}

/// Builds the filters.
///
/// # Errors
/// If the list makes no valid filter, which is a fault of this file.
pub(crate) fn filters() -> Result<Filters, BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = DENIED
        .iter()
        .chain(DENIED_HERE)
        .map(|call| (*call, Vec::new()))
        .collect();
    let namespaces = u64::from(NAMESPACES.cast_unsigned());
    let mut clone = Vec::new();
    for bit in (0..32)
        .map(|bit| 1_u64 << bit)
        .filter(|bit| namespaces & bit != 0)
    {
        clone.push(when(0, SeccompCmpOp::MaskedEq(bit), bit)?);
    }
    rules.insert(libc::SYS_clone, clone);
    // The signal that ends a kernel when its element dies must stay.
    rules.insert(
        libc::SYS_prctl,
        vec![when(
            0,
            SeccompCmpOp::Eq,
            libc::PR_SET_PDEATHSIG.cast_unsigned().into(),
        )?],
    );
    // Limits and priorities of other processes: only one's own, which is 0.
    rules.insert(libc::SYS_prlimit64, vec![when(0, SeccompCmpOp::Ne, 0)?]);
    rules.insert(libc::SYS_setpriority, vec![when(1, SeccompCmpOp::Ne, 0)?]);
    // Typing into a terminal.
    rules.insert(
        libc::SYS_ioctl,
        vec![
            when(1, SeccompCmpOp::Eq, libc::TIOCSTI)?,
            when(1, SeccompCmpOp::Eq, libc::TIOCLINUX)?,
        ],
    );
    let deny = filter(rules, libc::EPERM)?;
    let clone3 = filter(
        BTreeMap::from([(libc::SYS_clone3, Vec::new())]),
        libc::ENOSYS,
    )?;
    Ok(Filters {
        denied: without_x32(deny),
        clone3,
    })
}

fn when(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(
        argument,
        SeccompCmpArgLen::Dword,
        operator,
        value,
    )?])
}

fn filter(rules: BTreeMap<i64, Vec<SeccompRule>>, errno: i32) -> Result<BpfProgram, BackendError> {
    let deny = SeccompAction::Errno(errno.cast_unsigned());
    SeccompFilter::new(rules, SeccompAction::Allow, deny, ARCHITECTURE)?.try_into()
}

/// Denies the x32 calls of x86-64 in front of `program`: they have the same architecture mark but other
/// numbers, so a list of numbers would not catch them.
fn without_x32(program: BpfProgram) -> BpfProgram {
    if !cfg!(target_arch = "x86_64") {
        return program;
    }
    const LOAD_WORD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const JUMP_IF_GE: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    const X32_BIT: u32 = 0x4000_0000;
    let mut all = vec![
        sock_filter {
            code: LOAD_WORD,
            jt: 0,
            jf: 0,
            k: 0,
        },
        sock_filter {
            code: JUMP_IF_GE,
            jt: 0,
            jf: 1,
            k: X32_BIT,
        },
        sock_filter {
            code: RETURN,
            jt: 0,
            jf: 0,
            k: libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned(),
        },
    ];
    all.extend(program);
    all
}
