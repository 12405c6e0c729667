//! Attribute pages: constants for the attributes of objects and tasks on a node. Each attribute is named by a page and a number within the
//! page (OSD-2; AnalyzeThis §3.1.1, Fig. 3). The values are bytes; text is UTF-8, integers are little-endian `u64`.

/// Attributes of a data object.
pub mod object {
    /// Number of the page of object attributes.
    pub const PAGE: u32 = 0x1;
    /// Length of a sealed object in bytes (`u64`).
    pub const SIZE: u32 = 1;
    /// User id of the object's owner (`u64`).
    pub const UID: u32 = 2;
    /// Group id of the object's owner (`u64`).
    pub const GID: u32 = 3;
    /// Inode of the object's file (`u64`).
    pub const INODE: u32 = 4;
    /// Path of the file when the server signed the right to write the object, or that of the label that wrote it (text); absent if the path
    /// is unknown.
    pub const PATH: u32 = 5;
    /// Task that wrote the object (`u64`); absent if a client wrote it.
    pub const TASK: u32 = 6;
    /// Time of the seal, in nanoseconds since the Unix epoch (`u64`).
    pub const SEALED_AT: u32 = 7;
    /// Permission bits of the file when the server signed the right to write the object, or sent the label that copied it (`u64`).
    pub const MODE: u32 = 8;
    /// Striped file and part number (`layout::PartOf::to_bytes`); absent if the object is a whole version.
    pub const PART: u32 = 9;
    /// The value 1 if the object is stored in the node's memory for intermediate files and is lost with the node's memory.
    pub const MEMORY: u32 = 10;
}

/// Attributes of a task collection: lineage and progress of the task.
pub mod task {
    /// Number of the page of task attributes.
    pub const PAGE: u32 = 0x2;
    /// Collection id of the task's inputs (`u64`).
    pub const INPUTS: u32 = 1;
    /// Collection id of the task's outputs (`u64`).
    pub const OUTPUTS: u32 = 2;
    /// Name of the task in the job file (text).
    pub const NAME: u32 = 3;
    /// Id of the task's job (`u64`).
    pub const JOB: u32 = 4;
    /// Kernel of the task in the notation of the job script (text).
    pub const KERNEL: u32 = 5;
    /// Hash of the kernel's code (text, blake3 in hexadecimal).
    pub const KERNEL_HASH: u32 = 6;
    /// Arguments of the kernel (text, a JSON array).
    pub const ARGS: u32 = 7;
    /// State of the task: `queued`, `fetching`, `running`, `done`, `failed` (text).
    pub const STATE: u32 = 8;
    /// Start of the task in nanoseconds since the Unix epoch (`u64`).
    pub const START: u32 = 9;
    /// End of the task in nanoseconds since the Unix epoch (`u64`).
    pub const END: u32 = 10;
    /// Exit code of the kernel, or 128 + signal (`u64`).
    pub const EXIT: u32 = 11;
    /// Bytes that the task fetched from other nodes (`u64`).
    pub const TRANSFERRED_BYTES: u32 = 12;
    /// Bytes of all inputs of the task (`u64`).
    pub const READ_BYTES: u32 = 13;
    /// Bytes of all outputs of the task (`u64`).
    pub const WRITTEN_BYTES: u32 = 14;
    /// Reason of the task's failure (text).
    pub const ERROR: u32 = 15;
    /// Last bytes of the kernel's standard error (text); absent if empty.
    pub const STDERR: u32 = 16;
    /// User id of the task's owner (`u64`).
    pub const UID: u32 = 17;
    /// Last bytes of the kernel's standard output (text); absent if the standard output is empty or is an output file of the task.
    pub const STDOUT: u32 = 18;
    /// Selections of the task's inputs (text, a JSON array with a `layout::Selection` as text for each input, empty for a whole input);
    /// absent if all inputs were read completely.
    pub const SELECTIONS: u32 = 19;
}

/// Attributes of the status object, which has the id 0.
pub mod status {
    /// Number of the page of node status attributes.
    pub const PAGE: u32 = 0x3;
    /// Capacity of the node's device, in bytes (`u64`).
    pub const CAPACITY_BYTES: u32 = 1;
    /// Free space of the node's device, in bytes (`u64`).
    pub const FREE_BYTES: u32 = 2;
    /// Number of the node's cores for kernels (`u64`).
    pub const CORES: u32 = 3;
    /// Number of kernels that run on the node (`u64`).
    pub const RUNNING: u32 = 4;
    /// Number of labels that wait on the node (`u64`).
    pub const QUEUED: u32 = 5;
    /// Bytes written to the device since the node was created, which wear the device (`u64`).
    pub const BYTES_WRITTEN: u32 = 6;
    /// Bytes read by kernels since the node was created (`u64`).
    pub const BYTES_READ: u32 = 7;
    /// Run times on the node per kernel (text, JSON: name to `{runs, total_ns, input_bytes}`).
    pub const HISTORY: u32 = 8;
    /// One-minute load average of the host in thousandths (`u64`).
    pub const LOAD_MILLI: u32 = 9;
    /// Model of the effect of the writes on flash memory (text, JSON: fields of the protocol's `FlashModel`); absent if there is no model.
    pub const FLASH_MODEL: u32 = 10;
}
