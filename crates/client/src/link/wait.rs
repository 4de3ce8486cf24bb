//! Reading an answer on the thread that asked for it.
//!
//! An answer that the connection's thread reads has to wake two threads, one after the other; one that the
//! asking thread reads itself wakes that thread alone. On a busy host the manager often answers before the
//! asking thread runs again, so the read side is taken before the request is sent.

use super::watch::timespec;
use super::{Inbound, Link};
use crate::sync::atomic::Ordering;
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::OwnedFd;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

/// How long a waiting thread reads before it sleeps.
const AWAKE: Duration = Duration::from_micros(50);
/// Waits that sleep at once after one that was awake in vain.
const SKIPS: u32 = 32;

/// The read side, owned by this thread until this value is dropped.
pub(crate) struct Reads<'a> {
    link: &'a Link,
    /// `Some` until dropped.
    inbound: Option<MutexGuard<'a, Option<Inbound>>>,
    socket: Arc<OwnedFd>,
}

impl Link {
    /// The read side of the present session; `None` without one, and while another thread has it. For the
    /// role whose messages any thread may handle.
    pub(crate) fn try_reads(&self) -> Option<Reads<'_>> {
        self.guard().ok()?;
        let inbound = self.try_inbound()?;
        let open = inbound.as_ref().filter(|open| open.session.is_some() && !open.over)?;
        let socket = Arc::clone(&open.socket);
        self.watch.disarm_read(&socket);
        Some(Reads { link: self, inbound: Some(inbound), socket })
    }

    /// A thread that owns the read side is to look again at what it waits for.
    pub(crate) fn nudge_reader(&self) {
        if self.reader.must_be_woken() {
            self.nudge.raise();
        }
    }
}

impl Reads<'_> {
    /// Handles what has come, without waiting; false at the end of the connection.
    pub(crate) fn read(&mut self) -> bool {
        let Some(inbound) = self.inbound.as_mut().and_then(|guard| guard.as_mut()) else { return false };
        if let Err(end) = inbound.read(self.link) {
            self.link.end_from_elsewhere(end);
            return false;
        }
        true
    }

    /// As `read_while`, without sleeping, for as long as an answer usually takes; false at the end of the
    /// connection. Going to sleep and being woken takes longer than the manager does where processors are
    /// idle. Where the answer did not come in that time, the next waits sleep at once.
    fn read_awake(&mut self, timeout: Duration, waiting: &impl Fn() -> bool) -> bool {
        let skip = &self.link.awake_reads_to_skip;
        let skips = skip.load(Ordering::Relaxed);
        if skips > 0 {
            skip.store(skips - 1, Ordering::Relaxed);
            return true;
        }
        let start = Instant::now();
        while waiting() {
            if start.elapsed() >= timeout.min(AWAKE) {
                self.link.awake_reads_to_skip.store(SKIPS, Ordering::Relaxed);
                break;
            }
            // The manager may need this very processor.
            std::thread::yield_now();
            if !self.read() {
                return false;
            }
        }
        true
    }

    /// Waits until there is something to read, or a nudge; which of the two.
    fn poll(&self, timeout: Duration) -> (bool, bool) {
        let mut fds =
            [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(&self.link.nudge, PollFlags::IN)];
        // A wait that a signal interrupts is a short one.
        let _ = poll(&mut fds, Some(&timespec(timeout)));
        (!fds[0].revents().is_empty(), !fds[1].revents().is_empty())
    }

    /// Reads while `waiting` says so, for at most `timeout`.
    pub(crate) fn read_while(&mut self, timeout: Duration, waiting: impl Fn() -> bool) {
        let start = Instant::now();
        if !self.read_awake(timeout, &waiting) {
            return;
        }
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            let sleeps = || waiting() && !left.is_zero() && !self.link.closing.load(Ordering::Relaxed);
            let Some((ready, nudged)) = self.link.reader.sleep(sleeps, || self.poll(left)) else { break };
            if nudged {
                self.link.nudge.clear();
            }
            if ready && !self.read() {
                break;
            }
        }
    }
}

impl Drop for Reads<'_> {
    fn drop(&mut self) {
        // The lock first: a report that was dropped because of this thread must not be dropped again.
        self.inbound = None;
        self.link.watch.arm_read(&self.socket);
    }
}
