//! The server's database: its tables, and the numbered migrations that create the tables. `docs/formats-server.md` describes each field.

use super::fault::Fault;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use std::path::Path;

/// Version of the database's tables, stored as `PRAGMA user_version`.
pub const SCHEMA_VERSION: usize = MIGRATIONS.len();

/// Maximum number of pages in the write-ahead log before SQLite copies its content into the database and truncates the log to this length.
const WAL_PAGES_MAX: u32 = 8192;
const WAL_BYTES_MAX: u32 = WAL_PAGES_MAX * 4096;
/// Maximum number of prepared statements per database connection.
const STATEMENTS_MAX: usize = 256;

/// Reason why the server's database can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// SQLite returned an error.
    #[error("can't open the server's database {path}: {source}")]
    Database {
        /// Path of the database.
        path: String,
        /// Error of SQLite.
        source: rusqlite::Error,
    },
    /// The database has invalid content.
    #[error("the server's database {path} is corrupt: {reason}")]
    Content {
        /// Path of the database.
        path: String,
        /// Description of the invalid content.
        reason: String,
    },
    /// A later release of Tidemill created the database.
    #[error(
        "the server's database {path} has version {found}, this program knows {SCHEMA_VERSION}: use a later release"
    )]
    Newer {
        /// Path of the database.
        path: String,
        /// Version of the tables in the database.
        found: usize,
    },
}

/// Migrations by version: migration `n` changes the tables from version `n` to version `n + 1`. A released migration never changes.
const MIGRATIONS: &[Migration] = &[&[NAMES, JOBS, PLACEMENT, RULES, HEADERS, WORKSPACES, REMOTES]];

/// SQL statements that are executed in one transaction.
type Migration = &'static [&'static str];

