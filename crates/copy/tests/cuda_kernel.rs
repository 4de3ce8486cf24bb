//! The copy kernel: which bytes it moves, how long it holds what it uses, and when it is not used.
#![allow(clippy::unwrap_used)]

mod device;

use std::sync::{Arc, Mutex};

use orbitkv_copy::CopyDirection::{Restore, Save};
use orbitkv_copy::{
    CopyFailure, CopyMethod, CopyState, CudaCopyConfig, CudaDriver, KernelRefusal, LayerWait, WaitOutcome,
};
use orbitkv_fake_cuda::{Fake, FakeDevice, ILLEGAL_ADDRESS};

use device::{DEVICE_BYTE, DeviceWorld, LONG, POOL_BYTE, SMALL, Shape, read};

const ALL: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

fn by_kernel(config: CudaCopyConfig, _: &FakeDevice) -> CudaCopyConfig {
    CudaCopyConfig { method: CopyMethod::Kernel, ..config }
}

/// What was refused, as it was said.
type Said = Arc<Mutex<Vec<KernelRefusal>>>;

fn listening(config: CudaCopyConfig, said: &Said) -> CudaCopyConfig {
    let heard = said.clone();
    let notice = move |refusal: &KernelRefusal| heard.lock().unwrap().push(refusal.clone());
    CudaCopyConfig { kernel_notice: Some(Arc::new(notice)), ..config }
}

/// Saves and restores with every byte accounted for; whoever copies.
fn copies_are_exact(world: &mut DeviceWorld) {
    world.submit(world.job(1, Save, &[0, 2, 4, 6]));
    world.submit(world.job(2, Restore, &[1, 3, 5, 7]));
    assert!(world.drain(2).iter().all(|done| done.state == CopyState::Done));
    assert!(world.pages_are(&[0, 2, 4, 6], DEVICE_BYTE) && world.pages_are(&[1, 3, 5, 7], POOL_BYTE));
    assert!(world.device_is(&[1, 3, 5, 7], POOL_BYTE) && world.device_is(&[0, 2, 4, 6], DEVICE_BYTE));
}

#[test]
fn fragments_of_every_size_and_place_are_copied_whole_and_alone() {
    for block_bytes in [1, 2, 3, 15, 16, 17, 255, 512, 4095, 4096, 4097, 12_288, 20_001, 65_535, 65_536] {
        for gap_bytes in [1, 16, 4099] {
            let shape = Shape { layers: 2, blocks: 8, block_bytes, gap_bytes };
            let mut world = DeviceWorld::with(shape, by_kernel);
            world.register();
            let before = world.fake.stats();
            copies_are_exact(&mut world);
            for layer in world.layout.regions() {
                for block in ALL {
                    let gap = read(layer.base + block * layer.block_stride_bytes + block_bytes, gap_bytes);
                    assert!(gap.iter().all(|byte| *byte == DEVICE_BYTE), "a gap is nobody's");
                }
            }
            let after = world.fake.stats();
            assert_eq!(after.listed_copies - before.listed_copies, 16, "{block_bytes}: by the kernel");
            assert_eq!((after.plain_copies, after.launches - before.launches), (before.plain_copies, 4));
        }
    }
}

#[test]
fn what_lies_in_two_registrations_is_listed_in_two_parts() {
    let shape = Shape { layers: 2, blocks: 8, block_bytes: 10_000, gap_bytes: 16 };
    let chunks = |config, fake: &_| CudaCopyConfig { register_chunk_bytes: 8192, ..by_kernel(config, fake) };
    let mut world = DeviceWorld::with(shape, chunks);
    world.register();
    let before = world.fake.stats().listed_copies;
    copies_are_exact(&mut world);
    let copies = world.fake.stats().listed_copies - before;
    assert!(copies > 32, "{copies}: each block lies in two chunks at least");
}

#[test]
fn memory_that_the_kernel_does_not_reach_is_left_to_the_copy_engine() {
    let shape = Shape { layers: 2, blocks: 8, block_bytes: 4000, gap_bytes: 16 };
    for function in ["cuMemHostRegister_v2", "cuMemHostGetDevicePointer_v2"] {
        let chunks =
            |config, fake: &_| CudaCopyConfig { register_chunk_bytes: 32_768, ..by_kernel(config, fake) };
        let mut world = DeviceWorld::with(shape, chunks);
        // The second chunk of the pool.
        world.fake.fail(function, 2, 2);
        world.handle.register(world.pool());
        let registration = world.handle.wait_registered(LONG);
        assert_eq!(registration.failure.is_some(), function == "cuMemHostRegister_v2");
        let before = world.fake.stats();
        world.submit(world.job(1, Save, &ALL));
        world.drain(1);
        assert!(world.pages_are(&ALL, DEVICE_BYTE));
        world.fill(POOL_BYTE);
        world.submit(world.job(2, Restore, &ALL));
        world.drain(1);
        assert!(world.device_is(&ALL, DEVICE_BYTE));
        let after = world.fake.stats();
        assert!(after.listed_copies > before.listed_copies && after.plain_copies > before.plain_copies);
        assert_eq!(after.synchronous_copies, 0, "staged where it is not registered");
    }
}

