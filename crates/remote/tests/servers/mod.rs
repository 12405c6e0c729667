//! Real servers of stores for tests, each with a gate in front of it that a test can shut. `scripts/stores.sh install` installs the
//! servers.
#![allow(dead_code, unused_imports, reason = "each test binary uses its part")]

mod gate;
mod kinds;

pub(crate) use gate::Gate;
#[cfg(feature = "azblob")]
pub(crate) use kinds::azblob;
#[cfg(feature = "gcs")]
pub(crate) use kinds::gcs;
#[cfg(feature = "hdfs")]
pub(crate) use kinds::hdfs;
pub(crate) use kinds::{apache, sftp, webdav, webhdfs};

use crate::require::tell;
use rustix::process::{Pid, Signal, kill_process};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tidemill_remote::{Keys, Remote, RemoteAddress};

/// Properties of a kind of store, as `docs/remotes.md` states them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Able {
    /// Whether the store distinguishes two files of the same length that were written in the same second.
    pub(crate) tells_all: bool,
    /// Maximum length of a name in bytes.
    pub(crate) name_bytes_max: usize,
    /// Characters that the server interprets and that names must not contain.
    pub(crate) never_in_names: &'static [char],
    /// Whether the store has directories, not only keys.
    pub(crate) directories: bool,
    /// Number of files that a test creates to get several pages.
    pub(crate) many: usize,
    /// Length of the large test file in bytes.
    pub(crate) large: usize,
}

/// Running server, and a store on it.
pub(crate) struct Server {
    pub(crate) able: Able,
    pub(crate) gate: Gate,
    /// Address of the store, through the gate.
    pub(crate) uri: String,
    /// Lines of a valid file of keys, and lines of a file with a wrong key.
    pub(crate) keys: String,
    pub(crate) wrong: Option<String>,
    /// Directory of the server's files, if the server stores them as files.
    pub(crate) files: Option<PathBuf>,
    /// Process of the server, which is dropped before its directory.
    running: Running,
    directory: TempDir,
}

/// Process of a server, which dropping this value ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let child = &mut self.0;
        // Some servers end their child processes only on this signal.
        let _ = kill_process(Pid::from_child(child), Signal::TERM);
        for _ in 0..40 {
            if child.try_wait().is_ok_and(|ended| ended.is_some()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Reads keys from a file, as a user stores them.
pub(crate) fn keys(lines: &str) -> Keys {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys");
    std::fs::write(&path, lines).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    Keys::read(&path).unwrap()
}

impl Server {
    pub(crate) fn open(&self) -> Remote {
        self.open_with(&self.keys)
    }

    pub(crate) fn open_with(&self, lines: &str) -> Remote {
        tidemill_remote::open(&RemoteAddress::parse(&self.uri).unwrap(), &keys(lines)).unwrap()
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }
}

fn port() -> u16 {
    let bound = TcpListener::bind("127.0.0.1:0").unwrap();
    bound.local_addr().unwrap().port()
}

/// Waits until the condition `is` is true. A failure prints the server's log.
fn wait(what: &str, log: &Path, mut is: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is() {
        let logged = || std::fs::read_to_string(log).unwrap_or_default();
        assert!(
            began.elapsed() < Duration::from_secs(120),
            "{what}: {}",
            logged()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn start(command: &mut Command, log: &Path) -> Running {
    let out = std::fs::File::create(log).unwrap();
    let errors = out.try_clone().unwrap();
    let command = command.stdin(Stdio::null()).stdout(out).stderr(errors);
    Running(command.spawn().unwrap())
}

/// Starts a server and waits until it listens on a port.
fn start_listening(command: &mut Command, port: u16, log: &Path) -> Running {
    let running = start(command, log);
    let what = format!("{} listens", command.get_program().display());
    wait(&what, log, || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    running
}

/// Returns the path of an installed server that is not in PATH. Prints a message if it is missing.
fn installed(name: &str, path: &str) -> Option<PathBuf> {
    let directory = std::env::var_os("TIDEMILL_STORES");
    let path = directory.map(|directory| Path::new(&directory).join(path));
    let found = path.filter(|path| path.exists());
    if found.is_none() {
        tell(&format!(
            "no {name}: scripts/stores.sh install, and TIDEMILL_STORES"
        ));
    }
    found
}
