//! Checks of the conditions that must hold some time after the faults have stopped.

use crate::world::World;
use rusqlite::Connection;
use std::collections::BTreeSet;
use tidemill_wire::v1::State;

/// Returns the rows of a query on the server's database, as lines.
fn lines(db: &Connection, sql: &str) -> rusqlite::Result<Vec<String>> {
    let mut statement = db.prepare_cached(sql)?;
    let columns = statement.column_count();
    let rows = statement.query_map([], |row| {
        let values = (0..columns).map(|column| Ok(format!("{:?}", row.get_ref(column)?)));
        Ok(values.collect::<rusqlite::Result<Vec<_>>>()?.join(" "))
    })?;
    rows.collect()
}

impl World {
    pub(crate) fn ask(&self, sql: &str) -> Vec<String> {
        let Some(server) = &self.server else {
            return vec!["there is no server".into()];
        };
        let read = server.read(|db| lines(db, sql));
        read.expect("the server's tables can be read")
    }

    /// Returns the number of commits of the server since its start.
    pub(crate) fn commits(&self) -> u64 {
        self.server.as_ref().map_or(0, |server| server.commits())
    }

    /// Returns descriptions of all unfinished work in the cluster; empty once the cluster is at rest.
    pub(crate) fn unsettled(&self) -> Vec<String> {
        let running = i32::from(State::Running);
        let mut left = Vec::new();
        let mut look = |what: &str, found: Vec<String>| {
            left.extend(found.into_iter().map(|line| format!("{what}: {line}")));
        };
        look(
            "a job runs",
            self.ask(&format!(
                "SELECT job, state FROM job WHERE state = {running}"
            )),
        );
        look(
            "a task has not ended",
            self.ask(&format!(
                "SELECT task, task.state, task.error FROM task JOIN job USING (job) WHERE job.state = {running} \
                 AND task.end = 0"
            )),
        );
        look(
            "a rule run is not done",
            self.ask("SELECT * FROM rule_run WHERE state <= 2"),
        );
        look("a label is journaled", self.ask("SELECT * FROM label"));
        look(
            "a version is being written",
            self.ask("SELECT * FROM writing"),
        );
        look(
            "an object is not removed yet",
            self.ask("SELECT * FROM replica WHERE want = 2"),
        );
        look(
            "a replica is being made",
            self.ask("SELECT * FROM replica WHERE state = 1"),
        );
        let lost = self.lost();
        let lost: Vec<String> = lost.iter().map(u64::to_string).collect();
        let lost = lost.join(",");
        let corrupt = format!("SELECT * FROM replica WHERE state >= 3 AND object NOT IN ({lost})");
        look("a replica is corrupt", self.ask(&corrupt));
        look("something is corrupt", self.corrupt_objects());
        self.look_at_replicas(&lost, &mut look);
        look(
            "the objects of a lost node are still being checked",
            self.ask("SELECT node, state FROM node WHERE state IN (1, 2)"),
        );
        look(
            "a deleted file is still kept",
            self.ask("SELECT ino FROM inode WHERE nlink = 0"),
        );
        look(
            "the objects of a drained node are still being listed",
            self.ask("SELECT node FROM node WHERE drain_began IS NOT NULL AND drain_listed != 9223372036854775807"),
        );
        // All objects find a place: no node is full any more.
        look(
            "an object is not migrated yet",
            self.ask("SELECT * FROM replica WHERE want = 1 OR target IS NOT NULL"),
        );
        look(
            "a row says no more than its absence",
            self.ask(
                "SELECT * FROM replica WHERE want = 0 AND why IS NULL AND tier IS NULL AND reservation IS NULL \
                 AND (state = 0 OR state = 2 AND node = (SELECT node FROM held WHERE held.object = replica.object))",
            ),
        );
        self.look_at_others(&mut look);
        self.look_at_hooks(&mut look);
        left
    }

