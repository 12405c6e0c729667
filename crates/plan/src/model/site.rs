//! The user's site, `site.toml`: a machine, its network, devices and analysis nodes, applications and kernels.
//!
//! `examples/site/jaguar.toml` shows every key with its meaning. Whatever is wrong is an error that names file and
//! line: a key that is unknown or missing, a unit that does not fit, a size or number that is zero or negative.

use super::corrections::Corrections;
use super::feasible;
use super::setting::{Run, Stage, StageKind};
use crate::units::{
    Bytes, BytesPerSecond, Dollars, DollarsPerJoule, JoulesPerByte, Seconds, SecondsPerByte, Watts,
};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, Visitor};
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use thiserror::Error;
use toml::Spanned;

/// Why a site file can't be used.
#[derive(Debug, Error)]
pub enum SiteError {
    /// It can't be read.
    #[error("can't read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is not TOML, or has a key that is missing, unknown or of a wrong value.
    #[error("{}:{line}: {}", path.display(), error.message())]
    Content {
        /// The file.
        path: PathBuf,
        /// Line, from 1; where a key is missing, the line of its table.
        line: usize,
        /// What is wrong.
        error: Box<toml::de::Error>,
    },
    /// Two applications or two kernels of one name.
    #[error("{}:{line}: there are two {what} named \"{name}\"; give each its own name", path.display())]
    Duplicate {
        /// The file.
        path: PathBuf,
        /// Line of the second, from 1.
        line: usize,
        /// "applications" or "kernels".
        what: &'static str,
        /// The name.
        name: String,
    },
    /// The network has too little, or too much, to know the bandwidth of a busy link.
    #[error(
        "{}:{line}: [network] needs either busy-bandwidth or all of idle-bandwidth, links and diameter",
        path.display()
    )]
    Network {
        /// The file.
        path: PathBuf,
        /// Line of the table, from 1.
        line: usize,
    },
    /// A list with nothing in it.
    #[error("{}:{line}: `{what}` is empty; give at least one [[{what}]]", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// Line of the list, from 1.
        line: usize,
        /// "application" or "kernel".
        what: &'static str,
    },
}

macro_rules! number {
    ($(#[$doc:meta])* $type:ident, $expected:literal, $valid:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
        pub struct $type(f64);

        impl $type {
            /// The number.
            pub const fn get(self) -> f64 {
                self.0
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let value = deserializer.deserialize_f64(NumberVisitor($expected))?;
                let valid: fn(f64) -> bool = $valid;
                if value.is_finite() && valid(value) {
                    return Ok(Self(value));
                }
                Err(D::Error::custom(format_args!("{value} is not {}", $expected)))
            }
        }
    };
}

number! {
    /// A number of whole things.
    Count, "a whole number above zero", |value| value >= 1.0 && value.fract() == 0.0
}

number! {
    /// A number above zero.
    Positive, "a number above zero", |value| value > 0.0
}

number! {
    /// A number of at least 1.
    Factor, "a number of at least 1", |value| value >= 1.0
}

number! {
    /// A share of a whole.
    Share, "a share above 0 and up to 1", |value| value > 0.0 && value <= 1.0
}

struct NumberVisitor(&'static str);

impl Visitor<'_> for NumberVisitor {
    type Value = f64;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0)
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<f64, E> {
        Ok(value)
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<f64, E> {
        // Beyond 2^53 a count loses its last digits, which no model can tell.
        Ok(value as f64)
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<f64, E> {
        Ok(value as f64)
    }
}

/// A site.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Site {
    /// What it is called.
    pub name: String,
    /// The compute nodes and their file system.
    pub machine: Machine,
    /// What joins them.
    pub network: Network,
    /// How applications run, unless one says otherwise.
    pub run: Running,
    /// A device to stage output on.
    pub device: Device,
    /// A node to analyse on, in the machine or offline.
    pub analysis_node: AnalysisNode,
    /// Prices that don't belong to one part.
    pub cost: Cost,
    /// Applications, in the file's order.
    #[serde(rename = "application")]
    pub applications: Vec<Application>,
    /// Kernels, in the file's order.
    #[serde(rename = "kernel")]
    pub kernels: Vec<Kernel>,
}

/// `[machine]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Machine {
    /// N.
    pub nodes: Count,
    /// Idle power of a simulation node.
    pub idle_power: Watts,
    /// BW_PFS.
    pub file_system: BytesPerSecond,
    /// U_time.
    pub upgrade_interval: Seconds,
}

