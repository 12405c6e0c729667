//! Requests to drain and remove nodes, and to migrate files. This module checks the requests and writes them to the database
//! ([`tidemill_meta::placement`]). Next: `server/src/replicas.rs`, which decides about the replicas.

pub(crate) mod balance;
pub(crate) mod files;
pub(crate) mod labels;
pub(crate) mod reservations;
#[cfg(test)]
mod tests;

use tidemill_meta::placement::{node_uses, nodes};
use tidemill_meta::shared::NamesShared;
use tidemill_meta::{Connection, Fault};

/// Properties of a node of the cluster that matter for migrations.
#[derive(Clone, Debug)]
pub(crate) struct NodeProperties {
    pub(crate) node: u32,
    pub(crate) store: bool,
    pub(crate) memory: bool,
    pub(crate) burst: bool,
    pub(crate) up: bool,
}

/// Reason why the server refuses an operation on a node.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeRefusal {
    #[error("node {0} is not part of the cluster; see `tidemill status`")]
    Unknown(u32),
    #[error(
        "node {0} is the last one that keeps data: its files could not move to another node; start another node first"
    )]
    Last(u32),
    #[error("node {0} is not being emptied; see `tidemill status`")]
    NotEmptied(u32),
    #[error(
        "node {node} still has {files} files, such as {names}: empty it with `tidemill node drain {node}` \
         first, or, if it never returns, abandon the files that no other node has with --lose --yes"
    )]
    HasFiles {
        node: u32,
        files: u64,
        names: String,
    },
    #[error(
        "node {0} is still in use: {1}; wait, or, if it never returns, stop it and then remove it"
    )]
    InUse(u32, String),
    #[error(
        "node {0} is down, and {1} files were being written there: start it again, or lose them with --lose --yes"
    )]
    Writing(u32, u64),
    #[error("node {0} keeps no data: name a node that `tidemill status` lists as store")]
    NoStore(u32),
    #[error(
        "node {0} is of the burst tier, from which files are staged out: name a node of the capacity tier"
    )]
    Burst(u32),
    #[error("node {0} is not of the burst tier; see `tidemill status`")]
    NotBurst(u32),
    #[error("no node of the burst tier is up; start one with `tidemill node run --tier burst`")]
    NoBurst,
    #[error("node {0} is down; start it, or name another node")]
    Down(u32),
    #[error("node {0} is being emptied; name another node")]
    Emptied(u32),
    #[error(
        "node {node} has {free} bytes free, and {needed} are needed; name another node, or fewer files"
    )]
    Full { node: u32, free: u64, needed: u64 },
    #[error(
        "node {node} of the burst tier has no space for {bytes} more bytes: {missing} are missing even when all files that are stored \
         elsewhere are evicted; wait for space (--wait), ask for less, or name another node, see `tidemill status`"
    )]
    Missing { node: u32, bytes: u64, missing: u64 },
    #[error(
        "node {node} of the burst tier has a capacity of {capacity} bytes, which is less than {bytes} bytes plus 16 MiB"
    )]
    Beyond {
        node: u32,
        bytes: u64,
        capacity: u64,
    },
    #[error(
        "users may reserve {max} bytes of node {node} together (--reserve-max of the server), and have reserved {reserved}: \
         wait until a reservation has ended (--wait), or ask for less"
    )]
    Share { node: u32, max: u64, reserved: u64 },
    #[error(
        "users may reserve {max} bytes of node {node} together (--reserve-max of the server), and {bytes} bytes exceed that"
    )]
    BeyondShare { node: u32, bytes: u64, max: u64 },
    #[error(
        "one user may reserve {max} bytes of node {node} for more than 7 days, and has reserved {reserved}: \
         ask for less, or for a shorter time"
    )]
    Long { node: u32, max: u64, reserved: u64 },
    #[error("{0} is not a directory: give a directory, for whose files space is reserved")]
    NoDirectory(String),
    #[error("a reservation of {0} is not possible: give a size, and a time up to 366 days")]
    Nothing(&'static str),
    #[error("there are {0} reservations, which is the maximum: see `tidemill stage reservations`")]
    TooManyReservations(u64),
    #[error("reservation {0} does not exist or is not yours: `tidemill stage reservations`")]
    NoReservation(String),
    #[error("{0} has more than {1} files and directories below it; name some of them")]
    TooMany(String, usize),
    #[error(
        "node {0} is up: files that only it has can be saved with `tidemill node drain {0}`; stop it first to \
         abandon them"
    )]
    Up(u32),
}

