//! Pages that a client was writing when its session ended: quarantined until it is known that it writes
//! no more.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "tests")]

mod support;

use orbitkv_wire::{CommitItem, Kind, Resume, ToManager};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use support::{Client, Engine, Manager, hash, hello, page, wait_for};

const CHILD_SOCKET: &str = "ORBITKV_CHILD_SOCKET";
const CHILD_SIGN: &str = "ORBITKV_CHILD_SIGN";

/// Not a test by itself: the process that is killed in the middle of a save.
#[test]
#[ignore = "started by other tests as a process of its own"]
fn child_in_mid_save() {
    let Some(socket) = std::env::var_os(CHILD_SOCKET) else { return };
    let mut engine = Engine::with_hello(&PathBuf::from(socket), &hello(9, 9, 1));
    let parts = engine.reserve(&[1, 2]);
    engine.write_page(&parts[0].slot, &page(1));
    // The connection can be closed with the copy going on.
    let sign = std::env::var_os(CHILD_SIGN).unwrap();
    std::fs::write(&sign, "saving").unwrap();
    while std::fs::read(&sign).is_ok_and(|text| text != b"disconnect") {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    drop(engine);
    std::fs::write(&sign, "disconnected").unwrap();
    loop {
        std::thread::park();
    }
}

struct Saver {
    child: Child,
    sign: PathBuf,
}

impl Saver {
    fn start(manager: &Manager) -> Self {
        let sign = manager.dir.path().join("sign");
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_in_mid_save", "--ignored"])
            .env(CHILD_SOCKET, &manager.socket)
            .env(CHILD_SIGN, &sign)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let saver = Self { child, sign };
        saver.wait_for("saving");
        saver
    }

    fn wait_for(&self, state: &str) {
        wait_for(state, || {
            std::fs::read(&self.sign).is_ok_and(|text| text == state.as_bytes()).then_some(())
        });
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn quarantined(manager: &Manager) -> u64 {
    manager.status()["pool"]["quarantined_bytes"].as_u64().unwrap()
}

#[test]
fn a_killed_savers_pages_are_freed_with_its_process_and_never_visible() {
    let manager = Manager::start();
    let saver = Saver::start(&manager);
    assert!(manager.held_bytes() > 0);
    drop(saver);
    wait_for("the slots to be free", || (manager.held_bytes() == 0).then_some(()));
    let status = manager.status();
    assert_eq!(status["pool"]["used_bytes"], 0);
    assert_eq!(status["sessions"]["unfinished"], 0);
    assert_eq!(status["counters"]["committed_pages"], 0);
    // Another instance of the same namespace.
    assert!(Engine::start(&manager).query(&[1, 2]).1.is_empty());
}

#[test]
fn a_closed_connection_alone_frees_nothing_that_may_be_written() {
    let manager = Manager::start();
    let saver = Saver::start(&manager);
    std::fs::write(&saver.sign, "disconnect").unwrap();
    saver.wait_for("disconnected");
    let bytes = wait_for("the quarantine", || Some(quarantined(&manager)).filter(|bytes| *bytes > 0));
    // Time alone changes nothing while the process lives.
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(quarantined(&manager), bytes);
    assert_eq!(manager.status()["sessions"]["unfinished"], 1);
    drop(saver);
    wait_for("the quarantine to end", || (manager.held_bytes() == 0).then_some(()));
}

/// An engine of this process with a page half saved, whose connection is gone.
fn disconnected_in_mid_save(manager: &Manager) -> u64 {
    let mut engine = Engine::start(manager);
    engine.reserve(&[1]);
    let session = engine.session;
    drop(engine);
    wait_for("the quarantine", || (quarantined(manager) > 0).then_some(()));
    session
}

#[test]
fn a_reconnecting_client_attests_in_its_hello() {
    let manager = Manager::start();
    let session = disconnected_in_mid_save(&manager);
    let mut again = hello(1, 1, 2);
    again.resume = Some(Resume { session, copies_ended: false });
    let mut engine = Engine::with_hello(&manager.socket, &again);
    assert!(quarantined(&manager) > 0, "it did not say that its copies ended");
    drop(engine);
    again.epoch = 3;
    again.resume = Some(Resume { session, copies_ended: true });
    engine = Engine::with_hello(&manager.socket, &again);
    assert_eq!(quarantined(&manager), 0);
    engine.save(&[1]);
    assert_eq!(engine.query(&[1]).1.len(), 1);
}

#[test]
fn a_client_attests_later_than_its_hello() {
    let manager = Manager::start();
    let session = disconnected_in_mid_save(&manager);
    let mut again = hello(1, 1, 2);
    again.resume = Some(Resume { session, copies_ended: false });
    let mut engine = Engine::with_hello(&manager.socket, &again);
    assert!(quarantined(&manager) > 0);
    engine.send(&ToManager::CopiesEnded { session }, 0, 0);
    wait_for("the quarantine to end", || (quarantined(&manager) == 0).then_some(()));
    // A second time is no error.
    engine.send(&ToManager::CopiesEnded { session }, 0, 0);
    engine.save(&[1]);
    assert_eq!(engine.query(&[1]).1.len(), 1);
}

#[test]
fn a_session_that_its_client_never_heard_of_ends_with_the_next_hello() {
    let manager = Manager::start();
    let session = Engine::start(&manager).session;
    let mut again = hello(1, 1, 2);
    again.resume = Some(Resume { session, copies_ended: true });
    let mut engine = Engine::with_hello(&manager.socket, &again);
    engine.reserve(&[1]);
    drop(engine);
    wait_for("the quarantine", || (quarantined(&manager) > 0).then_some(()));
    // It names the first session once more: no welcome of the second one ever reached it.
    again.epoch = 3;
    let _engine = Engine::with_hello(&manager.socket, &again);
    assert_eq!(quarantined(&manager), 0);
}

#[test]
fn nobody_attests_for_another() {
    let manager = Manager::start();
    let session = disconnected_in_mid_save(&manager);
    // Another client of the same process.
    let mut other = Engine::with_hello(&manager.socket, &hello(2, 2, 5));
    other.send(&ToManager::CopiesEnded { session }, 41, 0);
    let refused = other.expect(Kind::Refused);
    assert_eq!(refused.operation, 41);
    assert!(refused.text().contains("another client or process"), "{}", refused.text());
    let mut third = hello(3, 3, 5);
    third.resume = Some(Resume { session, copies_ended: true });
    let mut third = Engine::with_hello(&manager.socket, &third);
    assert!(quarantined(&manager) > 0);
    let own = third.session;
    third.send(&ToManager::CopiesEnded { session: own }, 42, 0);
    assert!(third.expect(Kind::Refused).text().contains("not older"));
    third.send(&ToManager::CopiesEnded { session: 1_000 }, 43, 0);
    assert!(third.expect(Kind::Refused).text().contains("no session 1000"));
}

#[test]
fn a_newer_epoch_replaces_the_older_connection() {
    let manager = Manager::start();
    let mut old = Engine::start(&manager);
    let parts = old.reserve(&[1]);
    let mut new = Engine::with_hello(&manager.socket, &hello(1, 1, 2));
    assert!(old.ends());
    // What the old connection was granted is not committed by the new one.
    let item = CommitItem { slot: parts[0].slot, hash: hash(1), crc: 1.into() };
    new.send(&ToManager::Commit(&[item]), 0, 0);
    assert!(new.expect(Kind::Refused).text().contains("not held"));
    let stale = Client::connect(&manager.socket).greet(&hello(1, 1, 1)).unwrap_err();
    assert!(stale.contains("epoch 1"), "{stale}");
}
