//! What workers say of how they check what they restore.

mod support;

use orbitkv_wire::HelloRole;
use support::{Client, Manager, hello, wait_for};

#[test]
fn the_mode_of_each_worker_is_shown_while_it_is_connected() {
    let manager = Manager::start();
    let of = |mode: &str| manager.metrics()[&format!("orbitkv_restore_verification_info{{mode=\"{mode}\"}}")];
    let all = || ["off", "sample", "all"].map(of);
    assert_eq!(all(), [0.0, 0.0, 0.0]);
    let connect = |instance: u128, mode: Option<&str>| {
        let mut hello = hello(instance, instance, 1);
        hello.verify_restore = mode.map(str::to_owned);
        let mut client = Client::connect(&manager.socket);
        client.greet(&hello).unwrap();
        client
    };
    let clients = [connect(1, Some("all")), connect(2, Some("sample:16")), connect(3, Some("sample:4"))];
    let _silent = connect(4, None);
    assert_eq!(all(), [0.0, 2.0, 1.0]);
    let status = manager.status();
    let rows: Vec<_> = (0..4).map(|at| status["instances"][at]["verify_restore"].to_string()).collect();
    assert_eq!(rows, ["[\"all\"]", "[\"sample:16\"]", "[\"sample:4\"]", "[]"]);
    assert_eq!(status["load"]["verifying_workers"], serde_json::json!({ "off": 0, "sample": 2, "all": 1 }));
    drop(clients);
    wait_for("the ends of the sessions", || (all() == [0.0, 0.0, 0.0]).then_some(()));
}

#[test]
fn workers_of_one_engine_may_differ() {
    let manager = Manager::start();
    let connect = |rank: u16, mode: &str| {
        let mut hello = hello(u128::from(rank) + 1, 7, 1);
        (hello.role, hello.rank, hello.world_size) = (HelloRole::Worker, rank, 2);
        hello.verify_restore = Some(mode.to_owned());
        let mut client = Client::connect(&manager.socket);
        client.greet(&hello).unwrap();
        client
    };
    let _workers = [connect(0, "off"), connect(1, "all")];
    let status = manager.status();
    assert_eq!(status["instances"][0]["verify_restore"], serde_json::json!(["all", "off"]));
}

#[test]
fn an_unknown_mode_is_refused_by_value() {
    let manager = Manager::start();
    let mut hello = hello(1, 1, 1);
    hello.verify_restore = Some("often".to_owned());
    let mut client = Client::connect(&manager.socket);
    let refusal = client.greet(&hello).unwrap_err();
    assert!(refusal.contains("verify_restore is \"often\"; it must be off, all, or sample:N"), "{refusal}");
}
