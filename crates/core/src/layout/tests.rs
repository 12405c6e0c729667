//! Layouts against a file that knows of each byte where it is.

use super::*;
use proptest::prelude::*;

/// Where a byte is.
type Byte = Option<(usize, u64)>;

fn part(object: u64, size: u64) -> Part {
    let element = ElementId(u32::try_from(object).unwrap());
    Part::on(ObjectId(object), size, element)
}

fn striped(unit: u64, width: usize, size: u64) -> Layout {
    let parts = (0..width).map(|index| {
        let size = Striped::part_size(unit, width, size, index);
        part(index as u64 + 1, size)
    });
    let parts = parts.collect();
    Layout::Striped(Striped { unit, size, parts })
}

/// As Active Storage says it, byte by byte.
fn striped_bytes(unit: u64, width: usize, size: u64) -> Vec<Byte> {
    let mut next = vec![0; width];
    let byte = |offset: u64| {
        let part = usize::try_from(offset / unit).unwrap() % width;
        next[part] += 1;
        Some((part, next[part] - 1))
    };
    (0..size).map(byte).collect()
}

/// What each of several writers wrote: offsets and lengths in the file, one after the other in its object.
fn written(writers: &[Vec<(u64, u64)>]) -> (Layout, Vec<Byte>) {
    let mut extents = Extents::default();
    let mut bytes: Vec<Byte> = Vec::new();
    for (index, writes) in writers.iter().enumerate() {
        let mut at = 0;
        let mut pieces = Vec::new();
        for &(offset, length) in writes {
            pieces.push((offset, at, length));
            let end = usize::try_from(offset + length).unwrap();
            bytes.resize(bytes.len().max(end), None);
            for byte in 0..length {
                bytes[usize::try_from(offset + byte).unwrap()] = Some((index, at + byte));
            }
            at += length;
        }
        extents.add(part(index as u64 + 1, at), &pieces).unwrap();
    }
    (Layout::Extents(extents), bytes)
}

fn layouts() -> impl Strategy<Value = (Layout, Vec<Byte>)> {
    let whole = (0..200_u64).prop_map(|size| {
        let bytes = (0..size).map(|offset| Some((0, offset))).collect();
        (Layout::Whole(part(1, size)), bytes)
    });
    let stripes = (1..20_u64, 1..6_usize, 0..200_u64).prop_map(|(unit, width, size)| {
        (striped(unit, width, size), striped_bytes(unit, width, size))
    });
    let write = (0..150_u64, 1..40_u64);
    let writers = proptest::collection::vec(proptest::collection::vec(write, 1..8), 1..5);
    prop_oneof![whole, stripes, writers.prop_map(|all| written(&all))]
}

/// The bytes that pieces say.
fn bytes_of(pieces: impl Iterator<Item = Piece>) -> Vec<(u64, Byte)> {
    pieces
        .flat_map(|piece| {
            let byte = move |within: u64| {
                let at = piece.at.map(|at| (at.part, at.offset + within));
                (piece.offset + within, at)
            };
            (0..piece.length).map(byte)
        })
        .collect()
}

proptest! {
    #[test]
    fn every_byte_is_where_it_was_put((layout, bytes) in layouts(), start in 0..250_u64, length in 0..250_u64) {
        prop_assert_eq!(layout.size(), bytes.len() as u64);
        let all: Vec<(u64, Byte)> = (0..).zip(bytes.iter().copied()).collect();
        let end = start + length;
        let asked: Vec<(u64, Byte)> =
            all.iter().copied().filter(|(offset, _)| (start..end).contains(offset)).collect();
        let told: Vec<Piece> = layout.pieces(start..end).collect();
        prop_assert_eq!(&bytes_of(told.iter().copied()), &asked);
        // Each piece is as long as it can be.
        for pair in told.windows(2) {
            let follows = match (pair[0].at, pair[1].at) {
                (Some(one), Some(next)) => {
                    let many = layout.parts().len() > 1 || !matches!(layout, Layout::Striped(_));
                    many && one.part == next.part && one.offset + pair[0].length == next.offset
                }
                (one, next) => one.is_none() && next.is_none(),
            };
            prop_assert!(!follows, "{:?}", pair);
        }
        // What elements are asked for is just that.
        let mut spans: Vec<(usize, u64)> = layout
            .spans(start..end)
            .into_iter()
            .flat_map(|(part, span)| span.map(move |byte| (part, byte)))
            .collect();
        let mut needed: Vec<(usize, u64)> = asked.iter().filter_map(|(_, byte)| *byte).collect();
        spans.sort_unstable();
        needed.sort_unstable();
        prop_assert_eq!(spans, needed);
    }

    #[test]
    fn parts_know_which_bytes_of_the_file_they_are((layout, bytes) in layouts(), part in 0..6_usize, start in 0..100_u64, length in 0..100_u64) {
        let range = start..start + length;
        let pieces = layout.pieces_of(part, range.clone());
        let mut expected: Vec<(u64, Byte)> = (0..)
            .zip(bytes.iter().copied())
            .filter(|(_, byte)| byte.is_some_and(|(of, at)| of == part && range.contains(&at)))
            .collect();
        expected.sort_unstable_by_key(|(_, byte)| *byte);
        prop_assert_eq!(bytes_of(pieces.into_iter()), expected);
    }

    #[test]
    fn what_makes_sense_is_accepted((layout, bytes) in layouts(), size in 0..200_u64) {
        if let Layout::Striped(striped) = &layout {
            let sizes: u64 = striped.parts.iter().map(|part| part.size).sum();
            prop_assert_eq!(sizes, striped.size);
        } else {
            prop_assert_eq!(layout.check(), Ok(()));
        }
        if let Layout::Extents(mut extents) = layout {
            extents.set_size(size);
            let cut: Vec<Byte> = (0..size)
                .map(|offset| bytes.get(usize::try_from(offset).unwrap()).copied().flatten())
                .collect();
            let layout = Layout::Extents(extents);
            prop_assert_eq!(layout.check(), Ok(()));
            let told: Vec<Byte> = bytes_of(layout.pieces(0..u64::MAX)).into_iter().map(|(_, at)| at).collect();
            prop_assert_eq!(told, cut);
        }
    }
}

