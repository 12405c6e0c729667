//! The user's site, `site.toml`: a machine, its network, devices and analysis nodes, applications and kernels. This module reads and checks
//! the site file.
//!
//! `examples/site/jaguar.toml` shows every key with its meaning. Each fault is an error that names file and line. Faults are an unknown or
//! missing key, a wrong unit, a size or number that is zero, negative or absurd, and prices in two currencies. Contradictions are faults,
//! too (a device that draws more power when it is idle than when it is busy).

use super::corrections::Corrections;
use super::feasible;
use super::setting::{AnalysisStage, ApplicationRun, StageKind};
use crate::suggestions;
use crate::units::{
    Bytes, BytesPerSecond, Currency, JoulesPerByte, Money, MoneyPerJoule, Price, Seconds,
    SecondsPerByte, Watts,
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

/// Maximum number of simulation nodes of a site's machine.
pub const NODES_MAX: u64 = 100_000_000;
/// Maximum number of links of a site's network.
pub const LINKS_MAX: u64 = 10_000_000_000;
/// Maximum number of processors of a site's analysis node.
pub const PROCESSORS_MAX: u64 = 65_536;
/// Maximum number of checkpoints that are kept, and of runs that are paid for.
pub const RUNS_MAX: u64 = 1_000_000_000;
/// Maximum number of applications, and of kernels, of a site: a report has a line for each pair of them.
pub const ROWS_MAX: usize = 256;
/// Maximum value of numbers that are not counts: hops, factors, ratios of sizes.
const NUMBER_MAX: f64 = 1e9;
/// Maximum length of a name in a site file, in characters.
const NAME_CHARS_MAX: usize = 100;

/// Error of a site file.
#[derive(Debug, Error)]
pub enum SiteError {
    /// The site file can't be read.
    #[error("can't read {}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error that the operating system reported.
        source: io::Error,
    },
    /// The file is not TOML, or has a missing, unknown or invalid key.
    #[error("{}:{line}: {}", path.display(), suggestions::with_suggestion(error.message()))]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// Line of the error, from 1; for a missing key, the line of its table.
        line: usize,
        /// Error of the parser.
        error: Box<toml::de::Error>,
    },
    /// The keys are valid one by one, but contradict each other.
    #[error("{}:{line}: {fault}", path.display())]
    Fault {
        /// Path of the file.
        path: PathBuf,
        /// Line of the contradiction, from 1.
        line: usize,
        /// Contradiction between keys.
        fault: SiteFault,
    },
}

/// Fault in keys that are valid one by one.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum SiteFault {
    /// Two applications or two kernels have the same name; the reported line is that of the second.
    #[error("there are two {what} named \"{name}\"; give each its own name")]
    Duplicate {
        /// `applications` or `kernels`.
        what: &'static str,
        /// Name that occurs twice.
        name: String,
    },
    /// The network has too few keys, or too many, to determine the bandwidth of a busy link.
    #[error("[network] needs either busy-bandwidth or all of idle-bandwidth, links and diameter")]
    Network,
    /// A list of applications or kernels is empty.
    #[error("`{0}` is empty; give at least one [[{0}]]")]
    Empty(&'static str),
    /// A list of applications or kernels has too many entries.
    #[error("there are more than {ROWS_MAX} [[{0}]]; give those that matter")]
    TooMany(&'static str),
    /// The idle power of a device or node is higher than its busy power.
    #[error(
        "[{table}] draws {idle} when it is idle and {busy} when it is busy; idle-power can't be above busy-power"
    )]
    IdleAboveBusy {
        /// Name of the table with both powers.
        table: &'static str,
        /// P_idle: power when idle.
        idle: Watts,
        /// P_busy: power when busy.
        busy: Watts,
    },
    /// A run ends before its first output.
    #[error(
        "an output every {interval} in a run of {duration}: there is none; output-interval can't be above duration"
    )]
    IntervalAboveDuration {
        /// t_iter: time from one output to the next.
        interval: Seconds,
        /// t_sim: compute time of a run.
        duration: Seconds,
    },
    /// A staging ratio is above the number of nodes of the machine.
    #[error(
        "a staging ratio of {0} is above the {1} nodes of the machine: one device for all of them is {1}"
    )]
    RatioAboveNodes(f64, f64),
    /// A staging ratio is below 1.
    #[error("a staging ratio of {0} is less than one node for each device")]
    RatioBelowOne(f64),
    /// Prices are in two currencies.
    #[error("this price is in {second}, and that of [device] in {first}; give all in one currency")]
    Currencies {
        /// Currency of the first price.
        first: Currency,
        /// Currency of a later price.
        second: Currency,
    },
}

