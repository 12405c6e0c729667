//! Format of a pack, byte by byte (`docs/formats-node.md`). The functions have no effects. Any program may have written the bytes, so
//! every value is checked against the actual data before it is used.
//!
//! ```text
//!    magic, nonce | frame | frame | … | directory (zstd) | location and hash of the directory, magic
//! ```
//!
//! A frame contains chunks, one after the other. The directory lists the chunks and the files that contain the chunks.

use std::collections::BTreeMap;

/// First and last bytes of a pack; the last byte is the version of the format.
const MAGIC: [u8; 8] = *b"TMPACK\0\x01";
/// Number of bytes of the random number that distinguishes packs.
pub(super) const NONCE_BYTES: usize = 16;
/// Number of bytes of a pack before its first frame.
const HEAD_BYTES: usize = MAGIC.len() + NONCE_BYTES;
/// Number of bytes of a pack after its directory: the directory's two lengths and its hash, and the last bytes of the pack.
pub(super) const TAIL_BYTES: usize = 4 + 4 + 32 + MAGIC.len();
/// Maximum length of a chunk in bytes.
pub(super) const CHUNK_BYTES_MAX: usize = 1 << 20;
/// Maximum total size in bytes of consecutive small chunks that are compressed together.
const FRAME_BYTES: usize = 256 << 10;
/// Size of the frames, in bytes, at which a pack is full.
const PACK_BYTES: usize = 16 << 20;
/// Size of the directory, in bytes, at which a pack is full.
const DIRECTORY_BYTES: usize = 8 << 20;
/// Maximum length of a pack's directory that a reader accepts, in bytes.
const DIRECTORY_BYTES_MAX: usize = 32 << 20;
/// Maximum number of chunks that one part of a manifest lists.
pub(super) const PART_CHUNKS_MAX: usize = 1024;
/// Maximum length of a file name in bytes.
const NAME_BYTES_MAX: usize = 4096;
/// Compression level of zstd for frames.
const LEVEL: i32 = 3;

/// BLAKE3 hash.
pub(super) type Hash = [u8; 32];

/// Reason why bytes are not a valid pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the file is not a pack, or is corrupt: {0}")]
pub struct Malformed(pub(super) &'static str);

/// Location of a chunk in its pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ChunkSpot {
    /// Frame that contains the chunk.
    pub(super) frame: Frame,
    /// Offset of the chunk in the decompressed frame, in bytes.
    pub(super) at: u32,
    /// Length of the chunk in bytes.
    pub(super) size: u32,
}

/// Location of a frame in its pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Frame {
    /// Offset of the frame in the pack, in bytes.
    pub(super) at: u64,
    /// Length of the frame in the pack, in bytes.
    pub(super) stored: u32,
    /// Length of the decompressed frame in bytes. The length equals `stored` if the frame is not compressed.
    pub(super) plain: u32,
}

impl Frame {
    pub(super) fn end(&self) -> u64 {
        self.at + u64::from(self.stored)
    }
}

/// Part of a manifest, which lists the chunks of a version of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ManifestPart {
    /// Object of the version.
    pub(super) object: u64,
    /// Time at which the version was written, in nanoseconds since 1970.
    pub(super) time: u64,
    /// Length of the file in bytes.
    pub(super) size: u64,
    /// BLAKE3 hash of the whole file.
    pub(super) hash: Hash,
    /// Offset in the file of the first chunk of this part, in bytes.
    pub(super) at: u64,
    /// Name of the file, relative to the root of the store.
    pub(super) name: String,
    /// Chunks of this part: the hash and the length in bytes of each.
    pub(super) chunks: Vec<(Hash, u32)>,
}

impl ManifestPart {
    /// Returns the offset in the file of the end of the last chunk, in bytes.
    pub(super) fn end(&self) -> u64 {
        let sizes = self.chunks.iter().map(|(_, size)| u64::from(*size));
        sizes.fold(self.at, u64::saturating_add)
    }

    pub(super) fn encoded(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(76 + self.name.len() + self.chunks.len() * 36);
        for number in [self.object, self.time, self.size, self.at] {
            out.extend(number.to_le_bytes());
        }
        out.extend(self.hash);
        put_count(&mut out, self.name.len());
        out.extend(self.name.as_bytes());
        put_count(&mut out, self.chunks.len());
        for (hash, size) in &self.chunks {
            out.extend(hash);
            out.extend(size.to_le_bytes());
        }
        out
    }

