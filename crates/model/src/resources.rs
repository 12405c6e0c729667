//! Cores, memory and named resources: the resources that a running task needs, that a node offers, and the ledger of free resources. Nodes
//! and the simulator use the same ledger, so that plans match reality. This module does no I/O.
//!
//! **Order.** Labels start in the order of their arrival. If a resource that a label needs is not free, the label reserves the free part of
//! this resource against all later labels ([`first_to_start`]). No later label overtakes the label on a resource that it waits for, so the
//! label starts at the latest when all labels that ran before have ended. Resources that the label does not need are not reserved.

use crate::id::NodeId;
use crate::runtime_environment::named;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Maximum number of cores that a task may need.
pub const CORES_MAX: u32 = 4096;
/// Maximum number of tasks without a core that a node runs at once.
pub const LIGHT_MAX: u32 = 8;
/// Maximum number of named resources of a task or of a node.
pub const NAMES_MAX: usize = 64;
/// Maximum amount of one named resource of a task or of a node.
pub const AMOUNT_MAX: u64 = 1_000_000_000;
/// Maximum length of a resource's name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Maximum number of labels that are searched for a label that can start while earlier labels can't.
pub const LOOKS_MAX: usize = 256;

/// Returns whether a resource may have this name: letters, digits, `-`, `_` and single dots between them. `cores` and `memory` are
/// reserved.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let part = |part: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        part.starts_with(|c: char| c.is_ascii_alphabetic()) && part.chars().all(plain)
    };
    let taken = matches!(name, "cores" | "memory");
    !taken && name.len() <= NAME_BYTES_MAX && name.split('.').all(part)
}

/// Parses named resources in the notation of flags and platform files: `gpu=2,licence.x=1`.
///
/// # Errors
/// A description of the fault in the text, for people.
pub fn parse(text: &str) -> Result<BTreeMap<String, u64>, String> {
    let mut all = BTreeMap::new();
    for part in text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        let (name, amount) = part.split_once('=').unwrap_or((part, "1"));
        let (name, amount) = (name.trim(), amount.trim());
        if !is_name(name) {
            return Err(format!(
                "`{name}` can't be the name of a resource: use letters, digits, `-` and `_`, with single dots between words"
            ));
        }
        let amount = amount.parse().ok().filter(|amount| *amount <= AMOUNT_MAX);
        let amount = amount.ok_or_else(|| {
            format!("`{part}` must be such as {name}=2, with a whole number up to {AMOUNT_MAX}")
        })?;
        if all.insert(name.to_owned(), amount).is_some() {
            return Err(format!("the resource `{name}` is set twice"));
        }
    }
    if all.len() > NAMES_MAX {
        return Err(format!(
            "{} resources; the maximum is {NAMES_MAX}",
            all.len()
        ));
    }
    Ok(all)
}

/// Resources that a task takes on its node while it runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Needs {
    /// Number of cores that the task takes; 0 for a task that computes next to nothing.
    pub cores: u32,
    /// Memory that the task takes, in bytes; 0 if the task does not specify its memory: none is reserved for the task.
    pub memory_bytes: u64,
    /// Amount of each named resource that the task takes; no amount is 0.
    pub named: BTreeMap<String, u64>,
}

impl Default for Needs {
    fn default() -> Self {
        Self {
            cores: 1,
            memory_bytes: 0,
            named: BTreeMap::new(),
        }
    }
}

impl Needs {
    /// Returns whether the task needs only cores.
    #[must_use]
    pub fn only_cores(&self) -> bool {
        self.memory_bytes == 0 && self.named.is_empty()
    }
}

impl fmt::Display for Needs {
    /// Formats the needed resources in the notation of job scripts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cores = {}", self.cores)?;
        if self.memory_bytes > 0 {
            let memory = crate::display::bytes(self.memory_bytes);
            write!(f, ", memory = {memory}")?;
        }
        for (name, amount) in &self.named {
            write!(f, ", {name} = {amount}")?;
        }
        Ok(())
    }
}

/// Resources of a node for the tasks that it runs at once.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Offers {
    /// Number of cores that the node offers.
    pub cores: u32,
    /// Memory that the node offers, in bytes; 0 if the node does not specify it: no task is refused for lack of memory.
    pub memory_bytes: u64,
    /// Amount of each named resource that the node offers.
    pub named: BTreeMap<String, u64>,
}

