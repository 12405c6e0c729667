//! A simulated mount whose programs read and write files that other mounts write, too. The production code (`tidemill_mount::extents`)
//! decides which bytes are stored on which node. The order of requests, reports and seals follows
//! `mount/src/fs/{multi_writer,sharing,seal,version,watch}.rs`.

use super::model::{Model, Opening};
use crate::dice::Dice;
use crate::port::{OfNode, Port, WorldAnswer, WorldRequest};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::Poll;
use tidemill_client::published::Visible;
use tidemill_model::layout::Extent;
use tidemill_mount::extents::{Freshness, WriteLog, all_of};
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Named};

/// Errno values that a mount distinguishes.
pub(super) const NOENT: i32 = 2;
pub(super) const BUSY: i32 = 26;
pub(super) const STALE: i32 = 116;
/// Errors of operations that are retried, because a version can't be stored now or a daemon can't answer: `EIO`, `ENOSPC`, `ETIMEDOUT`,
/// `EHOSTUNREACH`.
const RETRIED: [i32; 4] = [5, 28, 110, 113];
/// Number of programs on each mount.
const PROGRAMS: u64 = 2;
/// Number of attempts to access a file that changes during the attempt, or that another program writes.
pub(super) const TRIES: u32 = 8;
pub(super) const PAUSE_MS: u64 = 300;

/// Visible state of a version that consists of extents.
#[derive(Debug, Default)]
pub(super) struct VisibleState {
    visible: RefCell<Visible>,
    pub(super) freshness: Freshness,
    /// Time of the last request to the server for the visible state.
    pub(super) asked: Cell<u64>,
    /// Version that a program on this mount has begun to write since. A program that has the old version open continues with it.
    next: RefCell<Option<Rc<SimulatedWrite>>>,
}

impl VisibleState {
    pub(super) fn version(&self) -> u64 {
        self.visible.borrow().version
    }
}

/// Log of writes on this mount, kept because other mounts may write the same file.
#[derive(Debug)]
pub(super) struct SharedLog {
    pub(super) seen: Rc<VisibleState>,
    pub(super) log: RefCell<WriteLog>,
    base: Option<u64>,
    /// Whether the server has sealed the part of this mount.
    pub(super) sealed: Cell<bool>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum WritePhase {
    #[default]
    Starting,
    Open,
    Sealing,
}

/// Version that a program writes on this mount.
#[derive(Debug, Default)]
pub(super) struct SimulatedWrite {
    pub(super) ino: u64,
    pub(super) opening: Opening,
    pub(super) object: u64,
    pub(super) node: Cell<u32>,
    /// Time since which changes that other mounts published must be visible to the writer.
    pub(super) opened: Cell<u64>,
    pub(super) phase: Cell<WritePhase>,
    pub(super) content: RefCell<Rc<Vec<u64>>>,
    /// Content of the version that has reached the node.
    arrived: RefCell<Option<Rc<Vec<u64>>>>,
    pub(super) shared: RefCell<Option<Rc<SharedLog>>>,
    /// Whether a task is writing the content to the node. `telling` is the same for reports to the server.
    flushing: Cell<bool>,
    telling: Cell<bool>,
}

impl SimulatedWrite {
    pub(super) fn new(ino: u64, object: u64, opening: Opening) -> Self {
        Self {
            ino,
            opening,
            object,
            ..Self::default()
        }
    }

    pub(super) fn is_shared(&self) -> bool {
        self.shared.borrow().is_some()
    }

    /// Returns the length of the file as its writer sees it.
    pub(super) fn size(&self) -> u64 {
        match &*self.shared.borrow() {
            Some(shared) => {
                let seen = shared.seen.visible.borrow().extents.size;
                shared.log.borrow().size_over(seen)
            }
            None => self.content.borrow().len() as u64,
        }
    }

