//! Migrations of files that their owners request. Next: `server/src/replicas.rs`, which decides about the replicas.

use super::{NodeProperties, NodeRefusal};
use tidemill_meta::placement::migrations;
use tidemill_meta::placement::{replicas, reservations, under_replicated};
use tidemill_meta::transaction::Tx;
use tidemill_meta::vnode::InodeRecord;
use tidemill_meta::{Fault, parts, version};
use tidemill_model::id::ObjectId;
use tidemill_model::layout::Part;
use tidemill_model::layout::RESERVE_BYTES;
use tidemill_model::replicas::OnlineNode;
use tidemill_wire::v1::{self, Kind};

/// Maximum number of files and directories of one request, since no other client can change names during the request.
const BELOW_MAX: usize = 100_000;
/// Permission bits for listing a directory and searching it.
const READ_AND_SEARCH: u32 = 0o5;
const READ: u32 = 0o4;

/// An object of a version and the node of its first replica.
#[derive(Clone, Copy, Debug)]
struct VersionObject {
    object: u64,
    first: u32,
    size: u64,
}

/// A node to which files are to migrate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MoveTarget {
    node: u32,
    free_bytes: u64,
    /// Number of bytes that are to migrate to the node.
    bytes: u64,
}

/// Requests the migration of a file, or of all files below a directory, to nodes.
pub(crate) fn to(
    tx: &Tx<'_>,
    request: &v1::MoveRequest,
    (members, sites): (&[NodeProperties], &[OnlineNode]),
) -> Result<Result<v1::MoveReply, NodeRefusal>, Fault> {
    let mut targets = match takes_all(tx, request, members, sites) {
        Ok(targets) => targets,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let Some(files) = below(tx, tx.resolve(&request.path, true)?, Whose::Own)? else {
        let path = String::from_utf8_lossy(&request.path).into_owned();
        return Ok(Err(NodeRefusal::TooMany(path, BELOW_MAX)));
    };
    let mut reply = v1::MoveReply::default();
    let mut moving = Vec::new();
    for file in files {
        let objects = objects_of(tx, &file)?;
        if objects.is_empty() {
            reply.unsealed += 1;
            continue;
        }
        let (count, before) = (
            moving.len(),
            targets.iter().map(|one| one.bytes).sum::<u64>(),
        );
        let has = |object, node| replicas::is_current(tx.db, object, node);
        moving.extend(spread(&objects, &mut targets, has)?);
        if moving.len() == count {
            reply.there += 1;
            continue;
        }
        reply.files += 1;
        reply.bytes += targets.iter().map(|one| one.bytes).sum::<u64>() - before;
    }
    for target in &targets {
        let needed = target.bytes.saturating_add(RESERVE_BYTES);
        let goes = moving.iter().any(|(_, _, node)| *node == target.node);
        if goes && target.free_bytes < needed {
            return Ok(Err(NodeRefusal::Full {
                node: target.node,
                free: target.free_bytes,
                needed,
            }));
        }
    }
    tx.shared.nodes.set_moving();
    for (object, first, target) in moving {
        migrations::move_first(tx.db, object, (first, target), tx.now)?;
    }
    Ok(Ok(reply))
}

/// Selection of files by the rights of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// Files below a path; the caller must own all of them.
    Own,
    /// Files below a path; the caller must be able to read all of them.
    Readable,
    /// All files that the caller can list, of any owner.
    Listed,
}

/// Returns the files of a request. Returns the path as an error if there are too many files.
fn meant(
    tx: &Tx<'_>,
    request: &v1::StageRequest,
) -> Result<Result<Vec<InodeRecord>, String>, Fault> {
    if request.directory != 0 && (request.evict || request.stage_in.is_some()) {
        return Err(Fault::Malformed(
            "a directory given by its number can only be waited for",
        ));
    }
    let (first, whose) = match (request.directory, &request.stage_in) {
        (0, None) => (tx.resolve(&request.path, true)?, Whose::Own),
        (0, Some(_)) => {
            let first = tx.resolve(&request.path, true)?;
            let want = if first.is_dir() {
                READ_AND_SEARCH
            } else {
                READ
            };
            // The path is shown with the name that the caller knows.
            tx.need(&first, want, &String::from_utf8_lossy(&request.path))?;
            (first, Whose::Readable)
        }
        (ino, _) if !tx.waits_for_stage_out(ino)? => return Ok(Ok(Vec::new())),
        (ino, _) => (tx.reach(ino)?, Whose::Listed),
    };
    let called = first.ino;
    Ok(match below(tx, first, whose)? {
        Some(files) => Ok(files),
        None => Err(tx.called(called)),
    })
}

