//! Tests of all interleavings of programs and network; the results are compared with plain bytes.

use super::{RequestedBytes, SentWrite, TransferState};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;

/// An operation of one program.
#[derive(Clone, Debug)]
enum TransferOp {
    Write(Range<usize>, u8),
    Read(Range<usize>),
    Ahead(Range<usize>),
}

#[derive(Debug)]
struct Read {
    range: Range<usize>,
    /// Mark of the writes that were sent when the read began.
    mark: u64,
    /// Length of the file in bytes when the read began.
    size: usize,
    /// Values that the read may return for each byte: the values when the read began, and values written since.
    allowed: Vec<Vec<u8>>,
    piece: Option<Arc<RequestedBytes>>,
    out: Vec<u8>,
}

#[derive(Debug)]
struct Program {
    ops: Vec<TransferOp>,
    done: usize,
    read: Option<Read>,
}

/// A possible next event of a test.
#[derive(Clone, Copy, Debug)]
enum TransferStep {
    Program(usize),
    /// The node executes a write, and answers.
    Apply(usize),
    Arrive(usize),
    /// The node executes a read, and its answer arrives.
    Fetch(usize),
    Answer(usize),
}

#[derive(Debug)]
struct TransferWorld {
    state: TransferState,
    node: Vec<u8>,
    good: Vec<u8>,
    sent: Vec<SentWrite>,
    applied: Vec<u64>,
    asked: Vec<Arc<RequestedBytes>>,
    fetched: Vec<(Arc<RequestedBytes>, Bytes)>,
    programs: Vec<Program>,
}

impl TransferWorld {
    fn new(size: usize, programs: Vec<Vec<TransferOp>>) -> Self {
        let program = |ops| Program {
            ops,
            done: 0,
            read: None,
        };
        Self {
            state: TransferState::new(size as u64, 0),
            node: vec![0; size],
            good: vec![0; size],
            sent: Vec::new(),
            applied: Vec::new(),
            asked: Vec::new(),
            fetched: Vec::new(),
            programs: programs.into_iter().map(program).collect(),
        }
    }

    fn is_enabled(&self, program: &Program) -> bool {
        let can_send = self.state.is_sent() || self.state.has_space();
        match (&program.read, program.ops.get(program.done)) {
            (_, None) => false,
            (Some(read), _) => match &read.piece {
                Some(piece) => piece.data.lock().is_some(),
                None => self.state.settled(read.mark),
            },
            (None, Some(TransferOp::Ahead(_))) => true,
            (None, Some(TransferOp::Write(..) | TransferOp::Read(_))) => can_send,
        }
    }

    fn steps(&self) -> Vec<TransferStep> {
        let programs = self.programs.iter().enumerate();
        let enabled = programs.filter(|(_, program)| self.is_enabled(program));
        let mut steps: Vec<_> = enabled.map(|(at, _)| TransferStep::Program(at)).collect();
        steps.extend((0..self.sent.len()).map(TransferStep::Apply));
        steps.extend((0..self.applied.len()).map(TransferStep::Arrive));
        steps.extend((0..self.asked.len()).map(TransferStep::Fetch));
        steps.extend((0..self.fetched.len()).map(TransferStep::Answer));
        steps
    }

    fn step(&mut self, step: TransferStep) {
        match step {
            TransferStep::Program(at) => self.run(at),
            TransferStep::Apply(at) => {
                let sent = self.sent.remove(at);
                let start = usize::try_from(sent.start).unwrap();
                let end = start + sent.bytes.len();
                self.node.resize(self.node.len().max(end), 0);
                self.node[start..end].copy_from_slice(&sent.bytes);
                self.applied.push(sent.number);
            }
            TransferStep::Arrive(at) => {
                let number = self.applied.remove(at);
                self.state.arrived(number, None);
            }
            TransferStep::Fetch(at) => {
                let piece = self.asked.remove(at);
                let range =
                    usize::try_from(piece.start).unwrap()..usize::try_from(piece.end).unwrap();
                let end = range.end.min(self.node.len());
                let bytes = self.node.get(range.start..end).unwrap_or_default();
                self.fetched.push((piece, Bytes::copy_from_slice(bytes)));
            }
            TransferStep::Answer(at) => {
                let (piece, bytes) = self.fetched.remove(at);
                piece.answer(Ok(bytes));
            }
        }
    }

