//! Corrupted and vanished objects, and their detection by nodes. The model follows `tidemill_node::scrub`, with the production records and
//! in the same order of recording, setting aside and reporting.

use crate::node::{Did, Life, SimulatedNode, failed_now};
use crate::store::ObjectContent;
use crate::world::World;
use std::sync::Arc;
use tidemill_model::id::ObjectId;
use tidemill_model::label::{Corrupt, FailureKind};
use tidemill_node::labels::Live;
use tidemill_node::records::{self, Hash};
use tidemill_node::task::LabelEffects;
use tidemill_wire::v1::{self, from_node::Message};

/// Longest pause between two faults of this kind, in milliseconds.
const PAUSE_MS: u64 = 2000;
/// Description of corruption in reports of nodes.
const WHAT: &str = "has another content";
/// Number of attempts to find an object that may be corrupted.
const TRIES: u64 = 20;

/// Returns a placeholder for the hash of bytes.
pub(crate) fn hash(bytes: ObjectContent) -> Hash {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&bytes.token.to_le_bytes());
    hash[8..16].copy_from_slice(&bytes.size.to_le_bytes());
    hash
}

/// Finding of a node about an object that it checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RotFinding {
    Good(u64),
    Unknown,
    Corrupt,
}

impl SimulatedNode {
    /// Compares an object with its recorded hash. If no hash is recorded yet, the length is compared.
    fn look(&self, object: u64) -> RotFinding {
        let sum = self.read(|db| records::sum(db, ObjectId(object)));
        match (sum, self.store.read(object)) {
            (None, _) => RotFinding::Unknown,
            (Some(sum), Some(bytes)) if !self.store.is_corrupt(object) => {
                assert_eq!(sum.size, bytes.size, "object {object} has another length");
                RotFinding::Good(bytes.size)
            }
            (Some(_), _) => RotFinding::Corrupt,
        }
    }

    /// Records that an object is corrupt, if it is corrupt. Returns whether it is corrupt.
    pub(crate) fn find_corruption(&mut self, object: u64) -> bool {
        let corrupt = self.look(object) == RotFinding::Corrupt;
        if let (true, Some(life)) = (corrupt, &self.life) {
            life.set_corrupt(object);
        }
        corrupt
    }

    /// Checks, when a node starts, the objects that are recorded as corrupt and were not set aside.
    pub(crate) fn settle(&mut self) {
        let marked = self.read(|db| records::corrupt(db, None, u32::MAX));
        for (object, _) in marked {
            match self.look(object.0) {
                RotFinding::Good(_) => {
                    self.read(|db| records::set_corruption(db, object, None));
                }
                RotFinding::Unknown | RotFinding::Corrupt => {
                    self.store.objects.remove(&object.0);
                }
            }
        }
    }

    /// Sets aside and reports objects whose corruption has been recorded.
    pub(crate) fn set_aside(&mut self) {
        let Some(life) = &self.life else { return };
        let found = std::mem::take(&mut *life.corrupt.lock());
        if found.is_empty() {
            return;
        }
        let reported = |&object: &u64| v1::CorruptObject {
            object,
            what: WHAT.into(),
        };
        let objects = found.iter().map(reported).collect();
        life.reports
            .send(Message::Corrupt(v1::CorruptObjects { objects }));
        for object in found {
            // The object may have been rewritten since.
            if self.look(object) == RotFinding::Corrupt {
                self.store.objects.remove(&object);
            }
        }
    }
}

impl Life {
    fn set_corrupt(&self, object: u64) {
        let corrupt = Arc::clone(&self.corrupt);
        let id = ObjectId(object);
        self.db.submit(
            false,
            move |db| records::set_corruption(db, id, Some(WHAT)),
            move |marked| {
                if marked.unwrap_or(false) {
                    corrupt.lock().push(object);
                }
            },
        );
    }
}

/// Returns the end of a label that verified objects.
pub(crate) fn verified(node: &mut SimulatedNode, live: &Live, objects: &[ObjectId]) -> Did {
    let mut outcome = failed_now(live, FailureKind::Device);
    outcome.result = Ok(Vec::new());
    for &object in objects {
        match node.look(object.0) {
            RotFinding::Good(bytes) => outcome.read_bytes += bytes,
            RotFinding::Unknown if node.store.read(object.0).is_some() => {}
            RotFinding::Unknown | RotFinding::Corrupt => {
                node.find_corruption(object.0);
                let what = WHAT.into();
                outcome.corrupt.push(Corrupt { object, what });
            }
        }
    }
    let work = LabelEffects {
        label: Some(Arc::clone(&live.label)),
        ..LabelEffects::without_effect(outcome)
    };
    Did {
        work,
        objects: Vec::new(),
    }
}

