//! Pinned pages that are restored into the memory of a (fake) CUDA device: after the engine's kernels, layer by layer,
//! and whatever has become of the manager since.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
mod device;

use common::{LAYERS, LONG, PAGE_BYTES, Pool, stat, wait_for, with_block};
use device::{BRIEF, World, world, world_with};
use orbitkv_client::{LayerOrder, Load, Pinned, Ticket, Verify};
use orbitkv_copy::{CudaDriver, CudaProbe};
use orbitkv_fake_cuda::{Fake, ILLEGAL_ADDRESS};
use orbitkv_wire::{Resume, ToManager};
use std::sync::{Arc, Barrier, Mutex};

/// Rounds of a race.
const ROUNDS: u64 = 200;

/// Pages of these slots, checked.
fn pin(world: &World, slots: &[u32]) -> Pinned {
    pin_ticket(world, &world.pool.restore_ticket(slots))
}

fn pin_ticket(world: &World, ticket: &Ticket) -> Pinned {
    let pinned = world.client.pin(&ticket.encode()).unwrap();
    wait_for("checked", || pinned.poll());
    assert_eq!(pinned.pages(), ticket.parts.len());
    pinned
}

fn lands(load: &Load) -> bool {
    load.wait(LONG) && load.failed_blocks().is_empty()
}

/// What kernels on the compute stream see of a block, layer by layer, with each layer waited for or not.
fn seen_by_kernels(world: &mut World, load: &Load, block: usize, ordered: bool) -> Vec<u8> {
    let (stream, seen) = (world.stream(), Arc::new(Mutex::default()));
    for layer in 0..LAYERS {
        if ordered {
            let answer = load.order_layer(layer, stream, LONG).unwrap();
            assert!(matches!(answer, LayerOrder::Ordered | LayerOrder::Complete), "{answer:?}");
        }
        world.compute_read(block, layer, &seen);
    }
    world.compute.finish().unwrap();
    let seen = seen.lock().unwrap().concat();
    assert_eq!(seen.len(), PAGE_BYTES);
    seen
}

/// Whether kernels that read layer after layer of a slow restore all see pinned bytes.
fn kernels_see_pinned_layers(ordered: bool) -> bool {
    let mut world = world_with(Verify::All, |config, fake| {
        fake.set_copy_us(3000);
        config
    });
    let before = world.kv.bytes();
    let pinned = pin(&world, &[4, 0, 7]);
    assert!(world.kv.bytes() == before, "a pin copies nothing");
    // In another order than pinned, and not all.
    let load = pinned.restore_after(world.stream(), &[2, 0], &[5, 1]).unwrap();
    let seen = seen_by_kernels(&mut world, &load, 1, ordered);
    assert!(lands(&load));
    world.copy_done();
    let expected = with_block(before, 5, &world.pool.payload(7));
    assert!(world.kv.bytes() == with_block(expected, 1, &world.pool.payload(4)), "those blocks alone");
    assert_eq!(world.fake.stats().waits_without_record, 0, "the host has seen each record return");
    let stats = world.client.stats();
    assert_eq!((stat(&stats, "restored_pages"), stat(&stats, "load_inflight_bytes")), (2, 0));
    seen == world.pool.payload(4)
}

#[test]
fn kernels_behind_an_ordered_layer_read_pinned_bytes() {
    assert!(kernels_see_pinned_layers(true));
    assert!(!kernels_see_pinned_layers(false), "control: without the order they are too early");
}

