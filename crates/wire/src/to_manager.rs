//! Messages from a client.

use crate::payload::{array, front};
use crate::recovery::{RecoverBody, decode_candidates};
use crate::{CommitItem, Hash, Kind, MAX_HASHES, Slot, WireError};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What a query is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum QueryMode {
    /// Pages are needed now; for a live preparation of the same pages this is the claim.
    #[default]
    Demand = 0,
    /// They will be needed soon, by this operation.
    Prepare = 1,
    /// They may be needed, by anybody.
    WarmUp = 2,
}

/// What answer a query takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueryRule {
    /// What for.
    pub mode: QueryMode,
    /// All of it or nothing.
    pub strict: bool,
    /// Neither batches nor deadlines cut it short.
    pub wait_full_prefix: bool,
    /// Nothing is read for it: the answer is what is in memory.
    pub memory_only: bool,
}

const STRICT: u8 = 1;
const WAIT_FULL_PREFIX: u8 = 2;
const MEMORY_ONLY: u8 = 4;

impl QueryMode {
    pub(crate) fn decode(name: &'static str, mode: u8) -> Result<Self, WireError> {
        match mode {
            0 => Ok(Self::Demand),
            1 => Ok(Self::Prepare),
            2 => Ok(Self::WarmUp),
            got => Err(WireError::Value { kind: name, what: "mode", got: u64::from(got) }),
        }
    }
}

impl QueryRule {
    fn flags(self) -> u8 {
        u8::from(self.strict) * STRICT
            + u8::from(self.wait_full_prefix) * WAIT_FULL_PREFIX
            + u8::from(self.memory_only) * MEMORY_ONLY
    }

    fn decode(name: &'static str, mode: u8, flags: u8) -> Result<Self, WireError> {
        let mode = QueryMode::decode(name, mode)?;
        if flags & !(STRICT | WAIT_FULL_PREFIX | MEMORY_ONLY) != 0 {
            return Err(WireError::Value { kind: name, what: "flags", got: u64::from(flags) });
        }
        let set = |flag| flags & flag != 0;
        let (strict, wait_full_prefix, memory_only) = (set(STRICT), set(WAIT_FULL_PREFIX), set(MEMORY_ONLY));
        Ok(Self { mode, strict, wait_full_prefix, memory_only })
    }
}

/// An operation that is still wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct KeepItem {
    /// Which of the sender's.
    pub operation: U64,
    /// Which version of it.
    pub revision: U32,
    /// Zero.
    pub zero: U32,
}

