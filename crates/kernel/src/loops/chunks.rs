//! Cuts bytes into chunks where their content says so: FastCDC with normalised chunking (Xia et al., "The Design of Fast
//! Content-Defined Chunking for Data Deduplication Based Storage Systems", 2020).
//!
//! The rolling hash at a byte depends on the 64 bytes up to it and on nothing before. So four stretches are hashed side
//! by side, each begun 64 bytes early, where one alone would wait for each of its own additions.

use std::ops::Range;

/// Sizes of chunks, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// The shortest; only the last of an input may be shorter.
    least: usize,
    /// Up to this a cut is made unlikely, from here on likely.
    normal: usize,
    /// The longest.
    most: usize,
    /// Below this the hash of a cut before the normal size is: its highest bits, which depend on the most bytes, are 0.
    hard: u64,
    /// The same after it.
    easy: u64,
}

/// Stretches hashed side by side.
const STRETCHES: usize = 4;

/// Bytes of a stretch where cuts are unlikely, and where they are likely: what follows a cut is hashed in vain.
const LONG: usize = 768;
const SHORT: usize = 192;

/// Bytes that the hash depends on.
const WINDOW: usize = 64;

/// Random numbers that bytes are hashed to.
static GEAR: [u64; 256] = gear();

/// SplitMix64 (Steele et al., 2014), from a seed of 0.
const fn gear() -> [u64; 256] {
    let mut gear = [0; 256];
    let (mut state, mut byte) = (0_u64, 0);
    while byte < 256 {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        gear[byte] = mixed ^ mixed >> 31;
        byte += 1;
    }
    gear
}

impl Sizes {
    /// Chunks of about `normal` bytes, a power of two from 256 to 2³⁰: none shorter than a quarter of it or longer than
    /// eight times of it. `None` for other numbers.
    pub(crate) fn new(normal: usize) -> Option<Self> {
        if !normal.is_power_of_two() || !(256..=1 << 30).contains(&normal) {
            return None;
        }
        let bits = normal.trailing_zeros();
        Some(Self {
            least: normal / 4,
            normal,
            most: normal * 8,
            hard: 1 << (64 - bits - 2),
            easy: 1 << (64 - bits + 2),
        })
    }

    /// The length of the chunk that `bytes` begin with; `bytes` are the whole rest of the input, or at least as many as
    /// the longest chunk has.
    pub(crate) fn cut(&self, bytes: &[u8]) -> usize {
        if bytes.len() <= self.least {
            return bytes.len();
        }
        let end = bytes.len().min(self.most);
        let normal = self.normal.min(end);
        find::<LONG>(bytes, self.least, self.least, normal, self.hard)
            .or_else(|| find::<SHORT>(bytes, self.least, normal, end, self.easy))
            .unwrap_or(end)
    }
}

/// The first place from `from` to before `to` where the hash of the bytes from `start` on is below `limit`.
fn find<const STRETCH: usize>(
    bytes: &[u8],
    start: usize,
    from: usize,
    to: usize,
    limit: u64,
) -> Option<usize> {
    let window = &bytes[start.max(from.saturating_sub(WINDOW))..from];
    let mut hash = window.iter().fold(0, |hash, byte| next(hash, *byte));
    let mut at = from;
    while at + STRETCHES * STRETCH <= to {
        let stretches = Stretches::<STRETCH>::new(&bytes[at..], hash)?;
        match stretches.side_by_side(limit) {
            Ok(last) => hash = last,
            Err((found, place, hashes)) => {
                // The stretches before were not at their end, and come first.
                for (stretch, hash) in (0..found).zip(hashes) {
                    let begin = at + stretch * STRETCH;
                    let rest = begin + place + 1..begin + STRETCH;
                    let earlier = first(bytes, hash, rest, limit);
                    if earlier.is_some() {
                        return earlier;
                    }
                }
                return Some(at + found * STRETCH + place);
            }
        }
        at += STRETCHES * STRETCH;
    }
    first(bytes, hash, at..to, limit)
}

/// Stretches beside each other, and the hash before each.
struct Stretches<'a, const STRETCH: usize> {
    parts: [&'a [u8; STRETCH]; STRETCHES],
    hashes: [u64; STRETCHES],
}

/// Which stretch was below the limit, where in it, and the hashes there.
type Found = (usize, usize, [u64; STRETCHES]);

