//! Versions of files: written once, then sealed and read. Objects without a file are recorded for removal (next: `server/src/removal.rs`).

use super::attribute;
use super::fault::Fault;
use super::overflow::ClientLocation;
use super::parts::{self, Half};
use super::paths::path_of;
use super::placement::{self, burst, migrations, removals};
use super::remotes;
use super::rules::runs::ABANDONED;
use super::transaction::{Change, Tx};
use super::vnode::{InodeRecord, NO_NODE};
use super::writers::SILENCE_NS_MAX;
use crate::Connection;
use crate::query;
use rusqlite::{OptionalExtension, params};
use tidemill_model::id::{Inode, NodeId, ObjectId};
use tidemill_model::layout::{FreeSpace, PartOf, RESERVE_BYTES, place};
use tidemill_model::object::Placed;
use tidemill_model::replicas::WantedReplicas;
use tidemill_model::time::Time;
use tidemill_wire::capability::{Attributes, rights};
use tidemill_wire::v1::{self, Kind, name_result::Result as Answer};

/// Largest size of a file that Linux can represent, in bytes.
const SIZE_MAX: u64 = i64::MAX.unsigned_abs();

fn has_backend(spaces: &[FreeSpace], node: NodeId) -> bool {
    let mut spaces = spaces.iter();
    spaces.any(|space| space.backend && space.node == node)
}

/// Returns whether a client is still writing a version or a part of a version.
pub fn is_in_progress(db: &Connection, object: u64) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM writing WHERE object = ?1";
    query::exists(db, sql, [object.cast_signed()])
}

/// A version that a client is writing.
struct VersionInProgress {
    session: u64,
    uid: u32,
    started: i64,
}