impl World {
    /// Corrupts or removes an object that has another replica.
    pub(crate) fn bit_rot(&mut self) {
        if self.calm.get() {
            return;
        }
        let Some(mut dice) = self.bit_rot.take() else {
            return;
        };
        for _ in 0..TRIES {
            let node = usize::try_from(dice.roll(self.nodes.len() as u64)).unwrap_or(0);
            let objects = &self.nodes[node].store.objects;
            let index = usize::try_from(dice.roll(objects.len() as u64)).unwrap_or(0);
            let Some(&object) = objects.keys().nth(index) else {
                continue;
            };
            if self.may_corrupt(node, object) {
                self.say(&format!("object {object} is corrupted on node {node}"));
                let store = &mut self.nodes[node].store;
                if dice.chance(300) {
                    store.objects.remove(&object);
                } else {
                    store.corrupt(object);
                }
                self.corrupted.insert((node, object));
                break;
            }
        }
        let delay = 1 + dice.roll(PAUSE_MS);
        self.bit_rot = Some(dice);
        self.later(delay, "bit rot", World::bit_rot);
    }

    /// Returns whether the server knows another replica, and all replicas that it knows are good.
    fn may_corrupt(&self, node: usize, object: u64) -> bool {
        let Some(server) = &self.server else {
            return false;
        };
        if !self.reference.is_current(object) || self.reference.content(object).is_none() {
            return false;
        }
        let sql = "SELECT node FROM version WHERE object = ?1 AND removed = 0 \
                   UNION SELECT node FROM replica WHERE object = ?1 AND want != 2 AND state >= 2";
        let known = server.read(|db| {
            let mut statement = db.prepare_cached(sql)?;
            let rows = statement.query_map([object.cast_signed()], |row| row.get::<_, u32>(0))?;
            rows.collect::<Result<Vec<_>, _>>()
        });
        let known = known.expect("the server's tables can be read");
        let mut holders = self.nodes.iter().filter(|one| known.contains(&one.id));
        let good = |one: &SimulatedNode| one.look(object) == (RotFinding::Good(self.size(object)));
        let corrupt = |one: &SimulatedNode| {
            let sum = one.read(|db| records::sum(db, ObjectId(object)));
            sum.is_some_and(|sum| sum.corruption.is_some())
        };
        known.len() > 1
            && known.contains(&self.nodes[node].id)
            && holders.all(|one| good(one) && !corrupt(one))
    }

    fn size(&self, object: u64) -> u64 {
        self.reference.content(object).map_or(0, |bytes| bytes.size)
    }

    /// Checks that no client is sent to a replica that the server knows to be corrupt.
    pub(crate) fn check_served(&self, opened: &v1::Opened) {
        let Some(server) = &self.server else { return };
        let sql =
            "SELECT EXISTS (SELECT 1 FROM replica WHERE object = ?1 AND node = ?2 AND state >= 3)";
        let corrupt = server.read(|db| {
            let row = rusqlite::params![opened.object.cast_signed(), opened.node];
            db.query_row(sql, row, |row| row.get::<_, bool>(0))
        });
        assert!(
            !corrupt.expect("the server's tables can be read"),
            "object {} is read from node {}, where it is corrupt",
            opened.object,
            opened.node
        );
    }

    /// Returns the objects that are corrupt or recorded as corrupt, and that were not rewritten yet.
    pub(crate) fn corrupt_objects(&self) -> Vec<String> {
        let mut corrupt = Vec::new();
        for node in &self.nodes {
            let objects = node.store.objects.keys();
            let objects = objects.filter(|&&object| node.store.is_corrupt(object));
            corrupt.extend(objects.map(|object| format!("{object} on node {}", node.id)));
            let marked = node.read(|db| records::corrupt(db, None, u32::MAX));
            let marked = marked.iter();
            corrupt.extend(marked.map(|(object, _)| format!("{object} of node {}", node.id)));
        }
        corrupt
    }
}
