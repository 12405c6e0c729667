//! The attributes `user.tidemill.*`: where they can be set, and the texts of the reference.

use super::attribute::{
    DIRECTORY_DURABLE, DIRECTORY_NODE, DIRECTORY_REPLICAS, DIRECTORY_RULE, DIRECTORY_STRIPES,
    DIRECTORY_TIER, LAYOUT, LINEAGE, OBJECT, TASK, VERSION, WAIT,
};

/// Inodes on which users can set an attribute. On all others the cluster computes the attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetOn {
    /// No inodes.
    Nothing,
    /// Directories.
    Directories,
    /// Files and directories.
    All,
}

/// Attribute of Tidemill.
#[derive(Clone, Copy, Debug)]
pub struct KnownAttribute {
    /// Name.
    pub name: &'static [u8],
    /// Inodes on which it can be set.
    pub set_on: SetOn,
    /// Accepted values, as Markdown; empty for an attribute that cannot be set.
    pub values: &'static str,
    /// Meaning on a directory, as Markdown; empty: directories do not have it.
    pub directory: &'static str,
    /// Meaning on a file, as Markdown; empty: files do not have it.
    pub file: &'static str,
}

/// All attributes of Tidemill.
pub const KNOWN_ATTRIBUTES: [KnownAttribute; 12] = [
    KnownAttribute {
        name: DIRECTORY_REPLICAS,
        set_on: SetOn::Directories,
        values: "`1` to `8`; `N,now`: seals wait for the replicas",
        directory: "number of [replicas](../semantics.md#replicas) of new versions",
        file: "wanted number of replicas of the version",
    },
    KnownAttribute {
        name: DIRECTORY_STRIPES,
        set_on: SetOn::Directories,
        values: "`SIZE`, `SIZE,NODES`, `off`",
        directory: "[striping](../semantics.md#files-on-several-nodes) of new versions",
        file: "striping of the version",
    },
    KnownAttribute {
        name: DIRECTORY_TIER,
        set_on: SetOn::Directories,
        values: "`memory`, `disk`",
        directory: "[tier](../semantics.md#files-in-memory) of new versions",
        file: "tier of the version",
    },
    KnownAttribute {
        name: DIRECTORY_NODE,
        set_on: SetOn::Directories,
        values: "id of a node",
        directory: "node of new files",
        file: "node of the version; striped files do not have it",
    },
    KnownAttribute {
        name: DIRECTORY_DURABLE,
        set_on: SetOn::Directories,
        values: "`synced`, `staged`",
        directory: "state that [`fsync` of the directory](../burst.md#waiting-for-the-stage-out-with-fsync) waits for",
        file: "",
    },
    KnownAttribute {
        name: DIRECTORY_RULE,
        set_on: SetOn::Directories,
        values: "text of a rule",
        directory: "[rule](../rules.md) for files below the directory; only its owner and root set it",
        file: "",
    },
    KnownAttribute {
        name: WAIT,
        set_on: SetOn::All,
        values: "`1`, `0`",
        directory: "the value of files without a value of their own",
        file: "readers on other mounts [wait for more bytes](../burst.md#streaming-reads) of an unsealed version",
    },
    KnownAttribute {
        name: LAYOUT,
        set_on: SetOn::Nothing,
        values: "",
        directory: "",
        file: "places of the bytes, with the states of replicas, as [JSON](../semantics.md#replicas)",
    },
    KnownAttribute {
        name: LINEAGE,
        set_on: SetOn::Nothing,
        values: "",
        directory: "",
        file: "origin of the version, as JSON",
    },
    KnownAttribute {
        name: OBJECT,
        set_on: SetOn::Nothing,
        values: "",
        directory: "",
        file: "id of the version's object",
    },
    KnownAttribute {
        name: VERSION,
        set_on: SetOn::Nothing,
        values: "",
        directory: "",
        file: "number of the version, from 1",
    },
    KnownAttribute {
        name: TASK,
        set_on: SetOn::Nothing,
        values: "",
        directory: "",
        file: "id of the task that wrote the version",
    },
];

/// Whether the cluster computes the attribute of this name, on a directory or on another inode.
pub(super) fn is_computed(name: &[u8], is_dir: bool) -> bool {
    let found = KNOWN_ATTRIBUTES.iter().find(|known| known.name == name);
    found.is_some_and(|known| match known.set_on {
        SetOn::Nothing => true,
        SetOn::Directories => !is_dir,
        SetOn::All => false,
    })
}
