//! Memory in huge pages: it is allocated faster, and is read and written faster, than memory in pages of 4 KiB.

use std::mem::MaybeUninit;

use rustix::mm::{Advice, madvise};

/// Size of a huge page, in bytes. An operating system with another size applies the advice to huge pages of its own size.
const HUGE: usize = 2 << 20;

/// Requests huge pages for the part of `space` into which whole huge pages fit. No byte of `space` should have been touched yet.
fn ask<T>(space: &mut [MaybeUninit<T>]) {
    let bytes = size_of_val(space);
    let start = space.as_mut_ptr().cast::<u8>();
    let lead = start.align_offset(HUGE);
    if lead >= bytes || bytes - lead < HUGE {
        return;
    }
    let length = (bytes - lead) / HUGE * HUGE;
    // SAFETY: the range is within `space`, and the advice does not change its contents. A failed request is no error.
    let _ = unsafe { madvise(start.add(lead).cast(), length, Advice::LinuxHugepage) };
}

/// Returns a vector of `length` zeros, the default of integers; pages are allocated when they are first touched.
pub(crate) fn zeros<T: Copy + Default>(length: usize) -> Vec<T> {
    let mut zeros = vec![T::default(); length];
    let space = zeros.as_mut_ptr().cast::<MaybeUninit<T>>();
    // SAFETY: this is the same memory, and nothing is written to it.
    ask(unsafe { std::slice::from_raw_parts_mut(space, length) });
    zeros
}

/// Reserves space for at least `length` values in an empty vector.
pub(crate) fn reserve<T>(vector: &mut Vec<T>, length: usize) {
    if vector.capacity() < length {
        vector.reserve_exact(length);
        ask(vector.spare_capacity_mut());
    }
}