macro_rules! number {
    ($(#[$doc:meta])* $type:ident, $expected:literal, $valid:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
        pub struct $type(f64);

        impl $type {
            /// Returns the value of the number.
            pub const fn get(self) -> f64 {
                self.0
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let valid: fn(f64) -> bool = $valid;
                number(deserializer, $expected, valid).map(Self)
            }
        }
    };
}

/// Parses a number and checks that it is in its range.
fn number<'de, D: Deserializer<'de>>(
    deserializer: D,
    expected: &str,
    valid: impl Fn(f64) -> bool,
) -> Result<f64, D::Error> {
    /// Value from which a number is not shown with all digits.
    const LARGE: f64 = 1e15;
    let value = deserializer.deserialize_f64(NumberVisitor(expected))?;
    if valid(value) {
        return Ok(value);
    }
    Err(if value.abs() >= LARGE && value.is_finite() {
        D::Error::custom(format_args!("{value:e} is not {expected}"))
    } else {
        D::Error::custom(format_args!("{value} is not {expected}"))
    })
}

/// Count of items, from 1 to a maximum.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Count<const MAX: u64>(f64);

impl<const MAX: u64> Count<MAX> {
    /// Returns the count as a floating-point number.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl<'de, const MAX: u64> Deserialize<'de> for Count<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = format!("a whole number from 1 to {MAX}");
        #[expect(clippy::cast_precision_loss, reason = "the bounds are far below 2^53")]
        let valid = |value: f64| (1.0..=MAX as f64).contains(&value) && value.fract() == 0.0;
        number(deserializer, &expected, valid).map(Self)
    }
}

number! {
    /// A number above zero and up to 1e9.
    Positive, "a number above zero and up to 1e9", |value| value > 0.0 && value <= NUMBER_MAX
}

number! {
    /// A number from 1 to 1e9.
    Factor, "a number from 1 to 1e9", |value| (1.0..=NUMBER_MAX).contains(&value)
}

number! {
    /// A share of a whole, above 0 and up to 1.
    Share, "a share above 0 and up to 1", |value| value > 0.0 && value <= 1.0
}

struct NumberVisitor<'a>(&'a str);

impl Visitor<'_> for NumberVisitor<'_> {
    type Value = f64;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0)
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<f64, E> {
        Ok(value)
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<f64, E> {
        // Beyond 2^53 a count loses its last digits, which does not matter for any model.
        Ok(value as f64)
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<f64, E> {
        Ok(value as f64)
    }
}

/// Name of a site, an application or a kernel, as shown in tables and errors.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SiteName(String);

impl SiteName {
    /// Returns the name as the site file contains it.
    pub fn get(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SiteName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for SiteName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let problem = if name.trim().is_empty() {
            "a name can't be empty".to_owned()
        } else if name.contains(char::is_control) {
            "a name can't have control characters".to_owned()
        } else if name.trim() != name {
            "a name can't begin or end with white space".to_owned()
        } else if name.chars().count() > NAME_CHARS_MAX {
            format!("a name has at most {NAME_CHARS_MAX} characters")
        } else {
            return Ok(Self(name));
        };
        Err(D::Error::custom(problem))
    }
}

/// A site: machine, network, applications, kernels and prices.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Site {
    /// Name of the site.
    pub name: SiteName,
    /// Compute nodes of the site and their file system.
    pub machine: SiteMachine,
    /// Network between the compute nodes.
    pub network: SiteNetwork,
    /// Default run of all applications.
    pub run: SiteRun,
    /// Device on which output is staged.
    pub device: Device,
    /// Node that analyses output, in the machine or offline.
    pub analysis_node: AnalysisNode,
    /// Prices that do not belong to a device or node.
    pub cost: SiteCost,
    /// Applications of the site, in the file's order.
    #[serde(rename = "application")]
    pub applications: Vec<SiteApplication>,
    /// Kernels of the site, in the file's order.
    #[serde(rename = "kernel")]
    pub kernels: Vec<SiteKernel>,
}

