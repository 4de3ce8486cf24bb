//! Seeds that must be clean, and seeds that have stories.

use orbitkv_sim::{Options, run_range, run_seed};

fn clean(seed: u64, story: &str) {
    let outcome = run_seed(seed, &Options::default());
    assert_eq!(outcome.failure, None, "seed {seed} ({story}) failed at event {}", outcome.events);
}

#[test]
fn three_hundred_seeds_are_clean_and_compare_pages() {
    let summary = run_range(0, 300, &Options::default(), &|_| {});
    assert_eq!(summary.failed, []);
    assert!(summary.compared > 1_000, "only {} shards were restored and compared", summary.compared);
}

#[test]
fn a_seed_is_a_history() {
    for seed in 1_000..1_020 {
        let options = Options::default();
        let (first, second) = (run_seed(seed, &options), run_seed(seed, &options));
        assert_eq!((first.history, first.events), (second.history, second.events), "seed {seed}");
    }
    let histories = [1, 2].map(|seed| run_seed(seed, &Options::default()).history);
    assert_ne!(histories[0], histories[1]);
}

#[test]
fn a_history_is_told_only_when_it_is_asked_for() {
    let told = run_seed(7, &Options { trace: true, ..Options::default() });
    let silent = run_seed(7, &Options::default());
    assert_eq!(told.history, silent.history, "a trace must change nothing");
    assert!(told.trace.len() as u64 > told.events && silent.trace.is_empty());
}

/// A seed keeps its story until the simulator draws its numbers in another order; the rule behind each
/// story has a test of its own in `crates/core/tests/scenarios.rs`.
#[test]
fn seeds_with_stories() {
    for (seed, story) in STORIES {
        clean(*seed, story);
    }
}

const STORIES: &[(u64, &str)] = &[
    (0, "a rank's probe page was granted to another rank"),
    (68, "a reservation refused by a limit was granted when it came again, to an owner that had given up"),
    (70, "a worker refused a ticket of its earlier session without a word, and was waited for"),
    (84, "a worker was done before the manager had read the restore, and was waited for"),
    (344, "small demands overtook a large one of their own instance"),
    (1300, "a session whose welcome was never read was waited for"),
];

#[cfg(feature = "plant")]
mod plants {
    use orbitkv_core::Plant;
    use orbitkv_sim::{Options, find_plant, silence_panics};

    #[test]
    fn every_planted_defect_is_found() {
        silence_panics();
        for plant in Plant::ALL {
            let row = find_plant(plant, &Options::default());
            assert!(row.found.is_some(), "{} was not found", plant.name());
        }
    }
}
