//! Requests that the kernel has.

use crate::config::DiskConfig;
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
    background: usize,
}

impl Flights {
    pub(super) fn new(depth: usize) -> Self {
        let places = std::iter::repeat_with(|| None).take(depth).collect();
        Self { places, free: (0..depth).rev().collect(), unpushed: VecDeque::new(), background: 0 }
    }

    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    pub(super) fn has_room_for(&self, priority: Priority) -> bool {
        let max = DiskConfig::background_depth(self.places.len());
        self.has_room() && (priority != Priority::Background || self.background < max)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.places.len()
    }

    /// Takes a job, for which there is room.
    pub(super) fn insert(&mut self, job: Job) {
        let Some(place) = self.free.pop() else { return };
        self.background += usize::from(is_background(&job));
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
        self.background -= usize::from(is_background(&flight.job));
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

fn is_background(job: &Job) -> bool {
    job.request().priority == Priority::Background
}
