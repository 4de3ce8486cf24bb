//! Preparations and warm-ups against a scripted manager.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Frame, LONG, Manager, Peer, hash, stat, wait_for};
use orbitkv_client::{Demand, MissReason, Preparation, PreparationState, QueryState, SchedulerClient};
use orbitkv_wire::{Kind, QueryMode, QueryRule, ToClient, ToManager, WireMiss};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

const PREPARE: QueryRule =
    QueryRule { mode: QueryMode::Prepare, strict: false, wait_full_prefix: false, memory_only: false };

fn hashes(count: u32) -> Vec<[u8; 32]> {
    (0..count).map(hash).collect()
}

/// A preparation of three pages and its operation.
fn prepare(client: &SchedulerClient, peer: &mut Peer) -> (Preparation, u64) {
    let preparation = client.prepare(0, &hashes(3)).unwrap();
    let asked = peer.next();
    let hashes = &hashes(3);
    let expected = ToManager::Query { group: 0, deadline_ms: 0, rule: PREPARE, hashes };
    assert_eq!(asked.to_manager(), expected);
    (preparation, asked.operation())
}

fn prepared(preparation: &Preparation, peer: &mut Peer, operation: u64) {
    peer.send(operation, &ToClient::Waiting);
    peer.send(operation, &ToClient::Prepared { pages: 3 });
    wait_for("prepared", || preparation.poll() == PreparationState::Prepared);
}

/// The rule, deadline and id of a demand for three pages.
fn demand(frame: &Frame) -> (QueryRule, u32, u64) {
    match frame.to_manager() {
        ToManager::Query { group: 0, deadline_ms, rule, hashes: asked } => {
            assert_eq!((asked, frame.header.revision.get()), (&hashes(3)[..], 1));
            (rule, deadline_ms, frame.operation())
        }
        other => panic!("{other:?}"),
    }
}

/// Past any keep: what the client had to say it has said.
fn next_but_keeps(peer: &mut Peer) -> Frame {
    loop {
        let frame = peer.next();
        if frame.kind != Kind::Keep {
            return frame;
        }
    }
}

fn missed(preparation: &Preparation, reason: MissReason) {
    wait_for(reason.name(), || preparation.miss_reason().is_some());
    assert_eq!(preparation.miss_reason(), Some(reason));
    assert_eq!((preparation.poll(), preparation.pages()), (PreparationState::Miss, 0));
}

#[test]
fn a_claim_is_the_demand_of_the_same_operation() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    let (preparation, operation) = prepare(&client, &mut peer);
    assert_eq!((preparation.poll(), preparation.pages()), (PreparationState::Pending, 0));
    prepared(&preparation, &mut peer, operation);
    assert_eq!((preparation.pages(), preparation.miss_reason()), (3, None));
    let query = preparation.claim(5_000).unwrap();
    assert_eq!(demand(&next_but_keeps(&mut peer)), (QueryRule::default(), 5_000, operation));
    assert!(preparation.claim(0).is_err_and(|e| e.to_string().contains("claimed before")));
    missed(&preparation, MissReason::Released);
    // Spent: this ends nothing.
    preparation.cancel();
    drop(preparation);
    peer.ready(operation, 3);
    assert_eq!((query.wait(LONG), query.pages()), (QueryState::Ready, 3));
    assert_eq!(query.restore(0, 3).unwrap().operation, operation);
    assert_eq!(next_but_keeps(&mut peer).kind, Kind::Restore, "no cancel before it");
    let stats = client.stats();
    let names = ["queries", "hits", "preparations", "preparations_claimed"];
    assert_eq!(names.map(|name| stat(&stats, name)), [1; 4]);
}