    /// Looks for missing or surplus replicas of versions that are not lost.
    fn look_at_replicas(&self, lost: &str, look: &mut impl FnMut(&str, Vec<String>)) {
        // Replicas that need more nodes wait for them, and replicas must not be stored on nodes that are drained.
        let emptied = self
            .ask("SELECT node FROM node WHERE drain_began IS NOT NULL")
            .len();
        let stores = self.nodes.iter().filter(|one| !one.burst);
        let disks = stores
            .clone()
            .filter(|one| one.store.capacity_bytes.is_none());
        let most = disks.count().saturating_sub(emptied);
        let stores: Vec<String> = stores.map(|node| node.id.to_string()).collect();
        let stores = stores.join(",");
        // Replicas in the burst tier do not count as wanted replicas.
        let has = format!(
            "(SELECT (version.node IN ({stores})) + count(*) FROM replica \
             WHERE replica.object = version.object AND replica.node != version.node AND want != 2 AND state > 0 \
             AND replica.node IN ({stores}))"
        );
        let short = format!(
            "SELECT version.* FROM short JOIN version USING (object) WHERE removed = 1 OR object NOT IN ({lost}) AND \
             {has} < min(replicas, {most})"
        );
        look("a version lacks replicas", self.ask(&short));
        // There must be as many replicas as wanted, and no more.
        let surplus = format!(
            "SELECT version.* FROM version WHERE removed = 0 AND node >= 0 AND replicas < {has}"
        );
        look("a version has too many replicas", self.ask(&surplus));
        look(
            "a version is not staged out",
            self.ask("SELECT * FROM replica WHERE tier != 2"),
        );
        look(
            "an evicted object is reported to be in the burst tier",
            self.ask(
                "SELECT * FROM replica WHERE tier IS NOT NULL AND (want = 2 OR state = 0 OR NOT EXISTS \
                 (SELECT 1 FROM held WHERE held.object = replica.object AND removed = 0))",
            ),
        );
    }

    /// Looks for unfinished work on nodes, in the queue, in workspaces, and at clients.
    fn look_at_others(&self, look: &mut impl FnMut(&str, Vec<String>)) {
        for node in &self.nodes {
            let open = node.read(|db| {
                lines(
                    db,
                    "SELECT id, seq, state, outcome IS NULL FROM label WHERE acked = 0",
                )
            });
            look(&format!("node {} has a label", node.id), open);
        }
        look("a workspace has not ended", self.workspaces_over());
        look(
            "a workspace has a lease holder",
            self.ask("SELECT * FROM workspace_member"),
        );
        let queued = self.broker.iter().map(|broker| broker.labels.len());
        let queued = queued.filter(|&labels| labels > 0);
        look(
            "labels are in the queue",
            queued.map(|labels| labels.to_string()).collect(),
        );
        let waiting = self.slots.iter().filter(|slot| slot.running.is_some());
        look(
            "a client waits",
            waiting.map(|slot| format!("{}", slot.session)).collect(),
        );
    }

    /// Cancels jobs that wait for files which no client will write, and jobs that wait for nodes which are being drained.
    pub(crate) fn cancel_waiting(&self) {
        let Some(server) = &self.server else { return };
        let jobs = server.read(|db| {
            let sql = "SELECT DISTINCT awaited.job FROM awaited JOIN job ON job.job = awaited.job \
                       WHERE object = -1 AND job.ended = 0 \
                       UNION SELECT task.job FROM task JOIN job ON job.job = task.job \
                       WHERE job.ended = 0 AND task.error LIKE 'no node that is up can run it%' \
                       AND EXISTS (SELECT 1 FROM node WHERE drain_began IS NOT NULL)";
            // Tasks also wait for data of a lost memory; they have an error text.
            let lost = " UNION SELECT task.job FROM task JOIN job ON job.job = task.job \
                        WHERE job.ended = 0 AND task.error != ''";
            let lost = if self.memory_tier.is_some() { lost } else { "" };
            let mut statement = db.prepare_cached(&format!("{sql}{lost}"))?;
            let rows = statement.query_map([], |row| row.get::<_, i64>(0))?;
            rows.collect::<Result<Vec<_>, _>>()
        });
        for job in jobs.expect("the server's tables can be read") {
            server.cancel(job.cast_unsigned());
        }
    }

