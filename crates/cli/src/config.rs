//! The configuration file `tidemill.toml`, and how its values combine with flags and environment.
//!
//! Every key is also a flag of the same name: keys of `[node]` are flags of `tidemill node run`, and keys of
//! `[client]` are flags of every command. The precedence is flag, environment (`TIDEMILL_*`), file, default; clap
//! handles the first two. This module reads the file and never writes it.

pub(crate) mod keys;

use crate::format::{ByteSize, OrOff, QueueText, ReplicaCount, TimeLength};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use tidemill_node::backend::packs::Packing;
use tidemill_plan::units::{MoneyPerJoule, Price, Watts};

/// Contents of the file. Any other key is an error.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct ConfigFile {
    /// Directory of the cluster that `tidemill up` makes.
    pub(crate) dir: Option<PathBuf>,
    /// Whether TCP connections use TLS.
    pub(crate) tls: Option<TlsMode>,
    /// Keys for every command that uses a server.
    pub(crate) client: ClientSection,
    /// `tidemill server run`.
    pub(crate) server: ServerSection,
    /// `tidemill node run`.
    pub(crate) node: NodeSection,
    /// `tidemill mount`.
    pub(crate) mount: MountSection,
    /// `tidemill up`.
    pub(crate) up: UpSection,
    /// `tidemill submit`.
    pub(crate) submit: Submit,
}

/// Whether TCP connections use TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TlsMode {
    /// Always
    On,
    /// Never: anybody on the network can read data and token
    Off,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct ClientSection {
    pub(crate) server: Option<String>,
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct ServerSection {
    pub(crate) data_dir: Option<PathBuf>,
    pub(crate) listen: Option<std::net::SocketAddr>,
    pub(crate) tls_names: Option<Vec<String>>,
    pub(crate) socket: Option<PathBuf>,
    pub(crate) server_cores: Option<u32>,
    pub(crate) server_cores_listen: Option<std::net::SocketAddr>,
    pub(crate) policy: Option<String>,
    pub(crate) node_timeout: Option<TimeLength>,
    pub(crate) keep_jobs: Option<TimeLength>,
    pub(crate) link: Option<ByteSize>,
    pub(crate) replicas: Option<ReplicaCount>,
    pub(crate) repair_after: Option<TimeLength>,
    pub(crate) scrub_every: Option<OrOff<TimeLength>>,
    pub(crate) migration_rate: Option<ByteSize>,
    pub(crate) queue: Option<QueueText>,
    pub(crate) log: Option<QueueText>,
    pub(crate) standby: Option<bool>,
    pub(crate) stage_out_after: Option<TimeLength>,
    pub(crate) evict_above: Option<u8>,
    pub(crate) evict_to: Option<u8>,
    pub(crate) burst_full: Option<BurstFull>,
    pub(crate) reserve_max: Option<u8>,
    pub(crate) burst_share: Option<u8>,
    pub(crate) suspend_after: Option<OrOff<TimeLength>>,
    pub(crate) suspend: Option<String>,
    pub(crate) resume: Option<String>,
    pub(crate) resume_limit: Option<TimeLength>,
    pub(crate) jobs_each: Option<u32>,
    pub(crate) workspaces_each: Option<ByteSize>,
    /// Commands for single nodes, by number.
    pub(crate) nodes: BTreeMap<String, SuspendCommands>,
}

/// Commands that suspend and resume the host of one node.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct SuspendCommands {
    pub(crate) suspend: Option<String>,
    pub(crate) resume: Option<String>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct NodeSection {
    pub(crate) id: Option<u32>,
    pub(crate) data_dir: Option<PathBuf>,
    pub(crate) listen: Option<std::net::SocketAddr>,
    pub(crate) url: Option<String>,
    pub(crate) cores: Option<u32>,
    pub(crate) memory: Option<ByteSize>,
    pub(crate) resources: Option<Resources>,
    pub(crate) kernels: Option<KernelPriority>,
    pub(crate) kernels_memory: Option<ByteSize>,
    pub(crate) task_dirs: Option<Vec<PathBuf>>,
    pub(crate) kernels_path: Option<Vec<PathBuf>>,
    pub(crate) kernels_environment: Option<Vec<String>>,
    pub(crate) capacity: Option<ByteSize>,
    pub(crate) intermediate_memory: Option<ByteSize>,
    pub(crate) link: Option<ByteSize>,
    pub(crate) device_rate: Option<ByteSize>,
    pub(crate) busy_power: Option<Watts>,
    pub(crate) idle_power: Option<Watts>,
    pub(crate) suspended_power: Option<Watts>,
    pub(crate) power_meter: Option<String>,
    pub(crate) input_cache: Option<ByteSize>,
    pub(crate) in_place: Option<bool>,
    pub(crate) scrub_rate: Option<OrOff<ByteSize>>,
    pub(crate) role: Option<NodeRole>,
    pub(crate) tier: Option<NodeTier>,
    pub(crate) backend: Option<String>,
    pub(crate) backend_keys: Option<PathBuf>,
    pub(crate) backend_format: Option<Packing>,
    pub(crate) backend_cache: Option<ByteSize>,
}

/// Named resources, `gpu=2,licence.x=1`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Resources(pub(crate) BTreeMap<String, u64>);

impl TryFrom<String> for Resources {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Resources {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        tidemill_model::resources::parse(text).map(Self)
    }
}

/// Processor priority of kernels on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum KernelPriority {
    /// Kernels only use idle processor time
    Idle,
    /// Kernels share the processors with all other programs
    Normal,
}

