//! The meeting point of manager, engines and command line.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The manager's socket when nobody names one: in `$XDG_RUNTIME_DIR` if that is an absolute path, else
/// in a directory of `/tmp` that belongs to the user alone.
///
/// `runtime_dir` is the value of `XDG_RUNTIME_DIR`, `uid` the effective user id.
#[must_use]
pub fn default_socket(runtime_dir: Option<&OsStr>, uid: u32) -> PathBuf {
    match runtime_dir.map(Path::new).filter(|dir| dir.is_absolute()) {
        Some(dir) => dir.join("orbitkv/manager.sock"),
        None => format!("/tmp/orbitkv-{uid}/manager.sock").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_absolute_runtime_directory_counts() {
        let of = |dir: Option<&str>| default_socket(dir.map(OsStr::new), 7);
        assert_eq!(of(Some("/run/user/7")), Path::new("/run/user/7/orbitkv/manager.sock"));
        for dir in [None, Some(""), Some("run")] {
            assert_eq!(of(dir), Path::new("/tmp/orbitkv-7/manager.sock"), "{dir:?}");
        }
    }
}