impl<'a, const STRETCH: usize> Stretches<'a, STRETCH> {
    /// The first stretches of `bytes`, if there are so many; `hash` is that before all.
    fn new(bytes: &'a [u8], hash: u64) -> Option<Self> {
        let ([a, b, c, d, ..], _) = bytes.as_chunks::<STRETCH>() else {
            return None;
        };
        let (mut second, mut third, mut fourth) = (0, 0, 0);
        for place in STRETCH - WINDOW..STRETCH {
            second = next(second, a[place]);
            third = next(third, b[place]);
            fourth = next(fourth, c[place]);
        }
        Some(Self {
            parts: [a, b, c, d],
            hashes: [hash, second, third, fourth],
        })
    }

    /// Hashes all until one is below the limit; the hash at the end of the last if none is.
    fn side_by_side(&self, limit: u64) -> Result<u64, Found> {
        let [first, second, third, fourth] = self.parts;
        // One variable each, as registers are.
        let [mut a, mut b, mut c, mut d] = self.hashes;
        for place in 0..STRETCH {
            a = next(a, first[place]);
            b = next(b, second[place]);
            c = next(c, third[place]);
            d = next(d, fourth[place]);
            if a < limit {
                return Err((0, place, [a, b, c, d]));
            }
            if b < limit {
                return Err((1, place, [a, b, c, d]));
            }
            if c < limit {
                return Err((2, place, [a, b, c, d]));
            }
            if d < limit {
                return Err((3, place, [a, b, c, d]));
            }
        }
        Ok(d)
    }
}

/// The first place in `range` where the hash, which is `hash` before, is below `limit`.
fn first(bytes: &[u8], mut hash: u64, mut range: Range<usize>, limit: u64) -> Option<usize> {
    range.find(|place| {
        hash = next(hash, bytes[*place]);
        hash < limit
    })
}

#[inline(always)]
fn next(hash: u64, byte: u8) -> u64 {
    (hash << 1).wrapping_add(GEAR[usize::from(byte)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One byte after the other.
    fn plain(sizes: &Sizes, bytes: &[u8]) -> usize {
        let mut hash = 0;
        for (place, byte) in bytes.iter().enumerate().skip(sizes.least) {
            hash = next(hash, *byte);
            let limit = if place < sizes.normal {
                sizes.hard
            } else {
                sizes.easy
            };
            if place == sizes.most || hash < limit {
                return place;
            }
        }
        bytes.len().min(sizes.most)
    }

    fn chance(seed: u64, length: usize) -> Vec<u8> {
        let mut state = seed;
        let mut byte = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56).try_into().unwrap()
        };
        (0..length).map(|_| byte()).collect()
    }

    fn cuts(sizes: &Sizes, mut bytes: &[u8]) -> Vec<usize> {
        let mut lengths = Vec::new();
        while !bytes.is_empty() {
            let length = sizes.cut(bytes);
            lengths.push(length);
            bytes = &bytes[length..];
        }
        lengths
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn cuts_are_those_of_the_plain_loop(seed in any::<u64>(), length in 0_usize..100_000, size in 8_u32..15) {
            let sizes = Sizes::new(1 << size).unwrap();
            let bytes = chance(seed, length);
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let length = sizes.cut(rest);
                prop_assert_eq!(length, plain(&sizes, rest));
                rest = &rest[length..];
            }
        }
    }

    #[test]
    fn chunks_have_about_the_normal_size_and_survive_an_insertion() {
        let sizes = Sizes::new(4096).unwrap();
        let bytes = chance(7, 4 << 20);
        let lengths = cuts(&sizes, &bytes);
        let mean = bytes.len() / lengths.len();
        assert!((3000..6500).contains(&mean), "{mean}");
        let mut other = bytes.clone();
        other.splice(100_000..100_000, [1, 2, 3]);
        let others = cuts(&sizes, &other);
        let same = lengths
            .iter()
            .rev()
            .zip(others.iter().rev())
            .take_while(|(a, b)| a == b)
            .count();
        assert!(same > lengths.len() * 9 / 10, "{same} of {}", lengths.len());
    }

    #[test]
    fn bytes_that_never_cut_give_the_longest() {
        let sizes = Sizes::new(256).unwrap();
        let lengths = cuts(&sizes, &vec![0; 5000]);
        assert!(lengths.iter().all(|length| *length <= 2048));
        assert_eq!(lengths.iter().sum::<usize>(), 5000);
        assert!(Sizes::new(1000).is_none());
    }
}
