//! Tests of layouts against a reference that stores the part and position of each byte of a file.

use super::*;
use proptest::prelude::*;

/// Part and position of a byte; `None` for a hole.
type Byte = Option<(usize, u64)>;

fn part(object: u64, size: u64) -> Part {
    let node = NodeId(u32::try_from(object).unwrap());
    Part::on(ObjectId(object), size, node)
}

fn striped(unit: u64, width: usize, size: u64) -> Layout {
    let parts = (0..width).map(|index| {
        let size = StripedLayout::part_size(unit, width, size, index);
        part(index as u64 + 1, size)
    });
    let parts = parts.collect();
    Layout::Striped(StripedLayout { unit, size, parts })
}

fn ranges_of(start: u64, length: u64) -> Range<u64> {
    start..start + length
}

/// Returns the stripes as Active Storage defines them, byte by byte.
fn striped_bytes(unit: u64, width: usize, size: u64) -> Vec<Byte> {
    let mut next = vec![0; width];
    let byte = |offset: u64| {
        let part = usize::try_from(offset / unit).unwrap() % width;
        next[part] += 1;
        Some((part, next[part] - 1))
    };
    (0..size).map(byte).collect()
}

/// Returns the layout of several writers' writes: (offset, length) in the file, one after the other in the writer's object.
fn written(writers: &[Vec<(u64, u64)>]) -> (Layout, Vec<Byte>) {
    let mut extents = Extents::default();
    let mut bytes: Vec<Byte> = Vec::new();
    for (index, writes) in writers.iter().enumerate() {
        let mut at = 0;
        extents.parts.push(part(index as u64 + 1, 0));
        for &(offset, length) in writes {
            extents.put(extent(offset, length, index, at)).unwrap();
            let end = usize::try_from(offset + length).unwrap();
            bytes.resize(bytes.len().max(end), None);
            for byte in 0..length {
                bytes[usize::try_from(offset + byte).unwrap()] = Some((index, at + byte));
            }
            at += length;
        }
        assert_eq!(extents.parts[index].size, at);
    }
    (Layout::Extents(extents), bytes)
}

