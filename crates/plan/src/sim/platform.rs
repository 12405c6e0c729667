//! Platforms: the simulated cluster, and the INI files that describe it (AnalyzeThis §6.1, Fig. 9). This module parses and checks platform
//! files.
//!
//! The paper's platform file can be used unchanged. `docs/platform-files.md` lists every setting.

use super::error::{FileProblem, InputError};
use super::ini::{self, IniSection, IniSetting};
use super::quantity::{self, QuantityKind, whole};
use crate::units::significant;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_lang::job::{DEFAULT_RETRIES, MAX_RETRIES};
use tidemill_model::event::History;
use tidemill_model::id::NodeId;
use tidemill_model::replicas::INPUT_CACHE_BYTES_MAX;
use tidemill_model::resources::{self, Offers};
use tidemill_model::time::Span;
use tidemill_sched::elastic::RESUME_UNKNOWN;

/// Maximum number of nodes of a simulated platform.
pub const NODES_MAX: u32 = 1_000_000;
/// Maximum number of cores of a simulated node.
pub const CORES_MAX: u32 = 65_536;
/// Rate that a policy expects of a link without a configured bandwidth, in bytes per second: the rate that a running node reports before it
/// has measured a rate.
pub const LINK_ASSUMED_BYTES_PER_SEC: u64 = 125_000_000;
/// Maximum time that a node takes to resume, and maximum idle time until it is suspended: 30 days. Messages show seconds.
const SUSPEND_MAX: Span = Span::from_secs(30 * 86_400);
/// Minimum id of the node of the server cores.
const SERVER_CORES_ID_MIN: usize = 1000;

/// Simulated cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Platform {
    /// Storage nodes of the platform; their ids are their indices.
    pub nodes: Vec<PlatformNode>,
    /// Node of the server cores, if it may run tasks.
    pub server_cores: Option<PlatformNode>,
    /// Latency of labels and reports, from the server to a node and from a node to the server.
    pub label_latency: Span,
    /// Time that storing a decision takes before nodes are informed.
    pub commit_latency: Span,
    /// Number of retries of a task after failed runs.
    pub retries: u32,
    /// Number of processors of the one machine that all nodes share; `None` if each node has its own machine.
    pub processors: Option<u32>,
    /// Number of storage nodes that are suspended when the job is submitted, counted from the last node.
    pub suspended: usize,
    /// Idle time after which a node is suspended; `None` if no node is suspended.
    pub suspend_after: Option<Span>,
}

/// One simulated node.
#[derive(Clone, Debug, PartialEq)]
pub struct PlatformNode {
    /// Class of the node: `AFE`, `AFE:name` or `SERVER_CORES`.
    pub class: String,
    /// Number of cores of the node.
    pub cores: u32,
    /// Memory of the node for tasks that specify their need, in bytes; `None` means unlimited.
    pub memory_bytes: Option<u64>,
    /// Amount of each named resource of the node.
    pub resources: BTreeMap<String, u64>,
    /// Programs of the node's host; `None` means all programs.
    pub programs: Option<BTreeSet<String>>,
    /// Speed of a core; run times of workflows are divided by the speed.
    pub core_speed: f64,
    /// Read rate of the node's device in bytes per second, shared by all readers; `None` for no limit.
    pub read_bandwidth: Option<u64>,
    /// Write rate of the node's device in bytes per second, shared by all writers; `None` for no limit.
    pub write_bandwidth: Option<u64>,
    /// Time until the device has read the first byte of an object.
    pub read_latency: Span,
    /// Time until the device has written the first byte of an object.
    pub write_latency: Span,
    /// Rate of the node's link in either direction in bytes per second; `None` for no limit.
    pub link_bandwidth: Option<u64>,
    /// Latency from the node to its switch; a transfer takes the latencies of both nodes.
    pub link_latency: Span,
    /// Rate of transfers to the node that the dispatcher assumes, in bytes per second.
    pub link_assumed: u64,
    /// Rate of the node's device that a policy assumes, in bytes per second, 0 if unknown; `None` for the greater of its bandwidths.
    pub device_assumed: Option<u64>,
    /// Power of the node at full load that a policy assumes, in thousandths of a watt, 0 if no power is configured; `None` for the power
    /// with all cores busy.
    pub watts_milli_assumed: Option<u64>,
    /// Maximum size of fetched objects that the node keeps after their last use, in bytes.
    pub input_cache_bytes_max: u64,
    /// Capacity of the node's device for files, outputs and replicas, in bytes; `None` for no limit.
    pub capacity: Option<u64>,
    /// Share of runs on the node that fail after they have computed, from 0 to 1.
    pub failure_rate: f64,
    /// Rate at which inputs are hashed on the run's core, in bytes per second, after runs for which hashing pays; `None` if hashing takes
    /// no time.
    pub hash_bandwidth: Option<u64>,
    /// Power of the node with all cores busy, in watts.
    pub power_busy_watts: f64,
    /// Power of the node with no core busy, in watts.
    pub power_idle_watts: f64,
    /// Power of the suspended node, in watts.
    pub power_suspended_watts: f64,
    /// Time that the node takes to resume.
    pub resume: Span,
    /// Run times that are known before the simulation begins, by kernel.
    pub history: BTreeMap<String, History>,
    /// Names of files on other nodes that this node has replicas of, oldest first.
    pub replicas: Vec<String>,
    /// Whether the policy chose this node last, before the simulation.
    pub last_turn: bool,
}

