//! NATS servers for tests, started from the program that `NATS_SERVER` names or that is on the path.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    missing_debug_implementations,
    clippy::unwrap_used,
    reason = "shared by tests, and each test uses a part"
)]

use rustix::process::{Pid, Signal, kill_process};
use std::fmt::Write as _;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// NATS servers that store their data in a temporary directory. Several servers form a NATS cluster.
pub struct Broker {
    directory: tempfile::TempDir,
    program: PathBuf,
    servers: Vec<Server>,
}

struct Server {
    port: u16,
    process: Option<Child>,
}

/// Password of all NATS servers.
pub const PASSWORD: &str = "hush/hush";

/// NATS subjects to which the user of tests may write, as in docs/network.md.
const ALLOWED: &str = r#""tidemill.>", "$JS.API.>", "$JS.ACK.>""#;

fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = || std::env::split_paths(&path).map(|directory| directory.join("nats-server"));
    let named = std::env::var_os("NATS_SERVER").map(PathBuf::from);
    named
        .into_iter()
        .chain(on_path())
        .find(|program| program.exists())
}

/// Returns TCP ports that are free at the moment.
fn ports(count: usize) -> Vec<u16> {
    let bound: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    bound
        .iter()
        .map(|one| one.local_addr().unwrap().port())
        .collect()
}

impl Broker {
    /// Creates `count` NATS servers without starting them. Returns `None` and calls `tell` if the NATS program does not exist.
    pub fn new(count: usize, tell: fn(&str)) -> Option<Self> {
        let Some(program) = program() else {
            tell("no nats-server; scripts/nats.sh install builds one");
            return None;
        };
        let directory = tempfile::tempdir().unwrap();
        let (clients, routes) = (ports(count), ports(count));
        for index in 0..count {
            configure(directory.path(), index, &clients, &routes);
        }
        let server = |port| Server {
            port,
            process: None,
        };
        Some(Self {
            directory,
            program,
            servers: clients.into_iter().map(server).collect(),
        })
    }

    /// Creates NATS servers as [`Self::new`] does, and starts them.
    pub fn start(count: usize, tell: fn(&str)) -> Option<Self> {
        let mut broker = Self::new(count, tell)?;
        (0..count).for_each(|index| broker.begin(index));
        Some(broker)
    }

    /// Starts a NATS server, and waits until the server accepts connections.
    pub fn begin(&mut self, index: usize) {
        let config = self.directory.path().join(format!("{index}.conf"));
        let log = std::fs::File::create(config.with_extension("log")).unwrap();
        let process = Command::new(&self.program)
            .arg("-c")
            .arg(config)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let server = &mut self.servers[index];
        server.process = Some(process);
        while TcpStream::connect(("127.0.0.1", server.port)).is_err() {
            std::thread::sleep(Duration::from_millis(10));
            let ended = server.process.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "a server has ended: {ended:?}");
        }
    }

    /// Kills a NATS server as `kill -9` does.
    pub fn kill(&mut self, index: usize) {
        let mut process = self.servers[index].process.take().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Makes a NATS server hang.
    pub fn stop(&self, index: usize) {
        self.signal(index, Signal::STOP);
    }

    /// Lets a hanging NATS server continue.
    pub fn go_on(&self, index: usize) {
        self.signal(index, Signal::CONT);
    }

    fn signal(&self, index: usize, signal: Signal) {
        let process = self.servers[index].process.as_ref().unwrap();
        kill_process(Pid::from_child(process), signal).unwrap();
    }

    /// Returns the addresses of the NATS servers, with user and password.
    pub fn url(&self) -> String {
        let password = PASSWORD.replace('/', "%2F");
        let one = |server: &Server| format!("nats://mill:{password}@127.0.0.1:{}", server.port);
        self.servers.iter().map(one).collect::<Vec<_>>().join(",")
    }
}

fn configure(directory: &Path, index: usize, clients: &[u16], routes: &[u16]) {
    // A single server with `sync_interval: always` would sync after each message.
    let sync = if routes.len() > 1 {
        "sync_interval: always"
    } else {
        ""
    };
    let mut text = format!(
        "server_name: n{index}\nlisten: \"127.0.0.1:{}\"\n\
         jetstream {{ store_dir: \"{}\", {sync} }}\n\
         authorization {{ users: [{{ user: mill, password: \"{PASSWORD}\", permissions: {{ publish: [{ALLOWED}], \
         subscribe: \"_INBOX.>\" }} }}] }}\n",
        clients[index],
        directory.join(index.to_string()).display(),
    );
    if routes.len() > 1 {
        let all: Vec<String> = routes
            .iter()
            .map(|port| format!("\"nats-route://127.0.0.1:{port}\""))
            .collect();
        let own = routes[index];
        let all = all.join(", ");
        writeln!(
            text,
            "cluster {{ name: mill, listen: \"127.0.0.1:{own}\", routes: [{all}] }}"
        )
        .unwrap();
    }
    std::fs::write(directory.join(format!("{index}.conf")), text).unwrap();
}

impl Drop for Broker {
    fn drop(&mut self) {
        for server in &mut self.servers {
            if let Some(process) = &mut server.process {
                let _ = process.kill();
                let _ = process.wait();
            }
        }
    }
}
