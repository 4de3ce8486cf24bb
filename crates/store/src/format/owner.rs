//! The only block of the `owner` file: how often the directory has been opened.

use super::block::{self, Block, BlockBody, BlockFault};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Body {
    magic: [u8; 8],
    format: U32,
    epoch: U32,
}

impl BlockBody for Body {
    const MAGIC: [u8; 8] = *b"OKVOWNR\0";
}

/// The owner block, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) epoch: u32,
}

impl Owner {
    pub(crate) fn seal(self) -> Block {
        block::seal(&Body { magic: Body::MAGIC, format: U32::ZERO, epoch: self.epoch.into() })
    }

    pub(crate) fn open(block: &Block) -> Result<Self, BlockFault> {
        let body: Body = block::open(block)?;
        Ok(Self { epoch: body.epoch.get() })
    }
}
