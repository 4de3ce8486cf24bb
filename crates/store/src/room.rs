//! The byte cap: what is used, what may be created, what has to go.

use crate::config::FILE_SLACK_BYTES;
use crate::directory::Directory;
use crate::error::{DiskError, StoreError};
use crate::extent::SEGMENT_BITS;
use crate::format::{BLOCK_BYTES_U64, Checkpoint};
use crate::log::Log;
use crate::segment::{Segment, State, file_name};

/// Sizes and counts of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The cap.
    pub capacity_bytes: u64,
    /// What counts against it: segments, owner, checkpoint with its successor, the directory itself.
    pub used_bytes: u64,
    /// Pages that can be read, with headers and padding; erased ones count until their segment goes.
    pub page_bytes: u64,
    /// Number of those pages.
    pub pages: u64,
    /// Segment files.
    pub segments: u64,
    /// Segments with nothing in them.
    pub free_segments: u64,
    /// Segments that can neither be used again nor be removed, because somebody protects their files.
    pub barred_segments: u64,
    /// Writes that have been placed and have not ended.
    pub writes_in_flight: u64,
    /// No more is written: see [`Log::resume`].
    pub read_only: bool,
    /// The file system is full below the cap: see [`Log::resume`].
    pub growth_stopped: bool,
}

impl<D: Directory> Log<D> {
    /// Sizes and counts.
    ///
    /// # Errors
    /// The directory cannot be measured.
    pub fn usage(&mut self) -> Result<Usage, StoreError> {
        let used_bytes = self.used_bytes()?;
        let all = || self.segments.values();
        let in_flight = |segment: &Segment| match &segment.state {
            State::Open(writer) | State::Closing(writer) => writer.in_flight() as u64,
            _ => 0,
        };
        Ok(Usage {
            capacity_bytes: self.config.capacity_bytes,
            used_bytes,
            page_bytes: all().map(|segment| segment.used_blocks * BLOCK_BYTES_U64).sum(),
            pages: all().map(|segment| u64::from(segment.pages)).sum(),
            segments: all().count() as u64,
            free_segments: all().filter(|segment| matches!(segment.state, State::Free)).count() as u64,
            barred_segments: all().filter(|segment| segment.barred).count() as u64,
            writes_in_flight: all().map(in_flight).sum(),
            read_only: self.read_only,
            growth_stopped: self.growth_stopped,
        })
    }

    /// Tries again what was given up: growing, and with `writable` writing after a write error.
    pub fn resume(&mut self, writable: bool) {
        self.growth_stopped = false;
        self.read_only &= !writable;
    }

    /// Looks at the cap and at the room that must stay free for others; removes segments with nothing in them
    /// while there is too little. True while more has to go: evict. Call it now and then.
    ///
    /// # Errors
    /// The file system cannot be measured; [`StoreError::Barred`] for the first file that cannot be removed, after
    /// all others have been tried.
    pub fn shrink(&mut self) -> Result<bool, StoreError> {
        self.over = self.is_over()?;
        let free = self.segments.values().filter(|segment| matches!(segment.state, State::Free));
        let mut refused = None;
        for (id, barred) in free.map(|segment| (segment.id, segment.barred)).collect::<Vec<_>>() {
            // Whoever protected it may have stopped.
            if !(self.over || barred) {
                continue;
            }
            match self.remove_segment(id) {
                Ok(()) => self.over = self.is_over()?,
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        refused.map_or(Ok(self.over), Err)
    }

    fn is_over(&mut self) -> Result<bool, StoreError> {
        let used = self.used_bytes()?;
        let space = self.disk.space().map_err(measure)?;
        // What others use is theirs to give back once we have nothing.
        let ours = !self.segments.is_empty();
        Ok(ours && (used > self.config.capacity_bytes || space.free_bytes < self.config.min_free_bytes))
    }

    /// What counts against the cap. The next checkpoint stands beside the old one for a moment.
    pub(crate) fn used_bytes(&mut self) -> Result<u64, StoreError> {
        let segments: u64 = self.segments.values().map(Segment::charged_bytes).sum();
        let checkpoint = Checkpoint::bytes(self.segments.len() + 1, self.forgotten.len() + 1);
        let own = self.disk.own_bytes().map_err(measure)?;
        Ok(segments + 2 * checkpoint + BLOCK_BYTES_U64 + own)
    }

    /// The free segment that was used longest ago, of the size that segments have now.
    pub(crate) fn free_segment(&self) -> Option<u32> {
        let bytes = self.config.segment_bytes;
        let usable = |s: &&Segment| matches!(s.state, State::Free) && s.size.bytes == bytes && !s.barred;
        self.segments
            .values()
            .filter(usable)
            .min_by_key(|segment| segment.generation)
            .map(|segment| segment.id)
    }

    /// Whether the cap, and the room for others, leave room for one more segment, as far as the file system says.
    ///
    /// # Errors
    /// The file system cannot be measured.
    pub fn can_create(&mut self) -> Result<bool, StoreError> {
        if self.growth_stopped || self.over {
            return Ok(false);
        }
        let bytes = self.config.segment_bytes + FILE_SLACK_BYTES;
        if self.used_bytes()? + bytes > self.config.capacity_bytes {
            return Ok(false);
        }
        let space = self.disk.space().map_err(measure)?;
        Ok(space.free_bytes >= self.config.min_free_bytes.saturating_add(bytes))
    }

    /// One more segment file, free, if there may be one.
    pub(crate) fn create_segment(&mut self) -> Result<Option<u32>, StoreError> {
        if !self.can_create()? {
            return Ok(None);
        }
        let unused = (0..1 << SEGMENT_BITS).find(|id| !self.segments.contains_key(id));
        let Some(id) = unused else {
            return Ok(None);
        };
        let run = |what, source| StoreError::Run { what, file: file_name(id), source };
        let file = match self.disk.create(&file_name(id), self.config.segment_bytes) {
            Ok(file) => file,
            Err(DiskError::NoSpace) => {
                self.growth_stopped = true;
                return Ok(None);
            }
            Err(source) => return Err(run("create", source)),
        };
        let size = self.disk.size(file).map_err(|source| run("measure", source))?;
        self.segments.insert(id, Segment::new(id, file, size));
        // The file system took more for the file than the slack: not one byte above the cap.
        if self.used_bytes()? > self.config.capacity_bytes {
            self.growth_stopped = true;
            self.remove_segment(id)?;
            return Ok(None);
        }
        Ok(Some(id))
    }

    /// Removes a segment's file.
    pub(crate) fn remove_segment(&mut self, id: u32) -> Result<(), StoreError> {
        let Some(segment) = self.segments.get_mut(&id) else {
            return Ok(());
        };
        match self.disk.remove(&file_name(id)) {
            Ok(()) | Err(DiskError::NotFound) => {
                self.disk.close(segment.file);
                self.segments.remove(&id);
                Ok(())
            }
            // Still there, still counted, and used again when there is room for it.
            Err(source) => Err(StoreError::run("remove", file_name(id), source)),
        }
    }
}

fn measure(source: DiskError) -> StoreError {
    StoreError::Run { what: "measure", file: "the cache directory".to_owned(), source }
}