impl Tx<'_> {
    /// Chooses the node of a new version: the requested node, else the directory's node, else a node of the memory tier if the directory
    /// selects that tier, else a node according to the inode.
    pub fn place(
        &self,
        ino: Inode,
        named: Option<u32>,
        dir: &InodeRecord,
        here: ClientLocation<'_>,
    ) -> Result<i64, Fault> {
        let named = match named {
            Some(node) => Some(node),
            // An old setting of a directory must not prevent new files while the directory's node is being emptied.
            None => self
                .directory_node(dir)?
                .filter(|&node| !self.shared.nodes.is_closed(node)),
        };
        let spaces = self.shared.spaces();
        if named.is_none()
            && let Some(node) = self.placed_in_memory(dir, here, &spaces)?
        {
            return Ok(node.0.into());
        }
        if named.is_none()
            && let Some(node) = self.placed_in_burst(dir, here)?
        {
            return Ok(node.0.into());
        }
        if let Some(named) = named {
            self.need_unreserved(dir, named, here)?;
        }
        let named = named.map(NodeId);
        let placed = place(ino, named, &spaces.store);
        let placed = placed.map_err(|error| self.shared.resume(error, &spaces))?;
        if !here.stub && has_backend(&spaces.store, placed) {
            self.need_store_written(placed, dir)?;
        }
        Ok(i64::from(placed.0))
    }

    /// Fails if the version would be written into a read-only backend of a node.
    fn need_store_written(&self, node: NodeId, dir: &InodeRecord) -> Result<(), Fault> {
        let path = self.path_of(dir.ino)?.unwrap_or_default();
        match remotes::is_read_only(self.db, node.0.into(), &path)? {
            true => Err(Fault::StoreReadOnly(self.called(dir.ino), node.0)),
            false => Ok(()),
        }
    }

    /// Chooses the node of a file's next version in the same way as for a new file, except that the version stays on the file's present
    /// node if no setting selects another node.
    fn place_again(
        &self,
        vnode: &InodeRecord,
        named: Option<u32>,
        here: ClientLocation<'_>,
    ) -> Result<i64, Fault> {
        // A version in memory is placed like a new file: memory may be full, and no user has requested this node.
        let is_here = |named: u32| i64::from(named) == vnode.node;
        if u32::try_from(vnode.node).is_ok_and(|node| self.shared.in_memory(node))
            && named.is_none_or(is_here)
        {
            return self.place(Inode(vnode.ino), None, &self.directory_of(vnode.ino)?, here);
        }
        if named.is_none() && self.shared.directory_tiers() {
            let (dir, spaces) = (self.directory_of(vnode.ino)?, self.shared.spaces());
            if let Some(node) = self.placed_in_memory(&dir, here, &spaces)? {
                return Ok(node.0.into());
            }
        }
        // If the file is stored on another tier and all files are written to the burst tier first, the new version is written
        // there, too.
        let stored =
            |node: i64| u32::try_from(node).is_ok_and(|node| !self.shared.bursts.has(node));
        if named.is_none() && self.shared.bursts.any() && stored(vnode.node) {
            return self.place(Inode(vnode.ino), None, &self.directory_of(vnode.ino)?, here);
        }
        // A file in the burst tier is also placed like a new file while space there is reserved: that space is not free.
        if named.is_none() && self.shared.bursts.reserved() && !stored(vnode.node) {
            return self.place(Inode(vnode.ino), None, &self.directory_of(vnode.ino)?, here);
        }
        // A read-only store takes no new version.
        let spaces = self.shared.spaces();
        let backend = u32::try_from(vnode.node).map(NodeId);
        if named.is_none_or(is_here)
            && backend.is_ok_and(|node| has_backend(&spaces.store, node))
            && let Some(path) = self.path_of(vnode.ino)?
            && remotes::is_read_only(self.db, vnode.node, &path)?
        {
            return self.place(Inode(vnode.ino), None, &self.directory_of(vnode.ino)?, here);
        }
        // A file that was moved into a directory of a backend is written there with its next version.
        if named.is_none() && spaces.store.iter().any(|space| space.backend) {
            let dir = self.directory_of(vnode.ino)?;
            let wanted = self.directory_node(&dir)?.map(NodeId);
            let elsewhere = |wanted: &NodeId| i64::from(wanted.0) != vnode.node;
            if wanted
                .filter(elsewhere)
                .is_some_and(|wanted| has_backend(&spaces.store, wanted))
            {
                return self.place(Inode(vnode.ino), None, &dir, here);
            }
        }
        // A client that continues with the present bytes may write on their node, even while it is being emptied. The new
        // version is moved afterwards.
        let continues = named.is_some_and(|named| {
            i64::from(named) == vnode.node && self.shared.nodes.is_emptied(named)
        });
        if (named.is_none() || continues) && vnode.node != NO_NODE {
            let here = spaces
                .store
                .iter()
                .find(|space| i64::from(space.node.0) == vnode.node);
            let hangs = |space: &&FreeSpace| {
                !space.answers && spaces.store.iter().any(|space| space.answers)
            };
            let here = here.filter(|space| !hangs(space) && (continues || !space.leaving));
            if here.is_some_and(|space| space.free_bytes >= RESERVE_BYTES) {
                return Ok(vnode.node);
            }
        }
        self.place(
            Inode(vnode.ino),
            named,
            &self.directory_of(vnode.ino)?,
            here,
        )
    }

    /// Returns a directory that contains a file; the root if no directory contains the file.
    pub fn directory_of(&self, ino: u64) -> Result<InodeRecord, Fault> {
        let sql = "SELECT parent FROM dirent WHERE ino = ?1 LIMIT 1";
        let mut statement = self.db.sql.prepare_cached(sql)?;
        let dir = statement.query_row([ino.cast_signed()], |row| row.get(0));
        let dir = dir.optional()?.map_or(Inode::ROOT.0, i64::cast_unsigned);
        InodeRecord::get(self.db, dir)
    }

    fn file(&self, ino: u64) -> Result<InodeRecord, Fault> {
        let vnode = self.reach(ino)?;
        match vnode.kind {
            Kind::File => Ok(vnode),
            Kind::Directory => Err(Fault::IsDirectory(self.called(ino))),
            _ => Err(Fault::Malformed("only files have versions")),
        }
    }

    /// Returns a capability to read a sealed version. The mount that sent the request holds the version until the mount releases it.
    pub fn open(&self, op: &v1::Open) -> Result<Answer, Fault> {
        let vnode = self.file(op.ino)?;
        self.need_read(&vnode)?;
        if op.multi_writer
            && self.session != 0
            && let Some(answer) = self.open_multi_writer(&vnode)?
        {
            return Ok(answer);
        }
        if op.streaming
            && (!op.waits || self.has_readers_wait(&vnode)?)
            && let Some(answer) = self.open_streaming(&vnode)?
        {
            return Ok(answer);
        }
        let (object, node, size) = if op.version == 0 || op.version == vnode.version {
            (vnode.object, vnode.node, vnode.size)
        } else {
            self.older(&vnode, op.version)?
        };
        let opened = v1::Opened {
            attr: Some(vnode.attr()),
            object,
            size,
            ..v1::Opened::default()
        };
        let Ok(first) = u32::try_from(node) else {
            let layout =
                self.opened_parts(&vnode, object, (&op.avoid, op.corrupt), rights::READ)?;
            self.shared
                .hold(self.session, (vnode.ino, object), parts::NOWHERE);
            return Ok(Answer::Opened(v1::Opened { layout, ..opened }));
        };
        let corrupt = op.corrupt.then(|| self.corrupt_on(object)).transpose()?;
        let node = match corrupt.flatten() {
            Some(corrupt) => corrupt,
            None => self.readable(object, first, &op.avoid)?,
        };
        self.shared.hold(self.session, (vnode.ino, object), node);
        Ok(Answer::Opened(v1::Opened {
            node,
            capability: self.right(&vnode, node, object, rights::READ),
            ..opened
        }))
    }

    /// Returns a capability to read the version that is being written, for readers that follow the writer.
    fn open_streaming(&self, vnode: &InodeRecord) -> Result<Option<Answer>, Fault> {
        if self.is_multi_writer(vnode)? {
            return self.opened_written(vnode).map(Some);
        }
        let node = match vnode.writing {
            0 => None,
            object => self.writing_node(object)?,
        };
        // A striped version is readable only after the seal.
        let Some(node) = node.and_then(|node| u32::try_from(node).ok()) else {
            return Ok(None);
        };
        let rights = rights::READ | rights::UNSEALED;
        Ok(Some(Answer::Opened(v1::Opened {
            attr: Some(vnode.attr()),
            object: vnode.writing,
            node,
            capability: self.right(vnode, node, vnode.writing, rights),
            ..v1::Opened::default()
        })))
    }

    /// Returns a capability with `rights` to an object of a file.
    pub fn right(&self, vnode: &InodeRecord, node: u32, object: u64, rights: u32) -> Vec<u8> {
        let uid = self.caller.uid;
        if self.caller.administrator {
            return self.shared.sign(node, object, rights, uid);
        }
        self.shared.grant(vnode.ino, node, object, rights, uid)
    }

    /// Returns a capability as [`Self::right`] does, to write an object: with the attributes that its node records at the seal.
    pub(crate) fn right_to_write(
        &self,
        vnode: &InodeRecord,
        node: u32,
        object: u64,
        rights: u32,
    ) -> Result<Vec<u8>, Fault> {
        let part = match self.shared.parts() {
            true => parts::part_of(self.db, object)?,
            false => None,
        };
        let attributes = Attributes {
            inode: vnode.ino,
            uid: vnode.uid,
            gid: vnode.gid,
            mode: vnode.mode & 0o7777,
            part: part.map(PartOf::to_bytes),
            // The holder of the capability may not know the other names of a file. One part of a version is enough to find it again.
            path: match vnode.nlink <= 1 && part.is_none_or(|part| part.index == 0) {
                true => self.path_of(vnode.ino)?.unwrap_or_default(),
                false => Vec::new(),
            },
        };
        let uid = self.caller.uid;
        let signed = match self.caller.administrator {
            true => self
                .shared
                .sign_to_write(node, object, rights, uid, attributes),
            false => self
                .shared
                .grant_to_write(node, object, rights, uid, attributes),
        };
        Ok(signed)
    }

    fn older(&self, vnode: &InodeRecord, version: u64) -> Result<(u64, i64, u64), Fault> {
        let sql = "SELECT object, node, size, removed FROM version WHERE ino = ?1 AND version = ?2";
        let row = params![vnode.ino.cast_signed(), version.cast_signed()];
        let found = query::find(self.db, sql, row, |row| {
            let object = query::unsigned(row, 0)?;
            Ok((
                object,
                row.get(1)?,
                row.get::<_, i64>(2)?,
                row.get::<_, bool>(3)?,
            ))
        })?;
        match found {
            Some((object, node, size, removed)) if !removed || self.shared.object_held(object) => {
                Ok((object, node, size.cast_unsigned()))
            }
            _ => Err(Fault::VersionGone(version, self.called(vnode.ino))),
        }
    }

    pub(crate) fn new_version(&mut self, op: &v1::NewVersion) -> Result<Answer, Fault> {
        let mut vnode = self.file(op.ino)?;
        if op.object == 0 {
            return Err(Fault::Malformed("a new version needs a reserved object id"));
        }
        if vnode.writing == op.object {
            self.repeat_new_version(op)?;
            return self.opened_for_writing(&vnode, op.object);
        }
        if let Some(member) = self.member(op.object)? {
            // A repeated request. The right asserts that the part belongs to this file.
            self.written(op.ino, op.object)?;
            if vnode.writing != member.version {
                return Err(Fault::Stale(op.object));
            }
            return self.opened_multi_writer(&vnode, &member);
        }
        self.need_write(&vnode)?;
        self.check_object(op.object)?;
        if vnode.writing != 0 {
            let multi_writer = self.is_multi_writer(&vnode)?;
            if multi_writer && self.session != 0 && !op.steal {
                return self.join_multi_writer(&vnode, op);
            }
            if multi_writer && !op.steal {
                return Err(Fault::Busy(self.called(vnode.ino)));
            }
            self.take_over(&vnode, op.steal)?;
        }
        // A client that continues with the file's present bytes names their node. The bytes of a stub are on the named node already.
        let continues = op.node.filter(|&named| {
            i64::from(named) == vnode.node && !op.stub && !self.shared.is_up(named)
        });
        let named = match continues {
            Some(first) => Some(self.readable(vnode.object, first, &[])?),
            None => op.node,
        };
        let dir = || self.directory_of(vnode.ino);
        let stripes = self.stripes_wanted((op.stripes.as_ref(), named), dir, Some(&vnode))?;
        let node = match stripes {
            Some(stripes) => self.begin_parts(vnode.ino, op.object, stripes)?,
            None => self.place_again(&vnode, named, op.into())?,
        };
        let size_max = self.need_quota(&vnode)?;
        vnode.writing = op.object;
        if vnode.object == 0 {
            vnode.node = node;
        }
        vnode.update(self.db)?;
        self.begin_writing_on(&vnode, node)?;
        self.feed_stream(&vnode)?;
        self.changes.push(Change::Vnode(vnode.ino));
        self.opened_on(&vnode, (op.object, node), size_max)
    }

    /// Handles a repeated request to write: the first answer was lost, or a client without a session reports that it is still alive.
    fn repeat_new_version(&self, op: &v1::NewVersion) -> Result<(), Fault> {
        self.written(op.ino, op.object)?;
        if self.session == 0 {
            let sql = "UPDATE writing SET started = ?2 WHERE object = ?1 AND session = 0";
            query::execute(self.db, sql, [op.object.cast_signed(), self.now])?;
        }
        Ok(())
    }

    /// Ends another client's write to the file, so that the caller can write. Unless `steal` is set, the other client must have been silent
    /// for too long, or be a client of the same user without a session.
    fn take_over(&mut self, vnode: &InodeRecord, steal: bool) -> Result<(), Fault> {
        let writer = self.writer(vnode.writing)?;
        let gone = writer.is_none_or(|writer| {
            let lone = writer.session == 0;
            let mine = lone && self.session == 0 && writer.uid == self.caller.uid;
            mine || (lone && self.now - writer.started > SILENCE_NS_MAX)
        });
        if !gone && !steal {
            return Err(Fault::Busy(self.called(vnode.ino)));
        }
        self.drop_unsealed(vnode)
    }

    /// Returns the session of the mount that writes a version; `None` if no client writes the version.
    pub(super) fn session_of(&self, object: u64) -> Result<Option<u64>, Fault> {
        Ok(self.writer(object)?.map(|writer| writer.session))
    }

    fn writer(&self, object: u64) -> Result<Option<VersionInProgress>, Fault> {
        let sql = "SELECT session, uid, started FROM writing WHERE object = ?1";
        let found = self
            .db
            .sql
            .prepare_cached(sql)?
            .query_row([object.cast_signed()], |row| {
                let session = query::unsigned(row, 0)?;
                Ok(VersionInProgress {
                    session,
                    uid: row.get(1)?,
                    started: row.get(2)?,
                })
            });
        Ok(found.optional()?)
    }

    pub(crate) fn begin_writing(&self, vnode: &InodeRecord) -> Result<(), Fault> {
        self.begin_writing_on(vnode, vnode.node)?;
        self.feed_stream(vnode)
    }

    fn begin_writing_on(&self, vnode: &InodeRecord, node: i64) -> Result<(), Fault> {
        self.begin_writing_of(vnode.writing, vnode.ino, node)
    }

    pub(super) fn begin_writing_of(&self, object: u64, ino: u64, node: i64) -> Result<(), Fault> {
        let row = params![
            object.cast_signed(),
            ino.cast_signed(),
            node,
            self.session.cast_signed(),
            self.caller.uid,
            self.now
        ];
        let sql = "INSERT INTO writing(object, ino, node, session, uid, started) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        query::execute(self.db, sql, row)
    }

    /// Deletes the records that a version and its parts are being written.
    pub fn end_writing(&self, object: u64) -> Result<(), Fault> {
        let sql = "DELETE FROM writing WHERE object = ?1";
        query::execute(self.db, sql, [object.cast_signed()])?;
        if self.shared.parts() {
            let sql =
                "DELETE FROM writing WHERE object IN (SELECT part FROM part WHERE object = ?1)";
            query::execute(self.db, sql, [object.cast_signed()])?;
        }
        Ok(())
    }

    pub(crate) fn writing_node(&self, object: u64) -> Result<Option<i64>, Fault> {
        let sql = "SELECT node FROM writing WHERE object = ?1";
        query::find(self.db, sql, [object.cast_signed()], |row| row.get(0))
    }

    pub(crate) fn opened_for_writing(
        &self,
        vnode: &InodeRecord,
        object: u64,
    ) -> Result<Answer, Fault> {
        let node = self.writing_node(object)?.ok_or(Fault::Stale(object))?;
        self.opened_on(vnode, (object, node), self.size_max(vnode)?)
    }

    /// Returns the answer with a capability to write an object on a node. The version may reach the size `size_max`.
    pub(super) fn opened_on(
        &self,
        vnode: &InodeRecord,
        (object, node): (u64, i64),
        size_max: Option<u64>,
    ) -> Result<Answer, Fault> {
        let place = u32::try_from(node).unwrap_or(parts::NOWHERE);
        self.shared.hold(self.session, (vnode.ino, object), place);
        let all = rights::READ | rights::WRITE | rights::ATTRIBUTES;
        let opened = v1::Opened {
            attr: Some(vnode.attr()),
            object,
            size_max,
            ..v1::Opened::default()
        };
        let Ok(node) = u32::try_from(node) else {
            let layout = self.opened_parts(vnode, object, (&[], false), all)?;
            return Ok(Answer::Opened(v1::Opened { layout, ..opened }));
        };
        Ok(Answer::Opened(v1::Opened {
            node,
            capability: self.right_to_write(vnode, node, object, all)?,
            ..opened
        }))
    }

    /// Returns the inode record of the file whose version the caller is writing.
    pub(super) fn written(
        &self,
        ino: u64,
        object: u64,
    ) -> Result<(InodeRecord, Option<u32>), Fault> {
        let writer = self.writer(object)?;
        // A caller that has not written the version receives no information about the file.
        let unknown = object != 0 && writer.is_none() && !self.caller.above();
        if unknown && !self.wrote(ino, object)? {
            return Err(Fault::Stale(object));
        }
        let vnode = InodeRecord::get(self.db, ino)?;
        if vnode.kind != Kind::File || object == 0 {
            return Err(Fault::Malformed("only files have versions"));
        }
        let uid = writer.map(|writer| writer.uid);
        if !self.caller.above() && uid.is_some_and(|uid| uid != self.caller.uid) {
            return Err(Fault::Denied(self.called(ino), self.caller.uid));
        }
        Ok((vnode, uid))
    }

    /// Returns whether the caller has written and sealed a version of a file.
    fn wrote(&self, ino: u64, object: u64) -> Result<bool, Fault> {
        let sql = "SELECT 1 FROM version WHERE object = ?1 AND ino = ?2 AND uid = ?3";
        let key = params![object.cast_signed(), ino.cast_signed(), self.caller.uid];
        query::exists(self.db, sql, key)
    }

    fn is_version(&self, ino: u64, object: u64) -> Result<bool, Fault> {
        let sql = "SELECT 1 FROM version WHERE object = ?1 AND ino = ?2";
        let key = params![object.cast_signed(), ino.cast_signed()];
        query::exists(self.db, sql, key)
    }

    pub(crate) fn seal(&mut self, op: &v1::Seal) -> Result<Answer, Fault> {
        if op.size > SIZE_MAX {
            return Err(Fault::Malformed("no file has as many bytes as that"));
        }
        if let Some(member) = self.member_to_seal(op)? {
            return self.seal_multi_writer(op, &member);
        }
        if self.was_member(op.object)? {
            // A repeated request: its answer was lost.
            let (vnode, _) = self.written(op.ino, op.object)?;
            return self.sealed_with(&vnode, self.replicas_wanted(&vnode, &op.replicas)?);
        }
        if let Some(answer) = self.seal_for_lost(op)? {
            return Ok(answer);
        }
        let (mut vnode, writer) = self.written(op.ino, op.object)?;
        if vnode.object == op.object {
            // A repeated request: its answer was lost, or the caller was asked to repeat it.
            return self.sealed_with(&vnode, self.replicas_wanted(&vnode, &op.replicas)?);
        }
        let node = self.writing_node(op.object)?;
        let (Some(node), true) = (node, vnode.writing == op.object) else {
            // A later version may have been sealed since.
            return match self.is_version(op.ino, op.object)? {
                true => Ok(Answer::Attr(vnode.attr())),
                false => Err(Fault::Stale(op.object)),
            };
        };
        let size = match node {
            NO_NODE => self.seal_parts(op)?,
            node => {
                self.check_length(op.object, node, op.size, op.receipts.first())?;
                op.size
            }
        };
        // A mount itself stays within the quota of the workspace.
        if self.session_of(op.object)? == Some(0)
            && self.size_max(&vnode)?.is_some_and(|most| size > most)
        {
            return Err(Fault::WorkspaceFull(self.called(vnode.ino)));
        }
        if let Some(attributes) = &op.attributes {
            self.change_attributes(&mut vnode, attributes)?;
        }
        self.end_writing(op.object)?;
        self.shared.release(self.session, vnode.ino, op.object);
        let mtime = self.time(op.mtime);
        let uid = writer.unwrap_or(self.caller.uid);
        self.make_current(
            &mut vnode,
            (op.object, node),
            (size, mtime),
            (uid, &op.replicas),
        )
    }

    /// Checks that a node sealed an object at the length that a writer declares: the writer shows the node's receipt.
    pub(crate) fn check_length(
        &self,
        object: u64,
        node: i64,
        size: u64,
        receipt: Option<&Vec<u8>>,
    ) -> Result<(), Fault> {
        let confirmed = |of: u32| {
            let receipt = receipt.map_or(&[][..], Vec::as_slice);
            let (of, object) = (NodeId(of), ObjectId(object));
            self.shared.key().is_receipt(receipt, of, object, size)
        };
        match u32::try_from(node).is_ok_and(confirmed) {
            true => Ok(()),
            false => Err(Fault::NoReceipt { object, node, size }),
        }
    }

    /// Makes a written object the current version of its file.
    pub(super) fn make_current(
        &mut self,
        vnode: &mut InodeRecord,
        (object, node): (u64, i64),
        (size, mtime): (u64, i64),
        (uid, replicas): (u32, &str),
    ) -> Result<Answer, Fault> {
        let old = (vnode.object, vnode.node);
        let grown = size.saturating_sub(vnode.size);
        vnode.writing = 0;
        vnode.object = object;
        vnode.node = node;
        vnode.size = size;
        vnode.mtime = mtime;
        // The file changed when its last byte was written, not when the server learned of the seal.
        vnode.ctime = vnode.ctime.max(vnode.mtime.min(self.now));
        vnode.version += 1;
        let wanted = self.replicas_wanted(vnode, replicas)?;
        self.record_replicas(vnode, uid, 0, wanted)?;
        self.drop_object(old.0, old.1)?;
        vnode.update(self.db)?;
        self.grown(vnode, grown)?;
        self.changes.push(Change::Vnode(vnode.ino));
        self.changes.push(Change::Sealed(vnode.ino));
        self.purge_if_orphan(vnode)?;
        self.sealed_with(vnode, wanted)
    }

    /// Seals one part of a version that consists of several objects, for a writer that is no longer alive. The seal of the last part also
    /// seals the version.
    fn seal_for_lost(&mut self, op: &v1::Seal) -> Result<Option<Answer>, Fault> {
        if !self.shared.parts() || !self.caller.administrator || !op.parts.is_empty() {
            return Ok(None);
        }
        let Some(Half { version, sizes }) = self.seal_part(op)? else {
            return Ok(None);
        };
        let Some(parts) = sizes else {
            return Ok(Some(Answer::Empty(v1::Empty {})));
        };
        let whole = v1::Seal {
            object: version,
            parts,
            ..op.clone()
        };
        self.seal(&whole).map(Some)
    }

    /// Records a version of a file for lineage. The row remains when the version's bytes are deleted.
    pub(crate) fn record_version(
        &self,
        vnode: &InodeRecord,
        uid: u32,
        task: u64,
    ) -> Result<(), Fault> {
        let wanted = self.replicas_wanted(vnode, "")?;
        self.record_replicas(vnode, uid, task, wanted)
    }

    /// Records a version as [`Self::record_version`] does, and requests the wanted number of replicas.
    fn record_replicas(
        &self,
        vnode: &InodeRecord,
        uid: u32,
        task: u64,
        wanted: WantedReplicas,
    ) -> Result<(), Fault> {
        let path = self.path_of(vnode.ino)?.unwrap_or_default();
        self.insert_version(vnode, (uid, task), (&path, wanted.replicas))?;
        self.feed_sealed(vnode, &path)?;
        if wanted.replicas > 1 {
            self.want_replicas(vnode, wanted.now)?;
        }
        self.goes_to_backend(vnode, &path)?;
        if !self.shared.nodes.moving() {
            return Ok(());
        }
        let held_ns = self.held_back(vnode, &path)?;
        for (object, node) in burst::places(self.db, vnode)? {
            let Ok(node) = u32::try_from(node) else {
                continue;
            };
            if self.shared.bursts.has(node) {
                self.written_to_burst(object, node, held_ns)?;
            }
            if self.shared.nodes.is_emptied(node) {
                migrations::leaves(self.db, object, node, self.now)?;
            }
        }
        Ok(())
    }

    /// Writes the row of a file's version.
    pub(super) fn insert_version(
        &self,
        vnode: &InodeRecord,
        (uid, task): (u32, u64),
        (path, replicas): (&[u8], u32),
    ) -> Result<(), Fault> {
        let row = VersionRow {
            object: vnode.object,
            ino: vnode.ino,
            version: vnode.version,
            size: vnode.size,
            node: vnode.node,
            uid,
            sealed_at: self.now,
            task,
            path,
            removed: false,
            replicas,
        };
        row.insert(self.db)
    }

    /// Requests the migration of a version that a task or client created on another node to its directory's node, if that has a backend.
    fn goes_to_backend(&self, vnode: &InodeRecord, path: &[u8]) -> Result<(), Fault> {
        let spaces = self.shared.spaces();
        let Ok(node) = u32::try_from(vnode.node) else {
            return Ok(());
        };
        let elsewhere = self.shared.in_memory(node) || self.shared.bursts.has(node);
        if vnode.object == 0 || elsewhere || !spaces.store.iter().any(|space| space.backend) {
            return Ok(());
        }
        let wanted = self.directory_node(&self.directory_of(vnode.ino)?)?;
        let wanted =
            wanted.filter(|&wanted| wanted != node && has_backend(&spaces.store, NodeId(wanted)));
        match wanted {
            Some(wanted) if !remotes::is_read_only(self.db, wanted.into(), path)? => {
                self.shared.nodes.set_moving();
                migrations::move_first(self.db, vnode.object, (node, wanted), self.now)
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn abandon(&mut self, op: &v1::Abandon) -> Result<Answer, Fault> {
        if let Some(member) = self.member(op.object)? {
            return self.abandon_multi_writer(op, &member);
        }
        let (mut vnode, _) = self.written(op.ino, op.object)?;
        if vnode.writing != op.object {
            return Err(Fault::Stale(op.object));
        }
        self.shared.release(self.session, vnode.ino, op.object);
        self.drop_unsealed(&vnode)?;
        // Attributes that were set during the write belong to the file's current version.
        attribute::forget_annotations(self.db, vnode.object)?;
        vnode.writing = 0;
        if vnode.version == 0 {
            vnode.version = 1;
            vnode.node = NO_NODE;
        }
        vnode.update(self.db)?;
        self.may_go_by_now(vnode.object)?;
        self.changes.push(Change::Vnode(vnode.ino));
        self.purge_if_orphan(&vnode)?;
        Ok(Answer::Attr(vnode.attr()))
    }

    /// Ends the write of a file's new version, and removes its bytes from the node that the record of the write names.
    pub(super) fn drop_unsealed(&self, vnode: &InodeRecord) -> Result<(), Fault> {
        self.end_begun(vnode.writing, ABANDONED)?;
        let node = match self.writing_node(vnode.writing)? {
            Some(node) => node,
            None if self.shared.parts() && parts::parts(self.db, vnode.writing)?.is_some() => {
                NO_NODE
            }
            None => vnode.node,
        };
        self.drop_object(vnode.writing, node)?;
        self.end_writing(vnode.writing)
    }

    pub(crate) fn release(&mut self, op: &v1::Release) -> Result<Answer, Fault> {
        self.shared.release(self.session, op.ino, op.object);
        if let Some(vnode) = InodeRecord::find(self.db, op.ino)? {
            self.purge_if_orphan(&vnode)?;
        }
        Ok(Answer::Empty(v1::Empty {}))
    }

    /// Removes an inode without names, unless a client still has the file open.
    pub(crate) fn purge_if_orphan(&self, vnode: &InodeRecord) -> Result<(), Fault> {
        if vnode.nlink > 0 || vnode.writing != 0 || self.shared.inode_held(vnode.ino) {
            return Ok(());
        }
        self.purge(vnode)
    }

    /// Removes an inode and requests the removal of the file's bytes.
    pub fn purge(&self, vnode: &InodeRecord) -> Result<(), Fault> {
        vnode.delete(self.db)?;
        self.shared.remove_file();
        if vnode.writing != 0 {
            self.drop_unsealed(vnode)?;
        }
        self.drop_object(vnode.object, vnode.node)?;
        if vnode.is_dir() {
            self.drop_directory_rule(vnode.ino)?;
        }
        attribute::forget(self.db, vnode.ino)
    }

    /// Requests the removal of an object from its node, which happens when no client reads the object and the node is online. For a version
    /// of several objects, each of these objects is removed.
    pub fn drop_object(&self, object: u64, node: i64) -> Result<(), Fault> {
        if object == 0 {
            return Ok(());
        }
        removals::queue(self.db, object, node, self.now)?;
        let sql = "UPDATE version SET removed = 1 WHERE object = ?1 RETURNING replicas";
        let replicas: Option<u32> =
            query::find(self.db, sql, [object.cast_signed()], |row| row.get(0))?;
        let has_rows = self.shared.nodes.moving() || self.shared.corruption();
        if replicas.is_some_and(|replicas| replicas > 1 || has_rows) {
            placement::forget_object(self.db, object, self.now)?;
        }
        attribute::keep_annotations(self.db, object)
    }

    /// Sets the path of a sealed version to the present path of its file.
    pub(crate) fn rename_version(&self, vnode: &InodeRecord) -> Result<(), Fault> {
        let path = self.path_of(vnode.ino)?.unwrap_or_default();
        let sql = "UPDATE version SET path = ?2 WHERE object = ?1";
        query::execute(self.db, sql, params![vnode.object.cast_signed(), path])
    }

    /// Removes files without names after a mount has disconnected for good and no other client has the files open.
    pub(crate) fn purge_orphans(&self) -> Result<usize, Fault> {
        let orphans = InodeRecord::without_names(self.db)?;
        for vnode in &orphans {
            self.purge_if_orphan(vnode)?;
        }
        Ok(orphans.len())
    }
}

/// A sealed version, or a version that is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundVersion {
    /// Inode of the file that the version belongs to.
    pub ino: u64,
    /// Size in bytes; `None` while the version is being written.
    pub size: Option<u64>,
    /// Node that stores the version; `None` for a version of several parts.
    pub node: Option<u32>,
}

/// Returns the version with this object, regardless of its file's name and present version; `None` for an unknown object.
pub fn find(db: &Connection, object: u64) -> Result<Option<FoundVersion>, Fault> {
    let sql = "SELECT ino, size, node FROM version WHERE object = ?1 \
               UNION ALL SELECT ino, NULL, node FROM writing WHERE object = ?1 LIMIT 1";
    query::find(db, sql, [object.cast_signed()], |row| {
        Ok(FoundVersion {
            ino: query::unsigned(row, 0)?,
            size: row.get::<_, Option<i64>>(1)?.map(i64::cast_unsigned),
            node: u32::try_from(row.get::<_, i64>(2)?).ok(),
        })
    })
}

/// Returns whether the database knows an object: as a version, as a part of one, or as one that is being written.
pub fn is_known(db: &Connection, object: u64) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM held WHERE object = ?1 UNION ALL SELECT 1 FROM writing WHERE object = ?1 \
               UNION ALL SELECT 1 FROM replica WHERE object = ?1";
    query::exists(db, sql, [object.cast_signed()])
}

