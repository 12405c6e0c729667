//! Versions being written: their writers, and the end of a write if the writer is no longer alive.

use super::fault::Fault;
use super::parts;
use super::paths::path_of;
use super::shared::NamesShared;
use super::transaction::{Change, Tx};
use super::vnode::{Caller, InodeRecord};
use super::{OpenVersion, Unfinished, UnsealedCount};
use crate::Connection;
use crate::query::{rows, unsigned};
use rusqlite::params;
use tidemill_wire::v1;

/// Maximum silence of a writing client without a session, in nanoseconds. A longer silence ends the client's write. The value is three
/// times the interval at which clients report (`tidemill_client::transfer`).
pub const SILENCE_NS_MAX: i64 = 60 * 1_000_000_000;

/// Maximum number of versions of silent clients that are aborted in one transaction.
const SILENT_MAX: usize = 1000;

/// Returns all versions that are not sealed, counted by writer and node.
pub(crate) fn unsealed(db: &Connection) -> Result<Vec<UnsealedCount>, Fault> {
    let sql = "SELECT session, coalesce(part.node, writing.node) AS place, count(*), min(started) \
               FROM writing LEFT JOIN part ON part.object = writing.object \
               WHERE coalesce(part.size, -1) = -1 GROUP BY session, place";
    rows(db, sql, [], |row| {
        Ok(UnsealedCount {
            session: unsigned(row, 0)?,
            node: row.get(1)?,
            versions: unsigned(row, 2)?,
            oldest: row.get(3)?,
        })
    })
}

/// Returns the versions that a mount was writing on a node, in the order of their objects, from the first object after `after`.
pub(crate) fn unfinished(
    db: &Connection,
    (session, node): (u64, u32),
    after: u64,
    limit: usize,
) -> Result<Vec<Unfinished>, Fault> {
    let sql = "SELECT coalesce(part, writing.object) AS sealed, writing.ino, coalesce(inode.uid, 0), coalesce(inode.gid, 0), \
               coalesce(inode.mode, 0), writing.object FROM writing LEFT JOIN inode ON inode.ino = writing.ino \
               LEFT JOIN part ON part.object = writing.object \
               WHERE session = ?1 AND coalesce(part.node, writing.node) = ?2 AND sealed > ?3 \
               AND coalesce(part.size, -1) = -1 ORDER BY sealed LIMIT ?4";
    let mut statement = db.sql.prepare_cached(sql)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let key = params![session.cast_signed(), node, after.cast_signed(), limit];
    let rows = statement.query_map(key, |row| {
        Ok(Unfinished {
            object: unsigned(row, 0)?,
            ino: unsigned(row, 1)?,
            owner: (row.get(2)?, row.get(3)?),
            mode: row.get(4)?,
            path: Vec::new(),
            version: unsigned(row, 5)?,
            part: None,
        })
    })?;
    let mut found = rows.collect::<Result<Vec<_>, _>>()?;
    for version in &mut found {
        version.path = path_of(db, version.ino)?.unwrap_or_default();
        version.part = parts::part_of(db, version.object)?;
    }
    Ok(found)
}

/// Returns the objects of the version of a file that is being written, and their sessions.
pub(crate) fn open_versions(db: &Connection, ino: u64) -> Result<Vec<OpenVersion>, Fault> {
    let sql = "SELECT writing.object, session, 0 FROM inode CROSS JOIN writing ON writing.object = inode.writing \
               WHERE inode.ino = ?1 UNION ALL SELECT writing.object, session, 1 FROM inode \
               CROSS JOIN part ON part.object = inode.writing \
               CROSS JOIN writing ON writing.object = part.part WHERE inode.ino = ?1";
    rows(db, sql, [ino.cast_signed()], |row| {
        Ok(OpenVersion {
            object: unsigned(row, 0)?,
            session: unsigned(row, 1)?,
            multi_writer: row.get(2)?,
        })
    })
}

