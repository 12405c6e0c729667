//! Transport of clients' requests over a network that loses requests and answers, to the production server and to nodes.

use crate::node::fill;
use crate::port::{OfNode, WorldAnswer, WorldRequest};
use crate::reference::NOENT;
use crate::store::StoreRefusal;
use crate::world::{ClientSlot, World};
use std::sync::Arc;
use tidemill_meta::{Caller, NamesRequest};
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Named};

/// Longest wait of a client for an answer, in milliseconds.
const PATIENCE_MS: u64 = 20_000;
/// Time after which a disconnected mount counts as dead, in milliseconds.
const MOUNT_TIMEOUT_MS: u64 = 10_000;

/// Request of a client: the client, its life, the request's ticket.
type ClientRequest = (usize, u64, u64);

/// Returns whether a request may reach the server twice, as a repeated request of a mount may.
fn repeatable(ops: &[Op]) -> bool {
    !ops.iter()
        .any(|op| matches!(op, Op::Rename(_) | Op::Unlink(_) | Op::Open(_)))
}

/// Returns the request of a mount with these operations, as the user of all programs.
pub(crate) fn request(session: u64, ops: &[Op]) -> NamesRequest {
    let op = |op: &Op| v1::NameOp {
        op: Some(op.clone()),
    };
    NamesRequest {
        caller: Caller {
            uid: 1000,
            gid: 1000,
            groups: Vec::new(),
            checked: true,
            administrator: true,
        },
        session,
        durable: false,
        ops: ops.iter().map(op).collect(),
    }
}

impl ClientSlot {
    /// Records the object that a client writes from now on.
    fn begins_to_write(&mut self, ops: &[Op], results: &[v1::NameResult]) {
        for (op, result) in ops.iter().zip(results) {
            let ino = match op {
                Op::Create(create) => create.ino,
                Op::NewVersion(version) => version.ino,
                Op::Overflow(overflow) => overflow.ino,
                Op::Seal(_) | Op::Abandon(_) | Op::Release(_) => {
                    self.writes = None;
                    continue;
                }
                _ => continue,
            };
            if let Some(Named::Opened(opened)) = &result.result {
                self.writes = Some((ino, opened.object, opened.node));
            }
        }
    }
}

impl World {
    /// Sends a request of a client. Returns whether the request was answered at once.
    pub(crate) fn carry(
        &mut self,
        number: usize,
        life: u64,
        ticket: u64,
        ask: WorldRequest,
    ) -> bool {
        let question = (number, life, ticket);
        match ask {
            WorldRequest::Sleep(ms) => {
                self.later(ms, "client wakes", move |world| {
                    world.answer(number, life, ticket, WorldAnswer::Done);
                });
                false
            }
            WorldRequest::Node(node, what) => {
                let index = self.nodes.iter().position(|known| known.id == node);
                let index = index.expect("the server names nodes that there are");
                self.ask_node(question, index, what)
            }
            ask => {
                self.ask_server(question, ask);
                false
            }
        }
    }

    fn ask_server(&mut self, question: ClientRequest, ask: WorldRequest) {
        if self.dice.chance(self.fault_mix.lost) {
            return self.lose(question);
        }
        let delay = self.fault_mix.delay(&mut self.dice);
        // If the client is killed before it arrives, the copy is the last request of its session.
        let session = self.slots[question.0].session;
        if let WorldRequest::Names(ops) = &ask
            && repeatable(ops)
            && self.dice.chance(self.fault_mix.twice)
        {
            let (number, ops) = (question.0, ops.clone());
            let late = delay + self.dice.roll(100);
            self.later(late, "request comes twice", move |world| {
                match world.multi_writer {
                    Some(_) => world.ask_names(session, &ops, None),
                    None => drop(world.apply(number, session, &ops)),
                }
            });
        }
        self.later(delay, "request", move |world| {
            world.serve(question, session, ask)
        });
    }

    /// Drops a request or its answer: after a while the client learns that it gets no answer.
    fn lose(&mut self, (number, life, ticket): ClientRequest) {
        let wait = 1 + self.dice.roll(PATIENCE_MS);
        self.later(wait, "no answer", move |world| {
            world.answer(number, life, ticket, WorldAnswer::Lost);
        });
    }

