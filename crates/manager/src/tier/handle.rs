//! The core thread's end of one device.

use super::{Done, Order};
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

/// Answers that wait for the core thread; a device that has more waits for it.
const ANSWERS: usize = 1024;

/// Wakes a device's thread. What it is to find must be in its place before.
pub(crate) type Bell = Arc<dyn Fn() + Send + Sync>;

/// See the module.
pub(crate) struct Handle {
    orders: Option<Sender<Order>>,
    done: Option<Receiver<Done>>,
    /// Ends with the thread.
    alive: Receiver<()>,
    bell: Bell,
}

/// The device's end.
pub(crate) struct Ends {
    orders: Receiver<Order>,
    done: SyncSender<Done>,
    alive: Alive,
}

/// Held by the thread until it has ended.
pub(crate) struct Alive(#[allow(dead_code, reason = "it is dropped, no more")] Sender<()>);

impl Ends {
    pub(crate) fn split(self) -> (Receiver<Order>, SyncSender<Done>, Alive) {
        (self.orders, self.done, self.alive)
    }

    #[cfg(test)]
    pub(crate) fn orders(&self) -> &Receiver<Order> {
        &self.orders
    }
}

/// Both ends of a device that is to be started. Until it has a bell, orders wake nobody.
pub(crate) fn pair() -> (Handle, Ends) {
    let (orders, todo) = channel();
    let (sender, done) = sync_channel(ANSWERS);
    let (holds, alive) = channel();
    let handle = Handle { orders: Some(orders), done: Some(done), alive, bell: Arc::new(|| ()) };
    (handle, Ends { orders: todo, done: sender, alive: Alive(holds) })
}

impl Handle {
    pub(crate) fn with_bell(self, bell: Bell) -> Self {
        Self { bell, ..self }
    }

    /// False if the thread has ended.
    pub(crate) fn send(&self, order: Order) -> bool {
        let sent = self.orders.as_ref().is_some_and(|orders| orders.send(order).is_ok());
        (self.bell)();
        sent
    }

    pub(crate) fn next_done(&self) -> Option<Done> {
        self.done.as_ref()?.try_recv().ok()
    }

    /// Takes no more orders and listens to no more answers: the device finishes what it should, and ends.
    pub(crate) fn close(&mut self) {
        self.orders = None;
        self.done = None;
        (self.bell)();
    }

    /// Whether the thread has ended by then.
    pub(crate) fn has_ended(&self, patience: Duration) -> bool {
        !matches!(self.alive.recv_timeout(patience), Err(RecvTimeoutError::Timeout))
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}
