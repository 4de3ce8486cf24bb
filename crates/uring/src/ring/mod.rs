//! io_uring: a bounded number of requests in the kernel, and the table that owns them meanwhile.

mod flights;
mod registry;
mod setup;

use crate::IoBuffer;
use crate::config::DiskConfig;
use crate::job::{Job, Step};
use crate::waiting::Waiting;
use crate::waker::Waker;
use flights::Flights;
use io_uring::{IoUring, opcode, squeue, types};
use orbitkv_shm::Region;
use orbitkv_store::{Completion, Direction};
use registry::Registry;
use rustix::io::Errno;
use std::fmt;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A ring and everything that the kernel may touch through it.
pub(crate) struct Ring {
    ring: IoUring,
    registry: Registry,
    flights: Flights,
    waiting: Waiting<Job>,
    /// Results of the last look, kept for its capacity.
    results: Vec<(u64, i32)>,
    /// The kernel did not take all that it was offered.
    stalled: bool,
    ends: bool,
    /// Completions go to its descriptor.
    _waker: Waker,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { flights, stalled, ends, .. } = self;
        f.debug_struct("Ring")
            .field("flights", flights)
            .field("stalled", stalled)
            .field("ends", ends)
            .finish()
    }
}

impl Ring {
    /// Why not, in words, where the kernel refuses.
    pub(crate) fn start(config: &DiskConfig, waker: Waker) -> Result<Self, String> {
        let ring = setup::ring(config.queue_depth, &waker)?;
        let registry = Registry::new(&ring, config.register);
        Ok(Self {
            ring,
            registry,
            flights: Flights::new(config),
            waiting: Waiting::new(),
            results: Vec::new(),
            stalled: false,
            ends: false,
            _waker: waker,
        })
    }

    pub(crate) fn submit(&mut self, job: Job) {
        self.waiting.push(job.request().priority, job);
        self.fill();
    }

    pub(crate) fn poll(&mut self, done: &mut Vec<Completion<IoBuffer>>) {
        self.reap(done);
        self.fill();
    }

    /// Whatever the kernel has ended: handed back, or asked for the rest.
    fn reap(&mut self, done: &mut Vec<Completion<IoBuffer>>) {
        let mut results = std::mem::take(&mut self.results);
        results.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
        for (number, result) in results.drain(..) {
            // The kernel gives negative errors.
            let brought = u32::try_from(result).map_err(|_| Errno::from_raw_os_error(-result));
            let Some(job) = self.flights.returned(number) else { continue };
            match job.advance(brought) {
                Some(result) => done.extend(self.flights.remove(number).map(|job| job.end(result))),
                None if self.ends => drop(self.flights.remove(number)),
                None => self.flights.again(number),
            }
        }
        self.results = results;
    }

    /// Puts into the ring what has room there, and tells the kernel.
    fn fill(&mut self) {
        while !self.ends && self.flights.has_room() {
            let Some(job) = self.waiting.pop(self.flights.has_room_for_background()) else { break };
            self.flights.insert(job);
        }
        while let Some((number, job)) = self.flights.next_to_push() {
            let entry = entry(job, &self.registry).user_data(number);
            // SAFETY: the flight owns the memory and the file of the entry, and is not removed before the kernel
            // has returned it; a ring with flights is never dropped, only leaked (`PageDisk`).
            let pushed = unsafe { self.ring.submission().push(&entry) };
            if pushed.is_err() {
                break;
            }
            self.flights.pushed();
        }
        self.enter();
    }

    fn enter(&mut self) {
        while !self.ring.submission().is_empty() {
            match self.ring.submit() {
                Ok(taken) if taken > 0 => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                // EAGAIN, EBUSY: the kernel has no memory, or wants completions to be taken first. Anything else is
                // no fault of one request either; all stay where they are, and their age tells.
                Ok(_) | Err(_) => break,
            }
        }
        self.stalled = !self.ring.submission().is_empty();
    }

    pub(crate) fn oldest_in_flight(&self, now: Instant) -> Option<Duration> {
        self.flights.oldest().map(|since| now.saturating_duration_since(since))
    }

    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.flights.is_empty()
    }

    pub(crate) fn stop(&mut self) {
        self.ends = true;
        self.waiting.clear();
        self.flights.give_up_unpushed();
    }

    /// Says why it is not registered.
    pub(crate) fn add_segment(&mut self, region: &Arc<Region>) -> Result<(), String> {
        self.registry.add(&self.ring, region)
    }

    pub(crate) fn remove_segment(&mut self, region: &Arc<Region>) {
        self.registry.remove(&self.ring, region);
    }

    /// Whether all segments that were added are registered.
    pub(crate) fn is_registered(&self) -> bool {
        self.registry.is_complete()
    }

    /// Why none can be registered.
    pub(crate) fn registration_refusal(&self) -> Option<&str> {
        self.registry.refusal()
    }
}

/// What to ask of the kernel for a job.
fn entry(job: &Job, registry: &Registry) -> squeue::Entry {
    let Step { direction, address, bytes, offset } = job.step();
    let fd = types::Fd(job.file().as_raw_fd());
    let slot = job.request().buffer.region().and_then(|region| registry.slot(region));
    match (direction, slot) {
        (Direction::Read, None) => opcode::Read::new(fd, address, bytes).offset(offset).build(),
        (Direction::Write, None) => opcode::Write::new(fd, address, bytes).offset(offset).build(),
        (Direction::Read, Some(slot)) => {
            opcode::ReadFixed::new(fd, address, bytes, slot).offset(offset).build()
        }
        (Direction::Write, Some(slot)) => {
            opcode::WriteFixed::new(fd, address, bytes, slot).offset(offset).build()
        }
    }
}
