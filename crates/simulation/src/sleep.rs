//! Suspended nodes: the server asks a node to suspend, and only a process remains that waits for the request to resume.

use crate::world::World;
use tidemill_wire::v1;

/// Longest time for which a node waits until the server has received its report, in milliseconds.
const LAST_WORD_MS: u64 = 5000;
/// Longest pause between two manual requests to suspend or resume a node, in milliseconds.
const PAUSE_MS: u64 = 8000;
/// Time in which suspended nodes must resume after the faults have stopped, in milliseconds.
const WAKE_MS: u64 = 60_000;

impl World {
    /// Suspends a node, or resumes it, by a manual request.
    pub(crate) fn suspend_some(&mut self) {
        let node = self.dice.roll(self.nodes.len() as u64);
        let node = u32::try_from(node).unwrap_or(0);
        let wakes = self.dice.chance(300);
        if let Some(server) = &self.server {
            self.say(&format!("node {node} is to sleep, or wake: {wakes}"));
            match wakes {
                true => server.wake_node(node),
                false => server.suspend_node(node),
            }
        }
        if !self.calm.get() {
            let delay = 1 + self.dice.roll(PAUSE_MS);
            self.later(delay, "somebody suspends a node", World::suspend_some);
        }
    }

    /// Handles a node's report that it suspends itself: the node ends when the server has received the report, or after a while.
    pub(crate) fn falls(&mut self, node: usize) {
        self.send_from_node(node);
        let (life, delay) = (self.nodes[node].lives, self.dice.roll(LAST_WORD_MS));
        self.later(delay, "node falls asleep", move |world| {
            if world.nodes[node].lives == life {
                world.fall_asleep(node);
            }
        });
    }

    pub(crate) fn fall_asleep(&mut self, node: usize) {
        if !self.nodes[node].fall_asleep() {
            return;
        }
        self.say("node sleeps");
        if let Some(wire) = self.attached[node].take() {
            self.cut(wire);
        }
        let delay = self.dice.roll(50);
        self.later(delay, "connect", move |world| world.connect(node));
    }

    /// Handles a message for a suspended node.
    pub(crate) fn sleeper_hears(&mut self, node: usize, message: &v1::to_node::Message) {
        if let v1::to_node::Message::Wake(_) = message {
            self.say("node wakes");
            if let Some(wire) = self.attached[node].take() {
                self.cut(wire);
            }
            self.nodes[node].asleep = false;
            let delay = self.dice.between(1, 3000);
            self.later(delay, "start node", move |world| {
                world.start_node(node);
            });
        }
    }

    /// Requests all nodes to resume.
    pub(crate) fn wake_all(&mut self) {
        let Some(server) = &self.server else { return };
        for node in &self.nodes {
            server.wake_node(node.id);
        }
    }

    /// Checks that every node resumes when it is needed.
    pub(crate) fn check_awake(&mut self) {
        if !self.sleeps {
            return;
        }
        let end = self.now + WAKE_MS;
        let mut awake = std::collections::BTreeSet::new();
        while self.now < end && awake.len() < self.nodes.len() {
            self.wake_all();
            self.run_until(self.now + 100);
            let up = self.nodes.iter().filter(|node| {
                let server = self.server.as_ref();
                server.is_some_and(|server| server.is_awake(node.id))
            });
            awake.extend(up.map(|node| node.id));
        }
        assert_eq!(awake.len(), self.nodes.len(), "only {awake:?} wake");
        let wakes = self.ask("SELECT coalesce(sum(wakes), 0) FROM sleep");
        let wakes = wakes.first().map(|line| line.replace("Integer(", ""));
        let wakes = wakes.and_then(|text| text.trim_end_matches(')').parse().ok());
        self.wakes = wakes.unwrap_or(0);
    }
}
