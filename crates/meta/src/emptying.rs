//! Removes all content of a directory in one transaction, before a job writes its output to the directory.

use super::fault::Fault;
use super::transaction::Tx;
use super::vnode::{InodeRecord, select_vnodes};
use tidemill_wire::v1;

/// Maximum number of files and directories below a directory that is emptied, since no other client can change names during that time.
const EMPTIED_MAX: usize = 100_000;

/// An entry below a directory that is emptied.
#[derive(Debug)]
pub(crate) struct Descendant {
    parent: u64,
    name: Vec<u8>,
    directory: bool,
}

impl Tx<'_> {
    /// Returns all entries below a directory if the caller may remove all of them. The content of each directory precedes the directory.
    pub(crate) fn to_be_emptied(&self, top: &InodeRecord) -> Result<Vec<Descendant>, Fault> {
        let mut all = Vec::new();
        let mut directories = vec![top.clone()];
        while let Some(above) = directories.pop() {
            self.writable_dir(above.ino, self.called(above.ino).as_bytes())?;
            let limit = EMPTIED_MAX + 1 - all.len();
            for (name, vnode) in self.entries(above.ino, limit)? {
                self.need_unsticky(&above, &vnode, &name)?;
                let directory = vnode.is_dir();
                if directory {
                    directories.push(vnode);
                }
                let parent = above.ino;
                all.push(Descendant {
                    parent,
                    name,
                    directory,
                });
            }
            if all.len() > EMPTIED_MAX {
                return Err(Fault::TooManyBelow(self.called(top.ino), EMPTIED_MAX));
            }
        }
        all.reverse();
        Ok(all)
    }

    /// Removes all entries below a directory.
    pub fn empty(&mut self, top: &InodeRecord) -> Result<(), Fault> {
        for Descendant {
            parent,
            name,
            directory,
        } in self.to_be_emptied(top)?
        {
            self.unlink_now(parent, name, directory)?;
        }
        Ok(())
    }

    /// Removes a name at the server's present time.
    pub(super) fn unlink_now(
        &mut self,
        parent: u64,
        name: Vec<u8>,
        directory: bool,
    ) -> Result<(), Fault> {
        let time = self.now;
        self.unlink(&v1::Unlink {
            parent,
            name,
            directory,
            time,
        })?;
        Ok(())
    }

    /// Returns the entries of a directory, at most `limit`.
    pub fn entries(
        &self,
        directory: u64,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, InodeRecord)>, Fault> {
        let mut statement = self.db.sql.prepare_cached(select_vnodes!(
            ", name FROM dirent JOIN inode ON inode.ino = dirent.ino WHERE dirent.parent = ?1 LIMIT ?2"
        ))?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = statement.query_map([directory.cast_signed(), limit], |row| {
            Ok((row.get(17)?, InodeRecord::from_row(row)?))
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}
