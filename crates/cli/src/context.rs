//! Context of every command: the configuration, paths, the printer and the connection.

use crate::args::Global;
use crate::config::{ConfigFile, TlsMode};
use crate::output::Output;
use anyhow::Context as _;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use tidemill_client::transfer::Transfer;
use tidemill_client::{Credential, Endpoint, Server};
use tidemill_wire::v1;

/// Settings of this call.
#[derive(Debug)]
pub(crate) struct CommandContext {
    /// The global flags as given.
    pub(crate) global: Global,
    /// The configuration file.
    pub(crate) config: ConfigFile,
    /// Printer of results.
    pub(crate) output: Output,
    /// Directory of the cluster of `up`.
    pub(crate) cluster: ClusterDir,
}

/// The directory of a cluster that `up` makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClusterDir(PathBuf);

impl ClusterDir {
    /// The directory itself.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// The server's directory.
    pub(crate) fn server(&self) -> PathBuf {
        self.0.join("server")
    }

    /// The server's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.server().join("server.sock")
    }

    /// A node's directory.
    pub(crate) fn node(&self, id: u32) -> PathBuf {
        self.0.join(format!("node-{id}"))
    }

    /// File with the capacity of the node of the memory tier, as text; it exists only with such a node.
    pub(crate) fn memory_tier(&self) -> PathBuf {
        self.0.join("memory-tier")
    }

    /// File with the address of the store of the external node. A second line can name the file of its keys.
    pub(crate) fn backend(&self) -> PathBuf {
        self.0.join("backend.uri")
    }

    /// File with the directory of the node of the burst tier; it exists only with such a node.
    pub(crate) fn burst(&self) -> PathBuf {
        self.0.join("burst")
    }

    /// File with the measurements of `tidemill kernel bench`.
    pub(crate) fn calibration(&self) -> PathBuf {
        self.0.join("calibration.toml")
    }

    /// Ids of the nodes that have a directory here, in order.
    pub(crate) fn nodes(&self) -> Vec<u32> {
        let names = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        let mut ids: Vec<u32> = names
            .filter_map(|entry| {
                entry
                    .file_name()
                    .to_str()?
                    .strip_prefix("node-")?
                    .parse()
                    .ok()
            })
            .collect();
        ids.sort_unstable();
        ids
    }

    /// Default mountpoint.
    pub(crate) fn mount(&self) -> PathBuf {
        self.0.join("mnt")
    }

    /// Records the mountpoint that `up` uses.
    ///
    /// # Errors
    /// If the file can't be written.
    pub(crate) fn note_mountpoint(&self, path: &Path) -> anyhow::Result<()> {
        let note = self.mountpoint_note();
        let written = std::fs::create_dir_all(self.0.join("run"))
            .and_then(|()| std::fs::write(&note, path.as_os_str().as_bytes()));
        written.with_context(|| note.display().to_string())
    }

    /// Returns the mountpoint of the last `up`, or the default.
    pub(crate) fn noted_mountpoint(&self) -> PathBuf {
        std::fs::read(self.mountpoint_note()).map_or_else(
            |_| self.mount(),
            |path| PathBuf::from(std::ffi::OsString::from_vec(path)),
        )
    }

    fn mountpoint_note(&self) -> PathBuf {
        self.0.join("run").join("mountpoint")
    }

    /// The log of a process of the cluster.
    pub(crate) fn log(&self, process: &str) -> PathBuf {
        self.0.join("log").join(format!("{process}.log"))
    }

    /// The pid file of a process of the cluster.
    pub(crate) fn pid_file(&self, process: &str) -> PathBuf {
        self.0.join("run").join(format!("{process}.pid"))
    }
}

impl CommandContext {
    /// Determines the directory of the cluster.
    ///
    /// # Errors
    /// If neither flags nor environment give a directory for the cluster.
    pub(crate) fn new(global: &Global, config: ConfigFile) -> anyhow::Result<Self> {
        let dir = global.dir.clone().or_else(|| config.dir.clone());
        let dir = dir.map_or_else(default_dir, Ok)?;
        let dir = std::path::absolute(&dir).with_context(|| dir.display().to_string())?;
        Ok(Self {
            output: Output {
                json: global.json,
                columns: global.columns.clone(),
                command: global.command.clone(),
            },
            cluster: ClusterDir(dir),
            global: global.clone(),
            config,
        })
    }

    /// Sends the program's events to standard error. `level` applies if neither -v nor `TIDEMILL_LOG` is given.
    pub(crate) fn start_log(&self, level: &str) {
        let level = match self.global.verbose {
            0 => level,
            1 => "info",
            _ => "debug",
        };
        let filter = std::env::var("TIDEMILL_LOG").unwrap_or_else(|_| level.into());
        let filter = tracing_subscriber::EnvFilter::try_new(&filter)
            .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
        // A second start (in tests) keeps the first log.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .try_init();
    }

    /// Returns the address of the server.
    ///
    /// # Errors
    /// If the address in the configuration is malformed.
    pub(crate) fn endpoint(&self) -> anyhow::Result<Endpoint> {
        if let Some(endpoint) = &self.global.server {
            return Ok(endpoint.clone());
        }
        match &self.config.client.server {
            Some(text) => Ok(text
                .parse()
                .context("`server` of [client] in the configuration")?),
            None => Ok(Endpoint::Unix(self.cluster.socket())),
        }
    }

