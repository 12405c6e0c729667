//! Replicas: decides the next step for a sealed object that may have replicas on several nodes under one id. The steps lead to the wanted
//! number of replicas, on nodes of different hosts first, and to no replica on a node that is to lose its replicas. A migration is a copy
//! followed by a removal. [`ReplicaRecord`] is the state of an object on one node as the database has it, [`NodeAbsences`] and [`OnlineNode`]
//! are the view of the nodes, and [`ReplicaSet::next`] decides. This module does no I/O.

use crate::id::{NodeId, ObjectId};
use crate::layout::RESERVE_BYTES;
use crate::random::RandomSource;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Default size of the fetched replicas that a node keeps after their last use, in bytes. Estimates assume this size.
pub const INPUT_CACHE_BYTES_MAX: u64 = 256 << 20;

/// Maximum number of replicas of one object, including the first replica.
pub const REPLICAS_MAX: u32 = 8;

/// Wanted number of replicas of a version, in the user's notation: `2`, or `2,now`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedReplicas {
    /// Number of replicas, including the first replica.
    pub replicas: u32,
    /// Whether callers that wait for the seal also wait for the replicas.
    pub now: bool,
}

impl WantedReplicas {
    /// A single replica, for which callers do not wait.
    pub const ONE: Self = Self {
        replicas: 1,
        now: false,
    };
}

impl FromStr for WantedReplicas {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (replicas, now) = match text.split_once(',') {
            Some((replicas, now)) => (replicas, now.trim() == "now"),
            None => (text, false),
        };
        let wrong = || {
            format!(
                "{text:?} is not a number of replicas: give 1 to {REPLICAS_MAX}, or such as 2,now"
            )
        };
        let known = now == text.contains(',');
        let replicas: u32 = replicas.trim().parse().map_err(|_| wrong())?;
        match known && (1..=REPLICAS_MAX).contains(&replicas) {
            true => Ok(Self { replicas, now }),
            false => Err(wrong()),
        }
    }
}

impl fmt::Display for WantedReplicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let now = if self.now { ",now" } else { "" };
        write!(f, "{}{now}", self.replicas)
    }
}

/// State of the replica of an object on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReplicaState {
    /// A label is writing the replica.
    Coming,
    /// The replica is complete.
    Current,
    /// The replica is complete and stored on a node of the burst tier. It does not count as one of the wanted replicas and stays until its
    /// space is needed.
    Burst,
    /// The node was declared failed: it has been offline for longer than the cluster waits.
    Failed,
    /// The replica is complete and is to be removed as soon as there are enough other replicas.
    Leaving,
    /// The replica is to be removed like `Leaving`, and its node was declared failed.
    FailedLeaving,
    /// A label is deleting the replica, or is about to delete it.
    Going,
    /// The content of the replica differs from the sealed content.
    Corrupt,
}

/// Wanted state of an object on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedState {
    /// The node keeps the object.
    Keep,
    /// The node keeps the object until there are enough other replicas.
    Leave {
        /// Node that must receive the replica; `None` for any node.
        target: Option<NodeId>,
        /// Whether the replica leaves its node even if the target can't take it.
        anywhere: bool,
    },
    /// The node removes the object as soon as no client reads it.
    Drop {
        /// Whether a label removes the object already.
        labelled: bool,
    },
}

/// State of an object on one node, and the wanted state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaRecord {
    /// Node of the record.
    pub node: NodeId,
    /// State of the bytes: coming, current or corrupt; `None` if the node has no bytes of the object.
    pub state: Option<ReplicaState>,
    /// Wanted state.
    pub want: WantedState,
    /// Whether another replica is requested on this node.
    pub requested: bool,
    /// Whether the object is in the burst tier and was also stored in the capacity tier at the last check.
    pub staged_out: bool,
}

impl ReplicaRecord {
    fn is_kept(&self) -> bool {
        !matches!(self.want, WantedState::Drop { .. })
    }

    /// Whether a reader may use an intact replica that is to be removed.
    #[must_use]
    pub fn is_readable_until_removal(&self) -> bool {
        let waits = self.want == WantedState::Drop { labelled: false };
        waits && self.state == Some(ReplicaState::Current)
    }
}

/// Returns the replicas of an object, including replicas in progress. The replica on the node `first` is the first in the result; without a
/// record it is intact.
#[must_use]
pub fn in_order(first: NodeId, records: &[ReplicaRecord]) -> Vec<(NodeId, ReplicaState)> {
    let kept = records.iter().filter(|one| one.is_kept());
    let kept = kept.filter_map(|one| Some((one.node, one.state?)));
    let (firsts, others): (Vec<_>, Vec<_>) = kept.partition(|(node, _)| *node == first);
    let state = firsts
        .first()
        .map_or(ReplicaState::Current, |(_, state)| *state);
    std::iter::once((first, state)).chain(others).collect()
}

