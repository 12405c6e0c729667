//! Facts about the headers of files, by which users search. A term is a value of an attribute, once for all files.

use crate::Connection;
use crate::Fault;
use rusqlite::{OptionalExtension, params};
use serde_json::Value as Json;

/// Facts about a header that the database stores.
#[derive(Debug, Default)]
pub struct Facts {
    /// Facts about the header for display, as JSON.
    pub body: Json,
    pub(crate) terms: Vec<Term>,
    /// Ranges of the values of the file's coordinates. A coordinate with several names has one range for each name.
    pub spans: Vec<CoordinateRange>,
}

/// A fact for which users can search.
#[derive(Debug, PartialEq)]
pub struct Term {
    pub(crate) key: String,
    pub(crate) text: String,
    pub(crate) number: Option<f64>,
}

/// Range of a coordinate's values: numbers, or times in the number form of `lang::find`.
#[derive(Debug, Clone, PartialEq)]
pub struct CoordinateRange {
    /// Name of the coordinate: its variable's name, its standard name, or a short form such as `lat`.
    pub name: String,
    /// Whether the values are times. The limits are then seconds on a scale on which all months have 31 days.
    pub is_time: bool,
    /// Smallest value of the coordinate in the file, in the units of the variable or, for times, in seconds.
    pub low: f64,
    /// Largest value of the coordinate in the file, in the units of the variable or, for times, in seconds.
    pub high: f64,
    /// The range in readable form.
    pub shown: (String, String),
}

impl Facts {
    /// Adds a fact for which users can search.
    pub fn add_term(&mut self, key: &str, text: String, number: Option<f64>) {
        let key = key.to_owned();
        self.terms.push(Term { key, text, number });
    }
}

/// Stores the facts about a file. The facts are deleted together with the row of the file's header.
pub(super) fn store(db: &Connection, ino: u64, facts: &Facts) -> Result<(), Fault> {
    let ino = ino.cast_signed();
    let mut find = db
        .sql
        .prepare_cached("SELECT term FROM term WHERE key = ?1 AND text = ?2")?;
    let mut add = db
        .sql
        .prepare_cached("INSERT INTO term(key, text, number) VALUES (?1, ?2, ?3) RETURNING term")?;
    let mut insert = db
        .sql
        .prepare_cached("INSERT OR IGNORE INTO text_field VALUES (?1, ?2)")?;
    for term in &facts.terms {
        let known = find.query_row([&term.key, &term.text], |row| row.get::<_, i64>(0));
        let id = match known.optional()? {
            Some(id) => id,
            None => add.query_row(params![term.key, term.text, term.number], |row| row.get(0))?,
        };
        insert.execute([id, ino])?;
    }
    let mut put = db
        .sql
        .prepare_cached("INSERT OR IGNORE INTO span VALUES (?1, ?2, ?3, ?4, ?5)")?;
    for span in &facts.spans {
        put.execute(params![span.name, ino, span.is_time, span.low, span.high])?;
    }
    Ok(())
}
