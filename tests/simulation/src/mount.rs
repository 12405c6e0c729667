//! Simulated client of the cluster. The client follows the protocol of mounts and of `tidemill put` (ids, names, bytes, seal at the node,
//! seal at the server, all repeated until there is an answer), and submits jobs.

use crate::dice::mix;
use crate::memory_tier::{MEMORY, WORKSPACES};
use crate::port::{OfNode, Port, Script, SubmittedTask, WorldAnswer, WorldRequest};
use crate::store::ObjectContent;
use errno::{AGAIN, BUSY, HOSTUNREACH, IO, NOENT, NOSPC};
use std::cell::Cell;
use std::rc::Rc;
use tidemill_wire::capability::Attributes;
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Named};

/// Errno values that a client distinguishes.
mod errno {
    pub(super) const NOENT: i32 = 2;
    pub(super) const IO: i32 = 5;
    pub(super) const AGAIN: i32 = 11;
    pub(super) const NOSPC: i32 = 28;
    pub(super) const BUSY: i32 = 26;
    pub(super) const HOSTUNREACH: i32 = 113;
}

/// Directories in which clients work.
pub(crate) const DIRECTORIES: [&str; 2] = ["a", "b"];
/// Number of names in each directory.
pub(crate) const NAMES: u64 = 5;
/// Directory for the outputs of jobs.
pub(crate) const OUT: &str = "out";
/// Maximum number of jobs per client: more jobs than nodes can complete would make the end of the run too long.
const SCRIPTS_MAX: u64 = 40;
/// Shortest pause before a request is repeated, in milliseconds; the next constant is the longest.
const PAUSE_MIN: u64 = 20;
const PAUSE_MAX: u64 = 2000;

/// Habits of a client: probabilities of its actions, in thousandths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    pub(crate) write: u64,
    pub(crate) rename: u64,
    pub(crate) unlink: u64,
    pub(crate) read: u64,
    pub(crate) chmod: u64,
    pub(crate) submit: u64,
    /// Longest pause between two actions, in milliseconds.
    pub(crate) pause: u64,
}

/// State of a simulated client.
#[derive(Clone, Debug)]
pub(crate) struct ClientState {
    pub(crate) port: Port,
    pub(crate) number: usize,
    /// Number of starts of this client, so that no two jobs have the same outputs.
    pub(crate) life: u64,
    pub(crate) habits: Habits,
    /// Set when clients must not begin new actions.
    pub(crate) calm: Rc<Cell<bool>>,
    /// Jobs of this client whose submission the server acknowledged.
    jobs: Rc<std::cell::RefCell<Vec<u64>>>,
    scripts: Rc<Cell<u64>>,
    /// Node of the memory tier on the client's host, if there is one: the client writes files of the memory directory to this node.
    memory: Option<u32>,
}

/// Returns the content of an object after `pieces` pieces were written.
pub(crate) fn bytes_of(object: u64, pieces: u64) -> ObjectContent {
    let token = mix(mix(object) ^ pieces);
    let size = pieces * 100 + object % 100;
    ObjectContent { token, size }
}

impl ClientState {
    pub(crate) fn new(
        port: Port,
        (number, life): (usize, u64),
        (habits, memory): (Habits, Option<u32>),
        calm: Rc<Cell<bool>>,
    ) -> Self {
        Self {
            port,
            number,
            life,
            habits,
            calm,
            jobs: Rc::default(),
            scripts: Rc::default(),
            memory,
        }
    }

    /// Runs a client until it must not begin new actions.
    pub(crate) async fn live(self) {
        while !matches!(
            self.port.ask(WorldRequest::Session).await,
            WorldAnswer::Session
        ) {
            self.pause(PAUSE_MAX).await;
        }
        while !self.calm.get() {
            self.pause(self.habits.pause).await;
            let habits = self.habits;
            let sum = habits.write + habits.rename + habits.unlink + habits.read + habits.submit;
            let roll = self.roll(sum + habits.chmod);
            let path = self.some_path();
            if roll < habits.write {
                self.write(&path).await;
            } else if roll < habits.write + habits.rename {
                let to = self.some_path();
                self.save(&path, &to).await;
            } else if roll < habits.write + habits.rename + habits.unlink {
                self.unlink(&path).await;
            } else if roll < sum - habits.submit {
                self.read(&path).await;
            } else if roll < sum {
                self.submit().await;
            } else if let Ok(attr) = self.find(&path).await {
                self.chmod(attr.ino).await;
            }
        }
    }

