//! A directory's thread: its turns, and its end.

use super::health::Health;
use super::heat::Heat;
use super::moves::Moves;
use super::names::untagged;
use super::page_disk::PageDisk;
use super::recovering::Recovering;
use super::report::Report;
use super::task::{Flight, Flying, Task, Write};
use super::write_budget::WriteBudget;
use crate::service_order::ServiceOrder;
use crate::tier::{Done, Order, Outlet};
use orbitkv_core::NamespaceDigest;
use orbitkv_store::{Completion, Direction, DiskError, FileId, Log, Request};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

/// Requests that the disk has at once, so that the order of service decides and not the disk's queue.
const DEPTH: usize = 32;
/// Their bytes; one may be larger.
const DEPTH_BYTES: u64 = 64 << 20;
/// How often the file system is measured.
pub(super) const CHECK: Duration = Duration::from_secs(5);
/// How long what is written may take when the manager stops.
const CLOSING: Duration = Duration::from_secs(10);

/// See the module.
pub(super) struct Device<D: PageDisk> {
    pub(super) number: u8,
    pub(super) log: Log<D>,
    /// Shared with the other directories.
    pub(super) budget: WriteBudget,
    pub(super) report: Arc<Report>,
    pub(super) outlet: Outlet,
    pub(super) waiting: ServiceOrder<Task>,
    /// Writes for which there is no room before pages have moved; all of them while the directory is read.
    pub(super) held: Vec<Write>,
    /// By token, which grows.
    pub(super) flying: BTreeMap<u64, Flying>,
    flying_bytes: u64,
    tokens: u64,
    pub(super) moves: Moves,
    pub(super) heat: Heat,
    pub(super) health: Health,
    /// Until all has been found.
    pub(super) recovering: Option<Recovering>,
    pub(super) next_check: Instant,
    /// The manager stops: nothing but writes is begun.
    closing: bool,
}

impl<D: PageDisk> Device<D> {
    pub(super) fn new(
        number: u8,
        log: Log<D>,
        budget: WriteBudget,
        report: Arc<Report>,
        outlet: Outlet,
    ) -> Self {
        let now = Instant::now();
        Self {
            number,
            log,
            budget,
            report,
            outlet,
            waiting: ServiceOrder::default(),
            held: Vec::new(),
            flying: BTreeMap::new(),
            flying_bytes: 0,
            tokens: 0,
            moves: Moves::default(),
            heat: Heat::default(),
            health: Health::default(),
            recovering: Some(Recovering::new(now)),
            next_check: now,
            closing: false,
        }
    }

    /// Serves until no more orders can come, then closes the directory.
    pub(super) fn run(mut self, orders: &Receiver<Order>) {
        while self.take(orders) {
            self.turn();
            self.outlet.flush();
            if self.recovering.is_none() {
                self.rest();
            }
        }
        self.close();
    }

    fn turn(&mut self) {
        let now = Instant::now();
        self.report.busy(Some(self.oldest().unwrap_or(now)));
        self.collect();
        self.recover_one();
        if now >= self.next_check {
            self.check(now);
        }
        // Last: each of these may have found more to do.
        self.begin_tasks();
    }

    /// Waits for orders, for the disk, or for the next check.
    fn rest(&mut self) {
        self.report.busy(self.oldest());
        let timeout = self.next_check.saturating_duration_since(Instant::now());
        self.log.disk_mut().wait(timeout);
    }

    /// When what the disk has had longest was given to it.
    fn oldest(&self) -> Option<Instant> {
        self.flying.first_key_value().map(|(_, flying)| flying.since)
    }

