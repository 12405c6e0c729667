//! Simulation of several mounts that write the same files: their messages, and the checks of the bytes that they read.

mod model;
mod mount;
mod program;

use crate::dice::{Dice, mix};
use crate::port::{RunningClient, WorldAnswer};
use crate::store::ObjectContent;
use crate::transport::request;
use crate::world::World;
use model::Model;
use mount::{SimulatedMount, WrittenHere, fill};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use tidemill_meta::Fault;
use tidemill_model::layout::decode_extents;
use tidemill_server::simulated::{ChangeStream, PendingNames};
use tidemill_wire::v1::{self, name_op::Op};
use tokio::sync::oneshot::error::TryRecvError;

/// Longest pause between two broken streams of changes, in milliseconds.
const CUT_PAUSE_MS: u64 = 20_000;

/// Request of a client: the client, its life, the request's ticket.
type MountRequest = (usize, u64, u64);

/// State of the simulation of several mounts that write the same files.
#[derive(Debug)]
pub(crate) struct MultiWriter {
    dice: Dice,
    /// Whether no message is late, lost or cut.
    prompt: bool,
    model: Rc<RefCell<Model>>,
    /// Content of each object.
    contents: BTreeMap<u64, Rc<Vec<u64>>>,
    asked: Vec<(PendingNames, u64, Option<MountRequest>)>,
    mounts: BTreeMap<usize, MountKnowledge>,
    streams: u64,
}

/// State of a mount from the view of the simulated world.
#[derive(Debug, Default)]
struct MountKnowledge {
    written: WrittenHere,
    /// Stream of changes of the mount, with its number.
    stream: Option<(u64, ChangeStream)>,
    /// Arrival time of the last message to the mount.
    arrives: u64,
}

impl MultiWriter {
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Dice::new(mix(!seed));
        Self {
            prompt: dice.chance(300),
            dice,
            model: Rc::default(),
            contents: BTreeMap::new(),
            asked: Vec::new(),
            mounts: BTreeMap::new(),
            streams: 0,
        }
    }

    pub(crate) fn reads(&self) -> u64 {
        self.model.borrow().reads
    }

    pub(crate) fn mounts(&mut self) -> u64 {
        self.dice.between(2, 4)
    }

    pub(crate) fn is_prompt(&self) -> bool {
        self.prompt
    }

    /// Sets the content of an object. Returns its placeholder in the store of a node.
    pub(crate) fn put(&mut self, object: u64, content: &Rc<Vec<u64>>) -> ObjectContent {
        self.contents.insert(object, Rc::clone(content));
        ObjectContent {
            token: content
                .iter()
                .fold(mix(object), |sum, byte| mix(sum ^ byte)),
            size: content.len() as u64,
        }
    }

    pub(crate) fn content(&self, object: u64) -> Rc<Vec<u64>> {
        self.contents.get(&object).cloned().unwrap_or_default()
    }

    /// Ends the stream of a mount that has died. The model no longer requires the mount's writes that did not reach the server.
    fn forget(&mut self, number: usize) {
        let Some(here) = self.mounts.get_mut(&number) else {
            return;
        };
        here.stream = None;
        let mut model = self.model.borrow_mut();
        for written in here.written.borrow().values() {
            model.lose(written.ino, written.opening);
        }
    }
}

impl World {
    /// Starts a mount and returns its running client.
    pub(crate) fn begin_mount(&mut self, number: usize) -> Option<RunningClient> {
        let slot = &self.slots[number];
        let multi_writer = self.multi_writer.as_mut()?;
        let flags = (slot.in_place, multi_writer.prompt);
        let model = Rc::clone(&multi_writer.model);
        let (mount, written) =
            SimulatedMount::new(slot.port.clone(), model, Rc::clone(&self.calm), flags);
        let here = MountKnowledge {
            written,
            ..MountKnowledge::default()
        };
        multi_writer.mounts.insert(number, here);
        Some(RunningClient::new(mount.live()))
    }