/// Returns the nodes that must keep a replica which they were to remove: the last intact replicas, if the first replica and all other
/// replicas are corrupt.
#[must_use]
pub fn kept_back(first: NodeId, records: &[ReplicaRecord]) -> Vec<NodeId> {
    let intact = in_order(first, records);
    if intact
        .iter()
        .any(|(_, state)| *state == ReplicaState::Current)
    {
        return Vec::new();
    }
    let removed = records.iter().filter(|one| one.is_readable_until_removal());
    removed.map(|one| one.node).collect()
}

/// Nodes that are absent or are drained, and the tier of nodes.
#[derive(Clone, Debug, Default)]
pub struct NodeAbsences {
    /// Nodes that have been offline for longer than the repair delay, and nodes that were removed from the cluster.
    pub lost: BTreeSet<u32>,
    /// Nodes that are being drained.
    pub emptied: BTreeSet<u32>,
    /// Number of nodes that could hold replicas.
    pub places: usize,
    /// Nodes of the burst tier.
    pub bursts: BTreeSet<u32>,
}

impl NodeAbsences {
    /// Whether a node can be the target of a migration.
    fn is_target(&self, node: NodeId) -> bool {
        !self.lost.contains(&node.0) && !self.emptied.contains(&node.0)
    }

    /// Returns the state of a replica on a node that may be absent, and the target of the replica's migration.
    fn seen(
        &self,
        (node, state): (NodeId, ReplicaState),
        want: WantedState,
    ) -> (ReplicaState, Option<NodeId>) {
        // If the wanted target can't take the object, the replica stays, unless it has to leave.
        let (asked, target) = match want {
            WantedState::Leave { target, anywhere } => {
                let target = target.filter(|&target| self.is_target(target));
                (anywhere || target.is_some(), target)
            }
            _ => (false, None),
        };
        let leaves = asked || self.emptied.contains(&node.0);
        let lost = self.lost.contains(&node.0);
        let is_burst = self.bursts.contains(&node.0);
        let seen = match (leaves, lost, state) {
            (true, false, ReplicaState::Current) => ReplicaState::Leaving,
            (true, true, _) => ReplicaState::FailedLeaving,
            (false, true, _) => ReplicaState::Failed,
            (false, false, ReplicaState::Current) if is_burst => ReplicaState::Burst,
            (_, false, state) => state,
        };
        (seen, target)
    }
}

/// Online node that may take replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnlineNode {
    /// Id of the node.
    pub node: NodeId,
    /// Failure domain of the node: its host.
    pub host: String,
    /// Free space of the node, in bytes.
    pub free_bytes: u64,
    /// Whether replicas may be stored on the node: the node stores data permanently, and answers.
    pub takes: bool,
    /// Whether the node stores data in memory: such a node gets a replica only if it is named as the target.
    pub memory: bool,
    /// Whether the node belongs to the burst tier, which gets no replicas.
    pub burst: bool,
    /// Whether the node stores its files in a backend. Staged-out files prefer such a node. It gets other replicas only if no other node
    /// can take them.
    pub backend: bool,
}

/// Object and the nodes that hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaSet {
    /// Id of the object.
    pub object: ObjectId,
    /// Size of the object, in bytes.
    pub size: u64,
    /// Wanted number of replicas of the object.
    pub wanted: usize,
    /// Nodes that have or will have a replica, the first replica first.
    pub holders: Vec<(NodeId, ReplicaState)>,
    /// Node that must get one of the replicas, if a node was named.
    pub target: Option<NodeId>,
    /// Number of nodes that could have replicas, including nodes that are full or temporarily offline.
    pub places: usize,
}

/// Next step for an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaStep {
    /// No step: the object has enough replicas.
    Enough,
    /// No step before a running label has ended.
    Wait,
    /// Make another replica on node `to`, or replace the corrupt replica of node `to`.
    Make {
        /// Node that holds the source replica.
        from: NodeId,
        /// Node that gets the replica.
        to: NodeId,
    },
    /// Delete replicas that are surplus or are to be deleted.
    Remove {
        /// Nodes whose replicas are deleted.
        goes: Vec<NodeId>,
        /// Node whose replica stays and becomes the first replica.
        first: NodeId,
    },
    /// The object has more replicas than wanted, but no replica may be deleted before a node with a replica is online again.
    Later,
    /// No online node has a replica of the object.
    NoSource,
    /// No online node can take a replica of the object.
    NoPlace,
    /// A migrated replica has reached its target, but the replica at the source is still needed: no other node can hold the wanted number
    /// of replicas.
    Stay,
}

