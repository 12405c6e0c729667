//! Names of a task's outputs: the outputs get their names in the transaction that ends the task. Watchers of the namespace receive the
//! changes (next: `meta/src/changes.rs`).

use super::data::{self, published};
use super::output_paths::{Anchors, ExistingPath, split};
use crate::Connection;
use crate::query::exists;
use crate::shared::NamesShared;
use crate::transaction::{Tx, check_free, check_name};
use crate::vnode::{Caller, InodeRecord, NO_NODE, SETGID, WRITE};
use crate::{Change, Fault, ids, parts, version};
use std::sync::Arc;
use tidemill_lang::job::Lifetime;
use tidemill_model::event::OutputSpec;
use tidemill_model::id::{Inode, JobId, LabelId, ObjectId, TaskId};
use tidemill_model::label::Owner;
use tidemill_model::layout::StripedLayout;
use tidemill_model::object::Placed;
use tidemill_wire::v1::Kind;

/// Directory in the root of the cluster for files that can't have their intended path.
const LOST: &str = "lost+found";
/// Permission bits of output files.
const OUTPUT_MODE: u32 = 0o644;

/// Files that a task has written, each with the specification of its output.
pub type OutputFiles = Vec<(OutputSpec, Placed)>;

/// A task that succeeded, with the data for publishing its outputs.
#[derive(Clone, Debug)]
pub struct Publishing {
    /// Job to which the task belongs, for messages and for names of outputs that can't have their path.
    pub job: JobId,
    /// Task that the database records as the maker of the outputs.
    pub task: TaskId,
    /// Label with which the task ran, still in the outbox; 0 for outputs whose parts are joined without a label.
    pub label: LabelId,
    /// User and group that own the outputs, and whose rights are checked when the outputs get their names.
    pub owner: Owner,
    /// Numeric ids of the owner's supplementary groups at the submission of the job.
    pub groups: Vec<u32>,
    /// Files that the task wrote, each with the specification of its output.
    pub outputs: OutputFiles,
    /// Layouts of the outputs, if task instances wrote their parts; otherwise empty.
    pub layouts: Vec<StripedLayout>,
    /// Outputs that are directories, which contain some of the files in `outputs`.
    pub directories: Vec<OutputSpec>,
    /// Existing directories in which the job's outputs are created.
    pub anchors: Arc<Anchors>,
    /// Time for which the outputs are kept; a fixed span begins when the outputs get their names.
    pub lifetime: Lifetime,
    /// Whether the outputs become new versions of existing files.
    pub replace: bool,
    /// Objects whose content the outputs reuse, if the result was cached.
    pub reused: Vec<ObjectId>,
    /// Hashes of the inputs' contents, as reported by the node.
    pub contents: Vec<String>,
}

/// Returns the owner of a job as a caller whose permissions the server checks.
pub fn caller(owner: Owner, groups: &[u32]) -> Caller {
    Caller {
        uid: owner.uid,
        gid: owner.gid,
        groups: groups.to_vec(),
        checked: false,
        administrator: true,
    }
}

/// Returns the reason why an output can't get its name; `None` if the output can get its name.
pub fn obstacle(
    tx: &Tx<'_>,
    anchors: &Anchors,
    path: &str,
    ino: u64,
) -> Result<Option<String>, Fault> {
    let refused = |fault: Fault| match fault {
        fault if fault.is_database_failure() => Err(fault),
        fault => Ok(Some(format!("output {path} can't be made: {fault}"))),
    };
    if let Some(vnode) = InodeRecord::find(tx.db, ino)? {
        return match tx.check_replaced(&vnode, path) {
            Ok(()) => Ok(None),
            Err(fault) => refused(fault),
        };
    }
    let at_root = path.split('/').find(|part| !part.is_empty());
    if let Err(fault) = check_free(Inode::ROOT.0, at_root.unwrap_or("").as_bytes()) {
        return refused(fault);
    }
    match tx.output_way(anchors, path) {
        Ok((_, Some(_))) => Ok(Some(format!(
            "output {path} exists: it was created while the task ran"
        ))),
        Ok((way, None)) => {
            let mut directory = split(path).0;
            for _ in &way.missing {
                directory = split(directory).0;
            }
            let writable = tx.writable_dir(way.vnode.ino, directory.as_bytes());
            writable.map(|_| None).or_else(refused)
        }
        Err(fault) => refused(fault),
    }
}

