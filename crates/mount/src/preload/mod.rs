//! The adapter between programs under `tidemill exec` and `fs`, as `fuse` is the adapter for the Linux kernel (next:
//! `mount/src/fs/mod.rs`).
//!
//! Programs talk to the adapter over a Unix socket. Programs request names and attributes. To open a file, a program gets a descriptor: of
//! the object's file in its node's directory, or of a local copy if the object is on another host. The program then reads and writes the
//! file without this process (`docs/decisions/0044-preload-client.md`).
//!
//! | file | subject |
//! |---|---|
//! | `answer` | requests about names |
//! | `opening`, `attributes` | requests that open files, and those about attributes |
//! | `walk` | paths |
//! | `rights` | permissions of callers |
//! | `peer` | the processes that connect |
//! | `open_files` | descriptors that programs have, and their end |
//! | `copies` | files that are not on this host |
//! | `write_behind`, `spool` | files that are stored after their close, and their bytes until then |
//! | `socket` | messages |

mod answer;
mod attributes;
mod copies;
mod open_files;
mod opening;
mod path_resolution;
mod peer_process;
mod rights;
mod socket;
mod spool;
mod write_behind;

use crate::error::Error;
use crate::fs::deadline;
use crate::fs::watch::{Closes, KernelCache};
use crate::session::{self, Attached};
use answer::{Answers, ProgramRequest, Reply};
use copies::LocalFiles;
use open_files::OpenFiles;
use parking_lot::Mutex;
use peer_process::PeerProcess;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::net::sockopt::socket_peercred;
use spool::Spool;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidemill_client::{Credential, Endpoint};
use tidemill_preload_api::{
    Answer, COPIES, DIRECTORIES, LEAVES, Op, REQUEST_BYTES_MAX, Request, WRITE_BEHIND,
};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use write_behind::WriteBehind;

/// Maximum number of connections at once; each connection has a thread.
const CONNECTIONS_MAX: usize = 4096;
/// Maximum number of connections of each user, except root and the serving user.
const CONNECTIONS_OF_OTHERS_MAX: usize = CONNECTIONS_MAX / 4;
/// Interval at which the process checks whether a program still uses it.
const IDLE_PERIOD: Duration = Duration::from_millis(500);
/// Pause before the next connection is accepted, if none can be accepted now.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Configuration of a file system for programs under `tidemill exec`.
#[derive(Clone, Debug)]
pub struct PreloadConfig {
    /// Address of the server.
    pub endpoint: Endpoint,
    /// Content of the cluster's token file, for a server that is reached over TCP.
    pub credential: Option<Credential>,
    /// Directory of the socket, which is created if it is missing.
    pub directory: PathBuf,
    /// Path at which programs see the cluster; used in messages.
    pub prefix: PathBuf,
    /// Whether object files of nodes on this host are opened directly.
    pub in_place: bool,
    /// Whether users other than the serving user may use the file system.
    pub allow_other: bool,
    /// Time for which attributes and names are cached.
    pub attr_ttl: Duration,
    /// Time that the process continues without connected programs; `None`: without limit.
    pub idle: Option<Duration>,
    /// Maximum number of bytes of closed files that are not stored yet.
    pub space_bytes: u64,
}

/// Error text for a directory in which another process serves, or is about to.
pub const IS_SERVED: &str = "is served by another process";

/// Returns the path of the socket in a directory.
#[must_use]
pub fn socket_in(directory: &Path) -> PathBuf {
    directory.join("s")
}

/// The served file system for programs under `tidemill exec`. The file system is served until this value is dropped.
#[derive(Debug)]
pub struct PreloadServer {
    shared: Arc<PreloadShared>,
    runtime: Runtime,
    socket: PathBuf,
    idle: Option<Duration>,
    /// Lock file that ensures that no other process serves in the directory.
    _held: File,
}

#[derive(Debug)]
struct PreloadShared {
    answers: Answers,
    allow_other: bool,
    own_uid: u32,
    connections: Connections,
    ends: AtomicBool,
}

/// Substitute for the Linux kernel of a file system without a mount, which has no caches of names to invalidate.
#[derive(Clone, Copy, Debug)]
struct NoKernel;

impl KernelCache for NoKernel {
    fn forget_entry(&self, _: u64, _: &OsStr) {}
    fn forget_inode(&self, _: u64) {}
    fn forget_attributes(&self, _: u64) {}
}

impl Closes for OpenFiles {
    fn settle(&self, ino: u64) {
        self.settle_for_others(ino);
    }
}

