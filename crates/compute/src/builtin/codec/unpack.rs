//! Decompressors of formats whose library processes bytes as they arrive.

use std::fmt::Debug;
use std::io::{self, Write};

use bzip2::Decompress as Bzip2;
use flate2::{Decompress as Inflate, FlushDecompress, Status};
use zstd::stream::raw::{Decoder, Operation};

use super::{BuiltinError, PIECE_BYTES, corrupt};
use crate::fold::Stream;

/// Result of a step of a decoder.
#[derive(Debug)]
pub(super) struct DecoderStep {
    read: usize,
    written: usize,
    /// Whether a member ended: another member follows, or the end of the input.
    ended: bool,
}

/// Decoder of a format's members, which may follow each other.
pub(super) trait Decode: Send + Debug {
    const FORMAT: &'static str;
    /// Whether zeros may follow the last member, as on tapes.
    const PADDED: bool = false;

    /// Decodes from `input` to `output` until `input` is consumed, `output` is full or a member has ended.
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<DecoderStep, String>;

    /// Prepares the decoder for another member.
    fn again(&mut self);
}

/// Position of a decoder in its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DecoderPhase {
    /// Before the first member of the input.
    Begin,
    Within,
    /// After a member of the input.
    Between,
    /// In zeros after the last member.
    Padding,
}

/// Decompresses members in an amount of memory that does not depend on the content.
#[derive(Debug)]
pub(super) struct Unpacker<D> {
    decode: D,
    place: DecoderPhase,
    /// Number of input bytes consumed so far.
    taken: u64,
    unpacked: Vec<u8>,
    filled: usize,
}

impl<D: Decode> Unpacker<D> {
    pub(super) fn new(decode: D) -> Self {
        Self {
            decode,
            place: DecoderPhase::Begin,
            taken: 0,
            unpacked: vec![0; PIECE_BYTES],
            filled: 0,
        }
    }

    /// Returns whether a member begins or continues; false if only zeros follow the last member.
    fn turn(&mut self, first: u8) -> Result<bool, BuiltinError> {
        match self.place {
            DecoderPhase::Begin => self.place = DecoderPhase::Within,
            DecoderPhase::Within => {}
            DecoderPhase::Between | DecoderPhase::Padding if D::PADDED && first == 0 => {
                self.place = DecoderPhase::Padding;
                return Ok(false);
            }
            DecoderPhase::Between => {
                self.decode.again();
                self.place = DecoderPhase::Within;
            }
            DecoderPhase::Padding => {
                return Err(corrupt(
                    D::FORMAT,
                    self.taken,
                    "there is more data after its end",
                ));
            }
        }
        Ok(true)
    }
}

impl<D: Decode> Stream for Unpacker<D> {
    fn push(&mut self, mut bytes: &[u8], out: &mut dyn Write) -> Result<(), BuiltinError> {
        // The decoder may hold more output as long as it fills the whole buffer.
        let mut full = false;
        while full || !bytes.is_empty() {
            if let Some(first) = bytes.first()
                && !self.turn(*first)?
            {
                self.taken += 1;
                bytes = &bytes[1..];
                continue;
            }
            let step = self
                .decode
                .step(bytes, &mut self.unpacked[self.filled..])
                .map_err(|what| corrupt(D::FORMAT, self.taken, what))?;
            bytes = &bytes[step.read..];
            self.taken += step.read as u64;
            self.filled += step.written;
            full = self.filled == self.unpacked.len() && !step.ended;
            if self.filled == self.unpacked.len() {
                out.write_all(&self.unpacked).map_err(BuiltinError::Write)?;
                self.filled = 0;
            }
            if step.ended {
                self.place = DecoderPhase::Between;
            } else if step.read == 0 && step.written == 0 && !bytes.is_empty() {
                return Err(corrupt(D::FORMAT, self.taken, "it does not continue"));
            }
        }
        Ok(())
    }

    fn finish(self: Box<Self>, out: &mut dyn Write) -> Result<(), BuiltinError> {
        out.write_all(&self.unpacked[..self.filled])
            .map_err(BuiltinError::Write)?;
        match self.place {
            DecoderPhase::Between | DecoderPhase::Padding => Ok(()),
            DecoderPhase::Begin | DecoderPhase::Within => Err(BuiltinError::CutShort(D::FORMAT)),
        }
    }
}

fn length(count: u64) -> usize {
    usize::try_from(count).expect("counts of bytes in memory fit")
}

/// Decoder of gzip members, which checks their checksums and lengths.
#[derive(Debug)]
pub(super) struct Gunzip(Inflate);

/// Window size of gzip, as a power of two.
const WINDOW: u8 = 15;

impl Gunzip {
    pub(super) fn new() -> Self {
        Self(Inflate::new_gzip(WINDOW))
    }
}

impl Decode for Gunzip {
    const FORMAT: &'static str = "gzip";
    const PADDED: bool = true;

    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<DecoderStep, String> {
        let before = (self.0.total_in(), self.0.total_out());
        let status = self.0.decompress(input, output, FlushDecompress::None);
        let status = status.map_err(|error| error.to_string())?;
        Ok(DecoderStep {
            read: length(self.0.total_in() - before.0),
            written: length(self.0.total_out() - before.1),
            ended: status == Status::StreamEnd,
        })
    }

    fn again(&mut self) {
        *self = Self::new();
    }
}

/// Decoder of bzip2 streams.
pub(super) struct Bunzip2(Bzip2);

impl Debug for Bunzip2 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bunzip2").finish_non_exhaustive()
    }
}

impl Bunzip2 {
    pub(super) fn new() -> Self {
        Self(Bzip2::new(false))
    }
}

impl Decode for Bunzip2 {
    const FORMAT: &'static str = "bzip2";

    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<DecoderStep, String> {
        let before = (self.0.total_in(), self.0.total_out());
        let status = self.0.decompress(input, output);
        let status = status.map_err(|error| error.to_string())?;
        Ok(DecoderStep {
            read: length(self.0.total_in() - before.0),
            written: length(self.0.total_out() - before.1),
            ended: status == bzip2::Status::StreamEnd,
        })
    }

    fn again(&mut self) {
        *self = Self::new();
    }
}

/// Decoder of zstd frames, with windows of up to 128 MiB.
pub(super) struct Unzstd(Decoder<'static>);

impl Debug for Unzstd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unzstd").finish_non_exhaustive()
    }
}

impl Unzstd {
    pub(super) fn new() -> io::Result<Self> {
        Decoder::new().map(Self)
    }
}

impl Decode for Unzstd {
    const FORMAT: &'static str = "zstd";

    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<DecoderStep, String> {
        let status = self.0.run_on_buffers(input, output);
        let status = status.map_err(|error| error.to_string())?;
        Ok(DecoderStep {
            read: status.bytes_read,
            written: status.bytes_written,
            ended: status.remaining == 0,
        })
    }

    fn again(&mut self) {
        // The decoder begins a frame by itself.
    }
}
