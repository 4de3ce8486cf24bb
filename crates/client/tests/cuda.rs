//! The worker's client with KV in the memory of a (fake) CUDA device, against a scripted manager.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
mod device;

use common::{
    Kv, LAYERS, LONG, Manager, PAGE_BYTES, Pool, part, save_ticket, serve_probe, stat, wait_for, with_block,
};
use device::{BRIEF, device, world, world_planned, world_with};
use orbitkv_client::{
    CudaDevice, Device, LayerOrder, SelfTest, Verify, WorkerClient, gather_block, scatter_block,
};
use orbitkv_copy::{CudaCopyConfig, CudaDriver, CudaProbe, crc64};
use orbitkv_fake_cuda::{Fake, FakeDevice, ILLEGAL_ADDRESS};
use orbitkv_wire::{Kind, ToClient, ToManager};
use std::sync::Arc;
use std::time::Duration;

#[test]
fn what_is_saved_comes_back_in_another_block() {
    let mut world = world(Verify::All);
    let (before, saved) = (world.kv.bytes(), world.kv.payload(6));
    let save = world.client.save_after(world.stream(), &save_ticket(&[3]).encode(), &[6]).unwrap();
    assert_eq!(world.committed_crc(), crc64(&saved));
    assert!(save.wait(LONG) && world.pool.payload(3) == saved);
    let ticket = world.pool.restore_ticket(&[3]).encode();
    let load = world.client.restore_after(world.stream(), &ticket, &[1]).unwrap();
    assert!(load.wait(LONG) && load.failed_blocks().is_empty());
    world.copy_done();
    assert!(world.kv.bytes() == with_block(before, 1, &saved), "the block, and nothing else");
    let stats = world.client.stats();
    assert_eq!((stat(&stats, "saved_pages"), stat(&stats, "restored_pages")), (1, 1));
    assert_eq!(stat(&stats, "timed_bytes"), PAGE_BYTES as u64, "of the restore");
    assert!(stat(&stats, "timed_us") > 0);
    assert_eq!((stat(&stats, "save_inflight_bytes"), stat(&stats, "load_inflight_bytes")), (0, 0));
    let driver = world.fake.stats();
    assert!(driver.plain_copies + driver.row_copies + driver.batch_calls > 0, "by way of the driver");
}

/// The control of the test above: a bit that changes in the pool is seen by its comparison.
#[test]
fn a_bit_that_changes_in_the_pool_is_seen_in_the_block() {
    let mut world = world(Verify::Off);
    let saved = world.kv.payload(6);
    let save = world.client.save_after(world.stream(), &save_ticket(&[3]).encode(), &[6]).unwrap();
    assert!(save.wait(LONG) && world.committed_crc() == crc64(&saved));
    let ticket = world.pool.restore_ticket(&[3]).encode();
    let mut other = world.pool.payload(3);
    other[1500] ^= 1;
    world.pool.write(3, &other);
    let load = world.client.restore_after(world.stream(), &ticket, &[1]).unwrap();
    assert!(load.wait(LONG) && load.failed_blocks().is_empty());
    assert!(world.kv.payload(1) == other && other != saved);
}

/// Saves a block that a held kernel is about to compute; `marked` says whether that kernel's stream is named.
fn saves_what_is_computed(marked: bool) -> bool {
    let mut world = world(Verify::All);
    let gate = world.gate();
    world.compute_fill(6, 0xA5);
    let other =
        CudaProbe::new(&CudaDriver::load_from(Fake::load().unwrap().path()).unwrap(), world.fake.ordinal);
    let other = other.unwrap();
    let stream = if marked { world.stream() } else { other.stream().0 };
    let pool_before = world.pool.bytes();
    let save = world.client.save_after(stream, &save_ticket(&[3]).encode(), &[6]).unwrap();
    if marked {
        assert!(
            !save.wait(BRIEF) && world.pool.bytes() == pool_before,
            "nothing is read before it is computed"
        );
        drop(gate);
    } else {
        assert!(save.wait(LONG));
        drop(gate);
    }
    let crc = world.committed_crc();
    assert_eq!(crc, world.pool.crc(3));
    world.pool.payload(3) == vec![0xA5; PAGE_BYTES]
}

