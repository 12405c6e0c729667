//! The request scheduler decides the order in which the agent carries out the labels of one file (LABIOS §3.3.2, "label shuffling"). The
//! scheduler has no effects and uses no file, so its guarantee is tested against the sequential execution of labels.
//!
//! Labels that depend on each other form a **supertask** and keep the order in which they were published: a read after a write of its
//! bytes, a write after a write, a write after a read. Supertasks may run in any order and interleaved: all reads return the same bytes,
//! and the file is the same in the end. So the scheduler merges consecutive writes, even if other labels were published between them.
//!
//! Dependencies of a label:
//!
//! - a write depends on its bytes; a write that truncates the file, or has no bytes and only creates it, on the whole file;
//! - an append depends on the whole file: its offset depends on all other labels;
//! - a read depends on all bytes from its first byte on: its length depends on writes after its end. If the file may not exist, it depends
//!   on the whole file: the first write creates it.
//!
//! Labels that delete and rename separate batches and are not part of them, because only the file system knows the links of a file.

/// Maximum number of labels that are merged into one write.
const PIECES_MAX: usize = 1024;
/// Maximum number of bytes of one merged write, without its last label.
const BYTES_MAX: u64 = 16 << 20;

/// Operation of a label on its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// The label writes at its offset.
    Write,
    /// The label truncates the file to 0 bytes and then writes at its offset.
    Cut,
    /// The label writes at the end of the file.
    Append,
    /// The label reads at its offset.
    Read,
}

/// Operation of a label on its file, as the scheduler sees it.
#[derive(Clone, Copy, Debug)]
pub struct ShuffleOp {
    /// Kind of operation.
    pub deed: OperationKind,
    /// Offset in the file in bytes.
    pub offset: u64,
    /// Number of bytes to read or write.
    pub size: u64,
    /// Whether the label is never merged with other labels, because it was begun before and may already be done.
    pub alone: bool,
}

/// Labels that the agent carries out in one call, by their indices: one label, or writes or appends in the order of their bytes.
pub type LabelGroup = Vec<usize>;

/// Groups of labels that run in this order.
pub type Supertask = Vec<LabelGroup>;

impl ShuffleOp {
    /// Returns the range of bytes that the label depends on, as start and end. `is_there`: the file is known to exist.
    fn span(&self, is_there: bool) -> (u64, u64) {
        let end = self.offset.saturating_add(self.size);
        match self.deed {
            OperationKind::Write if self.size > 0 => (self.offset, end),
            OperationKind::Read if is_there => (self.offset, u64::MAX),
            OperationKind::Write
            | OperationKind::Read
            | OperationKind::Cut
            | OperationKind::Append => (0, u64::MAX),
        }
    }

    /// Whether the label can be merged with the label `before`.
    fn joins(&self, before: &Self) -> bool {
        let follows = match (before.deed, self.deed) {
            (OperationKind::Write | OperationKind::Cut, OperationKind::Write) => {
                before.offset.checked_add(before.size) == Some(self.offset)
            }
            (OperationKind::Append, OperationKind::Append) => true,
            _ => false,
        };
        follows && !self.alone && !before.alone
    }
}

/// Returns the supertasks of a batch, in the order of their first labels. `is_there`: the file is known to exist.
#[must_use]
pub fn supertasks(ops: &[ShuffleOp], is_there: bool) -> Vec<Supertask> {
    let mut spans: Vec<(u64, u64, usize)> = Vec::with_capacity(ops.len());
    for (at, op) in ops.iter().enumerate() {
        let (from, to) = op.span(is_there);
        spans.push((from, to, at));
    }
    spans.sort_unstable();
    let mut found: Vec<Supertask> = Vec::new();
    let mut spans = spans.into_iter().peekable();
    while let Some((_, mut end, first)) = spans.next() {
        let mut members = vec![first];
        while let Some((_, to, at)) = spans.next_if(|(from, ..)| *from < end) {
            end = end.max(to);
            members.push(at);
        }
        members.sort_unstable();
        let steps = steps(ops, &members);
        // A write may continue at the end of the one before.
        match (found.last_mut().map(Vec::as_mut_slice), steps.as_slice()) {
            (Some([before]), [next]) if together(ops, before, next) => before.extend(next),
            _ => found.push(steps),
        }
    }
    found.sort_by_key(|steps| steps.iter().flatten().min().copied());
    found
}

/// Returns the labels `members` in their order, with consecutive labels merged into groups.
fn steps(ops: &[ShuffleOp], members: &[usize]) -> Supertask {
    let mut steps: Supertask = Vec::new();
    for &at in members {
        match steps.last_mut() {
            Some(before) if together(ops, before, &[at]) => before.push(at),
            _ => steps.push(vec![at]),
        }
    }
    steps
}

