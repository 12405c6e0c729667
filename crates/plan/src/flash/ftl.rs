//! The flash translation layer: a map from logical to physical pages. Pages are written out of place,
//! striped over the chips, host and collector each into blocks of their own.
//!
//! It keeps no data and no time: [`Operation`] tells whoever does what the flash would be made to do.

use super::blocks::{Blocks, State};
use super::gc::{Collection, Collector};
use super::geometry::{Geometry, NONE};

/// How the translation layer is to behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Which block is collected next.
    pub collector: Collector,
    /// Collection in the background is wanted below this many free blocks. Below
    /// [`Geometry::reserve`] a write waits for it, so a smaller value means no background collection.
    pub collect_below: u32,
    /// Cold data is moved onto worn blocks when the most worn block has been erased this many times more
    /// often than the least worn one. MQSim's sample configuration (FAST 2018) has 100.
    pub level_above: u32,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
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
pub struct Counts {
    /// Bytes the host wrote.
    pub host_bytes: u64,
    /// Pages programmed for the host.
    pub host_pages: u64,
    /// Pages copied by collection.
    pub collected_pages: u64,
    /// Pages copied by wear levelling.
    pub levelled_pages: u64,
    /// Pages read because the host wrote a part of them.
    pub partial_reads: u64,
    /// Logical pages that the host gave up.
    pub trimmed_pages: u64,
    /// Blocks erased.
    pub erases: u64,
}

impl Counts {
    /// Pages programmed in all.
    #[must_use]
    pub fn flash_pages(&self) -> u64 {
        self.host_pages + self.collected_pages + self.levelled_pages
    }

    /// What has been done since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            host_bytes: self.host_bytes - earlier.host_bytes,
            host_pages: self.host_pages - earlier.host_pages,
            collected_pages: self.collected_pages - earlier.collected_pages,
            levelled_pages: self.levelled_pages - earlier.levelled_pages,
            partial_reads: self.partial_reads - earlier.partial_reads,
            trimmed_pages: self.trimmed_pages - earlier.trimmed_pages,
            erases: self.erases - earlier.erases,
        }
    }
}

/// A range that is not inside the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("flash device: bytes {offset} to {offset} + {bytes} are not in its {capacity} bytes")]
pub struct RangeError {
    /// First byte asked for.
    pub offset: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// Bytes the device has for its host.
    pub capacity: u64,
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
pub struct Ftl {
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
    pub fn new(geometry: Geometry, config: Config) -> Self {
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
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// What has been done since it was new.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Bytes programmed for each byte the host wrote; 1 before the first.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub fn write_amplification(&self) -> f64 {
        if self.counts.host_bytes == 0 {
            return 1.0;
        }
        let page_bytes = f64::from(self.geometry.spec().page_bytes);
        self.counts.flash_pages() as f64 * page_bytes / self.counts.host_bytes as f64
    }

    /// The physical page that holds a logical one; none if it was never written, was trimmed or is not in
    /// the device.
    #[must_use]
    pub fn locate(&self, logical: u32) -> Option<u32> {
        let page = *self.map.get(logical as usize)?;
        (page != NONE).then_some(page)
    }

    /// Writes bytes. A page that is written in part is read first, if it holds anything.
    ///
    /// # Errors
    /// [`RangeError`] if the range is not inside the device; then nothing is written.
    pub fn write(&mut self, offset: u64, bytes: u64) -> Result<(), RangeError> {
        self.write_observed(offset, bytes, &mut |_| ())
    }

    /// As [`Ftl::write`]; every operation is told to `observe` in the order in which it has to happen.
    ///
    /// # Errors
    /// As [`Ftl::write`].
    pub fn write_observed(
        &mut self,
        offset: u64,
        bytes: u64,
        observe: &mut impl FnMut(Operation),
    ) -> Result<(), RangeError> {
        if bytes == 0 {
            return self.pages_of(offset, bytes).map(|_| ());
        }
        let pages = self.pages_of(offset, bytes)?;
        let page_bytes = u64::from(self.geometry.spec().page_bytes);
        let (first, last) = (*pages.start(), *pages.end());
        let head_is_part = !offset.is_multiple_of(page_bytes);
        let tail_is_part = !(offset + bytes).is_multiple_of(page_bytes);
        for page in pages {
            if (page == first && head_is_part) || (page == last && tail_is_part) {
                self.read_part(page, observe);
            }
            self.write_page(page, observe);
        }
        self.counts.host_bytes += bytes;
        Ok(())
    }