/// Table `[machine]` of a site file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SiteMachine {
    /// N: number of compute nodes that simulate.
    pub nodes: Count<NODES_MAX>,
    /// Idle power of a simulation node.
    pub idle_power: Watts,
    /// BW_PFS: bandwidth of the parallel file system for all nodes together.
    pub file_system: BytesPerSecond,
    /// U_time: time from one upgrade of the machine to the next.
    pub upgrade_interval: Seconds,
}

/// Table `[network]` of a site file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SiteNetwork {
    /// BW_busylink: bandwidth of a link when all nodes use it, if the bandwidth was measured.
    pub busy_bandwidth: Option<BytesPerSecond>,
    /// BW_idlelink: bandwidth of an idle link, from which BW_busylink is computed.
    pub idle_bandwidth: Option<BytesPerSecond>,
    /// L: number of links of the network.
    pub links: Option<Count<LINKS_MAX>>,
    /// d_max: diameter of the network, in hops.
    pub diameter: Option<Positive>,
    /// m: size of a packet of the network.
    pub flit: Bytes,
    /// d: number of hops from the place of staging to the nearest I/O node.
    pub hops_to_io: Positive,
    /// e(d): energy of moving data over the hops to the nearest I/O node, per byte.
    pub energy_to_io: JoulesPerByte,
    /// e(d_s): energy of moving data from a simulation node to the place of staging, per byte.
    pub energy_to_staging: JoulesPerByte,
}

/// Table `[run]` of a site file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SiteRun {
    /// t_sim: compute time of an application's run.
    pub duration: Seconds,
    /// t_iter: time from one output of an application to the next.
    pub output_interval: Spanned<Seconds>,
    /// num_chkpts: number of checkpoints kept at the place of staging.
    pub checkpoints_kept: Count<RUNS_MAX>,
    /// f_op: space bought for each byte of space needed.
    pub overprovisioning: Factor,
    /// α: size of the output of analysis, as a share of its input.
    pub reduction: Positive,
    /// f_restart: share of the output interval that reading a checkpoint may take.
    pub restart_fraction: Share,
    /// Staging ratio R at which energy and cost are computed.
    staging_ratio: Spanned<Factor>,
}

/// Table `[device]` of a site file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Device {
    /// Model name of the device.
    pub name: SiteName,
    /// C_SSD: capacity of the device.
    pub capacity: Bytes,
    /// BW_sim-SSD: bandwidth of writes from simulation nodes.
    pub bandwidth: BytesPerSecond,
    /// BW_fm2c: bandwidth from flash to the controller.
    pub flash_to_controller: BytesPerSecond,
    /// BW_c2m: bandwidth from the controller to its memory.
    pub controller_to_memory: BytesPerSecond,
    /// P_busy: power of the device when it is busy.
    pub busy_power: Watts,
    /// P_idle: power of the device when it is idle.
    pub idle_power: Spanned<Watts>,
    /// W_endurance: bytes that may be written during the life of the device.
    pub endurance: Bytes,
    /// Price of one device.
    pub price: Spanned<Price<Money>>,
}

/// Table `[analysis-node]` of a site file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AnalysisNode {
    /// Number of processors that analyse at the same time.
    pub processors: Count<PROCESSORS_MAX>,
    /// C_mem: capacity of the node's memory.
    pub memory: Bytes,
    /// BW_mem: bandwidth of the node's memory.
    pub memory_bandwidth: BytesPerSecond,
    /// P_busy: power of the whole node when it is busy.
    pub busy_power: Watts,
    /// P_idle: power of the whole node when it is idle.
    pub idle_power: Spanned<Watts>,
    /// Price of a node without its memory.
    pub price: Spanned<Price<Money>>,
    /// Price of the node's memory.
    pub memory_price: Spanned<Price<Money>>,
}

/// Table `[cost]` of a site file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SiteCost {
    /// Price of energy, per joule.
    pub energy_price: Spanned<Price<MoneyPerJoule>>,
    /// Number of runs of each application that are paid for.
    pub runs: Count<RUNS_MAX>,
}

