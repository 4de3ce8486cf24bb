//! Cuts a byte stream into frames.

use crate::{Header, Kind, WireError};
use zerocopy::FromBytes;

const HEADER_BYTES: usize = size_of::<Header>();

/// One whole frame: header, its kind, payload.
pub type Frame<'a> = (Header, Kind, &'a [u8]);

/// Collects bytes of one connection. Holds at most one frame and one read beyond it.
#[derive(Debug, Default)]
pub struct FrameReader {
    bytes: Vec<u8>,
    start: usize,
}

impl FrameReader {
    /// Adds what was read.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes held and not yet taken.
    #[must_use]
    pub fn held(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// The next whole frame, or `None` until more bytes come. Length is checked before it is awaited.
    ///
    /// # Errors
    /// A frame that is not one; the connection cannot be used any more.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, WireError> {
        let rest = &self.bytes[self.start..];
        let Some(head) = rest.get(..HEADER_BYTES) else {
            return Ok(None);
        };
        let Ok(header) = Header::read_from_bytes(head) else {
            return Ok(None);
        };
        let kind = header.check()?;
        let end = HEADER_BYTES + header.length.get() as usize;
        let Some(payload) = rest.get(HEADER_BYTES..end) else {
            return Ok(None);
        };
        header.verify(payload)?;
        self.start += end;
        Ok(Some((header, kind, payload)))
    }
}
