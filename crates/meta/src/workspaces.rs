//! Workspaces: directories below `/workspaces` with a quota and a lifetime. The files in a workspace are ordinary files.

use super::attribute::{self, DIRECTORY_TIER};
use super::fault::Fault;
use super::feed::AwaitedPath;
use super::ids;
use super::quota::used;
use super::transaction::{Tx, shown};
use super::vnode::{InodeRecord, SEARCH, SETGID};
use crate::Connection;
use crate::query::{exists, find, unsigned};
use rusqlite::params;
use std::time::Duration;
use tidemill_model::id::Inode;
use tidemill_wire::v1::{self, Kind};

/// Name of the directory that contains the workspaces.
const DIRECTORY: &str = "workspaces";
/// Maximum number of workspaces.
const WORKSPACES_MAX: u32 = 1024;
/// Maximum number of workspaces of one user; root has no such limit.
const WORKSPACES_EACH_MAX: u32 = 64;
/// Maximum number of lease holders of one workspace.
const MEMBERS_MAX: u32 = 256;
/// Maximum length of the name of a workspace, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// Time after which a silent lease holder loses its lease, unless the lease is permanent.
pub const SILENCE: Duration = Duration::from_secs(30);
/// Maximum number of files and directories removed in one transaction, during which no other client can change names.
const REMOVED_MAX: usize = 1000;

/// Reason why the server refuses an operation on a workspace.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceRefusal {
    /// The name contains other characters than the allowed ones, begins with a dot, is empty or is too long.
    #[error(
        "{0:?} can't be the name of a workspace: give up to 64 letters, digits, dots, dashes and underscores, not a dot first"
    )]
    Name(String),
    /// `/workspaces` already contains a workspace or another inode with this name.
    #[error(
        "workspace {0} exists already, or /workspaces/{0} is another file: `tidemill workspace list`"
    )]
    Exists(String),
    /// No workspace has this name, or the workspace is being removed.
    #[error("workspace {0} does not exist: `tidemill workspace list`")]
    Unknown(String),
    /// The cluster or the user already has the maximum number of workspaces.
    #[error(
        "there are {WORKSPACES_MAX} workspaces, or {WORKSPACES_EACH_MAX} of yours, which is the maximum: remove some"
    )]
    TooMany,
    /// The workspace with this name already has the maximum number of lease holders.
    #[error("workspace {0} has {MEMBERS_MAX} lease holders, which is the maximum")]
    TooManyMembers(String),
    /// The workspace with this name has no lease holder with this number that belongs to the caller.
    #[error(
        "workspace {0} has no lease holder {1}: it has left, or was silent for 30 s, or is not yours"
    )]
    NoMember(String, u64),
    /// The quotas of the user's workspaces would exceed the user's limit.
    #[error(
        "quotas of your workspaces may add up to {max} bytes, and add up to {used}: give this one a quota of at most the rest, or remove some"
    )]
    Quota {
        /// Sum of the quotas of the user's workspaces, in bytes.
        used: u64,
        /// Maximum of this sum, in bytes.
        max: u64,
    },
    /// `/workspaces` is not a directory, or does not belong to an administrator.
    #[error(
        "/workspaces is not a directory of an administrator: ask an administrator to rename it"
    )]
    NoDirectory,
}

/// Result of an operation on a workspace: the value, the reason of a refusal, or a failure.
pub type WorkspaceResult<T> = Result<Result<T, WorkspaceRefusal>, Fault>;

/// State of a path that a caller waits for.
#[derive(Clone, Debug, PartialEq)]
pub enum PathObject {
    /// The path is a file with a sealed version.
    File(v1::Attr),
    /// The path leads to no file with a sealed version.
    Awaited(AwaitedPath),
    /// The path is something that is never sealed, such as a directory.
    Other,
}

