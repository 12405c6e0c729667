//! Promises of space in the burst tier. This module creates, lists and ends them in the table of promises. Next:
//! [`crate::names::promises`], which applies them.

use super::{Member, Refusal};
use crate::clock;
use crate::names::burst;
use crate::names::ids;
use crate::names::promises::{self, Promised};
use crate::names::transaction::Tx;
use crate::names::vnode::{SEARCH, Vnode, WRITE};
use crate::names::{Caller, Fault, SqliteNames};
use rusqlite::params;
use std::sync::Arc;
use std::time::Duration;
use tidemill_core::layout::RESERVE_BYTES;
use tidemill_core::replicas::Site;
use tidemill_wire::v1;

/// Maximum number of promises, since each new file in the tier reads all of them.
const PROMISES_MAX: u64 = 256;
/// Maximum number of promises of one user without administrator rights.
const EACH_MAX: u64 = 64;
/// Default and maximum duration of a promise.
const LASTS_NS: i64 = 24 * 3600 * 1_000_000_000;
const LASTS_NS_MAX: i64 = 366 * LASTS_NS;
/// Duration from which a promise is long, and the fraction of the users' share on a node that one user's long promises can take.
const LONG_NS: i64 = 7 * LASTS_NS;
const LONG_PART: u64 = 4;
/// Interval in which expired promises are looked for.
const PERIOD: Duration = Duration::from_secs(1);

type Done<T> = Result<Result<T, Refusal>, Fault>;

/// Request to one node.
struct Asked<'a> {
    bytes: u64,
    promises: &'a [Promised],
    bounded: bool,
    /// Whether the promise is long.
    long: bool,
}

/// Reserves space for files that will be written below a directory.
pub(crate) fn reserve(
    tx: &Tx<'_>,
    request: &v1::PromiseRequest,
    (members, sites): (&[Member], &[Site]),
) -> Done<v1::Promise> {
    let path = String::from_utf8_lossy(&request.path).into_owned();
    let directory = tx.resolve(&request.path, true)?;
    if !directory.is_dir() {
        return Ok(Err(Refusal::NoDirectory(path)));
    }
    tx.need(&directory, WRITE | SEARCH, &path)?;
    let lasts = match request.for_ns {
        0 => LASTS_NS,
        lasts => lasts,
    };
    if !(1..=LASTS_NS_MAX).contains(&lasts) {
        return Ok(Err(Refusal::Nothing("that time")));
    }
    if request.bytes == 0 || i64::try_from(request.bytes).is_err() {
        return Ok(Err(Refusal::Nothing("that size")));
    }
    let promises = promises::all(tx.db, tx.now)?;
    if let Some(refusal) = too_many(tx.caller, &promises) {
        return Ok(Err(refusal));
    }
    let tier = match candidates(request, members, sites) {
        Ok(tier) => tier,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let asked = Asked {
        bytes: request.bytes,
        promises: &promises,
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
    if let Some(Refusal::Missing { node, missing, .. }) = refused
        && request.wait
    {
        // The space that the request lacks becomes free sooner.
        burst::drain_sooner(tx.db, (node, missing), tx.now)?;
    }
    Ok(Err(refused.unwrap_or(Refusal::NoBurst)))
}

fn too_many(caller: &Caller, promises: &[Promised]) -> Option<Refusal> {
    let count = promises.len() as u64;
    if count >= PROMISES_MAX {
        return Some(Refusal::TooManyPromises(count));
    }
    let own = promises.iter().filter(|one| one.uid == caller.uid).count() as u64;
    (!caller.above() && own >= EACH_MAX).then_some(Refusal::TooManyPromises(own))
}

/// Returns the nodes that may give the promise: the named one, or those of the caller's host first, and of these those with the most
/// free space.
fn candidates<'a>(
    request: &v1::PromiseRequest,
    members: &[Member],
    sites: &'a [Site],
) -> Result<Vec<&'a Site>, Refusal> {
    if request.node != 0 {
        let bring = v1::Bring {
            node: request.node,
            host: String::new(),
        };
        return Ok(vec![super::files::burst_site(&bring, members, sites)?]);
    }
    let mut tier: Vec<&Site> = sites
        .iter()
        .filter(|site| site.burst && site.takes)
        .collect();
    tier.sort_by_key(|site| {
        let far = site.host != request.host;
        (far, std::cmp::Reverse(site.free_bytes))
    });
    match tier.is_empty() {
        true => Err(Refusal::NoBurst),
        false => Ok(tier),
    }
}