impl ReplicaSet {
    /// Returns the set of replicas that records describe, given absent and drained nodes.
    #[must_use]
    pub fn new(
        object: ObjectId,
        (size, wanted): (u64, usize),
        (first, records): (NodeId, &[ReplicaRecord]),
        absent: &NodeAbsences,
    ) -> Self {
        let mut set = Self {
            object,
            size,
            wanted,
            holders: Vec::new(),
            target: None,
            places: absent.places,
        };
        for (node, state) in in_order(first, records) {
            let record = records.iter().find(|one| one.node == node);
            let want = record.map_or(WantedState::Keep, |one| one.want);
            let (state, target) = absent.seen((node, state), want);
            set.holders.push((node, state));
            set.target = set.target.or(target);
        }
        let requested = records.iter().find(|one| one.requested);
        let requested = requested.map(|one| one.node).filter(|node| {
            let mut there = set.of(&[ReplicaState::Current, ReplicaState::Burst]);
            !there.any(|holder| holder == *node)
        });
        set.target = set.target.or(requested);
        let going = records.iter().filter(|one| !one.is_kept());
        let going = going.map(|one| (one.node, ReplicaState::Going));
        set.holders.extend(going);
        set
    }

    /// Returns the number of replicas that would remain if every copy under way failed and all planned deletions were carried out.
    #[must_use]
    pub fn left(&self) -> usize {
        self.of(&[ReplicaState::Current]).count()
    }

    /// Returns the number of replicas that can be read, now or when their nodes are online again.
    #[must_use]
    pub fn has(&self) -> usize {
        let there = [
            ReplicaState::Current,
            ReplicaState::Burst,
            ReplicaState::Leaving,
        ];
        self.of(&there).count()
    }

    /// Returns whether the object has as many replicas as possible, not counting replicas in the burst tier.
    #[must_use]
    pub fn is_stored(&self) -> bool {
        self.left() >= self.enough()
    }

    /// Returns the wanted number of replicas, or the number of possible nodes if that is smaller.
    fn enough(&self) -> usize {
        self.wanted.min(self.places).max(1)
    }

    /// Returns whether replicas only migrate between nodes, so that no data is in danger.
    #[must_use]
    pub fn only_migrates(&self) -> bool {
        let more = self.left() < self.has() || self.target.is_some();
        more && self.has() >= self.wanted
    }

    /// Returns whether the object is copied for another reason than being new.
    #[must_use]
    pub fn can_wait(&self) -> bool {
        let old = [
            ReplicaState::Leaving,
            ReplicaState::FailedLeaving,
            ReplicaState::Failed,
        ];
        self.target.is_some() || self.of(&old).next().is_some()
    }

    fn of<'a>(&'a self, states: &'a [ReplicaState]) -> impl Iterator<Item = NodeId> + 'a {
        let holders = self.holders.iter();
        let wanted = holders.filter(|(_, state)| states.contains(state));
        wanted.map(|(node, _)| *node)
    }

    /// Returns the next step for the object, given the online nodes.
    #[must_use]
    pub fn next(&self, sites: &[OnlineNode]) -> ReplicaStep {
        let site = |node: NodeId| sites.iter().find(|site| site.node == node);
        let current = self.of(&[ReplicaState::Current]);
        let up: Vec<&OnlineNode> = current.filter_map(site).collect();
        let target = self.target.filter(|target| {
            let mut current = self.of(&[ReplicaState::Current]);
            !current.any(|node| node == *target)
        });
        let others = [ReplicaState::Burst, ReplicaState::Leaving];
        let others = self.of(&others).filter_map(site);
        let from = up.iter().copied().chain(others).next();
        let corrupt: Vec<&OnlineNode> =
            self.of(&[ReplicaState::Corrupt]).filter_map(site).collect();
        if up.len() <= self.wanted.max(1)
            && let Some(next) = self.repair(&corrupt, from)
        {
            return next;
        }
        if target.is_none()
            && let Some(settled) = self.settled(&up)
        {
            return settled;
        }
        if let Some(target) = target
            && self.of(&[ReplicaState::Coming]).any(|node| node == target)
        {
            return ReplicaStep::Wait;
        }
        let Some(from) = from else {
            return ReplicaStep::NoSource;
        };
        let has = |node: NodeId| self.holders.iter().any(|(holder, _)| *holder == node);
        let takes = |one: &&OnlineNode| one.takes && self.fits(one) && !has(one.node);
        let to = match target {
            Some(target) => site(target).filter(takes),
            None => {
                let disks = sites.iter().filter(|one| !one.memory && !one.burst);
                self.best(disks.filter(takes), &site)
            }
        };
        match to {
            Some(to) => ReplicaStep::Make {
                from: from.node,
                to: to.node,
            },
            None if target.is_none() && self.target.is_some() => ReplicaStep::Stay,
            None => ReplicaStep::NoPlace,
        }
    }

