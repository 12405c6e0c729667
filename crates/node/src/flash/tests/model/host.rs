//! Host of the translation layer: writes and trims ranges of bytes, and counts the resulting operations.

use crate::flash::blocks::BlockState;
use crate::flash::ftl::{FlashCounters, FlashOperation, Ftl};
use crate::flash::geometry::{DeviceSpec, Geometry, NONE};
use crate::flash::snapshot::{SnapshotError, SnapshotReader, SnapshotWriter, VERSION};
use tidemill_model::time::Span;

/// Requested range that is not inside the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("flash device: bytes {offset} to {offset} + {bytes} are not in its {capacity} bytes")]
pub(crate) struct RangeError {
    /// Offset of the first requested byte.
    pub(crate) offset: u64,
    /// Number of requested bytes.
    pub(crate) bytes: u64,
    /// Capacity of the device for its host, in bytes.
    pub(crate) capacity: u64,
}

impl Ftl {
    /// Returns the bytes programmed per byte that the host wrote; 1 before the first write.
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub(crate) fn write_amplification(&self) -> f64 {
        if self.counts.host_bytes == 0 {
            return 1.0;
        }
        let page_bytes = f64::from(self.geometry.spec().page_bytes);
        self.counts.flash_pages() as f64 * page_bytes / self.counts.host_bytes as f64
    }

    /// Writes bytes to the device. A page that is written in part is read first, if it holds data.
    ///
    /// # Errors
    /// [`RangeError`] if the range is not inside the device; then nothing is written.
    pub(crate) fn write(&mut self, offset: u64, bytes: u64) -> Result<(), RangeError> {
        self.write_observed(offset, bytes, &mut |_| ())
    }

    /// Writes bytes like [`Ftl::write`] and passes every operation to `observe`, in the order in which the operations must happen.
    ///
    /// # Errors
    /// As [`Ftl::write`].
    pub(crate) fn write_observed(
        &mut self,
        offset: u64,
        bytes: u64,
        observe: &mut impl FnMut(FlashOperation),
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

    /// Trims the pages that are completely inside a range: their data is discarded and never copied.
    ///
    /// # Errors
    /// [`RangeError`] if the range is not inside the device; then nothing is trimmed.
    pub(crate) fn trim(&mut self, offset: u64, bytes: u64) -> Result<(), RangeError> {
        self.pages_of(offset, bytes)?;
        let page_bytes = u64::from(self.geometry.spec().page_bytes);
        for page in offset.div_ceil(page_bytes)..(offset + bytes) / page_bytes {
            self.trim_page(self.logical(page));
        }
        Ok(())
    }

    /// Returns the logical pages that a range touches. An empty range touches the page in which it starts.
    ///
    /// # Errors
    /// [`RangeError`] if the range is not inside the device.
    pub(crate) fn pages_of(
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

    fn read_part(&mut self, logical: u32, observe: &mut impl FnMut(FlashOperation)) {
        if let Some(page) = self.locate(logical) {
            self.counts.partial_reads += 1;
            observe(FlashOperation::Read { page });
        }
    }

    /// Returns the pages in closed blocks over logical pages: the `alpha` of [`super::closed_form`]. Free blocks are left out, and open
    /// blocks count with their programmed pages.
    #[expect(clippy::cast_precision_loss, reason = "a ratio of page counts")]
    pub(crate) fn pages_in_use_ratio(&self) -> f64 {
        let pages_per_block = u64::from(self.geometry.spec().pages_per_block);
        let slots = self.host.slots.iter().chain(&self.collector.slots);
        let open: u64 = slots.flatten().map(|s| u64::from(s.programmed)).sum();
        let closed = self
            .blocks
            .iter()
            .filter(|(_, block)| block.state == BlockState::Closed)
            .count() as u64;
        (closed * pages_per_block + open) as f64 / f64::from(self.geometry.logical_pages())
    }

    /// Checks that no page is lost, counted twice or in two states.
    pub(crate) fn check(&self) {
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
        assert_eq!(open, in_state(BlockState::Open), "open blocks");
        let victims: Vec<u32> = self.victim.iter().map(|slot| slot.block).collect();
        assert_eq!(victims, in_state(BlockState::Victim), "victims");
        for (block, entry) in self.blocks.iter() {
            assert_eq!(entry.valid, valid[block as usize], "valid in block {block}");
            assert!(entry.state != BlockState::Free || entry.valid == 0);
        }
    }

    /// Returns the number of erases of each block.
    pub(crate) fn erases(&self) -> impl Iterator<Item = u32> + '_ {
        self.blocks.iter().map(|(_, block)| block.erases)
    }

    /// Returns the state of the translation layer as bytes.
    pub(crate) fn save(&self) -> Vec<u8> {
        let mut writer = SnapshotWriter::default();
        writer.put(VERSION);
        self.encode(&mut writer);
        writer.into_bytes()
    }

    /// Restores a translation layer from the bytes of [`Ftl::save`]; the layer continues exactly as the saved layer would.
    ///
    /// # Errors
    /// [`SnapshotError`] if the bytes are no result of `save` of this version.
    pub(crate) fn restore(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let mut reader = SnapshotReader::new(bytes);
        reader.version()?;
        let ftl = Self::decode(&mut reader, NONE)?;
        reader.end()?;
        Ok(ftl)
    }
}

impl FlashCounters {
    /// Returns the number of pages programmed for the host, for collection and for levelling.
    pub(crate) fn flash_pages(&self) -> u64 {
        self.host_pages + self.collected_pages + self.levelled_pages
    }

    /// Returns the difference between these counters and the counters `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
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

impl DeviceSpec {
    /// Returns the prototype of the Active Flash paper (§6, Table 6): 64 GiB and reads of 32 KiB. A read takes 0.75 ms, as in Table 7 (100
    /// MB in 2.4 s). The paper publishes neither the division of this time between chip and channel nor the numbers of chips and blocks:
    /// these values are chosen here.
    pub(crate) fn prototype() -> Self {
        Self {
            channels: 4,
            chips_per_channel: 4,
            blocks_per_chip: 1096,
            pages_per_block: 128,
            page_bytes: 32 << 10,
            read: Span(100_000),
            program: Span(1_300_000),
            erase: Span(3_800_000),
            channel_bytes_per_s: 50_412_308,
            ..Self::default()
        }
    }
}

impl Geometry {
    /// Returns the capacity of the device for the host, in bytes.
    pub(crate) fn logical_bytes(&self) -> u64 {
        u64::from(self.logical_pages()) * u64::from(self.spec().page_bytes)
    }

    /// Returns the chip of a physical page.
    pub(crate) fn chip_of(&self, page: u32) -> u32 {
        self.block_of(page) % self.chips()
    }
}