/// Whether the group `next` continues at the end of the group `before`, and both together are within the limits.
fn together(ops: &[ShuffleOp], before: &[usize], next: &[usize]) -> bool {
    let (Some(&last), Some(&first)) = (before.last(), next.first()) else {
        return false;
    };
    let bytes = before.iter().map(|&at| ops[at].size);
    ops[first].joins(&ops[last])
        && before.len() + next.len() <= PIECES_MAX
        && bytes.fold(0, u64::saturating_add) < BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DEEDS: [OperationKind; 6] = [
        OperationKind::Write,
        OperationKind::Write,
        OperationKind::Write,
        OperationKind::Read,
        OperationKind::Append,
        OperationKind::Cut,
    ];

    fn op(deed: OperationKind, offset: u64, size: u64) -> ShuffleOp {
        let alone = false;
        ShuffleOp {
            deed,
            offset,
            size,
            alone,
        }
    }

    /// Model of a file, as a file system stores it.
    #[derive(Clone, Debug, Default, PartialEq)]
    struct ShuffleModel {
        bytes: Option<Vec<u8>>,
        /// Bytes that each read returned; `None` if the file did not exist.
        read: Vec<Option<Vec<u8>>>,
    }

    impl ShuffleModel {
        fn new(ops: &[ShuffleOp], there: Option<usize>) -> Self {
            Self {
                bytes: there.map(|length| vec![255; length]),
                read: vec![None; ops.len()],
            }
        }

        /// Carries out the labels of a group in one call.
        fn act(&mut self, ops: &[ShuffleOp], step: &[usize]) {
            let first = &ops[step[0]];
            let place = usize::try_from(first.offset).unwrap();
            if first.deed == OperationKind::Read {
                let size = usize::try_from(first.size).unwrap();
                let bytes = self.bytes.as_ref();
                let from = |bytes: &Vec<u8>| bytes[place.min(bytes.len())..].to_vec();
                let some = |mut bytes: Vec<u8>| {
                    bytes.truncate(size);
                    bytes
                };
                self.read[step[0]] = bytes.map(from).map(some);
                return;
            }
            let pieces = step.iter().flat_map(|&at| {
                let size = usize::try_from(ops[at].size).unwrap();
                std::iter::repeat_n(u8::try_from(at).unwrap(), size)
            });
            let written: Vec<u8> = pieces.collect();
            let bytes = self.bytes.get_or_insert_default();
            if first.deed == OperationKind::Cut {
                bytes.clear();
            }
            let place = match first.deed {
                OperationKind::Append => bytes.len(),
                _ => place,
            };
            if !written.is_empty() {
                let end = place + written.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[place..end].copy_from_slice(&written);
            }
        }
    }

    fn ops() -> impl Strategy<Value = Vec<ShuffleOp>> {
        let one = (
            0..DEEDS.len(),
            0_u64..24,
            0_u64..9,
            prop::bool::weighted(0.1),
        );
        let one = one.prop_map(|(deed, offset, size, alone)| ShuffleOp {
            alone,
            ..op(DEEDS[deed], offset, size)
        });
        // Mostly writes and reads, so that not every file is one supertask.
        let plain = (prop::bool::weighted(0.2), 0_u64..60, 1_u64..9);
        let plain = plain.prop_map(|(read, offset, size)| {
            op(
                if read {
                    OperationKind::Read
                } else {
                    OperationKind::Write
                },
                offset,
                size,
            )
        });
        prop_oneof![
            prop::collection::vec(one, 0..12),
            prop::collection::vec(plain, 0..24),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5000))]

        /// In any order of the supertasks, reads and file have the same bytes as after all labels in sequence.
        #[test]
        fn supertasks_in_any_order_equal_labels_in_sequence(
            ops in ops(),
            there in prop::option::of(0_usize..40),
            picks in prop::collection::vec(any::<usize>(), 32),
        ) {
            let mut reference = ShuffleModel::new(&ops, there);
            for at in 0..ops.len() {
                reference.act(&ops, &[at]);
            }
            let mut tasks = supertasks(&ops, there.is_some());
            let mut all: Vec<usize> = tasks.iter().flatten().flatten().copied().collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..ops.len()).collect::<Vec<_>>(), "each label is done once");
            let mut mixed = ShuffleModel::new(&ops, there);
            let mut picks = picks.into_iter().cycle();
            tasks.iter_mut().for_each(|task| task.reverse());
            while !tasks.is_empty() {
                let pick = picks.next().unwrap() % tasks.len();
                if let Some(step) = tasks[pick].pop() {
                    mixed.act(&ops, &step);
                } else {
                    tasks.swap_remove(pick);
                }
            }
            prop_assert_eq!(mixed, reference);
        }
    }

    #[test]
    fn two_interleaved_streams_become_two_writes() {
        let both = (0..4).flat_map(|n| {
            [
                op(OperationKind::Write, n * 10, 10),
                op(OperationKind::Write, 100 + n * 10, 10),
            ]
        });
        let both: Vec<ShuffleOp> = both.collect();
        let found = supertasks(&both, false);
        assert_eq!(found, [vec![vec![0, 2, 4, 6]], vec![vec![1, 3, 5, 7]]]);
    }

    #[test]
    fn read_waits_only_for_its_bytes_and_the_length_of_its_file() {
        let ops = [
            op(OperationKind::Write, 0, 10),
            op(OperationKind::Write, 50, 10),
            op(OperationKind::Read, 20, 10),
            op(OperationKind::Write, 25, 2),
        ];
        assert_eq!(
            supertasks(&ops, true),
            [vec![vec![0]], vec![vec![1], vec![2], vec![3]]]
        );
        assert_eq!(
            supertasks(&ops, false).len(),
            1,
            "the first may make the file"
        );
    }

    #[test]
    fn supertask_of_writes_is_bounded_and_never_overflows() {
        let long = [
            op(OperationKind::Write, 0, BYTES_MAX),
            op(OperationKind::Write, BYTES_MAX, 1),
        ];
        assert_eq!(supertasks(&long, true).len(), 2);
        let many: Vec<ShuffleOp> = (0..3000).map(|n| op(OperationKind::Write, n, 1)).collect();
        let found = supertasks(&many, true);
        assert!(found.iter().flatten().all(|step| step.len() <= PIECES_MAX));
        assert_eq!(found.len(), 3);
        let far = [
            op(OperationKind::Write, u64::MAX, u64::MAX),
            op(OperationKind::Read, u64::MAX, 1),
        ];
        assert_eq!(supertasks(&far, true).iter().flatten().count(), 2);
    }
}
