//! What waits in front of the kernel, and in which order it goes.

use orbitkv_store::Priority;
use std::collections::VecDeque;

/// One in so many is the oldest of all, whatever its priority: nothing is passed by more than so many times what
/// was before it.
const FAIRNESS: u64 = 8;

/// A queue for each priority, and the order over all of them.
#[derive(Debug)]
pub(crate) struct Waiting<T> {
    /// With the number of their arrival. By [`place`].
    queues: [VecDeque<(u64, T)>; 3],
    arrived: u64,
    left: u64,
}

fn place(priority: Priority) -> usize {
    match priority {
        Priority::Demand => 0,
        Priority::Preparation => 1,
        Priority::Background => 2,
    }
}

impl<T> Waiting<T> {
    pub(crate) fn new() -> Self {
        Self { queues: [VecDeque::new(), VecDeque::new(), VecDeque::new()], arrived: 0, left: 0 }
    }

    pub(crate) fn push(&mut self, priority: Priority, item: T) {
        self.queues[place(priority)].push_back((self.arrived, item));
        self.arrived += 1;
    }

    /// The next one; without `background`, only of what waits in front of it.
    pub(crate) fn pop(&mut self, background: bool) -> Option<T> {
        let allowed = if background { &mut self.queues[..] } else { &mut self.queues[..2] };
        let mut waiting = allowed.iter_mut().filter(|queue| !queue.is_empty());
        let queue = if (self.left + 1).is_multiple_of(FAIRNESS) {
            waiting.min_by_key(|queue| queue.front().map(|(number, _)| *number))?
        } else {
            waiting.next()?
        };
        self.left += 1;
        queue.pop_front().map(|(_, item)| item)
    }

    pub(crate) fn clear(&mut self) {
        self.queues.iter_mut().for_each(VecDeque::clear);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Priority::{Background, Demand, Preparation};

    #[test]
    fn higher_goes_first_and_equals_by_arrival() {
        let mut waiting = Waiting::new();
        for (priority, item) in [(Background, 'e'), (Preparation, 'c'), (Demand, 'a'), (Preparation, 'd')] {
            waiting.push(priority, item);
        }
        waiting.push(Demand, 'b');
        let order: String = std::iter::from_fn(|| waiting.pop(true)).collect();
        assert_eq!(order, "abcde");
    }

    #[test]
    fn background_stays_where_it_is_not_allowed() {
        let mut waiting = Waiting::new();
        waiting.push(Background, 1);
        for _ in 0..20 {
            assert_eq!(waiting.pop(false), None);
        }
        waiting.push(Preparation, 2);
        assert_eq!(waiting.pop(false), Some(2));
        assert_eq!(waiting.pop(true), Some(1));
    }

    #[test]
    fn each_is_passed_a_bounded_number_of_times() {
        for low in [Preparation, Background] {
            let mut waiting = Waiting::new();
            waiting.push(low, 0);
            let mut passed = 0;
            loop {
                waiting.push(Demand, 1);
                waiting.push(Demand, 1);
                if waiting.pop(true) == Some(0) {
                    break;
                }
                passed += 1;
                assert!(passed < FAIRNESS);
            }
        }
    }
}
