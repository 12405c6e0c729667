//! Values that the database stores as JSON.

use super::Fault;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Returns a value of numbers and names as JSON. The conversion of such values can't fail.
pub fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Parses JSON that [`json`] has written: the value `what` of the row with this id.
pub fn parse<T: DeserializeOwned>(text: &str, what: &str, id: u64) -> Result<T, Fault> {
    serde_json::from_str(text).map_err(|error| Fault::Corrupt(format!("{what} {id}: {error}")))
}

/// Returns ids as a JSON list, for `json_each` of SQLite.
pub(super) fn json_list(ids: impl IntoIterator<Item = u64>) -> String {
    json(&Vec::from_iter(ids.into_iter().map(u64::cast_signed)))
}
