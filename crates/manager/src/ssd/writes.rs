//! Pages out of their slots to the disk.

use super::device::Device;
use super::names::{record, tagged};
use super::page_disk::{PageBuffer, PageDisk};
use super::report::SsdState;
use super::task::{Flight, Task, Write};
use super::write_budget::Spending;
use crate::tier::Done;
use orbitkv_store::{AppendError, Direction, DiskError, Extent, Placement, page_bytes};

impl<D: PageDisk> Device<D> {
    /// Places a page and writes it, or holds it until there is room, or drops it.
    pub(super) fn begin_write(&mut self, mut write: Write) {
        if !self.is_writable() || !self.pay(&mut write) {
            return self.outlet.tell(Done::Written { slot: write.slot, extent: None });
        }
        let page = record(&write.shard);
        loop {
            match self.log.append(&page) {
                Ok(placement) => {
                    // As early as the store wants it: later there is no room for what should be kept.
                    self.make_room();
                    return self.write(write, &placement);
                }
                // The room that the moved pages leave is what it waits for.
                Err(AppendError::NoRoom) if !self.moves.is_empty() => return self.held.push(write),
                // Each time another segment goes, so this ends.
                Err(AppendError::NoRoom) if self.evict() => {}
                Err(error) => {
                    self.not_placed(&error);
                    self.budget.give_back(page_bytes(page.payload_bytes));
                    return self.outlet.tell(Done::Written { slot: write.slot, extent: None });
                }
            }
        }
    }

    /// Takes the bytes of a page out of the budget, once. False if it has too few.
    fn pay(&mut self, write: &mut Write) -> bool {
        write.paid = write.paid || self.afford(write.shard.payload_bytes);
        write.paid
    }

    /// As above, for a page that is written again.
    pub(super) fn afford(&mut self, payload_bytes: u32) -> bool {
        let granted = self.budget.spend(page_bytes(payload_bytes)) == Spending::Granted;
        if !granted {
            self.report.update(|status| status.write_budget_drops += 1);
        }
        granted
    }

    /// Header and payload in one write out of the slot: nobody reuses it before the answer.
    fn write(&mut self, write: Write, placement: &Placement) {
        let Placement { extent, file, offset, bytes, header } = placement;
        let buffer = D::Buffer::of_slot(&write.from, *bytes as usize, Direction::Write)
            .and_then(|mut buffer| buffer.put_header(header).then_some(buffer));
        match buffer {
            Some(buffer) => {
                let flight = Flight::Write(write, *extent);
                self.submit(flight, Direction::Write, (*file, *offset, *bytes), buffer);
            }
            None => {
                let refused = Err(DiskError::BadRequest("the slot is smaller than its page"));
                self.end_write(write, *extent, *bytes, &refused);
            }
        }
    }

    pub(super) fn end_write(
        &mut self,
        mut write: Write,
        extent: Extent,
        bytes: u32,
        result: &Result<(), DiskError>,
    ) {
        let sealed = self.log.written(extent, result);
        match result {
            Ok(()) => {
                self.report.update(|status| status.written_bytes += u64::from(bytes));
                self.health.wrote_well();
                let id = tagged(self.number, extent);
                if id.is_none() {
                    self.log.erase(extent);
                }
                self.outlet.tell(Done::Written { slot: write.slot, extent: id });
            }
            Err(DiskError::NoSpace) if !write.again => {
                // What is free of ours is given back, and the page goes where room is allocated already.
                if let Err(error) = self.log.shrink() {
                    self.store_failed(&error);
                }
                write.again = true;
                self.line_up(Task::Write(write));
            }
            Err(error) => {
                self.write_failed(error);
                self.outlet.tell(Done::Written { slot: write.slot, extent: None });
            }
        }
        if let Err(error) = sealed {
            self.store_failed(&error);
        }
    }

    /// Why a page has no place.
    fn not_placed(&mut self, error: &AppendError) {
        match error {
            AppendError::TooLarge { .. } if self.health.is_worth_a_line() => {
                tracing::warn!(directory = self.report.path(), "a page is not written: {error}");
            }
            AppendError::TooLarge { .. } | AppendError::Recovering => {}
            AppendError::NoRoom => self.set_state(
                SsdState::Full,
                "there is no room for another segment and none to evict; free some space, or lower --ssd-min-free",
            ),
            AppendError::ReadOnly => self.set_state(SsdState::ReadOnly, &error.to_string()),
            AppendError::Store(error) => self.store_failed(error),
        }
    }
}
