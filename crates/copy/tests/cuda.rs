//! What only the CUDA engine has: order with the serving engine's streams, registration, a device that fails.
#![allow(clippy::unwrap_used)]

mod device;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use orbitkv_copy::CopyDirection::{Restore, Save};
use orbitkv_copy::{
    CopyEngine, CopyError, CopyFailure, CopyId, CopyJob, CopyMethod, CopyState, CudaCopy, CudaCopyConfig,
    CudaDriver, CudaProbe, LayerWait, PagePair, Registration, WaitOutcome,
};
use orbitkv_fake_cuda::{Fake, FakeStats, ILLEGAL_ADDRESS, INVALID_VALUE};

use device::{BRIEF, DEVICE_BYTE, DeviceWorld, LONG, POOL_BYTE, SMALL, Shape, read};

const ALL: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
const NEW: u8 = 0xA5;

/// Saves what a kernel computes; `ordered` says whether the job is told of the kernel.
fn save_of_what_is_computed(ordered: bool, registered: bool) -> bool {
    let mut world = DeviceWorld::new(SMALL);
    if registered {
        world.register();
    }
    let gate = world.gate();
    world.compute_fill(NEW);
    let mut job = world.job(1, Save, &ALL);
    if ordered {
        job = job.after(world.handle.order_after(world.compute.stream()).unwrap());
    }
    let progress = world.submit(job);
    if ordered {
        assert_eq!(progress.wait_step(0, 4 * BRIEF), WaitOutcome::TimedOut);
        assert!(world.pages_are(&ALL, POOL_BYTE), "nothing is saved before it is computed");
        assert!(progress.custody());
    } else {
        assert_eq!(progress.wait_step(usize::MAX, LONG), WaitOutcome::Ready);
    }
    drop(gate);
    assert_eq!(world.drain(1)[0].state, CopyState::Done);
    world.pages_are(&ALL, NEW)
}

#[test]
fn a_save_comes_after_what_computes_it() {
    for registered in [true, false] {
        assert!(save_of_what_is_computed(true, registered));
        assert!(!save_of_what_is_computed(false, registered), "control: without the order it is too early");
    }
}

#[test]
fn a_restore_comes_after_the_last_use_of_its_blocks() {
    for registered in [true, false] {
        let mut world = DeviceWorld::new(SMALL);
        if registered {
            world.register();
        }
        let gate = world.gate();
        // A kernel that still reads the blocks: it must see the old bytes.
        let (start, bytes, seen) =
            (world.memory.address(), world.device_bytes(), Arc::new(Mutex::new(Vec::new())));
        let kernel = seen.clone();
        world.fake.run_on(world.compute.stream().0, move || *kernel.lock().unwrap() = read(start, bytes));
        let order = world.handle.order_after(world.compute.stream()).unwrap();
        let progress = world.submit(world.job(1, Restore, &ALL).after(order.clone()));
        assert_eq!(progress.wait_step(0, 4 * BRIEF), WaitOutcome::TimedOut);
        drop(gate);
        assert_eq!(world.drain(1)[0].state, CopyState::Done);
        assert!(seen.lock().unwrap().iter().all(|byte| *byte == DEVICE_BYTE));
        assert!(world.device_is(&ALL, POOL_BYTE));
    }
}

