//! Nodes of the memory tier, and workspaces. The host of such a node dies at random times, with its clients and all data in its memory:
//! data without another replica is lost and reported as lost, and no other data is. Workspaces and their files are created and removed.

use crate::dice::{Dice, mix};
use crate::node::SimulatedNode;
use crate::world::World;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Named};

/// Directory whose files are to be stored in memory.
pub(crate) const MEMORY: &str = "m";
/// Names of possible workspaces, in the notation of clients' directories.
pub(crate) const WORKSPACES: [&str; 2] = ["workspaces/r0", "workspaces/r1"];
/// Longest pause between two deaths of a host, and between two operations on workspaces, in milliseconds.
const END_PAUSE_MS: u64 = 20_000;
const WORKSPACE_PAUSE_MS: u64 = 4000;
/// Longest lifetime of a workspace, in milliseconds.
const TTL_MS: u64 = 30_000;
/// Capacity of a node of the memory tier, in bytes: it holds only some files, so that writers continue other files on other nodes.
const CAPACITY_BYTES: u64 = 3000;
/// Text of the server's message about data that was lost with a node's memory.
const FORGOTTEN: &str = "was in memory, which was lost with its host";

/// State of a workspace from the view of its creator.
#[derive(Debug)]
struct Workspace {
    ino: u64,
    /// Time at which the workspace expires, in milliseconds; `None` if it does not expire.
    expires: Option<u64>,
    /// Whether a client removed the workspace.
    ended: bool,
    /// Whether a client joined the workspace: it may end when the server receives no messages from the last lease holder.
    joined: bool,
    members: Vec<u64>,
}

/// State of the nodes of the memory tier and of the workspaces.
#[derive(Debug)]
pub(crate) struct MemoryTier {
    dice: Dice,
    /// Index of the first node of the memory tier.
    first: usize,
    workspaces: BTreeMap<&'static str, Workspace>,
    /// Objects that were stored in a node's memory that was lost.
    lost: BTreeSet<u64>,
    /// Nodes whose memory was lost.
    hosts: BTreeSet<u32>,
    /// Nodes and objects with which clients were asked to continue when a node was full. A client that is killed at this point leaves the
    /// bytes that arrived on the node.
    passing: BTreeSet<(u32, u64)>,
    /// Number of workspaces that have ended.
    pub(crate) ended: u64,
}

impl Workspace {
    /// Returns whether the workspace may end.
    fn is_over(&self, now: u64) -> bool {
        self.ended || self.joined || self.expires.is_some_and(|at| at <= now)
    }
}

impl World {
    /// Adds nodes of the memory tier to a new cluster.
    pub(crate) fn build_memory_tier(&mut self, seed: u64) {
        let mut dice = Dice::new(mix(seed ^ 0x7761_7265));
        let first = self.nodes.len();
        for _ in 0..1 + dice.roll(2) {
            let id = u32::try_from(self.nodes.len()).unwrap_or(0);
            let space = CAPACITY_BYTES / (1 + dice.roll(3));
            self.nodes.push(SimulatedNode::in_memory(id, space));
            self.attached.push(None);
        }
        self.memory_tier = Some(MemoryTier {
            dice,
            first,
            workspaces: BTreeMap::new(),
            lost: BTreeSet::new(),
            hosts: BTreeSet::new(),
            passing: BTreeSet::new(),
            ended: 0,
        });
    }

    /// Returns the node of the memory tier on a client's host.
    pub(crate) fn memory_of(&self, client: usize) -> Option<u32> {
        let memory_tier = self.memory_tier.as_ref()?;
        let memories = &self.nodes[memory_tier.first..];
        Some(memories[client % memories.len()].id)
    }

    pub(crate) fn open_memory_tier(&mut self) {
        if self.memory_tier.is_some() {
            self.end_host();
            self.random_workspace_operation();
        }
    }

    /// Schedules the death of the host of a node of the memory tier after a pause.
    fn end_host(&mut self) {
        let calm = self.calm.get();
        let Some(memory_tier) = &mut self.memory_tier else {
            return;
        };
        if calm {
            return;
        }
        let delay = 1 + memory_tier.dice.roll(END_PAUSE_MS);
        self.later(delay, "a host ends", |world| {
            if !world.calm.get() {
                world.lose_memory();
                world.end_host();
            }
        });
    }

    /// Returns whether the memory of a node was ever lost.
    fn has_ended(&self, node: u32) -> bool {
        let memory_tier = self.memory_tier.as_ref();
        memory_tier.is_some_and(|memory_tier| memory_tier.hosts.contains(&node))
    }

