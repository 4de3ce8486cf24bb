//! Recoveries and candidates against a scripted manager.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{LONG, Manager, Peer, hash, part, stat, wait_for};
use orbitkv_client::{
    GroupRange, GroupSpec, MissReason, QueryState, RecoveryDemand, SchedulerClient, Section,
};
use orbitkv_wire::{Kind, QueryMode, RecoveredBody, RecoveredItem, ToClient, ToManager, WireMiss};
use std::time::Duration;

/// A scheduler of full attention and a window of two pages.
fn hybrid(manager: &Manager) -> (SchedulerClient, Peer) {
    let mut registration = manager.registration();
    let window = GroupSpec { group: 1, rule: "window:32".to_owned(), ..registration.groups[0].clone() };
    registration.groups.push(window);
    let client = SchedulerClient::new(&registration).unwrap();
    let (peer, hello) = manager.welcome(1);
    assert_eq!((hello.groups[1].rule.as_str(), hello.hash_tokens), ("window:32", 0));
    wait_for("the scheduler is connected", || client.connected());
    (client, peer)
}

fn hashes() -> Vec<[u8; 32]> {
    (0..4).map(hash).collect()
}

/// Pages 0 to 4 and 2 to 4.
fn demand(client: &SchedulerClient) -> RecoveryDemand {
    let demand = client.recovery(0, 64, &hashes()).unwrap();
    let range = |group, first_page| GroupRange { group, first_page, end_page: 4 };
    assert_eq!(demand.ranges, [range(0, 0), range(1, 2)]);
    demand
}

/// The operation of a recovery, which must ask for all of it.
fn asked(peer: &mut Peer, mode: QueryMode, deadline_ms: u32) -> u64 {
    let frame = peer.next();
    match frame.to_manager() {
        ToManager::Recover(body) => {
            assert_eq!((body.start_tokens, body.end_tokens), (0, 64));
            assert_eq!((body.mode, body.deadline_ms, body.hashes), (mode, deadline_ms, &hashes()[..]));
            let named = |r: &orbitkv_wire::RangeItem| (r.group.get(), r.first_page.get(), r.end_page.get());
            assert_eq!(body.ranges.iter().map(named).collect::<Vec<_>>(), [(0, 0, 4), (1, 2, 4)]);
        }
        other => panic!("{other:?}"),
    }
    frame.operation()
}

/// All of it, in one shard.
fn recovered(peer: &mut Peer, operation: u64) {
    let item = |group: u16, first_page: u32, pages: u32| RecoveredItem {
        group: group.into(),
        shards: 1.into(),
        first_page: first_page.into(),
        pages: pages.into(),
    };
    let parts: Vec<_> = (0..6).map(|index| part(index, 7)).collect();
    let ranges = [item(0, 0, 4), item(1, 2, 2)];
    peer.send(operation, &ToClient::Recovered(RecoveredBody { ranges: &ranges, parts: &parts }));
}

#[test]
fn a_recovery_becomes_a_ticket_of_all_its_groups() {
    let manager = Manager::new();
    let (client, mut peer) = hybrid(&manager);
    let query = client.read_recovery(&demand(&client), 500);
    let operation = asked(&mut peer, QueryMode::Demand, 500);
    recovered(&mut peer, operation);
    assert_eq!(query.wait(LONG), QueryState::Ready);
    let section = |group, first_page, pages| Section { group, first_page, pages, shards: 1 };
    assert_eq!(query.sections(), [section(0, 0, 4), section(1, 2, 2)]);
    for (first, count) in [(0, 5), (1, 5), (0, 7), (0, 0)] {
        let text = query.restore(first, count).unwrap_err().to_string();
        assert!(text.contains("0 and 6, all pages of the recovery"), "{text}");
    }
    let ticket = query.restore(0, 6).unwrap();
    assert_eq!((&ticket.sections[..], ticket.parts.len()), (query.sections(), 6));
    assert_eq!(peer.next().to_manager(), ToManager::Restore { first: 0, pages: 6 });
}

#[test]
fn a_recovery_of_one_group_is_no_prefix_either() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(1);
    let query = client.read_recovery(&client.recovery(0, 64, &hashes()).unwrap(), 0);
    let operation = peer.next().operation();
    let range = RecoveredItem { shards: 1.into(), pages: 4.into(), ..RecoveredItem::default() };
    let parts: Vec<_> = (0..4).map(|index| part(index, 7)).collect();
    peer.send(operation, &ToClient::Recovered(RecoveredBody { ranges: &[range], parts: &parts }));
    assert_eq!(query.wait(LONG), QueryState::Ready);
    for (first, count) in [(0, 3), (1, 3)] {
        let text = query.restore(first, count).unwrap_err().to_string();
        assert!(text.contains("0 and 4, all pages of the recovery"), "{text}");
    }
    assert_eq!(query.restore(0, 4).unwrap().parts.len(), 4);
    assert_eq!(peer.next().to_manager(), ToManager::Restore { first: 0, pages: 4 });
}

