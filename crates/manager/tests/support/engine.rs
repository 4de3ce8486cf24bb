//! A solo engine: one session that schedules and copies.

use super::{Client, Manager, hello};
use orbitkv_wire::{CommitItem, GrantStatus, Hash, Hello, Kind, Part, QueryRule, ToClient, ToManager};
use std::ops::{Deref, DerefMut};
use std::path::Path;

/// Payload bytes of one page.
pub const PAGE_BYTES: usize = 10_000;

/// The hash of block `i`.
pub fn hash(i: u64) -> Hash {
    let mut hash = [0x5a; 32];
    hash[..8].copy_from_slice(&i.to_le_bytes());
    hash
}

/// The bytes of block `i`; no two blocks share a prefix or suffix.
pub fn page(i: u64) -> Vec<u8> {
    let mut state = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    std::iter::repeat_with(next).take(PAGE_BYTES).collect()
}

/// A session whose self-test has passed.
pub struct Engine {
    client: Client,
    operation: u64,
}

impl Deref for Engine {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for Engine {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

impl Engine {
    pub fn start(manager: &Manager) -> Self {
        Self::with_hello(&manager.socket, &hello(1, 1, 1))
    }

    /// Connects, attests, and waits until hits and saves are on.
    pub fn with_hello(socket: &Path, hello: &Hello) -> Self {
        let mut client = Client::connect(socket);
        client.greet(hello).unwrap();
        client.send(&ToManager::Attest { passed: true }, 0, 0);
        while client.expect(Kind::InstanceState).body() != (ToClient::InstanceState { active: true }) {}
        Self { client, operation: 0 }
    }

    pub fn next_operation(&mut self) -> u64 {
        self.operation += 1;
        self.operation
    }

    /// Reserves slots for blocks until each has one, and gives their parts.
    pub fn reserve(&mut self, blocks: &[u64]) -> Vec<Part> {
        let hashes: Vec<Hash> = blocks.iter().map(|i| hash(*i)).collect();
        super::wait_for("slots for all blocks", || {
            let operation = self.next_operation();
            let message = ToManager::Reserve { group: 0, parent: None, first_depth: 0, hashes: &hashes };
            self.send(&message, operation, 0);
            let answer = self.expect(Kind::Granted);
            assert_eq!(answer.operation, operation);
            let ToClient::Granted(body) = answer.body() else { panic!("not granted") };
            let all = (0..blocks.len()).all(|i| body.status(i) == Some(GrantStatus::Slots));
            if !all {
                let slots: Vec<_> = body.parts.iter().map(|part| part.slot).collect();
                self.send(&ToManager::Abort(&slots), 0, 0);
                return None;
            }
            Some(body.parts.to_vec())
        })
    }

    /// Saves blocks as one prefix, with checksums that are theirs.
    pub fn save_checked(&mut self, blocks: &[u64]) {
        self.save_as(blocks, |i| crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &page(i)));
    }

    /// Saves blocks as one prefix. The manager believes whatever checksum it is told.
    pub fn save(&mut self, blocks: &[u64]) {
        self.save_as(blocks, |i| i + 1000);
    }

    fn save_as(&mut self, blocks: &[u64], crc: impl Fn(u64) -> u64) {
        let parts = self.reserve(blocks);
        let items: Vec<_> = blocks
            .iter()
            .zip(&parts)
            .map(|(i, part)| {
                self.write_page(&part.slot, &page(*i));
                CommitItem { slot: part.slot, hash: hash(*i), crc: crc(*i).into() }
            })
            .collect();
        self.send(&ToManager::Commit(&items), 0, 0);
    }

    /// Asks for a prefix; the operation and the leased parts, none for a miss.
    pub fn query(&mut self, blocks: &[u64]) -> (u64, Vec<Part>) {
        let operation = self.next_operation();
        let hashes: Vec<Hash> = blocks.iter().map(|i| hash(*i)).collect();
        self.send(
            &ToManager::Query { group: 0, deadline_ms: 0, rule: QueryRule::default(), hashes: &hashes },
            operation,
            0,
        );
        loop {
            let answer = self.expect(Kind::Operation);
            assert_eq!(answer.operation, operation);
            match answer.body() {
                ToClient::Waiting => {}
                ToClient::Ready { pages, shards, parts } => {
                    assert_eq!((pages as usize, shards), (parts.len(), 1));
                    return (operation, parts.to_vec());
                }
                _ => return (operation, Vec::new()),
            }
        }
    }

    /// Restores a leased operation and gives the bytes of its pages.
    pub fn restore(&mut self, operation: u64, parts: &[Part]) -> Vec<Vec<u8>> {
        let restore = ToManager::Restore { first: 0, pages: u32::try_from(parts.len()).unwrap() };
        self.send(&restore, operation, 0);
        let bytes = parts.iter().map(|part| self.read_page(&part.slot)).collect();
        let session = self.session;
        self.send(&ToManager::CopyDone { session, operation, revision: 0 }, 0, 0);
        self.send(&ToManager::Release, operation, 0);
        bytes
    }
}
