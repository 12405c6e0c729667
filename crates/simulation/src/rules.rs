//! A rule beside all else: every version that clients seal under a matching name fires it once, and has one result.

use crate::world::World;

/// Where the rule puts its results, each called by the object of the version.
pub(crate) const RULED: &str = "ruled";
/// What its tasks run.
pub(crate) const KERNEL: &str = "sum";
const RULE: &str = r#"
name = "ruled"; workdir = "/"; pattern = "([ab])/f?"; retries = 20;
task = { kernel = "sum"; output = [ "ruled/${batch}" ]; };
"#;

impl World {
    pub(crate) fn make_rule(&mut self) {
        let server = self.server.as_ref().expect("the server has just started");
        assert!(server.add_rule(RULE), "an empty array takes a rule");
    }

    /// Each version has fired once, and has one task and one result.
    pub(crate) fn check_rules(&self) {
        if !self.rules {
            return;
        }
        for (what, sql) in [
            (
                "has not fired",
                "SELECT * FROM version WHERE task = 0 AND version != 0 AND size > 0 \
                 AND (CAST(path AS TEXT) GLOB '/a/f?' OR CAST(path AS TEXT) GLOB '/b/f?') \
                 AND NOT EXISTS (SELECT 1 FROM firing WHERE firing.object = version.object)",
            ),
            (
                "has fired twice",
                "SELECT object, count(*) FROM firing GROUP BY object HAVING count(*) > 1",
            ),
            (
                "has a task that it did not fire",
                "SELECT task.task FROM task JOIN rule_job ON rule_job.job = task.job \
                 WHERE NOT EXISTS (SELECT 1 FROM firing WHERE firing.task = task.task)",
            ),
            (
                "shares its task",
                "SELECT task, count(*) FROM firing WHERE task != 0 GROUP BY task HAVING count(*) > 1",
            ),
            (
                "has no result, or two",
                "SELECT object FROM firing WHERE state = 3 AND 1 != (SELECT count(*) FROM dirent \
                 WHERE name = CAST(object AS BLOB))",
            ),
            (
                "failed for no reason",
                "SELECT * FROM firing WHERE state NOT IN (3, 5) AND error = ''",
            ),
        ] {
            let found = self.ask(sql);
            assert!(found.is_empty(), "a version {what}: {found:?}");
        }
    }
}
