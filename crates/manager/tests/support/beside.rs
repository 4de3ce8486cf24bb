//! A well-behaved engine beside whatever a test does.

use super::{Engine, Manager, PATIENCE, hello, page};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Queries and restores the same two pages, over and over, and compares their bytes.
pub struct Beside {
    served: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Beside {
    pub fn start(manager: &Manager) -> Self {
        let mut engine = Engine::with_hello(&manager.socket, &hello(0xbe51de, 0xbe51de, 1));
        let blocks = [9_001, 9_002];
        engine.save(&blocks);
        let (served, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, end) = (Arc::clone(&served), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !end.load(Ordering::Acquire) {
                let (operation, parts) = engine.query(&blocks);
                let pages = engine.restore(operation, &parts);
                assert!(pages == blocks.map(page), "the pages of another");
                count.fetch_add(1, Ordering::Release);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let beside = Self { served, stop, thread: Some(thread) };
        beside.is_served();
        beside
    }

    /// Waits until it was served three more times from now on.
    pub fn is_served(&self) {
        let (start, before) = (Instant::now(), self.served.load(Ordering::Acquire));
        while self.served.load(Ordering::Acquire) < before + 3 {
            let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
            assert!(!ended && start.elapsed() < PATIENCE, "the engine beside is not served any more");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends it; it fails the test if anything had gone wrong.
    pub fn stop(mut self) {
        self.is_served();
        self.stop.store(true, Ordering::Release);
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}
