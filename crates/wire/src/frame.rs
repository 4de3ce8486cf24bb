//! The frame header.

use crate::WireError;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `OKV1`, little-endian.
pub const MAGIC: u32 = u32::from_le_bytes(*b"OKV1");
/// Protocol version. A reader refuses any other.
pub const VERSION: u16 = 2;
/// Most payload bytes of one frame.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 20;

/// The 64 bytes in front of every payload. All fields little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: U32,
    /// [`VERSION`].
    pub version: U16,
    /// A [`Kind`].
    pub kind: U16,
    /// Session the frame belongs to; zero before the welcome.
    pub session: U64,
    /// Epoch of the client's connection.
    pub epoch: U32,
    /// Revision of the operation, or zero.
    pub revision: U32,
    /// Operation id, or zero.
    pub operation: U64,
    /// Payload bytes.
    pub length: U32,
    /// CRC-32 (IEEE) of the header with this field zero, then the payload.
    pub crc: U32,
    /// Zero in this version.
    pub reserved: [u8; 24],
}

const _: () = assert!(size_of::<Header>() == 64);

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $value:literal,)+) => {
        /// What a frame says. Client kinds are below 128, manager kinds from 128.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Kind { $($(#[$doc])* $name = $value,)+ }

        impl Kind {
            /// All kinds.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The kind with that number.
            ///
            /// # Errors
            /// [`WireError::Kind`] for a number this version does not have.
            pub fn from_u16(value: u16) -> Result<Self, WireError> {
                match value { $($value => Ok(Self::$name),)+ other => Err(WireError::Kind(other)) }
            }

            /// Name, for errors and traces.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)+ }
            }
        }
    };
}

kinds! {
    /// JSON [`crate::Hello`]; the first frame of a connection.
    Hello = 1,
    /// A worker's self-test verdict.
    Attest = 2,
    /// A foreground demand.
    Query = 3,
    /// Hand a lease to the workers.
    Restore = 4,
    /// End a lease.
    Release = 5,
    /// End interest.
    Cancel = 6,
    /// A worker's part of a restore ended.
    CopyDone = 7,
    /// Restored bytes do not match.
    BadPage = 8,
    /// Ask for slots to save into.
    Reserve = 9,
    /// Slots are written.
    Commit = 10,
    /// Slots come back unwritten.
    Abort = 11,
    /// No copy for an ended scheduler session runs or will start.
    Fenced = 12,
    /// Forget pages.
    Forget = 13,
    /// Forget a namespace.
    Reset = 14,
    /// All copies of an earlier session of this client ended.
    CopiesEnded = 15,
    /// What has been prepared is still wanted.
    Keep = 16,
    /// A demand for all that a token boundary needs.
    Recover = 17,
    /// A question where a recovery could end.
    Candidates = 18,
    /// The hello is accepted.
    Welcome = 128,
    /// The hello is not; the connection closes.
    Rejected = 129,
    /// State of a query.
    Operation = 130,
    /// Answer to a reserve.
    Granted = 131,
    /// A request broke a rule.
    Refused = 132,
    /// Hits and saves are on or off.
    InstanceState = 133,
    /// Please answer `Fenced`.
    Fence = 134,
    /// A segment; its descriptor comes with this frame.
    Segment = 135,
    /// A segment is no more.
    SegmentGone = 136,
    /// A reset has been carried out.
    ResetDone = 137,
    /// A recovery has all its pages.
    Recovered = 138,
    /// Where a recovery could end.
    CandidatesFound = 139,
    /// What the slower tier had to do with a query; its answer comes next.
    TierReads = 140,
}

impl Header {
    /// A header for `payload`, checksum included.
    ///
    /// # Errors
    /// [`WireError::TooLong`].
    pub fn new(
        kind: Kind,
        session: u64,
        epoch: u32,
        operation: u64,
        revision: u32,
        payload: &[u8],
    ) -> Result<Self, WireError> {
        if payload.len() > MAX_PAYLOAD_BYTES {
            return Err(WireError::TooLong { got: payload.len() as u64 });
        }
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let mut header = Self {
            magic: U32::new(MAGIC),
            version: U16::new(VERSION),
            kind: U16::new(kind as u16),
            session: U64::new(session),
            epoch: U32::new(epoch),
            revision: U32::new(revision),
            operation: U64::new(operation),
            length: U32::new(length),
            crc: U32::new(0),
            reserved: [0; 24],
        };
        header.crc = U32::new(header.checksum(payload));
        Ok(header)
    }

    /// Checks everything a header alone shows, before the payload is awaited.
    ///
    /// # Errors
    /// Magic, version, kind or length.
    pub fn check(&self) -> Result<Kind, WireError> {
        if self.magic.get() != MAGIC {
            return Err(WireError::Magic { got: self.magic.get() });
        }
        if self.version.get() != VERSION {
            return Err(WireError::Version { got: self.version.get() });
        }
        let kind = Kind::from_u16(self.kind.get())?;
        if self.length.get() as usize > MAX_PAYLOAD_BYTES {
            return Err(WireError::TooLong { got: u64::from(self.length.get()) });
        }
        Ok(kind)
    }

    /// Compares the checksum with the bytes that came.
    ///
    /// # Errors
    /// [`WireError::Checksum`].
    pub fn verify(&self, payload: &[u8]) -> Result<(), WireError> {
        let want = self.checksum(payload);
        let got = self.crc.get();
        if got == want { Ok(()) } else { Err(WireError::Checksum { got, want }) }
    }

    fn checksum(&self, payload: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        let bare = Self { crc: U32::new(0), ..*self };
        hasher.update(bare.as_bytes());
        hasher.update(payload);
        hasher.finalize()
    }
}

/// Appends one frame to `out`.
///
/// # Errors
/// [`WireError::TooLong`]; `out` is unchanged then.
pub fn write_frame(
    out: &mut Vec<u8>,
    kind: Kind,
    ids: (u64, u32, u64, u32),
    payload: &[u8],
) -> Result<(), WireError> {
    let (session, epoch, operation, revision) = ids;
    let header = Header::new(kind, session, epoch, operation, revision, payload)?;
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(payload);
    Ok(())
}
