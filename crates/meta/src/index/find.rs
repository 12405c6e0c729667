//! Conversion of a search expression to SQL. Each condition becomes a set of inodes or a comparison of columns. Values are parameters,
//! never text of the query.

use crate::Connection;
use crate::Fault;
use crate::lineage::{WalkDirection, versions_of, walk};
use crate::transaction::Tx;
use crate::vnode::Caller;
use rusqlite::functions::FunctionFlags;
use rusqlite::params_from_iter;
use rusqlite::types::Value as Sql;
use tidemill_lang::find::{Expr, Test, WantedName};
use tidemill_model::calendar::CalendarTime;
use tidemill_model::condition::{CompareOperator, ComparedValue};
use tidemill_wire::v1::Kind;

/// Maximum number of distinct values for which a regular expression or comparison is evaluated.
const TRIED_MAX: i64 = 1_000_000;

/// The user that searches, and the server's knowledge of users and kernels that an expression needs.
#[derive(Debug)]
pub struct Searcher<'a> {
    /// Caller that searches; unless it is root, conditions about other users' tasks, jobs and rules do not match.
    pub viewer: &'a Caller,
    /// Returns the id of the user with a name or number.
    pub uid_of: fn(&str) -> Option<u32>,
    /// Whether a kernel with this name is built in.
    pub is_builtin: fn(&str) -> bool,
}

/// An SQL query that returns the inodes of files.
#[derive(Debug)]
pub struct InodeQuery {
    sql: String,
    values: Vec<Sql>,
    /// Number of functions for names.
    names: usize,
}

impl InodeQuery {
    /// Converts a search expression to a query for files that have a name. Fails for an unknown user or an unreadable file in it.
    pub fn new(tx: &Tx<'_>, searcher: &Searcher<'_>, expr: &Expr) -> Result<Self, Fault> {
        let mut query = Self {
            sql: String::new(),
            values: Vec::new(),
            names: 0,
        };
        let kind = query.value(i64::from(Kind::File as i32));
        let condition = query.expr(tx, searcher, expr)?;
        let (after, limit) = (query.values.len() + 1, query.values.len() + 2);
        query.sql = format!(
            "SELECT ino FROM inode AS i WHERE {condition} AND i.kind = {kind} AND i.nlink > 0 AND i.ino > ?{after} \
             ORDER BY i.ino LIMIT ?{limit}"
        );
        Ok(query)
    }

    /// Returns at most `limit` inodes of the query that follow the inode `after`.
    pub fn after(&self, db: &Connection, after: u64, limit: usize) -> Result<Vec<u64>, Fault> {
        let mut statement = db.sql.prepare(&self.sql)?;
        let last = [
            after.cast_signed(),
            i64::try_from(limit).unwrap_or(i64::MAX),
        ];
        let values = self.values.iter().cloned().chain(last.map(Sql::from));
        let rows = statement.query_map(params_from_iter(values), |row| row.get::<_, i64>(0))?;
        let inodes = rows.map(|ino| ino.map(i64::cast_unsigned));
        Ok(inodes.collect::<Result<_, _>>()?)
    }

    /// Adds a parameter value and returns the parameter's name in SQL.
    fn value(&mut self, value: impl Into<Sql>) -> String {
        self.values.push(value.into());
        format!("?{}", self.values.len())
    }

    fn expr(&mut self, tx: &Tx<'_>, searcher: &Searcher<'_>, expr: &Expr) -> Result<String, Fault> {
        let mut joined = |all: &[Expr], word: &str| -> Result<String, Fault> {
            let all: Result<Vec<String>, Fault> =
                all.iter().map(|one| self.expr(tx, searcher, one)).collect();
            Ok(format!("({})", all?.join(word)))
        };
        match expr {
            Expr::All(all) => joined(all, " AND "),
            Expr::Any(all) => joined(all, " OR "),
            Expr::Not(one) => Ok(format!("NOT ({})", self.expr(tx, searcher, one)?)),
            Expr::Test(test) => self.test(tx, searcher, test),
        }
    }

    fn test(&mut self, tx: &Tx<'_>, searcher: &Searcher<'_>, test: &Test) -> Result<String, Fault> {
        match test {
            Test::Text {
                key,
                compare,
                value,
            } => self.text_field(tx.db, key, *compare, value),
            Test::Coordinate {
                name,
                compare,
                number,
                moment,
            } => Ok(self.coordinate(name, *compare, *number, *moment)),
            Test::Attribute {
                name,
                compare,
                value,
            } => self.attribute(tx.db, name, *compare, value),
            Test::Name { equal, wanted } => self.name(tx.db, *equal, wanted),
            Test::Size { compare, bytes } => {
                let bytes = self.value(i64::try_from(*bytes).unwrap_or(i64::MAX));
                Ok(format!("i.size {} {bytes}", compare.sign()))
            }
            Test::Modified { compare, moment } => {
                let (from, to) = moment.nanos();
                let (from, to) = (self.value(from), self.value(to));
                Ok(reach(*compare, ("i.mtime", "i.mtime"), (&from, &to)))
            }
            Test::Owner { equal, user } => {
                let unknown = || Fault::NotFound(format!("user {user}"));
                let uid = (searcher.uid_of)(user).ok_or_else(unknown)?;
                let uid = self.value(i64::from(uid));
                let sign = if *equal { "=" } else { "!=" };
                Ok(format!("i.uid {sign} {uid}"))
            }
            Test::MadeBy { name } => Ok(self.made_by(searcher, name)),
            Test::From { path } => self.made_of(tx, path),
        }
    }

