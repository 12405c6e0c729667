//! A cluster of real processes for one test: a server, nodes and a mount, in a temporary directory. All are ended with the test.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Maximum time for any event. It is long, because no test here checks speed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

pub(crate) struct Cluster {
    directory: tempfile::TempDir,
    server: Option<Child>,
    nodes: Vec<Option<Child>>,
    mount: Option<Child>,
    options: Options,
    /// Address of the server, once it is known.
    listen: String,
}

#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) nodes: usize,
    pub(crate) cores: u32,
    pub(crate) server_cores: u32,
    pub(crate) mount: bool,
    /// Quota of each node.
    pub(crate) capacity: Option<&'static str>,
    /// Time in seconds that a lost node may be offline before its work is rescheduled.
    pub(crate) node_timeout_secs: u64,
    /// Whether all processes communicate as if each were on a host of its own: over TCP, with the token file.
    pub(crate) remote: bool,
    /// Flags of every command.
    pub(crate) flags: Vec<String>,
    /// Address on which nodes listen.
    pub(crate) node_listen: String,
    /// Further arguments of `tidemill node run`.
    pub(crate) node_args: Vec<String>,
    /// Further arguments of `tidemill server run`.
    pub(crate) server_args: Vec<String>,
    /// Environment variables of `tidemill mount`.
    pub(crate) mount_env: Vec<(&'static str, String)>,
    /// Address of the servers, if a test starts them itself.
    pub(crate) endpoint: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            nodes: 2,
            cores: 2,
            server_cores: 0,
            mount: true,
            capacity: None,
            node_timeout_secs: 3,
            remote: false,
            flags: Vec::new(),
            node_listen: "127.0.0.1:0".into(),
            node_args: Vec::new(),
            server_args: Vec::new(),
            mount_env: Vec::new(),
            endpoint: None,
        }
    }
}

