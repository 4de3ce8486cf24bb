//! Pages from the disk into their slots.

use super::device::Device;
use super::names::{expected, untagged};
use super::page_disk::{PageBuffer, PageDisk};
use super::report::SsdState;
use super::task::{Flight, Read};
use crate::tier::Done;
use orbitkv_store::{Direction, DiskError, Expected, Extent, Mismatch, ReadAt};

impl<D: PageDisk> Device<D> {
    pub(super) fn begin_read(&mut self, read: Read) {
        let extent = self.moves.place_now(untagged(read.extent));
        let payload_bytes = u32::try_from(read.into.bytes).unwrap_or(u32::MAX);
        let at = match self.log.locate(extent, payload_bytes) {
            Ok(at) if self.health.state != SsdState::Off => at,
            // Evicted while it waited: no I/O, and nothing to wonder about.
            _ => return self.outlet.tell(Done::Read { slot: read.slot, good: false }),
        };
        let ReadAt { file, offset, bytes } = at;
        match D::Buffer::of_slot(&read.into, bytes as usize, Direction::Read) {
            Some(buffer) => {
                self.submit(Flight::Read(read, extent), Direction::Read, (file, offset, bytes), buffer);
            }
            None => self.outlet.tell(Done::Read { slot: read.slot, good: false }),
        }
    }

    pub(super) fn end_read(
        &mut self,
        read: &Read,
        extent: Extent,
        bytes: u32,
        result: &Result<(), DiskError>,
        mut buffer: D::Buffer,
    ) {
        let expected = expected(&read.name, &read.into, read.crc);
        let good = self.is_page(extent, &expected, bytes, result, &buffer) && buffer.land();
        if good {
            self.heat.read(extent);
        }
        self.outlet.tell(Done::Read { slot: read.slot, good });
    }

    /// Whether what was read is the page that is meant, every byte of it.
    pub(super) fn is_page(
        &mut self,
        extent: Extent,
        expected: &Expected,
        bytes: u32,
        result: &Result<(), DiskError>,
        buffer: &D::Buffer,
    ) -> bool {
        if let Err(error) = result {
            self.read_failed(error);
            return false;
        }
        self.health.read_well();
        self.report.update(|status| status.read_bytes += u64::from(bytes));
        let sum = buffer.payload_crc(expected.payload_bytes as usize);
        let checked = match (buffer.header(), sum) {
            (Some(header), Some(sum)) => self.log.check(extent, expected, &header, sum).map(|_| ()),
            _ => Err(Mismatch::Header),
        };
        match checked {
            Ok(()) => true,
            // Evicted while it was read.
            Err(Mismatch::Gone) => false,
            Err(mismatch) => {
                self.report.update(|status| status.mismatches += 1);
                if self.health.is_worth_a_line() {
                    let (directory, name) = (self.report.path(), expected.name);
                    tracing::warn!(directory, ?name, ?extent, "a page is not used: {mismatch}");
                }
                false
            }
        }
    }
}
