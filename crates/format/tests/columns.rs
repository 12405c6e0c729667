//! Tests of fixed records with descriptions by the user.

#![allow(clippy::unwrap_used, reason = "tests")]

mod decode;

use tidemill_format::{IndexRange, VariableSource, columns};

fn file() -> Vec<u8> {
    let mut file = b"header".to_vec();
    for n in 0..100_u32 {
        file.extend(f64::from(n).to_le_bytes());
        file.extend(n.to_be_bytes());
        file.extend([b'a' + u8::try_from(n % 26).unwrap(), b'x', 0]);
    }
    file.extend([1; 9]);
    file
}

#[test]
fn fixed_record_columns_become_variables_of_one_dimension() {
    let file = file();
    let header = columns::read("time=<f8,id=>u4,name=S3@6", &file).unwrap();
    assert_eq!(
        header
            .variables
            .iter()
            .map(|one| one.path.as_str())
            .collect::<Vec<_>>(),
        ["time", "id", "name"]
    );
    let id = header.find("id").unwrap();
    assert_eq!(
        (id.dimensions[0].name.as_str(), id.dimensions[0].size),
        ("record", 100)
    );
    for piece_bytes in [1, 100, 1 << 20] {
        let ranges = [IndexRange {
            start: 3,
            end: 50,
            step: 20,
        }];
        let found = decode::values(id, &ranges, VariableSource::File(&file), piece_bytes).unwrap();
        assert_eq!(found, "03000000170000002b000000");
        let time = decode::values(
            header.find("time").unwrap(),
            &[IndexRange::all(100)],
            VariableSource::File(&file),
            piece_bytes,
        );
        let all: String = (0..100_u32)
            .flat_map(|n| f64::from(n).to_le_bytes())
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(time.unwrap(), all);
    }
    // Records that are close together are one piece.
    let count = |bytes| {
        tidemill_format::pieces(
            id,
            &[IndexRange::all(100)],
            VariableSource::File(&file),
            bytes,
        )
        .unwrap()
        .count()
    };
    assert_eq!((count(1 << 20), count(1)), (1, 100));
    let whole = tidemill_format::pieces(
        id,
        &[IndexRange::all(100)],
        VariableSource::File(&file),
        1 << 20,
    )
    .unwrap()
    .next()
    .unwrap()
    .unwrap();
    let spans: Vec<_> = whole.spans().map(|span| (span.offset, span.size)).collect();
    assert_eq!(
        (spans.len(), spans[0], spans[99]),
        (100, (14, 4), (14 + 99 * 15, 4))
    );
    // The same records, longer than their columns.
    let header = columns::read("_=V8,id=>u4/15@6", &file).unwrap();
    assert_eq!(header.variables.len(), 1);
    assert_eq!(header.variables[0].dimensions, id.dimensions);
}

#[test]
fn invalid_fixed_record_descriptions_are_refused() {
    for (text, why) in [
        ("time", "\"time\" is no NAME=TYPE"),
        ("time=<q8", "time: no type \"<q8\""),
        ("time=<f99999999999", "no type"),
        ("id=u4", "id: is it little-endian (<) or big-endian (>)?"),
        ("id=<u4/3", "its columns have 4 bytes, and a record 3"),
        ("id=<u4@x", "\"x\" is no number of bytes"),
        ("id=<u4@99999", "the file ends at"),
    ] {
        let error = columns::read(text, &file()).unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
    assert!(columns::read(&vec!["a=u1"; 5000].join(","), &file()).is_err());
}
