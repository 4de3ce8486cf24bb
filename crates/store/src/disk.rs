//! Pages of a cache directory: large, aligned and asynchronous.

use crate::directory::{Directory, FileId};
use crate::error::DiskError;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the file to the buffer.
    Read,
    /// From the buffer to the file.
    Write,
}

/// Who goes first when there is a queue. Nothing starves: see [`Disk::submit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// A request waits for it.
    Demand,
    /// Read ahead of demand.
    Preparation,
    /// Nobody waits: writes, and reads of pages that are moved.
    Background,
}

/// One page to read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<B> {
    /// Comes back with the completion. The caller's to choose; a disk does not look at it.
    pub token: u64,
    /// Which way.
    pub direction: Direction,
    /// Who goes first.
    pub priority: Priority,
    /// Which file.
    pub file: FileId,
    /// Where in it; a multiple of 4 KiB.
    pub offset: u64,
    /// How much; a positive multiple of 4 KiB, and not more than the buffer has.
    pub bytes: u32,
    /// The memory. The disk owns it until the completion: interest may end earlier, custody does not.
    pub buffer: B,
}

/// The end of a request. The buffer is the caller's again.
#[derive(Debug)]
pub struct Completion<B> {
    /// That of the request.
    pub token: u64,
    /// Success means all bytes: what the kernel did only in part was resubmitted. After a failed read the
    /// buffer holds anything; after a failed write the file does, inside the range that was to be written.
    pub result: Result<(), DiskError>,
    /// That of the request.
    pub buffer: B,
}

/// A request that was not taken, and why.
#[derive(Debug)]
pub struct Rejected<B> {
    /// [`DiskError::Busy`]: the queue is full, try again after a completion. Anything else: it will never do.
    pub reason: DiskError,
    /// The request, with its buffer.
    pub request: Request<B>,
}

/// Pages in and out of the files of a directory.
///
/// The contract, which `conformance` checks of every implementation:
/// - each request that was taken completes exactly once, whatever happens, in any order;
/// - the buffer belongs to the disk from `submit` to the completion, also if the disk is told nothing any more;
/// - success is all bytes; the end of the file inside a read is [`DiskError::Short`]; interruptions and partial
///   transfers are the disk's to resume;
/// - a request that is not aligned, empty, or larger than its buffer is refused at `submit`;
/// - a write that has completed is seen by every read submitted later, and by [`Directory::read`];
/// - nothing is durable before [`Directory::sync`].
pub trait Disk: Directory {
    /// Names memory that outlives the request: a range of a registered pool segment, or owned bytes.
    type Buffer;

    /// Takes a request. Higher priority first; but one of a lower priority is passed by a bounded number
    /// of others only.
    ///
    /// # Errors
    /// The request comes back.
    fn submit(&mut self, request: Request<Self::Buffer>) -> Result<(), Rejected<Self::Buffer>>;

    /// Appends what has ended, without waiting for more.
    fn poll(&mut self, done: &mut Vec<Completion<Self::Buffer>>);

    /// Requests that were taken and have not been handed back by [`Disk::poll`].
    fn in_flight(&self) -> usize;
}
