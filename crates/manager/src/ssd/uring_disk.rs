//! Pages straight between slots and files: io_uring with O_DIRECT, or threads where that is refused.

use super::page_disk::{HEADER_BYTES, PageBuffer, PageDisk};
use crate::tier::{Bell, Place};
use orbitkv_shm::Segment;
use orbitkv_store::{BLOCK_BYTES, Block, Direction};
use orbitkv_uring::{IoBuffer, PageIo};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

impl PageBuffer for IoBuffer {
    fn of_slot(place: &Place, bytes: usize, _direction: Direction) -> Option<Self> {
        let offset = place.offset.checked_sub(HEADER_BYTES)?;
        Self::pool(place.segment.region(), offset, bytes).ok()
    }

    fn own(bytes: usize) -> Option<Self> {
        Self::heap(bytes).ok()
    }

    fn put_header(&mut self, header: &Block) -> bool {
        self.write_at(0, header).is_ok()
    }

    fn header(&self) -> Option<Block> {
        let mut header = [0; BLOCK_BYTES];
        self.read_at(0, &mut header).ok().map(|()| header)
    }

    fn payload_crc(&self, bytes: usize) -> Option<u64> {
        self.crc64(HEADER_BYTES, bytes).ok()
    }

    fn land(&mut self) -> bool {
        // They are where they should be.
        true
    }
}

impl<D: PageIo + Send + 'static> PageDisk for D {
    fn bell(&self) -> Option<Bell> {
        let waker = self.waker();
        Some(Arc::new(move || waker.wake()))
    }

    fn wait(&mut self, timeout: Duration) {
        if PageIo::wait(self, Some(timeout)).is_err() {
            // The kernel does not wait for us: look again, but not all the time.
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn mode(&self) -> String {
        PageIo::mode(self).to_string()
    }

    fn is_direct(&self) -> bool {
        PageIo::mode(self).direct
    }

    fn engine(&self) -> &'static str {
        PageIo::mode(self).engine.label()
    }

    fn is_registered(&self) -> bool {
        PageIo::mode(self).registered
    }

    fn add_segment(&mut self, segment: &Segment) {
        PageIo::add_segment(self, segment.region());
    }

    fn remove_segment(&mut self, segment: &Segment) {
        PageIo::remove_segment(self, segment.region());
    }
}
