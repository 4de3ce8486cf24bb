//! What survives the process: files, names, and the journal of names.

use super::file::SimFile;
use super::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};

/// A change of names.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Create { name: String, file: u64 },
    Remove { name: String },
    Rename { from: String, to: String },
}

#[derive(Debug)]
pub(super) struct Storage {
    /// All that are named or open.
    pub(super) files: BTreeMap<u64, SimFile>,
    /// What a process sees.
    pub(super) names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    /// From the durable names to those that are seen.
    journal: Vec<Change>,
    next_file: u64,
    pub(super) total_bytes: u64,
    /// Of the user, and not to be seen in the size of the file system.
    pub(super) quota_bytes: u64,
    pub(super) locked: bool,
    /// Names whose files may neither be written nor removed.
    pub(super) protected: BTreeSet<String>,
    /// The highest sum of what was allocated.
    pub(super) peak_bytes: u64,
}

fn apply(names: &mut BTreeMap<String, u64>, change: &Change) {
    match change {
        Change::Create { name, file } => {
            names.insert(name.clone(), *file);
        }
        Change::Remove { name } => {
            names.remove(name);
        }
        Change::Rename { from, to } => {
            if let Some(file) = names.remove(from) {
                names.insert(to.clone(), file);
            }
        }
    }
}

impl Storage {
    pub(super) fn new(total_bytes: u64) -> Self {
        Self {
            files: BTreeMap::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            journal: Vec::new(),
            next_file: 0,
            total_bytes,
            quota_bytes: u64::MAX,
            locked: false,
            protected: BTreeSet::new(),
            peak_bytes: 0,
        }
    }

    pub(super) fn change(&mut self, change: Change) {
        apply(&mut self.names, &change);
        self.journal.push(change);
        self.peak_bytes = self.peak_bytes.max(self.allocated_bytes());
    }

    pub(super) fn create(&mut self, name: &str, bytes: u64) -> u64 {
        self.next_file += 1;
        let file = self.next_file;
        self.files.insert(file, SimFile::new(bytes));
        self.change(Change::Create { name: name.to_owned(), file });
        file
    }

    /// Of what has a name: a removed file's room is free at once here.
    pub(super) fn allocated_bytes(&self) -> u64 {
        self.names.values().filter_map(|file| self.files.get(file)).map(SimFile::allocated_bytes).sum()
    }

    pub(super) fn is_protected(&self, file: u64) -> bool {
        self.protected.iter().any(|name| self.names.get(name) == Some(&file))
    }

    pub(super) fn sync_names(&mut self) {
        self.durable_names = self.names.clone();
        self.journal.clear();
    }

    /// Loses what is not durable, as far as `rng` says.
    pub(super) fn crash(&mut self, rng: &mut Rng) {
        let kept = usize::try_from(rng.below(self.journal.len() as u64 + 1)).unwrap_or(0);
        let mut names = std::mem::take(&mut self.durable_names);
        self.journal.iter().take(kept).for_each(|change| apply(&mut names, change));
        self.names = names;
        self.journal.clear();
        self.files.values_mut().for_each(|file| file.crash(rng));
        self.locked = false;
        self.sync_names();
        // Nobody has them open any more.
        let named: BTreeSet<u64> = self.names.values().copied().collect();
        self.files.retain(|file, _| named.contains(file));
    }
}
