//! Sorts raw arrays of numbers.
//!
//! Values of four and eight bytes become signed keys of the same order (`order`), are split into ranges on
//! their way from the input (`spread`) and each range is sorted by a vectorised quicksort (`quick`), in as
//! many threads as asked for. Values of one and two bytes are counted (`narrow`).

mod lanes;
mod narrow;
mod order;
#[cfg(target_arch = "x86_64")]
mod quick;
mod slices;
mod spread;
#[cfg(test)]
mod tests;

use std::marker::PhantomData;

pub(crate) use order::Sortable;
pub(crate) use slices::sort_in_slices;

use super::huge_pages;
use super::simd::{Level, SimdPass};
use crate::threads::{Pile, in_threads};
use lanes::{KeyLanes, ScalarKeys};
use spread::{AT_ONCE, Stages, WAYS};

/// Minimum number of values of an array that is divided among threads.
const SMALL: usize = 1 << 16;

/// Number of ranges for each thread of a sort.
const WAYS_A_THREAD: usize = 2;

/// Minimum number of ranges. More ranges make the first pass slower; fewer ranges make each range need more additional memory.
const WAYS_AT_LEAST: usize = 4;

/// Number of samples from which the end of a range is chosen.
const SAMPLES_A_WAY: usize = 512;

/// Number of values whose keys are made at a time; they stay in the first-level cache.
const CHUNK: usize = 1024;

/// Size in bytes beyond which no cache holds a result, so that it is better stored past the caches.
const FAR: usize = 16 << 20;

/// Type of values, with its method of sorting.
pub(crate) trait Sorts: Sortable {
    /// Sorts the values in `from` into the bytes of `to`, both in the byte order that `big` selects, with the instructions of `level` and
    /// up to `threads` threads. Needs additional memory for as many values as the largest range of each thread. This is a quarter of all
    /// values or less, unless many are equal.
    ///
    /// `from` must have exactly as many bytes as `to`.
    fn sort(from: &[u8], big: bool, to: &mut [Self::Key], threads: usize, level: Level);
}

macro_rules! sorts {
    ($($value:ty: $wide:ident $half:ident),*) => {
        $(impl Sorts for $value {
            fn sort(from: &[u8], big: bool, to: &mut [Self::Key], threads: usize, level: Level) {
                let value = PhantomData;
                let task = Sorting::<Self> { from, big, threads: threads.max(1), value };
                match level {
                    Level::Portable => task.run::<ScalarKeys<Self::Key>>(to),
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx2 => task.run::<lanes::$half>(to),
                    #[cfg(target_arch = "x86_64")]
                    _ => task.run::<lanes::$wide>(to),
                }
            }
        })*
    };
}

sorts!(i32: Wide32 Half32, u32: Wide32 Half32, f32: Wide32 Half32);
sorts!(i64: Wide64 Half64, u64: Wide64 Half64, f64: Wide64 Half64);

macro_rules! counts {
    ($($value:ty),*) => {
        $(impl Sorts for $value {
            fn sort(from: &[u8], big: bool, to: &mut [Self::Key], _: usize, _: Level) {
                narrow::sort::<Self>(from, big, to);
            }
        })*
    };
}

counts!(i8, u8, i16, u16);

/// Input and options of a sort.
struct Sorting<'a, T> {
    from: &'a [u8],
    big: bool,
    threads: usize,
    value: PhantomData<T>,
}

impl<T: Sortable> Sorting<'_, T> {
    fn run<L: KeyLanes<Key = T::Key>>(&self, to: &mut [T::Key]) {
        assert_eq!(
            self.from.len(),
            size_of_val(to),
            "from and to are of one size"
        );
        if to.len() < SMALL {
            for (key, bytes) in to.iter_mut().zip(self.from.chunks_exact(size_of::<T>())) {
                *key = T::key(bytes, self.big);
            }
            return self.sort_range::<L>(to, &mut Vec::new());
        }
        let pivots = self.pivots(to.len());
        let counts = self.spread::<L>(to, &pivots);
        let mut rest = to;
        let mut ranges = Vec::new();
        for way in 0..=pivots.len() {
            let length = counts.iter().map(|counts| counts[way]).sum();
            let (range, others) = rest.split_at_mut(length);
            ranges.push(range);
            rest = others;
        }
        // Threads take ranges from the end, so that the longest are sorted first.
        ranges.sort_unstable_by_key(|range| range.len());
        let ranges = Pile::new(ranges);
        in_threads(vec![(); self.threads], |()| {
            let mut scratch = Vec::new();
            while let Some(range) = ranges.take() {
                self.sort_range::<L>(range, &mut scratch);
            }
        });
    }

    /// Moves all values to their ranges; returns the number of values of each thread's part in each range.
    fn spread<L: KeyLanes<Key = T::Key>>(
        &self,
        to: &mut [T::Key],
        pivots: &[T::Key],
    ) -> Vec<Vec<usize>> {
        let big = self.big;
        let chunks = to.len().div_ceil(CHUNK).div_ceil(self.threads);
        let parts: Vec<_> = self.from.chunks(chunks * CHUNK * size_of::<T>()).collect();
        let counts = in_threads(parts.clone(), |part| {
            let above = L::within(PivotCount::<L, T> {
                part,
                big,
                pivots,
                lanes: PhantomData,
            });
            let all = part.len() / size_of::<T>();
            let from = std::iter::once(&all).chain(&above);
            let to = above.iter().chain([&0]);
            from.zip(to).map(|(from, to)| from - to).collect::<Vec<_>>()
        });
        let far = self.from.len() > FAR;
        let tasks = parts.into_iter().zip(places(to, &counts)).collect();
        in_threads(tasks, |(part, places)| {
            L::within(Spread::<L, T> {
                part,
                big,
                pivots,
                places,
                far,
                lanes: PhantomData,
            });
        });
        counts
    }

    /// Returns keys that divide the array into ranges with about equally many values.
    fn pivots(&self, length: usize) -> Vec<T::Key> {
        let ways = (self.threads * WAYS_A_THREAD).clamp(WAYS_AT_LEAST, WAYS);
        let samples = ways * SAMPLES_A_WAY;
        let step = length / samples;
        let mut chance = 0x9e37_79b9_7f4a_7c15_u64;
        let mut keys: Vec<_> = (0..samples)
            .map(|sample| {
                chance = chance.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                // One sample from each step, at a random place that does not follow patterns of the data.
                let place = sample * step + (chance >> 33) as usize % step;
                T::key(&self.from[place * size_of::<T>()..], self.big)
            })
            .collect();
        keys.sort_unstable();
        (1..ways).map(|way| keys[way * SAMPLES_A_WAY]).collect()
    }

    /// Sorts the keys of a range and converts them to values.
    fn sort_range<L: KeyLanes<Key = T::Key>>(
        &self,
        keys: &mut [T::Key],
        scratch: &mut Vec<T::Key>,
    ) {
        scratch.clear();
        huge_pages::reserve(scratch, keys.len());
        let big = self.big;
        L::within(RangeSort::<L, T> {
            keys,
            scratch,
            big,
            lanes: PhantomData,
        });
    }
}

