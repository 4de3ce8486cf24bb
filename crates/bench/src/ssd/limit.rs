//! What the disk gives: fio where it is installed, else threads that read and write with O_DIRECT.

use super::Way;
use anyhow::{Context, Result, ensure};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Instant;

/// A way to measure the file.
pub(crate) struct Limit {
    file: PathBuf,
    bytes: usize,
    depth: u32,
    fio: bool,
}

impl Limit {
    /// On that file, which has `bytes`.
    pub(crate) fn find(file: &Path, bytes: usize, depth: u32) -> Self {
        let fio = Command::new("fio").arg("--version").output().is_ok_and(|output| output.status.success());
        Self { file: file.to_owned(), bytes, depth, fio }
    }

    pub(crate) fn is_fio(&self) -> bool {
        self.fio
    }

    /// The whole file, in order.
    pub(crate) fn gb_per_second(&self, way: Way, page_bytes: usize) -> Result<f64> {
        if self.fio { self.fio(way, page_bytes) } else { self.plain(way, page_bytes) }
    }

    /// With registered buffers, as ours are, in memory of its own choice.
    fn fio(&self, way: Way, page_bytes: usize) -> Result<f64> {
        let name = match way {
            Way::Read => "read",
            Way::Write => "write",
        };
        let output = Command::new("fio")
            .args(["--name=limit", "--ioengine=io_uring", "--direct=1", "--fixedbufs=1", "--thread"])
            .args(["--output-format=json", "--overwrite=1", "--allow_file_create=0"])
            .arg(format!("--filename={}", self.file.display()))
            .arg(format!("--size={}", self.bytes))
            .arg(format!("--loops={}", way.times()))
            .arg(format!("--bs={page_bytes}"))
            .arg(format!("--rw={name}"))
            .arg(format!("--iodepth={}", self.depth))
            .output()
            .context("fio does not start")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "fio failed: {said}");
        bytes_per_second(&output.stdout, name).map(|bytes| bytes / 1e9)
    }

    /// A thread for each place of the queue, with every so-manieth page.
    fn plain(&self, way: Way, page_bytes: usize) -> Result<f64> {
        let mut options = OpenOptions::new();
        let direct = i32::try_from(OFlags::DIRECT.bits())?;
        options.read(true).write(true).custom_flags(direct);
        let (file, step) = (options.open(&self.file).context("O_DIRECT")?, self.depth as usize);
        let start = Instant::now();
        thread::scope(|scope| {
            let thread = |first| {
                let (file, pages) = (&file, (first..self.bytes / page_bytes).step_by(step));
                let pages = (0..way.times()).flat_map(move |_| pages.clone());
                scope.spawn(move || transfer(file, way, page_bytes, pages))
            };
            let threads: Vec<_> = (0..step).map(thread).collect();
            threads.into_iter().try_for_each(|thread| match thread.join() {
                Ok(result) => result,
                Err(_) => anyhow::bail!("a thread of the plain loop panicked"),
            })
        })?;
        Ok((way.times() * self.bytes) as f64 / start.elapsed().as_secs_f64() / 1e9)
    }
}

fn transfer(file: &File, way: Way, page_bytes: usize, pages: impl Iterator<Item = usize>) -> Result<()> {
    const BLOCK: usize = 4096;
    let mut memory = vec![1_u8; page_bytes + BLOCK];
    let at = memory.as_ptr().align_offset(BLOCK);
    let page = memory.get_mut(at..at + page_bytes).context("no aligned memory")?;
    for number in pages {
        let offset = (number * page_bytes) as u64;
        match way {
            Way::Read => file.read_exact_at(page, offset)?,
            Way::Write => file.write_all_at(page, offset)?,
        }
    }
    Ok(())
}

/// Out of fio's report.
fn bytes_per_second(report: &[u8], way: &str) -> Result<f64> {
    let report: serde_json::Value = serde_json::from_slice(report).context("fio's report is no JSON")?;
    let value = report.pointer(&format!("/jobs/0/{way}/bw_bytes")).and_then(serde_json::Value::as_f64);
    value.filter(|bytes| *bytes > 0.0).context("fio's report has no bw_bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bandwidth_of_the_right_way_is_read_from_the_report() {
        let report = br#"{"jobs": [{"read": {"bw_bytes": 7000}, "write": {"bw_bytes": 0}}]}"#;
        assert_eq!(bytes_per_second(report, "read").unwrap(), 7000.0);
        assert!(bytes_per_second(report, "write").is_err(), "nothing was written");
        assert!(bytes_per_second(b"fio: bad option", "read").is_err());
    }

    #[test]
    fn the_plain_loop_touches_every_page() {
        // Where the build is: the directory for temporary files may be in memory.
        let beside = std::env::current_exe().unwrap();
        let dir = tempfile::tempdir_in(beside.parent().unwrap()).unwrap();
        let file = dir.path().join("pages");
        std::fs::write(&file, vec![0; 7 * 8192]).unwrap();
        let limit = Limit { file: file.clone(), bytes: 7 * 8192, depth: 3, fio: false };
        assert!(limit.plain(Way::Write, 8192).unwrap() > 0.0 && limit.plain(Way::Read, 8192).unwrap() > 0.0);
        assert!(std::fs::read(&file).unwrap().iter().all(|byte| *byte == 1));
    }
}
