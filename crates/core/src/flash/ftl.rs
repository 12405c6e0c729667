//! The flash translation layer: a map from logical to physical pages. Pages are written out of place,
//! striped over the chips, host and collector each into blocks of their own.
//!
//! It keeps no data and no time: [`Operation`] tells whoever does what the flash would be made to do.

use super::blocks::Blocks;
use super::gc::{Collection, Collector};
use super::geometry::{Geometry, NONE};

/// How the translation layer is to behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Config {
    /// Which block is collected next.
    pub(super) collector: Collector,
    /// Collection in the background is wanted below this many free blocks. Below
    /// [`Geometry::reserve`] a write waits for it, so a smaller value means no background collection.
    pub(super) collect_below: u32,
    /// Cold data is moved onto worn blocks when the most worn block has been erased this many times more
    /// often than the least worn one. MQSim's sample configuration (FAST 2018) has 100.
    pub(super) level_above: u32,
}

impl Default for Config {
    /// Greedy, nothing in the background, levelling above 100.
    fn default() -> Self {
        Self {
            collector: Collector::Greedy,
            collect_below: 0,
            level_above: 100,
        }
    }
}

/// One thing that the flash is made to do. Pages are physical page numbers.
#[cfg_attr(
    not(test),
    expect(
        dead_code,
        reason = "nothing but the tests plays what the flash is made to do"
    )
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Read a page because only part of it is overwritten.
    Read {
        /// The page that holds the old version.
        page: u32,
    },
    /// Program a page with data of the host.
    Program {
        /// The page programmed.
        page: u32,
        /// Logical page number whose data it holds.
        logical: u32,
    },
    /// Read a page and program another with it, for collection or levelling.
    Copy {
        /// Where the data was.
        from: u32,
        /// Where it is now.
        to: u32,
    },
    /// Erase a block.
    Erase {
        /// The block.
        block: u32,
    },
}

/// What has been done since the device was new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Bytes the host wrote.
    pub(super) host_bytes: u64,
    /// Pages programmed for the host.
    pub(super) host_pages: u64,
    /// Pages copied by collection.
    pub(super) collected_pages: u64,
    /// Pages copied by wear levelling.
    pub(super) levelled_pages: u64,
    /// Pages read because the host wrote a part of them.
    pub(super) partial_reads: u64,
    /// Logical pages that the host gave up.
    pub(super) trimmed_pages: u64,
    /// Blocks erased.
    pub(super) erases: u64,
}

/// Who writes: data of one age stays together if the two don't share blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Host,
    Collector,
}

/// An open block and how many of its pages are programmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) block: u32,
    pub(super) programmed: u32,
}

/// The open blocks of one stream, at most one for each chip, taken in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frontier {
    pub(super) slots: Vec<Option<Slot>>,
    pub(super) chip: u32,
}

/// A page-mapped translation layer.
#[derive(Clone, Debug)]
pub(super) struct Ftl {
    pub(super) geometry: Geometry,
    pub(super) config: Config,
    /// Physical page of each logical one.
    pub(super) map: Vec<u32>,
    /// Logical page that a physical one was last programmed with. Holds only if `map` points back.
    pub(super) owner: Vec<u32>,
    pub(super) blocks: Blocks,
    pub(super) host: Frontier,
    pub(super) collector: Frontier,
    /// The block being collected and how many of its pages have been looked at.
    pub(super) victim: Option<Slot>,
    pub(super) counts: Counts,
}

impl Ftl {
    /// A new, empty device.
    #[must_use]
    pub(super) fn new(geometry: Geometry, config: Config) -> Self {
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
            counts: Counts::default(),
            geometry,
            config,
        }
    }

    /// The device's make.
    #[must_use]
    pub(super) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// What has been done since it was new.
    #[must_use]
    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// The physical page that holds a logical one; none if it was never written, was trimmed or is not in
    /// the device.
    #[must_use]
    pub(super) fn locate(&self, logical: u32) -> Option<u32> {
        let page = *self.map.get(logical as usize)?;
        (page != NONE).then_some(page)
    }

    /// Writes one logical page, after whatever collection that needs. Bytes are counted by the caller.
    pub(super) fn write_page(&mut self, logical: u32, observe: &mut impl FnMut(Operation)) {
        if self.blocks.free_count() < self.geometry.reserve() {
            self.collect_until_reserve(observe);
        }
        let page = self.place(logical, Stream::Host);
        self.counts.host_pages += 1;
        observe(Operation::Program { page, logical });
    }

    /// Gives up one logical page.
    pub(super) fn trim_page(&mut self, logical: u32) {
        let page = std::mem::replace(&mut self.map[logical as usize], NONE);
        if page != NONE {
            self.blocks.invalidate(self.geometry.block_of(page));
            self.counts.trimmed_pages += 1;
        }
    }

    /// Puts a new version of a logical page at the frontier of a stream, and forgets the old one.
    pub(super) fn place(&mut self, logical: u32, stream: Stream) -> u32 {
        let (page, full) = self.take_page(stream);
        self.point(logical, page);
        if let Some(block) = full {
            self.blocks.close(block);
        }
        page
    }

    /// Makes the map point from a logical to a physical page.
    pub(super) fn point(&mut self, logical: u32, page: u32) {
        let old = std::mem::replace(&mut self.map[logical as usize], page);
        if old != NONE {
            self.blocks.invalidate(self.geometry.block_of(old));
        }
        self.owner[page as usize] = logical;
        self.blocks.validate(self.geometry.block_of(page));
    }

    /// The next page of a stream's frontier, and its block if that page was its last.
    fn take_page(&mut self, stream: Stream) -> (u32, Option<u32>) {
        let frontier = match stream {
            Stream::Host => &mut self.host,
            Stream::Collector => &mut self.collector,
        };
        let pages_per_block = self.geometry.spec().pages_per_block;
        let chips = self.geometry.chips();
        for _ in 0..chips {
            let chip = frontier.chip;
            frontier.chip = if chip + 1 == chips { 0 } else { chip + 1 };
            let place = &mut frontier.slots[chip as usize];
            let opened = place.or_else(|| {
                let block = self.blocks.open_on(chip)?;
                Some(Slot {
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

    /// How far collection is.
    #[must_use]
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
