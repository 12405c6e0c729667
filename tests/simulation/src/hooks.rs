//! Simulation of hooks with all their features: batches whose results are reduced, files that are deleted after their map, two hooks for
//! the same files, and hooks that are added, changed and removed while files are written.

use crate::dice::{Dice, mix};
use crate::reference::Reference;
use crate::rules::{KERNEL, LETTER, RULED};
use crate::time;
use crate::world::World;
use rusqlite::Connection;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_lang::rule::hook::{InputAction, On};
use tidemill_model::label::FailureKind;

/// Directory for the results of batches.
pub(crate) const REDUCED: &str = "reduced";
/// Name of the kernel that reduces batches.
pub(crate) const REDUCE: &str = "max";
/// Names of the possible hooks, and the prefix of their results.
const HOOKS: [(&str, &str); 2] = [("mapped", ""), ("other", LETTER)];
/// Longest pause between two operations on hooks, in milliseconds.
const PAUSE_MS: u64 = 8000;
/// File that ends the batches which wait for a marker.
const MARKER: &str = "a/f0";

/// Condition that ends the batches of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatchEnds {
    Close,
    Files,
    Marker,
}

/// State of a hook from the view of its creator.
#[derive(Clone, Debug)]
struct SimulatedHook {
    rule: u64,
    on: On,
    inputs: InputAction,
    ends: Option<BatchEnds>,
    /// Time at which the hook was added, in nanoseconds since the epoch; `changed` is the time of its last change.
    since: u64,
    changed: u64,
    revision: u64,
    /// Whether failed maps were retried: later versions of a path may have been mapped before them.
    retried: bool,
}

/// State of the simulation of hooks.
#[derive(Debug)]
pub(crate) struct Hooked {
    dice: Dice,
    /// Whether hooks are neither changed nor removed.
    steady: bool,
    hooks: BTreeMap<&'static str, SimulatedHook>,
    /// Number of hooks that were ever added or changed: the results of each have different names.
    made: u64,
    /// Handling of files after their map, by rule and revision of the rule.
    inputs: BTreeMap<(u64, u64), InputAction>,
    /// Versions whose files were deleted.
    pub(crate) dropped: BTreeSet<u64>,
}

impl Hooked {
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Dice::new(mix(seed ^ 0x686f_6f6b));
        Self {
            steady: dice.chance(400),
            dice,
            hooks: BTreeMap::new(),
            made: 0,
            inputs: BTreeMap::new(),
            dropped: BTreeSet::new(),
        }
    }

    /// Returns a random hook as a user might write it.
    fn draw(&mut self, name: &str, letter: &str) -> (String, SimulatedHook) {
        let dice = &mut self.dice;
        self.made += 1;
        let on = [On::Write, On::Write, On::Seal, On::Group][index(dice.roll(4))];
        let inputs =
            [InputAction::Keep, InputAction::Delete, InputAction::Evict][index(dice.roll(3))];
        let reduces = dice.chance(700);
        let ends = [BatchEnds::Close, BatchEnds::Files, BatchEnds::Marker][index(dice.roll(3))];
        let files = 1 + dice.roll(6);
        // The number of files belongs to maps then.
        let ends = if on == On::Group && ends == BatchEnds::Files {
            BatchEnds::Close
        } else {
            ends
        };
        let ends = reduces.then_some(ends);
        let mut text = format!(
            "map = \"{KERNEL}\"; on = \"{}\"; inputs = \"{}\"; ",
            on.word(),
            inputs.word()
        );
        if reduces {
            text += &format!(
                "parts = \"{RULED}/{letter}{{batch}}\"; reduce = \"{REDUCE}\"; output = \"{REDUCED}/{}-{{batch}}\"; ",
                self.made
            );
        } else {
            text += &format!("output = \"{RULED}/{letter}{{batch}}\"; ");
        }
        if on == On::Group || ends == Some(BatchEnds::Files) {
            text += &format!("group = {files}; ");
        }
        if ends == Some(BatchEnds::Marker) {
            text += &format!("marker = \"{MARKER}\"; ");
        }
        let text = format!(
            "name = \"{name}\"; workdir = \"/\"; pattern = \"[ab]/f?\"; retries = 3; hook = {{ {text} }};"
        );
        let now = time::now().0;
        let hook = SimulatedHook {
            rule: 0,
            on,
            inputs,
            ends,
            since: now,
            changed: now,
            revision: 1,
            retried: false,
        };
        (text, hook)
    }

    /// Returns a random failure of a kernel: the kernel fails, crashes, hangs or uses too much memory.
    pub(crate) fn failure(&mut self) -> FailureKind {
        let kinds = [
            FailureKind::Exit(1),
            FailureKind::Signal(11),
            FailureKind::Timeout,
            FailureKind::OutputLimit,
            FailureKind::MemoryLimit,
        ];
        kinds[index(self.dice.roll(kinds.len() as u64))]
    }
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(0)
}

