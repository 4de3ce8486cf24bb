//! Where a serving engine keeps its KV.

/// Most regions in a layout: far above the layers of any model, and small enough that nothing multiplies out of hand.
pub const MAX_REGIONS: usize = 4096;

/// The KV of one layer: `num_blocks` blocks, the one of block `b` being `block_bytes` contiguous bytes at
/// `base + b * block_stride_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvRegion {
    /// Address of block 0.
    pub base: usize,
    /// Distance between the starts of neighbouring blocks.
    pub block_stride_bytes: usize,
    /// Bytes of one block.
    pub block_bytes: usize,
    /// Number of blocks.
    pub num_blocks: usize,
}

/// Why a layout cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// No layers, or more than any model has.
    #[error("a layout of {count} regions is refused: give one region a layer, 1 to {MAX_REGIONS}")]
    RegionCount {
        /// Number of regions given.
        count: usize,
    },
    /// An address or a size is zero.
    #[error("region {region}: {field} is zero; read it from the tensor's address, strides and shape")]
    Zero {
        /// Index of the region.
        region: usize,
        /// The field that is zero.
        field: &'static str,
    },
    /// Neighbouring blocks would overlap.
    #[error(
        "region {region}: blocks of {block_bytes} bytes overlap at a stride of {block_stride_bytes}; take the stride \
         of the block dimension in bytes, not in elements"
    )]
    Overlap {
        /// Index of the region.
        region: usize,
        /// Bytes of one block.
        block_bytes: usize,
        /// Distance between blocks.
        block_stride_bytes: usize,
    },
    /// The last block, or the page, would end beyond the address space.
    #[error("region {region}: its end lies beyond the address space; check its base, stride and block count")]
    Overflow {
        /// Index of the region.
        region: usize,
    },
}

/// The KV of one group of layers: one region a layer, in the order in which the model computes them.
///
/// The payload of a page is the block's bytes of region 0, then of region 1, and so on, without gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvLayout {
    regions: Vec<KvRegion>,
    page_bytes: usize,
    num_blocks: usize,
}

impl KvLayout {
    /// Checks and takes `regions`.
    ///
    /// # Safety
    ///
    /// Jobs planned from this layout read and write the addresses it names. Until the last of them has left custody
    /// ([`crate::Progress::custody`]), every block of every region must be memory that the copy engine used may read
    /// and write, and no two blocks may share a byte.
    pub unsafe fn new(regions: Vec<KvRegion>) -> Result<KvLayout, LayoutError> {
        let count = regions.len();
        if count == 0 || count > MAX_REGIONS {
            return Err(LayoutError::RegionCount { count });
        }
        let mut page_bytes = 0_usize;
        let mut num_blocks = usize::MAX;
        for (index, region) in regions.iter().enumerate() {
            region.check(index)?;
            page_bytes = page_bytes
                .checked_add(region.block_bytes)
                .filter(|bytes| isize::try_from(*bytes).is_ok())
                .ok_or(LayoutError::Overflow { region: index })?;
            num_blocks = num_blocks.min(region.num_blocks);
        }
        Ok(KvLayout { regions, page_bytes, num_blocks })
    }

    /// The regions, one a layer.
    #[must_use]
    pub fn regions(&self) -> &[KvRegion] {
        &self.regions
    }

    /// Bytes of a page's payload: one block of every region.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Number of blocks that every region has.
    #[must_use]
    pub fn num_blocks(&self) -> usize {
        self.num_blocks
    }
}

impl KvRegion {
    /// Address of `block`, which is below `num_blocks`: [`KvRegion::check`] has seen that it does not overflow.
    pub(crate) fn block_address(&self, block: usize) -> usize {
        debug_assert!(block < self.num_blocks, "block {block} of {}", self.num_blocks);
        self.base + block * self.block_stride_bytes
    }

    fn check(&self, region: usize) -> Result<(), LayoutError> {
        let fields = [
            ("base", self.base),
            ("block_stride_bytes", self.block_stride_bytes),
            ("block_bytes", self.block_bytes),
            ("num_blocks", self.num_blocks),
        ];
        if let Some((field, _)) = fields.into_iter().find(|(_, value)| *value == 0) {
            return Err(LayoutError::Zero { region, field });
        }
        let &KvRegion { block_bytes, block_stride_bytes, num_blocks, .. } = self;
        if num_blocks > 1 && block_bytes > block_stride_bytes {
            return Err(LayoutError::Overlap { region, block_bytes, block_stride_bytes });
        }
        let end = (num_blocks - 1)
            .checked_mul(block_stride_bytes)
            .and_then(|last| last.checked_add(block_bytes))
            .filter(|extent| isize::try_from(*extent).is_ok())
            .and_then(|extent| self.base.checked_add(extent));
        end.map(|_| ()).ok_or(LayoutError::Overflow { region })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: KvRegion = KvRegion { base: 4096, block_stride_bytes: 64, block_bytes: 48, num_blocks: 4 };

    fn layout(regions: &[KvRegion]) -> Result<KvLayout, LayoutError> {
        // SAFETY: these tests plan no job, so no address is ever read or written.
        unsafe { KvLayout::new(regions.to_vec()) }
    }

    #[test]
    fn a_page_is_one_block_of_every_region() {
        let other = KvRegion { block_bytes: 16, num_blocks: 3, ..GOOD };
        let layout = layout(&[GOOD, other]).unwrap();
        assert_eq!((layout.page_bytes(), layout.num_blocks()), (64, 3));
        assert_eq!(layout.regions()[0].block_address(3), 4096 + 3 * 64);
    }

    #[test]
    fn zeros_are_named() {
        for (field, region) in [
            ("base", KvRegion { base: 0, ..GOOD }),
            ("block_stride_bytes", KvRegion { block_stride_bytes: 0, ..GOOD }),
            ("block_bytes", KvRegion { block_bytes: 0, ..GOOD }),
            ("num_blocks", KvRegion { num_blocks: 0, ..GOOD }),
        ] {
            assert_eq!(layout(&[GOOD, region]), Err(LayoutError::Zero { region: 1, field }));
        }
    }

    #[test]
    fn counts_overlaps_and_overflows_are_refused() {
        assert_eq!(layout(&[]), Err(LayoutError::RegionCount { count: 0 }));
        let many = vec![GOOD; MAX_REGIONS + 1];
        assert_eq!(layout(&many), Err(LayoutError::RegionCount { count: MAX_REGIONS + 1 }));
        let wide = KvRegion { block_bytes: 65, ..GOOD };
        assert!(matches!(layout(&[wide]), Err(LayoutError::Overlap { region: 0, .. })));
        assert!(layout(&[KvRegion { num_blocks: 1, ..wide }]).is_ok(), "one block overlaps nothing");
        for region in [
            KvRegion { base: usize::MAX - 10, ..GOOD },
            KvRegion { num_blocks: usize::MAX, ..GOOD },
            KvRegion { block_stride_bytes: usize::MAX, ..GOOD },
        ] {
            assert_eq!(layout(&[region]), Err(LayoutError::Overflow { region: 0 }));
        }
    }
}
