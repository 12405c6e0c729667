//! The calibration file: how fast kernels are on this machine and on nodes. `tidemill kernel bench` writes it,
//! `tidemill plan offload` reads it. Field by field in `docs/formats.md`.

use crate::output::atomic_file;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Version of the format. Files of other versions are refused: a new measurement takes a minute.
pub(crate) const VERSION: u32 = 1;

/// Measurements of one machine and of nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Calibration {
    version: u32,
    /// Name of the machine that measured.
    pub(crate) host: String,
    /// Cores of that machine.
    pub(crate) cores: u32,
    /// Median time to start a command there, in nanoseconds; 0 if it was not measured.
    pub(crate) command_ns: u64,
    /// Kernels on that machine.
    #[serde(default, rename = "kernel")]
    pub(crate) kernels: Vec<KernelSpeed>,
    /// Nodes with their kernels.
    #[serde(default, rename = "node")]
    pub(crate) nodes: Vec<NodeSpeed>,
}

/// A kernel on one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KernelSpeed {
    /// Name, as in a job file.
    pub(crate) name: String,
    /// Arguments.
    pub(crate) args: Vec<String>,
    /// Hash of its code, as in lineage.
    pub(crate) hash: String,
    /// Time of the measurement, in UTC.
    pub(crate) measured: String,
    /// Seed of its generated input.
    pub(crate) seed: u64,
    /// Bytes of its input.
    pub(crate) input_bytes: u64,
    /// Bytes of its result.
    pub(crate) output_bytes: u64,
    /// Number of runs.
    pub(crate) runs: u32,
    /// Median time of a run over almost no bytes, in nanoseconds.
    pub(crate) start_ns: u64,
    /// Bytes of input per second on one core in the fastest run, without the start.
    pub(crate) bytes_per_sec: f64,
    /// Share of a processor that a kernel got just before the measurement.
    pub(crate) share: f64,
    /// The same rate on all cores together, with one run on each; only for the machine that measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) all_cores_bytes_per_sec: Option<f64>,
}

impl KernelSpeed {
    /// Bytes of input per second on a processor of its own.
    pub(crate) fn alone_bytes_per_sec(&self) -> f64 {
        self.bytes_per_sec / self.share
    }
}

/// A node as seen from the machine that measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NodeSpeed {
    /// Id of its cluster, in hexadecimal.
    pub(crate) cluster: String,
    /// Id of the node.
    pub(crate) id: u32,
    /// Bytes per second that the machine read from it.
    pub(crate) link_bytes_per_sec: f64,
    /// Time to read a small file, in nanoseconds.
    pub(crate) link_latency_ns: u64,
    /// Median time until a command is connected with the cluster, in nanoseconds; 0 if it was not measured.
    pub(crate) connect_ns: u64,
    /// Kernels on the node. Their `start_ns` lasts from the submission until the watching client knows the end of the
    /// job.
    #[serde(default, rename = "kernel")]
    pub(crate) kernels: Vec<KernelSpeed>,
}

/// Error of a calibration file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CalibrationError {
    /// The file does not exist.
    #[error("no calibration: {} does not exist; measure with `tidemill kernel bench`", .0.display())]
    Missing(PathBuf),
    /// The file can't be read or written.
    #[error("can't read or write {}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file is no calibration.
    #[error("{} is not a calibration file", path.display())]
    Text {
        /// Path of the file.
        path: PathBuf,
        /// Place and cause.
        source: toml::de::Error,
    },
    /// The file has another version.
    #[error("{} is of version {found}, this program reads version {VERSION}; remove it and measure again with `tidemill kernel bench`", path.display())]
    Version {
        /// Path of the file.
        path: PathBuf,
        /// Version of the file.
        found: i64,
    },
    /// A measurement has an impossible value.
    #[error("{}: kernel {kernel}: `{field}` has an impossible value; measure again with `tidemill kernel bench {kernel}`", path.display())]
    NotPositive {
        /// Path of the file.
        path: PathBuf,
        /// The kernel.
        kernel: String,
        /// The field.
        field: &'static str,
    },
}