impl Offers {
    /// Returns offers with this number of cores and no other counted resource.
    #[must_use]
    pub fn of_cores(cores: u32) -> Self {
        Self {
            cores,
            ..Self::default()
        }
    }

    /// Returns the first resource that the node can't offer in the needed amount, even when the node is idle.
    #[must_use]
    pub fn lacks(&self, needs: &Needs) -> Option<ScarceResource> {
        // A node that offers no cores runs no task, not even one that needs no core.
        if needs.cores.max(1) > self.cores {
            return Some(ScarceResource {
                what: "cores".to_owned(),
                needs: needs.cores.max(1).into(),
                offered: self.cores.into(),
            });
        }
        if self.memory_bytes > 0 && needs.memory_bytes > self.memory_bytes {
            return Some(ScarceResource {
                what: "memory".to_owned(),
                needs: needs.memory_bytes,
                offered: self.memory_bytes,
            });
        }
        let offered = |name: &String| self.named.get(name).copied().unwrap_or(0);
        let mut named = needs.named.iter();
        let (name, amount) = named.find(|(name, amount)| offered(name) < **amount)?;
        Some(ScarceResource {
            what: name.clone(),
            needs: *amount,
            offered: offered(name),
        })
    }
}

/// Resource for which a node's offer is less than a task's need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScarceResource {
    /// `cores`, `memory` or the name of a resource.
    pub what: String,
    /// Amount of the resource that the task needs.
    pub needs: u64,
    /// Amount of the resource that the node offers.
    pub offered: u64,
}

impl ScarceResource {
    /// Formats an amount of the resource for people.
    #[must_use]
    pub fn shown(&self, amount: u64) -> String {
        match self.what.as_str() {
            "memory" => format!("{amount} bytes ({})", crate::display::bytes(amount)),
            _ => amount.to_string(),
        }
    }
}

/// Ledger of one node: its offered resources and the free part of them.
#[derive(Clone, Debug)]
pub struct ResourceLedger {
    offers: Offers,
    free: FreeResources,
}

/// Free resources of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FreeResources {
    cores: u32,
    light: u32,
    /// Free memory, in bytes; `None` if memory is not counted.
    memory_bytes: Option<u64>,
    named: BTreeMap<String, u64>,
}

impl FreeResources {
    fn of(offers: &Offers) -> Self {
        Self {
            cores: offers.cores,
            light: LIGHT_MAX,
            memory_bytes: (offers.memory_bytes > 0).then_some(offers.memory_bytes),
            named: offers.named.clone(),
        }
    }

    fn has(&self, needs: &Needs) -> bool {
        let free = |name: &String| self.named.get(name).copied().unwrap_or(0);
        self.cores >= needs.cores
            && (needs.cores > 0 || self.light > 0)
            && self
                .memory_bytes
                .is_none_or(|free| free >= needs.memory_bytes)
            && needs
                .named
                .iter()
                .all(|(name, amount)| free(name) >= *amount)
    }

    /// Reserves as much of the needed resources as is free.
    fn keep(&mut self, needs: &Needs) {
        self.cores = self.cores.saturating_sub(needs.cores);
        self.light = self.light.saturating_sub(u32::from(needs.cores == 0));
        if let Some(free) = &mut self.memory_bytes {
            *free = free.saturating_sub(needs.memory_bytes);
        }
        for (name, amount) in &needs.named {
            if let Some(free) = self.named.get_mut(name) {
                *free = free.saturating_sub(*amount);
            }
        }
    }
}

/// Returns the free amount after `amount` is given back, which is never more than the total.
fn back<N: TryFrom<u64> + Default>(free: u64, amount: u64, all: u64) -> N {
    let free = free.saturating_add(amount);
    debug_assert!(free <= all, "more is given back than was taken");
    N::try_from(free.min(all)).unwrap_or_default()
}

impl ResourceLedger {
    /// Returns a ledger in which all resources are free.
    #[must_use]
    pub fn new(offers: Offers) -> Self {
        let free = FreeResources::of(&offers);
        Self { offers, free }
    }

    /// Returns the total resources of the node.
    #[must_use]
    pub fn offers(&self) -> &Offers {
        &self.offers
    }

    /// Returns whether all needed resources are free.
    #[must_use]
    pub fn has(&self, needs: &Needs) -> bool {
        self.free.has(needs)
    }

    /// Takes the needed resources if all of them are free, and nothing otherwise. Returns whether they were taken.
    #[must_use]
    pub fn take(&mut self, needs: &Needs) -> bool {
        let has = self.has(needs);
        if has {
            self.free.keep(needs);
        }
        has
    }

