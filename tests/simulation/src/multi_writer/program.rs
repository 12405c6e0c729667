//! Programs on a mount that read and write files that other mounts write, too.

use super::mount::{
    BUSY, NOENT, OpenFile, PAUSE_MS, STALE, SharedLog, SimulatedMount, SimulatedWrite, TRIES,
    VisibleState, WritePhase, index,
};
use crate::port::{OfNode, WorldAnswer, WorldRequest};
use std::rc::Rc;
use tidemill_mount::extents::WriteLog;
use tidemill_wire::capability::Attributes;
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Named};

/// Number of files on which all programs work.
const FILES: u64 = 3;
/// Maximum size of the files, except by appending.
const SIZE: u64 = 48;

/// Way in which a file is opened for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteMode {
    Keep,
    Truncate,
}

impl SimulatedMount {
    /// Runs one of the mount's programs until it must not begin new actions.
    pub(super) async fn program(&self) {
        while !self.0.hears.get() {
            self.pause(PAUSE_MS).await;
        }
        while !self.0.calm.get() {
            self.pause(400).await;
            let path = format!("/a/f{}", self.roll(FILES));
            match self.roll(20) {
                0 => self.rename(&path).await,
                1 => self.unlink(&path).await,
                2..=8 => self.look(&path).await,
                9..=11 => self.write(&path, WriteMode::Truncate).await,
                _ => self.write(&path, WriteMode::Keep).await,
            }
        }
    }

    async fn rename(&self, path: &str) {
        let Some(parent) = self.find("/a").await else {
            return;
        };
        let name = |path: &str| path.as_bytes()["/a/".len()..].to_vec();
        let rename = v1::Rename {
            parent: parent.ino,
            name: name(path),
            new_parent: parent.ino,
            new_name: format!("f{}", self.roll(FILES)).into_bytes(),
            ..v1::Rename::default()
        };
        // The rename is not repeated, because it may have been executed.
        self.0
            .port
            .ask(WorldRequest::Names(vec![Op::Rename(rename)]))
            .await;
    }

    async fn unlink(&self, path: &str) {
        let Some(parent) = self.find("/a").await else {
            return;
        };
        let unlink = v1::Unlink {
            parent: parent.ino,
            name: path.as_bytes()["/a/".len()..].to_vec(),
            ..v1::Unlink::default()
        };
        self.0
            .port
            .ask(WorldRequest::Names(vec![Op::Unlink(unlink)]))
            .await;
    }

    /// Reads a file several times while it is open.
    async fn look(&self, path: &str) {
        let Some(attr) = self.find(path).await else {
            return;
        };
        let Some((file, opened)) = self.open(attr.ino).await else {
            return;
        };
        for _ in 0..1 + self.roll(4) {
            self.read(attr.ino, &file, opened).await;
            self.pause(300).await;
        }
        match file {
            OpenFile::Whole(object, _) => self.release(attr.ino, object),
            OpenFile::Extents(seen) => self.release(attr.ino, seen.version()),
            OpenFile::Nothing | OpenFile::Here(_) => {}
        }
    }

    /// Writes to a file several times while it is open.
    async fn write(&self, path: &str, how: WriteMode) {
        let Some(written) = self.open_for_writing(path, how).await else {
            return;
        };
        for _ in 0..1 + self.roll(8) {
            match self.roll(12) {
                0 | 1 => self.sync(&written).await,
                2 => self.truncate(&written, self.roll(SIZE)).await,
                3 | 4 => {
                    let opened = written.opened.get();
                    self.read(written.ino, &OpenFile::Here(Rc::clone(&written)), opened)
                        .await;
                }
                5 => self.put(&written, written.size()).await,
                _ => self.put(&written, self.roll(SIZE)).await,
            }
            if self.roll(2) == 0 {
                self.pause(200).await;
            }
        }
        self.close(&written);
    }

    async fn ids(&self) -> (u64, u64) {
        loop {
            if let WorldAnswer::Ids(inode, object) = self.0.port.ask(WorldRequest::Ids).await {
                return (inode, object);
            }
            self.pause(PAUSE_MS).await;
        }
    }

