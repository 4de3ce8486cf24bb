//! Footers, the checkpoint, and an orderly end.

use crate::directory::Directory;
use crate::error::{DiskError, StoreError};
use crate::format::{BLOCK_BYTES, BLOCK_BYTES_U64, Checkpoint, Digest, Footer, Forgotten};
use crate::log::Log;
use crate::segment::{State, file_name};
use crate::survey::{CHECKPOINT, NEW_CHECKPOINT};

/// Namespaces that are kept from coming back.
const MAX_FORGOTTEN: usize = 4096;

impl<D: Directory> Log<D> {
    /// Writes the footer of a closed segment when nothing of it is being written any more.
    pub(crate) fn seal_if_done(&mut self, id: u32) -> Result<(), StoreError> {
        let Some(segment) = self.segments.get_mut(&id) else {
            return Ok(());
        };
        match &segment.state {
            State::Closing(writer) if writer.in_flight() == 0 => {}
            _ => return Ok(()),
        }
        let State::Closing(writer) = std::mem::replace(&mut segment.state, State::Sealed) else {
            return Ok(());
        };
        let footer = writer.into_footer();
        self.write_footer(id, &footer)?;
        self.write_checkpoint(false)
    }

    pub(crate) fn write_footer(&mut self, id: u32, footer: &Footer) -> Result<(), StoreError> {
        let Some(segment) = self.segments.get_mut(&id) else {
            return Ok(());
        };
        let (generation, bytes) = (segment.generation, segment.size.bytes);
        let (block, footer) = footer.encode(id, generation, segment.first_sequence, bytes);
        segment.unsynced = true;
        if let Err(source) = self.disk.write(segment.file, u64::from(block) * BLOCK_BYTES_U64, &footer) {
            self.read_only |= source != DiskError::NoSpace;
            return Err(StoreError::Run { what: "seal", file: file_name(id), source });
        }
        segment.footer_blocks = u32::try_from(footer.len() / BLOCK_BYTES - 1).unwrap_or(0);
        Ok(())
    }

    /// Replaces the checkpoint. A crash in between leaves the old one, the new one, or one that is damaged
    /// and not used.
    pub(crate) fn write_checkpoint(&mut self, durable: bool) -> Result<(), StoreError> {
        if self.unread.is_empty() {
            // Those of which no page is left.
            let oldest = self.segments.values().map(|s| s.first_sequence).filter(|first| *first > 0).min();
            self.forgotten.retain(|f| oldest.is_some_and(|oldest| f.below_sequence > oldest));
        }
        let checkpoint = Checkpoint {
            epoch: self.epoch,
            next_sequence: self.next_sequence,
            segments: self.segments.values().map(crate::segment::Segment::line).collect(),
            forgotten: self.forgotten.clone(),
        };
        // The list of what is forgotten is nowhere else: it must not be replaced by a torn one.
        let durable = durable || !self.forgotten.is_empty();
        self.replace_checkpoint(&checkpoint.encode(), durable).map_err(|source| StoreError::Run {
            what: "replace",
            file: CHECKPOINT.to_owned(),
            source,
        })
    }

    fn replace_checkpoint(&mut self, bytes: &[u8], durable: bool) -> Result<(), DiskError> {
        let file = match self.disk.create(NEW_CHECKPOINT, bytes.len() as u64) {
            Err(DiskError::Exists) => {
                self.disk.remove(NEW_CHECKPOINT)?;
                self.disk.create(NEW_CHECKPOINT, bytes.len() as u64)?
            }
            other => other?,
        };
        let mut written = self.disk.write(file, 0, bytes);
        if durable && written.is_ok() {
            written = self.disk.sync(file);
        }
        self.disk.close(file);
        written?;
        self.disk.rename(NEW_CHECKPOINT, CHECKPOINT)?;
        if durable { self.disk.sync_directory() } else { Ok(()) }
    }

    /// Keeps the pages of a namespace that are on disk now from coming back after a restart. The caller has
    /// erased those that it knows of. Durable when it returns; lost only if the checkpoint is deleted or rots.
    ///
    /// # Errors
    /// The checkpoint could not be written, or too many are kept already.
    pub fn forget(&mut self, namespace: &Digest) -> Result<(), StoreError> {
        self.forgotten.retain(|forgotten| forgotten.namespace != *namespace);
        if self.forgotten.len() >= MAX_FORGOTTEN {
            return Err(StoreError::TooManyForgotten { count: self.forgotten.len() });
        }
        self.forgotten.push(Forgotten { namespace: *namespace, below_sequence: self.next_sequence });
        self.write_checkpoint(true)
    }

    /// Seals the open segment, makes everything durable and gives the disk back. Call it when no write is
    /// under way: a segment with one is left as after a crash.
    ///
    /// # Errors
    /// What could not be written; the directory is then as after a crash.
    pub fn close(mut self) -> Result<D, StoreError> {
        if !self.read_only {
            if let Some(id) = self.close_open() {
                self.seal_if_done(id)?;
            }
            for segment in self.segments.values_mut().filter(|segment| segment.unsynced) {
                let file = file_name(segment.id);
                self.disk.sync(segment.file).map_err(|source| StoreError::Run {
                    what: "sync",
                    file,
                    source,
                })?;
                segment.unsynced = false;
            }
            self.write_checkpoint(true)?;
        }
        for segment in self.segments.values() {
            self.disk.close(segment.file);
        }
        Ok(self.disk)
    }
}