/// Returns the numbers in each row of a query's result.
fn rows<const N: usize>(db: &Connection, sql: &str) -> rusqlite::Result<Vec<[u64; N]>> {
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([], |row| {
        let mut numbers = [0; N];
        for (at, number) in numbers.iter_mut().enumerate() {
            *number = row.get::<_, i64>(at)?.cast_unsigned();
        }
        Ok(numbers)
    })?;
    rows.collect()
}

impl World {
    pub(crate) fn begin_hooks(&mut self) {
        for number in 0..HOOKS.len() {
            self.put_hook(number);
        }
        self.random_hook_operation();
    }

    fn put_hook(&mut self, number: usize) {
        let (Some(server), Some(hooked)) = (&self.server, &mut self.hooked) else {
            return;
        };
        let (name, letter) = HOOKS[number];
        let (text, mut hook) = hooked.draw(name, letter);
        // The server's database may be full.
        let Some(rule) = server.put_rule(&text) else {
            return;
        };
        hook.rule = rule;
        if let Some(before) = hooked.hooks.get(name) {
            assert_eq!(before.rule, rule, "hook {name} has another number");
            hook.since = before.since;
            hook.revision = before.revision + 1;
            hook.retried = before.retried;
        }
        hooked.inputs.insert((rule, hook.revision), hook.inputs);
        hooked.hooks.insert(name, hook);
        self.say(&text);
    }

    /// Adds, changes or removes a random hook, ends its batch, or retries its failures.
    fn random_hook_operation(&mut self) {
        let calm = self.calm.get();
        let Some(hooked) = self.hooked.as_mut().filter(|_| !calm) else {
            return;
        };
        let delay = 1 + hooked.dice.roll(PAUSE_MS);
        let number = index(hooked.dice.roll(HOOKS.len() as u64));
        let (name, _) = HOOKS[number];
        let (is_there, steady) = (hooked.hooks.contains_key(name), hooked.steady);
        match hooked.dice.roll(8) {
            _ if !is_there => self.put_hook(number),
            0 | 1 if !steady => self.put_hook(number),
            2 if !steady => self.remove_hook(name),
            3 => self.retry_hook(name),
            4 => self.end_batch(name),
            _ => {}
        }
        self.later(delay, "hooks", World::random_hook_operation);
    }

    fn remove_hook(&mut self, name: &'static str) {
        let (Some(server), Some(hooked)) = (&self.server, &mut self.hooked) else {
            return;
        };
        if server.remove_rule(name) {
            hooked.hooks.remove(name);
            self.say(&format!("hook {name} is removed"));
        }
    }

    fn retry_hook(&mut self, name: &'static str) {
        let (Some(server), Some(hooked)) = (&self.server, &mut self.hooked) else {
            return;
        };
        if let Some(hook) = hooked.hooks.get_mut(name) {
            server.retry_rule(name);
            hook.retried = true;
        }
    }

    fn end_batch(&self, name: &str) {
        if let Some(server) = &self.server {
            server.end_batch(name);
        }
    }

    /// Retries failed maps and reductions after the faults have stopped, and ends batches that only a user ends.
    pub(crate) fn finish_hooks(&mut self) {
        let failed = self.ask(
            "SELECT rule FROM rule_run WHERE state = 4 UNION SELECT rule FROM batch WHERE state = 4",
        );
        let Some(hooked) = &self.hooked else { return };
        let hooks: Vec<_> = hooked
            .hooks
            .iter()
            .map(|(name, hook)| (*name, hook.clone()))
            .collect();
        for (name, hook) in hooks {
            if failed.contains(&format!("Integer({})", hook.rule)) {
                self.retry_hook(name);
            }
            if let Some(BatchEnds::Files | BatchEnds::Marker) = hook.ends {
                self.end_batch(name);
            }
        }
    }

