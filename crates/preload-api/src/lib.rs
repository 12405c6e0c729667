//! Messages between the library in a program (`tidemill-preload`) and the process that has the file system (`tidemill-mount`), over a Unix
//! socket that keeps message boundaries (`docs/formats.md`).
//!
//! A request and an answer are numbers of eight bytes, little-endian, followed by texts. Each request gets one answer, and a connection has
//! one request at a time. This crate never allocates, locks or calls other code: it is used in signal handlers and between `vfork` and
//! `exec`.

#![no_std]

/// Version of the messages. The library and the process must have the same version: they are installed together.
pub const VERSION: u64 = 1;
/// Environment variable with the path of the file system's socket.
pub const SOCKET_VARIABLE: &str = "TIDEMILL_PRELOAD_SOCKET";
/// Environment variable with the path under which programs see the cluster.
pub const PREFIX_VARIABLE: &str = "TIDEMILL_PRELOAD_PREFIX";
/// Environment variable with the working directory as a path in the cluster, if the directory is in the cluster.
pub const DIRECTORY_VARIABLE: &str = "TIDEMILL_PRELOAD_CWD";
/// Subdirectory of the socket's directory. The descriptor of a cluster's directory refers to an empty directory in this subdirectory, whose
/// name is the inode of the cluster's directory.
pub const DIRECTORIES: &str = "d";
/// Environment variable that is not empty if closed files are stored asynchronously.
pub const ASYNC_VARIABLE: &str = "TIDEMILL_PRELOAD_ASYNC";
/// Subdirectory of the socket's directory for local copies of files whose objects are not on this host.
pub const COPIES: &str = "f";
/// Subdirectory of the socket's directory for local copies whose changes are stored after their close.
pub const WRITE_BEHIND: &str = "a";
/// Value of `a` of [`Op::Open`]: changes of the file may be stored after its close.
pub const ASYNCHRONOUS: u64 = 1;
/// Device number that files of a cluster have in the result of `stat`.
pub const DEVICE: u64 = 0x7469_6465;
/// Maximum length of a path in bytes, as on Linux.
pub const PATH_BYTES_MAX: usize = 4096;
/// Maximum size of the value of an extended attribute in bytes, as on Linux.
pub const VALUE_BYTES_MAX: usize = 65_536;
/// Maximum size of a directory listing in one answer, in bytes.
pub const LISTING_BYTES_MAX: usize = 32_768;
/// Maximum size of a request in bytes.
pub const REQUEST_BYTES_MAX: usize = Request::BYTES + 2 * PATH_BYTES_MAX + VALUE_BYTES_MAX;
/// Maximum size of an answer in bytes.
pub const ANSWER_BYTES_MAX: usize = Answer::BYTES + VALUE_BYTES_MAX;
/// Value in place of an error number: the path leaves the cluster, and continues on the host with the path in the answer's text.
pub const LEAVES: u64 = 1 << 32;
/// First of the bytes whose locks on a file record which open files exist: no program may lock these bytes or see their locks. The open
/// file with number `n` locks byte `HANDLES_AT + n`.
pub const HANDLES_AT: u64 = 1 << 62;
/// Value of a time that the request does not change.
pub const TIME_OMITTED: i64 = i64::MIN;
/// Value that stands for the current time.
pub const TIME_NOW: i64 = i64::MIN + 1;
/// Value of a user or group id that the request does not change.
pub const NOBODY: u64 = u32::MAX as u64;

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Op {
    /// Opens a file: `flags` and `mode` as for `open`; `a` is 0 or [`ASYNCHRONOUS`]. Returns a descriptor, and in `value` whether the
    /// program has to report the close.
    Open = 1,
    /// Returns the attributes of a file.
    Stat,
    /// Checks whether the sender has access to a file: `mode` as for `access`.
    Access,
    /// Lists entries of a directory from number `a` on. The answer's `value` is the number to continue with, or 0 at the end; the answer's
    /// text is a sequence of [`Entry`].
    List,
    /// Creates a directory with the permission bits `mode`.
    MakeDirectory,
    /// Creates a file that is not a directory, with the type and permission bits `mode` and the device number `a`.
    MakeNode,
    /// Creates a symbolic link whose target is the second text.
    Symlink,
    /// Reads a symbolic link; the answer's text is the target.
    ReadLink,
    /// Creates the second path as a hard link to the file at the first path.
    Link,
    /// Removes the name of a file, or, with `AT_REMOVEDIR`, of a directory.
    Unlink,
    /// Renames a file or directory, with the flags of `renameat2`.
    Rename,
    /// Sets the size of a file to `a` bytes.
    Truncate,
    /// Sets the permission bits of a file.
    SetMode,
    /// Sets the owner of a file to user `a` and group `b`, except ids that are [`NOBODY`].
    SetOwner,
    /// Sets the times `a` of the last access and `b` of the last change of a file, in nanoseconds since the Unix epoch.
    SetTimes,
    /// Returns size and free space of the cluster: blocks of 4096 bytes in `stat.blocks` (all), `stat.size` (free), `stat.nlink` (files).
    StatFs,
    /// Reads the attribute named by the second text; at most `a` bytes, or only its length if `a` is 0.
    GetAttribute,
    /// Sets the attribute named by the second text to the third text, with the flags of `setxattr`.
    SetAttribute,
    /// Lists the names of a file's attributes; at most `a` bytes, or only their length if `a` is 0.
    ListAttributes,
    /// Removes the attribute that the second text names.
    RemoveAttribute,
    /// Makes an open file durable: its bytes survive power loss.
    Sync,
    /// Prepares the close of a descriptor: changes of a local copy are transferred to the cluster.
    Flush,
    /// Returns the path in the cluster without symbolic links. With `O_DIRECTORY` the path must be a directory that the sender may enter.
    Resolve,
    /// Locks an open file as `flock` does; `flags` contains the operation of `flock`.
    Flock,
    /// Returns the sender's closed files that are not stored. `value`: number of files being stored; `stat.size`: number of failed files
    /// (`a`: retry them first). Text, for each failed file, each item followed by a zero: `waits` or `refused`, path, reason, local path.
    Wait,
}