/// Restores into a block that a held kernel is about to read; `marked` says whether that kernel's stream is named.
/// Whether the kernel saw what was there before.
fn spares_the_last_use(marked: bool) -> bool {
    let mut world = world(Verify::All);
    let (old, seen) = (world.kv.payload(2), Arc::new(Mutex::default()));
    let pinned = pin(&world, &[4]);
    let gate = world.gate();
    world.compute_read(2, 0, &seen);
    let driver = CudaDriver::load_from(Fake::load().unwrap().path()).unwrap();
    let idle = CudaProbe::new(&driver, world.fake.ordinal).unwrap();
    let stream = if marked { world.stream() } else { idle.stream().0 };
    let load = pinned.restore_after(stream, &[0], &[2]).unwrap();
    if marked {
        assert!(!load.wait(BRIEF) && world.kv.payload(2) == old, "a kernel still reads the block");
    } else {
        assert!(lands(&load));
    }
    drop(gate);
    assert!(lands(&load) && world.kv.payload(2) == world.pool.payload(4));
    world.copy_done();
    world.compute.finish().unwrap();
    let seen = seen.lock().unwrap();
    old.starts_with(&seen[0])
}

#[test]
fn a_pinned_restore_comes_after_the_last_use_of_its_blocks() {
    assert!(spares_the_last_use(true));
    assert!(!spares_the_last_use(false), "control: behind an idle stream it is too early");
}

/// An error before anything was queued leaves the pages pinned: they can still be restored, or let go.
#[test]
fn nothing_is_restored_without_a_stream_to_come_after() {
    let mut world = world(Verify::All);
    let before = world.kv.bytes();
    let pinned = pin(&world, &[4]);
    let missing = pinned.restore(&[0], &[2]).err().unwrap().to_string();
    assert!(missing.contains("stream is missing"), "{missing}");
    world.fake.fail("cuEventRecord", 1, 1);
    let refused = pinned.restore_after(world.stream(), &[0], &[2]).err().unwrap().to_string();
    assert!(refused.contains("cuEventRecord"), "{refused}");
    assert!(world.kv.bytes() == before);
    assert_eq!(world.sent_soon(), None, "still in custody");
    let load = pinned.restore_after(world.stream(), &[0], &[2]).unwrap();
    assert!(lands(&load) && world.kv.payload(2) == world.pool.payload(4));
    world.copy_done();
}

#[test]
fn a_manager_that_is_gone_takes_no_pinned_page_away() {
    let mut world = world(Verify::All);
    let pinned = pin(&world, &[4, 5]);
    world.manager.remove();
    world.peer.hang_up();
    wait_for("the loss is seen", || !world.client.connected());
    let load = pinned.restore_after(world.stream(), &[0, 1], &[2, 3]).unwrap();
    let seen = seen_by_kernels(&mut world, &load, 3, true);
    assert!(seen == world.pool.payload(5));
    assert!(lands(&load) && world.kv.payload(2) == world.pool.payload(4));
    assert_eq!(stat(&world.client.stats(), "load_inflight_bytes"), 0);
    assert!(!world.client.connected() && world.client.close(), "nothing is left in custody");
}

