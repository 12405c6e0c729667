//! Tasks with ranks: one process on each node that has a part of their input. The processes communicate by MPI
//! (`docs/decisions/0064-mpi-hooks.md`). The module defines the messages between the nodes.
//!
//! The node that has the label [leads](lead). The leading node asks the other nodes, and itself, to start one rank each, over a connection
//! that lasts as long as the rank. The leading node distributes the values of the ranks when all ranks wait for each other, and joins their
//! outputs. A node that [serves](serve) a rank speaks PMI with the rank and relays its connections to the other ranks ([`relay`]).

pub(crate) mod lead;
mod pmi;
mod relay;
mod serve;

pub(crate) use serve::{Ranks, routes};

use serde::{Deserialize, Serialize};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Maximum length in bytes of a message, which may contain a label with its layout.
const WORD_BYTES_MAX: usize = 64 << 20;

/// Interval of keep-alive messages in both directions, and maximum time without a message.
const ALIVE_EVERY: Duration = Duration::from_secs(5);
const SILENT_MAX: Duration = Duration::from_secs(60);

/// Location of a rank: its node and its object.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RankLocation {
    node: u32,
    object: u64,
    capability: Vec<u8>,
}

/// Values of a rank that waits at a barrier.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct BarrierValues {
    /// Ports on which the rank's kernel listens.
    ports: Vec<u16>,
    /// Values that the rank has put since the last barrier.
    values: Vec<(String, String)>,
}

/// Message between the leader and the node that serves a rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Word {
    /// To the serving node: the label in protobuf, the number of the rank to start, and the locations of all ranks.
    Begin {
        label: Vec<u8>,
        rank: usize,
        places: Vec<RankLocation>,
    },
    /// To the leader: the kernel of the rank waits at a barrier.
    Waits(BarrierValues),
    /// To the serving node: all ranks wait at the barrier; contains the values of all ranks.
    Go {
        ports: Vec<Vec<u16>>,
        values: Vec<(String, String)>,
    },
    /// In both directions: keep-alive message.
    Alive,
    /// To the leader: the outcome of the rank in protobuf, and whether the rank has read other bytes than were finally sealed. No message
    /// follows before `Give`.
    Ended { outcome: Vec<u8>, stale: bool },
    /// To the serving node: request for the rank's output. The answer is the output's length as eight bytes, lowest first, and the output.
    Give,
}

async fn send_word(to: &mut (impl AsyncWrite + Unpin), word: &Word) -> io::Result<()> {
    let word = postcard::to_allocvec(word).map_err(io::Error::other)?;
    let length = u32::try_from(word.len()).map_err(io::Error::other)?;
    let mut all = length.to_le_bytes().to_vec();
    all.extend(word);
    to.write_all(&all).await?;
    to.flush().await
}

/// Receives a message. The future is not safe to cancel: it must run to its end.
async fn receive_word(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Word> {
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

/// Receives a message like [`receive_word`] from a peer that sends keep-alive messages. Fails after a silence.
async fn receive_soon(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Word> {
    let heard = tokio::time::timeout(SILENT_MAX, receive_word(from)).await;
    heard.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