/// Output and result of a command.
pub(crate) struct Printed {
    pub(crate) ok: bool,
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Cluster {
    /// Starts a cluster with the default options; returns `None`, with a message, without root or FUSE.
    pub(crate) fn start() -> Option<Self> {
        Self::with(Options::default())
    }

    pub(crate) fn with(options: Options) -> Option<Self> {
        Self::prepared(options, |_| {})
    }

    /// Starts a cluster; `prepare` may change the directory before any process starts in it.
    pub(crate) fn prepared(options: Options, prepare: impl FnOnce(&Self)) -> Option<Self> {
        let count = options.nodes;
        let mut cluster = Self::without_server(options)?;
        prepare(&cluster);
        cluster.start_server();
        cluster.nodes.resize_with(count, || None);
        for index in 0..count {
            cluster.start_node(index);
        }
        cluster.wait_for_nodes(count);
        if cluster.options.mount {
            cluster.start_mount();
        }
        Some(cluster)
    }

    /// Makes the directory of a cluster, without any process.
    pub(crate) fn without_server(options: Options) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let directory = tempfile::Builder::new()
            .prefix("tidemill-e2e-")
            .tempdir()
            .unwrap();
        Some(Self {
            directory,
            server: None,
            nodes: Vec::new(),
            mount: None,
            options,
            listen: "127.0.0.1:0".into(),
        })
    }

    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.directory.path().join(relative)
    }

    /// Returns a path below the mount.
    pub(crate) fn at(&self, relative: &str) -> PathBuf {
        self.path("mnt").join(relative)
    }

    pub(crate) fn node_directory(&self, index: usize) -> PathBuf {
        self.path(&format!("node-{index}"))
    }

    /// Returns the paths of a file's objects, each on the first node that has it.
    pub(crate) fn object_files(&self, path: &str) -> Vec<PathBuf> {
        let layout = self.json(&["stat", path]);
        let file = |part: &Value| {
            let object = part["object"].as_str().unwrap();
            let node = part["replicas"][0]["node"].as_u64().unwrap();
            let directory = self.node_directory(usize::try_from(node).unwrap());
            directory.join(format!("objects/{}/{object}", &object[14..]))
        };
        let parts = layout["parts"].as_array().unwrap();
        parts.iter().map(file).collect()
    }

    /// Returns the server's address from its directory.
    pub(crate) fn address(&self) -> String {
        self.log("server/address").trim().to_owned()
    }

    pub(crate) fn token_file(&self) -> PathBuf {
        self.path("server/token")
    }

    fn endpoint(&self) -> String {
        if let Some(endpoint) = &self.options.endpoint {
            return endpoint.clone();
        }
        if self.options.remote && self.path("server/address").exists() {
            return self.address();
        }
        format!("unix:{}", self.path("server/server.sock").display())
    }

    pub(crate) fn start_server(&mut self) {
        let mut command = self.tidemill();
        command
            .args(["server", "run"])
            .arg("--data-dir")
            .arg(self.path("server"));
        command.args(["--listen", &self.listen]);
        command.args([
            "--node-timeout",
            &format!("{}s", self.options.node_timeout_secs),
        ]);
        if self.options.server_cores > 0 {
            command.args(["--server-cores", &self.options.server_cores.to_string()]);
        }
        command.args(&self.options.server_args);
        self.server = Some(spawn(&mut command, &self.path("server.log")));
        wait("the server answers", || {
            self.run(&["status"]).ok && !self.address().is_empty()
        });
        let address = self.address();
        if let Some((_, listen)) = address.split_once("//") {
            // A restarted server must have the same address.
            listen.clone_into(&mut self.listen);
        }
    }

    pub(crate) fn start_node(&mut self, index: usize) {
        let mut command = self.tidemill();
        command.args(["node", "run", "--id", &index.to_string()]);
        command.arg("--data-dir").arg(self.node_directory(index));
        command.args(["--listen", &self.options.node_listen]);
        if !self.in_memory() {
            command.args(["--cores", &self.options.cores.to_string()]);
        }
        if let Some(capacity) = self.options.capacity {
            command.args(["--capacity", capacity]);
        }
        command.args(&self.options.node_args);
        if self.options.remote {
            command.args(["--in-place", "false"]);
        }
        let log = self.path(&format!("node-{index}.log"));
        self.nodes[index] = Some(spawn(&mut command, &log));
    }

    /// Returns whether the added node is in memory.
    fn in_memory(&self) -> bool {
        self.options.node_args.iter().any(|arg| arg == "memory")
    }

    /// Kills a node and deletes its data in memory, like the end of its host.
    pub(crate) fn lose_memory(&mut self, index: usize) {
        self.kill_node(index);
        detach(&self.node_directory(index));
    }

    /// Kills a node and deletes the data that its tasks exchange in memory.
    pub(crate) fn lose_intermediates(&mut self, index: usize) {
        self.kill_node(index);
        detach(&self.node_directory(index).join("intermediates"));
    }

    /// Adds one more node, with other arguments. Nodes that are started later have these arguments, too.
    pub(crate) fn add_node(&mut self, args: &[&str]) {
        self.options.node_args = args.iter().map(|&arg| arg.to_owned()).collect();
        self.nodes.push(None);
        self.start_node(self.nodes.len() - 1);
        self.wait_for_nodes(self.nodes.len());
    }

    /// Restarts a node with other arguments.
    pub(crate) fn restart_node(&mut self, index: usize, args: &[&str]) {
        self.kill_node(index);
        self.options.node_args = args.iter().map(|&arg| arg.to_owned()).collect();
        self.start_node(index);
    }

    pub(crate) fn wait_for_nodes(&self, count: usize) {
        wait("the nodes are up", || {
            let status = self.json(&["status"]);
            let nodes = status["nodes"].as_array().unwrap();
            nodes
                .iter()
                .filter(|e| e["up"] == true && e["role"] == "store")
                .count()
                == count
        });
    }

    pub(crate) fn start_mount(&mut self) {
        self.spawn_mount();
        self.wait_for_mount();
    }

    pub(crate) fn spawn_mount(&mut self) {
        std::fs::create_dir_all(self.path("mnt")).unwrap();
        let mut command = self.tidemill();
        command.arg("mount").arg("--path").arg(self.path("mnt"));
        command.envs(self.options.mount_env.iter().cloned());
        if self.options.remote {
            command.args(["--in-place", "false"]);
        }
        self.mount = Some(spawn(&mut command, &self.path("mount.log")));
    }

    pub(crate) fn wait_for_mount(&self) {
        wait("the file system is mounted", || {
            let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
            let path = self.path("mnt");
            mounts.contains(&format!(" {} fuse", path.display())) && path.join(".tidemill").exists()
        });
    }

    pub(crate) fn kill_server(&mut self) {
        kill_hard(self.server.take());
    }

    pub(crate) fn kill_node(&mut self, index: usize) {
        kill_hard(self.nodes[index].take());
    }

    /// Returns the exit code of a node's process, if it has ended.
    pub(crate) fn node_code(&mut self, index: usize) -> Option<i32> {
        self.nodes[index].as_mut()?.try_wait().unwrap()?.code()
    }

    /// Waits until the log of the server's database has all changes so far: the server writes each change half a second later.
    pub(crate) fn wait_for_log() {
        std::thread::sleep(std::time::Duration::from_secs(2));
    }

    /// Deletes the log of the server's database and its copies.
    pub(crate) fn forget_log(&self) {
        let nodes = (0..self.nodes.len()).map(|index| self.node_directory(index));
        for directory in nodes.chain([self.path("server")]) {
            let _ = std::fs::remove_dir_all(directory.join("log"));
        }
    }

    /// Deletes the server's database, recovers it from the log and continues. Returns the result of the recovery.
    pub(crate) fn recover_database(&mut self) -> Value {
        Self::wait_for_log();
        self.kill_mount();
        self.kill_server();
        for suffix in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(self.path(&format!("server/server.db{suffix}")));
        }
        let server = self.path("server").display().to_string();
        let nodes = 0..self.nodes.len();
        let nodes = nodes.map(|index| self.node_directory(index).display().to_string());
        let nodes: Vec<String> = nodes.collect();
        let mut args = vec!["server", "recover", "--data-dir", &server];
        args.extend(nodes.iter().map(String::as_str));
        let printed = self.json(&args);
        self.start_server();
        self.wait_for_nodes(nodes.len());
        self.start_mount();
        printed
    }

    pub(crate) fn kill_mount(&mut self) {
        kill_hard(self.mount.take());
        detach(&self.path("mnt"));
    }

    pub(crate) fn signal_server(&self, signal: rustix::process::Signal) {
        send(self.server.as_ref(), signal);
    }

    pub(crate) fn signal_node(&self, index: usize, signal: rustix::process::Signal) {
        send(self.nodes[index].as_ref(), signal);
    }

    /// Returns a `tidemill` command for this cluster.
    pub(crate) fn tidemill(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidemill"));
        command.arg("--server").arg(self.endpoint());
        command.arg("--token-file").arg(self.token_file());
        command.args(&self.options.flags);
        command
    }

    /// Runs `tidemill ARGS` for this cluster.
    pub(crate) fn run(&self, args: &[&str]) -> Printed {
        printed(self.tidemill().args(args).output().unwrap())
    }

    /// Runs `tidemill --json ARGS`, which must succeed.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let printed = printed(self.tidemill().arg("--json").args(args).output().unwrap());
        assert!(
            printed.ok,
            "tidemill {args:?}: {}{}",
            printed.out, printed.err
        );
        serde_json::from_str(&printed.out)
            .unwrap_or_else(|error| panic!("{args:?}: {error}: {}", printed.out))
    }

    /// Runs a shell command in the mount, which must succeed; returns its standard output.
    pub(crate) fn sh(&self, script: &str) -> String {
        let printed = self.try_sh(script);
        assert!(printed.ok, "{script}\n{}{}", printed.out, printed.err);
        printed.out
    }

    pub(crate) fn try_sh(&self, script: &str) -> Printed {
        let script = format!(
            "set -euo pipefail; cd '{}'; {script}",
            self.path("mnt").display()
        );
        printed(Command::new("bash").arg("-c").arg(script).output().unwrap())
    }

    /// Writes a job script next to the cluster and submits it; returns the job's id.
    pub(crate) fn submit(&self, script: &str) -> u64 {
        let printed = self.try_submit(script);
        assert!(printed.ok, "{script}\n{}{}", printed.out, printed.err);
        let reply: Value = serde_json::from_str(&printed.out).unwrap();
        reply["job"].as_u64().unwrap()
    }

    pub(crate) fn try_submit(&self, script: &str) -> Printed {
        let path = self.path("job.conf");
        std::fs::write(&path, script).unwrap();
        printed(
            self.tidemill()
                .args(["--json", "submit"])
                .arg(path)
                .output()
                .unwrap(),
        )
    }

    pub(crate) fn job(&self, job: u64) -> Value {
        self.json(&["job", "show", &job.to_string()])
    }

    /// Waits until the job has ended; returns it.
    pub(crate) fn ended(&self, job: u64) -> Value {
        let mut last = Value::Null;
        wait("the job ends", || {
            last = self.job(job);
            ["done", "failed", "cancelled"].contains(&last["state"].as_str().unwrap())
        });
        last
    }

    /// Waits until the job has ended, which must be with success.
    pub(crate) fn done(&self, job: u64) -> Value {
        let ended = self.ended(job);
        assert_eq!(ended["state"], "done", "{ended:#}");
        ended
    }

    pub(crate) fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for name in ["server.log", "node-0.log", "node-1.log", "mount.log"] {
                let log = self.log(name);
                let tail: Vec<&str> = log.lines().rev().take(15).collect();
                eprintln!("--- {name}");
                tail.iter().rev().for_each(|line| eprintln!("{line}"));
            }
        }
        kill_hard(self.mount.take());
        detach(&self.path("mnt"));
        for node in &mut self.nodes {
            kill_hard(node.take());
        }
        if self.in_memory() {
            detach(&self.node_directory(self.nodes.len() - 1));
        }
        for index in 0..self.nodes.len() {
            let intermediates = self.node_directory(index).join("intermediates");
            if let Ok(shared) = std::fs::read_link(&intermediates) {
                // The directory may no longer exist.
                let _ = std::fs::remove_dir_all(shared);
            } else if intermediates.exists() {
                detach(&intermediates);
            }
        }
        kill_hard(self.server.take());
    }
}

