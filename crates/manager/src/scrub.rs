//! The check of memory at work: when it is time for some pages, and the thread that reads them.
//!
//! The core chooses the pages and holds their slots until the answer. So a round is small: what is held by it
//! cannot be evicted.

use crate::Rate;
use crate::tier::Place;
use crate::waker::Waker;
use orbitkv_core::{Micros, SlotRef};
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread;

/// Time that a round is made for.
const ROUND_US: u64 = 250_000;
/// From one round to the next, at least: a page that is larger than half a round leaves half of it unused.
const PAUSE_US: u64 = ROUND_US / 2;
/// The part of the pool that a round takes at most; one page may be larger.
const POOL_PER_ROUND: u64 = 64;
/// Rounds that wait for the thread: the next one begins when the last one has ended.
const ROUNDS: usize = 1;
/// Bytes that are copied out at once, so that they are compared in the processor's cache.
const PIECE_BYTES: usize = 256 << 10;

/// How much is checked at once, and how often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    rate: Rate,
    pool_bytes: u64,
}

impl Pace {
    pub(crate) fn new(rate: Rate, pool_bytes: u64) -> Self {
        Self { rate, pool_bytes }
    }

    /// Payload of a round, unless a single page is larger.
    fn round_bytes(self) -> u64 {
        self.rate.bytes_in(ROUND_US).min(self.pool_bytes / POOL_PER_ROUND)
    }

    /// When the next round may begin after one of so many bytes that began then.
    fn next(self, began: Micros, bytes: u64) -> Micros {
        Micros(began.0.saturating_add(self.rate.micros_of(bytes).max(PAUSE_US)))
    }
}

/// One slot to be read.
struct Job {
    slot: SlotRef,
    place: Option<Place>,
    crc: u64,
}

/// The core thread's end.
pub(crate) struct Scrubber {
    pace: Pace,
    /// When the next round may begin.
    next: Micros,
    round: Vec<Job>,
    /// Slots without an answer.
    left: usize,
    jobs: SyncSender<Vec<Job>>,
    done: Receiver<(SlotRef, bool)>,
}

impl Scrubber {
    /// Starts the thread.
    pub(crate) fn start(pace: Pace, waker: Waker) -> io::Result<Self> {
        let (jobs, todo) = sync_channel::<Vec<Job>>(ROUNDS);
        // A round of the core is bounded, and the next one begins when all of it has been taken.
        let (answers, done) = channel();
        thread::Builder::new().name("orbitkv-scrub".to_owned()).spawn(move || {
            // Of this thread alone: Linux has a priority for each.
            if let Err(error) = rustix::process::setpriority_process(None, 19) {
                tracing::warn!(%error, "the check of memory keeps its priority");
            }
            let mut piece = vec![0; PIECE_BYTES];
            for round in todo {
                for Job { slot, place, crc } in round {
                    let good = place.is_some_and(|place| crc_of(&place, &mut piece) == Some(crc));
                    if answers.send((slot, good)).is_err() {
                        return;
                    }
                }
                waker.wake();
            }
        })?;
        Ok(Self { pace, next: Micros(0), round: Vec::new(), left: 0, jobs, done })
    }

    /// When the next round is due; `None` while one is under way.
    pub(crate) fn due(&self) -> Option<Micros> {
        (self.left == 0).then_some(self.next)
    }

    /// Payload to ask the core for.
    pub(crate) fn round_bytes(&self) -> u64 {
        self.pace.round_bytes()
    }

    /// The core wants that slot read.
    pub(crate) fn add(&mut self, slot: SlotRef, place: Option<Place>, crc: u64) {
        self.round.push(Job { slot, place, crc });
    }

    /// Hands over what was added. False if the thread has ended: then nothing is answered any more.
    pub(crate) fn begin(&mut self, now: Micros) -> bool {
        let round = std::mem::take(&mut self.round);
        let bytes = round.iter().filter_map(|job| job.place.as_ref()).map(|place| place.bytes as u64).sum();
        self.next = self.pace.next(now, bytes);
        self.left = round.len();
        round.is_empty() || self.jobs.try_send(round).is_ok()
    }

    /// The next slot that has been read, and whether its bytes are as they should be.
    pub(crate) fn next_done(&mut self) -> Option<(SlotRef, bool)> {
        let done = self.done.try_recv().ok()?;
        self.left -= 1;
        Some(done)
    }
}

