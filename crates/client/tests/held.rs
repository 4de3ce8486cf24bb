//! Races made into sequences by hold points. These are the process's, so the tests take turns.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Kv, LONG, Manager, Peer, Pool, SCHEDULER, part, save_ticket, stat, wait_for, with_block};
use orbitkv_client::{Verify, WorkerClient};
use orbitkv_holds as holds;
use orbitkv_wire::{Kind, Resume, ToClient, ToManager};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

static TURN: Mutex<()> = Mutex::new(());

struct World {
    manager: Manager,
    kv: Kv,
    pool: Pool,
    _turn: MutexGuard<'static, ()>,
}

/// Releases its point even when the test fails, so that the worker can be closed.
struct Held(&'static str);

impl Held {
    fn new(name: &'static str) -> Self {
        assert!(holds::hold(name));
        Self(name)
    }

    fn wait_reached(&self, count: u64) {
        wait_for(self.0, || holds::reached(self.0) == count);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        holds::release(self.0);
    }
}

fn world() -> (World, WorkerClient, Peer) {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let world = World { manager: Manager::new(), kv: Kv::new(), pool: Pool::new(), _turn: turn };
    let (client, mut peer) = world.manager.worker(2, &world.kv, Verify::All);
    peer.send_segment(0, &world.pool.segment);
    // A restore that is accepted before its memory has come does not outlive the connection.
    wait_for("the segment is mapped", || world.pool.maps() == 2);
    (world, client, peer)
}

fn aborted_slots(frame: &common::Frame) -> Vec<u32> {
    match frame.to_manager() {
        ToManager::Abort(slots) => slots.iter().map(|slot| slot.index.get()).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_fence_aborts_a_held_save_which_is_never_committed() {
    let (world, client, mut peer) = world();
    let held = Held::new("copy_save");
    let save = client.save(&save_ticket(&[3, 9]).encode(), &[6, 1]).unwrap();
    held.wait_reached(2);
    assert!(!save.poll());
    let before = world.pool.bytes();
    assert_eq!(client.fence(&[2, 4], Duration::ZERO), 0, "blocks of no save");
    assert_eq!(client.fence(&[6], Duration::from_millis(10)), 1);
    world.kv.fill(6, 0xff);
    assert_eq!(aborted_slots(&peer.next()), [3]);
    assert!(!save.poll(), "the other page still waits");
    drop(held);
    match peer.next().to_manager() {
        ToManager::Commit([item]) => assert_eq!(item.slot, part(9, 0).slot),
        other => panic!("{other:?}"),
    }
    assert!(save.wait(LONG));
    wait_for("committed", || save.committed() == 1);
    assert!(world.pool.bytes() == Pool::with_slot(before, 9, &world.kv.payload(1)), "slot 3 is untouched");
    let stats = client.stats();
    assert_eq!((stat(&stats, "aborted_pages"), stat(&stats, "save_inflight_bytes")), (1, 0));
}

/// The control of the test above: a fence that has time waits instead.
#[test]
fn a_fence_with_time_lets_the_save_finish() {
    let (world, client, mut peer) = world();
    let held = Held::new("copy_save");
    let save = client.save(&save_ticket(&[3]).encode(), &[6]).unwrap();
    held.wait_reached(1);
    let payload = world.kv.payload(6);
    std::thread::scope(|scope| {
        let fence = scope.spawn(|| client.fence(&[6], LONG));
        std::thread::sleep(Duration::from_millis(10));
        assert!(!fence.is_finished());
        drop(held);
        assert_eq!(fence.join().unwrap(), 0);
    });
    world.kv.fill(6, 0xff);
    assert_eq!(peer.next().kind, Kind::Commit);
    assert!(save.wait(LONG));
    assert!(world.pool.payload(3) == payload, "the bytes from before the fence returned");
}

#[test]
fn a_held_commit_is_sent_later_and_its_source_is_free_meanwhile() {
    let (world, client, mut peer) = world();
    let held = Held::new("commit");
    let payload = world.kv.payload(6);
    let save = client.save(&save_ticket(&[3]).encode(), &[6]).unwrap();
    held.wait_reached(1);
    assert!(save.poll() && save.committed() == 0);
    assert_eq!(client.fence(&[6], Duration::ZERO), 0);
    world.kv.fill(6, 0xff);
    drop(held);
    match peer.next().to_manager() {
        ToManager::Commit([item]) => assert_eq!(item.crc.get(), orbitkv_copy::crc64(&payload)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_held_commit_of_a_lost_session_is_never_sent() {
    let (world, client, peer) = world();
    let held = Held::new("commit");
    let save = client.save(&save_ticket(&[3]).encode(), &[6]).unwrap();
    held.wait_reached(1);
    drop(peer);
    let (mut peer, hello) = world.manager.welcome(8);
    assert_eq!(hello.resume, Some(Resume { session: 2, copies_ended: true }));
    assert_eq!(peer.next().kind, Kind::Attest);
    drop(held);
    wait_for("given up", || stat(&client.stats(), "aborted_pages") == 1);
    assert_eq!(save.committed(), 0);
    peer.send(0, &ToClient::Fence { scheduler: 1 });
    assert_eq!(peer.next().kind, Kind::Fenced, "and no commit before it");
}

#[test]
fn an_aborted_restore_moves_nothing_and_is_reported_once() {
    let (world, client, mut peer) = world();
    let before = world.kv.bytes();
    let held = Held::new("copy_restore");
    let load = client.restore(&world.pool.restore_ticket(&[4]).encode(), &[3]).unwrap();
    held.wait_reached(1);
    assert!(!load.poll() && !load.wait_layer(0, Duration::from_millis(5)));
    assert!(load.abort(LONG));
    assert_eq!(load.failed_blocks(), [3]);
    assert_eq!(peer.next().kind, Kind::CopyDone);
    drop(held);
    peer.send(0, &ToClient::Fence { scheduler: 1 });
    assert_eq!(peer.next().kind, Kind::Fenced, "nothing else came");
    assert!(world.kv.bytes() == before);
    assert_eq!(stat(&client.stats(), "load_inflight_bytes"), 0);
}

#[test]
fn a_fenced_scheduler_s_waiting_copies_are_given_up_before_the_answer() {
    let (world, client, mut peer) = world();
    let (save_held, load_held) = (Held::new("copy_save"), Held::new("copy_restore"));
    let before = (world.kv.bytes(), world.pool.bytes());
    let save = client.save(&save_ticket(&[3]).encode(), &[6]).unwrap();
    let load = client.restore(&world.pool.restore_ticket(&[4]).encode(), &[2]).unwrap();
    save_held.wait_reached(1);
    load_held.wait_reached(1);
    peer.send(0, &ToClient::Fence { scheduler: SCHEDULER });
    let mut kinds = [peer.next().kind, peer.next().kind];
    kinds.sort_by_key(|kind| *kind as u16);
    assert_eq!(kinds, [Kind::CopyDone, Kind::Abort]);
    assert_eq!(peer.next().to_manager(), ToManager::Fenced { scheduler: SCHEDULER });
    assert!(save.poll() && load.poll());
    drop((save_held, load_held));
    assert!((world.kv.bytes(), world.pool.bytes()) == before);
}

#[test]
fn of_a_lost_session_a_queued_save_never_runs_and_a_queued_restore_does() {
    let (world, client, peer) = world();
    let (save_held, load_held) = (Held::new("copy_save"), Held::new("copy_restore"));
    let before = world.pool.bytes();
    let save = client.save(&save_ticket(&[3]).encode(), &[6]).unwrap();
    let load = client.restore(&world.pool.restore_ticket(&[4]).encode(), &[2]).unwrap();
    save_held.wait_reached(1);
    load_held.wait_reached(1);
    drop(peer);
    let (mut peer, hello) = world.manager.welcome(8);
    assert_eq!(hello.resume, Some(Resume { session: 2, copies_ended: false }), "its lease stands");
    // The same number in the new session, other memory.
    let other = Pool::new();
    peer.send_segment(0, &other.segment);
    drop((save_held, load_held));
    assert!(save.wait(LONG) && load.wait(LONG));
    assert_eq!((save.committed(), load.failed_blocks()), (0, vec![]));
    assert!(world.kv.payload(2) == world.pool.payload(4) && world.pool.bytes() == before);
    let said: Vec<_> = (0..2).map(|_| peer.next()).collect();
    assert!(said.iter().any(|frame| frame.kind == Kind::CopiesEnded), "and ends now");
    wait_for("the old map is gone", || world.pool.maps() == 1);
}

#[test]
fn a_restore_that_comes_when_the_manager_has_just_died_is_carried_out() {
    let (world, client, peer) = world();
    let before = world.pool.bytes();
    drop(peer);
    wait_for("the connection is lost", || !client.connected());
    let save = client.save(&save_ticket(&[3]).encode(), &[6]).unwrap();
    assert!(save.poll() && save.committed() == 0, "nobody would commit it");
    let load = client.restore(&world.pool.restore_ticket(&[4]).encode(), &[2]).unwrap();
    assert!(load.wait(LONG) && load.failed_blocks().is_empty());
    assert!(world.kv.payload(2) == world.pool.payload(4) && world.pool.bytes() == before);

    let (_peer, hello) = world.manager.welcome(8);
    assert_eq!(hello.resume, Some(Resume { session: 2, copies_ended: true }));
    // What was promised before is not any more: a manager that lives has given those pages away.
    let load = client.restore(&world.pool.restore_ticket(&[5]).encode(), &[3]).unwrap();
    assert!(load.poll());
    assert_eq!(load.failed_blocks(), [3]);
    wait_for("the old map is gone", || world.pool.maps() == 1);
}

#[test]
fn close_gives_held_saves_back() {
    let (_world, client, mut peer) = world();
    let _held = Held::new("copy_save");
    let save = client.save(&save_ticket(&[3]).encode(), &[6]).unwrap();
    wait_for("held", || holds::reached("copy_save") == 1);
    client.close();
    assert!(save.poll());
    assert_eq!(aborted_slots(&peer.next()), [3]);
    assert!(peer.try_next().is_none());
    assert!(client.save(&save_ticket(&[3]).encode(), &[6]).is_err(), "closed");
}

#[test]
fn fault_switches_do_what_they_say() {
    let (world, client, mut peer) = world();
    let restore = |slot, block| {
        let load = client.restore(&world.pool.restore_ticket(&[slot]).encode(), &[block]).unwrap();
        assert!(load.wait(LONG));
        load.failed_blocks()
    };
    let before = world.kv.bytes();
    holds::set_switch("restore_fault", Some("skip"));
    assert!(restore(4, 1).is_empty());
    assert!(world.kv.bytes() == before, "skip");
    holds::set_switch("restore_fault", Some("zero"));
    assert!(restore(4, 1).is_empty());
    assert!(world.kv.bytes() == with_block(before, 1, &[0; common::PAGE_BYTES]), "zero");
    holds::set_switch("restore_fault", None);
    holds::set_switch("fail_page", Some("2"));
    assert!(restore(4, 1).is_empty());
    assert_eq!(restore(5, 2), [2]);
    assert!(restore(5, 2).is_empty());
    for _ in 0..5 {
        assert_eq!(peer.next().kind, Kind::CopyDone);
    }
}
