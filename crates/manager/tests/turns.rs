//! Whoever sends much at once does not keep the others waiting until all of it is handled.

mod support;

use orbitkv_wire::{Hash, Kind, QueryRule, ToClient, ToManager};
use std::io::Write;
use support::{Engine, Manager, hash, hello, wait_for};

/// What one connection sends in one go: less than its socket holds, and far more work than a turn.
const QUESTIONS: u64 = 60;
const HASHES: u64 = 25;

fn question(hashes: &[Hash]) -> ToManager<'_> {
    ToManager::Query { group: 0, deadline_ms: 0, rule: QueryRule::default(), hashes }
}

#[test]
fn a_question_is_answered_before_another_connections_flood_is_handled() {
    let manager = Manager::start();
    let mut flooding = Engine::with_hello(&manager.socket, &hello(1, 1, 1));
    let mut asking = Engine::with_hello(&manager.socket, &hello(2, 2, 1));
    asking.save(&[1]);
    wait_for("the page", || (manager.status()["pool"]["pages"] == 1).then_some(()));

    let absent: Vec<Hash> = (0..HASHES).map(|i| hash(100 + i)).collect();
    let mut flood = Vec::new();
    let first = flooding.next_operation();
    for operation in first..first + QUESTIONS {
        flood.extend(flooding.frame(&question(&absent), operation, 0));
    }
    // The last of it takes away what the other one asks for.
    flood.extend(flooding.frame(&ToManager::Forget { group: 0, hashes: &[hash(1)] }, 0, 0));
    manager.signal("-STOP");
    flooding.stream.write_all(&flood).unwrap();
    let (operation, page) = (asking.next_operation(), [hash(1)]);
    asking.send(&question(&page), operation, 0);
    manager.signal("-CONT");
    let answer = asking.expect(Kind::Operation);
    assert!(matches!(answer.body(), ToClient::Ready { pages: 1, .. }), "asked after the flood");
    for operation in first..first + QUESTIONS {
        assert_eq!(flooding.expect(Kind::Operation).operation, operation, "all of it, in its order");
    }
    asking.send(&ToManager::Release, operation, 0);
    wait_for("the page to be forgotten", || (manager.status()["pool"]["pages"] == 0).then_some(()));
}
