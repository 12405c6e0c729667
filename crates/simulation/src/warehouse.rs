//! Nodes in memory, and rooms. The host of such a node dies at random times, with its clients and all data in its memory: data
//! without another replica is lost and reported as lost, and no other data is. Rooms are created and removed, and their files with them.

use crate::dice::{Dice, mix};
use crate::node::Node;
use crate::world::World;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Named};

/// Directory whose files are to be stored in memory.
pub(crate) const MEMORY: &str = "m";
/// Possible rooms, in the notation of clients' directories.
pub(crate) const ROOMS: [&str; 2] = ["rooms/r0", "rooms/r1"];
/// Longest pause between two deaths of a host, and between two operations on rooms, in milliseconds.
const END_PAUSE_MS: u64 = 20_000;
const ROOM_PAUSE_MS: u64 = 4000;
/// Longest lifetime of a room, in milliseconds.
const TTL_MS: u64 = 30_000;
/// Capacity of a node in memory, in bytes: it holds only some files, so that others continue on other nodes.
const CAPACITY_BYTES: u64 = 3000;
/// The server's message about data lost with a memory.
const FORGOTTEN: &str = "was in memory, which was lost with its host";

/// A room from the view of its creator.
#[derive(Debug)]
struct Room {
    ino: u64,
    /// Time at which the room expires, in milliseconds; `None` if it does not expire.
    expires: Option<u64>,
    /// Whether a client removed the room.
    ended: bool,
    /// Whether a client joined the room: it may end when the server hears nothing from the last member.
    joined: bool,
    members: Vec<u64>,
}

/// State of nodes in memory and of rooms; see the module.
#[derive(Debug)]
pub(crate) struct Warehouse {
    dice: Dice,
    /// Index of the first node in memory.
    first: usize,
    rooms: BTreeMap<&'static str, Room>,
    /// Objects that were stored in a lost memory.
    lost: BTreeSet<u64>,
    /// Nodes whose memory was lost.
    hosts: BTreeSet<u32>,
    /// Nodes and objects with which clients were asked to continue when a node was full. A client that is killed at this point
    /// leaves the bytes that arrived.
    passing: BTreeSet<(u32, u64)>,
    /// Number of rooms that have ended.
    pub(crate) ended: u64,
}

impl Room {
    /// Returns whether the room may end.
    fn is_over(&self, now: u64) -> bool {
        self.ended || self.joined || self.expires.is_some_and(|at| at <= now)
    }
}

impl World {
    /// Adds nodes in memory to a new cluster.
    pub(crate) fn build_warehouse(&mut self, seed: u64) {
        let mut dice = Dice::new(mix(seed ^ 0x7761_7265));
        let first = self.nodes.len();
        for _ in 0..1 + dice.roll(2) {
            let id = u32::try_from(self.nodes.len()).unwrap_or(0);
            let room = CAPACITY_BYTES / (1 + dice.roll(3));
            self.nodes.push(Node::in_memory(id, room));
            self.attached.push(None);
        }
        self.warehouse = Some(Warehouse {
            dice,
            first,
            rooms: BTreeMap::new(),
            lost: BTreeSet::new(),
            hosts: BTreeSet::new(),
            passing: BTreeSet::new(),
            ended: 0,
        });
    }

    /// Returns the node in memory on a client's host.
    pub(crate) fn memory_of(&self, client: usize) -> Option<u32> {
        let warehouse = self.warehouse.as_ref()?;
        let memories = &self.nodes[warehouse.first..];
        Some(memories[client % memories.len()].id)
    }

    pub(crate) fn open_warehouse(&mut self) {
        if self.warehouse.is_some() {
            self.end_host();
            self.do_something_with_a_room();
        }
    }

    /// Lets the host of a node in memory die after a pause.
    fn end_host(&mut self) {
        let calm = self.calm.get();
        let Some(warehouse) = &mut self.warehouse else {
            return;
        };
        if calm {
            return;
        }
        let delay = 1 + warehouse.dice.roll(END_PAUSE_MS);
        self.later(delay, "a host ends", |world| {
            if !world.calm.get() {
                world.lose_memory();
                world.end_host();
            }
        });
    }

