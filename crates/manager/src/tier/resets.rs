//! Namespaces that are being forgotten, until every device has recorded it.

use super::Done;
use std::collections::BTreeMap;

/// Answers that are missing, and whether those that came were good.
#[derive(Clone, Copy, Debug)]
struct Reset {
    missing: usize,
    recorded: bool,
}

/// By number, which grows.
#[derive(Debug, Default)]
pub(super) struct Resets {
    open: BTreeMap<u64, Reset>,
    last: u64,
}

impl Resets {
    /// The number of another one, which so many devices are to record; at least one.
    pub(super) fn begin(&mut self, devices: usize) -> u64 {
        self.last += 1;
        self.open.insert(self.last, Reset { missing: devices, recorded: true });
        self.last
    }

    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// A device has recorded it, or could not. What the last of them says for all.
    pub(super) fn answer(&mut self, number: u64, recorded: bool) -> Option<Done> {
        let reset = self.open.get_mut(&number)?;
        reset.recorded &= recorded;
        reset.missing = reset.missing.saturating_sub(1);
        let Reset { missing, recorded } = *reset;
        (missing == 0).then(|| {
            self.open.remove(&number);
            Done::Forgotten { number, recorded }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_device_answers_for_all() {
        let mut resets = Resets::default();
        let (one, two) = (resets.begin(2), resets.begin(2));
        assert_eq!((resets.last(), resets.answer(one, true)), (two, None));
        assert_eq!(resets.answer(two, false), None);
        assert_eq!(resets.answer(one, true), Some(Done::Forgotten { number: one, recorded: true }));
        assert_eq!(resets.answer(two, true), Some(Done::Forgotten { number: two, recorded: false }));
        assert_eq!(resets.answer(two, true), None, "it is over");
    }
}