/// The next run of a manager gives the same numbers to memory of its own.
#[test]
fn a_pin_of_an_earlier_session_restores_what_it_pinned() {
    let mut world = world(Verify::All);
    let pinned = pin(&world, &[4]);
    world.peer.hang_up();
    wait_for("the loss is seen", || !world.client.connected());
    let (peer, hello) = world.manager.welcome(8);
    world.peer = peer;
    assert_eq!(hello.resume, Some(Resume { session: 2, copies_ended: false }), "its page is still ours");
    let other = Pool::new();
    other.write(4, &[0xEE; PAGE_BYTES]);
    world.peer.send_segment(0, &other.segment);
    wait_for("the new pool is mapped", || other.maps() > 1);
    assert!(world.pool.maps() > 1, "a pin keeps its memory mapped");
    let load = pinned.restore_after(world.stream(), &[0], &[2]).unwrap();
    let seen = seen_by_kernels(&mut world, &load, 2, true);
    assert!(seen == world.pool.payload(4) && seen != other.payload(4));
    assert!(lands(&load));
    loop {
        match world.peer.next().to_manager() {
            ToManager::CopiesEnded { session: 2 } => break,
            ToManager::Attest { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    drop(pinned);
    wait_for("its memory is let go", || world.pool.maps() == 1);
}

/// What was queued stays in custody as long as the process lives; what was only pinned is given back.
#[test]
fn a_device_that_is_lost_fails_pinned_restores() {
    let mut world = world(Verify::All);
    let (queued, second) = (pin(&world, &[4]), world.pool.restore_ticket(&[5]));
    let waiting = pin_ticket(&world, &Ticket { operation: 2, ..second });
    let before = world.kv.bytes();
    let _gate = world.gate();
    let load = queued.restore_after(world.stream(), &[0], &[2]).unwrap();
    assert_eq!(load.order_layer(LAYERS - 1, world.stream(), LONG).unwrap(), LayerOrder::Ordered);
    world.fake.lose(ILLEGAL_ADDRESS);
    assert!(load.wait(LONG) && load.failed_blocks() == [2], "whoever waits goes on");
    assert_eq!(world.peer.next().to_manager(), ToManager::Attest { passed: false });
    assert!(world.client.trouble().unwrap().contains("lost"));
    let error = waiting.restore_after(world.stream(), &[0], &[3]).err().unwrap().to_string();
    assert!(error.contains("restart the serving engine"), "{error}");
    drop(waiting);
    world.copy_done_of(2);
    drop(queued);
    assert_eq!(world.sent_soon(), None, "the lease of what was queued stands");
    assert!(world.kv.bytes() == before);
    assert!(stat(&world.client.stats(), "load_inflight_bytes") > 0);
    assert!(!world.client.close(), "custody ends with the process");
    world.fake.destroy_context();
}

#[test]
fn what_was_let_go_is_not_restored() {
    let mut world = world(Verify::All);
    let before = world.kv.bytes();
    let pinned = pin(&world, &[4]);
    pinned.release();
    world.copy_done();
    let error = pinned.restore_after(world.stream(), &[0], &[2]).err().unwrap().to_string();
    assert!(error.contains("neither restored nor released before"), "{error}");
    drop(pinned);
    assert_eq!(world.sent_soon(), None, "said once");
    assert!(world.kv.bytes() == before);
}

/// Whoever is first has the pages: they are restored, or let go, and the manager hears once that custody has ended.
#[test]
fn a_restore_and_a_release_at_once_end_custody_once() {
    let mut world = world(Verify::All);
    let mut restored = 0;
    for round in 1..=ROUNDS {
        let slot = u32::try_from(round % 8).unwrap();
        let ticket = Ticket { operation: round, ..world.pool.restore_ticket(&[slot]) };
        let pinned = pin_ticket(&world, &ticket);
        world.kv.fill(2, 0x55);
        let (start, stream) = (Barrier::new(2), world.stream());
        let load = std::thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                pinned.release();
            });
            start.wait();
            pinned.restore_after(stream, &[0], &[2])
        });
        match load {
            Ok(load) => {
                assert!(lands(&load) && world.kv.payload(2) == world.pool.payload(slot));
                restored += 1;
            }
            Err(error) => {
                assert!(error.to_string().contains("neither restored nor released"), "{error}");
                assert!(world.kv.payload(2) == [0x55; PAGE_BYTES]);
            }
        }
        world.copy_done_of(round);
    }
    assert_eq!(world.sent_soon(), None, "once a round");
    let stats = world.client.stats();
    assert_eq!((stat(&stats, "restored_pages"), stat(&stats, "load_inflight_bytes")), (restored, 0));
    assert!(world.client.close(), "nothing is left in custody");
}

/// What an engine does that empties its cache meanwhile.
#[test]
fn an_abort_of_a_queued_restore_ends_when_no_byte_moves() {
    let mut world = world(Verify::All);
    let pinned = pin(&world, &[4]);
    let gate = world.gate();
    let load = pinned.restore_after(world.stream(), &[0], &[2]).unwrap();
    assert_eq!(load.order_layer(LAYERS - 1, world.stream(), LONG).unwrap(), LayerOrder::Ordered);
    assert!(!load.abort(BRIEF), "the copies are queued, and wait for a kernel");
    drop(gate);
    assert!(load.abort(LONG));
    world.copy_done();
    let before = world.kv.bytes();
    world.compute.finish().unwrap();
    assert!(world.kv.bytes() == before && world.client.close());
}
