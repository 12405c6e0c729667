//! Blocks of a flash device: their states, valid pages and wear. Closed blocks are in lists by their number of valid pages, so that
//! invalidating a page and finding a victim need no search.

use std::collections::{BTreeMap, BTreeSet};

use super::geometry::{Geometry, NONE};

/// State of an erase block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockState {
    /// The block is erased and in the free list of its chip.
    Free,
    /// The block is being programmed.
    Open,
    /// The block takes no more pages until it is erased.
    Closed,
    /// The block is being collected.
    Victim,
}

/// One erase block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) state: BlockState,
    pub(super) valid: u32,
    pub(super) erases: u32,
    /// Tick of the last invalidation of a page in the block, or of the block's closing.
    pub(super) modified: u64,
    next: u32,
    previous: u32,
}

impl Block {
    /// Returns whether collecting the block would free at least one page.
    pub(super) fn is_worth_collecting(&self, pages_per_block: u32) -> bool {
        self.state == BlockState::Closed && self.valid < pages_per_block
    }
}

#[derive(Clone, Copy, Debug)]
struct BlockList {
    first: u32,
    last: u32,
}

/// All blocks of a device.
#[derive(Clone, Debug)]
pub(super) struct Blocks {
    table: Vec<Block>,
    /// Tick at which each block was closed; stored separately, since only one collector reads it.
    closed_at: Vec<u64>,
    /// Closed blocks with `i` valid pages, longest unmodified first.
    by_valid: Vec<BlockList>,
    /// Free blocks of each chip, least worn first.
    free: Vec<BTreeSet<(u32, u32)>>,
    free_count: u32,
    /// Number of blocks with each number of erases.
    by_wear: BTreeMap<u32, u32>,
    tick: u64,
}

impl Blocks {
    /// Returns the blocks of a new device, all free and never erased.
    pub(super) fn new(geometry: &Geometry) -> Self {
        let block = Block {
            state: BlockState::Free,
            valid: 0,
            erases: 0,
            modified: 0,
            next: NONE,
            previous: NONE,
        };
        let empty = BlockList {
            first: NONE,
            last: NONE,
        };
        let chips = geometry.chips();
        Self {
            table: vec![block; geometry.blocks() as usize],
            closed_at: vec![0; geometry.blocks() as usize],
            by_valid: vec![empty; geometry.spec().pages_per_block as usize + 1],
            free: (0..chips)
                .map(|chip| {
                    (chip..geometry.blocks())
                        .step_by(chips as usize)
                        .map(|block| (0, block))
                        .collect()
                })
                .collect(),
            free_count: geometry.blocks(),
            by_wear: BTreeMap::from([(0, geometry.blocks())]),
            tick: 0,
        }
    }

    /// Restores saved blocks without their lists. The field `modified` of a closed block determines its order.
    pub(super) fn restore(
        geometry: &Geometry,
        saved: &[(BlockState, u32, u64, u64)],
        tick: u64,
    ) -> Self {
        let mut blocks = Self::new(geometry);
        blocks.tick = tick;
        blocks.by_wear.clear();
        for (block, &(state, erases, modified, closed)) in (0u32..).zip(saved) {
            let chip = block % geometry.chips();
            blocks.free[chip as usize].remove(&(0, block));
            if state == BlockState::Free {
                blocks.free[chip as usize].insert((erases, block));
            } else {
                blocks.free_count -= 1;
            }
            *blocks.by_wear.entry(erases).or_default() += 1;
            let entry = &mut blocks.table[block as usize];
            (entry.state, entry.erases) = (state, erases);
            entry.modified = modified;
            blocks.closed_at[block as usize] = closed;
        }
        blocks
    }

    /// Adds closed blocks to their lists, after [`Blocks::restore`] and once valid pages are counted.
    pub(super) fn relink(&mut self) {
        let mut closed: Vec<(u64, u32)> = (0u32..)
            .zip(&self.table)
            .filter(|(_, entry)| entry.state == BlockState::Closed)
            .map(|(block, entry)| (entry.modified, block))
            .collect();
        closed.sort_unstable();
        for (_, block) in closed {
            self.link(block);
        }
    }

    pub(super) fn get(&self, block: u32) -> &Block {
        &self.table[block as usize]
    }

    /// Returns the tick at which a block was last closed.
    pub(super) fn closed_at(&self, block: u32) -> u64 {
        self.closed_at[block as usize]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Block)> {
        (0u32..).zip(&self.table)
    }

    pub(super) fn free_count(&self) -> u32 {
        self.free_count
    }

    pub(super) fn tick(&self) -> u64 {
        self.tick
    }

    /// Returns the smallest and the largest number of erases over all blocks.
    pub(super) fn wear_range(&self) -> (u32, u32) {
        let first = self.by_wear.first_key_value().map_or(0, |(&wear, _)| wear);
        let last = self.by_wear.last_key_value().map_or(0, |(&wear, _)| wear);
        (first, last)
    }

