use super::*;

const HEADER: usize = 80;
const CHUNK: usize = 65_536 + 16;

/// Returns a file that contains a key, and the argument `key=` that names the file.
fn key(content: &[u8]) -> (Files, String) {
    let file = files(&[content.to_vec()]);
    let arg = format!("key={}", file.names[0]);
    (file, arg)
}

fn encrypted(content: &[u8], arg: &str) -> Vec<u8> {
    stream("encrypt", &[arg], &[content]).unwrap()
}

#[test]
fn decrypt_succeeds_only_with_key_of_encryption() {
    let (_file, arg) = key(&[7; 32]);
    let (_other, wrong) = key(&[8; 32]);
    for length in [0, 1, 65_535, 65_536, 65_537, 200_000, 2_000_000] {
        let content: Vec<u8> = (0..length)
            .map(|index: u32| index.to_le_bytes()[1])
            .collect();
        let secret = encrypted(&content, &arg);
        let chunks = content.len().div_ceil(65_536).max(1);
        assert_eq!(secret.len(), HEADER + content.len() + 16 * chunks);
        assert!(stream("decrypt", &[&arg], &[&secret]).unwrap() == content);
        let error = stream("decrypt", &[&wrong], &[&secret]).unwrap_err();
        assert!(error.contains("not the key"), "{error}");
        let again = encrypted(&content, &arg);
        assert_ne!(secret[16..48], again[16..48], "salts differ");
        assert_ne!(
            secret[HEADER..],
            again[HEADER..],
            "as do keys and so all bytes"
        );
    }
}

#[test]
fn encrypt_leaves_out_input_that_holds_the_key() {
    let all = files(&[b"one ".to_vec(), [7; 32].to_vec(), b"two".to_vec()]);
    let arg = [format!("key={}", all.names[1])];
    let mut secret = Vec::new();
    run_builtin("encrypt", &arg, &all.names, &mut secret).unwrap();
    let (_file, hexadecimal) = key(format!("{}\n", "07".repeat(32)).as_bytes());
    let content = stream("decrypt", &[&hexadecimal], &[&secret]).unwrap();
    assert_eq!(content, b"one two");
    let only = std::slice::from_ref(&all.names[1]);
    let nothing = run_builtin("encrypt", &arg, only, &mut secret);
    assert!(matches!(nothing, Err(BuiltinError::NoInput("encrypt"))));
    for wrong in [&b""[..], &[7; 31], &[b'0'; 63], &[b'0'; 65], &[b'g'; 64]] {
        let (_file, arg) = key(wrong);
        let error = stream_builtin("encrypt", &[arg], Vec::new()).unwrap_err();
        assert!(error.to_string().contains("32 bytes, or 64"), "{error}");
    }
}

#[test]
fn decrypt_refuses_changed_bytes() {
    let (_file, arg) = key(&[7; 32]);
    let content: Vec<u8> = (0..300_000_u32)
        .map(|index| index.to_le_bytes()[1])
        .collect();
    let secret = encrypted(&content, &arg);
    let chunk = |number: usize| &secret[HEADER + number * CHUNK..][..CHUNK];
    let header = &secret[..HEADER];
    let other = encrypted(&content, &arg);
    let moved: [(&str, Vec<&[u8]>); 8] = [
        (
            "two chunks change places",
            vec![header, chunk(1), chunk(0), &secret[HEADER + 2 * CHUNK..]],
        ),
        ("one is left out", vec![header, &secret[HEADER + CHUNK..]]),
        ("one comes twice", vec![header, chunk(0), &secret[HEADER..]]),
        ("the last is left out", vec![&secret[..HEADER + 4 * CHUNK]]),
        ("bytes behind the last", vec![&secret, b"x"]),
        (
            "a chunk of another file",
            vec![
                header,
                &other[HEADER..HEADER + CHUNK],
                &secret[HEADER + CHUNK..],
            ],
        ),
        (
            "the header of another file",
            vec![&other[..HEADER], &secret[HEADER..]],
        ),
        ("the header alone", vec![header]),
    ];
    for (what, pieces) in moved {
        let mut given = Vec::new();
        let mut stream = stream_builtin("decrypt", &strings(&[&arg]), &mut given).unwrap();
        let pushed = pieces.iter().try_for_each(|piece| stream.write_all(piece));
        let ended = pushed.is_ok() && stream.finish().is_ok();
        assert!(!ended, "{what}");
        assert!(content.starts_with(&given), "{what}");
    }
    let error = stream("decrypt", &[&arg], &[&secret[..HEADER - 1]]).unwrap_err();
    assert!(error.contains("is it complete?"), "{error}");
    let error = stream("decrypt", &[&arg], &[&[0; 100]]).unwrap_err();
    assert!(error.contains("encrypt did not write it"), "{error}");
}

/// Files of version 1 of the format stay readable: version 1 of the kernel wrote the fixture.
#[test]
fn decrypt_reads_version_1() {
    let (_file, arg) = key(&[7; 32]);
    let secret = include_bytes!("../../../tests/fixtures/version-1.encrypted");
    let content = stream("decrypt", &[&arg], &[secret]).unwrap();
    assert_eq!(content, b"Written by version 1.\n");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn decrypt_round_trips_any_pieces_and_detects_any_corruption(
        length in prop_oneof![0..300_usize, 65_400..65_700_usize, 190_000..200_000_usize],
        cuts in proptest::collection::vec(any::<usize>(), 0..5),
        place in any::<usize>(),
        bit in 0..8,
        cut in any::<usize>(),
    ) {
        let (_file, arg) = key(&[7; 32]);
        let content: Vec<u8> = (0..length).map(|index| index.to_le_bytes()[0]).collect();
        let secret = stream("encrypt", &[&arg], &pieces(&content, &cuts)).unwrap();
        prop_assert!(stream("decrypt", &[&arg], &pieces(&secret, &cuts)).unwrap() == content);
        let mut flipped = secret.clone();
        flipped[place % secret.len()] ^= 1_u8 << bit;
        prop_assert!(stream("decrypt", &[&arg], &[&flipped]).is_err());
        let cut = &secret[..cut % secret.len()];
        prop_assert!(stream("decrypt", &[&arg], &[cut]).is_err());
    }
}