    /// Executes a request at the server.
    fn serve(&mut self, question: ClientRequest, session: u64, ask: WorldRequest) {
        let (number, life, ticket) = question;
        let Some(server) = &self.server else {
            return self.lose(question);
        };
        let answer = match ask {
            WorldRequest::Names(ops) if self.multi_writer.is_some() => {
                return self.ask_names(session, &ops, Some(question));
            }
            WorldRequest::Watch => self.watch(number, life),
            WorldRequest::Names(ops) => self.apply(number, session, &ops),
            WorldRequest::Ids => {
                let ids = server.reserve(1, 1);
                ids.map_or(WorldAnswer::Refused, |(inode, object)| {
                    WorldAnswer::Ids(inode, object)
                })
            }
            WorldRequest::Session => match server.new_session() {
                Ok(session) => {
                    if self.slots[number].life == life {
                        self.slots[number].session = session;
                    }
                    WorldAnswer::Session
                }
                Err(_) => WorldAnswer::Refused,
            },
            WorldRequest::Submit(script) => {
                let submitted = server.submit(1000, script.text.clone());
                self.reference.asked(&script);
                self.submissions.push((submitted, number, life, ticket));
                return;
            }
            WorldRequest::Cancel(job) => {
                server.cancel(job);
                WorldAnswer::Done
            }
            WorldRequest::Node(..) | WorldRequest::Sleep(_) => WorldAnswer::Done,
        };
        self.send_answer(question, answer);
    }

    /// Sends an answer of the server to a client.
    pub(crate) fn send_answer(&mut self, question: ClientRequest, answer: WorldAnswer) {
        let (number, life, ticket) = question;
        if self.dice.chance(self.fault_mix.lost) {
            return self.lose(question);
        }
        let delay = self.fault_mix.delay(&mut self.dice);
        self.later(delay, "answer", move |world| {
            world.answer(number, life, ticket, answer)
        });
    }

    /// Executes operations on names and compares their results with the reference model.
    fn apply(&mut self, number: usize, session: u64, ops: &[Op]) -> WorldAnswer {
        let Some(server) = &self.server else {
            return WorldAnswer::Lost;
        };
        let slot = &mut self.slots[number];
        match server.apply(request(session, ops)) {
            Ok(results) => {
                if let (Some(Op::Open(_)), Some(Some(Named::Opened(opened)))) =
                    (ops.first(), results.first().map(|result| &result.result))
                    && slot.session == session
                {
                    slot.holds = Some((opened.object, self.server_life));
                }
                if slot.session == session {
                    slot.begins_to_write(ops, &results);
                }
                let missing = |result: &v1::NameResult| matches!(&result.result, Some(Named::Error(error)) if error.errno == NOENT);
                if results.iter().any(missing) {
                    // A workspace may have ended before the operation, at the same time.
                    self.take_memory_tier();
                }
                if self.verbose {
                    self.say(&format!("client {number}: {ops:?} -> {results:?}"));
                }
                self.reference.carried_out(ops, &results, &self.nodes);
                self.passes(ops, &results);
                for result in &results {
                    if let (true, Some(Named::Opened(opened))) = (self.bit_rots, &result.result) {
                        self.check_served(opened);
                    }
                }
                WorldAnswer::Names(results)
            }
            Err(_) => WorldAnswer::Refused,
        }
    }

    fn ask_node(&mut self, question: ClientRequest, node: usize, what: OfNode) -> bool {
        let (number, life, ticket) = question;
        if let (true, OfNode::Write(object, bytes)) = (self.slots[number].in_place, &what) {
            let written = self.nodes[node].store.write(*object, *bytes);
            self.slots[number].port.answer(ticket, of(written));
            return true;
        }
        if self.slots[number].in_place
            && let OfNode::Put(..) | OfNode::Fetch(_) = &what
        {
            let answer = self.put_or_fetch(node, &what);
            self.slots[number].port.answer(ticket, answer);
            return true;
        }
        if self.dice.chance(self.fault_mix.lost) {
            self.lose(question);
            return false;
        }
        let delay = self.fault_mix.delay(&mut self.dice);
        self.later(delay, "request to node", move |world| {
            if world.slots[number].life == life {
                world.serve_at_node(question, node, what);
            }
        });
        false
    }