fn extent(offset: u64, length: u64, part: usize, within: u64) -> Extent {
    let at = PartPosition {
        part,
        offset: within,
    };
    Extent { offset, length, at }
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

/// Returns the part and position of each byte of the segments.
fn bytes_of(segments: impl Iterator<Item = Segment>) -> Vec<(u64, Byte)> {
    segments
        .flat_map(|segment| {
            let byte = move |within: u64| {
                let at = segment.at.map(|at| (at.part, at.offset + within));
                (segment.offset + within, at)
            };
            (0..segment.length).map(byte)
        })
        .collect()
}

proptest! {
    #[test]
    fn layout_segments_return_each_byte_of_range((layout, bytes) in layouts(), start in 0..250_u64, length in 0..250_u64) {
        prop_assert_eq!(layout.size(), bytes.len() as u64);
        let all: Vec<(u64, Byte)> = (0..).zip(bytes.iter().copied()).collect();
        let end = start + length;
        let asked: Vec<(u64, Byte)> =
            all.iter().copied().filter(|(offset, _)| (start..end).contains(offset)).collect();
        let found: Vec<Segment> = layout.segments(start..end).collect();
        prop_assert_eq!(&bytes_of(found.iter().copied()), &asked);
        // Each segment is as long as possible.
        for pair in found.windows(2) {
            let follows = match (pair[0].at, pair[1].at) {
                (Some(one), Some(next)) => {
                    let many = layout.parts().len() > 1 || !matches!(layout, Layout::Striped(_));
                    many && one.part == next.part && one.offset + pair[0].length == next.offset
                }
                (one, next) => one.is_none() && next.is_none(),
            };
            prop_assert!(!follows, "{:?}", pair);
        }
        // The ranges requested from nodes are exactly these.
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
    fn read_plan_returns_each_byte_from_the_best_replicas(
        (layout, bytes) in layouts(),
        cuts in proptest::collection::vec(0..30_u64, 6),
        states in proptest::collection::vec(proptest::collection::vec(0..3_usize, 1..4), 6),
        (start, length, avoid) in (0..250_u64, 0..250_u64, 0..4_u32),
    ) {
        let mut layout = layout;
        let is_striped = matches!(layout, Layout::Striped(_));
        for (index, part) in layout.parts_mut().iter_mut().enumerate() {
            // The end of a part may never have been written.
            part.size -= if is_striped { cuts[index].min(part.size) } else { 0 };
            let all = [ReplicaState::Current, ReplicaState::Corrupt, ReplicaState::Coming];
            let replica = |(node, state): (u32, &usize)| Replica {
                node: NodeId(10 * u32::try_from(index).unwrap() + node),
                state: all[*state],
            };
            part.replicas = (0..).zip(&states[index]).map(replica).collect();
        }
        let is_avoided = |node: NodeId| node.0 % 10 == avoid;
        let stored = |part: usize, at: u64| u8::try_from((part as u64 * 101 + at * 7) % 250 + 1).unwrap();
        let end = (start + length).min(layout.size());
        let start = start.min(end);
        let plan = layout.plan_read(start..end, is_avoided);
        let mut asked: Vec<(usize, u64)> = Vec::new();
        let mut fetched = Vec::new();
        for fetch in plan {
            let part = &layout.parts()[fetch.part];
            prop_assert!(!fetch.bytes.is_empty() && fetch.bytes.end <= part.size);
            let readable = |avoided: bool| {
                let nodes = part.current().map(|replica| replica.node);
                nodes.filter(move |&node| is_avoided(node) == avoided)
            };
            let expected: Vec<NodeId> = readable(false).chain(readable(true)).collect();
            prop_assert_eq!(&fetch.nodes, &expected);
            asked.extend(fetch.bytes.clone().map(|at| (fetch.part, at)));
            let answer: Vec<u8> = fetch.bytes.clone().map(|at| stored(fetch.part, at)).collect();
            fetched.push((fetch, answer));
        }
        let held = |byte: &Byte| byte.filter(|&(part, at)| at < layout.parts()[part].size);
        let of_range = &bytes[usize::try_from(start).unwrap()..usize::try_from(end).unwrap()];
        let mut needed: Vec<(usize, u64)> = of_range.iter().filter_map(held).collect();
        needed.sort_unstable();
        prop_assert_eq!(asked, needed);
        let expected: Vec<u8> =
            of_range.iter().map(|byte| held(byte).map_or(0, |(part, at)| stored(part, at))).collect();
        prop_assert_eq!(&layout.assemble(start..end, &fetched), &expected);
        // A node that returned too few bytes moves no other bytes.
        for (_, answer) in &mut fetched {
            answer.pop();
        }
        let short = layout.assemble(start..end, &fetched);
        prop_assert_eq!(short.len(), expected.len());
        prop_assert!(short.iter().zip(&expected).all(|(one, whole)| *one == 0 || one == whole));
    }

    #[test]
    fn segments_of_part_return_its_bytes_of_the_file((layout, bytes) in layouts(), part in 0..6_usize, start in 0..100_u64, length in 0..100_u64) {
        let range = start..start + length;
        let segments = layout.segments_of(part, range.clone());
        let mut expected: Vec<(u64, Byte)> = (0..)
            .zip(bytes.iter().copied())
            .filter(|(_, byte)| byte.is_some_and(|(of, at)| of == part && range.contains(&at)))
            .collect();
        expected.sort_unstable_by_key(|(_, byte)| *byte);
        prop_assert_eq!(bytes_of(segments.into_iter()), expected);
    }

    #[test]
    fn valid_layout_passes_check_and_round_trips((layout, bytes) in layouts(), size in 0..200_u64) {
        if let Layout::Striped(striped) = &layout {
            let sizes: u64 = striped.parts.iter().map(|part| part.size).sum();
            prop_assert_eq!(sizes, striped.size);
        } else {
            prop_assert_eq!(layout.check(), Ok(()));
        }
        if let Layout::Extents(mut extents) = layout {
            let kept = encode_extents(extents.extents());
            let back = Extents::of(extents.size, extents.parts.clone(), decode_extents(&kept).unwrap());
            prop_assert_eq!(back.as_ref(), Ok(&extents));
            let joined = |pair: &[Extent]| pair[0].end() == pair[1].offset && pair[0].at.part == pair[1].at.part
                && pair[0].end_within() == pair[1].at.offset;
            let list: Vec<Extent> = extents.extents().copied().collect();
            prop_assert!(!list.windows(2).any(joined), "{:?}", list);
            extents.set_size(size);
            let cut: Vec<Byte> = (0..size)
                .map(|offset| bytes.get(usize::try_from(offset).unwrap()).copied().flatten())
                .collect();
            let layout = Layout::Extents(extents.clone());
            prop_assert_eq!(layout.check(), Ok(()));
            let objects = |extents: &Extents| -> Vec<Option<(ObjectId, u64)>> {
                let of = |byte: Byte| byte.map(|(part, at)| (extents.parts[part].object, at));
                let layout = Layout::Extents(extents.clone());
                bytes_of(layout.segments(0..u64::MAX)).into_iter().map(|(_, at)| of(at)).collect()
            };
            let mut pruned = extents.clone();
            let gone = pruned.prune();
            prop_assert_eq!(objects(&pruned), objects(&extents));
            prop_assert_eq!(gone.len() + pruned.parts.len(), extents.parts.len());
            let found: Vec<Byte> = bytes_of(layout.segments(0..u64::MAX)).into_iter().map(|(_, at)| at).collect();
            prop_assert_eq!(found, cut);
        }
    }
}

/// Returns byte ranges in order with gaps between them, within `size` bytes.
fn cut(size: u64, steps: &[(u64, u64)]) -> Vec<Range<u64>> {
    let mut at = 0;
    let mut ranges = Vec::new();
    for &(gap, length) in steps {
        let range = at + gap..at + gap + length;
        if range.end > size {
            break;
        }
        at = range.end;
        ranges.push(range);
    }
    ranges
}

proptest! {
    #[test]
    fn selection_reads_its_bytes_and_no_others(
        (mut layout, mut bytes) in layouts(),
        part in proptest::option::of(0..7_u32),
        steps in proptest::option::of(proptest::collection::vec((0..20_u64, 1..30_u64), 1..9)),
        lacks in (0..6_usize, 0..40_u64),
    ) {
        // Bytes that an object of a striped version lacks at its end are zeros.
        let lengths: Vec<u64> = (0..layout.parts().len()).filter_map(|part| layout.part_length(part)).collect();
        if let (Layout::Striped(striped), (short, by)) = (&mut layout, lacks)
            && let Some(short_part) = striped.parts.get_mut(short)
        {
            short_part.size = short_part.size.saturating_sub(by);
            let has = short_part.size;
            for byte in &mut bytes {
                *byte = byte.filter(|&(of, at)| of != short || at < has);
            }
        }
        let index = part.map(|part| usize::try_from(part).unwrap());
        let source: Vec<Byte> = match index {
            None => bytes,
            Some(index) => match layout.parts().get(index) {
                Some(has) => (0..lengths[index]).map(|at| (at < has.size).then_some((index, at))).collect(),
                None => {
                    let refused = layout.selected(&Selection::part(part.unwrap())).unwrap_err();
                    let parts = layout.parts().len();
                    prop_assert_eq!(refused, SelectionError::NoPart { part: part.unwrap(), parts });
                    return Ok(());
                }
            },
        };
        let size = source.len() as u64;
        let ranges = steps.map(|steps| cut(size, &steps)).filter(|ranges| !ranges.is_empty());
        let selection = match &ranges {
            Some(ranges) => Selection::ranges(part, ranges).unwrap(),
            None => part.map_or(Selection::WHOLE, Selection::part),
        };
        let at = |offset: u64| source[usize::try_from(offset).unwrap()];
        let expected: Vec<Byte> = match &ranges {
            Some(ranges) => ranges.iter().cloned().flatten().map(at).collect(),
            None => source.clone(),
        };
        let selected = layout.selected(&selection).unwrap();
        prop_assert_eq!(selected.length(), expected.len() as u64);
        prop_assert_eq!(selection.to_string().parse(), Ok(selection.clone()));
        let mut found: Vec<Byte> = vec![None; expected.len()];
        let mut counted: BTreeMap<usize, u64> = BTreeMap::new();
        for span in selected.spans() {
            // The bytes arrive in two pieces.
            let half = span.bytes.start + (span.bytes.end - span.bytes.start) / 2;
            let halves = [span.bytes.start..half, half..span.bytes.end];
            let places = halves.into_iter().flat_map(|bytes| selected.places(&span, bytes));
            for (offset, byte) in bytes_of(places) {
                let place = &mut found[usize::try_from(offset).unwrap()];
                prop_assert_eq!(*place, None, "byte {} comes twice", offset);
                *place = byte;
                *counted.entry(span.part).or_default() += 1;
            }
        }
        prop_assert_eq!(found, expected);
        let by_part = selected.bytes_by_part();
        let nodes = by_part.iter().map(|(&part, &bytes)| (layout.parts()[part].replicas[0].node, bytes));
        let nodes: BTreeMap<NodeId, u64> = nodes.collect();
        prop_assert_eq!(&by_part, &counted);
        prop_assert_eq!(selected.bytes_by_node(), nodes);
        if let Layout::Whole(_) = layout {
            prop_assert_eq!(selection.bytes_of(size), selected.length());
        }
        if let Some((start, end)) = ranges.and_then(|ranges| Some((ranges.first()?.start, size + 1))) {
            let behind = Selection::ranges(part, std::slice::from_ref(&(start..end))).unwrap();
            let refused = layout.selected(&behind).unwrap_err();
            prop_assert_eq!(refused, SelectionError::Beyond { last: size, size, part: part.is_some() });
        }
    }
}

/// Selections are read from scripts, databases and messages of other processes.
#[test]
fn invalid_selections_are_refused() {
    let of = |ranges: &[Range<u64>]| Selection::ranges(None, ranges).map(|one| one.to_string());
    assert_eq!(of(&[]), Err(SelectionError::NoRange));
    assert_eq!(of(&[ranges_of(5, 0)]), Err(SelectionError::Empty(5)));
    #[expect(clippy::reversed_empty_ranges, reason = "somebody may send it")]
    let backwards = 9..5;
    assert_eq!(of(&[backwards]), Err(SelectionError::Empty(9)));
    assert_eq!(of(&[0..5, 4..9]), Err(SelectionError::Order(4)));
    assert_eq!(of(&[10..11, 0..5]), Err(SelectionError::Order(0)));
    assert_eq!(of(&[0..5, 0..5]), Err(SelectionError::Order(0)));
    let many: Vec<Range<u64>> = (0..=RANGES_MAX as u64)
        .map(|at| ranges_of(2 * at, 1))
        .collect();
    assert_eq!(of(&many), Err(SelectionError::Ranges(RANGES_MAX + 1)));
    assert!(of(&many[1..]).is_ok());
    // Adjacent ranges are merged, and equal bytes are equal selections.
    assert_eq!(of(&[0..5, 5..9]).unwrap(), "bytes 0-8");
    let all = std::iter::once(0..u64::MAX).collect::<Vec<_>>();
    let all = Selection::ranges(Some(u32::MAX), &all).unwrap();
    assert_eq!(all.to_string().parse(), Ok(all.clone()));
    assert_eq!(all.bytes_of(7), 0);
    assert_eq!(all.of_whole().bytes_of(7), 7);
    let layout = striped(4096, 2, 8192);
    let beyond = layout.selected(&all.of_whole()).unwrap_err().to_string();
    assert_eq!(
        beyond,
        "bytes up to 18446744073709551614 are asked for, and it has 8192"
    );
    let text = |text: &str| text.parse::<Selection>();
    assert_eq!(
        text("part 2 bytes 0-9,20-29").unwrap().to_string(),
        "part 2 bytes 0-9,20-29"
    );
    assert_eq!(text(""), Ok(Selection::WHOLE));
    for wrong in [
        "part",
        "part ",
        "part -1",
        "part 4294967296",
        "bytes ",
        "bytes 1",
        "bytes 1-",
        "bytes -1",
        "bytes +1-2",
        "bytes 0-18446744073709551615",
        "bytes 0-1,",
        "part 1 0-2",
        "all",
        "bytes a-b",
    ] {
        assert!(
            matches!(text(wrong), Err(SelectionError::Text(_))),
            "{wrong}"
        );
    }
    assert_eq!(text("bytes 5-4"), Err(SelectionError::Empty(5)));
    let long = "x".repeat(1 << 20);
    assert!(text(&long).unwrap_err().to_string().len() < 200);
}

#[test]
fn striped_layout_matches_hand_computed_example() {
    let layout = striped(4096, 3, 10 * 4096 + 5);
    let sizes: Vec<u64> = layout.parts().iter().map(|part| part.size).collect();
    assert_eq!(sizes, [4 * 4096, 3 * 4096 + 5, 3 * 4096]);
    assert_eq!(layout.check(), Ok(()));
    assert_eq!(
        layout.spans(4096..5 * 4096),
        [(0, 4096..8192), (1, 0..8192), (2, 0..4096)]
    );
    // The stripes of one node are one run, whatever their number.
    assert_eq!(striped(4096, 1, 1 << 40).segments(0..1 << 40).count(), 1);
    assert_eq!(striped(4096, 4, 1 << 40).spans(0..1 << 40).len(), 4);
}

#[test]
fn bytes_by_node_count_every_readable_replica() {
    let mut layout = striped(4096, 2, 3 * 4096);
    let state = |state| Replica {
        node: NodeId(7),
        state,
    };
    layout.parts_mut()[0]
        .replicas
        .push(state(ReplicaState::Current));
    layout.parts_mut()[1]
        .replicas
        .push(state(ReplicaState::Coming));
    let counted = |bytes: BTreeMap<NodeId, u64>| -> Vec<(u32, u64)> {
        bytes
            .into_iter()
            .map(|(node, bytes)| (node.0, bytes))
            .collect()
    };
    let of = |selection: &Selection| counted(layout.selected(selection).unwrap().bytes_by_node());
    let first = Selection::ranges(None, &[ranges_of(0, 100)]).unwrap();
    assert_eq!(of(&Selection::WHOLE), [(1, 8192), (2, 4096), (7, 8192)]);
    assert_eq!(of(&first), [(1, 100), (7, 100)]);
    assert_eq!(of(&Selection::part(1)), [(2, 4096)]);
    assert!(layout.is_readable());
    layout.parts_mut()[1].replicas[0].state = ReplicaState::Failed;
    assert!(!layout.is_readable());
}

/// Layouts are read from databases and from messages of other processes.
#[test]
fn layout_check_refuses_contradictory_layouts() {
    for (unit, width) in [
        (0, 2),
        (4095, 2),
        (UNIT_MAX + UNIT_GRAIN, 2),
        (4096, 0),
        (4096, WIDTH_MAX + 1),
    ] {
        assert!(
            StripedLayout::check_form(unit, width).is_err(),
            "{unit} {width}"
        );
    }
    let mut short = striped(4096, 2, 8192);
    // Bytes that a part lacks are zeros; a part can't be longer than its place.
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
    let replica = twice.parts()[0].replicas[0];
    twice.parts_mut()[0].replicas.push(replica);
    assert_eq!(twice.check(), Err(LayoutError::Replicas(0)));
    twice.parts_mut()[0].replicas.clear();
    assert_eq!(twice.check(), Err(LayoutError::Replicas(0)));
    for list in [
        vec![extent(0, 0, 0, 0)],
        vec![extent(0, 11, 0, 0)],
        vec![extent(0, 5, 1, 0)],
        vec![extent(5, 6, 0, 0)],
        vec![extent(3, 2, 0, 0), extent(4, 2, 0, 2)],
        vec![extent(4, 2, 0, 0), extent(0, 2, 0, 2)],
        vec![extent(u64::MAX, 2, 0, 0)],
        vec![extent(0, 2, 0, u64::MAX)],
    ] {
        let extents = Extents::of(10, vec![part(1, 10)], list.clone());
        assert!(extents.is_err(), "{list:?}");
    }
    let mut extents = Extents::default();
    extents.parts.push(part(1, 0));
    let before = extents.clone();
    for extent in [
        extent(0, 0, 0, 0),
        extent(7, 1, 1, 0),
        extent(u64::MAX, 1, 0, 0),
        extent(0, 2, 0, u64::MAX),
    ] {
        let refused = extents.put(extent);
        assert_eq!(refused, Err(LayoutError::Extent(extent.offset)));
        assert_eq!(extents, before);
    }
    for bytes in [&[1][..], &[0x80; 8], &[0xff; 40], &[0, 0, 0, 0], &[1, 2, 3]] {
        assert!(decode_extents(bytes).is_err(), "{bytes:?}");
    }
}

#[test]
fn extents_beyond_end_of_a_part_become_holes() {
    let mut extents = Extents::default();
    extents.parts.push(part(1, 0));
    extents.put(extent(100, 50, 0, 0)).unwrap();
    extents.put(extent(0, 50, 0, 50)).unwrap();
    extents.parts[0].size = 60;
    extents.cut_to_parts();
    let list: Vec<Extent> = extents.extents().copied().collect();
    assert_eq!(list, [extent(0, 10, 0, 50), extent(100, 50, 0, 0)]);
    assert_eq!(extents.size, 150);
    assert_eq!(Layout::Extents(extents).check(), Ok(()));
}

#[test]
fn extents_are_bounded_in_number() {
    let mut extents = Extents::default();
    extents.parts.push(part(1, 0));
    for at in 0..EXTENTS_MAX as u64 - 1 {
        extents.put(extent(2 * at, 1, 0, at)).unwrap();
    }
    let full = extents.put(extent(1, 1, 0, 0));
    assert_eq!(full, Err(LayoutError::Extents(EXTENTS_MAX + 1)));
    assert_eq!(extents.count(), EXTENTS_MAX - 1);
}

#[test]
fn part_of_round_trips_and_refuses_invalid_bytes() {
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
fn stripes_parse_and_print() {
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
    /// A striped file ends with the last byte of any part.
    #[test]
    fn striped_file_size_follows_from_part_sizes(unit in 1..9_u64, sizes in proptest::collection::vec(0..40_u64, 1..6)) {
        let size = StripedLayout::size_of(unit, &sizes).unwrap();
        let width = sizes.len();
        let holds = |size| (0..width).map(|part| StripedLayout::part_size(unit, width, size, part)).collect::<Vec<_>>();
        let fits = |size| holds(size).iter().zip(&sizes).all(|(takes, has)| has <= takes);
        prop_assert!(fits(size));
        prop_assert!(size == 0 || !fits(size - 1));
        prop_assert_eq!(StripedLayout::size_of(unit, &holds(size)), Some(size));
    }
}

/// Returns the positions at which the records of a file begin, found by reading the file from its beginning.
fn begins(bytes: &[u8], records: &Records) -> Vec<u64> {
    let is = |at: usize| match records {
        Records::Bytes(length) => (at as u64).is_multiple_of(*length),
        Records::Until(end) => at == 0 || bytes[..at].ends_with(end),
    };
    let begins = (0..bytes.len()).filter(|&at| is(at));
    begins.map(|at| at as u64).collect()
}

proptest! {
    /// All parts together have every record once, each record in the part where the record begins. The same holds for chunks.
    #[test]
    fn record_belongs_to_the_part_where_it_begins(
        unit in 1..9_u64,
        width in 1..5_u32,
        bytes in proptest::collection::vec(0..3_u8, 0..90),
        length in 0..12_u64,
        end in proptest::collection::vec(0..3_u8, 1..4),
    ) {
        let size = bytes.len() as u64;
        let layout = striped(unit, width as usize, size);
        let records = match length {
            0 => Records::until(&end).unwrap(),
            bytes => Records::of_bytes(bytes).unwrap(),
        };
        let begins = begins(&bytes, &records);
        let begin = |at: u64| Ok::<_, SelectionError>(begins.iter().copied().find(|&begin| begin >= at).unwrap_or(size));
        let ends = begins.iter().skip(1).copied().chain([size]);
        let all: Vec<Range<u64>> = begins.iter().copied().zip(ends).map(|(begin, end)| begin..end).collect();
        let chunk = |at: u64| {
            let range = at * unit..((at + 1) * unit).min(size);
            Selection::ranges(None, std::slice::from_ref(&range)).unwrap()
        };
        let parts = (0..width).map(Selection::part).collect();
        let chunks = (0..size.div_ceil(unit)).map(chunk).collect();
        let at = |at: u64| usize::try_from(at).unwrap();
        let taken = |range: &Range<u64>| &bytes[at(range.start)..at(range.end)];
        for selections in [parts, chunks] {
            let selections: Vec<Selection> = selections;
            let mut seen = Vec::new();
            for selection in selections {
                let of_bytes = layout.runs(&selection).unwrap();
                let selection = selection.of_records(Some(records.clone()));
                prop_assert_eq!(selection.to_string().parse(), Ok(selection.clone()));
                let found = layout.records(&selection, begin).unwrap();
                let ranges = found.map_or_else(|| of_bytes.clone(), |selected| selected.ranges);
                let own: Vec<_> = all.iter().filter(|record| of_bytes.iter().any(|run| run.contains(&record.start))).collect();
                let read: Vec<u8> = ranges.iter().flat_map(taken).copied().collect();
                let expected: Vec<u8> = own.iter().copied().flat_map(taken).copied().collect();
                prop_assert_eq!(read, expected);
                seen.extend(own);
            }
            prop_assert_eq!(seen.len(), all.len());
        }
    }
}

#[test]
fn invalid_record_selections_are_refused() {
    for wrong in [
        "records",
        "records ",
        "records 0",
        "records -1",
        "records until",
        "records until ",
        "records until 0",
        "records until 0g",
        "records until é",
        "records 67108865",
        "records 8 part 1",
    ] {
        assert!(wrong.parse::<Selection>().is_err(), "{wrong}");
    }
    let long = format!("records until {}", "0a".repeat(65));
    assert_eq!(
        long.parse::<Selection>(),
        Err(SelectionError::RecordEnd(65))
    );
    let many = striped(4096, 1, 1 << 50);
    let lines = Selection::part(0).of_records(Some(Records::until(b"\n").unwrap()));
    // The stripes of one node are one run; the runs of several would be too many.
    assert!(many.records(&lines, Ok::<_, SelectionError>).is_ok());
    let many = striped(4096, 2, 1 << 50)
        .records(&lines, Ok::<_, SelectionError>)
        .err();
    assert_eq!(many, Some(SelectionError::Runs(1 << 37)));
}

/// Layouts of files that end at the largest possible size never overflow.
#[test]
fn layouts_of_largest_files_never_overflow() {
    let size = u64::MAX;
    for layout in [
        Layout::Whole(part(1, size)),
        striped(UNIT_MAX, WIDTH_MAX, size),
    ] {
        let last = layout.segments(size - 3..size).last().unwrap();
        assert_eq!((last.offset, last.length), (size - 3, 3));
        let at = last.at.unwrap();
        let back = layout.segments_of(at.part, at.offset..at.offset + 3);
        assert_eq!(back, [last]);
        assert!(layout.segments(size..size).next().is_none());
        let spans = layout.spans(0..size).into_iter();
        assert_eq!(
            spans.map(|(_, span)| span.end - span.start).sum::<u64>(),
            size
        );
    }
    assert_eq!(StripedLayout::size_of(UNIT_MAX, &[size, 1]), None);
    let mut extents = Extents::default();
    extents.parts.push(part(1, 0));
    extents.put(extent(size - 1, 1, 0, 0)).unwrap();
    assert_eq!(extents.size, size);
    let layout = Layout::Extents(extents);
    assert_eq!(layout.segments(0..size).count(), 2);
}
