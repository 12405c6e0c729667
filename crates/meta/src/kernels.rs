//! The directory of users' kernels (`tidemill_lang::job::own`): created for all users, and read for one user at a time.
//!
//! In that directory, a user other than root can only create a directory whose name is the user's own number, so that no user can take
//! another user's name. An entry with a user's number counts only if it is a directory of that user and no other user can write into it:
//! root may have created other entries.

use super::clock;
use super::fault::Fault;
use super::sqlite::SqliteNames;
use super::transaction::Tx;
use super::tree;
use super::vnode::{InodeRecord, READ};
use crate::Connection;
use rusqlite::params;
use tidemill_model::id::Inode;
use tidemill_model::user_kernels;
use tidemill_wire::v1::Kind;

/// Mode of the directory, as for `/tmp`: every user may create entries, and only the owner may remove an entry.
const DIRECTORY_MODE: u32 = 0o1777;

/// Maximum number of a user's kernels that are listed, counting all versions of each kernel.
const KERNELS_MAX: u32 = 100_000;

impl SqliteNames {
    /// Creates the directory of all users' kernels, or restores its owner and mode. If another object has that name, the object stays, and
    /// users have no kernels.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn keep_kernels_directory(&self, owner: (u32, u32)) -> Result<(), Fault> {
        let (made, directory) = self.database().write(move |db| make(db, owner)).await?;
        if made {
            self.shared().add_files(1);
        }
        if directory.is_dir() {
            self.shared().set_kernels_directory(directory.ino);
        }
        Ok(())
    }
}

/// Creates the directory of users' kernels; returns whether the directory is new, and the inode with its name.
fn make(db: &Connection, (uid, gid): (u32, u32)) -> Result<(bool, InodeRecord), Fault> {
    let name = user_kernels::DIRECTORY.trim_start_matches('/').as_bytes();
    let now = clock::now_ns();
    if let Some(mut there) = InodeRecord::child(db, Inode::ROOT.0, name)? {
        if there.is_dir() && (there.mode, there.uid, there.gid) != (DIRECTORY_MODE, uid, gid) {
            (there.mode, there.uid, there.gid, there.ctime) = (DIRECTORY_MODE, uid, gid, now);
            there.update(db)?;
        }
        return Ok((false, there));
    }
    let ino = super::ids::reserve(db, "inode", 1)?;
    let directory = InodeRecord::directory(ino, DIRECTORY_MODE, (uid, gid), now);
    directory.insert(db)?;
    tree::insert_entry(db, Inode::ROOT.0, name, ino)?;
    InodeRecord::get(db, Inode::ROOT.0)?.change_entries(db, 1, now)?;
    Ok((true, directory))
}

impl Tx<'_> {
    /// Fails if the caller would create another user's entry in the directory of all users' kernels.
    pub(crate) fn check_own_place(&self, parent: u64, name: &[u8]) -> Result<(), Fault> {
        let uid = self.caller.uid;
        if parent != self.shared.kernels_directory()
            || uid == 0
            || name == uid.to_string().as_bytes()
        {
            return Ok(());
        }
        Err(Fault::NotOwnPlace(uid))
    }

    /// Returns the names of the files in a user's directory of kernels, if the caller may list the directory; no names if other users can
    /// write into the directory.
    ///
    /// # Errors
    /// If the directory does not exist, or the caller may not list it.
    pub fn own_kernels(&self, uid: u32) -> Result<Vec<String>, Fault> {
        let path = format!("{}/{uid}", user_kernels::DIRECTORY);
        let directory = self.resolve(path.as_bytes(), false)?;
        if !directory.is_dir() || directory.uid != uid || directory.mode & 0o022 != 0 {
            return Ok(Vec::new());
        }
        let names = self.names_in(&path, KERNELS_MAX)?;
        Ok(names.into_iter().map(|(name, _)| name).collect())
    }

    /// Returns names and kinds of entries in a directory that the caller may list: only names that are text, from at most `max` entries.
    pub fn names_in(&self, path: &str, max: u32) -> Result<Vec<(String, Kind)>, Fault> {
        let names = self.entries_in(path, max)?.into_iter();
        let text = |(name, kind)| Some((String::from_utf8(name).ok()?, kind));
        Ok(names.filter_map(text).collect())
    }

    /// Returns names and kinds of at most `max` entries in a directory that the caller may list.
    pub fn entries_in(&self, path: &str, max: u32) -> Result<Vec<(Vec<u8>, Kind)>, Fault> {
        let directory = self.resolve(path.as_bytes(), true)?;
        self.need(&directory, READ, path)?;
        let sql = "SELECT name, kind FROM dirent JOIN inode ON inode.ino = dirent.ino WHERE dirent.parent = ?1 LIMIT ?2";
        let mut names = self.db.sql.prepare_cached(sql)?;
        let names = names.query_map(params![directory.ino.cast_signed(), max], |row| {
            let kind = Kind::try_from(row.get::<_, i32>(1)?).unwrap_or(Kind::Unspecified);
            Ok((row.get(0)?, kind))
        })?;
        Ok(names.collect::<Result<_, _>>()?)
    }
}