#[test]
fn a_save_comes_after_the_kernel_that_computes_its_block() {
    assert!(saves_what_is_computed(true));
    assert!(!saves_what_is_computed(false), "control: behind an idle stream it is too early");
}

#[test]
fn nothing_is_copied_without_a_stream_to_come_after() {
    let mut world = world(Verify::All);
    let before = (world.kv.bytes(), world.pool.bytes());
    let text = |result: Result<_, orbitkv_client::ClientError>| result.err().unwrap().to_string();
    let (save, restore) = (save_ticket(&[3]).encode(), world.pool.restore_ticket(&[4]).encode());
    assert!(text(world.client.save(&save, &[6]).map(drop)).contains("stream is missing"));
    assert_eq!(world.peer.next().kind, Kind::Abort, "the slots are given back");
    assert!(text(world.client.restore(&restore, &[6]).map(drop)).contains("stream is missing"));
    world.copy_done();
    world.fake.fail("cuEventRecord", 1, 1);
    assert!(text(world.client.save_after(world.stream(), &save, &[6]).map(drop)).contains("cuEventRecord"));
    assert_eq!(world.peer.next().kind, Kind::Abort);
    assert!((world.kv.bytes(), world.pool.bytes()) == before);
}

#[test]
fn a_restore_comes_after_the_last_use_of_its_blocks() {
    let mut world = world(Verify::All);
    let (old, seen) = (world.kv.payload(2), Arc::default());
    let gate = world.gate();
    world.compute_read(2, 0, &seen);
    let ticket = world.pool.restore_ticket(&[4]).encode();
    let load = world.client.restore_after(world.stream(), &ticket, &[2]).unwrap();
    assert!(!load.wait(BRIEF) && world.kv.payload(2) == old, "a kernel still reads the block");
    drop(gate);
    assert!(load.wait(LONG));
    world.copy_done();
    assert!(old.starts_with(&seen.lock().unwrap()[0]), "the kernel saw what was there before");
    assert!(world.kv.payload(2) == world.pool.payload(4));
}

/// Kernels that read layer after layer of a slow restore; true if all saw restored bytes.
fn kernels_see_restored_layers(ordered: bool) -> bool {
    let mut world = world_with(Verify::All, |config, fake| {
        fake.set_copy_us(3000);
        config
    });
    let (stream, seen) = (world.stream(), Arc::default());
    let ticket = world.pool.restore_ticket(&[4, 5]).encode();
    let load = world.client.restore_after(stream, &ticket, &[2, 7]).unwrap();
    for layer in 0..LAYERS {
        if ordered {
            let answer = load.order_layer(layer, stream, LONG).unwrap();
            assert!(matches!(answer, LayerOrder::Ordered | LayerOrder::Complete), "{answer:?}");
        }
        world.compute_read(2, layer, &seen);
    }
    world.compute.finish().unwrap();
    assert!(load.wait_checked(LONG) && load.failed_blocks().is_empty());
    assert!(load.wait(LONG));
    world.copy_done();
    assert_eq!(world.fake.stats().waits_without_record, 0, "the host has seen each record return");
    let seen: Vec<u8> = seen.lock().unwrap().concat();
    assert_eq!(seen.len(), PAGE_BYTES);
    seen == world.pool.payload(4)
}

#[test]
fn kernels_behind_an_ordered_layer_read_restored_bytes() {
    assert!(kernels_see_restored_layers(true));
    assert!(!kernels_see_restored_layers(false), "control: without the order they are too early");
}

#[test]
fn a_layer_that_is_not_queued_orders_nothing() {
    let world = world(Verify::All);
    // Its segment has not come, so nothing of it can be queued.
    let mut ticket = world.pool.restore_ticket(&[4]);
    ticket.parts[0].segment = 1;
    let load = world.client.restore_after(world.stream(), &ticket.encode(), &[2]).unwrap();
    assert_eq!(load.order_layer(0, world.stream(), BRIEF).unwrap(), LayerOrder::TimedOut);
    assert!(!load.wait_checked(Duration::ZERO));
    assert_eq!(load.order_layer(0, world.stream(), LONG).unwrap(), LayerOrder::Failed);
    assert!(load.wait_checked(Duration::ZERO) && load.poll());
    assert_eq!(load.failed_blocks(), [2]);
    assert_eq!(world.fake.stats().waits_without_record, 0);
}