    /// Decodes a part of a manifest.
    ///
    /// # Errors
    /// The bytes are not a part of a manifest.
    pub(super) fn decoded(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut left = Remaining(bytes);
        let part = Self::read(&mut left)?;
        match left.0 {
            [] => Ok(part),
            _ => Err(Malformed("a part of a manifest is longer than its content")),
        }
    }

    fn read(left: &mut Remaining<'_>) -> Result<Self, Malformed> {
        let (object, time) = (left.u64()?, left.u64()?);
        let (size, at) = (left.u64()?, left.u64()?);
        let hash = left.array()?;
        let length = left.count(NAME_BYTES_MAX, 1)?;
        let name = String::from_utf8(left.take(length)?.to_vec());
        let name = name.map_err(|_| Malformed("a name is not UTF-8"))?;
        let count = left.count(PART_CHUNKS_MAX, 36)?;
        let mut chunks = Vec::with_capacity(count);
        for _ in 0..count {
            let chunk = (left.array()?, left.u32()?);
            if chunk.1 == 0 || chunk.1 as usize > CHUNK_BYTES_MAX {
                return Err(Malformed("the length of a chunk is invalid"));
            }
            chunks.push(chunk);
        }
        let part = Self {
            object,
            time,
            size,
            hash,
            at,
            name,
            chunks,
        };
        match part.end() <= size {
            true => Ok(part),
            false => Err(Malformed("chunks are beyond the end of their file")),
        }
    }
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    // All counts are limited to far smaller values.
    out.extend(u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
}

/// Bytes that a decoder has not read yet.
struct Remaining<'a>(&'a [u8]);

impl<'a> Remaining<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let taken = self.0.split_at_checked(count);
        let (taken, rest) = taken.ok_or(Malformed("it ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| Malformed("it ends too early"))
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads a number of items that take at least `bytes_each` bytes each; fails if the remaining bytes can't hold them.
    fn count(&mut self, max: usize, bytes_each: usize) -> Result<usize, Malformed> {
        let count = self.u32()? as usize;
        match count <= max && count.saturating_mul(bytes_each) <= self.0.len() {
            true => Ok(count),
            false => Err(Malformed("a count is too large")),
        }
    }
}

/// Directory of a pack: its chunks and the parts of manifests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Directory {
    pub(super) chunks: Vec<(Hash, ChunkSpot)>,
    /// Parts of manifests of the files in the pack.
    pub(super) parts: Vec<ManifestPart>,
}

impl Directory {
    fn encoded(frames: &BTreeMap<u64, PackedFrame>, parts: &[Vec<u8>]) -> Vec<u8> {
        let mut out = Vec::new();
        put_count(&mut out, frames.len());
        for PackedFrame { frame, chunks } in frames.values() {
            out.extend(frame.at.to_le_bytes());
            out.extend(frame.stored.to_le_bytes());
            put_count(&mut out, chunks.len());
            for (hash, size) in chunks {
                out.extend(hash);
                out.extend(size.to_le_bytes());
            }
        }
        put_count(&mut out, parts.len());
        for part in parts {
            out.extend(part);
        }
        out
    }

    /// Decodes the directory of a pack whose frames end at `frames_end`.
    fn decoded(bytes: &[u8], frames_end: u64) -> Result<Self, Malformed> {
        let mut left = Remaining(bytes);
        let mut directory = Self::default();
        for _ in 0..left.count(bytes.len(), 16)? {
            directory.read_frame(&mut left, frames_end)?;
        }
        for _ in 0..left.count(bytes.len(), 72)? {
            directory.parts.push(ManifestPart::read(&mut left)?);
        }
        match left.0 {
            [] => Ok(directory),
            _ => Err(Malformed("its directory is longer than its content")),
        }
    }

