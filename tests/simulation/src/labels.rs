//! Simulation of labels on nodes: labels arrive, run for a while, end and are recorded.

use crate::bit_rot::verified;
use crate::hooks::Hooked;
use crate::node::{Did, broke, copied, done, removed};
use crate::store::ObjectContent;
use crate::world::World;
use tidemill_model::id::{LabelId, ObjectId};
use tidemill_model::label::{Analysis, FailureKind, LabelInput, LabelOutput, Operation};
use tidemill_node::labels::Live;
use tidemill_wire::v1::{self, label::Operation as Sent, to_node::Message as To};

/// Usual maximum run time of a kernel, in milliseconds; the next constant is a rare maximum.
const RUN_MS: u64 = 300;
const LONG_RUN_MS: u64 = 20_000;
/// Longest time for which changes wait for the commit of a node's database, in milliseconds.
const COMMIT_MS: u64 = 5;

/// Returns a short description of a message.
fn brief(message: &To) -> String {
    match message {
        To::Labels(labels) => {
            let ids: Vec<u64> = labels.labels.iter().map(|label| label.id).collect();
            format!("labels {ids:?}")
        }
        To::Abort(abort) => format!("abort {}", abort.label),
        To::Reschedule(reschedule) => format!("reschedule {}", reschedule.label),
        To::Ack(ack) => format!("ack {:?}", ack.labels),
        To::Welcome(_) => "welcome".into(),
        To::Peers(_) => "peers".into(),
        To::Revoke(_) => "rights that ended".into(),
        To::FindPrograms(_) => "a question for programs".into(),
        To::Probe(_) => "a question for load".into(),
        To::Suspend(_) => "suspend".into(),
        To::Resume(_) => "resume".into(),
        To::Log(copy) => format!("a piece of the log {}", copy.name),
        To::Files(files) => format!("{} files of objects", files.files.len()),
    }
}

impl World {
    /// Delivers a message to a node.
    pub(crate) fn deliver_to_node(&mut self, node: usize, message: To) {
        if self.nodes[node].suspended {
            return self.suspended_receives(node, &message);
        }
        if self.nodes[node].life.is_none() {
            return;
        }
        if self.verbose {
            self.say(&format!("node {node} hears {}", brief(&message)));
        }
        if let To::Labels(labels) = &message {
            for label in &labels.labels {
                self.note_label(node, label);
            }
        }
        let suspending = self.nodes[node].suspending;
        self.nodes[node].hear(message);
        self.process_pending(node);
        if self.nodes[node].suspending && !suspending {
            self.is_suspending(node);
        }
    }

    /// Checks that no id of a label or of an output is ever used for another label or object.
    fn note_label(&mut self, node: usize, label: &v1::Label) {
        let (what, outputs) = match &label.operation {
            Some(Sent::Analyse(analyse)) => (Ok(analyse.task), analyse.outputs.as_slice()),
            Some(Sent::Remove(remove)) => (Err(remove.objects.clone()), [].as_slice()),
            Some(Sent::Copy(copy)) => (Err(vec![copy.to]), [].as_slice()),
            Some(Sent::Verify(verify)) => (Err(verify.objects.clone()), [].as_slice()),
            other => panic!("unexpected operation {other:?}"),
        };
        let sent = (node, what);
        let known = self.labels.entry(label.id).or_insert_with(|| sent.clone());
        assert_eq!(*known, sent, "label {} is used twice", label.id);
        for output in outputs {
            let user = format!("label {}", label.id);
            self.reference.uses(output.object, &user);
        }
    }

    /// Handles a node's pending messages, database commits and labels.
    pub(crate) fn process_pending(&mut self, node: usize) {
        self.go_on(node);
        let lives = self.nodes[node].lives;
        let Some(life) = &mut self.nodes[node].life else {
            return;
        };
        if !std::mem::replace(&mut life.commit_due, true) {
            let delay = self.dice.roll(COMMIT_MS);
            self.later(delay, "node commits", move |world| {
                if world.nodes[node].lives == lives {
                    world.nodes[node].commit();
                    world.go_on(node);
                    world.take_sealed();
                }
            });
        }
    }

    fn go_on(&mut self, node: usize) {
        let lives = self.nodes[node].lives;
        for label in self.nodes[node].begin() {
            let long = self.dice.chance(20);
            let time = 1 + self.dice.roll(if long { LONG_RUN_MS } else { RUN_MS });
            self.later(time, "kernel ends", move |world| {
                world.ran(node, lives, label)
            });
        }
        self.send_from_node(node);
    }

    /// Ends the run of a label's kernel on a node.
    pub(crate) fn ran(&mut self, node: usize, lives: u64, label: LabelId) {
        if self.nodes[node].lives != lives {
            return;
        }
        if self.waits_for_writer(node, lives, label) {
            return;
        }
        let Some(life) = &mut self.nodes[node].life else {
            return;
        };
        let Some(live) = life.running.remove(&label) else {
            return;
        };
        let Did { work, objects } = self.work(node, &live);
        for (object, bytes) in objects {
            let adopted = self.nodes[node].store.adopt(object, bytes);
            adopted.expect("a full store was seen before");
            self.reference.holds(object, bytes);
        }
        if let Some(life) = &self.nodes[node].life {
            life.labels.end(label, work);
        }
        self.process_pending(node);
    }