    /// Returns the extents that the mount reports with the seal, and the base version's size.
    pub(super) fn last_word(&self) -> (Vec<v1::MountPublication>, Option<u64>) {
        let shared = self.shared.borrow();
        shared.as_ref().map_or((Vec::new(), None), |shared| {
            let mut log = shared.log.borrow_mut();
            log.tell(None);
            (log.publications(), shared.base)
        })
    }
}

/// File that a program has open.
pub(super) enum OpenFile {
    Nothing,
    Whole(u64, u32),
    Extents(Rc<VisibleState>),
    Here(Rc<SimulatedWrite>),
}

type ClientFuture = Pin<Box<dyn Future<Output = ()>>>;

/// Handle of a simulated mount.
#[derive(Clone)]
pub(crate) struct SimulatedMount(pub(super) Rc<MountState>);

pub(super) struct MountState {
    pub(super) port: Port,
    pub(super) model: Rc<RefCell<Model>>,
    pub(super) calm: Rc<Cell<bool>>,
    /// Whether the mount writes and reads objects directly on the node's device.
    pub(super) in_place: bool,
    /// Whether no message is late or lost, so that published changes are visible at once to all programs that have the file open.
    prompt: bool,
    pub(super) written: WrittenHere,
    seen: RefCell<Vec<(u64, Weak<VisibleState>)>>,
    /// Whether the server has reported the mount's session number.
    pub(super) hears: Cell<bool>,
    begun: RefCell<Vec<ClientFuture>>,
}

/// Versions that a mount is writing, for code that must know them when the mount is killed.
pub(super) type WrittenHere = Rc<RefCell<BTreeMap<u64, Rc<SimulatedWrite>>>>;

impl SimulatedMount {
    pub(super) fn new(
        port: Port,
        model: Rc<RefCell<Model>>,
        calm: Rc<Cell<bool>>,
        (in_place, prompt): (bool, bool),
    ) -> (Self, WrittenHere) {
        let written = WrittenHere::default();
        let inner = MountState {
            port,
            model,
            calm,
            in_place,
            prompt,
            written: Rc::clone(&written),
            seen: RefCell::default(),
            hears: Cell::default(),
            begun: RefCell::default(),
        };
        (Self(Rc::new(inner)), written)
    }

