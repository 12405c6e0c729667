//! Format in which a node sends another node the data for replicas of many objects at once (`POST /replicas`).

/// Maximum number of objects in one request to [`REPLICAS`].
pub const OBJECTS_MAX: usize = 64;

/// Maximum size in bytes of an object in an answer; a larger object is requested alone.
pub const OBJECT_BYTES_MAX: u64 = 1 << 20;

/// Total size of objects in bytes after which no more objects are added to a request.
pub const OBJECTS_BYTES_MAX: u64 = 8 << 20;

/// Path of the route for replicas of many objects at once.
pub const REPLICAS: &str = "/replicas";

/// Object of a request to [`REPLICAS`].
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ReplicaItem {
    /// Id of the object.
    pub object: u64,
    /// Capability for the object, in hexadecimal.
    pub capability: String,
}

/// Data of one object: the BLAKE3 hash of the sealed bytes and, if requested, the bytes; `None` if the object has to be requested alone.
pub type ReplicaData = Option<([u8; 32], Vec<u8>)>;

/// Data of one object like [`ReplicaData`], as slices of an answer's body.
pub type BorrowedReplica<'a> = Option<(&'a [u8; 32], &'a [u8])>;

/// Value in place of the length of an object for which the answer has no data.
const NONE: u32 = u32::MAX;

/// Returns the body of an answer: for each object the number of its bytes (`u32`, little-endian; 0xffffffff: no data), the hash and the
/// bytes.
#[must_use]
pub fn encode(given: &[ReplicaData]) -> Vec<u8> {
    let length = |one: &ReplicaData| 4 + one.as_ref().map_or(0, |(_, bytes)| 32 + bytes.len());
    let mut body = Vec::with_capacity(given.iter().map(length).sum());
    for one in given {
        let Some((hash, bytes)) = one else {
            body.extend(NONE.to_le_bytes());
            continue;
        };
        let length = u32::try_from(bytes.len()).unwrap_or(NONE);
        body.extend(length.to_le_bytes());
        if length != NONE {
            body.extend(hash);
            body.extend(bytes);
        }
    }
    body
}

/// Returns the first object of a body, and the rest of the body; `None` if the body is invalid.
#[must_use]
pub fn decode(body: &[u8]) -> Option<(BorrowedReplica<'_>, &[u8])> {
    let (length, rest) = body.split_first_chunk()?;
    let length = u32::from_le_bytes(*length);
    if length == NONE {
        return Some((None, rest));
    }
    let (hash, rest) = rest.split_first_chunk()?;
    let (bytes, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    Some((Some((hash, bytes)), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_body_round_trips_and_refuses_truncation() {
        let given = [
            Some(([1; 32], vec![7; 5])),
            None,
            Some(([2; 32], Vec::new())),
        ];
        let body = encode(&given);
        let mut rest = body.as_slice();
        for one in &given {
            let (came, after) = decode(rest).unwrap();
            assert_eq!(came.map(|(hash, bytes)| (*hash, bytes.to_vec())), *one);
            rest = after;
        }
        assert!(rest.is_empty());
        let first = 4 + 32 + 5;
        assert!((0..first).all(|length| decode(&body[..length]).is_none()));
    }
}
