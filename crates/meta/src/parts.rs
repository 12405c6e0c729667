//! Versions that consist of several objects (striped versions). The object of the version itself is on no node (`NO_NODE` in `inode` and
//! `version`); all other tables use its id for the version. The parts of the version are rows of `part`: objects with nodes and replicas
//! like the objects of other versions.

use super::attribute::DIRECTORY_STRIPES;
use super::fault::Fault;
use super::ids;
use super::multi_writer;
use super::placement::{self, removals, replicas};
use super::rules;
use super::shared::NamesShared;
use super::transaction::Tx;
use super::vnode::{InodeRecord, NO_NODE};
use crate::Connection;
use crate::query::{execute, find, unsigned};
use rusqlite::{OptionalExtension, params};
use std::str::FromStr;
use tidemill_model::id::{Inode, NodeId, ObjectId};
use tidemill_model::layout::{self, Layout, LayoutError, Part, PartOf, StripedLayout, Stripes};
use tidemill_wire::capability::rights;
use tidemill_wire::v1;

/// Node recorded for a client that holds a version of several objects: none.
pub const NOWHERE: u32 = u32::MAX;
/// Value of the column `part.size` for a part that is not sealed.
const UNSEALED: i64 = -1;
/// Maximum number of versions whose parts are released in one transaction.
const LET_GO_MAX: usize = 256;

