//! Checks corrupt files: no panic, limited reads and memory, and errors that contain the location.

#[path = "../examples/corruption.rs"]
mod corruption;

use tidemill_format::{Error, IndexRange, VariableSource, pieces, read};

/// Reads a few thousand corrupt files. `examples/corruption.rs` creates any number of them.
#[test]
fn corrupt_files_are_read_or_refused() {
    for (name, file) in corruption::fixtures() {
        let mut chance = corruption::DamageRandom::new(21);
        for _ in 0..200 {
            let corrupt = corruption::corrupt(&file, &mut chance);
            corruption::one(&name, &corrupt);
        }
    }
}

#[test]
fn truncated_files_are_refused_with_missing_length() {
    let mut refused = 0;
    for (name, file) in corruption::fixtures() {
        if !name.ends_with(".nc") && !name.ends_with(".h5") {
            continue;
        }
        for len in (0..file.len()).step_by(file.len() / 60 + 1) {
            let cut = file[..len].to_vec();
            let found = read(&cut).and_then(|header| {
                for variable in &header.variables {
                    let all: Vec<IndexRange> =
                        variable.shape().into_iter().map(IndexRange::all).collect();
                    for piece in
                        pieces(variable, &all, VariableSource::File(&cut), 1 << 20)?.take(1000)
                    {
                        piece?;
                    }
                }
                Ok(())
            });
            match found {
                Err(Error::Truncated { end, size, .. }) => {
                    assert!(end > size && size == len as u64)
                }
                Err(Error::Unknown { .. } | Error::Corrupt { .. } | Error::Unsupported { .. }) => {}
                // A cut may leave a classic header and all written data complete.
                Ok(()) => continue,
                Err(other) => panic!("{name} cut at {len}: {other}"),
            }
            refused += 1;
        }
    }
    assert!(refused > 100, "{refused}");
}

#[test]
fn unknown_variable_error_lists_existing_variables() {
    let file = corruption::fixtures()
        .into_iter()
        .find(|(name, _)| name == "netcdf4.nc")
        .unwrap()
        .1;
    let header = read(&file).unwrap();
    let error = header.find("tas").unwrap_err().to_string();
    assert!(
        error.starts_with("no variable tas; there are ") && error.contains("deflated"),
        "{error}"
    );
    let lat = header.find("lat").unwrap();
    for (range, why) in [
        (
            IndexRange {
                start: 0,
                end: 7,
                step: 1,
            },
            "0 to 7 of 6 indices",
        ),
        (
            IndexRange {
                start: 3,
                end: 2,
                step: 1,
            },
            "3 to 2 of 6 indices",
        ),
        (
            IndexRange {
                start: 0,
                end: 1,
                step: 0,
            },
            "a step of 0",
        ),
    ] {
        let error = pieces(lat, &[range], VariableSource::File(&file), 1)
            .unwrap_err()
            .to_string();
        assert_eq!(error, format!("lat: selection of dimension lat: {why}"));
    }
    assert!(pieces(lat, &[], VariableSource::File(&file), 1).is_err());
    // A step that is longer than the dimension selects the first index.
    let far = IndexRange {
        start: 5,
        end: 6,
        step: u64::MAX,
    };
    assert_eq!(
        pieces(lat, &[far], VariableSource::File(&file), 1)
            .unwrap()
            .count(),
        1
    );
}