    /// Returns the next step if no other replica is to be made now. `up` lists the online nodes that have current replicas.
    fn settled(&self, up: &[&OnlineNode]) -> Option<ReplicaStep> {
        let leaving: Vec<NodeId> = self
            .of(&[ReplicaState::Leaving, ReplicaState::FailedLeaving])
            .collect();
        // Replicas that are to be removed are removed even if there are too few nodes for the wanted number of replicas.
        if up.len() >= self.enough() && !leaving.is_empty() {
            return Some(ReplicaStep::Remove {
                goes: leaving,
                first: up[0].node,
            });
        }
        if up.len() > self.wanted.max(1) {
            return Some(self.surplus(up));
        }
        if self.left() > self.wanted {
            return Some(ReplicaStep::Later);
        }
        let coming = self.of(&[ReplicaState::Coming]).count();
        if self.left() + coming < self.wanted {
            return None;
        }
        let waits = !leaving.is_empty() || self.of(&[ReplicaState::Corrupt]).next().is_some();
        Some(match (coming, waits) {
            (0, false) => ReplicaStep::Enough,
            (0, true) => ReplicaStep::Later,
            _ => ReplicaStep::Wait,
        })
    }

    /// Returns the node for another replica: a node on a host without a replica, if such a node exists.
    fn best<'a>(
        &self,
        takes: impl Iterator<Item = &'a OnlineNode>,
        site: &impl Fn(NodeId) -> Option<&'a OnlineNode>,
    ) -> Option<&'a OnlineNode> {
        let stays = self.of(&[ReplicaState::Current, ReplicaState::Coming]);
        let hosts = stays.filter_map(site).map(|one| one.host.as_str());
        let hosts: Vec<&str> = hosts.collect();
        let stages_out = hosts.is_empty() && self.of(&[ReplicaState::Burst]).next().is_some();
        takes.min_by_key(|one| {
            let shared = hosts.contains(&one.host.as_str());
            let other = one.backend != stages_out;
            (shared, other, self.draw(one.node), one.node)
        })
    }

    /// Returns the step for corrupt replicas. A corrupt replica is rewritten on its node, so that the nodes of the object do not change. If
    /// the object has enough replicas without a corrupt replica, and the corrupt replica is not the first, it is deleted instead.
    fn repair(&self, corrupt: &[&OnlineNode], from: Option<&OnlineNode>) -> Option<ReplicaStep> {
        let from = from?.node;
        let coming = self.of(&[ReplicaState::Coming]).count();
        let enough = self.left() + coming >= self.wanted;
        let first = self.holders.first().map(|(node, _)| *node);
        let surplus = |one: &&&OnlineNode| enough && Some(one.node) != first;
        if let Some(one) = corrupt.iter().find(surplus) {
            return Some(ReplicaStep::Remove {
                goes: vec![one.node],
                first: first.unwrap_or(from),
            });
        }
        let to = corrupt.iter().find(|one| self.fits(one))?.node;
        Some(ReplicaStep::Make { from, to })
    }

    /// Returns whether a node has space for the object.
    fn fits(&self, site: &OnlineNode) -> bool {
        site.free_bytes >= self.size.saturating_add(RESERVE_BYTES)
    }

    /// Records that a label is now making a replica on node `to`.
    pub fn comes(&mut self, to: NodeId) {
        match self.holders.iter_mut().find(|(node, _)| *node == to) {
            Some((_, state)) => *state = ReplicaState::Coming,
            None => self.holders.push((to, ReplicaState::Coming)),
        }
    }

    /// Records that the replicas on the nodes `goes` are now being deleted, and that the replica on node `first` becomes the first one.
    pub fn go(&mut self, goes: &[NodeId], first: NodeId) {
        for (node, state) in &mut self.holders {
            if goes.contains(node) {
                *state = ReplicaState::Going;
            }
        }
        if let Some(at) = self.holders.iter().position(|(node, _)| *node == first) {
            self.holders.swap(0, at);
        }
    }

    /// Returns a pseudorandom number for each pair of object and node, so that replicas of many objects spread over equal nodes.
    fn draw(&self, node: NodeId) -> u64 {
        let node = RandomSource::seeded(node.0.into()).next_u64();
        RandomSource::seeded(self.object.0 ^ node).next_u64()
    }

    /// Returns the step that deletes surplus replicas: never the first, and preferably a replica that shares its host with another.
    fn surplus(&self, up: &[&OnlineNode]) -> ReplicaStep {
        let first = self.holders.first().map(|(node, _)| *node);
        let mut stays: Vec<&OnlineNode> = up.to_vec();
        let mut goes = Vec::new();
        while stays.len() > self.wanted.max(1) {
            let shared = |at: usize| {
                let others = stays.iter().enumerate();
                let mut others = others.filter(|(other, _)| *other != at);
                others.any(|(_, one)| one.host == stays[at].host)
            };
            let candidates = (0..stays.len()).rev();
            let mut candidates = candidates.filter(|&at| Some(stays[at].node) != first);
            let last = candidates.clone().next();
            let Some(at) = candidates.find(|&at| shared(at)).or(last) else {
                break;
            };
            goes.push(stays.remove(at).node);
        }
        let first = first.unwrap_or(stays[0].node);
        ReplicaStep::Remove { goes, first }
    }
}

