//! Compares headers and values of files with the output of the real libraries: see `describe.py`, and `fixtures.py` for the files.

#![allow(clippy::unwrap_used, reason = "tests")]

mod decode;

use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use tidemill_format::{
    DataKind, Dimension, Header, IndexRange, Storage, Value, Variable, VariableSource, hdf5, zarr,
    zip,
};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn numbers(json: &Json) -> Vec<u64> {
    json.as_array()
        .unwrap()
        .iter()
        .map(|number| number.as_u64().unwrap())
        .collect()
}

fn same_attribute(found: &Value, json: &Json) -> bool {
    if let Some(text) = json.get("text") {
        return match found {
            Value::Text(found) => found == text.as_str().unwrap(),
            Value::Texts(found) => found.is_empty() && text == "",
            _ => false,
        };
    }
    if let Some(texts) = json.get("texts") {
        let texts: Vec<&str> = texts
            .as_array()
            .unwrap()
            .iter()
            .map(|text| text.as_str().unwrap())
            .collect();
        return matches!(found, Value::Texts(found) if *found == texts);
    }
    let number = |text: &Json| text.as_str().unwrap().parse::<f64>().unwrap().to_bits();
    let expected: Vec<u64> = json["numbers"]
        .as_array()
        .unwrap()
        .iter()
        .map(number)
        .collect();
    *found == Value::Other
        || found
            .numbers()
            .into_iter()
            .map(f64::to_bits)
            .collect::<Vec<_>>()
            == expected
}

fn attributes(found: &[tidemill_format::Attribute], json: &Json, of: &str) {
    for (name, expected) in json.as_object().unwrap() {
        // The libraries show attributes of dimension scales, which this crate hides from users.
        if ["CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST"].contains(&name.as_str())
            || expected.is_null()
        {
            continue;
        }
        let Some(found) = found.iter().find(|attribute| attribute.name == *name) else {
            panic!("{of} lacks attribute {name}");
        };
        assert!(
            same_attribute(&found.value, expected),
            "{of}: {name} is {:?}, not {expected}",
            found.value
        );
    }
}

fn dimensions(found: &[Dimension], json: &Json, of: &str) {
    let expected = json.as_array().unwrap();
    assert_eq!(found.len(), expected.len(), "{of}");
    for (found, expected) in found.iter().zip(expected) {
        if let Some(name) = expected[0].as_str() {
            assert_eq!(found.name, name, "{of}");
        }
        assert_eq!(
            (Some(found.size), Some(found.unlimited)),
            (expected[1].as_u64(), expected[2].as_bool()),
            "{of}"
        );
    }
}

/// Compares the chunks in a variable's index with the expected chunks, with each chunk's first element.
fn chunks(variable: &Variable, json: &Json, bytes: &dyn tidemill_format::Bytes, of: &str) {
    match (&variable.storage, &json["chunks"]) {
        (Storage::Chunked(chunked), Json::Array(expected)) => {
            let tidemill_format::Index::Hdf5(index) = &chunked.index else {
                panic!("{of}")
            };
            let found = hdf5::chunks(variable, chunked, index, bytes).unwrap();
            let counts: Vec<u64> = variable
                .shape()
                .iter()
                .zip(&chunked.shape)
                .map(|(size, chunk)| size.div_ceil(*chunk))
                .collect();
            let expected: Vec<Vec<u64>> = expected
                .iter()
                .map(|chunk| {
                    let place = numbers(&chunk[0]);
                    let place = place
                        .iter()
                        .zip(&chunked.shape)
                        .map(|(first, size)| first / size);
                    let number = place
                        .zip(&counts)
                        .fold(0, |number, (at, count)| number * count + at);
                    let mut all = vec![number];
                    all.extend(numbers(&Json::Array(
                        chunk.as_array().unwrap()[1..].to_vec(),
                    )));
                    all
                })
                .collect();
            let found: Vec<Vec<u64>> = found
                .iter()
                .map(|chunk| vec![chunk.number, chunk.offset, chunk.size, chunk.mask.into()])
                .collect();
            assert_eq!(found, expected, "{of}");
        }
        (Storage::Contiguous { offset }, Json::Null) => {
            // Older libraries report no location for data in the header.
            assert!(
                json["offset"].is_null() || json["offset"] == *offset,
                "{of}"
            );
        }
        (Storage::Absent, Json::Null) => assert!(json["offset"].is_null(), "{of}"),
        (storage, chunks) => panic!("{of}: {storage:?} and {chunks}"),
    }
}

