//! Targets of paths and descriptors, and the working directory if it is in the cluster (next: `preload/src/connection.rs`).

use crate::c;
use crate::connection::{self, Got, RequestOutcome, Texts};
use libc::{c_char, c_int, c_long};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};
use tidemill_preload_api::{COPIES, DIRECTORIES, Op, PATH_BYTES_MAX, Request, WRITE_BEHIND};

/// Maximum length of the prefix in bytes.
const PREFIX_MAX: usize = 256;
/// Maximum number of names of a path that are examined to find the prefix after `..`.
const DEPTH_MAX: usize = 64;
/// Environment variable with the working directory, up to its value.
const DIRECTORY: &[u8] = b"TIDEMILL_PRELOAD_CWD=";
/// Maximum number of attempts to read the working directory while another thread changes it.
const READ_TRIES: u32 = 100_000;

/// Bytes that are written only at the start, or that a sequence number guards.
struct GuardedBytes<const N: usize>(UnsafeCell<[u8; N]>);
// SAFETY: see its uses.
unsafe impl<const N: usize> Sync for GuardedBytes<N> {}

impl<const N: usize> GuardedBytes<N> {
    const fn new() -> Self {
        Self(UnsafeCell::new([0; N]))
    }
    /// Copies the content; the reader discards a copy if the content changed during the call.
    fn read(&self, from: usize, to: &mut [u8]) {
        let length = to.len().min(N - from.min(N));
        // SAFETY: within the array; no value of a byte is invalid.
        unsafe {
            let at = self.0.get().cast::<u8>().add(from);
            std::ptr::copy_nonoverlapping(at, to.as_mut_ptr(), length);
        }
    }
    fn write(&self, from: usize, bytes: &[u8]) {
        let length = bytes.len().min(N - from.min(N));
        // SAFETY: within the array; the caller excludes concurrent writers.
        unsafe {
            let at = self.0.get().cast::<u8>().add(from);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, length);
        }
    }
    fn at(&self) -> *mut u8 {
        self.0.get().cast()
    }
}

static SOCKET: GuardedBytes<108> = GuardedBytes::new();
static SOCKET_LENGTH: AtomicUsize = AtomicUsize::new(0);
static PREFIX: GuardedBytes<PREFIX_MAX> = GuardedBytes::new();
static PREFIX_LENGTH: AtomicUsize = AtomicUsize::new(0);
/// Value of `LD_PRELOAD` when the program started.
static LIBRARY: GuardedBytes<{ c::PATH_SPACE }> = GuardedBytes::new();
static LIBRARY_LENGTH: AtomicUsize = AtomicUsize::new(0);
/// Whether closed files are stored asynchronously.
static WRITES_ASYNCHRONOUSLY: AtomicBool = AtomicBool::new(false);
static READY: AtomicBool = AtomicBool::new(false);
/// Id of the process that owns this memory; a child of `vfork` is another process.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// Working directory as a path in the cluster; empty if it is on the host. An environment variable contains the path, too.
struct Working {
    /// Sequence number that is odd during a change.
    turn: AtomicU32,
    bytes: GuardedBytes<{ DIRECTORY.len() + c::PATH_SPACE }>,
    length: AtomicUsize,
}

impl Working {
    const fn new() -> Self {
        Self {
            turn: AtomicU32::new(0),
            bytes: GuardedBytes::new(),
            length: AtomicUsize::new(0),
        }
    }

    fn set(&self, path: &[u8]) {
        let turn = self.turn.fetch_or(1, Ordering::Acquire);
        self.bytes.write(DIRECTORY.len(), path);
        self.bytes.write(DIRECTORY.len() + path.len(), &[0]);
        self.length.store(path.len(), Ordering::Release);
        self.turn
            .store((turn | 1).wrapping_add(1), Ordering::Release);
    }

