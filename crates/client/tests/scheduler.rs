//! The scheduler's client against a scripted manager.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{BOOT, LONG, Manager, hash, stat, wait_for};
use orbitkv_client::{GrantStatus, MAX_HASHES, MissReason, QueryState, SchedulerClient, TicketKind};
use orbitkv_wire::{GrantedBody, HelloRole, Kind, QueryRule, Resume, ToClient, ToManager, WireMiss};
use std::time::Duration;

fn hashes(count: u32) -> Vec<[u8; 32]> {
    (0..count).map(hash).collect()
}

#[test]
fn a_ready_query_gives_a_ticket_once_and_is_released_on_drop() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    let query = client.query(0, &hashes(4), 0).unwrap();
    assert_eq!(query.poll(), QueryState::Pending);
    assert!(query.restore(0, 1).unwrap_err().to_string().contains("pending"));
    let asked = peer.next();
    assert_eq!(
        asked.to_manager(),
        ToManager::Query { group: 0, deadline_ms: 0, rule: QueryRule::default(), hashes: &hashes(4) }
    );
    peer.send(asked.operation(), &ToClient::Waiting);
    peer.ready(asked.operation(), 3);
    assert_eq!(query.wait(LONG), QueryState::Ready);
    assert_eq!(query.pages(), 3);
    assert!(query.restore(1, 3).is_err(), "outside the lease");
    let ticket = query.restore(1, 2).unwrap();
    assert_eq!((ticket.kind, ticket.boot, ticket.scheduler), (TicketKind::Restore, BOOT, 3));
    assert_eq!(ticket.parts.iter().map(|p| (p.index, p.crc)).collect::<Vec<_>>(), [(1, 1), (2, 2)]);
    assert!(query.restore(0, 1).unwrap_err().to_string().contains("restored already"));
    assert_eq!(peer.next().to_manager(), ToManager::Restore { first: 1, pages: 2 }, "what the ticket has");
    drop(query);
    let released = peer.next();
    assert_eq!((released.kind, released.operation()), (Kind::Release, asked.operation()));
    let stats = client.stats();
    assert_eq!((stat(&stats, "hits"), stat(&stats, "hits_pages"), stat(&stats, "misses")), (1, 3, 0));
}

#[test]
fn an_expired_lease_is_given_back_unless_the_workers_have_it() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    let (idle, handed) = (client.query(0, &hashes(1), 0).unwrap(), client.query(0, &hashes(1), 0).unwrap());
    let (first, second) = (peer.next().operation(), peer.next().operation());
    peer.ready(first, 1);
    peer.ready(second, 1);
    assert_eq!((idle.wait(LONG), handed.wait(LONG)), (QueryState::Ready, QueryState::Ready));
    handed.restore(0, 1).unwrap();
    assert_eq!(peer.next().kind, Kind::Restore);
    peer.send(second, &ToClient::Miss(WireMiss::Expired));
    peer.send(first, &ToClient::Miss(WireMiss::Expired));
    let given_back = peer.next();
    assert_eq!((given_back.kind, given_back.operation()), (Kind::Release, first));
    assert_eq!((idle.poll(), idle.miss_reason()), (QueryState::Miss, Some(MissReason::Expired)));
    assert!(idle.restore(0, 1).is_err(), "nothing can be restored from it any more");
    drop(handed);
    let released = peer.next();
    assert_eq!((released.kind, released.operation()), (Kind::Release, second));
}

#[test]
fn a_dropped_pending_query_is_cancelled_and_its_late_answer_ignored() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    let query = client.query(0, &hashes(1), 0).unwrap();
    let first = peer.next().operation();
    query.release();
    query.release();
    assert_eq!(query.miss_reason(), Some(MissReason::Released));
    drop(query);
    let cancelled = peer.next();
    assert_eq!((cancelled.kind, cancelled.operation()), (Kind::Cancel, first));
    peer.ready(first, 1);
    let query = client.query(0, &hashes(1), 0).unwrap();
    let second = peer.next();
    assert_eq!(second.kind, Kind::Query, "nothing else was sent for the first one");
    assert!(second.operation() > first);
    peer.send(second.operation(), &ToClient::Miss(WireMiss::Absent));
    assert_eq!(query.wait(LONG), QueryState::Miss);
    assert_eq!(query.miss_reason(), Some(MissReason::Absent));
    assert_eq!(query.pages(), 0);
}

