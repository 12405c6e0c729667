//! Packs: decoded chunks and parts are within the pack, and a decoded part encodes to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, reason = "packs are only read here")]
#[path = "../../crates/node/src/backend/packs/format.rs"]
mod format;

use format::{ManifestPart, TAIL_BYTES, PackTail};

/// Compresses and hashes a directory as the writer of a pack does; returns the stored directory and the tail.
fn closed(directory: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let stored = zstd::bulk::compress(directory, 1).ok()?;
    let mut tail = Vec::new();
    tail.extend(u32::try_from(stored.len()).ok()?.to_le_bytes());
    tail.extend(u32::try_from(directory.len()).ok()?.to_le_bytes());
    tail.extend(blake3::hash(&stored).as_bytes());
    tail.extend(b"TMPACK\0\x01");
    Some((stored, tail))
}

fuzz_target!(|bytes: &[u8]| {
    let (kind, bytes) = bytes.split_first().unwrap_or((&0, &[]));
    if kind % 4 == 0 {
        if let Ok(part) = ManifestPart::decoded(bytes) {
            assert!(part.end() <= part.size);
            assert_eq!(part.encoded(), bytes);
        }
        return;
    }
    if kind % 4 == 1 {
        let (size, tail) = bytes.split_at_checked(8).unwrap_or((&[0; 8], bytes));
        let size = u64::from_le_bytes(size.try_into().unwrap_or_default());
        if let Ok(tail) = PackTail::read(tail, size) {
            assert!(tail.at + u64::from(tail.stored) + TAIL_BYTES as u64 == size);
            assert!(tail.directory(bytes).is_err());
        }
        return;
    }
    let Some((stored, tail)) = closed(bytes) else { return };
    // The first two bytes are the length of the frames.
    let frames = bytes.get(..2).map_or(0, |two| u64::from(two[0]) << 8 | u64::from(two[1]));
    let size = 24 + frames + (stored.len() + tail.len()) as u64;
    let Ok(tail) = PackTail::read(&tail, size) else { return };
    let Ok(directory) = tail.directory(&stored) else { return };
    for (hash, spot) in &directory.chunks {
        assert!(spot.frame.end() <= tail.at);
        assert!(u64::from(spot.at) + u64::from(spot.size) <= u64::from(spot.frame.plain));
        let frame = bytes::Bytes::from(vec![7; spot.frame.stored as usize]);
        if let Ok(frame) = spot.frame.opened(frame) {
            assert!(spot.of(&frame, hash).is_none());
        }
    }
    for part in &directory.parts {
        assert!(part.end() <= part.size);
    }
});
