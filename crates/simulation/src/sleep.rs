//! Elements that sleep: told to by the server, and gone but for a process that waits to be told to wake.

use crate::world::World;
use tidemill_wire::v1;

/// How long an element waits for the server to hear that it sleeps.
const LAST_WORD_MS: u64 = 5000;
/// How often somebody suspends or wakes an element by hand, at most.
const PAUSE_MS: u64 = 8000;
/// How long those that sleep may take to wake once the faults have stopped.
const WAKE_MS: u64 = 60_000;

impl World {
    /// Somebody suspends an element, or wakes it.
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

    /// An element has said that it sleeps: it ends when the server has heard that, or after a while.
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

    /// One that sleeps is told something.
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

    /// Whoever sleeps is wanted.
    pub(crate) fn wake_all(&mut self) {
        let Some(server) = &self.server else { return };
        for element in &self.elements {
            server.wake_element(element.id);
        }
    }

    /// Every element wakes when it is wanted.
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