#[test]
fn polls_renew_in_one_batch_and_only_polls() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    let start = Instant::now();
    let (first, second, third) =
        (prepare(&client, &mut peer), prepare(&client, &mut peer), prepare(&client, &mut peer));
    let (mut both, mut keeps) = (false, 0);
    std::thread::scope(|scope| {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (first, second, third) = (&first, &second, &third);
        let poll = move || {
            // Also when this test fails: the sender is gone then.
            while stopped.recv_timeout(Duration::from_millis(5)) == Err(RecvTimeoutError::Timeout) {
                // Looks at the second one are no polls.
                let _ = (first.0.poll(), third.0.poll(), second.0.pages(), second.0.miss_reason());
            }
        };
        let poller = scope.spawn(poll);
        loop {
            assert!(start.elapsed() < LONG, "never let go");
            let frame = peer.next();
            if frame.kind == Kind::Cancel {
                assert_eq!(frame.operation(), second.1);
                break;
            }
            match frame.to_manager() {
                ToManager::Keep(items) => {
                    let named: Vec<_> = items.iter().map(|i| (i.operation.get(), i.revision.get())).collect();
                    assert!(
                        named.iter().all(|item| [(first.1, 1), (third.1, 1)].contains(item)),
                        "{named:?}"
                    );
                    both |= named.len() == 2;
                }
                other => panic!("{other:?}"),
            }
            keeps += 1;
            assert!(keeps * 250 <= start.elapsed().as_millis(), "at most one in 250 ms");
        }
        stop.send(()).unwrap();
        poller.join().unwrap();
    });
    assert!(start.elapsed() >= Duration::from_millis(900), "{:?}", start.elapsed());
    assert!(both, "one message names all that were polled");
    missed(&second.0, MissReason::Expired);
    assert_eq!(first.0.poll(), PreparationState::Pending, "control: a polled one lives on");
    assert_eq!(stat(&client.stats(), "preparations_expired"), 1);
}

#[test]
fn a_claim_of_an_expired_one_is_a_query_of_its_own() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    let (preparation, operation) = prepare(&client, &mut peer);
    prepared(&preparation, &mut peer, operation);
    let cancelled = next_but_keeps(&mut peer);
    assert_eq!((cancelled.kind, cancelled.operation()), (Kind::Cancel, operation));
    let query = preparation.claim(0).unwrap();
    let (rule, deadline_ms, anew) = demand(&next_but_keeps(&mut peer));
    assert_eq!((rule, deadline_ms), (QueryRule::default(), 0));
    assert!(anew > operation);
    peer.ready(anew, 1);
    assert_eq!(query.wait(LONG), QueryState::Ready);
    let stats = client.stats();
    assert_eq!((stat(&stats, "preparations_claimed"), stat(&stats, "preparations_expired")), (0, 1));
}

#[test]
fn a_refused_claim_is_asked_again_and_nobody_notices() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    // What the manager had said before the claim arrived makes no difference.
    for early in [None, Some(WireMiss::Expired), Some(WireMiss::Budget)] {
        let (preparation, operation) = prepare(&client, &mut peer);
        let query = preparation.claim(10_000).unwrap();
        assert_eq!(demand(&next_but_keeps(&mut peer)).2, operation);
        if let Some(reason) = early {
            peer.send(operation, &ToClient::Miss(reason));
        }
        peer.send(operation, &ToClient::Refused { text: "operation has ended" });
        let (rule, deadline_ms, anew) = demand(&next_but_keeps(&mut peer));
        assert_eq!(rule, QueryRule::default());
        assert!((1..=10_000).contains(&deadline_ms), "what is left of it: {deadline_ms}");
        assert!(anew > operation);
        assert_eq!(query.poll(), QueryState::Pending);
        peer.ready(anew, 2);
        assert_eq!((query.wait(LONG), query.pages()), (QueryState::Ready, 2));
        assert_eq!(query.restore(0, 2).unwrap().operation, anew);
        assert_eq!(next_but_keeps(&mut peer).kind, Kind::Restore);
        drop(query);
        let released = next_but_keeps(&mut peer);
        assert_eq!((released.kind, released.operation()), (Kind::Release, anew));
    }
    assert_eq!(stat(&client.stats(), "refusals"), 0);
    assert!(!client.status().contains("refusal"), "{}", client.status());
    // Control: asked again once only.
    let (preparation, operation) = prepare(&client, &mut peer);
    let query = preparation.claim(0).unwrap();
    next_but_keeps(&mut peer);
    peer.send(operation, &ToClient::Refused { text: "operation has ended" });
    let anew = next_but_keeps(&mut peer).operation();
    peer.send(anew, &ToClient::Refused { text: "limit reached" });
    assert_eq!(query.wait(LONG), QueryState::Miss);
    assert_eq!(query.miss_reason(), Some(MissReason::Refused));
}

