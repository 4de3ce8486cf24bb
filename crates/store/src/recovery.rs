//! Opening a directory, and reading what was there.

use crate::config::LogConfig;
use crate::contents::{Contents, Place, Source};
use crate::directory::Directory;
use crate::error::{Advice, DiskError, StoreError};
use crate::eviction::stored;
use crate::format::{Checkpoint, Owner};
use crate::log::Log;
use crate::page::StoredPage;
use crate::segment::{Segment, State, file_name};
use crate::survey::{Found, NEW_CHECKPOINT, OWNER, Survey};
use crate::writer::{Reserved, Writer};

/// What was found in one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Its number.
    pub segment: u32,
    /// Where the list comes from.
    pub source: Source,
    /// Its pages. Their payloads have not been read: that is checked at each read, as always.
    pub pages: Vec<StoredPage>,
}

/// How far recovery is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Segments that have been read.
    pub done: usize,
    /// Segments that were found.
    pub total: usize,
}

impl<D: Directory> Log<D> {
    /// Opens a directory: takes its lock, refuses what it cannot know, begins a new epoch, and removes the
    /// oldest segments if the capacity is lower than it was. [`Log::recover`] reads the rest.
    ///
    /// # Errors
    /// See [`StoreError`]. Before a newer format is refused nothing has been changed.
    pub fn open(mut disk: D, config: LogConfig) -> Result<Self, StoreError> {
        config.check()?;
        let survey = Survey::take(&mut disk)?;
        let epoch = survey.epoch.checked_add(1).ok_or(StoreError::Epoch { epoch: survey.epoch })?;
        let start = |what, file: &str, source| StoreError::Start { what, file: file.to_owned(), source };
        write_owner(&mut disk, epoch).map_err(|source| start("write", OWNER, source))?;
        if survey.new_checkpoint {
            let removed = disk.remove(NEW_CHECKPOINT);
            removed.map_err(|source| start("remove", NEW_CHECKPOINT, source))?;
        }
        let mut log = Self::with(disk, config, epoch, &survey);
        // Down to the cap: what is free, then the oldest; their pages are gone without having been read.
        let mut kept = Vec::new();
        while log.used_bytes()? > config.capacity_bytes && !log.unread.is_empty() {
            let free = log.unread.iter().position(|id| log.segments.get(id).is_some_and(Segment::was_freed));
            let id = log.unread.remove(free.unwrap_or(0));
            match log.remove_segment(id) {
                Ok(()) => log.found -= 1,
                // The next one in its place.
                Err(StoreError::Barred { .. }) => kept.push(id),
                Err(error) => return Err(error),
            }
        }
        log.unread.splice(..0, kept);
        Ok(log)
    }

    fn with(disk: D, config: LogConfig, epoch: u32, survey: &Survey) -> Self {
        let Checkpoint { next_sequence, forgotten, .. } = &survey.checkpoint;
        let firsts = survey.segments.iter().filter_map(|found| found.head).map(|head| head.first_sequence);
        Self {
            disk,
            config,
            epoch,
            uses: 0,
            // Zero is never given, so that it can stand for nothing.
            next_sequence: firsts.fold((*next_sequence).max(1), u64::max),
            segments: survey.segments.iter().map(|found| (found.id, unread(found))).collect(),
            open: None,
            unread: survey.segments.iter().map(|found| found.id).collect(),
            found: survey.segments.len(),
            forgotten: forgotten.clone(),
            reserved: Reserved::default(),
            read_only: false,
            growth_stopped: false,
            over: false,
        }
    }

    /// Reads the next segment, the newest first; nothing when all have been read. Until then pages that were
    /// reported can be read, and none can be written. Of several pages of one name the newest has the highest
    /// sequence, and mostly comes first.
    ///
    /// Damage is no error: what can be read is reported, and a disk that cannot be written turns the log read-only.
    pub fn recover(&mut self) -> Option<Recovered> {
        let id = self.unread.pop()?;
        let segment = self.segments.get_mut(&id)?;
        let line = if let State::Unread(line) = segment.state { line } else { None };
        let place = Place { segment: id, file: segment.file, bytes: segment.size.bytes, line };
        let mut contents = Contents::read(&mut self.disk, place, segment.generation);
        if !self.forgotten.is_empty() {
            contents
                .pages
                .retain(|located| !self.forgotten.iter().any(|forgotten| forgotten.covers(located)));
        }
        segment.adopt(&contents);
        self.next_sequence = self.next_sequence.max(contents.next_sequence);
        // Either is for later only, and tried again at the next start.
        let tidied = if contents.pages.is_empty() && segment.size.bytes != self.config.segment_bytes {
            self.remove_segment(id)
        } else if contents.source == Source::Headers {
            self.repair(id, &contents)
        } else {
            Ok(())
        };
        self.read_only |= tidied.is_err_and(|error| error.advice() == Advice::ReadOnly);
        let pages = match self.segments.get(&id) {
            Some(segment) => contents.pages.into_iter().map(|located| stored(segment, &located)).collect(),
            None => Vec::new(),
        };
        Some(Recovered { segment: id, source: contents.source, pages })
    }

    /// Writes the head and the footer that a crash had left out, so that the next start need not search, and
    /// finds no older use where this one was found.
    fn repair(&mut self, id: u32, contents: &Contents) -> Result<(), StoreError> {
        if contents.pages.is_empty() {
            return Ok(());
        }
        self.write_head_of("repair", id, contents.generation, contents.first_sequence)?;
        let Some((file, bytes)) = self.segments.get(&id).map(|segment| (segment.file, segment.size.bytes))
        else {
            return Ok(());
        };
        if let Some(footer) = Writer::rebuild(bytes, contents.first_sequence, &contents.pages) {
            self.write_footer(id, &footer)?;
        }
        // The checkpoint that told of this use will be replaced, and the next one may be torn. Nobody waits for
        // this sync but the start.
        self.disk.sync(file).map_err(|source| StoreError::Run { what: "sync", file: file_name(id), source })
    }

    /// How far recovery is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress { done: self.found - self.unread.len(), total: self.found }
    }
}

fn unread(found: &Found) -> Segment {
    Segment {
        generation: found.generation(),
        state: State::Unread(found.line),
        ..Segment::new(found.id, found.file, found.size)
    }
}

/// The new epoch is durable before anything of it is written.
fn write_owner<D: Directory>(disk: &mut D, epoch: u32) -> Result<(), DiskError> {
    let file = disk.open(OWNER)?;
    let written = disk.write(file, 0, &Owner { epoch }.seal()).and_then(|()| disk.sync(file));
    disk.close(file);
    written?;
    disk.sync_directory()
}
