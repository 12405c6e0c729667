//! A file of a store as a stream: the end of the stream is the end of the file only if the store has reported it.

use bytes::Bytes;
use std::io::{Error, Read};
use tokio::sync::mpsc;

/// Maximum number of pieces that wait.
const PIECES: usize = 2;

#[derive(Debug)]
pub(super) enum IncomingChunk {
    Bytes(Bytes),
    End,
}

#[derive(Debug)]
pub(super) struct IncomingBytes {
    pieces: mpsc::Receiver<IncomingChunk>,
    left: Bytes,
    ended: bool,
}

impl IncomingBytes {
    pub(super) fn new() -> (mpsc::Sender<IncomingChunk>, Self) {
        let (sender, pieces) = mpsc::channel(PIECES);
        let incoming = Self {
            pieces,
            left: Bytes::new(),
            ended: false,
        };
        (sender, incoming)
    }
}

impl Read for IncomingBytes {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while self.left.is_empty() && !self.ended {
            match self.pieces.blocking_recv() {
                Some(IncomingChunk::Bytes(bytes)) => self.left = bytes,
                Some(IncomingChunk::End) => self.ended = true,
                None => return Err(Error::other("the store sent only a part of the file")),
            }
        }
        let count = buffer.len().min(self.left.len());
        buffer[..count].copy_from_slice(&self.left.split_to(count));
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incoming_stream_cut_before_end_is_an_error() {
        let (sender, mut incoming) = IncomingBytes::new();
        sender.try_send(IncomingChunk::Bytes("ab".into())).unwrap();
        sender.try_send(IncomingChunk::End).unwrap();
        let mut text = String::new();
        incoming.read_to_string(&mut text).unwrap();
        assert_eq!(text, "ab");
        let (sender, mut incoming) = IncomingBytes::new();
        sender.try_send(IncomingChunk::Bytes("ab".into())).unwrap();
        drop(sender);
        assert!(incoming.read_to_string(&mut text).is_err());
    }
}
