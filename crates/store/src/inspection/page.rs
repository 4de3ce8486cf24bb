//! Reads a page, all of it, and compares it with what the list of its segment says.

use super::fault::PageFault;
use crate::contents::Located;
use crate::directory::{Directory, FileId};
use crate::error::Mismatch;
use crate::format::{BLOCK_BYTES, BLOCK_BYTES_U64, Crc64, PageHeader};

/// Pages are read in pieces: one may be as large as a segment.
const WINDOW_BYTES: usize = 1 << 20;

/// Which use of which segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub(super) segment: u32,
    pub(super) file: FileId,
    pub(super) generation: u64,
}

/// See the module. Its window is used again for each page.
#[derive(Debug, Default)]
pub(super) struct Verifier {
    window: Vec<u8>,
}

impl Verifier {
    /// The checks of each read, and that header and list agree in all the rest.
    pub(super) fn check<D: Directory>(
        &mut self,
        disk: &mut D,
        at: At,
        located: &Located,
    ) -> Result<(), PageFault> {
        let start = u64::from(located.block) * BLOCK_BYTES_U64;
        let payload_bytes = located.page.payload_bytes as usize;
        // Mostly all of it: header and payload in one read.
        let front = payload_bytes.min(WINDOW_BYTES - BLOCK_BYTES);
        let bytes = self.read(disk, at.file, start, BLOCK_BYTES + front)?;
        let (header, payload) = bytes.split_first_chunk::<BLOCK_BYTES>().ok_or(Mismatch::Header)?;
        let header = PageHeader::open(header).map_err(|_| Mismatch::Header)?;
        compare(&header, at, located)?;
        let mut crc = Crc64::new();
        crc.update(payload);
        let mut done = front;
        while done < payload_bytes {
            let piece = (payload_bytes - done).min(WINDOW_BYTES);
            crc.update(self.read(disk, at.file, start + (BLOCK_BYTES + done) as u64, piece)?);
            done += piece;
        }
        if crc.value() == header.page.payload_crc { Ok(()) } else { Err(Mismatch::Payload.into()) }
    }

    fn read<D: Directory>(
        &mut self,
        disk: &mut D,
        file: FileId,
        offset: u64,
        bytes: usize,
    ) -> Result<&[u8], PageFault> {
        self.window.resize(bytes, 0);
        disk.read(file, offset, &mut self.window).map_err(PageFault::Unreadable)?;
        Ok(&self.window)
    }
}

fn compare(header: &PageHeader, at: At, located: &Located) -> Result<(), Mismatch> {
    if (header.segment, header.block) != (at.segment, located.block) {
        return Err(Mismatch::Place);
    }
    if (header.generation, header.sequence) != (at.generation, located.sequence) {
        return Err(Mismatch::Generation);
    }
    if header.page.name != located.page.name {
        return Err(Mismatch::Name);
    }
    if header.page == located.page { Ok(()) } else { Err(Mismatch::Record) }
}