    fn work(&mut self, node: usize, live: &Live) -> Did {
        let analysis = match &live.label.operation {
            Operation::Analyse(analysis) => analysis,
            Operation::Remove { objects } => return self.unlink(node, live, objects),
            Operation::Copy { from, to, .. } => return self.copy(node, live, from, to),
            Operation::Verify { objects, .. } => {
                return verified(&mut self.nodes[node], live, objects);
            }
        };
        if self.dice.chance(self.fault_mix.kernel) {
            let hooked = self.hooked.as_mut();
            let kind = hooked.map_or(FailureKind::Exit(1), Hooked::failure);
            return broke(live, kind);
        }
        if self.nodes[node].store.full {
            return broke(live, FailureKind::Device);
        }
        let corrupt = analysis.inputs.iter();
        let corrupt =
            corrupt.filter(|input| self.finds_corrupt(node, input.node.0, input.object.0));
        if corrupt.count() > 0 {
            return broke(live, FailureKind::Input);
        }
        let inputs: Result<Vec<ObjectContent>, String> = analysis
            .inputs
            .iter()
            .map(|input| {
                let found = self.fetch(node, input.node.0, input.object.0);
                found.ok_or_else(|| format!("input {} can't be had", input.name))
            })
            .collect();
        let cached_result = inputs
            .as_ref()
            .ok()
            .and_then(|inputs| self.recall(node, live, analysis, inputs));
        let hashes = self.dice.chance(300);
        done(live, analysis, inputs, cached_result, hashes)
    }

    fn copy(&mut self, node: usize, live: &Live, from: &LabelInput, to: &LabelOutput) -> Did {
        if self.nodes[node].store.full {
            return broke(live, FailureKind::Device);
        }
        // The node asks the node that it copies from.
        let source = self.nodes.iter_mut().find(|one| one.id == from.node.0);
        let source = source.filter(|source| source.life.is_some());
        let Some(source) = source else {
            return broke(live, FailureKind::Input);
        };
        if source.find_corruption(from.object.0) {
            return broke(live, FailureKind::Input);
        }
        match source.store.read(from.object.0) {
            Some(bytes) => copied(live, to, bytes),
            None => broke(live, FailureKind::Input),
        }
    }

    /// Returns whether an input of a task has changed or vanished; the input's node then records this. In reality a change is only noticed
    /// later, and the task has computed its output from the changed input.
    fn finds_corrupt(&mut self, here: usize, from: u32, object: u64) -> bool {
        let there = self.nodes.iter().position(|one| one.id == from);
        let readers = [Some(here), there].into_iter().flatten();
        let mut found = false;
        for reader in readers.filter(|&reader| self.corrupted.contains(&(reader, object))) {
            let node = &mut self.nodes[reader];
            found |= node.life.is_some() && node.find_corruption(object);
        }
        found
    }

    fn unlink(&mut self, node: usize, live: &Live, objects: &[ObjectId]) -> Did {
        let mut gone = Vec::new();
        for &object in objects {
            let others = self
                .nodes
                .iter()
                .filter(|other| other.id != self.nodes[node].id);
            let others = others.filter(|other| {
                let store = &other.store;
                store.objects.contains_key(&object.0) && !store.is_corrupt(object.0)
            });
            let good = !self.nodes[node].store.is_corrupt(object.0);
            let last = good && others.count() == 0 && self.reference.is_current(object.0);
            assert!(
                !last || !self.knew_of_corruption(live, object),
                "the last replica of object {object} is removed, and it has a name"
            );
            // Nobody could know that the other replicas have changed. In this case the simulated device does not allow the removal before the
            // change is noticed.
            if !self.dice.chance(self.fault_mix.unlink) && !last {
                self.nodes[node].store.objects.remove(&object.0);
                gone.push(object);
            }
        }
        let all = gone.len() == objects.len();
        removed(live, gone, all)
    }

    /// Returns whether the server knew that no other replica is good when it decided to remove a replica. The answer is true if no replica
    /// was ever corrupted.
    fn knew_of_corruption(&self, live: &Live, object: ObjectId) -> bool {
        if !self
            .corrupted
            .iter()
            .any(|&(_, corrupted)| corrupted == object.0)
        {
            return true;
        }
        let Some(server) = &self.server else {
            return false;
        };
        let sql = "SELECT EXISTS (SELECT 1 FROM replica CROSS JOIN label ON label.label = ?2 \
                   WHERE replica.object = ?1 AND state >= 3 AND want != 2 AND since < label.at)";
        let knew = server.read(|db| {
            let row = rusqlite::params![object.0.cast_signed(), live.label.id.0.cast_signed()];
            db.query_row(sql, row, |row| row.get(0))
        });
        knew.expect("the server's tables can be read")
    }

    /// Returns the bytes of an object: from the node `here`, or fetched from node `from`.
    fn fetch(&self, here: usize, from: u32, object: u64) -> Option<ObjectContent> {
        if object == 0 {
            return Some(ObjectContent { token: 0, size: 0 });
        }
        if let Some(bytes) = self.nodes[here].store.read(object) {
            return Some(bytes);
        }
        let from = self.nodes.iter().find(|node| node.id == from)?;
        from.life.as_ref()?;
        from.store.read(object)
    }

    /// Returns the outputs of an earlier task with the same code and the same content of inputs, if there is such a task.
    fn recall(
        &self,
        node: usize,
        live: &Live,
        analysis: &Analysis,
        inputs: &[ObjectContent],
    ) -> Option<Vec<ObjectContent>> {
        let memory = live.cached_result.as_ref()?;
        let code = format!("hash of {}", analysis.kernel.name());
        let mut expected = memory.contents.iter().zip(inputs);
        let same = expected
            .all(|(hash, input)| hash.is_empty() || *hash == format!("{:016x}", input.token));
        if memory.kernel_hash != code || !same || memory.outputs.len() != analysis.outputs.len() {
            return None;
        }
        let outputs = memory.outputs.iter();
        outputs
            .map(|output| self.fetch(node, output.node, output.object))
            .collect()
    }
}