/// Returns the inode of the file if this object is the only version of the file that is being written, as one object; else `None`.
pub fn only_written(db: &Connection, object: u64) -> Result<Option<u64>, Fault> {
    let sql = "SELECT ino FROM writing WHERE object = ?1 \
               AND (SELECT count(*) FROM writing AS other WHERE other.ino = writing.ino) = 1 \
               AND NOT EXISTS (SELECT 1 FROM publication WHERE publication.version = ?1) \
               AND NOT EXISTS (SELECT 1 FROM layout WHERE layout.object = ?1)";
    query::find(db, sql, [object.cast_signed()], |row| {
        query::unsigned(row, 0)
    })
}

/// Returns the nodes on which files are being written, with the start time of the newest file on each node.
pub fn newest_writes(db: &Connection) -> Result<Vec<(u32, Time)>, Fault> {
    let sql = "SELECT node, max(started) FROM writing GROUP BY node";
    let mut statement = db.sql.prepare_cached(sql)?;
    let rows = statement.query_map([], |row| {
        let started = Time(row.get::<_, i64>(1)?.max(0).cast_unsigned());
        Ok((u32::try_from(row.get::<_, i64>(0)?).ok(), started))
    })?;
    let rows = rows.map(|row| row.map(|(node, started)| Some((node?, started))));
    Ok(rows
        .filter_map(Result::transpose)
        .collect::<Result<_, _>>()?)
}