/// `[network]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Network {
    /// BW_busylink, if it was measured.
    pub busy_bandwidth: Option<BytesPerSecond>,
    /// BW_idlelink, to compute it from.
    pub idle_bandwidth: Option<BytesPerSecond>,
    /// L.
    pub links: Option<Count>,
    /// d_max.
    pub diameter: Option<Positive>,
    /// m.
    pub flit: Bytes,
    /// d.
    pub hops_to_io: Positive,
    /// e(d).
    pub energy_to_io: JoulesPerByte,
    /// e(d_s).
    pub energy_to_staging: JoulesPerByte,
}

/// `[run]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Running {
    /// t_sim.
    pub duration: Seconds,
    /// t_iter.
    pub output_interval: Seconds,
    /// num_chkpts.
    pub checkpoints_kept: Count,
    /// f_op.
    pub overprovisioning: Factor,
    /// α.
    pub reduction: Positive,
    /// f_restart.
    pub restart_fraction: Share,
    /// R that energy and cost are worked out for.
    pub staging_ratio: Factor,
}

/// `[device]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Device {
    /// Its model.
    pub name: String,
    /// C_SSD.
    pub capacity: Bytes,
    /// BW_sim-SSD.
    pub bandwidth: BytesPerSecond,
    /// BW_fm2c.
    pub flash_to_controller: BytesPerSecond,
    /// BW_c2m.
    pub controller_to_memory: BytesPerSecond,
    /// P_busy.
    pub busy_power: Watts,
    /// P_idle.
    pub idle_power: Watts,
    /// W_endurance.
    pub endurance: Bytes,
    /// Of one device.
    pub price: Dollars,
}

/// `[analysis-node]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AnalysisNode {
    /// Processors that analyse at the same time.
    pub processors: Count,
    /// C_mem.
    pub memory: Bytes,
    /// BW_mem.
    pub memory_bandwidth: BytesPerSecond,
    /// P_busy of the whole node.
    pub busy_power: Watts,
    /// P_idle of the whole node.
    pub idle_power: Watts,
    /// Of a node without its memory.
    pub price: Dollars,
    /// Of its memory.
    pub memory_price: Dollars,
}

/// `[cost]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Cost {
    /// What energy costs.
    pub energy_price: DollarsPerJoule,
    /// Runs of each application that are paid for.
    pub runs: Count,
}

/// `[[application]]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Application {
    name: Spanned<String>,
    /// λ_a.
    pub analysis: BytesPerSecond,
    /// λ_c; none when it makes no checkpoints.
    pub checkpoint: Option<BytesPerSecond>,
    /// t_sim of this application.
    pub duration: Option<Seconds>,
    /// t_iter of this application.
    pub output_interval: Option<Seconds>,
}

impl Application {
    /// What it is called.
    pub fn name(&self) -> &str {
        self.name.get_ref()
    }
}

/// `[[kernel]]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Kernel {
    name: Spanned<String>,
    /// T_SSD,k: its throughput on a device.
    pub device: BytesPerSecond,
    /// Its throughput on one processor of a node.
    pub processor: BytesPerSecond,
    /// α of this kernel.
    pub reduction: Option<Positive>,
}

impl Kernel {
    /// What it is called.
    pub fn name(&self) -> &str {
        self.name.get_ref()
    }
}

/// What is checked before the rest: enough to know the lines of whole tables.
#[derive(Deserialize)]
struct Tables {
    network: Spanned<toml::Value>,
    application: Spanned<toml::Value>,
    kernel: Spanned<toml::Value>,
}

pub(super) const JAGUAR: &str = include_str!("../../../../examples/site/jaguar.toml");