/// Table `[[application]]` of a site file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SiteApplication {
    name: Spanned<SiteName>,
    /// λ_a: rate of data to analyse that one node produces.
    pub analysis: BytesPerSecond,
    /// λ_c: rate of checkpoint data that one node produces; `None` if the application writes no checkpoints.
    pub checkpoint: Option<BytesPerSecond>,
    /// t_sim of this application, if it differs from the site's default.
    pub duration: Option<Spanned<Seconds>>,
    /// t_iter of this application, if it differs from the site's default.
    pub output_interval: Option<Spanned<Seconds>>,
}

impl SiteApplication {
    /// Returns the name of the application.
    pub fn name(&self) -> &str {
        self.name.get_ref().get()
    }
}

/// Table `[[kernel]]` of a site file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SiteKernel {
    name: Spanned<SiteName>,
    /// T_SSD,k: throughput of the kernel on a device.
    pub device: BytesPerSecond,
    /// Throughput of the kernel on one processor of an analysis node.
    pub processor: BytesPerSecond,
    /// α of this kernel, if it differs from the site's default.
    pub reduction: Option<Positive>,
}

impl SiteKernel {
    /// Returns the name of the kernel.
    pub fn name(&self) -> &str {
        self.name.get_ref().get()
    }
}

/// Tables of a site file that are parsed first, with the positions of whole tables for errors.
#[derive(Deserialize)]
struct Tables {
    network: Spanned<toml::Value>,
    application: Spanned<toml::Value>,
    kernel: Spanned<toml::Value>,
}

pub(super) const JAGUAR: &str = include_str!("../../../../examples/site/jaguar.toml");

/// Returns the paper's site, as in `examples/site/jaguar.toml`.
pub fn jaguar() -> Site {
    Site::parse(JAGUAR, Path::new("examples/site/jaguar.toml")).expect("the tests read this site")
}

impl Site {
    /// Reads a site file.
    ///
    /// # Errors
    /// [`SiteError`] with the file, and the line if the error has a line.
    pub fn read(path: &Path) -> Result<Self, SiteError> {
        let text = std::fs::read_to_string(path).map_err(|source| SiteError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text, path)
    }

    /// Parses a site from the text of a file; `path` is only used in errors.
    ///
    /// # Errors
    /// [`SiteError`] with the fault in the text.
    pub fn parse(text: &str, path: &Path) -> Result<Self, SiteError> {
        let content = |error: toml::de::Error| SiteError::Content {
            path: path.to_owned(),
            line: line_of(text, error.span()),
            error: Box::new(error),
        };
        let site: Self = toml::from_str(text).map_err(content)?;
        let tables: Tables = toml::from_str(text).map_err(content)?;
        site.check(&tables)
            .map_err(|(span, fault)| SiteError::Fault {
                path: path.to_owned(),
                line: line_of(text, Some(span)),
                fault,
            })?;
        Ok(site)
    }

    /// Checks conditions of a site that involve several keys.
    fn check(&self, tables: &Tables) -> Result<(), Located> {
        let network = &self.network;
        let idle_keys = [
            network.idle_bandwidth.is_some(),
            network.links.is_some(),
            network.diameter.is_some(),
        ];
        let wanted = network.busy_bandwidth.is_none();
        if idle_keys != [wanted; 3] {
            return Err((tables.network.span(), SiteFault::Network));
        }
        let counts = (self.applications.len(), self.kernels.len());
        for (what, count, span) in [
            ("application", counts.0, tables.application.span()),
            ("kernel", counts.1, tables.kernel.span()),
        ] {
            match count {
                0 => return Err((span, SiteFault::Empty(what))),
                1..=ROWS_MAX => {}
                _ => return Err((span, SiteFault::TooMany(what))),
            }
        }
        let applications = self.applications.iter().map(|it| &it.name);
        distinct("applications", applications)?;
        distinct("kernels", self.kernels.iter().map(|it| &it.name))?;
        self.check_powers()?;
        self.check_times()?;
        self.check_prices()?;
        let ratio = &self.run.staging_ratio;
        let fault = self.ratio_fault(ratio.get_ref().get());
        fault.map_or(Ok(()), |fault| Err((ratio.span(), fault)))
    }

