//! Counts pages by namespace and group, and finds out which lack shards.

use orbitkv_store::{Digest, InspectedPage};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Records whose names are remembered, at about 40 bytes each. Shards of a page may lie in different segments, so
/// that only the names tell which page is whole.
const MAX_NAMES: usize = 8 << 20;
/// Groups that are told apart. Namespaces come from the disk, and a directory may hold any number of them.
const MAX_GROUPS: usize = 1 << 16;

/// One group of one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Group {
    /// Shards of pages, one record each; older copies of a shard are not counted here.
    pub(super) shards: u64,
    /// Payload of these, in bytes.
    pub(super) bytes: u64,
    /// Pages of which at least one shard is there.
    pub(super) pages: u64,
    /// Those of them that lack shards.
    pub(super) incomplete_pages: u64,
    /// Records that are damaged.
    pub(super) bad: u64,
    /// Lowest and highest sequence.
    pub(super) sequences: Option<(u64, u64)>,
}

/// Name of a page in short: namespace, group and the first bytes of its hash, because only counts depend on it.
type PageKey = (u32, u16, u64);

/// See the module. Pages are shown to it the newest segment first.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// By namespace and group.
    pub(super) groups: BTreeMap<(Digest, u16), Group>,
    /// Records that the next start leaves out, because their namespace was cleared.
    pub(super) forgotten: u64,
    /// Records that stand behind a newer one of the same name.
    pub(super) older_copies: u64,
    /// Records that were not counted by name, because there are too many.
    pub(super) uncounted: u64,
    /// Short numbers for namespaces.
    namespaces: HashMap<Digest, u32>,
    shards: HashSet<(PageKey, u16)>,
    /// Shards that pages of several have, and how many are there.
    pages: HashMap<PageKey, (u32, u32)>,
}

impl Tally {
    /// Counts one record.
    pub(super) fn add(&mut self, found: &InspectedPage) {
        if found.forgotten {
            self.forgotten += 1;
            return;
        }
        let name = &found.page.name;
        let place = (name.namespace, name.group);
        let new = !self.groups.contains_key(&place);
        if self.shards.len() >= MAX_NAMES || (new && self.groups.len() >= MAX_GROUPS) {
            self.uncounted += 1;
            return;
        }
        let next = u32::try_from(self.namespaces.len()).unwrap_or(u32::MAX);
        let namespace = *self.namespaces.entry(name.namespace).or_insert(next);
        let [a, b, c, d, e, f, g, h, ..] = name.key;
        let page: PageKey = (namespace, name.group, u64::from_le_bytes([a, b, c, d, e, f, g, h]));
        let group = self.groups.entry(place).or_default();
        group.bad += u64::from(found.fault.is_some());
        if !self.shards.insert((page, name.shard)) {
            self.older_copies += 1;
            return;
        }
        group.shards += 1;
        group.bytes += u64::from(found.page.payload_bytes);
        let (low, high) = group.sequences.unwrap_or((u64::MAX, 0));
        group.sequences = Some((low.min(found.sequence), high.max(found.sequence)));
        let count = u32::from(found.page.shard_count);
        if count <= 1 {
            group.pages += 1;
            return;
        }
        // The first record's word for it: another one with another count is a record of something else.
        let (count, there) = self.pages.entry(page).or_insert((count, 0));
        *there += 1;
        // A page is one as soon as one shard of it is there, and incomplete until all are.
        group.pages += u64::from(*there == 1);
        group.incomplete_pages += u64::from(*there == 1);
        group.incomplete_pages -= u64::from(*there == *count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orbitkv_store::{PageName, PageRecord};

    fn record(key: u8, shard: u16, shard_count: u16, sequence: u64) -> InspectedPage {
        let name = PageName { namespace: [1; 32], group: 0, key: [key; 32], shard };
        let page = PageRecord {
            name,
            shard_count,
            parent: None,
            depth: 0,
            boundary: 0,
            payload_bytes: 100,
            payload_crc: 0,
        };
        InspectedPage { page, block: 1, sequence, forgotten: false, fault: None }
    }

    fn tally(records: &[InspectedPage]) -> Tally {
        let mut tally = Tally::default();
        for record in records {
            tally.add(record);
        }
        tally
    }

    #[test]
    fn a_page_is_whole_with_all_of_its_shards_wherever_they_lie() {
        let mut records =
            vec![record(1, 0, 2, 9), record(2, 1, 2, 8), record(3, 0, 1, 7), record(1, 1, 2, 3)];
        let counted = tally(&records);
        let group = &counted.groups[&([1; 32], 0)];
        assert_eq!((group.pages, group.incomplete_pages, group.shards), (3, 1, 4));
        assert_eq!((group.bytes, group.sequences), (400, Some((3, 9))));
        // The same key in another group and another namespace is another page.
        records[3].page.name.group = 1;
        records[2].page.name.namespace = [2; 32];
        let counted = tally(&records);
        let pages: Vec<_> = counted.groups.values().map(|g| (g.pages, g.incomplete_pages)).collect();
        assert_eq!(pages, [(2, 2), (1, 1), (1, 0)]);
    }

    #[test]
    fn an_older_copy_completes_no_page_and_makes_none_incomplete() {
        let counted = tally(&[
            record(1, 0, 2, 9),
            record(1, 0, 2, 2),
            record(2, 0, 2, 8),
            record(2, 1, 2, 7),
            record(2, 0, 2, 1),
        ]);
        let group = &counted.groups[&([1; 32], 0)];
        assert_eq!((group.pages, group.incomplete_pages, group.shards, counted.older_copies), (2, 1, 3, 2));
    }

    #[test]
    fn forgotten_records_are_counted_apart() {
        let counted = tally(&[InspectedPage { forgotten: true, ..record(1, 0, 1, 1) }]);
        assert_eq!((counted.groups.len(), counted.forgotten), (0, 1));
    }
}