    /// Returns the SQL condition for text facts of headers.
    fn text_field(
        &mut self,
        db: &Connection,
        key: &str,
        compare: CompareOperator,
        value: &ComparedValue,
    ) -> Result<String, Fault> {
        let terms = match compare {
            CompareOperator::Matches => {
                let sql = "SELECT term, text FROM term WHERE key = ?1 LIMIT ?2";
                let mut statement = db.sql.prepare_cached(sql)?;
                let mut rows = statement.query(rusqlite::params![key, TRIED_MAX])?;
                let mut fits: Vec<i64> = Vec::new();
                while let Some(row) = rows.next()? {
                    let text = row.get_ref(1)?.as_str().unwrap_or_default();
                    if value.fits(compare, text) {
                        fits.push(row.get(0)?);
                    }
                }
                self.list(&fits)
            }
            _ => {
                let key = self.value(key.to_owned());
                let of = format!("SELECT term FROM term WHERE key = {key} AND");
                let (sign, number) = (
                    compare.sign(),
                    value.number.map(|number| self.value(number)),
                );
                let mut text = || self.value(value.text.clone());
                match (compare, number) {
                    (CompareOperator::Equal, Some(number)) => {
                        format!("{of} text = {} UNION {of} number = {number}", text())
                    }
                    (CompareOperator::Equal, None) => format!("{of} text = {}", text()),
                    (CompareOperator::Unequal, number) => {
                        let number = number.unwrap_or_else(|| "NULL".into());
                        format!(
                            "{of} text != {} AND (number IS NULL OR number IS NOT {number})",
                            text()
                        )
                    }
                    (_, number) => format!(
                        "{of} number {sign} {}",
                        number.unwrap_or_else(|| "NULL".into())
                    ),
                }
            }
        };
        Ok(format!(
            "i.ino IN (SELECT ino FROM text_field WHERE term IN ({terms}))"
        ))
    }

    fn coordinate(
        &mut self,
        name: &str,
        compare: CompareOperator,
        number: Option<f64>,
        moment: Option<CalendarTime>,
    ) -> String {
        let name = self.value(name.to_owned());
        let mut ways = Vec::new();
        if let Some(number) = number {
            let number = self.value(number);
            let reach = match compare {
                CompareOperator::Equal => format!("low <= {number} AND high >= {number}"),
                CompareOperator::Unequal => format!("(low != {number} OR high != {number})"),
                CompareOperator::Less | CompareOperator::AtMost => {
                    format!("low {} {number}", compare.sign())
                }
                _ => format!("high {} {number}", compare.sign()),
            };
            ways.push(format!("is_time = 0 AND {reach}"));
        }
        if let Some(moment) = moment {
            let (from, to) = moment.places();
            let (from, to) = (self.value(from), self.value(to));
            let reach = reach(compare, ("low", "high"), (&from, &to));
            ways.push(format!("is_time = 1 AND {reach}"));
        }
        let ways = ways.join(" OR ");
        format!("i.ino IN (SELECT ino FROM span WHERE name = {name} AND ({ways}))")
    }

    /// Returns the SQL condition for attributes of files. The number of values of an attribute is the number of files that have it.
    fn attribute(
        &mut self,
        db: &Connection,
        name: &str,
        compare: CompareOperator,
        value: &ComparedValue,
    ) -> Result<String, Fault> {
        if compare == CompareOperator::Equal && value.number.is_none() {
            let name = self.value(name.as_bytes().to_vec());
            let value = self.value(value.text.as_bytes().to_vec());
            return Ok(format!(
                "i.ino IN (SELECT ino FROM xattr WHERE name = {name} AND value = {value})"
            ));
        }
        let sql = "SELECT ino, value FROM xattr WHERE name = ?1 LIMIT ?2";
        let mut statement = db.sql.prepare_cached(sql)?;
        let mut rows = statement.query(rusqlite::params![name.as_bytes(), TRIED_MAX])?;
        let mut fits: Vec<i64> = Vec::new();
        while let Some(row) = rows.next()? {
            let text = String::from_utf8_lossy(row.get_ref(1)?.as_bytes().unwrap_or_default());
            if value.fits(compare, &text) {
                fits.push(row.get(0)?);
            }
        }
        Ok(format!("i.ino IN ({})", self.list(&fits)))
    }