    /// Gives taken resources back to the ledger.
    pub fn give_back(&mut self, needs: &Needs) {
        let Self { offers, free } = self;
        free.cores = back(free.cores.into(), needs.cores.into(), offers.cores.into());
        let light = u64::from(needs.cores == 0);
        free.light = back(free.light.into(), light, LIGHT_MAX.into());
        if let Some(free) = &mut free.memory_bytes {
            *free = back(*free, needs.memory_bytes, offers.memory_bytes);
        }
        for (name, amount) in &needs.named {
            if let (Some(free), Some(all)) = (free.named.get_mut(name), offers.named.get(name)) {
                *free = back(*free, *amount, *all);
            }
        }
    }

    /// Returns whether no resource is taken.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.free == FreeResources::of(&self.offers)
    }

    fn cores_free(&self) -> bool {
        self.free.cores > 0
    }
}

/// Returns the first wanted label, in their order, that can start with the free resources that are not reserved for earlier labels. `light`
/// is true if some of the labels may need no core: if it is false, the search ends when no core is free.
pub fn first_to_start<'a, K>(
    ledger: &ResourceLedger,
    labels: impl Iterator<Item = (K, &'a Needs)>,
    light: bool,
    wanted: impl Fn(&K) -> bool,
) -> Option<K> {
    if !light && !ledger.cores_free() {
        return None;
    }
    let mut left: Option<FreeResources> = None;
    for (label, needs) in labels.take(LOOKS_MAX) {
        let free = left.as_ref().unwrap_or(&ledger.free);
        if free.has(needs) && wanted(&label) {
            return Some(label);
        }
        let left = left.get_or_insert_with(|| ledger.free.clone());
        left.keep(needs);
        if !light && left.cores == 0 {
            return None;
        }
    }
    None
}

/// Requirements of a task on its node, except its inputs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TaskRequirements {
    /// Cores, memory and named resources that the task needs.
    pub needs: Needs,
    /// Programs of the host, sorted, without duplicates, and directories of the host, each with a slash at the end.
    pub programs: Vec<String>,
}

impl fmt::Display for TaskRequirements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.needs)?;
        for program in &self.programs {
            write!(f, ", {}", named(program))?;
        }
        Ok(())
    }
}

/// Properties of a node that decide whether a task can ever run on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeOffer {
    /// Id of the node.
    pub node: NodeId,
    /// Whether these are the server cores, to which most policies send no tasks.
    pub server_cores: bool,
    /// Resources of the node.
    pub offers: Offers,
    /// Requested programs and directories that the node has, and all directories that the node exposes; `None` if the node has not reported
    /// any.
    pub programs: Option<BTreeSet<String>>,
}

/// Returns the reason for which no node can ever run a task, for people. Returns `None` if a node can run the task, or if this is unknown.
#[must_use]
pub fn why_nowhere(
    wants: &TaskRequirements,
    places: &[NodeOffer],
    pinned: Option<NodeId>,
) -> Option<String> {
    let mine = |place: &&NodeOffer| pinned.is_none_or(|node| place.node == node);
    let mine: Vec<&NodeOffer> = places.iter().filter(mine).collect();
    if mine.is_empty() {
        return None;
    }
    let reported = mine.iter().any(|place| place.programs.is_some());
    // A node that is offline may have the program, but it does not count while other nodes have reported their programs.
    let lacks = |place: &NodeOffer, name: &String| {
        let programs = place.programs.as_ref();
        programs.map_or(reported, |programs| !programs.contains(name))
    };
    let can = |place: &&NodeOffer| {
        let mut programs = wants.programs.iter();
        place.offers.lacks(&wants.needs).is_none() && !programs.any(|name| lacks(place, name))
    };
    if mine.iter().any(can) {
        return None;
    }
    // If all nodes lack the same resource, the message names this resource.
    let short = mine.iter().map(|place| place.offers.lacks(&wants.needs));
    if let Some(lacks) = short.collect::<Option<Vec<ScarceResource>>>()
        && let Some(most) = lacks.iter().max_by_key(|lack| lack.offered)
        && lacks.iter().all(|lack| lack.what == most.what)
    {
        let (needs, offered) = (most.shown(most.needs), most.shown(most.offered));
        let what = &most.what;
        return Some(match pinned {
            Some(node) => {
                format!("it needs {what} = {needs}, and node {node} offers {offered}")
            }
            None => {
                format!("it needs {what} = {needs}, and the most that a node offers is {offered}")
            }
        });
    }
    let mut programs = wants.programs.iter();
    if let Some(program) = programs.find(|name| mine.iter().all(|place| lacks(place, name))) {
        let has = |place: &&NodeOffer| {
            place
                .programs
                .as_ref()
                .is_some_and(|all| all.contains(program))
        };
        let others = places
            .iter()
            .filter(has)
            .map(|place| place.node.to_string());
        let others: Vec<String> = others.collect();
        let is_directory = program.ends_with('/');
        let on = match others.as_slice() {
            [] if is_directory => offered(places),
            [] => String::new(),
            some => format!("; node {} does", some.join(", ")),
        };
        let (has, have) = match is_directory {
            true => ("shows", "show"),
            false => ("has", "have"),
        };
        let program = named(program);
        return Some(match pinned {
            Some(node) => format!("node {node} does not {have} {program}{on}"),
            None => format!("no storage node {has} {program}{on}"),
        });
    }
    let who = pinned.map_or_else(|| "no node".to_owned(), |id| format!("node {id} does not"));
    let has = pinned.map_or("has", |_| "have");
    Some(format!(
        "it needs {wants}, and {who} {has} all of that together"
    ))
}