    fn read_frame(&mut self, left: &mut Remaining<'_>, frames_end: u64) -> Result<(), Malformed> {
        let (at, stored) = (left.u64()?, left.u32()?);
        let count = left.count(usize::MAX, 36)?;
        let mut chunks = Vec::with_capacity(count);
        let mut plain = 0_usize;
        for _ in 0..count {
            let (hash, size) = (left.array()?, left.u32()?);
            chunks.push((hash, plain, size));
            plain = plain.saturating_add(size as usize);
        }
        let frame = Frame {
            at,
            stored,
            plain: u32::try_from(plain).unwrap_or(u32::MAX),
        };
        let within = at >= HEAD_BYTES as u64
            && at
                .checked_add(u64::from(stored))
                .is_some_and(|end| end <= frames_end);
        if !within || plain > CHUNK_BYTES_MAX || stored > frame.plain {
            return Err(Malformed("the location of a frame is invalid"));
        }
        for (hash, at, size) in chunks {
            let at = u32::try_from(at).unwrap_or(u32::MAX);
            self.chunks.push((hash, ChunkSpot { frame, at, size }));
        }
        Ok(())
    }
}

/// Location of the directory in a pack, from the last bytes of the pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PackTail {
    pub(super) at: u64,
    pub(super) stored: u32,
    plain: u32,
    hash: Hash,
}

impl PackTail {
    /// Decodes the last bytes of a pack of `size` bytes.
    ///
    /// # Errors
    /// The bytes are not the end of a pack.
    pub(super) fn read(bytes: &[u8], size: u64) -> Result<Self, Malformed> {
        let mut left = Remaining(bytes);
        let (stored, plain) = (left.u32()?, left.u32()?);
        let hash = left.array()?;
        if left.0 != MAGIC {
            return Err(Malformed("its last bytes are not those of a pack"));
        }
        let behind = u64::from(stored) + TAIL_BYTES as u64;
        let at = size
            .checked_sub(behind)
            .filter(|at| *at >= HEAD_BYTES as u64);
        let at = at.ok_or(Malformed("its directory is longer than the pack"))?;
        if plain as usize > DIRECTORY_BYTES_MAX || stored as usize > DIRECTORY_BYTES_MAX {
            return Err(Malformed("its directory exceeds the maximum length"));
        }
        Ok(Self {
            at,
            stored,
            plain,
            hash,
        })
    }

    /// Decodes the directory of the pack.
    ///
    /// # Errors
    /// The bytes are not the directory of this pack.
    pub(super) fn directory(&self, bytes: &[u8]) -> Result<Directory, Malformed> {
        if blake3::hash(bytes) != self.hash {
            return Err(Malformed("the hash of its directory is wrong"));
        }
        Directory::decoded(&plain(bytes, self.plain as usize)?, self.at)
    }
}

/// Decompresses bytes to exactly `size` bytes.
fn plain(bytes: &[u8], size: usize) -> Result<Vec<u8>, Malformed> {
    let plain = zstd::bulk::decompress(bytes, size);
    let plain = plain.map_err(|_| Malformed("compressed data is invalid"))?;
    match plain.len() == size {
        true => Ok(plain),
        false => Err(Malformed("decompressed data has the wrong length")),
    }
}

impl Frame {
    /// Decompresses the frame and returns its chunks, one after the other.
    ///
    /// # Errors
    /// The bytes are not the bytes of this frame.
    pub(super) fn opened(&self, bytes: bytes::Bytes) -> Result<bytes::Bytes, Malformed> {
        if bytes.len() != self.stored as usize || self.plain as usize > CHUNK_BYTES_MAX {
            return Err(Malformed("a frame has the wrong length"));
        }
        match self.stored == self.plain {
            true => Ok(bytes),
            false => Ok(plain(&bytes, self.plain as usize)?.into()),
        }
    }
}

impl ChunkSpot {
    /// Returns the chunk from the decompressed frame, if the chunk has this hash.
    pub(super) fn of(&self, frame: &bytes::Bytes, hash: &Hash) -> Option<bytes::Bytes> {
        let from = self.at as usize;
        let to = from.checked_add(self.size as usize)?;
        let chunk = (to <= frame.len()).then(|| frame.slice(from..to))?;
        (blake3::hash(&chunk) == *hash).then_some(chunk)
    }
}

#[derive(Debug)]
struct PackedFrame {
    frame: Frame,
    chunks: Vec<(Hash, u32)>,
}