#[test]
fn a_page_with_other_bytes_is_known_before_its_copy_has_ended() {
    let mut world = world(Verify::All);
    let ticket = world.pool.restore_ticket(&[4, 5, 6]);
    let mut other = world.pool.payload(5);
    other[1500] ^= 1;
    world.pool.write(5, &other);
    let gate = world.gate();
    let load = world.client.restore_after(world.stream(), &ticket.encode(), &[0, 1, 2]).unwrap();
    assert_eq!(load.order_layer(LAYERS - 1, world.stream(), LONG).unwrap(), LayerOrder::Ordered);
    assert!(load.wait_checked(LONG));
    assert_eq!(load.failed_blocks(), [1]);
    assert_eq!(world.peer.next().to_manager(), ToManager::BadPage { slot: part(5, 0).slot });
    assert!(!load.poll(), "its copies wait for the kernel before them");
    drop(gate);
    assert!(load.wait(LONG));
    world.copy_done();
    assert_eq!(load.failed_blocks(), [1]);
    assert!(world.kv.payload(0) == world.pool.payload(4) && world.kv.payload(2) == world.pool.payload(6));
    let stats = world.client.stats();
    assert_eq!((stat(&stats, "verified_pages"), stat(&stats, "bad_pages")), (3, 1));
    assert_eq!((stat(&stats, "restored_pages"), stat(&stats, "failed_pages")), (2, 1));
}

/// Others of this program that compare checksums wait for this one meanwhile.
#[test]
fn a_restore_whose_pages_are_not_yet_compared_is_not_over() {
    let mut world = world(Verify::All);
    let ticket = world.pool.restore_ticket(&[4, 5]);
    let mut other = world.pool.payload(5);
    other[1500] ^= 1;
    world.pool.write(5, &other);
    assert!(orbitkv_holds::hold("compare"));
    let load = world.client.restore_after(world.stream(), &ticket.encode(), &[0, 1]).unwrap();
    let landed = (0..LAYERS).all(|_| load.wait_layer(LAYERS - 1, LONG));
    let over = load.wait_checked(BRIEF) || load.poll();
    orbitkv_holds::release("compare");
    assert!(landed && world.kv.payload(1) == other, "it has landed");
    assert!(!over, "and nobody may believe it");
    assert!(load.wait(LONG) && load.wait_checked(Duration::ZERO));
    assert_eq!(load.failed_blocks(), [1]);
    assert_eq!(world.peer.next().kind, Kind::BadPage);
    world.copy_done();
}

#[test]
fn a_fence_ends_a_save_that_waits_for_the_stream() {
    let mut world = world(Verify::All);
    let gate = world.gate();
    let save = world.client.save_after(world.stream(), &save_ticket(&[3]).encode(), &[6]).unwrap();
    std::thread::scope(|scope| {
        let fence = scope.spawn(|| world.client.fence(&[6], BRIEF));
        std::thread::sleep(3 * BRIEF);
        let still = save.poll();
        assert!(still || !fence.is_finished(), "a fence returns when nothing reads the block");
        drop(gate);
        fence.join().unwrap();
    });
    assert!(save.wait(LONG));
    assert!(matches!(world.peer.next().kind, Kind::Abort | Kind::Commit));
}

