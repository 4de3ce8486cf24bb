//! How much memory a pool may still take: what the host has left, and what the cgroups above us leave.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::ShmError;

/// Memory that can still be taken, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AvailableMemory {
    /// `MemAvailable` of the host.
    pub host_bytes: u64,
    /// Smallest headroom of our cgroup and those above it; `None` without a limit.
    pub cgroup_bytes: Option<u64>,
}

impl AvailableMemory {
    /// The smaller of both.
    #[must_use]
    pub fn usable_bytes(&self) -> u64 {
        self.cgroup_bytes.map_or(self.host_bytes, |cgroup| cgroup.min(self.host_bytes))
    }
}

/// Reads what is available now; it changes with every other process on the host.
pub fn available_memory() -> Result<AvailableMemory, ShmError> {
    available_memory_under(Path::new("/proc"), Path::new("/sys/fs/cgroup"))
}

/// The same from other mounts of procfs and of the cgroup hierarchies: a container's, or a test's.
pub fn available_memory_under(proc_dir: &Path, cgroup_dir: &Path) -> Result<AvailableMemory, ShmError> {
    let meminfo = proc_dir.join("meminfo");
    let failed = |reason: String| ShmError::MemoryInfo { file: meminfo.display().to_string(), reason };
    let text = fs::read_to_string(&meminfo).map_err(|error| failed(error.to_string()))?;
    let host_bytes =
        parse_mem_available(&text).ok_or_else(|| failed("no MemAvailable line in kB".to_owned()))?;
    // No cgroup file, or no memory controller: no limit to respect.
    let membership = fs::read_to_string(proc_dir.join("self/cgroup")).unwrap_or_default();
    let mut cgroup_bytes = None;
    for (hierarchy, path) in parse_memberships(&membership) {
        let headroom = hierarchy.headroom(cgroup_dir, path)?;
        cgroup_bytes = [cgroup_bytes, headroom].into_iter().flatten().min();
    }
    Ok(AvailableMemory { host_bytes, cgroup_bytes })
}

/// `MemAvailable` of `/proc/meminfo`, in bytes.
fn parse_mem_available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The two generations of control groups, by the names of their memory files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hierarchy {
    V1,
    V2,
}

/// Lines of `/proc/self/cgroup` that may limit memory: `0::/path` and `4:memory:/path`.
fn parse_memberships(text: &str) -> impl Iterator<Item = (Hierarchy, &str)> {
    text.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        if id == "0" && controllers.is_empty() {
            Some((Hierarchy::V2, path))
        } else if controllers.split(',').any(|controller| controller == "memory") {
            Some((Hierarchy::V1, path))
        } else {
            None
        }
    })
}

/// A limit in bytes. `max` (v2) and the "no limit" of v1, the largest multiple of a page, mean none.
fn parse_limit(text: &str) -> Option<u64> {
    let bytes: u64 = text.trim().parse().ok()?;
    (bytes < 1 << 62).then_some(bytes)
}

/// One `name value` line of `memory.stat`, in bytes.
fn parse_stat(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

impl Hierarchy {
    /// Names of the limit file, the usage file, and the reclaimable file cache in `memory.stat`.
    fn names(self) -> [&'static str; 3] {
        match self {
            Hierarchy::V1 => ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"],
            Hierarchy::V2 => ["memory.max", "memory.current", "inactive_file"],
        }
    }

    /// Where the hierarchy is mounted: v2 alone at the top, or in `unified` beside v1.
    fn mount(self, cgroup_dir: &Path) -> PathBuf {
        match self {
            Hierarchy::V1 => cgroup_dir.join("memory"),
            Hierarchy::V2 if cgroup_dir.join("unified").is_dir() => cgroup_dir.join("unified"),
            Hierarchy::V2 => cgroup_dir.to_owned(),
        }
    }

    /// Smallest headroom from our group up to the mount: a limit binds everything below it.
    fn headroom(self, cgroup_dir: &Path, path: &str) -> Result<Option<u64>, ShmError> {
        let mount = self.mount(cgroup_dir);
        // In a container the path may be the host's and absent here; its existing ancestors still count. A path that
        // leads above our namespace ("/../x") starts at the mount.
        let relative = Path::new(path.trim_start_matches('/'));
        let inside = relative.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        let group = if inside { mount.join(relative) } else { mount.clone() };
        let mut smallest = None;
        for directory in group.ancestors().take_while(|directory| directory.starts_with(&mount)) {
            smallest = [smallest, self.group_headroom(directory)?].into_iter().flatten().min();
        }
        Ok(smallest)
    }

    /// Headroom of one group: limit less usage, where inactive file cache counts as free, as `MemAvailable` counts it.
    fn group_headroom(self, directory: &Path) -> Result<Option<u64>, ShmError> {
        let [limit, usage, cache] = self.names();
        let Some(limit_bytes) = read_optional(&directory.join(limit))?.as_deref().and_then(parse_limit)
        else {
            return Ok(None);
        };
        let usage_file = directory.join(usage);
        let text = read_optional(&usage_file)?.unwrap_or_default();
        let used_bytes: u64 = text.trim().parse().map_err(|_| ShmError::MemoryInfo {
            file: usage_file.display().to_string(),
            reason: format!("{text:?} is not a number of bytes"),
        })?;
        let stat = read_optional(&directory.join("memory.stat"))?.unwrap_or_default();
        let cache_bytes = parse_stat(&stat, cache).unwrap_or(0);
        Ok(Some(limit_bytes.saturating_sub(used_bytes.saturating_sub(cache_bytes))))
    }
}

/// Content of `file`, `None` where it does not exist: the root group has no limit file.
fn read_optional(file: &Path) -> Result<Option<String>, ShmError> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            Err(ShmError::MemoryInfo { file: file.display().to_string(), reason: error.to_string() })
        }
    }
}

#[cfg(test)]
mod tests;