    /// Records files that hooks deleted after their map.
    pub(crate) fn take_dropped(&mut self) {
        let (Some(hooked), Some(server)) = (&mut self.hooked, &self.server) else {
            return;
        };
        let found = server.read(|db| rows::<2>(db, "SELECT object, rule FROM dropped"));
        for [object, rule] in found.expect("the server's tables can be read") {
            if hooked.dropped.insert(object) {
                let checked = server.read(|db| Ok(may_go(db, hooked, (object, rule))));
                checked
                    .expect("the server's tables can be read")
                    .expect("so can those of rules");
                self.reference.drops(object);
            }
        }
    }

    /// Checks that the versions of each path are mapped one after the other.
    pub(crate) fn check_order(&self) {
        if self.hooked.is_none() || self.server.is_none() {
            return;
        }
        let sql = "SELECT rule, path, count(*) FROM rule_run WHERE state IN (0, 2) GROUP BY rule, path HAVING count(*) > 1";
        let found = self.ask(sql);
        assert!(
            found.is_empty(),
            "versions of a path are mapped at once: {found:?}"
        );
    }

    /// Looks for pending work of hooks; no work is left once the cluster is at rest.
    pub(crate) fn look_at_hooks(&self, look: &mut impl FnMut(&str, Vec<String>)) {
        let Some(hooked) = &self.hooked else { return };
        let now = time::now().0;
        for (what, sql) in [
            (
                "a version was not mapped",
                "SELECT * FROM rule_run WHERE state = 4".to_owned(),
            ),
            ("a file is to go", "SELECT * FROM mapped".into()),
            (
                "a part is to go",
                format!("SELECT object FROM version WHERE expires > 0 AND expires <= {now}"),
            ),
        ] {
            look(what, self.ask(&sql));
        }
        for (name, hook) in hooked.hooks.iter().filter(|(_, hook)| hook.ends.is_some()) {
            let sql = format!(
                "SELECT * FROM batch WHERE state IN (0, 1, 2, 4) AND rule = {}",
                hook.rule
            );
            look(
                &format!("a batch of hook {name} has not been reduced"),
                self.ask(&sql),
            );
        }
    }

    /// Checks that each existing hook mapped each version once and in order, that results are reduced once, and that files were deleted.
    pub(crate) fn check_hooks(&self) {
        let Some(hooked) = &self.hooked else { return };
        for (name, hook) in &hooked.hooks {
            for (what, sql) in hook.wrong() {
                let found = self.ask(&sql);
                assert!(found.is_empty(), "hook {name}: a version {what}: {found:?}");
            }
        }
        for (what, sql) in [
            (
                "was mapped twice",
                "SELECT rule, object FROM rule_run GROUP BY rule, object HAVING count(*) > 1",
            ),
            (
                "is reduced twice",
                "SELECT part.object, count(*) FROM batch JOIN task ON task.job = batch.job \
                 JOIN task_input AS part USING (task) WHERE batch.state = 3 GROUP BY batch.rule, part.object HAVING count(*) > 1",
            ),
            (
                "failed for no reason",
                "SELECT * FROM rule_run WHERE state NOT IN (3, 5) AND error = ''",
            ),
        ] {
            let found = self.ask(sql);
            assert!(found.is_empty(), "a version {what}: {found:?}");
        }
    }
}

/// SQL condition: another hook has a rule run that still needs a version, or may need it.
const WANTED: &str = "EXISTS (SELECT 1 FROM rule_run AS other WHERE other.object = rule_run.object \
                      AND other.state IN (0, 1, 2, 4, 6) AND other.rule IN (SELECT rule FROM rule))";

/// Checks whether the file of a version could be deleted: it was mapped by a hook that requests deletion, the hook's result is recorded,
/// and no other hook has still to map the file.
fn may_go(db: &Connection, hooked: &Hooked, (object, rule): (u64, u64)) -> rusqlite::Result<()> {
    let hook: String = db.query_row(
        "SELECT hook FROM dropped WHERE object = ?1",
        [object.cast_signed()],
        |row| row.get(0),
    )?;
    let revision = hook
        .rsplit_once('@')
        .and_then(|(_, revision)| revision.parse().ok());
    let action = hooked.inputs.get(&(rule, revision.unwrap_or(0)));
    assert_eq!(
        action,
        Some(&InputAction::Delete),
        "object {object} went by {hook}"
    );
    let made = rows::<1>(
        db,
        &format!(
            "SELECT made.object FROM dropped JOIN task_output AS made USING (task) JOIN version ON version.object = made.object \
             WHERE dropped.object = {}",
            object.cast_signed()
        ),
    )?;
    assert_eq!(made.len(), 1, "object {object} went without a result");
    let wanted = rows::<1>(
        db,
        &format!(
            "SELECT rule FROM rule_run WHERE object = {} AND {WANTED}",
            object.cast_signed()
        ),
    )?;
    assert!(
        wanted.is_empty(),
        "object {object} went, and {wanted:?} had still to map it"
    );
    Ok(())
}

