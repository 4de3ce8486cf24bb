//! Who reads an answer: the thread that waits for it, or the connection's own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{LONG, Manager, hash, wait_for};
use orbitkv_client::{MissReason, Query, QueryState, SchedulerClient};
use orbitkv_wire::Kind;
use std::fs;
use std::thread::{Scope, ScopedJoinHandle, sleep, spawn};
use std::time::Duration;

/// No test waits this long: one whose waiting thread is not woken hangs.
const FOR_EVER: Duration = Duration::from_secs(3600);

fn ask(client: &SchedulerClient, deadline_ms: u32) -> Query {
    client.query(0, &[hash(1)], deadline_ms).unwrap()
}

/// A thread that waits for the query, asleep in the system call that only a reading thread makes.
fn reading<'s>(scope: &'s Scope<'s, '_>, query: &'s Query) -> ScopedJoinHandle<'s, QueryState> {
    let (tell, told) = std::sync::mpsc::channel();
    let waits = scope.spawn(move || {
        tell.send(rustix::thread::gettid()).unwrap();
        query.wait(FOR_EVER)
    });
    let thread = told.recv().unwrap().as_raw_nonzero();
    wait_for("the waiting thread polls the socket", || {
        let call = fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).unwrap();
        let number = call.split_whitespace().next().and_then(|number| number.parse().ok());
        // `poll` and `ppoll`; a thread that sleeps on a condition is in `futex`.
        number.is_some_and(|number: u32| POLLS.contains(&number))
    });
    waits
}

#[cfg(target_arch = "x86_64")]
const POLLS: [u32; 2] = [7, 271];
#[cfg(target_arch = "aarch64")]
const POLLS: [u32; 1] = [73];

#[test]
fn the_waiting_thread_takes_its_own_answer() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    let query = ask(&client, 0);
    let operation = peer.next().operation();
    std::thread::scope(|scope| {
        let waits = reading(scope, &query);
        peer.ready(operation, 2);
        assert_eq!(waits.join().unwrap(), QueryState::Ready);
    });
    assert_eq!(query.pages(), 2);
}

#[test]
fn one_thread_reads_for_all_that_wait_and_another_takes_over_when_it_is_done() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    let (first, second, third) = (ask(&client, 0), ask(&client, 0), ask(&client, 0));
    let operations = [(); 3].map(|()| peer.next().operation());
    std::thread::scope(|scope| {
        let reads = reading(scope, &first);
        let waits = scope.spawn(|| second.wait(FOR_EVER));
        peer.ready(operations[1], 1);
        assert_eq!(waits.join().unwrap(), QueryState::Ready, "read by the other thread");
        assert_eq!(first.poll(), QueryState::Pending);
        let waits = scope.spawn(|| third.wait(FOR_EVER));
        // Most often asleep by now, and woken then by the connection's thread.
        sleep(Duration::from_millis(20));
        peer.ready(operations[0], 1);
        assert_eq!(reads.join().unwrap(), QueryState::Ready);
        peer.ready(operations[2], 1);
        assert_eq!(waits.join().unwrap(), QueryState::Ready);
    });
}

#[test]
fn an_answer_after_the_wait_comes_without_a_call_of_the_engine() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    let query = ask(&client, 0);
    let operation = peer.next().operation();
    assert_eq!(query.wait(Duration::from_micros(200)), QueryState::Pending);
    peer.ready(operation, 1);
    wait_for("the connection's thread reads again", || query.poll() == QueryState::Ready);
}

#[test]
fn a_reading_thread_sees_a_deadline_and_a_release() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    let query = ask(&client, 200);
    assert_eq!(peer.next().kind, Kind::Query);
    assert_eq!(query.wait(FOR_EVER), QueryState::Miss);
    assert_eq!(query.miss_reason(), Some(MissReason::Deadline));
    let query = ask(&client, 0);
    std::thread::scope(|scope| {
        let waits = reading(scope, &query);
        query.release();
        assert_eq!(waits.join().unwrap(), QueryState::Miss);
    });
    assert_eq!(query.miss_reason(), Some(MissReason::Released));
}

#[test]
fn a_reading_thread_sees_the_end_of_the_connection_and_the_client_connects_again() {
    let manager = Manager::new();
    let (client, peer) = manager.scheduler(3);
    let query = ask(&client, 0);
    std::thread::scope(|scope| {
        let waits = reading(scope, &query);
        drop(peer);
        assert_eq!(waits.join().unwrap(), QueryState::Miss);
    });
    assert_eq!(query.miss_reason(), Some(MissReason::Disconnected));
    let (mut peer, _) = manager.welcome(4);
    wait_for("the next session", || client.connected());
    let query = ask(&client, 0);
    let operation = peer.next().operation();
    peer.ready(operation, 1);
    assert_eq!(query.wait(LONG), QueryState::Ready);
}

#[test]
fn bytes_that_are_no_frame_end_the_connection_on_whatever_thread_reads_them() {
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    let query = ask(&client, 0);
    std::thread::scope(|scope| {
        let waits = reading(scope, &query);
        peer.send_raw(&[0xff; 64]);
        assert_eq!(waits.join().unwrap(), QueryState::Miss);
    });
    assert_eq!(query.miss_reason(), Some(MissReason::Disconnected));
    wait_for("the reason is said", || client.status().contains("magic"));
}

#[test]
fn closing_ends_the_wait_of_a_reading_thread() {
    let manager = Manager::new();
    let (client, peer) = manager.scheduler(3);
    let query = ask(&client, 0);
    std::thread::scope(|scope| {
        let waits = reading(scope, &query);
        client.close();
        assert_eq!(waits.join().unwrap(), QueryState::Miss);
    });
    drop(peer);
}

#[test]
fn threads_that_ask_and_wait_at_once_all_get_their_own_answers() {
    const THREADS: usize = 4;
    const QUESTIONS: usize = 300;
    let manager = Manager::new();
    let (client, mut peer) = manager.scheduler(3);
    let answers = spawn(move || {
        let mut asked = 0;
        while let Some(frame) = peer.try_next() {
            if frame.kind == Kind::Query {
                asked += 1;
                // Its operation id, so that an answer to another question is seen.
                let pages = u32::try_from(frame.operation() % 50 + 1).unwrap();
                peer.ready(frame.operation(), pages);
            }
        }
        asked
    });
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..QUESTIONS {
                    let query = ask(&client, 0);
                    assert_eq!(query.wait(LONG), QueryState::Ready);
                    let ticket = query.restore(0, 1).unwrap();
                    assert_eq!(query.pages() as u64, ticket.operation % 50 + 1);
                }
            });
        }
    });
    client.close();
    assert_eq!(answers.join().unwrap(), THREADS * QUESTIONS);
}