    /// Opens a file for writing, and creates the object of the new version.
    async fn open_for_writing(&self, path: &str, how: WriteMode) -> Option<Rc<SimulatedWrite>> {
        let (inode, object) = self.ids().await;
        let attr = self.find(path).await;
        let ino = attr.map_or(inode, |attr| attr.ino);
        if self.0.written.borrow().contains_key(&ino) {
            return None;
        }
        let opening = self.0.model.borrow_mut().opening();
        let written = Rc::new(SimulatedWrite::new(ino, object, opening));
        let new = Rc::clone(&written);
        self.0.written.borrow_mut().insert(ino, new);
        let begun = self
            .begin_version(path, attr.is_some(), &written, how)
            .await;
        if begun.is_none() {
            self.0.written.borrow_mut().remove(&ino);
        }
        begun.map(|()| written)
    }

    async fn begin_version(
        &self,
        path: &str,
        is_there: bool,
        written: &Rc<SimulatedWrite>,
        how: WriteMode,
    ) -> Option<()> {
        let (ino, object) = (written.ino, written.object);
        let near = (self.roll(2) == 0).then_some(u32::try_from(self.roll(3)).unwrap_or(0));
        let op = match is_there {
            true => Op::NewVersion(v1::NewVersion {
                ino,
                object,
                near,
                ..v1::NewVersion::default()
            }),
            false => Op::Create(v1::Create {
                name: path.as_bytes().to_vec(),
                kind: v1::Kind::File.into(),
                mode: 0o666,
                ino,
                object,
                ..v1::Create::default()
            }),
        };
        let mut tries = 0;
        let opened = loop {
            let opened = self.0.model.borrow_mut().reopen(written.opening);
            written.opened.set(opened);
            match self.one(op.clone()).await {
                Ok(Named::Opened(opened)) => break opened,
                Err(BUSY) if tries < TRIES => self.pause(PAUSE_MS).await,
                _ => return None,
            }
            tries += 1;
        };
        written.node.set(opened.node);
        if opened.attr.is_some_and(|attr| attr.nlink == 0) {
            let _ = self.one(Op::Abandon(v1::Abandon { ino, object })).await;
            return None;
        }
        if let Some(reported) = opened.multi_writer {
            self.flush(written).await;
            let index = index(reported.mine);
            let seen = Rc::<VisibleState>::default();
            self.adopt(&seen, &reported);
            seen.asked.set(written.opened.get());
            self.note(written, seen, WriteLog::new(index, 0, 0), None);
            self.follow(ino, reported.version, written);
        } else if how == WriteMode::Keep {
            let base = opened.attr.unwrap_or_default();
            match self.base(&base).await {
                Some(bytes) => *written.content.borrow_mut() = Rc::new(bytes),
                None => {
                    let _ = self.one(Op::Abandon(v1::Abandon { ino, object })).await;
                    return None;
                }
            }
            self.flush(written).await;
        } else {
            self.0.model.borrow_mut().cut(ino, written.opening, 0);
            self.flush(written).await;
        }
        written.phase.set(WritePhase::Open);
        let shared = written.is_shared();
        self.say(written, &format!("opened, {how:?}, shared {shared}"));
        if how == WriteMode::Truncate && written.is_shared() {
            self.truncate(written, 0).await;
        }
        // Changes that were published before the mount listened to the file are unknown.
        if let Some(shared) = &*written.shared.borrow() {
            shared.seen.freshness.mark();
        }
        Some(())
    }

    /// Returns the content of a file's base version, which the new version continues.
    async fn base(&self, attr: &v1::Attr) -> Option<Vec<u64>> {
        if attr.object == 0 {
            return Some(Vec::new());
        }
        let open = v1::Open {
            ino: attr.ino,
            multi_writer: true,
            ..v1::Open::default()
        };
        let Ok(Named::Opened(opened)) = self.one(Op::Open(open)).await else {
            return None;
        };
        let bytes = match opened.layout {
            _ if opened.object != attr.object => None,
            None => {
                let held = self.fetch(opened.node, opened.object).await;
                held.map(|content| content.to_vec())
            }
            sealed => {
                let reported = v1::MultiWriter {
                    version: opened.object,
                    size: opened.size,
                    sealed,
                    ..v1::MultiWriter::default()
                };
                let seen = Rc::<VisibleState>::default();
                self.adopt(&seen, &reported);
                let read = self.read_extents(attr.ino, &seen, None).await;
                read.map(|(bytes, ..)| bytes)
            }
        };
        self.release(attr.ino, opened.object);
        bytes
    }