/// Small device: a file system in memory. It is deleted when no process uses it any more.
pub(crate) struct Device(PathBuf);

impl Device {
    /// Makes the device, of `size` in the form for `mount`, and its directory.
    pub(crate) fn new(path: PathBuf, size: &str) -> Self {
        std::fs::create_dir_all(&path).unwrap();
        let options = format!("size={size}");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(&path)
            .status();
        assert!(mounted.unwrap().success(), "tmpfs can't be mounted");
        Self(path)
    }

    /// Fills all free space.
    pub(crate) fn fill(&self) {
        let mut file = std::fs::File::options();
        let mut file = file
            .create(true)
            .append(true)
            .open(self.0.join("filler"))
            .unwrap();
        while std::io::Write::write(&mut file, &[0; 4096]).is_ok_and(|count| count > 0) {}
    }

    /// Frees the space that [`Self::fill`] used.
    pub(crate) fn free(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Another mount of a cluster.
pub(crate) struct OtherMount {
    child: Child,
    pub(crate) path: PathBuf,
}

impl OtherMount {
    pub(crate) fn start(cluster: &Cluster, name: &str) -> Self {
        let path = cluster.path(name);
        std::fs::create_dir_all(&path).unwrap();
        let mut command = cluster.tidemill();
        command.arg("mount").arg("--path").arg(&path);
        if cluster.options.remote {
            command.args(["--in-place", "false"]);
        }
        let child = command.stderr(Stdio::null()).spawn().unwrap();
        wait("another mount exists", || path.join(".tidemill").exists());
        Self { child, path }
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        send(Some(&self.child), signal);
    }
}

impl Drop for OtherMount {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        detach(&self.path);
    }
}

/// Returns whether this machine allows mounts. If not, prints a message, and fails if mounts are required.
pub(crate) fn can_mount() -> bool {
    let root =
        std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
    let fuse = Path::new("/dev/fuse").exists();
    if root && fuse {
        return true;
    }
    crate::require::skip(&format!(
        "it needs root (have it: {root}) and /dev/fuse (have it: {fuse})"
    ));
    false
}

/// Returns a directory of user 65534, whose mounts use `fusermount3`; the shell command `also` must succeed, too. If not, prints a message
/// and returns `None`.
pub(crate) fn directory_of_nobody(also: &str) -> Option<tempfile::TempDir> {
    if !can_mount() {
        return None;
    }
    let all = format!("command -v fusermount3 && command -v setpriv && {also}");
    let found = Command::new("sh").args(["-c", &all]).output();
    if !found.unwrap().status.success() {
        crate::require::skip(&format!("it needs fusermount3, setpriv and: {also}"));
        return None;
    }
    let directory = tempfile::Builder::new()
        .prefix("tidemill-e2e-")
        .tempdir()
        .unwrap();
    std::os::unix::fs::chown(directory.path(), Some(65534), Some(65534)).unwrap();
    Some(directory)
}

/// Copies the program. Another process does so: a child of this process might have the copy open for writing when it is executed.
pub(crate) fn copy_program(to: &Path) {
    let program = env!("CARGO_BIN_EXE_tidemill");
    let copied = Command::new("cp").arg(program).arg(to).status();
    assert!(copied.unwrap().success());
}

/// Waits until `ready` returns true, and calls it repeatedly.
pub(crate) fn wait(what: &str, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < PATIENCE, "gave up waiting until {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub(crate) fn spawn(command: &mut Command, log: &Path) -> Child {
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(log)
        .unwrap();
    let log_too = log.try_clone().unwrap();
    command
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(log_too)
        .spawn()
        .unwrap()
}

/// Kills like `kill -9`: no process can clean up.
fn kill_hard(child: Option<Child>) {
    if let Some(mut child) = child {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

fn send(child: Option<&Child>, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(child.unwrap());
    rustix::process::kill_process(pid, signal).unwrap();
}

fn detach(path: &Path) {
    // If nothing was mounted, this is no error.
    let _ = Command::new("umount")
        .arg("-l")
        .arg(path)
        .stderr(Stdio::null())
        .status();
    // A mount that was killed leaves its directory immutable, if the file system supports that.
    let _ = Command::new("chattr")
        .arg("-i")
        .arg(path)
        .stderr(Stdio::null())
        .status();
}

pub(crate) fn printed(output: Output) -> Printed {
    Printed {
        ok: output.status.success(),
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