    /// Ends a mount that has died or terminated.
    pub(crate) fn end_mount(&mut self, number: usize) {
        if let Some(multi_writer) = &mut self.multi_writer {
            multi_writer.forget(number);
        }
    }

    /// Opens the stream of changes of a mount.
    pub(crate) fn watch(&mut self, number: usize, life: u64) -> WorldAnswer {
        let (Some(server), Some(multi_writer)) = (&self.server, &mut self.multi_writer) else {
            return WorldAnswer::Lost;
        };
        let slot = &mut self.slots[number];
        if slot.life != life {
            return WorldAnswer::Lost;
        }
        let watched = match slot.session {
            0 => server.new_session(),
            known => Ok(known),
        };
        let watched = watched.and_then(|session| Ok((session, server.watch(session)?)));
        let Ok((session, changes)) = watched else {
            return WorldAnswer::Refused;
        };
        slot.session = session;
        multi_writer.streams += 1;
        let here = multi_writer.mounts.entry(number).or_default();
        here.stream = Some((multi_writer.streams, changes));
        WorldAnswer::Session
    }

    /// Begins to execute operations of a mount at the server.
    pub(crate) fn ask_names(&mut self, session: u64, ops: &[Op], question: Option<MountRequest>) {
        let (Some(server), Some(multi_writer)) = (&self.server, &mut self.multi_writer) else {
            return;
        };
        let asked = (server.ask(request(session, ops)), session, question);
        multi_writer.asked.push(asked);
    }

    /// Sends the server's answers and messages to mounts.
    pub(crate) fn take_together(&mut self) {
        let Some(multi_writer) = &mut self.multi_writer else {
            return;
        };
        let mut answers = Vec::new();
        let mut late = BTreeSet::new();
        multi_writer
            .asked
            .retain_mut(|(answered, session, question)| {
                let answer = match answered.try_recv() {
                    Err(TryRecvError::Empty) => return true,
                    Ok(Ok(results)) => WorldAnswer::Names(results),
                    Ok(Err(Fault::Closed)) | Err(TryRecvError::Closed) => WorldAnswer::Lost,
                    Ok(Err(_)) => WorldAnswer::Refused,
                };
                late.insert(*session);
                answers.extend(question.map(|question| (question, answer)));
                false
            });
        let mut news = Vec::new();
        for (&number, here) in &mut multi_writer.mounts {
            if let Some((stream, changes)) = &mut here.stream {
                while let Some(message) = changes.next_now() {
                    news.push((number, *stream, message));
                }
            }
        }
        // The session of a mount that has ended may have been waiting for these answers.
        late.retain(|&session| self.slots.iter().all(|slot| slot.session != session));
        late.into_iter()
            .for_each(|session| self.expect_session(session));
        for (question, answer) in answers {
            self.send_answer(question, answer);
        }
        for (number, stream, message) in news {
            self.send_news(number, stream, message);
        }
    }

    fn send_news(&mut self, number: usize, stream: u64, message: v1::Invalidation) {
        let delay = self.fault_mix.delay(&mut self.dice);
        let now = self.now;
        let Some(multi_writer) = &mut self.multi_writer else {
            return;
        };
        let here = multi_writer.mounts.entry(number).or_default();
        here.arrives = here.arrives.max(now + delay);
        let wait = here.arrives - now;
        self.later(wait, "to mount", move |world| {
            let here = world
                .multi_writer
                .iter()
                .flat_map(|all| all.mounts.get(&number));
            let open = here
                .flat_map(|here| &here.stream)
                .any(|(known, _)| *known == stream);
            if open {
                world.slots[number].port.tell(Some(message));
                world.poll(number);
            }
        });
    }

