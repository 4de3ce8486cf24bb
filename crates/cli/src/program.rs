//! Which file a name runs.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The file that a name runs: the name itself if it has a directory, else the first on PATH. Absolute.
pub(crate) fn on_path(name: &Path) -> Option<PathBuf> {
    if name.components().count() > 1 {
        return is_program(name).then(|| std::path::absolute(name).unwrap_or_else(|_| name.into()));
    }
    let path = env::var_os("PATH")?;
    let found = env::split_paths(&path).map(|dir| dir.join(name)).find(|file| is_program(file))?;
    Some(std::path::absolute(&found).unwrap_or(found))
}

/// Whether the file may be run.
pub(crate) fn is_program(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
