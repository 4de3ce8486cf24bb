//! What an operation asks for: pages of one cache group, or of several one after the other.

use crate::instance::Shape;
use crate::{BlockHash, GroupId, NamespaceId, PageKey};
use smallvec::SmallVec;
use std::ops::Range;

/// Pages of one cache group that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) group: GroupId,
    pub(crate) shards: u16,
    /// Number of the first page in its group; zero in a prefix, whose place the core is not told.
    pub(crate) first_page: u32,
    /// Where it ends among all pages that are wanted.
    pub(crate) end: u32,
    /// Bytes of one page with all its shards.
    pub(crate) page_bytes: u64,
}

/// The pages an operation asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// One hash a page. Empty once the pages are handed out; the spans stay.
    pub(crate) hashes: Vec<BlockHash>,
    pub(crate) spans: SmallVec<[Span; 1]>,
    /// All groups that a recovery contract names, for one boundary.
    pub(crate) recovery: bool,
}

impl Wanted {
    /// The longest prefix of these.
    pub(crate) fn prefix(group: GroupId, shape: Shape, hashes: &[BlockHash]) -> Self {
        let mut wanted = Self { hashes: Vec::with_capacity(hashes.len()), ..Self::default() };
        wanted.push(group, shape, 0, hashes.iter().copied());
        wanted
    }

    /// Adds pages of one more group.
    pub(crate) fn push(
        &mut self,
        group: GroupId,
        shape: Shape,
        first_page: u32,
        hashes: impl Iterator<Item = BlockHash>,
    ) {
        self.hashes.extend(hashes);
        let end = u32::try_from(self.hashes.len()).unwrap_or(u32::MAX);
        let Shape { shards, .. } = shape;
        self.spans.push(Span { group, shards, first_page, end, page_bytes: shape.page_bytes() });
    }

    pub(crate) fn len(&self) -> usize {
        self.hashes.len()
    }

    /// The group of an answer: the only one of a prefix.
    pub(crate) fn group(&self) -> GroupId {
        self.spans.first().map_or(GroupId(0), |span| span.group)
    }

    /// Parts of all its pages.
    pub(crate) fn parts(&self) -> usize {
        self.each_span().map(|(span, pages)| pages.len() * usize::from(span.shards)).sum()
    }

    /// Each span with the places of its pages.
    pub(crate) fn each_span(&self) -> impl Iterator<Item = (&Span, Range<usize>)> {
        let starts = std::iter::once(0).chain(self.spans.iter().map(|span| span.end as usize));
        self.spans.iter().zip(starts).map(|(span, start)| (span, start..span.end as usize))
    }

    fn span(&self, at: usize) -> Option<&Span> {
        self.spans.iter().find(|span| at < span.end as usize)
    }

    /// Bytes of one page.
    pub(crate) fn page_bytes(&self, at: usize) -> u64 {
        self.span(at).map_or(0, |span| span.page_bytes)
    }

    /// Bytes of the first so many pages.
    pub(crate) fn bytes(&self, pages: usize) -> u64 {
        let of = |range: Range<usize>| range.end.min(pages).saturating_sub(range.start) as u64;
        self.each_span().map(|(span, range)| span.page_bytes * of(range)).sum()
    }

    /// How many of the first pages fit so many bytes.
    pub(crate) fn fitting(&self, mut bytes: u64) -> usize {
        let mut pages = 0;
        for (span, range) in self.each_span() {
            let fit = usize::try_from(bytes / span.page_bytes).unwrap_or(usize::MAX).min(range.len());
            pages += fit;
            if fit < range.len() {
                break;
            }
            bytes -= span.page_bytes * fit as u64;
        }
        pages
    }

    pub(crate) fn key(&self, namespace: NamespaceId, at: usize) -> Option<PageKey> {
        let hash = *self.hashes.get(at)?;
        Some(PageKey { namespace, group: self.span(at)?.group, hash })
    }

