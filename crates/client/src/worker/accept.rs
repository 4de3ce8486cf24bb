//! A ticket and engine blocks become a restore or a save, if they fit each other.

use super::Core;
use super::load::LoadJob;
use super::save::{SaveGroup, SavePage};
use super::state::Admission;
use super::{Load, Save};
use crate::registration::PROBE_GROUP;
use crate::ticket::{PagePart, Ticket, TicketError, TicketKind};
use crate::{ClientError, Hash};
use orbitkv_copy::KvLayout;
use std::collections::HashSet;
use std::sync::Arc;

impl Core {
    pub(super) fn restore_ticket(
        self: &Arc<Self>,
        ticket: &Ticket,
        blocks: &[u32],
        probe: bool,
    ) -> Result<Load, ClientError> {
        let layout = self.check_ticket(ticket, TicketKind::Restore, blocks, probe)?;
        let mut seen = HashSet::with_capacity(blocks.len());
        if let Some(twice) = blocks.iter().find(|block| !seen.insert(**block)) {
            return Err(ClientError::value("block", twice, "given once: two pages would land in it"));
        }
        let parts = self.own_parts(ticket);
        let (job, admission) = self
            .work
            .accept_load(ticket, probe, |origin| LoadJob::new(origin, layout, blocks.to_vec(), parts))?;
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
        probe: bool,
    ) -> Result<Save, ClientError> {
        let layout = self.check_ticket(ticket, TicketKind::Save, blocks, probe)?;
        // With fewer shards than ranks, the first ranks write and the others only read.
        if !probe && self.rank >= ticket.shards {
            return Ok(Save::new(Arc::default()));
        }
        let parts = self.own_parts(ticket);
        let group = Arc::new(SaveGroup::new(blocks.len()));
        let admission = self.work.accept_save(ticket, probe, blocks.len(), |origin| {
            let pages = blocks.iter().zip(&ticket.hashes).zip(&parts);
            let page = |((block, hash), part): ((&u32, &Hash), &PagePart)| {
                SavePage::new(origin, &layout, (*block, *hash, *part), &group)
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

    /// Checks that a ticket and blocks fit each other and the layout, which is returned.
    fn check_ticket(
        &self,
        ticket: &Ticket,
        kind: TicketKind,
        blocks: &[u32],
        probe: bool,
    ) -> Result<Arc<KvLayout>, ClientError> {
        let (layout, group) = if probe { (&self.scratch, PROBE_GROUP) } else { (&self.layout, self.group) };
        if ticket.kind != kind {
            return Err(TicketError::Kind { got: ticket.kind }.into());
        }
        if ticket.group != group {
            return Err(TicketError::Value { what: "cache group", got: u64::from(ticket.group) }.into());
        }
        if blocks.len() != ticket.pages() {
            let want = format!("{}, one for each page of the ticket", ticket.pages());
            return Err(ClientError::value("number of blocks", blocks.len(), want));
        }
        let count = layout.num_blocks();
        match blocks.iter().find(|block| **block as usize >= count) {
            Some(block) => Err(ClientError::value("block", block, format!("below {count}"))),
            None => Ok(Arc::clone(layout)),
        }
    }

    /// This rank's part of each page.
    fn own_parts(&self, ticket: &Ticket) -> Vec<PagePart> {
        let shards = usize::from(ticket.shards.max(1));
        let own = usize::from(self.rank) % shards;
        ticket.parts.iter().skip(own).step_by(shards).copied().collect()
    }
}
