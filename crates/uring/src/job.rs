//! A request on its way, and how far it has come.

use crate::IoBuffer;
use orbitkv_store::{BLOCK_BYTES, Completion, Direction, DiskError, Request};
use rustix::fs::fstat;
use rustix::io::Errno;
use std::fs::File;
use std::sync::Arc;

/// Steps in a row that may bring nothing (interrupted, try again, less than a block) before it counts as failed.
const MAX_FRUITLESS: u32 = 1000;
const BLOCK: u32 = BLOCK_BYTES as u32;

/// A request with the file that it keeps open.
#[derive(Debug)]
pub(crate) struct Job {
    request: Request<IoBuffer>,
    file: Arc<File>,
    /// Bytes that are done; whole blocks, so that direct I/O can go on from there.
    done: u32,
    fruitless: u32,
    max_step_bytes: u32,
}

/// What to ask of the kernel next.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) direction: Direction,
    pub(crate) address: *mut u8,
    pub(crate) bytes: u32,
    pub(crate) offset: u64,
}

impl Job {
    pub(crate) fn new(request: Request<IoBuffer>, file: Arc<File>, max_step_bytes: u32) -> Self {
        Self { request, file, done: 0, fruitless: 0, max_step_bytes }
    }

    pub(crate) fn request(&self) -> &Request<IoBuffer> {
        &self.request
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// The rest of it, or a part of that. The address is valid until the job ends.
    pub(crate) fn step(&self) -> Step {
        // Inside of the buffer: a request for more than it has is refused before there is a job.
        let Request { direction, offset, bytes, buffer, .. } = &self.request;
        Step {
            direction: *direction,
            address: buffer.start().wrapping_add(self.done as usize),
            bytes: (bytes - self.done).min(self.max_step_bytes),
            offset: offset.saturating_add(self.done.into()),
        }
    }

    /// What a step has brought. `None`: there is more to do. Success is never less than all bytes.
    pub(crate) fn advance(&mut self, brought: Result<u32, Errno>) -> Option<Result<(), DiskError>> {
        let bytes = match brought {
            Err(Errno::INTR | Errno::AGAIN) => return self.nothing(Errno::AGAIN),
            Err(errno) => return Some(Err(errno.into())),
            // The rest of a block is asked for again.
            Ok(bytes) => bytes - bytes % BLOCK,
        };
        if bytes == 0 {
            if self.request.direction == Direction::Read && self.is_past_end() {
                return Some(Err(DiskError::Short));
            }
            return self.nothing(Errno::IO);
        }
        self.fruitless = 0;
        self.done = self.done.saturating_add(bytes);
        (self.done >= self.request.bytes).then_some(Ok(()))
    }

    fn nothing(&mut self, errno: Errno) -> Option<Result<(), DiskError>> {
        self.fruitless += 1;
        (self.fruitless >= MAX_FRUITLESS).then_some(Err(errno.into()))
    }

    /// Whether the file ends before the request does.
    fn is_past_end(&self) -> bool {
        let end = self.request.offset.saturating_add(self.request.bytes.into());
        fstat(&self.file).is_ok_and(|stat| u64::try_from(stat.st_size).unwrap_or(0) < end)
    }

    pub(crate) fn end(self, result: Result<(), DiskError>) -> Completion<IoBuffer> {
        Completion { token: self.request.token, result, buffer: self.request.buffer }
    }
}

/// Why a request can never be carried out.
pub(crate) fn refusal(request: &Request<IoBuffer>) -> Option<DiskError> {
    if request.bytes == 0 || !request.bytes.is_multiple_of(BLOCK) {
        return Some(DiskError::BadRequest("length is not a positive multiple of 4096"));
    }
    if !request.offset.is_multiple_of(BLOCK.into()) {
        return Some(DiskError::BadRequest("offset is not a multiple of 4096"));
    }
    let bytes = u64::from(request.bytes);
    // The kernel's offsets are signed.
    if request.offset.checked_add(bytes).is_none_or(|end| i64::try_from(end).is_err()) {
        return Some(DiskError::BadRequest("offset is beyond any file"));
    }
    (bytes > request.buffer.len() as u64).then_some(DiskError::BadRequest("longer than its buffer"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use orbitkv_store::{FileId, Priority};

    fn job(direction: Direction, blocks: u32, file_blocks: u64) -> Job {
        let file = tempfile::tempfile().unwrap();
        file.set_len(file_blocks * 4096).unwrap();
        let buffer = IoBuffer::heap(blocks as usize * 4096).unwrap();
        let (priority, file_id, bytes) = (Priority::Demand, FileId(1), blocks * 4096);
        let request = Request { token: 1, direction, priority, file: file_id, offset: 8192, bytes, buffer };
        Job::new(request, Arc::new(file), 1 << 30)
    }

    #[test]
    fn what_came_in_part_goes_on_at_a_whole_block() {
        let mut job = job(Direction::Read, 4, 100);
        let first = job.step();
        assert_eq!((first.bytes, first.offset), (16384, 8192));
        assert_eq!(job.advance(Ok(4096 + 512)), None);
        let rest = job.step();
        assert_eq!((rest.bytes, rest.offset), (12288, 12288));
        assert_eq!(rest.address as usize - first.address as usize, 4096);
        assert_eq!(job.advance(Err(Errno::INTR)), None);
        assert_eq!(job.advance(Ok(8192)), None);
        assert_eq!(job.advance(Ok(4096)), Some(Ok(())));
    }

    /// Of public fault A-51: try again, interrupted and half of it go on where they were; nothing and a real error
    /// end this request, with its buffer.
    #[test]
    fn case_a51_transient_results_go_on_and_others_end_the_request() {
        let mut write = job(Direction::Write, 4, 100);
        let start = write.step().address as usize;
        for transient in [Err(Errno::AGAIN), Err(Errno::INTR), Ok(8192), Err(Errno::AGAIN), Err(Errno::INTR)]
        {
            assert_eq!(write.advance(transient), None, "{transient:?}");
        }
        let rest = write.step();
        assert_eq!((rest.bytes, rest.offset, rest.address as usize - start), (8192, 16384, 8192));
        assert_eq!(write.advance(Err(Errno::IO)), Some(Err(DiskError::Io { errno: 5 })));
        let (token, ended) = (write.request().token, write.end(Err(DiskError::Io { errno: 5 })));
        assert_eq!((ended.token, ended.buffer.len()), (token, 16384), "given back only now");
        assert_eq!(job(Direction::Read, 4, 4).advance(Ok(0)), Some(Err(DiskError::Short)));
    }

    #[test]
    fn nothing_at_the_end_of_a_file_is_short_and_elsewhere_is_tried_again() {
        assert_eq!(job(Direction::Read, 4, 4).advance(Ok(0)), Some(Err(DiskError::Short)));
        assert_eq!(job(Direction::Read, 4, 4).advance(Ok(512)), Some(Err(DiskError::Short)));
        assert_eq!(job(Direction::Read, 4, 100).advance(Ok(0)), None);
        // A write makes the file longer.
        assert_eq!(job(Direction::Write, 4, 4).advance(Ok(0)), None);
    }

    #[test]
    fn what_never_comes_is_an_error_in_the_end() {
        for (brought, errno) in [(Ok(0), 5), (Err(Errno::AGAIN), 11)] {
            let mut job = job(Direction::Write, 1, 100);
            let end = (0..MAX_FRUITLESS).find_map(|_| job.advance(brought));
            assert_eq!(end, Some(Err(DiskError::Io { errno })));
        }
        let mut job = job(Direction::Write, 2, 100);
        for _ in 0..MAX_FRUITLESS - 1 {
            assert_eq!(job.advance(Err(Errno::AGAIN)), None);
        }
        assert_eq!(job.advance(Ok(4096)), None, "with a step forward it counts anew");
        assert_eq!(job.advance(Err(Errno::AGAIN)), None);
    }

    #[test]
    fn errors_end_it_as_what_they_are() {
        assert_eq!(job(Direction::Write, 1, 9).advance(Err(Errno::NOSPC)), Some(Err(DiskError::NoSpace)));
        assert_eq!(job(Direction::Read, 1, 9).advance(Err(Errno::IO)), Some(Err(DiskError::Io { errno: 5 })));
    }
}
