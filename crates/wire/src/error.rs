//! What can be wrong with bytes from the other side.

use thiserror::Error;

/// A frame that is not one. The connection is closed; nobody else is affected.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    /// Not this protocol.
    #[error("magic {got:#010x} is not OrbitKV's {want:#010x}", want = crate::MAGIC)]
    Magic {
        /// What came.
        got: u32,
    },
    /// Another version of it.
    #[error("protocol version {got}; this side speaks {want}: upgrade the older one", want = crate::VERSION)]
    Version {
        /// What came.
        got: u16,
    },
    /// A kind this version does not have.
    #[error("frame kind {0} is unknown")]
    Kind(u16),
    /// A length above the limit.
    #[error("payload of {got} bytes; at most {max} are allowed", max = crate::MAX_PAYLOAD_BYTES)]
    TooLong {
        /// What came.
        got: u64,
    },
    /// A checksum mismatch.
    #[error("frame checksum {got:#010x}, computed {want:#010x}")]
    Checksum {
        /// What came.
        got: u32,
        /// What the bytes give.
        want: u32,
    },
    /// A payload shorter or longer than its kind and counts say.
    #[error("{kind} payload of {got} bytes does not fit its counts")]
    Shape {
        /// Which message.
        kind: &'static str,
        /// Payload bytes.
        got: usize,
    },
    /// A field outside its range.
    #[error("{kind}: {what} is {got}")]
    Value {
        /// Which message.
        kind: &'static str,
        /// Which field.
        what: &'static str,
        /// Its value.
        got: u64,
    },
    /// The JSON of a hello.
    #[error("hello: {0}")]
    Json(String),
    /// The caller tried to send more than the limits allow.
    #[error("{what}: {got} items; at most {max} fit a frame")]
    TooMany {
        /// Which list.
        what: &'static str,
        /// Its length.
        got: usize,
        /// The limit.
        max: usize,
    },
}
