//! `orbitkv run` with real processes: flags, exit codes, signals, and the manager's life.

mod common;

use common::{Background, World, is_alive, said, text, wait_until};
use std::process::Command;

const SERVE: [&str; 3] = ["vllm", "serve", "m"];

#[test]
fn the_engine_gets_the_cache_and_nothing_to_know() {
    let world = World::new();
    let output = world.run(&SERVE, "exit 0").output().unwrap();
    let said = said(&output);
    let argv: Vec<&str> =
        said["argv"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    assert_eq!(argv[..3], ["serve", "m", "--kv-transfer-config"]);
    assert_eq!(argv.len(), 4, "nothing else is added");
    let config: serde_json::Value = serde_json::from_str(argv[3]).unwrap();
    assert_eq!(config["kv_connector_extra_config"]["socket"], world.socket().to_str().unwrap());
    // The environment is the user's: no hash seed, no path.
    let environment: Vec<&str> =
        said["environment"].as_array().unwrap().iter().map(|e| e.as_str().unwrap()).collect();
    assert!(!environment.iter().any(|name| name.starts_with("PYTHON")), "{environment:?}");
    let (_, err) = text(&output);
    assert_eq!(output.status.code(), Some(0), "{err}");
    let line = err.lines().next().unwrap();
    for part in ["OrbitKV: vLLM", "pool 4.0 GiB DRAM", "(started)", "/status"] {
        assert!(line.contains(part), "{part} is not in: {line}");
    }
    assert_eq!(err.lines().count(), 1, "{err}");
}

#[test]
fn sglang_gets_its_flags_and_the_socket() {
    let world = World::new();
    world.link("fakes/engine.py", "sglang");
    let output = world.run(&["sglang", "serve", "m", "--page-size", "64"], "exit 0").output().unwrap();
    let said = said(&output);
    let flags = ["--radix-cache-backend", "orbitkv", "--enable-unified-cache-external-linker"];
    let argv: Vec<&str> =
        said["argv"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    assert_eq!(argv, [&["serve", "m", "--page-size", "64"][..], &flags].concat());
    assert_eq!(said["socket"], world.socket().to_str().unwrap());
    let (_, err) = text(&output);
    assert!(err.starts_with("OrbitKV: SGLang") && err.lines().count() == 1, "{err}");
}

#[test]
fn pages_too_small_for_the_cache_are_said_at_the_start() {
    let world = World::new();
    world.link("fakes/engine.py", "sglang");
    let output = world.run(&["sglang", "serve", "m"], "exit 0").output().unwrap();
    let (_, err) = text(&output);
    assert!(err.lines().nth(1).unwrap().contains("give it --page-size 64"), "{err}");
}

#[test]
fn a_socket_of_ours_wins_over_the_environment_for_sglang() {
    let world = World::new();
    world.link("fakes/engine.py", "sglang");
    let other = world.home().join("m.sock");
    let words = ["--socket", other.to_str().unwrap(), "sglang", "serve", "m"];
    let output = world.run(&words, "exit 0").output().unwrap();
    assert_eq!(said(&output)["socket"], other.to_str().unwrap());
}

#[test]
fn the_exit_code_is_the_engines() {
    let world = World::new();
    for (behaviour, code) in [("exit 3", 3), ("kill 9", 128 + 9), ("kill 15", 128 + 15)] {
        let output = world.run(&SERVE, behaviour).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{behaviour}: {}", text(&output).1);
    }
}

#[test]
fn the_manager_that_was_started_is_stopped_with_the_engine() {
    let world = World::new();
    let (mut engine, _) = Background::start(world.run(&SERVE, "trap"));
    let managers = world.managers();
    assert_eq!(managers.len(), 1);
    assert!(is_alive(managers[0]), "it serves while the engine runs");
    engine.signal("TERM");
    engine.next_line();
    assert_eq!(engine.end().0, Some(7));
    assert!(!is_alive(managers[0]));
}

#[test]
fn a_manager_that_ignores_the_signal_is_killed() {
    let world = World::new();
    let mut command = world.run(&SERVE, "exit 0");
    let output = command.env("FAKE_MANAGER", "deaf").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output).1);
    assert!(!is_alive(world.managers()[0]));
}

