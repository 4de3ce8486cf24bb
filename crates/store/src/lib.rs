//! The SSD tier's segment log: format, writer, recovery and eviction, without threads, clocks or io_uring.
//!
//! A cache directory holds segment files of one size, a checkpoint that lists them, and an owner file that
//! one process locks. Pages are appended to the open segment, header and payload in one write out of the
//! pool slot; a full segment gets a footer and is only read from then on; the oldest is evicted whole. Nothing
//! is synced on the way: a crash may lose the newest segments, and whatever it left is proven by checksums,
//! name, place and generation at each read.
//!
//! The caller's I/O thread drives it:
//!
//! ```text
//! Log::open → recover until None
//! write: append → put the header into the slot → Disk::submit → completion → written
//! read:  locate → Disk::submit → completion → CRC of the payload → check
//! room:  wants_eviction → evict → tell the index what is lost; read, append_again and let_go of what is hot
//! now and then: shrink, resume       at the end: close
//! ```
//!
//! `docs/ssd-format.md` describes the bytes for readers in other languages.
#![forbid(unsafe_code)]

mod config;
mod contents;
mod directory;
mod disk;
mod error;
mod eviction;
mod extent;
mod file_disk;
mod format;
mod host_directory;
mod inspection;
mod lock_holder;
mod log;
mod page;
mod recovery;
mod room;
mod seal;
mod segment;
mod survey;
mod writer;

#[cfg(feature = "sim")]
pub mod conformance;
#[cfg(feature = "sim")]
pub mod sim;

pub use config::LogConfig;
pub use contents::Source;
pub use directory::{Directory, FileEntry, FileId, FileSize, Space};
pub use disk::{Completion, Direction, Disk, Priority, Rejected, Request};
pub use error::{Advice, AppendError, DirectoryError, DiskError, Mismatch, StoreError};
pub use eviction::Eviction;
pub use extent::Extent;
pub use file_disk::FileDisk;
pub use format::{BLOCK_BYTES, Block, Digest, FORMAT, PageHeader, crc64};
pub use host_directory::HostDirectory;
pub use inspection::{InspectedPage, InspectedSegment, Inspection, Overview, PageFault, Part, SegmentFault};
pub use lock_holder::lock_holder;
pub use log::{Log, Placement, ReadAt, page_bytes};
pub use page::{Expected, PageName, PageRecord, StoredPage};
pub use recovery::{Progress, Recovered};
pub use room::Usage;