#[test]
fn a_lost_device_fails_what_runs_and_gives_nothing_back() {
    let mut world = world(Verify::All);
    let _gate = world.gate();
    let stream = world.stream();
    let (save, restore) = (save_ticket(&[3]).encode(), world.pool.restore_ticket(&[4]).encode());
    let load = world.client.restore_after(stream, &restore, &[2]).unwrap();
    assert_eq!(load.order_layer(LAYERS - 1, stream, LONG).unwrap(), LayerOrder::Ordered);
    let save = (world.client.save_after(stream, &save, &[6]).unwrap(), save);
    assert!(!save.0.wait(BRIEF));
    world.fake.lose(ILLEGAL_ADDRESS);
    assert!(load.wait(LONG) && load.failed_blocks() == [2], "whoever waits goes on");
    assert!(save.0.wait(LONG) && save.0.committed() == 0);
    assert_eq!(world.client.fence(&[6], LONG), 0, "nobody waits for a device that is gone");
    assert_eq!(world.peer.next().to_manager(), ToManager::Attest { passed: false });
    assert_eq!(world.sent_soon(), None, "slot and lease may still be touched");
    let stats = world.client.stats();
    assert!(stat(&stats, "load_inflight_bytes") > 0 && stat(&stats, "save_inflight_bytes") > 0);
    assert!(matches!(world.client.self_test(), SelfTest::Failed(text) if text.contains("lost")));
    assert!(world.client.trouble().unwrap().contains("lost"));
    // What never ran is given back.
    let late = world.client.restore_after(stream, &restore, &[2]);
    assert!(late.is_err() || late.is_ok_and(|load| load.poll() && load.failed_blocks() == [2]));
    world.copy_done();
    assert!(!world.client.close(), "custody ends with the process");
    assert!(world.peer.try_next().is_none(), "and the manager sees no more than the end of the connection");
    world.fake.destroy_context();
}

#[test]
fn a_client_that_is_closed_waits_for_its_copies() {
    let mut world = world(Verify::All);
    let gate = world.gate();
    let ticket = world.pool.restore_ticket(&[4]).encode();
    let load = world.client.restore_after(world.stream(), &ticket, &[2]).unwrap();
    assert_eq!(load.order_layer(LAYERS - 1, world.stream(), LONG).unwrap(), LayerOrder::Ordered);
    std::thread::scope(|scope| {
        let closed = scope.spawn(|| world.client.close());
        std::thread::sleep(BRIEF);
        assert!(!closed.is_finished() && !load.poll());
        drop(gate);
        assert!(closed.join().unwrap(), "nothing touches KV memory any more");
    });
    assert!(load.poll());
    world.copy_done();
}

#[test]
fn a_client_is_closed_though_a_stream_does_not_move() {
    let mut world = world(Verify::All);
    let gate = world.gate();
    let save = world.client.save_after(world.stream(), &save_ticket(&[3]).encode(), &[6]).unwrap();
    assert!(!save.wait(BRIEF));
    assert!(!world.client.close(), "the copy is queued, and will read the block");
    assert!(save.poll());
    assert_ne!(world.sent_soon(), Some(Kind::Abort), "the slot will be written");
    // As the end of the process does: before it, the memory of the test must not go.
    world.fake.destroy_context();
    drop(gate);
}

#[test]
fn pool_segments_are_registered_as_they_come_and_go() {
    let mut world = world(Verify::All);
    let bytes = world.pool.segment.bytes() as u64;
    let own = world.fake.stats().registered_bytes;
    wait_for("registration", || stat(&world.client.stats(), "registered_bytes") == bytes);
    assert_eq!(stat(&world.client.stats(), "registering_bytes"), 0);
    let own = own.min(world.fake.stats().registered_bytes - bytes);
    world.peer.send(0, &ToClient::SegmentGone { segment: 0 });
    wait_for("its end", || world.fake.stats().registered_bytes == own);
    wait_for("the map is gone", || world.pool.maps() == 1);
    world.peer.send_segment(0, &world.pool.segment);
    wait_for("registration", || stat(&world.client.stats(), "registered_bytes") == bytes);
    drop(world.peer);
    wait_for("its end with the connection", || world.fake.stats().registered_bytes == own);
    wait_for("the map is gone", || world.pool.maps() == 1);
}

