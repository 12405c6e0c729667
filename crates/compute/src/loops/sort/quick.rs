//! Quicksort of keys in vectors, for ranges that fit into a cache: each split streams the lower keys to the front and the higher keys into
//! scratch memory, and up to 16 vectors at a time are sorted within registers.
//!
//! Splitting by vector compression is Bramas' idea ("A Novel Hybrid Quicksort Algorithm Vectorized using AVX-512 on Intel Skylake",
//! 2017); the leaves are bitonic networks (Batcher, 1968).

use super::lanes::SortNetwork;

/// Maximum number of ranges that wait to be sorted.
const PENDING: usize = 96;

/// Maximum depth of splits. A deeper split means that pivots are bad; then the standard library's sort sorts the range.
const DEPTH: u32 = 64;

/// Length of a range, in keys, above which its pivot is chosen from more samples.
const LONG: usize = 4096;

/// Higher part of a split, which waits at the end of scratch memory.
struct PendingSplit<K> {
    to: *mut K,
    length: usize,
    depth: u32,
}

/// Sorts the `length` keys at `from` to `keys`, which may be the same address.
///
/// # Safety
/// `from`, `keys` and `scratch` must be valid for `length` keys. `scratch` must not overlap `keys`; `from` must be `keys`, or not overlap
/// `keys` and be `scratch`. The processor must have the instructions of `L`.
#[inline(always)]
pub(super) unsafe fn sort<L: SortNetwork>(
    from: *mut L::Key,
    keys: *mut L::Key,
    length: usize,
    scratch: *mut L::Key,
) {
    let mut stack = [const { None::<PendingSplit<L::Key>> }; PENDING];
    let mut pending = 0;
    // End of the waiting parts in scratch memory.
    let mut top = scratch;
    // The current range is sorted to `to`; it is stored at `to` already, or at `top`.
    let (mut from, mut to, mut length, mut depth) = (from, keys, length, 0);
    loop {
        // SAFETY: the waiting parts and the current range together have at most as many keys as the input, so the whole range has space
        // above `top`; `split` writes no further than that.
        unsafe {
            if length <= L::WIDTH * L::ROWS {
                leaf::<L>(from, to, length);
            } else if depth > DEPTH || pending == PENDING {
                std::ptr::copy(from, to, length);
                std::slice::from_raw_parts_mut(to, length).sort_unstable();
            } else {
                let pivot = choose::<L>(from, length);
                let low = split::<L>(from, length, pivot, to, top);
                from = to;
                depth += 1;
                if low < length {
                    stack[pending] = Some(PendingSplit {
                        to: to.add(low),
                        length: length - low,
                        depth,
                    });
                    pending += 1;
                    top = top.add(length - low);
                    length = low;
                } else {
                    length = without_highest::<L>(to, length, pivot, top);
                }
                continue;
            }
            let Some(part) = pending.checked_sub(1).and_then(|last| stack[last].take()) else {
                return;
            };
            pending -= 1;
            top = top.sub(part.length);
            (from, to, length, depth) = (top, part.to, part.length, part.depth);
        }
    }
}

/// Moves the keys that equal the highest key to the end; returns the number of other keys.
#[inline(always)]
unsafe fn without_highest<L: SortNetwork>(
    keys: *mut L::Key,
    length: usize,
    highest: L::Key,
    scratch: *mut L::Key,
) -> usize {
    if highest == L::LOWEST {
        return 0;
    }
    // SAFETY: as the caller's; all keys that are split off equal `highest`.
    unsafe {
        let low = split::<L>(keys, length, L::before(highest), keys, scratch);
        std::slice::from_raw_parts_mut(keys.add(low), length - low).fill(highest);
        low
    }
}

/// Streams the keys up to `pivot` to `low_to` and the keys above `pivot` to `high_to`, and returns the number of low keys. Either
/// destination may be `from` itself: no more keys are written than have been read.
#[inline(always)]
unsafe fn split<L: SortNetwork>(
    from: *const L::Key,
    length: usize,
    pivot: L::Key,
    low_to: *mut L::Key,
    high_to: *mut L::Key,
) -> usize {
    const UNROLL: usize = 4;
    let all = u32::MAX >> (32 - L::WIDTH);
    let (mut read, mut low) = (0, 0);
    // SAFETY: reads stay below `length`; `low` and `read - low` never exceed the number of keys that were read, so a whole vector stored
    // there ends at most at the read position.
    unsafe {
        let pivots = L::splat(pivot);
        while read + UNROLL * L::WIDTH <= length {
            let mut vectors = [pivots; UNROLL];
            for (row, vector) in vectors.iter_mut().enumerate() {
                *vector = L::load(from.add(read + row * L::WIDTH));
            }
            for (row, vector) in vectors.into_iter().enumerate() {
                let above = vector.above(pivots);
                vector.compress(all & !above).store(low_to.add(low));
                let high = read + row * L::WIDTH - low;
                vector.compress(above).store(high_to.add(high));
                low += L::WIDTH - above.count_ones() as usize;
            }
            read += UNROLL * L::WIDTH;
        }
        while read < length {
            let key = *from.add(read);
            *low_to.add(low) = key;
            *high_to.add(read - low) = key;
            low += usize::from(key <= pivot);
            read += 1;
        }
    }
    low
}

