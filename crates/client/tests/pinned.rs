//! Pinned pages against a scripted manager: promised now, restored later, without fail.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{BOOT, Kv, LONG, Manager, Peer, Pool, SCHEDULER, part, save_ticket, stat, wait_for, with_block};
use orbitkv_client::{Pinned, Ticket, Verify, WorkerClient};
use orbitkv_wire::{Resume, ToClient, ToManager};
use std::time::Duration;

fn worker() -> (Manager, Kv, Pool, WorkerClient, Peer) {
    let (manager, kv, pool) = (Manager::new(), Kv::new(), Pool::new());
    let (client, mut peer) = manager.worker(2, &kv, Verify::All);
    peer.send_segment(0, &pool.segment);
    (manager, kv, pool, client, peer)
}

fn settled(pinned: &Pinned) -> usize {
    wait_for("checked", || pinned.poll());
    pinned.pages()
}

fn copy_done() -> ToManager<'static> {
    ToManager::CopyDone { session: SCHEDULER, operation: 1, revision: 1 }
}

#[test]
fn some_of_the_pinned_pages_are_restored_and_custody_ends_once() {
    let (_manager, kv, pool, client, mut peer) = worker();
    let before = kv.bytes();
    let pinned = client.pin(&pool.restore_ticket(&[4, 0, 7]).encode()).unwrap();
    assert_eq!(settled(&pinned), 3);
    assert!(kv.bytes() == before, "a pin copies nothing");
    let load = pinned.restore(&[2, 0], &[5, 1]).unwrap();
    assert!(load.wait(LONG) && load.failed_blocks().is_empty());
    let expected = with_block(before, 5, &pool.payload(7));
    assert!(kv.bytes() == with_block(expected, 1, &pool.payload(4)));
    assert_eq!(peer.next().to_manager(), copy_done());
    drop(pinned);
    assert!(peer.next_within(Duration::from_millis(50)).is_none(), "said once");
    let stats = client.stats();
    assert_eq!((stat(&stats, "restored_pages"), stat(&stats, "verified_pages")), (2, 3));
    assert_eq!(stat(&stats, "load_inflight_bytes"), 0);
}

#[test]
fn a_pin_that_is_let_go_ends_custody() {
    let (_manager, kv, pool, client, mut peer) = worker();
    let before = kv.bytes();
    let pinned = client.pin(&pool.restore_ticket(&[4]).encode()).unwrap();
    assert!(peer.next_within(Duration::from_millis(50)).is_none(), "kept");
    assert_eq!(settled(&pinned), 1);
    pinned.release();
    pinned.release();
    assert_eq!(peer.next().to_manager(), copy_done());
    let error = pinned.restore(&[0], &[1]).err().unwrap().to_string();
    assert!(error.contains("neither restored nor released before"), "{error}");
    assert!(kv.bytes() == before);
    assert!(peer.next_within(Duration::from_millis(50)).is_none());
}

#[test]
fn pages_end_at_the_first_with_other_bytes() {
    let (_manager, _kv, pool, client, mut peer) = worker();
    let ticket = pool.restore_ticket(&[4, 5, 6]);
    let mut other = pool.payload(5);
    other[1500] ^= 1;
    pool.write(5, &other);
    let pinned = client.pin(&ticket.encode()).unwrap();
    assert_eq!(settled(&pinned), 1);
    assert_eq!(peer.next().to_manager(), ToManager::BadPage { slot: part(5, 0).slot });
    let error = pinned.restore(&[2], &[1]).err().unwrap().to_string();
    assert!(error.contains("page is 2; it must be below 1"), "{error}");
    let load = pinned.restore(&[0], &[1]).unwrap();
    assert!(load.wait(LONG) && load.failed_blocks().is_empty());
}

