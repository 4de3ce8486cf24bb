//! Messages from the manager.

use crate::payload::{array, front};
use crate::recovery::{RecoveredBody, decode_boundaries};
use crate::{Kind, MAX_HASHES, MAX_PAYLOAD_BYTES, Part, WireError};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Why a query has no pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WireMiss {
    /// Not here.
    Absent = 0,
    /// Instance not active.
    Inactive = 1,
    /// Deadline passed.
    Deadline = 2,
    /// Operation lifetime passed.
    Lifetime = 3,
    /// Too many operations.
    Limit = 4,
    /// Lease not handed out in time: release it, the manager keeps the pages until then. Or a preparation not
    /// claimed in time: it has ended.
    Expired = 5,
    /// Nothing of it fits now: into a budget, or into memory.
    Budget = 6,
}

impl WireMiss {
    fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            0 => Self::Absent,
            1 => Self::Inactive,
            2 => Self::Deadline,
            3 => Self::Lifetime,
            4 => Self::Limit,
            5 => Self::Expired,
            6 => Self::Budget,
            _ => return None,
        })
    }
}

/// Answer for one page of a reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum GrantStatus {
    /// Write it.
    Slots = 0,
    /// Sealed, or being saved.
    Exists = 1,
    /// Later.
    Busy = 2,
    /// No.
    Refused = 3,
}

impl GrantStatus {
    fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            0 => Self::Slots,
            1 => Self::Exists,
            2 => Self::Busy,
            3 => Self::Refused,
            _ => return None,
        })
    }
}

/// Body of a granted message: a status for each page in request order, and `shards` parts for each
/// page with slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantedBody<'a> {
    /// Shards of a page.
    pub shards: u16,
    /// One [`GrantStatus`] a page, checked.
    pub statuses: &'a [u8],
    /// Parts of the granted pages, page-major.
    pub parts: &'a [Part],
}

impl GrantedBody<'_> {
    /// Status of page `i`.
    #[must_use]
    pub fn status(&self, i: usize) -> Option<GrantStatus> {
        self.statuses.get(i).copied().and_then(GrantStatus::from_u8)
    }
}

