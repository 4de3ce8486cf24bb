//! Where a page lies, in 64 bits.

/// Blocks of the largest segment (1 GiB): 18 bits.
const BLOCK_BITS: u32 = 18;
/// Lives of one segment file before the number comes round: 24 bits.
const LIFE_BITS: u32 = 24;
/// Segment files: 22 bits.
pub(crate) const SEGMENT_BITS: u32 = 22;

/// The place of a page: segment, position in it, and which life of the segment is meant. The index holds it
/// as a plain number ([`Extent::bits`]).
///
/// The life counts reuses of a segment since the directory was opened: an extent of an earlier one names
/// nothing, and no I/O is needed to know that. It is not on disk; an extent is worth nothing after a restart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent(u64);

impl Extent {
    /// Larger numbers are cut: the callers keep to the limits of their types.
    pub(crate) fn new(segment: u32, life: u32, block: u32) -> Self {
        let cut = |value: u32, bits: u32| u64::from(value) & ((1 << bits) - 1);
        let high = cut(segment, SEGMENT_BITS) << (LIFE_BITS + BLOCK_BITS);
        Self(high | cut(life, LIFE_BITS) << BLOCK_BITS | cut(block, BLOCK_BITS))
    }

    /// As a number for an index.
    #[must_use]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// From such a number. Any number will do: one that was never given out names nothing.
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Number of the segment.
    #[must_use]
    pub fn segment(self) -> u32 {
        self.part(LIFE_BITS + BLOCK_BITS, SEGMENT_BITS)
    }

    /// Position of the page's header in it, in blocks of 4 KiB.
    #[must_use]
    pub fn block(self) -> u32 {
        self.part(0, BLOCK_BITS)
    }

    pub(crate) fn life(self) -> u32 {
        self.part(BLOCK_BITS, LIFE_BITS)
    }

    fn part(self, shift: u32, bits: u32) -> u32 {
        u32::try_from((self.0 >> shift) & ((1 << bits) - 1)).unwrap_or(u32::MAX)
    }
}

/// The life after that one.
pub(crate) fn next_life(life: u32) -> u32 {
    (life + 1) & ((1 << LIFE_BITS) - 1)
}

impl std::fmt::Debug for Extent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "segment {} (life {}) block {}", self.segment(), self.life(), self.block())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back_at_their_limits() {
        for (segment, life, block) in [(0, 0, 0), (1, 2, 3), ((1 << 22) - 1, (1 << 24) - 1, (1 << 18) - 1)] {
            let extent = Extent::from_bits(Extent::new(segment, life, block).bits());
            assert_eq!((extent.segment(), extent.life(), extent.block()), (segment, life, block));
        }
        assert_eq!(next_life((1 << 24) - 1), 0);
    }
}
