//! Five rounds, the median of them, and how far apart they are.

use anyhow::Result;

/// Rounds that count; one more goes before them, to warm up.
const ROUNDS: usize = 5;

/// What some rounds have measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Measured {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Measured {
    /// Of these rounds; zero for none.
    pub(crate) fn of(rounds: Vec<f64>) -> Self {
        let low = rounds.iter().copied().reduce(f64::min).unwrap_or_default();
        let high = rounds.iter().copied().reduce(f64::max).unwrap_or_default();
        Self { median: median(rounds), low, high }
    }

    /// In another unit.
    pub(crate) fn times(self, factor: f64) -> Self {
        Self { median: self.median * factor, low: self.low * factor, high: self.high * factor }
    }
}

/// What is measured once, or is the same each time.
impl From<f64> for Measured {
    fn from(value: f64) -> Self {
        Self { median: value, low: value, high: value }
    }
}

/// Five measurements.
pub(crate) fn median_of_five(mut ours: impl FnMut() -> Result<f64>) -> Result<Measured> {
    Ok(alternate(&mut ours, || Ok(0.0))?.0)
}

/// Measures both in turn.
pub(crate) fn alternate(
    mut ours: impl FnMut() -> Result<f64>,
    mut limit: impl FnMut() -> Result<f64>,
) -> Result<(Measured, Measured)> {
    let (mut of_ours, mut of_limit) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let (one, other) = (ours()?, limit()?);
        if round > 0 {
            of_ours.push(one);
            of_limit.push(other);
        }
    }
    Ok((Measured::of(of_ours), Measured::of(of_limit)))
}

/// The value in the middle; the upper one of two. Zero for no values.
pub(crate) fn median(values: Vec<f64>) -> f64 {
    percentile(values, 50)
}

/// The value that `percent` of the others are below. Zero for no values.
pub(crate) fn percentile(mut values: Vec<f64>, percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = values.len() * percent / 100;
    values.get(at).or(values.last()).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outlier_does_not_move_the_median() {
        assert_eq!(median(vec![3.0, 900.0, 1.0, 2.0, 4.0]), 3.0);
    }

    #[test]
    fn the_99th_percentile_is_above_99_of_100() {
        assert_eq!(percentile((0..100).map(f64::from).collect(), 99), 99.0);
        assert_eq!(percentile(vec![5.0], 99), 5.0);
        assert_eq!(percentile(Vec::new(), 99), 0.0);
    }

    #[test]
    fn both_sides_run_in_turn_and_the_first_round_does_not_count() {
        let order = std::cell::RefCell::new(Vec::new());
        let side = |name, first: f64| {
            let mut next = first;
            let order = &order;
            move || {
                order.borrow_mut().push(name);
                next += 1.0;
                Ok(next)
            }
        };
        let medians = alternate(side("ours", 0.0), side("limit", 10.0)).unwrap();
        let want = |median| Measured { median, low: median - 2.0, high: median + 2.0 };
        assert_eq!(medians, (want(4.0), want(14.0)));
        assert_eq!(*order.borrow(), ["ours", "limit"].repeat(6));
    }
}
