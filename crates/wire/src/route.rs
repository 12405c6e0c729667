//! HTTP routes of a node.
//!
//! | method, path | effect |
//! |---|---|
//! | `GET /objects/{id}` | the bytes; honours one `Range: bytes=a-b`; `206` with `Content-Range` |
//! | `GET /objects/{id}?corrupt=true` | the bytes of an object that is corrupt, as far as they can be read |
//! | `POST /objects/{id}/ranges` | the bytes of ranges of a sealed object, one after the other; `416` if a range is beyond its end |
//! | `HEAD /objects/{id}` | length only |
//! | `PUT /objects/{id}?offset=N` | writes the body at `N` (0 if absent) of an unsealed object, which is created if necessary |
//! | `POST /objects/{id}/truncate?size=N` | sets the length of an unsealed object |
//! | `POST /objects/{id}/copy?from={id}&bytes=N` | creates an unsealed object from the first `N` bytes of a sealed object; idempotent |
//! | `POST /objects/{id}/backend` | creates a sealed object from a file of the node's backend; answers `{"size": N}` |
//! | `POST /objects/{id}/reserve?size=N` | reserves space for an unsealed object of `N` bytes, where space is counted |
//! | `POST /objects/{id}/allocate?offset=N&length=N&mode=N` | `fallocate(2)` on an unsealed object; answers `{"size": N}` |
//! | `POST /objects/{id}/sync` | answers when the bytes of an object, sealed or not, survive power loss |
//! | `POST /objects/{id}/confirm?hash=HEX` | checks whether a sealed object has this BLAKE3 hash; `409` if it has another hash |
//! | `POST /objects/{id}/rank` | `101`: starts a rank of a task that reads the object, as the connection then states (`ranks` of the node) |
//! | `POST /objects/{id}/peer?label=N&rank=N&port=N` | `101`: the connection leads to that port of such a rank |
//! | `POST /objects/{id}/seal` | seals it (body: [`SealBody`] as JSON); answers `{"size": N}`; idempotent |
//! | `POST /seal` | seals many objects at once; answers a list of [`SealResult`], in order |
//! | `POST /replicas?bytes=B` | the hashes of many small objects for their replicas and, if `B` is `true`, their bytes |
//! | `GET /objects?directory=N` | the objects of one of its 256 directories as JSON: a list of [`ListedObject`] |
//! | `GET /objects/{id}/attributes`, `GET` or `PUT /objects/{id}/attributes/{page}/{number}` | attributes |
//! | `GET /objects/{id}/members` | the objects of a collection as JSON |
//! | `GET /status` | the status object as JSON |
//! | `GET /tasks` | the task tracker: all labels that are queued or run, as JSON |
//! | `GET /tasks/{id}` | one task, as JSON; `{id}` is its number in decimal |
//!
//! Details:
//! - The body of `/ranges` is a JSON list of `[first, end]`, `end` not included: at most [`RANGES_MAX`] ranges of [`RANGES_BYTES_MAX`] bytes.
//! - The source of `/copy` is on the same node, and its capability is in [`SOURCE_HEADER`]. The new object does not exist before it is complete.
//! - The body of `/backend` is the path of the file in the backend. Only administrators may use this route.
//! - `/confirm` reads an object that was not hashed before. If the object has another hash, the node reads it unless it did so within the last
//!   10 minutes.
//! - The body of `/seal` is a list of [`SealItem`]. The first capability of the list is also in the header.
//! - The body of `/replicas` is a list of [`ReplicaItem`](crate::replicas::ReplicaItem). The first capability of the list is also in the header.
//!   [`encode`](crate::replicas::encode) writes the answer.
//!
//! The answer `410` means that the object is corrupt, or lost below the node.
//!
//! Object ids are 16 hexadecimal digits. Every request has a capability in the header [`CAPABILITY_HEADER`]; without it the
//! node does not read the rest of the request. The capability is for the object. A task needs a capability for its task collection.
//! `GET /status` and `GET /tasks` need a capability for the status object. `GET /objects` needs a capability to remove the status object, which
//! only the server has.

use tidemill_model::id::ObjectId;

/// Name of the HTTP header that carries a capability in hexadecimal.
pub const CAPABILITY_HEADER: &str = "x-tidemill-capability";

/// Name of the HTTP header that carries the capability of the source object of a copy.
pub const SOURCE_HEADER: &str = "x-tidemill-source";

/// Name of the protocol of a connection that starts a rank of a task, or reaches a rank.
pub const RANK_PROTOCOL: &str = "tidemill-rank";

/// Maximum number of ranges of one request to `/ranges`.
pub const RANGES_MAX: usize = 1024;

/// Maximum total size in bytes of the ranges of one request to `/ranges`.
pub const RANGES_BYTES_MAX: u64 = 4 << 20;

/// Returns bytes as hexadecimal digits, as in [`CAPABILITY_HEADER`] and [`SealItem`].
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from_digit(digit.into(), 16).unwrap_or('0'));
        }
    }
    text
}

/// Returns the bytes of hexadecimal digits; `None` if `text` is invalid.
#[must_use]
pub fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pairs = text.as_bytes().chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    pairs
        .map(|pair| u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok())
        .collect()
}

/// Returns the path of the route of an object.
#[must_use]
pub fn object(id: ObjectId) -> String {
    format!("/objects/{:016x}", id.0)
}

