//! Placement of new files: chooses nodes by their reported status. This module does no I/O.

use super::WIDTH_MAX;
use crate::id::{Inode, NodeId};

/// Properties of a node that placement needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpace {
    /// Id of the node.
    pub node: NodeId,
    /// Free space of the node, in bytes.
    pub free_bytes: u64,
    /// Whether the node answered recently. A node that does not answer gets new files only if the request names the node, or if no node
    /// answers.
    pub answers: bool,
    /// Whether the node is being drained: a drained node gets no new files.
    pub leaving: bool,
    /// Whether the node stores data in memory: such a node gets new files only on request.
    pub memory: bool,
    /// Whether the node belongs to the burst tier, from which files are staged out to other nodes: it gets new files before other nodes.
    pub burst: bool,
    /// Whether the node stores its files in a backend: such a node gets new files only when no other node can take them.
    pub backend: bool,
}

impl FreeSpace {
    /// Returns whether the node takes files for which no node is named.
    fn takes_any(&self) -> bool {
        !self.memory && !self.burst
    }
}

/// Tier that stores objects, as requested by the attribute of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Storage that survives the host of the node.
    Disk,
    /// Memory of the node's host.
    Memory,
}

impl std::str::FromStr for Tier {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "disk" => Ok(Self::Disk),
            "memory" => Ok(Self::Memory),
            _ => Err(format!("{text:?} is not a tier: give memory or disk")),
        }
    }
}

/// Reason for which a new file can't be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// No node of the cluster that stores data is online.
    #[error("the cluster has no storage node that is up; start one with `tidemill node run`")]
    NoNode,
    /// Only nodes of the memory tier or of the burst tier are online, and the file must not be stored on them.
    #[error(
        "the nodes that are up are in the memory tier, which stores files only if their directory requests it \
         (user.tidemill.tier), or only until it is staged out; start one that stores on a disk with `tidemill node run`"
    )]
    NoStore,
    /// The online nodes of the burst tier are full until a file is staged out.
    #[error(
        "the nodes of the burst tier are full and stage files out; the write is retried, see `tidemill status` for their progress"
    )]
    BurstFull,
    /// The named node is unknown or offline.
    #[error("node {0} is not part of the cluster or is down; see `tidemill status`")]
    Unknown(NodeId),
    /// The node that could take the file is suspended.
    #[error("node {0} is suspended and is being resumed; try again in a moment")]
    Suspended(NodeId),
    /// The named node is being drained.
    #[error("node {0} is being drained; name another node, or none")]
    Leaving(NodeId),
    /// The named node is full.
    #[error("node {0} is full; remove files on it or name another node")]
    Full(NodeId),
    /// A file is to be striped over more nodes than can take a part of the file.
    #[error(
        "a file can't be striped over {width} nodes: {able} are up and have space; give fewer, or see `tidemill status`"
    )]
    Width {
        /// Requested number of nodes.
        width: usize,
        /// Number of nodes that can take a part.
        able: usize,
    },
    /// All nodes are full.
    #[error("no storage node has space; remove files or add a node")]
    AllFull,
}

/// Space that must be free on a node before it gets another file, in bytes.
pub const RESERVE_BYTES: u64 = 16 << 20;

/// Chooses the node of a new file: the named node, else the node at inode modulo the number of nodes (AnalyzeThis §3.3), else the next node
/// that is not full and answers. Nodes that are being drained are never chosen. Nodes of the memory tier or of the burst tier are chosen
/// only if they are named, and nodes with a backend only if no other node can take the file.
///
/// `spaces` are the online storage nodes, in order of their ids.
///
/// # Errors
/// See [`PlacementError`]. A named node is never replaced silently.
pub fn place(
    inode: Inode,
    named: Option<NodeId>,
    spaces: &[FreeSpace],
) -> Result<NodeId, PlacementError> {
    if let Some(node) = named {
        let space = spaces.iter().find(|space| space.node == node);
        return match space {
            None => Err(PlacementError::Unknown(node)),
            Some(space) if space.leaving => Err(PlacementError::Leaving(node)),
            Some(space) if space.free_bytes < RESERVE_BYTES => Err(PlacementError::Full(node)),
            Some(_) => Ok(node),
        };
    }
    let stays = |space: &&FreeSpace| !space.leaving && space.takes_any();
    if spaces.iter().all(|space| stays(&space) && !space.backend) {
        return place_among(inode, spaces);
    }
    let staying = spaces.iter().filter(stays).copied();
    let (backend, local): (Vec<FreeSpace>, Vec<FreeSpace>) =
        staying.partition(|space| space.backend);
    if local.is_empty() && backend.is_empty() && spaces.iter().any(|space| !space.leaving) {
        return Err(PlacementError::NoStore);
    }
    match place_among(inode, &local) {
        Err(_) if !backend.is_empty() => place_among(inode, &backend),
        placed => placed,
    }
}

