//! What a scheduler tells a worker: which pages, where they are, and whose they are.

use orbitkv_copy::crc64;
use orbitkv_wire::{Hash, MAX_GROUPS, MAX_HASHES, Part, RecoveredItem, Slot};
use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `OKT1`, little-endian; the digit is the version of the layout.
const MAGIC: u32 = u32::from_le_bytes(*b"OKT1");
/// Bytes of the checksum at the end.
const CRC_BYTES: usize = 8;
/// Most parts of one ticket, as many as fit an answer of the manager.
const MAX_PARTS: usize = orbitkv_wire::MAX_PAYLOAD_BYTES / size_of::<Part>();

/// This client never changes what it asked for under one id.
pub(crate) const REVISION: u32 = 1;

/// Which way the pages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TicketKind {
    /// From the pool into KV memory.
    Restore,
    /// From KV memory into the pool.
    Save,
}

/// One shard of a page: where it is, and its checksum (zero in a save).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PagePart {
    /// Segment number.
    pub segment: u32,
    /// Slot of it.
    pub index: u32,
    /// Use of that slot.
    pub generation: u32,
    /// CRC-64/NVME of the payload.
    pub crc: u64,
}

impl From<&Part> for PagePart {
    fn from(part: &Part) -> Self {
        let Slot { segment, index, generation } = part.slot;
        let (segment, index, generation) = (segment.get(), index.get(), generation.get());
        Self { segment, index, generation, crc: part.crc.get() }
    }
}

impl PagePart {
    pub(crate) fn slot(self) -> Slot {
        Slot { segment: self.segment.into(), index: self.index.into(), generation: self.generation.into() }
    }

    fn wire(self) -> Part {
        Part { slot: self.slot(), crc: self.crc.into() }
    }
}

/// A ticket. Opaque to the engine that carries it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Which way.
    pub kind: TicketKind,
    /// Run of the manager that gave the pages.
    pub boot: u128,
    /// Session that owns the operation.
    pub scheduler: u64,
    /// The operation.
    pub operation: u64,
    /// Its version.
    pub revision: u32,
    /// Its pages by cache group: one section, or one for each group of a recovery.
    pub sections: Vec<Section>,
    /// Monotonic time before the manager was asked for what this ticket gives. A worker refuses tickets
    /// older than its own session: its custody of the pages was an earlier session's.
    pub issued_us: u64,
    /// One for each page of a save; empty in a restore.
    pub hashes: Vec<Hash>,
    /// Parts of one section after those of another, each page-major.
    pub parts: Vec<PagePart>,
}

/// Pages of one cache group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// Number used in keys.
    pub group: u16,
    /// First page of a recovery, counted from the start of the sequence; zero in a prefix and a save.
    pub first_page: u32,
    /// How many.
    pub pages: u32,
    /// Shards of each.
    pub shards: u16,
}

impl From<&RecoveredItem> for Section {
    fn from(item: &RecoveredItem) -> Self {
        Self {
            group: item.group.get(),
            first_page: item.first_page.get(),
            pages: item.pages.get(),
            shards: item.shards.get(),
        }
    }
}

impl Section {
    /// Parts of all its pages.
    pub(crate) fn parts(&self) -> usize {
        self.pages as usize * usize::from(self.shards)
    }

    fn wire(self) -> RecoveredItem {
        RecoveredItem {
            group: self.group.into(),
            shards: self.shards.into(),
            first_page: self.first_page.into(),
            pages: self.pages.into(),
        }
    }
}

/// Bytes that are not a ticket, or not the right one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TicketError {
    /// Shorter or longer than its own counts say.
    #[error("ticket of {got} bytes does not fit its counts; pass it on unchanged")]
    Length {
        /// Bytes.
        got: usize,
    },
    /// Other bytes, or another version.
    #[error("these bytes are no ticket of this version; all processes must run the same OrbitKV")]
    Magic,
    /// Damaged on its way.
    #[error("ticket is damaged: checksum {got:#018x}, computed {want:#018x}; pass it on unchanged")]
    Checksum {
        /// What it carries.
        got: u64,
        /// What its bytes give.
        want: u64,
    },
    /// A field outside its range.
    #[error("ticket: {what} is {got}")]
    Value {
        /// Which field.
        what: &'static str,
        /// Its value.
        got: u64,
    },
    /// A save ticket given to `restore`, or the reverse.
    #[error("this is a {got:?} ticket")]
    Kind {
        /// What it is.
        got: TicketKind,
    },
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    magic: U32,
    kind: u8,
    zero: u8,
    sections: U16,
    boot: U128,
    scheduler: U64,
    operation: U64,
    issued_us: U64,
    revision: U32,
    zero_too: U32,
}