#[cfg(test)]
mod tests {
    use super::ReplicaState::{Coming, Corrupt, Current, Failed, FailedLeaving, Going, Leaving};
    use super::*;

    const MUCH: u64 = 1 << 40;

    fn sites(hosts: &[&str]) -> Vec<OnlineNode> {
        let site = |(id, host): (u32, &&str)| OnlineNode {
            node: NodeId(id),
            host: (*host).to_owned(),
            free_bytes: MUCH,
            takes: true,
            memory: false,
            burst: false,
            backend: false,
        };
        (0..).zip(hosts).map(site).collect()
    }

    fn kept(wanted: usize, holders: &[(u32, ReplicaState)]) -> ReplicaSet {
        let holders = holders.iter();
        ReplicaSet {
            object: ObjectId(7),
            size: 100,
            wanted,
            holders: holders.map(|&(id, state)| (NodeId(id), state)).collect(),
            target: None,
            places: usize::MAX,
        }
    }

    fn made(next: ReplicaStep) -> (u32, u32) {
        match next {
            ReplicaStep::Make { from, to } => (from.0, to.0),
            other => panic!("{other:?}"),
        }
    }

    fn removed(goes: &[u32], first: u32) -> ReplicaStep {
        ReplicaStep::Remove {
            goes: goes.iter().copied().map(NodeId).collect(),
            first: NodeId(first),
        }
    }

    #[test]
    fn staged_replicas_are_placed_in_backends_and_others_elsewhere() {
        let mut some = sites(&["a", "b", "c", "c (backend)"]);
        (some[0].burst, some[3].backend) = (true, true);
        for object in 0..20 {
            let mut kept = kept(1, &[(0, ReplicaState::Burst)]);
            kept.object = ObjectId(object);
            assert!(matches!(kept.next(&some), ReplicaStep::Make { to, .. } if to == NodeId(3)));
            let mut kept = self::kept(2, &[(1, Current)]);
            kept.object = ObjectId(object);
            assert!(matches!(kept.next(&some), ReplicaStep::Make { to, .. } if to == NodeId(2)));
        }
    }

    #[test]
    fn burst_replica_is_removed_only_after_replica_elsewhere() {
        use ReplicaState::Burst;
        let mut some = sites(&["a", "a", "b"]);
        some[0].burst = true;
        some[1].burst = true;
        assert_eq!(made(kept(1, &[(0, Burst)]).next(&some)), (0, 2));
        let coming = kept(1, &[(0, Burst), (2, Coming)]);
        assert_eq!(coming.next(&some), ReplicaStep::Wait);
        assert_eq!(
            kept(1, &[(0, Leaving), (2, Coming)]).next(&some),
            ReplicaStep::Wait
        );
        let both = kept(1, &[(0, Burst), (2, Current)]);
        assert_eq!(
            (both.next(&some), both.left(), both.has()),
            (ReplicaStep::Enough, 1, 2)
        );
        let leaving = kept(1, &[(0, Leaving), (2, Current)]);
        assert_eq!(leaving.next(&some), removed(&[0], 2));
        // A replica is removed only after another replica exists on a node that is online.
        assert_eq!(made(kept(1, &[(0, Leaving)]).next(&some)), (0, 2));
        let offline = kept(1, &[(0, Leaving), (3, Current)]);
        assert_ne!(offline.next(&some), removed(&[0], 3));
        assert_eq!(
            kept(2, &[(0, Burst), (2, Current)]).next(&some),
            ReplicaStep::NoPlace
        );
        some.pop();
        assert_eq!(kept(1, &[(0, Burst)]).next(&some), ReplicaStep::NoPlace);
        assert_eq!(kept(1, &[(0, Leaving)]).next(&some), ReplicaStep::NoPlace);
    }

