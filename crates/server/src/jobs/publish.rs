//! Outputs get their names, and lineage is recorded, in the transaction that ends their task.

use super::Files;
use super::joins;
use super::outbox;
use super::results;
use crate::names::node::{Caller, NO_ELEMENT, Node};
use crate::names::parts;
use crate::names::shared::Shared;
use crate::names::transaction::{Tx, check_free};
use crate::names::{Change, Fault, ids};
use rusqlite::{Connection, params};
use tidemill_core::event::OutputSpec;
use tidemill_core::id::{Inode, JobId, LabelId, ObjectId, TaskId};
use tidemill_core::job::Lifetime;
use tidemill_core::label::{Input, Operation, Owner};
use tidemill_core::layout::Striped;
use tidemill_core::object::Placed;
use tidemill_wire::v1::Kind;

/// Permission bits of outputs.
const OUTPUT_MODE: u32 = 0o644;

/// A task that ended well.
#[derive(Clone, Debug)]
pub(crate) struct Publishing {
    pub(crate) job: JobId,
    pub(crate) task: TaskId,
    pub(crate) label: LabelId,
    pub(crate) owner: Owner,
    pub(crate) groups: Vec<u32>,
    /// The files that it has made, each as an output of its own.
    pub(crate) outputs: Files,
    /// What the outputs are made of if components have made their parts; else none.
    pub(crate) layouts: Vec<Striped>,
    /// Those of its outputs that are folders, in which some of the files lie.
    pub(crate) folders: Vec<OutputSpec>,
    pub(crate) lifetime: Lifetime,
    /// Whether files that are there become new versions.
    pub(crate) replace: bool,
    /// The objects that the outputs have their content from, if they were remembered.
    pub(crate) reused: Vec<ObjectId>,
    /// The hashes of the inputs' contents, as the element told them.
    pub(crate) contents: Vec<String>,
}

