use super::*;

/// Returns the content of all fixtures, which the programs gzip 1.12, zstd 1.5.4, lz4 1.9.4 and bzip2 1.0.8 compressed.
fn content() -> Vec<u8> {
    (0..6000)
        .flat_map(|line| format!("{} a line that comes again and again\n", line % 97).into_bytes())
        .collect()
}

/// Kernels that compress, kernels that decompress, and fixtures for each pair.
const CODECS: [(&str, &str, &[&[u8]]); 4] = [
    (
        "gzip",
        "gunzip",
        // The fixture has a name in the first header, and zeros at the end.
        &[include_bytes!("../../../tests/fixtures/two-members.gz")],
    ),
    (
        "zstd",
        "unzstd",
        // The second frame has no checksum and follows a frame to be skipped.
        &[include_bytes!("../../../tests/fixtures/two-frames.zst")],
    ),
    (
        "lz4",
        "unlz4",
        &[
            // Dependent blocks with checksums, and a size; a frame to be skipped; no checksum.
            include_bytes!("../../../tests/fixtures/two-frames.lz4"),
            include_bytes!("../../../tests/fixtures/linked.lz4"),
        ],
    ),
    (
        "bzip2",
        "bunzip2",
        &[include_bytes!("../../../tests/fixtures/two-streams.bz2")],
    ),
];

/// Returns bytes that are neither all alike nor random, more than a block of each format.
fn long() -> Vec<u8> {
    let mut chance = vec![0; 2_200_000];
    blake3::Hasher::new().finalize_xof().fill(&mut chance);
    let text = content();
    let mut long = Vec::new();
    for piece in chance.chunks(100_000) {
        long.extend(piece);
        long.extend(&text);
    }
    long
}

#[test]
fn decompressors_read_files_of_usual_programs_in_any_pieces() {
    let content = content();
    for (_, unpack, fixtures) in CODECS {
        for fixture in fixtures {
            assert_eq!(
                stream(unpack, &[], &[fixture]).unwrap(),
                content,
                "{unpack}"
            );
            let bytes: Vec<_> = fixture.chunks(1).collect();
            assert_eq!(stream(unpack, &[], &bytes).unwrap(), content, "{unpack}");
        }
    }
}

#[test]
fn compressed_content_round_trips_for_any_thread_count() {
    let long = long();
    for (pack, unpack, _) in CODECS {
        for content in [&long[..], b"", b"x"] {
            let packed = stream(pack, &[], &[content]).unwrap();
            let unpacked = stream(unpack, &[], &[&packed]).unwrap();
            assert!(unpacked == content, "{pack}, {} bytes", content.len());
            let twice = stream(pack, &["threads=2"], &pieces(content, &[5_000_000])).unwrap();
            if pack == "zstd" {
                assert!(stream(unpack, &[], &[&twice]).unwrap() == content);
                let thrice = stream(pack, &["threads=3"], &[content]).unwrap();
                assert!(thrice == twice, "{pack}");
            } else {
                assert!(twice == packed, "{pack}");
            }
        }
    }
    for (pack, level, unpack) in [
        ("gzip", "level=1", "gunzip"),
        ("gzip", "level=12", "gunzip"),
        ("zstd", "level=-7", "unzstd"),
        ("zstd", "level=19", "unzstd"),
        ("bzip2", "level=1", "bunzip2"),
    ] {
        let content = &long[..700_000];
        let packed = stream(pack, &[level], &[content]).unwrap();
        assert!(packed.len() < content.len());
        let unpacked = stream(unpack, &[], &[&packed]).unwrap();
        assert!(unpacked == content, "{pack} {level}");
    }
}

#[test]
fn codec_joins_inputs_and_reads_concatenated_streams() {
    let parts = [b"one\n".to_vec(), Vec::new(), b"two\n".to_vec()];
    let mut packed = Vec::new();
    run_builtin("zstd", &[], &files(&parts).names, &mut packed).unwrap();
    let halves = [packed[..9].to_vec(), packed[9..].to_vec()];
    assert_eq!(run("unzstd", &[], &halves).unwrap(), "one\ntwo\n");
    let back = stream_builtin("gunzip", &[], Vec::new()).unwrap();
    let mut there = stream_builtin("gzip", &[], back).unwrap();
    there.write_all(b"there and back").unwrap();
    let back = there.finish().unwrap().finish().unwrap();
    assert_eq!(back, b"there and back");
}

