//! Simulation of an application that reads and writes files by labels, and of its agent, which is killed repeatedly. However the request
//! scheduler orders a batch, and wherever a batch is interrupted, each label takes effect once, in the order of publication. No published
//! label is forgotten.
//!
//! The request scheduler is the production code. The rest of the agent is modelled after `label/src/{agent,execute}.rs`: taking labels,
//! beginning, recording, executing and settling steps, and repeating them. Each part of a step is separate, so that the agent may be killed
//! between any two parts.

use crate::Summary;
use crate::dice::{Dice, mix};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_label::request_scheduler::{OperationKind, ShuffleOp, supertasks};

/// Number of labels in a simulation run.
const LABELS: u64 = 400;
const FILES: u64 = 3;
/// Offset in a file from which on no label writes, except by appending, in bytes.
const LENGTH: u64 = 48;
const SIZE_MAX: u64 = 9;
/// Maximum number of labels that are published and have no recorded result.
const OPEN_MAX: usize = 60;

/// Kind of an application's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LabelKind {
    Read,
    Write,
    Append,
    /// Write or append that truncates its file first.
    Cut,
    CutAppend,
    Delete,
    /// Renames its file to the file with the next number.
    Move,
    Fence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LabelStatus {
    Pending,
    Running,
    Done,
    Failed,
    Cancelled,
}

/// Label in the log of the agent, which survives the death of the agent.
#[derive(Clone, Debug)]
struct LoggedLabel {
    kind: LabelKind,
    file: u64,
    offset: u64,
    size: u64,
    status: LabelStatus,
    /// Position that was recorded for the label's bytes before they were appended.
    noted: Option<usize>,
    answer: Vec<u64>,
    /// Whether an agent was killed while executing the label.
    again: bool,
}

impl LoggedLabel {
    fn appends(&self) -> bool {
        matches!(self.kind, LabelKind::Append | LabelKind::CutAppend)
    }

    fn is_alone(&self) -> bool {
        matches!(
            self.kind,
            LabelKind::Delete | LabelKind::Move | LabelKind::Fence
        )
    }

    fn is_open(&self) -> bool {
        matches!(self.status, LabelStatus::Pending | LabelStatus::Running)
    }

    /// Returns the operation of the label that the request scheduler sees.
    fn op(&self) -> ShuffleOp {
        let deed = match self.kind {
            LabelKind::Read => OperationKind::Read,
            LabelKind::Cut | LabelKind::CutAppend => OperationKind::Cut,
            LabelKind::Append => OperationKind::Append,
            _ => OperationKind::Write,
        };
        ShuffleOp {
            deed,
            offset: self.offset,
            size: self.size,
            alone: self.again || self.kind == LabelKind::CutAppend,
        }
    }
}

/// Content of files by their numbers; each byte identifies its write.
type FileWrites = BTreeMap<u64, Vec<u64>>;

/// One part of a step of the agent's work.
#[derive(Clone, Debug)]
enum AgentStep {
    /// Records the positions of appends that are executed together.
    Note(Vec<usize>),
    /// Truncates the file, or creates the file.
    Open(usize),
    /// Writes a number of bytes of labels that are executed together, from an offset.
    Bytes(Vec<usize>, u64, u64),
    Read(usize),
    /// Continues an append that an earlier agent started at the recorded position, or appends all bytes.
    Resume(usize),
    Names(usize),
    Settle(usize, bool),
}

struct RequestScheduler {
    dice: Dice,
    log: Vec<LoggedLabel>,
    files: FileWrites,
    /// Files that the agent has open.
    open: BTreeSet<u64>,
    /// Index in the log: all earlier labels have a recorded result or are taken, as far as the agent knows.
    at: usize,
    /// Next parts for each file that the agent works on, in reverse order.
    work: Vec<Vec<AgentStep>>,
    /// Groups of labels that the agent executes after the current group.
    rest: Vec<Vec<usize>>,
    /// Number of labels that are published and have no recorded result.
    open_labels: usize,
    done: Summary,
}

/// Returns the bytes that a label writes.
fn bytes(id: usize, from: u64, count: u64) -> impl Iterator<Item = u64> {
    (from..from + count).map(move |n| mix(((id as u64) << 8) | n))
}