impl Tx<'_> {
    /// Returns the striping of a new version of a file in a directory: the requested striping, else the directory's, else that of the
    /// file's previous version; `None` for a version that is one object.
    pub(crate) fn stripes_wanted(
        &self,
        (asked, node): (Option<&v1::Stripes>, Option<u32>),
        dir: impl FnOnce() -> Result<InodeRecord, Fault>,
        before: Option<&InodeRecord>,
    ) -> Result<Option<Stripes>, Fault> {
        if let Some(asked) = asked {
            if asked.unit == 0 {
                return Ok(None);
            }
            let stripes = Stripes {
                unit: asked.unit,
                width: asked.width as usize,
            };
            return Ok(Some(stripes.checked().map_err(Fault::BadLayout)?));
        }
        if node.is_some() {
            return Ok(None);
        }
        if self.shared.directory_stripes()
            && let Some(Striping(reported)) =
                self.directory_attribute(&dir()?, DIRECTORY_STRIPES)?
        {
            return Ok(reported);
        }
        let Some(before) = before.filter(|vnode| vnode.has_parts()) else {
            return Ok(None);
        };
        let found = parts(self.db, before.object)?;
        // The next version of a file that several mounts wrote is one object again.
        let found = found.filter(|(unit, _)| *unit > 0);
        Ok(found.map(|(unit, parts)| Stripes {
            unit,
            width: parts.len(),
        }))
    }

    /// Creates the parts of a version that is about to be written. Returns the node of the version's own object, which is `NO_NODE`.
    pub(crate) fn begin_parts(
        &self,
        ino: u64,
        object: u64,
        stripes: Stripes,
    ) -> Result<i64, Fault> {
        self.shared.set_parts();
        let spaces = self.shared.spaces();
        let nodes = layout::place_stripes(Inode(ino), stripes.width, &spaces.store);
        let nodes = nodes.map_err(|error| self.shared.resume(error, &spaces))?;
        insert_layout(self.db, object, stripes.unit, 0)?;
        let first = ids::reserve(self.db, "object", nodes.len() as u64)?;
        for (index, node) in (0_u32..).zip(nodes) {
            let part = PartRow {
                object: first + u64::from(index),
                node: node.0,
                size: None,
            };
            insert_part(self.db, object, index, part)?;
        }
        Ok(NO_NODE)
    }

    /// Makes sealed objects the parts of a version.
    pub(crate) fn lay_out(&self, object: ObjectId, striped: &StripedLayout) -> Result<(), Fault> {
        insert_parts(self.db, self.shared, object.0, (striped, true))
    }

    /// Returns the layout of a version for a client, with capabilities for the parts; `None` for a version that is one object. With
    /// `corrupt`, the layout includes the corrupt replicas of parts without an intact replica.
    pub(crate) fn opened_parts(
        &self,
        vnode: &InodeRecord,
        object: u64,
        (avoid, corrupt): (&[u32], bool),
        rights: u32,
    ) -> Result<Option<v1::Layout>, Fault> {
        let Some((unit, parts)) = parts(self.db, object)? else {
            return Ok(None);
        };
        let writes = rights & rights::WRITE != 0;
        let reported = |part: &PartRow| {
            let node = match writes {
                true => part.node,
                false => match self.readable(part.object, part.node, avoid) {
                    Err(Fault::CorruptFile(..)) if corrupt => {
                        self.corrupt_on(part.object)?.unwrap_or(part.node)
                    }
                    node => node?,
                },
            };
            Ok(v1::LayoutPart {
                object: part.object,
                node,
                size: part.size.unwrap_or(0),
                capability: match writes {
                    true => self.right_to_write(vnode, node, part.object, rights)?,
                    false => self.right(vnode, node, part.object, rights),
                },
            })
        };
        let parts = parts.iter().map(reported).collect::<Result<_, Fault>>()?;
        let extents = match unit {
            0 => multi_writer::extents(self.db, object)?,
            _ => Vec::new(),
        };
        Ok(Some(v1::Layout {
            unit,
            parts,
            extents,
        }))
    }

    /// Records the sizes of the parts of an unfinished version; returns the size of the file in bytes.
    pub(crate) fn seal_parts(&self, op: &v1::Seal) -> Result<u64, Fault> {
        let (object, sizes) = (op.object, &op.parts);
        let Some((unit, parts)) = parts(self.db, object)? else {
            return Err(Fault::Stale(object));
        };
        if sizes.len() != parts.len() {
            return Err(Fault::Malformed(
                "a version of several objects is sealed with the size of each",
            ));
        }
        let receipts = op.receipts.iter().map(Some).chain(std::iter::repeat(None));
        for ((part, &size), receipt) in parts.iter().zip(sizes).zip(receipts) {
            // A part of a lost writer was sealed before.
            if part.size != Some(size) {
                self.check_length(part.object, part.node.into(), size, receipt)?;
                set_part_size(self.db, part.object, size)?;
            }
        }
        let size = StripedLayout::size_of(unit, sizes).and_then(|size| i64::try_from(size).ok());
        size.map(i64::cast_unsigned)
            .ok_or(Fault::Malformed("no file has as many bytes as that"))
    }

    /// Seals one part of an unfinished version whose writer is no longer alive. Returns the version, and the sizes of all parts if all
    /// parts are sealed.
    pub(crate) fn seal_part(&self, op: &v1::Seal) -> Result<Option<Half>, Fault> {
        let part = op.object;
        let Some(version) = version_of(self.db, part)? else {
            return Ok(None);
        };
        let mut all = parts(self.db, version)?.map_or_else(Vec::new, |(_, parts)| parts);
        let row = all.iter_mut().find(|row| row.object == part);
        let row = row.ok_or(Fault::Stale(part))?;
        self.check_length(part, row.node.into(), op.size, op.receipts.first())?;
        set_part_size(self.db, part, op.size)?;
        row.size = Some(op.size);
        let sizes: Option<Vec<u64>> = all.iter().map(|part| part.size).collect();
        Ok(Some(Half { version, sizes }))
    }

    /// Returns the layout of a version: the nodes and replicas of each part.
    pub(crate) fn layout_of(&self, vnode: &InodeRecord) -> Result<Layout, Fault> {
        let others = |part: &mut Part| -> Result<(), Fault> {
            let all = replicas::all(self.db, part.object.0, part.replicas[0].node)?.into_iter();
            let all = all.map(|(node, state)| layout::Replica { node, state });
            part.replicas = all.collect();
            Ok(())
        };
        let Some((unit, rows)) = parts(self.db, vnode.object)? else {
            let node = NodeId(vnode.node().unwrap_or(0));
            let mut part = Part::on(ObjectId(vnode.object), vnode.size, node);
            others(&mut part)?;
            return Ok(Layout::Whole(part));
        };
        let mut parts = Vec::new();
        for row in rows {
            let size = row.size.unwrap_or(0);
            let mut part = Part::on(ObjectId(row.object), size, NodeId(row.node));
            others(&mut part)?;
            parts.push(part);
        }
        if unit == 0 {
            return multi_writer::sealed(self.db, vnode.object, parts);
        }
        Ok(Layout::Striped(StripedLayout {
            unit,
            size: vnode.size,
            parts,
        }))
    }

    /// Returns the node of the first part of a version.
    pub fn first_part(&self, object: u64) -> Option<u32> {
        let (_, parts) = parts(self.db, object).ok()??;
        parts.first().map(|part| part.node)
    }

    /// Returns the striping of a file in the notation of the directory attribute; `None` if the file is not striped.
    pub(crate) fn stripes_of(&self, vnode: &InodeRecord) -> Result<Option<String>, Fault> {
        let parts = parts(self.db, vnode.object)?.filter(|(unit, _)| *unit > 0);
        Ok(parts.map(|(unit, parts)| {
            let width = parts.len();
            Stripes { unit, width }.to_string()
        }))
    }
}

