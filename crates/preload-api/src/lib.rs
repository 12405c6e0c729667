//! Messages between the library in a program (`tidemill-preload`) and the process that has the file system (`tidemill-mount`), over a Unix
//! socket that keeps message boundaries (`docs/formats.md`).
//!
//! A request and an answer are numbers of eight bytes, little-endian, followed by texts. Each request gets one answer, and a connection has
//! one request at a time. This crate never allocates, locks or calls other code: it is used in signal handlers and between `vfork` and
//! `exec`.

#![no_std]

/// Version of the messages. Both sides must have the same: they are installed together.
pub const VERSION: u64 = 1;
/// Environment: the socket of the file system.
pub const SOCKET_VARIABLE: &str = "TIDEMILL_PRELOAD_SOCKET";
/// Environment: the path below which the cluster is.
pub const PREFIX_VARIABLE: &str = "TIDEMILL_PRELOAD_PREFIX";
/// Environment: the working directory, if it is in the cluster, as a path in it.
pub const DIRECTORY_VARIABLE: &str = "TIDEMILL_PRELOAD_CWD";
/// Directory in the directory of the socket: the descriptor of a directory of the cluster is one of an empty directory in it, whose name is the
/// directory's inode.
pub const DIRECTORIES: &str = "d";
/// Environment: not empty if closed files are to be stored later.
pub const ASYNC_VARIABLE: &str = "TIDEMILL_PRELOAD_ASYNC";
/// Directory in the directory of the socket: copies of files that are not in directories of this host.
pub const COPIES: &str = "f";
/// Directory in the directory of the socket: copies whose changes are stored after their close.
pub const WRITE_BEHIND: &str = "a";
/// In `a` of [`Op::Open`]: changes may be stored after the close.
pub const ASYNCHRONOUS: u64 = 1;
/// Device number that files of a cluster have in `stat`.
pub const DEVICE: u64 = 0x7469_6465;
/// Maximum length of a path in bytes, as in the system.
pub const PATH_BYTES_MAX: usize = 4096;
/// Maximum size of the value of an extended attribute in bytes, as in the system.
pub const VALUE_BYTES_MAX: usize = 65_536;
/// Maximum size of a listing in one answer, in bytes.
pub const LISTING_BYTES_MAX: usize = 32_768;
/// Maximum size of a request in bytes.
pub const REQUEST_BYTES_MAX: usize = Request::BYTES + 2 * PATH_BYTES_MAX + VALUE_BYTES_MAX;
/// Maximum size of an answer in bytes.
pub const ANSWER_BYTES_MAX: usize = Answer::BYTES + VALUE_BYTES_MAX;
/// In place of an error number: the path leaves the cluster, and continues on the host with the path that follows.
pub const LEAVES: u64 = 1 << 32;
/// From this byte on a file's locks mark which open files exist: no program may lock there, or see such a lock. The open file with number
/// `n` locks byte `HANDLES_AT + n`.
pub const HANDLES_AT: u64 = 1 << 62;
/// A time that is not changed.
pub const TIME_OMITTED: i64 = i64::MIN;
/// The present time.
pub const TIME_NOW: i64 = i64::MIN + 1;
/// A user or group that is not changed.
pub const NOBODY: u64 = u32::MAX as u64;

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Op {
    /// Opens a file: `flags` and `mode` as of `open`; `a` is 0 or [`ASYNCHRONOUS`]. Returns a descriptor, and in `value` whether to report its
    /// close.
    Open = 1,
    /// Returns attributes.
    Stat,
    /// Whether the sender has access: `mode` as of `access`.
    Access,
    /// Lists entries of a directory from number `a` on. The answer's `value` is the number to continue with, 0 at the end; the text is
    /// [`Entry`] after [`Entry`].
    List,
    /// Creates a directory of `mode`.
    MakeDirectory,
    /// Creates a file of `mode` that is not a directory, of device `a`.
    MakeNode,
    /// Creates a symbolic link to the second text.
    Symlink,
    /// Reads a symbolic link; the text is its target.
    ReadLink,
    /// Gives the file of the first path another name, the second path.
    Link,
    /// Removes a name; with `AT_REMOVEDIR` that of a directory.
    Unlink,
    /// Renames, with the flags of `renameat2`.
    Rename,
    /// Sets the size to `a`.
    Truncate,
    /// Sets the mode.
    SetMode,
    /// Sets user `a` and group `b`, unless they are [`NOBODY`].
    SetOwner,
    /// Sets the times `a` and `b` of access and change, in nanoseconds since the Unix epoch.
    SetTimes,
    /// Returns size and free space of the cluster: blocks of 4096 bytes in `stat.blocks` (all), `stat.size` (free), `stat.nlink` (files).
    StatFs,
    /// Reads the attribute named by the second text; `a` bytes at most, or its length if that is 0.
    GetAttribute,
    /// Sets the attribute named by the second text to the third, with the flags of `setxattr`.
    SetAttribute,
    /// Lists names of attributes; `a` bytes at most, or their length if that is 0.
    ListAttributes,
    /// Removes the attribute named by the second text.
    RemoveAttribute,
    /// Makes an open file survive power loss.
    Sync,
    /// Prepares the close of a descriptor: changes of a copy are transferred.
    Flush,
    /// Returns the path in the cluster without symbolic links. With `O_DIRECTORY` it has to be a directory that the sender may enter.
    Resolve,
    /// Locks an open file as `flock` does, with the operation in `flags`.
    Flock,
    /// Returns the sender's unstored closed files. `value`: number on their way; `stat.size`: number of failed files (`a`: retry them
    /// first). Text, for each failed file, each followed by a zero: `waits` or `refused`, its path, the reason, the path of its bytes.
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

    /// Returns the operation of a number.
    #[must_use]
    pub fn of(number: u64) -> Option<Self> {
        let at = usize::try_from(number.checked_sub(1)?).ok()?;
        Self::ALL.get(at).copied().filter(|_| number <= Self::LAST)
    }
}