    /// Returns whether the memory of a node was ever lost.
    fn has_ended(&self, node: u32) -> bool {
        let warehouse = self.warehouse.as_ref();
        warehouse.is_some_and(|warehouse| warehouse.hosts.contains(&node))
    }

    fn lose_memory(&mut self) {
        let Some(warehouse) = &mut self.warehouse else {
            return;
        };
        let memories = self.nodes.len() - warehouse.first;
        let which = warehouse.dice.roll(memories as u64);
        let index = warehouse.first + usize::try_from(which).unwrap_or(0);
        let id = self.nodes[index].id;
        for client in 0..self.slots.len() {
            if self.memory_of(client) == Some(id) {
                self.kill_client(client);
            }
        }
        self.kill_node(index);
        self.say(&format!("the memory of node {id} is lost"));
        let lost = self.nodes[index].forget();
        let Some(warehouse) = &mut self.warehouse else {
            return;
        };
        warehouse.hosts.insert(id);
        for (object, known) in lost {
            warehouse.lost.insert(object);
            if known.sealed {
                self.reference.loses(object, known.bytes);
            }
        }
        // Versions without written bytes are lost, too.
        let written = self.numbers(&format!("SELECT object FROM writing WHERE node = {id}"));
        if let Some(warehouse) = &mut self.warehouse {
            warehouse.lost.extend(written);
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

    /// Handles changes that the server made by itself: first versions that are lost, and rooms that have ended.
    pub(crate) fn take_warehouse(&mut self) {
        let Some(warehouse) = &self.warehouse else {
            return;
        };
        if self.server.is_none() {
            return;
        }
        let (lost, rooms) = (!warehouse.hosts.is_empty(), !warehouse.rooms.is_empty());
        if lost {
            self.take_lost();
        }
        if rooms {
            self.take_ended();
        }
    }

    fn take_lost(&mut self) {
        let Some(server) = &self.server else { return };
        let sql = "SELECT ino, object, corruption.node FROM corruption CROSS JOIN inode USING (object) WHERE what = ?1";
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
                "inode {ino} is said to be lost, and the memory of node {node} is there"
            );
            self.reference.is_lost(ino, object);
        }
    }

    fn take_ended(&mut self) {
        let there: BTreeSet<u64> = self.numbers("SELECT ino FROM room").into_iter().collect();
        let now = self.now;
        let Some(warehouse) = &mut self.warehouse else {
            return;
        };
        let over: Vec<&'static str> = (warehouse.rooms.iter())
            .filter(|(_, room)| !there.contains(&room.ino))
            .map(|(&name, _)| name)
            .collect();
        for name in over {
            let Some(room) = warehouse.rooms.remove(name) else {
                continue;
            };
            let may = room.is_over(now);
            assert!(may, "{name} ends, and nobody wants it to: {room:?}");
            warehouse.ended += 1;
            self.reference.directory_ends(name, room.ino);
        }
    }