    /// Returns the condition for names. Patterns and regular expressions become functions of the connection, which later queries replace.
    fn name(&mut self, db: &Connection, equal: bool, wanted: &WantedName) -> Result<String, Fault> {
        let fits = match wanted {
            WantedName::Exact(name) => {
                let name = self.value(name.clone());
                format!("CAST(name AS TEXT) = {name}")
            }
            _ => {
                self.names += 1;
                let function = format!("find_name_{}", self.names);
                let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
                let wanted = wanted.clone();
                db.sql
                    .create_scalar_function(function.as_str(), 1, flags, move |context| {
                        let name = context.get_raw(0).as_bytes().unwrap_or_default();
                        let name = String::from_utf8_lossy(name);
                        Ok(wanted.fits(&name))
                    })?;
                format!("{function}(name)")
            }
        };
        let not = if equal { "" } else { "NOT " };
        Ok(format!(
            "i.ino IN (SELECT ino FROM dirent WHERE {not}{fits})"
        ))
    }

    /// Returns the SQL condition for files made by one of the viewer's own tasks with this name, or with this kernel, job or rule; or by a
    /// built-in kernel of any user's task.
    fn made_by(&mut self, searcher: &Searcher<'_>, name: &str) -> String {
        let (viewer, is_builtin) = (searcher.viewer, (searcher.is_builtin)(name));
        let all = viewer.above() || is_builtin;
        let own = match all {
            true => "1".to_owned(),
            false => format!("job.uid = {}", self.value(i64::from(viewer.uid))),
        };
        let whole = self.value(name.to_owned());
        let below = self.value(format!("%/{}", name.replace(['%', '_'], "_")));
        let (kernel, task) = (
            "json_extract(task.spec, '$.kernel')",
            "json_extract(task.spec, '$.name')",
        );
        let called = match is_builtin {
            true if !viewer.above() => format!("{kernel} = {whole}"),
            _ => format!(
                "job.name = {whole} OR {task} = {whole} OR {kernel} = {whole} OR {kernel} LIKE {below} OR {kernel} LIKE {whole} || '@%' \
                 OR EXISTS (SELECT 1 FROM rule WHERE rule.rule = job.rule AND rule.name = {whole})"
            ),
        };
        format!(
            "EXISTS (SELECT 1 FROM version CROSS JOIN task ON task.task = version.task CROSS JOIN job ON job.job = task.job \
             WHERE version.object = i.object AND version.task != 0 AND {own} AND ({called}))"
        )
    }

    /// Returns the SQL condition for files made, through any number of tasks, from a version of a file that the viewer may read.
    fn made_of(&mut self, tx: &Tx<'_>, path: &str) -> Result<String, Fault> {
        let bytes = path.as_bytes();
        let vnode = tx
            .resolve(bytes, true)
            .map_err(|fault| tx.advised(bytes, fault))?;
        tx.need_read(&vnode)?;
        let start = versions_of(tx.db, vnode.ino, b"")?;
        let walked = walk(tx.db, WalkDirection::Down, &start, 0)?;
        if let Some(cut) = walked.cut {
            return Err(Fault::NotFound(format!(
                "from = {path} can't be searched: {cut}"
            )));
        }
        let made = walked.objects.difference(&start);
        let made: Vec<i64> = made.map(|object| object.cast_signed()).collect();
        let list = self.list(&made);
        Ok(format!(
            "i.ino IN (SELECT inode.ino FROM version CROSS JOIN inode ON inode.ino = version.ino AND inode.object = version.object \
             WHERE version.object IN ({list}))"
        ))
    }

    fn list(&mut self, ids: &[i64]) -> String {
        let ids = self.value(serde_json::to_string(ids).unwrap_or_default());
        format!("SELECT value FROM json_each({ids})")
    }
}

/// Returns the SQL condition that a range from `low` to `high` contains a value that fulfils the comparison with a time. The time is the
/// interval from `from` up to, but not including, `to`.
fn reach(compare: CompareOperator, (low, high): (&str, &str), (from, to): (&str, &str)) -> String {
    match compare {
        CompareOperator::Unequal => format!("({low} < {from} OR {high} >= {to})"),
        CompareOperator::Less => format!("{low} < {from}"),
        CompareOperator::AtMost => format!("{low} < {to}"),
        CompareOperator::Greater => format!("{high} >= {to}"),
        CompareOperator::AtLeast => format!("{high} >= {from}"),
        CompareOperator::Equal | CompareOperator::Matches => {
            format!("({low} < {to} AND {high} >= {from})")
        }
    }
}
