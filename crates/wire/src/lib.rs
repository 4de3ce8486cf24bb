//! The OrbitKV protocol, version 1: what goes over the Unix stream socket between a client in an
//! engine process and the cache manager of the host.
//!
//! A frame is a 64-byte [`Header`] and at most [`MAX_PAYLOAD_BYTES`] of payload. Hot payloads are
//! fixed little-endian structs followed by one array (hashes, parts); JSON is used once, for
//! [`Hello`]. Every length is checked before anything is allocated, and every decoded slice borrows
//! from the receive buffer. Segment descriptors travel as `SCM_RIGHTS` beside
//! [`ToClient::Segment`], one each, in order.
#![forbid(unsafe_code)]

mod error;
mod frame;
mod hello;
mod paths;
mod payload;
mod reader;
mod recovery;
mod to_client;
mod to_manager;

pub use error::WireError;
pub use frame::{Header, Kind, MAGIC, MAX_PAYLOAD_BYTES, VERSION, write_frame};
pub use hello::{Hello, HelloGroup, HelloRole, Resume};
pub use paths::default_socket;
pub use payload::{CommitItem, Hash, Part, Slot};
pub use reader::{Frame, FrameReader};
pub use recovery::{MAX_GROUPS, RangeItem, RecoverBody, RecoveredBody, RecoveredItem};
pub use to_client::{GrantStatus, GrantedBody, ToClient, WireMiss};
pub use to_manager::{KeepItem, MAX_KEPT, QueryMode, QueryRule, ToManager};

/// Bytes of the manager's header in front of each slot's payload.
pub const SLOT_HEADER_BYTES: u64 = 4096;
/// Most hashes in one request; keeps a frame below [`MAX_PAYLOAD_BYTES`].
pub const MAX_HASHES: usize = 16_384;