/// A client's message. Operation id and revision are in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToManager<'a> {
    /// JSON, see [`crate::Hello::decode`].
    Hello(&'a [u8]),
    /// Self-test verdict.
    Attest {
        /// Both probes passed.
        passed: bool,
    },
    /// A demand, or a read ahead of one.
    Query {
        /// Cache group.
        group: u16,
        /// Wait for budget and reads at most this long; zero: operation lifetime.
        deadline_ms: u32,
        /// What for, and what answer it takes.
        rule: QueryRule,
        /// Block hashes in prefix order.
        hashes: &'a [Hash],
    },
    /// A demand for a token boundary, or a read ahead of one.
    Recover(RecoverBody<'a>),
    /// At which boundaries could a recovery end?
    Candidates {
        /// The engine holds what it needs up to here.
        start_tokens: u32,
        /// Hashes from the first token on.
        hashes: &'a [Hash],
    },
    /// Hand pages of the lease out.
    Restore {
        /// The first of them, in the order of the lease.
        first: u32,
        /// How many: at least one, and all of a recovery.
        pages: u32,
    },
    /// These preparations are still wanted.
    Keep(&'a [KeepItem]),
    /// End the lease.
    Release,
    /// End interest.
    Cancel,
    /// This worker's copy ended.
    CopyDone {
        /// Scheduler session of the ticket.
        session: u64,
        /// Its operation.
        operation: u64,
        /// Its revision.
        revision: u32,
    },
    /// Bytes do not match.
    BadPage {
        /// Where.
        slot: Slot,
    },
    /// Slots for saving.
    Reserve {
        /// Cache group.
        group: u16,
        /// Hash of the block before the first one.
        parent: Option<Hash>,
        /// Depth of the first page, in pages.
        first_depth: u32,
        /// Block hashes in prefix order.
        hashes: &'a [Hash],
    },
    /// Slots are written.
    Commit(&'a [CommitItem]),
    /// Slots come back.
    Abort(&'a [Slot]),
    /// Attestation about an ended scheduler session.
    Fenced {
        /// That session.
        scheduler: u64,
    },
    /// Forget pages.
    Forget {
        /// Cache group.
        group: u16,
        /// Which.
        hashes: &'a [Hash],
    },
    /// Forget the namespace.
    Reset,
    /// All copies of that earlier session ended.
    CopiesEnded {
        /// The earlier session.
        session: u64,
    },
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct QueryHead {
    deadline_ms: U32,
    group: U16,
    mode: u8,
    flags: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ReserveHead {
    first_depth: U32,
    group: U16,
    has_parent: U16,
    parent: Hash,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct TicketBody {
    session: U64,
    operation: U64,
    revision: U32,
    zero: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RestoreBody {
    first: U32,
    pages: U32,
}

/// Most operations in one keep: all that may be live.
pub const MAX_KEPT: usize = 1_024;
/// Most slots in one commit or abort.
const MAX_SLOTS: usize = 8_192;

impl<'a> ToManager<'a> {
    /// Kind of its frame.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Hello(_) => Kind::Hello,
            Self::Attest { .. } => Kind::Attest,
            Self::Query { .. } => Kind::Query,
            Self::Recover(_) => Kind::Recover,
            Self::Candidates { .. } => Kind::Candidates,
            Self::Restore { .. } => Kind::Restore,
            Self::Keep(_) => Kind::Keep,
            Self::Release => Kind::Release,
            Self::Cancel => Kind::Cancel,
            Self::CopyDone { .. } => Kind::CopyDone,
            Self::BadPage { .. } => Kind::BadPage,
            Self::Reserve { .. } => Kind::Reserve,
            Self::Commit(_) => Kind::Commit,
            Self::Abort(_) => Kind::Abort,
            Self::Fenced { .. } => Kind::Fenced,
            Self::Forget { .. } => Kind::Forget,
            Self::Reset => Kind::Reset,
            Self::CopiesEnded { .. } => Kind::CopiesEnded,
        }
    }

    /// Writes the payload into `out`, which is cleared first.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        match *self {
            Self::Hello(json) => out.extend_from_slice(json),
            Self::Attest { passed } => out.push(u8::from(passed)),
            Self::Query { group, deadline_ms, rule, hashes } => {
                let (deadline_ms, group) = (U32::new(deadline_ms), U16::new(group));
                let head = QueryHead { deadline_ms, group, mode: rule.mode as u8, flags: rule.flags() };
                out.extend_from_slice(head.as_bytes());
                out.extend_from_slice(hashes.as_bytes());
            }
            Self::Recover(ref body) => body.encode(out),
            Self::Candidates { start_tokens, hashes } => {
                out.extend_from_slice(U32::new(start_tokens).as_bytes());
                out.extend_from_slice(hashes.as_bytes());
            }
            Self::Keep(items) => out.extend_from_slice(items.as_bytes()),
            Self::Restore { first, pages } => {
                out.extend_from_slice(RestoreBody { first: first.into(), pages: pages.into() }.as_bytes());
            }
            Self::Release | Self::Cancel | Self::Reset => {}
            Self::CopyDone { session, operation, revision } => {
                let body = TicketBody {
                    session: U64::new(session),
                    operation: U64::new(operation),
                    revision: U32::new(revision),
                    zero: U32::ZERO,
                };
                out.extend_from_slice(body.as_bytes());
            }
            Self::BadPage { slot } => out.extend_from_slice(slot.as_bytes()),
            Self::Reserve { group, parent, first_depth, hashes } => {
                let head = ReserveHead {
                    first_depth: U32::new(first_depth),
                    group: U16::new(group),
                    has_parent: U16::new(u16::from(parent.is_some())),
                    parent: parent.unwrap_or_default(),
                };
                out.extend_from_slice(head.as_bytes());
                out.extend_from_slice(hashes.as_bytes());
            }
            Self::Commit(items) => out.extend_from_slice(items.as_bytes()),
            Self::Abort(slots) => out.extend_from_slice(slots.as_bytes()),
            Self::Fenced { scheduler: id } | Self::CopiesEnded { session: id } => {
                out.extend_from_slice(U64::new(id).as_bytes());
            }
            Self::Forget { group, hashes } => {
                out.extend_from_slice(U16::new(group).as_bytes());
                out.extend_from_slice(hashes.as_bytes());
            }
        }
    }

    /// Reads a payload. Borrows; allocates nothing.
    ///
    /// # Errors
    /// A payload that does not fit its kind, or a manager's kind.
    pub fn decode(kind: Kind, payload: &'a [u8]) -> Result<Self, WireError> {
        let name = kind.name();
        let nothing = |message| match payload {
            [] => Ok(message),
            _ => Err(WireError::Shape { kind: name, got: payload.len() }),
        };
        let id = || match front::<U64>(name, payload)? {
            (id, []) => Ok(id.get()),
            _ => Err(WireError::Shape { kind: name, got: payload.len() }),
        };
        Ok(match kind {
            Kind::Hello => Self::Hello(payload),
            Kind::Attest => match payload {
                [0] => Self::Attest { passed: false },
                [1] => Self::Attest { passed: true },
                _ => {
                    return Err(WireError::Shape { kind: name, got: payload.len() });
                }
            },
            Kind::Query => {
                let (head, rest) = front::<QueryHead>(name, payload)?;
                let hashes = array(name, rest, MAX_HASHES)?;
                let rule = QueryRule::decode(name, head.mode, head.flags)?;
                Self::Query { group: head.group.get(), deadline_ms: head.deadline_ms.get(), rule, hashes }
            }
            Kind::Recover => Self::Recover(RecoverBody::decode(name, payload)?),
            Kind::Candidates => {
                let (start_tokens, hashes) = decode_candidates(name, payload)?;
                Self::Candidates { start_tokens, hashes }
            }
            Kind::Restore => decode_restore(name, payload)?,
            Kind::Keep => Self::Keep(array(name, payload, MAX_KEPT)?),
            Kind::Release => return nothing(Self::Release),
            Kind::Cancel => return nothing(Self::Cancel),
            Kind::Reset => return nothing(Self::Reset),
            Kind::CopyDone => decode_copy_done(name, payload)?,
            Kind::BadPage => match front::<Slot>(name, payload)? {
                (slot, []) => Self::BadPage { slot: *slot },
                _ => {
                    return Err(WireError::Shape { kind: name, got: payload.len() });
                }
            },
            Kind::Reserve => decode_reserve(name, payload)?,
            Kind::Commit => Self::Commit(array(name, payload, MAX_SLOTS)?),
            Kind::Abort => Self::Abort(array(name, payload, MAX_SLOTS)?),
            Kind::Fenced => Self::Fenced { scheduler: id()? },
            Kind::CopiesEnded => Self::CopiesEnded { session: id()? },
            Kind::Forget => {
                let (group, rest) = front::<U16>(name, payload)?;
                Self::Forget { group: group.get(), hashes: array(name, rest, MAX_HASHES)? }
            }
            other => return Err(WireError::Kind(other as u16)),
        })
    }
}

fn decode_restore<'a>(name: &'static str, payload: &'a [u8]) -> Result<ToManager<'a>, WireError> {
    match front::<RestoreBody>(name, payload)? {
        (body, []) => Ok(ToManager::Restore { first: body.first.get(), pages: body.pages.get() }),
        _ => Err(WireError::Shape { kind: name, got: payload.len() }),
    }
}

fn decode_copy_done<'a>(name: &'static str, payload: &'a [u8]) -> Result<ToManager<'a>, WireError> {
    match front::<TicketBody>(name, payload)? {
        (body, []) => Ok(ToManager::CopyDone {
            session: body.session.get(),
            operation: body.operation.get(),
            revision: body.revision.get(),
        }),
        _ => Err(WireError::Shape { kind: name, got: payload.len() }),
    }
}

fn decode_reserve<'a>(name: &'static str, payload: &'a [u8]) -> Result<ToManager<'a>, WireError> {
    let (head, rest) = front::<ReserveHead>(name, payload)?;
    let parent = match head.has_parent.get() {
        0 => None,
        1 => Some(head.parent),
        got => {
            return Err(WireError::Value { kind: name, what: "has_parent", got: u64::from(got) });
        }
    };
    Ok(ToManager::Reserve {
        group: head.group.get(),
        parent,
        first_depth: head.first_depth.get(),
        hashes: array(name, rest, MAX_HASHES)?,
    })
}