/// Restores while kernels read layer after layer, each behind a wait; true if all of them saw restored bytes. With
/// `planted` the waits reach the driver before the records do.
fn kernels_see_restored_layers(planted: bool) -> (bool, FakeStats) {
    let mut world = DeviceWorld::with(SMALL, |config, fake| {
        // Long enough that a kernel which does not wait is there first.
        fake.set_copy_us(3000);
        config
    });
    world.register();
    let mut job = world.job(1, Restore, &ALL);
    let layers = world.handle.layer_events(&mut job).unwrap();
    let progress = job.progress().clone();
    let mut waiting = Some(job);
    if !planted && let Some(job) = waiting.take() {
        world.submit(job);
    }
    let (seen, stream) = (Arc::new(Mutex::new(Vec::new())), world.compute.stream());
    for (layer, region) in world.layout.regions().iter().copied().enumerate() {
        if planted {
            layers.wait_before_record(layer, stream).unwrap();
        } else {
            let waited = layers.wait_on(layer, stream, LONG).unwrap();
            assert!(matches!(waited, LayerWait::Ordered | LayerWait::Complete), "{waited:?}");
        }
        let seen = seen.clone();
        world.fake.run_on(stream.0, move || {
            let bytes = read(region.base, region.block_bytes);
            seen.lock().unwrap().push(bytes.iter().all(|byte| *byte == POOL_BYTE));
        });
    }
    if let Some(job) = waiting {
        // The kernels are through before anything can be recorded: their waits were none.
        world.compute.finish().unwrap();
        world.submit(job);
    }
    assert_eq!(progress.wait_step(usize::MAX, LONG), WaitOutcome::Ready);
    world.compute.finish().unwrap();
    world.drain(1);
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), SMALL.layers);
    (seen.iter().all(|right| *right), world.fake.stats())
}

#[test]
fn kernels_behind_a_layer_wait_read_restored_bytes() {
    let (right, stats) = kernels_see_restored_layers(false);
    assert!(right);
    assert_eq!(stats.waits_without_record, 0);
    let (right, stats) = kernels_see_restored_layers(true);
    assert!(!right, "planted: a wait before the record waits for nothing, and this check must see it");
    assert_eq!(stats.waits_without_record, SMALL.layers as u64);
}

#[test]
fn a_layer_is_waited_for_on_the_host_until_it_is_queued() {
    // One step ahead: the second is queued when the first has landed.
    let mut world = DeviceWorld::with(SMALL, |config, _| CudaCopyConfig { max_ahead_bytes: 1, ..config });
    world.register();
    let gate = world.gate();
    let order = world.handle.order_after(world.compute.stream()).unwrap();
    let driver = CudaDriver::load_from(Fake::load().unwrap().path()).unwrap();
    let other = CudaProbe::new(&driver, world.fake.ordinal).unwrap();
    let mut job = world.job(1, Restore, &ALL).after(order);
    let layers = world.handle.layer_events(&mut job).unwrap();
    let progress = world.submit(job);
    assert_eq!(layers.wait_on(0, other.stream(), LONG).unwrap(), LayerWait::Ordered);
    assert_eq!(layers.wait_on(1, other.stream(), BRIEF).unwrap(), LayerWait::TimedOut);
    drop(gate);
    assert!(matches!(
        layers.wait_on(9, other.stream(), LONG).unwrap(),
        LayerWait::Ordered | LayerWait::Complete
    ));
    world.drain(1);
    assert_eq!(progress.state(), CopyState::Done);
    assert_eq!(layers.wait_on(2, other.stream(), Duration::ZERO).unwrap(), LayerWait::Complete);
}

#[test]
fn a_layer_that_will_not_come_is_known_at_once() {
    let mut world = DeviceWorld::with(SMALL, |config, _| CudaCopyConfig { max_ahead_bytes: 1, ..config });
    world.register();
    let gate = world.gate();
    let order = world.handle.order_after(world.compute.stream()).unwrap();
    let mut aborted = world.job(1, Restore, &ALL).after(order);
    let mut dropped = world.job(2, Restore, &ALL);
    let layers = world.handle.layer_events(&mut aborted).unwrap();
    let none = world.handle.layer_events(&mut dropped).unwrap();
    drop(dropped);
    let stream = world.compute.stream();
    assert_eq!(none.wait_on(0, stream, LONG).unwrap(), LayerWait::Aborted);
    let progress = world.submit(aborted);
    assert_eq!(layers.wait_on(0, stream, LONG).unwrap(), LayerWait::Ordered);
    assert!(!progress.abort(Duration::ZERO), "a step is queued");
    drop(gate);
    assert_eq!(layers.wait_on(2, stream, LONG).unwrap(), LayerWait::Aborted);
    assert_eq!(world.drain(1)[0].state, CopyState::Aborted);
    assert!(world.layer_is(0, &ALL, POOL_BYTE) && world.layer_is(2, &ALL, DEVICE_BYTE));
}

