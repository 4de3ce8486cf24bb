use super::*;
use serde_json::{Value, json};

pub(super) fn words(line: &[&str]) -> Vec<OsString> {
    line.iter().map(OsString::from).collect()
}

pub(super) fn wishes() -> Wishes<'static> {
    Wishes { socket: Path::new("/s/m.sock"), socket_given: false, load_mode: None }
}

fn added(line: &[&str]) -> Result<Vec<String>, EngineError> {
    let line = with_cache(Engine::Vllm, &words(line), wishes())?.words;
    Ok(line.into_iter().map(|word| word.into_string().unwrap()).collect())
}

fn config_of(line: &[String]) -> Value {
    let at = line.iter().position(|word| word == "--kv-transfer-config").unwrap();
    serde_json::from_str(&line[at + 1]).unwrap()
}

#[test]
fn everything_the_engine_needs_is_added() {
    let line = added(&["vllm", "serve", "m"]).unwrap();
    assert_eq!(line[..4], ["vllm", "serve", "m", "--kv-transfer-config"]);
    assert_eq!(line.len(), 5, "the hash is the engine's own");
    let wanted = json!({
        "kv_connector": "OrbitKVConnector", "kv_connector_module_path": "orbitkv.vllm", "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"socket": "/s/m.sock"},
    });
    assert_eq!(config_of(&line), wanted);
}

#[test]
fn our_connector_is_completed_in_every_spelling_of_the_flag() {
    let theirs = r#"{"kv_connector":"OrbitKVConnector","kv_connector_extra_config":{"copy_threads":1}}"#;
    let joined = format!("--kv_transfer_config={theirs}");
    for line in [
        &["vllm", "serve", "--kv-transfer-config", theirs, "m"][..],
        &["vllm", "serve", "--kv-transfer", theirs, "m"],
        &["vllm", "serve", &joined, "m"],
    ] {
        let line = added(line).unwrap();
        assert_eq!(line[..3], ["vllm", "serve", "m"]);
        let config = config_of(&line);
        assert_eq!(config["kv_connector_extra_config"], json!({"copy_threads": 1, "socket": "/s/m.sock"}));
        assert_eq!(config["kv_load_failure_policy"], "recompute");
    }
}

#[test]
fn another_connector_or_a_broken_value_is_refused() {
    let refused = |value: &str| added(&["vllm", "serve", "m", "--kv-transfer-config", value]).unwrap_err();
    let other = refused(r#"{"kv_connector":"LMCacheConnectorV1"}"#);
    assert_eq!(other, EngineError::OtherConnector("LMCacheConnectorV1".to_owned()));
    for value in ["{", "[]", "{}", r#"{"kv_connector":"OrbitKVConnector","kv_connector_extra_config":1}"#] {
        assert!(matches!(refused(value), EngineError::BadTransferConfig(_)), "{value}");
    }
    let dotted = added(&["vllm", "serve", "m", "--kv-transfer-config.kv_connector", "X"]);
    assert!(matches!(dotted, Err(EngineError::Scattered(_))));
    let alone = added(&["vllm", "serve", "m", "--kv-transfer-config"]);
    assert_eq!(alone, Err(EngineError::NoValue("--kv-transfer-config".to_owned())));
}

#[test]
fn a_connector_in_a_configuration_file_is_not_overridden_silently() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    std::fs::write(path, "port: 1\n").unwrap();
    added(&["vllm", "serve", "--config", path]).unwrap();
    std::fs::write(path, "port: 1\nkv_transfer_config: '{}'\n").unwrap();
    assert!(matches!(added(&["vllm", "serve", "--config", path]), Err(EngineError::Scattered(_))));
}

#[test]
fn the_hash_of_the_user_stays_unless_it_collides() {
    let line = added(&["vllm", "serve", "m", "--prefix-caching-hash-algo=sha256_cbor"]).unwrap();
    assert!(line.contains(&"--prefix-caching-hash-algo=sha256_cbor".to_owned()));
    for weak in ["xxhash", "xxhash_cbor"] {
        let error = added(&["vllm", "serve", "m", "--prefix_caching_hash_algo", weak]).unwrap_err();
        assert_eq!(error, EngineError::WeakHash(weak.to_owned()));
    }
}

#[test]
fn flags_without_a_cache_are_refused() {
    for flag in ["--no-enable-prefix-caching", "--kv-offloading-size=4", "--kv_offloading_size"] {
        assert!(matches!(added(&["vllm", "serve", "m", flag]), Err(EngineError::Conflict { .. })), "{flag}");
    }
    added(&["vllm", "serve", "m", "--enable-prefix-caching"]).unwrap();
}

#[test]
fn sockets_agree_or_are_refused() {
    let config = r#"{"kv_connector":"OrbitKVConnector","kv_connector_extra_config":{"socket":"/x"}}"#;
    let line = words(&["vllm", "serve", "m", "--kv-transfer-config", config]);
    assert_eq!(socket_in(Engine::Vllm, &line).unwrap().as_deref(), Some("/x"));
    assert_eq!(socket_in(Engine::Vllm, &words(&["vllm", "serve", "m"])).unwrap(), None);
    let given = Wishes { socket_given: true, ..wishes() };
    assert!(matches!(with_cache(Engine::Vllm, &line, given), Err(EngineError::TwoSockets { .. })));
    let same = Wishes { socket: Path::new("/x"), ..given };
    with_cache(Engine::Vllm, &line, same).unwrap();
}

#[test]
fn the_load_mode_reaches_the_adapter() {
    let wishes = Wishes { load_mode: Some("async"), ..wishes() };
    let line = with_cache(Engine::Vllm, &words(&["vllm", "serve", "m"]), wishes).unwrap().words;
    let line: Vec<String> = line.into_iter().map(|word| word.into_string().unwrap()).collect();
    assert_eq!(config_of(&line)["kv_connector_extra_config"]["load_mode"], "async");
}

#[test]
fn where_the_engine_answers() {
    let of = |line: &str| {
        let line: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        health_address(Invocation::of(&line).unwrap().engine, &line)
    };
    assert_eq!(of("vllm serve m"), "127.0.0.1:8000");
    assert_eq!(of("vllm serve m --host 0.0.0.0 --port=81"), "127.0.0.1:81");
    assert_eq!(of("vllm serve m --host ::1"), "[::1]:8000");
    assert_eq!(of("vllm serve m --host localhost"), "localhost:8000");
    assert_eq!(of("sglang serve m"), "127.0.0.1:30000");
    assert_eq!(of("python -m sglang.launch_server --host 0.0.0.0 --port=81"), "127.0.0.1:81");
}

#[test]
fn sglang_is_told_the_socket_in_its_environment() {
    let line = with_cache(Engine::Sglang, &words(&["sglang", "serve", "m"]), wishes()).unwrap();
    assert_eq!(line.environment, [("ORBITKV_SOCKET", "/s/m.sock".into())]);
    assert_eq!(line.words[..3], words(&["sglang", "serve", "m"]));
    let line = with_cache(Engine::Vllm, &words(&["vllm", "serve", "m"]), wishes()).unwrap();
    assert_eq!(line.environment, []);
}
