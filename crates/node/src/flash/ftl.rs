//! The flash translation layer: a map from logical to physical pages. Pages are written out of place and striped over the chips; host and
//! collector write into separate blocks.
//!
//! The translation layer stores no data and has no clock: it passes each [`FlashOperation`] that a device would execute to an observer.

use super::blocks::Blocks;
use super::gc::{Collection, Collector};
use super::geometry::{Geometry, NONE};

/// Settings of the translation layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FtlConfig {
    /// Policy that chooses the next block to collect.
    pub(super) collector: Collector,
    /// Number of free blocks below which background collection is wanted. Below [`Geometry::reserve`] a write waits for collection, so a
    /// smaller value disables background collection.
    pub(super) collect_below: u32,
    /// Difference between the erase counts of the most and the least worn block from which cold data is moved onto worn blocks. MQSim's
    /// sample configuration (FAST 2018) has 100.
    pub(super) level_above: u32,
}

impl Default for FtlConfig {
    /// Returns a configuration with greedy collection, no background collection, and levelling above 100.
    fn default() -> Self {
        Self {
            collector: Collector::Greedy,
            collect_below: 0,
            level_above: 100,
        }
    }
}

/// Operation of the flash device. Pages are physical page numbers.
#[cfg_attr(
    not(test),
    expect(
        dead_code,
        reason = "nothing but the tests plays what the flash is made to do"
    )
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlashOperation {
    /// Read of a page that is only partly overwritten.
    Read {
        /// Page that holds the old version of the data.
        page: u32,
    },
    /// Programming of a page with data of the host.
    Program {
        /// Programmed page.
        page: u32,
        /// Logical page number of the programmed data.
        logical: u32,
    },
    /// Read of a page and programming of another page with its data, for collection or levelling.
    Copy {
        /// Source page.
        from: u32,
        /// Target page.
        to: u32,
    },
    /// Erase of a block.
    Erase {
        /// Erased block.
        block: u32,
    },
}

/// Counters of flash operations since the device was new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FlashCounters {
    /// Bytes that the host wrote.
    pub(super) host_bytes: u64,
    /// Pages programmed for the host.
    pub(super) host_pages: u64,
    /// Pages copied by collection.
    pub(super) collected_pages: u64,
    /// Pages copied by wear levelling.
    pub(super) levelled_pages: u64,
    /// Pages read because the host overwrote only a part of them.
    pub(super) partial_reads: u64,
    /// Logical pages that the host trimmed.
    pub(super) trimmed_pages: u64,
    /// Blocks erased.
    pub(super) erases: u64,
}

/// Writer of pages: data of similar age stays together because host and collector do not share blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageStream {
    Host,
    Collector,
}

/// Open block and the number of pages programmed in the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenBlock {
    pub(super) block: u32,
    pub(super) programmed: u32,
}

/// Open blocks of one stream, at most one on each chip, used in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frontier {
    pub(super) slots: Vec<Option<OpenBlock>>,
    pub(super) chip: u32,
}

/// Page-mapped flash translation layer.
#[derive(Clone, Debug)]
pub(super) struct Ftl {
    pub(super) geometry: Geometry,
    pub(super) config: FtlConfig,
    /// Physical page of each logical page.
    pub(super) map: Vec<u32>,
    /// Logical page with which a physical page was last programmed. The entry is valid only if `map` maps the logical page back.
    pub(super) owner: Vec<u32>,
    pub(super) blocks: Blocks,
    pub(super) host: Frontier,
    pub(super) collector: Frontier,
    /// Block being collected and the number of pages examined in the block.
    pub(super) victim: Option<OpenBlock>,
    pub(super) counts: FlashCounters,
}

impl Ftl {
    /// Returns a new, empty device.
    pub(super) fn new(geometry: Geometry, config: FtlConfig) -> Self {
        let frontier = Frontier {
            slots: vec![None; geometry.chips() as usize],
            chip: 0,
        };
        Self {
            map: vec![NONE; geometry.logical_pages() as usize],
            owner: vec![NONE; geometry.physical_pages() as usize],
            blocks: Blocks::new(&geometry),
            host: frontier.clone(),
            collector: frontier,
            victim: None,
            counts: FlashCounters::default(),
            geometry,
            config,
        }
    }

    /// Returns the device's geometry.
    pub(super) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the counters since the device was new.
    pub(super) fn counts(&self) -> FlashCounters {
        self.counts
    }

    /// Returns the physical page that holds a logical page. Returns `None` if the logical page was never written, was trimmed or is not in
    /// the device.
    pub(super) fn locate(&self, logical: u32) -> Option<u32> {
        let page = *self.map.get(logical as usize)?;
        (page != NONE).then_some(page)
    }

    /// Writes one logical page, after any collection that the write has to wait for. The caller counts the bytes.
    pub(super) fn write_page(&mut self, logical: u32, observe: &mut impl FnMut(FlashOperation)) {
        if self.blocks.free_count() < self.geometry.reserve() {
            self.collect_until_reserve(observe);
        }
        let page = self.place(logical, PageStream::Host);
        self.counts.host_pages += 1;
        observe(FlashOperation::Program { page, logical });
    }

    /// Trims one logical page.
    pub(super) fn trim_page(&mut self, logical: u32) {
        let page = std::mem::replace(&mut self.map[logical as usize], NONE);
        if page != NONE {
            self.blocks.invalidate(self.geometry.block_of(page));
            self.counts.trimmed_pages += 1;
        }
    }

    /// Writes a new version of a logical page to the open blocks of a stream, and invalidates the old version.
    pub(super) fn place(&mut self, logical: u32, stream: PageStream) -> u32 {
        let (page, full) = self.take_page(stream);
        self.point(logical, page);
        if let Some(block) = full {
            self.blocks.close(block);
        }
        page
    }

    /// Maps a logical page to a physical page.
    pub(super) fn point(&mut self, logical: u32, page: u32) {
        let old = std::mem::replace(&mut self.map[logical as usize], page);
        if old != NONE {
            self.blocks.invalidate(self.geometry.block_of(old));
        }
        self.owner[page as usize] = logical;
        self.blocks.validate(self.geometry.block_of(page));
    }

    /// Returns the next page in the open blocks of a stream, and the page's block if the page was the last of that block.
    fn take_page(&mut self, stream: PageStream) -> (u32, Option<u32>) {
        let frontier = match stream {
            PageStream::Host => &mut self.host,
            PageStream::Collector => &mut self.collector,
        };
        let pages_per_block = self.geometry.spec().pages_per_block;
        let chips = self.geometry.chips();
        for _ in 0..chips {
            let chip = frontier.chip;
            frontier.chip = if chip + 1 == chips { 0 } else { chip + 1 };
            let place = &mut frontier.slots[chip as usize];
            let opened = place.or_else(|| {
                let block = self.blocks.open_on(chip)?;
                Some(OpenBlock {
                    block,
                    programmed: 0,
                })
            });
            if let Some(mut slot) = opened {
                let page = slot.block * pages_per_block + slot.programmed;
                slot.programmed += 1;
                let full = slot.programmed == pages_per_block;
                *place = (!full).then_some(slot);
                return (page, full.then_some(slot.block));
            }
        }
        unreachable!("Geometry::new grants more spare blocks than can be open at once")
    }

    /// Returns the state of garbage collection.
    pub(super) fn collection(&self) -> Collection {
        let free_blocks = self.blocks.free_count();
        Collection {
            free_blocks,
            wanted: free_blocks < self.config.collect_below,
            forced: free_blocks < self.geometry.reserve(),
            under_way: self.victim.is_some(),
        }
    }
}
