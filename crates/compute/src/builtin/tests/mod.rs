//! Compares built-in kernels with plain references, and checks the merge invariance of folds.

mod cipher;
mod cluster;
mod codec;
mod content;
mod image;
mod merge_invariance;
mod picks;
mod reduce;
mod reshape;
mod signal;
mod statistics;

use std::fs;

use proptest::prelude::*;

use super::*;

/// Temporary files with the parts of a series, one part in each file.
struct Files {
    _directory: tempfile::TempDir,
    names: Vec<String>,
}

fn files(parts: &[Vec<u8>]) -> Files {
    let directory = tempfile::tempdir().unwrap();
    let mut names = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let path = directory.path().join(number.to_string());
        fs::write(&path, part).unwrap();
        names.push(path.to_str().unwrap().to_owned());
    }
    Files {
        _directory: directory,
        names,
    }
}

fn doubles(values: &[f64]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

fn strings(args: &[&str]) -> Vec<String> {
    args.iter().map(|arg| (*arg).to_owned()).collect()
}

/// Returns the output of a stream for an input in pieces.
fn stream(name: &str, args: &[&str], pieces: &[&[u8]]) -> Result<Vec<u8>, String> {
    let mut stream = stream_builtin(name, &strings(args), Vec::new()).unwrap();
    for piece in pieces {
        stream.write_all(piece).map_err(|error| error.to_string())?;
    }
    stream.finish().map_err(|error| error.to_string())
}

/// Cuts an input into pieces at the given places.
fn pieces<'a>(input: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut places: Vec<_> = cuts.iter().map(|cut| cut % (input.len() + 1)).collect();
    places.extend([0, input.len()]);
    places.sort_unstable();
    places
        .windows(2)
        .map(|pair| &input[pair[0]..pair[1]])
        .collect()
}

/// Runs a kernel over files with these contents, and returns its output.
fn run(name: &str, args: &[&str], parts: &[Vec<u8>]) -> Result<String, BuiltinError> {
    let mut result = Vec::new();
    run_builtin(name, &strings(args), &files(parts).names, &mut result)?;
    Ok(String::from_utf8_lossy(&result).into_owned())
}

/// Returns the result of a fold for one input.
fn fold(name: &str, args: &[&str], input: &[u8]) -> Result<Vec<u8>, String> {
    let mut fold = fold_builtin(name, &strings(args)).unwrap();
    let mut result = Vec::new();
    let found = fold
        .update(0, input)
        .and_then(|()| fold.finish(&mut result));
    found.map(|()| result).map_err(|error| error.to_string())
}

/// Cuts of an input and merges of its states: place of each cut, order of the pieces, and the number of the fold that processes each piece.
type Cuts = Vec<(usize, u32, usize)>;

fn cuts() -> impl Strategy<Value = Cuts> {
    proptest::collection::vec((any::<usize>(), any::<u32>(), 0..4_usize), 0..7)
}

/// Checks merge invariance: pieces in any order, processed by several folds, whose states are merged in any order, give the same result.
fn merge_invariance(name: &str, args: &[&str], input: &[u8], cuts: &Cuts) {
    let mut places: Vec<_> = cuts.iter().map(|cut| cut.0 % (input.len() + 1)).collect();
    places.extend([0, input.len()]);
    places.sort_unstable();
    let mut pieces: Vec<_> = places
        .windows(2)
        .map(|pair| (pair[0], &input[pair[0]..pair[1]]))
        .collect();
    let order = |index: usize| cuts.get(index).map_or((0, 0), |cut| (cut.1, cut.2));
    let mut keyed: Vec<_> = pieces
        .drain(..)
        .enumerate()
        .map(|(index, piece)| (order(index), piece))
        .collect();
    keyed.sort_by_key(|piece| piece.0.0);
    let args_owned = strings(args);
    let mut folds: Vec<_> = (0..4)
        .map(|_| fold_builtin(name, &args_owned).unwrap())
        .collect();
    for ((_, taker), (offset, piece)) in keyed {
        folds[taker].update(offset as u64, piece).unwrap();
    }
    let mut all = folds.swap_remove(cuts.len() % 4);
    for fold in folds {
        all.merge(&fold.state().unwrap()).unwrap();
    }
    let mut result = Vec::new();
    let found = all
        .finish(&mut result)
        .map(|()| result)
        .map_err(|error| error.to_string());
    let whole = fold(name, args, input);
    assert!(
        found == whole,
        "{name} {args:?}: {:?} in pieces, {:?} at once",
        found.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        whole.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    );
}

#[test]
fn numeric_kernels_treat_nan_as_documented() {
    let mixed = doubles(&[f64::NAN, 1.0, 2.0]);
    for statistic in ["mean", "stddev"] {
        assert_eq!(
            run(statistic, &[], std::slice::from_ref(&mixed)).unwrap(),
            "NaN\n"
        );
    }
    assert_eq!(
        run("linreg", &[], std::slice::from_ref(&mixed)).unwrap(),
        "NaN NaN NaN\n"
    );
    assert_eq!(
        run("max", &[], std::slice::from_ref(&mixed)).unwrap(),
        "2\n"
    );
    assert_eq!(run("min", &[], &[mixed]).unwrap(), "1\n");
    let only = doubles(&[f64::NAN; 5000]);
    assert_eq!(run("max", &[], &[only]).unwrap(), "NaN\n");
    let infinite = doubles(&[f64::NEG_INFINITY, f64::NAN]);
    assert_eq!(
        run("max", &[], std::slice::from_ref(&infinite)).unwrap(),
        "-inf\n"
    );
    assert_eq!(
        run("mean", &[], &[doubles(&[f64::INFINITY, 1.0])]).unwrap(),
        "inf\n"
    );
    assert_eq!(run("max", &[], &[doubles(&[-0.0])]).unwrap(), "0\n");
}