#[test]
fn a_claim_whose_time_has_passed_is_not_asked_again() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    let (preparation, operation) = prepare(&client, &mut peer);
    let query = preparation.claim(60_000).unwrap();
    assert_eq!(demand(&next_but_keeps(&mut peer)).1, 60_000);
    peer.send(operation, &ToClient::Miss(WireMiss::Deadline));
    assert_eq!(query.wait(LONG), QueryState::Miss);
    assert_eq!(query.miss_reason(), Some(MissReason::Deadline));
    let _other = client.query(0, &hashes(3), 0).unwrap();
    let next = demand(&next_but_keeps(&mut peer));
    assert_eq!(next, (QueryRule::default(), 0, operation + 1), "nothing was asked between");
}

#[test]
fn a_released_claim_is_cancelled_under_the_id_it_has_then() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    let (preparation, operation) = prepare(&client, &mut peer);
    let query = preparation.claim(0).unwrap();
    next_but_keeps(&mut peer);
    peer.send(operation, &ToClient::Refused { text: "operation has ended" });
    let anew = next_but_keeps(&mut peer).operation();
    query.release();
    let cancelled = next_but_keeps(&mut peer);
    assert_eq!((cancelled.kind, cancelled.operation()), (Kind::Cancel, anew));
    // One that is released before any answer: its refusal concerns nobody.
    let (preparation, operation) = prepare(&client, &mut peer);
    preparation.claim(0).unwrap().release();
    assert_eq!(next_but_keeps(&mut peer).kind, Kind::Query);
    let cancelled = next_but_keeps(&mut peer);
    assert_eq!((cancelled.kind, cancelled.operation()), (Kind::Cancel, operation));
    peer.send(operation, &ToClient::Refused { text: "operation has ended" });
    let query = client.query(0, &hashes(3), 0).unwrap();
    let after = next_but_keeps(&mut peer).operation();
    peer.ready(after, 1);
    assert_eq!(query.wait(LONG), QueryState::Ready);
    assert_eq!(stat(&client.stats(), "refusals"), 0);
}

#[test]
fn a_skipped_one_says_why_and_is_not_cancelled() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    let reasons = [
        (WireMiss::Budget, MissReason::Budget),
        (WireMiss::Limit, MissReason::Limit),
        (WireMiss::Absent, MissReason::Absent),
    ];
    for (sent, reason) in reasons {
        let (preparation, operation) = prepare(&client, &mut peer);
        peer.send(operation, &ToClient::Miss(sent));
        missed(&preparation, reason);
    }
    assert_eq!(stat(&client.stats(), "preparations_skipped"), 3);
    let (preparation, operation) = prepare(&client, &mut peer);
    drop(preparation);
    let cancelled = next_but_keeps(&mut peer);
    assert_eq!((cancelled.kind, cancelled.operation()), (Kind::Cancel, operation), "control: a live one is");
}

#[test]
fn at_most_four_are_unclaimed_at_once() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    missed(&client.prepare(0, &[]).unwrap(), MissReason::Absent);
    let mut live: Vec<_> = (0..4).map(|_| prepare(&client, &mut peer)).collect();
    let over = client.prepare(0, &hashes(3)).unwrap();
    missed(&over, MissReason::Limit);
    let (claimed, operation) = live.pop().unwrap();
    let _query = claimed.claim(0).unwrap();
    assert_eq!(demand(&next_but_keeps(&mut peer)).2, operation, "nothing was sent for the fifth");
    let (fifth, _) = prepare(&client, &mut peer);
    assert_eq!(fifth.poll(), PreparationState::Pending);
    // One that was never sent is claimed as any other.
    let _query = over.claim(0).unwrap();
    assert_eq!(demand(&next_but_keeps(&mut peer)).0, QueryRule::default());
    assert!(client.prepare(9, &hashes(1)).is_err(), "a group that is not registered");
}

#[test]
fn a_lost_connection_ends_it_and_a_claim_asks_on_the_next() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    let (preparation, operation) = prepare(&client, &mut peer);
    let (dropped, _) = prepare(&client, &mut peer);
    prepared(&preparation, &mut peer, operation);
    drop(peer);
    missed(&preparation, MissReason::Disconnected);
    let (mut peer, _) = manager.welcome(4);
    wait_for("connected", || client.connected());
    // The next session's first operation has the id of the lost one.
    let (other, same) = prepare(&client, &mut peer);
    assert_eq!(same, operation);
    dropped.cancel();
    drop(dropped);
    let query = preparation.claim(0).unwrap();
    let (rule, _, anew) = demand(&next_but_keeps(&mut peer));
    assert_eq!((rule, anew), (QueryRule::default(), operation + 1));
    assert_eq!(other.poll(), PreparationState::Pending);
    peer.ready(anew, 1);
    assert_eq!(query.wait(LONG), QueryState::Ready);
}