    fn get(&self, to: &mut [u8]) -> usize {
        for _ in 0..READ_TRIES {
            let turn = self.turn.load(Ordering::Acquire);
            let length = self.length.load(Ordering::Acquire).min(to.len());
            self.bytes.read(DIRECTORY.len(), &mut to[..length]);
            if turn & 1 == 0 && self.turn.load(Ordering::Acquire) == turn {
                return length;
            }
            std::hint::spin_loop();
        }
        0
    }
}

static WORKING: Working = Working::new();
/// Working directory of a child of `vfork`, which must not change its parent's working directory.
static CHILDS: Working = Working::new();
static CHILD: AtomicI32 = AtomicI32::new(0);

/// Reads the prefix, the socket and the working directory from the environment.
pub(crate) fn begin() {
    PROCESS.store(c::process(), Ordering::Relaxed);
    let socket = c::variable(c"TIDEMILL_PRELOAD_SOCKET");
    let prefix = c::variable(c"TIDEMILL_PRELOAD_PREFIX");
    if socket.is_empty() || socket.len() >= 108 || prefix.len() >= PREFIX_MAX {
        return;
    }
    if !prefix.starts_with(b"/") || prefix.len() < 2 {
        return;
    }
    SOCKET.write(0, socket);
    SOCKET_LENGTH.store(socket.len(), Ordering::Relaxed);
    PREFIX.write(0, prefix);
    PREFIX_LENGTH.store(prefix.len(), Ordering::Relaxed);
    let library = c::variable(c"LD_PRELOAD");
    if library.len() < c::PATH_SPACE {
        LIBRARY.write(0, library);
        LIBRARY_LENGTH.store(library.len(), Ordering::Relaxed);
    }
    let directory = c::variable(c"TIDEMILL_PRELOAD_CWD");
    WORKING.bytes.write(0, DIRECTORY);
    if directory.starts_with(b"/") && directory.len() <= PATH_BYTES_MAX {
        let mut copy = [0; c::PATH_SPACE];
        copy[..directory.len()].copy_from_slice(directory);
        WORKING.set(&copy[..directory.len()]);
    }
    WRITES_ASYNCHRONOUSLY.store(
        !c::variable(c"TIDEMILL_PRELOAD_ASYNC").is_empty(),
        Ordering::Relaxed,
    );
    c::put_variable(WORKING.bytes.at().cast());
    c::at_fork(after_fork);
    READY.store(true, Ordering::Release);
}

extern "C" fn after_fork() {
    PROCESS.store(c::process(), Ordering::Relaxed);
    connection::forget();
}

/// Whether the program uses a cluster.
pub(crate) fn is_on() -> bool {
    READY.load(Ordering::Acquire)
}

/// Whether closed files are stored asynchronously.
pub(crate) fn writes_asynchronously() -> bool {
    WRITES_ASYNCHRONOUSLY.load(Ordering::Relaxed)
}

/// Whether this process is a child of `vfork` that shares the memory of its parent.
pub(crate) fn is_child() -> bool {
    PROCESS.load(Ordering::Relaxed) != c::process()
}

/// Copies the prefix of the cluster's paths into `to`. Returns its length in bytes.
pub(crate) fn prefix(to: &mut [u8; 300]) -> usize {
    let length = PREFIX_LENGTH.load(Ordering::Relaxed);
    PREFIX.read(0, &mut to[..length]);
    length
}

/// Returns the value of `LD_PRELOAD` when the program started.
pub(crate) fn library() -> &'static [u8] {
    let length = LIBRARY_LENGTH.load(Ordering::Relaxed);
    c::bytes(LIBRARY.at().cast_const().cast(), length)
}

/// Copies the path of the file system's socket into `to`. Returns its length in bytes.
pub(crate) fn socket(to: &mut [u8; 108]) -> usize {
    let length = SOCKET_LENGTH.load(Ordering::Relaxed);
    SOCKET.read(0, &mut to[..length]);
    length
}

