//! Format of an answer to a reduction in reductionist's interface: a CBOR map (RFC 8949).

use tidemill_compute::array::Reduced;

/// Major types of items in CBOR.
const UNSIGNED: u8 = 0;
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const LIST: u8 = 4;
const MAP: u8 = 5;

/// Writes the head of a CBOR item: the item's type, and its value or length.
fn head(to: &mut Vec<u8>, major: u8, value: u64) {
    let major = major << 5;
    match value {
        0..24 => to.push(major | value.to_le_bytes()[0]),
        24..0x100 => to.extend([major | 24, value.to_le_bytes()[0]]),
        0x100..0x1_0000 => {
            to.push(major | 25);
            to.extend(&value.to_be_bytes()[6..]);
        }
        0x1_0000..0x1_0000_0000 => {
            to.push(major | 26);
            to.extend(&value.to_be_bytes()[4..]);
        }
        _ => {
            to.push(major | 27);
            to.extend(value.to_be_bytes());
        }
    }
}

fn text(to: &mut Vec<u8>, text: &str) {
    head(to, TEXT, text.len() as u64);
    to.extend(text.as_bytes());
}

fn bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    head(to, BYTES, bytes.len() as u64);
    to.extend(bytes);
}

/// Writes two CBOR items: a list of numbers, and the same numbers as bytes. One of the two items is empty.
fn numbers(
    to: &mut Vec<u8>,
    name: &str,
    numbers: impl ExactSizeIterator<Item = u64>,
    as_bytes: bool,
) {
    text(to, name);
    let mut all = Vec::new();
    if as_bytes {
        head(to, LIST, 0);
        all = numbers.flat_map(u64::to_le_bytes).collect();
    } else {
        head(to, LIST, numbers.len() as u64);
        numbers.for_each(|number| head(to, UNSIGNED, number));
    }
    text(to, &format!("{name}_as_bytes"));
    bytes(to, &all);
}

/// Returns the CBOR map with the result of a reduction.
pub(super) fn cbor(reduced: &Reduced, (shape_as_bytes, count_as_bytes): (bool, bool)) -> Vec<u8> {
    let mut to = Vec::with_capacity(reduced.bytes.len() + 9 * reduced.counts.len() + 128);
    head(&mut to, MAP, 7);
    text(&mut to, "bytes");
    bytes(&mut to, &reduced.bytes);
    text(&mut to, "dtype");
    text(&mut to, reduced.dtype.name());
    numbers(
        &mut to,
        "shape",
        reduced.shape.iter().copied(),
        shape_as_bytes,
    );
    let counts = reduced.counts.iter().map(|count| count.unsigned_abs());
    numbers(&mut to, "count", counts, count_as_bytes);
    text(&mut to, "byte_order");
    text(&mut to, "little");
    to
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_compute::array::Dtype;

    #[test]
    fn reduction_answer_equals_cbor_of_other_libraries() {
        let reduced = Reduced {
            dtype: Dtype::Int16,
            shape: vec![2, 300],
            bytes: vec![1, 2],
            counts: vec![23, 24, 65536],
        };
        // Python's cbor2 reads these bytes.
        let lists = b"\xa7\x65bytes\x42\x01\x02\x65dtype\x65int16\x65shape\x82\x02\x19\x01\x2c\x6eshape_as_bytes\x40\
            \x65count\x83\x17\x18\x18\x1a\x00\x01\x00\x00\x6ecount_as_bytes\x40\x6abyte_order\x66little";
        assert_eq!(cbor(&reduced, (false, false)), lists);
        let packed = cbor(&reduced, (true, true));
        let one = [
            &b"\x6eshape_as_bytes\x50"[..],
            &2_u64.to_le_bytes(),
            &300_u64.to_le_bytes(),
        ]
        .concat();
        assert!(packed.windows(one.len()).any(|window| window == one));
        assert!(packed.windows(7).any(|window| window == b"\x65count\x80"));
    }
}
