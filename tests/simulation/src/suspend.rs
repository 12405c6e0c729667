//! Suspended nodes: the server asks a node to suspend itself, and only a process remains that waits for the request to resume.

use crate::world::World;
use tidemill_wire::v1;

/// Longest time for which a node waits until the server has received its report that it suspends itself, in milliseconds.
const LAST_WORD_MS: u64 = 5000;
/// Longest pause between two manual requests to suspend or resume a node, in milliseconds.
const PAUSE_MS: u64 = 8000;
/// Time in which suspended nodes must resume after the faults have stopped, in milliseconds.
const RESUME_MS: u64 = 60_000;

impl World {
    /// Suspends a random node, or resumes it, by a manual request.
    pub(crate) fn suspend_some(&mut self) {
        let node = self.dice.roll(self.nodes.len() as u64);
        let node = u32::try_from(node).unwrap_or(0);
        let resumes = self.dice.chance(300);
        if let Some(server) = &self.server {
            self.say(&format!("node {node} is to suspend, or resume: {resumes}"));
            match resumes {
                true => server.resume_node(node),
                false => server.suspend_node(node),
            }
        }
        if !self.calm.get() {
            let delay = 1 + self.dice.roll(PAUSE_MS);
            self.later(delay, "somebody suspends a node", World::suspend_some);
        }
    }

    /// Handles a node's report that it suspends itself: the node ends when the server has received the report, or after a while.
    pub(crate) fn is_suspending(&mut self, node: usize) {
        self.send_from_node(node);
        let (life, delay) = (self.nodes[node].lives, self.dice.roll(LAST_WORD_MS));
        self.later(delay, "node is suspended", move |world| {
            if world.nodes[node].lives == life {
                world.complete_suspend(node);
            }
        });
    }

    pub(crate) fn complete_suspend(&mut self, node: usize) {
        if !self.nodes[node].complete_suspend() {
            return;
        }
        self.say("node is suspended");
        if let Some(wire) = self.attached[node].take() {
            self.cut(wire);
        }
        let delay = self.dice.roll(50);
        self.later(delay, "connect", move |world| world.connect(node));
    }

    /// Handles a message for a suspended node.
    pub(crate) fn suspended_receives(&mut self, node: usize, message: &v1::to_node::Message) {
        if let v1::to_node::Message::Resume(_) = message {
            self.say("node resumes");
            if let Some(wire) = self.attached[node].take() {
                self.cut(wire);
            }
            self.nodes[node].suspended = false;
            let delay = self.dice.between(1, 3000);
            self.later(delay, "start node", move |world| {
                world.start_node(node);
            });
        }
    }

    /// Requests all suspended nodes to resume.
    pub(crate) fn resume_all(&mut self) {
        let Some(server) = &self.server else { return };
        for node in &self.nodes {
            server.resume_node(node.id);
        }
    }

    /// Checks that every node resumes when work needs it.
    pub(crate) fn check_active(&mut self) {
        if !self.suspends {
            return;
        }
        let end = self.now + RESUME_MS;
        let mut active = std::collections::BTreeSet::new();
        while self.now < end && active.len() < self.nodes.len() {
            self.resume_all();
            self.run_until(self.now + 100);
            let up = self.nodes.iter().filter(|node| {
                let server = self.server.as_ref();
                server.is_some_and(|server| server.is_active(node.id))
            });
            active.extend(up.map(|node| node.id));
        }
        assert_eq!(active.len(), self.nodes.len(), "only {active:?} resume");
        let resumes = self.ask("SELECT coalesce(sum(resumes), 0) FROM node");
        let resumes = resumes.first().map(|line| line.replace("Integer(", ""));
        let resumes = resumes.and_then(|text| text.trim_end_matches(')').parse().ok());
        self.resumes = resumes.unwrap_or(0);
    }
}