/// CRC-64/NVME of a payload; `None` if it is not all there.
fn crc_of(place: &Place, piece: &mut [u8]) -> Option<u64> {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
    let mut at = 0;
    while at < place.bytes {
        let bytes = piece.len().min(place.bytes - at);
        let piece = piece.get_mut(..bytes)?;
        place.segment.read_at(place.offset + at, piece).ok()?;
        digest.update(piece);
        at += bytes;
    }
    Some(digest.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;
    use orbitkv_core::SegmentId;
    use orbitkv_shm::Segment;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    const MIB: u64 = 1 << 20;

    fn pace(rate: &str, pool_bytes: u64) -> Pace {
        Pace::new(rate.parse().unwrap(), pool_bytes)
    }

    /// Bytes checked in so many seconds, with pages of that size and as many of them as are asked for.
    fn checked_in(pace: Pace, seconds: u64, page_bytes: u64) -> u64 {
        let (mut now, mut bytes) = (Micros(0), 0);
        while now.0 < seconds * 1_000_000 {
            let round_bytes = (pace.round_bytes() / page_bytes).max(1) * page_bytes;
            bytes += round_bytes;
            now = pace.next(now, round_bytes);
        }
        bytes
    }

    #[test]
    fn the_rate_holds_whatever_the_size_of_a_page() {
        for page_bytes in [10_000, MIB, 9 * MIB, 200 * MIB] {
            for rate_mib in [1, 64, 256] {
                let pace = pace(&format!("{rate_mib}mib/s"), 64 << 30);
                let (bytes, most) = (checked_in(pace, 600, page_bytes), 600 * rate_mib * MIB);
                let round_bytes = pace.round_bytes().max(page_bytes);
                assert!(bytes <= most + round_bytes, "{bytes} of {most} bytes, pages of {page_bytes}");
                assert!(bytes > most - most / 8, "{bytes} of {most} bytes, pages of {page_bytes}");
            }
        }
    }

    #[test]
    fn a_round_holds_little_of_a_small_pool() {
        let pace = pace("1gib/s", 16 * MIB);
        assert_eq!(pace.round_bytes(), 256 << 10);
        assert_eq!(pace.next(Micros(7), 256 << 10), Micros(7 + PAUSE_US), "eight rounds a second");
    }

    #[test]
    fn what_has_changed_is_told_from_what_has_not() {
        let segment = Arc::new(Segment::create("scrub", 4 << 20).unwrap());
        let bytes: Vec<u8> = (0..1_000_003_u32).map(|i| (i * 7 + i / 251) as u8).collect();
        segment.write_at(4096, &bytes).unwrap();
        let crc = orbitkv_store::crc64(&bytes);
        let place = Place { segment: Arc::clone(&segment), offset: 4096, bytes: bytes.len() };
        let beyond = Place { bytes: 4 << 20, ..place.clone() };
        let mut scrubber = Scrubber::start(pace("1gib/s", 64 << 20), Waker::new().unwrap()).unwrap();
        let slot = |index| SlotRef { segment: SegmentId(0), index, generation: 1 };
        let mut verdicts = |places: [Option<Place>; 3]| {
            places.into_iter().zip(0..).for_each(|(place, index)| scrubber.add(slot(index), place, crc));
            assert!(scrubber.begin(Micros(5)) && scrubber.due().is_none(), "one round at a time");
            let begun = Instant::now();
            let mut done = Vec::new();
            while done.len() < 3 {
                assert!(begun.elapsed() < Duration::from_secs(30), "no answer");
                done.extend(scrubber.next_done());
            }
            assert_eq!(scrubber.due(), Some(Micros(5 + PAUSE_US)));
            done.into_iter().map(|(_, good)| good).collect::<Vec<_>>()
        };
        let all = || [Some(place.clone()), Some(beyond.clone()), None];
        assert_eq!(verdicts(all()), [true, false, false]);
        // The last byte, behind the last whole piece.
        segment.write_at(4096 + bytes.len() - 1, &[bytes[bytes.len() - 1] ^ 1]).unwrap();
        assert_eq!(verdicts(all()), [false, false, false]);
    }
}