    fn check_powers(&self) -> Result<(), Located> {
        let (device, node) = (&self.device, &self.analysis_node);
        for (table, idle, busy) in [
            ("device", &device.idle_power, device.busy_power),
            ("analysis-node", &node.idle_power, node.busy_power),
        ] {
            let (span, idle) = (idle.span(), *idle.get_ref());
            if idle > busy {
                return Err((span, SiteFault::IdleAboveBusy { table, idle, busy }));
            }
        }
        Ok(())
    }

    fn check_times(&self) -> Result<(), Located> {
        let (interval, duration) = (&self.run.output_interval, self.run.duration);
        let long = |interval, duration| SiteFault::IntervalAboveDuration { interval, duration };
        if *interval.get_ref() > duration {
            return Err((interval.span(), long(*interval.get_ref(), duration)));
        }
        for application in &self.applications {
            let run = self.run_of(application, None);
            let own = [&application.output_interval, &application.duration];
            let span = own.into_iter().flatten().map(Spanned::span).next();
            if let Some(span) = span.filter(|_| run.interval > run.duration) {
                return Err((span, long(run.interval, run.duration)));
            }
        }
        Ok(())
    }

    fn check_prices(&self) -> Result<(), Located> {
        let (node, energy) = (&self.analysis_node, &self.cost.energy_price);
        let others = [
            (&node.price.get_ref().currency, node.price.span()),
            (
                &node.memory_price.get_ref().currency,
                node.memory_price.span(),
            ),
            (&energy.get_ref().currency, energy.span()),
        ];
        let first = self.currency();
        match others.into_iter().find(|(second, _)| *second != first) {
            None => Ok(()),
            Some((second, span)) => {
                let (first, second) = (first.clone(), second.clone());
                Err((span, SiteFault::Currencies { first, second }))
            }
        }
    }

    fn ratio_fault(&self, ratio: f64) -> Option<SiteFault> {
        let nodes = self.machine.nodes.get();
        if ratio > nodes {
            return Some(SiteFault::RatioAboveNodes(ratio, nodes));
        }
        let below = ratio.is_nan() || ratio < 1.0;
        below.then_some(SiteFault::RatioBelowOne(ratio))
    }

    /// Returns the staging ratio R at which feasibility, energy and cost are computed.
    pub fn staging_ratio(&self) -> f64 {
        self.run.staging_ratio.get_ref().get()
    }

    /// Returns the same site with another staging ratio.
    ///
    /// # Errors
    /// The ratio is below 1 or above the number of nodes.
    pub fn at_ratio(mut self, ratio: f64) -> Result<Self, SiteFault> {
        if let Some(fault) = self.ratio_fault(ratio) {
            return Err(fault);
        }
        *self.run.staging_ratio.get_mut() = Factor(ratio);
        Ok(self)
    }

    /// Returns the currency of all prices of the site.
    pub fn currency(&self) -> &Currency {
        &self.device.price.get_ref().currency
    }

    /// Returns BW_busylink of the site's network, measured or computed (below Eq. 9).
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

    /// Returns the run of an application on the site. With a kernel, the run's output is the data that the kernel leaves.
    pub fn run_of(
        &self,
        application: &SiteApplication,
        kernel: Option<&SiteKernel>,
    ) -> ApplicationRun {
        let reduction = kernel
            .and_then(|kernel| kernel.reduction)
            .unwrap_or(self.run.reduction);
        ApplicationRun {
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
                .as_ref()
                .map_or(*self.run.output_interval.get_ref(), |own| *own.get_ref()),
            duration: application
                .duration
                .as_ref()
                .map_or(self.run.duration, |own| *own.get_ref()),
            checkpoints_kept: self.run.checkpoints_kept.get(),
            overprovisioning: self.run.overprovisioning.get(),
            restart_fraction: self.run.restart_fraction.get(),
            upgrade_interval: self.machine.upgrade_interval,
            waiting: self.machine.idle_power,
        }
    }