    /// Creates, joins, leaves or removes a room.
    fn do_something_with_a_room(&mut self) {
        let now = self.now;
        if let (Some(server), Some(warehouse)) = (&self.server, &mut self.warehouse) {
            let dice = &mut warehouse.dice;
            let name = ROOMS[usize::try_from(dice.roll(ROOMS.len() as u64)).unwrap_or(0)];
            let short = name.trim_start_matches("rooms/");
            match (warehouse.rooms.get_mut(name), dice.roll(4)) {
                (None, _) => {
                    let ttl = dice.chance(500).then(|| 1 + dice.roll(TTL_MS));
                    let made = server.create_room(short, ttl.map(Duration::from_millis));
                    if let Some(ino) = made {
                        self.reference.directory(name, ino);
                        let room = Room {
                            ino,
                            expires: ttl.map(|ttl| now + ttl),
                            ended: false,
                            joined: false,
                            members: Vec::new(),
                        };
                        warehouse.rooms.insert(name, room);
                    }
                }
                (Some(room), 0) => room.ended |= server.end_room(short),
                (Some(room), 1) => {
                    let joined = server.join_room(short);
                    room.joined |= joined.is_some();
                    room.members.extend(joined);
                }
                (Some(room), 2) => {
                    if let Some(member) = room.members.pop() {
                        server.leave_room(short, member);
                    }
                }
                // The other members renew their membership.
                (Some(room), _) => {
                    room.members
                        .retain(|&member| server.stay_in_room(short, member));
                }
            }
        }
        if !self.calm.get() {
            let dice = self.warehouse.as_mut().map(|warehouse| &mut warehouse.dice);
            let delay = 1 + dice.map_or(0, |dice| dice.roll(ROOM_PAUSE_MS));
            self.later(delay, "rooms", World::do_something_with_a_room);
        }
    }

    /// Returns whether an object was stored in a lost memory.
    pub(crate) fn is_lost(&self, object: u64) -> bool {
        let warehouse = self.warehouse.as_ref();
        warehouse.is_some_and(|warehouse| warehouse.lost.contains(&object))
    }

    /// Returns the objects that the server reports as lost with a memory, by node.
    fn named(&self) -> BTreeSet<(u32, u64)> {
        let Some(server) = &self.server else {
            return BTreeSet::new();
        };
        let named = server.read(|db| {
            let mut statement =
                db.prepare_cached("SELECT node, object FROM corruption WHERE what = ?1")?;
            let rows = statement.query_map([FORGOTTEN], |row| {
                Ok((row.get(0)?, row.get::<_, i64>(1)?.cast_unsigned()))
            })?;
            rows.collect()
        });
        named.expect("the server's tables can be read")
    }

    /// Returns those of the lost objects that have no other replica.
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

    /// Checks that each object reported as lost was stored in a lost memory and no longer exists there. Returns these objects, by node.
    pub(crate) fn check_lost(&self) -> BTreeSet<(u32, u64)> {
        let named = self.named();
        for &(id, object) in &named {
            // If the first version of a file is lost while it is written, its object is stored nowhere.
            let was_nowhere = self.reference.content(object).is_none() && self.has_ended(id);
            assert!(
                self.is_lost(object) || was_nowhere,
                "object {object} is said to be lost, and its memory is there"
            );
            let node = self.nodes.iter().find(|node| node.id == id);
            assert!(
                node.is_some_and(|node| node.store.read(object).is_none()),
                "object {object} is said to be lost, and node {id} has it"
            );
        }
        named
    }

    /// Returns the rooms that should have ended and have not.
    pub(crate) fn rooms_over(&self) -> Vec<String> {
        let rooms = self.warehouse.iter().flat_map(|one| &one.rooms);
        let over = rooms.filter(|(_, room)| room.is_over(self.now));
        over.map(|(name, room)| format!("{name} {room:?}"))
            .collect()
    }

    /// Records the nodes on which clients must continue writing because a node was full.
    pub(crate) fn passes(&mut self, ops: &[Op], results: &[v1::NameResult]) {
        let Some(warehouse) = &mut self.warehouse else {
            return;
        };
        for (op, result) in ops.iter().zip(results) {
            if let (Op::Spill(spill), Some(Named::Opened(opened))) = (op, &result.result) {
                warehouse.passing.insert((opened.node, spill.object));
            }
        }
    }

    /// Returns whether a killed client left an object on the node on which it was to continue.
    pub(crate) fn was_left(&self, node: &Node, object: u64) -> bool {
        let known = node.store.objects.get(&object);
        let passing = |warehouse: &Warehouse| warehouse.passing.contains(&(node.id, object));
        known.is_some_and(|known| !known.sealed) && self.warehouse.as_ref().is_some_and(passing)
    }
}