/// Starts to serve programs, which can connect when the function returns.
///
/// # Errors
/// The server refuses or cannot be trusted, or the directory belongs to another user or is served by another process.
pub fn serve(config: &PreloadConfig) -> Result<PreloadServer, Error> {
    let held = take_directory(config)?;
    let Attached { runtime, fs } = session::attach(
        &session::MountConfig {
            in_place: config.in_place,
            allow_other: config.allow_other,
            attr_ttl: config.attr_ttl,
            ..session::MountConfig::new(
                config.endpoint.clone(),
                config.credential.clone(),
                config.prefix.clone(),
            )
        },
        config.prefix.clone(),
        NoKernel,
    )?;
    if config.allow_other {
        fs.backend.set_hands_out();
    }
    let copies = LocalFiles::new(config.directory.join(COPIES));
    let asked = fs.backend.ask_server(|| fs.backend.server.status())?;
    let spool = Spool::new(config.directory.join(WRITE_BEHIND), asked.cluster_id);
    let write_behind = WriteBehind::new(spool, config.space_bytes);
    write_behind.take_up()?;
    let open_files = Arc::new(OpenFiles::new(fs.clone(), copies, write_behind));
    fs.set_closes(open_files.clone());
    let shared = Arc::new(PreloadShared {
        answers: Answers::new(
            fs,
            open_files,
            config.directory.join(DIRECTORIES),
            config.allow_other,
        ),
        allow_other: config.allow_other,
        own_uid: rustix::process::geteuid().as_raw(),
        connections: Connections::default(),
        ends: AtomicBool::new(false),
    });
    let socket = socket_in(&config.directory);
    let _ = std::fs::remove_file(&socket);
    let listener = socket::listener(&socket)?;
    let mode = if config.allow_other { 0o666 } else { 0o600 };
    std::fs::set_permissions(&socket, Permissions::from_mode(mode))?;
    shared.begin(listener)?;
    Ok(PreloadServer {
        shared,
        runtime,
        socket,
        idle: config.idle,
        _held: held,
    })
}

/// Closes the descriptors that this process inherited, except its standard streams: otherwise pipes and locks of other processes would
/// exist for as long as this process. Programs do not inherit descriptors that this process opens, so the function skips such descriptors.
pub fn close_inherited() {
    let open = std::fs::read_dir("/proc/self/fdinfo").into_iter().flatten();
    for descriptor in open.flatten() {
        let Some(number) = descriptor
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        let info = std::fs::read_to_string(descriptor.path()).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
        if number > libc::STDERR_FILENO && flags.is_some_and(|flags| flags & libc::O_CLOEXEC == 0) {
            // No other code knows its number.
            let _ = nix::unistd::close(number);
        }
    }
}

/// Creates and locks the directory, which only this user may be able to change.
fn take_directory(config: &PreloadConfig) -> Result<File, Error> {
    let mode = if config.allow_other { 0o711 } else { 0o700 };
    let directory = &config.directory;
    let mut how = DirBuilder::new();
    how.recursive(true).mode(mode).create(directory)?;
    let stat = directory.symlink_metadata()?;
    let own = rustix::process::geteuid().as_raw();
    if !stat.is_dir() || stat.uid() != own || stat.mode() & 0o022 != 0 {
        return Err(Error::Directory {
            path: directory.display().to_string(),
        });
    }
    std::fs::set_permissions(directory, Permissions::from_mode(mode))?;
    let held = File::create(directory.join("serving"))?;
    flock(&held, FlockOperation::NonBlockingLockExclusive).map_err(|_| Error::Served {
        path: directory.display().to_string(),
    })?;
    for (name, mode) in [(DIRECTORIES, mode), (COPIES, 0o700)] {
        let path = directory.join(name);
        // Remains of a process that was killed.
        let _ = std::fs::remove_dir_all(&path);
        let mut how = DirBuilder::new();
        how.mode(mode).create(path)?;
    }
    // Handed-over files are kept.
    let mut how = DirBuilder::new();
    how.recursive(true)
        .mode(0o700)
        .create(directory.join(WRITE_BEHIND))?;
    Ok(held)
}

/// Number of connections of each user.
#[derive(Debug, Default)]
struct Connections(Mutex<BTreeMap<u32, usize>>);

impl Connections {
    /// Counts another connection of a user. Returns whether the connection is allowed.
    fn enter(&self, uid: u32, own: bool) -> bool {
        let mut connections = self.0.lock();
        let all: usize = connections.values().sum();
        let before = connections.get(&uid).copied().unwrap_or(0);
        let enters = all < CONNECTIONS_MAX && (own || before < CONNECTIONS_OF_OTHERS_MAX);
        if enters {
            connections.insert(uid, before + 1);
        }
        enters
    }

