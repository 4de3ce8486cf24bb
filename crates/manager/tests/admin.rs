//! HTTP: what the manager says of itself, and the one thing it lets itself be told.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "tests")]

mod support;

use std::io::Write;
use std::net::TcpStream;
use support::{Engine, Manager, wait_for};

#[test]
fn health_answers_while_the_core_thread_does() {
    let manager = Manager::start();
    assert_eq!(manager.http("GET", "/health", ""), (200, "ok".into()));
    assert_eq!(manager.http("GET", "/nothing", "").0, 404);
}

#[test]
fn status_describes_the_engine_and_the_pool() {
    let manager = Manager::start();
    let mut engine = Engine::start(&manager);
    engine.save(&[1, 2]);
    engine.query(&[1, 2, 3]);
    let status = manager.status();
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["pid"], manager.pid());
    assert_eq!(status["boot"].as_str().unwrap().len(), 32);
    assert_eq!(status["socket"], manager.socket.to_str().unwrap());
    assert_eq!(status["http"], manager.http.as_str());
    assert_eq!(status["pool"]["limit_bytes"], 16 << 20);
    assert_eq!(status["pool"]["pages"], 2);
    // Two slots: a header and a payload each, in whole memory pages.
    assert_eq!(status["pool"]["used_bytes"], 2 * 16_384);
    assert_eq!(status["query"]["budget_bytes"], 12 << 20);
    assert_eq!(status["query"]["operations"]["ready"], 1);
    assert_eq!(status["query"]["reserved_bytes_by_phase"]["ready"], status["query"]["reserved_bytes"]);
    let row = &status["instances"][0];
    assert_eq!((&row["engine"], &row["model"]), (&"test".into(), &"tiny".into()));
    assert_eq!(row["active"], true);
    assert_eq!(row["ranks_attested"], serde_json::json!([0]));
    assert_eq!(status["counters"]["ram_pages"], 2);
    assert_eq!(status["counters"]["missed_pages"], 1);
}

#[test]
fn metrics_agree_with_what_was_done() {
    let manager = Manager::start();
    let mut engine = Engine::start(&manager);
    engine.save(&[1, 2]);
    let (operation, parts) = engine.query(&[1, 2, 3]);
    let during = manager.metrics();
    let is = |metrics: &std::collections::BTreeMap<String, f64>, name: &str, want: f64| {
        let got = metrics.get(name).unwrap_or_else(|| panic!("no {name}"));
        assert!((got - want).abs() < 1e-9, "{name} is {got}, not {want}");
    };
    is(&during, "orbitkv_query_reserved_bytes", 32_768.0);
    is(&during, "orbitkv_query_reserved_bytes_by_phase{phase=\"ready\"}", 32_768.0);
    is(&during, "orbitkv_leases", 1.0);
    is(&during, "orbitkv_operations{phase=\"ready\"}", 1.0);
    engine.restore(operation, &parts);
    let after = wait_for("the lease to end", || {
        let metrics = manager.metrics();
        (metrics["orbitkv_leases"] == 0.0).then_some(metrics)
    });
    for (name, want) in [
        ("orbitkv_tier_block_requests_total{tier=\"ram\"}", 2.0),
        ("orbitkv_tier_block_requests_total{tier=\"miss\"}", 1.0),
        ("orbitkv_save_pages_committed_total", 2.0),
        ("orbitkv_save_inflight_bytes", 0.0),
        ("orbitkv_load_pages_total", 2.0),
        ("orbitkv_load_inflight_bytes", 0.0),
        ("orbitkv_query_reserved_bytes", 0.0),
        ("orbitkv_query_speculative_reserved_bytes", 0.0),
        ("orbitkv_query_budget_waits_total", 0.0),
        ("orbitkv_query_budget_bypasses_total", 0.0),
        ("orbitkv_pool_pages", 2.0),
        ("orbitkv_pool_used_bytes", 32_768.0),
        ("orbitkv_pool_quarantined_bytes", 0.0),
        ("orbitkv_sessions", 1.0),
        ("orbitkv_instances", 1.0),
        ("orbitkv_frames_received_total{kind=\"Query\"}", 1.0),
        (
            "orbitkv_request_handling_seconds_bucket{le=\"+Inf\"}",
            after["orbitkv_request_handling_seconds_count"],
        ),
    ] {
        is(&after, name, want);
    }
    let bounds: Vec<f64> = after
        .keys()
        .filter_map(|name| {
            name.strip_prefix("orbitkv_request_handling_seconds_bucket{le=\"")?.split('"').next()
        })
        .filter_map(|bound| bound.parse().ok())
        .collect();
    assert!(bounds.contains(&16e-6) && bounds.contains(&32e-6) && bounds.contains(&f64::INFINITY));
    assert_eq!(bounds.len(), 17);
}

