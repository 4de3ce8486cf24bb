//! A directory's thread on a disk that fails when it is told to.

mod faulty;
mod world;

use crate::tier::Done;
use faulty::Fault;
use orbitkv_store::{Direction, DiskError};
use world::World;

const EIO: DiskError = DiskError::Io { errno: 5 };

#[test]
fn a_read_that_fails_is_a_miss_and_the_next_one_is_served() {
    let mut world = World::new();
    let extent = world.write(1).unwrap();
    world.fault(Fault { direction: Direction::Read, error: EIO, times: 1 });
    assert!(!world.read(1, extent));
    assert!(world.read(1, extent), "nothing is wrong with it");
    let status = world.report.status();
    assert_eq!((status.read_errors, status.mismatches, status.state.name()), (1, 0, "serving"));
}

#[test]
fn reads_that_go_on_failing_turn_the_directory_off() {
    let mut world = World::new();
    let extent = world.write(1).unwrap();
    world.fault(Fault { direction: Direction::Read, error: EIO, times: 16 });
    for _ in 0..16 {
        assert!(!world.read(1, extent));
    }
    assert_eq!(world.states, [(false, false)]);
    assert!(!world.read(1, extent), "the disk is well again, but not trusted");
    assert_eq!((world.report.status().state.name(), world.write(2)), ("off", None));
}

#[test]
fn a_write_that_fails_ends_all_writing_and_no_reading() {
    let mut world = World::new();
    let extent = world.write(1).unwrap();
    world.fault(Fault { direction: Direction::Write, error: EIO, times: 1 });
    assert_eq!(world.write(2), None);
    // Told before the answer, so that nothing is ordered in vain.
    assert_eq!(world.states, [(true, false)]);
    assert_eq!(world.write(3), None, "nor is it tried again");
    assert!(world.read(1, extent));
    assert_eq!(world.report.status().state.name(), "read_only");
}

#[test]
fn a_full_file_system_is_tried_once_more_at_once_and_again_later() {
    let mut world = World::new();
    world.fault(Fault { direction: Direction::Write, error: DiskError::NoSpace, times: 1 });
    let extent = world.write(1).expect("the second attempt");
    assert!(world.read(1, extent) && world.states.is_empty());
    world.fault(Fault { direction: Direction::Write, error: DiskError::NoSpace, times: 2 });
    assert_eq!(world.write(2), None);
    assert_eq!(world.states, [(true, false)]);
    assert_eq!(world.report.status().state.name(), "full");
    world.wait_until(|world| world.states == [(true, false), (true, true)]);
    let again = world.write(2).expect("there is room again");
    assert!(world.read(2, again));
}

#[test]
fn a_disk_that_does_not_answer_is_seen_and_its_slot_stays_in_custody() {
    let mut world = World::new();
    let extent = world.write(1).unwrap();
    world.stall(true);
    world.ask(1, extent);
    world.wait_until(|world| world.report.busy_for(std::time::Instant::now()).is_some());
    let later = std::time::Instant::now() + std::time::Duration::from_secs(11);
    assert!(world.report.busy_for(later).is_some_and(|busy| busy.as_secs() >= 10));
    assert_eq!(world.next(), None, "the disk has the slot still");
    world.stall(false);
    world.wait_until(|world| world.done.iter().any(|done| matches!(done, Done::Read { good: true, .. })));
    world.wait_until(|world| world.report.busy_for(later).is_none());
}

#[test]
fn what_waits_to_be_written_when_its_namespace_is_forgotten_is_not_written() {
    let mut world = World::new();
    world.stall(true);
    // More than the disk is given at once.
    (0..40).for_each(|page| world.order_write(page));
    world.forget();
    world.wait_until(|world| world.written.len() == 8);
    assert!(world.written.iter().all(Option::is_none), "those that waited");
    world.stall(false);
    world.wait_until(|world| world.written.len() == 40);
    // The 32 that the disk had are older than the order.
    let mut world = world.restart();
    assert_eq!(world.found, 0);
    assert!(world.write(1).is_some());
    assert_eq!(world.restart().found, 1, "control");
}
