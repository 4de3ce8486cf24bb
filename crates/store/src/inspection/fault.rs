//! What an inspection finds wrong.

use crate::error::{DiskError, Mismatch};
use crate::format::BLOCK_BYTES_U64;
use thiserror::Error;

/// Why a page is not what the directory says of it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PageFault {
    /// The device gave an error, or the file ends inside the page.
    #[error("the page cannot be read: {0}")]
    Unreadable(DiskError),
    /// It was read, and is something else.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
}

/// What is wrong with a segment beside the pages that were found in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SegmentFault {
    /// Cut, or grown by somebody else.
    #[error("the file has {bytes} bytes and was written with {expected_bytes}")]
    Size {
        /// What it has.
        bytes: u64,
        /// What its head or the checkpoint says.
        expected_bytes: u64,
    },
    /// No segment has this size, and nothing tells which one it had.
    #[error("the file has {bytes} bytes, which no segment has, and no head")]
    NoSegment {
        /// What it has.
        bytes: u64,
    },
    /// Its first block cannot be read, or is of no use of this segment.
    #[error("the head of the segment is damaged")]
    Head,
    /// It was sealed, and the footer cannot be used.
    #[error("the footer of the segment is damaged; its pages were looked for by their headers")]
    Footer {
        /// Where the trailer is, in blocks.
        block: u64,
    },
    /// A page was here; its name is not known.
    #[error("the page header is damaged, and nothing else tells which page it was")]
    PageHeader {
        /// Where, in blocks.
        block: u64,
    },
    /// The checkpoint counts more pages than were found.
    #[error("{pages} pages that the checkpoint counts are not in the segment any more")]
    Lost {
        /// How many.
        pages: u64,
    },
}

impl SegmentFault {
    /// Where in the file, in bytes; nothing where no single place is meant.
    #[must_use]
    pub fn offset_bytes(&self) -> Option<u64> {
        match *self {
            Self::Size { bytes, expected_bytes } => Some(bytes.min(expected_bytes)),
            Self::NoSegment { .. } | Self::Head => Some(0),
            Self::Footer { block } | Self::PageHeader { block } => Some(block * BLOCK_BYTES_U64),
            Self::Lost { .. } => None,
        }
    }
}