impl Op {
    const LAST: u64 = Self::Wait as u64;
    const ALL: [Self; 25] = [
        Self::Open,
        Self::Stat,
        Self::Access,
        Self::List,
        Self::MakeDirectory,
        Self::MakeNode,
        Self::Symlink,
        Self::ReadLink,
        Self::Link,
        Self::Unlink,
        Self::Rename,
        Self::Truncate,
        Self::SetMode,
        Self::SetOwner,
        Self::SetTimes,
        Self::StatFs,
        Self::GetAttribute,
        Self::SetAttribute,
        Self::ListAttributes,
        Self::RemoveAttribute,
        Self::Sync,
        Self::Flush,
        Self::Resolve,
        Self::Flock,
        Self::Wait,
    ];

    /// Returns the operation with this number; `None` if there is no such operation.
    #[must_use]
    pub fn of(number: u64) -> Option<Self> {
        let at = usize::try_from(number.checked_sub(1)?).ok()?;
        Self::ALL.get(at).copied().filter(|_| number <= Self::LAST)
    }
}

/// Fixed-size part of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Number of the operation [`Op`].
    pub op: u64,
    /// Flags, as in the system call.
    pub flags: u64,
    /// Mode, as in the system call.
    pub mode: u64,
    /// Inode of the directory at which the first path begins unless it has a leading slash; the request's target if the path is empty.
    pub base: u64,
    /// Inode of the directory at which the second path begins, like `base` for the first path.
    pub base2: u64,
    /// Device number on this host of the open file of the request, if `inode` is not 0.
    pub device: u64,
    /// Inode on this host of the open file of the request; 0 if the request has no open file.
    pub inode: u64,
    /// First argument, whose meaning depends on the operation.
    pub a: u64,
    /// Second argument, whose meaning depends on the operation.
    pub b: u64,
    /// Lengths in bytes of the four texts: path; path or name; value; and the prefix of absolute links in the cluster.
    pub lengths: [u64; 4],
}