    fn leave(&self, uid: u32) {
        let mut connections = self.0.lock();
        if let Entry::Occupied(mut count) = connections.entry(uid) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

impl PreloadShared {
    /// Starts the threads that serve connections.
    fn begin(self: &Arc<Self>, listener: OwnedFd) -> std::io::Result<()> {
        let spawn = |name: &str, work: fn(&Self)| {
            let shared = self.clone();
            let thread = std::thread::Builder::new().name(name.into());
            thread.spawn(move || work(&shared)).map(drop)
        };
        let accepting = self.clone();
        std::thread::Builder::new()
            .name("accept".into())
            .spawn(move || accepting.accept(&listener))?;
        spawn("closed-files", |shared| {
            shared.answers.open_files.keep_sweeping(|| shared.goes_on());
        })?;
        for _ in 0..write_behind::WORKERS {
            spawn("storing", |shared| {
                shared.answers.open_files.keep_storing(|| shared.goes_on());
            })?;
        }
        Ok(())
    }

    fn goes_on(&self) -> bool {
        !self.ends.load(Ordering::Acquire)
    }

    fn accept(self: &Arc<Self>, listener: &OwnedFd) {
        while self.goes_on() {
            let connection = match rustix::net::accept_with(listener, SocketFlags::CLOEXEC) {
                Ok(connection) => connection,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(errno) => {
                    tracing::warn!("no connection can be accepted: {errno}");
                    std::thread::sleep(ACCEPT_PAUSE);
                    continue;
                }
            };
            let Ok(uid) = socket_peercred(&connection).map(|peer| peer.uid.as_raw()) else {
                continue;
            };
            let own = uid == 0 || uid == self.own_uid;
            if !self.connections.enter(uid, own) {
                tracing::warn!(uid, "a program was refused: too many are connected");
                continue;
            }
            let peer = PeerProcess::of(&connection);
            let serving = self.clone();
            let spawned = std::thread::Builder::new()
                .name("program".into())
                .spawn(move || {
                    let served = peer.and_then(|peer| serving.converse(&connection, peer));
                    if let Err(errno) = served {
                        tracing::debug!("a program's connection ended: {errno}");
                    }
                    serving.connections.leave(uid);
                });
            if let Err(error) = spawned {
                self.connections.leave(uid);
                tracing::warn!("a program can't be served: {error}");
            }
        }
    }

    /// Answers one program's requests until the connection ends.
    fn converse(&self, connection: &OwnedFd, peer: PeerProcess) -> Result<(), Errno> {
        let peer = Rc::new(peer);
        let connection = connection.as_fd();
        socket::know_senders(connection)?;
        let mut message = vec![0; REQUEST_BYTES_MAX + 1];
        loop {
            let (length, sender) = socket::receive(connection, &mut message)?;
            if length == 0 {
                return Ok(());
            }
            let caller = sender.ok_or(Errno::PERM)?;
            let refused = |errno: Errno| Reply {
                answer: Answer {
                    errno: u64::from(errno.raw_os_error().unsigned_abs()),
                    ..Answer::default()
                },
                ..Reply::default()
            };
            let reply = match Request::decode(&message[..length]) {
                None => refused(Errno::PROTO),
                Some(_) if !self.serves(caller.uid) => refused(Errno::ACCESS),
                Some((request, texts)) => {
                    let asked = ProgramRequest {
                        caller,
                        request,
                        texts,
                    };
                    peer_process::serve(&peer, || deadline::serve(|| self.answers.answer(asked)))
                }
            };
            let head = reply.answer.encode();
            socket::send(connection, [&head, &reply.text], reply.descriptor.as_ref())?;
        }
    }

    fn serves(&self, uid: u32) -> bool {
        self.allow_other || uid == self.own_uid || uid == 0
    }

    fn is_idle(&self) -> bool {
        let open_files = &self.answers.open_files;
        self.connections.0.lock().is_empty()
            && open_files.count() == 0
            && open_files.write_behind.count() == 0
    }
}

impl PreloadServer {
    /// Serves until SIGTERM or SIGINT arrives, or no program has used the process for long enough; then seals all written versions.
    ///
    /// # Errors
    /// Some versions could not be sealed in time; the server then seals the bytes that have reached the nodes.
    pub fn run(self) -> Result<(), Error> {
        let shared = self.shared.clone();
        let idle = self.idle;
        self.runtime.block_on(async {
            let mut terminate = signal(SignalKind::terminate())?;
            let mut interrupt = signal(SignalKind::interrupt())?;
            let unused = async {
                let mut since = Instant::now();
                while idle.is_none_or(|idle| since.elapsed() < idle) {
                    tokio::time::sleep(IDLE_PERIOD).await;
                    if !shared.is_idle() {
                        since = Instant::now();
                    }
                }
            };
            tokio::select! {
                _ = terminate.recv() => tracing::info!("SIGTERM: ending"),
                _ = interrupt.recv() => tracing::info!("SIGINT: ending"),
                () = unused => tracing::info!("no process uses it any more"),
            }
            Ok::<_, std::io::Error>(())
        })?;
        let _ = std::fs::remove_file(&self.socket);
        self.shared.answers.open_files.store_all();
        let sealed = session::finish(&self.shared.answers.fs);
        self.shared.ends.store(true, Ordering::Release);
        sealed.map_err(|left| Error::Unsealed {
            versions: left.versions,
            why: left.why,
        })
    }
}

/// Connects to the file system in this directory and checks that the file system answers. The open connection keeps it running.
///
/// # Errors
/// No process serves in the directory, or this user may not use the file system.
pub fn connect(directory: &Path) -> Result<OwnedFd, Error> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket_with};
    let kind = SocketType::SEQPACKET;
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    // The kernel names the sender.
    socket::know_senders(socket.as_fd())?;
    connect(&socket, &SocketAddrUnix::new(socket_in(directory))?)?;
    let request = Request {
        op: Op::Resolve as u64,
        lengths: [1, 0, 0, 0],
        ..Request::default()
    };
    ask(&socket, request, b"/")?;
    Ok(socket)
}