    /// Returns the flags by which another process of this program finds the same cluster from any working directory.
    pub(crate) fn forwarded(&self) -> Vec<OsString> {
        let mut flags: Vec<OsString> = vec!["--dir".into(), self.cluster.path().into()];
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.into());
        let files = [
            ("--token-file", &self.global.token_file),
            ("--config", &self.global.config),
        ];
        for (flag, path) in files {
            if let Some(path) = path {
                flags.extend([flag.into(), absolute(path).into()]);
            }
        }
        if self.global.tls == Some(TlsMode::Off) {
            flags.extend(["--tls".into(), "off".into()]);
        }
        flags
    }

    /// Returns the credential to show: the named file; else the file of the configuration, if this user may read it; else
    /// the user's own file; else the token of the cluster of `tidemill up`.
    fn shown_credential(&self) -> anyhow::Result<Credential> {
        if let Some(named) = &self.global.token_file {
            return Ok(Credential::read(named)?);
        }
        let own = own_token_file().filter(|path| path.exists());
        if let Some(path) = &self.config.client.token_file {
            match Credential::read(path) {
                // The host's token is for root and its mounts.
                Err(error) if own.is_some() && error.is_absent_or_private() => {}
                read => return Ok(read?),
            }
        }
        match own {
            Some(path) => {
                Credential::check_private(&path)?;
                Ok(Credential::read(&path)?)
            }
            None => Ok(Credential::read(&self.cluster.server().join("token"))?),
        }
    }

    /// Returns the known paths of a cluster, its keys and its tokens on this host; some may not exist.
    pub(crate) fn private(&self) -> Vec<PathBuf> {
        let directories = [
            Some(self.cluster.path().to_owned()),
            self.config.server.data_dir.clone(),
        ];
        let client = &self.config.client;
        let tokens = [
            self.global.token_file.clone(),
            client.token_file.clone(),
            own_token_file(),
        ];
        directories.into_iter().chain(tokens).flatten().collect()
    }

    /// Whether TCP connections use TLS.
    pub(crate) fn tls(&self) -> bool {
        let chosen = self.global.tls.or(self.config.tls);
        chosen.unwrap_or(TlsMode::On) == TlsMode::On
    }

    /// Returns the content of the token file, if the endpoint needs a token.
    ///
    /// # Errors
    /// If the file can't be read, or its content would cross the network unencrypted.
    pub(crate) fn credential(&self, endpoint: &Endpoint) -> anyhow::Result<Option<Credential>> {
        match endpoint {
            Endpoint::Unix(_) => return Ok(None),
            plain if plain.is_plain() => anyhow::ensure!(
                !self.tls(),
                "no TLS: {plain} would send the cluster's token over the network for all to read; write https://, \
                 or give --tls off if the server was started with it"
            ),
            _ => {}
        }
        Ok(Some(self.shown_credential()?))
    }

    /// Connects to the server.
    ///
    /// # Errors
    /// If the server can't be reached.
    pub(crate) async fn connect(&self) -> anyhow::Result<Server> {
        let endpoint = self.endpoint()?;
        let credential = self.credential(&endpoint)?;
        let connected = Server::connect(&endpoint, credential.as_ref()).await;
        let is_named = self.global.server.is_some() || self.config.client.server.is_some();
        connected.map_err(|error| match error {
            error @ tidemill_client::Error::Unreachable { .. } if !is_named => {
                let unnamed = format!(
                    "no server is named, and no cluster of `tidemill up` runs in {}: name the server (`--server https://HOST:PORT`, \
                     TIDEMILL_SERVER, or `server` of [client] in /etc/tidemill.toml), or begin a cluster on this host (`tidemill up`)",
                    self.cluster.path().display()
                );
                anyhow::Error::new(error).context(unnamed)
            }
            error => error.into(),
        })
    }

    /// Connects for copying files.
    ///
    /// # Errors
    /// If the server can't be reached.
    pub(crate) async fn transfer(&self) -> anyhow::Result<Transfer> {
        Ok(Transfer::new(self.connect().await?, credentials()))
    }

    /// Whether progress may be drawn on standard error.
    pub(crate) fn draws(&self) -> bool {
        !self.global.quiet && !self.global.json && std::io::stderr().is_terminal()
    }

    /// Whether the user wants results only.
    pub(crate) fn quiet(&self) -> bool {
        self.global.quiet
    }

    /// Prints a note on standard error, unless `--quiet` is given.
    pub(crate) fn note(&self, text: impl std::fmt::Display) {
        if !self.global.quiet {
            eprintln!("{}", tidemill_model::display::lines(&text.to_string()));
        }
    }
}

/// Path of the user's own token.
pub(crate) fn own_token_file() -> Option<PathBuf> {
    let config = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".config"));
    Some(config.or_else(home)?.join("tidemill/token"))
}

/// Returns the rights of this process.
pub(crate) fn credentials() -> v1::Credentials {
    v1::Credentials {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        groups: rustix::process::getgroups()
            .unwrap_or_default()
            .into_iter()
            .map(rustix::process::Gid::as_raw)
            .collect(),
        checked: false,
    }
}

fn default_dir() -> anyhow::Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib/tidemill".into());
    }
    let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from);
    data.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share")))
        .map(|directory| directory.join("tidemill"))
        .context("no directory for the cluster: neither HOME nor XDG_DATA_HOME is set; give --dir")
}