    /// Writes some bytes of a file, and records the write in the model.
    async fn put(&self, written: &Rc<SimulatedWrite>, offset: u64) {
        let range = offset..offset + 1 + self.roll(12);
        let is_unheard = |shared: &Rc<SharedLog>| shared.seen.version() == 0;
        if written.shared.borrow().as_ref().is_some_and(is_unheard) {
            self.publish(written, None).await;
        }
        let token = {
            let mut model = self.0.model.borrow_mut();
            model.write(written.ino, written.opening, range.clone())
        };
        let mut content = written.content.borrow().to_vec();
        let at = match &*written.shared.borrow() {
            None => range.start,
            Some(shared) => {
                let mut log = shared.log.borrow_mut();
                let (at, is_new) = log.place(&range);
                if is_new {
                    log.written(&range, at).expect("there are few extents");
                }
                at
            }
        };
        let (from, end) = (index(at), index(at + range.end - range.start));
        content.resize(content.len().max(end), 0);
        content[from..end].fill(token);
        *written.content.borrow_mut() = Rc::new(content);
        if self.0.in_place {
            self.flush(written).await;
        } else if self.roll(2) == 0 {
            let (me, written) = (self.clone(), Rc::clone(written));
            self.begin(async move { me.flush(&written).await });
        }
    }

    async fn sync(&self, written: &Rc<SimulatedWrite>) {
        let until = self.tick();
        self.flush(written).await;
        if written.is_shared() {
            self.publish(written, None).await;
            let mut model = self.0.model.borrow_mut();
            model.show(written.ino, written.opening, until);
            drop(model);
        }
        let mut model = self.0.model.borrow_mut();
        model.keep(written.ino, written.opening, until);
    }

    async fn truncate(&self, written: &Rc<SimulatedWrite>, size: u64) {
        let until = {
            let mut model = self.0.model.borrow_mut();
            model.cut(written.ino, written.opening, size);
            model.tick()
        };
        if written.is_shared() {
            self.publish(written, Some(size)).await;
            let mut model = self.0.model.borrow_mut();
            model.show(written.ino, written.opening, until);
            model.keep(written.ino, written.opening, until);
        } else {
            let mut content = written.content.borrow().to_vec();
            content.resize(index(size), 0);
            *written.content.borrow_mut() = Rc::new(content);
        }
    }

    /// Handles the close by the last writer: the version is sealed in the background.
    fn close(&self, written: &Rc<SimulatedWrite>) {
        let mut model = self.0.model.borrow_mut();
        model.close(written.ino, written.opening);
        drop(model);
        written.phase.set(WritePhase::Sealing);
        self.say(written, "closed");
        let (me, written) = (self.clone(), Rc::clone(written));
        self.begin(async move {
            me.seal(&written).await;
            me.0.written.borrow_mut().remove(&written.ino);
        });
    }

    async fn seal(&self, written: &SimulatedWrite) {
        self.pause(50).await;
        self.flush(written).await;
        let (ino, object) = (written.ino, written.object);
        let signed = Attributes {
            inode: ino,
            path: Vec::new(),
            uid: 1000,
            gid: 1000,
            mode: 0o666,
            part: None,
        };
        let (size, receipt) = loop {
            let ask = OfNode::Seal(object, signed.clone());
            let ask = WorldRequest::Node(written.node.get(), ask);
            match self.0.port.ask(ask).await {
                WorldAnswer::Sealed(size, receipt) => break (size, receipt),
                _ => self.pause(PAUSE_MS).await,
            }
        };
        let (publications, base) = written.last_word();
        let seal = v1::Seal {
            ino,
            object,
            size,
            publications,
            base,
            receipts: vec![receipt],
            ..v1::Seal::default()
        };
        match self.one(Op::Seal(seal)).await {
            Ok(_) => {
                let mut model = self.0.model.borrow_mut();
                model.keep(ino, written.opening, u64::MAX);
                model.note(ino, written.opening, "sealed");
            }
            // The file was removed, or the seal was repeated and later versions have replaced this one.
            Err(NOENT | STALE) => {}
            other => panic!("the bytes written to {ino} are not sealed: {other:?}"),
        }
        if let Some(shared) = &*written.shared.borrow() {
            shared.sealed.set(true);
            shared.seen.freshness.mark();
            self.release(ino, shared.seen.version());
        }
    }
}