    /// Breaks the stream of changes of a mount: messages on their way are lost.
    pub(crate) fn cut_stream(&mut self, number: usize) {
        let Some(multi_writer) = &mut self.multi_writer else {
            return;
        };
        let Some(here) = multi_writer.mounts.get_mut(&number) else {
            return;
        };
        if here.stream.take().is_none() {
            return;
        }
        let life = self.slots[number].life;
        let delay = self.dice.roll(self.fault_mix.notice_ms.min(2000));
        self.later(delay, "mount notices", move |world| {
            if world.slots[number].life == life {
                world.slots[number].port.tell(None);
                world.poll(number);
            }
        });
    }

    pub(crate) fn cut_streams(&mut self) {
        let all = self.multi_writer.iter().flat_map(|all| all.mounts.keys());
        for number in all.copied().collect::<Vec<_>>() {
            self.cut_stream(number);
        }
    }

    /// Breaks the streams of random mounts at random times.
    pub(crate) fn cut_some(&mut self) {
        let Some(multi_writer) = &mut self.multi_writer else {
            return;
        };
        if self.calm.get() || multi_writer.prompt {
            return;
        }
        let number = multi_writer.dice.roll(self.slots.len() as u64);
        let delay = 1 + multi_writer.dice.roll(CUT_PAUSE_MS);
        self.cut_stream(usize::try_from(number).unwrap_or(0));
        self.later(delay, "a mount's stream breaks", World::cut_some);
    }

    /// Checks that the stored content of each file at the end is the visible content, and that no state of the file's writing remains.
    pub(crate) fn check_multi_writer(&self) {
        let (Some(multi_writer), Some(server)) = (&self.multi_writer, &self.server) else {
            return;
        };
        let mut model = multi_writer.model.borrow_mut();
        model.end();
        let files = server.read(files).expect("the server's tables can be read");
        for (ino, object, size, extents, parts) in files {
            let bytes = match extents {
                None => multi_writer.content(object).to_vec(),
                Some(extents) => {
                    let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
                    for extent in decode_extents(&extents).expect("extents can be read") {
                        fill(
                            &mut bytes,
                            &extent,
                            &multi_writer.content(parts[extent.at.part]),
                        );
                    }
                    bytes
                }
            };
            assert_eq!(bytes.len() as u64, size, "inode {ino} has another length");
            model.holds(object, &bytes);
            let now = model.tick();
            model.read((ino, None), (now, now), &bytes, "the namespace");
        }
        let left = self.ask("SELECT * FROM publication");
        assert!(left.is_empty(), "published, and never sealed: {left:?}");
        let open = self.ask("SELECT ino FROM inode WHERE writing != 0");
        assert!(open.is_empty(), "extents without a writer: {open:?}");
        assert!(multi_writer.asked.is_empty(), "requests wait for ever");
    }
}

/// Inode, version, size of the version, and the extents and parts if it has extents.
type KeptVersion = (u64, u64, u64, Option<Vec<u8>>, Vec<u64>);

fn files(db: &rusqlite::Connection) -> rusqlite::Result<Vec<KeptVersion>> {
    let sql = "SELECT ino, inode.object, inode.size, extents FROM inode LEFT JOIN layout ON layout.object = inode.object \
               WHERE kind = 1 AND inode.object != 0 ORDER BY ino";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([], |row| {
        let number = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
        Ok((number(0)?, number(1)?, number(2)?, row.get(3)?, Vec::new()))
    })?;
    let mut files = rows.collect::<rusqlite::Result<Vec<KeptVersion>>>()?;
    let sql = "SELECT part FROM part WHERE object = ?1 ORDER BY seq";
    let mut statement = db.prepare_cached(sql)?;
    for (_, object, _, _, parts) in &mut files {
        let rows = statement.query_map([object.cast_signed()], |row| row.get::<_, i64>(0))?;
        *parts = rows
            .map(|row| row.map(i64::cast_unsigned))
            .collect::<rusqlite::Result<_>>()?;
    }
    Ok(files)
}