/// Pack to which chunks are being added.
#[derive(Debug)]
pub(super) struct Pack {
    bytes: Vec<u8>,
    frames: BTreeMap<u64, PackedFrame>,
    /// Bytes of the frame that is not complete yet.
    open: Vec<u8>,
    within: Vec<(Hash, u32)>,
    parts: Vec<Vec<u8>>,
    directory_bytes: usize,
    compress: bool,
}

/// Finished pack, ready to be written.
#[derive(Debug)]
pub(super) struct FinishedPack {
    pub(super) bytes: bytes::Bytes,
    pub(super) chunks: Vec<(Hash, ChunkSpot)>,
}

impl Pack {
    pub(super) fn new(nonce: [u8; NONCE_BYTES], compress: bool) -> Self {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(nonce);
        Self {
            bytes,
            frames: BTreeMap::new(),
            open: Vec::new(),
            within: Vec::new(),
            parts: Vec::new(),
            directory_bytes: 0,
            compress,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.within.is_empty() && self.parts.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() >= PACK_BYTES || self.directory_bytes >= DIRECTORY_BYTES
    }

    /// Adds a chunk that the pack does not contain yet.
    ///
    /// # Errors
    /// The chunk can't be compressed.
    pub(super) fn add(&mut self, hash: Hash, chunk: &[u8]) -> std::io::Result<()> {
        if !self.open.is_empty() && self.open.len() + chunk.len() > FRAME_BYTES {
            self.close_frame()?;
        }
        self.open.extend(chunk);
        self.within
            .push((hash, u32::try_from(chunk.len()).unwrap_or(u32::MAX)));
        self.directory_bytes += 36;
        Ok(())
    }

    pub(super) fn add_part(&mut self, encoded: Vec<u8>) {
        self.directory_bytes += encoded.len();
        self.parts.push(encoded);
    }

    fn close_frame(&mut self) -> std::io::Result<()> {
        if self.open.is_empty() {
            return Ok(());
        }
        let small = match self.compress {
            true => Some(zstd::bulk::compress(&self.open, LEVEL)?),
            false => None,
        };
        let small = small.filter(|small| small.len() < self.open.len());
        let stored = small.as_ref().unwrap_or(&self.open);
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let frame = Frame {
            at: self.bytes.len() as u64,
            stored: length(stored),
            plain: length(&self.open),
        };
        self.bytes.extend_from_slice(stored);
        self.open.clear();
        let chunks = std::mem::take(&mut self.within);
        self.frames.insert(frame.at, PackedFrame { frame, chunks });
        Ok(())
    }

    /// Returns the finished pack.
    ///
    /// # Errors
    /// The last frame or the directory can't be compressed.
    pub(super) fn made(mut self) -> std::io::Result<FinishedPack> {
        self.close_frame()?;
        let plain = Directory::encoded(&self.frames, &self.parts);
        let directory = zstd::bulk::compress(&plain, LEVEL)?;
        self.bytes.extend_from_slice(&directory);
        put_count(&mut self.bytes, directory.len());
        put_count(&mut self.bytes, plain.len());
        self.bytes.extend(blake3::hash(&directory).as_bytes());
        self.bytes.extend(MAGIC);
        let mut chunks = Vec::new();
        for packed in self.frames.values() {
            let (frame, mut at) = (packed.frame, 0);
            for (hash, size) in &packed.chunks {
                let size = *size;
                chunks.push((*hash, ChunkSpot { frame, at, size }));
                at += size;
            }
        }
        Ok(FinishedPack {
            bytes: self.bytes.into(),
            chunks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn part(name: &str, chunks: Vec<(Hash, u32)>) -> ManifestPart {
        let size = chunks.iter().map(|(_, size)| u64::from(*size)).sum();
        ManifestPart {
            object: 7,
            time: 8,
            size,
            hash: [9; 32],
            at: 0,
            name: name.into(),
            chunks,
        }
    }

    fn read(bytes: &[u8]) -> Result<Directory, Malformed> {
        let size = bytes.len() as u64;
        let tail = bytes.len().saturating_sub(TAIL_BYTES);
        let tail = PackTail::read(&bytes[tail..], size)?;
        let from = usize::try_from(tail.at).unwrap();
        tail.directory(&bytes[from..from + tail.stored as usize])
    }

    /// Returns a pack that contains a compressible chunk, two small chunks and an incompressible chunk.
    fn pack(compress: bool) -> (Vec<Vec<u8>>, FinishedPack) {
        let mut noise = vec![0; 300 << 10];
        blake3::Hasher::new().finalize_xof().fill(&mut noise);
        let chunks = vec![
            vec![1; 200 << 10],
            b"two".to_vec(),
            b"three".to_vec(),
            noise,
        ];
        let mut pack = Pack::new([5; NONCE_BYTES], compress);
        let mut reported = Vec::new();
        for chunk in &chunks {
            let hash = blake3::hash(chunk).into();
            pack.add(hash, chunk).unwrap();
            reported.push((hash, u32::try_from(chunk.len()).unwrap()));
        }
        pack.add_part(part("a/b", reported).encoded());
        (chunks, pack.made().unwrap())
    }

    #[test]
    fn pack_directory_lists_all_chunks() {
        for compress in [true, false] {
            let (chunks, made) = pack(compress);
            let directory = read(&made.bytes).unwrap();
            assert_eq!(directory.chunks, made.chunks);
            assert_eq!(directory.parts[0].name, "a/b");
            assert_eq!(directory.parts[0].chunks.len(), chunks.len());
            for ((hash, spot), chunk) in made.chunks.iter().zip(&chunks) {
                let frame = spot.frame;
                let from = usize::try_from(frame.at).unwrap();
                let bytes = made.bytes.slice(from..from + frame.stored as usize);
                let opened = frame.opened(bytes).unwrap();
                assert_eq!(spot.of(&opened, hash).unwrap(), chunk);
                assert!(spot.of(&opened, &[0; 32]).is_none());
            }
            let small = made.bytes.len() < 400 << 10;
            assert_eq!(small, compress);
        }
    }

    #[test]
    fn pack_decode_refuses_sizes_beyond_pack() {
        let hash = [1; 32];
        let long = part("x", vec![(hash, u32::MAX)]);
        assert!(ManifestPart::decoded(&long.encoded()).is_err());
        let mut short = part("x", vec![(hash, 10)]);
        short.size = 9;
        assert!(ManifestPart::decoded(&short.encoded()).is_err());
        short.at = u64::MAX;
        assert!(ManifestPart::decoded(&short.encoded()).is_err());
        let directory = |at: u64, stored: u32, size: u32| {
            let frame = Frame {
                at,
                stored,
                plain: size,
            };
            let chunks = vec![(hash, size)];
            let frames = BTreeMap::from([(at, PackedFrame { frame, chunks })]);
            Directory::decoded(&Directory::encoded(&frames, &[]), 1000)
        };
        assert!(directory(24, 976, 976).is_ok());
        for (at, stored, size) in [
            (0, 10, 10),
            (24, 977, 977),
            (u64::MAX, 10, 10),
            (24, 10, 9),
            (24, 10, (1 << 20) + 1),
        ] {
            assert!(directory(at, stored, size).is_err(), "{at} {stored} {size}");
        }
        let (_, made) = pack(true);
        let mut bomb = made.bytes.to_vec();
        let tail = bomb.len() - TAIL_BYTES;
        bomb[tail + 4..tail + 8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(read(&bomb).is_err());
    }

    proptest! {
        #[test]
        fn pack_decode_never_panics_for_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let _ = Directory::decoded(&bytes, 1 << 20);
            let _ = ManifestPart::decoded(&bytes);
            let _ = read(&bytes);
        }

        #[test]
        fn flipped_byte_in_pack_directory_is_detected(at in 0_usize..10_000, with in 1_u8..) {
            let (_, made) = pack(true);
            let whole = read(&made.bytes).unwrap();
            let tail = PackTail::read(&made.bytes[made.bytes.len() - TAIL_BYTES..], made.bytes.len() as u64).unwrap();
            let behind = made.bytes.len() - usize::try_from(tail.at).unwrap();
            let mut bytes = made.bytes.to_vec();
            let at = bytes.len() - behind + at % behind;
            bytes[at] ^= with;
            prop_assert!(read(&bytes).map_or(true, |found| found == whole));
        }
    }
}