#[test]
fn a_silent_manager_becomes_a_miss_at_the_deadline_without_a_poll() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    let query = client.query(0, &hashes(1), 30).unwrap();
    let asked = peer.next();
    // Read here, by the manager, and not caused by any call of the engine.
    let cancelled = peer.next();
    assert_eq!((cancelled.kind, cancelled.operation()), (Kind::Cancel, asked.operation()));
    assert_eq!(query.poll(), QueryState::Miss);
    assert_eq!(query.miss_reason(), Some(MissReason::Deadline));
    peer.ready(asked.operation(), 1);
    drop(query);
    let query = client.query(0, &hashes(1), 60_000).unwrap();
    assert_eq!(peer.next().kind, Kind::Query, "a released miss sends nothing");
    assert_eq!(query.wait(Duration::from_millis(50)), QueryState::Pending, "control: a later deadline waits");
    assert_eq!(stat(&client.stats(), "deadline_misses"), 1);
}

#[test]
fn a_lost_connection_ends_everything_and_nothing_of_it_is_sent_later() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    let (pending, ready, handed) = (
        client.query(0, &hashes(1), 0).unwrap(),
        client.query(0, &hashes(1), 0).unwrap(),
        client.query(0, &hashes(1), 0).unwrap(),
    );
    let reservation = client.reserve(0, None, 0, &hashes(2)).unwrap();
    let operations: Vec<u64> = (0..4).map(|_| peer.next().operation()).collect();
    peer.ready(operations[1], 1);
    peer.ready(operations[2], 1);
    peer.send(0, &ToClient::InstanceState { active: true });
    assert_eq!(ready.wait(LONG), QueryState::Ready);
    assert_eq!(handed.wait(LONG), QueryState::Ready);
    wait_for("active", || client.active());
    handed.restore(0, 1).unwrap();
    drop(peer);
    assert_eq!(pending.wait(LONG), QueryState::Miss);
    assert_eq!(pending.miss_reason(), Some(MissReason::Disconnected));
    wait_for("the reservation is impossible", || reservation.poll());
    assert_eq!(reservation.statuses(), [GrantStatus::Refused; 2]);
    assert!(reservation.ticket(&[0]).is_err());
    assert!(ready.restore(0, 1).unwrap_err().to_string().contains("disconnected"));
    assert_eq!(handed.poll(), QueryState::Ready, "its pages are the workers' now");
    assert!(!client.active());

    let (mut peer, hello) = manager.welcome(4);
    assert_eq!(hello.epoch, 2);
    assert_eq!(hello.resume, Some(Resume { session: 3, copies_ended: true }));
    wait_for("connected again", || client.connected());
    for query in [pending, ready, handed] {
        query.release();
    }
    drop(reservation);
    let query = client.query(0, &hashes(1), 0).unwrap();
    let first = peer.next();
    assert_eq!((first.kind, first.operation()), (Kind::Query, 1), "the first thing on the new session");
    assert_eq!(first.header.session.get(), 4);
    assert_eq!(stat(&client.stats(), "reconnects"), 1);
    drop(query);
}

#[test]
fn without_a_manager_every_call_returns_at_once_and_says_why() {
    let manager = Manager::new();
    let mut registration = manager.registration();
    registration.socket.set_file_name("nobody.sock");
    let client = SchedulerClient::new(&registration).unwrap();
    let query = client.query(0, &hashes(1), 500).unwrap();
    assert_eq!((query.poll(), query.miss_reason()), (QueryState::Miss, Some(MissReason::Disconnected)));
    assert!(client.reserve(0, None, 0, &hashes(1)).unwrap().poll());
    wait_for("the reason", || client.status().contains("start orbitkv-cache-manager"));
    assert_eq!(client.boot(), "");
    client.close();
    client.close();
}