fn put(file: &mut Vec<u64>, at: usize, what: impl Iterator<Item = u64>) {
    for (place, byte) in (at..).zip(what) {
        if file.len() <= place {
            file.resize(place + 1, 0);
        }
        file[place] = byte;
    }
}

fn place(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Simulates the labels of one application.
///
/// # Panics
/// If an invariant is violated.
pub(crate) fn run(seed: u64) -> Summary {
    let mut request_scheduler = RequestScheduler {
        dice: Dice::new(mix(seed ^ 0x7368_7566)),
        log: Vec::new(),
        files: FileWrites::new(),
        open: BTreeSet::new(),
        at: 0,
        work: Vec::new(),
        rest: Vec::new(),
        open_labels: 0,
        done: Summary::default(),
    };
    // The seed determines how often the agent is killed, and how busy the application is.
    let kill = [0, 2, 20, 100][place(request_scheduler.dice.roll(4))];
    let publish = 100 + request_scheduler.dice.roll(800);
    let mut left = LABELS;
    while left > 0 || request_scheduler.open_labels > 0 {
        request_scheduler.done.events += 1;
        if left > 0
            && request_scheduler.open_labels < OPEN_MAX
            && request_scheduler.dice.chance(publish)
        {
            request_scheduler.publish();
            left -= 1;
        } else if request_scheduler.dice.chance(kill) {
            request_scheduler.kill();
        } else if request_scheduler.dice.chance(5) {
            request_scheduler.cancel();
        } else {
            request_scheduler.go_on();
        }
    }
    request_scheduler.check();
    request_scheduler.done.labels = LABELS;
    request_scheduler.done
}

impl RequestScheduler {
    fn publish(&mut self) {
        let dice = &mut self.dice;
        let kind = match dice.roll(24) {
            0..=9 => LabelKind::Write,
            10..=14 => LabelKind::Read,
            15..=18 => LabelKind::Append,
            19 => LabelKind::Cut,
            20 => LabelKind::CutAppend,
            21 => LabelKind::Delete,
            22 => LabelKind::Move,
            _ => LabelKind::Fence,
        };
        let record = LoggedLabel {
            kind,
            file: dice.roll(FILES),
            offset: dice.roll(LENGTH),
            size: dice.roll(SIZE_MAX),
            status: LabelStatus::Pending,
            noted: None,
            answer: Vec::new(),
            again: false,
        };
        self.log.push(record);
        self.open_labels += 1;
    }

    /// Cancels a random label that has not begun, as the application does.
    fn cancel(&mut self) {
        let back = place(self.dice.roll(OPEN_MAX as u64));
        let Some(record) = self.log.len().checked_sub(back + 1) else {
            return;
        };
        let record = &mut self.log[record];
        if record.status == LabelStatus::Pending {
            record.status = LabelStatus::Cancelled;
            self.open_labels -= 1;
        }
    }

    /// Kills the agent, which loses its state. A new agent begins with the first label without a recorded result.
    fn kill(&mut self) {
        self.done.agents += 1;
        self.work.clear();
        self.rest.clear();
        self.open.clear();
        let settled = self.log.iter().position(LoggedLabel::is_open);
        self.at = settled.unwrap_or(self.log.len());
    }

    /// Executes one part of the agent's work.
    fn go_on(&mut self) {
        self.work.retain(|parts| !parts.is_empty());
        if !self.work.is_empty() {
            let which = place(self.dice.roll(self.work.len() as u64));
            if let Some(part) = self.work[which].pop() {
                self.act(which, part);
            }
            return;
        }
        if self.rest.is_empty() {
            self.take();
        }
        if let Some(group) = self.rest.pop() {
            self.begin(&group);
        }
    }

    /// Takes labels that were published since, and splits them into groups. Each group begins after all earlier groups are done.
    fn take(&mut self) {
        // At random times the agent closes its open files.
        if self.dice.chance(100) {
            self.open.clear();
        }
        let most = place(1 + self.dice.roll(40));
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let mut taken = 0;
        while taken < most && self.at < self.log.len() {
            let id = self.at;
            self.at += 1;
            let record = &mut self.log[id];
            match record.status {
                LabelStatus::Pending => record.status = LabelStatus::Running,
                LabelStatus::Running => record.again = true,
                _ => continue,
            }
            taken += 1;
            let alone = |id: usize| self.log[id].is_alone();
            match groups.last_mut() {
                Some(group) if !alone(id) && !alone(group[0]) => group.push(id),
                _ => groups.push(vec![id]),
            }
        }
        groups.reverse();
        self.rest = groups;
    }

    fn begin(&mut self, group: &[usize]) {
        if let [id] = *group
            && self.log[id].is_alone()
        {
            self.work = vec![vec![AgentStep::Names(id)]];
            return;
        }
        for file in 0..FILES {
            let ids = group.iter().copied();
            let ids: Vec<usize> = ids.filter(|&id| self.log[id].file == file).collect();
            if !ids.is_empty() {
                let parts = self.parts(&ids, self.open.contains(&file));
                self.work.push(parts);
            }
        }
    }

    /// Returns all parts of the steps for labels of one file, in reverse order.
    fn parts(&mut self, ids: &[usize], is_there: bool) -> Vec<AgentStep> {
        let ops: Vec<ShuffleOp> = ids.iter().map(|&id| self.log[id].op()).collect();
        let mut parts = Vec::new();
        for step in supertasks(&ops, is_there).into_iter().flatten() {
            let run: Vec<usize> = step.into_iter().map(|at| ids[at]).collect();
            let first = run[0];
            let record = &self.log[first];
            if record.kind == LabelKind::Read {
                parts.push(AgentStep::Read(first));
                continue;
            }
            if record.again && record.appends() && record.noted.is_some() {
                parts.extend([AgentStep::Resume(first), AgentStep::Settle(first, true)]);
                continue;
            }
            parts.push(AgentStep::Open(first));
            if record.appends() {
                parts.push(AgentStep::Note(run.clone()));
            }
            let total: u64 = run.iter().map(|&id| self.log[id].size).sum();
            // A call may write fewer bytes than requested.
            let cut = self.dice.roll(total + 1);
            for (from, count) in [(0, cut), (cut, total - cut)] {
                if count > 0 {
                    parts.push(AgentStep::Bytes(run.clone(), from, count));
                }
            }
            parts.extend(run.into_iter().map(|id| AgentStep::Settle(id, true)));
        }
        parts.reverse();
        parts
    }

    fn act(&mut self, which: usize, part: AgentStep) {
        match part {
            AgentStep::Open(id) => {
                let record = &self.log[id];
                let file = self.files.entry(record.file).or_default();
                if matches!(record.kind, LabelKind::Cut | LabelKind::CutAppend) {
                    file.clear();
                }
                self.open.insert(record.file);
            }
            AgentStep::Note(run) => {
                let mut end = self.files.get(&self.log[run[0]].file).map_or(0, Vec::len);
                for id in run {
                    self.log[id].noted = Some(end);
                    end += place(self.log[id].size);
                }
            }
            AgentStep::Bytes(run, from, count) => self.write(&run, from, count),
            AgentStep::Read(id) => {
                let record = &self.log[id];
                let read = read(&self.files, record);
                let is_there = read.is_some();
                self.log[id].answer = read.unwrap_or_default();
                self.work[which].push(AgentStep::Settle(id, is_there));
            }
            AgentStep::Resume(id) => self.resume(which, id),
            AgentStep::Names(id) => {
                let record = &self.log[id];
                self.open.remove(&record.file);
                self.open.remove(&((record.file + 1) % FILES));
                // An earlier agent may have done it.
                let done = change_names(&mut self.files, record) || record.again;
                self.work[which].push(AgentStep::Settle(id, done));
            }
            AgentStep::Settle(id, done) => {
                let record = &mut self.log[id];
                assert_eq!(
                    record.status,
                    LabelStatus::Running,
                    "label {id} is settled twice"
                );
                record.status = if done {
                    LabelStatus::Done
                } else {
                    LabelStatus::Failed
                };
                self.open_labels -= 1;
            }
        }
    }

    /// Writes some of the bytes of consecutive labels.
    fn write(&mut self, run: &[usize], from: u64, count: u64) {
        let all = run.iter().flat_map(|&id| bytes(id, 0, self.log[id].size));
        let some: Vec<u64> = all.skip(place(from)).take(place(count)).collect();
        let first = &self.log[run[0]];
        let file = self.files.entry(first.file).or_default();
        let at = match first.appends() {
            true => file.len(),
            false => place(first.offset + from),
        };
        put(file, at, some.into_iter());
    }

    /// Continues an append like `append_again`: the recorded position determines the part that was already written.
    fn resume(&mut self, which: usize, id: usize) {
        let record = self.log[id].clone();
        let noted = record.noted.unwrap_or(0);
        let data: Vec<u64> = bytes(id, 0, record.size).collect();
        let file = self.files.get(&record.file);
        let there = file.and_then(|file| file.get(noted.min(file.len())..));
        let there: Option<Vec<u64>> =
            there.map(|there| there.iter().copied().take(data.len()).collect());
        let begun =
            there.filter(|there| (data.is_empty() || !there.is_empty()) && data.starts_with(there));
        match begun {
            Some(there) => {
                let file = self.files.entry(record.file).or_default();
                put(
                    file,
                    noted + there.len(),
                    data.into_iter().skip(there.len()),
                );
                self.open.insert(record.file);
            }
            None => {
                let run = vec![id];
                let mut parts = vec![
                    AgentStep::Bytes(run.clone(), 0, record.size),
                    AgentStep::Note(run),
                    AgentStep::Open(id),
                ];
                if record.size == 0 {
                    parts.remove(0);
                }
                self.work[which].append(&mut parts);
            }
        }
    }

    /// Checks that executing the labels one after the other, in the order of publication, gives the same files and answers.
    fn check(&mut self) {
        let mut files = FileWrites::new();
        let mut sum = self.done.events;
        for (id, record) in self.log.iter().enumerate() {
            let done = match record.status {
                LabelStatus::Done => true,
                LabelStatus::Failed => false,
                LabelStatus::Cancelled => continue,
                LabelStatus::Pending | LabelStatus::Running => panic!("label {id} was forgotten"),
            };
            sum = mix(sum
                ^ record
                    .answer
                    .iter()
                    .fold(id as u64, |sum, byte| mix(sum ^ byte)));
            let expected = match record.kind {
                LabelKind::Read => {
                    let read = read(&files, record);
                    let is_there = read.is_some();
                    let read = read.unwrap_or_default();
                    assert_eq!(record.answer, read, "label {id} has read something else");
                    is_there
                }
                LabelKind::Write | LabelKind::Append | LabelKind::Cut | LabelKind::CutAppend => {
                    let file = files.entry(record.file).or_default();
                    if matches!(record.kind, LabelKind::Cut | LabelKind::CutAppend) {
                        file.clear();
                    }
                    let at = if record.appends() {
                        file.len()
                    } else {
                        place(record.offset)
                    };
                    put(file, at, bytes(id, 0, record.size));
                    true
                }
                LabelKind::Delete | LabelKind::Move | LabelKind::Fence => {
                    change_names(&mut files, record)
                }
            };
            // An operation that a killed agent may have executed counts as done.
            assert!(
                done == expected || record.again && record.is_alone(),
                "label {id} ends otherwise: {record:?}"
            );
        }
        assert_eq!(self.files, files, "files hold something else");
        self.done.fingerprint = sum;
    }
}

/// Returns the content that a label reads; `None` if the file does not exist.
fn read(files: &FileWrites, record: &LoggedLabel) -> Option<Vec<u64>> {
    let file = files.get(&record.file)?;
    let from = place(record.offset).min(file.len());
    let to = place(record.offset + record.size).min(file.len());
    Some(file[from..to].to_vec())
}

/// Executes a label that changes names, and returns whether this was possible.
fn change_names(files: &mut FileWrites, record: &LoggedLabel) -> bool {
    match record.kind {
        LabelKind::Delete => files.remove(&record.file).is_some(),
        LabelKind::Move => {
            let moved = files.remove(&record.file);
            let to = (record.file + 1) % FILES;
            moved.map(|file| files.insert(to, file)).is_some()
        }
        _ => true,
    }
}
