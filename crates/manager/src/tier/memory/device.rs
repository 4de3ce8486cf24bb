//! How the memory tier behaves like a device: each job takes its time, so many at once, in the order of
//! service.

use super::MemoryTierSettings;
use super::store::Store;
use crate::service_order::{Service, ServiceOrder};
use crate::tier::{Done, Job, Order, Outlet};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

/// A job under way and when it ends; the earliest comes first in a heap.
struct Serving {
    due: Instant,
    number: u64,
    job: Job,
}

impl PartialEq for Serving {
    fn eq(&self, other: &Self) -> bool {
        (self.due, self.number) == (other.due, other.number)
    }
}

impl Eq for Serving {}

impl PartialOrd for Serving {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Serving {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.due, other.number).cmp(&(self.due, self.number))
    }
}

/// The tier's thread.
pub(super) struct Device {
    settings: MemoryTierSettings,
    store: Store,
    waiting: ServiceOrder<Job>,
    serving: BinaryHeap<Serving>,
    begun: u64,
}

impl Device {
    pub(super) fn new(settings: MemoryTierSettings) -> Self {
        let store = Store::new(settings.bytes);
        Self { settings, store, waiting: ServiceOrder::default(), serving: BinaryHeap::new(), begun: 0 }
    }

    /// Serves until either end of the tier is gone.
    pub(super) fn serve(mut self, todo: &Receiver<Order>, outlet: &mut Outlet) {
        // Memory holds nothing of an earlier run.
        outlet.tell(Done::FoundAll);
        outlet.flush();
        while outlet.is_listened_to() {
            // All that has come before any of it begins: who came first is one thing, who goes first another.
            loop {
                match todo.try_recv() {
                    Ok(order) => self.take(order, outlet),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            self.begin();
            let next = match self.serving.peek() {
                Some(first) => todo.recv_timeout(first.due.saturating_duration_since(Instant::now())),
                None => todo.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match next {
                Ok(order) => self.take(order, outlet),
                Err(RecvTimeoutError::Timeout) => {
                    self.end_first(outlet);
                    outlet.flush();
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn take(&mut self, order: Order, outlet: &mut Outlet) {
        match order {
            Order::Do(job) => {
                let service = match &job {
                    Job::Write { .. } => Service::Write,
                    Job::Read { ticket, urgent: true, .. } => Service::Demand(*ticket),
                    Job::Read { ticket, urgent: false, .. } => Service::Ahead(*ticket),
                };
                self.waiting.push(service, job);
            }
            Order::Hasten { ticket } => self.waiting.hasten(ticket),
            // Metadata alone. A read of it that still waits fails; it was forgotten, so nobody wants it.
            Order::Erase { extent } => self.store.erase(extent),
            Order::Forget { namespace, number } => {
                self.store.forget(&namespace);
                // There is no later manager that could know of it.
                outlet.tell(Done::Forgotten { number, recorded: true });
                outlet.flush();
            }
            Order::AddSegment { .. } | Order::RemoveSegment { .. } => {}
        }
    }

    fn begin(&mut self) {
        while self.settings.depth == 0 || self.serving.len() < self.settings.depth as usize {
            let Some(job) = self.waiting.pop() else { return };
            self.begun += 1;
            let due = Instant::now() + self.delay();
            self.serving.push(Serving { due, number: self.begun, job });
        }
    }

    #[cfg(feature = "test-hooks")]
    fn delay(&self) -> Duration {
        crate::hooks::tier_delay().unwrap_or(self.settings.delay)
    }

    #[cfg(not(feature = "test-hooks"))]
    fn delay(&self) -> Duration {
        self.settings.delay
    }

    /// Carries the first one out.
    fn end_first(&mut self, outlet: &mut Outlet) {
        if let Some(Serving { job, .. }) = self.serving.pop() {
            self.store.carry_out(job, |what| outlet.tell(what));
        }
    }
}