/// Returns the address of the file system's socket.
pub(crate) fn address() -> libc::sockaddr_un {
    let mut address: libc::sockaddr_un = c::zeroed();
    address.sun_family = u16::try_from(libc::AF_UNIX).unwrap_or(0);
    let mut path = [0; 108];
    let length = socket(&mut path);
    for (to, from) in address.sun_path.iter_mut().zip(&path[..length]) {
        *to = from.cast_signed();
    }
    address
}

/// Copies the working directory as a path in the cluster into `to`. Returns its length, which is 0 if the working directory is on the host.
pub(crate) fn working(to: &mut [u8]) -> usize {
    if !is_on() {
        return 0;
    }
    if is_child() && CHILD.load(Ordering::Acquire) == c::process() {
        return CHILDS.get(to);
    }
    WORKING.get(to)
}

/// Sets the working directory to a path in the cluster; an empty path means that the working directory is on the host.
pub(crate) fn set_working(path: &[u8]) {
    if is_child() {
        CHILDS.set(path);
        CHILD.store(c::process(), Ordering::Release);
    } else {
        WORKING.set(path);
    }
}

/// Target of a path: the host or the cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ResolvedPath<'a> {
    Host,
    /// The path is in the cluster, relative to the directory with this inode unless the path is absolute.
    Cluster(u64, &'a [u8]),
}

/// Buffer in which a path is assembled.
pub(crate) type PathBuffer = [u8; 2 * c::PATH_SPACE];

/// Returns the part of an absolute path after the prefix; `None` if the path is not in the cluster.
fn inside(path: &[u8]) -> Option<&[u8]> {
    let mut prefix = [0; 300];
    let length = self::prefix(&mut prefix);
    let wanted = prefix[..length].split(|&byte| byte == b'/');
    let wanted = wanted.filter(|name| !name.is_empty());
    let mut seen: [&[u8]; DEPTH_MAX] = [&[]; DEPTH_MAX];
    let (mut depth, mut at) = (0, 0);
    loop {
        if seen[..depth].iter().copied().eq(wanted.clone()) {
            return Some(&path[at..]);
        }
        while path.get(at) == Some(&b'/') {
            at += 1;
        }
        let rest = path.get(at..).filter(|rest| !rest.is_empty())?;
        let end = rest.iter().position(|&byte| byte == b'/');
        let name = &rest[..end.unwrap_or(rest.len())];
        at += name.len();
        match name {
            b"." => {}
            b".." => depth = depth.saturating_sub(1),
            _ if depth == DEPTH_MAX => return None,
            _ => {
                seen[depth] = name;
                depth += 1;
            }
        }
    }
}

/// Returns the target of a path that is relative to the directory of a descriptor.
pub(crate) fn of<'a>(
    directory: c_int,
    path: &'a [u8],
    space: &'a mut PathBuffer,
) -> Result<ResolvedPath<'a>, c_int> {
    if !is_on() || path.is_empty() {
        return Ok(ResolvedPath::Host);
    }
    if path.starts_with(b"/") {
        return match inside(path) {
            None => Ok(ResolvedPath::Host),
            Some(_) if path.len() >= PATH_BYTES_MAX => Err(libc::ENAMETOOLONG),
            Some(b"") => Ok(ResolvedPath::Cluster(0, b"/")),
            Some(rest) => Ok(ResolvedPath::Cluster(0, rest)),
        };
    }
    if directory != libc::AT_FDCWD {
        return Ok(match kind(directory) {
            DescriptorKind::Directory(ino) if path.len() >= PATH_BYTES_MAX => {
                let _ = ino;
                return Err(libc::ENAMETOOLONG);
            }
            DescriptorKind::Directory(ino) => ResolvedPath::Cluster(ino, path),
            _ => ResolvedPath::Host,
        });
    }
    let length = working(&mut space[..c::PATH_SPACE]);
    if length == 0 {
        return Ok(ResolvedPath::Host);
    }
    if path.len() >= PATH_BYTES_MAX || length + path.len() + 1 >= PATH_BYTES_MAX {
        return Err(libc::ENAMETOOLONG);
    }
    space[length] = b'/';
    space[length + 1..][..path.len()].copy_from_slice(path);
    Ok(ResolvedPath::Cluster(0, &space[..=length + path.len()]))
}