    /// Opens the least worn free block of a chip.
    pub(super) fn open_on(&mut self, chip: u32) -> Option<u32> {
        let (_, block) = self.free[chip as usize].pop_first()?;
        self.free_count -= 1;
        self.table[block as usize].state = BlockState::Open;
        Some(block)
    }

    /// Opens the most worn free block of the device.
    pub(super) fn open_most_worn(&mut self) -> Option<u32> {
        let lists = self.free.iter_mut();
        let list = lists.max_by_key(|list| list.last().map(|&(erases, _)| erases))?;
        let (_, block) = list.pop_last()?;
        self.free_count -= 1;
        self.table[block as usize].state = BlockState::Open;
        Some(block)
    }

    /// Counts one more valid page in the block.
    pub(super) fn validate(&mut self, block: u32) {
        self.table[block as usize].valid += 1;
    }

    /// Counts one valid page less in the block.
    pub(super) fn invalidate(&mut self, block: u32) {
        if self.table[block as usize].state != BlockState::Closed {
            self.table[block as usize].valid -= 1;
            return;
        }
        self.unlink(block);
        self.tick += 1;
        let entry = &mut self.table[block as usize];
        entry.valid -= 1;
        entry.modified = self.tick;
        self.link(block);
    }

    /// Closes an open block.
    pub(super) fn close(&mut self, block: u32) {
        self.tick += 1;
        let entry = &mut self.table[block as usize];
        entry.state = BlockState::Closed;
        entry.modified = self.tick;
        self.closed_at[block as usize] = self.tick;
        self.link(block);
    }

    /// Removes a closed block from the lists, to be collected.
    pub(super) fn take_victim(&mut self, block: u32) {
        self.unlink(block);
        self.table[block as usize].state = BlockState::Victim;
    }

    /// Erases a block without valid pages and frees it.
    pub(super) fn erase(&mut self, block: u32) {
        let chip = block as usize % self.free.len();
        let entry = &mut self.table[block as usize];
        debug_assert!(entry.valid == 0 && entry.state == BlockState::Victim);
        let before = entry.erases;
        entry.erases += 1;
        entry.state = BlockState::Free;
        if let Some(count) = self.by_wear.get_mut(&before) {
            *count -= 1;
            if *count == 0 {
                self.by_wear.remove(&before);
            }
        }
        *self.by_wear.entry(before + 1).or_default() += 1;
        self.free[chip].insert((before + 1, block));
        self.free_count += 1;
    }

    /// Returns the longest unmodified closed block with `valid` pages.
    pub(super) fn first_with(&self, valid: u32) -> Option<u32> {
        let first = self.by_valid[valid as usize].first;
        (first != NONE).then_some(first)
    }

    fn link(&mut self, block: u32) {
        let list = &mut self.by_valid[self.table[block as usize].valid as usize];
        let last = std::mem::replace(&mut list.last, block);
        if last == NONE {
            list.first = block;
        } else {
            self.table[last as usize].next = block;
        }
        let entry = &mut self.table[block as usize];
        (entry.previous, entry.next) = (last, NONE);
    }

    fn unlink(&mut self, block: u32) {
        let Block {
            valid,
            next,
            previous,
            ..
        } = self.table[block as usize];
        let list = &mut self.by_valid[valid as usize];
        if previous == NONE {
            list.first = next;
        }
        if next == NONE {
            list.last = previous;
        }
        if previous != NONE {
            self.table[previous as usize].next = next;
        }
        if next != NONE {
            self.table[next as usize].previous = previous;
        }
    }

    /// Checks that every block is in exactly the lists of its state, and that the counts are correct.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let free: BTreeSet<u32> = self
            .free
            .iter()
            .flatten()
            .map(|&(_, block)| block)
            .collect();
        assert_eq!(free.len(), self.free_count as usize, "free blocks");
        let mut linked = BTreeSet::new();
        for (valid, list) in (0u32..).zip(&self.by_valid) {
            let (mut at, mut before, mut modified) = (list.first, NONE, 0);
            while at != NONE {
                let block = self.get(at);
                assert_eq!((block.valid, block.previous), (valid, before));
                assert!(block.modified >= modified, "oldest first");
                assert!(linked.insert(at), "block {at} is on two lists");
                (before, at, modified) = (at, block.next, block.modified);
            }
            assert_eq!(list.last, before);
        }
        for (block, entry) in self.iter() {
            assert_eq!(free.contains(&block), entry.state == BlockState::Free);
            assert_eq!(linked.contains(&block), entry.state == BlockState::Closed);
        }
        let mut by_wear: BTreeMap<u32, u32> = BTreeMap::new();
        for (_, entry) in self.iter() {
            *by_wear.entry(entry.erases).or_default() += 1;
        }
        assert_eq!(by_wear, self.by_wear);
    }
}