// Inodes, names, versions and their parts. A version of several objects has no node of its own; `held` has an object for each part.
// `publication` has the writes of each mount to a version that several mounts write, until the version is sealed.
const NAMES: &str = "
CREATE TABLE setting(name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE counter(name TEXT PRIMARY KEY, next INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO counter VALUES ('inode', 2), ('object', 1), ('label', 1), ('job', 1), ('task', 1), ('session', 1), ('change', 1),
  ('rule', 1), ('member', 1), ('reservation', 1), ('feed', CAST(strftime('%s', 'now') AS INTEGER) * 1000000),
  ('feed_of_rules', 0), ('feed_of_headers', 0);
CREATE TABLE id_range(first_object INTEGER PRIMARY KEY, objects INTEGER NOT NULL, first_inode INTEGER NOT NULL,
  inodes INTEGER NOT NULL, uid INTEGER NOT NULL, at INTEGER NOT NULL DEFAULT 0, left INTEGER NOT NULL DEFAULT 0);
CREATE INDEX id_range_object ON id_range(uid, first_object);
CREATE INDEX id_range_inode ON id_range(uid, first_inode);
CREATE TABLE inode(ino INTEGER PRIMARY KEY, kind INTEGER NOT NULL, mode INTEGER NOT NULL, uid INTEGER NOT NULL,
  gid INTEGER NOT NULL, nlink INTEGER NOT NULL, size INTEGER NOT NULL, atime INTEGER NOT NULL, mtime INTEGER NOT NULL,
  ctime INTEGER NOT NULL, rdev INTEGER NOT NULL, version INTEGER NOT NULL, object INTEGER NOT NULL, node INTEGER NOT NULL,
  writing INTEGER NOT NULL, parent INTEGER NOT NULL, target BLOB);
CREATE TABLE dirent(parent INTEGER NOT NULL, name BLOB NOT NULL, ino INTEGER NOT NULL, PRIMARY KEY(parent,
  name)) WITHOUT ROWID;
CREATE INDEX dirent_ino ON dirent(ino);
CREATE TABLE version(object INTEGER PRIMARY KEY, ino INTEGER NOT NULL, version INTEGER NOT NULL, size INTEGER NOT NULL,
  node INTEGER NOT NULL, uid INTEGER NOT NULL, sealed_at INTEGER NOT NULL, task INTEGER NOT NULL, path BLOB NOT NULL,
  removed INTEGER NOT NULL DEFAULT 0, replicas INTEGER NOT NULL DEFAULT 1, expires INTEGER NOT NULL DEFAULT 0);
CREATE INDEX version_ino ON version(ino, version);
CREATE INDEX version_expires ON version(expires) WHERE expires > 0;
CREATE INDEX version_replicas ON version(node, object) WHERE replicas > 1 AND removed = 0;
CREATE TABLE writing(object INTEGER PRIMARY KEY, ino INTEGER NOT NULL, node INTEGER NOT NULL, session INTEGER NOT NULL,
  uid INTEGER NOT NULL, started INTEGER NOT NULL, last_publication INTEGER NOT NULL DEFAULT 0);
CREATE INDEX writing_session ON writing(session);
CREATE TABLE xattr(ino INTEGER NOT NULL, name BLOB NOT NULL, value BLOB NOT NULL, PRIMARY KEY(ino, name)) WITHOUT ROWID;
CREATE INDEX xattr_name ON xattr(name);
CREATE INDEX inode_without_name ON inode(ino) WHERE nlink = 0;
CREATE TABLE annotation(object INTEGER NOT NULL, name BLOB NOT NULL, value BLOB NOT NULL, PRIMARY KEY(object,
  name)) WITHOUT ROWID;
CREATE TABLE layout(object INTEGER PRIMARY KEY, unit INTEGER NOT NULL, size INTEGER NOT NULL DEFAULT 0,
  mtime INTEGER NOT NULL DEFAULT 0, extents BLOB);
CREATE TABLE part(object INTEGER NOT NULL, seq INTEGER NOT NULL, part INTEGER NOT NULL, node INTEGER NOT NULL,
  size INTEGER NOT NULL, PRIMARY KEY(object, seq)) WITHOUT ROWID;
CREATE UNIQUE INDEX part_part ON part(part);
CREATE INDEX part_node ON part(node, part);
CREATE TABLE publication(version INTEGER NOT NULL, number INTEGER NOT NULL, cut INTEGER, complete INTEGER NOT NULL,
  count INTEGER NOT NULL, extents BLOB NOT NULL, PRIMARY KEY(version, number)) WITHOUT ROWID;
CREATE VIEW held AS SELECT object, object AS version, ino, size, node, replicas, removed, uid,
  path FROM version
  UNION ALL SELECT part.part, version.object, ino, part.size, part.node, replicas, removed, uid,
  path FROM part CROSS JOIN version ON version.object = part.object;
";

// Jobs, their tasks, the labels in progress, and reusable results.
const JOBS: &str = "
CREATE TABLE job(job INTEGER PRIMARY KEY, name TEXT NOT NULL, source TEXT NOT NULL, workdir TEXT NOT NULL,
  uid INTEGER NOT NULL, gid INTEGER NOT NULL, groups TEXT NOT NULL, policy TEXT, state INTEGER NOT NULL,
  submitted INTEGER NOT NULL, ended INTEGER NOT NULL, script TEXT NOT NULL, cache INTEGER NOT NULL DEFAULT 1,
  replacing INTEGER NOT NULL DEFAULT 0, deleted INTEGER NOT NULL DEFAULT 0, submission_id TEXT,
  rule INTEGER NOT NULL DEFAULT 0, rule_depth INTEGER NOT NULL DEFAULT 0, rule_open INTEGER NOT NULL DEFAULT 0, nodes BLOB);
CREATE INDEX job_rule_open ON job(rule) WHERE rule_open = 1;
CREATE INDEX job_state ON job(state);
CREATE UNIQUE INDEX job_submission_id ON job(uid, submission_id) WHERE submission_id IS NOT NULL;
CREATE TABLE task(task INTEGER PRIMARY KEY, job INTEGER NOT NULL, spec TEXT NOT NULL, state INTEGER NOT NULL,
  changed INTEGER NOT NULL, tries INTEGER NOT NULL DEFAULT 0, label INTEGER NOT NULL DEFAULT 0,
  node INTEGER NOT NULL DEFAULT 0, start INTEGER NOT NULL DEFAULT 0, kernel_start INTEGER NOT NULL DEFAULT 0,
  end INTEGER NOT NULL DEFAULT 0, read_bytes INTEGER NOT NULL DEFAULT 0, written_bytes INTEGER NOT NULL DEFAULT 0,
  transferred_bytes INTEGER NOT NULL DEFAULT 0, cpu_ns INTEGER NOT NULL DEFAULT 0, memory_bytes INTEGER NOT NULL DEFAULT 0,
  kernel_hash TEXT NOT NULL DEFAULT '', error TEXT NOT NULL DEFAULT '', stderr TEXT NOT NULL DEFAULT '',
  stdout TEXT NOT NULL DEFAULT '', reused INTEGER NOT NULL DEFAULT 0, hash_ns INTEGER NOT NULL DEFAULT 0,
  in_memory_bytes INTEGER NOT NULL DEFAULT 0, microjoules INTEGER NOT NULL DEFAULT 0, estimated INTEGER NOT NULL DEFAULT 0,
  unestimated INTEGER NOT NULL DEFAULT 0);
CREATE INDEX task_job ON task(job, changed);
CREATE TABLE decision(label INTEGER PRIMARY KEY, job INTEGER NOT NULL, task INTEGER NOT NULL, body BLOB NOT NULL);
CREATE INDEX decision_job ON decision(job);
CREATE TABLE awaited(job INTEGER NOT NULL, path TEXT NOT NULL, uid INTEGER NOT NULL, object INTEGER NOT NULL DEFAULT -1,
  node INTEGER NOT NULL DEFAULT 0, size INTEGER NOT NULL DEFAULT 0, PRIMARY KEY(job, path)) WITHOUT ROWID;
CREATE TABLE task_input(task INTEGER NOT NULL, seq INTEGER NOT NULL, name TEXT NOT NULL, object INTEGER NOT NULL,
  selection TEXT NOT NULL DEFAULT '', PRIMARY KEY(task, seq)) WITHOUT ROWID;
CREATE INDEX task_input_object ON task_input(object);
CREATE TABLE task_output(task INTEGER NOT NULL, seq INTEGER NOT NULL, name TEXT NOT NULL, ino INTEGER NOT NULL,
  object INTEGER NOT NULL, node INTEGER NOT NULL, size INTEGER NOT NULL, PRIMARY KEY(task, seq)) WITHOUT ROWID;
CREATE TABLE result(key BLOB PRIMARY KEY, task INTEGER NOT NULL, shape BLOB) WITHOUT ROWID;
CREATE INDEX result_shape ON result(shape, task) WHERE shape IS NOT NULL;
CREATE TABLE content(object INTEGER PRIMARY KEY, first INTEGER, hash TEXT);
CREATE INDEX content_hash ON content(hash) WHERE hash IS NOT NULL;
CREATE TABLE label(label INTEGER PRIMARY KEY, node INTEGER NOT NULL, task INTEGER NOT NULL, body BLOB NOT NULL,
  at INTEGER NOT NULL DEFAULT 0);
";

// Nodes, replicas, objects to examine, scrubs, and reserved space in the burst tier. The first replica of a version has a row in `replica` only
// if it deviates from an intact replica that stays.
//
// `replica.state` is `absent` 0, `coming` 1, `current` 2, `corrupt` 3 or `repairing` 4; `replica.want` is `keep` 0, `leave` 1 or `drop` 2.
const PLACEMENT: &str = "
CREATE TABLE node(node INTEGER PRIMARY KEY, state INTEGER NOT NULL DEFAULT 0, reviewed INTEGER NOT NULL DEFAULT 0,
  drain_began INTEGER, drain_listed INTEGER NOT NULL DEFAULT 0, drain_files INTEGER NOT NULL DEFAULT 0,
  drain_bytes INTEGER NOT NULL DEFAULT 0, suspended INTEGER, suspended_at INTEGER NOT NULL DEFAULT 0,
  resumes INTEGER NOT NULL DEFAULT 0, resume_ns INTEGER NOT NULL DEFAULT 0, microjoules INTEGER NOT NULL DEFAULT 0,
  counted_ns INTEGER NOT NULL DEFAULT 0, basis TEXT, status BLOB);
CREATE INDEX node_state ON node(state);
CREATE INDEX node_draining ON node(drain_began) WHERE drain_began IS NOT NULL;
CREATE TABLE replica(object INTEGER NOT NULL, node INTEGER NOT NULL, state INTEGER NOT NULL, want INTEGER NOT NULL DEFAULT 0,
  why INTEGER, target INTEGER, size INTEGER NOT NULL DEFAULT 0, since INTEGER NOT NULL DEFAULT 0, label INTEGER NOT NULL DEFAULT 0,
  tier INTEGER, reservation INTEGER, detail TEXT, PRIMARY KEY(object, node)) WITHOUT ROWID;
CREATE INDEX replica_keep ON replica(node) WHERE want != 2;
CREATE INDEX replica_leave ON replica(node) WHERE want = 1;
CREATE INDEX replica_drop ON replica(node) WHERE want = 2;
CREATE INDEX replica_target ON replica(target) WHERE target IS NOT NULL;
CREATE INDEX replica_corrupt ON replica(object) WHERE state >= 3;
CREATE INDEX replica_tier ON replica(node, tier, since) WHERE tier IS NOT NULL;
CREATE INDEX replica_reserved ON replica(reservation) WHERE reservation IS NOT NULL;
CREATE TABLE short(object INTEGER PRIMARY KEY, has INTEGER NOT NULL, at INTEGER NOT NULL);
CREATE INDEX short_has ON short(has, at);
CREATE TABLE scrub(scrub INTEGER PRIMARY KEY, request INTEGER NOT NULL, node INTEGER NOT NULL, listed INTEGER NOT NULL,
  idle INTEGER NOT NULL, begun INTEGER NOT NULL, ended INTEGER NOT NULL, after INTEGER NOT NULL DEFAULT 0,
  labels INTEGER NOT NULL DEFAULT 0, objects INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0,
  corrupt INTEGER NOT NULL DEFAULT 0);
CREATE INDEX scrub_node ON scrub(node);
CREATE TABLE verify(scrub INTEGER NOT NULL, object INTEGER NOT NULL, PRIMARY KEY(scrub, object)) WITHOUT ROWID;
CREATE TABLE space_reservation(reservation INTEGER PRIMARY KEY, ino INTEGER NOT NULL, node INTEGER NOT NULL, bytes INTEGER NOT NULL,
  used INTEGER NOT NULL DEFAULT 0, uid INTEGER NOT NULL, bounded INTEGER NOT NULL, since INTEGER NOT NULL,
  until INTEGER NOT NULL);
CREATE INDEX space_reservation_ino ON space_reservation(ino);
CREATE TRIGGER replica_deleted AFTER DELETE ON replica WHEN OLD.reservation IS NOT NULL BEGIN
  UPDATE space_reservation SET used = max(used - OLD.size, 0) WHERE reservation = OLD.reservation;
END;
CREATE TRIGGER space_reservation_ended AFTER DELETE ON space_reservation BEGIN
  DELETE FROM replica WHERE reservation = OLD.reservation AND state = 0 AND want = 0;
  UPDATE replica SET reservation = NULL WHERE reservation = OLD.reservation;
END;
";

// Rules and hooks. States of a rule run are `queued` 0, `waiting` 1, `running` 2, `done` 3, `failed` 4, `deleted` 5 and `loop` 6. States
// of a batch are `open` 0, `ending` 1, `reducing` 2, `done` 3, `failed` 4 and `empty` 5. Numbers of the feed are microseconds since the
// Unix epoch; the counter `feed` has the last one that was deleted, `feed_of_…` the last one that a consumer has taken.
const RULES: &str = "
CREATE TABLE rule(rule INTEGER PRIMARY KEY, uid INTEGER NOT NULL, gid INTEGER NOT NULL, groups TEXT NOT NULL,
  name TEXT NOT NULL, revision INTEGER NOT NULL, for_all INTEGER NOT NULL, paused INTEGER NOT NULL, changed INTEGER NOT NULL,
  source TEXT NOT NULL, text TEXT NOT NULL, directory INTEGER NOT NULL DEFAULT 0, UNIQUE(uid, name));
CREATE UNIQUE INDEX rule_directory ON rule(directory) WHERE directory != 0;
CREATE TABLE rule_run(rule_run INTEGER PRIMARY KEY, rule INTEGER NOT NULL, object INTEGER NOT NULL, ino INTEGER NOT NULL,
  uid INTEGER NOT NULL, path TEXT NOT NULL, depth INTEGER NOT NULL, state INTEGER NOT NULL, queued INTEGER NOT NULL,
  ended INTEGER NOT NULL DEFAULT 0, job INTEGER NOT NULL DEFAULT 0, task INTEGER NOT NULL DEFAULT 0,
  error TEXT NOT NULL DEFAULT '', last INTEGER NOT NULL DEFAULT 0, batch INTEGER NOT NULL DEFAULT 0);
CREATE UNIQUE INDEX rule_run_version ON rule_run(rule, object);
CREATE INDEX rule_run_state ON rule_run(rule, state, uid, rule_run);
CREATE INDEX rule_run_path ON rule_run(rule, path) WHERE state <= 2;
CREATE INDEX rule_run_object ON rule_run(object) WHERE state <= 2;
CREATE INDEX rule_run_job ON rule_run(job) WHERE state = 2;
CREATE INDEX rule_run_batch ON rule_run(rule, batch) WHERE batch != 0;
CREATE TABLE rule_walk(rule INTEGER NOT NULL, ino INTEGER NOT NULL, after BLOB NOT NULL, PRIMARY KEY(rule, ino)) WITHOUT ROWID;
CREATE TABLE feed(seq INTEGER PRIMARY KEY, kind INTEGER NOT NULL, ino INTEGER NOT NULL, object INTEGER NOT NULL,
  by_other INTEGER NOT NULL, path BLOB NOT NULL);
CREATE TABLE batch(rule INTEGER NOT NULL, batch INTEGER NOT NULL, state INTEGER NOT NULL, job INTEGER NOT NULL DEFAULT 0,
  begun INTEGER NOT NULL, ended INTEGER NOT NULL DEFAULT 0, error TEXT NOT NULL DEFAULT '', PRIMARY KEY(rule,
  batch)) WITHOUT ROWID;
CREATE INDEX batch_open ON batch(state, rule) WHERE state <= 2;
CREATE INDEX batch_job ON batch(job) WHERE job != 0;
CREATE TABLE mapped(object INTEGER PRIMARY KEY);
CREATE TABLE dropped(object INTEGER PRIMARY KEY, rule INTEGER NOT NULL, hook TEXT NOT NULL, task INTEGER NOT NULL,
  at INTEGER NOT NULL);
CREATE INDEX dropped_rule ON dropped(rule);
";

// Headers of scientific files. A header is queued 0, to be tried later 1, read 2, unreadable 3, or 4: part of a Zarr that another file
// stands for. A term is a value of an attribute, once for all files.
const HEADERS: &str = "
CREATE TABLE header(object INTEGER PRIMARY KEY, ino INTEGER NOT NULL, uid INTEGER NOT NULL, state INTEGER NOT NULL DEFAULT 0,
  body TEXT NOT NULL DEFAULT '', error TEXT NOT NULL DEFAULT '');
CREATE INDEX header_todo ON header(state, uid, object) WHERE state <= 1;
CREATE TABLE term(term INTEGER PRIMARY KEY, key TEXT NOT NULL, text TEXT NOT NULL, number REAL, UNIQUE(key, text));
CREATE INDEX term_number ON term(key, number) WHERE number IS NOT NULL;
CREATE TABLE text_field(term INTEGER NOT NULL, ino INTEGER NOT NULL, PRIMARY KEY(term, ino)) WITHOUT ROWID;
CREATE INDEX text_field_ino ON text_field(ino);
CREATE TABLE span(name TEXT NOT NULL, ino INTEGER NOT NULL, is_time INTEGER NOT NULL, low REAL NOT NULL, high REAL NOT NULL,
  PRIMARY KEY(name, ino)) WITHOUT ROWID;
CREATE INDEX span_ino ON span(ino);
CREATE TRIGGER header_of_removed AFTER UPDATE OF removed ON version WHEN NEW.removed = 1 BEGIN
  DELETE FROM header WHERE object = NEW.object;
END;
CREATE TRIGGER header_deleted AFTER DELETE ON header WHEN OLD.state = 2 BEGIN
  DELETE FROM term WHERE term IN (SELECT term FROM text_field WHERE ino = OLD.ino)
    AND NOT EXISTS (SELECT 1 FROM text_field WHERE text_field.term = term.term AND text_field.ino != OLD.ino);
  DELETE FROM text_field WHERE ino = OLD.ino;
  DELETE FROM span WHERE ino = OLD.ino;
END;
";

// Workspaces and their lease holders.
const WORKSPACES: &str = "
CREATE TABLE workspace(ino INTEGER PRIMARY KEY, quota INTEGER NOT NULL, created INTEGER NOT NULL, expires INTEGER NOT NULL,
  joined INTEGER NOT NULL DEFAULT 0, ends INTEGER NOT NULL DEFAULT 0);
CREATE TABLE workspace_member(member INTEGER PRIMARY KEY, workspace INTEGER NOT NULL, uid INTEGER NOT NULL, joined INTEGER NOT NULL,
  until INTEGER NOT NULL);
CREATE INDEX workspace_member_workspace ON workspace_member(workspace);
";

// Stores outside of the cluster, without their keys; directories that show a store, and the objects found there.
const REMOTES: &str = "
CREATE TABLE remote(name TEXT PRIMARY KEY, uri TEXT NOT NULL, read_only INTEGER NOT NULL, uid INTEGER NOT NULL,
  added INTEGER NOT NULL, attachment BLOB) WITHOUT ROWID;
CREATE TABLE followed(number INTEGER PRIMARY KEY, remote TEXT NOT NULL, path TEXT NOT NULL, size INTEGER NOT NULL,
  tag TEXT NOT NULL, object INTEGER NOT NULL);
CREATE UNIQUE INDEX followed_path ON followed(remote, path);
";

/// Opens the server's database for writing; creates or migrates it first if necessary.
pub fn open_writer(path: &Path) -> Result<crate::Connection, OpenError> {
    let at = |source| OpenError::Database {
        path: path.display().to_string(),
        source,
    };
    let mut connection = Connection::open(path).map_err(at)?;
    prepare(&mut connection, path)?;
    Ok(crate::Connection::new(connection))
}

/// Creates a database with the content that `fill` writes in one transaction. The log of the closed database is empty, so the caller can
/// move the file alone.
pub fn create_filled<T, E: From<OpenError> + From<Fault>>(
    path: &Path,
    fill: impl FnOnce(&crate::Connection) -> Result<T, E>,
) -> Result<T, E> {
    let db = open_writer(path)?;
    let transaction = db.sql.unchecked_transaction().map_err(Fault::from)?;
    let filled = fill(&db)?;
    transaction.commit().map_err(Fault::from)?;
    drop(db);
    empty_log(path)?;
    Ok(filled)
}

/// Moves the content of the write-ahead log of a closed database into the database, so that the file can be moved alone.
///
/// # Errors
/// If the database can't be written.
pub fn empty_log(path: &Path) -> Result<(), OpenError> {
    let emptied =
        Connection::open(path).and_then(|db| db.pragma_update(None, "journal_mode", "DELETE"));
    emptied.map_err(|source| OpenError::Database {
        path: path.display().to_string(),
        source,
    })
}

/// Configures a connection for writing and migrates the tables to the present version.
pub(crate) fn prepare(connection: &mut Connection, path: &Path) -> Result<(), OpenError> {
    let at = |source| OpenError::Database {
        path: path.display().to_string(),
        source,
    };
    // A server that was just killed may still hold the file.
    connection
        .busy_timeout(std::time::Duration::from_secs(5))
        .map_err(at)?;
    keep_statements(connection).map_err(at)?;
    connection
        .pragma_update(None, "journal_mode", "WAL")
        .map_err(at)?;
    connection
        .pragma_update(None, "synchronous", "NORMAL")
        .map_err(at)?;
    connection
        .pragma_update(None, "wal_autocheckpoint", WAL_PAGES_MAX)
        .map_err(at)?;
    connection
        .pragma_update(None, "journal_size_limit", WAL_BYTES_MAX)
        .map_err(at)?;
    connection
        .pragma_update(None, "cache_size", -65536)
        .map_err(at)?;
    connection
        .pragma_update(None, "temp_store", "MEMORY")
        .map_err(at)?;
    let found = connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(at)?;
    migrate(connection, (found, MIGRATIONS), path)
}

fn migrate(
    connection: &mut Connection,
    (found, migrations): (i64, &[Migration]),
    path: &Path,
) -> Result<(), OpenError> {
    let at = |source| OpenError::Database {
        path: path.display().to_string(),
        source,
    };
    let found = usize::try_from(found).unwrap_or(usize::MAX);
    if found > migrations.len() {
        return Err(OpenError::Newer {
            path: path.display().to_string(),
            found,
        });
    }
    for (index, migration) in migrations.iter().enumerate().skip(found) {
        let transaction = connection.transaction().map_err(at)?;
        for statements in *migration {
            transaction.execute_batch(statements).map_err(at)?;
        }
        let version = i64::try_from(index + 1).unwrap_or(i64::MAX);
        transaction
            .pragma_update(None, "user_version", version)
            .map_err(at)?;
        transaction.commit().map_err(at)?;
    }
    Ok(())
}

/// Makes SQLite keep statements prepared. Otherwise SQLite would prepare a statement again at each use, for a plan that depends on the
/// bound values (`sqlite3_expired` after `clear_bindings`). A statement that must use a partial index therefore contains the condition of
/// the index with literals.
fn keep_statements(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

/// Opens the server's database for reading only.
pub(crate) fn open_reader(path: &Path) -> Result<crate::Connection, OpenError> {
    let at = |source| OpenError::Database {
        path: path.display().to_string(),
        source,
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(at)?;
    keep_statements(&connection).map_err(at)?;
    connection
        .pragma_update(None, "cache_size", -32768)
        .map_err(at)?;
    connection
        .busy_timeout(std::time::Duration::from_secs(5))
        .map_err(at)?;
    Ok(crate::Connection::new(connection))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::StatementStatus;

    #[test]
    fn sql_statements_are_prepared_once_for_any_bound_values() {
        let db = Connection::open_in_memory().unwrap();
        keep_statements(&db).unwrap();
        db.execute_batch("CREATE TABLE t(a INTEGER, b INTEGER, c INTEGER); CREATE INDEX t_a ON t(a) WHERE b <= 1; CREATE INDEX t_c ON t(c)")
            .unwrap();
        for round in 0..5_i64 {
            for sql in [
                "SELECT a FROM t WHERE c = ?1 AND b = ?2",
                "SELECT a FROM t WHERE b = ?2 AND b <= 1 AND a = ?1",
            ] {
                let mut statement = db.prepare_cached(sql).unwrap();
                assert!(!statement.exists([round, 7 * round]).unwrap());
                assert_eq!(statement.get_status(StatementStatus::RePrepare), 0, "{sql}");
            }
        }
        // Literals make the statement use the partial index.
        let plan = "EXPLAIN QUERY PLAN SELECT a FROM t WHERE b = ?2 AND b <= 1 AND a = ?1";
        let plan: String = db.query_row(plan, [0, 0], |row| row.get(3)).unwrap();
        assert!(plan.contains("t_a"), "{plan}");
    }

    #[test]
    fn schema_migrations_keep_rows_and_refuse_newer_databases() {
        const FIRST: Migration = &["CREATE TABLE t(a INTEGER)", "INSERT INTO t VALUES (7)"];
        const SECOND: Migration = &["ALTER TABLE t ADD COLUMN b INTEGER NOT NULL DEFAULT 1"];
        const BROKEN: Migration = &["INSERT INTO t VALUES (8, 2)", "no statement"];
        let path = Path::new("server.db");
        let mut db = Connection::open_in_memory().unwrap();
        let version = |db: &Connection| -> i64 {
            db.pragma_query_value(None, "user_version", |row| row.get(0))
                .unwrap()
        };
        migrate(&mut db, (0, &[FIRST]), path).unwrap();
        migrate(&mut db, (1, &[FIRST, SECOND]), path).unwrap();
        assert_eq!(version(&db), 2);
        // A migration is carried out completely or not at all.
        let broken = migrate(&mut db, (2, &[FIRST, SECOND, BROKEN]), path);
        assert!(matches!(broken, Err(OpenError::Database { .. })));
        assert_eq!(version(&db), 2);
        let rows: (i64, i64, i64) = db
            .query_row("SELECT count(*), a, b FROM t", [], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })
            .unwrap();
        assert_eq!(rows, (1, 7, 1));
        let newer = migrate(&mut db, (3, &[FIRST, SECOND]), path);
        assert!(matches!(newer, Err(OpenError::Newer { found: 3, .. })));
    }
}
