//! Tells whoever started the manager that engines can connect.

use serde::Serialize;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

#[derive(Serialize)]
struct Ready<'a> {
    pid: u32,
    socket: &'a Path,
    http: Option<String>,
}

/// Writes the file whole or not at all: a reader that polls for it never sees a part.
pub(crate) fn write(path: &Path, socket: &Path, http: Option<SocketAddr>) -> io::Result<()> {
    let ready = Ready { pid: std::process::id(), socket, http: http.map(|a| a.to_string()) };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    fs::write(&temporary, serde_json::to_vec(&ready)?)?;
    fs::rename(&temporary, path).inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    })
}
