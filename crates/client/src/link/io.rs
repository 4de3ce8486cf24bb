//! The connection's thread.

use super::backoff::Backoff;
use super::inbound::{End, Inbound};
use super::watch::timespec;
use super::{FLUSH, Handler, Link, connect};
use crate::clock::monotonic_us;
use crate::sync::atomic::Ordering;
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// How long a listener may keep silent. Without a limit the client of one that hangs would never see the
/// manager that takes its place on the same path.
const WELCOME_WAIT: Duration = Duration::from_secs(3);
/// Longest sleep, far below what the kernel counts in milliseconds.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// Connects, serves, and connects again until the client is closed.
pub(super) fn run(link: &Link, handler: &Arc<dyn Handler>) {
    let mut backoff = Backoff::new(monotonic_us() ^ u64::from(link.process) << 32);
    let mut epoch = 0;
    while !link.stopping() {
        epoch += 1;
        // A defect in a handler costs this connection, never the engine.
        let end = catch_unwind(AssertUnwindSafe(|| connect_and_serve(link, handler, epoch)))
            .unwrap_or_else(|_| End::Rejected("internal error in the connection's thread".to_owned()));
        link.connected.store(false, Ordering::Release);
        link.lock_out().detach();
        if take_inbound(link).is_some_and(|inbound| inbound.session.is_some()) {
            backoff.reset();
            let _ = catch_unwind(AssertUnwindSafe(|| handler.disconnected()));
        }
        let delay = match end {
            End::Stopped => break,
            End::Lost(text) => {
                link.set_status(text);
                backoff.next()
            }
            End::Rejected(text) => {
                link.set_status(text);
                backoff.rejected()
            }
        };
        sleep(link, delay);
    }
    link.set_status("closed".to_owned());
}

/// Sleeps, unless the client is closed meanwhile.
fn sleep(link: &Link, delay: Duration) {
    let until = Instant::now() + delay;
    while !link.stopping() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let _ = link.watch.wait(Some(left));
    }
}

/// Takes the read side from whichever thread owns it, and with that ends all reading.
fn take_inbound(link: &Link) -> Option<Inbound> {
    link.closing.store(true, Ordering::Relaxed);
    link.nudge_reader();
    let mut guard = link.inbound.lock().unwrap_or_else(PoisonError::into_inner);
    // With the lock held: it speaks of this connection, not of the next.
    link.take_found_end();
    link.closing.store(false, Ordering::Relaxed);
    guard.take()
}

/// One connection from beginning to end.
fn connect_and_serve(link: &Link, handler: &Arc<dyn Handler>, epoch: u32) -> End {
    let socket = match connect::attempt(&link.socket) {
        Ok(socket) => Arc::new(socket),
        Err(text) => return End::Lost(text),
    };
    if let Err(error) = link.watch.add(&socket) {
        return End::Lost(format!("cannot watch the connection: {error} (trying again)"));
    }
    let mut hello = link.hello.clone();
    hello.epoch = epoch;
    hello.resume = handler.resume();
    let sent = hello.encode().map_err(|e| e.to_string()).and_then(|json| {
        link.lock_out().attach(Arc::clone(&socket), epoch, &json).map_err(|e| e.to_string())
    });
    if let Err(text) = sent {
        return End::Rejected(text);
    }
    link.set_status("connected; waiting for the manager's welcome".to_owned());
    let inbound = Inbound::new(Arc::clone(&socket), epoch, Arc::clone(handler));
    *link.inbound.lock().unwrap_or_else(PoisonError::into_inner) = Some(inbound);
    let connection = Connection { link, handler: &**handler, socket };
    connection.serve()
}

struct Connection<'a> {
    link: &'a Link,
    handler: &'a dyn Handler,
    socket: Arc<OwnedFd>,
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        self.link.watch.remove(&self.socket);
    }
}

impl Connection<'_> {
    fn serve(&self) -> End {
        let welcome_by = Instant::now() + WELCOME_WAIT;
        let end = loop {
            if self.link.stopping() {
                break End::Stopped;
            }
            if let Err(end) = self.turn(welcome_by) {
                break end;
            }
        };
        if matches!(end, End::Stopped) {
            self.flush();
        }
        end
    }

    /// Waits for something to do and does it.
    fn turn(&self, welcome_by: Instant) -> Result<(), End> {
        let now = Instant::now();
        let welcomed = self.link.is_connected();
        if !welcomed && now >= welcome_by {
            let (shown, waited_s) = (self.link.socket.display(), WELCOME_WAIT.as_secs());
            return Err(End::Lost(format!("no answer at {shown} for {waited_s} s (trying again)")));
        }
        let next = if welcomed { self.handler.timer(now) } else { Some(welcome_by) };
        let (left, broken) = {
            let out = self.link.lock_out();
            (out.left(), out.is_broken())
        };
        if broken {
            return Err(End::Lost("the manager stopped reading".to_owned()));
        }
        if left > 0 {
            self.link.watch.arm_write(&self.socket);
        }
        let timeout = next.map(|at| at.saturating_duration_since(now).min(LONGEST_SLEEP));
        let ready = self.link.watch.wait(timeout).map_err(|e| End::Lost(format!("epoll: {e}")))?;
        if ready.write {
            self.link.lock_out().drain();
        }
        if ready.read {
            self.read()?;
        }
        self.link.take_found_end().map_or(Ok(()), Err)
    }

    /// Reads once: the next turn takes the rest, so timers are never starved.
    fn read(&self) -> Result<(), End> {
        // A thread that owns the read side arms it when done, and this comes again.
        let Some(mut guard) = self.link.try_inbound() else { return Ok(()) };
        if let Some(inbound) = guard.as_mut().filter(|inbound| !inbound.over) {
            inbound.read(self.link)?;
        }
        drop(guard);
        self.link.watch.arm_read(&self.socket);
        Ok(())
    }

    /// Gives the last messages a bounded time to leave.
    fn flush(&self) {
        let until = Instant::now() + FLUSH;
        loop {
            let left = {
                let mut out = self.link.lock_out();
                out.drain();
                if out.is_broken() { 0 } else { out.left() }
            };
            let time = until.saturating_duration_since(Instant::now());
            if left == 0 || time.is_zero() {
                return;
            }
            let mut fds = [PollFd::new(&self.socket, PollFlags::OUT)];
            let _ = poll(&mut fds, Some(&timespec(time)));
        }
    }
}
