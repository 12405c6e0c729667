//! Sorts values of one and two bytes by counting them.

use super::Sortable;

/// Sort key that can be counted.
pub(super) trait Narrow: Copy {
    /// Number of different keys of the type.
    const COUNT: usize;
    /// Returns the place of the key among all keys.
    fn place(self) -> usize;
    /// Returns the key at a place.
    fn at(place: usize) -> Self;
}

macro_rules! narrow {
    ($key:ty, $unsigned:ty) => {
        #[allow(clippy::cast_possible_truncation, reason = "places fit the key's type")]
        impl Narrow for $key {
            const COUNT: usize = 1 << <$key>::BITS;

            #[inline(always)]
            fn place(self) -> usize {
                (self ^ <$key>::MIN).cast_unsigned().into()
            }
            #[inline(always)]
            fn at(place: usize) -> Self {
                (place as $unsigned).cast_signed() ^ <$key>::MIN
            }
        }
    };
}

narrow!(i8, u8);
narrow!(i16, u16);

/// Sorts the values in `from` into `to`.
pub(super) fn sort<T: Sortable<Key: Narrow>>(from: &[u8], big: bool, to: &mut [T::Key]) {
    // Neighbours are often equal; with two tables, an increment does not wait for the previous one.
    let mut counts = vec![[0_usize; 2]; T::Key::COUNT];
    for pair in from.chunks(2 * size_of::<T>()) {
        for (table, bytes) in pair.chunks_exact(size_of::<T>()).enumerate() {
            counts[T::key(bytes, big).place()][table] += 1;
        }
    }
    let mut rest = to;
    for (place, count) in counts.iter().enumerate() {
        let (run, others) = rest.split_at_mut(count[0] + count[1]);
        run.fill(T::bits(T::Key::at(place), big));
        rest = others;
    }
}
