//! Registered memory for the lists that the kernel reads, used again when their launches have ended.

use std::sync::Arc;

use super::abi::DevicePtr;
use super::context::{Context, CudaStreamHandle};
use super::error::CudaError;
use super::kernel::{Entry, Kernel};
use super::staging::Registered;
use super::stream::{Piece, Way};

/// Entries that a lane has: 512 KiB. What is under way then is 64 MiB of fragments of 4 KiB, which keeps the bus busy
/// for a millisecond, many times as long as the worker sleeps.
const ENTRIES: usize = 16_384;
/// Entries of one launch: the time between two launches is a hundredth of what so many fragments of 4 KiB take.
pub(super) const MAX_ENTRIES: usize = 4096;

/// A piece whose host side the device reaches by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) piece: Piece,
    /// Where the device sees the host's side.
    pub(super) host_on_device: DevicePtr,
}

/// A lane's lists, and the kernel that reads them.
#[derive(Debug)]
pub(super) struct Lists {
    kernel: Arc<Kernel>,
    memory: Registered,
    device_start: DevicePtr,
    ring: Ring,
}

/// A list that lies ready.
#[derive(Debug)]
pub(super) struct List {
    start: DevicePtr,
    count: usize,
    longest_bytes: usize,
    /// What to give back.
    pub(super) taken: usize,
}

impl Lists {
    pub(super) fn create(context: &Arc<Context>, kernel: &Arc<Kernel>) -> Result<Lists, CudaError> {
        let memory = Registered::create(context, ENTRIES * size_of::<Entry>())?;
        let device_start = memory.device_start()?;
        Ok(Lists { kernel: kernel.clone(), memory, device_start, ring: Ring::new(ENTRIES) })
    }

    /// Writes a list, which stays until it is given back; `None` while there is no room. At most [`MAX_ENTRIES`].
    pub(super) fn put(&mut self, way: Way, listed: &[Listed]) -> Option<List> {
        let (first, taken) = self.ring.take(listed.len())?;
        for (index, Listed { piece, host_on_device }) in listed.iter().enumerate() {
            let (src, dst) = match way {
                Way::ToDevice => (*host_on_device, piece.device),
                Way::ToHost => (piece.device, *host_on_device),
            };
            let entry = Entry { src, dst, bytes: piece.bytes as u64, unused: 0 };
            // SAFETY: the ring hands out places inside the memory, which starts at a page, and no launch under way
            // reads these.
            unsafe { self.memory.start().cast::<Entry>().add(first + index).write(entry) };
        }
        Some(List {
            start: self.device_start + (first * size_of::<Entry>()) as u64,
            count: listed.len(),
            longest_bytes: listed.iter().map(|listed| listed.piece.bytes).max().unwrap_or(0),
            taken,
        })
    }

    /// Queues the copies of a list. The thread is in the context.
    ///
    /// # Safety
    /// Both sides of every piece stay valid, destinations unused, and the list is not given back, until an event
    /// recorded after this call is complete.
    pub(super) unsafe fn launch(&self, stream: CudaStreamHandle, list: &List) -> Result<(), CudaError> {
        // SAFETY: by the caller's promise; the entries stay until the list is given back.
        unsafe { self.kernel.launch(stream, list.start, list.count, list.longest_bytes) }
    }

    /// The oldest list is no longer read.
    pub(super) fn give_back(&mut self, taken: usize) {
        self.ring.give_back(taken);
    }
}

/// Places in a circle, given back in the order in which they were taken.
#[derive(Debug)]
struct Ring {
    places: usize,
    next: usize,
    used: usize,
}

impl Ring {
    fn new(places: usize) -> Ring {
        Ring { places, next: 0, used: 0 }
    }

    /// The first of `count` places in a row, and how many to give back: those left out at the end as well.
    fn take(&mut self, count: usize) -> Option<(usize, usize)> {
        if self.used == 0 {
            self.next = 0;
        }
        let fits = self.next + count <= self.places;
        let (first, left_out) = if fits { (self.next, 0) } else { (0, self.places - self.next) };
        let taken = left_out + count;
        if self.used + taken > self.places {
            return None;
        }
        self.next = first + count;
        self.used += taken;
        Some((first, taken))
    }

    fn give_back(&mut self, taken: usize) {
        debug_assert!(taken <= self.used, "{taken} places come back of {} taken", self.used);
        self.used -= taken;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn a_place_is_not_taken_again_before_it_is_given_back() {
        let (mut ring, mut taken, mut busy) = (Ring::new(100), VecDeque::new(), vec![false; 100]);
        let (mut refused, mut wrapped) = (0, 0);
        for turn in 0..10_000_usize {
            let count = 1 + turn * 7919 % 25;
            match ring.take(count) {
                Some((first, places)) => {
                    wrapped += usize::from(places > count);
                    for place in &mut busy[first..first + count] {
                        assert!(!std::mem::replace(place, true), "turn {turn}");
                    }
                    taken.push_back((first, count, places));
                }
                None => {
                    refused += 1;
                    let (first, count, places) = taken.pop_front().unwrap();
                    busy[first..first + count].fill(false);
                    ring.give_back(places);
                }
            }
        }
        assert!(refused > 100 && wrapped > 100, "{refused} {wrapped}");
    }

    #[test]
    fn an_empty_ring_takes_as_much_as_it_has() {
        let mut ring = Ring::new(10);
        let (_, first) = ring.take(7).unwrap();
        assert_eq!(ring.take(7), None);
        ring.give_back(first);
        assert_eq!(ring.take(10), Some((0, 10)));
    }
}
