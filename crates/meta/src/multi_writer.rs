//! Versions that several mounts write. Each mount writes into an object of its own, which is a part of the version, and repeatedly
//! publishes which bytes the mount has written into its part. Where bytes overlap, the later publication counts. The seal of the last part
//! seals the version.

use super::fault::Fault;
use super::ids;
use super::overflow::ClientLocation;
use super::parts::{self, NOWHERE, PartRow};
use super::rules::runs::SHARED;
use super::transaction::{Change, Tx};
use super::version;
use super::vnode::{InodeRecord, NO_NODE};
use crate::Connection;
use crate::query::{execute, exists, find, rows, unsigned};
use rusqlite::{OptionalExtension, params};
use tidemill_model::id::{Inode, NodeId, ObjectId};
use tidemill_model::layout::{
    EXTENTS_MAX, Extent, Extents, Layout, LayoutError, Part, PartPosition, RESERVE_BYTES,
    UNPUBLISHED_MAX, decode_extents, encode_extents,
};
use tidemill_wire::capability::rights;
use tidemill_wire::v1::{self, name_result::Result as Answer};

/// Maximum number of parts of one version: each time a mount opens the file for writing, the version gets another part.
const PARTS_MAX: u32 = 4096;
/// Maximum number of extents before and after publications are merged. The rest of `EXTENTS_MAX` is for the extents in each writer's last
/// publication, which the server never refuses.
const PUBLISHED_MAX: usize = EXTENTS_MAX / 4;
/// Maximum number of extents reserved for last publications when another writer joins. A version may have far more writers at once,
/// but not all of them write everywhere.
const LAST_PUBLICATIONS_MAX: usize = EXTENTS_MAX / 2;
/// Maximum number of extents that one new extent adds to a version, since the new extent may split another extent.
const ADDED_MAX: usize = 2;
/// Maximum number of publications of a version before the publications are merged.
const PUBLICATIONS_MAX: u32 = 4096;
/// Largest size of a file, in bytes.
const SIZE_MAX: u64 = i64::MAX.unsigned_abs();

/// A part of a version that several mounts write; the mount that writes the part has not sealed it yet.
#[derive(Clone, Copy, Debug)]
pub struct WriterPart {
    pub(crate) version: u64,
    part: u64,
    index: u32,
    node: u32,
    session: u64,
    uid: u32,
    /// Number of the part's last publication.
    last_publication: u64,
}

/// Stored state of a version that several mounts write.
#[derive(Clone, Copy, Debug, Default)]
struct StoredVersion {
    size: u64,
    mtime: i64,
    last: u64,
}

/// Publications of a version that several mounts write.
#[derive(Clone, Copy, Debug, Default)]
struct Published {
    publications: u32,
    /// Number of extents in merged publications, and (`apart`) of extents in later publications.
    together: usize,
    apart: usize,
}

impl Published {
    /// Returns the maximum number of extents of the version if it is sealed now.
    fn most(&self) -> usize {
        self.together + ADDED_MAX * self.apart
    }
}

/// Returns version, size and time of the last change of a file that several mounts write; `None` for any other file.
pub fn seen(db: &Connection, ino: u64) -> Result<Option<(u64, u64, i64)>, Fault> {
    let sql = "SELECT layout.object, layout.size, layout.mtime FROM inode CROSS JOIN layout \
               ON layout.object = inode.writing WHERE ino = ?1 AND unit = 0";
    find(db, sql, [ino.cast_signed()], |row| {
        let number = |at| unsigned(row, at);
        Ok((number(0)?, number(1)?, row.get(2)?))
    })
}

/// Returns the encoded extents of a sealed version that several mounts have written.
pub fn extents(db: &Connection, version: u64) -> Result<Vec<u8>, Fault> {
    let mut statement = db
        .sql
        .prepare_cached("SELECT extents FROM layout WHERE object = ?1")?;
    let found = statement.query_row([version.cast_signed()], |row| row.get(0));
    let found: Option<Option<Vec<u8>>> = found.optional()?;
    Ok(found.flatten().unwrap_or_default())
}

/// Returns the layout of a sealed version that several mounts have written, given its parts.
pub(super) fn sealed(db: &Connection, version: u64, parts: Vec<Part>) -> Result<Layout, Fault> {
    let sql = "SELECT size FROM layout WHERE object = ?1";
    let mut statement = db.sql.prepare_cached(sql)?;
    let size: i64 = statement.query_row([version.cast_signed()], |row| row.get(0))?;
    let extents = decode_extents(&extents(db, version)?);
    let extents = extents.and_then(|extents| Extents::of(size.cast_unsigned(), parts, extents));
    Ok(Layout::Extents(extents.map_err(Fault::BadLayout)?))
}

/// Returns whether several mounts write a version that is not sealed.
pub(super) fn is_written(db: &Connection, version: u64) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM layout WHERE object = ?1 AND unit = 0";
    exists(db, sql, [version.cast_signed()])
}