#[test]
fn signals_reach_the_engine_once() {
    for (name, number) in [("TERM", 15), ("INT", 2), ("HUP", 1)] {
        let world = World::new();
        let (mut engine, _) = Background::start(world.run(&SERVE, "trap"));
        engine.signal(name);
        assert_eq!(engine.next_line()["signals"], serde_json::json!([number]));
        assert_eq!(engine.end().0, Some(7), "{name}");
    }
}

#[test]
fn two_runs_share_a_manager_and_the_last_one_stops_it() {
    let world = World::new();
    let (first, _) = Background::start(world.run(&SERVE, "trap"));
    let (second, _) = Background::start(world.run(&SERVE, "trap"));
    let managers = world.managers();
    assert_eq!(managers.len(), 1, "the second run started none");
    first.signal("TERM");
    assert_eq!(first.end().0, Some(7));
    assert!(is_alive(managers[0]), "the second run still uses it");
    second.signal("TERM");
    let (code, err) = second.end();
    assert_eq!(code, Some(7));
    assert!(err.contains("(shared)"), "{err}");
    assert!(!is_alive(managers[0]));
}

#[test]
fn a_manager_that_other_engines_use_goes_on() {
    let world = World::new();
    let (engine, _) = Background::start(world.run(&SERVE, "trap"));
    world.report(r#"{"instances": [], "sessions": {"open": 3, "unfinished": 0}}"#);
    engine.signal("TERM");
    let (code, err) = engine.end();
    assert_eq!(code, Some(7));
    assert!(err.contains("goes on: 3 sessions"), "{err}");
    assert!(is_alive(world.managers()[0]));
}

#[test]
fn a_manager_can_be_kept() {
    let world = World::new();
    let output = world.run(&["--keep-manager", "vllm", "serve", "m"], "exit 0").output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    // A later run uses it, and leaves it: nobody but its user stops it.
    let output = world.run(&SERVE, "exit 0").output().unwrap();
    assert!(text(&output).1.contains("(shared)"));
    assert_eq!(world.managers().len(), 1);
    assert!(is_alive(world.managers()[0]));
}

#[test]
fn killed_outright_it_takes_the_engine_along_and_the_next_run_cleans_up() {
    let world = World::new();
    let (mut engine, said) = Background::start(world.run(&SERVE, "trap"));
    let pid = u32::try_from(said["pid"].as_u64().unwrap()).unwrap();
    engine.child.kill().unwrap();
    engine.child.wait().unwrap();
    wait_until("the engine ends", || !is_alive(pid));
    let manager = world.managers()[0];
    assert!(is_alive(manager), "left for the next run");
    let output = world.run(&SERVE, "exit 0").output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(world.managers().len(), 1);
    assert!(!is_alive(manager));
}

#[test]
fn a_manager_that_does_not_start_keeps_the_engine_from_starting() {
    let world = World::new();
    let output = world.run(&SERVE, "exit 0").env("FAKE_MANAGER", "fail").output().unwrap();
    let (out, err) = text(&output);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(out, "", "the engine did not run");
    for part in ["--pool-size is too large for this machine", "manager.sock.log", "--best-effort"] {
        assert!(err.contains(part), "{part} is not in: {err}");
    }
}

#[test]
fn with_best_effort_the_engine_runs_without_the_cache() {
    let world = World::new().without_manager();
    let output = world.run(&["--best-effort", "vllm", "serve", "m"], "exit 0").output().unwrap();
    assert_eq!(said(&output)["argv"], serde_json::json!(["serve", "m"]));
    assert!(text(&output).1.contains("OrbitKV: off"), "{}", text(&output).1);
}

#[test]
fn a_missing_manager_is_said() {
    let world = World::new().without_manager();
    let output = world.run(&SERVE, "exit 0").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).1.contains("install both commands"), "{}", text(&output).1);
}