    /// Returns a random path of a file that may exist.
    fn some_path(&self) -> String {
        let usual = DIRECTORIES.into_iter();
        let memory = [MEMORY].into_iter().chain(WORKSPACES);
        let directories: Vec<&str> = match self.memory {
            Some(_) => usual.chain(memory).collect(),
            None => usual.collect(),
        };
        let directory =
            directories[usize::try_from(self.roll(directories.len() as u64)).unwrap_or(0)];
        format!("/{directory}/f{}", self.roll(NAMES))
    }

    fn roll(&self, sides: u64) -> u64 {
        self.port.dice(|dice| dice.roll(sides))
    }

    async fn pause(&self, longest: u64) {
        let time = self.roll(longest.max(1)) + 1;
        self.port.sleep(time).await;
    }

    /// Sends one operation to the server until there is an answer. The error is an errno.
    async fn one(&self, op: Op) -> Result<Named, i32> {
        let mut pause = PAUSE_MIN;
        let is_open = matches!(op, Op::Open(_));
        loop {
            if let WorldAnswer::Names(mut results) =
                self.port.ask(WorldRequest::Names(vec![op.clone()])).await
            {
                match results.pop().and_then(|result| result.result) {
                    // The file was stored in a memory that is lost.
                    Some(Named::Error(error)) if self.memory.is_some() && is_open => {
                        return Err(error.errno);
                    }
                    // The server can't store anything now. The operation is completed when it can.
                    Some(Named::Error(error)) if matches!(error.errno, IO | NOSPC) => {}
                    Some(Named::Error(error)) => return Err(error.errno),
                    Some(answer) => return Ok(answer),
                    None => return Err(0),
                }
            }
            self.pause(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn ids(&self) -> (u64, u64) {
        loop {
            if let WorldAnswer::Ids(inode, object) = self.port.ask(WorldRequest::Ids).await {
                return (inode, object);
            }
            self.pause(PAUSE_MAX).await;
        }
    }

    async fn find(&self, path: &str) -> Result<v1::Attr, i32> {
        let resolve = v1::Resolve {
            path: path.as_bytes().to_vec(),
            follow: true,
            advise: false,
        };
        match self.one(Op::Resolve(resolve)).await? {
            Named::Entry(entry) => entry.attr.ok_or(0),
            _ => Err(0),
        }
    }

    /// Writes a file, or a new version of the file, and closes it. Returns true if the close is acknowledged.
    async fn write(&self, path: &str) -> bool {
        let (inode, object) = self.ids().await;
        let opened = self.open_for_writing(path, inode, object).await;
        let Some((mut attr, mut node)) = opened else {
            return false;
        };
        let ino = attr.ino;
        let pieces = 1 + self.roll(3);
        for piece in 1..=pieces {
            let bytes = bytes_of(object, piece);
            if !self.put(node, object, bytes).await {
                let Some(other) = self.overflow((ino, object), node, bytes).await else {
                    self.abandon(ino, object).await;
                    return false;
                };
                node = other;
            }
            self.pause(30).await;
            if self.habits.chmod > 0 && self.roll(8) == 0 {
                attr = self.chmod(ino).await.unwrap_or(attr);
            }
        }
        self.seal(path, &attr, object, node).await
    }

    fn some_mode(&self) -> Option<u32> {
        Some([0o644, 0o600, 0o755][usize::try_from(self.roll(3)).unwrap_or(0)])
    }

    /// Changes a file's mode, even if another client writes the file.
    async fn chmod(&self, ino: u64) -> Option<v1::Attr> {
        let change = v1::SetAttr {
            ino,
            mode: self.some_mode(),
            ..v1::SetAttr::default()
        };
        match self.one(Op::SetAttr(change)).await {
            Ok(Named::Attr(attr)) => Some(attr),
            _ => None,
        }
    }

    /// Returns a change of a file's mode that is sent with the seal. It has no effect if another client has changed the mode since.
    fn kept_back(&self, attr: &v1::Attr) -> Option<v1::SetAttr> {
        let change = || v1::SetAttr {
            ino: attr.ino,
            mode: self.some_mode(),
            only_if: Some(v1::Rights {
                mode: attr.mode,
                uid: attr.uid,
                gid: attr.gid,
            }),
            ..v1::SetAttr::default()
        };
        (self.habits.chmod > 0 && self.roll(4) == 0).then(change)
    }

    async fn open_for_writing(
        &self,
        path: &str,
        inode: u64,
        object: u64,
    ) -> Option<(v1::Attr, u32)> {
        let mut tries = 0;
        loop {
            let op = match self.find(path).await {
                Ok(attr) => Op::NewVersion(v1::NewVersion {
                    ino: attr.ino,
                    object,
                    here: self.memory.into_iter().collect(),
                    ..v1::NewVersion::default()
                }),
                Err(_) => Op::Create(v1::Create {
                    name: path.as_bytes().to_vec(),
                    kind: v1::Kind::File.into(),
                    mode: 0o644,
                    ino: inode,
                    object,
                    here: self.memory.into_iter().collect(),
                    ..v1::Create::default()
                }),
            };
            match self.one(op).await {
                Ok(Named::Opened(opened)) => {
                    return Some((opened.attr?, opened.node));
                }
                Err(HOSTUNREACH | AGAIN) if tries < 20 => self.pause(PAUSE_MAX).await,
                Err(NOENT | BUSY) if tries < 3 => self.pause(PAUSE_MAX).await,
                _ => return None,
            }
            tries += 1;
        }
    }

    /// Writes bytes of an object to a node. Returns false if the node is full or the object must not be written any more.
    async fn put(&self, node: u32, object: u64, bytes: ObjectContent) -> bool {
        loop {
            match self
                .port
                .ask(WorldRequest::Node(node, OfNode::Write(object, bytes)))
                .await
            {
                WorldAnswer::Done => return true,
                WorldAnswer::Refused => return false,
                _ => self.pause(PAUSE_MAX).await,
            }
        }
    }

    /// Continues a file on another node if the memory of its node is full. Returns the other node.
    async fn overflow(
        &self,
        (ino, object): (u64, u64),
        from: u32,
        bytes: ObjectContent,
    ) -> Option<u32> {
        if self.memory != Some(from) {
            return None;
        }
        let overflow = |node| {
            Op::Overflow(v1::Overflow {
                ino,
                object,
                node,
                bytes: bytes.size,
            })
        };
        let Ok(Named::Opened(other)) = self.one(overflow(None)).await else {
            return None;
        };
        if !self.put(other.node, object, bytes).await {
            return None;
        }
        match self.one(overflow(Some(other.node))).await {
            Ok(Named::Opened(opened)) => Some(opened.node),
            _ => None,
        }
    }

    async fn seal(&self, path: &str, attr: &v1::Attr, object: u64, node: u32) -> bool {
        let attributes = self.kept_back(attr);
        let signed = Attributes {
            inode: attr.ino,
            path: path.as_bytes().to_vec(),
            uid: 1000,
            gid: 1000,
            mode: 0o644,
            part: None,
        };
        let (size, receipt) = loop {
            let ask = WorldRequest::Node(node, OfNode::Seal(object, signed.clone()));
            match self.port.ask(ask).await {
                WorldAnswer::Sealed(size, receipt) => break (size, receipt),
                _ => self.pause(PAUSE_MAX).await,
            }
        };
        let seal = v1::Seal {
            ino: attr.ino,
            object,
            size,
            mtime: 1,
            attributes,
            receipts: vec![receipt],
            ..v1::Seal::default()
        };
        let sealed = self.one(Op::Seal(seal)).await.is_ok();
        if !sealed {
            let ino = attr.ino;
            let _ = self.one(Op::Release(v1::Release { ino, object })).await;
        }
        sealed
    }

    async fn abandon(&self, ino: u64, object: u64) {
        let _ = self.one(Op::Abandon(v1::Abandon { ino, object })).await;
    }

    /// Saves a file like an editor: writes a new file, then renames it to the old name.
    async fn save(&self, path: &str, to: &str) {
        if self.roll(2) == 0 && !self.write(path).await {
            return;
        }
        let split = |path: &str| {
            let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
            (directory.to_owned(), name.as_bytes().to_vec())
        };
        let ((from_directory, name), (to_directory, new_name)) = (split(path), split(to));
        let (Ok(parent), Ok(new_parent)) = (
            self.find(&from_directory).await,
            self.find(&to_directory).await,
        ) else {
            return;
        };
        let rename = v1::Rename {
            parent: parent.ino,
            name,
            new_parent: new_parent.ino,
            new_name,
            no_replace: self.roll(4) == 0,
            exchange: false,
            time: 0,
        };
        // The rename is not repeated, because it may have been executed.
        self.port
            .ask(WorldRequest::Names(vec![Op::Rename(rename)]))
            .await;
    }

    async fn unlink(&self, path: &str) {
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        let Ok(parent) = self.find(directory).await else {
            return;
        };
        let unlink = v1::Unlink {
            parent: parent.ino,
            name: name.as_bytes().to_vec(),
            directory: false,
            time: 0,
        };
        self.port
            .ask(WorldRequest::Names(vec![Op::Unlink(unlink)]))
            .await;
    }

    /// Opens a file, reads it after a while and closes it. The world checks the content.
    async fn read(&self, path: &str) {
        let Ok(attr) = self.find(path).await else {
            return;
        };
        let open = v1::Open {
            ino: attr.ino,
            ..v1::Open::default()
        };
        let Ok(Named::Opened(opened)) = self.one(Op::Open(open)).await else {
            return;
        };
        if opened.object != 0 {
            self.pause(3000).await;
            for _ in 0..3 {
                let ask = WorldRequest::Node(opened.node, OfNode::Read(opened.object));
                if let WorldAnswer::Read = self.port.ask(ask).await {
                    break;
                }
                self.pause(PAUSE_MAX).await;
            }
        }
        let (ino, object) = (attr.ino, opened.object);
        let _ = self.one(Op::Release(v1::Release { ino, object })).await;
    }

    async fn submit(&self) {
        if self.scripts.get() == SCRIPTS_MAX {
            return;
        }
        let script = self.script();
        if let WorldAnswer::Submitted(Ok(job)) = self.port.ask(WorldRequest::Submit(script)).await {
            self.jobs.borrow_mut().push(job);
        }
        let jobs = self.jobs.borrow().len() as u64;
        if jobs > 0 && self.roll(12) == 0 {
            let index = usize::try_from(self.roll(jobs)).unwrap_or(0);
            let job = self.jobs.borrow()[index];
            self.port.ask(WorldRequest::Cancel(job)).await;
        }
    }

    /// Returns a random job with a few tasks that read files which may exist, and each other's outputs.
    fn script(&self) -> Script {
        let number = self.scripts.get();
        self.scripts.set(number + 1);
        let prefix = format!("/{OUT}/c{}l{}n{number}", self.number, self.life);
        let mut tasks: Vec<SubmittedTask> = Vec::new();
        for index in 0..1 + self.roll(4) {
            let mut inputs = Vec::new();
            for _ in 0..1 + self.roll(2) {
                let made = tasks.len() as u64;
                let input = if made > 0 && self.roll(3) > 0 {
                    let from = &tasks[usize::try_from(self.roll(made)).unwrap_or(0)];
                    from.outputs[0].clone()
                } else {
                    self.some_path()
                };
                if !inputs.contains(&input) {
                    inputs.push(input);
                }
            }
            let outputs = (0..1 + self.roll(2)).map(|n| format!("{prefix}t{index}o{n}"));
            tasks.push(SubmittedTask {
                kernel: ["max", "min"][usize::try_from(self.roll(2)).unwrap_or(0)],
                args: vec![format!("missing={}", self.roll(2))],
                inputs,
                outputs: outputs.collect(),
                wants: WANTS[usize::try_from(number + 5 * index).unwrap_or(0) % WANTS.len()],
            });
        }
        let text = text(&tasks, self.roll(3) == 0, self.roll(8) == 0);
        Script { text, tasks }
    }
}

/// Resources that some tasks need in addition to a core, in the notation of scripts.
const WANTS: [&str; 6] = [
    "",
    "",
    "cores = 0;",
    "memory = \"3 GiB\";",
    "memory = \"1 GiB\"; cores = 0;",
    "resources = { gpu = 1; };",
];

fn text(tasks: &[SubmittedTask], used: bool, no_cache: bool) -> String {
    let list = |paths: &[String]| {
        let quoted: Vec<String> = paths.iter().map(|path| format!("\"{path}\"")).collect();
        quoted.join(", ")
    };
    let tasks: Vec<String> = tasks
        .iter()
        .enumerate()
        .map(|(index, task)| {
            format!(
                "{{ name = \"t{index}\"; kernel = \"{}\"; args = [{}]; input = [{}]; output = [{}]; {} }}",
                task.kernel,
                list(&task.args),
                list(&task.inputs),
                list(&task.outputs),
                task.wants,
            )
        })
        .collect();
    format!(
        "name = \"job\"; workdir = \"/\"; lifetime = \"{}\"; cache = {}; tasks = ( {} );",
        if used { "used" } else { "keep" },
        !no_cache,
        tasks.join(", ")
    )
}