impl Tx<'_> {
    /// Creates a workspace that belongs to the caller.
    pub fn create_workspace(
        &mut self,
        op: &v1::CreateWorkspaceRequest,
    ) -> WorkspaceResult<v1::Workspace> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let good = op.name.chars().all(allowed) && !op.name.starts_with('.');
        if !good || op.name.is_empty() || op.name.len() > NAME_BYTES_MAX {
            return Ok(Err(WorkspaceRefusal::Name(op.name.clone())));
        }
        if self.are_too_many_workspaces()? {
            return Ok(Err(WorkspaceRefusal::TooMany));
        }
        if let Some(refusal) = self.is_beyond_quota(op.quota_bytes)? {
            return Ok(Err(refusal));
        }
        let Some(above) = self.workspaces_directory()? else {
            return Ok(Err(WorkspaceRefusal::NoDirectory));
        };
        if InodeRecord::child(self.db, above.ino, op.name.as_bytes())?.is_some() {
            return Ok(Err(WorkspaceRefusal::Exists(op.name.clone())));
        }
        let gid = op.gid.unwrap_or(self.caller.gid);
        if !self.caller.above() && !self.caller.in_group(gid) {
            return Err(Fault::NotOwner(format!("a workspace of group {gid}")));
        }
        // New files in the workspace belong to its group.
        let mode = op.mode & 0o777 | SETGID;
        let owner = (self.caller.uid, gid);
        let ino = self.add_directory(above, &op.name, mode, owner)?;
        attribute::set(self.db, ino.cast_unsigned(), DIRECTORY_TIER, b"memory")?;
        self.shared.set_directory_tiers();
        let expires = match op.ttl_ns.max(0) {
            0 => 0,
            ttl => self.now.saturating_add(ttl),
        };
        let quota = i64::try_from(op.quota_bytes).unwrap_or(i64::MAX);
        self.db.sql.execute(
            "INSERT INTO workspace(ino, quota, created, expires) VALUES (?1, ?2, ?3, ?4)",
            params![ino, quota, self.now, expires],
        )?;
        self.shared.quotas.set_any();
        self.workspace(&op.name)
    }

    fn are_too_many_workspaces(&self) -> Result<bool, Fault> {
        let sql = "SELECT count(*), coalesce(sum(uid = ?1), 0) FROM workspace CROSS JOIN inode ON inode.ino = workspace.ino";
        let counts = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let (all, own): (u32, u32) = self.db.sql.query_row(sql, [self.caller.uid], counts)?;
        Ok(all >= WORKSPACES_MAX || (own >= WORKSPACES_EACH_MAX && !self.caller.above()))
    }

    /// Returns a refusal if a workspace with this quota exceeds the caller's limit.
    fn is_beyond_quota(&self, quota_bytes: u64) -> Result<Option<WorkspaceRefusal>, Fault> {
        let max = self.shared.limits.get().workspaces_each_bytes;
        let Some(max) = max.filter(|_| !self.caller.above()) else {
            return Ok(None);
        };
        let sql = "SELECT coalesce(sum(quota), 0) FROM workspace CROSS JOIN inode ON inode.ino = workspace.ino WHERE uid = ?1";
        let used: i64 = self
            .db
            .sql
            .query_row(sql, [self.caller.uid], |row| row.get(0))?;
        let used = used.cast_unsigned();
        let rest = max.saturating_sub(used);
        let fits = quota_bytes != 0 && quota_bytes <= rest;
        Ok((!fits).then_some(WorkspaceRefusal::Quota { used, max }))
    }

    /// Returns the directory that contains all workspaces and creates it if necessary; `None` if another object has its name.
    fn workspaces_directory(&mut self) -> Result<Option<InodeRecord>, Fault> {
        let root = InodeRecord::get(self.db, Inode::ROOT.0)?;
        let owner = (root.uid, root.gid);
        if let Some(there) = InodeRecord::child(self.db, root.ino, DIRECTORY.as_bytes())? {
            let of_administrator = there.uid == 0 || there.uid == owner.0;
            return Ok(Some(there).filter(|there| there.is_dir() && of_administrator));
        }
        let ino = self.add_directory(root, DIRECTORY, 0o755, owner)?;
        Ok(Some(InodeRecord::get(self.db, ino.cast_unsigned())?))
    }

    fn add_directory(
        &mut self,
        above: InodeRecord,
        name: &str,
        mode: u32,
        owner: (u32, u32),
    ) -> Result<i64, Fault> {
        let ino = ids::reserve(self.db, "inode", 1)?;
        let mut directory = InodeRecord::directory(ino, mode, owner, self.now);
        directory.parent = above.ino;
        self.add_entry(above, name.as_bytes(), &directory)?;
        directory.insert(self.db)?;
        self.shared.add_files(1);
        Ok(ino.cast_signed())
    }

    /// Returns the directory of a workspace, unless the workspace is being removed.
    fn found_workspace(&self, name: &str) -> Result<Option<InodeRecord>, Fault> {
        let Some(above) = InodeRecord::child(self.db, Inode::ROOT.0, DIRECTORY.as_bytes())? else {
            return Ok(None);
        };
        let Some(vnode) = InodeRecord::child(self.db, above.ino, name.as_bytes())? else {
            return Ok(None);
        };
        let sql = "SELECT 1 FROM workspace WHERE ino = ?1 AND ends = 0";
        let is_workspace = exists(self.db, sql, [vnode.ino.cast_signed()])?;
        Ok(Some(vnode).filter(|_| is_workspace))
    }

    /// Returns the description of a workspace.
    fn workspace(&self, name: &str) -> WorkspaceResult<v1::Workspace> {
        let Some(vnode) = self.found_workspace(name)? else {
            return Ok(Err(WorkspaceRefusal::Unknown(name.to_owned())));
        };
        let (used_bytes, files) = used(self.db, vnode.ino)?;
        let sql = "SELECT quota, created, expires FROM workspace WHERE ino = ?1";
        let mut workspace = self
            .db
            .sql
            .query_row(sql, [vnode.ino.cast_signed()], |row| {
                Ok(v1::Workspace {
                    quota_bytes: unsigned(row, 0)?,
                    created: row.get(1)?,
                    expires: row.get(2)?,
                    name: name.to_owned(),
                    uid: vnode.uid,
                    gid: vnode.gid,
                    mode: vnode.mode,
                    used_bytes,
                    files,
                    members: Vec::new(),
                })
            })?;
        let sql = "SELECT member, uid, joined, until FROM workspace_member WHERE workspace = ?1 ORDER BY member";
        let mut members = self.db.sql.prepare_cached(sql)?;
        let members = members.query_map([vnode.ino.cast_signed()], |row| {
            Ok(v1::WorkspaceMember {
                member: unsigned(row, 0)?,
                uid: row.get(1)?,
                joined: row.get(2)?,
                until: row.get(3)?,
            })
        })?;
        workspace.members = members.collect::<Result<_, _>>()?;
        Ok(Ok(workspace))
    }

    /// Returns all workspaces that the caller may enter, in the order of their names.
    pub fn workspaces_shown(&self) -> Result<Vec<v1::Workspace>, Fault> {
        let sql = "SELECT name FROM workspace CROSS JOIN dirent ON dirent.ino = workspace.ino ORDER BY name";
        let mut names = self.db.sql.prepare_cached(sql)?;
        let names = names.query_map([], |row| row.get::<_, Vec<u8>>(0))?;
        let mut all = Vec::new();
        for name in names.collect::<Result<Vec<_>, _>>()? {
            let name = shown(&name);
            let enters = |vnode: InodeRecord| self.caller.may(&vnode, SEARCH);
            if self.found_workspace(&name)?.is_some_and(enters) {
                all.extend(self.workspace(&name)?.ok());
            }
        }
        Ok(all)
    }

    /// Starts the removal of a workspace: no lease holder can join it from then on.
    pub fn end_workspace(&mut self, name: &str) -> WorkspaceResult<v1::Workspace> {
        let Some(vnode) = self.found_workspace(name)? else {
            return Ok(Err(WorkspaceRefusal::Unknown(name.to_owned())));
        };
        self.need_owner(&vnode)?;
        let workspace = self.workspace(name)?;
        let sql = "UPDATE workspace SET ends = 1 WHERE ino = ?1";
        self.db.sql.execute(sql, [vnode.ino.cast_signed()])?;
        Ok(workspace)
    }

    /// Adds a lease holder to a workspace, or renews the lease of a lease holder that is still alive.
    pub fn join_workspace(
        &mut self,
        op: &v1::JoinWorkspaceRequest,
    ) -> WorkspaceResult<v1::WorkspaceMember> {
        let Some(vnode) = self.found_workspace(&op.name)? else {
            return Ok(Err(WorkspaceRefusal::Unknown(op.name.clone())));
        };
        self.need(&vnode, SEARCH, &op.name)?;
        let (workspace, uid) = (vnode.ino.cast_signed(), self.caller.uid);
        let until = self.now.saturating_add(silence_ns());
        if op.member != 0 {
            let sql = "UPDATE workspace_member SET until = ?4 WHERE member = ?1 AND workspace = ?2 AND uid = ?3 AND until != 0 \
                       RETURNING joined";
            let row = params![op.member.cast_signed(), workspace, uid, until];
            let joined = find(self.db, sql, row, |row| row.get(0))?;
            let gone = || WorkspaceRefusal::NoMember(op.name.clone(), op.member);
            let member = |joined| v1::WorkspaceMember {
                member: op.member,
                uid,
                joined,
                until,
            };
            return Ok(joined.map(member).ok_or_else(gone));
        }
        let sql = "SELECT count(*) FROM workspace_member WHERE workspace = ?1";
        let count: u32 = self.db.sql.query_row(sql, [workspace], |row| row.get(0))?;
        if count >= MEMBERS_MAX {
            return Ok(Err(WorkspaceRefusal::TooManyMembers(op.name.clone())));
        }
        let joined = v1::WorkspaceMember {
            member: ids::reserve(self.db, "member", 1)?,
            uid,
            joined: self.now,
            until: if op.stays { 0 } else { until },
        };
        self.db.sql.execute(
            "INSERT INTO workspace_member(member, workspace, uid, joined, until) VALUES (?1, ?2, ?3, ?4, ?5)",
            params![
                joined.member.cast_signed(),
                workspace,
                uid,
                joined.joined,
                joined.until
            ],
        )?;
        let sql = "UPDATE workspace SET joined = 1 WHERE ino = ?1";
        self.db.sql.execute(sql, [workspace])?;
        Ok(Ok(joined))
    }

    /// Removes a lease holder from a workspace.
    pub fn leave_workspace(&mut self, op: &v1::LeaveWorkspaceRequest) -> WorkspaceResult<()> {
        let Some(vnode) = self.found_workspace(&op.name)? else {
            return Ok(Err(WorkspaceRefusal::Unknown(op.name.clone())));
        };
        // The owner of the workspace may remove other lease holders.
        let any = self.need_owner(&vnode).is_ok();
        let sql = "DELETE FROM workspace_member WHERE member = ?1 AND workspace = ?2 AND (?3 OR uid = ?4)";
        let row = params![
            op.member.cast_signed(),
            vnode.ino.cast_signed(),
            any,
            self.caller.uid
        ];
        Ok(match self.db.sql.execute(sql, row)? {
            0 => Err(WorkspaceRefusal::NoMember(op.name.clone(), op.member)),
            _ => Ok(()),
        })
    }

    /// Returns the state of a path that a caller waits for.
    pub fn look_for(&self, path: &[u8]) -> Result<PathObject, Fault> {
        match self.resolve(path, true) {
            Ok(vnode) if vnode.kind != Kind::File => Ok(PathObject::Other),
            Ok(vnode) if vnode.version != 0 => Ok(PathObject::File(vnode.attr())),
            Ok(_) | Err(Fault::NotFound(_) | Fault::NotDirectory(_)) => {
                Ok(PathObject::Awaited(self.awaited(path)?))
            }
            Err(fault) => Err(fault),
        }
    }

    /// Renews the leases of lease holders that are not permanent, since the server could not receive their renewals while it was down.
    pub fn renew_members(&mut self) -> Result<(), Fault> {
        let until = self.now.saturating_add(silence_ns());
        let sql = "UPDATE workspace_member SET until = ?1 WHERE until != 0";
        self.db.sql.execute(sql, [until])?;
        Ok(())
    }

    /// Removes lease holders whose leases have expired.
    pub fn forget_members(&mut self) -> Result<(), Fault> {
        let sql = "DELETE FROM workspace_member WHERE until != 0 AND until < ?1";
        self.db.sql.execute(sql, [self.now])?;
        Ok(())
    }

    /// Ends workspaces whose lifetime has expired or whose last lease holder has left, and removes a bounded number of files of ending
    /// workspaces. Returns whether more files remain to be removed.
    pub fn sweep_workspaces(&mut self) -> Result<bool, Fault> {
        self.forget_taken_out()?;
        let sql = "UPDATE workspace SET ends = 1 WHERE ends = 0 AND ((expires != 0 AND expires <= ?1) \
                   OR (joined = 1 AND NOT EXISTS (SELECT 1 FROM workspace_member WHERE workspace = workspace.ino)))";
        self.db.sql.execute(sql, [self.now])?;
        let mut ends = self.db.sql.prepare_cached("SELECT workspace.ino, parent, name FROM workspace CROSS JOIN dirent ON dirent.ino = workspace.ino WHERE ends = 1")?;
        let ends = ends.query_map([], |row| {
            let number = |at| unsigned(row, at);
            Ok((number(0)?, number(1)?, row.get::<_, Vec<u8>>(2)?))
        })?;
        let mut budget = REMOVED_MAX;
        for (ino, parent, name) in ends.collect::<Result<Vec<_>, _>>()? {
            if !self.remove_below(ino, &mut budget)? {
                return Ok(true);
            }
            tracing::info!(workspace = shown(&name), "a workspace has ended");
            self.unlink_now(parent, name, true)?;
        }
        self.forget_taken_out()?;
        Ok(false)
    }

    /// Removes the record of a workspace whose directory is no longer in `/workspaces`.
    fn forget_taken_out(&mut self) -> Result<(), Fault> {
        let above = InodeRecord::child(self.db, Inode::ROOT.0, DIRECTORY.as_bytes())?;
        let above = above.map_or(0, |above| above.ino).cast_signed();
        let sql = "DELETE FROM workspace WHERE NOT EXISTS (SELECT 1 FROM inode WHERE inode.ino = workspace.ino AND parent = ?1 AND nlink > 0) \
                   RETURNING ino";
        let mut gone = self.db.sql.prepare_cached(sql)?;
        let gone = gone.query_map([above], |row| row.get::<_, i64>(0))?;
        for ino in gone.collect::<Result<Vec<_>, _>>()? {
            self.shared.quotas.forget(ino.cast_unsigned());
            let sql = "DELETE FROM workspace_member WHERE workspace = ?1";
            self.db.sql.execute(sql, [ino])?;
        }
        Ok(())
    }

    /// Removes the content of a directory within the budget; returns whether the directory is empty. Supports any depth of nesting.
    fn remove_below(&mut self, directory: u64, budget: &mut usize) -> Result<bool, Fault> {
        let mut open: Vec<(u64, Vec<u8>)> = vec![(directory, Vec::new())];
        while let Some((at, name)) = open.last().cloned() {
            let entries = self.entries(at, *budget)?;
            if *budget == 0 {
                return Ok(false);
            }
            if entries.is_empty() {
                open.pop();
                if let Some(&(above, _)) = open.last() {
                    self.unlink_now(above, name, true)?;
                    *budget -= 1;
                }
                continue;
            }
            for (name, vnode) in entries {
                if vnode.is_dir() {
                    open.push((vnode.ino, name));
                    break;
                }
                self.unlink_now(at, name, false)?;
                *budget -= 1;
            }
        }
        Ok(true)
    }
}

