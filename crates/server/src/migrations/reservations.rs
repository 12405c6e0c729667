//! Reservations of space in the burst tier. This module creates, lists and ends reservations in the database. Next:
//! [`tidemill_meta::placement::reservations`], which applies the reservations to new versions.

use super::{NodeProperties, NodeRefusal};
use crate::chores::{Chore, Due, Step};
use futures_util::FutureExt;
use std::sync::Arc;
use tidemill_meta::placement::burst;
use tidemill_meta::placement::reservations::{self, ActiveReservation};
use tidemill_meta::transaction::Tx;
use tidemill_meta::vnode::{InodeRecord, SEARCH, WRITE};
use tidemill_meta::{Caller, Connection, Fault, SqliteNames};
use tidemill_model::layout::RESERVE_BYTES;
use tidemill_model::replicas::OnlineNode;
use tidemill_sched::reservation::SpaceReservation;
use tidemill_wire::v1;

/// Maximum number of reservations, since the server reads all of them for each new file in the burst tier.
const RESERVATIONS_MAX: u64 = 256;
/// Maximum number of reservations of one user without administrator rights.
const EACH_MAX: u64 = 64;
/// Default duration of a reservation, and (`LASTS_NS_MAX`) maximum duration, in nanoseconds.
const LASTS_NS: i64 = 24 * 3600 * 1_000_000_000;
const LASTS_NS_MAX: i64 = 366 * LASTS_NS;
/// Duration from which a reservation is long, and (`LONG_PART`) divisor of the users' share on a node for one user's long reservations.
const LONG_NS: i64 = 7 * LASTS_NS;
const LONG_PART: u64 = 4;

type ReservationResult<T> = Result<Result<T, NodeRefusal>, Fault>;

/// Request for a reservation on one node.
struct SpaceRequest<'a> {
    bytes: u64,
    reservations: &'a [ActiveReservation],
    bounded: bool,
    /// Whether the requested reservation is long.
    long: bool,
}

/// Reserves space for files that will be written below a directory.
pub(crate) fn reserve(
    tx: &Tx<'_>,
    request: &v1::SpaceReservationRequest,
    (members, sites): (&[NodeProperties], &[OnlineNode]),
) -> ReservationResult<v1::SpaceReservation> {
    let path = String::from_utf8_lossy(&request.path).into_owned();
    let directory = tx.resolve(&request.path, true)?;
    if !directory.is_dir() {
        return Ok(Err(NodeRefusal::NoDirectory(path)));
    }
    tx.need(&directory, WRITE | SEARCH, &path)?;
    let lasts = match request.for_ns {
        0 => LASTS_NS,
        lasts => lasts,
    };
    if !(1..=LASTS_NS_MAX).contains(&lasts) {
        return Ok(Err(NodeRefusal::Nothing("that time")));
    }
    if request.bytes == 0 || i64::try_from(request.bytes).is_err() {
        return Ok(Err(NodeRefusal::Nothing("that size")));
    }
    let reservations = reservations::all(tx.db, tx.now)?;
    if let Some(refusal) = too_many(tx.caller, &reservations) {
        return Ok(Err(refusal));
    }
    let tier = match candidates(request, members, sites) {
        Ok(tier) => tier,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let asked = SpaceRequest {
        bytes: request.bytes,
        reservations: &reservations,
        bounded: !tx.caller.above(),
        long: lasts > LONG_NS,
    };
    let mut refused = None;
    for site in tier {
        match keeps(tx, site, &asked)? {
            Ok(()) => {
                let until = tx.now.saturating_add(lasts);
                return Ok(Ok(keep(tx, (&directory, site), (&asked, until))?));
            }
            Err(refusal) => refused = refused.or(Some(refusal)),
        }
    }
    if let Some(NodeRefusal::Missing { node, missing, .. }) = refused
        && request.wait
    {
        // The space that the request lacks becomes free sooner.
        burst::stage_out_sooner(tx.db, (node, missing), tx.now)?;
    }
    Ok(Err(refused.unwrap_or(NodeRefusal::NoBurst)))
}

fn too_many(caller: &Caller, reservations: &[ActiveReservation]) -> Option<NodeRefusal> {
    let count = reservations.len() as u64;
    if count >= RESERVATIONS_MAX {
        return Some(NodeRefusal::TooManyReservations(count));
    }
    let own = reservations
        .iter()
        .filter(|one| one.uid == caller.uid)
        .count() as u64;
    (!caller.above() && own >= EACH_MAX).then_some(NodeRefusal::TooManyReservations(own))
}

/// Returns the nodes that may provide the reservation: the requested node, or first the nodes on the caller's host and then the others,
/// ordered by free space.
fn candidates<'a>(
    request: &v1::SpaceReservationRequest,
    members: &[NodeProperties],
    sites: &'a [OnlineNode],
) -> Result<Vec<&'a OnlineNode>, NodeRefusal> {
    if request.node != 0 {
        let stage_in = v1::StageIn {
            node: request.node,
            host: String::new(),
        };
        return Ok(vec![super::files::burst_site(&stage_in, members, sites)?]);
    }
    let mut tier: Vec<&OnlineNode> = sites
        .iter()
        .filter(|site| site.burst && site.takes)
        .collect();
    tier.sort_by_key(|site| {
        let far = site.host != request.host;
        (far, std::cmp::Reverse(site.free_bytes))
    });
    match tier.is_empty() {
        true => Err(NodeRefusal::NoBurst),
        false => Ok(tier),
    }
}