    fn lose_memory(&mut self) {
        let Some(memory_tier) = &mut self.memory_tier else {
            return;
        };
        let memories = self.nodes.len() - memory_tier.first;
        let which = memory_tier.dice.roll(memories as u64);
        let index = memory_tier.first + usize::try_from(which).unwrap_or(0);
        let id = self.nodes[index].id;
        for client in 0..self.slots.len() {
            if self.memory_of(client) == Some(id) {
                self.kill_client(client);
            }
        }
        self.kill_node(index);
        self.say(&format!("the memory of node {id} is lost"));
        let lost = self.nodes[index].forget();
        let Some(memory_tier) = &mut self.memory_tier else {
            return;
        };
        memory_tier.hosts.insert(id);
        for (object, known) in lost {
            memory_tier.lost.insert(object);
            if known.sealed {
                self.reference.loses(object, known.bytes);
            }
        }
        // Versions without written bytes are lost, too.
        let written = self.numbers(&format!("SELECT object FROM writing WHERE node = {id}"));
        if let Some(memory_tier) = &mut self.memory_tier {
            memory_tier.lost.extend(written);
        }
    }

    fn numbers(&self, sql: &str) -> Vec<u64> {
        let Some(server) = &self.server else {
            return Vec::new();
        };
        let numbers = server.read(|db| {
            let mut statement = db.prepare_cached(sql)?;
            let rows = statement.query_map([], |row| row.get::<_, i64>(0))?;
            rows.map(|number| number.map(i64::cast_unsigned)).collect()
        });
        numbers.expect("the server's tables can be read")
    }

    /// Records changes that the server made by itself: first versions that are lost, and workspaces that have ended.
    pub(crate) fn take_memory_tier(&mut self) {
        let Some(memory_tier) = &self.memory_tier else {
            return;
        };
        if self.server.is_none() {
            return;
        }
        let (lost, workspaces) = (
            !memory_tier.hosts.is_empty(),
            !memory_tier.workspaces.is_empty(),
        );
        if lost {
            self.take_lost();
        }
        if workspaces {
            self.take_ended();
        }
    }

    fn take_lost(&mut self) {
        let Some(server) = &self.server else { return };
        let sql = "SELECT ino, object, replica.node FROM replica CROSS JOIN inode USING (object) WHERE detail = ?1";
        let found = server.read(|db| {
            let mut statement = db.prepare_cached(sql)?;
            let rows = statement.query_map([FORGOTTEN], |row| {
                let number = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
                Ok((number(0)?, number(1)?, row.get(2)?))
            })?;
            rows.collect::<Result<Vec<_>, _>>()
        });
        for (ino, object, node) in found.expect("the server's tables can be read") {
            assert!(
                self.has_ended(node),
                "inode {ino} is reported to be lost, and the memory of node {node} is there"
            );
            self.reference.is_lost(ino, object);
        }
    }

    fn take_ended(&mut self) {
        let there: BTreeSet<u64> = self
            .numbers("SELECT ino FROM workspace")
            .into_iter()
            .collect();
        let now = self.now;
        let Some(memory_tier) = &mut self.memory_tier else {
            return;
        };
        let over: Vec<&'static str> = (memory_tier.workspaces.iter())
            .filter(|(_, workspace)| !there.contains(&workspace.ino))
            .map(|(&name, _)| name)
            .collect();
        for name in over {
            let Some(workspace) = memory_tier.workspaces.remove(name) else {
                continue;
            };
            let may = workspace.is_over(now);
            assert!(may, "{name} ends without a reason: {workspace:?}");
            memory_tier.ended += 1;
            self.reference.directory_ends(name, workspace.ino);
        }
    }