/// The paper's site, as in `examples/site/jaguar.toml`.
pub fn jaguar() -> Site {
    Site::parse(JAGUAR, Path::new("examples/site/jaguar.toml")).expect("the tests read this site")
}

impl Site {
    /// Reads a site file.
    ///
    /// # Errors
    /// See [`SiteError`]; each names the file, and the line where there is one.
    pub fn read(path: &Path) -> Result<Self, SiteError> {
        let text = std::fs::read_to_string(path).map_err(|source| SiteError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text, path)
    }

    /// A site from the text of a file; `path` is for errors only.
    ///
    /// # Errors
    /// See [`SiteError`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, SiteError> {
        let content = |error: toml::de::Error| SiteError::Content {
            path: path.to_owned(),
            line: line_of(text, error.span()),
            error: Box::new(error),
        };
        let site: Self = toml::from_str(text).map_err(content)?;
        let tables: Tables = toml::from_str(text).map_err(content)?;
        site.check(&tables, text, path)?;
        Ok(site)
    }

    /// What no single key can tell.
    fn check(&self, tables: &Tables, text: &str, path: &Path) -> Result<(), SiteError> {
        let network = &self.network;
        let idle_keys = [
            network.idle_bandwidth.is_some(),
            network.links.is_some(),
            network.diameter.is_some(),
        ];
        let wanted = network.busy_bandwidth.is_none();
        if idle_keys != [wanted; 3] {
            return Err(SiteError::Network {
                path: path.to_owned(),
                line: line_of(text, Some(tables.network.span())),
            });
        }
        let lists = [
            (
                "application",
                self.applications.is_empty(),
                tables.application.span(),
            ),
            ("kernel", self.kernels.is_empty(), tables.kernel.span()),
        ];
        for (what, empty, span) in lists {
            if empty {
                return Err(SiteError::Empty {
                    path: path.to_owned(),
                    line: line_of(text, Some(span)),
                    what,
                });
            }
        }
        let names = |what, names: Vec<&Spanned<String>>| -> Result<(), SiteError> {
            let mut seen = BTreeSet::new();
            match names.into_iter().find(|name| !seen.insert(name.get_ref())) {
                None => Ok(()),
                Some(name) => Err(SiteError::Duplicate {
                    path: path.to_owned(),
                    line: line_of(text, Some(name.span())),
                    what,
                    name: name.get_ref().clone(),
                }),
            }
        };
        names(
            "applications",
            self.applications.iter().map(|it| &it.name).collect(),
        )?;
        names("kernels", self.kernels.iter().map(|it| &it.name).collect())
    }

    /// BW_busylink, measured or computed (below Eq. 9).
    pub fn busy_link(&self) -> BytesPerSecond {
        let network = &self.network;
        network.busy_bandwidth.unwrap_or_else(|| {
            let known = "a site without busy-bandwidth has the other three";
            feasible::busy_link(
                network.idle_bandwidth.expect(known),
                network.links.expect(known).get(),
                self.machine.nodes.get(),
                network.diameter.expect(known).get(),
            )
        })
    }

    /// An application's run; with a kernel, what that leaves of the data counts.
    pub fn run_of(&self, application: &Application, kernel: Option<&Kernel>) -> Run {
        let reduction = kernel
            .and_then(|kernel| kernel.reduction)
            .unwrap_or(self.run.reduction);
        Run {
            nodes: self.machine.nodes.get(),
            file_system: self.machine.file_system,
            link: self.busy_link(),
            flit: self.network.flit,
            hops_to_io: self.network.hops_to_io.get(),
            energy_to_io: self.network.energy_to_io,
            analysis: application.analysis,
            checkpoint: application.checkpoint.unwrap_or(BytesPerSecond::ZERO),
            reduction: reduction.get(),
            interval: application
                .output_interval
                .unwrap_or(self.run.output_interval),
            duration: application.duration.unwrap_or(self.run.duration),
            checkpoints_kept: self.run.checkpoints_kept.get(),
            overprovisioning: self.run.overprovisioning.get(),
            restart_fraction: self.run.restart_fraction.get(),
            upgrade_interval: self.machine.upgrade_interval,
            waiting: self.machine.idle_power,
        }
    }

    /// The device as a place to stage on.
    pub fn device_stage(&self) -> Stage {
        let device = &self.device;
        Stage {
            kind: StageKind::Device,
            capacity: device.capacity,
            bandwidth: device.bandwidth,
            internal: device.flash_to_controller.inverse() + device.controller_to_memory.inverse(),
            busy: device.busy_power,
            idle: device.idle_power,
            endurance: Some(device.endurance),
            energy_to_stage: self.network.energy_to_staging,
        }
    }

    /// The analysis node as a place to stage on.
    pub fn node_stage(&self) -> Stage {
        let node = &self.analysis_node;
        Stage {
            kind: StageKind::Node,
            capacity: node.memory,
            bandwidth: node.memory_bandwidth,
            internal: SecondsPerByte::ZERO,
            busy: node.busy_power,
            idle: node.idle_power,
            endurance: None,
            energy_to_stage: self.network.energy_to_staging,
        }
    }

    /// T_a,node,k and T_server,k: a kernel's throughput on a whole node.
    pub fn node_throughput(&self, kernel: &Kernel, corrections: &Corrections) -> BytesPerSecond {
        if corrections.all_processors {
            kernel.processor * self.analysis_node.processors.get()
        } else {
            kernel.processor
        }
    }

    /// Price of an analysis node with its memory.
    pub fn node_price(&self) -> Dollars {
        self.analysis_node.price + self.analysis_node.memory_price
    }
}