/// A manager's message. Operation id and revision are in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToClient<'a> {
    /// Accepted: the session number is in the header.
    Welcome {
        /// Random identity of this run of the manager.
        boot: u128,
    },
    /// Not accepted.
    Rejected {
        /// Why, for people.
        text: &'a str,
    },
    /// The query waits for budget or reads.
    Waiting,
    /// A preparation has these pages leased.
    Prepared {
        /// How many.
        pages: u32,
    },
    /// A warm-up has ended.
    Warmed {
        /// Pages that it brought into memory.
        pages: u32,
    },
    /// The query has pages.
    Ready {
        /// How many.
        pages: u32,
        /// Shards of each.
        shards: u16,
        /// `pages × shards`, page-major.
        parts: &'a [Part],
    },
    /// A recovery has all its pages.
    Recovered(RecoveredBody<'a>),
    /// Tokens at which a recovery could end, ascending.
    Candidates(&'a [U32]),
    /// It has none.
    Miss(WireMiss),
    /// What the slower tier had to do with a query whose final answer comes next.
    TierReads {
        /// Pages of that answer that were read for it, and not in memory before.
        pages: u32,
        /// Pages behind them that are stored, and not in the answer: the query did not want them read, or
        /// not for so long.
        left_pages: u32,
        /// From the admission of the query to its answer; zero if nothing was to be read.
        micros: u64,
    },
    /// Answer to a reserve.
    Granted(GrantedBody<'a>),
    /// A rule was broken.
    Refused {
        /// Which, for people.
        text: &'a str,
    },
    /// Hits and saves are on or off.
    InstanceState {
        /// On.
        active: bool,
    },
    /// Please answer `Fenced`.
    Fence {
        /// The ended scheduler session.
        scheduler: u64,
    },
    /// A segment whose descriptor comes with this frame.
    Segment {
        /// Its number.
        segment: u32,
        /// Bytes from slot to slot.
        slot_bytes: u64,
        /// Bytes in all.
        bytes: u64,
    },
    /// Unmap that segment.
    SegmentGone {
        /// Its number.
        segment: u32,
    },
    /// The reset with this operation id is done.
    ResetDone,
}

const WAITING: u8 = 0;
const PREPARED: u8 = 3;
const WARMED: u8 = 4;
const READY: u8 = 1;
const MISS: u8 = 2;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct OperationHead {
    state: u8,
    miss: u8,
    shards: U16,
    pages: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct TierReadsBody {
    pages: U32,
    left_pages: U32,
    micros: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct GrantedHead {
    pages: U32,
    shards: U16,
    zero: U16,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SegmentBody {
    segment: U32,
    zero: U32,
    slot_bytes: U64,
    bytes: U64,
}

impl<'a> ToClient<'a> {
    /// Kind of its frame.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Welcome { .. } => Kind::Welcome,
            Self::Rejected { .. } => Kind::Rejected,
            Self::Waiting
            | Self::Prepared { .. }
            | Self::Warmed { .. }
            | Self::Ready { .. }
            | Self::Miss(_) => Kind::Operation,
            Self::Recovered(_) => Kind::Recovered,
            Self::Candidates(_) => Kind::CandidatesFound,
            Self::TierReads { .. } => Kind::TierReads,
            Self::Granted(_) => Kind::Granted,
            Self::Refused { .. } => Kind::Refused,
            Self::InstanceState { .. } => Kind::InstanceState,
            Self::Fence { .. } => Kind::Fence,
            Self::Segment { .. } => Kind::Segment,
            Self::SegmentGone { .. } => Kind::SegmentGone,
            Self::ResetDone => Kind::ResetDone,
        }
    }

    /// Writes the payload into `out`, which is cleared first.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        let operation = |out: &mut Vec<u8>, state, miss, pages, shards| {
            let head = OperationHead { state, miss, shards: U16::new(shards), pages: U32::new(pages) };
            out.extend_from_slice(head.as_bytes());
        };
        match *self {
            Self::Welcome { boot } => out.extend_from_slice(&boot.to_le_bytes()),
            Self::Rejected { text } | Self::Refused { text } => out.extend_from_slice(text.as_bytes()),
            Self::Waiting => operation(out, WAITING, 0, 0, 0),
            Self::Prepared { pages } => operation(out, PREPARED, 0, pages, 0),
            Self::Warmed { pages } => operation(out, WARMED, 0, pages, 0),
            Self::Miss(reason) => operation(out, MISS, reason as u8, 0, 0),
            Self::Ready { pages, shards, parts } => {
                operation(out, READY, 0, pages, shards);
                out.extend_from_slice(parts.as_bytes());
            }
            Self::Recovered(body) => body.encode(out),
            Self::Candidates(boundaries) => out.extend_from_slice(boundaries.as_bytes()),
            Self::TierReads { pages, left_pages, micros } => {
                let body = TierReadsBody {
                    pages: U32::new(pages),
                    left_pages: U32::new(left_pages),
                    micros: U64::new(micros),
                };
                out.extend_from_slice(body.as_bytes());
            }
            Self::Granted(body) => {
                let pages = U32::new(u32::try_from(body.statuses.len()).unwrap_or(u32::MAX));
                let head = GrantedHead { pages, shards: U16::new(body.shards), zero: U16::ZERO };
                out.extend_from_slice(head.as_bytes());
                out.extend_from_slice(body.statuses);
                out.extend_from_slice(body.parts.as_bytes());
            }
            Self::InstanceState { active } => out.push(u8::from(active)),
            Self::Fence { scheduler } => out.extend_from_slice(&scheduler.to_le_bytes()),
            Self::Segment { segment, slot_bytes, bytes } => {
                let body = SegmentBody {
                    segment: U32::new(segment),
                    zero: U32::ZERO,
                    slot_bytes: U64::new(slot_bytes),
                    bytes: U64::new(bytes),
                };
                out.extend_from_slice(body.as_bytes());
            }
            Self::SegmentGone { segment } => out.extend_from_slice(&segment.to_le_bytes()),
            Self::ResetDone => {}
        }
    }

    /// Reads a payload. Borrows; allocates nothing.
    ///
    /// # Errors
    /// A payload that does not fit its kind, or a client's kind.
    pub fn decode(kind: Kind, payload: &'a [u8]) -> Result<Self, WireError> {
        let name = kind.name();
        let shape = || WireError::Shape { kind: name, got: payload.len() };
        Ok(match kind {
            Kind::Welcome => {
                Self::Welcome { boot: u128::from_le_bytes(payload.try_into().map_err(|_| shape())?) }
            }
            Kind::Rejected => Self::Rejected { text: text(payload) },
            Kind::Refused => Self::Refused { text: text(payload) },
            Kind::Operation => decode_operation(name, payload)?,
            Kind::Recovered => Self::Recovered(RecoveredBody::decode(name, payload)?),
            Kind::CandidatesFound => Self::Candidates(decode_boundaries(name, payload)?),
            Kind::TierReads => match front::<TierReadsBody>(name, payload)? {
                (body, []) => Self::TierReads {
                    pages: body.pages.get(),
                    left_pages: body.left_pages.get(),
                    micros: body.micros.get(),
                },
                _ => return Err(shape()),
            },
            Kind::Granted => decode_granted(name, payload)?,
            Kind::InstanceState => match payload {
                [0] => Self::InstanceState { active: false },
                [1] => Self::InstanceState { active: true },
                _ => return Err(shape()),
            },
            Kind::Fence => {
                Self::Fence { scheduler: u64::from_le_bytes(payload.try_into().map_err(|_| shape())?) }
            }
            Kind::Segment => match front::<SegmentBody>(name, payload)? {
                (body, []) => Self::Segment {
                    segment: body.segment.get(),
                    slot_bytes: body.slot_bytes.get(),
                    bytes: body.bytes.get(),
                },
                _ => return Err(shape()),
            },
            Kind::SegmentGone => {
                Self::SegmentGone { segment: u32::from_le_bytes(payload.try_into().map_err(|_| shape())?) }
            }
            Kind::ResetDone if payload.is_empty() => Self::ResetDone,
            Kind::ResetDone => return Err(shape()),
            other => return Err(WireError::Kind(other as u16)),
        })
    }
}

/// Text for people: whatever of it is UTF-8.
fn text(payload: &[u8]) -> &str {
    match std::str::from_utf8(payload) {
        Ok(text) => text,
        Err(e) => std::str::from_utf8(&payload[..e.valid_up_to()]).unwrap_or_default(),
    }
}

const MAX_PARTS: usize = MAX_PAYLOAD_BYTES / size_of::<Part>();

fn decode_operation<'a>(name: &'static str, payload: &'a [u8]) -> Result<ToClient<'a>, WireError> {
    let (head, rest) = front::<OperationHead>(name, payload)?;
    let (pages, shards) = (head.pages.get(), head.shards.get());
    let parts = array::<Part>(name, rest, MAX_PARTS)?;
    let value = |what, got| WireError::Value { kind: name, what, got };
    if parts.len() as u64 != u64::from(pages) * u64::from(shards) {
        return Err(WireError::Shape { kind: name, got: payload.len() });
    }
    match head.state {
        WAITING => Ok(ToClient::Waiting),
        // Their pages are a number alone: no shards, so no parts.
        PREPARED | WARMED if shards > 0 => Err(value("shards", u64::from(shards))),
        PREPARED => Ok(ToClient::Prepared { pages }),
        WARMED => Ok(ToClient::Warmed { pages }),
        // Nothing behind it would bound the number of pages.
        READY if shards == 0 && pages > 0 => Err(value("shards", 0)),
        READY => Ok(ToClient::Ready { pages, shards, parts }),
        MISS => WireMiss::from_u8(head.miss)
            .map(ToClient::Miss)
            .ok_or_else(|| value("miss reason", u64::from(head.miss))),
        other => Err(value("state", u64::from(other))),
    }
}

fn decode_granted<'a>(name: &'static str, payload: &'a [u8]) -> Result<ToClient<'a>, WireError> {
    let (head, rest) = front::<GrantedHead>(name, payload)?;
    let pages = head.pages.get() as usize;
    let shape = WireError::Shape { kind: name, got: payload.len() };
    if pages > MAX_HASHES {
        return Err(WireError::TooMany { what: name, got: pages, max: MAX_HASHES });
    }
    let (statuses, rest) = rest.split_at_checked(pages).ok_or_else(|| shape.clone())?;
    if let Some(bad) = statuses.iter().find(|s| GrantStatus::from_u8(**s).is_none()) {
        return Err(WireError::Value { kind: name, what: "status", got: u64::from(*bad) });
    }
    let parts = array::<Part>(name, rest, MAX_PARTS)?;
    let granted = statuses.iter().filter(|s| **s == GrantStatus::Slots as u8).count();
    let shards = head.shards.get();
    if shards == 0 && granted > 0 {
        return Err(WireError::Value { kind: name, what: "shards", got: 0 });
    }
    if parts.len() != granted * usize::from(shards) {
        return Err(shape);
    }
    Ok(ToClient::Granted(GrantedBody { shards, statuses, parts }))
}
