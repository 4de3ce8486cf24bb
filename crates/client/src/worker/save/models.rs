//! Every order in which the copy of a page, its giving up and those who want its block can meet.

use super::*;
use crate::sync::{Mutex, model};
use loom::thread;
use orbitkv_copy::model::{ModelJob, layout};

const LONG: Duration = Duration::from_secs(600);
const ORIGIN: Origin = Origin { session: 1, scheduler: 1, operation: 1, revision: 1, probe: false };

fn pages(count: u32) -> (Arc<SaveGroup>, Vec<Arc<SavePage>>) {
    let (group, layout) = (Arc::new(SaveGroup::new(count as usize)), Arc::new(layout().unwrap()));
    let part = PagePart::from(&orbitkv_wire::Part::default());
    let page = |block| {
        Arc::new(SavePage::new(ORIGIN, &layout, (block, [0; 32], part), &group, &StreamOrder::default()))
    };
    let pages = (0..count).map(page).collect();
    (group, pages)
}

#[test]
fn a_page_ends_once_and_whoever_waits_for_the_save_is_woken() {
    model(|| {
        let (group, pages) = pages(2);
        let ends = |pages: &[Arc<SavePage>]| pages.iter().filter(|page| page.end()).count();
        let all = pages.clone();
        let copier = thread::spawn(move || ends(&all));
        let ended = ends(&pages[..1]);
        let save = Save::new(group);
        assert!(save.wait(LONG), "neither a wake-up lost nor a page counted twice");
        assert_eq!(ended + copier.join().unwrap(), 2);
        assert!(save.poll());
    });
}

/// As the copy thread and a fence do: the page is given up under a lock while it is queued, or stopped.
#[test]
fn a_block_is_reused_only_when_its_page_is_still() {
    model(|| {
        let (_, pages) = pages(1);
        let (page, work) = (Arc::clone(&pages[0]), Arc::new(Mutex::new(())));
        let bytes = Arc::new(loom::cell::Cell::new(0));
        let (copied, lock, source) = (Arc::clone(&page), Arc::clone(&work), Arc::clone(&bytes));
        let copier = thread::spawn(move || {
            let started = {
                let _work = lock.lock().unwrap();
                copied.start()
            };
            if started {
                let job = ModelJob::new();
                copied.submitted(Arc::clone(job.progress()));
                job.run(|| assert_eq!(source.get(), 0, "read before it is reused"));
                copied.end();
            }
        });
        let queued = {
            let _work = work.lock().unwrap();
            page.is_queued() && page.end()
        };
        let stopped = queued || page.stop();
        assert!(page.is_still());
        // Loom fails the model if the copy may still read this.
        bytes.set(1);
        copier.join().unwrap();
        assert!(stopped || page.is_still());
    });
}

#[test]
fn a_waiter_for_a_running_page_learns_that_it_is_still() {
    model(|| {
        let (_, pages) = pages(1);
        let (page, copied) = (Arc::clone(&pages[0]), Arc::clone(&pages[0]));
        let bytes = Arc::new(loom::cell::Cell::new(0));
        let source = Arc::clone(&bytes);
        let copier = thread::spawn(move || {
            assert!(copied.start());
            let job = ModelJob::new();
            copied.submitted(Arc::clone(job.progress()));
            // The end is told much later: the copy thread has others to look after.
            job.run(|| assert_eq!(source.get(), 0, "read before it is reused"));
        });
        assert!(page.wait_still(Instant::now() + LONG));
        bytes.set(1);
        copier.join().unwrap();
    });
}