    #[test]
    fn replicas_prefer_other_hosts_then_other_nodes() {
        let two = sites(&["a", "a", "a", "b"]);
        assert_eq!(made(kept(2, &[(0, Current)]).next(&two)), (0, 3));
        let third = kept(3, &[(0, Current), (3, Coming)]).next(&two);
        assert!(matches!(made(third), (0, 1 | 2)));
        let one = sites(&["a", "a"]);
        assert_eq!(made(kept(2, &[(0, Current)]).next(&one)), (0, 1));
        assert_eq!(
            kept(3, &[(0, Current), (1, Current)]).next(&one),
            ReplicaStep::NoPlace
        );
    }

    #[test]
    fn replicas_of_objects_spread_over_equal_nodes() {
        let many = sites(&["a", "b", "c", "d", "e"]);
        let mut counts = [0; 5];
        for object in 0..400 {
            let one = ReplicaSet {
                object: ObjectId(object),
                ..kept(2, &[(0, Current)])
            };
            counts[made(one.next(&many)).1 as usize] += 1;
        }
        assert_eq!(counts[0], 0);
        assert!(counts[1..].iter().all(|&count| count > 60), "{counts:?}");
    }

    #[test]
    fn lost_replica_is_recreated_from_remaining_replicas() {
        let mut left = sites(&["a", "b", "c"]);
        left.remove(0);
        let lost = kept(2, &[(0, Failed), (1, Current)]);
        assert_eq!(made(lost.next(&left)), (1, 2));
        // A node that is only temporarily offline is waited for.
        let offline = kept(2, &[(0, Current), (1, Current)]);
        assert_eq!(offline.next(&left), ReplicaStep::Enough);
        assert_eq!(kept(2, &[(0, Failed)]).next(&left), ReplicaStep::NoSource);
        let under_way = kept(2, &[(0, Failed), (1, Current), (2, Coming)]);
        assert_eq!(under_way.next(&left), ReplicaStep::Wait);
    }

    #[test]
    fn corrupt_replica_is_recreated_in_place() {
        let all = sites(&["a", "b", "c"]);
        // The first replica is rewritten, too, and before any other replica is made.
        let mut first = kept(2, &[(0, Corrupt), (1, Current)]);
        assert_eq!(made(first.next(&all)), (1, 0));
        first.comes(NodeId(0));
        assert_eq!(first.holders.len(), 2);
        assert_eq!(first.next(&all), ReplicaStep::Wait);
        assert_eq!(
            made(kept(2, &[(0, Current), (1, Corrupt)]).next(&all)),
            (0, 1)
        );
        // A surplus replica is removed, but never the first one.
        let three = kept(2, &[(0, Current), (1, Corrupt), (2, Current)]);
        assert_eq!(
            three.next(&all),
            ReplicaStep::Remove {
                goes: vec![NodeId(1)],
                first: NodeId(0)
            }
        );
        let three = kept(2, &[(0, Corrupt), (1, Current), (2, Current)]);
        assert_eq!(made(three.next(&all)), (1, 0));
        // Nothing can be done for the only replica.
        assert_eq!(kept(1, &[(0, Corrupt)]).next(&all), ReplicaStep::NoSource);
        let gone = kept(2, &[(0, Corrupt), (1, Failed)]);
        assert_eq!(gone.next(&all), ReplicaStep::NoSource);
    }

    #[test]
    fn corrupt_replica_is_recreated_elsewhere_if_its_node_is_full() {
        let mut all = sites(&["a", "b", "c"]);
        all[0].free_bytes = 0;
        let mut corrupt = kept(2, &[(0, Corrupt), (1, Current)]);
        assert_eq!(made(corrupt.next(&all)), (1, 2));
        corrupt.holders.push((NodeId(2), Current));
        assert_eq!(corrupt.next(&all), ReplicaStep::Later);
        all[0].free_bytes = MUCH;
        assert_eq!(made(corrupt.next(&all)), (1, 0));
        // The same holds if the replica's node is offline.
        all.remove(0);
        let offline = kept(2, &[(0, Corrupt), (1, Current)]);
        assert_eq!(made(offline.next(&all)), (1, 2));
    }

