//! A page out and back before a directory is trusted, by the way that all pages will go.

use crate::config::{DiskConfig, DiskEngine};
use crate::engine::EngineKind;
use crate::mode::Engine;
use crate::page_cache;
use crate::threads::Threads;
use crate::{IoBuffer, OpenError, PageDisk, PageIo};
use orbitkv_store::{
    BLOCK_BYTES, Completion, Direction, Directory, Disk, DiskError, FileId, Priority, Request,
};
use std::time::{Duration, Instant};
use thiserror::Error;

/// A page of two blocks, so that a step of one block is tried as well.
const PAGE_BYTES: usize = 2 * BLOCK_BYTES;

/// How it fails.
#[derive(Debug, Error)]
enum Failure {
    #[error("cannot {0} a page: {1}")]
    Refused(&'static str, DiskError),
    #[error("a page that was written came back as something else")]
    Differs,
    #[error("no answer for {0:?}")]
    Silent(Duration),
}

impl PageDisk {
    /// Writes a page to a file without a name, reads it back, and goes over to what is slower and more widely
    /// possible while that fails; [`PageIo::mode`] then says why.
    ///
    /// A directory that takes no file now (full, read-only, not ours) is left to whoever writes the first file with
    /// a name: that error names it.
    pub(crate) fn test_itself(&mut self, config: &DiskConfig) -> Result<(), OpenError> {
        let Ok(file) = self.parts.directory.create_unnamed() else { return Ok(()) };
        let mut seed = 0;
        let result = loop {
            seed += 1;
            match self.round_trip(file, seed, config.self_test_wait) {
                // A full file system says nothing against the way to it.
                Ok(()) | Err(Failure::Refused(_, DiskError::NoSpace)) => break Ok(()),
                Err(failure) if self.goes_slower(config, &failure) => {}
                Err(failure) => break Err(OpenError::SelfTest { reason: failure.to_string() }),
            }
        };
        self.refuses_to_bypass_the_cache(file);
        Directory::close(self, file);
        result
    }

    fn round_trip(&mut self, file: FileId, seed: u8, patience: Duration) -> Result<(), Failure> {
        let bytes: Vec<u8> = (0..PAGE_BYTES).map(|at| (at / 7) as u8 ^ seed).collect();
        let mut buffer = IoBuffer::heap(PAGE_BYTES).map_err(|_| Failure::Differs)?;
        buffer.write_at(0, &bytes).map_err(|_| Failure::Differs)?;
        self.one(Direction::Write, file, buffer, patience)?;
        let empty = IoBuffer::heap(PAGE_BYTES).map_err(|_| Failure::Differs)?;
        let (buffer, mut seen) = (self.one(Direction::Read, file, empty, patience)?, vec![0; PAGE_BYTES]);
        buffer.read_at(0, &mut seen).map_err(|_| Failure::Differs)?;
        if seen == bytes { Ok(()) } else { Err(Failure::Differs) }
    }

    fn one(
        &mut self,
        direction: Direction,
        file: FileId,
        buffer: IoBuffer,
        patience: Duration,
    ) -> Result<IoBuffer, Failure> {
        let what = if direction == Direction::Read { "read" } else { "write" };
        let (token, priority, bytes) = (0, Priority::Demand, PAGE_BYTES as u32);
        self.submit(Request { token, direction, priority, file, offset: 0, bytes, buffer })
            .map_err(|rejected| Failure::Refused(what, rejected.reason))?;
        let (until, mut done) = (Instant::now() + patience, Vec::new());
        loop {
            self.poll(&mut done);
            if let Some(Completion { result, buffer, .. }) = done.pop() {
                return result.map(|()| buffer).map_err(|error| Failure::Refused(what, error));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.wait(Some(left)).is_err() {
                return Err(Failure::Silent(patience));
            }
        }
    }

    /// Has the next try go another way. False if there is none.
    fn goes_slower(&mut self, config: &DiskConfig, failure: &Failure) -> bool {
        let silent = self.in_flight > 0;
        if self.mode.direct && !silent {
            self.mode.direct = false;
            self.mode.add_reason(format!("O_DIRECT failed its self-test: {failure}"));
        } else if self.mode.engine == Engine::IoUring && config.engine == DiskEngine::Auto {
            let Ok(threads) = Threads::start(config, self.waker.clone()) else { return false };
            let ring = std::mem::replace(&mut self.parts.engine, EngineKind::Threads(threads));
            if silent {
                // The kernel has its memory, for ever.
                std::mem::forget(ring);
                self.in_flight = 0;
            }
            (self.mode.engine, self.mode.registered) = (Engine::Threads, false);
            self.mode.add_reason(format!("io_uring failed its self-test: {failure}"));
        } else {
            return false;
        }
        self.parts.files.clear();
        true
    }

    /// Some file systems take O_DIRECT and use the page cache all the same: those in memory, those that keep
    /// data in a journal or check it. What was written is in the cache then.
    fn refuses_to_bypass_the_cache(&mut self, file: FileId) {
        let cached = self.parts.directory.file(file).is_some_and(|file| page_cache::holds_start_of(&file));
        if self.mode.direct && cached {
            self.mode.direct = false;
            let path = self.parts.directory.path().display();
            let reason =
                format!("the file system of {path} takes O_DIRECT and uses the page cache all the same");
            self.mode.add_reason(reason);
            self.parts.files.clear();
        }
    }
}
