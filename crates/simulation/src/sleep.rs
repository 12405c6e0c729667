//! Suspended elements: the server asks an element to suspend, and only a process remains that waits for the request to resume.

use crate::world::World;
use tidemill_wire::v1;

/// Longest time for which an element waits until the server has received its report, in milliseconds.
const LAST_WORD_MS: u64 = 5000;
/// Longest pause between two manual requests to suspend or resume an element, in milliseconds.
const PAUSE_MS: u64 = 8000;
/// Time in which suspended elements must resume after the faults have stopped, in milliseconds.
const WAKE_MS: u64 = 60_000;

impl World {
    /// Suspends an element, or resumes it, by a manual request.
    pub(crate) fn suspend_some(&mut self) {
        let element = self.dice.roll(self.elements.len() as u64);
        let element = u32::try_from(element).unwrap_or(0);
        let wakes = self.dice.chance(300);
        if let Some(server) = &self.server {
            self.say(&format!("element {element} is to sleep, or wake: {wakes}"));
            match wakes {
                true => server.wake_element(element),
                false => server.suspend_element(element),
            }
        }
        if !self.calm.get() {
            let delay = 1 + self.dice.roll(PAUSE_MS);
            self.later(delay, "somebody suspends an element", World::suspend_some);
        }
    }

    /// Handles an element's report that it suspends itself: the element ends when the server has received the report, or after a while.
    pub(crate) fn falls(&mut self, element: usize) {
        self.send_from_element(element);
        let (life, delay) = (self.elements[element].lives, self.dice.roll(LAST_WORD_MS));
        self.later(delay, "element falls asleep", move |world| {
            if world.elements[element].lives == life {
                world.fall_asleep(element);
            }
        });
    }

    pub(crate) fn fall_asleep(&mut self, element: usize) {
        if !self.elements[element].fall_asleep() {
            return;
        }
        self.say("element sleeps");
        if let Some(wire) = self.attached[element].take() {
            self.cut(wire);
        }
        let delay = self.dice.roll(50);
        self.later(delay, "connect", move |world| world.connect(element));
    }

    /// Handles a message for a suspended element.
    pub(crate) fn sleeper_hears(&mut self, element: usize, message: &v1::to_element::Message) {
        if let v1::to_element::Message::Wake(_) = message {
            self.say("element wakes");
            if let Some(wire) = self.attached[element].take() {
                self.cut(wire);
            }
            self.elements[element].asleep = false;
            let delay = self.dice.between(1, 3000);
            self.later(delay, "start element", move |world| {
                world.start_element(element);
            });
        }
    }

    /// Requests all elements to resume.
    pub(crate) fn wake_all(&mut self) {
        let Some(server) = &self.server else { return };
        for element in &self.elements {
            server.wake_element(element.id);
        }
    }

    /// Checks that every element resumes when it is needed.
    pub(crate) fn check_awake(&mut self) {
        if !self.sleeps {
            return;
        }
        let end = self.now + WAKE_MS;
        let mut awake = std::collections::BTreeSet::new();
        while self.now < end && awake.len() < self.elements.len() {
            self.wake_all();
            self.run_until(self.now + 100);
            let up = self.elements.iter().filter(|element| {
                let server = self.server.as_ref();
                server.is_some_and(|server| server.is_awake(element.id))
            });
            awake.extend(up.map(|element| element.id));
        }
        assert_eq!(awake.len(), self.elements.len(), "only {awake:?} wake");
        let wakes = self.ask("SELECT coalesce(sum(wakes), 0) FROM sleep");
        let wakes = wakes.first().map(|line| line.replace("Integer(", ""));
        let wakes = wakes.and_then(|text| text.trim_end_matches(')').parse().ok());
        self.wakes = wakes.unwrap_or(0);
    }
}
