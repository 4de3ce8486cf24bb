//! Five rounds, and the median of them.

use anyhow::Result;

/// Rounds that count; one more goes before them, to warm up.
const ROUNDS: usize = 5;

/// The median of five measurements.
pub(crate) fn median_of_five(mut ours: impl FnMut() -> Result<f64>) -> Result<f64> {
    Ok(alternate(&mut ours, || Ok(0.0))?.0)
}

/// Measures both in turn; the median of each.
pub(crate) fn alternate(
    mut ours: impl FnMut() -> Result<f64>,
    mut limit: impl FnMut() -> Result<f64>,
) -> Result<(f64, f64)> {
    let (mut of_ours, mut of_limit) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let (one, other) = (ours()?, limit()?);
        if round > 0 {
            of_ours.push(one);
            of_limit.push(other);
        }
    }
    Ok((median(of_ours), median(of_limit)))
}

/// The value in the middle; the upper one of two. Zero for no values.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outlier_does_not_move_the_median() {
        assert_eq!(median(vec![3.0, 900.0, 1.0, 2.0, 4.0]), 3.0);
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
        assert_eq!(medians, (4.0, 14.0));
        assert_eq!(*order.borrow(), ["ours", "limit"].repeat(6));
    }
}
