//! Room to save pages into.

use crate::sync::{Mutex, MutexGuard, OnceLock};
use crate::ticket::PagePart;
use orbitkv_wire::{GrantStatus, GrantedBody, Hash, Slot};
use std::sync::PoisonError;

/// What the manager granted.
#[derive(Debug)]
pub(crate) struct Grants {
    pub(crate) shards: u16,
    pub(crate) statuses: Vec<GrantStatus>,
    /// Parts of the granted pages, page-major.
    parts: Vec<PagePart>,
    /// For each page, how many granted pages are before it.
    before: Vec<usize>,
}

impl Grants {
    /// Copies an answer for `pages` pages; an error if it is for another number of them.
    pub(crate) fn from_wire(body: &GrantedBody<'_>, pages: usize) -> Result<Self, String> {
        let statuses: Vec<_> = (0..body.statuses.len()).filter_map(|i| body.status(i)).collect();
        let slots = statuses.contains(&GrantStatus::Slots);
        if statuses.len() != pages || (slots && body.shards == 0) {
            return Err(format!("granted {} pages where {pages} were asked for", statuses.len()));
        }
        let parts = body.parts.iter().map(PagePart::from).collect();
        Ok(Self { shards: body.shards, before: ranks(&statuses), statuses, parts })
    }

    /// The answer where there is none to come: no page.
    pub(crate) fn impossible(pages: usize) -> Self {
        Self {
            shards: 0,
            statuses: vec![GrantStatus::Refused; pages],
            parts: Vec::new(),
            before: vec![0; pages],
        }
    }

    /// Parts of page `i`, if it was granted.
    pub(crate) fn parts_of(&self, i: usize) -> Option<&[PagePart]> {
        if self.statuses.get(i) != Some(&GrantStatus::Slots) {
            return None;
        }
        let before = *self.before.get(i)?;
        let shards = usize::from(self.shards);
        self.parts.get(before * shards..(before + 1) * shards)
    }
}

fn ranks(statuses: &[GrantStatus]) -> Vec<usize> {
    let mut granted = 0;
    let rank = |status: &GrantStatus| {
        let rank = granted;
        granted += usize::from(*status == GrantStatus::Slots);
        rank
    };
    statuses.iter().map(rank).collect()
}

/// One reservation.
#[derive(Debug)]
pub(crate) struct ReservationCell {
    pub(crate) session: u64,
    pub(crate) boot: u128,
    pub(crate) operation: u64,
    pub(crate) group: u16,
    /// Monotonic time before the request was sent.
    pub(crate) issued_us: u64,
    pub(crate) hashes: Vec<Hash>,
    grants: OnceLock<Grants>,
    claims: Mutex<Claims>,
}

#[derive(Debug, Default)]
struct Claims {
    /// Pages that are in a ticket, or given back.
    taken: Vec<bool>,
    abandoned: bool,
}

impl ReservationCell {
    pub(crate) fn pending(
        (session, boot, operation): (u64, u128, u64),
        group: u16,
        issued_us: u64,
        hashes: Vec<Hash>,
    ) -> Self {
        let claims = Mutex::new(Claims { taken: vec![false; hashes.len()], abandoned: false });
        Self { session, boot, operation, group, issued_us, hashes, grants: OnceLock::new(), claims }
    }

    /// A reservation that never left this process.
    pub(crate) fn refused(hashes: Vec<Hash>) -> Self {
        let cell = Self::pending((0, 0, 0), 0, 0, hashes);
        cell.impossible();
        cell
    }

    pub(crate) fn grants(&self) -> Option<&Grants> {
        self.grants.get()
    }

    /// Stores the answer. The slots to give back at once, if the owner has let go meanwhile.
    pub(crate) fn answer(&self, grants: Grants) -> Vec<Slot> {
        // Under the lock, so that the owner either sees the grants or is seen to have let go.
        let mut claims = self.lock();
        if self.grants.set(grants).is_err() || !claims.abandoned {
            return Vec::new();
        }
        self.untaken(&mut claims)
    }

    pub(crate) fn impossible(&self) {
        let _ = self.grants.set(Grants::impossible(self.hashes.len()));
    }

    /// Takes page `i` for a ticket; false if that cannot be.
    pub(crate) fn claim(&self, i: usize) -> bool {
        let mut claims = self.lock();
        let granted = self.grants().is_some_and(|g| g.parts_of(i).is_some());
        let free = granted && !claims.abandoned && claims.taken.get(i) == Some(&false);
        if free {
            claims.taken[i] = true;
        }
        free
    }

    /// Puts back what was taken for a ticket that did not come about. The slots to give back at once, if the owner
    /// has let go meanwhile.
    pub(crate) fn unclaim(&self, i: usize) -> Vec<Slot> {
        let mut claims = self.lock();
        if let Some(taken) = claims.taken.get_mut(i) {
            *taken = false;
        }
        if claims.abandoned { self.untaken(&mut claims) } else { Vec::new() }
    }

    /// Lets go; returns the granted slots that are in no ticket.
    pub(crate) fn abandon(&self) -> Vec<Slot> {
        let mut claims = self.lock();
        claims.abandoned = true;
        self.untaken(&mut claims)
    }

    fn untaken(&self, claims: &mut Claims) -> Vec<Slot> {
        let Some(grants) = self.grants() else { return Vec::new() };
        let mut slots = Vec::new();
        for (i, taken) in claims.taken.iter_mut().enumerate() {
            if !*taken && let Some(parts) = grants.parts_of(i) {
                *taken = true;
                slots.extend(parts.iter().map(|p| p.slot()));
            }
        }
        slots
    }

    fn lock(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, loom))]
mod models;
