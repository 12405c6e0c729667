//! Requests to the namespace from the same host, without HTTP: frames on a separate Unix socket.
//!
//! A frame is a length (four bytes, little-endian) and a payload of this length. Each side first sends a frame with its version. Then every
//! [`NameRequest`](crate::v1::NameRequest) gets one answer: a byte that is a gRPC status code, and the [`NameReply`](crate::v1::NameReply)
//! if the code is 0, else an error text.

use crate::size_limits::{self, SizeLimitError};
use crate::{MESSAGE_BYTES_MAX, PROTOCOL_VERSION, v1};
use prost::Message;
use rustix::fs::{Mode, OFlags};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Status of an answer that contains a reply.
pub const OK: u8 = 0;
/// Status by which the server refuses a connection because there are too many connections.
pub const EXHAUSTED: u8 = 8;
/// Status by which the server refuses a peer of another version.
pub const WRONG_VERSION: u8 = 9;

const MAGIC: &[u8; 4] = b"TMLN";
/// Maximum number of bytes that are allocated for a frame before its bytes arrive, so that a false length costs nothing.
const TRUSTED_BYTES: usize = 64 << 10;

/// Returns the path of the server's socket for frames, from the path of the Unix socket of its other services.
#[must_use]
pub fn socket(control: &Path) -> PathBuf {
    if control
        .file_name()
        .is_some_and(|name| name == "server.sock")
    {
        return control.with_file_name("names.sock");
    }
    let mut path = control.as_os_str().to_owned();
    path.push(".names");
    path.into()
}

/// Maximum length of the path of a Unix socket in system calls.
const PATH_BYTES_MAX: usize = 107;

/// A path of a Unix socket that is short enough to bind or connect to: a longer path is replaced by a path through its open directory.
#[derive(Debug)]
pub struct ShortPath {
    path: PathBuf,
    _directory: Option<OwnedFd>,
}

impl ShortPath {
    /// Returns a short path to the same socket.
    ///
    /// # Errors
    /// The directory of a long path cannot be opened.
    pub fn of(path: &Path) -> io::Result<Self> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(Self::whole(path));
        };
        if path.as_os_str().len() <= PATH_BYTES_MAX {
            return Ok(Self::whole(path));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(parent, flags, Mode::empty())?;
        let open = format!("/proc/self/fd/{}", directory.as_raw_fd());
        Ok(Self {
            path: Path::new(&open).join(name),
            _directory: Some(directory),
        })
    }

    fn whole(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            _directory: None,
        }
    }
}

impl AsRef<Path> for ShortPath {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

/// Sends a frame that consists of `head` and the encoded `message`.
///
/// # Errors
/// The frame is too long, or a write to the peer fails.
pub fn send(peer: &mut impl Write, head: &[u8], message: &impl Message) -> io::Result<()> {
    let length = head.len() + message.encoded_len();
    let mut frame = begin(length)?;
    frame.extend_from_slice(head);
    message.encode(&mut frame).map_err(io::Error::other)?;
    peer.write_all(&frame)
}

/// Sends a frame that consists of `head` and `bytes`: a greeting, or a status and a text.
///
/// # Errors
/// The errors of [`send`].
pub fn send_bytes(peer: &mut impl Write, head: &[u8], bytes: &[u8]) -> io::Result<()> {
    let mut frame = begin(head.len() + bytes.len())?;
    frame.extend_from_slice(head);
    frame.extend_from_slice(bytes);
    peer.write_all(&frame)
}

fn begin(length: usize) -> io::Result<Vec<u8>> {
    let fits = u32::try_from(length).ok();
    let Some(prefix) = fits.filter(|_| length <= MESSAGE_BYTES_MAX) else {
        return Err(invalid("a message exceeds the maximum length"));
    };
    let mut frame = Vec::with_capacity(4 + length);
    frame.extend_from_slice(&prefix.to_le_bytes());
    Ok(frame)
}

/// Receives the next frame; `None` if the peer has closed the connection between two frames.
///
/// # Errors
/// The frame is too long, or ends early.
pub fn receive(peer: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    receive_at_most(peer, MESSAGE_BYTES_MAX)
}

/// Receives the next frame like [`receive`], from a peer whose frames have at most `bytes_max` bytes.
///
/// # Errors
/// The errors of [`receive`].
pub fn receive_at_most(peer: &mut impl Read, bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
    let mut prefix = [0; 4];
    let got = loop {
        match peer.read(&mut prefix) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => break other?,
        }
    };
    if got == 0 {
        return Ok(None);
    }
    peer.read_exact(&mut prefix[got..])?;
    let length = u32::from_le_bytes(prefix) as usize;
    if length > bytes_max {
        return Err(invalid(
            "the announced length of a message exceeds the maximum",
        ));
    }
    let mut bytes = Vec::with_capacity(length.min(TRUSTED_BYTES));
    peer.take(length as u64).read_to_end(&mut bytes)?;
    if bytes.len() < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(bytes))
}