impl Calibration {
    /// Returns a calibration without measurements.
    pub(crate) fn new(host: String, cores: u32) -> Self {
        Self {
            version: VERSION,
            host,
            cores,
            command_ns: 0,
            kernels: Vec::new(),
            nodes: Vec::new(),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If the file does not exist, or is no calibration of a known version.
    pub(crate) fn load(path: &Path) -> Result<Self, CalibrationError> {
        let text = fs::read_to_string(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => CalibrationError::Missing(path.into()),
            _ => CalibrationError::File {
                path: path.into(),
                source,
            },
        })?;
        Self::parse(&text, path)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, CalibrationError> {
        let wrong = |source| CalibrationError::Text {
            path: path.into(),
            source,
        };
        let table: toml::Table = toml::from_str(text).map_err(wrong)?;
        let found = table.get("version").and_then(toml::Value::as_integer);
        match found {
            Some(found) if found != i64::from(VERSION) => {
                return Err(CalibrationError::Version {
                    path: path.into(),
                    found,
                });
            }
            _ => {}
        }
        let read: Self = toml::from_str(text).map_err(wrong)?;
        let on_nodes = read.nodes.iter().flat_map(|node| &node.kernels);
        for kernel in read.kernels.iter().chain(on_nodes) {
            let (rate, share) = (kernel.bytes_per_sec, kernel.share);
            let field = if !(rate > 0.0 && rate.is_finite()) {
                "bytes_per_sec"
            } else if !(share > 0.0 && share <= 1.0) {
                "share"
            } else if kernel.input_bytes == 0 {
                "input_bytes"
            } else {
                continue;
            };
            return Err(CalibrationError::NotPositive {
                path: path.into(),
                kernel: kernel.name.clone(),
                field,
            });
        }
        Ok(read)
    }

    /// Writes the file as a whole, or leaves the previous file.
    ///
    /// # Errors
    /// If the file can't be written.
    pub(crate) fn save(&self, path: &Path) -> anyhow::Result<()> {
        let text = toml::to_string(self)?;
        let at = |source| CalibrationError::File {
            path: path.into(),
            source,
        };
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(at)?;
        }
        atomic_file::write(path, text.as_bytes())
    }

    /// Returns a kernel on the machine that measured.
    pub(crate) fn kernel(&self, name: &str) -> Option<&KernelSpeed> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }

    /// Returns a node of a cluster.
    pub(crate) fn node(&self, cluster: &str, id: u32) -> Option<&NodeSpeed> {
        self.nodes
            .iter()
            .find(|node| node.cluster == cluster && node.id == id)
    }

    /// Replaces the measured link of a node, and its kernels by name.
    pub(crate) fn keep_node(&mut self, new: NodeSpeed) {
        let same = |old: &&mut NodeSpeed| old.cluster == new.cluster && old.id == new.id;
        if let Some(old) = self.nodes.iter_mut().find(same) {
            old.link_bytes_per_sec = new.link_bytes_per_sec;
            old.link_latency_ns = new.link_latency_ns;
            old.connect_ns = new.connect_ns;
            for kernel in new.kernels {
                keep(&mut old.kernels, kernel);
            }
        } else {
            self.nodes.push(new);
        }
    }
}

/// Replaces the measurement of a kernel by its name.
pub(crate) fn keep(kernels: &mut Vec<KernelSpeed>, new: KernelSpeed) {
    kernels.retain(|kernel| kernel.name != new.name);
    kernels.push(new);
    kernels.sort_by(|one, other| one.name.cmp(&other.name));
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = include_str!("../tests/calibration.toml");

    fn parse(text: &str) -> Result<Calibration, CalibrationError> {
        Calibration::parse(text, Path::new("c.toml"))
    }

    #[test]
    fn calibration_round_trips() {
        let read = parse(TEXT).unwrap();
        assert_eq!((read.version, read.command_ns), (VERSION, 9_000_000));
        assert_eq!(read.kernel("max").unwrap().start_ns, 900_000);
        let node = read.node("00000000000000aa", 2).unwrap();
        assert_eq!(node.kernels[0].name, "max");
        assert!(read.node("00000000000000ab", 2).is_none());
        assert_eq!(toml::to_string(&read).unwrap(), TEXT);
    }

    #[test]
    fn calibration_error_names_file_and_field() {
        let error = parse(&TEXT.replace("version = 1", "version = 7")).unwrap_err();
        assert!(
            error.to_string().contains("c.toml is of version 7"),
            "{error}"
        );
        let error = parse(&TEXT.replace("bytes_per_sec = 2500000000.0", "bytes_per_sec = 0.0"));
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("c.toml: kernel max: `bytes_per_sec`"),
            "{error}"
        );
        let error = parse(&TEXT.replace("share = 0.5", "share = 1.5")).unwrap_err();
        assert!(error.to_string().contains("`share`"), "{error}");
        let error = parse("version = 1\nhost = 3\n").unwrap_err();
        let error = format!("{:#}", anyhow::Error::from(error));
        assert!(
            error.contains("c.toml") && error.contains("line 2"),
            "{error}"
        );
        let error = Calibration::load(Path::new("/no/such/file")).unwrap_err();
        assert!(
            error.to_string().contains("tidemill kernel bench"),
            "{error}"
        );
    }

    #[test]
    fn calibration_keep_replaces_only_measured_entries() {
        let mut all = parse(TEXT).unwrap();
        let mut again = all.kernels[0].clone();
        again.start_ns = 1;
        keep(&mut all.kernels, again.clone());
        assert_eq!(all.kernels.len(), parse(TEXT).unwrap().kernels.len());
        assert_eq!(all.kernel(&again.name).unwrap().start_ns, 1);
        let mut node = all.nodes[0].clone();
        node.kernels[0].name = "od".into();
        all.keep_node(node);
        assert_eq!(all.nodes.len(), 1);
        assert_eq!(all.nodes[0].kernels.len(), 2);
    }

    #[test]
    fn calibration_save_writes_whole_file_without_leftovers() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/calibration.toml");
        let all = parse(TEXT).unwrap();
        all.save(&path).unwrap();
        all.save(&path).unwrap();
        assert_eq!(Calibration::load(&path).unwrap(), all);
        assert_eq!(fs::read_dir(directory.path().join("a")).unwrap().count(), 1);
    }
}