    /// Returns the device as a place for staging.
    pub fn device_stage(&self) -> AnalysisStage {
        let device = &self.device;
        AnalysisStage {
            kind: StageKind::Device,
            capacity: device.capacity,
            bandwidth: device.bandwidth,
            internal: device.flash_to_controller.inverse() + device.controller_to_memory.inverse(),
            busy: device.busy_power,
            idle: *device.idle_power.get_ref(),
            endurance: Some(device.endurance),
            energy_to_stage: self.network.energy_to_staging,
        }
    }

    /// Returns the analysis node as a place for staging.
    pub fn node_stage(&self) -> AnalysisStage {
        let node = &self.analysis_node;
        AnalysisStage {
            kind: StageKind::Node,
            capacity: node.memory,
            bandwidth: node.memory_bandwidth,
            internal: SecondsPerByte::ZERO,
            busy: node.busy_power,
            idle: *node.idle_power.get_ref(),
            endurance: None,
            energy_to_stage: self.network.energy_to_staging,
        }
    }

    /// Returns T_a,node,k and T_server,k: a kernel's throughput on a whole node.
    pub fn node_throughput(
        &self,
        kernel: &SiteKernel,
        corrections: &Corrections,
    ) -> BytesPerSecond {
        if corrections.all_processors {
            kernel.processor * self.analysis_node.processors.get()
        } else {
            kernel.processor
        }
    }

    /// Returns the price of an analysis node with its memory.
    pub fn node_price(&self) -> Money {
        let node = &self.analysis_node;
        node.price.get_ref().amount + node.memory_price.get_ref().amount
    }

    /// Returns the price of a staging device.
    pub fn device_price(&self) -> Money {
        self.device.price.get_ref().amount
    }
}

/// Fault of a site file and its position in the text.
type Located = (Range<usize>, SiteFault);