impl Default for PlatformNode {
    /// Returns a node with one core of speed 1, and a device and a link without limits and latencies.
    fn default() -> Self {
        Self {
            class: "AFE".to_owned(),
            cores: 1,
            memory_bytes: None,
            resources: BTreeMap::new(),
            programs: None,
            core_speed: 1.0,
            read_bandwidth: None,
            write_bandwidth: None,
            read_latency: Span(0),
            write_latency: Span(0),
            link_bandwidth: None,
            link_latency: Span(0),
            link_assumed: LINK_ASSUMED_BYTES_PER_SEC,
            device_assumed: None,
            watts_milli_assumed: None,
            input_cache_bytes_max: INPUT_CACHE_BYTES_MAX,
            capacity: None,
            failure_rate: 0.0,
            hash_bandwidth: None,
            power_busy_watts: 0.0,
            power_idle_watts: 0.0,
            power_suspended_watts: 0.0,
            resume: RESUME_UNKNOWN,
            history: BTreeMap::new(),
            replicas: Vec::new(),
            last_turn: false,
        }
    }
}

impl PlatformNode {
    /// Returns the rate of the node's device that its status reports, in bytes per second.
    #[must_use]
    pub fn device_bytes_per_sec(&self) -> u64 {
        let rates = [self.read_bandwidth, self.write_bandwidth];
        let greatest = rates.map(|rate| rate.unwrap_or(u64::MAX)).into_iter().max();
        self.device_assumed.or(greatest).unwrap_or(0)
    }

    /// Returns the power of the node that its status reports, in thousandths of a watt.
    #[must_use]
    pub fn watts_milli(&self) -> u64 {
        let busy = whole(self.power_busy_watts * 1000.0);
        self.watts_milli_assumed.unwrap_or(busy)
    }

    /// Returns the resources of the node for labels that run at once.
    #[must_use]
    pub fn offers(&self) -> Offers {
        Offers {
            cores: self.cores,
            memory_bytes: self.memory_bytes.unwrap_or(0),
            named: self.resources.clone(),
        }
    }
}

/// Settings that storage nodes and the server cores have in common.
const SHARED_KEYS: [&str; 17] = [
    "read_bandwidth",
    "write_bandwidth",
    "read_latency",
    "write_latency",
    "core_speed",
    "link_bandwidth",
    "link_latency",
    "link_assumed",
    "input_cache",
    "capacity",
    "failure_rate",
    "hash_bandwidth",
    "power_busy",
    "power_idle",
    "memory",
    "resources",
    "programs",
];
const NEEDED_KEYS: [&str; 5] = [
    "cores_per_afe",
    "read_bandwidth",
    "write_bandwidth",
    "read_latency",
    "write_latency",
];
const SERVER_KEYS: [&str; 7] = [
    "number_afes",
    "label_latency",
    "commit_latency",
    "retries",
    "processors",
    "suspended",
    "suspend_after",
];
/// Returns the settings of the section `[AFE]`.
fn node_keys() -> Vec<&'static str> {
    let own = ["cores_per_afe", "power_suspended", "resume"];
    own.into_iter().chain(SHARED_KEYS).collect()
}

