//! Garbage collection: chooses the next block and moves the block's valid pages, in steps of any size.

use super::blocks::Block;
use super::ftl::{FlashOperation, Ftl, OpenBlock, PageStream};

/// Policy that chooses the next closed block to collect. Of equal blocks, the longest unmodified block is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Collector {
    /// Chooses the block with the fewest valid pages: the least work now.
    Greedy,
    /// Chooses the block with the greatest age · (1 − u) / 2u, where u is the block's share of valid pages and age the time since a page in
    /// the block was last invalidated (Kawaguchi, Nishioka and Motoda, USENIX 1995). Cold blocks are collected fuller, and hot blocks get
    /// time to empty. Time is counted in invalidations.
    CostBenefit,
    /// Chooses the block that was closed first. This policy is simple, levels wear perfectly and copies most; it exists because its write
    /// amplification has an exact closed form.
    OldestFirst,
}

/// State of garbage collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Collection {
    /// Number of erased blocks.
    pub(crate) free_blocks: u32,
    /// Whether background collection is useful.
    pub(crate) wanted: bool,
    /// Whether the next write has to wait for collection.
    pub(crate) forced: bool,
    /// Whether a block is partly collected.
    pub(crate) under_way: bool,
}

impl Ftl {
    /// Moves up to `pages` valid pages out of the block under collection, chooses a block if none is under collection, and erases the block
    /// once it is empty. Returns false if no block is worth collecting.
    ///
    /// An idle device calls this function in small steps; a write that finds too few free blocks calls it by itself.
    pub(super) fn collect(&mut self, pages: u32, observe: &mut impl FnMut(FlashOperation)) -> bool {
        let Some(mut slot) = self.victim.take().or_else(|| self.choose()) else {
            return false;
        };
        let pages_per_block = self.geometry.spec().pages_per_block;
        let mut moved = 0;
        while slot.programmed < pages_per_block && moved < pages {
            let from = slot.block * pages_per_block + slot.programmed;
            slot.programmed += 1;
            let logical = self.owner[from as usize];
            if self.locate(logical) == Some(from) {
                let to = self.place(logical, PageStream::Collector);
                observe(FlashOperation::Copy { from, to });
                self.counts.collected_pages += 1;
                moved += 1;
            }
        }
        if self.blocks.get(slot.block).valid > 0 {
            self.victim = Some(slot);
        } else {
            self.erase(slot.block, observe);
            self.level(observe);
        }
        true
    }

    /// Collects blocks until the host may open a block.
    pub(super) fn collect_until_reserve(&mut self, observe: &mut impl FnMut(FlashOperation)) {
        while self.blocks.free_count() < self.geometry.reserve() {
            if !self.collect(u32::MAX, observe) {
                break;
            }
        }
    }

    pub(super) fn erase(&mut self, block: u32, observe: &mut impl FnMut(FlashOperation)) {
        self.blocks.erase(block);
        self.counts.erases += 1;
        observe(FlashOperation::Erase { block });
    }

    fn choose(&mut self) -> Option<OpenBlock> {
        let pages_per_block = self.geometry.spec().pages_per_block;
        // Each list has its oldest block first, so its best is its first.
        let mut candidates = (0..pages_per_block).filter_map(|valid| self.blocks.first_with(valid));
        let block = match self.config.collector {
            Collector::Greedy => candidates.next(),
            Collector::CostBenefit => candidates
                .map(|block| (self.benefit(self.blocks.get(block)), block))
                .reduce(|best, other| if other.0 > best.0 { other } else { best })
                .map(|(_, block)| block),
            Collector::OldestFirst => self
                .blocks
                .iter()
                .filter(|(_, block)| block.is_worth_collecting(pages_per_block))
                .map(|(number, _)| number)
                .min_by_key(|&number| self.blocks.closed_at(number)),
        }?;
        self.blocks.take_victim(block);
        Some(OpenBlock {
            block,
            programmed: 0,
        })
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "a score; 53 bits tell blocks apart"
    )]
    fn benefit(&self, block: &Block) -> f64 {
        if block.valid == 0 {
            return f64::INFINITY;
        }
        let share = f64::from(block.valid) / f64::from(self.geometry.spec().pages_per_block);
        let age = (self.blocks.tick() - block.modified) as f64;
        age * (1.0 - share) / (2.0 * share)
    }
}