fn distinct<'a>(
    what: &'static str,
    names: impl Iterator<Item = &'a Spanned<SiteName>>,
) -> Result<(), Located> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name.get_ref()) {
            let (span, name) = (name.span(), name.get_ref().get().to_owned());
            return Err((span, SiteFault::Duplicate { what, name }));
        }
    }
    Ok(())
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

    /// Returns the number of the line that contains a text in the example, from 1.
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
    fn jaguar_example_is_a_valid_site() {
        let site = Site::parse(JAGUAR, Path::new("jaguar.toml")).unwrap();
        assert_eq!(site.name.get(), "Jaguar");
        assert_eq!((site.applications.len(), site.kernels.len()), (6, 7));
        assert_eq!(site.node_price(), Money::new(1010.0));
        assert_eq!(site.busy_link(), "814 MiB/s".parse().unwrap());
    }

    /// Text in the example, its invalid replacement, and the start of the resulting error.
    const WRONG: &[(&str, &str, &str)] = &[
        (
            "nodes = 18000",
            "nodes = 0",
            "0 is not a whole number from 1 to 100000000",
        ),
        (
            "nodes = 18000",
            "nodes = 1.5",
            "1.5 is not a whole number from 1 to 100000000",
        ),
        (
            "nodes = 18000",
            "nodes = \"many\"",
            "invalid type: string \"many\", expected a whole number from 1 to 100000000",
        ),
        (
            "capacity = \"64 GiB\"",
            "capacity = \"64 gigs\"",
            "unknown unit \"gigs\" in \"64 gigs\"; a size is in B",
        ),
        (
            "capacity = \"64 GiB\"",
            "capacity = \"-64 GiB\"",
            "\"-64 GiB\" is not above zero",
        ),
        (
            "capacity = \"64 GiB\"",
            "capacity = \"0 GiB\"",
            "\"0 GiB\" is not above zero",
        ),
        (
            "capacity = \"64 GiB\"",
            "capacity = \"64\"",
            "\"64\" has no unit",
        ),
        (
            "capacity = \"64 GiB\"",
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
            "0.5 is not a number from 1 to 1e9",
        ),
        (
            "endurance = \"300 TiB\"",
            "durability = \"300 TiB\"",
            "unknown field `durability`, expected one of",
        ),
        (
            "analysis = \"170 KiB/s\"",
            "analysis = \"170 KiB\"",
            "unknown unit \"KiB\" in \"170 KiB\"; a rate is in",
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
        (
            "nodes = 18000",
            "nodes = 1e300",
            "1e300 is not a whole number from 1 to 100000000",
        ),
        (
            "nodes = 18000",
            "nodes = inf",
            "inf is not a whole number from 1 to 100000000",
        ),
        (
            "processors = 2",
            "processors = 1000000",
            "1000000 is not a whole number from 1 to 65536",
        ),
        (
            "runs = 146",
            "runs = 9000000000000000000",
            "9e18 is not a whole number from 1 to 1000000000",
        ),
        (
            "overprovisioning = 1.5",
            "overprovisioning = 1e12",
            "1000000000000 is not a number from 1 to 1e9",
        ),
        (
            "capacity = \"64 GiB\"",
            "capacity = \"1e40 GiB\"",
            "\"1e40 GiB\" is too much for a size",
        ),
        (
            "idle-power = \"0.09 W\"",
            "idle-power = \"4 W\"",
            "[device] draws 4 W when it is idle and 3 W when it is busy; idle-power can't be above",
        ),
        (
            "busy-power = \"190 W\"\nidle-power = \"63 W\"",
            "busy-power = \"60 W\"\nidle-power = \"63 W\"",
            "[analysis-node] draws 63 W when it is idle and 60 W when it is busy",
        ),
        (
            "output-interval = \"1 h\"",
            "output-interval = \"25 h\"",
            "an output every 1.042 d in a run of 1 d: there is none",
        ),
        (
            "staging-ratio = 10",
            "staging-ratio = 18001",
            "a staging ratio of 18001 is above the 18000 nodes of the machine",
        ),
        ("name = \"Jaguar\"", "name = \"\"", "a name can't be empty"),
        (
            "name = \"Samsung PM830\"",
            "name = \" \\t\"",
            "a name can't be empty",
        ),
        ("name = \"GYRO\"", "name = \"\"", "a name can't be empty"),
        (
            "name = \"grep\"",
            "name = \"gr\\nep\"",
            "a name can't have control characters",
        ),
        (
            "name = \"grep\"",
            "name = \"mean \"",
            "a name can't begin or end with white space",
        ),
        (
            "memory-price = \"$400\"",
            "memory-price = \"400 EUR\"",
            "this price is in EUR, and that of [device] in $; give all in one currency",
        ),
        (
            "energy-price = \"$0.30/kWh\"",
            "energy-price = \"€0.30/kWh\"",
            "this price is in €, and that of [device] in $",
        ),
        (
            "price = \"$100\"",
            "price = \"100\"",
            "\"100\" has no currency; write a price as",
        ),
        (
            "endurance = \"300 TiB\"",
            "endurence = \"300 TiB\"",
            "unknown field `endurence`",
        ),
        ("[device]", "[devise]", "unknown field `devise`"),
    ];

    #[test]
    fn misspelt_site_key_error_suggests_the_intended_key() {
        for (right, wrong, meant) in [
            ("endurance =", "endurence =", "endurance"),
            ("[device]", "[devise]", "device"),
            ("[[kernel]]", "[[kernal]]", "kernel"),
            ("staging-ratio", "staging_ratio", "staging-ratio"),
            ("energy-price", "energyprice", "energy-price"),
        ] {
            let error = error_after(right, wrong);
            let expected = format!("site.toml:{}: unknown field", line_with(right));
            assert!(error.starts_with(&expected), "{error}\nis not\n{expected}");
            let meant = format!("; did you mean `{meant}`?");
            assert!(error.ends_with(&meant), "{error}");
        }
    }

    #[test]
    fn site_accepts_zero_cost_and_zero_power() {
        let text = JAGUAR
            .replace("\"$100\"", "\"$0\"")
            .replace("$0.30/kWh", "$0/kWh")
            .replace("\"0.09 W\"", "\"0 W\"")
            .replace("\"63 W\"", "\"0 W\"");
        let site = Site::parse(&text, Path::new("site.toml")).unwrap();
        assert_eq!(site.device_price(), Money::ZERO);
        assert_eq!(site.node_stage().idle, Watts::ZERO);
        let equal = JAGUAR.replacen("\"0.09 W\"", "\"3 W\"", 1);
        assert!(Site::parse(&equal, Path::new("site.toml")).is_ok());
        let once = JAGUAR.replacen("output-interval = \"1 h\"", "output-interval = \"24 h\"", 1);
        assert!(Site::parse(&once, Path::new("site.toml")).is_ok());
    }

    #[test]
    fn application_that_contradicts_run_is_refused_with_line() {
        let with = |more: &str| {
            let analysis = "analysis = \"170 KiB/s\"";
            let error = error_after(analysis, &format!("{analysis}\n{more}"));
            let line = 1 + line_with(analysis);
            assert!(
                error.starts_with(&format!("site.toml:{line}: an output every")),
                "{error}"
            );
        };
        with("duration = \"30 min\"");
        with("output-interval = \"2 d\"");
    }

    #[test]
    fn given_ratio_is_checked_like_ratio_of_the_file() {
        let at = |ratio| jaguar().at_ratio(ratio).map(|site| site.staging_ratio());
        assert_eq!(at(300.0), Ok(300.0));
        assert_eq!(at(18_000.0), Ok(18_000.0));
        assert_eq!(
            at(18_000.5),
            Err(SiteFault::RatioAboveNodes(18_000.5, 18_000.0))
        );
        for none in [0.5, 0.0, -3.0, f64::NAN, f64::NEG_INFINITY] {
            assert!(
                matches!(at(none), Err(SiteFault::RatioBelowOne(_))),
                "{none}"
            );
        }
        assert!(at(f64::INFINITY).is_err());
    }

    #[test]
    fn site_tables_are_bounded_in_number() {
        let kernel = "\n[[kernel]]\nname = \"k@\"\ndevice = \"1 MB/s\"\nprocessor = \"1 MB/s\"\n";
        let more: String = (0..ROWS_MAX)
            .map(|n| kernel.replace('@', &n.to_string()))
            .collect();
        let error = Site::parse(&(JAGUAR.to_owned() + &more), Path::new("site.toml"));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("more than 256 [[kernel]]"), "{error}");
    }

    #[test]
    fn site_errors_name_file_and_line() {
        for &(old, new, message) in WRONG {
            let error = error_after(old, new);
            let line = line_with(old.lines().next().unwrap()) + old.lines().count() - 1;
            let expected = format!("site.toml:{line}: {message}");
            assert!(error.starts_with(&expected), "{error}\nis not\n{expected}");
        }
    }

    #[test]
    fn missing_site_key_error_names_its_table() {
        for (table, key) in [
            ("[device]", "endurance = \"300 TiB\"\n"),
            ("[run]", "duration = \"24 h\"\n"),
            ("[[application]]", "analysis = \"4400 KiB/s\"\n"),
            ("[[kernel]]", "device = \"416 MiB/s\"\n"),
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
    fn busy_link_is_measured_or_computed() {
        let idle = "idle-bandwidth = \"3 GiB/s\"\nlinks = 54000\ndiameter = 30";
        let text = JAGUAR.replacen("busy-bandwidth = \"814 MiB/s\"", idle, 1);
        let site = Site::parse(&text, Path::new("site.toml")).unwrap();
        assert_eq!(
            site.busy_link(),
            BytesPerSecond::new(0.1 * 3.0 * 1_073_741_824.0)
        );
        let line = line_with("[network]");
        for text in [
            "links = 54000",
            "busy-bandwidth = \"1 GiB/s\"\nlinks = 54000",
        ] {
            let error = error_after("busy-bandwidth = \"814 MiB/s\"", text);
            let expected = format!("site.toml:{line}: [network] needs either");
            assert!(error.starts_with(&expected), "{error}");
        }
    }

    #[test]
    fn empty_site_lists_are_refused() {
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
    fn missing_site_file_is_named() {
        let error = Site::read(Path::new("nowhere/site.toml"))
            .unwrap_err()
            .to_string();
        assert_eq!(error, "can't read nowhere/site.toml");
    }

    #[test]
    fn application_and_kernel_may_override_run() {
        let text = JAGUAR
            .replacen(
                "analysis = \"170 KiB/s\"\ncheckpoint = \"85 KiB/s\"",
                "analysis = \"170 KiB/s\"\nduration = \"12 h\"",
                1,
            )
            .replacen(
                "device = \"416 MiB/s\"",
                "device = \"416 MiB/s\"\nreduction = 0.01",
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
