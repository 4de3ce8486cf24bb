//! The worker's client against a scripted manager.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{
    BLOCKS, BOOT, Kv, LAYERS, LONG, Manager, Peer, Pool, SCHEDULER, hash, part, save_ticket, section,
    serve_probe, stat, wait_for, with_block,
};
use orbitkv_client::{Device, SelfTest, Ticket, Verify, WorkerClient, gather_block, scatter_block};
use orbitkv_copy::crc64;
use orbitkv_wire::{Kind, Resume, ToClient, ToManager};
use std::time::Duration;

fn worker(verify: Verify) -> (Manager, Kv, Pool, WorkerClient, Peer) {
    let (manager, kv, pool) = (Manager::new(), Kv::new(), Pool::new());
    let (client, mut peer) = manager.worker(2, &kv, verify);
    peer.send_segment(0, &pool.segment);
    (manager, kv, pool, client, peer)
}

fn copy_done(peer: &mut Peer) {
    let done = peer.next();
    assert_eq!(
        done.to_manager(),
        ToManager::CopyDone { session: SCHEDULER, operation: 1, revision: 1 },
        "one for each restore"
    );
}

#[test]
fn a_save_commits_the_right_checksum_and_writes_nothing_else() {
    let (_manager, kv, pool, client, mut peer) = worker(Verify::All);
    let (kv_before, pool_before) = (kv.bytes(), pool.bytes());
    let save = client.save(&save_ticket(&[3, 9]).encode(), &[6, 1]).unwrap();
    let mut items = Vec::new();
    while items.len() < 2 {
        match peer.next().to_manager() {
            ToManager::Commit(batch) => items.extend_from_slice(batch),
            other => panic!("{other:?}"),
        }
    }
    items.sort_by_key(|item| item.slot.index.get());
    for (item, (slot, block)) in items.iter().zip([(3, 6), (9, 1)]) {
        assert_eq!((item.slot.index.get(), item.hash), (slot, hash(slot)));
        assert_eq!(item.crc.get(), crc64(&kv.payload(block)), "checksum of the source");
        assert_eq!(item.crc.get(), pool.crc(slot), "checksum of what is in the pool");
    }
    assert!(save.wait(LONG));
    wait_for("committed", || save.committed() == 2);
    let expected = Pool::with_slot(pool_before, 3, &kv.payload(6));
    assert!(pool.bytes() == Pool::with_slot(expected, 9, &kv.payload(1)), "slots only");
    assert!(kv.bytes() == kv_before, "a save reads");
    let stats = client.stats();
    assert_eq!((stat(&stats, "saved_pages"), stat(&stats, "save_inflight_bytes")), (2, 0));
}

#[test]
fn a_restore_lands_layer_by_layer_and_changes_nothing_else() {
    let (_manager, kv, pool, client, mut peer) = worker(Verify::All);
    let (kv_before, pool_before) = (kv.bytes(), pool.bytes());
    let load = client.restore(&pool.restore_ticket(&[4, 0]).encode(), &[7, 2]).unwrap();
    for layer in 0..LAYERS {
        assert!(load.wait_layer(layer, LONG), "layer {layer}");
        let range = Kv::ranges(7).nth(layer).unwrap();
        let place = layer * common::BLOCK_BYTES..(layer + 1) * common::BLOCK_BYTES;
        assert!(kv.bytes()[range] == pool.payload(4)[place], "layer {layer} has landed");
    }
    assert!(load.wait(LONG) && load.failed_blocks().is_empty());
    copy_done(&mut peer);
    let expected = with_block(kv_before, 7, &pool.payload(4));
    assert!(kv.bytes() == with_block(expected, 2, &pool.payload(0)), "blocks only");
    assert!(pool.bytes() == pool_before, "a restore reads");
    let stats = client.stats();
    assert_eq!((stat(&stats, "restored_pages"), stat(&stats, "verified_pages")), (2, 2));
    assert_eq!(stat(&stats, "load_inflight_bytes"), 0);
}