/// Returns the reason why an output directory can't get its name and content; `None` if it can. All content of an existing directory must
/// be removable, and is removed only if the job replaces the directory.
pub fn directory_obstacle(
    tx: &Tx<'_>,
    anchors: &Anchors,
    path: &str,
    replace: bool,
) -> Result<Option<String>, Fault> {
    let vnode = match tx.output_way(anchors, path) {
        Ok((_, Some(vnode))) if vnode.is_dir() => vnode,
        Err(fault) if fault.is_database_failure() => return Err(fault),
        // No file has inode 0.
        _ => return obstacle(tx, anchors, path, 0),
    };
    match tx.to_be_emptied(&vnode) {
        Ok(all) if all.is_empty() || replace => Ok(None),
        Ok(_) => Ok(Some(format!(
            "output {path}/ is not empty: a file was added to it since the submission"
        ))),
        Err(fault) if fault.is_database_failure() => Err(fault),
        Err(fault) => Ok(Some(format!("output {path}/ can't be made: {fault}"))),
    }
}

/// Names all outputs of a task and records them as its outputs. Returns the changes, and the reason why an output is not at the path that
/// the job specifies.
pub fn name_outputs(
    db: &Connection,
    shared: &NamesShared,
    publishing: &Publishing,
    now: i64,
) -> Result<(Vec<Change>, String), Fault> {
    let caller = caller(publishing.owner, &publishing.groups);
    let mut tx = Tx::new(db, shared, &caller, 0, now);
    let mut elsewhere = String::new();
    let mut outputs = publishing.outputs.clone();
    if !publishing.directories.is_empty() && !published(db, publishing.task)? {
        for directory in &publishing.directories {
            if let Some(reason) =
                tx.empty_replaced_directory(publishing, directory, &mut outputs)?
            {
                elsewhere = reason;
            }
        }
    }
    for (index, (output, placed)) in outputs.iter_mut().enumerate() {
        if output.part {
            // Until the parts are joined, only the job needs this part.
            tx.drop_object(placed.object.0, placed.node.0.into())?;
            continue;
        }
        if let Some(striped) = publishing.layouts.get(index) {
            tx.lay_out(placed.object, striped)?;
        }
        if publishing.replace
            && (is_deleted(db, output.inode)? || tx.may_not_replace(publishing.task, output)?)
        {
            output.inode = Inode(ids::reserve(db, "inode", 1)?);
        }
        if let Some(reason) = tx.publish_one(publishing, output, placed)? {
            elsewhere = reason;
        }
    }
    data::put_outputs(db, publishing.task, &outputs)?;
    if let Lifetime::After(span) = publishing.lifetime {
        let at = now.saturating_add_unsigned(span.0);
        for (_, placed) in outputs.iter().filter(|(output, _)| !output.part) {
            version::set_expiry(db, placed.object.0, at)?;
        }
    }
    Ok((tx.changes, elsewhere))
}

/// Returns whether a file with this inode existed and was deleted. Inode numbers are not reused.
fn is_deleted(db: &Connection, inode: Inode) -> Result<bool, Fault> {
    let mut known = db
        .sql
        .prepare_cached("SELECT 1 FROM version WHERE ino = ?1")?;
    Ok(InodeRecord::find(db, inode.0)?.is_none() && known.exists([inode.0.cast_signed()])?)
}