#[test]
fn a_launch_holds_its_pages_until_its_event() {
    let mut world = DeviceWorld::with(SMALL, by_kernel);
    world.register();
    let registered = world.fake.stats().registered_bytes;
    let gate = world.gate();
    let order = world.handle.order_after(world.compute.stream()).unwrap();
    let progress = world.submit_and_queue(world.job(1, Save, &ALL).after(order));
    assert!(!progress.abort(std::time::Duration::ZERO) && progress.custody());
    world.handle.unregister(world.pool());
    assert!(world.reported_soon().is_empty() && progress.custody(), "the kernel has not run");
    assert!(world.pool_is_untouched());
    assert_eq!(world.fake.stats().registered_bytes, registered);
    drop(gate);
    assert!(matches!(world.drain(1)[0].state, CopyState::Aborted | CopyState::Done));
    assert!(world.pages_are(&ALL, DEVICE_BYTE), "it had been queued whole");
    assert!(world.fake.stats().registered_bytes < registered);
}

/// More fragments than a lane's lists hold, while nothing runs: lists that wait must not be written over.
#[test]
fn a_list_is_not_written_over_before_its_launch_has_ended() {
    let shape = Shape { layers: 8, blocks: 5000, block_bytes: 16, gap_bytes: 16 };
    let blocks: Vec<usize> = (0..shape.blocks).collect();
    let mut world = DeviceWorld::with(shape, by_kernel);
    world.register();
    for (direction, byte) in [(Save, DEVICE_BYTE), (Restore, 0x77), (Save, 0x77)] {
        if direction == Restore {
            world.segment.write_at(0, &vec![byte; world.pool().bytes()]).unwrap();
        }
        let before = world.fake.stats().launches;
        let gate = world.gate();
        let order = world.handle.order_after(world.compute.stream()).unwrap();
        let mut job = world.job(1, direction, &blocks).after(order);
        let layers = world.handle.layer_events(&mut job).unwrap();
        let progress = world.submit(job);
        // Two launches a layer, and three layers in the 16384 entries of a lane.
        assert_eq!(layers.wait_on(2, world.compute.stream(), LONG).unwrap(), LayerWait::Ordered);
        assert!(world.reported_soon().is_empty());
        assert_eq!(world.fake.stats().launches - before, 6, "the next list waits for room");
        drop(gate);
        assert_eq!(world.drain(1)[0].state, CopyState::Done);
        assert_eq!(progress.steps_done(), shape.layers);
        match direction {
            Save => assert!(world.pages_are(&blocks, byte)),
            Restore => assert!(world.device_is(&blocks, byte)),
        }
        assert_eq!(world.fake.stats().launches - before, 16);
    }
}

/// The kernel touches what it may not, as it would if a registration ended too early: the device is lost, and what was
/// queued stays in custody until the context is gone.
#[test]
fn an_illegal_access_of_the_kernel_is_the_end_of_the_device() {
    let mut world = DeviceWorld::with(SMALL, by_kernel);
    world.register();
    let gate = world.gate();
    let order = world.handle.order_after(world.compute.stream()).unwrap();
    let progress = world.submit_and_queue(world.job(1, Save, &ALL).after(order));
    world.compute.unregister(world.pool().as_ptr()).unwrap();
    drop(gate);
    let lost = CopyFailure::DeviceLost;
    assert_eq!(progress.wait_step(usize::MAX, LONG), WaitOutcome::Failed(lost));
    assert!(world.handle.is_lost() && world.pool_is_untouched());
    world.fake.destroy_context();
    assert_eq!(world.drain(1)[0].state, CopyState::Failed(lost));
    assert!(!progress.custody());
}

/// The device is lost in the launch, or in the record behind it: something may have been queued.
#[test]
fn a_device_lost_in_a_launch_keeps_custody() {
    for function in ["cuLaunchKernel", "cuEventRecord"] {
        let mut world = DeviceWorld::with(SMALL, by_kernel);
        world.register();
        world.fake.fail(function, 2, ILLEGAL_ADDRESS);
        let progress = world.submit(world.job(1, Save, &ALL));
        let lost = CopyFailure::DeviceLost;
        assert_eq!(progress.wait_step(usize::MAX, LONG), WaitOutcome::Failed(lost), "{function}");
        assert!(world.reported_soon().is_empty() && progress.custody(), "{function}");
        world.fake.destroy_context();
        assert_eq!(world.drain(1)[0].state, CopyState::Failed(lost), "{function}");
    }
}

