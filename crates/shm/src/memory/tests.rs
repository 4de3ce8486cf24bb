use super::*;

fn write(root: &Path, file: &str, text: &str) {
    let path = root.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

const MEMINFO: &str = "MemTotal:       24684084 kB\nMemFree:  100 kB\nMemAvailable:   1000 kB\n";

fn world(membership: &str) -> (tempfile::TempDir, PathBuf, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "proc/meminfo", MEMINFO);
    write(root.path(), "proc/self/cgroup", membership);
    let (proc_dir, cgroup_dir) = (root.path().join("proc"), root.path().join("cgroup"));
    fs::create_dir_all(&cgroup_dir).unwrap();
    (root, proc_dir, cgroup_dir)
}

#[test]
fn meminfo_is_read_in_bytes_and_refused_without_its_line() {
    assert_eq!(parse_mem_available(MEMINFO), Some(1000 * 1024));
    assert_eq!(parse_mem_available("MemTotal: 5 kB\n"), None);
    assert_eq!(parse_mem_available("MemAvailable: 5 MB\n"), None);
    assert_eq!(parse_mem_available("MemAvailable: 18446744073709551615 kB\n"), None, "overflow");
}

#[test]
fn limits_and_memberships_are_parsed() {
    assert_eq!(parse_limit("max\n"), None);
    assert_eq!(parse_limit("9223372036854771712\n"), None, "v1 without a limit");
    assert_eq!(parse_limit("1048576\n"), Some(1 << 20));
    assert_eq!(parse_stat("active_file 5\ninactive_file 7\n", "inactive_file"), Some(7));
    let text = "9:name=systemd:/\n4:cpu,memory:/pod/a:b\n0::/x\n";
    let found: Vec<_> = parse_memberships(text).collect();
    assert_eq!(found, [(Hierarchy::V1, "/pod/a:b"), (Hierarchy::V2, "/x")]);
}

#[test]
fn the_tightest_v2_group_on_the_way_up_counts() {
    let (_root, proc_dir, cgroup_dir) = world("0::/outer/inner\n");
    write(&cgroup_dir, "outer/memory.max", "5000\n");
    write(&cgroup_dir, "outer/memory.current", "4500\n");
    write(&cgroup_dir, "outer/memory.stat", "anon 1\ninactive_file 200\n");
    write(&cgroup_dir, "outer/inner/memory.max", "max\n");
    write(&cgroup_dir, "outer/inner/memory.current", "400\n");
    let memory = available_memory_under(&proc_dir, &cgroup_dir).unwrap();
    assert_eq!(memory, AvailableMemory { host_bytes: 1_024_000, cgroup_bytes: Some(700) });
    assert_eq!(memory.usable_bytes(), 700);
}

#[test]
fn a_v1_limit_counts_and_usage_above_it_leaves_nothing() {
    let (_root, proc_dir, cgroup_dir) = world("4:memory:/pod\n0::/\n");
    fs::create_dir_all(cgroup_dir.join("unified")).unwrap();
    write(&cgroup_dir, "memory/pod/memory.limit_in_bytes", "5000\n");
    write(&cgroup_dir, "memory/pod/memory.usage_in_bytes", "6000\n");
    write(&cgroup_dir, "memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_eq!(available_memory_under(&proc_dir, &cgroup_dir).unwrap().cgroup_bytes, Some(0));
}

#[test]
fn without_limits_the_host_decides() {
    let (_root, proc_dir, cgroup_dir) = world("0::/../elsewhere\n");
    let memory = available_memory_under(&proc_dir, &cgroup_dir).unwrap();
    assert_eq!(memory.cgroup_bytes, None);
    assert_eq!(memory.usable_bytes(), 1_024_000);
}

#[test]
fn nonsense_is_an_error_that_names_the_file() {
    let (_root, proc_dir, cgroup_dir) = world("0::/a\n");
    write(&cgroup_dir, "a/memory.max", "5000\n");
    write(&cgroup_dir, "a/memory.current", "many\n");
    let error = available_memory_under(&proc_dir, &cgroup_dir).unwrap_err().to_string();
    assert!(error.contains("memory.current") && error.contains("many"), "{error}");
}

#[test]
fn this_host_has_memory() {
    assert!(available_memory().unwrap().usable_bytes() > 0);
}