#[test]
fn a_connection_lost_after_the_pin_takes_nothing_away() {
    let (manager, kv, pool, client, peer) = worker();
    let pinned = client.pin(&pool.restore_ticket(&[4]).encode()).unwrap();
    assert_eq!(settled(&pinned), 1);
    drop(peer);
    wait_for("the loss is seen", || !client.connected());
    let (mut peer, hello) = manager.welcome(8);
    assert_eq!(hello.resume, Some(Resume { session: 2, copies_ended: false }), "its page is still ours");
    let load = pinned.restore(&[0], &[3]).unwrap();
    assert!(load.wait(LONG) && load.failed_blocks().is_empty());
    assert!(kv.payload(3) == pool.payload(4));
    loop {
        match peer.next().to_manager() {
            ToManager::CopiesEnded { session: 2 } => break,
            ToManager::Attest { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

/// The control of the test above: a ticket that was not pinned is stale by then.
#[test]
fn a_connection_lost_before_the_pin_pins_nothing() {
    let (manager, _kv, pool, client, peer) = worker();
    let ticket = pool.restore_ticket(&[4]);
    drop(peer);
    wait_for("the loss is seen", || !client.connected());
    let (_peer, _) = manager.welcome(8);
    wait_for("connected again", || client.connected());
    let pinned = client.pin(&ticket.encode()).unwrap();
    assert!(pinned.poll());
    assert_eq!(pinned.pages(), 0);
}

#[test]
fn a_fence_waits_for_pins() {
    let (_manager, _kv, pool, client, mut peer) = worker();
    let pinned = client.pin(&pool.restore_ticket(&[4]).encode()).unwrap();
    assert_eq!(settled(&pinned), 1);
    peer.send(0, &ToClient::Fence { scheduler: SCHEDULER });
    assert!(peer.next_within(Duration::from_millis(50)).is_none(), "the page is in custody");
    let load = pinned.restore(&[0], &[3]).unwrap();
    assert!(load.wait(LONG) && load.failed_blocks().is_empty(), "promised before the fence");
    assert_eq!(peer.next().to_manager(), copy_done());
    assert_eq!(peer.next().to_manager(), ToManager::Fenced { scheduler: SCHEDULER });
}

#[test]
fn a_segment_that_never_comes_pins_nothing() {
    let (manager, kv, pool) = (Manager::new(), Kv::new(), Pool::new());
    let (client, _peer) = manager.worker(2, &kv, Verify::All);
    let pinned = client.pin(&pool.restore_ticket(&[4]).encode()).unwrap();
    assert_eq!(settled(&pinned), 0);
}

#[test]
fn a_closed_client_lets_go() {
    let (_manager, _kv, pool, client, mut peer) = worker();
    let pinned = client.pin(&pool.restore_ticket(&[4]).encode()).unwrap();
    assert_eq!(settled(&pinned), 1);
    assert!(client.close(), "nothing is left in custody");
    assert_eq!(peer.next().to_manager(), copy_done());
    assert!(pinned.restore(&[0], &[3]).is_err());
}

#[test]
fn what_does_not_fit_is_named() {
    let (_manager, _kv, pool, client, _peer) = worker();
    let refusal = |ticket: &Ticket| client.pin(&ticket.encode()).err().unwrap().to_string();
    assert!(refusal(&save_ticket(&[4])).contains("Save ticket"));
    let old = client.pin(&Ticket { boot: BOOT + 1, ..pool.restore_ticket(&[4]) }.encode()).unwrap();
    assert_eq!(settled(&old), 0);
    let pinned = client.pin(&pool.restore_ticket(&[4, 5]).encode()).unwrap();
    assert_eq!(settled(&pinned), 2);
    for (pages, blocks, part) in [
        (&[0][..], &[1, 2][..], "number of blocks is 2"),
        (&[], &[], "number of blocks is 0"),
        (&[2], &[1], "page is 2"),
        (&[0], &[1000], "block is 1000"),
        (&[0, 1], &[1, 1], "block is 1; it must be given once"),
    ] {
        let error = pinned.restore(pages, blocks).err().unwrap().to_string();
        assert!(error.contains(part), "{error}");
    }
}