#[test]
fn a_manager_that_accepts_but_never_welcomes_stops_nobody() {
    let manager = Manager::new();
    let client = SchedulerClient::new(&manager.registration()).unwrap();
    let (_peer, hello) = manager.accept();
    assert_eq!((hello.role, hello.rank, hello.epoch, &hello.resume), (HelloRole::Scheduler, 0, 1, &None));
    assert_eq!(client.query(0, &hashes(1), 0).unwrap().poll(), QueryState::Miss);
    assert!(!client.connected());
    client.close();
}

#[test]
fn a_rejection_is_kept_for_people() {
    let manager = Manager::new();
    let client = SchedulerClient::new(&manager.registration()).unwrap();
    let (mut peer, _) = manager.accept();
    peer.send(0, &ToClient::Rejected { text: "instance has another world size" });
    wait_for("the text", || client.status().contains("another world size"));
    assert!(peer.try_next().is_none(), "the client closes the connection");
}

#[test]
fn bytes_that_are_no_frame_close_the_connection() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    let query = client.query(0, &hashes(1), 0).unwrap();
    peer.next();
    peer.send_raw(&[0x5a; 200]);
    assert!(peer.try_next().is_none());
    assert_eq!(query.wait(LONG), QueryState::Miss);
    wait_for("the reason", || client.status().contains("magic"));
}

#[test]
fn a_frame_for_another_session_closes_the_connection() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    peer.session = 9;
    peer.send(0, &ToClient::InstanceState { active: true });
    assert!(peer.try_next().is_none());
    wait_for("the reason", || client.status().contains("session 9"));
    assert!(!client.active());
}

#[test]
fn a_manager_that_does_not_read_costs_misses_and_bounded_memory() {
    let manager = Manager::new();
    let (client, _peer) = manager.scheduler(3);
    let hashes = hashes(u32::try_from(MAX_HASHES).unwrap());
    let queries: Vec<_> = (0..40).map(|_| client.query(0, &hashes, 0).unwrap()).collect();
    let refused = queries.iter().filter(|q| q.miss_reason() == Some(MissReason::Limit)).count();
    // Half a MiB each into 4 MiB and what the socket itself holds.
    assert!((20..40).contains(&refused), "{refused} of 40");
    assert!(client.query(0, &[[0; 32]; MAX_HASHES + 1], 0).unwrap().miss_reason() == Some(MissReason::Limit));
}

