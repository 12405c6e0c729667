use super::*;
use proptest::prelude::*;

/// Generates values of each kind that is prone to errors, among arbitrary values.
fn words() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => any::<u64>(),
        2 => (0..8_u64).prop_map(|few| few << 61 | few << 30),
        1 => Just(f64::NAN.to_bits()),
        1 => Just((-f64::NAN).to_bits()),
        1 => Just(f64::INFINITY.to_bits()),
        1 => Just(f64::NEG_INFINITY.to_bits()),
        1 => Just(0),
        1 => Just((-0.0_f64).to_bits()),
        1 => Just(u64::MAX),
        1 => Just(i64::MAX.cast_unsigned()),
        1 => Just(u64::from(f32::NAN.to_bits()) << 32 | u64::from((-f32::NAN).to_bits())),
    ]
}

/// Returns pseudorandom values from a seed, for long arrays.
fn many(length: usize, mut seed: u64, mask: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 * length);
    for _ in 0..length {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        bytes.extend(((seed ^ (seed >> 31)) & mask).to_le_bytes());
    }
    bytes
}

/// Sorts values on all SIMD levels and with `order`, a plain comparison of native values, and compares the bytes.
fn check<T: Sorts, const N: usize>(
    bytes: &[u8],
    native: fn([u8; N]) -> T,
    raw: fn(T::Key) -> [u8; N],
    order: fn(&T, &T) -> std::cmp::Ordering,
) {
    let bytes = &bytes[..bytes.len() / N * N];
    for big in [false, true] {
        let (values, _) = bytes.as_chunks::<N>();
        let turn = |value: &[u8; N]| {
            let mut value = *value;
            if big {
                value.reverse();
            }
            value
        };
        let mut wanted: Vec<_> = values.iter().map(turn).collect();
        wanted.sort_by(|a, b| order(&native(*a), &native(*b)));
        let wanted: Vec<_> = wanted.iter().map(turn).collect();
        for level in Level::available() {
            for threads in [1, 2, 5] {
                let mut to = vec![T::key(&[0; 8], false); values.len()];
                T::sort(bytes, big, &mut to, threads, level);
                let got: Vec<_> = to.into_iter().map(raw).collect();
                assert!(
                    got == wanted,
                    "{level:?}, {threads} threads, big-endian: {big}"
                );
            }
        }
    }
}

fn check_all(bytes: &[u8]) {
    check::<i8, 1>(bytes, i8::from_le_bytes, i8::to_ne_bytes, Ord::cmp);
    check::<u8, 1>(bytes, u8::from_le_bytes, i8::to_ne_bytes, Ord::cmp);
    check::<i16, 2>(bytes, i16::from_le_bytes, i16::to_ne_bytes, Ord::cmp);
    check::<u16, 2>(bytes, u16::from_le_bytes, i16::to_ne_bytes, Ord::cmp);
    check::<i32, 4>(bytes, i32::from_le_bytes, i32::to_ne_bytes, Ord::cmp);
    check::<u32, 4>(bytes, u32::from_le_bytes, i32::to_ne_bytes, Ord::cmp);
    check::<i64, 8>(bytes, i64::from_le_bytes, i64::to_ne_bytes, Ord::cmp);
    check::<u64, 8>(bytes, u64::from_le_bytes, i64::to_ne_bytes, Ord::cmp);
    check::<f32, 4>(bytes, f32::from_le_bytes, i32::to_ne_bytes, |a, b| {
        let minus = |x: &f32| x.is_nan() && x.is_sign_negative();
        minus(a).cmp(&minus(b)).then(a.total_cmp(b))
    });
    check::<f64, 8>(bytes, f64::from_le_bytes, i64::to_ne_bytes, doubles);
}

/// Compares doubles in the total order, except that all NaN are last, and NaN of negative sign after other NaN.
fn doubles(a: &f64, b: &f64) -> std::cmp::Ordering {
    let minus = |x: &f64| x.is_nan() && x.is_sign_negative();
    minus(a).cmp(&minus(b)).then(a.total_cmp(b))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn sort_matches_comparison_sort_on_all_simd_levels(words in prop::collection::vec(words(), 0..700)) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        check_all(&bytes);
    }
}

#[test]
fn sort_handles_all_lengths_of_leaf() {
    for length in 0..300 {
        let bytes = many(length, 7, u64::MAX);
        check::<i32, 4>(
            &bytes[..4 * length],
            i32::from_le_bytes,
            i32::to_ne_bytes,
            Ord::cmp,
        );
        check::<i64, 8>(&bytes, i64::from_le_bytes, i64::to_ne_bytes, Ord::cmp);
    }
}

#[test]
fn sort_splits_long_arrays_among_threads() {
    for mask in [u64::MAX, 0x7, 0xff00_0000_00ff, 0] {
        check_all(&many(SMALL + 4321, 11, mask));
    }
}

#[test]
fn sort_handles_ordered_and_reversed_arrays() {
    let up: Vec<u8> = (0..200_000_i32).flat_map(i32::to_le_bytes).collect();
    let down: Vec<u8> = (0..200_000_i32).rev().flat_map(i32::to_le_bytes).collect();
    let saw: Vec<u8> = (0..200_000_i32)
        .flat_map(|i| (i % 1000).to_le_bytes())
        .collect();
    for bytes in [up, down, saw] {
        check::<i32, 4>(&bytes, i32::from_le_bytes, i32::to_ne_bytes, Ord::cmp);
        check::<f64, 8>(&bytes, f64::from_le_bytes, i64::to_ne_bytes, doubles);
    }
}

fn in_slices(parts: &[&[u8]], limit: usize) -> (Vec<i32>, usize) {
    let (mut all, mut longest) = (Vec::new(), 0);
    let done = sort_in_slices::<i32, ()>(parts, false, limit, 2, |slice| {
        all.extend_from_slice(slice);
        longest = longest.max(slice.len());
        Ok(())
    });
    done.unwrap();
    (all, longest)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn sort_slices_are_bounded_and_in_order(
        parts in prop::collection::vec(prop::collection::vec(prop_oneof![
            3 => any::<i32>(), 2 => Just(7), 1 => Just(i32::MIN), 1 => Just(i32::MAX),
        ], 0..400), 1..4),
        limit in 1_usize..500,
    ) {
        let bytes: Vec<Vec<u8>> = parts.iter().map(|part| part.iter().flat_map(|value| value.to_le_bytes()).collect()).collect();
        let slices: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
        let mut wanted = parts.concat();
        wanted.sort_unstable();
        let (got, longest) = in_slices(&slices, limit);
        prop_assert!(longest <= limit);
        prop_assert_eq!(got, wanted);
    }
}

#[test]
fn sort_puts_minus_zero_before_zero_and_nan_last() {
    let values = [f64::NAN, 0.0, -f64::NAN, -0.0, f64::INFINITY, -1.0];
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    let mut to = [0; 6];
    f64::sort(&bytes, false, &mut to, 1, Level::best());
    let sorted = to.map(|key| f64::from_ne_bytes(key.to_ne_bytes()).to_bits());
    let wanted = [-1.0, -0.0, 0.0, f64::INFINITY, f64::NAN, -f64::NAN].map(f64::to_bits);
    assert_eq!(sorted, wanted);
}
