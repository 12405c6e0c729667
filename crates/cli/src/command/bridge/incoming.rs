//! A file of a store as something to be read: its end is only its end if the store has said so.

use bytes::Bytes;
use std::io::{Error, Read};
use tokio::sync::mpsc;

/// Pieces that wait.
const PIECES: usize = 2;

#[derive(Debug)]
pub(super) enum Piece {
    Bytes(Bytes),
    End,
}

#[derive(Debug)]
pub(super) struct Incoming {
    pieces: mpsc::Receiver<Piece>,
    left: Bytes,
    ended: bool,
}

impl Incoming {
    pub(super) fn new() -> (mpsc::Sender<Piece>, Self) {
        let (sender, pieces) = mpsc::channel(PIECES);
        let incoming = Self {
            pieces,
            left: Bytes::new(),
            ended: false,
        };
        (sender, incoming)
    }
}

impl Read for Incoming {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while self.left.is_empty() && !self.ended {
            match self.pieces.blocking_recv() {
                Some(Piece::Bytes(bytes)) => self.left = bytes,
                Some(Piece::End) => self.ended = true,
                None => return Err(Error::other("the store gave only a part of it")),
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
        let (sender, mut incoming) = Incoming::new();
        sender.try_send(Piece::Bytes("ab".into())).unwrap();
        sender.try_send(Piece::End).unwrap();
        let mut text = String::new();
        incoming.read_to_string(&mut text).unwrap();
        assert_eq!(text, "ab");
        let (sender, mut incoming) = Incoming::new();
        sender.try_send(Piece::Bytes("ab".into())).unwrap();
        drop(sender);
        assert!(incoming.read_to_string(&mut text).is_err());
    }
}