/// Numbers of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// [`Op`].
    pub op: u64,
    /// As in the system call.
    pub flags: u64,
    /// As in the system call.
    pub mode: u64,
    /// Inode of the directory at which the first path begins, unless it begins with a slash. Target of the request if the path is empty.
    pub base: u64,
    /// The same for the second path.
    pub base2: u64,
    /// Open file of the request, if `inode` is not 0: its device on this host …
    pub device: u64,
    /// … and inode.
    pub inode: u64,
    /// Depends on the operation.
    pub a: u64,
    /// Depends on the operation.
    pub b: u64,
    /// Lengths of the texts: path, path or name, value, and the prefix of absolute links in the cluster.
    pub lengths: [u64; 4],
}

/// Returns words as bytes.
fn put<const WORDS: usize, const BYTES: usize>(words: [u64; WORDS]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Returns the words at the start of bytes.
fn take<const WORDS: usize>(bytes: &[u8]) -> Option<[u64; WORDS]> {
    let mut words = [0; WORDS];
    let from = bytes.get(..WORDS * 8)?;
    for (word, from) in words.iter_mut().zip(from.chunks_exact(8)) {
        *word = u64::from_le_bytes(from.try_into().ok()?);
    }
    Some(words)
}

impl Request {
    /// Number of words of a request, with the version.
    const WORDS: usize = 14;
    /// Bytes before the texts.
    pub const BYTES: usize = Self::WORDS * 8;

    /// Returns the bytes before the texts.
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
    /// Inode.
    pub ino: u64,
    /// Type and permissions.
    pub mode: u64,
    /// Number of names.
    pub nlink: u64,
    /// User.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Device of a special file.
    pub rdev: u64,
    /// Size in bytes.
    pub size: u64,
    /// Size in 512-byte blocks.
    pub blocks: u64,
    /// Time of the last noted access, in nanoseconds since the Unix epoch.
    pub atime: i64,
    /// Time of the last change of bytes.
    pub mtime: i64,
    /// Time of the last change.
    pub ctime: i64,
}

/// Numbers of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// 0, an error number of the system, or [`LEAVES`].
    pub errno: u64,
    /// Depends on the operation.
    pub value: u64,
    /// Attributes, if the operation returns them.
    pub stat: Stat,
}

impl Answer {
    const WORDS: usize = 13;
    /// Bytes before the text.
    pub const BYTES: usize = Self::WORDS * 8;

    /// Returns the bytes before the text.
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

    /// Returns an answer; its text follows [`Self::BYTES`].
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

/// Bytes of an [`Entry`] before its name: inode, type, and the length of the name in two bytes.
pub const ENTRY_BYTES: usize = 11;

/// An entry of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Inode.
    pub ino: u64,
    /// Type, as in `dirent`.
    pub kind: u8,
    /// Name.
    pub name: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Returns the bytes before the name; `None` if the name is too long.
    #[must_use]
    pub fn encode(&self) -> Option<[u8; ENTRY_BYTES]> {
        let length = u16::try_from(self.name.len()).ok()?;
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(&self.ino.to_le_bytes());
        bytes[8] = self.kind;
        bytes[9..].copy_from_slice(&length.to_le_bytes());
        Some(bytes)
    }

    /// Returns the entry at the start of the bytes, and the bytes after it.
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
    fn messages_round_trip_and_truncated_ones_are_refused() {
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
    fn entries_decode_in_sequence() {
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
    fn every_operation_has_its_number() {
        for op in Op::ALL {
            assert_eq!(Op::of(op as u64), Some(op));
        }
        assert_eq!((Op::of(0), Op::of(Op::LAST + 1)), (None, None));
    }
}
