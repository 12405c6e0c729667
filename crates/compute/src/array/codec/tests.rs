//! Checks that files of the real libraries (`samples.py`) decode to their original values. Corrupt data is refused, or decoded to any
//! values within the buffer.

use super::Codec;
use crate::array::{ArrayError, ArrayOperation, ArraySpec, Dtype, Reducer};
use proptest::prelude::*;

/// Contents of a sample file.
struct Sample {
    name: String,
    spec: ArraySpec,
    stored: Vec<u8>,
    values: Vec<u8>,
}

fn values(how: &str, count: u64, kind: &str) -> Vec<u8> {
    let size: u64 = kind[1..].parse().unwrap();
    if how == "noise" {
        let mut state = 1_u64;
        let noise = (0..count * size).map(|_| {
            state = (state * 1_103_515_245 + 12_345) % (1 << 31);
            state.to_le_bytes()[2]
        });
        return noise.collect();
    }
    let value = |place: u64| {
        if how == "same" {
            3
        } else {
            place * place / 50 % 101
        }
    };
    let bytes = |value: u64| match kind {
        "f4" => (value as f32).to_le_bytes().to_vec(),
        "f8" => (value as f64).to_le_bytes().to_vec(),
        _ => value.to_le_bytes()[..usize::try_from(size).unwrap()].to_vec(),
    };
    (0..count).flat_map(|place| bytes(value(place))).collect()
}

fn sample(name: &str, stored: Vec<u8>) -> Sample {
    let parts: Vec<&str> = name.split('.').collect();
    let [codec, what, how, count, kind] = parts[..] else {
        panic!("{name}");
    };
    let size: u8 = kind[1..].parse().unwrap();
    let codec = match codec {
        "blosc" => Codec::Blosc,
        "blosc2" => Codec::Blosc2,
        "lzf" => Codec::Lzf,
        _ => {
            let (packed, block) = what.split_once('-').unwrap();
            Codec::Bitshuffle {
                element: size,
                block: block.parse().unwrap(),
                packed: packed.parse().unwrap(),
            }
        }
    };
    let count: u64 = count.parse().unwrap();
    Sample {
        name: name.to_owned(),
        spec: ArraySpec {
            operation: ArrayOperation::Select,
            dtype: Dtype::Uint8,
            big_endian: false,
            shape: Some(vec![count * u64::from(size)]),
            fortran: false,
            axes: None,
            selection: None,
            codecs: vec![codec],
            missing: None,
        },
        stored,
        values: values(how, count, kind),
    }
}

fn samples() -> Vec<Sample> {
    let (mut rest, mut all) = (&include_bytes!("samples.bin")[..], Vec::new());
    while let Some((&length, behind)) = rest.split_first() {
        let (name, behind) = behind.split_at(length.into());
        let (length, behind) = behind.split_first_chunk().unwrap();
        let (stored, behind) = behind.split_at(u32::from_le_bytes(*length) as usize);
        all.push(sample(std::str::from_utf8(name).unwrap(), stored.to_vec()));
        rest = behind;
    }
    assert!(all.len() > 150);
    all
}

#[test]
fn codecs_decode_sample_files_of_real_libraries() {
    let mut reducer = Reducer::default();
    for sample in samples() {
        let found = reducer.reduce(&sample.spec, &sample.stored);
        let found = found.unwrap_or_else(|error| panic!("{}: {error}", sample.name));
        assert!(found.bytes == sample.values, "{}", sample.name);
        // Without a shape, the decoder finds the size.
        let open = ArraySpec {
            shape: None,
            ..sample.spec
        };
        let found = reducer.reduce(&open, &sample.stored).unwrap();
        assert!(found.bytes == sample.values, "{}", sample.name);
    }
}

#[test]
fn codecs_refuse_data_larger_than_array() {
    for sample in samples() {
        for less in [1, 7, sample.values.len() as u64 - 1] {
            let spec = ArraySpec {
                shape: Some(vec![less.max(1)]),
                ..sample.spec.clone()
            };
            let refused = Reducer::default().reduce(&spec, &sample.stored);
            let refused = refused.map(|found| found.shape).unwrap_err();
            let size = matches!(
                refused,
                ArrayError::Corrupt { .. } | ArrayError::Size { .. }
            );
            assert!(size, "{}: {refused}", sample.name);
        }
    }
}

proptest! {
    #[test]
    fn codecs_refuse_corrupt_bytes_or_decode_to_same_length(
        which in any::<prop::sample::Index>(),
        cuts in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 1..5),
        cut in any::<Option<prop::sample::Index>>(),
        open in any::<bool>(),
    ) {
        let mut all = samples();
        let at = which.index(all.len());
        let sample = &mut all[at];
        for (place, byte, head) in cuts {
            let length = if head { sample.stored.len().min(40) } else { sample.stored.len() };
            sample.stored[place.index(length)] = byte;
        }
        if let Some(cut) = cut {
            let length = cut.index(sample.stored.len());
            sample.stored.truncate(length);
        }
        let mut spec = sample.spec.clone();
        if open {
            spec.shape = None;
        }
        match Reducer::default().reduce(&spec, &sample.stored) {
            Ok(found) => prop_assert!(open || found.bytes.len() == sample.values.len()),
            Err(error) => prop_assert!(error.is_of_data() || error == ArrayError::TooLarge || open, "{error}"),
        }
    }
}
