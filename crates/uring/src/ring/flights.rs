//! Requests that the kernel has.

use crate::config::{BackgroundLimit, BackgroundUse, DiskConfig};
use crate::job::Job;
use orbitkv_store::Priority;
use std::collections::VecDeque;
use std::time::Instant;

/// A request in the ring.
#[derive(Debug)]
struct Flight {
    job: Job,
    since: Instant,
}

/// A fixed number of places. Whoever is in one is owned by it until the kernel has said its end.
#[derive(Debug)]
pub(super) struct Flights {
    places: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// Places that are to be offered to the kernel, for the first time or for the rest.
    unpushed: VecDeque<usize>,
    background: BackgroundUse,
    background_limit: BackgroundLimit,
}

impl Flights {
    pub(super) fn new(config: &DiskConfig) -> Self {
        let depth = config.queue_depth as usize;
        let places = std::iter::repeat_with(|| None).take(depth).collect();
        Self {
            places,
            free: (0..depth).rev().collect(),
            unpushed: VecDeque::new(),
            background: BackgroundUse::default(),
            background_limit: config.background_limit(depth),
        }
    }

    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    pub(super) fn has_room_for(&self, priority: Priority) -> bool {
        self.has_room()
            && (priority != Priority::Background || self.background.is_below(self.background_limit))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.places.len()
    }

    /// Takes a job, for which there is room.
    pub(super) fn insert(&mut self, job: Job) {
        let Some(place) = self.free.pop() else { return };
        self.background.begin(job.request());
        self.places[place] = Some(Flight { job, since: Instant::now() });
        self.unpushed.push_back(place);
    }

    /// The next one for the ring, with its number there.
    pub(super) fn next_to_push(&self) -> Option<(u64, &Job)> {
        let place = *self.unpushed.front()?;
        let flight = self.places.get(place)?.as_ref()?;
        Some((place as u64, &flight.job))
    }

    /// That one is in the ring.
    pub(super) fn pushed(&mut self) {
        self.unpushed.pop_front();
    }

    /// The kernel has done with it, for now.
    pub(super) fn returned(&mut self, number: u64) -> Option<&mut Job> {
        let flight = self.places.get_mut(usize::try_from(number).ok()?)?.as_mut()?;
        Some(&mut flight.job)
    }

    /// The rest of it is to be asked for.
    pub(super) fn again(&mut self, number: u64) {
        self.unpushed.extend(usize::try_from(number));
    }

    /// It is at its end.
    pub(super) fn remove(&mut self, number: u64) -> Option<Job> {
        let place = usize::try_from(number).ok()?;
        let flight = self.places.get_mut(place)?.take()?;
        self.free.push(place);
        self.background.end(flight.job.request());
        Some(flight.job)
    }

    /// Lets go of all that the kernel has not seen.
    pub(super) fn give_up_unpushed(&mut self) {
        while let Some(place) = self.unpushed.pop_front() {
            drop(self.remove(place as u64));
        }
    }

    pub(super) fn oldest(&self) -> Option<Instant> {
        self.places.iter().flatten().map(|flight| flight.since).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IoBuffer;
    use orbitkv_store::{Direction, FileId, Request};
    use std::sync::Arc;

    fn places(queue_depth: u32, max_background_bytes: u64) -> Flights {
        Flights::new(&DiskConfig { queue_depth, max_background_bytes, ..DiskConfig::default() })
    }

    fn job(priority: Priority) -> Job {
        let (token, direction, file) = (1, Direction::Read, FileId(1));
        let buffer = IoBuffer::heap(4096).unwrap();
        let request = Request { token, direction, priority, file, offset: 0, bytes: 4096, buffer };
        Job::new(request, Arc::new(tempfile::tempfile().unwrap()), 4096)
    }

    #[test]
    fn background_has_half_of_the_places_and_the_others_have_all() {
        let mut flights = places(4, 1 << 20);
        for _ in 0..2 {
            assert!(flights.has_room_for(Priority::Background));
            flights.insert(job(Priority::Background));
        }
        assert!(!flights.has_room_for(Priority::Background));
        flights.insert(job(Priority::Demand));
        assert!(flights.has_room_for(Priority::Preparation));
        flights.insert(job(Priority::Preparation));
        assert!(!flights.has_room());
        assert!(flights.remove(0).is_some() && flights.remove(0).is_none());
        assert!(flights.has_room_for(Priority::Background), "one of them has ended");
        let mut one = places(1, 1 << 20);
        assert!(one.has_room_for(Priority::Background), "with one place there is no half");
        one.insert(job(Priority::Background));
        assert!(!one.has_room_for(Priority::Demand));
    }

    #[test]
    fn background_is_limited_in_bytes_and_one_always_goes() {
        let mut flights = places(64, 8192);
        for _ in 0..2 {
            assert!(flights.has_room_for(Priority::Background));
            flights.insert(job(Priority::Background));
        }
        assert!(!flights.has_room_for(Priority::Background) && flights.has_room_for(Priority::Demand));
        flights.remove(0);
        assert!(flights.has_room_for(Priority::Background));
        assert!(
            Flights::new(&DiskConfig { max_background_bytes: 0, ..DiskConfig::default() })
                .has_room_for(Priority::Background)
        );
    }

    #[test]
    fn what_the_kernel_has_not_seen_can_be_given_up_and_nothing_else() {
        let mut flights = places(4, 1 << 20);
        flights.insert(job(Priority::Demand));
        flights.insert(job(Priority::Demand));
        assert_eq!(flights.next_to_push().map(|(number, _)| number), Some(0));
        flights.pushed();
        flights.give_up_unpushed();
        assert!(flights.returned(0).is_some() && flights.returned(1).is_none());
        assert!(flights.oldest().is_some() && !flights.is_empty());
        assert!(flights.returned(77).is_none(), "a number that is not ours");
        flights.again(0);
        assert!(flights.next_to_push().is_some());
        flights.give_up_unpushed();
        assert!(flights.is_empty());
    }
}
