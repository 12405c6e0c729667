//! Attribute pages. Every object and task of an element has attributes, each named by a page and a
//! number within it (OSD-2; AnalyzeThis §3.1.1, Fig. 3). The values are bytes; text is UTF-8, integers
//! are little-endian `u64`.

/// Attributes of a data object.
pub mod object {
    /// The page.
    pub const PAGE: u32 = 0x1;
    /// Length in bytes once sealed (`u64`).
    pub const SIZE: u32 = 1;
    /// Owner's user id (`u64`).
    pub const UID: u32 = 2;
    /// Owner's group id (`u64`).
    pub const GID: u32 = 3;
    /// Inode of the file it is a version of (`u64`).
    pub const INODE: u32 = 4;
    /// The file's path, as the server last told it (text); absent if the server has not told it yet.
    pub const PATH: u32 = 5;
    /// The task that made it (`u64`); absent if a client wrote it.
    pub const TASK: u32 = 6;
    /// When it was sealed, in nanoseconds since the Unix epoch (`u64`).
    pub const SEALED_AT: u32 = 7;
    /// Permission bits of the file when it was sealed (`u64`).
    pub const MODE: u32 = 8;
    /// What it is a part of (`layout::PartOf::to_bytes`); absent if it is all of a version.
    pub const PART: u32 = 9;
    /// It lies in the element's memory for intermediate files, and is lost with that: 1.
    pub const MEMORY: u32 = 10;
    /// Inode, owner, mode, path and part are the server's word: 1. Absent if an earlier release recorded them as a client
    /// told them.
    pub const ATTESTED: u32 = 11;
}

/// Attributes of a task collection: its lineage and its tracker.
pub mod task {
    /// The page.
    pub const PAGE: u32 = 0x2;
    /// Collection id of its inputs (`u64`).
    pub const INPUTS: u32 = 1;
    /// Collection id of its outputs (`u64`).
    pub const OUTPUTS: u32 = 2;
    /// Name in the job script (text).
    pub const NAME: u32 = 3;
    /// Job id (`u64`).
    pub const JOB: u32 = 4;
    /// Kernel as it was named (text).
    pub const KERNEL: u32 = 5;
    /// Hash of the kernel's code (text, blake3 in hexadecimal).
    pub const KERNEL_HASH: u32 = 6;
    /// Arguments (text, a JSON array).
    pub const ARGS: u32 = 7;
    /// `queued`, `fetching`, `running`, `done`, `failed` (text).
    pub const STATE: u32 = 8;
    /// Start in nanoseconds since the Unix epoch (`u64`).
    pub const START: u32 = 9;
    /// End in nanoseconds since the Unix epoch (`u64`).
    pub const END: u32 = 10;
    /// Exit code, or 128 + signal (`u64`).
    pub const EXIT: u32 = 11;
    /// Bytes pulled from other elements (`u64`).
    pub const MOVED_BYTES: u32 = 12;
    /// Bytes of all inputs (`u64`).
    pub const READ_BYTES: u32 = 13;
    /// Bytes of all outputs (`u64`).
    pub const WRITTEN_BYTES: u32 = 14;
    /// Why it failed (text).
    pub const ERROR: u32 = 15;
    /// End of its standard error (text); absent if empty.
    pub const STDERR: u32 = 16;
    /// Owner's user id (`u64`).
    pub const UID: u32 = 17;
    /// End of its standard output (text); absent if empty or if that went to an output.
    pub const STDOUT: u32 = 18;
    /// What it read of each of its inputs (text, a JSON array with a `layout::Selection` as text for each, empty for all of it);
    /// absent if it read all of all.
    pub const SELECTIONS: u32 = 19;
}

/// What the namespace says of an inode, so that a lost database can be made again.
pub mod name {
    /// The page.
    pub const PAGE: u32 = 0x4;
    /// The change it is the state after (`u64`): of two elements' notes the higher one holds.
    pub const CHANGE: u32 = 1;
    /// The note (protobuf, `NameNote`).
    pub const NOTE: u32 = 2;
    /// The object that it is about (`u64`), with which it goes; absent if there is none.
    pub const OBJECT: u32 = 3;
}

/// Attributes of the status object, which has the id 0.
pub mod status {
    /// The page.
    pub const PAGE: u32 = 0x3;
    /// Bytes the device holds (`u64`).
    pub const CAPACITY_BYTES: u32 = 1;
    /// Bytes still free (`u64`).
    pub const FREE_BYTES: u32 = 2;
    /// Cores for kernels (`u64`).
    pub const CORES: u32 = 3;
    /// Kernels running now (`u64`).
    pub const RUNNING: u32 = 4;
    /// Labels waiting (`u64`).
    pub const QUEUED: u32 = 5;
    /// Bytes written to the device since it was made (`u64`): what wears it.
    pub const BYTES_WRITTEN: u32 = 6;
    /// Bytes read by kernels since it was made (`u64`).
    pub const BYTES_READ: u32 = 7;
    /// Run-time history per kernel (text, JSON: name to `{runs, total_ns, input_bytes}`).
    pub const HISTORY: u32 = 8;
    /// One-minute load average of the host in thousandths (`u64`).
    pub const LOAD_MILLI: u32 = 9;
    /// What the writes will have done to flash memory, a model (text, JSON: fields of the protocol's
    /// `FlashModel`); absent where there is none.
    pub const FLASH_MODEL: u32 = 10;
}