/// Destinations of the values of one part: the next address in each range.
struct Places<K>(Vec<(*mut K, usize)>);

// SAFETY: each place is written by the one thread that owns it.
unsafe impl<K: Send> Send for Places<K> {}

/// Returns the destinations of all parts, in which each range has `counts[part][range]` values.
fn places<K>(to: &mut [K], counts: &[Vec<usize>]) -> Vec<Places<K>> {
    let mut places: Vec<_> = counts.iter().map(|_| Places(Vec::new())).collect();
    let mut next = 0;
    for range in 0..counts.first().map_or(0, Vec::len) {
        for (counts, places) in counts.iter().zip(&mut places) {
            let place = &mut to[next..next + counts[range]];
            places.0.push((place.as_mut_ptr(), place.len()));
            next += counts[range];
        }
    }
    places
}

/// Pass that counts the values of a part above each pivot.
struct PivotCount<'a, L, T: Sortable> {
    part: &'a [u8],
    big: bool,
    pivots: &'a [T::Key],
    lanes: PhantomData<L>,
}

impl<L: KeyLanes<Key = T::Key>, T: Sortable> SimdPass for PivotCount<'_, L, T> {
    type Output = Vec<usize>;

    #[inline(always)]
    fn run(self) -> Vec<usize> {
        let mut above = vec![0; self.pivots.len()];
        let mut keys = [L::LOWEST; CHUNK];
        for bytes in self.part.chunks(CHUNK * size_of::<T>()) {
            let length = fill::<T>(&mut keys, bytes, self.big);
            let whole = length / L::WIDTH * L::WIDTH;
            // SAFETY: the keys are valid, and this runs with the instructions of `L`.
            unsafe { spread::count::<L>(keys.as_ptr(), whole, self.pivots, &mut above) };
            for key in &keys[whole..length] {
                for (pivot, above) in self.pivots.iter().zip(&mut above) {
                    *above += usize::from(key > pivot);
                }
            }
        }
        above
    }
}

/// Pass that moves the values of a part to the ranges.
struct Spread<'a, L, T: Sortable> {
    part: &'a [u8],
    big: bool,
    pivots: &'a [T::Key],
    places: Places<T::Key>,
    far: bool,
    lanes: PhantomData<L>,
}

impl<L: KeyLanes<Key = T::Key>, T: Sortable> SimdPass for Spread<'_, L, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let mut stages = Stages::new(&self.places.0, L::LOWEST, self.far);
        let mut keys = [L::LOWEST; CHUNK];
        for bytes in self.part.chunks(CHUNK * size_of::<T>()) {
            let length = fill::<T>(&mut keys, bytes, self.big);
            let at_once = AT_ONCE * L::WIDTH;
            let whole = length / at_once * at_once;
            // SAFETY: the keys are valid, each range has space for as many keys as were counted for it, and this runs with the
            // instructions of `L`.
            unsafe {
                stages.take::<L>(keys.as_ptr(), whole, self.pivots);
                for key in &keys[whole..length] {
                    stages.put::<L>(*key, self.pivots.partition_point(|pivot| pivot < key));
                }
            }
        }
        // SAFETY: as above.
        unsafe { stages.finish::<L>() };
    }
}

/// Converts at most a chunk of values to keys; returns their number.
#[inline(always)]
fn fill<T: Sortable>(keys: &mut [T::Key; CHUNK], bytes: &[u8], big: bool) -> usize {
    let values = bytes.chunks_exact(size_of::<T>());
    let length = values.len();
    for (key, value) in keys.iter_mut().zip(values) {
        *key = T::key(value, big);
    }
    length
}

/// Pass that sorts the keys of a range and converts them to values.
struct RangeSort<'a, L, T: Sortable> {
    keys: &'a mut [T::Key],
    scratch: &'a mut Vec<T::Key>,
    big: bool,
    lanes: PhantomData<L>,
}

impl<L: KeyLanes<Key = T::Key>, T: Sortable> SimdPass for RangeSort<'_, L, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (keys, scratch) = (self.keys.as_mut_ptr(), self.scratch.as_mut_ptr());
        // SAFETY: the scratch memory has space for as many keys, and this runs with the instructions of `L`.
        unsafe { L::sort(keys, self.keys.len(), scratch) };
        for key in self.keys {
            *key = T::bits(*key, self.big);
        }
    }
}