/// Tier of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum NodeTier {
    /// Files stay on the node
    Capacity,
    /// New files are written there first, and are staged out to nodes of the capacity tier
    Burst,
    /// This machine's memory: lost with the machine
    Memory,
}

/// Treatment of new files when the burst tier is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum BurstFull {
    /// Wait until files are staged out
    Wait,
    /// Write them to nodes of the capacity tier
    Capacity,
}

/// Role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum NodeRole {
    /// Keeps data and runs kernels
    Store,
    /// Only lends cores
    ServerCores,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct MountSection {
    pub(crate) path: Option<PathBuf>,
    pub(crate) in_place: Option<bool>,
    pub(crate) allow_other: Option<bool>,
    pub(crate) attr_ttl: Option<TimeLength>,
    pub(crate) cached_files: Option<u64>,
    pub(crate) remote_timeout: Option<TimeLength>,
    pub(crate) patience: Option<TimeLength>,
    pub(crate) hard: Option<bool>,
}

/// Power of nodes and price of energy, which no machine reports.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct Submit {
    /// Power of a node with all cores busy.
    pub(crate) busy_power: Option<Watts>,
    /// Power of a node with no core busy.
    pub(crate) idle_power: Option<Watts>,
    /// Price of energy.
    pub(crate) energy_price: Option<Price<MoneyPerJoule>>,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct UpSection {
    pub(crate) nodes: Option<u32>,
    pub(crate) memory_tier: Option<ByteSize>,
    pub(crate) burst: Option<PathBuf>,
    pub(crate) backend: Option<String>,
    pub(crate) backend_keys: Option<PathBuf>,
    pub(crate) backend_format: Option<Packing>,
}

/// Error of the configuration file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The file can't be read.
    #[error("can't read the configuration: {path}: {source}; name another file with --config")]
    Read {
        /// The file.
        path: String,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The file is not TOML, or has an unknown key or a bad value.
    #[error(
        "bad configuration: {path}:{line}: {what}; examples/tidemill.toml shows every key there is"
    )]
    Parse {
        /// The file.
        path: String,
        /// The line, from 1.
        line: usize,
        /// The cause, with the name of the key.
        what: String,
    },
}

impl ConfigFile {
    /// Reads `named`, or else the first of the usual places that exists. Without a file, the configuration is empty.
    ///
    /// # Errors
    /// If the file can't be read or has a key that does not exist.
    pub(crate) fn load(named: Option<&Path>) -> Result<Self, ConfigError> {
        match located(named) {
            Some(path) => Self::parse(&read(&path)?, &path),
            None => Ok(Self::default()),
        }
    }

    fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start.min(text.len()));
            ConfigError::Parse {
                path: path.display().to_string(),
                line: text[..start].matches('\n').count() + 1,
                what: error.message().replace('\n', " "),
            }
        })
    }
}