/// Returns whether a sealed version still has an object on a node, which includes an object that the node is yet to remove; `None` if no
/// version with this object was sealed.
pub fn is_stored(db: &Connection, object: u64) -> Result<Option<bool>, Fault> {
    let sql = "SELECT removed = 0 OR EXISTS (SELECT 1 FROM replica WHERE replica.object = ?1 AND want = 2) FROM version WHERE object = ?1";
    query::find(db, sql, [object.cast_signed()], |row| row.get(0))
}

/// Returns the node and size of a sealed version.
pub fn placed(db: &Connection, object: u64) -> Result<Option<Placed>, Fault> {
    let sql = "SELECT size, node FROM version WHERE object = ?1";
    query::find(db, sql, [object.cast_signed()], |row| {
        Ok(Placed {
            object: ObjectId(object),
            node: NodeId(u32::try_from(row.get::<_, i64>(1)?).unwrap_or(0)),
            size: query::unsigned(row, 0)?,
        })
    })
}

/// Returns the task that wrote a version.
pub(super) fn task_of(db: &Connection, object: u64) -> Result<Option<u64>, Fault> {
    let sql = "SELECT task FROM version WHERE object = ?1 AND task != 0";
    query::find(db, sql, [object.cast_signed()], |row| {
        query::unsigned(row, 0)
    })
}