/// Returns the settings of the section `[SERVER_CORES]`.
fn server_cores_keys() -> Vec<&'static str> {
    ["cores"].into_iter().chain(SHARED_KEYS).collect()
}

impl Platform {
    /// Returns a platform of equal nodes without server cores.
    #[must_use]
    pub fn uniform(count: usize, node: &PlatformNode) -> Self {
        Self {
            nodes: vec![node.clone(); count],
            server_cores: None,
            label_latency: Span(0),
            commit_latency: Span(0),
            retries: DEFAULT_RETRIES,
            processors: None,
            suspended: 0,
            suspend_after: None,
        }
    }

    /// Parses a platform file. `file` is the name used in errors.
    ///
    /// # Errors
    /// The first fault in the platform file, with its line.
    pub fn parse(file: &str, text: &str) -> Result<Self, InputError> {
        let sections = ini::parse(file, text)?;
        for section in &sections {
            let known = matches!(section.name.as_str(), "AFE" | "SERVER" | "SERVER_CORES")
                || class_name(section).is_some();
            if !known {
                let problem = FileProblem::UnknownSection(section.name.clone());
                return Err(InputError::new(file, section.line, problem));
            }
        }
        let find = |name: &str| sections.iter().find(|section| section.name == name);
        let plain = find("AFE").ok_or_else(|| missing(file, 0, "the platform", "[AFE]"))?;
        let (base, _) = node(file, plain, &PlatformNode::default(), &node_keys())?;
        for key in NEEDED_KEYS {
            if !plain.keys.iter().any(|given| given.name == key) {
                return Err(missing(file, plain.line, "[AFE]", key));
            }
        }
        let mut platform = Self::uniform(0, &base);
        let mut count = None;
        if let Some(server) = find("SERVER") {
            count = platform.read_server(file, server)?;
        }
        let mut classes = Vec::new();
        for section in sections
            .iter()
            .filter(|section| class_name(section).is_some())
        {
            let known: Vec<_> = node_keys().into_iter().chain(["number_afes"]).collect();
            let (class, count) = node(file, section, &base, &known)?;
            let Some(count) = count else {
                let place = format!("[{}]", section.name);
                return Err(missing(file, section.line, &place, "number_afes"));
            };
            classes.push((class, count));
        }
        let count = match count {
            Some(count) => count,
            None if classes.is_empty() => {
                let line = find("SERVER").map_or(0, |section| section.line);
                return Err(missing(file, line, "[SERVER]", "number_afes"));
            }
            None => 0,
        };
        for (class, count) in std::iter::once((base, count)).chain(classes) {
            platform.nodes.extend(std::iter::repeat_n(class, count));
        }
        if platform.nodes.is_empty() {
            let line = find("SERVER").map_or(0, |section| section.line);
            return Err(InputError::new(file, line, FileProblem::NoNodes));
        }
        platform.check_suspended(file, find("SERVER"))?;
        if let Some(server_cores) = find("SERVER_CORES") {
            let (node, _) = node(
                file,
                server_cores,
                &PlatformNode::default(),
                &server_cores_keys(),
            )?;
            if !server_cores.keys.iter().any(|key| key.name == "cores") {
                return Err(missing(file, server_cores.line, "[SERVER_CORES]", "cores"));
            }
            platform.server_cores = Some(node);
        }
        Ok(platform)
    }