/// The `nth` copy fails while those before it wait for the compute stream.
#[test]
fn a_failed_copy_ends_its_job_when_the_copies_before_it_have_ended() {
    for registered in [true, false] {
        let mut world =
            DeviceWorld::with(SMALL, |config, _| CudaCopyConfig { method: CopyMethod::Plain, ..config });
        if registered {
            world.register();
        }
        let gate = world.gate();
        let order = world.handle.order_after(world.compute.stream()).unwrap();
        world.fake.fail("cuMemcpyDtoHAsync_v2", 2, INVALID_VALUE);
        let progress = world.submit(world.job(1, Save, &ALL).after(order));
        let failure = CopyFailure::Device { code: INVALID_VALUE };
        assert_eq!(progress.wait_step(0, LONG), WaitOutcome::Failed(failure));
        assert!(world.reported_soon().is_empty(), "a copy of it is still queued");
        assert_eq!(progress.state(), CopyState::Aborting);
        drop(gate);
        assert_eq!(world.drain(1)[0].state, CopyState::Failed(failure));
        world.submit(world.job(2, Save, &ALL));
        assert_eq!(world.drain(1)[0].state, CopyState::Done, "the device is as good as before");
        assert!(world.pages_are(&ALL, DEVICE_BYTE));
    }
}

#[test]
fn a_lost_device_fails_every_job_and_ends_custody_only_on_evidence() {
    let mut world = DeviceWorld::with(SMALL, |config, _| CudaCopyConfig { max_ahead_bytes: 1, ..config });
    world.register();
    let gate = world.gate();
    let order = world.handle.order_after(world.compute.stream()).unwrap();
    let mut job = world.job(1, Save, &[0, 1]).after(order);
    let layers = world.handle.layer_events(&mut job).unwrap();
    let queued = world.submit(job);
    let waiting = world.submit(world.job(2, Save, &[2, 3]));
    assert_eq!(layers.wait_on(0, world.compute.stream(), LONG).unwrap(), LayerWait::Ordered);
    world.fake.lose(ILLEGAL_ADDRESS);
    let lost = CopyFailure::DeviceLost;
    for progress in [&queued, &waiting] {
        assert_eq!(progress.wait_step(usize::MAX, LONG), WaitOutcome::Failed(lost), "waiters learn at once");
    }
    let done = world.drain(1);
    assert_eq!((done[0].id, done[0].state), (CopyId(2), CopyState::Failed(lost)), "nothing of it was queued");
    assert_eq!(layers.wait_on(2, world.compute.stream(), LONG).unwrap(), LayerWait::Failed(lost));
    let late = world.job(3, Save, &[4]);
    assert_eq!(world.engine().submit(late).unwrap_err().error, CopyError::DeviceLost);
    assert!(world.handle.is_lost());
    // The device still moves what was queued, whatever its calls say.
    drop(gate);
    while world.pool_is_untouched() {
        std::thread::yield_now();
    }
    assert!(world.reported_soon().is_empty() && queued.custody(), "an error is no evidence");
    world.fake.destroy_context();
    let done = world.drain(1);
    assert_eq!((done[0].id, done[0].state), (CopyId(1), CopyState::Failed(lost)));
    assert!(!queued.custody());
    assert!(world.reported_soon().is_empty(), "once");
}