/// Sends a request over a connection. Returns the answer and the answer's text.
fn ask(socket: &OwnedFd, request: Request, text: &[u8]) -> Result<(Answer, Vec<u8>), Error> {
    socket::send(socket.as_fd(), [&request.encode(), text], None)?;
    let mut message = vec![0; tidemill_preload_api::ANSWER_BYTES_MAX];
    let (length, _) = socket::receive(socket.as_fd(), &mut message)?;
    message.truncate(length);
    let answer = Answer::decode(&message).ok_or(Errno::PROTO)?;
    match answer.errno {
        0 => Ok((answer, message.split_off(Answer::BYTES))),
        LEAVES => Err(Errno::PROTO.into()),
        errno => {
            let errno = i32::try_from(errno).unwrap_or(libc::EIO);
            Err(Errno::from_raw_os_error(errno).into())
        }
    }
}

/// A closed file that could not be stored in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotStored {
    /// Whether the file waits for an offline node or server; otherwise the file was refused.
    pub waits: bool,
    /// Path of the file in the cluster.
    pub path: PathBuf,
    /// Reason why the file could not be stored.
    pub why: String,
    /// Path of the local file with the bytes.
    pub file: PathBuf,
}

/// State of asynchronously written files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnstoredFiles {
    /// Number of files that are being stored.
    pub waiting: u64,
    /// Number of files that could not be stored.
    pub failed: u64,
    /// Reports about failed files, as far as they fit into the answer.
    pub not_stored: Vec<NotStored>,
}

/// Returns this user's files that the connected file system has received and not stored. With `again` the file system retries refused files
/// once.
///
/// # Errors
/// The file system has ended.
pub fn standing(connection: &OwnedFd, again: bool) -> Result<UnstoredFiles, Error> {
    let request = Request {
        op: Op::Wait as u64,
        a: u64::from(again),
        ..Request::default()
    };
    let (answer, text) = ask(connection, request, b"")?;
    let texts: Vec<_> = text.split(|&byte| byte == 0).collect();
    let path = |text: &[u8]| PathBuf::from(OsStr::from_bytes(text));
    let reported = texts.chunks_exact(4).map(|one| NotStored {
        waits: one[0] == b"waits",
        path: path(one[1]),
        why: String::from_utf8_lossy(one[2]).into_owned(),
        file: path(one[3]),
    });
    Ok(UnstoredFiles {
        waiting: answer.value,
        failed: answer.stat.size,
        not_stored: reported.collect(),
    })
}

/// Whether an earlier file system in this directory has left asynchronously written files that are not stored in the cluster.
#[must_use]
pub fn has_left(directory: &Path) -> bool {
    spool::is_left(&directory.join(WRITE_BEHIND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_served_directory_contains_is_served_text() {
        let path = "/run/a".to_owned();
        assert!(Error::Served { path }.to_string().contains(IS_SERVED));
    }

    #[test]
    fn preload_connections_of_one_user_are_limited() {
        let connections = Connections::default();
        let had = |uid, own| {
            (0..CONNECTIONS_MAX + 1)
                .filter(|_| connections.enter(uid, own))
                .count()
        };
        assert_eq!(had(7, false), CONNECTIONS_OF_OTHERS_MAX);
        assert_eq!(had(8, false), CONNECTIONS_OF_OTHERS_MAX);
        assert_eq!(
            had(0, true),
            CONNECTIONS_MAX - 2 * CONNECTIONS_OF_OTHERS_MAX
        );
        assert!(!connections.enter(9, false));
        connections.leave(0);
        assert!(connections.enter(9, false));
        connections.leave(9);
        for uid in [7, 8] {
            (0..CONNECTIONS_OF_OTHERS_MAX).for_each(|_| connections.leave(uid));
        }
        assert_eq!(connections.0.lock().keys().collect::<Vec<_>>(), [&0]);
    }
}
