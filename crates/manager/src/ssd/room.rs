//! Room for pages: whole segments go, and what was read of them is written again.

use super::device::{CHECK, Device};
use super::names::{stored_name, tagged};
use super::page_disk::{PageBuffer, PageDisk};
use super::report::SsdState;
use super::task::{Flight, Task};
use crate::tier::Done;
use orbitkv_store::{AppendError, Direction, DiskError, Expected, Extent, ReadAt, StoredPage, page_bytes};
use std::time::Instant;

impl<D: PageDisk> Device<D> {
    /// Evicts while there is too little room, one segment after the other.
    pub(super) fn make_room(&mut self) {
        while self.recovering.is_none() && self.moves.is_empty() {
            match self.log.wants_eviction() {
                Ok(true) if self.evict() => {}
                Ok(_) => return,
                Err(error) => return self.store_failed(&error),
            }
        }
    }

    /// Has a segment go. False if none can.
    pub(super) fn evict(&mut self) -> bool {
        let heat = &mut self.heat;
        let Some(eviction) = self.log.evict(|page| heat.take(page.extent)) else { return false };
        self.report.update(|status| status.evicted_pages += eviction.lost.len() as u64);
        for page in &eviction.lost {
            self.heat.take(page.extent);
            self.lost(page);
        }
        self.moves.begin(&eviction.hot);
        for page in eviction.hot {
            self.line_up(Task::Move(page));
        }
        if let Some(error) = eviction.unrecorded {
            self.store_failed(&error);
        }
        true
    }

    fn lost(&mut self, page: &StoredPage) {
        if let Some(extent) = tagged(self.number, page.extent) {
            self.outlet.tell(Done::Lost { name: stored_name(&page.page.name), extent });
        }
    }

    pub(super) fn begin_move(&mut self, page: StoredPage) {
        let place = self.log.locate(page.extent, page.page.payload_bytes);
        let at = place.ok().filter(|_| self.moves.is_wanted(page.extent));
        let buffer = at.and_then(|at| D::Buffer::own(at.bytes as usize));
        match (at, buffer) {
            (Some(ReadAt { file, offset, bytes }), Some(buffer)) => {
                self.submit(Flight::MoveRead(page), Direction::Read, (file, offset, bytes), buffer);
            }
            _ => self.give_up(&page),
        }
    }

    pub(super) fn end_move_read(
        &mut self,
        page: &StoredPage,
        bytes: u32,
        result: &Result<(), DiskError>,
        mut buffer: D::Buffer,
    ) {
        let record = &page.page;
        let expected = Expected {
            name: record.name,
            payload_bytes: record.payload_bytes,
            payload_crc: record.payload_crc,
        };
        let good = self.is_page(page.extent, &expected, bytes, result, &buffer);
        // Erased meanwhile: written again it would outlive that.
        let wanted = good && self.is_writable() && self.moves.is_wanted(page.extent);
        if !(wanted && self.afford(record.payload_bytes)) {
            return self.give_up(page);
        }
        let placement = match self.log.append_again(page.extent, record) {
            Ok(placement) => placement,
            Err(error) => {
                self.budget.give_back(page_bytes(record.payload_bytes));
                if let AppendError::Store(error) = &error {
                    self.store_failed(error);
                }
                return self.give_up(page);
            }
        };
        buffer.put_header(&placement.header);
        let at = (placement.file, placement.offset, placement.bytes);
        self.submit(Flight::MoveWrite(*page, placement.extent), Direction::Write, at, buffer);
    }

    pub(super) fn end_move_write(
        &mut self,
        page: &StoredPage,
        to: Extent,
        bytes: u32,
        result: &Result<(), DiskError>,
    ) {
        if let Err(error) = self.log.written(to, result) {
            self.store_failed(&error);
        }
        if let Err(error) = result {
            self.write_failed(error);
            return self.give_up(page);
        }
        self.health.wrote_well();
        let name = stored_name(&page.page.name);
        match (tagged(self.number, page.extent), tagged(self.number, to)) {
            // The core erases it where it is now if it does not want it any more.
            (Some(from), Some(new)) => {
                self.moves.moved(page.extent, to);
                self.outlet.tell(Done::Moved { name, from, to: new });
            }
            _ => self.log.erase(to),
        }
        self.report.update(|status| {
            status.relocated_pages += 1;
            status.written_bytes += u64::from(bytes);
            status.relocated_bytes += u64::from(bytes);
        });
        self.let_go(page);
    }

    /// The page goes with its segment.
    fn give_up(&mut self, page: &StoredPage) {
        self.lost(page);
        self.report.update(|status| status.evicted_pages += 1);
        self.let_go(page);
    }

    /// With the last one there is room for what was held.
    fn let_go(&mut self, page: &StoredPage) {
        self.moves.let_go(page.extent);
        if let Err(error) = self.log.let_go(page.extent) {
            self.store_failed(&error);
        }
        if self.moves.is_empty() {
            for write in std::mem::take(&mut self.held) {
                self.line_up(Task::Write(write));
            }
            self.make_room();
        }
    }

    /// Looks at the file system: what others use is not ours, and what was full may not be any more.
    pub(super) fn check(&mut self, now: Instant) {
        self.next_check = now + CHECK;
        if self.recovering.is_none() {
            // What was full may not be any more, whether pages found a place meanwhile or not.
            self.log.resume(false);
            if self.health.state == SsdState::Full {
                self.try_again();
            }
            if let Err(error) = self.log.shrink() {
                self.store_failed(&error);
            }
            self.make_room();
        }
        self.measure();
    }

    /// A file may show what the directory did not, that the page cache cannot be avoided; a segment, that memory
    /// cannot be locked.
    pub(super) fn note_mode(&mut self) {
        let disk = self.log.disk_mut();
        let (mode, registered) = (disk.mode(), disk.is_registered());
        if self.report.status().mode != mode {
            tracing::info!(directory = self.report.path(), mode, "SSD cache");
        }
        self.report.update(|status| (status.mode, status.registered) = (mode, registered));
    }

    /// Brings the report up to date.
    pub(super) fn measure(&mut self) {
        self.note_mode();
        match self.log.usage() {
            Ok(usage) => {
                let direct = self.log.disk_mut().is_direct();
                self.report.update(|status| {
                    status.direct = direct;
                    status.capacity_bytes = usage.capacity_bytes;
                    status.used_bytes = usage.used_bytes;
                    status.page_bytes = usage.page_bytes;
                    status.pages = usage.pages;
                    status.segments = usage.segments;
                    status.barred_segments = usage.barred_segments;
                });
                if usage.read_only {
                    self.set_state(SsdState::ReadOnly, "the cache directory cannot be written");
                }
            }
            Err(error) => self.store_failed(&error),
        }
    }
}
