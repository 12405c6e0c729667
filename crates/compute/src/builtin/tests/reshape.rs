use super::*;

/// Runs a kernel over files with these contents, and returns the bytes of its output.
fn bytes(name: &str, args: &[&str], parts: &[Vec<u8>]) -> Vec<u8> {
    let mut result = Vec::new();
    run_builtin(name, &strings(args), &files(parts).names, &mut result).unwrap();
    result
}

fn refused(name: &str, args: &[&str], parts: &[Vec<u8>]) -> String {
    run(name, args, parts).unwrap_err().to_string()
}

fn shorts(values: &[i16]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

#[test]
fn sort_joins_files_into_one_series() {
    let parts = [
        doubles(&[3.0, f64::NAN]),
        doubles(&[-1.0]),
        doubles(&[0.0, -0.0]),
    ];
    assert_eq!(
        bytes("sort", &[], &parts),
        doubles(&[-1.0, -0.0, 0.0, 3.0, f64::NAN])
    );
    let text = [b"2 1e3\n-4".to_vec(), b"0.5\n".to_vec()];
    assert_eq!(bytes("sort", &["dtype=text"], &text), b"-4\n0.5\n2\n1000\n");
    let big = [256_i16, 1]
        .iter()
        .flat_map(|value| value.to_be_bytes())
        .collect();
    assert_eq!(
        bytes("sort", &["dtype=i16", "order=big"], &[big]),
        [0, 1, 1, 0]
    );
    assert_eq!(bytes("sort", &[], &[vec![]]), b"");
}

#[test]
fn sort_with_little_memory_gives_same_result() {
    let values: Vec<f64> = (0..5000).map(|i| f64::from(i * 7919 % 1000)).collect();
    let parts = [doubles(&values)];
    let wanted = bytes("sort", &[], &parts);
    assert_eq!(bytes("sort", &["memory=4000", "threads=3"], &parts), wanted);
    let hostile = ["memory=1", "threads=1000000000"];
    assert_eq!(bytes("sort", &hostile, &parts), wanted);
    assert!(refused("sort", &["memory=0"], &parts).contains("above 0"));
    assert!(refused("sort", &[], &[vec![0; 12]]).contains("12 bytes"));
}

#[test]
fn scale_keeps_type_order_and_missing_values() {
    assert_eq!(
        bytes("scale", &["a=2", "b=-1"], &[doubles(&[1.5, 4.0])]),
        doubles(&[2.0, 7.0])
    );
    let part = shorts(&[1, -9, 20_000]);
    let args = ["dtype=i16", "a=2", "missing=-9"];
    assert_eq!(
        bytes("scale", &args, std::slice::from_ref(&part)),
        shorts(&[2, -9, 32767])
    );
    let turned: Vec<u8> = part.chunks(2).flat_map(|pair| [pair[1], pair[0]]).collect();
    let given = bytes("scale", &["dtype=i16", "a=3", "order=big"], &[turned]);
    assert_eq!(given[..2], 3_i16.to_be_bytes());
    assert!(refused("scale", &["a=x"], &[vec![]]).contains("a number"));
    assert!(refused("scale", &["dtype=text"], &[vec![]]).contains("u64"));
}

#[test]
fn streams_accept_values_in_any_pieces() {
    let values: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    for (name, args) in [
        ("scale", vec!["dtype=u32", "a=3"]),
        ("cast", vec!["dtype=u32", "to=f64"]),
    ] {
        let wanted = bytes(name, &args, std::slice::from_ref(&values));
        for piece in [1, 7, 4096, 65_537] {
            let mut stream = stream_builtin(name, &strings(&args), Vec::new()).unwrap();
            for bytes in values.chunks(piece) {
                stream.write_all(bytes).unwrap();
            }
            assert!(
                stream.finish().unwrap() == wanted,
                "{name} in pieces of {piece}"
            );
        }
        let mut stream = stream_builtin(name, &strings(&args), Vec::new()).unwrap();
        stream.write_all(&values[..7]).unwrap();
        assert!(stream.finish().unwrap_err().to_string().contains("3 bytes"));
    }
}

#[test]
fn cast_converts_types_and_byte_orders() {
    let part = doubles(&[1.9, -300.0, f64::NAN]);
    let given = bytes("cast", &["to=i8"], std::slice::from_ref(&part));
    assert_eq!(given, [1, 0x80, 0]);
    let given = bytes(
        "cast",
        &["to=u16", "to_order=big"],
        std::slice::from_ref(&part),
    );
    assert_eq!(given, [0, 1, 0, 0, 0, 0]);
    let given = bytes("cast", &["dtype=i16", "to=f64"], &[shorts(&[-2, 7])]);
    assert_eq!(given, doubles(&[-2.0, 7.0]));
    assert!(refused("cast", &[], std::slice::from_ref(&part)).contains("needs to="));
    assert!(refused("cast", &["to=f16"], &[part]).contains("f32"));
}

#[test]
fn subset_selects_in_two_dimensions() {
    let array = [(0..12).collect::<Vec<u8>>()];
    let args = ["dtype=u8", "shape=3x4", "start=1x0", "step=1x2"];
    assert_eq!(bytes("subset", &args, &array), [4, 6, 8, 10]);
    assert_eq!(
        bytes(
            "subset",
            &["dtype=u8", "start=2", "stop=9", "step=3"],
            &array
        ),
        [2, 5, 8]
    );
    assert_eq!(
        bytes("subset", &["dtype=u8", "shape=3x4", "stop=3x0"], &array),
        Vec::<u8>::new()
    );
    assert!(refused("subset", &["dtype=u8", "shape=5x2"], &array).contains("product is 12"));
    assert!(refused("subset", &["dtype=u8", "stop=13"], &array).contains("0 to 12"));
    assert!(refused("subset", &["dtype=u8", "start=1x1"], &array).contains("each dimension"));
    assert!(refused("subset", &["dtype=u8", "step=0"], &array).contains("1 or more"));
}

#[test]
fn transpose_swaps_rows_and_columns_in_bands() {
    let matrix: Vec<i16> = (0..6).collect();
    let given = bytes("transpose", &["dtype=i16", "columns=3"], &[shorts(&matrix)]);
    assert_eq!(given, shorts(&[0, 3, 1, 4, 2, 5]));
    let (rows, columns) = (40_000, 70);
    let matrix: Vec<u8> = (0..rows * columns * 8_u64)
        .map(|i| u8::try_from(i % 253).unwrap())
        .collect();
    let there = bytes("transpose", &["columns=70"], std::slice::from_ref(&matrix));
    assert!(bytes("transpose", &["columns=40000"], &[there]) == matrix);
    assert!(refused("transpose", &["columns=5"], &[doubles(&[0.0; 6])]).contains("divisor of 6"));
    assert!(
        refused("transpose", &["columns=2"], &[vec![0; 16], vec![0; 16]]).contains("one input")
    );
}