/// Value of the directory attribute for striping; `None` for the value `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Striping(Option<Stripes>);

impl FromStr for Striping {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, LayoutError> {
        if text == "off" {
            return Ok(Self(None));
        }
        text.parse().map(|stripes| Self(Some(stripes)))
    }
}

/// A version with a part that was sealed for a writer that is no longer alive.
#[derive(Clone, Debug)]
pub struct Half {
    pub(crate) version: u64,
    /// Sizes of all parts of the version in bytes; `None` if a part is not sealed.
    pub sizes: Option<Vec<u64>>,
}

/// A row of the table `part`.
#[derive(Clone, Copy, Debug)]
pub struct PartRow {
    /// Object that has the bytes of the part.
    pub object: u64,
    /// Node that stores the first replica of the part.
    pub node: u32,
    /// Size of the part in bytes; `None` if the part is not sealed.
    pub size: Option<u64>,
}

/// Returns the stripe unit and the parts of a version; `None` for a version that is one object.
pub fn parts(db: &Connection, object: u64) -> Result<Option<(u64, Vec<PartRow>)>, Fault> {
    let mut statement = db
        .sql
        .prepare_cached("SELECT unit FROM layout WHERE object = ?1")?;
    let unit = statement.query_row([object.cast_signed()], |row| row.get::<_, i64>(0));
    let Some(unit) = unit.optional()? else {
        return Ok(None);
    };
    let sql = "SELECT part, node, size FROM part WHERE object = ?1 ORDER BY seq";
    let mut statement = db.sql.prepare_cached(sql)?;
    let rows = statement.query_map([object.cast_signed()], |row| {
        Ok(PartRow {
            object: unsigned(row, 0)?,
            node: row.get(1)?,
            size: u64::try_from(row.get::<_, i64>(2)?).ok(),
        })
    })?;
    Ok(Some((
        unit.cast_unsigned(),
        rows.collect::<Result<_, _>>()?,
    )))
}

/// Returns the layouts of those versions in a list that consist of several objects.
pub fn of_all(db: &Connection, objects: &[ObjectId]) -> Result<Vec<(ObjectId, Layout)>, Fault> {
    let mut found = Vec::new();
    for &object in objects {
        if let Some(layout) = sealed(db, object.0)? {
            found.push((object, layout));
        }
    }
    Ok(found)
}

/// Returns the layout of a sealed version, with each part on its first node; `None` for a version that is one object.
pub fn sealed(db: &Connection, object: u64) -> Result<Option<Layout>, Fault> {
    let Some((unit, rows)) = parts(db, object)? else {
        return Ok(None);
    };
    let part = |row: PartRow| {
        let size = row.size.unwrap_or(0);
        Part::on(ObjectId(row.object), size, NodeId(row.node))
    };
    let parts: Vec<Part> = rows.into_iter().map(part).collect();
    if unit == 0 {
        return multi_writer::sealed(db, object, parts).map(Some);
    }
    let sizes: Vec<u64> = parts.iter().map(|part| part.size).collect();
    let size = StripedLayout::size_of(unit, &sizes).unwrap_or(0);
    Ok(Some(Layout::Striped(StripedLayout { unit, size, parts })))
}

