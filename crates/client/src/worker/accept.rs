//! A ticket and engine blocks become a restore or a save, if they fit each other.

use super::Core;
use super::admission::Admission;
use super::load::{LoadJob, LoadSection};
use super::save::{SaveGroup, SavePage};
use super::{Load, Save};
use crate::registration::PROBE_GROUP;
use crate::ticket::{PagePart, Ticket, TicketError, TicketKind};
use crate::{ClientError, Hash};
use orbitkv_copy::{KvLayout, StreamOrder};
use std::collections::HashSet;
use std::sync::Arc;

/// What happens on the blocks of a ticket before they are copied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Before {
    /// Nothing any more.
    Nothing,
    /// What is on this stream of the engine now.
    Stream(usize),
    /// It is the self-test's, on memory of its own.
    Probe,
}

impl Core {
    pub(super) fn restore_ticket(
        self: &Arc<Self>,
        ticket: &Ticket,
        blocks: &[u32],
        before: Before,
    ) -> Result<Load, ClientError> {
        let probe = before == Before::Probe;
        let sections = self.check_ticket(ticket, TicketKind::Restore, blocks, probe)?;
        for section in &sections {
            let blocks = &blocks[section.pages.clone()];
            let mut seen = HashSet::with_capacity(blocks.len());
            if let Some(twice) = blocks.iter().find(|block| !seen.insert(**block)) {
                return Err(ClientError::value("block", twice, "given once: two pages would land in it"));
            }
        }
        let parts = ticket.parts_of(self.rank);
        let order = self.mark(ticket, &parts, before)?;
        let (job, admission) = self.work.accept_load(ticket, probe, |origin| {
            LoadJob::new(origin, sections, blocks.to_vec(), parts, order)
        })?;
        match admission {
            Admission::Accepted(_) => self.work.signal.raise(),
            Admission::Stale => {
                job.fail_all();
                job.end();
                self.work.decline(ticket, &job.parts);
            }
            Admission::Full(origin) => {
                job.fail_all();
                job.end();
                self.work.copy_done(origin);
            }
        }
        Ok(Load::new(job, Arc::clone(&self.work)))
    }

    pub(super) fn save_ticket(
        self: &Arc<Self>,
        ticket: &Ticket,
        blocks: &[u32],
        before: Before,
    ) -> Result<Save, ClientError> {
        let probe = before == Before::Probe;
        let sections = self.check_ticket(ticket, TicketKind::Save, blocks, probe)?;
        let [LoadSection { layout, .. }] = &sections[..] else {
            let got = ticket.sections.len() as u64;
            return Err(TicketError::Value { what: "number of cache groups of a save", got }.into());
        };
        // With fewer shards than ranks, the first ranks write and the others only read.
        if !probe && ticket.sections.iter().any(|section| self.rank >= section.shards) {
            return Ok(Save::new(Arc::default()));
        }
        let parts = ticket.parts_of(self.rank);
        let order = self.mark(ticket, &parts, before)?;
        let group = Arc::new(SaveGroup::new(blocks.len()));
        let admission = self.work.accept_save(ticket, probe, blocks.len(), |origin| {
            let pages = blocks.iter().zip(&ticket.hashes).zip(&parts);
            let page = |((block, hash), part): ((&u32, &Hash), &PagePart)| {
                SavePage::new(origin, layout, (*block, *hash, *part), &group, &order)
            };
            pages.map(page).collect()
        })?;
        match admission {
            Admission::Accepted(_) => {
                self.work.signal.raise();
                Ok(Save::new(group))
            }
            Admission::Stale => {
                self.work.decline(ticket, &parts);
                Ok(Save::new(Arc::default()))
            }
            Admission::Full(origin) => {
                let slots: Vec<_> = parts.iter().map(|part| part.slot()).collect();
                self.operations.abort(origin.session, &slots);
                Ok(Save::new(Arc::default()))
            }
        }
    }

    /// What every copy of the ticket comes after. Without it none is made, and the manager hears so.
    fn mark(&self, ticket: &Ticket, own: &[PagePart], before: Before) -> Result<StreamOrder, ClientError> {
        self.order(before).inspect_err(|_| self.work.decline(ticket, own))
    }

    /// What a copy comes after.
    pub(super) fn order(&self, before: Before) -> Result<StreamOrder, ClientError> {
        match (&self.work.cuda, before) {
            (Some(cuda), Before::Stream(stream)) => cuda.mark(stream),
            (Some(_), Before::Nothing) => {
                let want = "the stream that computes on these blocks, which are in the memory of a device";
                Err(ClientError::value("stream", "missing", want))
            }
            (None, _) | (_, Before::Probe) => Ok(StreamOrder::default()),
        }
    }

    /// Checks that a ticket and blocks fit each other and the layouts of its groups, which are returned.
    fn check_ticket(
        &self,
        ticket: &Ticket,
        kind: TicketKind,
        blocks: &[u32],
        probe: bool,
    ) -> Result<Vec<LoadSection>, ClientError> {
        if ticket.kind != kind {
            return Err(TicketError::Kind { got: ticket.kind }.into());
        }
        if blocks.len() != ticket.pages() {
            let want = format!("{}, one for each page of the ticket", ticket.pages());
            return Err(ClientError::value("number of blocks", blocks.len(), want));
        }
        let mut sections = Vec::with_capacity(ticket.sections.len());
        let mut start = 0;
        for section in &ticket.sections {
            let layout = self.layout_of(section.group, probe).ok_or_else(|| {
                ClientError::from(TicketError::Value { what: "cache group", got: u64::from(section.group) })
            })?;
            let (count, end) = (layout.num_blocks(), start + section.pages as usize);
            if let Some(block) = blocks[start..end].iter().find(|block| **block as usize >= count) {
                return Err(ClientError::value("block", block, format!("below {count}")));
            }
            sections.push(LoadSection { layout: Arc::clone(layout), pages: start..end });
            start = end;
        }
        Ok(sections)
    }

    pub(super) fn layout_of(&self, group: u16, probe: bool) -> Option<&Arc<KvLayout>> {
        if probe {
            return (group == PROBE_GROUP).then_some(&self.scratch);
        }
        self.layouts.iter().find(|(known, _)| *known == group).map(|(_, layout)| layout)
    }
}
