//! Identifiers. One macro makes them all, so that an object id can't be passed where a task id is meant.
//! Ids are issued once by the server and never reused.

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
    /// One storage node of the array. Chosen by the operator, stable over restarts.
    ElementId(u32)
}
id! {
    /// Immutable bytes on one element once sealed.
    ObjectId(u64)
}
id! {
    /// A file, directory or link of the namespace. The root is 1. The highest bit is kept for the
    /// mount's special files (AnalyzeThis §3.3).
    Inode(u64)
}
id! {
    /// A submitted job script: the opaque 64-bit handle of AnalyzeThis §3.3.
    JobId(u64)
}
id! {
    /// One task of one job.
    TaskId(u64)
}
id! {
    /// One unit of work for an element. A task that is tried again gets a new label.
    LabelId(u64)
}

impl Inode {
    /// The root directory.
    pub const ROOT: Self = Self(1);
    /// The bit that tells a special file of the mount from one of the namespace.
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
