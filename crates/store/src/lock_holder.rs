//! Who works in a cache directory.

use crate::survey::OWNER;
use rustix::fs::{major, minor};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The process that holds the lock of a cache directory. `None` where nobody does, or where the kernel does not
/// tell: the process may be of another container, or the file system on another host.
#[must_use]
pub fn lock_holder(directory: &Path) -> Option<u32> {
    let found = fs::symlink_metadata(directory.join(OWNER)).ok()?;
    let file = format!("{:02x}:{:02x}:{}", major(found.dev()), minor(found.dev()), found.ino());
    holder_in(&fs::read_to_string("/proc/locks").ok()?, &file)
}

/// A line: `5: FLOCK  ADVISORY  WRITE 4711 fe:00:131074 0 EOF`, with `->` behind the number if it waits.
fn holder_in(locks: &str, file: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let held = words.next() == Some("FLOCK");
        let process = words.nth(2)?.parse().ok();
        process.filter(|process| held && *process > 0 && words.next() == Some(file))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_file_names_its_process() {
        let locks = "1: POSIX  ADVISORY  READ  11 fe:00:131074 0 EOF\n2: FLOCK  ADVISORY  WRITE 12 fe:00:7 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 13 fe:00:131074 0 EOF\n3: -> FLOCK  ADVISORY  WRITE 14 fe:00:8 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 0 fe:00:9 0 EOF\nnothing\n";
        assert_eq!(holder_in(locks, "fe:00:131074"), Some(13));
        assert_eq!(holder_in(locks, "fe:00:8"), None, "it only waits");
        assert_eq!(holder_in(locks, "fe:00:9"), None, "of another container");
        assert_eq!(holder_in(locks, "fe:00:10"), None);
    }
}
