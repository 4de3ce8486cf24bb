//! Copies of the serving engine beside ours: the device's copy engines serve one stream as long as that has copies.
#![allow(clippy::unwrap_used)]

mod device;

use orbitkv_copy::CopyDirection::{self, Restore, Save};
use orbitkv_copy::{CopyState, CudaCopyConfig, WaitOutcome};

use device::{BRIEF, DEVICE_BYTE, DeviceWorld, LONG, POOL_BYTE, Shape};

const LAYERS: usize = 40;
const ALL: [usize; 4] = [0, 1, 2, 3];
const SHAPE: Shape = Shape { layers: LAYERS, blocks: 4, block_bytes: 4096, gap_bytes: 512 };
const STEP_BYTES: usize = 4 * 4096;

/// How many of a job's steps had ended when a copy of the serving engine in the same direction had, which came when all
/// of the job was queued. Each copy takes some milliseconds.
fn steps_before_a_copy(direction: CopyDirection, turn_bytes: usize) -> usize {
    let mut world = DeviceWorld::with(SHAPE, |config, fake| {
        fake.set_copy_us(2000);
        let config = CudaCopyConfig { batch_max_descriptors: 4, ..device::without_kernel(config) };
        // The other direction has no turns.
        let config = config.with_turns(usize::MAX);
        match direction {
            Restore => CudaCopyConfig { restore_turn_bytes: turn_bytes, ..config },
            Save => CudaCopyConfig { save_turn_bytes: turn_bytes, ..config },
        }
    });
    world.register();
    let mut job = world.job(1, direction, &ALL);
    let _layers = world.handle.layer_events(&mut job).unwrap();
    let progress = world.submit(job);
    assert_eq!(progress.wait_step(0, LONG), WaitOutcome::Ready, "the copies are under way");
    let (host, at) = (world.pool().as_ptr(), world.memory.address() + SHAPE.block_bytes);
    // SAFETY: a gap between two blocks, and a byte of the pool of which all copies move the same.
    unsafe {
        match direction {
            Restore => world.compute.to_device(host, at, 1).unwrap(),
            Save => world.compute.to_host(host, at, 1).unwrap(),
        }
    }
    world.compute.finish().unwrap();
    let steps = progress.steps_done();
    assert_eq!(world.drain(1)[0].state, CopyState::Done);
    steps
}

#[test]
fn a_copy_of_the_engine_does_not_wait_for_the_end_of_ours() {
    for direction in [Restore, Save] {
        let seen = steps_before_a_copy(direction, 4 * STEP_BYTES);
        assert!(seen < LAYERS / 2, "{direction:?}: it came after {seen} of {LAYERS} steps");
        let without_turns = steps_before_a_copy(direction, usize::MAX);
        assert!(
            without_turns >= LAYERS - 1,
            "{direction:?}, control: after {without_turns} of {LAYERS} steps"
        );
    }
}

#[test]
fn whatever_a_turn_is_all_bytes_arrive_in_layer_order() {
    for turn_bytes in [1, STEP_BYTES / 2, STEP_BYTES, 3 * STEP_BYTES + 1] {
        let mut world = DeviceWorld::with(SHAPE, |config, _| config.with_turns(turn_bytes));
        world.register();
        let mut job = world.job(1, Restore, &ALL);
        let layers = world.handle.layer_events(&mut job).unwrap();
        world.submit(job);
        for layer in 0..LAYERS {
            layers.wait_on(layer, world.compute.stream(), LONG).unwrap();
            world.compute.finish().unwrap();
            assert!(world.layer_is(layer, &ALL, POOL_BYTE), "layer {layer}, turns of {turn_bytes} bytes");
        }
        assert_eq!(world.drain(1)[0].state, CopyState::Done);
        world.fill(0xA5);
        world.submit(world.job(2, Save, &ALL));
        assert_eq!(world.drain(1)[0].state, CopyState::Done);
        assert!(world.pages_are(&ALL, 0xA5), "turns of {turn_bytes} bytes");
    }
}

/// A job's order is given to the stream that has its first turn; the other one has it through the turns alone.
#[test]
fn every_turn_of_a_job_comes_after_what_the_job_comes_after() {
    for (direction, registered) in [(Restore, true), (Restore, false), (Save, true), (Save, false)] {
        let mut world = DeviceWorld::with(SHAPE, |config, _| config.with_turns(1));
        if registered {
            world.register();
        }
        let gate = world.gate();
        let order = world.handle.order_after(world.compute.stream()).unwrap();
        let progress = world.submit(world.job(1, direction, &ALL).after(order));
        assert_eq!(progress.wait_step(0, 10 * BRIEF), WaitOutcome::TimedOut, "{direction:?}");
        assert!(world.device_is(&ALL, DEVICE_BYTE) && world.pool_is_untouched(), "{direction:?} was early");
        drop(gate);
        assert_eq!(world.drain(1)[0].state, CopyState::Done);
        let landed = match direction {
            Restore => world.device_is(&ALL, POOL_BYTE),
            Save => world.pages_are(&ALL, DEVICE_BYTE),
        };
        assert!(landed, "{direction:?}, registered: {registered}");
    }
}