/// The owner of a job as a caller whose permissions are checked.
pub(crate) fn caller(owner: Owner, groups: &[u32]) -> Caller {
    Caller {
        uid: owner.uid,
        gid: owner.gid,
        groups: groups.to_vec(),
        checked: false,
        trusted: true,
    }
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// Why an output can't get its name, if something is in the way.
pub(crate) fn obstacle(tx: &Tx<'_>, path: &str, ino: u64) -> Result<Option<String>, Fault> {
    if Node::find(tx.db, ino)?.is_some() {
        return Ok(None);
    }
    let refused = |fault: Fault| match fault {
        fault if fault.of_database() => Err(fault),
        fault => Ok(Some(format!("output {path} can't be made: {fault}"))),
    };
    let at_root = path.split('/').find(|part| !part.is_empty());
    if let Err(fault) = check_free(Inode::ROOT.0, at_root.unwrap_or("").as_bytes()) {
        return refused(fault);
    }
    match tx.resolve(path.as_bytes(), false) {
        Ok(_) => {
            return Ok(Some(format!(
                "output {path} exists: it came into being while the task ran"
            )));
        }
        Err(Fault::NotFound(_)) => {}
        Err(fault) => return refused(fault),
    }
    let mut dir = split(path).0;
    loop {
        match tx.resolve(dir.as_bytes(), true) {
            Ok(node) => {
                return tx
                    .writable_dir(node.ino, dir.as_bytes())
                    .map(|_| None)
                    .or_else(refused);
            }
            Err(Fault::NotFound(_)) => dir = split(dir).0,
            Err(fault) => return refused(fault),
        }
    }
}

/// Why a folder can't get its name and what lies in it, if something is in the way: of one that is there already all
/// must go, and may go only if it is replaced.
pub(crate) fn folder_obstacle(
    tx: &Tx<'_>,
    path: &str,
    replace: bool,
) -> Result<Option<String>, Fault> {
    let node = match tx.resolve(path.as_bytes(), false) {
        Ok(node) if node.is_dir() => node,
        Err(fault) if fault.of_database() => return Err(fault),
        // No file has this number.
        _ => return obstacle(tx, path, 0),
    };
    match tx.to_be_emptied(&node) {
        Ok(all) if all.is_empty() || replace => Ok(None),
        Ok(_) => Ok(Some(format!(
            "output {path}/ is not empty: something came into it since"
        ))),
        Err(fault) if fault.of_database() => Err(fault),
        Err(fault) => Ok(Some(format!("output {path}/ can't be made: {fault}"))),
    }
}

/// Whether the outputs of a task got their names before: it runs again because they were lost.
pub(crate) fn published(db: &Connection, task: TaskId) -> Result<bool, Fault> {
    let mut found = db.prepare_cached("SELECT 1 FROM task_output WHERE task = ?1")?;
    Ok(found.exists([task.0.cast_signed()])?)
}

/// Gives all outputs of a task their names and records what it read and wrote.
pub(crate) fn publish(
    db: &Connection,
    shared: &Shared,
    publishing: &Publishing,
    now: i64,
) -> Result<Vec<Change>, Fault> {
    let caller = caller(publishing.owner, &publishing.groups);
    let mut tx = Tx::new(db, shared, &caller, 0, now);
    let task = publishing.task.0;
    let sql = "INSERT OR REPLACE INTO task_output VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    let mut outputs = publishing.outputs.clone();
    if !publishing.folders.is_empty() && !published(db, publishing.task)? {
        for folder in &publishing.folders {
            tx.make_way(publishing, folder, &mut outputs)?;
        }
    }
    for (index, (output, placed)) in outputs.iter_mut().enumerate() {
        if output.part {
            // Until it is joined nothing but its job needs it.
            tx.drop_object(placed.object.0, placed.element.0.into())?;
            continue;
        }
        if let Some(striped) = publishing.layouts.get(index) {
            tx.lay_out(placed.object, striped)?;
        }
        if publishing.replace && is_gone(db, output.inode)? {
            output.inode = Inode(ids::reserve(db, "inode", 1)?);
        }
        tx.publish_one(publishing, output, placed)?;
    }
    for (seq, (output, placed)) in (0_u32..).zip(&outputs) {
        db.prepare_cached(sql)?.execute(params![
            task.cast_signed(),
            seq,
            output.name,
            output.inode.0.cast_signed(),
            placed.object.0.cast_signed(),
            placed.element.0,
            placed.size.cast_signed(),
        ])?;
        if let Lifetime::After(span) = publishing.lifetime
            && !output.part
        {
            let at = now.saturating_add_unsigned(span.0);
            expire(db, output.inode.0, placed.object.0, at)?;
        }
    }
    match record(db, publishing) {
        // Trying again would not mend it, and all jobs would wait.
        Err(fault @ Fault::Damaged(_)) => {
            tracing::error!(%fault, task, "the lineage of a task can't be recorded");
        }
        recorded => recorded?,
    }
    Ok(tx.changes)
}

/// Whether a file was there and is no more. Its number is not used again.
fn is_gone(db: &Connection, inode: Inode) -> Result<bool, Fault> {
    let mut known = db.prepare_cached("SELECT 1 FROM version WHERE ino = ?1")?;
    Ok(Node::find(db, inode.0)?.is_none() && known.exists([inode.0.cast_signed()])?)
}

/// Has a version of a file removed at a time, with all names of the file.
pub(crate) fn expire(db: &Connection, ino: u64, object: u64, at: i64) -> Result<(), Fault> {
    let row = params![ino.cast_signed(), object.cast_signed(), at];
    db.prepare_cached("INSERT OR REPLACE INTO expiry VALUES (?1, ?2, ?3)")?
        .execute(row)?;
    Ok(())
}

/// Records what a task has read, and remembers its result.
fn record(db: &Connection, publishing: &Publishing) -> Result<(), Fault> {
    if publishing.outputs.iter().any(|(output, _)| output.part) {
        return Ok(());
    }
    if !publishing.layouts.is_empty() {
        return joins::record(db, publishing.task);
    }
    let Some((_, label)) = outbox::find(db, publishing.label)? else {
        return Ok(());
    };
    let Operation::Analyse(analysis) = &label.operation else {
        return Ok(());
    };
    // What components make for a task is called so.
    let perhaps = analysis
        .inputs
        .iter()
        .any(|input| input.name.ends_with(']'));
    if perhaps && joins::is_merge(db, publishing.task)? {
        return joins::record(db, publishing.task);
    }
    record_inputs(db, publishing.task, &analysis.inputs)?;
    results::remember(db, publishing, &label, analysis)
}

fn record_inputs(db: &Connection, task: TaskId, inputs: &[Input]) -> Result<(), Fault> {
    let mut statement =
        db.prepare_cached("INSERT OR REPLACE INTO task_input VALUES (?1, ?2, ?3, ?4, ?5)")?;
    for (seq, input) in (0_u32..).zip(inputs) {
        statement.execute(params![
            task.0.cast_signed(),
            seq,
            input.name,
            input.object.0.cast_signed(),
            input.selection.to_string()
        ])?;
    }
    Ok(())
}

impl Tx<'_> {
    /// Empties a folder that is replaced. Where something has come in the way since the outcome came in, what was
    /// computed is not thrown away, and what is there now is not touched: its files get another folder.
    fn make_way(
        &mut self,
        of: &Publishing,
        folder: &OutputSpec,
        files: &mut Files,
    ) -> Result<(), Fault> {
        if let Some(reason) = folder_obstacle(self, &folder.path, of.replace)? {
            let path = format!("{}.job{}", folder.path, of.job);
            tracing::warn!(reason, path, "an output gets another name");
            for (file, _) in files {
                if let Some(name) = file.name.strip_prefix(&folder.name) {
                    file.path = format!("{path}/{name}");
                }
            }
            return Ok(());
        }
        match self.resolve(folder.path.as_bytes(), false) {
            Ok(node) => self.empty(&node),
            Err(Fault::NotFound(_)) => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    fn publish_one(
        &mut self,
        of: &Publishing,
        output: &OutputSpec,
        placed: &Placed,
    ) -> Result<(), Fault> {
        let (uid, task) = (of.owner.uid, of.task.0);
        if let Some(node) = Node::find(self.db, output.inode.0)? {
            return self.publish_again(of, node, placed);
        }
        if published(self.db, of.task)? {
            // The file was removed since. It stays so; only the job reads what was made again.
            return self.keep_unnamed(self.output_node(of.owner, output, placed)?, of);
        }
        let named = self.name_output(of.owner, output, placed, &output.path);
        let named = match named {
            Ok(_) => named,
            Err(fault) if fault.of_database() => return Err(fault),
            Err(fault) => {
                // It was free when the outcome came in. What was computed is not thrown away, and what is
                // there now is not touched.
                let path = format!("{}.job{}", output.path, of.job);
                tracing::warn!(%fault, path, "an output gets another name");
                self.name_output_anyway(of.owner, output, placed, &path)
            }
        };
        let node = named?;
        self.record_version(&node, uid, task)?;
        self.changes.push(Change::Sealed(node.ino));
        Ok(())
    }

    /// The file is there: the task ran again because its first outputs were lost, and a file that still has one
    /// of them gets the new one as its next version; or the job replaces what is there.
    fn publish_again(
        &mut self,
        of: &Publishing,
        mut node: Node,
        placed: &Placed,
    ) -> Result<(), Fault> {
        if node.object == placed.object.0 {
            return Ok(());
        }
        let ours = self
            .db
            .prepare_cached("SELECT 1 FROM version WHERE object = ?1 AND task = ?2")?
            .exists([node.object.cast_signed(), of.task.0.cast_signed()])?;
        let replaces = of.replace && !published(self.db, of.task)?;
        if !(ours || replaces) {
            // It was written to since: what its user made of it is not replaced.
            self.fill(&mut node, placed)?;
            return self.keep_unnamed(node, of);
        }
        let before = node.object;
        self.drop_object(node.object, node.element)?;
        node.version += 1;
        self.fill(&mut node, placed)?;
        let had_none = node.version > 1 && before == 0;
        self.record_version(&node, of.owner.uid, of.task.0)?;
        node.update(self.db)?;
        self.note(&node)?;
        if had_none {
            self.note_for_all(node.ino)?;
        }
        self.changes
            .extend([Change::Node(node.ino), Change::Sealed(node.ino)]);
        Ok(())
    }

    /// Records an output that is no file's version, and has it removed when its job needs it no longer.
    fn keep_unnamed(&self, mut node: Node, of: &Publishing) -> Result<(), Fault> {
        node.version = 0;
        self.record_version(&node, of.owner.uid, of.task.0)?;
        self.drop_object(node.object, node.element)
    }

    fn fill(&self, node: &mut Node, placed: &Placed) -> Result<(), Fault> {
        let parted = self.shared.parts() && parts::parts(self.db, placed.object.0)?.is_some();
        node.object = placed.object.0;
        node.element = match parted {
            true => NO_ELEMENT,
            false => i64::from(placed.element.0),
        };
        node.size = placed.size;
        node.mtime = self.now;
        node.ctime = self.now;
        Ok(())
    }

    fn output_node(
        &self,
        owner: Owner,
        output: &OutputSpec,
        placed: &Placed,
    ) -> Result<Node, Fault> {
        let mut node = Node {
            ino: output.inode.0,
            kind: Kind::File,
            mode: OUTPUT_MODE,
            uid: owner.uid,
            gid: owner.gid,
            nlink: 1,
            size: 0,
            atime: self.now,
            mtime: self.now,
            ctime: self.now,
            rdev: 0,
            version: 1,
            object: 0,
            element: 0,
            writing: 0,
            parent: 0,
            target: Vec::new(),
        };
        self.fill(&mut node, placed)?;
        Ok(node)
    }

    fn name_output(
        &mut self,
        owner: Owner,
        output: &OutputSpec,
        placed: &Placed,
        path: &str,
    ) -> Result<Node, Fault> {
        let (dir, name) = split(path);
        self.make_dirs(dir.as_bytes(), (owner.uid, owner.gid))?;
        let parent = self.resolve(dir.as_bytes(), true)?;
        let parent = self.writable_dir(parent.ino, name.as_bytes())?;
        if Node::child(self.db, parent.ino, name.as_bytes())?.is_some() {
            return Err(Fault::Exists(path.into()));
        }
        let mut node = self.output_node(owner, output, placed)?;
        if parent.mode & crate::names::node::SETGID != 0 {
            node.gid = parent.gid;
        }
        self.add_entry(parent, name.as_bytes(), &node)?;
        node.insert(self.db)?;
        self.note(&node)?;
        self.shared.add_files(1);
        Ok(node)
    }

    fn name_output_anyway(
        &mut self,
        owner: Owner,
        output: &OutputSpec,
        placed: &Placed,
        path: &str,
    ) -> Result<Node, Fault> {
        let root = Caller::root();
        let mut tx = Tx::new(self.db, self.shared, &root, 0, self.now);
        let named = match tx.name_output(owner, output, placed, path) {
            // Its directory is gone or is a file now: the root directory is always there.
            Err(fault) if !fault.of_database() => tx.name_output(
                owner,
                output,
                placed,
                &format!("/lost+found/{}", output.inode),
            ),
            named => named,
        };
        self.changes.append(&mut tx.changes);
        named
    }
}
