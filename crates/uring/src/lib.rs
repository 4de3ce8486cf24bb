//! Pages between files and memory: [`orbitkv_store::Disk`] over io_uring with O_DIRECT, and over threads with
//! pread and pwrite where that is refused.
//!
//! [`PageDisk`] belongs to one I/O thread, which drives it:
//!
//! ```text
//! PageDisk::open → log DiskMode → add_segment for each pool segment
//! loop: wait(timeout) → take commands → submit … → poll → oldest_in_flight: trip the breaker?
//! ```
//!
//! Others wake that thread with a [`Waker`]. The memory of a request belongs to the disk until its completion,
//! whoever has lost interest meanwhile; the kernel never holds an address that could be unmapped or freed. A disk
//! that is dropped waits for what the kernel has; what does not end in time is leaked, with the directory's lock.
//!
//! What lies in a page, and which page is worth reading, is unknown here.

mod background;
mod buffer;
mod config;
mod disk;
mod engine;
mod error;
#[cfg(feature = "faults")]
pub mod faults;
mod files;
mod job;
mod mode;
mod page_cache;
mod page_io;
mod ring;
mod self_test;
mod threads;
mod waiting;
mod waker;

pub use buffer::{BufferError, IoBuffer};
pub use config::{DiskConfig, DiskEngine};
pub use disk::PageDisk;
pub use error::OpenError;
pub use mode::{DiskMode, Engine};
pub use page_io::PageIo;
pub use waker::Waker;