impl Tx<'_> {
    /// Returns the writer's part for an object that is an unsealed part of a version that several mounts write.
    pub fn member(&self, part: u64) -> Result<Option<WriterPart>, Fault> {
        if !self.shared.parts() {
            return Ok(None);
        }
        let sql = "SELECT part.object, seq, part.node, session, last_publication, uid FROM part \
                   CROSS JOIN layout ON layout.object = part.object CROSS JOIN writing ON writing.object = part.part \
                   WHERE part = ?1 AND unit = 0";
        find(self.db, sql, [part.cast_signed()], |row| {
            let number = |at| unsigned(row, at);
            Ok(WriterPart {
                version: number(0)?,
                part,
                index: row.get(1)?,
                node: row.get(2)?,
                session: number(3)?,
                last_publication: number(4)?,
                uid: row.get(5)?,
            })
        })
    }

    /// Returns whether several mounts write a file.
    pub(crate) fn is_multi_writer(&self, vnode: &InodeRecord) -> Result<bool, Fault> {
        Ok(vnode.writing != 0 && self.shared.parts() && is_written(self.db, vnode.writing)?)
    }

    fn need_mount(&self) -> Result<(), Fault> {
        if self.session != 0 && self.caller.administrator {
            return Ok(());
        }
        Err(Fault::Malformed("only mounts write files together"))
    }

    /// Returns the part that a mount writes into a shared version. If the mount has been the only writer so far, the version becomes
    /// shared, and the first `base` bytes of its object count as published.
    fn shared_member(
        &mut self,
        (ino, object): (u64, u64),
        base: Option<u64>,
    ) -> Result<WriterPart, Fault> {
        if let Some(member) = self.member(object)? {
            if member.session != self.session && self.session != 0 {
                return Err(Fault::Stale(object));
            }
            return Ok(member);
        }
        let Some(size) = base else {
            return Err(Fault::Stale(object));
        };
        let mut vnode = InodeRecord::get(self.db, ino)?;
        if vnode.writing != object || self.session_of(object)? != Some(self.session) {
            return Err(Fault::Stale(object));
        }
        let node = self.writing_node(object)?;
        let Some(node) = node.filter(|&node| node != NO_NODE) else {
            return Err(Fault::Malformed("striped files have one writer"));
        };
        if size > SIZE_MAX {
            return Err(Fault::Malformed("no file has as many bytes as that"));
        }
        self.shared.set_parts();
        let version = ids::reserve(self.db, "object", 1)?;
        parts::insert_layout(self.db, version, 0, size)?;
        self.insert_part(version, 0, object, node)?;
        let all = Extent {
            offset: 0,
            length: size,
            at: PartPosition { part: 0, offset: 0 },
        };
        let all: &[Extent] = if size > 0 { &[all] } else { &[] };
        self.insert_publication(version, 1, None, false, all)?;
        self.end_begun(object, SHARED)?;
        vnode.writing = version;
        vnode.update(self.db)?;
        self.changes.push(Change::Vnode(ino));
        self.member(object)?.ok_or(Fault::Stale(object))
    }

    /// Adds another mount to the writers of a version.
    pub(crate) fn join_multi_writer(
        &mut self,
        vnode: &InodeRecord,
        op: &v1::NewVersion,
    ) -> Result<Answer, Fault> {
        let version = vnode.writing;
        let count = self.count_parts(version)?;
        if count >= PARTS_MAX {
            return Err(Fault::Busy(self.called(vnode.ino)));
        }
        self.need_space_for_extents(version)?;
        let near = op.near.filter(|near| {
            let spaces = self.shared.spaces();
            let space = spaces.store.iter().find(|space| space.node.0 == *near);
            space.is_some_and(|space| {
                let takes = space.answers && !space.leaving && !space.memory && !space.burst;
                takes && space.free_bytes >= RESERVE_BYTES
            })
        });
        let directory = self.directory_of(vnode.ino)?;
        let apart = self.nodes_of_parts(version)?;
        let here = ClientLocation {
            here: &op.here,
            apart: &apart,
            object: op.object,
            ..ClientLocation::default()
        };
        let burst = self.placed_in_burst(&directory, here)?;
        let node = match burst.map(|burst| burst.0).or(near) {
            Some(near) => near.into(),
            None => self.place(
                Inode(vnode.ino),
                None,
                &directory,
                ClientLocation::default(),
            )?,
        };
        self.insert_part(version, count, op.object, node)?;
        self.begin_writing_of(op.object, vnode.ino, node)?;
        let member = self.member(op.object)?.ok_or(Fault::Stale(op.object))?;
        self.changes.push(Change::Vnode(vnode.ino));
        self.opened_multi_writer(vnode, &member)
    }

    /// Returns the answer with a capability to write a part.
    pub(crate) fn opened_multi_writer(
        &self,
        vnode: &InodeRecord,
        member: &WriterPart,
    ) -> Result<Answer, Fault> {
        let (node, part) = (member.node, member.part);
        self.shared.hold(self.session, (vnode.ino, part), node);
        let all = rights::READ | rights::WRITE | rights::ATTRIBUTES;
        let Answer::MultiWriter(reported) = self.news(vnode, member.version, 0, Some(member))?
        else {
            return Err(Fault::Stale(part));
        };
        Ok(Answer::Opened(v1::Opened {
            attr: Some(vnode.attr()),
            object: part,
            node,
            capability: self.right_to_write(vnode, node, part, all)?,
            multi_writer: Some(reported),
            ..v1::Opened::default()
        }))
    }

    /// Returns the publications of a version after number `since`, for a mount that uses the version from now on.
    fn news(
        &self,
        vnode: &InodeRecord,
        version: u64,
        since: u64,
        mine: Option<&WriterPart>,
    ) -> Result<Answer, Fault> {
        let news = self.published(vnode, version, since, mine)?;
        self.shared
            .hold(self.session, (vnode.ino, version), NOWHERE);
        Ok(Answer::MultiWriter(news))
    }

    fn published(
        &self,
        vnode: &InodeRecord,
        version: u64,
        since: u64,
        mine: Option<&WriterPart>,
    ) -> Result<v1::MultiWriter, Fault> {
        let whole = self.whole(version)?;
        let (_, rows) = parts::parts(self.db, version)?.ok_or(Fault::Stale(version))?;
        let part = |row: &parts::PartRow| v1::LayoutPart {
            object: row.object,
            node: row.node,
            size: 0,
            capability: self.right(vnode, row.node, row.object, rights::READ | rights::UNSEALED),
        };
        Ok(v1::MultiWriter {
            version,
            last: whole.last,
            size: whole.size,
            mtime: whole.mtime,
            parts: rows.iter().map(part).collect(),
            news: self.publications(version, since)?,
            mine: mine.map_or(0, |member| member.index.into()),
            ..v1::MultiWriter::default()
        })
    }

    /// Answers [`v1::Publications`]: the publications of a version since the caller's last request.
    pub(crate) fn read_publications(&self, op: &v1::Publications) -> Result<Answer, Fault> {
        let mount = self.need_mount().is_ok();
        let vnode = match mount {
            true => InodeRecord::get(self.db, op.ino)?,
            false => self.reach(op.ino)?,
        };
        if !mount {
            self.need_read(&vnode)?;
        }
        if vnode.writing == op.version {
            return match mount {
                true => self.news(&vnode, op.version, op.since, None),
                false => self
                    .published(&vnode, op.version, op.since, None)
                    .map(Answer::MultiWriter),
            };
        }
        let sql = "SELECT size FROM version WHERE object = ?1 AND ino = ?2";
        let key = params![op.version.cast_signed(), op.ino.cast_signed()];
        let size: Option<i64> = find(self.db, sql, key, |row| row.get(0))?;
        let sealed = self.opened_parts(&vnode, op.version, (&[], false), rights::READ)?;
        let (Some(size), Some(sealed)) = (size, sealed) else {
            return Err(Fault::Stale(op.version));
        };
        Ok(Answer::MultiWriter(v1::MultiWriter {
            version: op.version,
            size: size.cast_unsigned(),
            mtime: vnode.mtime,
            sealed: Some(sealed),
            ..v1::MultiWriter::default()
        }))
    }

    /// Returns a capability to read the version that several mounts write; `None` if the file has no such version.
    pub fn open_multi_writer(&self, vnode: &InodeRecord) -> Result<Option<Answer>, Fault> {
        if !self.is_multi_writer(vnode)? {
            return Ok(None);
        }
        self.shared
            .hold(self.session, (vnode.ino, vnode.writing), NOWHERE);
        self.opened_written(vnode).map(Some)
    }

    /// Returns the present state of the version that several mounts write, for reading.
    pub(crate) fn opened_written(&self, vnode: &InodeRecord) -> Result<Answer, Fault> {
        let reported = self.published(vnode, vnode.writing, 0, None)?;
        Ok(Answer::Opened(v1::Opened {
            attr: Some(vnode.attr()),
            object: vnode.writing,
            size: reported.size,
            multi_writer: Some(reported),
            ..v1::Opened::default()
        }))
    }

    /// Records which bytes a mount has written into its part.
    pub fn publish(&mut self, op: &v1::Publish) -> Result<Answer, Fault> {
        self.need_mount()?;
        let mut member = self.shared_member((op.ino, op.object), op.base)?;
        let mut news = false;
        for publication in &op.publications {
            news |= self.record(&mut member, publication)?;
        }
        if news {
            self.merge_if_too_many(member.version)?;
            self.changes.push(Change::Vnode(op.ino));
        }
        let vnode = InodeRecord::get(self.db, op.ino)?;
        self.news(&vnode, member.version, op.since, Some(&member))
    }

    /// Records a publication of a part; returns whether the publication is new.
    fn record(
        &self,
        member: &mut WriterPart,
        publication: &v1::MountPublication,
    ) -> Result<bool, Fault> {
        if publication.number <= member.last_publication {
            return Ok(false);
        }
        let extents = decode_extents(&publication.extents).map_err(Fault::BadLayout)?;
        let cut = publication.cut.map(i64::try_from).transpose();
        let cut = cut.map_err(|_| Fault::Malformed("no file has as many bytes as that"))?;
        let mut end = 0;
        for extent in &extents {
            let fits = extent.end() <= SIZE_MAX && extent.end_within() <= SIZE_MAX;
            if extent.at.part != member.index as usize || !fits {
                return Err(Fault::BadLayout(LayoutError::Extent(extent.offset)));
            }
            end = end.max(extent.end());
        }
        let whole = self.whole(member.version)?;
        let size = publication.cut.unwrap_or_else(|| whole.size.max(end));
        version::set_last_publication(self.db, member.part, publication.number)?;
        let mtime = self.time(publication.mtime);
        parts::set_written_size(self.db, member.version, size, mtime)?;
        member.last_publication = publication.number;
        if !extents.is_empty() || cut.is_some() {
            self.insert_publication(member.version, whole.last + 1, cut, false, &extents)?;
        }
        Ok(true)
    }

    /// Merges the publications of a version if their number exceeds the limit.
    fn merge_if_too_many(&self, version: u64) -> Result<(), Fault> {
        let now = self.published_of(version)?;
        if now.publications <= PUBLICATIONS_MAX && now.together + now.apart <= PUBLISHED_MAX {
            return Ok(());
        }
        match self.put_together(version)? {
            count if count > PUBLISHED_MAX => Err(Fault::TooManyExtents(count)),
            _ => Ok(()),
        }
    }

    /// Checks that another mount may write the version. The version must have space for the last publications of the new writer and of all
    /// present writers; otherwise the server could never seal the version.
    fn need_space_for_extents(&self, version: u64) -> Result<(), Fault> {
        let sql = "SELECT count(*) FROM part CROSS JOIN writing ON writing.object = part.part WHERE part.object = ?1";
        let mut statement = self.db.sql.prepare_cached(sql)?;
        let open: u32 = statement.query_row([version.cast_signed()], |row| row.get(0))?;
        let reserved = ADDED_MAX * UNPUBLISHED_MAX * (open as usize + 1);
        let space = EXTENTS_MAX - reserved.min(LAST_PUBLICATIONS_MAX);
        let now = self.published_of(version)?;
        if now.most() <= space {
            return Ok(());
        }
        let count = match now.apart {
            0 => now.together,
            _ => self.put_together(version)?,
        };
        match count <= space {
            true => Ok(()),
            false => Err(Fault::TooManyExtents(count)),
        }
    }

    fn published_of(&self, version: u64) -> Result<Published, Fault> {
        let sql = "SELECT count(*), coalesce(sum(count) FILTER (WHERE complete), 0), coalesce(sum(count) FILTER (WHERE NOT complete), 0) \
                   FROM publication WHERE version = ?1";
        let mut statement = self.db.sql.prepare_cached(sql)?;
        let published = statement.query_row([version.cast_signed()], |row| {
            let count = |at| row.get::<_, u32>(at).map(|count| count as usize);
            Ok(Published {
                publications: row.get(0)?,
                together: count(1)?,
                apart: count(2)?,
            })
        })?;
        Ok(published)
    }

    /// Merges the publications of a version; returns the number of extents.
    fn put_together(&self, version: u64) -> Result<usize, Fault> {
        let merged = self.merged(version)?;
        let last = self.whole(version)?.last;
        forget_publications(self.db, version)?;
        let all: Vec<Extent> = merged.extents().copied().collect();
        let size = i64::try_from(merged.size).unwrap_or(i64::MAX);
        self.insert_publication(version, last, Some(size), true, &all)?;
        Ok(merged.count())
    }

    fn insert_publication(
        &self,
        version: u64,
        number: u64,
        cut: Option<i64>,
        all: bool,
        extents: &[Extent],
    ) -> Result<(), Fault> {
        let sql = "INSERT INTO publication VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        let row = params![
            version.cast_signed(),
            number.cast_signed(),
            cut,
            all,
            u32::try_from(extents.len()).unwrap_or(u32::MAX),
            encode_extents(extents),
        ];
        execute(self.db, sql, row)
    }

    fn publications(&self, version: u64, since: u64) -> Result<Vec<v1::Publication>, Fault> {
        let sql = "SELECT number, extents, cut, complete FROM publication WHERE version = ?1 AND number > ?2 ORDER BY number";
        let mut statement = self.db.sql.prepare_cached(sql)?;
        let key = params![version.cast_signed(), since.cast_signed()];
        let found = statement.query_map(key, |row| {
            Ok(v1::Publication {
                number: unsigned(row, 0)?,
                extents: row.get(1)?,
                cut: row.get::<_, Option<i64>>(2)?.map(i64::cast_unsigned),
                all: row.get(3)?,
            })
        })?;
        Ok(found.collect::<Result<_, _>>()?)
    }

    fn whole(&self, version: u64) -> Result<StoredVersion, Fault> {
        let sql = "SELECT size, mtime, (SELECT max(number) FROM publication WHERE version = ?1) FROM layout \
                   WHERE object = ?1 AND unit = 0";
        find(self.db, sql, [version.cast_signed()], |row| {
            Ok(StoredVersion {
                size: unsigned(row, 0)?,
                mtime: row.get(1)?,
                last: row.get::<_, Option<i64>>(2)?.unwrap_or(0).cast_unsigned(),
            })
        })?
        .ok_or(Fault::Stale(version))
    }

    /// Returns the layout that results from all publications of a version.
    fn merged(&self, version: u64) -> Result<Extents, Fault> {
        let (_, rows) = parts::parts(self.db, version)?.ok_or(Fault::Stale(version))?;
        let part = |row: &parts::PartRow| Part::on(ObjectId(row.object), 0, NodeId(row.node));
        let mut merged = Extents::with_parts(rows.iter().map(part).collect());
        for publication in self.publications(version, 0)? {
            let extents = decode_extents(&publication.extents).map_err(Fault::BadLayout)?;
            for extent in extents {
                merged.put(extent).map_err(too_many)?;
            }
            if let Some(cut) = publication.cut {
                merged.set_size(cut);
            }
        }
        merged.set_size(self.whole(version)?.size);
        Ok(merged)
    }

    fn insert_part(&self, version: u64, index: u32, part: u64, node: i64) -> Result<(), Fault> {
        let part = PartRow {
            object: part,
            node: u32::try_from(node).unwrap_or(NOWHERE),
            size: None,
        };
        parts::insert_part(self.db, version, index, part)
    }

    /// Returns the nodes that store parts of the version.
    fn nodes_of_parts(&self, version: u64) -> Result<Vec<u32>, Fault> {
        let sql = "SELECT DISTINCT node FROM part WHERE object = ?1 AND node >= 0";
        rows(self.db, sql, [version.cast_signed()], |row| row.get(0))
    }

    fn count_parts(&self, version: u64) -> Result<u32, Fault> {
        let sql = "SELECT coalesce(max(seq) + 1, 0) FROM part WHERE object = ?1";
        let mut statement = self.db.sql.prepare_cached(sql)?;
        Ok(statement.query_row([version.cast_signed()], |row| row.get(0))?)
    }

    /// Returns whether an object is or was a part of a version that several mounts write, and is no longer being written.
    pub(crate) fn was_member(&self, object: u64) -> Result<bool, Fault> {
        let sql = "SELECT 1 FROM part CROSS JOIN layout ON layout.object = part.object WHERE part = ?1 AND unit = 0";
        let mut statement = self.db.sql.prepare_cached(sql)?;
        Ok(self.shared.parts() && statement.exists([object.cast_signed()])?)
    }

    /// Returns the writer's part for an object that is to be sealed, if several mounts write its version. The seal may contain the first
    /// publications of a writer that has published nothing so far.
    pub(crate) fn member_to_seal(&mut self, op: &v1::Seal) -> Result<Option<WriterPart>, Fault> {
        let member = self.member(op.object)?;
        if member.is_some() || op.publications.is_empty() || op.base.is_none() {
            return Ok(member);
        }
        let vnode = InodeRecord::get(self.db, op.ino)?;
        if vnode.writing != op.object {
            return Ok(None);
        }
        self.shared_member((op.ino, op.object), op.base).map(Some)
    }

    /// Seals a part whose bytes are all stored. The seal of the last part also seals the version.
    pub(crate) fn seal_multi_writer(
        &mut self,
        op: &v1::Seal,
        member: &WriterPart,
    ) -> Result<Answer, Fault> {
        let (mut vnode, _) = self.written(op.ino, op.object)?;
        if vnode.writing != member.version {
            return Err(Fault::Stale(op.object));
        }
        let mut member = *member;
        let mut news = false;
        for publication in &op.publications {
            news |= self.record(&mut member, publication)?;
        }
        if news || op.attributes.is_some() {
            self.changes.push(Change::Vnode(op.ino));
        }
        let receipt = op.receipts.first();
        self.check_length(member.part, member.node.into(), op.size, receipt)?;
        parts::set_part_size(self.db, member.part, op.size)?;
        if let Some(attributes) = &op.attributes {
            self.change_attributes(&mut vnode, attributes)?;
        }
        self.leave_multi_writer(&mut vnode, &member, &op.replicas)
    }

    /// Aborts a part that will not be sealed. Bytes that were published in the part become holes. A part without publications is removed
    /// only by the seal of the last part, since mounts identify the later parts by their numbers.
    pub(crate) fn abandon_multi_writer(
        &mut self,
        op: &v1::Abandon,
        member: &WriterPart,
    ) -> Result<Answer, Fault> {
        let (mut vnode, _) = self.written(op.ino, op.object)?;
        self.leave_multi_writer(&mut vnode, member, "")
    }

    fn leave_multi_writer(
        &mut self,
        vnode: &mut InodeRecord,
        member: &WriterPart,
        replicas: &str,
    ) -> Result<Answer, Fault> {
        self.end_writing(member.part)?;
        self.shared.release(self.session, vnode.ino, member.part);
        let sql = "SELECT 1 FROM part CROSS JOIN writing ON writing.object = part.part WHERE part.object = ?1";
        let others = exists(self.db, sql, [member.version.cast_signed()])?;
        if others || vnode.nlink == 0 {
            if !others {
                self.drop_unsealed(vnode)?;
                vnode.writing = 0;
            }
            vnode.update(self.db)?;
            self.changes.push(Change::Closed(vnode.ino));
            self.purge_if_orphan(vnode)?;
            return Ok(Answer::Attr(vnode.attr()));
        }
        let (size, mtime) = self.seal_extents(member.version)?;
        self.make_current(
            vnode,
            (member.version, NO_NODE),
            (size, mtime),
            (member.uid, replicas),
        )
    }

    /// Stores the layout of a version whose parts are all sealed. Returns the version's size and the time of its last change.
    fn seal_extents(&self, version: u64) -> Result<(u64, i64), Fault> {
        let mut merged = self.merged(version)?;
        let whole = self.whole(version)?;
        let (_, rows) = parts::parts(self.db, version)?.ok_or(Fault::Stale(version))?;
        for (part, row) in merged.parts.iter_mut().zip(&rows) {
            part.size = row.size.unwrap_or(0);
        }
        merged.cut_to_parts();
        let gone = merged.prune();
        forget_publications(self.db, version)?;
        parts::seal_empty_parts(self.db, version)?;
        if !gone.is_empty() {
            let node = |part: &Part| part.replicas.first().map_or(0, |replica| replica.node.0);
            for part in &gone {
                parts::delete_part(self.db, part.object.0)?;
                self.drop_object(part.object.0, node(part).into())?;
            }
            // In ascending order, so that no number is used twice.
            for (index, part) in (0_u32..).zip(&merged.parts) {
                parts::set_index(self.db, part.object.0, index)?;
            }
        }
        let extents = encode_extents(merged.extents());
        parts::set_extents(self.db, version, merged.size, &extents)?;
        Ok((merged.size, whole.mtime))
    }
}