/// Returns whether any workspace exists.
pub fn any_workspace(db: &Connection) -> Result<bool, Fault> {
    let sql = "SELECT EXISTS (SELECT 1 FROM workspace)";
    Ok(db.sql.query_row(sql, [], |row| row.get(0))?)
}

/// Returns the time of the next work for workspaces, if there is any: a lease expires, a workspace expires, or, at time 0, a workspace has
/// ended. Also returns whether lease holders have to renew their leases.
pub fn next_work(db: &Connection) -> Result<(Option<i64>, bool), Fault> {
    let above = InodeRecord::child(db, Inode::ROOT.0, DIRECTORY.as_bytes())?;
    let above = above.map_or(0, |above| above.ino).cast_signed();
    let sql = "SELECT min(CASE WHEN ends = 1 OR NOT EXISTS (SELECT 1 FROM inode WHERE inode.ino = workspace.ino AND parent = ?1 AND nlink > 0) \
               OR (joined = 1 AND NOT EXISTS (SELECT 1 FROM workspace_member WHERE workspace = workspace.ino)) THEN 0 \
               WHEN expires != 0 THEN expires END), (SELECT min(until) + 1 FROM workspace_member WHERE until != 0) FROM workspace";
    let (ends, lease): (Option<i64>, Option<i64>) =
        find(db, sql, [above], |row| Ok((row.get(0)?, row.get(1)?)))?.unwrap_or_default();
    Ok((ends.into_iter().chain(lease).min(), lease.is_some()))
}

fn silence_ns() -> i64 {
    i64::try_from(SILENCE.as_nanos()).unwrap_or(i64::MAX)
}