impl Ticket {
    /// Number of pages.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.sections.iter().map(|section| section.pages as usize).sum()
    }

    /// The part of each page that a rank copies, in page order.
    #[must_use]
    pub fn parts_of(&self, rank: u16) -> Vec<PagePart> {
        let mut own = Vec::with_capacity(self.pages());
        let mut rest = &self.parts[..];
        for section in &self.sections {
            let (parts, behind) = rest.split_at(section.parts().min(rest.len()));
            let shards = usize::from(section.shards.max(1));
            own.extend(parts.iter().skip(usize::from(rank) % shards).step_by(shards));
            rest = behind;
        }
        own
    }

    /// The bytes that travel.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let head = Head {
            magic: U32::new(MAGIC),
            kind: u8::from(self.kind == TicketKind::Save),
            zero: 0,
            sections: U16::new(u16::try_from(self.sections.len()).unwrap_or(u16::MAX)),
            boot: U128::new(self.boot),
            scheduler: U64::new(self.scheduler),
            operation: U64::new(self.operation),
            issued_us: U64::new(self.issued_us),
            revision: U32::new(self.revision),
            zero_too: U32::ZERO,
        };
        let body_bytes = self.sections.len() * size_of::<RecoveredItem>()
            + self.hashes.len() * size_of::<Hash>()
            + self.parts.len() * size_of::<Part>();
        let mut out = Vec::with_capacity(size_of::<Head>() + body_bytes + CRC_BYTES);
        out.extend_from_slice(head.as_bytes());
        for section in &self.sections {
            out.extend_from_slice(section.wire().as_bytes());
        }
        out.extend_from_slice(self.hashes.as_bytes());
        for part in &self.parts {
            out.extend_from_slice(part.wire().as_bytes());
        }
        let crc = crc64(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads what [`Ticket::encode`] wrote. Every count is checked before anything is allocated.
    ///
    /// # Errors
    /// Any byte that is not as it was written.
    pub fn decode(bytes: &[u8]) -> Result<Self, TicketError> {
        let length = TicketError::Length { got: bytes.len() };
        let (signed, crc) = bytes.split_last_chunk::<CRC_BYTES>().ok_or(length.clone())?;
        let (head, rest) = Head::ref_from_prefix(signed).map_err(|_| length.clone())?;
        if head.magic.get() != MAGIC {
            return Err(TicketError::Magic);
        }
        let count = usize::from(head.sections.get());
        if count == 0 || count > MAX_GROUPS {
            return Err(TicketError::Value { what: "number of cache groups", got: count as u64 });
        }
        let (sections, rest) =
            <[RecoveredItem]>::ref_from_prefix_with_elems(rest, count).map_err(|_| length.clone())?;
        let (pages, parts) = count_pages(sections)?;
        let (kind, hashes) = match head.kind {
            0 => (TicketKind::Restore, 0),
            1 => (TicketKind::Save, pages),
            got => return Err(TicketError::Value { what: "kind", got: u64::from(got) }),
        };
        if rest.len() != hashes * size_of::<Hash>() + parts * size_of::<Part>() {
            return Err(length);
        }
        let (got, want) = (u64::from_le_bytes(*crc), crc64(signed));
        if got != want {
            return Err(TicketError::Checksum { got, want });
        }
        let (hashes, rest) =
            <[Hash]>::ref_from_prefix_with_elems(rest, hashes).map_err(|_| length.clone())?;
        let parts = <[Part]>::ref_from_bytes(rest).map_err(|_| length)?;
        Ok(Self {
            kind,
            boot: head.boot.get(),
            scheduler: head.scheduler.get(),
            operation: head.operation.get(),
            revision: head.revision.get(),
            sections: sections.iter().map(Section::from).collect(),
            issued_us: head.issued_us.get(),
            hashes: hashes.to_vec(),
            parts: parts.iter().map(PagePart::from).collect(),
        })
    }
}

/// Pages and parts of all sections, within their limits.
fn count_pages(sections: &[RecoveredItem]) -> Result<(usize, usize), TicketError> {
    let (mut pages, mut parts) = (0, 0);
    for section in sections {
        let shards = section.shards.get();
        pages += section.pages.get() as usize;
        if pages > MAX_HASHES {
            return Err(TicketError::Value { what: "page count", got: pages as u64 });
        }
        parts += section.pages.get() as usize * usize::from(shards);
        if shards == 0 || parts > MAX_PARTS {
            return Err(TicketError::Value { what: "shard count", got: u64::from(shards) });
        }
    }
    Ok((pages, parts))
}
