//! `orbitkv status` and `orbitkv doctor` against a manager.

mod common;

use common::{Background, World, text};

const SERVE: [&str; 3] = ["vllm", "serve", "m"];

#[test]
fn status_without_a_manager_fails_with_the_way_to_start_one() {
    let world = World::new();
    let output = world.orbitkv(&["status"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).1.contains("orbitkv run vllm serve"), "{}", text(&output).1);
}

#[test]
fn status_of_a_manager_that_a_run_has_started() {
    let world = World::new();
    // On a free port that only its note beside the socket tells.
    let (engine, _) = Background::start(world.run(&SERVE, "trap"));
    let table = world.orbitkv(&["status"]).output().unwrap();
    let json = world.orbitkv(&["status", "--json"]).output().unwrap();
    engine.signal("TERM");
    engine.end();
    let pid = world.managers()[0];
    assert!(text(&table).0.contains(&format!("pid {pid}")), "{:?}", text(&table));
    let json: serde_json::Value = serde_json::from_str(&text(&json).0).unwrap();
    assert_eq!((json["pid"].as_u64(), json["boot"].is_string()), (Some(pid.into()), true));
}

#[test]
fn doctor_names_what_is_wrong_and_fails() {
    let world = World::new();
    let (engine, _) = Background::start(world.run(&SERVE, "trap"));
    let instance = r#"{"instance": "0b", "engine": "vllm", "engine_version": "0.29.0", "model": "m", "world_size": 1,
        "active": false, "ranks_attested": [], "sessions": 2}"#;
    world.report(&format!(r#"{{"instances": [{instance}], "sessions": {{"open": 0, "unfinished": 0}}}}"#));
    let output = world.orbitkv(&["doctor"]).output().unwrap();
    engine.signal("TERM");
    engine.end();
    let (out, _) = text(&output);
    assert_eq!(output.status.code(), Some(1), "{out}");
    for part in
        ["FAIL  engine: vllm 0.29.0 with m is not active", "manager: 0.1.0", "socket directory", "pidfd"]
    {
        assert!(out.contains(part), "{part} is not in:\n{out}");
    }
}

#[test]
fn doctor_without_a_manager_only_warns_about_it() {
    let world = World::new();
    let output = world.orbitkv(&["doctor"]).output().unwrap();
    assert!(text(&output).0.contains("warn  manager: none serves"), "{}", text(&output).0);
}