/// Aborts versions of clients without a session that have been silent for too long. Such uploads are incomplete, so the files stay
/// unchanged.
pub(crate) fn abandon_silent(
    db: &Connection,
    shared: &NamesShared,
    now: i64,
) -> Result<Vec<Change>, Fault> {
    let mut statement = db.sql.prepare_cached(
        "SELECT ino, object, started, node FROM writing WHERE session = 0 AND started < ?1 LIMIT ?2",
    )?;
    let limit = i64::try_from(SILENT_MAX).unwrap_or(i64::MAX);
    let silent = statement
        .query_map(params![now - SILENCE_NS_MAX, limit], |row| {
            let ino = unsigned(row, 0)?;
            let object = unsigned(row, 1)?;
            Ok((ino, object, row.get(2)?, row.get(3)?))
        })?
        .collect::<Result<Vec<(u64, u64, i64, i64)>, _>>()?;
    let root = Caller::root();
    let mut tx = Tx::new(db, shared, &root, 0, now);
    for (ino, object, heard, node) in silent {
        tracing::warn!(
            ino,
            object,
            silent_s = (now - heard) / 1_000_000_000,
            "a version is aborted: its client has disappeared"
        );
        let writes = InodeRecord::find(db, ino)?.is_some_and(|vnode| vnode.writing == object);
        if writes {
            tx.abandon(&v1::Abandon { ino, object })?;
        } else {
            tx.drop_object(object, node)?;
            tx.end_writing(object)?;
        }
    }
    Ok(tx.changes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Names as _, NamesRequest, SqliteNames};
    use tidemill_model::id::NodeId;
    use tidemill_wire::v1::name_op::Op;
    use tidemill_wire::v1::name_result::Result as Answer;

    fn apply(names: &SqliteNames, session: u64, op: Op) -> Option<Answer> {
        let request = NamesRequest {
            caller: Caller::root(),
            session,
            ops: vec![v1::NameOp { op: Some(op) }],
            ..NamesRequest::default()
        };
        names.apply_blocking(request).unwrap().remove(0).result
    }

    fn create(names: &SqliteNames, session: u64, id: u64) {
        let create = v1::Create {
            parent: 1,
            name: id.to_string().into_bytes(),
            kind: v1::Kind::File.into(),
            mode: 0o400,
            ino: id,
            object: id,
            ..v1::Create::default()
        };
        let answer = apply(names, session, Op::Create(create));
        assert!(matches!(answer, Some(Answer::Opened(_))), "{answer:?}");
    }

    fn writing(names: &SqliteNames) -> Vec<u64> {
        let mut found = Vec::new();
        for session in [0, 5] {
            let some = names.unfinished((session, 3), 0, 100).unwrap();
            found.extend(some.iter().map(|version| version.object));
        }
        found
    }

    #[test]
    fn versions_of_silent_client_are_aborted_and_of_active_client_kept() {
        let directory = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&directory.path().join("server.db"), (0, 0)).unwrap();
        names.add_node(NodeId(3));
        let all = names
            .database()
            .write_blocking(|db| crate::ids::reserve_for(db, &Caller::root(), 3, 4));
        let (first, _) = all.unwrap();
        let (silent, slow, mounts) = (first, first + 1, first + 2);
        create(&names, 0, silent);
        create(&names, 0, slow);
        create(&names, 5, mounts);
        let now = crate::clock::now_ns();
        let abandon = || {
            let shared = names.shared().clone();
            let done = names
                .database()
                .write_blocking(move |db| abandon_silent(db, &shared, now).map(|c| c.len()));
            done.unwrap()
        };
        assert_eq!(abandon(), 0);
        let long_ago = move |db: &Connection| {
            let started = now - SILENCE_NS_MAX - 1;
            Ok(db
                .sql
                .execute("UPDATE writing SET started = ?1", [started])?)
        };
        names.database().write_blocking(long_ago).unwrap();
        // A writer can report that it is alive even if its file's mode would not let it begin a version.
        let again = v1::NewVersion {
            ino: slow,
            object: slow,
            ..v1::NewVersion::default()
        };
        let answer = apply(&names, 0, Op::NewVersion(again));
        assert!(matches!(answer, Some(Answer::Opened(_))), "{answer:?}");
        assert!(abandon() > 0);
        assert_eq!(writing(&names), [slow, mounts]);
        let attr = v1::GetAttr {
            ino: silent,
            content: false,
        };
        match apply(&names, 0, Op::GetAttr(attr)) {
            Some(Answer::Attr(attr)) => assert!(!attr.writing && attr.size == 0, "{attr:?}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(abandon(), 0);
    }
}