fn put<const WORDS: usize, const BYTES: usize>(words: [u64; WORDS]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Returns the words at the start of `bytes`; `None` if there are too few bytes.
fn take<const WORDS: usize>(bytes: &[u8]) -> Option<[u64; WORDS]> {
    let mut words = [0; WORDS];
    let from = bytes.get(..WORDS * 8)?;
    for (word, from) in words.iter_mut().zip(from.chunks_exact(8)) {
        *word = u64::from_le_bytes(from.try_into().ok()?);
    }
    Some(words)
}

impl Request {
    /// Number of words of a request, including the version.
    const WORDS: usize = 14;
    /// Number of bytes of a request before its texts.
    pub const BYTES: usize = Self::WORDS * 8;

    /// Returns the bytes of the request that precede its texts.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let [a, b, c, d] = self.lengths;
        put::<{ Self::WORDS }, { Self::BYTES }>([
            VERSION,
            self.op,
            self.flags,
            self.mode,
            self.base,
            self.base2,
            self.device,
            self.inode,
            self.a,
            self.b,
            a,
            b,
            c,
            d,
        ])
    }

    /// Returns a request and its texts; `None` if the message is not a request of this version.
    #[must_use]
    pub fn decode(message: &[u8]) -> Option<(Self, [&[u8]; 4])> {
        let words = take::<{ Self::WORDS }>(message)?;
        let [
            version,
            op,
            flags,
            mode,
            base,
            base2,
            device,
            inode,
            a,
            b,
            lengths @ ..,
        ] = words;
        let mut rest = message.get(Self::BYTES..)?;
        let mut texts = [&[][..]; 4];
        for (text, length) in texts.iter_mut().zip(lengths) {
            let length = usize::try_from(length).ok()?;
            *text = rest.get(..length)?;
            rest = rest.get(length..)?;
        }
        let request = Self {
            op,
            flags,
            mode,
            base,
            base2,
            device,
            inode,
            a,
            b,
            lengths,
        };
        (version == VERSION && rest.is_empty()).then_some((request, texts))
    }
}

/// Attributes of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Inode number.
    pub ino: u64,
    /// File type and permission bits.
    pub mode: u64,
    /// Number of hard links.
    pub nlink: u64,
    /// User id of the owner.
    pub uid: u64,
    /// Group id of the owner.
    pub gid: u64,
    /// Device number of a special file.
    pub rdev: u64,
    /// Size in bytes.
    pub size: u64,
    /// Size in 512-byte blocks.
    pub blocks: u64,
    /// Time of the last recorded access, in nanoseconds since the Unix epoch.
    pub atime: i64,
    /// Time of the last change of the file's bytes, in nanoseconds since the Unix epoch.
    pub mtime: i64,
    /// Time of the last change of the file or its attributes, in nanoseconds since the Unix epoch.
    pub ctime: i64,
}

/// Fixed-size part of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// 0, an error number of the operating system, or [`LEAVES`].
    pub errno: u64,
    /// Result, whose meaning depends on the operation.
    pub value: u64,
    /// Attributes of the file, if the operation returns them.
    pub stat: Stat,
}

impl Answer {
    const WORDS: usize = 13;
    /// Number of bytes of an answer before its text.
    pub const BYTES: usize = Self::WORDS * 8;