#[test]
fn a_page_with_other_bytes_fails_alone_and_is_reported() {
    let (_manager, kv, pool, client, mut peer) = worker(Verify::All);
    let ticket = pool.restore_ticket(&[4, 5, 6]);
    let mut other = pool.payload(5);
    other[1500] ^= 1;
    pool.write(5, &other);
    let before = kv.bytes();
    let load = client.restore(&ticket.encode(), &[0, 1, 2]).unwrap();
    assert!(load.wait(LONG));
    assert_eq!(load.failed_blocks(), [1]);
    assert!(!load.wait_layer(0, LONG), "not every page has landed");
    assert_eq!(peer.next().to_manager(), ToManager::BadPage { slot: part(5, 0).slot });
    copy_done(&mut peer);
    let expected = with_block(before, 0, &pool.payload(4));
    assert!(kv.bytes() == with_block(expected, 2, &pool.payload(6)), "the others, and nothing of page 5");
    let stats = client.stats();
    assert_eq!((stat(&stats, "failed_pages"), stat(&stats, "bad_pages")), (1, 1));
}

/// The control of the test above: without the check the flipped bit arrives.
#[test]
fn without_verification_the_same_page_is_copied() {
    let (_manager, kv, pool, client, mut peer) = worker(Verify::Off);
    let ticket = pool.restore_ticket(&[5]);
    let mut other = pool.payload(5);
    other[1500] ^= 1;
    pool.write(5, &other);
    let load = client.restore(&ticket.encode(), &[1]).unwrap();
    assert!(load.wait(LONG) && load.failed_blocks().is_empty());
    copy_done(&mut peer);
    assert!(kv.payload(1) == other);
}

#[test]
fn tickets_of_another_run_or_an_earlier_session_move_nothing() {
    let (_manager, kv, pool, client, mut peer) = worker(Verify::All);
    let before = kv.bytes();
    let good = pool.restore_ticket(&[4]);
    let stale = [Ticket { boot: BOOT + 1, ..good.clone() }, Ticket { issued_us: 1, ..good.clone() }];
    for ticket in &stale {
        let load = client.restore(&ticket.encode(), &[3]).unwrap();
        assert!(load.poll(), "at once");
        assert_eq!(load.failed_blocks(), [3]);
        assert!(!load.wait_layer(0, LONG));
    }
    let save = client.save(&Ticket { boot: BOOT + 1, ..save_ticket(&[3]) }.encode(), &[1]).unwrap();
    assert!(save.poll() && save.committed() == 0);
    assert!(kv.bytes() == before);
    // This run of the manager may wait for the one of an earlier session; the other run is gone.
    copy_done(&mut peer);
    let load = client.restore(&good.encode(), &[3]).unwrap();
    assert!(load.wait(LONG) && load.failed_blocks().is_empty(), "control: the same ticket, not stale");
    copy_done(&mut peer);
    assert_eq!(stat(&client.stats(), "stale_tickets"), 3);
}

#[test]
fn arguments_that_do_not_fit_are_named() {
    let (_manager, _kv, pool, client, _peer) = worker(Verify::All);
    let (restore, save) = (pool.restore_ticket(&[1, 2]).encode(), save_ticket(&[1, 2]).encode());
    let text = |result: Result<_, orbitkv_client::ClientError>| result.err().unwrap().to_string();
    assert!(text(client.restore(&restore, &[1]).map(drop)).contains("number of blocks is 1"));
    assert!(text(client.restore(&restore, &[1, 1]).map(drop)).contains("block is 1"));
    let beyond = u32::try_from(BLOCKS).unwrap();
    assert!(text(client.restore(&restore, &[1, beyond]).map(drop)).contains("block is 8"));
    assert!(text(client.restore(&save, &[1, 2]).map(drop)).contains("Save ticket"));
    assert!(text(client.save(&restore, &[1, 2]).map(drop)).contains("Restore ticket"));
    assert!(text(client.save(b"nonsense", &[1]).map(drop)).contains("ticket"));
    let other = Ticket { sections: vec![section(3, 1)], ..pool.restore_ticket(&[1]) };
    assert!(text(client.restore(&other.encode(), &[1]).map(drop)).contains("group is 3"));
}

