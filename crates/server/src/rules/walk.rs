//! Walks of existing files: files for which a new rule is to run, and files in a moved directory. A walk reads one page of a directory at a
//! time. The unfinished walks are rows of a table, so they continue after a restart of the server.

use super::store::one;
use crate::names::Fault;
use crate::names::shared::NamesShared;
use crate::names::transaction::Tx;
use crate::names::vnode::{Caller, InodeRecord};
use rusqlite::{Connection, params};

/// Maximum number of names that a walk examines in one transaction.
const PAGE: usize = 200;

impl Tx<'_> {
    /// Starts a walk of all files below a directory, for the rule `rule`, or for all rules if `rule` is 0.
    pub(super) fn walk_below(&self, rule: u64, ino: u64) -> Result<(), Fault> {
        let sql = "INSERT OR REPLACE INTO rule_walk VALUES (?1, ?2, x'')";
        self.db
            .prepare_cached(sql)?
            .execute(params![rule.cast_signed(), ino.cast_signed()])?;
        Ok(())
    }
}

/// Starts a walk of the existing files for which a rule could run.
pub(super) fn begin(
    db: &Connection,
    shared: &NamesShared,
    rule: u64,
    directory: &str,
    now: i64,
) -> Result<(), Fault> {
    let root = Caller::root();
    let tx = Tx::new(db, shared, &root, 0, now);
    match tx.resolve(directory.as_bytes(), true) {
        Ok(vnode) if vnode.is_dir() => tx.walk_below(rule, vnode.ino),
        Err(fault) if fault.is_database_failure() => Err(fault),
        _ => Ok(()),
    }
}

/// Examines the next files of the unfinished walks. Returns whether more files may follow.
pub(super) fn page(db: &Connection, shared: &NamesShared, now: i64) -> Result<bool, Fault> {
    let sql = "SELECT rule, ino, after FROM rule_walk LIMIT 1";
    let read = |row: &rusqlite::Row<'_>| {
        let id = |at: usize| Ok::<_, rusqlite::Error>(row.get::<_, i64>(at)?.cast_unsigned());
        Ok((id(0)?, id(1)?, row.get::<_, Vec<u8>>(2)?))
    };
    let Some((rule, ino, after)) = one(db, sql, [], read)? else {
        return Ok(false);
    };
    let root = Caller::root();
    let tx = Tx::new(db, shared, &root, 0, now);
    let last = match tx.path_of(ino)? {
        Some(path) => tx.page_of((rule, ino), path, after)?,
        None => None,
    };
    let key = (rule.cast_signed(), ino.cast_signed());
    match last {
        Some(last) => {
            let sql = "UPDATE rule_walk SET after = ?3 WHERE rule = ?1 AND ino = ?2";
            db.prepare_cached(sql)?
                .execute(params![key.0, key.1, last])?
        }
        None => db
            .prepare_cached("DELETE FROM rule_walk WHERE rule = ?1 AND ino = ?2")?
            .execute(params![key.0, key.1])?,
    };
    Ok(true)
}

impl Tx<'_> {
    /// Examines one page of a directory's names. Returns the last name if more pages follow.
    fn page_of(
        &self,
        (rule, directory): (u64, u64),
        mut path: Vec<u8>,
        after: Vec<u8>,
    ) -> Result<Option<Vec<u8>>, Fault> {
        let sql =
            "SELECT name, ino FROM dirent WHERE parent = ?1 AND name > ?2 ORDER BY name LIMIT ?3";
        let mut statement = self.db.prepare_cached(sql)?;
        let limit = i64::try_from(PAGE).unwrap_or(i64::MAX);
        let key = params![directory.cast_signed(), after, limit];
        let rows = statement.query_map(key, |row| {
            Ok((
                row.get::<_, Vec<u8>>(0)?,
                row.get::<_, i64>(1)?.cast_unsigned(),
            ))
        })?;
        let names = rows.collect::<Result<Vec<_>, _>>()?;
        if !path.ends_with(b"/") {
            path.push(b'/');
        }
        let only = (rule != 0).then_some(rule);
        // A moved directory was moved by its owner, or by root.
        let mover = match only {
            None => InodeRecord::find(self.db, directory)?.map(|directory| directory.uid),
            Some(_) => None,
        };
        let rules = self.shared.rules.all();
        for (name, ino) in &names {
            let Some(vnode) = InodeRecord::find(self.db, *ino)? else {
                continue;
            };
            let path = [path.as_slice(), name].concat();
            let by_other_user = mover.is_some_and(|uid| ![0, vnode.uid].contains(&uid));
            if !vnode.is_dir() {
                self.offer_moved(&vnode, &path, only, by_other_user)?;
                continue;
            }
            let Ok(path) = std::str::from_utf8(&path) else {
                continue;
            };
            let mut wanted = rules
                .iter()
                .filter(|kept| only.is_none_or(|id| id == kept.id));
            if wanted.any(|kept| kept.rule.reaches(path)) {
                self.walk_moved(rule, *ino, path, by_other_user)?;
            }
        }
        let full = names.len() == PAGE;
        Ok(names
            .into_iter()
            .next_back()
            .map(|(name, _)| name)
            .filter(|_| full))
    }
}