/// Returns a refusal if a user's long reservations exceed their fraction of the users' share.
fn too_long(
    tx: &Tx<'_>,
    site: &OnlineNode,
    asked: &SpaceRequest<'_>,
    capacity: u64,
) -> Option<NodeRefusal> {
    if !asked.bounded || !asked.long {
        return None;
    }
    let node = site.node.0;
    let percent = u128::from(tx.shared.bursts.limits().reserve);
    let share = u64::try_from(u128::from(capacity) * percent / 100).unwrap_or(u64::MAX);
    let max = share / LONG_PART;
    let own = asked.reservations.iter().filter(|one| {
        let own = one.bounded && one.node == node && one.uid == tx.caller.uid;
        own && one.until.saturating_sub(tx.now) > LONG_NS
    });
    let reserved: u64 = own.map(|one| one.reservation.bytes).sum();
    let fits = reserved.saturating_add(asked.bytes) <= max;
    (!fits).then_some(NodeRefusal::Long {
        node,
        max,
        reserved,
    })
}

/// Checks whether a node has enough space for a reservation.
fn keeps(tx: &Tx<'_>, site: &OnlineNode, asked: &SpaceRequest<'_>) -> ReservationResult<()> {
    let (node, bytes) = (site.node.0, asked.bytes);
    let held = burst::reported(tx.db, node, tx.now)?.bytes;
    let capacity = held.saturating_add(site.free_bytes);
    if bytes.saturating_add(RESERVE_BYTES) > capacity {
        return Ok(Err(NodeRefusal::Beyond {
            node,
            bytes,
            capacity,
        }));
    }
    if asked.bounded {
        let percent = u128::from(tx.shared.bursts.limits().reserve);
        let max = u64::try_from(u128::from(capacity) * percent / 100).unwrap_or(u64::MAX);
        let users = asked.reservations.iter();
        let users = users.filter(|one| one.bounded && one.node == node);
        let reserved = users.map(|one| one.reservation.bytes).sum::<u64>();
        if bytes > max {
            return Ok(Err(NodeRefusal::BeyondShare { node, bytes, max }));
        }
        if reserved.saturating_add(bytes) > max {
            return Ok(Err(NodeRefusal::Share {
                node,
                max,
                reserved,
            }));
        }
    }
    if let Some(refusal) = too_long(tx, site, asked, capacity) {
        return Ok(Err(refusal));
    }
    let at = (node, site.free_bytes);
    let space = reservations::space(tx.db, at, (asked.reservations, tx.now))?;
    let reserved = reservations::of(asked.reservations, node);
    let migrations = (tx.evictable(node)?, tx.coming_to_burst(node)?);
    Ok(match space.missing(bytes, &reserved, migrations) {
        0 => Ok(()),
        missing => Err(NodeRefusal::Missing {
            node,
            bytes,
            missing,
        }),
    })
}