fn variable(variable: &Variable, json: &Json, store: VariableSource<'_>, of: &str) -> usize {
    dimensions(&variable.dimensions, &json["dimensions"], of);
    attributes(&variable.attributes, &json["attributes"], of);
    if let (VariableSource::File(bytes), Some(_)) = (store, json.get("chunks")) {
        chunks(variable, json, bytes, of);
    }
    let Some(kind) = json["kind"].as_str() else {
        return 0;
    };
    let found = match variable.data_type.kind {
        DataKind::Int if kind == "b" => "b",
        DataKind::Int => "i",
        DataKind::Uint => "u",
        DataKind::Float => "f",
        DataKind::Complex => "c",
        DataKind::Bool => "b",
        DataKind::Text => "S",
        _ => "other",
    };
    assert_eq!(
        (found, Some(u64::from(variable.data_type.size))),
        (kind, json["size"].as_u64()),
        "{of}"
    );
    let mut compared = 0;
    for selection in json["selections"].as_array().unwrap() {
        let range = |range: &Json| {
            let range = numbers(range);
            IndexRange {
                start: range[0],
                end: range[1],
                step: range[2],
            }
        };
        let ranges: Vec<IndexRange> = selection["ranges"]
            .as_array()
            .unwrap()
            .iter()
            .map(range)
            .collect();
        // Pieces of any size give the same values.
        for piece_bytes in [1, 100, 1 << 20] {
            let Some(found) = decode::values(variable, &ranges, store, piece_bytes) else {
                continue;
            };
            assert_eq!(
                found,
                selection["hex"].as_str().unwrap(),
                "{of}, {ranges:?}, pieces of {piece_bytes} bytes"
            );
            compared += 1;
        }
    }
    compared
}

/// Compares a header with the expected header; returns the number of selections with the same values.
fn compare(header: &Header, json: &Json, store: VariableSource<'_>, of: &str) -> usize {
    attributes(&header.attributes, &json["attributes"], of);
    let expected = json["variables"].as_array().unwrap();
    let mut compared = 0;
    for one in expected {
        let path = one["path"].as_str().unwrap();
        let of = format!("{of}:{path}");
        compared += variable(
            header
                .find(path)
                .unwrap_or_else(|error| panic!("{of}: {error}")),
            one,
            store,
            &of,
        );
    }
    let paths: Vec<&str> = header
        .variables
        .iter()
        .map(|variable| variable.path.as_str())
        .collect();
    assert!(
        header.variables.len() <= expected.len() + usize::from(of.contains("h5")),
        "{of}: {} variables, not {}: {paths:?}",
        header.variables.len(),
        expected.len()
    );
    compared
}

fn one_file(path: &Path) -> usize {
    let of = path.file_name().unwrap().to_string_lossy().into_owned();
    let json = std::fs::read_to_string(format!("{}.json", path.display())).unwrap();
    let json = serde_json::from_str(&json).unwrap();
    if path.is_dir() {
        let header =
            zarr::read(&path.to_path_buf()).unwrap_or_else(|error| panic!("{of}: {error}"));
        return compare(
            &header,
            &json,
            VariableSource::Directory(&path.to_path_buf()),
            &of,
        );
    }
    let file = std::fs::File::open(path).unwrap();
    let header = tidemill_format::read(&file).unwrap_or_else(|error| panic!("{of}: {error}"));
    if of.ends_with(".zip") {
        return compare(
            &header,
            &json,
            VariableSource::Directory(&zip::Zip::open(&file).unwrap()),
            &of,
        );
    }
    // A header is stored between calls, and must be the same after it is read again.
    let kept = postcard::to_allocvec(&header).unwrap();
    let again: Header = postcard::from_bytes(&kept).unwrap();
    assert_eq!(postcard::to_allocvec(&again).unwrap(), kept);
    compare(&header, &json, VariableSource::File(&file), &of)
}

#[test]
fn fixtures_read_the_same_as_by_reference_libraries() {
    let mut compared = 0;
    for entry in fixtures().read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end != "json") {
            compared += one_file(&path);
        }
    }
    assert!(compared > 500, "{compared}");
}

/// Compares any files like the fixtures. `TIDEMILL_FORMAT_FILES` names a list of files, each with the output of `describe.py` next to it.
#[test]
fn listed_files_read_the_same_as_by_reference_libraries() {
    let Ok(list) = std::env::var("TIDEMILL_FORMAT_FILES") else {
        return;
    };
    let (mut files, mut compared, mut failed) = (0, 0, Vec::new());
    for line in std::fs::read_to_string(list).unwrap().lines() {
        match std::panic::catch_unwind(|| one_file(Path::new(line))) {
            Ok(some) => compared += some,
            Err(_) => failed.push(line.to_owned()),
        }
        files += 1;
    }
    println!(
        "{files} files, {compared} selections, {} differ",
        failed.len()
    );
    assert!(failed.is_empty(), "{failed:#?}");
}
