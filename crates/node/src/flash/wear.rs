//! Wear of blocks: counts erases, computes the remaining life, and levels wear.
//!
//! Wear is levelled in two ways. First, a block that is opened is the least worn free block of its chip, which levels wear among blocks
//! that are written. Second, if the spread still grows beyond a threshold, cold data is moved from a young block onto the most worn free
//! block, and the young block is then written like the others.

use super::blocks::BlockState;
use super::ftl::{FlashOperation, Ftl};

/// Number of erases between two moves of cold data, so that levelling costs little while it reduces a large spread.
const ERASES_BETWEEN_MOVES: u64 = 16;

/// Erase counts over all blocks of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Wear {
    /// Erase count of the least worn block.
    pub(crate) erases_min: u32,
    /// Mean erase count of all blocks.
    pub(crate) erases_mean: f64,
    /// Erase count of the most worn block.
    pub(crate) erases_max: u32,
    /// Used share of the device's endurance: mean erases over endured cycles; a number above 1 exceeds the endurance.
    pub(crate) used: f64,
}

impl Ftl {
    /// Returns the current erase counts of the device.
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub(super) fn wear(&self) -> Wear {
        let (erases_min, erases_max) = self.blocks.wear_range();
        let erases_mean = self.counts.erases as f64 / f64::from(self.geometry.blocks());
        Wear {
            erases_min,
            erases_mean,
            erases_max,
            used: erases_mean / f64::from(self.geometry.spec().endurance_erases),
        }
    }

    /// Moves the data of the least worn closed block onto the most worn free block, if the spread of erase counts is too wide.
    pub(super) fn level(&mut self, observe: &mut impl FnMut(FlashOperation)) {
        let (least, most) = self.blocks.wear_range();
        let due = self.counts.erases.is_multiple_of(ERASES_BETWEEN_MOVES);
        // One free block is filled before the cold one is freed; the collector must still find another.
        if !due || most - least <= self.config.level_above || self.blocks.free_count() < 2 {
            return;
        }
        let closed = self
            .blocks
            .iter()
            .filter(|(_, b)| b.state == BlockState::Closed);
        let Some((cold, _)) = closed
            .filter(|(_, block)| most - block.erases > self.config.level_above)
            .min_by_key(|(_, block)| block.erases)
        else {
            return;
        };
        let Some(worn) = self.blocks.open_most_worn() else {
            return;
        };
        self.move_block(cold, worn, observe);
    }

    fn move_block(&mut self, cold: u32, worn: u32, observe: &mut impl FnMut(FlashOperation)) {
        self.blocks.take_victim(cold);
        let pages_per_block = self.geometry.spec().pages_per_block;
        let mut to = worn * pages_per_block;
        for from in cold * pages_per_block..(cold + 1) * pages_per_block {
            let logical = self.owner[from as usize];
            if self.locate(logical) == Some(from) {
                self.point(logical, to);
                observe(FlashOperation::Copy { from, to });
                self.counts.levelled_pages += 1;
                to += 1;
            }
        }
        // Unprogrammed pages count as garbage until the block is collected, as they did in the old one.
        self.blocks.close(worn);
        self.erase(cold, observe);
    }
}
