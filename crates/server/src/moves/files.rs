//! Files that their owners want on an element.

use super::{Member, Refusal};
use crate::names::Fault;
use crate::names::copies::{self, CURRENT, DRAIN, MOVE, MOVES};
use crate::names::node::Node;
use crate::names::transaction::Tx;
use rusqlite::params;
use tidemill_core::copies::Site;
use tidemill_core::layout::RESERVE_BYTES;
use tidemill_wire::v1::{self, Kind};

/// Files and folders of one request, at most: names can't be changed meanwhile.
const BELOW_MAX: usize = 100_000;
/// Rights to list a folder and to go through it.
const READ_AND_SEARCH: u32 = 0o5;

/// Has a file, or all below a folder, moved to an element.
pub(crate) fn to(
    tx: &Tx<'_>,
    request: &v1::MoveRequest,
    (members, sites): (&[Member], &[Site]),
) -> Result<Result<v1::MoveReply, Refusal>, Fault> {
    let target = request.element;
    let site = match takes(tx, target, members, sites) {
        Ok(site) => site,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let Some(files) = below(tx, &request.path)? else {
        let path = String::from_utf8_lossy(&request.path).into_owned();
        return Ok(Err(Refusal::TooMany(path, BELOW_MAX)));
    };
    let mut reply = v1::MoveReply::default();
    let mut moving = Vec::new();
    for file in files {
        if file.has_parts() {
            return Ok(Err(Refusal::Striped(tx.called(file.ino))));
        }
        let Some(first) = file.element().filter(|_| file.object != 0) else {
            reply.unsealed += 1;
            continue;
        };
        if first == target || has(tx, file.object, target)? {
            reply.there += 1;
            continue;
        }
        reply.files += 1;
        reply.bytes += file.size;
        moving.push((file.object, first));
    }
    let needed = reply.bytes.saturating_add(RESERVE_BYTES);
    if reply.files > 0 && site.free_bytes < needed {
        return Ok(Err(Refusal::Full {
            element: target,
            free: site.free_bytes,
            needed,
        }));
    }
    tx.shared.leaving.set_moving();
    for (object, first) in moving {
        put(tx, object, (first, target))?;
    }
    Ok(Ok(reply))
}

/// The element, if it is one that files can be moved to.
fn takes<'a>(
    tx: &Tx<'_>,
    element: u32,
    members: &[Member],
    sites: &'a [Site],
) -> Result<&'a Site, Refusal> {
    let member = members.iter().find(|one| one.element == element);
    let member = member.ok_or(Refusal::Unknown(element))?;
    if !member.store {
        return Err(Refusal::NoStore(element));
    }
    if tx.shared.leaving.is_closed(element) {
        return Err(Refusal::Emptied(element));
    }
    let site = sites.iter().find(|site| site.element.0 == element);
    site.ok_or(Refusal::Down(element))
}

/// Whether an element has a copy beside the first.
fn has(tx: &Tx<'_>, object: u64, element: u32) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM copy WHERE object = ?1 AND element = ?2 AND state = ?3";
    let mut statement = tx.db.prepare_cached(sql)?;
    Ok(statement.exists(params![object.cast_signed(), element, CURRENT])?)
}

/// The first copy of an object is to go elsewhere. What is emptied remains so, and other plans for the object are given up.
fn put(tx: &Tx<'_>, object: u64, (first, target): (u32, u32)) -> Result<(), Fault> {
    let id = object.cast_signed();
    let sql = "DELETE FROM move WHERE object = ?1 AND why != ?2";
    tx.db.prepare_cached(sql)?.execute(params![id, DRAIN])?;
    let sql = "INSERT INTO move SELECT ?2, object, ?3, size, ?4 FROM held WHERE object = ?1 \
               ON CONFLICT DO UPDATE SET target = ?3";
    tx.db
        .prepare_cached(sql)?
        .execute(params![id, first, target, MOVE])?;
    let sql = "INSERT INTO short VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET at = min(at, ?3)";
    tx.db
        .prepare_cached(sql)?
        .execute(params![id, MOVES, tx.now])?;
    Ok(())
}

/// What of these files has not been moved stays where it is.
pub(crate) fn cancel(tx: &Tx<'_>, path: &[u8]) -> Result<v1::MoveReply, Fault> {
    let files = below(tx, path)?.unwrap_or_default();
    let mut reply = v1::MoveReply::default();
    for file in files {
        let sql = "DELETE FROM move WHERE object = ?1 AND why = ?2";
        let row = params![file.object.cast_signed(), MOVE];
        if tx.db.prepare_cached(sql)?.execute(row)? > 0 {
            copies::look_again(tx.db, file.object, tx.now)?;
            reply.files += 1;
            reply.bytes += file.size;
        }
    }
    Ok(reply)
}

/// A file, or those below a folder, if the caller owns them all; `None` if they are too many.
fn below(tx: &Tx<'_>, path: &[u8]) -> Result<Option<Vec<Node>>, Fault> {
    let mut files = Vec::new();
    let mut left = vec![tx.resolve(path, true)?];
    let mut seen = 0;
    while let Some(node) = left.pop() {
        match node.kind {
            Kind::File => {
                tx.need_owner(&node)?;
                files.push(node);
            }
            Kind::Directory => {
                let called = tx.called(node.ino);
                tx.need(&node, READ_AND_SEARCH, &called)?;
                let entries = tx.entries(node.ino, BELOW_MAX + 1 - seen)?;
                seen += entries.len();
                if seen > BELOW_MAX {
                    return Ok(None);
                }
                left.extend(entries.into_iter().map(|(_, node)| node));
            }
            _ => {}
        }
    }
    Ok(Some(files))
}
