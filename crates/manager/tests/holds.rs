//! The hold point of builds with test hooks: answers to queries wait, in order.
#![cfg(feature = "test-hooks")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "tests")]

mod support;

use orbitkv_wire::{Kind, QueryRule, ToManager};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use support::{Engine, Manager, hash, wait_for};

fn tell(manager: &Manager, line: &str) -> String {
    let path = manager.dir.path().join(format!("{}.sock", manager.pid()));
    let mut stream = UnixStream::connect(path).unwrap();
    writeln!(stream, "{line}").unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    answer.trim_end().to_owned()
}

#[test]
fn held_answers_leave_in_order_at_the_release() {
    let manager = Manager::start();
    let mut engine = Engine::start(&manager);
    assert_eq!(tell(&manager, "hold query_reply"), "ok");
    for operation in 1..=3 {
        let hashes = [hash(operation)];
        engine.send(
            &ToManager::Query { group: 0, deadline_ms: 0, rule: QueryRule::default(), hashes: &hashes },
            operation,
            0,
        );
    }
    wait_for("three held answers", || (tell(&manager, "reached query_reply") == "3").then_some(()));
    // What is no answer to a query passes.
    engine.send(&ToManager::Reset, 9, 0);
    let before: Vec<_> =
        std::iter::from_fn(|| engine.next().map(|m| m.kind)).take_while(|k| *k != Kind::ResetDone).collect();
    assert!(!before.contains(&Kind::Operation), "{before:?}");
    assert_eq!(tell(&manager, "release query_reply"), "ok");
    for operation in 1..=3 {
        assert_eq!(engine.expect(Kind::Operation).operation, operation);
    }
}