#[test]
fn memory_that_cannot_be_registered_is_copied_all_the_same_and_said() {
    let fail = |fake: &FakeDevice| fake.fail("cuMemHostRegister_v2", 1, 2);
    let mut world = world_planned(Verify::All, |config, _| config, fail);
    wait_for("the failure", || world.client.trouble().is_some());
    assert!(world.client.trouble().unwrap().contains("cannot be registered"));
    let ticket = world.pool.restore_ticket(&[4]).encode();
    let load = world.client.restore_after(world.stream(), &ticket, &[2]).unwrap();
    assert!(load.wait(LONG) && load.failed_blocks().is_empty());
    world.copy_done();
    assert!(world.kv.payload(2) == world.pool.payload(4));
}

/// The self-test on a device, with a pool that is `tampered` with or not.
fn self_test(tampered: bool) -> SelfTest {
    let (manager, kv, scratch, pool) = (Manager::new(), Kv::new(), Kv::new(), Pool::new());
    let before = (kv.bytes(), scratch.payload(2));
    let mut config = manager.worker_config(&kv, &scratch, true, Verify::Off);
    let (device, _fake, _compute) = device(|config, _| config);
    config.device = device;
    let client = WorkerClient::new(config).unwrap();
    let (mut peer, _) = manager.welcome(2);
    serve_probe(&mut peer, &pool, |pool, slot| {
        let mut payload = pool.payload(slot);
        payload[2000] ^= 4 * u8::from(tampered);
        pool.write(slot, &payload);
    });
    wait_for("a verdict", || client.self_test() != SelfTest::Pending);
    assert!((kv.bytes(), scratch.payload(2)) == before, "neither KV memory nor other scratch blocks");
    client.self_test()
}

#[test]
fn the_self_test_runs_on_the_device() {
    assert_eq!(self_test(false), SelfTest::Passed);
    // The checksum that comes with the lease is that of the changed page: only the bytes tell.
    assert!(
        matches!(self_test(true), SelfTest::Failed(text) if text.contains("byte 2000 of scratch block 1"))
    );
}

#[test]
fn blocks_of_a_device_are_read_and_written_one_at_a_time() {
    let (device, fake, _compute) = device(|config, _| config);
    let kv = Kv::new();
    let before = kv.bytes();
    let payload = gather_block(&device, &kv.layout, 5).unwrap();
    assert!(payload == kv.payload(5));
    let read = fake.stats().plain_copies;
    scatter_block(&device, &kv.layout, 1, &payload).unwrap();
    assert!(read > 0 && fake.stats().plain_copies > read, "by way of the driver");
    assert!(kv.bytes() == with_block(before, 1, &payload));
}

#[test]
fn how_is_copied_can_be_asked_for_and_is_said() {
    for (method, said) in [("auto", "in batches"), ("plain", "one by one")] {
        let (manager, kv) = (Manager::new(), Kv::new());
        let mut config = manager.worker_config(&kv, &Kv::new(), false, Verify::Off);
        config.device = device(|config, _| config).0.copied_by(method).unwrap();
        let name = config.device.to_string();
        let client = WorkerClient::new(config).unwrap();
        let text = client.method();
        assert!(
            text.starts_with(&format!("{name}: blocks of 1001 bytes a layer")) && text.contains(said),
            "{text}"
        );
        assert_eq!(text.contains("in batches"), method == "auto", "{text}");
        drop(client);
    }
    let error = Device::Host.copied_by("fast").err().unwrap().to_string();
    assert!(error.contains("fast"), "{error}");
}

#[test]
fn what_is_not_there_is_named() {
    let text = |device: Result<Device, orbitkv_client::ClientError>| device.err().unwrap().to_string();
    for wrong in ["cuda", "cuda:x", "gpu:0", ""] {
        assert!(text(wrong.parse()).contains("cuda:N"), "{wrong}");
    }
    let manager = Manager::new();
    let fake = Fake::load().unwrap();
    let driver = CudaDriver::load_from(fake.path()).unwrap();
    let mut config = manager.worker_config(&Kv::new(), &Kv::new(), false, Verify::Off);
    config.device = Device::Cuda(CudaDevice::new(&driver, CudaCopyConfig::new(9999)));
    assert_eq!(config.device.to_string(), "cuda:9999");
    let error = WorkerClient::new(config).err().unwrap().to_string();
    assert!(error.contains("no such device"), "{error}");
}