/// Deletes the publications of a version.
pub(super) fn forget_publications(db: &Connection, version: u64) -> Result<(), Fault> {
    let sql = "DELETE FROM publication WHERE version = ?1";
    execute(db, sql, [version.cast_signed()])
}

fn too_many(error: LayoutError) -> Fault {
    match error {
        LayoutError::Extents(count) => Fault::TooManyExtents(count),
        other => Fault::BadLayout(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vnode::Caller;
    use crate::{Names as _, NamesRequest, SqliteNames};
    use rustix::io::Errno;
    use tidemill_model::layout::PartOf;
    use tidemill_wire::v1::name_op::Op;

    /// A namespace with a node and counters for object ids, for the tests of this module.
    struct MultiWriterBench {
        names: SqliteNames,
        next: u64,
        _directory: tempfile::TempDir,
    }

    impl MultiWriterBench {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let names = SqliteNames::open(&directory.path().join("server.db"), (0, 0)).unwrap();
            names.add_node(NodeId(3));
            let all = names
                .database()
                .write_blocking(|db| ids::reserve_for(db, &Caller::root(), 2, 100));
            Self {
                names,
                next: all.unwrap().1,
                _directory: directory,
            }
        }

        fn object(&mut self) -> u64 {
            self.next += 1;
            self.next - 1
        }

        fn ask(&self, session: u64, op: Op) -> Result<Answer, Errno> {
            self.ask_as(Caller::root(), session, op)
        }

        fn ask_as(&self, caller: Caller, session: u64, op: Op) -> Result<Answer, Errno> {
            let request = NamesRequest {
                caller,
                session,
                ops: vec![v1::NameOp { op: Some(op) }],
                ..NamesRequest::default()
            };
            match self.names.apply_blocking(request).unwrap().remove(0).result {
                Some(Answer::Error(error)) => Err(Errno::from_raw_os_error(error.errno)),
                answer => Ok(answer.unwrap()),
            }
        }

        /// Returns the receipt of the node for an object.
        fn receipt(&self, object: u64, size: u64) -> Vec<u8> {
            let key = self.names.shared().key();
            key.receipt(NodeId(3), ObjectId(object), size)
        }

        /// Creates a file that session 5 writes; returns the file's inode and object.
        fn create(&mut self) -> (u64, u64) {
            let object = self.object();
            let create = v1::Create {
                parent: 1,
                name: b"f".to_vec(),
                kind: v1::Kind::File.into(),
                mode: 0o644,
                ino: 2,
                object,
                ..v1::Create::default()
            };
            match self.ask(5, Op::Create(create)).unwrap() {
                Answer::Opened(opened) => (opened.attr.unwrap().ino, object),
                other => panic!("{other:?}"),
            }
        }

        fn publish(
            &self,
            (session, ino, object): (u64, u64, u64),
            base: Option<u64>,
            publications: Vec<v1::MountPublication>,
        ) -> Result<v1::MultiWriter, Errno> {
            let publish = v1::Publish {
                ino,
                object,
                publications,
                since: 0,
                base,
            };
            self.ask(session, Op::Publish(publish)).map(multi_writer)
        }

        /// Adds another session as a writer of the file; returns the session's object.
        fn join(&mut self, session: u64, ino: u64) -> (u64, v1::MultiWriter) {
            self.try_join(session, ino).unwrap()
        }

        fn try_join(&mut self, session: u64, ino: u64) -> Result<(u64, v1::MultiWriter), Errno> {
            let object = self.object();
            let new = v1::NewVersion {
                ino,
                object,
                ..v1::NewVersion::default()
            };
            match self.ask(session, Op::NewVersion(new))? {
                Answer::Opened(opened) => Ok((object, opened.multi_writer.unwrap())),
                other => panic!("{other:?}"),
            }
        }

        fn seal(
            &self,
            (session, ino, object): (u64, u64, u64),
            size: u64,
            publications: Vec<v1::MountPublication>,
        ) -> Result<v1::Attr, Errno> {
            let seal = v1::Seal {
                ino,
                object,
                size,
                publications,
                receipts: vec![self.receipt(object, size)],
                ..v1::Seal::default()
            };
            match self.ask(session, Op::Seal(seal))? {
                Answer::Attr(attr) => Ok(attr),
                other => panic!("{other:?}"),
            }
        }

        fn layout(&self, attr: &v1::Attr) -> Extents {
            let object = attr.object;
            let layout = self.names.database().read(|db| parts::sealed(db, object));
            match layout.unwrap() {
                Some(Layout::Extents(extents)) => extents,
                other => panic!("{other:?}"),
            }
        }

        fn removed(&self) -> Vec<u64> {
            self.objects("SELECT object FROM replica WHERE want = 2 AND node >= 0 ORDER BY object")
        }

        fn objects(&self, sql: &str) -> Vec<u64> {
            let found = self.names.database().read(|db| {
                let mut statement = db.sql.prepare(sql)?;
                let rows = statement.query_map([], |row| row.get::<_, i64>(0))?;
                Ok(rows.map(|row| row.unwrap().cast_unsigned()).collect())
            });
            found.unwrap()
        }
    }

    fn multi_writer(answer: Answer) -> v1::MultiWriter {
        match answer {
            Answer::MultiWriter(reported) => reported,
            other => panic!("{other:?}"),
        }
    }

    fn extent(offset: u64, length: u64, part: usize, at: u64) -> Extent {
        let at = PartPosition { part, offset: at };
        Extent { offset, length, at }
    }

    fn publication(number: u64, extents: &[Extent]) -> v1::MountPublication {
        v1::MountPublication {
            number,
            extents: encode_extents(extents),
            cut: None,
            mtime: 0,
        }
    }

    #[test]
    fn multi_writer_publication_repeated_has_no_second_effect() {
        let mut bench = MultiWriterBench::new();
        let (ino, one) = bench.create();
        bench.publish((5, ino, one), Some(10), vec![]).unwrap();
        let (two, seen) = bench.join(6, ino);
        assert_eq!((seen.size, seen.mine), (10, 1));
        let first = publication(1, &[extent(0, 4, 0, 10)]);
        let news = bench.publish((5, ino, one), Some(10), vec![first.clone()]);
        assert_eq!(news.unwrap().size, 10);
        let over = publication(1, &[extent(2, 20, 1, 0)]);
        assert_eq!(
            bench.publish((6, ino, two), None, vec![over]).unwrap().size,
            22
        );
        let again = bench.publish((5, ino, one), Some(10), vec![first]).unwrap();
        assert_eq!(again.news.len(), 3, "{again:?}");
        let open = bench.seal((5, ino, one), 14, vec![]).unwrap();
        assert!(open.writing && open.version == 0, "{open:?}");
        let attr = bench.seal((6, ino, two), 20, vec![]).unwrap();
        assert_eq!((attr.size, attr.version, attr.parts), (22, 1, true));
        let list: Vec<Extent> = bench.layout(&attr).extents().copied().collect();
        assert_eq!(list, [extent(0, 2, 0, 10), extent(2, 20, 1, 0)]);
        // A publication after the seal is refused.
        let late = bench.publish(
            (6, ino, two),
            None,
            vec![publication(2, &[extent(0, 1, 1, 0)])],
        );
        assert_eq!(late, Err(Errno::STALE));
        // A repeated seal whose answer was lost receives the same answer, also for a part that was sealed before other writers
        // continued.
        for (session, object, size) in [(5, one, 14), (6, two, 20)] {
            assert_eq!(bench.seal((session, ino, object), size, vec![]), Ok(attr));
        }
    }

    #[test]
    fn multi_writer_seal_without_publication_adds_all_extents() {
        let mut bench = MultiWriterBench::new();
        let (ino, one) = bench.create();
        let seal = v1::Seal {
            ino,
            object: one,
            size: 30,
            receipts: vec![bench.receipt(one, 30)],
            publications: vec![publication(1, &[extent(5, 20, 0, 10)])],
            base: Some(10),
            ..v1::Seal::default()
        };
        let attr = match bench.ask(5, Op::Seal(seal)).unwrap() {
            Answer::Attr(attr) => attr,
            other => panic!("{other:?}"),
        };
        assert_eq!((attr.size, attr.version), (25, 1));
        let list: Vec<Extent> = bench.layout(&attr).extents().copied().collect();
        assert_eq!(list, [extent(0, 5, 0, 0), extent(5, 20, 0, 10)]);
    }

    /// A capability to write a part names the part's file, so the inode number of another file gives nobody that capability.
    #[test]
    fn new_version_request_for_other_file_gets_no_capability_for_part() {
        let mut bench = MultiWriterBench::new();
        let (ino, one) = bench.create();
        bench.publish((5, ino, one), Some(0), vec![]).unwrap();
        let (two, _) = bench.join(6, ino);
        let create = v1::Create {
            parent: 1,
            name: b"theirs".to_vec(),
            kind: v1::Kind::File.into(),
            mode: 0o600,
            ino: ino + 1,
            object: bench.object(),
            ..v1::Create::default()
        };
        let created = bench.ask(7, Op::Create(create)).unwrap();
        let Answer::Opened(theirs) = created else {
            panic!("{created:?}");
        };
        let again = |ino| {
            let new = v1::NewVersion {
                ino,
                object: two,
                ..v1::NewVersion::default()
            };
            bench.ask(6, Op::NewVersion(new))
        };
        let Ok(Answer::Opened(opened)) = again(ino) else {
            panic!("the same request again is refused");
        };
        let signed = bench.names.shared().key().read(&opened.capability).unwrap();
        let signed = signed.attributes.unwrap();
        let part = PartOf::from_bytes(&signed.part.unwrap()).unwrap();
        let version = ObjectId(opened.multi_writer.unwrap().version);
        assert_eq!((signed.inode, part.version, part.index), (ino, version, 1));
        let refused = again(theirs.attr.unwrap().ino);
        assert_eq!(refused, Err(Errno::STALE));
    }

    #[test]
    fn multi_writer_publication_of_invalid_extents_is_refused() {
        let mut bench = MultiWriterBench::new();
        let (ino, one) = bench.create();
        bench.publish((5, ino, one), Some(0), vec![]).unwrap();
        let (two, before) = bench.join(6, ino);
        let big = i64::MAX.unsigned_abs();
        let garbage = v1::MountPublication {
            number: 1,
            extents: vec![0xff; 40],
            ..v1::MountPublication::default()
        };
        let cut = v1::MountPublication {
            number: 1,
            cut: Some(big + 1),
            ..v1::MountPublication::default()
        };
        for wrong in [
            publication(1, &[extent(0, 4, 0, 0)]),
            publication(1, &[extent(0, 4, 7, 0)]),
            publication(1, &[extent(big, 4, 1, 0)]),
            publication(1, &[extent(0, 4, 1, big)]),
            garbage,
            cut,
        ] {
            let good = publication(1, &[extent(0, 4, 1, 0)]);
            let both = vec![good, v1::MountPublication { number: 2, ..wrong }];
            let refused = bench.publish((6, ino, two), None, both);
            assert_eq!(refused, Err(Errno::INVAL));
        }
        let after = bench.publish((6, ino, two), None, vec![]).unwrap();
        assert_eq!((after.size, after.last), (before.size, before.last));
        // Another mount's part, an object that is no part, and a client that is not a mount.
        let mine = vec![publication(1, &[extent(0, 4, 1, 0)])];
        assert_eq!(
            bench.publish((5, ino, two), None, mine.clone()),
            Err(Errno::STALE)
        );
        assert_eq!(
            bench.publish((5, ino, 9999), Some(3), vec![]),
            Err(Errno::STALE)
        );
        assert_eq!(bench.publish((0, ino, two), None, mine), Err(Errno::INVAL));
    }

    #[test]
    fn multi_writer_seal_makes_missing_bytes_holes_and_drops_empty_parts() {
        let mut bench = MultiWriterBench::new();
        let (ino, one) = bench.create();
        bench.publish((5, ino, one), Some(100), vec![]).unwrap();
        let (two, _) = bench.join(6, ino);
        let (three, _) = bench.join(7, ino);
        let over = vec![publication(1, &[extent(0, 100, 1, 0)])];
        bench.publish((6, ino, two), None, over).unwrap();
        bench.seal((5, ino, one), 100, vec![]).unwrap();
        // The part of the disconnected writer is shorter than its publications; another writer abandons its part.
        bench.seal((0, ino, two), 60, vec![]).unwrap();
        let abandon = v1::Abandon { ino, object: three };
        let attr = match bench.ask(7, Op::Abandon(abandon)).unwrap() {
            Answer::Attr(attr) => attr,
            other => panic!("{other:?}"),
        };
        assert_eq!((attr.size, attr.version), (100, 1));
        let layout = bench.layout(&attr);
        let list: Vec<Extent> = layout.extents().copied().collect();
        assert_eq!(list, [extent(0, 60, 0, 0)]);
        assert_eq!(layout.parts[0].object.0, two);
        assert_eq!(bench.removed(), [one, three]);
    }

    #[test]
    fn multi_writer_abort_of_part_keeps_numbers_of_other_parts() {
        let mut bench = MultiWriterBench::new();
        let (ino, one) = bench.create();
        bench.publish((5, ino, one), Some(100), vec![]).unwrap();
        let (two, _) = bench.join(6, ino);
        let (three, _) = bench.join(7, ino);
        let abandon = v1::Abandon { ino, object: two };
        bench.ask(6, Op::Abandon(abandon)).unwrap();
        let (four, seen) = bench.join(8, ino);
        let parts: Vec<u64> = seen.parts.iter().map(|part| part.object).collect();
        assert_eq!((parts, seen.mine), (vec![one, two, three, four], 3));
        let over = vec![publication(1, &[extent(0, 10, 2, 0)])];
        bench.publish((7, ino, three), None, over).unwrap();
        bench.seal((5, ino, one), 100, vec![]).unwrap();
        bench.seal((7, ino, three), 10, vec![]).unwrap();
        let over = vec![publication(1, &[extent(10, 10, 3, 0)])];
        let attr = bench.seal((8, ino, four), 10, over).unwrap();
        let layout = bench.layout(&attr);
        let parts: Vec<u64> = layout.parts.iter().map(|part| part.object.0).collect();
        assert_eq!(parts, [one, three, four]);
        assert_eq!(bench.removed(), [two]);
    }

    #[test]
    fn merged_publications_are_sent_completely_to_reader_with_old_state() {
        let mut bench = MultiWriterBench::new();
        let (ino, one) = bench.create();
        bench.publish((5, ino, one), Some(0), vec![]).unwrap();
        let (two, _) = bench.join(6, ino);
        let mut last = 0;
        for number in 1..=u64::from(PUBLICATIONS_MAX) + 2 {
            let one = extent((number * 7) % 1000, 10, 1, number * 10);
            let publish = v1::Publish {
                ino,
                object: two,
                publications: vec![publication(number, &[one])],
                since: last,
                base: None,
            };
            last = multi_writer(bench.ask(6, Op::Publish(publish)).unwrap()).last;
        }
        let all = bench.publish((6, ino, two), None, vec![]).unwrap();
        assert!(all.news.len() < 10 && all.news[0].all, "{}", all.news.len());
        assert_eq!(all.last, last);
        bench.seal((5, ino, one), 0, vec![]).unwrap();
        let attr = bench.seal((6, ino, two), 1 << 20, vec![]).unwrap();
        let layout = bench.layout(&attr);
        // Each byte is from the latest publication that covers it.
        let newest = |byte: u64| {
            let numbers = 1..=u64::from(PUBLICATIONS_MAX) + 2;
            let start = |number: u64| (number * 7) % 1000;
            let covers = |number: &u64| (start(*number)..start(*number) + 10).contains(&byte);
            let number = numbers.rev().find(covers)?;
            Some(number * 10 + byte - start(number))
        };
        for byte in 0..attr.size {
            let here = layout.within(byte..byte + 1).next();
            assert_eq!(here.map(|extent| extent.at.offset), newest(byte), "{byte}");
        }
    }

    /// Each writer publishes as many extents as allowed with its seal, all between extents of others. Then another writer opens the file.
    #[test]
    fn multi_writer_open_with_too_many_extents_fails_and_seal_succeeds() {
        const WORD: u64 = UNPUBLISHED_MAX as u64;
        let mut bench = MultiWriterBench::new();
        let (ino, one) = bench.create();
        let base = 4 * EXTENTS_MAX as u64;
        bench.publish((5, ino, one), Some(base), vec![]).unwrap();
        let every_second = |writer: u64, part: usize, from: u64| {
            let one = |at| extent(2 * (writer * WORD + at) + 1, 1, part, from + at);
            vec![publication(1, &(0..WORD).map(one).collect::<Vec<_>>())]
        };
        let mut writers = 0;
        let refused = loop {
            let (two, seen) = match bench.try_join(6, ino) {
                Ok(joined) => joined,
                Err(refused) => break refused,
            };
            let publications = every_second(writers, usize::try_from(seen.mine).unwrap(), 0);
            bench.seal((6, ino, two), WORD, publications).unwrap();
            writers += 1;
        };
        assert_eq!((refused, writers), (Errno::FBIG, 30));
        let publications = every_second(writers, 0, base);
        let attr = bench
            .seal((5, ino, one), base + WORD, publications)
            .unwrap();
        assert_eq!((attr.version, attr.writing), (1, false));
        assert_eq!(bench.layout(&attr).count(), 2 * 31 * UNPUBLISHED_MAX + 1);
    }

    #[test]
    fn multi_writer_file_rewrite_or_removal_deletes_burst_tier_records() {
        let tier = "SELECT object FROM replica WHERE tier IS NOT NULL ORDER BY object";
        for again in [false, true] {
            let mut bench = MultiWriterBench::new();
            let shared = bench.names.shared().clone();
            shared.bursts.set([3].into());
            shared.nodes.set_moving();
            let (ino, one) = bench.create();
            bench.publish((5, ino, one), Some(10), vec![]).unwrap();
            let (two, _) = bench.join(6, ino);
            bench.seal((5, ino, one), 10, vec![]).unwrap();
            let over = vec![publication(1, &[extent(10, 10, 1, 0)])];
            bench.seal((6, ino, two), 10, over).unwrap();
            assert_eq!(bench.objects(tier), [one, two]);
            for session in [5, 6] {
                shared.end_session(session);
            }
            if again {
                let (three, new) = (bench.object(), v1::NewVersion::default());
                let object = three;
                let new = v1::NewVersion { ino, object, ..new };
                bench.ask(5, Op::NewVersion(new)).unwrap();
                bench.seal((5, ino, three), 4, vec![]).unwrap();
                assert_eq!(bench.objects(tier), [three]);
            } else {
                let unlink = v1::Unlink {
                    parent: 1,
                    name: b"f".to_vec(),
                    ..v1::Unlink::default()
                };
                bench.ask(5, Op::Unlink(unlink)).unwrap();
                assert_eq!(bench.objects(tier), [0; 0]);
            }
        }
    }

    #[test]
    fn multi_writer_publication_without_access_to_file_is_refused() {
        let mut bench = MultiWriterBench::new();
        let (ino, one) = bench.create();
        let version = bench.publish((5, ino, one), Some(10), vec![]);
        let version = version.unwrap().version;
        let (two, _) = bench.join(6, ino);
        let publications = |bench: &MultiWriterBench| {
            let caller = Caller {
                uid: 7,
                gid: 7,
                ..Caller::default()
            };
            let publications = v1::Publications {
                ino,
                version,
                ..v1::Publications::default()
            };
            bench
                .ask_as(caller, 0, Op::Publications(publications))
                .map(multi_writer)
        };
        let root = |bench: &MultiWriterBench, mode| {
            let chmod = v1::SetAttr {
                ino: Inode::ROOT.0,
                mode: Some(mode),
                ..v1::SetAttr::default()
            };
            bench.ask(5, Op::SetAttr(chmod)).unwrap();
        };
        for sealed in [false, true] {
            if sealed {
                bench.seal((5, ino, one), 10, vec![]).unwrap();
                let over = vec![publication(1, &[extent(10, 10, 1, 0)])];
                bench.seal((6, ino, two), 10, over).unwrap();
            }
            root(&bench, 0o700);
            assert_eq!(publications(&bench), Err(Errno::ACCESS), "sealed: {sealed}");
            root(&bench, 0o711);
            let reported = publications(&bench).unwrap();
            assert_eq!(reported.sealed.is_some(), sealed, "{reported:?}");
        }
    }

    #[test]
    fn unlink_during_write_of_several_mounts_leaves_no_rows() {
        let mut bench = MultiWriterBench::new();
        let (ino, one) = bench.create();
        bench.publish((5, ino, one), Some(10), vec![]).unwrap();
        let (two, _) = bench.join(6, ino);
        let unlink = v1::Unlink {
            parent: 1,
            name: b"f".to_vec(),
            directory: false,
            time: 0,
        };
        bench.ask(5, Op::Unlink(unlink)).unwrap();
        let publications = vec![publication(1, &[extent(0, 4, 1, 0)])];
        bench.publish((6, ino, two), None, publications).unwrap();
        for (session, object) in [(5, one), (6, two)] {
            let abandon = v1::Abandon { ino, object };
            bench.ask(session, Op::Abandon(abandon)).unwrap();
        }
        for session in [5, 6] {
            let shared = bench.names.shared();
            shared.end_session(session);
        }
        let shared = bench.names.shared().clone();
        let let_go = bench
            .names
            .database()
            .write_blocking(move |db| parts::let_go(db, (i64::MAX, 0), &shared, 1));
        let_go.unwrap();
        assert_eq!(bench.removed(), [one, two]);
        let rows = bench.names.database().read(|db| {
            let sql = "SELECT (SELECT count(*) FROM layout) + (SELECT count(*) FROM part) \
                       + (SELECT count(*) FROM publication) + (SELECT count(*) FROM writing)";
            Ok(db.sql.query_row(sql, [], |row| row.get::<_, i64>(0))?)
        });
        assert_eq!(rows.unwrap(), 0);
    }
}