    fn serve_at_node(&mut self, question: ClientRequest, node: usize, what: OfNode) {
        let (number, life, ticket) = question;
        if self.nodes[node].life.is_none() {
            return self.lose(question);
        }
        let answer = match what {
            OfNode::Write(object, bytes) => of(self.nodes[node].store.write(object, bytes)),
            OfNode::Put(..) | OfNode::Fetch(_) => self.put_or_fetch(node, &what),
            OfNode::Read(object) => self.read(number, node, object),
            OfNode::Seal(object, signed) => {
                // The answer is lost unless the seal is committed before, or if the node is killed.
                self.lose(question);
                let sealed = Arc::clone(&self.sealed);
                let at = (NodeId(self.nodes[node].id), ObjectId(object));
                let done = move |result| sealed.lock().push((question, at, result));
                self.nodes[node].seal(object, signed, done);
                self.process_pending(node);
                return self.take_sealed();
            }
        };
        let delay = self.fault_mix.delay(&mut self.dice);
        self.later(delay, "answer of node", move |world| {
            world.answer(number, life, ticket, answer);
        });
    }

    fn put_or_fetch(&mut self, node: usize, what: &OfNode) -> WorldAnswer {
        let store = &mut self.nodes[node].store;
        match (what, &mut self.multi_writer) {
            (OfNode::Put(object, content), Some(multi_writer)) => {
                let is_sealed = store.objects.get(object).is_some_and(|known| known.sealed);
                let is_written = !is_sealed && !store.full;
                if is_written {
                    let written = store.write(*object, multi_writer.put(*object, content));
                    written.expect("it is not sealed and has space");
                }
                if is_written {
                    WorldAnswer::Done
                } else {
                    WorldAnswer::Refused
                }
            }
            (OfNode::Fetch(object), Some(multi_writer)) if store.objects.contains_key(object) => {
                WorldAnswer::Content(multi_writer.content(*object))
            }
            _ => WorldAnswer::Refused,
        }
    }

    /// Reads an object for a client that has it open, and checks that its content is the sealed content.
    fn read(&mut self, number: usize, node: usize, object: u64) -> WorldAnswer {
        let read = self.nodes[node].store.read(object);
        match read {
            _ if self.corrupted.contains(&(node, object)) => {}
            Some(bytes) => assert_eq!(
                Some(bytes),
                self.reference.content(object),
                "object {object} reads otherwise than it was sealed"
            ),
            None if self.is_lost(object) => {}
            None => assert_ne!(
                self.slots[number].holds,
                Some((object, self.server_life)),
                "object {object} was removed though it is open"
            ),
        }
        WorldAnswer::Read
    }

    /// Returns the receipt of a node for an object.
    fn receipt(&self, (node, object): (NodeId, ObjectId), size: u64) -> Vec<u8> {
        let key = self.key.as_ref().expect("a server has started");
        key.receipt(node, object, size)
    }

    /// Answers the requests of clients for all seals that have been committed.
    pub(crate) fn take_sealed(&mut self) {
        let sealed = std::mem::take(&mut *self.sealed.lock());
        for ((number, life, ticket), at, result) in sealed {
            let answer = match result {
                Ok(size) => WorldAnswer::Sealed(size, self.receipt(at, size)),
                Err(_) => WorldAnswer::Refused,
            };
            if self.dice.chance(self.fault_mix.lost) {
                self.lose((number, life, ticket));
                continue;
            }
            let delay = self.fault_mix.delay(&mut self.dice);
            self.later(delay, "sealed", move |world| {
                world.answer(number, life, ticket, answer)
            });
        }
    }