#[test]
fn a_warm_up_is_sent_and_forgotten() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    assert!(client.warm_up(0, &hashes(3)).unwrap() && client.warm_up(0, &hashes(3)).unwrap());
    let (first, second) = (peer.next(), peer.next());
    let warm_up = QueryRule { mode: QueryMode::WarmUp, ..QueryRule::default() };
    assert_eq!(demand(&first).0, warm_up);
    peer.send(first.operation(), &ToClient::Waiting);
    peer.send(first.operation(), &ToClient::Warmed { pages: 2 });
    peer.send(second.operation(), &ToClient::Miss(WireMiss::Budget));
    let counted = || ["warm_ups", "warmed_pages", "warm_ups_skipped"].map(|name| stat(&client.stats(), name));
    wait_for("both have ended", || counted() == [2, 2, 1]);
    assert_eq!(stat(&client.stats(), "misses"), 0, "no lookup");
    let sent = (0..65).filter(|_| client.warm_up(0, &hashes(3)).unwrap()).count();
    assert_eq!(sent, 64, "unanswered ones are bounded");
    assert!(!client.warm_up(0, &[]).unwrap());
    drop(peer);
    wait_for("disconnected", || !client.connected());
    assert!(!client.warm_up(0, &hashes(3)).unwrap());
}

#[test]
fn a_demand_says_what_answer_it_takes() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    let strict = client.demand(0, &hashes(3), Demand { strict: true, ..Demand::default() }).unwrap();
    let rule = QueryRule { strict: true, ..QueryRule::default() };
    assert_eq!(demand(&peer.next()), (rule, 0, 1));
    let patient = Demand { deadline_ms: 20, wait_full_prefix: true, ..Demand::default() };
    let patient = client.demand(0, &hashes(3), patient).unwrap();
    let rule = QueryRule { wait_full_prefix: true, ..QueryRule::default() };
    assert_eq!(demand(&peer.next()), (rule, 20, 2));
    assert_eq!(patient.wait(Duration::from_millis(200)), QueryState::Pending, "its deadline ends nothing");
    let rule = QueryRule { memory_only: true, ..QueryRule::default() };
    let modest = client.demand(0, &hashes(3), Demand { memory_only: true, ..Demand::default() }).unwrap();
    assert_eq!(demand(&peer.next()), (rule, 0, 3));
    drop((strict, patient, modest));
}

#[test]
fn what_the_tier_had_to_do_is_summed_up() {
    let (begun, manager) = (Instant::now(), Manager::new());
    let (client, mut peer) = manager.scheduler(3);
    let query = client.query(0, &hashes(3), 0).unwrap();
    let asked = peer.next();
    let hour = 3_600_000_000;
    peer.send(asked.operation(), &ToClient::TierReads { pages: 2, left_pages: 1, micros: 700 });
    peer.send(asked.operation(), &ToClient::TierReads { pages: 0, left_pages: 3, micros: hour });
    peer.send(asked.operation(), &ToClient::TierReads { pages: 0, left_pages: 4, micros: 0 });
    peer.send(asked.operation(), &ToClient::Miss(WireMiss::Absent));
    assert_eq!(query.wait(LONG), QueryState::Miss);
    let names = ["tier_reads", "tier_read_pages", "tier_left", "tier_left_pages"];
    assert_eq!(names.map(|name| stat(&client.stats(), name)), [2, 2, 1, 4]);
    let (micros, most) = (stat(&client.stats(), "tier_read_us"), begun.elapsed().as_micros());
    assert!(micros > 0 && u128::from(micros) <= most, "what overlaps counts once: {micros} of {most} us");
}

#[test]
fn a_prepared_nothing_closes_the_connection() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    let (_preparation, operation) = prepare(&client, &mut peer);
    peer.send(operation, &ToClient::Prepared { pages: 0 });
    assert!(peer.try_next().is_none());
    wait_for("the reason", || client.status().contains("prepared with no pages"));
}