/// The device is lost while a job is being queued, in each of the calls that can tell.
#[test]
fn what_was_queued_before_the_loss_stays_in_custody_too() {
    let plain = |config, _: &_| CudaCopyConfig { method: CopyMethod::Plain, ..config };
    for (function, nth, code) in [
        ("cuMemcpyDtoHAsync_v2", 2, ILLEGAL_ADDRESS),
        ("cuEventRecord", 1, ILLEGAL_ADDRESS),
        // Not the end of the device for the driver, but there is no other way to learn when the copies end.
        ("cuEventRecord", 2, INVALID_VALUE),
        ("cuEventQuery", 1, 719),
    ] {
        let mut world = DeviceWorld::with(SMALL, plain);
        world.register();
        world.fake.set_copy_us(5000);
        world.fake.fail(function, nth, code);
        let progress = world.submit(world.job(1, Save, &ALL));
        let lost = CopyFailure::DeviceLost;
        while world.fake.stats().plain_copies == 0 || !world.handle.is_lost() {
            std::thread::yield_now();
        }
        if code != INVALID_VALUE {
            assert!(world.reported_soon().is_empty(), "{function}");
            assert_eq!(progress.state(), CopyState::Aborting, "{function}");
        }
        world.fake.destroy_context();
        assert_eq!(world.drain(1)[0].state, CopyState::Failed(lost), "{function}");
        assert!(world.reported_soon().is_empty(), "{function}: once");
    }
}

#[test]
fn a_device_lost_before_the_first_copy_of_a_job_holds_nothing_of_it() {
    let mut world = DeviceWorld::new(SMALL);
    let gate = world.gate();
    let order = world.handle.order_after(world.compute.stream()).unwrap();
    world.fake.fail("cuStreamWaitEvent", 1, ILLEGAL_ADDRESS);
    world.submit(world.job(1, Save, &ALL).after(order));
    assert_eq!(world.drain(1)[0].state, CopyState::Failed(CopyFailure::DeviceLost));
    assert!(world.pool_is_untouched());
    drop(gate);
}

/// Makes an engine, registers, copies both ways and forgets while graphs are captured.
#[test]
fn graph_captures_of_the_serving_engine_are_left_alone() {
    let fake = Fake::load().unwrap();
    let (driver, other) = (CudaDriver::load_from(fake.path()).unwrap(), fake.device());
    other.set_capturing(true);
    let engine = CudaCopy::new(&driver, CudaCopyConfig::new(other.ordinal)).unwrap();
    assert_eq!((engine.handle().batch_refusal(), engine.handle().kernel_refusal()), (None, None));
    drop(engine);
    assert_eq!(other.stats().spoiled_captures, 0);
    let mut world = DeviceWorld::new(SMALL);
    world.fake.set_capturing(true);
    world.register();
    world.submit(world.job(1, Save, &[0, 1, 2, 3]));
    world.submit(world.job(2, Restore, &[4, 5, 6, 7]));
    assert!(world.drain(2).iter().all(|done| done.state == CopyState::Done));
    world.handle.unregister(world.pool());
    drop(world.engine.take());
    assert_eq!(world.fake.stats().spoiled_captures, 0);
    // Control: this thread has not opted out.
    assert!(world.compute.allocate(4096).is_err());
    assert_eq!(world.fake.stats().spoiled_captures, 1);
}

#[test]
fn the_threads_that_call_keep_their_own_context() {
    let (fake, world) = (Fake::load().unwrap(), DeviceWorld::new(SMALL));
    world.register();
    world.handle.order_after(world.compute.stream()).unwrap();
    world.compute.finish().unwrap();
    assert!(!fake.has_current_context(), "this thread had none");
}

#[test]
fn nothing_is_registered_for_an_engine_that_is_gone() {
    let mut world = DeviceWorld::new(SMALL);
    drop(world.engine.take());
    world.handle.register(world.pool());
    assert_eq!(world.handle.wait_registered(BRIEF), Registration::default());
    assert_eq!(Arc::strong_count(world.pool()), 1, "nor is it kept mapped");
}

/// Called once the completion is there; a panic in it is contained.
#[test]
fn the_waker_is_called_after_each_end_and_may_panic() {
    let (wake, woken) = std::sync::mpsc::channel();
    let mut first = true;
    let calls = Mutex::new(move || {
        wake.send(()).unwrap();
        assert!(!std::mem::take(&mut first), "planned");
    });
    let waker = move || {
        let mut call = calls.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        call();
    };
    let mut world =
        DeviceWorld::with(SMALL, |config, _| CudaCopyConfig { waker: Some(Arc::new(waker)), ..config });
    for id in 0..3 {
        world.submit(world.job(id, Save, &[0]));
        woken.recv().unwrap();
        let mut done = Vec::new();
        world.engine().poll(&mut done);
        assert_eq!(done.len(), 1, "the completion is there when the waker is called");
    }
}