    /// Runs the mount until its programs have ended and all versions are sealed.
    pub(crate) async fn live(self) {
        let me = self.clone();
        self.begin(async move { me.listen().await });
        let mut programs: Vec<ClientFuture> = Vec::new();
        for _ in 0..PROGRAMS {
            let me = self.clone();
            programs.push(Box::pin(async move { me.program().await }));
        }
        let mut others: Vec<ClientFuture> = Vec::new();
        std::future::poll_fn(move |context| {
            programs.retain_mut(|task| task.as_mut().poll(context).is_pending());
            // Tasks that these tasks begin are polled in the same pass.
            loop {
                others.append(&mut self.0.begun.borrow_mut());
                others.retain_mut(|task| task.as_mut().poll(context).is_pending());
                if self.0.begun.borrow().is_empty() {
                    break;
                }
            }
            let is_over = programs.is_empty() && self.0.written.borrow().is_empty();
            if is_over {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    pub(super) fn begin(&self, task: impl Future<Output = ()> + 'static) {
        self.0.begun.borrow_mut().push(Box::pin(task));
    }

    fn dice<T>(&self, with: impl FnOnce(&mut Dice) -> T) -> T {
        self.0.port.dice(with)
    }

    pub(super) fn roll(&self, sides: u64) -> u64 {
        self.dice(|dice| dice.roll(sides))
    }

    pub(super) fn tick(&self) -> u64 {
        self.0.model.borrow_mut().tick()
    }

    pub(super) fn say(&self, written: &SimulatedWrite, what: &str) {
        let mut model = self.0.model.borrow_mut();
        model.note(written.ino, written.opening, what);
    }

    pub(super) async fn pause(&self, longest: u64) {
        let time = self.roll(longest.max(1)) + 1;
        self.0.port.sleep(time).await;
    }

    /// Sends one operation to the server until it answers. The error is an errno.
    pub(super) async fn one(&self, op: Op) -> Result<Named, i32> {
        loop {
            if let WorldAnswer::Names(mut results) =
                self.0.port.ask(WorldRequest::Names(vec![op.clone()])).await
            {
                match results.pop().and_then(|result| result.result) {
                    Some(Named::Error(error)) if RETRIED.contains(&error.errno) => {}
                    Some(Named::Error(error)) => return Err(error.errno),
                    Some(answer) => return Ok(answer),
                    None => {}
                }
            }
            self.pause(PAUSE_MS).await;
        }
    }

    /// Handles the server's messages forever.
    async fn listen(&self) {
        loop {
            while !matches!(
                self.0.port.ask(WorldRequest::Watch).await,
                WorldAnswer::Session
            ) {
                self.pause(PAUSE_MS).await;
            }
            while let Some(news) = self.0.port.news().await {
                let all = news.session != 0 || news.everything;
                self.0.hears.set(true);
                if news.question != 0 {
                    let me = self.clone();
                    self.begin(async move { me.answer(&news).await });
                    continue;
                }
                self.doubt(|ino| all || ino == news.ino);
                if news.receipt != 0 {
                    self.tell(news.receipt, false);
                }
            }
            self.doubt(|_| true);
        }
    }

    fn doubt(&self, of: impl Fn(u64) -> bool) {
        let mut known = self.0.seen.borrow_mut();
        known.retain(|(_, seen)| seen.strong_count() > 0);
        for (_, seen) in known.iter().filter(|(ino, _)| of(*ino)) {
            seen.upgrade().iter().for_each(|seen| seen.freshness.mark());
        }
    }

    fn tell(&self, question: u64, open: bool) {
        let me = self.clone();
        let op = Op::Answer(v1::Answer { question, open });
        self.begin(async move { drop(me.0.port.ask(WorldRequest::Names(vec![op])).await) });
    }

    /// Answers the server's question about a file that may be written on this mount; another mount has asked for the file.
    async fn answer(&self, news: &v1::Invalidation) {
        let of = || self.0.written.borrow().get(&news.ino).cloned();
        if let Some(written) = of().filter(|written| written.phase.get() == WritePhase::Open) {
            if news.share {
                self.share(&written);
            }
            let shared = written.shared.borrow().is_some();
            if shared {
                self.publish(&written, None).await;
            }
        }
        match of().map(|written| written.phase.get()) {
            Some(WritePhase::Sealing) => {}
            phase => self.tell(news.question, phase.is_some()),
        }
    }

    /// Begins to log the writes to a version, because other mounts may write the file.
    fn share(&self, written: &SimulatedWrite) {
        if written.shared.borrow().is_some() {
            return;
        }
        let size = written.content.borrow().len() as u64;
        self.say(written, "is shared");
        let seen = Rc::new(VisibleState::default());
        {
            let extents = &mut seen.visible.borrow_mut().extents;
            let part = tidemill_model::layout::Part::on(
                tidemill_model::id::ObjectId(written.object),
                size,
                tidemill_model::id::NodeId(written.node.get()),
            );
            extents.parts.push(part);
            all_of(size).map(|all| extents.put(all));
        }
        self.note(written, seen, WriteLog::new(0, size, 0), Some(size));
    }

    pub(super) fn note(
        &self,
        written: &SimulatedWrite,
        seen: Rc<VisibleState>,
        log: WriteLog,
        base: Option<u64>,
    ) {
        let mut known = self.0.seen.borrow_mut();
        known.push((written.ino, Rc::downgrade(&seen)));
        let log = RefCell::new(log);
        *written.shared.borrow_mut() = Some(Rc::new(SharedLog {
            seen,
            log,
            base,
            sealed: Cell::new(false),
        }));
    }

    /// Makes programs on this mount that have the version open continue with the version that is now being written.
    pub(super) fn follow(&self, ino: u64, version: u64, written: &Rc<SimulatedWrite>) {
        for (_, seen) in self.0.seen.borrow().iter().filter(|(of, _)| *of == ino) {
            let seen = seen.upgrade().filter(|seen| seen.version() == version);
            let known = written.shared.borrow();
            let own = known.as_ref().map(|shared| &shared.seen);
            if let Some(seen) = seen.filter(|seen| own.is_none_or(|own| !Rc::ptr_eq(own, seen))) {
                *seen.next.borrow_mut() = Some(Rc::clone(written));
            }
        }
    }

    pub(super) fn adopt(&self, seen: &VisibleState, reported: &v1::MultiWriter) {
        for news in &reported.news {
            if !news.all {
                let mut model = self.0.model.borrow_mut();
                model.published(reported.version, news.number, &news.extents);
            }
        }
        let adopted = seen.visible.borrow_mut().adopt(reported);
        adopted.expect("a server's answer can be adopted");
    }

    /// Asks the server for the changes that other mounts published.
    async fn refresh(
        &self,
        ino: u64,
        seen: &VisibleState,
        own: Option<&Rc<SimulatedWrite>>,
        closed: bool,
    ) -> bool {
        if let Some(own) = own.filter(|_| seen.version() == 0) {
            self.publish(own, None).await;
        }
        let (version, since) = {
            let visible = seen.visible.borrow();
            if visible.sealed {
                return true;
            }
            (visible.version, visible.last)
        };
        if version == 0 {
            return true;
        }
        let asks = seen.freshness.asks();
        let asked = self.tick();
        let publications = v1::Publications {
            ino,
            version,
            since,
            closed,
        };
        match self.one(Op::Publications(publications)).await {
            Ok(Named::MultiWriter(reported)) => {
                self.adopt(seen, &reported);
                seen.freshness.answered(asks);
                // A later version may be written when one is sealed.
                if reported.sealed.is_none() {
                    seen.asked.set(asked.max(seen.asked.get()));
                }
                true
            }
            // A later version has replaced this one, which is read in its old state.
            _ => false,
        }
    }

    /// Reports the writes of this mount to the server, which makes them visible to all mounts.
    pub(super) async fn publish(&self, written: &Rc<SimulatedWrite>, cut: Option<u64>) {
        let Some(shared) = written.shared.borrow().clone() else {
            return;
        };
        while written.telling.replace(true) {
            self.pause(5).await;
        }
        shared.log.borrow_mut().tell(cut);
        let (version, since) = {
            let visible = shared.seen.visible.borrow();
            (visible.version, visible.last)
        };
        let publications = shared.log.borrow().publications();
        if !publications.is_empty() || version == 0 {
            self.flush(written).await;
            let publish = v1::Publish {
                ino: written.ino,
                object: written.object,
                publications: publications.clone(),
                since,
                base: shared.base,
            };
            let asks = shared.seen.freshness.asks();
            let asked = self.tick();
            match self.one(Op::Publish(publish)).await {
                Ok(Named::MultiWriter(news)) => {
                    self.adopt(&shared.seen, &news);
                    shared.log.borrow_mut().heard(&publications);
                    self.say(
                        written,
                        &format!("published {}, cut {cut:?}", publications.len()),
                    );
                    shared.seen.freshness.answered(asks);
                    shared.seen.asked.set(asked);
                }
                // The writes were reported with the seal.
                Err(STALE | NOENT) if written.phase.get() == WritePhase::Sealing => {}
                other => panic!(
                    "the bytes written to {} can't be published: {other:?}",
                    written.ino
                ),
            }
        }
        written.telling.set(false);
    }

    /// Writes the content of a version to its node.
    pub(super) async fn flush(&self, written: &SimulatedWrite) {
        while written.flushing.replace(true) {
            self.pause(2).await;
        }
        loop {
            let content = Rc::clone(&written.content.borrow());
            let arrived = written.arrived.borrow().clone();
            if arrived.is_some_and(|arrived| Rc::ptr_eq(&arrived, &content)) {
                break;
            }
            let put = OfNode::Put(written.object, Rc::clone(&content));
            let ask = WorldRequest::Node(written.node.get(), put);
            if let WorldAnswer::Done = self.0.port.ask(ask).await {
                *written.arrived.borrow_mut() = Some(content);
                break;
            }
            self.pause(PAUSE_MS).await;
        }
        written.flushing.set(false);
    }

    pub(super) async fn fetch(&self, node: u32, object: u64) -> Option<Rc<Vec<u64>>> {
        for _ in 0..TRIES {
            let ask = WorldRequest::Node(node, OfNode::Fetch(object));
            if let WorldAnswer::Content(content) = self.0.port.ask(ask).await {
                return Some(content);
            }
            self.pause(PAUSE_MS).await;
        }
        None
    }

    /// Reads the bytes of a version of extents, overlaid with the unreported writes of this mount. Also returns the time at which the
    /// server was asked for the version's state, and whether the state is sealed.
    pub(super) async fn read_extents(
        &self,
        ino: u64,
        seen: &VisibleState,
        own: Option<&Rc<SimulatedWrite>>,
    ) -> Option<(Vec<u64>, u64, bool)> {
        for _ in 0..2 {
            let shared = own.and_then(|own| own.shared.borrow().clone());
            let ended = shared.as_ref().filter(|shared| shared.sealed.get());
            let is_old = seen.freshness.is_stale()
                || ended.is_some_and(|all| !all.log.borrow().publications().is_empty());
            if is_old && !self.refresh(ino, seen, own, false).await {
                return None;
            }
            if let Some(ended) = ended.filter(|_| seen.version() != 0) {
                ended.log.borrow_mut().acknowledge_all();
            }
            let (extents, sealed) = {
                let visible = seen.visible.borrow();
                (visible.extents.clone(), visible.sealed)
            };
            let asked = seen.asked.get();
            let log = shared.as_ref().map(|shared| shared.log.borrow());
            let size = log
                .as_ref()
                .map_or(extents.size, |log| log.size_over(extents.size));
            let over = log
                .as_ref()
                .map(|log| log.over(&(0..size)))
                .unwrap_or_default();
            drop(log);
            let here = own.map(|own| (own.object, Rc::clone(&own.content.borrow())));
            let mut bytes = vec![0; index(size)];
            let mut all = true;
            for extent in extents.within(0..size) {
                let part = &extents.parts[extent.at.part];
                let held = here.as_ref().filter(|(object, _)| *object == part.object.0);
                let held = match held {
                    Some((_, content)) => Some(Rc::clone(content)),
                    None => self.fetch(part.replicas[0].node.0, part.object.0).await,
                };
                match held {
                    Some(content) => fill(&mut bytes, &extent, &content),
                    None => all = false,
                }
            }
            for (cut, extents) in over {
                bytes
                    .iter_mut()
                    .skip(index(cut.unwrap_or(size)))
                    .for_each(|byte| *byte = 0);
                for extent in extents {
                    let (_, content) = here.as_ref()?;
                    fill(&mut bytes, &extent, content);
                }
            }
            if all && sealed && own.is_none() {
                let version = seen.visible.borrow().version;
                self.0.model.borrow_mut().holds(version, &bytes);
            }
            if all {
                return Some((bytes, asked, sealed));
            }
            // The parts may have changed with the seal.
            seen.freshness.mark();
        }
        None
    }

    pub(super) async fn find(&self, path: &str) -> Option<v1::Attr> {
        let resolve = v1::Resolve {
            path: path.as_bytes().to_vec(),
            ..v1::Resolve::default()
        };
        match self.one(Op::Resolve(resolve)).await {
            Ok(Named::Entry(entry)) => entry.attr,
            _ => None,
        }
    }

    /// Opens a file for reading: the version that is written on this mount, or the version that the server names. Also returns the time
    /// since which all changes must be visible.
    pub(super) async fn open(&self, ino: u64) -> Option<(OpenFile, u64)> {
        for _ in 0..TRIES {
            let asked = self.tick();
            let here = self.0.written.borrow().get(&ino).cloned();
            let is_open = |written: &SimulatedWrite| match written.phase.get() {
                WritePhase::Starting => false,
                WritePhase::Open => true,
                // A version that is being sealed is read in the state in which it was written.
                WritePhase::Sealing => written.is_shared(),
            };
            if let Some(written) = here {
                if !is_open(&written) {
                    self.pause(PAUSE_MS).await;
                    continue;
                }
                let shared = written.shared.borrow().clone();
                if let Some(shared) = shared
                    && (!self.refresh(ino, &shared.seen, Some(&written), true).await
                        || shared.seen.visible.borrow().sealed)
                {
                    self.pause(PAUSE_MS).await;
                    continue;
                }
                return Some((OpenFile::Here(written), asked));
            }
            let content = true;
            let attr = match self.one(Op::GetAttr(v1::GetAttr { ino, content })).await {
                // A file that was closed after it lost its last name belongs to nobody.
                Ok(Named::Attr(attr)) if attr.nlink > 0 => attr,
                _ => return None,
            };
            let id = if attr.multi_writer == 0 {
                attr.object
            } else {
                attr.multi_writer
            };
            if id == 0 {
                return Some((OpenFile::Nothing, asked));
            }
            let open = v1::Open {
                ino,
                multi_writer: true,
                ..v1::Open::default()
            };
            let Ok(Named::Opened(opened)) = self.one(Op::Open(open)).await else {
                return None;
            };
            if opened.object != id || opened.attr.is_some_and(|attr| attr.nlink == 0) {
                self.release(ino, opened.object);
                continue;
            }
            let reported = match (opened.multi_writer, opened.layout) {
                (Some(reported), _) => reported,
                (None, None) => return Some((OpenFile::Whole(id, opened.node), asked)),
                (None, sealed) => v1::MultiWriter {
                    version: id,
                    size: opened.size,
                    sealed,
                    ..v1::MultiWriter::default()
                },
            };
            let seen = Rc::new(VisibleState::default());
            let known = (ino, Rc::downgrade(&seen));
            self.0.seen.borrow_mut().push(known);
            self.adopt(&seen, &reported);
            seen.asked.set(asked);
            if self.refresh(ino, &seen, None, true).await {
                return Some((OpenFile::Extents(seen), asked));
            }
        }
        None
    }

    pub(super) fn release(&self, ino: u64, object: u64) {
        let me = self.clone();
        let op = Op::Release(v1::Release { ino, object });
        self.begin(async move { drop(me.one(op).await) });
    }

    /// Reads a file that is open and compares its content with the model.
    pub(super) async fn read(&self, ino: u64, file: &OpenFile, opened: u64) {
        let next = match file {
            OpenFile::Extents(seen) => seen.next.borrow().clone(),
            OpenFile::Here(written) => {
                let shared = written.shared.borrow();
                shared
                    .as_ref()
                    .and_then(|shared| shared.seen.next.borrow().clone())
            }
            OpenFile::Nothing | OpenFile::Whole(..) => None,
        };
        if let Some(next) = next {
            return Box::pin(self.read(ino, &OpenFile::Here(next), opened)).await;
        }
        let began = self.tick();
        let mut since = opened;
        let mut of_extents = |read: Option<(Vec<u64>, u64, bool)>| {
            let (bytes, asked, sealed) = read?;
            let at_once = self.0.prompt && !sealed;
            since = opened.max(if at_once { began } else { asked });
            Some(bytes)
        };
        let mut own = None;
        let bytes = match file {
            OpenFile::Nothing => Some(Vec::new()),
            OpenFile::Whole(object, node) => {
                let content = self.fetch(*node, *object).await;
                if let Some(content) = &content {
                    self.0.model.borrow_mut().holds(*object, content);
                }
                content.map(|content| content.to_vec())
            }
            OpenFile::Extents(seen) => of_extents(self.read_extents(ino, seen, None).await),
            OpenFile::Here(written) => {
                own = Some((written.opening, began));
                let shared = written.shared.borrow().clone();
                match shared {
                    Some(shared) => {
                        of_extents(self.read_extents(ino, &shared.seen, Some(written)).await)
                    }
                    None => Some(written.content.borrow().to_vec()),
                }
            }
        };
        if let Some(bytes) = bytes {
            let mut model = self.0.model.borrow_mut();
            let by = match own {
                Some(_) => "who writes it",
                None => "who opened it",
            };
            model.read((ino, own), (opened, since), &bytes, by);
        }
    }
}

pub(super) fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

/// Copies the bytes of an extent to their position in a file; bytes that the part does not hold are holes.
pub(super) fn fill(bytes: &mut [u64], extent: &Extent, content: &[u64]) {
    for byte in 0..extent.length {
        let held = content.get(index(extent.at.offset + byte));
        bytes[index(extent.offset + byte)] = held.copied().unwrap_or(0);
    }
}