/// Returns the node at inode modulo the number of nodes, else the next node that is not full and answers.
fn place_among(inode: Inode, spaces: &[FreeSpace]) -> Result<NodeId, PlacementError> {
    if spaces.is_empty() {
        return Err(PlacementError::NoNode);
    }
    let first = usize::try_from(inode.0 % spaces.len() as u64).unwrap_or(0);
    let (before, from) = spaces.split_at(first);
    let mut takes = from
        .iter()
        .chain(before)
        .filter(|space| space.free_bytes >= RESERVE_BYTES);
    let any = takes.clone().next();
    takes
        .find(|space| space.answers)
        .or(any)
        .map(|space| space.node)
        .ok_or(PlacementError::AllFull)
}

/// Returns the suspended nodes to resume for a file that can't be placed on online nodes.
#[must_use]
pub fn to_resume(error: PlacementError, suspended: &[FreeSpace]) -> Vec<NodeId> {
    let able = suspended
        .iter()
        .filter(|space| !space.leaving && space.takes_any() && space.free_bytes >= RESERVE_BYTES);
    let able = able.map(|space| space.node);
    match error {
        PlacementError::Unknown(named) => {
            let mut named = suspended.iter().filter(|space| space.node == named);
            named.next().map(|space| space.node).into_iter().collect()
        }
        PlacementError::NoNode | PlacementError::NoStore | PlacementError::AllFull => {
            able.take(1).collect()
        }
        PlacementError::Width {
            width,
            able: active,
        } => {
            let able: Vec<NodeId> = able.take(width.saturating_sub(active)).collect();
            // Resuming fewer nodes than necessary would be useless.
            if active + able.len() < width {
                return Vec::new();
            }
            able
        }
        PlacementError::Suspended(_)
        | PlacementError::Leaving(_)
        | PlacementError::Full(_)
        | PlacementError::BurstFull => Vec::new(),
    }
}

/// Chooses the node of the memory tier for a file to be stored in memory: among the nodes `here`, which the writer can reach, the node with
/// the most free space, if this is enough for `bytes` bytes. `None` means that the file is stored on another kind of node.
#[must_use]
pub fn place_in_memory(here: &[NodeId], bytes: u64, spaces: &[FreeSpace]) -> Option<NodeId> {
    let needed = bytes.saturating_add(RESERVE_BYTES);
    let able = spaces.iter().filter(|space| {
        let takes = space.memory && space.answers && !space.leaving;
        takes && here.contains(&space.node) && space.free_bytes >= needed
    });
    able.max_by_key(|space| (space.free_bytes, std::cmp::Reverse(space.node)))
        .map(|space| space.node)
}

/// Chooses the node of the burst tier for a version of `bytes` bytes. Nodes `here`, to which the client can write directly, are preferred;
/// then nodes that are not in `apart`, which are the nodes of other parts of the same file; then the node with the most free space. Returns
/// `None` if no node of the burst tier is online.
///
/// # Errors
/// [`PlacementError::BurstFull`] if nodes of the burst tier are online, but all of them are full.
pub fn place_in_burst(
    here: &[NodeId],
    apart: &[NodeId],
    bytes: u64,
    spaces: &[FreeSpace],
) -> Result<Option<NodeId>, PlacementError> {
    let needed = bytes.saturating_add(RESERVE_BYTES);
    let bursts = spaces
        .iter()
        .filter(|space| space.burst && space.answers && !space.leaving);
    let able = bursts.clone().filter(|space| space.free_bytes >= needed);
    let best = able.max_by_key(|space| {
        (
            here.contains(&space.node),
            !apart.contains(&space.node),
            space.free_bytes,
            std::cmp::Reverse(space.node),
        )
    });
    match best {
        Some(space) => Ok(Some(space.node)),
        None if bursts.clone().next().is_some() => Err(PlacementError::BurstFull),
        None => Ok(None),
    }
}

