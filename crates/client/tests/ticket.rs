//! Tickets: what is encoded is decoded, and anything else is an error.
#![allow(clippy::unwrap_used)]

use orbitkv_client::{PagePart, Section, Ticket, TicketError, TicketKind};
use proptest::prelude::*;

fn part() -> impl Strategy<Value = PagePart> {
    any::<(u32, u32, u32, u64)>().prop_map(|(segment, index, generation, crc)| PagePart {
        segment,
        index,
        generation,
        crc,
    })
}

fn ticket() -> impl Strategy<Value = Ticket> {
    let ids = any::<(bool, u128, u64, u64, u32, u64)>();
    let sections = prop::collection::vec((any::<u16>(), any::<u32>(), 0..8_u32, 1..4_u16), 1..4);
    (ids, sections).prop_flat_map(|(ids, sections)| {
        let (save, boot, scheduler, operation, revision, issued_us) = ids;
        let section = |(group, first_page, pages, shards)| Section { group, first_page, pages, shards };
        let sections: Vec<Section> = sections.into_iter().map(section).collect();
        let pages: usize = sections.iter().map(|s| s.pages as usize).sum();
        let parts: usize = sections.iter().map(|s| s.pages as usize * usize::from(s.shards)).sum();
        let hashes = prop::collection::vec(any::<[u8; 32]>(), if save { pages } else { 0 });
        let parts = prop::collection::vec(part(), parts);
        (hashes, parts).prop_map(move |(hashes, parts)| Ticket {
            kind: if save { TicketKind::Save } else { TicketKind::Restore },
            boot,
            scheduler,
            operation,
            revision,
            sections: sections.clone(),
            issued_us,
            hashes,
            parts,
        })
    })
}

proptest! {
    #[test]
    fn a_ticket_comes_back(ticket in ticket()) {
        prop_assert_eq!(Ticket::decode(&ticket.encode()), Ok(ticket));
    }

    #[test]
    fn every_truncation_and_every_addition_is_an_error(ticket in ticket(), extra in any::<u8>()) {
        let mut bytes = ticket.encode();
        for cut in 0..bytes.len() {
            prop_assert!(Ticket::decode(&bytes[..cut]).is_err(), "cut at {}", cut);
        }
        bytes.push(extra);
        prop_assert!(Ticket::decode(&bytes).is_err());
    }

    #[test]
    fn a_flipped_bit_is_an_error(ticket in ticket(), at in any::<prop::sample::Index>()) {
        let mut bytes = ticket.encode();
        let bit = at.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Ticket::decode(&bytes).is_err(), "bit {}", bit);
    }

    #[test]
    fn random_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..400), real in any::<bool>()) {
        if real && bytes.len() > 4 {
            bytes[..4].copy_from_slice(b"OKT1");
        }
        prop_assert!(Ticket::decode(&bytes).is_err());
    }
}

#[test]
fn counts_beyond_the_limits_are_refused_before_anything_is_allocated() {
    let empty = Ticket {
        kind: TicketKind::Restore,
        boot: 0,
        scheduler: 0,
        operation: 0,
        revision: 0,
        sections: vec![Section { group: 0, first_page: 0, pages: 0, shards: 1 }],
        issued_us: 0,
        hashes: Vec::new(),
        parts: Vec::new(),
    };
    let mut bytes = empty.encode();
    // The page count is the last field of the section behind the head of 56 bytes.
    bytes[64..68].copy_from_slice(&u32::MAX.to_le_bytes());
    let error = Ticket::decode(&bytes).unwrap_err();
    assert_eq!(error, TicketError::Value { what: "page count", got: u64::from(u32::MAX) });
    // Sections count one after the other.
    let many = |sections: Vec<Section>| Ticket { sections, ..empty.clone() }.encode();
    let section = Section { group: 0, first_page: 0, pages: 9_000, shards: 1 };
    let error = Ticket::decode(&many(vec![section; 2])).unwrap_err();
    assert_eq!(error, TicketError::Value { what: "page count", got: 18_000 });
    for (sections, got) in [(vec![], 0), (vec![Section { pages: 0, ..section }; 65], 65)] {
        let error = Ticket::decode(&many(sections)).unwrap_err();
        assert_eq!(error, TicketError::Value { what: "number of cache groups", got });
    }
}

#[test]
fn a_rank_copies_its_part_of_every_section() {
    let section = |pages, shards| Section { group: 0, first_page: 0, pages, shards };
    let part = |index| PagePart { index, ..PagePart::default() };
    // Two pages of three shards, one page of one shard, two pages of two.
    let sections = vec![section(2, 3), section(1, 1), section(2, 2)];
    let ticket = Ticket {
        kind: TicketKind::Restore,
        boot: 0,
        scheduler: 0,
        operation: 0,
        revision: 0,
        sections,
        issued_us: 0,
        hashes: Vec::new(),
        parts: (0..11).map(part).collect(),
    };
    let of = |rank| ticket.parts_of(rank).iter().map(|part| part.index).collect::<Vec<_>>();
    assert_eq!(of(0), [0, 3, 6, 7, 9]);
    assert_eq!(of(1), [1, 4, 6, 8, 10]);
    assert_eq!(of(5), [2, 5, 6, 8, 10]);
}