    /// Gives up the pages that lie wholly in a range: what they held is gone and need not be copied.
    ///
    /// # Errors
    /// [`RangeError`] if the range is not inside the device; then nothing is given up.
    pub fn trim(&mut self, offset: u64, bytes: u64) -> Result<(), RangeError> {
        self.pages_of(offset, bytes)?;
        let page_bytes = u64::from(self.geometry.spec().page_bytes);
        for page in offset.div_ceil(page_bytes)..(offset + bytes) / page_bytes {
            self.trim_page(self.logical(page));
        }
        Ok(())
    }

    /// The logical pages that a range touches.
    ///
    /// # Errors
    /// [`RangeError`] if it is not inside the device. An empty range gives the page it starts in.
    pub fn pages_of(
        &self,
        offset: u64,
        bytes: u64,
    ) -> Result<std::ops::RangeInclusive<u32>, RangeError> {
        let capacity = self.geometry.logical_bytes();
        let page_bytes = u64::from(self.geometry.spec().page_bytes);
        match offset.checked_add(bytes) {
            Some(end) if end <= capacity => {
                let last = (end.max(offset + 1) - 1) / page_bytes;
                Ok(self.logical(offset / page_bytes)..=self.logical(last))
            }
            _ => Err(RangeError {
                offset,
                bytes,
                capacity,
            }),
        }
    }

    fn logical(&self, page: u64) -> u32 {
        let last = self.geometry.logical_pages();
        u32::try_from(page).map_or(last, |page| page.min(last))
    }

    fn read_part(&mut self, logical: u32, observe: &mut impl FnMut(Operation)) {
        if let Some(page) = self.locate(logical) {
            self.counts.partial_reads += 1;
            observe(Operation::Read { page });
        }
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
    pub fn collection(&self) -> Collection {
        let free_blocks = self.blocks.free_count();
        Collection {
            free_blocks,
            wanted: free_blocks < self.config.collect_below,
            forced: free_blocks < self.geometry.reserve(),
            under_way: self.victim.is_some(),
        }
    }

    /// Pages in closed blocks, free blocks left out and open ones counted as far as they are programmed,
    /// over logical pages: the `alpha` of [`super::closed_form`].
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio of page counts")]
    pub fn pages_in_use_ratio(&self) -> f64 {
        let pages_per_block = u64::from(self.geometry.spec().pages_per_block);
        let slots = self.host.slots.iter().chain(&self.collector.slots);
        let open: u64 = slots.flatten().map(|s| u64::from(s.programmed)).sum();
        let closed = self
            .blocks
            .iter()
            .filter(|(_, block)| block.state == State::Closed)
            .count() as u64;
        (closed * pages_per_block + open) as f64 / f64::from(self.geometry.logical_pages())
    }

    /// Nothing is lost, counted twice or in two states.
    #[cfg(test)]
    pub(super) fn check(&self) {
        self.blocks.check();
        let mut valid = vec![0; self.geometry.blocks() as usize];
        for (logical, &page) in (0u32..).zip(&self.map) {
            if page != NONE {
                assert_eq!(self.owner[page as usize], logical, "map and owner disagree");
                valid[self.geometry.block_of(page) as usize] += 1;
            }
        }
        let slots = self.host.slots.iter().chain(&self.collector.slots);
        let mut open: Vec<u32> = slots.flatten().map(|slot| slot.block).collect();
        open.sort_unstable();
        let in_state = |state| {
            let all = self.blocks.iter();
            all.filter(move |(_, block)| block.state == state)
                .map(|(block, _)| block)
                .collect::<Vec<_>>()
        };
        assert_eq!(open, in_state(State::Open), "open blocks");
        let victims: Vec<u32> = self.victim.iter().map(|slot| slot.block).collect();
        assert_eq!(victims, in_state(State::Victim), "victims");
        for (block, entry) in self.blocks.iter() {
            assert_eq!(entry.valid, valid[block as usize], "valid in block {block}");
            assert!(entry.state != State::Free || entry.valid == 0);
        }
    }
}