/// Returns a key near the median of a range: the median of samples from the whole range.
#[inline(always)]
unsafe fn choose<L: SortNetwork>(from: *const L::Key, length: usize) -> L::Key {
    // SAFETY: a range to be split is longer than all samples together.
    unsafe {
        if length > LONG {
            sample::<L, 8>(from, length)
        } else {
            sample::<L, 2>(from, length)
        }
    }
}

#[inline(always)]
unsafe fn sample<L: SortNetwork, const R: usize>(from: *const L::Key, length: usize) -> L::Key {
    // SAFETY: the last sample ends within the range, and `middle` has space for a vector.
    unsafe {
        let step = (length - L::WIDTH) / R;
        let mut rows = [L::load(from); R];
        for (row, vector) in rows.iter_mut().enumerate() {
            *vector = L::load(from.add(step / 2 + row * step));
        }
        network::<L, R>(&mut rows);
        let mut middle = [L::LOWEST; 16];
        rows[R / 2].store(middle.as_mut_ptr());
        middle[0]
    }
}

/// Sorts a range of up to `WIDTH * ROWS` keys.
#[inline(always)]
unsafe fn leaf<L: SortNetwork>(from: *const L::Key, to: *mut L::Key, length: usize) {
    // SAFETY: as the caller's.
    unsafe {
        match length.div_ceil(L::WIDTH) {
            0 => {}
            1 => leaf_of::<L, 1>(from, to, length),
            2 => leaf_of::<L, 2>(from, to, length),
            3..=4 => leaf_of::<L, 4>(from, to, length),
            5..=8 => leaf_of::<L, 8>(from, to, length),
            _ => leaf_of::<L, 16>(from, to, length),
        }
    }
}

#[inline(always)]
unsafe fn leaf_of<L: SortNetwork, const R: usize>(
    from: *const L::Key,
    to: *mut L::Key,
    length: usize,
) {
    // SAFETY: only the first `length` lanes are loaded and stored.
    unsafe {
        let mut rows = [L::splat(L::HIGHEST); R];
        for (row, vector) in rows.iter_mut().enumerate() {
            let start = row * L::WIDTH;
            if start + L::WIDTH <= length {
                *vector = L::load(from.add(start));
            } else if start < length {
                *vector = L::load_part(from.add(start), length - start);
            }
        }
        network::<L, R>(&mut rows);
        for (row, vector) in rows.into_iter().enumerate() {
            let start = row * L::WIDTH;
            if start + L::WIDTH <= length {
                vector.store(to.add(start));
            } else if start < length {
                vector.store_part(to.add(start), length - start);
            }
        }
    }
}