/// Returns the version that contains an object as a part, and the position of the part.
pub fn part_of(db: &Connection, part: u64) -> Result<Option<PartOf>, Fault> {
    let sql = "SELECT part.object, seq, (SELECT count(*) FROM part AS all_of WHERE all_of.object = part.object), unit \
               FROM part CROSS JOIN layout ON layout.object = part.object WHERE part = ?1";
    find(db, sql, [part.cast_signed()], |row| {
        let number = |at: usize| unsigned(row, at);
        Ok(PartOf {
            version: ObjectId(number(0)?),
            index: number(1)?,
            width: number(2)?,
            unit: number(3)?,
        })
    })
}

/// Sets the node of a part's first replica. Does nothing if the object is no part.
pub(super) fn set_node(db: &Connection, part: u64, node: u32) -> Result<(), Fault> {
    let sql = "UPDATE part SET node = ?2 WHERE part = ?1";
    execute(db, sql, params![part.cast_signed(), node])
}

/// Returns the version that contains an object as a part.
fn version_of(db: &Connection, part: u64) -> Result<Option<u64>, Fault> {
    let sql = "SELECT object FROM part WHERE part = ?1";
    find(db, sql, [part.cast_signed()], |row| unsigned(row, 0))
}

/// Returns unused versions of several objects, at most `max`, that were queued for removal in the range of times `due`.
fn unused(
    db: &Connection,
    due: (i64, i64),
    shared: &NamesShared,
    max: usize,
) -> Result<Vec<u64>, Fault> {
    let sql = "SELECT object FROM replica WHERE want = 2 AND node = ?1 AND since < ?2 AND since >= ?3 AND NOT EXISTS \
               (SELECT 1 FROM rule_run WHERE rule_run.object = replica.object AND rule_run.state <= 2) \
               AND object NOT IN (SELECT object FROM feed WHERE seq > ?4)";
    let compared = rules::position(db, shared)?;
    let mut statement = db.sql.prepare_cached(sql)?;
    let versions = statement.query_map(params![NO_NODE, due.0, due.1, compared], |row| {
        unsigned(row, 0)
    })?;
    // A held version does not block the versions after it.
    let free = |version: &rusqlite::Result<u64>| {
        !version
            .as_ref()
            .is_ok_and(|&version| shared.object_held(version))
    };
    Ok(versions.filter(free).take(max).collect::<Result<_, _>>()?)
}

/// Returns whether [`let_go`] would replace any version.
pub fn any_unused(db: &Connection, due: (i64, i64), shared: &NamesShared) -> Result<bool, Fault> {
    Ok(!unused(db, due, shared, 1)?.is_empty())
}

/// Detaches the parts of versions that are no longer used, so that the parts can be removed as single objects.
pub fn let_go(
    db: &Connection,
    due: (i64, i64),
    shared: &NamesShared,
    now: i64,
) -> Result<(), Fault> {
    for version in unused(db, due, shared, LET_GO_MAX)? {
        placement::forget_parts(db, version, now)?;
        multi_writer::forget_publications(db, version)?;
        for sql in [
            "DELETE FROM part WHERE object = ?1",
            "DELETE FROM layout WHERE object = ?1",
        ] {
            execute(db, sql, [version.cast_signed()])?;
        }
        removals::cancel(db, version, NO_NODE)?;
    }
    Ok(())
}

/// Returns whether any version consists of several objects.
pub(super) fn any(db: &Connection) -> Result<bool, Fault> {
    Ok(db.sql.prepare("SELECT 1 FROM layout")?.exists([])?)
}