impl SimulatedHook {
    /// Returns descriptions of possible violations by hooks, with the queries that find them.
    fn wrong(&self) -> Vec<(&'static str, String)> {
        let Self {
            rule,
            since,
            changed,
            ..
        } = self;
        let current = "JOIN inode ON inode.ino = rule_run.ino AND inode.object = rule_run.object AND inode.writing = 0 \
                       JOIN dirent ON dirent.ino = inode.ino JOIN dirent AS directory ON directory.ino = dirent.parent \
                       AND rule_run.path = '/' || CAST(directory.name AS TEXT) || '/' || CAST(dirent.name AS TEXT)";
        let mut wrong = vec![
            (
                "was not mapped",
                format!(
                    "SELECT * FROM version WHERE task = 0 AND version != 0 AND size > 0 AND sealed_at > {since} \
                 AND EXISTS (SELECT 1 FROM inode WHERE inode.ino = version.ino AND nlink > 0) \
                 AND (CAST(path AS TEXT) GLOB '/a/f?' OR CAST(path AS TEXT) GLOB '/b/f?') \
                 AND NOT EXISTS (SELECT 1 FROM rule_run WHERE rule_run.object = version.object AND rule = {rule})"
                ),
            ),
            (
                "has no result, or two",
                format!(
                    "SELECT object FROM rule_run WHERE rule = {rule} AND state = 3 AND 1 != (SELECT count(*) FROM task_output \
                 WHERE task_output.task = rule_run.task)"
                ),
            ),
        ];
        if !self.retried {
            wrong.push((
                "was mapped before an earlier one",
                format!(
                    "SELECT * FROM rule_run JOIN rule_run AS later ON later.rule = rule_run.rule AND later.path = rule_run.path \
                     AND later.rule_run > rule_run.rule_run WHERE rule_run.rule = {rule} AND rule_run.state = 3 AND later.state = 3 \
                     AND later.ended < rule_run.ended"
                ),
            ));
        }
        if self.revision == 1 && self.on != On::Group {
            wrong.push((
                "shares its task",
                format!(
                    "SELECT task, count(*) FROM rule_run WHERE rule = {rule} AND task != 0 AND ended > {changed} \
                     GROUP BY task HAVING count(*) > 1"
                ),
            ));
        }
        if self.inputs == InputAction::Delete {
            wrong.push((
                "was not deleted",
                format!(
                    "SELECT rule_run.object FROM rule_run {current} WHERE rule = {rule} AND state = 3 AND ended > {changed} \
                     AND error = '' AND NOT {WANTED}"
                ),
            ));
        }
        if self.inputs == InputAction::Evict {
            wrong.push((
                "is in the burst tier and stored",
                format!(
                    "SELECT rule_run.object FROM rule_run {current} JOIN replica ON replica.object = rule_run.object \
                     WHERE rule = {rule} AND rule_run.state = 3 AND ended > {changed} AND replica.tier = 2 AND NOT {WANTED}"
                ),
            ));
        }
        wrong
    }
}

impl Reference {
    /// Checks that the result of a batch is computed from the results of the batch's files, in their order, each once.
    pub(crate) fn check_batch(&self, db: &Connection, object: u64, inputs: &[u64]) {
        let sql = format!(
            "SELECT rule_run.path, rule_run.rule_run, made.object FROM version JOIN task ON task.task = version.task \
             JOIN batch ON batch.job = task.job JOIN rule_run ON rule_run.rule = batch.rule AND rule_run.batch = batch.batch \
             AND rule_run.state = 3 JOIN task_output AS made ON made.task = rule_run.task WHERE version.object = {}",
            object.cast_signed()
        );
        let read = || -> rusqlite::Result<Vec<(String, i64, i64)>> {
            let mut statement = db.prepare(&sql)?;
            let rows =
                statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
            rows.collect()
        };
        let mut expected = read().expect("the tables of rules can be read");
        // The hook was removed, and its batches with it.
        if expected.is_empty() {
            return;
        }
        expected.sort();
        let mut parts: Vec<u64> = Vec::new();
        for (_, _, part) in expected {
            if !parts.contains(&part.cast_unsigned()) {
                parts.push(part.cast_unsigned());
            }
        }
        assert_eq!(inputs, parts, "a batch is made of other results");
    }
}
