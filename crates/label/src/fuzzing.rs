//! Fuzz target (for `fuzz/`) that reads a log of arbitrary bytes while another thread changes them.

use crate::log::{ALIGN, CAPACITY_MIN, HEADER, Log, MappedMemory, RequestKind, length_of};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Number of input bytes that set the ends of the log and the bytes that the other thread changes.
const LEAD: usize = 32;
/// Maximum number of records that are read for one input.
const RECORDS: usize = 64;

/// Memory of the log, shared with a thread that changes it.
struct SharedMemory {
    path: PathBuf,
    map: MappedMemory,
    length: usize,
    /// Offsets and values that the other thread writes in a loop.
    changes: Arc<[AtomicU64; 3]>,
    _file: File,
}

fn shared() -> &'static SharedMemory {
    static SHARED: OnceLock<SharedMemory> = OnceLock::new();
    SHARED.get_or_init(|| {
        let length = HEADER + CAPACITY_MIN;
        let file = memfd_create("log", MemfdFlags::empty()).expect("memory");
        ftruncate(&file, length).expect("memory");
        let file = File::from(file);
        let length = usize::try_from(length).expect("it is small");
        let map = MappedMemory::of(&file, length, true).expect("memory");
        let changes: Arc<[AtomicU64; 3]> = Arc::default();
        let (base, theirs) = (AtomicPtr::new(map.base()), changes.clone());
        std::thread::spawn(move || {
            let base = base.into_inner();
            loop {
                for change in &*theirs {
                    let change = change.load(Ordering::Relaxed);
                    let place = usize::try_from(change & 0xffff).unwrap_or(0);
                    for value in [change >> 32, 0, change >> 16] {
                        // SAFETY: the header and the ring have more than 65536 bytes, and this is meant to race.
                        unsafe { base.add(place).write_volatile(value.to_le_bytes()[0]) };
                    }
                }
            }
        });
        SharedMemory {
            path: format!("/proc/self/fd/{}", file.as_raw_fd()).into(),
            map,
            length,
            changes,
            _file: file,
        }
    })
}

/// Reads a log that contains the bytes `bytes`.
///
/// # Panics
/// A path, the data or the answer of a record is outside of the log.
pub fn read(bytes: &[u8]) {
    let Some((lead, ring)) = bytes.split_at_checked(LEAD) else {
        return;
    };
    let word = |at: usize| {
        let word = lead.get(at..at + 8).and_then(|word| word.try_into().ok());
        u64::from_le_bytes(word.unwrap_or_default())
    };
    let shared = shared();
    for (change, at) in shared.changes.iter().zip([8, 16, 24]) {
        change.store(word(at), Ordering::Relaxed);
    }
    let (head, tail) = (word(0) & 0x000f_ffc0, (word(0) >> 44) & !(ALIGN - 1));
    let header = [
        *b"tidelbl1",
        CAPACITY_MIN.to_le_bytes(),
        head.to_le_bytes(),
        tail.to_le_bytes(),
    ];
    let header = header.concat();
    let ring = records(&ring[..ring.len().min(shared.length - HEADER_BYTES)]);
    // SAFETY: within the mapping; the other thread is meant to race.
    unsafe {
        let base = shared.map.base();
        std::ptr::copy_nonoverlapping(header.as_ptr(), base, header.len());
        std::ptr::copy_nonoverlapping(ring.as_ptr(), base.add(HEADER_BYTES), ring.len());
    }
    let Ok(log) = Log::look(&shared.path) else {
        return;
    };
    let mut at = log.freed();
    for _ in 0..RECORDS {
        let Ok(record) = log.record(at) else { break };
        if record.kind != RequestKind::Filler {
            let parts = [log.paths(&record), log.data(&record), log.answered(&record)];
            for part in parts {
                assert!(log.has(part), "{record:?}");
                let sum = part.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
                std::hint::black_box(sum);
            }
            let _ = (log.is_due(&record), log.status(record.at));
        }
        assert!(record.length >= ALIGN);
        at += record.length;
    }
}

/// Completes most heads of records, whose fields must agree: a head with an even first byte gets the magic and the length of its fields.
fn records(ring: &[u8]) -> Vec<u8> {
    let mut ring = ring.to_vec();
    for head in ring.chunks_exact_mut(64).filter(|head| head[0] % 2 == 0) {
        head[..4].copy_from_slice(b"labl");
        // The paths take at most 511 bytes and the data at most 4095.
        head[41] &= 0xf;
        head[42..48].fill(0);
        head[49] &= 1;
        head[50..52].fill(0);
        let size = u64::from(head[40]) | u64::from(head[41]) << 8;
        let paths = usize::from(head[48]) | usize::from(head[49]) << 8;
        head[8..16].copy_from_slice(&length_of(paths, size).to_le_bytes());
    }
    ring
}

#[expect(clippy::cast_possible_truncation, reason = "a page")]
const HEADER_BYTES: usize = HEADER as usize;