/// A defect of the engine, as a panic in its worker: no job is left without an end, and none is taken any more.
#[test]
fn a_panic_of_the_worker_ends_every_job() {
    let hook = |_, id| assert!(id != CopyId(2), "planned");
    let mut world = DeviceWorld::with(SMALL, |config, _| CudaCopyConfig {
        before_fragment: Some(Arc::new(hook)),
        ..config
    });
    world.register();
    let gate = world.gate();
    let order = world.handle.order_after(world.compute.stream()).unwrap();
    world.submit_and_queue(world.job(1, Save, &[0]).after(order));
    let progress = world.submit(world.job(2, Save, &[1]));
    assert_eq!(progress.wait_step(0, LONG), WaitOutcome::Failed(CopyFailure::WorkerPanicked));
    let late = world.job(3, Save, &[2]);
    assert_eq!(world.engine().submit(late).unwrap_err().error, CopyError::DeviceLost);
    let done = world.drain(1);
    let panicked = CopyState::Failed(CopyFailure::WorkerPanicked);
    assert_eq!((done[0].id, done[0].state), (CopyId(2), panicked));
    assert!(world.reported_soon().is_empty(), "the first is still queued");
    drop(gate);
    let done = world.drain(1);
    assert_eq!((done[0].id, done[0].state), (CopyId(1), panicked));
}

#[test]
fn dropping_the_engine_ends_what_ends_and_keeps_what_does_not() {
    let short = |config, _: &_| CudaCopyConfig { drop_wait_ms: 50, ..config };
    let mut world = DeviceWorld::with(SMALL, short);
    world.register();
    let gate = world.gate();
    let order = world.handle.order_after(world.compute.stream()).unwrap();
    let stuck = world.submit_and_queue(world.job(1, Save, &ALL).after(order));
    drop(world.engine.take());
    assert_eq!(stuck.state(), CopyState::Aborting, "its copies may still run");
    assert!(Arc::strong_count(world.pool()) > 1, "and their pages stay mapped");
    assert!(world.fake.stats().registered_bytes >= world.pool().bytes() as u64, "and registered");
    drop(gate);

    let mut world = DeviceWorld::with(SMALL, |config, fake| {
        fake.set_copy_us(2000);
        config
    });
    world.register();
    let ending = world.submit(world.job(1, Save, &ALL));
    while ending.state() == CopyState::Queued {
        std::thread::yield_now();
    }
    drop(world.engine.take());
    assert!(ending.state().is_final(), "{:?}", ending.state());
}

#[test]
fn nothing_of_the_driver_is_left_behind() {
    let mut world = DeviceWorld::new(SMALL);
    world.register();
    let mut job = world.job(1, Save, &ALL).after(world.handle.order_after(world.compute.stream()).unwrap());
    let layers = world.handle.layer_events(&mut job).unwrap();
    world.submit(job);
    world.submit(world.job(2, Restore, &[0]));
    world.drain(2);
    let fake = world.fake.clone();
    let during = fake.stats();
    assert!(during.events > 0 && during.streams > 0 && during.registered_bytes > 0 && during.modules > 0);
    drop((world, layers));
    let after = fake.stats();
    let memory = (after.registered_bytes, after.allocations, after.modules);
    assert_eq!((after.events, after.streams, memory, after.context_references), (0, 0, (0, 0, 0), 0));
}

