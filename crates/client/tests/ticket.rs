//! Tickets: what is encoded is decoded, and anything else is an error.
#![allow(clippy::unwrap_used)]

use orbitkv_client::{PagePart, Ticket, TicketError, TicketKind};
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
    let ids = any::<(bool, u128, u64, u64, u32, u16, u64)>();
    (ids, 0..20_usize, 1..4_u16).prop_flat_map(|(ids, pages, shards)| {
        let (save, boot, scheduler, operation, revision, group, issued_us) = ids;
        let hashes = prop::collection::vec(any::<[u8; 32]>(), if save { pages } else { 0 });
        let parts = prop::collection::vec(part(), pages * usize::from(shards));
        (hashes, parts).prop_map(move |(hashes, parts)| Ticket {
            kind: if save { TicketKind::Save } else { TicketKind::Restore },
            boot,
            scheduler,
            operation,
            revision,
            group,
            shards,
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
        group: 0,
        shards: 1,
        issued_us: 0,
        hashes: Vec::new(),
        parts: Vec::new(),
    };
    let mut bytes = empty.encode();
    // The page count is behind magic, kind, group, boot, two ids, time and revision.
    bytes[52..56].copy_from_slice(&u32::MAX.to_le_bytes());
    let error = Ticket::decode(&bytes).unwrap_err();
    assert_eq!(error, TicketError::Value { what: "page count", got: u64::from(u32::MAX) });
}