/// Kind of file that a descriptor refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DescriptorKind {
    Host,
    /// The descriptor refers to a directory of the cluster with this inode.
    Directory(u64),
    /// The descriptor may refer to a file of the cluster, with this device number and inode on this host.
    File(u64, u64),
}

/// Returns the kind of a descriptor, from its link in `/proc/self/fd`.
pub(crate) fn kind(descriptor: c_int) -> DescriptorKind {
    if !is_on() || descriptor < 0 {
        return DescriptorKind::Host;
    }
    let mut stat: libc::stat = c::zeroed();
    let at = (&raw mut stat) as usize;
    if c::call(libc::SYS_fstat, [c::word(descriptor), at, 0, 0, 0]) != 0 {
        return DescriptorKind::Host;
    }
    kind_of(descriptor, &stat)
}

/// Returns the kind of a descriptor like [`kind`], if the descriptor's attributes on this host are known.
pub(crate) fn kind_of(descriptor: c_int, stat: &libc::stat) -> DescriptorKind {
    let is = stat.st_mode & libc::S_IFMT;
    if !is_on() || ![libc::S_IFREG, libc::S_IFDIR].contains(&is) {
        return DescriptorKind::Host;
    }
    let saved = c::errno();
    let mut link = [0; c::PATH_SPACE];
    let name = name_of(descriptor, &mut link);
    c::set_errno(saved);
    let mut directory = [0; 108];
    let length = socket(&mut directory);
    let directory = &directory[..length];
    let directory = match directory.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => &directory[..=slash],
        None => return DescriptorKind::Host,
    };
    let ours = |kind: &str| {
        let rest = name
            .strip_prefix(directory)?
            .strip_prefix(kind.as_bytes())?;
        rest.strip_prefix(b"/")
    };
    if is == libc::S_IFDIR {
        return match ours(DIRECTORIES).and_then(number) {
            Some(ino) => DescriptorKind::Directory(ino),
            None => DescriptorKind::Host,
        };
    }
    if ours(COPIES).or(ours(WRITE_BEHIND)).is_some() || is_object(name) {
        return DescriptorKind::File(stat.st_dev, stat.st_ino);
    }
    DescriptorKind::Host
}

/// Returns the target of a descriptor's link in `/proc/self/fd`.
fn name_of(descriptor: c_int, to: &mut [u8; c::PATH_SPACE]) -> &[u8] {
    let mut path = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let mut digits = [0; 20];
    let count = c::decimal(u64::try_from(descriptor).unwrap_or(0), &mut digits);
    path[14..14 + count].copy_from_slice(&digits[..count]);
    let words = [
        c::word(libc::AT_FDCWD),
        path.as_ptr() as usize,
        to.as_mut_ptr() as usize,
        to.len() - 1,
        0,
    ];
    let length = c::call(libc::SYS_readlinkat, words);
    &to[..usize::try_from(length).unwrap_or(0)]
}

/// Returns the number at the start of a name, if only Linux's suffix for deleted files follows.
fn number(name: &[u8]) -> Option<u64> {
    let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
    std::str::from_utf8(name).ok()?.parse().ok()
}

/// Whether a path has the form of an object file: `objects/`, two digits, and sixteen digits (or, before the file has a name, Linux's text
/// for files without a name).
fn is_object(path: &[u8]) -> bool {
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    let mut parts = path.rsplit(|&byte| byte == b'/');
    let hex = |part: &[u8], length| part.len() == length && part.iter().all(u8::is_ascii_hexdigit);
    let object = parts.next().unwrap_or_default();
    let directory = parts.next().unwrap_or_default();
    let objects = parts.next().unwrap_or_default();
    (hex(object, 16) || object.starts_with(b"#")) && hex(directory, 2) && objects == b"objects"
}