    #[test]
    fn full_silent_and_compute_nodes_get_no_replicas() {
        let mut all = sites(&["a", "b", "c"]);
        all[1].free_bytes = RESERVE_BYTES + 99;
        all[2].takes = false;
        assert_eq!(kept(2, &[(0, Current)]).next(&all), ReplicaStep::NoPlace);
        all[1].free_bytes += 1;
        assert_eq!(made(kept(2, &[(0, Current)]).next(&all)), (0, 1));
    }

    #[test]
    fn surplus_replica_is_removed_while_enough_others_are_up() {
        let all = sites(&["a", "b", "b", "c"]);
        let four = kept(2, &[(0, Current), (1, Current), (2, Current), (3, Current)]);
        assert_eq!(four.next(&all), removed(&[2, 3], 0));
        let same_host = kept(1, &[(2, Current), (1, Current)]);
        assert_eq!(same_host.next(&all), removed(&[1], 2));
        let mut two = all.clone();
        two.truncate(2);
        assert_eq!(
            four.next(&two),
            ReplicaStep::Later,
            "the other nodes are offline"
        );
    }

    #[test]
    fn leaving_replica_is_copied_first_and_is_no_longer_first() {
        let all = sites(&["a", "b"]);
        let mut sole = kept(1, &[(0, Leaving)]);
        assert_eq!(
            (sole.left(), sole.has(), sole.only_migrates()),
            (0, 1, true)
        );
        assert_eq!(made(sole.next(&all)), (0, 1));
        sole.holders.push((NodeId(1), Coming));
        assert_eq!(sole.next(&all), ReplicaStep::Wait);
        sole.holders[1].1 = Current;
        assert_eq!(sole.next(&all), removed(&[0], 1));
        // The node of the replica is temporarily offline: both replicas are kept until it is online again.
        assert_eq!(sole.next(&all[..1]), ReplicaStep::Later);
        sole.holders = vec![(NodeId(1), Current), (NodeId(0), Going)];
        assert_eq!(sole.next(&all), ReplicaStep::Enough);
        assert_eq!(
            kept(1, &[(0, Leaving)]).next(&all[..1]),
            ReplicaStep::NoPlace
        );
        assert_eq!(
            kept(1, &[(0, Leaving)]).next(&all[1..]),
            ReplicaStep::NoSource
        );
    }

    #[test]
    fn leaving_replica_on_lost_node_is_recreated_from_others() {
        let left = &sites(&["a", "b", "c"])[1..];
        let two = kept(2, &[(0, FailedLeaving), (1, Current)]);
        assert_eq!((two.has(), two.only_migrates()), (1, false));
        assert_eq!(made(two.next(left)), (1, 2));
        let two = kept(2, &[(0, FailedLeaving), (1, Current), (2, Current)]);
        assert_eq!(two.next(left), removed(&[0], 1));
        assert_eq!(
            kept(1, &[(0, FailedLeaving)]).next(left),
            ReplicaStep::NoSource
        );
    }

    #[test]
    fn leaving_replica_needs_no_more_replicas_than_places() {
        let all = sites(&["a", "b"]);
        let mut two = kept(2, &[(0, Leaving), (1, Current)]);
        // Another node exists, but it is full or offline.
        assert_eq!(two.next(&all), ReplicaStep::NoPlace);
        two.places = 1;
        assert_eq!(two.next(&all), removed(&[0], 1));
    }

    #[test]
    fn migration_copies_replica_only_to_its_target() {
        let mut all = sites(&["a", "b", "c"]);
        let mut moved = ReplicaSet {
            target: Some(NodeId(2)),
            ..kept(1, &[(0, Leaving)])
        };
        assert!(moved.can_wait());
        assert_eq!(made(moved.next(&all)), (0, 2));
        moved.holders.push((NodeId(2), Coming));
        assert_eq!(moved.next(&all), ReplicaStep::Wait);
        moved.holders[1].1 = Current;
        assert_eq!(moved.next(&all), removed(&[0], 2));
        // The wanted number of replicas needs the node that is to be drained.
        moved.wanted = 2;
        moved.places = 2;
        assert_eq!(made(moved.next(&all)).1, 1);
        assert_eq!(
            moved.next(&[all[0].clone(), all[2].clone()]),
            ReplicaStep::Stay
        );
        moved.wanted = 1;
        moved.holders.pop();
        all[2].free_bytes = RESERVE_BYTES;
        assert_eq!(moved.next(&all), ReplicaStep::NoPlace);
    }

