//! Payloads of single blocks, through the same jobs that saves and restores use.

use crate::ClientError;
use orbitkv_copy::{
    CopyDirection, CopyEngine, CopyId, CopyJob, CopyState, HostCopy, HostCopyConfig, KvLayout, PagePair,
};
use orbitkv_shm::{PAGE_BYTES, Segment};
use std::sync::Arc;
use std::time::Duration;

/// Longer than any copy of one page takes.
const COPY_LIMIT: Duration = Duration::from_secs(60);

fn failed(error: impl std::fmt::Display) -> ClientError {
    ClientError::Copy(error.to_string())
}

/// Payload of one block: its bytes in every region, in region order.
///
/// # Errors
/// A block that the layout does not have, or no memory for the payload.
pub fn gather_block(layout: &KvLayout, block: usize) -> Result<Vec<u8>, ClientError> {
    let page = page_of(layout)?;
    copy_block(layout, block, &page, CopyDirection::Save)?;
    let mut payload = vec![0; layout.page_bytes()];
    page.read_at(0, &mut payload).map_err(failed)?;
    Ok(payload)
}

/// The reverse of [`gather_block`]. Only for memory that no request uses.
///
/// # Errors
/// As above, and a payload that is not as long as a page.
pub fn scatter_block(layout: &KvLayout, block: usize, payload: &[u8]) -> Result<(), ClientError> {
    if payload.len() != layout.page_bytes() {
        let want = format!("{} bytes, a page of this layout", layout.page_bytes());
        return Err(ClientError::value("payload", format!("{} bytes", payload.len()), want));
    }
    let page = page_of(layout)?;
    page.write_at(0, payload).map_err(failed)?;
    copy_block(layout, block, &page, CopyDirection::Restore)
}

fn page_of(layout: &KvLayout) -> Result<Segment, ClientError> {
    Segment::create("scratch", layout.page_bytes().next_multiple_of(PAGE_BYTES)).map_err(failed)
}

fn copy_block(
    layout: &KvLayout,
    block: usize,
    page: &Segment,
    direction: CopyDirection,
) -> Result<(), ClientError> {
    let pair = PagePair { block, memory: Arc::clone(page.region()), offset: 0 };
    let job = CopyJob::between(CopyId(0), direction, layout, &[pair]).map_err(failed)?;
    let progress = Arc::clone(job.progress());
    let mut engine = HostCopy::new(HostCopyConfig::new(1)).map_err(failed)?;
    engine.submit(job).map_err(failed)?;
    let _ = progress.wait_step(usize::MAX, COPY_LIMIT);
    // Joins the engine's thread: whatever happened, nothing moves after this.
    drop(engine);
    match progress.state() {
        CopyState::Done => Ok(()),
        // The last step is complete, and the engine was dropped before it said so.
        _ if progress.steps_done() == progress.steps() => Ok(()),
        other => Err(failed(format!("copy of one block ended as {other:?}"))),
    }
}