    fn read_server(
        &mut self,
        file: &str,
        section: &IniSection,
    ) -> Result<Option<usize>, InputError> {
        let mut count = None;
        for key in &section.keys {
            let at = |problem| InputError::new(file, key.line, problem);
            match key.name.as_str() {
                "number_afes" => count = Some(number_of_nodes(key).map_err(at)?),
                "processors" => self.processors = Some(cores(key).map_err(at)?),
                "commit_latency" => self.commit_latency = latency(key).map_err(at)?,
                "retries" => self.retries = integer(key, MAX_RETRIES).map_err(at)?,
                "suspended" => self.suspended = number_of_nodes(key).map_err(at)?,
                "suspend_after" => self.suspend_after = Some(seconds(key).map_err(at)?),
                "label_latency" => self.label_latency = latency(key).map_err(at)?,
                _ => return Err(at(unknown(section, key, &SERVER_KEYS))),
            }
        }
        Ok(count)
    }

    /// Checks that the number of suspended nodes does not exceed the number of nodes.
    fn check_suspended(&self, file: &str, server: Option<&IniSection>) -> Result<(), InputError> {
        let mut keys = server.iter().flat_map(|section| &section.keys);
        let key = keys.find(|key| key.name == "suspended");
        match key {
            Some(key) if self.suspended > self.nodes.len() => {
                let (what, max) = (key.name.clone(), self.nodes.len() as u64);
                let problem = FileProblem::TooMany { what, max };
                Err(InputError::new(file, key.line, problem))
            }
            _ => Ok(()),
        }
    }

    /// Returns the node with an id.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&PlatformNode> {
        if self.server_cores.is_some() && id == self.server_cores_id() {
            return self.server_cores.as_ref();
        }
        self.nodes.get(usize::try_from(id.0).ok()?)
    }

    /// Returns the id of the server cores: above the ids of all other nodes, as in a running cluster.
    #[must_use]
    pub fn server_cores_id(&self) -> NodeId {
        let id = self.nodes.len().max(SERVER_CORES_ID_MIN);
        NodeId(u32::try_from(id).unwrap_or(u32::MAX))
    }
}

fn class_name(section: &IniSection) -> Option<&str> {
    section
        .name
        .strip_prefix("AFE:")
        .map(str::trim)
        .filter(|name| !name.is_empty())
}