#[test]
fn numeric_kernels_write_text_or_raw_results() {
    let parts = [b"1 2 3\n".to_vec(), b"4".to_vec()];
    assert_eq!(run("mean", &["dtype=text"], &parts).unwrap(), "2.5\n");
    assert_eq!(
        run("stddev", &["dtype=text"], &parts).unwrap(),
        "1.118033988749895\n"
    );
    assert_eq!(
        run("stddev", &["dtype=text", "ddof=1"], &parts).unwrap(),
        "1.2909944487358056\n"
    );
    assert_eq!(run("linreg", &["dtype=text"], &parts).unwrap(), "1 1 1\n");
    assert_eq!(
        run("max", &["dtype=text"], &[b"1e300".to_vec()]).unwrap(),
        "1e300\n"
    );
    assert_eq!(
        run("mean", &["dtype=u8"], &[vec![255; 5000]]).unwrap(),
        "255\n"
    );
    let mut raw = Vec::new();
    let args = ["dtype=text".to_owned(), "out=f64".to_owned()];
    run_builtin("linreg", &args, &files(&parts).names, &mut raw).unwrap();
    assert_eq!(raw, doubles(&[1.0, 1.0, 1.0]));
    // Beyond 2^53 only integers keep all digits.
    let large = [i64::MAX.to_le_bytes().to_vec()];
    assert_eq!(
        run("max", &["dtype=i64"], &large).unwrap(),
        "9223372036854775807\n"
    );
}

#[test]
fn grep_counts_matching_lines() {
    let parts = [
        b"int a;\nfor (;;)\nprint int\n\nINT".to_vec(),
        b"pointer\nint".to_vec(),
    ];
    for (args, count) in [
        (vec!["-c", "int"], "4\n"),
        (vec!["-cw", "int"], "3\n"),
        (vec!["-ciw", "int"], "4\n"),
        (vec!["-v", "int"], "3\n"),
        (vec!["-e", "^for|^$"], "2\n"),
        (vec!["-F", "(;;)"], "1\n"),
        (vec!["a;.f"], "0\n"),
        (vec![r"[^x]f"], "0\n"),
        (vec!["--", "-x"], "0\n"),
    ] {
        assert_eq!(run("grep", &args, &parts).unwrap(), count, "{args:?}");
    }
}

#[test]
fn kernel_error_of_wrong_argument_lists_valid_arguments() {
    let one = [doubles(&[1.0])];
    for (name, args, words) in [
        ("mean", vec!["foo=1"], "dtype=TYPE, out=text|f64"),
        ("mean", vec!["ddof=1"], "dtype=TYPE, out=text|f64"),
        ("mean", vec!["dtype=f16"], "f64, f32, i8"),
        ("mean", vec!["out=json"], "text, f64"),
        ("stddev", vec!["ddof=2"], "it can be: 0, 1"),
        ("stddev", vec!["ddof=1"], "at least 2 values"),
        ("linreg", vec![], "at least 2 values"),
        ("wordcount", vec!["-l"], "it knows: threads=COUNT"),
        ("fingerprint", vec!["threads=0"], "a number above 0"),
        ("heartbeat", vec!["rate=1e300"], "from 50 to 1000000"),
        ("unlz4", vec!["level=3"], "no arguments"),
        ("gzip", vec!["level=13"], "1 to 12"),
        ("zstd", vec!["level=23"], "-7 to 22"),
        ("bzip2", vec!["level=0"], "1 to 9"),
        ("lz4", vec!["threads=none"], "a number above 0"),
        ("encrypt", vec![], "needs key="),
        (
            "encrypt",
            vec!["key=secret"],
            "the name of one of the inputs",
        ),
        ("grep", vec![], "needs a pattern"),
        ("grep", vec!["-z", "x"], "-c or --count"),
        ("grep", vec!["a", "b"], "-c or --count"),
        ("grep", vec!["("], "no regular expression"),
        ("nean", vec![], "built-in kernel \"nean\" does not exist"),
    ] {
        let error = run(name, &args, &one).unwrap_err().to_string();
        assert!(error.contains(words), "{name} {args:?}: {error}");
    }
    assert!(matches!(
        run("mean", &[], &[vec![]]),
        Err(BuiltinError::Empty)
    ));
    assert!(matches!(
        run("mean", &[], &[]),
        Err(BuiltinError::NoInput("mean"))
    ));
    let torn = run("mean", &[], &[vec![0; 12]]).unwrap_err().to_string();
    assert!(
        torn.contains("12 bytes") && torn.contains("dtype="),
        "{torn}"
    );
    let word = run("max", &["dtype=text"], &[b"1\n2 x\n".to_vec()])
        .unwrap_err()
        .to_string();
    assert!(word.contains("line 2") && word.contains("\"x\""), "{word}");
}

#[test]
fn every_builtin_has_its_own_hash() {
    let mut hashes: Vec<_> = builtin_names()
        .iter()
        .map(|name| builtin_hash(name).unwrap())
        .collect();
    hashes.sort();
    hashes.dedup();
    assert_eq!(hashes.len(), builtin_names().len());
    assert_eq!(builtin_hash("nothing"), None);
}
