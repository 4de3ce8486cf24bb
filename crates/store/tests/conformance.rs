//! Both disks of this crate against the suite.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

use orbitkv_store::conformance::{self, Harness};
use orbitkv_store::sim::{Faults, SimDisk};
use orbitkv_store::{FileDisk, HostDirectory};
use tempfile::TempDir;

struct Files(Vec<TempDir>);

impl Harness for Files {
    type Disk = FileDisk<Vec<u8>>;

    fn empty(&mut self) -> Self::Disk {
        self.0.push(tempfile::tempdir().unwrap());
        FileDisk::new(HostDirectory::open(self.0.last().unwrap().path()).unwrap())
    }

    fn another(&mut self, _: &Self::Disk) -> Self::Disk {
        FileDisk::new(HostDirectory::open(self.0.last().unwrap().path()).unwrap())
    }

    fn buffer(&mut self, bytes: &[u8]) -> Vec<u8> {
        bytes.to_vec()
    }

    fn contents(&self, buffer: &Vec<u8>) -> Vec<u8> {
        buffer.clone()
    }
}

struct Simulated {
    slow_polls: u64,
}

impl Harness for Simulated {
    type Disk = SimDisk;

    fn empty(&mut self) -> SimDisk {
        let mut disk = SimDisk::new(1 << 30, 7);
        disk.set_faults(Faults { slow_polls: self.slow_polls, ..Faults::default() });
        disk
    }

    fn another(&mut self, disk: &SimDisk) -> SimDisk {
        disk.another(8)
    }

    fn buffer(&mut self, bytes: &[u8]) -> Vec<u8> {
        bytes.to_vec()
    }

    fn contents(&self, buffer: &Vec<u8>) -> Vec<u8> {
        buffer.clone()
    }
}

#[test]
fn ordinary_files_conform() {
    conformance::run(&mut Files(Vec::new()));
}

#[test]
fn the_simulated_disk_conforms() {
    for slow_polls in [0, 5] {
        conformance::run(&mut Simulated { slow_polls });
    }
}
