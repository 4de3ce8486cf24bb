//! Whether the driver's batch call can be trusted here.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::context::{Context, DeviceMemory, Event};
use super::error::CudaError;
use super::staging::Registered;
use super::stream::{Piece, Stream, Way};

/// Bytes of one copy.
const COPY_BYTES: usize = 512;
/// The batch call has hung when it was repeated, so once is not enough.
const ROUNDS: usize = 16;
/// Longer than a device that is busy with a model takes.
pub(super) const LIMIT: Duration = Duration::from_secs(10);

/// Why batches are not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchRefusal {
    /// The configuration says so.
    #[error("batch copies are switched off by configuration")]
    Configured,
    /// Drivers before CUDA 12.8.
    #[error("the driver has no batch copies: use a driver for CUDA 12.8 or later")]
    Missing,
    /// The call fails.
    #[error("batch copies fail: {0}")]
    Failed(#[from] CudaError),
    /// The call returned, and other bytes arrived.
    #[error(
        "batch copies deliver wrong bytes on this driver ({wrong} of {of} copies): report it with nvidia-smi -q"
    )]
    WrongBytes {
        /// Copies that are wrong.
        wrong: usize,
        /// Copies made.
        of: usize,
    },
    /// The copies did not end.
    #[error("batch copies do not end within {} s", LIMIT.as_secs())]
    Stuck,
}

/// Copies to the device and back in full batches, every piece to another place, and compares.
pub(super) fn run(context: &Arc<Context>, descriptors: usize) -> Result<(), BatchRefusal> {
    let bytes = (descriptors * COPY_BYTES).next_multiple_of(orbitkv_shm::PAGE_BYTES);
    let source = Registered::create(context, bytes)?;
    let target = Registered::create(context, bytes)?;
    let memory = DeviceMemory::allocate(context, bytes)?;
    let stream = Stream::create(context, false)?;
    let event = Event::create(context)?;
    for round in 0..ROUNDS {
        fill(&source, bytes, round);
        let ended = exchange(context, descriptors, (&source, &memory, &target), &stream, &event, round);
        if !matches!(ended, Ok(true)) {
            // Bytes may still move: what they move between is never given back.
            std::mem::forget((source, target, memory, stream, event));
            return Err(ended.map_or_else(BatchRefusal::Failed, |_| BatchRefusal::Stuck));
        }
        let wrong = (0..descriptors).filter(|piece| !arrived(&target, *piece, round, descriptors)).count();
        if wrong > 0 {
            return Err(BatchRefusal::WrongBytes { wrong, of: descriptors });
        }
    }
    Ok(())
}

/// There and back; false if it does not end.
fn exchange(
    context: &Arc<Context>,
    descriptors: usize,
    (source, memory, target): (&Registered, &DeviceMemory, &Registered),
    stream: &Stream,
    event: &Event,
    round: usize,
) -> Result<bool, CudaError> {
    let place = |piece: usize| (piece * COPY_BYTES, turned(piece, round, descriptors) * COPY_BYTES);
    let piece = |host: &Registered, host_offset: usize, device_offset: usize| Piece {
        host: host.start().wrapping_add(host_offset),
        device: memory.start() + device_offset as u64,
        bytes: COPY_BYTES,
    };
    let there: Vec<_> = (0..descriptors).map(place).map(|(from, to)| piece(source, from, to)).collect();
    let back: Vec<_> = (0..descriptors).map(place).map(|(at, _)| piece(target, at, at)).collect();
    let _entered = context.enter()?;
    // SAFETY: all three memories live until the event is complete, or for ever.
    unsafe {
        stream.copy_batch(Way::ToDevice, &there)?;
        stream.copy_batch(Way::ToHost, &back)?;
    }
    context.record(event, stream.handle())?;
    ends(event)
}

/// Whether `event` is complete within the limit.
pub(super) fn ends(event: &Event) -> Result<bool, CudaError> {
    let start = Instant::now();
    while !event.is_complete()? {
        if start.elapsed() > LIMIT {
            return Ok(false);
        }
        thread::sleep(Duration::from_micros(50));
    }
    Ok(true)
}

/// Where a piece goes: another place each round.
fn turned(piece: usize, round: usize, descriptors: usize) -> usize {
    (piece + round + 1) % descriptors
}

/// A word that says which piece of which round it belongs to.
fn word(piece: usize, round: usize) -> u64 {
    ((round as u64) << 32 | piece as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn fill(source: &Registered, bytes: usize, round: usize) {
    for at in (0..bytes).step_by(8) {
        let value = word(at / COPY_BYTES, round).wrapping_add((at % COPY_BYTES) as u64);
        // SAFETY: inside the segment, aligned, and no copy is under way.
        unsafe { source.start().add(at).cast::<u64>().write(value) };
    }
}

fn arrived(target: &Registered, place: usize, round: usize, descriptors: usize) -> bool {
    let piece = (place + descriptors - (round + 1) % descriptors) % descriptors;
    (0..COPY_BYTES).step_by(8).all(|at| {
        // SAFETY: inside the segment, aligned, and the copies have ended.
        let found = unsafe { target.start().add(place * COPY_BYTES + at).cast::<u64>().read() };
        found == word(piece, round).wrapping_add(at as u64)
    })
}