fn keep(
    tx: &Tx<'_>,
    (directory, site): (&InodeRecord, &OnlineNode),
    (asked, until): (&SpaceRequest<'_>, i64),
) -> Result<v1::SpaceReservation, Fault> {
    let new = ActiveReservation {
        id: 0,
        ino: directory.ino,
        node: site.node.0,
        reservation: SpaceReservation {
            bytes: asked.bytes,
            used: 0,
            open: 0,
        },
        uid: tx.caller.uid,
        bounded: asked.bounded,
        since: tx.now,
        until,
    };
    let id = reservations::insert(tx.db, &new)?;
    tx.shared.bursts.set_reserved();
    tx.shared.nodes.set_moving();
    let made = reservations::all(tx.db, tx.now)?;
    let made = made.iter().find(|one| one.id == id);
    let made = made.ok_or(Fault::Malformed("a reservation that has ended already"))?;
    message_of(tx, made)
}

/// Returns a reservation as a protocol message.
fn message_of(tx: &Tx<'_>, one: &ActiveReservation) -> Result<v1::SpaceReservation, Fault> {
    Ok(v1::SpaceReservation {
        id: one.id,
        directory: tx.path_of(one.ino)?.unwrap_or_default(),
        node: one.node,
        bytes: one.reservation.bytes,
        used: one.reservation.used,
        open: one.reservation.open,
        uid: one.uid,
        since: one.since,
        until: one.until,
    })
}

/// Returns the caller's reservations; for an administrator, all reservations.
pub(crate) fn list(tx: &Tx<'_>) -> Result<Vec<v1::SpaceReservation>, Fault> {
    let reservations = reservations::all(tx.db, tx.now)?;
    let own = reservations
        .iter()
        .filter(|one| tx.caller.above() || one.uid == tx.caller.uid);
    own.map(|one| message_of(tx, one)).collect()
}

/// Ends a reservation by its number, or all of the caller's reservations for a directory. Files in the reserved space stay.
pub(crate) fn release(
    tx: &Tx<'_>,
    request: &v1::ReleaseRequest,
) -> ReservationResult<Vec<v1::SpaceReservation>> {
    let directory = match request.id {
        0 => tx.resolve(&request.path, true)?.ino,
        _ => 0,
    };
    let reservations = reservations::all(tx.db, tx.now)?.into_iter();
    let meant = reservations
        .filter(|one| one.id == request.id || one.ino == directory)
        .filter(|one| tx.caller.above() || one.uid == tx.caller.uid);
    let mut released = Vec::new();
    for one in meant {
        released.push(message_of(tx, &one)?);
        reservations::release(tx.db, one.id)?;
    }
    if released.is_empty() {
        let called = match request.id {
            0 => String::from_utf8_lossy(&request.path).into_owned(),
            id => id.to_string(),
        };
        return Ok(Err(NodeRefusal::NoReservation(called)));
    }
    Ok(Ok(released))
}

/// Ends expired reservations.
pub(crate) struct ExpiredReservations(pub(crate) Arc<SqliteNames>);

impl Chore for ExpiredReservations {
    fn delays(&self) -> &'static str {
        "expired reservations of space are kept for now"
    }

    fn due(&mut self, _: i64) -> Result<Due, Fault> {
        self.0
            .database()
            .read(reservations::first_end)
            .map(Due::from)
    }

    fn step(&mut self, now: i64) -> Step<'_> {
        let sweep = move |db: &Connection| reservations::sweep(db, now);
        let swept = self.0.database().write(sweep);
        Box::pin(swept.map(|done| done.map(|()| Due::NOW)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_model::id::NodeId;

    #[test]
    fn long_reservations_beyond_one_users_fraction_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&directory.path().join("server.db"), (0, 0)).unwrap();
        let site = OnlineNode {
            node: NodeId(3),
            host: "h".into(),
            free_bytes: 800 << 20,
            takes: true,
            memory: false,
            burst: true,
            backend: false,
        };
        let reserved = |uid: u32, mib: u64, days: i64| {
            let (shared, sites) = (names.shared().clone(), vec![site.clone()]);
            let reserved = names.database().write_blocking(move |db| {
                db.raw()
                    .execute("UPDATE inode SET mode = 511 WHERE ino = 1", [])?;
                let caller = Caller {
                    uid,
                    gid: uid,
                    ..Caller::default()
                };
                let request = v1::SpaceReservationRequest {
                    path: b"/".to_vec(),
                    bytes: mib << 20,
                    for_ns: days * LASTS_NS,
                    ..v1::SpaceReservationRequest::default()
                };
                let tx = Tx::new(db, &shared, &caller, 0, 1);
                let reserved = reserve(&tx, &request, (&[], &sites))?;
                Ok(reserved.map(drop).map_err(|refusal| refusal.to_string()))
            });
            reserved.unwrap()
        };
        // All users together may reserve 400 MiB, and one user 100 MiB for long.
        assert_eq!(reserved(7, 60, 366), Ok(()));
        let refused = reserved(7, 60, 8).unwrap_err();
        assert!(refused.contains("for more than 7 days"), "{refused}");
        assert_eq!(reserved(7, 40, 8), Ok(()));
        assert_eq!(reserved(8, 100, 366), Ok(()));
        // A short reservation may take all the rest.
        assert_eq!(reserved(7, 200, 7), Ok(()));
        assert!(reserved(8, 1, 1).unwrap_err().contains("together"));
        assert_eq!(reserved(0, 100, 366), Ok(()));
    }
}