impl Tx<'_> {
    /// Removes the content of a directory that an output replaces. If another object has taken its path since the outcome arrived, neither
    /// the computed files nor the present content are deleted: the files are put into another directory.
    fn empty_replaced_directory(
        &mut self,
        of: &Publishing,
        directory: &OutputSpec,
        files: &mut OutputFiles,
    ) -> Result<Option<String>, Fault> {
        if let Some(reason) = directory_obstacle(self, &of.anchors, &directory.path, of.replace)? {
            let path = format!("{}.job{}", directory.path, of.job);
            tracing::warn!(reason, path, "an output gets another name");
            for (file, _) in files {
                if let Some(name) = file.name.strip_prefix(&directory.name) {
                    file.path = format!("{path}/{name}");
                }
            }
            return Ok(Some(format!("{reason}; its files are for {path}/")));
        }
        match self.output_way(&of.anchors, &directory.path)?.1 {
            Some(vnode) => self.empty(&vnode).map(|()| None),
            None => Ok(None),
        }
    }

    /// Fails unless the caller may write a file that the caller's job replaces.
    fn check_replaced(&self, vnode: &InodeRecord, path: &str) -> Result<(), Fault> {
        if vnode.nlink == 0 {
            return Ok(());
        }
        self.reach(vnode.ino)?;
        self.need(vnode, WRITE, path)
    }

    /// Returns whether an output would replace a file that the job's owner may no longer write.
    fn may_not_replace(&self, task: TaskId, output: &OutputSpec) -> Result<bool, Fault> {
        let Some(vnode) = InodeRecord::find(self.db, output.inode.0)? else {
            return Ok(false);
        };
        match self.check_replaced(&vnode, &output.path) {
            Ok(()) => Ok(false),
            Err(fault) if fault.is_database_failure() => Err(fault),
            // The task's own earlier output is not a replaced file.
            Err(_) => Ok(!published(self.db, task)?),
        }
    }

    /// Gives one output its name. Returns the reason why the output is not at the path that the job specifies.
    fn publish_one(
        &mut self,
        of: &Publishing,
        output: &OutputSpec,
        placed: &Placed,
    ) -> Result<Option<String>, Fault> {
        if let Some(vnode) = InodeRecord::find(self.db, output.inode.0)? {
            return self.publish_again(of, vnode, placed).map(|()| None);
        }
        let mut vnode = self.output_vnode(of.owner, output, placed)?;
        if published(self.db, of.task)? {
            // The file was removed after the first run and stays removed; only the job reads the new output.
            return self.keep_unnamed(vnode, of).map(|()| None);
        }
        let reported = match self.name_output(of, output, &mut vnode) {
            Ok(reported) => reported,
            Err(fault) if fault.is_database_failure() => return Err(fault),
            Err(fault) => {
                let lost = self.name_in_lost_found(of, &mut vnode)?;
                let lost = lost.map_or("not kept".to_owned(), |path| format!("in {path}"));
                Some(format!("output {} is {lost}: {fault}", output.path))
            }
        };
        if let Some(reported) = &reported {
            tracing::warn!(job = %of.job, "{reported}");
        }
        if InodeRecord::find(self.db, vnode.ino)?.is_some() {
            self.record_version(&vnode, of.owner.uid, of.task.0)?;
            self.changes.push(Change::Sealed(vnode.ino));
        }
        Ok(reported)
    }

    /// Publishes an output as the next version of an existing file: the job replaces the file, or the task ran again because its first
    /// outputs were lost. In the second case the file must still have one of the first outputs.
    fn publish_again(
        &mut self,
        of: &Publishing,
        mut vnode: InodeRecord,
        placed: &Placed,
    ) -> Result<(), Fault> {
        if vnode.object == placed.object.0 {
            return Ok(());
        }
        let sql = "SELECT 1 FROM version WHERE object = ?1 AND task = ?2";
        let key = [vnode.object.cast_signed(), of.task.0.cast_signed()];
        let ours = exists(self.db, sql, key)?;
        let replaces = of.replace && !published(self.db, of.task)?;
        if !(ours || replaces) {
            // A user has written the file since: that content is not replaced.
            self.fill(&mut vnode, placed)?;
            return self.keep_unnamed(vnode, of);
        }
        self.drop_object(vnode.object, vnode.node)?;
        vnode.version += 1;
        self.fill(&mut vnode, placed)?;
        self.record_version(&vnode, of.owner.uid, of.task.0)?;
        vnode.update(self.db)?;
        self.changes
            .extend([Change::Vnode(vnode.ino), Change::Sealed(vnode.ino)]);
        Ok(())
    }

    /// Records an output that does not become a version of a file, and schedules its removal for when its job no longer needs it.
    fn keep_unnamed(&self, mut vnode: InodeRecord, of: &Publishing) -> Result<(), Fault> {
        vnode.version = 0;
        self.record_version(&vnode, of.owner.uid, of.task.0)?;
        self.drop_object(vnode.object, vnode.node)
    }

    fn fill(&self, vnode: &mut InodeRecord, placed: &Placed) -> Result<(), Fault> {
        let parted = self.shared.parts() && parts::parts(self.db, placed.object.0)?.is_some();
        vnode.object = placed.object.0;
        vnode.node = match parted {
            true => NO_NODE,
            false => i64::from(placed.node.0),
        };
        vnode.size = placed.size;
        vnode.mtime = self.now;
        vnode.ctime = self.now;
        Ok(())
    }

    fn output_vnode(
        &self,
        owner: Owner,
        output: &OutputSpec,
        placed: &Placed,
    ) -> Result<InodeRecord, Fault> {
        let mut vnode = InodeRecord {
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
            node: 0,
            writing: 0,
            parent: 0,
            target: Vec::new(),
        };
        self.fill(&mut vnode, placed)?;
        Ok(vnode)
    }

    /// Names an output as the job specifies, or with another name in the same directory if the name is taken.
    fn name_output(
        &mut self,
        of: &Publishing,
        output: &OutputSpec,
        vnode: &mut InodeRecord,
    ) -> Result<Option<String>, Fault> {
        let (way, found) = self.output_way(&of.anchors, &output.path)?;
        let directory = self.make_missing(way, (of.owner.uid, of.owner.gid))?;
        let name = split(&output.path).1;
        if found.is_none() {
            self.name_in(directory, name, vnode)?;
            return Ok(None);
        }
        // The name was free when the outcome arrived. Neither the computed output nor the present file is deleted.
        let other = format!("{name}.job{}", of.job);
        self.name_in(directory, &other, vnode)?;
        Ok(Some(format!(
            "output {} is named {other}: the name is taken",
            output.path
        )))
    }

    fn name_in(
        &mut self,
        directory: InodeRecord,
        name: &str,
        vnode: &mut InodeRecord,
    ) -> Result<(), Fault> {
        check_name(name.as_bytes())?;
        let directory = self.writable_dir(directory.ino, name.as_bytes())?;
        if InodeRecord::child(self.db, directory.ino, name.as_bytes())?.is_some() {
            return Err(Fault::Exists(name.into()));
        }
        let gid = vnode.gid;
        if directory.mode & SETGID != 0 {
            vnode.gid = directory.gid;
        }
        if let Err(fault) = self.add_entry(directory, name.as_bytes(), vnode) {
            vnode.gid = gid;
            return Err(fault);
        }
        vnode.insert(self.db)?;
        self.shared.add_files(1);
        Ok(())
    }

    /// Names an output that can't be at the path that its job specifies: in root's `/lost+found`, or in the root directory if another
    /// object has that name. Returns the output's path; `None` if the output is not kept.
    fn name_in_lost_found(
        &mut self,
        of: &Publishing,
        vnode: &mut InodeRecord,
    ) -> Result<Option<String>, Fault> {
        let root = Caller::root();
        let mut tx = Tx::new(self.db, self.shared, &root, 0, self.now);
        let named = tx.name_as_lost(of, vnode);
        self.changes.append(&mut tx.changes);
        match named {
            Ok(path) => Ok(Some(path)),
            Err(fault) if fault.is_database_failure() => Err(fault),
            Err(_) => {
                self.keep_unnamed(vnode.clone(), of)?;
                Ok(None)
            }
        }
    }

    fn name_as_lost(&mut self, of: &Publishing, vnode: &mut InodeRecord) -> Result<String, Fault> {
        let top = InodeRecord::get(self.db, Inode::ROOT.0)?;
        let lost = match InodeRecord::child(self.db, top.ino, LOST.as_bytes())? {
            None => {
                let way = ExistingPath {
                    vnode: top.clone(),
                    missing: vec![LOST.into()],
                };
                Some(self.make_missing(way, (0, 0))?)
            }
            found => found.filter(|lost| lost.is_dir() && [0, of.owner.uid].contains(&lost.uid)),
        };
        if let Some(lost) = lost {
            let name = vnode.ino.to_string();
            match self.name_in(lost, &name, vnode) {
                Ok(()) => return Ok(format!("/{LOST}/{name}")),
                Err(fault) if fault.is_database_failure() => return Err(fault),
                Err(_) => {}
            }
        }
        let name = format!("{LOST}.{}", vnode.ino);
        self.name_in(top, &name, vnode)?;
        Ok(format!("/{name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SqliteNames;
    use crate::jobs::output_paths::{self, Links};
    use tidemill_model::id::NodeId;
    use tidemill_wire::v1;

    const ONE: u32 = 1001;
    const OTHER: u32 = 1002;

    /// A cluster with a public directory of user 1001, a private directory of user 1002 and a directory in which everybody may write.
    struct PublishCluster {
        names: SqliteNames,
        _directory: tempfile::TempDir,
    }

    impl PublishCluster {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let names = SqliteNames::open(&directory.path().join("server.db"), (0, 0)).unwrap();
            let cluster = Self {
                names,
                _directory: directory,
            };
            cluster.directory("/one", ONE, 0o755);
            cluster.directory("/one/out", ONE, 0o755);
            cluster.directory("/other", OTHER, 0o700);
            cluster.directory("/shared", 0, 0o777);
            cluster.directory("/shared/out", 0, 0o777);
            cluster
        }

        fn within<T: Send + 'static>(
            &self,
            work: impl FnOnce(&mut Tx<'_>) -> Result<T, Fault> + Send + 'static,
        ) -> T {
            let shared = self.names.shared().clone();
            let work = move |db: &Connection| {
                let root = Caller::root();
                work(&mut Tx::new(db, &shared, &root, 0, 1))
            };
            self.names.database().write_blocking(work).unwrap()
        }

        fn make(&self, path: &str, kind: Kind, (uid, mode): (u32, u32), target: &str) -> u64 {
            let create = v1::Create {
                name: path.as_bytes().to_vec(),
                kind: kind.into(),
                mode,
                uid,
                gid: uid,
                target: target.as_bytes().to_vec(),
                ..v1::Create::default()
            };
            self.within(move |tx| tx.create(&create).map(drop));
            self.vnode(path).unwrap().ino
        }

        fn directory(&self, path: &str, uid: u32, mode: u32) {
            self.make(path, Kind::Directory, (uid, mode), "");
        }

        fn link(&self, path: &str, uid: u32, target: &str) {
            self.make(path, Kind::Symlink, (uid, 0o777), target);
        }

        fn vnode(&self, path: &str) -> Option<InodeRecord> {
            let path = path.to_owned();
            self.within(move |tx| Ok(tx.resolve(path.as_bytes(), false).ok()))
        }

        fn rename(&self, from: &str, to: &str) {
            let ino = |path: &str| self.vnode(split(path).0).unwrap().ino;
            let rename = v1::Rename {
                parent: ino(from),
                name: split(from).1.as_bytes().to_vec(),
                new_parent: ino(to),
                new_name: split(to).1.as_bytes().to_vec(),
                ..v1::Rename::default()
            };
            self.within(move |tx| tx.rename(&rename).map(drop));
        }

        fn remove_directory(&self, path: &str) {
            let unlink = v1::Unlink {
                parent: self.vnode(split(path).0).unwrap().ino,
                name: split(path).1.as_bytes().to_vec(),
                directory: true,
                time: 0,
            };
            self.within(move |tx| tx.unlink(&unlink).map(drop));
        }

        fn chmod(&self, path: &str, mode: u32) {
            let mut vnode = self.vnode(path).unwrap();
            vnode.mode = mode;
            self.within(move |tx| vnode.update(tx.db));
        }

        /// Returns the publication of a user's job with one output, with the state as after the job's submission.
        fn submitted(&self, uid: u32, path: &str, links: Links) -> Publishing {
            let (owner, output) = (Owner { uid, gid: uid }, path.to_owned());
            let anchors = self.within(move |tx| {
                let caller = caller(owner, &[]);
                let tx = Tx::new(tx.db, tx.shared, &caller, 0, 1);
                output_paths::anchors(&tx, std::iter::once(output.as_str()), links)
            });
            let reserved = |kind: &'static str| self.within(move |tx| ids::reserve(tx.db, kind, 1));
            let output = OutputSpec {
                name: "out".into(),
                path: path.into(),
                inode: Inode(reserved("inode")),
                part: false,
                memory: false,
            };
            let placed = Placed {
                object: ObjectId(reserved("object")),
                node: NodeId(0),
                size: 5,
            };
            Publishing {
                job: JobId(7),
                task: TaskId(reserved("task")),
                label: LabelId(0),
                owner,
                groups: Vec::new(),
                outputs: vec![(output, placed)],
                layouts: Vec::new(),
                directories: Vec::new(),
                anchors: Arc::new(anchors),
                lifetime: Lifetime::Keep,
                replace: false,
                reused: Vec::new(),
                contents: Vec::new(),
            }
        }

        /// Publishes the outputs of a job; returns the message about its output.
        fn end(&self, publishing: &Publishing) -> String {
            let publishing = publishing.clone();
            self.within(move |tx| Ok(name_outputs(tx.db, tx.shared, &publishing, 2)?.1))
        }

        fn obstacle(&self, of: &Publishing) -> Option<String> {
            let of = of.clone();
            self.within(move |tx| {
                let caller = caller(of.owner, &of.groups);
                let tx = Tx::new(tx.db, tx.shared, &caller, 0, 1);
                let output = &of.outputs[0].0;
                obstacle(&tx, &of.anchors, &output.path, output.inode.0)
            })
        }

        fn is_empty(&self, path: &str) -> bool {
            let ino = self.vnode(path).unwrap().ino;
            self.within(move |tx| {
                let mut entries = tx
                    .db
                    .sql
                    .prepare("SELECT 1 FROM dirent WHERE parent = ?1")?;
                Ok(!entries.exists([ino.cast_signed()])?)
            })
        }
    }

    #[test]
    fn output_stays_in_its_directory_if_link_takes_its_place() {
        for (uid, directory) in [(ONE, "/one"), (OTHER, "/shared")] {
            let cluster = PublishCluster::new();
            let job = cluster.submitted(uid, &format!("{directory}/out/sub/f"), Links::All);
            assert_eq!(cluster.obstacle(&job), None);
            cluster.rename(&format!("{directory}/out"), &format!("{directory}/old"));
            cluster.link(&format!("{directory}/out"), ONE, "/other");
            assert_eq!(cluster.obstacle(&job), None);
            assert_eq!(cluster.end(&job), "");
            let named = cluster.vnode(&format!("{directory}/old/sub/f")).unwrap();
            assert_eq!((named.uid, named.object), (uid, job.outputs[0].1.object.0));
            assert!(cluster.is_empty("/other"), "{directory}");
        }
    }

    #[test]
    fn output_goes_to_lost_found_if_its_directory_is_removed() {
        // The link of user 1001 leads to a directory that user 1001 may not write, and user 1002 may write.
        for (uid, directory) in [(ONE, "/one"), (OTHER, "/shared")] {
            let cluster = PublishCluster::new();
            let job = cluster.submitted(uid, &format!("{directory}/out/sub/f"), Links::All);
            cluster.remove_directory(&format!("{directory}/out"));
            cluster.link(&format!("{directory}/out"), ONE, "/other");
            let seen = cluster.obstacle(&job).unwrap();
            assert!(seen.contains("can't be made"), "{seen}");
            let reported = cluster.end(&job);
            let ino = job.outputs[0].0.inode.0;
            assert!(
                reported.contains(&format!("in /lost+found/{ino}")),
                "{reported}"
            );
            let named = cluster.vnode(&format!("/lost+found/{ino}")).unwrap();
            assert_eq!(named.uid, uid);
            assert_eq!(cluster.vnode("/lost+found").unwrap().uid, 0);
            assert!(cluster.is_empty("/other"), "{directory}");
        }
    }

    #[test]
    fn output_goes_to_lost_found_if_write_permission_is_lost() {
        let cluster = PublishCluster::new();
        let job = cluster.submitted(OTHER, "/shared/out/f", Links::All);
        cluster.chmod("/shared/out", 0o755);
        // An object with that name that is not a directory of root is not used.
        cluster.make("/lost+found", Kind::File, (ONE, 0o666), "");
        let reported = cluster.end(&job);
        let lost = format!("/lost+found.{}", job.outputs[0].0.inode.0);
        assert!(reported.contains(&lost), "{reported}");
        assert_eq!(cluster.vnode(&lost).unwrap().uid, OTHER);
        assert!(cluster.is_empty("/shared/out"));
    }

    #[test]
    fn output_below_link_followed_at_submission_is_published_there() {
        let cluster = PublishCluster::new();
        cluster.directory("/other/results", OTHER, 0o755);
        cluster.link("/shared/results", ONE, "/other/results");
        let path = "/shared/results/new/f";
        let job = cluster.submitted(OTHER, path, Links::All);
        assert_eq!(
            (cluster.obstacle(&job), cluster.end(&job)),
            (None, "".into())
        );
        assert!(cluster.vnode("/other/results/new/f").is_some());

        // A rule is triggered long after its user wrote it.
        let rule = cluster.submitted(OTHER, path, Links::Own);
        assert!(rule.anchors.is_empty());
        assert!(cluster.obstacle(&rule).unwrap().contains("symbolic link"));
        cluster.link("/shared/own", OTHER, "/other/results");
        let rule = cluster.submitted(OTHER, "/shared/own/of-rule", Links::Own);
        assert_eq!(
            (cluster.obstacle(&rule), cluster.end(&rule)),
            (None, "".into())
        );
        assert!(cluster.vnode("/other/results/of-rule").is_some());
    }

    #[test]
    fn output_with_taken_name_gets_suffix_in_same_directory() {
        let cluster = PublishCluster::new();
        let job = cluster.submitted(ONE, "/one/out/f", Links::All);
        cluster.make("/one/out/f", Kind::File, (ONE, 0o644), "");
        assert!(cluster.end(&job).contains("f.job7"));
        let named = cluster.vnode("/one/out/f.job7").unwrap();
        assert_eq!(named.ino, job.outputs[0].0.inode.0);
    }

    #[test]
    fn output_does_not_replace_file_without_write_permission() {
        let cluster = PublishCluster::new();
        let file = cluster.make("/shared/out/f", Kind::File, (ONE, 0o666), "");
        let mut job = cluster.submitted(OTHER, "/shared/out/f", Links::All);
        job.replace = true;
        job.outputs[0].0.inode = Inode(file);
        assert_eq!(cluster.obstacle(&job), None);
        cluster.chmod("/shared/out/f", 0o644);
        assert!(
            cluster
                .obstacle(&job)
                .unwrap()
                .contains("permission denied")
        );
        assert!(cluster.end(&job).contains("f.job7"));
        assert_eq!(cluster.vnode("/shared/out/f").unwrap().object, 0);
        assert_eq!(cluster.vnode("/shared/out/f.job7").unwrap().uid, OTHER);
    }
}