#[test]
fn every_metric_is_documented_and_the_other_way_round() {
    let cache = support::ssd::Cache::new("4mib");
    let manager = cache.start_with(&["--ssd-write-budget", "1tb/day"]);
    let mut engine = Engine::start(&manager);
    engine.save(&[1]);
    engine.query(&[1]);
    let (_, text) = manager.http("GET", "/metrics", "");
    let mut served: Vec<_> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    served.sort_unstable();
    let docs = include_str!("../../../docs/metrics.md");
    let mut documented: Vec<_> = docs
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split(['`', '{']).next())
        .filter(|name| name.starts_with("orbitkv_"))
        .collect();
    documented.sort_unstable();
    assert_eq!(served, documented);
}

#[test]
fn dropping_memory_forgets_what_nobody_leases() {
    let manager = Manager::start();
    let mut engine = Engine::start(&manager);
    engine.save(&[1]);
    engine.save(&[2]);
    let (operation, parts) = engine.query(&[1]);
    let (code, body) = manager.http("POST", "/cache/memory/drop", "Content-Length: 0\r\n");
    assert_eq!((code, body.as_str()), (200, "{\"dropped_pages\":1}"));
    assert_eq!(engine.restore(operation, &parts), [support::page(1)], "the leased page was left alone");
    assert!(engine.query(&[2]).1.is_empty());
}

#[test]
fn a_web_page_cannot_drop_memory() {
    let manager = Manager::start();
    let mut engine = Engine::start(&manager);
    engine.save(&[1]);
    let headers = "Content-Length: 0\r\nOrigin: https://example.org\r\n";
    assert_eq!(manager.http("POST", "/cache/memory/drop", headers).0, 403);
    assert_eq!(manager.http("GET", "/cache/memory/drop", "").0, 405);
    assert_eq!(engine.query(&[1]).1.len(), 1);
}

#[test]
fn many_silent_http_connections_harm_nobody() {
    let manager = Manager::start();
    let silent: Vec<_> = (0..200)
        .map(|_| {
            let mut stream = TcpStream::connect(&manager.http).unwrap();
            stream.write_all(b"GET /sta").unwrap();
            stream
        })
        .collect();
    assert_eq!(manager.http("GET", "/health", "").0, 200);
    let mut engine = Engine::start(&manager);
    engine.save(&[1]);
    assert_eq!(engine.query(&[1]).1.len(), 1);
    drop(silent);
}

#[test]
fn http_can_be_off() {
    let dir = tempfile::tempdir().unwrap();
    let ready = dir.path().join("ready.json");
    let mut child = support::command(dir.path())
        .args(["--pool-size", "16mib", "--http-addr", "off", "--ready-file"])
        .arg(&ready)
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let text = wait_for("the ready file", || std::fs::read(&ready).ok());
    let text: serde_json::Value = serde_json::from_slice(&text).unwrap();
    assert!(text["http"].is_null());
    child.kill().unwrap();
    child.wait().unwrap();
}
