//! Objects and their locations.

use crate::id::{NodeId, ObjectId, TaskId};

/// Tags of object ids. The highest four bits of an object id show its kind on a node, so that data objects, task collections and linked
/// collections share one table (AnalyzeThis Fig. 3).
pub mod tag {
    /// Bits that hold the tag.
    pub const MASK: u64 = 0xf << 60;
    /// Tag of a data object: the server issues ids below `1 << 60`.
    pub const DATA: u64 = 0;
    /// Tag of a task collection: the tag and the task id.
    pub const TASK: u64 = 1 << 60;
    /// Tag of the linked collection of a task's inputs: the tag and the task id.
    pub const INPUTS: u64 = 2 << 60;
    /// Tag of the linked collection of a task's outputs: the tag and the task id.
    pub const OUTPUTS: u64 = 3 << 60;
}

/// Sealed object and the node that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Placed {
    /// Id of the object.
    pub object: ObjectId,
    /// Node that holds the bytes of the object.
    pub node: NodeId,
    /// Size of the object, in bytes.
    pub size: u64,
}

impl ObjectId {
    /// Id of the status object that every node has.
    pub const STATUS: Self = Self(0);

    /// Returns the task collection of a task.
    #[must_use]
    pub fn task_collection(task: TaskId) -> Self {
        Self(tag::TASK | (task.0 & !tag::MASK))
    }

    /// Returns the linked collection of a task's inputs.
    #[must_use]
    pub fn input_collection(task: TaskId) -> Self {
        Self(tag::INPUTS | (task.0 & !tag::MASK))
    }

    /// Returns the linked collection of a task's outputs.
    #[must_use]
    pub fn output_collection(task: TaskId) -> Self {
        Self(tag::OUTPUTS | (task.0 & !tag::MASK))
    }

    /// Returns whether the id belongs to a data object that a client may write: neither a collection nor the status object.
    #[must_use]
    pub fn is_data(self) -> bool {
        self.0 & tag::MASK == tag::DATA && self != Self::STATUS
    }

    /// Returns the path at which a node stores the object, relative to the node's directory: `objects/<2 hex>/<16 hex>`.
    ///
    /// The two hexadecimal digits are the id's lowest byte, so that consecutive ids spread over 256 directories.
    #[must_use]
    pub fn relative_path(self) -> String {
        format!("objects/{:02x}/{:016x}", self.0 & 0xff, self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collection_ids_differ_from_object_ids() {
        let task = TaskId(7);
        let ids = [
            ObjectId(7),
            ObjectId::task_collection(task),
            ObjectId::input_collection(task),
            ObjectId::output_collection(task),
        ];
        let mut distinct = ids.to_vec();
        distinct.dedup();
        assert_eq!(distinct.len(), ids.len());
        let data: Vec<bool> = ids.iter().map(|id| id.is_data()).collect();
        assert_eq!(data, [true, false, false, false]);
        assert!(!ObjectId::STATUS.is_data());
    }

    #[test]
    fn objects_spread_over_directories_by_lowest_byte() {
        assert_eq!(
            ObjectId(0x1234).relative_path(),
            "objects/34/0000000000001234"
        );
    }
}
