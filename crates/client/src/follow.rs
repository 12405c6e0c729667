//! Reading a file while it is written: what has come is handed on at once, until the writer has closed it.
//!
//! What a program writes in place passes nobody, so the object is looked at again and again, and the server is asked what became of it
//! when nothing has come. What was handed on is compared with what was sealed in the end.

use crate::error::Error;
use crate::transfer::Transfer;
use bytes::Bytes;
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