/// Stages out the objects of a file, or of all files below a directory, from the burst tier now.
pub(crate) fn stage_out(
    tx: &Tx<'_>,
    request: &v1::StageRequest,
) -> Result<Result<v1::StageReply, NodeRefusal>, Fault> {
    let files = match meant(tx, request)? {
        Ok(files) => files,
        Err(path) => return Ok(Err(NodeRefusal::TooMany(path, BELOW_MAX))),
    };
    let mut reply = v1::StageReply {
        until: match request.until {
            0 => tx.now,
            until => until,
        },
        ..v1::StageReply::default()
    };
    for file in files {
        reply.files += 1;
        if request.until != 0 && version::sealed_at(tx.db, file.object)? > request.until {
            continue;
        }
        let objects = objects_of(tx, &file)?;
        if objects.is_empty() {
            reply.unsealed += 1;
        }
        let objects: Vec<(u64, u64)> = objects.iter().map(|one| (one.object, one.size)).collect();
        let before = reply.objects;
        tx.stage_out_now(&objects, request.evict, &mut reply)?;
        // The request waits for these objects, whatever time the clock has shown since.
        if reply.objects > before {
            reply.until = reply.until.max(version::sealed_at(tx.db, file.object)?);
        }
    }
    Ok(Ok(reply))
}

/// Requests replicas of the stored objects of a file, or of all files below a directory, on a node of the burst tier.
pub(crate) fn stage_in(
    tx: &Tx<'_>,
    (request, stage_in): (&v1::StageRequest, &v1::StageIn),
    (members, sites): (&[NodeProperties], &[OnlineNode]),
) -> Result<Result<v1::StageReply, NodeRefusal>, Fault> {
    let files = match meant(tx, request)? {
        Ok(files) => files,
        Err(path) => return Ok(Err(NodeRefusal::TooMany(path, BELOW_MAX))),
    };
    let mut reply = v1::StageReply::default();
    let (mut new, mut bytes_new, mut bytes_there) = (Vec::new(), 0_u64, 0_u64);
    for file in files {
        let objects = objects_of(tx, &file)?;
        reply.files += 1;
        reply.unsealed += u64::from(objects.is_empty());
        for one in objects {
            if let Some(bytes) = tx.stays_in_burst(one.object)? {
                bytes_there = bytes_there.saturating_add(bytes);
                continue;
            }
            reply.objects += 1;
            reply.bytes = reply.bytes.saturating_add(one.size);
            if !tx.shared.is_up(one.first) {
                reply.offline = reply.offline.max(one.first + 1);
            }
            match tx.comes_to_burst(one.object)? {
                Some(node) => reply.node = node + 1,
                None => {
                    bytes_new = bytes_new.saturating_add(one.size);
                    new.push(one.object);
                }
            }
        }
    }
    if new.is_empty() {
        return Ok(Ok(reply));
    }
    let target = match burst_site(stage_in, members, sites) {
        Ok(target) => target,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let node = target.node.0;
    let reserved = reservations::reserved(tx.db, node, tx.now)?;
    let needed = [
        bytes_new,
        tx.coming_to_burst(node)?,
        RESERVE_BYTES,
        reserved,
    ];
    let needed = needed.into_iter().fold(0, u64::saturating_add);
    let free = target.free_bytes;
    let evictable = tx.evictable(node)?.saturating_sub(bytes_there);
    if free.saturating_add(evictable) < needed {
        return Ok(Err(NodeRefusal::Full { node, free, needed }));
    }
    tx.evict_at_least(node, needed.saturating_sub(free))?;
    tx.shared.nodes.set_moving();
    for object in new {
        tx.stage_in(object, node)?;
    }
    reply.node = node + 1;
    Ok(Ok(reply))
}

/// Returns the requested node of the burst tier, or a node of the tier on the caller's host, else the node with the most free space.
pub(super) fn burst_site<'a>(
    stage_in: &v1::StageIn,
    members: &[NodeProperties],
    sites: &'a [OnlineNode],
) -> Result<&'a OnlineNode, NodeRefusal> {
    if let Some(node) = stage_in.node.checked_sub(1) {
        let member = members.iter().find(|one| one.node == node);
        return match member {
            None => Err(NodeRefusal::Unknown(node)),
            Some(member) if !member.burst => Err(NodeRefusal::NotBurst(node)),
            Some(_) => {
                let site = sites.iter().find(|site| site.node.0 == node);
                site.ok_or(NodeRefusal::Down(node))
            }
        };
    }
    let tier = sites.iter().filter(|site| site.burst && site.takes);
    let best = tier.max_by_key(|site| (site.host == stage_in.host, site.free_bytes));
    best.ok_or(NodeRefusal::NoBurst)
}

