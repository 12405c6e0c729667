//! Versions that consist of several objects, assembled from the nodes' data about each object.

use super::kept::RecoveredNode;
use std::collections::BTreeMap;
use tidemill_meta::node_database::KeptObject;
use tidemill_meta::parts::{self, PartRow};
use tidemill_meta::placement::{removals, replicas, under_replicated};
use tidemill_meta::vnode::NO_NODE;
use tidemill_meta::{Connection, Fault};
use tidemill_model::id::ObjectId;
use tidemill_model::layout::{PartOf, StripedLayout};
use tidemill_wire::v1::{Layout, NameNote};

/// A version that was assembled from the data of its parts.
#[derive(Debug)]
pub(super) struct Gathered {
    /// The version in the form of a single object.
    pub(super) version: KeptObject,
    unit: u64,
    /// Encoded extents, which map bytes of the parts to bytes of the file, if the version consists of extents.
    extents: Option<Vec<u8>>,
    /// Remaining parts by position: the first replica, and the nodes of the other replicas.
    parts: BTreeMap<u64, (KeptObject, Vec<u32>)>,
    /// Whether all parts of the version exist.
    pub(super) whole: bool,
}

/// Returns all versions with parts on the nodes, by the versions' own object ids.
pub(super) fn gather(all: &[RecoveredNode]) -> BTreeMap<u64, Gathered> {
    let noted = noted(all);
    let mut places = BTreeMap::new();
    for (&version, layout) in &noted {
        for (index, part) in (0..).zip(&layout.1.parts) {
            let part_of = PartOf {
                version: ObjectId(version),
                index,
                width: layout.1.parts.len() as u64,
                unit: layout.1.unit,
            };
            places.insert(part.object, part_of);
        }
    }
    let objects = all.iter().flat_map(|kept| &kept.records.objects);
    let parts = objects.filter_map(|object| {
        if let Some(&part) = places.get(&object.id) {
            return Some((object, part));
        }
        // If the version is known, no byte of this part belongs to the file any more.
        let part = object.part?;
        (part.unit > 0 || !noted.contains_key(&part.version.0)).then_some((object, part))
    });
    let mut parts: Vec<_> = parts.collect();
    // The oldest replica is the first.
    parts.sort_by_key(|(object, part)| (part.version, part.index, object.id, object.sealed_at));
    let mut found: BTreeMap<u64, Gathered> = BTreeMap::new();
    for (object, part) in parts {
        let gathered = found.entry(part.version.0).or_insert_with(|| Gathered {
            version: KeptObject {
                id: part.version.0,
                part: None,
                ..object.clone()
            },
            unit: part.unit,
            extents: None,
            parts: BTreeMap::new(),
            whole: false,
        });
        gathered.version.sealed_at = gathered.version.sealed_at.max(object.sealed_at);
        let entry = gathered.parts.entry(part.index);
        let (first, replicas) = entry.or_insert_with(|| (object.clone(), Vec::new()));
        if first.id == object.id && first.node != object.node {
            replicas.push(object.node);
        }
        gathered.whole = part.unit > 0 && gathered.parts.len() as u64 == part.width;
    }
    for (version, gathered) in &mut found {
        if let Some((note, _)) = noted.get(version) {
            // The outputs of a task's instances have different inode numbers.
            gathered.version.inode = note.ino;
        }
        if gathered.unit == 0 {
            // Without a note, the positions of the bytes are unknown.
            if let Some((note, layout)) = noted.get(version) {
                gathered.version.size = note.size;
                gathered.whole = gathered.parts.len() == layout.parts.len();
                gathered.extents = Some(layout.extents.clone());
            }
            continue;
        }
        let sizes = gathered.parts.values().map(|(part, _)| part.size);
        let sizes: Vec<u64> = sizes.collect();
        let size = StripedLayout::size_of(gathered.unit, &sizes);
        gathered.version.size = size.unwrap_or(0);
    }
    found
}

/// Returns the last note about each file that consists of several objects, with its layout, by the versions' own object ids.
fn noted(all: &[RecoveredNode]) -> BTreeMap<u64, (&NameNote, &Layout)> {
    let mut found: BTreeMap<u64, (&NameNote, &Layout)> = BTreeMap::new();
    let notes = all.iter().flat_map(|kept| &kept.records.notes);
    for (note, layout) in notes.filter_map(|note| Some((note, note.layout.as_ref()?))) {
        let known = found.entry(note.object).or_insert((note, layout));
        if note.change > known.0.change {
            *known = (note, layout);
        }
    }
    found
}

impl Gathered {
    /// Writes the rows with the nodes of the parts. If the version has a later version, its parts are queued for removal.
    pub(super) fn write(
        &self,
        db: &Connection,
        superseded: bool,
        wanted: usize,
    ) -> Result<(), Fault> {
        let version = &self.version;
        parts::insert_layout(db, version.id, self.unit, version.size)?;
        if let Some(extents) = &self.extents {
            parts::set_extents(db, version.id, version.size, extents)?;
        }
        for (index, (part, others)) in &self.parts {
            let row = PartRow {
                object: part.id,
                node: part.node,
                size: Some(part.size),
            };
            let index = u32::try_from(*index).unwrap_or(u32::MAX);
            parts::insert_part(db, version.id, index, row)?;
            for node in others {
                replicas::insert(db, part.id, *node)?;
            }
            let has = others.len() + 1;
            if has != wanted && !superseded {
                let has = i64::try_from(has).unwrap_or(1);
                under_replicated::schedule(db, part.id, has, under_replicated::AT_ONCE)?;
            }
        }
        if superseded {
            let sealed_at = version.sealed_at.cast_signed();
            removals::queue(db, version.id, NO_NODE, sealed_at)?;
        }
        Ok(())
    }

    /// Returns the object ids of the parts.
    pub(super) fn objects(&self) -> impl Iterator<Item = u64> {
        self.parts.values().map(|(part, _)| part.id)
    }

    /// Returns the largest number of nodes that hold a replica of one part.
    pub(super) fn replicas(&self) -> usize {
        let replicas = self.parts.values().map(|(_, replicas)| replicas.len() + 1);
        replicas.max().unwrap_or(1)
    }
}
