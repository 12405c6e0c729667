use super::*;

#[test]
fn fingerprint_differs_by_content_and_length() {
    let parts = [
        b"\0\0tidemill".to_vec(),
        b"tidemill".to_vec(),
        b"x".to_vec(),
    ];
    let lines = run("fingerprint", &[], &parts).unwrap();
    let lines: Vec<_> = lines.lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[0].ends_with(" 10") && lines[1].ends_with(" 8"));
    assert_ne!(lines[0][..16], lines[1][..16]);
    // 1 followed by 'x' (0x78) is below the polynomial.
    assert_eq!(lines[2], "0000000000000178 1");
    assert!(
        run("fingerprint", &[], &[vec![]])
            .unwrap_err()
            .to_string()
            .contains("empty")
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn fingerprint_is_independent_of_split_and_merge(
        bytes in proptest::collection::vec(any::<u8>(), 1..2000),
        cuts in proptest::collection::vec(any::<u16>(), 0..6),
        order in any::<u64>(),
    ) {
        let wanted = fold("fingerprint", &[], &bytes).unwrap();
        let mut ends: Vec<_> = cuts.iter().map(|cut| usize::from(*cut) % bytes.len()).collect();
        ends.extend([0, bytes.len()]);
        ends.sort_unstable();
        let mut pieces: Vec<_> = ends.windows(2).map(|pair| (pair[0], &bytes[pair[0]..pair[1]])).collect();
        let turn = usize::try_from(order % pieces.len() as u64).unwrap();
        pieces.rotate_left(turn);
        let mut folds: Vec<_> = (0..2).map(|_| fold_builtin("fingerprint", &[]).unwrap()).collect();
        for (number, (offset, piece)) in pieces.into_iter().enumerate() {
            folds[(number + turn) % 2].update(offset as u64, piece).unwrap();
        }
        let state = folds.pop().unwrap().state().unwrap();
        let mut fold = folds.pop().unwrap();
        fold.merge(&state).unwrap();
        let mut result = Vec::new();
        fold.finish(&mut result).unwrap();
        prop_assert_eq!(result, wanted);
    }
}

#[test]
fn dedup_keeps_equal_chunks_once() {
    let chance: Vec<u8> = blake3::Hasher::new().finalize_xof().take_bytes(300_000);
    let twice = [chance.clone(), chance.clone()];
    let line = run("dedup", &["size=1024"], &twice).unwrap();
    let numbers: Vec<u64> = line
        .split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect();
    assert_eq!(
        (numbers[0], numbers[2], numbers[1]),
        (600_000, 300_000, 2 * numbers[3])
    );
    let list = run("dedup", &["size=1024", "out=chunks"], &twice).unwrap();
    let mut next = (0, 0);
    for line in list.lines() {
        let words: Vec<_> = line.split(' ').collect();
        let input: usize = words[0].parse().unwrap();
        let (offset, length): (usize, usize) =
            (words[1].parse().unwrap(), words[2].parse().unwrap());
        if input != next.0 {
            assert_eq!(next.1, 300_000);
            next = (input, 0);
        }
        assert_eq!(offset, next.1);
        assert_eq!(
            words[3],
            blake3::hash(&twice[input][offset..offset + length]).to_string()
        );
        next.1 += length;
    }
    assert_eq!(next, (1, 300_000));
    assert!(
        run("dedup", &["size=100"], &twice)
            .unwrap_err()
            .to_string()
            .contains("256 to 2097152")
    );
    assert_eq!(run("dedup", &[], &[vec![]]).unwrap(), "0 0 0 0\n");
}

trait TakeBytes {
    fn take_bytes(self, count: usize) -> Vec<u8>;
}

impl TakeBytes for blake3::OutputReader {
    fn take_bytes(mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.fill(&mut bytes);
        bytes
    }
}
