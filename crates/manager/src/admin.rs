//! Requests of the HTTP thread to the core thread.

use crate::snapshot::Snapshot;
use crate::waker::Waker;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use tokio::sync::oneshot;

/// Most requests that wait for the core thread.
const QUEUE: usize = 64;
/// A core thread that takes longer is reported as stuck.
const PATIENCE: Duration = Duration::from_secs(2);

/// One request; the answer goes into its sender.
#[derive(Debug)]
pub(crate) enum AdminRequest {
    /// Whether engines are served: false while draining.
    Health(oneshot::Sender<bool>),
    /// Everything that is reported.
    Snapshot(oneshot::Sender<Snapshot>),
    /// Forget all pages that nobody leases or copies.
    DropMemory {
        /// Not while pages are written behind: they could not be found again.
        when_written: bool,
        answer: oneshot::Sender<Dropped>,
    },
}

/// What became of a request to drop pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// So many pages.
    Pages(u64),
    /// None: so many bytes are still being written.
    Pending(u64),
}

/// The core thread did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stuck;

/// The HTTP thread's end.
#[derive(Clone, Debug)]
pub(crate) struct Admin {
    requests: SyncSender<AdminRequest>,
    waker: Waker,
}

impl Admin {
    pub(crate) fn new(waker: Waker) -> (Self, Receiver<AdminRequest>) {
        let (requests, receiver) = sync_channel(QUEUE);
        (Self { requests, waker }, receiver)
    }

    /// Asks and waits, at most two seconds.
    pub(crate) async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> AdminRequest,
    ) -> Result<T, Stuck> {
        let (sender, answer) = oneshot::channel();
        self.requests.try_send(request(sender)).map_err(|_| Stuck)?;
        self.waker.wake();
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            _ => Err(Stuck),
        }
    }
}