#[test]
fn a_segment_that_comes_late_is_waited_for_and_one_that_never_comes_is_not() {
    let (manager, kv, pool) = (Manager::new(), Kv::new(), Pool::new());
    let (client, mut peer) = manager.worker(2, &kv, Verify::All);
    let load = client.restore(&pool.restore_ticket(&[4]).encode(), &[3]).unwrap();
    assert!(!load.wait(Duration::from_millis(20)));
    peer.send_segment(0, &pool.segment);
    assert!(load.wait(LONG) && load.failed_blocks().is_empty());
    copy_done(&mut peer);
    peer.send(0, &ToClient::SegmentGone { segment: 0 });
    wait_for("the client's map is gone", || pool.maps() == 1);
    let before = kv.bytes();
    let mut missing = pool.restore_ticket(&[4]);
    missing.parts[0].segment = 1;
    let (load, save) = (
        client.restore(&missing.encode(), &[3]).unwrap(),
        client.save(&Ticket { parts: missing.parts.clone(), ..save_ticket(&[4]) }.encode(), &[2]).unwrap(),
    );
    assert!(load.wait(LONG) && save.wait(LONG));
    assert_eq!((load.failed_blocks(), save.committed()), (vec![3], 0));
    assert!(kv.bytes() == before);
    let mut kinds = [peer.next().kind, peer.next().kind];
    kinds.sort_by_key(|kind| *kind as u16);
    assert_eq!(kinds, [Kind::CopyDone, Kind::Abort]);
}

#[test]
fn slots_outside_the_segment_fail_and_touch_nothing() {
    let (_manager, kv, pool, client, mut peer) = worker(Verify::Off);
    let before = (kv.bytes(), pool.bytes());
    for index in [common::SLOTS as u32, u32::MAX] {
        let mut outside = pool.restore_ticket(&[4]);
        outside.parts[0].index = index;
        let load = client.restore(&outside.encode(), &[3]).unwrap();
        assert!(load.wait(LONG));
        assert_eq!(load.failed_blocks(), [3]);
        copy_done(&mut peer);
        let save = Ticket { parts: outside.parts, ..save_ticket(&[4]) };
        assert!(client.save(&save.encode(), &[1]).unwrap().wait(LONG));
        assert_eq!(peer.next().kind, Kind::Abort);
    }
    assert!((kv.bytes(), pool.bytes()) == before);
}

#[test]
fn a_fenced_scheduler_is_answered_and_its_later_tickets_refused() {
    let (_manager, kv, pool, client, mut peer) = worker(Verify::All);
    peer.send(0, &ToClient::Fence { scheduler: SCHEDULER });
    assert_eq!(peer.next().to_manager(), ToManager::Fenced { scheduler: SCHEDULER });
    let before = kv.bytes();
    let load = client.restore(&pool.restore_ticket(&[4]).encode(), &[3]).unwrap();
    assert!(load.poll());
    assert_eq!(load.failed_blocks(), [3]);
    let save = client.save(&save_ticket(&[4]).encode(), &[3]).unwrap();
    assert!(save.poll() && save.committed() == 0);
    assert!(kv.bytes() == before);
    let newer = Ticket { scheduler: SCHEDULER + 1, ..pool.restore_ticket(&[4]) };
    let load = client.restore(&newer.encode(), &[3]).unwrap();
    assert!(load.wait(LONG) && load.failed_blocks().is_empty(), "control: the next scheduler");
}

