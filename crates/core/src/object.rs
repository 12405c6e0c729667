//! Objects and where they are.

use crate::id::{ElementId, ObjectId};

/// A sealed object and the element that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Placed {
    /// The object.
    pub object: ObjectId,
    /// The element that holds its bytes.
    pub element: ElementId,
    /// Its length in bytes.
    pub size: u64,
}

impl ObjectId {
    /// Where an element keeps the object, relative to its folder: `objects/<2 hex>/<16 hex>`.
    ///
    /// The two digits are the id's lowest byte, so that consecutive ids spread over 256 folders.
    #[must_use]
    pub fn relative_path(self) -> String {
        format!("objects/{:02x}/{:016x}", self.0 & 0xff, self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_spread_over_folders_by_their_lowest_byte() {
        assert_eq!(ObjectId(0x1234).relative_path(), "objects/34/0000000000001234");
    }
}
