//! Copies in the middle of a step, on an engine whose time stands still until told otherwise.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Kv, LONG, Manager, Peer, Pool, SCHEDULER, save_ticket, stat, wait_for};
use orbitkv_client::{Verify, WorkerClient};
use orbitkv_copy::{FakeCopy, FakePlan};
use orbitkv_wire::{Kind, Resume, ToClient, ToManager};
use std::time::Duration;

const STEP_US: u64 = 10;
/// In the middle of the first step, and after the last.
const MIDDLE_US: u64 = 5;
const END_US: u64 = 1_000;

struct World {
    manager: Manager,
    kv: Kv,
    pool: Pool,
    clock: FakeCopy,
}

fn world() -> (World, WorkerClient, Peer) {
    let (manager, kv, pool) = (Manager::new(), Kv::new(), Pool::new());
    let mut clock = None;
    let config = manager.worker_config(&kv, &Kv::new(), false, Verify::All);
    let client = WorkerClient::with_engine(config, |waker| {
        let engine = FakeCopy::new(128, Some(waker));
        engine.plan_all(FakePlan { step_us: STEP_US, ..FakePlan::default() });
        clock = Some(engine.clone());
        Ok(Box::new(engine))
    });
    let (mut peer, _) = manager.welcome(2);
    assert_eq!(peer.next().kind, Kind::Attest);
    peer.send_segment(0, &pool.segment);
    (World { manager, kv, pool, clock: clock.unwrap() }, client.unwrap(), peer)
}

impl World {
    /// Brings the next job into the middle of its first step.
    fn start(&self) {
        wait_for("the engine has it", || self.clock.jobs_held() == 1);
        self.clock.advance(MIDDLE_US);
    }
}

#[test]
fn a_fence_returns_only_when_the_running_step_is_at_rest() {
    let (world, client, mut peer) = world();
    let save = client.save(&save_ticket(&[3]).encode(), &[6]).unwrap();
    world.start();
    std::thread::scope(|scope| {
        let fence = scope.spawn(|| client.fence(&[6], Duration::ZERO));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!fence.is_finished() && !save.poll(), "bytes are moving");
        world.clock.advance(END_US);
        assert_eq!(fence.join().unwrap(), 1);
    });
    assert!(save.wait(LONG));
    assert_eq!(peer.next().kind, Kind::Abort);
    assert_eq!((save.committed(), stat(&client.stats(), "aborted_pages")), (0, 1));
}

#[test]
fn inflight_bytes_and_the_load_end_with_custody() {
    let (world, client, mut peer) = world();
    let load = client.restore(&world.pool.restore_ticket(&[4]).encode(), &[2]).unwrap();
    world.start();
    assert!(!load.abort(Duration::from_millis(5)), "a step is running");
    assert!(!load.poll());
    assert_eq!(stat(&client.stats(), "load_inflight_bytes"), common::PAGE_BYTES as u64);
    world.clock.advance(END_US);
    assert!(load.abort(LONG));
    assert_eq!(load.failed_blocks(), [2]);
    assert_eq!(stat(&client.stats(), "load_inflight_bytes"), 0);
    assert_eq!(peer.next().kind, Kind::CopyDone);
}

#[test]
fn a_fenced_scheduler_is_answered_after_its_running_copies() {
    let (world, client, mut peer) = world();
    let load = client.restore(&world.pool.restore_ticket(&[4]).encode(), &[2]).unwrap();
    world.start();
    peer.send(0, &ToClient::Fence { scheduler: SCHEDULER });
    // Of another scheduler, and so answered at once: the first fence has been read by then.
    peer.send(0, &ToClient::Fence { scheduler: SCHEDULER - 1 });
    assert_eq!(peer.next().to_manager(), ToManager::Fenced { scheduler: SCHEDULER - 1 });
    assert!(!load.poll());
    world.clock.advance(END_US);
    assert_eq!(peer.next().kind, Kind::CopyDone);
    assert_eq!(peer.next().to_manager(), ToManager::Fenced { scheduler: SCHEDULER });
    assert!(load.failed_blocks().is_empty(), "it ended by itself");
}

#[test]
fn a_restore_outlives_its_session_and_its_end_is_attested_on_the_next() {
    let (world, client, peer) = world();
    let load = client.restore(&world.pool.restore_ticket(&[4]).encode(), &[2]).unwrap();
    world.start();
    drop(peer);
    let (mut peer, hello) = world.manager.welcome(8);
    assert_eq!(hello.resume, Some(Resume { session: 2, copies_ended: false }));
    assert_eq!(peer.next().kind, Kind::Attest);
    assert_eq!(world.pool.maps(), 2, "the copy holds its segment");
    world.clock.advance(END_US);
    assert_eq!(peer.next().to_manager(), ToManager::CopiesEnded { session: 2 });
    assert!(load.wait(LONG) && load.failed_blocks().is_empty());
    assert!(world.kv.payload(2) == world.pool.payload(4));
    wait_for("the old map is gone", || world.pool.maps() == 1);
}

#[test]
fn the_end_of_copies_is_said_again_on_the_next_connection() {
    let (world, client, peer) = world();
    let load = client.restore(&world.pool.restore_ticket(&[4]).encode(), &[2]).unwrap();
    world.start();
    drop(peer);
    let (mut peer, _) = world.manager.welcome(8);
    assert_eq!(peer.next().kind, Kind::Attest);
    world.clock.advance(END_US);
    assert!(load.wait(LONG));
    assert_eq!(peer.next().to_manager(), ToManager::CopiesEnded { session: 2 });
    // For all the client knows, the manager has not read that.
    drop(peer);
    let (mut peer, hello) = world.manager.welcome(9);
    assert_eq!(hello.resume, Some(Resume { session: 8, copies_ended: true }));
    // By different threads, in any order.
    let said: Vec<_> = (0..2).map(|_| peer.next()).collect();
    assert!(said.iter().any(|frame| frame.kind == Kind::Attest));
    let again = said.iter().find(|frame| frame.kind == Kind::CopiesEnded).expect("it is said again");
    assert_eq!(again.to_manager(), ToManager::CopiesEnded { session: 2 });
}

#[test]
fn a_failed_copy_gives_its_slot_back_and_fails_its_pages() {
    let (world, client, mut peer) = world();
    world.clock.plan_all(FakePlan { fail_at_step: Some(0), ..FakePlan::default() });
    let save = client.save(&save_ticket(&[3]).encode(), &[6]).unwrap();
    wait_for("the engine has it", || world.clock.jobs_held() == 1);
    world.clock.advance(END_US);
    assert_eq!(peer.next().kind, Kind::Abort);
    assert!(save.poll() && save.committed() == 0);
    let load = client.restore(&world.pool.restore_ticket(&[4]).encode(), &[2]).unwrap();
    wait_for("the engine has it", || world.clock.jobs_held() == 1);
    world.clock.advance(END_US * 2);
    assert!(load.wait(LONG));
    assert_eq!(load.failed_blocks(), [2]);
    assert!(!load.wait_layer(0, LONG), "no layer counts of a restore that failed");
    assert_eq!(peer.next().kind, Kind::CopyDone);
}