#[test]
fn a_pool_is_registered_in_chunks_and_copied_directly() {
    let shape = Shape { layers: 4, blocks: 8, block_bytes: 10_000, gap_bytes: 0 };
    let mut world = DeviceWorld::with(shape, |config, _| CudaCopyConfig {
        register_chunk_bytes: 32_768,
        method: CopyMethod::Plain,
        ..config
    });
    let before = world.fake.stats();
    world.register();
    // Known already: the driver is not asked again.
    world.register();
    assert_eq!(world.handle.registration().failure, None);
    world.submit(world.job(1, Save, &ALL));
    world.drain(1);
    let after = world.fake.stats();
    assert!(world.pages_are(&ALL, DEVICE_BYTE));
    assert_eq!(after.registered_bytes - before.registered_bytes, world.pool().bytes() as u64);
    assert_eq!(after.largest_registration, 32_768);
    assert_eq!(after.synchronous_copies, 0);
    // 32 blocks, and one copy more for each end of a chunk inside one.
    let copies = after.plain_copies - before.plain_copies;
    assert!((33..=42).contains(&copies), "{copies}");
}

#[test]
fn memory_that_is_not_registered_is_staged_and_never_copied_synchronously() {
    let shape = Shape { layers: 2, blocks: 8, block_bytes: 10_000, gap_bytes: 16 };
    let mut world =
        DeviceWorld::with(shape, |config, _| CudaCopyConfig { register_chunk_bytes: 65_536, ..config });
    world.fake.fail("cuMemHostRegister_v2", 2, 2);
    world.handle.register(world.pool());
    let registration = world.handle.wait_registered(LONG);
    assert!(registration.failure.as_ref().is_some_and(|error| error.to_string().contains("memlock")));
    assert_eq!((registration.registered_bytes, registration.pending_bytes), (65_536, 0), "the first chunk");
    world.submit(world.job(1, Save, &[0, 1, 2, 3]));
    world.submit(world.job(2, Restore, &[4, 5, 6, 7]));
    world.drain(2);
    assert!(world.pages_are(&[0, 1, 2, 3], DEVICE_BYTE) && world.device_is(&[4, 5, 6, 7], POOL_BYTE));
    assert_eq!(world.fake.stats().synchronous_copies, 0);
}

#[test]
fn a_segment_stays_registered_until_its_jobs_have_ended() {
    let mut world = DeviceWorld::new(SMALL);
    let before = world.fake.stats().registered_bytes;
    world.register();
    let registered = world.fake.stats().registered_bytes;
    let gate = world.gate();
    let order = world.handle.order_after(world.compute.stream()).unwrap();
    world.submit_and_queue(world.job(1, Save, &ALL).after(order));
    world.handle.unregister(world.pool());
    assert_eq!(world.handle.registration().registered_bytes, 0);
    assert_eq!(world.fake.stats().registered_bytes, registered);
    drop(gate);
    assert_eq!(world.drain(1)[0].state, CopyState::Done);
    assert_eq!(world.fake.stats().registered_bytes, before);
    world.register();
    assert_eq!(world.fake.stats().registered_bytes, registered);
}

/// One block of a layer is too little for a batch by itself.
#[test]
fn the_layers_of_a_job_at_once_share_a_call() {
    let shape = Shape { layers: 6, ..SMALL };
    let batch = |config, _: &_| CudaCopyConfig { method: CopyMethod::Batch, ..config };
    let mut world = DeviceWorld::with(shape, batch);
    world.register();
    let before = world.fake.stats();
    let (page_bytes, memory) = (world.layout.page_bytes(), world.pool().clone());
    let pair = PagePair { block: 3, memory, offset: 3 * page_bytes };
    let job = CopyJob::at_once(CopyId(1), Save, &world.layout, &[pair]).unwrap();
    assert_eq!((job.steps().len(), job.steps()[0].bytes()), (1, page_bytes));
    world.submit(job);
    assert_eq!(world.drain(1)[0].state, CopyState::Done);
    assert!(world.pages_are(&[3], DEVICE_BYTE) && world.pages_are(&[2, 4], POOL_BYTE));
    let after = world.fake.stats();
    assert_eq!((after.batch_calls - before.batch_calls, after.plain_copies - before.plain_copies), (1, 0));
    // Control: the same page layer by layer.
    world.submit(world.job(2, Save, &[4]));
    assert_eq!(world.drain(1)[0].state, CopyState::Done);
    assert_eq!(world.fake.stats().plain_copies - after.plain_copies, shape.layers as u64);
}
