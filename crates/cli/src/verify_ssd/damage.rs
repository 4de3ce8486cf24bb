//! What is broken, and where.

use orbitkv_store::{BLOCK_BYTES, InspectedPage, InspectedSegment, Overview, Part, SegmentFault, Source};
use serde::Serialize;

/// Places that are named; more are counted. A disk that lost its contents has one for each page.
const LISTED: usize = 1000;

/// One broken place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Place {
    /// `page`, `segment`, `owner` or `checkpoint`.
    pub(super) kind: &'static str,
    /// Name in the directory.
    pub(super) file: String,
    /// Where in the file; of a page, its header. Nothing if no single place is meant.
    pub(super) offset_bytes: Option<u64>,
    /// What is wrong.
    pub(super) what: String,
    /// Which page.
    pub(super) page: Option<Page>,
    /// It lies in a segment that was not sealed: a power cut leaves torn pages there, without a fault of the device.
    pub(super) unsealed: bool,
}

/// The name of a page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Page {
    /// 64 hex digits.
    pub(super) namespace: String,
    pub(super) group: u16,
    /// 64 hex digits.
    pub(super) key: String,
    pub(super) shard: u16,
}

/// All of them: the first by name.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Damage {
    /// Bad pages, all of them.
    pub(super) bad_pages: u64,
    /// Broken places, all of them.
    pub(super) places: u64,
    /// Those of them that lie in segments that were not sealed.
    pub(super) unsealed: u64,
    /// The first of them, in the order they were found.
    pub(super) listed: Vec<Place>,
}

impl Damage {
    /// Files that describe the directory.
    pub(super) fn of_directory(&mut self, overview: &Overview) {
        let parts = [
            ("owner", overview.owner, "the owner file is damaged; the next start does without it"),
            ("checkpoint", overview.checkpoint, "the checkpoint is damaged; the next start does without it"),
        ];
        for (name, part, what) in parts {
            if part == Part::Damaged {
                self.add(|| Place {
                    kind: name,
                    file: name.to_owned(),
                    offset_bytes: Some(0),
                    what: what.to_owned(),
                    page: None,
                    unsealed: false,
                });
            }
        }
    }

    /// A segment and its pages.
    pub(super) fn of_segment(&mut self, segment: &InspectedSegment) {
        let footer_gone = segment.faults.iter().any(|fault| {
            matches!(
                fault,
                SegmentFault::Footer { .. } | SegmentFault::Size { .. } | SegmentFault::NoSegment { .. }
            )
        });
        let unsealed = segment.source == Source::Headers && !footer_gone;
        for fault in &segment.faults {
            self.unsealed += u64::from(unsealed);
            self.add(|| Place {
                kind: "segment",
                file: segment.file.clone(),
                offset_bytes: fault.offset_bytes(),
                what: fault.to_string(),
                page: None,
                unsealed,
            });
        }
        for page in &segment.pages {
            self.of_page(segment, page, unsealed);
        }
    }

    fn of_page(&mut self, segment: &InspectedSegment, page: &InspectedPage, unsealed: bool) {
        let Some(fault) = &page.fault else {
            return;
        };
        self.bad_pages += 1;
        self.unsealed += u64::from(unsealed);
        let name = &page.page.name;
        self.add(|| Place {
            kind: "page",
            file: segment.file.clone(),
            offset_bytes: Some(u64::from(page.block) * BLOCK_BYTES as u64),
            what: fault.to_string(),
            page: Some(Page {
                namespace: hex(&name.namespace),
                group: name.group,
                key: hex(&name.key),
                shard: name.shard,
            }),
            unsealed,
        });
    }

    fn add(&mut self, place: impl FnOnce() -> Place) {
        self.places += 1;
        if self.listed.len() < LISTED {
            self.listed.push(place());
        }
    }
}

/// Lower-case hex digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_beyond_the_limit_are_counted_and_not_kept() {
        let mut damage = Damage::default();
        let segment = InspectedSegment {
            segment: 3,
            file: "segment-000003.okv".to_owned(),
            file_bytes: 1 << 16,
            generation: 1,
            source: Source::Headers,
            pages: Vec::new(),
            faults: vec![SegmentFault::PageHeader { block: 7 }; LISTED + 5],
            unaccounted_pages: 0,
        };
        damage.of_segment(&segment);
        assert_eq!((damage.places, damage.listed.len()), (LISTED as u64 + 5, LISTED));
        assert_eq!((damage.unsealed, damage.bad_pages), (LISTED as u64 + 5, 0));
        assert_eq!(damage.listed[0].offset_bytes, Some(7 * 4096));
    }
}