/// Returns a node with the settings of a section, based on `base`, and the number of such nodes if the section sets one.
fn node(
    file: &str,
    section: &IniSection,
    base: &PlatformNode,
    known: &[&'static str],
) -> Result<(PlatformNode, Option<usize>), InputError> {
    let mut node = PlatformNode {
        class: section.name.clone(),
        ..base.clone()
    };
    let mut count = None;
    let mut assumed = None;
    for key in &section.keys {
        let at = |problem| InputError::new(file, key.line, problem);
        if !known.contains(&key.name.as_str()) {
            return Err(at(unknown(section, key, known)));
        }
        let set = |target: &mut Span| latency(key).map(|span| *target = span);
        match key.name.as_str() {
            "number_afes" => number_of_nodes(key).map(|number| count = Some(number)),
            "cores_per_afe" | "cores" => cores(key).map(|cores| node.cores = cores),
            "core_speed" => quantity::positive(&key.name, &key.value, QuantityKind::Factor)
                .map(|speed| node.core_speed = speed),
            "read_bandwidth" => bandwidth(key).map(|rate| node.read_bandwidth = rate),
            "write_bandwidth" => bandwidth(key).map(|rate| node.write_bandwidth = rate),
            "link_bandwidth" => bandwidth(key).map(|rate| node.link_bandwidth = rate),
            "link_assumed" => bandwidth(key).map(|rate| assumed = Some(rate)),
            "read_latency" => set(&mut node.read_latency),
            "write_latency" => set(&mut node.write_latency),
            "link_latency" => set(&mut node.link_latency),
            "input_cache" => quantity::read(&key.name, &key.value, QuantityKind::Size)
                .map(|bytes| node.input_cache_bytes_max = whole(bytes)),
            "capacity" => quantity::read(&key.name, &key.value, QuantityKind::Size)
                .map(|bytes| node.capacity = Some(whole(bytes))),
            "failure_rate" => share(key).map(|rate| node.failure_rate = rate),
            "hash_bandwidth" => bandwidth(key).map(|rate| node.hash_bandwidth = rate),
            "memory" => quantity::positive(&key.name, &key.value, QuantityKind::Size)
                .map(|bytes| node.memory_bytes = Some(whole(bytes))),
            "resources" => resources::parse(&key.value)
                .map(|named| node.resources = named)
                .map_err(FileProblem::Resources),
            "programs" => {
                node.programs = Some(words(&key.value));
                Ok(())
            }
            "power_suspended" => watts(key).map(|power| node.power_suspended_watts = power),
            "resume" => seconds(key).map(|span| node.resume = span),
            "power_busy" => watts(key).map(|power| node.power_busy_watts = power),
            _ => watts(key).map(|power| node.power_idle_watts = power),
        }
        .map_err(at)?;
    }
    check_powers(file, section, &node)?;
    let says_link = section.keys.iter().any(|key| key.name == "link_bandwidth");
    match assumed {
        Some(rate) => node.link_assumed = rate.unwrap_or(u64::MAX),
        None if says_link => {
            node.link_assumed = node.link_bandwidth.unwrap_or(LINK_ASSUMED_BYTES_PER_SEC);
        }
        None => {}
    }
    Ok((node, count))
}

/// Checks that the idle power of a node does not exceed its busy power. The error is reported at one of the two settings; a class may
/// inherit the other setting from [AFE].
fn check_powers(file: &str, section: &IniSection, node: &PlatformNode) -> Result<(), InputError> {
    if node.power_idle_watts <= node.power_busy_watts {
        return Ok(());
    }
    let powers = ["power_idle", "power_busy"];
    let mut keys = section.keys.iter();
    let line = keys.find(|key| powers.contains(&key.name.as_str()));
    let problem = FileProblem::IdleAboveBusy {
        place: format!("[{}]", section.name),
        idle: significant(node.power_idle_watts),
        busy: significant(node.power_busy_watts),
    };
    let line = line.map_or(section.line, |key| key.line);
    Err(InputError::new(file, line, problem))
}

fn missing(file: &str, line: u32, place: &str, key: &str) -> InputError {
    let problem = FileProblem::Missing {
        place: place.to_owned(),
        key: key.to_owned(),
    };
    InputError::new(file, line, problem)
}

fn unknown(section: &IniSection, key: &IniSetting, known: &[&'static str]) -> FileProblem {
    FileProblem::UnknownKey {
        place: format!("[{}]", section.name),
        key: key.name.clone(),
        known: known.to_vec(),
    }
}

/// Parses a bandwidth: `unlimited` or bytes per second.
fn bandwidth(key: &IniSetting) -> Result<Option<u64>, FileProblem> {
    if key.value == "unlimited" {
        return Ok(None);
    }
    let rate = quantity::positive(&key.name, &key.value, QuantityKind::Bandwidth)?;
    Ok(Some(whole(rate).max(1)))
}

/// Returns the words of a text between commas.
fn words(text: &str) -> BTreeSet<String> {
    let words = text.split(',').map(str::trim);
    let words = words.filter(|word| !word.is_empty());
    words.map(str::to_owned).collect()
}

fn latency(key: &IniSetting) -> Result<Span, FileProblem> {
    quantity::read(&key.name, &key.value, QuantityKind::Latency).map(|ns| Span(whole(ns)))
}

fn seconds(key: &IniSetting) -> Result<Span, FileProblem> {
    let span =
        quantity::read(&key.name, &key.value, QuantityKind::Duration).map(|ns| Span(whole(ns)))?;
    if span > SUSPEND_MAX {
        let what = key.name.clone();
        let max = SUSPEND_MAX.0 / 1_000_000_000;
        return Err(FileProblem::TooMany { what, max });
    }
    Ok(span)
}

/// Parses a share from 0 to 1.
fn share(key: &IniSetting) -> Result<f64, FileProblem> {
    let rate = quantity::read(&key.name, &key.value, QuantityKind::Factor)?;
    if rate > 1.0 {
        let what = key.name.clone();
        return Err(FileProblem::TooMany { what, max: 1 });
    }
    Ok(rate)
}

fn watts(key: &IniSetting) -> Result<f64, FileProblem> {
    quantity::read(&key.name, &key.value, QuantityKind::Power)
}

fn cores(key: &IniSetting) -> Result<u32, FileProblem> {
    match integer(key, CORES_MAX)? {
        0 => Err(FileProblem::Zero {
            what: key.name.clone(),
        }),
        cores => Ok(cores),
    }
}

fn number_of_nodes(key: &IniSetting) -> Result<usize, FileProblem> {
    integer(key, NODES_MAX).map(|count| usize::try_from(count).unwrap_or(usize::MAX))
}

fn integer(key: &IniSetting, max: u32) -> Result<u32, FileProblem> {
    let what = || key.name.clone();
    let number: i64 = key.value.parse().map_err(|_| FileProblem::Number {
        what: what(),
        text: key.value.clone(),
    })?;
    if number < 0 {
        let text = key.value.clone();
        return Err(FileProblem::Negative { what: what(), text });
    }
    let number = u32::try_from(number).ok().filter(|&number| number <= max);
    number.ok_or_else(|| FileProblem::TooMany {
        what: what(),
        max: max.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIG_9: &str = "[AFE]
cores_per_afe      = 4
read_bandwidth     = 550    # in MB/s
write_bandwidth    = 450    # in MB/s
read_latency       = 15     # in ms
write_latency      = 15     # in ms

[SERVER]
number_afes       = 4      # AFEs in cluster
";

    fn error(text: &str) -> String {
        Platform::parse("a.ini", text).unwrap_err().to_string()
    }

    #[test]
    fn platform_parses_figure_9_of_the_paper() {
        let platform = Platform::parse("a.ini", FIG_9).unwrap();
        let afe = PlatformNode {
            cores: 4,
            read_bandwidth: Some(550_000_000),
            write_bandwidth: Some(450_000_000),
            read_latency: Span::from_millis(15),
            write_latency: Span::from_millis(15),
            ..PlatformNode::default()
        };
        assert_eq!(platform, Platform::uniform(4, &afe));
    }

    #[test]
    fn platform_classes_override_the_plain_node() {
        let text = format!(
            "{FIG_9} label_latency = 100 us\n
             commit_latency = 2 ms\n retries = 5\n
             [AFE:fast]\n number_afes = 2\n core_speed = 2.5\n read_bandwidth = unlimited\n
             link_bandwidth = 1 GB/s\n power_busy = 10 W\n capacity = 2 GB\n failure_rate = 0.01\n
             hash_bandwidth = 2 GB/s\n
             [SERVER_CORES]\n cores = 8\n link_assumed = 2 GB/s\n"
        );
        let platform = Platform::parse("a.ini", &text).unwrap();
        let [.., plain, fast, _] = &platform.nodes[..] else {
            panic!("too few nodes")
        };
        assert_eq!((platform.nodes.len(), plain.class.as_str()), (6, "AFE"));
        assert_eq!(
            (fast.class.as_str(), fast.cores, fast.read_bandwidth),
            ("AFE:fast", 4, None)
        );
        assert_eq!(
            (fast.link_assumed, plain.link_assumed),
            (1_000_000_000, 125_000_000)
        );
        assert_eq!(platform.label_latency, Span(100_000));
        assert_eq!(
            (platform.commit_latency, platform.retries),
            (Span::from_millis(2), 5)
        );
        assert_eq!((fast.capacity, plain.capacity), (Some(2_000_000_000), None));
        assert_eq!(fast.hash_bandwidth, Some(2_000_000_000));
        assert!((fast.failure_rate - 0.01).abs() < 1e-12);
        let server_cores = platform.node(NodeId(1000)).unwrap();
        assert_eq!(
            (server_cores.cores, server_cores.link_assumed),
            (8, 2_000_000_000)
        );
        assert_eq!(platform.node(NodeId(6)), None);
    }

    #[test]
    fn invalid_platform_number_is_reported_with_line() {
        let replaced = |from: &str, to: &str| error(&FIG_9.replace(from, to));
        for (error, expected) in [
            (
                replaced("[SERVER]", "failure_rate = 1.5\n[SERVER]"),
                "a.ini:8: failure_rate can't be more than 1",
            ),
            (
                replaced("[SERVER]", "failure_rate = -0.1\n[SERVER]"),
                "a.ini:8: failure_rate can't be negative",
            ),
            (
                replaced("number_afes ", "retries = 1000 #"),
                "a.ini:9: retries can't be more than 100",
            ),
            (
                replaced("= 550 ", "= 550 MiB"),
                "a.ini:3: read_bandwidth can't be measured in `MiB`",
            ),
            (
                replaced("= 450 ", "= -1 "),
                "a.ini:4: write_bandwidth can't be negative",
            ),
            (
                replaced("= 450 ", "= 0 "),
                "a.ini:4: write_bandwidth must be more than 0",
            ),
            (
                replaced("= 4\n", "= 0\n"),
                "a.ini:2: cores_per_afe must be more than 0",
            ),
            (
                replaced("= 4\n", "= 4.5\n"),
                "a.ini:2: `4.5` for cores_per_afe is not a number",
            ),
            (
                replaced("= 4 ", "= 0 "),
                "a.ini:8: the platform has no nodes",
            ),
            (
                replaced("= 4 ", "= 2000000 "),
                "a.ini:9: number_afes can't be more than 1000000",
            ),
            (
                replaced("[SERVER]", "power_idle = 5 W\npower_busy = 4 W\n[SERVER]"),
                "a.ini:8: [AFE] draws 5 W when it is idle and 4 W when it is busy",
            ),
            (
                replaced(
                    "[SERVER]",
                    "power_idle = 5 W\npower_busy = 9 W\n[AFE:x]\nnumber_afes = 1\npower_busy = 4 W\n[SERVER]",
                ),
                "a.ini:12: [AFE:x] draws 5 W when it is idle and 4 W when it is busy",
            ),
        ] {
            assert!(error.starts_with(expected), "{error}\nexpected {expected}");
        }
    }

    #[test]
    fn invalid_platform_settings_are_reported_with_line() {
        let replaced = |from: &str, to: &str| error(&FIG_9.replace(from, to));
        for (error, expected) in [
            (
                replaced("read_latency ", "read_delay "),
                "a.ini:5: [AFE] has no setting `read_delay`; it may have",
            ),
            (
                replaced("read_latency ", "read_latenyc "),
                "a.ini:5: [AFE] has no setting `read_latenyc`; did you mean `read_latency`?",
            ),
            (
                replaced("read_latency       = 15", ""),
                "a.ini:1: [AFE] needs `read_latency`",
            ),
            (
                replaced("[SERVER]", "[SERVERS]"),
                "a.ini:8: there is no section [SERVERS]; did you mean `SERVER`?",
            ),
            (
                replaced("[SERVER]", "[SERVER"),
                "a.ini:8: expected `[section]`",
            ),
            (
                replaced("[SERVER]", "core_sped = 1\n[SERVER]"),
                "a.ini:8: [AFE] has no setting `core_sped`",
            ),
            (
                replaced("[SERVER]", "read_latency = 1\n[SERVER]"),
                "a.ini:8: `read_latency` is given twice, first in line 5",
            ),
            (
                replaced("[AFE]\n", "[AFE]\nresources = gpu=x\n"),
                "a.ini:2: `gpu=x` must be such as gpu=2",
            ),
            (
                error("x = 1"),
                "a.ini:1: `x` stands before the first section",
            ),
            (error(""), "a.ini: the platform needs `[AFE]`"),
            (
                error(&format!("{FIG_9}[AFE:x]\n")),
                "a.ini:10: [AFE:x] needs `number_afes`",
            ),
            (
                error(&format!("{FIG_9}[SERVER_CORES]\n")),
                "a.ini:10: [SERVER_CORES] needs `cores`",
            ),
            (
                error(&format!("{FIG_9}[SERVER_CORES]\ncore = 2\n")),
                "a.ini:11: [SERVER_CORES] has no setting `core`; did you mean `cores`?",
            ),
            (
                error(&FIG_9[..FIG_9.find("[SERVER]").unwrap()]),
                "a.ini: [SERVER] needs `number_afes`",
            ),
        ] {
            assert!(error.starts_with(expected), "{error}\nexpected {expected}");
        }
    }
}
