//! Messages about recoveries: all that several cache groups need at one token boundary.

use crate::payload::{array, front};
use crate::{Hash, MAX_HASHES, MAX_PAYLOAD_BYTES, Part, QueryMode, WireError};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Most cache groups of an engine.
pub const MAX_GROUPS: usize = 64;
/// Most boundaries in one answer: as many as there are hashes in the question.
const MAX_BOUNDARIES: usize = MAX_HASHES;
const MAX_PARTS: usize = MAX_PAYLOAD_BYTES / size_of::<Part>();

/// Pages of one cache group, in a demand.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct RangeItem {
    /// Number used in keys.
    pub group: U16,
    /// Zero.
    pub zero: U16,
    /// First page, counted from the start of the sequence.
    pub first_page: U32,
    /// Page after the last one.
    pub end_page: U32,
}

/// Pages of one cache group, in an answer.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct RecoveredItem {
    /// Number used in keys.
    pub group: U16,
    /// Shards of each page.
    pub shards: U16,
    /// First page, counted from the start of the sequence.
    pub first_page: U32,
    /// How many.
    pub pages: U32,
}

/// A demand for a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoverBody<'a> {
    /// The engine holds what it needs up to here.
    pub start_tokens: u32,
    /// Where it will go on.
    pub end_tokens: u32,
    /// As in a query.
    pub deadline_ms: u32,
    /// What for.
    pub mode: QueryMode,
    /// What the engine has room for; empty: whatever its contract says.
    pub ranges: &'a [RangeItem],
    /// Hashes from the first token on.
    pub hashes: &'a [Hash],
}

/// All pages of a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveredBody<'a> {
    /// Group by group.
    pub ranges: &'a [RecoveredItem],
    /// Parts of one range after those of another, each page-major.
    pub parts: &'a [Part],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RecoverHead {
    start_tokens: U32,
    end_tokens: U32,
    deadline_ms: U32,
    ranges: U16,
    mode: u8,
    zero: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RecoveredHead {
    ranges: U32,
}

impl<'a> RecoverBody<'a> {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let head = RecoverHead {
            start_tokens: U32::new(self.start_tokens),
            end_tokens: U32::new(self.end_tokens),
            deadline_ms: U32::new(self.deadline_ms),
            ranges: U16::new(u16::try_from(self.ranges.len()).unwrap_or(u16::MAX)),
            mode: self.mode as u8,
            zero: 0,
        };
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(self.ranges.as_bytes());
        out.extend_from_slice(self.hashes.as_bytes());
    }

    pub(crate) fn decode(name: &'static str, payload: &'a [u8]) -> Result<Self, WireError> {
        let (head, rest) = front::<RecoverHead>(name, payload)?;
        let (ranges, rest) = split::<RangeItem>(name, rest, usize::from(head.ranges.get()), MAX_GROUPS)?;
        Ok(Self {
            start_tokens: head.start_tokens.get(),
            end_tokens: head.end_tokens.get(),
            deadline_ms: head.deadline_ms.get(),
            mode: QueryMode::decode(name, head.mode)?,
            ranges,
            hashes: array(name, rest, MAX_HASHES)?,
        })
    }
}

impl<'a> RecoveredBody<'a> {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let ranges = U32::new(u32::try_from(self.ranges.len()).unwrap_or(u32::MAX));
        out.extend_from_slice(RecoveredHead { ranges }.as_bytes());
        out.extend_from_slice(self.ranges.as_bytes());
        out.extend_from_slice(self.parts.as_bytes());
    }

    /// Every range has pages, every page has shards, and there is a part for each of them.
    pub(crate) fn decode(name: &'static str, payload: &'a [u8]) -> Result<Self, WireError> {
        let (head, rest) = front::<RecoveredHead>(name, payload)?;
        let (ranges, rest) = split::<RecoveredItem>(name, rest, head.ranges.get() as usize, MAX_GROUPS)?;
        let parts = array::<Part>(name, rest, MAX_PARTS)?;
        let value = |what| WireError::Value { kind: name, what, got: 0 };
        let mut named = 0;
        for range in ranges {
            if range.pages.get() == 0 {
                return Err(value("pages"));
            }
            if range.shards.get() == 0 {
                return Err(value("shards"));
            }
            named += u64::from(range.pages.get()) * u64::from(range.shards.get());
        }
        if named != parts.len() as u64 {
            return Err(WireError::Shape { kind: name, got: payload.len() });
        }
        Ok(Self { ranges, parts })
    }
}

pub(crate) fn decode_candidates<'a>(
    name: &'static str,
    payload: &'a [u8],
) -> Result<(u32, &'a [Hash]), WireError> {
    let (start, rest) = front::<U32>(name, payload)?;
    Ok((start.get(), array(name, rest, MAX_HASHES)?))
}

pub(crate) fn decode_boundaries<'a>(name: &'static str, payload: &'a [u8]) -> Result<&'a [U32], WireError> {
    array(name, payload, MAX_BOUNDARIES)
}

/// Splits so many structs off the front of a payload.
fn split<'a, T>(
    name: &'static str,
    payload: &'a [u8],
    count: usize,
    max: usize,
) -> Result<(&'a [T], &'a [u8]), WireError>
where
    T: FromBytes + Immutable + Unaligned,
{
    if count > max {
        return Err(WireError::TooMany { what: name, got: count, max });
    }
    <[T]>::ref_from_prefix_with_elems(payload, count)
        .map_err(|_| WireError::Shape { kind: name, got: payload.len() })
}
