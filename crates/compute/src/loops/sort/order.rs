//! Converts values to signed integers with the same order.

/// Type of numbers that can be sorted.
///
/// Floating-point numbers are in the total order of IEEE 754-2019, 5.10, except that all NaN are last: NaN of positive sign by their bits,
/// then NaN of negative sign. So `-0` is before `0`.
pub(crate) trait Sortable: Copy + Send + Sync + 'static {
    /// Sort key: an integer that represents the value, of the same size.
    type Key: Copy + Default + Ord + Send + Sync + 'static;

    /// Lowest key.
    const LOWEST: Self::Key;
    /// Highest key.
    const HIGHEST: Self::Key;

    /// Returns the key after `key`, if there is one.
    fn after(key: Self::Key) -> Option<Self::Key>;
    /// Returns the key before `key`, if there is one.
    fn before(key: Self::Key) -> Option<Self::Key>;
    /// Returns the key of the value that has these bytes, most significant first if `big`.
    fn key(bytes: &[u8], big: bool) -> Self::Key;
    /// Returns the bytes of the value with this key as a key, in the byte order that `key` selected with `big`.
    fn bits(key: Self::Key, big: bool) -> Self::Key;
}

macro_rules! value {
    ($value:ty, $key:ty, $to:expr, $from:expr) => {
        impl Sortable for $value {
            type Key = $key;
            const LOWEST: $key = <$key>::MIN;
            const HIGHEST: $key = <$key>::MAX;

            fn after(key: $key) -> Option<$key> {
                key.checked_add(1)
            }
            fn before(key: $key) -> Option<$key> {
                key.checked_sub(1)
            }
            #[inline(always)]
            fn key(bytes: &[u8], big: bool) -> $key {
                let mut raw = [0; size_of::<$key>()];
                raw.copy_from_slice(&bytes[..size_of::<$key>()]);
                let bits = if big {
                    <$key>::from_be_bytes(raw)
                } else {
                    <$key>::from_le_bytes(raw)
                };
                $to(bits)
            }
            #[inline(always)]
            fn bits(key: $key, big: bool) -> $key {
                let bits: $key = $from(key);
                if big { bits.to_be() } else { bits.to_le() }
            }
        }
    };
}

/// Converts floats to keys. Negative floating-point numbers have all bits but the sign inverted, so that those further from zero are first.
/// Then all keys are rotated by the number of negative NaN, which are lowest and so become highest.
macro_rules! float {
    ($value:ty, $key:ty) => {
        value!(
            $value,
            $key,
            |bits: $key| (bits ^ ((bits >> (<$key>::BITS - 1)) & <$key>::MAX))
                .wrapping_sub((1 << (<$value>::MANTISSA_DIGITS - 1)) - 1),
            |key: $key| {
                let key = key.wrapping_add((1 << (<$value>::MANTISSA_DIGITS - 1)) - 1);
                key ^ ((key >> (<$key>::BITS - 1)) & <$key>::MAX)
            }
        );
    };
}

value!(i32, i32, |bits| bits, |key| key);
value!(i64, i64, |bits| bits, |key| key);
value!(u32, i32, |bits: i32| bits ^ i32::MIN, |key: i32| key
    ^ i32::MIN);
value!(u64, i64, |bits: i64| bits ^ i64::MIN, |key: i64| key
    ^ i64::MIN);
float!(f32, i32);
float!(f64, i64);
value!(i16, i16, |bits| bits, |key| key);
value!(u16, i16, |bits: i16| bits ^ i16::MIN, |key: i16| key
    ^ i16::MIN);
value!(i8, i8, |bits| bits, |key| key);
value!(u8, i8, |bits: i8| bits ^ i8::MIN, |key: i8| key ^ i8::MIN);