    /// Returns the bytes of the answer that precede its text.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let stat = &self.stat;
        put::<{ Self::WORDS }, { Self::BYTES }>([
            self.errno,
            self.value,
            stat.ino,
            stat.mode,
            stat.nlink,
            stat.uid,
            stat.gid,
            stat.rdev,
            stat.size,
            stat.blocks,
            stat.atime.cast_unsigned(),
            stat.mtime.cast_unsigned(),
            stat.ctime.cast_unsigned(),
        ])
    }

    /// Decodes an answer, whose text starts at [`Self::BYTES`]; `None` if the message is too short.
    #[must_use]
    pub fn decode(message: &[u8]) -> Option<Self> {
        let words = take::<{ Self::WORDS }>(message)?;
        let [
            errno,
            value,
            ino,
            mode,
            nlink,
            uid,
            gid,
            rdev,
            size,
            blocks,
            atime,
            mtime,
            ctime,
        ] = words;
        let stat = Stat {
            ino,
            mode,
            nlink,
            uid,
            gid,
            rdev,
            size,
            blocks,
            atime: atime.cast_signed(),
            mtime: mtime.cast_signed(),
            ctime: ctime.cast_signed(),
        };
        Some(Self { errno, value, stat })
    }
}

/// Number of bytes of an [`Entry`] before its name: inode, type, and the length of the name in two bytes.
pub const ENTRY_BYTES: usize = 11;

/// An entry of a directory listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Inode of the entry.
    pub ino: u64,
    /// Type of the entry, as in `dirent`.
    pub kind: u8,
    /// Name of the entry.
    pub name: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Returns the bytes of the entry that precede its name; `None` if the name is too long.
    #[must_use]
    pub fn encode(&self) -> Option<[u8; ENTRY_BYTES]> {
        let length = u16::try_from(self.name.len()).ok()?;
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(&self.ino.to_le_bytes());
        bytes[8] = self.kind;
        bytes[9..].copy_from_slice(&length.to_le_bytes());
        Some(bytes)
    }

    /// Returns the entry at the start of `bytes`, and the bytes after the entry.
    #[must_use]
    pub fn decode(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let [ino] = take::<1>(bytes)?;
        let kind = *bytes.get(8)?;
        let length = u16::from_le_bytes(bytes.get(9..11)?.try_into().ok()?);
        let rest = bytes.get(ENTRY_BYTES..)?;
        let (name, rest) = rest.split_at_checked(length.into())?;
        let entry = Self { ino, kind, name };
        Some((entry, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preload_messages_round_trip_and_refuse_truncation() {
        let request = Request {
            op: Op::Rename as u64,
            base: 7,
            b: u64::MAX,
            lengths: [2, 1, 0, 3],
            ..Request::default()
        };
        let mut message = [0; Request::BYTES + 6];
        message[..Request::BYTES].copy_from_slice(&request.encode());
        message[Request::BYTES..].copy_from_slice(b"ab/pre");
        let (back, texts) = Request::decode(&message).unwrap();
        assert_eq!(back, request);
        assert_eq!(texts, [&b"ab"[..], b"/", b"", b"pre"]);
        for length in 0..message.len() {
            assert_eq!(Request::decode(&message[..length]), None);
        }
        let mut long = request;
        long.lengths[0] = u64::MAX;
        message[..Request::BYTES].copy_from_slice(&long.encode());
        assert_eq!(Request::decode(&message), None);
        let answer = Answer {
            errno: 2,
            stat: Stat {
                mtime: -1,
                ..Stat::default()
            },
            ..Answer::default()
        };
        assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        assert_eq!(Answer::decode(&answer.encode()[1..]), None);
    }

    #[test]
    fn preload_listing_entries_decode_in_sequence() {
        let entry = Entry {
            ino: 3,
            kind: 8,
            name: b"name",
        };
        let mut bytes = [0; ENTRY_BYTES + 5];
        bytes[..ENTRY_BYTES].copy_from_slice(&entry.encode().unwrap());
        bytes[ENTRY_BYTES..].copy_from_slice(b"name!");
        assert_eq!(Entry::decode(&bytes), Some((entry, &b"!"[..])));
        assert_eq!(Entry::decode(&bytes[..ENTRY_BYTES + 3]), None);
    }

    #[test]
    fn every_preload_operation_decodes_from_its_number() {
        for op in Op::ALL {
            assert_eq!(Op::of(op as u64), Some(op));
        }
        assert_eq!((Op::of(0), Op::of(Op::LAST + 1)), (None, None));
    }
}