/// Inserts the layout of a version: a stripe unit, or the unit 0 and the present size for a version that several mounts write.
pub(super) fn insert_layout(
    db: &Connection,
    version: u64,
    unit: u64,
    size: u64,
) -> Result<(), Fault> {
    let row = params![
        version.cast_signed(),
        unit.cast_signed(),
        size.cast_signed()
    ];
    let sql = "INSERT INTO layout(object, unit, size) VALUES (?1, ?2, ?3)";
    execute(db, sql, row)
}

/// Records the size of a version that several mounts write, after one of them wrote at `mtime`.
pub(super) fn set_written_size(
    db: &Connection,
    version: u64,
    size: u64,
    mtime: i64,
) -> Result<(), Fault> {
    let sql = "UPDATE layout SET size = ?2, mtime = max(mtime, ?3) WHERE object = ?1";
    let row = params![version.cast_signed(), size.cast_signed(), mtime];
    execute(db, sql, row)
}

/// Records the size and the encoded extents of a version that several mounts have written.
pub(super) fn set_extents(
    db: &Connection,
    version: u64,
    size: u64,
    extents: &[u8],
) -> Result<(), Fault> {
    let row = params![version.cast_signed(), extents, size.cast_signed()];
    let sql = "UPDATE layout SET extents = ?2, size = ?3 WHERE object = ?1";
    execute(db, sql, row)
}

/// Inserts a part of a version at position `index`.
pub(super) fn insert_part(
    db: &Connection,
    version: u64,
    index: u32,
    part: PartRow,
) -> Result<(), Fault> {
    let row = params![
        version.cast_signed(),
        index,
        part.object.cast_signed(),
        part.node,
        part.size.map_or(UNSEALED, u64::cast_signed),
    ];
    execute(db, "INSERT INTO part VALUES (?1, ?2, ?3, ?4, ?5)", row)
}

/// Makes objects on nodes the parts of a version that was begun as one object.
pub fn lay_out_written(
    db: &Connection,
    shared: &NamesShared,
    object: u64,
    striped: &StripedLayout,
) -> Result<(), Fault> {
    insert_parts(db, shared, object, (striped, false))?;
    super::version::set_writing_node(db, object, NO_NODE)
}

/// Inserts the layout of a version and its parts. Queued removals of the parts from their nodes are cancelled.
fn insert_parts(
    db: &Connection,
    shared: &NamesShared,
    object: u64,
    (striped, sealed): (&StripedLayout, bool),
) -> Result<(), Fault> {
    shared.set_parts();
    insert_layout(db, object, striped.unit, 0)?;
    for (index, part) in (0_u32..).zip(&striped.parts) {
        let row = PartRow {
            object: part.object.0,
            node: part.replicas.first().map_or(0, |replica| replica.node.0),
            size: sealed.then_some(part.size),
        };
        insert_part(db, object, index, row)?;
        removals::cancel(db, row.object, row.node.into())?;
    }
    Ok(())
}

/// Records the size of a part that was sealed.
pub(super) fn set_part_size(db: &Connection, part: u64, size: u64) -> Result<(), Fault> {
    let size = i64::try_from(size);
    let size = size.map_err(|_| Fault::Malformed("no object has as many bytes as that"))?;
    let sql = "UPDATE part SET size = ?2 WHERE part = ?1";
    execute(db, sql, params![part.cast_signed(), size])
}

/// Records that the unsealed parts of a version have no bytes.
pub(super) fn seal_empty_parts(db: &Connection, version: u64) -> Result<(), Fault> {
    let sql = "UPDATE part SET size = 0 WHERE object = ?1 AND size = ?2";
    execute(db, sql, params![version.cast_signed(), UNSEALED])
}

/// Records another position of a part in its version.
pub(super) fn set_index(db: &Connection, part: u64, index: u32) -> Result<(), Fault> {
    let sql = "UPDATE part SET seq = ?2 WHERE part = ?1";
    execute(db, sql, params![part.cast_signed(), index])
}

/// Deletes a part of a version.
pub(super) fn delete_part(db: &Connection, part: u64) -> Result<(), Fault> {
    execute(db, "DELETE FROM part WHERE part = ?1", [part.cast_signed()])
}