    /// Creates, joins, leaves or removes a random workspace.
    fn random_workspace_operation(&mut self) {
        let now = self.now;
        if let (Some(server), Some(memory_tier)) = (&self.server, &mut self.memory_tier) {
            let dice = &mut memory_tier.dice;
            let name = WORKSPACES[usize::try_from(dice.roll(WORKSPACES.len() as u64)).unwrap_or(0)];
            let short = name.trim_start_matches("workspaces/");
            match (memory_tier.workspaces.get_mut(name), dice.roll(4)) {
                (None, _) => {
                    let ttl = dice.chance(500).then(|| 1 + dice.roll(TTL_MS));
                    let made = server.create_workspace(short, ttl.map(Duration::from_millis));
                    if let Some(ino) = made {
                        self.reference.directory(name, ino);
                        let workspace = Workspace {
                            ino,
                            expires: ttl.map(|ttl| now + ttl),
                            ended: false,
                            joined: false,
                            members: Vec::new(),
                        };
                        memory_tier.workspaces.insert(name, workspace);
                    }
                }
                (Some(workspace), 0) => workspace.ended |= server.end_workspace(short),
                (Some(workspace), 1) => {
                    let joined = server.join_workspace(short);
                    workspace.joined |= joined.is_some();
                    workspace.members.extend(joined);
                }
                (Some(workspace), 2) => {
                    if let Some(member) = workspace.members.pop() {
                        server.leave_workspace(short, member);
                    }
                }
                // The other lease holders renew their lease.
                (Some(workspace), _) => {
                    workspace
                        .members
                        .retain(|&member| server.renew_lease(short, member));
                }
            }
        }
        if !self.calm.get() {
            let dice = self
                .memory_tier
                .as_mut()
                .map(|memory_tier| &mut memory_tier.dice);
            let delay = 1 + dice.map_or(0, |dice| dice.roll(WORKSPACE_PAUSE_MS));
            self.later(delay, "workspaces", World::random_workspace_operation);
        }
    }

    /// Returns whether an object was stored in a node's memory that was lost.
    pub(crate) fn is_lost(&self, object: u64) -> bool {
        let memory_tier = self.memory_tier.as_ref();
        memory_tier.is_some_and(|memory_tier| memory_tier.lost.contains(&object))
    }

    /// Returns the objects that the server reports as lost with a node's memory, by node.
    fn named(&self) -> BTreeSet<(u32, u64)> {
        let Some(server) = &self.server else {
            return BTreeSet::new();
        };
        let named = server.read(|db| {
            let mut statement =
                db.prepare_cached("SELECT node, object FROM replica WHERE detail = ?1")?;
            let rows = statement.query_map([FORGOTTEN], |row| {
                Ok((row.get(0)?, row.get::<_, i64>(1)?.cast_unsigned()))
            })?;
            rows.collect()
        });
        named.expect("the server's tables can be read")
    }

    /// Returns the lost objects that have no other replica.
    pub(crate) fn lost(&self) -> BTreeSet<u64> {
        let named = self.named();
        let held = |object: u64| {
            let holders = self.nodes.iter();
            holders
                .filter(|one| one.store.read(object).is_some())
                .count()
        };
        let lost = named.into_iter().map(|(_, object)| object);
        lost.filter(|&object| held(object) == 0).collect()
    }

    /// Checks that objects reported as lost were in a lost memory and no longer exist on their node. Returns these objects, by node.
    pub(crate) fn check_lost(&self) -> BTreeSet<(u32, u64)> {
        let named = self.named();
        for &(id, object) in &named {
            // If the first version of a file is lost while it is written, its object is stored nowhere.
            let was_nowhere = self.reference.content(object).is_none() && self.has_ended(id);
            assert!(
                self.is_lost(object) || was_nowhere,
                "object {object} is reported to be lost, and its memory is there"
            );
            let node = self.nodes.iter().find(|node| node.id == id);
            assert!(
                node.is_some_and(|node| node.store.read(object).is_none()),
                "object {object} is reported to be lost, and node {id} has it"
            );
        }
        named
    }

    /// Returns the workspaces that should have ended and have not ended.
    pub(crate) fn workspaces_over(&self) -> Vec<String> {
        let workspaces = self.memory_tier.iter().flat_map(|one| &one.workspaces);
        let over = workspaces.filter(|(_, workspace)| workspace.is_over(self.now));
        over.map(|(name, workspace)| format!("{name} {workspace:?}"))
            .collect()
    }

    /// Records the nodes on which clients must continue writing because a node was full.
    pub(crate) fn passes(&mut self, ops: &[Op], results: &[v1::NameResult]) {
        let Some(memory_tier) = &mut self.memory_tier else {
            return;
        };
        for (op, result) in ops.iter().zip(results) {
            if let (Op::Overflow(overflow), Some(Named::Opened(opened))) = (op, &result.result) {
                memory_tier.passing.insert((opened.node, overflow.object));
            }
        }
    }

    /// Returns whether a killed client left an object on the node on which the client was to continue writing.
    pub(crate) fn was_left(&self, node: &SimulatedNode, object: u64) -> bool {
        let known = node.store.objects.get(&object);
        let passing = |memory_tier: &MemoryTier| memory_tier.passing.contains(&(node.id, object));
        known.is_some_and(|known| !known.sealed) && self.memory_tier.as_ref().is_some_and(passing)
    }
}
