//! Environment of tests with real processes: a directory like a node's, and runs in it.

#![allow(dead_code, reason = "each test binary uses its part")]

pub(crate) mod merge_invariance;
#[path = "../../../../tests/require.rs"]
pub(crate) mod require;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tidemill_sandbox::{
    CodeSource, Exit, InputsAs, Launcher, LauncherSettings, Prepared, Run, RunInput, STORE_USER,
    User,
};

/// Runs before `main`, so that a test binary can be the child process that it starts.
#[used]
#[unsafe(link_section = ".init_array")]
static HOOK: extern "C" fn() = {
    extern "C" fn hook() {
        tidemill_sandbox::child::main_if_child();
    }
    hook
};

pub(crate) static LAUNCHER: LazyLock<Launcher> =
    LazyLock::new(|| Launcher::new(LauncherSettings::default()).unwrap());

pub(crate) fn is_root() -> bool {
    // The owner of a new file is this process's user.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::os::unix::fs::MetadataExt::uid(&file.as_file().metadata().unwrap()) == 0
}

/// Returns whether a test that switches users must be skipped.
pub(crate) fn skip_without_root() -> bool {
    if !is_root() {
        require::skip("this test switches users, which needs root");
    }
    !is_root()
}

/// Directory of a node with objects and private directories.
pub(crate) struct Place {
    pub(crate) directory: TempDir,
    runs: std::cell::Cell<u32>,
}

impl Place {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        // Users must reach their private directories through it.
        fs::set_permissions(directory.path(), Permissions::from_mode(0o711)).unwrap();
        Self {
            directory,
            runs: std::cell::Cell::new(0),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the path of a new sealed object; if this process is root, the object belongs to the store's user.
    pub(crate) fn object(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        // An object that was sealed before can't be written to.
        let _ = fs::remove_file(&path);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o444)).unwrap();
        if is_root() {
            chown(&path, Some(STORE_USER.uid), Some(STORE_USER.gid)).unwrap();
        }
        path
    }

    pub(crate) fn run(&self, code: CodeSource, args: &[&str]) -> Run {
        let number = self.runs.get();
        self.runs.set(number + 1);
        let mut run = Run::new(code, self.path(&format!("run-{number}")));
        run.args = args.iter().map(|arg| (*arg).to_owned()).collect();
        run.limits.time = Duration::from_secs(60);
        run.inputs_as = if is_root() {
            InputsAs::HardLink
        } else {
            InputsAs::Symlink
        };
        run
    }

    /// Returns a run of a shell script, which is passed as an argument.
    pub(crate) fn shell(&self, script: &str) -> Run {
        self.run(CodeSource::Program("/bin/sh".into()), &["-c", script])
    }

    pub(crate) fn python(&self, script: &str) -> Run {
        self.run(
            CodeSource::Program("/usr/bin/python3".into()),
            &["-c", script],
        )
    }

    pub(crate) fn input(&self, run: &mut Run, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.object(&format!("object-{}", name.replace('/', "-")), content);
        run.inputs.push(RunInput {
            name: name.into(),
            path: path.clone(),
        });
        path
    }
}

pub(crate) fn start(run: Run) -> (Prepared, tidemill_sandbox::RunningKernel) {
    let prepared = LAUNCHER.prepare(run).unwrap();
    let running = LAUNCHER.spawn(&prepared).unwrap();
    (prepared, running)
}

pub(crate) fn finish(run: Run) -> (Prepared, Exit) {
    let (prepared, running) = start(run);
    (prepared, running.wait().unwrap())
}

/// Runs a kernel and returns its output; the run must succeed.
pub(crate) fn output(run: Run) -> String {
    let (_, exit) = finish(run);
    assert!(exit.success(), "{:?}: {}", exit.end, exit.stderr.text());
    exit.stdout.text()
}

/// Returns the users as which tests run kernels.
pub(crate) fn users() -> Vec<Option<User>> {
    if is_root() {
        vec![
            None,
            Some(User {
                uid: 1000,
                gid: 1000,
            }),
        ]
    } else {
        vec![None]
    }
}

pub(crate) fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Compiles C source of this repository; returns the shared object, as a sealed object.
pub(crate) fn compile(place: &Place, source: &str, name: &str) -> PathBuf {
    let repository = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let built = place.path(name);
    let done = Command::new("cc")
        .args([
            "-std=c99", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC", "-I",
        ])
        .arg(repository.join("include"))
        .arg("-o")
        .arg(&built)
        .arg(repository.join(source))
        .status();
    assert!(
        done.expect("the C compiler `cc` is needed to test native kernels")
            .success()
    );
    place.object(&format!("{name}.object"), fs::read(&built).unwrap())
}

pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "waited in vain until {what}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}