/// Returns the file to read: `named`, or else the first of the usual places that exists.
pub(crate) fn located(named: Option<&Path>) -> Option<PathBuf> {
    let usual = || usual_places().into_iter().find(|path| path.exists());
    named.map(Path::to_path_buf).or_else(usual)
}

/// Returns the text of a configuration file.
///
/// # Errors
/// If the file can't be read.
pub(crate) fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.display().to_string(),
        source,
    })
}

/// Returns the places to search for the file if no flag names it.
fn usual_places() -> Vec<PathBuf> {
    let home = std::env::var_os("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config")));
    home.into_iter()
        .map(|directory| directory.join("tidemill/tidemill.toml"))
        .chain([PathBuf::from("/etc/tidemill.toml")])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    const EXAMPLE: &str = include_str!("../../../examples/tidemill.toml");

    /// Returns the example with all keys, which are commented out in the file.
    fn example_with_all_keys() -> String {
        let uncomment = |line: &str| match line.strip_prefix('#') {
            Some(rest) if !rest.starts_with(' ') && rest.contains(" = ") => rest.to_owned(),
            _ => line.to_owned(),
        };
        EXAMPLE
            .lines()
            .map(uncomment)
            .collect::<Vec<_>>()
            .join("\n")
    }

    #[test]
    fn example_config_is_empty_until_uncommented_and_sets_all_keys() {
        assert_eq!(
            ConfigFile::parse(EXAMPLE, Path::new("x")).unwrap(),
            ConfigFile::default()
        );
        let all = ConfigFile::parse(&example_with_all_keys(), Path::new("x")).unwrap();
        let shown = format!("{all:?}");
        assert!(!shown.contains("None"), "{shown}");
    }

    #[test]
    fn every_config_key_is_a_flag_and_an_environment_variable() {
        let table: toml::Table = example_with_all_keys().parse().unwrap();
        let cli = Cli::command();
        let known = keys::keys(&cli);
        let mut checked = 0;
        for (section, value) in &table {
            let (section, keys): (_, Vec<&String>) = match value.as_table() {
                Some(keys) => (section.as_str(), keys.keys().collect()),
                None => ("", vec![section]),
            };
            for key in keys {
                let everywhere = ["", "client"].contains(&section);
                let prefix = match everywhere {
                    true => String::new(),
                    false => format!("{section}_"),
                };
                let variable = format!("TIDEMILL_{prefix}{key}")
                    .to_uppercase()
                    .replace('-', "_");
                let found = known
                    .iter()
                    .find(|one| one.section == section && one.name() == *key)
                    .unwrap_or_else(|| panic!("[{section}] {key} has no flag"));
                assert_eq!(found.variable(), variable, "[{section}] {key}");
                checked += 1;
            }
        }
        assert_eq!(checked, known.len(), "the example has every key");
    }

    #[test]
    fn duration_without_unit_is_refused_with_its_line() {
        let keys = [
            ("server", "node-timeout"),
            ("server", "suspend-after"),
            ("server", "scrub-every"),
            ("mount", "attr-ttl"),
            ("mount", "remote-timeout"),
            ("mount", "patience"),
        ];
        for (section, key) in keys {
            for value in ["10", "\"10\""] {
                let text = format!("[{section}]\n\n{key} = {value}\n");
                let error = ConfigFile::parse(&text, Path::new("t.toml"));
                let error = error.unwrap_err().to_string();
                let names = error.contains("t.toml:3:") && error.contains("has no unit");
                assert!(names, "{error}");
            }
            let text = format!("[{section}]\n{key} = \"10s\"\n");
            ConfigFile::parse(&text, Path::new("t.toml")).unwrap();
        }
    }

    #[test]
    fn unknown_config_key_is_named_with_its_line() {
        let text = "dir = \"/a\"\n[node]\ncores = 2\nkores = 3\n";
        let error = ConfigFile::parse(text, Path::new("t.toml"))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("t.toml:4:") && error.contains("`kores`"),
            "{error}"
        );
        let error = ConfigFile::parse("[nodes]\n", Path::new("t.toml"))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("t.toml:1:") && error.contains("`nodes`"),
            "{error}"
        );
        let error = ConfigFile::parse("\n[up]\nnodes = -1\n", Path::new("t.toml"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("t.toml:3:"), "{error}");
    }
}
