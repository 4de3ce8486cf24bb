//! How much of the device those may have whom nobody waits for.

use crate::{DiskConfig, IoBuffer};
use orbitkv_store::{Priority, Request};
use std::time::{Duration, Instant};

/// The next read of a request that reads page after page comes within this.
const AFTER_READS: Duration = Duration::from_millis(10);

/// What the kernel has of each kind, and what background may have of it. At least one background request may
/// always be begun, so whatever is held back is looked at again when that one ends.
#[derive(Debug)]
pub(crate) struct Background {
    max_requests: usize,
    max_bytes: u64,
    max_beside_reads: usize,
    requests: usize,
    bytes: u64,
    /// Requests that somebody waits for.
    others: usize,
    /// When the last of those ended.
    last_other: Option<Instant>,
}

impl Background {
    /// With so many places for requests in the kernel.
    pub(crate) fn new(config: &DiskConfig, places: usize) -> Self {
        Self {
            max_requests: (places / 2).max(1),
            max_bytes: config.max_background_bytes,
            max_beside_reads: config.background_beside_reads,
            requests: 0,
            bytes: 0,
            others: 0,
            last_other: None,
        }
    }

    /// Whether the kernel may get another background request.
    pub(crate) fn may_begin(&self, now: Instant) -> bool {
        let lately = self.last_other.is_some_and(|last| now.saturating_duration_since(last) < AFTER_READS);
        let beside = self.others > 0 || lately;
        let max_requests =
            if beside { self.max_beside_reads.min(self.max_requests) } else { self.max_requests };
        self.requests == 0 || (self.requests < max_requests && self.bytes < self.max_bytes)
    }

    /// The kernel gets that one.
    pub(crate) fn begin(&mut self, request: &Request<IoBuffer>) {
        if request.priority == Priority::Background {
            self.requests += 1;
            self.bytes += u64::from(request.bytes);
        } else {
            self.others += 1;
        }
    }

    /// The kernel has done with that one.
    pub(crate) fn end(&mut self, request: &Request<IoBuffer>, now: Instant) {
        if request.priority == Priority::Background {
            self.requests -= 1;
            self.bytes -= u64::from(request.bytes);
        } else {
            self.others -= 1;
            self.last_other = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orbitkv_store::{Direction, FileId};

    fn request(priority: Priority) -> Request<IoBuffer> {
        let (token, direction, file) = (1, Direction::Read, FileId(1));
        let buffer = IoBuffer::heap(4096).unwrap();
        Request { token, direction, priority, file, offset: 0, bytes: 4096, buffer }
    }

    /// How many may be begun, one after the other.
    fn room(mut background: Background, now: Instant) -> usize {
        let request = request(Priority::Background);
        (0..100)
            .take_while(|_| {
                let may = background.may_begin(now);
                background.begin(&request);
                may
            })
            .count()
    }

    fn background(max_background_bytes: u64, background_beside_reads: usize) -> Background {
        Background::new(
            &DiskConfig { max_background_bytes, background_beside_reads, ..DiskConfig::default() },
            8,
        )
    }

    #[test]
    fn it_has_half_of_the_places_its_bytes_and_at_least_one() {
        let now = Instant::now();
        assert_eq!(room(background(1 << 20, 1), now), 4);
        assert_eq!(room(background(8192, 1), now), 2);
        assert_eq!(room(background(0, 1), now), 1);
        assert_eq!(room(Background::new(&DiskConfig::default(), 1), now), 1);
    }

    #[test]
    fn beside_reads_and_shortly_after_them_it_has_less() {
        for priority in [Priority::Demand, Priority::Preparation] {
            for (beside, want) in [(0, 1), (1, 1), (2, 2), (99, 4)] {
                let (now, read) = (Instant::now(), request(priority));
                let mut reading = background(1 << 20, beside);
                reading.begin(&read);
                assert_eq!(room(reading, now), want);
                let mut has_read = background(1 << 20, beside);
                has_read.begin(&read);
                has_read.end(&read, now);
                assert!(has_read.may_begin(now));
                assert_eq!(room(has_read, now + AFTER_READS / 2), want);
                let mut over = background(1 << 20, beside);
                over.begin(&read);
                over.end(&read, now);
                assert_eq!(room(over, now + AFTER_READS), 4);
            }
        }
    }

    #[test]
    fn what_has_ended_makes_room() {
        let (now, mut full) = (Instant::now(), background(8192, 1));
        full.begin(&request(Priority::Background));
        assert!(full.may_begin(now));
        full.begin(&request(Priority::Background));
        assert!(!full.may_begin(now));
        full.end(&request(Priority::Background), now);
        assert!(full.may_begin(now), "in bytes, and not as the only one");
        let mut places = background(1 << 20, 1);
        for _ in 0..4 {
            places.begin(&request(Priority::Background));
        }
        assert!(!places.may_begin(now));
        places.end(&request(Priority::Background), now);
        assert!(places.may_begin(now), "in places");
    }
}