/// Repeats a body for each row below `R`, so that rows stay in registers: a loop would not be unrolled.
macro_rules! each_row {
    ($limit:expr, $row:ident, $body:block) => {
        each_row!(@ $limit, $row, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $limit:expr, $row:ident, $body:block, $($number:literal)*) => {
        $(if $number < $limit {
            const $row: usize = $number;
            $body
        })*
    };
}

/// Sorts all lanes of all rows: each row, then pairs of rows, pairs of pairs and so on.
#[inline(always)]
unsafe fn network<L: SortNetwork, const R: usize>(rows: &mut [L; R]) {
    // SAFETY: as the caller's.
    unsafe {
        if let Some(rows) = rows.first_chunk_mut::<16>() {
            return columns(rows);
        }
        each_row!(R, ROW, {
            rows[ROW] = sort_row(rows[ROW]);
        });
        if R >= 2 {
            merge::<L, R, 2>(rows);
        }
        if R >= 4 {
            merge::<L, R, 4>(rows);
        }
        if R >= 8 {
            merge::<L, R, 8>(rows);
        }
    }
}

/// Sorts the lanes of sixteen rows: each column by Green's network of 60 exchanges, then pairs of columns, pairs of pairs and so on, and
/// transposes the columns into rows.
#[inline(always)]
unsafe fn columns<L: SortNetwork>(rows: &mut [L; 16]) {
    macro_rules! exchange {
        ($($low:literal $high:literal),*) => {
            $(let (low, high) = (rows[$low], rows[$high]);
            rows[$low] = low.min(high);
            rows[$high] = low.max(high);)*
        };
    }
    // SAFETY: as the caller's.
    unsafe {
        compare::<L, 16, 1>(rows);
        compare::<L, 16, 2>(rows);
        compare::<L, 16, 4>(rows);
        compare::<L, 16, 8>(rows);
        exchange!(5 10, 6 9, 3 12, 13 14, 4 8, 7 11, 1 2);
        exchange!(1 4, 7 13, 2 8, 11 14);
        exchange!(2 4, 5 6, 9 10, 11 13, 3 8, 7 12);
        exchange!(6 8, 10 12, 3 5, 7 9);
        exchange!(3 4, 5 6, 7 8, 9 10, 11 12);
        exchange!(6 7, 8 9);
        merge_columns::<L, 1>(rows);
        merge_columns::<L, 3>(rows);
        if L::WIDTH > 4 {
            merge_columns::<L, 7>(rows);
        }
        if L::WIDTH > 8 {
            merge_columns::<L, 15>(rows);
        }
        L::turn_columns(rows);
    }
}

/// Merges groups of columns. Each group and its neighbour together have `LAST + 1` columns.
#[inline(always)]
unsafe fn merge_columns<L: SortNetwork, const LAST: usize>(rows: &mut [L; 16]) {
    // SAFETY: as the caller's.
    unsafe {
        let old = *rows;
        each_row!(16, ROW, {
            rows[ROW] = old[ROW].exchange::<LAST>(old[15 - ROW].swap::<LAST>());
        });
        each_row!(16, ROW, {
            let mut row = rows[ROW];
            if LAST > 7 {
                row = row.exchange::<4>(row.swap::<4>());
            }
            if LAST > 3 {
                row = row.exchange::<2>(row.swap::<2>());
            }
            if LAST > 1 {
                row = row.exchange::<1>(row.swap::<1>());
            }
            rows[ROW] = row;
        });
        compare::<L, 16, 8>(rows);
        compare::<L, 16, 4>(rows);
        compare::<L, 16, 2>(rows);
        compare::<L, 16, 1>(rows);
    }
}

/// Merges the sorted halves of each group of `SIZE` rows.
#[inline(always)]
unsafe fn merge<L: SortNetwork, const R: usize, const SIZE: usize>(rows: &mut [L; R]) {
    // SAFETY: as the caller's.
    unsafe {
        let old = *rows;
        each_row!(R, ROW, {
            if ROW % SIZE < SIZE / 2 {
                let (low, high) = (old[ROW], turn(old[ROW ^ (SIZE - 1)]));
                rows[ROW] = low.min(high);
                rows[ROW | (SIZE / 2)] = low.max(high);
            }
        });
        if SIZE > 4 {
            compare::<L, R, 2>(rows);
        }
        if SIZE > 2 {
            compare::<L, R, 1>(rows);
        }
        each_row!(R, ROW, {
            rows[ROW] = merge_row(rows[ROW]);
        });
    }
}

/// Orders rows that are `DISTANCE` apart, lane by lane.
#[inline(always)]
unsafe fn compare<L: SortNetwork, const R: usize, const DISTANCE: usize>(rows: &mut [L; R]) {
    // SAFETY: as the caller's.
    unsafe {
        each_row!(R, ROW, {
            if ROW % (2 * DISTANCE) < DISTANCE {
                let (low, high) = (rows[ROW], rows[ROW | DISTANCE]);
                rows[ROW] = low.min(high);
                rows[ROW | DISTANCE] = low.max(high);
            }
        });
    }
}

/// Returns a row with its lanes in reverse order.
#[inline(always)]
unsafe fn turn<L: SortNetwork>(row: L) -> L {
    // SAFETY: as the caller's.
    unsafe {
        match L::WIDTH {
            4 => row.swap::<3>(),
            8 => row.swap::<7>(),
            _ => row.swap::<15>(),
        }
    }
}

/// Sorts the lanes of a row that is bitonic.
#[inline(always)]
unsafe fn merge_row<L: SortNetwork>(mut row: L) -> L {
    // SAFETY: as the caller's.
    unsafe {
        if L::WIDTH > 8 {
            row = row.exchange::<8>(row.swap::<8>());
        }
        if L::WIDTH > 4 {
            row = row.exchange::<4>(row.swap::<4>());
        }
        row = row.exchange::<2>(row.swap::<2>());
        row.exchange::<1>(row.swap::<1>())
    }
}

/// Sorts the lanes of a row.
#[inline(always)]
unsafe fn sort_row<L: SortNetwork>(mut row: L) -> L {
    // SAFETY: as the caller's.
    unsafe {
        row = row.exchange::<1>(row.swap::<1>());
        row = row.exchange::<3>(row.swap::<3>());
        row = row.exchange::<1>(row.swap::<1>());
        if L::WIDTH > 4 {
            row = row.exchange::<7>(row.swap::<7>());
            row = row.exchange::<2>(row.swap::<2>());
            row = row.exchange::<1>(row.swap::<1>());
        }
        if L::WIDTH > 8 {
            row = row.exchange::<15>(row.swap::<15>());
            row = row.exchange::<4>(row.swap::<4>());
            row = row.exchange::<2>(row.swap::<2>());
            row = row.exchange::<1>(row.swap::<1>());
        }
        row
    }
}