#[test]
fn stripes_by_hand() {
    let layout = striped(4096, 3, 10 * 4096 + 5);
    let sizes: Vec<u64> = layout.parts().iter().map(|part| part.size).collect();
    assert_eq!(sizes, [4 * 4096, 3 * 4096 + 5, 3 * 4096]);
    assert_eq!(layout.check(), Ok(()));
    assert_eq!(
        layout.spans(4096..5 * 4096),
        [(0, 4096..8192), (1, 0..8192), (2, 0..4096)]
    );
    // One element's stripes are one run, however many there are.
    assert_eq!(striped(4096, 1, 1 << 40).pieces(0..1 << 40).count(), 1);
    assert_eq!(striped(4096, 4, 1 << 40).spans(0..1 << 40).len(), 4);
}

#[test]
fn every_copy_that_can_be_read_counts() {
    let mut layout = striped(4096, 2, 3 * 4096);
    let state = |state| Copy {
        element: ElementId(7),
        state,
    };
    layout.parts_mut()[0].copies.push(state(CopyState::Current));
    layout.parts_mut()[1].copies.push(state(CopyState::Coming));
    let counted = |bytes: BTreeMap<ElementId, u64>| -> Vec<(u32, u64)> {
        bytes
            .into_iter()
            .map(|(element, bytes)| (element.0, bytes))
            .collect()
    };
    let whole = counted(layout.bytes_by_element(0..u64::MAX));
    assert_eq!(whole, [(1, 8192), (2, 4096), (7, 8192)]);
    let first = counted(layout.bytes_by_element(0..100));
    assert_eq!(first, [(1, 100), (7, 100)]);
    assert!(layout.is_readable());
    layout.parts_mut()[1].copies[0].state = CopyState::Lost;
    assert!(!layout.is_readable());
}

/// Layouts come from databases and from others' messages.
#[test]
fn what_contradicts_itself_is_refused() {
    for (unit, width) in [
        (0, 2),
        (4095, 2),
        (UNIT_MAX + UNIT_GRAIN, 2),
        (4096, 0),
        (4096, WIDTH_MAX + 1),
    ] {
        assert!(Striped::check_form(unit, width).is_err(), "{unit} {width}");
    }
    let mut short = striped(4096, 2, 8192);
    // What a part lacks is zeros; it can't have more than its place takes.
    short.parts_mut()[1].size = 7;
    assert_eq!(short.check(), Ok(()));
    short.parts_mut()[1].size = 4097;
    let asked = LayoutError::Length {
        part: 1,
        has: 4097,
        asked: 4096,
    };
    assert_eq!(short.check(), Err(asked));
    let mut twice = Layout::Whole(part(1, 10));
    let copy = twice.parts()[0].copies[0];
    twice.parts_mut()[0].copies.push(copy);
    assert_eq!(twice.check(), Err(LayoutError::Copies(0)));
    twice.parts_mut()[0].copies.clear();
    assert_eq!(twice.check(), Err(LayoutError::Copies(0)));
    let extent = |offset, length, part, within| Extent {
        offset,
        length,
        at: Within {
            part,
            offset: within,
        },
    };
    for pieces in [
        vec![extent(0, 0, 0, 0)],
        vec![extent(0, 11, 0, 0)],
        vec![extent(0, 5, 1, 0)],
        vec![extent(5, 6, 0, 0)],
        vec![extent(3, 2, 0, 0), extent(4, 2, 0, 2)],
        vec![extent(4, 2, 0, 0), extent(0, 2, 0, 2)],
        vec![extent(u64::MAX, 2, 0, 0)],
        vec![extent(0, 2, 0, u64::MAX)],
    ] {
        let extents = Extents {
            size: 10,
            parts: vec![part(1, 10)],
            pieces,
        };
        assert!(
            Layout::Extents(extents.clone()).check().is_err(),
            "{extents:?}"
        );
    }
    let mut extents = Extents::default();
    for piece in [(0, 0, 0), (0, 6, 5), (u64::MAX, 0, 1), (0, u64::MAX, 2)] {
        let refused = extents.add(part(1, 10), &[(3, 0, 2), piece]);
        assert_eq!(refused, Err(LayoutError::Piece(piece.0)));
        assert_eq!(extents, Extents::default());
    }
}

