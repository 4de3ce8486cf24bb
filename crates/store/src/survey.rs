//! What lies in a directory: read before anything is changed.

use crate::directory::{Directory, FileId, FileSize};
use crate::error::{DiskError, StoreError};
use crate::format::{
    BLOCK_BYTES, BLOCK_BYTES_U64, Block, BlockFault, Checkpoint, CheckpointSegment, FORMAT, Owner,
    SegmentHead,
};
use crate::segment::{file_name, parse_name};

pub(crate) const OWNER: &str = "owner";
pub(crate) const CHECKPOINT: &str = "checkpoint";
pub(crate) const NEW_CHECKPOINT: &str = "checkpoint.new";

/// Largest checkpoint that is read: as many segments as there can be.
const MAX_CHECKPOINT_BYTES: u64 = (1 << 22) * 48;

/// A segment file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) id: u32,
    pub(crate) file: FileId,
    pub(crate) size: FileSize,
    pub(crate) head: Option<SegmentHead>,
    pub(crate) line: Option<CheckpointSegment>,
}

impl Found {
    /// The newest generation that the head and the checkpoint know of.
    pub(crate) fn generation(&self) -> u64 {
        let head = self.head.map_or(0, |head| head.generation);
        head.max(self.line.map_or(0, |line| line.generation))
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// The highest epoch that left a trace.
    pub(crate) epoch: u32,
    pub(crate) owner_whole: bool,
    pub(crate) checkpoint_whole: bool,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) segments: Vec<Found>,
    /// A checkpoint that was not renamed.
    pub(crate) new_checkpoint: bool,
}

fn start(what: &'static str, file: &str, source: DiskError) -> StoreError {
    match source {
        DiskError::NotAFile => StoreError::NotAFile { file: file.to_owned() },
        source => StoreError::Start { what, file: file.to_owned(), source },
    }
}

/// Damage is `None`; only a newer format is an error.
fn known<T>(file: &str, read: Result<T, BlockFault>) -> Result<Option<T>, StoreError> {
    match read {
        Ok(found) => Ok(Some(found)),
        Err(BlockFault::Format(found)) if found > FORMAT => {
            Err(StoreError::NewerFormat { file: file.to_owned(), found, supported: FORMAT })
        }
        Err(_) => Ok(None),
    }
}

impl Survey {
    /// Takes the lock and looks at everything, pages excepted.
    ///
    /// # Errors
    /// Another owner, a newer format, a file that is no file, or a directory that cannot be listed. Files that
    /// cannot be read are damage, not errors.
    pub(crate) fn take<D: Directory>(disk: &mut D) -> Result<Self, StoreError> {
        disk.lock(OWNER).map_err(|source| match source {
            DiskError::Locked => StoreError::Locked(DiskError::Locked),
            source => start("lock", OWNER, source),
        })?;
        let mut survey = Self::default();
        if let Some(owner) = known(OWNER, Owner::open(&first_block(disk, OWNER)?))? {
            survey.epoch = owner.epoch;
            survey.owner_whole = true;
        }
        if let Some(checkpoint) = known(CHECKPOINT, Checkpoint::decode(&whole_file(disk, CHECKPOINT)?))? {
            survey.epoch = survey.epoch.max(checkpoint.epoch);
            survey.checkpoint = checkpoint;
            survey.checkpoint_whole = true;
        }
        for entry in disk.list().map_err(|source| start("list", "the directory", source))? {
            survey.new_checkpoint |= entry.name == NEW_CHECKPOINT;
            if let Some(id) = parse_name(&entry.name) {
                let found = survey.look_at(disk, id)?;
                survey.epoch = survey.epoch.max(u32::try_from(found.generation() >> 32).unwrap_or(u32::MAX));
                survey.segments.push(found);
            }
        }
        // Oldest first; of those that nothing is known of, the lower number.
        survey.segments.sort_by_key(|found| (found.generation(), found.id));
        Ok(survey)
    }

    fn look_at<D: Directory>(&self, disk: &mut D, id: u32) -> Result<Found, StoreError> {
        let name = file_name(id);
        let file = disk.open(&name).map_err(|source| start("open", &name, source))?;
        let size = disk.size(file).map_err(|source| start("measure", &name, source))?;
        let mut block: Block = [0; BLOCK_BYTES];
        let head = match disk.read(file, 0, &mut block) {
            Ok(()) => known(&name, SegmentHead::open(&block))?,
            Err(_) => None,
        };
        let line = lookup(&self.checkpoint.segments, id);
        Ok(Found { id, file, size, head: head.filter(|head| head.segment == id), line })
    }
}

/// The first block of a file; zeros if there is none.
fn first_block<D: Directory>(disk: &mut D, name: &str) -> Result<Block, StoreError> {
    let mut block: Block = [0; BLOCK_BYTES];
    match disk.open(name) {
        Ok(file) => {
            // Unreadable or short is damage like any other.
            if disk.read(file, 0, &mut block).is_err() {
                block = [0; BLOCK_BYTES];
            }
            disk.close(file);
            Ok(block)
        }
        Err(DiskError::NotFound) => Ok(block),
        Err(source) => Err(start("open", name, source)),
    }
}

/// A whole file; nothing if there is none, or it is too large to be ours.
fn whole_file<D: Directory>(disk: &mut D, name: &str) -> Result<Vec<u8>, StoreError> {
    let file = match disk.open(name) {
        Ok(file) => file,
        Err(DiskError::NotFound) => return Ok(Vec::new()),
        Err(source) => return Err(start("open", name, source)),
    };
    let bytes = disk.size(file).map_or(0, |size| size.bytes);
    let mut contents = Vec::new();
    if (BLOCK_BYTES_U64..=MAX_CHECKPOINT_BYTES).contains(&bytes) {
        contents.resize(usize::try_from(bytes).unwrap_or(0), 0);
        if disk.read(file, 0, &mut contents).is_err() {
            contents.clear();
        }
    }
    disk.close(file);
    Ok(contents)
}

/// Lines are written in the order of their numbers.
fn lookup(lines: &[CheckpointSegment], id: u32) -> Option<CheckpointSegment> {
    let at = lines.binary_search_by_key(&id, |line| line.segment).ok()?;
    lines.get(at).copied()
}