/// Refuses a user's long promises beyond their fraction of the users' share.
fn too_long(tx: &Tx<'_>, site: &Site, asked: &Asked<'_>, capacity: u64) -> Option<Refusal> {
    if !asked.bounded || !asked.long {
        return None;
    }
    let node = site.node.0;
    let percent = u128::from(tx.shared.bursts.limits().reserve);
    let share = u64::try_from(u128::from(capacity) * percent / 100).unwrap_or(u64::MAX);
    let max = share / LONG_PART;
    let own = asked.promises.iter().filter(|one| {
        let own = one.bounded && one.node == node && one.uid == tx.caller.uid;
        own && one.until.saturating_sub(tx.now) > LONG_NS
    });
    let promised: u64 = own.map(|one| one.promise.bytes).sum();
    let fits = promised.saturating_add(asked.bytes) <= max;
    (!fits).then_some(Refusal::Long {
        node,
        max,
        promised,
    })
}

/// Checks whether a node can keep a promise.
fn keeps(tx: &Tx<'_>, site: &Site, asked: &Asked<'_>) -> Done<()> {
    let (node, bytes) = (site.node.0, asked.bytes);
    let held = burst::told(tx.db, node, tx.now)?.bytes;
    let capacity = held.saturating_add(site.free_bytes);
    if bytes.saturating_add(RESERVE_BYTES) > capacity {
        return Ok(Err(Refusal::Beyond {
            node,
            bytes,
            capacity,
        }));
    }
    if asked.bounded {
        let percent = u128::from(tx.shared.bursts.limits().reserve);
        let max = u64::try_from(u128::from(capacity) * percent / 100).unwrap_or(u64::MAX);
        let users = asked.promises.iter();
        let users = users.filter(|one| one.bounded && one.node == node);
        let promised = users.map(|one| one.promise.bytes).sum::<u64>();
        if bytes > max {
            return Ok(Err(Refusal::BeyondShare { node, bytes, max }));
        }
        if promised.saturating_add(bytes) > max {
            return Ok(Err(Refusal::Share {
                node,
                max,
                promised,
            }));
        }
    }
    if let Some(refusal) = too_long(tx, site, asked, capacity) {
        return Ok(Err(refusal));
    }
    let at = (node, site.free_bytes);
    let space = promises::space(tx.db, at, (asked.promises, tx.now))?;
    let promised = promises::of(asked.promises, node);
    let migrations = (tx.may_go(node)?, tx.coming_to_burst(node)?);
    Ok(match space.missing(bytes, &promised, migrations) {
        0 => Ok(()),
        missing => Err(Refusal::Missing {
            node,
            bytes,
            missing,
        }),
    })
}

fn keep(
    tx: &Tx<'_>,
    (directory, site): (&Vnode, &Site),
    (asked, until): (&Asked<'_>, i64),
) -> Result<v1::Promise, Fault> {
    let id = ids::reserve(tx.db, "promise", 1)?;
    let sql = "INSERT INTO promise(promise, ino, node, bytes, uid, bounded, since, until) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    tx.db.execute(
        sql,
        params![
            id.cast_signed(),
            directory.ino.cast_signed(),
            site.node.0,
            asked.bytes.cast_signed(),
            tx.caller.uid,
            asked.bounded,
            tx.now,
            until
        ],
    )?;
    tx.shared.bursts.set_promised();
    tx.shared.leaving.set_moving();
    let made = promises::all(tx.db, tx.now)?;
    let made = made.iter().find(|one| one.id == id);
    let made = made.ok_or(Fault::Malformed("a promise that has ended already"))?;
    told(tx, made)
}

/// Returns a promise in its public form.
fn told(tx: &Tx<'_>, one: &Promised) -> Result<v1::Promise, Fault> {
    Ok(v1::Promise {
        id: one.id,
        directory: tx.path_of(one.ino)?.unwrap_or_default(),
        node: one.node,
        bytes: one.promise.bytes,
        used: one.promise.used,
        open: one.promise.open,
        uid: one.uid,
        since: one.since,
        until: one.until,
    })
}

