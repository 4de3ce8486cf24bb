use super::*;
use crate::Invocation;
use orbitkv_shm::available_memory_under;
use std::fs;
use std::path::Path;

const MIB: u64 = 1 << 20;
const MEMORY: AvailableMemory = AvailableMemory { host_bytes: 16 << 30, cgroup_bytes: Some(8 << 30) };

fn configuration(flags: &[&str]) -> Configuration {
    let words = std::iter::once("manager").chain(flags.iter().copied());
    match Invocation::parse(words) {
        Ok(Invocation::Serve(configuration)) => configuration,
        other => panic!("{other:?}"),
    }
}

fn config_of(flags: &[&str]) -> Result<Config, SettingsError> {
    config(&configuration(flags), MEMORY)
}

/// What a manager would make of a host whose files say this.
fn on_host(meminfo_kib: u64, cgroup: &[(&str, &str)], flags: &[&str]) -> Result<Config, SettingsError> {
    let root = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| {
        let path = root.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("proc/meminfo", &format!("MemTotal: 999999999 kB\nMemAvailable: {meminfo_kib} kB\n"));
    write("sys/cgroup.procs", "");
    for (file, text) in cgroup {
        write(file, text);
    }
    let under = |name: &str| root.path().join(name);
    let memory = available_memory_under(&under("proc"), &under("sys")).unwrap();
    config(&configuration(flags), memory)
}

const V2: &[(&str, &str)] = &[
    ("proc/self/cgroup", "0::/pod\n"),
    ("sys/pod/memory.max", "4294967296\n"),
    ("sys/pod/memory.current", "1073741824\n"),
    ("sys/pod/memory.stat", "inactive_file 0\n"),
];
const V1: &[(&str, &str)] = &[
    ("proc/self/cgroup", "4:memory:/pod\n"),
    ("sys/memory/pod/memory.limit_in_bytes", "4294967296\n"),
    ("sys/memory/pod/memory.usage_in_bytes", "1073741824\n"),
];

#[test]
fn a_quarter_of_the_smaller_memory_by_default() {
    let config = config_of(&[]).unwrap();
    assert_eq!(config.pool_bytes, 2 << 30);
    assert_eq!(config.query_budget_bytes, 3 << 29);
    assert_eq!(config.query_instance_budget_bytes, 3 << 29);
}

#[test]
fn the_default_is_a_quarter_of_what_the_cgroup_leaves() {
    for cgroup in [V1, V2] {
        // Limit less usage is 3 GiB, of 16 GiB that the host has.
        assert_eq!(on_host(16 << 20, cgroup, &[]).unwrap().pool_bytes, 768 * MIB);
    }
}

#[test]
fn the_default_is_a_quarter_of_the_host_where_the_cgroup_leaves_more() {
    for cgroup in [V1, V2, &[]] {
        assert_eq!(on_host(2 << 20, cgroup, &[]).unwrap().pool_bytes, 512 * MIB);
    }
}

#[test]
fn a_share_is_whole_segments_and_leaves_64_mib() {
    for share in ["1%", "25%", "99%", "100%"] {
        for usable_bytes in [70 * MIB + 4096, 129 * MIB, 1000 * MIB + 1, (9 << 30) + 12_345, 1 << 42] {
            let memory = AvailableMemory { host_bytes: usable_bytes, cgroup_bytes: None };
            let config = match config(&configuration(&["--pool-size", share]), memory) {
                Ok(config) => config,
                Err(SettingsError::PoolTooSmall { .. }) if share == "1%" => continue,
                Err(error) => panic!("{share} of {usable_bytes}: {error}"),
            };
            let at = format!("{share} of {usable_bytes}: {config:?}");
            assert!(config.pool_bytes > 0 && config.pool_bytes.is_multiple_of(config.segment_bytes), "{at}");
            assert!(config.pool_bytes + 64 * MIB <= usable_bytes, "{at}");
            assert!(config.pool_bytes <= Amount::of(share.parse().unwrap(), usable_bytes), "{at}");
        }
    }
}

#[test]
fn a_given_segment_size_rounds_the_share() {
    let config = config_of(&["--segment-size", "3mib"]).unwrap();
    assert_eq!(config.pool_bytes, 2048 / 3 * 3 * MIB);
}

#[test]
fn without_room_for_any_pool_the_memory_is_named() {
    assert_eq!(on_host(65 << 10, V2, &["--pool-size", "1mib"]).unwrap().pool_bytes, MIB);
    let error = on_host(64 << 10, V2, &["--pool-size", "2mib"]).unwrap_err();
    assert_eq!(error, SettingsError::NoMemory { usable_bytes: 64 * MIB, limit: "" });
    let full = [V2[0], V2[1], ("sys/pod/memory.current", "4294967296\n")];
    let text = on_host(16 << 20, &full, &[]).unwrap_err().to_string();
    assert!(text.contains("only 0 bytes") && text.contains("cgroup"), "{text}");
}

#[test]
fn a_pool_beyond_memory_is_refused_with_both_numbers() {
    let text = config_of(&["--pool-size", "9gib"]).unwrap_err().to_string();
    for part in ["--pool-size is", "9663676416", "8589934592", "cgroup", "--pool-size 6144mib"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

#[test]
fn a_pool_beyond_what_the_cgroup_leaves_is_refused_with_both_numbers() {
    for cgroup in [V1, V2] {
        let text = on_host(16 << 20, cgroup, &["--pool-size", "3gib"]).unwrap_err().to_string();
        for part in ["--pool-size is 3221225472", "only 3221225472", "cgroup", "--pool-size 2304mib"] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
        let most = on_host(16 << 20, cgroup, &["--pool-size", "3008mib"]).unwrap();
        assert_eq!(most.pool_bytes, 3008 * MIB, "all but the 64 MiB that stay free");
    }
}

#[test]
fn an_error_names_the_line_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let write = |text: &str| {
        let path = dir.path().join("m.toml");
        fs::write(&path, text).unwrap();
        path
    };
    let refused = |path: &Path| config_of(&["--config", path.to_str().unwrap()]).unwrap_err().to_string();
    let text = refused(&write("\npool_size = \"9gib\"\n"));
    assert!(text.contains("m.toml:2") && text.contains("--pool-size"), "{text}");
    let text = refused(&write("pool_size = \"64mib\"\nquery_budget = 67108865\n"));
    assert!(text.starts_with("query_budget (") && text.contains("m.toml:2)"), "{text}");
}

#[test]
fn the_instance_budget_follows_the_query_budget() {
    let config = config_of(&["--query-budget", "100mib"]).unwrap();
    assert_eq!(config.query_instance_budget_bytes, 100 << 20);
}

#[test]
fn parts_larger_than_their_whole_are_refused_by_flag() {
    let pool = ["--pool-size", "64mib"];
    for (flag, value) in [("--query-budget", "65mib"), ("--segment-size", "1gib")] {
        let error = config_of(&[pool[0], pool[1], flag, value]).unwrap_err();
        assert!(matches!(&error, SettingsError::TooLarge { name, .. } if name == flag), "{error}");
    }
    let flags = [pool[0], pool[1], "--query-budget", "10%", "--query-instance-budget", "11%"];
    assert!(config_of(&flags).unwrap_err().to_string().contains("--query-instance-budget"));
}

#[test]
fn too_small_pools_and_odd_segments_are_refused() {
    assert!(matches!(config_of(&["--pool-size", "1kb"]), Err(SettingsError::PoolTooSmall { .. })));
    let odd = config_of(&["--segment-size", "100001"]);
    assert_eq!(odd, Err(SettingsError::Segment { name: "--segment-size".to_owned(), got: 100_001 }));
}

#[test]
fn segments_of_small_pools_are_whole_memory_pages() {
    let config = config_of(&["--pool-size", "1mib"]).unwrap();
    assert!(config.segment_bytes.is_multiple_of(4096), "{}", config.segment_bytes);
}
