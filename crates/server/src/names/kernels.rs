//! The folder of users' kernels (`tidemill_core::job::own`): made for all, and looked into for one user.
//!
//! Nobody but root makes anything in it but the folder of their own number, so that nobody takes another's place. What lies
//! there under a user's number counts only if it is a folder of that user into which nobody else can write: root, and releases
//! before this one, may have left others.

use super::fault::Fault;
use super::node::{Node, READ};
use super::notes;
use super::sqlite::SqliteNames;
use super::transaction::Tx;
use crate::clock;
use rusqlite::{Connection, params};
use tidemill_core::id::Inode;
use tidemill_core::job::own;
use tidemill_wire::v1::Kind;

/// As `/tmp`: everybody may make something, and only its owner may take it away.
const FOLDER_MODE: u32 = 0o1777;

/// A user's kernels that are looked through, all versions counted.
const KERNELS_MAX: u32 = 100_000;

impl SqliteNames {
    /// Makes the folder of all users' kernels, or gives it back its owner and mode. What is there and is no folder
    /// stays: then there are no kernels of users.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn keep_kernels_folder(&self, owner: (u32, u32)) -> Result<(), Fault> {
        let (made, folder) = self.database().write(move |db| make(db, owner)).await?;
        if made {
            self.shared().add_files(1);
        }
        if folder.is_dir() {
            self.shared().set_kernels_folder(folder.ino);
        }
        Ok(())
    }
}

/// Whether it was not there, and what there is.
fn make(db: &Connection, (uid, gid): (u32, u32)) -> Result<(bool, Node), Fault> {
    let name = own::FOLDER.trim_start_matches('/').as_bytes();
    let now = clock::now_ns();
    if let Some(mut there) = Node::child(db, Inode::ROOT.0, name)? {
        if there.is_dir() && (there.mode, there.uid, there.gid) != (FOLDER_MODE, uid, gid) {
            (there.mode, there.uid, there.gid, there.ctime) = (FOLDER_MODE, uid, gid, now);
            there.update(db)?;
            notes::changed(db, &there)?;
        }
        return Ok((false, there));
    }
    let ino = super::ids::reserve(db, "inode", 1)?;
    let folder = Node::folder(ino, FOLDER_MODE, (uid, gid), now);
    folder.insert(db)?;
    notes::changed(db, &folder)?;
    let root = Inode::ROOT.0.cast_signed();
    let entry = "INSERT INTO dirent VALUES (?1, ?2, ?3)";
    db.execute(entry, params![root, name, ino.cast_signed()])?;
    let above = "UPDATE inode SET nlink = nlink + 1, mtime = ?2, ctime = ?2 WHERE ino = ?1";
    db.execute(above, params![root, now])?;
    Ok((true, folder))
}

impl Tx<'_> {
    /// Refuses to make in the folder of all users' kernels what is not the caller's.
    pub(crate) fn check_own_place(&self, parent: u64, name: &[u8]) -> Result<(), Fault> {
        let uid = self.caller.uid;
        if parent != self.shared.kernels_folder() || uid == 0 || name == uid.to_string().as_bytes()
        {
            return Ok(());
        }
        Err(Fault::NotOwnPlace(uid))
    }

    /// The names of the files in a user's folder of kernels, as the caller may list them; none if it is not to be
    /// trusted.
    ///
    /// # Errors
    /// If there is no such folder, or the caller may not list it.
    pub(crate) fn own_kernels(&self, uid: u32) -> Result<Vec<String>, Fault> {
        let path = format!("{}/{uid}", own::FOLDER);
        let folder = self.resolve(path.as_bytes(), false)?;
        if !folder.is_dir() || folder.uid != uid || folder.mode & 0o022 != 0 {
            return Ok(Vec::new());
        }
        let names = self.names_in(&path, KERNELS_MAX)?;
        Ok(names.into_iter().map(|(name, _)| name).collect())
    }

    /// Names in a folder that the caller may list, and what each is; those that are text, of at most `max`.
    pub(crate) fn names_in(&self, path: &str, max: u32) -> Result<Vec<(String, Kind)>, Fault> {
        let names = self.entries_in(path, max)?.into_iter();
        let text = |(name, kind)| Some((String::from_utf8(name).ok()?, kind));
        Ok(names.filter_map(text).collect())
    }

    /// Names in a folder that the caller may list, and what each is; at most `max`.
    pub(crate) fn entries_in(&self, path: &str, max: u32) -> Result<Vec<(Vec<u8>, Kind)>, Fault> {
        let folder = self.resolve(path.as_bytes(), true)?;
        self.need(&folder, READ, path)?;
        let sql = "SELECT name, kind FROM dirent JOIN inode ON inode.ino = dirent.ino WHERE dirent.parent = ?1 LIMIT ?2";
        let mut names = self.db.prepare_cached(sql)?;
        let names = names.query_map(params![folder.ino.cast_signed(), max], |row| {
            let kind = Kind::try_from(row.get::<_, i32>(1)?).unwrap_or(Kind::Unspecified);
            Ok((row.get(0)?, kind))
        })?;
        Ok(names.collect::<Result<_, _>>()?)
    }
}