/// Parses the `{id}` of a path into the id of an object.
#[must_use]
pub fn parse_object(text: &str) -> Option<ObjectId> {
    let digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (text.len() == 16 && digits)
        .then(|| u64::from_str_radix(text, 16).ok())
        .flatten()
        .map(ObjectId)
}

/// Parses a `Range` header for an object of `size` bytes.
///
/// `None`: the header is not understood, so the node sends all bytes (RFC 9110 §14.2). `Some(None)`: the range is beyond the object's end.
#[must_use]
pub fn parse_range(text: &str, size: u64) -> Option<Option<std::ops::Range<u64>>> {
    let (first, last) = text.trim().strip_prefix("bytes=")?.split_once('-')?;
    let (first, last) = (first.trim(), last.trim());
    // A number in Rust may begin with a sign.
    if first.starts_with('+') || last.starts_with('+') {
        return None;
    }
    if first.is_empty() {
        let count: u64 = last.parse().ok()?;
        let start = size.saturating_sub(count);
        return Some((start < size).then_some(start..size));
    }
    let start: u64 = first.parse().ok()?;
    let end = if last.is_empty() {
        size
    } else {
        let last: u64 = last.parse().ok()?;
        if last < start {
            return None;
        }
        last.saturating_add(1).min(size)
    };
    Some((start < size).then_some(start..end))
}

/// Body of a client's request to seal an object. The node records the attributes that the server has signed into the capability
/// (`capability::Attributes`), none that the client declares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SealBody {
    /// Whether the object's bytes must survive power loss before the node answers.
    #[serde(default)]
    pub durable: bool,
    /// Whether the writer of the object is lost, so that a program may still have the object's file open. After the seal no program can
    /// change the object through that file any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lost: bool,
    /// Whether the object became a part of a version of several objects after its capability was signed. A recovery must not take such an
    /// object for a whole file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub part: bool,
}

/// Number of directories in which a node stores its objects. The lowest byte of an object's id selects the directory.
pub const DIRECTORIES: u32 = 256;

/// Object in a node's listing of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ListedObject {
    /// Id of the object.
    pub object: u64,
    /// Length of the object in bytes.
    pub size: u64,
    /// Whether the object is sealed, and recorded as sealed in the node's database.
    pub sealed: bool,
    /// Time since the object's last change, in nanoseconds.
    pub age_ns: u64,
}

/// The path of requests that seal many objects at once.
pub const SEAL_ALL: &str = "/seal";

/// Maximum number of objects in one request to [`SEAL_ALL`].
pub const SEAL_ALL_MAX: usize = 2048;

/// Object in a request to [`SEAL_ALL`].
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SealItem {
    /// Id of the object.
    pub object: u64,
    /// Capability for the object, in hexadecimal.
    pub capability: String,
    /// Body of the request that seals the object.
    pub body: SealBody,
}

/// Result of sealing one object of a request to [`SEAL_ALL`].
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SealResult {
    /// Id of the object.
    pub object: u64,
    /// Final length of the object in bytes; 0 if the node refused the seal.
    pub size: u64,
    /// The node's receipt for that length, in hexadecimal (`CapabilityKey::receipt`); empty if the node refused the seal.
    pub receipt: String,
    /// HTTP status: 200, or the status that a request to seal only this object would return.
    pub status: u16,
    /// Reason why the node refused the seal; empty if the object is sealed.
    pub message: String,
}

/// Answer to a request that seals an object.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SealReply {
    /// Final length of the object in bytes.
    pub size: u64,
    /// The node's receipt for that length, in hexadecimal (`CapabilityKey::receipt`).
    pub receipt: String,
}

/// Answer to a request that changes the length of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SizeReply {
    /// New length of the object in bytes.
    pub size: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_encodes_and_parses_two_digits_per_byte() {
        assert_eq!(hex(&[0, 10, 255]), "000aff");
        assert_eq!(parse_hex("000AfF"), Some(vec![0, 10, 255]));
        for bad in ["0", "0g", "+1"] {
            assert_eq!(parse_hex(bad), None);
        }
    }

    #[test]
    fn range_header_parses_as_in_http_standard() {
        for (text, range) in [
            ("bytes=0-0", Some(Some(0..1))),
            ("bytes=3-99", Some(Some(3..10))),
            ("bytes=3-", Some(Some(3..10))),
            ("bytes=-4", Some(Some(6..10))),
            ("bytes=-40", Some(Some(0..10))),
            ("bytes=10-", Some(None)),
            ("bytes=-0", Some(None)),
            ("bytes=5-4", None),
            ("bytes=1-2,4-5", None),
            ("lines=1-2", None),
            ("bytes=a-b", None),
            ("bytes=+1-2", None),
            ("bytes=1-99999999999999999999", None),
            ("bytes=0-18446744073709551615", Some(Some(0..10))),
        ] {
            assert_eq!(parse_range(text, 10), range, "{text}");
        }
        assert_eq!(parse_range("bytes=0-", 0), Some(None));
    }

    #[test]
    fn object_path_parses_hex_digits_of_either_case_only() {
        assert_eq!(parse_object("00000000000000fF"), Some(ObjectId(255)));
        // A number in Rust may begin with a sign.
        for text in [
            "+5555555555555555",
            "+555555555555555",
            "-000000000000001",
            "ff",
            "",
        ] {
            assert_eq!(parse_object(text), None, "{text}");
        }
    }
}
