//! First split of a large array: one pass from the input to ranges, by several pivots.
//!
//! Each range has a stage in the first-level cache that is emptied past the caches in whole lines, so the pass moves each key through
//! memory once in each direction.

use super::lanes::KeyLanes;

/// Maximum number of ranges of a split.
pub(super) const WAYS: usize = 64;

/// Number of vectors that are processed at a time; the number of keys must be a multiple of the keys in these vectors.
pub(super) const AT_ONCE: usize = 4;

/// Number of keys at which a stage is emptied.
const FULL: usize = 256;

/// Number of bytes that memory transfers at a time.
const LINE: usize = 64;

/// Adds the number of the `length` keys that are above each pivot to `above`.
///
/// # Safety
/// `keys` must be valid for `length` keys, a multiple of the keys in [`AT_ONCE`] vectors.
#[inline(always)]
pub(super) unsafe fn count<L: KeyLanes>(
    keys: *const L::Key,
    length: usize,
    pivots: &[L::Key],
    above: &mut [usize],
) {
    for (pivot, above) in pivots.iter().zip(above) {
        // SAFETY: as the caller's.
        unsafe {
            let pivot = L::splat(*pivot);
            let mut read = 0;
            while read < length {
                *above += L::load(keys.add(read)).above(pivot).count_ones() as usize;
                read += L::WIDTH;
            }
        }
    }
}

/// Stage of a range: keys in transit to the range.
#[repr(align(64))]
struct KeyBuffer<K> {
    keys: [K; FULL + 16 * AT_ONCE],
    length: usize,
    to: *mut K,
    /// Number of keys that fit into the rest of the range.
    space: usize,
}

/// Stages of all ranges.
pub(super) struct Stages<K> {
    stages: Box<[KeyBuffer<K>]>,
    /// Whether whole lines are stored past the caches.
    far: bool,
}

impl<K: Copy> Stages<K> {
    /// Returns stages for ranges, each given by its start and the number of keys it has space for; `key` is any key.
    pub(super) fn new(ranges: &[(*mut K, usize)], key: K, far: bool) -> Self {
        let stage = |(to, space): &(*mut K, usize)| KeyBuffer {
            keys: [key; FULL + 16 * AT_ONCE],
            length: 0,
            to: *to,
            space: *space,
        };
        Self {
            stages: ranges.iter().map(stage).collect(),
            far,
        }
    }

    /// Moves `length` keys to the ranges: a key belongs to the first range whose pivot it is not above, or to the last.
    ///
    /// # Safety
    /// `keys` must be valid for `length` keys, a multiple of [`AT_ONCE`] vectors, and each range must have space for all its keys. There
    /// must be one stage more than pivots.
    #[inline(always)]
    pub(super) unsafe fn take<L: KeyLanes<Key = K>>(
        &mut self,
        keys: *const K,
        length: usize,
        pivots: &[K],
    ) {
        let all = u32::MAX >> (32 - L::WIDTH);
        let (last, stages) = match self.stages.split_last_mut() {
            Some(both) => both,
            None => return,
        };
        let mut read = 0;
        while read < length {
            // SAFETY: a stage that is not full has space for all vectors that are processed at a time.
            unsafe {
                let mut vectors = [L::load(keys.add(read)); AT_ONCE];
                let mut left = [all; AT_ONCE];
                for (row, vector) in vectors.iter_mut().enumerate() {
                    *vector = L::load(keys.add(read + row * L::WIDTH));
                }
                for (pivot, stage) in pivots.iter().zip(stages.iter_mut()) {
                    let pivot = L::splat(*pivot);
                    for (vector, left) in vectors.iter().zip(&mut left) {
                        let above = vector.above(pivot);
                        stage.put(*vector, *left & !above);
                        *left &= above;
                    }
                    if stage.length >= FULL {
                        stage.empty::<L>(self.far, false);
                    }
                }
                for (vector, left) in vectors.into_iter().zip(left) {
                    last.put(vector, left);
                }
                if last.length >= FULL {
                    last.empty::<L>(self.far, false);
                }
            }
            read += AT_ONCE * L::WIDTH;
        }
    }

    /// Moves one key to the range `way`.
    ///
    /// # Safety
    /// The range `way` must have space for the key.
    #[inline(always)]
    pub(super) unsafe fn put<L: KeyLanes<Key = K>>(&mut self, key: K, way: usize) {
        let stage = &mut self.stages[way];
        stage.keys[stage.length] = key;
        stage.length += 1;
        if stage.length >= FULL {
            // SAFETY: as the caller's.
            unsafe { stage.empty::<L>(self.far, false) };
        }
    }

    /// Moves the keys of all stages to their ranges.
    ///
    /// # Safety
    /// Each range must have space for the keys in its stage.
    #[inline(always)]
    pub(super) unsafe fn finish<L: KeyLanes<Key = K>>(&mut self) {
        for stage in &mut self.stages {
            // SAFETY: as the caller's.
            unsafe { stage.empty::<L>(self.far, true) };
        }
        L::fence();
    }
}

impl<K: Copy> KeyBuffer<K> {
    /// Adds the lanes of a vector that `bits` selects to the stage.
    #[inline(always)]
    unsafe fn put<L: KeyLanes<Key = K>>(&mut self, vector: L, bits: u32) {
        // SAFETY: the stage has space for a vector more than it needs.
        unsafe {
            vector
                .compress(bits)
                .store(self.keys.as_mut_ptr().add(self.length));
        }
        self.length += bits.count_ones() as usize;
    }

    /// Moves whole lines out of the stage, or all of its keys if `all`.
    #[inline(always)]
    unsafe fn empty<L: KeyLanes<Key = K>>(&mut self, far: bool, all: bool) {
        let line = LINE / size_of::<K>();
        let from = self.keys.as_mut_ptr();
        // The keys were counted before: there can be more only if the input has changed since.
        assert!(self.length <= self.space, "an input is being changed");
        // The first piece ends at the end of a line, so that all others are whole lines.
        let first = self.to.align_offset(LINE).min(self.length);
        let lines = (self.length - first) / line * line;
        // SAFETY: the keys that are read are in the stage, and the range has space for them.
        unsafe {
            std::ptr::copy_nonoverlapping(from, self.to, first);
            let mut moved = first;
            while moved < first + lines {
                let vector = L::load(from.add(moved));
                if far {
                    vector.stream(self.to.add(moved));
                } else {
                    vector.store(self.to.add(moved));
                }
                moved += L::WIDTH;
            }
            let rest = self.length - moved;
            if all {
                std::ptr::copy_nonoverlapping(from.add(moved), self.to.add(moved), rest);
                self.length = 0;
            } else {
                std::ptr::copy(from.add(moved), from, rest);
                self.length = rest;
            }
            let moved = if all { moved + rest } else { moved };
            self.to = self.to.add(moved);
            self.space -= moved;
        }
    }
}
