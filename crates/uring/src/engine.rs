//! The two ways to the kernel behind one face.

use crate::IoBuffer;
use crate::job::Job;
use crate::ring::Ring;
use crate::threads::Threads;
use orbitkv_store::Completion;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) enum EngineKind {
    Ring(Box<Ring>),
    Threads(Threads),
}

impl EngineKind {
    pub(crate) fn submit(&mut self, job: Job) {
        match self {
            Self::Ring(ring) => ring.submit(job),
            Self::Threads(threads) => threads.submit(job),
        }
    }

    pub(crate) fn poll(&mut self, done: &mut Vec<Completion<IoBuffer>>) {
        match self {
            Self::Ring(ring) => ring.poll(done),
            Self::Threads(threads) => threads.poll(done),
        }
    }

    pub(crate) fn oldest_in_flight(&self, now: Instant) -> Option<Duration> {
        match self {
            Self::Ring(ring) => ring.oldest_in_flight(now),
            Self::Threads(threads) => threads.oldest_in_flight(now),
        }
    }

    /// Whether something is to be tried again that no event announces.
    pub(crate) fn is_stalled(&self) -> bool {
        match self {
            Self::Ring(ring) => ring.is_stalled(),
            Self::Threads(_) => false,
        }
    }

    /// Gives up what waits. From then on nothing new reaches the kernel.
    pub(crate) fn stop(&mut self) {
        match self {
            Self::Ring(ring) => ring.stop(),
            Self::Threads(threads) => threads.stop(),
        }
    }

    /// Whether the kernel has nothing of it.
    pub(crate) fn is_idle(&self) -> bool {
        match self {
            Self::Ring(ring) => ring.is_idle(),
            Self::Threads(threads) => threads.is_idle(),
        }
    }
}
