//! Durations in buckets of powers of two.

/// Upper bound of the first bucket; each further one is twice the one before.
const FIRST_BUCKET_MICROS: u64 = 16;

/// Counts of durations in `N` buckets whose upper bounds are 16 µs × 2^i, and of those beyond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram<const N: usize> {
    counts: [u64; N],
    beyond: u64,
    sum_micros: u64,
}

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Self { counts: [0; N], beyond: 0, sum_micros: 0 }
    }
}

impl<const N: usize> Histogram<N> {
    /// Counts one duration.
    pub fn observe_micros(&mut self, micros: u64) {
        let steps = micros.div_ceil(FIRST_BUCKET_MICROS).max(1);
        // Smallest i with 2^i >= steps.
        let bucket = (u64::BITS - (steps - 1).leading_zeros()) as usize;
        *self.counts.get_mut(bucket).unwrap_or(&mut self.beyond) += 1;
        self.sum_micros = self.sum_micros.saturating_add(micros);
    }

    /// Upper bound in seconds and own count of each bucket. Longer durations are in the total alone.
    #[must_use]
    pub fn buckets(&self) -> Vec<(f64, u64)> {
        let bound = |i| (FIRST_BUCKET_MICROS << i) as f64 / 1e6;
        self.counts.iter().enumerate().map(|(i, count)| (bound(i), *count)).collect()
    }

    /// Durations counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum::<u64>() + self.beyond
    }

    /// Sum of all of them.
    #[must_use]
    pub fn sum_micros(&self) -> u64 {
        self.sum_micros
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_inclusive_powers_of_two_from_16_micros() {
        let mut histogram = Histogram::<3>::default();
        for micros in [0, 16, 17, 32, 33, 64, 65, u64::MAX] {
            histogram.observe_micros(micros);
        }
        assert_eq!(histogram.buckets(), [(16e-6, 2), (32e-6, 2), (64e-6, 2)]);
        assert_eq!(histogram.count(), 8, "those beyond all bounds are counted");
        assert_eq!(histogram.sum_micros(), u64::MAX, "a sum that is too large stays the largest");
    }
}
