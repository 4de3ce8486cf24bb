//! A directory read while no manager owns it, and left as it is.

mod fault;
mod page;
mod segment;

pub use fault::{PageFault, SegmentFault};

use crate::contents::{Contents, Place, Source};
use crate::directory::Directory;
use crate::error::{DiskError, StoreError};
use crate::format::{Forgotten, SegmentState};
use crate::page::PageRecord;
use crate::segment::file_name;
use crate::survey::{CHECKPOINT, Found, OWNER, Survey};
use page::Verifier;

/// Larger files are no segments; what is behind this is not read, so that a list of pages has a limit.
const MAX_SEGMENT_BYTES: u64 = 1 << 30;

/// State of a file that describes the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// There, and its sums hold.
    Whole,
    /// Not there, or empty. Nothing depends on it: a crash may leave this.
    Missing,
    /// There, and not what it should be. The next start does without it.
    Damaged,
}

/// What a directory says of itself, before a segment is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overview {
    /// The highest epoch that left a trace: how often the directory has been opened.
    pub epoch: u32,
    /// The owner file.
    pub owner: Part,
    /// The checkpoint.
    pub checkpoint: Part,
    /// A new checkpoint was written and not renamed.
    pub new_checkpoint: bool,
    /// Segment files.
    pub segments: usize,
    /// Bytes of all of them.
    pub segment_bytes: u64,
    /// Files of segments that hold pages, says the checkpoint, and that are not there: removed after it was
    /// written, or lost.
    pub absent: Vec<String>,
}

/// One page of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedPage {
    /// What it is.
    pub page: PageRecord,
    /// Where its header is, in blocks.
    pub block: u32,
    /// Of two pages of one name the higher is the newer.
    pub sequence: u64,
    /// Its namespace was cleared: the next start leaves it out.
    pub forgotten: bool,
    /// What is wrong with it; nothing as well where payloads were not asked for.
    pub fault: Option<PageFault>,
}

/// What one segment holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedSegment {
    /// Its number.
    pub segment: u32,
    /// Name of its file.
    pub file: String,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Which use of it.
    pub generation: u64,
    /// Where the list of pages comes from.
    pub source: Source,
    /// By position.
    pub pages: Vec<InspectedPage>,
    /// What is wrong beside its pages.
    pub faults: Vec<SegmentFault>,
    /// Sequences that no page has, between those of a segment without a footer: writes that failed or that a
    /// crash cut off, or pages whose headers are gone.
    pub unaccounted_pages: u64,
}

/// See the module. It holds the lock of the directory and writes nothing. On a [`crate::HostDirectory`] that was
/// not opened for reading only, an owner file that is missing is made, empty.
///
/// It keeps the files of segments open until they are read: as many descriptors as there are segments.
#[derive(Debug)]
pub struct Inspection<D> {
    disk: D,
    left: Vec<Found>,
    forgotten: Vec<Forgotten>,
    overview: Overview,
    verifier: Verifier,
}

impl<D: Directory> Inspection<D> {
    /// Looks at a directory.
    ///
    /// # Errors
    /// As [`crate::Log::open`]; a manager that owns it above all.
    pub fn open(mut disk: D) -> Result<Self, StoreError> {
        let survey = Survey::take(&mut disk)?;
        let overview = Overview {
            epoch: survey.epoch,
            owner: part(&mut disk, OWNER, survey.owner_whole),
            checkpoint: part(&mut disk, CHECKPOINT, survey.checkpoint_whole),
            new_checkpoint: survey.new_checkpoint,
            segments: survey.segments.len(),
            segment_bytes: survey.segments.iter().map(|found| found.size.bytes).sum(),
            absent: absent(&survey),
        };
        let forgotten = survey.checkpoint.forgotten;
        Ok(Self { disk, left: survey.segments, forgotten, overview, verifier: Verifier::default() })
    }

    /// What was found at the start.
    #[must_use]
    pub fn overview(&self) -> &Overview {
        &self.overview
    }

    /// Reads the next segment, the newest first, and with `payloads` every byte of its pages. At most one
    /// segment's list of pages and a window of 1 MiB are held.
    pub fn next_segment(&mut self, payloads: bool) -> Option<InspectedSegment> {
        let found = self.left.pop()?;
        let Found { id, file, size, line, .. } = found;
        let place = Place { segment: id, file, bytes: size.bytes.min(MAX_SEGMENT_BYTES), line };
        let contents = Contents::read(&mut self.disk, place, found.generation());
        let faults = segment::faults(&mut self.disk, &found, &contents);
        let mut pages = Vec::with_capacity(contents.pages.len());
        for located in &contents.pages {
            let place = page::At { segment: id, file, generation: contents.generation };
            let checked = payloads.then(|| self.verifier.check(&mut self.disk, place, located));
            pages.push(InspectedPage {
                page: located.page,
                block: located.block,
                sequence: located.sequence,
                forgotten: self.forgotten.iter().any(|forgotten| forgotten.covers(located)),
                fault: checked.and_then(Result::err),
            });
        }
        self.disk.close(file);
        Some(InspectedSegment {
            segment: id,
            file: file_name(id),
            file_bytes: size.bytes,
            generation: contents.generation,
            source: contents.source,
            pages,
            faults,
            unaccounted_pages: segment::unaccounted_pages(&found, &contents),
        })
    }

    /// Whether the directory was ours to the end: where there was no owner file to lock, a manager may have
    /// begun to work here meanwhile, and what was read means nothing.
    ///
    /// # Errors
    /// [`StoreError::Locked`] if one did.
    pub fn finish(mut self) -> Result<(), StoreError> {
        match self.disk.lock(OWNER) {
            Err(DiskError::Locked) => Err(StoreError::Locked(DiskError::Locked)),
            _ => Ok(()),
        }
    }
}

fn part<D: Directory>(disk: &mut D, name: &str, whole: bool) -> Part {
    if whole {
        return Part::Whole;
    }
    let Ok(file) = disk.open(name) else {
        return Part::Missing;
    };
    let empty = disk.size(file).is_ok_and(|size| size.bytes == 0);
    disk.close(file);
    if empty { Part::Missing } else { Part::Damaged }
}

fn absent(survey: &Survey) -> Vec<String> {
    let lines = survey.checkpoint.segments.iter();
    let held = lines.filter(|line| line.state != SegmentState::Free && line.pages > 0);
    let mut present: Vec<u32> = survey.segments.iter().map(|found| found.id).collect();
    present.sort_unstable();
    held.filter(|line| present.binary_search(&line.segment).is_err())
        .map(|line| file_name(line.segment))
        .collect()
}