fn line_of(text: &str, span: Option<Range<usize>>) -> usize {
    let start = span.map_or(0, |span| span.start).min(text.len());
    1 + text.as_bytes()[..start]
        .iter()
        .filter(|&&byte| byte == b'\n')
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The line a text stands on in the example, from 1.
    fn line_with(text: &str) -> usize {
        1 + JAGUAR.lines().position(|line| line.contains(text)).unwrap()
    }

    fn error_after(old: &str, new: &str) -> String {
        assert!(JAGUAR.contains(old), "{old}");
        let text = JAGUAR.replacen(old, new, 1);
        Site::parse(&text, Path::new("site.toml"))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn the_example_is_a_site() {
        let site = Site::parse(JAGUAR, Path::new("jaguar.toml")).unwrap();
        assert_eq!(site.name, "Jaguar");
        assert_eq!((site.applications.len(), site.kernels.len()), (6, 7));
        assert_eq!(site.node_price(), Dollars::new(1010.0));
        assert_eq!(site.busy_link(), "814 MB/s".parse().unwrap());
    }

    /// What is changed in the example, into what, and how the error starts.
    const WRONG: &[(&str, &str, &str)] = &[
        (
            "nodes = 18000",
            "nodes = 0",
            "0 is not a whole number above zero",
        ),
        (
            "nodes = 18000",
            "nodes = 1.5",
            "1.5 is not a whole number above zero",
        ),
        (
            "nodes = 18000",
            "nodes = \"many\"",
            "invalid type: string \"many\", expected a whole number above zero",
        ),
        (
            "capacity = \"64 GB\"",
            "capacity = \"64 gigs\"",
            "unknown unit \"gigs\" in \"64 gigs\"; a size is in B",
        ),
        (
            "capacity = \"64 GB\"",
            "capacity = \"-64 GB\"",
            "\"-64 GB\" is not above zero",
        ),
        (
            "capacity = \"64 GB\"",
            "capacity = \"0 GB\"",
            "\"0 GB\" is not above zero",
        ),
        (
            "capacity = \"64 GB\"",
            "capacity = \"64\"",
            "\"64\" has no unit",
        ),
        (
            "capacity = \"64 GB\"",
            "capacity = 64",
            "invalid type: integer `64`, expected a size with its unit",
        ),
        (
            "restart-fraction = 0.05",
            "restart-fraction = 5",
            "5 is not a share above 0 and up to 1",
        ),
        (
            "staging-ratio = 10",
            "staging-ratio = 0.5",
            "0.5 is not a number of at least 1",
        ),
        (
            "endurance = \"300 TB\"",
            "durability = \"300 TB\"",
            "unknown field `durability`, expected one of",
        ),
        (
            "analysis = \"170 KB/s\"",
            "analysis = \"170 KB\"",
            "unknown unit \"KB\" in \"170 KB\"; a rate is in",
        ),
        (
            "name = \"GYRO\"",
            "name = \"GTC\"",
            "there are two applications named \"GTC\"",
        ),
        (
            "name = \"grep\"",
            "name = \"mean\"",
            "there are two kernels named \"mean\"",
        ),
        ("flit = \"32 B\"", "flit = 32 B", ""),
    ];

    #[test]
    fn errors_name_file_and_line() {
        for &(old, new, message) in WRONG {
            let error = error_after(old, new);
            let expected = format!("site.toml:{}: {message}", line_with(old));
            assert!(error.starts_with(&expected), "{error}\nis not\n{expected}");
        }
    }

    #[test]
    fn a_missing_key_names_its_table() {
        for (table, key) in [
            ("[device]", "endurance = \"300 TB\"\n"),
            ("[run]", "duration = \"24 h\"\n"),
            ("[[application]]", "analysis = \"4400 KB/s\"\n"),
            ("[[kernel]]", "device = \"416 MB/s\"\n"),
        ] {
            let error = error_after(key, "");
            let name = key.split(' ').next().unwrap();
            let expected = format!("site.toml:{}: missing field `{name}`", line_with(table));
            assert!(error.starts_with(&expected), "{error}\nis not\n{expected}");
        }
        let error = error_after("[cost]", "[prices]");
        assert!(
            error.starts_with("site.toml:") && error.contains("prices"),
            "{error}"
        );
    }

    #[test]
    fn a_busy_link_is_measured_or_computed() {
        let idle = "idle-bandwidth = \"3 GB/s\"\nlinks = 54000\ndiameter = 30";
        let text = JAGUAR.replacen("busy-bandwidth = \"814 MB/s\"", idle, 1);
        let site = Site::parse(&text, Path::new("site.toml")).unwrap();
        assert_eq!(
            site.busy_link(),
            BytesPerSecond::new(0.1 * 3.0 * 1_073_741_824.0)
        );
        let line = line_with("[network]");
        for text in [
            "links = 54000",
            "busy-bandwidth = \"1 GB/s\"\nlinks = 54000",
        ] {
            let error = error_after("busy-bandwidth = \"814 MB/s\"", text);
            let expected = format!("site.toml:{line}: [network] needs either");
            assert!(error.starts_with(&expected), "{error}");
        }
    }

    #[test]
    fn lists_may_not_be_empty() {
        let (head, _) = JAGUAR.split_once("[[kernel]]").unwrap();
        let text = format!("kernel = []\n{head}");
        let error = Site::parse(&text, Path::new("site.toml"))
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "site.toml:1: `kernel` is empty; give at least one [[kernel]]"
        );
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = Site::read(Path::new("nowhere/site.toml"))
            .unwrap_err()
            .to_string();
        assert_eq!(error, "can't read nowhere/site.toml");
    }

    #[test]
    fn an_application_or_kernel_may_have_its_own_ways() {
        let text = JAGUAR
            .replacen(
                "analysis = \"170 KB/s\"\ncheckpoint = \"85 KB/s\"",
                "analysis = \"170 KB/s\"\nduration = \"12 h\"",
                1,
            )
            .replacen(
                "device = \"416 MB/s\"",
                "device = \"416 MB/s\"\nreduction = 0.01",
                1,
            );
        let site = Site::parse(&text, Path::new("site.toml")).unwrap();
        let run = site.run_of(&site.applications[3], Some(&site.kernels[0]));
        assert_eq!(run.duration, "12 h".parse().unwrap());
        assert_eq!(run.checkpoint, BytesPerSecond::ZERO);
        assert!((run.reduction - 0.01).abs() < 1e-12);
        assert!((site.run_of(&site.applications[3], None).reduction - 1.0).abs() < 1e-12);
    }
}
