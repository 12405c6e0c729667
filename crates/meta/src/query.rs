//! Functions that run SQL statements and read their rows.

use super::fault::Fault;
use crate::Connection;
use rusqlite::{OptionalExtension as _, Params, Row};

/// Defines an enum whose values the database stores as numbers.
macro_rules! stored_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$each:meta])* $value:ident = $number:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name {
            $(
                $(#[$each])*
                $value = $number,
            )+
        }

        impl rusqlite::ToSql for $name {
            fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
                Ok((*self as i64).into())
            }
        }

        impl rusqlite::types::FromSql for $name {
            fn column_result(
                value: rusqlite::types::ValueRef<'_>,
            ) -> rusqlite::types::FromSqlResult<Self> {
                match <i64 as rusqlite::types::FromSql>::column_result(value)? {
                    $($number => Ok(Self::$value),)+
                    other => Err(rusqlite::types::FromSqlError::OutOfRange(other)),
                }
            }
        }
    };
}
pub(super) use stored_enum;

/// Executes a statement.
pub(super) fn execute(db: &Connection, sql: &str, row: impl Params) -> Result<(), Fault> {
    changed(db, sql, row).map(drop)
}

/// Executes a statement; returns the number of changed rows.
pub(super) fn changed(db: &Connection, sql: &str, row: impl Params) -> Result<usize, Fault> {
    Ok(db.sql.prepare_cached(sql)?.execute(row)?)
}

/// Returns all rows of a query.
pub(super) fn rows<T, All: FromIterator<T>>(
    db: &Connection,
    sql: &str,
    key: impl Params,
    row: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<All, Fault> {
    let mut statement = db.sql.prepare_cached(sql)?;
    let rows = statement.query_map(key, row)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Returns the first row of a query, if any.
pub(super) fn find<T>(
    db: &Connection,
    sql: &str,
    key: impl Params,
    row: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Option<T>, Fault> {
    Ok(db.sql.prepare_cached(sql)?.query_row(key, row).optional()?)
}

/// Returns whether a query has any row.
pub(super) fn exists(db: &Connection, sql: &str, key: impl Params) -> Result<bool, Fault> {
    Ok(db.sql.prepare_cached(sql)?.exists(key)?)
}

/// Returns the earliest time that a query computes; `None` without rows.
pub(super) fn first_time(db: &Connection, sql: &str) -> Result<Option<i64>, Fault> {
    Ok(find(db, sql, [], |row| row.get::<_, Option<i64>>(0))?.flatten())
}

/// Returns the number that a query computes.
pub(super) fn number(db: &Connection, sql: &str, key: impl Params) -> Result<u64, Fault> {
    let mut statement = db.sql.prepare_cached(sql)?;
    let number: i64 = statement.query_row(key, |row| row.get(0))?;
    Ok(number.cast_unsigned())
}

/// Returns the number in a column of a row.
pub(super) fn unsigned(row: &Row<'_>, at: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(at).map(i64::cast_unsigned)
}

/// Returns the first two columns of a row as unsigned numbers.
pub(super) fn numbers(row: &Row<'_>) -> rusqlite::Result<(u64, u64)> {
    Ok((unsigned(row, 0)?, unsigned(row, 1)?))
}