/// Returns the caller's promises; for an administrator, all promises.
pub(crate) fn list(tx: &Tx<'_>) -> Result<Vec<v1::Promise>, Fault> {
    let promises = promises::all(tx.db, tx.now)?;
    let own = promises
        .iter()
        .filter(|one| tx.caller.above() || one.uid == tx.caller.uid);
    own.map(|one| told(tx, one)).collect()
}

/// Ends a promise by its number, or all of the caller's promises for a directory. Files that were written in the reserved space stay.
pub(crate) fn release(tx: &Tx<'_>, request: &v1::ReleaseRequest) -> Done<Vec<v1::Promise>> {
    let directory = match request.id {
        0 => tx.resolve(&request.path, true)?.ino,
        _ => 0,
    };
    let promises = promises::all(tx.db, tx.now)?.into_iter();
    let meant = promises
        .filter(|one| one.id == request.id || one.ino == directory)
        .filter(|one| tx.caller.above() || one.uid == tx.caller.uid);
    let mut released = Vec::new();
    for one in meant {
        released.push(told(tx, &one)?);
        tx.db
            .prepare_cached("DELETE FROM promise WHERE promise = ?1")?
            .execute([one.id.cast_signed()])?;
    }
    if released.is_empty() {
        let called = match request.id {
            0 => String::from_utf8_lossy(&request.path).into_owned(),
            id => id.to_string(),
        };
        return Ok(Err(Refusal::NoPromise(called)));
    }
    Ok(Ok(released))
}

/// Ends expired promises, as long as the server runs.
pub(crate) async fn run(names: Arc<SqliteNames>) {
    loop {
        tokio::time::sleep(PERIOD).await;
        let now = clock::now_ns();
        let over = |db: &rusqlite::Connection| {
            let sql = "SELECT EXISTS (SELECT 1 FROM promise WHERE until <= ?1)";
            Ok(db.query_row(sql, [now], |row| row.get::<_, bool>(0))?)
        };
        let swept = match names.database().read(over) {
            Ok(true) => {
                let sweep = move |db: &rusqlite::Connection| promises::sweep(db, now);
                names.database().write(sweep).await
            }
            Ok(false) => Ok(()),
            Err(fault) => Err(fault),
        };
        if let Err(fault) = swept {
            fault.put_off("promises of room whose time is over stay for now");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_core::id::NodeId;

    #[test]
    fn long_promises_of_one_user_are_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&directory.path().join("server.db"), (0, 0)).unwrap();
        let site = Site {
            node: NodeId(3),
            host: "h".into(),
            free_bytes: 800 << 20,
            takes: true,
            memory: false,
            burst: true,
            outside: false,
        };
        let promised = |uid: u32, mib: u64, days: i64| {
            let (shared, sites) = (names.shared().clone(), vec![site.clone()]);
            let promised = names.database().write_blocking(move |db| {
                db.execute("UPDATE inode SET mode = 511 WHERE ino = 1", [])?;
                let caller = Caller {
                    uid,
                    gid: uid,
                    ..Caller::default()
                };
                let request = v1::PromiseRequest {
                    path: b"/".to_vec(),
                    bytes: mib << 20,
                    for_ns: days * LASTS_NS,
                    ..v1::PromiseRequest::default()
                };
                let tx = Tx::new(db, &shared, &caller, 0, 1);
                let promised = reserve(&tx, &request, (&[], &sites))?;
                Ok(promised.map(drop).map_err(|refusal| refusal.to_string()))
            });
            promised.unwrap()
        };
        // All users together may be promised 400 MiB, and one user 100 MiB for long.
        assert_eq!(promised(7, 60, 366), Ok(()));
        let refused = promised(7, 60, 8).unwrap_err();
        assert!(refused.contains("for more than 7 days"), "{refused}");
        assert_eq!(promised(7, 40, 8), Ok(()));
        assert_eq!(promised(8, 100, 366), Ok(()));
        // A short promise may take all the rest.
        assert_eq!(promised(7, 200, 7), Ok(()));
        assert!(promised(8, 1, 1).unwrap_err().contains("together"));
        assert_eq!(promised(0, 100, 366), Ok(()));
    }
}