#[test]
fn a_driver_without_kernels_copies_in_batches_and_says_so_once() {
    let fake = Fake::load().unwrap();
    for hidden in [
        c"cuModuleLoadDataEx",
        c"cuModuleGetFunction",
        c"cuModuleUnload",
        c"cuLaunchKernel",
        c"cuMemHostGetDevicePointer_v2",
    ] {
        let (driver, said) = (CudaDriver::load_without(fake.path(), &[hidden]).unwrap(), Said::default());
        let mut world = DeviceWorld::on(&driver, fake.device(), SMALL, |config, _| listening(config, &said));
        world.register();
        let before = world.fake.stats();
        copies_are_exact(&mut world);
        assert_eq!(world.fake.stats().batch_calls - before.batch_calls, 6, "{hidden:?}");
        assert_eq!(*said.lock().unwrap(), [KernelRefusal::Missing], "{hidden:?}");
        assert_eq!(world.handle.kernel_refusal(), Some(KernelRefusal::Missing));
        let text = world.handle.method_by_size();
        assert_eq!(text, "below 4 MiB in batches, others one by one");
    }
}

/// Each way in which the self-test can end badly: batches go on, nothing is left behind.
#[test]
fn a_kernel_that_does_not_pass_its_test_is_not_used() {
    type Plan = fn(&FakeDevice);
    type Expected = fn(&KernelRefusal) -> bool;
    let failed: Expected = |refusal| matches!(refusal, KernelRefusal::Failed(_));
    let wrong: Expected = |refusal| matches!(refusal, KernelRefusal::WrongBytes { wrong, .. } if *wrong > 0);
    let plans: [(&str, Plan, Expected); 6] = [
        ("cannot compile", |fake| fake.fail("cuModuleLoadDataEx", 1, 218), failed),
        ("cuModuleGetFunction", |fake| fake.fail("cuModuleGetFunction", 1, 500), failed),
        ("cuLaunchKernel", |fake| fake.fail("cuLaunchKernel", 2, 2), failed),
        ("cuMemHostGetDevicePointer", |fake| fake.fail("cuMemHostGetDevicePointer_v2", 1, 801), failed),
        ("wrong bytes", FakeDevice::exchange_in_lists, wrong),
        ("wrong bytes", FakeDevice::overrun_in_lists, wrong),
    ];
    for (text, plan, expected) in plans {
        let said = Said::default();
        let mut world = DeviceWorld::with(SMALL, |config, fake| {
            plan(fake);
            listening(config, &said)
        });
        let refusals = said.lock().unwrap().clone();
        assert!(refusals.len() == 1 && expected(&refusals[0]), "{text}: {refusals:?}");
        assert!(refusals[0].to_string().contains(text), "{}", refusals[0]);
        assert_eq!(world.handle.batch_refusal(), None, "other methods go on");
        world.register();
        let before = world.fake.stats();
        copies_are_exact(&mut world);
        let after = world.fake.stats();
        assert_eq!((after.launches, after.batch_calls), (before.launches, before.batch_calls + 6), "{text}");
        assert_eq!(said.lock().unwrap().len(), 1, "{text}: once");
        // What may still run is never unloaded.
        assert_eq!(after.modules, u64::from(text == "cuLaunchKernel"), "{text}");
    }
}

#[test]
fn a_launch_that_fails_later_is_done_again_in_batches() {
    let said = Said::default();
    let mut world = DeviceWorld::with(SMALL, |config, _| listening(config, &said));
    world.register();
    assert_eq!(world.handle.kernel_refusal(), None);
    assert!(world.handle.method_by_size().starts_with("below 16 KiB by a kernel, "));
    let before = world.fake.stats();
    world.fake.fail("cuLaunchKernel", 2, 801);
    copies_are_exact(&mut world);
    let after = world.fake.stats();
    assert_eq!(after.launches - before.launches, 1, "none after the one that failed");
    assert_eq!(after.batch_calls - before.batch_calls, 5);
    assert!(matches!(said.lock().unwrap()[..], [KernelRefusal::Failed(_)]));
    assert_eq!(world.handle.method_by_size(), "below 4 MiB in batches, others one by one");
}

/// Lists that wait in the other lane when the kernel is refused are copied in another way.
#[test]
fn lists_planned_before_a_refusal_are_not_launched() {
    let shape = Shape { layers: 4, blocks: 5000, block_bytes: 16, gap_bytes: 16 };
    let (blocks, few) = ((0..4990).collect::<Vec<_>>(), [4991, 4993, 4995, 4997]);
    let said = Said::default();
    let mut world = DeviceWorld::with(shape, |config, fake| listening(by_kernel(config, fake), &said));
    world.register();
    let before = world.fake.stats();
    let gate = world.gate();
    let order = world.handle.order_after(world.compute.stream()).unwrap();
    let mut job = world.job(1, Restore, &blocks).after(order);
    let layers = world.handle.layer_events(&mut job).unwrap();
    world.submit(job);
    assert_eq!(layers.wait_on(2, world.compute.stream(), LONG).unwrap(), LayerWait::Ordered);
    // The fourth layer's lists wait for room.
    world.fake.fail("cuLaunchKernel", 1, 1);
    world.submit(world.job(2, Save, &few));
    world.drain(1);
    drop(gate);
    assert_eq!(world.drain(1)[0].state, CopyState::Done);
    assert!(world.pages_are(&few, DEVICE_BYTE) && world.device_is(&blocks, POOL_BYTE));
    assert_eq!(world.fake.stats().launches - before.launches, 6, "none after the one that failed");
    assert_eq!(said.lock().unwrap().len(), 1);
}
