//! The fixed structs inside payloads.

use crate::WireError;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A block hash: 32 opaque bytes, shorter engine hashes padded with zeros at the end.
pub type Hash = [u8; 32];

/// A slot at one generation.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Slot {
    /// Segment number.
    pub segment: U32,
    /// Slot of it.
    pub index: U32,
    /// Use of that slot.
    pub generation: U32,
}

/// One shard of a page: where it is and the CRC-64/NVME of its payload (zero while it is being saved).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Part {
    /// Where.
    pub slot: Slot,
    /// Checksum.
    pub crc: U64,
}

/// One written slot.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CommitItem {
    /// Which slot.
    pub slot: Slot,
    /// Page it was reserved for.
    pub hash: Hash,
    /// CRC-64/NVME of the payload.
    pub crc: U64,
}

/// Splits a fixed struct off the front of a payload.
pub(crate) fn front<'a, T>(kind: &'static str, payload: &'a [u8]) -> Result<(&'a T, &'a [u8]), WireError>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    T::ref_from_prefix(payload).map_err(|_| WireError::Shape { kind, got: payload.len() })
}

/// Reads all of a payload as an array of at most `max` structs.
pub(crate) fn array<'a, T>(kind: &'static str, payload: &'a [u8], max: usize) -> Result<&'a [T], WireError>
where
    T: FromBytes + Immutable + Unaligned,
{
    let size = size_of::<T>();
    let count = payload.len() / size;
    if count > max {
        return Err(WireError::TooMany { what: kind, got: count, max });
    }
    <[T]>::ref_from_bytes(payload).map_err(|_| WireError::Shape { kind, got: payload.len() })
}
