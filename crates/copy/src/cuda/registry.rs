//! Which host memory the device may reach by itself: pool segments, registered chunk by chunk in the background.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use orbitkv_shm::Region;

use super::abi::DevicePtr;
use super::context::Context;
use super::error::CudaError;

/// Most regions known at once: a pool of 1 TiB in segments of 256 MiB.
const MAX_REGIONS: usize = 4096;

/// How far registration has come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registration {
    /// Bytes that the device reaches directly.
    pub registered_bytes: u64,
    /// Bytes that wait for the background thread; they are copied by way of a staging buffer until then.
    pub pending_bytes: u64,
    /// The last failure, after which its region is left to the staging buffer.
    pub failure: Option<CudaError>,
}

/// One registered range. Unregistered with the last job that uses it.
#[derive(Debug)]
pub(super) struct Chunk {
    context: Arc<Context>,
    offset: usize,
    bytes: usize,
    /// Where the device sees the first byte; `None` where the driver does not say.
    device_start: Option<DevicePtr>,
    /// Keeps the range mapped.
    region: Arc<Region>,
}

impl Chunk {
    fn register(
        context: &Arc<Context>,
        region: &Arc<Region>,
        offset: usize,
        bytes: usize,
    ) -> Result<Arc<Chunk>, CudaError> {
        let start = region.as_ptr().wrapping_add(offset);
        // SAFETY: the range is inside the region, which the chunk keeps mapped until it is unregistered.
        unsafe { context.register(start, bytes) }?;
        let device_start = context.device_pointer(start).ok();
        Ok(Arc::new(Chunk { context: context.clone(), offset, bytes, device_start, region: region.clone() }))
    }

    /// Where the device sees the byte at `address`, which lies in the chunk.
    pub(super) fn device_address(&self, address: usize) -> Option<DevicePtr> {
        self.device_start.map(|start| start + (address - self.start().addr()) as u64)
    }

    fn start(&self) -> *mut u8 {
        self.region.as_ptr().wrapping_add(self.offset)
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // A failure means that the context is gone, and the registration with it.
        let _ = self.context.unregister(self.start());
    }
}

/// The first bytes of a range.
pub(super) enum Span {
    /// So many lie in this chunk. No copy may reach over the end of a chunk: the driver refuses ranges that lie in
    /// two registrations.
    Pinned(usize, Arc<Chunk>),
    /// So many are not registered.
    Pageable(usize),
}

/// All chunks by address.
#[derive(Debug)]
pub(super) struct Registry {
    context: Arc<Context>,
    chunk_bytes: usize,
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    chunks: BTreeMap<usize, Arc<Chunk>>,
    /// Of all chunks: asked for in each step of the serving engine, and they may be thousands.
    registered_bytes: u64,
    regions: Vec<Arc<Region>>,
    /// Regions to register, and how much of each is done.
    queue: VecDeque<(Arc<Region>, usize)>,
    failure: Option<CudaError>,
    closed: bool,
}

impl Inner {
    fn knows(&self, region: &Arc<Region>) -> bool {
        self.regions.iter().any(|known| Arc::ptr_eq(known, region))
    }

    fn pending_bytes(&self) -> u64 {
        self.queue.iter().map(|(region, done)| (region.bytes() - done) as u64).sum()
    }
}

impl Registry {
    pub(super) fn new(context: &Arc<Context>, chunk_bytes: usize) -> Registry {
        let inner = Mutex::new(Inner::default());
        Registry { context: context.clone(), chunk_bytes, inner, changed: Condvar::new() }
    }

    /// Puts a region into the queue, unless it is known, there are too many, or the engine is gone.
    pub(super) fn add(&self, region: &Arc<Region>) {
        let mut inner = self.lock();
        if !inner.closed && inner.regions.len() < MAX_REGIONS && !inner.knows(region) {
            inner.regions.push(region.clone());
            inner.queue.push_back((region.clone(), 0));
            self.changed.notify_all();
        }
    }