#[test]
fn a_lost_connection_drops_maps_and_the_next_hello_attests() {
    let (manager, kv, pool, client, peer) = worker(Verify::All);
    wait_for("the segment is mapped by both sides", || pool.maps() == 2);
    let old = pool.restore_ticket(&[4]);
    drop(peer);
    wait_for("the client's map is gone", || pool.maps() == 1);
    let load = client.restore(&pool.restore_ticket(&[4]).encode(), &[3]).unwrap();
    assert!(load.poll() && load.failed_blocks() == [3], "not connected");
    let (mut peer, hello) = manager.welcome(8);
    assert_eq!(hello.resume, Some(Resume { session: 2, copies_ended: true }));
    // The ticket that came while there was no connection is answered on the next one.
    let first = [peer.next(), peer.next()];
    let done = ToManager::CopyDone { session: SCHEDULER, operation: 1, revision: 1 };
    for expected in [ToManager::Attest { passed: false }, done] {
        assert!(first.iter().any(|frame| frame.to_manager() == expected), "{expected:?}");
    }
    peer.send_segment(0, &pool.segment);
    let load = client.restore(&old.encode(), &[3]).unwrap();
    assert!(load.poll() && load.failed_blocks() == [3], "given under the session before");
    copy_done(&mut peer);
    let load = client.restore(&pool.restore_ticket(&[4]).encode(), &[3]).unwrap();
    assert!(load.wait(LONG) && load.failed_blocks().is_empty());
    copy_done(&mut peer);
    assert!(kv.payload(3) == pool.payload(4));
}

#[test]
fn a_segment_without_descriptor_or_of_another_size_closes_the_connection() {
    let (manager, kv, pool) = (Manager::new(), Kv::new(), Pool::new());
    let (_client, mut peer) = manager.worker(2, &kv, Verify::All);
    let bytes = pool.segment.bytes() as u64;
    peer.send(0, &ToClient::Segment { segment: 0, slot_bytes: 8192, bytes });
    assert!(peer.try_next().is_none());
}

fn self_test(tamper: impl Fn(&Pool, u32)) -> (SelfTest, bool) {
    let (manager, kv, scratch, pool) = (Manager::new(), Kv::new(), Kv::new(), Pool::new());
    let before = (kv.bytes(), scratch.payload(2));
    let client = WorkerClient::new(manager.worker_config(&kv, &scratch, true, Verify::Off)).unwrap();
    let (mut peer, _) = manager.welcome(2);
    serve_probe(&mut peer, &pool, tamper);
    wait_for("a verdict", || client.self_test() != SelfTest::Pending);
    assert!((kv.bytes(), scratch.payload(2)) == before, "neither KV memory nor other scratch blocks");
    assert_eq!(stat(&client.stats(), "saved_pages") + stat(&client.stats(), "restored_pages"), 0);
    let verdict = client.self_test();
    let same = scratch.payload(0) == scratch.payload(1);
    drop(client);
    (verdict, same)
}

#[test]
fn the_self_test_passes_with_a_true_pool_and_fails_with_any_other() {
    assert_eq!(self_test(|_, _| {}), (SelfTest::Passed, true));
    let (verdict, same) = self_test(|pool, slot| {
        // One bit, under a checksum that fits.
        let mut payload = pool.payload(slot);
        payload[2000] ^= 4;
        pool.write(slot, &payload);
    });
    let expected = "byte 2000 of scratch block 1 is wrong after a restore";
    assert_eq!(verdict, SelfTest::Failed(expected.to_owned()));
    assert!(!same);
}

#[test]
fn gather_and_scatter_are_each_other_s_reverse() {
    let kv = Kv::new();
    let before = kv.bytes();
    assert!(gather_block(&Device::Host, &kv.layout, 5).unwrap() == kv.payload(5));
    let payload = gather_block(&Device::Host, &kv.layout, 5).unwrap();
    scatter_block(&Device::Host, &kv.layout, 1, &payload).unwrap();
    assert!(kv.bytes() == with_block(before, 1, &payload));
    assert!(gather_block(&Device::Host, &kv.layout, BLOCKS).is_err());
    assert!(scatter_block(&Device::Host, &kv.layout, 1, &payload[1..]).is_err());
}
