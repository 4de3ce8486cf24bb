//! Pages through ordinary reads and writes on the directory's own thread, one after the other, each with a copy
//! between slot and buffer.

use super::page_disk::{HEADER_BYTES, PageBuffer, PageDisk};
use crate::tier::{Bell, Place};
use orbitkv_store::{Block, Direction, Disk, FileDisk, crc64};
use std::thread;
use std::time::Duration;

/// Bytes beside a slot.
#[derive(Debug)]
pub(crate) struct CopiedPage {
    bytes: Vec<u8>,
    slot: Option<Place>,
}

impl AsRef<[u8]> for CopiedPage {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for CopiedPage {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl PageBuffer for CopiedPage {
    fn of_slot(place: &Place, bytes: usize, direction: Direction) -> Option<Self> {
        let mut page = vec![0; bytes];
        let payload = page.get_mut(HEADER_BYTES..)?.get_mut(..place.bytes)?;
        if direction == Direction::Write {
            place.segment.read_at(place.offset, payload).ok()?;
        }
        Some(Self { bytes: page, slot: Some(place.clone()) })
    }

    fn own(bytes: usize) -> Option<Self> {
        Some(Self { bytes: vec![0; bytes], slot: None })
    }

    fn put_header(&mut self, header: &Block) -> bool {
        self.bytes.first_chunk_mut().map(|front| *front = *header).is_some()
    }

    fn header(&self) -> Option<Block> {
        self.bytes.first_chunk().copied()
    }

    fn payload_crc(&self, bytes: usize) -> Option<u64> {
        Some(crc64(self.bytes.get(HEADER_BYTES..)?.get(..bytes)?))
    }

    fn land(&mut self) -> bool {
        let Some(slot) = &self.slot else { return false };
        let payload = self.bytes.get(HEADER_BYTES..).and_then(|rest| rest.get(..slot.bytes));
        payload.is_some_and(|payload| slot.segment.write_at(slot.offset, payload).is_ok())
    }
}

impl PageDisk for FileDisk<CopiedPage> {
    fn bell(&self) -> Option<Bell> {
        None
    }

    fn wait(&mut self, timeout: Duration) {
        // Requests are carried out by `poll`.
        if self.in_flight() == 0 {
            thread::park_timeout(timeout);
        }
    }

    fn mode(&self) -> String {
        "pread and pwrite, through the page cache".to_owned()
    }

    fn engine(&self) -> &'static str {
        "copying"
    }
}