#[test]
fn a_prepared_recovery_is_claimed_as_the_same_demand() {
    let manager = Manager::new();
    let (client, mut peer) = hybrid(&manager);
    let preparation = client.prepare_recovery(&demand(&client));
    let operation = asked(&mut peer, QueryMode::Prepare, 0);
    peer.send(operation, &ToClient::Prepared { pages: 6 });
    wait_for("prepared", || preparation.pages() == 6);
    let query = preparation.claim(300).unwrap();
    assert_eq!(asked(&mut peer, QueryMode::Demand, 300), operation, "the same operation");
    // It had expired: the same demand is asked for once more, under a name of its own.
    peer.send(operation, &ToClient::Refused { text: "operation has ended" });
    let again = peer.next();
    assert!(again.operation() > operation && matches!(again.to_manager(), ToManager::Recover(_)));
    recovered(&mut peer, again.operation());
    assert_eq!((query.wait(LONG), query.pages()), (QueryState::Ready, 6));
}

#[test]
fn candidates_are_answered_once_and_by_nobody_not_at_all() {
    let manager = Manager::new();
    let (client, mut peer) = hybrid(&manager);
    let found = client.candidates(16, &hashes());
    let frame = peer.next();
    assert_eq!(frame.to_manager(), ToManager::Candidates { start_tokens: 16, hashes: &hashes() });
    assert_eq!((found.poll(), found.wait(Duration::from_millis(5))), (None, None));
    peer.send(frame.operation(), &ToClient::Candidates(&[32.into(), 64.into()]));
    assert_eq!(found.wait(LONG), Some(&[32, 64][..]));
    peer.send(frame.operation(), &ToClient::Candidates(&[]));
    let refused = client.candidates(8, &hashes());
    let operation = peer_operation(&mut peer);
    peer.send(operation, &ToClient::Refused { text: "start 8 is no boundary" });
    assert_eq!(refused.wait(LONG), Some(&[][..]));
    assert_eq!(found.poll(), Some(&[32, 64][..]), "the first answer stays");
    assert!(client.status().contains("start 8 is no boundary"));
    // Nobody waits for that answer any more; it changes nothing.
    let dropped = client.candidates(0, &hashes());
    let operation = peer_operation(&mut peer);
    drop(dropped);
    peer.send(operation, &ToClient::Candidates(&[32.into()]));
    let lost = client.candidates(0, &hashes());
    peer_operation(&mut peer);
    drop(peer);
    assert_eq!(lost.wait(LONG), Some(&[][..]), "the connection is gone");
    assert_eq!(client.candidates(0, &hashes()).poll(), Some(&[][..]));
    assert_eq!(stat(&client.stats(), "candidate_queries"), 4);
}

fn peer_operation(peer: &mut Peer) -> u64 {
    let frame = peer.next();
    assert_eq!(frame.kind, Kind::Candidates);
    frame.operation()
}

#[test]
fn a_recovery_is_a_miss_when_the_manager_says_so_and_without_one() {
    let manager = Manager::new();
    let (client, mut peer) = hybrid(&manager);
    let demand = demand(&client);
    let absent = client.read_recovery(&demand, 0);
    let operation = asked(&mut peer, QueryMode::Demand, 0);
    peer.send(operation, &ToClient::Miss(WireMiss::Absent));
    assert_eq!((absent.wait(LONG), absent.miss_reason()), (QueryState::Miss, Some(MissReason::Absent)));
    drop(peer);
    wait_for("the connection is gone", || !client.connected());
    let gone = client.read_recovery(&demand, 0);
    assert_eq!((gone.poll(), gone.miss_reason()), (QueryState::Miss, Some(MissReason::Disconnected)));
    let preparation = client.prepare_recovery(&demand);
    assert_eq!(preparation.miss_reason(), Some(MissReason::Disconnected));
}

#[test]
fn what_the_contract_does_not_allow_never_leaves_the_process() {
    let manager = Manager::new();
    let (client, _peer) = hybrid(&manager);
    let text = |start, end| client.recovery(start, end, &hashes()).unwrap_err().to_string();
    assert!(text(0, 80).contains("past the 64 tokens that the 4 hashes cover"));
    assert!(text(0, 24).contains("end 24 is no boundary; boundaries are multiples of 16 tokens"));
    assert!(text(32, 32).contains("from token 32 to 32 is empty"));
}