    /// Checks at the end that no acknowledged data is lost, nothing leaks, and every failure has a reason.
    pub(crate) fn check_end(&mut self) {
        self.compare();
        let left = self.unsettled();
        assert!(
            left.is_empty(),
            "not settled after the faults have stopped:\n{}",
            left.join("\n")
        );
        let unexplained = self.ask(&format!(
            "SELECT job, task FROM task WHERE state = {} AND error = ''",
            i32::from(State::Failed)
        ));
        assert!(
            unexplained.is_empty(),
            "tasks failed for no reason: {unexplained:?}"
        );
        self.check_jobs();
        self.check_rules();
        self.check_hooks();
        self.check_multi_writer();
        self.check_objects();
        self.check_emptied();
    }

    /// Checks that each version with a name is stored on at least one node; this condition must hold at any time.
    pub(crate) fn check_held(&self) {
        for object in self.reference.current() {
            let mut holders = self.nodes.iter();
            let held = holders.any(|one| one.store.read(object).is_some());
            assert!(
                held || self.is_lost(object),
                "object {object} has a name, and no node has it"
            );
        }
    }

    /// Checks that a drained node has no objects, and that the server reports it as empty.
    fn check_emptied(&self) {
        let Some(server) = &self.server else { return };
        for node in &self.nodes {
            if let Some(empty) = server.is_empty(node.id) {
                let held = node.store.objects.len();
                assert!(
                    empty && held == 0,
                    "node {} has {held} objects and was drained",
                    node.id
                );
            }
        }
    }

    fn check_jobs(&self) {
        let known: BTreeSet<String> = self.ask("SELECT job FROM job").into_iter().collect();
        for job in &self.reference.accepted {
            let line = format!("Integer({job})");
            assert!(known.contains(&line), "accepted job {job} is lost");
        }
        let unnamed = self.ask(&format!(
            "SELECT task.task FROM task LEFT JOIN task_output ON task_output.task = task.task \
             WHERE state = {} AND task_output.task IS NULL",
            i32::from(State::Done)
        ));
        assert!(
            unnamed.is_empty(),
            "tasks are done without outputs: {unnamed:?}"
        );
    }

    /// Checks that nodes hold exactly the objects that the namespace knows.
    fn check_objects(&self) {
        let named = self.check_lost();
        for node in &self.nodes {
            let id = node.id;
            let sql = format!(
                "SELECT object FROM inode WHERE node = {id} AND object != 0 \
                 UNION SELECT object FROM replica WHERE node = {id} AND want != 2 AND state > 0 UNION SELECT part FROM part WHERE node = {id}"
            );
            let known: BTreeSet<String> = self.ask(&sql).into_iter().collect();
            let line = |object: &u64| format!("Integer({object})");
            let held: BTreeSet<String> = node.store.objects.keys().map(line).collect();
            let is_named = |line: &&String| {
                named
                    .iter()
                    .any(|&(one, object)| one == id && **line == format!("Integer({object})"))
            };
            let lost: Vec<&String> = known
                .difference(&held)
                .filter(|line| !is_named(line))
                .collect();
            assert!(lost.is_empty(), "node {id} does not have {lost:?}");
            let left = node.store.objects.keys().copied();
            let left = left.filter(|&object| self.was_left(node, object));
            let left: BTreeSet<String> = left.map(|object| line(&object)).collect();
            let leaked = held.difference(&known).filter(|line| !left.contains(*line));
            let leaked: Vec<&String> = leaked.collect();
            assert!(
                leaked.is_empty(),
                "node {id} has {leaked:?}, which the namespace does not know"
            );
        }
    }
}