    /// Kills a client. Another client takes its place after a while.
    pub(crate) fn kill_client(&mut self, number: usize) {
        self.end_mount(number);
        let slot = &mut self.slots[number];
        let session = std::mem::take(&mut slot.session);
        slot.running = None;
        slot.life += 1;
        if session != 0 {
            self.expect_session(session);
        }
        let delay = 1 + self.dice.roll(5000);
        let life = self.slots[number].life;
        self.later(delay, "client starts", move |world| {
            if world.slots[number].life == life {
                world.start_client(number);
            }
        });
    }

    /// Gives a mount some time to reconnect before it counts as dead.
    pub(crate) fn expect_session(&mut self, session: u64) {
        self.later(MOUNT_TIMEOUT_MS, "session ends", move |world| {
            world.end_session(session)
        });
    }

    /// Gives all mounts time to reconnect to a server that has just started.
    pub(crate) fn expect_sessions(&mut self) {
        let Some(server) = &self.server else { return };
        let sessions = server.read(|db| {
            let sql = "SELECT DISTINCT session FROM writing WHERE session != 0";
            let mut statement = db.prepare_cached(sql)?;
            let rows = statement.query_map([], |row| row.get::<_, i64>(0))?;
            rows.collect::<Result<Vec<_>, _>>()
        });
        let sessions = sessions.expect("a committed namespace can be read");
        for session in sessions {
            self.expect_session(session.cast_unsigned());
        }
        // Session 0 stands for files without a name that no mount may have open any more.
        self.expect_session(0);
    }

    fn end_session(&mut self, session: u64) {
        if session != 0 && self.slots.iter().any(|slot| slot.session == session) {
            return;
        }
        let Some(server) = &self.server else { return };
        let Ok(unfinished) = server.end_session(session) else {
            return self.expect_session(session);
        };
        for (node, version) in unfinished {
            self.finish(version.ino, version.object, node);
        }
    }

    /// Seals the bytes that reached the node before a mount died while writing, as if the mount closed the file.
    fn finish(&mut self, ino: u64, object: u64, node: u32) {
        let life = self.server_life;
        let delay = 1 + self.fault_mix.delay(&mut self.dice);
        self.later(delay, "server seals", move |world| {
            if world.server.is_none() || world.server_life != life {
                return;
            }
            let index = world.nodes.iter().position(|known| known.id == node);
            let index = index.expect("the server names nodes that there are");
            if world.nodes[index].life.is_none() {
                return world.later(1000, "server tries again", move |world| {
                    world.finish(ino, object, node);
                });
            }
            // If the seal was not committed, a repeated seal writes its row in the node's database.
            let op = match world.nodes[index].store.seal(object) {
                Ok(size) => Op::Seal(v1::Seal {
                    ino,
                    object,
                    size,
                    mtime: 1,
                    receipts: vec![world.receipt((NodeId(node), ObjectId(object)), size)],
                    ..v1::Seal::default()
                }),
                Err(StoreRefusal::Missing) => Op::Abandon(v1::Abandon { ino, object }),
                Err(StoreRefusal::Sealed | StoreRefusal::Full) => return,
            };
            world.finish_at_server(ino, object, node, op);
        });
    }

    fn finish_at_server(&mut self, ino: u64, object: u64, node: u32, op: Op) {
        let Some(server) = &self.server else { return };
        let request = NamesRequest {
            caller: Caller::root(),
            ops: vec![v1::NameOp {
                op: Some(op.clone()),
            }],
            ..NamesRequest::default()
        };
        match server.apply(request) {
            Ok(_) if self.multi_writer.is_some() => {}
            Ok(results) => self.reference.carried_out(&[op], &results, &self.nodes),
            Err(_) => self.later(1000, "server tries again", move |world| {
                world.finish(ino, object, node);
            }),
        }
    }

    /// Stops the server's database from growing (`full`), or lets it grow again.
    pub(crate) fn fill_server(&mut self, full: bool) {
        match &self.server {
            Some(server) => server.with_connection(|connection| fill(connection, full)),
            None => self.fill_disk(full),
        }
    }
}

fn of(written: Result<(), StoreRefusal>) -> WorldAnswer {
    match written {
        Ok(()) => WorldAnswer::Done,
        Err(_) => WorldAnswer::Refused,
    }
}
