//! Lineage: which task or writer made an object, from which exact inputs.

use crate::names::Fault;
use rusqlite::{Connection, OptionalExtension};

/// What made an object, as JSON: the answer of the attribute `user.tidemill.lineage`.
pub(crate) fn summary(db: &Connection, object: u64) -> Result<String, Fault> {
    let sql = "SELECT ino, version, size, element, uid, sealed_at, task, path FROM version WHERE object = ?1";
    let found = db.prepare_cached(sql)?.query_row([object.cast_signed()], |row| {
        let path: Vec<u8> = row.get(7)?;
        Ok(serde_json::json!({
            "object": object,
            "ino": row.get::<_, i64>(0)?,
            "version": row.get::<_, i64>(1)?,
            "size": row.get::<_, i64>(2)?,
            "element": row.get::<_, i64>(3)?,
            "uid": row.get::<_, u32>(4)?,
            "sealed_at": row.get::<_, i64>(5)?,
            "task": row.get::<_, i64>(6)?,
            "path": String::from_utf8_lossy(&path),
        }))
    });
    Ok(found.optional()?.unwrap_or_default().to_string())
}
