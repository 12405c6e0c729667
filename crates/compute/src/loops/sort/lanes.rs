//! Vectors of sort keys: the few operations that the sorting loops are written in, for AVX-512 and AVX2.
//!
//! Every function of this module must be inlined into a function that has the vector instructions enabled.

use crate::loops::simd::SimdPass;

/// Vector of sort keys.
///
/// # Safety
/// All methods need the instructions of the implementing type, and pointers that are valid for all lanes that the method accesses.
pub(super) unsafe trait KeyLanes: Copy {
    /// Type of a sort key.
    type Key: Copy + Ord;
    /// Number of keys in a vector, a power of two up to 16.
    const WIDTH: usize;
    /// Lowest key of the type.
    const LOWEST: Self::Key;

    /// Runs a pass that is compiled with the instructions of this type, which the processor must have.
    fn within<P: SimdPass>(pass: P) -> P::Output;
    /// Sorts the `length` keys at `keys`, with space for as many keys at `scratch`.
    unsafe fn sort(keys: *mut Self::Key, length: usize, scratch: *mut Self::Key);
    unsafe fn splat(key: Self::Key) -> Self;
    unsafe fn load(from: *const Self::Key) -> Self;
    unsafe fn store(self, to: *mut Self::Key);
    /// Stores the vector past the caches, at an address that is a multiple of 64.
    unsafe fn stream(self, to: *mut Self::Key);
    /// Orders all streamed stores before all later stores.
    fn fence();
    /// Returns a bit for each lane whose key is above the lane's pivot; the first lane has the lowest bit.
    unsafe fn above(self, pivot: Self) -> u32;
    /// Moves the lanes whose bit is set to the front, in order; all other lanes are arbitrary.
    unsafe fn compress(self, bits: u32) -> Self;
}

/// Further operations of vectors for sorting within registers.
///
/// # Safety
/// All methods have the conditions of [`KeyLanes`].
#[cfg(target_arch = "x86_64")]
pub(super) unsafe trait SortNetwork: KeyLanes {
    /// Number of vectors that a leaf of the sort may keep in registers, 8 or 16.
    const ROWS: usize;
    /// Highest key of the type.
    const HIGHEST: Self::Key;

    /// Returns the key before `key`, which must not be the lowest.
    fn before(key: Self::Key) -> Self::Key;
    /// Loads the first `count` lanes and fills all other lanes with the highest key.
    unsafe fn load_part(from: *const Self::Key, count: usize) -> Self;
    /// Stores the first `count` lanes.
    unsafe fn store_part(self, to: *mut Self::Key, count: usize);
    unsafe fn min(self, other: Self) -> Self;
    unsafe fn max(self, other: Self) -> Self;
    /// Returns a vector in which lane `i` has the key of lane `i ^ DISTANCE`.
    unsafe fn swap<const DISTANCE: usize>(self) -> Self;
    /// Returns a vector in which lane `i` has the lower of both keys where bit `DISTANCE` of `i` is clear and the higher where it is set.
    unsafe fn exchange<const DISTANCE: usize>(self, other: Self) -> Self;
    /// Transposes sixteen rows from column by column to row by row.
    #[inline(always)]
    unsafe fn turn_columns(rows: &mut [Self; 16]) {
        let mut keys = [[Self::LOWEST; 16]; 16];
        // SAFETY: a vector has at most sixteen lanes, and as many keys of `flat` are set as rows hold.
        unsafe {
            for (row, vector) in rows.iter().enumerate() {
                vector.store(keys[row].as_mut_ptr());
            }
            let mut flat = [Self::LOWEST; 256];
            for column in 0..Self::WIDTH {
                for row in 0..16 {
                    flat[column * 16 + row] = keys[row][column];
                }
            }
            for (row, vector) in rows.iter_mut().enumerate() {
                *vector = Self::load(flat.as_ptr().add(row * Self::WIDTH));
            }
        }
    }
}

/// Vector of four keys for processors without vectors that compress; the compiler vectorises its operations as far as it can.
#[derive(Clone, Copy)]
pub(super) struct ScalarKeys<K>([K; 4]);

macro_rules! plain {
    ($key:ty) => {
        // SAFETY: these need no special instructions, and touch only the lanes of the vector.
        unsafe impl KeyLanes for ScalarKeys<$key> {
            type Key = $key;
            const WIDTH: usize = 4;
            const LOWEST: $key = <$key>::MIN;

            fn within<P: SimdPass>(pass: P) -> P::Output {
                pass.run()
            }
            unsafe fn sort(keys: *mut $key, length: usize, _: *mut $key) {
                // SAFETY: the caller's keys are valid.
                unsafe { std::slice::from_raw_parts_mut(keys, length) }.sort_unstable();
            }
            #[inline(always)]
            unsafe fn splat(key: $key) -> Self {
                Self([key; 4])
            }
            #[inline(always)]
            unsafe fn load(from: *const $key) -> Self {
                // SAFETY: the caller's pointer is valid for four keys.
                Self(unsafe { from.cast::<[$key; 4]>().read() })
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut $key) {
                // SAFETY: the caller's pointer is valid for four keys.
                unsafe { to.cast::<[$key; 4]>().write(self.0) };
            }
            #[inline(always)]
            unsafe fn stream(self, to: *mut $key) {
                // SAFETY: the caller's pointer is valid for four keys.
                unsafe { self.store(to) };
            }
            #[inline(always)]
            fn fence() {}
            #[inline(always)]
            unsafe fn above(self, pivot: Self) -> u32 {
                let mut bits = 0;
                for lane in 0..4 {
                    bits |= u32::from(self.0[lane] > pivot.0[lane]) << lane;
                }
                bits
            }
            #[inline(always)]
            unsafe fn compress(self, bits: u32) -> Self {
                let (mut front, mut count) = (self.0, 0);
                for lane in 0..4 {
                    front[count & 3] = self.0[lane];
                    count += (bits >> lane & 1) as usize;
                }
                Self(front)
            }
        }
    };
}

plain!(i32);
plain!(i64);

#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Half32, Half64, Wide32, Wide64};