    /// Forgets a region. What jobs under way use of it stays registered until they have ended.
    pub(super) fn remove(&self, region: &Arc<Region>) {
        let mut inner = self.lock();
        inner.regions.retain(|known| !Arc::ptr_eq(known, region));
        inner.queue.retain(|(queued, _)| !Arc::ptr_eq(queued, region));
        let (dropped, kept): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut inner.chunks)
            .into_iter()
            .partition(|(_, chunk)| Arc::ptr_eq(&chunk.region, region));
        inner.chunks = kept;
        inner.registered_bytes -= dropped.values().map(|chunk| chunk.bytes as u64).sum::<u64>();
        self.changed.notify_all();
        drop(inner);
        for chunk in dropped.into_values() {
            let begun = Instant::now();
            drop(chunk);
            drop(self.rest(self.lock(), begun.elapsed()));
        }
    }

    /// Leaves the driver's locks to the engine for as long as they were just taken: it would otherwise wait for one
    /// chunk after another. Ends early when the registry is closed.
    fn rest<'a>(&self, inner: MutexGuard<'a, Inner>, taken: Duration) -> MutexGuard<'a, Inner> {
        let rested = self.changed.wait_timeout_while(inner, taken, |inner| !inner.closed);
        rested.unwrap_or_else(PoisonError::into_inner).0
    }

    pub(super) fn status(&self) -> Registration {
        let inner = self.lock();
        Registration {
            registered_bytes: inner.registered_bytes,
            pending_bytes: inner.pending_bytes(),
            failure: inner.failure.clone(),
        }
    }

    /// Waits at most `timeout` until nothing is pending.
    pub(super) fn wait(&self, timeout: Duration) -> Registration {
        let pending = |inner: &mut Inner| !inner.queue.is_empty() && !inner.closed;
        drop(self.changed.wait_timeout_while(self.lock(), timeout, pending));
        self.status()
    }

    /// The first bytes of the `bytes` at `start`.
    pub(super) fn span(&self, start: usize, bytes: usize) -> Span {
        let inner = self.lock();
        if let Some((base, chunk)) = inner.chunks.range(..=start).next_back()
            && start < base + chunk.bytes
        {
            return Span::Pinned(bytes.min(base + chunk.bytes - start), chunk.clone());
        }
        let next = inner.chunks.range(start..).next().map_or(bytes, |(base, _)| base - start);
        Span::Pageable(bytes.min(next))
    }

    /// The background thread's life.
    pub(super) fn run(&self) {
        // Where that fails every call does, and is reported as its region's failure.
        let _relaxed = self.context.driver().relax_captures();
        let mut inner = self.lock();
        while !inner.closed {
            let Some((region, offset)) = inner.queue.front().cloned() else {
                inner = self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let bytes = self.chunk_bytes.min(region.bytes() - offset);
            // One chunk at a time: the driver holds locks that the engine's own calls need.
            drop(inner);
            let begun = Instant::now();
            let made = Chunk::register(&self.context, &region, offset, bytes);
            let taken = begun.elapsed();
            inner = self.lock();
            let unwanted = self.take_in(&mut inner, &region, offset + bytes, made);
            self.changed.notify_all();
            if unwanted.is_some() {
                drop(inner);
                drop(unwanted);
                inner = self.lock();
            }
            inner = self.rest(inner, taken);
        }
    }

    /// Books a chunk; gives back one whose region was removed meanwhile.
    fn take_in(
        &self,
        inner: &mut Inner,
        region: &Arc<Region>,
        done: usize,
        made: Result<Arc<Chunk>, CudaError>,
    ) -> Option<Arc<Chunk>> {
        if !inner.queue.front().is_some_and(|(queued, _)| Arc::ptr_eq(queued, region)) {
            return made.ok();
        }
        match made {
            Ok(chunk) => {
                inner.registered_bytes += chunk.bytes as u64;
                inner.chunks.insert(chunk.start().addr(), chunk);
                if done == region.bytes() {
                    inner.queue.pop_front();
                } else if let Some(front) = inner.queue.front_mut() {
                    front.1 = done;
                }
            }
            // What failed once fails again, for want of lockable memory as a rule: the region is left alone.
            Err(error) => {
                inner.failure = Some(error);
                inner.queue.pop_front();
            }
        }
        None
    }

    /// Ends the background thread and forgets everything.
    pub(super) fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        inner.queue.clear();
        inner.regions.clear();
        let chunks = std::mem::take(&mut inner.chunks);
        inner.registered_bytes = 0;
        self.changed.notify_all();
        drop(inner);
        drop(chunks);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