/// Records the number of the last publication of a part that is being written.
pub(super) fn set_last_publication(db: &Connection, part: u64, number: u64) -> Result<(), Fault> {
    let sql = "UPDATE writing SET last_publication = ?2 WHERE object = ?1";
    query::execute(db, sql, params![part.cast_signed(), number.cast_signed()])
}

/// A row of the table `version`.
#[derive(Debug)]
pub struct VersionRow<'a> {
    /// Object of the version, which identifies the version.
    pub object: u64,
    /// Inode of the version's file.
    pub ino: u64,
    /// Number of the version; 0 for an older version whose number is unknown.
    pub version: u64,
    /// Size of the version in bytes.
    pub size: u64,
    /// Node of the first replica; -1 for none, as for a version of several objects.
    pub node: i64,
    /// User id of the writer of the version; for a version that a task wrote, of the job's owner.
    pub uid: u32,
    /// Time of the seal in nanoseconds since the Unix epoch.
    pub sealed_at: i64,
    /// Task that wrote the version; 0 for a client.
    pub task: u64,
    /// Path of the file at the seal.
    pub path: &'a [u8],
    /// Whether the removal of the version's bytes is due.
    pub removed: bool,
    /// Wanted number of replicas.
    pub replicas: u32,
}

impl VersionRow<'_> {
    /// Inserts the row.
    pub fn insert(&self, db: &Connection) -> Result<(), Fault> {
        let sql = "INSERT INTO version(object, ino, version, size, node, uid, sealed_at, task, path, removed, replicas) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
        let row = params![
            self.object.cast_signed(),
            self.ino.cast_signed(),
            self.version.cast_signed(),
            self.size.cast_signed(),
            self.node,
            self.uid,
            self.sealed_at,
            self.task.cast_signed(),
            self.path,
            self.removed,
            self.replicas,
        ];
        query::execute(db, sql, row)
    }
}