/// A call about a path: sends a request to the cluster, or calls the operating system with the host's path to which the path leads.
pub(crate) struct PathCall<'a> {
    pub(crate) directory: c_int,
    pub(crate) path: *const c_char,
    pub(crate) request: Request,
    /// Second text and third text of the request.
    pub(crate) more: [&'a [u8]; 2],
    /// Whether the call uses the rights of the real user id.
    pub(crate) really: bool,
}

impl<'a> PathCall<'a> {
    pub(crate) fn new(op: Op, directory: c_int, path: *const c_char) -> Self {
        Self {
            directory,
            path,
            request: Request {
                op: op as u64,
                ..Request::default()
            },
            more: [&[], &[]],
            really: false,
        }
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut Request)) -> Self {
        change(&mut self.request);
        self
    }

    pub(crate) fn second(mut self, text: &'a [u8]) -> Self {
        self.more[0] = text;
        self
    }

    pub(crate) fn third(mut self, text: &'a [u8]) -> Self {
        self.more[1] = text;
        self
    }

    /// Executes the call: `host` calls the operating system; `done` receives the answer of the cluster, whose text is written to `space`.
    pub(crate) fn make(
        mut self,
        space: &mut [u8],
        host: impl Fn(c_int, *const c_char) -> c_long,
        done: impl FnOnce(&Got, &mut [u8]) -> c_long,
    ) -> c_long {
        let mut joined = [0; 2 * c::PATH_SPACE];
        let (base, path) = match of(self.directory, c::text(self.path), &mut joined) {
            Ok(ResolvedPath::Host) => return host(self.directory, self.path),
            Ok(ResolvedPath::Cluster(base, path)) => (base, path),
            Err(errno) => return c::fail(errno),
        };
        self.request.base = base;
        let texts: Texts<'_> = [path, self.more[0], self.more[1]];
        // The path that leaves the cluster may be longer than the requested text.
        let mut left = [0; c::PATH_SPACE];
        let small = space.len() < left.len();
        let into = if small { &mut left[..] } else { &mut *space };
        match connection::ask_as(self.request, texts, into, self.really) {
            RequestOutcome::Failed(errno) => c::fail(errno),
            RequestOutcome::Leaves(length) if length + 1 < into.len() => {
                let mut path = [0; c::PATH_SPACE];
                path[..length].copy_from_slice(&into[..length]);
                host(libc::AT_FDCWD, path.as_ptr().cast())
            }
            RequestOutcome::Leaves(_) => c::fail(libc::ENAMETOOLONG),
            RequestOutcome::Done(got) if small => done(&got, &mut left[..]),
            RequestOutcome::Done(got) => done(&got, space),
        }
    }

    /// Executes a call whose answer has no text, like [`Self::make`].
    pub(crate) fn execute_without_text(
        self,
        host: impl Fn(c_int, *const c_char) -> c_long,
    ) -> c_int {
        c::int(self.make(&mut [], host, |_, _| 0))
    }
}

/// Sends a request about an open file or directory of the cluster; `None` if the descriptor refers to neither.
pub(crate) fn about(
    descriptor: c_int,
    mut request: Request,
    texts: Texts<'_>,
    space: &mut [u8],
) -> Option<Result<Got, c_int>> {
    match kind(descriptor) {
        DescriptorKind::Host => return None,
        DescriptorKind::Directory(ino) => request.base = ino,
        DescriptorKind::File(device, inode) => {
            request.device = device;
            request.inode = inode;
        }
    }
    match connection::ask(request, texts, space) {
        RequestOutcome::Done(got) => Some(Ok(got)),
        // Another process opened it, in a node's directory.
        RequestOutcome::Failed(libc::EBADF) if request.inode != 0 => None,
        // The file system has ended, and the open file still exists.
        RequestOutcome::Failed(libc::ENOTCONN)
            if request.op == Op::Stat as u64 && request.inode != 0 =>
        {
            None
        }
        RequestOutcome::Failed(errno) => Some(Err(errno)),
        RequestOutcome::Leaves(_) => Some(Err(libc::EXDEV)),
    }
}
