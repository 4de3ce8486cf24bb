//! Who is connected, and who was and may still be copying.

use crate::registration::Registration;
use crate::verification::Verification;
use std::collections::{BTreeMap, BTreeSet};

/// A session as the shell keeps it, until it is gone.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) registration: Registration,
    pub(crate) process: u64,
    /// Its connection; none once that has ended.
    pub(crate) connection: Option<u64>,
    /// Its last self-test verdict was good.
    pub(crate) attested: bool,
    /// The core told it that hits and saves are on.
    pub(crate) active: bool,
}

/// Sessions by number.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    all: BTreeMap<u64, Session>,
    last: u64,
}

/// One engine, for people.
#[derive(Clone, Debug, serde::Serialize, PartialEq, Eq)]
pub(crate) struct InstanceRow {
    pub(crate) instance: String,
    pub(crate) engine: String,
    pub(crate) engine_version: String,
    pub(crate) model: String,
    pub(crate) world_size: u16,
    /// Hits and saves are on.
    pub(crate) active: bool,
    /// Ranks whose self-test passed.
    pub(crate) ranks_attested: Vec<u16>,
    pub(crate) sessions: usize,
    /// Which restored pages its workers compare; several values if they differ.
    pub(crate) verify_restore: BTreeSet<String>,
}

impl Sessions {
    /// The number of the next session. Never given twice.
    pub(crate) fn next_id(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Whether that number was ever given.
    pub(crate) fn was_given(&self, id: u64) -> bool {
        (1..=self.last).contains(&id)
    }

    pub(crate) fn insert(&mut self, id: u64, session: Session) {
        self.all.insert(id, session);
    }

    pub(crate) fn get(&self, id: u64) -> Option<&Session> {
        self.all.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Session> {
        self.all.get_mut(&id)
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<Session> {
        self.all.remove(&id)
    }

    /// Sessions of the speaker's client and process after `last_heard` and before its present epoch.
    pub(crate) fn unheard(&self, last_heard: u64, process: u64, speaker: &Registration) -> Vec<u64> {
        let later = self.all.range(last_heard.saturating_add(1)..);
        let own = |s: &Session| {
            let whose = &s.registration;
            s.process == process && whose.client == speaker.client && whose.epoch < speaker.epoch
        };
        later.filter(|(_, s)| own(s)).map(|(id, _)| *id).collect()
    }

    /// Sessions with a connection.
    pub(crate) fn open(&self) -> usize {
        self.all.values().filter(|s| s.connection.is_some()).count()
    }

    /// Sessions without one, whose process may still be copying.
    pub(crate) fn closed_ids(&self) -> impl Iterator<Item = u64> {
        self.all.iter().filter(|(_, s)| s.connection.is_none()).map(|(id, _)| *id)
    }

    /// Connected workers by what they compare of what they restore.
    pub(crate) fn verifying(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = BTreeMap::from(Verification::NAMES.map(|name| (name, 0)));
        let open = self.all.values().filter(|s| s.connection.is_some());
        for rule in open.filter_map(|s| s.registration.verification) {
            *counts.entry(rule.name()).or_default() += 1;
        }
        counts
    }

    /// One row for each instance with an open session.
    pub(crate) fn instances(&self) -> Vec<InstanceRow> {
        let mut rows: BTreeMap<u128, InstanceRow> = BTreeMap::new();
        for session in self.all.values().filter(|s| s.connection.is_some()) {
            let who = &session.registration;
            let row = rows.entry(who.spec.instance.0).or_insert_with(|| InstanceRow {
                instance: format!("{:032x}", who.spec.instance.0),
                engine: who.engine.clone(),
                engine_version: who.engine_version.clone(),
                model: who.model.clone(),
                world_size: who.spec.world_size,
                active: false,
                ranks_attested: Vec::new(),
                sessions: 0,
                verify_restore: BTreeSet::new(),
            });
            row.sessions += 1;
            row.verify_restore.extend(who.verification.map(|rule| rule.to_string()));
            row.active |= session.active;
            row.ranks_attested.extend(who.spec.role.rank().filter(|_| session.attested));
        }
        rows.into_values().collect()
    }
}