    /// Takes all that have come before any of them begins. False at the end.
    fn take(&mut self, orders: &Receiver<Order>) -> bool {
        loop {
            match orders.try_recv() {
                Ok(Order::Do(job)) => self.line_up(job.into()),
                Ok(Order::Hasten { ticket }) => self.waiting.hasten(ticket),
                Ok(Order::Erase { extent }) => {
                    let extent = untagged(extent);
                    self.heat.take(extent);
                    self.moves.unwanted(extent);
                    self.log.erase(extent);
                }
                Ok(Order::Forget { namespace, number }) => {
                    let recorded = self.forget(namespace);
                    self.outlet.tell(Done::Forgotten { number, recorded });
                }
                Ok(Order::AddSegment { segment }) => {
                    self.log.disk_mut().add_segment(&segment);
                    self.note_mode();
                }
                Ok(Order::RemoveSegment { segment, let_go }) => {
                    self.log.disk_mut().remove_segment(&segment);
                    drop((segment, let_go));
                    self.note_mode();
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    pub(super) fn line_up(&mut self, task: Task) {
        match task {
            // The log takes no page before it knows all that it has.
            Task::Write(write) if self.recovering.is_some() => self.held.push(write),
            task => self.waiting.push(task.service(), task),
        }
    }

    /// What waits to be written under that name is not written: it would outlive the order. What the disk has
    /// already is older than the order, for the log too.
    /// True once later managers know it too.
    fn forget(&mut self, namespace: NamespaceDigest) -> bool {
        let of_it = |write: &Write| write.shard.name.namespace == namespace;
        let waiting = self.waiting.remove_writes(|task| matches!(task, Task::Write(write) if of_it(write)));
        let held = self.held.extract_if(.., |write| of_it(write)).map(Task::Write);
        for task in waiting.into_iter().chain(held.collect::<Vec<_>>()) {
            if let Task::Write(Write { slot, .. }) = task {
                self.outlet.tell(Done::Written { slot, extent: None });
            }
        }
        self.moves.unwanted_of(&namespace.0);
        // It waits for the device, which may be stuck.
        self.report.busy(Some(self.oldest().unwrap_or_else(Instant::now)));
        #[cfg(feature = "test-hooks")]
        orbitkv_holds::wait_if_held("ssd_forget");
        let recorded = self.log.forget(&namespace.0);
        match &recorded {
            Ok(()) => self.report.update(|status| status.recorded_resets += 1),
            Err(error) => {
                self.report.update(|status| status.unrecorded_resets += 1);
                tracing::error!(
                    directory = self.report.path(),
                    "pages that were reset may be found again by the next manager: {error}; remove the files of \
                     the directory before it starts"
                );
                self.store_failed(error);
            }
        }
        recorded.is_ok()
    }

    fn begin_tasks(&mut self) {
        while self.flying.is_empty() || (self.flying.len() < DEPTH && self.flying_bytes < DEPTH_BYTES) {
            match self.waiting.pop() {
                None => return,
                Some(Task::Write(write)) => self.begin_write(write),
                // Nobody waits any more; and what is not moved is found again where it is.
                Some(_) if self.closing => {}
                Some(Task::Read(read)) => self.begin_read(read),
                Some(Task::Move(page)) => self.begin_move(page),
            }
        }
    }

    /// Gives a page to the disk. One that it does not take ends at once.
    pub(super) fn submit(
        &mut self,
        flight: Flight,
        direction: Direction,
        (file, offset, bytes): (FileId, u64, u32),
        buffer: D::Buffer,
    ) {
        #[cfg(feature = "test-hooks")]
        crate::hooks::before_disk(direction);
        self.tokens += 1;
        let (token, priority) = (self.tokens, flight.priority());
        let request = Request { token, direction, priority, file, offset, bytes, buffer };
        match self.log.disk_mut().submit(request) {
            Ok(()) => {
                self.flying_bytes += u64::from(bytes);
                self.flying.insert(token, Flying { flight, bytes, since: Instant::now() });
            }
            Err(rejected) => self.ended(flight, bytes, &Err(rejected.reason), rejected.request.buffer),
        }
    }

    /// Ends what the disk has ended.
    fn collect(&mut self) {
        let mut done: Vec<Completion<D::Buffer>> = Vec::new();
        self.log.disk_mut().poll(&mut done);
        for Completion { token, result, buffer } in done {
            if let Some(Flying { flight, bytes, .. }) = self.flying.remove(&token) {
                self.flying_bytes -= u64::from(bytes);
                self.ended(flight, bytes, &result, buffer);
            }
        }
    }

    fn ended(&mut self, flight: Flight, bytes: u32, result: &Result<(), DiskError>, buffer: D::Buffer) {
        match flight {
            Flight::Write(write, extent) => self.end_write(write, extent, bytes, result),
            Flight::Read(read, extent) => self.end_read(&read, extent, bytes, result, buffer),
            Flight::MoveRead(page) => self.end_move_read(&page, bytes, result, buffer),
            Flight::MoveWrite(page, to) => self.end_move_write(&page, to, bytes, result),
        }
    }

    /// Writes what waits to be written, and leaves the directory so that all of it is found.
    fn close(mut self) {
        self.closing = true;
        let until = Instant::now() + CLOSING;
        loop {
            self.collect();
            self.begin_tasks();
            let now = Instant::now();
            if self.flying.is_empty() || now >= until {
                break;
            }
            self.log.disk_mut().wait(until.saturating_duration_since(now));
        }
        let directory = self.report.path();
        if !self.flying.is_empty() {
            tracing::error!(directory, "the disk does not answer: the SSD cache is left as after a crash");
            return;
        }
        match self.log.close() {
            Ok(_) => tracing::info!(directory, "SSD cache closed"),
            Err(error) => tracing::warn!(directory, "SSD cache left as after a crash: {error}"),
        }
    }
}
