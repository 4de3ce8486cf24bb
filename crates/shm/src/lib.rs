//! Shared memory between the cache manager and its clients: sealed memfd segments, their maps, huge pages,
//! file descriptors over Unix sockets, and the identity of a socket's peer.
//!
//! What a page means is unknown here: a segment is a number of bytes. Every access is bounds-checked, and a segment
//! can neither shrink nor grow, so no access inside the bounds can raise SIGBUS, whatever the other side does.

pub mod fds;
pub mod memory;
pub mod peer;

mod error;
mod heap;
mod huge_pages;
mod mapping;
mod place;
mod populate;
mod region;
mod segment;

pub use error::ShmError;
pub use fds::{MAX_FDS, recv_with_fds, send_with_fds};
pub use heap::Heap;
pub use huge_pages::{ShmemHugePages, shmem_huge_pages};
pub use mapping::Mapping;
pub use memory::{AvailableMemory, available_memory, available_memory_under};
pub use peer::{PeerCredentials, PidfdError, peer_credentials, peer_pidfd};
pub use region::Region;
pub use segment::{PAGE_BYTES, Segment};
