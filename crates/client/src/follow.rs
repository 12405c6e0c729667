//! Reading a file while it is written: what has come is handed on at once, until the writer has closed it.
//!
//! What a program writes in place passes nobody, so the object is looked at again and again, and the server is asked what became of it
//! when nothing has come. What was handed on is compared with what was sealed in the end.

use crate::error::Error;
use crate::transfer::Transfer;
use bytes::Bytes;
use parking_lot::Mutex;
use std::time::Duration;
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};
use tokio::time::Instant;

/// Pause after nothing has come; doubled up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// How long a server that does not answer is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
const PIECE_BYTES: u64 = 1 << 20;

/// How far a version has been read.
#[derive(Debug, Default)]
struct Read {
    object: u64,
    bytes: u64,
    hasher: blake3::Hasher,
}

impl Read {
    fn hand_on(
        &mut self,
        bytes: Bytes,
        piece: &mut impl FnMut(Bytes) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.bytes += bytes.len() as u64;
        self.hasher.update(&bytes);
        piece(bytes)
    }
}

impl Transfer {
    /// Reads a file from its beginning to its end, piece by piece. If it is being written, as a version that is one object, the bytes
    /// of that are handed on as they come, until it is sealed; else those of the version that is, once nobody writes it. Gives
    /// the number of bytes.
    ///
    /// # Errors
    /// If the file may not be read; if the version that was read was given up ([`Error::GivenUp`]), or bytes of it were changed after
    /// they had been handed on ([`Error::WrittenOver`]); if the server does not answer for a minute; or what `piece` gives.
    pub async fn follow(
        &self,
        path: &str,
        mut piece: impl FnMut(Bytes) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        let ino = self.resolve(path).await?.ino;
        let mut read = Read::default();
        let mut pause = PAUSE_MIN;
        loop {
            let opened = self.opened_growing(ino).await?;
            let attr = opened.attr.ok_or(Error::Answer("Open"))?;
            let growing = opened.object != attr.object;
            match read.object {
                0 if growing => read.object = opened.object,
                0 if attr.writing => {}
                0 => return self.read(path, piece).await,
                object if growing && opened.object == object => {}
                object if attr.object == object => {
                    return self.rest(path, &opened, read, piece).await;
                }
                _ => {
                    return Err(Error::GivenUp {
                        path: path.to_owned(),
                        bytes: read.bytes,
                    });
                }
            }
            let before = read.bytes;
            if growing {
                self.read_on(&opened, &mut read, &mut piece).await?;
            }
            pause = match read.bytes == before {
                true => PAUSE_MAX.min(pause * 2),
                false => PAUSE_MIN,
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// What a file is that may be being written; waits for a server that does not answer.
    async fn opened_growing(&self, ino: u64) -> Result<v1::Opened, Error> {
        let open = v1::Open {
            ino,
            growing: true,
            ..v1::Open::default()
        };
        let until = Instant::now() + PATIENCE;
        loop {
            match self.ask(Op::Open(open.clone())).await {
                Ok(Answer::Opened(opened)) => return Ok(opened),
                Ok(_) => return Err(Error::Answer("Open")),
                // Its mount does not say whether it is closed, as while that restarts.
                Err(error)
                    if (error.is_lost() || error.is(rustix::io::Errno::TIMEDOUT))
                        && Instant::now() < until =>
                {
                    tokio::time::sleep(PAUSE_MAX).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Hands on what has come to an object that is being written. What its element does not give comes later.
    async fn read_on(
        &self,
        opened: &v1::Opened,
        read: &mut Read,
        piece: &mut impl FnMut(Bytes) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Ok(remote) = Self::remote(opened) else {
            return Ok(());
        };
        loop {
            match self.objects().read(&remote, read.bytes, PIECE_BYTES).await {
                Ok(bytes) if bytes.is_empty() => return Ok(()),
                Ok(bytes) => read.hand_on(bytes, piece)?,
                Err(error) => {
                    tracing::debug!("a file that is written can't be read yet: {error}");
                    return Ok(());
                }
            }
        }
    }

    /// Hands on the rest of a version that was sealed.
    async fn rest(
        &self,
        path: &str,
        opened: &v1::Opened,
        mut read: Read,
        mut piece: impl FnMut(Bytes) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        let remote = Self::remote(opened)?;
        if read.bytes < opened.size {
            let from = read.bytes;
            let objects = self.objects();
            let rest = objects.read_from(&remote, from, |bytes| read.hand_on(bytes, &mut piece));
            rest.await?;
        }
        let hash = read.hasher.finalize();
        let same = read.bytes == opened.size
            && (read.bytes == 0 || self.objects().confirm(&remote, hash.as_bytes()).await?);
        match same {
            true => Ok(read.bytes),
            false => Err(Error::WrittenOver(path.to_owned())),
        }
    }
}

/// A version that is being written, for who reads it here and there and waits for what is still to come.
#[derive(Debug)]
pub struct Following {
    transfer: Transfer,
    ino: u64,
    object: u64,
    /// The right to read it, which is renewed; whether it is sealed.
    opened: Mutex<(v1::Opened, bool)>,
}

impl Following {
    /// Of what a file was opened as, which is being written.
    #[must_use]
    pub fn new(transfer: Transfer, ino: u64, opened: v1::Opened) -> Self {
        Self {
            transfer,
            ino,
            object: opened.object,
            opened: Mutex::new((opened, false)),
        }
    }

    /// Reads up to `length` bytes: waits until there are some at `offset`, or it is sealed and there will be none. `None`: `go_on` said
    /// that nobody waits any more.
    ///
    /// # Errors
    /// If it was given up ([`Error::GivenUp`]), may not be read any more, or the server does not answer for a minute.
    pub async fn read(
        &self,
        (offset, length): (u64, u64),
        go_on: impl Fn() -> bool,
    ) -> Result<Option<Bytes>, Error> {
        let mut pause = PAUSE_MIN;
        loop {
            let (opened, sealed) = self.opened.lock().clone();
            let read = match Transfer::remote(&opened) {
                Ok(remote) => self.transfer.objects().read(&remote, offset, length).await,
                Err(error) => Err(error),
            };
            match read {
                Ok(bytes) if sealed || !bytes.is_empty() => return Ok(Some(bytes)),
                Ok(_) => {}
                // Its element comes back, or another right is needed.
                Err(error) => tracing::debug!("what is written can't be read yet: {error}"),
            }
            tokio::time::sleep(pause).await;
            pause = PAUSE_MAX.min(pause * 2);
            if !go_on() {
                return Ok(None);
            }
            self.renew(offset).await?;
        }
    }

    /// Looks what became of it.
    async fn renew(&self, offset: u64) -> Result<(), Error> {
        let opened = self.transfer.opened_growing(self.ino).await?;
        let attr = opened.attr.as_ref().ok_or(Error::Answer("Open"))?;
        let sealed = attr.object == self.object;
        if sealed && opened.object != self.object {
            // Another is being written already.
            let open = v1::Open {
                ino: self.ino,
                ..v1::Open::default()
            };
            if let Answer::Opened(opened) = self.transfer.ask(Op::Open(open)).await?
                && opened.object == self.object
            {
                *self.opened.lock() = (opened, true);
            }
            return Ok(());
        }
        if opened.object != self.object {
            return Err(Error::GivenUp {
                path: format!("file {}", self.ino),
                bytes: offset,
            });
        }
        *self.opened.lock() = (opened, sealed);
        Ok(())
    }
}
