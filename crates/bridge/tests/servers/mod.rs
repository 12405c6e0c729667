//! Real servers of stores for tests, each with a gate in front of it that can be shut. `scripts/stores.sh install` gets them.
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
use tidemill_bridge::{Bridge, Keys, Place};

/// What a kind of store can do, as docs/bridges.md says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Able {
    /// It tells a file from another one of the same length that was written in the same second.
    pub(crate) tells_all: bool,
    /// Longest name, in bytes.
    pub(crate) name_bytes_max: usize,
    /// What the server takes for something else.
    pub(crate) never_in_names: &'static [char],
    /// It has folders, not only keys.
    pub(crate) folders: bool,
    /// Files that are made to see pages.
    pub(crate) many: usize,
    /// Bytes of a file that is large there.
    pub(crate) large: usize,
}

/// A server, and a store in it.
pub(crate) struct Server {
    pub(crate) able: Able,
    pub(crate) gate: Gate,
    /// The address, through the gate.
    pub(crate) uri: String,
    /// Lines of a file of keys, and of one with a wrong one.
    pub(crate) keys: String,
    pub(crate) wrong: Option<String>,
    /// Where the server has the files, if it has them as files.
    pub(crate) files: Option<PathBuf>,
    /// It ends before its folder does.
    running: Running,
    folder: TempDir,
}

/// The program of a server, which ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let child = &mut self.0;
        // Some take their own children along when they are asked to end, and only then.
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

/// Keys in a file, as a user has them.
pub(crate) fn keys(lines: &str) -> Keys {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    std::fs::write(&path, lines).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    Keys::read(&path).unwrap()
}

impl Server {
    pub(crate) fn open(&self) -> Bridge {
        self.open_with(&self.keys)
    }

    pub(crate) fn open_with(&self, lines: &str) -> Bridge {
        Bridge::open(&Place::parse(&self.uri).unwrap(), &keys(lines)).unwrap()
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

fn port() -> u16 {
    let bound = TcpListener::bind("127.0.0.1:0").unwrap();
    bound.local_addr().unwrap().port()
}

/// Waits until something is so; the server says in its log why it is not.
fn wait(what: &str, log: &Path, mut is: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is() {
        let said = || std::fs::read_to_string(log).unwrap_or_default();
        assert!(
            began.elapsed() < Duration::from_secs(120),
            "{what}: {}",
            said()
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

/// Starts what listens at a port, and waits until it does.
fn start_listening(command: &mut Command, port: u16, log: &Path) -> Running {
    let running = start(command, log);
    let what = format!("{} listens", command.get_program().display());
    wait(&what, log, || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    running
}

/// Where a server is that is in no path; it is told if it is not.
fn installed(name: &str, path: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("TIDEMILL_STORES");
    let path = folder.map(|folder| Path::new(&folder).join(path));
    let found = path.filter(|path| path.exists());
    if found.is_none() {
        tell(&format!(
            "no {name}: scripts/stores.sh install, and TIDEMILL_STORES"
        ));
    }
    found
}
