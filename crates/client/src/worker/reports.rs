//! What the copy thread tells the manager: slots written, slots given back, and ends of custody.

use super::copier::{Commit, Copier};
use super::stats::add;
use crate::hooks;
use crate::operations::REQUEST_PAGES;
use orbitkv_wire::{CommitItem, Slot, ToManager};
use std::collections::HashMap;

impl Copier {
    pub(super) fn send_aborts(&mut self) {
        let aborts = std::mem::take(&mut self.work.lock().aborts);
        let mut by_session: HashMap<u64, Vec<Slot>> = HashMap::new();
        for (session, slot) in aborts {
            by_session.entry(session).or_default().push(slot);
        }
        for (session, slots) in by_session {
            for batch in slots.chunks(REQUEST_PAGES) {
                self.work.must(session, &ToManager::Abort(batch));
            }
        }
    }

    /// Commits what is copied: in full batches, or what there is when no save runs.
    pub(super) fn send_commits(&mut self) {
        if self.commits.is_empty() {
            return;
        }
        if hooks::is_held(hooks::COMMIT) && self.commits.iter().any(|c| !c.page.origin.probe) {
            for _ in self.noted_commits..self.commits.len() {
                hooks::note_reached(hooks::COMMIT);
            }
            self.noted_commits = self.commits.len();
            self.parked = true;
            return;
        }
        self.noted_commits = 0;
        let more_come = self.running_saves > 0 || self.chores.has_sums();
        while self.commits.len() >= REQUEST_PAGES || (!more_come && !self.commits.is_empty()) {
            let count = self.commits.len().min(REQUEST_PAGES);
            let batch: Vec<Commit> = self.commits.drain(..count).collect();
            self.commit(&batch);
        }
    }

    fn commit(&self, batch: &[Commit]) {
        // Pages of an earlier session are not ours to commit any more.
        for group in batch.chunk_by(|a, b| a.page.origin.session == b.page.origin.session) {
            let items: Vec<CommitItem> = group.iter().map(item).collect();
            let Some(first) = group.first() else { continue };
            let sent = self.work.must(first.page.origin.session, &ToManager::Commit(&items));
            for commit in group {
                if sent {
                    commit.page.group.committed(1);
                }
                if !commit.page.origin.probe {
                    let stats = &self.work.stats;
                    if sent {
                        add(&stats.saved_pages, 1);
                        add(&stats.saved_bytes, commit.page.bytes());
                    } else {
                        add(&stats.aborted_pages, 1);
                    }
                }
            }
        }
    }

    pub(super) fn answer_unserved(&self) {
        let mut inner = self.work.lock();
        let Some(session) = inner.session else { return };
        let unserved: Vec<_> = inner.unserved.take(session.boot).collect();
        drop(inner);
        for ticket in unserved {
            ticket.send(|message| {
                self.work.must(session.number, message);
            });
        }
    }

    /// Answers once nothing for the fenced scheduler runs, waits, or is still to be committed.
    pub(super) fn answer_fences(&mut self) {
        let mut inner = self.work.lock();
        let pages = || self.commits.iter().map(|commit| &commit.page).chain(self.chores.pages_to_sum());
        let busy = |scheduler: u64| {
            inner.copies_for(scheduler)
                || pages().any(|page| !page.origin.probe && page.origin.scheduler <= scheduler)
        };
        let (wait, answer): (Vec<_>, Vec<_>) = inner.fences.iter().partition(|(_, s)| busy(*s));
        inner.fences = wait;
        drop(inner);
        for (session, scheduler) in answer {
            self.work.must(session, &ToManager::Fenced { scheduler });
        }
    }

    pub(super) fn attest_ended_sessions(&self) {
        let mut inner = self.work.lock();
        let Some(session) = inner.session else { return };
        let ended = inner.take_ended_sessions();
        drop(inner);
        for earlier in ended {
            let sent = self.work.must(session.number, &ToManager::CopiesEnded { session: earlier });
            self.work.lock().attested(earlier, sent);
        }
    }
}

fn item(commit: &Commit) -> CommitItem {
    CommitItem { slot: commit.page.part.slot(), hash: commit.page.hash, crc: commit.crc.into() }
}
