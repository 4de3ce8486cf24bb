//! How long something was under way, where parts of it overlap.

use std::collections::VecDeque;
use std::time::Instant;

/// Spans kept that later ones may overlap. Older ones count as if nothing overlapped them.
const MAX_SPANS: usize = 64;

/// Times in which at least one query waited for a read, in microseconds after this was made.
#[derive(Debug)]
pub(super) struct Busy {
    born: Instant,
    /// Begin and end, disjoint and in order.
    spans: VecDeque<(u64, u64)>,
}

impl Busy {
    pub(super) fn new() -> Self {
        Self { born: Instant::now(), spans: VecDeque::new() }
    }

    /// One was under way for `micros` until now: how much of it is new.
    pub(super) fn ended(&mut self, micros: u64) -> u64 {
        self.add(u64::try_from(self.born.elapsed().as_micros()).unwrap_or(u64::MAX), micros)
    }

    /// One was under way for `micros` until `end`, which is not before that of any other: how much of it is new.
    fn add(&mut self, end: u64, micros: u64) -> u64 {
        let mut begin = end.saturating_sub(micros);
        let mut new = end - begin;
        while let Some(&(other_begin, other_end)) = self.spans.back()
            && other_end >= begin
        {
            new -= other_end.min(end) - other_begin.max(begin);
            begin = begin.min(other_begin);
            self.spans.pop_back();
        }
        self.spans.push_back((begin, end));
        if self.spans.len() > MAX_SPANS {
            self.spans.pop_front();
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_counts_once() {
        let mut busy = Busy::new();
        assert_eq!(busy.add(100, 50), 50, "50 to 100");
        assert_eq!(busy.add(100, 50), 0, "the same");
        assert_eq!(busy.add(120, 30), 20, "90 to 120");
        assert_eq!(busy.add(200, 10), 10, "190 to 200, apart");
        assert_eq!(busy.add(220, 200), 200 - 70 - 10, "20 to 220, over both");
        assert_eq!(busy.add(220, 1000), 20, "0 to 220: no time before the clock's first");
        assert_eq!(busy.spans, [(0, 220)]);
    }

    #[test]
    fn it_is_the_time_that_any_of_them_covers() {
        // Pseudo-random spans, compared with a look at every microsecond.
        let (mut busy, mut state, mut end, mut total) = (Busy::new(), 7_u64, 0, 0);
        let mut covered = vec![false; 20_000];
        for _ in 0..400 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            end += (state >> 33) % 48;
            let micros = (state >> 45) % 64;
            total += busy.add(end, micros);
            let (begin, end) =
                (usize::try_from(end.saturating_sub(micros)).unwrap(), usize::try_from(end).unwrap());
            covered[begin..end].fill(true);
        }
        assert_eq!(total, covered.iter().filter(|micro| **micro).count() as u64);
    }

    #[test]
    fn few_spans_are_kept() {
        let mut busy = Busy::new();
        for at in 1..1000 {
            assert_eq!(busy.add(10 * at, 5), 5);
        }
        assert_eq!(busy.spans.len(), MAX_SPANS);
    }
}
