//! A directory read while no manager owns it, and left as it is.

use crate::contents::{Contents, Located, Place, Source};
use crate::directory::{Directory, FileId};
use crate::error::{Mismatch, StoreError};
use crate::format::{BLOCK_BYTES, BLOCK_BYTES_U64, PageHeader, crc64};
use crate::page::PageRecord;
use crate::survey::{Found, Survey};

/// What one segment holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedSegment {
    /// Its number.
    pub segment: u32,
    /// Which use of it.
    pub generation: u64,
    /// Where the list comes from.
    pub source: Source,
    /// Each page, the position of its header in blocks, and what is wrong with it if anything.
    pub pages: Vec<(PageRecord, u32, Option<Mismatch>)>,
}

/// See the module. It holds the lock of the directory, and writes nothing; an owner file that is missing is
/// made, empty.
#[derive(Debug)]
pub struct Inspection<D> {
    disk: D,
    left: Vec<Found>,
}

impl<D: Directory> Inspection<D> {
    /// Looks at a directory.
    ///
    /// # Errors
    /// As [`crate::Log::open`]; a manager that owns it above all.
    pub fn open(mut disk: D) -> Result<Self, StoreError> {
        let survey = Survey::take(&mut disk)?;
        Ok(Self { disk, left: survey.segments })
    }

    /// Reads the next segment, the newest first, and with `payloads` every byte of its pages.
    pub fn next_segment(&mut self, payloads: bool) -> Option<InspectedSegment> {
        let found = self.left.pop()?;
        let Found { id, file, size, line, .. } = found;
        let place = Place { segment: id, file, bytes: size.bytes, line };
        let contents = Contents::read(&mut self.disk, place, found.generation());
        let generation = contents.generation;
        let mut pages = Vec::with_capacity(contents.pages.len());
        for located in &contents.pages {
            let wrong = payloads.then(|| self.verify(id, file, generation, located).err()).flatten();
            pages.push((located.page, located.block, wrong));
        }
        Some(InspectedSegment { segment: id, generation, source: contents.source, pages })
    }

    fn verify(&mut self, id: u32, file: FileId, generation: u64, located: &Located) -> Result<(), Mismatch> {
        let payload_bytes = located.page.payload_bytes as usize;
        let mut bytes = vec![0; BLOCK_BYTES + payload_bytes];
        let offset = u64::from(located.block) * BLOCK_BYTES_U64;
        self.disk.read(file, offset, &mut bytes).map_err(|_| Mismatch::Payload)?;
        let (header, payload) = bytes.split_first_chunk::<BLOCK_BYTES>().ok_or(Mismatch::Header)?;
        let header = PageHeader::open(header).map_err(|_| Mismatch::Header)?;
        if (header.segment, header.block) != (id, located.block) {
            return Err(Mismatch::Place);
        }
        if (header.generation, header.sequence) != (generation, located.sequence) {
            return Err(Mismatch::Generation);
        }
        if header.page.name != located.page.name {
            return Err(Mismatch::Name);
        }
        if header.page != located.page {
            return Err(Mismatch::Record);
        }
        if crc64(payload) == header.page.payload_crc { Ok(()) } else { Err(Mismatch::Payload) }
    }
}
