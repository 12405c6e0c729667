//! Tasks that are a process (rank) on each element that has a part of their input, which talk to each other by MPI
//! (`docs/decisions/0066-mpi-hooks.md`).
//!
//! The element that has the label [leads](lead): it asks the others, and itself, to start a rank each, by a connection that lasts as
//! long as that, is told what ranks say when they all wait for each other, and puts what they make together. An element that
//! [serves](serve) a rank speaks PMI with it, and carries its connections to the other ranks ([`relay`]).

pub(crate) mod lead;
mod pmi;
mod relay;
mod serve;

pub(crate) use serve::{Ranks, routes};

use serde::{Deserialize, Serialize};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Longest of what both sides say, in bytes: a label with its layout.
const WORD_BYTES_MAX: usize = 64 << 20;

/// How often each side says that it is there, and how long it may be silent.
const ALIVE_EVERY: Duration = Duration::from_secs(5);
const SILENT_MAX: Duration = Duration::from_secs(60);

/// Where a rank is.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Place {
    element: u32,
    object: u64,
    capability: Vec<u8>,
}

/// What a rank has to tell when it waits for the others.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Round {
    /// Where its kernel listens.
    ports: Vec<u16>,
    /// What it has put since the last time.
    values: Vec<(String, String)>,
}

/// What is said between who leads and who serves.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Word {
    /// To who serves: the label, in protobuf, which rank is to be started, and where all of them are.
    Begin {
        label: Vec<u8>,
        rank: usize,
        places: Vec<Place>,
    },
    /// To who leads: the kernel waits.
    Waits(Round),
    /// To who serves: all wait, and this is what they tell.
    Go {
        ports: Vec<Vec<u16>>,
        values: Vec<(String, String)>,
    },
    /// To both.
    Alive,
    /// To who leads: how the rank ended, in protobuf, and whether what it has read is not what was sealed in the end. Nothing is said
    /// behind it before `Give`.
    Ended { outcome: Vec<u8>, stale: bool },
    /// To who serves: what it made is wanted. The answer is its length, eight bytes, the lowest first, and then that.
    Give,
}

async fn say(to: &mut (impl AsyncWrite + Unpin), word: &Word) -> io::Result<()> {
    let word = postcard::to_allocvec(word).map_err(io::Error::other)?;
    let length = u32::try_from(word.len()).map_err(io::Error::other)?;
    let mut all = length.to_le_bytes().to_vec();
    all.extend(word);
    to.write_all(&all).await?;
    to.flush().await
}

/// Is not to be given up in the middle.
async fn hear(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Word> {
    let mut length = [0; 4];
    from.read_exact(&mut length).await?;
    let length = u32::from_le_bytes(length) as usize;
    if length > WORD_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut word = vec![0; length];
    from.read_exact(&mut word).await?;
    postcard::from_bytes(&word).map_err(io::Error::other)
}

/// As [`hear`], of one who says at least that it is there.
async fn hear_soon(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Word> {
    let heard = tokio::time::timeout(SILENT_MAX, hear(from)).await;
    heard.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