/// Starts draining a node. Succeeds also if the node is already being drained.
pub(crate) fn drain(
    db: &Connection,
    shared: &NamesShared,
    (node, members): (u32, &[NodeProperties]),
    now: i64,
) -> Result<Result<(), NodeRefusal>, Fault> {
    if !members.iter().any(|one| one.node == node) {
        return Ok(Err(NodeRefusal::Unknown(node)));
    }
    if is_last(shared, node, members) {
        return Ok(Err(NodeRefusal::Last(node)));
    }
    nodes::drain(db, &shared.nodes, node, now)?;
    Ok(Ok(()))
}

/// Whether no other node with a disk could take the objects of this node.
fn is_last(shared: &NamesShared, node: u32, members: &[NodeProperties]) -> bool {
    let mut others = members.iter().filter(|one| one.node != node);
    !others.any(|one| one.store && !one.memory && !one.burst && !shared.nodes.is_closed(one.node))
}

/// Stops draining a node. The node's remaining objects stay, and objects that have left the node stay on the other nodes.
pub(crate) fn cancel_drain(
    db: &Connection,
    shared: &NamesShared,
    node: u32,
) -> Result<Result<(), NodeRefusal>, Fault> {
    Ok(match nodes::cancel_drain(db, &shared.nodes, node)? {
        true => Ok(()),
        false => Err(NodeRefusal::NotEmptied(node)),
    })
}

/// Removes a node from the cluster. Files without a replica on another node are then lost; with `lose`, only their names remain. Returns
/// the number of lost files.
pub(crate) fn remove(
    db: &Connection,
    shared: &NamesShared,
    (node, members): (u32, &[NodeProperties]),
    (lose, now): (bool, i64),
) -> Result<Result<u64, NodeRefusal>, Fault> {
    let Some(member) = members.iter().find(|one| one.node == node) else {
        return Ok(Err(NodeRefusal::Unknown(node)));
    };
    if member.store && is_last(shared, node, members) {
        return Ok(Err(NodeRefusal::Last(node)));
    }
    let (files, names) = node_uses::files(db, node)?;
    if files > 0 && !lose {
        let names = names.join(", ");
        return Ok(Err(NodeRefusal::HasFiles { node, files, names }));
    }
    let uses = node_uses::uses(db, node)?;
    if member.up {
        if files > 0 {
            return Ok(Err(NodeRefusal::Up(node)));
        }
        if let Some(use_of) = in_use(uses) {
            return Ok(Err(NodeRefusal::InUse(node, use_of)));
        }
    }
    if uses.writing > 0 && !lose {
        return Ok(Err(NodeRefusal::Writing(node, uses.writing)));
    }
    nodes::remove(db, shared, node, now)?;
    Ok(Ok(files))
}

/// Returns the reason why a node without files is still needed, or `None` if the node can be removed.
fn in_use(uses: node_uses::NodeUses) -> Option<String> {
    let all = [
        (uses.writing, "files that are being written there"),
        (uses.labels, "labels of tasks"),
        (
            uses.removals,
            "objects that are still to be removed there, perhaps because they are read",
        ),
    ];
    let first = all.into_iter().find(|&(count, _)| count > 0);
    first.map(|(count, what)| format!("{count} {what}"))
}
