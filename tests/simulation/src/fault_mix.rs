//! Kinds and frequencies of faults in a run: each seed draws its own mix, so that faults that hide each other also occur alone.

use crate::dice::Dice;
use crate::world::World;

/// Mix of faults in a run, with probabilities in thousandths.
#[derive(Clone, Debug)]
pub(crate) struct FaultMix {
    /// Longest pause between two faults, in milliseconds.
    pub(crate) pause_ms: u64,
    faults: Vec<InjectedFault>,
    /// The server is killed right after a commit of the driver.
    pub(crate) kill_after_commit: u64,
    /// A message arrives twice.
    pub(crate) twice: u64,
    /// A client's request or its answer is lost.
    pub(crate) lost: u64,
    /// A message is late; `late_ms` is its longest delay.
    late: u64,
    late_ms: u64,
    /// A kernel fails.
    pub(crate) kernel: u64,
    /// Deleting an object fails.
    pub(crate) unlink: u64,
    /// Longest time until one side of a broken connection notices the break, in milliseconds.
    pub(crate) notice_ms: u64,
    pub(crate) node_timeout_ms: u64,
    pub(crate) node_offline_ms: u64,
    pub(crate) server_offline_ms: u64,
    /// Rate limit of repairs and migrations, in bytes per second; 0 for no limit.
    pub(crate) move_bytes_per_sec: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InjectedFault {
    KillNode,
    KillServer,
    KillClient,
    CutWire,
    NodeDatabaseFull,
    NodeFull,
    ServerDatabaseFull,
    QueueOffline,
}

static FAULTS: [(InjectedFault, &str); 8] = [
    (InjectedFault::KillNode, "kill-node"),
    (InjectedFault::KillServer, "kill-server"),
    (InjectedFault::KillClient, "kill-client"),
    (InjectedFault::CutWire, "cut-wire"),
    (InjectedFault::NodeDatabaseFull, "node-database-full"),
    (InjectedFault::NodeFull, "node-full"),
    (InjectedFault::ServerDatabaseFull, "server-database-full"),
    (InjectedFault::QueueOffline, "queue-offline"),
];

impl FaultMix {
    /// Returns a random mix of faults.
    pub(crate) fn draw(dice: &mut Dice) -> Self {
        let some = |dice: &mut Dice, most: u64| if dice.chance(500) { dice.roll(most) } else { 0 };
        let faults = FAULTS.into_iter().filter(|_| dice.chance(500));
        let faults = faults.map(|(fault, _)| fault).collect();
        Self {
            pause_ms: [500, 3000, 15_000][usize::try_from(dice.roll(3)).unwrap_or(0)],
            faults,
            kill_after_commit: some(dice, 30),
            twice: some(dice, 50),
            lost: some(dice, 50),
            late: some(dice, 50),
            late_ms: [100, 2000, 8000][usize::try_from(dice.roll(3)).unwrap_or(0)],
            kernel: some(dice, 100),
            unlink: some(dice, 100),
            notice_ms: [1, 500, 15_000][usize::try_from(dice.roll(3)).unwrap_or(0)],
            node_timeout_ms: [300, 3000, 10_000][usize::try_from(dice.roll(3)).unwrap_or(0)],
            node_offline_ms: [100, 3000, 30_000][usize::try_from(dice.roll(3)).unwrap_or(0)],
            server_offline_ms: [10, 1000, 20_000][usize::try_from(dice.roll(3)).unwrap_or(0)],
            move_bytes_per_sec: 0,
        }
    }

    /// Removes the named faults from the mix, to find out which fault a defect needs.
    pub(crate) fn leave_out(&mut self, without: &[String]) {
        let out = |name: &str| without.iter().any(|word| word == name);
        let named = |fault: &InjectedFault| FAULTS.iter().find(|(known, _)| known == fault);
        self.faults
            .retain(|fault| named(fault).is_none_or(|(_, name)| !out(name)));
        for (name, chance) in self.chances() {
            if out(name) {
                *chance = 0;
            }
        }
    }

    /// Removes delays of messages, losses of messages and deaths of the server from the mix.
    pub(crate) fn be_prompt(&mut self) {
        let names = ["kill-server", "kill-after-commit", "late", "lost"];
        self.leave_out(&names.map(str::to_owned));
    }

    /// Removes all faults from the mix.
    pub(crate) fn clear(&mut self) {
        self.faults.clear();
        for (_, chance) in self.chances() {
            *chance = 0;
        }
    }

    fn chances(&mut self) -> [(&'static str, &mut u64); 6] {
        [
            ("kill-after-commit", &mut self.kill_after_commit),
            ("twice", &mut self.twice),
            ("lost", &mut self.lost),
            ("late", &mut self.late),
            ("kernel", &mut self.kernel),
            ("unlink", &mut self.unlink),
        ]
    }

    /// Returns a random delay of a message, in milliseconds.
    pub(crate) fn delay(&self, dice: &mut Dice) -> u64 {
        if dice.chance(self.late) {
            dice.roll(self.late_ms)
        } else {
            dice.roll(3)
        }
    }
}

impl World {
    /// Draws the next fault of the mix and lets it happen.
    pub(crate) fn change_fault_mix(&mut self) {
        if self.fault_mix.faults.is_empty() {
            return;
        }
        let fault = self.dice.roll(self.fault_mix.faults.len() as u64);
        let fault = self.fault_mix.faults[usize::try_from(fault).unwrap_or(0)];
        self.say(&format!("{fault:?}"));
        let node = usize::try_from(self.dice.roll(self.nodes.len() as u64)).unwrap_or(0);
        match fault {
            InjectedFault::KillNode => self.kill_node(node),
            InjectedFault::KillServer => self.kill_server(),
            InjectedFault::KillClient => {
                let number = self.dice.roll(self.slots.len() as u64);
                self.kill_client(usize::try_from(number).unwrap_or(0));
            }
            InjectedFault::CutWire => {
                if let Some(wire) = self.attached[node] {
                    self.cut(wire);
                }
            }
            InjectedFault::NodeDatabaseFull => {
                self.nodes[node].fill_database(true);
                let delay = self.dice.roll(5000);
                self.later(delay, "node's database has space", move |world| {
                    world.nodes[node].fill_database(false);
                });
            }
            InjectedFault::NodeFull => {
                self.nodes[node].store.full = true;
                let delay = self.dice.roll(5000);
                self.later(delay, "node has space", move |world| {
                    world.nodes[node].store.full = false;
                });
            }
            InjectedFault::ServerDatabaseFull => {
                self.fill_server(true);
                let delay = self.dice.roll(2000);
                self.later(delay, "server's database has space", |world| {
                    world.fill_server(false)
                });
            }
            InjectedFault::QueueOffline => {
                let mute = self.dice.chance(500);
                self.fail_queue(!mute, mute);
                let delay = self.dice.roll(5000);
                self.later(delay, "the queue is available", |world| {
                    world.fail_queue(false, false);
                });
            }
        }
        let delay = 1 + self.dice.roll(self.fault_mix.pause_ms);
        self.later(delay, "fault mix", World::change_fault_mix);
    }

    fn fail_queue(&self, offline: bool, mute: bool) {
        if let Some(broker) = &self.broker {
            broker.fail(offline, mute);
        }
    }

    /// Stops all faults and gives all stores free space again; all daemons that are down restart by themselves.
    pub(crate) fn clear_up(&mut self) {
        self.fault_mix.clear();
        for node in &mut self.nodes {
            node.fill_database(false);
            node.store.full = false;
        }
        self.fill_server(false);
        self.fail_queue(false, false);
        self.calm.set(true);
    }
}