/// Returns the greeting, which is the first frame that each side sends.
#[must_use]
pub fn greeting() -> [u8; 8] {
    let mut greeting = [0; 8];
    greeting[..4].copy_from_slice(MAGIC);
    greeting[4..].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    greeting
}

/// Returns the version in a peer's greeting; `None` if the frame is no greeting.
#[must_use]
pub fn greeted(frame: &[u8]) -> Option<u32> {
    let version = frame.strip_prefix(MAGIC)?.try_into().ok()?;
    Some(u32::from_le_bytes(version))
}

/// Returns the request in a frame.
///
/// # Errors
/// The request is invalid, or too large.
pub fn request(frame: &[u8]) -> Result<v1::NameRequest, SizeLimitError> {
    size_limits::check(frame)?;
    v1::NameRequest::decode(frame).map_err(|_| SizeLimitError::Nonsense)
}

/// Returns the reply in an answer, or the answer's status and error text.
///
/// # Errors
/// The frame is not an answer.
pub fn reply(frame: &[u8]) -> io::Result<Result<v1::NameReply, (u8, String)>> {
    let (&status, rest) = frame
        .split_first()
        .ok_or_else(|| invalid("an answer is empty"))?;
    if status == OK {
        let reply = v1::NameReply::decode(rest);
        return Ok(Ok(reply.map_err(|_| invalid("an answer is not a reply"))?));
    }
    Ok(Err((status, String::from_utf8_lossy(rest).into_owned())))
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_frames_decode_in_sequence_and_refuse_truncation() {
        let mut bytes = Vec::new();
        send_bytes(&mut bytes, &[5], b"no").unwrap();
        send(&mut bytes, &[OK], &v1::NameReply::default()).unwrap();
        let mut peer = bytes.as_slice();
        let first = receive(&mut peer).unwrap().unwrap();
        assert_eq!(reply(&first).unwrap(), Err((5, "no".into())));
        let second = receive(&mut peer).unwrap().unwrap();
        assert_eq!(reply(&second).unwrap(), Ok(v1::NameReply::default()));
        assert!(receive(&mut peer).unwrap().is_none());
        for cut in 1..7 {
            assert!(receive(&mut &bytes[..cut]).is_err(), "{cut}");
        }
        assert!(receive(&mut [0xff; 4].as_slice()).is_err());
        assert_eq!(greeted(&greeting()), Some(PROTOCOL_VERSION));
        assert_eq!(greeted(b"GET / HTTP"), None);
    }

    #[test]
    fn local_socket_path_is_unique_for_each_server() {
        assert_eq!(
            socket(Path::new("/a/server.sock")),
            Path::new("/a/names.sock")
        );
        assert_eq!(socket(Path::new("/a/b")), Path::new("/a/b.names"));
    }

    #[test]
    fn short_path_binds_and_connects_socket_in_long_directory() {
        use std::os::unix::net::{UnixListener, UnixStream};
        let directory = tempfile::tempdir().unwrap();
        for length in [1, 100, 200] {
            let directory = directory.path().join("x".repeat(length));
            std::fs::create_dir(&directory).unwrap();
            let path = directory.join("server.sock");
            let listener = UnixListener::bind(ShortPath::of(&path).unwrap()).unwrap();
            assert!(path.exists());
            UnixStream::connect(ShortPath::of(&path).unwrap()).unwrap();
            listener.accept().unwrap();
        }
        let absent = directory.path().join("y".repeat(200)).join("server.sock");
        let error = ShortPath::of(&absent).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