/// Returns the path of a version at its seal, with the inode and the size of its file.
pub fn file_of(db: &Connection, object: u64) -> Result<Option<(Vec<u8>, u64, u64)>, Fault> {
    let sql = "SELECT path, ino, size FROM version WHERE object = ?1";
    query::find(db, sql, [object.cast_signed()], |row| {
        let number = |at| query::unsigned(row, at);
        Ok((row.get(0)?, number(1)?, number(2)?))
    })
}

/// Returns the files of objects on a node. An object without a file that anybody can read is left out. A file that has a later version, or
/// that consists of several objects, is named accordingly.
pub fn files_on(
    db: &Connection,
    node: u32,
    objects: &[u64],
) -> Result<Vec<v1::FileOfObject>, Fault> {
    let sql = "SELECT held.ino, held.version != held.object, inode.object = held.version FROM held \
               CROSS JOIN inode ON inode.ino = held.ino WHERE held.object = ?1 AND held.removed = 0 \
               AND (held.node = ?2 OR EXISTS (SELECT 1 FROM replica WHERE replica.object = ?1 AND replica.node = ?2))";
    let mut files = Vec::new();
    for &object in objects {
        let key = params![object.cast_signed(), node];
        let found = query::find(db, sql, key, |row| {
            Ok((query::unsigned(row, 0)?, row.get(1)?, row.get(2)?))
        })?;
        let Some((ino, part, current)) = found else {
            continue;
        };
        let Some(path) = path_of(db, ino)? else {
            continue;
        };
        files.push(v1::FileOfObject {
            object,
            // The name is that of the current version.
            path: if current { path } else { Vec::new() },
            part,
        });
    }
    Ok(files)
}

