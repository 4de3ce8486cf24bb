//! Requests that the kernel has.

use crate::background::Background;
use crate::config::DiskConfig;
use crate::job::Job;
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
    background: Background,
}

impl Flights {
    pub(super) fn new(config: &DiskConfig) -> Self {
        let depth = config.queue_depth as usize;
        Self {
            places: std::iter::repeat_with(|| None).take(depth).collect(),
            free: (0..depth).rev().collect(),
            unpushed: VecDeque::new(),
            background: Background::new(config, depth),
        }
    }

    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether there may be another that nobody waits for.
    pub(super) fn has_room_for_background(&self) -> bool {
        self.has_room() && self.background.may_begin(Instant::now())
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
        self.background.end(flight.job.request(), Instant::now());
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
    use orbitkv_store::{Direction, FileId, Priority, Request};
    use std::sync::Arc;

    fn flights(queue_depth: u32) -> Flights {
        Flights::new(&DiskConfig { queue_depth, background_beside_reads: 2, ..DiskConfig::default() })
    }

    fn job(priority: Priority) -> Job {
        let (token, direction, file) = (1, Direction::Read, FileId(1));
        let buffer = IoBuffer::heap(4096).unwrap();
        let request = Request { token, direction, priority, file, offset: 0, bytes: 4096, buffer };
        Job::new(request, Arc::new(tempfile::tempfile().unwrap()), 4096)
    }

    #[test]
    fn background_has_half_of_the_places_and_the_others_have_all() {
        let mut places = flights(4);
        for _ in 0..2 {
            assert!(places.has_room_for_background());
            places.insert(job(Priority::Background));
        }
        assert!(!places.has_room_for_background() && places.has_room());
        places.insert(job(Priority::Demand));
        assert!(places.has_room());
        places.insert(job(Priority::Preparation));
        assert!(!places.has_room());
        assert!(places.remove(0).is_some() && places.remove(0).is_none());
        assert!(places.has_room_for_background(), "one of them has ended");
        let mut one = flights(1);
        assert!(one.has_room_for_background(), "with one place there is no half");
        one.insert(job(Priority::Background));
        assert!(!one.has_room());
    }

    #[test]
    fn what_the_kernel_has_not_seen_can_be_given_up_and_nothing_else() {
        let mut places = flights(4);
        places.insert(job(Priority::Demand));
        places.insert(job(Priority::Demand));
        assert_eq!(places.next_to_push().map(|(number, _)| number), Some(0));
        places.pushed();
        places.give_up_unpushed();
        assert!(places.returned(0).is_some() && places.returned(1).is_none());
        assert!(places.oldest().is_some() && !places.is_empty());
        assert!(places.returned(77).is_none(), "a number that is not ours");
        places.again(0);
        assert!(places.next_to_push().is_some());
        places.give_up_unpushed();
        assert!(places.is_empty());
    }
}