/// Chooses `width` nodes for a striped file, or all nodes if `width` is 0, one after the other from inode modulo the number of nodes on.
/// Nodes that answer come first. Nodes of the memory tier, of the burst tier or with a backend are excluded.
///
/// # Errors
/// See [`PlacementError`].
pub fn place_stripes(
    inode: Inode,
    width: usize,
    spaces: &[FreeSpace],
) -> Result<Vec<NodeId>, PlacementError> {
    if spaces.is_empty() {
        return Err(PlacementError::NoNode);
    }
    let disk = |space: &FreeSpace| space.takes_any() && !space.backend;
    let disks: Vec<FreeSpace> = spaces.iter().copied().filter(disk).collect();
    if disks.is_empty() {
        return Err(PlacementError::NoStore);
    }
    let first = usize::try_from(inode.0 % disks.len() as u64).unwrap_or(0);
    let (before, from) = disks.split_at(first);
    let takes = from.iter().chain(before);
    let mut takes: Vec<&FreeSpace> = takes
        .filter(|space| space.free_bytes >= RESERVE_BYTES && !space.leaving)
        .collect();
    if takes.is_empty() {
        return Err(PlacementError::AllFull);
    }
    takes.sort_by_key(|space| !space.answers);
    let answering = takes.iter().filter(|space| space.answers).count();
    let able = takes.len().min(WIDTH_MAX);
    let chosen = match width {
        0 if answering > 0 => answering.min(able),
        0 => able,
        width => width,
    };
    if chosen > able {
        return Err(PlacementError::Width { width, able });
    }
    Ok(takes[..chosen].iter().map(|space| space.node).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spaces(free: &[u64]) -> Vec<FreeSpace> {
        (0..)
            .zip(free)
            .map(|(id, &free_bytes)| FreeSpace {
                node: NodeId(id),
                free_bytes,
                answers: true,
                leaving: false,
                memory: false,
                burst: false,
                backend: false,
            })
            .collect()
    }

    #[test]
    fn placement_uses_inode_modulo_nodes_and_skips_full() {
        let all = spaces(&[1 << 30; 4]);
        assert_eq!(place(Inode(6), None, &all), Ok(NodeId(2)));
        let some = spaces(&[1 << 30, 1 << 30, 0, 1 << 30]);
        assert_eq!(place(Inode(6), None, &some), Ok(NodeId(3)));
        assert_eq!(
            place(Inode(6), None, &spaces(&[0, 0])),
            Err(PlacementError::AllFull)
        );
        assert_eq!(place(Inode(6), None, &[]), Err(PlacementError::NoNode));
    }

    #[test]
    fn placement_uses_backend_nodes_as_last_resort() {
        let mut some = spaces(&[1 << 30, 1 << 50, 1 << 30]);
        some[1].backend = true;
        for inode in 0..6 {
            assert_ne!(place(Inode(inode), None, &some), Ok(NodeId(1)));
        }
        assert_eq!(place(Inode(6), Some(NodeId(1)), &some), Ok(NodeId(1)));
        (some[0].free_bytes, some[2].free_bytes) = (0, 0);
        assert_eq!(place(Inode(6), None, &some), Ok(NodeId(1)));
        let all = place_stripes(Inode(6), 0, &some).map(|all| all.len());
        assert_ne!(all, Ok(1));
        some[1].free_bytes = 0;
        assert_eq!(place(Inode(6), None, &some), Err(PlacementError::AllFull));
    }

    #[test]
    fn placement_skips_hanging_node_unless_named_or_only() {
        let mut some = spaces(&[1 << 30, 1 << 30, 0]);
        some[0].answers = false;
        assert_eq!(place(Inode(6), None, &some), Ok(NodeId(1)));
        assert_eq!(place(Inode(6), Some(NodeId(0)), &some), Ok(NodeId(0)));
        some[1].answers = false;
        assert_eq!(place(Inode(6), None, &some), Ok(NodeId(0)));
        assert_eq!(place(Inode(7), None, &some), Ok(NodeId(1)));
    }

    #[test]
    fn placement_skips_draining_node() {
        let mut some = spaces(&[1 << 30; 3]);
        some[1].leaving = true;
        for inode in 0..4 {
            let expected = [0, 2, 0, 2][usize::try_from(inode).unwrap()];
            assert_eq!(place(Inode(inode), None, &some), Ok(NodeId(expected)));
        }
        let named = place(Inode(6), Some(NodeId(1)), &some);
        assert_eq!(named, Err(PlacementError::Leaving(NodeId(1))));
        some.retain(|space| space.leaving);
        assert_eq!(place(Inode(6), None, &some), Err(PlacementError::NoNode));
    }

    #[test]
    fn placement_uses_memory_only_on_request_and_if_it_fits() {
        let mut some = spaces(&[1 << 30, 1 << 30, 2 << 30]);
        some[1].memory = true;
        some[2].memory = true;
        for inode in 0..4 {
            assert_eq!(place(Inode(inode), None, &some), Ok(NodeId(0)));
            assert_eq!(place_stripes(Inode(inode), 0, &some), Ok(vec![NodeId(0)]));
        }
        let both = [NodeId(1), NodeId(2)];
        assert_eq!(place_in_memory(&both, 0, &some), Some(NodeId(2)));
        assert_eq!(place_in_memory(&both[..1], 0, &some), Some(NodeId(1)));
        assert_eq!(place_in_memory(&both, 2 << 30, &some), None);
        assert_eq!(place_in_memory(&[NodeId(0)], 0, &some), None);
        some[2].leaving = true;
        assert_eq!(place_in_memory(&both, 0, &some), Some(NodeId(1)));
        assert_eq!(place(Inode(6), Some(NodeId(1)), &some), Ok(NodeId(1)));
        some.remove(0);
        assert_eq!(place(Inode(6), None, &some), Err(PlacementError::NoStore));
        assert_eq!(
            place_stripes(Inode(6), 0, &some),
            Err(PlacementError::NoStore)
        );
    }

    #[test]
    fn burst_placement_prefers_nodes_near_the_writer() {
        let mut some = spaces(&[1 << 30, 1 << 30, 2 << 30]);
        assert_eq!(place_in_burst(&[NodeId(0)], &[], 0, &some), Ok(None));
        some[1].burst = true;
        some[2].burst = true;
        let placed = |here: &[u32], bytes, some: &[FreeSpace]| {
            let here: Vec<NodeId> = here.iter().copied().map(NodeId).collect();
            place_in_burst(&here, &[], bytes, some).map(|placed| placed.map(|node| node.0))
        };
        assert_eq!(placed(&[0, 1], 0, &some), Ok(Some(1)));
        assert_eq!(placed(&[0], 0, &some), Ok(Some(2)));
        // Parts of a file are stored on different nodes, but on the writer's own nodes if possible.
        let part = |here: &[NodeId], apart: &[NodeId]| place_in_burst(here, apart, 0, &some);
        assert_eq!(part(&[], &[NodeId(2)]), Ok(Some(NodeId(1))));
        let both = [NodeId(1), NodeId(2)];
        assert_eq!(part(&[], &both), Ok(Some(NodeId(2))));
        assert_eq!(part(&both[1..], &both[1..]), Ok(Some(NodeId(2))));
        assert_eq!(placed(&[1], 1 << 30, &some), Ok(Some(2)));
        assert_eq!(placed(&[1], 2 << 30, &some), Err(PlacementError::BurstFull));
        some[1].answers = false;
        assert_eq!(placed(&[1], 0, &some), Ok(Some(2)));
        some[2].leaving = true;
        assert_eq!(placed(&[1], 0, &some), Ok(None));
        for inode in 0..3 {
            assert_eq!(place(Inode(inode), None, &some), Ok(NodeId(0)));
            let stripes = place_stripes(Inode(inode), 0, &some);
            assert_eq!(stripes, Ok(vec![NodeId(0)]));
        }
        assert_eq!(place(Inode(6), Some(NodeId(1)), &some), Ok(NodeId(1)));
        some.remove(0);
        assert_eq!(place(Inode(6), None, &some), Err(PlacementError::NoStore));
    }

    #[test]
    fn named_node_is_never_replaced() {
        let some = spaces(&[1 << 30, 0]);
        assert_eq!(place(Inode(6), Some(NodeId(0)), &some), Ok(NodeId(0)));
        assert_eq!(
            place(Inode(6), Some(NodeId(1)), &some),
            Err(PlacementError::Full(NodeId(1)))
        );
        assert_eq!(
            place(Inode(6), Some(NodeId(7)), &some),
            Err(PlacementError::Unknown(NodeId(7)))
        );
    }

    #[test]
    fn striped_placement_uses_answering_nodes_with_space() {
        let ids = |nodes: Vec<NodeId>| nodes.iter().map(|e| e.0).collect::<Vec<_>>();
        let mut all = spaces(&[1 << 30; 4]);
        assert_eq!(ids(place_stripes(Inode(6), 3, &all).unwrap()), [2, 3, 0]);
        assert_eq!(ids(place_stripes(Inode(6), 0, &all).unwrap()), [2, 3, 0, 1]);
        all[3].answers = false;
        assert_eq!(ids(place_stripes(Inode(6), 0, &all).unwrap()), [2, 0, 1]);
        assert_eq!(ids(place_stripes(Inode(6), 4, &all).unwrap()), [2, 0, 1, 3]);
        all[0].free_bytes = 0;
        assert_eq!(
            place_stripes(Inode(6), 4, &all),
            Err(PlacementError::Width { width: 4, able: 3 })
        );
        assert_eq!(place_stripes(Inode(6), 1, &[]), Err(PlacementError::NoNode));
        assert_eq!(
            place_stripes(Inode(6), 0, &spaces(&[0, 0])),
            Err(PlacementError::AllFull)
        );
    }
}
