//! Threads that help the copy thread with checksums: one core reads memory far more slowly than a device takes and gives
//! it, and who restores with SGLang waits for them.

use crate::ClientError;
use orbitkv_copy::page_crc64;
use orbitkv_shm::Region;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// With the copy thread itself.
const MAX_AT_ONCE: usize = 4;
/// Of the host's cores, most are the serving engine's.
const CORES_EACH: usize = 4;

/// A page of the pool.
#[derive(Clone)]
pub(super) struct Summed {
    pub(super) region: Arc<Region>,
    pub(super) offset: usize,
    pub(super) bytes: usize,
}

impl Summed {
    /// `None` for a page beyond its segment.
    pub(super) fn crc(&self) -> Option<u64> {
        page_crc64(&self.region, self.offset, self.bytes).ok()
    }
}

/// A page by its place, and its checksum.
type Question = (usize, Summed);
type Answer = (usize, Option<u64>);

/// The threads; they end with this.
pub(super) struct Summers {
    helpers: Vec<(Sender<Question>, JoinHandle<()>)>,
    answers: Receiver<Answer>,
}

impl Summers {
    /// As many as this host has cores for, one at least.
    pub(super) fn start() -> Result<Self, ClientError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::with((cores / CORES_EACH).clamp(2, MAX_AT_ONCE))
    }

    fn with(at_once: usize) -> Result<Self, ClientError> {
        let (answer, answers) = channel();
        let helpers = (1..at_once).map(|number| {
            let (ask, asked) = channel();
            let answer = answer.clone();
            let thread = std::thread::Builder::new()
                .name(format!("orbitkv-sum-{number}"))
                .spawn(move || help(&asked, &answer))
                .map_err(ClientError::system("cannot start a thread of the worker"))?;
            Ok((ask, thread))
        });
        Ok(Self { helpers: helpers.collect::<Result<_, ClientError>>()?, answers })
    }

    /// How many pages are summed in the time of one.
    pub(super) fn at_once(&self) -> usize {
        1 + self.helpers.len()
    }

    /// The checksums of these pages, each by a thread of its own as far as there are any.
    pub(super) fn sums(&self, pages: &[Summed]) -> Vec<Option<u64>> {
        let mut sums = vec![None; pages.len()];
        let asked = (self.helpers.iter().zip(pages.iter().enumerate().skip(1)))
            .filter(|((ask, _), (place, page))| ask.send((*place, (*page).clone())).is_ok())
            .count();
        if let (Some(sum), Some(page)) = (sums.first_mut(), pages.first()) {
            *sum = page.crc();
        }
        for (place, sum) in self.answers.iter().take(asked) {
            if let Some(entry) = sums.get_mut(place) {
                *entry = sum;
            }
        }
        // Also what nobody could be asked for.
        sums.into_iter().zip(pages).map(|(sum, page)| sum.or_else(|| page.crc())).collect()
    }
}

impl Drop for Summers {
    fn drop(&mut self) {
        for (ask, thread) in self.helpers.drain(..) {
            drop(ask);
            let _ = thread.join();
        }
    }
}

fn help(asked: &Receiver<Question>, answer: &Sender<Answer>) {
    while let Ok((place, page)) = asked.recv() {
        if answer.send((place, page.crc())).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orbitkv_shm::Segment;

    const BYTES: usize = 4096;

    fn pages(count: usize) -> Vec<Summed> {
        let segment = Segment::create("summed", count.max(1) * BYTES).unwrap();
        let page = |place: usize| {
            segment.write_at(place * BYTES, &[place as u8; BYTES]).unwrap();
            Summed { region: Arc::clone(segment.region()), offset: place * BYTES, bytes: BYTES }
        };
        (0..count).map(page).collect()
    }

    #[test]
    fn each_page_gets_its_own_sum_whoever_helps() {
        for at_once in [0, 1, 2, 4] {
            let summers = Summers::with(at_once).unwrap();
            assert_eq!(summers.at_once(), at_once.max(1));
            for count in [0, 1, 2, 4, 9] {
                let pages = pages(count);
                let expected: Vec<_> = pages.iter().map(Summed::crc).collect();
                assert!(expected.windows(2).all(|two| two[0] != two[1]), "the pages differ");
                assert_eq!(summers.sums(&pages), expected, "{count} pages, {at_once} at once");
            }
        }
    }

    #[test]
    fn a_page_beyond_its_segment_has_none() {
        let summers = Summers::with(3).unwrap();
        let mut pages = pages(3);
        pages[1].offset = 3 * BYTES;
        let sums = summers.sums(&pages);
        assert!(sums[0].is_some() && sums[1].is_none() && sums[2].is_some());
    }
}
