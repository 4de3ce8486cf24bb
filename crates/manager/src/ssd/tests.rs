//! A directory's thread on a disk that fails when it is told to.

mod world;

use crate::tier::Done;
use orbitkv_store::Direction::{Read, Write};
use orbitkv_uring::faults::DiskFault;
use std::time::{Duration, Instant};
use world::World;

#[test]
fn a_read_that_fails_is_a_miss_and_the_next_one_is_served() {
    let mut world = World::new();
    let extent = world.write(1).unwrap();
    world.fail(Read, DiskFault::Io, 1);
    assert!(!world.read(1, extent));
    assert!(world.read(1, extent), "nothing is wrong with it");
    world.fail(Read, DiskFault::Short, 1);
    assert!(!world.read(1, extent) && world.read(1, extent), "a file that ends early, once");
    let status = world.report.status();
    assert_eq!((status.read_errors, status.mismatches, status.state.name()), (2, 0, "serving"));
}

#[test]
fn reads_that_go_on_failing_turn_the_directory_off() {
    let mut world = World::new();
    let extent = world.write(1).unwrap();
    world.fail(Read, DiskFault::Io, 16);
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
    world.fail(Write, DiskFault::Io, 1);
    assert_eq!(world.write(2), None);
    // Told before the answer, so that nothing is ordered in vain.
    assert_eq!(world.states, [(true, false)]);
    assert_eq!(world.write(3), None, "nor is it tried again");
    assert!(world.read(1, extent));
    assert_eq!(world.report.status().state.name(), "read_only");
    let mut world = World::new();
    world.fail(Write, DiskFault::ReadOnly, 1);
    assert_eq!((world.write(1), world.report.status().state.name()), (None, "read_only"));
}

#[test]
fn a_full_file_system_is_tried_once_more_at_once_and_again_later() {
    let mut world = World::new();
    world.fail(Write, DiskFault::NoSpace, 1);
    let extent = world.write(1).expect("the second attempt");
    assert!(world.read(1, extent) && world.states.is_empty());
    world.fail(Write, DiskFault::NoSpace, 2);
    assert_eq!(world.write(2), None);
    assert_eq!(world.states, [(true, false)]);
    assert_eq!(world.report.status().state.name(), "full");
    world.wait_until(|world| world.states == [(true, false), (true, true)]);
    let again = world.write(2).expect("there is room again");
    assert!(world.read(2, again));
    assert_eq!(world.report.status().state.name(), "full", "one page has found a place, no more");
    world.wait_until(|world| world.report.status().state.name() == "serving");
}

#[test]
fn a_file_system_that_stays_full_is_said_to_be_once() {
    let mut world = World::new();
    world.fail(Write, DiskFault::NoSpace, u64::MAX);
    assert_eq!(world.write(1), None);
    for round in 1..3 {
        world.wait_until(|world| world.states.len() == 2 * round);
        assert_eq!(world.report.status().state.name(), "full", "it is tried, and says nothing of it");
        assert_eq!(world.write(2), None);
    }
    assert_eq!(world.states, [(true, false), (true, true)].repeat(3)[..5]);
}

#[test]
fn segments_of_the_pool_are_registered_and_let_go() {
    let mut world = World::new();
    assert!(world.report.status().registered, "{}", world.report.status().mode);
    let users = world.users_of_memory();
    let extent = world.write(1).unwrap();
    assert!(world.read(1, extent));
    world.add_memory();
    world.wait_until(|world| world.users_of_memory() > users);
    assert!(world.read(1, extent), "through the registered segment");
    world.remove_memory();
    assert_eq!(world.users_of_memory(), users, "nothing of it is left in the kernel's table");
    assert!(world.read(1, extent));
}

#[test]
fn a_reset_that_cannot_be_recorded_says_so() {
    let mut world = World::new();
    world.write(1).unwrap();
    // What no rename and no removal of a file can replace.
    std::fs::create_dir(world.path().join("checkpoint.new")).unwrap();
    assert!(!world.forget_and_wait());
    assert_eq!(world.report.status().unrecorded_resets, 1);
    std::fs::remove_dir(world.path().join("checkpoint.new")).unwrap();
    assert!(world.forget_and_wait(), "control");
    assert_eq!(world.report.status().recorded_resets, 1);
}

#[test]
fn a_disk_that_does_not_answer_is_seen_and_its_slot_stays_in_custody() {
    let mut world = World::new();
    let extent = world.write(1).unwrap();
    world.stall(true);
    world.ask(1, extent);
    world.wait_until(|world| world.report.busy_for(Instant::now()).is_some());
    let later = Instant::now() + Duration::from_secs(11);
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