#[test]
fn what_a_part_is_of_is_kept_as_bytes() {
    let part = PartOf {
        version: ObjectId(1 << 59),
        index: 2,
        width: 3,
        unit: 4096,
    };
    assert_eq!(PartOf::from_bytes(&part.to_bytes()), Some(part));
    for wrong in [
        PartOf { index: 3, ..part },
        PartOf { unit: 1, ..part },
        PartOf { width: 0, ..part },
        PartOf {
            width: u64::MAX,
            ..part
        },
    ] {
        assert_eq!(PartOf::from_bytes(&wrong.to_bytes()), None);
    }
    assert_eq!(PartOf::from_bytes(&[0; 31]), None);
}

#[test]
fn stripes_are_written_as_they_are_read() {
    let stripes = |unit, width| Stripes { unit, width };
    for (text, read) in [
        ("1MiB", stripes(1 << 20, 0)),
        ("4096,3", stripes(4096, 3)),
        (" 64 KiB , 2 ", stripes(64 << 10, 2)),
        ("1GiB,1024", stripes(1 << 30, 1024)),
    ] {
        assert_eq!(text.parse(), Ok(read), "{text}");
        assert_eq!(read.to_string().parse(), Ok(read), "{read}");
    }
    for text in [
        "",
        "MiB",
        "1MB",
        "1M",
        "1MiB,0",
        "1MiB,x",
        "0",
        "4097",
        "2GiB",
        "1MiB,1025",
        "-4096",
        "99999999999999999999",
    ] {
        assert!(text.parse::<Stripes>().is_err(), "{text}");
    }
}

proptest! {
    /// The file ends with the last byte that a part has.
    #[test]
    fn lengths_of_parts_say_the_length_of_the_file(unit in 1..9_u64, sizes in proptest::collection::vec(0..40_u64, 1..6)) {
        let size = Striped::size_of(unit, &sizes).unwrap();
        let width = sizes.len();
        let holds = |size| (0..width).map(|part| Striped::part_size(unit, width, size, part)).collect::<Vec<_>>();
        let fits = |size| holds(size).iter().zip(&sizes).all(|(takes, has)| has <= takes);
        prop_assert!(fits(size));
        prop_assert!(size == 0 || !fits(size - 1));
        prop_assert_eq!(Striped::size_of(unit, &holds(size)), Some(size));
    }
}

/// Bounds of numbers are no bounds of files that lie in them.
#[test]
fn the_greatest_files_overflow_nothing() {
    let size = u64::MAX;
    for layout in [
        Layout::Whole(part(1, size)),
        striped(UNIT_MAX, WIDTH_MAX, size),
    ] {
        let last = layout.pieces(size - 3..size).last().unwrap();
        assert_eq!((last.offset, last.length), (size - 3, 3));
        let at = last.at.unwrap();
        let back = layout.pieces_of(at.part, at.offset..at.offset + 3);
        assert_eq!(back, [last]);
        assert!(layout.pieces(size..size).next().is_none());
        let spans = layout.spans(0..size).into_iter();
        assert_eq!(
            spans.map(|(_, span)| span.end - span.start).sum::<u64>(),
            size
        );
    }
    assert_eq!(Striped::size_of(UNIT_MAX, &[size, 1]), None);
    let mut extents = Extents::default();
    extents.add(part(1, 1), &[(size - 1, 0, 1)]).unwrap();
    assert_eq!(extents.size, size);
    let layout = Layout::Extents(extents);
    assert_eq!(layout.pieces(0..size).count(), 2);
}
