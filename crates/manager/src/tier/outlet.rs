//! Where a device tells what it has done.

use super::Done;
use crate::waker::Waker;
use std::sync::mpsc::{SyncSender, TrySendError};

/// See the module.
#[derive(Debug)]
pub(crate) struct Outlet {
    done: SyncSender<Done>,
    waker: Waker,
    /// Something was told that nobody was woken for.
    fresh: bool,
    listened: bool,
}

impl Outlet {
    pub(crate) fn new(done: SyncSender<Done>, waker: Waker) -> Self {
        Self { done, waker, fresh: false, listened: true }
    }

    /// Waits while the core thread has more than enough to do.
    pub(crate) fn tell(&mut self, done: Done) {
        self.fresh = true;
        match self.done.try_send(done) {
            Ok(()) => {}
            Err(TrySendError::Full(done)) => {
                self.waker.wake();
                self.listened &= self.done.send(done).is_ok();
            }
            Err(TrySendError::Disconnected(_)) => self.listened = false,
        }
    }

    /// Wakes the core thread if there is news.
    pub(crate) fn flush(&mut self) {
        if std::mem::take(&mut self.fresh) {
            self.waker.wake();
        }
    }

    /// False once nobody listens any more.
    pub(crate) fn is_listened_to(&self) -> bool {
        self.listened
    }
}