    /// For any records, a step reads only an intact replica, and neither a step nor a queued removal takes the last intact replica.
    #[test]
    fn steps_for_any_records_keep_an_intact_replica() {
        for seed in 0..20_000 {
            let mut dice = RandomSource::seeded(seed);
            let mut roll = |sides: u32| u32::try_from(dice.next_u64() % u64::from(sides)).unwrap();
            let all = sites(&["a", "b", "c", "a", "d"]);
            let first = NodeId(roll(5));
            let mut records = Vec::new();
            let nodes: Vec<NodeId> = (0..5).map(NodeId).filter(|_| roll(2) == 0).collect();
            for node in nodes {
                let state = [None, Some(Coming), Some(Current), Some(Corrupt)];
                let target = (roll(2) == 0).then_some(NodeId(roll(5)));
                let want = match roll(if node == first { 3 } else { 5 }) {
                    0 | 1 => WantedState::Keep,
                    2 => WantedState::Leave {
                        target,
                        anywhere: roll(2) == 0,
                    },
                    labelled => WantedState::Drop {
                        labelled: labelled == 3,
                    },
                };
                records.push(ReplicaRecord {
                    node,
                    state: state[roll(4) as usize],
                    want,
                    requested: roll(8) == 0,
                    staged_out: false,
                });
            }
            let absent = NodeAbsences {
                lost: (0..5).filter(|_| roll(8) == 0).collect(),
                emptied: (0..5).filter(|_| roll(8) == 0).collect(),
                places: 5,
                bursts: [4].into(),
            };
            let intact: Vec<NodeId> = in_order(first, &records)
                .into_iter()
                .filter(|(_, state)| *state == Current)
                .map(|(node, _)| node)
                .collect();
            let back = kept_back(first, &records);
            let removed = records.iter().any(ReplicaRecord::is_readable_until_removal);
            assert_eq!(
                !back.is_empty(),
                intact.is_empty() && removed,
                "seed {seed}"
            );
            let online: Vec<OnlineNode> = all.into_iter().filter(|_| roll(5) != 0).collect();
            let set = ReplicaSet::new(
                ObjectId(7),
                (5, 1 + roll(3) as usize),
                (first, &records),
                &absent,
            );
            match set.next(&online) {
                ReplicaStep::Make { from, to } => {
                    assert!(
                        intact.contains(&from) && !intact.contains(&to),
                        "seed {seed}"
                    );
                    let going = records.iter().filter(|one| !one.is_kept());
                    assert!(going.into_iter().all(|one| one.node != to), "seed {seed}");
                }
                ReplicaStep::Remove { goes, .. } => {
                    let stays = |node: &&NodeId| !goes.contains(node);
                    assert!(intact.iter().any(|node| stays(&node)), "seed {seed}");
                }
                _ => {}
            }
        }
    }

    /// For any behaviour of the nodes, the steps lead to replicas on the wanted nodes, and at least one replica exists at all times.
    #[test]
    fn replica_steps_reach_wanted_count_and_never_lose_last_replica() {
        for seed in 0..2000 {
            let mut dice = RandomSource::seeded(seed);
            let mut roll = |sides: u64| dice.next_u64() % sides;
            let hosts = ["a", "b", "c", "d"].map(|host| if roll(2) == 0 { "a" } else { host });
            let all = sites(&hosts[..2 + usize::try_from(roll(3)).unwrap()]);
            let count = u32::try_from(all.len()).unwrap();
            let leaving: Vec<u32> = (0..count - 1).filter(|_| roll(3) == 0).collect();
            let stay = all.len() - leaving.len();
            let state = |id: u32| {
                if leaving.contains(&id) {
                    Leaving
                } else {
                    Current
                }
            };
            let mut one = kept(1 + usize::try_from(roll(3)).unwrap(), &[]);
            one.places = stay;
            let mut sites = all.clone();
            for site in &mut sites {
                site.takes = !leaving.contains(&site.node.0);
            }
            let first = u32::try_from(roll(count.into())).unwrap();
            one.holders.push((NodeId(first), state(first)));
            let other = (first + 1) % count;
            if roll(2) == 0 {
                one.holders.push((NodeId(other), state(other)));
            }
            let end = loop {
                match one.next(&sites) {
                    ReplicaStep::Make { to, .. } => one.holders.push((to, Current)),
                    ReplicaStep::Remove { goes, first } => one.go(&goes, first),
                    end => break end,
                }
                assert!(one.has() > 0, "seed {seed}");
            };
            let expected = one.wanted.min(stay);
            assert_eq!((one.left(), one.has()), (expected, expected), "seed {seed}");
            let short = one.wanted > stay;
            assert_eq!(
                end,
                if short {
                    ReplicaStep::NoPlace
                } else {
                    ReplicaStep::Enough
                },
                "seed {seed}"
            );
        }
    }
}