/// Returns those files of a request that mounts are writing, or at least some of them.
pub(crate) fn written(tx: &Tx<'_>, request: &v1::StageRequest) -> Result<Vec<u64>, Fault> {
    let files = meant(tx, request)?.unwrap_or_default();
    let written = files.into_iter().filter(|file| file.writing != 0);
    Ok(written.map(|file| file.ino).collect())
}

/// Returns the requested nodes, each once, if files can migrate to them.
fn takes_all(
    tx: &Tx<'_>,
    request: &v1::MoveRequest,
    members: &[NodeProperties],
    sites: &[OnlineNode],
) -> Result<Vec<MoveTarget>, NodeRefusal> {
    let one = [request.node];
    let named = match request.nodes.is_empty() {
        true => &one[..],
        false => &request.nodes[..],
    };
    let mut targets: Vec<MoveTarget> = Vec::new();
    for &node in named {
        let site = takes(tx, node, members, sites)?;
        if targets.iter().all(|target| target.node != node) {
            targets.push(MoveTarget {
                node,
                free_bytes: site.free_bytes,
                bytes: 0,
            });
        }
    }
    Ok(targets)
}

/// Returns the objects of a sealed version; empty if the version has no bytes.
fn objects_of(tx: &Tx<'_>, file: &InodeRecord) -> Result<Vec<VersionObject>, Fault> {
    if file.object == 0 {
        return Ok(Vec::new());
    }
    if let Some(first) = file.node() {
        let (object, size) = (file.object, file.size);
        return Ok(vec![VersionObject {
            object,
            first,
            size,
        }]);
    }
    let parts = parts::of_all(tx.db, &[ObjectId(file.object)])?.into_iter();
    let placed = |part: &Part| VersionObject {
        object: part.object.0,
        first: part.replicas.first().map_or(0, |replica| replica.node.0),
        size: part.size,
    };
    Ok(parts
        .flat_map(|(_, layout)| layout.parts().iter().map(placed).collect::<Vec<_>>())
        .collect())
}

/// Distributes the objects of a version over the target nodes. Each node gets the same number, and objects on a target stay there.
fn spread<E>(
    objects: &[VersionObject],
    targets: &mut [MoveTarget],
    has: impl Fn(u64, u32) -> Result<bool, E>,
) -> Result<Vec<(u64, u32, u32)>, E> {
    let most = objects.len().div_ceil(targets.len().max(1));
    let mut counts = vec![0; targets.len()];
    let mut left = Vec::new();
    for one in objects {
        let mut stays = None;
        for (index, target) in targets.iter().enumerate() {
            let is_first = target.node == one.first;
            if counts[index] < most
                && (is_first || (stays.is_none() && has(one.object, target.node)?))
            {
                stays = Some(index);
            }
            if is_first {
                break;
            }
        }
        match stays {
            Some(index) => counts[index] += 1,
            None => left.push(one),
        }
    }
    let mut goes = Vec::new();
    for one in left {
        let emptiest =
            (0..targets.len()).min_by_key(|&index| (counts[index], targets[index].bytes));
        if let Some(index) = emptiest {
            counts[index] += 1;
            targets[index].bytes = targets[index].bytes.saturating_add(one.size);
            goes.push((one.object, one.first, targets[index].node));
        }
    }
    Ok(goes)
}

/// Returns the state of a node, if files can migrate to that node.
fn takes<'a>(
    tx: &Tx<'_>,
    node: u32,
    members: &[NodeProperties],
    sites: &'a [OnlineNode],
) -> Result<&'a OnlineNode, NodeRefusal> {
    let member = members.iter().find(|one| one.node == node);
    let member = member.ok_or(NodeRefusal::Unknown(node))?;
    if !member.store {
        return Err(NodeRefusal::NoStore(node));
    }
    if member.burst {
        return Err(NodeRefusal::Burst(node));
    }
    if tx.shared.nodes.is_closed(node) {
        return Err(NodeRefusal::Emptied(node));
    }
    let site = sites.iter().find(|site| site.node.0 == node);
    site.ok_or(NodeRefusal::Down(node))
}

/// Cancels the requested migrations of files at a path that have not started.
pub(crate) fn cancel(tx: &Tx<'_>, path: &[u8]) -> Result<v1::MoveReply, Fault> {
    let files = below(tx, tx.resolve(path, true)?, Whose::Own)?.unwrap_or_default();
    let mut reply = v1::MoveReply::default();
    for file in files {
        let mut bytes = None;
        for one in objects_of(tx, &file)? {
            if migrations::cancel_move(tx.db, one.object)? {
                under_replicated::look_again(tx.db, one.object, tx.now)?;
                bytes = Some(bytes.unwrap_or(0) + one.size);
            }
        }
        if let Some(bytes) = bytes {
            reply.files += 1;
            reply.bytes += bytes;
        }
    }
    Ok(reply)
}

