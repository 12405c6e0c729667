//! Identifiers. One macro defines all id types, so that an object id can't be passed as a task id. The server issues ids once and never
//! reuses them.

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(&self.0, f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = std::num::ParseIntError;
            fn from_str(s: &str) -> Result<Self, Self::Err> {
                s.parse().map(Self)
            }
        }
    };
}

id! {
    /// Storage node of the cluster. The administrator chooses its id, which stays the same over restarts.
    NodeId(u32)
}
id! {
    /// Object on a node: bytes that are immutable once sealed.
    ObjectId(u64)
}
id! {
    /// File, directory or link of the namespace. The root directory is 1. The highest bit is reserved for the mount's special files
    /// (AnalyzeThis §3.3).
    Inode(u64)
}
id! {
    /// Submitted job script: the opaque 64-bit handle of AnalyzeThis §3.3.
    JobId(u64)
}
id! {
    /// Task of a job.
    TaskId(u64)
}
id! {
    /// Unit of work for a node. A task that is retried gets a new label.
    LabelId(u64)
}

impl Inode {
    /// Inode of the root directory.
    pub const ROOT: Self = Self(1);
    /// Bit that distinguishes special files of the mount from files of the namespace.
    pub const SPECIAL: u64 = 1 << 63;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_prints_its_number_and_parses_back() {
        assert_eq!(ObjectId(17).to_string().parse(), Ok(ObjectId(17)));
        assert_eq!(format!("{:?}", TaskId(3)), "TaskId(3)");
        assert!("x".parse::<JobId>().is_err());
    }
}
