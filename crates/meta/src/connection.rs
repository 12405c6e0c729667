//! The connection to the server's database, on which only this crate can run statements.

/// Connection to the server's database in a read or a transaction. Functions of this crate read and write through a connection; other crates
/// can only pass a connection to these functions:
///
/// ```compile_fail
/// fn outside(db: &tidemill_meta::Connection) {
///     db.sql.execute_batch("DELETE FROM inode").unwrap();
/// }
/// ```
#[derive(Debug)]
pub struct Connection {
    pub(crate) sql: rusqlite::Connection,
}

impl Connection {
    pub(crate) fn new(sql: rusqlite::Connection) -> Self {
        Self { sql }
    }

    /// Returns a function that interrupts the statements of this connection from another thread.
    pub fn interrupt(&self) -> impl Fn() + Send + use<> {
        let handle = self.sql.get_interrupt_handle();
        move || handle.interrupt()
    }

    /// Returns SQLite's connection, for tests that read or change rows with statements of their own.
    #[cfg(feature = "simulation")]
    #[must_use]
    pub fn raw(&self) -> &rusqlite::Connection {
        &self.sql
    }
}