/// Returns a file, or the files below a directory, if the caller has the necessary rights; `None` if there are too many files.
fn below(tx: &Tx<'_>, first: InodeRecord, whose: Whose) -> Result<Option<Vec<InodeRecord>>, Fault> {
    let mut files = Vec::new();
    let mut left = vec![first];
    let mut seen = 0;
    while let Some(vnode) = left.pop() {
        match vnode.kind {
            Kind::File => {
                match whose {
                    Whose::Own => tx.need_owner(&vnode)?,
                    Whose::Readable => tx.need(&vnode, READ, &tx.called(vnode.ino))?,
                    Whose::Listed => {}
                }
                files.push(vnode);
            }
            Kind::Directory
                if whose == Whose::Listed && !tx.caller.may(&vnode, READ_AND_SEARCH) => {}
            Kind::Directory => {
                let called = tx.called(vnode.ino);
                tx.need(&vnode, READ_AND_SEARCH, &called)?;
                let entries = tx.entries(vnode.ino, BELOW_MAX + 1 - seen)?;
                seen += entries.len();
                if seen > BELOW_MAX {
                    return Ok(None);
                }
                left.extend(entries.into_iter().map(|(_, vnode)| vnode));
            }
            _ => {}
        }
    }
    Ok(Some(files))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::convert::Infallible;

    fn target(node: u32) -> MoveTarget {
        MoveTarget {
            node,
            free_bytes: u64::MAX,
            bytes: 0,
        }
    }

    fn spread_to(firsts: &[u32], nodes: &[u32], replicas: &[(u64, u32)]) -> Vec<(u64, u32, u32)> {
        let placed = |(object, &first): (u64, &u32)| VersionObject {
            object,
            first,
            size: 10,
        };
        let objects: Vec<VersionObject> = (0..).zip(firsts).map(placed).collect();
        let mut targets: Vec<MoveTarget> = nodes.iter().map(|&node| target(node)).collect();
        let has = |object, node| Ok::<_, Infallible>(replicas.contains(&(object, node)));
        let Ok(goes) = spread(&objects, &mut targets, has);
        let bytes: u64 = targets.iter().map(|target| target.bytes).sum();
        assert_eq!(bytes, goes.len() as u64 * 10);
        goes
    }

    #[test]
    fn migration_spread_moves_only_excess_parts() {
        assert_eq!(spread_to(&[0, 1], &[2, 3], &[]), [(0, 0, 2), (1, 1, 3)]);
        assert_eq!(spread_to(&[0, 1], &[1, 2], &[]), [(0, 0, 2)]);
        assert_eq!(spread_to(&[0, 1], &[1, 0], &[]), []);
        assert_eq!(spread_to(&[0, 1], &[5], &[]), [(0, 0, 5), (1, 1, 5)]);
        // No node keeps more than its share.
        assert_eq!(
            spread_to(&[1, 1, 1, 1], &[1, 2], &[]),
            [(2, 1, 2), (3, 1, 2)]
        );
        // Another replica counts, too, but the first replica stays on its node.
        assert_eq!(spread_to(&[0, 1], &[2, 1], &[(0, 2), (1, 2)]), []);
        assert_eq!(spread_to(&[0], &[2], &[(0, 2)]), []);
    }

    #[test]
    fn migration_spread_balances_whole_files_by_bytes() {
        let mut targets = [target(1), target(2)];
        let mut go = |size| {
            let whole = [VersionObject {
                object: 7,
                first: 0,
                size,
            }];
            let goes = spread(&whole, &mut targets, |_, _| Ok::<_, Infallible>(false));
            let Ok(goes) = goes;
            goes[0].2
        };
        assert_eq!([100, 10, 10, 90, 10].map(&mut go), [1, 2, 2, 2, 1]);
    }

    proptest! {
        #[test]
        fn migration_spread_gives_each_node_at_most_its_share(firsts in proptest::collection::vec(0..6_u32, 1..12), count in 1..6_u32, from in 0..4_u32) {
            let nodes: Vec<u32> = (from..from + count).collect();
            let goes = spread_to(&firsts, &nodes, &[]);
            let mut after = firsts.clone();
            for (object, first, to) in goes {
                let at = &mut after[usize::try_from(object).unwrap()];
                prop_assert_eq!(*at, first);
                prop_assert!(first != to);
                *at = to;
            }
            let most = firsts.len().div_ceil(nodes.len());
            for node in &nodes {
                prop_assert!(after.iter().filter(|at| *at == node).count() <= most);
            }
            prop_assert!(after.iter().all(|at| nodes.contains(at)));
        }
    }
}