#[test]
fn refusals_start_nothing() {
    let world = World::new();
    let other = r#"{"kv_connector":"NixlConnector"}"#;
    // It is there, so that it is not refused for its absence.
    for name in ["tritonserver", "sglang"] {
        world.link("fakes/engine.py", name);
    }
    for (engine, part) in [
        (&["tritonserver", "m"][..], "it supports `vllm serve MODEL …`"),
        (&["sglang", "generate", "m"], "not `sglang generate`"),
        (&["sglang", "serve", "m", "--enable-hierarchical-cache"], "--enable-hierarchical-cache"),
        (&["--load-mode", "sync", "sglang", "serve", "m"], "--load-mode is for vLLM"),
        (&["vllm", "bench", "serve"], "not `vllm bench`"),
        (&["vllm", "serve", "m", "--kv-transfer-config", other], "NixlConnector"),
        (&["vllm", "serve", "m", "--prefix-caching-hash-algo", "xxhash"], "collision resistant"),
    ] {
        let output = world.run(engine, "exit 0").output().unwrap();
        let (out, err) = text(&output);
        assert_eq!((output.status.code(), out.as_str()), (Some(1), ""), "{engine:?}");
        assert!(err.contains(part), "{part} is not in: {err}");
    }
    assert!(world.managers().is_empty());
}

#[test]
fn a_program_that_is_not_there_is_127() {
    let world = World::new();
    std::fs::remove_file(world.bin().join("vllm")).unwrap();
    let output = world.run(&SERVE, "exit 0").output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert!(world.managers().is_empty());
}

#[test]
fn help_of_the_engine_needs_no_manager() {
    let world = World::new();
    let output = world.run(&["vllm", "serve", "--help"], "exit 0").output().unwrap();
    assert_eq!(said(&output)["argv"], serde_json::json!(["serve", "--help"]));
    assert!(world.managers().is_empty());
}

#[test]
fn the_second_line_says_that_the_cache_is_active() {
    let world = World::new();
    let (engine, _) = Background::start(world.run(&SERVE, "trap"));
    let instance = r#"{"instance": "0b", "engine": "vllm", "engine_version": "0.29.0", "model": "m", "world_size": 1,
        "active": true, "ranks_attested": [0], "sessions": 2}"#;
    world.report(&format!(r#"{{"instances": [{instance}], "sessions": {{"open": 0, "unfinished": 0}}}}"#));
    // Two polls of the watcher, and then nothing more is said.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    engine.signal("TERM");
    let (_, err) = engine.end();
    let lines: Vec<&str> = err.lines().collect();
    assert_eq!(lines.len(), 2, "{err}");
    assert_eq!(lines[1], "OrbitKV: active (self-test passed)");
}

#[test]
fn a_signal_while_the_manager_starts_ends_everything() {
    let world = World::new();
    let mut run = world.run(&SERVE, "exit 0").env("FAKE_MANAGER", "never").spawn().unwrap();
    wait_until("the manager has begun", || !world.managers().is_empty());
    common::signal(run.id(), "TERM");
    wait_until("the run ends", || run.try_wait().unwrap().is_some());
    assert_eq!(run.wait().unwrap().code(), Some(128 + 15));
    assert!(!is_alive(world.managers()[0]));
}

#[test]
fn ctrl_c_at_a_terminal_is_not_sent_twice() {
    let world = World::new();
    // `script` gives the run a terminal; the byte 3 on it is Ctrl-C.
    let script = Command::new("script").arg("--version").output();
    assert!(script.is_ok(), "this test needs `script` of util-linux (bsdutils on Debian)");
    let mut terminal = world.orbitkv(&[]);
    let line =
        format!("exec {} run --http-addr 127.0.0.1:0 vllm serve m", world.bin().join("orbitkv").display());
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]);
    for (name, value) in terminal.env("FAKE_ENGINE", "trap").get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut keyboard = child.stdin.take().unwrap();
    let mut screen = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("argv") {
        line.clear();
        assert!(std::io::BufRead::read_line(&mut screen, &mut line).unwrap() > 0, "the engine did not start");
    }
    std::io::Write::write_all(&mut keyboard, &[3]).unwrap();
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut screen, &mut rest).unwrap();
    assert!(rest.contains(r#""signals": [2]"#), "{rest}");
    assert_eq!(child.wait().unwrap().code(), Some(7));
}