    fn run(&mut self, at: usize) {
        let op = self.programs[at].ops[self.programs[at].done].clone();
        match op {
            TransferOp::Ahead(range) => {
                let end = (range.end as u64).min(self.state.size);
                if self.state.is_clean() && (range.start as u64) < end {
                    let (_, asked) = self.state.piece(range.start as u64, end);
                    self.asked.extend(asked);
                }
                self.programs[at].done += 1;
            }
            TransferOp::Write(range, value) => {
                let bytes = vec![value; range.len()];
                if !self.state.take(range.start as u64, &bytes) {
                    self.sent.push(self.state.dispatch());
                    return;
                }
                self.good.resize(self.good.len().max(range.end), 0);
                self.good[range.clone()].copy_from_slice(&bytes);
                let reads = self.programs.iter_mut().filter_map(|p| p.read.as_mut());
                for read in reads {
                    let start = read.range.start;
                    for byte in range.start.max(start)..range.end.min(read.range.end) {
                        read.allowed[byte - start].push(value);
                    }
                }
                self.programs[at].done += 1;
            }
            TransferOp::Read(range) => self.read(at, &range),
        }
    }

    /// Runs the next part of a read that executes under one lock.
    fn read(&mut self, at: usize, range: &Range<usize>) {
        let read = self.programs[at].read.take();
        let mut read = read.unwrap_or_else(|| {
            if !self.state.is_sent() {
                self.sent.push(self.state.dispatch());
            }
            let there = |byte| vec![self.good.get(byte).copied().unwrap_or(0)];
            Read {
                range: range.clone(),
                mark: self.state.mark(),
                size: self.good.len(),
                allowed: range.clone().map(there).collect(),
                piece: None,
                out: Vec::new(),
            }
        });
        let end = (range.end as u64).min(self.state.size);
        if let Some(piece) = read.piece.take() {
            let data = piece.data.lock().clone().unwrap().unwrap();
            let from = (range.start + read.out.len()) as u64;
            piece.append(&data, (from, end), &mut read.out);
        }
        let from = (range.start + read.out.len()) as u64;
        if from < end {
            if self.state.settled(read.mark) {
                let (piece, asked) = self.state.piece(from, end);
                self.asked.extend(asked);
                read.piece = Some(piece);
            }
            self.programs[at].read = Some(read);
            return;
        }
        let there = read.size.min(range.end).saturating_sub(range.start);
        assert!(read.out.len() >= there, "{read:?}");
        for (byte, allowed) in read.out.iter().zip(&read.allowed) {
            assert!(allowed.contains(byte), "{read:?}");
        }
        self.programs[at].done += 1;
    }
}

/// Runs all events in every possible order. Returns the number of orders.
fn all_orders(size: usize, programs: &[Vec<TransferOp>]) -> usize {
    let mut choices: Vec<(usize, usize)> = Vec::new();
    for orders in 1.. {
        let mut world = TransferWorld::new(size, programs.to_vec());
        for at in 0.. {
            let steps = world.steps();
            if steps.is_empty() {
                break;
            }
            if at == choices.len() {
                choices.push((0, steps.len()));
            }
            world.step(steps[choices[at].0]);
        }
        assert!(world.programs.iter().all(|p| p.done == p.ops.len()));
        while choices.pop_if(|(chosen, of)| *chosen + 1 == *of).is_some() {}
        let Some(last) = choices.last_mut() else {
            return orders;
        };
        last.0 += 1;
    }
    0
}

#[test]
fn remote_read_sees_every_earlier_write_in_every_order() {
    let write = |range, value| TransferOp::Write(range, value);
    let programs: [&[Vec<TransferOp>]; 5] = [
        &[
            vec![TransferOp::Ahead(0..8)],
            vec![write(2..4, 1), TransferOp::Read(0..8)],
        ],
        &[
            vec![TransferOp::Read(0..8)],
            vec![write(2..4, 1), TransferOp::Read(2..3)],
        ],
        &[
            vec![write(0..2, 1), TransferOp::Read(0..4)],
            vec![write(1..3, 2)],
        ],
        &[vec![
            TransferOp::Ahead(0..8),
            write(8..10, 1),
            TransferOp::Read(4..12),
        ]],
        &[vec![write(0..4, 1), write(6..8, 2), TransferOp::Read(0..8)]],
    ];
    for programs in programs {
        assert!(all_orders(8, programs) > 10, "{programs:?}");
    }
}

#[test]
fn remote_read_sees_every_earlier_write_in_long_random_orders() {
    const SIZE: usize = 2 << 20;
    for seed in 1..=12_u64 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut below = |bound: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            usize::try_from(random >> 16).unwrap() % bound
        };
        let mut program = || {
            let op = |_| {
                let start = below(SIZE);
                let range = start..start + 1 + below(5_000);
                match below(4) {
                    0 => TransferOp::Ahead(range),
                    1 => TransferOp::Read(range),
                    _ => TransferOp::Write(range, u8::try_from(below(255)).unwrap() + 1),
                }
            };
            (0..30).map(op).collect::<Vec<_>>()
        };
        let programs = (0..4).map(|_| program()).collect();
        let mut world = TransferWorld::new(SIZE, programs);
        loop {
            let steps = world.steps();
            if steps.is_empty() {
                break;
            }
            world.step(steps[below(steps.len())]);
        }
        assert!(world.programs.iter().all(|p| p.done == p.ops.len()));
    }
}