/// Schedules the removal of a version, with all names of its file, at time `at`; 0 cancels it.
pub fn set_expiry(db: &Connection, object: u64, at: i64) -> Result<(), Fault> {
    let sql = "UPDATE version SET expires = ?2 WHERE object = ?1";
    query::execute(db, sql, params![object.cast_signed(), at])
}

/// Sets the node of the first replica of a version. Does nothing if the object is no version.
pub(super) fn set_node(db: &Connection, object: u64, node: u32) -> Result<(), Fault> {
    let sql = "UPDATE version SET node = ?2 WHERE object = ?1";
    query::execute(db, sql, params![object.cast_signed(), node])
}

/// Sets the node to which a version is being written.
pub(super) fn set_writing_node(db: &Connection, object: u64, node: i64) -> Result<(), Fault> {
    let sql = "UPDATE writing SET node = ?2 WHERE object = ?1";
    query::execute(db, sql, params![object.cast_signed(), node])
}

/// Returns the time at which a version was sealed, by the server's clock; 0 for an unknown version.
pub fn sealed_at(db: &Connection, object: u64) -> Result<i64, Fault> {
    let sql = "SELECT sealed_at FROM version WHERE object = ?1";
    Ok(query::find(db, sql, [object.cast_signed()], |row| row.get(0))?.unwrap_or(0))
}

/// Returns the path and size of a version, and whether the version is still the current version of its file.
pub fn summary(db: &Connection, object: u64) -> Result<(Vec<u8>, u64, bool), Fault> {
    let sql = "SELECT path, size, removed FROM held WHERE object = ?1";
    Ok(query::find(db, sql, [object.cast_signed()], |row| {
        let size = query::unsigned(row, 1)?;
        Ok((row.get(0)?, size, !row.get::<_, bool>(2)?))
    })?
    .unwrap_or_default())
}
