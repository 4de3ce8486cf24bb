//! Pages on their way out of a segment that goes.

use orbitkv_store::{Digest, Extent, StoredPage};
use std::collections::BTreeMap;

/// A page that has not been let go.
#[derive(Clone, Copy, Debug)]
struct Moving {
    namespace: Digest,
    wanted: bool,
}

/// Pages of one segment at a time: the store evicts the next one when the last of them has been let go.
#[derive(Debug, Default)]
pub(super) struct Moves {
    left: BTreeMap<Extent, Moving>,
    /// Where pages of the last eviction are now, for reads that were asked for before.
    new_places: BTreeMap<Extent, Extent>,
}

impl Moves {
    /// Another segment goes.
    pub(super) fn begin(&mut self, pages: &[StoredPage]) {
        self.new_places.clear();
        let moving = |page: &StoredPage| Moving { namespace: page.page.name.namespace, wanted: true };
        self.left.extend(pages.iter().map(|page| (page.extent, moving(page))));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    pub(super) fn is_wanted(&self, extent: Extent) -> bool {
        self.left.get(&extent).is_some_and(|moving| moving.wanted)
    }

    /// It was erased: it must not be written again.
    pub(super) fn unwanted(&mut self, extent: Extent) {
        if let Some(moving) = self.left.get_mut(&extent) {
            moving.wanted = false;
        }
    }

    /// As [`Moves::unwanted`], for a whole namespace.
    pub(super) fn unwanted_of(&mut self, namespace: &Digest) {
        let of_it = self.left.values_mut().filter(|moving| moving.namespace == *namespace);
        of_it.for_each(|moving| moving.wanted = false);
    }

    pub(super) fn moved(&mut self, from: Extent, to: Extent) {
        self.new_places.insert(from, to);
    }

    pub(super) fn let_go(&mut self, extent: Extent) {
        self.left.remove(&extent);
    }

    /// Where to read what was there.
    pub(super) fn place_now(&self, extent: Extent) -> Extent {
        self.new_places.get(&extent).copied().unwrap_or(extent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orbitkv_store::{PageName, PageRecord};

    fn page(namespace: u8, extent: u64) -> StoredPage {
        let name = PageName { namespace: [namespace; 32], group: 0, key: [0; 32], shard: 0 };
        let page = PageRecord {
            name,
            shard_count: 1,
            parent: None,
            depth: 0,
            boundary: 0,
            payload_bytes: 1,
            payload_crc: 0,
        };
        StoredPage { page, extent: Extent::from_bits(extent), sequence: 1 }
    }

    #[test]
    fn what_is_erased_or_forgotten_is_not_wanted_and_what_moved_is_found() {
        let mut moves = Moves::default();
        let [a, b, c] = [1, 2, 3].map(Extent::from_bits);
        moves.begin(&[page(1, 1), page(1, 2), page(2, 3)]);
        moves.unwanted(a);
        assert_eq!([a, b, c].map(|extent| moves.is_wanted(extent)), [false, true, true]);
        moves.unwanted_of(&[1; 32]);
        assert_eq!([a, b, c].map(|extent| moves.is_wanted(extent)), [false, false, true]);
        moves.moved(c, Extent::from_bits(9));
        [a, b, c].into_iter().for_each(|extent| moves.let_go(extent));
        assert!(moves.is_empty() && moves.place_now(c).bits() == 9 && moves.place_now(a) == a);
        moves.begin(&[]);
        assert_eq!(moves.place_now(c), c, "of another life");
    }
}
