//! Payloads of single blocks, through the same jobs that saves and restores use.

use super::device::{Device, Engine};
use crate::ClientError;
use orbitkv_copy::{
    CopyDirection, CopyDone, CopyEngine, CopyId, CopyJob, CopyState, KvLayout, PagePair, WaitOutcome,
};
use orbitkv_shm::{PAGE_BYTES, Segment};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longer than any copy of one page takes.
const COPY_LIMIT: Duration = Duration::from_secs(60);
/// Between two looks for the report of a copy that has ended.
const RECHECK: Duration = Duration::from_micros(100);

fn failed(error: impl std::fmt::Display) -> ClientError {
    ClientError::Copy(error.to_string())
}

/// Payload of one block of memory on `device`: its bytes in every region, in region order. Nothing on any stream may
/// be about to write it.
///
/// # Errors
/// A block that the layout does not have, no memory for the payload, or a device that does not copy.
pub fn gather_block(device: &Device, layout: &KvLayout, block: usize) -> Result<Vec<u8>, ClientError> {
    BlockCopies::new(device)?.gather(layout, block)
}

/// The reverse of [`gather_block`]. Only for memory that no request uses.
///
/// # Errors
/// As above, and a payload that is not as long as a page.
pub fn scatter_block(
    device: &Device,
    layout: &KvLayout,
    block: usize,
    payload: &[u8],
) -> Result<(), ClientError> {
    BlockCopies::new(device)?.scatter(layout, block, payload)
}

/// An engine for blocks, one at a time.
pub(super) struct BlockCopies {
    engine: Box<dyn CopyEngine>,
}

impl BlockCopies {
    pub(super) fn new(device: &Device) -> Result<Self, ClientError> {
        Ok(Self { engine: Engine::for_blocks(device)? })
    }

    pub(super) fn gather(&mut self, layout: &KvLayout, block: usize) -> Result<Vec<u8>, ClientError> {
        let page = page_of(layout)?;
        self.copy(layout, block, &page, CopyDirection::Save)?;
        let mut payload = vec![0; layout.page_bytes()];
        page.read_at(0, &mut payload).map_err(failed)?;
        Ok(payload)
    }

    pub(super) fn scatter(
        &mut self,
        layout: &KvLayout,
        block: usize,
        payload: &[u8],
    ) -> Result<(), ClientError> {
        if payload.len() != layout.page_bytes() {
            let want = format!("{} bytes, a page of this layout", layout.page_bytes());
            return Err(ClientError::value("payload", format!("{} bytes", payload.len()), want));
        }
        let page = page_of(layout)?;
        page.write_at(0, payload).map_err(failed)?;
        self.copy(layout, block, &page, CopyDirection::Restore)
    }

    fn copy(
        &mut self,
        layout: &KvLayout,
        block: usize,
        page: &Segment,
        direction: CopyDirection,
    ) -> Result<(), ClientError> {
        let pair = PagePair { block, memory: Arc::clone(page.region()), offset: 0 };
        let job = CopyJob::between(CopyId(0), direction, layout, &[pair]).map_err(failed)?;
        let progress = Arc::clone(job.progress());
        self.engine.submit(job).map_err(failed)?;
        if progress.wait_step(usize::MAX, COPY_LIMIT) != WaitOutcome::Ready {
            progress.request_abort();
        }
        let (mut done, until): (Vec<CopyDone>, _) = (Vec::new(), Instant::now() + COPY_LIMIT);
        loop {
            self.engine.poll(&mut done);
            match done.pop().map(|done| done.state) {
                Some(CopyState::Done) => return Ok(()),
                Some(other) => return Err(failed(format!("copy of one block ended as {other:?}"))),
                None if Instant::now() >= until => return Err(failed("a copy of one block does not end")),
                None => std::thread::sleep(RECHECK),
            }
        }
    }
}

fn page_of(layout: &KvLayout) -> Result<Segment, ClientError> {
    Segment::create("scratch", layout.page_bytes().next_multiple_of(PAGE_BYTES)).map_err(failed)
}
