//! Walks of existing files: files for which a new rule is to run, and files in a moved directory. A walk reads one page of a directory at a
//! time. The unfinished walks are rows of a table, so they continue after a restart of the server.

use crate::Connection;
use crate::Fault;
use crate::query::{execute, exists, find, rows, unsigned};
use crate::shared::NamesShared;
use crate::transaction::Tx;
use crate::vnode::{Caller, InodeRecord};
use rusqlite::params;

/// Maximum number of names that a walk examines in one transaction.
const PAGE: u32 = 200;

/// Starts a walk of all files below a directory, for the rule `rule`, or for all rules if `rule` is 0.
pub(super) fn add(db: &Connection, rule: u64, ino: u64) -> Result<(), Fault> {
    let sql = "INSERT OR REPLACE INTO rule_walk VALUES (?1, ?2, x'')";
    execute(db, sql, [rule.cast_signed(), ino.cast_signed()])
}

/// Starts a walk of the existing files for which a rule could run.
pub fn begin(
    db: &Connection,
    shared: &NamesShared,
    rule: u64,
    directory: &str,
    now: i64,
) -> Result<(), Fault> {
    let root = Caller::root();
    let tx = Tx::new(db, shared, &root, 0, now);
    match tx.resolve(directory.as_bytes(), true) {
        Ok(vnode) if vnode.is_dir() => add(db, rule, vnode.ino),
        Err(fault) if fault.is_database_failure() => Err(fault),
        _ => Ok(()),
    }
}

/// Whether existing or moved files are still being examined for a rule.
pub fn any(db: &Connection, rule: u64) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM rule_walk WHERE rule IN (0, ?1)";
    exists(db, sql, [rule.cast_signed()])
}

/// Deletes the unfinished walks of a removed rule.
pub(super) fn forget(db: &Connection, rule: u64) -> Result<(), Fault> {
    let sql = "DELETE FROM rule_walk WHERE rule = ?1";
    execute(db, sql, [rule.cast_signed()])
}

/// Examines the next files of the unfinished walks. Returns whether more files may follow.
pub fn page(db: &Connection, shared: &NamesShared, now: i64) -> Result<bool, Fault> {
    let sql = "SELECT rule, ino, after FROM rule_walk LIMIT 1";
    let next = find(db, sql, [], |row| {
        Ok((
            unsigned(row, 0)?,
            unsigned(row, 1)?,
            row.get::<_, Vec<u8>>(2)?,
        ))
    })?;
    let Some((rule, ino, after)) = next else {
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
            execute(db, sql, params![key.0, key.1, last])?
        }
        None => execute(
            db,
            "DELETE FROM rule_walk WHERE rule = ?1 AND ino = ?2",
            params![key.0, key.1],
        )?,
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
        let key = params![directory.cast_signed(), after, PAGE];
        let names: Vec<_> = rows(self.db, sql, key, |row| {
            Ok((row.get::<_, Vec<u8>>(0)?, unsigned(row, 1)?))
        })?;
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
            // Jobs can only express paths in UTF-8.
            let Ok(path) = std::str::from_utf8(&path) else {
                continue;
            };
            if !vnode.is_dir() {
                self.offer(&vnode, path, only, by_other_user)?;
                if only.is_none() {
                    self.offer_marker(&vnode, path, i64::MAX)?;
                }
                continue;
            }
            let mut wanted = rules
                .iter()
                .filter(|kept| only.is_none_or(|id| id == kept.id));
            if wanted.any(|kept| kept.rule.reaches(path)) {
                self.walk_moved(rule, *ino, path, by_other_user)?;
            }
        }
        let full = names.len() == PAGE as usize;
        Ok(names
            .into_iter()
            .next_back()
            .map(|(name, _)| name)
            .filter(|_| full))
    }
}
