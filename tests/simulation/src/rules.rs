//! Simulation of a rule during normal operation: every version that clients seal under a matching name triggers the rule once, and has one
//! result. Alternatively a hook maps files while they are written, together with another hook for the same files.

use crate::node::streaming_not_sealed;
use crate::world::World;
use tidemill_lang::rule::hook::kernel_of;
use tidemill_model::id::LabelId;

/// Directory for the results of the rule; the name of each result contains the object of the version.
pub(crate) const RULED: &str = "ruled";
/// Name of the kernel of the rule's tasks.
pub(crate) const KERNEL: &str = "sum";
const RULE: &str = r#"
name = "ruled"; workdir = "/"; pattern = "[ab]/f?"; retries = 20;
task = { kernel = "sum"; output = [ "ruled/{batch}" ]; };
"#;

/// Prefix of the names of the other hook's results.
pub(crate) const LETTER: &str = "x";
/// Interval at which a kernel looks for new bytes of an input that is still being written, in milliseconds.
const LOOK_MS: u64 = 40;

fn hook(name: &str, letter: &str, on: &str) -> String {
    format!(
        "name = \"{name}\"; workdir = \"/\"; pattern = \"[ab]/f?\"; retries = 20; \
         hook = {{ map = \"{KERNEL}\"; output = \"{RULED}/{letter}{{batch}}\"; on = \"{on}\"; }};"
    )
}

/// Returns the name of the kernel of the rule's tasks, as nodes know it.
pub(crate) fn kernel(hooks: bool) -> String {
    match hooks {
        true => kernel_of(KERNEL),
        false => KERNEL.to_owned(),
    }
}

/// Returns the id of the version that is part of a result's name.
pub(crate) fn made_for(name: &str) -> &str {
    name.strip_prefix(LETTER).unwrap_or(name)
}

impl World {
    pub(crate) fn make_rule(&mut self) {
        let on = if self.hooks && self.dice.chance(800) {
            "write"
        } else {
            "seal"
        };
        let server = self.server.as_ref().expect("the server has just started");
        if !self.hooks {
            return assert!(
                server.put_rule(RULE).is_some(),
                "an empty cluster takes a rule"
            );
        }
        for (name, letter) in [("mapped", ""), ("other", LETTER)] {
            let added = server.put_rule(&hook(name, letter, on));
            assert!(added.is_some(), "an empty cluster takes a hook");
        }
    }

    /// Returns whether a kernel waits for bytes that are still to be written. If so, schedules its continuation.
    pub(crate) fn waits_for_writer(&mut self, node: usize, lives: u64, label: LabelId) -> bool {
        let here = &self.nodes[node];
        let running = here.life.as_ref().and_then(|life| life.running.get(&label));
        let waits = running.is_some_and(|live| streaming_not_sealed(here, live));
        if waits {
            self.later(LOOK_MS, "kernel waits for bytes", move |world| {
                world.ran(node, lives, label);
            });
        }
        waits
    }

    /// Checks that each version has triggered the rule once, and has one task and one result.
    pub(crate) fn check_rules(&self) {
        if !self.rules {
            return;
        }
        for (what, sql) in [
            (
                "has not run",
                // A file that is deleted at once may be deleted before the rules see it.
                "SELECT * FROM version WHERE task = 0 AND version != 0 AND size > 0 \
                 AND EXISTS (SELECT 1 FROM inode WHERE inode.ino = version.ino AND nlink > 0) \
                 AND (CAST(path AS TEXT) GLOB '/a/f?' OR CAST(path AS TEXT) GLOB '/b/f?') \
                 AND NOT EXISTS (SELECT 1 FROM rule_run WHERE rule_run.object = version.object \
                 AND rule = (SELECT min(rule) FROM rule))",
            ),
            (
                "has run twice",
                "SELECT object, count(*) FROM rule_run GROUP BY rule, object HAVING count(*) > 1",
            ),
            (
                "has a task that it did not trigger",
                "SELECT task.task FROM task JOIN job USING (job) JOIN rule USING (rule) \
                 WHERE task.state != 7 AND NOT EXISTS (SELECT 1 FROM rule_run WHERE rule_run.task = task.task)",
            ),
            (
                "shares its task",
                "SELECT task, count(*) FROM rule_run WHERE task != 0 GROUP BY task HAVING count(*) > 1",
            ),
            (
                "has no result, or two",
                "SELECT object FROM rule_run JOIN rule USING (rule) WHERE state = 3 AND 1 != (SELECT count(*) FROM dirent \
                 WHERE name = CAST(iif(rule.name = 'other', 'x' || object, object) AS BLOB))",
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