    /// Hashes of each group, while it has them.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (GroupId, &[BlockHash])> {
        self.each_span().map(|(span, pages)| (span.group, self.hashes.get(pages).unwrap_or_default()))
    }

    /// Keys of all its pages, while it has its hashes.
    pub(crate) fn keys(&self, namespace: NamespaceId) -> impl Iterator<Item = PageKey> + '_ {
        let mut spans = self.spans.iter();
        let (mut group, mut end) = (GroupId(0), 0);
        self.hashes.iter().enumerate().map(move |(at, &hash)| {
            if at >= end
                && let Some(span) = spans.next()
            {
                (group, end) = (span.group, span.end as usize);
            }
            PageKey { namespace, group, hash }
        })
    }

    /// Keeps the first so many pages.
    pub(crate) fn truncate(&mut self, pages: usize) {
        self.hashes.truncate(pages);
        self.cut_spans(0, pages);
    }

    /// Lets go of the first so many pages.
    pub(crate) fn skip(&mut self, pages: usize) {
        let pages = pages.min(self.hashes.len());
        self.hashes.drain(..pages);
        self.cut_spans(pages, usize::MAX);
    }

    /// Keeps of each span what lies from `from` to `to`, and counts from `from`.
    fn cut_spans(&mut self, from: usize, to: usize) {
        let mut start = 0;
        self.spans.retain(|span| {
            let (first, end) = (start.max(from), (span.end as usize).min(to));
            span.first_page += u32::try_from(first - start).unwrap_or(u32::MAX);
            start = span.end as usize;
            span.end = u32::try_from(end.saturating_sub(from)).unwrap_or(u32::MAX);
            end > first
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> Wanted {
        let shape = |slot_bytes| Shape { slot_bytes, payload_bytes: 1, shards: 2 };
        let hashes = |from: u8, to: u8| (from..to).map(|n| BlockHash([n; 32]));
        let mut wanted = Wanted::default();
        wanted.push(GroupId(3), shape(10), 0, hashes(0, 4));
        wanted.push(GroupId(5), shape(100), 7, hashes(10, 13));
        wanted
    }

    fn spans(wanted: &Wanted) -> Vec<(u16, u32, u32)> {
        wanted.spans.iter().map(|span| (span.group.0, span.first_page, span.end)).collect()
    }

    #[test]
    fn pages_of_several_groups_are_told_apart() {
        let wanted = wanted();
        assert_eq!((wanted.len(), wanted.parts()), (7, 14));
        assert_eq!([0, 3, 4, 7].map(|at| wanted.page_bytes(at)), [20, 20, 200, 0]);
        assert_eq!([0, 1, 4, 5, 7, 9].map(|n| wanted.bytes(n)), [0, 20, 80, 280, 680, 680]);
        assert_eq!([0, 19, 79, 80, 279, 280, 9_999].map(|b| wanted.fitting(b)), [0, 0, 3, 4, 4, 5, 7]);
        let keys: Vec<PageKey> = wanted.keys(NamespaceId(1)).collect();
        let groups: Vec<u16> = keys.iter().map(|key| key.group.0).collect();
        assert_eq!(groups, [3, 3, 3, 3, 5, 5, 5]);
        assert!(keys.iter().enumerate().all(|(at, key)| wanted.key(NamespaceId(1), at) == Some(*key)));
        assert_eq!(wanted.key(NamespaceId(1), 7), None);
    }

    #[test]
    fn what_is_cut_off_takes_its_spans_with_it() {
        let cut = |change: fn(&mut Wanted)| {
            let mut wanted = wanted();
            change(&mut wanted);
            (spans(&wanted), wanted.hashes.len())
        };
        assert_eq!(cut(|w| w.truncate(5)), (vec![(3, 0, 4), (5, 7, 5)], 5));
        assert_eq!(cut(|w| w.truncate(4)), (vec![(3, 0, 4)], 4));
        assert_eq!(cut(|w| w.skip(1)), (vec![(3, 1, 3), (5, 7, 6)], 6));
        assert_eq!(cut(|w| w.skip(5)), (vec![(5, 8, 2)], 2));
        assert_eq!(cut(|w| w.skip(7)), (vec![], 0));
    }
}