/// Returns a list of the directories that nodes expose to tasks that request them.
fn offered(places: &[NodeOffer]) -> String {
    let programs = places.iter().filter_map(|place| place.programs.as_ref());
    let directories = programs.flatten().filter_map(|name| name.strip_suffix('/'));
    let directories: BTreeSet<&str> = directories.collect();
    let directories: Vec<&str> = directories.into_iter().collect();
    let shown = match directories.as_slice() {
        [] => "no directory is mounted as a whole".to_owned(),
        some => format!("tasks see {} and the directories below", some.join(", ")),
    };
    format!("; {shown}, as their administrators allow by --task-dirs")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn needs(cores: u32, memory_bytes: u64, gpu: u64) -> Needs {
        let gpu = (gpu > 0).then(|| ("gpu".to_owned(), gpu));
        Needs {
            cores,
            memory_bytes,
            named: gpu.into_iter().collect(),
        }
    }

    pub(crate) fn offers(cores: u32, memory_bytes: u64, gpu: u64) -> Offers {
        Offers {
            cores,
            memory_bytes,
            named: BTreeMap::from([("gpu".to_owned(), gpu)]),
        }
    }

    #[test]
    fn resource_name_is_words_with_single_dots() {
        for name in ["gpu", "licence.x", "a-b_c.d1"] {
            assert!(is_name(name), "{name}");
        }
        let long = "a".repeat(NAME_BYTES_MAX + 1);
        for name in [
            "", ".", "a.", ".a", "a..b", "1a", "a b", "ä", "cores", "memory", &long,
        ] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn resources_parse_flag_syntax() {
        let expected = [("gpu".to_owned(), 2), ("licence.x".to_owned(), 1)];
        assert_eq!(parse(" gpu=2, licence.x "), Ok(BTreeMap::from(expected)));
        assert_eq!(parse(""), Ok(BTreeMap::new()));
        for wrong in [
            "gpu=",
            "gpu=-1",
            "gpu=1.5",
            "=1",
            "g p=1",
            "gpu=1,gpu=2",
            "gpu=1000000001",
            "memory=1",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn missing_resource_is_named_with_needed_and_offered_amount() {
        let lack = |needs: Needs| {
            offers(4, 100, 2)
                .lacks(&needs)
                .map(|lack| (lack.what, lack.needs, lack.offered))
        };
        assert_eq!(lack(needs(4, 100, 2)), None);
        assert_eq!(lack(needs(5, 0, 0)), Some(("cores".into(), 5, 4)));
        assert_eq!(lack(needs(0, 101, 0)), Some(("memory".into(), 101, 100)));
        assert_eq!(lack(needs(1, 0, 3)), Some(("gpu".into(), 3, 2)));
        let other = Needs {
            named: BTreeMap::from([("licence".into(), 1)]),
            ..Needs::default()
        };
        assert_eq!(lack(other), Some(("licence".into(), 1, 0)));
        let unstated = Offers::of_cores(1);
        assert_eq!(
            unstated.lacks(&needs(1, u64::MAX, 0)),
            None,
            "it does not report how much it has"
        );
    }

    #[test]
    fn waiting_label_reserves_only_the_resources_it_needs() {
        let mut ledger = ResourceLedger::new(offers(4, 100, 2));
        assert!(ledger.take(&needs(2, 0, 1)));
        // This label needs a third core; the two free cores stay reserved for it.
        let waiting = [
            needs(3, 0, 0),
            needs(1, 0, 0),
            needs(0, 0, 1),
            needs(0, 0, 1),
        ];
        let first = |ledger: &ResourceLedger, skip: usize| {
            let labels = waiting.iter().enumerate().skip(skip);
            first_to_start(ledger, labels, true, |_| true)
        };
        assert_eq!(first(&ledger, 0), Some(2), "a light one with a GPU passes");
        assert!(ledger.take(&waiting[2]));
        assert_eq!(
            first(&ledger, 0),
            None,
            "no GPU is left, and the cores are kept"
        );
        assert_eq!(first(&ledger, 1), Some(1), "nobody waits before it");
        ledger.give_back(&needs(2, 0, 1));
        assert_eq!(first(&ledger, 0), Some(0));
    }

    fn place(node: u32, cores: u32, programs: Option<&[&str]>) -> NodeOffer {
        NodeOffer {
            node: NodeId(node),
            server_cores: false,
            offers: Offers::of_cores(cores),
            programs: programs.map(|all| all.iter().map(|&name| name.to_owned()).collect()),
        }
    }

    #[test]
    fn why_nowhere_names_missing_resource_and_its_holder() {
        let wants = |cores, programs: &[&str]| TaskRequirements {
            needs: needs(cores, 0, 0),
            programs: programs.iter().map(|&name| name.to_owned()).collect(),
        };
        let all = [
            place(0, 2, Some(&["awk"])),
            place(1, 8, Some(&[])),
            place(2, 16, None),
        ];
        let why = |wants: &TaskRequirements, pinned: Option<u32>| {
            why_nowhere(wants, &all, pinned.map(NodeId)).unwrap_or_default()
        };
        assert_eq!(why(&wants(8, &[]), None), "");
        assert_eq!(why(&wants(2, &["awk"]), None), "");
        assert_eq!(
            why(&wants(17, &[]), None),
            "it needs cores = 17, and the most that a node offers is 16"
        );
        assert_eq!(
            why(&wants(4, &["awk"]), Some(0)),
            "it needs cores = 4, and node 0 offers 2"
        );
        assert_eq!(
            why(&wants(1, &["awk"]), Some(1)),
            "node 1 does not have the program `awk`; node 0 does"
        );
        assert_eq!(
            why(&wants(4, &["awk"]), None),
            "it needs cores = 4, the program `awk`, and no node has all of that together"
        );
        assert_eq!(why(&wants(1, &["awk"]), Some(2)), "", "it did not say");
        assert_eq!(
            why_nowhere(&wants(9, &["x"]), &[], None),
            None,
            "the offers are not known"
        );
    }

    proptest! {
        /// For any order of takes and returns: no more than the node's resources are taken, and all resources are free in the end.
        #[test]
        fn resource_ledger_never_overdraws_and_gets_all_back(
            steps in proptest::collection::vec((any::<bool>(), 0_u32..6, 0_u64..150, 0_u64..4), 0..100),
        ) {
            let mut ledger = ResourceLedger::new(offers(4, 100, 2));
            let mut taken: Vec<Needs> = Vec::new();
            for (take, cores, memory, gpu) in steps {
                if take || taken.is_empty() {
                    let needs = needs(cores, memory, gpu);
                    let could = offers(4, 100, 2).lacks(&needs).is_none();
                    let took = ledger.take(&needs);
                    prop_assert!(could || !took);
                    taken.extend(took.then_some(needs));
                } else {
                    let needs = taken.swap_remove(usize::try_from(gpu).unwrap() % taken.len());
                    ledger.give_back(&needs);
                }
                prop_assert!(taken.iter().map(|one| one.cores).sum::<u32>() <= 4);
                prop_assert!(taken.iter().filter(|one| one.cores == 0).count() <= LIGHT_MAX as usize);
                prop_assert!(taken.iter().map(|one| one.memory_bytes).sum::<u64>() <= 100);
                let gpus = taken.iter().filter_map(|one| one.named.get("gpu"));
                prop_assert!(gpus.sum::<u64>() <= 2);
                prop_assert_eq!(ledger.is_whole(), taken.is_empty());
            }
            for needs in taken {
                ledger.give_back(&needs);
            }
            prop_assert!(ledger.is_whole());
        }
    }
}