#[test]
fn a_reservation_gives_each_page_to_one_ticket_and_the_rest_back() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    let reservation = client.reserve(0, Some(hash(77)), 5, &hashes(4)).unwrap();
    let asked = peer.next();
    let parent = Some(hash(77));
    let expected = ToManager::Reserve { group: 0, parent, first_depth: 5, hashes: &hashes(4) };
    assert_eq!(asked.to_manager(), expected);
    assert!(!reservation.poll() && reservation.statuses().is_empty());
    assert!(reservation.ticket(&[0]).is_err(), "not answered");
    let statuses = [0, 1, 0, 0];
    let parts: Vec<_> = [10, 12, 13].map(|slot| common::part(slot, 0)).to_vec();
    let body = GrantedBody { shards: 1, statuses: &statuses, parts: &parts };
    peer.send(asked.operation(), &ToClient::Granted(body));
    wait_for("the grant", || reservation.poll());
    for bad in [&[1][..], &[4], &[0, 0], &[]] {
        assert!(reservation.ticket(bad).is_err(), "{bad:?}");
    }
    let ticket = reservation.ticket(&[3, 0]).unwrap();
    assert_eq!(ticket.hashes, [hash(3), hash(0)]);
    assert_eq!(ticket.parts.iter().map(|p| p.index).collect::<Vec<_>>(), [13, 10]);
    assert!(reservation.ticket(&[2, 0]).is_err(), "page 0 is in a ticket");
    drop(reservation);
    match peer.next().to_manager() {
        ToManager::Abort(slots) => assert_eq!(slots, [parts[1].slot]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_large_reservation_is_asked_for_in_parts_and_is_one_to_its_owner() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    let all = hashes(38);
    let reservation = client.reserve(0, Some(hash(77)), 5, &all).unwrap();
    let mut operations = Vec::new();
    for (range, parent, first_depth) in [(0..16, hash(77), 5), (16..32, all[15], 21), (32..38, all[31], 37)] {
        let asked = peer.next();
        let hashes = &all[range];
        let expected = ToManager::Reserve { group: 0, parent: Some(parent), first_depth, hashes };
        assert_eq!(asked.to_manager(), expected);
        operations.push(asked.operation());
    }
    // In whatever order the answers come; a part that is refused is refused alone.
    peer.grant(operations[2], 6, 200);
    peer.send(operations[1], &ToClient::Refused { text: "limit reached: open reservations" });
    peer.grant(operations[0], 16, 100);
    wait_for("the grants", || reservation.poll());
    let statuses = reservation.statuses();
    let slots = |range: std::ops::Range<usize>| statuses[range].iter().all(|s| *s == GrantStatus::Slots);
    assert!(slots(0..16) && slots(32..38) && statuses[16..32] == [GrantStatus::Refused; 16], "{statuses:?}");
    assert!(reservation.ticket(&[15, 32, 20]).is_err(), "page 20 has no slot");
    let ticket = reservation.ticket(&[15, 32, 33]).unwrap();
    assert_eq!(ticket.hashes, [all[15], all[32], all[33]]);
    assert_eq!(ticket.parts.iter().map(|p| p.index).collect::<Vec<_>>(), [115, 200, 201]);
    drop(reservation);
    let mut back = Vec::new();
    while back.len() < 19 {
        match peer.next().to_manager() {
            ToManager::Abort(slots) => back.extend(slots.iter().map(|s| s.index.get())),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(back, (100..115).chain(202..206).collect::<Vec<_>>());
}

#[test]
fn a_reservation_dropped_before_its_answer_gives_everything_back() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    drop(client.reserve(0, None, 0, &hashes(2)).unwrap());
    let asked = peer.next();
    peer.grant(asked.operation(), 2, 6);
    match peer.next().to_manager() {
        ToManager::Abort(slots) => {
            assert_eq!(slots.iter().map(|s| s.index.get()).collect::<Vec<_>>(), [6, 7]);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_refused_query_is_a_miss_and_its_text_is_kept() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    let query = client.query(0, &hashes(1), 0).unwrap();
    let operation = peer.next().operation();
    peer.send(operation, &ToClient::Refused { text: "limit reached: operations" });
    assert_eq!(query.wait(LONG), QueryState::Miss);
    assert_eq!(query.miss_reason(), Some(MissReason::Refused));
    assert!(client.status().contains("limit reached"));
    assert!(client.query(9, &hashes(1), 0).is_err(), "a group that is not registered");
}

#[test]
fn a_reset_outlives_the_connection_and_goes_before_any_query() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    let done = client.reset().unwrap();
    let asked = peer.next();
    assert_eq!(asked.kind, Kind::Reset);
    peer.send(asked.operation(), &ToClient::ResetDone);
    assert!(done.wait(LONG));
    let lost = client.reset().unwrap();
    assert_eq!(peer.next().kind, Kind::Reset);
    drop(peer);
    wait_for("disconnected", || !client.connected());
    let meanwhile = client.reset().unwrap();
    let (mut peer, _) = manager.welcome(4);
    wait_for("connected", || client.connected());
    let _query = client.query(0, &hashes(1), 0).unwrap();
    let first = peer.next();
    assert_eq!(first.kind, Kind::Reset);
    assert_eq!(peer.next().kind, Kind::Query, "both resets in one");
    assert!(!lost.poll() && !meanwhile.poll());
    peer.send(first.operation(), &ToClient::ResetDone);
    assert!(lost.wait(LONG) && meanwhile.wait(LONG));
}