#[test]
fn decompressor_errors_name_cause() {
    for (pack, unpack, fixtures) in CODECS {
        let cut = &fixtures[0][..fixtures[0].len() / 2];
        let error = stream(unpack, &[], &[cut]).unwrap_err();
        assert!(
            error.contains("is it complete?") && error.contains(pack),
            "{unpack}: {error}"
        );
        let error = stream(unpack, &[], &[]).unwrap_err();
        assert!(error.contains("is it complete?"), "{unpack}: {error}");
        let error = stream(unpack, &[], &[b"no such format at all"]).unwrap_err();
        assert!(error.contains("from byte 0"), "{unpack}: {error}");
        let mut more = stream(pack, &[], &[b"content"]).unwrap();
        more.extend(b"and more");
        assert!(stream(unpack, &[], &[&more]).is_err(), "{unpack}");
    }
    let legacy = include_bytes!("../../../tests/fixtures/legacy.lz4");
    let error = stream("unlz4", &[], &[legacy]).unwrap_err();
    assert!(error.contains("legacy"), "{error}");
}

/// Writer that counts its input, and accepts no large pieces.
struct Count(u64);

impl Write for Count {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        assert!(bytes.len() <= 4 << 20, "{} bytes at once", bytes.len());
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn decompression_bomb_expands_in_small_pieces() {
    let zeros = vec![0; 1 << 20];
    for (pack, unpack, _) in CODECS {
        let mut bomb = stream_builtin(pack, &[], Vec::new()).unwrap();
        for _ in 0..64 {
            bomb.write_all(&zeros).unwrap();
        }
        let bomb = bomb.finish().unwrap();
        assert!(bomb.len() < 1 << 20, "{pack}");
        let mut unpacked = stream_builtin(unpack, &[], Count(0)).unwrap();
        unpacked.write_all(&bomb).unwrap();
        assert_eq!(unpacked.finish().unwrap().0, 64 << 20, "{pack}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn codecs_round_trip_any_content_in_any_pieces(
        content in proptest::collection::vec(prop_oneof![3 => Just(7_u8), 1 => any::<u8>()], 0..5000),
        cuts in proptest::collection::vec(any::<usize>(), 0..5),
    ) {
        for (pack, unpack, _) in CODECS {
            let packed = stream(pack, &[], &pieces(&content, &cuts)).unwrap();
            let unpacked = stream(unpack, &[], &pieces(&packed, &cuts)).unwrap();
            prop_assert_eq!(&unpacked, &content);
        }
    }

    #[test]
    fn corrupt_stream_is_error_or_unchanged(
        which in 0..4_usize,
        place in any::<usize>(),
        bit in 0..8,
        cut in any::<usize>(),
        length in 0..200_usize,
    ) {
        let (pack, unpack, _) = CODECS[which];
        let content = &content()[..60_000 + length];
        let packed = stream(pack, &[], &[content]).unwrap();
        let mut flipped = packed.clone();
        flipped[place % packed.len()] ^= 1_u8 << bit;
        if let Ok(unpacked) = stream(unpack, &[], &[&flipped]) {
            prop_assert!(unpacked == content);
        }
        let cut = &packed[..cut % packed.len()];
        prop_assert!(stream(unpack, &[], &[cut]).is_err());
    }

    #[test]
    fn decompressors_never_panic(
        which in 0..4_usize,
        fixture in 0..2_usize,
        changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..20),
        tail in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let (_, unpack, fixtures) = CODECS[which];
        let mut bytes = fixtures[fixture % fixtures.len()].to_vec();
        for (place, value) in changes {
            let place = place % bytes.len();
            bytes[place] = value;
        }
        bytes.extend(tail);
        let _ = stream(unpack, &[], &[&bytes]);
    }
}
